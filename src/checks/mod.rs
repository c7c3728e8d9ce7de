//! Health checks, one file for each family. They report problems that steps do not detect or cannot repair.
//!
//! Missing data is `Unknown` or `Skip`, not an error: a recorded tree may lack `os-release`, libraries, programs or device
//! nodes.
//!
//! Like a step, a family has `detect` and a pure `decide`. If `examine` returns an error, it is the result of all findings of
//! the family. To keep the other findings, map an error with `error.not_queried()` to `Skip`, like `pci.driver-bound` in
//! `pci.rs`.

mod bus;
pub mod causes;
mod cluster;
mod container;
mod containerd;
mod cuda;
mod driver;
mod fabric;
mod health;
mod kubelet;
mod libraries;
mod log;
mod messages;
mod nodes;
mod operator;
mod owner;
mod packages;
mod pci;
mod pins;
mod rdma;
mod runtime_files;
mod virt;

pub use messages::{INSTALL_IT, NO_GPU};

use crate::check::Check;

/// All checks.
#[must_use]
pub fn all() -> Vec<Box<dyn Check>> {
    vec![
        Box::new(container::ContainerCheck),
        Box::new(virt::VirtCheck),
        Box::new(owner::OwnerCheck),
        Box::new(pci::PciCheck),
        Box::new(bus::BusCheck),
        Box::new(packages::PackagesCheck),
        Box::new(driver::DriverCheck),
        Box::new(cuda::CudaCheck),
        Box::new(libraries::LibrariesCheck),
        Box::new(nodes::NodesCheck),
        Box::new(health::HealthCheck),
        Box::new(log::LogCheck),
        Box::new(fabric::FabricCheck),
        Box::new(rdma::RdmaCheck),
        Box::new(pins::PinsCheck),
        Box::new(runtime_files::RuntimeFilesCheck),
        Box::new(containerd::ContainerdCheck),
        Box::new(kubelet::KubeletCheck),
        Box::new(cluster::ClusterCheck),
    ]
}

#[cfg(test)]
mod tests {
    use super::all;

    #[test]
    fn finding_ids_are_unique() {
        let checks = all();
        let mut names: Vec<&str> = checks
            .iter()
            .flat_map(|check| check.ids())
            .map(|id| id.as_str())
            .collect();
        names.sort_unstable();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
