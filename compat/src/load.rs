//! Parses a matrix. A custom matrix is rejected if it is inconsistent: identities must be unique, and references must exist.
//! `tests/matrix/sound.rs` has more requirements for the built-in matrix.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::LazyLock;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::matrix::{Matrix, SCHEMA};
use crate::text::{self, nearest};

/// An invalid matrix, with all its errors.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("read compatibility matrix `{file}`: {}", list(.problems))]
pub struct MatrixError {
    /// The file name from the caller.
    pub file: String,
    /// The errors in file order. Never empty.
    pub problems: Vec<MatrixIssue>,
}

/// An error in a matrix.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct MatrixIssue {
    /// The line, counted from 1.
    pub line: usize,
    /// The message.
    pub what: String,
}

impl fmt::Display for MatrixIssue {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "line {}: {}", self.line, self.what)
    }
}

fn list(problems: &[MatrixIssue]) -> String {
    let texts: Vec<String> = problems.iter().map(ToString::to_string).collect();
    texts.join("; ")
}

impl Matrix {
    /// Returns the built-in matrix.
    ///
    /// # Errors
    /// If the embedded matrix is corrupted.
    pub fn builtin() -> Result<Self, MatrixError> {
        static ONCE: LazyLock<Result<Matrix, MatrixError>> = LazyLock::new(|| {
            let text = text::MATRIX.as_ref().map_err(Clone::clone);
            let read =
                text.and_then(|text| serde_json::from_str(text).map_err(|error| error.to_string()));
            read.map_err(|what| MatrixError {
                file: "compat/cuda-driver-matrix.toml".to_owned(),
                problems: vec![MatrixIssue { line: 1, what }],
            })
        });
        ONCE.clone()
    }

    /// Parses a custom matrix. `file_name` is used in messages.
    ///
    /// # Errors
    /// If the text is not TOML, has unknown keys or values of the wrong type, or is inconsistent.
    pub fn parse(text: &str, file_name: &str) -> Result<Self, MatrixError> {
        let read: Result<Self, _> = toml::from_str(text);
        let (matrix, mut problems) = match read {
            Ok(matrix) => (Some(matrix), contradictions(text)),
            Err(error) => (None, vec![unreadable(text, &error)]),
        };
        if let Some(matrix) = matrix {
            if matrix.schema != SCHEMA {
                let what = format!("`schema` is {}, but must be {SCHEMA}", matrix.schema);
                let at = text.find("\nschema").map_or(0, |at| at + 1);
                let line = line(text, at);
                problems.push(MatrixIssue { line, what });
            }
            if problems.is_empty() {
                return Ok(matrix);
            }
        }
        problems.sort();
        Err(MatrixError {
            file: file_name.to_owned(),
            problems,
        })
    }
}

/// Returns the line number of a byte.
fn line(text: &str, byte: usize) -> usize {
    let before = &text.as_bytes()[..byte.min(text.len())];
    before.iter().filter(|byte| **byte == b'\n').count() + 1
}

/// Returns the error of the TOML parser. If a key or value is unknown, the message suggests the nearest known one.
fn unreadable(text: &str, error: &toml::de::Error) -> MatrixIssue {
    let message = error.message();
    let mut words = message.split('`').skip(1).step_by(2);
    let unknown = words.next().filter(|_| message.starts_with("unknown "));
    let near = unknown.and_then(|unknown| nearest(unknown, words));
    let lines: Vec<&str> = message.lines().collect();
    MatrixIssue {
        line: line(text, error.span().map_or(0, |span| span.start)),
        what: lines.join(" ") + &perhaps(near),
    }
}

fn perhaps(near: Option<&str>) -> String {
    near.map_or_else(String::new, |near| format!("; did you mean `{near}`?"))
}

/// The keys that identify the entries of a table.
const IDENTITIES: [(&str, &[&str]); 16] = [
    ("source", &["key"]),
    ("architecture", &["name"]),
    ("branch", &["branch"]),
    ("cuda", &["version"]),
    ("cuda-image", &["version"]),
    ("cuda-major", &["major"]),
    ("forward-compat", &["cuda"]),
    ("gpu", &["pci-id", "subsystem-id"]),
    ("nvswitch", &["pci-id", "name"]),
    ("vgpu", &["pci-id"]),
    ("instance-type", &["provider", "name"]),
    ("driver-floor", &["bulletin"]),
    ("package-floor", &["bulletin"]),
    ("kernel-fix", &["kernel"]),
    ("kernel-limit", &["driver"]),
    ("cudnn", &["version", "cuda-major"]),
];

/// References: a table and its key, and the table and key that must contain the value. An empty name means all tables.
const REFERENCES: [(&str, &str, &str, &str); 11] = [
    ("", "sources", "source", "key"),
    ("architecture", "last-branch", "branch", "branch"),
    ("compute-capability", "architecture", "architecture", "name"),
    ("branch", "newest-architecture", "architecture", "name"),
    ("chip-range", "architecture", "architecture", "name"),
    ("gpu", "architecture", "architecture", "name"),
    (
        "gpu",
        "compute-capability",
        "compute-capability",
        "versions",
    ),
    ("gpu", "not-named-in", "branch", "branch"),
    ("forward-compat", "branches", "branch", "branch"),
    ("kernel-fix", "never-fixed", "branch", "branch"),
    ("instance-type", "gpu-ids", "gpu", "pci-id"),
];

/// Returns each duplicate entry, and each reference to a missing entry.
fn contradictions(text: &str) -> Vec<MatrixIssue> {
    let (root, _) = DeTable::parse_recoverable(text);
    let root = root.get_ref();
    let mut found = Vec::new();
    let mut bad = |at: usize, what: String| {
        let line = line(text, at);
        found.push(MatrixIssue { line, what });
    };
    for (table, keys) in IDENTITIES {
        let mut seen = BTreeSet::new();
        for row in rows(root, table) {
            let values = keys.iter().flat_map(|key| values(row, key));
            let values: Vec<String> = values.map(|(_, value)| value.to_lowercase()).collect();
            let identity = values.join(", ");
            if !seen.insert(identity.clone()) {
                let what = format!("duplicate entry of `{table}` with {identity}");
                bad(row.span().start, what);
            }
        }
    }
    for (table, key, other, other_key) in REFERENCES {
        let known = rows(root, other);
        let known = known.into_iter().flat_map(|row| values(row, other_key));
        let known: Vec<String> = known.map(|(_, value)| value).collect();
        let all = root.iter().map(|(name, _)| &**name.get_ref());
        let tables = all.filter(|name| table.is_empty() || *name == table);
        for row in tables.flat_map(|table| rows(root, table)) {
            for (at, value) in values(row, key) {
                if !known.iter().any(|one| one.eq_ignore_ascii_case(&value)) {
                    let near = perhaps(nearest(&value, known.iter().map(String::as_str)));
                    let what = format!("`{value}` of `{key}` is missing in `{other}`{near}");
                    bad(at, what);
                }
            }
        }
    }
    found
}

/// Returns the entries of a table. A single table is one entry.
fn rows<'t, 'a>(root: &'t DeTable<'a>, table: &str) -> Vec<&'t Spanned<DeValue<'a>>> {
    match find(root, table) {
        Some(value) => match value.get_ref() {
            DeValue::Array(rows) => rows.iter().collect(),
            _ => vec![value],
        },
        None => Vec::new(),
    }
}

fn find<'t, 'a>(table: &'t DeTable<'a>, key: &str) -> Option<&'t Spanned<DeValue<'a>>> {
    let mut entries = table.iter();
    entries
        .find(|(name, _)| name.get_ref() == key)
        .map(|(_, value)| value)
}

/// Returns the values of a key, which may be a list, with their positions in the text.
fn values(row: &Spanned<DeValue<'_>>, key: &str) -> Vec<(usize, String)> {
    let one = |value: &Spanned<DeValue<'_>>| {
        let text = match value.get_ref() {
            DeValue::String(text) => text.to_string(),
            DeValue::Integer(number) => number.as_str().to_owned(),
            _ => String::new(),
        };
        (value.span().start, text)
    };
    let table = row.get_ref().as_table();
    match table.and_then(|table| find(table, key)) {
        Some(value) => match value.get_ref() {
            DeValue::Array(items) => items.iter().map(one).collect(),
            _ => vec![one(value)],
        },
        None => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUILTIN: &str = include_str!("../cuda-driver-matrix.toml");

    /// Changes one text of the built-in matrix, and returns the first error.
    fn broken(from: &str, to: &str) -> MatrixIssue {
        assert!(BUILTIN.contains(from), "{from}");
        let text = BUILTIN.replacen(from, to, 1);
        let error = Matrix::parse(&text, "m.toml").unwrap_err();
        assert_eq!(error.file, "m.toml");
        error.problems[0].clone()
    }

    fn line_of(needle: &str) -> usize {
        BUILTIN.lines().position(|line| line == needle).unwrap() + 1
    }

    #[test]
    fn the_builtin_matrix_is_consistent() {
        let matrix = Matrix::parse(BUILTIN, "m.toml").unwrap_or_else(|error| panic!("{error}"));
        assert!(matrix.gpus.len() > 100 && matrix.toolkits.len() > 60);
        let built_in = Matrix::builtin().unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(built_in.gpus.len(), matrix.gpus.len());
    }

    #[test]
    fn the_builtin_matrix_contains_no_local_paths() {
        for needle in ["/home/", "/tmp/", "/root/", "/mnt/"] {
            assert!(!BUILTIN.contains(needle), "{needle}");
        }
    }

    #[test]
    fn unknown_keys_get_a_suggestion() {
        let problem = broken("\nlast-branch = \"470\"", "\nlast-brunch = \"470\"");
        assert!(
            problem.what.ends_with("did you mean `last-branch`?"),
            "{problem}"
        );
        assert_eq!(problem.line, line_of("last-branch = \"470\""));
    }

    #[test]
    fn values_of_the_wrong_type_are_reported_with_their_line() {
        let newest = "newest-version = \"580.178.04\"";
        let problem = broken(newest, "newest-version = \"580\"");
        assert_eq!(problem.line, line_of(newest));
        assert!(problem.what.contains("580.159.04"), "{problem}");
        let problem = broken("modules = \"either\"", "modules = \"both\"");
        assert!(problem.what.contains("both"), "{problem}");
    }

    #[test]
    fn inconsistencies_are_found() {
        let header = |of: &str| line_of(of) - 1;
        for (from, to, line, what) in rows! {
            "schema = 1", "schema = 2", line_of("schema = 1"), "but must be 1";
            "last-branch = \"470\"", "last-branch = \"471\"", line_of("last-branch = \"470\""),
                "`471` of `last-branch` is missing in `branch`; did you mean `470`?";
            "sources = [\"S9\", \"S8\"]", "sources = [\"S99\"]",
                line_of("sources = [\"S9\", \"S8\"]"), "`S99` of `sources`";
            "pci-id = \"10de:2331\"", "pci-id = \"10DE:2330\"", header("pci-id = \"10de:2331\""),
                "duplicate entry of `gpu` with 10de:2330";
            "architecture = \"hopper\"", "architecture = \"hoper\"",
                line_of("architecture = \"hopper\""), "did you mean `hopper`?";
            "gpu-ids = [\"10de:2330\"]", "gpu-ids = [\"10de:ffff\"]",
                line_of("gpu-ids = [\"10de:2330\"]"), "`10de:ffff` of `gpu-ids` is missing in `gpu`";
        } {
            let problem = broken(&format!("\n{from}"), &format!("\n{to}"));
            assert_eq!(problem.line, line, "{problem}");
            assert!(problem.what.contains(what), "{problem}");
        }
    }

    #[test]
    fn a_missing_key_is_reported_at_the_header() {
        let text = BUILTIN.replacen("\nlast-branch = \"470\"", "", 1);
        let text = text.replacen("\nmodules = \"proprietary\"", "", 1);
        let error = Matrix::parse(&text, "m.toml").unwrap_err();
        let header = text.lines().take(error.problems[0].line).last();
        assert_eq!(header, Some("[[architecture]]"), "{error}");
    }

    #[test]
    fn a_syntax_error_has_a_line() {
        let error = Matrix::parse("schema = 1\n= 2\n", "m.toml").unwrap_err();
        assert_eq!(error.problems[0].line, 2, "{error}");
        assert!(!error.to_string().contains("``"), "{error}");
    }

    #[test]
    fn all_errors_are_reported_together() {
        let text = BUILTIN
            .replacen("\nlast-branch = \"470\"", "\nlast-branch = \"471\"", 1)
            .replacen("\npci-id = \"10de:2331\"", "\npci-id = \"10de:2330\"", 1);
        let error = Matrix::parse(&text, "m.toml").unwrap_err();
        assert!(error.problems.len() >= 2);
        assert!(
            error
                .to_string()
                .starts_with("read compatibility matrix `m.toml`: line ")
        );
        assert!(Matrix::parse("", "empty.toml").is_err());
        assert!(Matrix::parse("schema = ", "half.toml").is_err());
    }
}
