//! Compares the GPU count of the instance type with the PCI bus. A cloud may hand out an instance with a broken GPU
//! that is no longer on the bus.

use super::messages;
use crate::{
    compat::matrix::{Confidence, InstanceDriver, Matrix},
    facts::Facts,
    model::text::counted,
};

/// Remedy for an instance with missing GPUs.
pub const REMEDY: &str = "stop the instance and start it again, which moves it to other hardware, or replace \
     it; a reboot stays on the same hardware";

/// Expected and actual GPU count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpectedGpus<'f> {
    pub instance_type: &'f str,
    /// GPU count of the instance type.
    pub promised: usize,
    /// GPUs on the bus, including GPUs reserved for virtual machines.
    pub found: usize,
}

impl<'f> ExpectedGpus<'f> {
    /// Looks up the instance type of the machine.
    ///
    /// # Errors
    /// If the counts cannot be compared: the instance type is unknown, the PCI bus is unreadable, or the matrix has no
    /// confirmed number of whole GPUs for the type.
    pub fn of(facts: &'f Facts, matrix: &Matrix) -> Result<Self, String> {
        let (Some(provider), Some(name)) = (&facts.cloud.provider, &facts.cloud.instance_type)
        else {
            return Err("the instance type is unknown".to_owned());
        };
        if let Some(unread) = facts.unknown.iter().find(|one| one.fact == "gpus") {
            return Err(format!("failed to read the PCI bus: {}", unread.why));
        }
        let row = matrix.instance_type(provider, name).filter(|row| {
            // The number of PCI devices of fractional GPUs and vGPUs is not known reliably.
            row.gpus > 0
                && row.driver == InstanceDriver::DataCenter
                && row.confidence == Confidence::Verified
        });
        let Some(row) = row.filter(|_| !facts.gpus.iter().any(|gpu| gpu.vgpu)) else {
            return Err(format!(
                "the matrix has no confirmed number of whole GPUs for {name}"
            ));
        };
        Ok(Self {
            instance_type: name,
            promised: row.gpus as usize,
            found: facts.gpus.len(),
        })
    }

    /// Returns the failure if GPUs are missing. Additional GPUs are not a failure.
    pub fn broken(&self) -> Option<String> {
        (self.found < self.promised).then(|| {
            format!(
                "{} has {}, but only {} on the PCI bus",
                self.instance_type,
                counted(self.promised, "GPU"),
                messages::gpus(self.found)
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::ExpectedGpus;
    use crate::{
        facts::{Cloud, Facts, Unknown},
        steps::fixtures::{facts, matrix},
    };

    /// A machine with this many GPUs.
    fn machine(provider: &str, name: &str, gpus: usize) -> Facts {
        let facts = facts();
        Facts {
            cloud: Cloud {
                provider: Some(provider.into()),
                instance_type: Some(name.into()),
                ..Cloud::default()
            },
            gpus: facts.gpus.iter().cycle().take(gpus).cloned().collect(),
            ..facts
        }
    }

    #[test]
    fn missing_gpus_are_reported_with_both_counts() {
        for (provider, name, gpus, broken) in rows! {
            "aws", "p5.48xlarge", 8, None;
            "aws", "p5.48xlarge", 7,
                Some("p5.48xlarge has 8 GPUs, but only 7 GPUs are on the PCI bus");
            "aws", "g4dn.12xlarge", 1,
                Some("g4dn.12xlarge has 4 GPUs, but only 1 GPU is on the PCI bus");
            "gcp", "a3-highgpu-8g", 8, None;
            // The Azure metadata service does not preserve case.
            "azure", "standard_nd96isr_h100_v5", 7,
                Some("standard_nd96isr_h100_v5 has 8 GPUs, but only 7 GPUs are on the PCI bus");
            "aws", "g6.xlarge", 2, None;
        } {
            let facts = machine(provider, name, gpus);
            let expected_gpus = ExpectedGpus::of(&facts, &matrix()).expect("a promise");
            assert_eq!(expected_gpus.broken().as_deref(), broken, "{name}");
        }
    }

    #[test]
    fn unconfirmed_counts_are_not_compared() {
        for (provider, name, why) in [
            // A fractional GPU, a whole GPU as vGPU, two undocumented counts, an unknown type.
            ("aws", "g6f.xlarge", "number of whole GPUs for g6f.xlarge"),
            (
                "azure",
                "Standard_NV72ads_A10_v5",
                "no confirmed number of whole GPUs",
            ),
            (
                "aws",
                "p6e-gb200.36xlarge",
                "no confirmed number of whole GPUs",
            ),
            (
                "aws",
                "p6e-gb300.36xlarge",
                "no confirmed number of whole GPUs",
            ),
            ("aws", "p99.xlarge", "no confirmed number of whole GPUs"),
        ] {
            let facts = machine(provider, name, 1);
            let unknown = ExpectedGpus::of(&facts, &matrix()).expect_err("nothing to compare");
            assert!(unknown.contains(why), "{unknown}");
        }
        let none = facts();
        let unknown = ExpectedGpus::of(&none, &matrix()).expect_err("no cloud");
        assert_eq!(unknown, "the instance type is unknown");
        let mut slice = machine("aws", "p5.48xlarge", 1);
        slice.gpus[0].vgpu = true;
        assert!(ExpectedGpus::of(&slice, &matrix()).is_err());
        let mut unread = machine("aws", "p5.48xlarge", 0);
        unread.unknown.push(Unknown {
            fact: "gpus".into(),
            why: "permission denied".into(),
        });
        assert!(ExpectedGpus::of(&unread, &matrix()).is_err());
    }
}
