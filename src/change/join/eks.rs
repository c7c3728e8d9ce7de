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
        (self.host.files).write(nodeadm::MAY_JOIN.into(), b"", 0o600)?;
        // The first writes the kubelet's configuration again, with our part of it.
        for unit in [nodeadm::CONFIG_UNIT, nodeadm::RUN_UNIT] {
            let cmd = systemctl::act("restart", unit).deadline(join.timeout());
            let ran = self.exec(&cmd, sink).await;
            if let Err(error) = ran.and_then(|output| output.success(&cmd)) {
                let words = self.words_of(unit).await?;
                return Err(JoinError::NotJoined {
                    what: unit.to_owned(),
                    seconds: join.timeout_seconds,
                    last_words: words.or_else(|| Some(error.to_string())),
                }
                .into());
            }
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
            None => Err(JoinError::NotJoined {
                what: nodeadm::RUN_UNIT.to_owned(),
                seconds: join.timeout_seconds,
                last_words: self.words_of(kubeadm::UNIT).await?,
            }
            .into()),
        }
    }
}
