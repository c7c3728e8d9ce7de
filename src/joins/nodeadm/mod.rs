//! EKS: Amazon's images start `nodeadm` after cloud-init. A condition that user data adds holds it back until this program
//! says that the machine is proven.

mod tool;

use async_trait::async_trait;
use camino::Utf8Path;

pub use tool::{
    CONFIG, DROP_INS, INSTANCE_ID, KUBECONFIG, KUBELETS, MAY_JOIN, PROGRAM, RUN_UNIT, SNAP_UNIT,
    configuration,
};

use super::{Found, Join, JoinMethod, Lack, Leave, Leaving, NodeRule, Way, WayRow, WayTool};
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
    work::{Hands, Problem, Reverted, Sink},
};

pub(super) const ROW: WayRow = WayRow {
    keys: &[],
    runtimes: Cluster::BringsOwn("nodeadm configures the one of the image"),
    node: NodeRule {
        is_named_by_provider: true,
        has_default_taint: false,
        no_taints: Some((
            "they would replace the taints of Karpenter and of the node group, and Karpenter deletes a node without \
             its own",
            "give them to the NodePool or the node group, or name them in the NodeConfig of the user data \
             (`spec.kubelet.config.registerWithTaints`)",
        )),
    },
    has_packages: false,
    read: |given, wrong| {
        if given.runtimes.contains(&CONFIGURES) {
            return wrong.add(
                "join",
                "EKS' nodeadm writes containerd's configuration itself, at each boot",
                "set `runtime.use` to a list without \"containerd\", such as `[]`: with the container toolkit nodeadm \
                 makes `nvidia` the default runtime",
            );
        }
        Some(JoinMethod::Eks)
    },
};

/// The container runtime whose whole configuration it writes.
const CONFIGURES: RuntimeKind = RuntimeKind::Containerd;

/// Whether the machine will join once cloud-init has ended.
pub(super) fn may_join(files: &dyn ReadFiles) -> Result<bool, FilesError> {
    files.exists(MAY_JOIN.into())
}

/// The units of which one must run before a kubeconfig of nodeadm's counts: it writes the file long before it starts the
/// kubelet. Canonical's image has it from the start, with a placeholder for the server, and its kubelet is a snap.
pub(super) fn kubelets_of(kubeconfig: &Utf8Path) -> &'static [&'static str] {
    match kubeconfig == KUBECONFIG {
        true => &KUBELETS,
        false => &[],
    }
}

/// Joins by `nodeadm`.
pub(super) struct ByNodeadm;

#[async_trait]
impl Way for ByNodeadm {
    /// Its units are enabled in the image.
    fn tool(&self) -> WayTool<'_> {
        WayTool {
            program: Some(PROGRAM),
            folder: Some(DROP_INS),
            config: Some(CONFIG),
            ..WayTool::default()
        }
    }

    fn missing(&self, found: &Found) -> Option<Lack> {
        (!found.has_program).then(|| Lack {
            why: format!("`{PROGRAM}` or its folder `{DROP_INS}` does not exist"),
            hint: "use an image of EKS with nodeadm, from v20251023 on: older ones do not read the folder, and the node \
                   would have neither labels nor taints",
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

    /// Those of Karpenter and of the node group would be lost.
    fn registers_taints(&self) -> bool {
        false
    }

    fn kubelets_of(&self, kubeconfig: &Utf8Path) -> &'static [&'static str] {
        kubelets_of(kubeconfig)
    }

    /// Its user data alone names the cluster, again at each boot.
    fn another(
        &self,
        membership: &Membership,
        _: Option<&str>,
        _: Option<&kubeconfig::Cluster>,
    ) -> Option<String> {
        (membership.kubeconfig != KUBECONFIG)
            .then(|| "the settings name EKS, whose nodeadm did not join it".to_owned())
    }

    fn configures(&self) -> Option<RuntimeKind> {
        Some(CONFIGURES)
    }

    fn has_kernel_of_provider(&self) -> bool {
        true
    }

    fn leaving(&self, _: &Hands, _: &Join) -> Result<Leave, Problem> {
        Ok(Leave::Nodeadm)
    }

    async fn join(&self, hands: &Hands, join: &Join, sink: &dyn Sink) -> Result<(), Problem> {
        hands.join_by_nodeadm(join, sink).await
    }
}

/// Holds `nodeadm` back.
pub(super) struct HoldBack;

#[async_trait]
impl Leaving for HoldBack {
    fn has_begun(&self, _: &Hands) -> Result<bool, Problem> {
        Ok(false)
    }

    /// `nodeadm` writes the kubeconfig at each boot, before it may join.
    fn is_early(&self, hands: &Hands, _: Option<&Membership>) -> Result<bool, Problem> {
        Ok(!may_join(&*hands.host.files)?)
    }

    /// It would join at the next boot, validated or not.
    async fn clear(&self, hands: &Hands, sink: &dyn Sink) -> Result<(), Problem> {
        if may_join(&*hands.host.files)? && !hands.unit_state(kubelet::UNIT).await?.is_active() {
            hands.hold_nodeadm_back(sink).await?;
        }
        Ok(())
    }

    async fn leave(&self, hands: &Hands, _: bool, sink: &dyn Sink) -> Result<Reverted, Problem> {
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
    ) -> Result<(), Problem> {
        let files = &self.host.files;
        let instance = files.read_text(tool::INSTANCE_ID.into())?;
        let instance = instance.unwrap_or_default();
        files.write(tool::MAY_JOIN.into(), instance.as_bytes(), 0o600)?;
        let joined = self.start_nodeadm(join, sink).await;
        if joined.is_err() {
            // It would join at the next boot, when nobody looks whether the machine is proven, and its kubelet would go on
            // for ever.
            // What failed first is what must be told.
            if let Err(error) = self.hold_nodeadm_back(sink).await {
                sink.note(&format!("failed to {}", one_line(&error)));
            }
        }
        joined
    }

    /// `nodeadm` does not join at the next boot, nor goes on now, and its kubelet ends.
    pub(crate) async fn hold_nodeadm_back(&self, sink: &dyn Sink) -> Result<(), Problem> {
        let files = &self.host.files;
        if files.exists(tool::MAY_JOIN.into())? {
            files.remove(tool::MAY_JOIN.into())?;
        }
        // It starts the kubelet at its end. One that does not stop keeps nobody from stopping the kubelet.
        let (what, cmd) = stop(tool::RUN_UNIT);
        let nodeadm = self.tool(&what, &cmd, sink).await;
        let (what, cmd) = stop(kubelet::UNIT);
        let kubelet = self.tool(&what, &cmd, sink).await;
        nodeadm.and(kubelet).map(drop)
    }

    /// What `nodeadm` has written stays: it came with the image, and user data writes it again at each boot.
    pub(crate) async fn leave_by_nodeadm(&self, sink: &dyn Sink) -> Result<Reverted, Problem> {
        self.hold_nodeadm_back(sink).await?;
        Ok(Reverted::done(format!(
            "stopped `{}`, and removed `{}`, so `nodeadm` does not join any more",
            kubelet::UNIT,
            tool::MAY_JOIN
        )))
    }

    async fn start_nodeadm(&self, join: &Join, sink: &dyn Sink) -> Result<(), Problem> {
        let not_joined = |words| join.timed_out(tool::RUN_UNIT, words);
        let cmd = systemctl::act("restart", tool::RUN_UNIT).deadline(join.timeout());
        let ran = self.exec(&cmd, sink).await;
        if let Err(error) = ran.and_then(|output| output.success(&cmd)) {
            let words = self.words_of(tool::RUN_UNIT).await;
            return Err(not_joined(words.or_else(|| Some(error.to_string()))));
        }
        let what = format!("wait until `{}` runs", kubelet::UNIT);
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
