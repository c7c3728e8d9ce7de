//! Names of PCI devices from the distribution's `pci.ids` file.

use crate::{
    facts::reader::FactReader,
    model::pci::{NAME_LISTS, PciId},
};

/// The content of the file, read on first use.
#[derive(Default)]
pub(super) struct Names {
    list: Option<Option<String>>,
}

impl Names {
    /// Returns the name of a device, or `None` if the file or the entry does not exist.
    pub(super) fn of(
        &mut self,
        reader: &mut FactReader<'_>,
        fact: &str,
        id: PciId,
    ) -> Option<String> {
        let list = self
            .list
            .get_or_insert_with(|| NAME_LISTS.iter().find_map(|path| reader.text(fact, path)));
        device(list.as_deref()?, id).map(str::to_owned)
    }
}

/// Finds the name of a device. In `pci.ids`, vendors are not indented, devices are indented by one
/// tab, subsystems by two.
fn device(list: &str, id: PciId) -> Option<&str> {
    let vendor = format!("{:04x}", id.vendor);
    let device = format!("{:04x}", id.device);
    list.lines()
        .skip_while(|line| name_of(line, &vendor).is_none())
        .skip(1)
        .take_while(|line| line.starts_with(['\t', '#']) || line.is_empty())
        .filter_map(|line| line.strip_prefix('\t'))
        .find_map(|line| name_of(line, &device))
}

fn name_of<'l>(line: &'l str, id: &str) -> Option<&'l str> {
    line.strip_prefix(id)?
        .strip_prefix("  ")
        .map(str::trim)
        .filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::text::reads_any_text;

    const LIST: &str = "# comment\n10dd  Other vendor\n\t2330  Not this one\n\
        10de  NVIDIA Corporation\n\t22a3  GH100 [H100 NVSwitch]\n# a remark\n\
        \t2330  GH100[H100 SXM5 80GB]\n\t\t10de 16c1  A board\n\t2237  GA102GL [A10G]\n\
        10df  Emulex Corporation\n\t3182  Not NVIDIA's\n";

    fn named(id: &str) -> Option<&'static str> {
        device(LIST, id.parse().unwrap())
    }

    #[test]
    fn device_names_are_found_by_vendor_and_device_id() {
        assert_eq!(named("10de:2330"), Some("GH100[H100 SXM5 80GB]"));
        assert_eq!(named("10de:2237"), Some("GA102GL [A10G]"));
        assert_eq!(named("10de:3182"), None);
        assert_eq!(named("10de:10de"), None);
        assert_eq!(named("ffff:0000"), None);
    }

    reads_any_text!("(10de|  |\t|\n|2330|#|.)*", |text| device(
        &text,
        PciId {
            vendor: 0x10de,
            device: 0x2330
        }
    ));
}
