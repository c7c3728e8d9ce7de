//! Tests changes of the MIG mode and of instances.

use std::sync::{Arc, Mutex};

use super::kit::TestMachine;
use crate::{
    change::{ApplyChanges, Change, Partition, Reverted, Undo},
    exit::Exit,
    host::{
        Cmd, MigDevice, MigPlacement, MigProfile, MigSupport, Nvml, NvmlDevice, NvmlView, Output,
        fake::{FakeGpu, failed, ok},
    },
};

const GPU: &str = "0000:18:00.0";

/// The second GPU of a machine.
const OTHER: &str = "0000:2a:00.0";

/// The GPU of a machine.
#[derive(Debug, Clone, Default)]
struct Board {
    ampere: bool,
    current: bool,
    pending: bool,
    /// Instances, as `PROFILE` or `PROFILE:START`.
    instances: Vec<String>,
    /// GPU instances without a compute instance of their size. The index is the ID.
    gpu_instances: Vec<String>,
    /// A part of the command lines that fail.
    fails: Option<&'static str>,
}

impl Board {
    fn nvml(&self) -> Nvml {
        view(vec![self.device(0, GPU)])
    }

    fn device(&self, index: u32, address: &str) -> NvmlDevice {
        let placements = |starts: &[u32], size| {
            let placement = |start: &u32| MigPlacement {
                start: *start,
                size,
            };
            starts.iter().map(placement).collect()
        };
        let profile = |name: &str, count, placements| MigProfile {
            name: name.to_owned(),
            count,
            placements,
        };
        let device = |(index, name): (u32, &String)| MigDevice {
            index,
            uuid: Some(format!("MIG-{index}")),
            profile: name.split(':').next().map(str::to_owned),
            share: None,
        };
        NvmlDevice {
            index,
            uuid: Some(format!("GPU-{index}")),
            name: None,
            pci_address: address.parse().ok(),
            pci_id: None,
            minor: Some(index),
            memory_bytes: None,
            compute_capability: None,
            persistence: None,
            mig: Some(self.current),
            mig_devices: (0..).zip(&self.instances).map(device).collect(),
            compute_mode: None,
            mig_support: Some(MigSupport {
                pending: self.pending,
                profiles: vec![
                    profile("1g.10gb", 7, placements(&[0, 1, 2, 3, 4, 5, 6], 1)),
                    profile("2g.20gb", 3, placements(&[0, 2, 4], 2)),
                    profile("3g.40gb", 2, placements(&[0, 4], 4)),
                ],
            }),
            fabric: None,
            health: None,
            error: None,
        }
    }

    fn run(&mut self, cmd: &Cmd) -> Output {
        let line = cmd.line();
        if self.fails.is_some_and(|part| line.contains(part)) {
            return failed(19, "In use by another client\n");
        }
        let args: Vec<&str> = cmd.args.iter().map(String::as_str).collect();
        match args[..] {
            ["-i", _, "-mig", mode] => {
                self.pending = mode == "1";
                if !self.ampere {
                    self.current = self.pending;
                }
            }
            ["mig", "-i", _, "-dci" | "-dgi"]
                if self.instances.is_empty() && self.gpu_instances.is_empty() =>
            {
                return failed(6, "No GPU instances found: Not Found\n");
            }
            ["mig", "-i", _, "-dci"] => {}
            ["mig", "-i", _, "-dgi"] => {
                self.instances.clear();
                self.gpu_instances.clear();
            }
            ["mig", "-i", _, "-cgi", names, "-C"] => {
                self.instances.extend(names.split(',').map(str::to_owned));
            }
            ["mig", "-i", _, "-cgi", name] => {
                let id = self.gpu_instances.len();
                self.gpu_instances.push(name.to_owned());
                return ok(format!(
                    "Successfully created GPU instance ID {id:>2} on GPU  0 using profile MIG {name} (ID  9)\n"
                ));
            }
            ["mig", "-i", _, "-gi", id, "-cci", names] => {
                let id: usize = id.parse().expect("an ID");
                assert!(id < self.gpu_instances.len(), "{line}");
                self.instances.extend(names.split(',').map(str::to_owned));
            }
            ["-r", "-i", GPU] => {
                self.current = self.pending;
                self.instances.clear();
            }
            _ => panic!("{line}"),
        }
        ok("")
    }
}

fn view(devices: Vec<NvmlDevice>) -> Nvml {
    Nvml::Ready(NvmlView {
        driver_version: "580.178.04".to_owned(),
        cuda_version: None,
        devices,
    })
}

fn both(boards: &[Board; 2]) -> Nvml {
    let [first, second] = boards;
    view(vec![first.device(0, GPU), second.device(1, OTHER)])
}

/// Adds [`GPU`], [`OTHER`] and `nvidia-smi` to a machine. Only the second one can be reset.
fn with_two_boards(machine: &TestMachine, boards: [Board; 2]) -> Arc<Mutex<[Board; 2]>> {
    let reset = format!("/sys/bus/pci/devices/{OTHER}/reset");
    machine.fakes.files.put(&reset, "");
    let gpu: FakeGpu = machine.fakes.gpu.clone();
    gpu.set(both(&boards));
    let shared = Arc::new(Mutex::new(boards));
    let boards = Arc::clone(&shared);
    machine.fakes.exec.on("nvidia-smi", move |cmd, _| {
        let mut boards = boards.lock().unwrap();
        let index = usize::from(cmd.args.iter().any(|arg| arg == OTHER));
        let output = boards[index].run(cmd);
        gpu.set(both(&boards));
        output
    });
    shared
}

/// Adds the GPU and `nvidia-smi` to a machine.
fn with_board(machine: &TestMachine, board: Board) -> Arc<Mutex<Board>> {
    let files = &machine.fakes.files;
    files.put(&format!("/sys/bus/pci/devices/{GPU}/reset"), "");
    let gpu: FakeGpu = machine.fakes.gpu.clone();
    gpu.set(board.nvml());
    let shared = Arc::new(Mutex::new(board));
    let board = Arc::clone(&shared);
    machine.fakes.exec.on("nvidia-smi", move |cmd, _| {
        let mut board = board.lock().unwrap();
        let output = board.run(cmd);
        gpu.set(board.nvml());
        output
    });
    shared
}

fn layout(text: &str) -> Change {
    Change::PartitionGpus {
        partition: Partition {
            gpus: vec![format!("{GPU}={text}").parse().expect("a layout")],
            stop_units: vec!["nvidia-dcgm.service".to_owned()],
            reset_with: Vec::new(),
        },
    }
}

fn commands(machine: &TestMachine) -> Vec<String> {
    let lines = machine.fakes.exec.lines().into_iter();
    let lines = lines.filter_map(|line| line.strip_prefix("nvidia-smi ").map(str::to_owned));
    lines.collect()
}

#[tokio::test]
async fn layout_is_set_and_restored() {
    for ampere in [true, false] {
        let machine = TestMachine::new();
        let board = with_board(
            &machine,
            Board {
                ampere,
                ..Board::default()
            },
        );
        let undo = machine
            .apply(&layout("3g.40gb,2g.20gb,1g.10gb*2"))
            .await
            .unwrap();
        let mut expected = vec!["-i 0000:18:00.0 -mig 1"];
        if ampere {
            expected.push("-r -i 0000:18:00.0");
        }
        // The positions belong to an order that fits.
        expected.push("mig -i 0000:18:00.0 -cgi 3g.40gb:4,2g.20gb:0,1g.10gb:2,1g.10gb:3 -C");
        assert_eq!(commands(&machine), expected);
        let again = machine.apply(&layout("3g.40gb,2g.20gb,1g.10gb*2")).await;
        assert!(again.unwrap().is_nothing());
        assert_eq!(commands(&machine), expected, "nothing to change");
        let second = machine.apply(&layout("1g.10gb*7")).await.unwrap();
        assert_eq!(board.lock().unwrap().instances.len(), 7);
        // Both changes are undone at once.
        let merged = second.merge(&undo).expect("one undo");
        machine.fakes.exec.clear_log();
        let reverted = machine.revert(&merged).await;
        assert!(matches!(reverted, Reverted::Done { .. }), "{reverted:?}");
        assert!(!commands(&machine).iter().any(|line| line.contains("-cgi")));
        let now = board.lock().unwrap().clone();
        assert!(!now.current && now.instances.is_empty(), "{now:?}");
        let nothing = machine.revert(&merged).await;
        assert!(matches!(nothing, Reverted::Nothing { .. }), "{nothing:?}");
    }
}

#[tokio::test]
async fn previous_instances_are_restored() {
    let machine = TestMachine::new();
    let before = Board {
        current: true,
        pending: true,
        instances: vec!["3g.40gb".to_owned(), "3g.40gb".to_owned()],
        ..Board::default()
    };
    let board = with_board(&machine, before);
    let undo = machine.apply(&layout("1g.10gb*7")).await.unwrap();
    machine.revert(&undo).await;
    let now = board.lock().unwrap().instances.clone();
    assert_eq!(now, ["3g.40gb:0", "3g.40gb:4"]);
}

#[tokio::test]
async fn interrupted_change_is_undone() {
    // Killed after the mode was set, or after the reset.
    for current in [false, true] {
        let machine = TestMachine::new();
        let board = with_board(
            &machine,
            Board {
                ampere: true,
                ..Board::default()
            },
        );
        let unit = "nvidia-dcgm.service";
        machine.units.put(unit, "enabled", "active");
        let undo = machine.applier.capture(&layout("1g.10gb*7")).await.unwrap();
        machine.units.put(unit, "enabled", "inactive");
        {
            let mut board = board.lock().unwrap();
            board.pending = true;
            board.current = current;
            machine.fakes.gpu.set(board.nvml());
        }
        let applier = machine.restarted();
        let undo = applier.reconcile(&undo, &machine.sink).await.unwrap();
        let units = machine.units.all();
        assert_eq!(units.get(unit).map(|(_, active)| &**active), Some("active"));
        machine.revert(&undo).await;
        let now = board.lock().unwrap().clone();
        assert!(!now.current && !now.pending, "{current}: {now:?}");
    }
}

#[tokio::test]
async fn layout_of_another_program_is_kept() {
    let machine = TestMachine::new();
    let board = with_board(&machine, Board::default());
    let undo = machine.apply(&layout("1g.10gb*7")).await.unwrap();
    {
        let mut board = board.lock().unwrap();
        board.instances = vec!["2g.20gb".to_owned()];
        machine.fakes.gpu.set(board.nvml());
    }
    let reverted = machine.revert(&undo).await;
    assert!(matches!(reverted, Reverted::Left { .. }), "{reverted:?}");
    assert_eq!(board.lock().unwrap().instances, ["2g.20gb"]);
}

#[tokio::test]
async fn client_blocks_unless_its_unit_may_be_stopped() {
    let machine = TestMachine::new();
    with_board(&machine, Board::default());
    let files = &machine.fakes.files;
    files.put("/proc/77/comm", "nv-hostengine\n");
    files.put("/proc/77/cmdline", "/usr/bin/nv-hostengine\0");
    files.put_link("/proc/77/fd/9", "/dev/nvidia0");
    files.put("/proc/77/cgroup", "0::/system.slice/other.service\n");
    let change = layout("1g.10gb*7");
    let error = machine.applier.dry_run(&change).await.unwrap_err();
    assert_eq!((error.reason, error.exit), ("gpu-in-use", Exit::Blocked));
    assert!(
        error
            .what
            .contains("nv-hostengine (process 77 of `other.service`)"),
        "{error}"
    );
    let hint = error.hint.unwrap_or_default();
    assert!(
        hint.starts_with("run `systemctl stop other.service`"),
        "{hint}"
    );
    assert!(machine.apply(&change).await.is_err());
    assert!(commands(&machine).is_empty());
    // With consent, the dry run passes, and the unit is stopped and started again.
    files.put("/proc/77/cgroup", "0::/system.slice/nvidia-dcgm.service\n");
    machine.applier.dry_run(&change).await.unwrap();
    machine
        .units
        .put("nvidia-dcgm.service", "enabled", "active");
    files.take("/proc/77");
    machine.apply(&change).await.unwrap();
    let lines = machine.fakes.exec.lines();
    let position = |line: &str| lines.iter().position(|one| one == line);
    let stopped = position("systemctl stop -- nvidia-dcgm.service");
    let started = position("systemctl start --no-block -- nvidia-dcgm.service");
    assert!(stopped.is_some() && stopped < started, "{lines:#?}");
}

#[tokio::test]
async fn remedy_depends_on_the_clients() {
    let machine = TestMachine::new();
    with_board(&machine, Board::default());
    let files = &machine.fakes.files;
    let label = "kubectl label node NODE nvidia.com/gpu.present-`";
    let (unit, pod) = (
        "/system.slice/other.service",
        "/kubepods.slice/kubepods-pod1.slice/cri-abc.scope",
    );
    for (cgroups, expected) in rows! {
        &[pod][..], &[label][..];
        &["/user.slice"][..], &["not in a pod or unit"][..];
        &[unit, pod, "/user.slice"][..], &[label, "systemctl stop other.service", "not in a pod or unit"][..];
    } {
        for (cgroup, pid) in cgroups.iter().zip(77..) {
            files.put(&format!("/proc/{pid}/comm"), "plugin\n");
            files.put_link(&format!("/proc/{pid}/fd/9"), "/dev/nvidia0");
            files.put(&format!("/proc/{pid}/cgroup"), format!("0::{cgroup}\n"));
        }
        let error = machine.applier.dry_run(&layout("1g.10gb*7")).await;
        let hint = error.unwrap_err().hint.unwrap_or_default();
        for part in [
            label,
            "systemctl stop other.service",
            "not in a pod or unit",
        ] {
            assert_eq!(hint.contains(part), expected.contains(&part), "{hint}");
        }
        let end = match expected.contains(&label) {
            true => "and run `kubectl uncordon NODE`",
            false => "then run `gpu-bootstrap install`",
        };
        assert!(hint.ends_with(end), "{hint}");
    }
}

#[tokio::test]
async fn failed_reset_names_the_remedy() {
    let machine = TestMachine::new();
    let board = Board {
        ampere: true,
        fails: Some("-r -i"),
        ..Board::default()
    };
    with_board(&machine, board);
    machine
        .fakes
        .files
        .put("/sys/module/nvidia_drm/refcnt", "1");
    let error = machine.apply(&layout("1g.10gb*7")).await.unwrap_err();
    let hint = error.hint.unwrap_or_default();
    assert!(hint.contains("nvidia_drm"), "{hint}");
}

#[tokio::test]
async fn mode_waits_for_a_reboot_without_a_reset() {
    let machine = TestMachine::new();
    let board = with_board(
        &machine,
        Board {
            ampere: true,
            ..Board::default()
        },
    );
    machine
        .fakes
        .files
        .take(&format!("/sys/bus/pci/devices/{GPU}/reset"));
    let undo = machine.apply(&layout("1g.10gb*7")).await.unwrap();
    assert!(matches!(undo, Undo::RestoreMig(_)), "{undo:?}");
    assert_eq!(commands(&machine), ["-i 0000:18:00.0 -mig 1"]);
    assert!(machine.sink.text().contains("at the next boot"));
    // After the reboot.
    {
        let mut board = board.lock().unwrap();
        board.current = true;
        machine.fakes.gpu.set(board.nvml());
    }
    machine.apply(&layout("1g.10gb*7")).await.unwrap();
    assert_eq!(board.lock().unwrap().instances.len(), 7);
}

#[tokio::test]
async fn failed_creation_leaves_no_instances() {
    let machine = TestMachine::new();
    let board = with_board(
        &machine,
        Board {
            current: true,
            pending: true,
            fails: Some("-cgi"),
            ..Board::default()
        },
    );
    let error = machine.apply(&layout("1g.10gb*7")).await.unwrap_err();
    assert!(
        error.what.contains("`1g.10gb*7` on GPU 0000:18:00.0"),
        "{error}"
    );
    assert!(board.lock().unwrap().instances.is_empty());
    // A layout that does not fit is found before a command runs.
    machine.fakes.exec.clear_log();
    let error = machine
        .apply(&layout("3g.40gb*2,1g.10gb"))
        .await
        .unwrap_err();
    assert_eq!(error.reason, "mig-layout");
    assert!(commands(&machine).is_empty());
}

#[tokio::test]
async fn short_use_of_a_gpu_does_not_block() {
    let machine = TestMachine::new();
    let board = with_board(&machine, Board::default());
    let (files, clock) = (&machine.fakes.files, &machine.fakes.clock);
    files.put("/proc/77/comm", "python3\n");
    files.put("/proc/77/cmdline", "/usr/bin/python3\0");
    files.put_link("/proc/77/fd/9", "/dev/nvidia0");
    let ends = async {
        for _ in 0..10_000 {
            if !clock.slept().is_empty() {
                break;
            }
            tokio::task::yield_now().await;
        }
        files.take("/proc/77");
    };
    let change = layout("1g.10gb*7");
    let (result, ()) = tokio::join!(machine.apply(&change), ends);
    result.unwrap();
    assert_eq!(board.lock().unwrap().instances.len(), 7);
}

#[tokio::test]
async fn gpus_without_a_pending_mode_get_their_instances_before_the_reboot() {
    let machine = TestMachine::new();
    let whole = Board {
        ampere: true,
        ..Board::default()
    };
    let split = Board {
        current: true,
        pending: true,
        ..whole.clone()
    };
    let boards = with_two_boards(&machine, [whole, split]);
    let layout_of = |gpu: &str| format!("{gpu}=1g.10gb*7").parse().expect("a layout");
    let change = Change::PartitionGpus {
        partition: Partition {
            gpus: vec![layout_of(GPU), layout_of(OTHER)],
            stop_units: Vec::new(),
            reset_with: Vec::new(),
        },
    };
    machine.apply(&change).await.unwrap();
    let [first, second] = boards.lock().unwrap().clone();
    assert!(first.pending && !first.current, "{first:?}");
    assert_eq!(second.instances.len(), 7);
    assert!(machine.sink.text().contains("at the next boot"));
}

#[tokio::test]
async fn client_of_a_gpu_that_is_reset_as_well_blocks_before_the_first_change() {
    let machine = TestMachine::new();
    let split = Board {
        ampere: true,
        current: true,
        pending: true,
        instances: vec!["3g.40gb".to_owned()],
        ..Board::default()
    };
    with_two_boards(&machine, [split, Board::default()]);
    let files = &machine.fakes.files;
    files.put(&format!("/sys/bus/pci/devices/{GPU}/reset"), "");
    files.put("/proc/77/comm", "python3\n");
    files.put("/proc/77/cmdline", "/usr/bin/python3\0");
    files.put_link("/proc/77/fd/9", "/dev/nvidia1");
    let change = Change::PartitionGpus {
        partition: Partition {
            gpus: vec![format!("{GPU}=disabled").parse().expect("a layout")],
            stop_units: Vec::new(),
            reset_with: vec![OTHER.parse().expect("an address")],
        },
    };
    let error = machine.apply(&change).await.unwrap_err();
    assert!(error.what.contains("python3 (process 77)"), "{error}");
    assert!(commands(&machine).is_empty());
}

#[tokio::test]
async fn compute_instances_are_created_and_restored() {
    const LAYOUT: &str = "2c.3g.40gb,1c.3g.40gb,2g.20gb,1g.10gb*2";
    let machine = TestMachine::new();
    let board = with_board(&machine, Board::default());
    let first = machine.apply(&layout(LAYOUT)).await.unwrap();
    let expected = [
        "-i 0000:18:00.0 -mig 1",
        "mig -i 0000:18:00.0 -cgi 3g.40gb:4",
        "mig -i 0000:18:00.0 -gi 0 -cci 2c.3g.40gb,1c.3g.40gb",
        "mig -i 0000:18:00.0 -cgi 2g.20gb:0,1g.10gb:2,1g.10gb:3 -C",
    ];
    assert_eq!(commands(&machine), expected);
    let again = machine.apply(&layout(LAYOUT)).await.unwrap();
    assert!(again.is_nothing());
    // The undo of the next change restores them.
    let second = machine.apply(&layout("1g.10gb*7")).await.unwrap();
    machine.fakes.exec.clear_log();
    let note = "the compute instances share as few GPU instances as possible";
    let reverted = machine.reverts(&second).await;
    assert!(reverted.contains(note), "{reverted}");
    assert_eq!(commands(&machine)[2..], expected[1..]);
    let reverted = machine.reverts(&first).await;
    assert!(!reverted.contains(note), "{reverted}");
    let now = board.lock().unwrap().clone();
    assert!(!now.current && now.instances.is_empty() && now.gpu_instances.is_empty());
}

#[tokio::test]
async fn failed_compute_instance_leaves_no_gpu_instance() {
    let machine = TestMachine::new();
    let board = Board {
        current: true,
        pending: true,
        fails: Some("-cci"),
        ..Board::default()
    };
    let board = with_board(&machine, board);
    let error = machine.apply(&layout("1g.10gb,1c.3g.40gb*3")).await;
    let error = error.unwrap_err();
    assert!(error.what.contains("`1c.3g.40gb*3,1g.10gb`"), "{error}");
    let now = board.lock().unwrap().clone();
    assert!(now.instances.is_empty() && now.gpu_instances.is_empty());
}

#[tokio::test]
async fn first_error_is_reported_and_units_are_started_again() {
    let machine = TestMachine::new();
    // The creation fails, and so does its cleanup.
    let board = Board {
        fails: Some("mig -i"),
        ..Board::default()
    };
    with_board(&machine, board);
    let unit = "nvidia-dcgm.service";
    machine.units.put(unit, "enabled", "active");
    let error = machine.apply(&layout("1g.10gb*7")).await.unwrap_err();
    assert!(error.what.contains("create MIG instances"), "{error}");
    let text = machine.sink.text();
    assert!(
        text.contains("failed to destroy the MIG instances"),
        "{text}"
    );
    let units = machine.units.all();
    assert_eq!(units.get(unit).map(|(_, active)| &**active), Some("active"));
}
