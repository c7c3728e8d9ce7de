//! Kernel parameters (sysctls) and swap, as the kubelet needs them.

use std::collections::BTreeMap;

use camino::Utf8PathBuf;

use super::{Applier, ChangeError, Reverted, Sink, Undo};
use crate::tools::sysctl;

impl Applier {
    pub(super) fn capture_sysctls(
        &self,
        wanted: &BTreeMap<String, String>,
    ) -> Result<Undo, ChangeError> {
        let mut values = BTreeMap::new();
        for name in wanted.keys() {
            let path = Utf8PathBuf::from(sysctl::path(name));
            // Parameters of a module that is not loaded yet have the module's defaults then, and go with it.
            if let Some(text) = self.host.files.read_text(&path)? {
                values.insert(name.clone(), text.trim().to_owned());
            }
        }
        Ok(Undo::RestoreSysctls { values })
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

    pub(super) async fn restore_sysctls(
        &self,
        values: &BTreeMap<String, String>,
        sink: &dyn Sink,
    ) -> Result<Reverted, ChangeError> {
        let mut restored = Vec::new();
        for (name, value) in values {
            let path = Utf8PathBuf::from(sysctl::path(name));
            let now = self.host.files.read_text(&path)?;
            // A parameter of a module that was unloaded since is gone.
            if now.is_some_and(|now| now.trim() != value) {
                let what = format!("set {name} = {value}");
                self.tool(&what, &sysctl::set(name, value), sink).await?;
                restored.push(format!("{name} = {value}"));
            }
        }
        Ok(match restored.is_empty() {
            true => Reverted::Nothing {
                why: "the kernel parameters are as they were".to_owned(),
            },
            false => Reverted::Done {
                what: format!("set {}", restored.join(", ")),
            },
        })
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
            true => Reverted::Nothing {
                why: "the swap areas are in use".to_owned(),
            },
            false => Reverted::Done {
                what: turned_on.join(", "),
            },
        })
    }
}
