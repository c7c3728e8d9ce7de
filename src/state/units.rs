//! The states of systemd units.

use std::sync::{Arc, PoisonError};

use super::{Read, State, StateError};
use crate::tools::systemctl::{self, UnitState};

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
        let output = self
            .host
            .reader()
            .query(&query)
            .await?
            .success(query.cmd())?;
        let state =
            systemctl::parse_show(&output.stdout).ok_or_else(|| StateError::Unexpected {
                what: format!("`{}`", query.cmd().line()),
                why: format!("no unit state in {:?}", output.stdout),
            })?;
        Ok(state.exists().then_some(state))
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
    };

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
        fakes.exec.on("systemctl", |_, _| fake::ok("nonsense"));
        let error = state.next().unit("docker.service").await.unwrap_err();
        assert!(error.to_string().contains("no unit state"), "{error}");
    }
}
