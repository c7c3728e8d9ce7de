//! Simulates an upgrade of the whole system.

use gpu_bootstrap::host::{
    Output,
    fake::{FakeFiles, ok},
};

use crate::{
    archive::{candidate, version},
    dpkg,
};

/// `apt-get -s dist-upgrade`: every package of which there is a newer version, unless it is held.
pub fn simulate(files: &FakeFiles) -> Output {
    let mut said = String::new();
    for (name, entry) in dpkg::read(files) {
        if !entry.there() || entry.want == "hold" {
            continue;
        }
        let Some(newest) = candidate(files, &name, Some(&entry.version)) else {
            continue;
        };
        if version(&newest.version) > version(&entry.version) {
            said.push_str(&format!(
                "Inst {name} [{}] ({} Archive [amd64])\n",
                entry.version, newest.version
            ));
        }
    }
    ok(said)
}
