//! `rdma.modules`: kernel modules for RDMA with GPU memory are loaded now and at every boot. `nvidia-peermem` is part of the driver
//! packages. The others must be installed by the administrator: the step loads them in the right order, and compares the version
//! of `nvidia-peermem` with the driver. Only Debian is known to have one of them, `nvidia-fs-dkms` (2.13.5 in Debian 12,
//! `non-free`, source package `nvidia-cuda-toolkit`). It depends on Debian's driver packages, which are older than NVIDIA's, so
//! no step installs it.
//!
//! Sources: NVIDIA driver README, "GPUDirect RDMA Peer Memory Client" (`nvidia-peermem` needs an RDMA stack with peer memory,
//! which must be installed before the driver; DMA-BUF is the alternative); NVIDIA/nccl issue 1939 (a loaded module that is not
//! registered); NVIDIA/gdrcopy, README.md; NVIDIA, "nvidia-fs"; aws/eks-ami issue 2466.

use camino::Utf8Path;

use super::{DRIVER_MODULE, RDMA_MODULES, messages};
use crate::{
    change::{Change, Lock},
    config::{choices::RdmaModule, desired::Desired},
    facts::Facts,
    model::version::DriverVersion,
    step::{Assessment, Cx, Step, StepError},
    tools::{kmod, packages::HEADER},
};

/// The file that loads the modules at every boot. `modprobe` loads the driver before modules that need it.
const PATH: &str = "/etc/modules-load.d/gpu-bootstrap-rdma.conf";

/// Exists while `nvidia-peermem` is registered in the RDMA stack.
const REGISTERED: &str = "/sys/kernel/mm/memory_peers/nv_mem";

/// The `rdma.modules` step.
pub(super) fn step() -> Step {
    Step::new(RDMA_MODULES, |cx| Box::pin(assess(cx)))
        .after([DRIVER_MODULE])
        .locks([Lock::Modules])
        .wants(|change, desired| {
            desired.driver.is_none() || is_wanted(change, &desired.settings.rdma.modules)
        })
}

/// Whether a change belongs to the configured modules.
fn is_wanted(change: &Change, modules: &[RdmaModule]) -> bool {
    match change {
        Change::LoadModule { module } => modules.iter().any(|one| one.name() == module),
        _ => !modules.is_empty(),
    }
}

/// Returns the configured modules in the order in which they are loaded.
fn configured(desired: &Desired) -> Vec<RdmaModule> {
    let mut modules = desired.settings.rdma.modules.clone();
    modules.sort_unstable();
    modules.dedup();
    modules
}

/// The origin of a module that is not part of the driver packages.
const fn origin(module: RdmaModule) -> &'static str {
    match module {
        RdmaModule::Efa => "the EFA installer of Amazon contains it",
        RdmaModule::NvidiaPeermem => "it is part of the driver packages",
        RdmaModule::Gdrdrv => "the package `gdrdrv-dkms` or `gdrcopy-kmod` of GDRCopy contains it",
        RdmaModule::NvidiaFs => "the package `nvidia-fs-dkms` of GPUDirect Storage contains it",
    }
}

#[derive(Debug, Clone, Default)]
struct RdmaState {
    content: Option<String>,
    /// The loaded driver.
    driver: Option<DriverVersion>,
    /// Configured modules that are not loaded.
    not_loaded: Vec<RdmaModule>,
    /// Configured modules that do not exist for the running kernel, except `nvidia-peermem`.
    missing: Vec<RdmaModule>,
    /// The version of the loaded `nvidia-peermem`.
    peermem: Option<String>,
    /// `nvidia-peermem` is registered in the RDMA stack.
    registered: bool,
}

fn detect(cx: &Cx<'_>, modules: &[RdmaModule]) -> Result<RdmaState, StepError> {
    let files = cx.host.files();
    let running = cx.facts.kernel.running.as_ref().map(ToString::to_string);
    let list = match &running {
        Some(kernel) => files.read_text(&kmod::list_of(kernel))?,
        None => None,
    };
    let mut state = RdmaState {
        content: files.read_text(Utf8Path::new(PATH))?,
        driver: cx.state.loaded_driver()?.cloned(),
        registered: files.exists(Utf8Path::new(REGISTERED))?,
        ..RdmaState::default()
    };
    for module in modules {
        if files.exists(&kmod::in_kernel(module.name()))? {
            continue;
        }
        state.not_loaded.push(*module);
        // Without a list, the modules on disk are unknown.
        let exists =
            (list.as_deref()).is_none_or(|list| kmod::file_of(list, module.name()).is_some());
        if !exists && *module != RdmaModule::NvidiaPeermem {
            state.missing.push(*module);
        }
    }
    let version = kmod::in_kernel(RdmaModule::NvidiaPeermem.name()).join("version");
    state.peermem = files
        .read_text(&version)?
        .map(|text| text.trim().to_owned());
    Ok(state)
}

fn names(modules: &[RdmaModule]) -> String {
    let names: Vec<&str> = modules.iter().map(|module| module.name()).collect();
    names.join(", ")
}

/// The assessment if nothing is configured for this machine.
fn not_required(desired: &Desired) -> Option<Assessment> {
    if desired.driver.is_none() {
        return Some(messages::no_driver());
    }
    (desired.settings.rdma.modules.is_empty())
        .then(|| Assessment::not_applicable("`rdma.modules` is empty"))
}

/// Blocks if the loaded `nvidia-peermem` cannot work.
fn unusable(state: &RdmaState) -> Option<Assessment> {
    let (driver, found) = (state.driver.as_ref()?, state.peermem.as_ref()?);
    if driver.as_str() != found {
        return Some(Assessment::BlockedNow {
            why: format!(
                "`nvidia-peermem` {found} is loaded, but the version of the driver is {driver}"
            ),
            hint: "run `systemctl reboot`".to_owned(),
            retryable: None,
        });
    }
    (!state.registered).then(|| Assessment::BlockedNow {
        why: "`nvidia-peermem` is loaded, but not registered in the RDMA stack, so it has no effect".to_owned(),
        hint: "install DOCA-OFED, then reinstall the driver packages with `driver.build = \"dkms\"`; or remove `\"nvidia-peermem\"` from \
               `rdma.modules`, because open driver modules on Linux 5.12 or later use DMA-BUF instead"
            .to_owned(),
        retryable: None,
    })
}

fn decide(state: &RdmaState, desired: &Desired, facts: &Facts) -> Assessment {
    if let Some(assessment) = not_required(desired) {
        return assessment;
    }
    let modules = configured(desired);
    let lines: Vec<&str> = modules.iter().map(|module| module.name()).collect();
    let content = format!("{HEADER}{}\n", lines.join("\n"));
    let (mut whys, mut changes) = (Vec::new(), Vec::new());
    if !desired.image && !state.not_loaded.is_empty() {
        // A module that cannot be loaded now is not loaded at every boot either, so the file is written last.
        whys.push(format!("{} not loaded", names(&state.not_loaded)));
        changes.extend((state.not_loaded.iter()).map(|module| Change::LoadModule {
            module: module.name().to_owned(),
        }));
    }
    if state.content.as_ref() != Some(&content) {
        whys.push(match &state.content {
            None => format!("`{PATH}` is missing"),
            Some(_) => format!("`{PATH}` contains other modules"),
        });
        changes.push(Change::write(PATH, content));
    }
    if desired.image {
        return match changes.is_empty() {
            true => Assessment::awaits_boot("modules are loaded at the first boot of the image"),
            false => Assessment::needs(whys.join("; "), changes),
        };
    }
    if facts.gpus.is_empty() {
        return Assessment::not_applicable("no NVIDIA GPU is on the PCI bus");
    }
    if let Some(module) = state.missing.first() {
        return Assessment::blocked(
            format!("`{}` does not exist for the running kernel", module.name()),
            format!(
                "install it, because gpu-bootstrap does not: {}; or remove it from `rdma.modules`",
                origin(*module)
            ),
        );
    }
    if !changes.is_empty() {
        if state.driver.is_none() {
            return Assessment::After {
                upstream: DRIVER_MODULE,
                why: "the modules need a loaded driver".into(),
                expected: changes,
            };
        }
        return Assessment::needs(whys.join("; "), changes);
    }
    let uses_peermem = modules.contains(&RdmaModule::NvidiaPeermem);
    if let Some(blocked) = unusable(state).filter(|_| uses_peermem) {
        return blocked;
    }
    Assessment::satisfied(format!("{} loaded", names(&modules)))
}

async fn assess(cx: &Cx<'_>) -> Result<Assessment, StepError> {
    if let Some(assessment) = not_required(cx.desired) {
        return Ok(assessment);
    }
    let state = detect(cx, &configured(cx.desired))?;
    Ok(decide(&state, cx.desired, cx.facts))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::steps::fixtures::{desired, facts};

    fn want(modules: &[RdmaModule]) -> Desired {
        let mut want = desired();
        want.settings.rdma.modules = modules.to_vec();
        want
    }

    /// The driver is loaded, and the modules are not.
    fn bare(not_loaded: &[RdmaModule]) -> RdmaState {
        RdmaState {
            driver: "580.178.04".parse().ok(),
            not_loaded: not_loaded.to_vec(),
            ..RdmaState::default()
        }
    }

    #[test]
    fn modules_are_loaded_in_order() {
        use RdmaModule::{Efa, Gdrdrv, NvidiaPeermem};
        let want = want(&[Gdrdrv, NvidiaPeermem, Efa]);
        let state = bare(&[Efa, NvidiaPeermem, Gdrdrv]);
        let (_, changes) = decide(&state, &want, &facts()).expect_needs();
        let loads: Vec<&str> = (changes.iter())
            .filter_map(|change| match change {
                Change::LoadModule { module } => Some(module.as_str()),
                _ => None,
            })
            .collect();
        assert_eq!(loads, ["efa", "nvidia-peermem", "gdrdrv"]);
        // The last change, so that a module that cannot be loaded leaves no file.
        let Some(Change::WriteFile { content, .. }) = changes.last() else {
            panic!("{changes:?}");
        };
        assert!(
            content.ends_with("\nefa\nnvidia-peermem\ngdrdrv\n"),
            "{content}"
        );
        let done = RdmaState {
            content: Some(content.clone()),
            peermem: Some("580.178.04".to_owned()),
            registered: true,
            ..bare(&[])
        };
        decide(&done, &want, &facts()).expect_satisfied();
        for (state, reason) in rows! {
            RdmaState { peermem: Some("580.95.05".to_owned()), ..done.clone() }, "580.95.05 is loaded";
            RdmaState { registered: false, ..done.clone() }, "not registered";
        } {
            let (why, ..) = decide(&state, &want, &facts()).expect_blocked_now();
            assert!(why.contains(reason), "{why}");
        }
        assert!(
            changes
                .iter()
                .all(|change| !(step().wants)(change, &desired()))
        );
        // A module that is no longer in the list is unloaded. The others and the file stay.
        let fewer = self::want(&[Efa, NvidiaPeermem]);
        let wanted: Vec<bool> = (changes.iter())
            .map(|change| (step().wants)(change, &fewer))
            .collect();
        assert_eq!(wanted, [true, true, false, true]);
    }

    #[test]
    fn missing_module_blocks_with_its_origin() {
        let want = want(&[RdmaModule::NvidiaFs]);
        let state = RdmaState {
            missing: vec![RdmaModule::NvidiaFs],
            ..bare(&[RdmaModule::NvidiaFs])
        };
        let (why, hint) = decide(&state, &want, &facts()).expect_blocked();
        assert!(why.contains("`nvidia-fs` does not exist"), "{why}");
        assert!(hint.contains("nvidia-fs-dkms"), "{hint}");
    }

    #[test]
    fn other_machines_wait_or_skip() {
        let modules = [RdmaModule::NvidiaPeermem];
        let state = bare(&modules);
        decide(&state, &want(&[]), &facts()).expect_not_applicable();
        let unloaded = RdmaState {
            driver: None,
            ..state.clone()
        };
        let (upstream, _) = decide(&unloaded, &want(&modules), &facts()).expect_after();
        assert_eq!(upstream, DRIVER_MODULE);
        let image = Desired {
            image: true,
            ..want(&modules)
        };
        let (_, changes) = decide(&state, &image, &facts()).expect_needs();
        assert!(
            matches!(&changes[..], [Change::WriteFile { .. }]),
            "{changes:?}"
        );
    }
}
