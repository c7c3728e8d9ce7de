//! Reads a matrix and rejects one that contradicts itself.

use std::fmt;
use std::sync::LazyLock;

use crate::compat::locate::Spans;
use crate::compat::matrix::Matrix;
use crate::compat::validate::{self, Contradiction};
use crate::model::text::{nearest, table};

const BUILTIN_NAME: &str = "compat/cuda-driver-matrix.toml";

/// A matrix that cannot be used, with every problem in it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("read compatibility matrix `{file}`: {}", list(.problems))]
pub struct MatrixError {
    /// The file, as the caller named it.
    pub file: String,
    /// At least one problem, in the order of the file.
    pub problems: Vec<Problem>,
}

/// One thing that is wrong with a matrix.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// The line, counted from 1.
    pub line: usize,
    /// The key; empty where the text is not TOML.
    pub key: String,
    /// What is wrong with it.
    pub what: String,
    /// What to do about it.
    pub remedy: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "line {}", self.line)?;
        if !self.key.is_empty() {
            write!(to, ", key `{}`", self.key)?;
        }
        write!(to, ": {} ({})", self.what, self.remedy)
    }
}

fn list(problems: &[Problem]) -> String {
    problems
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join("; ")
}

impl Matrix {
    /// The built-in matrix.
    ///
    /// # Errors
    /// When the built-in matrix is wrong, which a test excludes.
    pub fn builtin() -> Result<Self, MatrixError> {
        static ONCE: LazyLock<Result<Matrix, MatrixError>> =
            LazyLock::new(|| match table("cuda-driver-matrix") {
                Ok(text) => Matrix::parse(text, BUILTIN_NAME),
                Err(error) => Err(MatrixError {
                    file: BUILTIN_NAME.to_owned(),
                    problems: vec![Problem {
                        line: 0,
                        key: String::new(),
                        what: error,
                        remedy: "this program is damaged; install it again".to_owned(),
                    }],
                }),
            });
        ONCE.clone()
    }

    /// Reads a matrix. `file_name` is for messages.
    ///
    /// # Errors
    /// When the text is not TOML, has unknown keys or values of the wrong type, or contradicts
    /// itself.
    pub fn parse(text: &str, file_name: &str) -> Result<Self, MatrixError> {
        let failed = |problems| MatrixError {
            file: file_name.to_owned(),
            problems,
        };
        let matrix: Self =
            toml::from_str(text).map_err(|error| failed(vec![unreadable(text, &error)]))?;
        let contradictions = validate::contradictions(&matrix);
        if contradictions.is_empty() {
            return Ok(matrix);
        }
        let spans = Spans::new(text);
        let mut problems: Vec<Problem> = contradictions
            .into_iter()
            .map(|found| located(&spans, found))
            .collect();
        problems.sort();
        Err(failed(problems))
    }
}

fn located(spans: &Spans<'_>, found: Contradiction) -> Problem {
    Problem {
        line: spans.line_of(found.row, found.key),
        key: match found.row {
            Some((table, _)) => format!("{table}.{}", found.key),
            None => found.key.to_owned(),
        },
        what: found.what,
        remedy: found.remedy,
    }
}

/// What the TOML parser says, with the nearest valid key where it does not know a key.
fn unreadable(text: &str, error: &toml::de::Error) -> Problem {
    let (spans, message) = (Spans::new(text), error.message());
    let start = error.span().map_or(0, |span| span.start);
    let mut words = message.split('`').skip(1).step_by(2);
    let remedy = if message.starts_with("unknown field") || message.starts_with("unknown variant") {
        let unknown = words.next().unwrap_or_default();
        nearest(unknown, words).map_or_else(
            || "remove the key".to_owned(),
            |near| format!("perhaps `{near}`"),
        )
    } else if message.starts_with("missing field") {
        "add the key to this row".to_owned()
    } else {
        "correct the value; CONTRIBUTING.md describes the rows".to_owned()
    };
    Problem {
        line: spans.line(start),
        key: spans.key_at(start).unwrap_or_default().to_owned(),
        what: message.lines().collect::<Vec<_>>().join(" "),
        remedy,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUILTIN: &str = include_str!("../../compat/cuda-driver-matrix.toml");

    /// The built-in matrix with one line changed must fail in that line.
    fn broken(from: &str, to: &str) -> Problem {
        assert!(BUILTIN.contains(from), "{from}");
        let text = BUILTIN.replacen(from, to, 1);
        let error = Matrix::parse(&text, "m.toml").unwrap_err();
        assert_eq!(error.file, "m.toml");
        let problem = error.problems[0].clone();
        assert!(!problem.remedy.is_empty() && problem.line > 1, "{problem}");
        problem
    }

    fn line_of(needle: &str) -> usize {
        BUILTIN.lines().position(|line| line == needle).unwrap() + 1
    }

    #[test]
    fn the_builtin_matrix_is_sound() {
        let matrix = Matrix::builtin().unwrap_or_else(|error| panic!("{error}"));
        assert!(matrix.gpus.len() > 100 && matrix.toolkits.len() > 60);
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
        assert_eq!(problem.key, "last-brunch");
        assert_eq!(problem.remedy, "perhaps `last-branch`");
        assert_eq!(problem.line, line_of("last-branch = \"470\""));
    }

    #[test]
    fn values_of_the_wrong_kind_name_line_and_key() {
        let problem = broken(
            "\nfirst-version = \"580.65.06\"",
            "\nfirst-version = \"580\"",
        );
        assert_eq!(
            (problem.key.as_str(), problem.line),
            ("first-version", line_of("first-version = \"580.65.06\""))
        );
        assert!(problem.what.contains("580.159.04"), "{problem}");
        let problem = broken("modules = \"either\"", "modules = \"both\"");
        assert!(problem.what.contains("both"), "{problem}");
    }

    #[test]
    fn contradictions_are_found() {
        for (from, to, key) in [
            ("\nschema = 1", "\nschema = 2", "schema"),
            (
                "\nlast-branch = \"470\"",
                "\nlast-branch = \"471\"",
                "architecture.last-branch",
            ),
            (
                "\nlast-branch = \"470\"",
                "\nlast-branch = \"510\"",
                "branch.oldest-architecture",
            ),
            (
                "\nsources = [\"S9\", \"S8\"]",
                "\nsources = [\"S99\"]",
                "compute-capability.sources",
            ),
            (
                "\npci-id = \"10de:2331\"",
                "\npci-id = \"10de:2330\"",
                "gpu.pci-id",
            ),
            (
                "\narchitecture = \"hopper\"",
                "\narchitecture = \"hoper\"",
                "compute-capability.architecture",
            ),
            (
                "\nnewest-version = \"580.178.04\"",
                "\nnewest-version = \"595.45.04\"",
                "branch.newest-version",
            ),
            (
                "\nnewest-version = \"580.178.04\"",
                "\nnewest-version = \"580.1.04\"",
                "branch.first-version",
            ),
            (
                "\nmin-drivers = [\"525.85.05\"]",
                "\nmin-drivers = [\"515.48.07\"]",
                "gpu.compute-capability.min-driver",
            ),
            (
                "\nmin-driver = \"520.61.05\"",
                "\nmin-driver = \"520.99.05\"",
                "cuda.min-driver",
            ),
            ("\nchip = \"GH100\"", "\nchip = \"GV100\"", "gpu.chip"),
            (
                "\ngpu-ids = [\"10de:2330\"]",
                "\ngpu-ids = [\"10de:ffff\"]",
                "instance-type.gpu-ids",
            ),
        ] {
            assert_eq!(broken(from, to).key, key, "{to}");
        }
    }

    #[test]
    fn a_row_without_the_key_has_the_line_of_its_header() {
        let problem = broken(
            "\nmin-drivers = [\"525.85.05\"]",
            "\nmin-drivers = [\"515.48.07\"]",
        );
        let header = BUILTIN.lines().take(problem.line).last();
        assert_eq!(
            (header, problem.key.as_str()),
            (Some("[[gpu]]"), "gpu.compute-capability.min-driver")
        );
        let text = BUILTIN.replacen("\nlast-branch = \"470\"", "", 1);
        let text = text.replacen("\nmodules = \"proprietary\"", "", 1);
        let error = Matrix::parse(&text, "m.toml").unwrap_err();
        assert_eq!(error.problems[0].key, "architecture", "{error}");
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
