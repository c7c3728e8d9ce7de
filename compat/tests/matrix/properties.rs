//! Checks selections and errors against the rows, with code that shares only the rows with the selection.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
};

use gpu_compat::matrix::{Confidence, Gpu, Matrix, OpenModules};
use gpu_compat::pick::{Constraints, pick};
use gpu_compat::rule_result::Rule;
use gpu_compat::version::{Branch, CudaVersion, DriverVersion, KernelVersion};
use proptest::prelude::*;
use proptest::sample::{Index, select, subsequence};
use proptest::test_runner::TestRunner;

use crate::matrix;
use gpu_compat::identity::{Flavor, GpuIdentity, SupportedFlavors};

/// Checks each row that applies to a driver.
fn allowed(
    matrix: &Matrix,
    constraints: &Constraints,
    boards: &[&Gpu],
    version: &DriverVersion,
    flavor: Flavor,
) -> bool {
    boards
        .iter()
        .all(|board| drives(matrix, board, version, flavor))
        && has_flavor(matrix, version.branch(), flavor)
        && constraints.cuda.iter().all(|cuda| {
            serves(matrix, *cuda, version) && boards.iter().all(|b| codes(matrix, *cuda, b))
        })
        && constraints
            .kernel
            .iter()
            .chain(&constraints.next_kernel)
            .all(|kernel| builds(matrix, kernel, constraints.arch.as_deref(), version, flavor))
}

fn drives(matrix: &Matrix, board: &Gpu, version: &DriverVersion, flavor: Flavor) -> bool {
    let architecture = matrix
        .architectures
        .iter()
        .find(|a| a.name == board.architecture)
        .unwrap();
    let capability = matrix
        .capabilities
        .iter()
        .find(|c| c.versions.contains(&board.compute_capability))
        .unwrap();
    if architecture
        .last_branch
        .is_some_and(|last| version.branch() > last)
    {
        return false;
    }
    match (board.modules, flavor) {
        (SupportedFlavors::Open, Flavor::Proprietary)
        | (SupportedFlavors::Proprietary, Flavor::Open) => {
            return false;
        }
        _ => {}
    }
    for first in &board.min_drivers {
        if first.branch() == version.branch() {
            return version >= first;
        }
    }
    match (board.min_drivers.first(), &capability.min_driver) {
        (Some(first), _) => version >= first,
        (None, Some(floor)) => version >= floor,
        (None, None) => {
            let place = |name| matrix.generation(name);
            matrix
                .branches
                .iter()
                .find(|row| row.branch == version.branch())
                .is_none_or(|row| place(&row.newest_architecture) >= place(&board.architecture))
        }
    }
}

fn has_flavor(matrix: &Matrix, branch: Branch, flavor: Flavor) -> bool {
    let row = matrix.branches.iter().find(|row| row.branch == branch);
    row.is_none_or(|row| match flavor {
        Flavor::Open => row.open != OpenModules::None,
        Flavor::Proprietary => row.proprietary,
    })
}

/// Whether a CUDA version is in the matrix, or may be older or newer than all versions in it.
fn exists(matrix: &Matrix, cuda: CudaVersion) -> bool {
    let asked = (cuda.major, cuda.minor);
    let known = || (matrix.toolkits.iter()).map(|row| (row.version.major, row.version.minor));
    known().any(|one| one == asked)
        || known().all(|one| one < asked)
        || known().all(|one| one > asked)
}

/// A version that was never released works with no driver.
fn serves(matrix: &Matrix, cuda: CudaVersion, version: &DriverVersion) -> bool {
    if !exists(matrix, cuda) {
        return false;
    }
    for major in matrix
        .cuda_majors
        .iter()
        .filter(|row| row.major == cuda.major)
    {
        if let Some(needed) = &major.minor_version_min_driver {
            return version >= needed;
        }
    }
    let meant = |row: CudaVersion| {
        (row.major, row.minor) == (cuda.major, cuda.minor)
            && (cuda.patch.is_none() || row.patch.unwrap_or(0) == cuda.patch.unwrap_or(0))
    };
    let mut rows = matrix
        .toolkits
        .iter()
        .filter(|row| meant(row.version))
        .peekable();
    let mut needed = rows
        .by_ref()
        .filter_map(|row| row.min_driver.as_ref())
        .peekable();
    needed.peek().is_none() || needed.any(|needed| version >= needed)
}

fn codes(matrix: &Matrix, cuda: CudaVersion, board: &Gpu) -> bool {
    matrix
        .capabilities
        .iter()
        .filter(|row| row.versions.contains(&board.compute_capability))
        .filter_map(|row| row.last_cuda)
        .all(|last| (cuda.major, cuda.minor) <= (last.major, last.minor))
}

fn builds(
    matrix: &Matrix,
    kernel: &KernelVersion,
    arch: Option<&str>,
    version: &DriverVersion,
    flavor: Flavor,
) -> bool {
    let text = kernel.as_str();
    if text.contains('-') && !text.contains("-rc") {
        return true;
    }
    let sure = |confidence| confidence == Confidence::Verified;
    let at = |other: &KernelVersion| kernel.series() >= other.series();
    let fixed = matrix.kernel_fixes.iter().all(|row| {
        if !sure(row.confidence)
            || !at(&row.kernel)
            || row.arch.is_some() && row.arch.as_deref() != arch
            || row.flavor.is_some_and(|only| only != flavor)
        {
            return true;
        }
        let first = row
            .first_fixed
            .iter()
            .find(|first| first.branch() == version.branch());
        first.map_or(!row.never_fixed.contains(&version.branch()), |first| {
            version >= first
        })
    });
    let limits: Vec<_> = matrix
        .kernel_limits
        .iter()
        .filter(|row| row.driver.branch() == version.branch() && version <= &row.driver)
        .collect();
    let nearest = limits.iter().map(|row| &row.driver).min();
    let within = limits
        .iter()
        .filter(|row| Some(&row.driver) == nearest)
        .all(|row| !sure(row.confidence) || !row.first_broken.as_ref().is_some_and(&at));
    let last_release = |branch| {
        let row = matrix.branches.iter().find(|row| row.branch == branch)?;
        row.newest_date.as_ref().or(row.end_of_life.as_ref())
    };
    let outlived = limits.is_empty()
        && matrix.kernel_limits.iter().any(|row| {
            let earlier = last_release(version.branch())
                .zip(last_release(row.driver.branch()))
                .is_some_and(|(own, other)| own < other);
            sure(row.confidence)
                && row.driver.branch() > version.branch()
                && earlier
                && row.first_broken.as_ref().is_some_and(&at)
        });
    let young = matrix.kernel_oldest.iter().all(|row| {
        let concerned = row
            .first_driver
            .as_ref()
            .is_none_or(|first| version >= first)
            && row.last_driver.as_ref().is_none_or(|last| version <= last);
        !concerned || at(&row.kernel)
    });
    fixed && within && young && !outlived
}

/// All versions in the matrix, and some that are not in it.
fn versions(matrix: &Matrix) -> Vec<DriverVersion> {
    let mut all: BTreeSet<DriverVersion> = BTreeSet::new();
    for row in &matrix.branches {
        all.insert(row.newest_version.clone());
    }
    all.extend(
        matrix
            .gpus
            .iter()
            .flat_map(|row| row.min_drivers.iter().cloned()),
    );
    all.extend(
        matrix
            .toolkits
            .iter()
            .filter_map(|row| row.min_driver.clone()),
    );
    all.extend(
        matrix
            .kernel_fixes
            .iter()
            .flat_map(|row| row.first_fixed.iter().cloned()),
    );
    all.extend(matrix.kernel_limits.iter().map(|row| row.driver.clone()));
    all.extend(["535.104.12", "580.1.1", "630.10.01"].map(|text| text.parse().unwrap()));
    all.into_iter().collect()
}

const KERNELS: [&str; 14] = [
    "3.10.0-1160.el7.x86_64",
    "4.14",
    "4.18.0-553.el8_10.x86_64",
    "5.14.0-687.12.1.el9_8.x86_64",
    "6.1.0-44-cloud-amd64",
    "6.4",
    "6.5.3",
    "6.8.0-90-generic",
    "6.10.14",
    "6.16",
    "6.17.9-76061709-generic",
    "6.19",
    "7.0.0-rc4",
    "7.2.1",
];

fn constraints() -> impl Strategy<Value = Constraints> {
    let matrix = matrix();
    let boards: Vec<GpuIdentity> = matrix
        .gpus
        .iter()
        .map(|row| GpuIdentity {
            pci_id: row.pci_id,
            subsystem_id: row.subsystem_id,
            chip_name: None,
        })
        .collect();
    let cuda: Vec<CudaVersion> = matrix
        .toolkits
        .iter()
        .flat_map(|row| [row.version, row.version.minor_version()])
        .chain(["14.0".parse().unwrap(), "12.77".parse().unwrap()])
        .collect();
    let branches: Vec<Branch> = matrix.branches.iter().map(|row| row.branch).collect();
    let versions = versions(matrix);
    let kernels: Vec<KernelVersion> = KERNELS.iter().map(|text| text.parse().unwrap()).collect();
    let kernel = || prop::option::of(select(kernels.clone()));
    let some = versions.len().min(12);
    (
        prop::collection::vec(select(boards), 0..4),
        (kernel(), kernel()),
        prop::option::of(select(vec!["x86_64".to_owned(), "aarch64".to_owned()])),
        prop::option::weighted(0.3, select(branches)),
        prop::option::weighted(0.2, select(versions.clone())),
        prop::option::weighted(0.3, select(vec![Flavor::Open, Flavor::Proprietary])),
        prop::collection::vec(select(cuda), 0..3),
        prop::option::weighted(0.4, (subsequence(versions, 0..=some), any::<Index>())),
    )
        .prop_map(
            |(gpus, (kernel, next_kernel), arch, branch, version, flavor, cuda, list)| {
                // A configured version is usually in the repository.
                let version = match (&version, &list) {
                    (Some(_), Some((list, index))) if !list.is_empty() => {
                        Some(index.get(list).clone())
                    }
                    _ => version,
                };
                Constraints {
                    gpus,
                    kernel,
                    next_kernel,
                    arch,
                    branch,
                    version,
                    flavor,
                    cuda,
                    candidates: list.map(|(list, _)| list),
                    ..Constraints::default()
                }
            },
        )
}

/// The versions that the constraints allow.
fn choice(matrix: &Matrix, constraints: &Constraints) -> Vec<DriverVersion> {
    let newest = || {
        matrix
            .branches
            .iter()
            .map(|row| row.newest_version.clone())
            .collect()
    };
    let all = match (&constraints.candidates, &constraints.version) {
        (Some(list), _) => list.clone(),
        (None, Some(version)) => vec![version.clone()],
        (None, None) => newest(),
    };
    all.into_iter()
        .filter(|v| constraints.branch.is_none_or(|branch| v.branch() == branch))
        .filter(|v| {
            constraints
                .version
                .as_ref()
                .is_none_or(|requested| v == requested)
        })
        .collect()
}

fn boards<'m>(matrix: &'m Matrix, constraints: &Constraints) -> Vec<&'m Gpu> {
    let of = |gpu: &GpuIdentity| {
        let row = matrix
            .gpus
            .iter()
            .find(|row| row.pci_id == gpu.pci_id && row.subsystem_id == gpu.subsystem_id);
        row.unwrap()
    };
    constraints.gpus.iter().map(of).collect()
}

fn flavors(constraints: &Constraints) -> Vec<Flavor> {
    constraints
        .flavor
        .map_or(vec![Flavor::Open, Flavor::Proprietary], |flavor| {
            vec![flavor]
        })
}

/// Tests 400 random constraint sets, and asserts that enough of them reach each comparison, because a property without samples
/// is not tested. The bounds are a third of the average.
fn each_spec(
    least: &[(&str, u32)],
    test: impl Fn(Constraints, Index, &dyn Fn(&'static str)) -> Result<(), TestCaseError>,
) {
    let counts = RefCell::new(BTreeMap::new());
    let reached = |what| *counts.borrow_mut().entry(what).or_insert(0) += 1;
    let config = ProptestConfig {
        cases: 400,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    TestRunner::new(config)
        .run(&(constraints(), any::<Index>()), |(constraints, index)| {
            test(constraints, index, &reached)
        })
        .unwrap_or_else(|error| panic!("{error}"));
    let counts = counts.into_inner();
    for (what, least) in least {
        let count = counts.get(what).copied().unwrap_or(0);
        assert!(
            count >= *least,
            "too few of 400 constraint sets reach each comparison: {counts:?}"
        );
    }
}

#[test]
fn selections_and_errors_are_correct() {
    each_spec(
        &[
            ("a pick", 1),
            ("a rejected version", 1),
            ("a nearest pick", 1),
        ],
        |constraints, _, reached| {
            let matrix = matrix();
            let boards = boards(matrix, &constraints);
            let choice = choice(matrix, &constraints);
            match pick(matrix, &constraints) {
                Ok(pick) => {
                    reached("a pick");
                    prop_assert!(choice.contains(&pick.recommended), "{pick:?}");
                    prop_assert!(flavors(&constraints).contains(&pick.flavor));
                    prop_assert_eq!(pick.branch, pick.recommended.branch());
                    prop_assert!(
                        allowed(
                            matrix,
                            &constraints,
                            &boards,
                            &pick.recommended,
                            pick.flavor
                        ),
                        "{:?}",
                        pick
                    );
                    prop_assert!(
                        pick.version
                            .is_none_or(|version| version == pick.recommended)
                    );
                    prop_assert!(!pick.assumed && !pick.reasons.is_empty());
                    prop_assert!(pick.doubtful || !pick.citations.is_empty());
                }
                Err(refusal) => {
                    for version in &choice {
                        for flavor in flavors(&constraints) {
                            reached("a rejected version");
                            prop_assert!(
                                !allowed(matrix, &constraints, &boards, version, flavor),
                                "{version} {flavor} is compatible: {refusal:?}"
                            );
                        }
                    }
                    prop_assert!(!refusal.reasons.is_empty() && !refusal.nearest.is_empty());
                    if let Some(near) = &refusal.nearest_pick {
                        reached("a nearest pick");
                        let only = Constraints {
                            gpus: constraints.gpus.clone(),
                            ..Constraints::default()
                        };
                        prop_assert!(
                            allowed(matrix, &only, &boards, &near.recommended, near.flavor),
                            "{:?}",
                            near
                        );
                    }
                }
            }
            Ok(())
        },
    );
}

#[test]
fn errors_list_only_violated_rules() {
    each_spec(
        &[
            ("a rule about a GPU", 1),
            ("a rule about CUDA", 1),
            ("a rule about a kernel", 1),
        ],
        |constraints, _, reached| {
            let matrix = matrix();
            let boards = boards(matrix, &constraints);
            let Err(refusal) = pick(matrix, &constraints) else {
                return Ok(());
            };
            let choice = choice(matrix, &constraints);
            let broken = |check: &dyn Fn(&DriverVersion, Flavor) -> bool| {
                choice.iter().any(|v| {
                    flavors(&constraints)
                        .iter()
                        .any(|flavor| !check(v, *flavor))
                })
            };
            for reason in &refusal.reasons {
                let right = match reason.rule {
                    Rule::Offered => choice.is_empty() && constraints.candidates.is_some(),
                    Rule::Constraints => constraints
                        .branch
                        .zip(constraints.version.as_ref())
                        .is_some_and(|(b, v)| v.branch() != b),
                    Rule::Pair => {
                        // The GPUs in the error: each has a driver, but none of the newest drivers supports all of them.
                        let newest = self::choice(matrix, &Constraints::default());
                        newest.iter().all(|version| {
                            [Flavor::Open, Flavor::Proprietary].iter().all(|flavor| {
                                let free = Constraints::default();
                                !allowed(matrix, &free, &boards, version, *flavor)
                            })
                        })
                    }
                    Rule::MinDriver
                    | Rule::LastBranch
                    | Rule::NewestArchitecture
                    | Rule::BoardFlavor => broken(&|version, flavor| {
                        boards
                            .iter()
                            .all(|board| drives(matrix, board, version, flavor))
                    }),
                    Rule::BranchFlavor => {
                        broken(&|version, flavor| has_flavor(matrix, version.branch(), flavor))
                    }
                    Rule::CudaDriver | Rule::ForwardCompat => broken(&|version, _| {
                        constraints
                            .cuda
                            .iter()
                            .all(|cuda| serves(matrix, *cuda, version))
                    }),
                    Rule::CudaArchitecture => constraints
                        .cuda
                        .iter()
                        .any(|cuda| boards.iter().any(|board| !codes(matrix, *cuda, board))),
                    Rule::Kernel => broken(&|version, flavor| {
                        let arch = constraints.arch.as_deref();
                        let mut kernels = constraints.kernel.iter().chain(&constraints.next_kernel);
                        kernels.all(|kernel| builds(matrix, kernel, arch, version, flavor))
                    }),
                    _ => false,
                };
                reached(match reason.rule {
                    Rule::CudaDriver | Rule::ForwardCompat | Rule::CudaArchitecture => {
                        "a rule about CUDA"
                    }
                    Rule::Kernel => "a rule about a kernel",
                    Rule::Offered | Rule::Constraints | Rule::Pair => {
                        "a rule about the constraints"
                    }
                    _ => "a rule about a GPU",
                });
                prop_assert!(right, "{reason:?}");
            }
            Ok(())
        },
    );
}
