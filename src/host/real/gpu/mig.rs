//! MIG devices and profiles of a GPU, from NVML. The wrapper has no functions for instances, so the C functions
//! are called directly.

use std::ptr;

use nvml_wrapper::error::{NvmlError, nvml_try};
use nvml_wrapper::{Device, Nvml as Library};
use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlDeviceAttributes_t, nvmlGpuInstanceInfo_t, nvmlGpuInstancePlacement_t,
    nvmlGpuInstanceProfileInfo_t,
};

use super::super::answer::optional;
use crate::host::{MigDevice, MigPlacement, MigProfile, MigShare};

/// The GPU instance slices and the name suffix of each `NVML_GPU_INSTANCE_PROFILE_…`, whose number
/// is the index. Source: NVIDIA/go-nvlib v0.12.0, pkg/nvlib/device/mig_profile.go, and go-nvml
/// v0.13.3, pkg/nvml/const.go.
const PROFILES: [(u32, &str); 17] = [
    (1, ""),
    (2, ""),
    (3, ""),
    (4, ""),
    (7, ""),
    (8, ""),
    (6, ""),
    (1, "+me"),
    (2, "+me"),
    (1, ""),
    (1, "+gfx"),
    (2, "+gfx"),
    (4, "+gfx"),
    (1, "-me"),
    (2, "-me"),
    (1, "+me.all"),
    (2, "+me.all"),
];

/// Returns the MIG devices of a GPU with this memory size. Their indices may have gaps after a
/// device was destroyed.
pub(super) fn devices(
    nvml: &Library,
    gpu: &Device<'_>,
    memory_bytes: Option<u64>,
) -> Result<Vec<MigDevice>, NvmlError> {
    let mut found = Vec::new();
    for index in 0..optional(gpu.mig_device_count())?.unwrap_or(0) {
        let part = match gpu.mig_device_by_index(index) {
            Err(NvmlError::NotFound) => continue,
            part => part?,
        };
        // SAFETY: the handles are only used while the devices, and therefore the library, are
        // alive.
        let (gpu, handle) = unsafe { (gpu.handle(), part.handle()) };
        let share = optional(share(nvml, handle))?;
        let kind = optional(kind(nvml, gpu, handle))?;
        let profile = match (share, memory_bytes, kind) {
            (Some(share), Some(memory), Some(kind)) => Some(profile(&share, memory, kind)),
            _ => None,
        };
        found.push(MigDevice {
            index,
            uuid: optional(part.uuid())?,
            profile,
            share,
        });
    }
    Ok(found)
}

fn share(nvml: &Library, part: nvmlDevice_t) -> Result<MigShare, NvmlError> {
    let ask = (nvml.lib().nvmlDeviceGetAttributes_v2.as_ref())
        .map_err(|_| NvmlError::FunctionNotFound)?;
    let mut told = nvmlDeviceAttributes_t {
        multiprocessorCount: 0,
        sharedCopyEngineCount: 0,
        sharedDecoderCount: 0,
        sharedEncoderCount: 0,
        sharedJpegCount: 0,
        sharedOfaCount: 0,
        gpuInstanceSliceCount: 0,
        computeInstanceSliceCount: 0,
        memorySizeMB: 0,
    };
    // SAFETY: `told` is the struct that this function writes.
    nvml_try(unsafe { ask(part, &raw mut told) })?;
    Ok(MigShare {
        memory_mib: told.memorySizeMB,
        multiprocessors: told.multiprocessorCount,
        gpu_slices: told.gpuInstanceSliceCount,
        compute_slices: told.computeInstanceSliceCount,
        copy_engines: told.sharedCopyEngineCount,
        decoders: told.sharedDecoderCount,
        encoders: told.sharedEncoderCount,
        jpeg: told.sharedJpegCount,
        ofa: told.sharedOfaCount,
    })
}

/// Returns the entry of [`PROFILES`] for the GPU instance of a MIG device. NVML only reports the
/// profile ID, which is a different number, so all profiles of the GPU are queried for their IDs.
fn kind(
    nvml: &Library,
    gpu: nvmlDevice_t,
    part: nvmlDevice_t,
) -> Result<(u32, &'static str), NvmlError> {
    let lib = nvml.lib();
    let missing = |_: &libloading::Error| NvmlError::FunctionNotFound;
    let instance_id = (lib.nvmlDeviceGetGpuInstanceId.as_ref()).map_err(missing)?;
    let instance_by_id = (lib.nvmlDeviceGetGpuInstanceById.as_ref()).map_err(missing)?;
    let info_of = (lib.nvmlGpuInstanceGetInfo.as_ref()).map_err(missing)?;
    let profile_of = (lib.nvmlDeviceGetGpuInstanceProfileInfo.as_ref()).map_err(missing)?;

    let mut id = 0;
    // SAFETY: writes one number.
    nvml_try(unsafe { instance_id(part, &raw mut id) })?;
    let mut instance = ptr::null_mut();
    // SAFETY: writes one handle.
    nvml_try(unsafe { instance_by_id(gpu, id, &raw mut instance) })?;
    // SAFETY: a C struct of numbers and a pointer, for which zeros are valid.
    let mut info: nvmlGpuInstanceInfo_t = unsafe { std::mem::zeroed() };
    // SAFETY: the handle is the one above, and `info` is the struct that this function writes.
    nvml_try(unsafe { info_of(instance, &raw mut info) })?;
    for (kind, row) in (0..).zip(PROFILES) {
        // SAFETY: a C struct of numbers, for which zeros are valid.
        let mut profile: nvmlGpuInstanceProfileInfo_t = unsafe { std::mem::zeroed() };
        // SAFETY: `profile` is the struct that this function writes.
        match nvml_try(unsafe { profile_of(gpu, kind, &raw mut profile) }) {
            // Not supported by the GPU or the driver.
            Err(NvmlError::NotSupported | NvmlError::InvalidArg) => {}
            Err(error) => return Err(error),
            Ok(()) if profile.id == info.profileId => return Ok(row),
            Ok(()) => {}
        }
    }
    Err(NvmlError::NotSupported)
}

/// Returns the profiles of a GPU with this memory size. Empty if the driver does not report them: R535 only does in MIG mode
/// (mig-parted, `pkg/mig/config`).
pub(super) fn profiles(
    nvml: &Library,
    gpu: &Device<'_>,
    memory_bytes: Option<u64>,
) -> Result<Vec<MigProfile>, NvmlError> {
    let (Ok(profile_of), Some(memory)) = (
        nvml.lib().nvmlDeviceGetGpuInstanceProfileInfo.as_ref(),
        memory_bytes,
    ) else {
        return Ok(Vec::new());
    };
    // SAFETY: the handle is only used while `gpu`, and therefore the library, is alive.
    let handle = unsafe { gpu.handle() };
    let mut found = Vec::new();
    for (kind, row) in (0..).zip(PROFILES) {
        // SAFETY: a C struct of numbers, for which zeros are valid.
        let mut info: nvmlGpuInstanceProfileInfo_t = unsafe { std::mem::zeroed() };
        // SAFETY: `info` is the struct that this function writes.
        match nvml_try(unsafe { profile_of(handle, kind, &raw mut info) }) {
            Err(NvmlError::InvalidArg) => continue,
            answer => match optional(answer)? {
                Some(()) => {}
                None => continue,
            },
        }
        let share = MigShare {
            memory_mib: info.memorySizeMB,
            compute_slices: row.0,
            ..MigShare::default()
        };
        found.push(MigProfile {
            name: profile(&share, memory, row),
            count: info.instanceCount,
            placements: optional(placements(nvml, handle, info.id))?.unwrap_or_default(),
        });
    }
    Ok(found)
}

/// Returns the possible placements of instances with this profile ID, whether or not MIG is enabled.
fn placements(
    nvml: &Library,
    gpu: nvmlDevice_t,
    profile: u32,
) -> Result<Vec<MigPlacement>, NvmlError> {
    let ask = (nvml
        .lib()
        .nvmlDeviceGetGpuInstancePossiblePlacements_v2
        .as_ref())
    .map_err(|_| NvmlError::FunctionNotFound)?;
    let mut count = 0;
    // SAFETY: without an array, the function only writes the number of placements.
    nvml_try(unsafe { ask(gpu, profile, ptr::null_mut(), &raw mut count) })?;
    let empty = nvmlGpuInstancePlacement_t { start: 0, size: 0 };
    let mut found = vec![empty; usize::try_from(count).unwrap_or_default()];
    // SAFETY: the array has room for this number of placements.
    nvml_try(unsafe { ask(gpu, profile, found.as_mut_ptr(), &raw mut count) })?;
    found.truncate(usize::try_from(count).unwrap_or_default());
    let placement = |one: nvmlGpuInstancePlacement_t| MigPlacement {
        start: one.start,
        size: one.size,
    };
    Ok(found.into_iter().map(placement).collect())
}

/// Returns the profile name as in NVIDIA's tools: compute instance slices if fewer than the GPU
/// instance slices, GPU instance slices, memory rounded up to eighths of the GPU memory, and suffix.
/// Source: same as [`PROFILES`].
fn profile(share: &MigShare, gpu_bytes: u64, (slices, mark): (u32, &str)) -> String {
    let own = u128::from(share.memory_mib) << 20;
    let eighths = (own * 8).div_ceil(u128::from(gpu_bytes.max(1)));
    let gib = u128::from(gpu_bytes.div_ceil(1 << 30));
    // Round half up.
    let memory = (eighths * gib * 2 + 8) / 16;
    let compute = match share.compute_slices {
        compute if compute == slices => String::new(),
        compute => format!("{compute}c."),
    };
    format!("{compute}{slices}g.{memory}gb{mark}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profile_names_match_nvidias_tools() {
        // GPUs and MIG devices have slightly less memory than their names suggest.
        let name = |gpu_mib: u64, memory_mib, compute_slices, kind: usize| {
            let share = MigShare {
                memory_mib,
                compute_slices,
                ..MigShare::default()
            };
            profile(&share, gpu_mib << 20, PROFILES[kind])
        };
        assert_eq!(name(40_536, 4_864, 1, 0), "1g.5gb");
        assert_eq!(name(40_536, 4_864, 1, 7), "1g.5gb+me");
        assert_eq!(name(40_536, 20_096, 3, 2), "3g.20gb");
        assert_eq!(name(40_536, 20_096, 1, 2), "1c.3g.20gb");
        assert_eq!(name(81_920, 9_728, 1, 0), "1g.10gb");
        assert_eq!(name(81_920, 19_968, 1, 9), "1g.20gb");
        assert_eq!(name(81_920, 40_192, 4, 3), "4g.40gb");
        assert_eq!(name(81_920, 80_384, 7, 4), "7g.80gb");
        assert_eq!(name(97_887, 24_192, 1, 10), "1g.24gb+gfx");
        assert_eq!(name(97_887, 24_192, 1, 13), "1g.24gb-me");
        assert_eq!(name(97_887, 48_640, 2, 16), "2g.48gb+me.all");
    }
}
