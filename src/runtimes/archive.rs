//! Archives of container images in a bundle. Each runtime writes its own archive and loads it on the other machine, because Docker
//! does not load an archive of containerd whose image has a digest (`invalid tag`, Docker 20.10.24 with containerd 1.6.20).
//!
//! - containerd keeps the manifest with the digest of the registry, so the archive contains the chain of digests from the locked
//!   digest to the layers, and the loaded image has the name of a pulled one.
//! - Docker and Podman drop this manifest, so their archives are identified by the image ID (the digest of the configuration, which
//!   contains the digests of the layers), and the manifest of the bundle records the ID that the runtime had for the locked digest
//!   when the bundle was created.
//! - `NAME@sha256:DIGEST` does not exist in these runtimes after loading, so the image with this ID gets a tag with the locked digest
//!   ([`oci::loaded_name`]), which validation uses.
//!
//! Sources: OCI Image Specification 1.1 (image layout); Docker Image Specification 1.2 (`manifest.json`); containerd,
//! `core/images/annotations.go` (the name of an image in `index.json`).

use std::{
    collections::BTreeMap,
    io::{self, Read},
};

use camino::{Utf8Component, Utf8Path, Utf8PathBuf};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::RuntimeKind;
use crate::{
    host::{FilesError, ReadFiles, digest::sha256},
    tools::oci,
};

/// The list of images in the format of `docker save`, which all clients write.
const IMAGES: &str = "manifest.json";

/// The list of images in an OCI image layout.
const INDEX: &str = "index.json";

/// The file that makes an archive an OCI image layout. Without it, containerd reads [`IMAGES`] instead of [`INDEX`].
const LAYOUT: &str = "oci-layout";

/// The largest list or configuration that is read. Source: OCI Distribution Specification 1.1, "Pushing Manifests" (4 MiB).
const LIMIT: u64 = 4 << 20;

/// The annotation with the name of an image. Source: containerd, `core/images/annotations.go`.
const NAME: &str = "io.containerd.image.name";

/// An archive with one image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct ImageArchive {
    pub path: Utf8PathBuf,
    /// SHA-256 of the archive in lower-case hex.
    pub sha256: String,
    /// The digest that identifies the image in the archive: the image ID, or the digest in the registry.
    pub id: String,
}

impl ImageArchive {
    /// Returns the reason why the archive cannot be loaded as this image, or `None`.
    ///
    /// # Errors
    /// If the archive cannot be read.
    pub fn issue(
        &self,
        files: &dyn ReadFiles,
        runtime: RuntimeKind,
        image: &str,
    ) -> Result<Option<String>, FilesError> {
        let Some(archive) = files.open(&self.path)? else {
            return Ok(Some("the archive does not exist".to_owned()));
        };
        let keeps_digest =
            (runtime.runtime().containers()).is_some_and(|one| one.loaded_name(image).is_none());
        let expected = match image.split_once('@') {
            Some((_, digest)) if keeps_digest => Expected::Manifest(digest),
            _ => Expected::Id(&self.id),
        };
        Ok(check(archive, image, expected).err())
    }
}

/// The digest that identifies the image in an archive.
#[derive(Debug, Clone, Copy)]
enum Expected<'a> {
    /// The digest in the registry. containerd loads the image in the index.
    Manifest(&'a str),
    /// The image ID. The image with this ID gets its tag after loading.
    Id(&'a str),
}

#[derive(Deserialize)]
struct SavedImage {
    #[serde(rename = "Config")]
    configuration: String,
    #[serde(rename = "RepoTags", default)]
    tags: Option<Vec<String>>,
}

#[derive(Deserialize)]
struct Index {
    manifests: Vec<IndexedImage>,
}

#[derive(Deserialize)]
struct Layout {
    #[serde(rename = "imageLayoutVersion")]
    version: String,
}

#[derive(Deserialize)]
struct IndexedImage {
    digest: String,
    #[serde(default)]
    annotations: Option<BTreeMap<String, String>>,
}

/// Checks that an archive contains only this image: the blob with the expected digest, and no names of other images, because
/// loading would replace them.
fn check(archive: impl Read, image: &str, expected: Expected<'_>) -> Result<(), String> {
    let (Expected::Manifest(id) | Expected::Id(id)) = expected;
    let hex = id.strip_prefix("sha256:").unwrap_or_default();
    let blobs = [format!("blobs/sha256/{hex}"), format!("{hex}.json")];
    let found = read(archive, &[IMAGES, INDEX, LAYOUT, &blobs[0], &blobs[1]])
        .map_err(|error| format!("the archive cannot be read: {error}"))?;
    let images: Vec<SavedImage> = list(&found, IMAGES)?.unwrap_or_default();
    let index: Option<Index> = list(&found, INDEX)?;
    let layout: Option<Layout> = list(&found, LAYOUT)?;
    let [saved] = &images[..] else {
        return Err(format!("the archive contains {} images", images.len()));
    };
    let indexed = index.map_or_else(Vec::new, |index| index.manifests);
    let mut ids: Vec<String> = indexed.iter().map(|one| one.digest.clone()).collect();
    if let Expected::Id(_) = expected {
        ids.insert(0, format!("sha256:{}", stem(&saved.configuration)));
    } else if layout.is_none_or(|layout| layout.version.is_empty()) {
        return Err(format!("the archive has no `{LAYOUT}`"));
    }
    if !ids.iter().any(|one| one == id) || indexed.len() > 1 {
        let ids = ids.join(", ");
        let ids = ids.escape_debug();
        return Err(format!("the archive contains `{ids}` instead of `{id}`"));
    }
    let has_blob = (blobs.iter().filter_map(|blob| found.get(blob))).any(|one| sha256(one) == hex);
    if !has_blob {
        return Err(format!("the archive does not contain `{id}`"));
    }
    let tags = saved.tags.iter().flatten();
    let names = indexed
        .iter()
        .filter_map(|one| one.annotations.as_ref()?.get(NAME));
    let ours = [Some(oci::full_name(image)), oci::loaded_name(image)];
    match tags
        .chain(names)
        .find(|name| !ours.contains(&Some(oci::full_name(name))))
    {
        Some(other) => Err(format!(
            "the archive contains the name of another image, `{}`",
            other.escape_debug()
        )),
        None => Ok(()),
    }
}

/// The name of a blob without directory and extension.
fn stem(path: &str) -> &str {
    let name = path.rsplit('/').next().unwrap_or(path);
    name.strip_suffix(".json").unwrap_or(name)
}

/// Parses a list of images, if the archive contains it.
fn list<T: DeserializeOwned>(
    found: &BTreeMap<String, Vec<u8>>,
    name: &str,
) -> Result<Option<T>, String> {
    let parsed = found
        .get(name)
        .map(|content| serde_json::from_slice(content));
    (parsed.transpose()).map_err(|error| format!("`{name}` in the archive is invalid: {error}"))
}

/// The path of a file in an archive, without `.` components. Programs that load archives also resolve `..`, so it is rejected.
fn path_of(bytes: &[u8]) -> io::Result<String> {
    let invalid = |why: &str| {
        let name = String::from_utf8_lossy(bytes).escape_debug().to_string();
        io::Error::new(io::ErrorKind::InvalidData, format!("`{name}` {why}"))
    };
    let name = std::str::from_utf8(bytes).map_err(|_| invalid("is not UTF-8"))?;
    let mut parts = Vec::new();
    for component in Utf8Path::new(name).components() {
        match component {
            Utf8Component::Normal(part) => parts.push(part),
            Utf8Component::CurDir => {}
            _ => return Err(invalid("is not a path inside the archive")),
        }
    }
    Ok(parts.join("/"))
}

/// Reads some small files of an archive.
fn read(archive: impl Read, names: &[&str]) -> io::Result<BTreeMap<String, Vec<u8>>> {
    let mut found = BTreeMap::new();
    for entry in tar::Archive::new(archive).entries()? {
        let entry = entry?;
        let name = path_of(&entry.path_bytes())?;
        if !names.contains(&&*name) {
            continue;
        }
        let mut content = Vec::new();
        let is_file = entry.header().entry_type() == tar::EntryType::Regular;
        entry.take(LIMIT + 1).read_to_end(&mut content)?;
        let is_whole = content.len() as u64 <= LIMIT;
        if !is_file || !is_whole || found.insert(name.clone(), content).is_some() {
            let why = format!("`{name}` is not one regular file of at most {LIMIT} bytes");
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
    }
    Ok(found)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    const VERSION: &[u8] = b"{\"imageLayoutVersion\":\"1.0.0\"}";

    const CONFIGURATION: &[u8] = b"{\"rootfs\":{}}";

    /// An archive of Docker, and the ID of its image.
    pub(crate) fn docker_archive() -> (String, Vec<u8>) {
        let hex = sha256(CONFIGURATION);
        let file = format!("{hex}.json");
        let list = saved(&file, "null");
        let archive = packed(&[(&file, CONFIGURATION), (IMAGES, &list)]);
        (format!("sha256:{hex}"), archive)
    }

    fn packed(files: &[(&str, &[u8])]) -> Vec<u8> {
        let mut archive = tar::Builder::new(Vec::new());
        for (name, content) in files {
            let mut header = tar::Header::new_gnu();
            header.set_size(content.len() as u64);
            header.set_mode(0o644);
            archive
                .append_data(&mut header, name, *content)
                .expect("packed");
        }
        archive.into_inner().expect("packed")
    }

    fn saved(configuration: &str, tags: &str) -> Vec<u8> {
        format!(r#"[{{"Config":"{configuration}","RepoTags":{tags},"Layers":[]}}]"#).into_bytes()
    }

    fn indexed(digest: &str, name: &str) -> Vec<u8> {
        format!(r#"{{"manifests":[{{"digest":"{digest}","annotations":{{"{NAME}":"{name}"}}}}]}}"#)
            .into_bytes()
    }

    #[test]
    fn archive_of_each_client_is_identified_by_its_id() {
        let hex = sha256(CONFIGURATION);
        let id = format!("sha256:{hex}");
        let manifest = b"{\"config\":{}}";
        let digest = oci::digest(manifest);
        let image = &format!("registry.example.com:5000/team/probe:1@{digest}");
        let (file, blob) = (format!("{hex}.json"), format!("blobs/sha256/{hex}"));
        let registry = format!("blobs/{}", digest.replace(':', "/"));
        // Docker up to 24 and Podman.
        let old = packed(&[(&file, CONFIGURATION), (IMAGES, &saved(&file, "null"))]);
        assert_eq!(check(&*old, image, Expected::Id(&id)), Ok(()));
        // Docker since 25, whose index contains another manifest.
        let other = oci::digest(b"other");
        let index = indexed(&other, &oci::loaded_name(image).expect("a digest"));
        let new = packed(&[
            (&blob, CONFIGURATION),
            (INDEX, &index),
            (IMAGES, &saved(&blob, "[]")),
        ]);
        assert_eq!(check(&*new, image, Expected::Id(&id)), Ok(()));
        // containerd.
        let tags = format!("[\"{image}\"]");
        let index = indexed(&digest, image);
        let list = saved(&blob, &tags);
        let files: Vec<(&str, &[u8])> = vec![
            (LAYOUT, VERSION),
            (&registry, manifest),
            (&blob, CONFIGURATION),
            (INDEX, &index),
            (IMAGES, &list),
        ];
        let expected = Expected::Manifest(&digest);
        assert_eq!(check(&*packed(&files), image, expected), Ok(()));
        // Without this file, containerd loads the image in the other list.
        let why = check(&*packed(&files[1..]), image, expected).expect_err("another format");
        assert_eq!(why, "the archive has no `oci-layout`");
        // The other list has the digest.
        let (index, list) = (indexed(&other, image), saved(&registry, "null"));
        let replaced: Vec<(&str, &[u8])> = vec![
            (LAYOUT, VERSION),
            (&registry, manifest),
            (INDEX, &index),
            (IMAGES, &list),
        ];
        assert_eq!(
            check(&*packed(&replaced), image, expected),
            Err(format!(
                "the archive contains `{other}` instead of `{digest}`"
            ))
        );
    }

    #[test]
    fn archive_with_other_content_is_rejected() {
        let hex = sha256(CONFIGURATION);
        let id = &format!("sha256:{hex}");
        let image = &format!("probe@{}", oci::digest(b"manifest"));
        let file = &format!("{hex}.json");
        let list = &saved(file, "null")[..];
        let nginx = &saved(file, "[\"nginx:latest\"]")[..];
        let pause = &indexed(id, "registry.k8s.io/pause:3.9")[..];
        let (configuration, large) = (CONFIGURATION, vec![b' '; LIMIT as usize + 1]);
        for (files, expected) in rows! {
            vec![(&**file, &b"{}"[..]), (IMAGES, list)], "does not contain `sha256:";
            vec![(IMAGES, list)], "does not contain `sha256:";
            vec![(&**file, configuration), (IMAGES, nginx)], "another image, `nginx:latest`";
            vec![(&**file, configuration), (IMAGES, list), (INDEX, pause)], "`registry.k8s.io/pause:3.9`";
            vec![(&**file, configuration), (IMAGES, list), (IMAGES, nginx)], "is not one regular file";
            vec![(&**file, configuration), (IMAGES, list), ("./manifest.json", nginx)], "is not one regular file";
            vec![(&**file, configuration), (IMAGES, list), (".//./manifest.json", nginx)], "is not one regular file";
            vec![(&**file, configuration), (IMAGES, &*large)], "is not one regular file";
            vec![(&**file, configuration)], "contains 0 images";
            vec![(&**file, configuration), (IMAGES, &b"[]x"[..])], "`manifest.json` in the archive is invalid";
        } {
            let why = check(&*packed(&files), image, Expected::Id(id)).expect_err(expected);
            assert!(why.contains(expected), "{why}");
        }
        assert!(check(&b"no archive"[..], image, Expected::Id(id)).is_err());
        assert_eq!(path_of(b"./a//./b").expect("a path"), "a/b");
        for outside in [&b"a/../manifest.json"[..], b"/manifest.json", b"\xff"] {
            path_of(outside).expect_err("rejected");
        }
    }
}
