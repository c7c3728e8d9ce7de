//! PCI Express, NVLink and the NVLink fabric.

use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlGpuFabricInfo_t, nvmlGpuFabricInfo_v2_t, nvmlGpuFabricInfo_v3_t, nvmlReturn_t,
};

use crate::call::{Answer, Asked, Code, exports, who};
use crate::gpu::{self, Gpu};
use crate::pointer::{Out, version_of};

exports! {
    device nvmlDeviceGetCurrPcieLinkGeneration(generation: Out<u32>) |it| {
        generation.put(it.gpu.pcie.generation.unwrap_or_default())
    };
    device nvmlDeviceGetMaxPcieLinkGeneration(generation: Out<u32>) |it| {
        generation.put(it.gpu.pcie.max_generation.unwrap_or_default())
    };
    device nvmlDeviceGetGpuMaxPcieLinkGeneration(generation: Out<u32>) |it| {
        generation.put(it.gpu.pcie_generation())
    };
    device nvmlDeviceGetCurrPcieLinkWidth(width: Out<u32>) |it| width.put(it.gpu.pcie.width);
    device nvmlDeviceGetMaxPcieLinkWidth(width: Out<u32>) |it| width.put(it.gpu.pcie.max_width);
    device nvmlDeviceGetPcieReplayCounter(count: Out<u32>) |it| count.put(it.gpu.pcie.replays);
    device nvmlDeviceGetPcieThroughput(_counter: u32, rate: Out<u32>) |_it| rate.put(0);
    device nvmlDeviceGetPcieSpeed(speed: Out<u32>) |it| {
        let generation = it.gpu.pcie.generation.unwrap_or_default();
        // Megatransfers per second by generation.
        let speeds = [2_500, 5_000, 8_000, 16_000, 32_000, 64_000];
        let known = generation.checked_sub(1).and_then(|index| speeds.get(index as usize));
        speed.put(*known.ok_or(Code::NOT_SUPPORTED)?)
    };
    device nvmlDeviceGetPcieLinkMaxSpeed(speed: Out<u32>) |it| {
        // NVML uses the generation numbers for speeds.
        speed.put(it.gpu.pcie.max_generation.unwrap_or_default())
    };
    device nvmlDeviceGetNvLinkState(link: u32, active: Out<u32>) |it| {
        known_link(&it, link)?;
        active.put((!it.gpu.nvlink.down.contains(&link)).into())
    };
    device nvmlDeviceGetNvLinkVersion(link: u32, version: Out<u32>) |it| {
        known_link(&it, link)?;
        version.put(match it.gpu.capability() {
            (..=6, _) => 1,
            (7, _) => 2,
            (8, _) => 3,
            (9, _) => 4,
            _ => 5,
        })
    };
    device nvmlDeviceGetNvLinkCapability(link: u32, capability: u32, has: Out<u32>) |it| {
        known_link(&it, link)?;
        if capability > 5 {
            return Err(Code::INVALID_ARGUMENT);
        }
        has.put(1)
    };
    device nvmlDeviceGetNvLinkErrorCounter(link: u32, counter: u32, count: Out<u64>) |it| {
        known_link(&it, link)?;
        let errors = &it.gpu.nvlink;
        count.put(match counter {
            0 => errors.replay_errors,
            1 => errors.recovery_errors,
            2 => errors.crc_flit_errors,
            3 => errors.crc_data_errors,
            4 => 0,
            _ => return Err(Code::INVALID_ARGUMENT),
        })
    };
    device nvmlDeviceGetNvLinkRemoteDeviceType(link: u32, kind: Out<u32>) |it| {
        known_link(&it, link)?;
        kind.put(it.gpu.nvlink.remote.unwrap_or_default() as u32)
    };
    device nvmlDeviceGetP2PStatus(other: nvmlDevice_t, _what: u32, status: Out<u32>) |it| {
        let (other, _) = who(it.inventory, other)?;
        let linked = |gpu: &Gpu| gpu.nvlink.links.is_some_and(|links| links > 0);
        // 0 is OK, 5 is not supported.
        let both = linked(it.gpu) && linked(&it.inventory.gpus[other.gpu]);
        status.put(if both { 0 } else { 5 })
    };
    device nvmlDeviceGetTopologyCommonAncestor(other: nvmlDevice_t, level: Out<u32>) |it| {
        let (other, _) = who(it.inventory, other)?;
        let same = it.inventory.gpus[other.gpu].numa_node == it.gpu.numa_node;
        // NVML_TOPOLOGY_NODE and NVML_TOPOLOGY_SYSTEM.
        level.put(if same { 40 } else { 50 })
    };
    device nvmlDeviceGetGpuFabricInfo(info: Out<nvmlGpuFabricInfo_t>) |it| {
        let fabric = fabric(&it)?;
        info.put(nvmlGpuFabricInfo_t {
            clusterUuid: fabric.clusterUuid,
            status: fabric.status,
            cliqueId: fabric.cliqueId,
            state: fabric.state,
        })
    };
    device nvmlDeviceGetGpuFabricInfoV(info: Out<nvmlGpuFabricInfo_v3_t>) |it| {
        let fabric = fabric(&it)?;
        if info.version()? != version_of::<nvmlGpuFabricInfo_v2_t>(2) {
            return info.put_version(3, fabric);
        }
        info.seen_as().put(nvmlGpuFabricInfo_v2_t {
            version: version_of::<nvmlGpuFabricInfo_v2_t>(2),
            clusterUuid: fabric.clusterUuid,
            status: fabric.status,
            cliqueId: fabric.cliqueId,
            state: fabric.state,
            healthMask: fabric.healthMask,
        })
    };
}

/// Rejects links that the GPU does not have.
fn known_link(it: &Asked<'_>, link: u32) -> Answer {
    match it.gpu.nvlink.links.unwrap_or_default() {
        0 => Err(Code::NOT_SUPPORTED),
        links if link < links => Ok(()),
        _ => Err(Code::INVALID_ARGUMENT),
    }
}

/// The newest form; GPUs before Hopper do not have it.
fn fabric(it: &Asked<'_>) -> Answer<nvmlGpuFabricInfo_v3_t> {
    if it.gpu.capability() < (9, 0) {
        return Err(Code::NOT_SUPPORTED);
    }
    let fabric = &it.gpu.fabric;
    Ok(nvmlGpuFabricInfo_v3_t {
        version: version_of::<nvmlGpuFabricInfo_v3_t>(3),
        clusterUuid: gpu::uuid_bytes(&fabric.cluster_uuid).unwrap_or_default(),
        status: fabric.status,
        cliqueId: fabric.clique,
        state: fabric.state.map_or(0, |state| state as u8),
        healthMask: fabric.health_mask,
        healthSummary: fabric.health as u8,
    })
}
