//! JSON and TOML files that belong to others: keys are read, set and removed one by one, and all
//! else stays: values, their order, the comments of TOML, the line ends, and a last line without one.

use camino::{Utf8Path, Utf8PathBuf};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, ser::PrettyFormatter};
use toml_edit::{Array, DocumentMut, InlineTable, Item, Table, TableLike};

/// The path of a key: the names of the objects or tables around it, then its own.
pub type KeyPath = [String];

/// A key, and the value that it has to have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Setting {
    /// The key.
    pub key: Vec<String>,
    /// The value; `None` if the key has to be absent.
    pub value: Option<Value>,
}

/// A file, and the keys that have to be set in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct FileSettings {
    /// Its path; the extension says its format.
    pub path: Utf8PathBuf,
    /// The keys, in the order in which they are set.
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
    /// The format of a file, by the extension of its name. Those of CRI-O are TOML, whatever they are called.
    #[must_use]
    pub fn of(path: &Utf8Path) -> Option<Self> {
        match path.extension() {
            Some("json") => Some(Self::Json),
            Some("toml") => Some(Self::Toml),
            _ if path.starts_with("/etc/crio") => Some(Self::Toml),
            _ => None,
        }
    }
}

/// A file that was read.
#[derive(Debug, Clone)]
pub struct Document {
    content: Content,
    style: Style,
}

/// How a text ends its lines.
#[derive(Debug, Clone, Copy, Default)]
struct Style {
    /// With a carriage return.
    crlf: bool,
    /// The last line has no end.
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

/// Why a key cannot be set.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DocumentError {
    /// The text does not have the format.
    #[error("{0}")]
    Syntax(String),
    /// Something on the way to the key has a value of its own.
    #[error("`{place}` is no table, so `{key}` cannot be set")]
    NoTable {
        /// What is in the way.
        place: String,
        /// The key.
        key: String,
    },
    /// TOML has no such value.
    #[error("TOML has no value like the one of `{key}`")]
    NoValue {
        /// The key.
        key: String,
    },
}

impl Document {
    /// Reads a text; an empty one is a document without keys. A byte order mark is left out.
    ///
    /// # Errors
    /// Where and why it does not have the format.
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

    /// The value of a key; `None` if there is none.
    #[must_use]
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

    /// Whether two documents say the same: in JSON the same values, in TOML also the same comments.
    #[must_use]
    pub fn is_like(&self, other: &Self) -> bool {
        match (&self.content, &other.content) {
            (Content::Toml(_), Content::Toml(_)) => self.body() == other.body(),
            _ => self.all() == other.all(),
        }
    }

    /// Whether nothing is said but the version of the format.
    #[must_use]
    pub fn is_bare(&self) -> bool {
        (self.all().as_object()).is_some_and(|all| all.keys().all(|name| name == "version"))
    }

    /// All keys and values.
    #[must_use]
    pub fn all(&self) -> Value {
        match &self.content {
            Content::Json { object, .. } => Value::Object(object.clone()),
            Content::Toml(document) => as_json(document.as_item()),
        }
    }

    /// Makes a key as the setting says. Tables on the way to it are made; tables that are empty
    /// afterwards and have no line of their own go.
    ///
    /// # Errors
    /// When a value stands where a table is needed, or when TOML has no such value.
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

    /// The text of the file.
    #[must_use]
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

    /// The text, whatever its line ends are.
    fn body(&self) -> String {
        match &self.content {
            Content::Json { object, indent } => {
                let mut text = Vec::new();
                let layout = PrettyFormatter::with_indent(indent.as_bytes());
                let mut writer = serde_json::Serializer::with_formatter(&mut text, layout);
                // A map of JSON values in memory can always be written.
                let written = object.serialize(&mut writer).is_ok();
                debug_assert!(written);
                text.push(b'\n');
                String::from_utf8_lossy(&text).into_owned()
            }
            Content::Toml(document) => document.to_string(),
        }
    }
}

/// The indentation of a new JSON file, that of `nvidia-ctk`.
const INDENT: &str = "    ";

/// The indentation of the first line that has one.
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

/// The error of a key whose table is a value; `left` is the number of tables that were still to come.
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
            // The comments around an old value stay with the new one.
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
    // A table with keys of its own needs its header; without it they would be those of another one.
    set_toml(inner, rest, name, item, key)?;
    if rest.is_empty()
        && let Some(inner) = table.get_mut(first).and_then(Item::as_table_mut)
        && inner.iter().any(|(_, item)| item.is_value())
    {
        inner.set_implicit(false);
    }
    Ok(())
}

fn replace(old: &mut Item, new: Item) {
    // Of a table only what differs: the comments in it, and its place, stay.
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

/// Removes a key, and the tables around it that are empty then and have no header of their own.
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
        // JSON has no time; only its text is compared.
        toml_edit::Value::Datetime(time) => Value::String(time.value().to_string()),
        toml_edit::Value::Array(list) => list.iter().map(value_as_json).collect(),
        toml_edit::Value::InlineTable(table) => Value::Object(
            (table.iter())
                .map(|(name, value)| (name.to_owned(), value_as_json(value)))
                .collect(),
        ),
    }
}

/// An object becomes a table with a header, and objects in it tables of their own.
fn as_toml(value: &Value) -> Option<Item> {
    let Value::Object(object) = value else {
        return value_as_toml(value).map(Item::Value);
    };
    let mut table = Table::new();
    // Values come first: those after a header would belong to it.
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

/// Checks that a text is TOML.
///
/// # Errors
/// Where and why it is not, in one line.
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
    fn a_text_that_is_no_toml_is_told_with_the_place() {
        assert_eq!(check_toml("version = 2\n"), Ok(()));
        let why = check_toml("version = 2\n[plugins\n").expect_err("broken");
        assert!(
            why.contains("at line 2 column ") && !why.contains('\n'),
            "{why}"
        );
    }

    #[test]
    fn line_ends_and_a_last_line_without_one_stay() {
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
    fn what_is_set_in_toml_is_removed_again_to_the_byte() {
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
    fn a_value_keeps_the_comment_beside_it() {
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
    fn comments_in_a_table_stay_where_a_value_in_it_changes() {
        let text = format!(
            "{CONFIG}[plugins.\"cri\".containerd.runtimes.nvidia] # GPUs\nruntime_type = \"r\"\n\
             base = \"b\" # theirs, too\n"
        );
        let mut document = toml(&text);
        let entry = json!({"base": "c", "runtime_type": "r"});
        document.set(&setting(&NVIDIA, entry)).unwrap();
        assert_eq!(document.text(), text.replace("\"b\" #", "\"c\" #"));
    }

    #[test]
    fn a_key_of_a_new_table_does_not_become_one_of_another_table() {
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
    fn a_value_in_the_way_is_named() {
        let mut document = toml("plugins = 1\n");
        let why = document.set(&setting(&NVIDIA, json!({}))).unwrap_err();
        assert!(
            why.to_string().starts_with("`plugins` is no table"),
            "{why}"
        );
        let mut document = Document::parse(Format::Json, r#"{"runtimes": []}"#).unwrap();
        let why = document
            .set(&setting(&["runtimes", "nvidia"], json!({})))
            .unwrap_err();
        assert!(
            why.to_string().starts_with("`runtimes` is no table"),
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
        fn what_can_be_read_is_written_as_it_was(text in "(\\[[a-c]\\]|[a-c] = |\\{\"a\": |[0-9]|\"|\n|\\}|#|.)*") {
            if let Ok(document) = Document::parse(Format::Toml, &text) {
                // A last line gets its end, `toml_edit` ends each line with a line feed alone, and no reader needs the mark at
                // the beginning.
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
