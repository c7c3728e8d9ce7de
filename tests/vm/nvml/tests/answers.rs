//! Tests of the built library, loaded in the same way as by the product.

mod common;

use std::ffi::CStr;
use std::ptr;

use common::{TWO, library, nvml, with};
use nvml_wrapper::Device;
use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::enum_wrappers::device::{
    Brand, Clock, ComputeMode, EccCounter, MemoryError, MemoryLocation, PerformanceState,
    RetirementCause, TemperatureSensor, TemperatureThreshold,
};
use nvml_wrapper::enums::device::{DeviceArchitecture, SampleValue};
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper_sys::bindings::{
    NvmlLib, nvmlComputeInstanceProfileInfo_st, nvmlDevice_t, nvmlGpuFabricInfo_v2_t,
    nvmlGpuFabricInfo_v3_t, nvmlGpuInstancePlacement_st, nvmlGpuInstanceProfileInfo_st,
    nvmlGpuInstanceProfileInfo_v3_st, nvmlTemperature_v1_t,
};

fn field(device: &Device<'_>, id: u32) -> Result<SampleValue, NvmlError> {
    let mut samples = device
        .field_values_for(&[FieldId(id)])
        .expect("the call succeeds");
    samples.remove(0)?.value
}

#[test]
fn minimal_entry_is_completed_from_model() {
    with(TWO, "minimal_entry_is_completed_from_model", || {
        let nvml = nvml().expect("it starts");
        assert_eq!(nvml.sys_driver_version().expect("driver"), "535.261.03");
        assert_eq!(nvml.sys_nvml_version().expect("nvml"), "12.535.261.03");
        assert_eq!(nvml.sys_cuda_driver_version().expect("cuda"), 12020);
        assert_eq!(nvml.device_count().expect("count"), 2);
        let gpu = nvml.device_by_index(0).expect("gpu 0");
        assert_eq!(gpu.name().expect("name"), "NVIDIA H100 80GB HBM3");
        assert_eq!(
            gpu.uuid().expect("uuid"),
            "GPU-11111111-2222-3333-4444-555555555555"
        );
        assert_eq!(gpu.minor_number().expect("minor"), 0);
        assert_eq!(gpu.index().expect("index"), 0);
        assert_eq!(gpu.brand().expect("brand"), Brand::Nvidia);
        assert!(matches!(
            gpu.architecture().expect("architecture"),
            DeviceArchitecture::Hopper
        ));
        let capability = gpu.cuda_compute_capability().expect("capability");
        assert_eq!((capability.major, capability.minor), (9, 0));
        let pci = gpu.pci_info().expect("pci");
        assert_eq!(pci.bus_id, "00000000:18:00.0");
        assert_eq!(pci.pci_device_id, 0x2330_10de);
        assert_eq!((pci.domain, pci.bus, pci.device), (0, 0x18, 0));
        let memory = gpu.memory_info().expect("memory");
        assert_eq!((memory.total, memory.used), (80 << 30, 0));
        assert!(gpu.bar1_memory_info().expect("bar1").total >= 80 << 30);
        assert!(gpu.is_ecc_enabled().expect("ecc").currently_enabled);
        assert_eq!(gpu.mig_mode().expect("mig").current, 0);
        assert!(gpu.gsp_firmware_mode().expect("gsp").enabled);
        assert_eq!(
            gpu.gsp_firmware_version().expect("gsp version"),
            "535.261.03"
        );
        assert_eq!(gpu.current_pcie_link_gen().expect("generation"), 5);
        assert!(gpu.link_wrapper_for(17).is_active().expect("link 17"));
        assert!(gpu.link_wrapper_for(18).is_active().is_err());
        assert_eq!(
            gpu.performance_state().expect("pstate"),
            PerformanceState::Zero
        );
        assert!(
            gpu.running_compute_processes()
                .expect("processes")
                .is_empty()
        );
        let t4 = nvml.device_by_index(1).expect("gpu 1");
        assert_eq!(t4.name().expect("name"), "Tesla T4");
        assert_eq!(t4.minor_number().expect("minor"), 1);
        assert!(matches!(t4.mig_mode(), Err(NvmlError::NotSupported)));
        let active = t4.link_wrapper_for(0).is_active();
        assert!(matches!(active, Err(NvmlError::NotSupported)));
    });
}

#[test]
#[expect(deprecated, reason = "some programs look up GPUs by serial number")]
fn gpu_is_found_by_uuid_serial_and_address() {
    with(TWO, "gpu_is_found_by_uuid_serial_and_address", || {
        let nvml = nvml().expect("it starts");
        let wanted = nvml
            .device_by_index(1)
            .expect("gpu 1")
            .uuid()
            .expect("uuid");
        let serial = nvml
            .device_by_index(1)
            .expect("gpu 1")
            .serial()
            .expect("serial");
        let by_uuid = nvml.device_by_uuid(wanted.as_str()).expect("by uuid");
        let by_serial = nvml.device_by_serial(serial).expect("by serial");
        assert_eq!(by_uuid.index().expect("index"), 1);
        assert_eq!(by_serial.index().expect("index"), 1);
        for address in ["0000:2a:00.0", "00000000:2A:00.0", "2a:00.0"] {
            let found = nvml.device_by_pci_bus_id(address).expect(address);
            assert_eq!(found.uuid().expect("uuid"), wanted);
        }
        let absent = nvml.device_by_pci_bus_id("0000:ff:00.0").map(|_| ());
        assert!(matches!(absent, Err(NvmlError::NotFound)));
        assert!(matches!(
            nvml.device_by_index(2).map(|_| ()),
            Err(NvmlError::InvalidArg)
        ));
    });
}

const SICK: &str = r#"
driver-version = "580.95.05"
cuda-version = "13.0"
[[gpu]]
pci-address = "0000:18:00.0"
pci-id = "10de:2330"
memory-mib = 81559
serial = "1650000000001"
vbios = "96.00.74.00.01"
recovery-action = "drain-and-reset"
virtualization = "passthrough"
fields = { "175" = 7 }
[gpu.ecc]
dram = { volatile-uncorrected = 2, aggregate-corrected = 9 }
[gpu.remapped-rows]
uncorrectable = 3
pending = true
[gpu.temperature]
gpu = 91
[gpu.power]
usage = 699000
[gpu.clocks]
event-reasons = ["hw-slowdown", "hw-thermal-slowdown"]
hw-thermal-microseconds = 12
[gpu.pcie]
width = 8
replays = 4
[gpu.nvlink]
down = [3]
[gpu.fabric]
state = "in-progress"
cluster-uuid = "01020304-0506-0708-090a-0b0c0d0e0f10"
clique = 5
[[gpu.processes]]
pid = 4242
memory-mib = 1024
[[gpu]]
pci-address = "0001:3b:00.0"
pci-id = "10de:1db1"
[gpu.retired-pages]
double-bit = [4096, 8192]
pending = true
"#;

#[test]
fn unhealthy_gpu_is_reported() {
    with(SICK, "unhealthy_gpu_is_reported", || {
        let nvml = nvml().expect("it starts");
        let gpu = nvml.device_by_index(0).expect("gpu 0");
        assert_eq!(gpu.serial().expect("serial"), "1650000000001");
        assert_eq!(gpu.vbios_version().expect("vbios"), "96.00.74.00.01");
        assert_eq!(gpu.memory_info().expect("memory").total, 81559 << 20);
        let total = gpu.total_ecc_errors(MemoryError::Uncorrected, EccCounter::Volatile);
        assert_eq!(total.expect("ecc"), 2);
        let dram = gpu.memory_error_counter(
            MemoryError::Corrected,
            EccCounter::Aggregate,
            MemoryLocation::Device,
        );
        assert_eq!(dram.expect("dram"), 9);
        assert_eq!(
            gpu.temperature(TemperatureSensor::Gpu)
                .expect("temperature"),
            91
        );
        let slowdown = gpu.temperature_threshold(TemperatureThreshold::Slowdown);
        assert_eq!(slowdown.expect("threshold"), 90);
        assert_eq!(gpu.power_usage().expect("power"), 699_000);
        assert_eq!(gpu.max_clock_info(Clock::SM).expect("clock"), 1980);
        assert_eq!(
            gpu.current_throttle_reasons().expect("reasons"),
            ThrottleReasons::HW_SLOWDOWN | ThrottleReasons::HW_THERMAL_SLOWDOWN
        );
        assert_eq!(gpu.current_pcie_link_width().expect("width"), 8);
        assert_eq!(gpu.max_pcie_link_width().expect("max width"), 16);
        assert_eq!(gpu.pcie_replay_counter().expect("replays"), 4);
        assert!(!gpu.link_wrapper_for(3).is_active().expect("link 3"));
        let processes = gpu.running_compute_processes().expect("processes");
        assert_eq!(processes.first().map(|process| process.pid), Some(4242));
        let unsigned = |id, value| assert_eq!(field(&gpu, id).expect("a field"), value);
        unsigned(91, SampleValue::U32(18));
        unsigned(143, SampleValue::U32(3));
        unsigned(144, SampleValue::U32(1));
        unsigned(175, SampleValue::U64(7));
        unsigned(230, SampleValue::U32(4));
        // The wrapper requests 270 here, because the driver is newer than 580.82.
        unsigned(252, SampleValue::U64(12));
        let volta = nvml.device_by_index(1).expect("gpu 1");
        let retired = volta.retired_pages(RetirementCause::DoubleBitEccError);
        assert_eq!(retired.expect("pages").len(), 2);
        assert!(volta.are_pages_pending_retired().expect("pending"));
        assert!(matches!(field(&volta, 143), Err(NvmlError::NotSupported)));
        assert_eq!(volta.pci_info().expect("pci").domain, 1);
    });
}

/// Functions that the wrapper lacks, called with the structures of NVIDIA's header.
#[test]
fn raw_functions_return_values() {
    with(SICK, "raw_functions_return_values", || {
        let nvml = nvml().expect("it starts");
        let gpu = nvml.device_by_index(0).expect("gpu 0");
        // SAFETY: the library is the one built here, and each call gets the arguments from its header.
        unsafe {
            let lib = NvmlLib::new(library()).expect("it opens");
            let handle = gpu.handle();
            let (mut corrected, mut uncorrected, mut pending, mut failed) = (9, 9, 9, 9);
            let code = lib.nvmlDeviceGetRemappedRows(
                handle,
                &mut corrected,
                &mut uncorrected,
                &mut pending,
                &mut failed,
            );
            assert_eq!(
                (code, corrected, uncorrected, pending, failed),
                (0, 0, 3, 1, 0)
            );
            let mut fabric: nvmlGpuFabricInfo_v3_t = std::mem::zeroed();
            fabric.version = (size_of_val(&fabric) as u32) | (3 << 24);
            assert_eq!(lib.nvmlDeviceGetGpuFabricInfoV(handle, &mut fabric), 0);
            assert_eq!((fabric.state, fabric.cliqueId, fabric.status), (2, 5, 0));
            assert_eq!(fabric.clusterUuid[..3], [1, 2, 3]);
            let mut older: nvmlGpuFabricInfo_v2_t = std::mem::zeroed();
            older.version = (size_of_val(&older) as u32) | (2 << 24);
            let pointer = (&raw mut older).cast();
            assert_eq!(lib.nvmlDeviceGetGpuFabricInfoV(handle, pointer), 0);
            assert_eq!((older.state, older.cliqueId), (2, 5));
            fabric.version = 1;
            assert_eq!(lib.nvmlDeviceGetGpuFabricInfoV(handle, &mut fabric), 25);
            let mut reading: nvmlTemperature_v1_t = std::mem::zeroed();
            reading.version = (size_of_val(&reading) as u32) | (1 << 24);
            assert_eq!(lib.nvmlDeviceGetTemperatureV(handle, &mut reading), 0);
            assert_eq!(reading.temperature, 91);
            let words = CStr::from_ptr(lib.nvmlErrorString(15));
            assert_eq!(words, c"GPU is lost");
            assert_eq!(lib.nvmlDeviceGetName(handle, std::ptr::null_mut(), 96), 2);
            let mut short = [0; 4];
            assert_eq!(lib.nvmlDeviceGetName(handle, short.as_mut_ptr(), 4), 7);
            let stray = std::ptr::without_provenance_mut(0x1000);
            let mut index = 0;
            assert_eq!(lib.nvmlDeviceGetIndex(stray, &mut index), 2);
        }
    });
}

#[test]
fn settings_persist_for_next_program() {
    let inventory = format!("state-file = \"@folder@/state.toml\"\n{TWO}");
    with(&inventory, "settings_persist_for_next_program", || {
        let first = nvml().expect("it starts");
        let mut gpu = first.device_by_index(0).expect("gpu 0");
        assert!(!gpu.is_in_persistent_mode().expect("persistence"));
        gpu.set_persistent(true).expect("it is set");
        gpu.set_compute_mode(ComputeMode::ExclusiveProcess)
            .expect("it is set");
        gpu.set_mig_mode(true).expect("it is set");
        first.shutdown().expect("it ends");
        // All users have shut down, so this reads both files again.
        let second = nvml().expect("it starts again");
        let gpu = second.device_by_index(0).expect("gpu 0");
        assert!(gpu.is_in_persistent_mode().expect("persistence"));
        assert_eq!(
            gpu.compute_mode().expect("mode"),
            ComputeMode::ExclusiveProcess
        );
        assert_eq!(gpu.mig_mode().expect("mig").current, 1);
        let other = second.device_by_index(1).expect("gpu 1");
        assert!(!other.is_in_persistent_mode().expect("persistence"));
    });
}

#[test]
fn mig_devices_have_handles() {
    let inventory = format!(
        "{TWO}\n{}",
        r#"
[[gpu]]
pci-address = "0000:3a:00.0"
pci-id = "10de:2330"
[gpu.mig]
enabled = true
[[gpu.mig.devices]]
profile = "1g.10gb"
uuid = "MIG-aaaaaaaa-0000-0000-0000-000000000000"
[[gpu.mig.devices]]
profile = "3g.40gb"
# A node that no machine has.
[[gpu.mig.devices]]
profile = "2g.20gb"
capabilities = [1000000]
"#
    );
    with(&inventory, "mig_devices_have_handles", || {
        let nvml = nvml().expect("it starts");
        let gpu = nvml.device_by_index(2).expect("gpu 2");
        assert_eq!(gpu.mig_device_count().expect("count"), 7);
        let part = gpu.mig_device_by_index(0).expect("part 0");
        assert!(part.mig_is_mig_device_handle().expect("is"));
        assert_eq!(
            part.uuid().expect("uuid"),
            "MIG-aaaaaaaa-0000-0000-0000-000000000000"
        );
        assert_eq!(
            part.name().expect("name"),
            "NVIDIA H100 80GB HBM3 MIG 1g.10gb"
        );
        assert_eq!(part.memory_info().expect("memory").total, 10 << 30);
        let same = nvml.device_by_uuid("MIG-aaaaaaaa-0000-0000-0000-000000000000");
        assert_eq!(
            same.expect("by uuid").name().expect("name"),
            part.name().expect("name")
        );
        let none = gpu.mig_device_by_index(2).map(|_| ());
        assert!(matches!(none, Err(NvmlError::NotFound)));
        // NVML does not report remapped rows while MIG devices exist.
        assert!(matches!(field(&gpu, 143), Err(NvmlError::NotSupported)));
    });
}

/// Walks the instances in the same way as NVIDIA's mig-parted: all profiles of the GPU, then all profiles of each GPU instance.
#[test]
fn instances_are_listed_by_profile() {
    let inventory = r#"
driver-version = "535.261.03"
cuda-version = "12.2"
[[gpu]]
pci-address = "0000:18:00.0"
pci-id = "10de:20b0"
[gpu.mig]
enabled = true
devices = [
    { profile = "2c.3g.20gb", gpu-instance = 1 },
    { profile = "1c.3g.20gb", gpu-instance = 1, compute-instance = 1 },
    { profile = "1g.5gb", gpu-instance = 2 },
    { profile = "1g.5gb", gpu-instance = 3 },
]
"#;
    with(inventory, "instances_are_listed_by_profile", || {
        let nvml = nvml().expect("it starts");
        let gpu = nvml.device_by_index(0).expect("gpu 0");
        let lib = nvml.lib();
        let mut found = Vec::new();
        // SAFETY: the structs are numbers, for which zeros are valid, and the arrays have room for as many handles as the
        // profile allows.
        unsafe {
            let (mut instances, mut parts) = ([ptr::null_mut(); 7], [ptr::null_mut(); 7]);
            for index in 0..18 {
                let (mut of_gpu, mut count) =
                    (std::mem::zeroed::<nvmlGpuInstanceProfileInfo_st>(), 0);
                let gpu = gpu.handle();
                if lib.nvmlDeviceGetGpuInstanceProfileInfo(gpu, index, &mut of_gpu) != 0 {
                    continue;
                }
                let handles = instances.as_mut_ptr();
                let code = lib.nvmlDeviceGetGpuInstances(gpu, of_gpu.id, handles, &mut count);
                assert_eq!(code, 0);
                for instance in instances.into_iter().take(count as usize) {
                    for compute in 0..9 {
                        let mut info = std::mem::zeroed::<nvmlComputeInstanceProfileInfo_st>();
                        let code = lib.nvmlGpuInstanceGetComputeInstanceProfileInfo(
                            instance, compute, 0, &mut info,
                        );
                        if code != 0 {
                            continue;
                        }
                        let code = lib.nvmlGpuInstanceGetComputeInstances(
                            instance,
                            info.id,
                            parts.as_mut_ptr(),
                            &mut count,
                        );
                        assert_eq!(code, 0);
                        found.extend(vec![(index, info.sliceCount); count as usize]);
                    }
                }
            }
        }
        assert_eq!(found, [(0, 1), (0, 1), (2, 1), (2, 2)]);
    });
}

/// Creates instances like NVIDIA's mig-parted: `nvmlDeviceCreateGpuInstance`, then a compute instance of the same size.
fn create(lib: &NvmlLib, gpu: nvmlDevice_t, index: u32, start: Option<u32>) -> u32 {
    // SAFETY: the structs are numbers, for which zeros are valid, and the handles are from the library.
    unsafe {
        let mut info = std::mem::zeroed::<nvmlGpuInstanceProfileInfo_st>();
        assert_eq!(
            lib.nvmlDeviceGetGpuInstanceProfileInfo(gpu, index, &mut info),
            0
        );
        let mut instance = ptr::null_mut();
        let code = match start {
            None => lib.nvmlDeviceCreateGpuInstance(gpu, info.id, &mut instance),
            Some(start) => {
                let placement = nvmlGpuInstancePlacement_st { start, size: 4 };
                lib.nvmlDeviceCreateGpuInstanceWithPlacement(
                    gpu,
                    info.id,
                    &placement,
                    &mut instance,
                )
            }
        };
        if code != 0 {
            return code;
        }
        let mut compute = ptr::null_mut();
        lib.nvmlGpuInstanceCreateComputeInstance(instance, index, &mut compute)
    }
}

#[test]
fn instances_are_created_and_destroyed() {
    let inventory = TWO.replace("10de:1eb8", "10de:20b7")
        + "[faults]\nafter = { nvmlDeviceCreateGpuInstance = 3 }\nreturns = { nvmlDeviceCreateGpuInstance = 999 }\n";
    with(&inventory, "instances_are_created_and_destroyed", || {
        let file = std::env::var("GPU_FAKE_NVML").expect("the parent sets it");
        let before = std::fs::read_to_string(&file).expect("the inventory");
        let nvml = nvml().expect("it starts");
        let lib = nvml.lib();
        let gpu = nvml.device_by_index(0).expect("gpu 0");
        // SAFETY: the library is alive.
        let handle = unsafe { gpu.handle() };
        assert_eq!(create(lib, handle, 2, None), 3);
        gpu.set_mig_mode(true).expect("Hopper needs no reset");
        // NVML_GPU_INSTANCE_PROFILE_3_SLICE, with and without a position; then the GPU is full.
        assert_eq!(create(lib, handle, 2, Some(1)), 2);
        assert_eq!(create(lib, handle, 2, Some(4)), 0);
        assert_eq!(create(lib, handle, 2, Some(4)), 23);
        assert_eq!(create(lib, handle, 2, None), 0);
        assert_eq!(create(lib, handle, 0, None), 23);
        // The fault follows after three calls that reached the GPU or failed.
        assert_eq!(create(lib, handle, 0, None), 999);
        let parts = [0, 1].map(|index| gpu.mig_device_by_index(index).expect("a MIG device"));
        let names = parts.map(|part| part.name().expect("a name"));
        assert_eq!(
            names,
            ["NVIDIA H100 80GB HBM3 MIG 3g.40gb"; 2].map(String::from)
        );
        // Another program reads the same file.
        let seen = fake_nvml::inventory::Inventory::read(file.as_ref()).expect("it is valid");
        assert_eq!(seen.gpus[0].mig.gpu_instances.len(), 2);
        // SAFETY: as above; the array has room for all instances of the profile.
        unsafe {
            let mut v3 = std::mem::zeroed::<nvmlGpuInstanceProfileInfo_v3_st>();
            v3.version = (size_of::<nvmlGpuInstanceProfileInfo_v3_st>() | (3 << 24)) as u32;
            let code = lib.nvmlDeviceGetGpuInstanceProfileInfoV(handle, 2, (&raw mut v3).cast());
            assert_eq!((code, v3.id, v3.instanceCount), (0, 9, 2));
            assert_eq!(CStr::from_ptr(v3.name.as_ptr()), c"MIG 3g.40gb");
            let (mut instances, mut count) = ([ptr::null_mut(); 7], 0);
            let all = instances.as_mut_ptr();
            assert_eq!(
                lib.nvmlDeviceGetGpuInstances(handle, v3.id, all, &mut count),
                0
            );
            for instance in &instances[..count as usize] {
                assert_eq!(
                    lib.nvmlGpuInstanceDestroy(*instance),
                    19,
                    "it has a compute instance"
                );
                let mut compute = ptr::null_mut();
                let code = lib.nvmlGpuInstanceGetComputeInstanceById(*instance, 0, &mut compute);
                assert_eq!(code, 0);
                assert_eq!(lib.nvmlComputeInstanceDestroy(compute), 0);
                assert_eq!(lib.nvmlComputeInstanceDestroy(compute), 2);
                assert_eq!(lib.nvmlGpuInstanceDestroy(*instance), 0);
            }
        }
        gpu.set_mig_mode(false).expect("Hopper needs no reset");
        let lines = |text: &str| {
            text.lines()
                .filter(|line| !line.is_empty())
                .map(String::from)
                .collect::<Vec<_>>()
        };
        let after = std::fs::read_to_string(&file).expect("the inventory");
        assert_eq!(lines(&after), lines(&before), "only MIG was changed");

        // An Ampere GPU waits for a reset, which only `nvidia-smi` can do.
        let a30 = nvml.device_by_index(1).expect("gpu 1");
        let mut status = 0;
        // SAFETY: as above.
        let code = unsafe { lib.nvmlDeviceSetMigMode(a30.handle(), 1, &mut status) };
        assert_eq!((code, status), (0, 16));
        let mode = a30.mig_mode().expect("the mode");
        assert_eq!((mode.current, mode.pending), (0, 1));
    });
}

#[test]
fn readme_examples_are_valid() {
    let readme = include_str!("../README.md");
    let blocks: Vec<&str> = readme
        .split("```toml\n")
        .skip(1)
        .filter_map(|rest| rest.split("```").next())
        .collect();
    let [example, faults] = blocks[..] else {
        panic!("the README has two examples");
    };
    for text in [String::from(example), format!("{example}\n{faults}")] {
        let inventory = fake_nvml::inventory::Inventory::parse(&text).expect("it is valid");
        assert_eq!(inventory.gpus.len(), 2);
    }
}

#[test]
fn library_needs_no_unwinder() {
    let bytes = std::fs::read(library()).unwrap();
    let name = b"libgcc_s.so.1";
    assert!(!bytes.windows(name.len()).any(|part| part == name));
}
