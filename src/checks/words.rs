//! What several families say in the same words.

use crate::facts::GpuFact;

/// The command that repairs what this program can repair.
pub(super) const INSTALL: &str = "run `gpu-bootstrap install`";

/// What brings back a GPU that no reboot brings back.
pub(super) const POWER: &str = "switch the machine off and on; a cloud's instance: stop and start it, which empties its \
                     local disks";

/// How a GPU is reset.
pub(super) const RESET: &str = "reboot, or run `nvidia-smi --gpu-reset` when nothing uses the GPU";

/// Why nothing is examined where there is no GPU.
pub const NO_GPU: &str = "no NVIDIA GPU is on the PCI bus";

/// The name of a GPU, or its id where it has none.
pub(super) fn name(gpu: &GpuFact) -> String {
    (gpu.name.clone()).unwrap_or_else(|| format!("GPU {}", gpu.pci_id))
}

/// GPUs by their names, each with its addresses: `H100 SXM5 80GB at 0000:18:00.0, 0000:2a:00.0`.
pub(super) fn places<'f>(gpus: impl IntoIterator<Item = &'f GpuFact>) -> String {
    let mut kinds: Vec<(String, Vec<String>)> = Vec::new();
    for gpu in gpus {
        let (name, address) = (name(gpu), gpu.pci_address.to_string());
        match kinds.iter_mut().find(|(kind, _)| *kind == name) {
            Some((_, addresses)) => addresses.push(address),
            None => kinds.push((name, vec![address])),
        }
    }
    let kinds: Vec<String> = kinds
        .into_iter()
        .map(|(name, addresses)| format!("{name} at {}", addresses.join(", ")))
        .collect();
    kinds.join("; ")
}

/// `1 GPU`, `2 GPUs`.
pub(super) fn gpus(count: usize) -> String {
    match count {
        1 => "1 GPU".to_owned(),
        count => format!("{count} GPUs"),
    }
}

#[cfg(test)]
mod tests {
    use super::{gpus, places};
    use crate::steps::fixtures::facts;

    #[test]
    fn gpus_of_one_kind_are_named_once() {
        let mut facts = facts();
        assert_eq!(
            places(&facts.gpus),
            "H100 SXM5 80GB at 0000:18:00.0, 0000:2a:00.0"
        );
        facts.gpus[1].name = None;
        assert_eq!(
            places(&facts.gpus),
            "H100 SXM5 80GB at 0000:18:00.0; GPU 10de:2330 at 0000:2a:00.0"
        );
        assert_eq!((gpus(1).as_str(), gpus(8).as_str()), ("1 GPU", "8 GPUs"));
    }
}
