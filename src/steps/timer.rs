//! A timer of gpu-bootstrap and its service: their state, and the changes that write and start them.

use camino::Utf8PathBuf;

use super::program;
use crate::{
    change::Change,
    step::{Cx, StepError},
    tools::systemctl::{UnitState, own_file},
};

#[derive(Debug, Clone)]
pub(super) struct TimerUnits {
    /// Content of the unit files.
    pub(super) service: Option<String>,
    pub(super) timer: Option<String>,
    /// The state of the timer unit. `None` if it does not exist.
    pub(super) unit: Option<UnitState>,
    /// The executable for the service, or the reason that it must not be used.
    pub(super) program: Result<Utf8PathBuf, String>,
}

/// The state of a machine that was not inspected.
impl Default for TimerUnits {
    fn default() -> Self {
        Self {
            service: None,
            timer: None,
            unit: None,
            program: Err("not inspected".to_owned()),
        }
    }
}

impl TimerUnits {
    pub(super) async fn detect(cx: &Cx<'_>, service: &str, timer: &str) -> Result<Self, StepError> {
        let files = cx.host.files();
        let service = files.read_text(&own_file(service))?;
        Ok(Self {
            timer: files.read_text(&own_file(timer))?,
            unit: cx.state.unit(timer).await?,
            program: program::of_unit(cx, service.as_deref())?,
            service,
        })
    }
}

/// The required changes and their reasons.
#[derive(Debug, Default)]
pub(super) struct Needed {
    pub(super) whys: Vec<String>,
    pub(super) changes: Vec<Change>,
}

impl Needed {
    /// Writes a unit file, unless it has this content. Returns whether it is written.
    pub(super) fn write(&mut self, unit: &str, found: Option<&str>, content: String) -> bool {
        if found == Some(content.as_str()) {
            return false;
        }
        self.whys.push(match found {
            None => format!("`{unit}` is missing"),
            Some(_) => format!("`{unit}` has different content"),
        });
        self.changes.push(Change::write(own_file(unit), content));
        true
    }

    /// Enables and starts a timer, unless it is enabled and active. Returns whether it is started.
    pub(super) fn start(&mut self, timer: &str, state: Option<&UnitState>) -> bool {
        if state.is_some_and(|state| state.is_enabled() && state.is_active()) {
            return false;
        }
        if let Some(state) = state.filter(|state| state.exists()) {
            self.whys.push(format!("`{timer}` is {state}"));
        }
        self.changes.push(Change::EnableUnit {
            unit: timer.to_owned(),
            start: true,
        });
        true
    }
}
