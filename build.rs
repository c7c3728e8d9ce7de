//! Packs the tables that are built into the program into one compressed stream, without what only people read: the program
//! is copied to each machine.

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

/// Each file of these folders is one of a kind: it counts as soon as it is there.
const FOLDERS: [&str; 2] = ["clouds", "profiles"];

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
    for folder in FOLDERS {
        // A file that comes or goes changes the folder.
        println!("cargo::rerun-if-changed={folder}");
        let mut names = Vec::new();
        for entry in fs::read_dir(folder)? {
            let name = entry?
                .file_name()
                .into_string()
                .map_err(|_| "a name is no text")?;
            names.extend(name.strip_suffix(".toml").map(str::to_owned));
        }
        names.sort();
        for name in names {
            println!("cargo::rerun-if-changed={folder}/{name}.toml");
            let text = for_programs(&fs::read_to_string(format!("{folder}/{name}.toml"))?);
            write!(encoder, "{folder}/{name}\n{text}\0")?;
        }
    }
    fs::write(out, encoder.finish()?)?;
    Ok(())
}

/// The text with an empty line in the place of each comment, so that errors name the same lines, and without the sources of
/// a profile.
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
