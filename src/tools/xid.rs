//! Descriptions and actions for NVIDIA driver error numbers (Xid), from the table `xid.toml`.

use std::{collections::BTreeMap, sync::LazyLock};

use serde::Deserialize;

use crate::model::text::built_in;

static TABLE: LazyLock<BTreeMap<u32, Xid>> = LazyLock::new(|| {
    let table: XidTable = built_in("xid").expect("the built-in table is valid, as a test checks");
    (table.xid.into_iter())
        .filter_map(|(code, xid)| Some((code.parse().ok()?, xid)))
        .collect()
});

/// NVIDIA's catalog of Xid errors.
pub const CATALOG: &str = "https://docs.nvidia.com/deploy/xid-errors/index.html";

/// The remedy for a GPU that a reboot does not recover.
pub const POWER: &str = "run `systemctl poweroff`, then switch the machine on again, because a reboot does not cut the power \
                         of the GPU; if the machine is a cloud instance, stop and start the instance instead, which \
                         erases its local disks";

/// The remedy that resets a GPU.
pub const RESET: &str = "run `nvidia-smi --gpu-reset`, after all programs that use the GPU have stopped; if it fails, reboot, which \
                         stops all workloads";

/// The action that an error requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum XidAction {
    /// No action: the driver has handled the error.
    None,
    /// Restart the application.
    RestartApp,
    /// Install a newer driver or firmware.
    Update,
    /// Contact the vendor.
    ContactSupport,
    ResetGpu,
    /// Reset all GPUs that are connected by NVLink.
    ResetAllGpus,
    Reboot,
    /// Check cables and seating.
    CheckMechanics,
    /// Power-cycle the machine.
    RestartMachine,
}

impl XidAction {
    /// The remedy, as text. An entry in the table can override it ([`Xid::remedy`]).
    pub const fn remedy(self) -> &'static str {
        match self {
            Self::None => "no action is needed: the driver handled the error",
            Self::RestartApp => "restart the application",
            // Only Xid 78 requires an update.
            Self::Update => {
                "install the vGPU guest driver that matches the vGPU release of the hypervisor"
            }
            Self::ContactSupport => "run `nvidia-bug-report.sh` and send its output to NVIDIA",
            Self::ResetGpu => RESET,
            Self::ResetAllGpus => {
                "reboot after draining the node, which stops all its workloads (or reset all its GPUs at once with \
                 `nvidia-smi --gpu-reset`); if the error recurs, contact the hardware vendor"
            }
            Self::Reboot => {
                "reboot after draining the node, which stops all its workloads; if the error recurs, contact the hardware \
                 vendor"
            }
            Self::CheckMechanics => "check the power cables and reseat the GPU",
            Self::RestartMachine => POWER,
        }
    }
}

/// An entry of the table.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Xid {
    /// The required action.
    pub action: XidAction,
    /// A description of the error.
    pub what: String,
    /// Memory of the GPU is faulty.
    #[serde(default)]
    pub memory: bool,
    /// The remedy, if it is not that of the action.
    #[serde(default)]
    pub remedy: Option<String>,
    /// The remedy for GPUs before Ampere, if it differs.
    #[serde(default)]
    pub before_ampere: Option<String>,
}

impl Xid {
    /// The remedy, as text.
    pub fn remedy(&self) -> String {
        let remedy = self.remedy.as_deref().unwrap_or(self.action.remedy());
        match &self.before_ampere {
            Some(before) => format!("{remedy}. Before Ampere: {before}"),
            None => remedy.to_owned(),
        }
    }
}

#[derive(Deserialize)]
struct XidTable {
    xid: BTreeMap<String, Xid>,
}

/// Returns the entry of a number, or `None` if the number is unknown.
pub fn of(code: u32) -> Option<&'static Xid> {
    TABLE.get(&code)
}

#[cfg(test)]
mod tests {
    use super::{TABLE, XidAction, of};

    #[test]
    fn table_is_complete() {
        assert!(TABLE.len() > 65);
        for code in 144..=150 {
            assert_eq!(
                of(code).map(|xid| xid.action),
                Some(XidAction::ResetAllGpus)
            );
        }
        assert_eq!(
            of(79).map(|xid| xid.action),
            Some(XidAction::RestartMachine)
        );
        assert_eq!(of(13).map(|xid| xid.action), Some(XidAction::RestartApp));
        assert_eq!(of(163).map(|xid| xid.action), Some(XidAction::None));
        assert_eq!(of(4711), None);
        assert!(TABLE.values().all(|xid| !xid.what.is_empty()));
    }
}
