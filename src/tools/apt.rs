//! `apt-get` and `apt-mark`: argument vectors that never ask, never wait without bound, never
//! allow what a plan did not name.

use std::time::Duration;

use crate::{
    host::{Cmd, Query},
    model::secret::Secret,
};

/// Settings of every call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Apt {
    /// Seconds that apt itself waits for its locks: a backstop, for the moment between our own
    /// look at them and its start.
    pub lock_timeout_seconds: u64,
    /// An HTTP proxy.
    pub proxy: Option<Secret>,
    /// Install recommended packages too.
    pub recommends: bool,
}

/// What a transaction may take away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removals {
    /// Nothing, whatever the resolver comes to meanwhile.
    None,
    /// What the simulation named, and the plan agreed to.
    Agreed,
}

impl Removals {
    /// apt-get(8): with `--no-remove` it "immediately aborts" if any package is to be removed.
    /// What may be removed cannot be named to it.
    const fn option(self) -> &'static [&'static str] {
        match self {
            Self::None => &["--no-remove"],
            Self::Agreed => &[],
        }
    }
}

/// A transaction with a DKMS build takes some minutes; this is for a sick machine.
const DEADLINE: Duration = Duration::from_secs(45 * 60);

/// While DKMS compiles nothing is printed, but a processor is at work; where neither is the case for so
/// long, a script waits for what does not come.
const SILENCE: Duration = Duration::from_secs(10 * 60);

/// Fetching lists; AKS caps it at 180 s for one attempt, and slow mirrors need more.
const UPDATE_DEADLINE: Duration = Duration::from_secs(10 * 60);

/// Nothing may ask, and no service may be restarted behind the run's back.
const ENVIRONMENT: [(&str, &str); 7] = [
    ("DEBIAN_FRONTEND", "noninteractive"),
    ("DEBCONF_NONINTERACTIVE_SEEN", "true"),
    // needrestart(1): list only; and not even look.
    ("NEEDRESTART_MODE", "l"),
    ("NEEDRESTART_SUSPEND", "1"),
    ("APT_LISTCHANGES_FRONTEND", "none"),
    ("APT_LISTBUGS_FRONTEND", "none"),
    // ucf(1): keep the local file, as dpkg does by `--force-confold`.
    ("UCF_FORCE_CONFFOLD", "1"),
];

/// Gives a command the environment of every package-manager call.
#[must_use]
pub fn quiet(mut cmd: Cmd) -> Cmd {
    for (key, value) in ENVIRONMENT {
        cmd = cmd.env(key, value);
    }
    cmd
}

impl Apt {
    fn options(&self) -> Vec<String> {
        vec![
            format!("-oDPkg::Lock::Timeout={}", self.lock_timeout_seconds),
            // No terminal is there to draw on.
            "-oDpkg::Use-Pty=0".to_owned(),
            "-oAcquire::Retries=3".to_owned(),
            "-oAcquire::http::Timeout=30".to_owned(),
            "-oAcquire::https::Timeout=30".to_owned(),
            // dpkg(1): `confdef` takes the default action for a changed conffile if there is one,
            // `confold` keeps the old file if there is none.
            "-oDpkg::Options::=--force-confdef".to_owned(),
            "-oDpkg::Options::=--force-confold".to_owned(),
            format!("-oAPT::Install-Recommends={}", self.recommends),
            // Whatever the administrator's default is: what nobody needs any more is not ours.
            "-oAPT::Get::AutomaticRemove=false".to_owned(),
        ]
    }

    /// The environment of every call. The proxy's address may carry a password, and arguments are
    /// for everybody to see.
    fn environment(&self, cmd: Cmd) -> Cmd {
        let cmd = quiet(cmd);
        match &self.proxy {
            Some(proxy) => cmd
                .secret_env("http_proxy", proxy)
                .secret_env("https_proxy", proxy),
            None => cmd,
        }
    }

    /// A verb. Progress is told from the lines that dpkg prints, [`super::apt_progress`]:
    /// `APT::Status-Fd=1` would close the standard output of the packages' scripts, and those that
    /// check what they print fail.
    fn get(&self, verb: &[&str], packages: &[String]) -> Cmd {
        let mut args = vec!["-q".to_owned(), "-y".to_owned()];
        args.extend(self.options());
        args.extend(verb.iter().map(|word| (*word).to_owned()));
        if !packages.is_empty() {
            args.push("--".to_owned());
            args.extend(packages.iter().cloned());
        }
        self.environment(Cmd::new("apt-get", args))
            .deadline(DEADLINE)
            .silence(SILENCE)
    }

    /// Fetches the package lists. apt.conf(5): with `Error-Mode` `any` a source that fails makes
    /// the whole call fail instead of a warning; older versions than 2.3 ignore it.
    #[must_use]
    pub fn update(&self) -> Cmd {
        self.get(&["-oAPT::Update::Error-Mode=any", "update"], &[])
            .deadline(UPDATE_DEADLINE)
            .silence(Duration::from_secs(180))
    }

    /// The same past every cache on the way, for a mirror that was met in the middle of its sync.
    #[must_use]
    pub fn update_past_caches(&self) -> Cmd {
        let mut cmd = self.update();
        cmd.args
            .insert(0, "-oAcquire::http::No-Cache=true".to_owned());
        cmd.args
            .insert(1, "-oAcquire::https::No-Cache=true".to_owned());
        cmd
    }

    /// What `install` would do; takes no lock and needs no root.
    #[must_use]
    pub fn simulate(&self, verb: &[&str], packages: &[String]) -> Query {
        let mut args = vec!["-q".to_owned(), "-s".to_owned(), "-y".to_owned()];
        args.extend(self.options());
        args.extend(verb.iter().map(|word| (*word).to_owned()));
        if !packages.is_empty() {
            args.push("--".to_owned());
            args.extend(packages.iter().cloned());
        }
        Query::new("apt-get", args).deadline(Duration::from_secs(120))
    }

    /// Downloads what [`Apt::install`] will need.
    #[must_use]
    pub fn download(&self, packages: &[String]) -> Cmd {
        self.get(&["install", "--download-only"], packages)
    }

    /// Installs `name` or `name=version`.
    #[must_use]
    pub fn install(&self, packages: &[String], removals: Removals) -> Cmd {
        self.get(&[&["install"], removals.option()].concat(), packages)
    }

    /// Completes broken dependencies.
    #[must_use]
    pub fn fix(&self, removals: Removals) -> Cmd {
        self.get(
            &[&["install", "--fix-broken"], removals.option()].concat(),
            &[],
        )
    }

    /// Removes packages and their configuration.
    #[must_use]
    pub fn purge(&self, packages: &[String]) -> Cmd {
        self.get(&["purge"], packages)
    }

    /// Removes packages and keeps their configuration.
    #[must_use]
    pub fn remove(&self, packages: &[String]) -> Cmd {
        self.get(&["remove"], packages)
    }
}

/// A command line for people: without the options that every call has.
#[must_use]
pub fn told(cmd: &Cmd) -> String {
    std::iter::once(cmd.program.as_str())
        .chain(cmd.args.iter().map(String::as_str).filter(|arg| {
            !(arg.starts_with("-o") || ["-q", "-y", "--no-remove", "--"].contains(arg))
        }))
        .collect::<Vec<_>>()
        .join(" ")
}

/// `apt-mark hold`, `unhold`, `auto` or `manual`.
#[must_use]
pub fn mark(verb: &str, packages: &[String]) -> Cmd {
    let mut args = vec![verb.to_owned(), "--".to_owned()];
    args.extend(packages.iter().cloned());
    quiet(Cmd::new("apt-mark", args)).deadline(Duration::from_secs(120))
}

#[cfg(test)]
mod tests {
    use super::{Apt, Removals, Secret, mark, told};

    fn apt() -> Apt {
        Apt {
            lock_timeout_seconds: 60,
            proxy: Some(Secret::new("http://joe:s3cret@proxy:3128")),
            recommends: false,
        }
    }

    #[test]
    fn nothing_asks_and_nothing_is_forced() {
        let apt = apt();
        let specs = ["docker.io".to_owned()];
        for cmd in [
            apt.update(),
            apt.update_past_caches(),
            apt.download(&specs),
            apt.install(&specs, Removals::None),
            apt.install(&specs, Removals::Agreed),
            apt.fix(Removals::None),
            apt.purge(&specs),
            apt.remove(&specs),
            apt.simulate(&["install"], &specs).cmd().clone(),
        ] {
            let line = cmd.line();
            assert!(line.contains("-oDPkg::Lock::Timeout=60"), "{line}");
            assert!(line.contains(" -y "), "{line}");
            assert!(!line.contains("proxy:3128"), "{line}");
            assert!(!line.contains("--allow-"), "{line}");
            assert!(!line.contains("Unauthenticated"), "{line}");
            assert!(!line.contains("Status-Fd"), "{line}");
        }
        let agreed = apt.install(&specs, Removals::Agreed);
        assert!(agreed.line().ends_with("install -- docker.io"));
        let install = apt.install(&specs, Removals::None);
        assert!(install.line().ends_with("install --no-remove -- docker.io"));
        assert!(install.silence.is_some() && install.stdin.is_none());
        assert!(
            install
                .env
                .contains(&("DEBIAN_FRONTEND".to_owned(), "noninteractive".to_owned()))
        );
        assert!(install.secret_env.contains(&(
            "https_proxy".to_owned(),
            Secret::new("http://joe:s3cret@proxy:3128")
        )));
        assert!(!format!("{apt:?} {install:?}").contains("s3cret"));
        assert_eq!(told(&install), "apt-get install docker.io");
        assert_eq!(mark("hold", &specs).line(), "apt-mark hold -- docker.io");
    }
}
