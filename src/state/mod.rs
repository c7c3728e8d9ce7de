//! Everything that can change during a run: read at the first use, at most once per epoch, and
//! shared by all steps and checks.
//!
//! An epoch ends when changes start, and when they have been applied: then the engine creates the
//! next [`State`]. What is read during a change belongs to neither side of it. Errors are kept like
//! values, so that a hanging GPU costs one deadline per epoch for all readers together. A second
//! reader waits while a value is being read. There is one file in this folder per area.

pub mod bus;
mod cluster;
mod driver;
mod error;
mod kernel_log;
mod kubelet;
pub mod labels;
mod modules;
mod ours;
mod owner;
mod packages;
mod processes;
mod runtimes;
mod snapshot;
pub(crate) mod units;
pub mod view;

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::sync::OnceCell;

use crate::{
    facts::{Facts, Scope, Unknown, kernel::bootable},
    host::{Host, Nvml},
    model::{
        gpu::Flavour,
        pci::PciAddress,
        version::{DriverVersion, KernelVersion},
    },
    runtimes::{RuntimeKind, RuntimeView},
    tools::{
        packages::{Manager, Package},
        systemctl::UnitState,
    },
};

pub use bus::{is_nova, is_reserved};
pub use cluster::{Membership, Registered, Renamed};
pub use driver::{FoundDriver, Origin, has_library, library_folders, loaded_driver};
pub use error::StateError;
pub use kernel_log::KernelLog;
pub use kubelet::KubeletRuntime;
pub use modules::{FoundFlavour, nvidia_module};
pub use ours::Ours;
pub use owner::{GPU_OPERATOR, Owner, owner};
pub use packages::DriverPart;
pub use runtimes::FoundRuntime;
pub use snapshot::Snapshot;

/// The state of a machine in one epoch: everything that can change during a run.
pub struct State {
    host: Host,
    scope: Scope,
    facts: Arc<Facts>,
    /// The package lists were downloaded in this run, after the last repository was added.
    new_lists: Arc<AtomicBool>,
    ours: Arc<Ours>,
    memo: Memo,
}

type Read<T> = Result<T, StateError>;
type UnitCell = Arc<OnceCell<Read<Option<UnitState>>>>;

/// The values that have been read so far.
#[derive(Default)]
struct Memo {
    nvml: OnceCell<Nvml>,
    /// By package manager.
    databases: [OnceCell<Read<Option<Vec<Package>>>>; Manager::ALL.len()],
    packages: OnceCell<Noted<packages::KnownPackages>>,
    loaded_driver: OnceLock<Read<Option<DriverVersion>>>,
    loaded_flavour: OnceLock<Read<Option<Flavour>>>,
    driver: OnceCell<Noted<FoundDriver>>,
    bound_drivers: OnceLock<BTreeMap<PciAddress, Read<Option<String>>>>,
    loaded_modules: OnceLock<Read<Vec<String>>>,
    /// `modules.dep` of each bootable kernel.
    module_lists: OnceLock<Read<Vec<(String, String)>>>,
    runtimes: OnceCell<Noted<Vec<FoundRuntime>>>,
    /// By runtime.
    runtime_views: [OnceCell<Read<RuntimeView>>; RuntimeKind::ALL.len()],
    kernel_log: OnceCell<KernelLog>,
    units: Mutex<BTreeMap<String, UnitCell>>,
}

/// A value, with the facts that could not be read for it.
struct Noted<T> {
    value: T,
    unknown: Vec<Unknown>,
}

impl State {
    /// Whether this is the machine itself: the owners of the files in another tree are those of that machine, or of who
    /// unpacked it.
    #[must_use]
    pub fn is_of_this_machine(&self) -> bool {
        self.scope.executes
    }

    /// The state of a machine with these facts. It reads nothing yet.
    #[must_use]
    pub fn new(host: Host, scope: Scope, facts: Arc<Facts>) -> Self {
        Self {
            host,
            scope,
            facts,
            new_lists: Arc::default(),
            ours: Arc::default(),
            memo: Memo::default(),
        }
    }

    /// The same, with what the journal says about this program's own work.
    #[must_use]
    pub fn knowing(self, ours: Ours) -> Self {
        Self {
            ours: Arc::new(ours),
            ..self
        }
    }

    /// What this program has done to packages, according to its journal.
    #[must_use]
    pub fn ours(&self) -> &Ours {
        &self.ours
    }

    /// The state of the same machine in the next epoch: everything is read again.
    #[must_use]
    pub fn next(&self) -> Self {
        Self {
            new_lists: Arc::clone(&self.new_lists),
            ours: Arc::clone(&self.ours),
            ..Self::new(self.host.clone(), self.scope, Arc::clone(&self.facts))
        }
    }

    /// Whether the package lists are as new as this run. Older lists may name packages that the archive
    /// has removed since.
    #[must_use]
    pub fn lists_are_new(&self) -> bool {
        self.new_lists.load(Ordering::Relaxed)
    }

    /// Notes whether the package lists are as new as this run: the engine downloads them.
    pub fn note_lists(&self, new: bool) {
        self.new_lists.store(new, Ordering::Relaxed);
    }

    /// The kernels that are installed, oldest first, and the one of the next boot: a run may install
    /// one.
    #[must_use]
    pub fn bootable_kernels(&self) -> (Vec<KernelVersion>, Option<KernelVersion>) {
        match bootable(&*self.host.files) {
            (installed, _) if installed.is_empty() => {
                let kernel = &self.facts.kernel;
                (kernel.installed.clone(), kernel.next_boot.clone())
            }
            found => found,
        }
    }

    /// The facts of the machine, which cannot change during a run.
    #[must_use]
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// The view of NVML.
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
