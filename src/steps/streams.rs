//! The DNF module stream of the driver packages, if any. It is enabled before they are installed.

use super::packages;
use crate::{
    change::Change,
    config::desired::DriverSpec,
    step::{Cx, StepError},
};

/// DNF module and stream of the driver packages.
fn wanted(driver: &DriverSpec) -> Option<(&str, &str)> {
    driver.stream.as_deref()?.split_once(':')
}

/// Returns the enabled stream of the module with the driver packages.
pub(super) fn enabled(cx: &Cx<'_>) -> Result<Option<String>, StepError> {
    let driver = cx.desired.driver.as_ref();
    let (Some((module, _)), Some(streams)) =
        (driver.and_then(wanted), packages::backend(cx).streams())
    else {
        return Ok(None);
    };
    Ok(streams.enabled(cx.host.files(), module)?)
}

/// Returns the change that enables the driver stream, if it is not enabled.
pub(super) fn change(driver: &DriverSpec, enabled: Option<&str>) -> Option<Change> {
    let (module, stream) = wanted(driver)?;
    (enabled != Some(stream)).then(|| Change::EnableStream {
        module: module.to_owned(),
        stream: stream.to_owned(),
    })
}

/// Puts the stream change first, because the packages are available only after their stream is enabled. The refresh that
/// follows then knows which repository the packages require, and fails if the lists of this repository cannot be downloaded.
pub(super) fn before(
    changes: Vec<Change>,
    driver: &DriverSpec,
    enabled: Option<&str>,
) -> Vec<Change> {
    (change(driver, enabled).into_iter())
        .chain(changes)
        .collect()
}
