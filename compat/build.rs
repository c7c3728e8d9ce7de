//! Compresses the matrix without its comments, to reduce the size of the binary.

use std::{env, error::Error, fs, io::Write as _, path::Path};

use flate2::{Compression, write::DeflateEncoder};

const MATRIX: &str = "cuda-driver-matrix.toml";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={MATRIX}");
    let out = Path::new(&env::var("OUT_DIR")?).join("matrix.deflate");
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::best());
    for line in fs::read_to_string(MATRIX)?.lines() {
        // Replace each comment with an empty line, so that errors have the same line numbers.
        let kept = if line.starts_with('#') { "" } else { line };
        writeln!(encoder, "{kept}")?;
    }
    fs::write(out, encoder.finish()?)?;
    Ok(())
}
