//! Compares the labels with the output of the real GPU Feature Discovery for the same machines (`tests/labels`, recorded by
//! `record.sh` there).

use std::fs;

use super::*;
use crate::{
    host::{FabricProgress, GpuFabric, MigDevice},
    mig::MigStrategy,
    steps::fixtures::{facts, nvml_device},
};

fn ready(devices: Vec<NvmlDevice>) -> Nvml {
    Nvml::Ready(NvmlView {
        driver_version: "580.95.05".to_owned(),
        cuda_version: Some("13.0".to_owned()),
        devices,
    })
}

fn labels(devices: Vec<NvmlDevice>) -> BTreeMap<String, String> {
    let labels = of(&facts(), &ready(devices), &DevicePluginSpec::default()).expect("labels");
    assert_eq!(labels.refused, BTreeMap::new());
    labels.labels
}

fn unshared(mig_strategy: MigStrategy) -> DevicePluginSpec {
    DevicePluginSpec {
        mig_strategy,
        sharing: None,
    }
}

#[test]
fn labels_match_gpu_feature_discovery() {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/labels");
    let mut names: Vec<String> = fs::read_dir(directory)
        .expect("the directory of recordings")
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter_map(|name| Some(name.strip_suffix(".toml")?.to_owned()))
        .collect();
    names.sort();
    assert!(names.len() >= 18, "{names:?}");
    let mut methods = BTreeSet::new();
    for name in names {
        let file = |kind: &str| {
            let path = format!("{directory}/{name}.{kind}");
            fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
        };
        let inventory = file("toml");
        let told = |key: &str| {
            let start = format!("# {key}: ");
            inventory.lines().find_map(|line| line.strip_prefix(&start))
        };
        let strategy = match told("strategy") {
            Some("none") => MigStrategy::None,
            Some("single") => MigStrategy::Single,
            Some("mixed") => MigStrategy::Mixed,
            other => panic!("{name}: the strategy is {other:?}"),
        };
        let method = match told("sharing") {
            None => SharingMethod::None,
            Some("time-slicing") => SharingMethod::TimeSlicing,
            Some("mps") => SharingMethod::Mps,
            other => panic!("{name}: the sharing is {other:?}"),
        };
        methods.insert(method.name());
        let resource = told("resource").map(str::to_owned);
        let plugin = DevicePluginSpec {
            mig_strategy: strategy,
            sharing: resource.map(|resource| SharingSpec {
                method,
                mps_daemon: (method == SharingMethod::Mps).then_some(MpsDaemon::Cluster),
                replicas: 4,
                resources: vec![resource],
                rename: told("rename") == Some("true"),
                fail_requests_greater_than_one: true,
            }),
        };
        if plugin.sharing.is_some() {
            // GPU Feature Discovery has read this file.
            assert_eq!(plugin.config(), file("yaml"), "{name}");
        }
        let nvml: Nvml = serde_json::from_str(&file("json")).expect("a view of NVML");
        let Nvml::Ready(view) = &nvml else {
            panic!("{name}: {nvml:?}");
        };
        let mut machine = facts();
        machine.product = told("product").map(str::to_owned);
        let model = machine.gpus[0].clone();
        machine.gpus = (view.devices.iter())
            .map(|gpu| crate::facts::GpuFact {
                pci_address: gpu.pci_address.expect("an address"),
                class: told("class").map(|class| class.parse().expect("a class")),
                ..model.clone()
            })
            .collect();
        let ours = of(&machine, &nvml, &plugin).expect("labels");
        assert_eq!(ours.refused, BTreeMap::new(), "{name}");
        let ours: String = (ours.labels.iter())
            .map(|(key, value)| format!("{key}={value}\n"))
            .collect();
        // `sort` compares whole lines, so a key can precede its own prefix.
        let sorted = |text: &str| {
            let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
            lines.sort();
            lines
        };
        assert_eq!(sorted(&ours), sorted(&file("gfd")), "{name}");
    }
    assert_eq!(
        methods.into_iter().collect::<Vec<_>>(),
        ["mps", "none", "time-slicing"]
    );
}

fn shared_gpus(mig_strategy: MigStrategy, method: SharingMethod) -> DevicePluginSpec {
    DevicePluginSpec {
        mig_strategy,
        sharing: Some(SharingSpec {
            method,
            mps_daemon: (method == SharingMethod::Mps).then_some(MpsDaemon::Cluster),
            replicas: 4,
            resources: vec![GPU.to_owned()],
            rename: false,
            fail_requests_greater_than_one: true,
        }),
    }
}

/// The rules of mig-strategy.go, `newGPULabelers`, and of resource.go, `getReplicas`.
#[test]
fn gpu_in_mig_mode_has_no_replicas() {
    let split = NvmlDevice {
        mig: Some(true),
        ..nvml_device(0)
    };
    let plugin = shared_gpus(MigStrategy::Mixed, SharingMethod::TimeSlicing);
    let found = of(&facts(), &ready(vec![split]), &plugin).expect("labels");
    assert_eq!(
        found.labels["nvidia.com/gpu.product"],
        "NVIDIA-H100-80GB-HBM3"
    );
    assert_eq!(found.labels["nvidia.com/gpu.replicas"], "0");
    assert_eq!(found.labels["nvidia.com/gpu.sharing-strategy"], "none");
}

/// The rule of nvml.go, `isMPSCapable`. GPU Feature Discovery sets no labels then.
#[test]
fn node_with_mig_is_not_capable_of_mps() {
    let split = NvmlDevice {
        mig: Some(true),
        ..nvml_device(1)
    };
    let plugin = shared_gpus(MigStrategy::None, SharingMethod::Mps);
    let found = of(&facts(), &ready(vec![nvml_device(0), split]), &plugin).expect("labels");
    assert_eq!(found.labels["nvidia.com/gpu.sharing-strategy"], "mps");
    assert_eq!(found.labels["nvidia.com/mps.capable"], "false");
    assert_eq!(found.labels["nvidia.com/gpu.replicas"], "4");
}

#[test]
fn invalid_characters_are_removed_from_labels() {
    for (name, label) in rows! {
        "NVIDIA H100 80GB HBM3", "NVIDIA-H100-80GB-HBM3";
        "NVIDIA A100-SXM4-80GB", "NVIDIA-A100-SXM4-80GB";
        "Standard PC (Q35 + ICH9, 2009)", "Standard-PC-Q35-ICH9-2009";
        "  two\u{2122}  spaces ", "two-spaces";
        "under_score.dot", "under_score.dot";
        "()", "";
    } {
        assert_eq!(sanitised(name), label);
    }
}

#[test]
fn gpu_family_follows_the_compute_capability() {
    for (capability, name) in [
        ((5, 2), "maxwell"),
        ((6, 1), "pascal"),
        ((7, 0), "volta"),
        ((7, 2), "volta"),
        ((7, 5), "turing"),
        ((8, 0), "ampere"),
        ((8, 6), "ampere"),
        ((8, 9), "ada-lovelace"),
        ((9, 0), "hopper"),
        ((10, 0), "blackwell"),
        ((11, 0), "undefined"),
        ((12, 0), "blackwell"),
        ((13, 0), "rubin"),
    ] {
        assert_eq!(family(capability.0, capability.1), name, "{capability:?}");
    }
}

#[test]
fn first_of_several_gpu_models_is_described() {
    let mut other = nvml_device(1);
    other.name = Some("NVIDIA L4".to_owned());
    other.compute_capability = Some("8.9".to_owned());
    let found = labels(vec![nvml_device(0), other.clone(), other.clone()]);
    assert_eq!(found["nvidia.com/gpu.product"], "NVIDIA-H100-80GB-HBM3");
    assert_eq!(found["nvidia.com/gpu.count"], "1");
    assert_eq!(found["nvidia.com/gpu.family"], "hopper");
    // Whole GPUs precede partitioned ones, regardless of their order.
    let mut split = nvml_device(0);
    split.mig = Some(true);
    let found = labels(vec![split, other]);
    assert_eq!(found["nvidia.com/gpu.product"], "NVIDIA-L4");
    assert_eq!(found["nvidia.com/gpu.replicas"], "1");
}

#[test]
fn gpus_of_two_classes_have_unknown_mode() {
    let mut machine = facts();
    for (gpu, class) in machine.gpus.iter_mut().zip(["0x030000", "0x030200"]) {
        gpu.class = class.parse().ok();
    }
    let gpus = machine.gpus.iter().zip(0..);
    let devices = gpus.map(|(gpu, index)| NvmlDevice {
        pci_address: Some(gpu.pci_address),
        ..nvml_device(index)
    });
    let nvml = ready(devices.collect());
    let found = of(&machine, &nvml, &DevicePluginSpec::default()).expect("labels");
    assert_eq!(found.labels["nvidia.com/gpu.mode"], "unknown");
}

#[test]
fn gpu_without_a_joined_fabric_has_no_clique() {
    let in_fabric = |cluster: Option<&str>, status| NvmlDevice {
        fabric: Some(GpuFabric {
            state: FabricProgress::Completed,
            status,
            cluster: cluster.map(str::to_owned),
            clique: 7,
            health: None,
        }),
        ..nvml_device(0)
    };
    assert_eq!(clique(&[in_fabric(Some("c"), 0)]).as_deref(), Some("c.7"));
    assert_eq!(clique(&[in_fabric(None, 0)]), None);
    assert_eq!(clique(&[in_fabric(Some("c"), 15)]), None);
    assert_eq!(clique(&[nvml_device(0)]), None);
}

#[test]
fn labels_are_absent_if_nvml_does_not_respond() {
    let of = |nvml: &Nvml| of(&facts(), nvml, &unshared(MigStrategy::Mixed));
    assert_eq!(of(&Nvml::DriverNotLoaded), Err(NoLabels::NoAnswer));
    let mut lost = nvml_device(1);
    lost.error = Some("the GPU is lost".to_owned());
    let answer = of(&ready(vec![nvml_device(0), lost]));
    assert!(matches!(answer, Err(NoLabels::Gpu { index: 1, .. })));
    let mut split = nvml_device(0);
    split.mig = Some(true);
    split.mig_devices = vec![MigDevice {
        index: 0,
        uuid: None,
        profile: None,
        share: None,
    }];
    let answer = of(&ready(vec![split]));
    let Err(error @ NoLabels::NotReported { .. }) = answer else {
        panic!("{answer:?}");
    };
    let said = "NVML does not report the profile of MIG device 0 of GPU 0, so the GPU labels are \
                unknown";
    assert_eq!(error.to_string(), said);
    // A machine without a GPU is not an error.
    let none = of(&Nvml::NoDevices).expect("labels").labels;
    assert_eq!(none.keys().collect::<Vec<_>>(), ["nvidia.com/vgpu.present"]);
}

#[test]
fn labels_that_kubernetes_would_reject_are_separated() {
    let mut machine = facts();
    for (product, is_refused) in [
        ("x".repeat(63), false),
        ("x".repeat(64), true),
        ("Rack Server.".to_owned(), true),
        ("()".to_owned(), false),
    ] {
        machine.product = Some(product.clone());
        let nvml = ready(vec![nvml_device(0)]);
        let found = of(&machine, &nvml, &DevicePluginSpec::default());
        let found = found.expect("labels");
        let key = "nvidia.com/gpu.machine";
        assert_eq!(found.refused.contains_key(key), is_refused, "{product}");
        assert_eq!(found.labels.contains_key(key), !is_refused, "{product}");
    }
}

#[test]
fn operator_labels_depend_on_the_toolkit() {
    let text = |toolkit| features_file(&operator(toolkit));
    assert_eq!(
        text(true),
        "# Written by gpu-bootstrap; `gpu-bootstrap uninstall` removes it.\n\
         feature.node.kubernetes.io/pci-10de.present=true\n\
         nvidia.com/gpu.deploy.container-toolkit=false\n\
         nvidia.com/gpu.deploy.driver=pre-installed\n\
         nvidia.com/gpu.present=true\n"
    );
    assert!(!text(false).contains("toolkit"));
}
