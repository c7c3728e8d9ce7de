//! Tests kernel parameters and swap.

use std::collections::BTreeMap;

use super::kit::TestMachine;
use crate::{
    change::{Change, Reverted, Undo},
    host::fake::ok,
};

const FORWARD: &str = "/proc/sys/net/ipv4/ip_forward";

fn with_sysctl(machine: &TestMachine) {
    machine.fakes.exec.on("sysctl", |cmd, files| {
        let (name, value) = cmd.args[2].split_once('=').expect("a value");
        let path = format!("/proc/sys/{}", name.replace('.', "/"));
        files.put(&path, format!("{value}\n"));
        ok("")
    });
}

fn forward() -> Change {
    Change::SetSysctls {
        values: BTreeMap::from([("net.ipv4.ip_forward".to_owned(), "1".to_owned())]),
    }
}

/// Docker or libvirt was installed later, and needs the same value.
#[tokio::test]
async fn forwarding_is_kept_for_other_containers() {
    for (bridge, port, docker, stays) in [
        ("virbr0", None, "inactive", true),
        ("docker0", None, "active", true),
        ("docker0", Some("veth1"), "inactive", true),
        ("docker0", None, "inactive", false),
        // After a node has left its cluster, no pod is attached to `cni0`.
        ("cni0", None, "active", false),
        ("cni0", Some("veth1"), "active", true),
    ] {
        let machine = TestMachine::new();
        let files = &machine.fakes.files;
        files.put(FORWARD, "0\n");
        with_sysctl(&machine);
        let undo = machine.apply(&forward()).await.expect("applied");
        machine.units.put("docker.service", "enabled", docker);
        files.put(&format!("/sys/class/net/{bridge}/bridge/bridge_id"), "");
        if let Some(port) = port {
            files.put(&format!("/sys/class/net/{bridge}/brif/{port}"), "");
        }
        files.put("/sys/module/br_netfilter/refcnt", "0");
        files.put("/proc/modules", "br_netfilter 32768 0 - Live 0x0\n");
        machine.fakes.exec.on("rmmod", |_, files| {
            files.put("/proc/modules", "");
            ok("")
        });
        let unload = Undo::UnloadModule {
            module: "br_netfilter".to_owned(),
        };
        for undo in [&undo, &unload] {
            let reverted = machine.revert(undo).await;
            let told = format!("{bridge} {port:?} {docker}: {reverted:?}");
            assert_eq!(matches!(reverted, Reverted::Left { .. }), stays, "{told}");
            assert_eq!(
                told.contains(&format!("these bridges exist: {bridge}")),
                stays,
                "{told}"
            );
        }
        let now = files.text(FORWARD);
        assert_eq!(now.trim(), if stays { "1" } else { "0" });
        let modules = files.text("/proc/modules");
        assert_eq!(modules.contains("br_netfilter"), stays);
    }
}

#[tokio::test]
async fn value_changed_by_another_program_is_kept() {
    let machine = TestMachine::new();
    machine.fakes.files.put(FORWARD, "0\n");
    with_sysctl(&machine);
    let undo = machine.apply(&forward()).await.expect("applied");
    machine.fakes.files.put(FORWARD, "2\n");
    let reverted = machine.revert(&undo).await;
    assert!(matches!(reverted, Reverted::Nothing { .. }), "{reverted:?}");
    assert_eq!(machine.fakes.files.text(FORWARD), "2\n");
}

#[tokio::test]
async fn uninstall_restores_sysctls_and_swap() {
    let machine = TestMachine::new();
    let files = &machine.fakes.files;
    files.put("/proc/sys/net/ipv4/ip_forward", "0\n");
    files.put(
        "/proc/swaps",
        "Filename Type Size Used Priority\n/swap.img file 1 0 -2\n",
    );
    with_sysctl(&machine);
    machine.fakes.exec.on("swapoff", |_, files| {
        files.put("/proc/swaps", "Filename Type Size Used Priority\n");
        ok("")
    });
    machine.fakes.exec.on("swapon", |cmd, files| {
        let line = format!(
            "Filename Type Size Used Priority\n{} file 1 0 -2\n",
            cmd.args[1]
        );
        files.put("/proc/swaps", line);
        ok("")
    });
    let before = (
        files.text("/proc/sys/net/ipv4/ip_forward"),
        files.text("/proc/swaps"),
    );
    let changes = [
        Change::SetSysctls {
            values: BTreeMap::from([
                ("net.ipv4.ip_forward".to_owned(), "1".to_owned()),
                // The parameter of a module that is not loaded yet.
                (
                    "net.bridge.bridge-nf-call-iptables".to_owned(),
                    "1".to_owned(),
                ),
            ]),
        },
        Change::TurnOffSwap {
            areas: vec!["/swap.img".to_owned()],
        },
    ];
    let mut undos = Vec::new();
    for change in &changes {
        undos.push(machine.apply(change).await.expect("applied"));
    }
    assert_eq!(files.text("/proc/sys/net/ipv4/ip_forward"), "1\n");
    for undo in undos.iter().rev() {
        let reverted = machine.revert(undo).await;
        assert!(matches!(reverted, Reverted::Done { .. }), "{reverted:?}");
        let again = machine.revert(undo).await;
        assert!(matches!(again, Reverted::Nothing { .. }), "{again:?}");
    }
    assert_eq!(
        before,
        (
            files.text("/proc/sys/net/ipv4/ip_forward"),
            files.text("/proc/swaps")
        )
    );
}
