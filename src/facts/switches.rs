//! Detects whether the GPUs are connected through NVLink switches. Before Blackwell, the switches
//! are PCI devices. Since Blackwell, they are managed by a network device, which is identified by its
//! vital product data (VPD). The VPD is readable only by root and not visible in a guest, so the
//! instance type and the board are also used as evidence.

use gpu_compat::matrix::{Fabric, Matrix};

use super::{Facts, GpuFact, PciFact};
use crate::model::{gpu::GpuIdentity, pci::PciAddress};

/// The evidence of switches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Evidence {
    /// The number of switches on the PCI bus.
    Bus(usize),
    /// The VPD of a network device.
    ProductData,
    /// The name of an instance type with switches.
    InstanceType(String),
    /// The label of a baseboard that always has switches. The machine has all of its GPUs.
    Board(String),
    /// NVML reports that GPUs are waiting to join a fabric. Only found by the fabric check.
    Nvml,
}

/// The number of GPUs on an HGX Blackwell baseboard.
const BASEBOARD: usize = 8;

/// Returns the required fabric software and the evidence, or `None` without evidence of switches.
pub fn switches(matrix: &Matrix, facts: &Facts) -> Option<(Fabric, Evidence)> {
    if facts.gpus.is_empty() {
        return None;
    }
    match facts.nvswitches.len() {
        0 => {}
        count => return Some((Fabric::Fm, Evidence::Bus(count))),
    }
    if facts.nvlink_management == Some(true) {
        return Some((Fabric::FmNvlsm, Evidence::ProductData));
    }
    let cloud = &facts.cloud;
    if let (Some(provider), Some(name)) = (&cloud.provider, &cloud.instance_type)
        && let Some(row) = matrix.instance_type(provider, name)
        && matches!(row.fabric, Fabric::Fm | Fabric::FmNvlsm)
        && facts.gpus.len() >= row.gpus as usize
    {
        return Some((row.fabric, Evidence::InstanceType(name.clone())));
    }
    // The board is evidence only on bare metal, because a guest may have all GPUs of a board whose
    // switches are managed on the host. If the VPD is readable and does not match, there are no switches.
    let is_metal = facts.virtualization.as_deref() == Some("none");
    let boards = facts
        .gpus
        .iter()
        .map(GpuFact::identity)
        .map(|gpu| matrix.board(&gpu));
    let behind: Vec<_> = boards
        .filter(|board| board.fabric() == Fabric::FmNvlsm)
        .collect();
    if is_metal && behind.len() >= BASEBOARD && facts.nvlink_management.is_none() {
        return Some((Fabric::FmNvlsm, Evidence::Board(behind[0].label.clone())));
    }
    None
}

/// Adds the evidence that [`switches`] finds on a machine with this GPU and switches.
pub fn assume(facts: &mut Facts, matrix: &Matrix, gpu: &GpuIdentity) {
    match matrix.board(gpu).fabric() {
        Fabric::FmNvlsm => facts.nvlink_management = Some(true),
        _ => facts.nvswitches = on_bus(matrix).into_iter().collect(),
    }
}

/// Returns an NVSwitch on the PCI bus, with a PCI ID from the matrix.
fn on_bus(matrix: &Matrix) -> Option<PciFact> {
    let mut rows = matrix.nvswitches.iter().filter(|row| row.is_switch);
    let pci_id = rows.find_map(|row| row.pci_id)?;
    Some(PciFact {
        pci_address: PciAddress {
            domain: 0,
            bus: u8::MAX,
            device: 0,
            function: 0,
        },
        pci_id,
        name: None,
    })
}

#[cfg(test)]
mod tests {
    use gpu_compat::matrix::{Fabric, Matrix};

    use super::{Evidence, switches};
    use crate::{
        facts::{Facts, PciFact},
        steps::fixtures,
    };

    fn on(id: &str, count: usize) -> Facts {
        let mut facts = fixtures::facts();
        let gpu = facts.gpus[0].clone();
        facts.gpus = vec![gpu; count];
        for gpu in &mut facts.gpus {
            gpu.pci_id = id.parse().unwrap();
        }
        facts.virtualization = Some("none".to_owned());
        facts
    }

    #[test]
    fn each_kind_of_evidence_is_detected() {
        let matrix = Matrix::builtin().unwrap();
        let of = |facts: &Facts| switches(&matrix, facts);
        assert_eq!(of(&on("10de:2330", 8)), None);
        let mut bus = on("10de:2330", 8);
        bus.nvswitches.push(PciFact {
            pci_address: "0000:07:00.0".parse().unwrap(),
            pci_id: "10de:22a3".parse().unwrap(),
            name: None,
        });
        assert_eq!(of(&bus), Some((Fabric::Fm, Evidence::Bus(1))));
        let mut data = on("10de:2901", 8);
        data.nvlink_management = Some(true);
        assert_eq!(of(&data), Some((Fabric::FmNvlsm, Evidence::ProductData)));
        for (provider, name, id, fabric) in rows! {
            "aws", "p6-b300.48xlarge", "10de:3182", Some(Fabric::FmNvlsm);
            "aws", "g6.xlarge", "10de:27b8", None;
        } {
            let mut guest = on(id, 8);
            guest.virtualization = Some("amazon".to_owned());
            guest.cloud.provider = Some(provider.to_owned());
            guest.cloud.instance_type = Some(name.to_owned());
            assert_eq!(of(&guest).map(|(fabric, _)| fabric), fabric, "{name}");
        }
        // Eight B300 are evidence on bare metal. Fewer GPUs, or eight in a guest, are not.
        assert!(matches!(
            of(&on("10de:3182", 8)),
            Some((Fabric::FmNvlsm, Evidence::Board(_)))
        ));
        assert_eq!(of(&on("10de:3182", 4)), None);
        let mut guest = on("10de:3182", 8);
        guest.virtualization = Some("kvm".to_owned());
        assert_eq!(of(&guest), None);
        let mut denied = on("10de:3182", 8);
        denied.nvlink_management = Some(false);
        assert_eq!(of(&denied), None);
        assert_eq!(of(&on("10de:3182", 0)), None);
    }
}
