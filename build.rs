//! Packs the built-in tables and the templates of `user-data` and `manifests` into one compressed stream. The tables are TOML here
//! and JSON in the binary: each run reads several of them, and JSON is parsed in a fraction of the time.

use std::{collections::BTreeSet, env, error::Error, fs, io::Write as _, path::Path};

use flate2::{Compression, write::DeflateEncoder};

const TABLES: [&str; 9] = [
    "src/config/kubernetes.toml",
    "src/facts/detection.toml",
    "src/mig/mig_profiles.toml",
    "src/model/findings.toml",
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
        write!(encoder, "{}\n{}\0", name.display(), json(table)?)?;
    }
    for directory in DIRECTORIES {
        for name in names(directory)? {
            if let Some(name) = name.strip_suffix(".toml") {
                let table = json(&format!("{directory}/{name}.toml"))?;
                write!(encoder, "{directory}/{name}\n{table}\0")?;
            }
        }
    }
    let values = json(&format!("{FORMS}/values.toml"))?;
    write!(encoder, "{FORMS}/values\n{values}\0")?;
    for name in names(FORMS)? {
        let directory = format!("{FORMS}/{name}");
        println!("cargo::rerun-if-changed={directory}");
        if !Path::new(&directory).join("form.toml").exists() {
            continue;
        }
        let path = format!("{directory}/form.toml");
        write!(encoder, "{directory}/form\n{}\0", json(&path)?)?;
        let form = read(&path)?;
        let files: BTreeSet<&str> = (form.lines())
            .filter_map(|line| line.strip_prefix("file = \"")?.strip_suffix('"'))
            .collect();
        for file in files {
            // Templates are printed with their comments.
            let text = read(&format!("{directory}/{file}"))?;
            write!(encoder, "{directory}/{file}\n{text}\0")?;
        }
    }
    let images = json(&format!("{MANIFESTS}/images.toml"))?;
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

/// Reads a TOML file and converts it to JSON, without the sources of a profile (`facts`).
fn json(path: &str) -> Result<serde_json::Value, Box<dyn Error>> {
    let table = toml::from_str(&read(path)?).map_err(|error| format!("{path}: {error}"))?;
    Ok(without_sources(table))
}

fn without_sources(mut value: serde_json::Value) -> serde_json::Value {
    match &mut value {
        serde_json::Value::Object(keys) => {
            if let Some(facts) = keys.get_mut("facts") {
                *facts = "".into();
            }
            for child in keys.values_mut() {
                *child = without_sources(child.take());
            }
        }
        serde_json::Value::Array(items) => {
            for child in items {
                *child = without_sources(child.take());
            }
        }
        _ => {}
    }
    value
}
