//! Packages that exist for one kernel only, as headers and packaged modules. An archive keeps them for
//! its newest kernels, so the running kernel may have none: then another kernel must be booted first.

use super::packages;
use crate::{
    change::Change,
    config::desired::{Manager, PackageWish},
    facts::Kernel,
    model::version::KernelVersion,
    step::{Assessment, Cx, StepError},
};

/// Wanted packages that no repository offers, and what is offered in their place.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Unavailable {
    /// Their names; none if there are no package lists yet.
    pub(super) names: Vec<String>,
    /// The newest kernel of the series and flavour of the running one that has such packages.
    pub(super) elsewhere: Option<KernelVersion>,
}

/// Asks the package lists. `beside` are packages of the same repository: if none of them is offered,
/// either, the repository is still to be added, and nothing is known.
pub(super) async fn unavailable(
    cx: &Cx<'_>,
    wishes: &[PackageWish],
    beside: &[PackageWish],
) -> Result<Unavailable, StepError> {
    if wishes.is_empty() {
        return Ok(Unavailable::default());
    }
    let both: Vec<PackageWish> = wishes.iter().chain(beside).cloned().collect();
    let mut names = packages::unavailable(cx, &both).await?;
    if !beside.is_empty() && beside.iter().all(|wish| names.contains(&wish.name)) {
        return Ok(Unavailable::default());
    }
    names.retain(|name| wishes.iter().any(|wish| wish.name == *name));
    let mut elsewhere = None;
    if let Some(running) = &cx.facts.kernel.running
        && let Some(prefix) = (names.iter()).find_map(|name| name.strip_suffix(running.as_str()))
    {
        elsewhere = newest(prefix, running, &packages::names(cx, prefix).await?);
    }
    Ok(Unavailable { names, elsewhere })
}

/// The newest kernel of the same series and flavour among the names with this prefix.
fn newest(prefix: &str, running: &KernelVersion, names: &[String]) -> Option<KernelVersion> {
    let same = |kernel: &KernelVersion| {
        kernel.series() == running.series() && kernel.flavour() == running.flavour()
    };
    (names.iter())
        .filter_map(|name| name.strip_prefix(prefix)?.parse().ok())
        .filter(same)
        .max()
}

/// What to do where packages for a kernel are missing; `None` if none is.
pub(super) fn missing(
    unavailable: &Unavailable,
    kernel: &Kernel,
    image: bool,
    manager: Manager,
    otherwise: &str,
) -> Option<Assessment> {
    let Unavailable { names, elsewhere } = unavailable;
    if names.is_empty() {
        return None;
    }
    let list = names.join(", ");
    // The next boot starts a kernel that lacks nothing.
    if let (Some(running), Some(next)) = (&kernel.running, &kernel.next_boot)
        && running != next
        && !image
        && names.iter().all(|name| name.ends_with(running.as_str()))
    {
        let why = format!(
            "no repository offers {list} for the running kernel; the next boot starts kernel {next}"
        );
        return Some(Assessment::Needs {
            why: why.clone(),
            changes: vec![Change::Reboot { why }],
        });
    }
    let commands = manager.backend().commands();
    let upgrade = match elsewhere {
        Some(kernel) => format!(
            "to {kernel} (`{}`)",
            commands.install_kernel.replace("KERNEL", kernel.as_str())
        ),
        None => format!("(`{}` or your cloud's flavour)", commands.upgrade_kernel),
    };
    Some(Assessment::Blocked {
        why: format!("no repository offers {list}"),
        hint: format!(
            "the archive keeps such packages only for its newest kernels: upgrade the kernel \
             {upgrade}, reboot, and run the command again{otherwise}"
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::{Unavailable, missing, newest};
    use crate::{
        change::Change, config::desired::Manager, facts::Kernel, model::version::KernelVersion,
        step::Assessment, steps::fixtures::facts,
    };

    fn version(text: &str) -> KernelVersion {
        text.parse().expect("a kernel")
    }

    #[test]
    fn only_a_kernel_of_the_same_series_and_flavour_is_proposed() {
        let prefix = "linux-modules-nvidia-580-server-open-";
        let names: Vec<String> = [
            "6.8.0-1049-aws",
            "6.8.0-1050-aws",
            "6.8.0-1051-aws-64k",
            "6.8.0-130-generic",
            "6.17.0-1004-aws",
            "aws-6.8",
        ]
        .iter()
        .map(|kernel| format!("{prefix}{kernel}"))
        .collect();
        let of = |running: &str| newest(prefix, &version(running), &names);
        assert_eq!(of("6.8.0-1015-aws"), Some(version("6.8.0-1050-aws")));
        assert_eq!(of("6.14.0-1015-aws"), None);
        assert_eq!(of("6.8.0-1015-azure"), None);
    }

    fn kernel(running: &str, next: &str) -> Kernel {
        Kernel {
            running: Some(version(running)),
            next_boot: Some(version(next)),
            ..facts().kernel
        }
    }

    #[test]
    fn a_kernel_that_is_installed_is_booted_and_any_other_is_named() {
        let (old, new) = ("6.8.0-1015-aws", "6.8.0-1050-aws");
        let without = |name: &str, elsewhere: Option<&str>| Unavailable {
            names: vec![name.to_owned()],
            elsewhere: elsewhere.map(version),
        };
        let answer = |unavailable: &Unavailable, next: &str| {
            missing(unavailable, &kernel(old, next), false, Manager::Apt, "")
        };
        assert_eq!(answer(&Unavailable::default(), new), None);
        let headers = without("linux-headers-6.8.0-1015-aws", Some(new));
        let Some(Assessment::Needs { why, changes }) = answer(&headers, new) else {
            panic!("a reboot is enough");
        };
        assert!(
            why.ends_with("the next boot starts kernel 6.8.0-1050-aws"),
            "{why}"
        );
        assert!(matches!(&changes[..], [Change::Reboot { .. }]));
        let hint = |unavailable: &Unavailable| match answer(unavailable, old) {
            Some(Assessment::Blocked { hint, .. }) => hint,
            other => panic!("nothing is installed without consent: {other:?}"),
        };
        let words = "upgrade the kernel to 6.8.0-1050-aws (`apt-get install \
                     linux-image-6.8.0-1050-aws`), reboot";
        assert!(hint(&headers).contains(words), "{}", hint(&headers));
        let nowhere = without("linux-headers-6.8.0-1015-aws", None);
        assert!(hint(&nowhere).contains("your cloud's flavour"));
        // What no kernel has a reboot does not bring.
        assert!(matches!(
            answer(&without("gcc-12", None), new),
            Some(Assessment::Blocked { .. })
        ));
    }
}
