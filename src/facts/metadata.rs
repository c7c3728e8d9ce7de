//! What only a cloud's metadata service knows about the instance. It is asked for what neither the firmware
//! nor cloud-init tells, once per command, within a few seconds and through no proxy. `uninstall` asks
//! nobody, because it does not need the answers.
//!
//! What to ask is in `clouds/`, from the clouds' own documents, as in cloud-init's data sources (2026-08-21). All
//! answer at the same link-local address; Google's name for it needs DNS, so the address is used there, too
//! (googleapis/google-cloud-go, compute/metadata v0.7.0, does the same).

use std::{collections::BTreeMap, time::Duration};

use serde_json::Value;

use crate::{
    error::one_line,
    facts::{Cloud, Facts, Unknown, cloud::UNTOLD},
    host::{Clock, Host, Http, HttpError, HttpRequest, Method, RetryLimit, Route, ask_again},
    model::{
        clouds::{self, InstanceKey, MetadataRow},
        secret::Secret,
    },
};

/// Where the services answer.
const SERVICE: &str = "http://169.254.169.254";

/// How long one answer may take. They come from the host of the instance, in milliseconds.
const ANSWER: Duration = Duration::from_secs(1);

/// How long all of it may take, pauses included.
const WHOLE: Duration = Duration::from_secs(5);

/// Azure's answer is one document of a few kB, with up to 64 kB of user data.
const LARGEST: u64 = 256 << 10;

/// A header of a request; its value may be secret.
pub type Header = (&'static str, Secret);

/// Completes the cloud of the facts. What the service does not tell either stays unknown, with the reason.
pub async fn complete(host: &Host, facts: &mut Facts) {
    // Where nothing answers, there is no service, and a second attempt is the last.
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

/// Why the service tells nothing.
#[derive(Debug, thiserror::Error)]
enum Untold {
    /// It does not answer, or refuses.
    #[error(transparent)]
    Http(#[from] HttpError),
    /// Somebody else answers.
    #[error("get `{url}`: the answer is something else than {what}")]
    Odd {
        /// The address.
        url: String,
        /// What the answer should have been.
        what: &'static str,
    },
}

impl<'h> Service<'h> {
    /// The service of this machine, asked within this time; it may say nothing at all so often.
    #[must_use]
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

    /// The address of a path.
    fn url(&self, path: &str) -> String {
        format!("{}{path}", self.address)
    }

    /// What the service has at a path.
    ///
    /// # Errors
    /// No answer within the time, or one that is no success.
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

    /// The same; `None` if the service has no such key.
    ///
    /// # Errors
    /// As [`Self::ask`], but for 404.
    pub async fn find(&self, path: &str, header: Header) -> Result<Option<Vec<u8>>, HttpError> {
        match self.ask(Method::Get, path, header).await {
            Err(HttpError::Status { status: 404, .. }) => Ok(None),
            answer => answer.map(Some),
        }
    }

    /// The header without which nothing is told.
    ///
    /// # Errors
    /// As [`Self::ask`].
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
                // The service answered, so what is still absent does not exist.
                let keys = cloud.keys().map(|(fact, _)| fact);
                (facts.unknown).retain(|line| !keys.contains(&line.fact.as_str()));
            }
            Err(error) => {
                let why = format!(
                    "{UNTOLD}, and the metadata service did not: {}",
                    one_line(&error)
                );
                let keys = facts.cloud.keys().map(|(fact, _)| fact);
                let untold = |line: &&mut Unknown| keys.contains(&line.fact.as_str());
                for line in facts.unknown.iter_mut().filter(untold) {
                    line.why.clone_from(&why);
                }
            }
        }
    }

    async fn told(&self, row: &'static MetadataRow) -> Result<Cloud, Untold> {
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

    /// The one document that has all keys.
    async fn document(&self, path: &str, header: Header) -> Result<Value, Untold> {
        let answer = self.ask(Method::Get, path, header).await?;
        match serde_json::from_slice(&answer) {
            Ok(document @ Value::Object(_)) => Ok(document),
            _ => Err(Untold::Odd {
                url: self.url(path),
                what: "a document of JSON",
            }),
        }
    }

    /// A value that is a name, or a path whose last part is one; `None` if the service has no such key.
    async fn name(&self, path: &str, header: Header) -> Result<Option<String>, Untold> {
        let Some(answer) = self.find(path, header).await? else {
            return Ok(None);
        };
        let text = String::from_utf8_lossy(&answer);
        let name = text.trim().rsplit('/').next().unwrap_or_default();
        if is_name(name) {
            return Ok(Some(name.to_owned()));
        }
        Err(Untold::Odd {
            url: self.url(path),
            what: "a name",
        })
    }
}

/// Whether a text can be a name of the clouds: anything else came from somebody else.
fn is_name(text: &str) -> bool {
    let letter = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
    !text.is_empty() && text.len() <= 128 && text.chars().all(letter)
}

#[cfg(test)]
pub(crate) mod standin;
#[cfg(test)]
mod tests;
