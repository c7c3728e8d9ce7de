//! `driver.module`: ensures that the loaded driver module is the installed one. If it is not, the step loads the installed
//! module or requires a reboot.

use super::{
    DRIVER_AUTOLOAD, DRIVER_MODULE, DRIVER_OPTIONS, DRIVER_PACKAGES, HEADERS, KERNEL_DENY,
    driver_packages::adopts, messages, packages, specs::compare,
};
use crate::{
    change::{Change, Lock},
    config::desired::{Desired, DriverSpec, Existing},
    facts::{
        Facts,
        detection::{carries_driver, is_driver_part},
    },
    model::{gpu::Flavor, version::DriverVersion},
    step::{Assessment, Cx, Step, StepError},
};

/// Orders our units after the units that unpack or compile the driver modules at boot. In Amazon's accelerated EKS image, a
/// unit unpacks the module at the first boot, and cloud-init does not wait for it (awslabs/amazon-eks-ami,
/// `nvidia-kmod-load.service`). DKMS compiles modules for a new kernel in a separate unit (`dkms.service`), and two parallel
/// DKMS runs corrupt each other's results.
pub const AFTER_MODULES: &str = "After=nvidia-kmod-load.service dkms.service";

/// The `driver.module` step.
pub(super) fn step() -> Step {
    Step::new(DRIVER_MODULE, |cx| Box::pin(assess(cx)))
        .after([
            HEADERS,
            KERNEL_DENY,
            DRIVER_OPTIONS,
            DRIVER_PACKAGES,
            DRIVER_AUTOLOAD,
        ])
        .locks([Lock::Modules])
}

#[derive(Debug, Clone, Default)]
struct ModuleState {
    /// The version of the loaded module.
    loaded: Option<DriverVersion>,
    /// The flavor of the loaded module, if it is known.
    flavor: Option<Flavor>,
    /// The driver version of the installed packages.
    packaged: Option<DriverVersion>,
    next: NextModule,
    /// Loaded in-tree drivers that are on the denylist, such as nouveau.
    denied_loaded: Vec<String>,
    /// Modules that should be loaded, but are not.
    not_loaded: Vec<String>,
    /// Whether the running kernel has a driver module on disk.
    on_disk: bool,
    /// Whether all driver packages are installed.
    installed: bool,
    /// Whether a driver that was installed without packages is kept, regardless of its version.
    adopts: bool,
}

/// The module that the next boot loads.
#[derive(Debug, Clone, Default)]
struct NextModule {
    /// The version of this module, if it can be read.
    version: Option<DriverVersion>,
    /// The kernel of the next boot, if it differs from the running kernel and has a module.
    kernel: Option<String>,
}

async fn detect(cx: &Cx<'_>) -> Result<ModuleState, StepError> {
    let Some(driver) = &cx.desired.driver else {
        return Ok(ModuleState::default());
    };
    let installed = packages::installed(cx).await?;
    let packaged = driver
        .packages
        .iter()
        // Accompanying software, such as the NVLink subnet manager, has separate versions.
        .filter(|spec| carries_driver(&spec.name) || is_driver_part(&spec.name))
        .filter_map(|spec| installed.get(&spec.name))
        .find_map(|package| DriverVersion::from_package(&package.version).ok());
    let loaded_modules = cx.state.loaded_modules()?;
    let without = cx.state.kernels_without(&driver.module)?;
    let running = cx.facts.kernel.running.as_ref().map(ToString::to_string);
    let adopts = adopts(cx).await;
    Ok(ModuleState {
        loaded: cx.state.loaded_driver()?.cloned(),
        flavor: cx.state.loaded_flavor()?,
        next: NextModule {
            version: cx.state.next_module_version().await,
            kernel: (cx.facts.kernel.next_boot.as_ref())
                .filter(|next| cx.facts.kernel.running.as_ref() != Some(next))
                .map(ToString::to_string)
                .filter(|next| !without.contains(next)),
        },
        packaged,
        denied_loaded: cx
            .desired
            .deny_modules
            .iter()
            .filter(|module| loaded_modules.contains(module))
            .cloned()
            .collect(),
        not_loaded: driver
            .load_modules
            .iter()
            // `/proc/modules` uses underscores in all names, such as `nvidia_uvm` for `nvidia-uvm`.
            .filter(|module| !loaded_modules.contains(&module.replace('-', "_")))
            // An empty list means that `/proc/modules` is missing, as in some recordings, so the loaded modules are unknown.
            .filter(|_| !loaded_modules.is_empty())
            .cloned()
            .collect(),
        installed: compare(cx.desired.packages.manager, &driver.packages, &installed).all_met(),
        // The module file of an adopted driver may have a different name than in the profile.
        on_disk: running.is_some_and(|kernel| !without.contains(&kernel))
            || (adopts && cx.state.driver().await.module_version.is_some()),
        adopts,
    })
}

fn decide(state: &ModuleState, desired: &Desired, facts: &Facts) -> Assessment {
    let Some(driver) = &desired.driver else {
        return messages::no_driver();
    };
    let fits = |version: &DriverVersion| match &state.packaged {
        Some(packaged) => version == packaged,
        // An adopted driver has no packages to compare with.
        None => state.adopts,
    };
    let load = |modules: &[String]| -> Vec<Change> {
        let module = |module: &String| Change::LoadModule {
            module: module.clone(),
        };
        modules.iter().map(module).collect()
    };
    if let (Some(loaded), Some(packaged), false) = (&state.loaded, &state.packaged, desired.image)
        && loaded == packaged
        && let Some(answer) = not_as_packaged(state, driver, packaged, facts)
    {
        return answer;
    }
    match &state.loaded {
        Some(loaded) if fits(loaded) && state.not_loaded.is_empty() => {
            Assessment::satisfied(format!("the installed module {loaded} is loaded"))
        }
        _ if desired.image => {
            Assessment::awaits_boot("modules are loaded at the first boot of the image")
        }
        // An interrupted run loaded only some modules, or the administrator unloaded one.
        Some(loaded) if fits(loaded) => Assessment::needs(
            format!(
                "module {loaded} is loaded, but {} is not",
                state.not_loaded.join(", ")
            ),
            load(&state.not_loaded),
        ),
        Some(loaded) => match &state.packaged {
            None => Assessment::After {
                upstream: DRIVER_PACKAGES,
                why: format!("module {loaded} is loaded, but its packages are not installed"),
                expected: Vec::new(),
            },
            Some(installed) => Assessment::needs(
                format!("module {loaded} is loaded, but {installed} is installed"),
                vec![Change::Reboot {
                    why: format!("driver {loaded} is loaded, but {installed} is installed"),
                }],
            ),
        },
        None if facts.gpus.is_empty() => {
            Assessment::not_applicable("no NVIDIA GPU is on the PCI bus, so no module is needed")
        }
        None if !state.denied_loaded.is_empty() => Assessment::needs(
            format!(
                "{} is loaded and bound to the GPU",
                state.denied_loaded.join(", ")
            ),
            vec![Change::Reboot {
                why: format!("{} must release the GPU", state.denied_loaded.join(", ")),
            }],
        ),
        None => {
            let changes = load(&driver.load_modules);
            if state.on_disk {
                Assessment::needs("the module is not loaded", changes)
            } else if let Some(next) = &state.next.kernel {
                let why = format!(
                    "the running kernel has no driver module, but kernel {next} of the next boot \
                     has one"
                );
                Assessment::needs(why.clone(), vec![Change::Reboot { why }])
            } else if state.installed && !driver.is_compiled() {
                Assessment::blocked(
                    "the driver packages have no module for the running kernel",
                    "in the boot loader, select a kernel that has a driver module (`ls \
                     /lib/modules/*/*/nvidia*` lists them), or set `driver.build = \"dkms\"`",
                )
            } else {
                Assessment::After {
                    upstream: DRIVER_PACKAGES,
                    why: "no module for the running kernel yet".into(),
                    expected: changes,
                }
            }
        }
    }
}

/// Checks a loaded module that has the installed version. Returns an assessment if the installed flavor is a different one, or
/// if the next boot would load a different version.
fn not_as_packaged(
    state: &ModuleState,
    driver: &DriverSpec,
    packaged: &DriverVersion,
    facts: &Facts,
) -> Option<Assessment> {
    if let Some(flavor) = state.flavor
        && flavor != driver.flavor
        && driver.existing != Existing::Keep
    {
        let why = format!(
            "the {flavor} module {packaged} is loaded, but the {} one is installed",
            driver.flavor
        );
        return Some(Assessment::needs(why.clone(), vec![Change::Reboot { why }]));
    }
    let next = state
        .next
        .version
        .as_ref()
        .filter(|next| *next != packaged)?;
    let kernel = (facts.kernel.next_boot.as_ref()).or(facts.kernel.running.as_ref());
    let kernel = kernel.map_or_else(|| "of the next boot".to_owned(), ToString::to_string);
    // The block is not permanent, because an earlier step may replace the packages, and with them the module on disk.
    Some(Assessment::BlockedNow {
        retryable: None,
        why: format!(
            "the installed module {packaged} is loaded, but the next boot would load {next}, which \
             is on disk for kernel {kernel}"
        ),
        hint: match &driver.compiled_as {
            Some(module) => {
                format!("run `dkms install --force {module}/{packaged} -k {kernel}`")
            }
            None => format!(
                "install the module package of version {packaged} for kernel {kernel}, or set \
                 the running kernel as the default boot kernel"
            ),
        },
    })
}

async fn assess(cx: &Cx<'_>) -> Result<Assessment, StepError> {
    Ok(decide(&detect(cx).await?, cx.desired, cx.facts))
}

#[cfg(test)]
mod tests {
    use super::{ModuleState, NextModule, decide};
    use crate::{
        change::Change,
        model::gpu::Flavor,
        steps::fixtures::{desired, facts},
    };

    fn state(loaded: &str, packaged: &str) -> ModuleState {
        ModuleState {
            loaded: loaded.parse().ok(),
            flavor: None,
            packaged: packaged.parse().ok(),
            next: NextModule::default(),
            denied_loaded: vec![],
            not_loaded: vec![],
            on_disk: true,
            installed: true,
            adopts: false,
        }
    }

    #[test]
    fn missing_companion_module_is_loaded() {
        let mut cut_off = state("535.261.03", "535.261.03");
        cut_off.not_loaded = vec!["nvidia-uvm".into()];
        let (why, changes) = decide(&cut_off, &desired(), &facts()).expect_needs();
        assert_eq!(why, "module 535.261.03 is loaded, but nvidia-uvm is not");
        assert!(matches!(&changes[..], [Change::LoadModule { module }] if module == "nvidia-uvm"));
    }

    #[test]
    fn different_loaded_version_needs_a_reboot() {
        let (want, facts) = (desired(), facts());
        decide(&state("535.261.03", "535.261.03"), &want, &facts).expect_satisfied();
        let (why, changes) =
            decide(&state("535.247.01", "535.261.03"), &want, &facts).expect_needs();
        assert_eq!(
            why,
            "module 535.247.01 is loaded, but 535.261.03 is installed"
        );
        assert!(matches!(&changes[..], [Change::Reboot { .. }]));
    }

    #[test]
    fn machine_without_gpu_needs_no_module() {
        let mut facts = facts();
        facts.gpus.clear();
        decide(&state("", "535.261.03"), &desired(), &facts).expect_not_applicable();
    }

    #[test]
    fn kept_driver_may_have_any_version() {
        let mut kept = state("570.211.01", "");
        decide(&kept, &desired(), &facts()).expect_after();
        kept.adopts = true;
        decide(&kept, &desired(), &facts()).expect_satisfied();
    }

    #[test]
    fn module_of_other_flavor_needs_a_reboot() {
        let (want, facts) = (desired(), facts());
        let flavor = want.driver.as_ref().expect("a driver").flavor;
        let other = match flavor {
            Flavor::Open => Flavor::Proprietary,
            Flavor::Proprietary => Flavor::Open,
        };
        let mut loaded = state("535.261.03", "535.261.03");
        loaded.flavor = Some(flavor);
        decide(&loaded, &want, &facts).expect_satisfied();
        loaded.flavor = Some(other);
        let (why, changes) = decide(&loaded, &want, &facts).expect_needs();
        assert_eq!(
            why,
            format!("the {other} module 535.261.03 is loaded, but the {flavor} one is installed")
        );
        assert!(matches!(&changes[..], [Change::Reboot { .. }]));
    }

    #[test]
    fn next_boot_must_load_the_installed_version() {
        let (want, facts) = (desired(), facts());
        let mut now = state("535.261.03", "535.261.03");
        now.next.version = "535.261.03".parse().ok();
        decide(&now, &want, &facts).expect_satisfied();
        now.next.version = "535.247.01".parse().ok();
        // The block is not permanent, because the packages may still be replaced.
        let (why, hint, retryable) = decide(&now, &want, &facts).expect_blocked_now();
        assert_eq!(retryable, None);
        assert!(why.contains("the next boot would load 535.247.01"), "{why}");
        assert!(hint.contains("535.261.03"), "{hint}");
        // If the loaded version also differs, the step first requires a reboot.
        now.loaded = "535.216.01".parse().ok();
        decide(&now, &want, &facts).expect_needs();
    }

    #[test]
    fn image_awaits_its_boot() {
        let (mut want, facts) = (desired(), facts());
        want.image = true;
        decide(&state("", "535.261.03"), &want, &facts).expect_awaiting_boot();
    }

    #[test]
    fn loaded_nouveau_needs_a_reboot() {
        let mut held = state("", "535.261.03");
        held.denied_loaded = vec!["nouveau".into()];
        let (_, changes) = decide(&held, &desired(), &facts()).expect_needs();
        assert!(matches!(&changes[..], [Change::Reboot { .. }]));
    }

    #[test]
    fn module_for_next_kernel_needs_a_reboot() {
        let mut moved = state("", "535.261.03");
        moved.on_disk = false;
        moved.next.kernel = Some("6.1.0-49-amd64".into());
        let mut want = desired();
        let (why, changes) = decide(&moved, &want, &facts()).expect_needs();
        assert!(why.contains("kernel 6.1.0-49-amd64"), "{why}");
        assert!(matches!(&changes[..], [Change::Reboot { .. }]));
        // If the next kernel has no module either, only another kernel or DKMS helps, so the step is blocked.
        moved.next.kernel = None;
        want.driver.as_mut().expect("a driver").compiled_as = None;
        decide(&moved, &want, &facts()).expect_blocked();
    }

    #[test]
    fn modules_on_disk_are_loaded() {
        let (want, facts) = (desired(), facts());
        let (_, changes) = decide(&state("", "535.261.03"), &want, &facts).expect_needs();
        assert_eq!(
            changes.len(),
            want.driver.expect("a driver").load_modules.len()
        );
        let mut none = state("", "");
        none.on_disk = false;
        decide(&none, &desired(), &facts).expect_after();
    }
}
