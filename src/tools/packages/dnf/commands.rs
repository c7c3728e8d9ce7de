//! Argument vectors of `dnf`. They never ask questions, never wait without a time limit, and never allow changes that a plan
//! did not approve. Everything was tested with dnf 4.14 and rpm 4.18. For dnf 5 see [`super::generation`].

use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};

use super::{Dnf, agents, failures, generation, history, interruption, transaction};
use crate::{
    host::{Cmd, FilesError, Output, Query, ReadFiles},
    model::secret::Secret,
    tools::packages::{
        Action, Estimate, Mark, Package, Removals, Settings, TransactionRequest, Transactions,
    },
};

/// The time limit of a transaction. A transaction with a DKMS build takes some minutes on a healthy machine.
const DEADLINE: Duration = Duration::from_secs(45 * 60);

/// The time limit without output and CPU time. DKMS prints nothing while it compiles, but uses CPU time. Without both, a
/// package script hangs.
const SILENCE: Duration = Duration::from_secs(10 * 60);

/// The time limit for downloading the metadata of all repositories.
const METADATA_DEADLINE: Duration = Duration::from_secs(15 * 60);

/// The time limit for resolving a transaction with existing metadata.
const RESOLVE_DEADLINE: Duration = Duration::from_secs(180);

/// If another dnf is running, fail immediately instead of waiting without a limit. gpu-bootstrap waits with a limit and reports
/// the holder of the lock.
const FAIL_IF_LOCKED: &str = "--setopt=exit_on_lock=1";

/// Verify local package files like downloads.
pub(super) const VERIFY_FILES: &str = "--setopt=localpkg_gpgcheck=1";

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
    VERIFY_FILES,
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

/// Makes the packages of all module streams available, not only of the enabled stream, dnf.conf(5).
pub(super) const ALL_STREAMS: &str = "--setopt=*.module_hotfixes=1";

/// Includes the file lists of packages in the metadata. They show which kernel a package with modules is for. In AlmaLinux 10,
/// dnf does not download them by default. An older dnf does, and prints a warning because it does not know this option. A
/// refresh always downloads them, because the packages to inspect are not known at that time. The query must not download
/// anything, because `plan` and `check` use it.
pub(super) const FILE_LISTS: &str = "--setopt=optional_metadata_types=filelists";

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

/// Creates a command that may download metadata.
pub(super) fn with_metadata(settings: &Settings, words: &[&str]) -> Cmd {
    let args = owned(&["-y"]).chain(options()).chain(owned(words));
    environment(settings, Cmd::new("dnf", args))
        .deadline(METADATA_DEADLINE)
        .silence(Duration::from_secs(180))
}

/// Changes the enabled stream of a module: `enable NAME:STREAM` or `reset NAME`. This may download the metadata of the module
/// first.
pub fn module(settings: &Settings, verb: &str, name: &str) -> Cmd {
    with_metadata(settings, &["module", verb, "--", name])
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
        args.push(generation::NO_LOCKS.to_owned());
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

/// Queries the packages in existing metadata, see [`super::offers`].
pub(super) fn repoquery(options: &[&str], format: &'static str, names: &[&str]) -> Query {
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

/// Queries the URLs of packages in repositories, which are specified by ID and directory. Only these repositories are read, with a
/// cache in `state`.
pub(super) fn locations(
    state: &Utf8Path,
    repositories: &[(&str, Utf8PathBuf)],
    names: &[&str],
) -> Query {
    let mut args = vec![
        "-q".to_owned(),
        format!("--setopt=reposdir={state}"),
        format!("--setopt=cachedir={state}/cache"),
        ALL_STREAMS.to_owned(),
    ];
    let repositories = repositories.iter();
    args.extend(repositories.map(|(id, at)| format!("--repofrompath={id},file://{at}")));
    args.extend(owned(&[
        "repoquery",
        "--showduplicates",
        "--location",
        "--",
    ]));
    args.extend(owned(names));
    Query::new("dnf", args).deadline(RESOLVE_DEADLINE)
}

impl Transactions for Dnf {
    fn locks(&self) -> &'static [&'static str] {
        &generation::LOCKS
    }

    fn at_version(&self, name: &str, version: &str) -> String {
        format!("{name}-{version}")
    }

    /// The confirmation is always answered with no.
    fn simulate(&self, settings: &Settings, request: &TransactionRequest<'_>) -> Query {
        let mut cmd = transaction(settings, &["--assumeno", "--cacheonly"], request);
        // A query waits for other queries of gpu-bootstrap until its deadline, instead of failing immediately.
        cmd.args.retain(|arg| arg != FAIL_IF_LOCKED);
        let query = Query::new("dnf", cmd.args).deadline(RESOLVE_DEADLINE);
        match cmd.stdin {
            Some(script) => query.stdin(script),
            None => query,
        }
    }

    fn has_answered(&self, output: &Output) -> bool {
        transaction::is_answer(output.ok(), &output.stdout, &output.stderr)
    }

    fn parse_actions(&self, text: &str, installed: &[Package]) -> Vec<Action> {
        transaction::actions(text, installed)
    }

    /// Respects version locks, like dnf-automatic.
    fn upgrade(&self) -> Query {
        let args = ["--assumeno", "--cacheonly"].iter();
        let args = args
            .chain(OPTIONS.iter().filter(|option| **option != FAIL_IF_LOCKED))
            .chain(&AS_REFRESHED)
            .chain(&["upgrade"]);
        Query::new("dnf", args.copied()).deadline(RESOLVE_DEADLINE)
    }

    fn estimate(&self, settings: &Settings, request: &TransactionRequest<'_>) -> Query {
        self.simulate(settings, request)
    }

    fn parse_estimate(&self, text: &str) -> Estimate {
        transaction::estimate(text)
    }

    /// Also verifies digests and signatures.
    fn download(&self, settings: &Settings, request: &TransactionRequest<'_>) -> Cmd {
        transaction(settings, &["-y", "--downloadonly"], request)
    }

    /// `install` removes a package only if a new one replaces it, so it cannot remove more packages than the simulation. A
    /// removal, including one in the dnf shell, also removes dependent packages, so it is simulated again right before.
    fn perform(
        &self,
        settings: &Settings,
        request: &TransactionRequest<'_>,
        _removals: Removals,
    ) -> Cmd {
        transaction(settings, &["-y", "--cacheonly"], request)
    }

    fn performs_from_downloads(&self) -> bool {
        true
    }

    /// The exit status of the dnf shell is 0 even if one of its commands failed.
    fn has_succeeded(&self, output: &Output) -> bool {
        output.ok()
            && !failures::has_error(&output.stderr)
            && !transaction::has_problem(&output.stdout)
    }

    fn follow_up(&self, files: &dyn ReadFiles) -> Result<Vec<Cmd>, FilesError> {
        agents::end(files)
    }

    fn configure(&self) -> Option<Cmd> {
        None
    }

    /// Queries the last transaction in dnf's history.
    fn unfinished(&self) -> Option<Query> {
        let args = [NO_REPOSITORY, "history", "info", "last"];
        Some(Query::new("dnf", args))
    }

    fn parse_unfinished(&self, text: &str, installed: &[Package]) -> Vec<String> {
        interruption::to_complete(&history::unfinished(text), installed)
    }

    fn parse_missing(&self, text: &str, installed: &[Package]) -> Vec<String> {
        interruption::missing(&history::unfinished(text), installed)
    }

    /// Marks packages as installed only as dependencies, or adds or deletes version locks. gpu-bootstrap edits the list of
    /// locks itself instead of using the plugin's command, see [`super::versionlock`].
    fn mark(&self, mark: Mark, packages: &[String]) -> Cmd {
        let words = match mark {
            Mark::Hold => ["versionlock", "add", "--"],
            Mark::Unhold => ["versionlock", "delete", "--"],
            Mark::Automatic => ["mark", generation::AS_DEPENDENCY, "--"],
        };
        let first = ["-y", FAIL_IF_LOCKED, NO_REPOSITORY];
        let args = owned(&first).chain(owned(&words));
        Cmd::new("dnf", args.chain(packages.iter().cloned())).deadline(RESOLVE_DEADLINE)
    }

    fn short_line(&self, cmd: &Cmd) -> String {
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tools::packages::Offers;

    #[test]
    fn no_command_asks_waits_forever_or_forces_changes() {
        let settings = Settings::behind_a_proxy();
        let names = ["docker-ce-3:28.5.2-1.el9".to_owned()];
        let install = TransactionRequest::Install {
            packages: &names,
            removing: &[],
        };
        for cmd in [
            Dnf.refresh(&settings, false),
            Dnf.download(&settings, &install),
            Dnf.perform(&settings, &install, Removals::None),
            Dnf.perform(
                &settings,
                &TransactionRequest::Purge(&names),
                Removals::None,
            ),
            Dnf.perform(
                &settings,
                &TransactionRequest::Reinstall(&names),
                Removals::None,
            ),
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
        let cmd = Dnf.perform(&settings, &install, Removals::None);
        assert!(cmd.silence.is_some() && cmd.stdin.is_none());
        assert!(cmd.secret_env.iter().any(|(key, _)| key == "https_proxy"));
        assert_eq!(Dnf.short_line(&cmd), "dnf install docker-ce-3:28.5.2-1.el9");
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
            Dnf.simulate(&Settings::behind_a_proxy(), &request)
                .cmd()
                .args
                .clone(),
            Dnf.perform(&Settings::behind_a_proxy(), &request, Removals::None)
                .args,
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
        assert!(has(Dnf.contents(&["a"]).unwrap()));
        assert!(!has(Dnf.offers(&["a"])));
        assert!(!has(Dnf.offers_of_all_streams(&["a"])));
        // The file lists must exist before the query.
        assert!(
            Dnf.refresh(&Settings::behind_a_proxy(), false)
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
        let cmd = Dnf.perform(&Settings::behind_a_proxy(), &both, Removals::None);
        let script = cmd.stdin.as_ref().map(Secret::expose);
        assert_eq!(script, Some("install a-1-1\nremove b c\nrun\n"));
        assert_eq!(Dnf.short_line(&cmd), "dnf shell /dev/stdin");
    }
}
