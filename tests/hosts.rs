//! Compares the facts of the machines in `tests/hosts` with snapshots.

#![expect(
    clippy::unwrap_used,
    reason = "a panic is how a test reports a broken fixture"
)]

use std::{fs, sync::Arc};

use camino::{Utf8Path, Utf8PathBuf};
use gpu_bootstrap::{
    compat::matrix::Matrix,
    facts::{self, Facts, Scope},
    host::{
        Host,
        fake::{self, Fakes},
        files::FreeSpace,
        rooted,
    },
    report::document,
    state::State,
};
use serde_json::Value;

#[path = "hosts/machines.rs"]
mod machines;
#[path = "hosts/reports.rs"]
mod reports;

const GIB: u64 = 1 << 30;

fn hosts() -> Vec<(String, Utf8PathBuf)> {
    let directory = Utf8Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hosts");
    let mut hosts: Vec<(String, Utf8PathBuf)> = directory
        .read_dir_utf8()
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.path().join("root").is_dir())
        .map(|entry| (entry.file_name().to_owned(), entry.path().to_owned()))
        .collect();
    hosts.sort();
    assert!(hosts.len() >= 5, "{hosts:?}");
    hosts
}

/// Loads a directory tree into an in-memory machine with constant filesystem sizes.
fn load(root: &Utf8Path) -> Fakes {
    let (_, fakes) = fake::host();
    let free_space = |total| FreeSpace {
        total,
        free: total / 2,
        read_only: false,
        inodes: None,
    };
    fakes.files.mount("/", free_space(100 * GIB));
    copy(root, root, &fakes);
    let mounts = fs::read_to_string(root.join("proc/self/mountinfo")).unwrap();
    for path in mounts.lines().filter_map(|line| line.split(' ').nth(4)) {
        if path != "/" {
            fakes.files.mount(path, free_space(50 * GIB));
        }
    }
    fakes
}

fn copy(root: &Utf8Path, directory: &Utf8Path, to: &Fakes) {
    for entry in directory.read_dir_utf8().unwrap() {
        let entry = entry.unwrap();
        let path = format!("/{}", entry.path().strip_prefix(root).unwrap());
        let kind = entry.file_type().unwrap();
        if kind.is_symlink() {
            let target = entry.path().read_link_utf8().unwrap();
            to.files.put_link(&path, target.as_str());
        } else if kind.is_dir() {
            to.files.put_directory(&path, 0o755);
            copy(root, entry.path(), to);
        } else {
            to.files.put(&path, fs::read(entry.path()).unwrap());
        }
    }
}

async fn gather(fakes: &Fakes, executes: bool) -> Value {
    let mut facts = facts_of(fakes.host(), executes).await;
    // The free space of the in-memory machine depends on the size of all files in the tree.
    for disk in facts["disks"].as_array_mut().unwrap() {
        disk["free-bytes"] = (disk["total-bytes"].as_u64().unwrap() / 2).into();
    }
    facts
}

/// The document of `facts`.
async fn facts_of(host: Host, executes: bool) -> Value {
    let matrix = Matrix::builtin().unwrap();
    let scope = Scope { executes };
    let facts = Arc::new(facts::gather(host.reader(), Some(&matrix), scope));
    let state = State::new(host, scope, Arc::clone(&facts));
    serde_json::to_value(document::facts(&facts, state.snapshot().await)).unwrap()
}

fn compare(name: &str, facts: &Value) {
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path("hosts/snapshots");
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.bind(|| insta::assert_json_snapshot!(name, facts));
}

#[tokio::test]
async fn with_root_nothing_is_executed() {
    for (name, directory) in hosts() {
        let fakes = load(&directory.join("root"));
        let facts = gather(&fakes, false).await;
        assert_eq!(fakes.exec.lines(), Vec::<String>::new(), "{name}");
        compare(&name, &facts);
    }
}

/// The same with the files of a `--root` tree, where the kernel resolves symlinks.
#[tokio::test]
async fn tree_on_disk_has_the_same_facts() {
    for (name, directory) in hosts() {
        let root = directory.join("root");
        let mut on_disk = facts_of(rooted::host(&root).unwrap(), false).await;
        let mut in_memory = gather(&load(&root), false).await;
        // The free space of the disk with the tree is not a fact of the machine.
        assert_eq!(on_disk["disks"].as_array().unwrap().len(), 0, "{name}");
        let unknown = on_disk["unknown"].as_array_mut().unwrap();
        let all = unknown.len();
        unknown.retain(|row| row["fact"] != "disks");
        assert_eq!(unknown.len() + 1, all, "{name}");
        in_memory["disks"].as_array_mut().unwrap().clear();
        assert_eq!(on_disk, in_memory, "{name}");
    }
}

#[tokio::test]
async fn rpm_is_queried_if_programs_may_run() {
    let mut queried = 0;
    for (name, directory) in hosts() {
        let Ok(packages) = fs::read_to_string(directory.join("rpm-qa.txt")) else {
            continue;
        };
        let fakes = load(&directory.join("root"));
        fakes.exec.on("rpm", move |_, _| fake::ok(packages.clone()));
        compare(&format!("{name}.live"), &gather(&fakes, true).await);
        queried += 1;
    }
    assert!(queried > 0, "no machine has the output of rpm");
}

/// The documented keys always exist.
fn has_the_documented_keys(json: &Value) {
    for (object, keys) in [
        (
            "",
            &[
                "schema",
                "os",
                "kernel",
                "secure-boot",
                "cloud",
                "gpus",
                "nvswitches",
                "driver",
                "runtimes",
                "unknown",
            ][..],
        ),
        ("/kernel", &["running", "next-boot", "arch"]),
        ("/cloud", &["provider", "instance-type", "lifecycle"]),
        (
            "/driver",
            &[
                "loaded-version",
                "library-version",
                "package-version",
                "origin",
            ],
        ),
    ] {
        let object = json.pointer(object).unwrap();
        for key in keys {
            assert!(object.get(key).is_some(), "{key}");
        }
    }
}

#[tokio::test]
async fn the_contract_holds_even_for_an_empty_machine() {
    let (_, fakes) = fake::host();
    let json = gather(&fakes, false).await;
    has_the_documented_keys(&json);
    assert_eq!(json["secure-boot"], "unknown");
    let facts_unknown: Vec<&str> = (json["unknown"].as_array().unwrap().iter())
        .map(|unknown| unknown["fact"].as_str().unwrap())
        .collect();
    for fact in [
        "os",
        "kernel.running",
        "kernel.next-boot",
        "kernel.arch",
        "kernel.compiler",
        "secure-boot",
        "lockdown",
        "cloud.provider",
        "virtualization",
        "init",
        "boot-id",
        "instance-id",
        "memory-bytes",
        "gpus",
        "driver.package-version",
        "driver.module-version",
        "nvml",
    ] {
        assert!(facts_unknown.contains(&fact), "{fact}: {facts_unknown:?}");
    }
}

#[tokio::test]
async fn gpu_has_the_documented_keys() {
    let (_, directory) = hosts()
        .into_iter()
        .find(|(name, _)| name == "ubuntu-24.04-h100x8")
        .unwrap();
    let fakes = load(&directory.join("root"));
    let json = gather(&fakes, false).await;
    let gpu = &json["gpus"][0];
    for key in [
        "pci-address",
        "pci-id",
        "name",
        "architecture",
        "compute-capability",
        "module-flavor",
        "bound-driver",
        "vgpu",
    ] {
        assert!(gpu.get(key).is_some(), "{key}");
    }
}

#[tokio::test]
async fn the_document_has_every_fact() {
    let matrix = Matrix::builtin().unwrap();
    for (name, directory) in hosts() {
        let host = load(&directory.join("root")).host();
        let facts = facts::gather(host.reader(), Some(&matrix), Scope { executes: false });
        let back: Facts = serde_json::from_value(facts_of(host, false).await).unwrap();
        // The `unknown` list of the document also contains entries about the state.
        let unknown = back.unknown.clone();
        assert_eq!(back, Facts { unknown, ..facts }, "{name}");
    }
}

mod garbage {
    //! Gathering facts never panics or omits a key, regardless of the file contents.

    use super::*;
    use proptest::prelude::*;

    const PATHS: &[&str] = &[
        "/etc/os-release",
        "/proc/sys/kernel/osrelease",
        "/proc/sys/kernel/arch",
        "/proc/version",
        "/proc/meminfo",
        "/proc/self/mountinfo",
        "/proc/cpuinfo",
        "/proc/driver/nvidia/version",
        "/boot/grub/grub.cfg",
        "/boot/grub/grubenv",
        "/sys/kernel/security/lockdown",
        "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c",
        "/sys/class/dmi/id/product_name",
        "/sys/bus/pci/devices/0000:01:00.0/vendor",
        "/sys/bus/pci/devices/0000:01:00.0/device",
        "/sys/bus/pci/devices/0000:01:00.0/class",
        "/run/cloud-init/instance-data.json",
        "/usr/share/misc/pci.ids",
        "/var/lib/dpkg/status",
        "/lib/modules/6.1.0-44-cloud-amd64/modules.dep",
        "/lib/modules/6.1.0-44-cloud-amd64/updates/dkms/nvidia-current.ko",
        "/etc/ld.so.conf",
        "/etc/containerd/config.toml",
    ];

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn never_panics(files in prop::collection::vec(
            (prop::sample::select(PATHS), prop::collection::vec(any::<u8>(), 0..200)), 0..8,
        )) {
            let directory = Utf8Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("tests/hosts/debian-12-driver-535/root");
            let fakes = load(&directory);
            for (path, content) in files {
                fakes.files.put(path, content);
            }
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let facts = runtime.block_on(gather(&fakes, false));
            has_the_documented_keys(&facts);
        }
    }
}
