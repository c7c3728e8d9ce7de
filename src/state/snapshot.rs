//! The complete machine state, for the output of `gpu-bootstrap facts`.

use std::collections::BTreeMap;

use super::{FoundDriver, FoundRuntime, KubeletRuntime, State};
use crate::{facts::Unknown, host::Nvml, model::pci::PciAddress};

/// The state of a machine. A part that could not be read is `None` or missing, and is listed in [`Snapshot::unknown`].
#[derive(Debug, Clone, PartialEq)]
pub struct Snapshot<'s> {
    /// The kernel driver bound to each GPU that has one.
    pub bound_drivers: BTreeMap<PciAddress, &'s str>,
    /// The NVIDIA driver as found.
    pub driver: &'s FoundDriver,
    /// The NVML view, or `None` if NVML was not queried (`--root`, `--lspci`).
    pub nvml: Option<&'s Nvml>,
    /// Container runtimes as found.
    pub runtimes: &'s [FoundRuntime],
    /// The container runtime of the kubelet, if the machine has a kubelet.
    pub kubelet: Option<KubeletRuntime>,
    /// The parts that could not be read, with the reasons.
    pub unknown: Vec<Unknown>,
}

impl State {
    /// Reads all parts of the `facts` document that have not been read yet.
    pub async fn snapshot(&self) -> Snapshot<'_> {
        let mut unknown = Vec::new();
        let mut bound_drivers = BTreeMap::new();
        for gpu in &self.facts.gpus {
            let address = gpu.pci_address;
            match self.bound_driver(address) {
                Ok(driver) => bound_drivers.extend(driver.map(|driver| (address, driver))),
                Err(error) => unknown.push(Unknown {
                    fact: format!("gpus[{address}].bound-driver"),
                    why: error.reason(),
                }),
            }
        }
        let packages = self.installed().await;
        let driver = self.noted_driver().await;
        let runtimes = self.runtimes().await;
        for notes in [&packages.unknown, &driver.unknown, &runtimes.unknown] {
            unknown.extend(notes.iter().cloned());
        }
        let kubelet = self.kubelet_runtime().unwrap_or_else(|error| {
            unknown.push(Unknown {
                fact: "kubelet".to_owned(),
                why: error.reason(),
            });
            None
        });
        let nvml = if self.scope.executes {
            Some(self.nvml().await)
        } else {
            unknown.push(Unknown {
                fact: "nvml".to_owned(),
                why: "no program is run with `--root` or `--lspci`, so NVML was not queried"
                    .to_owned(),
            });
            None
        };
        Snapshot {
            bound_drivers,
            driver: &driver.value,
            nvml,
            runtimes: &runtimes.value,
            kubelet,
            unknown,
        }
    }
}
