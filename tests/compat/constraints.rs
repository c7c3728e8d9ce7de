//! Conversion of machine facts to matrix constraints.

use gpu_bootstrap::compat::matrix::Fabric;
use gpu_bootstrap::compat::pick::{Constraints, pick};
use gpu_bootstrap::facts::Facts;
use gpu_bootstrap::model::gpu::GpuIdentity;

use crate::{gpu, matrix};

#[test]
fn facts_become_constraints() {
    let facts: Facts = serde_json::from_value(serde_json::json!({
        "schema": 1,
        "os": null,
        "kernel": {
            "running": "6.1.0-44-amd64", "next-boot": "6.1.0-45-amd64", "installed": [],
            "arch": "x86_64", "compiler": null
        },
        "secure-boot": "disabled",
        "lockdown": null, "virtualization": null,
        "cloud": { "provider": "aws", "instance-type": "p5.48xlarge", "lifecycle": null },
        "init": null, "boot-id": null, "instance-id": null, "memory-bytes": null,
        "disks": [],
        "gpus": [{
            "pci-address": "0000:18:00.0", "pci-id": "10de:2330", "subsystem-id": "10de:16c1",
            "name": "H100 SXM5 80GB", "architecture": "hopper", "compute-capability": "9.0",
            "module-flavor": "either", "bound-driver": null, "vgpu": false, "numa-node": null
        }],
        "nvlink-management": true,
        "nvswitches": [{ "pci-address": "0000:05:00.0", "pci-id": "10de:22a3", "name": null }],
        "network-devices": [],
        "driver": {
            "loaded-version": null, "library-version": null, "package-version": null,
            "module-version": null, "origin": null
        },
        "nvml": null, "runtimes": [], "unknown": []
    }))
    .unwrap();
    let constraints = Constraints::from(&facts);
    let whole = Constraints {
        gpus: vec![GpuIdentity {
            subsystem_id: "10de:16c1".parse().ok(),
            ..gpu("10de:2330")
        }],
        kernel: "6.1.0-44-amd64".parse().ok(),
        next_kernel: "6.1.0-45-amd64".parse().ok(),
        arch: Some("x86_64".to_owned()),
        instance: Some(("aws".to_owned(), "p5.48xlarge".to_owned())),
        nvswitch: Some(true),
        nvlink_management: Some(true),
        ..Constraints::default()
    };
    assert_eq!(constraints, whole);
    let pick = pick(matrix(), &constraints).unwrap();
    assert_eq!(
        (pick.branch.to_string().as_str(), pick.fabric),
        ("580", Fabric::Fm)
    );
}
