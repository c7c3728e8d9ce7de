//! Converts the matrix to JSON, which is parsed faster than TOML, and compresses it, to reduce the size of the binary.

use std::{env, error::Error, fs, path::Path};

use flate2::{Compression, write::DeflateEncoder};

const MATRIX: &str = "cuda-driver-matrix.toml";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={MATRIX}");
    let out = Path::new(&env::var("OUT_DIR")?).join("matrix.deflate");
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::best());
    let matrix: serde_json::Value = toml::from_str(&fs::read_to_string(MATRIX)?)?;
    serde_json::to_writer(&mut encoder, &matrix)?;
    fs::write(out, encoder.finish()?)?;
    Ok(())
}
