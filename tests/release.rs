//! `make release`: what refuses a program that old systems could not start.

use std::process::{Command, Output};

/// Whether the C library of this version is new enough for the program of this build.
fn symbols(newest: &str) -> Output {
    Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/release/symbols.sh"))
        .arg(env!("CARGO_BIN_EXE_gpu-bootstrap"))
        .arg(newest)
        .output()
        .expect("sh and objdump, which compiling needs, too")
}

#[test]
fn a_program_that_needs_a_newer_c_library_is_refused_with_its_symbols() {
    // Older than the first C library of every architecture.
    let refused = symbols("2.2");
    assert!(!refused.status.success());
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains("newer than 2.2:"), "{said}");
    assert!(said.contains("__libc_start_main (GLIBC_2."), "{said}");
}

#[test]
fn versions_of_the_c_library_are_compared_as_numbers() {
    // As text, 2.100 is older than 2.17.
    let accepted = symbols("2.100");
    let said = String::from_utf8_lossy(&accepted.stderr);
    assert!(accepted.status.success(), "{said}");
}
