//! Simulates an upgrade of the whole system.

use gpu_bootstrap::host::{
    Output,
    fake::{FakeFiles, failed, ok},
};

use crate::{
    archive::{candidate, version},
    dnf::{compare, offers, row},
    dpkg,
    state::text,
};

/// `apt-get -s dist-upgrade`: every package with a newer version, unless it is held.
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

/// `dnf --assumeno upgrade`: every package with a newer version, unless its version is locked.
pub fn dnf(files: &FakeFiles) -> Output {
    let locks = text(files, "/etc/dnf/plugins/versionlock.list").unwrap_or_default();
    let mut said = String::new();
    for (name, entry) in dpkg::read(files) {
        let epoch = if entry.version.contains(':') {
            ""
        } else {
            "0:"
        };
        let lock = format!("{name}-{epoch}{}.*", entry.version);
        if !entry.there() || locks.lines().any(|line| line == lock) {
            continue;
        }
        let newest = offers(files, &name).into_iter().map(|(version, _)| version);
        let newer = newest.filter(|one| compare(one, &entry.version).is_gt());
        if let Some(version) = newer.max_by(|a, b| compare(a, b)) {
            said.push_str(&row("Upgrading", &name, &version, "archive"));
        }
    }
    if said.is_empty() {
        return ok("Dependencies resolved.\nNothing to do.\nComplete!\n");
    }
    Output {
        stdout: format!("Dependencies resolved.\n{said}\nTransaction Summary\n"),
        ..failed(1, "Operation aborted.\n")
    }
}
