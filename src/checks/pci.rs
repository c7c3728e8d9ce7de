//! The family of PCI checks: the GPUs on the bus and their drivers. It works without any driver, so
//! read it first if a GPU is missing.

use async_trait::async_trait;

use crate::{
    check::{Check, Finding, Subject, Verdict},
    facts::{Facts, GpuFact},
    model::id::Id,
    step::StepError,
};

const PRESENT: Id = Id::new("pci.gpu.present");
const BOUND: Id = Id::new("pci.driver-bound");

/// The driver that containers need.
const DRIVER: &str = "nvidia";
/// The driver that passes a GPU to a virtual machine, on purpose.
const PASSTHROUGH: &str = "vfio-pci";

/// See the module.
pub struct Pci;

/// A GPU and its current driver.
struct Bound<'f> {
    gpu: &'f GpuFact,
    driver: Option<&'f str>,
}

fn detect<'f>(subject: &Subject<'f>) -> Result<Vec<Bound<'f>>, StepError> {
    let mut found = Vec::new();
    for gpu in &subject.facts.gpus {
        let driver = subject.state.bound_driver(gpu.pci_address)?;
        found.push(Bound { gpu, driver });
    }
    Ok(found)
}

fn label(gpu: &GpuFact) -> String {
    let name = gpu.name.as_deref().unwrap_or("unknown GPU");
    format!("{name} [{}] at {}", gpu.pci_id, gpu.pci_address)
}

fn present(facts: &Facts, allow_none: bool, image: bool) -> Finding {
    let count = facts.gpus.len();
    let (status, why, remedy) = if count > 0 {
        let names: Vec<String> = facts.gpus.iter().map(label).collect();
        (Verdict::Pass, names.join("; "), None)
    } else if image {
        (
            Verdict::Skip,
            "an image has no GPUs of its own; its instances have".to_owned(),
            None,
        )
    } else if allow_none {
        (
            Verdict::Skip,
            "no NVIDIA GPU is on the PCI bus, and none is required".to_owned(),
            None,
        )
    } else {
        (
            Verdict::Fail,
            "no NVIDIA GPU is on the PCI bus".to_owned(),
            Some(
                "compare the instance type with your provider's list; on bare metal check power, \
                 seating and the BIOS (`lspci -d 10de:`)"
                    .to_owned(),
            ),
        )
    };
    Finding {
        id: PRESENT,
        title: "GPUs on the PCI bus".into(),
        status,
        why,
        observed: Some(count.to_string()),
        expected: (!allow_none && !image).then(|| "at least 1".into()),
        remedy,
        links: Vec::new(),
        because: None,
    }
}

fn bound(gpus: &[Bound<'_>]) -> Finding {
    let finding = |status, why: String, observed: Option<String>, remedy: Option<&str>| Finding {
        id: BOUND,
        title: "GPUs bound to the NVIDIA driver".into(),
        status,
        why,
        observed,
        expected: Some(DRIVER.into()),
        remedy: remedy.map(str::to_owned),
        links: Vec::new(),
        because: None,
    };
    if gpus.is_empty() {
        return finding(
            Verdict::Skip,
            "no NVIDIA GPU is on the PCI bus".into(),
            None,
            None,
        );
    }
    let (mut wrong, mut passed_through) = (Vec::new(), Vec::new());
    for Bound { gpu, driver } in gpus {
        match *driver {
            Some(DRIVER) => {}
            Some(PASSTHROUGH) => passed_through.push(label(gpu)),
            Some(other) => wrong.push((format!("{} is bound to `{other}`", label(gpu)), other)),
            None => wrong.push((format!("no driver is bound to {}", label(gpu)), "none")),
        }
    }
    if let Some((_, driver)) = wrong.first() {
        let observed = (*driver).to_owned();
        let whys: Vec<String> = wrong.into_iter().map(|(why, _)| why).collect();
        return finding(
            Verdict::Fail,
            whys.join("; "),
            Some(observed),
            Some(
                "run `gpu-bootstrap install`: it installs the driver and removes nouveau; if the \
                 driver is already installed, run `dmesg | grep NVRM` to see why it refused the \
                 GPU",
            ),
        );
    }
    if !passed_through.is_empty() {
        return finding(
            Verdict::Warn,
            format!(
                "reserved for virtual machines, not usable for containers: {}",
                passed_through.join("; ")
            ),
            Some(PASSTHROUGH.into()),
            None,
        );
    }
    finding(
        Verdict::Pass,
        format!("{} of {}", gpus.len(), gpus.len()),
        Some(DRIVER.into()),
        None,
    )
}

#[async_trait]
impl Check for Pci {
    fn ids(&self) -> &[Id] {
        const { &[PRESENT, BOUND] }
    }

    async fn examine(&self, subject: &Subject<'_>) -> Result<Vec<Finding>, StepError> {
        let gpus = detect(subject)?;
        // Without GPUs, nothing can be wanted; that a machine must have some, only its past tells.
        let allow_none = subject
            .desired
            .map_or(!subject.prepared, |desired| desired.preflight.allow_no_gpu);
        let image = subject.desired.is_some_and(|desired| desired.image);
        Ok(vec![
            present(subject.facts, allow_none, image),
            bound(&gpus),
        ])
    }
}

#[cfg(test)]
mod tests {
    use super::{Bound, bound, present};
    use crate::{check::Verdict, steps::fixtures::facts};

    #[test]
    fn a_gpu_without_a_driver_is_a_failure_with_a_remedy() {
        let facts = facts();
        for (driver, verdict, words) in [
            (Some("nvidia"), Verdict::Pass, "2 of 2"),
            (Some("nouveau"), Verdict::Fail, "is bound to `nouveau`"),
            (Some("vfio-pci"), Verdict::Warn, "for virtual machines"),
            (
                None,
                Verdict::Fail,
                "no driver is bound to H100 SXM5 80GB [10de:2330] at 0000:18:00.0",
            ),
        ] {
            let gpus: Vec<Bound<'_>> = facts.gpus.iter().map(|gpu| Bound { gpu, driver }).collect();
            let finding = bound(&gpus);
            assert_eq!(finding.status, verdict, "{driver:?}");
            assert!(finding.why.contains(words), "{}", finding.why);
            assert_eq!(finding.remedy.is_some(), verdict == Verdict::Fail);
        }
        assert_eq!(bound(&[]).status, Verdict::Skip);
    }

    #[test]
    fn no_gpu_fails_unless_none_is_required() {
        let mut none = facts();
        assert_eq!(present(&none, false, false).status, Verdict::Pass);
        none.gpus.clear();
        assert_eq!(present(&none, false, false).status, Verdict::Fail);
        assert_eq!(present(&none, true, false).status, Verdict::Skip);
    }

    #[test]
    fn an_image_needs_no_gpu_of_its_own() {
        let mut none = facts();
        none.gpus.clear();
        let finding = present(&none, false, true);
        assert_eq!(finding.status, Verdict::Skip);
        assert!(finding.why.contains("an image"), "{}", finding.why);
        assert_eq!((finding.expected, finding.remedy), (None, None));
        // An image that is built on a machine with GPUs reports them.
        assert_eq!(present(&facts(), false, true).status, Verdict::Pass);
    }
}
