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
    ResetFabric,
    Reboot,
    /// Check cables and seating.
    CheckMechanics,
    /// Power-cycle the machine.
    RestartMachine,
}

impl XidAction {
    /// The remedy, as text.
    #[must_use]
    pub const fn remedy(self) -> &'static str {
        match self {
            Self::None => "no action is needed: the driver handled the error",
            Self::RestartApp => "restart the application",
            // Only Xid 78 asks for an update.
            Self::Update => {
                "install the vGPU guest driver that matches the vGPU release of the hypervisor"
            }
            Self::ContactSupport => "run `nvidia-bug-report.sh`, and contact NVIDIA",
            Self::ResetGpu => "reboot, or run `nvidia-smi --gpu-reset` when the GPU is unused",
            Self::ResetFabric => {
                "drain the node, then reboot it, or reset all its GPUs at once with `nvidia-smi --gpu-reset`"
            }
            Self::Reboot => "drain the node, then reboot it",
            Self::CheckMechanics => "check the power cables and the seat of the GPU",
            Self::RestartMachine => {
                "stop and start the cloud instance (this deletes its local disks), or switch the machine off and on"
            }
        }
    }
}

/// An error.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Xid {
    /// The required action.
    pub action: XidAction,
    /// A description of the error.
    pub what: String,
}

#[derive(Deserialize)]
struct XidTable {
    xid: BTreeMap<String, Xid>,
}

/// Returns the entry of a number, or `None` if the number is unknown.
#[must_use]
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
            assert_eq!(of(code).map(|xid| xid.action), Some(XidAction::ResetFabric));
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
