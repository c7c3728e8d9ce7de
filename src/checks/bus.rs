//! Checks of the GPUs on the PCI bus: GPUs that no longer respond, and link errors.

use camino::Utf8PathBuf;

use super::messages::{self, POWER, gpus, places};
use crate::{
    check::{Family, Finding, Subject, Verdict},
    error::one_line,
    facts::GpuFact,
    host::{FilesError, ReadFiles},
    model::{id::Id, pci::DEVICES},
    step::StepError,
};

const CONFIG_SPACE: Id = Id::new("pci.gpu.config-space");
const AER: Id = Id::new("pci.aer");

/// The revision of a device that does not respond.
const GONE: &str = "0xff";

/// The PCI bus checks.
pub(super) const FAMILY: Family = Family {
    ids: || vec![CONFIG_SPACE, AER],
    examine: |subject| Box::pin(examine(subject)),
};

/// The result of reading the configuration space of a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
enum ConfigurationSpace {
    /// It contains the IDs of the GPU.
    Alive,
    /// All bits are set, because no device responds on the link.
    Gone,
    /// The file does not exist in the tree, or is shorter than the IDs.
    Absent,
    /// The file cannot be read.
    Unreadable(String),
}

fn detect<'f>(subject: &Subject<'f>) -> Result<Vec<(&'f GpuFact, ConfigurationSpace)>, StepError> {
    let mut found = Vec::new();
    for gpu in &subject.facts.gpus {
        // A virtual machine may reset its GPU at any moment, and the GPU does not respond during the reset.
        if subject.state.is_reserved(gpu.pci_address)? {
            continue;
        }
        let files = subject.host.files();
        let directory = Utf8PathBuf::from(format!("{DEVICES}/{}", gpu.pci_address));
        let mut answered = answer(files.read(&directory.join("config")));
        // A recorded tree may contain only `revision`, the value that the kernel read when it found the device.
        if answered == ConfigurationSpace::Absent
            && files
                .read_text(&directory.join("revision"))?
                .is_some_and(|text| text.trim() == GONE)
        {
            answered = ConfigurationSpace::Gone;
        }
        found.push((gpu, answered));
    }
    Ok(found)
}

fn answer(read: Result<Option<Vec<u8>>, FilesError>) -> ConfigurationSpace {
    match read {
        Ok(Some(bytes)) => match bytes.get(..4) {
            Some([0xff, 0xff, 0xff, 0xff]) => ConfigurationSpace::Gone,
            Some(_) => ConfigurationSpace::Alive,
            None => ConfigurationSpace::Absent,
        },
        Ok(None) => ConfigurationSpace::Absent,
        Err(error) => ConfigurationSpace::Unreadable(format!("failed to {}", one_line(&error))),
    }
}

fn decide(found: &[(&GpuFact, ConfigurationSpace)], virtualization: Option<&str>) -> Finding {
    let finding = |status, why: String| Finding::new(CONFIG_SPACE, status, why);
    if found.is_empty() {
        return finding(
            Verdict::Skip,
            format!(
                "{}, or all are reserved for virtual machines",
                messages::NO_GPU
            ),
        );
    }
    let with = |wanted: &ConfigurationSpace| -> Vec<&GpuFact> {
        (found.iter().filter(|(_, answer)| answer == wanted))
            .map(|(gpu, _)| *gpu)
            .collect()
    };
    let gone = with(&ConfigurationSpace::Gone);
    if !gone.is_empty() {
        let remedy = match virtualization {
            Some("none") => {
                "run `systemctl poweroff`, then power the machine on again, because a reboot does not cut the power of the GPU"
            }
            Some(_) => {
                "run `systemctl poweroff`, then start the instance again, which moves it to another host and erases its \
                 local disks"
            }
            None => POWER,
        };
        return Finding {
            observed: Some("configuration space of all ones".to_owned()),
            expected: Some("the IDs of the GPU".to_owned()),
            remedy: Some(remedy.to_owned()),
            ..finding(
                Verdict::Fail,
                format!(
                    "{} of {} fell off the bus: {}",
                    gone.len(),
                    gpus(found.len()),
                    places(gone)
                ),
            )
        };
    }
    let unreadable = found.iter().find_map(|(_, answer)| match answer {
        ConfigurationSpace::Unreadable(why) => Some(why),
        _ => None,
    });
    if let Some(why) = unreadable {
        return finding(Verdict::Unknown, why.clone());
    }
    let alive = with(&ConfigurationSpace::Alive).len();
    if alive < found.len() {
        return finding(
            Verdict::Skip,
            "the configuration space of the GPUs is not available".to_owned(),
        );
    }
    finding(Verdict::Pass, format!("{alive} of {}", gpus(alive)))
}

/// The number of uncorrected link errors since boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Uncorrected {
    fatal: u64,
    others: u64,
}

/// Reads the counters of Advanced Error Reporting (Linux, `Documentation/ABI/testing/sysfs-bus-pci-devices-aer_stats`). Returns
/// `None` if the device has no counters.
fn uncorrected(gpu: &GpuFact, files: &dyn ReadFiles) -> Result<Option<Uncorrected>, StepError> {
    let directory = Utf8PathBuf::from(format!("{DEVICES}/{}", gpu.pci_address));
    let total = |name: &str, total: &str| -> Result<Option<u64>, StepError> {
        let path = directory.join(name);
        let Some(text) = files.read_text(&path)? else {
            return Ok(None);
        };
        let line = text.lines().find_map(|line| line.strip_prefix(total));
        match line.and_then(|number| number.trim().parse().ok()) {
            Some(count) => Ok(Some(count)),
            None => Err(StepError::Unexpected {
                what: format!("`{path}`"),
                why: format!("it has no line `{total}` with a number"),
            }),
        }
    };
    let fatal = total("aer_dev_fatal", "TOTAL_ERR_FATAL")?;
    let others = total("aer_dev_nonfatal", "TOTAL_ERR_NONFATAL")?;
    Ok(fatal
        .zip(others)
        .map(|(fatal, others)| Uncorrected { fatal, others }))
}

fn links(found: &[(&GpuFact, Uncorrected)], unread: Option<&StepError>) -> Finding {
    let finding = |status, why: String| Finding::new(AER, status, why);
    if let Some(error) = unread {
        return finding(Verdict::Unknown, format!("failed to {}", one_line(error)));
    }
    if found.is_empty() {
        return finding(
            Verdict::Skip,
            "no error counters: the firmware or the hypervisor handles the errors, or there is no GPU"
                .to_owned(),
        );
    }
    let with = |is: fn(&Uncorrected) -> bool| -> Vec<&GpuFact> {
        (found.iter().filter(|(_, errors)| is(errors)))
            .map(|(gpu, _)| *gpu)
            .collect()
    };
    let (fatal, others) = (
        with(|errors| errors.fatal > 0),
        with(|errors| errors.others > 0),
    );
    let (status, kind, sick) = match (fatal.is_empty(), others.is_empty()) {
        (false, _) => (Verdict::Fail, "fatal errors", fatal),
        (true, false) => (Verdict::Warn, "non-fatal uncorrected errors", others),
        (true, true) => return finding(Verdict::Pass, "none since boot".to_owned()),
    };
    finding(status, format!("{kind} since boot: {}", places(sick)))
        .with_remedy("reseat the GPU, its riser and its cables; if errors recur, replace the GPU")
}

async fn examine(subject: &Subject<'_>) -> Result<Vec<Finding>, StepError> {
    let virtualization = subject.facts.virtualization.as_deref();
    let found = detect(subject)?;
    let (mut errors, mut unread) = (Vec::new(), None);
    for (gpu, _) in &found {
        match uncorrected(gpu, subject.host.files()) {
            Ok(Some(counted)) => errors.push((*gpu, counted)),
            Ok(None) => {}
            Err(error) => unread = Some(error),
        }
    }
    let links = links(&errors, unread.as_ref());
    Ok(vec![decide(&found, virtualization), links])
}

#[cfg(test)]
mod tests {
    use super::{ConfigurationSpace, Uncorrected, answer, decide, links, uncorrected};
    use crate::{check::Verdict, host::fake::FakeFiles, steps::fixtures::facts};

    #[test]
    fn uncorrected_link_errors_are_reported() {
        let facts = facts();
        let gpu = &facts.gpus[0];
        let files = FakeFiles::new();
        assert_eq!(uncorrected(gpu, &files).expect("readable"), None);
        // Format: `Documentation/ABI/testing/sysfs-bus-pci-devices-aer_stats`.
        let directory = format!("/sys/bus/pci/devices/{}", gpu.pci_address);
        files.put(
            &format!("{directory}/aer_dev_fatal"),
            "Undefined 0\nDLP 0\nTOTAL_ERR_FATAL 1\n",
        );
        files.put(
            &format!("{directory}/aer_dev_nonfatal"),
            "Undefined 0\nDLP 0\nTOTAL_ERR_NONFATAL 2\n",
        );
        let counted = uncorrected(gpu, &files).expect("readable").expect("both");
        assert_eq!(
            counted,
            Uncorrected {
                fatal: 1,
                others: 2
            }
        );
        files.put(
            &format!("{directory}/aer_dev_fatal"),
            "TOTAL_ERR_FATAL many\n",
        );
        let error = uncorrected(gpu, &files).expect_err("no number");
        let unread = links(&[], Some(&error));
        assert_eq!(unread.status, Verdict::Unknown);
        assert!(unread.why.contains("aer_dev_fatal"), "{}", unread.why);
        assert_eq!(links(&[], None).status, Verdict::Skip);
        for (fatal, others, verdict) in [
            (0, 0, Verdict::Pass),
            (0, 2, Verdict::Warn),
            (1, 2, Verdict::Fail),
        ] {
            let finding = links(&[(gpu, Uncorrected { fatal, others })], None);
            assert_eq!(finding.status, verdict);
            assert_eq!(finding.remedy.is_some(), verdict != Verdict::Pass);
        }
    }

    #[test]
    fn all_ones_mean_gpu_fell_off_bus() {
        assert_eq!(answer(Ok(Some(vec![0xff; 64]))), ConfigurationSpace::Gone);
        assert_eq!(
            answer(Ok(Some(vec![0xde, 0x10, 0x30, 0x23, 0xff]))),
            ConfigurationSpace::Alive
        );
        assert_eq!(answer(Ok(Some(vec![]))), ConfigurationSpace::Absent);
        assert_eq!(answer(Ok(None)), ConfigurationSpace::Absent);
        let facts = facts();
        let with = |one: ConfigurationSpace, other: ConfigurationSpace| {
            let found = [(&facts.gpus[0], one), (&facts.gpus[1], other)];
            decide(&found, Some("none"))
        };
        let fallen = with(ConfigurationSpace::Alive, ConfigurationSpace::Gone);
        assert_eq!(fallen.status, Verdict::Fail);
        assert_eq!(
            fallen.why,
            "1 of 2 GPUs fell off the bus: H100 SXM5 80GB at 0000:2a:00.0"
        );
        assert!(
            fallen
                .remedy
                .is_some_and(|text| text.starts_with("run `systemctl poweroff`"))
        );
        for (one, other, verdict) in rows! {
            ConfigurationSpace::Alive, ConfigurationSpace::Alive, Verdict::Pass;
            ConfigurationSpace::Absent, ConfigurationSpace::Absent, Verdict::Skip;
            ConfigurationSpace::Alive, ConfigurationSpace::Unreadable("no".into()), Verdict::Unknown;
        } {
            assert_eq!(with(one, other).status, verdict);
        }
        assert_eq!(decide(&[], Some("none")).status, Verdict::Skip);
    }
}
