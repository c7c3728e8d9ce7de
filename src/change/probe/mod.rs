//! Probes as changes: captured, run, and recorded after success. A probe is a run that proves
//! function.

mod client;
mod container;
mod error;
mod podman;
mod root;

use camino::Utf8Path;

pub use error::ProbeError;

use super::{Applier, ChangeError, FileAfter, Probe, Sink, Undo};
use crate::config::desired::RuntimeKind;

impl Applier {
    pub(super) async fn capture_probe(
        &self,
        probe: &Probe,
        record: &Utf8Path,
    ) -> Result<Undo, ChangeError> {
        let Probe::ContainerSeesGpus { runtime, image, .. } = probe;
        let record = self.capture_files(&[record.to_owned()], |_| FileAfter::Unknown)?;
        let image = match (image, runtime) {
            (Some(image), _) => self.capture_image(*runtime, image).await?,
            // The probe builds and removes the image; this undo is for an interrupted probe.
            (None, RuntimeKind::Docker) => Undo::RemoveImage {
                runtime: *runtime,
                image: container::IMAGE.to_owned(),
            },
            (None, RuntimeKind::Containerd | RuntimeKind::Podman | RuntimeKind::Crio) => {
                return Ok(record);
            }
        };
        Ok(Undo::Several {
            undos: vec![image, record],
        })
    }

    /// The undo of a successful probe: its image is already removed, and a later query for it could
    /// fail for other reasons.
    pub(super) fn undo_of_successful_probe(undo: Undo) -> Undo {
        match undo {
            Undo::Several { undos } => Undo::Several {
                undos: undos
                    .into_iter()
                    .filter(|undo| {
                        !matches!(undo, Undo::RemoveImage { image, .. } if image == container::IMAGE)
                    })
                    .collect(),
            },
            other => other,
        }
    }

    pub(super) async fn run_probe(
        &self,
        probe: &Probe,
        record: &Utf8Path,
        inputs: &str,
        sink: &dyn Sink,
    ) -> Result<(), ChangeError> {
        let Probe::ContainerSeesGpus { runtime, image, .. } = probe;
        if let Some(image) = image {
            self.pull_image(*runtime, image, sink).await?;
        }
        container::run(&self.host, &self.state, probe, sink).await?;
        self.host.files.write(record, inputs.as_bytes(), 0o600)?;
        Ok(())
    }
}
