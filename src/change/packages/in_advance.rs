//! Downloads the packages of the following transaction while the current one unpacks and configures its packages, because the
//! network is idle at that time.
//!
//! The following transaction is simulated and approved first. It repeats both before it is performed, downloads what is still
//! missing, and reports its own errors. Therefore an error here is only logged.
//!
//! A download in advance takes no lock ([`Transactions::download_in_advance`]). It starts after the package manager has changed
//! the first package of the current transaction, because from then on the package manager holds the locks of the database and
//! of the downloaded packages, so no other program downloads the same files. It ends together with the current transaction: an
//! incomplete download is stopped, and the following transaction continues it.
//!
//! [`Transactions::download_in_advance`]: crate::tools::packages::Transactions::download_in_advance

use std::{
    pin::{Pin, pin},
    sync::{Mutex, PoisonError},
};

use futures_util::future::{Either, Fuse, FusedFuture as _, select};
use tokio::{sync::Notify, task::yield_now};

use super::{names, run::PERCENT};
use crate::{
    change::{Applier, Change, ChangeError, Sink},
    config::desired::PackageSpec,
    tools::packages::TransactionRequest,
};

/// The action of a download in advance, for errors.
const WHAT: &str = "download the packages of the following transaction";

/// The installation after the current one, if it is known.
#[derive(Default)]
pub(in crate::change) struct Following(Mutex<Option<Change>>);

impl Following {
    pub(in crate::change) fn set(&self, change: Option<Change>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = change;
    }

    fn get(&self) -> Option<Change> {
        (self.0.lock().unwrap_or_else(PoisonError::into_inner)).clone()
    }
}

/// Forwards everything, and notifies when the package manager has changed the first package.
pub(super) struct Observed<'s> {
    pub(super) sink: &'s dyn Sink,
    pub(super) started: &'s Notify,
}

impl Sink for Observed<'_> {
    fn line(&self, line: &str) {
        self.sink.line(line);
    }

    fn progress(&self, current: u64, total: Option<u64>, unit: &str) {
        // Downloads have other units.
        if unit == PERCENT {
            self.started.notify_one();
        }
        self.sink.progress(current, total, unit);
    }

    fn retry(&self, message: &str, in_seconds: f64) {
        self.sink.retry(message, in_seconds);
    }

    fn note(&self, message: &str) {
        self.sink.note(message);
    }
}

/// Waits for `work`, and meanwhile also runs `second`, which may be incomplete at the end. It is polled at least once, even if
/// `work` never waits.
pub(super) async fn together_with<T>(
    work: impl Future<Output = T>,
    second: Pin<&mut Fuse<impl Future<Output = ()>>>,
) -> T {
    if second.is_terminated() {
        return work.await;
    }
    let work = pin!(async {
        let done = work.await;
        yield_now().await;
        done
    });
    match select(work, second).await {
        Either::Left((done, _)) => done,
        Either::Right(((), work)) => work.await,
    }
}

impl Applier {
    /// The installation whose packages can be downloaded while the current transaction is performed.
    pub(super) fn following_installation(&self) -> Option<Change> {
        // If simulations take locks, they would disturb the current transaction.
        (self.backend.simulates_side_by_side())
            .then(|| self.following.get())
            .flatten()
    }

    /// Simulates and approves the following installation, and downloads its packages after `started`. `current` are the
    /// packages of the current transaction. A stop request ends the download.
    pub(super) async fn download_in_advance(
        &self,
        following: Change,
        current: &[String],
        started: &Notify,
    ) {
        let Change::InstallPackages {
            packages, removing, ..
        } = following
        else {
            return;
        };
        let download = self.download_following((&packages, &removing), current, started);
        let ended = self.unless_stopped(WHAT, download).await;
        if let Err(error) = ended.flatten() {
            tracing::debug!(%error, "the following transaction downloads its packages itself");
        }
    }

    async fn download_following(
        &self,
        (packages, removing): (&[PackageSpec], &[String]),
        current: &[String],
        started: &Notify,
    ) -> Result<(), ChangeError> {
        let before = self.caching();
        let resolved = before.resolve_locked(packages).await?;
        let Some(work) = before.work_with_sizes(&resolved, removing).await? else {
            return Ok(());
        };
        before.guard(&work.actions, packages).await?;
        before
            .approve(&work.actions, &names(packages), removing)
            .await?;
        // The current transaction must not run out of space because of this download.
        let both: Vec<String> = current.iter().chain(&work.packages).cloned().collect();
        let both = TransactionRequest::Install {
            packages: &both,
            removing: &[],
        };
        before.check_space(&both, None).await?;
        let settings = self.settings();
        let Some(cmd) = (self.backend).download_in_advance(&settings, &work.request()) else {
            return Ok(());
        };
        started.notified().await;
        // The output would be mixed with the output of the current transaction.
        let ran = self.host.exec.run(&cmd, &mut |_, _| {}).await;
        ran.and_then(|output| output.success(&cmd))
            .map_err(|source| ChangeError::tool(WHAT, self.short(source, &cmd)))?;
        tracing::info!("the packages of the following transaction are downloaded");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::{
        future::{pending, ready},
        sync::atomic::{AtomicBool, Ordering},
    };

    use futures_util::future::FutureExt as _;

    use super::*;

    struct Quiet;

    impl Sink for Quiet {
        fn line(&self, _: &str) {}
        fn progress(&self, _: u64, _: Option<u64>, _: &str) {}
        fn retry(&self, _: &str, _: f64) {}
    }

    #[tokio::test]
    async fn second_future_is_polled_and_may_be_incomplete() {
        let polled = AtomicBool::new(false);
        let second = async {
            polled.store(true, Ordering::Relaxed);
            pending::<()>().await;
        };
        let mut second = pin!(second.fuse());
        assert_eq!(together_with(ready(1), second.as_mut()).await, 1);
        assert!(polled.load(Ordering::Relaxed));
        let mut second = pin!(ready(()).fuse());
        assert_eq!(together_with(ready(2), second.as_mut()).await, 2);
        assert_eq!(together_with(ready(3), second.as_mut()).await, 3);
    }

    #[tokio::test]
    async fn download_starts_after_the_first_change_of_a_package() {
        let started = Notify::new();
        let observed = Observed {
            sink: &Quiet,
            started: &started,
        };
        for (unit, expected) in rows! {
            "packages", false;
            "bytes", false;
            PERCENT, true;
        } {
            observed.progress(1, Some(2), unit);
            let is_started = started.notified().now_or_never().is_some();
            assert_eq!(is_started, expected, "{unit}");
        }
    }
}
