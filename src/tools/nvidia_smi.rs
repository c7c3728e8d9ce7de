//! Commands of `nvidia-smi` that change MIG.
//!
//! `nvidia-smi` is used instead of NVML calls, because a reset is only possible with it, it accepts the names of profiles, and a
//! GPU instance with its compute instance is one command. NVML reads the result. Source of the options: `nvidia-smi --help` and
//! `nvidia-smi mig --help`.

use std::{fmt::Display, time::Duration};

use crate::{
    host::{Cmd, Output},
    model::pci::PciAddress,
};

const PROGRAM: &str = "nvidia-smi";

/// The deadline of a change. The command hangs on a faulty GPU. A reset of 8 GPUs takes less than a minute.
const DEADLINE: Duration = Duration::from_secs(180);

fn change(args: impl IntoIterator<Item = String>) -> Cmd {
    Cmd::new(PROGRAM, args).deadline(DEADLINE)
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// Sets the MIG mode. On Ampere, it becomes effective at the next reset of the GPU.
pub fn set_mig_mode(gpu: PciAddress, enabled: bool) -> Cmd {
    let mode = if enabled { "1" } else { "0" };
    change(words(&["-i", &gpu.to_string(), "-mig", mode]))
}

/// Destroys all compute instances of a GPU. Fails if there are none, see [`found_none`].
pub fn destroy_compute_instances(gpu: PciAddress) -> Cmd {
    change(words(&["mig", "-i", &gpu.to_string(), "-dci"]))
}

/// Destroys all GPU instances of a GPU. Fails if there are none, see [`found_none`].
pub fn destroy_gpu_instances(gpu: PciAddress) -> Cmd {
    change(words(&["mig", "-i", &gpu.to_string(), "-dgi"]))
}

/// Creates GPU instances, each with a compute instance of its size. With a position, an instance starts at this memory slice.
pub fn create_instances<P: Display>(gpu: PciAddress, instances: &[(P, Option<u32>)]) -> Cmd {
    let texts: Vec<String> = (instances.iter())
        .map(|(profile, start)| placed(profile, *start))
        .collect();
    let gpu = gpu.to_string();
    change(words(&["mig", "-i", &gpu, "-cgi", &texts.join(","), "-C"]))
}

/// Creates a GPU instance without a compute instance, see [`created_instance`].
pub fn create_gpu_instance<P: Display>(gpu: PciAddress, profile: P, start: Option<u32>) -> Cmd {
    let gpu = gpu.to_string();
    change(words(&[
        "mig",
        "-i",
        &gpu,
        "-cgi",
        &placed(&profile, start),
    ]))
}

/// Creates compute instances in the GPU instance with this ID.
pub fn create_compute_instances<P: Display>(gpu: PciAddress, id: u32, profiles: &[P]) -> Cmd {
    let texts: Vec<String> = profiles.iter().map(ToString::to_string).collect();
    let (gpu, id) = (gpu.to_string(), id.to_string());
    change(words(&[
        "mig",
        "-i",
        &gpu,
        "-gi",
        &id,
        "-cci",
        &texts.join(","),
    ]))
}

fn placed(profile: &impl Display, start: Option<u32>) -> String {
    match start {
        Some(start) => format!("{profile}:{start}"),
        None => profile.to_string(),
    }
}

/// Returns the ID of the GPU instance that [`create_gpu_instance`] has created: "Successfully created GPU instance ID  2 on GPU  0
/// using profile MIG 3g.20gb (ID  9)". Source: NVIDIA Multi-Instance GPU User Guide, "Creating GPU Instances".
pub fn created_instance(output: &Output) -> Option<u32> {
    let (_, rest) = output.stdout.split_once("created GPU instance ID")?;
    rest.split_whitespace().next()?.parse().ok()
}

/// Resets GPUs together. GPUs that are connected by NVSwitches can only be reset together.
pub fn reset(gpus: &[PciAddress]) -> Cmd {
    let all: Vec<String> = gpus.iter().map(ToString::to_string).collect();
    change(words(&["-r", "-i", &all.join(",")]))
}

/// Whether a command failed only because there is nothing to destroy: "No GPU instances found: Not Found".
pub fn found_none(output: &Output) -> bool {
    let is_none = |text: &str| {
        text.contains("No GPU instances found") || text.contains("No compute instances found")
    };
    is_none(&output.stdout) || is_none(&output.stderr)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::fake::{failed, ok};

    #[test]
    fn instances_are_created_at_their_positions() {
        let gpu = "0000:18:00.0".parse().unwrap();
        let cmd = create_instances(gpu, &[("3g.40gb", Some(4)), ("1g.10gb", None)]);
        assert_eq!(
            cmd.line(),
            "nvidia-smi mig -i 0000:18:00.0 -cgi 3g.40gb:4,1g.10gb -C"
        );
        let other = "0000:2a:00.0".parse().unwrap();
        assert_eq!(
            reset(&[gpu, other]).line(),
            "nvidia-smi -r -i 0000:18:00.0,0000:2a:00.0"
        );
    }

    #[test]
    fn compute_instances_are_created_in_a_gpu_instance() {
        let gpu = "0000:18:00.0".parse().unwrap();
        assert_eq!(
            create_gpu_instance(gpu, "3g.40gb", Some(4)).line(),
            "nvidia-smi mig -i 0000:18:00.0 -cgi 3g.40gb:4"
        );
        assert_eq!(
            create_compute_instances(gpu, 2, &["2c.3g.40gb", "1c.3g.40gb"]).line(),
            "nvidia-smi mig -i 0000:18:00.0 -gi 2 -cci 2c.3g.40gb,1c.3g.40gb"
        );
        let output = ok(
            "Successfully created GPU instance ID 13 on GPU  0 using profile MIG 3g.40gb (ID  9)\n",
        );
        assert_eq!(created_instance(&output), Some(13));
        assert_eq!(created_instance(&ok("")), None);
    }

    #[test]
    fn nothing_to_destroy_is_recognized() {
        assert!(found_none(&ok("No GPU instances found: Not Found\n")));
        assert!(!found_none(&failed(
            19,
            "Unable to destroy GPU instance ID 1 from GPU 0: In use by another client\n"
        )));
    }
}
