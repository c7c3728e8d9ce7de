//! `runtime.docker-nvidia`, `runtime.containerd-nvidia`: the nvidia runtime is configured in the container runtime. Decided by
//! the configuration that the daemon reports, and by its files.

use camino::Utf8PathBuf;

use super::{
    TOOLKIT_PACKAGES, config_step, messages, package_step, program, runtime_packages::spec,
};
use crate::{
    change::{Change, Lock, RuntimeSettings},
    config::desired::{Daemon, Desired, Restart, RuntimeSpec},
    model::document::FileSettings,
    runtimes::{BUILT_IN, Broken, Elsewhere, Goal, LackError, LiveConfig, NVIDIA},
    step::{Assessment, Cx, Step, StepError},
    tools::packages::HEADER,
};

/// The step of one runtime.
pub(super) fn step(daemon: Daemon) -> Step {
    Step::new(config_step(daemon), move |cx| Box::pin(assess(cx, daemon)))
        .after([TOOLKIT_PACKAGES, package_step(daemon.kind())])
        .locks([Lock::Containers])
        .wants(move |_, desired| {
            spec(desired, daemon.kind()).is_some()
                && (desired.driver.is_none() || is_configured(daemon, desired))
        })
}

/// The state of one runtime.
#[derive(Debug, Clone)]
struct RuntimeState {
    said: LiveConfig,
    /// A configuration file that the daemon cannot parse.
    broken: Option<Broken>,
    /// A line in another file that makes the daemon read a different configuration file.
    other: Option<Elsewhere>,
    /// The default configuration file.
    usual: String,
    /// Required keys that the configuration files lack.
    lacking: Vec<FileSettings>,
    /// Whether the first file that the daemon reads exists.
    configured: bool,
    /// Whether the daemon may not have reloaded the files that an interrupted run wrote.
    unread: bool,
    /// Whether CDI must be enabled explicitly.
    cdi: bool,
    /// Containers that a restart to enable CDI would stop.
    stops: Vec<String>,
    /// systemd is not running and cannot start the daemon, e.g. in the chroot of an image build.
    not_booted: bool,
}

/// Reads the active configuration of a daemon, and the missing keys of its files.
async fn detect(
    cx: &Cx<'_>,
    daemon: Daemon,
    spec: &RuntimeSpec,
) -> Result<RuntimeState, StepError> {
    let (kind, configured) = (daemon.kind(), daemon.configured());
    let said = cx.state.said(kind).await?;
    let view = cx.state.runtime(kind).await?;
    let goal = Goal {
        name: runtime_of(cx.desired),
        default: spec.nvidia_default,
        cdi: cx.desired.cdi.is_some(),
        for_kubelet: configured.is_for_kubelet() && serves_kubelet(cx.desired),
    };
    let (lacking, broken) = match &view.broken {
        Some(broken) if !broken.forgiven => (Vec::new(), Some(broken.clone())),
        issue => match configured.lacking(cx.host.files(), view, &goal) {
            Ok(lacking) => (lacking, issue.clone()),
            Err(LackError::Broken(broken)) => (Vec::new(), Some(broken)),
            Err(LackError::Files(error)) => return Err(error.into()),
        },
    };
    let cdi = configured.needs_cdi(view, &goal);
    let stops = match cdi {
        true => cx.state.stopped_with(kind).await?,
        false => Vec::new(),
    };
    let not_booted = match (said, &spec.unit) {
        (LiveConfig::Silent(_), Some(unit)) => {
            let unit = cx.state.unit(unit).await?;
            unit.is_some_and(|unit| unit.is_not_booted())
        }
        _ => false,
    };
    Ok(RuntimeState {
        said: said.clone(),
        broken,
        other: view.elsewhere.clone(),
        usual: (view.files.first()).map_or_else(String::new, |file| file.path.to_string()),
        lacking,
        configured: view.has_file(),
        unread: cx.state.ours().unread.contains(daemon.name()),
        cdi,
        stops,
        not_booted,
    })
}

/// Returns whether a kubelet that gpu-bootstrap starts will use the runtime.
fn serves_kubelet(desired: &Desired) -> bool {
    (desired.cluster.as_ref())
        .is_some_and(|cluster| cluster.method.implementation().starts_kubelet())
}

/// Returns the runtime that must be configured: without the toolkit, the built-in one.
fn runtime_of(desired: &Desired) -> &'static str {
    match desired.toolkit {
        Some(_) => NVIDIA,
        None => BUILT_IN,
    }
}

/// Returns whether the settings require a configuration of the daemon, for the toolkit or for a kubelet.
fn is_configured(daemon: Daemon, desired: &Desired) -> bool {
    desired.toolkit.is_some() || (daemon.configured().is_for_kubelet() && serves_kubelet(desired))
}

fn decide(
    state: &RuntimeState,
    daemon: Daemon,
    spec: &RuntimeSpec,
    desired: &Desired,
) -> Assessment {
    if !is_configured(daemon, desired) {
        return Assessment::not_applicable("the container toolkit is not configured");
    }
    let Some(unit) = &spec.unit else {
        return Assessment::not_applicable("this runtime has no daemon");
    };
    let name = daemon.name();
    let runtime = runtime_of(desired);
    // A running daemon read the file before it was broken, but will not start again.
    if let Some(broken) = &state.broken
        && !(broken.forgiven && matches!(&state.said, LiveConfig::Known(config) if config.lenient))
    {
        let Broken { path, why, .. } = broken;
        return Assessment::blocked(
            format!("{name} cannot parse `{path}`: {why}"),
            format!(
                "correct or move `{path}`; {name} does not start with it, and existing \
                 content is never overwritten"
            ),
        );
    }
    let always = desired.runtime_restart == Restart::Always;
    let with_cdi = match state.cdi && !state.stops.is_empty() {
        false => String::new(),
        true => {
            let containers = messages::list_of("running container", &state.stops);
            match always {
                true => format!("; a restart to enable CDI stops {containers}"),
                false => format!(
                    "; CDI needs a restart, which would stop {containers}: it is enabled at the \
                     next restart, or set `runtime.restart = \"always\"`"
                ),
            }
        }
    };
    let dump = daemon.configured().dump();
    let mut why = match &state.said {
        LiveConfig::Absent => format!("{name} is not installed yet"),
        LiveConfig::Silent(words) if state.configured && dump.is_some() => {
            let dump = dump.unwrap_or_default();
            return Assessment::blocked(
                format!("{name} rejects its configuration: {words}"),
                format!(
                    "correct or move the reported file until `{dump}` succeeds; {name} does not start \
                     with it"
                ),
            );
        }
        LiveConfig::Unknown(_) => format!("{name} cannot be queried"),
        LiveConfig::Silent(_) if state.not_booted && state.lacking.is_empty() => {
            return Assessment::awaits_boot(format!(
                "{name} reads its configuration when it starts, and systemd is not running"
            ));
        }
        LiveConfig::Silent(words) => format!("{name} does not respond: {words}"),
        LiveConfig::Known(config) => {
            let default = &config.default;
            let runtimes: Vec<&str> = config.runtimes.iter().map(String::as_str).collect();
            let registered = runtimes.contains(&runtime);
            let is_default = default.as_deref() == Some(runtime);
            let lost = default
                .as_ref()
                .filter(|name| !config.runtimes.contains(*name));
            if let Some(lost) = lost {
                // Containers that do not request GPUs use the default runtime, so they could not start.
                format!("{name} no longer has its default runtime {lost}")
            } else if !registered {
                format!(
                    "{name} runs without the {runtime} runtime ({})",
                    runtimes.join(", ")
                )
            } else if spec.nvidia_default && !is_default {
                format!(
                    "the default runtime of {name} is {}, not nvidia",
                    default.as_deref().unwrap_or("not set")
                )
            } else if state.unread {
                format!("{name} has not reloaded the files from an interrupted run")
            } else if let Some(file) = state.lacking.first() {
                let keys: Vec<String> = (file.settings.iter())
                    .map(|setting| setting.key.join("."))
                    .collect();
                format!("`{}` lacks settings for {}", file.path, keys.join(", "))
            } else if state.cdi && (always || state.stops.is_empty()) {
                format!("{name} enables CDI at its next start")
            } else {
                return Assessment::satisfied(format!(
                    "{name} runs with the runtimes {}{with_cdi}",
                    runtimes.join(", ")
                ));
            }
        }
    };
    if let Some(Elsewhere { config, path, line }) = &state.other {
        let usual = &state.usual;
        return Assessment::blocked(
            format!(
                "{why}; {name} reads `{config}` instead of `{usual}` because of `{path}`, line {line}"
            ),
            format!(
                "move its content to `{usual}` and remove `--config-file` from that line, or add the runtime \
                 manually (`nvidia-ctk runtime configure --runtime={name} --config={config}`); then run `systemctl \
                 daemon-reload`, restart {}, and run the command again",
                daemon.kind().runtime().facts().title
            ),
        );
    }
    why.push_str(&with_cdi);
    Assessment::needs(
        why,
        vec![Change::ConfigureRuntime {
            settings: RuntimeSettings {
                kind: daemon,
                unit: unit.clone(),
                files: state.lacking.clone(),
                runtime: runtime.to_owned(),
                default: spec.nvidia_default,
                cdi: state.cdi,
                may_stop: always,
            },
        }],
    )
}

/// Path of a drop-in, and the change that writes it or the reason that it cannot be written.
type DropIn = (&'static str, Result<Change, String>);

/// Prefix of the line in the drop-in that starts gpu-bootstrap. If the command fails, the daemon still starts.
const START: &str = "ExecStartPre=-";

/// Returns the drop-in and its path if another program writes the daemon's file and the drop-in is missing or starts
/// a missing or unsafe executable, or the reason that our executable must not be used.
fn drop_in(cx: &Cx<'_>, daemon: Daemon) -> Result<Option<DropIn>, StepError> {
    let Some(rewritten) = daemon.configured().rewritten() else {
        return Ok(None);
    };
    let files = cx.host.files();
    let (path, restore_saved) = (rewritten.drop_in, rewritten.subcommand);
    if runtime_of(cx.desired) == BUILT_IN || !rewritten.is_so(files)? {
        return Ok(None);
    }
    let command = |line: &str| {
        let (program, command) = line.strip_prefix(START)?.split_once(' ')?;
        (command.trim() == restore_saved).then(|| Utf8PathBuf::from(program))
    };
    let there = files.read_text(path.into())?;
    let named = there.and_then(|text| text.lines().find_map(command));
    let change = match program::named_or_persistent(cx, named.as_deref())? {
        Ok(program) if Some(&program) == named.as_ref() => return Ok(None),
        Ok(program) => Ok(Change::write(
            path,
            format!("{HEADER}[Service]\n{START}{program} {restore_saved}\n"),
        )),
        Err(why) => Err(why),
    };
    Ok(Some((path, change)))
}

/// Returns a message if the kubelet uses a different daemon of this kind, which gpu-bootstrap never configures.
fn kubelets(cx: &Cx<'_>, daemon: Daemon) -> Result<Option<String>, StepError> {
    if daemon.kind().runtime().owners().is_empty() {
        return Ok(None);
    }
    let found = cx.state.kubelet_runtime()?;
    Ok(found.filter(|found| found.nvidia.is_some()).map(|found| {
        format!(
            "; the kubelet uses the {} of {} (`{}`), which is not changed",
            daemon.name(),
            found.name,
            found.socket
        )
    }))
}

async fn assess(cx: &Cx<'_>, daemon: Daemon) -> Result<Assessment, StepError> {
    let Some(spec) = spec(cx.desired, daemon.kind()) else {
        return Ok(Assessment::not_applicable("this runtime is not configured"));
    };
    let mut answer = decide(&detect(cx, daemon, spec).await?, daemon, spec, cx.desired);
    let drop_in = match drop_in(cx, daemon)? {
        Some((path, Err(why))) => return Ok(program::not_persistent(&why, path)),
        Some((path, Ok(change))) => Some((path, change)),
        None => None,
    };
    if let Some((path, change)) = drop_in {
        let name = daemon.name();
        let why = format!(
            "another program rewrites the {name} configuration, and `{path}` is missing or starts a missing executable"
        );
        match &mut answer {
            // The last change is reverted first. If the drop-in were reverted later, it would restore the runtime when the
            // daemon starts with its former file.
            Assessment::Needs { changes, .. } => changes.push(change),
            Assessment::Satisfied { .. } => {
                answer = Assessment::needs(why, vec![change]);
            }
            _ => {}
        }
    }
    if let Some(others) = kubelets(cx, daemon)?
        && let Assessment::Satisfied { why } | Assessment::Needs { why, .. } = &mut answer
    {
        why.push_str(&others);
    }
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::{Broken, LiveConfig, RuntimeState, decide, drop_in, spec, step};
    use crate::{
        change::Change,
        config::desired::{Daemon, Desired, Restart, RuntimeKind},
        host::fake,
        model::document::{FileSettings, Setting},
        runtimes::Config,
        step::Assessment,
        steps::fixtures::{self, desired},
    };

    fn known(runtimes: &[&str], default: &str) -> RuntimeState {
        intact(LiveConfig::Known(Config {
            runtimes: runtimes.iter().map(ToString::to_string).collect(),
            default: Some(default.to_owned()),
            ..Config::default()
        }))
    }

    fn intact(said: LiveConfig) -> RuntimeState {
        RuntimeState {
            said,
            usual: "/etc/docker/daemon.json".into(),
            broken: None,
            lacking: Vec::new(),
            configured: true,
            other: None,
            unread: false,
            cdi: false,
            stops: Vec::new(),
            not_booted: false,
        }
    }

    #[test]
    fn changes_stay_while_their_runtime_is_configured() {
        let docker = step(Daemon::Docker);
        let restart = Change::RestartUnit {
            unit: "docker.service".into(),
        };
        let mut want = desired();
        assert!((docker.wants)(&restart, &want));
        assert!(!(step(Daemon::Containerd).wants)(&restart, &want));
        want.toolkit = None;
        assert!(!(docker.wants)(&restart, &want));
        // Without a driver it is unknown if a toolkit is configured.
        want.driver = None;
        assert!((docker.wants)(&restart, &want));
        want.runtimes.clear();
        assert!(!(docker.wants)(&restart, &want));
    }

    #[test]
    fn reported_configuration_decides() {
        let mut want = desired();
        let docker = spec(&want, RuntimeKind::Docker).expect("docker").clone();
        decide(
            &known(&["nvidia", "runc"], "runc"),
            Daemon::Docker,
            &docker,
            &want,
        )
        .expect_satisfied();
        let (why, changes) =
            decide(&known(&["runc"], "runc"), Daemon::Docker, &docker, &want).expect_needs();
        assert_eq!(why, "docker runs without the nvidia runtime (runc)");
        assert!(matches!(&changes[..], [Change::ConfigureRuntime { .. }]));
        let mut as_default = docker.clone();
        as_default.nvidia_default = true;
        decide(
            &known(&["nvidia", "runc"], "runc"),
            Daemon::Docker,
            &as_default,
            &want,
        )
        .expect_needs();
        for unready in [LiveConfig::Absent, LiveConfig::Silent("no socket".into())] {
            decide(&intact(unready), Daemon::Docker, &docker, &want).expect_needs();
        }
        let (why, _) =
            decide(&known(&["nvidia"], "runc"), Daemon::Docker, &docker, &want).expect_needs();
        assert_eq!(why, "docker no longer has its default runtime runc");
        want.toolkit = None;
        decide(&intact(LiveConfig::Absent), Daemon::Docker, &docker, &want).expect_not_applicable();
    }

    #[test]
    fn broken_file_blocks_despite_running_daemon() {
        let want = desired();
        let docker = spec(&want, RuntimeKind::Docker).expect("docker").clone();
        let mut state = known(&["nvidia", "runc"], "runc");
        state.broken = Some(Broken {
            path: "/etc/docker/daemon.json".into(),
            why: "expected value at line 3 column 7".into(),
            forgiven: false,
        });
        let (why, hint) = decide(&state, Daemon::Docker, &docker, &want).expect_blocked();
        assert!(why.contains("/etc/docker/daemon.json") && why.contains("line 3 column 7"));
        assert!(
            hint.contains("correct or move `/etc/docker/daemon.json`"),
            "{hint}"
        );
    }

    #[test]
    fn file_that_docker_tolerates_does_not_block() {
        let want = desired();
        let docker = spec(&want, RuntimeKind::Docker).expect("docker").clone();
        let invalid = |runtimes: &[&str], newer: bool| {
            let mut state = known(runtimes, "runc");
            if let LiveConfig::Known(config) = &mut state.said {
                config.lenient = newer;
            }
            state.broken = Some(Broken {
                path: "/etc/docker/daemon.json".into(),
                why: "it is empty".into(),
                forgiven: true,
            });
            decide(&state, Daemon::Docker, &docker, &want)
        };
        invalid(&["nvidia", "runc"], true).expect_satisfied();
        invalid(&["runc"], true).expect_needs();
        let (why, hint) = invalid(&["nvidia", "runc"], false).expect_blocked();
        assert!(
            why.contains("docker cannot parse `/etc/docker/daemon.json`: it is empty"),
            "{why}"
        );
        assert!(hint.contains("docker does not start with it"), "{hint}");
    }

    #[test]
    fn missing_keys_are_reported() {
        let want = desired();
        let docker = spec(&want, RuntimeKind::Docker).expect("docker").clone();
        let mut state = known(&["nvidia", "runc"], "runc");
        state.lacking = vec![FileSettings {
            path: "/etc/docker/daemon.json".into(),
            settings: vec![Setting {
                key: vec!["features".into(), "cdi".into()],
                value: Some(true.into()),
            }],
        }];
        let (why, changes) = decide(&state, Daemon::Docker, &docker, &want).expect_needs();
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
    fn containers_are_stopped_only_if_configured() {
        let want = desired();
        let consents = Desired {
            runtime_restart: Restart::Always,
            ..desired()
        };
        let lacking = vec![FileSettings {
            path: "/etc/docker/daemon.json".into(),
            settings: vec![Setting {
                key: vec!["features".into(), "cdi".into()],
                value: Some(true.into()),
            }],
        }];
        let state = |lacking: &[FileSettings], stops: &[&str]| RuntimeState {
            cdi: true,
            lacking: lacking.to_vec(),
            stops: stops.iter().map(ToString::to_string).collect(),
            ..known(&["nvidia", "runc"], "runc")
        };
        let said = |state: &RuntimeState, want: &Desired| match decide(
            state,
            Daemon::Docker,
            spec(want, RuntimeKind::Docker).expect("docker"),
            want,
        ) {
            Assessment::Needs { why, changes } => match &changes[..] {
                [Change::ConfigureRuntime { settings }] => Some((why, settings.may_stop)),
                other => panic!("{other:?}"),
            },
            Assessment::Satisfied { .. } => None,
            other => panic!("{other:?}"),
        };
        let (why, may_stop) = said(&state(&lacking, &["web", "job"]), &want).expect("a key");
        assert!(
            why.contains(
                "would stop 2 running containers (web, job): it is enabled at the next restart"
            ),
            "{why}"
        );
        assert!(!may_stop);
        // The key is written, but containers run, so nothing is changed. The restart follows when no container runs.
        assert_eq!(said(&state(&[], &["web"]), &want), None);
        let (why, _) = said(&state(&[], &[]), &want).expect("a restart");
        assert_eq!(why, "docker enables CDI at its next start");
        let (why, may_stop) = said(&state(&[], &["web"]), &consents).expect("a restart");
        assert!(
            why.ends_with("; a restart to enable CDI stops 1 running container (web)"),
            "{why}"
        );
        assert!(may_stop);
    }

    #[test]
    fn files_of_an_interrupted_run_are_reloaded() {
        let want = desired();
        let docker = spec(&want, RuntimeKind::Docker).expect("docker").clone();
        let state = RuntimeState {
            unread: true,
            ..known(&["nvidia", "runc"], "runc")
        };
        let (why, changes) = decide(&state, Daemon::Docker, &docker, &want).expect_needs();
        assert!(why.contains("interrupted"), "{why}");
        assert!(matches!(
            &changes[..],
            [Change::ConfigureRuntime { settings }] if settings.files.is_empty()
        ));
    }

    #[test]
    fn containerd_with_rejected_files_is_not_restarted() {
        let mut want = desired();
        let mut containerd = spec(&want, RuntimeKind::Docker).expect("docker").clone();
        containerd.kind = RuntimeKind::Containerd;
        want.runtimes.push(containerd.clone());
        let state = intact(LiveConfig::Silent(
            "failed to load TOML from conf.d/a.toml".into(),
        ));
        let (why, _) = decide(&state, Daemon::Containerd, &containerd, &want).expect_blocked();
        assert!(why.contains("conf.d/a.toml"), "{why}");
        let without = RuntimeState {
            configured: false,
            ..state
        };
        decide(&without, Daemon::Containerd, &containerd, &want).expect_needs();
    }

    /// The GKE boot script rewrites the containerd file at each boot, and so does the EKS join script of the
    /// Canonical image.
    #[test]
    fn drop_in_restores_runtime_in_rewritten_containerd_file() {
        let (host, fakes) = fake::host();
        let facts = fixtures::facts();
        let state = fixtures::state(&host, facts.clone());
        let want = desired();
        let answer = |daemon, want: &Desired| {
            let cx = fixtures::cx(&host, &facts, &state, want);
            drop_in(&cx, daemon).expect("readable")
        };
        let wanted = || answer(Daemon::Containerd, &want);
        assert_eq!(wanted(), None);
        fakes
            .files
            .put("/etc/systemd/system/kube-node-configuration.service", "");
        let Some((_, Ok(Change::WriteFile { path, content, .. }))) = wanted() else {
            panic!("must be written");
        };
        assert!(content.contains("\nExecStartPre=-/"), "{content}");
        // Without the toolkit there is nothing to restore, and the Docker file is never rewritten.
        let without = Desired {
            toolkit: None,
            ..desired()
        };
        assert_eq!(answer(Daemon::Containerd, &without), None);
        assert_eq!(answer(Daemon::Docker, &want), None);
        fakes.files.put(path.as_str(), content.as_str());
        assert_eq!(wanted(), None);
        // The executable was moved since, so its old path does not exist.
        let moved = content.replace("ExecStartPre=-/", "ExecStartPre=-/opt/old/");
        fakes.files.put(path.as_str(), moved.as_str());
        assert!(
            matches!(wanted(), Some((_, Ok(Change::WriteFile { content: now, .. }))) if now == content)
        );
        fakes
            .files
            .put("/opt/old/usr/local/bin/gpu-bootstrap", "another copy");
        assert_eq!(wanted(), None);
    }
}
