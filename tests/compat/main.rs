//! The constraints that follow from the facts of a machine. The tests of the matrix itself are in `compat/tests`.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod constraints;
mod identity;

use std::sync::LazyLock;

use gpu_bootstrap::compat::matrix::Matrix;
use gpu_bootstrap::model::gpu::GpuIdentity;

/// The built-in matrix, parsed only once.
fn matrix() -> &'static Matrix {
    static MATRIX: LazyLock<Matrix> = LazyLock::new(|| Matrix::builtin().unwrap());
    &MATRIX
}

fn gpu(id: &str) -> GpuIdentity {
    GpuIdentity {
        pci_id: id.parse().unwrap(),
        subsystem_id: None,
        chip_name: None,
    }
}
