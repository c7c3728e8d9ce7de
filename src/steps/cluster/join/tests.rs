//! Assessments of `cluster.join`.

use super::{
    fixtures::{PIN, with, with_kubeadm},
    *,
};
use crate::{
    config::desired::JoinMethod,
    host::{ExecError, fake},
    joins::{agents, kubeadm, nodeadm},
    steps::fixtures::{self as machine, desired, unit},
};

fn stranger() -> JoinState {
    JoinState {
        node: "gpu-1".parse().ok(),
        labels: Labels::from([("team".to_owned(), "research".to_owned())]),
        unit: Some(unit("enabled", "inactive")),
        has_program: true,
        ..JoinState::default()
    }
}

fn member(pin: Option<&str>) -> JoinState {
    JoinState {
        membership: Some(Membership {
            kubeconfig: kubeadm::KUBELET_CONF.into(),
            server: "https://10.0.0.1:6443".to_owned(),
            ca_pin: pin.map(str::to_owned),
        }),
        ..JoinState::default()
    }
}

#[test]
fn new_machine_joins_with_all_taints() {
    let (_, changes) = decide(&stranger(), &with_kubeadm(&[])).expect_needs();
    let [Change::JoinCluster { join }] = &changes[..] else {
        panic!("{changes:?}");
    };
    assert_eq!((&*join.node, join.taints.len()), ("gpu-1", 2));
    let disabled = JoinState {
        unit: Some(unit("disabled", "inactive")),
        ..stranger()
    };
    let (_, changes) = decide(&disabled, &with_kubeadm(&[])).expect_needs();
    assert!(matches!(
        &changes[..],
        [
            Change::JoinCluster { .. },
            Change::EnableUnit { start: false, .. }
        ]
    ));
    let member = JoinState {
        unit: Some(unit("disabled", "active")),
        ..member(Some(PIN))
    };
    let (_, changes) = decide(&member, &with_kubeadm(&[])).expect_needs();
    assert!(matches!(
        &changes[..],
        [Change::EnableUnit { start: false, .. }]
    ));
}

#[test]
fn node_registers_after_its_labels_are_known() {
    let without_driver = JoinState {
        unknown: Some("NVML does not respond".to_owned()),
        ..stranger()
    };
    let (upstream, expected) = decide(&without_driver, &with_kubeadm(&[])).expect_after();
    assert_eq!((upstream, expected.len()), (VALIDATION_DEVICES, 1));
}

#[test]
fn member_of_other_cluster_blocks() {
    let want = with_kubeadm(&[]);
    for same in [Some(PIN), None] {
        decide(&member(same), &want).expect_satisfied();
    }
    let (why, _) = decide(&member(Some("sha256:00")), &want).expect_blocked();
    assert!(why.contains("sha256:00") && why.contains(PIN), "{why}");
    let mut elsewhere = member(None);
    if let Some(membership) = &mut elsewhere.membership {
        membership.server = "https://10.9.9.9:6443".to_owned();
    }
    let (why, _) = decide(&elsewhere, &want).expect_blocked();
    assert!(why.contains("the settings specify 10.0.0.1:6443"), "{why}");
}

#[test]
fn unsafe_secrets_and_missing_programs_block_first() {
    let open = JoinState {
        unusable: vec![
            "`/t` cannot be used: mode is 0644: accessible to users other than root".to_owned(),
        ],
        ..stranger()
    };
    decide(&open, &with_kubeadm(&[])).expect_blocked();
    // The files of a node must also be safe: it uses the access kubeconfig to drain and delete itself.
    let joined = JoinState {
        membership: Some(Membership {
            kubeconfig: "/etc/kubernetes/kubelet.conf".into(),
            server: "https://10.0.0.1:6443".to_owned(),
            ca_pin: None,
        }),
        ..open
    };
    decide(&joined, &with_kubeadm(&[])).expect_blocked();
    let k3s = with(JoinMethod::K3s {
        server: "https://10.0.0.1:6443".to_owned(),
        token_source: TokenSource::File("/t".into()),
    });
    let bare = JoinState {
        unit: None,
        ..stranger()
    };
    let (why, _) = decide(&bare, &k3s).expect_blocked();
    assert!(why.contains("k3s-agent.service"), "{why}");
    let (_, changes) = decide(&stranger(), &k3s).expect_needs();
    assert!(matches!(
        &changes[..],
        [
            Change::WriteFile { mode: 0o600, .. },
            Change::JoinCluster { .. }
        ]
    ));
}

#[test]
fn agent_started_before_the_toolkit_is_restarted() {
    let k3s = with(JoinMethod::K3s {
        server: "https://10.0.0.1:6443".to_owned(),
        token_source: TokenSource::File("/t".into()),
    });
    let answer = |has_toolkit, spares_containers| {
        let state = JoinState {
            membership: Some(Membership {
                kubeconfig: agents::K3S.kubeconfig.into(),
                server: "https://127.0.0.1:6444".to_owned(),
                ca_pin: None,
            }),
            outdated: Some(Outdated {
                unit: agents::K3S.unit,
                has_toolkit,
                spares_containers,
            }),
            ..JoinState::default()
        };
        decide(&state, &k3s)
    };
    let (_, changes) = answer(true, true).expect_needs();
    assert!(matches!(&changes[..], [Change::RestartUnit { unit }] if unit == agents::K3S.unit));
    let (upstream, expected) = answer(false, true).expect_after();
    assert_eq!((upstream, expected.len()), (TOOLKIT_PACKAGES, 1));
    for has_toolkit in [true, false] {
        let why = answer(has_toolkit, false).expect_satisfied();
        assert!(why.contains("restart it manually"), "{why}");
    }
}

#[test]
fn managed_node_is_joined_by_its_provider() {
    let want = with(JoinMethod::Managed);
    decide(&member(None), &want).expect_satisfied();
    decide(&stranger(), &want).expect_blocked_now();
    // Unusable files of a managed node are only reported after it has joined, because they are not used before.
    let unusable = JoinState {
        unusable: vec!["`/t` cannot be used: mode is 0644".to_owned()],
        ..stranger()
    };
    decide(&unusable, &want).expect_blocked_now();
    decide(&stranger(), &desired()).expect_not_applicable();
}

#[test]
fn missing_join_program_blocks() {
    let program = "/usr/local/sbin/join";
    let command = JoinMethod::Command {
        command: vec![program.to_owned(), "--now".to_owned()],
        environment_file: None,
        joined_file: "/etc/joined".into(),
        leave_command: vec![],
    };
    for (method, program) in [(command, program), (JoinMethod::Eks, nodeadm::PROGRAM)] {
        let want = with(method);
        let answer = decide(&stranger(), &want);
        answer.expect_needs();
        let without = JoinState {
            has_program: false,
            ..stranger()
        };
        let Assessment::Blocked { why, .. } = decide(&without, &want) else {
            panic!("`{program}` is missing");
        };
        assert!(why.contains(program), "{why}");
    }
}

/// A kubelet flag would replace the taints of Karpenter and of the node group.
#[test]
fn eks_node_gets_no_taints() {
    let (_, changes) = decide(&stranger(), &with(JoinMethod::Eks)).expect_needs();
    let [
        Change::WriteFile { content, .. },
        Change::JoinCluster { join },
    ] = &changes[..]
    else {
        panic!("{changes:?}");
    };
    assert!(!content.contains("taint"), "{content}");
    assert!(join.taints.is_empty(), "{:?}", join.taints);
}

#[test]
fn agent_blocked_by_cloud_setup_is_reported_before_joining() {
    let k3s = with(JoinMethod::K3s {
        server: "https://10.0.0.1:6443".to_owned(),
        token_source: TokenSource::File("/etc/token".into()),
    });
    decide(&stranger(), &k3s).expect_needs();
    let kept = JoinState {
        is_kept_back: true,
        ..stranger()
    };
    let (why, hint) = decide(&kept, &k3s).expect_blocked();
    assert!(why.contains("nm-cloud-setup.service"), "{why}");
    assert!(hint.contains("systemctl disable"), "{hint}");
}

/// The k3s installer wrote the `ExecStartPre=` line of `OLD` before October 2025.
#[tokio::test]
async fn old_agent_unit_and_cloud_setup_are_detected() {
    const OLD: &str = "[Service]\nExecStartPre=/bin/sh -xc '! /usr/bin/systemctl is-enabled --quiet nm-cloud-setup.service'\n";
    const NEW: &str = "[Service]\nExecStartPre=-/sbin/modprobe br_netfilter\n";
    for (directory, content, load, file, is_kept) in [
        ("/etc/systemd/system", OLD, "loaded", "enabled", true),
        ("/usr/lib/systemd/system", OLD, "loaded", "enabled", true),
        ("/etc/systemd/system", OLD, "loaded", "disabled", false),
        ("/etc/systemd/system", OLD, "not-found", "", false),
        ("/etc/systemd/system", NEW, "loaded", "enabled", false),
    ] {
        let (host, fakes) = fake::host();
        fakes
            .files
            .put(&format!("{directory}/k3s-agent.service"), content);
        fakes.exec.on("systemctl", move |cmd, _| {
            assert!(cmd.line().contains(agents::CLOUD_SETUP), "{}", cmd.line());
            fake::ok(format!(
                "LoadState={load}\nActiveState=inactive\nUnitFileState={file}\nResult=success\n"
            ))
        });
        let facts = machine::facts();
        let (state, want) = (machine::state(&host, facts.clone()), desired());
        let cx = machine::cx(&host, &facts, &state, &want);
        let found = is_kept_back(&cx, agents::K3S.unit, agents::CLOUD_SETUP).await;
        assert_eq!(
            found.expect("readable"),
            is_kept,
            "{directory} {load} {file}"
        );
    }
}

/// `--root` does not query systemd. The unit is not reported as missing.
#[tokio::test]
async fn unit_is_unknown_if_systemd_is_not_queried() {
    let (host, fakes) = fake::host();
    fakes.exec.on_result("systemctl", |cmd, _| {
        Err(ExecError::NotQueried {
            command: cmd.line(),
            why: "a tree".to_owned(),
        })
    });
    let want = with(JoinMethod::K3s {
        server: "https://10.0.0.1:6443".to_owned(),
        token_source: TokenSource::File("/t".into()),
    });
    let facts = machine::facts();
    let state = machine::state_below_root(&host, facts.clone());
    let cx = machine::cx(&host, &facts, &state, &want);
    let spec = spec(&want).expect("a cluster");
    let found = detect(&cx, spec).await.expect("readable");
    let state = JoinState {
        unit: found.unit,
        is_unit_unknown: found.is_unit_unknown,
        ..stranger()
    };
    decide(&state, &want).expect_needs();
}
