//! Kernel parameters and swap.

use std::collections::BTreeMap;

use super::kit::TestMachine;
use crate::{
    change::{Change, Reverted},
    host::fake::ok,
};

#[tokio::test]
async fn kernel_parameters_and_swap_go_back_to_what_they_were() {
    let machine = TestMachine::new();
    let files = &machine.fakes.files;
    files.put("/proc/sys/net/ipv4/ip_forward", "0\n");
    files.put(
        "/proc/swaps",
        "Filename Type Size Used Priority\n/swap.img file 1 0 -2\n",
    );
    machine.fakes.exec.on("sysctl", |cmd, files| {
        let (name, value) = cmd.args[2].split_once('=').expect("a value");
        let path = format!("/proc/sys/{}", name.replace('.', "/"));
        files.put(&path, format!("{value}\n"));
        ok("")
    });
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
                // The parameter of a module that is not there yet.
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
