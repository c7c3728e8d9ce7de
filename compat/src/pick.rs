//! Picks a driver for a machine, or says why none fits and what would.

pub use crate::attempt::Pick;
pub use crate::explain::NoDriver;
pub use crate::wish::Wish;

use crate::attempt::attempt;
use crate::explain::explain;
use crate::matrix::Matrix;

/// Picks a driver.
///
/// Among what no rule refuses, these go first, in this order: no evidence against it; a branch that is not older than the
/// one recommended for a board; a supported long-term branch that has had its time (`default-from`), then a supported
/// production branch, then a supported new feature branch, then what is known less well or out of support; the newest
/// branch; the newest version.
///
/// # Errors
/// When every offer is refused; the error names the rules and what would work.
pub fn pick(matrix: &Matrix, wish: &Wish) -> Result<Pick, Box<NoDriver>> {
    attempt(matrix, wish).map_err(|failed| Box::new(explain(matrix, wish, failed)))
}
