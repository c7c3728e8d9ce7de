//! Text: suggestions for mistyped names, excerpts for messages, types that are serialized as text, and the embedded matrix.

use std::{io::Read as _, sync::LazyLock};

use flate2::read::DeflateDecoder;

/// Returns the name that is nearest to a mistyped one.
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    known
        .into_iter()
        .map(|candidate| (strsim::jaro_winkler(name, candidate), candidate))
        .filter(|(likeness, _)| *likeness > 0.7)
        .max_by(|(a, _), (b, _)| a.total_cmp(b))
        .map(|(_, candidate)| candidate)
}

/// The maximum length of a quoted text in characters, and of a version in bytes.
pub const LONGEST: usize = 255;

/// Returns the beginning of an external text for a message. A file may have any size, and many findings may quote it.
pub fn excerpt(text: &str) -> String {
    beginning(text, LONGEST)
}

/// Returns the first characters of a text, with an ellipsis if it is longer.
pub fn beginning(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// The built-in matrix as JSON, created by `build.rs`.
pub(crate) static MATRIX: LazyLock<Result<String, String>> = LazyLock::new(|| {
    let packed = &include_bytes!(concat!(env!("OUT_DIR"), "/matrix.deflate"))[..];
    let mut text = String::new();
    match DeflateDecoder::new(packed).read_to_string(&mut text) {
        Ok(_) => Ok(text),
        Err(error) => Err(format!("failed to decompress the matrix: {error}")),
    }
});

/// Implements serde, as a string, for a type with `FromStr` and `Display`, so that files and messages use the same form.
/// For the crates of this workspace. The caller must depend on serde.
#[doc(hidden)]
#[macro_export]
macro_rules! serde_as_text {
    ($type:ident, $what:expr) => {
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                struct Text;

                impl serde::de::Visitor<'_> for Text {
                    type Value = $type;

                    fn expecting(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        write!(to, "text in quotes: {}", $what)
                    }

                    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<$type, E> {
                        text.parse().map_err(E::custom)
                    }
                }

                from.deserialize_str(Text)
            }
        }
    };
}

/// Implements the schema of such a type. A separate macro, because `cfg(feature)` in an exported macro is evaluated in the
/// crate that uses it.
#[doc(hidden)]
#[macro_export]
macro_rules! schema_as_text {
    ($type:ident, $what:expr, $pattern:expr) => {
        impl schemars::JsonSchema for $type {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($type).into()
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({
                    "type": "string",
                    "description": $what,
                    "pattern": $pattern,
                })
            }
        }
    };
}

/// Implements serde and the schema. The last argument is the pattern for the schema.
macro_rules! as_text {
    ($type:ident, $what:literal, $pattern:literal) => {
        $crate::serde_as_text!($type, $what);
        #[cfg(feature = "schema")]
        $crate::schema_as_text!($type, $what, $pattern);
    };
}

pub(crate) use as_text;

/// Defines a test: random texts that match the regular expression `$pieces` are parsed without a panic.
#[cfg(test)]
macro_rules! reads_any_text {
    ($pieces:literal, |$text:ident| $($read:expr);+) => {
        proptest::proptest! {
            #[test]
            fn any_text_is_parsed_without_panic($text in $pieces) {
                $(let _ = $read;)+
            }
        }
    };
}

#[cfg(test)]
pub(crate) use reads_any_text;
