//! EKS: Amazon's images start `nodeadm` after cloud-init. User data holds it back, so that the node joins when it is
//! proven.

use super::Join;
use crate::{
    change::{Applier, ChangeError, JoinError, Sink},
    host::Cmd,
    tools::{kubernetes::nodeadm, systemctl},
};

impl Applier {
    pub(super) async fn join_by_nodeadm(
        &self,
        join: &Join,
        sink: &dyn Sink,
    ) -> Result<(), ChangeError> {
        let unmask = Cmd::new("systemctl", ["unmask", "--runtime", nodeadm::RUN_UNIT]);
        let unit = nodeadm::RUN_UNIT;
        self.tool(&format!("allow `{unit}` to start"), &unmask, sink)
            .await?;
        for (verb, unit) in [("restart", nodeadm::CONFIG_UNIT), ("start", unit)] {
            let cmd = systemctl::act(verb, unit).deadline(join.timeout());
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
        let what = format!("wait until `{unit}` has joined");
        let joined = self
            .awaited(&what, join.timeout(), || async {
                self.kubelet_kubeconfig()
            })
            .await?;
        match joined {
            Some(_) => Ok(()),
            None => Err(JoinError::NotJoined {
                what: unit.to_owned(),
                seconds: join.timeout_seconds,
                last_words: self.words_of(unit).await?,
            }
            .into()),
        }
    }
}
