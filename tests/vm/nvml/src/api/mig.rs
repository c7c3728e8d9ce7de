//! MIG: the mode, the devices, and their instances.

use nvml_wrapper_sys::bindings::{
    nvmlComputeInstance_t, nvmlComputeInstanceInfo_st, nvmlComputeInstancePlacement_st,
    nvmlComputeInstanceProfileInfo_st, nvmlDevice_t, nvmlDeviceAttributes_st, nvmlGpuInstance_t,
    nvmlGpuInstanceInfo_st, nvmlGpuInstancePlacement_st, nvmlGpuInstanceProfileInfo_st,
    nvmlReturn_t,
};

use super::device::switch;
use crate::call::{Answer, Asked, Code, exports, handle_of};
use crate::gpu::MigDevice;
use crate::mig::{Profile, profile, profiles};
use crate::pointer::Out;

exports! {
    device nvmlDeviceGetMigMode(current: Out<u32>, pending: Out<u32>) |it| {
        supported(&it)?;
        current.put(it.set.mig.into())?;
        pending.put(it.set.mig_pending.into())
    };
    device nvmlDeviceSetMigMode(mode: u32, activation: Out<u32>) |it| {
        supported(&it)?;
        it.set.mig = switch(mode)?;
        it.set.mig_pending = it.set.mig;
        activation.put(0)
    };
    device nvmlDeviceGetMaxMigDeviceCount(count: Out<u32>) |it| {
        count.put(if it.set.mig { 7 } else { 0 })
    };
    device nvmlDeviceGetMigDeviceHandleByIndex(index: u32, handle: Out<nvmlDevice_t>) |it| {
        supported(&it)?;
        if !it.set.mig || index as usize >= it.gpu.mig.devices.len() {
            return Err(Code::NOT_FOUND);
        }
        handle.put(handle_of(it.index, Some(index as usize)))
    };
    either nvmlDeviceIsMigDeviceHandle(is: Out<u32>) |it| is.put(it.mig.is_some().into());
    either nvmlDeviceGetDeviceHandleFromMigDeviceHandle(parent: Out<nvmlDevice_t>) |it| {
        part(&it)?;
        parent.put(handle_of(it.index, None))
    };
    either nvmlDeviceGetGpuInstanceId(id: Out<u32>) |it| {
        id.put(part(&it)?.0.gpu_instance.unwrap_or_default())
    };
    either nvmlDeviceGetComputeInstanceId(id: Out<u32>) |it| {
        id.put(part(&it)?.0.compute_instance)
    };
    either nvmlDeviceGetAttributes(attributes: Out<nvmlDeviceAttributes_st>) |it| {
        attributes.put(attributes_of(&it)?)
    };
    either nvmlDeviceGetAttributes_v2(attributes: Out<nvmlDeviceAttributes_st>) |it| {
        attributes.put(attributes_of(&it)?)
    };
    device nvmlDeviceGetGpuInstanceProfileInfo(index: u32, info: Out<nvmlGpuInstanceProfileInfo_st>) |it| {
        supported(&it)?;
        let profile = profiles(it.gpu.mig.slices()).find(|profile| profile.index == index);
        let profile = profile.ok_or(Code::NOT_SUPPORTED)?;
        info.put(nvmlGpuInstanceProfileInfo_st {
            id: profile.id,
            isP2pSupported: 0,
            sliceCount: profile.slices,
            instanceCount: profile.most,
            multiprocessorCount: profile.slices * PROCESSORS,
            copyEngineCount: profile.slices,
            decoderCount: 0,
            encoderCount: 0,
            jpegCount: 0,
            ofaCount: 0,
            memorySizeMB: profile.memory_mib(it.gpu.memory_mib),
        })
    };
    // Without space, only the number is written.
    device nvmlDeviceGetGpuInstancePossiblePlacements_v2(
        id: u32, placements: Out<nvmlGpuInstancePlacement_st>, count: Out<u32>
    ) |it| {
        supported(&it)?;
        let profile = profile_with(&it, id)?;
        let room = count.read()?;
        count.put(profile.starts.len() as u32)?;
        if room == 0 {
            return Ok(());
        }
        placements.put_all(room, profile.starts.iter().map(|start| nvmlGpuInstancePlacement_st {
            start: *start,
            size: profile.size,
        }))
    };
    // A GPU instance has the handle of its first MIG device, and a compute instance has the handle of its only MIG device.
    device nvmlDeviceGetGpuInstanceById(id: u32, instance: Out<nvmlGpuInstance_t>) |it| {
        let parts = &it.gpu.mig.devices;
        let part = parts.iter().position(|part| part.gpu_instance == Some(id));
        let part = part.filter(|_| it.set.mig).ok_or(Code::NOT_FOUND)?;
        instance.put(handle_of(it.index, Some(part)).cast())
    };
    // The caller has space for as many instances as fit on the GPU.
    device nvmlDeviceGetGpuInstances(
        id: u32, instances: Out<nvmlGpuInstance_t>, count: Out<u32>
    ) |it| {
        supported(&it)?;
        let profile = profile_with(&it, id)?;
        let found = gpu_instances(&it, id);
        count.put(found.len() as u32)?;
        let handles = found.iter().map(|part| handle_of(it.index, Some(*part)).cast());
        instances.put_all(profile.most, handles)
    };
    either nvmlGpuInstanceGetInfo(info: Out<nvmlGpuInstanceInfo_st>) |it| {
        let (device, profile) = part(&it)?;
        info.put(nvmlGpuInstanceInfo_st {
            device: handle_of(it.index, None),
            id: device.gpu_instance.unwrap_or_default(),
            profileId: profile.id,
            placement: nvmlGpuInstancePlacement_st {
                start: it.mig.unwrap_or_default() as u32,
                size: profile.size,
            },
        })
    };
    either nvmlGpuInstanceGetComputeInstanceById(id: u32, instance: Out<nvmlComputeInstance_t>) |it| {
        let parts = compute_instances(&it)?;
        let part = parts.iter().find(|part| it.gpu.mig.devices[**part].compute_instance == id);
        let part = part.ok_or(Code::NOT_FOUND)?;
        instance.put(handle_of(it.index, Some(*part)).cast())
    };
    // The caller has space for as many instances as fit into the GPU instance.
    either nvmlGpuInstanceGetComputeInstances(
        id: u32, instances: Out<nvmlComputeInstance_t>, count: Out<u32>
    ) |it| {
        let (_, profile) = part(&it)?;
        let slices = profile.compute_slices_of(id).ok_or(Code::INVALID_ARGUMENT)?;
        let mut found = compute_instances(&it)?;
        found.retain(|part| {
            profile_of(&it, *part).is_some_and(|profile| profile.compute() == id)
        });
        count.put(found.len() as u32)?;
        let handles = found.iter().map(|part| handle_of(it.index, Some(*part)).cast());
        instances.put_all(profile.slices / slices, handles)
    };
    either nvmlGpuInstanceGetComputeInstanceProfileInfo(
        index: u32, engine: u32, info: Out<nvmlComputeInstanceProfileInfo_st>
    ) |it| {
        let (_, profile) = part(&it)?;
        let slices = profile.compute_slices_of(index).filter(|_| engine == 0);
        let slices = slices.ok_or(Code::NOT_SUPPORTED)?;
        info.put(nvmlComputeInstanceProfileInfo_st {
            id: index,
            sliceCount: slices,
            instanceCount: profile.slices / slices,
            multiprocessorCount: slices * PROCESSORS,
            sharedCopyEngineCount: profile.slices,
            sharedDecoderCount: 0,
            sharedEncoderCount: 0,
            sharedJpegCount: 0,
            sharedOfaCount: 0,
        })
    };
    either nvmlComputeInstanceGetInfo(info: Out<nvmlComputeInstanceInfo_st>) |it| {
        info.put(compute_instance(&it)?)
    };
    either nvmlComputeInstanceGetInfo_v2(info: Out<nvmlComputeInstanceInfo_st>) |it| {
        info.put(compute_instance(&it)?)
    };
}

/// Multiprocessors of a slice, as on H100.
const PROCESSORS: u32 = 16;

fn supported(it: &Asked<'_>) -> Answer {
    match it.gpu.mig.supported {
        Some(true) => Ok(()),
        _ => Err(Code::NOT_SUPPORTED),
    }
}

/// The queried MIG device. A whole GPU is an invalid argument.
fn part<'a>(it: &Asked<'a>) -> Answer<(&'a MigDevice, Profile)> {
    let position = it.mig.ok_or(Code::INVALID_ARGUMENT)?;
    let device = it.gpu.mig.devices.get(position);
    let device = device.ok_or(Code::INVALID_ARGUMENT)?;
    let profile = profile_of(it, position);
    Ok((device, profile.ok_or(Code::UNKNOWN)?))
}

/// The profile of a MIG device of the GPU.
fn profile_of(it: &Asked<'_>, part: usize) -> Option<Profile> {
    let device = it.gpu.mig.devices.get(part)?;
    profile(&device.profile, it.gpu.memory_mib, it.gpu.mig.slices())
}

/// The profile of GPU instances with this ID.
fn profile_with(it: &Asked<'_>, id: u32) -> Answer<Profile> {
    let mut all = profiles(it.gpu.mig.slices());
    all.find(|profile| profile.id == id)
        .ok_or(Code::INVALID_ARGUMENT)
}

/// The first MIG device of each GPU instance with this profile ID.
fn gpu_instances(it: &Asked<'_>, id: u32) -> Vec<usize> {
    let parts = &it.gpu.mig.devices;
    let is_first = |part: &usize| {
        let own = parts[*part].gpu_instance;
        parts[..*part].iter().all(|other| other.gpu_instance != own)
    };
    (0..parts.len())
        .filter(|part| it.set.mig && is_first(part))
        .filter(|part| profile_of(it, *part).is_some_and(|profile| profile.id == id))
        .collect()
}

/// The MIG devices in the queried GPU instance.
fn compute_instances(it: &Asked<'_>) -> Answer<Vec<usize>> {
    let own = part(it)?.0.gpu_instance;
    let parts = it.gpu.mig.devices.iter().enumerate();
    Ok(parts
        .filter(|(_, other)| other.gpu_instance == own)
        .map(|(part, _)| part)
        .collect())
}

fn attributes_of(it: &Asked<'_>) -> Answer<nvmlDeviceAttributes_st> {
    let (_, profile) = part(it)?;
    Ok(nvmlDeviceAttributes_st {
        multiprocessorCount: profile.compute_slices * PROCESSORS,
        sharedCopyEngineCount: profile.slices,
        sharedDecoderCount: 0,
        sharedEncoderCount: 0,
        sharedJpegCount: 0,
        sharedOfaCount: 0,
        gpuInstanceSliceCount: profile.slices,
        computeInstanceSliceCount: profile.compute_slices,
        memorySizeMB: profile.memory_mib(it.gpu.memory_mib),
    })
}

fn compute_instance(it: &Asked<'_>) -> Answer<nvmlComputeInstanceInfo_st> {
    let (device, profile) = part(it)?;
    Ok(nvmlComputeInstanceInfo_st {
        device: handle_of(it.index, None),
        gpuInstance: handle_of(it.index, it.mig).cast(),
        id: device.compute_instance,
        profileId: profile.compute(),
        placement: nvmlComputeInstancePlacement_st {
            start: 0,
            size: profile.compute_slices,
        },
    })
}
