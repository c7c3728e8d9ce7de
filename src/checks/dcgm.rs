//! Checks that only one DCGM host engine runs. A second one, for example in a pod of the DCGM exporter, cannot read the profiling
//! metrics. Not verified on a machine with a GPU.

use camino::Utf8PathBuf;

use crate::{
    check::{Family, Finding, Subject, Verdict},
    host::{
        ReadFiles,
        system::{Process, has_exited, program_of},
    },
    model::id::Id,
    step::StepError,
    tools::dcgm::{REMOTE_VARIABLE, has_engine},
};

const ENGINES: Id = Id::new("dcgm.engines");

pub(super) const FAMILY: Family = Family {
    ids: || vec![ENGINES],
    examine: |subject| Box::pin(examine(subject)),
};

/// Whether the environment of a process contains the address of another host engine. Only the name of the variable is used.
fn is_remote(files: &dyn ReadFiles, process: &Process) -> Result<bool, StepError> {
    let path = Utf8PathBuf::from(format!("/proc/{}/environ", process.pid));
    let environment = files.read_lossy(&path)?.unwrap_or_default();
    let mut variables = environment.split('\0');
    Ok(variables.any(|variable| {
        (variable.split_once('='))
            .is_some_and(|(name, value)| name == REMOTE_VARIABLE && !value.is_empty())
    }))
}

/// Returns a process with the name of its program if it is a host engine. `None` also if it has exited.
fn engine(files: &dyn ReadFiles, process: Process) -> Result<Option<Process>, StepError> {
    let program = program_of(files, process.pid)?;
    // Without root permissions, the program is unknown. Then the environment cannot be read either, which is an error.
    let name = program.as_deref().or(process.name.as_deref());
    let command = process.command.as_deref().unwrap_or_default();
    if !name.is_some_and(|name| has_engine(name, command)) {
        return Ok(None);
    }
    let is_remote = is_remote(files, &process);
    if has_exited(files, process.pid) || is_remote? {
        return Ok(None);
    }
    Ok(program.map(|program| Process {
        name: Some(program),
        ..process
    }))
}

fn decide(engines: &[Process]) -> Finding {
    let finding = |status, why: String| Finding::new(ENGINES, status, why);
    let names: Vec<String> = (engines.iter())
        .map(|process| {
            let name = process.name.as_deref().unwrap_or("unknown");
            format!("{name} (process {})", process.pid)
        })
        .collect();
    let pids: Vec<String> = (engines.iter())
        .map(|process| process.pid.to_string())
        .collect();
    match engines {
        [] => finding(Verdict::Skip, "DCGM is not running".to_owned()),
        [_] => finding(
            Verdict::Pass,
            format!("only {} is running", names.join(", ")),
        ),
        _ => Finding {
            observed: Some(engines.len().to_string()),
            expected: Some("1".to_owned()),
            remedy: Some(format!(
                "run `ps -o pid,cgroup,args -p {}` to find their units and pods; stop all but one, or set \
                 `--remote-hostengine-info` of the exporter",
                pids.join(",")
            )),
            ..finding(
                Verdict::Warn,
                format!(
                    "{} DCGM host engines are running, but only one of them can read the profiling metrics: {}",
                    engines.len(),
                    names.join(", ")
                ),
            )
        },
    }
}

async fn examine(subject: &Subject<'_>) -> Result<Vec<Finding>, StepError> {
    let mut engines = Vec::new();
    for process in subject.host.system().processes()? {
        engines.extend(engine(subject.host.files(), process)?);
    }
    Ok(vec![decide(&engines)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::fake::FakeFiles;

    fn process(pid: u32, name: &str) -> Process {
        Process {
            pid,
            name: Some(name.to_owned()),
            command: Some(name.to_owned()),
            uid: Some(0),
        }
    }

    #[test]
    fn second_engine_is_reported() {
        let (engine, exporter) = (process(40, "nv-hostengine"), process(41, "dcgm-exporter"));
        assert_eq!(decide(&[]).status, Verdict::Skip);
        assert_eq!(decide(std::slice::from_ref(&engine)).status, Verdict::Pass);
        let finding = decide(&[engine, exporter]);
        assert_eq!(finding.status, Verdict::Warn);
        assert!(
            finding.why.ends_with("dcgm-exporter (process 41)"),
            "{}",
            finding.why
        );
        assert!(
            finding
                .remedy
                .is_some_and(|remedy| remedy.contains("-p 40,41`"))
        );
    }

    #[test]
    fn program_decides_and_not_the_name() {
        let files = FakeFiles::default();
        for (pid, program) in rows! {
            40, "/usr/bin/nv-hostengine";
            41, "/usr/bin/nv-hostengine (deleted)";
            42, "/usr/bin/python3.11";
        } {
            files.put_link(&format!("/proc/{pid}/exe"), program);
        }
        // The last process has exited.
        for (pid, name, found) in rows! {
            40, "renamed", Some("nv-hostengine");
            41, "nv-hostengine", Some("nv-hostengine");
            42, "nv-hostengine", None;
            43, "nv-hostengine", None;
        } {
            let engine = engine(&files, process(pid, name)).expect("readable");
            let name = engine.and_then(|engine| engine.name);
            assert_eq!(name.as_deref(), found, "{pid} {name:?}");
        }
    }

    #[test]
    fn exporter_in_a_pod_may_use_another_engine() {
        let files = FakeFiles::default();
        let exporter = process(41, "dcgm-exporter");
        for (environment, remote) in rows! {
            "A=b\0DCGM_REMOTE_HOSTENGINE_INFO=10.0.0.1:5555\0", true;
            "DCGM_REMOTE_HOSTENGINE_INFO=\0", false;
            "NOT_DCGM_REMOTE_HOSTENGINE_INFO=a\0", false;
        } {
            files.put("/proc/41/environ", environment);
            let found = is_remote(&files, &exporter).expect("readable");
            assert_eq!(found, remote, "{environment}");
        }
    }
}
