//! Fetches modules that another machine compiled, and checks that the kernel accepts them.

use std::time::Duration;

use super::{SourceError, archive, compiler};
use crate::{
    host::{FilesError, Host, digest::sha256},
    tools::{
        kmod,
        module_file::modinfo,
        prebuilt::{self, BuildTarget, KernelInterface, Modules, Trust},
    },
};

/// Modules from a source.
pub(crate) struct Fetched {
    pub(crate) modules: Modules,
    /// The digest of the archive in the form `sha256:HEX`.
    pub(crate) digest: String,
    pub(crate) source: String,
}

/// The requirements for modules from a source.
pub(crate) struct Requirements {
    pub(crate) purpose: BuildTarget,
    pub(crate) compiler: Option<String>,
    pub(crate) kernel: KernelInterface,
    /// The modules. `None` for all modules of the archive.
    pub(crate) names: Option<Vec<String>>,
    /// Without keys, archives need no signature.
    pub(crate) trust: Trust,
}

impl Requirements {
    /// Reads the kernel that the modules are for.
    ///
    /// # Errors
    /// If a file of the kernel cannot be read.
    pub(crate) async fn of(
        host: &Host,
        purpose: BuildTarget,
        names: Option<Vec<String>>,
        trust: Trust,
    ) -> Result<Self, FilesError> {
        let release = purpose.kernel.as_str();
        Ok(Self {
            compiler: compiler(&*host.files, release)?,
            kernel: kernel(host, release).await?,
            names,
            trust,
            purpose,
        })
    }

    /// Fetches the modules from the first source with matching modules. `time_limit` applies to each source.
    ///
    /// # Errors
    /// If no source has them. The message contains the reason for each source. It is transient if the error of any source is.
    pub(crate) async fn fetch(
        &self,
        host: &Host,
        sources: &[String],
        time_limit: Duration,
    ) -> Result<Fetched, SourceError> {
        let (mut whys, mut is_transient) = (Vec::new(), false);
        for source in sources {
            let fetch = self.fetch_from(host, source, time_limit);
            let result = tokio::time::timeout(time_limit, fetch).await;
            match result.unwrap_or_else(|_| Err(SourceError::too_slow(time_limit))) {
                Ok(fetched) => return Ok(fetched),
                Err(error) => {
                    whys.push(format!("{source}: {error}"));
                    is_transient |= error.is_transient;
                }
            }
        }
        let archive = self.purpose.archive();
        Err(SourceError {
            why: format!("no source had a matching {archive}: {}", whys.join("; ")),
            is_transient,
        })
    }

    /// Fetches the modules from a source and checks them. They stay in memory, so that exactly the checked bytes are
    /// written.
    pub(crate) async fn fetch_from(
        &self,
        host: &Host,
        source: &str,
        time_limit: Duration,
    ) -> Result<Fetched, SourceError> {
        let name = self.purpose.archive();
        let unsigned = self.trust.keys.is_empty();
        // The configuration also rejects this, but it is not read here.
        if unsigned && source.starts_with("http://") {
            let why = "without a public key, a URL must not start with `http://`";
            return Err(why.to_owned().into());
        }
        let (archive, _) = archive(host, source, &name, &self.trust, time_limit).await?;
        let names = match &self.names {
            Some(names) => names.clone(),
            None => prebuilt::names(&archive).map_err(|why| format!("`{name}`: {why}"))?,
        };
        let modules = prebuilt::unpack(&archive, &self.purpose, self.compiler.as_deref(), &names);
        let modules = modules.map_err(|why| format!("`{name}`: {why}"))?;
        self.kernel
            .accepts(&modules)
            .map_err(|why| format!("`{name}`: {why}"))?;
        Ok(Fetched {
            modules,
            digest: format!("sha256:{}", sha256(&archive)),
            source: source.to_owned(),
        })
    }
}

/// Reads the data that decides which modules a kernel accepts.
pub(crate) async fn kernel(host: &Host, release: &str) -> Result<KernelInterface, FilesError> {
    let headers = kmod::directory_of(release).join("build");
    let read = |name: &str| host.files.read_lossy(&headers.join(name));
    let symbols = read("Module.symvers")?;
    let own = read("include/generated/utsrelease.h")?;
    Ok(KernelInterface {
        release: (own.as_deref().and_then(prebuilt::release))
            .unwrap_or(release)
            .to_owned(),
        magic: magic(host, release).await?,
        symbols: symbols
            .map(|text| prebuilt::symbols(&text))
            .unwrap_or_default(),
    })
}

/// Returns the `vermagic` of the in-tree modules of a kernel.
async fn magic(host: &Host, release: &str) -> Result<Option<String>, FilesError> {
    let list = host
        .files
        .read_text(&kmod::list_of(release))?
        .unwrap_or_default();
    let own = list
        .lines()
        .filter_map(|line| line.split(':').next())
        .find(|path| path.starts_with("kernel/"));
    let Some(path) = own.map(|own| kmod::directory_of(release).join(own)) else {
        return Ok(None);
    };
    if path.extension() == Some("ko") {
        let content = host.files.read(&path)?.unwrap_or_default();
        return Ok(modinfo(&content, "vermagic").map(str::to_owned));
    }
    // If no installed program can decompress the module, its `vermagic` stays unknown. The kernel compares it again
    // when it loads a module.
    let result = host
        .reader()
        .query(&kmod::field("vermagic", path.as_str()))
        .await;
    let magic = result
        .ok()
        .filter(crate::host::Output::ok)
        .map(|output| output.stdout.trim_end_matches('\n').to_owned());
    Ok(magic.filter(|text| !text.is_empty()))
}
