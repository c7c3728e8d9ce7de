//! Kernel modules whose compilation is deferred to a later change. Compiling takes most of the time of an installation and does
//! not need the package manager, so other packages are installed in parallel.

use std::sync::atomic::Ordering;

use camino::Utf8Path;

use crate::{
    change::{Applier, ChangeError},
    dkms,
    host::{Files, FilesError},
    tools::packages::{Action, HEADER},
};

/// The flag file that disables compilation in package scripts.
fn flag() -> &'static Utf8Path {
    Utf8Path::new(dkms::NO_AUTOINSTALL)
}

/// The content of the flag file. It records whether the directory was created for the file, so that the directory is removed
/// together with it, even after an interrupted run.
fn text(with_directory: bool) -> String {
    let directory = match with_directory {
        true => "# The directory was created for this file.\n",
        false => "",
    };
    format!("{HEADER}{directory}")
}

/// Returns `true` for packages that DKMS compiles from. Their names contain `dkms`.
fn is_source(action: &Action) -> bool {
    matches!(action, Action::Install { name, .. } if name.contains("dkms") && name != "dkms")
}

impl Applier {
    /// Disables compilation in the scripts of a transaction until [`release_builds`]. The later change compiles only
    /// one module, so this does nothing if the transaction installs several, or if DKMS already has a module. A flag file that
    /// exists already is kept.
    pub(super) fn compile_later(&self, actions: &[Action]) -> Result<(), ChangeError> {
        let files = &self.host.files;
        let only_one = actions.iter().filter(|action| is_source(action)).count() == 1;
        if only_one && !dkms::is_used(&**files)? && !files.exists(flag())? {
            let has_directory = match flag().parent() {
                Some(directory) => files.exists(directory)?,
                None => true,
            };
            files.write(flag(), text(!has_directory).as_bytes(), 0o644)?;
            self.paused_for_run.store(true, Ordering::Release);
        }
        Ok(())
    }
}

/// Enables compilation in package scripts again: removes the flag file, including the one of an interrupted run. Returns its path
/// if it existed.
///
/// # Errors
/// If the file cannot be read or removed.
pub fn release_builds(files: &dyn Files) -> Result<Option<&'static Utf8Path>, FilesError> {
    let Some(found) = files
        .read(flag())?
        .filter(|found| found.starts_with(HEADER.as_bytes()))
    else {
        return Ok(None);
    };
    files.remove(flag())?;
    if let Some(directory) = flag().parent()
        && found == text(true).as_bytes()
    {
        // If DKMS was installed in the meantime, the directory is not empty and is kept.
        files.remove_empty_directory(directory)?;
    }
    Ok(Some(flag()))
}
