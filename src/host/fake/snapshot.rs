//! A snapshot of the whole tree, and the difference between two snapshots.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use camino::{Utf8Path, Utf8PathBuf};

use super::tree::{Entry, Node, Tree};

/// Every path with kind, mode, owner and content, but without times and inode numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot(BTreeMap<Utf8PathBuf, Node>);

impl Snapshot {
    pub(super) fn of(tree: &Tree) -> Self {
        let timeless = |node: &Node| Node {
            mtime: 0,
            inode: 0,
            ..node.clone()
        };
        Self(
            tree.nodes
                .iter()
                .map(|(path, node)| (path.clone(), timeless(node)))
                .collect(),
        )
    }

    /// Removes entries at or below these paths, such as our own state and backups.
    #[must_use]
    pub fn without(mut self, paths: &[&str]) -> Self {
        self.0
            .retain(|path, _| !paths.iter().any(|out| path.starts_with(out)));
        self
    }

    /// All paths.
    pub fn paths(&self) -> impl Iterator<Item = &Utf8Path> {
        self.0.keys().map(Utf8PathBuf::as_path)
    }

    /// The whole tree as text, one path per line.
    pub fn text(&self) -> String {
        self.0.iter().fold(String::new(), |mut text, (path, node)| {
            // Writing to a `String` cannot fail.
            let _ = writeln!(text, "{}", line(path, node));
            text
        })
    }
}

/// Returns the differences, one per line: `+` added, `-` removed, `~` changed.
pub fn diff(before: &Snapshot, after: &Snapshot) -> Vec<String> {
    let gone = before
        .0
        .iter()
        .filter(|(path, _)| !after.0.contains_key(*path))
        .map(|(path, node)| (path, format!("- {}", line(path, node))));
    let here = after
        .0
        .iter()
        .filter_map(|(path, node)| match before.0.get(path) {
            None => Some((path, format!("+ {}", line(path, node)))),
            Some(old) if old != node => Some((
                path,
                format!("~ {} (was {})", line(path, node), describe(old)),
            )),
            Some(_) => None,
        });
    let mut lines: Vec<_> = gone.chain(here).collect();
    lines.sort();
    lines.into_iter().map(|(_, line)| line).collect()
}

fn line(path: &Utf8Path, node: &Node) -> String {
    format!("{path} {}", describe(node))
}

fn describe(node: &Node) -> String {
    let owner = if (node.uid, node.gid) == (0, 0) {
        String::new()
    } else {
        format!(" {}:{}", node.uid, node.gid)
    };
    let what = match &node.entry {
        Entry::File(content) => match std::str::from_utf8(content) {
            Ok(text) if text.len() <= 200 => format!("file {text:?}"),
            _ => format!(
                "file of {} bytes, SHA-256 {}",
                content.len(),
                crate::host::digest::sha256(content)
            ),
        },
        Entry::Directory => "folder".to_owned(),
        Entry::Link(target) => return format!("-> {target}{owner}"),
        Entry::CharDevice(major, minor) => format!("device {major}:{minor}"),
        Entry::Other => "other".to_owned(),
    };
    format!("{:04o}{owner} {what}", node.mode)
}
