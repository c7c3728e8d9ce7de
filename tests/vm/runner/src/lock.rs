//! Locks by which beds that run at once take turns. Whoever has to wait says for whom.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Write};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::{out, stop};

/// Longer than anything takes that a bed builds.
const LIMIT: Duration = Duration::from_secs(2 * 3600);

/// Longer than another bed has the list, also one that removes what several left behind, and shorter than
/// a stopped run may take.
const LIMIT_OF_UNDOING: Duration = Duration::from_secs(60);

/// How long somebody may have their turn before it is worth a word.
const PATIENCE: Duration = Duration::from_secs(2);

/// Waits for the lock of a file, which then names this process; `what` is what the lock is for.
pub fn take(path: &Path, what: &str) -> Result<File> {
    wait(path, what, LIMIT, stop::stopping)
}

/// The same on the way out, where a signal is no reason to leave something behind.
pub fn take_to_undo(path: &Path, what: &str) -> Result<File> {
    wait(path, what, LIMIT_OF_UNDOING, || false)
}

fn wait(path: &Path, what: &str, limit: Duration, stopped: fn() -> bool) -> Result<File> {
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .with_context(|| format!("cannot open {}", path.display()))?;
    let start = Instant::now();
    let mut told = false;
    while !try_take(&file).with_context(|| format!("cannot lock {}", path.display()))? {
        let owner = owner(&mut file);
        if stopped() {
            bail!("the run was stopped while it waited for {what}");
        }
        if start.elapsed() > limit {
            bail!("{what} is still held by {owner}");
        }
        let mine = owner == name(std::process::id());
        if !told && !mine && start.elapsed() > PATIENCE {
            out::say(format!("waiting for {owner}, which has {what}"));
            told = true;
        }
        thread::sleep(Duration::from_millis(50));
    }
    file.set_len(0)
        .and_then(|()| (&file).write_all(name(std::process::id()).as_bytes()))
        .with_context(|| format!("cannot write {}", path.display()))?;
    Ok(file)
}

/// Whether the lock of an open file or folder could be taken at once.
pub fn try_take(file: &File) -> Result<bool> {
    match file.try_lock() {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error.into()),
    }
}

fn name(process: u32) -> String {
    format!("process {process}")
}

/// Who wrote its name into the file; nobody has yet for a moment.
fn owner(file: &mut File) -> String {
    let mut text = String::new();
    match std::io::Seek::rewind(file).and_then(|()| file.read_to_string(&mut text)) {
        Ok(count) if count > 0 => text,
        _ => "another run".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_names_who_holds_it_and_is_handed_on() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let held = take(&path, "a thing").unwrap();
        let mut other = File::open(&path).unwrap();
        assert_eq!(owner(&mut other), name(std::process::id()));
        assert!(!try_take(&other).unwrap());
        let waiting = thread::spawn(move || take(&path, "a thing").map(drop));
        drop(held);
        waiting.join().unwrap().unwrap();
    }

    #[test]
    fn a_run_that_was_stopped_waits_for_nothing_but_its_undoing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let held = take(&path, "a thing").unwrap();
        let error = wait(&path, "a thing", LIMIT, || true).unwrap_err();
        assert!(format!("{error:#}").contains("stopped while it waited for a thing"));
        let error = wait(&path, "a thing", Duration::ZERO, || false).unwrap_err();
        assert!(format!("{error:#}").contains("still held by process"));
        let waiting = thread::spawn(move || take_to_undo(&path, "a thing").map(drop));
        drop(held);
        waiting.join().unwrap().unwrap();
    }
}
