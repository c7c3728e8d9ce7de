//! The registry of the findings of `check`: their inputs, their conditions, their kind and their remedy class. The rows are in
//! `findings.toml`.

use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

use super::{id::Id, text::built_in};

/// The layer of a finding. Each layer needs the layers before it, so the first layer with a problem has the root cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Layer {
    /// Operating system, firmware and virtualization.
    Machine,
    /// GPUs on the PCI bus.
    Bus,
    /// The driver, its packages, and the GPU state that it reports.
    Driver,
    /// `NVSwitch` and `NVLink`.
    Fabric,
    /// Container runtimes and the toolkit.
    Runtime,
    /// The node as a whole, and its cluster.
    Node,
}

impl Layer {
    /// All layers, from the bottom of a node to its top.
    pub const ALL: [Self; 6] = [
        Self::Machine,
        Self::Bus,
        Self::Driver,
        Self::Fabric,
        Self::Runtime,
        Self::Node,
    ];

    /// Its name in documents.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Machine => "machine",
            Self::Bus => "bus",
            Self::Driver => "driver",
            Self::Fabric => "fabric",
            Self::Runtime => "runtime",
            Self::Node => "node",
        }
    }

    /// Whether its findings only pass if the driver works.
    pub const fn needs_driver(self) -> bool {
        matches!(self, Self::Driver | Self::Fabric | Self::Runtime)
    }

    /// The layer of a finding.
    pub fn of(id: &Id) -> Self {
        row(id).map_or(Self::Node, |row| row.layer)
    }
}

/// The kind of a problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// The machine does not work.
    Fault,
    /// It works, but may fail later.
    Risk,
    /// It differs from the settings.
    Difference,
}

impl Kind {
    /// Its name in documents.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fault => "fault",
            Self::Risk => "risk",
            Self::Difference => "difference",
        }
    }
}

/// The class of a remedy, by which a controller that repairs nodes selects an action.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Remedy {
    /// No action is needed or possible.
    None,
    /// `gpu-bootstrap install`, or the administrator changes files or packages.
    Reconfigure,
    RestartService,
    /// A restart of the programs that use the GPUs.
    RestartApp,
    /// A reset of GPUs, or a reboot.
    ResetGpu,
    Reboot,
    /// A power cycle of the machine, or a stop and start of the instance.
    PowerCycle,
    /// A newer driver or package.
    Update,
    /// Inspection of seats, cables, fans and power.
    CheckMechanics,
    /// A replacement of the GPU or the machine.
    Replace,
    /// A support request to the vendor.
    ContactSupport,
}

impl Remedy {
    /// Its name in documents.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Reconfigure => "reconfigure",
            Self::RestartService => "restart-service",
            Self::RestartApp => "restart-app",
            Self::ResetGpu => "reset-gpu",
            Self::Reboot => "reboot",
            Self::PowerCycle => "power-cycle",
            Self::Update => "update",
            Self::CheckMechanics => "check-mechanics",
            Self::Replace => "replace",
            Self::ContactSupport => "contact-support",
        }
    }
}

/// A row of the registry.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct FindingRow {
    /// The stable name.
    pub id: Id,
    /// The layer of its subject.
    pub layer: Layer,
    /// The kind of a failure. A warning of a fault row is a risk.
    pub kind: Kind,
    /// The title in reports.
    pub title: String,
    /// The data that is read.
    pub looks: String,
    /// The condition for a failure.
    pub fails: Option<String>,
    /// The condition for a warning.
    pub warns: Option<String>,
    /// Parts of messages of other programs that this finding explains, for `explain`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub prints: Vec<String>,
    /// The remedy class.
    pub remedy: Remedy,
    /// A command that shows details.
    pub next: Option<String>,
    /// The source of the rule.
    pub source: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FindingTable {
    finding: Vec<FindingRow>,
}

static ROWS: LazyLock<Vec<FindingRow>> = LazyLock::new(|| {
    let table: FindingTable = built_in("findings").expect("a test reads the table");
    table.finding
});

/// All rows, in the order of layers.
pub fn rows() -> &'static [FindingRow] {
    &ROWS
}

/// The row of a finding.
pub fn row(id: &Id) -> Option<&'static FindingRow> {
    ROWS.iter().find(|row| row.id == *id)
}

/// The title of a finding or a step, or its ID if it has no title.
pub fn title(id: &Id) -> &str {
    row(id).map_or(id.as_str(), |row| &row.title)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{Remedy, rows};

    #[test]
    fn rows_are_complete_and_in_layer_order() {
        assert!(rows().is_sorted_by_key(|row| row.layer));
        let names: BTreeSet<_> = rows().iter().map(|row| &row.id).collect();
        let titles: BTreeSet<_> = rows().iter().map(|row| &row.title).collect();
        assert_eq!(names.len(), rows().len());
        assert_eq!(titles.len(), rows().len());
        for row in rows() {
            let id = row.id.as_str();
            // `os.managed` has no condition: it only reports the owner of the driver.
            let has_condition = row.fails.is_some() || row.warns.is_some() || id == "os.managed";
            assert!(has_condition, "{id}");
            let sentences = [Some(&row.looks), row.fails.as_ref(), row.warns.as_ref()];
            for sentence in sentences.into_iter().flatten() {
                assert!(sentence.ends_with('.'), "{id}: {sentence}");
            }
            let source = row.source.as_deref().unwrap_or("https://");
            assert!(source.starts_with("https://"), "{id}");
            // An unsupported GPU has no remedy.
            let has_remedy = row.remedy != Remedy::None || row.fails.is_none();
            assert!(has_remedy || id == "drv.gpu.supported", "{id}");
        }
    }
}
