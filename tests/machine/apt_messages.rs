//! Output of the simulated `apt-get` for a transaction.

use crate::state::State;

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
