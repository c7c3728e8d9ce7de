//! Selects a driver for a machine, or explains why no driver fits.

pub use crate::attempt::Pick;
pub use crate::explain::NoDriver;
pub use crate::wish::Wish;

use crate::attempt::attempt;
use crate::explain::explain;
use crate::matrix::Matrix;

/// Selects a driver.
///
/// Candidates that no rule rejects are sorted by these criteria: no evidence against it; a branch that is not older than the one
/// recommended for a board; a supported long-term branch after its `default-from` date, then a supported production branch, then a
/// supported new feature branch, then a branch with unknown or no support; the newest branch; the newest version.
///
/// # Errors
/// If every candidate is rejected. The error contains the reasons and the nearest constraints that work.
pub fn pick(matrix: &Matrix, wish: &Wish) -> Result<Pick, Box<NoDriver>> {
    attempt(matrix, wish).map_err(|failed| Box::new(explain(matrix, wish, failed)))
}
