//! Starts further processes of the gpu-bootstrap binary.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use crate::host::Cmd;

/// The running binary, even if it was replaced by a newer version.
const EXE: &str = "/proc/self/exe";

/// The first search path of the dynamic loader. In some containers it contains the driver
/// libraries.
const LIBRARY_PATH: &str = "LD_LIBRARY_PATH";

/// The command that starts the gpu-bootstrap binary.
#[derive(Debug, Clone)]
pub struct Ourselves {
    /// The executable.
    pub program: String,
    /// The arguments that precede the arguments of gpu-bootstrap, if the executable is the dynamic loader.
    pub prefix: Vec<String>,
    /// The environment variables that the command needs.
    pub env: Vec<(String, String)>,
}

impl Ourselves {
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

    /// Returns the command with these arguments.
    pub fn command(&self, args: impl IntoIterator<Item = String>) -> Cmd {
        let mut cmd = Cmd::new(&self.program, self.prefix.iter().cloned().chain(args));
        cmd.env.clone_from(&self.env);
        cmd
    }
}

/// If the binary was started as an argument of the dynamic loader, the executable is the loader.
/// Then returns the loader arguments up to and including the binary, otherwise nothing.
/// `arguments` is the number of arguments of the binary, including itself.
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
    fn loader_prefix_is_kept_for_child_processes() {
        let line = b"/lib/ld-linux-x86-64.so.2\0--library-path\0/lib\0/gpu-bootstrap\0probe\0-v\0";
        let prefix = through_loader(Path::new("/lib/ld-linux-x86-64.so.2"), line, 3);
        assert_eq!(prefix, ["--library-path", "/lib", "/gpu-bootstrap"]);
        let line = b"gpu-bootstrap\0probe\0";
        let prefix = through_loader(Path::new("/usr/local/bin/gpu-bootstrap"), line, 2);
        assert!(prefix.is_empty());
    }
}
