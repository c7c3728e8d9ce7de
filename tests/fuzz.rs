//! The corpus of the fuzzers (`make fuzz`), passed to the same functions without a fuzzer. Inputs of fixed bugs remain in the
//! corpus.

use std::{fs, panic, path::Path};

#[path = "../fuzz/src/lib.rs"]
mod targets;

/// The inputs of a target: its corpus and the journals of other tests, as in `fuzz/run.sh`.
fn texts_of(name: &str) -> Vec<(String, Vec<u8>)> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut directories = vec![here.join("fuzz/corpus").join(name)];
    if name == "journal" {
        directories.push(here.join("tests/journals"));
    }
    let texts: Vec<(String, Vec<u8>)> = (directories.into_iter())
        .flat_map(|directory| fs::read_dir(directory).expect("the corpus of a target"))
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.is_file())
        .map(|path| {
            let text = fs::read(&path).expect("a text");
            (path.display().to_string(), text)
        })
        .collect();
    assert!(texts.len() > 1, "{name} has no corpus");
    texts
}

fn read(name: &str) {
    let failed: Vec<String> = (texts_of(name).into_iter())
        .filter(|(_, text)| panic::catch_unwind(|| targets::give(name, text)).is_err())
        .map(|(path, _)| path)
        .collect();
    assert!(failed.is_empty(), "{failed:#?}");
}

#[test]
fn answers() {
    read("answers");
}

#[test]
fn journals() {
    read("journal");
}

#[test]
fn outputs_of_lspci() {
    read("lspci");
}

#[test]
fn settings() {
    read("settings");
}

#[test]
fn texts() {
    read("texts");
}

#[test]
fn trees() {
    read("tree");
}
