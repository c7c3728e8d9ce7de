//! The registry of `check`'s findings: what each looks at, when it fails, and what mends it. The rows are in
//! `findings.toml`.

use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

use super::id::Id;

/// The layer of a finding, in the order in which a node is built: the first layer with a problem has
/// the root cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Layer {
    /// Operating system, firmware and virtualization.
    Machine,
    /// GPUs on the PCI bus.
    Bus,
    /// The driver, its packages, and what it says of the GPUs.
    Driver,
    /// `NVSwitch` and `NVLink`.
    Fabric,
    /// Container runtimes and the toolkit.
    Runtime,
    /// The whole node, and whether this program can prepare it: a fault of the machine is named before
    /// that nobody here repairs it.
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
    #[must_use]
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

    /// The layer of a finding of this name.
    #[must_use]
    pub fn of(id: &Id) -> Self {
        row(id).map_or(Self::Node, |row| row.layer)
    }
}

/// What kind of act mends a finding; a controller that repairs nodes chooses by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Remedy {
    /// Nothing is to be mended, or nobody can.
    None,
    /// `gpu-bootstrap install`, or a person's change of files or packages.
    Reconfigure,
    RestartService,
    /// A restart of the programs that use the GPUs.
    RestartApp,
    /// A reset of GPUs, or a reboot.
    ResetGpu,
    Reboot,
    /// The machine switched off and on; an instance stopped and started.
    PowerCycle,
    /// A newer driver or package.
    Update,
    /// A look at seats, cables, fans and power.
    CheckMechanics,
    /// A replacement of the GPU or the machine.
    Replace,
    /// A question to the vendor.
    ContactSupport,
}

impl Remedy {
    /// Its name in documents.
    #[must_use]
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

/// What is known of a finding.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct FindingRow {
    /// The stable name.
    pub id: Id,
    /// How deep it is.
    pub layer: Layer,
    /// The title for people.
    pub title: String,
    /// What is read.
    pub looks: String,
    /// When it fails.
    pub fails: Option<String>,
    /// When it warns.
    pub warns: Option<String>,
    /// What mends it.
    pub remedy: Remedy,
    /// A command that shows more, or mends it.
    pub next: Option<String>,
    /// Where the rule comes from.
    pub source: Option<String>,
    /// A failure keeps this program from doing what the settings want; the machine may work without.
    #[serde(default)]
    pub wish: bool,
    /// A warning is about a GPU, a link or the driver at work, and not about a version, a source or a setting.
    #[serde(default)]
    pub health: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FindingTable {
    finding: Vec<FindingRow>,
}

static ROWS: LazyLock<Vec<FindingRow>> = LazyLock::new(|| {
    let table: FindingTable =
        toml::from_str(include_str!("findings.toml")).expect("a test reads the table");
    table.finding
});

/// All rows, in the order of layers.
#[must_use]
pub fn rows() -> &'static [FindingRow] {
    &ROWS
}

/// The row of a finding.
#[must_use]
pub fn row(id: &Id) -> Option<&'static FindingRow> {
    ROWS.iter().find(|row| row.id == *id)
}

/// The title of a finding or a step; its name where it has none.
#[must_use]
pub fn title(id: &Id) -> &str {
    row(id).map_or(id.as_str(), |row| &row.title)
}

/// Whether a failure of this name is about what this program would like, and not about the machine's health.
#[must_use]
pub fn is_wish(id: &Id) -> bool {
    row(id).is_some_and(|row| row.wish)
}

/// Whether a warning of this name is about the machine's health, and not about what this program would like.
#[must_use]
pub fn is_health(id: &Id) -> bool {
    row(id).is_some_and(|row| row.health)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{Remedy, rows};

    #[test]
    fn rows_are_in_the_order_of_layers_and_say_when_they_speak() {
        assert!(rows().is_sorted_by_key(|row| row.layer));
        let names: BTreeSet<_> = rows().iter().map(|row| &row.id).collect();
        let titles: BTreeSet<_> = rows().iter().map(|row| &row.title).collect();
        assert_eq!(names.len(), rows().len());
        assert_eq!(titles.len(), rows().len());
        for row in rows() {
            let id = row.id.as_str();
            // That somebody else manages the driver is told, and is no fault.
            let speaks = row.fails.is_some() || row.warns.is_some() || id == "os.managed";
            assert!(speaks, "{id}");
            let sentences = [Some(&row.looks), row.fails.as_ref(), row.warns.as_ref()];
            for sentence in sentences.into_iter().flatten() {
                assert!(sentence.ends_with('.'), "{id}: {sentence}");
            }
            let source = row.source.as_deref().unwrap_or("https://");
            assert!(source.starts_with("https://"), "{id}");
            assert!(!row.health || row.warns.is_some() && !row.wish, "{id}");
            // Only an old GPU has no remedy.
            let has_remedy = row.remedy != Remedy::None || row.fails.is_none();
            assert!(has_remedy || id == "drv.gpu.supported", "{id}");
        }
    }
}
