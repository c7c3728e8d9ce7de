//! Text that people write and read: the known word that is nearest to a mistyped one, types that are shown as text, and
//! the matrix.

use std::{io::Read as _, sync::LazyLock};

use flate2::read::DeflateDecoder;

/// The name that is nearest to a mistyped one.
#[must_use]
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    known
        .into_iter()
        .map(|candidate| (strsim::jaro_winkler(name, candidate), candidate))
        .filter(|(likeness, _)| *likeness > 0.7)
        .max_by(|(a, _), (b, _)| a.total_cmp(b))
        .map(|(_, candidate)| candidate)
}

/// The longest text that a message quotes, in characters, and the longest version, in bytes.
pub const LONGEST: usize = 255;

/// The beginning of a text of the machine that a message quotes: a file of a foreign tree may have any size, and many findings
/// quote the same error.
#[must_use]
pub fn excerpt(text: &str) -> String {
    beginning(text, LONGEST)
}

/// The first characters of a text, with an ellipsis if there are more.
#[must_use]
pub fn beginning(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// The built-in matrix without its comments: `build.rs` makes it.
pub(crate) static MATRIX: LazyLock<Result<String, String>> = LazyLock::new(|| {
    let packed = &include_bytes!(concat!(env!("OUT_DIR"), "/matrix.deflate"))[..];
    let mut text = String::new();
    match DeflateDecoder::new(packed).read_to_string(&mut text) {
        Ok(_) => Ok(text),
        Err(error) => Err(format!("decompress it: {error}")),
    }
});

/// Implements serde, as one string, for a type with `FromStr` and `Display`, so that files and messages use the same form.
/// For the crates of this workspace; the caller has serde as a dependency.
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

/// Both. The last argument is the pattern for the schema.
macro_rules! as_text {
    ($type:ident, $what:literal, $pattern:literal) => {
        $crate::serde_as_text!($type, $what);
        #[cfg(feature = "schema")]
        $crate::schema_as_text!($type, $what, $pattern);
    };
}

pub(crate) use as_text;

/// A test: texts with these pieces of the format, and with others between them, are read without a panic.
#[cfg(test)]
macro_rules! reads_any_text {
    ($pieces:literal, |$text:ident| $($read:expr);+) => {
        proptest::proptest! {
            #[test]
            fn any_text_is_read_without_panic($text in $pieces) {
                $(let _ = $read;)+
            }
        }
    };
}

#[cfg(test)]
pub(crate) use reads_any_text;
