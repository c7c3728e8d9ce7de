//! Module streams. A stream is enabled before its packages are installed, and the previous one is enabled again after they are
//! removed.

use camino::Utf8PathBuf;
use serde::{Deserialize, Serialize};

use crate::{
    change::{Applier, ChangeError, Reverted, Sink, Undo},
    host::digest::sha256,
    tools::packages::Streams,
};

/// Enables the previous stream of a module, or resets the module if it had none.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct RestoreStream {
    pub module: String,
    /// The stream that the change enables.
    pub stream: String,
    /// The previous stream.
    pub before: Option<String>,
    /// Whether the file that stores the stream existed.
    pub existed: bool,
}

impl Applier {
    fn streams(&self) -> Result<&'static dyn Streams, ChangeError> {
        self.backend.streams().ok_or_else(|| {
            ChangeError::unsupported(format!(
                "enable module streams with {}",
                self.backend.name()
            ))
        })
    }

    pub(in crate::change) fn capture_stream(
        &self,
        module: &str,
        stream: &str,
    ) -> Result<Undo, ChangeError> {
        let (streams, files) = (self.streams()?, &self.host.files);
        Ok(Undo::RestoreStream(RestoreStream {
            module: module.to_owned(),
            stream: stream.to_owned(),
            before: streams.enabled(&**files, module)?,
            existed: files.exists(&streams.path(module))?,
        }))
    }

    pub(in crate::change) async fn enable_stream(
        &self,
        module: &str,
        stream: &str,
        sink: &dyn Sink,
    ) -> Result<(), ChangeError> {
        self.streams()?;
        self.exclusively(sink, self.move_stream(module, Some(stream), sink))
            .await
    }

    /// Enables a stream, or only resets the module if `wanted` is `None`. The package manager does not switch directly from one
    /// stream to another, so the module is reset first.
    async fn move_stream(
        &self,
        module: &str,
        wanted: Option<&str>,
        sink: &dyn Sink,
    ) -> Result<(), ChangeError> {
        let (streams, settings) = (self.streams()?, self.settings());
        let now = || streams.enabled(&*self.host.files, module);
        if now()?.as_deref() == wanted {
            return Ok(());
        }
        if now()?.is_some() {
            let reset = streams.reset(&settings, module);
            self.run_with_retries("reset a module", reset, sink).await?;
        }
        if let Some(stream) = wanted {
            let enable = streams.enable(&settings, module, stream);
            self.run_with_retries("enable a module stream", enable, sink)
                .await?;
        }
        let found = now()?;
        if found.as_deref() == wanted {
            return Ok(());
        }
        let or_none = |stream: Option<&str>| format!("stream {}", stream.unwrap_or("none"));
        let (found, wanted) = (or_none(found.as_deref()), or_none(wanted));
        let what =
            format!("verify the module stream: `{module}` has {found}, but {wanted} is required");
        Err(ChangeError::new("package-not-verified", what))
    }

    /// If a run was killed after the module was reset, or if the new stream could not be enabled, no stream is enabled. Enables
    /// the previous stream immediately, because later this state could not be distinguished from a manual reset.
    pub(in crate::change) async fn reconcile_stream(
        &self,
        undo: &RestoreStream,
        sink: &dyn Sink,
    ) -> Result<Undo, ChangeError> {
        let unchanged = || Ok(Undo::RestoreStream(undo.clone()));
        let (module, Some(before)) = (&undo.module, &undo.before) else {
            return unchanged();
        };
        let streams = self.streams()?;
        // A command may still be running after its run was killed.
        self.wait_for_locks(sink).await?;
        if *before == undo.stream || streams.enabled(&*self.host.files, module)?.is_some() {
            return unchanged();
        }
        self.exclusively(sink, self.move_stream(module, Some(before), sink))
            .await?;
        Ok(Undo::nothing(format!(
            "stream {before} of module {module} was enabled again"
        )))
    }

    /// The marker file that exists while an undo changes the stream of a module. Its name contains a digest instead of the
    /// module name, because the module name comes from the configuration and may not be a safe file name.
    fn stream_marker(&self, module: &str) -> Utf8PathBuf {
        self.state
            .join(format!("stream-{}", sha256(module.as_bytes())))
    }

    pub(in crate::change) async fn restore_stream(
        &self,
        undo: &RestoreStream,
        sink: &dyn Sink,
    ) -> Result<Reverted, ChangeError> {
        let (module, stream, before) = (&*undo.module, &*undo.stream, undo.before.as_deref());
        let streams = self.streams()?;
        let files = &self.host.files;
        let now = streams.enabled(&**files, module)?;
        let marker = self.stream_marker(module);
        // If no stream is enabled: with the marker, an interrupted undo reset the module; without it, the administrator did.
        let is_between = now.is_none() && before.is_some() && files.exists(&marker)?;
        if !(is_between || now.as_deref() == Some(stream)) || before == Some(stream) {
            files.remove(&marker)?;
            return Ok(Reverted::nothing(format!(
                "stream {stream} of module {module} is no longer enabled, or was already enabled before"
            )));
        }
        files.write(&marker, format!("{module}:{stream}\n").as_bytes(), 0o600)?;
        self.exclusively(sink, self.move_stream(module, before, sink))
            .await?;
        files.remove(&marker)?;
        let path = streams.path(module);
        // A reset leaves a file without values.
        if before.is_none() && !undo.existed {
            self.host.files.remove(&path)?;
        }
        Ok(Reverted::done(match before {
            Some(before) => format!("enabled stream {before} of module {module} again"),
            None => format!("reset module {module}"),
        }))
    }
}
