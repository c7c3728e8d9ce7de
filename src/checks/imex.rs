//! Checks the state of the IMEX daemon on this machine. It is not the state of the other nodes: with the default quorum
//! `RECOVERY`, the daemon is READY before it is connected to them. The step `fabric.imex` compares its configuration with the
//! settings.

use crate::{
    check::{Family, Finding, Subject, Verdict},
    error::one_line,
    host::ExecError,
    model::id::Id,
    step::StepError,
    tools::{
        imex::{self, UNIT},
        systemctl::UnitState,
    },
};

const DAEMON: Id = Id::new("nvl.imex");

pub(super) const FAMILY: Family = Family {
    ids: || vec![DAEMON],
    examine: |subject| Box::pin(examine(subject)),
};

/// Evaluates the output of `nvidia-imex-ctl`, or the reason that there is none.
fn decide(answer: &Result<String, String>) -> Finding {
    let finding = |status, why: String| Finding::new(DAEMON, status, why);
    match answer.as_deref().map(str::trim) {
        Ok(output) if imex::is_ready(output) => finding(
            Verdict::Pass,
            "the IMEX daemon of this machine is READY".to_owned(),
        ),
        Ok(output) if !output.is_empty() => {
            let state = output.lines().next().unwrap_or_default().to_owned();
            Finding {
                observed: Some(state.clone()),
                expected: Some("READY".to_owned()),
                remedy: Some(format!(
                    "run `systemctl status {UNIT}`, and `nvidia-imex-ctl -N`, which lists the nodes; compare `{}`, which must be \
                     equal on all nodes",
                    imex::NODES
                )),
                ..finding(
                    Verdict::Warn,
                    format!("the IMEX daemon of this machine is {state}"),
                )
            }
        }
        Ok(_) => finding(
            Verdict::Unknown,
            "`nvidia-imex-ctl -q` prints no state".to_owned(),
        ),
        Err(why) => finding(
            Verdict::Unknown,
            format!("the state of the IMEX daemon is unknown: {why}"),
        ),
    }
}

async fn examine(subject: &Subject<'_>) -> Result<Vec<Finding>, StepError> {
    let skip = |why: &str| Ok(vec![Finding::new(DAEMON, Verdict::Skip, why)]);
    let unit = match subject.state.unit(UNIT).await {
        Ok(unit) => unit,
        Err(error) => match error.not_queried() {
            Some(why) => return skip(why),
            None => return Err(error.into()),
        },
    };
    if !unit.as_ref().is_some_and(UnitState::is_active) {
        return skip(match unit {
            Some(_) => "`nvidia-imex.service` is not running",
            None => "IMEX is not installed",
        });
    }
    let config = subject.host.files().read_text(imex::CONFIG.into())?;
    if !config.as_deref().is_some_and(imex::has_commands) {
        return skip(&format!(
            "`IMEX_CMD_ENABLED` in `{}` is not `1`, so the daemon does not answer `nvidia-imex-ctl`",
            imex::CONFIG
        ));
    }
    let query = imex::state();
    let answer = match subject.host.query(&query).await {
        Err(ExecError::NotQueried { why, .. }) => return skip(&why),
        answer => answer.and_then(|output| output.success(query.cmd())),
    };
    let answer = answer.map(|output| output.stdout);
    Ok(vec![decide(&answer.map_err(|error| one_line(&error)))])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn daemon_must_be_ready() {
        for (answer, verdict) in rows! {
            Ok("READY\n"), Verdict::Pass;
            Ok("UNAVAILABLE\n"), Verdict::Warn;
            Ok("\n"), Verdict::Unknown;
            Err("connection refused"), Verdict::Unknown;
        } {
            let answer = answer.map(str::to_owned).map_err(str::to_owned);
            let finding = decide(&answer);
            assert_eq!(finding.status, verdict, "{answer:?}: {}", finding.why);
            assert_eq!(finding.remedy.is_some(), verdict == Verdict::Warn);
            if verdict != Verdict::Unknown {
                assert!(finding.why.contains("of this machine"), "{}", finding.why);
            }
        }
    }
}
