//! `check --root`: checks the files of a machine that is not running.

use std::os::unix::fs::symlink;

use camino::Utf8Path;
use gpu_bootstrap::host::{ReadFiles, files::FileKind};
use serde_json::Value;
use toml::Table;

use crate::{build::describe, machine::Machine};

/// Directories with content only on a running machine.
const LIVE: [&str; 4] = ["/proc", "/sys", "/dev", "/run"];

/// Writes the files of a machine to a directory, like a mounted image.
fn mount(machine: &Machine, root: &Utf8Path) {
    let files = &machine.fakes.files;
    for path in files.snapshot().without(&LIVE).paths() {
        let at = root.join(path.as_str().trim_start_matches('/'));
        let stat = files.stat(path).expect("a stat").expect("it is there");
        match stat.kind {
            FileKind::Directory => std::fs::create_dir_all(&at).expect("a folder"),
            FileKind::Link(target) => symlink(&target, &at).expect("a link"),
            FileKind::File => {
                let content = files.read(path).expect("a file").unwrap_or_default();
                std::fs::write(&at, content).expect("a file");
            }
            FileKind::CharDevice(..) | FileKind::Other => {}
        }
    }
}

fn check(machine: &Machine, root: &Utf8Path) -> (u8, Value) {
    let ran = machine.run(&["check", "--root", root.as_str(), "--format", "json"]);
    let document = serde_json::from_str(&ran.out).unwrap_or_else(|_| panic!("{}", ran.err));
    (ran.exit, document)
}

fn status(document: &Value, id: &str) -> String {
    let findings = document["findings"].as_array().expect("findings");
    let finding = findings.iter().find(|finding| finding["id"] == id);
    let finding = finding.unwrap_or_else(|| panic!("no {id}"));
    format!("{} {}", finding["status"], finding["why"])
}

#[test]
fn healthy_image_passes_and_broken_one_fails() {
    // The image contains the program that its units start.
    let about = "in-tree = [\"nouveau\"]\n[files]\n\"/usr/local/bin/gpu-bootstrap\" = \"\"\n";
    let about: Table = about.parse().expect("TOML");
    let machine = Machine::new(describe("debian-12-h100", about));
    let built = machine.run(&["install", "--image", "--assume-gpu", "10de:2330"]);
    assert_eq!(built.exit, 0, "{}", built.err);
    let directory = tempfile::tempdir().expect("a folder");
    let root = Utf8Path::from_path(directory.path()).expect("UTF-8");
    mount(&machine, root);

    let (exit, document) = check(&machine, root);
    assert_eq!(exit, 0, "{document:#}");
    let asked = status(&document, "runtime.docker");
    assert!(
        asked.starts_with("\"skip\"") && asked.contains("was not run"),
        "{asked}"
    );
    for id in ["driver.packages", "kernel.deny", "packages.hold"] {
        let found = status(&document, id);
        assert!(found.starts_with("\"pass\""), "{id}: {found}");
    }

    std::fs::remove_file(root.join("etc/modprobe.d/gpu-bootstrap-deny.conf"))
        .expect("it was there");
    let (exit, document) = check(&machine, root);
    assert_eq!(exit, 4);
    assert!(status(&document, "kernel.deny").starts_with("\"fail\""));
}
