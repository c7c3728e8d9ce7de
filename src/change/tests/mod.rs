//! Tests each change kind on a machine in memory: applies and reverts it, and compares the machine with its previous state.

mod admission;
mod agents;
mod answers;
mod archive;
mod crio;
mod dnf;
mod dry_run;
mod exact;
mod faults;
mod files;
mod holds;
mod join;
mod join_command;
mod kernel_parameters;
pub(super) mod kit;
mod locks;
mod mig;
mod moved;
mod network;
mod obsolete_items;
mod only_dnf;
mod overlap;
mod packages;
mod probes;
mod record;
mod reduced;
mod restored;
mod space;
mod system;
mod tokens;

/// Runs each of these tests with each package manager.
macro_rules! with_each_manager {
    ($($test:ident)*) => {
        mod with_apt {
            $(#[tokio::test]
            async fn $test() {
                super::$test(super::Kind::Apt).await;
            })*
        }
        mod with_dnf {
            $(#[tokio::test]
            async fn $test() {
                super::$test(super::Kind::Dnf).await;
            })*
        }
    };
}
use with_each_manager;
