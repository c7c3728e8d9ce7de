//! Checks that only one DCGM host engine runs, and no profiler next to it. A second host engine, for example in a pod of the DCGM
//! exporter, and a profiler cannot use the profiling counters at the same time. Not verified on a machine with a GPU.

use camino::Utf8PathBuf;

use crate::{
    check::{Family, Finding, Subject, Verdict},
    host::{
        ReadFiles,
        system::{Process, has_exited, program_of},
    },
    model::id::Id,
    step::StepError,
    tools::dcgm::{REMOTE_VARIABLE, has_engine, is_profiler},
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

/// Returns a process with the name of its program if it is a profiler. `None` also if the program is unknown.
fn profiler(files: &dyn ReadFiles, process: &Process) -> Result<Option<Process>, StepError> {
    let program = program_of(files, process.pid)?;
    Ok(
        (program.filter(|program| is_profiler(program))).map(|program| Process {
            name: Some(program),
            ..process.clone()
        }),
    )
}

/// The names of the programs with their process IDs.
fn list(processes: &[Process]) -> String {
    let all: Vec<String> = (processes.iter())
        .map(|process| {
            let name = process.name.as_deref().unwrap_or("unknown");
            format!("{name} (process {})", process.pid)
        })
        .collect();
    all.join(", ")
}

fn decide(engines: &[Process], profilers: &[Process]) -> Finding {
    let finding = |status, why: String| Finding::new(ENGINES, status, why);
    let names = list(engines);
    let pids: Vec<String> = (engines.iter())
        .map(|process| process.pid.to_string())
        .collect();
    match engines {
        [] => finding(Verdict::Skip, "DCGM is not running".to_owned()),
        [one] if !profilers.is_empty() => finding(
            Verdict::Warn,
            format!(
                "{} and {names} are running, but only one of them can use the profiling counters of a GPU",
                list(profilers)
            ),
        )
        .with_remedy(match one.name.as_deref() {
            Some("dcgm-exporter") => "stop the DCGM exporter of this node while the profiler runs",
            _ => "run `dcgmi profile --pause` before the profiler starts, and `dcgmi profile --resume` when it has exited",
        }),
        [_] => finding(Verdict::Pass, format!("only {names} is running")),
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
                    "{} DCGM host engines are running, but only one of them can read the profiling metrics: {names}",
                    engines.len()
                ),
            )
        },
    }
}

async fn examine(subject: &Subject<'_>) -> Result<Vec<Finding>, StepError> {
    let (mut engines, mut profilers) = (Vec::new(), Vec::new());
    let files = subject.host.files();
    for process in subject.host.system().processes()? {
        profilers.extend(profiler(files, &process)?);
        engines.extend(engine(files, process)?);
    }
    Ok(vec![decide(&engines, &profilers)])
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
        assert_eq!(decide(&[], &[]).status, Verdict::Skip);
        assert_eq!(
            decide(std::slice::from_ref(&engine), &[]).status,
            Verdict::Pass
        );
        let finding = decide(&[engine, exporter], &[]);
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
    fn profiler_next_to_dcgm_is_reported() {
        let files = FakeFiles::default();
        files.put_link("/proc/50/exe", "/opt/nvidia/nsight-compute/2026.2.0/ncu");
        files.put_link("/proc/51/exe", "/usr/bin/python3.11");
        let found = profiler(&files, &process(50, "ncu")).expect("readable");
        let profilers: Vec<Process> = found.into_iter().collect();
        let other = profiler(&files, &process(51, "ncu")).expect("readable");
        assert!(other.is_none());
        let finding = decide(&[process(40, "nv-hostengine")], &profilers);
        assert_eq!(finding.status, Verdict::Warn);
        assert!(
            finding
                .why
                .starts_with("ncu (process 50) and nv-hostengine (process 40)"),
            "{}",
            finding.why
        );
        // Without DCGM, a profiler has the counters.
        assert_eq!(decide(&[], &profilers).status, Verdict::Skip);
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
