//! YAML as data, for the formats that tools write.

use serde::de::DeserializeOwned;

/// Reads a document.
///
/// # Errors
/// Where and why it is none, in one line.
pub(crate) fn parse<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    let options = serde_saphyr::options! { with_snippet: false };
    serde_saphyr::from_str_with_options(text, options).map_err(|error| error.to_string())
}
