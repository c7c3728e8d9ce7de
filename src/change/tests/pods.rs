//! The pod that proves a GPU in the cluster.

use std::sync::Mutex;

use super::kit::TestMachine;
use crate::{
    change::{Change, PodProbe, Probe, ProofRecord, Reverted},
    error::Report,
    host::{
        ReadFiles, digest,
        fake::{failed, ok},
    },
    tools::{
        container_view::ContainerView,
        probe::{LayerFault, Layers, ProbeDocument, ProbeLayer, ProbedDevice},
    },
};

const RECORD: &str = "/var/lib/gpu-bootstrap/proofs/pod";
/// Where the API server of these tests keeps the manifest of the pod.
const MADE: &str = "/made";
const IMAGE: &str = "docker.io/gpu-bootstrap/probe:local";

fn pod() -> Change {
    Change::RunProbe {
        probe: Probe::PodSeesGpu(PodProbe {
            node: "gpu-1".parse().expect("a name"),
            namespace: "default".into(),
            access: "/etc/gpu-bootstrap/cluster.kubeconfig".into(),
            nvidia_default: false,
            driver: "1.2".into(),
            uuids: vec!["GPU-a".into(), "GPU-b".into()],
            timeout_seconds: 5,
        }),
        record: RECORD.into(),
        inputs: "driver=1.2\n".into(),
        again: false,
    }
}

/// What the pod prints; a layer may fail in it.
fn log(layers: Layers) -> String {
    let view = ContainerView {
        devices: vec!["nvidia1".into(), "nvidiactl".into()],
        libraries: vec!["/x/libcuda.so.1.2".into(), "/x/libnvidia-ml.so.1.2".into()],
        probe: Some(ProbeDocument {
            devices: vec![ProbedDevice {
                uuid: "GPU-b".into(),
                index: 0,
                mig_index: None,
                pci_address: None,
                work: None,
                fault: None,
                remedy: None,
            }],
            ..layers.document()
        }),
    };
    serde_json::to_string_pretty(&view).expect("JSON")
}

fn terminated() -> String {
    r#"{"phase": "Succeeded", "containerStatuses": [{"state": {"terminated": {"exitCode": 0}}}]}"#
        .to_owned()
}

/// A node that offers this many GPUs, and whose pod gets this status once it is made.
fn node(gpus: &'static str, status: String, log: String) -> TestMachine {
    let machine = TestMachine::new();
    let files = &machine.fakes.files;
    for (path, text) in [
        ("/usr/bin/kubectl", ""),
        (
            "/etc/kubernetes/kubelet.conf",
            "clusters: [{name: c, cluster: {server: 'https://10.0.0.1:6443'}}]",
        ),
        (
            "/proc/self/maps",
            "1-2 r--p 0 fe:01 7 /usr/bin/gpu-bootstrap\n\
             3-4 r--p 0 fe:01 9 /usr/lib/ld-linux-x86-64.so.2\n",
        ),
        ("/proc/self/exe", "program"),
        ("/usr/lib/ld-linux-x86-64.so.2", "loader"),
        (RECORD, "driver=1.1\n"),
    ] {
        files.put(path, text);
    }
    files.put_mode("/etc/gpu-bootstrap/cluster.kubeconfig", "", 0o600);
    let exec = &machine.fakes.exec;
    exec.on("tar", |cmd, files| {
        files.put(&cmd.args[1]["--file=".len()..], "archive");
        ok("")
    });
    exec.on("ctr", |cmd, _| match cmd.args[2].as_str() {
        "list" => ok(format!("{IMAGE}\n")),
        _ => ok(""),
    });
    exec.on("journalctl", |_, _| ok("kubelet: no network\n"));
    let (is_made, is_kubelet_away) = (Mutex::new(false), Mutex::new(true));
    exec.on("/usr/bin/kubectl", move |cmd, files| {
        let mut is_made = is_made.lock().unwrap();
        match (cmd.args[2].as_str(), cmd.args[3].as_str()) {
            ("get", "node") => ok(format!(
                r#"{{"metadata": {{}}, "status": {{"allocatable": {{{gpus}}}}}}}"#
            )),
            ("get", "pod") if !*is_made => ok(""),
            ("get", "pod") => ok(format!(r#"{{"status": {status}}}"#)),
            ("get", "runtimeclass") => failed(1, "Error from server (NotFound)"),
            ("create", _) => {
                *is_made = true;
                files.put(MADE, cmd.stdin.as_ref().expect("a manifest").expose());
                ok("")
            }
            ("logs", _) if std::mem::take(&mut *is_kubelet_away.lock().unwrap()) => {
                failed(1, "Error from server: no route to host")
            }
            ("logs", _) => ok(log.clone()),
            _ => ok(""),
        }
    });
    machine
}

fn offering(status: String, log: String) -> TestMachine {
    node(r#""nvidia.com/gpu": "2""#, status, log)
}

fn ran(machine: &TestMachine, part: &str) -> usize {
    let lines = machine.fakes.exec.lines();
    lines.iter().filter(|line| line.contains(part)).count()
}

#[tokio::test]
async fn a_pod_that_computes_leaves_its_record_and_nothing_else() {
    let machine = offering(terminated(), log(Layers::default()));
    let undo = machine.apply(&pod()).await.expect("it computes");
    let record = ProofRecord::parse(&machine.fakes.files.text(RECORD));
    assert_eq!(record.inputs, "driver=1.2\n");
    // One before it, from a run that was cut off, and the own one.
    assert_eq!(
        ran(&machine, "--wait=false -- gpu-bootstrap-probe-gpu-1"),
        2
    );
    assert_eq!(
        ran(&machine, &format!("images remove --sync -- {IMAGE}")),
        1
    );
    assert_eq!(ran(&machine, "images import"), 1);
    // The undo asks neither cluster nor runtime, which may be gone by then.
    machine.fakes.exec.forget("/usr/bin/kubectl");
    machine.fakes.exec.forget("ctr");
    machine.revert(&undo).await;
}

#[tokio::test]
async fn each_cause_is_told_apart_and_the_pod_goes() {
    let mut layers = Layers::default();
    layers.fail(LayerFault {
        layer: ProbeLayer::Cuda,
        why: "`cuInit` returned 803".into(),
        remedy: "make the specification anew".into(),
    });
    let waiting = |reason: &str| {
        format!(
            r#"{{"phase": "Pending", "containerStatuses": [{{"state": {{"waiting": {{"reason": "{reason}"}}}}}}]}}"#
        )
    };
    let refused = r#"{"phase": "Failed", "reason": "OutOfnvidia.com/gpu"}"#.to_owned();
    for (status, log, reason, part) in [
        (
            waiting("ErrImageNeverPull"),
            String::new(),
            "image-missing",
            "ErrImageNeverPull",
        ),
        (
            waiting("ContainerCreating"),
            String::new(),
            "pod-not-in-time",
            "kubelet: no network",
        ),
        (refused, String::new(), "pod-refused", "OutOfnvidia.com/gpu"),
        (
            terminated(),
            log(layers),
            "container-cannot-compute",
            "CUDA: `cuInit` returned 803",
        ),
        (
            terminated(),
            "exec format error\n".to_owned(),
            "container-cannot-compute",
            "exec format error",
        ),
    ] {
        let machine = offering(status, log);
        let error = machine.apply(&pod()).await.expect_err("no proof");
        assert_eq!(error.reason(), reason, "{error}");
        assert!(error.to_string().contains(part), "{error}");
        assert!(error.hint().is_some());
        assert_eq!(
            ran(&machine, "--wait=false -- gpu-bootstrap-probe-gpu-1"),
            2
        );
        assert_eq!(
            ran(&machine, &format!("images remove --sync -- {IMAGE}")),
            1
        );
        assert!(!machine.fakes.files.exists(RECORD.into()).unwrap());
    }
}

#[tokio::test]
async fn without_a_device_plugin_no_pod_is_made() {
    for (gpus, part) in [
        ("", "no device plugin"),
        (r#""nvidia.com/gpu": "0""#, "no device plugin"),
        (
            r#""nvidia.com/mig-1g.10gb": "7""#,
            "but 7 nvidia.com/mig-1g.10gb",
        ),
    ] {
        let machine = node(gpus, terminated(), String::new());
        let error = machine.apply(&pod()).await.expect_err("no GPU");
        assert_eq!(error.reason(), "no-device-plugin");
        assert!(error.to_string().contains(part), "{error}");
        assert_eq!(ran(&machine, " create "), 0);
    }
}

#[tokio::test]
async fn a_kubelet_that_is_away_for_a_moment_loses_no_log() {
    let machine = offering(terminated(), log(Layers::default()));
    machine.apply(&pod()).await.expect("it computes");
    assert_eq!(
        ran(
            &machine,
            " logs --namespace=default -- gpu-bootstrap-probe-gpu-1"
        ),
        2
    );
}

#[tokio::test]
async fn a_shared_gpu_is_asked_for_by_its_name() {
    let shared = r#""nvidia.com/gpu.shared": "32""#;
    let machine = node(shared, terminated(), log(Layers::default()));
    machine.apply(&pod()).await.expect("it computes");
    let made = machine.fakes.files.text(MADE);
    assert!(made.contains("nvidia.com/gpu.shared"), "{made}");
}

#[tokio::test]
async fn the_pod_of_a_probe_that_was_cut_off_is_deleted() {
    let machine = offering(terminated(), String::new());
    machine
        .fakes
        .files
        .put_mode("/etc/gpu-bootstrap/cluster.kubeconfig", "", 0o600);
    // The kubelet has named the image by its digest, too.
    let config = "{}";
    let digest = format!("sha256:{}", digest::sha256(config.as_bytes()));
    machine
        .fakes
        .files
        .put("/var/lib/gpu-bootstrap/probe/image/config.json", config);
    let listed = format!("{IMAGE}\n{digest}\n");
    machine.fakes.exec.on("ctr", move |_, _| ok(listed.clone()));
    let undo = (machine.applier.capture(&pod()).await).expect("an undo");
    let reverted = machine.revert(&undo).await;
    assert!(matches!(reverted, Reverted::Done { .. }), "{reverted:?}");
    assert_eq!(
        ran(&machine, "--wait=false -- gpu-bootstrap-probe-gpu-1"),
        1
    );
    for image in [IMAGE, &digest] {
        assert_eq!(
            ran(&machine, &format!("images remove --sync -- {image}")),
            1
        );
    }
    // Without containerd its images are gone.
    machine.fakes.exec.forget("ctr");
    let reverted = machine.revert(&undo).await;
    assert!(matches!(reverted, Reverted::Done { .. }), "{reverted:?}");
    // Without kubectl nobody can delete the pod, and a containerd that does not answer keeps the image.
    machine.fakes.exec.forget("/usr/bin/kubectl");
    machine.fakes.files.take("/usr/bin/kubectl");
    (machine.fakes.exec).on("ctr", |_, _| failed(1, "connection refused"));
    let Reverted::Left { what, why } = machine.revert(&undo).await else {
        panic!("both stay");
    };
    assert!(
        what.contains("the pod") && what.contains("the image"),
        "{what}"
    );
    assert!(
        why.contains("kubectl is gone") && why.contains("connection refused"),
        "{why}"
    );
}
