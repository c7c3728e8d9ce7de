//! The family of runtime files: what the daemons of containers refuse, by their files, which are read as the daemons
//! read them. Where programs may be run, Docker's own validation has the last word.

use async_trait::async_trait;
use camino::{Utf8Path, Utf8PathBuf};

use crate::{
    check::{Check, Finding, Subject, Verdict},
    model::id::Id,
    state::{Effective, StateError},
    step::StepError,
    tools::{
        containerd::{
            faults::{Fault, faults},
            layout::ConfigFile,
        },
        crio, docker,
    },
};

const CONTAINERD: Id = Id::new("rt.containerd.files");
const DOCKER: Id = Id::new("rt.docker.files");
const CRIO: Id = Id::new("rt.crio.files");

/// Docker's configuration file.
const DAEMON_JSON: &str = "/etc/docker/daemon.json";

/// The folder of containerd's files.
const FOLDER: &str = "/etc/containerd";

/// Where daemons look for programs that are named without a path: systemd's default.
const PATH: [&str; 4] = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin"];

/// See the module.
pub struct RuntimeFiles;

fn title(id: &Id) -> &'static str {
    match id.as_str() {
        "rt.containerd.files" => "Files of containerd",
        "rt.docker.files" => "Files of Docker",
        _ => "Files of CRI-O",
    }
}

fn say(id: &Id, status: Verdict, why: impl Into<String>) -> Finding {
    Finding::new(id.clone(), title(id), status, why)
}

/// The files of containerd that are beside those that it reads: `*.toml` in folders below its own.
fn strays(subject: &Subject<'_>, read: &[ConfigFile]) -> Result<Vec<ConfigFile>, StepError> {
    let files = subject.host.files();
    let mut found = Vec::new();
    for folder in files.list(Utf8Path::new(FOLDER))? {
        let folder = Utf8Path::new(FOLDER).join(folder);
        if files
            .stat(&folder)?
            .is_none_or(|stat| stat.kind != crate::host::Kind::Folder)
        {
            continue;
        }
        for name in files.list(&folder)? {
            let path = folder.join(&name);
            if name.ends_with(".toml") && read.iter().all(|file| file.path != path) {
                found.push(ConfigFile {
                    text: files.read_text(&path)?,
                    path,
                });
            }
        }
    }
    Ok(found)
}

/// The faults of containerd's files; `None` if it is not installed.
pub(super) async fn of_containerd(subject: &Subject<'_>) -> Result<Option<Vec<Fault>>, StepError> {
    let state = subject.state;
    let found = state.found_runtimes().await;
    if !found.iter().any(|runtime| runtime.name == "containerd") {
        return Ok(None);
    }
    let files = match state.containerd_files().await {
        Ok(files) => files,
        // Which file it is stands there; its place in the words of this program.
        Err(StateError::Unexpected { what, .. }) => {
            let path = Utf8PathBuf::from(what);
            let text = subject.host.files().read_text(&path)?;
            vec![ConfigFile { path, text }]
        }
        Err(error) => return Err(error.into()),
    };
    let strays = strays(subject, &files)?;
    let version = state.containerd_version().await;
    Ok(Some(faults(&files, &strays, version)))
}

async fn containerd(subject: &Subject<'_>) -> Result<Finding, StepError> {
    let Some(found) = of_containerd(subject).await? else {
        return Ok(say(
            &CONTAINERD,
            Verdict::Skip,
            "containerd is not installed",
        ));
    };
    let Some(first) = found.first() else {
        let exists = subject
            .host
            .files()
            .exists(Utf8Path::new(crate::state::CONTAINERD_CONFIG))?;
        return Ok(match exists {
            true => say(
                &CONTAINERD,
                Verdict::Pass,
                "they can be read, and their runtimes are whole",
            ),
            false => say(&CONTAINERD, Verdict::Skip, "it has none"),
        });
    };
    let whys: Vec<&str> = found.iter().map(|fault| fault.why.as_str()).collect();
    Ok(Finding {
        remedy: Some(first.remedy.clone()),
        ..say(&CONTAINERD, Verdict::Fail, whys.join("; "))
    })
}

async fn docker(subject: &Subject<'_>) -> Result<Finding, StepError> {
    let files = subject.host.files();
    if let Some(snap) = docker::snap(files)? {
        let has_file = files.exists(Utf8Path::new(DAEMON_JSON))?;
        let beside = match has_file {
            true => format!(", and not `{DAEMON_JSON}`, which is there"),
            false => String::new(),
        };
        return Ok(Finding {
            remedy: Some(docker::SNAP_REMEDY.to_owned()),
            ..say(
                &DOCKER,
                Verdict::Warn,
                format!(
                    "Docker is a snap (`{snap}`): it reads `{}`{beside}",
                    docker::SNAP_CONFIG
                ),
            )
        });
    }
    let found = subject.state.found_runtimes().await;
    let installed = found.iter().any(|runtime| runtime.name == "docker");
    let path = Utf8Path::new(DAEMON_JSON);
    let Some(text) = files.read_text(path)? else {
        let why = match installed {
            true => "it has none",
            false => "Docker is not installed",
        };
        return Ok(say(&DOCKER, Verdict::Skip, why));
    };
    let lenient = match subject.state.docker().await {
        Ok(Effective::Known { lenient, .. }) => *lenient,
        _ => false,
    };
    // A file that waits for Docker breaks nothing yet.
    let broken = |why: &str| match installed {
        true => Finding {
            remedy: Some(format!(
                "correct `{path}`, then run `systemctl restart docker`"
            )),
            ..say(
                &DOCKER,
                Verdict::Fail,
                format!("Docker does not start with `{path}`: {why}"),
            )
        },
        false => Finding {
            remedy: Some(format!("correct `{path}`, or remove it")),
            ..say(
                &DOCKER,
                Verdict::Warn,
                format!("Docker, which is not installed, would not start with `{path}`: {why}"),
            )
        },
    };
    if let Err(flaw) = docker::check_config(&text) {
        return Ok(match flaw.forgiven {
            false => broken(&flaw.why),
            true if lenient => say(&DOCKER, Verdict::Pass, "it can be read"),
            true => Finding {
                status: Verdict::Warn,
                ..broken(&format!(
                    "{}, which Docker before 23 does not read",
                    flaw.why
                ))
            },
        });
    }
    if let Some(why) = validated(subject, path).await {
        return Ok(broken(&why));
    }
    let default = docker::missing_default(&text);
    if let Some(name) = default {
        return Ok(broken(&format!(
            "its `default-runtime` is `{name}`, which it does not configure"
        )));
    }
    Ok(say(
        &DOCKER,
        Verdict::Pass,
        "it can be read, and its default runtime is there",
    ))
}

/// What Docker's own program says against its file alone; `None` where it says nothing, or cannot be asked. What the
/// flags of its unit contradict is not seen.
async fn validated(subject: &Subject<'_>, path: &Utf8Path) -> Option<String> {
    let version = subject.host.query(&docker::daemon_version()).await.ok()?;
    if !version.ok() || !docker::can_validate(&version.stdout) {
        return None;
    }
    let output = subject
        .host
        .query(&docker::validate(&[], path))
        .await
        .ok()?;
    if output.ok() {
        return None;
    }
    // Flags that the unit adds are not known here: what only they explain is no fault of the file.
    let said = format!("{}{}", output.stderr, output.stdout);
    said.lines().next_back().map(|line| line.trim().to_owned())
}

async fn crio_files(subject: &Subject<'_>) -> Result<Finding, StepError> {
    let found = subject.state.crio_files()?;
    if found.is_empty() {
        return Ok(say(&CRIO, Verdict::Skip, "CRI-O has none"));
    }
    let files = subject.host.files();
    let mut programs = false;
    for folder in PATH {
        programs |= !files.list(Utf8Path::new(folder))?.is_empty();
    }
    let in_path = |name: &str| {
        let there = |folder: &str| {
            files
                .exists(&Utf8Path::new(folder).join(name))
                .unwrap_or(true)
        };
        // A tree without programs does not tell.
        !programs || PATH.iter().any(|folder| there(folder))
    };
    let faults = crio::faults(&found, in_path);
    let runtimes = subject.state.found_runtimes().await;
    // Files that wait for CRI-O, as NVIDIA's toolkit writes them, break nothing yet.
    let status = match runtimes.iter().any(|runtime| runtime.name == "crio") {
        true => Verdict::Fail,
        false => Verdict::Warn,
    };
    let Some(first) = faults.first() else {
        return Ok(say(
            &CRIO,
            Verdict::Pass,
            "they can be read, and their runtimes are whole",
        ));
    };
    let whys: Vec<&str> = faults.iter().map(|fault| fault.why.as_str()).collect();
    Ok(Finding {
        remedy: Some(first.remedy.clone()),
        ..say(&CRIO, status, whys.join("; "))
    })
}

#[async_trait]
impl Check for RuntimeFiles {
    fn ids(&self) -> &[Id] {
        const { &[CONTAINERD, DOCKER, CRIO] }
    }

    async fn examine(&self, subject: &Subject<'_>) -> Result<Vec<Finding>, StepError> {
        Ok(vec![
            containerd(subject).await?,
            docker(subject).await?,
            crio_files(subject).await?,
        ])
    }
}
