//! The MIG devices of a GPU, by NVML. The wrapper has no functions for their instances, so these are
//! called by their C names.

use std::ptr;

use nvml_wrapper::error::{NvmlError, nvml_try};
use nvml_wrapper::{Device, Nvml as Library};
use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlDeviceAttributes_t, nvmlGpuInstanceInfo_t, nvmlGpuInstanceProfileInfo_t,
};

use super::answer::optional;
use crate::host::{MigDevice, MigShare};

/// What NVIDIA's tools write for each `NVML_GPU_INSTANCE_PROFILE_…`, in the order of these numbers:
/// slices, and what sets the profile apart. Source: NVIDIA/go-nvlib v0.12.0,
/// pkg/nvlib/device/mig_profile.go, and go-nvml v0.13.3, pkg/nvml/const.go.
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

/// The MIG devices of a GPU with so much memory. Their indices may have gaps: a device that was
/// destroyed leaves its place.
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
        // SAFETY: the handles are used only while the devices, and with them the library, are alive.
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
    // SAFETY: `told` is the struct that this function fills in.
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

/// Which row of [`PROFILES`] the GPU instance of a MIG device has. NVML tells the id of the profile,
/// which is another number, so all profiles of the GPU are asked for theirs.
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
    // SAFETY: the function writes one number.
    nvml_try(unsafe { instance_id(part, &raw mut id) })?;
    let mut instance = ptr::null_mut();
    // SAFETY: the function writes one handle.
    nvml_try(unsafe { instance_by_id(gpu, id, &raw mut instance) })?;
    // SAFETY: a C struct of numbers and a pointer, for which zeros are valid.
    let mut info: nvmlGpuInstanceInfo_t = unsafe { std::mem::zeroed() };
    // SAFETY: the handle is the one above, and `info` is the struct that this function fills in.
    nvml_try(unsafe { info_of(instance, &raw mut info) })?;
    for (kind, row) in (0..).zip(PROFILES) {
        // SAFETY: a C struct of numbers, for which zeros are valid.
        let mut profile: nvmlGpuInstanceProfileInfo_t = unsafe { std::mem::zeroed() };
        // SAFETY: `profile` is the struct that this function fills in.
        match nvml_try(unsafe { profile_of(gpu, kind, &raw mut profile) }) {
            // The GPU, or the driver, does not have it.
            Err(NvmlError::NotSupported | NvmlError::InvalidArg) => {}
            Err(error) => return Err(error),
            Ok(()) if profile.id == info.profileId => return Ok(row),
            Ok(()) => {}
        }
    }
    Err(NvmlError::NotSupported)
}

/// The name of a profile, as NVIDIA's tools write it: slices of the compute instance if it has fewer
/// than its GPU instance, slices of that, memory in eighths of the GPU's, and what sets the profile
/// apart. Source: as [`PROFILES`].
fn profile(share: &MigShare, gpu_bytes: u64, (slices, mark): (u32, &str)) -> String {
    let own = u128::from(share.memory_mib) << 20;
    let eighths = (own * 8).div_ceil(u128::from(gpu_bytes.max(1)));
    let gib = u128::from(gpu_bytes.div_ceil(1 << 30));
    // Rounded half up.
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
    fn profiles_have_the_names_of_nvidias_tools() {
        // GPUs and their parts have a little less memory than their names say.
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
