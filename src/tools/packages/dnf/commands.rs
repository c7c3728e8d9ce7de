//! `dnf`: argument vectors that never ask, never wait without a time limit, and never allow what a
//! plan did not approve. All of it was tried with dnf 4.14 and rpm 4.18; for dnf 5 see
//! [`super::generation`].

use std::time::Duration;

use crate::{
    host::{Cmd, Query},
    model::secret::Secret,
    tools::packages::{Mark, Package, Settings, TransactionRequest},
};

use super::generation;

/// The time limit of a transaction. One with a DKMS build takes some minutes on a healthy machine.
const DEADLINE: Duration = Duration::from_secs(45 * 60);

/// The time limit without output and processor time. DKMS prints nothing while it compiles, but
/// uses a processor; without both, a package script hangs.
const SILENCE: Duration = Duration::from_secs(10 * 60);

/// The time limit to download the metadata of all repositories.
const REFRESH_DEADLINE: Duration = Duration::from_secs(15 * 60);

/// The time limit to resolve a transaction from metadata that is there already.
const RESOLVE_DEADLINE: Duration = Duration::from_secs(180);

/// Another dnf makes this one fail at once instead of waiting without a limit: this program waits, with
/// a limit, and names the holder.
const FAIL_IF_LOCKED: &str = "--setopt=exit_on_lock=1";

/// Options of every command, `dnf.conf(5)`.
const OPTIONS: [&str; 12] = [
    FAIL_IF_LOCKED,
    // The newest allowed version of each requested package, or an error: never quietly an older
    // one, and never without one of the requested packages.
    "--setopt=best=1",
    "--setopt=strict=1",
    // Packages of one vendor are not replaced by those of another.
    "--setopt=allow_vendor_change=0",
    // A new kernel takes none away: the default of three would remove the oldest one.
    "--setopt=installonly_limit=0",
    // Unneeded packages are not ours to remove.
    "--setopt=clean_requirements_on_remove=0",
    // A package file of this machine is verified like a download.
    "--setopt=localpkg_gpgcheck=1",
    // A repository that fails is a warning; this program decides whether it is needed.
    "--setopt=*.skip_if_unavailable=1",
    "--setopt=*.timeout=30",
    // What it prints is read: without the table of a transaction nothing could be approved.
    "--setopt=debuglevel=2",
    "--setopt=errorlevel=3",
    "--color=never",
];

/// Use the metadata that the last refresh downloaded, even if it is older than dnf wants by
/// default: what was simulated must not move before it is performed.
const AS_REFRESHED: [&str; 2] = [
    "--setopt=metadata_expire=-1",
    "--setopt=*.metadata_expire=-1",
];

/// Uses no repository: for what needs the database of installed packages only.
const NO_REPOSITORY: &str = "--disablerepo=*";

/// Without the plugin that locks versions: what a move does to each package is approved.
const NO_LOCKS: &str = "--disableplugin=versionlock";

/// An installed package stays one when another stream of its module is enabled, dnf.conf(5).
const ALL_STREAMS: &str = "--setopt=*.module_hotfixes=1";

/// Lists of files, of which some packages tell which kernel they are for. dnf of AlmaLinux 10 does not
/// download them by itself; an older dnf does, and warns that it does not know the option. A refresh
/// downloads them always: which packages will be looked into is not known then, and the question itself
/// must not download anything, because `plan` and `check` ask it.
const FILE_LISTS: &str = "--setopt=optional_metadata_types=filelists";

fn owned(words: &[&str]) -> impl Iterator<Item = String> {
    words.iter().map(|word| (*word).to_owned())
}

/// What is only recommended is not needed.
fn options() -> impl Iterator<Item = String> {
    owned(&OPTIONS).chain(owned(&["--setopt=install_weak_deps=0"]))
}

/// The environment of every command that may use the network. The proxy's URL is passed here and not
/// as an argument, because it may contain a password, and every user can read arguments. dnf reads
/// these variables through curl, unless `dnf.conf` names a proxy.
fn environment(settings: &Settings, mut cmd: Cmd) -> Cmd {
    if let Some(direct) = &settings.no_proxy {
        cmd = cmd.env("no_proxy", direct);
    }
    match &settings.proxy {
        Some(proxy) => cmd
            .secret_env("http_proxy", proxy)
            .secret_env("https_proxy", proxy),
        None => cmd,
    }
}

/// A name that cannot be an option: dnf takes patterns. Behind `--`, its `install` takes what begins with a dash for an
/// option all the same (4.14 of AlmaLinux 9).
fn operand(name: &str) -> String {
    match name.strip_prefix('-') {
        Some(rest) => format!("[-]{rest}"),
        None => name.to_owned(),
    }
}

/// The verb of a request with its arguments, and the script that it needs on standard input.
fn words(request: &TransactionRequest<'_>) -> (Vec<String>, Option<String>) {
    let verb = |words: &[&str], names: &[String]| {
        owned(words)
            .chain(names.iter().map(|name| operand(name)))
            .collect()
    };
    match request {
        TransactionRequest::Install {
            packages,
            removing: [],
        }
        | TransactionRequest::Move {
            packages,
            removing: [],
        } => (verb(&["install"], packages), None),
        // Only its shell removes and installs in one transaction.
        TransactionRequest::Install { packages, removing }
        | TransactionRequest::Move { packages, removing } => {
            // First what comes: dnf takes no more files of packages once it has another job.
            let install = match packages.is_empty() {
                true => String::new(),
                false => format!("install {}\n", packages.join(" ")),
            };
            let script = format!("{install}remove {}\nrun\n", removing.join(" "));
            (verb(&["shell", "/dev/stdin"], &[]), Some(script))
        }
        // With rpm, unchanged configuration goes with its package.
        TransactionRequest::Purge(names) | TransactionRequest::Remove(names) => {
            (verb(&["remove", "--noautoremove"], names), None)
        }
        TransactionRequest::Reinstall(names) => (verb(&["reinstall"], names), None),
        TransactionRequest::Fix => (verb(&["remove", "--duplicates"], &[]), None),
    }
}

fn transaction(settings: &Settings, first: &[&str], request: &TransactionRequest<'_>) -> Cmd {
    let mut args: Vec<String> = owned(first).chain(options()).collect();
    args.extend(owned(&AS_REFRESHED));
    if matches!(
        request,
        TransactionRequest::Purge(_) | TransactionRequest::Remove(_)
    ) {
        args.push(NO_REPOSITORY.to_owned());
    }
    if matches!(request, TransactionRequest::Move { .. }) {
        args.push(NO_LOCKS.to_owned());
    }
    if matches!(request, TransactionRequest::Reinstall(_)) {
        args.push(ALL_STREAMS.to_owned());
    }
    let (words, script) = words(request);
    args.extend(words);
    let cmd = environment(settings, Cmd::new("dnf", args))
        .deadline(DEADLINE)
        .silence(SILENCE);
    match script {
        Some(script) => cmd.stdin(Secret::new(script)),
        None => cmd,
    }
}

/// Downloads the metadata of all repositories. dnf has no option that bypasses proxy caches.
#[must_use]
pub fn refresh(settings: &Settings) -> Cmd {
    let mut args = vec!["-y".to_owned()];
    args.extend(options());
    args.extend(owned(&[FILE_LISTS, "--refresh", "makecache"]));
    environment(settings, Cmd::new("dnf", args))
        .deadline(REFRESH_DEADLINE)
        .silence(Duration::from_secs(180))
}

/// Resolves a transaction and changes nothing: the answer to its question is always no.
#[must_use]
pub fn simulate(settings: &Settings, request: &TransactionRequest<'_>) -> Query {
    let mut cmd = transaction(settings, &["--assumeno", "--cacheonly"], request);
    // It waits for other queries of this program, and its deadline bounds that.
    cmd.args.retain(|arg| arg != FAIL_IF_LOCKED);
    let query = Query::new("dnf", cmd.args).deadline(RESOLVE_DEADLINE);
    match cmd.stdin {
        Some(script) => query.stdin(script),
        None => query,
    }
}

/// Downloads what a transaction needs, and checks digests and signatures.
#[must_use]
pub fn download(settings: &Settings, request: &TransactionRequest<'_>) -> Cmd {
    transaction(settings, &["-y", "--downloadonly"], request)
}

/// Performs a transaction with what was downloaded. `install` never removes a package unless the new one
/// replaces it, so what the simulation did not remove stays. A removal, also in dnf's shell, takes along
/// what needs the package: it is simulated once more right before.
#[must_use]
pub fn perform(settings: &Settings, request: &TransactionRequest<'_>) -> Cmd {
    transaction(settings, &["-y", "--cacheonly"], request)
}

/// Queries the versions of packages that are offered; see [`super::offers`].
#[must_use]
pub fn offers(format: &'static str, names: &[&str]) -> Query {
    repoquery(&[], format, names)
}

/// The same of every module stream.
#[must_use]
pub fn offers_of_all_streams(format: &'static str, names: &[&str]) -> Query {
    repoquery(&[ALL_STREAMS], format, names)
}

fn repoquery(options: &[&str], format: &'static str, names: &[&str]) -> Query {
    let mut args: Vec<String> = owned(&["-q", "--cacheonly"]).collect();
    args.extend(owned(&AS_REFRESHED));
    args.extend(owned(options));
    if format.contains("%{files}") {
        args.push(FILE_LISTS.to_owned());
    }
    args.extend(owned(&[
        "--setopt=*.skip_if_unavailable=1",
        "repoquery",
        "--showduplicates",
        "--qf",
        format,
        "--",
    ]));
    args.extend(owned(names));
    Query::new("dnf", args).deadline(RESOLVE_DEADLINE)
}

/// Resolves an upgrade of the whole system and changes nothing. It obeys locks, as dnf-automatic does.
#[must_use]
pub fn upgrade() -> Query {
    let args = ["--assumeno", "--cacheonly"].iter();
    let args = args
        .chain(OPTIONS.iter().filter(|option| **option != FAIL_IF_LOCKED))
        .chain(&AS_REFRESHED)
        .chain(&["upgrade"]);
    Query::new("dnf", args.copied()).deadline(RESOLVE_DEADLINE)
}

/// Queries the last transaction in dnf's own history.
#[must_use]
pub fn last_transaction() -> Query {
    Query::new("dnf", [NO_REPOSITORY, "history", "info", "last"])
}

/// Changes the enabled stream of a module: `enable NAME:STREAM`, or `reset NAME`. The metadata that
/// describe the module may have to be downloaded first.
#[must_use]
pub fn module(settings: &Settings, verb: &'static str, name: &str) -> Cmd {
    let mut args = vec!["-y".to_owned()];
    args.extend(options());
    args.extend(owned(&["module", verb, "--", name]));
    environment(settings, Cmd::new("dnf", args))
        .deadline(REFRESH_DEADLINE)
        .silence(Duration::from_secs(180))
}

/// Marks packages as installed only because others need them. Holds are a file, see
/// [`super::versionlock`].
#[must_use]
pub fn mark(mark: Mark, packages: &[String]) -> Cmd {
    let words = match mark {
        Mark::Hold => ["versionlock", "add", "--"],
        Mark::Unhold => ["versionlock", "delete", "--"],
        Mark::Automatic => ["mark", generation::AS_DEPENDENCY, "--"],
    };
    let first = ["-y", FAIL_IF_LOCKED, NO_REPOSITORY];
    let args = owned(&first).chain(owned(&words));
    Cmd::new("dnf", args.chain(packages.iter().cloned())).deadline(RESOLVE_DEADLINE)
}

/// The command that moves a package to the newest version that is offered, also to an older one, for
/// hints: `dnf(8)`, distro-sync. A lock would keep the version that is not offered.
#[must_use]
pub fn to_offered(package: &Package) -> String {
    let options = if package.held {
        format!("{NO_LOCKS} ")
    } else {
        String::new()
    };
    format!("dnf {options}distro-sync {}", package.name)
}

/// A command line for people, without the options that every command has.
#[must_use]
pub fn short_line(cmd: &Cmd) -> String {
    let common = [
        "-y",
        "-q",
        "--color=never",
        "--cacheonly",
        "--noautoremove",
        "--",
    ];
    std::iter::once(cmd.program.as_str())
        .chain(cmd.args.iter().map(String::as_str))
        .filter(|arg| {
            !(arg.starts_with("--setopt=") || common.contains(arg) || *arg == NO_REPOSITORY)
        })
        .collect::<Vec<_>>()
        .join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_command_asks_waits_for_ever_or_forces_anything() {
        let settings = Settings::behind_a_proxy();
        let names = ["docker-ce-3:28.5.2-1.el9".to_owned()];
        let install = TransactionRequest::Install {
            packages: &names,
            removing: &[],
        };
        for cmd in [
            refresh(&settings),
            download(&settings, &install),
            perform(&settings, &install),
            perform(&settings, &TransactionRequest::Purge(&names)),
            perform(&settings, &TransactionRequest::Reinstall(&names)),
            module(&settings, "enable", "nvidia-driver:580-open"),
        ] {
            let line = cmd.line();
            assert!(line.contains("--setopt=exit_on_lock=1"), "{line}");
            assert!(line.contains(" -y "), "{line}");
            assert!(!line.contains("proxy:3128"), "{line}");
            for forced in ["nogpgcheck", "allowerasing", "skip-broken", "nobest"] {
                assert!(!line.contains(forced), "{line}");
            }
        }
        let cmd = perform(&settings, &install);
        assert!(cmd.silence.is_some() && cmd.stdin.is_none());
        assert!(cmd.secret_env.iter().any(|(key, _)| key == "https_proxy"));
        assert_eq!(short_line(&cmd), "dnf install docker-ce-3:28.5.2-1.el9");
        assert!(!format!("{settings:?} {cmd:?}").contains("s3cret"));
    }

    #[test]
    fn a_simulation_cannot_be_answered_with_yes_and_uses_the_same_metadata() {
        let names = ["a".to_owned()];
        let request = TransactionRequest::Install {
            packages: &names,
            removing: &[],
        };
        let (simulated, real) = (
            simulate(&Settings::behind_a_proxy(), &request)
                .cmd()
                .args
                .clone(),
            perform(&Settings::behind_a_proxy(), &request).args,
        );
        assert_eq!(
            (simulated[0].as_str(), real[0].as_str()),
            ("--assumeno", "-y")
        );
        let real: Vec<&String> = (real[1..].iter())
            .filter(|arg| *arg != FAIL_IF_LOCKED)
            .collect();
        assert_eq!(simulated[1..].iter().collect::<Vec<_>>(), real);
    }

    #[test]
    fn only_a_question_for_files_loads_their_lists() {
        let has = |query: Query| query.cmd().args.iter().any(|arg| arg == FILE_LISTS);
        assert!(has(super::super::offers::contents(&["a"])));
        assert!(!has(super::super::offers::versions(&["a"])));
        assert!(!has(offers_of_all_streams("%{name}", &["a"])));
        // They must be there when the question comes.
        assert!(
            refresh(&Settings::behind_a_proxy())
                .args
                .iter()
                .any(|arg| arg == FILE_LISTS)
        );
    }

    #[test]
    fn one_transaction_removes_and_installs() {
        let (coming, going) = (["a-1-1".to_owned()], ["b".to_owned(), "c".to_owned()]);
        let both = TransactionRequest::Install {
            packages: &coming,
            removing: &going,
        };
        let cmd = perform(&Settings::behind_a_proxy(), &both);
        let script = cmd.stdin.as_ref().map(Secret::expose);
        assert_eq!(script, Some("install a-1-1\nremove b c\nrun\n"));
        assert_eq!(short_line(&cmd), "dnf shell /dev/stdin");
    }
}
