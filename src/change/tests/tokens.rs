//! Tests joining with a token from a cloud's secret store.

use super::{
    join::{CONFIGURATION, KUBECONFIG, KUBELET_CONF, TOKEN, join, machine},
    kit::TestMachine,
};
use crate::{
    change::Change,
    error::Report,
    host::fake::ok,
    joins::{Discovery, JoinMethod},
};

/// Serves Azure's metadata service and a vault that contains this secret.
fn with_vault(machine: &TestMachine, value: &str) {
    let identity = "http://169.254.169.254/metadata/identity/oauth2/token?api-version=2018-02-01\
                    &resource=https%3A%2F%2Fvault.azure.net";
    let http = &machine.fakes.http;
    http.serve(identity, r#"{"access_token": "eyJ0.azure"}"#);
    http.serve(
        "https://v.vault.azure.net/secrets/join?api-version=7.4",
        format!(r#"{{"value": "{value}"}}"#),
    );
}

/// Checks that the token is registered as a secret, and that the change, its commands and its output do not contain it.
fn has_not_shown(machine: &TestMachine, change: &Change, secret: &str) {
    assert!(machine.applier.secrets.are_in(secret));
    let journal = serde_json::to_string(change).unwrap();
    let shown = format!("{journal} {change:?}");
    let lines = machine.fakes.exec.lines().join("\n");
    for text in [shown, lines, machine.sink.text()] {
        assert!(!text.contains(secret), "{text}");
    }
}

#[tokio::test]
async fn agent_token_file_is_removed_with_the_agent() {
    let secret = "K100123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef::node:hush";
    let agent = join(JoinMethod::K3s {
        server: "https://10.0.0.1:6443".to_owned(),
        token_source: "azure-secret:v/join".parse().expect("a place"),
    });
    let kept = "/etc/rancher/k3s/gpu-bootstrap.token";
    let machine = TestMachine::new();
    machine.fakes.files.put_directory("/etc/rancher/k3s", 0o755);
    // Without the secret, no command is executed.
    machine
        .units
        .put("k3s-agent.service", "enabled", "inactive");
    let error = machine.apply(&agent).await.expect_err("no identity");
    assert_eq!(error.reason(), "join-token-unreachable");
    assert!(error.is_retryable() && machine.fakes.exec.lines().is_empty());

    // The same applies to a server token, and to a token without the hash of the CA certificate.
    for wrong in ["K10abc::server:hush", "hush"] {
        with_vault(&machine, wrong);
        let error = machine.apply(&agent).await.expect_err(wrong);
        assert_eq!(
            (error.reason(), error.is_retryable()),
            ("join-token-form", false)
        );
        assert!(!error.to_string().contains("hush") && machine.fakes.exec.lines().is_empty());
    }

    with_vault(&machine, secret);
    let _error = machine.apply(&agent).await.expect_err("it has not joined");
    assert!(!machine.host.files.exists(kept.into()).unwrap());
    machine
        .fakes
        .files
        .put("/var/lib/rancher/k3s/agent/kubelet.kubeconfig", KUBECONFIG);
    machine.units.put("k3s-agent.service", "enabled", "active");
    let undo = machine.apply(&agent).await.expect("joined");
    assert_eq!(machine.fakes.files.text(kept), format!("{secret}\n"));
    let stat = machine
        .host
        .files
        .stat(kept.into())
        .unwrap()
        .expect("a file");
    assert_eq!(stat.mode & 0o777, 0o600);
    has_not_shown(&machine, &agent, secret);
    machine.revert(&undo).await;
    assert!(!machine.host.files.exists(kept.into()).unwrap());
}

#[tokio::test]
async fn kubeadm_gets_cloud_token_and_rejects_other_secrets() {
    let by_cloud = join(JoinMethod::Kubeadm {
        discovery: Discovery::Token {
            server: "10.0.0.1:6443".to_owned(),
            token_source: "azure-secret:v/join".parse().expect("a place"),
            ca_cert_hashes: vec!["sha256:00".to_owned()],
        },
        socket: "unix:///run/containerd/containerd.sock".to_owned(),
        ignore_preflight_errors: vec![],
    });
    let (machine, configurations) = machine(|files| {
        files.put(KUBELET_CONF, KUBECONFIG);
        ok("This node has joined the cluster")
    });
    with_vault(&machine, "K10abc::server:hush");
    let error = machine.apply(&by_cloud).await.expect_err("no token");
    assert_eq!(
        (error.reason(), error.is_retryable()),
        ("join-token-form", false)
    );
    assert!(!error.to_string().contains("hush"));
    assert!(configurations.lock().unwrap().is_empty());
    with_vault(&machine, TOKEN);
    machine.apply(&by_cloud).await.expect("joined");
    assert!(configurations.lock().unwrap()[0].contains(TOKEN));
    assert!(!machine.host.files.exists(CONFIGURATION.into()).unwrap());
    has_not_shown(&machine, &by_cloud, TOKEN);
}
