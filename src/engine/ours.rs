//! What the journal says about this program's own work, for the steps.

use std::collections::BTreeSet;

use super::Session;
use crate::{
    change::{Change, Undo},
    config::desired::{Daemon, RuntimeKind},
    host::Host,
    journal::{Journal, Standing, fold},
    model::id::StepId,
    state::Ours,
    steps::package_step,
};

/// The packages that standing changes, newest first, have installed, the holds that they have set, and the daemons whose
/// configuration did not end. What an interrupted change did is known only when it has been reconciled.
pub(super) fn ours(standing: &[Standing]) -> Ours {
    let mut ours = Ours::default();
    let mut configured = BTreeSet::new();
    for one in standing {
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

/// The daemons whose containers may stop when their packages go, by the step that installs them.
pub(super) fn daemons() -> impl Iterator<Item = (StepId, Daemon)> {
    (Daemon::ALL.into_iter()).map(|daemon| (package_step(daemon.kind()), daemon))
}

/// The container runtimes that this program has installed or configured. Without root the journal cannot be read: then
/// they look like the work of others.
#[must_use]
pub fn our_runtimes(host: &Host) -> Vec<RuntimeKind> {
    let standing = Journal::read(host).map(|history| fold(&history.lines).standing);
    let standing = standing.unwrap_or_default();
    let ours = daemons().filter(|(step, _)| {
        let steps = standing.iter().flat_map(|one| &one.steps);
        // `runtime.docker` installs it, and `runtime.docker-nvidia` configures it.
        steps
            .into_iter()
            .any(|id| id.as_str().starts_with(step.as_str()))
    });
    ours.map(|(_, daemon)| daemon.kind()).collect()
}

/// The packages that this program holds. Without root the journal cannot be read: then its holds look
/// like those of others.
#[must_use]
pub fn holds(host: &Host) -> BTreeSet<String> {
    Journal::read(host).map_or_else(
        |_| BTreeSet::new(),
        |history| ours(&fold(&history.lines).standing).held,
    )
}

impl Session {
    /// Tells the steps what the journal says, where it is only read. Without root it cannot be read:
    /// then what this program has made looks like the work of others.
    pub(super) fn read_ours(&self) {
        if let Ok(history) = Journal::read(&self.inner.host) {
            self.know(&fold(&history.lines).standing);
        }
    }

    /// Tells the steps what this program has done.
    pub(super) fn know(&self, standing: &[Standing]) {
        self.inner.know(ours(standing));
    }

    /// Tells the steps which daemons have not taken up their files by now. What else is this program's own they know from
    /// the start of the run.
    pub(super) fn know_unread(&self, standing: &[Standing]) {
        let unread = ours(standing).unread;
        let before = self.inner.state().ours().clone();
        self.inner.know(Ours { unread, ..before });
    }
}
