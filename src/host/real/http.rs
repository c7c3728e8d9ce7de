//! HTTP over reqwest and rustls, with the system's roots: bounded and retried.

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

/// How this program calls itself.
const AGENT: &str = concat!("gpu-bootstrap/", env!("CARGO_PKG_VERSION"));

/// Attempts beyond the first.
const RETRIES: usize = 4;

/// The first pause between attempts; each following one is twice as long, with jitter.
const FIRST_PAUSE: Duration = Duration::from_secs(1);

/// No pause is longer.
const LONGEST_PAUSE: Duration = Duration::from_secs(20);

/// As many redirects as browsers follow, roughly.
const REDIRECTS: usize = 10;

/// How long the network may take.
#[derive(Debug, Clone, Copy)]
struct Limits {
    connect: Duration,
    read: Duration,
    get: Duration,
}

const LIMITS: Limits = Limits {
    connect: Duration::from_secs(10),
    read: Duration::from_secs(30),
    get: Duration::from_secs(120),
};

/// The network, from this machine.
#[derive(Clone)]
pub struct RealHttp {
    clock: Arc<dyn Clock>,
    proxy: Option<HttpProxy>,
    limits: Limits,
    client: BuiltClient,
    /// The clients of [`Http::ask`].
    direct: BuiltClient,
    proxied: BuiltClient,
}

/// A client, or why there is none.
type BuiltClient = Arc<OnceLock<Result<Client, String>>>;

/// A proxy from the configuration. Without one, `https_proxy`, `http_proxy`, `all_proxy` and
/// `no_proxy` of the environment count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpProxy {
    /// Its address, `http://proxy:3128`, perhaps with a password.
    pub url: Secret,
    /// Comma-separated hosts, domains and networks that are reached directly.
    pub no_proxy: Option<String>,
}

/// Chooses the crypto backend of TLS, once for the process. Calling it again changes nothing.
fn install_crypto_provider() {
    if rustls::crypto::ring::default_provider()
        .install_default()
        .is_err()
    {
        tracing::trace!("the crypto provider was chosen before");
    }
}

impl RealHttp {
    /// Pauses between attempts are slept through this clock.
    #[must_use]
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

    /// The client, built when first needed: a machine without root certificates can still run
    /// everything that needs no network.
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
                    attempt.error("a redirect from https to an address without it")
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

    /// The client for services of a cloud.
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

    /// The pauses between the attempts of one request.
    fn pauses(&self) -> impl Iterator<Item = Duration> + Send + use<> {
        // Nodes of one pool start at the same moment; without a seed of their own they would also
        // retry at the same moment.
        let seed = u64::from(std::process::id()) ^ self.clock.now().as_nanosecond() as u64;
        ExponentialBuilder::default()
            .with_min_delay(FIRST_PAUSE)
            .with_max_delay(LONGEST_PAUSE)
            .with_max_times(RETRIES)
            .with_jitter()
            .with_jitter_seed(seed)
            .build()
    }

    /// Waits for the next attempt, or gives the error back if there is none to hope for.
    async fn again(&self, error: HttpError, pause: Option<Duration>) -> Result<(), HttpError> {
        let Some(pause) = pause.filter(|_| error.passes()) else {
            return Err(error);
        };
        tracing::warn!(%error, ?pause, "trying again");
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
        // It ends the reading of the answer, too.
        let asked = (request.headers.iter())
            .fold(asked.timeout(request.within), |asked, header| {
                asked.header(header.0, header.1.expose())
            });
        let response = asked.send().await.map_err(|error| broken(url, error))?;
        // No header that this program reads has other characters.
        let headers = (response.headers().iter())
            .filter_map(|(name, value)| Some((name.to_string(), value.to_str().ok()?.to_owned())));
        Ok(HttpResponse {
            status: response.status().as_u16(),
            headers: headers.collect(),
            body: body(url, response, request.limit).await?,
        })
    }
}

/// The path of a `file://` address.
fn local(url: &str) -> Option<Utf8PathBuf> {
    let url = Url::parse(url).ok().filter(|url| url.scheme() == "file")?;
    Utf8PathBuf::from_path_buf(url.to_file_path().ok()?).ok()
}

/// The address as errors show it.
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
        // What a server would answer.
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

    /// Serves these raw answers, one connection each, then closes; gives its address.
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

    fn folder() -> (tempfile::TempDir, Utf8PathBuf) {
        let temporary = tempfile::tempdir().unwrap();
        let path = Utf8PathBuf::from_path_buf(temporary.path().to_owned()).unwrap();
        (temporary, path)
    }

    #[tokio::test]
    async fn gets_a_page_after_passing_faults() {
        let (http, clock) = http();
        let url = serve(vec![cut(), status("503 Busy"), page("key")]);
        assert_eq!(http.get(&url, 100).await.unwrap(), b"key");
        let slept = clock.slept();
        assert_eq!(slept.len(), 2);
        assert!(slept[0] >= FIRST_PAUSE && slept[1] >= 2 * FIRST_PAUSE);
    }

    #[tokio::test]
    async fn gives_up_after_some_attempts_and_at_once_on_a_plain_no() {
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
    async fn bounds_the_size_with_and_without_a_length() {
        let (http, _) = http();
        let endless = "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n12345678901".to_owned();
        let url = serve(vec![page("12345678901"), endless]);
        for _ in 0..2 {
            let error = http.get(&url, 10).await.unwrap_err();
            assert!(matches!(error, HttpError::TooLarge { limit: 10, .. }));
        }
    }

    #[tokio::test]
    async fn a_silent_server_is_given_up() {
        let (mut http, clock) = http();
        http.limits.read = Duration::from_millis(100);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let error = http.get(&url, 10).await.unwrap_err();
        assert!(matches!(error, HttpError::Transport { .. }));
        assert_eq!(clock.slept().len(), RETRIES);
    }

    #[tokio::test]
    async fn a_folder_is_a_mirror() {
        let (http, _) = http();
        let (_keep, root) = folder();
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
    async fn goes_through_the_configured_proxy() {
        let proxy = serve(vec![page("{request}")]);
        let proxy = HttpProxy {
            url: Secret::new(proxy),
            no_proxy: Some("direct.example".to_owned()),
        };
        let http = RealHttp::new(Arc::new(FakeClock::default()), Some(proxy));
        // Longer than announced: only what was announced counts.
        let body = http.get("http://mirror.example/key", 100).await.unwrap();
        assert!("GET http://mirror.example/key".starts_with(std::str::from_utf8(&body).unwrap()));
    }

    #[tokio::test]
    async fn what_is_stored_arrives_and_an_answer_has_its_headers() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/a", listener.local_addr().unwrap());
        let server = std::thread::spawn(move || {
            let (mut connection, _) = listener.accept().unwrap();
            let mut request = Vec::new();
            let mut buffer = [0; 1024];
            while !request.ends_with(b"\r\n\r\ncontent") {
                let count = connection.read(&mut buffer).unwrap();
                assert!(count > 0, "the connection ended");
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
    async fn passwords_stay_out_of_errors() {
        let (http, _) = http();
        let url = serve(vec![status("403 No")]).replace("http://", "http://user:hush@");
        let error = http.get(&url, 10).await.unwrap_err().to_string();
        assert!(
            error.contains("answered 403") && !error.contains("hush"),
            "{error}"
        );
    }

    #[tokio::test]
    async fn tls_is_ready_and_never_falls_back_to_plain_text() {
        let (mut http, _) = http();
        http.limits.connect = Duration::from_millis(200);
        // A server that speaks no TLS: what counts is that building the client works.
        let url = serve((0..=RETRIES).map(|_| page("x")).collect()).replace("http:", "https:");
        let error = http.get(&url, 10).await.unwrap_err();
        assert!(matches!(error, HttpError::Transport { .. }), "{error}");
    }
}
