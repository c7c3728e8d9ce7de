//! Nodes that an agent of the provider joins.

use async_trait::async_trait;

use super::{Join, JoinMethod, Joining, Leave, Leaving, MethodRow, NodeRule};
use crate::{
    runtimes::choice::Cluster,
    work::{ChangeError, Hands, Reverted, Sink},
};

pub(super) const ROW: MethodRow = MethodRow {
    keys: &[],
    runtimes: Cluster::OfMachine,
    node: NodeRule {
        is_named_by_provider: true,
        has_default_taint: false,
        no_taints: Some((
            "the agent of the provider registers the node with the taints of the node pool",
            "set these taints in the node pool",
        )),
    },
    has_packages: false,
    read: |_, _| Some(JoinMethod::Managed),
};

/// The provider joins the machine.
pub(super) struct Managed;

#[async_trait]
impl Joining for Managed {
    fn is_joined_by_provider(&self) -> bool {
        true
    }

    fn has_kernel_of_provider(&self) -> bool {
        true
    }

    fn leaving(&self, _: &Hands, join: &Join) -> Result<Leave, ChangeError> {
        Ok(Leave::Never {
            method: join.method.name().to_owned(),
        })
    }

    /// Never called, because the step waits for the provider.
    async fn join(&self, _: &Hands, _: &Join, _: &dyn Sink) -> Result<(), ChangeError> {
        Err(ChangeError::bug("the provider joins this machine"))
    }
}

/// The join cannot be undone.
pub(super) struct Never<'a> {
    pub method: &'a str,
}

#[async_trait]
impl Leaving for Never<'_> {
    fn has_begun(&self, _: &Hands) -> Result<bool, ChangeError> {
        Ok(true)
    }

    fn never(&self) -> Option<String> {
        Some(format!(
            "the changes of `cluster.join = \"{}\"` cannot be reverted",
            self.method
        ))
    }

    async fn leave(&self, _: &Hands, _: bool, _: &dyn Sink) -> Result<Reverted, ChangeError> {
        Ok(Reverted::nothing("the join cannot be undone"))
    }
}
