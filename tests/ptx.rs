//! The probe's kernel, assembled by NVIDIA's own `ptxas` for the architectures of the matrix. `make ptx`
//! brings the programs and runs these tests.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use gpu_bootstrap::{compat::matrix::Matrix, model::capability::ComputeCapability};

const KERNEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/host/real/cuda/kernel.ptx");

/// The first architecture for which the kernel is written.
const FIRST: ComputeCapability = ComputeCapability { major: 5, minor: 0 };

/// The assemblers: one version alone does not know all architectures.
fn programs() -> Vec<PathBuf> {
    let folder = std::env::var("PTXAS_PROGRAMS").expect("`make ptx` names the folder of programs");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let programs = fs::read_dir(&folder).expect("a folder with programs");
    let programs: Vec<_> = programs
        .map(|entry| entry.expect("readable").path())
        .collect();
    assert_eq!(programs.len(), 2, "{programs:?}");
    programs
}

/// What an assembler says: `None` if it does not know the architecture.
fn assemble(
    program: &Path,
    ptx: &Path,
    capability: ComputeCapability,
) -> Option<Result<(), String>> {
    let ComputeCapability { major, minor } = capability;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let output = Command::new(program)
        .arg(format!("--gpu-name=sm_{major}{minor}"))
        .arg("--output-file")
        .arg(folder.path().join("kernel.cubin"))
        .arg(ptx)
        .output()
        .expect("ptxas starts");
    if output.status.success() {
        return Some(Ok(()));
    }
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (!said.contains("is not defined for option 'gpu-name'")).then_some(Err(said))
}

#[test]
#[ignore = "needs ptxas: run `make ptx`"]
fn the_kernel_assembles_for_every_architecture_of_the_matrix() {
    let matrix = Matrix::builtin().expect("the matrix");
    let wanted: Vec<ComputeCapability> = (matrix.capabilities.iter())
        .flat_map(|row| row.versions.iter().copied())
        .filter(|capability| *capability >= FIRST)
        .collect();
    assert!(wanted.len() > 15, "{}", wanted.len());
    let mut assembled = BTreeMap::new();
    for program in programs() {
        for capability in &wanted {
            if let Some(result) = assemble(&program, Path::new(KERNEL), *capability) {
                let place = format!("{capability} by {}", program.display());
                result.unwrap_or_else(|said| panic!("{place}: {said}"));
                *assembled.entry(*capability).or_insert(0) += 1;
            }
        }
    }
    let missing: Vec<String> = (wanted.iter())
        .filter(|capability| !assembled.contains_key(capability))
        .map(ToString::to_string)
        .collect();
    assert!(
        missing.is_empty(),
        "no assembler knows {}",
        missing.join(", ")
    );
}

#[test]
#[ignore = "needs ptxas: run `make ptx`"]
fn the_assemblers_refuse_a_kernel_with_an_error() {
    let text = fs::read_to_string(KERNEL).expect("the kernel");
    let broken = text.replace("fma.rn.f32 ", "fma.rn.f33 ");
    assert_ne!(text, broken);
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    fs::write(file.path(), broken).expect("it is written");
    for program in programs() {
        let hopper = ComputeCapability { major: 9, minor: 0 };
        let result = assemble(&program, file.path(), hopper).expect("Hopper is known");
        assert!(result.is_err(), "{}", program.display());
    }
}
