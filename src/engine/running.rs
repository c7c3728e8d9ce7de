//! The containers that run in a daemon.

use crate::{
    config::desired::Daemon,
    error::one_line,
    host::{Query, Reader},
    tools::{crictl, ctr, docker},
};

/// Names or ids of the containers that a daemon runs.
///
/// # Errors
/// Why it does not tell, in one line.
pub(super) async fn containers(host: Reader<'_>, daemon: Daemon) -> Result<Vec<String>, String> {
    let queries: Vec<Query> = match daemon {
        Daemon::Docker => vec![docker::running()],
        Daemon::Containerd => Vec::from(ctr::NAMESPACES_OF_CONTAINERS.map(ctr::tasks)),
        Daemon::Crio => vec![crictl::running_in_crio()],
    };
    let mut found = Vec::new();
    for query in queries {
        let ran = host.query(&query).await;
        let output = (ran.and_then(|output| output.success(query.cmd())))
            .map_err(|error| one_line(&error))?;
        found.extend(match daemon {
            Daemon::Containerd => ctr::parse_running(&output.stdout),
            Daemon::Docker | Daemon::Crio => output.stdout.lines().map(str::to_owned).collect(),
        });
    }
    Ok(found)
}
