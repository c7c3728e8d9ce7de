//! Each layout in the files of NVIDIA's MIG manager (mig-parted), on each kind of GPU and on mixed GPUs: it is applied, or rejected
//! because a GPU lacks the profile. The machine case `mig-parted` compares the table of these results with the real program.

use std::{collections::BTreeMap, fs, path::Path};

use gpu_bootstrap::{
    host::fake,
    mig::{Layout, LayoutRequest, MigGpu, NoLayout, Profile},
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

/// A machine with GPUs that support MIG.
struct Gpus {
    /// Their PCI IDs.
    ids: &'static [&'static str],
    /// Further arguments of `install`.
    flags: &'static [&'static str],
    /// The numbers of layouts in each of [`FILES`] that it supports.
    supported: [usize; 2],
}

const MACHINES: [Gpus; 9] = [
    // A100 40 GB
    Gpus {
        ids: &["10de:20b0"],
        flags: &[],
        supported: [9, 10],
    },
    // NVIDIA's example has a layout for eight of them.
    Gpus {
        ids: &["10de:20b0"; 8],
        flags: &[],
        supported: [9, 10],
    },
    // A100 80 GB
    Gpus {
        ids: &["10de:20b2"],
        flags: &[],
        supported: [4, 10],
    },
    // A30
    Gpus {
        ids: &["10de:20b7"],
        flags: &[],
        supported: [3, 8],
    },
    // H100
    Gpus {
        ids: &["10de:2330"],
        flags: &[],
        supported: [4, 10],
    },
    // H200
    Gpus {
        ids: &["10de:2335"],
        flags: NEWER,
        supported: [3, 10],
    },
    // B200
    Gpus {
        ids: &["10de:2901"],
        flags: NEWER,
        supported: [3, 10],
    },
    // Both kinds of A100, and an H100: `all-1g.10gb` has more instances on the GPUs with 80 GB.
    Gpus {
        ids: &["10de:20b0", "10de:20b2", "10de:2330"],
        flags: &[],
        supported: [4, 4],
    },
    Gpus {
        ids: &[
            "10de:20b0",
            "10de:20b2",
            "10de:20b7",
            "10de:2330",
            "10de:2335",
            "10de:2901",
        ],
        flags: NEWER,
        supported: [2, 3],
    },
];

/// The layouts that gpu-bootstrap computes for [`MACHINES`].
const TABLE: &str = "tests/mig-parted/layouts.txt";

/// The first lines of [`TABLE`].
const HEADER: &str = "\
# The layouts that gpu-bootstrap computes from the files of mig-parted, written by `make update`. A line contains the PCI device IDs of
# the GPUs, the layout of each GPU, a file, and the names of its layouts that result in these layouts. Names with a minus sign are
# rejected: the GPUs then have the profiles with the same numbers of slices, as far as they exist.
";

/// The address of a GPU.
fn address(index: usize) -> String {
    format!("0000:{:02x}:00.0", 6 + index)
}

/// MIG mode, and the number of instances by profile.
type Expected = (bool, BTreeMap<String, u64>);

/// The layout of a GPU in a file, by mig-parted's rules: the last entry that matches.
fn expected(entries: &Value, id: &str, index: usize) -> Option<Expected> {
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
fn current(machine: &Machine, index: usize) -> Expected {
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

/// Computes a layout of a file for these GPUs.
fn computed(ids: &[&str], (path, text): (&str, &str), name: &str) -> Result<Vec<Layout>, NoLayout> {
    let request = LayoutRequest::File {
        path: path.into(),
        config: Some(name.to_owned()),
    };
    let gpus: Vec<MigGpu> = (ids.iter().enumerate())
        .map(|(index, id)| {
            let address = address(index).parse().expect("an address");
            MigGpu::of_model(address, id.parse().expect("an ID"), None, None, None)
        })
        .collect();
    let layouts = request.layouts(Some(text), &gpus)?;
    assert_eq!(layouts.len(), ids.len(), "each GPU supports MIG");
    Ok(layouts.into_iter().map(|one| one.layout).collect())
}

/// Returns the problem, unless gpu-bootstrap rejects the layout with the reason and a remedy: no entry matches a GPU, or the
/// matching one has a profile that the GPU lacks.
fn accepted(ids: &[&str], file: (&str, &str), name: &str, matches: bool) -> Option<String> {
    match computed(ids, file, name) {
        Err(NoLayout::Fault(fault))
            if fault.why.contains("the GPU has no profile")
                && fault.remedy.contains("use a layout that fits on it: `1g.") =>
        {
            None
        }
        Err(NoLayout::Fault(fault)) if !matches && fault.why.contains("no entry of") => None,
        other => Some(format!("{other:?}")),
    }
}

fn machine_with(ids: &[&str]) -> Machine {
    let mut files = Table::new();
    for (path, text) in FILES {
        files.insert(path.to_owned(), text.into());
    }
    const EXE: &str = "/usr/local/bin/gpu-bootstrap";
    files.insert(EXE.to_owned(), "the program".into());
    let mut links = Table::new();
    links.insert("/proc/self/exe".to_owned(), EXE.into());
    let mut differs = Table::new();
    differs.insert("gpus".to_owned(), ids.to_vec().into());
    differs.insert("files".to_owned(), files.into());
    differs.insert("links".to_owned(), links.into());
    Machine::new(describe("debian-12-h100", differs))
}

/// Applies the supported layouts one after the other, and removes the last one. Returns the problems.
fn wrong_with(gpus: &Gpus) -> Vec<String> {
    let ids = gpus.ids;
    let most: Vec<BTreeMap<String, u64>> = (ids.iter())
        .map(|id| mig::model(id).expect("a model with MIG").most)
        .collect();
    let machine = machine_with(ids);
    // Without containers, because scenarios cover their devices.
    let alone = [
        "install",
        "--set",
        "runtime.use=[]",
        "--set",
        "cdi.enabled=false",
    ];
    let install = |more: &[&str]| machine.run(&[&alone, gpus.flags, more].concat());
    let ran = install(&[]);
    if ran.exit != 0 {
        return vec![format!("{ids:?}: {}", told(&ran))];
    }
    let before = machine.snapshot();
    let mut wrong = Vec::new();
    let mut applied = [0, 0];
    for ((path, text), applied) in FILES.into_iter().zip(&mut applied) {
        let file: Value = serde_saphyr::from_str(text).expect("YAML");
        for (name, entries) in file["mig-configs"].as_object().expect("layouts") {
            let case = format!("{ids:?}, `{name}` of `{path}`");
            let all: Option<Vec<Expected>> = (ids.iter().enumerate())
                .map(|(index, id)| expected(entries, id, index))
                .collect();
            let matches = all.is_some();
            let are_supported = |all: &Vec<Expected>| {
                (most.iter().zip(all)).all(|(most, one)| is_supported(most, one))
            };
            let Some(expected) = all.filter(are_supported) else {
                let why = accepted(ids, (path, text), name, matches);
                wrong.extend(why.map(|why| format!("{case}: {why}")));
                continue;
            };
            *applied += 1;
            let (file, config) = (format!("mig.file={path}"), format!("mig.config={name}"));
            let ran = install(&["--set", &file, "--set", &config]);
            let now: Vec<Expected> = (0..ids.len())
                .map(|index| current(&machine, index))
                .collect();
            if ran.exit != 0 || now != expected {
                let told = told(&ran);
                wrong.push(format!("{case}: {now:?} instead of {expected:?}: {told}"));
            }
        }
    }
    if applied != gpus.supported {
        wrong.push(format!("{ids:?}: {applied:?} layouts were applied"));
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

/// The layout of a GPU after mig-parted tried to create a layout that the GPU does not support. The driver selects profiles by their
/// numbers of slices, and mig-parted only compares the memory afterwards. Source: NVIDIA/mig-parted v0.14.4,
/// `pkg/mig/config/config.go`, `SetMigConfig`.
fn nearest(id: &str, entries: &Value, index: usize) -> Layout {
    let Some((true, counts)) = expected(entries, id, index) else {
        return Layout::default();
    };
    let most = mig::model(id).expect("a model with MIG").most;
    let own: Vec<(Profile, u64)> = (most.iter())
        .map(|(name, most)| (name.parse().expect("a profile"), *most))
        .collect();
    let mut profiles = Vec::new();
    for (name, count) in counts {
        let wanted: Profile = name.parse().expect("a profile");
        let like =
            |(one, _): &&(Profile, u64)| one.slices == wanted.slices && one.mark == wanted.mark;
        let exact = own.iter().find(|(one, _)| *one == wanted);
        let found = exact.or_else(|| own.iter().filter(like).min());
        if let Some((profile, most)) = found {
            profiles.extend((0..count.min(*most)).map(|_| *profile));
        }
    }
    Layout::with(profiles)
}

/// Whether a rejected layout is compared. mig-parted needs a second for each layout of many GPUs, so mixed ones are compared if one
/// of a few GPUs has the profiles.
fn is_compared(ids: &[&str], entries: &Value) -> bool {
    let has_profiles = |(index, id): (usize, &&str)| {
        let most = mig::model(id).expect("a model with MIG").most;
        expected(entries, id, index)
            .is_some_and(|one| !one.1.is_empty() && is_supported(&most, &one))
    };
    match ids.len() {
        1 => true,
        2 | 3 => ids.iter().enumerate().any(has_profiles),
        _ => false,
    }
}

fn table() -> String {
    let mut text = HEADER.to_owned();
    for Gpus { ids, .. } in &MACHINES {
        let devices: Vec<&str> = ids
            .iter()
            .map(|id| id.trim_start_matches("10de:"))
            .collect();
        for (path, text_of_file) in FILES {
            // Like one of these GPUs, except for the example file.
            if ids.len() > 1 && ids.iter().all(|id| *id == ids[0]) && path != FILES[0].0 {
                continue;
            }
            let file: Value = serde_saphyr::from_str(text_of_file).expect("YAML");
            let mut names: BTreeMap<String, Vec<String>> = BTreeMap::new();
            for (name, entries) in file["mig-configs"].as_object().expect("layouts") {
                let (layouts, name) = match computed(ids, (path, text_of_file), name) {
                    Ok(layouts) => (layouts, name.clone()),
                    Err(_) if !is_compared(ids, entries) => continue,
                    Err(_) => {
                        let all = ids.iter().enumerate();
                        let all = all.map(|(index, id)| nearest(id, entries, index));
                        (all.collect(), format!("-{name}"))
                    }
                };
                let layouts: Vec<String> = layouts.iter().map(ToString::to_string).collect();
                names.entry(layouts.join("/")).or_default().push(name);
            }
            let name = Path::new(path).file_name().and_then(|name| name.to_str());
            let (devices, name) = (devices.join(","), name.expect("a name"));
            for (layouts, names) in names {
                let names = names.join(" ");
                text.push_str(&format!("{devices} {layouts} {name} {names}\n"));
            }
        }
    }
    text
}

#[test]
fn machine_case_compares_the_layouts_of_the_program() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(TABLE);
    let now = table();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&path, now).expect("the table can be written");
        return;
    }
    let kept = fs::read_to_string(&path).expect("the table");
    assert!(kept == now, "{TABLE} is stale; run `make update`");
}
