//! `check.program`: the files with which systemd, DKMS and container runtimes start gpu-bootstrap must contain the path of an
//! existing program that is not older than the other copies. The path can become wrong if the administrator replaces the
//! program of an archive, in `/usr/local/bin`, with the package, whose program is in `/usr/bin`.

use std::{collections::BTreeMap, time::Duration};

use camino::{Utf8Path, Utf8PathBuf};

use crate::{
    check::{Family, Finding, INSTALL, Subject, Verdict},
    error::one_line,
    host::{ExecError, FilesError, Query, ReadFiles, trusted::refuse_foreign},
    model::{id::Id, text::shell_word},
    runtimes::Daemon,
    step::StepError,
    steps::{PACKAGED, STARTING_UNITS, USUAL, override_starts, program_in},
    tools::systemctl::own_file,
};

const PROGRAM: Id = Id::new("check.program");

/// The `check.program` check.
pub(super) const FAMILY: Family = Family {
    ids: || vec![PROGRAM],
    examine: |subject| Box::pin(examine(subject)),
};

/// The deadline of the version query.
const DEADLINE: Duration = Duration::from_secs(10);

/// A file that starts gpu-bootstrap, and the path of the program in it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Start {
    file: Utf8PathBuf,
    program: Utf8PathBuf,
}

/// A copy of gpu-bootstrap.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Installed {
    Missing,
    /// It exists, but was not executed: with `--root`, or because non-root users can replace it.
    NotExecuted,
    Version(String),
    /// The version could not be queried, with the reason.
    Unknown(String),
}

#[derive(Debug, Clone)]
struct ProgramState {
    starts: Vec<Start>,
    /// All copies, by path.
    copies: BTreeMap<Utf8PathBuf, Installed>,
}

/// Returns the files that start gpu-bootstrap. The cloud-init script of the resume unit contains the same path as the unit.
fn starts(files: &dyn ReadFiles) -> Result<Vec<Start>, FilesError> {
    let units = STARTING_UNITS.map(|unit| (own_file(unit), "ExecStart="));
    let drop_ins = (Daemon::ALL.into_iter())
        .filter_map(|daemon| daemon.configured().rewritten())
        .map(|one| (Utf8PathBuf::from(one.drop_in), "ExecStartPre=-"));
    let mut found = Vec::new();
    for (file, prefix) in units.into_iter().chain(drop_ins) {
        let text = files.read_lossy(&file)?.unwrap_or_default();
        found.extend(program_in(&text, prefix).map(|program| Start { file, program }));
    }
    let overrides = override_starts(files)?.into_iter();
    found.extend(overrides.map(|(file, program)| Start { file, program }));
    Ok(found)
}

/// Examines a copy. `own` is the path of the running program.
async fn installed(
    subject: &Subject<'_>,
    program: &Utf8Path,
    own: Option<&Utf8Path>,
) -> Result<Installed, StepError> {
    let files = subject.host.files();
    let Some(path) = files.resolve(program)? else {
        return Ok(Installed::Missing);
    };
    if own == Some(path.as_path()) {
        return Ok(Installed::Version(env!("CARGO_PKG_VERSION").to_owned()));
    }
    if !subject.state.is_of_this_machine() {
        return Ok(Installed::NotExecuted);
    }
    match refuse_foreign(files, program) {
        Ok(()) => {}
        Err(FilesError::Foreign { .. }) => return Ok(Installed::NotExecuted),
        Err(error) => return Err(error.into()),
    }
    let query = Query::new(program.as_str(), ["--version"]).deadline(DEADLINE);
    let output = subject.host.query(&query).await;
    Ok(
        match output.and_then(|output| output.success(query.cmd())) {
            Ok(output) => match output.stdout.trim().strip_prefix("gpu-bootstrap ") {
                Some(version) => Installed::Version(version.to_owned()),
                None => Installed::Unknown("it is not gpu-bootstrap".to_owned()),
            },
            Err(ExecError::NotQueried { .. }) => Installed::NotExecuted,
            Err(error) => Installed::Unknown(one_line(&error)),
        },
    )
}

async fn detect(subject: &Subject<'_>) -> Result<ProgramState, StepError> {
    let files = subject.host.files();
    let starts = starts(files)?;
    let mut copies = BTreeMap::new();
    if starts.is_empty() {
        return Ok(ProgramState { starts, copies });
    }
    // `None` if the running program was replaced.
    let own = match subject.state.is_of_this_machine() {
        true => files.resolve("/proc/self/exe".into())?,
        false => None,
    };
    let programs = (starts.iter().map(|start| start.program.as_path()))
        .chain([USUAL, PACKAGED].map(Utf8Path::new))
        .chain(own.as_deref());
    for program in programs {
        if !copies.contains_key(program) {
            let copy = installed(subject, program, own.as_deref()).await?;
            copies.insert(program.to_owned(), copy);
        }
    }
    Ok(ProgramState { starts, copies })
}

/// A sort key of a version. A pre-release such as `0.2.0-rc.1` is older than its release.
fn order(version: &str) -> (Vec<u64>, bool, usize, &str) {
    let (numbers, pre) = version.split_once('-').unwrap_or((version, ""));
    let numbers = numbers.split('.').map(|one| one.parse().unwrap_or(0));
    (numbers.collect(), pre.is_empty(), pre.len(), pre)
}

fn decide(state: &ProgramState) -> Finding {
    let finding = |status, why: String| Finding::new(PROGRAM, status, why);
    let Some(first) = state.starts.first() else {
        return finding(
            Verdict::Skip,
            "no unit and no other file starts gpu-bootstrap".to_owned(),
        );
    };
    let copy_of = |start: &Start| state.copies.get(&start.program);
    let missing: Vec<String> = (state.starts.iter())
        .filter(|start| copy_of(start) == Some(&Installed::Missing))
        .map(|Start { file, program }| format!("`{file}` starts `{program}`, which does not exist"))
        .collect();
    if !missing.is_empty() {
        return finding(Verdict::Fail, missing.join("; ")).with_remedy(format!(
            "run `{INSTALL}`, which writes the path of the current program"
        ));
    }
    let version = |copy: &Installed| match copy {
        Installed::Version(version) => Some(version.clone()),
        _ => None,
    };
    let newest = (state.copies.iter())
        .filter_map(|(path, copy)| Some((path, version(copy)?)))
        .max_by(|(_, one), (_, other)| order(one).cmp(&order(other)));
    if let Some((path, newest)) = newest {
        let older: Vec<(&Start, String)> = (state.starts.iter())
            .filter_map(|start| Some((start, version(copy_of(start)?)?)))
            .filter(|(_, version)| order(version) < order(&newest))
            .collect();
        if let Some((Start { program, .. }, _)) = older.first() {
            let whys: Vec<String> = (older.iter())
                .map(|(start, version)| {
                    format!("`{}` starts `{}` {version}", start.file, start.program)
                })
                .collect();
            let remedy = match program == PACKAGED {
                true => {
                    format!("upgrade the package `gpu-bootstrap`, or remove it and run `{INSTALL}`")
                }
                false => format!(
                    "replace `{program}` with the newer program, or remove it with `rm {}` and run `{INSTALL}`",
                    shell_word(program)
                ),
            };
            let why = format!("{}, but `{path}` is {newest}", whys.join("; "));
            return finding(Verdict::Warn, why).with_remedy(remedy);
        }
    }
    for start in &state.starts {
        if let Some(Installed::Unknown(why)) = copy_of(start) {
            return finding(
                Verdict::Unknown,
                format!("the version of `{}` is unknown: {why}", start.program),
            );
        }
    }
    let others = match state.starts.len() - 1 {
        0 => String::new(),
        1 => " and 1 other file".to_owned(),
        others => format!(" and {others} other files"),
    };
    finding(
        Verdict::Pass,
        format!(
            "the program in `{}`{others} exists, and no copy is newer",
            first.file
        ),
    )
}

async fn examine(subject: &Subject<'_>) -> Result<Vec<Finding>, StepError> {
    Ok(vec![decide(&detect(subject).await?)])
}

#[cfg(test)]
mod tests {
    use std::cmp::Ordering;

    use super::*;
    use crate::{
        dkms,
        host::fake::{self, FakeFiles},
        state::State,
        steps::fixtures::{facts, matrix, state, state_below_root},
    };

    const SERVICE: &str = "/etc/systemd/system/gpu-bootstrap-check.service";
    const OWN: &str = env!("CARGO_PKG_VERSION");

    /// Returns the finding for a machine with these files, on which the copy in `/usr/local/bin` prints `output` and the
    /// packaged program is running.
    async fn examined(
        state_of: fn(&crate::host::Host, crate::facts::Facts) -> State,
        output: &'static str,
        put: impl Fn(&FakeFiles),
    ) -> Finding {
        let (host, fakes) = fake::host();
        fakes.files.put(PACKAGED, "the packaged program");
        fakes.files.put_link("/proc/self/exe", PACKAGED);
        fakes.exec.on(USUAL, move |cmd, _| {
            assert_eq!(cmd.args, ["--version"]);
            fake::ok(output)
        });
        put(&fakes.files);
        let (facts, matrix) = (facts(), matrix());
        let state = state_of(&host, facts.clone());
        let subject = Subject {
            host: host.reader(),
            facts: &facts,
            state: &state,
            matrix: &matrix,
            desired: None,
            prepared: true,
        };
        examine(&subject).await.expect("readable").remove(0)
    }

    fn unit(program: &str) -> String {
        format!("[Service]\nExecStart={program} check --as-installed\n")
    }

    #[tokio::test]
    async fn each_file_with_a_missing_program_is_reported() {
        let files = [
            (SERVICE, unit(USUAL)),
            (
                "/etc/systemd/system/gpu-bootstrap-resume.service",
                format!("[Service]\nExecStart={USUAL} install --resume\n"),
            ),
            (
                "/etc/systemd/system/gpu-bootstrap-mig.service",
                format!("[Service]\nExecStart={USUAL} partition-gpus 0000:18:00.0=disabled\n"),
            ),
            (
                "/etc/dkms/nvidia.conf",
                dkms::override_text(USUAL.into(), &[]),
            ),
        ];
        let drop_in = (Daemon::ALL.into_iter())
            .find_map(|daemon| daemon.configured().rewritten())
            .expect("a drop-in");
        let line = format!("[Service]\nExecStartPre=-{USUAL} {}\n", drop_in.subcommand);
        for (path, text) in files.into_iter().chain([(drop_in.drop_in, line)]) {
            let found = examined(state, "", |files| files.put(path, text.as_str())).await;
            assert_eq!(found.status, Verdict::Fail, "{path}: {}", found.why);
            assert_eq!(
                found.why,
                format!("`{path}` starts `{USUAL}`, which does not exist")
            );
            let below = examined(state_below_root, "", |files| files.put(path, text.as_str()));
            assert_eq!(below.await.status, Verdict::Fail, "{path}");
            let renewed = text.replace(USUAL, PACKAGED);
            let found = examined(state, "", |files| files.put(path, renewed.as_str())).await;
            assert_eq!(found.status, Verdict::Pass, "{path}: {}", found.why);
        }
        let found = examined(state, "", |files| files.put("/etc/dkms/zfs.conf", "")).await;
        assert_eq!(found.status, Verdict::Skip, "{}", found.why);
    }

    #[tokio::test]
    async fn older_program_in_a_unit_is_a_warning() {
        let both = |files: &FakeFiles| {
            files.put(SERVICE, unit(USUAL));
            files.put(USUAL, "the program of the archive");
        };
        for (output, status, part) in [
            ("gpu-bootstrap 0.0.1\n", Verdict::Warn, "0.0.1, but"),
            ("gpu-bootstrap 99.0.0\n", Verdict::Pass, ""),
            ("something else\n", Verdict::Unknown, "not gpu-bootstrap"),
        ] {
            let found = examined(state, output, both).await;
            assert_eq!(found.status, status, "{output}: {}", found.why);
            assert!(found.why.contains(part), "{output}: {}", found.why);
        }
        let found = examined(state, "gpu-bootstrap 0.0.1\n", both).await;
        assert_eq!(
            found.why,
            format!("`{SERVICE}` starts `{USUAL}` 0.0.1, but `{PACKAGED}` is {OWN}")
        );
        let remedy = found.remedy.unwrap_or_default();
        assert!(remedy.contains(&format!("`rm {USUAL}`")), "{remedy}");
        // With `--root` and for a program that other users can replace, nothing is executed.
        let found = examined(state_below_root, "gpu-bootstrap 0.0.1\n", both).await;
        assert_eq!(found.status, Verdict::Pass, "{}", found.why);
        let found = examined(state, "gpu-bootstrap 0.0.1\n", |files| {
            both(files);
            files.own(USUAL, 1000, 1000);
        })
        .await;
        assert_eq!(found.status, Verdict::Pass, "{}", found.why);
        // A symlink to the running program is not another copy.
        let found = examined(state, "gpu-bootstrap 0.0.1\n", |files| {
            files.put(SERVICE, unit(USUAL));
            files.put_link(USUAL, PACKAGED);
        })
        .await;
        assert_eq!(found.status, Verdict::Pass, "{}", found.why);
    }

    #[test]
    fn versions_are_compared_as_numbers() {
        for (older, newer) in [
            ("0.1.0", "0.1.1"),
            ("0.9.0", "0.10.0"),
            ("0.2.0-rc.1", "0.2.0"),
            ("0.1.0", "0.2.0-rc.1"),
            ("0.2.0-rc.9", "0.2.0-rc.10"),
        ] {
            assert_eq!(order(older).cmp(&order(newer)), Ordering::Less, "{older}");
        }
        assert_eq!(order("1.0.0"), order("1.0.0"));
    }
}
