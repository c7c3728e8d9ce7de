//! Health checks, one file for each family. They report problems that steps do not detect or cannot repair.
//!
//! Missing data is `Unknown` or `Skip`, not an error: a recorded tree may lack `os-release`, libraries, programs or device
//! nodes.
//!
//! Each file has its family in a constant, and [`ALL`] contains all families. Like a step, a family has `detect` and a pure
//! `decide`. If `examine` returns an error, it is the result of all findings of the family. To keep the other findings, map an
//! error with `error.not_queried()` to `Skip`, like `pci.driver-bound` in `pci.rs`.

mod bus;
pub mod causes;
mod cluster;
mod container;
mod containerd;
mod cuda;
mod dcgm;
mod driver;
mod fabric;
mod health;
mod imex;
mod kubelet;
mod libraries;
mod log;
mod messages;
mod mig;
mod module_build;
mod nodes;
mod operator;
mod owner;
mod packages;
mod pci;
mod pins;
mod program;
mod rdma;
mod runtime_files;
mod sharing;
mod virt;

pub use messages::{INSTALL_IT, NO_GPU};

use crate::check::Family;

/// All checks.
pub const ALL: &[Family] = &[
    container::FAMILY,
    virt::FAMILY,
    owner::FAMILY,
    pci::FAMILY,
    bus::FAMILY,
    packages::FAMILY,
    driver::FAMILY,
    cuda::FAMILY,
    libraries::FAMILY,
    nodes::FAMILY,
    mig::FAMILY,
    health::FAMILY,
    log::FAMILY,
    fabric::FAMILY,
    imex::FAMILY,
    rdma::FAMILY,
    dcgm::FAMILY,
    pins::FAMILY,
    runtime_files::FAMILY,
    containerd::FAMILY,
    kubelet::FAMILY,
    program::FAMILY,
    cluster::FAMILY,
];

#[cfg(test)]
mod tests {
    use super::ALL;
    use crate::model::id::Id;

    #[test]
    fn finding_ids_are_unique() {
        let mut names: Vec<Id> = ALL.iter().flat_map(|check| (check.ids)()).collect();
        names.sort_unstable();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
