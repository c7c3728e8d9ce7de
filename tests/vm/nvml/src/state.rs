//! The state of the library between `nvmlInit` and `nvmlShutdown`, and the settings changed by programs.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use crate::call::{self, Answer, Code};
use crate::faults::Fault;
use crate::gpu::{ComputeMode, Gpu};
use crate::inventory::{self, Inventory, Unusable};
use crate::store::{self, Stamp};

static LIBRARY: Mutex<Option<Library>> = Mutex::new(None);

/// The initialized library.
pub struct Library {
    pub inventory: Inventory,
    /// Settings by GPU.
    pub settings: Vec<Settings>,
    users: u32,
    /// The version of the inventory file that was read last.
    stamp: Option<Stamp>,
    /// Calls by function, of those that fail later.
    calls: BTreeMap<String, u32>,
}

/// The settings that programs can change.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Settings {
    pub persistence: bool,
    pub compute_mode: ComputeMode,
    pub ecc_pending: bool,
    pub power_limit: u32,
}

impl Settings {
    fn of(gpu: &Gpu) -> Self {
        Self {
            persistence: gpu.persistence,
            compute_mode: gpu.compute_mode,
            ecc_pending: gpu.ecc.enabled,
            power_limit: gpu.power.limit,
        }
    }
}

/// Gives access to the library, which does not exist before `nvmlInit`.
pub fn with<T>(look: impl FnOnce(Option<&mut Library>) -> T) -> T {
    // A panic would have aborted the process at the C boundary, so a poisoned lock is still valid.
    let mut library = LIBRARY.lock().unwrap_or_else(PoisonError::into_inner);
    look(library.as_mut())
}

/// `nvmlInit` and its forms: the first call reads the inventory, the others only count.
pub fn init(symbol: &str) -> u32 {
    let verdict = {
        let mut library = LIBRARY.lock().unwrap_or_else(PoisonError::into_inner);
        start(&mut library, symbol)
    };
    call::end(verdict)
}

/// `nvmlShutdown`: the last call drops the inventory.
pub fn shutdown() -> Answer {
    let mut library = LIBRARY.lock().unwrap_or_else(PoisonError::into_inner);
    let users = library.as_mut().ok_or(Code::UNINITIALIZED)?;
    users.users -= 1;
    if users.users == 0 {
        *library = None;
    }
    Ok(())
}

fn start(library: &mut Option<Library>, symbol: &str) -> Result<Answer, Fault> {
    if let Some(library) = library {
        library.users += 1;
        return Ok(Ok(()));
    }
    let loaded = match Library::load() {
        Ok(loaded) => loaded,
        Err(why) => {
            complain(&why);
            return Ok(Err(Code::UNKNOWN));
        }
    };
    if let Some(fault) = loaded.inventory.faults.on_init(symbol) {
        return Err(fault);
    }
    *library = Some(loaded);
    Ok(Ok(()))
}

impl Library {
    fn load() -> Result<Self, Unusable> {
        let inventory = Inventory::find("libnvidia-ml.so")?;
        inventory.check_nvml(crate::symbols())?;
        let mut settings: Vec<Settings> = inventory.gpus.iter().map(Settings::of).collect();
        if let Some(path) = inventory.state_file.as_deref().filter(|path| path.exists()) {
            let mut kept: BTreeMap<String, Settings> = inventory::toml_file(path)?;
            for (gpu, place) in inventory.gpus.iter().zip(&mut settings) {
                if let Some(kept) = kept.remove(&gpu.uuid) {
                    *place = kept;
                }
            }
        }
        Ok(Self {
            stamp: store::stamp(&inventory),
            inventory,
            settings,
            users: 1,
            calls: BTreeMap::new(),
        })
    }

    /// The fault of a function, for all devices.
    pub fn fault(&mut self, symbol: &str) -> Option<Fault> {
        let faults = &self.inventory.faults;
        if let Some(succeed) = faults.after.get(symbol) {
            let calls = self.calls.entry(symbol.to_owned()).or_default();
            *calls += 1;
            if *calls <= *succeed {
                return None;
            }
        }
        faults.on(symbol)
    }

    /// Reads the MIG mode and instances again if another program has changed them. Everything else stays as it was at the
    /// initialization.
    pub fn refresh(&mut self) {
        let stamp = store::stamp(&self.inventory);
        if stamp == self.stamp {
            return;
        }
        let Some(path) = &self.inventory.source else {
            return;
        };
        match Inventory::read(path) {
            Ok(mut changed) => {
                changed.hide_parts();
                for (gpu, now) in self.inventory.gpus.iter_mut().zip(changed.gpus) {
                    if gpu.uuid == now.uuid {
                        gpu.mig = now.mig;
                    }
                }
                self.stamp = stamp;
            }
            Err(why) => complain(&why),
        }
    }

    /// Changes the MIG mode or the instances of a GPU in the inventory file, for all programs.
    pub fn change(&mut self, index: usize, body: impl FnOnce(&mut Gpu) -> Answer) -> Answer {
        // A container has no file, and must not change the GPU.
        let path = self.inventory.source.clone();
        let path = path.ok_or(Code::NO_PERMISSION)?;
        let failed = |why: &dyn std::fmt::Display| {
            complain(why);
            Code::UNKNOWN
        };
        // In this process, MIG devices may be hidden.
        let mut whole = Inventory::read(&path).map_err(|why| failed(&why))?;
        let gpu = whole.gpus.get_mut(index).ok_or(Code::GPU_IS_LOST)?;
        let before = gpu.mig.clone();
        body(gpu)?;
        if gpu.mig == before {
            return Ok(());
        }
        store::write(&path, index, &gpu.mig).map_err(|source| match source.kind() {
            std::io::ErrorKind::PermissionDenied => Code::NO_PERMISSION,
            _ => failed(&format!("{}: {source}", path.display())),
        })?;
        self.refresh();
        Ok(())
    }

    /// Stores the settings for the next program.
    pub fn keep_settings(&self) {
        let Some(path) = &self.inventory.state_file else {
            return;
        };
        let uuids = self.inventory.gpus.iter().map(|gpu| &gpu.uuid);
        let by_uuid: BTreeMap<_, _> = uuids.zip(&self.settings).collect();
        let written = toml::to_string(&by_uuid)
            .map_err(std::io::Error::other)
            .and_then(|text| std::fs::write(path, text));
        if let Err(source) = written {
            complain(&format!("{}: {source}", path.display()));
        }
    }
}

/// Prints details that a return code cannot express to standard error.
fn complain(why: &dyn std::fmt::Display) {
    // If standard error is closed, the message is lost, but the caller still gets the code.
    let _closed = writeln!(std::io::stderr(), "fake-nvml: {why}");
}
