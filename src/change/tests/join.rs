//! Tests joining a cluster, failing to join, and leaving.

use std::sync::{Arc, Mutex};

use tokio_util::sync::CancellationToken;

use super::kit::TestMachine;
use crate::{
    change::{ApplyChanges, Change, Join, Reverted, Undo},
    error::Report,
    host::{
        Output,
        fake::{FakeFiles, failed, ok},
    },
    joins::{Discovery, JoinMethod},
    model::{kubernetes::Labels, token::TokenSource},
    tools::kubernetes::kubeconfig::tests::NODE_CERTIFICATE,
};

pub(super) const TOKEN: &str = "abcdef.0123456789abcdef";
const TOKEN_FILE: &str = "/etc/gpu-bootstrap/join-token";
pub(super) const KUBELET_CONF: &str = "/etc/kubernetes/kubelet.conf";
const CA: &str = "/etc/kubernetes/pki/ca.crt";
/// A kubelet kubeconfig.
pub(super) const KUBECONFIG: &str =
    "clusters: [{name: c, cluster: {server: 'https://10.0.0.1:6443'}}]";
/// The kubeconfig of another cluster.
const ANOTHER: &str = "clusters: [{name: c, cluster: {server: 'https://10.9.9.9:6443'}}]";
/// The file with the machine ID, which the kubelet reports as `systemUUID`.
pub(super) const PRODUCT_UUID: &str = "/sys/class/dmi/id/product_uuid";
pub(super) const UUID: &str = "EC2E1916-9099-7CAF-FD21-012345ABCDEF";
pub(super) const ACCESS: &str = "/etc/gpu-bootstrap/cluster.kubeconfig";
/// A CA certificate, created with `openssl req -x509 -subj /CN=kubernetes`.
const AUTHORITY: &str = "\
-----BEGIN CERTIFICATE-----\n\
MIIBgDCCASegAwIBAgIUI59va9JJnyUdEcRTv6U4aG3WBbIwCgYIKoZIzj0EAwIw\n\
FTETMBEGA1UEAwwKa3ViZXJuZXRlczAgFw0yNjExMjUyMTE2NTRaGA8yMTI2MTEw\n\
MTIxMTY1NFowFTETMBEGA1UEAwwKa3ViZXJuZXRlczBZMBMGByqGSM49AgEGCCqG\n\
SM49AwEHA0IABIacr8GVYhkAdchmd8ddVHPmuktlcO5YAGk+p83LXb8krT/aGuZ6\n\
0nZpPNDB1X1SNMs+XfDI1/V8Qc+aM2eN5iqjUzBRMB0GA1UdDgQWBBRxNdduh46W\n\
MQc9Ew1iz+/rZh4aHTAfBgNVHSMEGDAWgBRxNdduh46WMQc9Ew1iz+/rZh4aHTAP\n\
BgNVHRMBAf8EBTADAQH/MAoGCCqGSM49BAMCA0cAMEQCIAqXhZnGdR3cTGrKvtqy\n\
F68aZ9GvRFnAvCiqhTJNzWc0AiA7qfaM79Yg3CLPjO3iFyYUMxxWwmk2p+GYluy2\n\
nmQOsQ==\n\
-----END CERTIFICATE-----\n\
";
const JOINING: &str = "/var/lib/gpu-bootstrap/joining";
pub(super) const CONFIGURATION: &str = "/run/gpu-bootstrap/kubeadm-join.yaml";

pub(super) fn join(method: JoinMethod) -> Change {
    Change::JoinCluster {
        join: Join {
            method,
            node: "gpu-1".parse().expect("a name"),
            labels: Labels::from([("team".to_owned(), "research".to_owned())]),
            taints: vec![],
            access: None,
            timeout_seconds: 5,
        },
    }
}

fn by_kubeadm() -> Change {
    join(JoinMethod::Kubeadm {
        discovery: Discovery::Token {
            server: "10.0.0.1:6443".to_owned(),
            token_source: TokenSource::File(TOKEN_FILE.into()),
            ca_cert_hashes: vec!["sha256:00".to_owned()],
        },
        socket: "unix:///run/containerd/containerd.sock".to_owned(),
        ignore_preflight_errors: vec![],
    })
}

/// A machine with a token, whose `kubeadm join` calls `joins` and whose `kubeadm reset` removes the files of a node. Also
/// returns the configuration of each `kubeadm join`.
pub(super) fn machine(
    joins: impl Fn(&FakeFiles) -> Output + Send + Sync + 'static,
) -> (TestMachine, Arc<Mutex<Vec<String>>>) {
    let machine = TestMachine::new();
    machine
        .fakes
        .files
        .put_directory("/run/gpu-bootstrap", 0o755);
    machine
        .fakes
        .files
        .put_mode(TOKEN_FILE, format!("{TOKEN}\n"), 0o600);
    let configurations = Arc::new(Mutex::new(Vec::new()));
    let seen = configurations.clone();
    machine.fakes.exec.on("kubeadm", move |cmd, files| {
        if cmd.args[0] == "reset" {
            for path in [KUBELET_CONF, CA, "/etc/kubernetes/bootstrap-kubelet.conf"] {
                files.take(path);
            }
            return ok("");
        }
        seen.lock().unwrap().push(files.text(CONFIGURATION));
        joins(files)
    });
    (machine, configurations)
}

#[tokio::test]
async fn kubeadm_gets_temporary_token_file_and_can_leave() {
    let (machine, configurations) = machine(|files| {
        files.put_directory("/etc/kubernetes/pki", 0o755);
        files.put(KUBELET_CONF, KUBECONFIG);
        files.put(CA, "-----BEGIN");
        ok("This node has joined the cluster")
    });
    let before = machine.snapshot();
    let undo = machine.apply(&by_kubeadm()).await.expect("joined");
    let configurations = configurations.lock().unwrap().clone();
    assert!(configurations.len() == 1 && configurations[0].contains(TOKEN));
    // The token is registered as a secret, although its file may be written after the run has read its settings.
    assert!(machine.applier.secrets.are_in(TOKEN));
    assert!(
        machine
            .fakes
            .exec
            .lines()
            .iter()
            .all(|line| !line.contains(TOKEN))
    );
    let left = machine.revert(&undo).await;
    // Without a kubeconfig for it, the node object cannot be deleted.
    assert!(
        matches!(&left, Reverted::Left { what, .. } if what.contains("kubectl delete node gpu-1")),
        "{left:?}"
    );
    assert_eq!(
        crate::host::fake::diff(&before, &machine.snapshot()),
        [""; 0]
    );
    let again = machine.revert(&undo).await;
    assert!(matches!(again, Reverted::Nothing { .. }), "{again:?}");
}

#[tokio::test]
async fn each_join_failure_has_a_reason() {
    for (said, reason, retryable) in [
        (
            "error: could not find a JWS signature in the cluster-info ConfigMap for token ID \"abcdef\"",
            "join-token-unknown",
            false,
        ),
        (
            "error: failed to verify JWS signature of received cluster info object",
            "join-token-wrong",
            false,
        ),
        (
            "error: cluster CA found in cluster-info ConfigMap is invalid: none of the public keys \"sha256:1\" are pinned",
            "join-ca-wrong",
            false,
        ),
        (
            "error: dial tcp 10.0.0.1:6443: connect: connection refused",
            "join-unreachable",
            true,
        ),
        (
            "error: the server is currently unable to handle the request",
            "join-unavailable",
            true,
        ),
        ("error: x is forbidden: User y", "join-not-allowed", true),
        // Retryable, because the signature of `cluster-info` has already validated the token.
        ("error: x: Unauthorized", "join-not-allowed", true),
        (
            "error: tls: failed to verify certificate: x509: certificate has expired or is not yet valid",
            "join-clock",
            true,
        ),
        (
            "waits at 127.0.0.1:10248\nerror: failed while waiting for TLS bootstrap: context deadline exceeded",
            "join-no-certificate",
            false,
        ),
        (
            "error: The HTTP call equal to 'curl -sSL http://127.0.0.1:10248/healthz' returned error",
            "join-kubelet",
            false,
        ),
        (
            "error: [preflight] Some fatal errors occurred:\n\t[ERROR Port-10250]: Port 10250 is in use",
            "join-preflight",
            false,
        ),
        ("error: something else", "join-failed", false),
    ] {
        let (machine, _) = machine(move |files| {
            files.put(CA, "-----BEGIN");
            failed(1, said)
        });
        machine
            .fakes
            .exec
            .on("journalctl", |_, _| ok("the kubelet's words"));
        let error = machine.apply(&by_kubeadm()).await.expect_err(said);
        assert_eq!(
            (error.reason(), error.is_retryable()),
            (reason, retryable),
            "{error}"
        );
        assert!(error.hint().is_some(), "{reason}");
        let log = (reason == "join-kubelet").then_some("the kubelet's words");
        assert_eq!(error.words.as_deref(), log, "{reason}");
        for path in [CA, CONFIGURATION] {
            assert!(
                !machine.host.files.exists(path.into()).unwrap(),
                "{reason}: {path}"
            );
        }
    }
}

/// A CA certificate that we did not create is kept.
#[tokio::test]
async fn existing_files_are_kept_after_a_failure() {
    for ignored in [false, true] {
        let (machine, _) = machine(|_| failed(1, "error: x"));
        machine.fakes.files.put(CA, "mine");
        let mut change = by_kubeadm();
        if let Change::JoinCluster { join } = &mut change
            && let JoinMethod::Kubeadm {
                ignore_preflight_errors,
                ..
            } = &mut join.method
            && ignored
        {
            ignore_preflight_errors.push("FileAvailable--etc-kubernetes-pki-ca.crt".to_owned());
        }
        let error = machine.apply(&change).await.expect_err("refused");
        assert_eq!(machine.fakes.files.text(CA), "mine");
        let ran = (machine.fakes.exec.lines().iter()).any(|line| line.starts_with("kubeadm"));
        assert_eq!(ran, ignored);
        if !ignored {
            assert_eq!(error.reason(), "join-begun");
            assert!(
                error.to_string().contains(&format!("`{CA}` is left")),
                "{error}"
            );
        }
    }
}

#[tokio::test]
async fn only_our_own_interrupted_join_is_reset() {
    for ours in [true, false] {
        let (machine, configurations) = machine(|files| {
            files.put(KUBELET_CONF, KUBECONFIG);
            ok("")
        });
        let begun = "/etc/kubernetes/bootstrap-kubelet.conf";
        machine.fakes.files.put(begun, KUBECONFIG);
        if ours {
            machine.fakes.files.put(JOINING, "");
        }
        let joined = machine.apply(&by_kubeadm()).await;
        let lines = machine.fakes.exec.lines();
        let kubeadm: Vec<&str> = (lines.iter())
            .filter_map(|line| line.strip_prefix("kubeadm ")?.split(' ').next())
            .collect();
        if ours {
            joined.expect("joined");
            assert_eq!(kubeadm, ["reset", "join"]);
            assert_eq!(configurations.lock().unwrap().len(), 1);
            assert!(!machine.host.files.exists(JOINING.into()).unwrap());
        } else {
            assert_eq!(joined.expect_err("not ours").reason(), "join-begun");
            assert_eq!(kubeadm, [""; 0]);
            assert_eq!(machine.fakes.files.text(begun), KUBECONFIG);
        }
    }
}

/// gpu-bootstrap was killed while kubeadm was running.
#[tokio::test]
async fn token_of_an_interrupted_join_is_removed() {
    for has_joined in [true, false] {
        let (machine, _) = machine(|_| ok(""));
        let undo = machine.applier.capture(&by_kubeadm()).await.unwrap();
        machine.fakes.files.put_mode(CONFIGURATION, TOKEN, 0o600);
        machine.fakes.files.put(JOINING, "");
        if has_joined {
            machine.fakes.files.put(KUBELET_CONF, KUBECONFIG);
        }
        let exact = machine.applier.reconcile(&undo, &machine.sink).await;
        assert_eq!(exact.expect("exact").is_nothing(), !has_joined);
        let exists = |path: &str| machine.host.files.exists(path.into()).unwrap();
        assert!(!exists(CONFIGURATION));
        // If the machine has not joined, the marker remains, so that the next attempt may reset the rest of this one.
        assert_eq!(exists(JOINING), !has_joined);
    }
}

/// `kubeadm reset` would delete the certificates and the database of the cluster.
#[tokio::test]
async fn control_plane_is_never_reset() {
    for mark in [
        "/etc/kubernetes/manifests/etcd.yaml",
        "/etc/kubernetes/pki/ca.key",
        "/var/lib/etcd/member/snap/db",
    ] {
        let (machine, _) = machine(|files| {
            files.put(KUBELET_CONF, KUBECONFIG);
            ok("")
        });
        // A worker may have this directory without manifests.
        let manifests = "/etc/kubernetes/manifests";
        machine.fakes.files.put_directory(manifests, 0o755);
        let undo = machine.apply(&by_kubeadm()).await.expect("joined");
        machine.fakes.files.put(mark, "");
        let error = (machine.applier.revert(&undo, &machine.sink).await).expect_err(mark);
        assert_eq!(error.reason(), "control-plane");
        machine.fakes.files.take(KUBELET_CONF);
        let error = machine.apply(&by_kubeadm()).await.expect_err(mark);
        assert_eq!(error.reason(), "control-plane");
        assert!(
            machine
                .fakes
                .exec
                .lines()
                .iter()
                .all(|line| !line.contains("reset"))
        );
    }
}

/// Sets up a kubectl that returns this result of `drain` and finds the node. Returns a join with a kubeconfig for the node
/// object.
pub(super) fn with_access(
    machine: &TestMachine,
    drain: impl Fn() -> Output + Send + Sync + 'static,
) -> Change {
    machine.fakes.files.put_mode(ACCESS, KUBECONFIG, 0o600);
    machine.fakes.files.put("/usr/bin/kubectl", "");
    machine.fakes.exec.on("/usr/bin/kubectl", move |cmd, _| {
        if cmd.args.contains(&"drain".to_owned()) {
            return drain();
        }
        ok(format!(r#"{{"metadata": {{"name": "gpu-1"}}, "status": {{"nodeInfo": {{"systemUUID": "{UUID}"}}}}}}"#))
    });
    machine.fakes.files.put(PRODUCT_UUID, UUID);
    match by_kubeadm() {
        Change::JoinCluster { join } => Change::JoinCluster {
            join: Join {
                access: Some(ACCESS.into()),
                ..join
            },
        },
        other => panic!("{other:?}"),
    }
}

pub(super) fn kubectl(machine: &TestMachine, verb: &str) -> bool {
    let lines = machine.fakes.exec.lines();
    (lines.iter()).any(|line| line.starts_with("/usr/bin/kubectl") && line.contains(verb))
}

/// Another machine in the cluster may have this name.
#[tokio::test]
async fn failed_join_deletes_no_node() {
    let (machine, _) = machine(|_| {
        failed(
            1,
            "error: a Node with name \"gpu-1\" and status \"Ready\" already exists",
        )
    });
    let change = with_access(&machine, || ok(""));
    let undo = machine.applier.capture(&change).await.unwrap();
    let _error = machine
        .applier
        .apply(&change, undo.clone(), &machine.sink)
        .await
        .expect_err("refused");
    let exact = (machine.applier.reconcile(&undo, &machine.sink).await).expect("exact");
    assert!(exact.is_nothing(), "{exact:?}");
    for undo in [undo, exact] {
        machine.revert(&undo).await;
    }
    assert!(!kubectl(&machine, " drain ") && !kubectl(&machine, " delete "));
}

/// A matching name is not sufficient: this machine may be a clone, or the kubeconfig may now point to another cluster.
#[tokio::test]
async fn node_of_another_machine_is_not_deleted() {
    let authority = |pem: &str| {
        use base64::{Engine, engine::general_purpose::STANDARD};
        let data = STANDARD.encode(pem);
        format!(
            "clusters: [{{name: c, cluster: {{server: 'https://10.0.0.1:6443', certificate-authority-data: {data}}}}}]"
        )
    };
    let known = r#"{"systemUUID": "AAAA-1"}"#;
    for (uuid, theirs, access, why) in [
        ("aaaa-1\n", known, AUTHORITY, ""),
        (
            "BBBB-2\n",
            known,
            AUTHORITY,
            "has the machine ID AAAA-1, but this machine has BBBB-2",
        ),
        (
            "AAAA-1\n",
            "{}",
            AUTHORITY,
            "the machine ID of the node is unknown",
        ),
        (
            "\n",
            r#"{"systemUUID": ""}"#,
            AUTHORITY,
            "the machine ID of the node is unknown",
        ),
        ("AAAA-1\n", known, NODE_CERTIFICATE, "certificate authority"),
    ] {
        let kubelet = authority(AUTHORITY);
        let (machine, _) = machine(move |files| {
            files.put(KUBELET_CONF, kubelet.clone());
            ok("")
        });
        let change = with_access(&machine, || ok(""));
        let files = &machine.fakes.files;
        files.put(PRODUCT_UUID, uuid);
        files.put_mode(ACCESS, authority(access), 0o600);
        (machine.fakes.exec).on("/usr/bin/kubectl", move |_, _| {
            ok(format!(
                r#"{{"metadata": {{"name": "gpu-1"}}, "status": {{"nodeInfo": {theirs}}}}}"#
            ))
        });
        let undo = machine.apply(&change).await.expect("joined");
        let left = machine.revert(&undo).await;
        let deletes = why.is_empty();
        assert_eq!(kubectl(&machine, " drain "), deletes, "{left:?}");
        assert_eq!(kubectl(&machine, " delete "), deletes, "{left:?}");
        assert!(format!("{left:?}").contains(why), "{left:?}");
        // The machine itself still leaves the cluster.
        assert!(!machine.host.files.exists(KUBELET_CONF.into()).unwrap());
    }
}

/// The kubelet of a clone writes the clone's id to the node object, so in the cluster the node seems to be this machine.
#[tokio::test]
async fn clone_does_not_delete_the_original_node() {
    let (machine, _) = machine(|files| {
        files.put(KUBELET_CONF, KUBECONFIG);
        ok("")
    });
    let change = with_access(&machine, || ok(""));
    machine.fakes.files.put(PRODUCT_UUID, "AAAA-1\n");
    machine.fakes.files.put_mode(ACCESS, KUBECONFIG, 0o600);
    let undo = machine.apply(&change).await.expect("joined");
    machine.fakes.files.put(PRODUCT_UUID, "BBBB-2\n");
    (machine.fakes.exec).on("/usr/bin/kubectl", |_, _| {
        ok(r#"{"metadata": {"name": "gpu-1"}, "status": {"nodeInfo": {"systemUUID": "BBBB-2"}}}"#)
    });
    let left = machine.revert(&undo).await;
    assert!(
        matches!(&left, Reverted::Left { why, .. } if why.contains("If it is a clone")),
        "{left:?}"
    );
    assert!(!kubectl(&machine, " drain ") && !kubectl(&machine, " delete "));
    // The clone itself still leaves the cluster.
    assert!(!machine.host.files.exists(KUBELET_CONF.into()).unwrap());
}

/// kubectl executes commands from a kubeconfig, as root.
#[tokio::test]
async fn kubeconfig_writable_by_other_users_deletes_no_node() {
    let (machine, _) = machine(|files| {
        files.put(KUBELET_CONF, KUBECONFIG);
        ok("")
    });
    let change = with_access(&machine, || ok(""));
    let undo = machine.apply(&change).await.expect("joined");
    machine.fakes.files.own(ACCESS, 65534, 0);
    let left = machine.revert(&undo).await;
    assert!(
        matches!(&left, Reverted::Left { why, .. } if why.contains(ACCESS)),
        "{left:?}"
    );
    assert!(!kubectl(&machine, " drain ") && !kubectl(&machine, " delete "));
}

#[tokio::test]
async fn machine_in_another_cluster_stays_there() {
    let (machine, _) = machine(|files| {
        files.put(KUBELET_CONF, KUBECONFIG);
        ok("")
    });
    let change = with_access(&machine, || ok(""));
    let undo = machine.apply(&change).await.expect("joined");
    machine.fakes.files.put(KUBELET_CONF, ANOTHER);
    let left = machine.revert(&undo).await;
    assert!(
        matches!(&left, Reverted::Left { why, .. } if why.contains("10.9.9.9")),
        "{left:?}"
    );
    assert!(!kubectl(&machine, " drain "));
    assert_eq!(machine.fakes.files.text(KUBELET_CONF), ANOTHER);
}

#[tokio::test]
async fn pods_that_cannot_be_evicted_prevent_leaving() {
    for may_drain in [false, true] {
        let (machine, _) = machine(|files| {
            files.put(KUBELET_CONF, KUBECONFIG);
            ok("")
        });
        let change = with_access(&machine, move || match may_drain {
            true => ok(""),
            false => failed(
                1,
                "error: cannot evict pod as it would violate the pod's disruption budget",
            ),
        });
        let undo = machine.apply(&change).await.expect("joined");
        let left = machine.revert(&undo).await;
        let stays = machine.host.files.exists(KUBELET_CONF.into()).unwrap();
        assert_eq!(stays, !may_drain, "{left:?}");
        assert_eq!(kubectl(&machine, " delete "), may_drain);
        assert_eq!(matches!(left, Reverted::Done { .. }), may_drain, "{left:?}");
    }
}

#[tokio::test]
async fn readable_or_invalid_token_file_is_rejected() {
    for (content, mode, part) in [
        (TOKEN, 0o644, "accessible to users other than root"),
        ("kubeadm join", 0o600, "not a bootstrap token"),
    ] {
        let (machine, _) = machine(|_| ok(""));
        machine.fakes.files.put_mode(TOKEN_FILE, content, mode);
        let error = machine.apply(&by_kubeadm()).await.expect_err(part);
        assert_eq!(error.reason(), "join-secret");
        assert!(error.to_string().contains(part), "{error}");
    }
    let (machine, _) = machine(|_| ok(""));
    machine.fakes.files.take(TOKEN_FILE);
    let error = machine.apply(&by_kubeadm()).await.expect_err("no token");
    assert!(error.to_string().contains("missing"), "{error}");
}

#[tokio::test]
async fn agent_that_does_not_join_is_stopped() {
    let agent = join(JoinMethod::K3s {
        server: "https://10.0.0.1:6443".to_owned(),
        token_source: TokenSource::File(TOKEN_FILE.into()),
    });
    let machine = TestMachine::new();
    machine
        .units
        .put("k3s-agent.service", "enabled", "inactive");
    // The agent writes this file before its kubelet is running.
    let kubeconfig = "/var/lib/rancher/k3s/agent/kubelet.kubeconfig";
    let error = machine.apply(&agent).await.expect_err("it has not joined");
    assert_eq!(error.reason(), "join-timeout");
    assert!(!machine.host.files.exists(kubeconfig.into()).unwrap());
    let lines = machine.fakes.exec.lines();
    assert!(
        lines
            .iter()
            .any(|line| line == "systemctl stop -- k3s-agent.service"),
        "{lines:?}"
    );
    machine
        .fakes
        .files
        .put("/var/lib/rancher/k3s/agent/kubelet.kubeconfig", KUBECONFIG);
    machine.units.put("k3s-agent.service", "enabled", "active");
    let undo = machine.apply(&agent).await.expect("joined");
    let left = machine.revert(&undo).await;
    assert!(matches!(left, Reverted::Left { .. }), "{left:?}");
}

fn by_k3s() -> Change {
    join(JoinMethod::K3s {
        server: "https://10.0.0.1:6443".to_owned(),
        token_source: TokenSource::File(TOKEN_FILE.into()),
    })
}

/// A stop is requested while the agent waits for a server that does not respond.
#[tokio::test]
async fn agent_is_stopped_when_the_wait_is_cancelled() {
    let machine = TestMachine::new();
    machine
        .units
        .put("k3s-agent.service", "enabled", "inactive");
    let stop = CancellationToken::new();
    let applier = machine.restarted().stopped_by(stop.clone());
    let undo = applier.capture(&by_k3s()).await.unwrap();
    let clock = machine.fakes.clock.clone();
    let change = by_k3s();
    let (ended, ()) = tokio::join!(applier.apply(&change, undo.clone(), &machine.sink), async {
        while clock.slept().len() < 2 {
            tokio::task::yield_now().await;
        }
        assert_eq!(machine.units.all()["k3s-agent.service"].1, "active");
        stop.cancel();
    });
    assert_eq!(ended.unwrap_err().reason(), crate::change::STOPPED);
    assert_eq!(machine.units.all()["k3s-agent.service"].1, "inactive");
    let exact = applier.reconcile(&undo, &machine.sink).await.unwrap();
    assert!(exact.is_nothing(), "{exact:?}");
}

#[tokio::test]
async fn agent_of_killed_run_is_stopped() {
    let machine = TestMachine::new();
    let undo = machine.applier.capture(&by_k3s()).await.unwrap();
    machine
        .units
        .put("k3s-agent.service", "enabled", "activating");
    let exact = machine.restarted().reconcile(&undo, &machine.sink).await;
    assert!(exact.expect("exact").is_nothing());
    assert_eq!(machine.units.all()["k3s-agent.service"].1, "inactive");
}

/// After a failed join, the unit still starts at the next boot and may join, if its configuration contains a server.
#[tokio::test]
async fn later_join_is_not_reported_as_restored() {
    let machine = TestMachine::new();
    machine
        .units
        .put("k3s-agent.service", "enabled", "inactive");
    let undo = machine.applier.capture(&by_k3s()).await.unwrap();
    let config = "/etc/rancher/k3s/config.yaml.d/50-gpu-bootstrap.yaml";
    machine.fakes.files.put(config, "{}");
    let _error = machine.apply(&by_k3s()).await.expect_err("no server");
    let exact = machine
        .applier
        .reconcile(&undo, &machine.sink)
        .await
        .unwrap();
    let reverted = machine.revert(&exact).await;
    assert!(matches!(reverted, Reverted::Nothing { .. }), "{reverted:?}");
    machine
        .fakes
        .files
        .put("/var/lib/rancher/k3s/agent/kubelet.kubeconfig", KUBECONFIG);
    let reverted = machine.revert(&exact).await;
    assert!(
        matches!(&reverted, Reverted::Left { why, .. } if why.contains("10.0.0.1")),
        "{reverted:?}"
    );
}

#[tokio::test]
async fn nodeadm_joins_only_while_it_may() {
    const MAY_JOIN: &str = "/var/lib/gpu-bootstrap/may-join";
    let machine = TestMachine::new();
    machine
        .fakes
        .files
        .put("/var/lib/cloud/data/instance-id", "i-0123\n");
    for (unit, state) in [
        ("nodeadm-run.service", "inactive"),
        ("kubelet.service", "active"),
    ] {
        machine.units.put(unit, "enabled", state);
    }
    machine.fakes.files.put(
        "/var/lib/kubelet/kubeconfig",
        "clusters: [{name: c, cluster: {server: 'https://10.0.0.1:6443'}}]",
    );
    let undo = machine.apply(&join(JoinMethod::Eks)).await;
    let undo = undo.expect("it joins");
    assert_eq!(machine.fakes.files.text(MAY_JOIN), "i-0123\n");
    // The node object cannot be deleted, and the machine does not join again.
    let left = machine.revert(&undo).await;
    assert!(
        matches!(&left, Reverted::Left { what, .. } if what.contains("kubectl delete node")),
        "{left:?}"
    );
    assert!(!machine.host.files.exists(MAY_JOIN.into()).unwrap());
    let again = machine.revert(&undo).await;
    assert!(!matches!(again, Reverted::Left { .. }), "{again:?}");
    machine.units.put("kubelet.service", "enabled", "active");
    let undo = machine.apply(&join(JoinMethod::Eks)).await;
    undo.expect("it joins");
    // After a power loss the kubelet is not running at the next boot.
    machine.units.put("kubelet.service", "enabled", "inactive");
    let begun = machine.applier.capture(&join(JoinMethod::Eks)).await;
    let begun = begun.expect("an undo");
    let cut = machine.applier.reconcile(&begun, &machine.sink).await;
    assert!(matches!(cut, Ok(Undo::Nothing { .. })), "{cut:?}");
    assert!(!machine.host.files.exists(MAY_JOIN.into()).unwrap());
    machine.units.put("kubelet.service", "enabled", "failed");
    let error = machine.apply(&join(JoinMethod::Eks)).await;
    assert_eq!(error.expect_err("no kubelet").reason(), "join-timeout");
    assert!(!machine.host.files.exists(MAY_JOIN.into()).unwrap());
    let lines = machine.fakes.exec.lines();
    for line in [
        "restart -- nodeadm-run.service",
        "stop -- nodeadm-run.service",
        "stop -- kubelet.service",
    ] {
        let line = format!("systemctl {line}");
        assert!(lines.contains(&line), "{lines:?}");
    }
}

/// gpu-bootstrap was killed while `nodeadm` was running, which would start the kubelet at the end.
#[tokio::test]
async fn interrupted_nodeadm_join_is_stopped_despite_errors() {
    let machine = TestMachine::new();
    let (files, units) = (&machine.fakes.files, &machine.units);
    files.put("/var/lib/gpu-bootstrap/may-join", "i-0123\n");
    units.put("nodeadm-run.service", "enabled", "activating");
    units.put("kubelet.service", "enabled", "inactive");
    let begun = (machine.applier.capture(&join(JoinMethod::Eks)).await).expect("an undo");
    let cut = machine.applier.reconcile(&begun, &machine.sink).await;
    assert!(matches!(cut, Ok(Undo::Nothing { .. })), "{cut:?}");
    let stops = || {
        let lines = machine.fakes.exec.lines();
        let stops = lines.iter().filter(|line| line.contains("systemctl stop"));
        stops.cloned().collect::<Vec<_>>()
    };
    let both = ["nodeadm-run.service", "kubelet.service"];
    let both = both.map(|unit| format!("systemctl stop -- {unit}"));
    assert_eq!(stops(), both);
    machine.fakes.exec.clear_log();
    (machine.fakes.exec).on("systemctl", |cmd, _| match &*cmd.args[0] {
        "stop" => failed(1, "transport endpoint"),
        _ => ok("LoadState=loaded\nActiveState=inactive\nUnitFileState=enabled\n"),
    });
    let error = machine.applier.revert(&begun, &machine.sink).await;
    let _error = error.expect_err("neither stops");
    assert_eq!(stops(), both);
}
