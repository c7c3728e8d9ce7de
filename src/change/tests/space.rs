//! Tests decisions based on the sizes and URLs that the package manager reports: whether a transaction fits on the filesystems,
//! and whether a failed source is needed.

use super::{
    archive::{Archive, Kind, Offered},
    kit::{TestMachine, says},
    packages::{docker, install, spec},
};
use crate::{
    change::{Applier, ApplyChanges, Change, packages::WantedPackages},
    error::Report,
    exit::Exit,
    host::{
        fake::failed,
        files::{FreeSpace, Inodes},
    },
    tools::packages::FailureClass,
};

const GB: u64 = 1_000_000_000;

fn free_space(free: u64) -> FreeSpace {
    FreeSpace {
        total: 100 * GB,
        free,
        read_only: false,
        inodes: None,
    }
}

/// A machine with additional filesystems of one gigabyte each. Each package download has `size` bytes.
fn with_filesystems(size: u64, mounts: &[&str]) -> (TestMachine, Archive) {
    let (machine, apt) = docker(Kind::Apt);
    apt.events().size = size;
    let files = &machine.fakes.files;
    let mut list = "21 1 254:1 / / rw - ext4 /dev/vda1 rw\n".to_owned();
    for (n, mount) in mounts.iter().enumerate() {
        files.put_directory(mount, 0o755);
        files.mount(mount, free_space(GB));
        list.push_str(&format!(
            "{n} 21 254:{} / {mount} rw - ext4 /dev/x rw\n",
            n + 2
        ));
    }
    files.put("/proc/self/mountinfo", list);
    (machine, apt)
}

#[tokio::test]
async fn transaction_that_does_not_fit_is_rejected() {
    for (size, mounts, expected) in rows! {
        // The package files.
        300_000_000, &["/usr"][..], Some("`/usr` has 953.7 MiB free, but the packages need 1.4 GiB");
        100_000_000, &["/usr"], None;
        // The package archives.
        1_100_000_000, &["/var"], Some("`/var` has 953.7 MiB free, but the packages need 1.0 GiB");
        900_000_000, &["/var"], None;
        // On separate filesystems, the sizes are not added.
        190_000_000, &["/usr", "/var"], None;
    } {
        let (machine, apt) = with_filesystems(size, mounts);
        let change = install(&["docker.io"]);
        let dry_run_of = machine.applier.dry_run(&change).await;
        let previewed = machine.applier.preview(&change).await.map(drop);
        let before = machine.fakes.exec.lines().len();
        let applied = machine.apply(&change).await.map(drop);
        for ended in [dry_run_of, previewed, applied] {
            let Some(words) = expected else {
                ended.unwrap();
                continue;
            };
            let error = ended.expect_err("there is not enough space");
            assert_eq!(error.exit(), Exit::Blocked);
            assert_eq!(error.reason(), "no-disk-space");
            says(&error, words);
            says(error.hint().unwrap(), "apt-get clean");
        }
        if expected.is_some() {
            let lines = machine.fakes.exec.lines().split_off(before);
            let asks = |line: &String| line.contains(" -s ") || line.contains("--print-uris");
            let harmless = |line: &String| asks(line) || !line.starts_with("apt-get");
            assert!(lines.iter().all(harmless), "{lines:?}");
            assert!(!apt.has("docker.io"));
        }
    }
}

#[tokio::test]
async fn downloads_and_files_on_one_filesystem_are_added() {
    // 180 MB and 900 MB on a filesystem of 1 GB.
    let (machine, _) = docker_on_one_filesystem(180_000_000);
    let error = machine.fails(&install(&["docker.io"])).await;
    says(&error, "`/` has 953.7 MiB free");
    let (machine, _) = docker_on_one_filesystem(160_000_000);
    machine.apply(&install(&["docker.io"])).await.unwrap();
}

fn docker_on_one_filesystem(size: u64) -> (TestMachine, Archive) {
    let (machine, apt) = with_filesystems(size, &[]);
    machine.fakes.files.mount("/", free_space(GB));
    (machine, apt)
}

#[tokio::test]
async fn filesystem_without_inodes_has_its_own_remedy() {
    let (machine, apt) = docker_on_one_filesystem(1);
    let mut without = free_space(GB);
    let (total, free) = (65536, 0);
    without.inodes = Some(Inodes { total, free });
    machine.fakes.files.mount("/", without);
    apt.events().faults = vec!["E: You don't have enough free space in /var/cache/apt/archives/."];
    let error = machine.fails(&install(&["docker.io"])).await;
    let hint = error.hint().unwrap_or_default();
    assert!(hint.contains("`/` has 0 of 65536 inodes free"), "{hint}");
}

#[tokio::test]
async fn dry_run_ignores_temporary_errors() {
    let (machine, _) = with_filesystems(1, &[]);
    // The repository has not been added yet.
    (machine.applier.dry_run(&install(&["unknown"])).await).unwrap();
    // An earlier change of the run may repair this.
    let error = "E: Unable to correct problems, you have held broken packages.";
    (machine.fakes.exec).on("apt-get", move |_, _| failed(100, error));
    (machine.applier.dry_run(&install(&["docker.io"])).await).unwrap();
}

const DEAD: &str = "http://dead.example.org/deb";

/// The lists of the distribution are downloaded, but not the lists of `DEAD`.
fn with_dead_source(words: &'static str) -> (TestMachine, Archive, Applier) {
    let (machine, apt) = docker(Kind::Apt);
    let files = &machine.fakes.files;
    files.put(
        "/etc/apt/sources.list",
        format!("deb http://debian.example.org/debian bookworm main\ndeb {DEAD} stable main\n"),
    );
    apt.events().faults = vec![words; 8];
    let wanted = WantedPackages {
        packages: vec![spec("docker.io", None)],
        repositories: Vec::new(),
    };
    let applier = machine.applier.clone().wanting(wanted);
    (machine, apt, applier)
}

const REFUSED: &str = "Err:1 http://dead.example.org/deb stable InRelease\n  Could not connect to \
                       dead.example.org:80 - connect (111: Connection refused)\nE: Some index files \
                       failed to download. They have been ignored, or old ones used instead.";
const BAD_KEY: &str = "E: GPG error: http://dead.example.org/deb stable InRelease: The following \
                       signatures couldn't be verified because the public key is not available: \
                       NO_PUBKEY A4B469963BF863CC\nE: The repository \
                       'http://dead.example.org/deb stable InRelease' is not signed.";

const BOTH: &str = "Err:1 http://debian.example.org/debian bookworm InRelease\n  Connection refused\n\
                    Err:2 http://dead.example.org/deb stable InRelease\n  Connection refused";

async fn refresh(machine: &TestMachine, applier: &Applier) -> Result<(), &'static str> {
    let change = Change::RefreshRepositories;
    let undo = applier.capture(&change).await.unwrap();
    let ended = applier.apply(&change, undo, &machine.sink).await;
    ended.map(drop).map_err(|error| error.reason())
}

#[tokio::test]
async fn source_without_required_packages_may_fail() {
    for words in [REFUSED, BAD_KEY] {
        let (machine, _, applier) = with_dead_source(words);
        assert_eq!(refresh(&machine, &applier).await, Ok(()));
        let said = machine.sink.text();
        says(&said, "warning: http://dead.example.org/deb failed");
        // The download is not retried.
        assert!(machine.fakes.clock.slept().is_empty());
    }
}

#[tokio::test]
async fn required_source_must_not_fail() {
    for (words, reason) in [(REFUSED, "network"), (BAD_KEY, "repository-key")] {
        // A required package would come from it.
        let (machine, apt, applier) = with_dead_source(words);
        apt.events().hosts.insert("docker.io", DEAD);
        assert_eq!(refresh(&machine, &applier).await, Err(reason));
        // A required package is unknown, so it may be in the missing lists.
        let (machine, apt, applier) = with_dead_source(words);
        apt.archive.lock().unwrap().remove("docker.io");
        assert_eq!(refresh(&machine, &applier).await, Err(reason));
        // It is one of our repositories.
        let (machine, _, applier) = with_dead_source(words);
        machine.fakes.files.put(
            "/etc/apt/sources.list.d/gpu-bootstrap-dead.sources",
            format!("Types: deb\nURIs: {DEAD}\nSuites: stable\nComponents: main\n"),
        );
        assert_eq!(refresh(&machine, &applier).await, Err(reason));
        // The distribution also fails.
        let (machine, apt, applier) = with_dead_source(words);
        if reason == "network" {
            apt.events().faults = vec![BOTH; 8];
            assert_eq!(refresh(&machine, &applier).await, Err(reason));
        }
    }
}

#[tokio::test]
async fn failure_without_a_source_is_never_ignored() {
    let full = "Err:1 http://dead.example.org/deb stable InRelease\n  Error writing to file - write \
                (28: No space left on device)";
    let (machine, _, applier) = with_dead_source(full);
    assert_eq!(refresh(&machine, &applier).await, Err("no-disk-space"));
}

/// Whether the failed source is needed is then unknown, but only the first error prevents every transaction.
#[tokio::test]
async fn unreadable_sources_are_reported_instead_of_a_failed_source() {
    for (words, class) in rows! {
        "E: The list of sources could not be read.", FailureClass::Sources;
        "E: Unable to correct problems, you have held broken packages.", FailureClass::Network;
    } {
        let (machine, apt, applier) = with_dead_source(REFUSED);
        (machine.fakes.exec).on("apt-get", move |cmd, _| {
            match cmd.args.iter().any(|arg| arg == "--print-uris") {
                true => failed(100, words),
                false => apt.get(cmd),
            }
        });
        assert_eq!(refresh(&machine, &applier).await, Err(class.reason()));
    }
}

#[tokio::test]
async fn no_source_is_needed_if_all_is_installed() {
    let (machine, apt, applier) = with_dead_source(REFUSED);
    apt.have("docker.io", "20.10.24");
    apt.offer("docker.io", Offered::new("20.10.24", &[]));
    apt.events().hosts.insert("docker.io", DEAD);
    assert_eq!(refresh(&machine, &applier).await, Ok(()));
}
