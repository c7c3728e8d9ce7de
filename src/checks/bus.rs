//! The GPUs that do not answer on the PCI bus any more, by their configuration space.

use async_trait::async_trait;
use camino::Utf8PathBuf;

use super::{
    log::POWER,
    words::{self, gpus, places},
};
use crate::{
    check::{Check, Finding, Subject, Verdict},
    error::one_line,
    facts::GpuFact,
    host::FilesError,
    model::{id::Id, pci::DEVICES},
    step::StepError,
};

const REVFF: Id = Id::new("pci.gpu.revff");
const TITLE: &str = "GPUs that answer on the bus";

/// The revision of a device that does not answer.
const GONE: &str = "0xff";

/// See the module.
pub struct Bus;

/// What reading the configuration space of a GPU gave.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Answer {
    /// It has its ids there.
    Alive,
    /// All ones: nothing is at the other end of the link.
    Gone,
    /// The tree has no such file.
    Absent,
    /// The file cannot be read.
    Unreadable(String),
}

fn detect<'f>(subject: &Subject<'f>) -> Result<Vec<(&'f GpuFact, Answer)>, StepError> {
    let mut found = Vec::new();
    for gpu in &subject.facts.gpus {
        // A virtual machine may reset the GPU that it has at any moment.
        if subject.state.is_reserved(gpu.pci_address)? {
            continue;
        }
        let files = subject.host.files();
        let folder = Utf8PathBuf::from(format!("{DEVICES}/{}", gpu.pci_address));
        let mut answered = answer(files.read(&folder.join("config")));
        // The kernel read the revision when it found the device; a recorded tree may have nothing else.
        if answered == Answer::Absent
            && files
                .read_text(&folder.join("revision"))?
                .is_some_and(|text| text.trim() == GONE)
        {
            answered = Answer::Gone;
        }
        found.push((gpu, answered));
    }
    Ok(found)
}

fn answer(read: Result<Option<Vec<u8>>, FilesError>) -> Answer {
    match read {
        Ok(Some(bytes)) => match bytes.get(..4) {
            Some([0xff, 0xff, 0xff, 0xff]) => Answer::Gone,
            Some(_) => Answer::Alive,
            None => Answer::Absent,
        },
        Ok(None) => Answer::Absent,
        Err(error) => Answer::Unreadable(format!("failed to {}", one_line(&error))),
    }
}

fn decide(found: &[(&GpuFact, Answer)], virtualization: Option<&str>) -> Finding {
    let say = |status, why: String| Finding::new(REVFF, TITLE, status, why);
    if found.is_empty() {
        return say(
            Verdict::Skip,
            format!(
                "{}, or all are reserved for virtual machines",
                words::NO_GPU
            ),
        );
    }
    let with = |wanted: &Answer| -> Vec<&GpuFact> {
        (found.iter().filter(|(_, answer)| answer == wanted))
            .map(|(gpu, _)| *gpu)
            .collect()
    };
    let gone = with(&Answer::Gone);
    if !gone.is_empty() {
        let remedy = match virtualization {
            Some("none") => {
                "switch the machine off and on: a reboot does not cut the power of the GPU"
            }
            Some(_) => {
                "stop the instance and start it again, which moves it to another host and empties its local disks"
            }
            None => POWER,
        };
        return Finding {
            observed: Some("configuration space of all ones".to_owned()),
            expected: Some("the ids of the GPU".to_owned()),
            remedy: Some(remedy.to_owned()),
            ..say(
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
        Answer::Unreadable(why) => Some(why),
        _ => None,
    });
    if let Some(why) = unreadable {
        return say(Verdict::Unknown, why.clone());
    }
    let alive = with(&Answer::Alive).len();
    if alive < found.len() {
        return say(
            Verdict::Skip,
            "the configuration space of the GPUs is not there to be read".to_owned(),
        );
    }
    say(Verdict::Pass, format!("{alive} of {}", gpus(alive)))
}

#[async_trait]
impl Check for Bus {
    fn ids(&self) -> &[Id] {
        const { &[REVFF] }
    }

    async fn examine(&self, subject: &Subject<'_>) -> Result<Vec<Finding>, StepError> {
        let virtualization = subject.facts.virtualization.as_deref();
        Ok(vec![decide(&detect(subject)?, virtualization)])
    }
}

#[cfg(test)]
mod tests {
    use super::{Answer, answer, decide};
    use crate::{check::Verdict, steps::fixtures::facts};

    #[test]
    fn a_configuration_space_of_all_ones_is_a_gpu_off_the_bus() {
        assert_eq!(answer(Ok(Some(vec![0xff; 64]))), Answer::Gone);
        assert_eq!(
            answer(Ok(Some(vec![0xde, 0x10, 0x30, 0x23, 0xff]))),
            Answer::Alive
        );
        assert_eq!(answer(Ok(Some(vec![]))), Answer::Absent);
        assert_eq!(answer(Ok(None)), Answer::Absent);
        let facts = facts();
        let with = |one: Answer, other: Answer| {
            let found = [(&facts.gpus[0], one), (&facts.gpus[1], other)];
            decide(&found, Some("none"))
        };
        let fallen = with(Answer::Alive, Answer::Gone);
        assert_eq!(fallen.status, Verdict::Fail);
        assert_eq!(
            fallen.why,
            "1 of 2 GPUs fell off the bus: H100 SXM5 80GB at 0000:2a:00.0"
        );
        assert!(
            fallen
                .remedy
                .is_some_and(|text| text.contains("off and on"))
        );
        for (one, other, verdict) in [
            (Answer::Alive, Answer::Alive, Verdict::Pass),
            (Answer::Absent, Answer::Absent, Verdict::Skip),
            (
                Answer::Alive,
                Answer::Unreadable("no".into()),
                Verdict::Unknown,
            ),
        ] {
            assert_eq!(with(one, other).status, verdict);
        }
        assert_eq!(decide(&[], Some("none")).status, Verdict::Skip);
    }
}
