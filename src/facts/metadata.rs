//! What only a cloud's metadata service knows about the instance. It is asked for what neither the firmware
//! nor cloud-init tells, once per command, within a few seconds and through no proxy. `uninstall` asks
//! nobody, because it does not need the answers.
//!
//! Sources: the clouds' own documents, as in cloud-init's data sources (2026-08-21): AWS IMDSv2 (a token by PUT,
//! never without one), Google's `computeMetadata/v1`, Azure's `metadata/instance` of 2021-02-01. All three
//! answer at the same link-local address; Google's name for it needs DNS, so the address is used there, too
//! (googleapis/google-cloud-go, compute/metadata v0.7.0, does the same).

use std::time::Duration;

use crate::{
    error::one_line,
    facts::{Cloud, Facts, Unknown, cloud::UNTOLD},
    host::{Clock, Host, Http, HttpError, HttpRequest, Method, RetryLimit, Route, ask_again},
    model::secret::Secret,
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

/// Azure's document about the instance, without what follows the path.
const AZURE: &str = "/metadata/instance/compute?api-version=2021-02-01&format=json";

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

    /// AWS: the header without which nothing is told.
    ///
    /// # Errors
    /// As [`Self::ask`].
    pub async fn aws_header(&self) -> Result<Header, HttpError> {
        let seconds = ("X-aws-ec2-metadata-token-ttl-seconds", Secret::new("60"));
        let token = self.ask(Method::Put, "/latest/api/token", seconds).await?;
        let token = Secret::new(String::from_utf8_lossy(&token).trim());
        Ok(("X-aws-ec2-metadata-token", token))
    }

    /// Google: the same.
    #[must_use]
    pub fn gcp_header() -> Header {
        ("Metadata-Flavor", Secret::new("Google"))
    }

    /// Azure: the same.
    #[must_use]
    pub fn azure_header() -> Header {
        ("Metadata", Secret::new("true"))
    }

    async fn complete(&self, facts: &mut Facts) {
        let complete = facts.cloud.keys().iter().all(|(_, value)| value.is_some());
        let told = match facts.cloud.provider.as_deref() {
            _ if complete => return,
            Some("aws") => self.aws().await,
            Some("gcp") => self.gcp().await,
            Some("azure") => self.azure().await,
            _ => return,
        };
        match told {
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

    async fn aws(&self) -> Result<Cloud, Untold> {
        let header = self.aws_header().await?;
        let value = async |path: &str| {
            let path = format!("/latest/meta-data/{path}");
            self.name(&path, header.clone()).await
        };
        Ok(Cloud {
            provider: None,
            instance_id: value("instance-id").await?,
            instance_type: value("instance-type").await?,
            lifecycle: value("instance-life-cycle").await?,
            region: value("placement/region").await?,
            zone: value("placement/availability-zone").await?,
        })
    }

    async fn gcp(&self) -> Result<Cloud, Untold> {
        let value = async |path: &str| {
            let path = format!("/computeMetadata/v1/instance/{path}");
            self.name(&path, Self::gcp_header()).await
        };
        let zone = value("zone").await?;
        let region = zone.as_deref().and_then(|zone| zone.rsplit_once('-'));
        Ok(Cloud {
            provider: None,
            instance_id: value("id").await?,
            instance_type: value("machine-type").await?,
            // Spot instances are preemptible ones, too.
            lifecycle: (value("scheduling/preemptible").await?).and_then(|text| match &*text {
                "TRUE" => Some("spot".to_owned()),
                "FALSE" => Some("on-demand".to_owned()),
                _ => None,
            }),
            region: region.map(|(region, _)| region.to_owned()),
            zone,
        })
    }

    async fn azure(&self) -> Result<Cloud, Untold> {
        let answer = (self.ask(Method::Get, AZURE, Self::azure_header())).await?;
        let Ok(serde_json::Value::Object(document)) = serde_json::from_slice(&answer) else {
            return Err(Untold::Odd {
                url: self.url(AZURE),
                what: "a document of JSON",
            });
        };
        let text = |key: &str| {
            let text = document.get(key).and_then(serde_json::Value::as_str);
            text.filter(|text| is_name(text)).map(str::to_owned)
        };
        Ok(Cloud {
            provider: None,
            instance_id: text("vmId"),
            instance_type: text("vmSize"),
            lifecycle: text("priority").and_then(|priority| match &*priority {
                "Spot" | "Low" => Some("spot".to_owned()),
                "Regular" => Some("on-demand".to_owned()),
                _ => None,
            }),
            region: text("location"),
            zone: text("zone"),
        })
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
    !text.is_empty() && text.len() <= 64 && text.chars().all(letter)
}

#[cfg(test)]
pub(crate) mod standin;
#[cfg(test)]
mod tests;
