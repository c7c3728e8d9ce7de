//! What a driver is wanted for: a machine and its constraints, in the terms of the matrix.

use std::collections::BTreeSet;

use crate::board::Board;
use crate::identity::{Flavour, GpuIdentity};
use crate::matrix::Matrix;
use crate::rules::Needs;
use crate::version::{Branch, CudaVersion, CudnnVersion, DriverVersion, KernelVersion};

/// A machine, and constraints on the driver. Every field is optional.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Wish {
    pub gpus: Vec<GpuIdentity>,
    /// The kernel that runs.
    pub kernel: Option<KernelVersion>,
    /// The kernel of the next boot, where it is another one.
    pub next_kernel: Option<KernelVersion>,
    /// As `uname -m` names it.
    pub arch: Option<String>,
    /// The cloud and the instance type.
    pub instance: Option<(String, String)>,
    /// Whether an NVSwitch is on PCI; `None` where that is not known.
    pub nvswitch: Option<bool>,
    /// Whether an InfiniBand device manages NVLink switches, as on boards whose switches are not on
    /// PCI; `None` where that is not known.
    pub nvlink_management: Option<bool>,
    /// This branch and no other.
    pub branch: Option<Branch>,
    /// This version and no other.
    pub version: Option<DriverVersion>,
    /// These kernel modules and no others.
    pub flavour: Option<Flavour>,
    /// The CUDA versions that containers bring.
    pub cuda: Vec<CudaVersion>,
    /// The cuDNN that containers bring.
    pub cudnn: Option<CudnnVersion>,
    /// The versions that the repository has; `None` where they are not known.
    pub candidates: Option<Vec<DriverVersion>>,
}

impl Wish {
    /// The machine in the terms of the rules: each kind of GPU and each kernel once.
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
            flavour: (self.instance.as_ref()).and_then(|instance| {
                matrix
                    .instance_flavours
                    .iter()
                    .find(|row| row.is_for(instance))
            }),
        }
    }
}
