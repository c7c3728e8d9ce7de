//! Reads the journal, and appends records to it. Each record is synced.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use camino::Utf8Path;
use serde_json::Value;

use super::{
    History, JournalError, JournalLine, Receipt, Record, SCHEMA, credentials_path, fold, parse,
    path, receipt_path,
};
use crate::{
    host::{FilesError, Host},
    model::{
        paths::STATE,
        secret::{Secret, Secrets},
    },
};

/// The journal, opened for a run. Clones share it.
#[derive(Clone)]
pub struct Journal {
    host: Host,
    run: String,
    secrets: Secrets,
    state: Arc<Mutex<StoreState>>,
}

/// The journal that was parsed last. One `check` needs it in several places.
static PARSED: LastParsed = LastParsed(Mutex::new(None));

struct LastParsed(Mutex<Option<(Vec<u8>, Arc<History>)>>);

impl LastParsed {
    /// Parses the content. If it is the same as last time, returns the last result.
    fn parse(&self, path: &Utf8Path, content: Vec<u8>) -> Result<Arc<History>, JournalError> {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, history)) = last.as_ref().filter(|(parsed, _)| *parsed == content) {
            return Ok(Arc::clone(history));
        }
        let history = Arc::new(parse(path, &content)?);
        *last = Some((content, Arc::clone(&history)));
        Ok(history)
    }
}

struct StoreState {
    lines: Vec<JournalLine>,
    /// Whether the last line lacks a line feed.
    unended: bool,
    /// The error if the last record could not be written. The file may contain a part of that record, and the next record would
    /// have the same number, so no more records are appended. The next run reads the file again.
    broken: Option<Arc<FilesError>>,
}

impl Journal {
    pub(crate) fn host(&self) -> &Host {
        &self.host
    }

    /// Reads the journal without changing it. If the file does not exist, the history is empty.
    ///
    /// # Errors
    /// See [`JournalError`].
    pub fn read(host: &Host) -> Result<Arc<History>, JournalError> {
        let path = path();
        let content = host.files.read(&path)?.unwrap_or_default();
        let history = PARSED.parse(&path, content)?;
        refuse_lost(host, &history)?;
        Ok(history)
    }

    /// Opens the journal for a run, and hides these secrets in its records. The first record creates the file. A truncated last
    /// line is removed, so that the next record starts on a new line. [`History::torn`] describes the removed line.
    ///
    /// # Errors
    /// See [`JournalError`].
    pub fn open(
        host: &Host,
        run: &str,
        secrets: &Secrets,
    ) -> Result<(Self, History), JournalError> {
        let path = path();
        let content = host.files.read(&path)?.unwrap_or_default();
        let history = parse(&path, &content)?;
        refuse_lost(host, &history)?;
        if history.torn.is_some() {
            host.files.write(&path, &content[..history.whole], 0o600)?;
        }
        let whole = &content[..history.whole];
        let journal = Self {
            host: host.clone(),
            run: run.to_owned(),
            secrets: secrets.clone(),
            state: Arc::new(Mutex::new(StoreState {
                lines: history.lines.clone(),
                unended: !whole.is_empty() && !whole.ends_with(b"\n"),
                broken: None,
            })),
        };
        Ok((journal, history))
    }

    /// Writes and syncs a record, and returns its sequence number. Secrets in its free text are hidden.
    ///
    /// # Errors
    /// See [`JournalError`]. The caller must then not make the change. If the file could not be written, this journal rejects
    /// all further records.
    pub fn append(&self, record: Record) -> Result<u64, JournalError> {
        record.refuse_secret_names(&self.secrets)?;
        let record = record.without_secrets(&self.secrets)?;
        let mut state = self.state();
        if let Some(error) = &state.broken {
            return Err(JournalError::Broken(Arc::clone(error)));
        }
        let line = JournalLine {
            schema: SCHEMA,
            seq: state.lines.len() as u64,
            at: self.host.clock.now(),
            run: self.run.clone(),
            record,
        };
        let mut text = serde_json::to_string(&line).map_err(JournalError::Encode)?;
        text.push('\n');
        if state.unended {
            text.insert(0, '\n');
        }
        if state.lines.is_empty() {
            let directory = Utf8Path::new(STATE);
            self.host.files.create_directory(directory, 0o700)?;
        }
        if let Err(error) = self.host.files.append(&path(), text.as_bytes(), 0o600) {
            let error = Arc::new(error);
            state.broken = Some(Arc::clone(&error));
            return Err(JournalError::Broken(error));
        }
        state.unended = false;
        let seq = line.seq;
        state.lines.push(line);
        Ok(seq)
    }

    /// The receipt with the applied changes.
    pub fn receipt(&self) -> Receipt {
        fold(&self.state().lines)
    }

    /// Writes the receipt next to the journal in human-readable form. gpu-bootstrap reads it only to detect a lost journal.
    ///
    /// # Errors
    /// See [`JournalError`].
    pub fn write_receipt(&self) -> Result<(), JournalError> {
        let text = serde_json::to_string_pretty(&self.receipt()).map_err(JournalError::Encode)?;
        let text = text + "\n";
        self.host
            .files
            .write(&receipt_path(), text.as_bytes(), 0o600)?;
        Ok(())
    }

    /// Stores the credentials that a run needs after a reboot and that must not be in a record.
    ///
    /// # Errors
    /// See [`JournalError`].
    pub fn keep_credentials(&self, credentials: &[Secret]) -> Result<(), JournalError> {
        let files = &self.host.files;
        if credentials.is_empty() {
            if files.stat(&credentials_path())?.is_some() {
                files.remove(&credentials_path())?;
            }
            return Ok(());
        }
        let plain: Vec<&str> = credentials.iter().map(Secret::expose).collect();
        let text = serde_json::to_string(&plain).map_err(JournalError::Encode)?;
        files.create_directory(Utf8Path::new(STATE), 0o700)?;
        files.write(&credentials_path(), text.as_bytes(), 0o600)?;
        Ok(())
    }

    /// Reads the credentials that [`Journal::keep_credentials`] stored.
    ///
    /// # Errors
    /// See [`JournalError`].
    pub fn credentials(host: &Host) -> Result<Vec<Secret>, JournalError> {
        match host.files.read_text(&credentials_path())? {
            Some(text) => serde_json::from_str(&text).map_err(|_| JournalError::Credentials),
            None => Ok(Vec::new()),
        }
    }

    fn state(&self) -> MutexGuard<'_, StoreState> {
        // After a panic in another thread the records are still complete, because they are added last.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Rejects a journal without records if its receipt lists applied changes or is unreadable. Otherwise the machine would seem
/// unmodified. If the state directory contains a file such as `journal.jsonl.damaged`, the administrator has moved the journal
/// aside, so its absence is accepted.
fn refuse_lost(host: &Host, history: &History) -> Result<(), JournalError> {
    if !history.lines.is_empty() {
        return Ok(());
    }
    let Some(text) = host.files.read(&receipt_path())? else {
        return Ok(());
    };
    let receipt: Value = serde_json::from_slice(&text).unwrap_or_default();
    let nothing_applied = receipt["applied"].as_array().is_some_and(Vec::is_empty);
    let path = path();
    let is_aside = |name: &String| {
        let rest = path
            .file_name()
            .and_then(|journal| name.strip_prefix(journal));
        rest.is_some_and(|rest| !rest.is_empty())
    };
    if nothing_applied || host.files.list(Utf8Path::new(STATE))?.iter().any(is_aside) {
        return Ok(());
    }
    Err(JournalError::Lost { path })
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::LastParsed;

    #[test]
    fn an_unchanged_journal_is_parsed_once() {
        let parsed = LastParsed(Mutex::new(None));
        let parse = |content: &str| parsed.parse("/journal.jsonl".into(), content.into());
        let first = parse("").unwrap();
        assert!(Arc::ptr_eq(&first, &parse("").unwrap()));
        let torn = parse("{").unwrap();
        assert!(torn.torn.is_some());
        assert!(parse("[]\n").is_err());
        assert!(Arc::ptr_eq(&torn, &parse("{").unwrap()));
    }
}
