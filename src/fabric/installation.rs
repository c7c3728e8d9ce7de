//! The unit and the files of the fabric manager.

use camino::Utf8Path;

use crate::host::{FilesError, ReadFiles};

/// The unit of the fabric manager.
pub const UNIT: &str = "nvidia-fabricmanager.service";

/// The fabric manager binary, as installed by packages and tarballs.
const PROGRAM: &str = "/usr/bin/nv-fabricmanager";
/// Directories that may contain the fabric manager unit.
const UNITS: [&str; 3] = [
    "/etc/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
];
/// Links here enable a unit.
const ENABLED: [&str; 2] = [
    "/etc/systemd/system/multi-user.target.wants",
    "/etc/systemd/system/graphical.target.wants",
];

/// The installation of the fabric manager according to files.
#[derive(Debug, Clone, Copy, Default)]
pub struct Installation {
    /// The tree contains programs, so a missing file means that the program is not installed.
    pub has_programs: bool,
    /// Its program or unit exists.
    pub exists: bool,
    /// Its unit is enabled.
    pub enabled: bool,
    /// The tree contains links of enabled units.
    pub lists_units: bool,
}

impl Installation {
    /// Reads the files.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn read(files: &dyn ReadFiles) -> Result<Self, FilesError> {
        let unit = |directory: &&str| -> Result<bool, FilesError> {
            let path = Utf8Path::new(directory).join(UNIT);
            Ok(files.stat(&path)?.is_some())
        };
        let any = |directories: &[&str]| -> Result<bool, FilesError> {
            for directory in directories {
                if unit(directory)? {
                    return Ok(true);
                }
            }
            Ok(false)
        };
        Ok(Self {
            has_programs: files.exists(Utf8Path::new("/usr"))?,
            exists: files.exists(Utf8Path::new(PROGRAM))? || any(&UNITS)?,
            enabled: any(&ENABLED)?,
            lists_units: !files.list(Utf8Path::new(ENABLED[0]))?.is_empty(),
        })
    }
}
