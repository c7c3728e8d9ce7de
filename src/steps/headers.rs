//! `kernel.headers`: the packages that compiling a kernel module needs, for the running and the
//! next kernel.

use async_trait::async_trait;

use super::{
    KERNEL_RELEASE, REPOSITORIES,
    driver_packages::adopts,
    packages,
    wishes::{Packages, compare, install},
};
use crate::{
    change::Lock,
    config::desired::Desired,
    model::id::StepId,
    step::{Assessment, Cx, Step, StepError},
};

/// See the module.
pub struct Headers;

/// What was read.
#[derive(Debug, Clone, Default)]
struct HeadersState {
    installed: Packages,
}

async fn detect(cx: &Cx<'_>) -> Result<HeadersState, StepError> {
    Ok(HeadersState {
        installed: packages::installed(cx).await?,
    })
}

fn decide(state: &HeadersState, desired: &Desired) -> Assessment {
    if desired
        .driver
        .as_ref()
        .is_none_or(|driver| driver.dkms.is_none())
    {
        return Assessment::NotApplicable {
            why: "no kernel module is compiled here".into(),
        };
    }
    if desired.headers.is_empty() {
        return Assessment::NotApplicable {
            why: "the profile names no headers".into(),
        };
    }
    let comparison = compare(desired.packages.manager, &desired.headers, &state.installed);
    if comparison.all_met() {
        return Assessment::Satisfied {
            why: comparison.met_text(),
        };
    }
    if !comparison.held.is_empty() {
        return Assessment::Blocked {
            why: comparison.held.join("; "),
            hint: comparison.held_hint(desired.packages.manager),
        };
    }
    Assessment::Needs {
        why: comparison.unmet_text(),
        changes: install(&desired.headers, Vec::new()),
    }
}

#[async_trait]
impl Step for Headers {
    fn id(&self) -> StepId {
        super::HEADERS
    }

    fn title(&self) -> &'static str {
        "Kernel headers"
    }

    fn after(&self) -> &[StepId] {
        const { &[KERNEL_RELEASE, REPOSITORIES] }
    }

    fn locks(&self) -> &[Lock] {
        &[Lock::Packages]
    }

    async fn assess(&self, cx: &Cx<'_>) -> Result<Assessment, StepError> {
        if adopts(cx).await {
            return Ok(Assessment::NotApplicable {
                why: "the existing driver is adopted, so no kernel module is compiled here".into(),
            });
        }
        packages::unless_half_done(cx, decide(&detect(cx).await?, cx.desired)).await
    }
}

#[cfg(test)]
mod tests {
    use super::{HeadersState, decide};
    use crate::{
        step::Assessment,
        steps::{
            fixtures::desired,
            wishes::fixtures::{packages, wishes},
        },
    };

    fn state(installed: &[&str]) -> HeadersState {
        HeadersState {
            installed: packages(installed),
        }
    }

    #[test]
    fn missing_headers_are_installed() {
        let mut want = desired();
        want.headers = wishes(&["linux-headers-6.1.0-44-amd64"]);
        assert!(matches!(
            decide(&state(&[]), &want),
            Assessment::Needs { .. }
        ));
        assert!(matches!(
            decide(&state(&["linux-headers-6.1.0-44-amd64=6.1.1"]), &want),
            Assessment::Satisfied { .. }
        ));
    }

    #[test]
    fn without_compiling_there_is_nothing_to_do() {
        let mut want = desired();
        want.driver.as_mut().expect("a driver").dkms = None;
        assert!(matches!(
            decide(&state(&[]), &want),
            Assessment::NotApplicable { .. }
        ));
    }
}
