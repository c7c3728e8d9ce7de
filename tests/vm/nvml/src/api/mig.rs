//! MIG: the mode, the devices, and their instances.

use nvml_wrapper_sys::bindings::{
    nvmlComputeInstance_t, nvmlComputeInstanceInfo_st, nvmlComputeInstancePlacement_st,
    nvmlComputeInstanceProfileInfo_st, nvmlComputeInstanceProfileInfo_v2_st,
    nvmlComputeInstanceProfileInfo_v3_st, nvmlDevice_t, nvmlDeviceAttributes_st, nvmlGpuInstance_t,
    nvmlGpuInstanceInfo_st, nvmlGpuInstancePlacement_st, nvmlGpuInstanceProfileInfo_st,
    nvmlGpuInstanceProfileInfo_v2_st, nvmlGpuInstanceProfileInfo_v3_st, nvmlReturn_t,
};

use super::device::switch;
use crate::call::{Answer, Asked, Code, Object, exports};
use crate::gpu::{GpuInstance, MigDevice};
use crate::mig::{Profile, profiles};
use crate::pointer::{Out, fixed, version_of};

exports! {
    device nvmlDeviceGetMigMode(current: Out<u32>, pending: Out<u32>) |it| {
        it.gpu.mig_supported()?;
        let mig = &it.gpu.mig;
        current.put(mig.enabled.into())?;
        pending.put(mig.pending.unwrap_or(mig.enabled).into())
    };
    change_gpu nvmlDeviceSetMigMode(mode: u32, activation: Out<u32>) |gpu, _it| {
        let status = gpu.set_mig_mode(switch(mode)?)?;
        activation.put(status.map_or_else(|code| code.0, |()| 0))
    };
    device nvmlDeviceGetMaxMigDeviceCount(count: Out<u32>) |it| {
        count.put(if it.gpu.mig.enabled { 7 } else { 0 })
    };
    device nvmlDeviceGetMigDeviceHandleByIndex(index: u32, handle: Out<nvmlDevice_t>) |it| {
        it.gpu.mig_supported()?;
        let part = it.gpu.mig.devices.get(index as usize);
        let part = part.filter(|_| it.gpu.mig.enabled).ok_or(Code::NOT_FOUND)?;
        handle.put(handle_of(&it, Object::MigDevice, part))
    };
    either nvmlDeviceIsMigDeviceHandle(is: Out<u32>) |it| is.put(it.mig.is_some().into());
    either nvmlDeviceGetDeviceHandleFromMigDeviceHandle(parent: Out<nvmlDevice_t>) |it| {
        part(&it)?;
        parent.put(it.handle().pack())
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
        let v2 = gpu_profile(&it, index)?;
        info.put(nvmlGpuInstanceProfileInfo_st {
            id: v2.id,
            isP2pSupported: v2.isP2pSupported,
            sliceCount: v2.sliceCount,
            instanceCount: v2.instanceCount,
            multiprocessorCount: v2.multiprocessorCount,
            copyEngineCount: v2.copyEngineCount,
            decoderCount: v2.decoderCount,
            encoderCount: v2.encoderCount,
            jpegCount: v2.jpegCount,
            ofaCount: v2.ofaCount,
            memorySizeMB: v2.memorySizeMB,
        })
    };
    device nvmlDeviceGetGpuInstanceProfileInfoV(index: u32, info: Out<nvmlGpuInstanceProfileInfo_v2_st>) |it| {
        let v2 = gpu_profile(&it, index)?;
        if info.version()? == v2.version {
            return info.put(v2);
        }
        info.seen_as().put_version(3, nvmlGpuInstanceProfileInfo_v3_st {
            version: version_of::<nvmlGpuInstanceProfileInfo_v3_st>(3),
            id: v2.id,
            sliceCount: v2.sliceCount,
            instanceCount: v2.instanceCount,
            multiprocessorCount: v2.multiprocessorCount,
            copyEngineCount: v2.copyEngineCount,
            decoderCount: v2.decoderCount,
            encoderCount: v2.encoderCount,
            jpegCount: v2.jpegCount,
            ofaCount: v2.ofaCount,
            memorySizeMB: v2.memorySizeMB,
            name: v2.name,
            capabilities: 0,
        })
    };
    device nvmlDeviceGetGpuInstancePossiblePlacements(
        id: u32, placements: Out<nvmlGpuInstancePlacement_st>, count: Out<u32>
    ) |it| possible_placements(&it, id, placements, count);
    device nvmlDeviceGetGpuInstancePossiblePlacements_v2(
        id: u32, placements: Out<nvmlGpuInstancePlacement_st>, count: Out<u32>
    ) |it| possible_placements(&it, id, placements, count);
    device nvmlDeviceGetGpuInstanceRemainingCapacity(id: u32, count: Out<u32>) |it| {
        it.gpu.gpu_profile(id)?;
        let mut full = it.gpu.clone();
        let mut created = 0;
        while full.create_gpu_instance(id, None).is_ok() {
            created += 1;
        }
        count.put(created)
    };
    change_gpu nvmlDeviceCreateGpuInstance(profile: u32, instance: Out<nvmlGpuInstance_t>) |gpu, it| {
        let id = gpu.create_gpu_instance(profile, None)?;
        instance.put(it.instance(Object::GpuInstance, id, 0).pack())
    };
    change_gpu nvmlDeviceCreateGpuInstanceWithPlacement(
        profile: u32, placement: Out<nvmlGpuInstancePlacement_st>, instance: Out<nvmlGpuInstance_t>
    ) |gpu, it| {
        let placement = placement.read()?;
        if placement.size != gpu.gpu_profile(profile)?.size {
            return Err(Code::INVALID_ARGUMENT);
        }
        let id = gpu.create_gpu_instance(profile, Some(placement.start))?;
        instance.put(it.instance(Object::GpuInstance, id, 0).pack())
    };
    change_gpu_instance nvmlGpuInstanceDestroy() |gpu, it| gpu.destroy_gpu_instance(it.gpu_instance);
    change_gpu_instance nvmlGpuInstanceCreateComputeInstance(
        profile: u32, instance: Out<nvmlComputeInstance_t>
    ) |gpu, it| {
        let id = gpu.create_compute_instance(it.gpu_instance, profile)?;
        instance.put(it.instance(Object::ComputeInstance, it.gpu_instance, id).pack())
    };
    change_compute_instance nvmlComputeInstanceDestroy() |gpu, it| {
        gpu.destroy_compute_instance(it.gpu_instance, it.compute_instance)
    };
    // `nvidia-smi` uses a private function for this. This one is for the fake `nvidia-smi`.
    change_gpu fakeDeviceReset() |gpu, _it| gpu.reset();
    device nvmlDeviceGetGpuInstanceById(id: u32, instance: Out<nvmlGpuInstance_t>) |it| {
        let mut all = it.gpu.mig.gpu_instances.iter();
        all.find(|one| one.id == id && it.gpu.mig.enabled).ok_or(Code::NOT_FOUND)?;
        instance.put(it.handle().instance(Object::GpuInstance, id, 0).pack())
    };
    // The caller has space for as many instances as fit on the GPU.
    device nvmlDeviceGetGpuInstances(
        id: u32, instances: Out<nvmlGpuInstance_t>, count: Out<u32>
    ) |it| {
        it.gpu.mig_supported()?;
        let profile = it.gpu.gpu_profile(id)?;
        let name = profile.name(it.gpu.memory_mib);
        let all = it.gpu.mig.gpu_instances.iter();
        let found: Vec<&GpuInstance> = all
            .filter(|one| it.gpu.mig.enabled && one.profile == name)
            .collect();
        count.put(found.len() as u32)?;
        let handles = found.iter().map(|one| it.handle().instance(Object::GpuInstance, one.id, 0).pack());
        instances.put_all(profile.most, handles)
    };
    part nvmlGpuInstanceGetInfo(info: Out<nvmlGpuInstanceInfo_st>) |it| {
        let (id, profile) = gpu_instance(&it)?;
        let instance = it.gpu.mig.gpu_instances.iter().find(|one| one.id == id);
        info.put(nvmlGpuInstanceInfo_st {
            device: it.handle().pack(),
            id,
            profileId: profile.id,
            placement: nvmlGpuInstancePlacement_st {
                start: instance.ok_or(Code::INVALID_ARGUMENT)?.start,
                size: profile.size,
            },
        })
    };
    part nvmlGpuInstanceGetComputeInstanceById(id: u32, instance: Out<nvmlComputeInstance_t>) |it| {
        let (own, _) = gpu_instance(&it)?;
        let part = it.gpu.parts_of(own).find(|part| part.compute_instance == id);
        let part = part.ok_or(Code::NOT_FOUND)?;
        instance.put(handle_of(&it, Object::ComputeInstance, part))
    };
    // The caller has space for as many instances as fit into the GPU instance.
    part nvmlGpuInstanceGetComputeInstances(
        id: u32, instances: Out<nvmlComputeInstance_t>, count: Out<u32>
    ) |it| {
        let (own, profile) = gpu_instance(&it)?;
        let slices = profile.compute_slices_of(id).ok_or(Code::INVALID_ARGUMENT)?;
        let is_of_profile = |part: &&MigDevice| {
            it.gpu.profile(&part.profile).is_some_and(|profile| profile.compute() == id)
        };
        let found: Vec<&MigDevice> = it.gpu.parts_of(own).filter(is_of_profile).collect();
        count.put(found.len() as u32)?;
        let handles = found.iter().map(|part| handle_of(&it, Object::ComputeInstance, part));
        instances.put_all(profile.slices / slices, handles)
    };
    part nvmlGpuInstanceGetComputeInstanceProfileInfo(
        index: u32, engine: u32, info: Out<nvmlComputeInstanceProfileInfo_st>
    ) |it| {
        let v2 = compute_profile(&it, index, engine)?;
        info.put(nvmlComputeInstanceProfileInfo_st {
            id: v2.id,
            sliceCount: v2.sliceCount,
            instanceCount: v2.instanceCount,
            multiprocessorCount: v2.multiprocessorCount,
            sharedCopyEngineCount: v2.sharedCopyEngineCount,
            sharedDecoderCount: v2.sharedDecoderCount,
            sharedEncoderCount: v2.sharedEncoderCount,
            sharedJpegCount: v2.sharedJpegCount,
            sharedOfaCount: v2.sharedOfaCount,
        })
    };
    part nvmlGpuInstanceGetComputeInstanceProfileInfoV(
        index: u32, engine: u32, info: Out<nvmlComputeInstanceProfileInfo_v2_st>
    ) |it| {
        let v2 = compute_profile(&it, index, engine)?;
        if info.version()? == v2.version {
            return info.put(v2);
        }
        info.seen_as().put_version(3, nvmlComputeInstanceProfileInfo_v3_st {
            version: version_of::<nvmlComputeInstanceProfileInfo_v3_st>(3),
            id: v2.id,
            sliceCount: v2.sliceCount,
            instanceCount: v2.instanceCount,
            multiprocessorCount: v2.multiprocessorCount,
            sharedCopyEngineCount: v2.sharedCopyEngineCount,
            sharedDecoderCount: v2.sharedDecoderCount,
            sharedEncoderCount: v2.sharedEncoderCount,
            sharedJpegCount: v2.sharedJpegCount,
            sharedOfaCount: v2.sharedOfaCount,
            name: v2.name,
            capabilities: 0,
        })
    };
    part nvmlComputeInstanceGetInfo(info: Out<nvmlComputeInstanceInfo_st>) |it| {
        info.put(compute_instance(&it)?)
    };
    part nvmlComputeInstanceGetInfo_v2(info: Out<nvmlComputeInstanceInfo_st>) |it| {
        info.put(compute_instance(&it)?)
    };
}

/// Multiprocessors of a slice, as on H100.
const PROCESSORS: u32 = 16;

fn handle_of<T>(it: &Asked<'_>, of: Object, part: &MigDevice) -> *mut T {
    let gpu_instance = part.gpu_instance.unwrap_or_default();
    it.handle()
        .instance(of, gpu_instance, part.compute_instance)
        .pack()
}

/// The queried MIG device. A whole GPU is an invalid argument.
fn part<'a>(it: &Asked<'a>) -> Answer<(&'a MigDevice, Profile)> {
    let position = it.mig.ok_or(Code::INVALID_ARGUMENT)?;
    let device = it.gpu.mig.devices.get(position);
    let device = device.ok_or(Code::INVALID_ARGUMENT)?;
    let profile = it.gpu.profile(&device.profile);
    Ok((device, profile.ok_or(Code::UNKNOWN)?))
}

/// The ID and the profile of the queried GPU instance.
fn gpu_instance(it: &Asked<'_>) -> Answer<(u32, Profile)> {
    let id = it.gpu_instance.ok_or(Code::INVALID_ARGUMENT)?;
    Ok((id, it.gpu.profile_of_instance(id)?))
}

/// The profile of a `NVML_GPU_INSTANCE_PROFILE_…`.
fn gpu_profile(it: &Asked<'_>, index: u32) -> Answer<nvmlGpuInstanceProfileInfo_v2_st> {
    it.gpu.mig_supported()?;
    let profile = profiles(it.gpu.mig.slices()).find(|profile| profile.index == index);
    let profile = profile.ok_or(Code::NOT_SUPPORTED)?;
    Ok(nvmlGpuInstanceProfileInfo_v2_st {
        version: version_of::<nvmlGpuInstanceProfileInfo_v2_st>(2),
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
        name: fixed(&format!("MIG {}", profile.name(it.gpu.memory_mib))),
    })
}

/// Without space, only the number is written.
fn possible_placements(
    it: &Asked<'_>,
    id: u32,
    placements: Out<nvmlGpuInstancePlacement_st>,
    count: Out<u32>,
) -> Answer {
    it.gpu.mig_supported()?;
    let profile = it.gpu.gpu_profile(id)?;
    let room = count.read()?;
    count.put(profile.starts.len() as u32)?;
    if room == 0 {
        return Ok(());
    }
    let starts = profile.starts.iter();
    placements.put_all(
        room,
        starts.map(|start| nvmlGpuInstancePlacement_st {
            start: *start,
            size: profile.size,
        }),
    )
}

/// The profile of a `NVML_COMPUTE_INSTANCE_PROFILE_…` in the queried GPU instance.
fn compute_profile(
    it: &Asked<'_>,
    index: u32,
    engine: u32,
) -> Answer<nvmlComputeInstanceProfileInfo_v2_st> {
    let (_, profile) = gpu_instance(it)?;
    let slices = profile.compute_slices_of(index).filter(|_| engine == 0);
    let slices = slices.ok_or(Code::NOT_SUPPORTED)?;
    let of_slices = profile.with_compute(slices);
    Ok(nvmlComputeInstanceProfileInfo_v2_st {
        version: version_of::<nvmlComputeInstanceProfileInfo_v2_st>(2),
        id: index,
        sliceCount: slices,
        instanceCount: profile.slices / slices,
        multiprocessorCount: slices * PROCESSORS,
        sharedCopyEngineCount: profile.slices,
        sharedDecoderCount: 0,
        sharedEncoderCount: 0,
        sharedJpegCount: 0,
        sharedOfaCount: 0,
        name: fixed(&format!("MIG {}", of_slices.name(it.gpu.memory_mib))),
    })
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
    let id = device.gpu_instance.unwrap_or_default();
    Ok(nvmlComputeInstanceInfo_st {
        device: it.handle().pack(),
        gpuInstance: it.handle().instance(Object::GpuInstance, id, 0).pack(),
        id: device.compute_instance,
        profileId: profile.compute(),
        placement: nvmlComputeInstancePlacement_st {
            start: 0,
            size: profile.compute_slices,
        },
    })
}
