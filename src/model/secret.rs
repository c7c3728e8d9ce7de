//! A value that never prints.

use serde::{Deserialize, Serializer};

/// A secret: readable on purpose through [`Secret::expose`], never through `Debug`, `Display` or
/// serialisation (it has none of the last two).
#[derive(Clone, Deserialize, PartialEq, Eq)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// Wraps a value.
    #[must_use]
    pub fn new(value: impl Into<String>) -> Self {
        Self(value.into())
    }

    /// The value itself; the caller must hand it to a child's stdin or environment, a
    /// connection, or a 0600 file, nowhere else.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

/// For documents: whether there is a secret, and no more.
///
/// # Errors
/// Those of the document.
pub fn hidden<S: Serializer>(secret: &Option<Secret>, to: S) -> Result<S::Ok, S::Error> {
    match secret {
        Some(_) => to.serialize_some("[secret]"),
        None => to.serialize_none(),
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("[secret]")
    }
}
