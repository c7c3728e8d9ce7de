//! A machine in memory of which only some files are known, for example from `lspci` output. Reading
//! any other file returns an error with the reason. Commands and changes are not possible.

use std::{collections::BTreeMap, ops::Bound};

use camino::{Utf8Path, Utf8PathBuf};

use super::files::FreeSpace;
use super::read_only;
use super::{FileKind, FilesError, Host, ReadFiles, Stat};

/// The information about a path.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Entry {
    File(Vec<u8>),
    Directory,
    Link(Utf8PathBuf),
    /// Unknown whether it exists.
    NotReported(&'static str),
}

/// Files in memory. An added directory is complete: paths below it that were not added do not
/// exist.
#[derive(Debug, Clone)]
pub struct Tree {
    entries: BTreeMap<Utf8PathBuf, Entry>,
    why: &'static str,
}

impl Tree {
    /// Creates a machine without known files. `why` is the reason other files are unknown.
    pub fn new(why: &'static str) -> Self {
        Self {
            entries: BTreeMap::new(),
            why,
        }
    }

    /// Adds a directory, which is then completely known.
    pub fn directory(&mut self, path: &str) {
        self.entries.insert(path.into(), Entry::Directory);
    }

    /// Adds a file.
    pub fn file(&mut self, path: String, content: impl Into<Vec<u8>>) {
        self.entries
            .insert(path.into(), Entry::File(content.into()));
    }

    /// Adds a symlink.
    pub fn link(&mut self, path: String, target: String) {
        let target = Entry::Link(target.into());
        self.entries.insert(path.into(), target);
    }

    /// Marks a path as unknown, with the reason.
    pub fn not_reported(&mut self, path: String, why: &'static str) {
        self.entries.insert(path.into(), Entry::NotReported(why));
    }

    /// Creates a host with only these files.
    pub fn host(self) -> Host {
        let why = self.why;
        read_only::host(self, why)
    }

    /// Returns the entry of a path. `None` if the path does not exist, or is a parent directory of
    /// other entries without an entry itself.
    fn entry(&self, path: &Utf8Path) -> Result<Option<&Entry>, FilesError> {
        let not_reported = |why| {
            Err(FilesError::NotReported {
                path: path.to_owned(),
                why,
            })
        };
        match self.entries.get(path) {
            Some(Entry::NotReported(why)) => not_reported(*why),
            Some(entry) => Ok(Some(entry)),
            None => {
                let known = path
                    .ancestors()
                    .any(|directory| self.entries.get(directory) == Some(&Entry::Directory));
                if known || self.is_above(path) {
                    Ok(None)
                } else {
                    not_reported(self.why)
                }
            }
        }
    }

    /// Whether there are entries below a path.
    fn is_above(&self, path: &Utf8Path) -> bool {
        self.below(path).next().is_some()
    }

    /// Returns the paths below `path`. The map sorts paths by components, so these entries directly
    /// follow `path`.
    fn below<'t>(&'t self, path: &'t Utf8Path) -> impl Iterator<Item = &'t Utf8PathBuf> {
        (self.entries)
            .range::<Utf8Path, _>((Bound::Excluded(path), Bound::Unbounded))
            .map(|(own, _)| own)
            .take_while(move |own| own.starts_with(path))
    }
}

impl ReadFiles for Tree {
    fn read(&self, path: &Utf8Path) -> Result<Option<Vec<u8>>, FilesError> {
        Ok(match self.entry(path)? {
            Some(Entry::File(content)) => Some(content.clone()),
            _ => None,
        })
    }

    fn stat(&self, path: &Utf8Path) -> Result<Option<Stat>, FilesError> {
        let (kind, size) = match self.entry(path)? {
            Some(Entry::File(content)) => (FileKind::File, content.len() as u64),
            Some(Entry::Link(target)) => (FileKind::Link(target.clone()), 0),
            Some(Entry::Directory) => (FileKind::Directory, 0),
            None if self.is_above(path) => (FileKind::Directory, 0),
            Some(Entry::NotReported(_)) | None => return Ok(None),
        };
        Ok(Some(Stat {
            kind,
            mode: 0o444,
            uid: 0,
            gid: 0,
            size,
            mtime: 0,
            inode: 0,
        }))
    }

    fn list(&self, directory: &Utf8Path) -> Result<Vec<String>, FilesError> {
        self.entry(directory)?;
        let below = self.below(directory).filter_map(|path| {
            let rest = path.strip_prefix(directory).ok()?;
            Some(rest.iter().next()?.to_owned())
        });
        let mut names: Vec<String> = below.collect();
        names.dedup();
        Ok(names)
    }

    fn resolve(&self, path: &Utf8Path) -> Result<Option<Utf8PathBuf>, FilesError> {
        Ok(match self.entry(path)? {
            Some(Entry::Link(target)) => {
                let directory = path.parent().unwrap_or(path);
                Some(directory.join(target))
            }
            Some(_) => Some(path.to_owned()),
            None => self.is_above(path).then(|| path.to_owned()),
        })
    }

    fn free_space(&self, path: &Utf8Path) -> Result<FreeSpace, FilesError> {
        Err(FilesError::NotReported {
            path: path.to_owned(),
            why: self.why,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::Nvml;

    #[test]
    fn unknown_path_is_not_a_missing_path() {
        let mut tree = Tree::new("only a text is known");
        tree.directory("/sys/bus");
        tree.file("/sys/bus/a/vendor".into(), "0x10de\n");
        tree.link("/sys/bus/a/driver".into(), "../drivers/nvidia".into());
        tree.not_reported("/sys/bus/b/driver".into(), "the text has no drivers");
        let host = tree.host();
        let files = &host.files;
        let read = |path: &str| files.read_text(path.into());
        assert_eq!(
            read("/sys/bus/a/vendor").unwrap().as_deref(),
            Some("0x10de\n")
        );
        assert_eq!(read("/sys/bus/a/device").unwrap(), None);
        assert_eq!(files.list("/sys/bus".into()).unwrap(), ["a", "b"]);
        assert!(files.exists("/sys/bus/a".into()).unwrap());
        let link = files.stat("/sys/bus/a/driver".into()).unwrap().unwrap();
        assert_eq!(link.kind, FileKind::Link("../drivers/nvidia".into()));
        for (path, why) in [
            ("/sys/bus/b/driver", "the text has no drivers"),
            ("/etc/os-release", "only a text is known"),
            ("/proc", "only a text is known"),
        ] {
            let error = files.stat(path.into()).unwrap_err();
            assert_eq!(error.not_reported(), Some(why), "{path}");
        }
    }

    #[test]
    fn paths_are_compared_by_components() {
        let mut tree = Tree::new("only a text is known");
        tree.directory("/a");
        for path in ["/a/b/c", "/a/b/d/e", "/a/b.x/c", "/a/b-y", "/a/c"] {
            tree.file(path.to_owned(), "");
        }
        assert_eq!(tree.list("/a/b".into()).unwrap(), ["c", "d"]);
        assert_eq!(tree.list("/a".into()).unwrap(), ["b", "b-y", "b.x", "c"]);
        assert!(tree.is_above("/a/b/d".into()) && tree.is_above("/".into()));
        assert!(!tree.is_above("/a/b/c".into()) && !tree.is_above("/a/b-".into()));
    }

    /// Iterating over all paths for each query would take minutes.
    #[test]
    fn query_time_does_not_depend_on_tree_size() {
        let mut tree = Tree::new("only a text is known");
        tree.directory("/devices");
        for device in 0..4096 {
            tree.file(format!("/devices/{device}/vendor"), "");
            tree.file(format!("/devices/{device}/class"), "");
        }
        let began = std::time::Instant::now();
        for device in 0..4096 {
            for name in ["", "/driver", "/config", "/numa_node", "/iommu_group"] {
                let path = format!("/devices/{device}{name}");
                let path = Utf8Path::new(&path);
                assert_eq!(
                    tree.list(path).unwrap().len(),
                    if name.is_empty() { 2 } else { 0 }
                );
                assert_eq!(tree.read(path).unwrap(), None);
            }
        }
        assert!(began.elapsed().as_secs() < 20, "{:?}", began.elapsed());
    }

    #[tokio::test]
    async fn local_machine_is_not_queried() {
        let host = Tree::new("only a text is known").host();
        assert!(matches!(host.gpu.survey().await, Nvml::NotQueried { .. }));
        assert!(host.system.processes().is_err());
        assert!(host.system.memory_bytes().is_err());
        assert!(host.files.write("/tmp/x".into(), b"", 0o600).is_err());
    }
}
