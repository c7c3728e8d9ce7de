//! `runtime.docker-nvidia`, `runtime.containerd-nvidia`: the runtime knows the nvidia runtime.
//! What counts is what the daemon says about itself, and for containerd what its files say to it.

use async_trait::async_trait;
use camino::{Utf8Path, Utf8PathBuf};

use super::{RUNTIME_CONTAINERD, RUNTIME_DOCKER, TOOLKIT_PACKAGES, runtime_packages::wish};
use crate::{
    change::{Change, Lock, RuntimeSettings, unread},
    config::desired::{Desired, RuntimeKind, RuntimeWish},
    model::{
        document::{Document, FileSettings, Format},
        id::StepId,
        paths,
    },
    state::{Effective, StateError},
    step::{Assessment, Cx, Step, StepError},
    tools::{
        containerd::{self, layout},
        docker,
    },
};

/// The name of the runtime.
const NVIDIA: &str = "nvidia";

/// The toolkit's program, as `nvidia-ctk` names it to Docker and to containerd.
const PROGRAM: &str = "nvidia-container-runtime";
const PROGRAM_PATH: &str = "/usr/bin/nvidia-container-runtime";

/// Docker's configuration file.
const DAEMON_JSON: &str = "/etc/docker/daemon.json";

/// See the module; one value per runtime.
pub struct RuntimeConfig(pub RuntimeKind);

/// What was read.
#[derive(Debug, Clone)]
struct RuntimeState {
    effective: Effective,
    /// A configuration file that cannot be read.
    broken: Option<Broken>,
    /// The keys that the files lack.
    lacking: Vec<FileSettings>,
    /// Whether there is a file that it reads first.
    configured: bool,
    /// Whether the daemon has not taken up what an interrupted run has written.
    unread: bool,
    /// Whether Docker has to be told to use CDI.
    cdi: bool,
}

#[derive(Debug, Clone)]
struct Broken {
    path: Utf8PathBuf,
    why: String,
    /// Whether newer daemons read it all the same.
    forgiven: bool,
}

impl RuntimeState {
    fn of(effective: &Effective, read: Result<Vec<FileSettings>, Broken>) -> Self {
        let (lacking, broken) = match read {
            Ok(lacking) => (lacking, None),
            Err(broken) => (Vec::new(), Some(broken)),
        };
        Self {
            effective: effective.clone(),
            broken,
            lacking,
            configured: true,
            unread: false,
            cdi: false,
        }
    }
}

async fn detect(cx: &Cx<'_>, wish: &RuntimeWish) -> Result<RuntimeState, StepError> {
    match wish.kind {
        RuntimeKind::Docker => detect_docker(cx, wish).await,
        RuntimeKind::Containerd => detect_containerd(cx, wish).await,
    }
}

async fn detect_docker(cx: &Cx<'_>, wish: &RuntimeWish) -> Result<RuntimeState, StepError> {
    let effective = cx.state.docker().await?;
    let path = Utf8PathBuf::from(DAEMON_JSON);
    let text = cx.host.files().read_text(&path)?;
    let flaw = text
        .as_deref()
        .and_then(|text| docker::check_config(text).err());
    let mut state = RuntimeState::of(effective, Ok(Vec::new()));
    if let Some(flaw) = flaw {
        state.broken = Some(Broken {
            path: path.clone(),
            why: flaw.why,
            forgiven: flaw.forgiven,
        });
    }
    state.unread = is_unread(cx, wish.kind)?;
    let Ok(file) = Document::parse(Format::Json, text.as_deref().unwrap_or_default()) else {
        return Ok(state);
    };
    // Who has switched it off has decided.
    let decided = file.get(&["features".to_owned(), "cdi".to_owned()]);
    state.cdi = cx.desired.cdi.is_some()
        && decided != Some(false.into())
        && matches!(
            effective,
            Effective::Known {
                without_cdi: true,
                ..
            }
        );
    // What Docker knows already may be said by its command line, and said twice it would not start.
    let known = match effective {
        Effective::Known {
            runtimes, default, ..
        } => (
            runtimes.iter().any(|name| name == NVIDIA),
            default.as_deref() == Some(NVIDIA),
        ),
        _ => (false, false),
    };
    let entry = ["runtimes", NVIDIA, "path"].map(str::to_owned);
    let is_program = match file.get(&entry).as_ref().and_then(|path| path.as_str()) {
        Some(PROGRAM) => true,
        Some(path) => cx.host.files().exists(Utf8Path::new(path))?,
        None => false,
    };
    let settings = docker::settings(
        &file,
        &docker::Runtime {
            name: NVIDIA,
            program: PROGRAM,
            kept: known.0 || is_program,
            default: wish.nvidia_default && !known.1,
            cdi: state.cdi,
        },
    );
    if !settings.is_empty() {
        state.lacking = vec![FileSettings { path, settings }];
    }
    Ok(state)
}

async fn detect_containerd(cx: &Cx<'_>, wish: &RuntimeWish) -> Result<RuntimeState, StepError> {
    let effective = cx.state.containerd().await?;
    let root = Utf8PathBuf::from(crate::state::CONTAINERD_CONFIG);
    if let Some(text) = cx.host.files().read_text(&root)?
        && let Err(why) = containerd::check_config(&text)
    {
        let broken = Broken {
            path: root,
            why,
            forgiven: false,
        };
        return Ok(RuntimeState::of(effective, Err(broken)));
    }
    let files = match cx.state.containerd_files() {
        Ok(files) => files,
        Err(StateError::Unexpected { what, why }) => {
            let broken = Broken {
                path: what.into(),
                why,
                forgiven: false,
            };
            return Ok(RuntimeState::of(effective, Err(broken)));
        }
        Err(error) => return Err(error.into()),
    };
    let kept = match effective {
        Effective::Known { programs, .. } => match programs.get(NVIDIA) {
            Some(program) => cx.host.files().exists(Utf8Path::new(program))?,
            None => false,
        },
        _ => false,
    };
    // Both must let the same one make the control groups.
    let cgroup = match cx.state.cri().await {
        Ok(Some(cri)) => match (
            cri.systemd_cgroup.get("runc"),
            cri.systemd_cgroup.get(NVIDIA),
        ) {
            (Some(true), _) => Some(true),
            (runc, Some(_)) => Some(runc.copied().unwrap_or_default()),
            _ => None,
        },
        // The daemon's own words are in `effective`.
        Ok(None) | Err(_) => None,
    };
    let runtime = layout::Runtime {
        name: NVIDIA,
        program: PROGRAM_PATH,
        kept,
        default: wish.nvidia_default,
        cdi: cx.desired.cdi.is_some(),
        systemd_cgroup: cgroup,
    };
    let version = cx.state.containerd_version().await;
    let read = layout::settings(&files, version, &runtime).map_err(|why| Broken {
        path: root,
        why,
        forgiven: false,
    });
    let mut state = RuntimeState::of(effective, read);
    // Without any, `containerd config dump` of 1.6 fails, and the daemon starts all the same.
    state.configured = files.first().is_some_and(|file| file.text.is_some());
    state.unread = is_unread(cx, wish.kind)?;
    Ok(state)
}

/// Whether a run was interrupted before the daemon had taken up what it wrote.
fn is_unread(cx: &Cx<'_>, kind: RuntimeKind) -> Result<bool, StepError> {
    let marker = unread(Utf8Path::new(paths::STATE), kind);
    Ok(cx.host.files().stat(&marker)?.is_some())
}

fn decide(state: &RuntimeState, wish: &RuntimeWish, desired: &Desired) -> Assessment {
    if desired.toolkit.is_none() {
        return Assessment::NotApplicable {
            why: "the container toolkit is not configured".into(),
        };
    }
    let name = wish.kind.name();
    // A daemon that runs read it before it was broken, and does not start again.
    if let Some(broken) = &state.broken
        && !(broken.forgiven && matches!(state.effective, Effective::Known { lenient: true, .. }))
    {
        let Broken { path, why, .. } = broken;
        return Assessment::Blocked {
            why: format!("`{path}` cannot be read by {name}: {why}"),
            hint: format!(
                "correct `{path}`, or move it away; {name} does not start with it, and existing \
                 content is never overwritten"
            ),
        };
    }
    let why = match &state.effective {
        Effective::Absent => format!("{name} is not installed yet"),
        Effective::Silent(words) if wish.kind == RuntimeKind::Containerd && state.configured => {
            return Assessment::Blocked {
                why: format!("containerd refuses its configuration: {words}"),
                hint: "correct the file that it names, or move it away, until `containerd config \
                       dump` succeeds; containerd does not start with it"
                    .to_owned(),
            };
        }
        Effective::Silent(words) => format!("{name} does not answer: {words}"),
        Effective::Known {
            runtimes, default, ..
        } => {
            let registered = runtimes.iter().any(|runtime| runtime == NVIDIA);
            let is_default = default.as_deref() == Some(NVIDIA);
            let lost = default.as_ref().filter(|name| !runtimes.contains(name));
            if let Some(lost) = lost {
                // Containers that ask for no GPU could not start.
                format!("{name} no longer has its default runtime {lost}")
            } else if !registered {
                format!(
                    "{name} runs without the nvidia runtime ({})",
                    runtimes.join(", ")
                )
            } else if wish.nvidia_default && !is_default {
                format!(
                    "the default runtime of {name} is {}, nvidia is wanted",
                    default.as_deref().unwrap_or("not set")
                )
            } else if state.unread {
                format!("{name} has not taken up the files that an interrupted run has written")
            } else if let Some(file) = state.lacking.first() {
                let keys: Vec<String> = (file.settings.iter())
                    .map(|setting| setting.key.join("."))
                    .collect();
                format!(
                    "`{}` does not say what is wanted of {}",
                    file.path,
                    keys.join(", ")
                )
            } else {
                return Assessment::Satisfied {
                    why: format!("{name} runs with the runtimes {}", runtimes.join(", ")),
                };
            }
        }
    };
    Assessment::Needs {
        why,
        changes: vec![Change::ConfigureRuntime {
            settings: RuntimeSettings {
                kind: wish.kind,
                unit: wish.unit.clone(),
                files: state.lacking.clone(),
                runtime: NVIDIA.to_owned(),
                default: wish.nvidia_default,
                cdi: state.cdi,
            },
        }],
    }
}

#[async_trait]
impl Step for RuntimeConfig {
    fn id(&self) -> StepId {
        match self.0 {
            RuntimeKind::Docker => super::RUNTIME_DOCKER_NVIDIA,
            RuntimeKind::Containerd => super::RUNTIME_CONTAINERD_NVIDIA,
        }
    }

    fn title(&self) -> &'static str {
        match self.0 {
            RuntimeKind::Docker => "nvidia runtime in Docker",
            RuntimeKind::Containerd => "nvidia runtime in containerd",
        }
    }

    fn after(&self) -> &[StepId] {
        match self.0 {
            RuntimeKind::Docker => const { &[TOOLKIT_PACKAGES, RUNTIME_DOCKER] },
            RuntimeKind::Containerd => const { &[TOOLKIT_PACKAGES, RUNTIME_CONTAINERD] },
        }
    }

    fn locks(&self) -> &[Lock] {
        &[Lock::Containers]
    }

    fn wants(&self, _: &Change, desired: &Desired) -> bool {
        wish(desired, self.0).is_some() && (desired.driver.is_none() || desired.toolkit.is_some())
    }

    async fn assess(&self, cx: &Cx<'_>) -> Result<Assessment, StepError> {
        let Some(wish) = wish(cx.desired, self.0) else {
            return Ok(Assessment::NotApplicable {
                why: "this runtime is not configured".into(),
            });
        };
        Ok(decide(&detect(cx, wish).await?, wish, cx.desired))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{Broken, Effective, RuntimeConfig, RuntimeState, decide, wish};
    use crate::{
        change::Change,
        config::desired::RuntimeKind,
        model::document::{FileSettings, Setting},
        step::{Assessment, Step},
        steps::fixtures::desired,
    };

    fn known(runtimes: &[&str], default: &str) -> RuntimeState {
        intact(Effective::Known {
            runtimes: runtimes.iter().map(ToString::to_string).collect(),
            default: Some(default.to_owned()),
            programs: BTreeMap::new(),
            lenient: false,
            without_cdi: false,
        })
    }

    fn intact(effective: Effective) -> RuntimeState {
        RuntimeState {
            effective,
            broken: None,
            lacking: Vec::new(),
            configured: true,
            unread: false,
            cdi: false,
        }
    }

    #[test]
    fn what_was_configured_is_wanted_as_long_as_its_runtime_is() {
        let docker = RuntimeConfig(RuntimeKind::Docker);
        let restart = Change::RestartUnit {
            unit: "docker.service".into(),
        };
        let mut want = desired();
        assert!(docker.wants(&restart, &want));
        assert!(!RuntimeConfig(RuntimeKind::Containerd).wants(&restart, &want));
        want.toolkit = None;
        assert!(!docker.wants(&restart, &want));
        // Without a driver nobody knows whether a toolkit is wanted.
        want.driver = None;
        assert!(docker.wants(&restart, &want));
        want.runtimes.clear();
        assert!(!docker.wants(&restart, &want));
    }

    #[test]
    fn what_the_daemon_says_decides() {
        let mut want = desired();
        let docker = wish(&want, RuntimeKind::Docker).expect("docker").clone();
        assert!(matches!(
            decide(&known(&["nvidia", "runc"], "runc"), &docker, &want),
            Assessment::Satisfied { .. }
        ));
        let Assessment::Needs { why, changes } = decide(&known(&["runc"], "runc"), &docker, &want)
        else {
            panic!("must be registered");
        };
        assert_eq!(why, "docker runs without the nvidia runtime (runc)");
        assert!(matches!(&changes[..], [Change::ConfigureRuntime { .. }]));
        let mut as_default = docker.clone();
        as_default.nvidia_default = true;
        assert!(matches!(
            decide(&known(&["nvidia", "runc"], "runc"), &as_default, &want),
            Assessment::Needs { .. }
        ));
        for unready in [Effective::Absent, Effective::Silent("no socket".into())] {
            assert!(matches!(
                decide(&intact(unready), &docker, &want),
                Assessment::Needs { .. }
            ));
        }
        let Assessment::Needs { why, .. } = decide(&known(&["nvidia"], "runc"), &docker, &want)
        else {
            panic!("runc must not be lost");
        };
        assert_eq!(why, "docker no longer has its default runtime runc");
        want.toolkit = None;
        assert!(matches!(
            decide(&intact(Effective::Absent), &docker, &want),
            Assessment::NotApplicable { .. }
        ));
    }

    #[test]
    fn a_broken_file_blocks_even_where_the_daemon_still_runs() {
        let want = desired();
        let docker = wish(&want, RuntimeKind::Docker).expect("docker").clone();
        let mut state = known(&["nvidia", "runc"], "runc");
        state.broken = Some(Broken {
            path: "/etc/docker/daemon.json".into(),
            why: "expected value at line 3 column 7".into(),
            forgiven: false,
        });
        let Assessment::Blocked { why, hint } = decide(&state, &docker, &want) else {
            panic!("must be blocked");
        };
        assert!(why.contains("/etc/docker/daemon.json") && why.contains("line 3 column 7"));
        assert!(hint.contains("correct `/etc/docker/daemon.json`"), "{hint}");
    }

    #[test]
    fn what_docker_forgives_does_not_block() {
        let want = desired();
        let docker = wish(&want, RuntimeKind::Docker).expect("docker").clone();
        let flawed = |runtimes: &[&str], newer: bool| {
            let mut state = known(runtimes, "runc");
            if let Effective::Known { lenient, .. } = &mut state.effective {
                *lenient = newer;
            }
            state.broken = Some(Broken {
                path: "/etc/docker/daemon.json".into(),
                why: "it is empty".into(),
                forgiven: true,
            });
            decide(&state, &docker, &want)
        };
        assert!(matches!(
            flawed(&["nvidia", "runc"], true),
            Assessment::Satisfied { .. }
        ));
        assert!(matches!(flawed(&["runc"], true), Assessment::Needs { .. }));
        let Assessment::Blocked { why, hint } = flawed(&["nvidia", "runc"], false) else {
            panic!("must be blocked");
        };
        assert!(why.contains("read by docker: it is empty"), "{why}");
        assert!(hint.contains("docker does not start with it"), "{hint}");
    }

    #[test]
    fn what_the_files_lack_is_told_by_key() {
        let want = desired();
        let docker = wish(&want, RuntimeKind::Docker).expect("docker").clone();
        let mut state = known(&["nvidia", "runc"], "runc");
        state.lacking = vec![FileSettings {
            path: "/etc/docker/daemon.json".into(),
            settings: vec![Setting {
                key: vec!["features".into(), "cdi".into()],
                value: Some(true.into()),
            }],
        }];
        let Assessment::Needs { why, changes } = decide(&state, &docker, &want) else {
            panic!("must be written");
        };
        assert!(
            why.contains("`/etc/docker/daemon.json`") && why.contains("features.cdi"),
            "{why}"
        );
        let Change::ConfigureRuntime { settings } = &changes[0] else {
            panic!("a configuration")
        };
        assert_eq!(settings.files, state.lacking);
    }

    #[test]
    fn what_an_interrupted_run_has_written_is_taken_up() {
        let want = desired();
        let docker = wish(&want, RuntimeKind::Docker).expect("docker").clone();
        let state = RuntimeState {
            unread: true,
            ..known(&["nvidia", "runc"], "runc")
        };
        let Assessment::Needs { why, changes } = decide(&state, &docker, &want) else {
            panic!("the daemon has old files");
        };
        assert!(why.contains("interrupted"), "{why}");
        assert!(matches!(
            &changes[..],
            [Change::ConfigureRuntime { settings }] if settings.files.is_empty()
        ));
    }

    #[test]
    fn a_containerd_that_refuses_its_files_is_not_restarted() {
        let mut want = desired();
        let mut containerd = wish(&want, RuntimeKind::Docker).expect("docker").clone();
        containerd.kind = RuntimeKind::Containerd;
        want.runtimes.push(containerd.clone());
        let state = intact(Effective::Silent(
            "failed to load TOML from conf.d/a.toml".into(),
        ));
        let Assessment::Blocked { why, .. } = decide(&state, &containerd, &want) else {
            panic!("must be blocked");
        };
        assert!(why.contains("conf.d/a.toml"), "{why}");
        let without = RuntimeState {
            configured: false,
            ..state
        };
        assert!(matches!(
            decide(&without, &containerd, &want),
            Assessment::Needs { .. }
        ));
    }
}
