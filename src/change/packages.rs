//! The one place that starts a package manager. Every transaction waits for others with a bound,
//! is simulated first, refused if it does what the plan does not name, downloaded before anything
//! is touched, run without questions, and verified afterwards.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Applier, ChangeError, Sink, Undo,
    apt_run::{Attempts, also},
    inventory::{full_name, held, native},
    transaction::{Agreed, blame, choose, objections},
};
use crate::{
    config::desired::{Manager, PackageWish},
    host::{Cmd, Query, exec::tail},
    tools::{
        apt::{Apt, Removals},
        apt_fault::{Fault, obstacle},
        apt_policy,
        apt_simulation::{self, Action},
        dpkg, dpkg_status,
    },
};

/// Seconds that apt itself waits for its locks. Short: we wait ourselves, by name, and can be
/// stopped while we do.
const LOCK_BACKSTOP: u64 = 10;

impl Applier {
    /// The settings of every call of apt.
    pub(super) fn apt(&self) -> Result<Apt, ChangeError> {
        match self.policy.manager {
            Manager::Apt => Ok(Apt {
                lock_timeout_seconds: self.policy.lock_timeout_seconds.min(LOCK_BACKSTOP),
                proxy: self.policy.proxy.clone(),
                recommends: self.policy.recommends,
            }),
            Manager::Dnf => Err(ChangeError::Unsupported {
                what: "changing packages with dnf".to_owned(),
            }),
        }
    }

    /// Installs what is wished for; what is installed as wished stays untouched.
    pub(super) async fn install(
        &self,
        wishes: &[PackageWish],
        removing: &[String],
        undo: &Undo,
        sink: &dyn Sink,
    ) -> Result<(), ChangeError> {
        self.apt()?;
        self.exclusively(sink, async {
            self.check_consistent()?;
            let mut resolved = match self.resolve(wishes).await {
                // Lists as old as the image may not know what the mirror has.
                Err(ChangeError::NoVersion { .. }) if !self.lists.are_fresh() => {
                    self.update(sink).await?;
                    self.resolve(wishes).await?
                }
                resolved => resolved?,
            };
            let mut attempts = Attempts::new();
            while let Err(error) = self.transact(&resolved, wishes, removing, undo, sink).await {
                self.pass_and_refresh(&mut attempts, error, sink).await?;
                // Newer lists, or what another package manager did, may ask for another
                // transaction: it is simulated and agreed to like the first one.
                resolved = self.resolve(wishes).await?;
            }
            self.verify(&resolved)
        })
        .await
    }

    /// One attempt at a transaction: simulated, agreed to, downloaded, done.
    async fn transact(
        &self,
        resolved: &BTreeMap<String, String>,
        wishes: &[PackageWish],
        removing: &[String],
        undo: &Undo,
        sink: &dyn Sink,
    ) -> Result<(), ChangeError> {
        let mut specs = self.specs(resolved)?;
        specs.extend(
            self.present(removing)?
                .iter()
                .map(|name| format!("{name}-")),
        );
        if specs.is_empty() {
            return Ok(());
        }
        let actions = self.simulate(&["install"], &specs).await?;
        self.agree(&actions, wishes, removing)?;
        let apt = self.apt()?;
        let arrivals = actions
            .iter()
            .filter(|action| matches!(action, Action::Install { .. }))
            .count();
        self.apt_once("download packages", &apt.download(&specs), arrivals, sink)
            .await?;
        self.attempt(
            undo,
            "install packages",
            &apt.install(&specs, removals(&actions)),
            &actions,
            sink,
        )
        .await
    }

    pub(super) async fn preview_install(
        &self,
        wishes: &[PackageWish],
        removing: &[String],
    ) -> Result<String, ChangeError> {
        if self.policy.manager == Manager::Dnf {
            return Ok("installing with dnf is not available in this version".to_owned());
        }
        let resolved = match self.resolve(wishes).await {
            Ok(resolved) => resolved,
            // A plan may add the repository, or fetch newer lists, before it comes to this.
            Err(error @ ChangeError::NoVersion { .. }) => {
                return Ok(format!("cannot be simulated yet: {error}"));
            }
            Err(error) => return Err(error),
        };
        let mut specs = self.specs(&resolved)?;
        specs.extend(
            self.present(removing)?
                .iter()
                .map(|name| format!("{name}-")),
        );
        if specs.is_empty() {
            return Ok(String::new());
        }
        let actions = self.simulate(&["install"], &specs).await?;
        self.agree(&actions, wishes, removing)?;
        Ok(apt_simulation::tell(&actions))
    }

    /// Removes packages with their configuration.
    pub(super) async fn remove(
        &self,
        packages: &[String],
        undo: &Undo,
        sink: &dyn Sink,
    ) -> Result<(), ChangeError> {
        self.apt()?;
        self.exclusively(sink, async {
            let present = self.present(packages)?;
            if present.is_empty() {
                return Ok(());
            }
            let mut actions = self.agree_to_removal(&present, &[]).await?;
            let purge = self.apt()?.purge(&present);
            let mut attempts = Attempts::new();
            while let Err(error) = self
                .attempt(undo, "remove packages", &purge, &actions, sink)
                .await
            {
                self.pass_and_refresh(&mut attempts, error, sink).await?;
                actions = self.agree_to_removal(&present, &[]).await?;
            }
            match self.present(packages)?.first() {
                None => Ok(()),
                Some(left) => Err(ChangeError::NotVerified {
                    package: left.clone(),
                    found: "still installed".to_owned(),
                    wanted: "its removal".to_owned(),
                }),
            }
        })
        .await
    }

    /// Undoes by a removal that was agreed to; before another attempt it is agreed to again.
    pub(super) async fn take_away(
        &self,
        what: &str,
        cmd: &Cmd,
        (packages, along): (&[String], &[String]),
        sink: &dyn Sink,
    ) -> Result<(), ChangeError> {
        let mut attempts = Attempts::new();
        while let Err(error) = self.apt_once(what, cmd, 0, sink).await {
            self.pass_and_refresh(&mut attempts, error, sink).await?;
            self.agree_to_removal(packages, along).await?;
        }
        Ok(())
    }

    pub(super) async fn preview_remove(&self, packages: &[String]) -> Result<String, ChangeError> {
        if self.policy.manager == Manager::Dnf {
            return Ok("removing with dnf is not available in this version".to_owned());
        }
        let present = self.present(packages)?;
        if present.is_empty() {
            return Ok(String::new());
        }
        let actions = self.agree_to_removal(&present, &[]).await?;
        Ok(apt_simulation::tell(&actions))
    }

    /// Brings packages back; refused if it would take others.
    pub(super) async fn bring_back(
        &self,
        specs: &[String],
        sink: &dyn Sink,
    ) -> Result<(), ChangeError> {
        let apt = self.apt()?;
        let mut attempts = Attempts::new();
        loop {
            let actions = self.simulate(&["install"], specs).await?;
            self.agree(&actions, &[], &[])?;
            let cmd = apt.install(specs, removals(&actions));
            match self
                .apt_once(
                    "install removed packages again",
                    &cmd,
                    stages(&actions),
                    sink,
                )
                .await
            {
                Ok(()) => return Ok(()),
                Err(error) => self.pass_and_refresh(&mut attempts, error, sink).await?,
            }
        }
    }

    /// Simulates a removal and refuses it if anything but the packages and `along` would go.
    pub(super) async fn agree_to_removal(
        &self,
        packages: &[String],
        along: &[String],
    ) -> Result<Vec<Action>, ChangeError> {
        let actions = self.simulate(&["purge"], packages).await?;
        let agreed = Agreed {
            removing: packages
                .iter()
                .chain(along)
                .chain(&self.policy.may_remove)
                .map(String::as_str)
                .collect(),
            only_removals: true,
            ..Agreed::default()
        };
        refuse(objections(&actions, &agreed))?;
        Ok(actions)
    }

    /// Finishes what an interrupted package manager left.
    pub(super) async fn repair(&self, undo: &Undo, sink: &dyn Sink) -> Result<(), ChangeError> {
        self.apt()?;
        self.exclusively(sink, async {
            match self.configure(undo, sink).await {
                Ok(()) if self.half_done()?.is_empty() => return Ok(()),
                Ok(()) => {}
                // Only what is missing can be added; a script or build that fails would fail again.
                Err(ChangeError::Packages {
                    fault: Fault::Unmet,
                    ..
                }) => {}
                Err(error) => return Err(error),
            }
            let apt = self.apt()?;
            let mut attempts = Attempts::new();
            loop {
                let actions = self.simulate(&["install", "--fix-broken"], &[]).await?;
                self.agree_to_repair(&actions)?;
                let fix = apt.fix(removals(&actions));
                match self
                    .attempt(undo, "complete broken dependencies", &fix, &actions, sink)
                    .await
                {
                    Ok(()) => break,
                    Err(error) => self.pass_and_refresh(&mut attempts, error, sink).await?,
                }
            }
            self.check_consistent()
        })
        .await
    }

    async fn configure(&self, undo: &Undo, sink: &dyn Sink) -> Result<(), ChangeError> {
        let configure = dpkg::configure_all();
        let mut attempts = Attempts::new();
        while let Err(error) = self
            .attempt(undo, "configure what is unpacked", &configure, &[], sink)
            .await
        {
            self.pass_and_refresh(&mut attempts, error, sink).await?;
        }
        Ok(())
    }

    pub(super) async fn preview_repair(&self) -> Result<String, ChangeError> {
        let query = dpkg::audit();
        let output = self.ask("look for half-done packages", &query).await?;
        Ok(dpkg::parse_audit(&output)
            .iter()
            .map(|name| format!("~ {name}"))
            .collect::<Vec<_>>()
            .join("\n"))
    }

    /// Packages that are neither installed nor gone.
    pub(super) fn half_done(&self) -> Result<Vec<String>, ChangeError> {
        let database = self.database()?;
        let mut names: Vec<String> = database
            .iter()
            .filter(|package| package.needs_repair())
            .map(|package| full_name(package, native(&database)))
            .collect();
        let updates = self.host.files.list(dpkg_status::UPDATES.into())?;
        if names.is_empty() && dpkg_status::interrupted(&updates) {
            names.push("dpkg's own records".to_owned());
        }
        Ok(names)
    }

    fn check_consistent(&self) -> Result<(), ChangeError> {
        let packages = self.half_done()?;
        if packages.is_empty() {
            Ok(())
        } else {
            Err(ChangeError::HalfDone { packages })
        }
    }

    /// Each wish with its version: the installed one where it is as wished, else the one to take.
    async fn resolve(
        &self,
        wishes: &[PackageWish],
    ) -> Result<BTreeMap<String, String>, ChangeError> {
        let installed = self.installed()?;
        let mut resolved = BTreeMap::new();
        let mut open: Vec<&PackageWish> = Vec::new();
        for wish in wishes {
            let wanted = wish.version.as_deref().unwrap_or("*");
            match installed.get(&wish.name) {
                Some(version) if crate::model::pattern::matches(wanted, version) => {
                    resolved.insert(wish.name.clone(), version.clone());
                }
                _ => open.push(wish),
            }
        }
        if open.is_empty() {
            return Ok(resolved);
        }
        let names: BTreeSet<&str> = open.iter().map(|wish| wish.name.as_str()).collect();
        let query = apt_policy::candidates(&names.into_iter().collect::<Vec<_>>());
        let answer = self.ask("look packages up", &query).await?;
        let offers = apt_policy::parse_offers(&answer);
        for wish in open {
            let offer = offers.iter().find(|offer| offer.name == wish.name);
            resolved.insert(wish.name.clone(), choose(wish, offer)?);
        }
        Ok(resolved)
    }

    /// What apt must be asked for: what is not installed in the resolved version.
    fn specs(&self, resolved: &BTreeMap<String, String>) -> Result<Vec<String>, ChangeError> {
        let installed = self.installed()?;
        Ok(resolved
            .iter()
            .filter(|(name, version)| installed.get(*name) != Some(version))
            .map(|(name, version)| format!("{name}={version}"))
            .collect())
    }

    /// Which of the names are there, in whatever state but gone.
    pub(super) fn present(&self, names: &[String]) -> Result<Vec<String>, ChangeError> {
        let inventory = self.database()?;
        let native = native(&inventory);
        let there: BTreeSet<String> = inventory
            .iter()
            .filter(|package| {
                !matches!(
                    package.state,
                    dpkg_status::State::NotInstalled | dpkg_status::State::ConfigFiles
                )
            })
            .map(|package| full_name(package, native))
            .collect();
        Ok(names
            .iter()
            .filter(|name| there.contains(*name))
            .cloned()
            .collect())
    }

    fn installed(&self) -> Result<BTreeMap<String, String>, ChangeError> {
        let database = self.database()?;
        Ok(database
            .iter()
            .filter(|package| package.is_installed())
            .map(|package| {
                (
                    full_name(package, native(&database)),
                    package.version.clone(),
                )
            })
            .collect())
    }

    async fn simulate(&self, verb: &[&str], specs: &[String]) -> Result<Vec<Action>, ChangeError> {
        let query = self.apt()?.simulate(verb, specs);
        Ok(apt_simulation::parse(
            &self.ask("simulate the package transaction", &query).await?,
        ))
    }

    fn agree_to_repair(&self, actions: &[Action]) -> Result<(), ChangeError> {
        let half_done = self.half_done()?;
        let agreed = Agreed {
            named: half_done.iter().map(String::as_str).collect(),
            removing: self.policy.may_remove.iter().map(String::as_str).collect(),
            upgrading: self.policy.may_upgrade.iter().map(String::as_str).collect(),
            held: held(&self.database()?),
            only_removals: false,
        };
        refuse(objections(actions, &agreed))
    }

    fn agree(
        &self,
        actions: &[Action],
        wishes: &[PackageWish],
        removing: &[String],
    ) -> Result<(), ChangeError> {
        let agreed = Agreed {
            named: wishes.iter().map(|wish| wish.name.as_str()).collect(),
            removing: removing
                .iter()
                .chain(&self.policy.may_remove)
                .map(String::as_str)
                .collect(),
            upgrading: self.policy.may_upgrade.iter().map(String::as_str).collect(),
            held: held(&self.database()?),
            only_removals: false,
        };
        refuse(objections(actions, &agreed))
    }

    fn verify(&self, resolved: &BTreeMap<String, String>) -> Result<(), ChangeError> {
        self.check_consistent()?;
        let installed = self.installed()?;
        for (name, wanted) in resolved {
            let found = installed.get(name);
            if found != Some(wanted) {
                return Err(ChangeError::NotVerified {
                    package: name.clone(),
                    found: found.map_or("not installed", String::as_str).to_owned(),
                    wanted: wanted.clone(),
                });
            }
        }
        Ok(())
    }

    /// Asks the package manager something; its refusals have classes.
    async fn ask(&self, what: &str, query: &Query) -> Result<String, ChangeError> {
        let output =
            self.host
                .reader()
                .query(query)
                .await
                .map_err(|source| ChangeError::Packages {
                    what: what.to_owned(),
                    fault: Fault::Other,
                    attachment: None,
                    source: Box::new(self.short(source, query.cmd())),
                })?;
        let said = format!("{}\n{}", output.stderr, output.stdout);
        let stdout = output.stdout.clone();
        let Err(source) = output.success(query.cmd()) else {
            return Ok(stdout);
        };
        // What cannot be met is told on standard output. Whatever keeps from looking further is
        // said beside it.
        let fault = Fault::of(&said);
        let stdout = self.fit_to_tell(&stdout);
        let looked = match fault {
            Fault::SignedBy => self.contradictions(),
            _ => Ok(obstacle(&stdout)),
        };
        let told = looked
            .unwrap_or_else(|second| Some(also(tail(&stdout), &second)))
            .unwrap_or_else(|| tail(&stdout));
        let (fault, told) = match self.database() {
            Ok(database) => blame(fault, told, &held(&database)),
            Err(second) => (fault, also(told, &second)),
        };
        Err(ChangeError::Packages {
            what: what.to_owned(),
            fault,
            attachment: Some(told).filter(|text| !text.is_empty()),
            source: Box::new(self.short(source, query.cmd())),
        })
    }
}

/// Whether a simulation that was agreed to removes anything: else nothing may be removed for real.
fn removals(actions: &[Action]) -> Removals {
    if actions
        .iter()
        .any(|action| matches!(action, Action::Remove { .. }))
    {
        Removals::Agreed
    } else {
        Removals::None
    }
}

/// How many stages a transaction will print: a package that comes is unpacked and set up.
pub(super) fn stages(actions: &[Action]) -> usize {
    actions
        .iter()
        .map(|action| match action {
            Action::Install { .. } => 2,
            Action::Remove { .. } => 1,
        })
        .sum()
}

fn refuse(reasons: Vec<String>) -> Result<(), ChangeError> {
    if reasons.is_empty() {
        Ok(())
    } else {
        Err(ChangeError::Refused { reasons })
    }
}
