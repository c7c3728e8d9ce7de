//! How many GPUs the cloud sells with an instance type, and how many are on the bus. A cloud may give an
//! instance to its customer while one of its GPUs is broken and off the bus.

use super::words;
use crate::{
    compat::matrix::{Confidence, InstanceDriver, Matrix},
    facts::Facts,
};

/// What to do about an instance with fewer GPUs.
pub const REMEDY: &str = "stop the instance and start it again, which moves it to other hardware, or replace \
     it; a reboot stays on the same hardware";

/// What an instance type promises, and what the bus has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Promise<'f> {
    pub instance_type: &'f str,
    /// The GPUs that the cloud sells with it.
    pub promised: usize,
    /// The GPUs on the bus, with those that are reserved for virtual machines.
    pub found: usize,
}

impl<'f> Promise<'f> {
    /// Looks up the instance type of the machine.
    ///
    /// # Errors
    /// Why there is nothing to compare: the type is not known, promises no whole GPUs, or its number is not
    /// certain.
    pub fn of(facts: &'f Facts, matrix: &Matrix) -> Result<Self, String> {
        let (Some(provider), Some(name)) = (&facts.cloud.provider, &facts.cloud.instance_type)
        else {
            return Err("no instance type is known".to_owned());
        };
        if let Some(unread) = facts.unknown.iter().find(|one| one.fact == "gpus") {
            return Err(format!("the PCI bus cannot be read: {}", unread.why));
        }
        let row = matrix.instance_type(provider, name).filter(|row| {
            // A part of a GPU, or a vGPU, is counted by no rule that is known for sure.
            row.gpus > 0
                && row.driver == InstanceDriver::DataCenter
                && row.confidence == Confidence::Verified
        });
        let Some(row) = row.filter(|_| !facts.gpus.iter().any(|gpu| gpu.vgpu)) else {
            return Err(format!(
                "the matrix does not know for sure how many whole GPUs {name} has"
            ));
        };
        Ok(Self {
            instance_type: name,
            promised: row.gpus as usize,
            found: facts.gpus.len(),
        })
    }

    /// Why it is broken: there are fewer GPUs. More are no fault.
    #[must_use]
    pub fn broken(&self) -> Option<String> {
        (self.found < self.promised).then(|| {
            format!(
                "{} has {}, but only {} on the PCI bus",
                self.instance_type,
                words::count(self.promised),
                words::gpus(self.found)
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Promise;
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
    fn fewer_gpus_than_promised_are_named_with_both_counts() {
        for (provider, name, gpus, broken) in rows! {
            "aws", "p5.48xlarge", 8, None;
            "aws", "p5.48xlarge", 7,
                Some("p5.48xlarge has 8 GPUs, but only 7 GPUs are on the PCI bus");
            "aws", "g4dn.12xlarge", 1,
                Some("g4dn.12xlarge has 4 GPUs, but only 1 GPU is on the PCI bus");
            "gcp", "a3-highgpu-8g", 8, None;
            // Azure's service does not keep the case.
            "azure", "standard_nd96isr_h100_v5", 7,
                Some("standard_nd96isr_h100_v5 has 8 GPUs, but only 7 GPUs are on the PCI bus");
            "aws", "g6.xlarge", 2, None;
        } {
            let facts = machine(provider, name, gpus);
            let promise = Promise::of(&facts, &matrix()).expect("a promise");
            assert_eq!(promise.broken().as_deref(), broken, "{name}");
        }
    }

    #[test]
    fn what_is_not_certain_is_not_compared() {
        for (provider, name, why) in [
            // A part of a GPU, a whole GPU as vGPU, a number that no document has, an unknown type.
            ("aws", "g6f.xlarge", "how many whole GPUs g6f.xlarge has"),
            ("azure", "Standard_NV72ads_A10_v5", "for sure"),
            ("aws", "p6e-gb200.36xlarge", "for sure"),
            ("aws", "p6e-gb300.36xlarge", "for sure"),
            ("aws", "p99.xlarge", "for sure"),
        ] {
            let facts = machine(provider, name, 1);
            let unknown = Promise::of(&facts, &matrix()).expect_err("nothing to compare");
            assert!(unknown.contains(why), "{unknown}");
        }
        let none = facts();
        let unknown = Promise::of(&none, &matrix()).expect_err("no cloud");
        assert_eq!(unknown, "no instance type is known");
        let mut slice = machine("aws", "p5.48xlarge", 1);
        slice.gpus[0].vgpu = true;
        assert!(Promise::of(&slice, &matrix()).is_err());
        let mut unread = machine("aws", "p5.48xlarge", 0);
        unread.unknown.push(Unknown {
            fact: "gpus".into(),
            why: "permission denied".into(),
        });
        assert!(Promise::of(&unread, &matrix()).is_err());
    }
}
