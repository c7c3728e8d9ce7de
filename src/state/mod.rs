//! What can change while a run goes on: read when it is first asked for, at most once per epoch, and
//! shared by all steps and checks.
//!
//! An epoch ends when a change was applied: the engine takes the next [`State`] then. Errors are
//! remembered like values, so that a GPU that hangs costs one deadline per epoch, however many
//! readers there are. A reader that comes while a value is being read waits for it. There is one file
//! of this folder per area.

mod bus;
mod daemons;
mod driver;
mod error;
mod modules;
mod packages;
mod runtimes;
mod snapshot;
mod units;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, OnceLock},
};

use tokio::sync::OnceCell;

use crate::{
    facts::{Facts, Scope, Unknown},
    host::{Host, Nvml},
    model::{pci::PciAddress, version::DriverVersion},
    tools::{
        packages::{Manager, Package},
        systemctl::UnitState,
    },
};

pub use daemons::Effective;
pub use driver::{FoundDriver, Origin};
pub use error::StateError;
pub use runtimes::FoundRuntime;
pub use snapshot::Snapshot;

/// What can change about a machine, as of one epoch.
pub struct State {
    host: Host,
    scope: Scope,
    facts: Arc<Facts>,
    memo: Memo,
}

type Read<T> = Result<T, StateError>;
type UnitCell = Arc<OnceCell<Read<Option<UnitState>>>>;

/// What has been read so far.
#[derive(Default)]
struct Memo {
    nvml: OnceCell<Nvml>,
    /// By package manager.
    databases: [OnceCell<Read<Option<Vec<Package>>>>; Manager::ALL.len()],
    packages: OnceCell<Noted<packages::Packages>>,
    loaded_driver: OnceLock<Read<Option<DriverVersion>>>,
    driver: OnceCell<Noted<FoundDriver>>,
    bound_drivers: OnceLock<BTreeMap<PciAddress, Read<Option<String>>>>,
    loaded_modules: OnceLock<Read<Vec<String>>>,
    /// `modules.dep` of each bootable kernel.
    module_lists: OnceLock<Read<Vec<(String, String)>>>,
    runtimes: OnceCell<Noted<Vec<FoundRuntime>>>,
    docker: OnceCell<Read<Effective>>,
    containerd: OnceCell<Read<Effective>>,
    units: Mutex<BTreeMap<String, UnitCell>>,
}

/// A value, and what could not be read on the way to it.
struct Noted<T> {
    value: T,
    unknown: Vec<Unknown>,
}

impl State {
    /// The state of a machine with these facts. Nothing is read yet.
    #[must_use]
    pub fn new(host: Host, scope: Scope, facts: Arc<Facts>) -> Self {
        Self {
            host,
            scope,
            facts,
            memo: Memo::default(),
        }
    }

    /// The state of the same machine in the next epoch: everything is read anew.
    #[must_use]
    pub fn next(&self) -> Self {
        Self::new(self.host.clone(), self.scope, Arc::clone(&self.facts))
    }

    /// What cannot change about the machine.
    #[must_use]
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// What NVML says.
    pub async fn nvml(&self) -> &Nvml {
        let survey = || self.host.gpu.survey();
        self.memo.nvml.get_or_init(survey).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        host::fake,
        steps::fixtures::{facts, state},
    };

    #[tokio::test]
    async fn a_hanging_gpu_is_asked_once_in_an_epoch() {
        let (host, fakes) = fake::host();
        fakes.gpu.set(Nvml::Hung { after_seconds: 30 });
        let state = state(&host, facts());
        let (one, other) = tokio::join!(state.nvml(), state.nvml());
        assert_eq!((one, fakes.gpu.surveys()), (other, 1));
        state.next().nvml().await;
        assert_eq!(fakes.gpu.surveys(), 2);
    }
}
