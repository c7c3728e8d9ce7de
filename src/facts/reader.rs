//! A file reader for the `facts` document: failures become entries in `unknown`, never errors.

use std::error::Error;

use camino::{Utf8Path, Utf8PathBuf};

use crate::{
    error::one_line,
    facts::Unknown,
    host::{FilesError, ReadFiles},
    model::text::beginning,
};

/// The maximum size of a single-value file in sysfs.
const PAGE: usize = 4096;

/// The files of the machine, and the unknown facts so far.
pub(crate) struct FactReader<'h> {
    files: &'h dyn ReadFiles,
    unknown: Vec<Unknown>,
}

impl<'h> FactReader<'h> {
    pub(crate) fn new(files: &'h dyn ReadFiles) -> Self {
        Self {
            files,
            unknown: Vec::new(),
        }
    }

    /// The files, for reads that do not belong to a fact.
    pub(crate) fn files(&self) -> &'h dyn ReadFiles {
        self.files
    }

    /// Adds an unknown fact.
    pub(crate) fn unknown(&mut self, fact: impl Into<String>, why: impl Into<String>) {
        let line = Unknown {
            fact: fact.into(),
            why: why.into(),
        };
        // Several reads for one fact may fail for the same reason, so skip duplicates.
        if !self.unknown.contains(&line) {
            self.unknown.push(line);
        }
    }

    /// Returns the unknown facts in the order of their detection.
    pub(crate) fn into_unknown(self) -> Vec<Unknown> {
        self.unknown
    }

    /// Returns the content of a file. `None` if it does not exist or is not readable. An unreadable
    /// file is recorded in `unknown`.
    pub(crate) fn bytes(&mut self, fact: &str, path: &str) -> Option<Vec<u8>> {
        let read = self.files.read(Utf8Path::new(path));
        self.take(fact, read).flatten()
    }

    /// Like [`FactReader::bytes`], for text. Invalid UTF-8 is replaced, because firmware strings
    /// may contain any byte, and one bad character must not hide a file.
    pub(crate) fn text(&mut self, fact: &str, path: &str) -> Option<String> {
        self.bytes(fact, path)
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Like [`FactReader::text`], for a single-value file: trimmed, and `None` if empty.
    pub(crate) fn value(&mut self, fact: &str, path: &str) -> Option<String> {
        let text = self.text(fact, path)?;
        let value = text.trim_matches(|c: char| c.is_whitespace() || c == '\0');
        (!value.is_empty()).then(|| beginning(value, PAGE))
    }

    /// Like [`FactReader::value`], but a missing or empty file is also recorded.
    pub(crate) fn required(&mut self, fact: &str, path: &str) -> Option<String> {
        let before = self.unknown.len();
        let value = self.value(fact, path);
        if value.is_none() && self.unknown.len() == before {
            self.unknown(fact, format!("`{path}` is missing or empty"));
        }
        value
    }

    /// Whether the path exists, following symlinks.
    pub(crate) fn exists(&mut self, fact: &str, path: &str) -> bool {
        let exists = self.files.exists(Utf8Path::new(path));
        self.take(fact, exists).unwrap_or(false)
    }

    /// Returns the names in a directory. Empty if it does not exist.
    pub(crate) fn list(&mut self, fact: &str, directory: &str) -> Vec<String> {
        let names = self.files.list(Utf8Path::new(directory));
        self.take(fact, names).unwrap_or_default()
    }

    /// Resolves the symlinks in a path.
    pub(crate) fn resolve(&mut self, fact: &str, path: &str) -> Option<Utf8PathBuf> {
        let target = self.files.resolve(Utf8Path::new(path));
        self.take(fact, target).flatten()
    }

    /// Returns a parsed value. An error is recorded.
    pub(crate) fn parsed<T, E: Error + 'static>(
        &mut self,
        fact: &str,
        parsed: Result<T, E>,
    ) -> Option<T> {
        match parsed {
            Ok(value) => Some(value),
            Err(error) => {
                self.unknown(fact, one_line(&error));
                None
            }
        }
    }

    /// Returns the result of a read. An error is recorded.
    pub(crate) fn answer<T>(&mut self, fact: &str, result: Result<T, FilesError>) -> Option<T> {
        self.take(fact, result)
    }

    fn take<T>(&mut self, fact: &str, result: Result<T, FilesError>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                let why = error
                    .not_reported()
                    .map_or_else(|| format!("failed to {}", one_line(&error)), str::to_owned);
                self.unknown(fact, why);
                None
            }
        }
    }
}
