//! The module stream of the driver, where its packages are in one: enabled before they are installed.

use super::packages;
use crate::{
    change::Change,
    config::desired::DriverWish,
    step::{Cx, StepError},
};

/// Module and stream of the driver's packages.
fn wanted(driver: &DriverWish) -> Option<(&str, &str)> {
    driver.stream.as_deref()?.split_once(':')
}

/// The enabled stream of the module that the driver's packages are in.
pub(super) fn enabled(cx: &Cx<'_>) -> Result<Option<String>, StepError> {
    let driver = cx.desired.driver.as_ref();
    let (Some((module, _)), Some(streams)) =
        (driver.and_then(wanted), packages::backend(cx).streams())
    else {
        return Ok(None);
    };
    Ok(streams.enabled(cx.host.files(), module)?)
}

/// The change that enables the driver's stream, if another one is enabled, or none.
pub(super) fn change(driver: &DriverWish, enabled: Option<&str>) -> Option<Change> {
    let (module, stream) = wanted(driver)?;
    (enabled != Some(stream)).then(|| Change::EnableStream {
        module: module.to_owned(),
        stream: stream.to_owned(),
    })
}

/// Puts the stream first: which repository is needed is known only when its packages are offered, and
/// that decides whether a failure to download the lists matters.
pub(super) fn before(
    changes: Vec<Change>,
    driver: &DriverWish,
    enabled: Option<&str>,
) -> Vec<Change> {
    (change(driver, enabled).into_iter())
        .chain(changes)
        .collect()
}
