//! Keeps the files that the run after a reboot needs: the gpu-bootstrap binary and the files of its
//! command line. Files in a location that is emptied at boot, and a binary that is writable by
//! non-root users, are copied to the state directory. On Enterprise Linux, the binary is copied to
//! [`LIBEXEC`] instead.

use camino::{Utf8Path, Utf8PathBuf};

use crate::{
    host::{Files, FilesError, ReadFiles, trusted::refuse_foreign},
    journal::Request,
    model::paths::STATE,
    tools::mounts,
};

/// The running binary, even if it was moved or replaced.
const OURSELVES: &str = "/proc/self/exe";

/// The directory for copies. `uninstall` removes it with the state directory.
fn directory() -> Utf8PathBuf {
    Utf8Path::new(STATE).join("kept")
}

/// A directory from which systemd may execute our binary on Enterprise Linux. The SELinux policy
/// rejects binaries in `/var/lib` (`init_t` may not execute `var_lib_t`). In this directory the label
/// is `usr_t`, and the binary runs as `unconfined_service_t` (`corecmd_bin_domtrans` in
/// selinux-policy, branches c9s and c10s). Debian and Ubuntu have neither this directory nor this
/// policy.
const LIBEXEC: &str = "/usr/local/libexec";

/// The copy of the binary in [`LIBEXEC`]. The unusual name avoids a conflict with files of the
/// administrator.
const IN_LIBEXEC: &str = "/usr/local/libexec/gpu-bootstrap-resume";

fn program_copy(files: &dyn Files) -> Result<Utf8PathBuf, FilesError> {
    let in_state = directory().join("gpu-bootstrap");
    if !files.exists(LIBEXEC.into())? {
        return Ok(in_state);
    }
    match refuse_foreign(files, LIBEXEC.into()) {
        Ok(()) => Ok(IN_LIBEXEC.into()),
        Err(FilesError::Foreign { .. }) => Ok(in_state),
        Err(error) => Err(error),
    }
}

/// Removes the copy outside the state directory.
pub(super) fn forget_program(files: &dyn Files) -> Result<(), FilesError> {
    match files.stat(IN_LIBEXEC.into())? {
        Some(_) => files.remove(IN_LIBEXEC.into()),
        None => Ok(()),
    }
}

/// Returns the binary for the resume unit: the current one, or a copy if its path does not survive
/// a reboot or is writable by non-root users. Root executes it at boot.
pub(super) fn program(files: &dyn Files, exe: &Utf8Path) -> Result<Utf8PathBuf, FilesError> {
    if mounts::stays(exe, &mounts::list(files)?) {
        match refuse_foreign(files, exe) {
            Ok(()) => return Ok(exe.to_owned()),
            Err(FilesError::Foreign { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    let copy = program_copy(files)?;
    // Do not read the binary by path, because the file may have been replaced since this process was
    // started.
    let ourselves = Utf8Path::new(OURSELVES);
    let content = files.read(ourselves)?.ok_or_else(|| FilesError::Io {
        verb: "read",
        path: ourselves.to_owned(),
        source: std::io::ErrorKind::NotFound.into(),
        disk: None,
    })?;
    if files.read(&copy)?.as_ref() != Some(&content) {
        if copy != IN_LIBEXEC {
            files.create_directory(&directory(), 0o700)?;
        }
        files.write(&copy, &content, 0o700)?;
    }
    Ok(copy)
}

/// A file to copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Copy {
    from: Utf8PathBuf,
    to: Utf8PathBuf,
}

/// Returns the request with paths that survive a reboot, and the required copies.
pub(super) fn request(
    files: &dyn ReadFiles,
    request: &Request,
) -> Result<(Request, Vec<Copy>), FilesError> {
    let mounts = mounts::list(files)?;
    let mut copies = Vec::new();
    let mut kept = |path: &Utf8Path| {
        if mounts::stays(path, &mounts) {
            return path.to_owned();
        }
        let name = path.file_name().unwrap_or("file");
        let to = directory().join(format!("{}-{name}", copies.len()));
        copies.push(Copy {
            from: path.to_owned(),
            to: to.clone(),
        });
        to
    };
    let mut persistent = request.clone();
    persistent.config = request.config.iter().map(|path| kept(path)).collect();
    if let Some(profile) = &request.profile
        && profile.starts_with('/')
    {
        persistent.profile = Some(kept(Utf8Path::new(profile)).into_string());
    }
    Ok((persistent, copies))
}

/// Copies the files, readable only by root, because a configuration may contain a secret.
pub(super) fn copy(files: &dyn Files, copies: &[Copy]) -> Result<(), FilesError> {
    for Copy { from, to } in copies {
        let Some(content) = files.read(from)? else {
            // The file was removed after this run had read it. The run after the reboot will report the missing copy.
            continue;
        };
        files.create_directory(&directory(), 0o700)?;
        files.write(to, &content, 0o600)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::fake::FakeFiles;

    #[test]
    fn binary_is_copied_once_and_only_if_necessary() {
        let files = FakeFiles::new();
        files.put_directory("/var/lib/gpu-bootstrap", 0o700);
        files.put("/tmp/gb", "another program");
        files.put("/proc/self/exe", "the program");
        let usual = Utf8Path::new("/usr/local/bin/gpu-bootstrap");
        assert_eq!(program(&files, usual).unwrap(), usual);
        assert_eq!(files.mutations(), 0);
        let copy = program(&files, Utf8Path::new("/tmp/gb")).unwrap();
        assert_eq!(copy, "/var/lib/gpu-bootstrap/kept/gpu-bootstrap");
        assert_eq!(files.text(copy.as_str()), "the program");
        assert_eq!(files.stat(&copy).unwrap().unwrap().mode, 0o700);
        let made = files.mutations();
        program(&files, Utf8Path::new("/tmp/gb")).unwrap();
        assert_eq!(files.mutations(), made);
        // Replaced while it is running.
        files.put("/proc/self/exe", "the old program");
        let copy = program(&files, Utf8Path::new("/opt/gb (deleted)")).unwrap();
        assert_eq!(files.text(copy.as_str()), "the old program");
        // The copy itself is not copied again.
        assert_eq!(program(&files, &copy).unwrap(), copy);
    }

    #[test]
    fn binary_writable_by_other_users_is_copied_from_memory() {
        let files = FakeFiles::new();
        files.put_directory("/var/lib/gpu-bootstrap", 0o700);
        let exe = "/home/local/gb";
        files.put(exe, "replaced");
        files.put("/proc/self/exe", "the program");
        assert_eq!(program(&files, exe.into()).unwrap(), exe);
        files.own("/home/local", 1000, 1000);
        let copy = program(&files, exe.into()).unwrap();
        assert_eq!(copy, directory().join("gpu-bootstrap"));
        assert_eq!(files.text(copy.as_str()), "the program");
    }

    /// On Enterprise Linux, SELinux does not allow systemd to execute files in `/var/lib`.
    #[test]
    fn copy_is_executable_by_systemd_on_enterprise_linux() {
        let files = FakeFiles::new();
        files.put_directory("/var/lib/gpu-bootstrap", 0o700);
        files.put_directory("/usr/local/libexec", 0o755);
        files.put("/proc/self/exe", "the program");
        let copy = program(&files, Utf8Path::new("/tmp/gb")).unwrap();
        assert_eq!(copy, "/usr/local/libexec/gpu-bootstrap-resume");
        assert_eq!(files.text(copy.as_str()), "the program");
        forget_program(&files).unwrap();
        forget_program(&files).unwrap();
        assert!(!files.exists(&copy).unwrap());
        assert!(files.exists(LIBEXEC.into()).unwrap());
        // The directory is writable by a group.
        let files = FakeFiles::new();
        files.put_directory("/var/lib/gpu-bootstrap", 0o700);
        files.put_directory("/usr/local/libexec", 0o2775);
        files.own("/usr/local/libexec", 0, 50);
        files.put("/proc/self/exe", "the program");
        let copy = program(&files, Utf8Path::new("/tmp/gb")).unwrap();
        assert_eq!(copy, "/var/lib/gpu-bootstrap/kept/gpu-bootstrap");
    }

    #[test]
    fn unreadable_binary_is_an_error() {
        let files = FakeFiles::new();
        files.put_directory("/var/lib/gpu-bootstrap", 0o700);
        files.put("/tmp/gb", "the program");
        let error = program(&files, Utf8Path::new("/tmp/gb")).unwrap_err();
        assert_eq!(error.to_string(), "read `/proc/self/exe`");
        assert_eq!(files.mutations(), 0);
    }

    #[test]
    fn command_line_files_are_copied() {
        let files = FakeFiles::new();
        files.put_directory("/var/lib/gpu-bootstrap", 0o700);
        files.put("/tmp/node.toml", "[runtime]\n");
        let asked = Request {
            profile: Some("/run/own.toml".to_owned()),
            config: vec!["/etc/node.toml".into(), "/tmp/node.toml".into()],
            ..Request::default()
        };
        let (persistent, copies) = request(&files, &asked).unwrap();
        copy(&files, &copies).unwrap();
        assert_eq!(persistent.config[0], "/etc/node.toml");
        assert_eq!(
            persistent.config[1],
            "/var/lib/gpu-bootstrap/kept/0-node.toml"
        );
        assert_eq!(files.text(persistent.config[1].as_str()), "[runtime]\n");
        assert_eq!(
            persistent.profile.as_deref(),
            Some("/var/lib/gpu-bootstrap/kept/1-own.toml")
        );
        assert_eq!(
            request(&files, &persistent).unwrap(),
            (persistent, Vec::new())
        );
        let by_name = Request {
            profile: Some("debian".to_owned()),
            ..Request::default()
        };
        assert_eq!(request(&files, &by_name).unwrap(), (by_name, Vec::new()));
    }
}
