//! Compares gpu-bootstrap with real daemons. For each arrangement of configuration files, it compares the configuration that
//! the daemon reads, the configuration that gpu-bootstrap reads, and the daemon's configuration after gpu-bootstrap has set its
//! keys.
//!
//! `tests/daemons` contains the recorded output of real programs: `containerd config dump` and `dockerd --validate` of each
//! version. `tests/daemons/record.sh` records it again. Run it after adding an arrangement, or if gpu-bootstrap sets other
//! keys.

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Map, Value, json};

use crate::{
    host::{ExecError, fake},
    model::document::{Document, FileSettings, Format, Setting},
    runtimes::{
        BUILT_IN, Config, RuntimeKind, Version,
        containerd::{
            CONFIG as CONTAINERD_CONFIG,
            layout::{ContainerdRuntime, fixtures::NVIDIA, settings},
            parse_config,
        },
        docker,
    },
    steps::fixtures::{facts, state, state_below_root},
};

/// The result of a real program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum ProgramAnswer<T> {
    /// The configuration that it reads.
    Reads(T),
    /// The error message in one line.
    Refuses(String),
}

/// The results of a daemon for an arrangement, before and after the keys are set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct DaemonAnswer<T> {
    arrangement: String,
    set: Vec<FileSettings>,
    before: ProgramAnswer<T>,
    after: ProgramAnswer<T>,
    /// The keys whose effective value changed, except the keys of the runtime itself.
    changed: Vec<String>,
}

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/daemons")
}

/// Returns the recorded results, by daemon version.
fn answers<T: DeserializeOwned>(daemon: &str) -> BTreeMap<String, Vec<DaemonAnswer<T>>> {
    let files = fs::read_dir(directory()).expect("a folder");
    let names = files.map(|file| file.expect("a file").file_name().into_string());
    let mut found = BTreeMap::new();
    for name in names.map(|name| name.expect("a name")) {
        let version = (name.strip_prefix(daemon))
            .and_then(|rest| rest.strip_prefix('-')?.strip_suffix(".jsonl"));
        if let Some(version) = version {
            let text = fs::read_to_string(directory().join(&name)).expect("a file");
            let lines = text.lines().map(|line| {
                serde_json::from_str(line).unwrap_or_else(|error| panic!("{name}: {error}"))
            });
            found.insert(version.to_owned(), lines.collect());
        }
    }
    found
}

/// Records the results of real programs, if `DAEMONS` is a directory with `containerd-VERSION` and `dockerd-VERSION`.
fn record<T: Serialize>(daemon: &str, ask: impl Fn(&Path, &str) -> Vec<DaemonAnswer<T>>) {
    let Some(programs) = env::var_os("DAEMONS") else {
        return;
    };
    for program in fs::read_dir(programs).expect("a folder") {
        let program = program.expect("a file").path();
        let name = program.file_name().and_then(|name| name.to_str());
        let Some(version) = name.and_then(|name| name.strip_prefix(daemon)?.strip_prefix('-'))
        else {
            continue;
        };
        let lines: Vec<String> = (ask(&program, version).iter())
            .map(|answer| serde_json::to_string(answer).expect("JSON") + "\n")
            .collect();
        let file = directory().join(format!("{daemon}-{version}.jsonl"));
        fs::write(file, lines.concat()).expect("written");
    }
}

/// Fails if the recorded results are for other arrangements than the current ones.
fn are_current<T>(
    daemon: &str,
    version: &str,
    kept: &[DaemonAnswer<T>],
    now: &[(String, Vec<FileSettings>)],
) {
    let kept: Vec<_> = (kept.iter())
        .map(|answer| (answer.arrangement.clone(), answer.set.clone()))
        .collect();
    for (kept, now) in kept.iter().zip(now) {
        assert_eq!(
            kept, now,
            "{daemon} {version} has no record of this arrangement: run tests/daemons/record.sh"
        );
    }
    assert_eq!(
        kept.len(),
        now.len(),
        "{daemon} {version}: run tests/daemons/record.sh"
    );
}

/// Runs a program with its own directory as `PATH`, where dockerd looks for its proxy.
fn run(program: &Path, args: &[String]) -> Result<String, String> {
    let output = Command::new(program)
        .args(args)
        .env("PATH", program.parent().expect("a folder"))
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .output()
        .expect("the program runs");
    if output.status.success() {
        return Ok(String::from_utf8(output.stdout).expect("text"));
    }
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let lines = said.lines().filter(|line| !line.starts_with("time="));
    let words = lines.flat_map(str::split_whitespace);
    Err(words.collect::<Vec<_>>().join(" "))
}

mod of_containerd {
    use super::*;

    const TWO: &str = "io.containerd.grpc.v1.cri";
    const THREE: &str = "io.containerd.cri.v1.runtime";
    const A: &str = "/etc/containerd/conf.d/50-a.toml";
    const B: &str = "/etc/containerd/conf.d/60-b.toml";
    const THEIRS: &str = "/usr/local/nvidia/toolkit/nvidia-container-runtime";

    const DEFAULT: ContainerdRuntime<'_> = ContainerdRuntime {
        default: true,
        ..NVIDIA
    };
    const KUBELETS: ContainerdRuntime<'_> = ContainerdRuntime {
        systemd_cgroup: Some(true),
        for_kubelet: true,
        ..NVIDIA
    };
    const ALONE: ContainerdRuntime<'_> = ContainerdRuntime {
        name: BUILT_IN,
        cdi: false,
        ..KUBELETS
    };

    /// An arrangement: its name, its files, and the runtime to configure.
    type Arrangement = (
        &'static str,
        Vec<(&'static str, String)>,
        ContainerdRuntime<'static>,
    );

    /// Returns the text of a root file that imports all files in `conf.d`.
    fn root(version: u8, more: &str) -> String {
        format!("version = {version}\nimports = [\"/etc/containerd/conf.d/*.toml\"]\n{more}")
    }

    /// Returns the text of a file with runc settings.
    fn runc(version: u8, plugin: &str) -> String {
        format!(
            "version = {version}\n[plugins.'{plugin}'.containerd.runtimes.runc]\n\
             runtime_type = 'io.containerd.runc.v2'\n\
             [plugins.'{plugin}'.containerd.runtimes.runc.options]\nSystemdCgroup = true # {version}\n"
        )
    }

    /// Returns the text of a file that configures the NVIDIA runtime with a program.
    fn nvidia(version: u8, plugin: &str, program: &str) -> String {
        runc(version, plugin)
            + &format!(
                "[plugins.'{plugin}'.containerd.runtimes.nvidia]\nruntime_type = 'io.containerd.runc.v2'\n\
                 [plugins.'{plugin}'.containerd.runtimes.nvidia.options]\nBinaryName = '{program}'\n"
            )
    }

    fn mirrors(version: u8, plugin: &str) -> String {
        format!("version = {version}\n[plugins.'{plugin}'.registry]\nconfig_path = '/certs'\n")
    }

    fn arrangements() -> Vec<Arrangement> {
        let one = |text: &str| vec![(CONTAINERD_CONFIG, text.to_owned())];
        let debian = "version = 2\n\n[plugins]\n  [plugins.\"io.containerd.grpc.v1.cri\"]\n    \
            [plugins.\"io.containerd.grpc.v1.cri\".cni]\n      bin_dir = \"/usr/lib/cni\"\n      \
            conf_dir = \"/etc/cni/net.d\"\n";
        let docker =
            "#   Copyright\n\ndisabled_plugins = [\"cri\"]\n\n#root = \"/var/lib/containerd\"\n";
        let off = |plugin: &str| {
            format!(
                "disabled_plugins = ['{plugin}', 'io.containerd.internal.v1.opt'] # no kubelet\n"
            )
        };
        let both = |root: String, a: String| vec![(CONTAINERD_CONFIG, root), (A, a)];
        vec![
            ("no file", vec![], NVIDIA),
            ("no file, as the default", vec![], DEFAULT),
            ("no file, for a kubelet", vec![], KUBELETS),
            ("no file, for a kubelet without GPUs", vec![], ALONE),
            ("Docker package file", one(docker), NVIDIA),
            ("Docker package file, for a kubelet", one(docker), KUBELETS),
            ("Debian package file", one(debian), NVIDIA),
            ("Debian package file, for a kubelet", one(debian), KUBELETS),
            // Azure/AgentBaker, pkg/agent/baker.go.
            (
                "AKS file: version 2 with the version 3 table",
                one(&format!("oom_score = -999\n{}", runc(2, THREE))),
                NVIDIA,
            ),
            ("version 2", one(&runc(2, TWO)), NVIDIA),
            ("version 2, as the default", one(&runc(2, TWO)), DEFAULT),
            ("version 2, for a kubelet", one(&runc(2, TWO)), KUBELETS),
            ("version 3", one(&runc(3, THREE)), NVIDIA),
            ("version 3, as the default", one(&runc(3, THREE)), DEFAULT),
            ("version 3, for a kubelet", one(&runc(3, THREE)), KUBELETS),
            ("version 4", one(&runc(4, THREE)), NVIDIA),
            (
                "version 4 imports version 3",
                both(root(4, ""), runc(3, THREE)),
                NVIDIA,
            ),
            (
                "version 4 imports version 2 with the runtime",
                both(root(4, ""), nvidia(2, TWO, THEIRS)),
                NVIDIA,
            ),
            (
                "version 3 imports version 2",
                both(root(3, ""), runc(2, TWO)),
                NVIDIA,
            ),
            (
                "version 3 imports version 2 with mirrors",
                both(
                    runc(3, THREE).replacen('\n', "\nimports = ['conf.d/*.toml']\n", 1),
                    mirrors(2, TWO),
                ),
                NVIDIA,
            ),
            (
                "version 2 imports version 3",
                both(root(2, ""), runc(3, THREE)),
                NVIDIA,
            ),
            (
                "version 2 imports mirrors",
                both(root(2, ""), mirrors(2, TWO)),
                NVIDIA,
            ),
            (
                "the runtime is in a drop-in of version 2",
                both(root(2, ""), nvidia(2, TWO, NVIDIA.program)),
                NVIDIA,
            ),
            (
                "the runtime is in a drop-in of version 3",
                both(root(3, ""), nvidia(3, THREE, NVIDIA.program)),
                NVIDIA,
            ),
            (
                "two drop-ins, the later one without runtimes",
                vec![
                    (CONTAINERD_CONFIG, root(2, "")),
                    (A, runc(2, TWO)),
                    (B, mirrors(2, TWO)),
                ],
                NVIDIA,
            ),
            (
                "two drop-ins with the runtime",
                vec![
                    (CONTAINERD_CONFIG, root(2, "")),
                    (A, nvidia(2, TWO, NVIDIA.program)),
                    (B, nvidia(2, TWO, THEIRS)),
                ],
                NVIDIA,
            ),
            (
                "a drop-in imports a file in a subdirectory",
                vec![
                    (
                        CONTAINERD_CONFIG,
                        "version = 2\nimports = ['conf.d/*.toml']\n".to_owned(),
                    ),
                    (A, "version = 2\nimports = ['more/c.toml']\n".to_owned()),
                    ("/etc/containerd/conf.d/more/c.toml", runc(2, TWO)),
                ],
                NVIDIA,
            ),
            (
                "a drop-in imports the first file",
                both(
                    root(2, ""),
                    "version = 2\nimports = ['/etc/containerd/config.toml']\n".to_owned(),
                ),
                NVIDIA,
            ),
            (
                "the CRI plugin is disabled in a drop-in",
                both(root(2, ""), format!("version = 2\n{}", off(TWO))),
                NVIDIA,
            ),
            (
                "the CRI plugin is disabled in both files",
                both(
                    root(3, &off(THREE)),
                    format!("version = 3\ndisabled_plugins = ['{THREE}']\n"),
                ),
                NVIDIA,
            ),
        ]
    }

    /// The result of gpu-bootstrap for an arrangement: the keys that it sets, the files afterwards, and the configuration that
    /// it reads from the files without the daemon, before and afterwards.
    struct OurEdits {
        set: Vec<FileSettings>,
        files: BTreeMap<String, String>,
        before: Config,
        after: Config,
    }

    async fn ours(arrangement: &Arrangement, version: Version) -> OurEdits {
        let (name, files, runtime) = arrangement;
        let (host, fakes) = fake::host();
        fakes.exec.on_result("containerd", |cmd, _| {
            Err(ExecError::NotQueried {
                command: cmd.line(),
                why: "a tree".to_owned(),
            })
        });
        fakes.files.put("/usr/bin/containerd", "");
        // If commands cannot be executed, the version is read from the package database.
        let package = "Package: containerd\nStatus: install ok installed\nArchitecture: amd64\n";
        fakes.files.put(
            "/var/lib/dpkg/status",
            format!("{package}Version: {version}.0-1\n"),
        );
        let mut texts = BTreeMap::new();
        for (path, text) in files {
            fakes.files.put(path, text.as_str());
            texts.insert((*path).to_owned(), text.clone());
        }
        let wanted = async || {
            let state = state(&host, facts());
            let view = state
                .runtime(RuntimeKind::Containerd)
                .await
                .expect("readable");
            settings(&view.files, Some(version), runtime).expect("readable")
        };
        let read = async || {
            let state = state_below_root(&host, facts());
            let view = state
                .runtime(RuntimeKind::Containerd)
                .await
                .expect("readable");
            view.config().expect("it is installed").clone()
        };
        let before = read().await;
        let set = wanted().await;
        for one in &set {
            let text = host.files.read_text(&one.path).expect("readable");
            let mut document =
                Document::parse(Format::Toml, &text.unwrap_or_default()).expect("TOML");
            for setting in &one.settings {
                document.set(setting).expect("a key that can be set");
            }
            fakes.files.put(one.path.as_str(), document.text());
            texts.insert(one.path.to_string(), document.text());
        }
        assert_eq!(wanted().await, [], "{name}: keys are set only once");
        OurEdits {
            set,
            files: texts,
            before,
            after: read().await,
        }
    }

    /// Returns the complete configuration, as printed by the daemon.
    fn dump(program: &Path, files: &BTreeMap<String, String>) -> ProgramAnswer<toml::Table> {
        let directory = tempfile::tempdir().expect("a folder");
        let place = directory.path().to_str().expect("text");
        for (path, text) in files {
            let path = format!("{place}{path}");
            fs::create_dir_all(Path::new(&path).parent().expect("a folder")).expect("made");
            let text = text.replace("/etc/containerd", &format!("{place}/etc/containerd"));
            fs::write(path, text).expect("written");
        }
        let root = format!("{place}{CONTAINERD_CONFIG}");
        let args = ["--config", &root, "config", "dump"].map(str::to_owned);
        match run(program, &args) {
            Ok(text) => {
                let text = text.replace(place, "");
                ProgramAnswer::Reads(toml::from_str(&text).expect("TOML"))
            }
            Err(why) => ProgramAnswer::Refuses(why.replace(place, "")),
        }
    }

    /// Returns the part that gpu-bootstrap reads, without keys that have no value.
    fn part(dump: &toml::Table) -> Value {
        let all = serde_json::to_value(dump).expect("JSON");
        let kept = |from: &Value, keys: &[&str]| -> Map<String, Value> {
            let named = keys
                .iter()
                .map(|key| ((*key).to_owned(), from[*key].clone()));
            named.filter(|(_, value)| !value.is_null()).collect()
        };
        let mut plugins = Map::new();
        for plugin in [TWO, THREE] {
            let cri = &all["plugins"][plugin];
            if cri.get("containerd").is_none() {
                continue;
            }
            let mut runtimes = Map::new();
            for (name, runtime) in cri["containerd"]["runtimes"]
                .as_object()
                .into_iter()
                .flatten()
            {
                let mut entry = kept(runtime, &["runtime_type"]);
                let options = kept(&runtime["options"], &["BinaryName", "SystemdCgroup"]);
                entry.insert("options".to_owned(), options.into());
                runtimes.insert(name.clone(), entry.into());
            }
            let mut containerd = kept(&cri["containerd"], &["default_runtime_name"]);
            containerd.insert("runtimes".to_owned(), runtimes.into());
            let mut entry = kept(cri, &["enable_cdi", "cdi_spec_dirs"]);
            entry.insert("containerd".to_owned(), containerd.into());
            plugins.insert(plugin.to_owned(), entry.into());
        }
        let mut part = kept(&all, &["version", "disabled_plugins"]);
        part.insert("plugins".to_owned(), plugins.into());
        part.into()
    }

    /// Collects each leaf value with its key path.
    fn leaves(value: &Value, path: &str, found: &mut BTreeMap<String, String>) {
        match value.as_object() {
            Some(object) if !object.is_empty() => {
                for (name, value) in object {
                    leaves(value, &format!("{path}/{name}"), found);
                }
            }
            _ => {
                found.insert(path.to_owned(), value.to_string());
            }
        }
    }

    /// Returns the changed keys, except the keys of the runtime itself.
    fn changed(before: &toml::Table, after: &toml::Table, runtime: &str) -> Vec<String> {
        let leaves = |table: &toml::Table| {
            let mut found = BTreeMap::new();
            leaves(&serde_json::to_value(table).expect("JSON"), "", &mut found);
            found
        };
        let (before, after) = (leaves(before), leaves(after));
        let keys: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
        let own = format!("/containerd/runtimes/{runtime}/");
        // A key without a value is treated as missing.
        let word = |value: Option<&String>| match value.map(String::as_str) {
            None | Some("\"\"" | "0" | "false" | "{}" | "[]") => "none".to_owned(),
            Some(value) => value.to_owned(),
        };
        keys.into_iter()
            // The daemon does not print imports in reading order.
            .filter(|key| !key.contains(&own) && *key != "/imports")
            .map(|key| (key, word(before.get(key)), word(after.get(key))))
            .filter(|(_, before, after)| before != after)
            .map(|(key, before, after)| format!("{key}: {before} -> {after}"))
            .collect()
    }

    async fn asked(program: &Path, version: Version) -> Vec<DaemonAnswer<Value>> {
        let mut found = Vec::new();
        for arrangement in arrangements() {
            let ours = ours(&arrangement, version).await;
            let files = (arrangement.1.iter())
                .map(|(path, text)| ((*path).to_owned(), text.clone()))
                .collect();
            let before = dump(program, &files);
            let after = dump(program, &ours.files);
            let changed = match (&before, &after) {
                (ProgramAnswer::Reads(before), ProgramAnswer::Reads(after)) => {
                    changed(before, after, arrangement.2.name)
                }
                _ => Vec::new(),
            };
            let short = |said: ProgramAnswer<toml::Table>| match said {
                ProgramAnswer::Reads(table) => ProgramAnswer::Reads(part(&table)),
                ProgramAnswer::Refuses(why) => ProgramAnswer::Refuses(why),
            };
            found.push(DaemonAnswer {
                arrangement: arrangement.0.to_owned(),
                set: ours.set,
                before: short(before),
                after: short(after),
                changed,
            });
        }
        found
    }

    /// Parses the daemon output with the parser of gpu-bootstrap.
    fn read(part: &Value) -> Config {
        let text = toml::to_string(part).expect("TOML");
        parse_config(&text).expect("a configuration").into()
    }

    /// Returns the compared part of a configuration: whether it serves pods, the program and cgroup driver of each runtime, and
    /// the default runtime.
    fn compared(config: &Config) -> Value {
        let runtimes: BTreeSet<&String> = (config.runtimes.iter())
            .filter(|name| *name != BUILT_IN)
            .collect();
        let systemd: BTreeSet<&String> = (config.systemd_cgroup.iter())
            .filter_map(|(name, systemd)| systemd.then_some(name))
            .collect();
        json!({
            "enabled": config.serves_pods, "runtimes": runtimes, "programs": config.programs, "systemd": systemd,
            "default": config.default.as_deref().unwrap_or(BUILT_IN),
        })
    }

    fn wait<T>(work: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.expect("a runtime").block_on(work)
    }

    /// Whether a changed key may change because of the keys that gpu-bootstrap sets.
    fn is_ours(changed: &str, runtime: &ContainerdRuntime<'_>) -> bool {
        let key = changed.split(": ").next().unwrap_or_default();
        let last = key.rsplit('/').next().unwrap_or_default();
        match last {
            "default_runtime_name" => runtime.default,
            "enable_cdi" | "cdi_spec_dirs" => runtime.cdi,
            "bin_dir" | "bin_dirs" | "SystemdCgroup" => runtime.for_kubelet,
            // containerd 1.7 prints the default value in an entry that is not in any file. For an entry in a file, it sets the
            // default only after printing.
            "sandbox_mode" => true,
            "version" | "disabled_plugins" => true,
            _ => false,
        }
    }

    fn evaluate(
        arrangement: &Arrangement,
        version: Version,
        answer: &DaemonAnswer<Value>,
        ours: &OurEdits,
    ) -> Vec<String> {
        let (_, files, runtime) = arrangement;
        let mut wrong = Vec::new();
        // containerd before 1.7 ignores the version of a file and unknown keys.
        let is_newer =
            |text: &str| text.starts_with("version = 3") || text.starts_with("version = 4");
        if version < Version(1, 7) && files.iter().any(|(_, text)| is_newer(text)) {
            return wrong;
        }
        // containerd before 2.0 does not support the version 3 table.
        let knows = version >= Version(2, 0) || files.iter().all(|(_, text)| !text.contains(THREE));
        if let ProgramAnswer::Reads(part) = &answer.before
            && knows
        {
            let (said, read) = (compared(&read(part)), compared(&ours.before));
            if said != read {
                wrong.push(format!(
                    "before: the daemon reads {said}, but we read {read}"
                ));
            }
        }
        let part = match (&answer.before, &answer.after) {
            (_, ProgramAnswer::Reads(part)) => part,
            // If the daemon rejects the files before and after for the same reason, our keys are not the cause.
            (ProgramAnswer::Refuses(before), ProgramAnswer::Refuses(after)) if before == after => {
                return wrong;
            }
            (_, ProgramAnswer::Refuses(why)) => {
                return vec![format!("the daemon rejects our keys: {why}")];
            }
        };
        let config = read(part);
        let (said, read) = (compared(&config), compared(&ours.after));
        if said != read {
            wrong.push(format!(
                "after: the daemon reads {said}, but we read {read}"
            ));
        }
        let name = runtime.name;
        let systemd = |name: &str| config.systemd_cgroup.get(name) == Some(&true);
        let cdi = [TWO, THREE]
            .iter()
            .find_map(|plugin| part["plugins"].get(*plugin)?.get("enable_cdi")?.as_bool());
        for (is, what) in [
            (config.serves_pods, "the CRI plugin is disabled"),
            (
                config.runtimes.iter().any(|one| one == BUILT_IN),
                "runc is missing",
            ),
            (
                name == BUILT_IN
                    || config
                        .programs
                        .get(name)
                        .is_some_and(|path| path == runtime.program),
                "the runtime has another program",
            ),
            (
                !runtime.default || config.default.as_deref() == Some(name),
                "the runtime is not the default",
            ),
            (
                !runtime.for_kubelet || systemd(name) && systemd(BUILT_IN),
                "systemd is not the cgroup driver",
            ),
            (
                !runtime.cdi || version < Version(1, 7) || cdi == Some(true),
                "CDI is disabled",
            ),
        ] {
            if !is {
                wrong.push(format!("{what}: {part}"));
            }
        }
        // Do not compare the keys of a plugin that was disabled before: the dump contains them only after it was enabled.
        let was_enabled =
            matches!(&answer.before, ProgramAnswer::Reads(part) if self::read(part).serves_pods);
        let others = (answer.changed.iter()).filter(|line| was_enabled && !is_ours(line, runtime));
        wrong.extend(others.map(|line| format!("another key changed: {line}")));
        wrong
    }

    #[test]
    fn containerd_reads_and_sets_the_same_keys() {
        record("containerd", |program, version| {
            wait(asked(program, Version::parse(version).expect("a version")))
        });
        let kept = answers::<Value>("containerd");
        let mut wrong = Vec::new();
        for (name, answers) in &kept {
            let version = Version::parse(name).expect("a version");
            let found: Vec<(Arrangement, OurEdits)> = (arrangements().into_iter())
                .map(|arrangement| {
                    let ours = wait(ours(&arrangement, version));
                    (arrangement, ours)
                })
                .collect();
            let now: Vec<_> = (found.iter())
                .map(|(arrangement, ours)| (arrangement.0.to_owned(), ours.set.clone()))
                .collect();
            are_current("containerd", name, answers, &now);
            let read =
                (answers.iter()).filter(|answer| matches!(answer.after, ProgramAnswer::Reads(_)));
            assert!(
                read.count() > arrangements().len() / 2,
                "containerd {name} reads too few arrangements"
            );
            for ((arrangement, ours), answer) in found.iter().zip(answers) {
                let evaluated = evaluate(arrangement, version, answer, ours);
                wrong.extend(
                    evaluated
                        .into_iter()
                        .map(|line| format!("{name}, {}: {line}", arrangement.0)),
                );
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        let asked: BTreeSet<&str> = (kept.keys()).filter_map(|name| name.get(..3)).collect();
        assert!(
            asked.is_superset(&BTreeSet::from(["1.6", "1.7", "2.1"])),
            "{asked:?}"
        );
    }
}

mod of_docker {
    use super::*;

    const FILE: &str = "/etc/docker/daemon.json";

    /// An arrangement: its name, its file, and the daemon flags of the unit.
    type Arrangement = (&'static str, &'static str, &'static [&'static str]);

    const ARRANGEMENTS: [Arrangement; 14] = [
        ("an empty object", "{}", &[]),
        ("a key", "{\"log-driver\": \"local\"}\n", &[]),
        (
            "another runtime with the same name",
            r#"{"runtimes": {"nvidia": {"path": "/opt/nvidia", "runtimeArgs": ["--debug"]}, "kata": {"path": "/opt/kata"}}}"#,
            &[],
        ),
        ("another default", r#"{"default-runtime": "runc"}"#, &[]),
        (
            "CDI is disabled",
            r#"{"features": {"cdi": false, "buildkit": true}}"#,
            &[],
        ),
        (
            "the same key in the flags",
            r#"{"default-runtime": "runc"}"#,
            &["--default-runtime=runc"],
        ),
        (
            "a runtime in the flags",
            "{}",
            &["--add-runtime=kata=/opt/kata"],
        ),
        ("an unknown key", r#"{"log-drvier": "local"}"#, &[]),
        ("runtimes as a list", r#"{"runtimes": []}"#, &[]),
        ("an extra comma", "{\n  \"mtu\": 1400,\n}\n", &[]),
        ("not an object", "[]", &[]),
        ("an empty file", "", &[]),
        ("a byte order mark", "\u{feff}{\"mtu\": 1400}", &[]),
        ("only a byte order mark", "\u{feff}", &[]),
    ];

    /// Returns the keys that gpu-bootstrap sets, and the file afterwards. It does not change a file that cannot be parsed.
    fn ours(text: &str) -> (Vec<FileSettings>, String) {
        let runtime = docker::DockerRuntime {
            name: "nvidia",
            program: "nvidia-container-runtime",
            kept: false,
            default: true,
            cdi: true,
        };
        let Ok(mut document) = Document::parse(Format::Json, text) else {
            return (Vec::new(), text.to_owned());
        };
        let settings: Vec<Setting> = docker::settings(&document, &runtime);
        if settings
            .iter()
            .any(|setting| document.set(setting).is_err())
        {
            return (Vec::new(), text.to_owned());
        }
        let path = FILE.into();
        (vec![FileSettings { path, settings }], document.text())
    }

    fn validated(program: &Path, text: &str, flags: &[&str]) -> ProgramAnswer<()> {
        let directory = tempfile::tempdir().expect("a folder");
        let path = directory.path().join("daemon.json");
        fs::write(&path, text).expect("written");
        let place = path.to_str().expect("text");
        let flags: Vec<String> = flags.iter().map(ToString::to_string).collect();
        let query = docker::validate(&flags, place.into());
        match run(program, &query.cmd().args) {
            Ok(_) => ProgramAnswer::Reads(()),
            Err(why) => ProgramAnswer::Refuses(why.replace(place, FILE)),
        }
    }

    fn asked(program: &Path) -> Vec<DaemonAnswer<()>> {
        let ask = |(name, text, flags): &Arrangement| {
            let (set, after) = ours(text);
            DaemonAnswer {
                arrangement: (*name).to_owned(),
                set,
                before: validated(program, text, flags),
                after: validated(program, &after, flags),
                changed: Vec::new(),
            }
        };
        ARRANGEMENTS.iter().map(ask).collect()
    }

    #[test]
    fn docker_rejects_files_reported_broken_and_accepts_our_keys() {
        record("dockerd", |program, _| asked(program));
        let kept = answers::<()>("dockerd");
        let mut validating = 0;
        for (version, answers) in &kept {
            let now: Vec<_> = (ARRANGEMENTS.iter())
                .map(|(name, text, _)| ((*name).to_owned(), ours(text).0))
                .collect();
            are_current("dockerd", version, answers, &now);
            let cannot = |said: &ProgramAnswer<()>| matches!(said, ProgramAnswer::Refuses(why) if why.contains("unknown flag: --validate"));
            let can = docker::can_validate(&format!("Docker version {version}, build 0"));
            assert_eq!(
                can,
                !answers.iter().any(|answer| cannot(&answer.before)),
                "{version}"
            );
            if !can {
                continue;
            }
            validating += 1;
            for (answer, (name, text, _)) in answers.iter().zip(ARRANGEMENTS) {
                let reads = answer.before == ProgramAnswer::Reads(());
                if let Err(issue) = docker::check_config(text) {
                    assert_eq!(reads, issue.forgiven, "{version}, {name}: {issue:?}");
                }
                if reads {
                    assert_eq!(answer.after, ProgramAnswer::Reads(()), "{version}, {name}");
                }
            }
            let broken =
                (answers.iter()).filter(|answer| answer.before != ProgramAnswer::Reads(()));
            assert!(broken.count() >= 3, "{version}");
        }
        assert!(validating >= 2, "{:?}", kept.keys());
    }
}
