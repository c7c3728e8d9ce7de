//! Real machines, questions and properties against the built-in matrix.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod properties;
mod question;
mod resolve;

use std::sync::LazyLock;

use gpu_bootstrap::compat::gpu::GpuRef;
use gpu_bootstrap::compat::matrix::Matrix;

/// The built-in matrix, read once: properties ask it thousands of times.
fn matrix() -> &'static Matrix {
    static MATRIX: LazyLock<Matrix> = LazyLock::new(|| Matrix::builtin().unwrap());
    &MATRIX
}

fn gpu(id: &str) -> GpuRef {
    GpuRef {
        pci_id: id.parse().unwrap(),
        subsystem_id: None,
        chip_name: None,
    }
}
