//! One function behind the vfio-user protocol: its registers, and its responses to QEMU.

use std::fs::File;
use std::io;
use std::thread;
use std::time::Duration;

use vfio_bindings::bindings::vfio::{
    VFIO_IRQ_INFO_EVENTFD, VFIO_IRQ_INFO_NORESIZE, VFIO_IRQ_SET_ACTION_TRIGGER,
    VFIO_PCI_BAR0_REGION_INDEX, VFIO_PCI_BAR5_REGION_INDEX, VFIO_PCI_CONFIG_REGION_INDEX,
    VFIO_PCI_INTX_IRQ_INDEX, VFIO_PCI_MSI_IRQ_INDEX, VFIO_PCI_NUM_IRQS, VFIO_PCI_NUM_REGIONS,
    VFIO_REGION_INFO_FLAG_READ, VFIO_REGION_INFO_FLAG_WRITE, vfio_region_info,
};
use vfio_user::{DmaMapFlags, DmaUnmapFlags, IrqInfo, ServerBackend, ServerRegion};

use crate::config::{self, ConfigSpace};
use crate::table::Device;

/// `NV_PMC_BOOT_0` and `NV_PMC_BOOT_42` of NVIDIA's `nv_ref.h`, in the range of BAR 0.
const BOOT_0: u64 = 0x000;
const BOOT_42: u64 = 0xa00;

/// The architecture whose driver reads [`FIRMWARE_BOOT`].
const HOPPER: u8 = 0x18;

/// `NV_THERM_I2CS_SCRATCH` in NVIDIA's `published/hopper/gh100/dev_therm.h`, in the range of BAR 0: the GPU's firmware
/// reports here that it has booted, which never happens in an emulated GPU.
const FIRMWARE_BOOT: u64 = 0x2_00bc;

/// The delay of a read of that register. NVIDIA's driver polls it for four seconds each time a device is opened, and
/// would keep an emulated CPU completely busy.
const FIRMWARE_BOOT_ANSWER: Duration = Duration::from_millis(2);

/// A function that responds to QEMU.
#[derive(Debug)]
pub struct Emulated {
    device: Device,
    config: ConfigSpace,
    /// The eventfds through which QEMU requests notifications, by kind of interrupt. No interrupt is ever raised.
    eventfds: Vec<Vec<File>>,
}

impl Emulated {
    pub fn new(device: &Device) -> Emulated {
        Emulated {
            device: device.clone(),
            config: ConfigSpace::new(device),
            eventfds: (0..VFIO_PCI_NUM_IRQS).map(|_| Vec::new()).collect(),
        }
    }

    /// Resets to the state after power on.
    pub fn power_on(&mut self) {
        *self = Emulated::new(&self.device);
    }

    /// The regions of the protocol: the BARs, the (missing) ROM, configuration space.
    pub fn regions(&self) -> Vec<ServerRegion> {
        (0..VFIO_PCI_NUM_REGIONS)
            .map(|index| {
                let size = self.size_of(index);
                let flags = match size {
                    0 => 0,
                    _ => VFIO_REGION_INFO_FLAG_READ | VFIO_REGION_INFO_FLAG_WRITE,
                };
                ServerRegion {
                    region_info: vfio_region_info {
                        argsz: size_of::<vfio_region_info>() as u32,
                        flags,
                        index,
                        cap_offset: 0,
                        size,
                        offset: 0,
                    },
                    sparse_areas: Vec::new(),
                    mmap_fd: None,
                }
            })
            .collect()
    }

    /// The interrupts that it could raise: INTx and one message.
    pub fn interrupts(&self) -> Vec<IrqInfo> {
        (0..VFIO_PCI_NUM_IRQS)
            .map(|index| match index {
                VFIO_PCI_INTX_IRQ_INDEX | VFIO_PCI_MSI_IRQ_INDEX => IrqInfo {
                    index,
                    flags: VFIO_IRQ_INFO_EVENTFD,
                    count: 1,
                },
                _ => IrqInfo {
                    index,
                    flags: VFIO_IRQ_INFO_NORESIZE,
                    count: 0,
                },
            })
            .collect()
    }

    fn size_of(&self, region: u32) -> u64 {
        match region {
            VFIO_PCI_CONFIG_REGION_INDEX => config::SIZE as u64,
            VFIO_PCI_BAR0_REGION_INDEX..=VFIO_PCI_BAR5_REGION_INDEX => self
                .device
                .bars
                .iter()
                .find(|bar| u32::from(bar.index) == region)
                .map_or(0, |bar| bar.size()),
            _ => 0,
        }
    }

    /// One byte of a BAR: the chip's registers, otherwise zero.
    fn memory(&self, region: u32, at: u64) -> u8 {
        let Some(chip) = self
            .device
            .chip
            .filter(|_| region == VFIO_PCI_BAR0_REGION_INDEX)
        else {
            return 0;
        };
        let register = match at & !3 {
            BOOT_0 => chip.boot_0(self.device.revision),
            BOOT_42 => chip.boot_42(self.device.revision),
            _ => 0,
        };
        register.to_le_bytes()[(at & 3) as usize]
    }
}

/// The protocol's server sends an error of its backend with the error number 0, which QEMU treats as success. So no
/// call fails here: missing registers read as ones and writes to them are ignored, as on a real bus.
impl ServerBackend for Emulated {
    fn region_read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> io::Result<()> {
        if region == VFIO_PCI_CONFIG_REGION_INDEX {
            self.config.read(offset, data);
            return Ok(());
        }
        let is_hopper = (self.device.chip).is_some_and(|chip| chip.architecture == HOPPER);
        if is_hopper && (region, offset) == (VFIO_PCI_BAR0_REGION_INDEX, FIRMWARE_BOOT) {
            thread::sleep(FIRMWARE_BOOT_ANSWER);
        }
        let size = self.size_of(region);
        for (step, byte) in (0u64..).zip(data.iter_mut()) {
            *byte = match offset.checked_add(step) {
                Some(at) if at < size => self.memory(region, at),
                _ => 0xff,
            };
        }
        Ok(())
    }

    fn region_write(&mut self, region: u32, offset: u64, data: &[u8]) -> io::Result<()> {
        if region == VFIO_PCI_CONFIG_REGION_INDEX {
            self.config.write(offset, data);
        }
        Ok(())
    }

    fn dma_map(
        &mut self,
        _flags: DmaMapFlags,
        _offset: u64,
        _address: u64,
        _size: u64,
        _fd: Option<File>,
    ) -> io::Result<()> {
        // The device never reads or writes guest memory.
        Ok(())
    }

    fn dma_unmap(&mut self, _flags: DmaUnmapFlags, _address: u64, _size: u64) -> io::Result<()> {
        Ok(())
    }

    fn reset(&mut self) -> io::Result<()> {
        self.config = ConfigSpace::new(&self.device);
        Ok(())
    }

    fn set_irqs(
        &mut self,
        index: u32,
        flags: u32,
        _start: u32,
        _count: u32,
        fds: Vec<File>,
    ) -> io::Result<()> {
        // Masking and unmasking have their own eventfds, which do nothing without an interrupt.
        if flags & VFIO_IRQ_SET_ACTION_TRIGGER != 0
            && let Some(kept) = self.eventfds.get_mut(index as usize)
        {
            *kept = fds;
        }
        Ok(())
    }
}
