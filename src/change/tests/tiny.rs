//! A fake third package manager, as small as possible. It shows which methods a new backend needs, and which assumptions the
//! code above the backends must not make. Its program is `tiny`, and each line of its database is
//! `NAME VERSION [held] [automatic] [half] [gone]`.

use std::{cmp::Ordering, collections::BTreeSet};

use async_trait::async_trait;
use camino::{Utf8Path, Utf8PathBuf};

use super::archive::Installed;
use crate::{
    host::{Cmd, FilesError, Query, ReadFiles, Reader},
    model::packages::Repository,
    tools::packages::{
        Action, AvailablePackage, Backend, Commands, Database, DatabaseError, FailureClass, Mark,
        Messages, Offers, Package, PackageCondition, Removals, Settings, Sources,
        TransactionRequest, Transactions,
    },
};

pub(super) const DATABASE: &str = "/var/lib/tiny/database";
pub(super) const OWNED: &str = "/var/lib/tiny/owned";
pub(super) const LOCK: &str = "/var/lib/tiny/lock";

/// The backend of the fake package manager `tiny`.
#[derive(Debug)]
pub(super) struct Tiny;

/// A line of the database.
pub(super) fn line(name: &str, package: &Installed) -> String {
    let mut line = format!("{name} {}", package.version);
    for (set, word) in [
        (package.held, "held"),
        (package.auto, "automatic"),
        (package.half, "half"),
        (package.gone, "gone"),
    ] {
        if set {
            line.push(' ');
            line.push_str(word);
        }
    }
    line + "\n"
}

/// The output of a failure: the class as a word, then a description.
pub(super) fn words(class: FailureClass, what: &str) -> String {
    format!("failed({}): {what}", class.reason())
}

fn lines(files: &dyn ReadFiles) -> Result<Vec<Vec<String>>, FilesError> {
    let text = files.read_text(DATABASE.into())?.unwrap_or_default();
    Ok(text
        .lines()
        .map(|line| line.split(' ').map(str::to_owned).collect())
        .collect())
}

impl Backend for Tiny {
    fn name(&self) -> &'static str {
        "tiny"
    }
}

#[async_trait]
impl Database for Tiny {
    fn is_used_on(&self, files: &dyn ReadFiles) -> Result<bool, FilesError> {
        files.exists(DATABASE.into())
    }

    async fn database(&self, host: Reader<'_>) -> Result<Option<Vec<Package>>, DatabaseError> {
        let has = |line: &[String], word: &str| line.iter().any(|other| other == word);
        let packages = lines(host.files())?.into_iter().map(|line| Package {
            name: line[0].clone(),
            id: line[0].clone(),
            architecture: String::new(),
            version: line[1].clone(),
            condition: match () {
                () if has(&line, "gone") => PackageCondition::Configuration,
                () if has(&line, "half") => PackageCondition::Unpacked,
                () => PackageCondition::Installed,
            },
            held: has(&line, "held"),
            packager: None,
            vendor: None,
            installed_bytes: 0,
        });
        Ok(Some(packages.collect()))
    }

    fn database_path(&self) -> &'static str {
        DATABASE
    }

    async fn automatic(
        &self,
        host: Reader<'_>,
        _: &[Package],
    ) -> Result<BTreeSet<String>, DatabaseError> {
        Ok((lines(host.files())?.into_iter())
            .filter(|line| line.iter().any(|word| word == "automatic"))
            .map(|mut line| line.swap_remove(0))
            .collect())
    }

    async fn owned_below(
        &self,
        host: Reader<'_>,
        directory: &Utf8Path,
    ) -> Result<BTreeSet<Utf8PathBuf>, DatabaseError> {
        let mut owned = BTreeSet::new();
        for name in host.files().list(OWNED.into())? {
            let path = Utf8Path::new(OWNED).join(name);
            let text = host.files().read_text(&path)?.unwrap_or_default();
            owned.extend(text.lines().map(Utf8PathBuf::from));
        }
        owned.retain(|path| path.starts_with(directory));
        Ok(owned)
    }

    async fn owned_by(
        &self,
        host: Reader<'_>,
        packages: &BTreeSet<String>,
    ) -> Result<BTreeSet<Utf8PathBuf>, DatabaseError> {
        let mut owned = BTreeSet::new();
        for name in packages {
            let list = host
                .files()
                .read_text(format!("{OWNED}/{name}").as_str().into())?;
            owned.extend(list.unwrap_or_default().lines().map(Utf8PathBuf::from));
        }
        Ok(owned)
    }

    fn compare(&self, a: &str, b: &str) -> Ordering {
        let parts = |version: &str| -> Vec<u64> {
            let parts = version.split('.').map(str::parse);
            parts.collect::<Result<_, _>>().unwrap_or_default()
        };
        parts(a).cmp(&parts(b))
    }
}

impl Sources for Tiny {
    fn keyring_path(&self, repository: &Repository) -> Option<Utf8PathBuf> {
        Some(format!("/etc/tiny/{}.key", repository.name).into())
    }

    fn source(&self, repository: &Repository) -> (Utf8PathBuf, String) {
        let path = format!("/etc/tiny/{}", repository.name);
        (path.into(), repository.url.clone())
    }
}

impl Offers for Tiny {
    fn has_lists(&self, _: &dyn ReadFiles) -> Result<bool, FilesError> {
        Ok(true)
    }

    fn refresh(&self, _: &Settings, _: bool) -> Cmd {
        Cmd::new("tiny", ["refresh"])
    }

    fn offers(&self, names: &[&str]) -> Query {
        Query::new("tiny", ["offers"].iter().chain(names).copied())
    }

    fn parse_offers(&self, text: &str) -> Vec<AvailablePackage> {
        text.lines()
            .filter_map(|line| line.split_once(' '))
            .map(|(name, versions)| AvailablePackage {
                name: name.to_owned(),
                candidate: versions.split(' ').next().map(str::to_owned),
                versions: (versions.split(' '))
                    .map(|version| (version.to_owned(), 0))
                    .collect(),
                forbidden: Vec::new(),
                only_installed: None,
            })
            .collect()
    }
}

impl Transactions for Tiny {
    fn locks(&self) -> &'static [&'static str] {
        &[LOCK]
    }

    fn simulate(&self, _: &Settings, request: &TransactionRequest<'_>) -> Query {
        Query::new("tiny", tiny(&["simulate"], request_words(request)))
    }

    fn parse_actions(&self, text: &str, _: &[Package]) -> Vec<Action> {
        let some = |word: &str| (word != "-").then(|| word.to_owned());
        text.lines()
            .filter_map(|line| {
                let words: Vec<&str> = line.split(' ').collect();
                let [name, from, to] = words[..] else {
                    return None;
                };
                Some(match some(to) {
                    Some(to) => Action::Install {
                        name: name.to_owned(),
                        from: some(from),
                        to,
                    },
                    None => Action::Remove {
                        name: name.to_owned(),
                        version: from.to_owned(),
                    },
                })
            })
            .collect()
    }

    fn download(&self, _: &Settings, request: &TransactionRequest<'_>) -> Cmd {
        Cmd::new("tiny", tiny(&["download"], request_words(request)))
    }

    fn perform(&self, _: &Settings, request: &TransactionRequest<'_>, removals: Removals) -> Cmd {
        let may = match removals {
            Removals::None => "keep-all",
            Removals::Approved => "as-approved",
        };
        Cmd::new("tiny", tiny(&["perform", may], request_words(request)))
    }

    fn configure(&self) -> Option<Cmd> {
        Some(Cmd::new("tiny", ["configure"]))
    }

    fn mark(&self, mark: Mark, packages: &[String]) -> Cmd {
        let word = match mark {
            Mark::Hold => "hold",
            Mark::Unhold => "unhold",
            Mark::Automatic => "auto",
        };
        Cmd::new("tiny", tiny(&["mark", word], packages.to_vec()))
    }

    fn at_version(&self, name: &str, version: &str) -> String {
        format!("{name}={version}")
    }
}

impl Messages for Tiny {
    fn commands(&self) -> Commands {
        Commands {
            unhold: "tiny mark unhold NAME",
            clean: "tiny clean",
            refresh: "tiny refresh",
            install_version: "tiny install NAME VERSION",
            upgrade: "tiny upgrade NAME",
            compiler: None,
            versions: "",
            containing: None,
            headers: "tiny install headers-KERNEL",
            reinstall: "tiny perform keep-all install NAME",
            install_kernel: "tiny install kernel-KERNEL",
            install: "tiny perform keep-all install NAME",
            upgrade_kernel: "tiny perform keep-all install linux",
            extra_modules: "`modules-KERNEL`",
            credentials: "`/etc/tiny/logins`",
        }
    }

    fn downgrade_command(&self, packages: &[String]) -> String {
        format!("tiny perform as-approved install {}", packages.join(" "))
    }

    fn failure_class(&self, output: &str) -> FailureClass {
        const KNOWN: [FailureClass; 8] = [
            FailureClass::Locked,
            FailureClass::NoSpace,
            FailureClass::Stale,
            FailureClass::Network,
            FailureClass::NotFound,
            FailureClass::Held,
            FailureClass::Moved,
            FailureClass::Build,
        ];
        (KNOWN.into_iter())
            .find(|class| output.contains(&format!("failed({})", class.reason())))
            .unwrap_or(FailureClass::Other)
    }

    fn telling_line<'t>(&self, output: &'t str) -> Option<&'t str> {
        output.lines().find(|line| line.starts_with("failed("))
    }
}

fn words_of(verb: &str, names: &[String]) -> Vec<String> {
    let verb = [verb.to_owned()].into_iter();
    verb.chain(names.iter().cloned()).collect()
}

fn request_words(request: &TransactionRequest<'_>) -> Vec<String> {
    match request {
        TransactionRequest::Install { packages, removing }
        | TransactionRequest::Move { packages, removing } => {
            let is_move = matches!(request, TransactionRequest::Move { .. });
            let verb = if is_move { "move" } else { "install" };
            let going = removing.iter().map(|name| format!("{name}-"));
            let words = [verb.to_owned()].into_iter();
            words.chain(packages.iter().cloned()).chain(going).collect()
        }
        TransactionRequest::Purge(names) => words_of("purge", names),
        TransactionRequest::Remove(names) => words_of("remove", names),
        TransactionRequest::Reinstall(names) => words_of("reinstall", names),
        TransactionRequest::Fix => vec!["fix".to_owned()],
    }
}

fn tiny(first: &[&str], rest: Vec<String>) -> Vec<String> {
    first.iter().map(ToString::to_string).chain(rest).collect()
}
