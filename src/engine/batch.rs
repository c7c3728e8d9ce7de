//! Decides which package changes are merged into one transaction, and when it runs. A pure function
//! of the step states.
//!
//! A step whose next change refreshes repositories or installs packages waits for the batch of this
//! kind. The batch starts when no other step with the package lock can still join it. All waiting
//! steps then share one refresh or one transaction. Packages that a long step depends on are
//! installed in an earlier transaction, so that the long step runs in parallel with the next
//! transaction. Packages from which a module is compiled are also installed first, so that the
//! module is compiled in parallel with the next transaction. They are installed together with the
//! packages of all steps that need the modules lock, such as kernel headers, because the build holds
//! this lock.

use std::collections::BTreeSet;

use super::{graph::Graph, job::Job};
use crate::change::{
    Change, Lock,
    packages::{Merged, merge},
};

/// The kind of package work that a step waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Batch {
    /// The package lists are refreshed.
    Refresh,
    /// Packages are installed.
    Install,
}

/// Returns the batch for which a step waits with this change, or `None` if it does not wait.
pub(super) const fn batch(change: &Change) -> Option<Batch> {
    match change {
        Change::RefreshRepositories => Some(Batch::Refresh),
        Change::InstallPackages { .. } => Some(Batch::Install),
        _ => None,
    }
}

/// Package work that can start now: one change for several steps.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct PackageWork {
    /// The steps, by index.
    pub(super) steps: Vec<usize>,
    pub(super) change: Change,
}

/// Returns the package work that can start now.
pub(super) fn due(jobs: &[Job], graph: &Graph) -> Option<PackageWork> {
    let waiting: Vec<(usize, Batch)> = jobs
        .iter()
        .enumerate()
        .filter(|(_, job)| job.ended.is_none() && job.decided && !job.busy)
        .filter_map(|(at, job)| Some((at, batch(job.pending().first()?)?)))
        .collect();
    if waiting.is_empty() {
        return None;
    }
    // Steps behind a build would delay the transaction until its end.
    let builds = (jobs.iter().enumerate())
        .filter(|(_, job)| job.ended.is_none() && only_compiles(job))
        .map(|(at, _)| at);
    let behind: BTreeSet<usize> = (waiting.iter().map(|(at, _)| *at))
        .chain(builds)
        .flat_map(|at| graph.below[at].iter().copied())
        .collect();
    let may_come = jobs.iter().enumerate().any(|(at, job)| {
        job.ended.is_none()
            && job.locks.contains(&Lock::Packages)
            && !only_compiles(job)
            && !waiting.iter().any(|(waiting, _)| *waiting == at)
            && !behind.contains(&at)
    });
    if may_come {
        return None;
    }
    let at_batch = |wanted: Batch| {
        waiting
            .iter()
            .filter(move |(_, batch)| *batch == wanted)
            .map(|(at, _)| *at)
    };
    let refresh: Vec<usize> = at_batch(Batch::Refresh).collect();
    if !refresh.is_empty() {
        return Some(PackageWork {
            steps: refresh,
            change: Change::RefreshRepositories,
        });
    }
    let will_compile = |at: usize| jobs[at].pending().iter().any(compiles);
    if at_batch(Batch::Install).any(will_compile) {
        let goes_first = |at: &usize| will_compile(*at) || jobs[*at].locks.contains(&Lock::Modules);
        return Some(union(jobs, at_batch(Batch::Install).filter(goes_first)));
    }
    let for_long_ones: Vec<usize> = at_batch(Batch::Install)
        .filter(|at| {
            let mut below = graph.below[*at].iter();
            below.any(|below| jobs[*below].long && jobs[*below].will_change())
        })
        .collect();
    if for_long_ones.is_empty() {
        return Some(union(jobs, at_batch(Batch::Install)));
    }
    Some(union(jobs, for_long_ones.into_iter()))
}

/// Whether a change compiles a module.
const fn compiles(change: &Change) -> bool {
    matches!(change, Change::BuildModule { .. })
}

/// Whether a step has finished its package work and only compiles modules.
pub(super) fn only_compiles(job: &Job) -> bool {
    let left = job.pending();
    job.decided && !left.is_empty() && left.iter().all(compiles)
}

/// Merges the packages of these steps into one transaction. A step that conflicts with an earlier one waits
/// for the next transaction.
fn union(jobs: &[Job], waiting: impl Iterator<Item = usize>) -> PackageWork {
    let Merged {
        steps,
        packages,
        removing,
    } = merge(waiting.filter_map(|at| Some((at, jobs[at].pending().first()?))));
    let later = (steps.iter()).any(|at| jobs[*at].pending().iter().any(compiles));
    PackageWork {
        steps,
        change: Change::InstallPackages {
            packages,
            removing,
            later,
        },
    }
}
