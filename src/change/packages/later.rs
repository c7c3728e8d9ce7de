//! Modules that the scripts of packages leave to a change that follows. Compiling takes most of the time of an installation and
//! needs no package manager, so other packages are installed meanwhile.

use std::sync::atomic::Ordering;

use camino::Utf8Path;

use crate::{
    change::{Applier, Problem},
    dkms,
    host::FilesError,
    tools::packages::{Action, HEADER},
};

/// The flag by which the scripts compile nothing.
fn flag() -> &'static Utf8Path {
    Utf8Path::new(dkms::NO_AUTOINSTALL)
}

/// What it says. A folder that was made for it goes with it, also after a run that was interrupted.
fn text(with_folder: bool) -> String {
    let folder = match with_folder {
        true => "# Its folder was made for it.\n",
        false => "",
    };
    format!("{HEADER}{folder}")
}

/// Whether DKMS compiles from this package. All of them say so in their names.
fn is_source(action: &Action) -> bool {
    matches!(action, Action::Install { name, .. } if name.contains("dkms") && name != "dkms")
}

impl Applier {
    /// Keeps the scripts of a transaction from compiling, until [`Applier::compile_again`]. The change that follows compiles one
    /// module: where there are others, or an administrator has set the flag, nothing is done.
    pub(super) fn compile_later(&self, actions: &[Action]) -> Result<(), Problem> {
        let files = &self.host.files;
        let only_one = actions.iter().filter(|action| is_source(action)).count() == 1;
        if only_one && !dkms::is_used(&**files)? && !files.exists(flag())? {
            let has_folder = match flag().parent() {
                Some(folder) => files.exists(folder)?,
                None => true,
            };
            files.write(flag(), text(!has_folder).as_bytes(), 0o644)?;
            self.paused_for_run.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// Takes the flag away, also that of a run that was interrupted.
    pub(super) fn compile_again(&self) -> Result<(), FilesError> {
        let files = &self.host.files;
        let Some(found) = files
            .read(flag())?
            .filter(|found| found.starts_with(HEADER.as_bytes()))
        else {
            return Ok(());
        };
        files.remove(flag())?;
        if let Some(folder) = flag().parent()
            && found == text(true).as_bytes()
        {
            // DKMS was not installed.
            files.remove_empty_folder(folder)?;
        }
        Ok(())
    }
}
