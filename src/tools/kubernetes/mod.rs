//! Kubernetes' own tools and files, as far as a node needs them.

pub mod agents;
pub mod kubeadm;
pub mod kubeconfig;
pub mod kubectl;
pub mod membership;
pub mod nodeadm;
pub mod skew;
mod x509;
