//! Tests the administrator's commands that join and leave a cluster.

use super::{
    join::{KUBECONFIG, PRODUCT_UUID, TOKEN, join, kubectl, machine, with_access},
    kit::TestMachine,
};
use crate::{
    change::{ApplyChanges, Change, LeaveCluster, Reverted, Undo},
    error::Report,
    host::fake::{failed, ok},
    joins::JoinMethod,
};

#[tokio::test]
async fn command_gets_its_secrets_as_environment() {
    let environment = "/etc/gpu-bootstrap/join.env";
    let joined = "/etc/joined";
    let command = join(JoinMethod::Command {
        command: vec!["/usr/local/sbin/join".to_owned(), "--now".to_owned()],
        environment_file: Some(environment.into()),
        joined_file: joined.into(),
        leave_command: vec![],
    });
    let machine = TestMachine::new();
    machine
        .fakes
        .files
        .put_mode(environment, format!("TOKEN={TOKEN}\n"), 0o600);
    machine
        .fakes
        .exec
        .on("/usr/local/sbin/join", move |cmd, files| {
            assert_eq!(cmd.secret_env[0].0, "TOKEN");
            assert_eq!(cmd.secret_env[0].1.expose(), TOKEN);
            files.put(joined, "");
            ok("")
        });
    machine.apply(&command).await.expect("joined");
    machine.fakes.exec.on("/usr/local/sbin/join", |_, _| ok(""));
    machine.fakes.files.take(joined);
    let error = machine
        .apply(&command)
        .await
        .expect_err("it has not joined");
    assert_eq!(error.reason(), "join-timeout");
}

/// The command would run as root.
#[tokio::test]
async fn command_writable_by_other_users_is_not_started() {
    let command = join(JoinMethod::Command {
        command: vec!["/opt/site/join".to_owned()],
        environment_file: None,
        joined_file: "/etc/joined".into(),
        leave_command: vec![],
    });
    let machine = TestMachine::new();
    machine.fakes.files.put("/opt/site/join", "");
    machine.fakes.files.own("/opt/site", 1000, 1000);
    let _error = machine.apply(&command).await.expect_err("not started");
    let lines = machine.fakes.exec.lines();
    assert!(
        lines.iter().all(|line| !line.contains("/opt/site/join")),
        "{lines:?}"
    );
}

#[tokio::test]
async fn failed_command_is_reported_with_output_and_remedy() {
    let command = join(JoinMethod::Command {
        command: vec!["/usr/local/sbin/join".to_owned()],
        environment_file: None,
        joined_file: "/etc/joined".into(),
        leave_command: vec![],
    });
    let said =
        "error: none of the public keys \"sha256:1\" are pinned\nTo see the stack trace use --v=5";
    let machine = TestMachine::new();
    machine
        .fakes
        .exec
        .on("/usr/local/sbin/join", move |_, _| failed(1, said));
    let error = machine.apply(&command).await.expect_err("it has failed");
    assert_eq!(error.reason(), "join-command");
    let told = crate::error::one_line(&error);
    assert!(told.contains(said), "{told}");
    let hint = error.hint().expect("what to do");
    assert!(
        hint.contains("fix the error that your command reports"),
        "{hint}"
    );
}

#[tokio::test]
async fn leave_command_gets_its_secrets_as_environment() {
    const JOINED: &str = "/etc/joined";
    const LEAVE: &str = "/usr/local/sbin/leave";
    let environment = "/etc/gpu-bootstrap/join.env";
    let machine = TestMachine::new();
    let files = &machine.fakes.files;
    files.put_mode(environment, format!("TOKEN={TOKEN}\n"), 0o600);
    files.put(PRODUCT_UUID, "AAAA-1\n");
    let exec = &machine.fakes.exec;
    exec.on("/usr/local/sbin/join", |_, files| {
        files.put(JOINED, "");
        ok("")
    });
    let joins = join(JoinMethod::Command {
        command: vec!["/usr/local/sbin/join".to_owned()],
        environment_file: Some(environment.into()),
        joined_file: JOINED.into(),
        leave_command: vec![LEAVE.to_owned(), "--now".to_owned()],
    });
    let undo = machine.apply(&joins).await.expect("joined");
    let left = machine.revert(&undo).await;
    assert!(
        matches!(&left, Reverted::Left { why, .. } if why.contains("`/usr/local/sbin/leave` from `cluster.leave-command` does not exist")),
        "{left:?}"
    );
    let files = &machine.fakes.files;
    files.put(LEAVE, "");
    // If the command fails or does not leave the cluster, the administrator must leave it manually.
    for (answer, told) in [(failed(3, "no quorum"), "no quorum"), (ok(""), JOINED)] {
        exec.on(LEAVE, move |_, _| answer.clone());
        let left = machine.revert(&undo).await;
        assert!(
            matches!(&left, Reverted::Left { what, why } if what.contains("leave --now") && why.contains(told)),
            "{left:?}"
        );
    }
    // A command that removed `joined-file` before it failed runs again. Without its secrets it does not run.
    exec.on(LEAVE, |_, files| {
        files.take(JOINED);
        failed(1, "cut off")
    });
    let left = machine.revert(&undo).await;
    assert!(
        matches!(&left, Reverted::Left { why, .. } if why.contains("`rm /var/lib/gpu-bootstrap/leaving`")),
        "{left:?}"
    );
    files.put_mode(environment, "", 0o644);
    let left = machine.revert(&undo).await;
    assert!(
        matches!(&left, Reverted::Left { why, .. } if why.contains("accessible to users other than root")),
        "{left:?}"
    );
    files.put_mode(environment, format!("TOKEN={TOKEN}\n"), 0o600);
    // It does not run if other users can modify it, or on a clone, because the node belongs to another machine.
    files.own(LEAVE, 1000, 1000);
    let left = machine.revert(&undo).await;
    assert!(
        matches!(&left, Reverted::Left { why, .. } if why.contains("is writable by non-root users")),
        "{left:?}"
    );
    files.own(LEAVE, 0, 0);
    files.put(PRODUCT_UUID, "BBBB-2\n");
    let left = machine.revert(&undo).await;
    assert!(
        matches!(&left, Reverted::Left { why, .. } if why.contains("clone")),
        "{left:?}"
    );
    files.put(PRODUCT_UUID, "AAAA-1\n");
    exec.on(LEAVE, |cmd, files| {
        assert_eq!(cmd.args, ["--now"]);
        assert_eq!(cmd.secret_env[0].1.expose(), TOKEN);
        files.take(JOINED);
        ok("")
    });
    let left = machine.revert(&undo).await;
    assert!(matches!(&left, Reverted::Done { .. }), "{left:?}");
    let again = machine.revert(&undo).await;
    assert!(matches!(&again, Reverted::Nothing { .. }), "{again:?}");
    let lines = machine.fakes.exec.lines();
    assert!(lines.iter().all(|line| !line.contains(TOKEN)), "{lines:?}");
}

/// The command behaves like `nodeadm` of hybrid nodes, which writes the kubeconfig before it starts the kubelet.
#[tokio::test]
async fn failed_command_with_early_kubeconfig_deletes_no_node() {
    let (machine, _) = machine(|_| ok(""));
    let Change::JoinCluster { join: access } = with_access(&machine, || ok("")) else {
        unreachable!("a join");
    };
    let mut change = join(JoinMethod::Command {
        command: vec!["/usr/local/sbin/join".to_owned()],
        environment_file: None,
        joined_file: "/etc/joined".into(),
        leave_command: vec!["/usr/local/sbin/leave".to_owned()],
    });
    if let Change::JoinCluster { join } = &mut change {
        join.access = access.access;
    }
    let exec = &machine.fakes.exec;
    exec.on("/usr/local/sbin/join", |_, files| {
        files.put("/var/lib/kubelet/kubeconfig", KUBECONFIG);
        failed(1, "timed out")
    });
    exec.on("/usr/local/sbin/leave", |_, _| ok(""));
    machine.fakes.files.put("/usr/local/sbin/leave", "");
    machine.units.put("kubelet.service", "enabled", "inactive");
    let undo = machine.applier.capture(&change).await.expect("an undo");
    let _error = (machine
        .applier
        .apply(&change, undo.clone(), &machine.sink)
        .await)
        .expect_err("it failed");
    let exact = (machine.applier.reconcile(&undo, &machine.sink).await).expect("exact");
    assert!(
        matches!(
            &exact,
            Undo::LeaveCluster(LeaveCluster { cluster: None, .. })
        ),
        "{exact:?}"
    );
    machine.revert(&exact).await;
    assert!(!kubectl(&machine, " drain ") && !kubectl(&machine, " delete "));
    // If the kubelet is running, the machine has joined, so the undo deletes the node.
    machine.units.put("kubelet.service", "enabled", "active");
    let exact = (machine.applier.reconcile(&undo, &machine.sink).await).expect("exact");
    machine.revert(&exact).await;
    assert!(kubectl(&machine, " delete "));
}
