//! The messages of a package manager: failures, progress, and the commands in our remedies.

use super::{Commands, FailureClass, Package, SourceFailure};
use crate::host::Output;

/// The output of the package manager, and the texts of hints.
pub trait Messages {
    /// Commands and paths for hints.
    fn commands(&self) -> Commands;

    /// Returns the command that downgrades packages, for hints.
    fn downgrade_command(&self, packages: &[String]) -> String;

    /// Returns the command that changes an installed package to an available version, for a hint if a package must be
    /// reinstalled but its version is no longer available. `None` if this manager completes an interrupted installation without
    /// reinstalling packages.
    fn to_offered_command(&self, _package: &Package) -> Option<String> {
        None
    }

    /// Returns the remedy for a package that is unpacked but not configured, or `None` if this manager does not configure
    /// packages.
    fn configures(&self) -> Option<&'static str> {
        None
    }

    /// Returns the failure class of an output.
    fn failure_class(&self, output: &str) -> FailureClass;

    /// Returns the remedy of a failure, if its message is more specific than its class.
    fn remedy(&self, output: &str) -> Option<&'static str>;

    /// Returns the line that shows the failure. In a long output, this is often not one of the last lines.
    fn telling_line<'t>(&self, output: &'t str) -> Option<&'t str>;

    /// Returns the first reason in the output of a failed command, without the manager's prefix.
    fn first_reason<'t>(&self, output: &'t str) -> Option<&'t str>;

    /// Returns the lines that explain why a transaction cannot be resolved or must not be performed.
    fn preflight_issue(&self, output: &str) -> Option<String>;

    /// Returns the reason if the output of [`super::Transactions::upgrade`] does not cover all repositories, otherwise `None`.
    fn not_queried(&self, _output: &Output) -> Option<String> {
        None
    }

    /// Returns failures that a successful download of the lists reports as warnings.
    fn failed_sources(&self, output: &str) -> Option<String>;

    /// Returns the sources whose lists could not be downloaded. `None` if no source or something else failed.
    fn failures_by_source(&self, output: &str) -> Option<Vec<SourceFailure>>;

    /// Returns the package scripts that failed although the command succeeded.
    fn failed_scripts(&self, _output: &str) -> Option<String> {
        None
    }

    /// Whether an output line reports a stage of a transaction, such as a download or the installation of one package.
    fn is_stage(&self, line: &str) -> bool;

    /// Returns the total download size, if an output line contains it.
    fn download_size(&self, line: &str) -> Option<u64>;

    /// Returns the size of the file, if an output line reports its download.
    fn download_part(&self, line: &str) -> Option<u64>;
}

/// Returns the first line with the indented lines that follow it.
pub(super) fn with_details(lines: &[&str]) -> String {
    let is_detail = |at: usize| at == 0 || lines[at].starts_with(' ');
    let length = (0..lines.len()).take_while(|at| is_detail(*at)).count();
    lines[..length].join("\n")
}
