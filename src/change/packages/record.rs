//! The record of a package transaction. An inventory is taken before and after each command, and the effects of the command are
//! written to disk before anything else happens. Therefore the work of other programs never counts as ours, neither during a
//! pause before a retry nor after an interruption.

use std::collections::BTreeSet;

use camino::Utf8PathBuf;
use serde::{Deserialize, Serialize};

use super::{
    deferred_builds::release_builds,
    effects::{Effects, Inventory},
    run::Expected,
};
use crate::{
    change::{Applier, ChangeError, Sink, Undo},
    host::{Cmd, ExecError, exec::Status},
    tools::packages::Action,
};

/// The directory of records, in the state directory.
const DIRECTORY: &str = "transactions";

/// The file name suffix of a record.
const ENDING: &str = ".json";

/// The content of a record, which exists from the first command of a transaction.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Transaction {
    /// The schema version of this document.
    schema: u32,
    /// The effects of the finished commands.
    done: Effects,
    /// The command whose end is not recorded.
    running: Option<Running>,
}

/// A command that may still be running.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Running {
    before: Inventory,
    /// The packages that the command may change. Other programs may install other packages while it waits for a lock or after
    /// it was interrupted. These are not ours.
    #[serde(rename = "agreed")]
    approved: BTreeSet<String>,
}

impl Transaction {
    const SCHEMA: u32 = 1;

    /// The effects of the complete transaction so far.
    async fn effects(self, applier: &Applier) -> Result<Effects, ChangeError> {
        let Some(Running { before, approved }) = self.running else {
            return Ok(self.done);
        };
        let now = applier.inventory().await?;
        Ok(self.done.and_then(&before.effects(&now).only(&approved)))
    }
}

impl Applier {
    /// The undo of a transaction that has not started. No inventory is taken yet, because packages that another package manager
    /// installs until the start would count as ours.
    pub(in crate::change) fn capture_packages(&self) -> Result<Undo, ChangeError> {
        Ok(Undo::Packages {
            transaction: self.new_record(ENDING)?,
            effects: None,
        })
    }

    /// Returns an unused record name with this suffix.
    pub(super) fn new_record(&self, ending: &str) -> Result<String, ChangeError> {
        let now = self.host.clock.now().strftime("%Y%m%dT%H%M%S.%9f");
        // Two transactions must not get the same name if the clock stops or is set back.
        for n in 1_u32.. {
            let name = format!("{now}-{n}");
            if (self.host.files.stat(&self.record_path(&name, ending))?).is_none() {
                return Ok(name);
            }
        }
        Err(ChangeError::unreadable(
            "name the transaction",
            "all names are taken",
        ))
    }

    /// The path of a record.
    pub(super) fn record_path(&self, name: &str, ending: &str) -> Utf8PathBuf {
        self.state.join(DIRECTORY).join(format!("{name}{ending}"))
    }

    /// Runs an approved command once and records its effects.
    pub(super) async fn attempt(
        &self,
        undo: &Undo,
        what: &str,
        cmd: &Cmd,
        actions: &[Action],
        sink: &dyn Sink,
    ) -> Result<(), ChangeError> {
        let Undo::Packages { transaction, .. } = undo else {
            return Err(ChangeError::unreadable(what, "the undo has another kind"));
        };
        self.forget_removed().await?;
        self.record_start(transaction, actions).await?;
        let ran = self
            .run_and_sync(what, cmd, Expected::of(actions), sink)
            .await;
        if ran.as_ref().is_err_and(may_still_run) {
            return ran;
        }
        match (ran, self.record_end(transaction).await) {
            (Ok(()), recorded) => recorded,
            (Err(error), Ok(())) => Err(error),
            (Err(error), Err(second)) => {
                // The first error is returned, and the second one is logged.
                sink.line(&format!("{second}; the next run will try again"));
                Err(error)
            }
        }
    }

    /// Records the inventory before a command. From now on, changes of the approved packages are ours.
    pub(in crate::change) async fn record_start(
        &self,
        name: &str,
        actions: &[Action],
    ) -> Result<(), ChangeError> {
        let mut transaction = self.transaction(name)?.unwrap_or_default();
        // If the end of an earlier command is unknown, keep its inventory.
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

    /// Records the inventory before a download that may import keys. The download must not change packages.
    pub(super) async fn record_before_download(&self, undo: &Undo) -> Result<(), ChangeError> {
        match undo {
            Undo::Packages { transaction, .. } => self.record_start(transaction, &[]).await,
            _ => Ok(()),
        }
    }

    /// Records the effects of a finished command.
    async fn record_end(&self, name: &str) -> Result<(), ChangeError> {
        let done = self.effects_since(name).await?;
        let transaction = Transaction {
            done,
            ..Transaction::default()
        };
        self.write_transaction(name, transaction)
    }

    /// Returns the effects of an interrupted or failed transaction. First waits for the package manager if the end of a command
    /// is unknown, because it may still be running.
    pub(in crate::change) async fn effects_of_interrupted(
        &self,
        name: &str,
        sink: &dyn Sink,
    ) -> Result<Effects, ChangeError> {
        let transaction = self.transaction(name)?.unwrap_or_default();
        if transaction.running.is_some() {
            self.wait_for_locks(sink).await?;
            self.record_begun().await?;
        }
        release_builds(&*self.host.files)?;
        transaction.effects(self).await
    }

    /// Completes the undo of [`Applier::capture_packages`] after the transaction.
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

    /// The effects of a transaction so far. Empty if it never started.
    async fn effects_since(&self, name: &str) -> Result<Effects, ChangeError> {
        let transaction = self.transaction(name)?.unwrap_or_default();
        transaction.effects(self).await
    }

    /// The packages that our transactions have installed, including interrupted ones.
    pub(super) fn brought(&self) -> Result<BTreeSet<String>, ChangeError> {
        let mut brought = BTreeSet::new();
        for file in self.host.files.list(&self.state.join(DIRECTORY))? {
            let Some(name) = file.strip_suffix(ENDING) else {
                continue;
            };
            let Some(transaction) = self.transaction(name)? else {
                continue;
            };
            brought.extend(transaction.done.new_packages());
            if let Some(Running { before, approved }) = transaction.running {
                let new = approved.into_iter();
                brought.extend(new.filter(|name| !before.packages.contains_key(name)));
            }
        }
        Ok(brought)
    }

    /// Removes the records of a reverted transaction and of those that were reverted together with it.
    pub(super) fn forget_transactions(
        &self,
        transaction: &str,
        effects: &Effects,
    ) -> Result<(), ChangeError> {
        let merged = effects.merged.iter().map(String::as_str);
        for name in merged.chain([transaction]) {
            let path = self.transaction_path(name);
            if self.host.files.exists(&path)? {
                self.host.files.remove(&path)?;
            }
        }
        Ok(())
    }

    fn transaction_path(&self, name: &str) -> Utf8PathBuf {
        self.record_path(name, ENDING)
    }

    fn transaction(&self, name: &str) -> Result<Option<Transaction>, ChangeError> {
        let path = self.transaction_path(name);
        self.host
            .files
            .read(&path)?
            .map(|text| serde_json::from_slice(&text))
            .transpose()
            .map_err(|error| ChangeError::unreadable(format!("read `{path}`"), error))
    }

    fn write_transaction(&self, name: &str, transaction: Transaction) -> Result<(), ChangeError> {
        let transaction = Transaction {
            schema: Transaction::SCHEMA,
            ..transaction
        };
        let text = serde_json::to_vec(&transaction)
            .map_err(|error| ChangeError::unreadable("record the transaction", error))?;
        self.host
            .files
            .write(&self.transaction_path(name), &text, 0o600)?;
        Ok(())
    }
}

/// Returns `true` if child processes of a failed command may still be running. A killed package manager leaves its children,
/// which continue.
fn may_still_run(error: &ChangeError) -> bool {
    matches!(
        error.ended(),
        Some(
            ExecError::Deadline { .. }
                | ExecError::Silent { .. }
                | ExecError::Failed {
                    status: Status::Signalled(_),
                    ..
                }
        )
    )
}
