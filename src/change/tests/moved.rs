//! Tests transactions that replace packages: each package gets another version or is removed, despite our own holds.

use super::{
    archive::{Archive, Kind, Offered},
    kit::{TestMachine, effects, says},
    packages::{replace, spec},
    with_each_manager,
};
use crate::{
    change::{ApplyChanges, Change},
    error::Report,
    exit::Exit,
    host::fake::diff,
};

with_each_manager! {
    replaced_packages_change_version_or_are_removed
    replaced_package_that_the_driver_needs_changes_version
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
    let ours = ["driver", "library-1"].map(str::to_owned);
    machine.applier = machine.applier.holding(ours);
    archive.offer("library-1", Offered::new("535.1", &[]));
    archive.offer("driver", Offered::new("535.1", &["library-1"]));
    let change = install("535.*", &[]);
    machine.apply(&change).await.unwrap();
    for name in ["driver", "library-1"] {
        archive.edit(name, |package| package.held = true);
    }
    archive.offer("library-2", Offered::new("580.1", &[]));
    archive.offer("driver", Offered::new("580.1", &["library-2"]));
    (machine, archive)
}

fn offer_conflicting(archive: &Archive, conflicts: &'static [&'static str]) {
    let next = Offered::new("580.1", &[]);
    archive.offer("driver", next.conflicting(conflicts));
}

/// The same, but the next driver conflicts with the library of the old one.
async fn excluding(kind: Kind) -> (TestMachine, Archive) {
    let (machine, archive) = driver(kind).await;
    offer_conflicting(&archive, &["library-1"]);
    (machine, archive)
}

pub(super) fn install(version: &str, replaced: &[&str]) -> Change {
    replace(vec![spec("driver", Some(version))], replaced)
}

fn installed(archive: &Archive) -> Vec<String> {
    (archive.there().iter())
        .map(|name| format!("{name} {}", archive.package(name).version))
        .collect()
}

async fn replaced_packages_change_version_or_are_removed(kind: Kind) {
    let (machine, archive) = driver(kind).await;
    let change = install("580.*", &["driver", "library-1"]);
    let plan = machine.preview(&change).await;
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
    assert_eq!(machine.preview(&change).await, "");
    // An older version is also accepted if the plan replaces the newer one.
    archive.offer("driver", Offered::new("535.1", &["library-1"]));
    let back = install("535.*", &["driver", "library-2"]);
    machine.apply(&back).await.unwrap();
    assert_eq!(installed(&archive), ["driver 535.1", "library-1 535.1"]);
}

/// The driver depends on any version of a library that the plan replaces, so the library cannot be removed.
async fn replaced_package_that_the_driver_needs_changes_version(kind: Kind) {
    let machine = TestMachine::with(kind);
    let archive = Archive::on(&machine);
    let (driver, library) = ("nvidia-driver-cuda", "nvidia-driver-libs");
    archive.have(library, "535.1");
    archive.offer(library, Offered::new("580.1", &[]));
    archive.offer(driver, Offered::new("580.1", &["nvidia-driver-libs"]));
    let change = replace(vec![spec(driver, Some("580.*"))], &[library]);
    machine.apply(&change).await.unwrap();
    let expected = [driver, library].map(|name| format!("{name} 580.1"));
    assert_eq!(installed(&archive), expected);
}

async fn other_packages_keep_their_version(kind: Kind) {
    let (machine, _) = driver(kind).await;
    let before = machine.snapshot();
    // The change does not replace the driver, so the hold applies, although gpu-bootstrap set it.
    let error = machine.fails(&install("580.*", &[])).await;
    assert_eq!(error.reason(), "transaction-refused");
    says(&error, "driver, which is held");
    assert_eq!(diff(&before, &machine.snapshot()), Vec::<String>::new());
}

async fn undo_contains_the_previous_version(kind: Kind) {
    let (machine, _) = driver(kind).await;
    let change = install("580.*", &["driver", "library-1"]);
    let undo = machine.apply(&change).await.unwrap();
    let effects = effects(&undo);
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
    offer_conflicting(&archive, &["podman"]);
    let error = machine.fails(&install("580.*", &["driver"])).await;
    says(&error, "would remove podman 4");
}

/// The new driver conflicts with the old library, but the administrator has held the library.
async fn foreign_hold_blocks_the_driver_change(kind: Kind) {
    let (mut machine, _) = excluding(kind).await;
    machine.applier = machine.restarted().holding(["driver".to_owned()]);
    let before = machine.snapshot();
    let change = install("580.*", &["driver"]);
    let refused = machine.applier.dry_run(&change).await.unwrap_err();
    let error = machine.fails(&change).await;
    for error in [refused, error] {
        assert_eq!(error.exit(), Exit::Blocked);
        assert_eq!(error.reason(), "package-held");
        says(&error, "library-1");
        assert!(!error.to_string().contains("driver,"), "{error}");
        says(error.hint().unwrap(), "library-1");
    }
    assert_eq!(diff(&before, &machine.snapshot()), Vec::<String>::new());
}

/// Both are required, but the archive's new driver conflicts with the library.
async fn required_package_is_not_removed(kind: Kind) {
    let (machine, _) = excluding(kind).await;
    let before = machine.snapshot();
    let both = vec![spec("driver", Some("580.*")), spec("library-1", None)];
    let error = machine.fails(&replace(both, &["driver"])).await;
    assert_eq!(error.reason(), "transaction-refused");
    says(&error, "library-1 535.1, which is required");
    assert_eq!(diff(&before, &machine.snapshot()), Vec::<String>::new());
}
