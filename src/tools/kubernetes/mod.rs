//! Kubernetes tools and files, limited to what a node needs.

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

/// Returns the error of a token, based on its format.
#[must_use]
pub fn wrong_token(method: &JoinMethod, token: &str) -> Option<&'static str> {
    match method {
        JoinMethod::Kubeadm { .. } => (!kubeadm::is_token(token)).then_some(kubeadm::NO_TOKEN),
        JoinMethod::K3s { .. } | JoinMethod::Rke2 { .. } => agents::wrong_token(token),
        _ => None,
    }
}
