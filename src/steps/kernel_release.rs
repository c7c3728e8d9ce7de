//! `kernel.release`: the running kernel and the default boot kernel can have a driver module. Otherwise the machine boots
//! the default boot kernel, or a different kernel is installed if `driver.may-change-kernel` permits it. Transactions
//! that would install a kernel as a dependency are rejected (`Guard`).

use super::{
    KERNEL_DENY, KERNEL_RELEASE, REPOSITORIES, SECURE_BOOT,
    driver_packages::adopts,
    kernel_refusal::{refusal, unbooted},
    kernels::{Asked, ask, chosen},
    messages, packages, streams,
};
use crate::{
    change::{Change, Lock},
    compat::kernels::KernelAnswer,
    config::{
        desired::{Desired, DriverSpec, Existing, KernelSpec, ModuleMethod, PackageSpec},
        kernel::for_kernel,
    },
    model::version::KernelVersion,
    step::{Assessment, Cx, Step, StepError},
};

/// The `kernel.release` step.
pub(super) fn step() -> Step {
    Step::new(KERNEL_RELEASE, |cx| Box::pin(assess(cx)))
        // The in-tree drivers must be blocked before the next boot.
        .after([SECURE_BOOT, KERNEL_DENY, REPOSITORIES])
        .locks([Lock::Packages, Lock::Modules])
}

#[derive(Debug, Clone, Default)]
struct KernelState {
    asked: Asked,
    /// Missing packages of the kernel to install, without driver packages.
    kernel: Vec<PackageSpec>,
    /// An existing driver will be replaced.
    replaces: bool,
    /// The enabled stream of the DNF module that contains the driver packages.
    stream: Option<String>,
}

async fn detect(cx: &Cx<'_>) -> Result<KernelState, StepError> {
    let (Some(asked), Some(spec)) = (ask(cx).await?, &cx.desired.kernel) else {
        return Ok(KernelState::default());
    };
    let kernel = match &asked.answer {
        Some(KernelAnswer::Install { method, kernel, .. }) => {
            to_install(cx, spec, &asked, *method, kernel).await?
        }
        _ => Vec::new(),
    };
    let replace =
        (cx.desired.driver.as_ref()).is_some_and(|driver| driver.existing == Existing::Replace);
    Ok(KernelState {
        asked,
        kernel,
        replaces: replace && cx.state.driver().await.origin.is_some(),
        stream: streams::enabled(cx)?,
    })
}

/// Returns the packages of a kernel to install: its image, the counterparts of installed packages of the default boot
/// kernel, and missing metapackages of the series. Except for the image, packages that are not available are omitted.
async fn to_install(
    cx: &Cx<'_>,
    spec: &KernelSpec,
    asked: &Asked,
    method: usize,
    kernel: &KernelVersion,
) -> Result<Vec<PackageSpec>, StepError> {
    let of =
        |template: &PackageSpec, kernel: &KernelVersion| for_kernel(template, kernel, &spec.arch);
    let base = asked.question.kernels.base();
    let has_now = |template: &&PackageSpec| {
        (base.as_ref()).is_some_and(|base| asked.installed.contains_key(&of(template, base).name))
    };
    let companions = (spec.companions.iter())
        .filter(has_now)
        .map(|one| of(one, kernel));
    let follow = spec.follow.iter().chain(
        spec.methods
            .get(method)
            .into_iter()
            .flat_map(|method| &method.follow),
    );
    let follow = (follow.map(|one| of(one, kernel)))
        .filter(|spec| !asked.installed.contains_key(&spec.name));
    let further: Vec<PackageSpec> = companions.chain(follow).collect();
    let names: Vec<&str> = further.iter().map(|spec| spec.name.as_str()).collect();
    let offered = packages::offered_versions(cx, &names).await?;
    let backend = packages::backend(cx);
    let is_offered = |spec: &PackageSpec| {
        let wanted = spec.version.as_deref().unwrap_or("*");
        let versions = offered.get(&spec.name).map_or(&[][..], Vec::as_slice);
        // Only the preferred version of a pattern, because an older one belongs to an older kernel.
        let count = if wanted.contains('*') {
            1
        } else {
            versions.len()
        };
        (versions.iter().take(count)).any(|version| backend.matches(wanted, version))
    };
    let image = spec.image.iter().map(|image| of(image, kernel));
    Ok(image
        .chain(further.iter().filter(|spec| is_offered(spec)).cloned())
        .collect())
}

fn decide(state: &KernelState, desired: &Desired) -> Assessment {
    let (Some(driver), Some(spec)) = (&desired.driver, &desired.kernel) else {
        return messages::no_driver();
    };
    match answer(state, desired, driver, spec) {
        Assessment::Needs { why, changes } if changes.contains(&Change::RefreshRepositories) => {
            Assessment::needs(
                why,
                streams::before(changes, driver, state.stream.as_deref()),
            )
        }
        answer => answer,
    }
}

fn answer(
    state: &KernelState,
    desired: &Desired,
    driver: &DriverSpec,
    spec: &KernelSpec,
) -> Assessment {
    let asked = &state.asked;
    let kernels = &asked.question.kernels;
    let has_module = asked.question.methods.iter().any(|method| method.complete);
    if let Some((kernel, row)) = spec.refusal(&kernels.needed())
        && !(has_module || asked.left.is_some())
    {
        return Assessment::blocked(format!("kernel {kernel}: {}", row.why), row.hint.clone());
    }
    let Some(answer) = &asked.answer else {
        return Assessment::needs(
            "kernels with a driver module are unknown until the package lists are updated",
            vec![Change::RefreshRepositories],
        );
    };
    let reboots = words_of_cost(answer.reboots(kernels.image));
    let method = chosen(answer, kernels).and_then(|(method, _)| spec.methods.get(method));
    let means = match method {
        Some(method) if method.is_compiled() => "headers to compile the module".to_owned(),
        Some(ModuleMethod {
            branch: Some(branch),
            ..
        }) => format!("a packaged driver module of branch {branch}"),
        _ => "a packaged driver module".to_owned(),
    };
    let needed = list(&kernels.needed());
    match answer {
        KernelAnswer::Unknown => {
            Assessment::not_applicable("the running kernel and the default boot kernel are unknown")
        }
        KernelAnswer::Here { method } => {
            let why = if asked
                .question
                .methods
                .get(*method)
                .is_some_and(|method| method.complete)
            {
                format!("kernel {needed}: the driver packages for it are installed")
            } else {
                format!("kernel {needed}: {means} available, {reboots}")
            };
            let why = format!("{why}{}", unbooted(asked));
            if asked.certain {
                Assessment::satisfied(why)
            } else {
                Assessment::needs(why, vec![Change::RefreshRepositories])
            }
        }
        KernelAnswer::Boot { kernel, .. } => {
            let running = kernels.running.as_ref();
            let why = format!(
                "kernel {}: {}; the next boot starts kernel {kernel}, which supports the driver: {reboots}",
                running.map_or_else(String::new, ToString::to_string),
                (asked.left.as_ref()).map_or_else(
                    || format!("no repository offers {means}"),
                    |(_, why)| why.clone()
                ),
            );
            let new_lists = (!asked.certain).then_some(Change::RefreshRepositories);
            let reboot = Change::Reboot { why: why.clone() };
            Assessment::needs(why, new_lists.into_iter().chain([reboot]).collect())
        }
        KernelAnswer::Install {
            kernel,
            other_series,
            ..
        } => {
            let series = if *other_series { "another" } else { "the same" };
            let lacks = (kernels.needed().iter())
                .find_map(|kernel| asked.other_module.get(kernel).cloned())
                .unwrap_or_else(|| format!("no repository offers {means}"));
            let why = format!(
                "kernel {needed}: {lacks}; kernel {kernel} of {series} series has {it}: {reboots}",
                it = if method.is_some_and(|method| method.is_compiled()) {
                    "them"
                } else {
                    "it"
                },
            );
            let mut packages = state.kernel.clone();
            // Installed with the kernel, so that the machine boots with all required packages.
            if !state.replaces {
                let of_driver = driver.packages.iter().chain(&desired.headers);
                let further: Vec<PackageSpec> = of_driver
                    .filter(|spec| !packages.contains(spec))
                    .cloned()
                    .collect();
                packages.extend(further);
            }
            let mut changes = vec![
                Change::RefreshRepositories,
                Change::InstallPackages {
                    packages,
                    removing: Vec::new(),
                    later: false,
                },
            ];
            if !kernels.image {
                changes.push(Change::Reboot {
                    why: format!("the driver needs kernel {kernel}"),
                });
            }
            Assessment::needs(why, changes)
        }
        KernelAnswer::Refused(refused) => match refusal(refused, asked, spec, desired) {
            (why, hint) if asked.certain => Assessment::blocked(why, hint),
            (why, hint) => Assessment::BlockedByOldLists { why, hint },
        },
    }
}

fn words_of_cost(reboots: u32) -> &'static str {
    match reboots {
        0 => "no reboot",
        _ => "1 reboot",
    }
}

fn list(kernels: &[KernelVersion]) -> String {
    let names: Vec<&str> = kernels.iter().map(KernelVersion::as_str).collect();
    names.join(" and ")
}

async fn assess(cx: &Cx<'_>) -> Result<Assessment, StepError> {
    if adopts(cx).await {
        return Ok(Assessment::not_applicable(
            "the existing driver and its kernel are adopted",
        ));
    }
    packages::unless_half_done(cx, decide(&detect(cx).await?, cx.desired)).await
}

#[cfg(test)]
mod tests {
    use super::{KernelState, decide};
    use crate::{
        change::Change,
        compat::kernels::{KernelMethod, KernelQuestion, Kernels},
        config::{
            desired::{Desired, KernelSpec, ModuleMethod},
            kernel::RefusedKernel,
        },
        step::Assessment,
        steps::{fixtures::desired, kernels::Asked, specs::fixtures::specs},
    };

    const OLD: &str = "6.8.0-1021-aws";
    const NEW: &str = "6.8.0-1050-aws";

    fn want() -> Desired {
        Desired {
            kernel: Some(KernelSpec {
                policy: Default::default(),
                arch: "x86_64".into(),
                image: specs(&["linux-image-{kernel}"]).pop(),
                companions: vec![],
                follow: vec![],
                container_modules: vec![],
                refused: vec![],
                methods: vec![ModuleMethod {
                    packages: specs(&["linux-modules-nvidia-580-server-open-{kernel}"]),
                    headers: vec![],
                    follow: vec![],
                    compiled_as: None,
                    module: "nvidia".into(),
                    prebuilt: None,
                    branch: None,
                    companions: vec![],
                }],
            }),
            ..desired()
        }
    }

    /// A machine that runs and boots the old kernel, with these module packages in the archive.
    fn state(packaged: &[&str]) -> KernelState {
        let kernel = |text: &str| text.parse().expect("a kernel");
        let mut question = KernelQuestion {
            kernels: Kernels {
                running: Some(kernel(OLD)),
                next: Some(kernel(OLD)),
                installed: vec![kernel(OLD)],
                image: false,
            },
            ..KernelQuestion::default()
        };
        question.images = packaged.iter().map(|one| kernel(one)).collect();
        question.methods.push(KernelMethod {
            kernels: question.images.clone(),
            ..KernelMethod::default()
        });
        KernelState {
            asked: Asked {
                answer: Some(question.answer()),
                question,
                certain: true,
                ..Asked::default()
            },
            kernel: specs(&["linux-image-6.8.0-1050-aws"]),
            ..KernelState::default()
        }
    }

    #[test]
    fn installation_includes_driver_and_reboot_count() {
        let (why, changes) = decide(&state(&[NEW]), &want()).expect_needs();
        assert!(why.ends_with("has it: 1 reboot"), "{why}");
        let [
            Change::RefreshRepositories,
            Change::InstallPackages { packages, .. },
            Change::Reboot { .. },
        ] = &changes[..]
        else {
            panic!("{changes:?}");
        };
        let names: Vec<&str> = packages.iter().map(|spec| spec.name.as_str()).collect();
        assert_eq!(names[0], "linux-image-6.8.0-1050-aws");
        assert!(names.contains(&"nvidia-smi"), "{names:?}");
        // Packages of a driver to be replaced would conflict, so `driver.packages` installs the new driver.
        let mut replaces = state(&[NEW]);
        replaces.replaces = true;
        let (_, changes) = decide(&replaces, &want()).expect_needs();
        assert!(
            matches!(&changes[1], Change::InstallPackages { packages, .. } if packages.len() == 1),
            "{changes:?}"
        );
    }

    #[test]
    fn hidden_packages_are_the_reported_cause() {
        let mut refused = state(&[]);
        let (_, hint) = decide(&refused, &want()).expect_blocked();
        assert!(hint.contains("upgrade the kernel"), "{hint}");
        let line = "`/etc/dnf/dnf.conf`, line 3: `excludepkgs=kernel*`";
        refused.asked.hidden = vec![line.to_owned()];
        let (why, hint) = decide(&refused, &want()).expect_blocked();
        assert!(
            why.starts_with(&format!("{line}, so no repository offers")),
            "{why}"
        );
        assert!(
            hint.contains("remove the packages from this line"),
            "{hint}"
        );
        assert!(!hint.contains("upgrade the kernel"), "{hint}");
    }

    #[test]
    fn image_gets_its_kernel_without_reboot() {
        let mut image = state(&[NEW]);
        image.asked.question.kernels.image = true;
        image.asked.answer = Some(image.asked.question.answer());
        let (why, changes) = decide(&image, &want()).expect_needs();
        assert!(why.ends_with("no reboot"), "{why}");
        assert_eq!(changes.len(), 2);
    }

    #[test]
    fn old_lists_are_not_trusted() {
        let mut older = state(&[OLD]);
        older.asked.certain = false;
        let (why, changes) = decide(&older, &want()).expect_needs();
        assert!(why.ends_with("available, no reboot"), "{why}");
        assert_eq!(changes, [Change::RefreshRepositories]);
        older.asked.certain = true;
        decide(&older, &want()).expect_satisfied();
        older.asked.answer = None;
        assert_eq!(
            decide(&older, &want()).expect_needs().1,
            [Change::RefreshRepositories]
        );
    }

    #[test]
    fn stream_is_enabled_before_lists_are_evaluated() {
        let mut want = want();
        let driver = want.driver.as_mut().expect("a driver");
        driver.stream = Some("nvidia-driver:580-open".into());
        let mut older = state(&[OLD]);
        older.asked.certain = false;
        let (_, changes) = decide(&older, &want).expect_needs();
        assert!(
            matches!(
                &changes[..],
                [Change::EnableStream { stream, .. }, Change::RefreshRepositories]
                    if stream == "580-open"
            ),
            "{changes:?}"
        );
        older.stream = Some("580-open".into());
        assert_eq!(
            decide(&older, &want).expect_needs().1,
            [Change::RefreshRepositories]
        );
    }

    #[test]
    fn old_lists_are_refreshed_before_a_block_or_reboot() {
        let mut older = state(&[]);
        older.asked.certain = false;
        decide(&older, &want()).expect_blocked_by_old_lists();
        older.asked.certain = true;
        decide(&older, &want()).expect_blocked();
        // The running kernel cannot have a module, but the kernel of the next boot can.
        let mut next = state(&[NEW]);
        let kernels = &mut next.asked.question.kernels;
        kernels.next = NEW.parse().ok();
        kernels.installed.extend(NEW.parse().ok());
        next.asked.answer = Some(next.asked.question.answer());
        assert!(matches!(
            &decide(&next, &want()).expect_needs().1[..],
            [Change::Reboot { .. }]
        ));
        next.asked.certain = false;
        assert!(matches!(
            &decide(&next, &want()).expect_needs().1[..],
            [Change::RefreshRepositories, Change::Reboot { .. }]
        ));
    }

    #[test]
    fn blocked_kernel_lists_package_and_remedies() {
        let mut none = state(&[NEW]);
        none.asked.question.policy = crate::compat::kernels::KernelPolicy::No;
        none.asked.answer = Some(none.asked.question.answer());
        let (why, hint) = decide(&none, &want()).expect_blocked();
        assert!(
            why.ends_with("linux-modules-nvidia-580-server-open-6.8.0-1021-aws"),
            "{why}"
        );
        for words in [
            "driver.may-change-kernel = \"same-series\"",
            "apt-get install linux-image-6.8.0-1050-aws",
        ] {
            assert!(hint.contains(words), "{hint}");
        }
    }

    #[test]
    fn unsupported_kernel_is_reported_unless_module_exists() {
        let mut want = want();
        let spec = want.kernel.as_mut().expect("a kernel");
        spec.refused = vec![RefusedKernel {
            kernels: "*-aws".into(),
            why: "it is a vendor kernel".into(),
            hint: "boot another one".into(),
        }];
        let mut there = state(&[OLD]);
        let blocked = Assessment::Blocked {
            why: format!("kernel {OLD}: it is a vendor kernel"),
            hint: "boot another one".into(),
        };
        assert_eq!(decide(&there, &want), blocked);
        there.asked.answer = None;
        assert_eq!(decide(&there, &want), blocked);
        there.asked.question.methods[0].complete = true;
        there.asked.answer = Some(there.asked.question.answer());
        decide(&there, &want).expect_satisfied();
        let mut next = state(&[NEW]);
        next.asked.question.kernels.next = NEW.parse().ok();
        next.asked.left = Some((
            OLD.parse().expect("a kernel"),
            "it is a vendor kernel".into(),
        ));
        next.asked.answer = Some(next.asked.question.answer());
        let (why, _) = decide(&next, &want).expect_needs();
        assert!(
            why.contains(": it is a vendor kernel; the next boot"),
            "{why}"
        );
    }

    #[test]
    fn unbooted_newer_kernel_is_reported() {
        let mut installed = state(&[NEW]);
        let kernels = &mut installed.asked.question.kernels;
        kernels.installed.push(NEW.parse().expect("a kernel"));
        installed.asked.answer = Some(installed.asked.question.answer());
        let (why, _) = decide(&installed, &want()).expect_blocked();
        assert!(
            why.ends_with(
                "kernel 6.8.0-1050-aws is installed, but the boot loader starts 6.8.0-1021-aws"
            ),
            "{why}"
        );
    }
}
