//! Modules that the scripts of packages leave to a change that follows. Compiling takes most of the time of an installation and
//! needs no package manager, so other packages are installed meanwhile.

use camino::{Utf8Path, Utf8PathBuf};

use crate::{
    change::{Applier, ChangeError},
    host::{Cmd, FilesError},
    tools::{dkms, packages::HEADER},
};

fn text() -> String {
    format!("{HEADER}{}", dkms::later_text())
}

impl Applier {
    /// Adds to a command that its scripts do not compile this module, until [`Applier::compile_again`]. Where somebody else tells
    /// DKMS about the module, they compile it as always.
    pub(super) fn compile_later(&self, module: &str, cmd: Cmd) -> Result<Cmd, ChangeError> {
        let path = dkms::override_path(module);
        match self.host.files.read(&path)? {
            None => self.host.files.write(&path, text().as_bytes(), 0o644)?,
            Some(found) if found == text().as_bytes() => {}
            Some(_) => return Ok(cmd),
        }
        let (name, value) = dkms::LATER;
        Ok(cmd.env(name, value))
    }

    /// Takes away what [`Applier::compile_later`] has written, also in a run that was interrupted.
    pub(super) fn compile_again(&self) -> Result<(), FilesError> {
        let files = &self.host.files;
        let folder = Utf8Path::new(dkms::OVERRIDES);
        let names = files.list(folder)?;
        let overrides = names.iter().filter(|name| name.ends_with(".conf"));
        let paths: Vec<Utf8PathBuf> = overrides.map(|name| folder.join(name)).collect();
        for path in paths {
            if files.read(&path)?.as_deref() == Some(text().as_bytes()) {
                files.remove(&path)?;
                // DKMS was not installed.
                files.remove_empty_folder(folder)?;
            }
        }
        Ok(())
    }
}
