//! Packs the built-in tables and the templates of `user-data` and `manifests` into one compressed stream. Comments and sources in tables are
//! removed, because the binary is copied to each machine.

use std::{collections::BTreeSet, env, error::Error, fs, io::Write as _, path::Path};

use flate2::{Compression, write::DeflateEncoder};

const TABLES: [&str; 8] = [
    "src/config/kubernetes.toml",
    "src/facts/detection.toml",
    "src/mig/mig_profiles.toml",
    "src/tools/cuda.toml",
    "src/tools/faults.toml",
    "src/tools/kernel_log.toml",
    "src/tools/packages/package_failures.toml",
    "src/tools/xid.toml",
];

/// All TOML files in these directories are packed.
const DIRECTORIES: [&str; 2] = ["clouds", "profiles"];

/// The directory with the forms of `user-data`.
const FORMS: &str = "cloud-init";

/// The directory with the templates of `manifests`, some of them in subdirectories.
const MANIFESTS: &str = "manifests";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    let out = Path::new(&env::var("OUT_DIR")?).join("tables.deflate");
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::best());
    for table in TABLES {
        let name = Path::new(table).file_stem().ok_or("a table has no name")?;
        let text = for_programs(&read(table)?);
        write!(encoder, "{}\n{text}\0", name.display())?;
    }
    for directory in DIRECTORIES {
        for name in names(directory)? {
            if let Some(name) = name.strip_suffix(".toml") {
                let text = read(&format!("{directory}/{name}.toml"))?;
                write!(encoder, "{directory}/{name}\n{}\0", for_programs(&text))?;
            }
        }
    }
    let values = for_programs(&read(&format!("{FORMS}/values.toml"))?);
    write!(encoder, "{FORMS}/values\n{values}\0")?;
    for name in names(FORMS)? {
        let directory = format!("{FORMS}/{name}");
        println!("cargo::rerun-if-changed={directory}");
        if !Path::new(&directory).join("form.toml").exists() {
            continue;
        }
        let form = for_programs(&read(&format!("{directory}/form.toml"))?);
        write!(encoder, "{directory}/form\n{form}\0")?;
        let files: BTreeSet<&str> = (form.lines())
            .filter_map(|line| line.strip_prefix("file = \"")?.strip_suffix('"'))
            .collect();
        for file in files {
            // Templates are printed with their comments.
            let text = read(&format!("{directory}/{file}"))?;
            write!(encoder, "{directory}/{file}\n{text}\0")?;
        }
    }
    let images = for_programs(&read(&format!("{MANIFESTS}/images.toml"))?);
    write!(encoder, "{MANIFESTS}/images\n{images}\0")?;
    for path in templates(MANIFESTS)? {
        write!(encoder, "{path}\n{}\0", read(&path)?)?;
    }
    fs::write(out, encoder.finish()?)?;
    Ok(())
}

/// Returns the paths of the YAML files in a directory and its subdirectories, sorted.
fn templates(directory: &str) -> Result<Vec<String>, Box<dyn Error>> {
    let mut found = Vec::new();
    for name in names(directory)? {
        let path = format!("{directory}/{name}");
        if Path::new(&path).is_dir() {
            found.extend(templates(&path)?);
        } else if path.ends_with(".yaml") {
            found.push(path);
        }
    }
    Ok(found)
}

/// Reads a file.
fn read(path: &str) -> Result<String, Box<dyn Error>> {
    println!("cargo::rerun-if-changed={path}");
    fs::read_to_string(path).map_err(|error| format!("{path}: {error}").into())
}

/// Returns the names in a directory, sorted.
fn names(directory: &str) -> Result<Vec<String>, Box<dyn Error>> {
    // Adding or removing a file changes the modification time of its directory.
    println!("cargo::rerun-if-changed={directory}");
    let mut names = Vec::new();
    for entry in fs::read_dir(directory)? {
        let name = entry?.file_name().into_string();
        names.push(name.map_err(|_| "a file name is not UTF-8")?);
    }
    names.sort();
    Ok(names)
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
