//! How this process sees the machine otherwise than PID 1, with the settings of its unit that are the cause.

use std::fmt;

use super::{State, StateError, units};
use crate::{
    host::view::{self, PrivateView},
    tools::systemctl,
};

/// A view of the machine that is not that of PID 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sandbox {
    pub view: PrivateView,
    /// The settings of the unit that differ from their defaults.
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
            parts.push("another `/dev`".to_owned());
        }
        let what = parts.join(" and ");
        let settings: Vec<String> = (self.settings.iter())
            .map(|setting| format!("`{setting}`"))
            .collect();
        match &self.view.unit {
            Some(unit) if settings.is_empty() => {
                write!(to, "`{unit}` sees {what}, unlike the machine")
            }
            Some(unit) => write!(
                to,
                "`{unit}` sees {what}, unlike the machine, because of {}",
                settings.join(", ")
            ),
            None => write!(
                to,
                "this process sees {what}, unlike the machine: it has its own mount namespace"
            ),
        }
    }
}

impl Sandbox {
    /// How to see the machine.
    #[must_use]
    pub fn remedy(&self) -> String {
        let outside = "run the command outside of it (`systemd-run --pipe --wait COMMAND`)";
        match &self.view.unit {
            Some(unit) => format!("remove these settings (`systemctl edit {unit}`), or {outside}"),
            None => format!("run the command in the mount namespace of PID 1, or {outside}"),
        }
    }
}

impl State {
    /// How this process sees the machine otherwise than PID 1; `None` if it sees the same.
    ///
    /// # Errors
    /// If the kernel's lists or systemd cannot be queried.
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
