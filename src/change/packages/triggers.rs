//! Package triggers. A transaction must only run triggers that packages or running programs may depend on. Other triggers take
//! seconds to minutes (a new initramfs). Those that are pending after the last transaction run while the node is validated.

use super::{of_class, run::Expected};
use crate::{
    change::{Applier, ChangeError, Sink},
    tools::packages::FailureClass,
};

/// The number of passes. A trigger may activate others, which dpkg stops if they never end.
const PASSES: usize = 10;

impl Applier {
    /// Runs the triggers that a transaction has deferred, except those that may run later.
    pub(super) async fn run_needed_triggers(&self, sink: &dyn Sink) -> Result<(), ChangeError> {
        const WHAT: &str = "run package triggers";
        for pass in 0..=PASSES {
            let pending = self.backend.pending_triggers(&*self.host.files)?.needed;
            let needed = match self.backend.run_triggers(&pending) {
                Some(cmd) if !pending.is_empty() => cmd,
                _ => return Ok(()),
            };
            if pass == PASSES {
                let names = pending.join(", ");
                let what = format!("{WHAT}: still pending after {PASSES} passes: {names}");
                return Err(of_class(FailureClass::Interrupted, what));
            }
            self.run_once(WHAT, &needed, Expected::default(), sink)
                .await?;
        }
        Ok(())
    }

    /// Runs the triggers that may run later.
    pub(in crate::change) async fn run_deferred_triggers(
        &self,
        sink: &dyn Sink,
    ) -> Result<(), ChangeError> {
        self.exclusively(sink, async {
            self.check_consistent().await?;
            let pending = self.backend.pending_triggers(&*self.host.files)?;
            match self.backend.run_triggers(&pending.deferrable) {
                Some(cmd) if !pending.deferrable.is_empty() => {
                    self.run_with_retries("run deferred package triggers", cmd, sink)
                        .await
                }
                _ => Ok(()),
            }
        })
        .await
    }
}
