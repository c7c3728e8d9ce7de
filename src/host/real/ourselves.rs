//! This program, started once more.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use crate::host::Cmd;

/// This executable, also if a newer version was put in its place meanwhile.
const EXE: &str = "/proc/self/exe";

/// Where the dynamic loader looks first. The driver's libraries lie there in some containers.
const LIBRARY_PATH: &str = "LD_LIBRARY_PATH";

/// How this program is started once more.
#[derive(Debug, Clone)]
pub struct Ourselves {
    /// The executable.
    pub program: String,
    /// What comes before its own arguments.
    pub prefix: Vec<String>,
    /// What its children need of the environment.
    pub env: Vec<(String, String)>,
}

impl Ourselves {
    #[must_use]
    pub fn of_process() -> Self {
        let exe = std::fs::read_link(EXE).unwrap_or_default();
        let line = std::fs::read("/proc/self/cmdline").unwrap_or_default();
        let path = std::env::var(LIBRARY_PATH).ok();
        Self {
            program: EXE.to_owned(),
            prefix: through_loader(&exe, &line, std::env::args_os().len()),
            env: (path.into_iter())
                .map(|path| (LIBRARY_PATH.to_owned(), path))
                .collect(),
        }
    }

    /// The command with these arguments.
    #[must_use]
    pub fn command(&self, args: impl IntoIterator<Item = String>) -> Cmd {
        let mut cmd = Cmd::new(&self.program, self.prefix.iter().cloned().chain(args));
        cmd.env.clone_from(&self.env);
        cmd
    }
}

/// If the program was started as an argument of the dynamic loader, the executable is the loader:
/// these are its arguments up to the program. `arguments` is how many the program has, itself
/// included.
fn through_loader(exe: &Path, line: &[u8], arguments: usize) -> Vec<String> {
    let name = exe.file_name().map_or(&[][..], |name| name.as_bytes());
    if !name.starts_with(b"ld-") && !name.starts_with(b"ld.so") {
        return Vec::new();
    }
    let words = line.strip_suffix(b"\0").unwrap_or(line);
    let words: Vec<String> = (words.split(|byte| *byte == 0))
        .map(|word| OsString::from(std::ffi::OsStr::from_bytes(word)))
        .filter_map(|word| word.into_string().ok())
        .collect();
    let before = words.len().saturating_sub(arguments);
    words.into_iter().skip(1).take(before).collect()
}

#[cfg(test)]
mod tests {
    use super::through_loader;
    use std::path::Path;

    #[test]
    fn a_program_that_the_loader_runs_is_started_by_the_loader_again() {
        let line = b"/lib/ld-linux-x86-64.so.2\0--library-path\0/lib\0/gpu-bootstrap\0probe\0-v\0";
        let prefix = through_loader(Path::new("/lib/ld-linux-x86-64.so.2"), line, 3);
        assert_eq!(prefix, ["--library-path", "/lib", "/gpu-bootstrap"]);
        let line = b"gpu-bootstrap\0probe\0";
        let prefix = through_loader(Path::new("/usr/local/bin/gpu-bootstrap"), line, 2);
        assert!(prefix.is_empty());
    }
}
