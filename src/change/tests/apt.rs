//! A package manager in memory: a small archive, dependencies, conffiles, and scripts that leave
//! things behind, as real ones do.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
};

use super::kit::Bed;
use crate::host::{
    Cmd, Output, ReadFiles,
    exec::Status,
    fake::{FakeFiles, failed, ok},
};

/// A package of the archive.
pub(super) struct Offered {
    pub version: &'static str,
    pub depends: &'static [&'static str],
    pub conflicts: &'static [&'static str],
    pub conffile: Option<&'static str>,
    /// What its script does, and does not take back.
    pub script: fn(&FakeFiles),
}

impl Offered {
    pub(super) const fn new(version: &'static str, depends: &'static [&'static str]) -> Self {
        Self {
            version,
            depends,
            conflicts: &[],
            conffile: None,
            script: |_| {},
        }
    }
}

#[derive(Clone, Default)]
pub(super) struct Installed {
    pub version: String,
    pub held: bool,
    pub auto: bool,
    pub half: bool,
}

/// How a real installation is broken off.
pub(super) struct Break {
    /// So many packages are unpacked before.
    pub unpacked: usize,
    pub says: &'static str,
    pub status: Status,
    /// What others do at that moment.
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

/// The archive and the database. The files of dpkg are written anew after each change.
#[derive(Clone, Default)]
pub(super) struct Apt {
    pub archive: Arc<Mutex<BTreeMap<&'static str, Offered>>>,
    pub installed: Arc<Mutex<BTreeMap<String, Installed>>>,
    /// Standard errors of the next calls that would change something.
    pub faults: Arc<Mutex<Vec<&'static str>>>,
    /// The next real installations, the first one last.
    pub breaks: Arc<Mutex<Vec<Break>>>,
    /// What is offered from the moment at which packages are downloaded.
    pub moves: Arc<Mutex<Vec<(&'static str, Offered)>>>,
    /// What the next fetch of the lists brings.
    pub coming: Arc<Mutex<Vec<(&'static str, Offered)>>>,
}

impl Apt {
    pub(super) fn on(bed: &Bed) -> Self {
        let apt = Self::default();
        apt.have("dpkg", "1.21");
        apt.have("bash", "5.2");
        bed.fakes
            .files
            .put("/etc/passwd", "root:x:0:0:root:/root:/bin/sh\n");
        bed.fakes.files.put("/etc/group", "root:x:0:\n");
        for folder in ["/var/lib/dpkg/info", "/var/lib/apt", "/etc/apt"] {
            bed.fakes.files.put_folder(folder, 0o755);
        }
        apt.write(&bed.fakes.files);
        let own = apt.clone();
        bed.fakes
            .exec
            .on("apt-get", move |cmd, files| own.get(cmd, files));
        let own = apt.clone();
        bed.fakes
            .exec
            .on("apt-cache", move |cmd, _| own.policy(cmd));
        let own = apt.clone();
        bed.fakes
            .exec
            .on("apt-mark", move |cmd, files| own.mark(cmd, files));
        let own = apt.clone();
        bed.fakes
            .exec
            .on("dpkg", move |cmd, files| own.dpkg(cmd, files));
        for (program, path) in [("userdel", "/etc/passwd"), ("groupdel", "/etc/group")] {
            bed.fakes.exec.on(program, move |cmd, files| {
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
            let state = if package.half {
                "half-configured"
            } else {
                "installed"
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
        files.put("/var/lib/dpkg/status", status);
        files.put("/var/lib/apt/extended_states", states);
    }

    fn get(&self, cmd: &Cmd, files: &FakeFiles) -> Output {
        let simulated = cmd.args.iter().any(|arg| arg == "-s");
        let has = |word: &str| cmd.args.iter().any(|arg| arg == word);
        if !simulated && let Some(fault) = self.faults.lock().unwrap().pop() {
            return failed(100, fault);
        }
        if has("update") {
            let coming = std::mem::take(&mut *self.coming.lock().unwrap());
            self.archive.lock().unwrap().extend(coming);
            return ok("Reading package lists...\n");
        }
        let names: Vec<String> = cmd
            .args
            .iter()
            .skip_while(|arg| *arg != "--")
            .skip(1)
            .cloned()
            .collect();
        if has("purge") || has("remove") {
            return self.take(&names, simulated, files);
        }
        if has("--download-only") || has("--fix-broken") {
            let moves = std::mem::take(&mut *self.moves.lock().unwrap());
            self.archive.lock().unwrap().extend(moves);
            return ok("");
        }
        self.put(&names, simulated, has("--no-remove"), files)
    }

    fn put(&self, specs: &[String], simulated: bool, no_remove: bool, files: &FakeFiles) -> Output {
        let archive = self.archive.lock().unwrap();
        let mut installed = self.installed.lock().unwrap().clone();
        let (mut text, mut scripts) = (String::new(), Vec::new());
        let mut open: Vec<(String, bool)> = Vec::new();
        for spec in specs {
            if let Some(name) = spec.strip_suffix('-') {
                installed.remove(name);
                text.push_str(&format!("Remv {name} [1]\n"));
            } else {
                open.push((spec.split('=').next().unwrap().to_owned(), false));
            }
        }
        while let Some((name, auto)) = open.pop() {
            let Some(offered) = archive.get(name.as_str()) else {
                return failed(100, format!("E: Unable to locate package {name}"));
            };
            for other in offered.conflicts {
                if installed.remove(*other).is_some() {
                    text.push_str(&format!("Remv {other} [1]\n"));
                }
            }
            let old = installed
                .get(&name)
                .map(|old| format!("[{}] ", old.version));
            text.push_str(&format!(
                "Inst {name} {}({} Archive [amd64])\n",
                old.unwrap_or_default(),
                offered.version
            ));
            installed.insert(
                name.clone(),
                Installed {
                    version: offered.version.into(),
                    auto,
                    ..Installed::default()
                },
            );
            scripts.push((name, offered.script, offered.conffile));
            for needed in offered.depends {
                if !installed.contains_key(*needed) {
                    open.push(((*needed).to_owned(), true));
                }
            }
        }
        if no_remove && text.contains("Remv ") {
            return failed(
                100,
                "E: Packages need to be removed but remove is disabled.",
            );
        }
        let broken = self.breaks.lock().unwrap().pop_if(|_| !simulated);
        if let Some(broken) = broken {
            // What others need is unpacked first.
            for (name, script, _) in scripts.iter().rev().take(broken.unpacked) {
                let unpacked = installed[name].clone();
                self.installed
                    .lock()
                    .unwrap()
                    .insert(name.clone(), unpacked);
                script(files);
            }
            self.write(files);
            (broken.meanwhile)(files);
            return Output {
                status: broken.status,
                ..failed(100, broken.says)
            };
        }
        if !simulated {
            *self.installed.lock().unwrap() = installed;
            for (name, script, conffile) in scripts {
                script(files);
                if let Some(path) = conffile {
                    files.put(path, "a default\n");
                    files.put(
                        &format!("/var/lib/dpkg/info/{name}.list"),
                        format!("{path}\n"),
                    );
                }
            }
            self.write(files);
        }
        ok(text)
    }

    fn take(&self, names: &[String], simulated: bool, files: &FakeFiles) -> Output {
        let archive = self.archive.lock().unwrap();
        let mut installed = self.installed.lock().unwrap().clone();
        let mut gone: BTreeSet<String> = names.iter().cloned().collect();
        // Who needs one of them goes as well.
        loop {
            let more: Vec<String> = installed
                .keys()
                .filter(|name| !gone.contains(*name))
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
            let Some(package) = installed.remove(name) else {
                continue;
            };
            if package.held {
                return failed(100, "E: Held packages were changed and -y was used");
            }
            text.push_str(&format!("Purg {name} [{}]\n", package.version));
            if !simulated {
                if let Some(path) = archive.get(name.as_str()).and_then(|p| p.conffile) {
                    files.take(path);
                }
                files.take(&format!("/var/lib/dpkg/info/{name}.list"));
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
                let here = installed.get(name).map_or("(none)", |here| &here.version);
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
        for name in cmd.args.iter().skip(2) {
            if let Some(package) = self.installed.lock().unwrap().get_mut(name) {
                match cmd.args[0].as_str() {
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
            if let Some(fault) = self.faults.lock().unwrap().pop() {
                return failed(1, fault);
            }
            for package in self.installed.lock().unwrap().values_mut() {
                package.half = false;
            }
            self.write(files);
        }
        ok("")
    }
}

/// Adds a line to a file, as scripts add accounts.
pub(super) fn append(files: &FakeFiles, path: &str, line: &str) {
    let before = files.read_text(path.into()).unwrap().unwrap_or_default();
    files.put(path, before + line + "\n");
}

/// Another package manager is at work.
pub(super) fn hold_lock(files: &FakeFiles) {
    let lock = "/var/lib/dpkg/lock-frontend";
    files.put(lock, "");
    let inode = files.stat(lock.into()).unwrap().unwrap().inode;
    files.put(
        "/proc/locks",
        format!("1: POSIX  ADVISORY  WRITE 812 fe:00:{inode} 0 EOF\n"),
    );
    files.put("/proc/812/comm", "unattended-upgr\n");
    files.put_link("/proc/812/fd/5", lock);
}

/// It has ended.
pub(super) fn release_lock(files: &FakeFiles) {
    for path in [
        "/proc/locks",
        "/var/lib/dpkg/lock-frontend",
        "/proc/812/comm",
        "/proc/812/fd/5",
        "/proc/812/fd",
        "/proc/812",
    ] {
        files.take(path);
    }
}
