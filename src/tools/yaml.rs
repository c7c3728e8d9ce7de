//! Parses YAML into data, for the formats of external tools.

use serde::de::DeserializeOwned;

/// Parses a document.
///
/// # Errors
/// If the text is invalid. The message is one line with the position.
pub(crate) fn parse<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    let options = serde_saphyr::options! { with_snippet: false };
    serde_saphyr::from_str_with_options(text, options).map_err(|error| error.to_string())
}
