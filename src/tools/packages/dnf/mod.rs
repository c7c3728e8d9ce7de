//! `dnf` on top of `rpm`: AlmaLinux, Rocky Linux, RHEL, Oracle Linux, Amazon Linux 2023.

mod agents;
mod builder;
mod commands;
pub(in crate::tools) mod database;
mod exclusions;
mod failures;
mod generation;
mod history;
mod interruption;
mod mirrors;
mod offers;
mod progress;
mod repository;
mod sizes;
mod sources;
mod streams;
mod transaction;
mod versionlock;

use super::{Backend, Builder, HoldList, Streams, mirrors::Mirrors};

/// The directory of downloaded metadata and packages, with a subdirectory for each repository.
const CACHE: &str = "/var/cache/dnf";

/// The dnf backend.
#[derive(Debug)]
pub struct Dnf;

impl Backend for Dnf {
    fn name(&self) -> &'static str {
        "dnf"
    }

    fn streams(&self) -> Option<&dyn Streams> {
        Some(&streams::DnfStreams)
    }

    fn hold_list(&self) -> Option<&dyn HoldList> {
        Some(&versionlock::Versionlock)
    }

    fn mirrors(&self) -> Option<&dyn Mirrors> {
        Some(&mirrors::DnfMirrors)
    }

    fn builder(&self) -> Option<&dyn Builder> {
        Some(self)
    }
}
