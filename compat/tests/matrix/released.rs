//! The matrix agrees with the documentation of the driver releases (`released-gpus.toml`).

use std::collections::BTreeSet;

use gpu_compat::identity::Flavor;
use gpu_compat::pick::{Constraints, pick};
use gpu_compat::version::DriverVersion;
use serde::Deserialize;

use crate::{gpu, matrix};

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Released {
    releases: Vec<DriverVersion>,
    gpu: Vec<Gpu>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Gpu {
    pci_id: String,
    since: Vec<DriverVersion>,
    #[serde(default)]
    open_since: Vec<DriverVersion>,
}

fn released() -> Released {
    toml::from_str(include_str!("released-gpus.toml")).unwrap()
}

fn knows(since: &[DriverVersion], release: &DriverVersion) -> bool {
    since
        .iter()
        .any(|first| first.branch() == release.branch() && first <= release)
}

/// Boards that are sold only for virtual GPUs: T10 and L40G. The tables list the virtual GPUs, and later the boards under other
/// names.
const FOR_VIRTUAL_GPUS: [&str; 2] = ["10de:1e37", "10de:26b8"];

/// Boards older than all releases in the file, missing in the name tables before 565: P4 and T4.
const NAMED_LATE: [&str; 2] = ["10de:1bb3", "10de:1eb8"];

impl Gpu {
    fn runs_with(&self, release: &DriverVersion, flavor: Flavor) -> bool {
        knows(&self.since, release)
            && (flavor == Flavor::Proprietary || knows(&self.open_since, release))
    }
}

fn constraints(id: &str, candidates: Vec<DriverVersion>, flavor: Option<Flavor>) -> Constraints {
    Constraints {
        gpus: vec![gpu(id)],
        candidates: Some(candidates),
        flavor,
        ..Constraints::default()
    }
}

/// The GPUs with a row in the matrix, and the releases.
fn listed() -> (Vec<Gpu>, Vec<DriverVersion>) {
    let rows: BTreeSet<String> = matrix()
        .gpus
        .iter()
        .map(|row| row.pci_id.to_string())
        .collect();
    let mut released = released();
    released.gpu.retain(|gpu| {
        rows.contains(&gpu.pci_id) && !FOR_VIRTUAL_GPUS.contains(&gpu.pci_id.as_str())
    });
    assert!(released.gpu.len() > 80, "{}", released.gpu.len());
    (released.gpu, released.releases)
}

#[test]
fn selected_release_supports_the_gpu_with_its_flavor() {
    let (gpus, releases) = listed();
    let mut wrong = Vec::new();
    for gpu in &gpus {
        for flavor in [Flavor::Open, Flavor::Proprietary] {
            let constraints = constraints(&gpu.pci_id, releases.clone(), Some(flavor));
            if let Ok(pick) = pick(matrix(), &constraints)
                && !pick.doubtful
                && let Some(version) = &pick.version
                && !gpu.runs_with(version, flavor)
            {
                wrong.push(format!("{} {version} {flavor}", gpu.pci_id));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn release_without_the_gpu_is_incompatible_or_unknown() {
    let (gpus, releases) = listed();
    let mut wrong = Vec::new();
    for gpu in &gpus {
        for release in &releases {
            if knows(&gpu.since, release) || NAMED_LATE.contains(&gpu.pci_id.as_str()) {
                continue;
            }
            let constraints = constraints(&gpu.pci_id, vec![release.clone()], None);
            if pick(matrix(), &constraints).is_ok_and(|pick| !pick.doubtful) {
                wrong.push(format!("{} {release}", gpu.pci_id));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
