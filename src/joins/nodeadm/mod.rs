//! EKS: Amazon images start `nodeadm` after cloud-init. A condition in user data blocks it until gpu-bootstrap has validated
//! the machine.

mod tool;

use async_trait::async_trait;
use camino::Utf8Path;

pub use tool::{
    CONFIG, DROP_INS, INSTANCE_ID, KUBECONFIG, KUBELETS, MAY_JOIN, PROGRAM, RUN_UNIT, SNAP_UNIT,
    configuration,
};

use super::{
    Found, Join, JoinMethod, Joining, Lack, Leave, Leaving, MethodRow, MethodTool, NodeRule,
    RuntimeClass,
};
use crate::{
    error::one_line,
    host::{Cmd, FilesError, ReadFiles},
    model::kubernetes::{Labels, NodeName, Taint},
    runtimes::{RuntimeKind, choice::Cluster},
    tools::{
        kubelet,
        kubernetes::{kubeconfig, membership::Membership},
        systemctl,
    },
    work::{ChangeError, Hands, Reverted, Sink},
};

pub(super) const ROW: MethodRow = MethodRow {
    keys: &[],
    runtimes: Cluster::BringsOwn("nodeadm configures the one in the image"),
    node: NodeRule {
        is_named_by_provider: true,
        has_default_taint: false,
        no_taints: Some((
            "they would replace the taints of Karpenter and of the node group, and Karpenter deletes a node without \
             its taints",
            "set them in the NodePool or the node group, or in the NodeConfig of the user data \
             (`spec.kubelet.config.registerWithTaints`)",
        )),
    },
    has_packages: false,
    read: |given, wrong| {
        if given.runtimes.contains(&CONFIGURES) {
            return wrong.add(
                "join",
                "nodeadm (EKS) rewrites the containerd configuration at each boot",
                "set `runtime.use` to a list without \"containerd\", such as `[]`. If the container toolkit is \
                 installed, nodeadm makes `nvidia` the default runtime",
            );
        }
        Some(JoinMethod::Eks)
    },
};

/// The container runtime whose complete configuration `nodeadm` writes.
const CONFIGURES: RuntimeKind = RuntimeKind::Containerd;

/// Returns whether [`MAY_JOIN`] exists. Then `nodeadm` joins at each boot, after cloud-init has finished.
pub(super) fn may_join(files: &dyn ReadFiles) -> Result<bool, FilesError> {
    files.exists(MAY_JOIN.into())
}

/// Joins with `nodeadm`.
pub(super) struct ByNodeadm;

#[async_trait]
impl Joining for ByNodeadm {
    /// No unit, because the units of `nodeadm` are already enabled in the image.
    fn tool(&self) -> MethodTool<'_> {
        MethodTool {
            program: Some(PROGRAM),
            directory: Some(DROP_INS),
            config: Some(CONFIG),
            ..MethodTool::default()
        }
    }

    /// Source: awslabs/amazon-eks-ami, nodeadm.
    fn runtime_class(&self) -> RuntimeClass {
        RuntimeClass::Default
    }

    fn missing(&self, found: &Found) -> Option<Lack> {
        (!found.has_program).then(|| Lack {
            why: format!("`{PROGRAM}` or its directory `{DROP_INS}` does not exist"),
            hint: "use an EKS image with nodeadm, v20251023 or newer. Older images ignore the directory, so the node \
                   would have no labels",
        })
    }

    fn our_file(
        &self,
        _: &NodeName,
        labels: &Labels,
        _: &[Taint],
    ) -> Option<(&'static str, String)> {
        Some((CONFIG, configuration(labels)))
    }

    /// Taints from us would replace the taints of Karpenter and of the node group.
    fn registers_taints(&self) -> bool {
        false
    }

    fn kubelets_of(&self, kubeconfig: &Utf8Path) -> &'static [&'static str] {
        super::kubelets_of(kubeconfig)
    }

    /// The settings do not identify the cluster: only the user data does, which nodeadm reads at each boot.
    fn another(
        &self,
        membership: &Membership,
        _: Option<&str>,
        _: Option<&kubeconfig::Cluster>,
    ) -> Option<String> {
        (membership.kubeconfig != KUBECONFIG)
            .then(|| "the settings specify EKS, but nodeadm did not join the machine".to_owned())
    }

    fn configures(&self) -> Option<RuntimeKind> {
        Some(CONFIGURES)
    }

    fn has_kernel_of_provider(&self) -> bool {
        true
    }

    fn leaving(&self, _: &Hands, _: &Join) -> Result<Leave, ChangeError> {
        Ok(Leave::Nodeadm)
    }

    async fn join(&self, hands: &Hands, join: &Join, sink: &dyn Sink) -> Result<(), ChangeError> {
        hands.join_by_nodeadm(join, sink).await
    }
}

/// Prevents `nodeadm` from joining.
pub(super) struct HoldBack;

#[async_trait]
impl Leaving for HoldBack {
    fn has_begun(&self, _: &Hands) -> Result<bool, ChangeError> {
        Ok(false)
    }

    /// `nodeadm` writes the kubeconfig at each boot, before it is allowed to join.
    fn is_early(&self, hands: &Hands, _: Option<&Membership>) -> Result<bool, ChangeError> {
        Ok(!may_join(&*hands.host.files)?)
    }

    /// After an interrupted join, `nodeadm` would otherwise join at the next boot without a validation.
    async fn clear(&self, hands: &Hands, sink: &dyn Sink) -> Result<(), ChangeError> {
        if may_join(&*hands.host.files)? && !hands.unit_state(kubelet::UNIT).await?.is_active() {
            hands.hold_nodeadm_back(sink).await?;
        }
        Ok(())
    }

    async fn leave(
        &self,
        hands: &Hands,
        _: bool,
        sink: &dyn Sink,
    ) -> Result<Reverted, ChangeError> {
        hands.leave_by_nodeadm(sink).await
    }
}

fn stop(unit: &str) -> (String, Cmd) {
    (format!("stop `{unit}`"), systemctl::act("stop", unit))
}

impl Hands {
    pub(crate) async fn join_by_nodeadm(
        &self,
        join: &Join,
        sink: &dyn Sink,
    ) -> Result<(), ChangeError> {
        let files = &self.host.files;
        let instance = files.read_text(tool::INSTANCE_ID.into())?;
        let instance = instance.unwrap_or_default();
        files.write(tool::MAY_JOIN.into(), instance.as_bytes(), 0o600)?;
        let joined = self.start_nodeadm(join, sink).await;
        if joined.is_err() {
            // Otherwise `nodeadm` would join at the next boot without a validation, and its kubelet would continue to run.
            // Return the error of the join, and report an error of this cleanup only as a note.
            if let Err(error) = self.hold_nodeadm_back(sink).await {
                sink.note(&format!("failed to {}", one_line(&error)));
            }
        }
        joined
    }

    /// Prevents `nodeadm` from joining, now and at the next boot, and stops its kubelet.
    pub(crate) async fn hold_nodeadm_back(&self, sink: &dyn Sink) -> Result<(), ChangeError> {
        let files = &self.host.files;
        if files.exists(tool::MAY_JOIN.into())? {
            files.remove(tool::MAY_JOIN.into())?;
        }
        // Stop `nodeadm` first, because it starts the kubelet at the end. If this fails, still stop the kubelet.
        let (what, cmd) = stop(tool::RUN_UNIT);
        let nodeadm = self.tool(&what, &cmd, sink).await;
        let (what, cmd) = stop(kubelet::UNIT);
        let kubelet = self.tool(&what, &cmd, sink).await;
        nodeadm.and(kubelet).map(drop)
    }

    /// The files of `nodeadm` are kept, because its units in the image write them again at each boot.
    pub(crate) async fn leave_by_nodeadm(&self, sink: &dyn Sink) -> Result<Reverted, ChangeError> {
        self.hold_nodeadm_back(sink).await?;
        Ok(Reverted::done(format!(
            "stopped `{}` and removed `{}`, so `nodeadm` no longer joins",
            kubelet::UNIT,
            tool::MAY_JOIN
        )))
    }

    async fn start_nodeadm(&self, join: &Join, sink: &dyn Sink) -> Result<(), ChangeError> {
        let not_joined = |words| join.timed_out(tool::RUN_UNIT, words);
        let cmd = systemctl::act("restart", tool::RUN_UNIT).deadline(join.timeout());
        let ran = self.exec(&cmd, sink).await;
        if let Err(error) = ran.and_then(|output| output.success(&cmd)) {
            let words = self.words_of(tool::RUN_UNIT).await;
            return Err(not_joined(words.or_else(|| Some(error.to_string()))));
        }
        let what = format!("wait until `{}` is running", kubelet::UNIT);
        let runs = self
            .awaited(&what, join.timeout(), || async {
                let unit = self.unit_state(kubelet::UNIT).await?;
                Ok(unit.is_active().then_some(()))
            })
            .await?;
        match runs {
            Some(()) => Ok(()),
            None => Err(not_joined(self.words_of(kubelet::UNIT).await)),
        }
    }
}
