//! Tests that the in-memory archive behaves like real package managers in `SCENARIOS`, see `tests/packages/contract.rs`. The
//! archive has one version of each package and no lists. It does not model that real dnf rejects conflicts with an installed
//! package, and that dpkg keeps the configuration of a package that is replaced.

#[path = "../../../tests/packages/contract.rs"]
mod contract;

use contract::Scenario;

use super::{
    archive::{Archive, Kind, Offered},
    kit::TestMachine,
};
use crate::host::Host;

/// The imitated scenarios.
const SCENARIOS: [&str; 2] = ["a first installation", "removals"];
const STEPS: [&str; 5] = ["then", "download", "mark", "perform", "simulate"];

struct Imitation(TestMachine);

impl Imitation {
    fn new(kind: Kind) -> Self {
        let machine = TestMachine::with(kind);
        let archive = Archive::on(&machine);
        archive.offer("demo-lib", Offered::new("1:2.0-1", &[]));
        archive.offer("demo-tool", Offered::new("1.0-1", &["demo-lib"]));
        let app = Offered::new("1:2.0-1", &["demo-lib"]);
        archive.offer("demo-app", app.configured_by("/etc/demo/app.conf"));
        Self(machine)
    }
}

impl contract::Machine for Imitation {
    fn host(&self) -> Host {
        self.0.host.clone()
    }

    fn happens(&self, what: &str) {
        assert_eq!(what, "the configuration is changed");
        self.put("/etc/demo/app.conf", "mine\n".to_owned());
    }

    fn put(&self, path: &str, text: String) {
        self.0.fakes.files.put(path, text);
    }
}

fn knows(scenario: &Scenario, step: &str) -> bool {
    let verb = step.split(' ').next().unwrap_or_default();
    SCENARIOS.contains(&scenario.name.as_str()) && STEPS.contains(&verb)
}

#[tokio::test]
async fn archive_behaves_like_apt() {
    contract::compare(Kind::Apt, || Imitation::new(Kind::Apt), knows).await;
}

#[tokio::test]
async fn archive_behaves_like_dnf() {
    contract::compare(Kind::Dnf, || Imitation::new(Kind::Dnf), knows).await;
}
