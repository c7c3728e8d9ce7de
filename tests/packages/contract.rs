//! Compares simulated package managers with real ones. `record.sh` records the output of real package managers, one file per
//! version. The output of a simulated package manager may differ, but it must parse to the same values, and its database must
//! be the same afterwards.
//!
//! Included in both test programs with a simulated package manager.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use gpu_bootstrap::{
    host::{
        Cmd, Host, Output,
        fake::{self, FakeFiles, Fakes},
    },
    tools::packages::{
        Action, Backend, Manager, Mark, Package, Removals, Settings, TransactionRequest,
    },
};
use serde::{Deserialize, Serialize};

/// Name prefix of the packages in the scenarios.
pub const OURS: &str = "demo-";

/// The scenario file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenarios {
    /// External events by name, with the script that causes them on a real machine.
    pub happens: BTreeMap<String, String>,
    pub scenario: Vec<Scenario>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    pub name: String,
    pub only: Option<Manager>,
    pub steps: Vec<String>,
}

impl Scenarios {
    pub fn read() -> Self {
        toml::from_str(include_str!("scenarios.toml")).expect("scenarios")
    }

    /// The scenarios of a package manager.
    pub fn of(&self, manager: Manager) -> impl Iterator<Item = &Scenario> {
        (self.scenario.iter()).filter(move |one| one.only.is_none_or(|only| only == manager))
    }
}

/// A command and the output of a real package manager.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Asked {
    pub command: String,
    #[serde(flatten)]
    pub said: Output,
}

/// The recording of one step: a line of the file.
#[derive(Debug, Serialize, Deserialize)]
pub struct Line {
    pub scenario: String,
    pub step: String,
    pub asked: Vec<Asked>,
    /// The files changed by the step, restricted to files that gpu-bootstrap reads.
    pub files: BTreeMap<String, Option<String>>,
}

/// A machine with a package manager.
pub trait Machine {
    fn host(&self) -> Host;
    /// One of [`Scenarios::happens`].
    fn happens(&self, what: &str);
    /// Writes a file.
    fn put(&self, path: &str, text: String);
}

/// Runs a step, and returns the parsed result.
pub async fn outcome(manager: Manager, machine: &dyn Machine, step: &str) -> String {
    let (verb, rest) = step.split_once(' ').unwrap_or((step, ""));
    if verb == "then" {
        machine.happens(rest);
        return String::new();
    }
    let host = machine.host();
    let backend = manager.backend();
    let asking = Asking {
        backend,
        settings: Settings {
            lock_timeout_seconds: 1,
            proxy: None,
            no_proxy: None,
        },
        host: &host,
    };
    let names: Vec<&str> = rest.split(' ').filter(|name| !name.is_empty()).collect();
    match verb {
        "hold" | "release" => asking.hold(machine, verb == "hold", &names).await,
        _ => asking.outcome(verb, &names).await,
    }
}

/// Parses the request of a step.
struct Constraints {
    kind: String,
    coming: Vec<String>,
    going: Vec<String>,
}

impl Constraints {
    fn request(&self) -> TransactionRequest<'_> {
        let (packages, removing) = (&self.coming[..], &self.going[..]);
        match self.kind.as_str() {
            "install" | "approved" => TransactionRequest::Install { packages, removing },
            "move" => TransactionRequest::Move { packages, removing },
            "purge" => TransactionRequest::Purge(packages),
            "remove" => TransactionRequest::Remove(packages),
            "reinstall" => TransactionRequest::Reinstall(packages),
            "fix" => TransactionRequest::Fix,
            other => panic!("unknown request `{other}`"),
        }
    }
}

struct Asking<'a> {
    backend: &'static dyn Backend,
    settings: Settings,
    host: &'a Host,
}

impl Asking<'_> {
    async fn run(&self, cmd: &Cmd) -> Output {
        let ran = self.host.exec.run(cmd, &mut |_, _| {}).await;
        ran.unwrap_or_else(|error| panic!("{error}"))
    }

    fn constraints(&self, words: &[&str]) -> Constraints {
        let spec = |name: &str| match name.split_once('=') {
            Some((name, version)) => self.backend.at_version(name, version),
            None => name.to_owned(),
        };
        let (going, coming): (Vec<&str>, Vec<&str>) =
            words[1..].iter().partition(|name| name.ends_with('-'));
        Constraints {
            kind: words[0].to_owned(),
            coming: coming.into_iter().map(spec).collect(),
            going: (going.into_iter())
                .map(|name| name.trim_end_matches('-').to_owned())
                .collect(),
        }
    }

    async fn outcome(&self, verb: &str, names: &[&str]) -> String {
        let (backend, settings) = (self.backend, &self.settings);
        match verb {
            "refresh" => {
                let output = self.run(&backend.refresh(settings, false)).await;
                let files = &*self.host.files;
                let lists = self.backend.has_lists(files, None).expect("files");
                format!("{}, lists: {lists}", self.result(&output))
            }
            "offers" => {
                let said = self.run(backend.offers(names).cmd()).await;
                let mut lines = vec![said.ok().to_string()];
                for mut offer in backend.parse_offers(&said.stdout) {
                    let installed = &offer.only_installed;
                    (offer.versions).retain(|(version, _)| Some(version) != installed.as_ref());
                    offer.versions.sort();
                    lines.push(format!(
                        "{}: {:?} of {:?}",
                        offer.name, offer.candidate, offer.versions
                    ));
                }
                lines.join("\n")
            }
            "names" => match backend.names(names[0]) {
                Some(query) => {
                    let said = self.run(query.cmd()).await.stdout;
                    let names: BTreeSet<&str> = said.lines().collect();
                    format!("{names:?}")
                }
                None => "cannot be asked".to_owned(),
            },
            "simulate" | "upgrade" => {
                let query = match verb {
                    "upgrade" => backend.upgrade(),
                    _ => backend.simulate(settings, &self.constraints(names).request()),
                };
                let said = self.run(query.cmd()).await;
                if !backend.has_answered(&said) {
                    return self.result(&said);
                }
                let mut actions = backend.parse_actions(&said.stdout, &self.database().await);
                actions.sort_by_key(|action| action.name().to_owned());
                format!("would\n{}", Action::describe(&actions))
            }
            "estimate" => {
                let query = backend.estimate(settings, &self.constraints(names).request());
                let said = self.run(query.cmd()).await;
                if !backend.has_answered(&said) {
                    return self.result(&said);
                }
                let estimate = backend.parse_estimate(&said.stdout);
                let mut froms: Vec<&str> = (estimate.downloads.iter())
                    .map(|(from, size)| {
                        assert!(*size > 0, "{from} has no size");
                        from.rsplit('/').next().unwrap_or(from)
                    })
                    .collect();
                froms.sort_unstable();
                format!("{froms:?}, unpacks: {}", estimate.unpacked_bytes > 0)
            }
            "download" => {
                let cmd = backend.download(settings, &self.constraints(names).request());
                self.result(&self.run(&cmd).await)
            }
            "perform" => {
                let constraints = self.constraints(names);
                let removals = match constraints.kind.as_str() {
                    "approved" => Removals::Approved,
                    _ => Removals::None,
                };
                let cmd = backend.perform(settings, &constraints.request(), removals);
                self.changed(&self.run(&cmd).await).await
            }
            "configure" => match backend.configure() {
                Some(cmd) => self.changed(&self.run(&cmd).await).await,
                None => "has no such state".to_owned(),
            },
            "mark" => {
                assert_eq!(names[0], "automatic");
                let names: Vec<String> = names[1..].iter().map(ToString::to_string).collect();
                let cmd = backend.mark(Mark::Automatic, &names);
                self.changed(&self.run(&cmd).await).await
            }
            "unfinished" => match backend.unfinished() {
                Some(query) => {
                    let said = self.run(query.cmd()).await;
                    let database = self.database().await;
                    format!("{:?}", backend.parse_unfinished(&said.stdout, &database))
                }
                None => "is in the database".to_owned(),
            },
            "paths-of" => {
                let names: BTreeSet<String> = names.iter().map(ToString::to_string).collect();
                let found = self.backend.owned_by(self.host.reader(), &names).await;
                format!("{:?}", found.expect("paths"))
            }
            "owned" => {
                let found = (self.backend).owned_below(self.host.reader(), names[0].into());
                format!("{:?}", found.await.expect("paths"))
            }
            other => panic!("unknown step `{other}`"),
        }
    }

    /// Holds or unholds packages as the program does.
    async fn hold(&self, machine: &dyn Machine, hold: bool, names: &[&str]) -> String {
        let Some(list) = self.backend.hold_list() else {
            let names: Vec<String> = names.iter().map(ToString::to_string).collect();
            let mark = if hold { Mark::Hold } else { Mark::Unhold };
            let cmd = self.backend.mark(mark, &names);
            return self.changed(&self.run(&cmd).await).await;
        };
        let files = &*self.host.files;
        let text = files.read_text(list.path()).expect("a list");
        let text = text.unwrap_or_default();
        let database = self.database().await;
        let packages: Vec<&Package> = (database.iter())
            .filter(|package| names.contains(&package.name.as_str()))
            .collect();
        let text = match hold {
            true => list.with(&text, &packages, &BTreeSet::new()),
            false => {
                let entries = text.lines().filter(|line| line.starts_with(OURS));
                let entries: Vec<String> = entries.map(str::to_owned).collect();
                list.without(&text, &entries)
            }
        };
        machine.put(list.path().as_str(), text);
        self.state().await
    }

    /// The exit status of a command.
    fn result(&self, output: &Output) -> String {
        let words = format!("{}\n{}", output.stdout, output.stderr);
        let failed = self.backend.failures_by_source(&words);
        let sources: BTreeSet<String> = (failed.into_iter().flatten())
            .map(|failure| failure.address)
            .collect();
        let sources = match sources.is_empty() {
            true => String::new(),
            false => format!(" by {}", sources.into_iter().collect::<Vec<_>>().join(" ")),
        };
        if self.backend.has_succeeded(output) && self.backend.failed_sources(&words).is_none() {
            return match self.backend.failed_scripts(&words) {
                Some(scripts) => format!("succeeded, but {scripts}"),
                None => "succeeded".to_owned(),
            };
        }
        format!("failed: {:?}{sources}", self.backend.failure_class(&words))
    }

    async fn changed(&self, output: &Output) -> String {
        format!("{}\n{}", self.result(output), self.state().await)
    }

    async fn database(&self) -> Vec<Package> {
        let database = self.backend.database(self.host.reader()).await;
        let mut database = database.expect("a database").unwrap_or_default();
        database.retain(|package| package.name.starts_with(OURS));
        database.sort_by(|a, b| a.id.cmp(&b.id));
        database
    }

    async fn state(&self) -> String {
        let database = self.database().await;
        let automatic = self.backend.automatic(self.host.reader(), &database).await;
        let automatic = automatic.expect("marks");
        let files = &*self.host.files;
        let interrupted = self.backend.interrupted(files).expect("files");
        let mut lines: Vec<String> = (database.iter())
            .map(|package| {
                let held = if package.held { " held" } else { "" };
                let is_automatic = package.is_there() && automatic.contains(&package.id);
                let marked = if is_automatic { " automatic" } else { "" };
                format!(
                    "{} {} {:?}{held}{marked}",
                    package.id, package.version, package.condition
                )
            })
            .collect();
        lines.extend(interrupted.map(|program| format!("{program} was interrupted")));
        lines.join("\n")
    }
}

// --- Recordings -------------------------------------------------------------------------------------------------------------

/// The directory of recordings.
pub fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/packages")
}

/// The recordings of a package manager, by name.
pub fn recordings(manager: Manager) -> BTreeMap<String, Vec<Line>> {
    let start = format!("{}-", manager.backend().name());
    let mut found = BTreeMap::new();
    for file in fs::read_dir(directory()).expect("a folder") {
        let path = file.expect("a file").path();
        let name = path.file_stem().and_then(|name| name.to_str());
        let name = name.expect("a name").to_owned();
        if name.starts_with(&start) && path.extension().is_some_and(|end| end == "jsonl") {
            let text = fs::read_to_string(&path).expect("a recording");
            let lines = text.lines().map(|line| {
                serde_json::from_str(line).unwrap_or_else(|error| panic!("{name}: {error}"))
            });
            found.insert(name.clone(), lines.collect());
        }
    }
    assert!(!found.is_empty(), "no recording of {start}");
    found
}

/// A machine that replays a recording.
struct Recorded {
    fakes: Fakes,
    left: Arc<Mutex<Vec<Asked>>>,
}

impl Recorded {
    fn new() -> Self {
        let (_, fakes) = fake::host();
        let left: Arc<Mutex<Vec<Asked>>> = Arc::default();
        for program in PROGRAMS {
            let left = left.clone();
            fakes.exec.on(program, move |cmd, _| {
                let mut left = left.lock().expect("a lock");
                let at = left.iter().position(|one| one.command == cmd.line());
                let at = at.unwrap_or_else(|| {
                    panic!(
                        "`{}` is not in the recording: run tests/packages/record.sh",
                        cmd.line()
                    )
                });
                left.remove(at).said
            });
        }
        Self { fakes, left }
    }

    fn prepare(&self, line: &Line) {
        *self.left.lock().expect("a lock") = line.asked.clone();
        arrange(&self.fakes.files, &line.files);
    }
}

/// The programs of package managers.
pub const PROGRAMS: [&str; 6] = ["apt-get", "apt-cache", "apt-mark", "dpkg", "dnf", "rpm"];

/// Writes or removes files to match another machine.
pub fn arrange(files: &FakeFiles, wanted: &BTreeMap<String, Option<String>>) {
    for (path, text) in wanted {
        match text {
            Some(text) => files.put(path, text.as_str()),
            None => files.take(path),
        }
    }
}

impl Machine for Recorded {
    fn host(&self) -> Host {
        self.fakes.host()
    }

    fn happens(&self, _: &str) {}

    /// The recording already contains the file.
    fn put(&self, _: &str, _: String) {}
}

/// Compares a simulation with all recordings of a package manager. `knows` selects the supported steps of a scenario.
pub async fn compare<M: Machine>(
    manager: Manager,
    imitation: impl Fn() -> M,
    knows: impl Fn(&Scenario, &str) -> bool,
) {
    let scenarios = Scenarios::read();
    let mut differences = String::new();
    for (name, lines) in recordings(manager) {
        let mut lines = lines.into_iter();
        for scenario in scenarios.of(manager) {
            let (real, imitated) = (Recorded::new(), imitation());
            let mut apart = false;
            for step in &scenario.steps {
                let line = lines.next().expect("a line: run tests/packages/record.sh");
                let kept = (line.scenario.as_str(), line.step.as_str());
                assert_eq!(
                    kept,
                    (scenario.name.as_str(), step.as_str()),
                    "{name} has no recording of this step: run tests/packages/record.sh"
                );
                if let Some(what) = step.strip_prefix("then ") {
                    assert!(scenarios.happens.contains_key(what), "{what}");
                }
                real.prepare(&line);
                if apart || !knows(scenario, step) {
                    continue;
                }
                let wanted = outcome(manager, &real, step).await;
                let found = outcome(manager, &imitated, step).await;
                // Results after a difference are not comparable.
                apart = wanted != found;
                if apart {
                    differences.push_str(&format!(
                        "{name}, {}, {step}\n--- real\n{wanted}\n--- simulated\n{found}\n\n",
                        scenario.name
                    ));
                }
            }
        }
        assert!(
            lines.next().is_none(),
            "{name}: run tests/packages/record.sh"
        );
    }
    assert!(differences.is_empty(), "\n{differences}");
}
