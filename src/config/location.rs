//! The location of a setting: file, line and column, a variable or a flag.

use std::fmt;

use serde::Serialize;

/// The prefix of our environment variables. `__` replaces the dot, `_` the dash.
pub const PREFIX: &str = "GPU_BOOTSTRAP_";

/// The source location of a setting.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case", tag = "from")]
pub enum Location {
    /// A file. Lines and columns start at 1; columns count characters.
    File {
        /// Its path.
        file: String,
        line: usize,
        column: usize,
    },
    /// An environment variable.
    Env {
        /// Its name.
        variable: String,
    },
    /// The default in the profile.
    Profile,
    Flag {
        /// The flag as it was given.
        flag: String,
    },
}

impl fmt::Display for Location {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { file, line, column } => write!(to, "{file}:{line}:{column}"),
            Self::Env { variable } => write!(to, "environment variable {variable}"),
            Self::Profile => to.write_str("the profile"),
            Self::Flag { flag } => write!(to, "`{flag}`"),
        }
    }
}

impl Location {
    /// Returns the location of a byte in a file.
    pub fn in_file(file: &str, text: &str, byte: usize) -> Self {
        let mut end = byte.min(text.len());
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let before = &text[..end];
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        Self::File {
            file: file.to_owned(),
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Location;

    #[test]
    fn locations_count_characters_from_one() {
        let text = "a = 1\n# ü\nü = 2\n";
        let place = |byte| Location::in_file("f", text, byte).to_string();
        assert_eq!(place(0), "f:1:1");
        assert_eq!(place(6), "f:2:1");
        assert_eq!(place(text.find("ü = 2").unwrap() + 3), "f:3:3");
        // Within a character, and after the end.
        assert_eq!(place(text.find("ü = 2").unwrap() + 1), "f:3:1");
        assert_eq!(place(1000), "f:4:1");
    }
}
