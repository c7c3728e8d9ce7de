//! Chooses what runs beside the driver where GPUs reach others through switches.
//!
//! It works only beside the driver of exactly its version, so its packages belong to those of the
//! driver, and a transaction takes them at the driver's version (`Guard::exact`). They are wanted only
//! where switches are seen: their own scripts start the service, which fails without switches.

use crate::{
    compat::matrix::Fabric,
    config::{
        desired::FabricService,
        profile::{At, FabricRow, Profile},
        template::Placeholders,
    },
    model::version::Branch,
};

/// The row of a profile for this machine; of any branch where none is named.
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

/// The rows of all sources that have what the hardware needs.
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

/// The service of a row.
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
