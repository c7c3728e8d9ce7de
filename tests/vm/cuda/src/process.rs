//! The state of the library in this process: the listed devices, its contexts and its memory.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::io::Write as _;
use std::sync::{Mutex, PoisonError};

use fake_inventory::gpu::{ComputeMode, Gpu, uuid_bytes};
use fake_inventory::inventory::{Inventory, Unusable};

use crate::call::{Answer, Code};
use crate::mps::Limits;

static PROCESS: Mutex<Option<Process>> = Mutex::new(None);

thread_local! {
    /// The context of this thread.
    static CURRENT: Cell<Option<usize>> = const { Cell::new(None) };
}

/// A context handle is a number that is never dereferenced: this value plus the device.
const CONTEXT: usize = 0xc0de_0000;

/// The number of multiprocessors of each GPU, so that the number that a program with MPS can use is its thread percentage.
const MULTIPROCESSORS: u32 = 100;

/// A listed device.
#[derive(Debug, Clone, Copy)]
pub struct Listed {
    /// The index of the GPU in the inventory.
    gpu: usize,
    /// Its MIG device.
    mig: Option<usize>,
}

/// Memory of a device.
struct Block {
    device: usize,
    bytes: Vec<u8>,
}

/// The library after the inventory was read.
pub struct Process {
    inventory: Inventory,
    /// After `cuInit`.
    started: bool,
    /// The limits of MPS, if this process uses it.
    mps: Option<Limits>,
    /// Locks on the GPUs whose compute mode is `EXCLUSIVE_PROCESS`, by their index.
    locks: BTreeMap<usize, File>,
    devices: Vec<Listed>,
    /// By address.
    memory: BTreeMap<u64, Block>,
    next: u64,
}

/// Gives access to the process; the first call reads the inventory.
pub fn with<T>(look: impl FnOnce(Answer<&mut Process>) -> T) -> T {
    // A panic would have aborted the process at the C boundary, so a poisoned lock is still valid.
    let mut process = PROCESS.lock().unwrap_or_else(PoisonError::into_inner);
    if process.is_none() {
        match Process::load() {
            Ok(loaded) => *process = Some(loaded),
            Err(why) => {
                // If standard error is closed, the message is lost, but the caller gets a code.
                let _closed = writeln!(std::io::stderr(), "fake-cuda: {why}");
                return look(Err(Code::UNKNOWN));
            }
        }
    }
    look(process.as_mut().ok_or(Code::UNKNOWN))
}

impl Process {
    fn load() -> Result<Self, Unusable> {
        let inventory = Inventory::find("libcuda.so")?;
        inventory.check_cuda(crate::symbols())?;
        let wanted = std::env::var("CUDA_VISIBLE_DEVICES").ok();
        let devices = visible(&inventory, wanted.as_deref());
        Ok(Self {
            inventory,
            started: false,
            mps: None,
            locks: BTreeMap::new(),
            devices,
            memory: BTreeMap::new(),
            // Not a host address, so that a mistake is detected.
            next: 0x7000_0000_0000_0000,
        })
    }

    pub fn inventory(&self) -> &Inventory {
        &self.inventory
    }

    /// `cuInit`.
    pub fn start(&mut self) -> Answer {
        if self.devices.is_empty() {
            return Err(Code::NO_DEVICE);
        }
        self.started = true;
        // The library looks for the control daemon when it is initialized: nvidia-cuda-mps-control(1).
        self.mps = Limits::find();
        Ok(())
    }

    pub fn devices(&self) -> Answer<&[Listed]> {
        if self.started {
            Ok(&self.devices)
        } else {
            Err(Code::NOT_INITIALIZED)
        }
    }

    /// The device of a handle, which is its index.
    pub fn listed(&self, raw: i32) -> Answer<usize> {
        let index = usize::try_from(raw).map_err(|_negative| Code::INVALID_DEVICE)?;
        (self.devices()?.get(index).is_some())
            .then_some(index)
            .ok_or(Code::INVALID_DEVICE)
    }

    pub fn gpu(&self, device: usize) -> &Gpu {
        &self.inventory.gpus[self.devices[device].gpu]
    }

    /// The UUID as text.
    pub fn uuid(&self, device: usize) -> &str {
        uuid_of(&self.inventory, self.devices[device])
    }

    /// The 16 bytes of the UUID.
    pub fn uuid_bytes(&self, device: usize) -> Answer<[u8; 16]> {
        let (_, hex) = self.uuid(device).split_once('-').ok_or(Code::UNKNOWN)?;
        uuid_bytes(hex).ok_or(Code::UNKNOWN)
    }

    /// Creates the primary context of a device, and returns its handle.
    pub fn retain(&mut self, device: usize) -> Answer<usize> {
        self.reserve(self.devices[device].gpu)?;
        Ok(CONTEXT | device)
    }

    /// A GPU with the compute mode `EXCLUSIVE_PROCESS` is used by one process. The MPS server is one process, so all its programs
    /// together are one. The kernel releases the lock when the process exits. Containers do not have the file, so there the mode has
    /// no effect.
    fn reserve(&mut self, gpu: usize) -> Answer {
        let row = &self.inventory.gpus[gpu];
        if row.compute_mode != ComputeMode::ExclusiveProcess || self.locks.contains_key(&gpu) {
            return Ok(());
        }
        let path = format!("/proc/driver/nvidia/gpus/{}/information", row.pci_address);
        let Ok(file) = File::open(path) else {
            return Ok(());
        };
        let locked = match self.mps {
            Some(_) => file.try_lock_shared(),
            None => file.try_lock(),
        };
        match locked {
            Ok(()) => {
                self.locks.insert(gpu, file);
                Ok(())
            }
            Err(TryLockError::WouldBlock) => Err(Code::DEVICE_UNAVAILABLE),
            Err(TryLockError::Error(_)) => Err(Code::UNKNOWN),
        }
    }

    /// The multiprocessors that this process can use.
    pub fn multiprocessors(&self) -> u32 {
        let percent = self.mps.as_ref().and_then(|limits| limits.threads);
        MULTIPROCESSORS * percent.unwrap_or(100) / 100
    }

    /// The bytes of the current device that this process has not allocated, and all that it can allocate.
    pub fn memory(&self) -> Answer<(u64, u64)> {
        let device = self.current()?;
        let gpu = self.devices[device].gpu;
        let limits = self.mps.as_ref();
        let limit = limits.and_then(|limits| limits.memory.get(&gpu).copied());
        let all = limit.unwrap_or(self.gpu(device).memory_mib) << 20;
        let of_it = (self.memory.values()).filter(|block| block.device == device);
        let used: u64 = of_it.map(|block| block.bytes.len() as u64).sum();
        Ok((all.saturating_sub(used), all))
    }

    /// The device of a context.
    pub fn of_context(&self, raw: usize) -> Answer<usize> {
        let device = raw ^ CONTEXT;
        (device < self.devices.len())
            .then_some(device)
            .ok_or(Code::INVALID_CONTEXT)
    }

    /// The device of the context of this thread.
    pub fn current(&self) -> Answer<usize> {
        CURRENT.get().ok_or(Code::INVALID_CONTEXT)
    }

    pub fn enter(&self, raw: usize) -> Answer {
        CURRENT.set(Some(self.of_context(raw)?));
        Ok(())
    }

    /// Memory of the current device.
    pub fn allocate(&mut self, bytes: usize) -> Answer<u64> {
        let device = self.current()?;
        if bytes as u64 > self.memory()?.0 {
            return Err(Code::OUT_OF_MEMORY);
        }
        let address = self.next;
        // A gap, so that an access beyond the end is detected.
        self.next += (bytes as u64).next_multiple_of(1 << 20) + (1 << 20);
        let bytes = vec![0; bytes];
        self.memory.insert(address, Block { device, bytes });
        Ok(address)
    }

    /// Device memory from an address on.
    pub fn bytes(&mut self, address: u64, count: usize) -> Answer<&mut [u8]> {
        let (begin, block) =
            (self.memory.range_mut(..=address).next_back()).ok_or(Code::INVALID_VALUE)?;
        let from = usize::try_from(address - begin).map_err(|_large| Code::INVALID_VALUE)?;
        let to = from.checked_add(count).ok_or(Code::INVALID_VALUE)?;
        block.bytes.get_mut(from..to).ok_or(Code::INVALID_VALUE)
    }

    /// The device whose memory has the address.
    pub fn owner(&self, address: u64) -> Answer<usize> {
        let (_, block) = (self.memory.range(..=address).next_back()).ok_or(Code::INVALID_VALUE)?;
        Ok(block.device)
    }
}

fn uuid_of(inventory: &Inventory, device: Listed) -> &str {
    let gpu = &inventory.gpus[device.gpu];
    match device.mig {
        Some(part) => &gpu.mig.devices[part].uuid,
        None => gpu.cuda.uuid.as_deref().unwrap_or(&gpu.uuid),
    }
}

/// The devices visible to a process. By default these are the GPUs, or one MIG device if any exist:
/// <https://docs.nvidia.com/datacenter/tesla/mig-user-guide/>, "Device Enumeration". A list is used up to its first
/// unknown name.
fn visible(inventory: &Inventory, wanted: Option<&str>) -> Vec<Listed> {
    let mut gpus = Vec::new();
    let mut parts = Vec::new();
    for (gpu, row) in inventory.gpus.iter().enumerate() {
        if row.mig.enabled {
            let of_it = (0..row.mig.devices.len()).map(|mig| Listed {
                gpu,
                mig: Some(mig),
            });
            parts.extend(of_it);
        } else {
            gpus.push(Listed { gpu, mig: None });
        }
    }
    let Some(wanted) = wanted else {
        return match parts.first() {
            Some(part) => vec![*part],
            None => gpus,
        };
    };
    let all: Vec<Listed> = gpus.into_iter().chain(parts).collect();
    (wanted.split(','))
        .map_while(|name| {
            let named = |one: &&Listed| uuid_of(inventory, **one).starts_with(name);
            all.iter().find(named).copied()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{uuid_of, visible};
    use fake_inventory::inventory::Inventory;

    const MIXED: &str = r#"
driver-version = "535.261.03"
cuda-version = "12.2"
[[gpu]]
pci-address = "0000:18:00.0"
pci-id = "10de:2330"
[[gpu]]
pci-address = "0000:2a:00.0"
pci-id = "10de:2330"
[gpu.mig]
enabled = true
devices = [{ profile = "1g.10gb" }, { profile = "3g.40gb" }]
"#;

    #[test]
    fn default_visibility_is_one_mig_device() {
        let inventory = Inventory::parse(MIXED).expect("an inventory");
        let seen = |wanted: Option<&str>| -> Vec<String> {
            let devices = visible(&inventory, wanted);
            let names = devices
                .iter()
                .map(|one| uuid_of(&inventory, *one).to_owned());
            names.collect()
        };
        let (gpu, part) = (
            &inventory.gpus[0].uuid,
            &inventory.gpus[1].mig.devices[1].uuid,
        );
        assert_eq!(seen(None), [inventory.gpus[1].mig.devices[0].uuid.clone()]);
        assert_eq!(seen(Some(gpu)), std::slice::from_ref(gpu));
        assert_eq!(seen(Some(part)), std::slice::from_ref(part));
        assert!(seen(Some(&inventory.gpus[1].uuid)).is_empty());
        let broken = format!("{gpu},GPU-none,{part}");
        assert_eq!(seen(Some(&broken)), std::slice::from_ref(gpu));
    }
}
