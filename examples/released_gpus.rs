//! Writes `compat/tests/matrix/released-gpus.toml`: the GPUs that each NVIDIA driver release lists.
//!
//! The input is a clone of <https://github.com/NVIDIA/open-gpu-kernel-modules> with its tags. NVIDIA
//! tags each driver release there. Two files of each tag are machine-readable:
//!
//! - `src/nvidia/generated/g_nv_name_released.h`: the names of all released GPUs, by PCI device ID. It
//!   is shared with the proprietary modules, so it also contains GPUs that only these modules support.
//! - `README.md`: the table of the GPUs that the open modules support.
//!
//! ```sh
//! git clone --bare https://github.com/NVIDIA/open-gpu-kernel-modules modules.git
//! cargo run --example released_gpus -- modules.git > compat/tests/matrix/released-gpus.toml
//! ```

use std::{
    collections::{BTreeMap, BTreeSet},
    error::Error,
    io::{self, Write},
    process::{Command, Stdio},
};

use gpu_bootstrap::model::version::{Branch, DriverVersion};

const NAMES: &str = "src/nvidia/generated/g_nv_name_released.h";
const OPEN: &str = "README.md";

/// Version prefixes of Vulkan developer betas, which use the version numbers of ordinary branches, see
/// <https://github.com/NVIDIA/open-gpu-kernel-modules/releases/tag/550.40.65>. [`ORDINARY_BETAS`] have
/// such a prefix, but are the first releases of their branches.
const DEVELOPER_BETAS: [&str; 6] = [
    "515.49.", "525.47.", "535.43.", "550.40.", "570.123.", "580.94.",
];
const ORDINARY_BETAS: [&str; 2] = ["535.43.02", "550.40.07"];

/// The data of all releases about one PCI device ID.
#[derive(Default)]
struct Gpu {
    names: BTreeSet<String>,
    /// The first release of each branch whose name table contains it.
    since: BTreeMap<Branch, DriverVersion>,
    /// The first release of each branch whose table of the open modules contains it.
    open_since: BTreeMap<Branch, DriverVersion>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let repository = std::env::args_os()
        .nth(1)
        .ok_or("give the directory of a clone of open-gpu-kernel-modules")?;
    let mut releases: Vec<DriverVersion> = git(&repository, &["tag"])?
        .lines()
        .filter_map(|tag| tag.parse().ok())
        .filter(|release| !is_developer_beta(release))
        .collect();
    releases.sort();
    let mut gpus: BTreeMap<String, Gpu> = BTreeMap::new();
    for release in &releases {
        for (id, name) in released(&git(&repository, &["show", &format!("{release}:{NAMES}")])?) {
            let gpu = gpus.entry(id).or_default();
            gpu.names.insert(name);
            gpu.since
                .entry(release.branch())
                .or_insert_with(|| release.clone());
        }
        for id in open(&git(&repository, &["show", &format!("{release}:{OPEN}")])?) {
            let gpu = gpus.entry(id).or_default();
            gpu.open_since
                .entry(release.branch())
                .or_insert_with(|| release.clone());
        }
    }
    write(&releases, &gpus)?;
    Ok(())
}

fn git(repository: &std::ffi::OsStr, arguments: &[&str]) -> Result<String, Box<dyn Error>> {
    let output = Command::new("git")
        .arg("-C")
        .arg(repository)
        .args(arguments)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()?;
    if !output.status.success() {
        return Err(format!("`git {}` ended with {}", arguments.join(" "), output.status).into());
    }
    Ok(String::from_utf8(output.stdout)?)
}

fn is_developer_beta(release: &DriverVersion) -> bool {
    let text = release.as_str();
    DEVELOPER_BETAS
        .iter()
        .any(|series| text.starts_with(series))
        && !ORDINARY_BETAS.contains(&text)
}

/// Returns the device IDs and names of the GPUs in the header. Skips vGPU types, and rows without a name, which
/// are boards that were never released.
fn released(header: &str) -> Vec<(String, String)> {
    let table = header
        .split_once("sChipsReleased[] = {")
        .map_or("", |(_, rest)| rest.split("};").next().unwrap_or(""));
    table
        .lines()
        .filter_map(|line| {
            let row = line.trim().strip_prefix("{ 0x")?;
            let id = row.get(..4)?.to_ascii_lowercase();
            let name = row.split('"').nth(1)?;
            let named = name != "(null)" && !is_vgpu_type(name);
            named.then(|| (id, name.to_owned()))
        })
        .collect()
}

/// Returns `true` for the name of a vGPU type. It ends with a memory size and usually the letters of a license:
/// `GRID T4-16Q`, `NVIDIA H100XM-1-10CME`, `NVIDIA L20-12`. Three digits are a board: `NVIDIA PG506-232`.
fn is_vgpu_type(name: &str) -> bool {
    if name.starts_with("GRID ") {
        return true;
    }
    let Some((_, size)) = name.rsplit_once('-') else {
        return false;
    };
    let letters = size.trim_start_matches(|c: char| c.is_ascii_digit());
    match size.len() - letters.len() {
        0 => false,
        1 | 2 if letters.is_empty() => true,
        _ => matches!(letters, "A" | "B" | "B4" | "C" | "CME" | "Q" | "QME"),
    }
}

/// Returns the device IDs in the table of the open modules: `| NVIDIA H100 80GB HBM3 | 2330 10DE 16C1 |`.
fn open(readme: &str) -> BTreeSet<String> {
    readme
        .lines()
        .filter_map(|line| {
            let mut cells = line.strip_prefix('|')?.split('|').map(str::trim);
            let id = cells.nth(1)?.split(' ').next()?;
            let is_id = id.len() == 4 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
            is_id.then(|| id.to_ascii_lowercase())
        })
        .collect()
}

fn write(releases: &[DriverVersion], gpus: &BTreeMap<String, Gpu>) -> io::Result<()> {
    let mut to = io::stdout().lock();
    writeln!(
        to,
        "# Which GPUs each release of the NVIDIA driver knows. Generated by `examples/released_gpus.rs` from the\n\
         # tags of <https://github.com/NVIDIA/open-gpu-kernel-modules>; do not edit.\n\
         #\n\
         # since:      the first release of each branch that names the GPU (`{NAMES}`)\n\
         # open-since: the first release of each branch whose table of the open modules has it (`{OPEN}`)\n\
         # A branch without an entry does not know the GPU; branches without a release here were not looked at.\n"
    )?;
    list(&mut to, "releases", releases.iter())?;
    for (id, gpu) in gpus {
        writeln!(to, "\n[[gpu]]\npci-id = \"10de:{id}\"")?;
        list(&mut to, "names", gpu.names.iter())?;
        list(&mut to, "since", gpu.since.values())?;
        if !gpu.open_since.is_empty() {
            list(&mut to, "open-since", gpu.open_since.values())?;
        }
    }
    to.flush()
}

fn list<T: ToString>(
    to: &mut impl Write,
    key: &str,
    items: impl Iterator<Item = T>,
) -> io::Result<()> {
    let items: Vec<String> = items
        .map(|item| format!("{:?}", item.to_string()))
        .collect();
    writeln!(to, "{key} = [{}]", items.join(", "))
}
