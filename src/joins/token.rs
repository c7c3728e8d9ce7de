//! Fetches the join token when the machine joins. The files in `clouds/` describe the secret stores. Each submodule implements
//! one method by which an instance authenticates to them.
//!
//! The instance identity is requested from the metadata service without a proxy, and the secret through the configured proxy.

mod bearer;
mod signed;

use std::time::Duration;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::Value;

use super::bad_secret;
use crate::work::{ChangeError, Hands};
use crate::{
    facts::Service,
    host::{Host, HttpError, HttpRequest, HttpResponse, Method, RetryLimit, Route, ask_again},
    model::{
        clouds::{self, CloudRow, Identity, SecretFault as TokenFault, SecretRow},
        pattern,
        secret::{Secret, Secrets},
        token::{SecretLocation, TokenSource},
    },
};

/// The time limit of the metadata service.
const IDENTITY: Duration = Duration::from_secs(15);

/// The time limit for all requests to the secret store, including retries.
const SECRET: Duration = Duration::from_secs(30);
/// The time limit for one request to the secret store.
const ANSWER: Duration = Duration::from_secs(10);

/// The maximum number of attempts without a response.
const SILENCES: u32 = 3;

/// The maximum size of a response. An AWS secret has up to 64 KiB, and JSON escapes can double its size.
const LARGEST: u64 = 256 << 10;

impl Hands {
    /// Fetches the token.
    pub(crate) async fn token(&self, source: &TokenSource) -> Result<Secret, ChangeError> {
        if let TokenSource::File(path) = source {
            return self.secret(path);
        }
        let metadata = Service::of(&self.host, IDENTITY, SILENCES);
        let clouds = Clouds {
            host: &self.host,
            metadata,
            secrets: &self.secrets,
            instead: None,
        };
        let what = format!("get the token from `{source}`");
        self.unless_stopped(&what, clouds.token(source)).await?
    }

    /// Fetches the token. Fails if `wrong` returns a reason to reject it.
    pub(crate) async fn usable_token(
        &self,
        source: &TokenSource,
        wrong: impl Fn(&str) -> Option<&'static str>,
    ) -> Result<Secret, ChangeError> {
        let token = self.token(source).await?;
        let Some(why) = wrong(token.expose()) else {
            return Ok(token);
        };
        Err(match source {
            TokenSource::File(path) => bad_secret(path, why),
            source => problem(TokenFault::Form, source, why),
        })
    }
}

/// The cloud services.
struct Clouds<'h> {
    host: &'h Host,
    metadata: Service<'h>,
    /// The secrets that the run hides. All fetched secrets are added.
    secrets: &'h Secrets,
    /// A base URL that replaces the real one in tests.
    instead: Option<&'h str>,
}

/// The reason a cloud returned no token.
type TokenFailure = (TokenFault, String);

/// Returns the error for a token that could not be fetched. `why` must not contain the secret.
fn problem(fault: TokenFault, place: &TokenSource, why: &str) -> ChangeError {
    let hints = match place {
        TokenSource::Store(place) => place.store().map(|row| &row.hints),
        _ => None,
    };
    let own = hints
        .and_then(|hints| hints.get(&fault))
        .map(String::as_str);
    let (reason, hint) = match (fault, place) {
        (TokenFault::NoIdentity, _) => (
            "join-token-no-identity",
            "give the machine an identity that may read the secret",
        ),
        (TokenFault::Denied, _) => (
            "join-token-denied",
            "allow the machine's identity to read the secret",
        ),
        (TokenFault::NotFound, TokenSource::Credential(_)) => (
            "join-token-not-found",
            "check `systemd-creds list --system`; credentials in `/etc/credstore` are persistent",
        ),
        (TokenFault::NotFound, _) => (
            "join-token-not-found",
            "correct `cluster.token`, or create the secret",
        ),
        (TokenFault::Form, _) => (
            "join-token-form",
            "store only the token, as text, as a new version of the secret",
        ),
        (TokenFault::Unreachable, _) => (
            "join-token-unreachable",
            "check that routes, firewalls and `packages.proxy` allow access to it, then run the \
             command again",
        ),
        (TokenFault::Refused, _) => ("join-token-refused", "check the audit log of the cloud"),
    };
    ChangeError {
        retryable: fault == TokenFault::Unreachable,
        ..ChangeError::new(reason, format!("get the token from `{place}`: {why}"))
            .advice(own.unwrap_or(hint))
    }
}

impl Clouds<'_> {
    async fn token(&self, source: &TokenSource) -> Result<Secret, ChangeError> {
        let fetched = match source {
            TokenSource::Store(place) => self.of_store(place).await,
            // `Hands::token` reads files. A credential that exists was replaced with its file when the settings were loaded.
            TokenSource::File(_) | TokenSource::Credential(_) => {
                Err((TokenFault::NotFound, "it does not exist".to_owned()))
            }
        };
        let token = fetched.and_then(|token| {
            self.secrets.learn(&token);
            let text = token.expose().trim();
            let is_one = !text.is_empty() && !text.contains(char::is_whitespace);
            let wrong = || {
                (
                    TokenFault::Form,
                    "the secret is not a single word".to_owned(),
                )
            };
            is_one.then(|| Secret::new(text)).ok_or_else(wrong)
        });
        token.map_err(|(fault, why)| problem(fault, source, &why))
    }

    /// Reads a secret from a cloud's secret store.
    async fn of_store(&self, place: &SecretLocation) -> Result<Secret, TokenFailure> {
        let none = || (TokenFault::NotFound, "there is no such store".to_owned());
        let of = |cloud: &'static CloudRow| Some((cloud, cloud.secret.as_ref()?));
        let mut stores = clouds::all().iter().filter_map(of);
        let (cloud, row) =
            (stores.find(|(_, row)| row.scheme == place.scheme())).ok_or_else(none)?;
        let request = StoreRequest::of(row, place);
        let headers = match row.identity {
            Identity::Bearer => self.bearer(cloud, row).await?,
            Identity::SignedV4 => self.signed(cloud, row, place, &request).await?,
        };
        let method = match &request.body {
            Some(body) => Method::Post(body.clone()),
            None => Method::Get,
        };
        let answer = (self.ask(method, &request.host, &request.path, headers)).await?;
        let document = document(&answer.body);
        let at = |pointer: &String| document.pointer(pointer).and_then(Value::as_str);
        if answer.status == 200 {
            if let Some(text) = row.value.iter().find_map(at) {
                return Ok(Secret::new(text));
            }
            let text = row.value_base64.iter().find_map(at).ok_or_else(valueless)?;
            return decoded(STANDARD.decode(text));
        }
        // The error code may start with a namespace and `#`.
        let word = at(&row.word).and_then(|word| word.rsplit('#').next());
        match word.and_then(|word| row.words.get(word)) {
            Some(fault) => Err((*fault, said(answer.status, word))),
            None => Err(refused(answer.status, word)),
        }
    }

    /// Reads the identity from the metadata service.
    async fn identity(
        &self,
        cloud: &'static CloudRow,
        row: &'static SecretRow,
        behind: &str,
    ) -> Result<Vec<u8>, TokenFailure> {
        let Some(metadata) = &cloud.metadata else {
            return Err((
                TokenFault::NoIdentity,
                "there is no metadata service".to_owned(),
            ));
        };
        let header = self.metadata.header(metadata).await.map_err(failed)?;
        let path = format!("{}{behind}", row.identity_path);
        let told = self.metadata.ask(Method::Get, &path, header).await;
        told.map_err(|error| match &error {
            HttpError::Status { status, .. } if row.later.contains(status) => {
                (TokenFault::Unreachable, error.to_string())
            }
            HttpError::Status { status, .. } => match row.none.get(&status.to_string()) {
                Some(why) => (TokenFault::NoIdentity, why.clone()),
                None => failed(error),
            },
            _ => failed(error),
        })
    }

    /// Returns the secret value of a key in an identity document, and hides it in all output of the run.
    fn learned(&self, document: &Value, key: &str) -> Result<Secret, TokenFailure> {
        let text = document
            .get(key)
            .and_then(Value::as_str)
            .unwrap_or_default();
        if text.is_empty() {
            let why = format!("the metadata service returned no `{key}`");
            return Err((TokenFault::NoIdentity, why));
        }
        let secret = Secret::new(text);
        self.secrets.learn(&secret);
        Ok(secret)
    }

    /// Sends a request to a cloud service.
    async fn ask(
        &self,
        method: Method,
        host: &str,
        path: &str,
        headers: Vec<(&'static str, Secret)>,
    ) -> Result<HttpResponse, TokenFailure> {
        let url = match self.instead {
            Some(instead) => format!("{instead}{path}"),
            None => format!("https://{host}{path}"),
        };
        let clock = &*self.host.clock;
        let request = HttpRequest {
            method,
            route: Route::Proxied,
            url,
            headers,
            within: ANSWER,
            limit: LARGEST,
        };
        let persistence = RetryLimit {
            until: clock.monotonic() + SECRET,
            silences: SILENCES,
        };
        (ask_again(&*self.host.http, clock, &request, persistence).await).map_err(failed)
    }
}

/// A request to a secret store.
struct StoreRequest {
    host: String,
    path: String,
    body: Option<String>,
}

impl StoreRequest {
    fn of(row: &'static SecretRow, place: &SecretLocation) -> Self {
        let mut special = row.host_where.iter();
        let special = special.find(|(form, _)| pattern::matches(form, place.first()));
        let host = special.map_or(&row.host, |(_, host)| host);
        let filled = |text: &String| place.filled(row, text);
        Self {
            host: filled(host),
            path: filled(&row.path),
            body: row.body.as_ref().map(filled),
        }
    }
}

fn failed(error: HttpError) -> TokenFailure {
    let fault = match &error {
        error if error.is_retryable() => TokenFault::Unreachable,
        HttpError::TooLarge { .. } => TokenFault::Form,
        _ => TokenFault::Refused,
    };
    (fault, error.to_string())
}

/// Classifies an error response by its status and the error code of the service.
fn refused(status: u16, word: Option<&str>) -> TokenFailure {
    let fault = match status {
        401 | 403 => TokenFault::Denied,
        404 => TokenFault::NotFound,
        _ => TokenFault::Refused,
    };
    // Show `word` only if it looks like an error code. An error text may contain parts of the request.
    let is_word = |word: &&str| {
        word.len() <= 64 && word.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    let word = word.filter(is_word);
    (fault, said(status, word))
}

fn said(status: u16, word: Option<&str>) -> String {
    match word {
        Some(word) => format!("the service returned {status}, {word}"),
        None => format!("the service returned {status}"),
    }
}

/// Parses JSON. Invalid input becomes null.
fn document(body: &[u8]) -> Value {
    serde_json::from_slice(body).unwrap_or_default()
}

/// Converts a Base64-decoded value to text.
fn decoded(bytes: Result<Vec<u8>, base64::DecodeError>) -> Result<Secret, TokenFailure> {
    let text = bytes.ok().and_then(|bytes| String::from_utf8(bytes).ok());
    text.map(Secret::new)
        .ok_or_else(|| (TokenFault::Form, "the secret is not text".to_owned()))
}

/// The error of a response without the value.
fn valueless() -> TokenFailure {
    let why = "the response does not contain the secret".to_owned();
    (TokenFault::Form, why)
}

#[cfg(test)]
mod tests;
