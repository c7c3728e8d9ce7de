//! Faults, as reported by the library that the product uses. The machine case `nvml-disagrees` tests the other ones.

mod common;

use std::time::Duration;

use common::{TWO, library, nvml, run, with};
use nvml_wrapper::error::NvmlError;

fn broken(faults: &str) -> String {
    format!("{TWO}\n[faults]\n{faults}\n")
}

#[test]
fn gpu_is_missing() {
    with(&broken("fewer-devices = 1"), "gpu_is_missing", || {
        let nvml = nvml().expect("it starts");
        assert_eq!(nvml.device_count().expect("count"), 1);
        assert!(nvml.device_by_index(0).is_ok());
        let gone = nvml.device_by_pci_bus_id("0000:2a:00.0").map(|_| ());
        assert!(matches!(gone, Err(NvmlError::NotFound)));
    });
}

#[test]
fn gpus_are_lost() {
    let inventory = broken("gpu-lost = [0]\nreset-required = [1]");
    with(&inventory, "gpus_are_lost", || {
        let nvml = nvml().expect("it starts");
        assert_eq!(nvml.device_count().expect("count"), 2);
        let lost = nvml.device_by_index(0).map(|_| ());
        assert!(matches!(lost, Err(NvmlError::GpuLost)), "{lost:?}");
        let reset = nvml.device_by_index(1).map(|_| ());
        assert!(matches!(reset, Err(NvmlError::ResetRequired)), "{reset:?}");
    });
}

#[test]
fn gpu_is_lost_while_used() {
    let inventory = TWO.replace(
        "[[gpu]]\npci-address = \"0000:2a",
        "[[gpu]]\nfails-with = 15\npci-address = \"0000:2a",
    );
    with(&inventory, "gpu_is_lost_while_used", || {
        let nvml = nvml().expect("it starts");
        assert!(nvml.device_by_index(0).expect("gpu 0").name().is_ok());
        let lost = nvml.device_by_index(1).expect("there is a handle");
        assert!(matches!(lost.name(), Err(NvmlError::GpuLost)));
        assert!(matches!(lost.memory_info(), Err(NvmlError::GpuLost)));
    });
}

#[test]
fn functions_fail_by_name() {
    let faults = r#"
missing-symbols = ["nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetUUID"]
returns = { nvmlDeviceGetTemperature = 26, nvmlDeviceGetSerial = 4 }
"#;
    with(&broken(faults), "functions_fail_by_name", || {
        let nvml = nvml().expect("it starts");
        let gpu = nvml.device_by_index(0).expect("gpu 0");
        let denied = gpu.serial();
        assert!(matches!(denied, Err(NvmlError::NoPermission)), "{denied:?}");
        assert!(gpu.name().is_ok());
        // The wrapper has no error for 13, because it never calls a missing function.
        assert!(gpu.uuid().is_err());
        // SAFETY: the function takes a handle and a pointer to a number.
        unsafe {
            let opened = libloading::Library::new(library()).expect("it opens");
            type Temperature = unsafe extern "C" fn(*mut std::ffi::c_void, u32, *mut u32) -> u32;
            let temperature: libloading::Symbol<'_, Temperature> = opened
                .get(b"nvmlDeviceGetTemperature\0")
                .expect("it is exported");
            let mut degrees = 0;
            assert_eq!(temperature(gpu.handle().cast(), 0, &mut degrees), 26);
        }
    });
}

#[test]
fn hanging_call_does_not_block_others() {
    let inventory = TWO.replace(
        "[[gpu]]\npci-address = \"0000:2a",
        "[[gpu]]\nhang = [\"nvmlDeviceGetName\"]\npci-address = \"0000:2a",
    );
    let name = "hanging_call_does_not_block_others";
    with(&inventory, name, || {
        let nvml = nvml().expect("it starts");
        let nvml: &'static _ = Box::leak(Box::new(nvml));
        let stuck = std::thread::spawn(|| nvml.device_by_index(1).map(|gpu| gpu.name()));
        std::thread::sleep(Duration::from_millis(300));
        assert!(nvml.device_by_index(0).expect("gpu 0").name().is_ok());
        assert!(!stuck.is_finished());
    });
}

#[test]
fn invalid_inventory_fails_initialization() {
    let cases = [
        (
            "driver-version = \"1\"\ncuda-version = \"12.2\"\ncolour = 1",
            "colour",
        ),
        (
            "driver-version = \"1\"\ncuda-version = \"twelve\"",
            "twelve",
        ),
        (
            &broken("hang = [\"nvmlDeviceGetNmae\"]"),
            "nvmlDeviceGetNmae",
        ),
        (&broken("gpu-lost = [7]"), "gpu 7"),
        (&TWO.replace("10de:1eb8", "10de:0001"), "`name` is needed"),
        (&TWO.replace("0000:2a:00.0", "0000:18:00.0"), "duplicate"),
        (&TWO.replace("0000:2a:00.0", "2a"), "pci-address"),
    ];
    let name = "invalid_inventory_fails_initialization";
    for (inventory, word) in cases {
        let ended = run(inventory, name, Duration::from_secs(60), || {
            assert!(matches!(nvml(), Err(NvmlError::Unknown)));
        });
        let Some(ended) = ended else { return };
        assert!(
            ended.status.is_some_and(|status| status.success()),
            "{}",
            ended.stderr
        );
        assert!(
            ended.stderr.contains(word),
            "`{word}` is not in: {}",
            ended.stderr
        );
    }
}

#[test]
fn every_function_is_exported() {
    // SAFETY: opening it only runs its initializers.
    let opened = unsafe { libloading::Library::new(library()) }.expect("it opens");
    for symbol in fake_nvml::symbols() {
        // SAFETY: the symbol is looked up but never called.
        let found = unsafe { opened.get::<*const ()>(symbol.as_bytes()) };
        assert!(found.is_ok(), "{symbol}");
    }
}
