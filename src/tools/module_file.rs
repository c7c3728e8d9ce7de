//! Parses kernel module files: 64-bit little-endian ELF. All offsets are checked against the file length.

use std::collections::BTreeMap;

use crate::model::gpu::Flavor;

/// The length of an entry in `__versions`: an 8-byte checksum and the symbol name (Linux, `struct modversion_info` of
/// `include/linux/module.h`).
const VERSION_ENTRY: usize = 64;

fn number(module: &[u8], at: usize, length: usize) -> Option<usize> {
    let bytes = module.get(at..at.checked_add(length)?)?;
    let value = (bytes.iter().rev()).fold(0_u64, |value, byte| (value << 8) | u64::from(*byte));
    usize::try_from(value).ok()
}

/// The content of a section.
fn section<'m>(module: &'m [u8], name: &str) -> Option<&'m [u8]> {
    // ELF class 64 bit, little-endian.
    if !module.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let table = number(module, 0x28, 8)?;
    let size = number(module, 0x3a, 2)?;
    let count = number(module, 0x3c, 2)?;
    let header = |index: usize| table.checked_add(index.checked_mul(size)?);
    let content = |index: usize| -> Option<&'m [u8]> {
        let header = header(index)?;
        let at = number(module, header.checked_add(0x18)?, 8)?;
        let length = number(module, header.checked_add(0x20)?, 8)?;
        module.get(at..at.checked_add(length)?)
    };
    let names = content(number(module, 0x3e, 2)?)?;
    (0..count).find_map(|index| {
        let found = names.get(number(module, header(index)?, 4)?..)?;
        let rest = found.strip_prefix(name.as_bytes())?;
        rest.starts_with(b"\0").then(|| content(index))?
    })
}

/// Returns the value of a key in `.modinfo`, which contains `key=value` strings that end with a zero byte.
pub fn modinfo<'m>(module: &'m [u8], key: &str) -> Option<&'m str> {
    section(module, ".modinfo")?
        .split(|byte| *byte == 0)
        .filter_map(|entry| std::str::from_utf8(entry).ok())
        .filter_map(|entry| entry.split_once('='))
        .find(|(name, _)| *name == key)
        .map(|(_, value)| value)
}

/// Returns the checksums of the symbols that a module needs, or `None` if it has no checksums. The kernel compares them with
/// its own to detect a module that was compiled for another kernel.
pub fn needed_symbols(module: &[u8]) -> Option<BTreeMap<String, u32>> {
    let entries = section(module, "__versions")?.chunks_exact(VERSION_ENTRY);
    let symbols = entries.filter_map(|entry| {
        let checksum = u32::from_le_bytes(entry.get(..4)?.try_into().ok()?);
        let name = entry.get(8..)?.split(|byte| *byte == 0).next()?;
        Some((std::str::from_utf8(name).ok()?.to_owned(), checksum))
    });
    Some(symbols.collect())
}

/// Returns the flavor of the NVIDIA modules that have this license. The open modules have `Dual MIT/GPL`.
pub fn flavor_of_license(license: &str) -> Option<Flavor> {
    match license.trim() {
        "Dual MIT/GPL" => Some(Flavor::Open),
        "NVIDIA" => Some(Flavor::Proprietary),
        _ => None,
    }
}

/// Returns an ELF file with these sections.
#[cfg(test)]
pub(crate) fn with_sections(sections: &[(&str, &[u8])]) -> Vec<u8> {
    let mut names = b"\0".to_vec();
    let mut file = b"\x7fELF\x02\x01\x01".to_vec();
    file.resize(64, 0);
    let mut headers = vec![(0_usize, 0_usize, 0_usize)];
    for (name, content) in sections {
        headers.push((names.len(), file.len(), content.len()));
        names.extend(name.as_bytes());
        names.push(0);
        file.extend(*content);
    }
    let own = names.len();
    names.extend(b".shstrtab\0");
    headers.push((own, file.len(), names.len()));
    file.extend(&names);
    let table = file.len();
    for (name, at, length) in &headers {
        let start = file.len();
        file.extend(u32::try_from(*name).expect("small").to_le_bytes());
        file.resize(start + 0x18, 0);
        file.extend((*at as u64).to_le_bytes());
        file.extend((*length as u64).to_le_bytes());
        file.resize(start + 64, 0);
    }
    let count = u8::try_from(headers.len()).expect("few");
    file[0x28..0x30].copy_from_slice(&(table as u64).to_le_bytes());
    (file[0x3a], file[0x3c], file[0x3e]) = (64, count, count - 1);
    file
}

/// Returns an ELF file with only `.modinfo`.
#[cfg(test)]
pub(crate) fn with_info(info: &[u8]) -> Vec<u8> {
    with_sections(&[(".modinfo", info)])
}

/// Returns the content of `__versions`.
#[cfg(test)]
pub(crate) fn versions(symbols: &[(&str, u32)]) -> Vec<u8> {
    let mut content = Vec::new();
    for (name, checksum) in symbols {
        let start = content.len();
        content.extend(u64::from(*checksum).to_le_bytes());
        content.extend(name.as_bytes());
        content.resize(start + VERSION_ENTRY, 0);
    }
    content
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::text::reads_any_text;

    fn read(module: &[u8]) {
        let _ = (modinfo(module, "version"), needed_symbols(module));
    }

    #[test]
    fn version_and_symbols_are_read() {
        let symbols = versions(&[("module_layout", 0xea75_9d7f), ("kfree", 7)]);
        let file = with_sections(&[
            (
                ".modinfo",
                b"srcversion=533BB7E5866E52F63B9ACCB\0version=535.261.03\0",
            ),
            ("__versions", &symbols),
        ]);
        assert_eq!(modinfo(&file, "version"), Some("535.261.03"));
        assert_eq!(modinfo(&file, "alias"), None);
        let needed = needed_symbols(&file).expect("a section");
        assert_eq!(needed["module_layout"], 0xea75_9d7f);
        assert_eq!((needed["kfree"], needed.len()), (7, 2));
        assert_eq!(needed_symbols(&with_info(b"version=1\0")), None);
        for cut in 0..file.len() {
            read(&file[..cut]);
        }
        for at in 0..file.len() {
            let mut broken = file.clone();
            broken[at] = 0xff;
            read(&broken);
        }
    }

    reads_any_text!("(ELF|\0|.)*", |text| read(text.as_bytes()));
}
