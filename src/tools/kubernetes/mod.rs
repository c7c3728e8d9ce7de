//! Kubernetes tools and files, limited to what a node needs.

pub mod condition;
pub mod drain;
pub mod kubeconfig;
pub mod kubectl;
pub mod membership;
pub mod skew;
pub mod token;
mod x509;
