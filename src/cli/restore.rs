//! Restores the nvidia runtime in the configuration of a daemon before the daemon starts. A systemd drop-in of the daemon unit
//! runs this command on nodes whose provider regenerates the configuration file ([`Rewritten`](crate::runtimes::Rewritten)), so
//! that no GPU pod starts before the runtime is configured. Errors are written to the unit's log, and the daemon still starts.

use super::{Failure, env::Env};
use crate::{
    change::{Change, RuntimeSettings},
    engine,
    exit::Exit,
    host::Host,
    runtimes::{Goal, Rewritten},
};

pub(super) async fn run(host: &Host, env: &Env) -> Result<Exit, Failure> {
    env.only_root(host, "restore the runtime")?;
    let Some((wanted, rewritten)) = wanted(host)? else {
        return Ok(Exit::Ok);
    };
    let goal = Goal::saved(&wanted.runtime, wanted.default);
    let restore_saved = wanted.kind.configured().restore_saved(host, &goal).await;
    restore_saved.map_err(|why| {
        Failure::new(
            Exit::StepFailed,
            "runtime-not-put-back",
            &format!(
                "failed to restore the nvidia runtime in `{}`: {why}",
                rewritten.file
            ),
            Some("run `gpu-bootstrap install` on this node"),
        )
    })?;
    Ok(Exit::Ok)
}

/// Returns the settings of the newest applied change to a daemon whose file is regenerated. Ignores an unfinished change,
/// because it may belong to an `install` that is restarting the daemon. If that change fails, the previous configuration must
/// stay.
fn wanted(host: &Host) -> Result<Option<(RuntimeSettings, &'static Rewritten)>, Failure> {
    let applied = engine::applied(host)?;
    Ok(applied.into_iter().find_map(|change| match change {
        Change::ConfigureRuntime { settings } => {
            let rewritten = settings.kind.configured().rewritten()?;
            Some((settings, rewritten))
        }
        _ => None,
    }))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::{host::fake, journal};

    /// Returns a journal with these records.
    fn journal_of(records: &[Value]) -> String {
        let lines = records.iter().enumerate().map(|(seq, record)| {
            let line = json!({
                "schema": journal::SCHEMA, "seq": seq, "at": "2026-01-01T00:00:00Z", "run": "r", "record": record,
            });
            format!("{line}\n")
        });
        lines.collect()
    }

    #[test]
    fn the_newest_applied_setting_is_used() {
        let undo = json!({"undo": "impossible", "what": "x", "why": "x"});
        let intent = |default: bool| {
            json!({
                "kind": "intent", "steps": ["runtime.containerd-nvidia"], "undo": undo,
                "change": {
                    "kind": "configure-runtime",
                    "settings": {
                        "kind": "containerd", "unit": "containerd.service", "files": [], "runtime": "nvidia",
                        "default": default, "cdi": false,
                    },
                },
            })
        };
        let ended = |kind: &str, intent: u64| json!({"kind": kind, "intent": intent, "undo": undo});
        let (host, fakes) = fake::host();
        let default = |records: &[Value]| {
            fakes
                .files
                .put(journal::path().as_str(), journal_of(records));
            wanted(&host)
                .expect("a journal")
                .map(|(settings, _)| settings.default)
        };
        let mut records = vec![intent(false)];
        assert_eq!(default(&records), None);
        records.extend([ended("applied", 0), intent(true)]);
        // The second change is being applied, or was interrupted.
        assert_eq!(default(&records), Some(false));
        records.push(ended("applied", 2));
        assert_eq!(default(&records), Some(true));
        records.extend([intent(false), ended("interrupted", 4)]);
        assert_eq!(default(&records), Some(true));
    }
}
