//! The states of systemd units.

use std::sync::{Arc, PoisonError};

use camino::Utf8Path;

use super::{Read, State, StateError};
use crate::{
    host::{FileKind, Host, Output},
    tools::systemctl::{self, UnitState},
};

/// How a unit is loaded whose package has left its file empty.
const EMPTY: &str = "empty";

/// The state of a unit as its files tell it, where no systemd runs that could be asked: in a container, or in the chroot of
/// an image's builder; `answer` is that of `systemctl show`. `None` where one runs.
///
/// # Errors
/// When its files cannot be read.
pub async fn without_systemd(
    host: &Host,
    name: &str,
    answer: &Output,
) -> Result<Option<UnitState>, StateError> {
    let files = &*host.files;
    // In a chroot systemctl says nothing and ends with 0, also where the builder's own `/run` is mounted.
    let says_nothing = answer.ok() && answer.stdout.trim().is_empty();
    if !says_nothing && files.exists(systemctl::BOOTED.into())? {
        return Ok(None);
    }
    for folder in systemctl::FOLDERS {
        let load = match files.stat(&Utf8Path::new(folder).join(name))? {
            None => continue,
            Some(stat) if stat.kind == FileKind::Link("/dev/null".into()) => "masked",
            Some(_) => "loaded",
        };
        let file = host.reader().query(&systemctl::is_enabled(name)).await?;
        return Ok(Some(UnitState::not_booted(load, &file.stdout)));
    }
    Ok(Some(UnitState::not_booted("not-found", "")))
}

impl State {
    /// The state of a unit; `None` if there is no such unit.
    ///
    /// # Errors
    /// When systemd cannot be queried, or its answer contains no state.
    pub async fn unit(&self, name: &str) -> Result<Option<UnitState>, StateError> {
        let cell = {
            let mut units = (self.memo.units.lock()).unwrap_or_else(PoisonError::into_inner);
            Arc::clone(units.entry(name.to_owned()).or_default())
        };
        cell.get_or_init(|| self.ask_unit(name)).await.clone()
    }

    async fn ask_unit(&self, name: &str) -> Read<Option<UnitState>> {
        let query = systemctl::show(name);
        let output = self.host.reader().query(&query).await?;
        let mut state = match systemctl::parse_show(&output.stdout).filter(|_| output.ok()) {
            Some(state) => state,
            None => match without_systemd(&self.host, name, &output).await? {
                Some(state) => state,
                None => {
                    let output = output.success(query.cmd())?;
                    return Err(StateError::Unexpected {
                        what: format!("`{}`", query.cmd().line()),
                        why: format!("no unit state in {:?}", output.stdout),
                    });
                }
            },
        };
        if state.load == "masked" && self.is_emptied(name)? {
            EMPTY.clone_into(&mut state.load);
        }
        Ok(state.exists().then_some(state))
    }

    /// Whether the file of a unit is empty that its package brought, as a power cut leaves it: systemd calls it masked, and
    /// the repair of the package fills it. A mask of somebody's is a link, or lies in another folder.
    fn is_emptied(&self, name: &str) -> Read<bool> {
        let files = &*self.host.files;
        for folder in ["/etc/systemd/system", "/run/systemd/system"] {
            if files.stat(&Utf8Path::new(folder).join(name))?.is_some() {
                return Ok(false);
            }
        }
        for folder in systemctl::OF_PACKAGES {
            let path = Utf8Path::new(folder).join(name);
            if let Some(stat) = files.stat(&path)? {
                let is_file = stat.kind == FileKind::File;
                return Ok(is_file && files.read(&path)?.is_some_and(|text| text.is_empty()));
            }
        }
        Ok(false)
    }

    /// Whether what a unit has started goes on when the unit ends.
    ///
    /// # Errors
    /// When systemd cannot be queried, or does not tell.
    pub async fn spares_children(&self, name: &str) -> Result<bool, StateError> {
        let query = systemctl::kill_mode(name);
        let output = (self.host.reader().query(&query).await?).success(query.cmd())?;
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
    async fn without_systemd_the_files_tell_what_the_next_boot_does() {
        let (host, fakes) = fake::host();
        // systemctl(1) in a chroot: only what reads files answers.
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
        // A builder may mount the `/run` of its own machine.
        fakes.files.put_folder(systemctl::BOOTED, 0o755);
        let masked = state.unit("crio.service").await.expect("an answer");
        assert_eq!(masked.expect("a unit").load, "masked");
        assert_eq!(state.unit("other.service").await.expect("an answer"), None);
    }

    #[tokio::test]
    async fn an_empty_file_of_a_package_is_no_mask() {
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
    async fn each_unit_is_asked_about_once() {
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
        fakes.files.put_folder(systemctl::BOOTED, 0o755);
        fakes.exec.on("systemctl", |_, _| fake::ok("nonsense"));
        let error = state.next().unit("docker.service").await.unwrap_err();
        assert!(error.to_string().contains("no unit state"), "{error}");
    }
}
