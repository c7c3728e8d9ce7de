//! The matrix agrees with what the releases of the driver say about themselves: `released-gpus.toml`.

use std::collections::BTreeSet;

use gpu_bootstrap::compat::pick::{Wish, pick};
use gpu_bootstrap::model::gpu::Flavour;
use gpu_bootstrap::model::version::DriverVersion;
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

/// Boards that are sold for virtual GPUs only: T10 and L40G. The tables name the virtual GPUs and, under
/// other names and later, the boards.
const FOR_VIRTUAL_GPUS: [&str; 2] = ["10de:1e37", "10de:26b8"];

/// Boards older than every release here, which the table of names leaves out before 565: P4 and T4.
const NAMED_LATE: [&str; 2] = ["10de:1bb3", "10de:1eb8"];

impl Gpu {
    fn runs_with(&self, release: &DriverVersion, flavour: Flavour) -> bool {
        knows(&self.since, release)
            && (flavour == Flavour::Proprietary || knows(&self.open_since, release))
    }
}

fn wish(id: &str, candidates: Vec<DriverVersion>, flavour: Option<Flavour>) -> Wish {
    Wish {
        gpus: vec![gpu(id)],
        candidates: Some(candidates),
        flavour,
        ..Wish::default()
    }
}

/// The GPUs that have a row in the matrix, and the releases.
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
fn a_picked_release_knows_the_gpu_in_its_flavour() {
    let (gpus, releases) = listed();
    let mut wrong = Vec::new();
    for gpu in &gpus {
        for flavour in [Flavour::Open, Flavour::Proprietary] {
            let wish = wish(&gpu.pci_id, releases.clone(), Some(flavour));
            if let Ok(pick) = pick(matrix(), &wish)
                && !pick.doubtful
                && let Some(version) = &pick.version
                && !gpu.runs_with(version, flavour)
            {
                wrong.push(format!("{} {version} {flavour}", gpu.pci_id));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn a_release_that_does_not_know_the_gpu_is_refused_or_doubted() {
    let (gpus, releases) = listed();
    let mut wrong = Vec::new();
    for gpu in &gpus {
        for release in &releases {
            if knows(&gpu.since, release) || NAMED_LATE.contains(&gpu.pci_id.as_str()) {
                continue;
            }
            let wish = wish(&gpu.pci_id, vec![release.clone()], None);
            if pick(matrix(), &wish).is_ok_and(|pick| !pick.doubtful) {
                wrong.push(format!("{} {release}", gpu.pci_id));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
