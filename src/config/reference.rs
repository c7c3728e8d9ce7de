//! The settings for people: one row for each key. docs/configuration.md, `config --defaults` and the manual page of the
//! settings file are made from it.

use std::sync::LazyLock;

use serde::Deserialize;

/// What people are told of a key.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyRow {
    /// Tables and key with dots between them; `NAME` stands for a name that the administrator chooses.
    pub name: String,
    /// What counts without the key, in Markdown; `None` where nothing does.
    pub default: Option<String>,
    /// What the key is for, in Markdown.
    pub about: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyTable {
    key: Vec<KeyRow>,
}

static ROWS: LazyLock<Vec<KeyRow>> = LazyLock::new(|| {
    let table: KeyTable =
        toml::from_str(include_str!("reference.toml")).expect("a test reads the table");
    table.key
});

/// All rows, in the order in which people read them.
#[must_use]
pub fn rows() -> &'static [KeyRow] {
    &ROWS
}

impl KeyRow {
    /// The default as TOML writes it, if it is the same on every machine.
    #[must_use]
    pub fn value(&self) -> Option<&str> {
        let value = self.default.as_deref()?.strip_prefix('`')?;
        value.strip_suffix('`').filter(|value| !value.contains('`'))
    }

    /// The table that the key is in, which is empty at the top, and the key's own name.
    #[must_use]
    pub fn place(&self) -> (&str, &str) {
        self.name.rsplit_once('.').unwrap_or(("", &self.name))
    }

    /// The row of a table in Markdown.
    #[must_use]
    pub fn markdown(&self) -> String {
        let default = (self.default.as_ref()).map_or_else(String::new, |text| format!("{text} "));
        format!("| `{}` | {default}| {} |", self.name, self.about)
    }
}
