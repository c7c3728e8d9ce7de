//! Assembles the CUDA kernel of the probe with NVIDIA's `ptxas` for all architectures of the matrix. `make ptx` downloads the
//! assemblers and runs these tests.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use gpu_bootstrap::{compat::matrix::Matrix, model::capability::ComputeCapability};

const KERNEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/host/real/cuda/kernel.ptx");

/// The oldest architecture that the kernel supports.
const FIRST: ComputeCapability = ComputeCapability { major: 5, minor: 0 };

/// The assemblers. More than one version is needed to support all architectures.
fn programs() -> Vec<PathBuf> {
    let directory = std::env::var("PTXAS_PROGRAMS").expect("`PTXAS_PROGRAMS` is set by `make ptx`");
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join(directory);
    let programs = fs::read_dir(&directory).expect("a directory of programs");
    let programs: Vec<_> = programs
        .map(|entry| entry.expect("readable").path())
        .collect();
    assert_eq!(programs.len(), 2, "{programs:?}");
    programs
}

/// Assembles the kernel. `None` if the assembler does not support the architecture.
fn assemble(
    program: &Path,
    ptx: &Path,
    capability: ComputeCapability,
) -> Option<Result<(), String>> {
    let ComputeCapability { major, minor } = capability;
    let directory = tempfile::tempdir().expect("a temporary folder");
    let output = Command::new(program)
        .arg(format!("--gpu-name=sm_{major}{minor}"))
        .arg("--output-file")
        .arg(directory.path().join("kernel.cubin"))
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
fn kernel_assembles_for_every_matrix_architecture() {
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
        "no assembler supports {}",
        missing.join(", ")
    );
}

#[test]
#[ignore = "needs ptxas: run `make ptx`"]
fn assemblers_reject_an_invalid_kernel() {
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
