//! `packages.triggers`: the package triggers that transactions of this run, or of an interrupted one, have deferred: the update of
//! the initramfs. They run while the node is validated and joins. No other step depends on them. `kernel.deny`, which may also
//! rebuild an initramfs, is always finished before.

use super::{CLUSTER_PACKAGES, PACKAGES_HOLD, PACKAGES_TRIGGERS, packages};
use crate::{
    change::{Change, Lock},
    step::{Assessment, Cx, Step, StepError},
    tools::packages::PendingTriggers,
};

/// The `packages.triggers` step.
pub(super) fn step() -> Step {
    Step::new(PACKAGES_TRIGGERS, |cx| Box::pin(assess(cx)))
        .after([PACKAGES_HOLD, CLUSTER_PACKAGES])
        .locks([Lock::Packages])
        .before_boot()
}

fn decide(pending: &PendingTriggers) -> Assessment {
    if pending.deferrable.is_empty() {
        return Assessment::satisfied("no package triggers are pending");
    }
    let why = format!(
        "package triggers are pending: {}",
        pending.deferrable.join(", ")
    );
    Assessment::needs(why, vec![Change::RunTriggers])
}

async fn assess(cx: &Cx<'_>) -> Result<Assessment, StepError> {
    let pending = packages::backend(cx).pending_triggers(cx.host.files())?;
    Ok(decide(&pending))
}
