//! The branches that support a GPU, with their CUDA versions.

use crate::answer::BranchAnswer;
use crate::identity::{Flavor, SupportedFlavors};
use crate::matrix::{BranchRow, Matrix};
use crate::rule_result::{Candidate, Evaluation};
use crate::rules::{self, Needs};
use crate::version::CudaVersion;

/// Returns the branches whose newest version supports all boards for certain, newest first.
pub(super) fn driving(matrix: &Matrix, needs: &Needs<'_>) -> Vec<BranchAnswer> {
    if needs.boards.is_empty() {
        return Vec::new();
    }
    let rows = matrix.branches.iter().rev();
    rows.filter_map(|row| answer(matrix, needs, row)).collect()
}

fn answer(matrix: &Matrix, needs: &Needs<'_>, row: &BranchRow) -> Option<BranchAnswer> {
    let version = &row.newest_version;
    let drives = |flavor| {
        let version = version.clone();
        let rule_results = rules::evaluate(matrix, needs, &Candidate { version, flavor });
        rule_results
            .iter()
            .all(|rule_result| rule_result.evaluation < Evaluation::Unknown)
    };
    let module_flavor = match (drives(Flavor::Open), drives(Flavor::Proprietary)) {
        (true, true) => SupportedFlavors::Either,
        (true, false) => SupportedFlavors::Open,
        (false, true) => SupportedFlavors::Proprietary,
        (false, false) => return None,
    };
    // If the GPU may have several compute capabilities, select the CUDA versions with code for all of them.
    let capabilities = || needs.boards.iter().flat_map(|board| &board.capabilities);
    let first = capabilities().map(|row| row.first_cuda).max();
    let last = capabilities().filter_map(|row| row.last_cuda).min();
    let has_code = |cuda: &CudaVersion| {
        first.is_none_or(|first| first.minor_version() <= *cuda)
            && last.is_none_or(|last| *cuda <= last.minor_version())
    };
    let released = matrix.toolkits.iter().map(|toolkit| toolkit.version);
    let with_code = released
        .map(CudaVersion::minor_version)
        .filter(|cuda| has_code(cuda));
    let (whole, limited): (Vec<CudaVersion>, Vec<CudaVersion>) =
        with_code.partition(|cuda| *cuda <= row.max_cuda.minor_version());
    let runs = |cuda: &CudaVersion| {
        let (needed, _) = rules::cuda_minimum(matrix, *cuda);
        needed.is_some_and(|needed| version >= needed)
    };
    Some(BranchAnswer {
        branch: row.branch,
        kind: row.kind,
        newest: version.clone(),
        support: row.support,
        end_of_life: row.end_of_life.clone(),
        cuda_min: whole.iter().min().copied(),
        cuda_max: whole.iter().max().copied(),
        cuda_limited_max: limited.into_iter().filter(runs).max(),
        module_flavor,
    })
}
