//! The state of the library between `nvmlInit` and `nvmlShutdown`, and the settings changed by programs.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use crate::call::{self, Answer, Code};
use crate::faults::Fault;
use crate::gpu::{ComputeMode, Gpu};
use crate::inventory::{self, Inventory, Unusable};

static LIBRARY: Mutex<Option<Library>> = Mutex::new(None);

/// The initialized library.
pub struct Library {
    pub inventory: Inventory,
    /// Settings by GPU.
    pub settings: Vec<Settings>,
    users: u32,
}

/// The settings that programs can change.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Settings {
    pub persistence: bool,
    pub compute_mode: ComputeMode,
    pub ecc_pending: bool,
    pub mig: bool,
    pub mig_pending: bool,
    pub power_limit: u32,
}

impl Settings {
    fn of(gpu: &Gpu) -> Self {
        Self {
            persistence: gpu.persistence,
            compute_mode: gpu.compute_mode,
            ecc_pending: gpu.ecc.enabled,
            mig: gpu.mig.enabled,
            mig_pending: gpu.mig.pending.unwrap_or(gpu.mig.enabled),
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
            inventory,
            settings,
            users: 1,
        })
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
