//! Text: suggestions for typos, line edits, shell quoting, control characters, sizes, the tables in the binary, and types with
//! a text representation.

use std::{
    collections::BTreeMap,
    fmt,
    hash::{BuildHasher as _, Hasher as _, RandomState},
    io::Read as _,
    sync::LazyLock,
};

use flate2::read::DeflateDecoder;
use serde::de::DeserializeOwned;

pub use gpu_compat::text::{LONGEST, beginning, excerpt, nearest};

/// Returns the line ending of the first line.
pub fn line_end(text: &str) -> &'static str {
    match text.split_inclusive('\n').next() {
        Some(first) if first.ends_with("\r\n") => "\r\n",
        _ => "\n",
    }
}

/// Returns a word for a command that users copy into a shell, in quotes if it needs them. Names of files, modules and kernels
/// come from the examined machine or tree, so they can contain shell syntax.
pub fn shell_word(word: impl AsRef<str>) -> String {
    let word = word.as_ref();
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@%+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Appends lines to a file of another program and keeps its style: its line endings, and a missing newline at the
/// end. [`without_lines`] then restores the original bytes.
pub fn with_lines<'l>(text: &str, lines: impl IntoIterator<Item = &'l str>) -> String {
    let end = line_end(text);
    let is_open = !(text.is_empty() || text.ends_with('\n'));
    let mut text = text.to_owned();
    for line in lines {
        match is_open {
            true => text.extend([end, line]),
            false => text.extend([line, end]),
        }
    }
    text
}

/// Removes lines from a file of another program and keeps its style.
pub fn without_lines(text: &str, is_removed: impl Fn(&str) -> bool) -> String {
    let lines = text.split_inclusive('\n');
    let mut kept: String = (lines.filter(|line| !is_removed(line.trim()))).collect();
    if !text.ends_with('\n') && kept.ends_with('\n') {
        kept.pop();
        if kept.ends_with('\r') {
            kept.pop();
        }
    }
    kept
}

/// Returns a marker that represents the start of our color codes. [`without_controls`] replaces it with the real start
/// (ECMA-48) when the text is written. It is different in each process, so external text cannot contain it. Otherwise, a
/// green name or line of another program would look like our result.
pub fn colour_mark() -> &'static str {
    static MARK: LazyLock<String> = LazyLock::new(|| {
        let own = RandomState::new().build_hasher().finish();
        format!("\u{1b}[{own};")
    });
    &MARK
}

/// Returns whether a character moves, hides or reorders other characters: control characters, and Unicode format
/// characters for text direction, line and paragraph separators, zero width, and tags. Source: Unicode Technical
/// Report 36, section 2.10, and the categories Cf, Zl and Zp.
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

/// Replaces control characters ([`is_control`]) except line feeds and tabs, and converts our color markers to color
/// codes. `None` if the text has neither. External names and lines could otherwise move the cursor, clear the screen
/// or set the title of root's terminal.
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

/// `1 GPU`, `2 GPUs`.
pub fn counted(count: impl fmt::Display, noun: &str) -> String {
    let count = count.to_string();
    let plural = if count == "1" { "" } else { "s" };
    format!("{count} {noun}{plural}")
}

/// Formats a number of bytes.
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

/// The tables and templates that `build.rs` packs into the binary.
static PACKED: LazyLock<Result<String, String>> = LazyLock::new(|| {
    let packed = &include_bytes!(concat!(env!("OUT_DIR"), "/tables.deflate"))[..];
    let mut text = String::new();
    match DeflateDecoder::new(packed).read_to_string(&mut text) {
        Ok(_) => Ok(text),
        Err(error) => Err(format!("decompress the built-in tables: {error}")),
    }
});

/// The texts in [`PACKED`] by name.
static TABLES: LazyLock<Result<BTreeMap<&str, &str>, String>> = LazyLock::new(|| {
    let packed = PACKED.as_ref().map_err(Clone::clone)?;
    let tables = packed.split('\0');
    Ok(tables.filter_map(|table| table.split_once('\n')).collect())
});

/// Returns a built-in table as JSON, by file name without extension, or a template by path.
///
/// # Errors
/// If the table does not exist, or the binary is corrupt.
pub fn table(name: &str) -> Result<&'static str, String> {
    let all = TABLES.as_ref().map_err(Clone::clone)?;
    let found = all.get(name).copied();
    found.ok_or_else(|| format!("no built-in table `{name}`"))
}

/// Returns the tables of a directory (`build.rs`) with their file names without extension, sorted by name.
///
/// # Errors
/// If the binary is corrupt.
pub fn directory(
    name: &'static str,
) -> Result<impl Iterator<Item = (&'static str, &'static str)>, String> {
    let all = TABLES.as_ref().map_err(Clone::clone)?;
    Ok(all
        .iter()
        .filter_map(move |(own, text)| Some((own.strip_prefix(name)?.strip_prefix('/')?, *text))))
}

/// Parses a built-in table.
///
/// # Errors
/// If the table does not exist or is invalid.
pub fn built_in<T: DeserializeOwned>(name: &str) -> Result<T, String> {
    serde_json::from_str(table(name)?).map_err(|error| error.to_string())
}

/// Implements serde and the schema as one string for a type with `FromStr` and `Display`, so that files and messages
/// use the same form. The last argument is the pattern for the schema.
macro_rules! as_text {
    ($type:ident, $what:expr, $pattern:expr) => {
        gpu_compat::serde_as_text!($type, $what);
        gpu_compat::schema_as_text!($type, $what, $pattern);
    };
}

pub(crate) use as_text;

/// Defines a property test: a parser must not panic on texts that match a regular expression.
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

#[cfg(test)]
mod tests {
    use super::{counted, with_lines, without_lines};

    #[test]
    fn noun_has_the_number_of_its_count() {
        assert_eq!(
            [0, 1, 2].map(|count| counted(count, "GPU")),
            ["0 GPUs", "1 GPU", "2 GPUs"]
        );
    }

    proptest::proptest! {
        #[test]
        fn added_lines_are_removed_completely(text in "([a-c#]{0,3}(\n|\r\n))*[a-c#]{0,3}") {
            let with = with_lines(&text, ["ours", "ours too"]);
            let added = with.lines().filter(|line| line.starts_with("ours")).count();
            proptest::prop_assert_eq!(added, 2);
            proptest::prop_assert_eq!(without_lines(&with, |line| line.starts_with("ours")), text);
        }
    }
}
