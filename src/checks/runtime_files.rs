//! Checks of container runtime and NVIDIA toolkit configuration files, which are parsed like the programs parse them. If
//! programs can be run, their own validation takes precedence.

use camino::Utf8Path;

use crate::{
    check::{Family, Finding, Subject, Verdict},
    host::ReadFiles,
    model::{id::Id, text::shell_word},
    runtimes::{Harm, Report, RuntimeFault, RuntimeKind, cdi},
    state::has_library,
    step::StepError,
    tools::toolkit,
};

const TOOLKIT: Id = Id::new("rt.toolkit.files");

/// The runtimes with a daemon. The findings of other runtimes (Podman) are part of `rt.toolkit.files`.
fn kinds() -> impl Iterator<Item = RuntimeKind> {
    (RuntimeKind::ALL.into_iter()).filter(|kind| kind.daemon().is_some())
}

pub(super) fn id(kind: RuntimeKind) -> Id {
    Id::owned(format!("rt.{}.files", kind.name()))
}

/// The runtime file checks.
pub(super) const FAMILY: Family = Family {
    ids: || kinds().map(id).chain([TOOLKIT]).collect(),
    examine: |subject| Box::pin(examine(subject)),
};

fn say(id: &Id, status: Verdict, why: impl Into<String>) -> Finding {
    Finding::new(id.clone(), status, why)
}

/// Returns the finding for a report.
fn finding(id: &Id, report: &Report) -> Finding {
    match report {
        Report::Nothing(why) => say(id, Verdict::Skip, why.as_str()),
        Report::Whole(why) => say(id, Verdict::Pass, *why),
        Report::Faulty(faults) => {
            let whys: Vec<&str> = faults.iter().map(|one| one.fault.why.as_str()).collect();
            let counts = |one: &RuntimeFault| one.harm > Harm::Perhaps;
            Finding {
                remedy: faults.first().map(|one| one.fault.remedy.clone()),
                ..say(
                    id,
                    match faults.iter().any(counts) {
                        true => Verdict::Fail,
                        false => Verdict::Warn,
                    },
                    whys.join("; "),
                )
            }
        }
    }
}

/// Returns the finding for the toolkit configurations of the host and of the GPU Operator. The first problem is returned.
async fn toolkit_files(subject: &Subject<'_>) -> Result<Finding, StepError> {
    let mut found = say(&TOOLKIT, Verdict::Skip, "no configuration exists");
    for path in [toolkit::CONFIG, toolkit::OPERATOR_CONFIG] {
        let Some(one) = toolkit_file(subject, path).await? else {
            continue;
        };
        let failed = one.status != Verdict::Pass;
        found = one;
        if failed {
            break;
        }
    }
    Ok(found)
}

/// Returns the finding for a toolkit configuration: its first error, or a pass. `None` if the file does not exist.
async fn toolkit_file(subject: &Subject<'_>, path: &str) -> Result<Option<Finding>, StepError> {
    let files = subject.host.files();
    let Some(text) = files.read_text(Utf8Path::new(path))? else {
        return Ok(None);
    };
    let of_operator = path == toolkit::OPERATOR_CONFIG;
    let faulty =
        |status, why: String, remedy: String| say(&TOOLKIT, status, why).with_remedy(remedy);
    let config = match toolkit::parse_config(&text) {
        Ok(config) => config,
        Err(why) => {
            return Ok(Some(faulty(
                Verdict::Fail,
                format!("no GPUs in containers: `{path}` is not valid TOML ({why})"),
                format!("correct `{path}`"),
            )));
        }
    };
    // NVIDIA/nvidia-docker issue 1711, NVIDIA/nvidia-container-toolkit issue 154.
    if let Some(root) = &config.root {
        let has_driver = has_library(files, Utf8Path::new(root))?;
        let driver = subject.state.driver().await;
        let is_elsewhere = driver.library_version.is_some() || driver.package_version.is_some();
        let is_on_host = has_library(files, Utf8Path::new("/"))?;
        if !has_driver && is_elsewhere {
            return Ok(Some(faulty(
                Verdict::Fail,
                format!(
                    "no GPUs in containers: no driver in `{root}`; this is the `root` in `{path}` (`load library failed: \
                     libnvidia-ml.so.1`)"
                ),
                match of_operator {
                    // A root with other characters would be part of the script.
                    true if is_on_host && shell_word(root) == *root => format!(
                        "run `sed -i -e 's|\"{root}\"|\"/\"|' -e 's|@{root}/|@/|' {}`, because the driver is on the host; then \
                         restart the containers, and set `driver.enabled=false` in the operator, whose toolkit pods \
                         regenerate the file when they start",
                        shell_word(path)
                    ),
                    true => format!(
                        "install the operator with `driver.enabled=false`, because the driver is on the host, and restart its \
                         toolkit pods, which regenerate `{path}`"
                    ),
                    false if is_on_host => format!(
                        "run `sed -i 's/^ *root *=/#&/' {}`, because the driver is on the host itself; then restart the \
                         containers",
                        shell_word(path)
                    ),
                    false => format!(
                        "set `root` in `{path}` to the directory of the driver, then restart the containers"
                    ),
                },
            )));
        }
    }
    if let Some(ldconfig) = &config.ldconfig {
        let version = subject.state.toolkit_version().await;
        let is_exact = version.is_some_and(|version| version < toolkit::TAKES_BOTH_NAMES);
        let names = match is_exact {
            true => vec![ldconfig.clone()],
            false => toolkit::both_names(ldconfig).to_vec(),
        };
        let mut there = false;
        for name in names {
            there |= files.stat(Utf8Path::new(&name))?.is_some();
        }
        let directory = Utf8Path::new(ldconfig)
            .parent()
            .unwrap_or(Utf8Path::new("/"));
        // Without programs in the tree, the existence is unknown.
        if !there && !files.list(directory)?.is_empty() {
            return Ok(Some(faulty(
                Verdict::Fail,
                format!(
                    "no GPUs in containers: `{path}` has `ldconfig = \"@{ldconfig}\"`, which does not exist"
                ),
                // `sed` or the shell would interpret other characters in the name.
                match shell_word(ldconfig) == *ldconfig {
                    true => format!(
                        "run `sed -i 's|@{ldconfig}|@/sbin/ldconfig|' {}`",
                        shell_word(path)
                    ),
                    false => format!("set `ldconfig = \"@/sbin/ldconfig\"` in `{path}`"),
                },
            )));
        }
    }
    let mut daemon = None;
    for kind in RuntimeKind::ALL {
        if daemon.is_none() && kind.daemon().is_some() && subject.state.has_runtime(kind).await {
            daemon = Some(kind);
        }
    }
    // NVIDIA/nvidia-container-toolkit issues 381 and 580.
    if let (true, Some(daemon)) = (config.no_cgroups, daemon) {
        let is_legacy = match config.mode.as_deref() {
            Some("legacy") => true,
            Some("auto") | None => {
                (subject.state.toolkit_version().await).is_some_and(|it| it < toolkit::BY_CDI)
            }
            Some(_) => false,
        };
        let status = match is_legacy {
            true => Verdict::Fail,
            false => Verdict::Warn,
        };
        return Ok(Some(faulty(
            status,
            format!(
                "no GPUs in {} containers: `{path}` has `no-cgroups = true`; this is only for rootless daemons (`Failed to \
                 initialize NVML: Unknown Error`)",
                daemon.name()
            ),
            format!(
                "run `sed -i 's/no-cgroups *= *true/no-cgroups = false/' {}`, then restart the containers; rootless \
                 containers use CDI instead",
                shell_word(path)
            ),
        )));
    }
    // NVIDIA/nvidia-container-toolkit issue 63.
    if config.mode.as_deref() == Some("cdi") {
        let directories = match config.spec_directories.is_empty() {
            true => cdi::DIRECTORIES.map(str::to_owned).to_vec(),
            false => config.spec_directories,
        };
        let mut any = false;
        for directory in &directories {
            any |= (files.list(Utf8Path::new(directory))?.iter())
                .any(|name| cdi::is_read(Utf8Path::new(name)));
        }
        if !any {
            return Ok(Some(faulty(
                match subject.state.is_of_this_machine() {
                    true => Verdict::Fail,
                    false => Verdict::Warn,
                },
                format!(
                    "containers with a GPU do not start (`unresolvable CDI devices`), because `{path}` has `mode = \"cdi\"` \
                     but there is no CDI specification in {}",
                    directories.join(" or ")
                ),
                "run `nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml`".to_owned(),
            )));
        }
    }
    let why = format!("`{path}` is valid, and its programs and directories exist");
    Ok(Some(say(&TOOLKIT, Verdict::Pass, why)))
}

/// Returns the warning about a CDI specification that only root can read.
fn only_for_root(files: &dyn ReadFiles) -> Result<Option<Finding>, StepError> {
    Ok(cdi::only_for_root(files)?.map(|(directory, path)| {
        say(
            &TOOLKIT,
            Verdict::Warn,
            format!("only root can read `{path}`, so rootless containers find no GPU"),
        )
        .with_remedy(format!(
            "run `chmod a+rX {} {}`",
            shell_word(directory),
            shell_word(&path)
        ))
    }))
}

async fn examine(subject: &Subject<'_>) -> Result<Vec<Finding>, StepError> {
    let mut toolkit = toolkit_files(subject).await?;
    let mut found = Vec::new();
    for kind in RuntimeKind::ALL {
        let Some(report) = subject.state.report(kind).await? else {
            continue;
        };
        if kind.daemon().is_some() {
            found.push(finding(&id(kind), &report));
        } else if matches!(toolkit.status, Verdict::Pass | Verdict::Skip)
            && matches!(report, Report::Faulty(_))
        {
            toolkit = finding(&TOOLKIT, &report);
        }
    }
    // Runtimes without a daemon run as the user.
    for kind in (RuntimeKind::ALL.into_iter()).filter(|kind| kind.daemon().is_none()) {
        let is_fine = matches!(toolkit.status, Verdict::Pass | Verdict::Skip);
        if is_fine && subject.state.has_runtime(kind).await {
            toolkit = only_for_root(subject.host.files())?.unwrap_or(toolkit);
        }
    }
    found.push(toolkit);
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worst_error_determines_the_verdict() {
        let fault = |why: &str, harm| RuntimeFault::new(harm, why, format!("correct {why}"));
        let faulty = |harms: &[Harm]| {
            let whys = ["a", "b"].into_iter().zip(harms);
            Report::Faulty(whys.map(|(why, harm)| fault(why, *harm)).collect())
        };
        let fix = Some("correct a");
        for (report, verdict, why, remedy) in rows! {
            Report::Nothing("it has none".to_owned()), Verdict::Skip, "it has none", None;
            Report::Whole("it can be read"), Verdict::Pass, "it can be read", None;
            Report::of(Vec::new(), "it can be read"), Verdict::Pass, "it can be read", None;
            faulty(&[Harm::Perhaps]), Verdict::Warn, "a", fix;
            faulty(&[Harm::Containers]), Verdict::Fail, "a", fix;
            faulty(&[Harm::All]), Verdict::Fail, "a", fix;
            faulty(&[Harm::Perhaps, Harm::Perhaps]), Verdict::Warn, "a; b", fix;
            faulty(&[Harm::Perhaps, Harm::Containers]), Verdict::Fail, "a; b", fix;
        } {
            let found = finding(&TOOLKIT, &report);
            assert_eq!(found.status, verdict, "{report:?}");
            assert_eq!((&*found.why, found.remedy.as_deref()), (why, remedy));
        }
    }

    #[test]
    fn specification_only_for_root_is_reported() {
        for (directory, file, is_reported) in rows! {
            0o755, 0o644, false;
            0o700, 0o644, true;
            0o755, 0o600, true;
        } {
            let files = crate::host::fake::FakeFiles::new();
            files.put_directory("/etc/cdi", directory);
            files.put_mode("/etc/cdi/nvidia.yaml", "", file);
            let found = only_for_root(&files).unwrap();
            assert_eq!(found.is_some(), is_reported, "{directory:o} {file:o}");
            let remedy = found.and_then(|found| found.remedy);
            let wanted = "run `chmod a+rX /etc/cdi /etc/cdi/nvidia.yaml`";
            assert!(remedy.is_none_or(|remedy| remedy == wanted));
        }
    }

    #[test]
    fn only_start_failures_count_as_rejection() {
        for (harm, refuses) in [
            (Harm::Perhaps, false),
            (Harm::Containers, false),
            (Harm::All, true),
        ] {
            let fault = RuntimeFault::new(harm, "", "");
            assert_eq!(Report::of(vec![fault], "").refuses(), refuses, "{harm:?}");
        }
    }
}
