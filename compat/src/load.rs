//! Reads a matrix. One that an administrator wrote is refused where it contradicts itself: identities must be
//! unique, references must exist. A test holds the built-in one to more: `tests/compat/sound.rs`.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::LazyLock;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::matrix::{Matrix, SCHEMA};
use crate::text::{self, nearest};

/// A matrix that cannot be used, with every problem in it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("read compatibility matrix `{file}`: {}", list(.problems))]
pub struct MatrixError {
    /// The file, as the caller named it.
    pub file: String,
    /// At least one problem, in the order of the file.
    pub problems: Vec<MatrixFlaw>,
}

/// One thing that is wrong with a matrix.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct MatrixFlaw {
    /// The line, counted from 1.
    pub line: usize,
    /// What is wrong there.
    pub what: String,
}

impl fmt::Display for MatrixFlaw {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "line {}: {}", self.line, self.what)
    }
}

fn list(problems: &[MatrixFlaw]) -> String {
    let texts: Vec<String> = problems.iter().map(ToString::to_string).collect();
    texts.join("; ")
}

impl Matrix {
    /// The built-in matrix.
    ///
    /// # Errors
    /// When this program is damaged.
    pub fn builtin() -> Result<Self, MatrixError> {
        static ONCE: LazyLock<Result<Matrix, MatrixError>> = LazyLock::new(|| {
            let text = text::MATRIX.as_ref().map_err(Clone::clone);
            let read =
                text.and_then(|text| toml::from_str(text).map_err(|error| error.to_string()));
            read.map_err(|what| MatrixError {
                file: "compat/cuda-driver-matrix.toml".to_owned(),
                problems: vec![MatrixFlaw { line: 1, what }],
            })
        });
        ONCE.clone()
    }

    /// Reads a matrix that an administrator wrote. `file_name` is for messages.
    ///
    /// # Errors
    /// When the text is not TOML, has unknown keys or values of the wrong type, or contradicts
    /// itself.
    pub fn parse(text: &str, file_name: &str) -> Result<Self, MatrixError> {
        let read: Result<Self, _> = toml::from_str(text);
        let (matrix, mut problems) = match read {
            Ok(matrix) => (Some(matrix), contradictions(text)),
            Err(error) => (None, vec![unreadable(text, &error)]),
        };
        if let Some(matrix) = matrix {
            if matrix.schema != SCHEMA {
                let what = format!("`schema` is {}; this program reads {SCHEMA}", matrix.schema);
                let at = text.find("\nschema").map_or(0, |at| at + 1);
                let line = line(text, at);
                problems.push(MatrixFlaw { line, what });
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

/// The line of a byte, from 1.
fn line(text: &str, byte: usize) -> usize {
    let before = &text.as_bytes()[..byte.min(text.len())];
    before.iter().filter(|byte| **byte == b'\n').count() + 1
}

/// Returns what the TOML parser says, with the nearest key or word if it does not know one.
fn unreadable(text: &str, error: &toml::de::Error) -> MatrixFlaw {
    let message = error.message();
    let mut words = message.split('`').skip(1).step_by(2);
    let unknown = words.next().filter(|_| message.starts_with("unknown "));
    let near = unknown.and_then(|unknown| nearest(unknown, words));
    let lines: Vec<&str> = message.lines().collect();
    MatrixFlaw {
        line: line(text, error.span().map_or(0, |span| span.start)),
        what: lines.join(" ") + &perhaps(near),
    }
}

fn perhaps(near: Option<&str>) -> String {
    near.map_or_else(String::new, |near| format!("; perhaps `{near}`"))
}

/// The keys that tell the rows of a table apart.
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

/// A table and a key in it whose values a row of another table must have in a key of its own.
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

/// Returns each row whose identity another one has, and each reference to a row that is not there.
fn contradictions(text: &str) -> Vec<MatrixFlaw> {
    let (root, _) = DeTable::parse_recoverable(text);
    let root = root.get_ref();
    let mut found = Vec::new();
    let mut bad = |at: usize, what: String| {
        let line = line(text, at);
        found.push(MatrixFlaw { line, what });
    };
    for (table, keys) in IDENTITIES {
        let mut seen = BTreeSet::new();
        for row in rows(root, table) {
            let values = keys.iter().flat_map(|key| values(row, key));
            let values: Vec<String> = values.map(|(_, value)| value.to_lowercase()).collect();
            let identity = values.join(", ");
            if !seen.insert(identity.clone()) {
                let what = format!("there is already a row of `{table}` with {identity}");
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
                    let what = format!("no row of `{other}` has `{value}` of `{key}`{near}");
                    bad(at, what);
                }
            }
        }
    }
    found
}

/// The rows of a table; a table that is written once is a row.
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

/// The values of a key in a row, one or a list of them, each with its place in the text.
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

    /// The built-in matrix with one text changed must fail in that line.
    fn broken(from: &str, to: &str) -> MatrixFlaw {
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
    fn the_builtin_matrix_contradicts_itself_nowhere() {
        let matrix = Matrix::parse(BUILTIN, "m.toml").unwrap_or_else(|error| panic!("{error}"));
        assert!(matrix.gpus.len() > 100 && matrix.toolkits.len() > 60);
        let built_in = Matrix::builtin().unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(built_in.gpus.len(), matrix.gpus.len());
    }

    #[test]
    fn the_builtin_matrix_names_no_path_of_a_machine() {
        for needle in ["/home/", "/tmp/", "/root/", "/mnt/"] {
            assert!(!BUILTIN.contains(needle), "{needle}");
        }
    }

    #[test]
    fn unknown_keys_get_the_nearest_one() {
        let problem = broken("\nlast-branch = \"470\"", "\nlast-brunch = \"470\"");
        assert!(problem.what.ends_with("perhaps `last-branch`"), "{problem}");
        assert_eq!(problem.line, line_of("last-branch = \"470\""));
    }

    #[test]
    fn values_of_the_wrong_kind_are_named_with_their_line() {
        let newest = "newest-version = \"580.178.04\"";
        let problem = broken(newest, "newest-version = \"580\"");
        assert_eq!(problem.line, line_of(newest));
        assert!(problem.what.contains("580.159.04"), "{problem}");
        let problem = broken("modules = \"either\"", "modules = \"both\"");
        assert!(problem.what.contains("both"), "{problem}");
    }

    #[test]
    fn contradictions_are_found() {
        let header = |of: &str| line_of(of) - 1;
        for (from, to, line, what) in rows! {
            "schema = 1", "schema = 2", line_of("schema = 1"), "this program reads 1";
            "last-branch = \"470\"", "last-branch = \"471\"", line_of("last-branch = \"470\""),
                "no row of `branch` has `471` of `last-branch`; perhaps `470`";
            "sources = [\"S9\", \"S8\"]", "sources = [\"S99\"]",
                line_of("sources = [\"S9\", \"S8\"]"), "`S99` of `sources`";
            "pci-id = \"10de:2331\"", "pci-id = \"10DE:2330\"", header("pci-id = \"10de:2331\""),
                "already a row of `gpu` with 10de:2330";
            "architecture = \"hopper\"", "architecture = \"hoper\"",
                line_of("architecture = \"hopper\""), "perhaps `hopper`";
            "gpu-ids = [\"10de:2330\"]", "gpu-ids = [\"10de:ffff\"]",
                line_of("gpu-ids = [\"10de:2330\"]"), "no row of `gpu` has `10de:ffff`";
        } {
            let problem = broken(&format!("\n{from}"), &format!("\n{to}"));
            assert_eq!(problem.line, line, "{problem}");
            assert!(problem.what.contains(what), "{problem}");
        }
    }

    #[test]
    fn a_row_without_a_key_has_the_line_of_its_header() {
        let text = BUILTIN.replacen("\nlast-branch = \"470\"", "", 1);
        let text = text.replacen("\nmodules = \"proprietary\"", "", 1);
        let error = Matrix::parse(&text, "m.toml").unwrap_err();
        let header = text.lines().take(error.problems[0].line).last();
        assert_eq!(header, Some("[[architecture]]"), "{error}");
    }

    #[test]
    fn text_that_is_no_toml_has_a_line() {
        let error = Matrix::parse("schema = 1\n= 2\n", "m.toml").unwrap_err();
        assert_eq!(error.problems[0].line, 2, "{error}");
        assert!(!error.to_string().contains("``"), "{error}");
    }

    #[test]
    fn every_problem_is_named_at_once() {
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
