//! Properties of selections for random constraints, and the bounds in the rows of GPUs, CUDA versions and kernels.

use std::cell::Cell;

use gpu_compat::identity::{Flavor, GpuIdentity, SupportedFlavors};
use gpu_compat::kernel;
use gpu_compat::matrix::{Confidence, Gpu, Matrix, OpenModules};
use gpu_compat::pick::{Constraints, pick};
use gpu_compat::rule_result::{Candidate, Evaluation, Rule};
use gpu_compat::rules::{self, Needs};
use gpu_compat::version::{CudaVersion, DriverVersion, KernelVersion};
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use proptest::test_runner::TestRunner;

use crate::matrix;

const FLAVORS: [Flavor; 2] = [Flavor::Open, Flavor::Proprietary];

fn identity(row: &Gpu) -> GpuIdentity {
    GpuIdentity {
        pci_id: row.pci_id,
        subsystem_id: row.subsystem_id,
        chip_name: None,
    }
}

/// The rules that reject a driver for these GPUs and CUDA versions.
fn refusals(
    gpus: &[GpuIdentity],
    cuda: &[CudaVersion],
    version: &DriverVersion,
    flavor: Flavor,
) -> Vec<Rule> {
    let needs = Needs {
        boards: gpus.iter().map(|gpu| matrix().board(gpu)).collect(),
        kernels: Vec::new(),
        arch: None,
        cuda: cuda.to_vec(),
        cudnn: None,
        flavor: None,
    };
    let version = version.clone();
    let mut found = rules::evaluate(matrix(), &needs, &Candidate { version, flavor });
    found.retain(|one| one.evaluation == Evaluation::Refuse);
    found.iter().map(|one| one.rule).collect()
}

fn constraints() -> impl Strategy<Value = Constraints> {
    let matrix = matrix();
    let boards: Vec<GpuIdentity> = matrix.gpus.iter().map(identity).collect();
    let cuda: Vec<CudaVersion> = matrix.toolkits.iter().map(|row| row.version).collect();
    let fixes = matrix.kernel_fixes.iter();
    let kernels: Vec<KernelVersion> = fixes.map(|row| row.kernel.clone()).collect();
    let mut versions: Vec<DriverVersion> = (matrix.gpus.iter())
        .flat_map(|row| row.min_drivers.clone())
        .collect();
    versions.extend(matrix.branches.iter().map(|row| row.newest_version.clone()));
    versions.sort();
    (
        prop::collection::vec(select(boards), 0..3),
        prop::option::of(select(kernels)),
        prop::collection::vec(select(cuda), 0..2),
        prop::option::of(subsequence(versions, 1..=40)),
    )
        .prop_map(|(gpus, kernel, cuda, candidates)| Constraints {
            gpus,
            kernel,
            cuda,
            candidates,
            ..Constraints::default()
        })
}

#[test]
fn selections_agree_with_each_other() {
    let [selected, nearest, newer] = [const { Cell::new(0) }; 3];
    let config = ProptestConfig {
        cases: 400,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let property = |mut asked: Constraints| {
        let candidates = asked.candidates.as_deref().unwrap_or_default();
        // A newer version of a branch supports all GPUs and CUDA versions of an older one.
        let is_branch = |pair: &&[DriverVersion]| pair[0].branch() == pair[1].branch();
        for pair in candidates.windows(2).filter(is_branch) {
            newer.set(newer.get() + 1);
            for flavor in FLAVORS {
                let rules = |version| refusals(&asked.gpus, &asked.cuda, version, flavor);
                let (older, newer) = (rules(&pair[0]), rules(&pair[1]));
                prop_assert!(newer.iter().all(|rule| older.contains(rule)), "{pair:?}");
            }
        }
        // The selected driver and the nearest one are also selected as constraints.
        let found = match pick(matrix(), &asked) {
            Ok(found) => {
                selected.set(selected.get() + 1);
                found
            }
            Err(refusal) => {
                prop_assert!(!refusal.reasons.is_empty() && !refusal.nearest.is_empty());
                let Some(near) = refusal.nearest_pick else {
                    return Ok(());
                };
                nearest.set(nearest.get() + 1);
                (asked.kernel, asked.cuda, asked.candidates) = (None, Vec::new(), None);
                *near
            }
        };
        prop_assert!(!found.assumed && (found.doubtful || !found.citations.is_empty()));
        let version = &found.recommended;
        let rules = refusals(&asked.gpus, &asked.cuda, version, found.flavor);
        prop_assert!(rules.is_empty(), "{found:?}");
        (asked.branch, asked.version) = (Some(found.branch), Some(version.clone()));
        asked.flavor = Some(found.flavor);
        let again = pick(matrix(), &asked).expect("the same driver");
        prop_assert_eq!(again.recommended, found.recommended);
        Ok(())
    };
    let ran = TestRunner::new(config).run(&constraints(), property);
    ran.unwrap_or_else(|error| panic!("{error}"));
    // A property without samples is not tested.
    for count in [selected, nearest, newer] {
        assert!(count.get() > 0);
    }
}

#[test]
fn bounds_of_gpus_and_branches() {
    let matrix = matrix();
    let generation = |name| matrix.generation(name);
    for gpu in &matrix.gpus {
        let name = &gpu.name;
        let rules =
            |version: &DriverVersion, flavor| refusals(&[identity(gpu)], &[], version, flavor);
        let mut firsts = gpu.min_drivers.clone();
        if firsts.is_empty() {
            let capability = matrix.capability(gpu.compute_capability).unwrap();
            firsts.extend(capability.min_driver.clone());
        }
        for first in &firsts {
            let [lowest, _] = DriverVersion::bounds(first.branch());
            let found = [&lowest, first].map(|version| rules(version, Flavor::Open));
            let found = found.map(|rules| rules.contains(&Rule::MinDriver));
            assert_eq!(found, [true, false], "{name}: {first}");
        }
        let first = firsts.first().map(DriverVersion::branch);
        let last = matrix.architecture(&gpu.architecture).unwrap().last_branch;
        for row in &matrix.branches {
            let is_older = generation(&row.newest_architecture) < generation(&gpu.architecture);
            let [_, newest] = DriverVersion::bounds(row.branch);
            let [open, other] = FLAVORS.map(|flavor| rules(&newest, flavor));
            for (found, rule, expected) in rows! {
                &open, Rule::MinDriver, first.is_some_and(|first| row.branch < first);
                &open, Rule::NewestArchitecture, first.is_none() && is_older;
                &open, Rule::LastBranch, last.is_some_and(|last| row.branch > last);
                &open, Rule::BoardFlavor, gpu.modules == SupportedFlavors::Proprietary;
                &open, Rule::BranchFlavor, row.open == OpenModules::None;
                &other, Rule::BoardFlavor, gpu.modules == SupportedFlavors::Open;
                &other, Rule::BranchFlavor, !row.proprietary;
            } {
                let is_found = found.contains(&rule);
                assert_eq!(is_found, expected, "{name} {}: {rule:?}", row.branch);
            }
        }
    }
}

#[test]
fn bounds_of_cuda_versions() {
    let matrix = matrix();
    let gpus: Vec<GpuIdentity> = matrix.gpus.iter().map(identity).collect();
    for toolkit in &matrix.toolkits {
        let cuda = toolkit.version;
        let rejects = |gpus: &[GpuIdentity], version: &DriverVersion, rules: &[Rule]| {
            let found = refusals(gpus, &[cuda], version, Flavor::Open);
            found.iter().any(|rule| rules.contains(rule))
        };
        let major = matrix
            .cuda_majors
            .iter()
            .find(|row| row.major == cuda.major);
        let within_major = major.and_then(|row| row.minor_version_min_driver.as_ref());
        let first = within_major.or(toolkit.min_driver.as_ref()).unwrap();
        let [lowest, _] = DriverVersion::bounds(first.branch());
        let of_driver = [Rule::CudaDriver, Rule::ForwardCompat];
        let found = [&lowest, first].map(|version| rejects(&[], version, &of_driver));
        assert_eq!(found, [true, false], "CUDA {cuda}: {first}");
        for (gpu, row) in gpus.chunks(1).zip(&matrix.gpus) {
            let last = matrix.capability(row.compute_capability).unwrap().last_cuda;
            let expected = last.is_some_and(|last| cuda.minor_version() > last.minor_version());
            let found = rejects(gpu, first, &[Rule::CudaArchitecture]);
            assert_eq!(found, expected, "{}: CUDA {cuda}", row.name);
        }
    }
    let newest = &matrix.branches.last().unwrap().newest_version;
    let unreleased = refusals(&[], &["12.77".parse().unwrap()], newest, Flavor::Open);
    assert_eq!(unreleased, [Rule::CudaDriver]);
}

/// The mainline release before a kernel.
fn before(kernel: &KernelVersion) -> KernelVersion {
    let text = match kernel.mainline() {
        [major, 0, 0] => format!("{}.99", major - 1),
        [major, minor, 0] => format!("{major}.{}", minor - 1),
        [major, minor, stable] => format!("{major}.{minor}.{}", stable - 1),
    };
    text.parse().unwrap()
}

/// Each row alone in the matrix, with the drivers and kernels on both sides of its values.
#[test]
fn bounds_of_kernels() {
    let mut empty = matrix().clone();
    empty.kernel_fixes.clear();
    empty.kernel_limits.clear();
    empty.kernel_oldest.clear();
    empty.kernel_reports.clear();
    let result = |matrix: &Matrix, kernel: &_, version: &DriverVersion, flavor: Option<_>| {
        let (version, flavor) = (version.clone(), flavor.unwrap_or(Flavor::Open));
        let offer = Candidate { version, flavor };
        kernel::strongest(matrix, kernel, Some("aarch64"), &offer)
            .map_or(Evaluation::Note, |rule_result| rule_result.evaluation)
    };
    let broken = |confidence| match confidence {
        Confidence::Verified => Evaluation::Refuse,
        Confidence::Partial | Confidence::Unverified => Evaluation::Against,
    };
    for row in &matrix().kernel_fixes {
        empty.kernel_fixes = vec![row.clone()];
        for first in &row.first_fixed {
            let [lowest, _] = DriverVersion::bounds(first.branch());
            let on = |kernel: &_, version: &_| result(&empty, kernel, version, row.flavor);
            assert_eq!(on(&row.kernel, &lowest), broken(row.confidence), "{first}");
            assert_eq!(on(&before(&row.kernel), &lowest), Evaluation::Note);
            assert!(on(&row.kernel, first) < broken(row.confidence), "{first}");
            // Of several rows, the most severe one counts.
            for other in &matrix().kernel_fixes {
                let all = result(matrix(), &other.kernel, &lowest, row.flavor);
                assert!(
                    all >= on(&other.kernel, &lowest),
                    "{first}: {}",
                    other.kernel
                );
            }
        }
    }
    empty.kernel_fixes.clear();
    for row in &matrix().kernel_limits {
        empty.kernel_limits = vec![row.clone()];
        let [lowest, highest] = DriverVersion::bounds(row.driver.branch());
        let on = |kernel: &_, version: &_| result(&empty, kernel, version, None);
        for version in [&lowest, &row.driver] {
            assert_eq!(on(&row.newest_kernel, version), Evaluation::Note);
            if let Some(kernel) = &row.first_broken {
                assert_eq!(on(kernel, version), broken(row.confidence), "{version}");
                assert!(on(&before(kernel), version) < Evaluation::Against);
                assert_eq!(on(kernel, &highest), Evaluation::Note, "{version}");
            }
        }
    }
    empty.kernel_limits.clear();
    for row in &matrix().kernel_oldest {
        empty.kernel_oldest = vec![row.clone()];
        let on = |kernel: &_, version: &_| result(&empty, kernel, version, None);
        for (driver, outside) in [(&row.first_driver, 0), (&row.last_driver, 1)] {
            let Some(version) = driver else { continue };
            let older = &before(&row.kernel);
            let outside = &DriverVersion::bounds(version.branch())[outside];
            assert_eq!(on(older, version), broken(row.confidence), "{version}");
            assert_eq!(on(older, outside), Evaluation::Note, "{version}");
            assert_eq!(on(&row.kernel, version), Evaluation::Note, "{version}");
        }
    }
}
