//! A package manager in memory: a small archive, dependencies, conffiles, and package scripts that leave files, like real ones.
//! It imitates apt or dnf, so that the same tests run with both.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

pub(super) use super::locks::{hold_lock, release_lock};
use super::{dnf, kit::TestMachine};
use crate::host::{
    Cmd, Output, ReadFiles,
    exec::Status,
    fake::{FakeClock, FakeFiles, failed, ok},
};
/// The package manager whose commands and output are imitated.
pub(super) use crate::tools::packages::Manager as Kind;

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
    pub(super) fn new(version: &'static str, depends: &'static [&'static str]) -> Self {
        Self {
            version,
            depends,
            conflicts: &[],
            conffile: None,
            script: |_| {},
            owns: "",
        }
    }

    pub(super) fn conflicting(self, conflicts: &'static [&'static str]) -> Self {
        Self { conflicts, ..self }
    }

    pub(super) fn owning(self, owns: &'static str) -> Self {
        Self { owns, ..self }
    }

    pub(super) fn running(self, script: fn(&FakeFiles)) -> Self {
        Self { script, ..self }
    }

    pub(super) fn configured_by(self, conffile: &'static str) -> Self {
        let conffile = Some(conffile);
        Self { conffile, ..self }
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

/// How a command installs packages.
#[derive(Clone, Copy)]
pub(super) struct How {
    pub simulated: bool,
    pub no_remove: bool,
    /// Whether held packages may change.
    pub moves: bool,
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

    pub(super) fn killed(self) -> Self {
        let status = Status::Signalled(9);
        Self { status, ..self }
    }

    pub(super) fn meanwhile(self, meanwhile: fn(&FakeFiles)) -> Self {
        Self { meanwhile, ..self }
    }
}

/// Properties and events of the next commands.
#[derive(Default)]
pub(super) struct Events {
    /// The error output of the next commands that refresh, download, install, remove or configure, in reverse order.
    pub faults: Vec<&'static str>,
    /// Interruptions of the next real installations, in reverse order.
    pub breaks: Vec<Break>,
    /// Packages that become available after the simulation: with the next download or real installation.
    pub moves: Vec<(&'static str, Offered)>,
    /// Packages that become available with the next download of the lists.
    pub coming: Vec<(&'static str, Offered)>,
    /// Further packages in the dnf history of the interrupted transaction.
    pub begun: &'static str,
    /// Packages whose script fails in the next transaction, although the package manager succeeds.
    pub failing: Vec<&'static str>,
    /// Whether a download imports the key of its repository.
    pub imports: bool,
    /// The file size of each package.
    pub size: u64,
    /// The duration of each download in seconds.
    pub download_seconds: u64,
    /// The repository URL of a package, if it is not the distribution's.
    pub hosts: BTreeMap<&'static str, &'static str>,
}

/// The archive and the database. Each change of a package also writes the database files.
#[derive(Clone)]
pub(super) struct Archive {
    kind: Kind,
    pub files: FakeFiles,
    pub archive: Arc<Mutex<BTreeMap<&'static str, Offered>>>,
    pub installed: Arc<Mutex<BTreeMap<String, Installed>>>,
    events: Arc<Mutex<Events>>,
    clock: FakeClock,
}

impl Archive {
    pub(super) fn on(machine: &TestMachine) -> Self {
        type Program = fn(&Archive, &Cmd) -> Output;
        let (files, exec) = (&machine.fakes.files, &machine.fakes.exec);
        let archive = Self {
            kind: machine.kind,
            files: files.clone(),
            archive: Arc::default(),
            installed: Arc::default(),
            events: Arc::default(),
            clock: machine.fakes.clock.clone(),
        };
        files.put("/etc/passwd", "root:x:0:0:root:/root:/bin/sh\n");
        files.put("/etc/group", "root:x:0:\n");
        for directory in ["/var/lib/dpkg/info", "/var/lib/apt", "/etc/apt", dnf::OWNED] {
            files.put_directory(directory, 0o755);
        }
        archive.have("dpkg", "1.21");
        archive.have("bash", "5.2");
        let programs: [(&str, Program); 6] = [
            ("dnf", Self::dnf),
            ("rpm", Self::rpm),
            ("apt-get", Self::get),
            ("apt-cache", Self::policy),
            ("apt-mark", |own, cmd| {
                own.set_mark(&cmd.args[0], &cmd.args[2..])
            }),
            ("dpkg", Self::dpkg),
        ];
        for (name, program) in programs {
            let own = archive.clone();
            exec.on(name, move |cmd, _| program(&own, cmd));
        }
        for (program, path) in [("userdel", "/etc/passwd"), ("groupdel", "/etc/group")] {
            exec.on(program, move |cmd, files| {
                let prefix = format!("{}:", cmd.args[1]);
                let text = files.text(path);
                let kept: Vec<&str> = text.lines().filter(|l| !l.starts_with(&prefix)).collect();
                files.put(path, kept.join("\n") + "\n");
                ok("")
            });
        }
        archive
    }

    pub(super) fn events(&self) -> MutexGuard<'_, Events> {
        self.events.lock().unwrap()
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
        self.write();
    }

    /// Changes an installed package.
    pub(super) fn edit(&self, name: &str, edit: impl FnOnce(&mut Installed)) {
        edit(self.installed.lock().unwrap().get_mut(name).unwrap());
        self.write();
    }

    /// Removes a package. Returns whether it was installed.
    pub(super) fn remove(&self, name: &str) -> bool {
        let removed = self.installed.lock().unwrap().remove(name);
        self.write();
        removed.is_some()
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.installed.lock().unwrap().contains_key(name)
    }

    pub(super) fn package(&self, name: &str) -> Installed {
        self.installed.lock().unwrap()[name].clone()
    }

    /// The packages of the database that a bare machine does not have.
    pub(super) fn known(&self) -> Vec<String> {
        let mut names: Vec<String> = self.installed.lock().unwrap().keys().cloned().collect();
        names.retain(|name| !["bash", "dpkg"].contains(&name.as_str()));
        names
    }

    /// The same, without packages of which only the configuration remains.
    pub(super) fn there(&self) -> Vec<String> {
        let mut names = self.known();
        names.retain(|name| !self.package(name).gone);
        names
    }

    /// Writes the database files.
    pub(super) fn write(&self) {
        if self.kind == Kind::Dnf {
            return self.write_for_dnf();
        }
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
        self.files.put("/var/lib/dpkg/status", status);
        self.files.put("/var/lib/apt/extended_states", states);
    }

    /// A line of a transaction.
    fn action(&self, name: &str, from: Option<&str>, to: Option<&str>) -> String {
        match (self.kind, from, to) {
            (Kind::Dnf, from, to) => dnf::row(name, from, to),
            (Kind::Apt, from, None) => format!("Remv {name} [{}]\n", from.unwrap_or_default()),
            (Kind::Apt, from, Some(to)) => {
                let from = from.map(|from| format!("[{from}] ")).unwrap_or_default();
                format!("Inst {name} {from}({to} Archive [amd64])\n")
            }
        }
    }

    /// The output of a failed command. `words` is in apt's format, and is converted to the format of this package manager.
    fn failed(&self, words: &str) -> Output {
        match self.kind {
            Kind::Apt => failed(100, words),
            Kind::Dnf => {
                let class = Kind::Apt.backend().failure_class(words);
                failed(1, dnf::words(class, words))
            }
        }
    }

    fn owned_path(&self, name: &str) -> String {
        match self.kind {
            Kind::Apt => format!("/var/lib/dpkg/info/{name}.list"),
            Kind::Dnf => format!("{}/{name}", dnf::OWNED),
        }
    }

    /// Runs a command, or fails with the next fault.
    pub(super) fn act(&self, simulated: bool, run: impl FnOnce() -> Output) -> Output {
        let fault = self.events().faults.pop_if(|_| !simulated);
        match fault {
            Some(fault) => self.failed(fault),
            None => run(),
        }
    }

    pub(super) fn get(&self, cmd: &Cmd) -> Output {
        let has = |word: &str| cmd.args.iter().any(|arg| arg == word);
        let names = cmd.args.iter().skip_while(|arg| *arg != "--").skip(1);
        let names: Vec<String> = names.cloned().collect();
        if has("--print-uris") {
            return self.estimate(&names);
        }
        let how = How {
            simulated: has("-s"),
            no_remove: has("--no-remove"),
            moves: has("--ignore-hold"),
        };
        self.act(how.simulated, || match () {
            () if has("update") => self.refresh(),
            () if has("purge") || has("remove") => self.take(&names, has("purge"), how.simulated),
            () if has("--download-only") || has("download") || has("--fix-broken") => {
                self.download()
            }
            () => self.put(&names, how),
        })
    }

    /// Each named package is a download of `size` bytes from its host, and needs five times as much space.
    fn estimate(&self, specs: &[String]) -> Output {
        let events = self.events();
        let size = events.size;
        let mut text = format!(
            "After this operation, {} B of additional disk space will be used.\n",
            5 * size * specs.len() as u64
        );
        for name in specs.iter().filter_map(|spec| spec.split('=').next()) {
            let distribution = "http://debian.example.org/debian";
            let host = events.hosts.get(name).unwrap_or(&distribution);
            text.push_str(&format!(
                "'{host}/pool/{name}.deb' {name}.deb {size} MD5Sum:0\n"
            ));
        }
        ok(text)
    }

    pub(super) fn refresh(&self) -> Output {
        let coming = std::mem::take(&mut self.events().coming);
        self.archive.lock().unwrap().extend(coming);
        ok("Reading package lists...\n")
    }

    pub(super) fn download(&self) -> Output {
        let mut events = self.events();
        let moves = std::mem::take(&mut events.moves);
        self.clock
            .advance(Duration::from_secs(events.download_seconds));
        self.archive.lock().unwrap().extend(moves);
        ok("")
    }

    /// Installs packages, and removes those with the suffix `-`.
    pub(super) fn put(&self, specs: &[String], how: How) -> Output {
        if !how.simulated {
            let moves = std::mem::take(&mut self.events().moves);
            self.archive.lock().unwrap().extend(moves);
        }
        let archive = self.archive.lock().unwrap();
        let mut installed = self.installed.lock().unwrap().clone();
        let (mut open, mut going) = (Vec::new(), Vec::new());
        for spec in specs {
            match spec.strip_suffix('-') {
                Some(name) => going.push(name.to_owned()),
                None => open.push((spec.split('=').next().unwrap().to_owned(), false)),
            }
        }
        let is_held = |name: &&String| installed.get(*name).is_some_and(|there| there.held);
        let held = (open.iter().map(|(name, _)| name).chain(&going)).find(is_held);
        if let (Some(name), false, false) = (held, how.simulated, how.moves) {
            return self.failed(&format!(
                "E: Held packages were changed and -y was used: {name}"
            ));
        }
        let (mut text, mut scripts) = (String::new(), Vec::new());
        let mut removes = !going.is_empty();
        for name in &going {
            let gone = installed.remove(name);
            let version = gone.map_or("1".to_owned(), |gone| gone.version);
            text.push_str(&self.action(name, Some(&version), None));
        }
        while let Some((name, auto)) = open.pop() {
            let Some(offered) = archive.get(name.as_str()) else {
                return self.failed(&format!("E: Unable to locate package {name}"));
            };
            for other in offered.conflicts {
                if let Some(gone) = installed.remove(*other) {
                    text.push_str(&self.action(other, Some(&gone.version), None));
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
            text.push_str(&self.action(&name, old, Some(offered.version)));
            let new = Installed {
                version: offered.version.into(),
                auto,
                ..Installed::default()
            };
            installed.insert(name.clone(), new);
            scripts.push((name, offered));
            for needed in offered.depends {
                if going.iter().any(|name| name == needed) {
                    return self
                        .failed("E: Unable to correct problems, you have held broken packages.");
                }
                if installed.get(*needed).is_none_or(|there| there.gone) {
                    open.push(((*needed).to_owned(), true));
                }
            }
        }
        if how.no_remove && removes {
            return self.failed("E: Packages need to be removed but remove is disabled.");
        }
        if how.simulated {
            return ok(text);
        }
        let broken = self.events().breaks.pop();
        let unpacked = broken.as_ref().map(|broken| broken.unpacked);
        // Dependencies are unpacked first.
        for (name, offered) in scripts.iter().rev().take(unpacked.unwrap_or(usize::MAX)) {
            let package = installed[name].clone();
            self.installed.lock().unwrap().insert(name.clone(), package);
            self.unpack(name, offered);
        }
        let Some(broken) = broken else {
            *self.installed.lock().unwrap() = installed;
            self.write();
            return ok(text);
        };
        self.write();
        (broken.meanwhile)(&self.files);
        Output {
            status: broken.status,
            ..self.failed(broken.says)
        }
    }

    /// Writes the files of a package and runs its script.
    fn unpack(&self, name: &str, offered: &Offered) {
        (offered.script)(&self.files);
        // An existing file belongs to the administrator.
        if let Some(path) = offered.conffile
            && self.files.stat(path.into()).unwrap().is_none()
        {
            self.files.put(path, "a default\n");
        }
        let owned = [offered.conffile.unwrap_or_default(), offered.owns];
        self.files.put(&self.owned_path(name), owned.join("\n"));
    }

    /// Removes packages.
    pub(super) fn take(&self, names: &[String], purge: bool, simulated: bool) -> Output {
        let archive = self.archive.lock().unwrap();
        let mut installed = self.installed.lock().unwrap().clone();
        let mut gone: BTreeSet<String> = names.iter().cloned().collect();
        let is_unknown =
            |name: &&String| !installed.contains_key(*name) && !archive.contains_key(name.as_str());
        if let (Kind::Apt, Some(name)) = (self.kind, gone.iter().find(is_unknown)) {
            return self.failed(&format!("E: Unable to locate package {name}"));
        }
        // Packages that depend on one of them are also removed.
        loop {
            let depends = |name: &str| {
                let offered = archive.get(name);
                offered.is_some_and(|offered| offered.depends.iter().any(|d| gone.contains(*d)))
            };
            let more: Vec<String> = (installed.iter())
                .filter(|(name, package)| !gone.contains(*name) && !package.gone && depends(name))
                .map(|(name, _)| name.clone())
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
            if package.held && self.kind == Kind::Apt {
                return self.failed("E: Held packages were changed and -y was used");
            }
            if package.gone && !purge {
                installed.insert(name.clone(), package);
                continue;
            }
            let version = match (package.gone, self.kind) {
                (true, Kind::Apt) => "",
                _ => &package.version,
            };
            text.push_str(&self.action(name, Some(version), None));
            if simulated {
                continue;
            }
            // Packages that depend on the named packages are purged with them.
            if self.kind == Kind::Dnf || purge {
                if let Some(path) = archive.get(name.as_str()).and_then(|p| p.conffile) {
                    self.files.take(path);
                }
                self.files.take(&self.owned_path(name));
            } else {
                package.gone = true;
                installed.insert(name.clone(), package);
            }
        }
        if !simulated {
            *self.installed.lock().unwrap() = installed;
            self.write();
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

    pub(super) fn set_mark(&self, mark: &str, names: &[String]) -> Output {
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
        self.write();
        ok("")
    }

    fn dpkg(&self, cmd: &Cmd) -> Output {
        if !cmd.args.iter().any(|arg| arg == "--configure") {
            return ok("");
        }
        self.act(false, || {
            for package in self.installed.lock().unwrap().values_mut() {
                package.half = false;
            }
            self.write();
            ok("Setting up bash (5.2) ...\n")
        })
    }
}

/// Appends a line to a file, like a package script that adds an account.
pub(super) fn append(files: &FakeFiles, path: &str, line: &str) {
    let before = files.read_text(path.into()).unwrap().unwrap_or_default();
    files.put(path, before + line + "\n");
}
