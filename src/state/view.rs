//! Differences between the file system views of this process and of PID 1, and the unit settings that cause them.

use std::fmt;

use super::{State, StateError, units};
use crate::{
    host::view::{self, PrivateView},
    tools::systemctl,
};

/// A file system view that differs from the view of PID 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sandbox {
    pub view: PrivateView,
    /// The unit settings that differ from their defaults.
    pub settings: Vec<String>,
}

impl fmt::Display for Sandbox {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        if !self.view.read_only.is_empty() {
            let paths: Vec<String> = (self.view.read_only.iter())
                .map(|path| format!("`{path}`"))
                .collect();
            parts.push(format!("{} read-only", paths.join(", ")));
        }
        if self.view.devices {
            parts.push("a private `/dev`".to_owned());
        }
        let what = parts.join(" and ");
        let settings: Vec<String> = (self.settings.iter())
            .map(|setting| format!("`{setting}`"))
            .collect();
        match &self.view.unit {
            Some(unit) if settings.is_empty() => {
                write!(to, "`{unit}` has a private view of the machine: {what}")
            }
            Some(unit) => write!(
                to,
                "`{unit}` has a private view of the machine: {what}, caused by {}",
                settings.join(", ")
            ),
            None => write!(to, "this process has its own mount namespace: {what}"),
        }
    }
}

impl Sandbox {
    /// The remedy: remove the unit settings, or run the command with the view of PID 1.
    pub fn remedy(&self) -> String {
        let outside = "run the command as a separate unit (`systemd-run --pipe --wait COMMAND`)";
        match &self.view.unit {
            Some(unit) => {
                let settings = match self.settings.is_empty() {
                    true => "the settings that cause this",
                    false => "these settings",
                };
                format!("remove {settings} (`systemctl edit {unit}`), or {outside}")
            }
            None => format!("run the command in the mount namespace of PID 1, or {outside}"),
        }
    }
}

impl State {
    /// Compares the file system views of this process and of PID 1. Returns `None` if no relevant path differs.
    ///
    /// # Errors
    /// If the mount lists in `/proc` cannot be read, or if systemd cannot be queried.
    pub async fn sandbox(&self) -> Result<Option<Sandbox>, StateError> {
        let Some(view) = view::private(&*self.host.files)? else {
            return Ok(None);
        };
        let mut settings = Vec::new();
        if let Some(unit) = &view.unit
            && let Some(output) = units::answer(&self.host, &systemctl::sandbox(unit)).await?
        {
            let found = systemctl::parse_sandbox(&output.stdout);
            settings.extend(found.into_iter().map(str::to_owned));
        }
        Ok(Some(Sandbox { view, settings }))
    }
}
