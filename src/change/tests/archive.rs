//! A package manager in memory: a small archive, dependencies, conffiles, and package scripts that leave files, like real ones.
//! It imitates apt, dnf or [`super::tiny`], so that the same tests run with each of them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
};

use super::{dnf, kit::TestMachine, tiny};
pub(super) use super::{
    kinds::Kind,
    locks::{hold_lock, release_lock},
};
use crate::host::{
    Cmd, Output, ReadFiles,
    exec::Status,
    fake::{FakeFiles, ok},
};

/// A package of the archive.
pub(super) struct Offered {
    pub version: &'static str,
    pub depends: &'static [&'static str],
    pub conflicts: &'static [&'static str],
    pub conffile: Option<&'static str>,
    /// The effects of its script, which its removal does not undo.
    pub script: fn(&FakeFiles),
    /// A path that it owns but that is not written. A symlink may point to it.
    pub owns: &'static str,
}

impl Offered {
    pub(super) const fn new(version: &'static str, depends: &'static [&'static str]) -> Self {
        Self {
            version,
            depends,
            conflicts: &[],
            conffile: None,
            script: |_| {},
            owns: "",
        }
    }
}

#[derive(Clone, Default)]
pub(super) struct Installed {
    pub version: String,
    pub held: bool,
    pub auto: bool,
    pub half: bool,
    /// Only its configuration remains.
    pub gone: bool,
}

/// The operation of a command.
pub(super) enum Verb {
    Refresh,
    Download,
    /// Removes packages.
    Fetch {
        purge: bool,
    },
    /// Installs packages. With `moves`, held packages may change.
    Put {
        no_remove: bool,
        moves: bool,
    },
}

/// An interruption of an installation.
pub(super) struct Break {
    /// The number of packages that are unpacked before the interruption.
    pub unpacked: usize,
    pub says: &'static str,
    pub status: Status,
    /// Changes of other programs at that time.
    pub meanwhile: fn(&FakeFiles),
}

impl Break {
    pub(super) fn after(unpacked: usize, says: &'static str) -> Self {
        Self {
            unpacked,
            says,
            status: Status::Exited(100),
            meanwhile: |_| {},
        }
    }
}

/// The archive and the database. Each simulated command that changes packages writes the database files. A test that changes
/// the database directly must call [`Archive::write`].
#[derive(Clone, Default)]
pub(super) struct Archive {
    pub kind: Kind,
    pub archive: Arc<Mutex<BTreeMap<&'static str, Offered>>>,
    pub installed: Arc<Mutex<BTreeMap<String, Installed>>>,
    /// The error output of the next commands that refresh, download, install, remove or configure, in reverse order.
    pub faults: Arc<Mutex<Vec<&'static str>>>,
    /// Interruptions of the next real installations, in reverse order.
    pub breaks: Arc<Mutex<Vec<Break>>>,
    /// Packages that become available when packages are downloaded.
    pub moves: Arc<Mutex<Vec<(&'static str, Offered)>>>,
    /// The file size of each package.
    pub size: Arc<Mutex<u64>>,
    /// The repository URL of a package, if it is not the distribution's.
    pub hosts: Arc<Mutex<BTreeMap<&'static str, &'static str>>>,
    /// Packages whose script fails in the next transaction, although the package manager succeeds.
    pub failing: Arc<Mutex<Vec<&'static str>>>,
    /// Whether a download imports the key of its repository.
    pub imports: Arc<Mutex<bool>>,
    /// Packages that become available with the next download of the lists.
    pub coming: Arc<Mutex<Vec<(&'static str, Offered)>>>,
}

impl Archive {
    pub(super) fn on(machine: &TestMachine) -> Self {
        let apt = Self {
            kind: machine.kind,
            ..Self::default()
        };
        apt.have("dpkg", "1.21");
        apt.have("bash", "5.2");
        machine
            .fakes
            .files
            .put("/etc/passwd", "root:x:0:0:root:/root:/bin/sh\n");
        machine.fakes.files.put("/etc/group", "root:x:0:\n");
        for directory in [
            "/var/lib/dpkg/info",
            "/var/lib/apt",
            "/etc/apt",
            dnf::OWNED,
            tiny::OWNED,
        ] {
            machine.fakes.files.put_directory(directory, 0o755);
        }
        apt.write(&machine.fakes.files);
        let own = apt.clone();
        machine
            .fakes
            .exec
            .on("tiny", move |cmd, files| own.tiny(cmd, files));
        let own = apt.clone();
        (machine.fakes.exec).on("dnf", move |cmd, files| own.dnf(cmd, files));
        let own = apt.clone();
        (machine.fakes.exec).on("rpm", move |cmd, files| own.rpm(cmd, files));
        let own = apt.clone();
        machine
            .fakes
            .exec
            .on("apt-get", move |cmd, files| own.get(cmd, files));
        let own = apt.clone();
        machine
            .fakes
            .exec
            .on("apt-cache", move |cmd, _| own.policy(cmd));
        let own = apt.clone();
        machine
            .fakes
            .exec
            .on("apt-mark", move |cmd, files| own.mark(cmd, files));
        let own = apt.clone();
        machine
            .fakes
            .exec
            .on("dpkg", move |cmd, files| own.dpkg(cmd, files));
        for (program, path) in [("userdel", "/etc/passwd"), ("groupdel", "/etc/group")] {
            machine.fakes.exec.on(program, move |cmd, files| {
                let prefix = format!("{}:", cmd.args[1]);
                let text = files.text(path);
                let kept: Vec<&str> = text.lines().filter(|l| !l.starts_with(&prefix)).collect();
                files.put(path, kept.join("\n") + "\n");
                ok("")
            });
        }
        apt
    }

    pub(super) fn offer(&self, name: &'static str, package: Offered) {
        self.archive.lock().unwrap().insert(name, package);
    }

    pub(super) fn have(&self, name: &str, version: &str) {
        let package = Installed {
            version: version.into(),
            ..Installed::default()
        };
        self.installed.lock().unwrap().insert(name.into(), package);
    }

    pub(super) fn write(&self, files: &FakeFiles) {
        let (mut status, mut states) = (String::new(), String::new());
        for (name, package) in &*self.installed.lock().unwrap() {
            let want = if package.held { "hold" } else { "install" };
            let (want, state) = match (package.gone, package.half) {
                (true, _) => ("deinstall", "config-files"),
                (false, true) => (want, "half-configured"),
                (false, false) => (want, "installed"),
            };
            status.push_str(&format!(
                "Package: {name}\nStatus: {want} ok {state}\nArchitecture: amd64\nVersion: {}\n\n",
                package.version
            ));
            if package.auto {
                states.push_str(&format!(
                    "Package: {name}\nArchitecture: amd64\nAuto-Installed: 1\n\n"
                ));
            }
        }
        match self.kind {
            Kind::Apt => {
                files.put("/var/lib/dpkg/status", status);
                files.put("/var/lib/apt/extended_states", states);
            }
            Kind::Dnf => self.write_for_dnf(files),
            Kind::Tiny => {
                let lines: Vec<String> = (self.installed.lock().unwrap().iter())
                    .map(|(name, package)| tiny::line(name, package))
                    .collect();
                files.put(tiny::DATABASE, lines.concat());
            }
        }
    }

    fn get(&self, cmd: &Cmd, files: &FakeFiles) -> Output {
        if cmd.args.iter().any(|arg| arg == "--print-uris") {
            return self.estimate(cmd);
        }
        let simulated = cmd.args.iter().any(|arg| arg == "-s");
        let has = |word: &str| cmd.args.iter().any(|arg| arg == word);
        let names = cmd.args.iter().skip_while(|arg| *arg != "--").skip(1);
        let names: Vec<String> = names.cloned().collect();
        let verb = match () {
            () if has("update") => Verb::Refresh,
            () if has("purge") || has("remove") => Verb::Fetch {
                purge: has("purge"),
            },
            () if has("--download-only") || has("--fix-broken") => Verb::Download,
            () => Verb::Put {
                no_remove: has("--no-remove"),
                moves: has("--ignore-hold"),
            },
        };
        self.act(verb, &names, simulated, files)
    }

    /// Each named package is a download of `size` bytes from its host, and needs five times as much space.
    fn estimate(&self, cmd: &Cmd) -> Output {
        let (size, hosts) = (*self.size.lock().unwrap(), self.hosts.lock().unwrap());
        let names = cmd.args.iter().skip_while(|arg| *arg != "--").skip(1);
        let names: Vec<&str> = names.filter_map(|spec| spec.split('=').next()).collect();
        let mut text = format!(
            "After this operation, {} B of additional disk space will be used.\n",
            5 * size * names.len() as u64
        );
        for name in names {
            let host = hosts
                .get(name)
                .unwrap_or(&"http://debian.example.org/debian");
            text.push_str(&format!(
                "'{host}/pool/{name}.deb' {name}.deb {size} MD5Sum:0\n"
            ));
        }
        ok(text)
    }

    pub(super) fn tiny(&self, cmd: &Cmd, files: &FakeFiles) -> Output {
        let args: Vec<&str> = cmd.args.iter().map(String::as_str).collect();
        let names =
            |from: usize| -> Vec<String> { args[from..].iter().map(ToString::to_string).collect() };
        let verb = |word: &str| match word {
            "purge" | "remove" => Verb::Fetch {
                purge: word == "purge",
            },
            "fix" => Verb::Download,
            _ => Verb::Put {
                no_remove: false,
                moves: word == "move",
            },
        };
        match args[..] {
            ["refresh"] => self.act(Verb::Refresh, &[], false, files),
            ["configure"] => self.configure(files),
            ["mark", mark, ..] => self.set_mark(mark, &names(2), files),
            ["offers", ..] => {
                let archive = self.archive.lock().unwrap();
                let offers = names(1).into_iter().filter_map(|name| {
                    let offered = archive.get(name.as_str())?;
                    Some(format!("{name} {}\n", offered.version))
                });
                ok(offers.collect::<String>())
            }
            ["simulate", word, ..] => self.act(verb(word), &names(2), true, files),
            ["download", ..] => self.act(Verb::Download, &names(2), false, files),
            ["perform", "keep-all", word, ..] => {
                let verb = Verb::Put {
                    no_remove: true,
                    moves: word == "move",
                };
                self.act(verb, &names(3), false, files)
            }
            ["perform", _, word, ..] => self.act(verb(word), &names(3), false, files),
            _ => panic!("the tiny package manager knows no `{}`", cmd.line()),
        }
    }

    pub(super) fn act(
        &self,
        verb: Verb,
        names: &[String],
        simulated: bool,
        files: &FakeFiles,
    ) -> Output {
        if !simulated && let Some(fault) = self.faults.lock().unwrap().pop() {
            return self.kind.failed(100, fault);
        }
        match verb {
            Verb::Refresh => {
                let coming = std::mem::take(&mut *self.coming.lock().unwrap());
                self.archive.lock().unwrap().extend(coming);
                ok("Reading package lists...\n")
            }
            Verb::Download => {
                let moves = std::mem::take(&mut *self.moves.lock().unwrap());
                self.archive.lock().unwrap().extend(moves);
                ok("")
            }
            Verb::Fetch { purge } => self.take(names, purge, simulated, files),
            Verb::Put { no_remove, moves } => {
                let held = self.held_ones(names);
                if let (Some(name), false, false) = (held.first(), simulated, moves) {
                    let words = format!("E: Held packages were changed and -y was used: {name}");
                    return self.kind.failed(100, &words);
                }
                self.put(names, simulated, no_remove, files)
            }
        }
    }

    /// The named packages that are held.
    fn held_ones(&self, specs: &[String]) -> Vec<String> {
        let installed = self.installed.lock().unwrap();
        (specs.iter())
            .map(|spec| {
                spec.trim_end_matches('-')
                    .split('=')
                    .next()
                    .unwrap()
                    .to_owned()
            })
            .filter(|name| installed.get(name).is_some_and(|there| there.held))
            .collect()
    }

    fn put(&self, specs: &[String], simulated: bool, no_remove: bool, files: &FakeFiles) -> Output {
        let archive = self.archive.lock().unwrap();
        let mut installed = self.installed.lock().unwrap().clone();
        let (mut text, mut scripts, mut removes) = (String::new(), Vec::new(), false);
        let mut open: Vec<(String, bool)> = Vec::new();
        for spec in specs {
            if let Some(name) = spec.strip_suffix('-') {
                let gone = installed.remove(name);
                removes = true;
                let version = gone.map_or("1".to_owned(), |gone| gone.version);
                text.push_str(&self.kind.action(name, Some(&version), None));
            } else {
                open.push((spec.split('=').next().unwrap().to_owned(), false));
            }
        }
        while let Some((name, auto)) = open.pop() {
            let Some(offered) = archive.get(name.as_str()) else {
                return (self.kind).failed(100, &format!("E: Unable to locate package {name}"));
            };
            for other in offered.conflicts {
                if let Some(gone) = installed.remove(*other) {
                    text.push_str(&self.kind.action(other, Some(&gone.version), None));
                    removes = true;
                }
            }
            let old = installed.get_mut(&name).filter(|old| !old.gone);
            if let Some(old) = old
                && old.version == offered.version
                && !old.half
            {
                // apt marks a requested package as manually installed. dnf keeps its mark.
                old.auto &= auto || self.kind == Kind::Dnf;
                continue;
            }
            let old = installed.get(&name).filter(|old| !old.gone);
            let old = old.map(|old| old.version.as_str());
            text.push_str(&self.kind.action(&name, old, Some(offered.version)));
            installed.insert(
                name.clone(),
                Installed {
                    version: offered.version.into(),
                    auto,
                    ..Installed::default()
                },
            );
            scripts.push((name, offered));
            for needed in offered.depends {
                if installed.get(*needed).is_none_or(|there| there.gone) {
                    open.push(((*needed).to_owned(), true));
                }
            }
        }
        if no_remove && removes {
            let words = "E: Packages need to be removed but remove is disabled.";
            return self.kind.failed(100, words);
        }
        let broken = self.breaks.lock().unwrap().pop_if(|_| !simulated);
        if let Some(broken) = broken {
            // Dependencies are unpacked first.
            for (name, offered) in scripts.iter().rev().take(broken.unpacked) {
                let unpacked = installed[name].clone();
                self.installed
                    .lock()
                    .unwrap()
                    .insert(name.clone(), unpacked);
                self.unpack(name, offered, files);
            }
            self.write(files);
            (broken.meanwhile)(files);
            return Output {
                status: broken.status,
                ..self.kind.failed(100, broken.says)
            };
        }
        if !simulated {
            *self.installed.lock().unwrap() = installed;
            for (name, offered) in scripts {
                self.unpack(&name, offered, files);
            }
            self.write(files);
        }
        ok(text)
    }

    /// Writes the files of a package and runs its script.
    fn unpack(&self, name: &str, offered: &Offered, files: &FakeFiles) {
        (offered.script)(files);
        // An existing file belongs to the administrator.
        if let Some(path) = offered.conffile
            && files.stat(path.into()).unwrap().is_none()
        {
            files.put(path, "a default\n");
        }
        let owned = [offered.conffile.unwrap_or_default(), offered.owns];
        files.put(&self.kind.owned_path(name), owned.join("\n"));
    }

    fn take(&self, names: &[String], purge: bool, simulated: bool, files: &FakeFiles) -> Output {
        let archive = self.archive.lock().unwrap();
        let mut installed = self.installed.lock().unwrap().clone();
        let mut gone: BTreeSet<String> = names.iter().cloned().collect();
        let is_known =
            |name: &&String| installed.contains_key(*name) || archive.contains_key(name.as_str());
        if let (Kind::Apt, Some(name)) = (self.kind, gone.iter().find(|name| !is_known(name))) {
            return (self.kind).failed(100, &format!("E: Unable to locate package {name}"));
        }
        // Packages that depend on one of them are also removed.
        loop {
            let more: Vec<String> = installed
                .iter()
                .filter(|(name, package)| !gone.contains(*name) && !package.gone)
                .map(|(name, _)| name)
                .filter(|name| {
                    archive
                        .get(name.as_str())
                        .is_some_and(|package| package.depends.iter().any(|d| gone.contains(*d)))
                })
                .cloned()
                .collect();
            if more.is_empty() {
                break;
            }
            gone.extend(more);
        }
        let mut text = String::new();
        for name in &gone {
            let Some(mut package) = installed.remove(name) else {
                continue;
            };
            // dnf locks versions instead of packages, so it removes a locked package.
            if package.held && self.kind != Kind::Dnf {
                return (self.kind).failed(100, "E: Held packages were changed and -y was used");
            }
            if package.gone && !purge {
                installed.insert(name.clone(), package);
                continue;
            }
            let version = match (package.gone, self.kind) {
                (true, Kind::Apt) => "",
                _ => &package.version,
            };
            text.push_str(&self.kind.action(name, Some(version), None));
            if simulated {
                continue;
            }
            // Packages that depend on the named packages are purged with them.
            if self.kind == Kind::Dnf || purge {
                if let Some(path) = archive.get(name.as_str()).and_then(|p| p.conffile) {
                    files.take(path);
                }
                files.take(&self.kind.owned_path(name));
            } else {
                package.gone = true;
                installed.insert(name.clone(), package);
            }
        }
        if !simulated {
            *self.installed.lock().unwrap() = installed;
            self.write(files);
        }
        ok(text)
    }

    fn policy(&self, cmd: &Cmd) -> Output {
        let (archive, installed) = (self.archive.lock().unwrap(), self.installed.lock().unwrap());
        let mut text = String::new();
        for name in cmd.args.iter().skip(2) {
            if let Some(offered) = archive.get(name.as_str()) {
                let here = installed.get(name).filter(|here| !here.gone);
                let here = here.map_or("(none)", |here| &here.version);
                let version = offered.version;
                text.push_str(&format!(
                    "{name}:\n  Installed: {here}\n  Candidate: {version}\n  Version table:\n     \
                     {version} 500\n        500 http://debian.example.org/debian bookworm/main amd64 Packages\n"
                ));
            }
        }
        ok(text)
    }

    fn mark(&self, cmd: &Cmd, files: &FakeFiles) -> Output {
        self.set_mark(&cmd.args[0], &cmd.args[2..], files)
    }

    pub(super) fn set_mark(&self, mark: &str, names: &[String], files: &FakeFiles) -> Output {
        for name in names {
            if let Some(package) = self.installed.lock().unwrap().get_mut(name) {
                match mark {
                    "hold" => package.held = true,
                    "unhold" => package.held = false,
                    "auto" => package.auto = true,
                    _ => package.auto = false,
                }
            }
        }
        self.write(files);
        ok("")
    }

    fn dpkg(&self, cmd: &Cmd, files: &FakeFiles) -> Output {
        if cmd.args.iter().any(|arg| arg == "--configure") {
            return self.configure(files);
        }
        ok("")
    }

    fn configure(&self, files: &FakeFiles) -> Output {
        if let Some(fault) = self.faults.lock().unwrap().pop() {
            return self.kind.failed(1, fault);
        }
        for package in self.installed.lock().unwrap().values_mut() {
            package.half = false;
        }
        self.write(files);
        ok("Setting up bash (5.2) ...\n")
    }
}

/// Appends a line to a file, like a package script that adds an account.
pub(super) fn append(files: &FakeFiles, path: &str, line: &str) {
    let before = files.read_text(path.into()).unwrap().unwrap_or_default();
    files.put(path, before + line + "\n");
}
