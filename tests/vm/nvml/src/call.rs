//! The path of every exported function: first the faults, then the GPU, then the result.

use std::time::Duration;

use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlReturn_t};

use crate::faults::Fault;
use crate::gpu::Gpu;
use crate::inventory::Inventory;
use crate::state::{self, Library, Settings};

pub use fake_inventory::code::Code;

/// The result of a function.
pub type Answer<T = ()> = Result<T, Code>;

/// A query about one GPU or one MIG device.
pub struct Asked<'a> {
    pub inventory: &'a Inventory,
    pub gpu: &'a Gpu,
    pub set: &'a mut Settings,
    pub index: usize,
    /// The MIG device of the GPU, if the handle refers to a MIG device.
    pub mig: Option<usize>,
}

/// Handles are numbers that are never dereferenced: kind, GPU, and MIG device plus one.
const DEVICE: usize = 0x5ad0_0000;

/// The handle of a GPU or of one of its MIG devices.
pub fn handle_of(gpu: usize, mig: Option<usize>) -> nvmlDevice_t {
    std::ptr::without_provenance_mut(DEVICE | (gpu << 8) | mig.map_or(0, |mig| mig + 1))
}

/// The GPU and MIG device of a handle, if it is valid.
pub fn who(inventory: &Inventory, handle: nvmlDevice_t) -> Answer<(usize, Option<usize>)> {
    let number = handle.addr();
    let (gpu, mig) = ((number >> 8) & 0xff, (number & 0xff).checked_sub(1));
    let known = inventory.gpus.get(gpu).ok_or(Code::INVALID_ARGUMENT)?;
    let in_range = mig.is_none_or(|mig| mig < known.mig.devices.len());
    if number & !0xffff != DEVICE || !in_range {
        return Err(Code::INVALID_ARGUMENT);
    }
    Ok((gpu, mig))
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
        match library.inventory.faults.on(symbol) {
            Some(fault) => Err(fault),
            None => Ok(body(library)),
        }
    }))
}

/// `nvmlShutdown`.
pub fn shutdown(symbol: &str) -> nvmlReturn_t {
    let fault = state::with(|library| library.and_then(|it| it.inventory.faults.on(symbol)));
    end(fault.map_or_else(|| Ok(state::shutdown()), Err))
}

/// A function for a GPU; `mig` also allows MIG devices.
pub fn device(
    symbol: &str,
    handle: nvmlDevice_t,
    mig: bool,
    body: impl FnOnce(Asked<'_>) -> Answer,
) -> nvmlReturn_t {
    end(state::with(|library| {
        let Some(library) = library else {
            return Ok(Err(Code::UNINITIALIZED));
        };
        if let Some(fault) = library.inventory.faults.on(symbol) {
            return Err(fault);
        }
        let (index, part) = match who(&library.inventory, handle) {
            Ok(found) => found,
            Err(code) => return Ok(Err(code)),
        };
        let gpu = &library.inventory.gpus[index];
        if let Some(fault) = gpu.fault(symbol) {
            return Err(fault);
        }
        if part.is_some() && !mig {
            return Ok(Err(Code::NOT_SUPPORTED));
        }
        let before = library.settings[index].clone();
        let answer = body(Asked {
            inventory: &library.inventory,
            gpu,
            set: &mut library.settings[index],
            index,
            mig: part,
        });
        if library.settings[index] != before {
            library.keep_settings();
        }
        Ok(answer)
    }))
}

/// Exports C functions. `system` functions query the library, `device` functions a GPU, `either` functions a GPU or one
/// of its MIG devices. The body gets the queried object under the name between the bars.
macro_rules! exports {
    ($($kind:ident $symbol:ident($($arg:ident: $type:ty),*) |$it:ident| $body:expr;)*) => {
        /// The functions exported here.
        pub const SYMBOLS: &[&str] = &[$(stringify!($symbol)),*];
        $(exports!(@$kind $symbol($($arg: $type),*) |$it| $body);)*
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
        // SAFETY: as above.
        #[unsafe(no_mangle)]
        extern "C" fn $symbol(device: nvmlDevice_t $(, $arg: $type)*) -> nvmlReturn_t {
            $crate::call::device(stringify!($symbol), device, false, |$it| $body)
        }
    };
    (@either $symbol:ident($($arg:ident: $type:ty),*) |$it:ident| $body:expr) => {
        // SAFETY: as above.
        #[unsafe(no_mangle)]
        extern "C" fn $symbol(device: nvmlDevice_t $(, $arg: $type)*) -> nvmlReturn_t {
            $crate::call::device(stringify!($symbol), device, true, |$it| $body)
        }
    };
}
pub(crate) use exports;
