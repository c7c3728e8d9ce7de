//! Tests packages that only work with a driver of exactly the same version, and versions of a lock file.

use super::{
    archive::{Archive, Kind, Offered},
    kit::{TestMachine, says},
    packages::{install, replace, spec},
    with_each_manager,
};
use crate::{config::desired::LockedPackages, error::Report, exit::Exit, host::fake::failed};

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
    let both = ["nvidia-driver-cuda", "nvidia-fabricmanager"].map(|name| spec(name, Some("580.*")));
    let both = replace(both.to_vec(), &[]);
    let (machine, _) = fabric_of("580.178.04-1");
    machine.apply(&both).await.unwrap();
    // The other version has the same branch, but is newer or older.
    for other in ["580.173.02-1", "580.180.01-1"] {
        let (machine, _) = fabric_of(other);
        let before = machine.snapshot();
        let error = machine.fails(&both).await;
        let text = error.to_string();
        says(&text, "nvidia-fabricmanager");
        says(&text, "580.178.04-*");
        assert_eq!(error.exit(), Exit::Blocked);
        assert_eq!(machine.snapshot(), before, "{other}");
    }
}

/// apt selects the newest version of a dependency, also if a requested package requires an older one.
#[tokio::test]
async fn locked_dependencies_that_apt_does_not_select_are_requested() {
    let mut machine = TestMachine::with(Kind::Apt);
    machine.applier.policy.guard.lock = Some(LockedPackages {
        versions: ["driver", "library"]
            .map(|name| (name.to_owned(), "1.0-1".to_owned()))
            .into(),
        is_whole: true,
        ..LockedPackages::default()
    });
    let archive = Archive::on(&machine);
    archive.offer("driver", Offered::new("1.0-1", &["library"]));
    archive.offer("library", Offered::new("1.0-1", &[]));
    let own = archive.clone();
    machine.fakes.exec.on("apt-get", move |cmd, _| {
        let names = |package: &str| cmd.args.iter().any(|arg| arg.starts_with(package));
        match names("driver=") && !names("library=") {
            true => failed(100, "The following packages have unmet dependencies:"),
            false => own.get(cmd),
        }
    });
    machine.apply(&install(&["driver"])).await.unwrap();
    assert!(archive.installed.lock().unwrap().contains_key("library"));
}
