//! Whether a machine that is a node already is one of another cluster than the settings name.

use camino::Utf8Path;

use crate::{
    config::desired::{Discovery, JoinMethod},
    joins::{
        agents::{self, Agent},
        nodeadm,
    },
    state::Membership,
    tools::kubernetes::kubeconfig::Cluster,
};

/// Why the cluster is another one; `None` if it is the one that is wanted, as far as that can be told. `config` is our part
/// of the configuration of what joins, `wanted` the cluster of the kubeconfig that says how to find it.
pub(super) fn another(
    method: &JoinMethod,
    membership: &Membership,
    config: Option<&str>,
    wanted: Option<&Cluster>,
) -> Option<String> {
    let Membership {
        kubeconfig,
        server,
        ca_pin,
    } = membership;
    match method {
        JoinMethod::Kubeadm {
            discovery:
                Discovery::Token {
                    server: wanted,
                    ca_cert_hashes,
                    ..
                },
            ..
        } => match ca_pin {
            Some(pin) if !ca_cert_hashes.contains(pin) => Some(format!(
                "its certificate authority is {pin}, and the one of the settings is {}",
                ca_cert_hashes.join(" or ")
            )),
            Some(_) => None,
            None => (server.trim_start_matches("https://") != wanted)
                .then(|| format!("the settings name {wanted}")),
        },
        JoinMethod::Kubeadm { .. } => wanted.and_then(|wanted| {
            let differs = match (&wanted.ca_pin, ca_pin) {
                (Some(wanted), Some(pin)) => wanted != pin,
                _ => wanted.server != *server,
            };
            differs.then(|| format!("`cluster.discovery-file` names {}", wanted.server))
        }),
        JoinMethod::K3s { server, .. } => of_agent(kubeconfig, config, &agents::K3S, server),
        JoinMethod::Rke2 { server, .. } => of_agent(kubeconfig, config, &agents::RKE2, server),
        // Its user data alone says which cluster, and at each boot again.
        JoinMethod::Eks => (kubeconfig != nodeadm::KUBECONFIG)
            .then(|| "the settings name EKS, whose nodeadm did not join it".to_owned()),
        JoinMethod::Command { .. } | JoinMethod::Managed => None,
    }
}

/// The same of an agent. Its kubelet talks to a proxy on the machine itself, so the place tells, and what this program has
/// written for the agent.
fn of_agent(
    kubeconfig: &Utf8Path,
    config: Option<&str>,
    agent: &Agent,
    server: &str,
) -> Option<String> {
    if kubeconfig != agent.kubeconfig {
        return Some(format!("the settings name the agent of {}", agent.name));
    }
    let joined = config.and_then(agents::server_of)?;
    (joined != server).then(|| {
        format!(
            "it joined by {joined} (`{}`), and the settings name {server}",
            agent.config
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{joins::kubeadm, model::token::TokenSource};

    #[test]
    fn each_way_to_join_knows_a_node_that_another_way_has_made() {
        const SERVER: &str = "https://10.0.0.1:6443";
        let k3s = JoinMethod::K3s {
            server: SERVER.to_owned(),
            token_source: TokenSource::File("/t".into()),
        };
        for (kubeconfig, server, method, why) in rows! {
            agents::K3S.kubeconfig, None, &k3s, None;
            agents::K3S.kubeconfig, Some(SERVER), &k3s, None;
            agents::K3S.kubeconfig, Some("https://10.9.9.9:6443"), &k3s,
                Some("it joined by https://10.9.9.9:6443");
            kubeadm::KUBELET_CONF, None, &k3s, Some("agent of k3s");
            nodeadm::KUBECONFIG, None, &JoinMethod::Eks, None;
            kubeadm::KUBELET_CONF, None, &JoinMethod::Eks, Some("nodeadm did not join it");
        } {
            let membership = Membership {
                kubeconfig: kubeconfig.into(),
                server: SERVER.to_owned(),
                ca_pin: None,
            };
            let config = server.map(|server| format!("{{\"server\": \"{server}\"}}"));
            let found = another(method, &membership, config.as_deref(), None);
            assert_eq!(found.is_some(), why.is_some(), "{found:?}");
            assert!(found.unwrap_or_default().contains(why.unwrap_or_default()));
        }
    }
}
