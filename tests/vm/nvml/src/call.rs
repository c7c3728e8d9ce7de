//! The path of every exported function: first the faults, then the GPU, then the result.

use std::time::Duration;

use nvml_wrapper_sys::bindings::nvmlReturn_t;

use crate::faults::Fault;
use crate::gpu::Gpu;
use crate::inventory::Inventory;
use crate::state::{self, Library, Settings};

pub use fake_inventory::code::Code;

/// The result of a function.
pub type Answer<T = ()> = Result<T, Code>;

/// A query about one GPU, one MIG device, or one instance.
pub struct Asked<'a> {
    pub inventory: &'a Inventory,
    pub gpu: &'a Gpu,
    pub set: &'a mut Settings,
    pub index: usize,
    /// The position of the MIG device, if the handle refers to a MIG device or a compute instance.
    pub mig: Option<usize>,
    /// The ID of the GPU instance, if the handle refers to an instance or a MIG device.
    pub gpu_instance: Option<u32>,
}

/// Handles are numbers that are never dereferenced: the object, the GPU, and the IDs of the GPU instance and the compute instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Handle {
    pub of: Object,
    pub gpu: usize,
    pub gpu_instance: u32,
    pub compute_instance: u32,
}

/// The kinds of handles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum Object {
    Gpu = 0x5ad0,
    MigDevice,
    GpuInstance,
    ComputeInstance,
}

impl Handle {
    /// The handle of a GPU.
    pub fn gpu(gpu: usize) -> Self {
        Self {
            of: Object::Gpu,
            gpu,
            gpu_instance: 0,
            compute_instance: 0,
        }
    }

    /// The handle of an instance or a MIG device of the same GPU.
    pub fn instance(self, of: Object, gpu_instance: u32, compute_instance: u32) -> Self {
        Self {
            of,
            gpu: self.gpu,
            gpu_instance,
            compute_instance,
        }
    }

    /// As the caller gets it.
    pub fn pack<T>(self) -> *mut T {
        let instances = (self.gpu_instance << 8) | self.compute_instance;
        std::ptr::without_provenance_mut(
            ((self.of as usize) << 32) | (self.gpu << 16) | instances as usize,
        )
    }

    fn unpack<T>(handle: *mut T) -> Option<Self> {
        let number = handle.addr();
        let all = [
            Object::Gpu,
            Object::MigDevice,
            Object::GpuInstance,
            Object::ComputeInstance,
        ];
        let byte = |at: usize| (number >> at) & 0xff;
        Some(Self {
            of: (all.into_iter()).find(|of| *of as usize == number >> 32)?,
            gpu: byte(16),
            gpu_instance: byte(8) as u32,
            compute_instance: byte(0) as u32,
        })
    }
}

impl Asked<'_> {
    /// The handle of the GPU.
    pub fn handle(&self) -> Handle {
        Handle::gpu(self.index)
    }
}

/// The object of a handle, if it exists, and the position of its MIG device.
pub fn who<T>(inventory: &Inventory, handle: *mut T) -> Answer<(Handle, Option<usize>)> {
    let handle = Handle::unpack(handle).ok_or(Code::INVALID_ARGUMENT)?;
    let gpu = inventory
        .gpus
        .get(handle.gpu)
        .ok_or(Code::INVALID_ARGUMENT)?;
    let position = gpu.mig.devices.iter().position(|part| {
        part.gpu_instance == Some(handle.gpu_instance)
            && part.compute_instance == handle.compute_instance
    });
    match handle.of {
        Object::Gpu => Ok((handle, None)),
        Object::GpuInstance => {
            (gpu.profile_of_instance(handle.gpu_instance)).map(|_| (handle, None))
        }
        Object::MigDevice | Object::ComputeInstance => position
            .map(|part| (handle, Some(part)))
            .ok_or(Code::INVALID_ARGUMENT),
    }
}

/// Never returns, like a call into a hanging driver.
pub fn hang() -> ! {
    loop {
        std::thread::sleep(Duration::from_secs(3600));
    }
}

/// Executes a fault, or returns the result. The lock on the library has been released, so a call that hangs does not
/// block other threads.
pub fn end(verdict: Result<Answer, Fault>) -> nvmlReturn_t {
    match verdict {
        Ok(Ok(())) => 0,
        Ok(Err(code)) | Err(Fault::Return(code)) => code.0,
        Err(Fault::Hang) => hang(),
    }
}

/// A function of the library as a whole.
pub fn system(symbol: &str, body: impl FnOnce(&mut Library) -> Answer) -> nvmlReturn_t {
    end(state::with(|library| {
        let Some(library) = library else {
            return Ok(Err(Code::UNINITIALIZED));
        };
        library.refresh();
        match library.fault(symbol) {
            Some(fault) => Err(fault),
            None => Ok(body(library)),
        }
    }))
}

/// `nvmlShutdown`.
pub fn shutdown(symbol: &str) -> nvmlReturn_t {
    let fault = state::with(|library| library.and_then(|it| it.fault(symbol)));
    end(fault.map_or_else(|| Ok(state::shutdown()), Err))
}

/// Finds the object of a call: the faults, then the handle, which must be of one of these kinds.
fn object<T>(
    library: &mut Library,
    symbol: &str,
    handle: *mut T,
    of: &[Object],
) -> Result<Answer<(Handle, Option<usize>)>, Fault> {
    library.refresh();
    if let Some(fault) = library.fault(symbol) {
        return Err(fault);
    }
    let (handle, part) = match who(&library.inventory, handle) {
        Ok(found) => found,
        Err(code) => return Ok(Err(code)),
    };
    if let Some(fault) = library.inventory.gpus[handle.gpu].fault(symbol) {
        return Err(fault);
    }
    Ok(match of.contains(&handle.of) {
        true => Ok((handle, part)),
        false if handle.of == Object::MigDevice => Err(Code::NOT_SUPPORTED),
        false => Err(Code::INVALID_ARGUMENT),
    })
}

/// A function for objects of these kinds.
pub fn device<T>(
    symbol: &str,
    handle: *mut T,
    of: &[Object],
    body: impl FnOnce(Asked<'_>) -> Answer,
) -> nvmlReturn_t {
    end(state::with(|library| {
        let Some(library) = library else {
            return Ok(Err(Code::UNINITIALIZED));
        };
        let (handle, mig) = match object(library, symbol, handle, of)? {
            Ok(found) => found,
            Err(code) => return Ok(Err(code)),
        };
        let index = handle.gpu;
        let before = library.settings[index].clone();
        let answer = body(Asked {
            inventory: &library.inventory,
            gpu: &library.inventory.gpus[index],
            set: &mut library.settings[index],
            index,
            mig,
            gpu_instance: (handle.of != Object::Gpu).then_some(handle.gpu_instance),
        });
        if library.settings[index] != before {
            library.keep_settings();
        }
        Ok(answer)
    }))
}

/// A function that changes the MIG mode or the instances.
pub fn change<T>(
    symbol: &str,
    handle: *mut T,
    of: Object,
    body: impl FnOnce(&mut Gpu, Handle) -> Answer,
) -> nvmlReturn_t {
    end(state::with(|library| {
        let Some(library) = library else {
            return Ok(Err(Code::UNINITIALIZED));
        };
        let handle = match object(library, symbol, handle, &[of])? {
            Ok((handle, _)) => handle,
            Err(code) => return Ok(Err(code)),
        };
        Ok(library.change(handle.gpu, |gpu| body(gpu, handle)))
    }))
}

/// Exports C functions. `system` functions query the library, `device` functions a GPU, `either` functions a GPU or one
/// of its MIG devices, `part` functions an instance or a MIG device. `change_…` functions change the MIG mode or the instances
/// of a GPU. The body gets the queried or changed object under the names between the bars.
macro_rules! exports {
    ($($kind:ident $symbol:ident($($arg:ident: $type:ty),*) |$($it:ident),+| $body:expr;)*) => {
        /// The functions exported here.
        pub const SYMBOLS: &[&str] = &[$(stringify!($symbol)),*];
        $(exports!(@$kind $symbol($($arg: $type),*) |$($it),+| $body);)*
    };
    (@system $symbol:ident($($arg:ident: $type:ty),*) |$it:ident| $body:expr) => {
        // SAFETY: no other function of this library has this name.
        #[unsafe(no_mangle)]
        extern "C" fn $symbol($($arg: $type),*) -> nvmlReturn_t {
            $crate::call::system(stringify!($symbol), |$it| $body)
        }
    };
    (@unsupported $symbol:ident() |$it:ident| $body:expr) => {
        // SAFETY: as above. Callers pass arguments, which the C calling conventions of x86-64
        // and AArch64 allow a function to ignore.
        #[unsafe(no_mangle)]
        extern "C" fn $symbol() -> nvmlReturn_t {
            $crate::call::system(stringify!($symbol), |$it| $body)
        }
    };
    (@device $symbol:ident($($arg:ident: $type:ty),*) |$it:ident| $body:expr) => {
        exports!(@of [Gpu] $symbol($($arg: $type),*) |$it| $body);
    };
    (@either $symbol:ident($($arg:ident: $type:ty),*) |$it:ident| $body:expr) => {
        exports!(@of [Gpu, MigDevice] $symbol($($arg: $type),*) |$it| $body);
    };
    (@part $symbol:ident($($arg:ident: $type:ty),*) |$it:ident| $body:expr) => {
        exports!(@of [MigDevice, GpuInstance, ComputeInstance] $symbol($($arg: $type),*) |$it| $body);
    };
    (@of [$($of:ident),+] $symbol:ident($($arg:ident: $type:ty),*) |$it:ident| $body:expr) => {
        // SAFETY: as above. All handles are pointers.
        #[unsafe(no_mangle)]
        extern "C" fn $symbol(handle: *mut std::ffi::c_void $(, $arg: $type)*) -> nvmlReturn_t {
            let of = [$($crate::call::Object::$of),+];
            $crate::call::device(stringify!($symbol), handle, &of, |$it| $body)
        }
    };
    (@change_gpu $symbol:ident($($arg:ident: $type:ty),*) |$gpu:ident, $it:ident| $body:expr) => {
        exports!(@change [Gpu] $symbol($($arg: $type),*) |$gpu, $it| $body);
    };
    (@change_gpu_instance $symbol:ident($($arg:ident: $type:ty),*) |$gpu:ident, $it:ident| $body:expr) => {
        exports!(@change [GpuInstance] $symbol($($arg: $type),*) |$gpu, $it| $body);
    };
    (@change_compute_instance $symbol:ident($($arg:ident: $type:ty),*) |$gpu:ident, $it:ident| $body:expr) => {
        exports!(@change [ComputeInstance] $symbol($($arg: $type),*) |$gpu, $it| $body);
    };
    (@change [$of:ident] $symbol:ident($($arg:ident: $type:ty),*) |$gpu:ident, $it:ident| $body:expr) => {
        // SAFETY: as above.
        #[unsafe(no_mangle)]
        extern "C" fn $symbol(handle: *mut std::ffi::c_void $(, $arg: $type)*) -> nvmlReturn_t {
            let of = $crate::call::Object::$of;
            $crate::call::change(stringify!($symbol), handle, of, |$gpu, $it| $body)
        }
    };
}
pub(crate) use exports;
