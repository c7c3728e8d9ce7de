//! `runtime.docker-nvidia`, `runtime.containerd-nvidia`, `runtime.crio-nvidia`: the runtime knows the nvidia
//! runtime. What counts is what the daemon says about itself, and for containerd what its files say to it.

use async_trait::async_trait;
use camino::Utf8Path;

use super::{
    RUNTIME_CONTAINERD, RUNTIME_CRIO, RUNTIME_DOCKER, TOOLKIT_PACKAGES, program,
    runtime_files::{Broken, DAEMON_JSON, RuntimeState, detect, is_configured, runtime_of},
    runtime_packages::wish,
    words,
};
use crate::{
    change::{Change, Lock, RuntimeSettings},
    config::desired::{Daemon, Desired, Restart, RuntimeWish},
    model::id::StepId,
    state::Effective,
    step::{Assessment, Cx, Step, StepError},
    tools::{containerd::layout, docker, packages::HEADER, systemctl},
};

/// See the module; one value per runtime.
pub struct NvidiaRuntime(pub Daemon);

fn decide(
    state: &RuntimeState,
    daemon: Daemon,
    wish: &RuntimeWish,
    desired: &Desired,
) -> Assessment {
    if !is_configured(daemon, desired) {
        return Assessment::not_applicable("the container toolkit is not configured");
    }
    let Some(unit) = &wish.unit else {
        return Assessment::not_applicable("this runtime has no daemon");
    };
    let name = daemon.name();
    let runtime = runtime_of(desired);
    // A daemon that runs read it before it was broken, and does not start again.
    if let Some(broken) = &state.broken
        && !(broken.forgiven && matches!(state.effective, Effective::Known { lenient: true, .. }))
    {
        let Broken { path, why, .. } = broken;
        return Assessment::blocked(
            format!("`{path}` cannot be read by {name}: {why}"),
            format!(
                "correct `{path}`, or move it away; {name} does not start with it, and existing \
                 content is never overwritten"
            ),
        );
    }
    let always = wish.restart == Restart::Always;
    let with_cdi = match state.cdi && !state.stops.is_empty() {
        false => String::new(),
        true => {
            let containers = words::list_of("running container", &state.stops);
            match always {
                true => format!("; it is restarted to use CDI, which stops {containers}"),
                false => format!(
                    "; to use CDI it has to be restarted, which would stop {containers}: that is left to its \
                     next restart, or set `runtime.restart = \"always\"`"
                ),
            }
        }
    };
    let mut why = match &state.effective {
        Effective::Absent => format!("{name} is not installed yet"),
        Effective::Silent(words) if daemon == Daemon::Containerd && state.configured => {
            return Assessment::blocked(
                format!("containerd refuses its configuration: {words}"),
                "correct the file that it names, or move it away, until `containerd config \
                 dump` succeeds; containerd does not start with it",
            );
        }
        Effective::Silent(_) if state.not_booted && state.lacking.is_empty() => {
            return Assessment::awaits_boot(format!(
                "{name} reads its configuration when it starts: no systemd runs here"
            ));
        }
        Effective::Silent(words) => format!("{name} does not answer: {words}"),
        Effective::Known {
            runtimes, default, ..
        } => {
            let registered = runtimes.iter().any(|known| known == runtime);
            let is_default = default.as_deref() == Some(runtime);
            let lost = default.as_ref().filter(|name| !runtimes.contains(name));
            if let Some(lost) = lost {
                // Containers that ask for no GPU could not start.
                format!("{name} no longer has its default runtime {lost}")
            } else if !registered {
                format!(
                    "{name} runs without the {runtime} runtime ({})",
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
            } else if state.cdi && (always || state.stops.is_empty()) {
                format!("{name} uses CDI only from its next start on")
            } else {
                return Assessment::satisfied(format!(
                    "{name} runs with the runtimes {}{with_cdi}",
                    runtimes.join(", ")
                ));
            }
        }
    };
    if let Some(docker::OtherConfig { config, path, line }) = &state.other {
        return Assessment::blocked(
            format!(
                "{why}; docker reads `{config}` and not `{DAEMON_JSON}`, as `{path}`, line {line}, says"
            ),
            format!(
                "move what it says to `{DAEMON_JSON}` and take `--config-file` out of that line, or add the runtime \
                 yourself (`nvidia-ctk runtime configure --runtime=docker --config={config}`); then run `systemctl \
                 daemon-reload`, restart Docker, and run the command again"
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
                default: wish.nvidia_default,
                cdi: state.cdi,
                may_stop: always,
            },
        }],
    )
}

/// What writes containerd's whole file anew, after `install` has run: Google's script of each boot, whose unit starts it
/// (kubernetes/cloud-provider-gcp, `cluster/gce/gci/configure-helper.sh`, `setup-containerd`, up to commit c3b0081d7, which
/// removed the folder; GKE's own script is not public), and that of Canonical's image for EKS, by which the node joins (its `/etc/eks/bootstrap.sh`).
const REWRITING_UNIT: &str = "kube-node-configuration.service";
const REWRITING_PROGRAM: &str = "/etc/eks/bootstrap.sh";

/// Has the runtime put back before each start of containerd, so also before the first pod.
const DROP_IN: &str = "/etc/systemd/system/containerd.service.d/50-gpu-bootstrap.conf";

/// The hidden subcommand that does it.
const PUT_BACK: &str = "containerd-runtime";

/// The drop-in, where others write containerd's file and it is missing; or why it may not name this program.
fn drop_in(cx: &Cx<'_>, daemon: Daemon) -> Result<Option<Result<Change, String>>, StepError> {
    if daemon != Daemon::Containerd || runtime_of(cx.desired) == layout::BUILT_IN {
        return Ok(None);
    }
    let files = cx.host.files();
    let mut is_rewritten = files.exists(Utf8Path::new(REWRITING_PROGRAM))?;
    for folder in systemctl::FOLDERS {
        is_rewritten |= files.exists(&Utf8Path::new(folder).join(REWRITING_UNIT))?;
    }
    let there = files.read_text(DROP_IN.into())?;
    if !is_rewritten || there.is_some_and(|text| text.contains(PUT_BACK)) {
        return Ok(None);
    }
    Ok(Some(program::lasting(cx)?.map(|program| {
        Change::write(
            DROP_IN,
            format!("{HEADER}[Service]\nExecStartPre=-{program} {PUT_BACK}\n"),
        )
    })))
}

/// Whose containerd the kubelet uses, if not this one: that is never configured here.
fn kubelets(cx: &Cx<'_>, daemon: Daemon) -> Result<Option<String>, StepError> {
    if daemon != Daemon::Containerd {
        return Ok(None);
    }
    let found = cx.state.kubelet_runtime()?;
    Ok(found.filter(|found| found.nvidia.is_some()).map(|found| {
        format!(
            "; the kubelet uses the containerd of {} (`{}`), which is left to it",
            found.name, found.socket
        )
    }))
}

#[async_trait]
impl Step for NvidiaRuntime {
    fn id(&self) -> StepId {
        match self.0 {
            Daemon::Docker => super::RUNTIME_DOCKER_NVIDIA,
            Daemon::Containerd => super::RUNTIME_CONTAINERD_NVIDIA,
            Daemon::Crio => super::RUNTIME_CRIO_NVIDIA,
        }
    }

    fn after(&self) -> &[StepId] {
        match self.0 {
            Daemon::Docker => const { &[TOOLKIT_PACKAGES, RUNTIME_DOCKER] },
            Daemon::Containerd => const { &[TOOLKIT_PACKAGES, RUNTIME_CONTAINERD] },
            Daemon::Crio => const { &[TOOLKIT_PACKAGES, RUNTIME_CRIO] },
        }
    }

    fn locks(&self) -> &[Lock] {
        &[Lock::Containers]
    }

    fn wants(&self, _: &Change, desired: &Desired) -> bool {
        wish(desired, self.0.kind()).is_some()
            && (desired.driver.is_none() || is_configured(self.0, desired))
    }

    async fn assess(&self, cx: &Cx<'_>) -> Result<Assessment, StepError> {
        let Some(wish) = wish(cx.desired, self.0.kind()) else {
            return Ok(Assessment::not_applicable("this runtime is not configured"));
        };
        let mut answer = decide(&detect(cx, self.0, wish).await?, self.0, wish, cx.desired);
        let drop_in = match drop_in(cx, self.0)? {
            Some(Err(why)) => return Ok(program::not_lasting(&why, DROP_IN)),
            Some(Ok(change)) => Some(change),
            None => None,
        };
        if let Some(change) = drop_in {
            let why = format!("others write containerd's file anew, and `{DROP_IN}` is missing");
            match &mut answer {
                // Undone first: otherwise the runtime would come back when containerd starts with its former file.
                Assessment::Needs { changes, .. } => changes.push(change),
                Assessment::Satisfied { .. } => {
                    answer = Assessment::needs(why, vec![change]);
                }
                _ => {}
            }
        }
        if let Some(others) = kubelets(cx, self.0)?
            && let Assessment::Satisfied { why } | Assessment::Needs { why, .. } = &mut answer
        {
            why.push_str(&others);
        }
        Ok(answer)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{Broken, Effective, NvidiaRuntime, RuntimeState, decide, drop_in, wish};
    use crate::{
        change::Change,
        config::desired::{Daemon, Desired, Restart, RuntimeKind, RuntimeWish},
        host::fake,
        model::document::{FileSettings, Setting},
        step::{Assessment, Step},
        steps::fixtures::{self, desired},
    };

    fn known(runtimes: &[&str], default: &str) -> RuntimeState {
        intact(Effective::Known {
            runtimes: runtimes.iter().map(ToString::to_string).collect(),
            default: Some(default.to_owned()),
            programs: BTreeMap::new(),
            lenient: false,
            without_cdi: false,
            live_restore: false,
        })
    }

    fn intact(effective: Effective) -> RuntimeState {
        RuntimeState {
            effective,
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
    fn what_was_configured_is_wanted_as_long_as_its_runtime_is() {
        let docker = NvidiaRuntime(Daemon::Docker);
        let restart = Change::RestartUnit {
            unit: "docker.service".into(),
        };
        let mut want = desired();
        assert!(docker.wants(&restart, &want));
        assert!(!NvidiaRuntime(Daemon::Containerd).wants(&restart, &want));
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
        for unready in [Effective::Absent, Effective::Silent("no socket".into())] {
            decide(&intact(unready), Daemon::Docker, &docker, &want).expect_needs();
        }
        let (why, _) =
            decide(&known(&["nvidia"], "runc"), Daemon::Docker, &docker, &want).expect_needs();
        assert_eq!(why, "docker no longer has its default runtime runc");
        want.toolkit = None;
        decide(&intact(Effective::Absent), Daemon::Docker, &docker, &want).expect_not_applicable();
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
        let (why, hint) = decide(&state, Daemon::Docker, &docker, &want).expect_blocked();
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
            decide(&state, Daemon::Docker, &docker, &want)
        };
        flawed(&["nvidia", "runc"], true).expect_satisfied();
        flawed(&["runc"], true).expect_needs();
        let (why, hint) = flawed(&["nvidia", "runc"], false).expect_blocked();
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
    fn containers_are_stopped_only_with_consent() {
        let want = desired();
        let mut docker = wish(&want, RuntimeKind::Docker).expect("docker").clone();
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
        let said = |state: &RuntimeState, docker: &RuntimeWish| match decide(
            state,
            Daemon::Docker,
            docker,
            &want,
        ) {
            Assessment::Needs { why, changes } => match &changes[..] {
                [Change::ConfigureRuntime { settings }] => Some((why, settings.may_stop)),
                other => panic!("{other:?}"),
            },
            Assessment::Satisfied { .. } => None,
            other => panic!("{other:?}"),
        };
        let (why, may_stop) = said(&state(&lacking, &["web", "job"]), &docker).expect("a key");
        assert!(
            why.contains(
                "would stop 2 running containers (web, job): that is left to its next restart"
            ),
            "{why}"
        );
        assert!(!may_stop);
        // The key is written, and containers run: there is nothing to do. Later none runs.
        assert_eq!(said(&state(&[], &["web"]), &docker), None);
        let (why, _) = said(&state(&[], &[]), &docker).expect("a restart");
        assert_eq!(why, "docker uses CDI only from its next start on");
        docker.restart = Restart::Always;
        let (why, may_stop) = said(&state(&[], &["web"]), &docker).expect("a restart");
        assert!(
            why.ends_with("; it is restarted to use CDI, which stops 1 running container (web)"),
            "{why}"
        );
        assert!(may_stop);
    }

    #[test]
    fn what_an_interrupted_run_has_written_is_taken_up() {
        let want = desired();
        let docker = wish(&want, RuntimeKind::Docker).expect("docker").clone();
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
    fn a_containerd_that_refuses_its_files_is_not_restarted() {
        let mut want = desired();
        let mut containerd = wish(&want, RuntimeKind::Docker).expect("docker").clone();
        containerd.kind = RuntimeKind::Containerd;
        want.runtimes.push(containerd.clone());
        let state = intact(Effective::Silent(
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

    /// Google's script of each boot writes containerd's file anew; so does that by which Canonical's image joins EKS.
    #[test]
    fn where_others_write_containerds_file_the_runtime_is_put_back_before_each_start() {
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
        let Some(Ok(Change::WriteFile { path, content, .. })) = wanted() else {
            panic!("must be written");
        };
        assert!(content.contains("\nExecStartPre=-/"), "{content}");
        // Without the toolkit nothing of ours could get lost; nor could it in the file of Docker.
        let without = Desired {
            toolkit: None,
            ..desired()
        };
        assert_eq!(answer(Daemon::Containerd, &without), None);
        assert_eq!(answer(Daemon::Docker, &want), None);
        fakes.files.put(path.as_str(), content);
        assert_eq!(wanted(), None);
    }
}
