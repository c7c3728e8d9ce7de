//! Selects a driver for a machine, or explains why no driver fits.

pub use crate::attempt::Pick;
pub use crate::constraints::Constraints;
pub use crate::explain::NoDriver;

use crate::attempt::attempt;
use crate::explain::explain;
use crate::matrix::Matrix;

/// Selects a driver.
///
/// Candidates that no rule rejects are sorted by these criteria:
///
/// 1. No evidence against the candidate.
/// 2. The branch is not older than the branch recommended for a board.
/// 3. The kind of the branch: supported long-term (after its `default-from` date), supported production, other supported
///    branches, unknown support, end-of-life. If the architecture of a GPU is unknown and assumed to be new,
///    production branches rank as high as long-term branches.
/// 4. The newest branch, then the least evidence against the candidate, the newest version, and the preferred module flavor.
///
/// # Errors
/// If every candidate is rejected. The error contains the reasons and the nearest constraints that work.
pub fn pick(matrix: &Matrix, constraints: &Constraints) -> Result<Pick, Box<NoDriver>> {
    attempt(matrix, constraints).map_err(|failed| Box::new(explain(matrix, constraints, failed)))
}
