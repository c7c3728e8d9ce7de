//! Packages of the fabric manager and of the NVLink subnet manager.

use crate::{
    host::{FilesError, Output, Reader},
    model::version::{Branch, DriverVersion},
    state::State,
    tools::packages::Manager,
};

/// Package names. Before branch 580, NVIDIA's repositories have `nvidia-fabricmanager-BRANCH` (apt) and
/// `nvidia-fabric-manager` (dnf). The packages in the Ubuntu archive always contain the branch.
const PACKAGES: [&str; 3] = [
    "nvidia-fabricmanager",
    "nvidia-fabricmanager-*",
    "nvidia-fabric-manager",
];

/// The first branch whose packages have the same name in all repositories (`profiles`, `[[fabric]]`).
const ONE_NAME: Branch = Branch(580);

/// The package of the NVLink subnet manager. The fabric manager starts it on machines that need it.
const SUBNET_MANAGER: &str = "nvlsm";

/// Returns the package of the fabric manager for a driver branch. Before branch 580, its name depends on the package manager
/// (AWS ParallelCluster cookbook; NVIDIA repositories for Ubuntu and RHEL).
pub fn package(branch: Branch, manager: Option<Manager>) -> String {
    match manager {
        Some(manager) if branch < ONE_NAME => match manager.backend().has_branch_in_names() {
            true => format!("nvidia-fabricmanager-{branch}"),
            false => "nvidia-fabric-manager".to_owned(),
        },
        _ => "nvidia-fabricmanager".to_owned(),
    }
}

/// Returns names and versions of the installed packages of the fabric manager.
///
/// # Errors
/// The reason that the installed packages are unknown.
pub async fn installed(state: &State) -> Result<Vec<(String, String)>, String> {
    state.packages_like(&PACKAGES).await
}

/// Whether the package of the subnet manager is installed.
pub async fn has_subnet_manager(state: &State) -> bool {
    let packages = state.packages_like(&[SUBNET_MANAGER]).await;
    packages.is_ok_and(|packages| !packages.is_empty())
}

/// Returns the driver versions for which the package lists contain this package, in ascending order. `None` if there are no
/// lists or they cannot be queried.
///
/// # Errors
/// If the files of the lists cannot be read.
pub async fn offered(
    host: Reader<'_>,
    manager: Manager,
    name: &str,
) -> Result<Option<Vec<DriverVersion>>, FilesError> {
    if !manager.backend().has_lists(host.files(), None)? {
        return Ok(None);
    }
    let answer = host.query(&manager.backend().offers(&[name])).await;
    let Some(output) = answer.ok().filter(Output::ok) else {
        return Ok(None);
    };
    let offers = manager.backend().parse_offers(&output.stdout);
    let mut versions: Vec<DriverVersion> = (offers.iter())
        .filter(|offer| offer.name == name)
        .flat_map(|offer| {
            offer
                .versions
                .iter()
                .map(move |(version, _)| (offer, version))
        })
        .filter(|(offer, version)| offer.has(version))
        .filter_map(|(_, version)| DriverVersion::from_package(version).ok())
        .collect();
    versions.sort_unstable();
    versions.dedup();
    Ok(Some(versions))
}
