//! The settings reference: one entry for each key. docs/configuration.md, `config --defaults` and the manual page of
//! the configuration file are generated from it. The entries come from the types of `file.rs`.

use std::sync::LazyLock;

use serde_json::Value;

use super::keys::{ANY, inlined, join};

/// The schema keyword that describes a default that is not a fixed value.
const WORDS: &str = "x-default";

/// The documentation of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRow {
    /// Tables and key, separated by dots. `NAME` stands for a name that the administrator chooses.
    pub name: String,
    /// The default in Markdown. `None` if there is none.
    pub default: Option<String>,
    /// The description in Markdown.
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

/// Returns all entries in the order of the documentation.
pub fn rows() -> &'static [KeyRow] {
    &ROWS
}

impl KeyRow {
    /// Returns the default as TOML, if it is the same on every machine.
    pub fn value(&self) -> Option<&str> {
        let value = self.default.as_deref()?.strip_prefix('`')?;
        value.strip_suffix('`').filter(|value| !value.contains('`'))
    }

    /// Returns the table of the key, which is empty at the top level, and the name of the key.
    pub fn place(&self) -> (&str, &str) {
        self.name.rsplit_once('.').unwrap_or(("", &self.name))
    }

    /// Returns the entry as a Markdown table row.
    pub fn markdown(&self) -> String {
        let default = (self.default.as_ref()).map_or_else(String::new, |text| format!("{text} "));
        format!("| `{}` | {default}| {} |", self.name, self.about)
    }
}
