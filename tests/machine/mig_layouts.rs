//! Each layout in the files of NVIDIA's MIG manager (mig-parted), on each kind of GPU: it is applied, or rejected because the GPU
//! lacks the profile.

use std::collections::BTreeMap;

use gpu_bootstrap::{
    host::fake,
    mig::{LayoutRequest, MigGpu, NoLayout},
};
use serde_json::Value;
use toml::Table;

use crate::{
    build::describe,
    machine::Machine,
    mig,
    scenarios::{in_parallel, told},
    state::text,
};

/// The unmodified files, see `tests/mig-parted/README.md`.
const FILES: [(&str, &str); 2] = rows! {
    "/etc/mig/config.yaml", include_str!("../mig-parted/config.yaml");
    "/etc/mig/config-default.yaml", include_str!("../mig-parted/config-default.yaml");
};

/// For GPUs that the driver of Debian 12 does not support.
const NEWER: &[&str] = &[
    "--set",
    "driver.source=nvidia",
    "--set",
    "driver.branch=580",
];

/// The PCI ID, the number of GPUs, and further arguments of `install`.
const MACHINES: [(&str, u32, &[&str]); 7] = rows! {
    // A100 40 GB
    "10de:20b0", 1, &[];
    // NVIDIA's example has a layout for eight of them.
    "10de:20b0", 8, &[];
    // A100 80 GB
    "10de:20b2", 1, &[];
    // A30
    "10de:20b7", 1, &[];
    // H100
    "10de:2330", 1, &[];
    // H200
    "10de:2335", 1, NEWER;
    // B200
    "10de:2901", 1, NEWER;
};

/// The address of a GPU.
fn address(index: u32) -> String {
    format!("0000:{:02x}:00.0", 6 + index)
}

/// MIG mode, and the number of instances by profile.
type Expected = (bool, BTreeMap<String, u64>);

/// The layout of a GPU in a file, by mig-parted's rules: the last entry that matches.
fn expected(entries: &Value, id: &str, index: u32) -> Option<Expected> {
    let filter = id.strip_prefix("10de:").expect("an NVIDIA GPU");
    let filter = format!("0x{}10DE", filter.to_uppercase());
    let matches = |entry: &&Value| {
        let is_model = match &entry["device-filter"] {
            Value::Null => true,
            Value::String(one) => *one == filter,
            all => (all.as_array().expect("a list").iter()).any(|one| *one == filter.as_str()),
        };
        let is_listed = |all: &Vec<Value>| all.contains(&Value::from(index));
        is_model
            && (entry["devices"] == "all" || entry["devices"].as_array().is_some_and(is_listed))
    };
    let entry = entries.as_array()?.iter().rfind(matches)?;
    let counts = entry["mig-devices"].as_object().into_iter().flatten();
    let counts = counts.map(|(name, count)| (name.clone(), count.as_u64().expect("a count")));
    Some((entry["mig-enabled"] == true, counts.collect()))
}

/// The layout of a simulated GPU.
fn current(machine: &Machine, index: u32) -> Expected {
    let path = format!("/sys/bus/pci/devices/{}/simulated-mig", address(index));
    let line = text(&machine.fakes.files, &path).unwrap_or_default();
    let words: Vec<&str> = line.split_whitespace().collect();
    let mut counts = BTreeMap::new();
    for name in (words.get(2).into_iter()).flat_map(|names| names.split(',')) {
        if name != "-" {
            *counts.entry(name.to_owned()).or_default() += 1;
        }
    }
    (words.first() == Some(&"1"), counts)
}

/// Whether the layout only has profiles of the GPU. The files contain no layout with too many instances.
fn is_supported(most: &BTreeMap<String, u64>, (_, counts): &Expected) -> bool {
    (counts.iter()).all(|(name, count)| most.get(name).is_some_and(|most| count <= most))
}

/// Returns what is wrong unless gpu-bootstrap rejects the layout with the reason and a remedy: no entry matches the GPU, or the
/// matching one has a profile that the GPU lacks.
fn accepted(
    id: &str,
    gpus: u32,
    (path, text): (&str, &str),
    name: &str,
    matches: bool,
) -> Option<String> {
    let request = LayoutRequest::File {
        path: path.into(),
        config: Some(name.to_owned()),
    };
    let gpu = |index| {
        let address = address(index).parse().expect("an address");
        MigGpu::of_model(address, id.parse().expect("an ID"), None, None, None)
    };
    let gpus: Vec<MigGpu> = (0..gpus).map(gpu).collect();
    match request.layouts(Some(text), &gpus) {
        Err(NoLayout::Fault(fault))
            if matches
                && fault.why.contains("the GPU has no profile")
                && fault.remedy.contains("use a layout that fits on it: `1g.") =>
        {
            None
        }
        Err(NoLayout::Fault(fault)) if !matches && fault.why.contains("no entry of") => None,
        other => Some(format!("{other:?}")),
    }
}

fn machine_with(id: &str, gpus: u32) -> Machine {
    let mut files = Table::new();
    for (path, text) in FILES {
        files.insert(path.to_owned(), text.into());
    }
    const EXE: &str = "/usr/local/bin/gpu-bootstrap";
    files.insert(EXE.to_owned(), "the program".into());
    let mut links = Table::new();
    links.insert("/proc/self/exe".to_owned(), EXE.into());
    let mut differs = Table::new();
    let ids: Vec<&str> = (0..gpus).map(|_| id).collect();
    differs.insert("gpus".to_owned(), ids.into());
    differs.insert("files".to_owned(), files.into());
    differs.insert("links".to_owned(), links.into());
    Machine::new(describe("debian-12-h100", differs))
}

/// Applies the supported layouts one after the other, and removes the last one. Returns what is wrong.
fn wrong_with(&(id, gpus, flags): &(&str, u32, &[&str])) -> Vec<String> {
    let most = mig::model(id).expect("a model with MIG").most;
    let machine = machine_with(id, gpus);
    // Without containers, because scenarios cover their devices.
    let alone = [
        "install",
        "--set",
        "runtime.use=[]",
        "--set",
        "cdi.enabled=false",
    ];
    let install = |more: &[&str]| machine.run(&[&alone, flags, more].concat());
    let ran = install(&[]);
    if ran.exit != 0 {
        return vec![format!("{id}: {}", told(&ran))];
    }
    let before = machine.snapshot();
    let mut wrong = Vec::new();
    let mut applied = [0, 0];
    for ((path, text), applied) in FILES.into_iter().zip(&mut applied) {
        let file: Value = serde_saphyr::from_str(text).expect("YAML");
        for (name, entries) in file["mig-configs"].as_object().expect("layouts") {
            let case = format!("{gpus} × {id}, `{name}` of `{path}`");
            let all: Option<Vec<Expected>> = (0..gpus)
                .map(|index| expected(entries, id, index))
                .collect();
            let matches = all.is_some();
            let is_one = |one: &Expected| is_supported(&most, one);
            let Some(expected) = all.filter(|all| all.iter().all(is_one)) else {
                let why = accepted(id, gpus, (path, text), name, matches);
                wrong.extend(why.map(|why| format!("{case}: {why}")));
                continue;
            };
            *applied += 1;
            let (file, config) = (format!("mig.file={path}"), format!("mig.config={name}"));
            let ran = install(&["--set", &file, "--set", &config]);
            let now: Vec<Expected> = (0..gpus).map(|index| current(&machine, index)).collect();
            if ran.exit != 0 || now != expected {
                let told = told(&ran);
                wrong.push(format!("{case}: {now:?} instead of {expected:?}: {told}"));
            }
        }
    }
    // NVIDIA's default file has a layout for each profile, `all-disabled`, `all-enabled` and `all-balanced`.
    let [of_example, of_default] = applied;
    // All nine layouts of its example are for eight A100 40 GB.
    let least_of_example = if gpus == 8 { 9 } else { 3 };
    if of_default != most.len() + 3 || of_example < least_of_example {
        wrong.push(format!("{gpus} × {id}: {applied:?} layouts were applied"));
    }
    let ran = install(&[]);
    wrong.extend((ran.exit != 0).then(|| told(&ran)));
    wrong.extend(fake::diff(&before, &machine.snapshot()));
    wrong
}

#[test]
fn layouts_of_nvidias_files_are_applied_on_each_model() {
    let wrong = in_parallel(&MACHINES, wrong_with);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
