//! Parses the journal. Only the last line may be incomplete, because a power loss can truncate it. No action has been taken for
//! an incomplete record. Any other invalid line is an error.

use camino::Utf8Path;
use serde_json::Value;

use super::{JournalError, JournalLine, SCHEMA};

/// The content of a journal.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct History {
    /// The records, oldest first.
    pub lines: Vec<JournalLine>,
    /// An incomplete last line, caused by a power loss.
    pub torn: Option<Torn>,
    /// The number of bytes with complete records.
    pub whole: usize,
}

/// An incomplete last line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Torn {
    /// The line number, from 1.
    pub line: usize,
    /// The length in bytes.
    pub bytes: usize,
}

/// Parses a journal. `path` is used in error messages.
///
/// # Errors
/// If a line has a newer schema, is not a record, or is out of order.
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
            // A complete line ends with a line feed. After a power loss it may also contain NUL bytes, if a disk block was not
            // written.
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
    // Check the schema version first, because a newer record may have a different structure.
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

    /// A power loss leaves a truncated record, or one with a block that was not written. Any other error in a complete line is
    /// damage, because its change may have been applied.
    #[test]
    fn only_truncated_last_line_is_ignored() {
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
