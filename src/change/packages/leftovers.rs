//! What packages leave behind when they are removed: accounts, and paths below `/etc` that their
//! scripts and services made. They are removed, too, unless something uses them or changed them.

use std::collections::{BTreeMap, BTreeSet};

use camino::Utf8PathBuf;

use super::{
    effects::{Effects, FOLDER, Unclaimed},
    inventory::{ETC, unreadable_database},
    undo::first_few,
};
use crate::{
    change::{Applier, ChangeError, Reverted, Sink},
    error::one_line,
    host::{Cmd, FilesError, Kind},
    tools::accounts,
};

/// Paths below `/etc` that other programs write at any time, so that a new path during a
/// transaction does not belong to it; and our own paths, which have undos of their own.
const OTHERS: [&str; 13] = [
    "/etc/adjtime",
    "/etc/cloud",
    "/etc/gpu-bootstrap",
    "/etc/hostname",
    "/etc/hosts",
    "/etc/kubernetes",
    "/etc/localtime",
    "/etc/machine-id",
    "/etc/netplan",
    "/etc/network",
    "/etc/rancher",
    "/etc/resolv.conf",
    "/etc/ssh",
];

/// A part of the name of each file that this program writes.
const OURS: &str = "gpu-bootstrap";

impl Applier {
    /// Removes users and groups that the packages created, unless they are in use.
    pub(super) async fn remove_accounts(
        &self,
        effects: &Effects,
        sink: &dyn Sink,
    ) -> Result<Vec<Reverted>, ChangeError> {
        let text = |path: &str| -> Result<String, ChangeError> {
            Ok(self.host.files.read_text(path.into())?.unwrap_or_default())
        };
        let mut endings = Vec::new();
        for user in accounts::users(&text(accounts::PASSWD)?) {
            if !effects.users.contains(&user.name) {
                continue;
            }
            endings.push(match self.needed_by(user.uid)? {
                Some(why) => Reverted::Left {
                    what: format!("user `{}`", user.name),
                    why,
                },
                None => {
                    self.remove_account(accounts::remove_user(&user.name), &user.name, sink)
                        .await?
                }
            });
        }
        // Removing a user removes its group, too, if it has no other member.
        let users = accounts::users(&text(accounts::PASSWD)?);
        for group in accounts::groups(&text(accounts::GROUP)?) {
            if !effects.groups.contains(&group.name) {
                continue;
            }
            let primary = users.iter().find(|user| user.gid == group.gid);
            let members: Vec<&str> = group
                .members
                .iter()
                .map(String::as_str)
                .chain(primary.map(|user| user.name.as_str()))
                .collect();
            endings.push(if members.is_empty() {
                self.remove_account(accounts::remove_group(&group.name), &group.name, sink)
                    .await?
            } else {
                Reverted::Left {
                    what: format!("group `{}`", group.name),
                    why: format!("{} is in it", members.join(", ")),
                }
            });
        }
        Ok(endings)
    }

    async fn remove_account(
        &self,
        cmd: Cmd,
        name: &str,
        sink: &dyn Sink,
    ) -> Result<Reverted, ChangeError> {
        let what = format!("remove the account `{name}`");
        self.tool(&what, &cmd, sink).await?;
        Ok(Reverted::Done {
            what: format!("removed the account `{name}`"),
        })
    }

    /// Why a user must stay: a process runs as this user, or it cannot be determined that none does.
    fn needed_by(&self, uid: u32) -> Result<Option<String>, ChangeError> {
        let files = &self.host.files;
        let namespace = |process: &str| -> Result<Option<Utf8PathBuf>, FilesError> {
            let path = Utf8PathBuf::from(format!("/proc/{process}/ns/pid"));
            Ok(match files.stat(&path)?.map(|stat| stat.kind) {
                Some(Kind::Link(target)) => Some(target),
                _ => None,
            })
        };
        let has_ended = |pid: u32| -> Result<bool, FilesError> {
            Ok(files
                .stat(format!("/proc/{pid}").as_str().into())?
                .is_none())
        };
        let processes = match self.host.system.processes() {
            Ok(processes) => processes,
            Err(error) => {
                let why = one_line(&error);
                return Ok(Some(format!(
                    "whether a process runs as this user cannot be determined: {why}"
                )));
            }
        };
        let own = namespace("self")?;
        for process in processes {
            let pid = process.pid;
            let why = match process.uid {
                Some(theirs) if theirs != uid => continue,
                Some(_) => "a process runs as this user".to_owned(),
                // It has ended since it was listed.
                None if has_ended(pid)? => continue,
                None => format!("process {pid} may run as this user: its user cannot be read"),
            };
            // The same uid in a container is a different user.
            let theirs = match namespace(&pid.to_string()) {
                Ok(theirs) => theirs,
                // The kernel denies the link of a process that ends at this moment.
                Err(_) if has_ended(pid)? => continue,
                Err(error) => return Err(error.into()),
            };
            if theirs.is_none() && has_ended(pid)? {
                continue;
            }
            if own.is_none() || theirs.is_none() || theirs == own {
                return Ok(Some(why));
            }
        }
        Ok(None)
    }

    /// The paths below `/etc` that installed packages own.
    async fn owned(&self) -> Result<BTreeSet<Utf8PathBuf>, ChangeError> {
        let owned = self.backend.owned_below(self.host.reader(), ETC.into());
        (owned.await)
            .map_err(|error| unreadable_database("list the files that packages own", error))
    }

    /// Names what appeared while the packages were installed, and is not known to be theirs.
    pub(super) async fn name_unclaimed(
        &self,
        unclaimed: &Unclaimed,
        sink: &dyn Sink,
    ) -> Result<(), ChangeError> {
        let mut left: Vec<String> = Vec::new();
        let text = |path: &str| self.host.files.read_text(path.into());
        for user in accounts::users(&text(accounts::PASSWD)?.unwrap_or_default()) {
            if unclaimed.users.contains(&user.name) {
                left.push(format!("user `{}`", user.name));
            }
        }
        for group in accounts::groups(&text(accounts::GROUP)?.unwrap_or_default()) {
            if unclaimed.groups.contains(&group.name) {
                left.push(format!("group `{}`", group.name));
            }
        }
        let candidates = candidates(&unclaimed.etc);
        if !candidates.is_empty() {
            let owned = self.owned().await?;
            for (path, _) in candidates {
                if !owned.contains(path) && self.describe(path)?.is_some() {
                    left.push(format!("`{path}`"));
                }
            }
        }
        if !left.is_empty() {
            sink.note(&format!(
                "what appeared while packages were installed, and none of them claims, stays: {}",
                left.join(", ")
            ));
        }
        Ok(())
    }

    /// Removes paths below `/etc` that scripts and services of the packages created.
    pub(super) async fn remove_leftovers(
        &self,
        effects: &Effects,
    ) -> Result<Vec<Reverted>, ChangeError> {
        let candidates = candidates(&effects.etc);
        if candidates.is_empty() {
            return Ok(Vec::new());
        }
        let owned = self.owned().await?;
        let files = &self.host.files;
        let mut removed: Vec<String> = Vec::new();
        let mut endings = Vec::new();
        // The content of a folder sorts after the folder.
        for (path, what) in candidates.into_iter().rev() {
            let Some(now) = self.describe(path)? else {
                continue;
            };
            if owned.contains(path) {
                continue;
            }
            if now == FOLDER {
                if files.remove_empty_folder(path)? {
                    removed.push(path.to_string());
                }
            } else if now == *what {
                files.remove(path)?;
                removed.push(path.to_string());
            } else {
                endings.push(Reverted::Left {
                    what: format!("`{path}`"),
                    why: "the packages created it, and it was changed afterwards".to_owned(),
                });
            }
        }
        if !removed.is_empty() {
            endings.push(Reverted::Done {
                what: format!("removed files that packages left: {}", first_few(&removed)),
            });
        }
        Ok(endings)
    }
}

/// The paths without those of other programs, and without our own.
fn candidates(etc: &BTreeMap<Utf8PathBuf, String>) -> Vec<(&Utf8PathBuf, &String)> {
    (etc.iter())
        .filter(|(path, _)| {
            !OTHERS.iter().any(|other| path.starts_with(other)) && !path.as_str().contains(OURS)
        })
        .collect()
}
