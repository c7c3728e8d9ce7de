//! YAML as data, for the formats that tools write.

use serde::{Deserialize, Deserializer, de::DeserializeOwned, de::Error};
use serde_json::Value;

/// Reads a document.
///
/// # Errors
/// Where and why it is none, in one line.
pub(super) fn parse<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    let options = serde_saphyr::options! { with_snippet: false };
    // Each type that is read out of YAML itself adds a parser of its own to the program.
    let value: Value =
        serde_saphyr::from_str_with_options(text, options).map_err(|error| error.to_string())?;
    serde_json::from_value(value).map_err(|error| error.to_string())
}

/// Text that may stand without quotes although it looks like a number: `name: 0`.
///
/// # Errors
/// When it is neither text nor a number.
pub(super) fn text<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    match Value::deserialize(from)? {
        Value::String(text) => Ok(text),
        Value::Number(number) => Ok(number.to_string()),
        other => Err(D::Error::custom(format!("{other} is no text"))),
    }
}
