//! Probes as changes: captures the undo, runs the probe, and records a success. A probe is a validation run.

mod container;
pub mod host;
mod job;
mod record;
mod root;

use std::time::Duration;

use camino::Utf8Path;

pub use record::ValidationRecord;

use super::{Applier, Change, ChangeError, FileAfter, Probe, Sink, Undo};
use crate::tools::probe::ProbeDocument;

/// The remedy if no specific one is known.
const SEE_CHECK: &str =
    "run `gpu-bootstrap check`, which reports the faulty layer (driver, CDI or runtime)";

/// The kernel's boot id.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The command that runs a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProbeCaller {
    /// `install`, which pulls a missing image, because it records its changes.
    Install,
    /// `check`, which only writes the validation record.
    Check,
}

impl Applier {
    /// Runs the probe of a change for `check --validate`, without a journal. Other changes are ignored.
    ///
    /// # Errors
    /// The validation error.
    pub async fn validate(&self, change: &Change, sink: &dyn Sink) -> Result<(), ChangeError> {
        let Change::RunProbe {
            probe,
            record,
            inputs,
            ..
        } = change
        else {
            return Ok(());
        };
        self.run_probe(probe, record, inputs, ProbeCaller::Check, sink)
            .await
    }

    /// Removes the container of an interrupted validation, and the image that it has created.
    ///
    /// # Errors
    /// If the runtime returns an error.
    pub async fn clear_validation(
        &self,
        change: &Change,
        sink: &dyn Sink,
    ) -> Result<(), ChangeError> {
        let Change::RunProbe { probe, .. } = change else {
            return Ok(());
        };
        container::clear(&self.host, probe, sink).await
    }

    pub(super) async fn capture_probe(
        &self,
        probe: &Probe,
        record: &Utf8Path,
    ) -> Result<Undo, ChangeError> {
        let record = if self.host.files.exists(record)? {
            Undo::nothing("the undo of an earlier validation removes the record")
        } else {
            // `check --validate` may write the record again later, so the undo accepts any content.
            self.capture_files([(record.to_owned(), FileAfter::Any)])?
        };
        let (runtime, image) = match probe {
            Probe::ContainerSeesGpus { runtime, image, .. } => (runtime, image),
            Probe::HostComputes { .. } => return Ok(record),
        };
        let image = match (image, runtime) {
            (Some(image), _) => self.capture_image(*runtime, image).await?,
            // The probe creates and removes the image. This undo is for an interrupted probe.
            (None, runtime) if (runtime.runtime().containers()).is_some_and(job::makes_image) => {
                Undo::RemoveImage {
                    runtime: *runtime,
                    image: job::IMAGE.to_owned(),
                }
            }
            (None, _) => return Ok(record),
        };
        Ok(Undo::Several {
            undos: vec![image, record],
        })
    }

    /// The undo of a successful probe, without the image that the probe has created and removed. A later search for this image
    /// is unnecessary and could fail.
    pub(super) fn undo_of_successful_probe(undo: Undo) -> Undo {
        match undo {
            Undo::Several { undos } => Undo::Several {
                undos: undos
                    .into_iter()
                    .filter(|undo| match undo {
                        Undo::RemoveImage { image, .. } => image != job::IMAGE,
                        _ => true,
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
        caller: ProbeCaller,
        sink: &dyn Sink,
    ) -> Result<(), ChangeError> {
        let image = match probe {
            Probe::ContainerSeesGpus {
                runtime,
                image: Some(image),
                pull_timeout_seconds,
                archive,
                ..
            } => {
                let limit = Duration::from_secs(*pull_timeout_seconds);
                Some((*runtime, image, archive.as_ref(), limit))
            }
            _ => None,
        };
        if let (Some((runtime, image, ..)), ProbeCaller::Check) = (image, caller)
            && self.has_image(runtime, image).await? != Some(true)
        {
            let what = format!("{} does not have the image `{image}`", runtime.name());
            return Err(ChangeError::new("image-missing", what)
                .advice("run `gpu-bootstrap install`, which pulls it; `check` does not"));
        }
        // Remove the previous record first, so that a failed validation does not keep it.
        self.host.files.remove(record)?;
        if let (Some((runtime, image, archive, limit)), ProbeCaller::Install) = (image, caller) {
            self.pull_image(runtime, image, archive, limit, sink)
                .await?;
        }
        let result = container::run(&self.host, &self.state, probe, sink).await?;
        self.write_record(record, inputs, result)
    }

    /// Records the result of a host probe that `check --validate` has run.
    ///
    /// # Errors
    /// If the record could not be written.
    pub fn record_host(
        &self,
        change: &Change,
        document: &ProbeDocument,
    ) -> Result<(), ChangeError> {
        let Change::RunProbe { record, inputs, .. } = change else {
            return Ok(());
        };
        self.write_record(record, inputs, host::in_words(document))
    }

    fn write_record(
        &self,
        record: &Utf8Path,
        inputs: &str,
        result: String,
    ) -> Result<(), ChangeError> {
        let files = &*self.host.files;
        let boot = files.read_text(BOOT_ID.into())?;
        let text = ValidationRecord {
            inputs: inputs.to_owned(),
            boot: boot.map(|boot| boot.trim().to_owned()),
            at: Some(self.host.clock.now().to_string()),
            result: Some(result),
        }
        .text();
        files.write(record, text.as_bytes(), 0o600)?;
        Ok(())
    }
}
