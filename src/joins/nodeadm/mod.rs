//! EKS: Amazon's images start `nodeadm` after cloud-init. A condition that user data adds holds it back until this program
//! says that the machine is proven.

mod tool;

pub use tool::{
    CONFIG, DROP_INS, INSTANCE_ID, KUBECONFIG, MAY_JOIN, PROGRAM, RUN_UNIT, SNAP_UNIT,
    configuration,
};

use super::{Join, kubeadm};
use crate::work::{Hands, Problem, Reverted, Sink};
use crate::{error::one_line, host::Cmd, tools::systemctl};

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
        let (what, cmd) = stop(kubeadm::UNIT);
        let kubelet = self.tool(&what, &cmd, sink).await;
        nodeadm.and(kubelet).map(drop)
    }

    /// What `nodeadm` has written stays: it came with the image, and user data writes it again at each boot.
    pub(crate) async fn leave_by_nodeadm(&self, sink: &dyn Sink) -> Result<Reverted, Problem> {
        self.hold_nodeadm_back(sink).await?;
        Ok(Reverted::done(format!(
            "stopped `{}`, and removed `{}`, so `nodeadm` does not join any more",
            kubeadm::UNIT,
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
        let what = format!("wait until `{}` runs", kubeadm::UNIT);
        let runs = self
            .awaited(&what, join.timeout(), || async {
                let unit = self.unit_state(kubeadm::UNIT).await?;
                Ok(unit.is_active().then_some(()))
            })
            .await?;
        match runs {
            Some(()) => Ok(()),
            None => Err(not_joined(self.words_of(kubeadm::UNIT).await)),
        }
    }
}
