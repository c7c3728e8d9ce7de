//! Parses the YAML files of external tools, such as kubeconfigs and CDI specifications.

use serde::de::DeserializeOwned;

/// Parses a YAML document into `T`.
///
/// # Errors
/// If the text is not valid YAML or does not have the structure of `T`. The message is one line with the position, because the
/// multi-line snippet of the parser is disabled.
pub(crate) fn parse<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    let options = serde_saphyr::options! { with_snippet: false };
    serde_saphyr::from_str_with_options(text, options).map_err(|error| error.to_string())
}
