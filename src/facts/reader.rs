//! Reading for the document of `facts`: whatever fails becomes a line under `unknown`, never an
//! error.

use std::error::Error;

use camino::{Utf8Path, Utf8PathBuf};

use crate::{
    error::one_line,
    facts::Unknown,
    host::{FilesError, ReadFiles},
    model::text::beginning,
};

/// The most that the kernel puts into a file of one value.
const PAGE: usize = 4096;

/// The files of the machine, and what could not be known so far.
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

    /// The files, for what has no fact to blame.
    pub(crate) fn files(&self) -> &'h dyn ReadFiles {
        self.files
    }

    /// Notes that a fact is not known.
    pub(crate) fn unknown(&mut self, fact: impl Into<String>, why: impl Into<String>) {
        let line = Unknown {
            fact: fact.into(),
            why: why.into(),
        };
        // Several facts rest on one file; one line for each pair is enough.
        if !self.unknown.contains(&line) {
            self.unknown.push(line);
        }
    }

    /// What is not known, in the order in which it was found.
    pub(crate) fn into_unknown(self) -> Vec<Unknown> {
        self.unknown
    }

    /// The content of a file; `None` if it is not there, or if it cannot be read, which is noted.
    pub(crate) fn bytes(&mut self, fact: &str, path: &str) -> Option<Vec<u8>> {
        let read = self.files.read(Utf8Path::new(path));
        self.take(fact, read).flatten()
    }

    /// As [`FactReader::bytes`], for text. Bytes that are no UTF-8 are replaced: firmware writes what it
    /// likes, and one odd letter must not hide a file.
    pub(crate) fn text(&mut self, fact: &str, path: &str) -> Option<String> {
        self.bytes(fact, path)
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    }

    /// As [`FactReader::text`], for the file of one value: without white space around it, and `None` if
    /// nothing is left.
    pub(crate) fn value(&mut self, fact: &str, path: &str) -> Option<String> {
        let text = self.text(fact, path)?;
        let value = text.trim_matches(|c: char| c.is_whitespace() || c == '\0');
        (!value.is_empty()).then(|| beginning(value, PAGE))
    }

    /// As [`FactReader::value`]; absence and emptiness are noted too.
    pub(crate) fn required(&mut self, fact: &str, path: &str) -> Option<String> {
        let before = self.unknown.len();
        let value = self.value(fact, path);
        if value.is_none() && self.unknown.len() == before {
            self.unknown(fact, format!("`{path}` is not there or empty"));
        }
        value
    }

    /// Whether something is at the path, links followed.
    pub(crate) fn exists(&mut self, fact: &str, path: &str) -> bool {
        let exists = self.files.exists(Utf8Path::new(path));
        self.take(fact, exists).unwrap_or(false)
    }

    /// The names in a folder; empty if it is not there.
    pub(crate) fn list(&mut self, fact: &str, folder: &str) -> Vec<String> {
        let names = self.files.list(Utf8Path::new(folder));
        self.take(fact, names).unwrap_or_default()
    }

    /// Where a path leads, links followed.
    pub(crate) fn resolve(&mut self, fact: &str, path: &str) -> Option<Utf8PathBuf> {
        let target = self.files.resolve(Utf8Path::new(path));
        self.take(fact, target).flatten()
    }

    /// The value of a parse, or a note.
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

    /// What reading told, or a note.
    pub(crate) fn answer<T>(&mut self, fact: &str, result: Result<T, FilesError>) -> Option<T> {
        self.take(fact, result)
    }

    fn take<T>(&mut self, fact: &str, result: Result<T, FilesError>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                let why = error
                    .not_told()
                    .map_or_else(|| format!("failed to {}", one_line(&error)), str::to_owned);
                self.unknown(fact, why);
                None
            }
        }
    }
}
