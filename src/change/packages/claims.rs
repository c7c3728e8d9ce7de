//! Which of the accounts and paths that appeared during a transaction its packages made. Other
//! programs work at the same time, as a script of the administrator or another provisioning tool,
//! so a path counts as ours only if a package of ours says so: in its list of files, in a script,
//! or as the target of a link; and an account only if a script makes it or a file declares it. All
//! else is named by `uninstall` and never removed.

use std::collections::{BTreeMap, BTreeSet};

use camino::{Utf8Component, Utf8Path, Utf8PathBuf};

use super::{
    effects::{Effects, Unclaimed},
    inventory::unreadable_database,
    scripts::{accounts_declared, accounts_made},
};
use crate::{
    change::{Applier, ChangeError},
    tools::packages::Manifest,
};

/// What services create when their package starts them for the first time, by the program that does
/// it. No package says this about itself.
const AT_FIRST_START: [(&str, &[&str]); 3] = [
    // moby/moby 20.10, cmd/dockerd/config.go: `defaultTrustKeyFile`, in the daemon's folder.
    // Debian has the program in `sbin`, Docker's own packages in `bin`.
    (
        "/usr/sbin/dockerd",
        &["/etc/docker", "/etc/docker/key.json"],
    ),
    ("/usr/bin/dockerd", &["/etc/docker", "/etc/docker/key.json"]),
    // containerd, pkg/cri/server/cni_conf_syncer.go: it makes the folder that it watches.
    ("/usr/bin/containerd", &["/etc/cni", "/etc/cni/net.d"]),
];

/// What the tools that add accounts leave behind, shadow(5), subuid(5), `lckpwdf(3)`.
const OF_ACCOUNTS: [&str; 7] = [
    "/etc/.pwd.lock",
    "/etc/group-",
    "/etc/gshadow-",
    "/etc/passwd-",
    "/etc/shadow-",
    "/etc/subgid-",
    "/etc/subuid-",
];

impl Applier {
    /// Splits what appeared into what packages of ours made, and the rest. The scripts of a package
    /// may run in a later transaction than the one that unpacked it, for example after an
    /// interruption.
    pub(super) async fn claim(&self, effects: Effects) -> Result<Effects, ChangeError> {
        let effects = effects.with_unclaimed();
        let mut packages = effects.new_packages();
        let (brought, made_before) = self.brought_and_made()?;
        packages.extend(brought);
        let manifest = self.backend.manifest(self.host.reader(), &packages).await;
        let manifest = manifest.map_err(|error| {
            unreadable_database("read what the new packages say about themselves", error)
        })?;
        let mut effects = effects.claimed_by(&manifest);
        // What an earlier transaction of this program made goes with its packages.
        effects.there.retain(|path| !made_before.contains(path));
        // Where a package takes the place of another one, its file may have been the other one's.
        if !effects.disappeared.is_empty() {
            let Effects {
                there, rewritten, ..
            } = &mut effects;
            there.retain(|path| !rewritten.contains_key(path));
        }
        Ok(effects)
    }
}

impl Effects {
    /// Everything that appeared, so that it can be split again: a package that explains a path may
    /// come in a later attempt.
    fn with_unclaimed(mut self) -> Self {
        let Unclaimed { users, groups, etc } = std::mem::take(&mut self.unclaimed);
        self.users.extend(users);
        self.groups.extend(groups);
        self.etc.extend(etc);
        self
    }

    /// Keeps what these packages say that they made; the rest is unclaimed.
    fn claimed_by(mut self, manifest: &Manifest) -> Self {
        let mut made = accounts_made(&manifest.scripts);
        made.extend(accounts_declared(&manifest.declared));
        let named = |names: BTreeSet<String>| -> (BTreeSet<String>, BTreeSet<String>) {
            (names.into_iter()).partition(|name| made.contains(name))
        };
        let (users, other_users) = named(std::mem::take(&mut self.users));
        // A system user has a group of the same name.
        let (groups, other_groups) = (std::mem::take(&mut self.groups).into_iter())
            .partition(|name| made.contains(name) || users.contains(name));
        (self.users, self.groups) = (users, groups);
        let accounts = !(self.users.is_empty() && self.groups.is_empty());
        let made = claimed(&self.etc, manifest, accounts);
        let (etc, other_etc) =
            (std::mem::take(&mut self.etc).into_iter()).partition(|(path, _)| made.contains(path));
        self.etc = etc;
        let written = (self.rewritten.iter())
            .map(|(path, again)| (path.clone(), again.after.clone()))
            .collect();
        let written = claimed(&written, manifest, false);
        self.rewritten.retain(|path, _| written.contains(path));
        if self.appeared.is_empty() {
            self.there.clear();
        }
        let there = (self.there.iter())
            .map(|path| (path.clone(), String::new()))
            .collect();
        let there = claimed(&there, manifest, false);
        self.there.retain(|path| there.contains(path));
        self.unclaimed = Unclaimed {
            users: other_users,
            groups: other_groups,
            etc: other_etc,
        };
        self
    }
}

/// The paths that packages explain, and the folders above them.
fn claimed(
    etc: &BTreeMap<Utf8PathBuf, String>,
    manifest: &Manifest,
    accounts: bool,
) -> BTreeSet<Utf8PathBuf> {
    let at_start: BTreeSet<&str> = (AT_FIRST_START.iter())
        .filter(|(program, _)| manifest.owns(Utf8Path::new(program)))
        .flat_map(|(_, paths)| paths.iter().copied())
        .collect();
    let mut claimed: BTreeSet<Utf8PathBuf> = (etc.keys())
        .filter(|path| {
            manifest.owns(path)
                || (manifest.scripts.iter()).any(|script| names(script, path.as_str()))
                || names(&manifest.declared, path.as_str())
                || at_start.contains(path.as_str())
                || (accounts && OF_ACCOUNTS.contains(&path.as_str()))
        })
        .cloned()
        .collect();
    // A link to something of ours; also one over further links, as those of alternatives.
    loop {
        let more: Vec<Utf8PathBuf> = (etc.iter())
            .filter(|(path, _)| !claimed.contains(*path))
            .filter(|(path, what)| {
                (what
                    .strip_prefix("link ")
                    .map(|target| target_of(path, target)))
                .is_some_and(|target| claimed.contains(&target) || manifest.owns(&target))
            })
            .map(|(path, _)| path.clone())
            .collect();
        if more.is_empty() {
            break;
        }
        claimed.extend(more);
    }
    let above: BTreeSet<Utf8PathBuf> = (claimed.iter())
        .flat_map(|path| path.ancestors().skip(1))
        .map(Utf8Path::to_owned)
        .collect();
    claimed.extend(above);
    claimed
}

/// Whether a script names the path, and not only a longer one.
fn names(script: &str, path: &str) -> bool {
    script.match_indices(path).any(|(at, _)| {
        let next = script[at + path.len()..].chars().next();
        !next.is_some_and(|c| c.is_ascii_alphanumeric() || "_-.".contains(c))
    })
}

/// The target of a link, without `..`.
fn target_of(link: &Utf8Path, target: &str) -> Utf8PathBuf {
    let mut whole = Utf8PathBuf::new();
    let folder = link.parent().unwrap_or(link);
    for part in folder.join(target).components() {
        match part {
            Utf8Component::ParentDir => {
                whole.pop();
            }
            Utf8Component::CurDir => {}
            part => whole.push(part),
        }
    }
    whole
}

#[cfg(test)]
mod tests {
    use super::*;

    fn effects(users: &[&str], groups: &[&str], etc: &[(&str, &str)]) -> Effects {
        let set = |names: &[&str]| names.iter().map(ToString::to_string).collect();
        Effects {
            users: set(users),
            groups: set(groups),
            etc: (etc.iter())
                .map(|(path, what)| ((*path).into(), (*what).to_owned()))
                .collect(),
            ..Effects::default()
        }
    }

    fn manifest(paths: &[&str], scripts: &str) -> Manifest {
        Manifest {
            paths: paths.iter().map(Utf8PathBuf::from).collect(),
            scripts: vec![scripts.to_owned()],
            declared: String::new(),
        }
    }

    fn keys(etc: &BTreeMap<Utf8PathBuf, String>) -> Vec<&str> {
        etc.keys().map(|path| path.as_str()).collect()
    }

    #[test]
    fn a_path_is_ours_if_a_package_lists_it_names_it_or_is_what_it_links_to() {
        let found = effects(
            &[],
            &[],
            &[
                ("/etc/alternatives/smi", "link /usr/lib/nvidia/smi"),
                ("/etc/apparmor.d/local", "folder"),
                ("/etc/apparmor.d/local/docker.io", "empty"),
                ("/etc/apparmor.d/local/docker.io.theirs", "x"),
                ("/etc/default/docker", "x"),
                ("/etc/profile.d/site.sh", "x"),
                ("/etc/rc2.d/S01docker", "link ../init.d/docker"),
                ("/etc/smi", "link alternatives/smi"),
                (
                    "/etc/systemd/system/a.wants/docker.service",
                    "link /lib/systemd/system/docker.service",
                ),
                (
                    "/etc/systemd/system/a.wants/site.service",
                    "link /etc/systemd/system/site.service",
                ),
                ("/etc/theirs", "folder"),
            ],
        );
        let said = manifest(
            &[
                "/etc/default/docker",
                "/etc/init.d/docker",
                "/usr/lib/nvidia/smi",
                "/usr/lib/systemd/system/docker.service",
            ],
            "LOCAL=\"/etc/apparmor.d/local/docker.io\"\n",
        );
        let split = found.claimed_by(&said);
        assert_eq!(
            keys(&split.unclaimed.etc),
            [
                "/etc/apparmor.d/local/docker.io.theirs",
                "/etc/profile.d/site.sh",
                "/etc/systemd/system/a.wants/site.service",
                "/etc/theirs"
            ]
        );
        assert_eq!(split.etc.len(), 7);
    }

    #[test]
    fn an_account_is_ours_if_a_script_makes_it() {
        let accounts = || {
            effects(
                &["_nvpd", "joe"],
                &["_nvpd", "docker", "wheel"],
                &[("/etc/group-", "x")],
            )
        };
        let split = accounts().claimed_by(&manifest(
            &[],
            "adduser --system '_nvpd'\naddgroup docker\n",
        ));
        assert_eq!(split.users, ["_nvpd".to_owned()].into());
        assert_eq!(
            split.groups,
            ["_nvpd".to_owned(), "docker".to_owned()].into()
        );
        assert_eq!(split.unclaimed.users, ["joe".to_owned()].into());
        assert_eq!(split.unclaimed.groups, ["wheel".to_owned()].into());
        assert_eq!(keys(&split.etc), ["/etc/group-"]);
        // The backups belong to whoever added the accounts.
        let split = accounts().claimed_by(&manifest(&[], "echo docker joe wheel"));
        assert!(split.users.is_empty() && split.groups.is_empty() && split.etc.is_empty());
    }

    #[test]
    fn what_a_service_writes_at_its_first_start_comes_with_its_program() {
        let found = || {
            effects(
                &[],
                &[],
                &[
                    ("/etc/cni", "folder"),
                    ("/etc/docker/daemon.json", "x"),
                    ("/etc/docker/key.json", "x"),
                ],
            )
        };
        let split = found().claimed_by(&manifest(&["/usr/sbin/dockerd"], ""));
        assert_eq!(keys(&split.etc), ["/etc/docker/key.json"]);
        assert_eq!(
            keys(&split.unclaimed.etc),
            ["/etc/cni", "/etc/docker/daemon.json"]
        );
        let split = found().claimed_by(&manifest(&["/usr/bin/containerd"], ""));
        assert_eq!(keys(&split.etc), ["/etc/cni"]);
    }

    #[test]
    fn a_later_attempt_may_explain_what_an_earlier_one_left_open() {
        let split = effects(&["dock"], &[], &[("/etc/a", "x")]).claimed_by(&Manifest::default());
        assert!(split.users.is_empty() && split.etc.is_empty());
        assert!(split.is_empty());
        let split = split
            .with_unclaimed()
            .claimed_by(&manifest(&["/etc/a"], "useradd dock"));
        assert_eq!(keys(&split.etc), ["/etc/a"]);
        assert!(split.unclaimed.is_empty());
    }
}
