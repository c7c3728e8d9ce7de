//! What settings from the cloud need beyond those of files.

use super::{Layers, Setting, dotted};
use crate::config::{error::ConfigError, place::Place};

impl Layers {
    /// Adds a tag of the instance as the last layer.
    pub(in crate::config) fn tag(
        &mut self,
        tag: String,
        key: &str,
        value: &str,
    ) -> Result<(), ConfigError> {
        let place = Place::Tag { tag };
        match dotted(key) {
            Some(path) => self.text(path, value.trim(), place),
            None => Err(ConfigError::Syntax {
                place,
                why: "what follows the first colon of its name is not a dotted TOML key".into(),
            }),
        }
    }

    /// Refuses settings of a table.
    pub(in crate::config) fn refuse_table(
        &self,
        table: &str,
        why: &str,
        hint: &str,
    ) -> Result<(), ConfigError> {
        let of_table =
            |(_, one): &(&String, &Setting)| one.path.first().is_some_and(|at| at == table);
        match self.settings.iter().find(of_table) {
            None => Ok(()),
            Some((key, _)) => Err(self.wrong(key, why.to_owned(), Some(hint.to_owned()))),
        }
    }

    /// The settings as [`Layers::set`] takes them.
    #[must_use]
    pub fn assignments(&self) -> Vec<String> {
        let assignment = |(key, setting): (&String, &Setting)| format!("{key}={}", setting.value);
        self.settings.iter().map(assignment).collect()
    }
}
