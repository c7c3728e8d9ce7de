//! The properties of a GPU: names, addresses, memory, firmware, and its users.

use nvml_wrapper_sys::bindings::{
    nvmlBAR1Memory_st, nvmlMemory_st, nvmlMemory_v2_st, nvmlPciInfo_st, nvmlProcessInfo_v1_st,
    nvmlProcessInfo_v2_st, nvmlReturn_t, nvmlUtilization_st,
};

use crate::call::{Answer, Asked, Code, exports};
use crate::gpu::{ComputeMode, Gpu, Process, ProcessKind};
use crate::pointer::{Out, Text, fixed, version_of};

exports! {
    either nvmlDeviceGetName(text: Text, room: u32) |it| match part(&it) {
        Some((_, part)) => text.put(room, &format!("{} MIG {}", it.gpu.name, part.profile)),
        None => text.put(room, &it.gpu.name),
    };
    either nvmlDeviceGetUUID(text: Text, room: u32) |it| match part(&it) {
        Some((_, part)) => text.put(room, &part.uuid),
        None => text.put(room, &it.gpu.uuid),
    };
    either nvmlDeviceGetIndex(index: Out<u32>) |it| {
        index.put(part(&it).map_or(it.index, |(position, _)| position) as u32)
    };
    either nvmlDeviceGetMinorNumber(minor: Out<u32>) |it| {
        minor.put(it.gpu.minor.unwrap_or_default())
    };
    device nvmlDeviceGetSerial(text: Text, room: u32) |it| text.put(room, &it.gpu.serial);
    device nvmlDeviceGetBrand(brand: Out<u32>) |it| {
        brand.put(it.gpu.brand.unwrap_or_default() as u32)
    };
    either nvmlDeviceGetArchitecture(architecture: Out<u32>) |it| {
        architecture.put(it.gpu.architecture())
    };
    either nvmlDeviceGetCudaComputeCapability(major: Out<i32>, minor: Out<i32>) |it| {
        let (whole, part) = it.gpu.capability();
        major.put(whole as i32)?;
        minor.put(part as i32)
    };
    either nvmlDeviceGetPciInfo(info: Out<OldPciInfo>) |it| info.put(old_pci(it.gpu));
    either nvmlDeviceGetPciInfo_v2(info: Out<OldPciInfo>) |it| info.put(old_pci(it.gpu));
    either nvmlDeviceGetPciInfo_v3(info: Out<nvmlPciInfo_st>) |it| info.put(pci(it.gpu));
    device nvmlDeviceGetBoardId(id: Out<u32>) |it| {
        let (domain, bus, device) = it.gpu.address();
        id.put((domain << 16) | (bus << 8) | device)
    };
    device nvmlDeviceGetMultiGpuBoard(multiple: Out<u32>) |_it| multiple.put(0);
    device nvmlDeviceGetModuleId(id: Out<u32>) |it| id.put(it.index as u32 + 1);
    device nvmlDeviceGetNumaNodeId(node: Out<u32>) |it| node.put(it.gpu.numa_node);
    device nvmlDeviceGetBusType(kind: Out<u32>) |_it| kind.put(2);
    device nvmlDeviceGetDisplayMode(on: Out<u32>) |_it| on.put(0);
    device nvmlDeviceGetDisplayActive(on: Out<u32>) |_it| on.put(0);
    device nvmlDeviceGetVirtualizationMode(mode: Out<u32>) |it| {
        mode.put(it.gpu.virtualization as u32)
    };
    either nvmlDeviceGetMemoryInfo(memory: Out<nvmlMemory_st>) |it| {
        let (total, reserved, used) = memory_of(&it);
        memory.put(nvmlMemory_st { total, free: total.saturating_sub(used + reserved), used: used + reserved })
    };
    either nvmlDeviceGetMemoryInfo_v2(memory: Out<nvmlMemory_v2_st>) |it| {
        let (total, reserved, used) = memory_of(&it);
        memory.put_version(2, nvmlMemory_v2_st {
            version: version_of::<nvmlMemory_v2_st>(2),
            total,
            reserved,
            free: total.saturating_sub(used + reserved),
            used,
        })
    };
    either nvmlDeviceGetBAR1MemoryInfo(memory: Out<nvmlBAR1Memory_st>) |it| {
        let total = it.gpu.bar1_mib << 20;
        let used = (1 << 20).min(total);
        memory.put(nvmlBAR1Memory_st { bar1Total: total, bar1Free: total - used, bar1Used: used })
    };
    device nvmlDeviceGetUtilizationRates(rates: Out<nvmlUtilization_st>) |_it| {
        rates.put(nvmlUtilization_st { gpu: 0, memory: 0 })
    };
    device nvmlDeviceGetPersistenceMode(on: Out<u32>) |it| on.put(it.set.persistence.into());
    device nvmlDeviceSetPersistenceMode(on: u32) |it| {
        it.set.persistence = switch(on)?;
        Ok(())
    };
    device nvmlDeviceGetComputeMode(mode: Out<u32>) |it| mode.put(it.set.compute_mode as u32);
    device nvmlDeviceSetComputeMode(mode: u32) |it| {
        it.set.compute_mode = ComputeMode::from_number(mode).ok_or(Code::INVALID_ARGUMENT)?;
        Ok(())
    };
    device nvmlDeviceGetVbiosVersion(text: Text, room: u32) |it| text.put(room, &it.gpu.vbios);
    device nvmlDeviceGetInforomImageVersion(text: Text, room: u32) |it| {
        text.put(room, &it.gpu.inforom)
    };
    device nvmlDeviceGetInforomVersion(object: u32, text: Text, room: u32) |it| {
        // OEM, ECC, power, device; no other values exist.
        if object > 3 {
            return Err(Code::INVALID_ARGUMENT);
        }
        text.put(room, &it.gpu.inforom)
    };
    device nvmlDeviceValidateInforom() |_it| Ok(());
    device nvmlDeviceGetBoardPartNumber(text: Text, room: u32) |it| {
        text.put(room, &it.gpu.board_part_number)
    };
    device nvmlDeviceGetGspFirmwareVersion(text: Text) |it| {
        if it.gpu.gsp != Some(true) {
            return Err(Code::NOT_SUPPORTED);
        }
        // NVML's header requires a buffer of 64 bytes here.
        text.put(64, &it.inventory.driver_version)
    };
    device nvmlDeviceGetGspFirmwareMode(enabled: Out<u32>, default: Out<u32>) |it| {
        let runs = u32::from(it.gpu.gsp == Some(true));
        enabled.put(runs)?;
        default.put(runs)
    };
    either nvmlDeviceGetComputeRunningProcesses(count: Out<u32>, list: Out<nvmlProcessInfo_v1_st>) |it| {
        list_processes(it.gpu, ProcessKind::Compute, count, list, old_process)
    };
    either nvmlDeviceGetComputeRunningProcesses_v2(count: Out<u32>, list: Out<nvmlProcessInfo_v2_st>) |it| {
        list_processes(it.gpu, ProcessKind::Compute, count, list, process)
    };
    either nvmlDeviceGetComputeRunningProcesses_v3(count: Out<u32>, list: Out<nvmlProcessInfo_v2_st>) |it| {
        list_processes(it.gpu, ProcessKind::Compute, count, list, process)
    };
    either nvmlDeviceGetGraphicsRunningProcesses(count: Out<u32>, list: Out<nvmlProcessInfo_v1_st>) |it| {
        list_processes(it.gpu, ProcessKind::Graphics, count, list, old_process)
    };
    either nvmlDeviceGetGraphicsRunningProcesses_v2(count: Out<u32>, list: Out<nvmlProcessInfo_v2_st>) |it| {
        list_processes(it.gpu, ProcessKind::Graphics, count, list, process)
    };
    either nvmlDeviceGetGraphicsRunningProcesses_v3(count: Out<u32>, list: Out<nvmlProcessInfo_v2_st>) |it| {
        list_processes(it.gpu, ProcessKind::Graphics, count, list, process)
    };
    either nvmlDeviceGetMPSComputeRunningProcesses(count: Out<u32>, list: Out<nvmlProcessInfo_v1_st>) |it| {
        list_processes(it.gpu, ProcessKind::Mps, count, list, old_process)
    };
    either nvmlDeviceGetMPSComputeRunningProcesses_v2(count: Out<u32>, list: Out<nvmlProcessInfo_v2_st>) |it| {
        list_processes(it.gpu, ProcessKind::Mps, count, list, process)
    };
    either nvmlDeviceGetMPSComputeRunningProcesses_v3(count: Out<u32>, list: Out<nvmlProcessInfo_v2_st>) |it| {
        list_processes(it.gpu, ProcessKind::Mps, count, list, process)
    };
}

/// `nvmlEnableState_t`.
pub fn switch(on: u32) -> Answer<bool> {
    match on {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Code::INVALID_ARGUMENT),
    }
}

/// The queried MIG device, if any.
fn part<'a>(it: &Asked<'a>) -> Option<(usize, &'a crate::gpu::MigDevice)> {
    let position = it.mig?;
    Some((position, it.gpu.mig.devices.get(position)?))
}

/// Total, reserved and used bytes.
fn memory_of(it: &Asked<'_>) -> (u64, u64, u64) {
    match part(it) {
        Some((_, part)) => {
            let profile =
                crate::mig::profile(&part.profile, it.gpu.memory_mib, it.gpu.mig.slices());
            let mib = profile.map_or(0, |profile| profile.memory_mib(it.gpu.memory_mib));
            (mib << 20, 0, 0)
        }
        None => (
            it.gpu.memory_mib << 20,
            it.gpu.memory_reserved_mib << 20,
            it.gpu.used_bytes(),
        ),
    }
}

/// `nvmlPciInfo_t` before its third version, up to the last field that all forms share.
#[repr(C)]
pub struct OldPciInfo {
    bus_id: [std::ffi::c_char; 16],
    domain: u32,
    bus: u32,
    device: u32,
    id: u32,
    subsystem: u32,
}

fn old_pci(gpu: &Gpu) -> OldPciInfo {
    let (domain, bus, device) = gpu.address();
    OldPciInfo {
        bus_id: fixed(&format!("{domain:04X}:{bus:02X}:{device:02X}.0")),
        domain,
        bus,
        device,
        id: Gpu::packed(&gpu.pci_id),
        subsystem: Gpu::packed(&gpu.pci_subsystem),
    }
}

fn pci(gpu: &Gpu) -> nvmlPciInfo_st {
    let old = old_pci(gpu);
    let (domain, bus, device) = (old.domain, old.bus, old.device);
    nvmlPciInfo_st {
        busIdLegacy: old.bus_id,
        domain,
        bus,
        device,
        pciDeviceId: old.id,
        pciSubSystemId: old.subsystem,
        busId: fixed(&format!("{domain:08X}:{bus:02X}:{device:02X}.0")),
    }
}

/// NVML's convention for lists: the caller passes the capacity, the result is the required capacity.
fn list_processes<T>(
    gpu: &Gpu,
    kind: ProcessKind,
    count: Out<u32>,
    list: Out<T>,
    make: fn(&Process) -> T,
) -> Answer {
    let room = count.read()?;
    let of_kind = || gpu.processes.iter().filter(|process| process.kind == kind);
    count.put(of_kind().count() as u32)?;
    let made: Vec<T> = of_kind().map(make).collect();
    list.put_all(room, made.into_iter())
}

fn old_process(process: &Process) -> nvmlProcessInfo_v1_st {
    nvmlProcessInfo_v1_st {
        pid: process.pid,
        usedGpuMemory: process.memory_mib << 20,
    }
}

fn process(process: &Process) -> nvmlProcessInfo_v2_st {
    nvmlProcessInfo_v2_st {
        pid: process.pid,
        usedGpuMemory: process.memory_mib << 20,
        gpuInstanceId: u32::MAX,
        computeInstanceId: u32::MAX,
    }
}
