//! Everything that can change during a run: read on first use, at most once per snapshot, and shared by all steps and checks.
//!
//! A snapshot is invalidated when changes start, and again when they have been applied: the engine then creates the next
//! [`State`]. Values that are read during a change belong neither to the snapshot before it nor to the one after it. Errors are
//! cached like values, so that a hanging GPU costs one deadline per snapshot for all readers. A second reader waits while a
//! value is being read. Each topic has its own file.

pub mod bus;
mod cluster;
mod driver;
mod error;
mod gpu_clients;
mod initramfs;
mod inventory;
mod kernel_log;
mod kubelet;
pub mod labels;
mod managed;
mod modules;
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
    host::{ExecError, Host, Nvml, Output, Query},
    model::{
        gpu::Flavor,
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
pub use driver::{FoundDriver, Origin, has_library, library_directories, loaded_driver};
pub use error::StateError;
pub use gpu_clients::{ClientKind, ClientsOf, GpuClient, gpu_clients, in_use_by};
pub use inventory::{Inventory, LockStatus};
pub use kernel_log::KernelLog;
pub use kubelet::KubeletRuntime;
pub use managed::Ours;
pub use modules::{FoundFlavor, nvidia_module};
pub use owner::{GPU_OPERATOR, Owner, owner};
pub use packages::DriverPart;
pub use runtimes::FoundRuntime;
pub use snapshot::Snapshot;

/// A snapshot of everything that can change during a run.
pub struct State {
    host: Host,
    scope: Scope,
    facts: Arc<Facts>,
    /// Whether the package lists were downloaded in this run, after the last repository was added.
    new_lists: Arc<AtomicBool>,
    ours: Arc<Ours>,
    /// Shared by all snapshots of a run.
    listings: Arc<initramfs::Listings>,
    memo: Memo,
}

type Read<T> = Result<T, StateError>;
type QueryCell = Arc<OnceCell<Result<Output, ExecError>>>;
type UnitCell = Arc<OnceCell<Read<Option<UnitState>>>>;

/// The values that have been read so far.
#[derive(Default)]
struct Memo {
    nvml: OnceCell<Nvml>,
    /// By package manager.
    databases: [OnceCell<Read<Option<Vec<Package>>>>; Manager::ALL.len()],
    packages: OnceCell<Noted<packages::KnownPackages>>,
    /// Queries of the package manager.
    queries: Mutex<Vec<(Query, QueryCell)>>,
    loaded_driver: OnceLock<Read<Option<DriverVersion>>>,
    loaded_flavor: OnceLock<Read<Option<Flavor>>>,
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
    /// Returns `true` if this is the state of the running machine instead of a directory (`--root`). File owners in such a
    /// directory are users of the original machine, or the user who unpacked it.
    pub fn is_of_this_machine(&self) -> bool {
        self.scope.executes
    }

    /// Creates the state of a machine with these facts, without reading anything.
    pub fn new(host: Host, scope: Scope, facts: Arc<Facts>) -> Self {
        Self {
            host,
            scope,
            facts,
            new_lists: Arc::default(),
            ours: Arc::default(),
            listings: Arc::default(),
            memo: Memo::default(),
        }
    }

    /// Adds the data about our own changes from the journal.
    #[must_use]
    pub fn knowing(self, ours: Ours) -> Self {
        Self {
            ours: Arc::new(ours),
            ..self
        }
    }

    /// Our own changes, according to the journal.
    pub fn ours(&self) -> &Ours {
        &self.ours
    }

    /// Returns a new snapshot of the same machine, in which everything is read again.
    pub fn next(&self) -> Self {
        Self {
            new_lists: Arc::clone(&self.new_lists),
            ours: Arc::clone(&self.ours),
            listings: Arc::clone(&self.listings),
            ..Self::new(self.host.clone(), self.scope, Arc::clone(&self.facts))
        }
    }

    /// Returns `true` if the package lists were downloaded in this run. Older lists may contain packages that the archive has
    /// removed.
    pub fn lists_are_new(&self) -> bool {
        self.new_lists.load(Ordering::Relaxed)
    }

    /// Records whether the package lists were downloaded in this run. Called by the engine, which downloads them.
    pub fn note_lists(&self, new: bool) {
        self.new_lists.store(new, Ordering::Relaxed);
    }

    /// The installed kernels, oldest first, and the kernel of the next boot. Not a fact, because a run may install a kernel.
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
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// The NVML view of the machine.
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
    async fn hanging_gpu_is_queried_once_per_snapshot() {
        let (host, fakes) = fake::host();
        fakes.gpu.set(Nvml::Hung { after_seconds: 30 });
        let state = state(&host, facts());
        let (one, other) = tokio::join!(state.nvml(), state.nvml());
        assert_eq!((one, fakes.gpu.surveys()), (other, 1));
        state.next().nvml().await;
        assert_eq!(fakes.gpu.surveys(), 2);
    }
}
