//! A read-only host: files can be read, but writes, commands, HTTP requests, NVML and CUDA fail with a given reason.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use camino::{Utf8Path, Utf8PathBuf};

use super::exec::OnLine;
use super::files::FreeSpace;
use super::real::RealClock;
use super::system::ProcFiles;
use super::{
    Cmd, CudaFault, CudaView, Exec, ExecError, Files, FilesError, Gpu, Host, Http, HttpError,
    HttpRequest, HttpResponse, Nvml, Output, ReadFiles, Stat,
};

/// A file reader whose write operations fail.
#[derive(Debug, Clone)]
pub struct ReadOnly<R> {
    files: R,
    why: &'static str,
}

/// Rejects every command, HTTP request, and NVML or CUDA query.
#[derive(Debug, Clone, Copy)]
pub struct Rejecting {
    /// The reason in the errors.
    pub why: &'static str,
}

/// Creates a read-only host with these files. `why` is the reason in the errors.
pub fn host<R: ReadFiles + 'static>(files: R, why: &'static str) -> Host {
    let refusing = Rejecting { why };
    let files = Arc::new(ReadOnly::new(files, why));
    Host {
        files: files.clone(),
        exec: Arc::new(refusing),
        http: Arc::new(refusing),
        gpu: Arc::new(refusing),
        system: Arc::new(ProcFiles(files)),
        clock: Arc::new(RealClock),
    }
}

impl<R: ReadFiles> ReadOnly<R> {
    /// Wraps a file reader. `why` is the reason in the errors of write operations.
    pub fn new(files: R, why: &'static str) -> Self {
        Self { files, why }
    }

    fn refuse<T>(&self, verb: &'static str, path: &Utf8Path) -> Result<T, FilesError> {
        Err(FilesError::Io {
            verb,
            path: path.to_owned(),
            source: io::Error::new(io::ErrorKind::ReadOnlyFilesystem, self.why),
            disk: None,
        })
    }
}

impl<R: ReadFiles> ReadFiles for ReadOnly<R> {
    fn read(&self, path: &Utf8Path) -> Result<Option<Vec<u8>>, FilesError> {
        self.files.read(path)
    }

    fn stat(&self, path: &Utf8Path) -> Result<Option<Stat>, FilesError> {
        self.files.stat(path)
    }

    fn list(&self, directory: &Utf8Path) -> Result<Vec<String>, FilesError> {
        self.files.list(directory)
    }

    fn resolve(&self, path: &Utf8Path) -> Result<Option<Utf8PathBuf>, FilesError> {
        self.files.resolve(path)
    }

    fn free_space(&self, path: &Utf8Path) -> Result<FreeSpace, FilesError> {
        self.files.free_space(path)
    }
}

impl<R: ReadFiles> Files for ReadOnly<R> {
    fn write(&self, path: &Utf8Path, _: &[u8], _: u32) -> Result<(), FilesError> {
        self.refuse("write", path)
    }

    fn append(&self, path: &Utf8Path, _: &[u8], _: u32) -> Result<(), FilesError> {
        self.refuse("append to", path)
    }

    fn link(&self, path: &Utf8Path, _: &Utf8Path) -> Result<(), FilesError> {
        self.refuse("link", path)
    }

    fn chown(&self, path: &Utf8Path, _: u32, _: u32) -> Result<(), FilesError> {
        self.refuse("change the owner of", path)
    }

    fn remove(&self, path: &Utf8Path) -> Result<(), FilesError> {
        self.refuse("remove", path)
    }

    fn remove_empty_directory(&self, path: &Utf8Path) -> Result<bool, FilesError> {
        self.refuse("remove the directory", path)
    }

    fn create_directory(&self, path: &Utf8Path, _: u32) -> Result<(), FilesError> {
        self.refuse("create the directory", path)
    }

    fn sync_system(&self) -> Result<(), FilesError> {
        self.refuse("sync", Utf8Path::new("/"))
    }

    fn try_lock(&self, path: &Utf8Path) -> Result<Option<Box<dyn Send + Sync>>, FilesError> {
        self.refuse("lock", path)
    }
}

#[async_trait]
impl Exec for Rejecting {
    async fn run(&self, cmd: &Cmd, _: &mut OnLine<'_>) -> Result<Output, ExecError> {
        Err(ExecError::NotQueried {
            command: cmd.line(),
            why: self.why.to_owned(),
        })
    }
}

#[async_trait]
impl Http for Rejecting {
    async fn get(&self, url: &str, _: u64) -> Result<Vec<u8>, HttpError> {
        Err(HttpError::Transport {
            url: url.to_owned(),
            why: self.why.to_owned(),
        })
    }

    async fn ask(&self, request: &HttpRequest) -> Result<HttpResponse, HttpError> {
        Err(HttpError::Transport {
            url: request.url.clone(),
            why: self.why.to_owned(),
        })
    }
}

#[async_trait]
impl Gpu for Rejecting {
    async fn survey(&self) -> Nvml {
        Nvml::NotQueried {
            why: self.why.to_owned(),
        }
    }

    async fn compute(&self, _: &[String], _: Duration) -> CudaView {
        CudaView::without(CudaFault::NotQueried {
            why: self.why.to_owned(),
        })
    }
}
