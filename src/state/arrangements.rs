//! Arrangements of containerd's files, as they are read, imports included, and what is set in them.
//!
//! Sources of what containerd makes of them: `cmd/containerd/server/config/config.go` of 2.3.4
//! (`LoadConfigWithPlugins`: files are read in the order in which they are named, lists are united, an older file is
//! migrated before it is merged). 2.3.4 refuses a file that is newer than the first one; 2.2.6 does not ask.

use std::collections::BTreeSet;

use super::CONTAINERD_CONFIG;
use crate::{
    host::{ExecError, fake},
    model::document::{Document, Format},
    steps::fixtures::{facts, state, state_below_root},
    tools::containerd::{
        layout::{Version, fixtures::NVIDIA, settings},
        parse_config,
    },
};

const TWO: &str = "io.containerd.grpc.v1.cri";
const THREE: &str = "io.containerd.cri.v1.runtime";
const A: &str = "/etc/containerd/conf.d/50-a.toml";
const B: &str = "/etc/containerd/conf.d/60-b.toml";

/// What it is, the files, and the version of containerd.
type Case = (&'static str, Vec<(&'static str, String)>, Version);

/// The first file, with all of `conf.d`.
fn root(version: u8, more: &str) -> String {
    format!("version = {version}\nimports = [\"/etc/containerd/conf.d/*.toml\"]\n{more}")
}

/// A file that says something about runc.
fn runc(version: u8, plugin: &str) -> String {
    format!(
        "version = {version}\n[plugins.'{plugin}'.containerd.runtimes.runc]\n\
         runtime_type = 'io.containerd.runc.v2'\n\
         [plugins.'{plugin}'.containerd.runtimes.runc.options]\nSystemdCgroup = true # {version}\n"
    )
}

/// A file that has the runtime, with this program.
fn nvidia(version: u8, plugin: &str, program: &str) -> String {
    runc(version, plugin)
        + &format!(
            "[plugins.'{plugin}'.containerd.runtimes.nvidia]\nruntime_type = 'io.containerd.runc.v2'\n\
             [plugins.'{plugin}'.containerd.runtimes.nvidia.options]\nBinaryName = '{program}'\n"
        )
}

/// The files that are changed, after it. What was set is read again, and found.
async fn after(files: &[(&str, String)], version: Version) -> String {
    let (host, fakes) = fake::host();
    fakes.exec.on_result("containerd", |cmd, _| {
        Err(ExecError::NotAsked {
            command: cmd.line(),
            why: "a tree".to_owned(),
        })
    });
    fakes.files.put("/usr/bin/containerd", "");
    for (path, text) in files {
        fakes.files.put(path, text.as_str());
    }
    let wanted = || {
        let files = state(&host, facts()).containerd_files().expect("readable");
        settings(&files, Some(version), &NVIDIA).expect("readable")
    };
    let mut all = String::new();
    for one in wanted() {
        let text = host.files.read_text(&one.path).expect("readable");
        let text = text.unwrap_or_default();
        let mut document = Document::parse(Format::Toml, &text).expect("TOML");
        for setting in &one.settings {
            document.set(setting).expect("a key that can be set");
        }
        let text = document.text();
        assert!(parse_config(&text).is_ok_and(|config| config.enabled));
        all.push_str(&format!("== {}\n{text}", one.path));
        fakes.files.put(one.path.as_str(), text);
    }
    assert_eq!(wanted(), [], "the second time\n{all}");
    let read = state_below_root(&host, facts()).cri().await;
    let read = read.expect("readable").expect("it is installed");
    assert!(read.enabled, "{all}");
    let names: BTreeSet<&str> = read.runtimes.iter().map(String::as_str).collect();
    assert!(names.contains("nvidia"), "{all}");
    let program = read.programs.get("nvidia").map(String::as_str);
    assert_eq!(program, Some(NVIDIA.program), "{all}");
    all
}

#[tokio::test]
async fn each_arrangement_of_imports_gets_its_keys_once() {
    let theirs = "/usr/local/nvidia/toolkit/nvidia-container-runtime";
    let off = "disabled_plugins = ['cri', 'io.containerd.internal.v1.opt'] # no kubelet\n";
    let mirrors = |version: u8, plugin: &str| {
        format!("version = {version}\n[plugins.'{plugin}'.registry]\nconfig_path = '/certs'\n")
    };
    let cases: Vec<Case> = vec![
        (
            "version 4, 2.3",
            vec![(CONTAINERD_CONFIG, runc(4, THREE))],
            Version(2, 3),
        ),
        (
            "version 4 imports version 3, 2.3",
            vec![(CONTAINERD_CONFIG, root(4, "")), (A, runc(3, THREE))],
            Version(2, 3),
        ),
        (
            "version 4 imports version 2 with the runtime, 2.3: its entry is corrected where it is",
            vec![
                (CONTAINERD_CONFIG, root(4, "")),
                (A, nvidia(2, TWO, theirs)),
            ],
            Version(2, 3),
        ),
        (
            "version 3 imports version 2, 2.2",
            vec![(CONTAINERD_CONFIG, root(3, "")), (A, runc(2, TWO))],
            Version(2, 2),
        ),
        (
            // 2.0 replaces tables of plugins. Whether mirrors alone, once migrated, take the place of the runtimes of
            // the first file is not known; the keys are in the later file, so they count in either case.
            "version 3 imports version 2 with mirrors, 2.0",
            vec![
                (
                    CONTAINERD_CONFIG,
                    runc(3, THREE).replacen('\n', "\nimports = ['conf.d/*.toml']\n", 1),
                ),
                (A, mirrors(2, TWO)),
            ],
            Version(2, 0),
        ),
        (
            // 2.3.4 refuses this before and after, and names the file.
            "version 2 imports version 3, 2.2",
            vec![(CONTAINERD_CONFIG, root(2, "")), (A, runc(3, THREE))],
            Version(2, 2),
        ),
        (
            "the runtime is in a drop-in, 1.7",
            vec![
                (CONTAINERD_CONFIG, root(2, "")),
                (A, nvidia(2, TWO, NVIDIA.program)),
            ],
            Version(1, 7),
        ),
        (
            "the runtime is in a drop-in, 2.2: nothing is set",
            vec![
                (CONTAINERD_CONFIG, root(3, "")),
                (A, nvidia(3, THREE, NVIDIA.program)),
            ],
            Version(2, 2),
        ),
        (
            "two drop-ins, 1.7: the later one takes the place of the section",
            vec![
                (CONTAINERD_CONFIG, root(2, "")),
                (A, runc(2, TWO)),
                (B, mirrors(2, TWO)),
            ],
            Version(1, 7),
        ),
        (
            "two drop-ins with the runtime, 2.1: the later one counts",
            vec![
                (CONTAINERD_CONFIG, root(2, "")),
                (A, nvidia(2, TWO, NVIDIA.program)),
                (B, nvidia(2, TWO, theirs)),
            ],
            Version(2, 1),
        ),
        (
            "a drop-in imports a file beside it, 1.7",
            vec![
                (
                    CONTAINERD_CONFIG,
                    "version = 2\nimports = ['conf.d/*.toml']\n".to_owned(),
                ),
                (A, "version = 2\nimports = ['more/c.toml']\n".to_owned()),
                ("/etc/containerd/conf.d/more/c.toml", runc(2, TWO)),
            ],
            Version(1, 7),
        ),
        (
            "a drop-in imports the first file, 2.3: each is read once",
            vec![
                (CONTAINERD_CONFIG, root(4, "")),
                (
                    A,
                    "version = 4\nimports = ['/etc/containerd/config.toml']\n".to_owned(),
                ),
            ],
            Version(2, 3),
        ),
        (
            "the CRI plugin is disabled in a drop-in, 1.7",
            vec![
                (CONTAINERD_CONFIG, root(2, "")),
                (A, format!("version = 2\n{off}")),
            ],
            Version(1, 7),
        ),
        (
            "the CRI plugin is disabled in both files, 2.3",
            vec![
                (CONTAINERD_CONFIG, root(4, off)),
                (A, format!("version = 3\ndisabled_plugins = ['{THREE}']\n")),
            ],
            Version(2, 3),
        ),
    ];
    let mut all = String::new();
    for (name, files, version) in cases {
        all.push_str(&format!("#### {name}\n{}\n", after(&files, version).await));
    }
    insta::assert_snapshot!(all);
}
