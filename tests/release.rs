//! `make release`: the check that the binary starts on old systems, and the signature of the checksums.

use std::process::{Command, Output, Stdio};

/// Checks whether this C library version is new enough for this build.
fn symbols(newest: &str) -> Output {
    Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/release/symbols.sh"))
        .arg(env!("CARGO_BIN_EXE_gpu-bootstrap"))
        .arg(newest)
        .output()
        .expect("sh and objdump, which are also needed to compile")
}

#[test]
fn too_new_c_library_symbols_are_rejected() {
    // Older than the first C library of every architecture.
    let refused = symbols("2.2");
    assert!(!refused.status.success());
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains("newer than 2.2:"), "{said}");
    assert!(said.contains("__libc_start_main (GLIBC_2."), "{said}");
}

#[test]
fn c_library_versions_are_compared_as_numbers() {
    // As text, 2.100 is older than 2.17.
    let accepted = symbols("2.100");
    let said = String::from_utf8_lossy(&accepted.stderr);
    assert!(accepted.status.success(), "{said}");
}

/// The checksums and signature of an archive, with or without a release key.
#[test]
fn checksums_are_signed_if_a_key_is_given() {
    let directory = tempfile::tempdir().expect("a folder");
    let at = |name: &str| directory.path().join(name);
    std::fs::write(at("gpu-bootstrap-1-linux-x86_64.tar.gz"), "archive").expect("a file");
    let run = |program: &str, args: &[&str], input: Option<&str>| {
        let input = match input {
            Some(name) => std::fs::File::open(at(name)).expect("a file").into(),
            None => Stdio::null(),
        };
        Command::new(program)
            .args(args)
            .env(
                "RELEASE_KEY",
                if args.contains(&"signed") { "key" } else { "" },
            )
            .current_dir(directory.path())
            .stdin(input)
            .output()
            .expect("a program")
    };
    let generated = run(
        "ssh-keygen",
        &["-q", "-t", "ed25519", "-N", "", "-f", "key"],
        None,
    );
    assert!(generated.status.success(), "{generated:?}");
    let public = std::fs::read_to_string(at("key.pub")).expect("a key");
    std::fs::write(at("signers"), format!("release {public}")).expect("a file");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/release/checksums.sh");
    let verify = [
        "-Y",
        "verify",
        "-f",
        "signers",
        "-I",
        "release",
        "-n",
        "file",
        "-s",
        "SHA256SUMS.sig",
    ];

    let made = run(script, &[".", "signed"], None);
    assert!(made.status.success(), "{made:?}");
    assert!(
        run("sha256sum", &["-c", "SHA256SUMS"], None)
            .status
            .success()
    );
    assert!(
        run("ssh-keygen", &verify, Some("SHA256SUMS"))
            .status
            .success()
    );
    assert!(!run("ssh-keygen", &verify, Some("key.pub")).status.success());

    let made = run(script, &["."], None);
    assert!(
        made.status.success() && !at("SHA256SUMS.sig").exists(),
        "{made:?}"
    );
}
