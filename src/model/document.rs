//! Edits JSON and TOML files of other programs. Keys are read, set and removed individually. Everything else is
//! preserved: other values, their order, TOML comments and formatting, line endings, and a missing newline at the end.
//! JSON is formatted again, with the indentation of the file.

use camino::{Utf8Path, Utf8PathBuf};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, ser::PrettyFormatter};
use toml_edit::{Array, DocumentMut, InlineTable, Item, Table, TableLike};

/// The path of a key: the names of its parent objects or tables, then its name.
pub type KeyPath = [String];

/// A key and its required value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Setting {
    /// The key.
    pub key: Vec<String>,
    /// The value. `None` if the key must be absent.
    pub value: Option<Value>,
}

/// A file and the keys to set in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct FileSettings {
    /// The path, which determines the [`Format`].
    pub path: Utf8PathBuf,
    /// The settings, in the order in which they are applied.
    pub settings: Vec<Setting>,
}

/// The format of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// A JSON object.
    Json,
    /// TOML.
    Toml,
}

impl Format {
    /// Returns the format for a file extension. Files below `/etc/crio` with any other extension are TOML.
    pub fn of(path: &Utf8Path) -> Option<Self> {
        match path.extension() {
            Some("json") => Some(Self::Json),
            Some("toml") => Some(Self::Toml),
            _ if path.starts_with("/etc/crio") => Some(Self::Toml),
            _ => None,
        }
    }
}

/// A parsed file.
#[derive(Debug, Clone)]
pub struct Document {
    content: Content,
    style: Style,
}

/// The line endings of a text.
#[derive(Debug, Clone, Copy, Default)]
struct Style {
    /// Whether every line ends with CRLF.
    crlf: bool,
    /// Whether the last line has no newline.
    open: bool,
}

#[derive(Debug, Clone)]
enum Content {
    Json {
        object: Map<String, Value>,
        indent: String,
    },
    Toml(Box<DocumentMut>),
}

/// The reason that a text cannot be parsed or a key cannot be set.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DocumentError {
    /// The text is not valid JSON or TOML.
    #[error("{0}")]
    Syntax(String),
    /// A parent of the key is a value instead of a table.
    #[error("cannot set `{key}`: `{place}` is not a table")]
    NoTable {
        /// The dotted path of the parent.
        place: String,
        /// The dotted path of the key.
        key: String,
    },
    /// TOML cannot represent the value.
    #[error("the value of `{key}` cannot be represented in TOML")]
    NoValue {
        /// The dotted path of the key.
        key: String,
    },
}

impl Document {
    /// Parses a text. An empty text is a document without keys. A byte order mark is removed.
    ///
    /// # Errors
    /// If the text is invalid. The error contains the reason, and for JSON the location.
    pub fn parse(format: Format, text: &str) -> Result<Self, DocumentError> {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let content = match format {
            Format::Json if text.trim().is_empty() => Content::Json {
                object: Map::new(),
                indent: INDENT.to_owned(),
            },
            Format::Json => Content::Json {
                object: serde_json::from_str(text)
                    .map_err(|error| DocumentError::Syntax(error.to_string()))?,
                indent: indent(text).unwrap_or(INDENT).to_owned(),
            },
            Format::Toml => {
                let document = text
                    .parse::<DocumentMut>()
                    .map_err(|error| DocumentError::Syntax(error.message().replace('\n', ", ")))?;
                Content::Toml(Box::new(document))
            }
        };
        let style = Style {
            crlf: text.contains('\n') && text.matches('\n').count() == text.matches("\r\n").count(),
            open: !text.trim().is_empty() && !text.ends_with('\n'),
        };
        Ok(Self { content, style })
    }

    /// Returns the value of a key, if any.
    pub fn get(&self, key: &KeyPath) -> Option<Value> {
        let (first, rest) = key.split_first()?;
        match &self.content {
            Content::Json { object, .. } => {
                let top = object.get(first);
                let found = rest.iter().fold(top, |value, name| value?.get(name));
                found.cloned()
            }
            Content::Toml(document) => {
                let top = document.get(first);
                let found = (rest.iter()).fold(top, |item, name| item?.as_table_like()?.get(name));
                found.filter(|item| !item.is_none()).map(as_json)
            }
        }
    }

    /// Returns whether two documents are equivalent. JSON documents must have the same values, and TOML documents the
    /// same text, including comments. Line endings are ignored.
    pub fn is_like(&self, other: &Self) -> bool {
        match (&self.content, &other.content) {
            (Content::Toml(_), Content::Toml(_)) => self.body() == other.body(),
            _ => self.all() == other.all(),
        }
    }

    /// Returns whether the document has no key except `version`.
    pub fn is_bare(&self) -> bool {
        (self.all().as_object()).is_some_and(|all| all.keys().all(|name| name == "version"))
    }

    /// Returns all keys and values.
    pub fn all(&self) -> Value {
        match &self.content {
            Content::Json { object, .. } => Value::Object(object.clone()),
            Content::Toml(document) => as_json(document.as_item()),
        }
    }

    /// Applies a setting. Setting a key creates missing parents. Removing a key also removes parents that become empty,
    /// except inline tables and TOML tables with a header.
    ///
    /// # Errors
    /// If a parent is a value, or TOML cannot represent the value.
    pub fn set(&mut self, setting: &Setting) -> Result<(), DocumentError> {
        let Some((name, tables)) = setting.key.split_last() else {
            return Ok(());
        };
        match (&mut self.content, &setting.value) {
            (Content::Json { object, .. }, value) => {
                set_json(object, tables, name, value.as_ref(), &setting.key)
            }
            (Content::Toml(document), Some(value)) => {
                let item = as_toml(value).ok_or_else(|| DocumentError::NoValue {
                    key: setting.key.join("."),
                })?;
                set_toml(document.as_table_mut(), tables, name, item, &setting.key)
            }
            (Content::Toml(document), None) => {
                remove_toml(document.as_table_mut(), &setting.key);
                Ok(())
            }
        }
    }

    /// Returns the file contents.
    pub fn text(&self) -> String {
        let Style { crlf, open } = self.style;
        let mut text = self.body();
        if open {
            text.truncate(text.trim_end_matches(['\r', '\n']).len());
        }
        if crlf {
            text = text.replace("\r\n", "\n").replace('\n', "\r\n");
        }
        text
    }

    /// Returns the text before its original line endings are restored.
    fn body(&self) -> String {
        match &self.content {
            Content::Json { object, indent } => {
                let mut text = Vec::new();
                let layout = PrettyFormatter::with_indent(indent.as_bytes());
                let mut writer = serde_json::Serializer::with_formatter(&mut text, layout);
                // A JSON map in memory can always be serialized.
                let written = object.serialize(&mut writer).is_ok();
                debug_assert!(written);
                text.push(b'\n');
                String::from_utf8_lossy(&text).into_owned()
            }
            Content::Toml(document) => document.to_string(),
        }
    }
}

/// The indentation of a new JSON file, as used by `nvidia-ctk`.
const INDENT: &str = "    ";

/// Returns the indentation of the first indented line.
fn indent(text: &str) -> Option<&str> {
    text.lines().find_map(|line| {
        let content = line.trim_start_matches([' ', '\t']);
        let indent = &line[..line.len() - content.len()];
        (!indent.is_empty() && !content.is_empty()).then_some(indent)
    })
}

fn set_json(
    object: &mut Map<String, Value>,
    tables: &KeyPath,
    name: &str,
    value: Option<&Value>,
    key: &KeyPath,
) -> Result<(), DocumentError> {
    let Some((first, rest)) = tables.split_first() else {
        match value {
            Some(value) => drop(object.insert(name.to_owned(), value.clone())),
            None => drop(object.shift_remove(name)),
        }
        return Ok(());
    };
    if value.is_none() && !object.contains_key(first) {
        return Ok(());
    }
    let inner = (object.entry(first.clone())).or_insert_with(|| Value::Object(Map::new()));
    let Value::Object(inner) = inner else {
        return Err(no_table(key, tables.len()));
    };
    set_json(inner, rest, name, value, key)?;
    if value.is_none() && inner.is_empty() {
        object.shift_remove(first);
    }
    Ok(())
}

/// Returns the error for a key with a value as a parent. `left` is the number of parents from this value on.
fn no_table(key: &KeyPath, left: usize) -> DocumentError {
    let place = key.len().saturating_sub(left);
    DocumentError::NoTable {
        place: key[..place].join("."),
        key: key.join("."),
    }
}

fn set_toml(
    table: &mut dyn TableLike,
    tables: &KeyPath,
    name: &str,
    item: Item,
    key: &KeyPath,
) -> Result<(), DocumentError> {
    let Some((first, rest)) = tables.split_first() else {
        match table.get_mut(name) {
            // Keep the comments of the old value.
            Some(old) => replace(old, item),
            None => drop(table.insert(name, item)),
        }
        return Ok(());
    };
    if table.get(first).is_none_or(Item::is_none) {
        let mut made = Table::new();
        made.set_implicit(true);
        table.insert(first, Item::Table(made));
    }
    let inner = (table.get_mut(first))
        .and_then(Item::as_table_like_mut)
        .ok_or_else(|| no_table(key, tables.len()))?;
    set_toml(inner, rest, name, item, key)?;
    // A table with values needs a header. Otherwise the values would belong to the previous table.
    if rest.is_empty()
        && let Some(inner) = table.get_mut(first).and_then(Item::as_table_mut)
        && inner.iter().any(|(_, item)| item.is_value())
    {
        inner.set_implicit(false);
    }
    Ok(())
}

fn replace(old: &mut Item, new: Item) {
    // Replace only the differences in a table, to keep its comments and position.
    if let Item::Table(new) = &new
        && let Some(old) = old.as_table_like_mut()
    {
        let gone: Vec<String> = (old.iter())
            .filter(|(name, _)| !new.contains_key(name))
            .map(|(name, _)| name.to_owned())
            .collect();
        for name in gone {
            old.remove(&name);
        }
        for (name, item) in new {
            match old.get_mut(name) {
                Some(there) => replace(there, item.clone()),
                None => drop(old.insert(name, item.clone())),
            }
        }
        return;
    }
    match (old.as_value_mut(), new) {
        (Some(old), Item::Value(mut new)) => {
            *new.decor_mut() = old.decor().clone();
            *old = new;
        }
        (_, new) => *old = new,
    }
}

/// Removes a key, and parent tables that become empty and have no header.
fn remove_toml(table: &mut dyn TableLike, key: &KeyPath) {
    let Some((first, rest)) = key.split_first() else {
        return;
    };
    if rest.is_empty() {
        table.remove(first);
        return;
    }
    let Some(item) = table.get_mut(first) else {
        return;
    };
    if let Some(inner) = item.as_table_like_mut() {
        remove_toml(inner, rest);
    }
    let is_made = |table: &Table| table.is_empty() && table.is_implicit();
    if item.as_table().is_some_and(is_made) {
        table.remove(first);
    }
}

fn as_json(item: &Item) -> Value {
    if let Some(table) = item.as_table_like() {
        let inside = table.iter().filter(|(_, item)| !item.is_none());
        return Value::Object(
            inside
                .map(|(name, item)| (name.to_owned(), as_json(item)))
                .collect(),
        );
    }
    if let Some(tables) = item.as_array_of_tables() {
        let tables = tables
            .iter()
            .map(|table| as_json(&Item::Table(table.clone())));
        return Value::Array(tables.collect());
    }
    item.as_value().map_or(Value::Null, value_as_json)
}

fn value_as_json(value: &toml_edit::Value) -> Value {
    match value {
        toml_edit::Value::String(text) => Value::String(text.value().clone()),
        toml_edit::Value::Integer(number) => Value::from(*number.value()),
        toml_edit::Value::Float(number) => Value::from(*number.value()),
        toml_edit::Value::Boolean(truth) => Value::Bool(*truth.value()),
        // JSON has no type for dates and times.
        toml_edit::Value::Datetime(time) => Value::String(time.value().to_string()),
        toml_edit::Value::Array(list) => list.iter().map(value_as_json).collect(),
        toml_edit::Value::InlineTable(table) => Value::Object(
            (table.iter())
                .map(|(name, value)| (name.to_owned(), value_as_json(value)))
                .collect(),
        ),
    }
}

/// Converts an object to a table with a header, and nested objects to nested tables.
fn as_toml(value: &Value) -> Option<Item> {
    let Value::Object(object) = value else {
        return value_as_toml(value).map(Item::Value);
    };
    let mut table = Table::new();
    // Values must be before tables: a value after the header of a nested table would belong to that table.
    let (tables, values): (Vec<_>, Vec<_>) =
        object.iter().partition(|(_, value)| value.is_object());
    for (name, value) in values.into_iter().chain(tables) {
        table.insert(name, as_toml(value)?);
    }
    Some(Item::Table(table))
}

fn value_as_toml(value: &Value) -> Option<toml_edit::Value> {
    Some(match value {
        Value::Null => return None,
        Value::Bool(truth) => (*truth).into(),
        Value::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(number), _) => number.into(),
            (None, Some(number)) => number.into(),
            (None, None) => return None,
        },
        Value::String(text) => text.as_str().into(),
        Value::Array(list) => {
            let list: Option<Array> = list.iter().map(value_as_toml).collect();
            list?.into()
        }
        Value::Object(object) => {
            let mut table = InlineTable::new();
            for (name, value) in object {
                table.insert(name, value_as_toml(value)?);
            }
            table.into()
        }
    })
}

/// Checks that a text is valid TOML.
///
/// # Errors
/// If it is invalid. The error contains the reason and the location in one line.
pub fn check_toml(text: &str) -> Result<(), String> {
    toml::from_str::<toml::Table>(text)
        .map(drop)
        .map_err(|error| {
            let words = error.message().replace('\n', ", ");
            let Some(span) = error.span() else {
                return words;
            };
            let before = text.get(..span.start).unwrap_or(text);
            let line = before.rsplit('\n').next().unwrap_or_default();
            let (line, column) = (before.matches('\n').count() + 1, line.chars().count() + 1);
            format!("{words} at line {line} column {column}")
        })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn invalid_toml_is_reported_with_location() {
        assert_eq!(check_toml("version = 2\n"), Ok(()));
        let why = check_toml("version = 2\n[plugins\n").expect_err("broken");
        assert!(
            why.contains("at line 2 column ") && !why.contains('\n'),
            "{why}"
        );
    }

    #[test]
    fn line_endings_are_preserved() {
        for (format, text) in rows! {
            Format::Json, "{\r\n  \"a\": 1\r\n}\r\n";
            Format::Json, "{\n  \"a\": 1\n}";
            Format::Json, "{\r\n  \"a\": 1\r\n}";
            Format::Toml, "# theirs\r\na = 1\r\n";
            Format::Toml, "# theirs\r\na = 1";
            Format::Toml, "a = 1\n[b]\nc = 2";
        } {
            let mut document = Document::parse(format, text).expect("a document");
            assert_eq!(document.text(), text);
            document.set(&setting(&["new"], json!(2))).expect("set");
            let with = document.text();
            assert_ne!(with, text);
            assert_eq!(with.contains('\r'), text.contains('\r'), "{with:?}");
            assert_eq!(with.ends_with('\n'), text.ends_with('\n'), "{with:?}");
            let mut again = Document::parse(format, &with).expect("a document");
            again.set(&gone(&["new"])).expect("removed");
            assert_eq!(again.text(), text);
        }
    }

    fn key(path: &[&str]) -> Vec<String> {
        path.iter().map(ToString::to_string).collect()
    }

    fn setting(path: &[&str], value: Value) -> Setting {
        Setting {
            key: key(path),
            value: Some(value),
        }
    }

    fn gone(path: &[&str]) -> Setting {
        Setting {
            key: key(path),
            value: None,
        }
    }

    fn toml(text: &str) -> Document {
        Document::parse(Format::Toml, text).expect("TOML")
    }

    const CONFIG: &str = "# The team's file\nversion = 2\ndisabled_plugins = [\"cri\"] # for Docker\n\n\
        [plugins]\n  [plugins.\"cri\".containerd.runtimes.runc] # theirs\n    runtime_type = \"r\"\n";
    const NVIDIA: [&str; 5] = ["plugins", "cri", "containerd", "runtimes", "nvidia"];

    #[test]
    fn removed_toml_key_leaves_no_trace() {
        let mut document = toml(CONFIG);
        let entry = json!({"options": {"SystemdCgroup": true}, "runtime_type": "r"});
        document.set(&setting(&NVIDIA, entry.clone())).unwrap();
        assert_eq!(document.get(&key(&NVIDIA)), Some(entry));
        let written = document.text();
        assert!(written.starts_with("# The team's file\n") && written.contains("# theirs"));
        assert!(
            written
                .contains("[plugins.\"cri\".containerd.runtimes.nvidia]\nruntime_type = \"r\"\n"),
            "{written}"
        );
        document.set(&gone(&NVIDIA)).unwrap();
        assert_eq!(document.text(), CONFIG);
    }

    #[test]
    fn changed_value_keeps_its_comment() {
        let mut document = toml(CONFIG);
        document
            .set(&setting(&["disabled_plugins"], json!([])))
            .unwrap();
        assert!(
            document
                .text()
                .contains("disabled_plugins = [] # for Docker\n")
        );
        document
            .set(&setting(&["disabled_plugins"], json!(["cri"])))
            .unwrap();
        assert_eq!(document.text(), CONFIG);
    }

    #[test]
    fn table_comments_survive_a_changed_value() {
        let text = format!(
            "{CONFIG}[plugins.\"cri\".containerd.runtimes.nvidia] # GPUs\nruntime_type = \"r\"\n\
             base = \"b\" # also theirs\n"
        );
        let mut document = toml(&text);
        let entry = json!({"base": "c", "runtime_type": "r"});
        document.set(&setting(&NVIDIA, entry)).unwrap();
        assert_eq!(document.text(), text.replace("\"b\" #", "\"c\" #"));
    }

    #[test]
    fn new_keys_belong_to_their_tables() {
        let mut document = toml("version = 3\n\n[a.b]\nx = 1\n");
        document.set(&setting(&["c", "name"], json!("n"))).unwrap();
        document.set(&setting(&["root"], json!("/r"))).unwrap();
        document.set(&setting(&["a", "y"], json!(2))).unwrap();
        let again = toml(&document.text());
        assert_eq!(
            again.all(),
            json!({"version": 3, "root": "/r", "a": {"b": {"x": 1}, "y": 2}, "c": {"name": "n"}})
        );
    }

    #[test]
    fn inline_tables_and_dotted_keys_are_tables() {
        let mut document = toml("plugins.cri.containerd = { runtimes = { runc = {} } }\n");
        document
            .set(&setting(&NVIDIA, json!({"runtime_type": "r"})))
            .unwrap();
        let again = toml(&document.text());
        assert_eq!(again.get(&key(&NVIDIA)), Some(json!({"runtime_type": "r"})));
        assert!(
            again
                .get(&key(&["plugins", "cri", "containerd", "runtimes", "runc"]))
                .is_some()
        );
    }

    #[test]
    fn value_instead_of_table_is_reported() {
        let mut document = toml("plugins = 1\n");
        let why = document.set(&setting(&NVIDIA, json!({}))).unwrap_err();
        assert!(
            why.to_string().ends_with("`plugins` is not a table"),
            "{why}"
        );
        let mut document = Document::parse(Format::Json, r#"{"runtimes": []}"#).unwrap();
        let why = document
            .set(&setting(&["runtimes", "nvidia"], json!({})))
            .unwrap_err();
        assert!(
            why.to_string().ends_with("`runtimes` is not a table"),
            "{why}"
        );
        assert!(Document::parse(Format::Json, "[]").is_err());
    }

    #[test]
    fn json_keeps_its_order_and_indentation() {
        let text = "{\n\t\"mtu\": 1400,\n\t\"bip\": \"10.0.0.1/24\"\n}\n";
        let mut document = Document::parse(Format::Json, text).unwrap();
        document
            .set(&setting(&["runtimes", "nvidia"], json!({"path": "n"})))
            .unwrap();
        let written = document.text();
        assert!(
            written.starts_with("{\n\t\"mtu\": 1400,\n\t\"bip\""),
            "{written}"
        );
        assert!(written.contains("\n\t\t\"nvidia\": {"), "{written}");
        document.set(&gone(&["runtimes", "nvidia"])).unwrap();
        assert_eq!(document.text(), text);
        document.set(&gone(&["log", "driver"])).unwrap();
        assert_eq!(document.text(), text);
    }

    proptest::proptest! {
        #[test]
        fn parsed_text_is_written_unchanged(text in "(\\[[a-c]\\]|[a-c] = |\\{\"a\": |[0-9]|\"|\n|\\}|#|.)*") {
            if let Ok(document) = Document::parse(Format::Toml, &text) {
                // Ignore newlines at the end, CRLF (`toml_edit` writes LF) and the byte order mark.
                let written = document.text();
                let text = text.strip_prefix('\u{feff}').unwrap_or(&text).replace("\r\n", "\n");
                proptest::prop_assert_eq!(written.trim_end_matches('\n'), text.trim_end_matches('\n'));
            }
            if let Ok(document) = Document::parse(Format::Json, &text) {
                let again = Document::parse(Format::Json, &document.text()).expect("JSON");
                proptest::prop_assert_eq!(again.all(), document.all());
            }
        }
    }
}
