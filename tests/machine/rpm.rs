//! Simulates `rpm` on the files of the machine.

use gpu_bootstrap::{
    host::{
        Cmd, Output, ReadFiles,
        fake::{FakeFiles, ok},
    },
    tools::openpgp,
};

use crate::{
    dpkg, prebuilt,
    state::{State, exists, text},
};

/// `rpm`.
pub fn rpm(cmd: &Cmd, files: &FakeFiles, state: &State) -> Output {
    let args: Vec<&str> = cmd.args.iter().map(String::as_str).collect();
    let database = dpkg::read(files);
    let listed = |names: &[&str], what: &str| -> String {
        let one = |name: &&str| dpkg::info(files, name, what).unwrap_or_default();
        names.iter().map(one).collect()
    };
    let names: Vec<&str> = database.keys().map(String::as_str).collect();
    match args[..] {
        ["-qa", "--qf", format] if format.starts_with("[%{FILENAMES}") => {
            ok(listed(&names, "list"))
        }
        ["-qa", "--qf", _] => {
            let lines = database
                .iter()
                .map(|(name, entry)| line(name, &entry.version, &entry.maintainer));
            ok(lines.collect::<String>() + &state.rpm)
        }
        ["-qa", "gpg-pubkey", ..] => {
            ok(text(files, "/var/lib/rpm/simulated-keys").unwrap_or_default())
        }
        ["-e", "--allmatches", "--", ..] => {
            files.take("/var/lib/rpm/simulated-keys");
            ok("")
        }
        ["-q", "--qf", format, "--", ref names @ ..] if format.starts_with("\\tpackage") => {
            let there = |name: &&str| {
                let entry = database.get(*name)?;
                Some(state.archive.package(name, &entry.version))
            };
            let relations = names.iter().filter_map(there).map(prebuilt::relations);
            ok(relations.collect::<String>())
        }
        ["-q", "--qf", _, "--", ref names @ ..] => ok(listed(names, "list")),
        _ => panic!("the simulated rpm does not support `{}`", cmd.line()),
    }
}

fn line(name: &str, version: &str, packager: &str) -> String {
    let (epoch, rest) = version.split_once(':').unwrap_or(("(none)", version));
    let (version, release) = rest.split_once('-').expect("a release");
    format!("{name}\tx86_64\t{epoch}\t{version}\t{release}\t(none)\t{packager}\n")
}

/// Whether the machine uses rpm.
pub fn is_used(files: &FakeFiles) -> bool {
    exists(files, "/var/lib/rpm")
}

/// Whether a key file contains the key of a repository, which dnf uses to verify downloads.
pub fn trusts(files: &FakeFiles, path: &str, key: &str) -> bool {
    // If there are several files, the first has no URL scheme.
    path.split_whitespace().any(|path| {
        let path = path.strip_prefix("file://").unwrap_or(path);
        let bytes = files.read(path.into()).expect("a key can be read");
        let file = bytes.and_then(|bytes| openpgp::parse(&bytes).ok());
        file.is_some_and(|file| file.keys.iter().any(|found| found.fingerprint == *key))
    })
}
