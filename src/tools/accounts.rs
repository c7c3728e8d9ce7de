//! `/etc/passwd` and `/etc/group`, read as files; removed by `userdel` and `groupdel`.

use crate::host::Cmd;

/// Users.
pub const PASSWD: &str = "/etc/passwd";

/// Groups.
pub const GROUP: &str = "/etc/group";

/// A user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// Its name.
    pub name: String,
    /// Its number.
    pub uid: u32,
    /// The number of its primary group.
    pub gid: u32,
    /// Its home folder.
    pub home: String,
}

/// A group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// Its name.
    pub name: String,
    /// Its number.
    pub gid: u32,
    /// Its members, without the users whose primary group it is.
    pub members: Vec<String>,
}

/// Reads [`PASSWD`].
#[must_use]
pub fn users(text: &str) -> Vec<User> {
    text.lines()
        .filter_map(|line| {
            let fields: Vec<&str> = line.split(':').collect();
            let [name, _, uid, gid, _, home, _] = fields[..] else {
                return None;
            };
            Some(User {
                name: name.to_owned(),
                uid: uid.parse().ok()?,
                gid: gid.parse().ok()?,
                home: home.to_owned(),
            })
        })
        .collect()
}

/// Reads [`GROUP`].
#[must_use]
pub fn groups(text: &str) -> Vec<Group> {
    text.lines()
        .filter_map(|line| {
            let fields: Vec<&str> = line.split(':').collect();
            let [name, _, gid, members] = fields[..] else {
                return None;
            };
            Some(Group {
                name: name.to_owned(),
                gid: gid.parse().ok()?,
                members: members
                    .split(',')
                    .filter(|member| !member.is_empty())
                    .map(str::to_owned)
                    .collect(),
            })
        })
        .collect()
}

/// Removes a user, not its home.
#[must_use]
pub fn remove_user(name: &str) -> Cmd {
    Cmd::new("userdel", ["--", name])
}

/// Removes a group.
#[must_use]
pub fn remove_group(name: &str) -> Cmd {
    Cmd::new("groupdel", ["--", name])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounts_are_read() {
        let users = users(
            "root:x:0:0:root:/root:/bin/bash\nnvpd:x:105:112:NVIDIA,,,:/var/run/nvpd/:/usr/sbin/nologin\n+nis\n",
        );
        assert_eq!(users.len(), 2);
        assert_eq!((users[1].uid, users[1].gid), (105, 112));
        assert_eq!(users[1].home, "/var/run/nvpd/");
        let groups = groups("docker:x:113:bob,eve\nnvpd:x:112:\n");
        assert_eq!(groups[0].members, ["bob", "eve"]);
        assert!(groups[1].members.is_empty());
    }
}
