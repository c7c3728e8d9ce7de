//! Kernel modules that are compiled once for many machines: packs the modules that DKMS has built, and publishes them for other
//! machines.

pub(crate) mod fetch;
pub(crate) mod package;
pub(crate) mod registry;

use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use serde::Serialize;

pub(crate) use registry::Registry;

use crate::{
    config::desired::{DriverSpec, Prebuilt, Publish},
    dkms,
    error::one_line,
    facts::Facts,
    host::{
        Files, FilesError, Host, ReadFiles,
        trusted::{refuse_foreign, unusable_secret},
    },
    model::{
        paths,
        version::{DriverVersion, KernelVersion},
    },
    state::loaded_driver,
    tools::{
        kmod,
        module_file::{flavor_of_license, modinfo},
        oci::{self, Address},
        prebuilt::{self, BuildTarget, LIMIT, Modules, PrivateKey, SIGNATURE, TOOK, Trust, Unfit},
    },
};

/// The time limit for one source of modules. It is shorter than compiling, which takes 80 to 275 s.
pub(crate) const SOURCE_TIME_LIMIT: Duration = Duration::from_secs(60);

/// The same if the machine never compiles modules, so that a slow download is better than none.
pub(crate) const ONLY_SOURCE_TIME_LIMIT: Duration = Duration::from_secs(300);

/// Maximum number of attempts to write an archive and its signature if other machines write the same names.
const WRITES: usize = 4;

/// The maximum size of a signature, in bytes. A minisign signature has about 300.
pub(crate) const SIGNATURE_LIMIT: u64 = 16 << 10;

/// The reason that a source did not provide modules.
#[derive(Debug, Clone, Default, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub(crate) struct SourceError {
    pub(crate) why: String,
    /// Whether a later attempt may succeed, such as after a network failure.
    pub(crate) is_transient: bool,
}

impl SourceError {
    /// Adds the failed action or the source.
    pub(crate) fn within(self, what: &str) -> Self {
        Self {
            why: format!("{what}: {}", self.why),
            ..self
        }
    }

    /// The source did not respond in time.
    pub(crate) fn too_slow(limit: Duration) -> Self {
        Self {
            why: format!("it took more than {} s", limit.as_secs()),
            is_transient: true,
        }
    }
}

/// A permanent reason.
impl From<String> for SourceError {
    fn from(why: String) -> Self {
        Self {
            why,
            is_transient: false,
        }
    }
}

impl From<SourceError> for String {
    fn from(error: SourceError) -> Self {
        error.why
    }
}

/// A DKMS build for one kernel.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct Built {
    /// Its DKMS name.
    pub(crate) name: String,
    pub(crate) driver: DriverVersion,
    pub(crate) kernel: KernelVersion,
    pub(crate) architecture: String,
    /// The source of the modules, as `modules fetch` wrote it to the DKMS log. `None` if DKMS compiled the modules without
    /// `modules fetch`.
    pub(crate) origin: Option<String>,
    #[serde(skip)]
    directory: Utf8PathBuf,
}

/// The message if the builds cannot be read.
pub(crate) const BUILDS_UNREADABLE: &str = "failed to read the modules built by DKMS";

/// Returns the DKMS builds of the NVIDIA driver.
pub(crate) fn built(files: &dyn ReadFiles) -> Result<Vec<Built>, FilesError> {
    let mut found = Vec::new();
    for build in dkms::builds(files)? {
        let directory = build.modules();
        let (Ok(driver), Ok(kernel)) = (build.version.parse(), build.kernel.parse()) else {
            continue;
        };
        if !(files.list(&directory)?.iter()).any(|file| kmod::is_nvidia_module(file)) {
            continue;
        }
        let log = files.read_lossy(&build.log())?.unwrap_or_default();
        found.push(Built {
            name: build.module,
            driver,
            kernel,
            architecture: build.architecture,
            origin: prebuilt::said(&log).last().map(str::to_owned),
            directory,
        });
    }
    Ok(found)
}

/// An archive for other machines.
pub(crate) struct Packed {
    pub(crate) name: String,
    pub(crate) content: Vec<u8>,
    /// In minisign format.
    pub(crate) signature: Option<String>,
}

impl Packed {
    /// Creates the archive, and signs it if there is a key.
    pub(crate) fn new(
        (name, content): (String, Vec<u8>),
        key: Option<&PrivateKey>,
        host: &Host,
    ) -> Self {
        let signature = key.map(|key| key.sign(&content, &name, host.clock.now()));
        Self {
            name,
            content,
            signature,
        }
    }

    /// Writes the archive to a directory. The signature is written first, so that no machine finds the archive without it. If
    /// another machine writes the same names at the same time, the last one to finish sees a mixed pair and writes its own
    /// again.
    pub(crate) fn write(
        &self,
        files: &dyn Files,
        directory: &Utf8Path,
    ) -> Result<Utf8PathBuf, FilesError> {
        let path = directory.join(&self.name);
        let Some(signature) = &self.signature else {
            files.write(&path, &self.content, 0o644)?;
            return Ok(path);
        };
        let companions = signature_of(&path);
        for _ in 0..WRITES {
            files.write(&companions, signature.as_bytes(), 0o644)?;
            files.write(&path, &self.content, 0o644)?;
            let has_own = |path: &Utf8Path, own: &[u8]| {
                let found = files.read(path)?;
                Ok::<_, FilesError>(found.as_deref() == Some(own))
            };
            if has_own(&companions, signature.as_bytes())? == has_own(&path, &self.content)? {
                break;
            }
        }
        Ok(path)
    }

    /// Uploads the archive to a registry.
    pub(crate) async fn push(&self, registry: &mut Registry<'_>) -> Result<(), String> {
        let name = format!("{}{SIGNATURE}", self.name);
        let mut files = vec![oci::File {
            name: &self.name,
            media_type: "application/gzip",
            content: &self.content,
        }];
        files.extend(self.signature.as_ref().map(|signature| oci::File {
            name: &name,
            media_type: "text/plain",
            content: signature.as_bytes(),
        }));
        registry.push(&oci::tag(&self.name), &files).await
    }
}

/// Returns the path of an archive's signature.
pub(crate) fn signature_of(archive: &Utf8Path) -> Utf8PathBuf {
    format!("{archive}{SIGNATURE}").into()
}

/// The contents of an archive and of its signature. Each is `None` if it is missing or too large.
type Pair = (Option<Vec<u8>>, Option<Vec<u8>>);

/// Reads an archive in a directory and its signature, if they exist and have a plausible size.
pub(crate) fn pair_in(files: &dyn ReadFiles, archive: &Utf8Path) -> Result<Pair, FilesError> {
    let read = |path: &Utf8Path, limit: u64| match files.stat(path)? {
        Some(stat) if stat.size <= limit => files.read(path),
        _ => Ok(None),
    };
    Ok((
        read(archive, LIMIT)?,
        read(&signature_of(archive), SIGNATURE_LIMIT)?,
    ))
}

/// Reads the private key that signs archives.
pub(crate) fn private_key(files: &dyn ReadFiles, path: &Utf8Path) -> Result<PrivateKey, String> {
    let plain = |error: FilesError| one_line(&error);
    if let Some(why) = unusable_secret(files, path).map_err(plain)? {
        return Err(format!("the private key `{path}` cannot be used: {why}"));
    }
    let text = files.read_lossy(path).map_err(plain)?.unwrap_or_default();
    PrivateKey::read(&text).map_err(|why| format!("the private key `{path}` cannot be used: {why}"))
}

/// Publishes the loaded modules if DKMS compiled them here. Returns the archive name and its destination as text, or `None` if
/// there is nothing to publish or the archive is already published.
pub(crate) async fn publish(
    host: &Host,
    facts: &Facts,
    driver: &DriverSpec,
    spec: &Publish,
) -> Result<Option<String>, String> {
    let (Some(module), Some(kernel), Some(os)) =
        (&driver.compiled_as, &facts.kernel.running, &facts.os)
    else {
        return Ok(None);
    };
    let all = built(&*host.files).map_err(|error| one_line(&error))?;
    // Publish only the loaded version. DKMS may have another version that was not validated on this machine.
    let loaded = loaded_driver(&*host.files).map_err(|error| one_line(&error))?;
    let compiled = |one: &Built| {
        let taken = one
            .origin
            .as_ref()
            .is_some_and(|said| said.starts_with(TOOK));
        one.name == *module
            && one.kernel == *kernel
            && loaded.as_ref() == Some(&one.driver)
            && !taken
    };
    let Some(one) = all.into_iter().find(compiled) else {
        return Ok(None);
    };
    let purpose = BuildTarget {
        distribution: os.id.clone(),
        kernel: kernel.clone(),
        architecture: one.architecture.clone(),
        driver: one.driver.clone(),
        flavor: driver.flavor,
    };
    let name = purpose.archive();
    let directory = Utf8PathBuf::from(&spec.to);
    let registry = || {
        Address::parse(&spec.to).map(|to| Registry::new(host, to, SOURCE_TIME_LIMIT).for_writing())
    };
    let key = match &spec.key {
        Some(path) => Some(private_key(&*host.files, path)?),
        None => None,
    };
    let trust = (driver.prebuilt.as_ref()).map_or_else(Trust::default, Prebuilt::trust);
    let is_there = match registry() {
        Some(mut registry) => {
            let signature = format!("{name}{SIGNATURE}");
            match registry.layers(&oci::tag(&name)).await? {
                None => false,
                // Both files are in one manifest, so they match.
                Some(_) if trust.not_before.is_none() => true,
                Some(layers) if !layers.iter().any(|layer| layer.is(&signature)) => false,
                Some(layers) => {
                    let mut source = Source::Tag(registry, layers);
                    let archive = source.bring(&name, LIMIT, false).await?;
                    let signature = source.bring(&signature, SIGNATURE_LIMIT, false).await?;
                    prebuilt::verify(&archive, &name, &signature, &trust).is_ok()
                }
            }
        }
        None => {
            let (directory, path) = (directory.clone(), directory.join(&name));
            let look = move |files: &dyn Files| {
                refuse_foreign(files, &directory).and_then(|()| pair_in(files, &path))
            };
            let own = key.iter().map(PrivateKey::public);
            let trust = Trust {
                keys: trust.keys.iter().cloned().chain(own).collect(),
                ..trust.clone()
            };
            match in_directory(host, look).await? {
                (None, _) => false,
                // Replace an archive with the signature of another machine, or without one because a machine was interrupted.
                (Some(archive), Some(signature)) if key.is_some() => {
                    prebuilt::verify(&archive, &name, &signature, &trust).is_ok()
                }
                (Some(_), _) => key.is_none(),
            }
        }
    };
    if is_there {
        return Ok(None);
    }
    let packed = Packed::new(pack(host, &one, &os.id).await?, key.as_ref(), host);
    if packed.name != name {
        return Err(format!(
            "the configured module is `{name}`, but DKMS has compiled `{}`",
            packed.name
        ));
    }
    if let (Some(signature), false) = (&packed.signature, trust.keys.is_empty()) {
        let verified = prebuilt::verify(&packed.content, &name, signature.as_bytes(), &trust);
        verified.map_err(|why| match why {
            Unfit::Signer => "`driver.prebuilt.sign-key` does not match any key in \
                              `driver.prebuilt.public-keys`"
                .to_owned(),
            why => why.to_string(),
        })?;
    }
    match registry() {
        Some(mut registry) => packed.push(&mut registry).await?,
        None => {
            in_directory(host, move |files| packed.write(files, &directory)).await?;
        }
    }
    Ok(Some(format!("`{name}` to {}", spec.to)))
}

/// The source of archives.
pub(crate) enum Source<'h> {
    /// A directory or a web server.
    Location(&'h Host, String),
    /// A registry tag and its files.
    Tag(Registry<'h>, Vec<oci::ArtifactLayer>),
}

impl<'h> Source<'h> {
    pub(crate) async fn of(
        host: &'h Host,
        source: &str,
        archive: &str,
        time_limit: Duration,
    ) -> Result<Self, SourceError> {
        let Some(address) = Address::parse(source) else {
            let place = source.trim_end_matches('/').to_owned();
            return Ok(Self::Location(host, place));
        };
        let mut registry = Registry::new(host, address, time_limit);
        let tag = oci::tag(archive);
        match registry.layers(&tag).await? {
            Some(layers) => Ok(Self::Tag(registry, layers)),
            None => Err(format!("the registry has no tag `{tag}`").into()),
        }
    }

    pub(crate) async fn bring(
        &mut self,
        name: &str,
        limit: u64,
        unsigned: bool,
    ) -> Result<Vec<u8>, SourceError> {
        match self {
            Self::Location(host, place) => {
                fetch(host, &format!("{place}/{name}"), limit, unsigned).await
            }
            Self::Tag(registry, layers) => match layers.iter().find(|layer| layer.is(name)) {
                Some(layer) => registry.blob(layer, limit).await,
                None => Err(format!("the artifact has no `{name}`").into()),
            },
        }
    }
}

/// Fetches an archive from a source, and verifies its signature. Without keys, archives need no signature, and none is returned.
/// `time_limit` limits the requests to a registry.
pub(crate) async fn archive(
    host: &Host,
    source: &str,
    name: &str,
    trust: &Trust,
    time_limit: Duration,
) -> Result<(Vec<u8>, Option<Vec<u8>>), SourceError> {
    let unsigned = trust.keys.is_empty();
    let mut source = Source::of(host, source, name, time_limit).await?;
    let archive = source.bring(name, LIMIT, unsigned).await?;
    if unsigned {
        return Ok((archive, None));
    }
    let signature = format!("{name}{SIGNATURE}");
    let signature = source.bring(&signature, SIGNATURE_LIMIT, false).await;
    let signature = signature.map_err(|error| match error.is_transient {
        true => error,
        false => error.within(&format!("`{name}` is not signed")),
    })?;
    prebuilt::verify(&archive, name, &signature, trust)
        .map_err(|why| format!("`{name}`: {why}"))?;
    Ok((archive, Some(signature)))
}

/// Reads a file from a directory or a web server. If archives need no signature, rejects directories that are writable by
/// non-root users.
async fn fetch(
    host: &Host,
    place: &str,
    limit: u64,
    unsigned: bool,
) -> Result<Vec<u8>, SourceError> {
    let mut address = place.to_owned();
    let is_local = place.starts_with('/');
    if is_local {
        if unsigned {
            let path = Utf8PathBuf::from(place);
            in_directory(host, move |files| refuse_foreign(files, &path)).await?;
        }
        address = format!("file://{}", place.replace('%', "%25"));
    }
    (host.http.get(&address, limit).await).map_err(|error| SourceError {
        why: one_line(&error),
        is_transient: !is_local && error.is_retryable(),
    })
}

/// Packs a DKMS build. Returns the name and the content of the archive.
pub(crate) async fn pack(
    host: &Host,
    one: &Built,
    distribution: &str,
) -> Result<(String, Vec<u8>), String> {
    let unpacked = Utf8Path::new(paths::RUN).join(format!("export-{}", std::process::id()));
    let modules = read(host, one, &unpacked).await;
    let removed = host.files.remove_empty_directory(&unpacked);
    let modules = modules?;
    removed.map_err(|error| one_line(&error))?;
    let flavor = (modules.iter())
        .find(|(name, _)| kmod::is_nvidia_module(&format!("{name}.ko")))
        .and_then(|(_, content)| modinfo(content, "license"))
        .and_then(flavor_of_license);
    let purpose = BuildTarget {
        distribution: distribution.to_owned(),
        kernel: one.kernel.clone(),
        architecture: one.architecture.clone(),
        driver: one.driver.clone(),
        flavor: flavor.ok_or("the module license does not identify the module flavor")?,
    };
    let compiler = compiler(&*host.files, one.kernel.as_str()).map_err(|error| one_line(&error))?;
    let archive = prebuilt::pack(&purpose, compiler, &modules).map_err(|error| one_line(&error))?;
    Ok((purpose.archive(), archive))
}

/// Reads the modules of a build, decompressed.
async fn read(host: &Host, one: &Built, unpacked: &Utf8Path) -> Result<Modules, String> {
    let files = &*host.files;
    let plain = |error: FilesError| one_line(&error);
    let mut modules = Modules::new();
    for name in files.list(&one.directory).map_err(plain)? {
        let Some(module) = kmod::name_of(&name) else {
            continue;
        };
        let path = one.directory.join(&name);
        let missing = |path: &Utf8Path| format!("`{path}` no longer exists");
        let mut content = files
            .read(&path)
            .map_err(plain)?
            .ok_or_else(|| missing(&path))?;
        let copy = unpacked.join(&name);
        if let Some(cmd) = prebuilt::decompress(&copy) {
            files.create_directory(unpacked, 0o700).map_err(plain)?;
            files.write(&copy, &content, 0o600).map_err(plain)?;
            let ran = host
                .exec
                .run(&cmd, &mut |_, _| {})
                .await
                .and_then(|output| output.success(&cmd));
            let result = copy.with_extension("");
            let read = files.read(&result).map_err(plain)?;
            for left in [&copy, &result] {
                files.remove(left).map_err(plain)?;
            }
            ran.map_err(|error| one_line(&error))?;
            content = read.ok_or_else(|| missing(&result))?;
        }
        modules.insert(module.to_owned(), content);
    }
    Ok(modules)
}

/// Returns the compiler of a kernel, from the kernel configuration in its headers or in `/boot`.
pub(crate) fn compiler(files: &dyn ReadFiles, kernel: &str) -> Result<Option<String>, FilesError> {
    for path in [
        format!("/lib/modules/{kernel}/build/.config"),
        format!("/boot/config-{kernel}"),
    ] {
        if let Some(config) = files.read_lossy(Utf8Path::new(&path))?
            && let Some(compiler) = prebuilt::compiler(&config)
        {
            return Ok(Some(compiler));
        }
    }
    Ok(None)
}

/// Runs `work` for at most [`SOURCE_TIME_LIMIT`], because it blocks forever if the server of a network file system does not
/// respond.
pub(crate) async fn in_directory<T: Send + 'static>(
    host: &Host,
    work: impl FnOnce(&dyn Files) -> Result<T, FilesError> + Send + 'static,
) -> Result<T, String> {
    let files = host.files.clone();
    let work = tokio::task::spawn_blocking(move || work(&*files));
    let ended = (tokio::time::timeout(SOURCE_TIME_LIMIT, work).await).map_err(|_| {
        format!(
            "the directory did not respond within {} s",
            SOURCE_TIME_LIMIT.as_secs()
        )
    })?;
    ended
        .map_err(|error| one_line(&error))?
        .map_err(|error| one_line(&error))
}
