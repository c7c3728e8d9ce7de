//! Secure Boot and kernel lockdown.

use crate::facts::{SecureBoot, reader::FactReader};

const EFI: &str = "/sys/firmware/efi";

/// The EFI variable with its global vendor GUID from the UEFI specification. It contains four
/// attribute bytes and one byte that is 1 if Secure Boot is enforced.
const VARIABLE: &str = "SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c";

/// Reads the state of Secure Boot.
pub(super) fn secure_boot(reader: &mut FactReader<'_>) -> SecureBoot {
    if !reader.exists("secure-boot", EFI) {
        if reader.exists("secure-boot", "/sys/firmware") {
            return SecureBoot::Unsupported;
        }
        // A running kernel always has this directory. Without it, this is an image or a container.
        reader.unknown("secure-boot", "`/sys/firmware` does not exist");
        return SecureBoot::Unknown;
    }
    let directory = format!("{EFI}/efivars");
    let names = reader.list("secure-boot", &directory);
    if names.is_empty() {
        reader.unknown(
            "secure-boot",
            format!("`{directory}` is empty: the EFI variables are not mounted"),
        );
        return SecureBoot::Unknown;
    }
    if !names.iter().any(|name| name == VARIABLE) {
        // UEFI firmware without Secure Boot does not have this variable.
        return SecureBoot::Unsupported;
    }
    let Some(bytes) = reader.bytes("secure-boot", &format!("{directory}/{VARIABLE}")) else {
        return SecureBoot::Unknown;
    };
    match parse_variable(&bytes) {
        Some(state) => state,
        None => {
            reader.unknown(
                "secure-boot",
                format!("unexpected value of the EFI variable `SecureBoot`: {bytes:?}"),
            );
            SecureBoot::Unknown
        }
    }
}

/// Reads the lockdown mode.
pub(super) fn lockdown(reader: &mut FactReader<'_>) -> Option<String> {
    const PATH: &str = "/sys/kernel/security/lockdown";
    let text = reader.required("lockdown", PATH)?;
    let mode = parse_lockdown(&text);
    if mode.is_none() {
        reader.unknown("lockdown", format!("no active mode in `{PATH}`: `{text}`"));
    }
    mode
}

fn parse_variable(bytes: &[u8]) -> Option<SecureBoot> {
    match bytes {
        [_, _, _, _, 0] => Some(SecureBoot::Disabled),
        [_, _, _, _, 1] => Some(SecureBoot::Enabled),
        _ => None,
    }
}

/// Parses text such as `none [integrity] confidentiality`, where the active mode is in brackets.
fn parse_lockdown(text: &str) -> Option<String> {
    let (_, rest) = text.split_once('[')?;
    let (mode, _) = rest.split_once(']')?;
    matches!(mode, "none" | "integrity" | "confidentiality").then(|| mode.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::fake;

    fn state(arrange: impl Fn(&fake::FakeFiles)) -> (SecureBoot, usize) {
        let (host, fakes) = fake::host();
        arrange(&fakes.files);
        let mut reader = FactReader::new(host.reader().files());
        let state = secure_boot(&mut reader);
        (state, reader.into_unknown().len())
    }

    #[test]
    fn secure_boot_states() {
        let path = format!("{EFI}/efivars/{VARIABLE}");
        let with = |byte: u8| {
            let path = path.clone();
            state(move |files| files.put(&path, [6, 0, 0, 0, byte]))
        };
        assert_eq!(with(1), (SecureBoot::Enabled, 0));
        assert_eq!(with(0), (SecureBoot::Disabled, 0));
        assert_eq!(with(7), (SecureBoot::Unknown, 1));
        assert_eq!(state(|_| {}), (SecureBoot::Unknown, 1));
        assert_eq!(
            state(|files| files.put_directory("/sys/firmware/acpi", 0o755)),
            (SecureBoot::Unsupported, 0)
        );
        assert_eq!(
            state(|files| files.put_directory(&format!("{EFI}/efivars"), 0o755)),
            (SecureBoot::Unknown, 1)
        );
        assert_eq!(
            state(|files| files.put(&format!("{EFI}/efivars/Boot0000-x"), [0])),
            (SecureBoot::Unsupported, 0)
        );
    }

    #[test]
    fn lockdown_modes() {
        assert_eq!(
            parse_lockdown("[none] integrity confidentiality").as_deref(),
            Some("none")
        );
        assert_eq!(
            parse_lockdown("none [integrity] confidentiality").as_deref(),
            Some("integrity")
        );
        for text in ["", "none", "[", "]x[", "[odd]"] {
            assert_eq!(parse_lockdown(text), None, "{text}");
        }
    }
}
