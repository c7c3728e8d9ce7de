//! Compresses the matrix: as text it would be a fortieth of the program.

use std::{env, error::Error, fs, io::Write as _, path::Path};

use flate2::{Compression, write::DeflateEncoder};

const MATRIX: &str = "compat/cuda-driver-matrix.toml";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed={MATRIX}");
    println!("cargo::rerun-if-changed=build.rs");
    let out = Path::new(&env::var("OUT_DIR")?).join("matrix.deflate");
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(&fs::read(MATRIX)?)?;
    fs::write(out, encoder.finish()?)?;
    Ok(())
}
