//! Argument vectors of `apt-get`, `apt-mark` and `dpkg`. They never ask questions, never wait without a time limit, and never
//! allow changes that a plan did not approve.

use std::time::Duration;

use camino::Utf8Path;

use super::{ARCHIVES, Apt, estimate, simulation, triggers};
use crate::{
    host::{Cmd, FilesError, Query, ReadFiles},
    tools::packages::{
        Action, Estimate, Mark, Package, PendingTriggers, Removals, Settings, TransactionRequest,
        Transactions,
    },
};

/// The files that are locked while packages or lists change. The first one is locked during a complete transaction.
const LOCKS: [&str; 4] = [
    "/var/lib/dpkg/lock-frontend",
    "/var/lib/dpkg/lock",
    "/var/lib/apt/lists/lock",
    "/var/cache/apt/archives/lock",
];

/// The time limit of a transaction. A transaction with a DKMS build takes some minutes on a healthy machine.
const DEADLINE: Duration = Duration::from_secs(45 * 60);

/// The time limit without output and CPU time. DKMS prints nothing while it compiles, but uses CPU time. Without both, a
/// package script hangs.
const SILENCE: Duration = Duration::from_secs(10 * 60);

/// Prevents questions and automatic service restarts.
const ENVIRONMENT: [(&str, &str); 7] = [
    ("DEBIAN_FRONTEND", "noninteractive"),
    ("DEBCONF_NONINTERACTIVE_SEEN", "true"),
    // needrestart(1): only list services, or do not run.
    ("NEEDRESTART_MODE", "l"),
    ("NEEDRESTART_SUSPEND", "1"),
    ("APT_LISTCHANGES_FRONTEND", "none"),
    ("APT_LISTBUGS_FRONTEND", "none"),
    // ucf(1): keep the local file, like `--force-confold` of dpkg.
    ("UCF_FORCE_CONFFOLD", "1"),
];

/// Adds the environment of all package manager commands.
fn quiet(mut cmd: Cmd) -> Cmd {
    for (key, value) in ENVIRONMENT {
        cmd = cmd.env(key, value);
    }
    cmd
}

/// apt-get(8): with `--no-remove` it "immediately aborts" if any package is to be removed. There is no option to allow the
/// removal of specific packages.
const fn removals_option(removals: Removals) -> &'static [&'static str] {
    match removals {
        Removals::None => &["--no-remove"],
        Removals::Approved => &[],
    }
}

fn options(settings: &Settings) -> Vec<String> {
    vec![
        format!("-oDPkg::Lock::Timeout={}", settings.lock_timeout_seconds),
        // There is no terminal for a progress bar.
        "-oDpkg::Use-Pty=0".to_owned(),
        "-oAcquire::Retries=3".to_owned(),
        "-oAcquire::http::Timeout=30".to_owned(),
        "-oAcquire::https::Timeout=30".to_owned(),
        // dpkg(1): for a changed conffile, `confdef` uses the default action if there is one, and `confold` keeps the old file
        // otherwise.
        "-oDpkg::Options::=--force-confdef".to_owned(),
        "-oDpkg::Options::=--force-confold".to_owned(),
        "-oAPT::Install-Recommends=false".to_owned(),
        // Overrides the administrator's default. Otherwise apt could remove unneeded packages that gpu-bootstrap did not
        // install.
        "-oAPT::Get::AutomaticRemove=false".to_owned(),
    ]
}

/// Adds the environment of every command. The proxy URL is not an argument, because it may contain a password and arguments are
/// visible to all users.
fn environment(settings: &Settings, cmd: Cmd) -> Cmd {
    let mut cmd = quiet(cmd);
    // apt's download methods use these variables like other programs. Nothing is inherited from the caller's environment.
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

/// Creates an `apt-get` command. Progress is parsed from the output of dpkg ([`super::progress`]), because `APT::Status-Fd=1`
/// would close the standard output of package scripts, and scripts that check for write errors would fail.
pub(super) fn get(settings: &Settings, verb: &[&str], packages: &[String]) -> Cmd {
    let mut args = vec!["-q".to_owned(), "-y".to_owned()];
    args.extend(arguments(settings, verb, packages));
    environment(settings, Cmd::new("apt-get", args))
        .deadline(DEADLINE)
        .silence(SILENCE)
}

/// apt's helper, which downloads files with the transports, credentials and proxies of apt.
pub(super) const HELPER: &str = "/usr/lib/apt/apt-helper";

/// Creates a command of [`HELPER`].
pub(super) fn helper(settings: &Settings, args: Vec<String>) -> Cmd {
    let options = [
        "-oAcquire::Retries=3",
        "-oAcquire::http::Timeout=30",
        "-oAcquire::https::Timeout=30",
    ];
    let args = options.into_iter().map(str::to_owned).chain(args);
    environment(settings, Cmd::new(HELPER, args))
        .deadline(DEADLINE)
        .silence(SILENCE)
}

fn arguments(settings: &Settings, verb: &[&str], packages: &[String]) -> Vec<String> {
    let mut args = options(settings);
    args.extend(verb.iter().map(|word| (*word).to_owned()));
    if !packages.is_empty() {
        args.push("--".to_owned());
        args.extend(packages.iter().cloned());
    }
    args
}

/// apt-get(8): `--ignore-hold` also allows the resolver to change held dependencies.
const MOVE: [&str; 4] = [
    "install",
    "--allow-downgrades",
    "--allow-change-held-packages",
    "--ignore-hold",
];

fn with_removals(packages: &[String], removing: &[String]) -> Vec<String> {
    let going = removing.iter().map(|name| format!("{name}-"));
    packages.iter().cloned().chain(going).collect()
}

/// Returns the apt-get command of a request and its packages. With `install`, packages to remove end with a dash.
fn words(request: &TransactionRequest<'_>) -> (&'static [&'static str], Vec<String>) {
    match request {
        TransactionRequest::Install { packages, removing } => {
            (&["install"], with_removals(packages, removing))
        }
        TransactionRequest::Move { packages, removing } => {
            (&MOVE, with_removals(packages, removing))
        }
        TransactionRequest::Purge(packages) => (&["purge"], packages.to_vec()),
        TransactionRequest::Remove(packages) => (&["remove"], packages.to_vec()),
        TransactionRequest::Reinstall(packages) => (&["install", "--reinstall"], packages.to_vec()),
        TransactionRequest::Fix => (&["install", "--fix-broken"], Vec::new()),
    }
}

impl Transactions for Apt {
    fn locks(&self) -> &'static [&'static str] {
        &LOCKS
    }

    fn at_version(&self, name: &str, version: &str) -> String {
        format!("{name}={version}")
    }

    /// Takes no lock and does not need root.
    fn simulate(&self, settings: &Settings, request: &TransactionRequest<'_>) -> Query {
        let (verb, packages) = words(request);
        let mut args = vec!["-q".to_owned(), "-s".to_owned(), "-y".to_owned()];
        args.extend(arguments(settings, verb, &packages));
        Query::new("apt-get", args).deadline(Duration::from_secs(120))
    }

    fn simulates_side_by_side(&self) -> bool {
        true
    }

    fn parse_actions(&self, text: &str, _: &[Package]) -> Vec<Action> {
        simulation::parse(text)
    }

    /// Simulates `dist-upgrade`, apt-get(8). Takes no lock and does not need root.
    fn upgrade(&self) -> Query {
        let query = Query::new("apt-get", ["-q", "-s", "-y", "dist-upgrade"]);
        query.deadline(Duration::from_secs(120))
    }

    /// Queries URLs and sizes, apt-get(8). Takes no lock. A simulation does not print sizes.
    fn estimate(&self, settings: &Settings, request: &TransactionRequest<'_>) -> Query {
        let (verb, packages) = words(request);
        let mut args = vec!["-q".to_owned(), "-y".to_owned(), "--print-uris".to_owned()];
        args.extend(arguments(settings, verb, &packages));
        Query::new("apt-get", args).deadline(Duration::from_secs(120))
    }

    fn parse_estimate(&self, text: &str) -> Estimate {
        estimate::parse(text)
    }

    fn download(&self, settings: &Settings, request: &TransactionRequest<'_>) -> Cmd {
        let (verb, packages) = words(request);
        get(settings, &[verb, &["--download-only"]].concat(), &packages)
    }

    /// apt-get(8): `download` writes to the working directory and takes no lock. In the directory of incomplete downloads, which
    /// belongs to the unprivileged user of apt's download methods, the next transaction finds the files, verifies their digests
    /// and moves them (apt 2.6).
    fn download_beside(&self, settings: &Settings, packages: &[String]) -> Option<Cmd> {
        let cmd = get(settings, &["download"], packages);
        Some(cmd.directory(Utf8Path::new(ARCHIVES).join("partial")))
    }

    fn perform(
        &self,
        settings: &Settings,
        request: &TransactionRequest<'_>,
        removals: Removals,
    ) -> Cmd {
        let (verb, packages) = words(request);
        let option = match request {
            TransactionRequest::Install { .. }
            | TransactionRequest::Move { .. }
            | TransactionRequest::Reinstall(_)
            | TransactionRequest::Fix => removals_option(removals),
            TransactionRequest::Purge(_) | TransactionRequest::Remove(_) => &[],
        };
        get(settings, &[verb, option].concat(), &packages)
    }

    fn scripts_may_leave_modules(&self) -> bool {
        true
    }

    fn defer_triggers(&self, mut cmd: Cmd) -> Cmd {
        // dpkg(1): activations are still recorded.
        cmd.args
            .insert(0, "-oDpkg::Options::=--no-triggers".to_owned());
        cmd
    }

    fn pending_triggers(&self, files: &dyn ReadFiles) -> Result<PendingTriggers, FilesError> {
        triggers::pending(files)
    }

    fn run_triggers(&self, packages: &[String]) -> Option<Cmd> {
        // dpkg(1): with `--no-triggers`, only the triggers of these packages run.
        let options = ["--no-triggers", "--triggers-only", "--"].map(str::to_owned);
        let args = options.into_iter().chain(packages.iter().cloned());
        let cmd = quiet(Cmd::new("dpkg", args));
        Some(cmd.deadline(DEADLINE).silence(SILENCE))
    }

    fn configure(&self) -> Option<Cmd> {
        let args = [
            "--force-confdef",
            "--force-confold",
            "--configure",
            "--pending",
        ];
        let cmd = quiet(Cmd::new("dpkg", args));
        Some(cmd.deadline(DEADLINE).silence(SILENCE))
    }

    /// Runs `apt-mark`.
    fn mark(&self, mark: Mark, packages: &[String]) -> Cmd {
        let verb = match mark {
            Mark::Hold => "hold",
            Mark::Unhold => "unhold",
            Mark::Automatic => "auto",
        };
        let mut args = vec![verb.to_owned(), "--".to_owned()];
        args.extend(packages.iter().cloned());
        quiet(Cmd::new("apt-mark", args)).deadline(Duration::from_secs(120))
    }

    fn short_line(&self, cmd: &Cmd) -> String {
        std::iter::once(cmd.program.as_str())
            .chain(cmd.args.iter().map(String::as_str).filter(|arg| {
                !(arg.starts_with("-o") || ["-q", "-y", "--no-remove", "--"].contains(arg))
            }))
            .collect::<Vec<_>>()
            .join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{model::secret::Secret, tools::packages::Offers};

    #[test]
    fn no_command_asks_questions_or_forces_changes() {
        let settings = Settings::behind_a_proxy();
        let names = ["docker.io".to_owned()];
        let install = TransactionRequest::Install {
            packages: &names,
            removing: &[],
        };
        for cmd in [
            Apt.refresh(&settings, false),
            Apt.refresh(&settings, true),
            Apt.download(&settings, &install),
            Apt.perform(&settings, &install, Removals::None),
            Apt.perform(&settings, &install, Removals::Approved),
            Apt.perform(&settings, &TransactionRequest::Fix, Removals::None),
            Apt.perform(
                &settings,
                &TransactionRequest::Purge(&names),
                Removals::Approved,
            ),
            Apt.perform(
                &settings,
                &TransactionRequest::Remove(&names),
                Removals::Approved,
            ),
            Apt.simulate(&settings, &install).cmd().clone(),
        ] {
            let line = cmd.line();
            assert!(line.contains("-oDPkg::Lock::Timeout=60"), "{line}");
            assert!(line.contains(" -y "), "{line}");
            assert!(!line.contains("proxy:3128"), "{line}");
            assert!(!line.contains("--allow-"), "{line}");
            assert!(!line.contains("Unauthenticated"), "{line}");
            assert!(!line.contains("Status-Fd"), "{line}");
        }
        let approved = Apt.perform(&settings, &install, Removals::Approved);
        assert!(approved.line().ends_with("install -- docker.io"));
        let cmd = Apt.perform(&settings, &install, Removals::None);
        assert!(cmd.line().ends_with("install --no-remove -- docker.io"));
        assert!(cmd.silence.is_some() && cmd.stdin.is_none());
        assert!(
            cmd.env
                .contains(&("DEBIAN_FRONTEND".to_owned(), "noninteractive".to_owned()))
        );
        assert!(cmd.secret_env.contains(&(
            "https_proxy".to_owned(),
            Secret::new("http://joe:s3cret@proxy:3128")
        )));
        let direct = ("no_proxy".to_owned(), "localhost,.internal".to_owned());
        assert!(cmd.env.contains(&direct));
        assert!(!format!("{settings:?} {cmd:?}").contains("s3cret"));
        assert_eq!(Apt.short_line(&cmd), "apt-get install docker.io");
        assert_eq!(
            Apt.mark(Mark::Hold, &names).line(),
            "apt-mark hold -- docker.io"
        );
        let configure = Apt.configure().unwrap();
        assert!(configure.line().starts_with("dpkg --force-confdef"));
    }

    #[test]
    fn packages_to_remove_end_with_a_dash() {
        let (coming, going) = (["a=1".to_owned()], ["b".to_owned()]);
        let both = TransactionRequest::Install {
            packages: &coming,
            removing: &going,
        };
        let cmd = Apt.perform(&Settings::behind_a_proxy(), &both, Removals::Approved);
        assert!(cmd.line().ends_with("install -- a=1 b-"), "{}", cmd.line());
    }

    #[test]
    fn only_a_move_may_downgrade_and_change_holds() {
        let (coming, going) = (["a=1".to_owned()], ["b".to_owned()]);
        let moved = TransactionRequest::Move {
            packages: &coming,
            removing: &going,
        };
        let words = "install --allow-downgrades --allow-change-held-packages --ignore-hold";
        for cmd in [
            Apt.simulate(&Settings::behind_a_proxy(), &moved)
                .cmd()
                .clone(),
            Apt.download(&Settings::behind_a_proxy(), &moved),
            Apt.perform(&Settings::behind_a_proxy(), &moved, Removals::Approved),
        ] {
            assert!(cmd.line().contains(words), "{}", cmd.line());
            assert!(cmd.line().ends_with("-- a=1 b-"), "{}", cmd.line());
        }
        // A transaction that was simulated without removals must not remove packages.
        let cmd = Apt.perform(&Settings::behind_a_proxy(), &moved, Removals::None);
        assert!(cmd.line().contains("--no-remove"), "{}", cmd.line());
    }
}
