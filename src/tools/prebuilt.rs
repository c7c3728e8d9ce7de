//! Kernel modules that were compiled on another machine. An archive contains the modules for one kernel and one driver: it is a
//! compressed `tar` of `manifest.json` and the modules. Its signature is a separate file in minisign format.

use std::{
    collections::BTreeMap,
    io::{self, Read as _},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use blake2::{Blake2b512, Digest as _};
use camino::Utf8Path;
use flate2::{Compression, read::GzDecoder, write::GzEncoder};
use minisign_verify::{Error, PublicKey, Signature};
use ring::signature::{Ed25519KeyPair, KeyPair as _};
use serde::{Deserialize, Serialize};

use super::{
    kmod,
    module_file::{flavor_of_license, modinfo, needed_symbols},
};
use crate::{
    host::{Cmd, digest::sha256},
    model::{
        gpu::Flavor,
        version::{DriverVersion, KernelVersion},
    },
};

/// The suffix that is added to the name of an archive to get the name of its signature.
pub const SIGNATURE: &str = ".minisig";

/// The maximum archive size in bytes. The stripped and compressed modules of a driver have about 6 to 30 MB.
pub const LIMIT: u64 = 256 << 20;

/// The maximum size of the unpacked files in bytes.
const UNPACKED_LIMIT: u64 = 512 << 20;

/// Prefix of the lines that gpu-bootstrap writes to the DKMS build log.
pub const SAYS: &str = "gpu-bootstrap: ";

/// The text after [`SAYS`] if the modules of an archive were used.
pub const TOOK: &str = "took ";

const MANIFEST: &str = "manifest.json";

/// The target that modules were compiled for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct BuildTarget {
    /// `ID` in os-release. The kernel release is not sufficient, because different kernels of two distributions may have the
    /// same release.
    pub distribution: String,
    /// The kernel release.
    pub kernel: KernelVersion,
    /// The output of `uname -m`.
    pub architecture: String,
    pub driver: DriverVersion,
    pub flavor: Flavor,
}

impl BuildTarget {
    /// Returns the archive name.
    pub fn archive(&self) -> String {
        let Self {
            distribution,
            kernel,
            architecture,
            driver,
            flavor,
        } = self;
        // On RPM systems, the kernel release already contains the architecture.
        let suffix = format!(".{architecture}");
        let kernel = kernel
            .as_str()
            .strip_suffix(&suffix)
            .unwrap_or(kernel.as_str());
        format!("nvidia-{driver}-{flavor}-{distribution}-{kernel}-{architecture}.tar.gz")
    }
}

/// The manifest of an archive.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Manifest {
    purpose: BuildTarget,
    /// The compiler of the kernel, from the kernel configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    compiler: Option<String>,
    /// The SHA-256 of each module, by module name without `.ko`.
    modules: BTreeMap<String, String>,
}

/// Modules by name without `.ko`.
pub type Modules = BTreeMap<String, Vec<u8>>;

/// The reason for rejecting an archive.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    #[error("invalid signature: {why}")]
    Signature { why: String },
    #[error("not signed with one of the public keys")]
    Signer,
    /// minisign signs the digest by default since 0.10.
    #[error(
        "the signature covers the complete file instead of its digest: sign it with `minisign -S -H`"
    )]
    NotDigest,
    /// The signature contains another file name or none. minisign adds the name by default.
    #[error(
        "the signature is {has}: sign the archive under its own name, with `minisign -S` and without `-t`"
    )]
    File { has: String },
    #[error("the signature has no timestamp: sign the archive with `minisign -S` and without `-t`")]
    NoTime,
    #[error("signed at {signed}, before `driver.prebuilt.not-before` ({not_before})")]
    TooOld {
        signed: jiff::Timestamp,
        not_before: jiff::Timestamp,
    },
    #[error("invalid archive: {why}")]
    Archive { why: String },
    #[error("built for {what} {has}, not {wanted}")]
    Purpose {
        what: &'static str,
        has: String,
        wanted: String,
    },
    #[error(
        "built for a kernel that was compiled with {has}, but this kernel was compiled with {wanted}"
    )]
    Compiler { has: String, wanted: String },
    #[error("`{module}` is missing")]
    Missing { module: String },
    #[error("digest mismatch: `{module}` differs from the manifest")]
    Digest { module: String },
    #[error("`{module}` was compiled for `{has}`, but this kernel is `{wanted}`")]
    Magic {
        module: String,
        has: String,
        wanted: String,
    },
    #[error("`{module}` has no symbol versions, but this kernel compares them")]
    NoSymbols { module: String },
    #[error("`{module}` needs `{symbol}`, which does not exist in this kernel")]
    NoSymbol { module: String, symbol: String },
    #[error("`{module}` was compiled with another version of `{symbol}` than this kernel has")]
    Symbol { module: String, symbol: String },
}

fn is_module_name(name: &str) -> bool {
    !name.is_empty()
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
}

/// Packs modules into an archive.
///
/// # Errors
/// If a name is not a valid module name.
pub fn pack(
    purpose: &BuildTarget,
    compiler: Option<String>,
    modules: &Modules,
) -> io::Result<Vec<u8>> {
    if let Some(name) = modules.keys().find(|name| !is_module_name(name)) {
        return Err(io::Error::other(format!("`{name}` is not a module name")));
    }
    let digests = modules
        .iter()
        .map(|(name, content)| (name.clone(), sha256(content)));
    let manifest = Manifest {
        purpose: purpose.clone(),
        compiler,
        modules: digests.collect(),
    };
    let mut archive = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::best()));
    let mut add = |name: &str, content: &[u8]| {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        archive.append_data(&mut header, name, content)
    };
    add(MANIFEST, &serde_json::to_vec_pretty(&manifest)?)?;
    for (name, content) in modules {
        add(&format!("{name}.ko"), content)?;
    }
    archive.into_inner()?.finish()
}

/// The accepted signatures.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Trust {
    /// Public keys. One of them must have signed the archive.
    pub keys: Vec<String>,
    /// The oldest accepted signature time, because the signature of a defective archive never expires.
    pub not_before: Option<jiff::Timestamp>,
}

/// Checks that an archive was signed under its name with one of the public keys. Source: minisign, "Signature format". The
/// trusted comment is `timestamp:SECONDS`, `file:NAME` and `hashed`, separated by tabs.
///
/// # Errors
/// If the archive is not signed with one of the keys, or if the signature cannot be parsed, does not contain this file name, is
/// too old, or has no timestamp although `not_before` requires one.
pub fn verify(archive: &[u8], name: &str, signature: &[u8], trust: &Trust) -> Result<(), Unfit> {
    let signature = signed(archive, signature, &trust.keys)?;
    let field = |key: &str| {
        let mut fields = signature.trusted_comment().split('\t');
        fields.find_map(|field| field.strip_prefix(key))
    };
    match field("file:") {
        Some(file) if file == name => {}
        Some(file) => {
            return Err(Unfit::File {
                has: format!("for `{file}`"),
            });
        }
        None => {
            return Err(Unfit::File {
                has: "without a file name".to_owned(),
            });
        }
    }
    let Some(not_before) = trust.not_before else {
        return Ok(());
    };
    let seconds = field("timestamp:").and_then(|seconds| seconds.parse().ok());
    let signed = seconds.and_then(|seconds| jiff::Timestamp::from_second(seconds).ok());
    match signed {
        None => Err(Unfit::NoTime),
        Some(signed) if signed < not_before => Err(Unfit::TooOld { signed, not_before }),
        Some(_) => Ok(()),
    }
}

/// Returns the signature if it was created with one of the keys.
fn signed(archive: &[u8], signature: &[u8], keys: &[String]) -> Result<Signature, Unfit> {
    let unreadable = |why: String| Unfit::Signature { why };
    let text = std::str::from_utf8(signature).map_err(|error| unreadable(error.to_string()))?;
    let signature = Signature::decode(text).map_err(|error| unreadable(error.to_string()))?;
    let mut why = Unfit::Signer;
    for key in keys {
        let key = PublicKey::from_base64(key).map_err(|error| unreadable(error.to_string()))?;
        match key.verify(archive, &signature, false) {
            Ok(()) => return Ok(signature),
            Err(Error::UnexpectedAlgorithm) => why = Unfit::NotDigest,
            Err(_) => {}
        }
    }
    Err(why)
}

/// A private key for signing archives.
pub struct PrivateKey {
    /// The ID of the key, which is part of each of its signatures.
    number: [u8; 8],
    pair: Ed25519KeyPair,
}

impl PrivateKey {
    /// Parses the file of a private key without a password. Source: the minisign documentation, "Secret key format". The second
    /// line is the Base64 encoding of three algorithm names (2 bytes each), the password parameters (48 bytes), the key ID (8),
    /// the private and the public key (32 each), and a checksum (32).
    ///
    /// # Errors
    /// If the file is not a usable key. The message does not contain the key.
    pub fn read(text: &str) -> Result<Self, &'static str> {
        const NONE: &str = "not a minisign private key";
        let line = text.lines().nth(1).ok_or(NONE)?;
        let bytes = STANDARD.decode(line.trim()).map_err(|_| NONE)?;
        let (Some(b"Ed"), 158) = (bytes.first_chunk(), bytes.len()) else {
            return Err(NONE);
        };
        if bytes[2..4] != [0, 0] {
            return Err(
                "the private key has a password, which cannot be entered here: create one without a password (`minisign -G \
                -W`)",
            );
        }
        let number = bytes[54..62].try_into().map_err(|_| NONE)?;
        let pair = Ed25519KeyPair::from_seed_and_public_key(&bytes[62..94], &bytes[94..126]);
        let pair = pair.map_err(|_| NONE)?;
        Ok(Self { number, pair })
    }

    pub fn public(&self) -> String {
        STANDARD.encode([b"Ed", &self.number[..], self.pair.public_key().as_ref()].concat())
    }

    /// Signs the digest of an archive. Source: minisign, "Signature format".
    pub fn sign(&self, archive: &[u8], name: &str, at: jiff::Timestamp) -> String {
        let comment = format!("timestamp:{}\tfile:{name}\thashed", at.as_second());
        self.sign_with(archive, &comment)
    }

    fn sign_with(&self, archive: &[u8], comment: &str) -> String {
        let signature = self.pair.sign(&Blake2b512::digest(archive));
        let signature = signature.as_ref();
        let of_both = self.pair.sign(&[signature, comment.as_bytes()].concat());
        format!(
            "untrusted comment: signature of gpu-bootstrap\n{}\ntrusted comment: {comment}\n{}\n",
            STANDARD.encode([b"ED", &self.number[..], signature].concat()),
            STANDARD.encode(of_both),
        )
    }
}

/// Returns the names of all modules of an archive.
///
/// # Errors
/// If the archive is corrupted or contains an invalid name.
pub fn names(archive: &[u8]) -> Result<Vec<String>, Unfit> {
    let damaged = |why: String| Unfit::Archive { why };
    let mut archive = tar::Archive::new(GzDecoder::new(archive).take(UNPACKED_LIMIT));
    for entry in archive
        .entries()
        .map_err(|error| damaged(error.to_string()))?
    {
        let entry = entry.map_err(|error| damaged(error.to_string()))?;
        let is_file = entry.header().entry_type() == tar::EntryType::Regular;
        if !is_file || *entry.path_bytes() != *MANIFEST.as_bytes() {
            continue;
        }
        let manifest: Manifest = serde_json::from_reader(entry)
            .map_err(|error| damaged(format!("`{MANIFEST}`: {error}")))?;
        if let Some(name) = manifest.modules.keys().find(|name| !is_module_name(name)) {
            return Err(damaged(format!("`{name}` is not a module name")));
        }
        return Ok(manifest.modules.into_keys().collect());
    }
    Err(Unfit::Missing {
        module: MANIFEST.to_owned(),
    })
}

/// Unpacks the requested modules in memory, so that names in an archive cannot decide where a file is written.
///
/// # Errors
/// If the archive is for another target or compiler, is corrupted, or does not contain a requested module.
pub fn unpack(
    archive: &[u8],
    purpose: &BuildTarget,
    compiler: Option<&str>,
    wanted: &[String],
) -> Result<Modules, Unfit> {
    let damaged = |error: io::Error| Unfit::Archive {
        why: error.to_string(),
    };
    let files: Vec<String> = wanted.iter().map(|module| format!("{module}.ko")).collect();
    let mut found = Modules::new();
    let mut left = UNPACKED_LIMIT;
    let mut archive = tar::Archive::new(GzDecoder::new(archive).take(UNPACKED_LIMIT));
    for entry in archive.entries().map_err(damaged)? {
        let entry = entry.map_err(damaged)?;
        let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        // Read only regular files: a sparse file in a small archive may have any size.
        if entry.header().entry_type() != tar::EntryType::Regular
            || !(name == MANIFEST || files.contains(&name))
        {
            continue;
        }
        let mut content = Vec::new();
        entry
            .take(left)
            .read_to_end(&mut content)
            .map_err(damaged)?;
        left -= content.len() as u64;
        found.insert(name, content);
    }
    let manifest = found.remove(MANIFEST).ok_or_else(|| Unfit::Missing {
        module: MANIFEST.to_owned(),
    })?;
    let manifest: Manifest = serde_json::from_slice(&manifest).map_err(|error| Unfit::Archive {
        why: format!("`{MANIFEST}`: {error}"),
    })?;
    let other = |what, has: &dyn ToString, wanted: &dyn ToString| Unfit::Purpose {
        what,
        has: has.to_string(),
        wanted: wanted.to_string(),
    };
    let has = &manifest.purpose;
    let same: [(&str, &dyn ToString, &dyn ToString); 5] = [
        ("the distribution", &has.distribution, &purpose.distribution),
        ("the kernel", &has.kernel, &purpose.kernel),
        ("the architecture", &has.architecture, &purpose.architecture),
        ("the driver", &has.driver, &purpose.driver),
        ("the flavor", &has.flavor, &purpose.flavor),
    ];
    for (what, has, wanted) in same {
        if has.to_string() != wanted.to_string() {
            return Err(other(what, has, wanted));
        }
    }
    if let (Some(has), Some(wanted)) = (&manifest.compiler, compiler)
        && has != wanted
    {
        return Err(Unfit::Compiler {
            has: has.clone(),
            wanted: wanted.to_owned(),
        });
    }
    let mut modules = Modules::new();
    for module in wanted {
        let missing = || Unfit::Missing {
            module: module.clone(),
        };
        let digest = manifest.modules.get(module).ok_or_else(missing)?;
        let content = found.remove(&format!("{module}.ko")).ok_or_else(missing)?;
        if sha256(&content) != *digest {
            return Err(Unfit::Digest {
                module: module.clone(),
            });
        }
        if kmod::is_nvidia_module(&format!("{module}.ko"))
            && let Some(found) = modinfo(&content, "license").and_then(flavor_of_license)
            && found != purpose.flavor
        {
            return Err(other("the flavor", &found, &purpose.flavor));
        }
        modules.insert(module.clone(), content);
    }
    Ok(modules)
}

/// The properties of a kernel that decide if it accepts a module.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KernelInterface {
    /// The release that the kernel headers define for modules.
    pub release: String,
    /// The `vermagic` of the kernel's own modules, or `None` if none could be read.
    pub magic: Option<String>,
    /// The checksums of the kernel symbols. Empty if unknown.
    pub symbols: BTreeMap<String, u32>,
}

impl KernelInterface {
    /// Checks whether the kernel accepts these modules. The kernel makes similar comparisons when it loads them (Linux,
    /// `check_modinfo` and `check_version` of `kernel/module`).
    ///
    /// # Errors
    /// If the kernel does not accept them. The error describes the difference.
    pub fn accepts(&self, modules: &Modules) -> Result<(), Unfit> {
        for (name, content) in modules {
            let module = || name.clone();
            let magic = modinfo(content, "vermagic").unwrap_or_default();
            let fits = match &self.magic {
                Some(own) => own == magic,
                None => magic.split(' ').next() == Some(&self.release),
            };
            if !fits {
                return Err(Unfit::Magic {
                    module: module(),
                    has: magic.to_owned(),
                    wanted: self.magic.clone().unwrap_or_else(|| self.release.clone()),
                });
            }
            if !magic.contains("modversions") || self.symbols.is_empty() {
                continue;
            }
            let needed =
                needed_symbols(content).ok_or_else(|| Unfit::NoSymbols { module: module() })?;
            // A module that does not depend on another NVIDIA module must find all its symbols in the kernel. The other modules
            // also use symbols of the NVIDIA modules, which are not compared.
            let is_first = modinfo(content, "depends").is_none_or(|text| !text.contains("nvidia"));
            for (symbol, checksum) in needed {
                match self.symbols.get(&symbol) {
                    Some(own) if *own != checksum => {
                        return Err(Unfit::Symbol {
                            module: module(),
                            symbol,
                        });
                    }
                    None if is_first => {
                        return Err(Unfit::NoSymbol {
                            module: module(),
                            symbol,
                        });
                    }
                    Some(_) | None => {}
                }
            }
        }
        Ok(())
    }
}

/// Parses `Module.symvers` in the kernel headers. Each line contains a checksum, a symbol and more fields, separated by tabs.
pub fn symbols(text: &str) -> BTreeMap<String, u32> {
    let line = |line: &str| {
        let mut fields = line.split('\t');
        let checksum = u32::from_str_radix(fields.next()?.strip_prefix("0x")?, 16).ok()?;
        Some((fields.next()?.to_owned(), checksum))
    };
    text.lines().filter_map(line).collect()
}

/// Parses `include/generated/utsrelease.h` in the kernel headers: the release for modules.
pub fn release(header: &str) -> Option<&str> {
    header.lines().find_map(|line| {
        line.strip_prefix("#define UTS_RELEASE \"")?
            .strip_suffix('"')
    })
}

/// Returns the compiler in a kernel configuration.
pub fn compiler(config: &str) -> Option<String> {
    let value = config
        .lines()
        .find_map(|line| line.strip_prefix("CONFIG_CC_VERSION_TEXT="))?;
    Some(value.trim_matches('"').to_owned())
}

/// Returns the command that decompresses a module in place and removes the suffix, or `None` if the module is not compressed.
pub fn decompress(path: &Utf8Path) -> Option<Cmd> {
    let program = match path.extension()? {
        "xz" => "xz",
        "gz" => "gzip",
        "zst" => {
            return Some(Cmd::new(
                "zstd",
                [
                    "--decompress",
                    "--rm",
                    "--quiet",
                    "--force",
                    "--",
                    path.as_str(),
                ],
            ));
        }
        _ => return None,
    };
    Some(Cmd::new(
        program,
        ["--decompress", "--force", "--", path.as_str()],
    ))
}

/// Returns the lines that gpu-bootstrap has written to the DKMS build log, without their prefix.
pub fn said(log: &str) -> impl Iterator<Item = &str> {
    log.lines().filter_map(|line| line.strip_prefix(SAYS))
}

#[cfg(test)]
pub mod keys {
    /// Test key, created with `minisign -G -W`.
    pub const PRIVATE: &str = "untrusted comment: minisign encrypted secret key\n\
        RWQAAEIyAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA3V8rGcTGVBIz/P/h/sJ/PwGyQngo95H1ds7dTuaUvVRVew8/\
        aWD3PZPU2wIr7l73gRxI7dPezRzABMXB6i0haZy6OVIoP0e0AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n";
    pub const ITS_PUBLIC: &str = "RWTdXysZxMZUEpPU2wIr7l73gRxI7dPezRzABMXB6i0haZy6OVIoP0e0";
    /// The public key of another test key pair.
    pub const OTHER_KEY: &str = "RWSPFEMrZHmxOkVSFudkzYFoM8f9ICLa39c/jQrsh0yyfEVEseQbbZF2";
}

#[cfg(test)]
mod tests {
    use super::{
        keys::{ITS_PUBLIC, OTHER_KEY, PRIVATE},
        *,
    };
    use crate::tools::module_file::{versions, with_sections};

    /// A minisign public key, and its signature of the four bytes `test` (documentation of minisign-verify 0.3.0).
    const KEY: &str = "RWQf6LRCGA9i53mlYecO4IzT51TGPpvWucNSCh1CBM0QTaLn73Y7GFO3";
    const SIGNED: &str = "untrusted comment: signature from minisign secret key\n\
        RUQf6LRCGA9i559r3g7V1qNyJDApGip8MfqcadIgT9CuhV3EMhHoN1mGTkUidF/z7SrlQgXdy8ofjb7bNJJylDOocrCo8KLzZwo=\n\
        trusted comment: timestamp:1633700835\tfile:test\tprehashed\n\
        wLMDjy9FLAuxZ3q4NlEvkgtyhrr0gtTu6KC4KBJdITbbOeAi1zBIYo0v4iTgt8jJpIidRJnp94ABQkJAgAooBQ==\n";
    /// `minisign -S -l`: [`OTHER_KEY`] has signed the same bytes without hashing them.
    const SIGNED_WHOLE: &str = "untrusted comment: signature from minisign secret key\n\
        RWSPFEMrZHmxOjtJLcPG8DHjEIGRb3C0Nbzw3NdhCDYKi+xtSRSpmXMWeeOSM4aPj4Waac82iewfSXN/4LdH+uSZIN0qXRpBygA=\n\
        trusted comment: timestamp:1\n\
        DllQwNKmlB/yewv8TlV85XnznynF83D8vZ7bBLzWD4o5u8/pvArt+cU61qX+XFZIikrk38/I8DSvpOd5UD/mBQ==\n";
    const MAGIC: &str = "6.1.0-44-amd64 SMP preempt mod_unload modversions ";

    fn purpose() -> BuildTarget {
        BuildTarget {
            distribution: "debian".to_owned(),
            kernel: "6.1.0-44-amd64".parse().expect("a kernel"),
            architecture: "x86_64".to_owned(),
            driver: "535.261.03".parse().expect("a version"),
            flavor: Flavor::Open,
        }
    }

    fn module(magic: &str, depends: &str, symbols: &[(&str, u32)]) -> Vec<u8> {
        let info = format!("vermagic={magic}\0depends={depends}\0");
        with_sections(&[
            (".modinfo", info.as_bytes()),
            ("__versions", &versions(symbols)),
        ])
    }

    fn modules() -> Modules {
        let first = module(MAGIC, "drm", &[("module_layout", 1), ("kfree", 2)]);
        let second = module(MAGIC, "nvidia", &[("module_layout", 1), ("nvidia_open", 9)]);
        Modules::from([
            ("nvidia".to_owned(), first),
            ("nvidia-uvm".to_owned(), second),
        ])
    }

    fn names() -> Vec<String> {
        modules().into_keys().collect()
    }

    #[test]
    fn archive_name_contains_the_target() {
        assert_eq!(
            purpose().archive(),
            "nvidia-535.261.03-open-debian-6.1.0-44-amd64-x86_64.tar.gz"
        );
        let el = BuildTarget {
            kernel: "5.14.0-570.el9_6.x86_64".parse().expect("a kernel"),
            ..purpose()
        };
        assert_eq!(
            el.archive(),
            "nvidia-535.261.03-open-debian-5.14.0-570.el9_6-x86_64.tar.gz"
        );
    }

    #[test]
    fn archive_is_unpacked_only_for_its_target() {
        let gcc = || Some("gcc 12".to_owned());
        let archive = pack(&purpose(), gcc(), &modules()).expect("packed");
        let unpack = |purpose: &BuildTarget, compiler: &str, names: &[String]| {
            unpack(&archive, purpose, Some(compiler), names)
        };
        assert_eq!(unpack(&purpose(), "gcc 12", &names()), Ok(modules()));
        let others = [
            BuildTarget {
                distribution: "ubuntu".to_owned(),
                ..purpose()
            },
            BuildTarget {
                kernel: "6.1.0-45-amd64".parse().expect("a kernel"),
                ..purpose()
            },
            BuildTarget {
                architecture: "aarch64".to_owned(),
                ..purpose()
            },
            BuildTarget {
                driver: "535.261.04".parse().expect("a version"),
                ..purpose()
            },
            BuildTarget {
                flavor: Flavor::Proprietary,
                ..purpose()
            },
        ];
        for other in others {
            let refused = unpack(&other, "gcc 12", &names());
            assert!(
                matches!(refused, Err(Unfit::Purpose { .. })),
                "{other:?}: {refused:?}"
            );
        }
        assert!(matches!(
            unpack(&purpose(), "gcc 13", &names()),
            Err(Unfit::Compiler { .. })
        ));
        let missing = unpack(&purpose(), "gcc 12", &["nvidia-drm".to_owned()]);
        assert_eq!(
            missing,
            Err(Unfit::Missing {
                module: "nvidia-drm".to_owned()
            })
        );
    }

    #[test]
    fn damaged_archive_is_rejected() {
        let archive = pack(&purpose(), None, &modules()).expect("packed");
        // Without its last bytes, an archive can still contain all modules, because the end of a tar archive is only padding.
        for cut in (0..archive.len() - 16).step_by(7) {
            let read = unpack(&archive[..cut], &purpose(), None, &names());
            assert!(read.is_err() || read == Ok(modules()), "{cut}");
        }
        assert!(unpack(&archive[..archive.len() / 2], &purpose(), None, &names()).is_err());
        assert!(matches!(
            unpack(b"<html>", &purpose(), None, &names()),
            Err(Unfit::Archive { .. })
        ));
        let name = Modules::from([("../nvidia".to_owned(), Vec::new())]);
        assert!(pack(&purpose(), None, &name).is_err());
    }

    #[test]
    fn module_that_differs_from_the_manifest_is_rejected() {
        let digest = "00".repeat(32);
        let manifest = Manifest {
            purpose: purpose(),
            compiler: None,
            modules: BTreeMap::from([("nvidia".to_owned(), digest)]),
        };
        let mut archive = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
        for (name, content) in [
            (MANIFEST, serde_json::to_vec(&manifest).expect("JSON")),
            ("nvidia.ko", vec![1]),
        ] {
            let mut header = tar::Header::new_gnu();
            header.set_size(content.len() as u64);
            archive
                .append_data(&mut header, name, content.as_slice())
                .expect("added");
        }
        let archive = archive
            .into_inner()
            .and_then(GzEncoder::finish)
            .expect("finished");
        let refused = unpack(&archive, &purpose(), None, &["nvidia".to_owned()]);
        assert_eq!(
            refused,
            Err(Unfit::Digest {
                module: "nvidia".to_owned()
            })
        );
    }

    #[test]
    fn only_known_signer_is_accepted() {
        let verify = |archive: &[u8], signature: &str, all: &[&str]| {
            let trust = Trust {
                keys: all.iter().map(ToString::to_string).collect(),
                not_before: None,
            };
            verify(archive, "test", signature.as_bytes(), &trust)
        };
        assert_eq!(verify(b"test", SIGNED, &[OTHER_KEY, KEY]), Ok(()));
        assert_eq!(verify(b"Test", SIGNED, &[KEY]), Err(Unfit::Signer));
        assert_eq!(verify(b"test", SIGNED, &[OTHER_KEY]), Err(Unfit::Signer));
        assert_eq!(verify(b"test", SIGNED, &[]), Err(Unfit::Signer));
        assert_eq!(
            verify(b"test", SIGNED_WHOLE, &[KEY, OTHER_KEY]),
            Err(Unfit::NotDigest)
        );
        let comment = SIGNED.replace("1633700835", "1633700836");
        assert_eq!(verify(b"test", &comment, &[KEY]), Err(Unfit::Signer));
        assert!(matches!(
            verify(b"test", "<html>", &[KEY]),
            Err(Unfit::Signature { .. })
        ));
    }

    fn by(key: &str) -> Trust {
        Trust {
            keys: vec![key.to_owned()],
            not_before: None,
        }
    }

    #[test]
    fn wrong_name_or_old_signature_is_rejected() {
        let key = PrivateKey::read(PRIVATE).expect("a key");
        let at = |seconds: i64| jiff::Timestamp::from_second(seconds).expect("a time");
        let signature = key.sign(b"test", "a.tar.gz", at(1000));
        let verify = |name: &str, not_before: Option<i64>| {
            let trust = Trust {
                not_before: not_before.map(at),
                ..by(ITS_PUBLIC)
            };
            verify(b"test", name, signature.as_bytes(), &trust)
        };
        for (name, not_before, accepted) in rows! {
            "a.tar.gz", None, true;
            "a.tar.gz", Some(1000), true;
            "a.tar.gz", Some(1001), false;
            "b.tar.gz", None, false;
        } {
            let result = verify(name, not_before);
            assert_eq!(
                result.is_ok(),
                accepted,
                "{name}, {not_before:?}: {result:?}"
            );
        }
        // Trusted comments that `minisign -t` has replaced.
        for (comment, wrong) in rows! {
            "release 7", Unfit::File { has: "without a file name".to_owned() };
            "file:a.tar.gz", Unfit::NoTime;
        } {
            let signature = key.sign_with(b"test", comment);
            let trust = Trust {
                not_before: Some(at(1)),
                ..by(ITS_PUBLIC)
            };
            let result = super::verify(b"test", "a.tar.gz", signature.as_bytes(), &trust);
            assert_eq!(result, Err(wrong));
        }
    }

    #[test]
    fn public_key_accepts_its_private_key_signature() {
        let key = PrivateKey::read(PRIVATE).expect("a key");
        assert_eq!(key.public(), ITS_PUBLIC);
        let signature = key.sign(b"test", "a.tar.gz", jiff::Timestamp::UNIX_EPOCH);
        let verify = |archive: &[u8], signature: &str, key: &str| {
            verify(archive, "a.tar.gz", signature.as_bytes(), &by(key))
        };
        assert_eq!(verify(b"test", &signature, ITS_PUBLIC), Ok(()));
        assert_eq!(verify(b"Test", &signature, ITS_PUBLIC), Err(Unfit::Signer));
        assert_eq!(verify(b"test", &signature, KEY), Err(Unfit::Signer));
        let comment = signature.replace("a.tar.gz", "b.tar.gz");
        assert_eq!(verify(b"test", &comment, ITS_PUBLIC), Err(Unfit::Signer));
    }

    #[test]
    fn private_key_with_password_or_damage_is_rejected() {
        let why = |text: &str| PrivateKey::read(text).err().unwrap_or_default();
        let line = PRIVATE.lines().nth(1).expect("a line");
        let changed = |at: usize, to: &[u8]| {
            let mut bytes = STANDARD.decode(line).expect("Base64");
            bytes[at..at + to.len()].copy_from_slice(to);
            why(&format!(
                "untrusted comment: x\n{}\n",
                STANDARD.encode(bytes)
            ))
        };
        assert_eq!(changed(4, b"B2"), "");
        assert!(changed(2, b"Sc").contains("minisign -G -W"));
        for damaged in [
            changed(0, b"ED"),
            changed(100, b"x"),
            why(line),
            why(""),
            why(&PRIVATE.replace("RWQA", "RW")),
        ] {
            assert!(damaged.contains("not a minisign private key"), "{damaged}");
        }
    }

    #[test]
    fn kernel_accepts_only_matching_modules() {
        let kernel = KernelInterface {
            release: "6.1.0-44-amd64".to_owned(),
            magic: Some(MAGIC.to_owned()),
            symbols: symbols(
                "0x00000001\tmodule_layout\tvmlinux\tEXPORT_SYMBOL\n0x00000002\tkfree\tvmlinux\tEXPORT_SYMBOL\n",
            ),
        };
        assert_eq!(kernel.accepts(&modules()), Ok(()));
        let with = |name: &str, content| {
            let mut all = modules();
            all.insert(name.to_owned(), content);
            all
        };
        let refused = kernel.accepts(&with(
            "nvidia",
            module(MAGIC, "", &[("module_layout", 1), ("kfree", 3)]),
        ));
        assert!(matches!(refused, Err(Unfit::Symbol { symbol, .. }) if symbol == "kfree"));
        let refused = kernel.accepts(&with(
            "nvidia",
            module(MAGIC, "", &[("module_layout", 1), ("gone", 2)]),
        ));
        assert!(matches!(refused, Err(Unfit::NoSymbol { symbol, .. }) if symbol == "gone"));
        let refused = kernel.accepts(&with(
            "nvidia",
            module("6.1.0-44-amd64 SMP modversions ", "", &[]),
        ));
        assert!(matches!(refused, Err(Unfit::Magic { .. })));
        let info = format!("vermagic={MAGIC}\0");
        let refused = kernel.accepts(&with(
            "nvidia",
            with_sections(&[(".modinfo", info.as_bytes())]),
        ));
        assert!(matches!(refused, Err(Unfit::NoSymbols { .. })));
        // A machine with unknown `vermagic` and symbols: only the release is compared.
        let unknown = KernelInterface {
            release: "6.1.0-44-amd64".to_owned(),
            ..KernelInterface::default()
        };
        assert_eq!(unknown.accepts(&modules()), Ok(()));
        let other = KernelInterface {
            release: "6.1.0-45-amd64".to_owned(),
            ..KernelInterface::default()
        };
        assert!(matches!(
            other.accepts(&modules()),
            Err(Unfit::Magic { .. })
        ));
    }

    #[test]
    fn compiler_release_and_log_messages_are_parsed() {
        let config =
            "CONFIG_CC_IS_GCC=y\nCONFIG_CC_VERSION_TEXT=\"gcc-12 (Debian 12.2.0-14) 12.2.0\"\n";
        assert_eq!(
            release("#define UTS_RELEASE \"6.1.0-44-amd64\"\n"),
            Some("6.1.0-44-amd64")
        );
        assert_eq!(
            compiler(config).as_deref(),
            Some("gcc-12 (Debian 12.2.0-14) 12.2.0")
        );
        let log = "DKMS make.log for nvidia\ngpu-bootstrap: took nvidia from /srv\nmake: done\n";
        assert_eq!(said(log).collect::<Vec<_>>(), ["took nvidia from /srv"]);
    }
}
