//! Kubernetes' own tools and files, as far as a node needs them.

pub mod agents;
pub mod condition;
pub mod kubeadm;
pub mod kubeconfig;
pub mod kubectl;
pub mod membership;
pub mod nodeadm;
pub mod skew;
mod x509;

use crate::model::cluster::JoinMethod;

/// What is wrong with a token, as its form tells.
#[must_use]
pub fn wrong_token(method: &JoinMethod, token: &str) -> Option<&'static str> {
    match method {
        JoinMethod::Kubeadm { .. } => (!kubeadm::is_token(token)).then_some(kubeadm::NO_TOKEN),
        JoinMethod::K3s { .. } | JoinMethod::Rke2 { .. } => agents::wrong_token(token),
        _ => None,
    }
}
