//! What every row of the matrix carries: how far it can be trusted, and where it was read.

use serde::Deserialize;

/// How far a row can be trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Confidence {
    /// General knowledge or inference.
    Unverified,
    /// One field was read, another inferred; the note says which.
    Partial,
    /// Read in a named source.
    Verified,
}

/// Defines a row: its own fields, and the evidence that every row carries.
macro_rules! row {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, serde::Deserialize)]
        #[serde(deny_unknown_fields, rename_all = "kebab-case")]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $type,)*
            /// How far the row can be trusted.
            pub confidence: $crate::evidence::Confidence,
            /// Where the row was read: keys of `[[source]]` rows.
            #[serde(rename = "sources")]
            pub citations: Vec<String>,
            /// For people.
            pub note: Option<String>,
        }
    };
}

pub(super) use row;
