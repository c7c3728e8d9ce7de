//! Selects the companion software of the driver for GPUs that are connected by switches, such as the fabric manager.
//!
//! This software requires a driver of exactly the same version, so its packages are part of the driver packages, and the same
//! transaction installs both at one version (`Guard::exact`). They are only installed if switches are detected,
//! because their scripts start the service, which fails without switches.

use crate::{
    compat::matrix::Fabric,
    config::{
        desired::FabricService,
        profile::{At, FabricRow, Profile},
        template::Placeholders,
    },
    model::version::Branch,
};

/// Returns the entry of this source for the machine and the branch. Without a branch, returns an entry for any branch.
pub(super) fn row<'p>(
    profile: &'p Profile,
    placeholders: &Placeholders,
    source: &str,
    branch: Option<Branch>,
    needs: Fabric,
) -> Option<&'p FabricRow> {
    rows(profile, placeholders, needs)
        .find(|row| row.source == source && branch.is_none_or(|one| row.branches.contains(&one)))
}

/// Returns the entries for the machine, of all sources that provide the required software.
pub(super) fn rows<'p>(
    profile: &'p Profile,
    placeholders: &Placeholders,
    needs: Fabric,
) -> impl Iterator<Item = &'p FabricRow> {
    let (release, arch) = (placeholders.release.clone(), placeholders.arch.clone());
    (profile.fabric.iter()).filter(move |row| {
        row.needs == needs
            && row.releases.contains(&release)
            && (row.architectures.is_empty() || row.architectures.contains(&arch))
    })
}

/// Returns the service of an entry.
pub(super) fn service(
    row: &FabricRow,
    placeholders: &Placeholders,
    branch: Branch,
) -> FabricService {
    FabricService {
        exact: (row.packages.iter())
            .filter(|package| package.at == At::Version)
            .filter_map(|package| placeholders.driver_template(&package.name, branch))
            .collect(),
        unit: row.unit.clone(),
        modules: row.modules.clone(),
    }
}
