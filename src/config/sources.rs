//! Configuration sources: each setting with its location. A later source overrides an earlier one.
//!
//! In this order: the proxy variables of the environment, `/etc/gpu-bootstrap/config.toml`, `config.d/*.toml` by
//! name, the files of `--config`, the variables with our prefix, `--set`, other flags that set a key. All of them override
//! the profile defaults. A list replaces the whole list of an earlier source.

mod hints;

use std::collections::BTreeMap;

use camino::{Utf8Path, Utf8PathBuf};
use serde::{Deserialize, Serialize, de::IntoDeserializer};
use toml::{
    Spanned, Table, Value,
    de::{DeTable, DeValue},
};

use crate::{
    config::{
        error::ConfigError,
        file::Config,
        keys::{self, KeyNode, Secrecy, TREE},
        location::{Location, PREFIX},
        network,
    },
    host::{FileKind, ReadFiles},
    model::secret::{Secret, without_logins},
};

/// The main file.
pub const FILE: &str = "/etc/gpu-bootstrap/config.toml";
/// The directory for drop-ins.
pub const DROP_INS: &str = "/etc/gpu-bootstrap/config.d";

/// Environment variables with our prefix that are not settings: the log filter.
const NOT_SETTINGS: [&str; 1] = ["GPU_BOOTSTRAP_LOG"];

/// Returns the settings in an environment: the variable, the parts of the key, and the value.
fn settings(env: &BTreeMap<String, String>) -> Vec<(String, Vec<String>, String)> {
    env.iter()
        .filter(|(name, _)| name.starts_with(PREFIX) && !NOT_SETTINGS.contains(&name.as_str()))
        .map(|(variable, value)| {
            let path = variable[PREFIX.len()..]
                .split("__")
                .map(|part| part.to_ascii_lowercase().replace('_', "-"))
                .collect();
            (variable.clone(), path, value.clone())
        })
        .collect()
}

/// Returns the settings in an environment in the form of [`SettingSources::set`]. They are stored, because a run that resumes
/// after a reboot has a different environment.
pub fn assignments(env: &BTreeMap<String, String>) -> Vec<String> {
    settings(env)
        .into_iter()
        .map(|(_, path, value)| format!("{}={value}", path.join(".")))
        .collect()
}

/// Returns the secrets that an assignment sets, including those in an inline table. The assignment may also have the
/// form `--token=X`.
pub fn secrets(assignment: &str) -> Vec<Secret> {
    let Some((key, value)) = assignment.split_once('=') else {
        return Vec::new();
    };
    let (mut path, value) = (path_of(key), value.trim());
    if let Some(value @ (Value::Table(_) | Value::Array(_))) = typed(value) {
        let mut found = Vec::new();
        leaves(&mut path, &value, &mut found);
        return found;
    }
    let value = ['"', '\'']
        .iter()
        .find_map(|quote| value.strip_prefix(*quote)?.strip_suffix(*quote))
        .unwrap_or(value);
    keys::secret(&path, value).into_iter().collect()
}

/// Collects the secrets in a value. The schema of each key specifies if its value is a secret.
fn leaves(path: &mut Vec<String>, value: &Value, found: &mut Vec<Secret>) {
    match value {
        Value::Table(table) => {
            for (name, value) in table {
                path.push(name.clone());
                leaves(path, value, found);
                path.pop();
            }
        }
        Value::Array(items) => {
            for item in items {
                leaves(path, item, found);
            }
        }
        Value::String(text) => found.extend(keys::secret(path, text)),
        other => found.extend(keys::secret(path, &other.to_string())),
    }
}

/// Parses text as a TOML value. `None` if it is invalid.
fn typed(text: &str) -> Option<Value> {
    toml::from_str::<Table>(&format!("value = {text}"))
        .ok()
        .filter(|table| table.len() == 1)
        .and_then(|mut table| table.remove("value"))
}

/// Returns the parts of the key of an assignment. The key may start with dashes, and its parts may be quoted.
pub fn path_of(key: &str) -> Vec<String> {
    let key = key.trim().trim_start_matches('-');
    dotted(key).unwrap_or_else(|| key.split('.').map(str::to_owned).collect())
}

#[derive(Debug, Clone, PartialEq)]
struct PlacedSetting {
    path: Vec<String>,
    value: Value,
    place: Location,
}

/// All settings of all sources.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SettingSources {
    settings: BTreeMap<String, PlacedSetting>,
}

/// A setting and its location, for display.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Provenance {
    /// The dotted key.
    pub key: String,
    /// The value as TOML, without its secrets.
    pub value: String,
    /// The location.
    pub place: Location,
}

impl std::fmt::Display for Provenance {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(to, "{} = {} (from {})", self.key, self.value, self.place)
    }
}

impl SettingSources {
    /// Reads all sources of this machine. `named` reads the files of `--config`, which are in `config`.
    ///
    /// # Errors
    /// If a file is unreadable or invalid, a file of `--config` does not exist, a symlink is dangling, or a variable or a
    /// `--set` is invalid.
    pub fn read(
        files: &dyn ReadFiles,
        named: &dyn ReadFiles,
        config: &[Utf8PathBuf],
        env: &BTreeMap<String, String>,
        set: &[String],
    ) -> Result<Self, ConfigError> {
        let mut layers = Self::default();
        layers.network(env)?;
        let drop_ins = Utf8Path::new(DROP_INS);
        let standard = std::iter::once(Utf8PathBuf::from(FILE)).chain(
            files
                .list(drop_ins)?
                .into_iter()
                // Skip hidden files, such as the temporary files of editors.
                .filter(|name| name.ends_with(".toml") && !name.starts_with('.'))
                .map(|name| drop_ins.join(name)),
        );
        // Reject a dangling symlink, because its settings would be missing without an error.
        whole(files, drop_ins)?;
        // Report all errors at once.
        let mut wrong: Vec<ConfigError> = Vec::new();
        for path in standard {
            whole(files, &path)?;
            if let Some(text) = files.read_text(&path)? {
                wrong.extend(layers.file(path.as_str(), &text).err());
            }
        }
        for path in config {
            match named.read_text(path)? {
                Some(text) => wrong.extend(layers.file(path.as_str(), &text).err()),
                None => wrong.push(ConfigError::MissingFile { path: path.clone() }),
            }
        }
        wrong.extend(layers.env(env).err());
        for assignment in set {
            wrong.extend(layers.set(assignment).err());
        }
        ConfigError::unless_none(wrong)?;
        Ok(layers)
    }

    /// Adds the proxy settings of the environment, which every other source overrides.
    fn network(&mut self, env: &BTreeMap<String, String>) -> Result<(), ConfigError> {
        for found in network::from_environment(env) {
            self.add(PlacedSetting {
                path: found.key.split('.').map(str::to_owned).collect(),
                value: Value::String(found.value),
                place: Location::Env {
                    variable: found.variable.to_owned(),
                },
            })?;
        }
        Ok(())
    }

    /// Adds a file as the last source.
    ///
    /// # Errors
    /// If the syntax, a key or a value is invalid.
    pub fn file(&mut self, file: &str, text: &str) -> Result<(), ConfigError> {
        let table =
            DeTable::parse(text).map_err(|error| ConfigError::syntax(file, text, &error))?;
        let place = |byte| Location::in_file(file, text, byte);
        let mut found = Vec::new();
        walk(
            table.into_inner(),
            &TREE,
            &mut Vec::new(),
            &place,
            &mut found,
        );
        let mut wrong: Vec<(Location, ConfigError)> = Vec::new();
        for (at, one) in found {
            if let Err(error) = one.and_then(|setting| self.add(setting)) {
                wrong.push((at, error));
            }
        }
        // Sort errors by their position in the file.
        wrong.sort_by(|(one, _), (other, _)| one.cmp(other));
        ConfigError::unless_none(wrong.into_iter().map(|(_, error)| error).collect())
    }

    /// Adds the environment variables with our prefix as the last source.
    ///
    /// # Errors
    /// If a variable with our prefix has an unknown key or an invalid value.
    pub fn env(&mut self, env: &BTreeMap<String, String>) -> Result<(), ConfigError> {
        let all = settings(env).into_iter();
        let wrong = all.filter_map(|(variable, path, value)| {
            self.text(path, &value, Location::Env { variable }).err()
        });
        ConfigError::unless_none(wrong.collect())
    }

    /// Adds `KEY=VALUE` as the last source.
    ///
    /// # Errors
    /// If there is no `=`, or the key or the value is invalid.
    pub fn set(&mut self, assignment: &str) -> Result<(), ConfigError> {
        let place = |shown: &str| Location::Flag {
            flag: format!("--set {shown}"),
        };
        let (key, value) = assignment
            .split_once('=')
            .ok_or_else(|| ConfigError::Syntax {
                place: place(assignment),
                why: "write `KEY=VALUE`, for example `driver.branch=580`".into(),
            })?;
        // Omit the value, because it may be a secret.
        let path = dotted(key).ok_or_else(|| ConfigError::Syntax {
            place: place(key),
            why: "the key is not a dotted TOML key".into(),
        })?;
        self.text(path, value.trim(), place(key.trim()))
    }

    /// Adds a flag that sets a key as the last source.
    ///
    /// # Errors
    /// If the value is invalid.
    pub fn flag(&mut self, flag: &str, key: &str, value: &str) -> Result<(), ConfigError> {
        let path = key.split('.').map(str::to_owned).collect();
        let flag = flag.to_owned();
        self.text(path, value, Location::Flag { flag })
    }

    /// Adds the settings that select a driver as the last source, and removes all other settings for the driver
    /// selection. `flag` is their location in messages.
    ///
    /// # Errors
    /// If a value is invalid.
    pub fn only_driver(&mut self, flag: &str, settings: &[String]) -> Result<(), ConfigError> {
        let choice = ["branch", "version", "flavor", "source", "build", "cuda"];
        let is_choice =
            |key: &str| (key.strip_prefix("driver.")).is_some_and(|key| choice.contains(&key));
        self.settings.retain(|key, _| !is_choice(key));
        for (key, value) in settings.iter().filter_map(|one| one.split_once('=')) {
            self.flag(flag, key, value)?;
        }
        Ok(())
    }

    /// Returns the settings after merging all sources, by key.
    pub fn provenance(&self) -> Vec<Provenance> {
        let of = |(key, setting): (&String, &PlacedSetting)| Provenance {
            key: key.clone(),
            value: shown(setting),
            place: setting.place.clone(),
        };
        self.settings.iter().map(of).collect()
    }

    /// Returns the settings by key, with the parts of the key and the value, including secrets.
    pub fn values(&self) -> impl Iterator<Item = (&str, &[String], &Value)> {
        let settings = self.settings.iter();
        settings.map(|(key, setting)| (&**key, &*setting.path, &setting.value))
    }

    /// Removes settings.
    pub(super) fn remove(&mut self, keys: &[String]) {
        self.settings.retain(|key, _| !keys.contains(key));
    }

    /// Returns the secrets among the settings.
    pub fn secrets(&self) -> impl Iterator<Item = Secret> {
        self.settings.values().flat_map(|setting| {
            let mut found = Vec::new();
            leaves(&mut setting.path.clone(), &setting.value, &mut found);
            found
        })
    }

    /// Returns the location of a setting. `None` if it is not set.
    pub fn place(&self, key: &str) -> Option<&Location> {
        self.settings.get(key).map(|setting| &setting.place)
    }

    /// Merges all sources into one configuration.
    ///
    /// # Errors
    /// None in practice, because each setting was validated when it was added.
    pub fn merged(&self) -> Result<Config, ConfigError> {
        let mut all = Table::new();
        for setting in self.settings.values() {
            insert(&mut all, &setting.path, setting.value.clone());
        }
        Config::deserialize(all).map_err(|error| ConfigError::Value {
            // Each setting was validated individually, so there is no single location.
            place: Box::new(Location::Profile),
            key: "configuration".into(),
            value: "all settings combined".into(),
            why: error.message().to_owned(),
            hint: None,
        })
    }

    /// Returns an error about the value of a key.
    pub(super) fn wrong(&self, key: &str, why: String, hint: Option<String>) -> ConfigError {
        ConfigError::Value {
            place: Box::new(self.place(key).cloned().unwrap_or(Location::Profile)),
            key: key.to_owned(),
            value: self
                .settings
                .get(key)
                .map_or_else(|| "unset".to_owned(), shown),
            why,
            hint,
        }
    }

    /// Adds a setting whose value is text. It is parsed as TOML if that is valid for the key, otherwise as a string,
    /// otherwise as a comma-separated list.
    fn text(&mut self, path: Vec<String>, value: &str, place: Location) -> Result<(), ConfigError> {
        check(&path, &place)?;
        if value.is_empty() && fits(&path, &Value::Array(Vec::new())).is_ok() {
            // Probably a shell variable that is not set.
            return Err(ConfigError::Value {
                place: Box::new(place),
                key: path.join("."),
                value: "empty".to_owned(),
                why: "the key takes a list".into(),
                hint: Some("use `[]` for an empty list".into()),
            });
        }
        let text = Value::String(value.to_owned());
        let list = Value::Array(
            value
                .split(',')
                .map(|item| Value::String(item.trim().to_owned()))
                .filter(|item| item.as_str() != Some(""))
                .collect(),
        );
        let typed = typed(value);
        let candidates = typed.iter().chain([&text, &list]);
        for candidate in candidates {
            if fits(&path, candidate).is_ok() {
                return self.add(PlacedSetting {
                    path,
                    value: candidate.clone(),
                    place,
                });
            }
        }
        // If the key takes a list, report the invalid item.
        let is_list = fits(&path, &Value::Array(Vec::new())).is_ok();
        let value = match typed {
            Some(Value::Array(items)) => Value::Array(items),
            _ if is_list => list,
            typed => typed.unwrap_or(text),
        };
        self.add(PlacedSetting { path, value, place })
    }

    fn add(&mut self, setting: PlacedSetting) -> Result<(), ConfigError> {
        let key = setting.path.join(".");
        match fits(&setting.path, &setting.value) {
            Ok(()) => {
                self.settings.insert(key, setting);
                Ok(())
            }
            Err(why) => Err(ConfigError::Value {
                hint: hints::for_value(&setting.path, &setting.value, &why),
                value: shown_in_error(&setting),
                // If the value is not text, the parser message contains it, and it may be a secret.
                why: match keys::secrecy(&setting.path) {
                    keys::Secrecy::Open => why,
                    _ if setting.value.is_str() => why,
                    _ => "must be text in quotes".to_owned(),
                },
                place: Box::new(setting.place),
                key,
            }),
        }
    }
}

/// Rejects a dangling symlink.
fn whole(files: &dyn ReadFiles, path: &Utf8Path) -> Result<(), ConfigError> {
    match files.stat(path)?.map(|stat| stat.kind) {
        Some(FileKind::Link(target)) if files.resolve(path)?.is_none() => {
            Err(ConfigError::DeadLink {
                path: path.to_owned(),
                target,
            })
        }
        _ => Ok(()),
    }
}

/// Collects the settings of a table with their locations, and the errors.
fn walk(
    table: DeTable<'_>,
    node: &KeyNode,
    path: &mut Vec<String>,
    place: &dyn Fn(usize) -> Location,
    found: &mut Vec<(Location, Result<PlacedSetting, ConfigError>)>,
) {
    for (name, value) in table {
        let at = place(name.span().start);
        path.push(name.into_inner().into_owned());
        match (child(node, path, &at), value) {
            (Err(error), _) => found.push((at, Err(error))),
            (Ok(KeyNode::Leaf(_)), value) => found.push((at, leaf(path, value, place))),
            (Ok(child), value) => match value.into_inner() {
                DeValue::Table(table) => walk(table, child, path, place, found),
                other => {
                    let error = ConfigError::Value {
                        place: Box::new(at.clone()),
                        key: path.join("."),
                        value: format!("of type {}", other.type_str()),
                        why: "the key is a table".into(),
                        hint: None,
                    };
                    found.push((at, Err(error)));
                }
            },
        }
        path.pop();
    }
}

fn leaf(
    path: &[String],
    value: Spanned<DeValue<'_>>,
    place: &dyn Fn(usize) -> Location,
) -> Result<PlacedSetting, ConfigError> {
    let at = place(value.span().start);
    let value =
        Value::deserialize(value.into_deserializer()).map_err(|error| ConfigError::Syntax {
            place: at.clone(),
            why: error.message().to_owned(),
        })?;
    Ok(PlacedSetting {
        path: path.to_vec(),
        value,
        place: at,
    })
}

/// Returns the node of the last part of a path, given its parent node.
fn child<'n>(
    node: &'n KeyNode,
    path: &[String],
    place: &Location,
) -> Result<&'n KeyNode, ConfigError> {
    let (name, before) = path
        .split_last()
        .map_or(("", &[][..]), |(name, before)| (name.as_str(), before));
    let unknown = |nearest| ConfigError::UnknownKey {
        place: place.clone(),
        key: path.join("."),
        nearest,
    };
    match node {
        KeyNode::Table(children) => children.get(name).ok_or_else(|| {
            let dotted = before.is_empty().then(|| hints::with_a_dot(name)).flatten();
            unknown(dotted.or_else(|| keys::suggestion(children, &before.join("."), name)))
        }),
        KeyNode::Map(child) if is_name(name) => Ok(child),
        KeyNode::Map(_) => Err(ConfigError::Value {
            place: Box::new(place.clone()),
            key: before.join("."),
            value: format!("named `{name}`"),
            why: "names start with a lower-case letter and contain only lower-case letters, digits and dashes".into(),
            hint: None,
        }),
        KeyNode::Leaf(_) => Err(unknown(Some(before.join(".")))),
    }
}

fn is_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_lowercase())
        && (name.bytes()).all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
}

/// Checks that a path is a key with a value.
fn check(path: &[String], place: &Location) -> Result<(), ConfigError> {
    let mut node = &*TREE;
    for end in 1..=path.len() {
        node = child(node, &path[..end], place)?;
    }
    if matches!(node, KeyNode::Leaf(_)) {
        return Ok(());
    }
    let prefix = format!("{}.", path.join("."));
    let one = keys::all()
        .into_iter()
        .rfind(|key| key.starts_with(&prefix));
    Err(ConfigError::Value {
        place: Box::new(place.clone()),
        key: path.join("."),
        value: "a value".to_owned(),
        why: "the key is a table".into(),
        hint: one.map(|key| format!("use one of its keys, such as `{key}`")),
    })
}

/// Checks that a value is valid for its key. Returns the reason if it is not.
fn fits(path: &[String], value: &Value) -> Result<(), String> {
    let mut table = Table::new();
    insert(&mut table, path, value.clone());
    match Config::deserialize(table) {
        Ok(_) => Ok(()),
        Err(error) => Err(for_people(error.message())),
    }
}

fn insert(table: &mut Table, path: &[String], value: Value) {
    match path {
        [] => {}
        [last] => {
            table.insert(last.clone(), value);
        }
        [first, rest @ ..] => {
            let entry = (table.entry(first.clone())).or_insert_with(|| Value::Table(Table::new()));
            if let Value::Table(inner) = entry {
                insert(inner, rest, value);
            }
        }
    }
}

/// Returns the parser message without the names of our types.
fn for_people(message: &str) -> String {
    let line = message.trim().replace('\n', "; ");
    let expected = line
        .replace("expected u64", "expected a whole number of at least 0")
        .replace("expected i32", "expected a whole number")
        .replace("expected a sequence", "expected a list");
    expected
        .replace("invalid type: ", "it is a ")
        .replace("a integer", "an integer")
}

/// Returns the parts of a key, parsed by TOML rules, including quotes.
fn dotted(key: &str) -> Option<Vec<String>> {
    if key.contains(['\n', '\r', '=', '#']) {
        return None;
    }
    let mut table = toml::from_str::<Table>(&format!("{key} = 0")).ok()?;
    let mut path = Vec::new();
    loop {
        let (name, value) = std::mem::take(&mut table).into_iter().next()?;
        path.push(name);
        match value {
            Value::Table(inner) => table = inner,
            _ => return Some(path),
        }
    }
}

/// Returns a value as TOML, without its secrets.
fn shown(setting: &PlacedSetting) -> String {
    match keys::secrecy(&setting.path) {
        Secrecy::Whole => "a secret".to_owned(),
        Secrecy::Login | Secrecy::Location | Secrecy::Open => {
            without_logins(&setting.value.to_string()).into_owned()
        }
    }
}

/// Returns an invalid value for an error message. Secret values are omitted.
fn shown_in_error(setting: &PlacedSetting) -> String {
    match keys::secrecy(&setting.path) {
        Secrecy::Open => shown(setting),
        Secrecy::Login | Secrecy::Location | Secrecy::Whole => "this value".to_owned(),
    }
}
