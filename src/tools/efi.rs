//! Checks whether a certificate is trusted by the firmware or by shim, the first boot loader. The kernel imports these
//! certificates and accepts modules that are signed with them.

use camino::Utf8Path;

use crate::host::{FilesError, ReadFiles};

/// The EFI variables.
const VARIABLES: &str = "/sys/firmware/efi/efivars";

/// The complete machine owner keys, exported by the kernel, because one EFI variable may be too small for all of them (Linux,
/// `drivers/firmware/efi/mokvar-table.c`).
const OWNER_KEYS: &str = "/sys/firmware/efi/mok-variables";

/// Prefix of the variables with machine owner keys: shim continues a list in `MokListRT1` and so on.
const OWNER_LIST: &str = "MokListRT";

/// The UEFI signature database, with the GUID of image security.
const DATABASE: &str = "db-d719b2cb-3d3a-4596-a3bc-dad00e67656f";

/// Whether a certificate (DER) is enrolled, or `None` if no variable with certificates could be read.
///
/// # Errors
/// If an existing variable cannot be read.
pub fn is_enrolled(files: &dyn ReadFiles, certificate: &[u8]) -> Result<Option<bool>, FilesError> {
    let mut known = None;
    for (directory, is_one) in [
        (VARIABLES, &is_variable as &dyn Fn(&str) -> bool),
        (OWNER_KEYS, &|name: &str| name.starts_with(OWNER_LIST)),
    ] {
        for name in files.list(Utf8Path::new(directory))? {
            if !is_one(&name) {
                continue;
            }
            let path = format!("{directory}/{name}");
            let Some(list) = files.read(Utf8Path::new(&path))? else {
                continue;
            };
            if holds(&list, certificate) {
                return Ok(Some(true));
            }
            known = Some(false);
        }
    }
    Ok(known)
}

fn is_variable(name: &str) -> bool {
    name == DATABASE || name.starts_with(OWNER_LIST)
}

/// Whether a signature list contains the certificate. The list contains each certificate unchanged (`EFI_SIGNATURE_DATA` of the
/// UEFI specification).
fn holds(list: &[u8], certificate: &[u8]) -> bool {
    !certificate.is_empty()
        && list
            .windows(certificate.len())
            .any(|part| part == certificate)
}

#[cfg(test)]
mod tests {
    use super::is_enrolled;
    use crate::host::fake::FakeFiles;

    #[test]
    fn certificate_in_firmware_or_owner_list_is_enrolled() {
        let ours = b"0\x82 our certificate".as_slice();
        let list = |content: &[u8]| [b"\x07\0\0\0header".as_slice(), content, b"tail"].concat();
        let of = |path: Option<&str>, content: &[u8]| {
            let files = FakeFiles::new();
            if let Some(path) = path {
                files.put(path, list(content));
            }
            is_enrolled(&files, ours).unwrap()
        };
        let owner = "/sys/firmware/efi/efivars/MokListRT1-605dab50-e046-4300-abb6-3dd810dd8b23";
        let database = "/sys/firmware/efi/efivars/db-d719b2cb-3d3a-4596-a3bc-dad00e67656f";
        for path in [owner, database, "/sys/firmware/efi/mok-variables/MokListRT"] {
            assert_eq!(of(Some(path), ours), Some(true), "{path}");
            assert_eq!(
                of(Some(path), b"another certificate"),
                Some(false),
                "{path}"
            );
        }
        // Certificates in the forbidden list are not trusted.
        let forbidden = "/sys/firmware/efi/efivars/dbx-d719b2cb-3d3a-4596-a3bc-dad00e67656f";
        assert_eq!(of(Some(forbidden), ours), None);
        assert_eq!(of(None, ours), None);
    }
}
