//! HTTP with reqwest and rustls, using the system's root certificates, with limits and retries.

use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use backon::{BackoffBuilder, ExponentialBuilder};
use camino::{Utf8Path, Utf8PathBuf};
use reqwest::redirect;
use reqwest::{Client, ClientBuilder, NoProxy, Proxy, Response, Url};
use tokio::io::AsyncReadExt;

use crate::error::one_line;
use crate::host::{Clock, Http, HttpError, HttpRequest, HttpResponse, Method, Route};
use crate::model::secret::{Secret, without_logins};

/// The User-Agent header.
const AGENT: &str = concat!("gpu-bootstrap/", env!("CARGO_PKG_VERSION"));

/// The number of retries.
const RETRIES: usize = 4;

/// The first pause between attempts. Each pause is twice as long as the previous one, with jitter.
const FIRST_PAUSE: Duration = Duration::from_secs(1);

/// The maximum pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(20);

/// The maximum number of redirects, as in the default policy of reqwest.
const REDIRECTS: usize = 10;

/// Network timeouts.
#[derive(Debug, Clone, Copy)]
struct Limits {
    connect: Duration,
    read: Duration,
    /// For a whole `GET` request with its response.
    get: Duration,
}

const LIMITS: Limits = Limits {
    connect: Duration::from_secs(10),
    read: Duration::from_secs(30),
    get: Duration::from_secs(120),
};

/// The network of this machine.
#[derive(Clone)]
pub struct RealHttp {
    clock: Arc<dyn Clock>,
    proxy: Option<HttpProxy>,
    limits: Limits,
    client: BuiltClient,
    /// The client for [`Http::ask`] with [`Route::Direct`].
    direct: BuiltClient,
    /// The client for [`Http::ask`] with [`Route::Proxied`].
    proxied: BuiltClient,
}

/// A client, or the reason there is none.
type BuiltClient = Arc<OnceLock<Result<Client, String>>>;

/// A configured proxy. Without one, `https_proxy`, `http_proxy`, `all_proxy` and `no_proxy` of the
/// environment apply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpProxy {
    /// The URL, for example `http://proxy:3128`. It may contain a password.
    pub url: Secret,
    /// Comma-separated hosts, domains and networks that are accessed directly.
    pub no_proxy: Option<String>,
}

/// Selects the TLS crypto provider, once per process. Further calls have no effect.
fn install_crypto_provider() {
    if rustls::crypto::ring::default_provider()
        .install_default()
        .is_err()
    {
        tracing::trace!("the crypto provider was already selected");
    }
}

impl RealHttp {
    /// Creates a client. `clock` is used for pauses between attempts.
    pub fn new(clock: Arc<dyn Clock>, proxy: Option<HttpProxy>) -> Self {
        Self {
            clock,
            proxy,
            limits: LIMITS,
            client: BuiltClient::default(),
            direct: BuiltClient::default(),
            proxied: BuiltClient::default(),
        }
    }

    /// Returns the client, which is created on first use. A machine without root certificates can
    /// therefore run everything that needs no network.
    fn client(&self, url: &str) -> Result<&Client, HttpError> {
        self.client
            .get_or_init(|| self.build().map_err(|error| one_line(&error)))
            .as_ref()
            .map_err(|why| transport(url, why.clone()))
    }

    fn build(&self) -> reqwest::Result<Client> {
        install_crypto_provider();
        let builder = Client::builder()
            .user_agent(AGENT)
            .connect_timeout(self.limits.connect)
            .read_timeout(self.limits.read)
            .redirect(redirect::Policy::custom(|attempt| {
                let from = attempt.previous().last();
                if from.is_some_and(|from| from.scheme() == "https")
                    && attempt.url().scheme() != "https"
                {
                    attempt.error("redirect from https to a URL without TLS")
                } else if attempt.previous().len() > REDIRECTS {
                    attempt.error("too many redirects")
                } else {
                    attempt.follow()
                }
            }));
        self.behind_proxy(builder)?.build()
    }

    fn behind_proxy(&self, builder: ClientBuilder) -> reqwest::Result<ClientBuilder> {
        let Some(proxy) = &self.proxy else {
            return Ok(builder);
        };
        let direct = proxy.no_proxy.as_deref().and_then(NoProxy::from_string);
        Ok(builder.proxy(Proxy::all(proxy.url.expose())?.no_proxy(direct)))
    }

    /// Returns the client for cloud services.
    fn asking(&self, route: Route, url: &str) -> Result<&Client, HttpError> {
        let build = || {
            install_crypto_provider();
            let builder = Client::builder()
                .user_agent(AGENT)
                .redirect(redirect::Policy::none());
            match route {
                Route::Direct => builder.no_proxy(),
                Route::Proxied => self.behind_proxy(builder)?,
            }
            .build()
        };
        let built = match route {
            Route::Direct => &self.direct,
            Route::Proxied => &self.proxied,
        };
        built
            .get_or_init(|| build().map_err(|error| one_line(&error)))
            .as_ref()
            .map_err(|why| transport(url, why.clone()))
    }

    async fn start(&self, url: &str) -> Result<Response, HttpError> {
        let response = self
            .client(url)?
            .get(url)
            .timeout(self.limits.get)
            .send()
            .await
            .map_err(|error| broken(url, error))?;
        successful(url, response)
    }

    /// Returns the pauses between the attempts of one request.
    fn pauses(&self) -> impl Iterator<Item = Duration> + Send + use<> {
        // Nodes of one pool start at the same time. Without a separate seed, they would also retry
        // at the same time.
        let seed = u64::from(std::process::id()) ^ self.clock.now().as_nanosecond() as u64;
        ExponentialBuilder::default()
            .with_min_delay(FIRST_PAUSE)
            .with_max_delay(LONGEST_PAUSE)
            .with_max_times(RETRIES)
            .with_jitter()
            .with_jitter_seed(seed)
            .build()
    }

    /// Waits for the next attempt, or returns the error if a retry is not possible.
    async fn again(&self, error: HttpError, pause: Option<Duration>) -> Result<(), HttpError> {
        let Some(pause) = pause.filter(|_| error.is_retryable()) else {
            return Err(error);
        };
        tracing::warn!(%error, ?pause, "retrying");
        self.clock.sleep(pause).await;
        Ok(())
    }

    async fn get_once(&self, url: &str, limit: u64) -> Result<Vec<u8>, HttpError> {
        body(url, self.start(url).await?, limit).await
    }
}

fn successful(url: &str, response: Response) -> Result<Response, HttpError> {
    if response.status().is_success() {
        return Ok(response);
    }
    Err(HttpError::Status {
        url: shown(url),
        status: response.status().as_u16(),
    })
}

async fn body(url: &str, mut response: Response, limit: u64) -> Result<Vec<u8>, HttpError> {
    let mut body = Vec::new();
    if response.content_length().is_some_and(|size| size > limit) {
        return Err(too_large(url, limit));
    }
    while let Some(piece) = response.chunk().await.map_err(|error| broken(url, error))? {
        if (body.len() + piece.len()) as u64 > limit {
            return Err(too_large(url, limit));
        }
        body.extend_from_slice(&piece);
    }
    Ok(body)
}

#[async_trait]
impl Http for RealHttp {
    async fn get(&self, url: &str, limit: u64) -> Result<Vec<u8>, HttpError> {
        if let Some(path) = local(url) {
            let mut content = Vec::new();
            let file = tokio::fs::File::open(&path)
                .await
                .map_err(|error| unreadable(url, &path, &error))?;
            file.take(limit.saturating_add(1))
                .read_to_end(&mut content)
                .await
                .map_err(|error| unreadable(url, &path, &error))?;
            return if content.len() as u64 > limit {
                Err(too_large(url, limit))
            } else {
                Ok(content)
            };
        }
        let mut pauses = self.pauses();
        loop {
            match self.get_once(url, limit).await {
                Err(error) => self.again(error, pauses.next()).await?,
                got => return got,
            }
        }
    }

    async fn ask(&self, request: &HttpRequest) -> Result<HttpResponse, HttpError> {
        let url = &request.url;
        let client = self.asking(request.route, url)?;
        let asked = match &request.method {
            Method::Get => client.get(url),
            Method::Put => client.put(url),
            Method::Post(document) => client.post(url).body(document.clone()),
            Method::Store(content) => client.put(url).body(content.clone()),
        };
        // The timeout also applies to reading the response.
        let asked = (request.headers.iter())
            .fold(asked.timeout(request.within), |asked, header| {
                asked.header(header.0, header.1.expose())
            });
        let response = asked.send().await.map_err(|error| broken(url, error))?;
        // A header value that is not visible ASCII is omitted. gpu-bootstrap uses no such header.
        let headers = (response.headers().iter())
            .filter_map(|(name, value)| Some((name.to_string(), value.to_str().ok()?.to_owned())));
        Ok(HttpResponse {
            status: response.status().as_u16(),
            headers: headers.collect(),
            body: body(url, response, request.limit).await?,
        })
    }
}

/// Returns the path of a `file://` URL.
fn local(url: &str) -> Option<Utf8PathBuf> {
    let url = Url::parse(url).ok().filter(|url| url.scheme() == "file")?;
    Utf8PathBuf::from_path_buf(url.to_file_path().ok()?).ok()
}

/// Returns the URL as shown in errors, without credentials.
fn shown(url: &str) -> String {
    without_logins(url).into_owned()
}

fn transport(url: &str, why: String) -> HttpError {
    HttpError::Transport {
        url: shown(url),
        why,
    }
}

fn broken(url: &str, error: reqwest::Error) -> HttpError {
    transport(url, one_line(&error.without_url()))
}

fn too_large(url: &str, limit: u64) -> HttpError {
    HttpError::TooLarge {
        url: shown(url),
        limit,
    }
}

fn unreadable(url: &str, path: &Utf8Path, error: &io::Error) -> HttpError {
    if error.kind() == io::ErrorKind::NotFound {
        // A server returns the same status for a missing file.
        return HttpError::Status {
            url: shown(url),
            status: 404,
        };
    }
    transport(url, format!("read `{path}`: {error}"))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;
    use crate::host::fake::FakeClock;

    /// Serves these raw responses, one per connection, then closes. Returns the URL.
    fn serve(answers: Vec<String>) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            for answer in answers {
                let (mut connection, _) = listener.accept().unwrap();
                let mut request = Vec::new();
                let mut buffer = [0; 1024];
                while !request.windows(4).any(|end| end == b"\r\n\r\n") {
                    let count = connection.read(&mut buffer).unwrap();
                    request.extend_from_slice(&buffer[..count]);
                }
                let request = String::from_utf8(request).unwrap();
                let answer = answer.replace("{request}", request.lines().next().unwrap());
                connection.write_all(answer.as_bytes()).unwrap();
            }
        });
        address
    }

    fn page(body: &str) -> String {
        format!(
            "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        )
    }

    fn status(line: &str) -> String {
        format!("HTTP/1.1 {line}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    }

    fn cut() -> String {
        "HTTP/1.1 200 OK\r\nContent-Length: 100\r\nConnection: close\r\n\r\nhalf".to_owned()
    }

    fn http() -> (RealHttp, FakeClock) {
        let clock = FakeClock::default();
        (RealHttp::new(Arc::new(clock.clone()), None), clock)
    }

    fn directory() -> (tempfile::TempDir, Utf8PathBuf) {
        let temporary = tempfile::tempdir().unwrap();
        let path = Utf8PathBuf::from_path_buf(temporary.path().to_owned()).unwrap();
        (temporary, path)
    }

    #[tokio::test]
    async fn page_is_returned_after_transient_errors() {
        let (http, clock) = http();
        let url = serve(vec![cut(), status("503 Busy"), page("key")]);
        assert_eq!(http.get(&url, 100).await.unwrap(), b"key");
        let slept = clock.slept();
        assert_eq!(slept.len(), 2);
        assert!(slept[0] >= FIRST_PAUSE && slept[1] >= 2 * FIRST_PAUSE);
    }

    #[tokio::test]
    async fn retries_are_limited_and_permanent_errors_are_not_retried() {
        let (http, clock) = http();
        let url = serve((0..=RETRIES).map(|_| cut()).collect());
        let error = http.get(&url, 200).await.unwrap_err();
        assert!(matches!(error, HttpError::Transport { .. }), "{error}");
        assert_eq!(clock.slept().len(), RETRIES);
        let url = serve(vec![status("404 Not Found")]);
        let error = http.get(&url, 200).await.unwrap_err();
        assert!(matches!(error, HttpError::Status { status: 404, .. }));
        assert_eq!(clock.slept().len(), RETRIES);
    }

    #[tokio::test]
    async fn size_is_limited_with_and_without_content_length() {
        let (http, _) = http();
        let endless = "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n12345678901".to_owned();
        let url = serve(vec![page("12345678901"), endless]);
        for _ in 0..2 {
            let error = http.get(&url, 10).await.unwrap_err();
            assert!(matches!(error, HttpError::TooLarge { limit: 10, .. }));
        }
    }

    #[tokio::test]
    async fn silent_server_times_out() {
        let (mut http, clock) = http();
        http.limits.read = Duration::from_millis(100);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let error = http.get(&url, 10).await.unwrap_err();
        assert!(matches!(error, HttpError::Transport { .. }));
        assert_eq!(clock.slept().len(), RETRIES);
    }

    #[tokio::test]
    async fn directory_can_be_a_mirror() {
        let (http, _) = http();
        let (_keep, root) = directory();
        std::fs::write(root.join("a b"), b"key").unwrap();
        let url = format!("file://{root}/a%20b");
        assert_eq!(http.get(&url, 3).await.unwrap(), b"key");
        assert!(matches!(
            http.get(&url, 2).await,
            Err(HttpError::TooLarge { limit: 2, .. })
        ));
        assert!(matches!(
            http.get(&format!("file://{root}/none"), 3).await,
            Err(HttpError::Status { status: 404, .. })
        ));
    }

    #[tokio::test]
    async fn configured_proxy_is_used() {
        let proxy = serve(vec![page("{request}")]);
        let proxy = HttpProxy {
            url: Secret::new(proxy),
            no_proxy: Some("direct.example".to_owned()),
        };
        let http = RealHttp::new(Arc::new(FakeClock::default()), Some(proxy));
        // The response is longer than its Content-Length. Only the announced part counts.
        let body = http.get("http://mirror.example/key", 100).await.unwrap();
        assert!("GET http://mirror.example/key".starts_with(std::str::from_utf8(&body).unwrap()));
    }

    #[tokio::test]
    async fn stored_content_arrives_and_response_headers_are_returned() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/a", listener.local_addr().unwrap());
        let server = std::thread::spawn(move || {
            let (mut connection, _) = listener.accept().unwrap();
            let mut request = Vec::new();
            let mut buffer = [0; 1024];
            while !request.ends_with(b"\r\n\r\ncontent") {
                let count = connection.read(&mut buffer).unwrap();
                assert!(count > 0, "the connection was closed");
                request.extend_from_slice(&buffer[..count]);
            }
            let answer =
                "HTTP/1.1 307 Go\r\nLocation: /b\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
            connection.write_all(answer.as_bytes()).unwrap();
            String::from_utf8(request).unwrap()
        });
        let (http, _) = http();
        let ask = HttpRequest {
            method: Method::Store(b"content".to_vec()),
            route: Route::Direct,
            url,
            headers: vec![("content-type", Secret::new("text/plain"))],
            within: Duration::from_secs(10),
            limit: 10,
        };
        let answer = http.ask(&ask).await.unwrap();
        assert_eq!(answer.status, 307);
        assert_eq!(answer.header("location").collect::<Vec<_>>(), ["/b"]);
        let request = server.join().unwrap();
        assert!(
            request.starts_with("PUT /a ") && request.contains("content-type: text/plain"),
            "{request}"
        );
    }

    #[tokio::test]
    async fn passwords_are_not_in_errors() {
        let (http, _) = http();
        let url = serve(vec![status("403 No")]).replace("http://", "http://user:hush@");
        let error = http.get(&url, 10).await.unwrap_err().to_string();
        assert!(
            error.contains("returned 403") && !error.contains("hush"),
            "{error}"
        );
    }

    #[tokio::test]
    async fn tls_is_available_without_fallback_to_plain_text() {
        let (mut http, _) = http();
        http.limits.connect = Duration::from_millis(200);
        // The server does not support TLS. Without a crypto provider, building the client would
        // panic.
        let url = serve((0..=RETRIES).map(|_| page("x")).collect()).replace("http:", "https:");
        let error = http.get(&url, 10).await.unwrap_err();
        assert!(matches!(error, HttpError::Transport { .. }), "{error}");
    }
}
