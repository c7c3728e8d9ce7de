//! Texts that several groups of checks use.

use crate::{
    check::{Finding, Verdict},
    config::profile::Profile,
    facts::{Facts, GpuFact, Os, detection},
    host::ReadFiles,
    model::text::counted,
    step::StepError,
    tools::packages::Manager,
};

pub(super) use crate::tools::xid::{POWER, RESET};

/// The remedy for a problem that `install` can fix.
pub(super) const INSTALL: &str = "run `gpu-bootstrap install`";

/// The words of a remedy according to which the administrator installs a driver.
pub const INSTALL_IT: &str = "install it with the method of this system";

/// The reason on a machine without a GPU.
pub const NO_GPU: &str = "no NVIDIA GPU is on the PCI bus";

/// Skips an unknown finding about packages if the machine has no GPU, because such a machine does not need the packages.
pub(super) fn skip_without_gpu(finding: Finding, facts: &Facts) -> Finding {
    let is_unread = facts.unknown.iter().any(|unknown| unknown.fact == "gpus");
    if finding.status != Verdict::Unknown || !facts.gpus.is_empty() || is_unread {
        return finding;
    }
    Finding {
        status: Verdict::Skip,
        why: NO_GPU.to_owned(),
        ..finding
    }
}

/// Returns the built-in profiles.
pub(super) fn profiles() -> Result<Vec<Profile>, StepError> {
    Profile::all_built_in().map_err(|error| StepError::Unexpected {
        what: "the built-in profiles".to_owned(),
        why: error.to_string(),
    })
}

/// The maximum number of packages in a command. A driver has about twenty.
pub(super) const MOST_NAMES: usize = 40;

/// The package manager of a machine, also of a machine that `install` does not support.
pub(super) fn manager(
    files: &dyn ReadFiles,
    os: Option<&Os>,
) -> Result<Option<Manager>, StepError> {
    for manager in Manager::ALL {
        if manager.backend().is_used_on(files)? {
            return Ok(Some(manager));
        }
    }
    let Some(os) = os else {
        return Ok(None);
    };
    let manager = Profile::of(&profiles()?, os).map(|profile| profile.manager);
    Ok(manager.or_else(|| detection::manager_of(os)))
}

/// The name of a GPU, or its ID if it has no name.
pub(super) fn name(gpu: &GpuFact) -> String {
    (gpu.name.clone()).unwrap_or_else(|| format!("GPU {}", gpu.pci_id))
}

/// The names of GPUs without duplicates: `H100 SXM5 80GB, L4`.
pub(super) fn names<'f>(gpus: impl IntoIterator<Item = &'f GpuFact>) -> String {
    let mut names: Vec<String> = gpus.into_iter().map(name).collect();
    names.sort_unstable();
    names.dedup();
    names.join(", ")
}

/// GPUs by their names, each with its addresses: `H100 SXM5 80GB at 0000:18:00.0, 0000:2a:00.0`.
pub(super) fn places<'f>(gpus: impl IntoIterator<Item = &'f GpuFact>) -> String {
    let mut kinds: Vec<(String, Vec<String>)> = Vec::new();
    for gpu in gpus {
        let (name, address) = (name(gpu), gpu.pci_address.to_string());
        match kinds.iter_mut().find(|(kind, _)| *kind == name) {
            Some((_, addresses)) => addresses.push(address),
            None => kinds.push((name, vec![address])),
        }
    }
    let kinds: Vec<String> = kinds
        .into_iter()
        .map(|(name, addresses)| format!("{name} at {}", addresses.join(", ")))
        .collect();
    kinds.join("; ")
}

/// `1 GPU`, `2 GPUs`.
pub(super) fn gpus(count: usize) -> String {
    counted(count, "GPU")
}

#[cfg(test)]
mod tests {
    use super::{gpus, names, places};
    use crate::steps::fixtures::facts;

    #[test]
    fn equal_gpus_are_grouped() {
        let mut facts = facts();
        assert_eq!(
            places(&facts.gpus),
            "H100 SXM5 80GB at 0000:18:00.0, 0000:2a:00.0"
        );
        assert_eq!(names(&facts.gpus), "H100 SXM5 80GB");
        facts.gpus[1].name = None;
        assert_eq!(
            places(&facts.gpus),
            "H100 SXM5 80GB at 0000:18:00.0; GPU 10de:2330 at 0000:2a:00.0"
        );
        assert_eq!((gpus(1).as_str(), gpus(8).as_str()), ("1 GPU", "8 GPUs"));
    }
}
