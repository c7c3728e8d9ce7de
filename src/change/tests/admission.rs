//! Tests that a node gets its labels and loses its startup taints.

use std::sync::Mutex;

use super::{
    join::{ACCESS, KUBECONFIG, KUBELET_CONF, PRODUCT_UUID, UUID},
    kit::TestMachine,
};
use crate::{
    change::{Admission, ApplyChanges, Change, Reverted},
    error::Report,
    host::fake::{FakeFiles, failed, ok},
};

fn admission(labels: &[(&str, &str)]) -> Change {
    Change::AdmitNode {
        admission: Admission {
            node: "gpu-1".parse().expect("a name"),
            labels: (labels.iter())
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect(),
            startup_taints: vec![
                "starting:NoSchedule".parse().expect("a taint"),
                "validating=yes:NoExecute".parse().expect("a taint"),
                "gone:NoSchedule".parse().expect("a taint"),
            ],
            access: Some("/etc/gpu-bootstrap/cluster.kubeconfig".into()),
            timeout_seconds: 5,
        },
    }
}

/// A node that accepts new labels (if `keeps`) or always has its previous ones. Its kubectl counts the queries, and the node
/// becomes Ready after `ready_after` queries.
fn node(ready_after: usize, keeps: bool) -> TestMachine {
    let machine = TestMachine::new();
    let files = &machine.fakes.files;
    files.put("/usr/bin/kubectl", "");
    files.put(KUBELET_CONF, KUBECONFIG);
    files.put_mode(ACCESS, KUBECONFIG, 0o600);
    files.put(PRODUCT_UUID, UUID);
    let (asked, labelled) = (Mutex::new(0), Mutex::new(false));
    machine.fakes.exec.on("/usr/bin/kubectl", move |cmd, _| {
        if cmd.args.contains(&"new=yes".to_owned()) && keeps {
            *labelled.lock().unwrap() = true;
        }
        if !cmd.args.contains(&"get".to_owned()) {
            return ok("");
        }
        let labels = match *labelled.lock().unwrap() {
            true => r#""team": "research", "new": "yes""#,
            false => r#""team": "old""#,
        };
        let mut asked = asked.lock().unwrap();
        *asked += 1;
        let status = if *asked > ready_after { "True" } else { "False" };
        ok(format!(
            r#"{{"metadata": {{"labels": {{{labels}}}}}, "spec": {{"taints": [{{"key": "starting",
                "effect": "NoSchedule"}}, {{"key": "validating", "value": "yes", "effect": "NoExecute"}}]}}, "status": {{"nodeInfo": {{"systemUUID": "{UUID}"}}, "conditions": [
                {{"type": "Ready", "status": "{status}", "reason": "KubeletNotReady", "message": "no network"}}]}}}}"#
        ))
    });
    machine
}

#[tokio::test]
async fn node_is_admitted_when_it_is_ready() {
    let machine = node(3, true);
    let undo = machine
        .apply(&admission(&[("team", "research"), ("new", "yes")]))
        .await
        .expect("Ready");
    let lines = machine.fakes.exec.lines();
    let last: Vec<&str> = lines
        .iter()
        .rev()
        .take(2)
        .rev()
        .map(String::as_str)
        .collect();
    assert_eq!(
        last,
        [
            "/usr/bin/kubectl --kubeconfig=/etc/kubernetes/kubelet.conf --request-timeout=10s label node --overwrite -- \
             gpu-1 new=yes team=research",
            "/usr/bin/kubectl --kubeconfig=/etc/gpu-bootstrap/cluster.kubeconfig --request-timeout=10s taint node -- \
             gpu-1 starting:NoSchedule- validating:NoExecute-"
        ]
    );
    let reverted = machine.revert(&undo).await;
    assert!(matches!(reverted, Reverted::Done { .. }), "{reverted:?}");
    let lines = machine.fakes.exec.lines();
    assert!(
        lines
            .last()
            .is_some_and(|line| line.ends_with("-- gpu-1 new- team=old")),
        "{lines:?}"
    );
}

#[tokio::test]
async fn unready_node_keeps_its_startup_taints() {
    let machine = node(usize::MAX, true);
    let error = machine.apply(&admission(&[])).await.expect_err("not Ready");
    assert_eq!(error.reason(), "node-not-ready");
    assert!(error.to_string().contains("no network"), "{error}");
    let lines = machine.fakes.exec.lines();
    assert!(
        lines.iter().all(|line| !line.contains(" taint ")),
        "{lines:?}"
    );
}

/// kubectl executes commands from a kubeconfig, as root.
#[tokio::test]
async fn kubeconfig_writable_by_other_users_is_not_used() {
    let spoilt: [fn(&FakeFiles); 3] = [
        |files| files.own(ACCESS, 65534, 0),
        |files| files.own("/etc/gpu-bootstrap", 65534, 0),
        |files| files.put_mode(ACCESS, KUBECONFIG, 0o666),
    ];
    for spoil in spoilt {
        let machine = node(0, true);
        spoil(&machine.fakes.files);
        let error = machine.apply(&admission(&[])).await.expect_err("not used");
        assert_eq!(error.reason(), "join-secret");
        let lines = machine.fakes.exec.lines();
        assert!(lines.iter().all(|line| !line.contains(ACCESS)), "{lines:?}");
    }
}

/// The API server is unavailable for some seconds after the node has joined, and again when the labels are set. If it stays
/// unavailable, the change fails.
#[tokio::test]
async fn brief_api_server_outage_is_waited_for() {
    for stays_away in [false, true] {
        let machine = node(0, false);
        let refused = "The connection to the server 10.0.0.1:6443 was refused";
        let answers =
            Mutex::new([false, false, false, true, true, false, false, false, true].into_iter());
        machine.fakes.exec.on("/usr/bin/kubectl", move |_, _| {
            let is_there = answers.lock().unwrap().next().unwrap_or(true);
            match is_there && !stays_away {
                true => ok(
                    r#"{"metadata": {}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}"#,
                ),
                false => failed(1, refused),
            }
        });
        let admitted = machine.apply(&admission(&[("team", "research")])).await;
        if stays_away {
            let error = admitted.expect_err("the API server does not respond");
            assert_eq!(error.reason(), "node-not-ready");
            assert!(error.to_string().contains(refused), "{error}");
            continue;
        }
        admitted.expect("it waits");
        let lines = machine.fakes.exec.lines();
        let labels = lines.iter().filter(|line| line.contains(" label ")).count();
        assert_eq!(labels, 2, "{lines:?}");
    }
}

#[tokio::test]
async fn labels_of_other_owners_and_machines_are_kept() {
    let machine = node(0, false);
    let undo = machine
        .apply(&admission(&[("team", "research"), ("new", "yes")]))
        .await
        .expect("Ready");
    // In the cluster, `team` has its previous value and `new` does not exist.
    let reverted = machine.revert(&undo).await;
    assert!(matches!(reverted, Reverted::Nothing { .. }), "{reverted:?}");
    machine
        .fakes
        .files
        .put(PRODUCT_UUID, "another machine, a clone of this one");
    let reverted = machine.revert(&undo).await;
    assert!(matches!(reverted, Reverted::Left { .. }), "{reverted:?}");
    let lines = machine.fakes.exec.lines();
    let labels = lines.iter().filter(|line| line.contains(" label ")).count();
    assert_eq!(labels, 1, "only the labels of the change itself: {lines:?}");
}

#[tokio::test]
async fn label_that_was_changed_later_is_kept() {
    let machine = node(0, true);
    // The cluster then has `team: research`, which is neither the previous value nor ours, and our value of `new`.
    let undo = machine
        .apply(&admission(&[("team", "mine"), ("new", "yes")]))
        .await
        .expect("Ready");
    let reverted = machine.revert(&undo).await;
    assert!(matches!(reverted, Reverted::Done { .. }), "{reverted:?}");
    let lines = machine.fakes.exec.lines();
    let last = lines.iter().rfind(|line| line.contains(" label "));
    let last = last.expect("a label was removed");
    assert!(last.contains(" new-") && !last.contains("team"), "{last}");
}

/// The kubelet of a clone has written the clone's system UUID to the node object.
#[tokio::test]
async fn clone_does_not_remove_labels_of_original() {
    let machine = node(0, false);
    let files = &machine.fakes.files;
    let id = files.text(PRODUCT_UUID);
    files.put(PRODUCT_UUID, "AAAA-1");
    let undo = (machine.applier)
        .capture(&admission(&[("new", "yes")]))
        .await
        .expect("captured");
    files.put(PRODUCT_UUID, id);
    let reverted = machine.revert(&undo).await;
    let is_left =
        matches!(&reverted, Reverted::Left { why, .. } if why.contains("If it is a clone"));
    assert!(is_left, "{reverted:?}");
}
