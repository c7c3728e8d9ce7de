//! Explains why no kernel of the machine can have a driver module, with the remedy.

use super::kernels::Asked;
use crate::{
    compat::kernels::{KernelPolicy, Refused},
    config::desired::{Desired, KernelSpec, ModuleMethod, PackageSpec},
    model::version::KernelVersion,
    tools::packages::Exclusion,
};

/// Returns a clause about an installed kernel that is newer than the default kernel of the boot loader, or an empty string.
pub(super) fn unbooted(asked: &Asked) -> String {
    let kernels = &asked.question.kernels;
    let Some(base) = kernels.base() else {
        return String::new();
    };
    let newer = (kernels.installed.iter())
        .filter(|kernel| kernel.flavor() == base.flavor() && **kernel > base)
        .max();
    newer.map_or_else(String::new, |kernel| {
        format!("; kernel {kernel} is installed, but the boot loader starts {base}")
    })
}

/// Returns the reason that no kernel can have a module, and the remedy.
pub(super) fn refusal(
    refused: &Refused,
    asked: &Asked,
    spec: &KernelSpec,
    desired: &Desired,
) -> (String, String) {
    // Module methods of several branches differ only in the branch, so the packages of the first one represent all.
    let branches: Vec<String> = (spec.methods.iter())
        .filter_map(|method| method.branch.map(|branch| branch.to_string()))
        .collect();
    let by_kernel: Vec<PackageSpec> = (spec.methods.first().into_iter())
        .flat_map(|method| method.by_kernel().cloned().collect::<Vec<_>>())
        .collect();
    let without: Vec<KernelVersion> = (refused.without.iter())
        .filter(|kernel| !asked.other_module.contains_key(kernel))
        .cloned()
        .collect();
    let lacking: Vec<String> = (spec.packages(&by_kernel, &without).into_iter())
        .map(|one| match one.version {
            Some(version) => format!("{} {version}", one.name),
            None => one.name,
        })
        .collect();
    let mut whys = Vec::new();
    if !lacking.is_empty() && !branches.is_empty() {
        let names: Vec<&str> = (spec
            .methods
            .first()
            .into_iter()
            .flat_map(ModuleMethod::built))
        .map(|one| one.name.as_str())
        .collect();
        let kernels: Vec<&str> = without.iter().map(KernelVersion::as_str).collect();
        whys.push(format!(
            "no repository offers {} of branch {} for {}",
            names.join(" and "),
            branches.join(" or "),
            kernels.join(" and ")
        ));
    } else if !lacking.is_empty() {
        whys.push(format!("no repository offers {}", lacking.join(", ")));
    }
    whys.extend(
        refused
            .without
            .iter()
            .filter_map(|kernel| asked.other_module.get(kernel).cloned()),
    );
    whys.extend(asked.builds.in_words());
    whys.extend(refused.closed.iter().cloned());
    whys.extend(asked.ruled_out.iter().cloned());
    if whys.is_empty() {
        whys.push("no driver module is available".to_owned());
    }
    let why = format!("{}{}", whys.join("; "), unbooted(asked));
    if !asked.hidden.is_empty() {
        // The same lines also hide packages of other kernels, so another kernel is not a remedy.
        let lines = asked.hidden.join("; ");
        return (
            format!("{lines}, so {why}"),
            Exclusion::remedy(&asked.hidden),
        );
    }
    let commands = desired.packages.manager.backend().commands();
    let own = |kernel: &KernelVersion| commands.install_kernel.replace("KERNEL", kernel.as_str());
    let archive = "the archive keeps these packages only for its newest kernels";
    let hint = match &refused.with {
        Some((policy @ KernelPolicy::SameSeries, kernel)) => format!(
            "{archive}, so set `driver.may-change-kernel = \"{policy}\"`, or upgrade to kernel {kernel} \
             (`{}`), reboot, and run the command again",
            own(kernel)
        ),
        Some((policy, kernel)) => format!(
            "{archive}, so set `driver.may-change-kernel = \"{policy}\"` to install kernel {kernel} of a different series, \
             or upgrade the kernel (`{}`), reboot, and run the command again",
            own(kernel)
        ),
        None => format!(
            "{archive}, so upgrade the kernel (`{}`), reboot, and run the \
             command again. For a kernel newer than all packaged modules, wait a few days for its module",
            commands.upgrade_kernel
        ),
    };
    let elsewhere = (desired.driver.as_ref())
        .and_then(|driver| driver.alternative.as_ref())
        .filter(|other| other.compiled)
        .map(|other| {
            let source = &other.source;
            format!(
                "; or set `driver.source = \"{source}\"`, whose module is compiled on this machine"
            )
        });
    (why, hint + &elsewhere.unwrap_or_default())
}
