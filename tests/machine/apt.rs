//! Simulates `apt-get`, `apt-cache` and `apt-mark` on the files of the machine.

use std::collections::BTreeMap;

use gpu_bootstrap::host::{
    Cmd, ExecError, Output,
    fake::{FakeFiles, failed, ok},
};

use crate::{
    apt_messages::{Transaction, addresses, downloads, tell},
    archive::{Package, candidate, offers, version},
    dpkg::{self, Entry},
    prebuilt,
    state::State,
};

const OPTIONS: [&str; 15] = [
    "Dpkg::Options::=--no-triggers",
    "Acquire::ForceHash=SHA256",
    "DPkg::Lock::Timeout=",
    "Dpkg::Use-Pty=0",
    "Acquire::Retries=",
    "Acquire::http::Timeout=",
    "Acquire::https::Timeout=",
    "Acquire::http::No-Cache=",
    "Acquire::https::No-Cache=",
    "Dpkg::Options::=--force-conf",
    "APT::Install-Recommends=",
    "APT::Status-Fd=",
    "APT::Update::Error-Mode=any",
    "APT::Get::",
    "APT::Sources::With::=",
];

/// A parsed command line of `apt-get`.
#[derive(Debug, Default)]
struct Line {
    simulate: bool,
    uris: bool,
    yes: bool,
    recommends: bool,
    download_only: bool,
    fix: bool,
    may_downgrade: bool,
    may_change_held: bool,
    ignore_hold: bool,
    no_remove: bool,
    verb: String,
    names: Vec<String>,
}

fn parse(cmd: &Cmd) -> Line {
    let mut line = Line {
        recommends: true,
        ..Line::default()
    };
    let mut only_names = false;
    for arg in &cmd.args {
        if only_names {
            line.names.push(arg.clone());
            continue;
        }
        match arg.as_str() {
            "-q" | "-qq" => {}
            "-y" => line.yes = true,
            "-s" => line.simulate = true,
            "--print-uris" => (line.simulate, line.uris) = (true, true),
            "--" => only_names = true,
            "--download-only" => line.download_only = true,
            "--fix-broken" => line.fix = true,
            "--no-remove" => line.no_remove = true,
            "--allow-downgrades" => line.may_downgrade = true,
            "--allow-change-held-packages" => line.may_change_held = true,
            "--ignore-hold" => line.ignore_hold = true,
            "--no-install-recommends" | "-oAPT::Install-Recommends=false" => {
                line.recommends = false;
            }
            option if option.starts_with("-o") => assert!(
                OPTIONS.iter().any(|known| option[2..].starts_with(known)),
                "the simulated apt-get does not support `{option}` in `{}`",
                cmd.line()
            ),
            word if !word.starts_with('-') && line.verb.is_empty() => line.verb = word.to_owned(),
            word => panic!(
                "the simulated apt-get does not support `{word}` in `{}`",
                cmd.line()
            ),
        }
    }
    line
}

/// Whether a command line of `apt-get` changes the machine.
pub fn changes(cmd: &Cmd) -> bool {
    !cmd.args
        .iter()
        .any(|arg| arg == "-s" || arg == "--print-uris")
}

/// `apt-get`.
pub fn apt_get(cmd: &Cmd, files: &FakeFiles, state: &mut State) -> Result<Output, ExecError> {
    let line = parse(cmd);
    state.learn_built(files);
    if !line.simulate && !state.faults.only_by_proxy.is_empty() {
        let by = cmd.secret_env.iter().find(|(key, _)| key == "http_proxy");
        assert_eq!(
            by.map(|(_, proxy)| proxy.expose()),
            Some(state.faults.only_by_proxy.as_str()),
            "{}",
            cmd.line()
        );
    }
    if !line.simulate {
        assert!(
            cmd.env
                .contains(&("DEBIAN_FRONTEND".to_owned(), "noninteractive".to_owned())),
            "apt-get may prompt: {}",
            cmd.line()
        );
        // The package lists have a separate lock.
        if let Some(lock) = (state.faults.package_lock.as_ref()).filter(|_| line.verb != "update") {
            return Ok(failed(
                100,
                format!(
                    "E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process {} \
                     ({})\nE: Unable to acquire the dpkg frontend lock \
                     (/var/lib/dpkg/lock-frontend), is another process using it?\n",
                    lock.pid, lock.program
                ),
            ));
        }
    }
    if line.verb == "update" {
        return Ok(update(files, state));
    }
    if line.verb == "download" && line.uris {
        return Ok(downloads(files, state, &line.names));
    }
    assert!(line.yes, "apt-get would prompt: {}", cmd.line());
    let interrupted = !crate::state::list(files, "/var/lib/dpkg/updates").is_empty();
    if interrupted && !line.simulate {
        return Ok(failed(
            100,
            "E: dpkg was interrupted, you must manually run 'dpkg --configure -a' to correct the \
             problem.\n",
        ));
    }
    match line.verb.as_str() {
        "install" if line.fix => Ok(sub_process(dpkg::configure_pending(files, state, &[]))),
        "install" => install(cmd, files, state, &line),
        "purge" | "remove" => Ok(remove(files, state, &line)),
        "dist-upgrade" if line.simulate => Ok(crate::upgrade::simulate(files)),
        verb => panic!(
            "the simulated apt-get does not support `{verb}` in `{}`",
            cmd.line()
        ),
    }
}

fn update(files: &FakeFiles, state: &mut State) -> Output {
    let in_sync = state.faults.half_synced > 0;
    state.faults.half_synced = state.faults.half_synced.saturating_sub(1);
    let network = state.faults.network.as_deref();
    state.archive.update(files, network, in_sync)
}

struct Solver<'s> {
    files: &'s FakeFiles,
    state: &'s State,
    database: BTreeMap<String, Entry>,
    recommends: bool,
    /// The versions on the command line, which become the candidates.
    named: BTreeMap<String, String>,
    chosen: BTreeMap<String, String>,
    order: Vec<String>,
}

impl Solver<'_> {
    fn now(&self, name: &str) -> Option<String> {
        self.database
            .get(name)
            .filter(|entry| entry.there())
            .map(|entry| entry.version.clone())
    }

    /// Whether a package that is installed after the transaction provides a name.
    fn is_provided(&self, name: &str, gone: &dyn Fn(&str) -> bool) -> bool {
        let there = (self.database.iter())
            .filter(|(name, entry)| entry.there() && !gone(name))
            .map(|(name, entry)| (name, &entry.version));
        prebuilt::is_provided(
            &self.state.archive.packages,
            there.chain(&self.chosen),
            name,
        )
    }

    /// Removes installed packages with dependencies that the transaction breaks, but never packages on the command line.
    fn remove_broken(&self, transaction: &mut Transaction) -> Result<(), String> {
        loop {
            let gone = |name: &str| transaction.removes.iter().any(|(one, _)| one == name);
            let version = |name: &str| match self.chosen.get(name) {
                _ if gone(name) => None,
                Some(chosen) => Some(chosen.clone()),
                None => self.now(name),
            };
            let is_met = |package: &Package, spec: &String| match spec.split_once(" = ") {
                Some((name, _)) => version(name).as_ref() == Some(&package.version),
                None => (spec.split(" | "))
                    .any(|name| version(name).is_some() || self.is_provided(name, &gone)),
            };
            let broken = (self.database.iter())
                .filter(|(name, entry)| entry.there() && !gone(name))
                .filter_map(|(name, _)| {
                    let version = version(name)?;
                    let known = &self.state.archive.packages;
                    let package =
                        (known.iter()).find(|one| one.name == *name && one.version == version)?;
                    let before = self.now(name)?;
                    let was_met = |spec: &String| match spec.split_once(" = ") {
                        Some((name, _)) => self.now(name).as_ref() == Some(&package.version),
                        None => spec.split(" | ").any(|name| self.now(name).is_some()),
                    };
                    let breaks = (package.depends.iter())
                        .any(|spec| !is_met(package, spec) && (was_met(spec) || before != version));
                    breaks.then(|| (name.clone(), before))
                })
                .next();
            let Some((name, before)) = broken else {
                return Ok(());
            };
            if transaction.asked.contains(&name) {
                return Err(conflict(&name));
            }
            transaction.installs.retain(|(one, ..)| *one != name);
            transaction.removes.push((name, before));
        }
    }

    fn choose(&mut self, name: &str, wanted: Option<&str>) -> Result<(), String> {
        let now = self.now(name);
        // A version on the command line is used for dependencies as well.
        let named = self.named.get(name).cloned();
        let target = match wanted.or(named.as_deref()) {
            Some(version) => {
                let offered = offers(self.files, name);
                if offered.is_empty() && now.is_none() {
                    return Err(format!("E: Unable to locate package {name}\n"));
                }
                if now.as_deref() != Some(version) && !offered.iter().any(|o| o.version == version)
                {
                    return Err(format!(
                        "E: Version '{version}' for '{name}' was not found\n"
                    ));
                }
                version.to_owned()
            }
            None => match candidate(self.files, name, now.as_deref()) {
                Some(offer) => offer.version,
                None => return Err(format!("E: Unable to locate package {name}\n")),
            },
        };
        self.take(name, &target)
    }

    fn take(&mut self, name: &str, target: &str) -> Result<(), String> {
        if let Some(chosen) = self.chosen.get(name) {
            return if chosen == target {
                Ok(())
            } else {
                Err(conflict(name))
            };
        }
        self.chosen.insert(name.to_owned(), target.to_owned());
        if self.now(name).as_deref() == Some(target) {
            return Ok(());
        }
        let package = self.state.archive.package(name, target).clone();
        let specs = package.depends.iter().map(|spec| (spec, true));
        let more = package.recommends.iter().map(|spec| (spec, false));
        let recommends = self.recommends;
        for (spec, needed) in specs.chain(more.filter(|_| recommends)) {
            let done = self.depend(&package, spec);
            if needed {
                done?;
            }
        }
        self.order.push(name.to_owned());
        Ok(())
    }

    fn depend(&mut self, package: &Package, spec: &str) -> Result<(), String> {
        if let Some((name, rule)) = spec.split_once(" = ") {
            assert_eq!(rule, "self", "{}: {spec}", package.name);
            if self.now(name).as_deref() == Some(package.version.as_str()) {
                return Ok(());
            }
            // apt installs only the candidate version of a dependency.
            let chosen = self.chosen.get(name).cloned();
            let target = chosen
                .or_else(|| self.named.get(name).cloned())
                .or_else(|| candidate(self.files, name, None).map(|offer| offer.version))
                .ok_or_else(|| conflict(&package.name))?;
            if target != package.version {
                return Err(conflict(&package.name));
            }
            return self.take(name, &target);
        }
        let alternatives: Vec<&str> = spec.split(" | ").collect();
        if alternatives.iter().any(|name| {
            self.now(name).is_some()
                || self.chosen.contains_key(*name)
                || self.is_provided(name, &|_| false)
        }) {
            return Ok(());
        }
        for name in &alternatives {
            if self.choose(name, None).is_ok() {
                return Ok(());
            }
        }
        Err(conflict(&package.name))
    }
}

fn conflict(name: &str) -> String {
    format!(
        "The following packages have unmet dependencies:\n {name} : Depends: something that is not \
         going to be installed\nE: Unable to correct problems, you have held broken packages.\n"
    )
}

fn solve(files: &FakeFiles, state: &State, line: &Line) -> Result<Transaction, String> {
    let mut solver = Solver {
        files,
        state,
        database: dpkg::read(files),
        recommends: line.recommends,
        named: (line.names.iter())
            .filter_map(|spec| spec.split_once('='))
            .map(|(name, version)| (name.to_owned(), version.to_owned()))
            .collect(),
        chosen: BTreeMap::new(),
        order: Vec::new(),
    };
    let mut transaction = Transaction::default();
    // Packages with an explicit version come first, so that dependencies must match them.
    let going = |name: &&String| name.ends_with('-');
    for name in line.names.iter().filter(going) {
        let name = name.trim_end_matches('-');
        if let Some(now) = solver.now(name) {
            transaction.removes.push((name.to_owned(), now));
        }
    }
    let mut specs: Vec<(&str, Option<&str>)> = line
        .names
        .iter()
        .filter(|name| !going(name))
        .map(|spec| {
            spec.split_once('=')
                .map_or((spec.as_str(), None), |(n, v)| (n, Some(v)))
        })
        .collect();
    // The packages that provide another one come first, so that the other one is not chosen.
    specs.sort_by_key(|(name, _)| {
        !(state.archive.packages.iter()).any(|one| one.name == *name && !one.provides.is_empty())
    });
    for (name, version) in &specs {
        solver.choose(name, *version)?;
        transaction.asked.push((*name).to_owned());
    }
    for name in solver.order.clone() {
        let to = solver.chosen[&name].clone();
        let now = solver.now(&name);
        if let Some(now) = &now {
            let may_change =
                line.may_change_held && (line.ignore_hold || transaction.asked.contains(&name));
            if solver.database[&name].want == "hold" && !may_change {
                return Err("E: Held packages were changed and -y was used without \
                            --allow-change-held-packages.\n"
                    .to_owned());
            }
            if version(&to) < version(now) && !line.may_downgrade {
                return Err("E: Packages were downgraded and -y was used without \
                            --allow-downgrades.\n"
                    .to_owned());
            }
        }
        for other in &state.archive.package(&name, &to).conflicts {
            let goes = (transaction.removes.iter()).any(|(going, _)| going == other);
            if let (Some(now), false) = (solver.now(other), goes) {
                transaction.removes.push((other.clone(), now));
            }
        }
        transaction.installs.push((name, now, to));
    }
    solver.remove_broken(&mut transaction)?;
    let is_held = |name: &str| solver.database[name].want == "hold";
    if !line.may_change_held && transaction.removes.iter().any(|(name, _)| is_held(name)) {
        return Err("E: Held packages were changed and -y was used without \
                    --allow-change-held-packages.\n"
            .to_owned());
    }
    Ok(transaction)
}

fn install(
    cmd: &Cmd,
    files: &FakeFiles,
    state: &mut State,
    line: &Line,
) -> Result<Output, ExecError> {
    for package in prebuilt::packages(files) {
        let is_requested = |spec: &String| spec.split('=').next() == Some(package.name.as_str());
        let has_source = cmd.args.iter().any(|arg| arg.starts_with(prebuilt::OPTION));
        assert!(
            has_source || !line.names.iter().any(is_requested),
            "the package file is no source of `{}`",
            cmd.line()
        );
    }
    let transaction = match solve(files, state, line) {
        Ok(transaction) => transaction,
        Err(why) => return Ok(failed(100, why)),
    };
    if line.uris {
        return Ok(ok(addresses(state, &transaction)));
    }
    if line.simulate {
        return Ok(ok(tell(state, &transaction)));
    }
    if line.no_remove && !transaction.removes.is_empty() {
        return Ok(failed(
            100,
            "E: Packages need to be removed but remove is disabled.\n",
        ));
    }
    if !transaction.installs.is_empty() {
        let why = state
            .faults
            .network
            .as_ref()
            .or(state.faults.download.as_ref());
        let cached = crate::state::exists(files, "/var/cache/apt/archives/simulated");
        if let (Some(why), false) = (why, cached) {
            let lines = addresses(state, &transaction);
            let addresses = lines.lines().filter_map(|line| line.split('\'').nth(1));
            let failures = addresses.map(|url| format!("E: Failed to fetch {url}  {why}\n"));
            // The texts of apt 2.6 (tests/packages).
            let end = match line.download_only {
                true => "E: Some files failed to download\n".to_owned(),
                false => "E: Unable to fetch some archives, maybe run apt-get update or try with --fix-missing?\n".to_owned(),
            };
            return Ok(failed(100, failures.chain([end]).collect::<String>()));
        }
    }
    if line.download_only {
        files.put("/var/cache/apt/archives/simulated", "");
        return Ok(ok("Download complete and in download only mode\n"));
    }
    for (name, _) in &transaction.removes {
        dpkg::remove(files, state, name, false);
    }
    let mut auto = dpkg::auto(files);
    let half = transaction.installs.len() / 2;
    for (at, (name, now, to)) in transaction.installs.iter().enumerate() {
        if state.faults.power_cut && at >= half {
            state.faults.power_cut = false;
            files.put("/var/lib/dpkg/updates/0001", "");
            return Err(ExecError::Spawn {
                command: cmd.line(),
                why: "the test killed it in the middle".to_owned(),
            });
        }
        let package = state.archive.package(name, to).clone();
        if let Some(now) = now {
            dpkg::leave(files, state, name, now, &package);
        }
        dpkg::unpack(files, &package);
        if now.is_none() {
            auto.push(name.clone());
            dpkg::set_auto(files, auto.clone());
        }
    }
    auto.retain(|name| !transaction.asked.contains(name));
    dpkg::set_auto(files, auto);
    let order: Vec<String> = transaction
        .installs
        .into_iter()
        .map(|(name, ..)| name)
        .collect();
    let configured = sub_process(dpkg::configure_pending(files, state, &order));
    let leaves_triggers = |arg: &String| arg == "-oDpkg::Options::=--no-triggers";
    let triggers = match cmd.args.iter().any(leaves_triggers) {
        true => "triggers-pending",
        false => "installed",
    };
    dpkg::set_triggers(files, None, triggers);
    Ok(configured)
}

/// Adds apt's message after a failure of dpkg.
fn sub_process(mut output: Output) -> Output {
    if !output.ok() {
        output
            .stderr
            .push_str("E: Sub-process /usr/bin/dpkg returned an error code (1)\n");
        return failed(100, output.stderr);
    }
    output
}

fn remove(files: &FakeFiles, state: &State, line: &Line) -> Output {
    let purge = line.verb == "purge";
    let database = dpkg::read(files);
    let mut going: Vec<String> = Vec::new();
    for name in &line.names {
        if !database.contains_key(name) && offers(files, name).is_empty() {
            return failed(100, format!("E: Unable to locate package {name}\n"));
        }
        if database.get(name).is_some_and(|entry| entry.want == "hold") && !line.may_change_held {
            return failed(
                100,
                "E: Held packages were changed and -y was used without \
                 --allow-change-held-packages.\n",
            );
        }
        going.push(name.clone());
    }
    // Also remove packages that depend on a removed package.
    loop {
        let more: Vec<String> = database
            .iter()
            .filter(|(name, entry)| entry.there() && !going.contains(name))
            .filter(|(name, entry)| {
                state.archive.packages.iter().any(|package| {
                    package.name == **name
                        && package.version == entry.version
                        && package.depends.iter().any(|spec| {
                            let name = spec.split(" = ").next().unwrap_or(spec);
                            let stays = (database.iter())
                                .filter(|(name, entry)| entry.there() && !going.contains(name))
                                .map(|(name, entry)| (name, &entry.version));
                            let stays: Vec<_> = stays.collect();
                            name.split(" | ").all(|alternative| {
                                (going.iter().any(|gone| gone == alternative)
                                    || !database.get(alternative).is_some_and(Entry::there))
                                    && !prebuilt::is_provided(
                                        &state.archive.packages,
                                        stays.iter().copied(),
                                        alternative,
                                    )
                            })
                        })
                })
            })
            .map(|(name, _)| name.clone())
            .collect();
        if more.is_empty() {
            break;
        }
        going.extend(more);
    }
    going.retain(|name| {
        database
            .get(name)
            .is_some_and(|entry| entry.there() || purge)
    });
    if line.simulate {
        let word = if purge { "Purg" } else { "Remv" };
        return ok(going
            .iter()
            .map(|name| match database[name].there() {
                true => format!("{word} {name} [{}]\n", database[name].version),
                false => format!("{word} {name}\n"),
            })
            .collect::<String>());
    }
    for name in &going {
        dpkg::remove(files, state, name, purge);
    }
    // Like the real apt, this also configures all other half-configured packages, and runs all pending triggers.
    dpkg::set_triggers(files, None, "installed");
    sub_process(dpkg::configure_pending(files, state, &[]))
}
