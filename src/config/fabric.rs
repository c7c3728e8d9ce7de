//! Selects the companion software of the driver for GPUs that are connected by switches, such as the fabric manager.
//!
//! This software requires a driver of exactly the same version, so its packages are part of the driver packages, and the same
//! transaction installs both at one version (`Guard::exact`). They are only installed if switches are detected,
//! because their scripts start the service, which fails without switches.

use crate::{
    compat::{
        matrix::Fabric,
        pick::{Constraints, Pick},
    },
    config::{
        driver::DriverInputs,
        profile::{At, FabricRow, PackageRow},
    },
    fabric::{Companions, Service},
    facts::switches::switches,
    model::version::Branch,
};

/// The companion software of a selected driver.
pub(super) struct CompanionChoice<'p> {
    pub software: Companions,
    /// Its packages. Those at the driver version require a driver of exactly that version.
    pub packages: &'p [PackageRow],
    /// The reason for the source, if only another source than the default one has this software.
    pub reason: Option<String>,
    pub warning: Option<String>,
}

impl<'a> DriverInputs<'a> {
    /// Selects the companion software of a driver from this source.
    pub(super) fn companions(&self, source: &str, pick: &Pick) -> CompanionChoice<'a> {
        let needs = self.seen(pick.fabric);
        let row = (self.fabric_rows(needs))
            .find(|row| row.source == source && row.branches.contains(&pick.branch));
        let warning = match pick.fabric {
            // The GPUs of one node work without IMEX.
            Fabric::Imex if row.is_none() => Some(format!(
                "multi-node NVLink requires IMEX, which `{source}` does not provide"
            )),
            // No warning: either no fabric is needed, or it certainly is, and the `driver.fabric` step reports its state.
            picked if picked == needs => None,
            Fabric::None | Fabric::Imex => None,
            Fabric::Fm | Fabric::FmNvlsm => Some(
                "the GPUs need the fabric manager if the machine has NVSwitches, so it is installed \
                 when NVSwitches are detected"
                    .to_owned(),
            ),
        };
        CompanionChoice {
            software: Companions {
                needs,
                service: row.map(|row| self.service(row, pick.branch)),
            },
            packages: row.map_or(&[], |row| &row.packages),
            reason: self.source_for_switches().map(|source| {
                format!(
                    "packages from `{source}`: `{}` has no fabric manager",
                    self.release.driver_source
                )
            }),
            warning,
        }
    }

    /// Whether two drivers need the same companion software.
    pub(super) fn has_same_companions(one: &Pick, other: &Pick) -> bool {
        one.fabric == other.fabric
    }

    /// Returns the software if this machine certainly needs it, because its switches were detected, or its boards require the
    /// switches of a rack.
    fn seen(&self, fabric: Fabric) -> Fabric {
        let spec = self.spec();
        let seen = match fabric {
            Fabric::Fm => spec.nvswitch,
            Fabric::FmNvlsm => spec.nvlink_management,
            Fabric::Imex => Some(true),
            Fabric::None => None,
        };
        if seen == Some(true) {
            fabric
        } else {
            Fabric::None
        }
    }

    /// Returns a source with a fabric manager for this machine, if the default source of the release has none and no
    /// source is configured.
    pub(super) fn source_for_switches(&self) -> Option<&'a str> {
        if self.config.source.is_some() {
            return None;
        }
        let boards = self.gpus.iter().map(|gpu| self.matrix.board(gpu).fabric());
        let needs = self.seen(boards.max().unwrap_or(Fabric::None));
        let own = &self.release.driver_source;
        let mut rows = self.fabric_rows(needs);
        let first = rows.next()?;
        let of_own = first.source == *own || rows.any(|row| row.source == *own);
        (!of_own).then_some(first.source.as_str())
    }

    /// Sets whether the machine has NVSwitches, and whether a network device manages its switches. The matrix also shows
    /// switches that are not visible in the facts.
    pub(super) fn with_switches(&self, facts: Constraints) -> Constraints {
        let switches = switches(self.matrix, self.facts);
        let shown =
            |kind| (switches.as_ref()).and_then(|(fabric, _)| (*fabric == kind).then_some(true));
        Constraints {
            // Without a machine, only an instance type shows that there are no switches.
            nvswitch: shown(Fabric::Fm)
                .or(facts
                    .nvswitch
                    .filter(|_| !self.trial || self.facts.cloud.instance_type.is_some()))
                .filter(|_| !self.image),
            nvlink_management: (shown(Fabric::FmNvlsm))
                .or(facts.nvlink_management)
                .filter(|_| !self.image),
            ..facts
        }
    }

    /// Returns the entries for the machine, of all sources that provide the required software.
    fn fabric_rows(&self, needs: Fabric) -> impl Iterator<Item = &'a FabricRow> {
        let (release, arch) = (&self.placeholders.release, &self.placeholders.arch);
        (self.profile.fabric.iter()).filter(move |row| {
            row.needs == needs
                && row.releases.contains(release)
                && (row.architectures.is_empty() || row.architectures.contains(arch))
        })
    }

    /// Returns the setup of an entry.
    fn service(&self, row: &FabricRow, branch: Branch) -> Service {
        Service {
            exact: (row.packages.iter())
                .filter(|package| package.at == At::Version)
                .filter_map(|package| self.placeholders.driver_template(&package.name, branch))
                .collect(),
            unit: row.unit.clone(),
            modules: row.modules.clone(),
        }
    }
}
