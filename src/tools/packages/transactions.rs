//! The commands that change packages, and the parsers of their output.

use super::{
    Action, Estimate, Mark, Package, PendingTriggers, Removals, Settings, TransactionRequest,
};
use crate::host::{Cmd, FilesError, Output, Query, ReadFiles};

/// Simulating and performing transactions.
pub trait Transactions {
    /// Files that are locked while packages or lists change. The first one is the lock of a transaction. A file whose name ends
    /// with `.pid` is not locked but contains the process ID of the running package manager.
    fn locks(&self) -> &'static [&'static str];

    /// Formats a package with a version as a command line argument.
    fn at_version(&self, name: &str, version: &str) -> String;

    /// Resolves a transaction without changing anything.
    fn simulate(&self, settings: &Settings, request: &TransactionRequest<'_>) -> Query;

    /// Whether a simulation or an estimate printed a result. Some managers then still exit with an error status.
    fn has_answered(&self, output: &Output) -> bool {
        output.ok()
    }

    /// Whether simulations can run in parallel. dnf simulations cannot, because each of them waits for the lock that protects
    /// the lists (`fill_sack` of dnf/base.py).
    fn simulates_side_by_side(&self) -> bool {
        false
    }

    /// Parses the output of [`Self::simulate`]. `installed` is the database.
    fn parse_actions(&self, text: &str, installed: &[Package]) -> Vec<Action>;

    /// Simulates an upgrade of the complete system with the existing lists. [`Self::parse_actions`] parses the output.
    fn upgrade(&self) -> Query;

    /// Queries the download and installed size of a transaction, possibly with [`Self::simulate`].
    fn estimate(&self, settings: &Settings, request: &TransactionRequest<'_>) -> Query;

    /// Parses the output of [`Self::estimate`].
    fn parse_estimate(&self, text: &str) -> Estimate;

    /// Downloads the packages of a transaction.
    fn download(&self, settings: &Settings, request: &TransactionRequest<'_>) -> Cmd;

    /// Downloads packages, in the format of [`Self::at_version`], while a transaction of other packages is running, so that
    /// a later transaction does not download them. `None` if the manager cannot.
    fn download_beside(&self, _settings: &Settings, _packages: &[String]) -> Option<Cmd> {
        None
    }

    /// Performs a simulated and approved transaction.
    fn perform(
        &self,
        settings: &Settings,
        request: &TransactionRequest<'_>,
        removals: Removals,
    ) -> Cmd;

    /// Whether [`Self::perform`] uses only packages that [`Self::download`] has downloaded.
    fn performs_from_downloads(&self) -> bool {
        false
    }

    /// Whether package scripts skip compilation while the file [`NO_AUTOINSTALL`](crate::dkms::NO_AUTOINSTALL) exists.
    fn scripts_may_leave_modules(&self) -> bool {
        false
    }

    /// Whether a package change command has succeeded.
    fn has_succeeded(&self, output: &Output) -> bool {
        output.ok()
    }

    /// Returns the commands that stop processes which the manager leaves running.
    ///
    /// # Errors
    /// If an existing file cannot be read.
    fn follow_up(&self, _files: &dyn ReadFiles) -> Result<Vec<Cmd>, FilesError> {
        Ok(Vec::new())
    }

    /// Configures packages that are unpacked but not configured. `None` if the manager has no such state.
    fn configure(&self) -> Option<Cmd>;

    /// Makes a transaction defer the triggers of packages to [`Self::run_triggers`], if the manager can.
    fn defer_triggers(&self, cmd: Cmd) -> Cmd {
        cmd
    }

    /// Reads which packages have pending triggers.
    ///
    /// # Errors
    /// If the database cannot be read.
    fn pending_triggers(&self, _files: &dyn ReadFiles) -> Result<PendingTriggers, FilesError> {
        Ok(PendingTriggers::default())
    }

    /// Runs the pending triggers of these packages. `None` if a transaction always runs all triggers.
    fn run_triggers(&self, _packages: &[String]) -> Option<Cmd> {
        None
    }

    /// Queries the packages that an interrupted transaction had started to install. `None` if the package database itself shows
    /// them.
    fn unfinished(&self) -> Option<Query> {
        None
    }

    /// Parses the output of [`Self::unfinished`]: the packages to reinstall, with versions, in the format of this manager's
    /// command line.
    fn parse_unfinished(&self, _text: &str, _installed: &[Package]) -> Vec<String> {
        Vec::new()
    }

    /// Parses the output of [`Self::unfinished`]: the packages that are not installed yet, in the format of
    /// [`Self::parse_unfinished`].
    fn parse_missing(&self, _text: &str, _installed: &[Package]) -> Vec<String> {
        Vec::new()
    }

    /// Holds packages, releases them, or marks them as automatically installed.
    fn mark(&self, mark: Mark, packages: &[String]) -> Cmd;

    /// Returns a human-readable command line, without the options that every command has.
    fn short_line(&self, cmd: &Cmd) -> String;
}
