//! A machine whose package manager reads a bundle, and whose keys come from it. Only commands of this run are changed.

use std::{collections::BTreeSet, sync::Arc};

use async_trait::async_trait;
use camino::{Utf8Path, Utf8PathBuf};

use super::Bundle;
use crate::{
    error::one_line,
    host::{
        Cmd, Exec, ExecError, Files, FilesError, Host, Http, HttpError, HttpRequest, HttpResponse,
        Output, exec::OnLine,
    },
    model::packages::Repository,
    tools::packages::{Backend, mirrors::Mirrors},
};

/// Runs commands of the package manager with the sources of the bundle.
pub(super) struct BundledPackages {
    inner: Arc<dyn Exec>,
    files: Arc<dyn Files>,
    mirrors: Option<&'static dyn Mirrors>,
    bundle: Arc<Bundle>,
    /// The directory of the source files.
    sources: Utf8PathBuf,
}

impl BundledPackages {
    pub(super) fn new(
        host: &Host,
        backend: &'static dyn Backend,
        bundle: Arc<Bundle>,
        sources: &Utf8Path,
    ) -> Self {
        Self {
            inner: Arc::clone(&host.exec),
            files: Arc::clone(&host.files),
            mirrors: backend.mirrors(),
            bundle,
            sources: sources.to_owned(),
        }
    }

    /// Writes the sources that the machine has now, because a step may have added one. An unchanged file is not written again.
    pub(super) fn write_sources(&self) -> Result<(), FilesError> {
        let Some(mirrors) = self.mirrors else {
            return Ok(());
        };
        let Bundle {
            directory,
            manifest,
        } = &*self.bundle;
        for (path, text) in
            mirrors.sources(&*self.files, directory, &manifest.mirrors, &self.sources)?
        {
            if self.files.read(&path)?.as_deref() != Some(text.as_bytes()) {
                self.files.write(&path, text.as_bytes(), 0o644)?;
            }
        }
        Ok(())
    }
}

#[async_trait]
impl Exec for BundledPackages {
    async fn run(&self, cmd: &Cmd, on_line: &mut OnLine<'_>) -> Result<Output, ExecError> {
        let redirected = (self.mirrors).and_then(|mirrors| mirrors.redirected(cmd, &self.sources));
        let Some(redirected) = redirected else {
            return self.inner.run(cmd, on_line).await;
        };
        self.write_sources().map_err(|error| ExecError::Spawn {
            command: cmd.line(),
            why: one_line(&error),
        })?;
        self.inner.run(&redirected, on_line).await
    }
}

/// Answers requests of the keys of the configured repositories. The manifest is not signed, so it must not answer other requests,
/// whose contents may be verified in another way.
pub(super) struct BundledKeys {
    inner: Arc<dyn Http>,
    files: Arc<dyn Files>,
    bundle: Arc<Bundle>,
    /// The URLs of the keys.
    urls: BTreeSet<String>,
}

impl BundledKeys {
    pub(super) fn new(host: &Host, bundle: Arc<Bundle>, repositories: &[Repository]) -> Self {
        let urls = repositories.iter().filter_map(|one| one.key_url.clone());
        Self {
            inner: Arc::clone(&host.http),
            files: Arc::clone(&host.files),
            bundle,
            urls: urls.collect(),
        }
    }
}

#[async_trait]
impl Http for BundledKeys {
    async fn get(&self, url: &str, limit: u64) -> Result<Vec<u8>, HttpError> {
        let Bundle {
            directory,
            manifest,
        } = &*self.bundle;
        let key = (manifest.keys.iter())
            .filter(|_| self.urls.contains(url))
            .find(|key| key.url == url);
        let Some(key) = key else {
            return self.inner.get(url, limit).await;
        };
        let failed = |why: String| HttpError::Transport {
            url: url.to_owned(),
            why,
        };
        let stat = (self.files.stat(&directory.join(&key.path)))
            .map_err(|error| failed(one_line(&error)))?;
        if stat.is_some_and(|stat| stat.size > limit) {
            return Err(HttpError::TooLarge {
                url: url.to_owned(),
                limit,
            });
        }
        (self.bundle.content(&*self.files, &key.path)).map_err(|error| failed(one_line(&error)))
    }

    async fn ask(&self, request: &HttpRequest) -> Result<HttpResponse, HttpError> {
        self.inner.ask(request).await
    }
}
