//! The evidence of each matrix entry: its confidence and its sources.

use serde::Deserialize;

/// The confidence of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Confidence {
    /// General knowledge or inference.
    Unverified,
    /// Some fields were read in a source, others were inferred. The note specifies which.
    Partial,
    /// Read in a source.
    Verified,
}

/// Defines an entry type: its fields, and the fields of the evidence.
macro_rules! row {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, serde::Deserialize)]
        #[serde(deny_unknown_fields, rename_all = "kebab-case")]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $type,)*
            /// The confidence of the entry.
            pub confidence: $crate::evidence::Confidence,
            /// Keys of `[[source]]` entries.
            #[serde(rename = "sources")]
            pub citations: Vec<String>,
            /// A note for readers of the file.
            pub note: Option<String>,
        }
    };
}

pub(super) use row;
