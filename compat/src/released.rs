//! Branches and CUDA versions that do not exist.

use std::collections::BTreeSet;

use crate::matrix::Matrix;
use crate::version::{Branch, CudaVersion};

impl Matrix {
    /// Returns the message if NVIDIA never released a branch for Linux. Windows drivers have more branches, such as 581.
    pub fn unreleased_branch(&self, branch: Branch) -> Option<String> {
        let from = self.branch_list.as_ref()?.complete_from;
        let older = self.branches.iter().map(|row| row.branch);
        let older = older.filter(|known| *known < branch).max()?;
        let newer = self.branches.iter().map(|row| row.branch);
        let newer = newer.filter(|known| *known > branch).min()?;
        (branch >= from && self.branch(branch).is_none()).then(|| {
            format!(
                "branch {branch} was never released for Linux; the nearest branches are {older} and {newer}"
            )
        })
    }

    /// Returns the message if a CUDA version was never released, although a newer one was. Updates (the third number) are not
    /// checked, because NVIDIA also releases them for older versions.
    pub fn unreleased_cuda(&self, cuda: CudaVersion) -> Option<String> {
        let minor = cuda.minor_version();
        let released = self.toolkits.iter().map(|row| row.version.minor_version());
        let released: BTreeSet<CudaVersion> = released.collect();
        if released.contains(&minor) {
            return None;
        }
        let newer = released.range(minor..).next()?;
        let older = released.range(..minor).next_back()?;
        Some(format!(
            "CUDA {minor} was never released; the nearest releases are {older} and {newer}"
        ))
    }
}

#[cfg(test)]
mod tests {
    use crate::Matrix;
    use crate::version::Branch;

    #[test]
    fn branches_between_known_ones_were_never_released() {
        let matrix = Matrix::builtin().unwrap();
        for (branch, nearest) in rows! {
            581, Some("580 and 590");
            600, Some("595 and 610");
            580, None;
            // The list of older branches is incomplete, and a newer branch may exist.
            396, None;
            640, None;
        } {
            let found = matrix.unreleased_branch(Branch(branch));
            assert_eq!(found.is_some(), nearest.is_some(), "{branch}: {found:?}");
            assert!(
                nearest.is_none_or(|names| found.unwrap().ends_with(names)),
                "{branch}"
            );
        }
    }

    #[test]
    fn cuda_versions_between_known_ones_were_never_released() {
        let matrix = Matrix::builtin().unwrap();
        for (cuda, nearest) in rows! {
            "12.10", Some("12.9 and 13.0");
            "12.7", Some("12.6 and 12.8");
            "12.4", None;
            "12.4.1", None;
            // Newer or older than all entries.
            "99.0", None;
            "5.5", None;
        } {
            let found = matrix.unreleased_cuda(cuda.parse().unwrap());
            assert_eq!(found.is_some(), nearest.is_some(), "{cuda}: {found:?}");
            assert!(
                nearest.is_none_or(|names| found.unwrap().ends_with(names)),
                "{cuda}"
            );
        }
    }
}
