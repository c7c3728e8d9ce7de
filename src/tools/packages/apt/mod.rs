//! `apt-get` on top of `dpkg`: Debian and Ubuntu.

mod archive;
mod builder;
mod commands;
mod database;
mod estimate;
mod exclusions;
mod failures;
mod lists;
mod marks;
mod mirrors;
mod offers;
mod progress;
mod records;
mod repository;
mod simulation;
mod sizes;
mod sources;
mod triggers;
mod unattended_upgrades;
mod version;

use super::{Backend, Builder, Updater, mirrors::Mirrors};

/// The package database of dpkg.
const DATABASE: &str = "/var/lib/dpkg/status";

/// The directory of downloaded package files.
const ARCHIVES: &str = "/var/cache/apt/archives";

/// The apt backend.
#[derive(Debug)]
pub struct Apt;

impl Backend for Apt {
    fn name(&self) -> &'static str {
        "apt"
    }

    fn has_branch_in_names(&self) -> bool {
        true
    }

    fn updater(&self) -> Option<&dyn Updater> {
        Some(&unattended_upgrades::UnattendedUpgrades)
    }

    fn mirrors(&self) -> Option<&dyn Mirrors> {
        Some(&mirrors::AptMirrors)
    }

    fn builder(&self) -> Option<&dyn Builder> {
        Some(self)
    }
}
