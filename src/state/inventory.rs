//! The properties that should be equal on nodes of the same type: versions and devices. `check` publishes them in its JSON
//! document and in a metric, and `report` compares them.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{State, runtimes::upstream};
use crate::{facts::SecureBoot, tools::toolkit};

/// Versions and devices of a node. A value that does not exist or could not be read is `None`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Inventory {
    /// The name of the node in its cluster, or its host name.
    pub name: Option<String>,
    /// The version of the loaded driver, or if none is loaded, of the installed one.
    pub driver: Option<String>,
    /// The flavor of the loaded module: `open` or `proprietary`.
    pub module_flavor: Option<String>,
    /// The version of the NVIDIA Container Toolkit.
    pub toolkit: Option<String>,
    /// The version of each installed container runtime.
    pub runtimes: BTreeMap<String, Option<String>>,
    /// The number of GPUs of each model.
    pub gpus: BTreeMap<String, usize>,
    /// NVSwitches on the PCI bus.
    pub nvswitches: usize,
    pub secure_boot: SecureBoot,
    /// The kernel of the next boot.
    pub next_kernel: Option<String>,
    /// The lock file with which the node was compared. [`State`] does not know it, so `check` adds it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lock: Option<LockStatus>,
}

/// The result of a comparison with a lock file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LockStatus {
    /// The SHA-256 of the lock file.
    pub digest: String,
    /// The number of packages that differ from it.
    pub drift: usize,
}

impl LockStatus {
    /// Returns the beginning of the digest.
    pub fn short_digest(&self) -> &str {
        self.digest.get(..12).unwrap_or(&self.digest)
    }
}

impl Inventory {
    /// The GPU models, without their number.
    pub fn models(&self) -> Option<String> {
        let models: Vec<&str> = self.gpus.keys().map(String::as_str).collect();
        (!models.is_empty()).then(|| models.join(", "))
    }
}

impl State {
    /// Reads versions and devices. The findings of `check` contain the reason for a value that could not be read.
    pub async fn inventory(&self) -> Inventory {
        let driver = &self.noted_driver().await.value;
        let versions = [
            &driver.loaded_version,
            &driver.package_version,
            &driver.library_version,
            &driver.module_version,
        ];
        let toolkit = self.packages_like(&[toolkit::PACKAGES]).await;
        let toolkit = toolkit.ok().and_then(|found| found.into_iter().next());
        let runtimes = self.found_runtimes().await.iter();
        let facts = self.facts();
        let mut gpus = BTreeMap::new();
        for gpu in &facts.gpus {
            let model = gpu.name.clone().unwrap_or_else(|| gpu.pci_id.to_string());
            *gpus.entry(model).or_default() += 1;
        }
        Inventory {
            name: (self.host_name().ok().flatten()).map(|name| name.to_string()),
            driver: (versions.into_iter().flatten().next()).map(ToString::to_string),
            module_flavor: (self.loaded_flavor().ok().flatten()).map(|flavor| flavor.to_string()),
            toolkit: toolkit.map(|(_, version)| upstream(&version).to_owned()),
            runtimes: runtimes
                .map(|runtime| (runtime.name.clone(), runtime.version.clone()))
                .collect(),
            gpus,
            nvswitches: facts.nvswitches.len(),
            secure_boot: facts.secure_boot,
            next_kernel: (facts.kernel.next_boot.as_ref()).map(ToString::to_string),
            lock: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{
        host::fake,
        steps::fixtures::{facts, state},
    };

    #[tokio::test]
    async fn unreadable_values_are_none() {
        let (host, fakes) = fake::host();
        fakes.files.put("/proc/sys/kernel/hostname", "GPU-1\n");
        fakes.files.put("/sys/module/nvidia/version", "580.95.05\n");
        let inventory = state(&host, facts()).inventory().await;
        assert_eq!(inventory.name.as_deref(), Some("gpu-1"));
        assert_eq!(inventory.driver.as_deref(), Some("580.95.05"));
        assert_eq!(inventory.toolkit, None);
        assert!(inventory.runtimes.is_empty());
        assert_eq!(inventory.gpus.values().sum::<usize>(), facts().gpus.len());
    }
}
