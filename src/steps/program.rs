//! The path of this program, for files that have root start it later.

use camino::Utf8PathBuf;

use crate::{
    host::trusted::refuse_foreign,
    step::{Cx, StepError},
};

/// Where people put it, for a machine that is not this one.
const USUAL: &str = "/usr/local/bin/gpu-bootstrap";

/// Returns the path. The DaemonSet and a person put the program into different places.
///
/// # Errors
/// Others than root may replace it there: they would be root when it is started.
pub(super) fn lasting(cx: &Cx<'_>) -> Result<Utf8PathBuf, StepError> {
    let files = cx.host.files();
    let path = files.resolve("/proc/self/exe".into())?;
    match path.filter(|_| cx.state.is_of_this_machine()) {
        Some(path) => {
            refuse_foreign(files, &path)?;
            Ok(path)
        }
        None => Ok(USUAL.into()),
    }
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
            lasting(&Cx {
                host: host.reader(),
                facts: &facts,
                state: &state,
                desired: &desired,
                matrix: None,
            })
        };
        assert_eq!(path().expect("a path"), USUAL);
        fakes.files.put("/opt/gpu-bootstrap", "the program");
        host.files
            .link("/proc/self/exe".into(), "/opt/gpu-bootstrap".into())
            .expect("linked");
        assert_eq!(path().expect("a path"), "/opt/gpu-bootstrap");
        host.files
            .chown("/opt/gpu-bootstrap".into(), 1000, 1000)
            .expect("given away");
        let refused = path().map_err(|error| crate::error::one_line(&error));
        assert!(
            refused
                .as_ref()
                .is_err_and(|why| why.contains("/opt/gpu-bootstrap")),
            "{refused:?}"
        );
    }
}
