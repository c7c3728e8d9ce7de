//! Whether the part of containerd that the kubelet talks to has come up.

use super::{Applier, ChangeError, RuntimeError, RuntimeSettings, Sink, runtime};
use crate::tools::{crictl, ctr};

impl Applier {
    /// The list of plugins tells it, and where `crictl` is installed, so does CRI itself.
    pub(super) async fn serves_cri(
        &self,
        settings: &RuntimeSettings,
        sink: &dyn Sink,
    ) -> Result<(), ChangeError> {
        let runtime = settings.kind.name();
        let plugins = self.answer_of("ctr", &ctr::plugins()).await?;
        let status = (plugins.as_ref()).and_then(|output| ctr::cri_status(&output.stdout));
        let is_loaded = status == Some("ok");
        match status {
            None | Some("ok") => {}
            Some(status) => {
                return Err(RuntimeError::NoCri {
                    runtime,
                    status: status.to_owned(),
                }
                .into());
            }
        }
        let clock = &self.host.clock;
        let started = clock.monotonic();
        loop {
            let Some(said) = self.answer_of("crictl", &crictl::info()).await? else {
                return Ok(());
            };
            let flaw = if said.ok() {
                crictl::parse_info(&said.stdout).map(|conditions| {
                    let flaw = |name| conditions.iter().find(|one| one.name == name)?.flaw();
                    // A new node has no pod network before it joins.
                    (flaw("RuntimeReady"), flaw("NetworkReady"))
                })
            } else if is_loaded && crictl::knows_no_service(&said.stderr) {
                return Ok(());
            } else {
                Err(runtime::last_lines(&said))
            };
            let why = match flaw {
                Ok((None, network)) => {
                    if let Some(network) = network {
                        sink.line(&format!("{runtime} has no pod network yet: {network}"));
                    }
                    return Ok(());
                }
                Ok((Some(why), _)) | Err(why) => why,
            };
            if clock.monotonic().saturating_sub(started) >= runtime::ANSWER_TIME_LIMIT {
                return Err(RuntimeError::NoCri {
                    runtime,
                    status: why,
                }
                .into());
            }
            self.pause_for(runtime::POLL, "wait for the CRI plugin to be ready")
                .await?;
        }
    }
}
