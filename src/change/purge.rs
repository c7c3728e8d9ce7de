//! Undoing a package transaction: what it brought goes, what it took comes back, and what the
//! packages' scripts left behind (accounts, paths below `/etc`) goes too, where nobody uses it.

use std::collections::BTreeSet;

use camino::{Utf8Path, Utf8PathBuf};

use super::{
    Applier, ChangeError, Reverted, STOPPED, Sink,
    inventory::{ETC, FOLDER},
    traces::Traces,
};
use crate::{
    config::desired::PackageWish,
    error::{Report, one_line},
    host::{Cmd, Kind},
    tools::{accounts, apt, apt_fault::Fault, dpkg, systemctl},
};

/// Paths below `/etc` that others write at any time, so that their coming during a transaction
/// says nothing; and ours, which have undos of their own.
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

/// Part of the names of all files of ours.
const OURS: &str = "gpu-bootstrap";

/// Packages that cannot be taken back.
struct Kept {
    names: Vec<String>,
    why: Option<String>,
}

impl Applier {
    pub(super) async fn revert_packages(
        &self,
        before: &str,
        traces: Option<&Traces>,
        sink: &dyn Sink,
    ) -> Result<Reverted, ChangeError> {
        let compared;
        let traces = match traces {
            Some(traces) => traces,
            None => {
                compared = self.traces_once_over(before, sink).await?;
                &compared
            }
        };
        if traces.is_empty() {
            return Ok(Reverted::Nothing {
                why: "no package came or went".to_owned(),
            });
        }
        self.apt()?;
        let (mut endings, all_gone) = self
            .exclusively(sink, self.undo_packages(traces, sink))
            .await?;
        // Packages that stay use their accounts, and nobody owns the links of their alternatives.
        if all_gone {
            endings.extend(self.remove_accounts(traces, sink).await?);
            endings.extend(self.remove_leftovers(traces)?);
        } else if !(traces.users.is_empty() && traces.groups.is_empty() && traces.etc.is_empty()) {
            endings.push(Reverted::Left {
                what: "accounts and files below `/etc` that came with the packages".to_owned(),
                why: "some of the packages stay".to_owned(),
            });
        }
        endings.extend(self.reload_units(sink).await?);
        Ok(Reverted::of(endings))
    }

    async fn undo_packages(
        &self,
        traces: &Traces,
        sink: &dyn Sink,
    ) -> Result<(Vec<Reverted>, bool), ChangeError> {
        let mut endings = Vec::new();
        if !self.half_done()?.is_empty() {
            // What is half done may be what is about to go; if it cannot be finished, its removal
            // is the cure.
            if let Err(error) = self
                .apt_run("configure what is unpacked", dpkg::configure_all(), sink)
                .await
            {
                if error.reason() == STOPPED {
                    return Err(error);
                }
                sink.line(&format!("{error}; it is removed as it is"));
            }
        }
        let inventory = self.inventory()?;
        let mut purge: Vec<String> = traces
            .appeared
            .iter()
            .filter(|name| {
                inventory.packages.contains_key(*name) || inventory.configured.contains(*name)
            })
            .cloned()
            .collect();
        let mut remove: Vec<String> = traces
            .refilled
            .iter()
            .filter(|name| inventory.packages.contains_key(*name))
            .cloned()
            .collect();
        let both: Vec<String> = purge.iter().chain(&remove).cloned().collect();
        let kept = self.needed_by_others(&both).await?;
        if let Some(why) = &kept.why {
            endings.push(Reverted::Left {
                what: format!("{} ({})", count(&kept.names), some(&kept.names)),
                why: why.clone(),
            });
        }
        purge.retain(|name| !kept.names.contains(name));
        remove.retain(|name| !kept.names.contains(name));
        let apt = self.apt()?;
        if !purge.is_empty() {
            let cmd = apt.purge(&purge);
            self.take_away("purge packages", &cmd, (&purge, &both), sink)
                .await?;
            endings.push(Reverted::Done {
                what: format!("purged {} ({})", count(&purge), some(&purge)),
            });
        }
        if !remove.is_empty() {
            let cmd = apt.remove(&remove);
            self.take_away("remove packages", &cmd, (&remove, &both), sink)
                .await?;
            endings.push(Reverted::Done {
                what: format!("removed {} ({})", count(&remove), some(&remove)),
            });
        }
        endings.extend(self.reinstall(&traces.disappeared, sink).await?);
        endings.extend(self.restore_marks(traces, sink).await?);
        endings.extend(self.tell_moved(&traces.moved)?);
        Ok((endings, kept.names.is_empty()))
    }

    /// Which of the packages must stay, because something that came later needs them.
    async fn needed_by_others(&self, packages: &[String]) -> Result<Kept, ChangeError> {
        let why = self.objection_to_removal(packages, packages).await?;
        let mut names = Vec::new();
        if why.is_some() {
            // Alone, each takes with it what needs it; what takes nothing else may go.
            for name in packages {
                let alone = self.objection_to_removal(std::slice::from_ref(name), packages);
                if alone.await?.is_some() {
                    names.push(name.clone());
                }
            }
        }
        Ok(Kept { names, why })
    }

    /// Why a removal that takes nothing but `along` with it is not possible.
    async fn objection_to_removal(
        &self,
        packages: &[String],
        along: &[String],
    ) -> Result<Option<String>, ChangeError> {
        if packages.is_empty() {
            return Ok(None);
        }
        match self.agree_to_removal(packages, along).await {
            Ok(_) => Ok(None),
            Err(ChangeError::Refused { reasons }) => {
                Ok(Some(format!("their removal {}", reasons.join("; it "))))
            }
            // Something else that must not go needs them.
            Err(
                error @ ChangeError::Packages {
                    fault: Fault::Unmet | Fault::Held,
                    ..
                },
            ) => Ok(Some(error.to_string().replace('\n', " "))),
            Err(error) => Err(error),
        }
    }

    /// Brings back what the transaction removed, at the version that was there.
    async fn reinstall(
        &self,
        gone: &[PackageWish],
        sink: &dyn Sink,
    ) -> Result<Vec<Reverted>, ChangeError> {
        let inventory = self.inventory()?;
        let specs: Vec<String> = gone
            .iter()
            .filter(|wish| !inventory.packages.contains_key(&wish.name))
            .map(|wish| match &wish.version {
                Some(version) => format!("{}={version}", wish.name),
                None => wish.name.clone(),
            })
            .collect();
        if specs.is_empty() {
            return Ok(Vec::new());
        }
        let what = format!("removed packages ({})", some(&specs));
        Ok(vec![match self.bring_back(&specs, sink).await {
            Ok(()) => Reverted::Done {
                what: format!("brought back {what}"),
            },
            // Who was asked to stop has not failed: the next run tries again.
            Err(error) if error.reason() == STOPPED => return Err(error),
            Err(error) => Reverted::Left {
                what,
                why: format!("they are not there again: {error}"),
            },
        }])
    }

    async fn restore_marks(
        &self,
        traces: &Traces,
        sink: &dyn Sink,
    ) -> Result<Vec<Reverted>, ChangeError> {
        let inventory = self.inventory()?;
        let names: Vec<String> = traces
            .now_manual
            .iter()
            .filter(|name| {
                inventory.packages.contains_key(*name) && !inventory.auto.contains(*name)
            })
            .cloned()
            .collect();
        if names.is_empty() {
            return Ok(Vec::new());
        }
        self.apt_run("restore marks", apt::mark("auto", &names), sink)
            .await?;
        Ok(vec![Reverted::Done {
            what: format!("marked {} as automatically installed again", some(&names)),
        }])
    }

    /// What was upgraded stays so: an older version may not read what the newer one wrote, and a
    /// repository may not have it any more. That is for a person to decide, and said with how.
    fn tell_moved(&self, moved: &[PackageWish]) -> Result<Option<Reverted>, ChangeError> {
        let inventory = self.inventory()?;
        let stays: Vec<(String, String)> = moved
            .iter()
            .filter_map(|wish| {
                let now = inventory.packages.get(&wish.name)?;
                let before = wish.version.as_deref()?;
                (now != before).then(|| {
                    (
                        format!("{} {now} instead of {before}", wish.name),
                        format!("{}={before}", wish.name),
                    )
                })
            })
            .collect();
        let (what, specs): (Vec<String>, Vec<String>) = stays.into_iter().unzip();
        Ok((!what.is_empty()).then(|| Reverted::Left {
            what: what.join(", "),
            why: format!(
                "packages are not downgraded without being asked to; where a repository still \
                 offers the older versions, `apt-get install --allow-downgrades {}` does it",
                specs.join(" ")
            ),
        }))
    }

    /// Removes users and groups that came with the packages, where nobody uses them.
    async fn remove_accounts(
        &self,
        traces: &Traces,
        sink: &dyn Sink,
    ) -> Result<Vec<Reverted>, ChangeError> {
        let text = |path: &str| -> Result<String, ChangeError> {
            Ok(self.host.files.read_text(path.into())?.unwrap_or_default())
        };
        let mut endings = Vec::new();
        for user in accounts::users(&text(accounts::PASSWD)?) {
            if !traces.users.contains(&user.name) {
                continue;
            }
            endings.push(if self.has_process(user.uid)? {
                Reverted::Left {
                    what: format!("user `{}`", user.name),
                    why: "a process runs as that user".to_owned(),
                }
            } else {
                self.remove_account(accounts::remove_user(&user.name), &user.name, sink)
                    .await?
            });
        }
        // Removing a user removes its group, where nobody else is in it.
        let users = accounts::users(&text(accounts::PASSWD)?);
        for group in accounts::groups(&text(accounts::GROUP)?) {
            if !traces.groups.contains(&group.name) {
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

    fn has_process(&self, uid: u32) -> Result<bool, ChangeError> {
        let files = &self.host.files;
        let namespace = |process: &str| -> Result<Option<Utf8PathBuf>, ChangeError> {
            let path = Utf8PathBuf::from(format!("/proc/{process}/ns/pid"));
            Ok(match files.stat(&path)?.map(|stat| stat.kind) {
                Some(Kind::Link(target)) => Some(target),
                _ => None,
            })
        };
        let own = namespace("self")?;
        for name in files.list("/proc".into())? {
            if !name.bytes().all(|byte| byte.is_ascii_digit()) {
                continue;
            }
            let path = Utf8PathBuf::from(format!("/proc/{name}/status"));
            let status = files.read(&path)?.unwrap_or_default();
            if accounts::uid_of_process(&String::from_utf8_lossy(&status)) == Some(uid) {
                // The same number in a container is somebody else.
                let theirs = namespace(&name)?;
                if own.is_none() || theirs.is_none() || theirs == own {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Removes what the packages' scripts and services put below `/etc` and left there.
    fn remove_leftovers(&self, traces: &Traces) -> Result<Vec<Reverted>, ChangeError> {
        let candidates: Vec<(&Utf8PathBuf, &String)> = traces
            .etc
            .iter()
            .filter(|(path, _)| {
                !OTHERS.iter().any(|other| path.starts_with(other)) && !path.as_str().contains(OURS)
            })
            .collect();
        if candidates.is_empty() {
            return Ok(Vec::new());
        }
        let owned = self.owned_below_etc()?;
        let files = &self.host.files;
        let mut removed: Vec<String> = Vec::new();
        let mut endings = Vec::new();
        // What is in a folder sorts after it.
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
                    why: "it came with the packages and somebody has changed it since".to_owned(),
                });
            }
        }
        if !removed.is_empty() {
            endings.push(Reverted::Done {
                what: format!("removed what packages left: {}", some(&removed)),
            });
        }
        Ok(endings)
    }

    /// Paths below `/etc` that installed packages own.
    fn owned_below_etc(&self) -> Result<BTreeSet<Utf8PathBuf>, ChangeError> {
        let files = &self.host.files;
        let info = Utf8Path::new(dpkg::INFO);
        let mut owned = BTreeSet::new();
        for name in files.list(info)? {
            if dpkg::is_list(&name) {
                let text = files.read(&info.join(&name))?.unwrap_or_default();
                let text = String::from_utf8_lossy(&text);
                owned.extend(dpkg::listed_below(&text, ETC.into()));
            }
        }
        Ok(owned)
    }

    /// Unit files went; systemd must not keep them. What went is gone, whatever it answers.
    async fn reload_units(&self, sink: &dyn Sink) -> Result<Option<Reverted>, ChangeError> {
        // sd_booted(3): the folder is there where systemd runs; elsewhere nothing is to forget.
        if !self.host.files.exists("/run/systemd/system".into())? {
            return Ok(None);
        }
        let reload = self
            .tool(
                "make systemd read its units again",
                &systemctl::daemon_reload(),
                sink,
            )
            .await;
        Ok(reload.err().map(|error| Reverted::Left {
            what: "units of packages that are gone, in systemd's memory".to_owned(),
            why: format!(
                "failed to {}; `systemctl daemon-reload` does it",
                one_line(&error)
            ),
        }))
    }
}

fn count(packages: &[String]) -> String {
    match packages.len() {
        1 => "1 package".to_owned(),
        more => format!("{more} packages"),
    }
}

/// The first few of a list.
fn some(names: &[String]) -> String {
    const FEW: usize = 6;
    let mut text = names
        .iter()
        .take(FEW)
        .cloned()
        .collect::<Vec<_>>()
        .join(", ");
    if names.len() > FEW {
        text.push_str(&format!(" and {} more", names.len() - FEW));
    }
    text
}
