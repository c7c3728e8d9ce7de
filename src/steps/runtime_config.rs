//! `runtime.docker-nvidia`, `runtime.containerd-nvidia`: the runtime knows the nvidia runtime.
//! What counts is what the daemon says about itself.

use async_trait::async_trait;
use camino::{Utf8Path, Utf8PathBuf};

use super::{RUNTIME_CONTAINERD, RUNTIME_DOCKER, TOOLKIT_PACKAGES, runtime_packages::wish};
use crate::{
    change::{Change, Lock},
    config::desired::{Desired, RuntimeKind, RuntimeWish},
    model::id::StepId,
    state::Effective,
    step::{Assessment, Cx, Step, StepError},
    tools::{containerd, docker},
};

/// Where `nvidia-ctk runtime configure` writes.
const DOCKER_FILES: [&str; 1] = ["/etc/docker/daemon.json"];
const CONTAINERD_FILES: [&str; 2] = [
    "/etc/containerd/config.toml",
    "/etc/containerd/conf.d/99-nvidia.toml",
];

/// See the module; one value per runtime.
pub struct RuntimeConfig(pub RuntimeKind);

/// What was read.
#[derive(Debug, Clone)]
struct RuntimeState {
    effective: Effective,
    /// A configuration file that cannot be read.
    broken: Option<Broken>,
}

#[derive(Debug, Clone)]
struct Broken {
    path: &'static str,
    why: String,
    /// Whether newer daemons read it all the same.
    forgiven: bool,
}

async fn detect(cx: &Cx<'_>, kind: RuntimeKind) -> Result<RuntimeState, StepError> {
    // The first is the one that a person writes.
    let path = match kind {
        RuntimeKind::Docker => DOCKER_FILES[0],
        RuntimeKind::Containerd => CONTAINERD_FILES[0],
    };
    let flaw = match (cx.host.files().read_text(Utf8Path::new(path))?, kind) {
        (None, _) => None,
        (Some(text), RuntimeKind::Docker) => docker::check_config(&text)
            .err()
            .map(|flaw| (flaw.why, flaw.forgiven)),
        (Some(text), RuntimeKind::Containerd) => {
            (containerd::check_config(&text).err()).map(|why| (why, false))
        }
    };
    let broken = flaw.map(|(why, forgiven)| Broken {
        path,
        why,
        forgiven,
    });
    let effective = match kind {
        RuntimeKind::Docker => cx.state.docker().await?,
        RuntimeKind::Containerd => cx.state.containerd().await?,
    };
    Ok(RuntimeState {
        effective: effective.clone(),
        broken,
    })
}

fn decide(state: &RuntimeState, wish: &RuntimeWish, desired: &Desired) -> Assessment {
    if desired.toolkit.is_none() {
        return Assessment::NotApplicable {
            why: "the container toolkit is not configured".into(),
        };
    }
    let (name, files): (&str, &[&str]) = match wish.kind {
        RuntimeKind::Docker => ("docker", &DOCKER_FILES),
        RuntimeKind::Containerd => ("containerd", &CONTAINERD_FILES),
    };
    let effective = &state.effective;
    // A daemon that runs read it before it was broken, and does not start again.
    if let Some(broken) = &state.broken
        && (!broken.forgiven || matches!(effective, Effective::Known { lenient: false, .. }))
    {
        return refuse(broken, name, &format!("{name} does not start with it"));
    }
    let why = match effective {
        Effective::Absent => format!("{name} is not installed yet"),
        Effective::Silent(words) => format!("{name} does not answer: {words}"),
        Effective::Known {
            runtimes, default, ..
        } => {
            let registered = runtimes.iter().any(|runtime| runtime == "nvidia");
            let is_default = default.as_deref() == Some("nvidia");
            let lost = default.as_ref().filter(|name| !runtimes.contains(name));
            if let Some(lost) = lost {
                // Containers that ask for no GPU could not start.
                format!("{name} no longer has its default runtime {lost}")
            } else if registered && (!wish.nvidia_default || is_default) {
                return Assessment::Satisfied {
                    why: format!("{name} runs with the runtimes {}", runtimes.join(", ")),
                };
            } else if registered {
                format!(
                    "the default runtime of {name} is {}, nvidia is wanted",
                    default.as_deref().unwrap_or("not set")
                )
            } else {
                format!(
                    "{name} runs without the nvidia runtime ({})",
                    runtimes.join(", ")
                )
            }
        }
    };
    if let Some(broken) = &state.broken {
        return refuse(broken, "nvidia-ctk", "the runtime cannot be added to it");
    }
    let mut command = vec![
        "nvidia-ctk".to_owned(),
        "runtime".to_owned(),
        "configure".to_owned(),
        format!("--runtime={name}"),
    ];
    // A drop-in takes the place of the whole CRI section before containerd 2.1, so it must be made
    // from what containerd runs with, runc included. Where containerd shows a newer format than
    // its file is in, such a drop-in would keep it from starting; those versions merge.
    // NVIDIA/nvidia-container-toolkit#1222, containerd/containerd#5837, NVIDIA/aicr#1688.
    let migrated = matches!(effective, Effective::Known { migrated: true, .. });
    if wish.kind == RuntimeKind::Containerd && !migrated {
        command.push("--config-source=command".to_owned());
    }
    if wish.nvidia_default {
        command.push("--nvidia-set-as-default".to_owned());
    }
    // A daemon that does not answer cannot say whom a restart stops; its containers run all the same
    // only with `live-restore`.
    let read_again = match (wish.kind, effective) {
        (RuntimeKind::Docker, Effective::Known { .. } | Effective::Absent) => {
            Change::ReloadDocker {
                unit: wish.unit.clone(),
                runtime: "nvidia".into(),
                default: wish.nvidia_default,
            }
        }
        // The containers of containerd do not depend on the daemon.
        (RuntimeKind::Containerd, _) | (_, Effective::Silent(_)) => Change::RestartUnit {
            unit: wish.unit.clone(),
        },
    };
    Assessment::Needs {
        why,
        changes: vec![
            Change::RunTool {
                purpose: format!("register the nvidia runtime with {name}"),
                command,
                writes: files.iter().map(Utf8PathBuf::from).collect(),
            },
            read_again,
        ],
    }
}

fn refuse(broken: &Broken, reader: &str, consequence: &str) -> Assessment {
    let Broken { path, why, .. } = broken;
    Assessment::Blocked {
        why: format!("`{path}` cannot be read by {reader}: {why}"),
        hint: format!(
            "correct `{path}`, or move it away; {consequence}, and existing content is never \
             overwritten"
        ),
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
        Ok(decide(&detect(cx, self.0).await?, wish, cx.desired))
    }
}

#[cfg(test)]
mod tests {
    use super::{Broken, Effective, RuntimeConfig, RuntimeState, decide, wish};
    use crate::{
        change::Change,
        config::desired::RuntimeKind,
        step::{Assessment, Step},
        steps::fixtures::desired,
    };

    fn known(runtimes: &[&str], default: &str) -> RuntimeState {
        intact(Effective::Known {
            runtimes: runtimes.iter().map(ToString::to_string).collect(),
            default: Some(default.to_owned()),
            migrated: false,
            lenient: false,
        })
    }

    fn intact(effective: Effective) -> RuntimeState {
        RuntimeState {
            effective,
            broken: None,
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
        assert!(matches!(
            &changes[..],
            [Change::RunTool { .. }, Change::ReloadDocker { .. }]
        ));
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
            path: "/etc/docker/daemon.json",
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
    fn what_docker_forgives_blocks_only_what_must_be_written() {
        let want = desired();
        let docker = wish(&want, RuntimeKind::Docker).expect("docker").clone();
        let flawed = |runtimes: &[&str], newer: bool| {
            let mut state = known(runtimes, "runc");
            if let Effective::Known { lenient, .. } = &mut state.effective {
                *lenient = newer;
            }
            state.broken = Some(Broken {
                path: "/etc/docker/daemon.json",
                why: "it is empty".into(),
                forgiven: true,
            });
            decide(&state, &docker, &want)
        };
        let blocked_by = |assessment, reader: &str| match assessment {
            Assessment::Blocked { why, hint } => {
                assert!(
                    why.contains(&format!("read by {reader}: it is empty")),
                    "{why}"
                );
                hint
            }
            other => panic!("must be blocked: {other:?}"),
        };
        assert!(matches!(
            flawed(&["nvidia", "runc"], true),
            Assessment::Satisfied { .. }
        ));
        let hint = blocked_by(flawed(&["runc"], true), "nvidia-ctk");
        assert!(!hint.contains("does not start"), "{hint}");
        let hint = blocked_by(flawed(&["nvidia", "runc"], false), "docker");
        assert!(hint.contains("docker does not start with it"), "{hint}");
        let mut state = intact(Effective::Absent);
        state.broken = Some(Broken {
            path: "/etc/docker/daemon.json",
            why: "it is empty".into(),
            forgiven: true,
        });
        blocked_by(decide(&state, &docker, &want), "nvidia-ctk");
    }

    #[test]
    fn containerd_is_copied_from_what_it_runs_with_unless_it_migrates() {
        let mut want = desired();
        let mut containerd = wish(&want, RuntimeKind::Docker).expect("docker").clone();
        containerd.kind = RuntimeKind::Containerd;
        want.runtimes.push(containerd.clone());
        for (migrated, copied) in [(false, true), (true, false)] {
            let state = intact(Effective::Known {
                runtimes: vec!["runc".into()],
                default: Some("runc".into()),
                migrated,
                lenient: false,
            });
            let Assessment::Needs { changes, .. } = decide(&state, &containerd, &want) else {
                panic!("must be registered");
            };
            let Change::RunTool { command, .. } = &changes[0] else {
                panic!("a tool")
            };
            assert!(matches!(&changes[1], Change::RestartUnit { .. }));
            assert_eq!(
                command.contains(&"--config-source=command".to_owned()),
                copied
            );
        }
    }
}
