//! Programs that a configuration names, and that are not there.

use camino::Utf8Path;

use super::view::{Fault, Harm};
use crate::{
    host::{FilesError, ReadFiles},
    tools::toolkit,
};

/// Where daemons look for programs that are named without a path: systemd's default.
const PATH: [&str; 4] = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin"];

/// Whether a program that a configuration names is not on this machine. A tree without programs does not tell.
///
/// # Errors
/// When a folder cannot be read.
pub fn is_missing(files: &dyn ReadFiles, program: &str) -> Result<bool, FilesError> {
    let mut any = false;
    for folder in PATH {
        any |= !files.list(Utf8Path::new(folder))?.is_empty();
    }
    if !any {
        return Ok(false);
    }
    if program.contains('/') {
        // Where a daemon looks for a path that does not begin at the root is not known.
        return Ok(program.starts_with('/') && !files.exists(Utf8Path::new(program))?);
    }
    for folder in PATH {
        if files.exists(&Utf8Path::new(folder).join(program))? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// A program that a configuration names for one of its runtimes.
#[derive(Debug, Clone, Copy)]
pub struct Named<'a> {
    /// Whose configuration, for people.
    pub of: &'a str,
    /// Its unit, as people type it.
    pub unit: &'a str,
    /// The name of the runtime.
    pub runtime: &'a str,
    pub program: &'a str,
    /// The file that names it, where several could.
    pub path: Option<&'a Utf8Path>,
    /// What follows, if containers get this runtime that ask for none.
    pub default: Option<&'static str>,
}

impl Named<'_> {
    /// Whether somebody asks for it: what nobody asks for may lack its program, as kata that was removed.
    #[must_use]
    pub fn counts(&self) -> bool {
        self.default.is_some() || toolkit::comes_with(self.program, toolkit::RUNTIME)
    }

    /// The fault, if the program is not there.
    ///
    /// # Errors
    /// When a folder cannot be read.
    pub fn fault(&self, files: &dyn ReadFiles) -> Result<Option<Fault>, FilesError> {
        let Self {
            of,
            unit,
            runtime,
            program,
            path,
            default,
        } = *self;
        if !is_missing(files, program)? {
            return Ok(None);
        }
        let place = path.map_or_else(String::new, |path| format!(" (`{path}`)"));
        let follows = default.unwrap_or("so no container of it starts");
        let package = match toolkit::comes_with(program, toolkit::RUNTIME) {
            true => "install `nvidia-container-toolkit`, which brings it",
            false => "install the program that it names",
        };
        Ok(Some(Fault {
            why: format!(
                "runtime `{runtime}` of {of} names `{program}`{place}, which is not there, {follows}"
            ),
            remedy: format!(
                "{package}, or take the runtime out; then run `systemctl restart {unit}`"
            ),
            harm: match self.counts() {
                true => Harm::Containers,
                false => Harm::Perhaps,
            },
        }))
    }
}
