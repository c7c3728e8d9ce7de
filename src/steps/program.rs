//! Where this program is, for files that have root start it later.

use camino::{Utf8Path, Utf8PathBuf};

use crate::{
    error::one_line,
    host::{FilesError, trusted::refuse_foreign},
    step::{Assessment, Cx, StepError},
    tools::mounts,
};

/// Where people put it. It counts if nothing tells where the program is.
const USUAL: &str = "/usr/local/bin/gpu-bootstrap";

/// Returns the path of the program, or why no file may name it: others than root could put another program there, at once or
/// once a boot has emptied the folder, or the path means something to a shell. The DaemonSet and a person put the program into
/// different places.
pub(super) fn lasting(cx: &Cx<'_>) -> Result<Result<Utf8PathBuf, String>, StepError> {
    let files = cx.host.files();
    if !cx.state.is_of_this_machine() {
        return Ok(Ok(USUAL.into()));
    }
    let path = files
        .resolve("/proc/self/exe".into())?
        .unwrap_or_else(|| USUAL.into());
    if !mounts::stays(&path, &mounts::list(files)?) {
        return Ok(Err(format!(
            "`{path}`, where this program is, may be emptied at a boot"
        )));
    }
    if !(path.as_str().chars()).all(|c| c.is_ascii_alphanumeric() || "/._-+".contains(c)) {
        return Ok(Err(format!(
            "`{path}`, where this program is, has characters that a shell knows"
        )));
    }
    match refuse_foreign(files, &path) {
        Ok(()) => Ok(Ok(path)),
        Err(error @ FilesError::Foreign { .. }) => Ok(Err(one_line(&error))),
        Err(error) => Err(error.into()),
    }
}

/// Returns the program that a file of ours names, as long as it is there and only root may replace it: another copy of this program
/// may have written the file. Otherwise as [`lasting`].
pub(super) fn named_or_lasting(
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
    lasting(cx)
}

/// Returns the answer of a step that has to name the program in a file, and may not.
pub(super) fn not_lasting(why: &str, file: &str) -> Assessment {
    Assessment::blocked(
        format!("`{file}` would have root start this program later: {why}"),
        format!("run `install -m 755 gpu-bootstrap {USUAL}` as root, then run `{USUAL} install`"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{host::fake, steps::fixtures};

    #[test]
    fn a_program_that_others_may_replace_is_not_started_later() {
        let (host, fakes) = fake::host();
        let (facts, desired) = (fixtures::facts(), fixtures::desired());
        let path = || {
            let state = fixtures::state(&host, fixtures::facts());
            let cx = fixtures::cx(&host, &facts, &state, &desired);
            lasting(&cx).expect("readable")
        };
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
}
