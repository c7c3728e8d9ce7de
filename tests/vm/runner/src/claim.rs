//! A claim: the resources that a bed owns on this host under one name. They are a run directory for
//! small files and short paths, a directory on the disk, and control groups for all processes.
//!
//! The run directory represents the claim. The bed that made it locks its file `owner` for as long
//! as it lives; unlike a process id, a lock cannot be reused by another process.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Error, Result, anyhow, bail};
use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};
use nix::sys::statvfs::statvfs;

use crate::bed::{Bed, remove_file, remove_tree};
use crate::group::Group;
use crate::{lock, loops, net, out, stop};

/// systemd-nspawn does not always remove its files here.
const NSPAWN: &str = "/run/systemd/nspawn";

/// In the run directory; whoever adds or removes a claim locks it.
const LIST: &str = ".lock";
const NAME_OF_LIST: &str = "the list of machines";

/// The free room on the disk, in bytes, without which no machine is made: what a machine writes there
/// if its changes do not fit into memory. On a full disk a server or a machine would end without a
/// word, because its log cannot be written.
const ROOM: u64 = 3 << 30;

/// A claimed name with its resources; dropping it removes all of them.
pub struct Claim {
    /// Its name, unique on this host.
    pub id: String,
    /// Its directory below the run directory.
    pub run: PathBuf,
    /// Its directory on the disk.
    pub dir: PathBuf,
    pub group: Group,
    _undo: stop::Guard,
}

impl Claim {
    /// The directory on the disk for `name` in this process.
    pub fn dir(cache: &Path, name: &str) -> PathBuf {
        cache.join("machines").join(id(name))
    }

    /// Claims `name`, and creates its directories and control groups.
    pub fn take(bed: &Bed, name: &str) -> Result<Claim> {
        let id = id(name);
        let dir = Claim::dir(&bed.cache, name);
        let group = Group::of(&id)?;
        let (run, owner) = own(bed, &id, &dir)?;
        let undo = {
            let (bed, id, run, dir) = (bed.clone(), id.clone(), run.clone(), dir.clone());
            move || {
                // The claim stays owned until this closure is dropped.
                let _ours = &owner;
                destroy(&id, &run, Some(&dir))?;
                let _turn = lock::take_to_undo(&bed.run.join(LIST), NAME_OF_LIST)?;
                remove_tree(&run)
            }
        };
        let undo = stop::guard(&id, undo);
        remove_tree(&dir)?;
        fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        enough(&dir, room(&dir)?)?;
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

/// The free room in bytes of the filesystem that a directory lies on.
fn room(dir: &Path) -> Result<u64> {
    let found =
        statvfs(dir).with_context(|| format!("cannot ask for the room of {}", dir.display()))?;
    Ok(found.blocks_available() * found.fragment_size())
}

fn enough(dir: &Path, room: u64) -> Result<()> {
    if room < ROOM {
        bail!(
            "{} MiB are free on the disk of {}, and a machine needs {}: make room there",
            room >> 20,
            dir.display(),
            ROOM >> 20
        );
    }
    Ok(())
}

/// A name that is unique among all beds: two of them may run the same case at the same time.
fn id(name: &str) -> String {
    format!("{name}-{}", std::process::id())
}

/// Removes what is left of beds that ended without cleaning up. If a part cannot be removed, the
/// rest is removed all the same, and the next run tries again.
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
        out::say(format!("removing the remains of {id}"));
        let disk = fs::read_to_string(run.join("disk")).ok().map(PathBuf::from);
        let gone = destroy(&id, &run, disk.as_deref()).and_then(|()| remove_tree(&run));
        results.push(gone.with_context(|| format!("{id} is not completely removed")));
    }
    all(results)
}

/// Removes directories on the disk without a claim: after a power loss of the host `/run` is empty.
fn orphans(bed: &Bed) -> Result<Vec<Result<()>>> {
    let mut results = Vec::new();
    let machines = bed.cache.join("machines");
    for entry in fs::read_dir(&machines).context("cannot read the cache")? {
        let disk = entry.context("cannot read the cache")?;
        if !bed.run.join(disk.file_name()).exists() {
            let disk = disk.path();
            out::say(format!("removing {}, which has no owner", disk.display()));
            results.push(remove_tree(&disk));
        }
    }
    Ok(results)
}

/// Removes everything of a claim but its run directory, which is needed to find the rest again.
fn destroy(id: &str, run: &Path, disk: Option<&Path>) -> Result<()> {
    let nspawn = Path::new(NSPAWN);
    let mut results = vec![
        Group::of(id).and_then(|group| group.destroy()),
        net::destroy(run),
        remove_tree(&nspawn.join("propagate").join(id)),
    ];
    if let Some(disk) = disk {
        results.push(forget_nspawn(&disk.join("root")));
        results.push(unmount(&disk.join("root")));
        // Without its directory the mount is gone from other namespaces, too, such as that of a machine which
        // is started meanwhile. The root of an emulated machine is no mount, and goes with the rest.
        match fs::remove_dir(disk.join("root")) {
            Err(error) if loops::is_used(disk)? => results.push(Err(error.into())),
            _ => {}
        }
        // A loop device disappears with its mount, and its file lies in the layer.
        results.push(loops::released(disk));
        results.push(unmount(&disk.join("layer")));
        // Removing the directories also detaches the mounts on them in other namespaces, such as
        // that of a QEMU that was started meanwhile: the kernel does this.
        results.push(remove_tree(disk));
    }
    all(results)
}

/// Removes the file that a systemd-nspawn which was killed leaves; it is named after the machine's root.
pub fn forget_nspawn(root: &Path) -> Result<()> {
    match fs::metadata(root) {
        Ok(root) => {
            let name = format!("locks/inode-{}:{}", root.dev(), root.ino());
            remove_file(&Path::new(NSPAWN).join(name))
        }
        // It was not made.
        Err(_) => Ok(()),
    }
}

/// Unmounts a machine's directory and all mounts below it.
fn unmount(folder: &Path) -> Result<()> {
    match umount2(folder, MntFlags::MNT_DETACH) {
        // Nothing is mounted there: the disk of an image, a layer on the disk, or a machine that
        // was not completely made.
        Ok(()) | Err(Errno::EINVAL | Errno::ENOENT) => Ok(()),
        Err(error) => bail!("cannot unmount {}: {error}", folder.display()),
    }
}

/// Joins many errors into one that names each.
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

/// Creates the run directory of a claim, with the lock that marks its owner.
fn own(bed: &Bed, id: &str, disk: &Path) -> Result<(PathBuf, File)> {
    let _turn = turn(bed)?;
    let run = bed.run.join(id);
    if run.exists() {
        bail!("`{id}` exists already; `vm clean` removes it if its owner is gone");
    }
    fs::create_dir(&run).with_context(|| format!("cannot make {}", run.display()))?;
    fs::write(run.join("disk"), disk.to_string_lossy().as_bytes())
        .context("cannot write where its disk lies")?;
    let owner = File::create(run.join("owner")).context("cannot create its owner file")?;
    owner.lock().context("cannot lock its owner file")?;
    Ok((run, owner))
}

fn owned(run: &Path) -> Result<bool> {
    let Ok(owner) = File::open(run.join("owner")) else {
        return Ok(false);
    };
    Ok(!lock::try_take(&owner).context("cannot test the lock of its owner file")?)
}

fn turn(bed: &Bed) -> Result<File> {
    fs::create_dir_all(&bed.run).with_context(|| format!("cannot make {}", bed.run.display()))?;
    lock::take(&bed.run.join(LIST), NAME_OF_LIST)
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
    fn no_machine_is_made_on_a_disk_that_is_nearly_full() {
        let dir = tempfile::tempdir().unwrap();
        enough(dir.path(), ROOM).unwrap();
        let error = enough(dir.path(), ROOM - 1).unwrap_err().to_string();
        assert!(error.starts_with("3071 MiB are free"), "{error}");
    }

    #[test]
    fn remains_of_an_ended_bed_are_removed() {
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
    fn a_directory_without_a_claim_is_removed() {
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
    fn one_part_that_cannot_be_removed_does_not_keep_the_others() {
        let dir = tempfile::tempdir().unwrap();
        let bed = bed(dir.path());
        let disk = dir.path().join("disk");
        fs::create_dir(&disk).unwrap();
        let (stuck, owner) = own(&bed, "a", &disk).unwrap();
        // A file that `unlink` cannot remove.
        fs::create_dir_all(stuck.join("netns/x")).unwrap();
        drop(owner);
        drop(own(&bed, "b", Path::new("/nothing/here")).unwrap());
        let text = format!("{:#}", clean_stale(&bed).unwrap_err());
        assert!(text.contains("a is not completely removed"), "{text}");
        assert!(stuck.exists(), "the next one has to find it");
        assert!(!disk.exists() && !bed.run.join("b").exists());
    }
}
