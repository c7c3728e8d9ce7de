//! Output of the simulated `apt-get` for a transaction.

use gpu_bootstrap::host::{
    Output,
    fake::{FakeFiles, failed, ok},
};

use crate::{
    archive::{digest, offers},
    state::State,
};

/// The changes of a transaction.
#[derive(Debug, Default)]
pub struct Transaction {
    /// Name, installed version and new version. Dependencies come first.
    pub installs: Vec<(String, Option<String>, String)>,
    pub removes: Vec<(String, String)>,
    /// The packages that the command line names.
    pub asked: Vec<String>,
}

/// The answer of `--print-uris`. All packages have the same size.
pub fn addresses(state: &State, transaction: &Transaction) -> String {
    if transaction.installs.is_empty() {
        return String::new();
    }
    let mut said = format!(
        "After this operation, {} MB of additional disk space will be used.\n",
        transaction.installs.len()
    );
    for (name, _, to) in &transaction.installs {
        said.push_str(&address(state, name, to));
    }
    said
}

/// The answer of `download --print-uris`: a line for each package in the lists, and an error if one is missing.
pub fn downloads(files: &FakeFiles, state: &State, specs: &[String]) -> Output {
    let (mut said, mut errors) = (String::new(), String::new());
    for spec in specs {
        let (name, version) = spec.split_once('=').expect("NAME=VERSION");
        match offers(files, name).iter().any(|one| one.version == version) {
            true => {
                let digest = format!("SHA256:{}", digest(name, version));
                said.push_str(&address(state, name, version).replace("MD5Sum:0", &digest));
            }
            false => errors.push_str(&format!(
                "E: Can't find a source to download version '{version}' of '{name}:amd64'\n"
            )),
        }
    }
    Output {
        stdout: said,
        ..if errors.is_empty() {
            ok("")
        } else {
            failed(100, errors)
        }
    }
}

/// The line about one file. Neither the file on the mirror nor its address has the epoch.
fn address(state: &State, name: &str, version: &str) -> String {
    let repo = &state.archive.package(name, version).repo;
    let repo = state.archive.repos.iter().find(|other| other.name == *repo);
    let url = repo.map_or("http://debian.example.org/debian", |repo| &repo.url);
    let url = url.trim_end_matches('/');
    let bare = version.split_once(':').map_or(version, |(_, bare)| bare);
    let kept = version.replace(':', "%3a");
    format!("'{url}/pool/{name}_{bare}_amd64.deb' {name}_{kept}_amd64.deb 100000 MD5Sum:0\n")
}

pub fn tell(state: &State, transaction: &Transaction) -> String {
    let mut said = String::from("NOTE: This is only a simulation!\n");
    for (name, version) in &transaction.removes {
        said.push_str(&format!("Remv {name} [{version}]\n"));
    }
    for word in ["Inst", "Conf"] {
        for (name, now, to) in &transaction.installs {
            let repo = &state.archive.package(name, to).repo;
            let now = match (word, now) {
                ("Inst", Some(now)) => format!(" [{now}]"),
                _ => String::new(),
            };
            said.push_str(&format!(
                "{word} {name}{now} ({to} {repo}:12/stable [amd64])\n"
            ));
        }
    }
    said
}
