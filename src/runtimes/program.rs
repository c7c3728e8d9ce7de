//! Finds programs in a configuration that do not exist.

use camino::Utf8Path;

use super::view::{Harm, RuntimeFault};
use crate::{
    host::{FilesError, ReadFiles},
    tools::toolkit,
};

/// The directories in which daemons look up programs without a path: the systemd default.
const PATH: [&str; 4] = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin"];

/// Whether a configured program is missing on this machine. If all program directories are empty, as in an incomplete
/// recording, this is unknown, and the result is `false`.
///
/// # Errors
/// If a directory cannot be read.
pub fn is_missing(files: &dyn ReadFiles, program: &str) -> Result<bool, FilesError> {
    let mut any = false;
    for directory in PATH {
        any |= !files.list(Utf8Path::new(directory))?.is_empty();
    }
    if !any {
        return Ok(false);
    }
    if program.contains('/') {
        // The lookup of other relative paths is unknown.
        return Ok(program.starts_with('/') && !files.exists(Utf8Path::new(program))?);
    }
    for directory in PATH {
        if files.exists(&Utf8Path::new(directory).join(program))? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// An OCI runtime in the configuration of a container runtime, with its program.
#[derive(Debug, Clone, Copy)]
pub struct Named<'a> {
    /// The title of the container runtime, for messages.
    pub of: &'a str,
    /// The unit name, as used on the command line.
    pub unit: &'a str,
    /// The name of the OCI runtime in the configuration.
    pub runtime: &'a str,
    pub program: &'a str,
    /// The file with the setting, if there may be several files.
    pub path: Option<&'a Utf8Path>,
    /// The effect of a missing program if this is the default runtime, otherwise `None`.
    pub default: Option<&'static str>,
}

impl Named<'_> {
    /// Whether containers are expected to use the runtime: it is the default, or its program is part of the toolkit. Other
    /// runtimes may be leftovers without a program, for example of Kata Containers.
    pub fn counts(&self) -> bool {
        self.default.is_some() || toolkit::comes_with(self.program, toolkit::RUNTIME)
    }

    /// Returns a fault if the program is missing.
    ///
    /// # Errors
    /// If a directory cannot be read.
    pub fn fault(&self, files: &dyn ReadFiles) -> Result<Option<RuntimeFault>, FilesError> {
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
        let follows = default.unwrap_or("so its containers do not start");
        let package = match toolkit::comes_with(program, toolkit::RUNTIME) {
            true => "install `nvidia-container-toolkit`, which contains it",
            false => "install the program",
        };
        Ok(Some(RuntimeFault::new(
            match self.counts() {
                true => Harm::Containers,
                false => Harm::Perhaps,
            },
            format!("runtime `{runtime}` of {of}{place}: `{program}` does not exist, {follows}"),
            format!("{package}, or remove the runtime; then run `systemctl restart {unit}`"),
        )))
    }
}
