//! Whose machine is whose. A folder below the run folder stands for a machine; its file `owner`
//! is locked for as long as the bed that made it lives, which no reuse of a process id can fake.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::bed::Bed;

/// A machine's folder, claimed; dropping it lets the claim go, not the folder.
pub struct Claim {
    /// The folder.
    pub run: PathBuf,
    _owner: File,
}

/// Claims the name of a machine whose disk lies in `disk`.
pub fn take(bed: &Bed, name: &str, disk: &Path) -> Result<Claim> {
    let _one_at_a_time = lock(bed)?;
    let run = bed.run.join(name);
    if run.exists() {
        bail!("a machine `{name}` is there already; `vm clean` removes one that nobody owns");
    }
    fs::create_dir(&run).with_context(|| format!("cannot make {}", run.display()))?;
    fs::write(run.join("disk"), disk.to_string_lossy().as_bytes())
        .context("cannot say where its disk lies")?;
    let owner = File::create(run.join("owner")).context("cannot say whose machine it is")?;
    owner.lock().context("cannot say whose machine it is")?;
    Ok(Claim { run, _owner: owner })
}

/// Machines whose bed is gone: their names, and where their disks lie. Each is handed to
/// `remove` while nobody else can claim or remove one.
pub fn orphans(
    bed: &Bed,
    mut remove: impl FnMut(&str, &Path, Option<&Path>) -> Result<()>,
) -> Result<()> {
    let _one_at_a_time = lock(bed)?;
    for entry in fs::read_dir(&bed.run).context("cannot read the run folder")? {
        let run = entry.context("cannot read the run folder")?.path();
        if !run.is_dir() || owned(&run)? {
            continue;
        }
        let name = run
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let disk = fs::read_to_string(run.join("disk")).ok().map(PathBuf::from);
        remove(&name, &run, disk.as_deref())?;
    }
    Ok(())
}

fn owned(run: &Path) -> Result<bool> {
    let Ok(owner) = File::open(run.join("owner")) else {
        return Ok(false);
    };
    match owner.try_lock() {
        Ok(()) => Ok(false),
        Err(TryLockError::WouldBlock) => Ok(true),
        Err(TryLockError::Error(error)) => Err(error).context("cannot ask whose machine it is"),
    }
}

fn lock(bed: &Bed) -> Result<File> {
    fs::create_dir_all(&bed.run).with_context(|| format!("cannot make {}", bed.run.display()))?;
    let lock = File::create(bed.run.join(".lock")).context("cannot write the lock")?;
    lock.lock().context("cannot take the lock")?;
    Ok(lock)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_an_orphan_once_its_claim_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let bed = Bed {
            repo: dir.path().into(),
            cache: dir.path().into(),
            run: dir.path().join("run"),
        };
        let found = || {
            let mut names = Vec::new();
            orphans(&bed, |name, _, disk| {
                names.push((name.to_string(), disk.map(Path::to_path_buf)));
                Ok(())
            })
            .unwrap();
            names
        };
        let claim = take(&bed, "m", Path::new("/disk")).unwrap();
        assert!(take(&bed, "m", Path::new("/disk")).is_err());
        assert!(found().is_empty());
        drop(claim);
        assert_eq!(found(), [("m".to_string(), Some(PathBuf::from("/disk")))]);
    }
}
