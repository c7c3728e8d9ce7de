//! The table of `docs/cloud-kernels.md`: what `install` picks on machines of clouds, and why, told by the product itself
//! on simulated machines.

use std::{fmt::Write, fs, path::Path};

use serde_json::Value;

use crate::{
    build::describe,
    kernels::ubuntu,
    machine::{Machine, Ran},
    scenarios::told,
};

const H100_SXM: &str = "gpus = ['10de:2330', '10de:2330', '10de:2330', '10de:2330', '10de:2330', \
                        '10de:2330', '10de:2330', '10de:2330']";
/// With the network device behind which the switches of an HGX board are.
const B200: &str = "gpus = ['10de:2901', '10de:2901', '10de:2901', '10de:2901', '10de:2901', \
                    '10de:2901', '10de:2901', '10de:2901']";

/// A title, the machine, and flags of `plan`.
type Row = (&'static str, fn() -> Machine, &'static [&'static str]);

/// The machines of the page.
const ROWS: [Row; 10] = rows! {
    "L4 on AWS, Ubuntu 24.04, a kernel that the archive still has",
        || aws("6.8.0-1060-aws", "10de:27b8"), &[];
    "L4 on AWS, Ubuntu 24.04, an image that is half a year old",
        || aws("6.8.0-1044-aws", "10de:27b8"), &[];
    "A10G on AWS, Ubuntu 24.04, a series that ended: only headers are left",
        || aws("6.14.0-1025-aws", "10de:2237"), &[];
    "A10G on AWS, Ubuntu 24.04, a series of which nothing is left",
        || aws("6.11.0-1016-aws", "10de:2237"), &[];
    "The same machine with consent for another series",
        || aws("6.11.0-1016-aws", "10de:2237"), &["--set", "driver.may-change-kernel=any"];
    "8 × H100 SXM, Ubuntu 22.04, its first kernel series",
        || ubuntu("22.04", "5.15.0-164-generic", &format!("{H100_SXM}\nlists = true")), &[];
    "H100 on Azure, Ubuntu 24.04, Secure Boot on",
        || ubuntu("24.04", "6.8.0-1044-azure",
            "gpus = ['10de:2331']\nsecure-boot = 'enabled'\nlists = true"), &[];
    "8 × B200, Ubuntu 24.04", b200, &[];
    "GH200, Ubuntu 24.04 on arm64, NVIDIA's kernel with pages of 64 KiB",
        || ubuntu("24.04", "6.8.0-1030-nvidia-64k",
            "architecture = 'aarch64'\ngpus = ['10de:2342']\nlists = true"), &[];
    "T4 on AlmaLinux 9",
        || Machine::new(describe("almalinux-9-l4", "gpus = ['10de:1eb8']".parse().expect("TOML"))), &[];
};

/// A machine of AWS with package lists and one GPU.
fn aws(kernel: &str, gpu: &str) -> Machine {
    ubuntu("24.04", kernel, &format!("gpus = ['{gpu}']\nlists = true"))
}

/// An HGX board, with the device behind which its switches are.
fn b200() -> Machine {
    let bridge = "/sys/bus/pci/devices/0000:e1:00.0";
    let files = rows! {
        "vendor", "0x15b3";
        "device", "0x1021";
        "class", "0x020700";
        "subsystem_vendor", "0x15b3";
        "subsystem_device", "0x0041";
        "vpd", "Nvidia network device V1 SW_MNG";
    };
    let files = files.map(|(name, value)| format!("'{bridge}/{name}' = '{value}'\n"));
    let further = format!("{B200}\nlists = true\n[files]\n{}", files.concat());
    ubuntu("24.04", "6.8.0-139-generic", &further)
}

/// The steps of a plan that answer what is picked and why.
const STEPS: [&str; 5] = [
    "secure-boot",
    "repositories",
    "kernel.release",
    "kernel.headers",
    "driver.packages",
];

/// The line of the page below which it is written by this test.
const MARK: &str =
    "<!-- From here on written by a test of tests/machine; `make update` renews it. -->\n";

fn answers(ran: &Ran) -> String {
    let document: Value =
        serde_json::from_str(&ran.out).unwrap_or_else(|_| panic!("{}", told(ran)));
    let mut text = String::new();
    for id in STEPS {
        let steps = document["steps"].as_array().into_iter().flatten();
        for step in steps.filter(|step| step["id"] == id) {
            let (outcome, why) = (word(&step["outcome"]), word(&step["why"]));
            writeln!(text, "- `{id}`, {outcome}: {why}").expect("a text grows");
            if let Some(hint) = step["hint"].as_str() {
                writeln!(text, "  - {hint}").expect("a text grows");
            }
        }
    }
    text
}

fn word(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn table() -> String {
    let mut text = String::new();
    for (title, machine, flags) in ROWS {
        let machine = machine();
        let ran = machine.run(&[&["plan", "--format", "json"][..], flags].concat());
        let kernel = crate::kernel::running(&machine.fakes.files);
        let flags = match flags {
            [] => String::new(),
            [_, setting] => format!(", with `--set {setting}`"),
            flags => panic!("{flags:?}"),
        };
        write!(
            text,
            "\n## {}\n\nKernel `{kernel}`{flags}. `plan` ends with exit {}.\n\n{}",
            title,
            ran.exit,
            answers(&ran)
        )
        .expect("a text grows");
    }
    text
}

#[test]
fn the_page_about_cloud_kernels_says_what_the_product_does() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/cloud-kernels.md");
    let page = fs::read_to_string(&path).expect("the page");
    let (prose, kept) = page.split_once(MARK).expect("the page has the mark");
    let now = table();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&path, format!("{prose}{MARK}{now}")).expect("docs can be written");
        return;
    }
    assert!(
        kept == now,
        "docs/cloud-kernels.md is stale; run `make update`"
    );
}
