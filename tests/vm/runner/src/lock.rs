//! Locks that serialize concurrent runs. A waiting run prints the name of the owner.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Write};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::{apart, out};

/// Longer than any build of the harness.
const LIMIT: Duration = Duration::from_secs(2 * 3600);

/// A wait shorter than this is not reported.
const PATIENCE: Duration = Duration::from_secs(2);

/// Waits for the lock of a file and writes this process's name into it. `what` is the purpose of the lock.
pub fn take(path: &Path, what: &str) -> Result<File> {
    wait(path, what, LIMIT)
}

fn wait(path: &Path, what: &str, limit: Duration) -> Result<File> {
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
        if start.elapsed() > limit {
            bail!("{what} is still held by {owner}");
        }
        if !told && owner != name() && start.elapsed() > PATIENCE {
            out::say(format!("waiting for {owner}, which holds {what}"));
            told = true;
        }
        thread::sleep(Duration::from_millis(50));
    }
    file.set_len(0)
        .and_then(|()| (&file).write_all(name().as_bytes()))
        .with_context(|| format!("cannot write {}", path.display()))?;
    Ok(file)
}

/// Tries to lock an open file or directory; returns whether it succeeded.
pub fn try_take(file: &File) -> Result<bool> {
    match file.try_lock() {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error.into()),
    }
}

fn name() -> String {
    format!("process {}", apart::command())
}

/// The name that the owner wrote into the file. It is empty for a moment after locking.
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
    fn lock_contains_its_owner_and_is_passed_on() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let held = take(&path, "a thing").unwrap();
        let mut other = File::open(&path).unwrap();
        assert_eq!(owner(&mut other), name());
        assert!(!try_take(&other).unwrap());
        let waiting = thread::spawn(move || take(&path, "a thing").map(drop));
        let error = wait(&dir.path().join("lock"), "a thing", Duration::ZERO).unwrap_err();
        assert!(format!("{error:#}").contains("still held by process"));
        drop(held);
        waiting.join().unwrap().unwrap();
    }
}
