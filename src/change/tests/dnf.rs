//! Presents the archive in memory as dnf and rpm.

use super::archive::{Archive, How, Installed};
use crate::{
    host::{
        Cmd, Output, ReadFiles,
        fake::{FakeFiles, failed, ok},
    },
    tools::packages::FailureClass,
};

pub(super) const OWNED: &str = "/var/lib/rpm/owned";
/// While this file exists, no module stream can be enabled.
pub(super) const NO_METADATA: &str = "/var/lib/rpm/no-metadata";
/// A directory with a file for each package, which lists the package files with flags, sizes and times.
pub(super) const CONFIGURATION: &str = "/var/lib/rpm/configuration";

/// The evidence of an interrupted transaction.
const INTERRUPTED: &str = "/var/lib/dnf/rpmdb_lock.pid";
pub(super) const KEYS: &str = "/var/lib/rpm/keys";
pub(super) const LOCK_LIST: &str = "/etc/dnf/plugins/versionlock.list";
const LOCK_PLUGIN: &str = "/etc/dnf/plugins/versionlock.conf";

/// A row of a transaction table, with the title of its section.
pub(super) fn row(name: &str, from: Option<&str>, to: Option<&str>) -> String {
    let (title, version, repository) = match (from, to) {
        (None, Some(to)) => ("Installing", to, "archive"),
        (Some(_), Some(to)) => ("Upgrading", to, "archive"),
        (from, None) => ("Removing", from.unwrap_or_default(), "@System"),
    };
    format!("{title}:\n {name}  x86_64  {version}  {repository}  1.0 k\n")
}

/// Output that shows a failure class.
pub(super) fn words(class: FailureClass, what: &str) -> String {
    let sign = match class {
        FailureClass::Locked => "RPMDB already locked by 812",
        FailureClass::NoSpace => "Error: Curl error (23): Failed writing received data to disk",
        FailureClass::Stale => "  - Status code: 404 for http://x/runc.rpm (IP: 192.0.2.1)",
        FailureClass::Network => "  - Curl error (28): Timeout was reached for http://x/a.rpm",
        FailureClass::NotFound => "Error: Unable to find a match: a",
        FailureClass::Held => "All matches were filtered out by exclude filtering for argument: a",
        FailureClass::Script => {
            "Error in PREIN scriptlet in rpm package a\nError: Transaction failed"
        }
        FailureClass::Unmet => "Error: \n Problem: conflicting requests",
        _ => "Error: ",
    };
    format!("{sign}\n{what}")
}

impl Archive {
    /// Adds locks for held packages to the list, and keeps other entries. If a package is half-installed, also writes the
    /// evidence of an interrupted transaction.
    pub(super) fn write_for_dnf(&self) {
        let (files, installed) = (&self.files, self.installed.lock().unwrap());
        let mut list = text(files, LOCK_LIST).unwrap_or_default();
        for (name, package) in installed.iter().filter(|(_, package)| package.held) {
            let entry = format!("{name}-0:{}.*\n", package.version);
            if !list.contains(&entry) {
                list.push_str(&entry);
            }
        }
        files.put(LOCK_PLUGIN, "[main]\nenabled = 1\n");
        files.put(LOCK_LIST, list);
        if installed.values().any(|package| package.half) {
            files.put(INTERRUPTED, "4242");
        } else {
            files.take(INTERRUPTED);
        }
    }

    /// A package with its version, in the archive's format `NAME=VERSION`.
    fn spec(&self, written: &str) -> String {
        let bare = written.strip_suffix(".x86_64").unwrap_or(written);
        let (archive, installed) = (self.archive.lock().unwrap(), self.installed.lock().unwrap());
        let offered = archive.iter().map(|(name, one)| (*name, one.version));
        let there = (installed.iter()).map(|(name, one)| (name.as_str(), one.version.as_str()));
        let is_it = |(name, version): &(&str, &str)| bare == format!("{name}-{version}");
        match offered.chain(there).find(is_it) {
            Some((name, version)) => format!("{name}={version}"),
            None => bare.to_owned(),
        }
    }

    pub(super) fn dnf(&self, cmd: &Cmd) -> Output {
        let has = |word: &str| cmd.args.iter().any(|arg| arg == word);
        let words: Vec<&str> = (cmd.args.iter().map(String::as_str))
            .filter(|arg| !arg.starts_with('-'))
            .collect();
        let Some((verb, names)) = words.split_first() else {
            panic!("dnf without a verb: {}", cmd.line());
        };
        let how = How {
            simulated: has("--assumeno"),
            no_remove: false,
            moves: has("--disableplugin=versionlock"),
        };
        let specs: Vec<String> = names.iter().map(|name| self.spec(name)).collect();
        let output = match *verb {
            "makecache" => return self.act(false, || self.refresh()),
            "repoquery" if has("--userinstalled") => return self.asked_for(),
            "repoquery" => return self.offers(&names[1..]),
            "history" => return self.history(),
            "mark" => return self.set_mark("auto", &specs[1..]),
            "module" => return self.module(names[0], names[1]),
            _ if has("--downloadonly") => {
                if self.events().imports {
                    self.files.put(KEYS, "gpg-pubkey-48cf39dd-6742c1a5\n");
                }
                return self.act(false, || self.download());
            }
            "install" => self.act(how.simulated, || self.put(&specs, how)),
            "remove" => self.act(how.simulated, || self.take(&specs, true, how.simulated)),
            "reinstall" => self.reinstall(&specs, how.simulated),
            "shell" => {
                let specs = self.of_script(cmd.stdin.as_ref().expect("a script").expose());
                self.act(how.simulated, || self.put(&specs, how))
            }
            _ => panic!("dnf in memory knows no `{}`", cmd.line()),
        };
        if !(how.simulated && output.ok()) {
            return self.with_failed_scripts(output);
        }
        if output.stdout.is_empty() {
            return ok("Dependencies resolved.\nNothing to do.\nComplete!\n");
        }
        let lines = &output.stdout;
        Output {
            stdout: format!("Dependencies resolved.\n{lines}\nTransaction Summary\n"),
            ..failed(1, "Operation aborted.\n")
        }
    }

    /// dnf succeeds although a script failed.
    fn with_failed_scripts(&self, mut output: Output) -> Output {
        let failing = std::mem::take(&mut self.events().failing);
        for name in failing {
            let version = self.package(name).version;
            output.stdout.push_str(&format!(
                "warning: %post({name}-{version}.x86_64) scriptlet failed, exit status 3\n"
            ));
        }
        output
    }

    fn module(&self, verb: &str, name: &str) -> Output {
        let (module, stream) = name.split_once(':').unwrap_or((name, ""));
        let path = format!("/etc/dnf/modules.d/{module}.module");
        if verb == "enable" && text(&self.files, &path).is_some_and(|text| text.contains("enabled"))
        {
            return failed(1, "Error: It is not possible to switch streams");
        }
        if verb == "enable" && text(&self.files, NO_METADATA).is_some() {
            return failed(1, "Error: no metadata of any repository");
        }
        let state = if verb == "enable" { "enabled" } else { "" };
        self.files.put(
            &path,
            format!("[{module}]\nname={module}\nstream={stream}\nprofiles=\nstate={state}\n"),
        );
        ok("Complete!\n")
    }

    fn of_script(&self, script: &str) -> Vec<String> {
        let mut specs = Vec::new();
        for line in script.lines() {
            let mut words = line.split(' ');
            match words.next() {
                Some("remove") => specs.extend(words.map(|name| format!("{name}-"))),
                Some("install") => specs.extend(words.map(|spec| self.spec(spec))),
                _ => {}
            }
        }
        specs
    }

    fn asked_for(&self) -> Output {
        let installed = self.installed.lock().unwrap();
        let manual = installed.iter().filter(|(_, package)| !package.auto);
        ok(manual
            .map(|(name, _)| format!("{name}\tx86_64\n"))
            .collect::<String>())
    }

    fn offers(&self, names: &[&str]) -> Output {
        let archive = self.archive.lock().unwrap();
        let lines = names.iter().filter_map(|name| {
            let offered = archive.get(name)?;
            Some(format!("{name}\t0:{}\tx86_64\n", offered.version))
        });
        ok(lines.collect::<String>())
    }

    /// The last transaction was interrupted if a package is unconfigured.
    fn history(&self) -> Output {
        let installed = self.installed.lock().unwrap();
        let half: String = (installed.iter())
            .filter(|(_, package)| package.half)
            .map(|(name, package)| {
                format!(" ** Install {name}-{}.x86_64 @archive\n", package.version)
            })
            .collect();
        let begun = self.events().begun;
        let end = if half.is_empty() { "fd9ac9" } else { "**" };
        ok(format!(
            "Transaction ID : 8\nEnd rpmdb      : {end}\nPackages Altered:\n{half}{begun}"
        ))
    }

    fn reinstall(&self, specs: &[String], simulated: bool) -> Output {
        let mut text = String::new();
        for spec in specs {
            // Skip packages that no repository has, and process the rest.
            let Some((name, version)) = spec.split_once('=') else {
                continue;
            };
            let offered = self.archive.lock().unwrap();
            if offered.get(name).is_none_or(|one| one.version != version) {
                continue;
            }
            text.push_str(&row(name, Some(version), Some(version)));
            if !simulated && let Some(package) = self.installed.lock().unwrap().get_mut(name) {
                package.half = false;
            }
        }
        if !simulated {
            self.write();
        }
        ok(text)
    }

    pub(super) fn rpm(&self, cmd: &Cmd) -> Output {
        let files = &self.files;
        let args: Vec<&str> = cmd.args.iter().map(String::as_str).collect();
        let texts = |directory: &str, names: &[&str]| -> Output {
            let one = |name: &&str| match text(files, &format!("{directory}/{name}")) {
                Some(text) => text + "\n",
                None => format!("package {name} is not installed\n"),
            };
            ok(names.iter().map(one).collect::<String>())
        };
        let installed = self.installed.lock().unwrap();
        let names: Vec<&str> = installed.keys().map(String::as_str).collect();
        match args[..] {
            ["-qa", "--qf", format] if format.starts_with("[%{FILENAMES}") => texts(OWNED, &names),
            ["-qa", "--qf", _] => {
                let there = installed.iter().filter(|(_, package)| !package.gone);
                ok(there
                    .map(|(name, package)| line(name, package))
                    .collect::<String>())
            }
            ["-qa", "gpg-pubkey", ..] => ok(text(files, KEYS).unwrap_or_default()),
            ["-e", "--allmatches", "--", ..] => {
                files.take(KEYS);
                ok("")
            }
            ["-q", "--qf", format, "--", ref names @ ..] if format.contains("FILEFLAGS") => {
                texts(CONFIGURATION, names)
            }
            ["-q", "--qf", _, "--", ref names @ ..] => texts(OWNED, names),
            _ => panic!("rpm in memory knows no `{}`", cmd.line()),
        }
    }
}

fn text(files: &FakeFiles, path: &str) -> Option<String> {
    files.read_text(path.into()).unwrap()
}

fn line(name: &str, package: &Installed) -> String {
    let (version, release) =
        (package.version.split_once('-')).unwrap_or((&package.version, "(none)"));
    format!("{name}\tx86_64\t(none)\t{version}\t{release}\t(none)\t(none)\n")
}
