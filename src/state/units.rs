//! The states of systemd units.

use std::sync::{Arc, PoisonError};

use camino::Utf8Path;

use super::{Read, State, StateError};
use crate::{
    host::{ExecError, FileKind, Host, Output, Query},
    tools::systemctl::{self, UnitState},
};

/// Our load state for a unit whose packaged file is empty, which systemd reports as `masked`.
const EMPTY: &str = "empty";

/// The output of a systemd query. `None` if systemd is not running, such as in a container or in the chroot of an image
/// builder. In this case each unit query in this module uses the unit files instead. Queries that only make sense on a booted
/// machine (`systemctl::once`, `is_system_running`, `needs_reload`) have no such fallback and do not use this function.
pub(super) async fn answer(host: &Host, query: &Query) -> Result<Option<Output>, StateError> {
    let output = match host.reader().query(query).await {
        Ok(output) => output,
        // `systemctl` is not installed.
        Err(ExecError::NotFound { .. }) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    // In a chroot, systemctl prints nothing and exits with 0, even if the builder's `/run` is mounted there. If it does not
    // detect the chroot (`/proc` is not mounted), or in a container, it exits with 1.
    let is_silent = output.stdout.trim().is_empty();
    let is_booted = !is_silent || (!output.ok() && host.files.exists(systemctl::BOOTED.into())?);
    Ok(is_booted.then_some(output))
}

/// The state of a unit.
///
/// # Errors
/// If systemd or the files cannot be queried, or if the output contains no state.
pub async fn unit_state(host: &Host, name: &str) -> Result<UnitState, StateError> {
    let query = systemctl::show(name);
    let Some(output) = answer(host, &query).await? else {
        return without_systemd(host, name).await;
    };
    let output = output.success(query.cmd())?;
    systemctl::parse_show(&output.stdout).ok_or_else(|| StateError::Unexpected {
        what: format!("`{}`", query.cmd().line()),
        why: format!("no unit state in {:?}", output.stdout),
    })
}

/// The state of a unit if systemd is not running: whether it exists, and whether it starts at the next boot.
async fn without_systemd(host: &Host, name: &str) -> Result<UnitState, StateError> {
    for directory in systemctl::DIRECTORIES {
        let load = match host.files.stat(&Utf8Path::new(directory).join(name))? {
            None => continue,
            Some(stat) if stat.kind == FileKind::Link("/dev/null".into()) => "masked",
            Some(_) => "loaded",
        };
        let enabled = match host.reader().query(&systemctl::is_enabled(name)).await {
            Ok(output) => output.stdout,
            Err(ExecError::NotFound { .. }) => String::new(),
            Err(error) => return Err(error.into()),
        };
        return Ok(UnitState::not_booted(load, &enabled));
    }
    Ok(UnitState::not_booted("not-found", ""))
}

/// The command of a unit, or `None` if it has no command or several.
///
/// # Errors
/// If systemd or the files cannot be queried.
pub async fn unit_command(host: &Host, name: &str) -> Result<Option<String>, StateError> {
    let query = systemctl::command(name);
    if let Some(output) = answer(host, &query).await? {
        let output = output.success(query.cmd())?;
        return Ok(systemctl::parse_command(&output.stdout).map(str::to_owned));
    }
    let commands = systemctl::settings(&*host.files, name, "ExecStart")?;
    Ok(<[String; 1]>::try_from(commands).ok().map(|[one]| one))
}

impl State {
    /// The state of a unit, or `None` if the unit does not exist.
    ///
    /// # Errors
    /// If systemd or the files cannot be queried, or if the output contains no state.
    pub async fn unit(&self, name: &str) -> Result<Option<UnitState>, StateError> {
        let cell = {
            let mut units = (self.memo.units.lock()).unwrap_or_else(PoisonError::into_inner);
            Arc::clone(units.entry(name.to_owned()).or_default())
        };
        cell.get_or_init(|| self.ask_unit(name)).await.clone()
    }

    async fn ask_unit(&self, name: &str) -> Read<Option<UnitState>> {
        let mut state = unit_state(&self.host, name).await?;
        if state.load == "masked" && self.is_emptied(name)? {
            EMPTY.clone_into(&mut state.load);
        }
        Ok(state.exists().then_some(state))
    }

    /// Returns `true` if the packaged file of a unit is empty, as after a power loss. systemd reports such a unit as masked,
    /// and a repair of the package restores the file. A mask set by the administrator is a symlink, or is in another directory.
    fn is_emptied(&self, name: &str) -> Read<bool> {
        let files = &*self.host.files;
        for directory in ["/etc/systemd/system", "/run/systemd/system"] {
            if files.stat(&Utf8Path::new(directory).join(name))?.is_some() {
                return Ok(false);
            }
        }
        for directory in systemctl::OF_PACKAGES {
            let path = Utf8Path::new(directory).join(name);
            if let Some(stat) = files.stat(&path)? {
                let is_file = stat.kind == FileKind::File;
                return Ok(is_file && files.read(&path)?.is_some_and(|text| text.is_empty()));
            }
        }
        Ok(false)
    }

    /// The command of a unit, or `None` if it has no command or several.
    ///
    /// # Errors
    /// If systemd or the files cannot be queried.
    pub async fn unit_command(&self, name: &str) -> Read<Option<String>> {
        unit_command(&self.host, name).await
    }

    /// Returns `true` if the child processes of a unit survive when the unit is stopped.
    ///
    /// # Errors
    /// If systemd or the files cannot be queried, or if the output contains no `KillMode`.
    pub async fn spares_children(&self, name: &str) -> Result<bool, StateError> {
        let query = systemctl::kill_mode(name);
        let Some(output) = answer(&self.host, &query).await? else {
            let modes = systemctl::settings(&*self.host.files, name, "KillMode")?;
            return Ok(modes
                .last()
                .is_some_and(|mode| systemctl::spares_children(mode)));
        };
        let output = output.success(query.cmd())?;
        let spares = systemctl::parse_spares_children(&output.stdout);
        spares.ok_or_else(|| StateError::Unexpected {
            what: format!("`{}`", query.cmd().line()),
            why: format!("no `KillMode` in {:?}", output.stdout),
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::{
        host::fake,
        steps::fixtures::{facts, state},
        tools::systemctl,
    };

    #[tokio::test]
    async fn next_boot_unit_state_is_read_from_files() {
        let (host, fakes) = fake::host();
        // In a chroot, only the systemctl commands that read files work (systemctl(1)).
        fakes.exec.on("systemctl", |cmd, _| {
            fake::ok(match cmd.args.first().map(String::as_str) {
                Some("is-enabled") => "enabled\n",
                _ => "",
            })
        });
        fakes
            .files
            .put("/lib/systemd/system/docker.service", "[Service]\n");
        fakes
            .files
            .put_link("/etc/systemd/system/crio.service", "/dev/null");
        let state = state(&host, facts());
        let docker = state.unit("docker.service").await.expect("an answer");
        let docker = docker.expect("a unit");
        assert!(docker.is_not_booted() && docker.is_up() && !docker.is_active());
        // An image builder may mount its own `/run` in the chroot.
        fakes.files.put_directory(systemctl::BOOTED, 0o755);
        let masked = state.unit("crio.service").await.expect("an answer");
        assert_eq!(masked.expect("a unit").load, "masked");
        assert_eq!(state.unit("other.service").await.expect("an answer"), None);
    }

    /// In a chroot with `/proc`, systemctl exits with 0. Without `/proc`, and in a container, it exits with 1. It may also not
    /// be installed.
    #[tokio::test]
    async fn unit_files_are_the_fallback_for_every_query() {
        let refused =
            "System has not been booted with systemd as init system (PID 1). Can't operate.\n";
        for answer in [Some(fake::ok("")), Some(fake::failed(1, refused)), None] {
            let (host, fakes) = fake::host();
            if let Some(answer) = answer {
                fakes
                    .exec
                    .on("systemctl", move |cmd, _| match &*cmd.args[0] {
                        "is-enabled" => fake::ok("disabled\n"),
                        _ => answer.clone(),
                    });
            }
            let unit = "[Service]\nExecStart=/usr/bin/a --user b\nKillMode=process\n";
            fakes.files.put("/usr/lib/systemd/system/a.service", unit);
            let state = state(&host, facts());
            let found = state.unit("a.service").await.expect("an answer");
            assert!(found.is_some_and(|unit| unit.is_not_booted() && !unit.is_up()));
            let command = state.unit_command("a.service").await.expect("an answer");
            assert_eq!(command.as_deref(), Some("/usr/bin/a --user b"));
            assert!(state.spares_children("a.service").await.expect("an answer"));
            let other = state.unit_command("other.service").await;
            assert_eq!(other.expect("an answer"), None);
            assert!(
                !state
                    .spares_children("other.service")
                    .await
                    .expect("an answer")
            );
        }
        // If a running systemd rejects the query, it is an error.
        let (host, fakes) = fake::host();
        fakes
            .exec
            .on("systemctl", |_, _| fake::failed(1, "Access denied"));
        fakes.files.put_directory(systemctl::BOOTED, 0o755);
        let state = state(&host, facts());
        assert!(state.unit("a.service").await.is_err());
        assert!(state.unit_command("a.service").await.is_err());
        assert!(state.spares_children("a.service").await.is_err());
    }

    #[tokio::test]
    async fn empty_packaged_unit_file_is_not_a_mask() {
        let (host, fakes) = fake::host();
        fakes.exec.on("systemctl", |_, _| {
            fake::ok("LoadState=masked\nActiveState=inactive\nUnitFileState=masked\n")
        });
        fakes.files.put("/usr/lib/systemd/system/a.service", "");
        fakes
            .files
            .put_link("/etc/systemd/system/b.service", "/dev/null");
        let state = state(&host, facts());
        for (unit, load) in [("a.service", "empty"), ("b.service", "masked")] {
            let found = state.unit(unit).await.expect("an answer");
            assert_eq!(found.expect("a unit").load, load);
        }
    }

    #[tokio::test]
    async fn each_unit_is_queried_once() {
        let (host, fakes) = fake::host();
        fakes.exec.on("systemctl", |cmd, _| {
            let load = match cmd.args.last().map(String::as_str) {
                Some("docker.service") => "loaded",
                _ => "not-found",
            };
            fake::ok(format!(
                "LoadState={load}\nActiveState=active\nUnitFileState=enabled\nResult=success\n"
            ))
        });
        let state = state(&host, facts());
        for _ in 0..2 {
            let docker = state.unit("docker.service").await.expect("an answer");
            assert!(docker.is_some_and(|unit| unit.is_active()));
            assert_eq!(state.unit("other.service").await.expect("an answer"), None);
        }
        assert_eq!(fakes.exec.log().len(), 2);
        fakes.files.put_directory(systemctl::BOOTED, 0o755);
        fakes.exec.on("systemctl", |_, _| fake::ok("nonsense"));
        let error = state.next().unit("docker.service").await.unwrap_err();
        assert!(error.to_string().contains("no unit state"), "{error}");
    }
}
