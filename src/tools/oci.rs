//! Container registries: full names of images, and kernel modules as artifacts. An archive and its signature are the layers of an artifact, and the tag is derived
//! from the archive name. This file contains URLs, tags, manifests and registry authentication.
//!
//! Sources: OCI Distribution Specification 1.1 (names, tags, "Pull", "Push"); OCI Image Specification 1.1 ("Guidelines for
//! Artifact Usage", annotation `org.opencontainers.image.title`, which `oras` uses as the file name); Distribution, "Token
//! Authentication Specification"; Docker, "docker login" (`auths`, `credsStore`, `credHelpers`).

use std::{collections::BTreeMap, fmt};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    host::digest::{is_sha256, sha256},
    model::secret::Secret,
};

/// The URL scheme of a repository.
pub const SCHEME: &str = "oci://";

/// The media type of a manifest.
pub const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// The artifact type of an artifact with modules.
const ARTIFACT: &str = "application/vnd.gpu-bootstrap.modules.v1";

/// The configuration blob of an artifact without configuration.
pub const EMPTY: &[u8] = b"{}";

/// The annotation with the file name of a layer.
const TITLE: &str = "org.opencontainers.image.title";

/// The file in which `docker login` stores credentials if root runs it.
pub const LOGINS: &str = "/root/.docker/config.json";

/// The default registry, as in Docker.
const DEFAULT_REGISTRY: &str = "docker.io";

/// Returns the full name of a container image, with registry and tag. Docker adds them itself, other runtimes do not.
pub fn full_name(image: &str) -> String {
    let named = match image.split_once('/') {
        Some((first, _)) if first.contains(['.', ':']) || first == "localhost" => image.to_owned(),
        Some(_) => format!("{DEFAULT_REGISTRY}/{image}"),
        None => format!("{DEFAULT_REGISTRY}/library/{image}"),
    };
    let last = named.rsplit('/').next().unwrap_or(&named);
    if last.contains([':', '@']) {
        named
    } else {
        format!("{named}:latest")
    }
}

/// Whether a text is the digest of a blob: `sha256:` and 64 lower-case hexadecimal digits.
pub fn is_digest(text: &str) -> bool {
    text.strip_prefix("sha256:").is_some_and(is_sha256)
}

/// Returns the tag of an image in a runtime that does not know its digest in the registry, because the image was loaded from an
/// archive. `None` if the name of the image has no digest.
pub fn loaded_name(image: &str) -> Option<String> {
    let full = full_name(image);
    let (name, digest) = full.split_once('@')?;
    let hex = digest.strip_prefix("sha256:")?;
    let start = name.rfind('/').map_or(0, |slash| slash + 1);
    let end = name[start..]
        .find(':')
        .map_or(name.len(), |colon| start + colon);
    Some(format!("{}:gpu-bootstrap-{hex}", &name[..end]))
}

/// A repository in a registry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// Host and optional port.
    pub registry: String,
    pub repository: String,
}

impl Address {
    /// Parses `oci://REGISTRY/REPOSITORY`, or returns `None` if the text has another format.
    pub fn parse(text: &str) -> Option<Self> {
        let (registry, repository) = text.strip_prefix(SCHEME)?.split_once('/')?;
        let is_host = |c: char| c.is_ascii_alphanumeric() || ".:-[]".contains(c);
        let is_end =
            |c: Option<char>| c.is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
        let is_part = |part: &str| {
            let mut chars = part.chars();
            is_end(chars.clone().next())
                && is_end(chars.clone().next_back())
                && chars.all(|c| is_end(Some(c)) || "._-".contains(c))
        };
        let valid = registry.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '[')
            && registry.chars().all(is_host)
            && repository.split('/').all(is_part);
        valid.then(|| Self {
            registry: registry.to_owned(),
            repository: repository.to_owned(),
        })
    }

    /// Returns the URL of an object in the repository. Only HTTPS is used.
    pub fn at(&self, what: &str) -> String {
        let Self {
            registry,
            repository,
        } = self;
        format!("https://{registry}/v2/{repository}/{what}")
    }

    /// Returns the URL for a `Location` header of the registry, or `None` if it does not use HTTPS.
    pub fn elsewhere(&self, location: &str) -> Option<String> {
        match location.starts_with('/') && !location.starts_with("//") {
            true => Some(format!("https://{}{location}", self.registry)),
            false => (location.starts_with("https://")).then(|| location.to_owned()),
        }
    }

    /// Returns the upload URL for a `Location` header of the registry. Uploads to another host are not allowed.
    pub fn upload(&self, location: &str, digest: &str) -> Option<String> {
        let own = format!("https://{}", self.registry);
        let path = location.strip_prefix(&own).unwrap_or(location);
        let between = if path.contains('?') { '&' } else { '?' };
        (path.starts_with('/') && !path.starts_with("//"))
            .then(|| format!("{own}{path}{between}digest={digest}"))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{SCHEME}{}/{}", self.registry, self.repository)
    }
}

/// Returns the tag of an archive. A tag contains only letters, digits, `_`, `.` and `-`, but kernel releases may also contain
/// `+`.
pub fn tag(archive: &str) -> String {
    let name = archive.strip_suffix(".tar.gz").unwrap_or(archive);
    name.replace(
        |c: char| !(c.is_ascii_alphanumeric() || "_.-".contains(c)),
        "_",
    )
}

/// Returns the digest of a blob.
pub fn digest(content: &[u8]) -> String {
    format!("sha256:{}", sha256(content))
}

/// A file in an artifact.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ArtifactLayer {
    /// The digest, in the format of [`digest`].
    pub digest: String,
    pub size: u64,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

impl ArtifactLayer {
    /// Whether the layer is the file with this name.
    pub fn is(&self, name: &str) -> bool {
        self.annotations.get(TITLE).map(String::as_str) == Some(name)
    }

    /// Whether the layer has this content.
    pub fn has(&self, content: &[u8]) -> bool {
        self.size == content.len() as u64 && self.digest == digest(content)
    }

    /// Whether the digest is of a supported kind and safe to use in a URL.
    pub fn is_known(&self) -> bool {
        let hex = self.digest.strip_prefix("sha256:");
        hex.is_some_and(|hex| hex.len() == 64 && hex.bytes().all(|byte| byte.is_ascii_hexdigit()))
    }
}

/// Parses the layers of a manifest.
///
/// # Errors
/// If the text is not a manifest of the expected type.
pub fn layers(manifest: &[u8]) -> Result<Vec<ArtifactLayer>, serde_json::Error> {
    #[derive(Deserialize)]
    struct ArtifactManifest {
        layers: Vec<ArtifactLayer>,
    }
    serde_json::from_slice::<ArtifactManifest>(manifest).map(|manifest| manifest.layers)
}

/// A file to add to an artifact.
#[derive(Debug, Clone, Copy)]
pub struct File<'f> {
    pub name: &'f str,
    pub media_type: &'f str,
    pub content: &'f [u8],
}

/// Returns the manifest of an artifact with these files.
pub fn manifest(files: &[File<'_>]) -> Value {
    let layers = files.iter().map(|file| {
        json!({
            "mediaType": file.media_type,
            "digest": digest(file.content),
            "size": file.content.len(),
            "annotations": { TITLE: file.name },
        })
    });
    json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "artifactType": ARTIFACT,
        "config": {
            "mediaType": "application/vnd.oci.empty.v1+json",
            "digest": digest(EMPTY),
            "size": EMPTY.len(),
        },
        "layers": layers.collect::<Vec<_>>(),
    })
}

/// The authentication method of a registry.
#[derive(Debug, PartialEq, Eq)]
pub enum Challenge {
    /// HTTP basic authentication for each request.
    Basic,
    /// A token, available at this URL.
    Token(String),
}

/// Parses a `WWW-Authenticate` header. Returns `None` for an unsupported method, and for a token service without HTTPS. `scope`
/// replaces the scope in the header, because GitHub's registry requests only `pull` even for an upload.
pub fn challenge(header: &str, scope: Option<&str>) -> Option<Challenge> {
    let (way, rest) = header.trim().split_once(' ').unwrap_or((header.trim(), ""));
    if way.eq_ignore_ascii_case("basic") {
        return Some(Challenge::Basic);
    }
    if !way.eq_ignore_ascii_case("bearer") {
        return None;
    }
    let mut quoted = false;
    // A quoted scope may contain commas.
    let ends = |c: char| {
        quoted ^= c == '"';
        c == ',' && !quoted
    };
    let mut parameters: BTreeMap<&str, &str> = (rest.split(ends))
        .filter_map(|parameter| parameter.split_once('='))
        .map(|(name, value)| (name.trim(), value.trim().trim_matches('"')))
        .collect();
    parameters.extend(scope.map(|scope| ("scope", scope)));
    let mut address = (*parameters.get("realm")?).to_owned();
    for name in ["service", "scope"] {
        if let Some(value) = parameters.get(name) {
            address.push(if address.contains('?') { '&' } else { '?' });
            address.push_str(&format!(
                "{name}={}",
                utf8_percent_encode(value, NON_ALPHANUMERIC)
            ));
        }
    }
    address
        .starts_with("https://")
        .then_some(Challenge::Token(address))
}

/// Parses the response of a token service.
pub fn token(answer: &[u8]) -> Option<Secret> {
    let answer: Value = serde_json::from_slice(answer).ok()?;
    let token = (answer.get("token")).or_else(|| answer.get("access_token"));
    Some(Secret::new(format!("Bearer {}", token?.as_str()?)))
}

/// Returns the error code of a registry, such as `DENIED` or `MANIFEST_UNKNOWN`.
pub fn refusal(answer: &[u8]) -> Option<String> {
    let answer: Value = serde_json::from_slice(answer).ok()?;
    let word = answer.pointer("/errors/0/code")?.as_str()?;
    let is_word = !word.is_empty() && word.bytes().all(|b| b.is_ascii_uppercase() || b == b'_');
    is_word.then(|| word.to_owned())
}

/// The credentials for a registry.
#[derive(Debug, PartialEq, Eq)]
pub enum Login {
    /// The `Authorization` header.
    Basic(Secret),
    /// The NAME of the program `docker-credential-NAME` that is configured for this registry.
    Helper(String),
    /// The NAME of the program `docker-credential-NAME` that is configured for all registries. It may have no credentials for
    /// this one.
    Store(String),
}

/// Returns the remedy if a registry has no valid credentials.
pub fn login_remedy(registry: &str) -> String {
    format!("as root, run `docker login {registry}`, which stores the credentials in `{LOGINS}`")
}

/// Returns the name of the program that a helper or a store in [`LOGINS`] refers to. Source:
/// github:docker/docker-credential-helpers.
pub fn helper_program(name: &str) -> String {
    format!("docker-credential-{name}")
}

/// Finds the credentials for a registry in [`LOGINS`].
///
/// # Errors
/// If the file is not JSON.
pub fn login(config: &str, registry: &str) -> Result<Option<Login>, serde_json::Error> {
    let config: Value = serde_json::from_str(config)?;
    let text = |value: &Value| {
        value
            .as_str()
            .filter(|text| !text.is_empty())
            .map(str::to_owned)
    };
    let of = |table: &str| {
        let table = config.get(table)?;
        (table.get(registry)).or_else(|| table.get(format!("https://{registry}")))
    };
    if let Some(basic) = of("auths").and_then(|login| text(login.get("auth")?)) {
        return Ok(Some(Login::Basic(Secret::new(format!("Basic {basic}")))));
    }
    let is_name = |name: &String| {
        name.chars()
            .all(|c| c.is_ascii_alphanumeric() || "-_".contains(c))
    };
    let name = |value: Option<&Value>| value.and_then(text).filter(is_name);
    Ok(match name(of("credHelpers")) {
        Some(helper) => Some(Login::Helper(helper)),
        None => name(config.get("credsStore")).map(Login::Store),
    })
}

/// Parses the output of a credential helper. Returns `None` for an identity token, which is used in another way than a
/// password.
pub fn helped(answer: &str) -> Option<Secret> {
    let answer: Value = serde_json::from_str(answer).ok()?;
    let user = answer.get("Username")?.as_str()?;
    let password = answer.get("Secret")?.as_str()?;
    (user != "<token>").then(|| {
        let both = STANDARD.encode(format!("{user}:{password}"));
        Secret::new(format!("Basic {both}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn image_names_get_registry_and_tag_like_in_docker() {
        for (image, full) in rows! {
            "debian", "docker.io/library/debian:latest";
            "nvidia/cuda:12.8.1-base-ubi9", "docker.io/nvidia/cuda:12.8.1-base-ubi9";
            "nvcr.io/nvidia/cuda:1", "nvcr.io/nvidia/cuda:1";
            "localhost/x", "localhost/x:latest";
            "host:5000/x", "host:5000/x:latest";
            "host:5000/x@sha256:00", "host:5000/x@sha256:00";
        } {
            assert_eq!(full_name(image), full);
        }
    }

    #[test]
    fn address_is_a_registry_and_a_repository() {
        for (text, registry, repository) in [
            (
                "oci://ghcr.io/team/gpu-modules",
                "ghcr.io",
                "team/gpu-modules",
            ),
            ("oci://[fd00::1]:5000/a", "[fd00::1]:5000", "a"),
        ] {
            let address = Address::parse(text).expect(text);
            assert_eq!(
                (&*address.registry, &*address.repository),
                (registry, repository)
            );
        }
        for bad in [
            "oci://ghcr.io",
            "oci://ghcr.io/",
            "oci:///a",
            "oci://joe:word@ghcr.io/a",
            "oci://ghcr.io/a:tag",
            "oci://ghcr.io/a@sha256:0",
            "oci://ghcr.io/a/../b",
            "oci://ghcr.io/A",
            "oci://ghcr.io/a//b",
            "oci://ghcr.io/a?b",
            "https://ghcr.io/a",
        ] {
            assert_eq!(Address::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn upload_goes_only_to_the_registry() {
        let address = Address::parse("oci://a.example:5000/b").expect("an address");
        let whole = "https://a.example:5000/v2/b/uploads/1";
        let upload = |location: &str| address.upload(location, "sha256:0");
        assert_eq!(
            upload("/v2/b/uploads/1?state=x").expect("a path"),
            format!("{whole}?state=x&digest=sha256:0")
        );
        assert_eq!(
            upload(whole).expect("whole"),
            format!("{whole}?digest=sha256:0")
        );
        for other in [
            "http://a.example:5000/x",
            "https://a.example:5000.evil/x",
            "https://evil/x",
            "//evil/x",
            "x",
        ] {
            assert_eq!(upload(other), None, "{other}");
        }
    }

    #[test]
    fn tag_contains_only_allowed_characters() {
        let archive = "nvidia-535.261.03-open-debian-6.12.9+bpo-amd64-x86_64.tar.gz";
        assert_eq!(
            tag(archive),
            "nvidia-535.261.03-open-debian-6.12.9_bpo-amd64-x86_64"
        );
    }

    #[test]
    fn manifest_files_are_found_by_name() {
        let file = File {
            name: "a.tar.gz",
            media_type: "application/gzip",
            content: b"content",
        };
        let text = manifest(&[file]).to_string();
        let layers = layers(text.as_bytes()).expect("a manifest");
        assert!(layers[0].is("a.tar.gz") && !layers[0].is("a.tar.gz.minisig"));
        assert!(layers[0].is_known() && layers[0].has(b"content"));
        assert!(!layers[0].has(b"Content") && !layers[0].has(b"content "));
        for bad in [
            "",
            "<html>",
            "[]",
            r#"{"manifests":[]}"#,
            r#"{"layers":[{"digest":"a"}]}"#,
        ] {
            assert!(super::layers(bad.as_bytes()).is_err(), "{bad}");
        }
        // A manifest from `oras push`, and a digest with another algorithm.
        let text = r#"{"schemaVersion":2,"layers":[{"mediaType":"x","digest":"sha512:../a","size":1,
            "annotations":{"org.opencontainers.image.title":"b"}},{"digest":"sha256:..","size":2}]}"#;
        let layers = super::layers(text.as_bytes()).expect("a manifest");
        assert!(layers[0].is("b") && !layers.iter().any(ArtifactLayer::is_known));
    }

    #[test]
    fn token_service_url_is_parsed() {
        let header = r#"Bearer realm="https://auth.example/token",service="registry.example",scope="repository:a/b:pull,push""#;
        let address = "https://auth.example/token?service=registry%2Eexample&scope=repository%3Aa%2Fb%3Apull%2Cpush";
        assert_eq!(
            challenge(header, None),
            Some(Challenge::Token(address.to_owned()))
        );
        let header = r#"bearer realm="https://auth.example/token?a=b", scope="x""#;
        let address = "https://auth.example/token?a=b&scope=x";
        assert_eq!(
            challenge(header, None),
            Some(Challenge::Token(address.to_owned()))
        );
        assert_eq!(
            challenge(r#"Basic realm="r""#, None),
            Some(Challenge::Basic)
        );
        for bad in [
            "",
            "Negotiate",
            "Bearer",
            r#"Bearer realm="http://auth.example/""#,
        ] {
            assert_eq!(challenge(bad, None), None, "{bad}");
        }
        let bearer = |answer: &str| token(answer.as_bytes()).map(|token| token.expose().to_owned());
        for answer in [r#"{"token":"t"}"#, r#"{"access_token":"t"}"#] {
            assert_eq!(bearer(answer).as_deref(), Some("Bearer t"));
        }
        assert_eq!(bearer("<html>"), None);
        let refused = r#"{"errors":[{"code":"NAME_UNKNOWN","message":"x"}]}"#;
        assert_eq!(refusal(refused.as_bytes()).as_deref(), Some("NAME_UNKNOWN"));
        assert_eq!(refusal(br#"{"errors":[{"code":"a\nb"}]}"#), None);
    }

    #[test]
    fn docker_client_credentials_are_found() {
        let config = r#"{
            "auths": { "a.example:5000": { "auth": "am9lOndvcmQ=" }, "https://b.example": { "auth": "Yg==" }, "c.example": {} },
            "credHelpers": { "d.example": "ecr-login", "e.example": "../x" }
        }"#;
        let basic = |text: &str| Some(Login::Basic(Secret::new(text)));
        let helper = |text: &str| Some(Login::Helper(text.to_owned()));
        for (registry, expected) in [
            ("a.example:5000", basic("Basic am9lOndvcmQ=")),
            ("b.example", basic("Basic Yg==")),
            ("a.example", None),
            ("c.example", None),
            ("d.example", helper("ecr-login")),
            ("e.example", None),
        ] {
            assert_eq!(
                login(config, registry).expect("JSON"),
                expected,
                "{registry}"
            );
        }
        let store = r#"{"auths":{"c.example":{}},"credsStore":"pass"}"#;
        assert_eq!(
            login(store, "c.example").expect("JSON"),
            Some(Login::Store("pass".to_owned()))
        );
        assert!(login("{", "c.example").is_err());
        let said = helped(r#"{"ServerURL":"d.example","Username":"AWS","Secret":"word"}"#);
        assert_eq!(said, Some(Secret::new("Basic QVdTOndvcmQ=")));
        assert_eq!(helped(r#"{"Username":"<token>","Secret":"word"}"#), None);
        assert_eq!(helped("credentials not found"), None);
    }
}
