//! The manifest of a bundle: its contents, and the size and SHA-256 of each file. It detects damage. It is not signed, because
//! the contents are verified by other means, see [`crate::bundle`].

use std::collections::BTreeMap;

use camino::{Utf8Component, Utf8Path, Utf8PathBuf};
use serde::{Deserialize, Serialize};

use crate::{
    host::digest::ContentDigest,
    model::{text::beginning, version::KernelVersion},
    runtimes::RuntimeKind,
    tools::{
        oci::is_digest,
        packages::{Manager, mirrors::Mirror},
    },
};

/// The name of the manifest in a bundle.
pub const MANIFEST: &str = "bundle.toml";

/// The version of the file format.
const FORMAT: i64 = 1;

/// The longest part of an invalid value in an error.
const LONGEST: usize = 200;

/// The contents of a bundle. Paths are relative to its directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Manifest {
    /// The version of the file format.
    bundle: i64,
    /// The version of gpu-bootstrap that created it.
    pub gpu_bootstrap: String,
    /// The package manager.
    pub manager: Manager,
    pub system: BundledSystem,
    #[serde(default)]
    pub mirrors: Vec<Mirror>,
    #[serde(default)]
    pub keys: Vec<BundledKey>,
    #[serde(default)]
    pub packages: Vec<BundledPackage>,
    #[serde(default)]
    pub images: Vec<BundledImage>,
    /// All files except the manifest.
    pub files: BTreeMap<Utf8PathBuf, BundledFile>,
}

/// The system that a bundle is for. The lock file decides whether a machine can use it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct BundledSystem {
    /// `ID` of `/etc/os-release`.
    pub os: String,
    /// `VERSION_ID` of `/etc/os-release`.
    pub release: String,
    pub arch: String,
    pub kernel: KernelVersion,
}

/// The key file of a repository.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct BundledKey {
    /// The URL from which a run downloads it.
    pub url: String,
    pub path: Utf8PathBuf,
}

/// A package.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct BundledPackage {
    pub name: String,
    pub version: String,
    pub path: Utf8PathBuf,
}

/// The validation image for one runtime.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct BundledImage {
    /// The name with the digest in the registry.
    pub image: String,
    pub runtime: RuntimeKind,
    /// The digest that identifies the image in the archive, see [`crate::runtimes::archive`].
    pub id: String,
    pub path: Utf8PathBuf,
}

/// A file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct BundledFile {
    /// The size in bytes.
    pub size: u64,
    /// SHA-256 in lower-case hex.
    pub sha256: String,
}

impl From<ContentDigest> for BundledFile {
    fn from(content: ContentDigest) -> Self {
        Self {
            size: content.size,
            sha256: content.sha256,
        }
    }
}

/// Whether a path stays in the bundle.
fn is_inside(path: &Utf8Path) -> bool {
    let is_normal = |part| matches!(part, Utf8Component::Normal(_));
    !path.as_str().is_empty() && path.components().all(is_normal) && !path.as_str().ends_with('/')
}

impl Manifest {
    /// Creates an empty manifest.
    pub fn new(gpu_bootstrap: &str, manager: Manager, system: BundledSystem) -> Self {
        Self {
            bundle: FORMAT,
            gpu_bootstrap: gpu_bootstrap.to_owned(),
            manager,
            system,
            mirrors: Vec::new(),
            keys: Vec::new(),
            packages: Vec::new(),
            images: Vec::new(),
            files: BTreeMap::new(),
        }
    }

    /// Parses a manifest.
    ///
    /// # Errors
    /// The reason why it is invalid.
    pub fn parse(text: &str) -> Result<Self, String> {
        let table: toml::Table = toml::from_str(text).map_err(|error| reason(text, &error))?;
        let format = table.get("bundle").and_then(toml::Value::as_integer);
        if format != Some(FORMAT) {
            let found = format.map_or_else(|| "none".to_owned(), |format| format.to_string());
            return Err(format!(
                "the format of the bundle is {found}, and this version of gpu-bootstrap reads format {FORMAT}"
            ));
        }
        let manifest: Self = toml::from_str(text).map_err(|error| reason(text, &error))?;
        manifest.check()?;
        Ok(manifest)
    }

    /// Rejects paths outside of the bundle, contents without a file, and values that would change the meaning of a source file.
    fn check(&self) -> Result<(), String> {
        for mirror in &self.mirrors {
            let values = std::iter::once(mirror.path.as_str());
            for value in values.chain(mirror.architectures.iter().map(String::as_str)) {
                if !value
                    .chars()
                    .all(|c| c.is_ascii_alphanumeric() || "/._-".contains(c))
                {
                    let value = beginning(value, LONGEST).escape_debug().to_string();
                    return Err(format!("`{value}` contains special characters"));
                }
            }
        }
        let mirrors = self.mirrors.iter().map(|mirror| &mirror.path);
        for path in self.files.keys().chain(mirrors) {
            if !is_inside(path) {
                let path = beginning(path.as_str(), LONGEST);
                return Err(format!("the path `{path}` is not inside the bundle"));
            }
        }
        let contents = (self.keys.iter().map(|key| &key.path))
            .chain(self.packages.iter().map(|package| &package.path))
            .chain(self.images.iter().map(|image| &image.path));
        for path in contents {
            if !self.files.contains_key(path) {
                let path = beginning(path.as_str(), LONGEST);
                return Err(format!("`{path}` has no size and digest in `files`"));
            }
        }
        for image in &self.images {
            if !is_digest(&image.id) {
                let id = beginning(&image.id, LONGEST).escape_debug().to_string();
                return Err(format!("`{id}` is not the ID of an image"));
            }
            if image.image.chars().any(char::is_control) {
                let name = beginning(&image.image, LONGEST).escape_debug().to_string();
                return Err(format!("`{name}` is not the name of an image"));
            }
        }
        Ok(())
    }

    /// Returns the text of the file.
    ///
    /// # Errors
    /// The reason why it cannot be written, which is a bug.
    pub fn render(&self) -> Result<String, String> {
        let text = toml::to_string(self).map_err(|error| error.to_string())?;
        Ok(format!(
            "# The contents of a bundle, written by `gpu-bootstrap bundle create`.\n\
             # Install a machine from it: gpu-bootstrap install --bundle DIR\n{text}"
        ))
    }

    /// The size of all files in bytes.
    pub fn bytes(&self) -> u64 {
        self.files.values().map(|file| file.size).sum()
    }
}

fn reason(text: &str, error: &toml::de::Error) -> String {
    let byte = error.span().map_or(0, |span| span.start).min(text.len());
    let line = text.as_bytes()[..byte]
        .iter()
        .filter(|byte| **byte == b'\n')
        .count()
        + 1;
    let message = beginning(&error.message().trim().replace('\n', "; "), LONGEST);
    format!("line {line}: {message}")
}
