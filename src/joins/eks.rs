//! EKS: Amazon images start `nodeadm` after cloud-init. A condition in user data blocks it until gpu-bootstrap has validated
//! the machine.

use super::Join;
use crate::work::{Hands, Problem, Reverted, Sink};
use crate::{
    error::one_line,
    host::Cmd,
    tools::{
        kubernetes::{kubeadm, nodeadm},
        systemctl,
    },
};

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
        let instance = files.read_text(nodeadm::INSTANCE_ID.into())?;
        let instance = instance.unwrap_or_default();
        files.write(nodeadm::MAY_JOIN.into(), instance.as_bytes(), 0o600)?;
        let joined = self.start_nodeadm(join, sink).await;
        if joined.is_err() {
            // Otherwise it would join at the next boot without a validation, and its kubelet would continue to run. The first
            // error takes precedence.
            if let Err(error) = self.hold_nodeadm_back(sink).await {
                sink.note(&format!("failed to {}", one_line(&error)));
            }
        }
        joined
    }

    /// Prevents `nodeadm` from joining, now and at the next boot, and stops its kubelet.
    pub(crate) async fn hold_nodeadm_back(&self, sink: &dyn Sink) -> Result<(), Problem> {
        let files = &self.host.files;
        if files.exists(nodeadm::MAY_JOIN.into())? {
            files.remove(nodeadm::MAY_JOIN.into())?;
        }
        // Stop `nodeadm` first, because it starts the kubelet at the end. If this fails, still stop the kubelet.
        let (what, cmd) = stop(nodeadm::RUN_UNIT);
        let nodeadm = self.tool(&what, &cmd, sink).await;
        let (what, cmd) = stop(kubeadm::UNIT);
        let kubelet = self.tool(&what, &cmd, sink).await;
        nodeadm.and(kubelet).map(drop)
    }

    /// Files of `nodeadm` are kept: it is part of the image, and user data writes them again at each boot.
    pub(crate) async fn leave_by_nodeadm(&self, sink: &dyn Sink) -> Result<Reverted, Problem> {
        self.hold_nodeadm_back(sink).await?;
        Ok(Reverted::done(format!(
            "stopped `{}` and removed `{}`, so `nodeadm` no longer joins",
            kubeadm::UNIT,
            nodeadm::MAY_JOIN
        )))
    }

    async fn start_nodeadm(&self, join: &Join, sink: &dyn Sink) -> Result<(), Problem> {
        let not_joined = |words| join.timed_out(nodeadm::RUN_UNIT, words);
        let cmd = systemctl::act("restart", nodeadm::RUN_UNIT).deadline(join.timeout());
        let ran = self.exec(&cmd, sink).await;
        if let Err(error) = ran.and_then(|output| output.success(&cmd)) {
            let words = self.words_of(nodeadm::RUN_UNIT).await;
            return Err(not_joined(words.or_else(|| Some(error.to_string()))));
        }
        let what = format!("wait until `{}` is running", kubeadm::UNIT);
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
