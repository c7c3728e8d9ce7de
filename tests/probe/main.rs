//! Runs `probe` on nodes with a fake CUDA library: the same `dlopen`, child processes and deadlines as on a machine, and each
//! error of the library.

mod node;

use std::time::Duration;

use gpu_bootstrap::{
    host::{Nvml, fake::FakeGpu},
    tools::probe::{LayerStatus, ProbeDocument, ProbeLayer},
};
use node::{Node, Ran, gpus};

/// Two healthy GPUs.
fn two(faults: &str) -> Node {
    Node::new(&format!("{}\n{faults}", gpus(2, |_| "")))
}

fn document(ran: &Ran) -> ProbeDocument {
    serde_json::from_str(&ran.out).unwrap_or_else(|error| panic!("{error}: {}", ran.out))
}

/// Asserts that the probe fails with this first line and advice.
fn fails(node: &Node, first_line: &str, advice: &str) -> Ran {
    let ran = node.probe(&[]);
    assert_eq!(ran.exit, 4, "{}", ran.out);
    assert!(ran.first_line().contains(first_line), "{}", ran.out);
    let fix = ran.out.lines().nth(1).unwrap_or_default();
    assert!(
        fix.trim_start().starts_with("fix: ") && fix.contains(advice),
        "{}",
        ran.out
    );
    assert!(ran.took < Duration::from_secs(60), "{:?}", ran.took);
    ran
}

#[test]
fn healthy_gpus_compute() {
    let ran = two("").probe(&[]);
    assert_eq!(ran.exit, 0, "{}", ran.out);
    assert_eq!(ran.first_line(), "passed: 2 GPUs compute");
    for words in [
        "PCI            pass         2 GPUs",
        "CUDA           pass         CUDA 12.2 starts and lists the same devices as NVML",
        "compute        pass         2 GPUs copied data and computed correct results",
        "instance type  skip         the instance type is unknown",
        "  GPU 1 (GPU-00000000-0000-4000-8000-000000001900): NVIDIA H100 80GB HBM3 computed in ",
    ] {
        assert!(ran.out.contains(words), "no `{words}` in:\n{}", ran.out);
    }
}

#[test]
fn document_describes_each_gpu() {
    let document = document(&two("").probe(&["--format", "json"]));
    assert!(document.passed && document.failed_layer.is_none());
    assert_eq!(document.driver_version.as_deref(), Some("535.261.03"));
    assert_eq!(document.cuda_version.as_deref(), Some("12.2"));
    let layers: Vec<ProbeLayer> = document.layers.iter().map(|one| one.layer).collect();
    assert_eq!(layers, ProbeLayer::ALL);
    assert_eq!(document.devices.len(), 2);
    for device in &document.devices {
        let work = device.work.as_ref().expect("it computed");
        assert_eq!(work.name, "NVIDIA H100 80GB HBM3");
        assert_eq!(work.compute_capability, "9.0");
        assert_eq!(work.memory_bytes, 80 << 30);
        assert!(work.seconds > 0.0);
    }
}

#[test]
fn mig_devices_compute_instead_of_their_gpu() {
    let mig = "[gpu.mig]\nenabled = true\ndevices = [{ profile = \"1g.10gb\" }, { profile = \"3g.40gb\" }]";
    let node = Node::new(&gpus(2, |index| if index == 1 { mig } else { "" }));
    let ran = node.probe(&["--format", "json"]);
    let document = document(&ran);
    assert!(document.passed, "{}", ran.out);
    assert_eq!(document.why, "1 GPU and 2 MIG devices compute");
    let seen: Vec<_> = (document.devices.iter())
        .map(|device| (device.index, device.mig_index, &device.uuid[..4]))
        .collect();
    assert_eq!(
        seen,
        [
            (0, None, "GPU-"),
            (1, Some(0), "MIG-"),
            (1, Some(1), "MIG-")
        ]
    );
    assert!(document.devices.iter().all(|device| device.work.is_some()));
}

#[test]
fn mig_mode_without_mig_devices_fails() {
    let node = Node::new(&gpus(1, |_| "[gpu.mig]\nenabled = true"));
    fails(
        &node,
        "failed at the layer CUDA: no device can run programs",
        "nvidia-smi mig -cgi",
    );
}

#[test]
fn each_initialization_error_is_reported_with_its_cause() {
    for (code, cause, advice) in [
        (
            802,
            "CUDA_ERROR_SYSTEM_NOT_READY): the NVSwitch fabric",
            "nvidia-fabricmanager",
        ),
        (803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH)", "reboot"),
        (
            999,
            "CUDA_ERROR_UNKNOWN): internal driver error",
            "nvidia-uvm",
        ),
        (100, "CUDA_ERROR_NO_DEVICE)", "/dev/nvidia*"),
        (3, "CUDA_ERROR_NOT_INITIALIZED)", "dmesg"),
        (4, "CUDA_ERROR_DEINITIALIZED)", "again"),
        (34, "CUDA_ERROR_STUB_LIBRARY)", "stubs"),
        (4711, "which is unknown to gpu-bootstrap", "look up 4711"),
    ] {
        let node = two(&format!("[faults.cuda]\nreturns = {{ cuInit = {code} }}"));
        let line = format!("failed at the layer CUDA: `cuInit` returned {code}");
        let ran = fails(&node, &line, advice);
        assert!(ran.first_line().contains(cause), "{}", ran.out);
        assert!(
            ran.out.contains("compute        not reached"),
            "{}",
            ran.out
        );
    }
}

#[test]
fn missing_library_is_reported() {
    let node = two("");
    std::fs::remove_file(node.libraries().join("libcuda.so.1")).expect("it was there");
    let line = "failed at the layer CUDA: `libcuda.so.1` cannot be opened: libcuda.so.1: ";
    fails(&node, line, "NVIDIA_DRIVER_CAPABILITIES");
}

#[test]
fn a_library_without_a_function_is_too_old() {
    let node = two("");
    let library = node.libraries().join("libcuda.so.1");
    let mut bytes = std::fs::read(&library).expect("it is there");
    // Changing a letter in the symbol table hides a function.
    let name = b"cuMemAlloc_v2\0";
    let places: Vec<usize> = (bytes.windows(name.len()).enumerate())
        .filter(|(_, window)| window == name)
        .map(|(at, _)| at)
        .collect();
    assert!(!places.is_empty());
    for at in places {
        bytes[at] = b'x';
    }
    std::fs::write(&library, bytes).expect("it is written");
    let ran = node.probe(&[]);
    assert_eq!(ran.exit, 4, "{}", ran.out);
    let line = "`libcuda.so.1` has no function `cuMemAlloc_v2`";
    assert!(ran.first_line().contains(line), "{}", ran.out);
}

#[test]
fn hung_initialization_is_reported_and_killed() {
    let node = two("[faults.cuda]\nhang = [\"cuInit\"]");
    let line = "failed at the layer CUDA: initializing CUDA (`cuInit`) timed out after 6 s";
    let ran = fails(&node, line, "hangs");
    assert!(ran.took < Duration::from_secs(15), "{:?}", ran.took);
}

#[test]
fn one_hung_gpu_keeps_the_other_results() {
    let hang = "[gpu.cuda]\nhang = [\"cuCtxSynchronize\"]";
    let node = Node::new(&gpus(8, |index| if index == 3 { hang } else { "" }));
    let ran = node.probe(&["--format", "json"]);
    assert_eq!(ran.exit, 4, "{}", ran.out);
    let document = document(&ran);
    assert_eq!(document.failed_layer, Some(ProbeLayer::Compute));
    let start = "GPU 3 (GPU-00000000-0000-4000-8000-000000001b00): copying to the GPU and \
                 back timed out after ";
    assert!(document.why.starts_with(start), "{}", document.why);
    for device in &document.devices {
        assert_eq!(device.work.is_some(), device.index != 3, "{device:?}");
        assert_eq!(device.fault.is_some(), device.index == 3, "{device:?}");
    }
    assert!(ran.took < Duration::from_secs(60), "{:?}", ran.took);
}

#[test]
fn failing_gpu_is_reported_with_its_cuda_call() {
    let faults = "[gpu.cuda]\nreturns = { cuMemAlloc_v2 = 2 }";
    let node = Node::new(&gpus(2, |index| if index == 1 { faults } else { "" }));
    let line = "failed at the layer compute: GPU 1 (GPU-00000000-0000-4000-8000-000000001900): \
                `cuMemAlloc_v2` returned 2 (CUDA_ERROR_OUT_OF_MEMORY)";
    fails(&node, line, "nvidia-smi");
}

#[test]
fn all_failing_gpus_are_reported() {
    let faults = "[gpu.cuda]\nreturns = { cuDevicePrimaryCtxRetain = 46 }";
    let ran = Node::new(&gpus(3, |index| if index == 0 { "" } else { faults })).probe(&[]);
    let line = ran.first_line();
    assert!(line.contains("compute: GPU 1 ("), "{line}");
    assert!(line.contains("; also GPU 2 ("), "{line}");
}

#[test]
fn wrong_kernel_result_is_found() {
    let node = Node::new(&gpus(1, |_| "[gpu.cuda]\ncomputes-wrong = true"));
    let line = "compute: GPU 0 (GPU-00000000-0000-4000-8000-000000001800): the GPU result \
                differs from the CPU result, first at index 32768";
    fails(&node, line, "out of service");
}

#[test]
fn single_memory_bit_error_is_found() {
    let node = Node::new(&gpus(1, |_| "[gpu.cuda]\ncorrupts-memory = true"));
    let line = "data read back from the GPU differs from the written data, first at byte 8388608";
    fails(&node, line, "out of service");
}

#[test]
fn uuid_mismatch_between_cuda_and_nvml_is_found() {
    let other = "[gpu.cuda]\nuuid = \"GPU-deadbeef-0000-0000-0000-000000000000\"";
    let node = Node::new(&gpus(2, |index| if index == 1 { other } else { "" }));
    let line = "failed at the layer CUDA: CUDA lists 2 GPUs, NVML 2 GPUs; only CUDA: \
                GPU-deadbeef-0000-0000-0000-000000000000; only NVML: \
                GPU-00000000-0000-4000-8000-000000001900";
    fails(&node, line, "belong to the same driver");
}

#[test]
fn library_crash_is_reported_with_its_phase() {
    let node = two("[faults.cuda]\ncrash = [\"cuModuleLoadData\"]");
    let line = "while compiling the kernel, the process was killed by signal 6";
    fails(&node, line, "libcuda.so.1");
}

#[test]
fn errors_below_cuda_stop_the_probe() {
    let node = two("");
    node.fakes
        .files
        .take("/sys/bus/pci/devices/0000:19:00.0/driver");
    fails(
        &node,
        "failed at the layer driver: no driver is bound to GPU 0000:19:00.0",
        "NVRM",
    );
    let node = two("");
    node.fakes.files.take("/dev/nvidia1");
    fails(
        &node,
        "failed at the layer device nodes: `/dev/nvidia1` missing",
        "nvidia-modprobe",
    );
    let node = two("");
    node.fakes.files.take("/sys/module/nvidia");
    node.fakes.files.take("/proc/driver");
    fails(
        &node,
        "failed at the layer driver: the kernel module `nvidia` is not loaded",
        "check",
    );
    let ran = Node::new("").probe(&[]);
    assert_eq!(
        ran.first_line(),
        "failed at the layer PCI: no NVIDIA GPU is on the PCI bus"
    );
    let hung = FakeGpu::default();
    hung.set(Nvml::Hung { after_seconds: 30 });
    let ran = two("").probe_with(hung, &["--format", "json"]);
    let document = document(&ran);
    assert_eq!(document.failed_layer, Some(ProbeLayer::Nvml));
    assert_eq!(document.why, "NVML timed out after 30 s");
    let reached =
        |layer: &&gpu_bootstrap::tools::probe::LayerResult| layer.status != LayerStatus::NotReached;
    assert_eq!(document.layers.iter().filter(reached).count(), 4);
}

#[test]
fn fewer_gpus_than_the_instance_type_fail() {
    let node = two("");
    for (name, value) in [
        ("sys_vendor", "Amazon EC2"),
        ("bios_vendor", "Amazon EC2"),
        ("product_name", "p5.48xlarge"),
    ] {
        let path = format!("/sys/class/dmi/id/{name}");
        node.fakes.files.put(&path, format!("{value}\n"));
    }
    let line = "failed at the layer instance type: p5.48xlarge has 8 GPUs, but only 2 GPUs are on the PCI bus";
    fails(&node, line, "other hardware");
}

#[test]
fn container_with_some_gpus_checks_only_those() {
    let node = two("");
    node.fakes.files.take("/run/systemd");
    let ran = node.probe(&[]);
    assert_eq!(ran.exit, 0, "{}", ran.out);
    // NVML lists only GPUs with a device node.
    let one = Node::new(&gpus(1, |_| ""));
    one.fakes.files.take("/run/systemd");
    let other = "/sys/bus/pci/devices/0000:2a:00.0";
    for (name, value) in [
        ("vendor", "0x10de"),
        ("device", "0x2330"),
        ("class", "0x030200"),
    ] {
        one.fakes
            .files
            .put(&format!("{other}/{name}"), format!("{value}\n"));
    }
    let ran = one.probe(&[]);
    assert_eq!(ran.first_line(), "passed: 1 GPU computes", "{}", ran.out);
    one.fakes.files.put_directory("/run/systemd/system", 0o755);
    assert_eq!(one.probe(&[]).exit, 4);
}
