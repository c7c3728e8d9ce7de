//! The rows of the built-in matrix are consistent. Rules that also apply to a custom matrix file are tested in the loader
//! (`compat/src/load.rs`).

use std::collections::BTreeSet;

use gpu_compat::identity::{Architecture, SupportedFlavors};
use gpu_compat::matrix::{Confidence, OpenModules};
use gpu_compat::pattern;
use gpu_compat::version::{Branch, DriverVersion};

use crate::matrix;

/// Each branch is listed once, and is in the matrix.
fn are_known_branches(versions: &[DriverVersion]) -> bool {
    let branches: Vec<Branch> = versions.iter().map(DriverVersion::branch).collect();
    let different: BTreeSet<Branch> = branches.iter().copied().collect();
    let known = |branch: &Branch| matrix().branch(*branch).is_some();
    different.len() == branches.len() && branches.iter().all(known)
}

/// The first does not exceed the second, if both are known.
fn ordered<T: PartialOrd>(low: Option<&T>, high: Option<&T>) -> bool {
    low.zip(high).is_none_or(|(low, high)| low <= high)
}

#[test]
fn every_row_has_sources() {
    let text = include_str!("../../cuda-driver-matrix.toml");
    let all: toml::Table = text.parse().unwrap();
    let mut used = BTreeSet::new();
    for (table, value) in &all {
        let one = std::slice::from_ref(value);
        for row in value.as_array().map_or(one, Vec::as_slice) {
            let Some(row) = row.as_table().filter(|_| table != "source") else {
                continue;
            };
            let sources = row["sources"].as_array().unwrap();
            assert!(!sources.is_empty(), "{table}: {row:?}");
            used.extend(sources.iter().map(|key| key.as_str().unwrap()));
        }
    }
    for citation in &matrix().citations {
        let is_used = used.contains(citation.key.as_str());
        assert!(is_used, "no row has source {}", citation.key);
    }
}

#[test]
fn architectures_and_capabilities_are_distinguished() {
    let matrix = matrix();
    let mut prefixes = BTreeSet::new();
    for row in &matrix.architectures {
        for prefix in &row.chip_prefixes {
            assert!(prefixes.insert(prefix), "two architectures have {prefix}");
        }
    }
    let mut versions = BTreeSet::new();
    for row in &matrix.capabilities {
        for version in &row.versions {
            assert!(versions.insert(version), "two rows have {version}");
        }
        assert!(ordered(Some(&row.first_cuda), row.last_cuda.as_ref()));
    }
}

#[test]
fn branches_are_sound() {
    for row in &matrix().branches {
        assert_eq!(row.newest_version.branch(), row.branch);
        match row.open {
            OpenModules::Only => assert!(!row.proprietary, "{}", row.branch),
            OpenModules::None => assert!(row.proprietary, "{}", row.branch),
            OpenModules::Available | OpenModules::Default => {}
        }
    }
}

#[test]
fn toolkits_and_images_are_sound() {
    let matrix = matrix();
    for row in &matrix.toolkits {
        let mut majors = matrix.cuda_majors.iter();
        let known = majors.any(|major| major.major == row.version.major);
        assert!(known, "CUDA {}", row.version);
    }
    for row in &matrix.cuda_images {
        let listed = (matrix.toolkits.iter()).any(|toolkit| toolkit.version == row.version);
        assert!(row.version.patch.is_some() && listed, "{}", row.version);
        assert!(!row.systems.is_empty(), "{}", row.version);
    }
}

#[test]
fn gpus_agree_with_their_architecture_and_capability() {
    let matrix = matrix();
    let known = |name: &Architecture| matrix.architecture(name).unwrap();
    for row in &matrix.gpus {
        let name = &row.name;
        let capability = matrix.capability(row.compute_capability).unwrap();
        assert_eq!(capability.architecture, row.architecture, "{name}");
        let of_all = known(&row.architecture).modules;
        assert!(
            of_all == SupportedFlavors::Either || of_all == row.modules,
            "{name}"
        );
        let first = row.min_drivers.first();
        assert!(ordered(capability.min_driver.as_ref(), first), "{name}");
        assert!(are_known_branches(&row.min_drivers), "{name}");
        assert!(
            row.min_drivers.is_sorted_by_key(DriverVersion::branch),
            "{name}"
        );
        // An unverified row must not exclude a driver.
        assert!(
            row.confidence != Confidence::Unverified || row.min_drivers.is_empty(),
            "{name}"
        );
        for branch in &row.not_named_in {
            // Rows must not repeat `min-drivers`.
            let listed = (row.min_drivers.iter()).any(|version| version.branch() == *branch);
            let first = first.or(row.named_since.as_ref()).unwrap();
            assert!(!listed && *branch >= first.branch(), "{name}: {branch}");
        }
    }
}

#[test]
fn ranges_and_series_have_one_architecture() {
    let matrix = matrix();
    for (index, row) in matrix.chip_ranges.iter().enumerate() {
        assert!(row.first <= row.last, "{}", row.first);
        for other in &matrix.chip_ranges[..index] {
            let overlap = other.contains(row.first) || other.contains(row.last);
            assert!(!overlap, "{} and {}", row.first, other.first);
        }
        if let Some(capability) = row.compute_capability {
            let found = matrix.capability(capability).unwrap();
            assert_eq!(found.architecture, row.architecture, "{}", row.first);
        }
    }
    for row in &matrix.series {
        let chip = row.chip.parse().unwrap();
        assert!(
            matrix.architecture_of_chip(&chip).is_some(),
            "{chip} of {}",
            row.word
        );
        assert!(
            ordered(row.first.as_ref(), row.last.as_ref()),
            "{}",
            row.word
        );
    }
}

#[test]
fn module_options_match_some_machines() {
    for row in &matrix().module_options {
        assert_eq!(row.provider.is_none(), row.instance_types.is_empty());
        assert!(!row.instance_types.is_empty() || !row.gpu_ids.is_empty());
    }
}

#[test]
fn instance_flavors_match_known_instance_types() {
    for row in &matrix().instance_flavors {
        for pattern in &row.instance_types {
            let known = (matrix().instance_types.iter())
                .any(|one| one.provider == row.provider && pattern::matches(pattern, &one.name));
            assert!(known, "{pattern}");
        }
    }
}

#[test]
fn gpu_part_is_not_a_whole_board() {
    let matrix = matrix();
    for row in &matrix.vgpus {
        for profile in &row.profiles {
            let subsystem = Some(profile.subsystem_id);
            let whole = (matrix.gpus.iter())
                .any(|gpu| gpu.pci_id == row.pci_id && gpu.subsystem_id == subsystem);
            assert!(!whole, "{}", profile.name);
        }
    }
}

#[test]
fn security_floors_are_sound() {
    let matrix = matrix();
    for row in &matrix.driver_floors {
        assert!(are_known_branches(&row.first_fixed), "{}", row.bulletin);
    }
    for row in &matrix.package_floors {
        // Epoch and revision are omitted.
        let mut parts = row.first_fixed.split('.');
        let numbers = parts.all(|part| part.parse::<u32>().is_ok());
        assert!(numbers, "{}", row.first_fixed);
    }
}

#[test]
fn kernel_rows_are_sound() {
    let matrix = matrix();
    for row in &matrix.kernel_fixes {
        assert!(are_known_branches(&row.first_fixed), "{}", row.kernel);
        for version in &row.first_fixed {
            let ended = row.never_fixed.contains(&version.branch());
            assert!(!ended, "{}: {version}", row.kernel);
        }
        for version in &row.complete {
            let mut fixed = row.first_fixed.iter();
            let first = fixed.find(|first| first.branch() == version.branch());
            assert!(
                first.is_some_and(|first| first <= version),
                "{}: {version}",
                row.kernel
            );
        }
    }
    for row in &matrix.kernel_limits {
        assert!(
            matrix.branch(row.driver.branch()).is_some(),
            "{}",
            row.driver
        );
        let broken = row.first_broken.as_ref();
        assert!(ordered(Some(&row.newest_kernel), broken), "{}", row.driver);
    }
    for row in &matrix.kernel_oldest {
        assert!(ordered(row.first_driver.as_ref(), row.last_driver.as_ref()));
    }
    for row in &matrix.kernel_reports {
        assert!(
            ordered(row.first_driver.as_ref(), Some(&row.last_driver)),
            "{}",
            row.report
        );
        assert!(
            row.kernel.is_some() || row.ending.is_some(),
            "{}",
            row.report
        );
    }
}
