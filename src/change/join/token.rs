//! The token that joins a cluster, fetched at the moment of joining. One file for each cloud's secrets.
//!
//! The identity of the instance is asked of its metadata service, through no proxy; the secret through the proxy of the
//! settings.

mod aws;
mod azure;
mod gcp;

use std::time::Duration;

use serde_json::Value;

use super::bad_secret;
use crate::{
    change::{Applier, Problem},
    facts::Service,
    host::{Host, HttpError, HttpRequest, HttpResponse, Method, RetryLimit, Route, ask_again},
    model::{
        secret::{Secret, Secrets},
        token::TokenSource,
    },
};

/// How long the metadata service may take.
const IDENTITY: Duration = Duration::from_secs(15);

/// How long the service with the secret may take, and one of its answers.
const SECRET: Duration = Duration::from_secs(30);
const ANSWER: Duration = Duration::from_secs(10);

/// How often each may say nothing.
const SILENCES: u32 = 3;

/// A secret of AWS has up to 64 KiB, and JSON may double it.
const LARGEST: u64 = 256 << 10;

impl Applier {
    /// The token from its place.
    pub(super) async fn token(&self, source: &TokenSource) -> Result<Secret, Problem> {
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

    /// The token, unless `wrong` says why it cannot be used.
    pub(super) async fn usable_token(
        &self,
        source: &TokenSource,
        wrong: impl Fn(&str) -> Option<&'static str>,
    ) -> Result<Secret, Problem> {
        let token = self.token(source).await?;
        let Some(why) = wrong(token.expose()) else {
            return Ok(token);
        };
        Err(match source {
            TokenSource::File(path) => bad_secret(path, why),
            source => TokenFault::Form.problem(source, why),
        })
    }
}

/// The services of the clouds.
struct Clouds<'h> {
    host: &'h Host,
    metadata: Service<'h>,
    /// What the run hides: all that is fetched is added.
    secrets: &'h Secrets,
    /// An address that answers in place of theirs.
    instead: Option<&'h str>,
}

/// Why a cloud gives no token.
type TokenFailure = (TokenFault, String);

/// Why the token is not to be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TokenFault {
    /// The instance has no identity that could ask.
    NoIdentity,
    /// The identity may not read the secret.
    Denied,
    /// There is no such secret.
    NotFound,
    /// What is there is no token.
    Form,
    /// Nobody answers, or only that it cannot serve now.
    Unreachable,
    /// It is refused for another reason.
    Refused,
}

impl TokenFault {
    /// The error; `why` is without the secret.
    fn problem(self, place: &TokenSource, why: &str) -> Problem {
        use TokenSource::{Aws, Credential, Gcp};
        let (reason, hint) = match (self, place) {
            (Self::NoIdentity, place) => (
                "join-token-no-identity",
                match place {
                    Aws { .. } => "give the instance an instance profile with a role",
                    Gcp { .. } => {
                        "give the instance a service account with the scope `cloud-platform`"
                    }
                    _ => "give the machine one managed identity",
                },
            ),
            (Self::Denied, place) => (
                "join-token-denied",
                match place {
                    Aws { .. } => {
                        "let the instance's role do `secretsmanager:GetSecretValue` with this secret, and \
                         `kms:Decrypt` with its key if that is your own"
                    }
                    Gcp { .. } => {
                        "give the instance's service account the role `roles/secretmanager.secretAccessor` \
                         for this secret, and the instance the scope `cloud-platform`"
                    }
                    _ => {
                        "give the machine's identity the role `Key Vault Secrets User` in this vault, and see \
                         whether the vault's firewall lets the machine in"
                    }
                },
            ),
            (Self::NotFound, Credential(_)) => (
                "join-token-not-found",
                "see `systemd-creds list --system`; `/etc/credstore` is a place that lasts",
            ),
            (Self::NotFound, _) => (
                "join-token-not-found",
                "correct `cluster.token`, or make the secret",
            ),
            (Self::Form, _) => (
                "join-token-form",
                "store the token alone, as text, as a new version of the secret",
            ),
            (Self::Unreachable, _) => (
                "join-token-unreachable",
                "see that routes, firewalls and `packages.proxy` let this machine reach it, then run the command again",
            ),
            (Self::Refused, Aws { .. }) => (
                "join-token-refused",
                "see what the cloud's log of requests says; AWS refuses signatures of a machine whose clock is wrong",
            ),
            (Self::Refused, _) => (
                "join-token-refused",
                "see what the cloud's log of requests says",
            ),
        };
        Problem {
            passes: self == Self::Unreachable,
            ..Problem::new(reason, format!("get the token from `{place}`: {why}")).advice(hint)
        }
    }
}

impl Clouds<'_> {
    async fn token(&self, source: &TokenSource) -> Result<Secret, Problem> {
        let fetched = match source {
            TokenSource::Aws { region, name } => self.of_aws(region, name).await,
            TokenSource::Gcp {
                project,
                name,
                version,
            } => self.of_gcp(project, name, version).await,
            TokenSource::Azure {
                vault,
                name,
                version,
            } => self.of_azure(vault, name, version.as_deref()).await,
            TokenSource::File(_) | TokenSource::Credential(_) => {
                Err((TokenFault::NotFound, "it is not there".to_owned()))
            }
        };
        let token = fetched.and_then(|token| {
            self.secrets.learn(&token);
            let text = token.expose().trim();
            let is_one = !text.is_empty() && !text.contains(char::is_whitespace);
            let wrong = || (TokenFault::Form, "the secret is no single word".to_owned());
            is_one.then(|| Secret::new(text)).ok_or_else(wrong)
        });
        token.map_err(|(fault, why)| fault.problem(source, &why))
    }

    /// What an identity's document has at a key; it is secret.
    fn learned(&self, document: &Value, key: &str) -> Result<Secret, TokenFailure> {
        let text = document
            .get(key)
            .and_then(Value::as_str)
            .unwrap_or_default();
        if text.is_empty() {
            let why = format!("the metadata service tells no `{key}`");
            return Err((TokenFault::NoIdentity, why));
        }
        let secret = Secret::new(text);
        self.secrets.learn(&secret);
        Ok(secret)
    }

    /// Asks a service of the cloud.
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

fn failed(error: HttpError) -> TokenFailure {
    let fault = match &error {
        error if error.passes() => TokenFault::Unreachable,
        HttpError::TooLarge { .. } => TokenFault::Form,
        _ => TokenFault::Refused,
    };
    (fault, error.to_string())
}

/// An answer that is no success, by its status and by the word with which the service names the error.
fn refused(status: u16, word: Option<&str>) -> TokenFailure {
    let fault = match status {
        401 | 403 => TokenFault::Denied,
        404 => TokenFault::NotFound,
        _ => TokenFault::Refused,
    };
    // Only a word: a text may repeat what was sent.
    let is_word = |word: &&str| {
        word.len() <= 64 && word.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    let word = word.filter(is_word);
    (fault, said(status, word))
}

fn said(status: u16, word: Option<&str>) -> String {
    match word {
        Some(word) => format!("the service answered {status}, {word}"),
        None => format!("the service answered {status}"),
    }
}

/// A document of JSON; anything else is null.
fn document(body: &[u8]) -> Value {
    serde_json::from_slice(body).unwrap_or_default()
}

/// The text of a value that may be in Base64.
fn decoded(bytes: Result<Vec<u8>, base64::DecodeError>) -> Result<Secret, TokenFailure> {
    let text = bytes.ok().and_then(|bytes| String::from_utf8(bytes).ok());
    text.map(Secret::new)
        .ok_or_else(|| (TokenFault::Form, "the secret is no text".to_owned()))
}

/// An answer without the value.
fn valueless() -> TokenFailure {
    let why = "the answer has no secret in it".to_owned();
    (TokenFault::Form, why)
}

#[cfg(test)]
mod tests;
