//! Settings from the cloud: the user data and the tags of the instance, where `cloud.settings` asks for them. Whoever may
//! change these configures the machine, so only root's own settings can ask.
//!
//! Sources: AWS, "Retrieve instance metadata" and "View tags for your EC2 instances using instance metadata" (a tag's key
//! has letters, digits and `+ - = . , _ : @`; without permission for it there are no tags, 404); Google, "Predefined and
//! custom metadata" (`instance/attributes`; the key of an attribute has letters, digits, `-` and `_`); Azure, "Azure
//! Instance Metadata Service" (`tagsList` from 2019-06-04, `userData` in Base64 from 2021-01-01).

use std::time::Duration;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::Value;

use crate::{
    config::{error::ConfigError, file::CloudPlace, layers::Layers, place::Place},
    facts::{Service, Untold},
    host::Host,
};

/// The first line of user data that is a document of settings.
const FIRST_LINE: &str = "#gpu-bootstrap";

/// How the name of a tag begins that holds a setting.
const TAG: &str = "gpu-bootstrap:";

/// How long the service may take: its network may come late in a boot, and what it says is needed.
const WHOLE: Duration = Duration::from_secs(60);

/// The service says nothing at all as often as the time allows.
const SILENCES: u32 = u32::MAX;

/// The clouds whose service is known.
const KNOWN: &str = "aws, gcp, azure";

/// What the cloud says.
#[derive(Debug, PartialEq, Eq)]
enum Told {
    /// A document of settings, and its address.
    Document { url: String, text: Vec<u8> },
    /// A tag with one setting.
    Tag { name: String, value: String },
}

/// Asks the cloud of this machine for its settings.
///
/// # Errors
/// A machine in no cloud that is known, a service that does not answer, settings that are wrong.
pub(super) async fn ask(
    host: &Host,
    provider: Option<&str>,
    places: &[CloudPlace],
    asked_by: &Layers,
) -> Result<Layers, ConfigError> {
    let service = Service::of(host, WHOLE, SILENCES);
    read(service, provider, places, asked_by).await
}

async fn read(
    service: Service<'_>,
    provider: Option<&str>,
    places: &[CloudPlace],
    asked_by: &Layers,
) -> Result<Layers, ConfigError> {
    let mut layers = Layers::default();
    for place in places {
        let told = match provider {
            Some("aws") => aws(service, *place).await,
            Some("gcp") => gcp(service, *place).await,
            Some("azure") => azure(service, *place).await,
            other => {
                let other = other.unwrap_or("none that is known");
                return Err(asked_by.wrong(
                    "cloud.settings",
                    format!("the cloud of this machine is {other}"),
                    Some(format!(
                        "remove the key; clouds whose settings can be read: {KNOWN}"
                    )),
                ));
            }
        };
        for told in told.map_err(ConfigError::Cloud)? {
            add(&mut layers, told)?;
        }
    }
    layers.refuse_table(
        "cloud",
        "the cloud may not say whether it is asked",
        "set it in a file of this machine",
    )?;
    Ok(layers)
}

fn add(layers: &mut Layers, told: Told) -> Result<(), ConfigError> {
    match told {
        Told::Document { url, text } => match String::from_utf8(text) {
            Ok(text) => layers.file(&url, &text),
            Err(error) => {
                let end = error.utf8_error().valid_up_to();
                let text = String::from_utf8_lossy(error.as_bytes());
                Err(ConfigError::Syntax {
                    place: Place::in_file(&url, &text, end),
                    why: "this is no UTF-8".to_owned(),
                })
            }
        },
        Told::Tag { name, value } => {
            let key = name.strip_prefix(TAG).unwrap_or(&name).to_owned();
            layers.tag(name, &key, &value)
        }
    }
}

/// User data that is a document of settings. Other user data is for others.
fn document(url: String, text: Vec<u8>) -> Option<Told> {
    let first = text.split(|byte| *byte == b'\n').next()?;
    (first.trim_ascii_end() == FIRST_LINE.as_bytes()).then_some(Told::Document { url, text })
}

async fn aws(service: Service<'_>, place: CloudPlace) -> Result<Vec<Told>, Untold> {
    let header = service.aws_header().await?;
    match place {
        CloudPlace::UserData => {
            let path = "/latest/user-data";
            let text = service.find(path, header).await?;
            let told = text.and_then(|text| document(service.url(path), text));
            Ok(told.into_iter().collect())
        }
        CloudPlace::Tags => {
            let folder = "/latest/meta-data/tags/instance";
            let names = service.find(folder, header.clone()).await?;
            let names = String::from_utf8_lossy(&names.unwrap_or_default()).into_owned();
            let mut told = Vec::new();
            for name in names.lines().filter(|name| name.starts_with(TAG)) {
                let path = format!("{folder}/{name}");
                // Tags can be removed at any time.
                if let Some(value) = service.find(&path, header.clone()).await? {
                    told.push(Told::Tag {
                        name: name.to_owned(),
                        value: String::from_utf8_lossy(&value).into_owned(),
                    });
                }
            }
            Ok(told)
        }
    }
}

async fn gcp(service: Service<'_>, place: CloudPlace) -> Result<Vec<Told>, Untold> {
    let name = match place {
        CloudPlace::UserData => "user-data",
        CloudPlace::Tags => "gpu-bootstrap",
    };
    let path = format!("/computeMetadata/v1/instance/attributes/{name}");
    let Some(text) = service.find(&path, Service::gcp_header()).await? else {
        return Ok(Vec::new());
    };
    let url = service.url(&path);
    let told = match place {
        CloudPlace::UserData => document(url, text),
        CloudPlace::Tags => Some(Told::Document { url, text }),
    };
    Ok(told.into_iter().collect())
}

async fn azure(service: Service<'_>, place: CloudPlace) -> Result<Vec<Told>, Untold> {
    let compute = service.azure_compute().await?;
    let odd = |what| Untold::Odd {
        url: service.azure_url(),
        what,
    };
    match place {
        CloudPlace::UserData => {
            let encoded = compute.get("userData").and_then(Value::as_str);
            let text = (STANDARD.decode(encoded.unwrap_or_default()))
                .map_err(|_| odd("a document whose `userData` is Base64"))?;
            let url = format!("{}#userData", service.azure_url());
            Ok(document(url, text).into_iter().collect())
        }
        CloudPlace::Tags => {
            let tags = match compute.get("tagsList") {
                None => &Vec::new(),
                Some(Value::Array(tags)) => tags,
                Some(_) => return Err(odd("a document whose `tagsList` is a list")),
            };
            let text = |tag: &Value, key| tag.get(key).and_then(Value::as_str).map(str::to_owned);
            let setting = |tag| {
                let (name, value) = (text(tag, "name")?, text(tag, "value")?);
                (name.starts_with(TAG)).then_some(Told::Tag { name, value })
            };
            Ok(tags.iter().filter_map(setting).collect())
        }
    }
}

#[cfg(test)]
mod tests;
