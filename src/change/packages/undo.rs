//! Undoing a package transaction: what it brought goes, what it took comes back, and what the
//! packages' scripts left behind (accounts, paths below `/etc`) goes too, where nobody uses it.

use camino::Utf8PathBuf;

use super::{
    approval::Approved,
    effects::Effects,
    inventory::{ETC, FOLDER, unreadable_database},
    run::Attempts,
};
use crate::{
    change::{Applier, ChangeError, PackageError, Reverted, STOPPED, Sink},
    config::desired::PackageWish,
    error::{Report, one_line},
    host::{Cmd, Kind},
    tools::{
        accounts,
        packages::{Action, Fault, Mark, Removals, Request},
        systemctl,
    },
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
    pub(in crate::change) async fn revert_packages(
        &self,
        transaction: &str,
        effects: Option<&Effects>,
        sink: &dyn Sink,
    ) -> Result<Reverted, ChangeError> {
        let compared;
        let effects = match effects {
            Some(effects) => effects,
            None => {
                compared = self.effects_once_over(transaction, sink).await?;
                &compared
            }
        };
        if effects.is_empty() {
            return Ok(Reverted::Nothing {
                why: "no package came or went".to_owned(),
            });
        }
        self.transactions()?;
        let (mut endings, all_gone) = self
            .exclusively(sink, self.undo_packages(effects, sink))
            .await?;
        // Packages that stay use their accounts, and nobody owns the links of their alternatives.
        if all_gone {
            endings.extend(self.remove_accounts(effects, sink).await?);
            endings.extend(self.remove_leftovers(effects).await?);
        } else if !(effects.users.is_empty() && effects.groups.is_empty() && effects.etc.is_empty())
        {
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
        effects: &Effects,
        sink: &dyn Sink,
    ) -> Result<(Vec<Reverted>, bool), ChangeError> {
        let mut endings = Vec::new();
        let transactions = self.transactions()?;
        if !self.half_done().await?.is_empty() {
            // What is half done may be what is about to go; if it cannot be finished, its removal
            // is the cure.
            if let Err(error) = self
                .run_until_it_passes("configure what is unpacked", transactions.configure(), sink)
                .await
            {
                if error.reason() == STOPPED {
                    return Err(error);
                }
                sink.line(&format!("{error}; it is removed as it is"));
            }
        }
        let inventory = self.inventory().await?;
        let mut purge: Vec<String> = effects
            .appeared
            .iter()
            .filter(|name| {
                inventory.packages.contains_key(*name) || inventory.configured.contains(*name)
            })
            .cloned()
            .collect();
        let mut remove: Vec<String> = effects
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
        if !purge.is_empty() {
            let request = Request::Purge(&purge);
            self.take_away("purge packages", &request, (&purge, &both), sink)
                .await?;
            endings.push(Reverted::Done {
                what: format!("purged {} ({})", count(&purge), some(&purge)),
            });
        }
        if !remove.is_empty() {
            let request = Request::Remove(&remove);
            self.take_away("remove packages", &request, (&remove, &both), sink)
                .await?;
            endings.push(Reverted::Done {
                what: format!("removed {} ({})", count(&remove), some(&remove)),
            });
        }
        endings.extend(self.reinstall(&effects.disappeared, sink).await?);
        endings.extend(self.restore_marks(effects, sink).await?);
        endings.extend(self.tell_moved(&effects.moved).await?);
        Ok((endings, kept.names.is_empty()))
    }

    /// Undoes by a removal that was approved; before another attempt it is approved again.
    async fn take_away(
        &self,
        what: &str,
        request: &Request<'_>,
        (packages, along): (&[String], &[String]),
        sink: &dyn Sink,
    ) -> Result<(), ChangeError> {
        let cmd = (self.transactions()?).perform(&self.settings(), request, Removals::Approved);
        let mut attempts = Attempts::new();
        while let Err(error) = self.run_once(what, &cmd, 0, sink).await {
            self.pass_and_refresh(&mut attempts, error, sink).await?;
            self.approve_removal(packages, along).await?;
        }
        Ok(())
    }

    /// Simulates a removal and refuses it if anything but the packages and `along` would go.
    async fn approve_removal(
        &self,
        packages: &[String],
        along: &[String],
    ) -> Result<Vec<Action>, ChangeError> {
        let actions = self.simulate(&Request::Purge(packages)).await?;
        let approved = Approved {
            removing: packages
                .iter()
                .chain(along)
                .chain(&self.policy.may_remove)
                .map(String::as_str)
                .collect(),
            only_removals: true,
            ..Approved::default()
        };
        self.refuse(&actions, &approved)?;
        Ok(actions)
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
        match self.approve_removal(packages, along).await {
            Ok(_) => Ok(None),
            Err(ChangeError::Packages(PackageError::Refused { reasons })) => {
                Ok(Some(format!("their removal {}", reasons.join("; it "))))
            }
            // Something else that must not go needs them.
            Err(
                error @ ChangeError::Packages(PackageError::Failed {
                    fault: Fault::Unmet | Fault::Held,
                    ..
                }),
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
        let (inventory, transactions) = (self.inventory().await?, self.transactions()?);
        let specs: Vec<String> = gone
            .iter()
            .filter(|wish| !inventory.packages.contains_key(&wish.name))
            .map(|wish| match &wish.version {
                Some(version) => transactions.at_version(&wish.name, version),
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
        effects: &Effects,
        sink: &dyn Sink,
    ) -> Result<Vec<Reverted>, ChangeError> {
        let inventory = self.inventory().await?;
        let names: Vec<String> = effects
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
        let cmd = self.transactions()?.mark(Mark::Automatic, &names);
        self.run_until_it_passes("restore marks", cmd, sink).await?;
        Ok(vec![Reverted::Done {
            what: format!("marked {} as automatically installed again", some(&names)),
        }])
    }

    /// What was upgraded stays so: an older version may not read what the newer one wrote, and a
    /// repository may not have it any more. That is for a person to decide, and said with how.
    async fn tell_moved(&self, moved: &[PackageWish]) -> Result<Option<Reverted>, ChangeError> {
        let (inventory, transactions) = (self.inventory().await?, self.transactions()?);
        let stays: Vec<(String, String)> = moved
            .iter()
            .filter_map(|wish| {
                let now = inventory.packages.get(&wish.name)?;
                let before = wish.version.as_deref()?;
                (now != before).then(|| {
                    (
                        format!("{} {now} instead of {before}", wish.name),
                        transactions.at_version(&wish.name, before),
                    )
                })
            })
            .collect();
        let (what, specs): (Vec<String>, Vec<String>) = stays.into_iter().unzip();
        Ok((!what.is_empty()).then(|| Reverted::Left {
            what: what.join(", "),
            why: format!(
                "packages are not downgraded without being asked to; where a repository still \
                 offers the older versions, `{}` does it",
                transactions.downgrade_command(&specs)
            ),
        }))
    }

    /// Removes users and groups that came with the packages, where nobody uses them.
    async fn remove_accounts(
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
        for process in self.host.system.processes()? {
            if process.uid == Some(uid) {
                // The same number in a container is somebody else.
                let theirs = namespace(&process.pid.to_string())?;
                if own.is_none() || theirs.is_none() || theirs == own {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Removes what the packages' scripts and services put below `/etc` and left there.
    async fn remove_leftovers(&self, effects: &Effects) -> Result<Vec<Reverted>, ChangeError> {
        let candidates: Vec<(&Utf8PathBuf, &String)> = effects
            .etc
            .iter()
            .filter(|(path, _)| {
                !OTHERS.iter().any(|other| path.starts_with(other)) && !path.as_str().contains(OURS)
            })
            .collect();
        if candidates.is_empty() {
            return Ok(Vec::new());
        }
        let owned = self
            .backend
            .owned_below(self.host.reader(), ETC.into())
            .await;
        let owned = owned.map_err(|error| unreadable_database("list what packages own", error))?;
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
