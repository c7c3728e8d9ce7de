//! Packs the built-in tables into one compressed stream. Comments and sources are removed, because the binary is copied to each
//! machine.

use std::{env, error::Error, fs, io::Write as _, path::Path};

use flate2::{Compression, write::DeflateEncoder};

const TABLES: [&str; 7] = [
    "src/config/kubernetes.toml",
    "src/facts/detection.toml",
    "src/tools/cuda.toml",
    "src/tools/faults.toml",
    "src/tools/kernel_log.toml",
    "src/tools/packages/package_faults.toml",
    "src/tools/xid.toml",
];

/// All files in these directories are packed.
const DIRECTORIES: [&str; 2] = ["clouds", "profiles"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    let out = Path::new(&env::var("OUT_DIR")?).join("tables.deflate");
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::best());
    for table in TABLES {
        println!("cargo::rerun-if-changed={table}");
        let name = Path::new(table).file_stem().ok_or("a table has no name")?;
        let text = for_programs(&fs::read_to_string(table)?);
        write!(encoder, "{}\n{text}\0", name.display())?;
    }
    for directory in DIRECTORIES {
        // Adding or removing a file changes the modification time of its directory.
        println!("cargo::rerun-if-changed={directory}");
        let mut names = Vec::new();
        for entry in fs::read_dir(directory)? {
            let name = entry?
                .file_name()
                .into_string()
                .map_err(|_| "a file name is not UTF-8")?;
            names.extend(name.strip_suffix(".toml").map(str::to_owned));
        }
        names.sort();
        for name in names {
            println!("cargo::rerun-if-changed={directory}/{name}.toml");
            let text = for_programs(&fs::read_to_string(format!("{directory}/{name}.toml"))?);
            write!(encoder, "{directory}/{name}\n{text}\0")?;
        }
    }
    fs::write(out, encoder.finish()?)?;
    Ok(())
}

/// Replaces each line that starts with `#` by an empty line, so that line numbers in errors stay the same. Also removes the
/// sources of a profile (`facts`).
fn for_programs(text: &str) -> String {
    let mut lines = String::new();
    for line in text.lines() {
        if line.starts_with("facts = ") {
            lines.push_str("facts = \"\"");
        } else if !line.starts_with('#') {
            lines.push_str(line);
        }
        lines.push('\n');
    }
    lines
}
