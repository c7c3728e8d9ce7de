//! The surroundings of the machines in which `vm bench` measures each method.

use std::fmt;

use crate::machine::Changes;

/// The link and the disk of each machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The rate of the link in tc(8) syntax; not limited without it.
    pub link: Option<String>,
    pub changes: Changes,
}

impl Setting {
    /// Each combination of a link and a disk. An empty list means the default.
    pub fn all(links: &[String], disks: &[Changes]) -> Vec<Setting> {
        let links: Vec<Option<String>> = match links.is_empty() {
            true => vec![None],
            false => links.iter().cloned().map(Some).collect(),
        };
        let disks = match disks.is_empty() {
            true => vec![Changes::default()],
            false => disks.to_vec(),
        };
        (links.iter())
            .flat_map(|link| {
                disks.iter().map(move |changes| Setting {
                    link: link.clone(),
                    changes: *changes,
                })
            })
            .collect()
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let disk = match self.changes {
            Changes::Memory => "memory",
            Changes::Disk => "disk",
        };
        write!(
            f,
            "{}, {disk}",
            self.link.as_deref().unwrap_or("unlimited link")
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_and_disks_are_combined() {
        let told = |links: &[&str], disks: &[Changes]| -> Vec<String> {
            let links: Vec<String> = links.iter().map(ToString::to_string).collect();
            let all = Setting::all(&links, disks);
            all.iter().map(ToString::to_string).collect()
        };
        assert_eq!(told(&[], &[]), ["unlimited link, memory"]);
        assert_eq!(
            told(&["200mbit", "2gbit"], &[Changes::Memory, Changes::Disk]),
            [
                "200mbit, memory",
                "200mbit, disk",
                "2gbit, memory",
                "2gbit, disk"
            ]
        );
    }
}
