//! Properties of selections for random constraints, and the bounds in the rows of GPUs, CUDA versions and kernels.

use std::cell::RefCell;
use std::collections::BTreeMap;

use gpu_compat::identity::{Flavor, GpuIdentity, SupportedFlavors};
use gpu_compat::kernel;
use gpu_compat::matrix::{Confidence, Gpu, Matrix, OpenModules};
use gpu_compat::pick::{Constraints, pick};
use gpu_compat::rule_result::{Candidate, Evaluation, Rule};
use gpu_compat::rules::{self, Needs};
use gpu_compat::version::{Branch, CudaVersion, DriverVersion, KernelVersion};
use proptest::prelude::*;
use proptest::sample::{Index, select, subsequence};
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

fn driver(version: &DriverVersion, flavor: Flavor) -> Candidate {
    let version = version.clone();
    Candidate { version, flavor }
}

/// The rules that reject a driver.
fn refusals(asked: &Constraints, driver: &Candidate) -> Vec<Rule> {
    let kernels = asked.kernel.iter().chain(&asked.next_kernel);
    let needs = Needs {
        boards: asked.gpus.iter().map(|gpu| matrix().board(gpu)).collect(),
        kernels: kernels.cloned().collect(),
        arch: asked.arch.clone(),
        cuda: asked.cuda.clone(),
        cudnn: None,
        flavor: None,
    };
    let mut found = rules::evaluate(matrix(), &needs, driver);
    found.retain(|one| one.evaluation == Evaluation::Refuse);
    found.iter().map(|one| one.rule).collect()
}

fn only(gpus: Vec<GpuIdentity>, cuda: Vec<CudaVersion>) -> Constraints {
    Constraints {
        gpus,
        cuda,
        ..Constraints::default()
    }
}

const KERNELS: &str = "3.10.0-1160.el7.x86_64 4.14 6.1.0-44-cloud-amd64 6.17.9-76061709-generic \
                       6.8.0-90-generic 7.0.0-rc4";

fn constraints() -> impl Strategy<Value = Constraints> {
    let matrix = matrix();
    let boards: Vec<GpuIdentity> = matrix.gpus.iter().map(identity).collect();
    let cuda: Vec<CudaVersion> = (matrix.toolkits.iter())
        .flat_map(|row| [row.version, row.version.minor_version()])
        .chain(["14.0", "12.77"].map(|text| text.parse().unwrap()))
        .collect();
    let fixes = &matrix.kernel_fixes;
    let kernels = KERNELS.split(' ').map(|text| text.parse().unwrap());
    let kernels = kernels.chain(fixes.iter().map(|row| row.kernel.clone()));
    let kernel = prop::option::of(select(kernels.collect::<Vec<KernelVersion>>()));
    let branches: Vec<Branch> = matrix.branches.iter().map(|row| row.branch).collect();
    let arches = ["x86_64", "aarch64"].map(str::to_owned).to_vec();
    let mut versions: Vec<DriverVersion> = (matrix.gpus.iter())
        .flat_map(|row| row.min_drivers.clone())
        .chain(fixes.iter().flat_map(|row| row.first_fixed.clone()))
        .chain(matrix.kernel_limits.iter().map(|row| row.driver.clone()))
        .chain(matrix.branches.iter().map(|row| row.newest_version.clone()))
        .chain(["580.1.1", "630.10.01"].map(|text| text.parse().unwrap()))
        .collect();
    versions.sort();
    versions.dedup();
    (
        prop::collection::vec(select(boards), 0..4),
        prop::collection::vec(select(cuda), 0..3),
        (kernel.clone(), kernel, prop::option::of(select(arches))),
        prop::option::of(subsequence(versions.clone(), 0..=40)),
        prop::option::weighted(0.2, select(branches)),
        prop::option::weighted(0.2, any::<Index>()),
        prop::option::weighted(0.3, select(FLAVORS.to_vec())),
    )
        .prop_map(move |(gpus, cuda, kernels, list, branch, index, flavor)| {
            let mut asked = only(gpus, cuda);
            (asked.kernel, asked.next_kernel, asked.arch) = kernels;
            (asked.branch, asked.flavor) = (branch, flavor);
            // A requested version is usually in the repository.
            let offered = list.as_ref().filter(|list| !list.is_empty());
            asked.version = index.map(|index| index.get(offered.unwrap_or(&versions)).clone());
            asked.candidates = list;
            asked
        })
}

/// The drivers that the constraints allow, without the rules.
fn choice(asked: &Constraints) -> Vec<Candidate> {
    let rows = matrix().branches.iter();
    let newest = rows.map(|row| row.newest_version.clone());
    let requested = asked.version.clone().map(|version| vec![version]);
    let listed = asked.candidates.clone().or(requested);
    (listed.unwrap_or_else(|| newest.collect()).into_iter())
        .filter(|version| asked.version.iter().all(|one| one == version))
        .filter(|version| asked.branch.is_none_or(|one| one == version.branch()))
        .flat_map(|version| FLAVORS.map(|flavor| driver(&version, flavor)))
        .filter(|driver| asked.flavor.is_none_or(|one| one == driver.flavor))
        .collect()
}

#[test]
fn selections_and_errors_are_correct() {
    let reached = RefCell::new(BTreeMap::new());
    let reach = |what: &str| *reached.borrow_mut().entry(what.to_owned()).or_insert(0) += 1;
    let mut config = ProptestConfig::with_cases(400);
    config.failure_persistence = None;
    let property = |mut asked: Constraints| {
        let candidates = asked.candidates.as_deref().unwrap_or_default();
        // A newer version of a branch supports all GPUs and CUDA versions of an older one.
        let any_kernel = only(asked.gpus.clone(), asked.cuda.clone());
        let is_branch = |pair: &&[DriverVersion]| pair[0].branch() == pair[1].branch();
        for pair in candidates.windows(2).filter(is_branch) {
            reach("newer");
            for flavor in FLAVORS {
                let rules = |index: usize| refusals(&any_kernel, &driver(&pair[index], flavor));
                let [older, newer] = [0, 1].map(rules);
                prop_assert!(newer.iter().all(|rule| older.contains(rule)), "{pair:?}");
            }
        }
        let drivers = choice(&asked);
        let rules = |one: &_| refusals(&asked, one);
        let rejected: Vec<Rule> = drivers.iter().flat_map(rules).collect();
        // Only mainline kernels reject a driver.
        let mut kernels = asked.kernel.iter().chain(&asked.next_kernel);
        let is_mainline = kernels.any(KernelVersion::is_mainline);
        prop_assert!(is_mainline || !rejected.contains(&Rule::Kernel));
        let found = match pick(matrix(), &asked) {
            Ok(found) => {
                reach("selected");
                let driver = driver(&found.recommended, found.flavor);
                prop_assert!(drivers.contains(&driver), "{found:?}");
                found
            }
            Err(refusal) => {
                let fitting = drivers.iter().find(|one| rules(one).is_empty());
                prop_assert!(fitting.is_none(), "{fitting:?}: {refusal:?}");
                let (is_listed, is_version) = (asked.candidates.is_some(), asked.version.is_some());
                asked = only(asked.gpus, Vec::new());
                let fits = |one: &_| refusals(&asked, one).is_empty();
                for reason in &refusal.reasons {
                    reach(&format!("{:?}", reason.rule));
                    let is_right = match reason.rule {
                        Rule::Constraints => drivers.is_empty() && is_version,
                        Rule::Offered => drivers.is_empty() && is_listed,
                        Rule::Pair => !choice(&asked).iter().any(fits),
                        rule => rejected.contains(&rule),
                    };
                    prop_assert!(is_right, "{reason:?}");
                }
                prop_assert!(!refusal.reasons.is_empty() && !refusal.nearest.is_empty());
                let near = refusal.nearest_pick;
                let Some(near) = near else { return Ok(()) };
                reach("nearest");
                *near
            }
        };
        prop_assert!(!found.assumed && (found.doubtful || !found.citations.is_empty()));
        let version = &found.recommended;
        prop_assert_eq!(found.branch, version.branch());
        prop_assert!(found.version.iter().all(|one| one == version), "{found:?}");
        let rules = refusals(&asked, &driver(version, found.flavor));
        prop_assert!(rules.is_empty(), "{rules:?}: {found:?}");
        // The driver is also selected as a constraint.
        (asked.branch, asked.version) = (Some(found.branch), Some(version.clone()));
        asked.flavor = Some(found.flavor);
        let again = pick(matrix(), &asked).expect("the same driver");
        prop_assert_eq!(again.recommended, found.recommended);
        Ok(())
    };
    let ran = TestRunner::new(config).run(&constraints(), property);
    ran.unwrap_or_else(|error| panic!("{error}"));
    // A property without samples is not tested.
    let needed = "newer selected nearest Constraints Offered Pair MinDriver CudaDriver Kernel";
    for what in needed.split(' ') {
        assert!(reached.borrow().contains_key(what), "{what}: {reached:?}");
    }
}

#[test]
fn bounds_of_gpus_and_branches() {
    let matrix = matrix();
    let generation = |name| matrix.generation(name);
    for gpu in &matrix.gpus {
        let name = &gpu.name;
        let asked = only(vec![identity(gpu)], Vec::new());
        let rules = |version: &DriverVersion, flavor| refusals(&asked, &driver(version, flavor));
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
            let asked = only(gpus.to_vec(), vec![cuda]);
            let found = refusals(&asked, &driver(version, Flavor::Open));
            found.iter().any(|rule| rules.contains(rule))
        };
        let mut majors = matrix.cuda_majors.iter();
        let major = majors.find(|row| row.major == cuda.major);
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
    let unreleased = only(Vec::new(), vec!["12.77".parse().unwrap()]);
    let found = refusals(&unreleased, &driver(newest, Flavor::Open));
    assert_eq!(found, [Rule::CudaDriver]);
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
    let result = |matrix: &Matrix, kernel: &_, version: &DriverVersion, flavor, arch| {
        kernel::strongest(matrix, kernel, arch, &driver(version, flavor))
            .map_or(Evaluation::Note, |rule_result| rule_result.evaluation)
    };
    let last_release = |branch| {
        let row = matrix().branches.iter().find(|row| row.branch == branch)?;
        row.newest_date.as_ref().or(row.end_of_life.as_ref())
    };
    let broken = |confidence| match confidence {
        Confidence::Verified => Evaluation::Refuse,
        Confidence::Partial | Confidence::Unverified => Evaluation::Against,
    };
    for row in &matrix().kernel_fixes {
        empty.kernel_fixes = vec![row.clone()];
        let (flavor, arch) = (row.flavor.unwrap_or(Flavor::Open), row.arch.as_deref());
        let on = |kernel: &_, version: &_| result(&empty, kernel, version, flavor, arch);
        let broken = broken(row.confidence);
        for first in &row.first_fixed {
            assert!(on(&row.kernel, first) < broken, "{first}");
        }
        let fixed = row.first_fixed.iter().map(DriverVersion::branch);
        let never = row.never_fixed.iter().map(|branch| (*branch, 1));
        for (branch, bound) in fixed.map(|branch| (branch, 0)).chain(never) {
            let version = &DriverVersion::bounds(branch)[bound];
            assert_eq!(on(&before(&row.kernel), version), Evaluation::Note);
            for other in [None, Some("x86_64"), Some("aarch64")] {
                let concerns = arch.is_none() || arch == other;
                let expected = if concerns { broken } else { Evaluation::Note };
                let found = result(&empty, &row.kernel, version, flavor, other);
                assert_eq!(found, expected, "{} {version} {other:?}", row.kernel);
            }
            // Of several rows, the most severe one counts.
            for kernel in matrix().kernel_fixes.iter().map(|other| &other.kernel) {
                let all = result(matrix(), kernel, version, flavor, arch);
                assert!(all >= on(kernel, version), "{version}: {kernel}");
            }
        }
    }
    empty.kernel_fixes.clear();
    for row in &matrix().kernel_limits {
        empty.kernel_limits = vec![row.clone()];
        let (own, first) = (row.driver.branch(), &row.first_broken);
        let [lowest, _] = DriverVersion::bounds(own);
        let on = |kernel: &_, version: &_| result(&empty, kernel, version, Flavor::Open, None);
        let broken = broken(row.confidence);
        for version in [&lowest, &row.driver] {
            assert_eq!(on(&row.newest_kernel, version), Evaluation::Note);
            if let Some(kernel) = first {
                assert_eq!(on(kernel, version), broken, "{version}");
                assert!(on(&before(kernel), version) < Evaluation::Against);
            }
        }
        let Some(kernel) = first else { continue };
        // A branch that ended before the release of this driver does not build either.
        for branch in (300..own.0 + 2).map(Branch) {
            let expected = match last_release(branch) {
                _ if branch >= own => Evaluation::Note,
                None => Evaluation::Against,
                last if last < last_release(own) => broken,
                _ => Evaluation::Note,
            };
            let [_, version] = &DriverVersion::bounds(branch);
            assert_eq!(on(kernel, version), expected, "{kernel} {version}");
            assert_eq!(on(&before(kernel), version), Evaluation::Note);
            let all = result(matrix(), kernel, version, Flavor::Open, None);
            assert!(all >= expected, "{kernel} {version}");
        }
    }
    empty.kernel_limits.clear();
    for row in &matrix().kernel_oldest {
        empty.kernel_oldest = vec![row.clone()];
        let on = |kernel: &_, version: &_| result(&empty, kernel, version, Flavor::Open, None);
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
