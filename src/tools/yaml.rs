//! YAML as data, for the formats that tools write.

use serde::de::DeserializeOwned;

/// Reads a document.
///
/// # Errors
/// Where and why it is none, in one line.
pub(super) fn parse<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    let options = serde_saphyr::options! { with_snippet: false };
    // Each type that is read out of YAML itself adds a parser of its own to the program.
    let value: serde_json::Value =
        serde_saphyr::from_str_with_options(text, options).map_err(|error| error.to_string())?;
    serde_json::from_value(value).map_err(|error| error.to_string())
}
