//! The files of `manifests`: each document is complete, and refers only to objects in the same set. The settings are checked for a
//! machine that does not exist, so that the test needs no GPU. `tests/vm` sends the files to a real API server.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    process::Output,
};

use assert_cmd::Command;
use gpu_bootstrap::host::digest::sha256;
use serde_json::{Value, json};
use tempfile::TempDir;

const KUBEADM: &str = r#"
[sharing]
method = "time-slicing"
replicas = 4
rename = true

[cluster]
join = "kubeadm"
version = "1.36"
server = "10.0.0.1:6443"
token = "file:/etc/gpu-bootstrap/join-token"
ca-cert-hashes = ["sha256:0000000000000000000000000000000000000000000000000000000000000000"]
taints = ["nvidia.com/gpu=present:NoSchedule", "dedicated=ml:NoExecute"]
"#;

const K3S: &str = r#"
[cluster]
join = "k3s"
server = "https://10.0.0.1:6443"
token = "file:/etc/gpu-bootstrap/join-token"
"#;

const EKS: &str = "cluster.join = \"eks\"\nruntime.use = []\n";

/// A directory with the manifests of a machine with eight GPUs.
struct Written {
    directory: TempDir,
}

impl Written {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        Self { directory }
    }

    fn with(settings: &str) -> Self {
        let written = Self::new();
        let output = written.write(settings);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        written
    }

    fn write(&self, settings: &str) -> Output {
        self.write_for(settings, "8xH100")
    }

    fn write_for(&self, settings: &str, gpu: &str) -> Output {
        let config = self.directory.path().join("settings.toml");
        fs::write(&config, settings).expect("written");
        Command::cargo_bin("gpu-bootstrap")
            .expect("the binary")
            .env_clear()
            .current_dir(&self.directory)
            .args(["manifests", "--out", "out", "--config", "settings.toml"])
            .args(["--os", "ubuntu-24.04", "--gpu", gpu])
            .output()
            .expect("it runs")
    }

    /// The texts by path.
    fn texts(&self) -> BTreeMap<String, String> {
        let mut texts = BTreeMap::new();
        read(&self.directory.path().join("out"), "", &mut texts);
        texts
    }

    /// The documents, with the path of their file.
    fn documents(&self) -> Vec<(String, Value)> {
        let mut documents = Vec::new();
        for (path, text) in self.texts() {
            for part in text.split("\n---\n") {
                let document: Value = serde_saphyr::from_str(part)
                    .unwrap_or_else(|error| panic!("{path}: {error}\n{part}"));
                documents.push((path.clone(), document));
            }
        }
        documents
    }
}

fn read(directory: &Path, prefix: &str, texts: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().and_then(|name| name.to_str());
        let name = format!("{prefix}{}", name.expect("UTF-8"));
        if path.is_dir() {
            read(&path, &format!("{name}/"), texts);
        } else {
            texts.insert(name, fs::read_to_string(&path).expect("text"));
        }
    }
}

fn find<'d>(documents: &'d [(String, Value)], kind: &str, name: &str) -> &'d Value {
    let mut all = documents.iter().map(|(_, document)| document);
    all.find(|one| one["kind"] == kind && one["metadata"]["name"] == name)
        .unwrap_or_else(|| panic!("no {kind} {name}"))
}

/// The pod specification of an object, if it has one.
fn pod(document: &Value) -> Option<&Value> {
    match document["kind"].as_str() {
        Some("Pod") => Some(&document["spec"]),
        Some("DaemonSet") => Some(&document["spec"]["template"]["spec"]),
        _ => None,
    }
}

fn array(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// The names of the objects to which a document refers, with their kinds.
fn references(document: &Value) -> Vec<(&'static str, String)> {
    let mut found = Vec::new();
    let mut add = |kind, name: &Value| {
        if let Some(name) = name.as_str() {
            found.push((kind, name.to_owned()));
        }
    };
    if document["metadata"]["namespace"].is_string() {
        add("Namespace", &document["metadata"]["namespace"]);
    }
    if let Some(pod) = pod(document) {
        add("RuntimeClass", &pod["runtimeClassName"]);
        add("PriorityClass", &pod["priorityClassName"]);
        add("ServiceAccount", &pod["serviceAccountName"]);
        for claim in array(&pod["resourceClaims"]) {
            add("ResourceClaimTemplate", &claim["resourceClaimTemplateName"]);
        }
        for volume in array(&pod["volumes"]) {
            add("ConfigMap", &volume["configMap"]["name"]);
            add("Secret", &volume["secret"]["secretName"]);
        }
        for container in array(&pod["containers"]) {
            for source in array(&container["envFrom"]) {
                add("ConfigMap", &source["configMapRef"]["name"]);
            }
        }
    }
    add("ClusterRole", &document["roleRef"]["name"]);
    for subject in array(&document["subjects"]) {
        add("ServiceAccount", &subject["name"]);
    }
    add("ValidatingAdmissionPolicy", &document["spec"]["policyName"]);
    for claim in [&document["spec"], &document["spec"]["spec"]] {
        for request in array(&claim["devices"]["requests"]) {
            add("DeviceClass", &request["exactly"]["deviceClassName"]);
        }
    }
    if document["kind"] == "LocalQueue" {
        add("ClusterQueue", &document["spec"]["clusterQueue"]);
    }
    for group in array(&document["spec"]["resourceGroups"]) {
        for flavor in array(&group["flavors"]) {
            add("ResourceFlavor", &flavor["name"]);
        }
    }
    found
}

/// Checks that each document has a type and a name, its selectors match, its mounts exist, and its references are in the set or
/// in `existing`.
fn is_complete(documents: &[(String, Value)], existing: &[(&str, &str)]) {
    let mut known: BTreeSet<(String, String)> = BTreeSet::new();
    for (path, document) in documents {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let (Some(_), Some(kind), Some(name)) = (
            text(&document["apiVersion"]),
            text(&document["kind"]),
            text(&document["metadata"]["name"]),
        ) else {
            panic!("{path}: an object without type or name: {document}");
        };
        assert!(known.insert((kind, name)), "{path}: twice: {document}");
    }
    known.extend(
        existing
            .iter()
            .map(|&(kind, name)| (kind.to_owned(), name.to_owned())),
    );
    for (path, document) in documents {
        for (kind, name) in references(document) {
            let is_known = known.contains(&(kind.to_owned(), name.clone()));
            assert!(is_known, "{path}: no {kind} {name}");
        }
        let labels = &document["spec"]["template"]["metadata"]["labels"];
        if document["kind"] == "DaemonSet" {
            assert_eq!(
                document["spec"]["selector"]["matchLabels"], *labels,
                "{path}"
            );
        }
        if document["kind"] == "Service" {
            let selected = documents.iter().any(|(_, other)| {
                other["spec"]["template"]["metadata"]["labels"] == document["spec"]["selector"]
            });
            assert!(selected, "{path}: the selector matches no pod");
        }
        let Some(pod) = pod(document) else {
            continue;
        };
        let volumes: Vec<&Value> = array(&pod["volumes"])
            .map(|volume| &volume["name"])
            .collect();
        for container in array(&pod["containers"]).chain(array(&pod["initContainers"])) {
            for mount in array(&container["volumeMounts"]) {
                assert!(volumes.contains(&&mount["name"]), "{path}: {mount}");
            }
            let image = container["image"].as_str().expect("an image");
            let tag = image.rsplit_once(':').map(|(_, tag)| tag);
            assert!(tag.is_some_and(|tag| !tag.contains('/')), "{path}: {image}");
        }
    }
}

/// The objects of each cluster.
const BUILT_IN: [(&str, &str); 1] = [("PriorityClass", "system-node-critical")];

#[test]
fn manifests_are_complete_and_follow_the_settings() {
    let written = Written::with(KUBEADM);
    let texts = written.texts();
    for (path, text) in &texts {
        let (first, rest) = text.split_once('\n').expect("lines");
        assert!(
            first.starts_with("# Written by `gpu-bootstrap manifests`"),
            "{path}"
        );
        assert!(first.ends_with(&sha256(rest.as_bytes())), "{path}: {first}");
        let settings = rest
            .lines()
            .filter(|line| !line.trim_start().starts_with('#'));
        assert_eq!(
            settings.filter(|line| line.contains('@')).count(),
            0,
            "{path}"
        );
    }
    let documents = written.documents();
    is_complete(&documents, &BUILT_IN);

    let config = &find(&documents, "ConfigMap", "nvidia-device-plugin")["data"]["config.yaml"];
    let config = config.as_str().expect("text");
    let parsed: Value = serde_saphyr::from_str(config).expect("YAML");
    assert_eq!(
        parsed,
        json!({
            "version": "v1",
            "flags": {"migStrategy": "none"},
            "sharing": {"timeSlicing": {
                "renameByDefault": true,
                "failRequestsGreaterThanOne": true,
                "resources": [{"name": "nvidia.com/gpu", "replicas": 4}],
            }},
        })
    );
    let plugin = &find(&documents, "DaemonSet", "nvidia-device-plugin")["spec"]["template"];
    assert_eq!(
        plugin["metadata"]["annotations"]["checksum/config"],
        sha256(config.as_bytes())
    );
    let pod = &plugin["spec"];
    assert_eq!(
        pod["nodeSelector"],
        json!({"nvidia.com/gpu.present": "true"})
    );
    let dedicated = json!({"key": "dedicated", "operator": "Exists", "effect": "NoExecute"});
    assert!(
        array(&pod["tolerations"]).any(|one| *one == dedicated),
        "{pod}"
    );
    let container = &pod["containers"][0];
    assert_eq!(
        container["securityContext"]["capabilities"],
        json!({"drop": ["ALL"]})
    );
    let exporter = &find(&documents, "DaemonSet", "dcgm-exporter")["spec"]["template"]["spec"];
    let shared = json!({"name": "KUBERNETES_VIRTUAL_GPUS", "value": "true"});
    assert!(array(&exporter["containers"][0]["env"]).any(|one| *one == shared));
    // Eight GPUs with four replicas each.
    let quota = &find(&documents, "ResourceQuota", "gpus")["spec"]["hard"];
    assert_eq!(*quota, json!({"requests.nvidia.com/gpu.shared": "32"}));
    let queue = &find(&documents, "Queue", "gpus")["spec"]["capability"];
    assert_eq!(*queue, json!({"nvidia.com/gpu.shared": 32}));
    let group = &find(&documents, "ClusterQueue", "gpus")["spec"]["resourceGroups"][0];
    let resources: Vec<&Value> = array(&group["flavors"][0]["resources"])
        .map(|one| &one["name"])
        .collect();
    // Kueue requires the same order.
    assert_eq!(
        array(&group["coveredResources"]).collect::<Vec<_>>(),
        resources
    );
    let test = &find(&documents, "Pod", "gpu-test")["spec"]["containers"][0]["resources"]["limits"];
    assert_eq!(*test, json!({"nvidia.com/gpu.shared": 1}));
}

/// With MPS, the daemon and the device plugin read the same configuration, and have the same directories.
#[test]
fn mps_has_a_control_daemon() {
    let settings = KUBEADM
        .replace("time-slicing", "mps")
        .replace("rename = true", "");
    let written = Written::with(&settings);
    let documents = written.documents();
    is_complete(&documents, &BUILT_IN);
    let config = &find(&documents, "ConfigMap", "nvidia-device-plugin")["data"]["config.yaml"];
    let parsed: Value = serde_saphyr::from_str(config.as_str().expect("text")).expect("YAML");
    assert_eq!(
        parsed,
        json!({
            "version": "v1",
            "flags": {"migStrategy": "none", "mpsRoot": "/run/nvidia/mps"},
            "sharing": {"mps": {
                "renameByDefault": false,
                "failRequestsGreaterThanOne": true,
                "resources": [{"name": "nvidia.com/gpu", "replicas": 4}],
            }},
        })
    );
    let template = |name| &find(&documents, "DaemonSet", name)["spec"]["template"];
    let plugin = template("nvidia-device-plugin");
    let daemon = template("nvidia-mps-control-daemon");
    let digest = |template: &Value| template["metadata"]["annotations"]["checksum/config"].clone();
    assert_eq!(digest(plugin), digest(daemon));
    assert_eq!(
        daemon["spec"]["nodeSelector"],
        json!({"nvidia.com/gpu.present": "true", "nvidia.com/mps.capable": "true"})
    );
    for name in ["mps-root", "mps-shm"] {
        let volume = |template: &Value| {
            array(&template["spec"]["volumes"])
                .find(|volume| volume["name"] == name)
                .cloned()
        };
        let path = |template: &Value| {
            array(&template["spec"]["containers"][0]["volumeMounts"])
                .find(|mount| mount["name"] == name)
                .map(|mount| mount["mountPath"].clone())
        };
        assert!(volume(daemon).is_some(), "{name}");
        assert_eq!(volume(plugin), volume(daemon));
        assert!(path(daemon).is_some(), "{name}");
        assert_eq!(path(plugin), path(daemon));
    }
    let quota = &find(&documents, "ResourceQuota", "gpus")["spec"]["hard"];
    assert_eq!(*quota, json!({"requests.nvidia.com/gpu": "32"}));

    // Without MPS, there is no daemon. Without a cluster, it runs on the host, where no device plugin finds it.
    let others = Written::with(KUBEADM).texts();
    assert!(!others.contains_key("35-mps-control-daemon.yaml"));
    let refused = Written::new();
    let output = refused.write("sharing = { method = \"mps\", replicas = 4 }\n");
    assert_eq!(output.status.code(), Some(3));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("cluster.join"), "{said}");
}

/// The DRA driver replaces the device plugin and its resource names.
#[test]
fn dra_driver_replaces_the_device_plugin() {
    const DRA: &str =
        "cluster = { join = \"managed\", gpu-allocation = \"dra\", mig-strategy = \"mixed\" }\n";
    for (layout, classes, requested) in [
        ("", json!({"gpu.nvidia.com": 8}), "gpu.nvidia.com"),
        // 16 + 8 + 8 devices of three profiles.
        (
            "mig.layout = \"all-balanced\"\n",
            json!({"mig.nvidia.com": 32}),
            "mig.nvidia.com",
        ),
    ] {
        // Without a layout, the MIG devices are unknown with the strategy `mixed`.
        let settings = match layout {
            "" => DRA.replace("mixed", "none"),
            layout => format!("{DRA}{layout}"),
        };
        let written = Written::new();
        let output = written.write_for(&settings, "p5.48xlarge");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        assert!(said.contains("test/gpu-claim.yaml\n"), "{said}");
        for (path, text) in written.texts() {
            assert!(!path.contains("device-plugin"), "{path}");
            assert!(!text.contains("requests.nvidia.com"), "{path}: {text}");
        }
        let documents = written.documents();
        is_complete(&documents, &BUILT_IN);

        let hard = &find(&documents, "ResourceQuota", "gpus")["spec"]["hard"];
        let group = &find(&documents, "ClusterQueue", "gpus")["spec"]["resourceGroups"][0];
        for (class, count) in classes.as_object().expect("classes") {
            let quota = format!("{class}.deviceclass.resource.k8s.io/devices");
            assert_eq!(*hard, json!({quota: count.to_string()}));
            let queue = json!({"name": class, "nominalQuota": count});
            let mut resources = array(&group["flavors"][0]["resources"]);
            assert!(resources.any(|one| *one == queue), "{group}");
            let capability = &find(&documents, "Queue", "gpus")["spec"]["capability"];
            assert_eq!(*capability, json!({format!("deviceclass/{class}"): count}));
        }
        let template = find(&documents, "ResourceClaimTemplate", "gpu-test");
        let shared = find(&documents, "ResourceClaim", "shared-gpu");
        for devices in [
            &template["spec"]["spec"]["devices"],
            &shared["spec"]["devices"],
        ] {
            assert_eq!(
                devices["requests"][0]["exactly"]["deviceClassName"],
                requested
            );
        }
        let test = &find(&documents, "Pod", "gpu-test")["spec"];
        assert_eq!(
            test["resourceClaims"][0]["name"],
            test["containers"][0]["resources"]["claims"][0]["name"]
        );
        assert!(test["runtimeClassName"].is_null(), "{test}");
        let plugin =
            &find(&documents, "DaemonSet", "nvidia-dra-driver")["spec"]["template"]["spec"];
        assert_eq!(
            plugin["nodeSelector"],
            json!({"nvidia.com/gpu.present": "true"})
        );
        // The program requires the name of its image.
        let container = &plugin["containers"][0];
        let image = json!({"name": "IMAGE_NAME", "value": container["image"]});
        assert!(array(&container["env"]).any(|one| *one == image));
    }

    // Settings that only the device plugin has, and IMEX by another program of the DRA driver.
    for (settings, code, part) in [
        (
            "sharing = { method = \"time-slicing\", replicas = 2 }",
            3,
            "ResourceClaim",
        ),
        (
            "sharing = { method = \"mps\", replicas = 2 }",
            3,
            "ResourceClaim",
        ),
        ("cluster.mig-strategy = \"single\"", 3, "device class"),
        ("fabric.imex = \"dra\"", 0, "resources.gpus.enabled=false"),
    ] {
        let settings =
            format!("cluster.join = \"managed\"\ncluster.gpu-allocation = \"dra\"\n{settings}\n");
        let output = Written::new().write(&settings);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(said.contains(part), "{said}");
    }
}

#[test]
fn exporter_is_omitted_if_dcgm_is_on_the_host() {
    let settings = "driver.source = \"nvidia\"\ndcgm.enabled = true\n";
    let texts = Written::with(settings).texts();
    assert!(texts.contains_key("30-device-plugin.yaml"));
    assert!(!texts.contains_key("40-dcgm-exporter.yaml"));
}

#[test]
fn runtime_class_is_created_only_if_required() {
    let eks = Written::with(EKS).documents();
    is_complete(&eks, &BUILT_IN);
    let classes = eks
        .iter()
        .filter_map(|(_, one)| pod(one))
        .filter(|pod| pod["runtimeClassName"].is_string());
    assert_eq!(classes.count(), 0);
    let documents = Written::with(K3S).documents();
    let k3s = [BUILT_IN[0], ("RuntimeClass", "nvidia")];
    is_complete(&documents, &k3s);
    assert!(
        documents
            .iter()
            .all(|(_, one)| one["kind"] != "RuntimeClass")
    );
    let quota = &find(&documents, "ResourceQuota", "gpus")["spec"]["hard"];
    assert_eq!(*quota, json!({"requests.nvidia.com/gpu": "8"}));
}

/// Without a cluster in the settings, no node has our labels, so the pods must not require them. With MIG, the device plugin needs
/// more permissions.
#[test]
fn other_settings_result_in_complete_manifests() {
    let written = Written::with("cluster.mig-strategy = \"mixed\"\n");
    let documents = written.documents();
    is_complete(&documents, &BUILT_IN);
    let plugin = &find(&documents, "DaemonSet", "nvidia-device-plugin")["spec"]["template"]["spec"];
    assert!(plugin["nodeSelector"].is_null(), "{plugin}");
    let container = &plugin["containers"][0];
    assert_eq!(
        container["securityContext"]["capabilities"],
        json!({"add": ["SYS_ADMIN"]})
    );
    let config = &find(&documents, "ConfigMap", "nvidia-device-plugin")["data"]["config.yaml"];
    assert_eq!(*config, "version: v1\nflags:\n  migStrategy: mixed\n");
}

/// With the strategy `mixed`, a partitioned node does not offer `nvidia.com/gpu`.
#[test]
fn test_pod_requests_a_resource_of_the_layout() {
    let mixed = "cluster.mig-strategy = \"mixed\"\n";
    let single = "cluster.mig-strategy = \"single\"\n";
    let layout = |name: &str| format!("mig.layout = \"{name}\"\n");
    let unknown = "MIG devices are unknown";
    for (settings, quota, requested, warning) in [
        (
            format!("{mixed}{}", layout("all-balanced")),
            json!({"requests.nvidia.com/mig-1g.10gb": "16", "requests.nvidia.com/mig-2g.20gb": "8",
                   "requests.nvidia.com/mig-3g.40gb": "8"}),
            Some("nvidia.com/mig-1g.10gb"),
            false,
        ),
        (
            format!("{single}{}", layout("all-1g.10gb")),
            json!({"requests.nvidia.com/gpu": "56"}),
            Some("nvidia.com/gpu"),
            false,
        ),
        (
            format!("{mixed}{}", layout("all-enabled")),
            json!({"requests.nvidia.com/gpu": "8"}),
            None,
            true,
        ),
        (
            single.to_owned(),
            json!({"requests.nvidia.com/gpu": "8"}),
            Some("nvidia.com/gpu"),
            true,
        ),
    ] {
        let written = Written::new();
        let output = written.write_for(&settings, "p5.48xlarge");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        assert_eq!(said.contains(unknown), warning, "{said}");
        let documents = written.documents();
        let hard = &find(&documents, "ResourceQuota", "gpus")["spec"]["hard"];
        assert_eq!(*hard, quota, "{settings}");
        let pods = documents.iter().filter(|(_, one)| one["kind"] == "Pod");
        let limits = pods.map(|(_, pod)| &pod["spec"]["containers"][0]["resources"]["limits"]);
        let expected = requested.map(|name| json!({name: 1}));
        assert_eq!(
            limits.collect::<Vec<_>>(),
            expected.iter().collect::<Vec<_>>(),
            "{settings}"
        );
        let suggested = said.contains("test/gpu-pod.yaml\n");
        assert_eq!(suggested, requested.is_some(), "{said}");
    }
}

#[test]
fn layout_that_the_strategy_does_not_offer_is_rejected() {
    let settings = "cluster.mig-strategy = \"single\"\nmig.layout = \"all-balanced\"\n";
    let output = Written::new().write_for(settings, "p5.48xlarge");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(5), "{said}");
    assert!(said.contains("cluster.mig-strategy = \"mixed\""), "{said}");
    assert!(!said.contains("--os"), "{said}");
}

#[test]
fn edited_and_foreign_files_are_not_overwritten() {
    let written = Written::with("");
    let said = |output: &Output| {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (
            output.status.code(),
            text(&output.stdout),
            text(&output.stderr),
        )
    };
    let (code, again, _) = said(&written.write(""));
    assert_eq!(code, Some(0));
    assert!(
        again.lines().all(|line| line.starts_with("unchanged ")),
        "{again}"
    );
    // A file of this command follows the settings.
    let shared = "sharing = { method = \"time-slicing\", replicas = 2 }\n";
    let (code, changed, _) = said(&written.write(shared));
    assert_eq!(code, Some(0));
    let has = |done: &str, name: &str| {
        (changed.lines()).any(|line| line.starts_with(done) && line.ends_with(name))
    };
    assert!(has("written ", "/30-device-plugin.yaml"), "{changed}");
    assert!(has("unchanged ", "/10-namespace.yaml"), "{changed}");

    let before = written.texts();
    let path = |name: &str| written.directory.path().join("out").join(name);
    let quota = "policies/30-resource-quota.yaml";
    let edited = before[quota].replace("\"16\"", "\"4\"");
    assert_ne!(edited, before[quota]);
    fs::write(path(quota), &edited).expect("written");
    fs::write(path("10-namespace.yaml"), "kind: Namespace\n").expect("written");
    let (code, _, error) = said(&written.write(""));
    assert_eq!(code, Some(5), "{error}");
    for part in [
        "10-namespace.yaml` was not written by this command",
        "30-resource-quota.yaml` was edited",
        "hint: ",
    ] {
        // Messages are wrapped.
        let error = error.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(error.contains(part), "{error}");
    }
    // No file was written, also not the files that differ from the settings.
    let after = written.texts();
    assert_eq!(
        after["30-device-plugin.yaml"],
        before["30-device-plugin.yaml"]
    );
    assert_eq!(after[quota], edited);
}

/// The page for users must not promise more than `images.toml`.
#[test]
fn unverified_images_are_documented() {
    let images: toml::Table = fs::read_to_string("manifests/images.toml")
        .expect("the table")
        .parse()
        .expect("TOML");
    let page = fs::read_to_string("docs/share-a-gpu.md").expect("the page");
    for (name, row) in images {
        let image = row["image"].as_str().expect("an image");
        assert!(row["source"].is_str(), "{name}");
        let is_listed = page
            .lines()
            .any(|line| line.contains(image) && line.contains("not pulled"));
        assert_eq!(is_listed, row.get("unverified").is_some(), "{name}");
    }
}
