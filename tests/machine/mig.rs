//! Simulates MIG: the mode and the instances of each GPU, in a file of its sysfs directory, and `nvidia-smi`, which changes them.

use std::collections::BTreeMap;

use gpu_bootstrap::{
    host::{
        Cmd, ExecError, MigDevice, MigShare, MigSupport, Output,
        fake::{FakeFiles, failed, ok},
    },
    mig::{GpuLayout, Layout, Profile},
};

use crate::{
    kernel,
    state::{State, exists, list, text},
    units,
};

const UNIT: &str = "gpu-bootstrap-mig.service";

/// The models that support MIG: the PCI ID, the compute slices, and the profiles with the largest number of instances. Not from
/// the product, which these tests check. Source: NVIDIA Multi-Instance GPU User Guide, "Supported MIG Profiles".
const MODELS: [(&str, u32, &str); 7] = rows! {
    // A100 40 GB
    "10de:20b0", 7, "1g.5gb*7 1g.5gb+me*1 1g.10gb*4 2g.10gb*3 3g.20gb*2 4g.20gb*1 7g.40gb*1";
    // A100 80 GB
    "10de:20b2", 7, "1g.10gb*7 1g.10gb+me*1 1g.20gb*4 2g.20gb*3 3g.40gb*2 4g.40gb*1 7g.80gb*1";
    "10de:20b5", 7, "1g.10gb*7 1g.10gb+me*1 1g.20gb*4 2g.20gb*3 3g.40gb*2 4g.40gb*1 7g.80gb*1";
    // A30
    "10de:20b7", 4, "1g.6gb*4 1g.6gb+me*1 2g.12gb*2 2g.12gb+me*1 4g.24gb*1";
    // H100
    "10de:2330", 7, "1g.10gb*7 1g.10gb+me*1 1g.20gb*4 2g.20gb*3 3g.40gb*2 4g.40gb*1 7g.80gb*1";
    // H200
    "10de:2335", 7, "1g.18gb*7 1g.18gb+me*1 1g.35gb*4 2g.35gb*3 3g.71gb*2 4g.71gb*1 7g.141gb*1";
    // B200
    "10de:2901", 7, "1g.23gb*7 1g.23gb+me*1 1g.45gb*4 2g.45gb*3 3g.90gb*2 4g.90gb*1 7g.180gb*1";
};

/// What fits on a model.
pub struct Model {
    slices: u32,
    /// The largest number of instances by profile.
    pub most: BTreeMap<String, u64>,
}

/// `None` for a model without MIG.
pub fn model(id: &str) -> Option<Model> {
    let (_, slices, profiles) = MODELS.iter().find(|(own, _, _)| *own == id)?;
    let count = |text: &str| {
        let (name, most) = text.split_once('*').expect("a count");
        (name.to_owned(), most.parse().expect("a number"))
    };
    Some(Model {
        slices: *slices,
        most: profiles.split(' ').map(count).collect(),
    })
}

/// The MIG state of a GPU.
#[derive(Debug, Clone, Default, PartialEq)]
struct Mig {
    current: bool,
    pending: bool,
    profiles: Vec<Profile>,
    /// GPU instances without a compute instance of their size. The index is the ID.
    gpu_instances: Vec<Profile>,
}

fn directory(address: &str) -> String {
    format!("/sys/bus/pci/devices/{address}")
}

fn path(address: &str) -> String {
    format!("{}/simulated-mig", directory(address))
}

/// Parses `1 1 3g.40gb,1g.10gb`: the current mode, the pending mode and the instances, or `-` without instances. GPU instances
/// with smaller compute instances follow: `1 1 1c.3g.40gb,1g.10gb 3g.40gb`.
fn read(files: &FakeFiles, address: &str) -> Mig {
    let Some(text) = text(files, &path(address)) else {
        return Mig::default();
    };
    let words: Vec<&str> = text.split_whitespace().collect();
    let (current, pending, profiles, gpu_instances) = match words[..] {
        [current, pending, profiles] => (current, pending, profiles, "-"),
        [current, pending, profiles, gpu_instances] => (current, pending, profiles, gpu_instances),
        _ => panic!("{}: {text}", path(address)),
    };
    Mig {
        current: current == "1",
        pending: pending == "1",
        profiles: parsed(profiles),
        gpu_instances: parsed(gpu_instances),
    }
}

fn parsed(names: &str) -> Vec<Profile> {
    let names = names.split(',').filter(|name| *name != "-");
    // A position follows the profile.
    let names = names.filter_map(|name| name.split(':').next());
    names.map(|name| name.parse().expect("a profile")).collect()
}

fn joined(profiles: &[Profile]) -> String {
    let names: Vec<String> = profiles.iter().map(ToString::to_string).collect();
    match names.is_empty() {
        true => "-".to_owned(),
        false => names.join(","),
    }
}

fn write(files: &FakeFiles, address: &str, mig: &Mig) {
    if *mig == Mig::default() {
        files.take(&path(address));
        return;
    }
    let names = joined(&mig.profiles);
    let (current, pending) = (u8::from(mig.current), u8::from(mig.pending));
    let mut line = format!("{current} {pending} {names}");
    if !mig.gpu_instances.is_empty() {
        line.push_str(&format!(" {}", joined(&mig.gpu_instances)));
    }
    files.put(&path(address), format!("{line}\n"));
}

/// Ampere keeps its mode and needs a reset to change it.
fn is_ampere(files: &FakeFiles, address: &str) -> bool {
    let device = text(files, &format!("{}/device", directory(address))).unwrap_or_default();
    device.starts_with("0x20")
}

/// The PCI ID of a GPU.
fn id(files: &FakeFiles, address: &str) -> String {
    let value = |name: &str| {
        let text = text(files, &format!("{}/{name}", directory(address))).unwrap_or_default();
        text.trim().trim_start_matches("0x").to_owned()
    };
    format!("{}:{}", value("vendor"), value("device"))
}

/// The compute capability of a model with MIG, which determines whether its mode needs a reset.
pub fn compute_capability(files: &FakeFiles, address: &str) -> Option<String> {
    let id = id(files, address);
    model(&id)?;
    let text = match id.strip_prefix("10de:")?.get(..2)? {
        "20" => "8.0",
        "23" => "9.0",
        "29" => "10.0",
        other => panic!("the architecture of {other} is not simulated"),
    };
    Some(text.to_owned())
}

/// The mode, the devices and the pending mode in NVML. `None` for a model without MIG.
pub fn nvml(files: &FakeFiles, address: &str) -> Option<(bool, Vec<MigDevice>, MigSupport)> {
    model(&id(files, address))?;
    let mig = read(files, address);
    let device = |(index, profile): (u32, &Profile)| MigDevice {
        index,
        uuid: Some(format!("MIG-{address}-{index}")),
        profile: Some(profile.to_string()),
        share: Some(MigShare::default()),
    };
    let devices = (0..).zip(&mig.profiles).map(device).collect();
    let support = MigSupport {
        pending: mig.pending,
        profiles: Vec::new(),
    };
    Some((mig.current, devices, support))
}

/// Whether a process has the device node of the GPU open.
fn is_used(files: &FakeFiles, address: &str) -> bool {
    let index = kernel::usable(files)
        .iter()
        .position(|one| one == address)
        .expect("a GPU");
    let node = format!("/dev/nvidia{index}");
    list(files, "/proc").iter().any(|pid| {
        list(files, &format!("/proc/{pid}/fd")).iter().any(|fd| {
            use gpu_bootstrap::host::{FileKind, ReadFiles};
            let fd = format!("/proc/{pid}/fd/{fd}");
            let stat = files.stat(fd.as_str().into()).expect("a link");
            stat.is_some_and(
                |stat| matches!(stat.kind, FileKind::Link(target) if target == node.as_str()),
            )
        })
    })
}

/// Whether a command line changes the machine.
pub fn changes(cmd: &Cmd) -> bool {
    cmd.args.iter().any(|arg| arg == "-i")
}

/// `nvidia-smi`. Queries are not simulated.
pub fn nvidia_smi(cmd: &Cmd, files: &FakeFiles, state: &State) -> Result<Output, ExecError> {
    let args: Vec<&str> = cmd.args.iter().map(String::as_str).collect();
    Ok(match args[..] {
        ["-i", gpu, "-mig", mode] => set_mode(files, gpu, mode == "1"),
        ["mig", "-i", gpu, "-dci"] => destroy(files, gpu, "compute", false),
        ["mig", "-i", gpu, "-dgi"] => destroy(files, gpu, "GPU", true),
        ["mig", "-i", gpu, "-cgi", profiles, "-C"] => create(files, state, gpu, profiles),
        ["mig", "-i", gpu, "-cgi", profile] => create_gpu_instance(files, gpu, profile),
        ["mig", "-i", gpu, "-gi", id, "-cci", profiles] => {
            create_compute_instances(files, gpu, id, profiles)
        }
        ["-r", "-i", gpus] => reset(files, state, gpus),
        ["--query"] => {
            return Err(ExecError::NotFound {
                program: cmd.program.clone(),
            });
        }
        _ => panic!("the simulated nvidia-smi does not support `{}`", cmd.line()),
    })
}

fn set_mode(files: &FakeFiles, gpu: &str, enabled: bool) -> Output {
    let mut mig = read(files, gpu);
    if is_used(files, gpu) {
        return failed(
            19,
            format!("Unable to set MIG mode for GPU {gpu}: In use by another client\n"),
        );
    }
    mig.pending = enabled;
    let mut told = String::new();
    if is_ampere(files, gpu) {
        told = format!("Warning: MIG mode is in pending state for GPU {gpu}\n");
    } else {
        assert!(mig.profiles.is_empty(), "{gpu} has instances");
        mig.current = enabled;
    }
    write(files, gpu, &mig);
    ok(told)
}

fn destroy(files: &FakeFiles, gpu: &str, what: &str, last: bool) -> Output {
    let mut mig = read(files, gpu);
    if mig.profiles.is_empty() && mig.gpu_instances.is_empty() {
        return Output {
            stdout: format!("No {what} instances found: Not Found\n"),
            ..failed(6, "")
        };
    }
    if last {
        mig.profiles.clear();
        mig.gpu_instances.clear();
        write(files, gpu, &mig);
    }
    ok("")
}

fn create(files: &FakeFiles, state: &State, gpu: &str, profiles: &str) -> Output {
    let mut mig = read(files, gpu);
    assert!(mig.current, "{gpu} is not in MIG mode");
    let new = parsed(profiles);
    if state.faults.mig.as_deref() == Some("create") {
        // The first instance was created.
        mig.profiles.extend(new.first());
        write(files, gpu, &mig);
        return failed(
            19,
            format!("Unable to create a GPU instance on GPU {gpu}: Insufficient Resources\n"),
        );
    }
    mig.profiles.extend(new);
    match fits(files, gpu, &mig, &[]) {
        Ok(()) => {
            write(files, gpu, &mig);
            ok("")
        }
        Err(output) => output,
    }
}

/// Fails if the instances, and further GPU instances, do not fit on the GPU.
fn fits(files: &FakeFiles, gpu: &str, mig: &Mig, further: &[Profile]) -> Result<(), Output> {
    let model = model(&id(files, gpu)).expect("a model with MIG");
    let whole = Layout::with(mig.profiles.clone()).gpu_instances();
    let mut instances: Vec<Profile> = whole.iter().map(|instance| instance.profile).collect();
    instances.extend(further);
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    for profile in &instances {
        *counts.entry(profile.to_string()).or_default() += 1;
    }
    let slices: u32 = instances.iter().map(|profile| profile.slices).sum();
    let mut each = counts.iter();
    let all_fit =
        each.all(|(name, count)| (model.most.get(name)).is_some_and(|most| count <= most));
    match all_fit && slices <= model.slices {
        true => Ok(()),
        false => Err(failed(
            19,
            format!("Unable to create a GPU instance on GPU {gpu}: Insufficient Resources\n"),
        )),
    }
}

fn create_gpu_instance(files: &FakeFiles, gpu: &str, profile: &str) -> Output {
    let mut mig = read(files, gpu);
    assert!(mig.current, "{gpu} is not in MIG mode");
    let (id, new) = (mig.gpu_instances.len(), parsed(profile));
    if let Err(output) = fits(files, gpu, &mig, &new) {
        return output;
    }
    mig.gpu_instances.extend(new);
    write(files, gpu, &mig);
    ok(format!(
        "Successfully created GPU instance ID {id:>2} on GPU  0 using profile MIG {profile} (ID  9)\n"
    ))
}

fn create_compute_instances(files: &FakeFiles, gpu: &str, id: &str, profiles: &str) -> Output {
    let mut mig = read(files, gpu);
    let id: usize = id.parse().expect("an ID");
    let new = parsed(profiles);
    let used: u32 = new.iter().filter_map(|profile| profile.compute).sum();
    let parent = mig.gpu_instances[id];
    let are_its_own = new
        .iter()
        .all(|profile| profile.of_gpu_instance() == parent);
    assert!(
        are_its_own && used <= parent.slices,
        "{profiles} in {parent}"
    );
    mig.profiles.extend(new);
    write(files, gpu, &mig);
    ok("")
}

fn reset(files: &FakeFiles, state: &State, gpus: &str) -> Output {
    let gpus: Vec<&str> = gpus.split(',').collect();
    let cannot = |gpu: &str| !exists(files, &format!("{}/reset", directory(gpu)));
    let fails = state.faults.mig.as_deref() == Some("reset");
    if let Some(gpu) = (gpus.iter()).find(|gpu| fails || cannot(gpu) || is_used(files, gpu)) {
        return failed(
            255,
            format!(
                "GPU Reset couldn't run because GPU {gpu} is in use by one or more processes.\n"
            ),
        );
    }
    for gpu in gpus {
        take_effect(files, gpu);
    }
    ok("GPUs were successfully reset.\n")
}

fn take_effect(files: &FakeFiles, gpu: &str) {
    let pending = read(files, gpu).pending;
    let mig = Mig {
        current: pending,
        pending,
        ..Mig::default()
    };
    write(files, gpu, &mig);
}

/// Loses the instances, and on Hopper the mode.
pub fn reboot(files: &FakeFiles, state: &State) {
    let stays = state.faults.mig.as_deref() == Some("pending");
    for gpu in kernel::gpus(files) {
        match is_ampere(files, &gpu) {
            true if stays => {
                let Mig {
                    current, pending, ..
                } = read(files, &gpu);
                let mig = Mig {
                    current,
                    pending,
                    ..Mig::default()
                };
                write(files, &gpu, &mig);
            }
            true => take_effect(files, &gpu),
            false => write(files, &gpu, &Mig::default()),
        }
    }
}

/// Starts the unit, which sets the layouts in its command line.
pub fn start_unit(files: &FakeFiles, state: &State) -> Result<String, String> {
    let command = units::command(files, UNIT).unwrap_or_default();
    for word in command.split(' ') {
        let Ok(GpuLayout { gpu, layout }) = word.parse::<GpuLayout>() else {
            continue;
        };
        let address = gpu.to_string();
        let now = read(files, &address);
        if now.current && layout == Layout::with(now.profiles) {
            continue;
        }
        if layout.enabled && !read(files, &address).current {
            let output = set_mode(files, &address, true);
            if !output.ok() {
                return Err(output.stderr);
            }
            if is_ampere(files, &address)
                && !exists(files, &format!("{}/reset", directory(&address)))
            {
                return Err("this machine cannot reset its GPUs".to_owned());
            }
            take_effect(files, &address);
        }
        if !layout.profiles().is_empty() {
            let output = create(files, state, &address, &layout_names(&layout));
            if !output.ok() {
                // The program destroys a partial layout.
                take_effect(files, &address);
                return Err(output.stderr);
            }
        }
    }
    Ok(String::new())
}

fn layout_names(layout: &Layout) -> String {
    let names: Vec<String> = (layout.profiles().iter())
        .map(ToString::to_string)
        .collect();
    names.join(",")
}
