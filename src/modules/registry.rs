//! Client for image registries that contain archives of kernel modules. The registry is not trusted: blobs are compared with
//! their digests, and archives are verified before use.

use std::time::Duration;

use camino::Utf8Path;

use super::SourceError;
use crate::{
    error::one_line,
    host::{
        Cmd, Host, HttpError, HttpRequest, HttpResponse, Method, RetryLimit, Route, ask_again,
        status_passes, trusted::unusable_secret,
    },
    model::secret::Secret,
    tools::oci::{self, Address, ArtifactLayer, Challenge, File, Login, challenge},
};

/// The maximum size of manifests, tokens and error responses, in bytes.
const SMALL: u64 = 256 << 10;

/// The maximum number of attempts without any response.
const SILENCES: u32 = 3;

/// A connection to a repository.
pub(crate) struct Registry<'h> {
    host: &'h Host,
    address: Address,
    within: Duration,
    /// The deadline on the monotonic clock.
    until: Duration,
    /// The value of the `authorization` header, after a log-in.
    authorization: Option<Secret>,
    /// Whether files are uploaded, so that a token must also allow writing.
    writes: bool,
}

/// The reason a request failed. The URL is omitted, because it may be a signed URL, with which anyone can download the file.
fn silence(error: HttpError) -> SourceError {
    let is_transient = error.is_retryable();
    let why = match error {
        HttpError::Transport { why, .. } => why,
        HttpError::Status { status, .. } => format!("the server returned {status}"),
        HttpError::TooLarge { limit, .. } => format!("the response is larger than {limit} bytes"),
    };
    SourceError { why, is_transient }
}

/// Describes an unexpected response by its status and error code.
fn refused(answer: &HttpResponse) -> SourceError {
    let word = oci::refusal(&answer.body);
    let word = word.map(|word| format!(" ({word})")).unwrap_or_default();
    SourceError {
        why: format!("the registry returned {}{word}", answer.status),
        is_transient: status_passes(answer.status),
    }
}

impl<'h> Registry<'h> {
    /// Creates a client. `within` limits all requests together.
    pub(crate) fn new(host: &'h Host, address: Address, within: Duration) -> Self {
        Self {
            until: host.clock.monotonic() + within,
            host,
            address,
            within,
            authorization: None,
            writes: false,
        }
    }

    /// Makes the client request tokens that also allow writing.
    pub(crate) fn for_writing(self) -> Self {
        Self {
            writes: true,
            ..self
        }
    }

    /// Returns the files of a tag, or `None` if the tag does not exist.
    pub(crate) async fn layers(
        &mut self,
        tag: &str,
    ) -> Result<Option<Vec<ArtifactLayer>>, SourceError> {
        let url = self.address.at(&format!("manifests/{tag}"));
        let what = format!("get `{url}`");
        let failed = |error: SourceError| error.within(&what);
        let accept = vec![("accept", Secret::new(oci::MANIFEST))];
        let asked = self.ask(Method::Get, &url, accept, SMALL).await;
        let answer = asked.map_err(failed)?;
        match answer.status {
            200 => (oci::layers(&answer.body).map(Some))
                .map_err(|error| failed(format!("not an artifact manifest: {error}").into())),
            404 => Ok(None),
            _ => Err(failed(refused(&answer))),
        }
    }

    /// Downloads a file.
    pub(crate) async fn blob(
        &mut self,
        layer: &ArtifactLayer,
        limit: u64,
    ) -> Result<Vec<u8>, SourceError> {
        if !layer.is_known() {
            return Err("the digest is not a SHA-256 digest".to_owned().into());
        }
        if layer.size > limit {
            return Err(format!("the file is larger than {limit} bytes").into());
        }
        let url = self.address.at(&format!("blobs/{}", layer.digest));
        let what = format!("get `{url}`");
        let failed = |error: SourceError| error.within(&what);
        let asked = self.ask(Method::Get, &url, Vec::new(), layer.size).await;
        let answer = asked.map_err(failed)?;
        let content = match answer.status {
            200 => answer.body,
            // Cloud registries store blobs on other hosts, which must not get the credentials.
            300..400 => {
                let place = answer.header("location").next().unwrap_or_default();
                let place = self.address.elsewhere(place);
                let place = place
                    .ok_or_else(|| failed("redirected to a URL without HTTPS".to_owned().into()))?;
                let got = self.send_as(None, &Method::Get, &place, Vec::new(), layer.size);
                match got.await.map_err(failed)? {
                    HttpResponse {
                        status: 200, body, ..
                    } => body,
                    other => return Err(failed(refused(&other))),
                }
            }
            _ => return Err(failed(refused(&answer))),
        };
        if layer.has(&content) {
            Ok(content)
        } else {
            Err(failed("digest or size mismatch".to_owned().into()))
        }
    }

    /// Uploads files under a tag.
    pub(crate) async fn push(&mut self, tag: &str, files: &[File<'_>]) -> Result<(), String> {
        if !self.writes {
            // The token may be read-only.
            (self.writes, self.authorization) = (true, None);
        }
        let failed = |what: &str, why: SourceError| format!("upload {what}: {why}");
        for (name, content) in [("an empty configuration", oci::EMPTY)]
            .into_iter()
            .chain(files.iter().map(|file| (file.name, file.content)))
        {
            let uploaded = self.upload(content).await;
            uploaded.map_err(|why| failed(name, why))?;
        }
        let url = self.address.at(&format!("manifests/{tag}"));
        let manifest = oci::manifest(files).to_string().into_bytes();
        let kind = vec![("content-type", Secret::new(oci::MANIFEST))];
        let asked = self.ask(Method::Store(manifest), &url, kind, SMALL).await;
        match asked {
            Ok(answer) if matches!(answer.status, 200..300) => Ok(()),
            Ok(answer) => Err(failed("the manifest", refused(&answer))),
            Err(why) => Err(failed("the manifest", why)),
        }
    }

    async fn upload(&mut self, content: &[u8]) -> Result<(), SourceError> {
        let begin = self.address.at("blobs/uploads/");
        let begun = Method::Post(String::new());
        let answer = self.ask(begun, &begin, Vec::new(), SMALL).await?;
        if answer.status != 202 {
            return Err(refused(&answer));
        }
        let place = answer.header("location").next().unwrap_or_default();
        let place = (self.address).upload(place, &oci::digest(content));
        let place = place.ok_or(
            "the registry requests an upload to another host, or without HTTPS".to_owned(),
        )?;
        let kind = vec![("content-type", Secret::new("application/octet-stream"))];
        let stored = Method::Store(content.to_vec());
        let answer = self.ask(stored, &place, kind, SMALL).await?;
        match answer.status {
            201 => Ok(()),
            _ => Err(refused(&answer)),
        }
    }

    /// Sends a request. If the registry requires authentication, authenticates and sends the request again.
    async fn ask(
        &mut self,
        method: Method,
        url: &str,
        headers: Vec<(&'static str, Secret)>,
        limit: u64,
    ) -> Result<HttpResponse, SourceError> {
        // An error response may be larger than the file.
        let limit = limit.max(SMALL);
        let answer = self.send(&method, url, headers.clone(), limit).await?;
        if answer.status != 401 {
            return Ok(answer);
        }
        self.log_in(&answer).await?;
        let answer = self.send(&method, url, headers, limit).await?;
        if answer.status == 401 {
            return Err(self.unknown().into());
        }
        Ok(answer)
    }

    async fn send(
        &self,
        method: &Method,
        url: &str,
        headers: Vec<(&'static str, Secret)>,
        limit: u64,
    ) -> Result<HttpResponse, SourceError> {
        let authorization = self.authorization.clone();
        (self.send_as(authorization, method, url, headers, limit)).await
    }

    async fn send_as(
        &self,
        authorization: Option<Secret>,
        method: &Method,
        url: &str,
        mut headers: Vec<(&'static str, Secret)>,
        limit: u64,
    ) -> Result<HttpResponse, SourceError> {
        headers.extend(authorization.map(|value| ("authorization", value)));
        let request = HttpRequest {
            method: method.clone(),
            route: Route::Proxied,
            url: url.to_owned(),
            headers,
            within: self.within,
            limit,
        };
        let persistence = RetryLimit {
            until: self.until,
            silences: SILENCES,
        };
        let (http, clock) = (&*self.host.http, &*self.host.clock);
        (ask_again(http, clock, &request, persistence).await).map_err(silence)
    }

    fn unknown(&self) -> String {
        let remedy = oci::login_remedy(&self.address.registry);
        format!("authentication failed: {remedy}")
    }

    async fn log_in(&mut self, rejected: &HttpResponse) -> Result<(), SourceError> {
        let login = self.login().await?;
        let scope = format!("repository:{}:pull,push", self.address.repository);
        let scope = self.writes.then_some(&*scope);
        let methods =
            (rejected.header("www-authenticate")).filter_map(|method| challenge(method, scope));
        // Prefer a token, which only allows the requested access.
        let method = methods.max_by_key(|method| matches!(method, Challenge::Token(_)));
        self.authorization = match method {
            None => {
                let why = "the registry requires an unsupported authentication method";
                return Err(why.to_owned().into());
            }
            Some(Challenge::Basic) => Some(login.ok_or_else(|| self.unknown())?),
            Some(Challenge::Token(address)) => {
                // The credentials are only sent to the token service. The registry gets the token.
                self.authorization = login;
                let answer = self.send(&Method::Get, &address, Vec::new(), SMALL).await?;
                let token = match answer.status {
                    200 => oci::token(&answer.body),
                    status if status_passes(status) => return Err(refused(&answer)),
                    _ => None,
                };
                Some(token.ok_or_else(|| self.unknown())?)
            }
        };
        Ok(())
    }

    /// Returns the credentials of the Docker client for this registry, if any.
    async fn login(&self) -> Result<Option<Secret>, String> {
        let (files, path) = (&*self.host.files, Utf8Path::new(oci::LOGINS));
        let wrong = |why: String| format!("`{path}`: {why}");
        if !files.exists(path).map_err(|error| one_line(&error))? {
            return Ok(None);
        }
        let unusable = unusable_secret(files, path).map_err(|error| one_line(&error))?;
        if let Some(why) = unusable {
            return Err(wrong(why));
        }
        let config = files.read_text(path).map_err(|error| one_line(&error))?;
        let login = oci::login(&config.unwrap_or_default(), &self.address.registry)
            .map_err(|_| wrong("it is not JSON".to_owned()))?;
        match login {
            None => Ok(None),
            Some(Login::Basic(basic)) => Ok(Some(basic)),
            Some(Login::Helper(name)) => self.helped(&name).await.map(Some),
            // If the store has no credentials, try anonymous access. The registry rejects it if it is not allowed.
            Some(Login::Store(name)) => Ok(self.helped(&name).await.ok()),
        }
    }

    /// Runs a credential helper of the Docker client (github:docker/docker-credential-helpers).
    async fn helped(&self, name: &str) -> Result<Secret, String> {
        let registry = Secret::new(&*self.address.registry);
        let program = oci::helper_program(name);
        let cmd = Cmd::new(&program, ["get"]).stdin(registry);
        let ran = self.host.exec.run(&cmd, &mut |_, _| {}).await;
        let output = ran.and_then(|output| output.success(&cmd));
        let output = output.map_err(|error| one_line(&error))?;
        let login = oci::helped(&output.stdout);
        login.ok_or_else(|| format!("`{program}` returned no user and password"))
    }
}

#[cfg(test)]
pub(crate) mod fake {
    use std::{
        collections::BTreeMap,
        sync::{Mutex, PoisonError},
    };

    use super::*;
    use crate::host::Http;

    pub const SOURCE: &str = "oci://r.example:5000/team/gpu";

    /// A registry in memory. The user `joe` with the password `word` gets a token with the requested scope.
    #[derive(Default)]
    pub struct FakeRegistry {
        pub blobs: Mutex<BTreeMap<String, Vec<u8>>>,
        pub tags: Mutex<BTreeMap<String, Vec<u8>>>,
        /// The URL of the blobs, if they are on another host.
        pub place: Option<&'static str>,
        /// Whether each request needs basic authentication.
        pub basic: bool,
        pub stored: Mutex<usize>,
    }

    fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
        mutex.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answer(
        status: u16,
        body: impl Into<Vec<u8>>,
        header: Option<(&str, String)>,
    ) -> HttpResponse {
        HttpResponse {
            status,
            body: body.into(),
            headers: header
                .into_iter()
                .map(|(name, value)| (name.to_owned(), value))
                .collect(),
        }
    }

    impl FakeRegistry {
        fn answer(&self, request: &HttpRequest) -> HttpResponse {
            let login = (request.headers.iter())
                .find(|(name, _)| *name == "authorization")
                .map(|(_, value)| value.expose());
            let url = &*request.url;
            if let Some(scope) = url.strip_prefix("https://auth.example/token?service=r&scope=") {
                return match login {
                    Some("Basic am9lOndvcmQ=") => {
                        answer(200, format!("{{\"token\":\"{scope}\"}}"), None)
                    }
                    _ => answer(401, "", None),
                };
            }
            let place = self.place.and_then(|place| url.strip_prefix(place));
            if let Some(blob) = place {
                assert_eq!(login, None, "credentials sent to another host");
                return answer(200, locked(&self.blobs)[blob].clone(), None);
            }
            let reads = request.method == Method::Get;
            let (accepted, challenge) = match self.basic {
                true => (
                    login == Some("Basic am9lOndvcmQ="),
                    "Basic realm=\"r\"".to_owned(),
                ),
                false => (
                    login == Some("Bearer repository%3Ateam%2Fgpu%3Apull%2Cpush")
                        || (reads && login == Some("Bearer pull")),
                    // Like the GitHub registry, which returns this for each request.
                    "Bearer realm=\"https://auth.example/token\",service=\"r\",scope=\"pull\""
                        .to_owned(),
                ),
            };
            if !accepted {
                return answer(401, "", Some(("www-authenticate", challenge)));
            }
            let path = url
                .strip_prefix("https://r.example:5000/v2/team/gpu/")
                .expect("the registry's own URL");
            let unknown = |what: &str| {
                answer(
                    404,
                    format!("{{\"errors\":[{{\"code\":\"{what}\"}}]}}"),
                    None,
                )
            };
            let name = path.rsplit(['/', '=']).next().unwrap_or_default();
            match (&request.method, path.split('/').next()) {
                (Method::Get, Some("manifests")) => match locked(&self.tags).get(name) {
                    Some(content) => answer(200, content.clone(), None),
                    None => unknown("MANIFEST_UNKNOWN"),
                },
                (Method::Get, Some("blobs")) => match (self.place, locked(&self.blobs).get(name)) {
                    (Some(place), Some(_)) => {
                        answer(307, "", Some(("location", format!("{place}{name}"))))
                    }
                    (None, Some(content)) => answer(200, content.clone(), None),
                    (_, None) => unknown("BLOB_UNKNOWN"),
                },
                (Method::Post(_), Some("blobs")) => {
                    let place = "/v2/team/gpu/blobs/uploads/1?state=x".to_owned();
                    answer(202, "", Some(("location", place)))
                }
                (Method::Store(content), Some("blobs")) if oci::digest(content) == name => {
                    locked(&self.blobs).insert(name.to_owned(), content.clone());
                    *locked(&self.stored) += 1;
                    answer(201, "", None)
                }
                (Method::Store(content), Some("manifests")) => {
                    let known = locked(&self.blobs);
                    let layers = oci::layers(content).expect("a manifest");
                    if !known.contains_key(&oci::digest(oci::EMPTY))
                        || !layers.iter().all(|layer| known.contains_key(&layer.digest))
                    {
                        return unknown("MANIFEST_BLOB_UNKNOWN");
                    }
                    locked(&self.tags).insert(name.to_owned(), content.clone());
                    answer(201, "", None)
                }
                _ => unknown("UNSUPPORTED"),
            }
        }
    }

    #[async_trait::async_trait]
    impl Http for FakeRegistry {
        async fn get(&self, url: &str, _: u64) -> Result<Vec<u8>, HttpError> {
            unreachable!("the client requests `{url}` with `get`, which logs URLs")
        }

        async fn ask(&self, request: &HttpRequest) -> Result<HttpResponse, HttpError> {
            Ok(self.answer(request))
        }
    }

    /// Stores credentials for root.
    pub fn log_in(host: &Host) {
        let config = "{\"auths\":{\"r.example:5000\":{\"auth\":\"am9lOndvcmQ=\"}}}";
        (host
            .files
            .write(oci::LOGINS.into(), config.as_bytes(), 0o600))
        .expect("written");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{
        fake::{FakeRegistry, SOURCE},
        *,
    };
    use crate::host;

    const FILE: File<'static> = File {
        name: "a.tar.gz",
        media_type: "application/gzip",
        content: b"content",
    };

    /// A machine with access to a registry.
    fn machine(registry: FakeRegistry) -> (Host, host::fake::Fakes, Arc<FakeRegistry>) {
        let (mut host, fakes) = host::fake::host();
        let registry = Arc::new(registry);
        host.http = registry.clone();
        (host, fakes, registry)
    }

    fn of(host: &Host) -> Registry<'_> {
        let address = Address::parse(SOURCE).expect("an address");
        Registry::new(host, address, Duration::from_secs(60))
    }

    /// Downloads the only file of a tag.
    async fn brought(host: &Host, limit: u64) -> Result<Vec<u8>, String> {
        let mut registry = of(host);
        let layers = registry.layers("t").await?.ok_or("no such tag")?;
        Ok(registry.blob(&layers[0], limit).await?)
    }

    #[tokio::test]
    async fn uploaded_files_can_be_downloaded() {
        for basic in [false, true] {
            let (host, ..) = machine(FakeRegistry {
                basic,
                ..FakeRegistry::default()
            });
            fake::log_in(&host);
            let mut registry = of(&host);
            assert_eq!(registry.layers("t").await, Ok(None));
            assert_eq!(registry.push("t", &[FILE]).await, Ok(()));
            assert_eq!(brought(&host, 7).await, Ok(b"content".to_vec()));
            let other = brought(&host, 6).await;
            assert_eq!(other, Err("the file is larger than 6 bytes".to_owned()));
        }
    }

    #[tokio::test]
    async fn redirected_blob_requires_https() {
        for (place, good) in [
            ("https://blobs.example/", true),
            ("http://blobs.example/", false),
            ("file:///etc/", false),
        ] {
            let (host, ..) = machine(FakeRegistry {
                place: Some(place),
                ..FakeRegistry::default()
            });
            fake::log_in(&host);
            assert_eq!(of(&host).push("t", &[FILE]).await, Ok(()));
            let brought = brought(&host, 7).await;
            assert_eq!(brought.is_ok(), good, "{place}: {brought:?}");
        }
    }

    #[tokio::test]
    async fn content_with_digest_mismatch_is_rejected() {
        let (host, _, registry) = machine(FakeRegistry::default());
        fake::log_in(&host);
        assert_eq!(of(&host).push("t", &[FILE]).await, Ok(()));
        let key = oci::digest(FILE.content);
        for content in ["Content", "content "] {
            let content = content.as_bytes().to_vec();
            (registry.blobs.lock().expect("a lock")).insert(key.clone(), content);
            let why = brought(&host, 100).await.expect_err("another content");
            assert!(why.ends_with("digest or size mismatch"), "{why}");
        }
        registry.blobs.lock().expect("a lock").remove(&key);
        let why = brought(&host, 100).await.expect_err("no content");
        assert!(
            why.ends_with("the registry returned 404 (BLOB_UNKNOWN)"),
            "{why}"
        );
        let page = b"<html>".to_vec();
        (registry.tags.lock().expect("a lock")).insert("t".to_owned(), page);
        let why = brought(&host, 100).await.expect_err("no manifest");
        assert!(
            why.contains("manifests/t`: not an artifact manifest"),
            "{why}"
        );
    }

    /// Missing and wrong credentials are also rejected.
    #[tokio::test]
    async fn credentials_file_must_belong_to_root() {
        let (host, ..) = machine(FakeRegistry::default());
        let why = async || String::from(of(&host).layers("t").await.expect_err("no login"));
        let wanted = why().await;
        assert!(wanted.contains("`docker login r.example:5000`"), "{wanted}");
        let kept = |auth: &str, mode| {
            let config = format!("{{\"auths\":{{\"r.example:5000\":{{\"auth\":\"{auth}\"}}}}}}");
            (host
                .files
                .write(oci::LOGINS.into(), config.as_bytes(), mode))
            .expect("written");
        };
        kept("am9lOndvcmQ=", 0o644);
        let open = why().await;
        assert!(
            open.contains("accessible to users other than root"),
            "{open}"
        );
        kept("d3Jvbmc=", 0o600);
        let refused = why().await;
        assert!(refused.contains("authentication failed"), "{refused}");
        assert!(!refused.contains("d3Jvbmc"), "{refused}");
    }

    #[tokio::test]
    async fn docker_credential_helper_is_used() {
        let (host, fakes, _) = machine(FakeRegistry::default());
        let config = "{\"credHelpers\":{\"r.example:5000\":\"ecr-login\"}}";
        (host
            .files
            .write(oci::LOGINS.into(), config.as_bytes(), 0o600))
        .expect("written");
        let why = String::from(of(&host).layers("t").await.expect_err("no helper"));
        assert!(
            why.contains("`docker-credential-ecr-login` is not installed"),
            "{why}"
        );
        fakes.exec.on("docker-credential-ecr-login", |cmd, _| {
            let asked = cmd.stdin.as_ref().map(Secret::expose);
            assert_eq!(
                (asked, &*cmd.args),
                (Some("r.example:5000"), &["get".to_owned()][..])
            );
            host::fake::ok("{\"Username\":\"joe\",\"Secret\":\"word\"}")
        });
        assert_eq!(of(&host).layers("t").await, Ok(None));
    }
}
