//! What only a cloud's metadata service knows about the instance. It is asked for what neither the firmware
//! nor cloud-init tells, within a few seconds and through no proxy.
//!
//! Sources: the clouds' own documents, as in cloud-init's data sources (2026-08-21): AWS IMDSv2 (a token by PUT,
//! never without one), Google's `computeMetadata/v1`, Azure's `metadata/instance` of 2021-02-01. All three
//! answer at the same link-local address; Google's name for it needs DNS, so the address is used there, too
//! (googleapis/google-cloud-go, compute/metadata v0.7.0, does the same).

use std::time::Duration;

use crate::{
    error::one_line,
    facts::{Cloud, Facts, Unknown, cloud::UNTOLD},
    host::{Ask, Clock, Host, Http, HttpError, Method},
    model::secret::Secret,
};

/// Where the services answer.
const SERVICE: &str = "http://169.254.169.254";

/// How long one answer may take. They come from the host of the instance, in milliseconds.
const ANSWER: Duration = Duration::from_secs(1);

/// How long all of it may take, pauses included.
const WHOLE: Duration = Duration::from_secs(5);

/// The first pause after an answer that passes, such as "too many requests"; the next are twice as long.
const PAUSE: Duration = Duration::from_millis(200);

/// Azure's answer is one document of a few kB, with up to 64 kB of user data.
const LARGEST: u64 = 256 << 10;

/// Completes the cloud of the facts. What the service does not tell either stays unknown, with the reason.
pub async fn complete(host: &Host, facts: &mut Facts) {
    let service = Service {
        http: &*host.http,
        clock: &*host.clock,
        address: SERVICE,
        until: host.clock.monotonic() + WHOLE,
    };
    service.complete(facts).await;
}

struct Service<'h> {
    http: &'h dyn Http,
    clock: &'h dyn Clock,
    address: &'h str,
    until: Duration,
}

/// Why the service tells nothing.
#[derive(Debug, thiserror::Error)]
enum Untold {
    #[error(transparent)]
    Http(#[from] HttpError),
    #[error("`{url}` answers with something else than {what}")]
    Odd { url: String, what: &'static str },
}

impl Service<'_> {
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
        let seconds = ("X-aws-ec2-metadata-token-ttl-seconds", Secret::new("60"));
        let token = self.ask(Method::Put, "/latest/api/token", seconds).await?;
        let token = Secret::new(String::from_utf8_lossy(&token).trim());
        let value = async |path: &str| {
            let path = format!("/latest/meta-data/{path}");
            self.name(&path, ("X-aws-ec2-metadata-token", token.clone()))
                .await
        };
        Ok(Cloud {
            provider: None,
            instance_type: value("instance-type").await?,
            lifecycle: value("instance-life-cycle").await?,
            region: value("placement/region").await?,
            zone: value("placement/availability-zone").await?,
        })
    }

    async fn gcp(&self) -> Result<Cloud, Untold> {
        let value = async |path: &str| {
            let path = format!("/computeMetadata/v1/instance/{path}");
            self.name(&path, ("Metadata-Flavor", Secret::new("Google")))
                .await
        };
        let zone = value("zone").await?;
        let region = zone.as_deref().and_then(|zone| zone.rsplit_once('-'));
        Ok(Cloud {
            provider: None,
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
        let path = "/metadata/instance/compute?api-version=2021-02-01&format=json";
        let header = ("Metadata", Secret::new("true"));
        let document = self.ask(Method::Get, path, header).await?;
        let odd = || Untold::Odd {
            url: format!("{}{path}", self.address),
            what: "a document of JSON",
        };
        let document: serde_json::Value = serde_json::from_slice(&document).map_err(|_| odd())?;
        let text = |key: &str| {
            let text = document.get(key).and_then(serde_json::Value::as_str);
            text.filter(|text| is_name(text)).map(str::to_owned)
        };
        if !document.is_object() {
            return Err(odd());
        }
        Ok(Cloud {
            provider: None,
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
    async fn name(
        &self,
        path: &str,
        header: (&'static str, Secret),
    ) -> Result<Option<String>, Untold> {
        let answer = match self.ask(Method::Get, path, header).await {
            Err(HttpError::Status { status: 404, .. }) => return Ok(None),
            answer => answer?,
        };
        let text = String::from_utf8_lossy(&answer);
        let name = text.trim().rsplit('/').next().unwrap_or_default();
        if is_name(name) {
            return Ok(Some(name.to_owned()));
        }
        Err(Untold::Odd {
            url: format!("{}{path}", self.address),
            what: "a name",
        })
    }

    /// Asks, and asks again while the answer may pass and time is left. Where nothing answers, there is no
    /// service, and a second attempt is the last.
    async fn ask(
        &self,
        method: Method,
        path: &str,
        header: (&'static str, Secret),
    ) -> Result<Vec<u8>, HttpError> {
        let mut pause = PAUSE;
        let mut silent = false;
        loop {
            let left = self.until.saturating_sub(self.clock.monotonic());
            let request = Ask {
                method,
                url: format!("{}{path}", self.address),
                headers: vec![header.clone()],
                within: left.min(ANSWER),
                limit: LARGEST,
            };
            let error = match self.http.ask(&request).await {
                Err(error) if error.passes() => error,
                answer => return answer,
            };
            let transport = matches!(error, HttpError::Transport { .. });
            let left = self.until.saturating_sub(self.clock.monotonic());
            if (transport && silent) || left <= pause {
                return Err(error);
            }
            silent = transport;
            self.clock.sleep(pause).await;
            pause *= 2;
        }
    }
}

/// Whether a text can be a name of the clouds: anything else came from somebody else.
fn is_name(text: &str) -> bool {
    let letter = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
    !text.is_empty() && text.len() <= 64 && text.chars().all(letter)
}

#[cfg(test)]
mod tests;
