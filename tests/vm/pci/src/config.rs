//! Configuration space: a type 0 header and the capabilities that a driver reads, with the writable bits, so that the
//! size probe of a BAR works.

use crate::table::Device;

/// Bytes of a PCI Express function's configuration space.
pub const SIZE: usize = 4096;

const COMMAND: usize = 0x04;
const BARS: usize = 0x10;
const INTERRUPT_LINE: usize = 0x3c;
// The offsets on a Hopper GPU: `lspci -vv` in github:NVIDIA/nvtrust#128.
const POWER: usize = 0x40;
const MSI: usize = 0x48;
const EXPRESS: usize = 0x60;

/// The registers of a function, and the bits that a write changes.
#[derive(Clone, Debug)]
pub struct ConfigSpace {
    bytes: Vec<u8>,
    writable: Vec<u8>,
}

impl ConfigSpace {
    /// The state after a reset.
    pub fn new(device: &Device) -> ConfigSpace {
        let mut space = ConfigSpace {
            bytes: vec![0; SIZE],
            writable: vec![0; SIZE],
        };
        space.header(device);
        space.power();
        space.msi();
        space.express();
        space
    }

    /// Reads bytes from `offset` on. Beyond the end all bits are one, as for a missing device.
    pub fn read(&self, offset: u64, data: &mut [u8]) {
        for (step, byte) in data.iter_mut().enumerate() {
            *byte = index(offset, step).map_or(0xff, |index| self.bytes[index]);
        }
    }

    /// Changes the writable bits.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        for (step, byte) in data.iter().enumerate() {
            if let Some(index) = index(offset, step) {
                let mask = self.writable[index];
                self.bytes[index] = self.bytes[index] & !mask | byte & mask;
            }
        }
    }

    fn header(&mut self, device: &Device) {
        self.put(0x00, device.id.vendor.to_le_bytes());
        self.put(0x02, device.id.device.to_le_bytes());
        // Memory space, bus master, parity and SERR, interrupt disable. No I/O space: no such BAR.
        self.allow(COMMAND, 0x0546u16.to_le_bytes());
        // Status: the list of capabilities exists.
        self.put(0x06, 0x0010u16.to_le_bytes());
        self.put(0x08, [device.revision]);
        let [interface, sub, base, _] = device.class.0.to_le_bytes();
        self.put(0x09, [interface, sub, base]);
        for bar in &device.bars {
            let at = BARS + 4 * usize::from(bar.index);
            let writable = !(bar.size() - 1);
            if bar.prefetchable {
                self.put(at, 0x0cu32.to_le_bytes());
                self.allow(at, writable.to_le_bytes());
            } else {
                self.allow(at, (writable as u32).to_le_bytes());
            }
        }
        self.put(0x2c, device.subsystem.vendor.to_le_bytes());
        self.put(0x2e, device.subsystem.device.to_le_bytes());
        self.put(0x34, [POWER as u8]);
        self.allow(INTERRUPT_LINE, [0xff]);
        // Interrupt pin A.
        self.put(0x3d, [1]);
    }

    fn power(&mut self) {
        self.put(POWER, [0x01, MSI as u8]);
        // Version 3 of the specification; no wake-up.
        self.put(POWER + 2, 0x0003u16.to_le_bytes());
        // No reset on the way from D3 to D0; the state is writable.
        self.put(POWER + 4, 0x0008u16.to_le_bytes());
        self.allow(POWER + 4, 0x0003u16.to_le_bytes());
    }

    fn msi(&mut self) {
        self.put(MSI, [0x05, EXPRESS as u8]);
        // One vector, 64-bit address.
        self.put(MSI + 2, 0x0080u16.to_le_bytes());
        self.allow(MSI + 2, 0x0071u16.to_le_bytes());
        self.allow(MSI + 4, 0xffff_fffcu32.to_le_bytes());
        self.allow(MSI + 8, u32::MAX.to_le_bytes());
        self.allow(MSI + 12, u16::MAX.to_le_bytes());
    }

    /// An endpoint whose link runs at its full speed and width, so that no tool reports a degraded link.
    fn express(&mut self) {
        self.put(EXPRESS, [0x10, 0x00]);
        // Version 2, endpoint.
        self.put(EXPRESS + 2, 0x0002u16.to_le_bytes());
        // 256 bytes of payload, role-based error reporting.
        self.put(EXPRESS + 4, 0x0000_8001u32.to_le_bytes());
        self.put(EXPRESS + 8, 0x2810u16.to_le_bytes());
        self.allow(EXPRESS + 8, 0x7fffu16.to_le_bytes());
        // 8 GT/s, 16 lanes: the capability and the state.
        self.put(EXPRESS + 12, 0x0000_0103u32.to_le_bytes());
        self.allow(EXPRESS + 16, 0x0fffu16.to_le_bytes());
        self.put(EXPRESS + 18, 0x0103u16.to_le_bytes());
        self.allow(EXPRESS + 40, 0xffffu16.to_le_bytes());
        // 2.5, 5 and 8 GT/s.
        self.put(EXPRESS + 44, 0x0000_000eu32.to_le_bytes());
        self.put(EXPRESS + 48, 0x0003u16.to_le_bytes());
        self.allow(EXPRESS + 48, 0xffffu16.to_le_bytes());
    }

    fn put<const N: usize>(&mut self, at: usize, value: [u8; N]) {
        self.bytes[at..at + N].copy_from_slice(&value);
    }

    fn allow<const N: usize>(&mut self, at: usize, mask: [u8; N]) {
        self.writable[at..at + N].copy_from_slice(&mask);
    }
}

fn index(offset: u64, step: usize) -> Option<usize> {
    let index = usize::try_from(offset).ok()?.checked_add(step)?;
    (index < SIZE).then_some(index)
}
