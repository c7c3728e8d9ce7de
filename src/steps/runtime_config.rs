//! `runtime.docker-nvidia`, `runtime.containerd-nvidia`, `runtime.crio-nvidia`: the runtime knows the nvidia
//! runtime. What counts is what the daemon says about itself, and for containerd what its files say to it.

use async_trait::async_trait;
use camino::Utf8PathBuf;

use super::{TOOLKIT_PACKAGES, config_step, package_step, program, runtime_packages::wish, words};
use crate::{
    change::{Change, Lock, RuntimeSettings},
    config::desired::{Daemon, Desired, Restart, RuntimeWish},
    model::{document::FileSettings, id::StepId},
    runtimes::{BUILT_IN, Broken, Elsewhere, Goal, LackError, NVIDIA, Said},
    step::{Assessment, Cx, Step, StepError},
    tools::packages::HEADER,
};

/// See the module; one value per runtime.
pub struct NvidiaRuntime {
    daemon: Daemon,
    after: [StepId; 2],
}

impl NvidiaRuntime {
    pub fn of(daemon: Daemon) -> Self {
        Self {
            daemon,
            after: [TOOLKIT_PACKAGES, package_step(daemon.kind())],
        }
    }
}

/// What was read.
#[derive(Debug, Clone)]
struct RuntimeState {
    said: Said,
    /// A configuration file that cannot be read.
    broken: Option<Broken>,
    /// Who makes it read another file.
    other: Option<Elsewhere>,
    /// The usual file.
    usual: String,
    /// The keys that the files lack.
    lacking: Vec<FileSettings>,
    /// Whether there is a file that it reads first.
    configured: bool,
    /// Whether the daemon may not have taken up what an earlier run has written.
    unread: bool,
    /// Whether it has to be told to use CDI.
    cdi: bool,
    /// Containers that a restart, which takes up CDI, would stop.
    stops: Vec<String>,
    /// No systemd runs that could start the daemon, as in the chroot of an image's builder.
    not_booted: bool,
}

/// Reads what a daemon runs with, and what its files lack.
async fn detect(
    cx: &Cx<'_>,
    daemon: Daemon,
    wish: &RuntimeWish,
) -> Result<RuntimeState, StepError> {
    let (kind, configured) = (daemon.kind(), daemon.configured());
    let said = cx.state.said(kind).await?;
    let view = cx.state.runtime(kind).await?;
    let goal = Goal {
        name: runtime_of(cx.desired),
        default: wish.nvidia_default,
        cdi: cx.desired.cdi.is_some(),
        for_kubelet: configured.is_for_kubelet() && serves_kubelet(cx.desired),
    };
    let (lacking, broken) = match &view.broken {
        Some(broken) if !broken.forgiven => (Vec::new(), Some(broken.clone())),
        flaw => match configured.lacking(cx.host.files(), view, &goal) {
            Ok(lacking) => (lacking, flaw.clone()),
            Err(LackError::Broken(broken)) => (Vec::new(), Some(broken)),
            Err(LackError::Files(error)) => return Err(error.into()),
        },
    };
    let cdi = configured.needs_cdi(view, &goal);
    let stops = match cdi {
        true => cx.state.stopped_with(kind).await?,
        false => Vec::new(),
    };
    let not_booted = match (said, &wish.unit) {
        (Said::Silent(_), Some(unit)) => {
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

/// Whether a kubelet that this program starts will use the runtime.
fn serves_kubelet(desired: &Desired) -> bool {
    (desired.cluster.as_ref()).is_some_and(|cluster| cluster.method.way().starts_kubelet())
}

/// The runtime that a daemon has to know: without the toolkit it is the one that is built in.
fn runtime_of(desired: &Desired) -> &'static str {
    match desired.toolkit {
        Some(_) => NVIDIA,
        None => BUILT_IN,
    }
}

/// Whether the daemon is configured at all: for the toolkit, or for a kubelet.
fn is_configured(daemon: Daemon, desired: &Desired) -> bool {
    desired.toolkit.is_some() || (daemon.configured().is_for_kubelet() && serves_kubelet(desired))
}

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
        && !(broken.forgiven && matches!(&state.said, Said::Known(config) if config.lenient))
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
    let always = desired.runtime_restart == Restart::Always;
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
    let dump = daemon.configured().dump();
    let mut why = match &state.said {
        Said::Absent => format!("{name} is not installed yet"),
        Said::Silent(words) if state.configured && dump.is_some() => {
            let dump = dump.unwrap_or_default();
            return Assessment::blocked(
                format!("{name} refuses its configuration: {words}"),
                format!(
                    "correct the file that it names, or move it away, until `{dump}` succeeds; {name} does not start \
                     with it"
                ),
            );
        }
        Said::Unknown(_) => format!("{name} cannot be asked"),
        Said::Silent(_) if state.not_booted && state.lacking.is_empty() => {
            return Assessment::awaits_boot(format!(
                "{name} reads its configuration when it starts: no systemd runs here"
            ));
        }
        Said::Silent(words) => format!("{name} does not answer: {words}"),
        Said::Known(config) => {
            let default = &config.default;
            let runtimes: Vec<&str> = config.runtimes.iter().map(String::as_str).collect();
            let registered = runtimes.contains(&runtime);
            let is_default = default.as_deref() == Some(runtime);
            let lost = default
                .as_ref()
                .filter(|name| !config.runtimes.contains(*name));
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
    if let Some(Elsewhere { config, path, line }) = &state.other {
        let usual = &state.usual;
        return Assessment::blocked(
            format!(
                "{why}; {name} reads `{config}` and not `{usual}`, as `{path}`, line {line}, says"
            ),
            format!(
                "move what it says to `{usual}` and take `--config-file` out of that line, or add the runtime \
                 yourself (`nvidia-ctk runtime configure --runtime={name} --config={config}`); then run `systemctl \
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
                default: wish.nvidia_default,
                cdi: state.cdi,
                may_stop: always,
            },
        }],
    )
}

/// A file's path, and the change that writes it, or why none can.
type DropIn = (&'static str, Result<Change, String>);

/// How the line of the drop-in that starts the program begins. If the program fails, the daemon still starts.
const START: &str = "ExecStartPre=-";

/// The drop-in, if another program writes the daemon's file and the drop-in is missing or starts a program that does not exist,
/// with its path; or why it may not name this program.
fn drop_in(cx: &Cx<'_>, daemon: Daemon) -> Result<Option<DropIn>, StepError> {
    let Some(rewritten) = daemon.configured().rewritten() else {
        return Ok(None);
    };
    let files = cx.host.files();
    let (path, put_back) = (rewritten.drop_in, rewritten.subcommand);
    if runtime_of(cx.desired) == BUILT_IN || !rewritten.is_so(files)? {
        return Ok(None);
    }
    let command = |line: &str| {
        let (program, command) = line.strip_prefix(START)?.split_once(' ')?;
        (command.trim() == put_back).then(|| Utf8PathBuf::from(program))
    };
    let there = files.read_text(path.into())?;
    let named = there.and_then(|text| text.lines().find_map(command));
    let change = match program::named_or_lasting(cx, named.as_deref())? {
        Ok(program) if Some(&program) == named.as_ref() => return Ok(None),
        Ok(program) => Ok(Change::write(
            path,
            format!("{HEADER}[Service]\n{START}{program} {put_back}\n"),
        )),
        Err(why) => Err(why),
    };
    Ok(Some((path, change)))
}

/// Whose daemon of this kind the kubelet uses, if not this one: that is never configured here.
fn kubelets(cx: &Cx<'_>, daemon: Daemon) -> Result<Option<String>, StepError> {
    if daemon.kind().runtime().owners().is_empty() {
        return Ok(None);
    }
    let found = cx.state.kubelet_runtime()?;
    Ok(found.filter(|found| found.nvidia.is_some()).map(|found| {
        format!(
            "; the kubelet uses the {} of {} (`{}`), which is left to it",
            daemon.name(),
            found.name,
            found.socket
        )
    }))
}

#[async_trait]
impl Step for NvidiaRuntime {
    fn id(&self) -> StepId {
        config_step(self.daemon)
    }

    fn after(&self) -> &[StepId] {
        &self.after
    }

    fn locks(&self) -> &[Lock] {
        &[Lock::Containers]
    }

    fn wants(&self, _: &Change, desired: &Desired) -> bool {
        wish(desired, self.daemon.kind()).is_some()
            && (desired.driver.is_none() || is_configured(self.daemon, desired))
    }

    async fn assess(&self, cx: &Cx<'_>) -> Result<Assessment, StepError> {
        let Some(wish) = wish(cx.desired, self.daemon.kind()) else {
            return Ok(Assessment::not_applicable("this runtime is not configured"));
        };
        let mut answer = decide(
            &detect(cx, self.daemon, wish).await?,
            self.daemon,
            wish,
            cx.desired,
        );
        let drop_in = match drop_in(cx, self.daemon)? {
            Some((path, Err(why))) => return Ok(program::not_lasting(&why, path)),
            Some((path, Ok(change))) => Some((path, change)),
            None => None,
        };
        if let Some((path, change)) = drop_in {
            let name = self.daemon.name();
            let why = format!(
                "others write {name}'s file anew, and `{path}` is missing or starts a program that does not exist"
            );
            match &mut answer {
                // Undone first: otherwise the runtime would come back when the daemon starts with its former file.
                Assessment::Needs { changes, .. } => changes.push(change),
                Assessment::Satisfied { .. } => {
                    answer = Assessment::needs(why, vec![change]);
                }
                _ => {}
            }
        }
        if let Some(others) = kubelets(cx, self.daemon)?
            && let Assessment::Satisfied { why } | Assessment::Needs { why, .. } = &mut answer
        {
            why.push_str(&others);
        }
        Ok(answer)
    }
}

#[cfg(test)]
mod tests {
    use super::{Broken, NvidiaRuntime, RuntimeState, Said, decide, drop_in, wish};
    use crate::{
        change::Change,
        config::desired::{Daemon, Desired, Restart, RuntimeKind},
        host::fake,
        model::document::{FileSettings, Setting},
        runtimes::Config,
        step::{Assessment, Step},
        steps::fixtures::{self, desired},
    };

    fn known(runtimes: &[&str], default: &str) -> RuntimeState {
        intact(Said::Known(Config {
            runtimes: runtimes.iter().map(ToString::to_string).collect(),
            default: Some(default.to_owned()),
            ..Config::default()
        }))
    }

    fn intact(said: Said) -> RuntimeState {
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
    fn what_was_configured_is_wanted_as_long_as_its_runtime_is() {
        let docker = NvidiaRuntime::of(Daemon::Docker);
        let restart = Change::RestartUnit {
            unit: "docker.service".into(),
        };
        let mut want = desired();
        assert!(docker.wants(&restart, &want));
        assert!(!NvidiaRuntime::of(Daemon::Containerd).wants(&restart, &want));
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
        for unready in [Said::Absent, Said::Silent("no socket".into())] {
            decide(&intact(unready), Daemon::Docker, &docker, &want).expect_needs();
        }
        let (why, _) =
            decide(&known(&["nvidia"], "runc"), Daemon::Docker, &docker, &want).expect_needs();
        assert_eq!(why, "docker no longer has its default runtime runc");
        want.toolkit = None;
        decide(&intact(Said::Absent), Daemon::Docker, &docker, &want).expect_not_applicable();
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
            if let Said::Known(config) = &mut state.said {
                config.lenient = newer;
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
            wish(want, RuntimeKind::Docker).expect("docker"),
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
                "would stop 2 running containers (web, job): that is left to its next restart"
            ),
            "{why}"
        );
        assert!(!may_stop);
        // The key is written, and containers run: there is nothing to do. Later none runs.
        assert_eq!(said(&state(&[], &["web"]), &want), None);
        let (why, _) = said(&state(&[], &[]), &want).expect("a restart");
        assert_eq!(why, "docker uses CDI only from its next start on");
        let (why, may_stop) = said(&state(&[], &["web"]), &consents).expect("a restart");
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
        let state = intact(Said::Silent(
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
        let Some((_, Ok(Change::WriteFile { path, content, .. }))) = wanted() else {
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
        fakes.files.put(path.as_str(), content.as_str());
        assert_eq!(wanted(), None);
        // The program was moved since: its old path is gone.
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
