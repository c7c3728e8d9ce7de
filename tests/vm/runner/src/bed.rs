//! Where the bed keeps things: the repository, the cache outside git, the run folder.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

/// Folders of one run of the bed.
#[derive(Clone, Debug)]
pub struct Bed {
    /// The repository's root.
    pub repo: PathBuf,
    /// What is slow to build, keyed by what it was made from. Not in git.
    pub cache: PathBuf,
    /// What belongs to machines that run now: namespaces, process ids.
    pub run: PathBuf,
}

impl Bed {
    /// The bed of the repository that `start` lies in.
    pub fn open(start: &Path, cache: Option<PathBuf>) -> Result<Bed> {
        let repo = start
            .ancestors()
            .find(|dir| dir.join("tests/vm/machines.toml").is_file())
            .with_context(|| format!("{} is not inside the repository", start.display()))?
            .to_path_buf();
        let cache = cache.unwrap_or_else(|| repo.join(".cache/vm"));
        fs::create_dir_all(cache.join("machines"))
            .with_context(|| format!("cannot make {}", cache.display()))?;
        let cache = cache
            .canonicalize()
            .context("cannot resolve the cache folder")?;
        let run = PathBuf::from("/run/gpu-bootstrap-vm");
        Ok(Bed { repo, cache, run })
    }

    /// A file or folder of tests/vm.
    pub fn here(&self, path: &str) -> PathBuf {
        self.repo.join("tests/vm").join(path)
    }

    /// The cached folder `kind` made from `recipe`, built now where it is missing or older than
    /// `max_age`. Two runs at once build it once.
    pub fn cached(
        &self,
        kind: &str,
        recipe: &str,
        max_age: Option<Duration>,
        build: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<PathBuf> {
        let lock_path = self.cache.join(format!("{kind}.lock"));
        let lock = File::create(&lock_path)
            .with_context(|| format!("cannot write {}", lock_path.display()))?;
        lock.lock()
            .with_context(|| format!("cannot lock {}", lock_path.display()))?;
        let path = self.cache.join(format!("{kind}-{}", key(recipe)));
        if fresh(&path, max_age) {
            return Ok(path);
        }
        let partial = path.with_extension("partial");
        for old in [&partial, &path] {
            remove_tree(old)?;
        }
        fs::create_dir_all(&partial)
            .with_context(|| format!("cannot make {}", partial.display()))?;
        build(&partial).with_context(|| format!("cannot build {kind}"))?;
        fs::write(partial.with_extension("recipe"), recipe).context("cannot note the recipe")?;
        fs::rename(&partial, &path).with_context(|| format!("cannot keep {}", path.display()))?;
        Ok(path)
    }
}

/// Removes a folder and all below it; a missing one is fine. It refuses to cross into a mount,
/// so that a mount left behind by a bug never empties the host.
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
    fn a_recipe_is_built_once_and_again_when_it_changes() {
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
        make("a", Some(Duration::ZERO));
        assert_eq!(built, 3);
    }

    #[test]
    fn a_failed_build_is_not_kept() {
        let dir = tempfile::tempdir().unwrap();
        let bed = bed(dir.path());
        assert!(bed.cached("root", "a", None, |_| bail!("no")).is_err());
        assert!(bed.cached("root", "a", None, |_| Ok(())).is_ok());
    }
}
