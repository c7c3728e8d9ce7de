//! The harness's directories: the repository, the cache outside git, the run directory.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

use crate::{apart, lock};

/// Directories of runs in the cache, each named after the process ID of its command.
const RUNS: &str = "runs";

/// A cache entry that was not rebuilt for this long is removed when another entry of its kind is built.
const WEEK: Duration = Duration::from_secs(7 * 24 * 3600);

/// A cache entry that was unused for this long is removed when a run starts, if another entry of its kind was used
/// since.
const UNUSED: Duration = Duration::from_secs(3 * 24 * 3600);

/// The directories of one run of the harness.
#[derive(Clone, Debug)]
pub struct Bed {
    /// The repository's root.
    pub repo: PathBuf,
    /// Cache of slow builds, keyed by a digest of their recipe. Not in git.
    pub cache: PathBuf,
    /// The small files and sockets of this run's machines.
    pub run: PathBuf,
    /// The disks of this run's machines.
    pub machines: PathBuf,
    /// The programs compiled from the repository, copied when this run began, because another run may compile them
    /// again in the meantime.
    pub programs: PathBuf,
    /// The cache entries that this process uses; each is locked.
    held: Arc<Mutex<Vec<File>>>,
}

impl Bed {
    /// Opens the harness for the repository that contains `start`.
    pub fn open(start: &Path, cache: Option<PathBuf>) -> Result<Bed> {
        let repo = start
            .ancestors()
            .find(|dir| dir.join("tests/vm/machines.toml").is_file())
            .with_context(|| format!("{} is not inside the repository", start.display()))?
            .to_path_buf();
        let cache = cache.unwrap_or_else(|| repo.join(".cache/vm"));
        fs::create_dir_all(cache.join(RUNS))
            .with_context(|| format!("cannot make {}", cache.display()))?;
        let cache = cache
            .canonicalize()
            .context("cannot resolve the cache directory")?;
        let machines = cache.join(RUNS).join(apart::command().to_string());
        Ok(Bed {
            repo,
            cache,
            run: PathBuf::from(apart::RUN),
            programs: machines.join("programs"),
            machines,
            held: Arc::default(),
        })
    }

    /// The directories of all runs.
    pub fn runs(&self) -> PathBuf {
        self.cache.join(RUNS)
    }

    /// A file or directory of tests/vm.
    pub fn here(&self, path: &str) -> PathBuf {
        self.repo.join("tests/vm").join(path)
    }

    /// Returns the cached directory `kind` made from `recipe`. Builds it if it is missing or older than `max_age`. It
    /// does not change while this process lives, because other runs that use it do not replace it.
    pub fn cached(
        &self,
        kind: &str,
        recipe: &str,
        max_age: Option<Duration>,
        build: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<PathBuf> {
        let _turn = lock::take(&self.cache.join(format!("{kind}.lock")), kind)?;
        let path = self.cache.join(format!("{kind}-{}", key(recipe)));
        let old = match open(&path)? {
            Some(entry) if fresh(&path, max_age) || !lock::try_take(&entry)? => {
                return self.hold(path, entry);
            }
            old => old,
        };
        let partial = self.cache.join(format!("{kind}-{}.partial", key(recipe)));
        remove_tree(&partial)?;
        fs::create_dir_all(&partial)
            .with_context(|| format!("cannot make {}", partial.display()))?;
        build(&partial).with_context(|| format!("cannot build {kind}"))?;
        fs::write(recipe_of(&path), recipe).context("cannot write the recipe")?;
        remove_tree(&path)?;
        drop(old);
        fs::rename(&partial, &path).with_context(|| format!("cannot keep {}", path.display()))?;
        self.discard(kind, |entry| entry != path && !fresh(entry, Some(WEEK)))?;
        let entry = open(&path)?.with_context(|| format!("{} is gone", path.display()))?;
        self.hold(path, entry)
    }

    /// Removes entries that were unused for days: after a recipe changes, its old entries are never used again. The
    /// last one of each kind is kept, because it may be the current one. Entries that another run uses or builds are
    /// also kept.
    pub fn prune(&self) -> Result<()> {
        for kind in self.kinds()? {
            let lock = self.cache.join(format!("{kind}.lock"));
            let lock =
                File::open(&lock).with_context(|| format!("cannot open {}", lock.display()))?;
            if !lock::try_take(&lock)? {
                continue;
            }
            let mut used = Vec::new();
            for (path, rest) in self.named(&kind)? {
                if is_key(&rest) {
                    used.push((last_use(&path)?, path));
                } else if let Some(key) = rest.strip_suffix(".recipe")
                    && is_key(key)
                    && !self.cache.join(format!("{kind}-{key}")).exists()
                {
                    remove_file(&path)?;
                }
            }
            used.sort();
            used.pop();
            let old: Vec<PathBuf> = (used.into_iter())
                .filter(|(time, _)| time.elapsed().is_ok_and(|unused| unused > UNUSED))
                .map(|(_, path)| path)
                .collect();
            self.discard(&kind, |entry| old.iter().any(|path| path == entry))?;
        }
        Ok(())
    }

    /// The kinds of entries: each has a lock.
    fn kinds(&self) -> Result<Vec<String>> {
        let mut kinds = Vec::new();
        for entry in fs::read_dir(&self.cache).context("cannot read the cache")? {
            let name = entry.context("cannot read the cache")?.file_name();
            kinds.extend(
                name.to_string_lossy()
                    .strip_suffix(".lock")
                    .map(String::from),
            );
        }
        Ok(kinds)
    }

    /// The entries of a kind, with the rest of their names.
    fn named(&self, kind: &str) -> Result<Vec<(PathBuf, String)>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.cache).context("cannot read the cache")? {
            let path = entry.context("cannot read the cache")?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let rest = (name.strip_prefix(kind)).and_then(|rest| rest.strip_prefix('-'));
            if let Some(rest) = rest.map(String::from) {
                found.push((path, rest));
            }
        }
        Ok(found)
    }

    /// Removes every unused entry of `kind`, except `keep`.
    pub fn discard_others(&self, kind: &str, keep: &Path) -> Result<()> {
        let _turn = lock::take(&self.cache.join(format!("{kind}.lock")), kind)?;
        self.discard(kind, |entry| entry != keep)
    }

    /// Removes the outdated, unused entries of `kind`, and those that were never completed. The caller holds the lock
    /// of that kind.
    fn discard(&self, kind: &str, outdated: impl Fn(&Path) -> bool) -> Result<()> {
        for (path, key) in self.named(kind)? {
            if key.strip_suffix(".partial").is_some_and(is_key) {
                remove_tree(&path)?;
            }
            if !is_key(&key) || !outdated(&path) {
                continue;
            }
            if let Some(entry) = open(&path)?
                && lock::try_take(&entry)?
            {
                remove_tree(&path)?;
                remove_file(&recipe_of(&path))?;
            }
        }
        Ok(())
    }

    /// Locks an entry for the lifetime of this process, and records its use.
    fn hold(&self, path: PathBuf, entry: File) -> Result<PathBuf> {
        File::options()
            .append(true)
            .create(true)
            .open(recipe_of(&path))
            .and_then(|recipe| recipe.set_modified(SystemTime::now()))
            .context("cannot record the use of an entry")?;
        entry
            .lock_shared()
            .with_context(|| format!("cannot lock {}", path.display()))?;
        self.held
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(entry);
        Ok(path)
    }
}

/// When an entry was last used. The timestamp of the entry itself is its creation time.
fn last_use(path: &Path) -> Result<SystemTime> {
    let recipe = fs::metadata(recipe_of(path)).and_then(|recipe| recipe.modified());
    match recipe {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(SystemTime::UNIX_EPOCH),
        time => time.with_context(|| format!("cannot read the last use of {}", path.display())),
    }
}

/// Removes a file if it exists.
pub fn remove_file(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

/// A human-readable file with the recipe of an entry. Its timestamp is the last use of the entry.
fn recipe_of(path: &Path) -> PathBuf {
    PathBuf::from(format!("{}.recipe", path.display()))
}

/// Opens a directory if it exists.
pub fn open(path: &Path) -> Result<Option<File>> {
    match File::open(path) {
        Ok(entry) => Ok(Some(entry)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot open {}", path.display())),
    }
}

/// Removes a directory with its content. A missing one is fine. It does not cross a mount point, so that a leaked mount
/// never deletes files of the host.
pub fn remove_tree(path: &Path) -> Result<()> {
    if !path.exists() {
        return Ok(());
    }
    let mounts = fs::read_to_string("/proc/self/mountinfo").context("cannot read the mounts")?;
    let inside = path.to_string_lossy().into_owned();
    let mounted = |line: &str| {
        line.split(' ')
            .nth(4)
            .is_some_and(|at| at == inside || at.starts_with(&format!("{inside}/")))
    };
    if let Some(line) = mounts.lines().find(|line| mounted(line)) {
        bail!(
            "{} is not removed: something is mounted in it: {line}",
            path.display()
        );
    }
    fs::remove_dir_all(path).with_context(|| format!("cannot remove {}", path.display()))
}

fn key(recipe: &str) -> String {
    Sha256::digest(recipe.as_bytes())
        .iter()
        .take(8)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

fn is_key(text: &str) -> bool {
    text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn fresh(path: &Path, max_age: Option<Duration>) -> bool {
    let Ok(made) = fs::metadata(path).and_then(|meta| meta.modified()) else {
        return false;
    };
    max_age.is_none_or(|limit| {
        SystemTime::now()
            .duration_since(made)
            .is_ok_and(|age| age < limit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bed(dir: &Path) -> Bed {
        fs::create_dir_all(dir.join("tests/vm")).unwrap();
        fs::write(dir.join("tests/vm/machines.toml"), "").unwrap();
        Bed::open(dir, None).unwrap()
    }

    #[test]
    fn entry_is_rebuilt_when_recipe_changes() {
        let dir = tempfile::tempdir().unwrap();
        let bed = bed(dir.path());
        let mut built = 0;
        let mut make = |recipe: &str, age| {
            bed.cached("root", recipe, age, |dir| {
                built += 1;
                Ok(fs::write(dir.join("x"), "x")?)
            })
            .unwrap()
        };
        let first = make("a", None);
        assert_eq!(make("a", None), first);
        assert_ne!(make("b", None), first);
        assert_eq!(built, 2);
    }

    #[test]
    fn entry_used_by_another_run_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let old = |bed: &Bed, text: &str| {
            let build = |dir: &Path| Ok(fs::write(dir.join("x"), text)?);
            let path = bed
                .cached("root", "a", Some(Duration::ZERO), build)
                .unwrap();
            fs::read_to_string(path.join("x")).unwrap()
        };
        let first = bed(dir.path());
        assert_eq!(old(&first, "1"), "1");
        assert_eq!(old(&bed(dir.path()), "2"), "1", "it is in use");
        drop(first);
        assert_eq!(old(&bed(dir.path()), "3"), "3");
    }

    #[test]
    fn expired_entry_is_kept_until_rebuilt() {
        let dir = tempfile::tempdir().unwrap();
        let path = bed(dir.path())
            .cached("root", "a", None, |_| Ok(()))
            .unwrap();
        let failed = bed(dir.path()).cached("root", "a", Some(Duration::ZERO), |_| bail!("no"));
        assert!(failed.is_err() && path.exists());
    }

    #[test]
    fn older_unused_entries_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let (first, second) = (bed(dir.path()), bed(dir.path()));
        let make = |bed: &Bed, kind: &str, recipe: &str| {
            bed.cached(kind, recipe, None, |_| Ok(())).unwrap()
        };
        let used = make(&first, "disk", "a");
        let unused = make(&second, "disk", "b");
        let other = make(&second, "disk-of-another", "b");
        drop(second);
        let third = bed(dir.path());
        let newest = make(&third, "disk", "c");
        third.discard_others("disk", &newest).unwrap();
        assert!(newest.exists() && used.exists() && other.exists() && !unused.exists());
        assert!(!recipe_of(&unused).exists());
    }

    #[test]
    fn week_old_entry_is_removed_after_build() {
        let dir = tempfile::tempdir().unwrap();
        let make = |recipe: &str| {
            bed(dir.path())
                .cached("root", recipe, None, |_| Ok(()))
                .unwrap()
        };
        let (old, young) = (make("a"), make("b"));
        let week = SystemTime::now() - WEEK - Duration::from_secs(1);
        File::open(&old).unwrap().set_modified(week).unwrap();
        let broken_off = PathBuf::from(format!("{}.partial", young.display()));
        fs::create_dir(&broken_off).unwrap();
        assert_eq!(make("b"), young);
        assert!(old.exists(), "nothing was built");
        make("c");
        assert!(young.exists() && !old.exists() && !broken_off.exists());
    }

    #[test]
    fn unused_entries_are_removed_except_last_of_kind() {
        let dir = tempfile::tempdir().unwrap();
        let make = |bed: &Bed, kind: &str, recipe: &str| {
            bed.cached(kind, recipe, None, |_| Ok(())).unwrap()
        };
        let unused = |path: &Path| {
            let time = SystemTime::now() - UNUSED - Duration::from_secs(1);
            let recipe = File::options().append(true).open(recipe_of(path)).unwrap();
            recipe.set_modified(time).unwrap();
        };
        let first = bed(dir.path());
        let [old, young, only] = [("root", "a"), ("root", "b"), ("qemu", "a")]
            .map(|(kind, recipe)| make(&first, kind, recipe));
        drop(first);
        let other = bed(dir.path());
        let held = make(&other, "root", "c");
        for path in [&old, &held, &only] {
            unused(path);
        }
        let orphan = dir.path().join(".cache/vm/root-0123456789abcdef.recipe");
        fs::write(&orphan, "").unwrap();
        bed(dir.path()).prune().unwrap();
        assert!(!old.exists() && !recipe_of(&old).exists() && !orphan.exists());
        assert!(young.exists() && held.exists() && only.exists());
        drop(other);
        let building = lock::take(&dir.path().join(".cache/vm/root.lock"), "root").unwrap();
        bed(dir.path()).prune().unwrap();
        assert!(held.exists(), "an entry of this kind is being built");
        drop(building);
        bed(dir.path()).prune().unwrap();
        assert!(!held.exists() && young.exists());
    }

    #[test]
    fn failed_build_leaves_no_entry() {
        let dir = tempfile::tempdir().unwrap();
        let bed = bed(dir.path());
        assert!(bed.cached("root", "a", None, |_| bail!("no")).is_err());
        assert!(bed.cached("root", "a", None, |_| Ok(())).is_ok());
    }
}
