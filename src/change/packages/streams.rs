//! Module streams: one is enabled before its packages are installed, and the one from before is
//! enabled again when they are gone.

use camino::Utf8PathBuf;
use serde::{Deserialize, Serialize};

use super::not_verified;
use crate::{
    change::{Applier, Problem, Reverted, Sink, Undo},
    host::digest::sha256,
    tools::packages::Streams,
};

/// Enables the stream of a module that was enabled before, or none.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct RestoreStream {
    /// The module.
    pub module: String,
    /// The stream that the change enables.
    pub stream: String,
    /// The stream before.
    pub before: Option<String>,
    /// Whether the file that remembers it existed.
    pub existed: bool,
}

impl Applier {
    fn streams(&self) -> Result<&'static dyn Streams, Problem> {
        self.backend.streams().ok_or_else(|| {
            Problem::unsupported(format!(
                "enable module streams with {}",
                self.backend.name()
            ))
        })
    }

    pub(in crate::change) fn capture_stream(
        &self,
        module: &str,
        stream: &str,
    ) -> Result<Undo, Problem> {
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
    ) -> Result<(), Problem> {
        self.streams()?;
        self.exclusively(sink, self.move_stream(module, Some(stream), sink))
            .await
    }

    /// Enables a stream, or none. A package manager refuses to replace one stream by another.
    async fn move_stream(
        &self,
        module: &str,
        wanted: Option<&str>,
        sink: &dyn Sink,
    ) -> Result<(), Problem> {
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
        Err(not_verified(module, &found, &wanted))
    }

    /// A run that was killed between its two commands, or whose second one failed, leaves no stream
    /// enabled: the one before is enabled again at once. Later nobody could tell this from a reset by a
    /// person.
    pub(in crate::change) async fn reconcile_stream(
        &self,
        undo: &RestoreStream,
        sink: &dyn Sink,
    ) -> Result<Undo, Problem> {
        let unchanged = || Ok(Undo::RestoreStream(undo.clone()));
        let (module, Some(before)) = (&undo.module, &undo.before) else {
            return unchanged();
        };
        let streams = self.streams()?;
        // A command may have outlived the run.
        self.wait_for_locks(sink).await?;
        if *before == undo.stream || streams.enabled(&*self.host.files, module)?.is_some() {
            return unchanged();
        }
        self.exclusively(sink, self.move_stream(module, Some(before), sink))
            .await?;
        Ok(Undo::nothing(format!(
            "stream {before} of module {module} is enabled again"
        )))
    }

    /// The file that is there while an undo moves a module from one stream to another. The name of a module
    /// is the configuration's, so it is not used as a name of a file.
    fn stream_marker(&self, module: &str) -> Utf8PathBuf {
        self.state
            .join(format!("stream-{}", sha256(module.as_bytes())))
    }

    pub(in crate::change) async fn restore_stream(
        &self,
        undo: &RestoreStream,
        sink: &dyn Sink,
    ) -> Result<Reverted, Problem> {
        let (module, stream, before) = (&*undo.module, &*undo.stream, undo.before.as_deref());
        let streams = self.streams()?;
        let files = &self.host.files;
        let now = streams.enabled(&**files, module)?;
        let marker = self.stream_marker(module);
        // An undo that ended between its two commands has reset the module; without this, a person has.
        let is_between = now.is_none() && before.is_some() && files.exists(&marker)?;
        if !(is_between || now.as_deref() == Some(stream)) || before == Some(stream) {
            files.remove(&marker)?;
            return Ok(Reverted::nothing(format!(
                "stream {stream} of module {module} is not enabled by this program"
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
