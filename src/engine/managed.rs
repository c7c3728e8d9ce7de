//! Provides the steps with information from the journal about changes made by gpu-bootstrap.

use std::collections::BTreeSet;

use super::Session;
use crate::{
    change::{Change, Undo},
    config::desired::{Daemon, RuntimeKind},
    host::Host,
    journal::{AppliedChange, Journal, fold},
    model::id::StepId,
    state::Ours,
    steps::package_step,
};

/// Returns the packages that applied changes have installed, the holds that they have set, and the
/// daemons whose last configuration change did not finish. `applied` is sorted newest first. The
/// effects of an interrupted change are known only after it is reconciled.
pub(super) fn ours(applied: &[AppliedChange]) -> Ours {
    let mut ours = Ours::default();
    let mut configured = BTreeSet::new();
    for one in applied {
        if let Change::ConfigureRuntime { settings } = &one.change
            && configured.insert(settings.kind)
            && !one.whole
        {
            ours.unread.insert(settings.kind.name());
        }
        match &one.undo {
            Undo::Packages {
                effects: Some(effects),
                ..
            } => ours.packages.extend(effects.new_packages()),
            Undo::Unhold(undo) => ours.held.extend(undo.held.iter().cloned()),
            _ => {}
        }
    }
    ours
}

/// Returns each daemon with the step that installs its packages. Removing these packages may stop
/// containers.
pub(super) fn daemons() -> impl Iterator<Item = (StepId, Daemon)> {
    (Daemon::ALL.into_iter()).map(|daemon| (package_step(daemon.kind()), daemon))
}

/// Returns the container runtimes that gpu-bootstrap has installed or configured. Without root the
/// journal is unreadable, so no runtime is reported as ours.
pub fn our_runtimes(host: &Host) -> Vec<RuntimeKind> {
    let applied = Journal::read(host).map(|history| fold(&history.lines).applied);
    let applied = applied.unwrap_or_default();
    let ours = daemons().filter(|(step, _)| {
        let steps = applied.iter().flat_map(|one| &one.steps);
        // `runtime.docker` installs Docker, and `runtime.docker-nvidia` configures it.
        steps
            .into_iter()
            .any(|id| id.as_str().starts_with(step.as_str()))
    });
    ours.map(|(_, daemon)| daemon.kind()).collect()
}

/// Returns the packages held by gpu-bootstrap. Without root the journal is unreadable, so no hold
/// is reported as ours.
pub fn holds(host: &Host) -> BTreeSet<String> {
    Journal::read(host).map_or_else(
        |_| BTreeSet::new(),
        |history| ours(&fold(&history.lines).applied).held,
    )
}

impl Session {
    /// Passes the journal's information to the steps in a read-only run. Without root the journal
    /// is unreadable, so changes made by gpu-bootstrap look like foreign changes.
    pub(super) fn read_ours(&self) {
        if let Ok(history) = Journal::read(&self.inner.host) {
            self.know(&fold(&history.lines).applied);
        }
    }

    /// Passes information about applied changes to the steps.
    pub(super) fn know(&self, applied: &[AppliedChange]) {
        self.inner.know(ours(applied));
    }

    /// Tells the steps the daemons whose last configuration change did not finish. The packages and
    /// holds that the steps see stay those from the start of the run.
    pub(super) fn know_unread(&self, applied: &[AppliedChange]) {
        let unread = ours(applied).unread;
        let before = self.inner.state().ours().clone();
        self.inner.know(Ours { unread, ..before });
    }
}
