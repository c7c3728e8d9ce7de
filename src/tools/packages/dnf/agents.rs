//! The GnuPG agents that dnf leaves running. To verify the signature of a repository's metadata, dnf creates a GnuPG home
//! directory in its cache, and the agent of that directory does not exit together with dnf.

use camino::{Utf8Path, Utf8PathBuf};

use super::CACHE;
use crate::host::{Cmd, FileKind, FilesError, ReadFiles};

/// The GnuPG home directory in the directory of a repository.
const HOME: &str = "pubring";

/// Returns the `gpgconf` commands that stop these agents. They also succeed if an agent is not running.
///
/// # Errors
/// If the dnf cache cannot be read.
pub fn end(files: &dyn ReadFiles) -> Result<Vec<Cmd>, FilesError> {
    let mut homes: Vec<Utf8PathBuf> = Vec::new();
    for repository in files.list(Utf8Path::new(CACHE))? {
        let directory = Utf8Path::new(CACHE).join(repository);
        let is_directory =
            (files.stat(&directory)?).is_some_and(|stat| stat.kind == FileKind::Directory);
        let home = directory.join(HOME);
        if is_directory && files.exists(&home)? {
            homes.push(home);
        }
    }
    Ok((homes.into_iter())
        .map(|home| {
            let home = format!("--homedir={home}");
            Cmd::new("gpgconf", [home.as_str(), "--kill", "gpg-agent"])
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::end;
    use crate::host::fake::FakeFiles;

    #[test]
    fn agents_of_signed_metadata_are_stopped() {
        let files = FakeFiles::new();
        assert!(end(&files).unwrap().is_empty());
        files.put("/var/cache/dnf/nvidia-48cf39dd/pubring/pubring.kbx", "");
        files.put("/var/cache/dnf/baseos-90aaecb3/repodata/repomd.xml", "");
        files.put("/var/cache/dnf/nvidia.solv", "");
        let lines: Vec<String> = end(&files).unwrap().iter().map(|cmd| cmd.line()).collect();
        assert_eq!(
            lines,
            ["gpgconf --homedir=/var/cache/dnf/nvidia-48cf39dd/pubring --kill gpg-agent"]
        );
    }
}
