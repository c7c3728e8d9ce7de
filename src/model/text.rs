//! Text that people write and read: the known word that is nearest to a mistyped one, sizes, and
//! types that are shown as text.

use std::{
    hash::{BuildHasher as _, Hasher as _, RandomState},
    io::Read as _,
    sync::LazyLock,
};

use flate2::read::DeflateDecoder;
use serde::de::DeserializeOwned;

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

/// How a colour code (ECMA-48) of this program begins until it is written. Each process has a number of its own, so that no text of
/// others can carry it: in root's terminal, a name or a line of others in green would look like a verdict.
#[must_use]
pub fn colour_mark() -> &'static str {
    static MARK: LazyLock<String> = LazyLock::new(|| {
        let own = RandomState::new().build_hasher().finish();
        format!("\u{1b}[{own};")
    });
    &MARK
}

/// Whether a character moves, hides or reorders others: control characters, and the format characters of Unicode for the
/// direction of text, for lines and paragraphs, of no width, and tags. Source: Unicode Technical Report 36, section 2.10, and the
/// categories Cf, Zl and Zp.
#[must_use]
pub fn is_control(c: char) -> bool {
    let is_format = matches!(
        c,
        '\u{ad}'
            | '\u{61c}'
            | '\u{180e}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e007f}'
    );
    is_format || c.is_control()
}

/// A text whose control characters ([`is_control`]) are replaced, except for line feeds and tabs; marks of the program's own colours become colour
/// codes. `None` if it has neither. Names and lines of others would move the cursor, clear the screen or set the title
/// of root's terminal.
#[must_use]
pub fn without_controls(text: &str) -> Option<String> {
    let is_control = |c: char| is_control(c) && c != '\n' && c != '\t';
    if !text.contains(is_control) {
        return None;
    }
    let (mut clean, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(at) = rest.find(is_control) {
        clean.push_str(&rest[..at]);
        rest = &rest[at..];
        if let Some(code) = rest.strip_prefix(colour_mark()) {
            clean.push_str("\u{1b}[");
            rest = code;
            continue;
        }
        clean.push('\u{fffd}');
        let mut letters = rest.chars();
        letters.next();
        rest = letters.as_str();
    }
    clean.push_str(rest);
    Some(clean)
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

/// A number of bytes for people.
#[must_use]
pub fn bytes(n: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut scaled = n as f64;
    let mut unit = 0;
    while scaled >= 1024.0 && unit + 1 < UNITS.len() {
        scaled /= 1024.0;
        unit += 1;
    }
    if unit == 0 {
        format!("{n} B")
    } else {
        format!("{scaled:.1} {}", UNITS[unit])
    }
}

/// All tables that are built into the program: `build.rs` makes it.
static TABLES: LazyLock<Result<String, String>> = LazyLock::new(|| {
    let packed = &include_bytes!(concat!(env!("OUT_DIR"), "/tables.deflate"))[..];
    let mut text = String::new();
    match DeflateDecoder::new(packed).read_to_string(&mut text) {
        Ok(_) => Ok(text),
        Err(error) => Err(format!("decompress it: {error}")),
    }
});

/// The text of such a table, by the name of its file without the ending, and without its comments.
///
/// # Errors
/// When this program is damaged.
pub fn table(name: &str) -> Result<&'static str, String> {
    let all = TABLES.as_ref().map_err(Clone::clone)?;
    all.split('\0')
        .find_map(|table| table.strip_prefix(name)?.strip_prefix('\n'))
        .ok_or_else(|| format!("there is no table `{name}` in this program"))
}

/// Reads a table that is built into the program.
///
/// # Errors
/// What is wrong with it.
pub fn built_in<T: DeserializeOwned>(name: &str) -> Result<T, String> {
    toml::from_str(table(name)?).map_err(|error| error.to_string())
}

/// Implements serde and the schema, as one string, for a type with `FromStr` and `Display`, so that
/// files and messages use the same form. The last argument is the pattern for the schema.
macro_rules! as_text {
    ($type:ident, $what:literal, $pattern:literal) => {
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
