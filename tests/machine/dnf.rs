//! Simulates `dnf` 4 on the files of the machine. Installed packages are stored in the format of the simulated `dpkg`, in a
//! directory that no package manager uses.

use std::{cmp::Ordering, collections::BTreeMap};

use gpu_bootstrap::{
    host::{
        Cmd, ExecError, Output,
        exec::Status,
        fake::{FakeFiles, failed, ok},
    },
    model::pattern,
    tools::packages::{Backend, Manager, SourceEntry},
};

use crate::{
    archive::{Package, Repo, digest, field},
    dpkg, prebuilt,
    rpm::trusts,
    state::{State, list, text},
};

pub const CACHE: &str = "/var/cache/dnf";
/// The end of the name of a cache directory, after the ID of its repository.
pub const HASH: &str = "-0123456789abcdef";
const INTERRUPTED: &str = "/var/lib/dnf/rpmdb_lock.pid";
const LAST: &str = "/var/lib/dnf/simulated-last-transaction";
const LOCKS: &str = "/etc/dnf/plugins/versionlock.list";
const DOWNLOADED: &str = "/var/cache/dnf/simulated-packages";

fn backend() -> &'static dyn Backend {
    Manager::Dnf.backend()
}

/// A parsed command line.
#[derive(Debug, Default)]
struct Line {
    simulate: bool,
    download_only: bool,
    cache_only: bool,
    /// Whether packages of all module streams are visible.
    all_streams: bool,
    /// Whether version locks apply.
    locks: bool,
    weak: bool,
    /// The packages whose files are on the command line or in the script.
    files: Vec<Package>,
    /// In the dnf shell, which does not report failures in its exit status.
    shell: bool,
    words: Vec<String>,
}

fn parse(cmd: &Cmd, files: &FakeFiles) -> Line {
    let mut line = Line {
        locks: true,
        ..Line::default()
    };
    for arg in &cmd.args {
        match arg.as_str() {
            "-q" | "-y" | "--" | "--refresh" | "--noautoremove" | "--color=never"
            | "--disablerepo=*" | "--showduplicates" | "--userinstalled" | "--qf" => {}
            "--disableplugin=versionlock" => line.locks = false,
            "--setopt=install_weak_deps=1" => line.weak = true,
            "--assumeno" => line.simulate = true,
            "--downloadonly" => line.download_only = true,
            "--cacheonly" => line.cache_only = true,
            option if option.starts_with("--setopt=") => {
                line.all_streams |= option.contains("module_hotfixes");
            }
            word if !word.starts_with('-') => {
                let word = line.specified(word, files);
                line.words.push(word);
            }
            word => panic!(
                "the simulated dnf does not support `{word}` in `{}`",
                cmd.line()
            ),
        }
    }
    line
}

impl Line {
    /// Returns the specification of a package for its file.
    fn specified(&mut self, word: &str, files: &FakeFiles) -> String {
        let Some(package) = prebuilt::at_path(files, word) else {
            return word.to_owned();
        };
        let spec = format!("{}-{}", package.name, package.version);
        self.files.push(package);
        spec
    }
}

/// Whether a command line of `dnf` changes the machine.
pub fn changes(cmd: &Cmd) -> bool {
    !cmd.args
        .iter()
        .any(|arg| ["--assumeno", "repoquery", "history"].contains(&arg.as_str()))
}

/// `dnf`.
pub fn dnf(cmd: &Cmd, files: &FakeFiles, state: &mut State) -> Result<Output, ExecError> {
    state.learn_built(files);
    let mut line = parse(cmd, files);
    if changes(cmd) {
        for option in ["--setopt=exit_on_lock=1", "-y"] {
            let has = cmd.args.iter().any(|arg| arg == option);
            assert!(has, "dnf may wait or prompt: {}", cmd.line());
        }
    }
    let takes_lock = |verb: &&str| line.words.iter().any(|word| word == verb);
    if !(line.simulate || line.download_only)
        && ["install", "remove", "reinstall", "shell"]
            .iter()
            .any(takes_lock)
        && let Some(lock) = &state.faults.package_lock
    {
        let why = format!("RPMDB already locked by {}\n", lock.pid);
        return Ok(failed(200, why));
    }
    let words: Vec<&str> = line.words.iter().map(String::as_str).collect();
    Ok(match words[..] {
        ["makecache"] => refresh(files, state),
        ["repoquery", format, ref names @ ..] if format.contains("%{files}") => {
            contents(files, state, names)
        }
        ["repoquery", format, ref names @ ..] if format.contains("%{requires}") => {
            let found = names.iter().flat_map(|name| {
                let offers = offers_to(files, name, &line).into_iter();
                offers
                    .map(|(version, _)| prebuilt::relations(state.archive.package(name, &version)))
            });
            ok(found.collect::<String>())
        }
        ["repoquery", format, ref names @ ..] => query(files, format, names, &line),
        ["history", "info", "last"] => ok(history(files)),
        ["module", verb, name] => module(files, verb, name),
        ["mark", "remove", ref names @ ..] => {
            let mut auto = dpkg::auto(files);
            auto.extend(names.iter().map(ToString::to_string));
            dpkg::set_auto(files, auto);
            ok("")
        }
        ["install", ref specs @ ..] => {
            let requested = specs.iter().map(|spec| (*spec).to_owned()).collect();
            return transaction(cmd, files, state, &line, requested, Vec::new());
        }
        ["shell", "/dev/stdin"] => {
            let script = cmd.stdin.as_ref().expect("a script").expose().to_owned();
            let of = |verb: &str| -> Vec<String> {
                let lines = script.lines().filter_map(|line| line.strip_prefix(verb));
                lines
                    .flat_map(str::split_whitespace)
                    .map(str::to_owned)
                    .collect()
            };
            line.shell = true;
            let (requested, going) = (of("install "), of("remove "));
            let requested = (requested.iter())
                .map(|word| line.specified(word, files))
                .collect();
            let going: Vec<&str> = going.iter().map(String::as_str).collect();
            let going = with_dependents(files, state, &going);
            return transaction(cmd, files, state, &line, requested, going);
        }
        ["upgrade"] if line.simulate => crate::upgrade::dnf(files),
        ["reinstall", ref specs @ ..] => reinstall(files, state, &line, specs),
        ["remove", ref names @ ..] => {
            let going = with_dependents(files, state, names);
            return transaction(cmd, files, state, &line, Vec::new(), going);
        }
        _ => panic!("the simulated dnf does not support `{}`", cmd.line()),
    })
}

// --- Repositories -----------------------------------------------------------------------------

fn repository<'s>(state: &'s State, entry: &SourceEntry) -> Option<&'s Repo> {
    let same = |repo: &&Repo| repo.url.trim_end_matches('/') == entry.uri;
    state.archive.repos.iter().find(same)
}

/// Downloads the metadata of all enabled repositories.
pub fn refresh(files: &FakeFiles, state: &mut State) -> Output {
    let (mut errors, mut ignored) = (String::new(), Vec::new());
    for entry in backend().entries(files).expect("repositories can be read") {
        let id = entry.id.clone().expect("a repository has a name");
        if !entry.enabled {
            continue;
        }
        let failure = if let Some(why) = &state.faults.network {
            Some(format!("Curl error (6): {why}"))
        } else if state.faults.half_synced > 0 {
            state.faults.half_synced -= 1;
            Some("Status code: 404 for http://x/repodata/a-primary.xml.gz (IP: 192.0.2.1)".into())
        } else {
            match repository(state, &entry) {
                None => Some(format!(
                    "Status code: 404 for {}/repodata/repomd.xml (IP: 192.0.2.1)",
                    entry.uri
                )),
                Some(repo) => {
                    let path = entry.signed_by.as_deref().unwrap_or_default();
                    // Unchanged metadata is not verified again.
                    let trusted = text(files, &format!("{CACHE}/{id}.solv")).is_some()
                        || (repo.key.as_ref()).is_none_or(|key| trusts(files, path, key));
                    if trusted {
                        fetch(files, state, repo, &id);
                    }
                    (!trusted).then(|| "repomd.xml GPG signature verification error".into())
                }
            }
        };
        if let Some(why) = failure {
            errors.push_str(&format!(
                "Errors during downloading metadata for repository '{id}':\n  - {why}\nError: Failed \
                 to download metadata for repo '{id}': Cannot download repomd.xml\n"
            ));
            ignored.push(id);
        }
    }
    if !ignored.is_empty() {
        errors.push_str(&format!("Ignoring repositories: {}\n", ignored.join(", ")));
    }
    Output {
        stderr: errors,
        ..ok("Metadata cache created.\n")
    }
}

fn fetch(files: &FakeFiles, state: &State, repo: &Repo, id: &str) {
    let mut content = format!("Repo: {}\n", repo.name);
    let mut primary = String::from("<metadata>\n");
    for package in state
        .archive
        .packages
        .iter()
        .filter(|one| one.repo == repo.name)
    {
        content.push_str(&format!(
            "\nPackage: {}\nVersion: {}\nStream: {}\n",
            package.name, package.version, package.stream
        ));
        let (epoch, version) = package
            .version
            .split_once(':')
            .unwrap_or(("0", &package.version));
        let (version, release) = version.rsplit_once('-').expect("a release");
        primary.push_str(&format!(
            "<package type=\"rpm\">\n  <name>{}</name>\n  <arch>x86_64</arch>\n  <version epoch=\"{epoch}\" \
             ver=\"{version}\" rel=\"{release}\"/>\n  <checksum type=\"sha256\" pkgid=\"YES\">{}</checksum>\n\
             </package>\n",
            package.name,
            digest(&package.name, &package.version)
        ));
    }
    primary.push_str("</metadata>\n");
    files.put(&format!("{CACHE}/{id}.solv"), content);
    files.put(&self::primary(id), primary);
}

/// The path of the list with the digests of a repository.
pub fn primary(id: &str) -> String {
    format!("{CACHE}/{id}{HASH}/repodata/0-primary.xml")
}

/// The versions in the metadata of enabled streams, newest first, with their repositories.
pub fn offers(files: &FakeFiles, name: &str) -> Vec<(String, String)> {
    let line = Line::default();
    offers_to(files, name, &line)
}

/// The versions that are visible to a command.
fn offers_to(files: &FakeFiles, name: &str, line: &Line) -> Vec<(String, String)> {
    // Version locks do not apply to package files.
    if let Some(file) = line.files.iter().find(|one| one.name == name) {
        return vec![(file.version.clone(), file.repo.clone())];
    }
    let locks = match line.locks {
        true => text(files, LOCKS).unwrap_or_default(),
        false => String::new(),
    };
    let mut found = match is_excluded(files, name) {
        true => Vec::new(),
        false => known(files, name, line.all_streams),
    };
    // `NAME-EPOCH:VERSION-RELEASE.*`, the format that gpu-bootstrap writes.
    let locked: Vec<&str> = (locks.lines())
        .filter_map(|entry| {
            entry
                .strip_prefix(name)?
                .strip_prefix('-')?
                .strip_suffix(".*")
        })
        .filter(|version| version.starts_with(|c: char| c.is_ascii_digit()))
        .collect();
    let is_locked = |version: &str| locked.iter().any(|one| compare(one, version).is_eq());
    found.retain(|(version, _)| locked.is_empty() || is_locked(version));
    found
}

fn is_excluded(files: &FakeFiles, name: &str) -> bool {
    let main = text(files, "/etc/dnf/dnf.conf").unwrap_or_default();
    let mut lines = main.lines().filter_map(|line| {
        line.strip_prefix("exclude=")
            .or_else(|| line.strip_prefix("excludepkgs="))
    });
    lines.any(|line| {
        line.split_whitespace()
            .any(|one| pattern::matches(one, name))
    })
}

fn known(files: &FakeFiles, name: &str, all_streams: bool) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for file in list(files, CACHE) {
        let Some(id) = file.strip_suffix(".solv") else {
            continue;
        };
        let content = text(files, &format!("{CACHE}/{file}")).unwrap_or_default();
        for paragraph in content.split("\n\n") {
            let stream = field(paragraph, "Stream").unwrap_or_default();
            let (module, stream) = stream.split_once(':').unwrap_or_default();
            let enabled = || {
                let path = format!("/etc/dnf/modules.d/{module}.module");
                let text = text(files, &path).unwrap_or_default();
                text.contains(&format!("stream={stream}\n")) && text.contains("state=enabled")
            };
            if field(paragraph, "Package").as_deref() == Some(name)
                && (all_streams || module.is_empty() || enabled())
            {
                let version = field(paragraph, "Version").expect("a version");
                found.push((version, id.to_owned()));
            }
        }
    }
    found.sort_by(|a, b| compare(&b.0, &a.0));
    found
}

pub fn compare(a: &str, b: &str) -> Ordering {
    backend().compare(a, b)
}

/// Version locks do not affect this query.
fn query(files: &FakeFiles, format: &str, names: &[&str], line: &Line) -> Output {
    let line = Line {
        all_streams: line.all_streams,
        files: line.files.clone(),
        ..Line::default()
    };
    if !format.contains("version") {
        let auto = dpkg::auto(files);
        let there = dpkg::read(files).into_keys();
        let manual = there.filter(|name| !auto.contains(name));
        return ok(manual
            .map(|name| format!("{name}\tx86_64\n"))
            .collect::<String>());
    }
    let mut said = String::new();
    for name in names {
        for (version, _) in offers_to(files, name, &line) {
            let version = match version.contains(':') {
                true => version,
                false => format!("0:{version}"),
            };
            said.push_str(&format!("{name}\t{version}\tx86_64\n"));
        }
    }
    ok(said)
}

fn contents(files: &FakeFiles, state: &State, names: &[&str]) -> Output {
    let mut said = String::new();
    for name in names {
        for (version, _) in offers(files, name) {
            let package = state.archive.package(name, &version);
            said.push_str(&format!(
                "{name}\t{version}\tx86_64\t{}\n\n",
                package.files.join("\n")
            ));
        }
    }
    ok(said)
}

fn module(files: &FakeFiles, verb: &str, name: &str) -> Output {
    let (module, stream) = name.split_once(':').unwrap_or((name, ""));
    let state = match verb {
        "enable" => "enabled",
        "reset" => "",
        _ => panic!("the simulated dnf does not support `module {verb}`"),
    };
    files.put(
        &format!("/etc/dnf/modules.d/{module}.module"),
        format!("[{module}]\nname={module}\nstream={stream}\nprofiles=\nstate={state}\n"),
    );
    ok("Complete!\n")
}

// --- Transactions -----------------------------------------------------------------------------

struct Solver<'s> {
    files: &'s FakeFiles,
    state: &'s State,
    line: &'s Line,
    going: &'s [String],
    /// The versions on the command line, which dependencies use as well.
    named: BTreeMap<String, String>,
    chosen: BTreeMap<String, String>,
    order: Vec<String>,
}

impl Solver<'_> {
    fn take(&mut self, name: &str, version: &str) -> Result<(), String> {
        if let Some(chosen) = self.chosen.get(name) {
            return match chosen == version {
                true => Ok(()),
                false => Err(format!(
                    "Error: \n Problem: conflicting requests for {name}\n"
                )),
            };
        }
        self.chosen.insert(name.to_owned(), version.to_owned());
        if dpkg::installed(self.files, name).as_deref() == Some(version) {
            return Ok(());
        }
        let package = self.state.archive.package(name, version).clone();
        for other in &package.conflicts {
            if dpkg::installed(self.files, other).is_some() && !self.going.contains(other) {
                return Err(format!(
                    "Error: \n Problem: problem with installed package {other}\n  - package \
                     {name}-{version}.x86_64 conflicts with {other}\n  - conflicting requests\n"
                ));
            }
        }
        for spec in &package.depends {
            let same = spec.strip_suffix(" = self");
            let needed = same.unwrap_or(spec);
            if same.is_none()
                && (dpkg::installed(self.files, needed).is_some()
                    || self.chosen.contains_key(needed))
            {
                continue;
            }
            let version = match same {
                Some(_) => Some(package.version.clone()),
                None => self.named.get(needed).cloned().or_else(|| {
                    let mut offers = offers_to(self.files, needed, self.line).into_iter();
                    offers.next().map(|(version, _)| version)
                }),
            };
            let Some(version) = version else {
                return Err(format!(
                    "Error: \n Problem: conflicting requests\n  - nothing provides {needed} needed \
                     by {name}-{}.x86_64\n",
                    package.version
                ));
            };
            self.take(needed, &version)?;
        }
        for spec in package.recommends.iter().filter(|_| self.line.weak) {
            if let Some((version, _)) = offers_to(self.files, spec, self.line).into_iter().next() {
                self.take(spec, &version)?;
            }
        }
        self.order.push(name.to_owned());
        Ok(())
    }
}

/// A package and its version in a specification such as `NAME-3:1.2-3`.
fn specified(
    files: &FakeFiles,
    state: &State,
    line: &Line,
    spec: &str,
) -> Option<(String, String)> {
    let offered = |name: &str| {
        let offers = offers_to(files, name, line).into_iter();
        offers.map(|(version, _)| version)
    };
    let exact = (state.archive.packages.iter())
        .find(|one| spec == format!("{}-{}", one.name, one.version))
        .filter(|one| offered(&one.name).any(|version| version == one.version));
    match exact {
        Some(one) => Some((one.name.clone(), one.version.clone())),
        None => Some((spec.to_owned(), offered(spec).next()?)),
    }
}

pub fn row(title: &str, name: &str, version: &str, repository: &str) -> String {
    format!("{title}:\n {name}  x86_64  {version}  {repository}  100 k\n")
}

/// A transaction table. The installed size is shown only if no package is removed.
fn shown(table: &str, downloads: usize, only_new: bool) -> String {
    let size = 100 * downloads;
    let unpacked = match only_new {
        true => format!("Installed size: {size} k\n"),
        false => String::new(),
    };
    format!(
        "Dependencies resolved.\n{table}\nTransaction Summary\nTotal download size: {size} k\n{unpacked}"
    )
}

fn transaction(
    cmd: &Cmd,
    files: &FakeFiles,
    state: &mut State,
    line: &Line,
    requested: Vec<String>,
    going: Vec<String>,
) -> Result<Output, ExecError> {
    let verifies = (cmd.args.iter()).any(|arg| arg == "--setopt=localpkg_gpgcheck=1");
    assert_eq!(
        verifies,
        line.files.is_empty(),
        "signatures of files: {}",
        cmd.line()
    );
    let named = (requested.iter())
        .filter_map(|spec| specified(files, state, line, spec))
        .collect();
    let mut solver = Solver {
        files,
        state,
        line,
        going: &going,
        named,
        chosen: BTreeMap::new(),
        order: Vec::new(),
    };
    let mut asked = Vec::new();
    for spec in &requested {
        let Some((name, version)) = specified(files, solver.state, line, spec) else {
            let is_hidden = (state.archive.packages.iter()).any(|one| {
                (*spec == one.name || *spec == format!("{}-{}", one.name, one.version))
                    && known(files, &one.name, line.all_streams)
                        .iter()
                        .any(|(version, _)| *version == one.version)
            });
            let why = match is_hidden {
                true => format!(
                    "All matches were filtered out by exclude filtering for argument: {spec}"
                ),
                false => format!("No match for argument: {spec}"),
            };
            return Ok(failed(
                1,
                format!("{why}\nError: Unable to find a match: {spec}\n"),
            ));
        };
        if let Err(why) = solver.take(&name, &version) {
            return Ok(failed(1, why));
        }
        asked.push(name);
    }
    let (order, chosen) = (solver.order, solver.chosen);
    let mut table = String::new();
    for name in &order {
        let title = match dpkg::installed(files, name) {
            Some(now) if compare(&chosen[name], &now).is_lt() => "Downgrading",
            Some(_) => "Upgrading",
            None => "Installing",
        };
        let mut offered = known(files, name, true);
        offered.extend(offers_to(files, name, line));
        let repository = (offered.iter()).find(|(version, _)| *version == chosen[name]);
        table.push_str(&row(
            title,
            name,
            &chosen[name],
            repository.map_or("archive", |(_, id)| id),
        ));
    }
    for name in &going {
        let version = dpkg::installed(files, name).expect("it is there");
        table.push_str(&row("Removing", name, &version, "@System"));
    }
    if table.is_empty() {
        return Ok(ok("Dependencies resolved.\nNothing to do.\nComplete!\n"));
    }
    let is_new = |name: &String| dpkg::installed(files, name).is_none();
    let shown = shown(
        &table,
        order.len(),
        going.is_empty() && order.iter().all(is_new),
    );
    if line.simulate {
        return Ok(match line.shell {
            true => Output {
                stderr: "Error: Operation aborted.\n".to_owned(),
                ..ok(shown + "Nothing to do.\nComplete!\n")
            },
            false => Output {
                stdout: shown,
                ..failed(1, "Operation aborted.\n")
            },
        });
    }
    if line.download_only {
        if let Some(why) = state
            .faults
            .network
            .as_ref()
            .or(state.faults.download.as_ref())
        {
            return Ok(failed(
                1,
                format!("Error: Error downloading packages:\n  {why}\n"),
            ));
        }
        files.put(DOWNLOADED, order.join("\n"));
        return Ok(ok(shown));
    }
    assert!(
        line.cache_only,
        "packages come from the cache: {}",
        cmd.line()
    );
    let cached = text(files, DOWNLOADED).unwrap_or_default();
    if let Some(name) = order
        .iter()
        .find(|name| !cached.lines().any(|one| one == **name))
    {
        return Ok(failed(
            1,
            format!(
                "Package \"{name}\" from repository \"x\" has incorrect checksum\nError: Some packages \
                 have invalid cache, but cannot be downloaded due to \"--cacheonly\" option\n"
            ),
        ));
    }
    files.put(INTERRUPTED, "4242");
    let began: String = (order.iter())
        .map(|name| format!(" ** Install {name}-{}.x86_64 @archive\n", chosen[name]))
        .collect();
    files.put(
        LAST,
        format!("End rpmdb      : **\nPackages Altered:\n{began}"),
    );
    for name in &going {
        keep_changed_configuration(files, state, name);
        dpkg::remove(files, state, name, true);
    }
    let (mut auto, mut said) = (dpkg::auto(files), shown);
    for (at, name) in order.iter().enumerate() {
        if state.faults.power_cut && at >= order.len() / 2 {
            state.faults.power_cut = false;
            return Err(ExecError::Spawn {
                command: cmd.line(),
                why: "the test killed it in the middle".to_owned(),
            });
        }
        let package = state.archive.package(name, &chosen[name]).clone();
        match dpkg::installed(files, name) {
            Some(now) => dpkg::leave(files, state, name, &now, &package),
            // Existing packages keep their marks.
            None if asked.contains(name) => auto.retain(|one| one != name),
            None => auto.push(name.clone()),
        }
        said.push_str(&install(files, state, &package));
    }
    auto.retain(|name| dpkg::installed(files, name).is_some());
    dpkg::set_auto(files, auto);
    end(files);
    Ok(ok(said + "Complete!\n"))
}

/// Installs one package. A failed script does not make dnf fail.
fn install(files: &FakeFiles, state: &State, package: &Package) -> String {
    dpkg::unpack(files, package);
    match dpkg::configure(files, state, package) {
        Ok(()) => String::new(),
        Err(why) => {
            let mut database = dpkg::read(files);
            if let Some(entry) = database.get_mut(&package.name) {
                entry.state = "installed".to_owned();
            }
            dpkg::write(files, &database);
            format!(
                "{why}warning: %post({}-{}.x86_64) scriptlet failed, exit status 10\n",
                package.name, package.version
            )
        }
    }
}

fn end(files: &FakeFiles) {
    files.take(DOWNLOADED);
    files.take(INTERRUPTED);
    files.put(LAST, "End rpmdb      : fd9ac9\nPackages Altered:\n");
}

fn history(files: &FakeFiles) -> String {
    text(files, LAST).unwrap_or_else(|| "No transactions\n".to_owned())
}

fn reinstall(files: &FakeFiles, state: &State, line: &Line, specs: &[&str]) -> Output {
    let database = dpkg::read(files);
    let mut table = String::new();
    for spec in specs {
        let bare = spec.strip_suffix(".x86_64").unwrap_or(spec);
        let (name, entry) = (database.iter())
            .find(|(name, entry)| bare == format!("{name}-{}", entry.version))
            .unwrap_or_else(|| panic!("{spec} is not installed"));
        let offered = known(files, name, true);
        let repository = (offered.iter()).find(|(version, _)| *version == entry.version);
        let repository = repository.map_or("archive", |(_, id)| id);
        table.push_str(&row("Reinstalling", name, &entry.version, repository));
        if !line.simulate && !line.download_only {
            install(
                files,
                state,
                &state.archive.package(name, &entry.version).clone(),
            );
        }
    }
    let shown = shown(&table, specs.len(), true);
    if line.simulate {
        return Output {
            status: Status::Exited(1),
            stdout: shown,
            stderr: "Operation aborted.\n".to_owned(),
        };
    }
    if !line.download_only {
        end(files);
    }
    ok(shown)
}

/// The packages and all packages that depend on them.
fn with_dependents(files: &FakeFiles, state: &State, names: &[&str]) -> Vec<String> {
    let database = dpkg::read(files);
    // For install-only packages, list the version that is removed.
    let there = |wanted: &&str| {
        (database.iter())
            .find(|(name, entry)| {
                **wanted == *name.as_str() || **wanted == *format!("{name}-{}", entry.version)
            })
            .map(|(name, _)| name.clone())
    };
    let mut going: Vec<String> = names.iter().filter_map(there).collect();
    loop {
        let needs = |name: &String, version: &str| {
            let packages = &state.archive.packages;
            let package = packages
                .iter()
                .find(|one| one.name == *name && one.version == version);
            package.is_some_and(|package| {
                (package.depends.iter()).any(|spec| {
                    let needed = spec.strip_suffix(" = self").unwrap_or(spec);
                    going.iter().any(|gone| gone == needed)
                })
            })
        };
        let more: Vec<String> = (database.iter())
            .filter(|(name, entry)| !going.contains(name) && needs(name, &entry.version))
            .map(|(name, _)| name.clone())
            .collect();
        if more.is_empty() {
            return going;
        }
        going.extend(more);
    }
}

/// Renames a modified configuration file, as rpm does.
fn keep_changed_configuration(files: &FakeFiles, state: &State, name: &str) {
    let Some(entry) = dpkg::read(files).remove(name) else {
        return;
    };
    for (path, content) in &state.archive.package(name, &entry.version).conffiles {
        if let Some(now) = text(files, path).filter(|now| now != content) {
            files.put(&format!("{path}.rpmsave"), now);
        }
    }
}
