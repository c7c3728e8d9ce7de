//! Tests packages that only work with a driver of exactly the same version.

use super::{
    archive::{Archive, Kind, Offered},
    kit::TestMachine,
    packages::spec,
    with_each_manager,
};
use crate::{change::Change, error::Report, exit::Exit};

with_each_manager! {
    companion_package_gets_the_driver_version
}

async fn companion_package_gets_the_driver_version(kind: Kind) {
    let fabric_of = |version: &'static str| {
        let mut machine = TestMachine::with(kind);
        machine.applier.policy.guard.exact = vec!["nvidia-fabricmanager".into()];
        let archive = Archive::on(&machine);
        archive.offer("nvidia-driver-cuda", Offered::new("580.178.04-1", &[]));
        archive.offer("nvidia-fabricmanager", Offered::new(version, &[]));
        (machine, archive)
    };
    // The request accepts any version of the branch, but only the version of the driver may be installed.
    let both = Change::InstallPackages {
        packages: vec![
            spec("nvidia-driver-cuda", Some("580.*")),
            spec("nvidia-fabricmanager", Some("580.*")),
        ],
        removing: vec![],
        later: false,
    };
    let (machine, _) = fabric_of("580.178.04-1");
    machine.apply(&both).await.unwrap();
    // The other version has the same branch, but is newer or older.
    for other in ["580.173.02-1", "580.180.01-1"] {
        let (machine, _) = fabric_of(other);
        let before = machine.snapshot();
        let error = machine.apply(&both).await.unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("nvidia-fabricmanager") && text.contains("580.178.04-*"),
            "{text}"
        );
        assert_eq!(error.exit(), Exit::Blocked);
        assert_eq!(machine.snapshot(), before, "{other}");
    }
}
