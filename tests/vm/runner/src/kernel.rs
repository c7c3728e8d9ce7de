//! A simulated kernel that loads modules at any time, for machines on which the product installs a driver and uses it
//! in the same boot. The program `files/kernel.sh` in the machine does the work, with the data written here.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::simulation::{Fakes, INSIDE, devices, gpus, listing, program, put_smi, write};
use crate::tables::{MachineSpec, Machines};
use crate::{pci, simulation};

const KERNEL: &str = include_str!("../files/kernel.sh");
const SMI: &str = include_str!("../files/nvidia-smi.sh");

/// The UEFI variable for the Secure Boot state: four bytes of attributes, then the value.
const SECURE_BOOT: &str = "SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c";

/// Writes it into the root of a machine before its first boot; `kernel` is the version of its kernel package.
pub fn prepare(
    root: &Path,
    kernel: &str,
    machines: &Machines,
    spec: &MachineSpec,
    fakes: &Fakes,
) -> Result<()> {
    simulation::prepare(root, kernel, &spec.functions)?;
    let here = root.join(INSIDE.trim_start_matches('/'));
    program(&here.join("kernel"), KERNEL)?;
    program(&here.join("nvidia-smi"), SMI)?;
    write(&here.join("gpus"), &listing(&spec.functions))?;
    pci::fabricate(&here.join("pci-bound"), &spec.functions, true)?;
    write(
        &here.join("nodes"),
        &devices(&here.join("proc"), &spec.functions)?,
    )?;
    fs::copy(&fakes.nvml, here.join("nvml.so")).context("cannot copy the fake NVML")?;
    fs::copy(&fakes.cuda, here.join("cuda.so")).context("cannot copy the fake CUDA")?;
    put_smi(&here, fakes)?;
    let cuda: String = (machines.cuda_of_branch.iter())
        .map(|(branch, cuda)| format!("{branch} {cuda}\n"))
        .collect();
    write(&here.join("cuda"), &cuda)?;
    inventory(&here, spec)?;
    if spec.secure_boot {
        let variables = here.join("firmware/efi/efivars");
        fs::create_dir_all(&variables).context("cannot create a directory")?;
        fs::write(variables.join(SECURE_BOOT), [6, 0, 0, 0, 1])
            .context("cannot write a variable")?;
    }
    // A container has no udev, so this unit starts the units in the driver's udev rules.
    write(
        &root.join("usr/lib/systemd/system/testbed-nvidia.target"),
        "[Unit]\nDescription=The driver is loaded (the test bed)\nWants=nvidia-persistenced.service\n",
    )?;
    write(
        &root.join("usr/lib/systemd/system/systemd-modules-load.service.d/testbed.conf"),
        "[Unit]\nAfter=testbed.service\n\n[Service]\nExecStart=\nExecStart=/usr/lib/testbed/kernel at-boot\n",
    )
}

/// The GPUs that NVML lists. Those behind switches have joined no fabric before the fabric manager runs.
fn inventory(here: &Path, spec: &MachineSpec) -> Result<()> {
    let mut list = gpus(spec);
    let told = |list: &toml::Value| {
        let table = toml::Table::from_iter([("gpu".to_string(), list.clone())]);
        toml::to_string(&table).context("cannot write the fake's inventory")
    };
    write(&here.join("gpus.toml"), &told(&list)?)?;
    let switches =
        (spec.functions.iter()).any(|one| one.device.is_nvswitch() || one.device.vpd.is_some());
    if !switches {
        return Ok(());
    }
    for gpu in list.as_array_mut().into_iter().flatten() {
        let fabric = toml::Table::from_iter([("state".to_string(), "in-progress".into())]);
        if let Some(gpu) = gpu.as_table_mut() {
            gpu.insert("fabric".into(), fabric.into());
        }
    }
    write(&here.join("gpus-outside.toml"), &told(&list)?)
}
