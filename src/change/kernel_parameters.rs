//! Kernel parameters (sysctls) and swap settings that the kubelet requires.

use std::collections::BTreeMap;

use camino::{Utf8Path, Utf8PathBuf};

use super::{Applier, ChangeError, Reverted, Sink, Undo};
use crate::{runtimes::RuntimeKind, tools::sysctl};

/// The reason a network setting is kept.
pub(super) fn needed_by(bridges: &[String]) -> String {
    format!(
        "other containers or virtual machines may need it, because these bridges exist: {}",
        bridges.join(", ")
    )
}

impl Applier {
    pub(super) fn capture_sysctls(
        &self,
        wanted: &BTreeMap<String, String>,
    ) -> Result<Undo, ChangeError> {
        let mut values = BTreeMap::new();
        for name in wanted.keys() {
            let path = Utf8PathBuf::from(sysctl::path(name));
            // Parameters of an unloaded module get the module's defaults when it is loaded, and disappear with it.
            if let Some(text) = self.host.files.read_text(&path)? {
                values.insert(name.clone(), text.trim().to_owned());
            }
        }
        Ok(Undo::RestoreSysctls {
            values,
            ours: wanted.clone(),
        })
    }

    pub(super) async fn set_sysctls(
        &self,
        values: &BTreeMap<String, String>,
        sink: &dyn Sink,
    ) -> Result<(), ChangeError> {
        for (name, value) in values {
            let what = format!("set {name} = {value}");
            self.tool(&what, &sysctl::set(name, value), sink).await?;
        }
        Ok(())
    }

    /// Restores the previous values of kernel parameters. A parameter that no longer has our value was changed by another
    /// program and is kept. Network parameters are kept until the next boot if other containers or virtual machines may need
    /// them: their daemons set the same values, so our value may also be theirs.
    pub(super) async fn restore_sysctls(
        &self,
        values: &BTreeMap<String, String>,
        ours: &BTreeMap<String, String>,
        sink: &dyn Sink,
    ) -> Result<Reverted, ChangeError> {
        let bridges = self.bridges_of_others().await?;
        let (mut restored, mut stay) = (Vec::new(), Vec::new());
        for (name, value) in values {
            let path = Utf8PathBuf::from(sysctl::path(name));
            // The module of this parameter was unloaded.
            let Some(now) = self.host.files.read_text(&path)? else {
                continue;
            };
            let is_ours = ours.get(name).is_none_or(|ours| now.trim() == ours);
            if now.trim() == value || !is_ours {
                continue;
            }
            if name.starts_with("net.") && !bridges.is_empty() {
                stay.push(format!("{name} = {}", now.trim()));
                continue;
            }
            let what = format!("set {name} = {value}");
            self.tool(&what, &sysctl::set(name, value), sink).await?;
            restored.push(format!("{name} = {value}"));
        }
        let mut endings = Vec::new();
        if !stay.is_empty() {
            endings.push(Reverted::left(
                format!(
                    "the kernel parameters {}, until the next boot",
                    stay.join(", ")
                ),
                needed_by(&bridges),
            ));
        }
        endings.push(match restored.is_empty() {
            true => Reverted::nothing("the kernel parameters are unchanged"),
            false => Reverted::done(format!("set {}", restored.join(", "))),
        });
        Ok(Reverted::of(endings))
    }

    /// The network bridges for which the kernel forwards and filters packets of other programs: bridges with an interface of a
    /// container or a virtual machine, and bridges whose daemon may add one. The pod bridge counts only if it has interfaces,
    /// because it remains when the node leaves its cluster.
    pub(super) async fn bridges_of_others(&self) -> Result<Vec<String>, ChangeError> {
        let (files, directory) = (&self.host.files, Utf8Path::new(sysctl::INTERFACES));
        let mut found = Vec::new();
        for name in files.list(directory)? {
            let interface = directory.join(&name);
            if !files.exists(&interface.join("bridge"))? {
                continue;
            }
            let is_used = !files.list(&interface.join("brif"))?.is_empty();
            let mut known = RuntimeKind::ALL
                .into_iter()
                .map(|kind| kind.runtime().facts());
            let whose = known.find(|facts| facts.bridge == Some(&*name));
            let may_be_used = match whose.and_then(|facts| facts.unit) {
                _ if name == sysctl::BRIDGE_OF_PODS => false,
                Some(unit) => {
                    (self.unit_state_if_any(unit).await?).is_some_and(|unit| unit.is_active())
                }
                None => true,
            };
            if is_used || may_be_used {
                found.push(name);
            }
        }
        Ok(found)
    }

    pub(super) async fn turn_off_swap(
        &self,
        areas: &[String],
        sink: &dyn Sink,
    ) -> Result<(), ChangeError> {
        for area in areas {
            let cmd = sysctl::swap_off(area);
            self.tool(&format!("turn off swap on `{area}`"), &cmd, sink)
                .await?;
        }
        Ok(())
    }

    pub(super) async fn turn_on_swap(
        &self,
        areas: &[String],
        sink: &dyn Sink,
    ) -> Result<Reverted, ChangeError> {
        let table = self.host.files.read_text(sysctl::SWAPS.into())?;
        let now = sysctl::parse_swaps(&table.unwrap_or_default());
        let mut turned_on = Vec::new();
        for area in areas.iter().filter(|area| !now.contains(area)) {
            let what = format!("turn on swap on `{area}`");
            let cmd = sysctl::swap_on(area);
            self.tool(&what, &cmd, sink).await?;
            turned_on.push(what);
        }
        Ok(match turned_on.is_empty() {
            true => Reverted::nothing("the swap areas are already in use"),
            false => Reverted::done(turned_on.join(", ")),
        })
    }
}
