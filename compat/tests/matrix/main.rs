//! Tests of the built-in matrix: its rows, selected drivers, questions and properties.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

/// The rows of a test table, one line each, as in `src/lib.rs`.
macro_rules! rows {
    ($($($cell:expr),+);+ $(;)?) => { [$(($($cell),+)),+] };
}

mod nearest;
mod pick;
mod properties;
mod question;
mod released;
mod sound;

use std::sync::LazyLock;

use gpu_compat::identity::GpuIdentity;
use gpu_compat::matrix::Matrix;

/// The built-in matrix, parsed only once, because the property tests query it thousands of times.
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
