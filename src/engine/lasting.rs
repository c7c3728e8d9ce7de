//! What the run after a reboot needs must survive the reboot: this program and the files of its
//! command line. What lies in a place that a boot empties, and a program that others may write, is
//! copied into the state folder.

use camino::{Utf8Path, Utf8PathBuf};

use crate::{
    host::{Files, FilesError, ReadFiles, trusted::refuse_foreign},
    journal::Request,
    model::paths::STATE,
    tools::mounts,
};

/// This program, whatever its path is called by now.
const OURSELVES: &str = "/proc/self/exe";

/// The folder of copies; `uninstall` removes it with the state folder.
fn folder() -> Utf8PathBuf {
    Utf8Path::new(STATE).join("kept")
}

/// Where systemd may execute a program of ours on Enterprise Linux: SELinux' policy refuses one below `/var/lib`
/// (`init_t` may not execute `var_lib_t`). Here the label is `usr_t`, from which it starts `unconfined_service_t`
/// (`corecmd_bin_domtrans` in selinux-policy, branches c9s and c10s). Debian and Ubuntu have no such folder, and no such
/// policy.
const LIBEXEC: &str = "/usr/local/libexec";

/// The copy of this program there. It is a name of its own, so that no program of an administrator's is meant.
const IN_LIBEXEC: &str = "/usr/local/libexec/gpu-bootstrap-resume";

fn program_copy(files: &dyn Files) -> Result<Utf8PathBuf, FilesError> {
    let in_state = folder().join("gpu-bootstrap");
    if !files.exists(LIBEXEC.into())? {
        return Ok(in_state);
    }
    match refuse_foreign(files, LIBEXEC.into()) {
        Ok(()) => Ok(IN_LIBEXEC.into()),
        Err(FilesError::Foreign { .. }) => Ok(in_state),
        Err(error) => Err(error),
    }
}

/// Removes the copy that is not in the state folder.
pub(super) fn forget_program(files: &dyn Files) -> Result<(), FilesError> {
    match files.stat(IN_LIBEXEC.into())? {
        Some(_) => files.remove(IN_LIBEXEC.into()),
        None => Ok(()),
    }
}

/// The program for the resume unit: this one, or its copy where its path does not stay or others than
/// root may write it. Root executes it at boot.
pub(super) fn program(files: &dyn Files, exe: &Utf8Path) -> Result<Utf8PathBuf, FilesError> {
    if mounts::stays(exe, &mounts::list(files)?) {
        match refuse_foreign(files, exe) {
            Ok(()) => return Ok(exe.to_owned()),
            Err(FilesError::Foreign { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    let copy = program_copy(files)?;
    // Never by its path: since it was started, others may have put another program there.
    let ourselves = Utf8Path::new(OURSELVES);
    let content = files.read(ourselves)?.ok_or_else(|| FilesError::Io {
        verb: "read",
        path: ourselves.to_owned(),
        source: std::io::ErrorKind::NotFound.into(),
        disk: None,
    })?;
    if files.read(&copy)?.as_ref() != Some(&content) {
        if copy != IN_LIBEXEC {
            files.create_folder(&folder(), 0o700)?;
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

/// The request with paths that stay, and the copies that it needs.
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
        let to = folder().join(format!("{}-{name}", copies.len()));
        copies.push(Copy {
            from: path.to_owned(),
            to: to.clone(),
        });
        to
    };
    let mut lasting = request.clone();
    lasting.config = request.config.iter().map(|path| kept(path)).collect();
    if let Some(profile) = &request.profile
        && profile.starts_with('/')
    {
        lasting.profile = Some(kept(Utf8Path::new(profile)).into_string());
    }
    Ok((lasting, copies))
}

/// Makes the copies, for root alone: a configuration may hold a secret.
pub(super) fn copy(files: &dyn Files, copies: &[Copy]) -> Result<(), FilesError> {
    for Copy { from, to } in copies {
        let Some(content) = files.read(from)? else {
            // It was read a moment ago. The run after the reboot will name the missing copy.
            continue;
        };
        files.create_folder(&folder(), 0o700)?;
        files.write(to, &content, 0o600)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::fake::FakeFiles;

    #[test]
    fn the_program_is_copied_once_and_only_if_it_must_be() {
        let files = FakeFiles::new();
        files.put_folder("/var/lib/gpu-bootstrap", 0o700);
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
        // It was replaced while it runs.
        files.put("/proc/self/exe", "the old program");
        let copy = program(&files, Utf8Path::new("/opt/gb (deleted)")).unwrap();
        assert_eq!(files.text(copy.as_str()), "the old program");
        // The copy itself stays.
        assert_eq!(program(&files, &copy).unwrap(), copy);
    }

    #[test]
    fn a_program_that_others_may_write_is_copied_from_memory() {
        let files = FakeFiles::new();
        files.put_folder("/var/lib/gpu-bootstrap", 0o700);
        let exe = "/home/local/gb";
        files.put(exe, "replaced");
        files.put("/proc/self/exe", "the program");
        assert_eq!(program(&files, exe.into()).unwrap(), exe);
        files.own("/home/local", 1000, 1000);
        let copy = program(&files, exe.into()).unwrap();
        assert_eq!(copy, folder().join("gpu-bootstrap"));
        assert_eq!(files.text(copy.as_str()), "the program");
    }

    /// SELinux lets systemd execute nothing below `/var/lib`.
    #[test]
    fn on_enterprise_linux_the_copy_is_where_systemd_may_execute_it() {
        let files = FakeFiles::new();
        files.put_folder("/var/lib/gpu-bootstrap", 0o700);
        files.put_folder("/usr/local/libexec", 0o755);
        files.put("/proc/self/exe", "the program");
        let copy = program(&files, Utf8Path::new("/tmp/gb")).unwrap();
        assert_eq!(copy, "/usr/local/libexec/gpu-bootstrap-resume");
        assert_eq!(files.text(copy.as_str()), "the program");
        forget_program(&files).unwrap();
        forget_program(&files).unwrap();
        assert!(!files.exists(&copy).unwrap());
        assert!(files.exists(LIBEXEC.into()).unwrap());
        // Others may write there.
        let files = FakeFiles::new();
        files.put_folder("/var/lib/gpu-bootstrap", 0o700);
        files.put_folder("/usr/local/libexec", 0o2775);
        files.own("/usr/local/libexec", 0, 50);
        files.put("/proc/self/exe", "the program");
        let copy = program(&files, Utf8Path::new("/tmp/gb")).unwrap();
        assert_eq!(copy, "/var/lib/gpu-bootstrap/kept/gpu-bootstrap");
    }

    #[test]
    fn a_program_that_cannot_be_read_is_an_error_and_never_an_empty_copy() {
        let files = FakeFiles::new();
        files.put_folder("/var/lib/gpu-bootstrap", 0o700);
        files.put("/tmp/gb", "the program");
        let error = program(&files, Utf8Path::new("/tmp/gb")).unwrap_err();
        assert_eq!(error.to_string(), "read `/proc/self/exe`");
        assert_eq!(files.mutations(), 0);
    }

    #[test]
    fn the_files_of_the_command_line_are_copied_and_the_copies_stay() {
        let files = FakeFiles::new();
        files.put_folder("/var/lib/gpu-bootstrap", 0o700);
        files.put("/tmp/node.toml", "[runtime]\n");
        let asked = Request {
            profile: Some("/run/own.toml".to_owned()),
            config: vec!["/etc/node.toml".into(), "/tmp/node.toml".into()],
            ..Request::default()
        };
        let (lasting, copies) = request(&files, &asked).unwrap();
        copy(&files, &copies).unwrap();
        assert_eq!(lasting.config[0], "/etc/node.toml");
        assert_eq!(lasting.config[1], "/var/lib/gpu-bootstrap/kept/0-node.toml");
        assert_eq!(files.text(lasting.config[1].as_str()), "[runtime]\n");
        assert_eq!(
            lasting.profile.as_deref(),
            Some("/var/lib/gpu-bootstrap/kept/1-own.toml")
        );
        assert_eq!(request(&files, &lasting).unwrap(), (lasting, Vec::new()));
        let by_name = Request {
            profile: Some("debian".to_owned()),
            ..Request::default()
        };
        assert_eq!(request(&files, &by_name).unwrap(), (by_name, Vec::new()));
    }
}
