//! What a bed holds on this host under one name, and whose it is: a folder for what is small or has
//! to have a short path, a folder on the disk, and control groups for all processes.
//!
//! The first folder stands for the claim; its file `owner` is locked for as long as the bed that
//! made it lives, which no reuse of a process id can fake.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Error, Result, anyhow, bail};
use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};

use crate::bed::{Bed, remove_tree};
use crate::group::Group;
use crate::{lock, net, out, stop};

/// Where systemd-nspawn keeps what it does not always take away.
const NSPAWN: &str = "/run/systemd/nspawn";

/// In the run folder, locked by whoever adds a claim or takes one away.
const LIST: &str = ".lock";
const NAME_OF_LIST: &str = "the list of machines";

/// A name that is ours, and what it stands for; dropping it removes all of that.
pub struct Claim {
    /// Its name among all on this host.
    pub id: String,
    /// The small folder, below the run folder.
    pub run: PathBuf,
    /// The folder on the disk.
    pub dir: PathBuf,
    pub group: Group,
    _undo: stop::Guard,
}

impl Claim {
    /// The folder on the disk that goes with `name` in this process.
    pub fn dir(cache: &Path, name: &str) -> PathBuf {
        cache.join("machines").join(id(name))
    }

    /// Claims `name`, and makes its folders and groups.
    pub fn take(bed: &Bed, name: &str) -> Result<Claim> {
        let id = id(name);
        let dir = Claim::dir(&bed.cache, name);
        let group = Group::of(&id)?;
        let (run, owner) = own(bed, &id, &dir)?;
        let undo = {
            let (bed, id, run, dir) = (bed.clone(), id.clone(), run.clone(), dir.clone());
            move || {
                // Held until this closure goes.
                let _ours = &owner;
                destroy(&id, &run, Some(&dir))?;
                let _turn = lock::take_to_undo(&bed.run.join(LIST), NAME_OF_LIST)?;
                remove_tree(&run)
            }
        };
        let undo = stop::guard(&id, undo);
        remove_tree(&dir)?;
        fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        group.create()?;
        Ok(Claim {
            id,
            run,
            dir,
            group,
            _undo: undo,
        })
    }
}

/// A name among those of all beds: two may run the same case at once.
fn id(name: &str) -> String {
    format!("{name}-{}", std::process::id())
}

/// Removes what beds left behind that were ended without a chance to clean up. Where something
/// stays, the rest is removed all the same, and the next one tries again.
pub fn clean_stale(bed: &Bed) -> Result<()> {
    let _turn = turn(bed)?;
    let mut results = orphans(bed)?;
    for entry in fs::read_dir(&bed.run).context("cannot read the run folder")? {
        let run = entry.context("cannot read the run folder")?.path();
        if !run.is_dir() || owned(&run)? {
            continue;
        }
        let id = run
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        out::say(format!("removing what is left of {id}"));
        let disk = fs::read_to_string(run.join("disk")).ok().map(PathBuf::from);
        let gone = destroy(&id, &run, disk.as_deref()).and_then(|()| remove_tree(&run));
        results.push(gone.with_context(|| format!("{id} is not all gone")));
    }
    all(results)
}

/// Removes folders on the disk that nobody claims: a host that lost its power has nothing left in `/run`.
fn orphans(bed: &Bed) -> Result<Vec<Result<()>>> {
    let mut results = Vec::new();
    let machines = bed.cache.join("machines");
    for entry in fs::read_dir(&machines).context("cannot read the cache")? {
        let disk = entry.context("cannot read the cache")?;
        if !bed.run.join(disk.file_name()).exists() {
            let disk = disk.path();
            out::say(format!("removing {}, which nobody claims", disk.display()));
            results.push(remove_tree(&disk));
        }
    }
    Ok(results)
}

/// Takes away everything of a claim but its folder, without which nobody would find the rest.
fn destroy(id: &str, run: &Path, disk: Option<&Path>) -> Result<()> {
    let nspawn = Path::new(NSPAWN);
    let mut results = vec![
        Group::of(id).and_then(|group| group.destroy()),
        net::destroy(run),
        remove_tree(&nspawn.join("propagate").join(id)),
    ];
    if let Some(disk) = disk {
        // A systemd-nspawn that was killed leaves it, and it is named after the machine's root.
        if let Ok(root) = fs::metadata(disk.join("root")) {
            let lock = nspawn.join(format!("locks/inode-{}:{}", root.dev(), root.ino()));
            results.push(remove_file(&lock));
        }
        results.push(unmount(&disk.join("root")));
        results.push(unmount(&disk.join("layer")));
        // With the folders go the mounts on them in other namespaces, such as that of a QEMU that was
        // started meanwhile: the kernel detaches them.
        results.push(remove_tree(disk));
    }
    all(results)
}

/// Takes away what is mounted at a machine's folder, and all that is mounted in it.
fn unmount(folder: &Path) -> Result<()> {
    match umount2(folder, MntFlags::MNT_DETACH) {
        // Nothing is mounted there: an image's disk, a layer on the disk, or a machine that stopped
        // half-way through its making.
        Ok(()) | Err(Errno::EINVAL | Errno::ENOENT) => Ok(()),
        Err(error) => bail!("cannot unmount {}: {error}", folder.display()),
    }
}

/// One error of many, which names each.
fn all(results: Vec<Result<()>>) -> Result<()> {
    let errors: Vec<Error> = results.into_iter().filter_map(Result::err).collect();
    match errors.is_empty() {
        true => Ok(()),
        false => {
            let texts: Vec<String> = errors.iter().map(|error| format!("{error:#}")).collect();
            Err(anyhow!(texts.join("; ")))
        }
    }
}

/// Makes the folder that stands for a claim; with it, the lock that says whose it is.
fn own(bed: &Bed, id: &str, disk: &Path) -> Result<(PathBuf, File)> {
    let _turn = turn(bed)?;
    let run = bed.run.join(id);
    if run.exists() {
        bail!("`{id}` is there already; `vm clean` removes one that nobody owns");
    }
    fs::create_dir(&run).with_context(|| format!("cannot make {}", run.display()))?;
    fs::write(run.join("disk"), disk.to_string_lossy().as_bytes())
        .context("cannot say where its disk lies")?;
    let owner = File::create(run.join("owner")).context("cannot say whose it is")?;
    owner.lock().context("cannot say whose it is")?;
    Ok((run, owner))
}

fn owned(run: &Path) -> Result<bool> {
    let Ok(owner) = File::open(run.join("owner")) else {
        return Ok(false);
    };
    Ok(!lock::try_take(&owner).context("cannot ask whose it is")?)
}

fn turn(bed: &Bed) -> Result<File> {
    fs::create_dir_all(&bed.run).with_context(|| format!("cannot make {}", bed.run.display()))?;
    lock::take(&bed.run.join(LIST), NAME_OF_LIST)
}

fn remove_file(file: &Path) -> Result<()> {
    match fs::remove_file(file) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", file.display()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bed(dir: &Path) -> Bed {
        fs::create_dir_all(dir.join("tests/vm")).unwrap();
        fs::write(dir.join("tests/vm/machines.toml"), "").unwrap();
        let mut bed = Bed::open(dir, None).unwrap();
        bed.run = dir.join("run");
        bed
    }

    #[test]
    fn what_is_left_of_a_bed_that_is_gone_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let bed = bed(dir.path());
        let disk = dir.path().join("disk");
        fs::create_dir(&disk).unwrap();
        let (run, owner) = own(&bed, "m", &disk).unwrap();
        assert!(own(&bed, "m", &disk).is_err());
        clean_stale(&bed).unwrap();
        assert!(run.exists() && disk.exists(), "it has an owner");
        drop(owner);
        clean_stale(&bed).unwrap();
        assert!(!run.exists() && !disk.exists());
    }

    #[test]
    fn a_folder_that_nobody_claims_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let bed = bed(dir.path());
        let [mine, orphan] = ["a-1", "b-1"].map(|id| bed.cache.join("machines").join(id));
        fs::create_dir_all(mine.join("layer")).unwrap();
        fs::create_dir_all(orphan.join("layer")).unwrap();
        let (_run, _owner) = own(&bed, "a-1", &mine).unwrap();
        clean_stale(&bed).unwrap();
        assert!(mine.exists() && !orphan.exists());
    }

    #[test]
    fn one_part_that_stays_keeps_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let bed = bed(dir.path());
        let disk = dir.path().join("disk");
        fs::create_dir(&disk).unwrap();
        let (stuck, owner) = own(&bed, "a", &disk).unwrap();
        // A file that no `unlink` takes away.
        fs::create_dir_all(stuck.join("netns/x")).unwrap();
        drop(owner);
        drop(own(&bed, "b", Path::new("/nothing/here")).unwrap());
        let text = format!("{:#}", clean_stale(&bed).unwrap_err());
        assert!(text.contains("a is not all gone"), "{text}");
        assert!(stuck.exists(), "the next one has to find it");
        assert!(!disk.exists() && !bed.run.join("b").exists());
    }
}
