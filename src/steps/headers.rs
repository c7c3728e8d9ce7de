//! `kernel.headers`: packages for compiling modules for the running and the next kernel, and packages with in-tree
//! modules that containers need. Runs before anything starts a container.

use super::{
    HEADERS, KERNEL_RELEASE, REPOSITORIES,
    driver_packages::adopts,
    packages,
    specs::{InstalledPackages, package_step},
};
use crate::{
    change::Lock,
    config::desired::{Desired, PackageSpec},
    step::{Assessment, Cx, Step, StepError},
};

/// The `kernel.headers` step.
pub(super) fn step() -> Step {
    Step::new(HEADERS, |cx| Box::pin(assess(cx)))
        .after([KERNEL_RELEASE, REPOSITORIES])
        // Package scripts compile modules for the kernel.
        .locks([Lock::Packages, Lock::Modules])
}

#[derive(Debug, Clone, Default)]
struct HeadersState {
    installed: InstalledPackages,
    /// An existing driver that was installed without packages is kept.
    adopts: bool,
}

async fn detect(cx: &Cx<'_>) -> Result<HeadersState, StepError> {
    Ok(HeadersState {
        installed: packages::installed(cx).await?,
        adopts: adopts(cx).await,
    })
}

fn decide(state: &HeadersState, desired: &Desired) -> Assessment {
    let is_compiled = (desired.driver.as_ref()).is_some_and(|driver| driver.is_compiled());
    let mut wanted: Vec<PackageSpec> = desired.container_modules.clone();
    if is_compiled && !state.adopts {
        wanted.extend(desired.headers.iter().cloned());
    }
    if wanted.is_empty() {
        return Assessment::not_applicable(match (state.adopts, is_compiled) {
            (true, _) => "the existing driver is adopted, so no kernel module is compiled",
            (false, true) => "the profile lists no header packages",
            (false, false) => "no kernel module is compiled",
        });
    }
    let manager = desired.packages.manager;
    package_step(manager, &wanted, &state.installed, Vec::new())
}

async fn assess(cx: &Cx<'_>) -> Result<Assessment, StepError> {
    packages::unless_half_done(cx, decide(&detect(cx).await?, cx.desired)).await
}

#[cfg(test)]
mod tests {
    use super::{HeadersState, decide};
    use crate::{
        config::desired::Desired,
        step::Assessment,
        steps::{
            fixtures::desired,
            specs::fixtures::{packages, specs},
        },
    };

    fn state(installed: &[&str]) -> HeadersState {
        HeadersState {
            installed: packages(installed),
            adopts: false,
        }
    }

    #[test]
    fn missing_headers_are_installed() {
        let mut want = desired();
        want.headers = specs(&["linux-headers-6.1.0-44-amd64"]);
        decide(&state(&[]), &want).expect_needs();
        decide(&state(&["linux-headers-6.1.0-44-amd64=6.1.1"]), &want).expect_satisfied();
    }

    #[test]
    fn not_applicable_without_compiling() {
        let mut want = desired();
        want.driver.as_mut().expect("a driver").compiled_as = None;
        decide(&state(&[]), &want).expect_not_applicable();
    }

    #[test]
    fn container_modules_are_installed_for_any_driver() {
        let mut want = desired();
        want.headers = specs(&["kernel-devel"]);
        want.container_modules = specs(&["kernel-modules-extra"]);
        let wanted = |state: &HeadersState, want: &Desired| match decide(state, want) {
            Assessment::Needs { why, .. } => why,
            other => panic!("{other:?}"),
        };
        let adopted = HeadersState {
            adopts: true,
            ..state(&[])
        };
        let why = wanted(&adopted, &want);
        assert!(
            why.contains("kernel-modules-extra") && !why.contains("kernel-devel"),
            "{why}"
        );
        let why = wanted(&state(&["kernel-devel=6.12"]), &want);
        assert!(why.contains("kernel-modules-extra"), "{why}");
        want.driver = None;
        let why = wanted(&state(&[]), &want);
        assert!(why.contains("kernel-modules-extra"), "{why}");
    }
}
