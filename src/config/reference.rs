//! The settings for people: one row for each key. docs/configuration.md, `config --defaults` and the manual page of the
//! settings file are made from it. The rows themselves are the types of `file.rs`.

use std::sync::LazyLock;

use serde_json::Value;

use super::keys::{ANY, inlined, join};

/// The keyword by which a key's schema says what counts without it, where that is no value.
const WORDS: &str = "x-default";

/// What people are told of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRow {
    /// Tables and key with dots between them; `NAME` stands for a name that the administrator chooses.
    pub name: String,
    /// What counts without the key, in Markdown; `None` where nothing does.
    pub default: Option<String>,
    /// What the key is for, in Markdown.
    pub about: String,
}

static ROWS: LazyLock<Vec<KeyRow>> = LazyLock::new(|| {
    let mut rows = Vec::new();
    collect(&inlined(), "", &mut rows);
    rows
});

fn collect(schema: &Value, name: &str, rows: &mut Vec<KeyRow>) {
    if let Some(properties) = schema.get("properties").and_then(Value::as_object) {
        for (key, child) in properties {
            collect(child, &join(name, key), rows);
        }
    } else if let Some(child @ Value::Object(_)) = schema.get("additionalProperties") {
        collect(child, &join(name, ANY), rows);
    } else {
        let text = |keyword: &str| schema.get(keyword).and_then(Value::as_str);
        let value = schema.get("default").filter(|value| !value.is_null());
        let value = value.and_then(|value| toml::Value::try_from(value).ok());
        rows.push(KeyRow {
            name: name.to_owned(),
            default: (text(WORDS).map(str::to_owned)).or(value.map(|value| format!("`{value}`"))),
            about: text("description").unwrap_or_default().replace('\n', " "),
        });
    }
}

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
