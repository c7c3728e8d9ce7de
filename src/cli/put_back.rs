//! Puts the runtime back that `install` has set, before its daemon starts. A drop-in of the daemon's unit runs it on nodes whose
//! provider writes the daemon's file anew ([`Rewritten`](crate::runtimes::Rewritten)), so that no pod with a GPU comes to a daemon
//! without it. What failed is told to the log of the unit, and the daemon starts all the same.

use super::{Failure, world::Env};
use crate::{change::Change, engine, exit::Exit, host::Host, runtimes::Goal};

pub(super) async fn run(host: &Host, env: &Env) -> Result<Exit, Failure> {
    env.only_root(host, "put the runtime back")?;
    let standing = engine::standing(host)?;
    let wanted = standing.iter().rev().find_map(|change| match change {
        Change::ConfigureRuntime { settings } => {
            (settings.kind.configured().rewritten()).map(|rewritten| (settings, rewritten))
        }
        _ => None,
    });
    let Some((wanted, rewritten)) = wanted else {
        return Ok(Exit::Ok);
    };
    let goal = Goal {
        name: &wanted.runtime,
        default: wanted.default,
        cdi: true,
        for_kubelet: false,
    };
    let put_back = wanted.kind.configured().put_back(host, &goal).await;
    put_back.map_err(|why| {
        Failure::new(
            Exit::StepFailed,
            "runtime-not-put-back",
            &format!(
                "failed to put the nvidia runtime into `{}`: {why}",
                rewritten.file
            ),
            Some("run `gpu-bootstrap install` on this node"),
        )
    })?;
    Ok(Exit::Ok)
}
