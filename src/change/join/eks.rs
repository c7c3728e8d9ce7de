//! EKS: Amazon's images start `nodeadm` after cloud-init. A condition that user data adds holds it back until this program
//! says that the machine is proven.

use super::Join;
use crate::{
    change::{Applier, ChangeError, JoinError, Sink},
    error::one_line,
    tools::{
        kubernetes::{kubeadm, nodeadm},
        systemctl,
    },
};

impl Applier {
    pub(super) async fn join_by_nodeadm(
        &self,
        join: &Join,
        sink: &dyn Sink,
    ) -> Result<(), ChangeError> {
        let files = &self.host.files;
        let instance = files.read_text(nodeadm::INSTANCE_ID.into())?;
        let instance = instance.unwrap_or_default();
        files.write(nodeadm::MAY_JOIN.into(), instance.as_bytes(), 0o600)?;
        let joined = self.start_nodeadm(join, sink).await;
        if joined.is_err() {
            // It would join at the next boot, when nobody looks whether the machine is proven, and its kubelet would go on
            // for ever.
            files.remove(nodeadm::MAY_JOIN.into())?;
            let stop = systemctl::act("stop", kubeadm::UNIT);
            let stopped = self
                .tool(&format!("stop `{}`", kubeadm::UNIT), &stop, sink)
                .await;
            // What failed first is what must be told.
            if let Err(error) = stopped {
                sink.note(&format!("failed to {}", one_line(&error)));
            }
        }
        joined
    }

    async fn start_nodeadm(&self, join: &Join, sink: &dyn Sink) -> Result<(), ChangeError> {
        let not_joined = |last_words| {
            ChangeError::from(JoinError::NotJoined {
                what: nodeadm::RUN_UNIT.to_owned(),
                seconds: join.timeout_seconds,
                last_words,
            })
        };
        let cmd = systemctl::act("restart", nodeadm::RUN_UNIT).deadline(join.timeout());
        let ran = self.exec(&cmd, sink).await;
        if let Err(error) = ran.and_then(|output| output.success(&cmd)) {
            let words = self.words_of(nodeadm::RUN_UNIT).await?;
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
            None => Err(not_joined(self.words_of(kubeadm::UNIT).await?)),
        }
    }
}
