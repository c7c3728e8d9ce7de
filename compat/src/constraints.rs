//! The machine and the constraints for the driver selection.

use std::collections::BTreeSet;

use crate::board::Board;
use crate::identity::{Flavor, GpuIdentity};
use crate::matrix::Matrix;
use crate::rules::Needs;
use crate::version::{Branch, CudaVersion, CudnnVersion, DriverVersion, KernelVersion};

/// A machine, and constraints on the driver. Every field is optional.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Constraints {
    pub gpus: Vec<GpuIdentity>,
    /// The running kernel.
    pub kernel: Option<KernelVersion>,
    /// The kernel of the next boot, if it differs.
    pub next_kernel: Option<KernelVersion>,
    /// The architecture, as printed by `uname -m`.
    pub arch: Option<String>,
    /// The cloud and the instance type.
    pub instance: Option<(String, String)>,
    /// Whether an NVSwitch is on the PCI bus. `None` if unknown.
    pub nvswitch: Option<bool>,
    /// Whether an InfiniBand device manages NVLink switches, on boards whose switches are not on the PCI bus. `None` if
    /// unknown.
    pub nvlink_management: Option<bool>,
    /// Only this branch.
    pub branch: Option<Branch>,
    /// Only this version.
    pub version: Option<DriverVersion>,
    /// Only these kernel modules.
    pub flavor: Option<Flavor>,
    /// The CUDA versions of containers.
    pub cuda: Vec<CudaVersion>,
    /// The cuDNN version of containers.
    pub cudnn: Option<CudnnVersion>,
    /// The versions in the repository. `None` if unknown.
    pub candidates: Option<Vec<DriverVersion>>,
}

impl Constraints {
    /// Returns the requirements that the rules evaluate, with each GPU model and kernel once.
    pub(super) fn needs<'m>(&self, matrix: &'m Matrix) -> Needs<'m> {
        let kinds: BTreeSet<&GpuIdentity> = self.gpus.iter().collect();
        let mut boards: Vec<Board<'m>> = kinds.into_iter().map(|gpu| matrix.board(gpu)).collect();
        boards.dedup_by(|a, b| a.label == b.label);
        let kernels: BTreeSet<&KernelVersion> =
            self.kernel.iter().chain(self.next_kernel.iter()).collect();
        Needs {
            boards,
            kernels: kernels.into_iter().cloned().collect(),
            arch: self.arch.clone(),
            cuda: self.cuda.clone(),
            cudnn: self.cudnn,
            flavor: (self.instance.as_ref()).and_then(|instance| {
                matrix
                    .instance_flavors
                    .iter()
                    .find(|row| row.is_for(instance))
            }),
        }
    }
}
