//! The package files of the driver before, which are kept while another driver takes its place.

use super::{
    archive::{Archive, Kind},
    kit::{STATE, TestMachine},
    moved::{driver, install},
    with_each_manager,
};
use crate::{
    change::{STOPPED, packages::kept},
    config::desired::PackageWish,
    error::Report,
    host::{ReadFiles, files::Room},
};

with_each_manager! {
    the_files_of_the_driver_before_are_kept
    files_that_cannot_be_fetched_do_not_end_the_installation
    a_damaged_file_gives_way_to_the_repository
    a_torn_list_is_told_and_forgotten
}

/// The driver 535.1 was proven, and repositories still offer it beside the next one.
async fn proven(kind: Kind) -> (TestMachine, Archive) {
    let (mut machine, archive) = driver(kind).await;
    archive.older.lock().unwrap().insert("driver", "535.1");
    let proven = PackageWish {
        name: "driver".into(),
        version: Some("535.1".into()),
    };
    machine.applier = machine.applier.keeping(vec![proven]);
    (machine, archive)
}

fn kept_names(machine: &TestMachine) -> Vec<String> {
    let kept = kept::read(&machine.fakes.files, STATE.into()).unwrap();
    kept.into_iter().map(|one| one.name).collect()
}

fn version_of_driver(archive: &Archive) -> String {
    archive.installed.lock().unwrap()["driver"].version.clone()
}

fn there(machine: &TestMachine, path: &str) -> bool {
    machine.fakes.files.exists(path.into()).unwrap()
}

async fn the_files_of_the_driver_before_are_kept(kind: Kind) {
    let (machine, archive) = proven(kind).await;
    let change = install("580.*", &["driver", "library-1"]);
    machine.apply(&change).await.unwrap();
    assert_eq!(version_of_driver(&archive), "580.1");
    let mut names = kept_names(&machine);
    names.sort();
    assert_eq!(names, ["driver", "library-1"]);
}

async fn files_that_cannot_be_fetched_do_not_end_the_installation(kind: Kind) {
    for words in [
        "E: Failed to fetch http://x/a.deb  Connection timed out",
        "E: Failed to fetch http://x/a.deb  404  Not Found",
        "E: something else",
    ] {
        let (machine, archive) = proven(kind).await;
        *archive.on_fetch.lock().unwrap() = Some(match words {
            words if words.ends_with("out") => {
                |_| Some("E: Failed to fetch http://x/a.deb  Connection timed out")
            }
            words if words.ends_with("Found") => {
                |_| Some("E: Failed to fetch http://x/a.deb  404  Not Found")
            }
            _ => |_| Some("E: something else"),
        });
        let change = install("580.*", &["driver", "library-1"]);
        machine.apply(&change).await.unwrap();
        assert_eq!(version_of_driver(&archive), "580.1");
        let said = machine.sink.text();
        assert!(
            said.contains(
                "the packages of the driver before are not kept for the way back: failed to \
                 download the packages of the driver before"
            ),
            "{said}"
        );
        // Nothing is left of what was half downloaded, and nothing was waited for.
        assert!(kept_names(&machine).is_empty());
        assert!(!there(&machine, &format!("{STATE}/way-back")));
        assert!(machine.fakes.clock.slept().is_empty());
    }
}

#[tokio::test]
async fn a_package_manager_that_was_killed_while_it_fetches_ends_the_installation() {
    use crate::host::exec::Status;
    let (machine, archive) = proven(Kind::Tiny).await;
    let own = archive.clone();
    machine.fakes.exec.on("tiny", move |cmd, files| {
        let mut output = own.tiny(cmd, files);
        if cmd.args[0] == "fetch" {
            output.status = Status::Signalled(9);
        }
        output
    });
    let change = install("580.*", &["driver", "library-1"]);
    let error = machine.apply(&change).await.unwrap_err();
    assert_ne!(error.reason(), STOPPED);
    assert_eq!(version_of_driver(&archive), "535.1");
}

async fn a_damaged_file_gives_way_to_the_repository(kind: Kind) {
    let (machine, archive) = proven(kind).await;
    let change = install("580.*", &["driver", "library-1"]);
    machine.apply(&change).await.unwrap();
    let file = format!("{STATE}/way-back/{}", kind.file_of("driver", "535.1"));
    assert!(there(&machine, &file));
    machine.fakes.files.put(&file, "torn");
    archive.offer(
        "driver",
        super::archive::Offered::new("535.1", &["library-1"]),
    );
    let back = install("535.*", &["driver", "library-2"]);
    machine.applier.preview(&back).await.unwrap();
    machine.apply(&back).await.unwrap();
    assert_eq!(version_of_driver(&archive), "535.1");
    let said = machine.sink.text();
    let note = "the kept file of driver 535.1 is not used: its content is not what was downloaded";
    assert!(said.contains(note), "{said}");
    assert!(!there(&machine, &file));
    assert_eq!(kept_names(&machine), ["library-1"]);
}

async fn a_torn_list_is_told_and_forgotten(kind: Kind) {
    let (machine, archive) = proven(kind).await;
    let list = format!("{STATE}/way-back/kept.json");
    machine.fakes.files.put(&list, "[{");
    machine
        .fakes
        .files
        .put(&format!("{STATE}/way-back/old.deb"), "old");
    let change = install("580.*", &["driver", "library-1"]);
    machine.apply(&change).await.unwrap();
    assert_eq!(version_of_driver(&archive), "580.1");
    let said = machine.sink.text();
    assert!(said.contains("their list is torn"), "{said}");
    assert!(!there(&machine, &format!("{STATE}/way-back/old.deb")));
    assert_eq!(kept_names(&machine).len(), 2);
}

/// What is kept takes the room that the transaction needs.
#[tokio::test]
async fn the_transaction_comes_before_files_for_the_way_back() {
    let (machine, archive) = proven(Kind::Apt).await;
    let files = &machine.fakes.files;
    *archive.size.lock().unwrap() = 60_000_000;
    files.put_folder("/usr", 0o755);
    files.put(
        "/proc/self/mountinfo",
        "21 1 254:1 / / rw - ext4 /dev/vda1 rw\n",
    );
    let room = |free| Room {
        total: 10_000_000_000,
        free,
        read_only: false,
    };
    files.mount("/", room(1_000_000_000));
    *archive.on_fetch.lock().unwrap() = Some(|files| {
        files.mount(
            "/",
            Room {
                total: 10_000_000_000,
                free: 300_000_000,
                read_only: false,
            },
        );
        None
    });
    let change = install("580.*", &["driver", "library-1"]);
    machine.apply(&change).await.unwrap();
    assert_eq!(version_of_driver(&archive), "580.1");
    let said = machine.sink.text();
    assert!(
        said.contains("not kept for the way back: the disk has no room for both"),
        "{said}"
    );
    assert!(!there(&machine, &format!("{STATE}/way-back")));
}
