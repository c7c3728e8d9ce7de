//! QEMU's view of the functions, read over a real socket with the protocol's own client.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;

use gpu_bootstrap_vm_pci::serve::{self, Serving};
use gpu_bootstrap_vm_pci::table::{self, Address};
use vfio_user::Client;

const CONFIG: u32 = 7;

const DEVICES: &str = r#"
    [devices.gpu]
    name = "a GPU"
    id = "10de:2330"
    subsystem = "10de:16c1"
    class = "030200"
    revision = 0xa1
    bars = [
        { index = 0, mib = 16 },
        { index = 1, mib = 256, prefetchable = true },
        { index = 3, mib = 32, prefetchable = true },
    ]
    chip = { architecture = 0x18, implementation = 0 }
    source = "made up"

    [devices.switch]
    name = "a bridge"
    id = "10de:22a3"
    subsystem = "10de:1796"
    class = "068000"
    bars = [{ index = 0, mib = 32 }]
    source = "made up"
"#;

const MACHINES: &str = r#"
    [machines.two]
    pci = [
        { address = "0000:18:00.0", device = "gpu" },
        { address = "0000:07:00.0", device = "switch" },
    ]
"#;

struct Bench {
    dir: tempfile::TempDir,
    _serving: Serving,
}

impl Bench {
    fn new() -> Bench {
        let dir = tempfile::tempdir().unwrap();
        let serving = start(dir.path()).unwrap();
        Bench {
            dir,
            _serving: serving,
        }
    }

    fn socket(&self, address: &str) -> PathBuf {
        serve::socket(
            self.dir.path(),
            &Address::try_from(address.to_string()).unwrap(),
        )
    }

    fn gpu(&self) -> Client {
        Client::new(&self.socket("0000:18:00.0")).unwrap()
    }

    fn switch(&self) -> Client {
        Client::new(&self.socket("0000:07:00.0")).unwrap()
    }
}

fn start(dir: &Path) -> anyhow::Result<Serving> {
    let table = dir.join("machines.toml");
    std::fs::write(dir.join("devices.toml"), DEVICES).unwrap();
    std::fs::write(&table, MACHINES).unwrap();
    serve::start(dir, &table::functions_of(&table, "two")?, &channel().0)
}

fn read<const N: usize>(client: &mut Client, region: u32, offset: u64) -> [u8; N] {
    let mut data = [0x5a; N];
    client.region_read(region, offset, &mut data).unwrap();
    data
}

fn register(client: &mut Client, region: u32, offset: u64) -> u32 {
    u32::from_le_bytes(read(client, region, offset))
}

#[test]
fn header_contains_device_id() {
    let bench = Bench::new();
    let mut gpu = bench.gpu();
    assert_eq!(register(&mut gpu, CONFIG, 0x00), 0x2330_10de);
    assert_eq!(register(&mut gpu, CONFIG, 0x08), 0x0302_00a1);
    assert_eq!(register(&mut gpu, CONFIG, 0x2c), 0x16c1_10de);
    let mut switch = bench.switch();
    assert_eq!(register(&mut switch, CONFIG, 0x00), 0x22a3_10de);
    assert_eq!(register(&mut switch, CONFIG, 0x08), 0x0680_0000);
}

#[test]
fn regions_have_configured_size() {
    let bench = Bench::new();
    let gpu = bench.gpu();
    let sizes: Vec<u64> = (0..9)
        .map(|index| gpu.region(index).unwrap().size)
        .collect();
    assert_eq!(sizes, [16 << 20, 256 << 20, 0, 32 << 20, 0, 0, 0, 4096, 0]);
}

#[test]
fn bars_support_size_probe() {
    let bench = Bench::new();
    let mut gpu = bench.gpu();
    for register in 0..6 {
        gpu.region_write(CONFIG, 0x10 + 4 * register, &[0xff; 4])
            .unwrap();
    }
    let probed: Vec<u32> = (0..6)
        .map(|n| register(&mut gpu, CONFIG, 0x10 + 4 * n))
        .collect();
    assert_eq!(
        probed,
        [
            0xff00_0000,
            0xf000_000c,
            0xffff_ffff,
            0xfe00_000c,
            0xffff_ffff,
            0
        ]
    );
    // The address that firmware writes next.
    gpu.region_write(CONFIG, 0x10, &0xfd00_0000u32.to_le_bytes())
        .unwrap();
    assert_eq!(register(&mut gpu, CONFIG, 0x10), 0xfd00_0000);
    // No expansion ROM.
    gpu.region_write(CONFIG, 0x30, &[0xff; 4]).unwrap();
    assert_eq!(register(&mut gpu, CONFIG, 0x30), 0);
}

#[test]
fn capability_list_is_terminated() {
    let bench = Bench::new();
    let mut gpu = bench.gpu();
    assert_eq!(read::<2>(&mut gpu, CONFIG, 0x06), [0x10, 0x00]);
    let mut ids = Vec::new();
    let [mut at] = read(&mut gpu, CONFIG, 0x34);
    while at != 0 && ids.len() < 48 {
        let [id, next] = read(&mut gpu, CONFIG, at.into());
        ids.push(id);
        at = next;
    }
    assert_eq!(ids, [0x01, 0x05, 0x10]);
}

#[test]
fn only_writable_bits_change() {
    let bench = Bench::new();
    let mut gpu = bench.gpu();
    gpu.region_write(CONFIG, 0x00, &[0xff; 8]).unwrap();
    assert_eq!(register(&mut gpu, CONFIG, 0x00), 0x2330_10de);
    assert_eq!(register(&mut gpu, CONFIG, 0x04), 0x0010_0546);
}

#[test]
fn chip_id_registers_match_chip() {
    let bench = Bench::new();
    let mut gpu = bench.gpu();
    assert_eq!(register(&mut gpu, 0, 0x000), 0x1800_00a1);
    assert_eq!(register(&mut gpu, 0, 0xa00), 0x180a_1000);
    assert_eq!(register(&mut gpu, 0, 0x004), 0);
    // The registers cannot be written.
    gpu.region_write(0, 0, &[0; 4]).unwrap();
    assert_eq!(register(&mut gpu, 0, 0x000), 0x1800_00a1);
    assert_eq!(register(&mut bench.switch(), 0, 0x000), 0);
}

#[test]
fn unaligned_accesses_are_supported() {
    let bench = Bench::new();
    let mut gpu = bench.gpu();
    assert_eq!(read::<1>(&mut gpu, 0, 0xa03), [0x18]);
    assert_eq!(read::<2>(&mut gpu, 0, 0xa01), [0x10, 0x0a]);
    assert_eq!(
        read::<7>(&mut gpu, 0, 0x9ff),
        [0, 0x00, 0x10, 0x0a, 0x18, 0, 0]
    );
    assert_eq!(read::<3>(&mut gpu, CONFIG, 0x01), [0x10, 0x30, 0x23]);
}

#[test]
fn missing_registers_read_as_ones() {
    let bench = Bench::new();
    let mut gpu = bench.gpu();
    // Across the end, beyond it, at offsets that wrap around, in a missing BAR and a missing ROM.
    assert_eq!(read::<4>(&mut gpu, 0, (16 << 20) - 2), [0, 0, 0xff, 0xff]);
    assert_eq!(read::<4>(&mut gpu, CONFIG, 4096), [0xff; 4]);
    assert_eq!(read::<4>(&mut gpu, 0, u64::MAX - 1), [0xff; 4]);
    assert_eq!(read::<4>(&mut gpu, CONFIG, u64::MAX - 1), [0xff; 4]);
    for region in [5, 6, 8] {
        assert_eq!(read::<4>(&mut gpu, region, 0), [0xff; 4]);
    }
    gpu.region_write(CONFIG, 4094, &[0; 4]).unwrap();
    gpu.region_write(0, u64::MAX - 1, &[0; 4]).unwrap();
    assert_eq!(register(&mut gpu, CONFIG, 0x00), 0x2330_10de);
}

#[test]
fn interrupts_can_be_set_up() {
    let bench = Bench::new();
    let mut gpu = bench.gpu();
    let counts: Vec<u32> = (0..5)
        .map(|index| gpu.get_irq_info(index).unwrap().count)
        .collect();
    assert_eq!(counts, [1, 1, 0, 0, 0]);
    // DATA_EVENTFD | ACTION_TRIGGER, as in QEMU; any file can be used instead of an eventfd.
    let file = tempfile::tempfile().unwrap();
    let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
    gpu.set_irqs(0, 0x24, 0, 1, &[fd]).unwrap();
    // DATA_NONE | ACTION_TRIGGER removes it.
    gpu.set_irqs(0, 0x21, 0, 0, &[]).unwrap();
    assert_eq!(register(&mut gpu, CONFIG, 0x00), 0x2330_10de);
}

#[test]
fn each_connection_starts_at_power_on_state() {
    let bench = Bench::new();
    let mut gpu = bench.gpu();
    gpu.region_write(CONFIG, 0x10, &0xfd00_0000u32.to_le_bytes())
        .unwrap();
    gpu.region_write(CONFIG, 0x04, &0x0006u16.to_le_bytes())
        .unwrap();
    drop(gpu);
    for _ in 0..3 {
        let mut gpu = bench.gpu();
        assert_eq!(register(&mut gpu, CONFIG, 0x10), 0);
        assert_eq!(register(&mut gpu, CONFIG, 0x04), 0x0010_0000);
        assert_eq!(register(&mut gpu, 0, 0xa00), 0x180a_1000);
    }
}

#[test]
fn malformed_message_closes_only_its_connection() {
    let bench = Bench::new();
    let path = bench.socket("0000:18:00.0");
    // A message truncated in the middle of a header, and a version message that is too short for its own header.
    UnixStream::connect(&path)
        .unwrap()
        .write_all(&[1, 2, 3])
        .unwrap();
    let mut short = [0u8; 20];
    short[2] = 1;
    short[4] = 16;
    UnixStream::connect(&path)
        .unwrap()
        .write_all(&short)
        .unwrap();
    assert_eq!(register(&mut bench.gpu(), 0, 0), 0x1800_00a1);
}

#[test]
fn only_stale_socket_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let serving = start(dir.path()).unwrap();
    let message = format!("{:#}", start(dir.path()).unwrap_err());
    assert!(message.contains("is in use"), "{message}");
    drop(serving);
    // The state after a server was killed.
    let path = dir.path().join("0000:18:00.0.sock");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    start(dir.path()).unwrap();
}
