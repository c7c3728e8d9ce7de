//! Argument vectors of `dnf`. They never ask questions, never wait without a time limit, and never allow changes that a plan
//! did not approve. Everything was tested with dnf 4.14 and rpm 4.18. For dnf 5 see [`super::generation`].

use std::time::Duration;

use crate::{
    host::{Cmd, Query},
    model::secret::Secret,
    tools::packages::{Mark, Package, Settings, TransactionRequest},
};

use super::generation;

/// The time limit of a transaction. A transaction with a DKMS build takes some minutes on a healthy machine.
const DEADLINE: Duration = Duration::from_secs(45 * 60);

/// The time limit without output and CPU time. DKMS prints nothing while it compiles, but uses CPU time. Without both, a
/// package script hangs.
const SILENCE: Duration = Duration::from_secs(10 * 60);

/// The time limit for downloading the metadata of all repositories.
const REFRESH_DEADLINE: Duration = Duration::from_secs(15 * 60);

/// The time limit for resolving a transaction with existing metadata.
const RESOLVE_DEADLINE: Duration = Duration::from_secs(180);

/// If another dnf is running, fail immediately instead of waiting without a limit. gpu-bootstrap waits with a limit and reports
/// the holder of the lock.
const FAIL_IF_LOCKED: &str = "--setopt=exit_on_lock=1";

/// Options of every command, `dnf.conf(5)`.
const OPTIONS: [&str; 12] = [
    FAIL_IF_LOCKED,
    // Install the newest allowed version of each requested package, or fail. Never silently install an older version, and never
    // skip a requested package.
    "--setopt=best=1",
    "--setopt=strict=1",
    // Do not replace packages of one vendor with packages of another.
    "--setopt=allow_vendor_change=0",
    // Do not remove a kernel when a new one is installed. The default limit of three would remove the oldest one.
    "--setopt=installonly_limit=0",
    // Never autoremove, because unneeded packages may not be ours.
    "--setopt=clean_requirements_on_remove=0",
    // Verify local package files like downloads.
    "--setopt=localpkg_gpgcheck=1",
    // A failed repository is only a warning. gpu-bootstrap decides whether it is needed.
    "--setopt=*.skip_if_unavailable=1",
    "--setopt=*.timeout=30",
    // Override the verbosity in `dnf.conf`, because the transaction table in the output is parsed.
    "--setopt=debuglevel=2",
    "--setopt=errorlevel=3",
    "--color=never",
];

/// Use the metadata of the last refresh, even if it is older than dnf allows by default, because a transaction must not change
/// between simulation and execution.
const AS_REFRESHED: [&str; 2] = [
    "--setopt=metadata_expire=-1",
    "--setopt=*.metadata_expire=-1",
];

/// Disables all repositories, for commands that need only the database of installed packages.
const NO_REPOSITORY: &str = "--disablerepo=*";

/// Disables the version lock plugin. The effect of a [`TransactionRequest::Move`] on each package is approved instead.
const NO_LOCKS: &str = "--disableplugin=versionlock";

/// Makes the packages of all module streams available, not only of the enabled stream, dnf.conf(5).
const ALL_STREAMS: &str = "--setopt=*.module_hotfixes=1";

/// Includes the file lists of packages in the metadata. They show which kernel a package with modules is for. In AlmaLinux 10,
/// dnf does not download them by default. An older dnf does, and prints a warning because it does not know this option. A
/// refresh always downloads them, because the packages to inspect are not known at that time. The query must not download
/// anything, because `plan` and `check` use it.
const FILE_LISTS: &str = "--setopt=optional_metadata_types=filelists";

fn owned(words: &[&str]) -> impl Iterator<Item = String> {
    words.iter().map(|word| (*word).to_owned())
}

/// Returns [`OPTIONS`], and the option that prevents the installation of packages that are only recommended.
fn options() -> impl Iterator<Item = String> {
    owned(&OPTIONS).chain(owned(&["--setopt=install_weak_deps=0"]))
}

/// Adds the environment of every command that may use the network. The proxy URL is not an argument, because it may contain a
/// password and arguments are visible to all users. dnf reads these variables through curl, unless `dnf.conf` sets a proxy.
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

/// Formats a name as a pattern that cannot be an option. `dnf install` parses arguments with a leading dash as options even
/// after `--` (4.14 of AlmaLinux 9).
fn operand(name: &str) -> String {
    match name.strip_prefix('-') {
        Some(rest) => format!("[-]{rest}"),
        None => name.to_owned(),
    }
}

/// Returns the dnf command of a request with its arguments, and the script for standard input if there is one.
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
        // Only the dnf shell can remove and install packages in one transaction.
        TransactionRequest::Install { packages, removing }
        | TransactionRequest::Move { packages, removing } => {
            // Install first, because dnf accepts no more package files once it has another task.
            let install = match packages.is_empty() {
                true => String::new(),
                false => format!("install {}\n", packages.join(" ")),
            };
            let script = format!("{install}remove {}\nrun\n", removing.join(" "));
            (verb(&["shell", "/dev/stdin"], &[]), Some(script))
        }
        // rpm removes unchanged configuration files together with their package.
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

/// Downloads the metadata of all repositories. dnf has no option to bypass proxy caches.
#[must_use]
pub fn refresh(settings: &Settings) -> Cmd {
    let mut args = vec!["-y".to_owned()];
    args.extend(options());
    args.extend(owned(&[FILE_LISTS, "--refresh", "makecache"]));
    environment(settings, Cmd::new("dnf", args))
        .deadline(REFRESH_DEADLINE)
        .silence(Duration::from_secs(180))
}

/// Resolves a transaction without changes. The confirmation is always answered with no.
#[must_use]
pub fn simulate(settings: &Settings, request: &TransactionRequest<'_>) -> Query {
    let mut cmd = transaction(settings, &["--assumeno", "--cacheonly"], request);
    // A query waits for other queries of gpu-bootstrap until its deadline, instead of failing immediately.
    cmd.args.retain(|arg| arg != FAIL_IF_LOCKED);
    let query = Query::new("dnf", cmd.args).deadline(RESOLVE_DEADLINE);
    match cmd.stdin {
        Some(script) => query.stdin(script),
        None => query,
    }
}

/// Downloads the packages of a transaction, and verifies digests and signatures.
#[must_use]
pub fn download(settings: &Settings, request: &TransactionRequest<'_>) -> Cmd {
    transaction(settings, &["-y", "--downloadonly"], request)
}

/// Performs a transaction with the downloaded packages. `install` removes a package only if a new one replaces it, so it cannot
/// remove more packages than the simulation. A removal, including one in the dnf shell, also removes dependent packages, so it
/// is simulated again right before.
#[must_use]
pub fn perform(settings: &Settings, request: &TransactionRequest<'_>) -> Cmd {
    transaction(settings, &["-y", "--cacheonly"], request)
}

/// Queries the available versions of packages, see [`super::offers`].
#[must_use]
pub fn offers(format: &'static str, names: &[&str]) -> Query {
    repoquery(&[], format, names)
}

/// Same as [`offers`], but for all module streams.
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

/// Resolves an upgrade of the complete system without changes. It respects version locks, like dnf-automatic.
#[must_use]
pub fn upgrade() -> Query {
    let args = ["--assumeno", "--cacheonly"].iter();
    let args = args
        .chain(OPTIONS.iter().filter(|option| **option != FAIL_IF_LOCKED))
        .chain(&AS_REFRESHED)
        .chain(&["upgrade"]);
    Query::new("dnf", args.copied()).deadline(RESOLVE_DEADLINE)
}

/// Queries the last transaction in dnf's history.
#[must_use]
pub fn last_transaction() -> Query {
    Query::new("dnf", [NO_REPOSITORY, "history", "info", "last"])
}

/// Changes the enabled stream of a module: `enable NAME:STREAM` or `reset NAME`. This may download the metadata of the module
/// first.
#[must_use]
pub fn module(settings: &Settings, verb: &'static str, name: &str) -> Cmd {
    let mut args = vec!["-y".to_owned()];
    args.extend(options());
    args.extend(owned(&["module", verb, "--", name]));
    environment(settings, Cmd::new("dnf", args))
        .deadline(REFRESH_DEADLINE)
        .silence(Duration::from_secs(180))
}

/// Marks packages as installed only as dependencies, or adds or deletes version locks. gpu-bootstrap edits the list of locks
/// itself instead of using the plugin's command, see [`super::versionlock`].
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

/// Returns the command that changes a package to the newest available version, including a downgrade, for hints: `dnf(8)`,
/// distro-sync. If the package is held, the command disables version locks, because they would keep the unavailable version.
#[must_use]
pub fn to_offered(package: &Package) -> String {
    let options = if package.held {
        format!("{NO_LOCKS} ")
    } else {
        String::new()
    };
    format!("dnf {options}distro-sync {}", package.name)
}

/// Returns a human-readable command line, without the options that every command has.
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
    fn no_command_asks_waits_forever_or_forces_changes() {
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
    fn simulation_makes_no_changes_and_uses_same_metadata() {
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
    fn only_file_queries_load_file_lists() {
        let has = |query: Query| query.cmd().args.iter().any(|arg| arg == FILE_LISTS);
        assert!(has(super::super::offers::contents(&["a"])));
        assert!(!has(super::super::offers::versions(&["a"])));
        assert!(!has(offers_of_all_streams("%{name}", &["a"])));
        // The file lists must exist before the query.
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
