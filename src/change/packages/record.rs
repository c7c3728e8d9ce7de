//! The record of a package transaction: an inventory is taken before and after each command, and
//! what the command did is on the disk before anything else happens. What others do while we wait
//! for another attempt, or after we were cut off, is never ours.

use std::collections::BTreeSet;

use camino::Utf8PathBuf;
use serde::{Deserialize, Serialize};

use super::{
    effects::{Effects, Inventory},
    inventory::unreadable,
    run::stages,
};
use crate::{
    change::{Applier, ChangeError, PackageError, Sink, Undo},
    host::{Cmd, ExecError, exec::Status},
    tools::packages::Action,
};

/// What is known of a transaction; kept from its first command on.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Transaction {
    /// Layout of this document.
    schema: u32,
    /// What the commands did that have ended.
    done: Effects,
    /// The command whose end is not noted down.
    running: Option<Running>,
}

/// A command that may be at work.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Running {
    before: Inventory,
    /// The packages that it may touch. The package manager may have waited for somebody else's lock before it began,
    /// and nobody may have looked for a long time after it was cut off: other packages that came in
    /// between are not its work.
    #[serde(rename = "agreed")]
    approved: BTreeSet<String>,
}

impl Transaction {
    const SCHEMA: u32 = 1;

    /// What the whole transaction did, if it were over now.
    async fn effects(self, applier: &Applier) -> Result<Effects, ChangeError> {
        Ok(match self.running {
            Some(Running { before, approved }) => {
                let now = applier.inventory().await?;
                self.done.and_then(&before.effects(&now).only(&approved))
            }
            None => self.done,
        })
    }
}

impl Applier {
    /// The undo of a transaction that has not begun. Nothing is taken down yet: while another
    /// package manager works, what it brings would count as ours.
    pub(in crate::change) fn capture_packages(&self) -> Result<Undo, ChangeError> {
        let now = self.host.clock.now().strftime("%Y%m%dT%H%M%S.%9f");
        // A clock that stands still, or was set back, must not make two transactions one.
        for n in 1_u32.. {
            let name = format!("{now}-{n}");
            if self
                .host
                .files
                .stat(&self.transaction_path(&name))?
                .is_none()
            {
                return Ok(Undo::Packages {
                    transaction: name,
                    effects: None,
                });
            }
        }
        Err(unreadable("name the transaction", "all names are taken"))
    }

    /// One attempt at a command that was approved to.
    pub(super) async fn attempt(
        &self,
        undo: &Undo,
        what: &str,
        cmd: &Cmd,
        actions: &[Action],
        sink: &dyn Sink,
    ) -> Result<(), ChangeError> {
        let Undo::Packages { transaction, .. } = undo else {
            return Err(unreadable(what, "its undo is of another kind"));
        };
        self.begin(transaction, actions).await?;
        let ran = self.run_once(what, cmd, stages(actions), sink).await;
        if ran.as_ref().is_err_and(may_go_on) {
            return ran;
        }
        match (ran, self.settle(transaction).await) {
            (Ok(()), settled) => settled,
            (Err(error), Ok(())) => Err(error),
            (Err(error), Err(second)) => {
                // The first error is the one to tell; this one must not be lost either.
                sink.line(&format!("{second}; the next run will try again"));
                Err(error)
            }
        }
    }

    /// Takes the inventory of before. From here on what comes of the approved packages is ours.
    pub(in crate::change) async fn begin(
        &self,
        name: &str,
        actions: &[Action],
    ) -> Result<(), ChangeError> {
        let mut transaction = self.transaction(name)?.unwrap_or_default();
        // The end of a former command may be unknown. What it did is not what was there before.
        let running = match &mut transaction.running {
            Some(running) => running,
            none => none.insert(Running {
                before: self.inventory().await?,
                approved: BTreeSet::new(),
            }),
        };
        let names = actions.iter().map(|action| action.name().to_owned());
        running.approved.extend(names);
        self.write_transaction(name, transaction)
    }

    /// Takes the inventory of after: the command has ended.
    async fn settle(&self, name: &str) -> Result<(), ChangeError> {
        let done = self.effects_since(name).await?;
        let transaction = Transaction {
            done,
            ..Transaction::default()
        };
        self.write_transaction(name, transaction)
    }

    /// What a transaction did that was cut off or failed. Where the end of a command is unknown, a
    /// package manager may have outlived the process that started it.
    pub(in crate::change) async fn effects_once_over(
        &self,
        name: &str,
        sink: &dyn Sink,
    ) -> Result<Effects, ChangeError> {
        let transaction = self.transaction(name)?.unwrap_or_default();
        if transaction.running.is_some() {
            self.wait_for_locks(sink).await?;
        }
        transaction.effects(self).await
    }

    /// The undo of [`Applier::capture_packages`], now that the transaction ended.
    pub(in crate::change) async fn refine_packages(&self, undo: Undo) -> Result<Undo, ChangeError> {
        match undo {
            Undo::Packages {
                transaction,
                effects: None,
            } => {
                let effects = self.effects_since(&transaction).await?;
                Ok(Undo::Packages {
                    transaction,
                    effects: Some(Box::new(effects)),
                })
            }
            other => Ok(other),
        }
    }

    /// What a transaction has done; nothing if it never began.
    async fn effects_since(&self, name: &str) -> Result<Effects, ChangeError> {
        let transaction = self.transaction(name)?.unwrap_or_default();
        transaction.effects(self).await
    }

    fn transaction_path(&self, name: &str) -> Utf8PathBuf {
        self.state.join("transactions").join(format!("{name}.json"))
    }

    fn transaction(&self, name: &str) -> Result<Option<Transaction>, ChangeError> {
        let path = self.transaction_path(name);
        self.host
            .files
            .read(&path)?
            .map(|text| serde_json::from_slice(&text))
            .transpose()
            .map_err(|error| unreadable(&format!("read `{path}`"), error))
    }

    fn write_transaction(&self, name: &str, transaction: Transaction) -> Result<(), ChangeError> {
        let transaction = Transaction {
            schema: Transaction::SCHEMA,
            ..transaction
        };
        let text = serde_json::to_vec(&transaction)
            .map_err(|error| unreadable("write the transaction down", error))?;
        self.host
            .files
            .write(&self.transaction_path(name), &text, 0o600)?;
        Ok(())
    }
}

/// Whether what a command started may outlive it: a package manager that was killed leaves those
/// that it started behind, and they go on.
fn may_go_on(error: &ChangeError) -> bool {
    let ChangeError::Packages(PackageError::Failed { source, .. }) = error else {
        return false;
    };
    matches!(
        **source,
        ExecError::Deadline { .. }
            | ExecError::Silent { .. }
            | ExecError::Failed {
                status: Status::Signalled(_),
                ..
            }
    )
}
