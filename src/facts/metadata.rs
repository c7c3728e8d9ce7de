//! Completes the cloud facts with the metadata service, for data that neither the firmware nor
//! cloud-init reports. The service is queried once per command, with a limit of a few seconds and
//! without a proxy. `uninstall` does not query it, because `uninstall` does not need the data.
//!
//! The queries are defined in `clouds/`, based on the documentation of the clouds and on the data
//! sources of cloud-init (2026-08-21). All services use the same link-local address. Google
//! documents a host name, which requires DNS, so the address is also used for Google Cloud (like
//! googleapis/google-cloud-go, compute/metadata v0.7.0).

use std::{collections::BTreeMap, time::Duration};

use serde_json::Value;

use crate::{
    error::one_line,
    facts::{Cloud, Facts, Unknown, cloud::UNREPORTED},
    host::{Clock, Host, Http, HttpError, HttpRequest, Method, RetryLimit, Route, ask_again},
    model::{
        clouds::{self, InstanceKey, MetadataRow},
        secret::Secret,
    },
};

/// The address of the services.
const SERVICE: &str = "http://169.254.169.254";

/// The timeout of one request. Responses come from the host of the instance, within milliseconds.
const ANSWER: Duration = Duration::from_secs(1);

/// The maximum total time, including pauses.
const WHOLE: Duration = Duration::from_secs(5);

/// The maximum response size. Azure returns one document of a few kB, with up to 64 kB of user data.
const LARGEST: u64 = 256 << 10;

/// A request header. Its value may be secret.
pub type Header = (&'static str, Secret);

/// Completes the cloud facts. Data that the service does not report stays unknown, with the reason.
pub async fn complete(host: &Host, facts: &mut Facts) {
    // If there is no response, there is no service, so a second attempt is enough.
    Service::of(host, WHOLE, 2).complete(facts).await;
}

/// The metadata service of the machine's cloud.
#[derive(Clone, Copy)]
pub struct Service<'h> {
    pub(crate) http: &'h dyn Http,
    pub(crate) clock: &'h dyn Clock,
    pub(crate) address: &'h str,
    pub(crate) persistence: RetryLimit,
}

/// The reason that the service reports no data.
#[derive(Debug, thiserror::Error)]
enum NotReported {
    /// No response, or an error status.
    #[error(transparent)]
    Http(#[from] HttpError),
    /// The response is not from a metadata service.
    #[error("get `{url}`: the response is not {what}")]
    Odd {
        url: String,
        /// The expected response.
        what: &'static str,
    },
}

impl<'h> Service<'h> {
    /// Returns the service of this machine. `within` is the time limit, `silences` the maximum
    /// number of attempts without a response.
    pub fn of(host: &'h Host, within: Duration, silences: u32) -> Self {
        Self {
            http: &*host.http,
            clock: &*host.clock,
            address: SERVICE,
            persistence: RetryLimit {
                until: host.clock.monotonic() + within,
                silences,
            },
        }
    }

    /// Returns the URL of a path.
    fn url(&self, path: &str) -> String {
        format!("{}{path}", self.address)
    }

    /// Requests a path.
    ///
    /// # Errors
    /// If there is no response in time, or the status is not a success.
    pub async fn ask(
        &self,
        method: Method,
        path: &str,
        header: Header,
    ) -> Result<Vec<u8>, HttpError> {
        let request = HttpRequest {
            method,
            route: Route::Direct,
            url: self.url(path),
            headers: vec![header],
            within: ANSWER,
            limit: LARGEST,
        };
        let answer = ask_again(self.http, self.clock, &request, self.persistence).await?;
        answer.successful(&request.url)
    }

    /// Requests a path. Returns `None` if the service does not have this key.
    ///
    /// # Errors
    /// Same as [`Self::ask`], except for 404.
    pub async fn find(&self, path: &str, header: Header) -> Result<Option<Vec<u8>>, HttpError> {
        match self.ask(Method::Get, path, header).await {
            Err(HttpError::Status { status: 404, .. }) => Ok(None),
            answer => answer.map(Some),
        }
    }

    /// Returns the header that the service requires. If it contains a token, the token is requested first.
    ///
    /// # Errors
    /// Same as [`Self::ask`].
    pub async fn header(&self, row: &'static MetadataRow) -> Result<Header, HttpError> {
        let Some(token) = &row.token else {
            let (name, value) = clouds::header(row.header.as_deref().unwrap_or_default());
            return Ok((name, Secret::new(value)));
        };
        let (name, value) = clouds::header(&token.ask);
        let told = (self.ask(Method::Put, &token.path, (name, Secret::new(value)))).await?;
        let told = Secret::new(String::from_utf8_lossy(&told).trim());
        Ok((&token.header, told))
    }

    async fn complete(&self, facts: &mut Facts) {
        let complete = facts.cloud.keys().iter().all(|(_, value)| value.is_some());
        let row = facts.cloud.provider.as_deref().and_then(clouds::named);
        let Some(row) = row
            .and_then(|row| row.metadata.as_ref())
            .filter(|_| !complete)
        else {
            return;
        };
        match self.told(row).await {
            Ok(told) => {
                let cloud = &mut facts.cloud;
                for (key, value) in [
                    (&mut cloud.instance_id, told.instance_id),
                    (&mut cloud.instance_type, told.instance_type),
                    (&mut cloud.lifecycle, told.lifecycle),
                    (&mut cloud.region, told.region),
                    (&mut cloud.zone, told.zone),
                ] {
                    *key = key.take().or(value);
                }
                // The service responded, so missing keys do not exist.
                let keys = cloud.keys().map(|(fact, _)| fact);
                (facts.unknown).retain(|line| !keys.contains(&line.fact.as_str()));
            }
            Err(error) => {
                let why = format!(
                    "{UNREPORTED}, and the metadata service failed: {}",
                    one_line(&error)
                );
                let keys = facts.cloud.keys().map(|(fact, _)| fact);
                let not_reported = |line: &&mut Unknown| keys.contains(&line.fact.as_str());
                for line in facts.unknown.iter_mut().filter(not_reported) {
                    line.why.clone_from(&why);
                }
            }
        }
    }

    async fn told(&self, row: &'static MetadataRow) -> Result<Cloud, NotReported> {
        let header = self.header(row).await?;
        let document = match &row.document {
            Some(path) => self.document(path, header.clone()).await?,
            None => Value::Null,
        };
        let mut told = BTreeMap::new();
        for (key, rule) in row.keys.iter().filter(|(_, rule)| rule.of.is_none()) {
            let text = match &row.each {
                Some(each) => (self.name(&format!("{each}{}", rule.at), header.clone())).await?,
                None => (document.pointer(&rule.at).and_then(Value::as_str))
                    .filter(|text| is_name(text))
                    .map(str::to_owned),
            };
            told.extend(text.map(|text| (*key, text)));
        }
        let value = |key: InstanceKey| {
            let rule = row.keys.get(&key)?;
            rule.meaning(told.get(&rule.of.unwrap_or(key))?)
        };
        Ok(Cloud {
            provider: None,
            instance_id: value(InstanceKey::InstanceId),
            instance_type: value(InstanceKey::InstanceType),
            lifecycle: value(InstanceKey::Lifecycle),
            region: value(InstanceKey::Region),
            zone: value(InstanceKey::Zone),
        })
    }

    /// Requests the document that contains all keys.
    async fn document(&self, path: &str, header: Header) -> Result<Value, NotReported> {
        let answer = self.ask(Method::Get, path, header).await?;
        match serde_json::from_slice(&answer) {
            Ok(document @ Value::Object(_)) => Ok(document),
            _ => Err(NotReported::Odd {
                url: self.url(path),
                what: "a JSON document",
            }),
        }
    }

    /// Requests a value that is a name, or a path that ends with a name. Returns `None` if the
    /// service does not have this key.
    async fn name(&self, path: &str, header: Header) -> Result<Option<String>, NotReported> {
        let Some(answer) = self.find(path, header).await? else {
            return Ok(None);
        };
        let text = String::from_utf8_lossy(&answer);
        let name = text.trim().rsplit('/').next().unwrap_or_default();
        if is_name(name) {
            return Ok(Some(name.to_owned()));
        }
        Err(NotReported::Odd {
            url: self.url(path),
            what: "a name",
        })
    }
}

/// Whether a text can be a cloud resource name. Any other text is not from a metadata service.
fn is_name(text: &str) -> bool {
    let letter = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
    !text.is_empty() && text.len() <= 128 && text.chars().all(letter)
}

#[cfg(test)]
pub(crate) mod fake;
#[cfg(test)]
mod tests;
