//! Tests transactions that replace packages: each package gets another version or is removed, despite our own holds.

use super::{
    archive::{Archive, Kind, Offered},
    kit::TestMachine,
    packages::spec,
    with_each_manager,
};
use crate::{
    change::{ApplyChanges, Change, Undo},
    error::Report,
    exit::Exit,
    host::fake::diff,
};

with_each_manager! {
    replaced_packages_change_version_or_are_removed
    other_packages_keep_their_version
    undo_contains_the_previous_version
    our_driver_components_may_be_replaced
    foreign_hold_blocks_the_driver_change
    required_package_is_not_removed
}

/// A driver and its library, both held. The archive has the next version.
pub(super) async fn driver(kind: Kind) -> (TestMachine, Archive) {
    let mut machine = TestMachine::with(kind);
    let archive = Archive::on(&machine);
    machine.applier = machine
        .applier
        .holding(["driver", "library-1"].map(str::to_owned));
    archive.offer("library-1", Offered::new("535.1", &[]));
    archive.offer("driver", Offered::new("535.1", &["library-1"]));
    archive.write(&machine.fakes.files);
    let change = install("535.*", &[]);
    machine.apply(&change).await.unwrap();
    for name in ["driver", "library-1"] {
        (archive.installed.lock().unwrap().get_mut(name).unwrap()).held = true;
    }
    archive.write(&machine.fakes.files);
    archive.offer("library-2", Offered::new("580.1", &[]));
    archive.offer("driver", Offered::new("580.1", &["library-2"]));
    (machine, archive)
}

/// The same, but the next driver conflicts with the library of the old one.
async fn excluding(kind: Kind) -> (TestMachine, Archive) {
    let (machine, archive) = driver(kind).await;
    archive.offer(
        "driver",
        Offered {
            conflicts: &["library-1"],
            ..Offered::new("580.1", &[])
        },
    );
    (machine, archive)
}

pub(super) fn install(version: &str, replaced: &[&str]) -> Change {
    Change::InstallPackages {
        packages: vec![spec("driver", Some(version))],
        removing: replaced.iter().map(|name| (*name).to_owned()).collect(),
        later: false,
    }
}

fn installed(archive: &Archive) -> Vec<String> {
    let all = archive.installed.lock().unwrap();
    (all.iter())
        .filter(|(_, there)| !there.gone)
        .filter(|(name, _)| name.starts_with("driver") || name.starts_with("library"))
        .map(|(name, there)| format!("{name} {}", there.version))
        .collect()
}

async fn replaced_packages_change_version_or_are_removed(kind: Kind) {
    let (machine, archive) = driver(kind).await;
    let change = install("580.*", &["driver", "library-1"]);
    let plan = machine.applier.preview(&change).await.unwrap().unwrap();
    for line in [
        "~ driver 535.1 -> 580.1",
        "+ library-2 580.1",
        "- library-1 535.1",
    ] {
        assert!(plan.contains(line), "{plan}");
    }
    machine.apply(&change).await.unwrap();
    assert_eq!(installed(&archive), ["driver 580.1", "library-2 580.1"]);
    // There is nothing left to do.
    assert_eq!(machine.applier.preview(&change).await.unwrap().unwrap(), "");
    // An older version is also accepted if the plan replaces the newer one.
    archive.offer("driver", Offered::new("535.1", &["library-1"]));
    let back = install("535.*", &["driver", "library-2"]);
    machine.apply(&back).await.unwrap();
    assert_eq!(installed(&archive), ["driver 535.1", "library-1 535.1"]);
}

async fn other_packages_keep_their_version(kind: Kind) {
    let (machine, _) = driver(kind).await;
    let before = machine.snapshot();
    // The change does not replace the driver, so the hold applies, although gpu-bootstrap set it.
    let error = machine.apply(&install("580.*", &[])).await.unwrap_err();
    assert_eq!(error.reason(), "transaction-refused");
    assert!(
        error.to_string().contains("driver, which is held"),
        "{error}"
    );
    assert_eq!(diff(&before, &machine.snapshot()), Vec::<String>::new());
}

async fn undo_contains_the_previous_version(kind: Kind) {
    let (machine, _) = driver(kind).await;
    let undo = machine
        .apply(&install("580.*", &["driver", "library-1"]))
        .await
        .unwrap();
    let Undo::Packages {
        effects: Some(effects),
        ..
    } = undo
    else {
        panic!("packages");
    };
    assert_eq!(effects.moved, [spec("driver", Some("535.1"))]);
    assert_eq!(effects.disappeared, [spec("library-1", Some("535.1"))]);
    assert!(effects.appeared.contains("library-2"));
}

/// The change replaces only the driver, but the package manager also removes driver components that conflict with the new
/// driver, such as the module of the other flavor.
async fn our_driver_components_may_be_replaced(kind: Kind) {
    let (machine, archive) = excluding(kind).await;
    machine.apply(&install("580.*", &["driver"])).await.unwrap();
    assert_eq!(installed(&archive), ["driver 580.1"]);
    // A package that is not a driver component must not be removed with the driver.
    let (machine, archive) = driver(kind).await;
    archive.have("podman", "4");
    archive.write(&machine.fakes.files);
    archive.offer(
        "driver",
        Offered {
            conflicts: &["podman"],
            ..Offered::new("580.1", &[])
        },
    );
    let error = machine
        .apply(&install("580.*", &["driver"]))
        .await
        .unwrap_err();
    assert!(
        error.to_string().contains("would remove podman 4"),
        "{error}"
    );
}

/// The new driver conflicts with the old library, but the administrator has held the library.
async fn foreign_hold_blocks_the_driver_change(kind: Kind) {
    let (mut machine, _) = excluding(kind).await;
    machine.applier = machine.restarted().holding(["driver".to_owned()]);
    let before = machine.snapshot();
    let change = install("580.*", &["driver"]);
    let refused = machine.applier.dry_run(&change).await.unwrap_err();
    let error = machine.apply(&change).await.unwrap_err();
    for error in [refused, error] {
        assert_eq!(
            (error.exit(), error.reason()),
            (Exit::Blocked, "package-held")
        );
        assert!(error.to_string().contains("library-1"), "{error}");
        assert!(!error.to_string().contains("driver,"), "{error}");
        let hint = error.hint().unwrap();
        assert!(hint.contains("library-1"), "{hint}");
    }
    assert_eq!(diff(&before, &machine.snapshot()), Vec::<String>::new());
}

/// Both are required, but the archive's new driver conflicts with the library.
async fn required_package_is_not_removed(kind: Kind) {
    let (machine, _) = excluding(kind).await;
    let before = machine.snapshot();
    let change = Change::InstallPackages {
        packages: vec![spec("driver", Some("580.*")), spec("library-1", None)],
        removing: vec!["driver".to_owned()],
        later: false,
    };
    let error = machine.apply(&change).await.unwrap_err();
    assert_eq!(error.reason(), "transaction-refused");
    assert!(
        error
            .to_string()
            .contains("library-1 535.1, which is required"),
        "{error}"
    );
    assert_eq!(diff(&before, &machine.snapshot()), Vec::<String>::new());
}
