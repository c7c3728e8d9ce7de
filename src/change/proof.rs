//! The proof as a change: captured, run, and recorded where it succeeded.

use camino::Utf8Path;

use super::{Applier, ChangeError, FileAfter, Probe, Sink, Undo, probe};

impl Applier {
    pub(super) async fn capture_probe(
        &self,
        probe: &Probe,
        record: &Utf8Path,
    ) -> Result<Undo, ChangeError> {
        let Probe::ContainerSeesGpus { runtime, image, .. } = probe;
        let image = match image {
            Some(image) => self.capture_image(*runtime, image).await?,
            // Made for the proof and removed by it; this is for a proof that is cut off.
            None => Undo::RemoveImage {
                runtime: *runtime,
                image: probe::IMAGE.to_owned(),
            },
        };
        let record = self.capture_files(&[record.to_owned()], |_| FileAfter::Unknown)?;
        Ok(Undo::Several {
            undos: vec![image, record],
        })
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
        probe::run(&self.host, &self.state, probe, sink).await?;
        self.host.files.write(record, inputs.as_bytes(), 0o600)?;
        Ok(())
    }
}
