//! Path of our executable, for files that make root start it later.

use camino::{Utf8Path, Utf8PathBuf};

use crate::{
    error::one_line,
    host::{FilesError, trusted::refuse_foreign},
    step::{Assessment, Cx, StepError},
    tools::mounts,
};

/// The usual install path. Used if the path of the running executable is unknown.
pub const USUAL: &str = "/usr/local/bin/gpu-bootstrap";

/// The executable of the package. Used if the package was upgraded during the run, because the replaced executable has no path.
pub const PACKAGED: &str = "/usr/bin/gpu-bootstrap";

/// Prefix of the command line in a unit.
pub(super) const START: &str = "ExecStart=";

/// Returns the executable in the first line of a unit with this prefix, such as `ExecStart=`. Quoted paths are ignored.
pub(crate) fn program_in(text: &str, prefix: &str) -> Option<Utf8PathBuf> {
    let line = text.lines().find_map(|line| line.strip_prefix(prefix))?;
    let program = line.split(' ').next()?;
    let is_plain = program.starts_with('/') && !program.contains(['\\', '"', '%', '$']);
    is_plain.then(|| program.into())
}

/// Returns the path of our executable, or the reason that no file may contain this path: non-root users can replace the
/// executable, its directory may be emptied at boot, or the path contains shell metacharacters. The path differs between
/// machines, because the DaemonSet and administrators install the executable in different directories. Returns [`USUAL`] if
/// a directory (`--root`) is inspected instead of the running machine.
pub(super) fn persistent(cx: &Cx<'_>) -> Result<Result<Utf8PathBuf, String>, StepError> {
    let files = cx.host.files();
    if !cx.state.is_of_this_machine() {
        return Ok(Ok(USUAL.into()));
    }
    let path = match files.resolve("/proc/self/exe".into())? {
        Some(path) => path,
        None if !files.exists(USUAL.into())? && files.exists(PACKAGED.into())? => PACKAGED.into(),
        None => USUAL.into(),
    };
    if !mounts::stays(&path, &mounts::list(files)?) {
        return Ok(Err(format!(
            "the directory of `{path}` may be emptied at boot"
        )));
    }
    if !(path.as_str().chars()).all(|c| c.is_ascii_alphanumeric() || "/._-+".contains(c)) {
        return Ok(Err(format!("`{path}` contains shell metacharacters")));
    }
    match refuse_foreign(files, &path) {
        Ok(()) => Ok(Ok(path)),
        Err(error @ FilesError::Foreign { .. }) => Ok(Err(one_line(&error))),
        Err(error) => Err(error.into()),
    }
}

/// Returns `named`, the executable path in one of our files, if that executable exists and only root can replace it.
/// Otherwise returns the result of [`persistent`]. The two paths differ if another copy of gpu-bootstrap has written the file.
pub(super) fn named_or_persistent(
    cx: &Cx<'_>,
    named: Option<&Utf8Path>,
) -> Result<Result<Utf8PathBuf, String>, StepError> {
    let files = cx.host.files();
    if let Some(program) = named
        && files.exists(program)?
    {
        match refuse_foreign(files, program) {
            Ok(()) => return Ok(Ok(program.to_owned())),
            Err(FilesError::Foreign { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    persistent(cx)
}

/// Returns the executable for one of our units. `text` is its current content. See [`named_or_persistent`].
pub(super) fn of_unit(
    cx: &Cx<'_>,
    text: Option<&str>,
) -> Result<Result<Utf8PathBuf, String>, StepError> {
    let named = text.and_then(|text| program_in(text, START));
    named_or_persistent(cx, named.as_deref())
}

/// Returns the blocked assessment of a step whose file must contain the path of our executable, if [`persistent`]
/// rejects that path.
pub(super) fn not_persistent(why: &str, file: &str) -> Assessment {
    Assessment::blocked(
        format!("`{file}` would make root run an unsafe executable: {why}"),
        format!("run `install -m 755 gpu-bootstrap {USUAL}` as root, then run `{USUAL} install`"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{host::fake, steps::fixtures};

    #[test]
    fn replaceable_executable_is_not_used() {
        let (host, fakes) = fake::host();
        let (facts, desired) = (fixtures::facts(), fixtures::desired());
        let path = || {
            let state = fixtures::state(&host, fixtures::facts());
            let cx = fixtures::cx(&host, &facts, &state, &desired);
            persistent(&cx).expect("readable")
        };
        assert_eq!(path(), Ok(USUAL.into()));
        fakes.files.put(PACKAGED, "the upgraded program");
        assert_eq!(path(), Ok(PACKAGED.into()));
        fakes.files.put(USUAL, "the program");
        assert_eq!(path(), Ok(USUAL.into()));
        for (place, fits) in [
            ("/opt/gpu-bootstrap", true),
            ("/tmp/gpu-bootstrap", false),
            ("/run/gpu-bootstrap/program", false),
            ("/root/my tools/gpu-bootstrap", false),
        ] {
            fakes.files.put(place, "the program");
            host.files
                .link("/proc/self/exe".into(), place.into())
                .expect("linked");
            assert_eq!(path().is_ok(), fits, "{place}: {:?}", path());
        }
        host.files
            .link("/proc/self/exe".into(), "/opt/gpu-bootstrap".into())
            .expect("linked");
        host.files
            .chown("/opt/gpu-bootstrap".into(), 1000, 1000)
            .expect("given away");
        assert!(path().is_err_and(|why| why.contains("/opt/gpu-bootstrap")));
    }

    #[test]
    fn unit_keeps_its_executable_while_it_exists() {
        let (host, fakes) = fake::host();
        let (facts, desired) = (fixtures::facts(), fixtures::desired());
        let of_unit = |text| {
            let state = fixtures::state(&host, fixtures::facts());
            let cx = fixtures::cx(&host, &facts, &state, &desired);
            of_unit(&cx, text).expect("readable")
        };
        let unit = "[Service]\nExecStart=/opt/gpu-bootstrap check\n";
        assert_eq!(of_unit(Some(unit)), Ok(USUAL.into()));
        fakes.files.put("/opt/gpu-bootstrap", "the program");
        assert_eq!(of_unit(Some(unit)), Ok("/opt/gpu-bootstrap".into()));
        assert_eq!(of_unit(None), Ok(USUAL.into()));
    }
}
