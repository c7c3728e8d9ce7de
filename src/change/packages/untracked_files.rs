//! Finds files that appeared during a transaction but belong to no package: created by package scripts, services or an
//! unrelated process. `uninstall` lists them but keeps them, as the package manager does.

use std::collections::BTreeSet;

use camino::Utf8PathBuf;

use super::effects::{OTHERS, OURS, Unowned};
use crate::change::{Applier, ChangeError, Sink};

impl Applier {
    /// Lists the accounts and files that appeared during a transaction and still exist.
    pub(super) async fn report_untracked(
        &self,
        beside: &Unowned,
        sink: &dyn Sink,
    ) -> Result<(), ChangeError> {
        if beside.is_empty() {
            return Ok(());
        }
        let now = self.unowned().await?;
        let is_theirs = |path: &&Utf8PathBuf| {
            !OTHERS.iter().any(|other| path.starts_with(other)) && !path.as_str().contains(OURS)
        };
        let both = |then: &BTreeSet<String>, now: &BTreeSet<String>| -> Vec<String> {
            then.intersection(now).cloned().collect()
        };
        let named = |kind: &str, names: Vec<String>| -> Vec<String> {
            (names.iter().map(|name| format!("{kind} `{name}`"))).collect()
        };
        let mut left = named("user", both(&beside.users, &now.users));
        left.extend(named("group", both(&beside.groups, &now.groups)));
        let etc = beside.etc.intersection(&now.etc).filter(is_theirs);
        left.extend(etc.map(|path| format!("`{path}`")));
        if !left.is_empty() {
            sink.note(&format!(
                "kept, because no package owns them although they appeared while packages were \
                 installed: {}",
                left.join(", ")
            ));
        }
        Ok(())
    }
}
