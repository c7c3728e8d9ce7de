//! The family of runtime files: what the daemons of containers and NVIDIA's toolkit refuse, by their files, which are read
//! as they read them. Where programs may be run, their own validation has the last word.

use std::sync::LazyLock;

use async_trait::async_trait;
use camino::Utf8Path;

use crate::{
    check::{Check, Finding, Subject, Verdict},
    model::id::Id,
    runtimes::{Fault, Harm, Report, RuntimeKind, cdi},
    state::has_library,
    step::StepError,
    tools::toolkit,
};

const TOOLKIT: Id = Id::new("rt.toolkit.files");

/// Those with files of their own.
fn kinds() -> impl Iterator<Item = RuntimeKind> {
    (RuntimeKind::ALL.into_iter()).filter(|kind| kind.daemon().is_some())
}

fn id(kind: RuntimeKind) -> Id {
    Id::owned(format!("rt.{}.files", kind.name()))
}

static IDS: LazyLock<Vec<Id>> = LazyLock::new(|| kinds().map(id).chain([TOOLKIT]).collect());

/// See the module.
pub struct RuntimeFilesCheck;

fn say(id: &Id, status: Verdict, why: impl Into<String>) -> Finding {
    Finding::new(id.clone(), status, why)
}

/// What is said of files.
fn finding(id: &Id, report: &Report) -> Finding {
    match report {
        Report::Nothing(why) => say(id, Verdict::Skip, why.as_str()),
        Report::Whole(why) => say(id, Verdict::Pass, *why),
        Report::Faulty(faults) => {
            let whys: Vec<&str> = faults.iter().map(|fault| fault.why.as_str()).collect();
            let counts = |fault: &Fault| fault.harm > Harm::Perhaps;
            Finding {
                remedy: faults.first().map(|fault| fault.remedy.clone()),
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

/// The first toolkit that takes devices into containers by CDI where it is not told otherwise, and for which nobody has
/// reported what `no-cgroups` does (release notes of 1.18.0).
const BY_CDI: (u64, u64) = (1, 18);

/// What the toolkit's configuration says that is not so on this machine: then containers get no GPU, whatever their
/// runtime.
async fn toolkit_files(subject: &Subject<'_>) -> Result<Finding, StepError> {
    let files = subject.host.files();
    let path = toolkit::CONFIG;
    let Some(text) = files.read_text(Utf8Path::new(path))? else {
        return Ok(say(&TOOLKIT, Verdict::Skip, "it has none"));
    };
    let faulty = |status, why: String, remedy: String| Finding {
        remedy: Some(remedy),
        ..say(&TOOLKIT, status, why)
    };
    let config = match toolkit::parse_config(&text) {
        Ok(config) => config,
        Err(why) => {
            return Ok(faulty(
                Verdict::Fail,
                format!("`{path}` is no TOML ({why}), so no container gets a GPU"),
                format!("correct `{path}`"),
            ));
        }
    };
    // NVIDIA/nvidia-docker issue 1711, NVIDIA/nvidia-container-toolkit issue 154.
    if let Some(root) = &config.root {
        let has_driver = has_library(files, Utf8Path::new(root))?;
        let driver = subject.state.driver().await;
        let is_elsewhere = driver.library_version.is_some() || driver.package_version.is_some();
        if !has_driver && is_elsewhere {
            return Ok(faulty(
                Verdict::Fail,
                format!(
                    "`root = \"{root}\"` in `{path}`: the container toolkit looks for the driver there, where it is not, so no \
                     container gets a GPU (`load library failed: libnvidia-ml.so.1`)"
                ),
                format!("comment out `root` in `{path}`: the driver is on the machine itself"),
            ));
        }
    }
    if let Some(ldconfig) = &config.ldconfig {
        let mut there = false;
        for name in toolkit::both_names(ldconfig) {
            there |= files.stat(Utf8Path::new(&name))?.is_some();
        }
        let folder = Utf8Path::new(ldconfig)
            .parent()
            .unwrap_or(Utf8Path::new("/"));
        // A tree without programs does not tell.
        if !there && !files.list(folder)?.is_empty() {
            return Ok(faulty(
                Verdict::Fail,
                format!(
                    "`ldconfig = \"@{ldconfig}\"` in `{path}` names a program that is not there, so no container gets a GPU"
                ),
                format!("set `ldconfig = \"@/sbin/ldconfig\"` in `{path}`"),
            ));
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
                (subject.state.toolkit_version().await).is_some_and(|it| it < BY_CDI)
            }
            Some(_) => false,
        };
        let status = match is_legacy {
            true => Verdict::Fail,
            false => Verdict::Warn,
        };
        return Ok(faulty(
            status,
            format!(
                "`no-cgroups = true` in `{path}` is for daemons without root: containers of {} do not get access to the devices \
                 (`Failed to initialize NVML: Unknown Error`)",
                daemon.name()
            ),
            format!(
                "set `no-cgroups = false` in `{path}`, unless all containers are those of users; then start the \
                 containers again"
            ),
        ));
    }
    // NVIDIA/nvidia-container-toolkit issue 63.
    if config.mode.as_deref() == Some("cdi") {
        let folders = match config.spec_folders.is_empty() {
            true => cdi::FOLDERS.map(str::to_owned).to_vec(),
            false => config.spec_folders,
        };
        let mut any = false;
        for folder in &folders {
            any |= (files.list(Utf8Path::new(folder))?.iter())
                .any(|name| cdi::is_read(Utf8Path::new(name)));
        }
        if !any {
            return Ok(faulty(
                match subject.state.is_of_this_machine() {
                    true => Verdict::Fail,
                    false => Verdict::Warn,
                },
                format!(
                    "`mode = \"cdi\"` in `{path}`, and no specification is in {}: containers with a GPU do not start \
                     (`unresolvable CDI devices`)",
                    folders.join(" or ")
                ),
                "run `nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml`".to_owned(),
            ));
        }
    }
    Ok(say(
        &TOOLKIT,
        Verdict::Pass,
        "they can be read, and name what is there",
    ))
}

#[async_trait]
impl Check for RuntimeFilesCheck {
    fn ids(&self) -> &[Id] {
        &IDS
    }

    async fn examine(&self, subject: &Subject<'_>) -> Result<Vec<Finding>, StepError> {
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
        found.push(toolkit);
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_fault_decides_the_verdict() {
        let fault = |why: &str, harm| Fault {
            why: why.to_owned(),
            remedy: format!("correct {why}"),
            harm,
        };
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
    fn only_a_fault_of_all_containers_keeps_the_daemon_from_starting() {
        for (harm, refuses) in [
            (Harm::Perhaps, false),
            (Harm::Containers, false),
            (Harm::All, true),
        ] {
            let fault = Fault {
                why: String::new(),
                remedy: String::new(),
                harm,
            };
            assert_eq!(Report::of(vec![fault], "").refuses(), refuses, "{harm:?}");
        }
    }
}
