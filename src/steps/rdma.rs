//! `rdma.packages` and `rdma.modules`: kernel modules for RDMA with GPU memory are installed, and loaded now and at every boot.
//! `nvidia-peermem` is part of the driver packages. DKMS compiles the modules of other packages for the installed driver, so they are
//! installed after it. Modules without known packages must be installed by the administrator.
//!
//! Sources: NVIDIA driver README, "GPUDirect RDMA Peer Memory Client" (`nvidia-peermem` needs an RDMA stack with peer memory,
//! which must be installed before the driver; DMA-BUF is the alternative); NVIDIA/nccl issue 1939 (a loaded module that is not
//! registered); NVIDIA/gdrcopy, README.md and packages; NVIDIA, "nvidia-fs"; NVIDIA CUDA installation guide (`nvidia-fs` is compiled
//! for the current driver, and another order can hang applications); aws/eks-ami issue 2466.

use camino::Utf8Path;

use super::{
    DRIVER_MODULE, DRIVER_PACKAGES, HEADERS, RDMA_MODULES, RDMA_PACKAGES, REPOSITORIES, messages,
    packages,
    specs::{InstalledPackages, compare, outdated, package_step},
};
use crate::{
    change::{Change, Lock},
    config::{
        choices::RdmaModule,
        desired::{Desired, PackageSpec},
    },
    facts::Facts,
    host::ExecError,
    model::version::DriverVersion,
    state::Ours,
    step::{Assessment, Cx, Step, StepError},
    tools::{kmod, packages::HEADER},
};

/// The file that loads the modules at every boot. `modprobe` loads the driver before modules that need it.
const PATH: &str = "/etc/modules-load.d/gpu-bootstrap-rdma.conf";

/// Exists while `nvidia-peermem` is registered in the RDMA stack.
const REGISTERED: &str = "/sys/kernel/mm/memory_peers/nv_mem";

/// The device of GDRCopy. The module creates it, or the service of its package.
const GDRCOPY_NODE: &str = "/dev/gdrdrv";

/// The packages in the profiles. They are recognized in the changes of earlier runs.
const PACKAGES: [&str; 2] = ["nvidia-fs-dkms", "gdrcopy-kmod"];

/// Replaces `nvidia-peermem`.
const WITHOUT_PEERMEM: &str = "remove `\"nvidia-peermem\"` from `rdma.modules`, because open driver modules on Linux 5.12 or later use \
                               DMA-BUF instead";

/// The `rdma.packages` step.
pub(super) fn packages_step() -> Step {
    Step::new(RDMA_PACKAGES, |cx| Box::pin(assess_packages(cx)))
        .after([REPOSITORIES, HEADERS, DRIVER_PACKAGES])
        .locks([Lock::Packages, Lock::Modules])
        .wants(|change, desired| desired.driver.is_none() || are_wanted(change, &required(desired)))
}

/// The `rdma.modules` step.
pub(super) fn modules_step() -> Step {
    Step::new(RDMA_MODULES, |cx| Box::pin(assess_modules(cx)))
        .after([DRIVER_MODULE, RDMA_PACKAGES])
        .locks([Lock::Modules])
        .wants(|change, desired| {
            desired.driver.is_none() || is_wanted(change, &desired.settings.rdma.modules)
        })
}

/// Returns the packages of all configured modules.
fn required(desired: &Desired) -> Vec<PackageSpec> {
    (desired.rdma.iter())
        .flat_map(|spec| spec.packages.clone())
        .collect()
}

/// Whether all packages of modules in a change are configured. The transaction may also contain packages of other steps.
fn are_wanted(change: &Change, wanted: &[PackageSpec]) -> bool {
    let Change::InstallPackages { packages, .. } = change else {
        return !wanted.is_empty();
    };
    (packages.iter())
        .filter(|spec| PACKAGES.contains(&spec.name.as_str()))
        .all(|spec| wanted.iter().any(|one| one.name == spec.name))
}

/// Whether a change belongs to the configured modules.
fn is_wanted(change: &Change, modules: &[RdmaModule]) -> bool {
    match change {
        Change::LoadModule { module } => modules.iter().any(|one| one.name() == module),
        _ => !modules.is_empty(),
    }
}

fn decide_packages(installed: &InstalledPackages, ours: &Ours, desired: &Desired) -> Assessment {
    let required = required(desired);
    let manager = desired.packages.manager;
    let replaced = outdated(manager, &required, installed, ours);
    package_step(manager, &required, installed, replaced)
}

async fn assess_packages(cx: &Cx<'_>) -> Result<Assessment, StepError> {
    if let Some(assessment) = not_required(cx.desired) {
        return Ok(assessment);
    }
    if cx.desired.rdma.is_empty() {
        return Ok(Assessment::not_applicable(
            "no package is known for the modules in `rdma.modules`",
        ));
    }
    let installed = packages::held_by_others(cx).await?;
    Ok(decide_packages(&installed, cx.state.ours(), cx.desired))
}

/// Returns the configured modules in the order in which they are loaded.
fn configured(desired: &Desired) -> Vec<RdmaModule> {
    let mut modules = desired.settings.rdma.modules.clone();
    modules.sort_unstable();
    modules.dedup();
    modules
}

/// The origin of a module whose packages are unknown for this machine.
const fn origin(module: RdmaModule) -> &'static str {
    match module {
        RdmaModule::Efa => {
            "the kernel of Amazon Linux contains it; elsewhere, run the EFA installer of Amazon in the image"
        }
        RdmaModule::NvidiaPeermem => "it is part of the driver packages",
        RdmaModule::Gdrdrv => {
            "the package `gdrdrv-dkms` or `gdrcopy-kmod` of GDRCopy contains it, which is in no repository of this machine; download it \
             from `https://developer.download.nvidia.com/compute/redist/gdrcopy/`"
        }
        RdmaModule::NvidiaFs => {
            "the package `nvidia-fs-dkms` of GPUDirect Storage contains it; the section RDMA of `docs/configuration.md` lists the systems \
             and the values of `driver.source` with which it is installed"
        }
    }
}

/// The reason that `nvidia-peermem` cannot be loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NoPeerMemory {
    /// No module of the kernel has the interface.
    NoStack,
    /// The module was compiled without the interface.
    CompiledWithout,
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
    /// Configured modules whose packages are not installed.
    uninstalled: Vec<RdmaModule>,
    /// Loaded modules with another version than on disk: module, loaded and installed version.
    stale: Vec<(RdmaModule, String, String)>,
    /// `nvidia-peermem` is configured and cannot be loaded.
    no_peer_memory: Option<NoPeerMemory>,
    /// The version of the loaded `nvidia-peermem`.
    peermem: Option<String>,
    /// `nvidia-peermem` is registered in the RDMA stack.
    registered: bool,
    /// The device of GDRCopy exists.
    gdrcopy_node: bool,
}

/// Returns the reason that `nvidia-peermem` cannot be loaded, if the lists of `depmod` show it: `symbols` is the content of
/// `modules.symbols`, and `list` the content of `modules.dep`. Without the interface, the module is compiled without its dependency on it.
fn without_peer_memory(symbols: &str, list: &str) -> Option<NoPeerMemory> {
    let provider = (symbols.lines()).find_map(|line| {
        line.strip_prefix("alias symbol:ib_register_peer_memory_client ")
            .map(str::trim)
    });
    let Some(provider) = provider else {
        return Some(NoPeerMemory::NoStack);
    };
    let (_, needs) = (list.lines())
        .filter_map(|line| line.split_once(':'))
        .find(|(path, _)| {
            // Debian calls it `nvidia-current-peermem`.
            kmod::name_of(path)
                .is_some_and(|name| name.starts_with("nvidia") && name.ends_with("peermem"))
        })?;
    let mut needs = needs.split_whitespace().filter_map(kmod::name_of);
    let is_provider = |name: &str| kmod::canonical(name) == kmod::canonical(provider);
    (!needs.any(is_provider)).then_some(NoPeerMemory::CompiledWithout)
}

async fn detect(cx: &Cx<'_>, modules: &[RdmaModule]) -> Result<RdmaState, StepError> {
    let files = cx.host.files();
    let running = cx.facts.kernel.running.as_ref().map(ToString::to_string);
    let (list, symbols) = match &running {
        Some(kernel) => (
            files.read_text(&kmod::list_of(kernel))?,
            files.read_text(&kmod::directory_of(kernel).join("modules.symbols"))?,
        ),
        None => (None, None),
    };
    let mut state = RdmaState {
        content: files.read_text(Utf8Path::new(PATH))?,
        driver: cx.state.loaded_driver()?.cloned(),
        registered: files.exists(Utf8Path::new(REGISTERED))?,
        gdrcopy_node: files.exists(Utf8Path::new(GDRCOPY_NODE))?,
        ..RdmaState::default()
    };
    let file_of = |module: RdmaModule| {
        let file = kmod::file_of(list.as_deref()?, module.name())?;
        Some(kmod::directory_of(running.as_deref()?).join(file))
    };
    for module in modules {
        let directory = kmod::in_kernel(module.name());
        if files.exists(&directory)? {
            let version = files.read_text(&directory.join("version"))?;
            let version = version.map(|text| text.trim().to_owned());
            if *module == RdmaModule::NvidiaPeermem {
                state.peermem = version;
            } else if let Some(loaded) = version
                && let Some(file) = file_of(*module)
                && let Some(installed) = version_of(cx, &file).await?
                && installed != loaded
            {
                state.stale.push((*module, loaded, installed));
            }
            continue;
        }
        state.not_loaded.push(*module);
        // Without a list, the modules on disk are unknown.
        let exists =
            (list.as_deref()).is_none_or(|list| kmod::file_of(list, module.name()).is_some());
        if *module != RdmaModule::NvidiaPeermem {
            state.missing.extend((!exists).then_some(*module));
        } else if let Some(symbols) = &symbols {
            state.no_peer_memory =
                without_peer_memory(symbols, list.as_deref().unwrap_or_default());
        }
    }
    if !cx.desired.rdma.is_empty() {
        let installed = packages::installed(cx).await?;
        let manager = cx.desired.packages.manager;
        let lacking = (cx.desired.rdma.iter())
            .filter(|spec| !compare(manager, &spec.packages, &installed).all_met());
        state.uninstalled = lacking.map(|spec| spec.module).collect();
    }
    Ok(state)
}

/// Returns the version of a module file. `None` if it has no version, or if `modinfo` is not installed.
async fn version_of(cx: &Cx<'_>, file: &Utf8Path) -> Result<Option<String>, StepError> {
    // The list may contain a module that was removed.
    if !cx.host.files().exists(file)? {
        return Ok(None);
    }
    let query = kmod::field("version", file.as_str());
    let output = cx.host.query(&query).await;
    match output.and_then(|output| output.success(query.cmd())) {
        Ok(output) => {
            let version = output.stdout.trim();
            Ok((!version.is_empty()).then(|| version.to_owned()))
        }
        Err(ExecError::NotFound { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
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

/// Requires a reboot if a loaded module was replaced, and blocks if it cannot work.
fn unusable(state: &RdmaState, modules: &[RdmaModule]) -> Option<Assessment> {
    let blocked = |why: String, hint: String| {
        Some(Assessment::BlockedNow {
            why,
            hint,
            retryable: None,
        })
    };
    if let Some((module, loaded, installed)) = state.stale.first() {
        let why = format!(
            "`{}` {loaded} is loaded, but {installed} is installed",
            module.name()
        );
        return Some(Assessment::needs(why.clone(), vec![Change::Reboot { why }]));
    }
    if modules.contains(&RdmaModule::Gdrdrv) && !state.gdrcopy_node {
        return blocked(
            format!("`gdrdrv` is loaded, but `{GDRCOPY_NODE}` does not exist"),
            "run `systemctl reboot`, which starts the service of its package".to_owned(),
        );
    }
    if !modules.contains(&RdmaModule::NvidiaPeermem) {
        return None;
    }
    let (driver, found) = (state.driver.as_ref()?, state.peermem.as_ref()?);
    if driver.as_str() != found {
        return blocked(
            format!(
                "`nvidia-peermem` {found} is loaded, but the version of the driver is {driver}"
            ),
            "run `systemctl reboot`".to_owned(),
        );
    }
    if state.registered {
        return None;
    }
    blocked(
        "`nvidia-peermem` is loaded, but not registered in the RDMA stack, so it has no effect"
            .to_owned(),
        format!(
            "install DOCA-OFED, then reinstall the driver packages with `driver.build = \"dkms\"`; or {WITHOUT_PEERMEM}"
        ),
    )
}

/// Blocks if a module that is not loaded cannot be loaded.
fn unloadable(state: &RdmaState, desired: &Desired) -> Option<Assessment> {
    match state.no_peer_memory {
        // The driver must be compiled after the RDMA stack was installed, so it is not installed before.
        Some(NoPeerMemory::NoStack) => {
            return Some(Assessment::blocked(
                "`nvidia-peermem` needs an RDMA stack with peer memory, which is not installed for the running kernel",
                format!("install DOCA-OFED before the driver; or {WITHOUT_PEERMEM}"),
            ));
        }
        Some(NoPeerMemory::CompiledWithout) => {
            return Some(Assessment::BlockedNow {
                why: "`nvidia-peermem` was compiled before the RDMA stack with peer memory was installed".to_owned(),
                hint: format!(
                    "reinstall the driver packages with `driver.build = \"dkms\"`, which compiles it again; or {WITHOUT_PEERMEM}"
                ),
                retryable: None,
            });
        }
        None => {}
    }
    let has_packages = |module: RdmaModule| desired.rdma.iter().any(|one| one.module == module);
    let unknown = (state.missing.iter()).find(|module| !has_packages(**module));
    if let Some(module) = unknown {
        return Some(Assessment::blocked(
            format!("`{}` does not exist for the running kernel", module.name()),
            format!(
                "install it, because gpu-bootstrap does not: {}; or remove it from `rdma.modules`",
                origin(*module)
            ),
        ));
    }
    let is_installed = |module: &&RdmaModule| !state.uninstalled.contains(module);
    state.missing.iter().find(is_installed).map(|module| {
        Assessment::BlockedNow {
            why: format!(
                "the packages of `{}` are installed, but DKMS has not compiled it for the running kernel",
                module.name()
            ),
            hint: "see `dkms status` and `/var/lib/dkms/*/*/build/make.log`, and run `dkms autoinstall`"
                .to_owned(),
            retryable: None,
        }
    })
}

fn decide_modules(state: &RdmaState, desired: &Desired, facts: &Facts) -> Assessment {
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
    if let Some(blocked) = unloadable(state, desired) {
        return blocked;
    }
    if !changes.is_empty() {
        let upstream = if state.driver.is_none() {
            Some((DRIVER_MODULE, "the modules need a loaded driver"))
        } else if !state.uninstalled.is_empty() {
            Some((
                RDMA_PACKAGES,
                "the packages of the modules are not installed",
            ))
        } else {
            None
        };
        if let Some((upstream, why)) = upstream {
            return Assessment::After {
                upstream,
                why: why.into(),
                expected: changes,
            };
        }
        return Assessment::needs(whys.join("; "), changes);
    }
    if let Some(blocked) = unusable(state, &modules) {
        return blocked;
    }
    Assessment::satisfied(format!("{} loaded", names(&modules)))
}

async fn assess_modules(cx: &Cx<'_>) -> Result<Assessment, StepError> {
    if let Some(assessment) = not_required(cx.desired) {
        return Ok(assessment);
    }
    let state = detect(cx, &configured(cx.desired)).await?;
    Ok(decide_modules(&state, cx.desired, cx.facts))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        config::desired::RdmaSpec,
        steps::{
            fixtures::{desired, facts},
            specs::fixtures::{packages, specs},
        },
    };

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
        let (_, changes) = decide_modules(&state, &want, &facts()).expect_needs();
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
            gdrcopy_node: true,
            ..bare(&[])
        };
        decide_modules(&done, &want, &facts()).expect_satisfied();
        for (state, reason) in rows! {
            RdmaState { peermem: Some("580.95.05".to_owned()), ..done.clone() }, "580.95.05 is loaded";
            RdmaState { registered: false, ..done.clone() }, "not registered";
        } {
            let (why, ..) = decide_modules(&state, &want, &facts()).expect_blocked_now();
            assert!(why.contains(reason), "{why}");
        }
        assert!(
            changes
                .iter()
                .all(|change| !(modules_step().wants)(change, &desired()))
        );
        // A module that is no longer in the list is unloaded. The others and the file stay.
        let fewer = self::want(&[Efa, NvidiaPeermem]);
        let wanted: Vec<bool> = (changes.iter())
            .map(|change| (modules_step().wants)(change, &fewer))
            .collect();
        assert_eq!(wanted, [true, true, false, true]);
    }

    /// GPUDirect Storage is configured, and its package is known.
    fn with_package() -> Desired {
        Desired {
            rdma: vec![RdmaSpec {
                module: RdmaModule::NvidiaFs,
                packages: specs(&["nvidia-fs-dkms"]),
            }],
            ..want(&[RdmaModule::NvidiaFs])
        }
    }

    #[test]
    fn module_is_loaded_after_its_package_is_installed() {
        let module = RdmaModule::NvidiaFs;
        let want = with_package();
        let decide = |list: &[&str]| decide_packages(&packages(list), &Ours::default(), &want);
        let (_, changes) = decide(&[]).expect_needs();
        decide(&["nvidia-fs-dkms=2.26.6-1"]).expect_satisfied();
        let before = RdmaState {
            missing: vec![module],
            uninstalled: vec![module],
            ..bare(&[module])
        };
        let (upstream, _) = decide_modules(&before, &want, &facts()).expect_after();
        assert_eq!(upstream, RDMA_PACKAGES);
        let uncompiled = RdmaState {
            uninstalled: Vec::new(),
            ..before
        };
        let (why, ..) = decide_modules(&uncompiled, &want, &facts()).expect_blocked_now();
        assert!(why.contains("DKMS has not compiled"), "{why}");
        decide_modules(&bare(&[module]), &want, &facts()).expect_needs();
        // Without the setting, the package is removed.
        let wants = packages_step().wants;
        assert!(changes.iter().all(|change| wants(change, &want)));
        let without = self::want(&[]);
        assert!(changes.iter().all(|change| !wants(change, &without)));
    }

    #[test]
    fn loaded_module_without_effect_blocks() {
        let want = want(&[RdmaModule::Gdrdrv]);
        let done = RdmaState {
            content: Some(format!("{HEADER}gdrdrv\n")),
            gdrcopy_node: true,
            ..bare(&[])
        };
        decide_modules(&done, &want, &facts()).expect_satisfied();
        let state = RdmaState {
            gdrcopy_node: false,
            ..done.clone()
        };
        let (why, ..) = decide_modules(&state, &want, &facts()).expect_blocked_now();
        assert!(why.contains("`/dev/gdrdrv` does not exist"), "{why}");
        let replaced = RdmaState {
            stale: vec![(RdmaModule::Gdrdrv, "2.4.1".to_owned(), "2.5.2".to_owned())],
            ..done
        };
        let (_, changes) = decide_modules(&replaced, &want, &facts()).expect_needs();
        let why = "`gdrdrv` 2.4.1 is loaded, but 2.5.2 is installed".to_owned();
        assert_eq!(changes, [Change::Reboot { why }]);
    }

    /// The list recognizes the packages of a module that is no longer configured.
    #[test]
    fn packages_of_all_profiles_are_known() {
        let profiles = crate::config::profile::Profile::all_built_in().expect("the profiles");
        let names: std::collections::BTreeSet<&str> = (profiles.iter())
            .flat_map(|profile| &profile.rdma)
            .flat_map(|row| row.packages.iter().map(String::as_str))
            .collect();
        assert_eq!(names, PACKAGES.into());
    }

    /// The lines are from machines with and without MLNX_OFED.
    #[test]
    fn peer_memory_is_found_in_the_lists_of_depmod() {
        const STACK: &str = "alias symbol:ib_query_port ib_core\nalias symbol:ib_register_peer_memory_client ib_uverbs\n";
        const INBOX: &str = "alias symbol:ib_query_port ib_core\n";
        const WITH: &str = "updates/dkms/nvidia-peermem.ko.zst: updates/dkms/ib_uverbs.ko updates/dkms/nvidia.ko.zst\n";
        const WITHOUT: &str =
            "updates/dkms/nvidia-current-peermem.ko: updates/dkms/nvidia-current.ko\n";
        for (symbols, list, found) in rows! {
            INBOX, "", Some(NoPeerMemory::NoStack);
            INBOX, WITHOUT, Some(NoPeerMemory::NoStack);
            STACK, "", None;
            STACK, WITH, None;
            STACK, WITHOUT, Some(NoPeerMemory::CompiledWithout);
        } {
            assert_eq!(
                without_peer_memory(symbols, list),
                found,
                "{symbols} {list}"
            );
        }
        let modules = [RdmaModule::NvidiaPeermem];
        let state = |found| RdmaState {
            no_peer_memory: Some(found),
            driver: None,
            ..bare(&modules)
        };
        let (_, hint) = decide_modules(&state(NoPeerMemory::NoStack), &want(&modules), &facts())
            .expect_blocked();
        assert!(
            hint.contains("install DOCA-OFED before the driver"),
            "{hint}"
        );
        let state = state(NoPeerMemory::CompiledWithout);
        let (_, hint, ..) = decide_modules(&state, &want(&modules), &facts()).expect_blocked_now();
        assert!(hint.contains("compiles it again"), "{hint}");
    }

    #[test]
    fn missing_module_blocks_with_its_origin() {
        let want = want(&[RdmaModule::NvidiaFs]);
        let state = RdmaState {
            missing: vec![RdmaModule::NvidiaFs],
            ..bare(&[RdmaModule::NvidiaFs])
        };
        let (why, hint) = decide_modules(&state, &want, &facts()).expect_blocked();
        assert!(why.contains("`nvidia-fs` does not exist"), "{why}");
        assert!(hint.contains("nvidia-fs-dkms"), "{hint}");
    }

    #[test]
    fn other_machines_wait_or_skip() {
        let modules = [RdmaModule::NvidiaPeermem];
        let state = bare(&modules);
        decide_modules(&state, &want(&[]), &facts()).expect_not_applicable();
        let unloaded = RdmaState {
            driver: None,
            ..state.clone()
        };
        let (upstream, _) = decide_modules(&unloaded, &want(&modules), &facts()).expect_after();
        assert_eq!(upstream, DRIVER_MODULE);
        let image = Desired {
            image: true,
            ..want(&modules)
        };
        let (_, changes) = decide_modules(&state, &image, &facts()).expect_needs();
        assert!(
            matches!(&changes[..], [Change::WriteFile { .. }]),
            "{changes:?}"
        );
    }
}
