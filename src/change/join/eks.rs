//! EKS: Amazon's images start `nodeadm` after cloud-init. A condition that user data adds holds it back until this program
//! says that the machine is proven.

use super::Join;
use crate::{
    change::{Applier, ChangeError, JoinError, Sink},
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
        let cmd = systemctl::act("restart", nodeadm::RUN_UNIT).deadline(join.timeout());
        let ran = self.exec(&cmd, sink).await;
        if let Err(error) = ran.and_then(|output| output.success(&cmd)) {
            // It would join at the next boot, when nobody looks whether the machine is proven.
            files.remove(nodeadm::MAY_JOIN.into())?;
            let words = self.words_of(nodeadm::RUN_UNIT).await?;
            return Err(JoinError::NotJoined {
                what: nodeadm::RUN_UNIT.to_owned(),
                seconds: join.timeout_seconds,
                last_words: words.or_else(|| Some(error.to_string())),
            }
            .into());
        }
        let what = format!("wait until `{}` runs", kubeadm::UNIT);
        let runs = self
            .awaited(&what, join.timeout(), || async {
                let unit = self.unit_state(kubeadm::UNIT).await?;
                Ok(unit.is_active().then_some(()))
            })
            .await?;
        if runs.is_some() {
            return Ok(());
        }
        files.remove(nodeadm::MAY_JOIN.into())?;
        // It would go on for ever, and join at a moment that nobody awaits.
        let last_words = self.words_of(kubeadm::UNIT).await?;
        let stop = systemctl::act("stop", kubeadm::UNIT);
        self.tool(&format!("stop `{}`", kubeadm::UNIT), &stop, sink)
            .await?;
        Err(JoinError::NotJoined {
            what: nodeadm::RUN_UNIT.to_owned(),
            seconds: join.timeout_seconds,
            last_words,
        }
        .into())
    }
}
