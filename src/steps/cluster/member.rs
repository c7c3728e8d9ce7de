//! Checks whether a machine is already a node of a cluster other than the configured one.

use camino::Utf8Path;

use crate::{
    config::desired::{Discovery, JoinMethod},
    state::Membership,
    tools::kubernetes::{
        agents::{self, Agent},
        kubeconfig::Cluster,
        nodeadm,
    },
};

/// Returns the difference between the joined cluster and the configured one, or `None` if they are the same or the cluster
/// cannot be identified. `config` is our part of the agent configuration, `wanted` the cluster in the discovery kubeconfig.
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
                "its CA certificate hash is {pin}, but the settings specify {}",
                ca_cert_hashes.join(" or ")
            )),
            Some(_) => None,
            None => (server.trim_start_matches("https://") != wanted)
                .then(|| format!("the settings specify {wanted}")),
        },
        JoinMethod::Kubeadm { .. } => wanted.and_then(|wanted| {
            let differs = match (&wanted.ca_pin, ca_pin) {
                (Some(wanted), Some(pin)) => wanted != pin,
                _ => wanted.server != *server,
            };
            differs.then(|| format!("`cluster.discovery-file` specifies {}", wanted.server))
        }),
        JoinMethod::K3s { server, .. } => of_agent(kubeconfig, config, &agents::K3S, server),
        JoinMethod::Rke2 { server, .. } => of_agent(kubeconfig, config, &agents::RKE2, server),
        // Only the user data specifies the cluster, and nodeadm reads it at each boot.
        JoinMethod::Eks => (kubeconfig != nodeadm::KUBECONFIG)
            .then(|| "the settings specify EKS, but nodeadm did not join this machine".to_owned()),
        JoinMethod::Command { .. } | JoinMethod::Managed => None,
    }
}

/// Like [`another`], for a k3s or RKE2 agent. The kubelet connects to a local proxy, so its kubeconfig does not contain the
/// server. Instead, compares the kubeconfig path and our agent configuration.
fn of_agent(
    kubeconfig: &Utf8Path,
    config: Option<&str>,
    agent: &Agent,
    server: &str,
) -> Option<String> {
    if kubeconfig != agent.kubeconfig {
        return Some(format!("the settings specify the {} agent", agent.name));
    }
    let joined = config.and_then(agents::server_of)?;
    (joined != server).then(|| {
        format!(
            "it joined {joined} (`{}`), but the settings specify {server}",
            agent.config
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{model::token::TokenSource, tools::kubernetes::kubeadm};

    #[test]
    fn node_joined_by_another_method_is_detected() {
        const SERVER: &str = "https://10.0.0.1:6443";
        let k3s = JoinMethod::K3s {
            server: SERVER.to_owned(),
            token_source: TokenSource::File("/t".into()),
        };
        for (kubeconfig, server, method, why) in rows! {
            agents::K3S.kubeconfig, None, &k3s, None;
            agents::K3S.kubeconfig, Some(SERVER), &k3s, None;
            agents::K3S.kubeconfig, Some("https://10.9.9.9:6443"), &k3s,
                Some("it joined https://10.9.9.9:6443");
            kubeadm::KUBELET_CONF, None, &k3s, Some("the k3s agent");
            nodeadm::KUBECONFIG, None, &JoinMethod::Eks, None;
            kubeadm::KUBELET_CONF, None, &JoinMethod::Eks, Some("nodeadm did not join this machine");
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
