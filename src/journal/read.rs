//! Parses the journal. Only the last line may be incomplete, because a power cut can leave half of
//! it. Nothing was done yet on the basis of an incomplete record. Any other invalid line is an
//! error.

use camino::Utf8Path;
use serde_json::Value;

use super::{JournalError, JournalLine, SCHEMA};

/// The content of a journal.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct History {
    /// Its records, oldest first.
    pub lines: Vec<JournalLine>,
    /// An incomplete last line, left by a power cut.
    pub torn: Option<Torn>,
    /// The number of bytes with complete records.
    pub whole: usize,
}

/// An incomplete last line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Torn {
    /// The line number, from 1.
    pub line: usize,
    /// Its length.
    pub bytes: usize,
}

/// Reads a journal; `path` is for messages.
///
/// # Errors
/// See [`JournalError`]: a newer schema, or a line that is no record.
pub fn parse(path: &Utf8Path, content: &[u8]) -> Result<History, JournalError> {
    let mut history = History::default();
    let mut rest = content;
    let mut number = 0;
    while !rest.is_empty() {
        number += 1;
        let end = rest.iter().position(|byte| *byte == b'\n');
        let (line, after) = match end {
            Some(end) => (&rest[..end], &rest[end + 1..]),
            None => (rest, &rest[rest.len()..]),
        };
        let value: Value = match serde_json::from_slice(line) {
            Ok(value) => value,
            // A complete line ends with a line feed. A power cut may also leave it with NUL bytes in it, where a block of
            // the disk was not written.
            Err(_) if after.is_empty() && (end.is_none() || line.contains(&0)) => {
                history.torn = Some(Torn {
                    line: number,
                    bytes: rest.len(),
                });
                break;
            }
            Err(error) => {
                return Err(JournalError::Garbage {
                    path: path.to_owned(),
                    line: number,
                    why: error.to_string(),
                });
            }
        };
        let record = understand(path, number, value)?;
        let expected = history.lines.len() as u64;
        if record.seq != expected {
            return Err(JournalError::OutOfOrder {
                path: path.to_owned(),
                line: number,
                found: record.seq,
                expected,
            });
        }
        history.lines.push(record);
        history.whole = content.len() - after.len();
        rest = after;
    }
    Ok(history)
}

fn understand(path: &Utf8Path, line: usize, value: Value) -> Result<JournalLine, JournalError> {
    // The schema version first: a newer record may look completely different.
    if let Some(found) = value.get("schema").and_then(Value::as_u64)
        && found > u64::from(SCHEMA)
    {
        return Err(JournalError::Newer {
            path: path.to_owned(),
            line,
            found,
        });
    }
    serde_json::from_value(value).map_err(|error| JournalError::Garbage {
        path: path.to_owned(),
        line,
        why: error.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::parse;

    /// A power cut leaves half a record, or one in which a block was not written. Whatever else is wrong with a whole line
    /// is damage: what it says may stand on the machine.
    #[test]
    fn a_last_line_is_torn_or_damaged() {
        let path = "/journal.jsonl".into();
        for torn in [&b"{\"schema\":1,"[..], b"{\"schema\":1,\0\0\0}\n"] {
            let history = parse(path, torn).expect("torn");
            assert_eq!(history.torn.map(|torn| torn.bytes), Some(torn.len()));
        }
        for damaged in [&b"{\"schema\":1,\n"[..], b"\n", b"{}garbage\n"] {
            let error = parse(path, damaged).expect_err("damaged").to_string();
            assert!(error.contains("/journal.jsonl"), "{error}");
        }
    }
}
