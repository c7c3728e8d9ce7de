//! Kubernetes' own tools and files, as far as a node needs them.

pub mod condition;
pub mod kubeconfig;
pub mod kubectl;
pub mod membership;
pub mod skew;
pub mod token;
mod x509;
