//! Simulates the dpkg database, the effects of installing and removing packages, and `dpkg`.

use std::collections::{BTreeMap, BTreeSet};

use camino::Utf8Path;
use gpu_bootstrap::host::{
    Cmd, FileKind, Output, ReadFiles,
    fake::{FakeFiles, failed, ok},
};

use crate::{
    archive::{Package, field},
    boot, kernel,
    state::{State, arch, exists, list, on, text},
    units,
};

/// The database directory. The rpm database format is private, so the simulated rpm uses any path.
fn place(files: &FakeFiles, with_dpkg: &str, with_rpm: &str) -> String {
    match crate::rpm::is_used(files) {
        true => with_rpm.to_owned(),
        false => with_dpkg.to_owned(),
    }
}

fn status(files: &FakeFiles) -> String {
    place(
        files,
        "/var/lib/dpkg/status",
        "/var/lib/rpm/simulated-status",
    )
}

fn directory(files: &FakeFiles) -> String {
    place(files, "/var/lib/dpkg/info", "/var/lib/rpm/simulated-info")
}

fn extended(files: &FakeFiles) -> String {
    place(
        files,
        "/var/lib/apt/extended_states",
        "/var/lib/dnf/simulated-marks",
    )
}

/// A field of a package entry.
pub fn info(files: &FakeFiles, name: &str, part: &str) -> Option<String> {
    text(files, &format!("{}/{name}.{part}", directory(files)))
}

const MAINTAINER: &str = "Debian <packages@debian.example>";

/// One paragraph of the database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub want: String,
    pub state: String,
    pub version: String,
    pub maintainer: String,
}

impl Entry {
    pub fn there(&self) -> bool {
        self.state != "config-files"
    }
}

/// The database.
pub fn read(files: &FakeFiles) -> BTreeMap<String, Entry> {
    let content = text(files, &status(files)).unwrap_or_default();
    content
        .split("\n\n")
        .filter_map(|paragraph| {
            let name = field(paragraph, "Package")?;
            let status = field(paragraph, "Status").expect("a package has a status");
            let words: Vec<&str> = status.split(' ').collect();
            let entry = Entry {
                want: words[0].to_owned(),
                state: words[2].to_owned(),
                version: field(paragraph, "Version").unwrap_or_default(),
                maintainer: field(paragraph, "Maintainer").unwrap_or_default(),
            };
            Some((name, entry))
        })
        .collect()
}

pub fn write(files: &FakeFiles, database: &BTreeMap<String, Entry>) {
    let content: String = database
        .iter()
        .map(|(name, entry)| {
            format!(
                "Package: {name}\nStatus: {} ok {}\nMaintainer: {}\nArchitecture: amd64\n\
                 Version: {}\nDescription: {name}\n\n",
                entry.want, entry.state, entry.maintainer, entry.version
            )
        })
        .collect();
    files.put(&status(files), on(&arch(files), &content));
}

/// The version of an unpacked package.
pub fn installed(files: &FakeFiles, name: &str) -> Option<String> {
    read(files)
        .remove(name)
        .filter(Entry::there)
        .map(|entry| entry.version)
}

/// Packages marked as automatically installed.
pub fn auto(files: &FakeFiles) -> Vec<String> {
    let content = text(files, &extended(files)).unwrap_or_default();
    content
        .split("\n\n")
        .filter(|paragraph| field(paragraph, "Auto-Installed").as_deref() == Some("1"))
        .filter_map(|paragraph| field(paragraph, "Package"))
        .collect()
}

pub fn set_auto(files: &FakeFiles, mut names: Vec<String>) {
    names.sort();
    names.dedup();
    let content: String = names
        .iter()
        .map(|name| format!("Package: {name}\nArchitecture: amd64\nAuto-Installed: 1\n\n"))
        .collect();
    files.put(&extended(files), on(&arch(files), &content));
}

/// Removes the files that are missing in the new package version, and compiled modules.
pub fn leave(files: &FakeFiles, state: &State, name: &str, version: &str, new: &Package) {
    let archive = &state.archive.packages;
    let old = (archive.iter()).find(|one| one.name == name && one.version == version);
    if let Some(module) = old.and_then(|old| old.dkms.as_ref()) {
        kernel::dkms_remove(files, module);
    }
    if let Some((release, _)) = old.and_then(|old| old.module.as_ref()) {
        boot::take_packaged(files, release);
    }
    let stays = |path: &str| {
        new.files.iter().any(|one| one == path)
            || new.contents.contains_key(path)
            || new.links.contains_key(path)
            || new.conffiles.contains_key(path)
    };
    for path in owned_files(files, name).iter().filter(|path| !stays(path)) {
        take(files, path);
    }
}

/// Writes the path list of a package. dpkg lists also contain the parent directories.
fn put_list(files: &FakeFiles, name: &str, paths: &[impl AsRef<str>]) {
    let mut all = BTreeSet::new();
    for path in paths {
        match crate::rpm::is_used(files) {
            true => all.insert(path.as_ref()),
            false => {
                let above = Utf8Path::new(path.as_ref()).ancestors();
                all.extend(above.map(|one| if one == "/" { "/." } else { one.as_str() }));
                true
            }
        };
    }
    let lines: String = all.iter().map(|path| format!("{path}\n")).collect();
    files.put(&format!("{}/{name}.list", directory(files)), lines);
}

/// The paths in a package list, without directories.
fn owned_files(files: &FakeFiles, name: &str) -> Vec<String> {
    let listed = info(files, name, "list").unwrap_or_default();
    let is_file = |path: &&str| {
        let stat = files
            .stat(Utf8Path::new(path))
            .expect("the path can be inspected");
        stat.is_some_and(|stat| stat.kind != FileKind::Directory)
    };
    listed.lines().filter(is_file).map(str::to_owned).collect()
}

/// Unpacks a package, without configuring it.
pub fn unpack(files: &FakeFiles, package: &Package) {
    let mut database = read(files);
    let mut listed = Vec::new();
    for path in &package.files {
        files.put(path, "");
        listed.push(path.clone());
    }
    for (path, content) in &package.contents {
        files.put(path, content.clone());
        listed.push(path.clone());
    }
    for (path, target) in &package.links {
        if exists(files, path) {
            files.take(path);
        }
        files.put_link(path, target);
        listed.push(path.clone());
    }
    for (path, content) in &package.conffiles {
        // Keep an existing file, as with `--force-confold`.
        if !exists(files, path) {
            files.put(path, content.clone());
        }
        listed.push(path.clone());
    }
    put_list(files, &package.name, &listed);
    if !package.conffiles.is_empty() {
        let names: Vec<&str> = package.conffiles.keys().map(String::as_str).collect();
        files.put(
            &format!("{}/{}.conffiles", directory(files), package.name),
            names.join("\n") + "\n",
        );
    }
    database.insert(
        package.name.clone(),
        Entry {
            // This removes a hold, so the caller must hold the package again.
            want: "install".to_owned(),
            state: "unpacked".to_owned(),
            version: package.version.clone(),
            maintainer: if package.maintainer.is_empty() {
                MAINTAINER.to_owned()
            } else {
                package.maintainer.clone()
            },
        },
    );
    write(files, &database);
}

/// Runs the package script. After a failure, the package remains half-configured.
pub fn configure(files: &FakeFiles, state: &State, package: &Package) -> Result<(), String> {
    let set = |word: &str| {
        let mut database = read(files);
        if let Some(entry) = database.get_mut(&package.name) {
            entry.state = word.to_owned();
        }
        write(files, &database);
    };
    set("half-configured");
    if let Some(path) = &state.faults.beside {
        files.put(path, "theirs\n");
    }
    if let Some(release) = kernel_of(&package.name, &package.version, &arch(files)) {
        boot::install(files, &release);
    }
    if let Some((release, version)) = &package.module {
        boot::put_packaged(files, release, version, package.name.contains("-open"));
    }
    if package.dkms.is_some() {
        kernel::build_all(files, state)?;
    }
    for unit in &package.units {
        units::enable(files, unit);
        // `deb-systemd-invoke` ignores units that fail to start.
        let _ = units::start(files, state, unit);
    }
    set("installed");
    Ok(())
}

/// The kernel in a package.
fn kernel_of(package: &str, version: &str, arch: &str) -> Option<String> {
    if package == "kernel-core" {
        return Some(format!("{version}.{arch}"));
    }
    package
        .strip_prefix("linux-image-")
        .filter(|release| release.starts_with(|c: char| c.is_ascii_digit()))
        .map(str::to_owned)
}

/// Removes a package, with `purge` including its configuration.
pub fn remove(files: &FakeFiles, state: &State, name: &str, purge: bool) {
    let mut database = read(files);
    let Some(entry) = database.get(name).cloned() else {
        return;
    };
    let conffiles =
        text(files, &format!("{}/{name}.conffiles", directory(files))).unwrap_or_default();
    let conffiles: Vec<&str> = conffiles.lines().collect();
    if entry.there() {
        let package = state.archive.package(name, &entry.version).clone();
        for unit in &package.units {
            units::stop(files, unit);
            units::disable(files, unit);
        }
        if let Some(module) = &package.dkms {
            kernel::dkms_remove(files, module);
        }
        if let Some((release, _)) = &package.module {
            boot::take_packaged(files, release);
        }
        if let Some(release) = kernel_of(name, &entry.version, &arch(files)) {
            boot::remove(files, &release);
        }
        for path in owned_files(files, name) {
            if !conffiles.contains(&path.as_str()) {
                take(files, &path);
            }
        }
        put_list(files, name, &conffiles);
    }
    if purge || conffiles.is_empty() {
        for path in &conffiles {
            take(files, path);
        }
        files.take(&format!("{}/{name}.list", directory(files)));
        files.take(&format!("{}/{name}.conffiles", directory(files)));
        database = read(files);
        database.remove(name);
    } else {
        database = read(files);
        if let Some(entry) = database.get_mut(name) {
            entry.want = "deinstall".to_owned();
            entry.state = "config-files".to_owned();
        }
    }
    write(files, &database);
    set_auto(
        files,
        auto(files)
            .into_iter()
            .filter(|auto| auto != name)
            .collect(),
    );
}

/// Removes a file and directories that become empty.
pub fn take(files: &FakeFiles, path: &str) {
    files.take(path);
    let mut directory = path;
    while let Some((parent, _)) = directory.rsplit_once('/') {
        // These directories belong to packages that are always installed.
        let kept = parent.is_empty()
            || matches!(
                parent,
                "/etc"
                    | "/etc/modprobe.d"
                    | "/usr"
                    | "/usr/bin"
                    | "/usr/sbin"
                    | "/lib"
                    | "/var/lib"
            )
            || parent.starts_with("/etc/systemd")
            || !list(files, parent).is_empty();
        if kept {
            break;
        }
        files.take(parent);
        directory = parent;
    }
}

/// `dpkg`.
pub fn dpkg(cmd: &Cmd, files: &FakeFiles, state: &State) -> Output {
    let args: Vec<&str> = cmd.args.iter().map(String::as_str).collect();
    match args[..] {
        [
            "--force-confdef",
            "--force-confold",
            "--configure",
            "--pending",
        ] => {
            set_triggers(files, None, "installed");
            configure_pending(files, state, &[])
        }
        ["--no-triggers", "--triggers-only", "--", ref names @ ..] if !names.is_empty() => {
            set_triggers(files, Some(names), "installed");
            let lines = names
                .iter()
                .map(|name| format!("Processing triggers for {name} ...\n"));
            ok(lines.collect::<String>())
        }
        _ => panic!("the simulated dpkg does not support `{}`", cmd.line()),
    }
}

/// Packages whose triggers the scripts of all packages activate.
const INTERESTED: [&str; 2] = ["libc-bin", "initramfs-tools"];

/// Sets the state of packages whose triggers are activated or run.
pub fn set_triggers(files: &FakeFiles, only: Option<&[&str]>, state: &str) {
    let mut database = read(files);
    for (name, entry) in &mut database {
        let named = only.is_none_or(|only| {
            only.iter()
                .any(|one| one.split(':').next() == Some(name.as_str()))
        });
        let configured = ["installed", "triggers-pending"].contains(&entry.state.as_str());
        if named && configured && INTERESTED.contains(&name.as_str()) {
            state.clone_into(&mut entry.state);
        }
    }
    write(files, &database);
}

/// Configures all unpacked packages, starting with `first`. Continues after a failure.
pub fn configure_pending(files: &FakeFiles, state: &State, first: &[String]) -> Output {
    let pending = |database: &BTreeMap<String, Entry>, name: &str| {
        let state = database.get(name).map(|entry| entry.state.as_str());
        matches!(state, Some("unpacked" | "half-configured"))
    };
    let database = read(files);
    let rest = database.keys().filter(|name| !first.contains(name));
    let mut left: Vec<&String> = (first.iter().chain(rest))
        .filter(|name| pending(&database, name))
        .collect();
    let (mut said, mut errors, mut broken_ones) = (String::new(), String::new(), Vec::new());
    // Dependencies first. Packages with a broken dependency remain unconfigured.
    while !left.is_empty() {
        let now = read(files);
        let package = |name: &str| state.archive.package(name, &database[name].version);
        let is_ready = |name: &&String| {
            !(package(name).depends.iter()).any(|spec| {
                let spec = spec.split(" = ").next().unwrap_or(spec);
                spec.split(" | ").all(|one| pending(&now, one))
            })
        };
        let Some(at) = left.iter().position(is_ready) else {
            for name in &left {
                errors.push_str(&format!(
                    "dpkg: error processing package {name} (--configure):\n dependency problems - \
                     leaving unconfigured\n"
                ));
                broken_ones.push((*name).clone());
            }
            break;
        };
        let name = left.remove(at);
        said.push_str(&format!(
            "Setting up {name} ({}) ...\n",
            database[name].version
        ));
        if let Err(why) = configure(files, state, &package(name).clone()) {
            errors.push_str(&broken(name, &why));
            broken_ones.push(name.clone());
        }
    }
    if !broken_ones.is_empty() {
        errors.push_str(&format!(
            "Errors were encountered while processing:\n {}\n",
            broken_ones.join("\n ")
        ));
    }
    for name in list(files, "/var/lib/dpkg/updates") {
        files.take(&format!("/var/lib/dpkg/updates/{name}"));
    }
    if errors.is_empty() {
        ok(said)
    } else {
        failed(1, errors)
    }
}

/// dpkg's message about a failed script.
pub fn broken(name: &str, why: &str) -> String {
    format!(
        "{why}\ndpkg: error processing package {name} (--configure):\n installed {name} package \
         post-installation script subprocess returned error exit status 10\n"
    )
}
