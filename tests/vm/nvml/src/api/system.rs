//! Initialization, shutdown, versions, and GPU handles.

use std::ffi::{CStr, c_char};

use nvml_wrapper_sys::bindings::{
    nvmlConfComputeSystemCaps_st, nvmlConfComputeSystemState_st, nvmlDevice_t, nvmlReturn_t,
    nvmlSystemConfComputeSettings_v1_t,
};

use crate::call::{self, Answer, Code, Handle, Object, exports};
use crate::gpu::address;
use crate::pointer::{Given, Out, Text, version_of};
use crate::state::{self, Library};

/// The functions that the macro does not export.
pub const BY_HAND: &[&str] = &[
    "nvmlInit",
    "nvmlInit_v2",
    "nvmlInitWithFlags",
    "nvmlShutdown",
    "nvmlErrorString",
];

// SAFETY: no other function of this library has this name. The same applies to all functions below.
#[unsafe(no_mangle)]
extern "C" fn nvmlInit() -> nvmlReturn_t {
    state::init("nvmlInit")
}

// SAFETY: as above.
#[unsafe(no_mangle)]
extern "C" fn nvmlInit_v2() -> nvmlReturn_t {
    state::init("nvmlInit_v2")
}

// SAFETY: as above.
#[unsafe(no_mangle)]
extern "C" fn nvmlInitWithFlags(_flags: u32) -> nvmlReturn_t {
    state::init("nvmlInitWithFlags")
}

// SAFETY: as above.
#[unsafe(no_mangle)]
extern "C" fn nvmlShutdown() -> nvmlReturn_t {
    call::shutdown("nvmlShutdown")
}

// SAFETY: as above.
#[unsafe(no_mangle)]
extern "C" fn nvmlErrorString(code: nvmlReturn_t) -> *const c_char {
    words(code).as_ptr()
}

/// The description of a return code.
fn words(code: nvmlReturn_t) -> &'static CStr {
    match code {
        0 => c"Success",
        1 => c"Uninitialized",
        2 => c"Invalid Argument",
        3 => c"Not Supported",
        4 => c"Insufficient Permissions",
        5 => c"Already Initialized",
        6 => c"Not Found",
        7 => c"Insufficient Size",
        8 => c"Insufficient External Power",
        9 => c"Driver Not Loaded",
        10 => c"Timeout",
        11 => c"Interrupt Request Issue",
        12 => c"NVML Shared Library Not Found",
        13 => c"Function Not Found",
        14 => c"Corrupted infoROM",
        15 => c"GPU is lost",
        16 => c"GPU requires reset",
        17 => c"GPU access blocked by the operating system",
        18 => c"Driver/library version mismatch",
        19 => c"In use by another client",
        20 => c"Insufficient Memory",
        21 => c"No data",
        22 => c"vGPU operation is not supported with ECC",
        23 => c"Insufficient Resources",
        24 => c"Frequency not supported",
        25 => c"Argument version mismatch",
        26 => c"Deprecated",
        27 => c"Not ready",
        28 => c"GPU not found",
        29 => c"Invalid state",
        _ => c"Unknown Error",
    }
}

exports! {
    system nvmlSystemGetDriverVersion(text: Text, room: u32) |library| {
        text.put(room, &library.inventory.driver_version)
    };
    system nvmlSystemGetNVMLVersion(text: Text, room: u32) |library| {
        text.put(room, &library.inventory.nvml_version)
    };
    system nvmlSystemGetCudaDriverVersion(version: Out<i32>) |library| cuda(library, version);
    system nvmlSystemGetCudaDriverVersion_v2(version: Out<i32>) |library| cuda(library, version);
    system nvmlDeviceGetCount(count: Out<u32>) |library| count.put(visible(library) as u32);
    system nvmlDeviceGetCount_v2(count: Out<u32>) |library| count.put(visible(library) as u32);
    system nvmlDeviceGetHandleByIndex(index: u32, handle: Out<nvmlDevice_t>) |library| {
        by_index(library, index, handle)
    };
    system nvmlDeviceGetHandleByIndex_v2(index: u32, handle: Out<nvmlDevice_t>) |library| {
        by_index(library, index, handle)
    };
    system nvmlDeviceGetHandleByUUID(uuid: Given, handle: Out<nvmlDevice_t>) |library| {
        by_uuid(library, uuid.text()?, handle)
    };
    system nvmlDeviceGetHandleBySerial(serial: Given, handle: Out<nvmlDevice_t>) |library| {
        let serial = serial.text()?;
        let gpus = &library.inventory.gpus;
        give(library, gpus.iter().position(|gpu| gpu.serial == serial), handle)
    };
    system nvmlDeviceGetHandleByPciBusId(bus_id: Given, handle: Out<nvmlDevice_t>) |library| {
        by_address(library, bus_id.text()?, handle)
    };
    system nvmlDeviceGetHandleByPciBusId_v2(bus_id: Given, handle: Out<nvmlDevice_t>) |library| {
        by_address(library, bus_id.text()?, handle)
    };
    system nvmlGetExcludedDeviceCount(count: Out<u32>) |_library| count.put(0);
    system nvmlUnitGetCount(count: Out<u32>) |_library| count.put(0);
    system nvmlSystemGetConfComputeState(state: Out<nvmlConfComputeSystemState_st>) |library| {
        let conf = &library.inventory.conf_compute;
        state.put(nvmlConfComputeSystemState_st {
            environment: conf.environment,
            ccFeature: conf.enabled.into(),
            devToolsMode: conf.dev_tools.into(),
        })
    };
    system nvmlSystemGetConfComputeSettings(settings: Out<nvmlSystemConfComputeSettings_v1_t>) |library| {
        let conf = &library.inventory.conf_compute;
        settings.put_version(1, nvmlSystemConfComputeSettings_v1_t {
            version: version_of::<nvmlSystemConfComputeSettings_v1_t>(1),
            environment: conf.environment,
            ccFeature: conf.enabled.into(),
            devToolsMode: conf.dev_tools.into(),
            multiGpuMode: conf.multi_gpu,
        })
    };
    system nvmlSystemGetConfComputeCapabilities(caps: Out<nvmlConfComputeSystemCaps_st>) |library| {
        let conf = &library.inventory.conf_compute;
        caps.put(nvmlConfComputeSystemCaps_st { cpuCaps: conf.cpu, gpusCaps: conf.capable.into() })
    };
    system nvmlSystemGetConfComputeGpusReadyState(ready: Out<u32>) |library| {
        ready.put(library.inventory.conf_compute.ready.into())
    };
}

fn visible(library: &Library) -> usize {
    let inventory = &library.inventory;
    inventory.faults.visible(inventory.gpus.len())
}

fn cuda(library: &Library, version: Out<i32>) -> Answer {
    let (major, minor) = library.inventory.cuda().unwrap_or_default();
    version.put((major * 1000 + minor * 10) as i32)
}

/// Returns a handle, unless the GPU is missing or lost.
fn give(library: &Library, gpu: Option<usize>, handle: Out<nvmlDevice_t>) -> Answer {
    let gpu = gpu
        .filter(|gpu| *gpu < visible(library))
        .ok_or(Code::NOT_FOUND)?;
    if let Some(code) = library.inventory.faults.on_handle(gpu) {
        return Err(code);
    }
    handle.put(Handle::gpu(gpu).pack())
}

fn by_index(library: &Library, index: u32, handle: Out<nvmlDevice_t>) -> Answer {
    let index = index as usize;
    if index >= visible(library) {
        return Err(Code::INVALID_ARGUMENT);
    }
    give(library, Some(index), handle)
}

fn by_uuid(library: &Library, uuid: &str, handle: Out<nvmlDevice_t>) -> Answer {
    for (index, gpu) in library.inventory.gpus.iter().enumerate() {
        if gpu.uuid == uuid {
            return give(library, Some(index), handle);
        }
        let mut parts = gpu.mig.devices.iter();
        if let Some(part) = parts.find(|part| part.uuid == uuid)
            && gpu.mig.enabled
        {
            let id = part.gpu_instance.unwrap_or_default();
            let of = Handle::gpu(index);
            return handle.put(
                of.instance(Object::MigDevice, id, part.compute_instance)
                    .pack(),
            );
        }
    }
    Err(Code::NOT_FOUND)
}

fn by_address(library: &Library, text: &str, handle: Out<nvmlDevice_t>) -> Answer {
    // The domain may be missing, or have four or eight digits.
    let whole = match text.matches(':').count() {
        1 => format!("0:{text}"),
        _ => String::from(text),
    };
    let wanted = address(&whole).ok_or(Code::INVALID_ARGUMENT)?;
    let gpus = &library.inventory.gpus;
    give(
        library,
        gpus.iter().position(|gpu| gpu.address() == wanted),
        handle,
    )
}
