//! The pending triggers of dpkg, deb-triggers(5): work that packages do once for all packages that were installed together,
//! such as updating the initramfs.

use super::DATABASE;
use crate::{
    host::{FilesError, ReadFiles},
    tools::packages::PendingTriggers,
};

/// The package whose trigger may run later, because the initramfs is only used by the next boot. dpkg defers the activations by
/// package scripts, such as the scripts of driver packages, which call `update-initramfs`. It runs triggers that are pending
/// before it configures the packages, such as triggers on unpacked files, even with `--no-triggers` (dpkg 1.21). Therefore
/// deferring other triggers, such as the index of man pages, has no effect. With Debian's driver 535, the initramfs is
/// generated twice instead of three times (case `main-job`, /var/log/dpkg.log).
const DEFERRABLE: &str = "initramfs-tools";

/// Reads the packages with pending triggers from the package database.
pub(super) fn pending(files: &dyn ReadFiles) -> Result<PendingTriggers, FilesError> {
    let text = files.read_lossy(DATABASE.into())?.unwrap_or_default();
    Ok(parse(&text))
}

/// Parses the fields `Package`, `Architecture` and `Status` of dpkg-query(1).
fn parse(text: &str) -> PendingTriggers {
    let mut found = PendingTriggers::default();
    for paragraph in text.split("\n\n") {
        let field = |name: &str| {
            let mut lines = paragraph.lines();
            let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
            Some(value.trim())
        };
        let is_pending =
            field("Status").is_some_and(|status| status.ends_with(" triggers-pending"));
        let Some(name) = field("Package").filter(|_| is_pending) else {
            continue;
        };
        if name == DEFERRABLE {
            found.deferrable.push(name.to_owned());
            continue;
        }
        // dpkg(1) requires the architecture of a package that is installed for several ones.
        let architecture = field("Architecture").filter(|one| *one != "all");
        found.needed.push(match architecture {
            Some(architecture) => format!("{name}:{architecture}"),
            None => name.to_owned(),
        });
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_initramfs_is_deferrable() {
        let paragraph = |name: &str, architecture: &str, status: &str| {
            format!(
                "Package: {name}\nStatus: install ok {status}\nArchitecture: {architecture}\n\
                 Triggers-Pending: x\nDescription: a\n Status: install ok triggers-pending\n\n"
            )
        };
        let text = [
            paragraph("libc-bin", "amd64", "triggers-pending"),
            paragraph("initramfs-tools", "all", "triggers-pending"),
            paragraph("man-db", "amd64", "triggers-pending"),
            paragraph("update-glx", "all", "triggers-pending"),
            paragraph("bash", "amd64", "installed"),
            paragraph("waits", "amd64", "triggers-awaited"),
        ];
        let found = parse(&text.concat());
        assert_eq!(
            found.needed,
            ["libc-bin:amd64", "man-db:amd64", "update-glx"]
        );
        assert_eq!(found.deferrable, ["initramfs-tools"]);
    }
}
