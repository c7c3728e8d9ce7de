//! Detects a dnf transaction that was killed. The rpm database does not show it, because a package is added before its scripts
//! run. The evidence is the PID file, which dnf removes when it exits. Reinstalling the packages of the transaction runs all
//! scripts, and removes old versions that an upgrade has left.

use camino::{Utf8Path, Utf8PathBuf};

use super::generation;
use crate::{
    host::{FilesError, ReadFiles},
    model::paths,
    tools::packages::{Package, locks},
};

/// Returns `dnf` if the process that changed packages exited without completing its transaction.
///
/// # Errors
/// If an existing file cannot be read.
pub fn interrupted(files: &dyn ReadFiles) -> Result<Option<&'static str>, FilesError> {
    let path = Utf8Path::new(generation::TRANSACTION);
    let is_at_work = match locks::writer(files, path)? {
        Some(pid) => locks::is_at_work(files, pid)?,
        // Without the file, no transaction is open. A file without a process ID was truncated by a power loss.
        None => !files.exists(path)?,
    };
    Ok((!is_at_work).then_some("dnf"))
}

/// The path of the record of failed package scripts. In the rpm database, packages with a failed script count as installed.
pub fn failed_scripts_record() -> Utf8PathBuf {
    Utf8Path::new(paths::STATE).join("transactions/failed-scripts")
}

/// Returns the installed packages with a failed script, from lines such as `warning: %post(NAME-VERSION.ARCH) scriptlet failed,
/// exit status 1`.
pub fn with_failed_scripts(record: &str, installed: &[Package]) -> Vec<Package> {
    let named: Vec<&str> = (record.lines())
        .filter_map(|line| Some(line.split_once('(')?.1.split_once(')')?.0))
        .collect();
    (installed.iter())
        .filter(|package| named.contains(&with_architecture(package).as_str()))
        .cloned()
        .collect()
}

/// Returns the lines of the record that contain an installed package.
pub fn of_installed(record: &str, installed: &[Package]) -> String {
    let is_there = |line: &&str| !with_failed_scripts(line, installed).is_empty();
    (record.split_inclusive('\n').filter(is_there)).collect()
}

fn with_architecture(package: &Package) -> String {
    format!(
        "{}-{}.{}",
        package.name, package.version, package.architecture
    )
}

/// Returns the packages to reinstall: installed packages of the transaction, and packages with a remaining old version. `begun`
/// contains `NAME-EPOCH:VERSION-RELEASE.ARCHITECTURE`.
pub fn to_complete(begun: &[String], installed: &[Package]) -> Vec<String> {
    let is_begun = |package: &&Package| {
        let old_is_left = |other: &Package| other.needs_repair() && other.name == package.name;
        package.is_installed()
            && (begun.contains(&with_architecture(package)) || installed.iter().any(old_is_left))
    };
    (installed.iter().filter(is_begun))
        .map(with_architecture)
        .collect()
}

/// Returns the packages of the transaction that are not installed. `begun` has the same format as in [`to_complete`].
pub fn missing(begun: &[String], installed: &[Package]) -> Vec<String> {
    let is_there = |one: &&String| {
        (installed.iter()).any(|package| package.is_there() && with_architecture(package) == **one)
    };
    (begun.iter().filter(|one| !is_there(one)))
        .cloned()
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{host::fake::FakeFiles, tools::packages::dnf::database};

    #[test]
    fn exited_process_has_interrupted_its_transaction() {
        let files = FakeFiles::new();
        let now = || interrupted(&files).unwrap();
        assert_eq!(now(), None);
        files.put(generation::TRANSACTION, "812");
        assert_eq!(now(), Some("dnf"));
        files.put("/proc/812/stat", "812 (dnf) S");
        files.put(
            "/proc/812/cmdline",
            "/usr/bin/python3\0/usr/bin/dnf\0install\0",
        );
        assert_eq!(now(), None);
        // After a reboot, another process may have the same ID.
        files.put("/proc/812/cmdline", "/usr/sbin/sshd\0-D\0");
        assert_eq!(now(), Some("dnf"));
    }

    #[test]
    fn pid_file_without_id_shows_an_interruption() {
        for torn in ["", "\n", "\0\0\0\0", "81x"] {
            let files = FakeFiles::new();
            files.put(generation::TRANSACTION, torn);
            assert_eq!(interrupted(&files).unwrap(), Some("dnf"), "{torn:?}");
        }
    }

    #[test]
    fn uninstalled_packages_of_transaction_are_missing() {
        let installed =
            database::parse("nvidia-driver-cuda\tx86_64\t3\t580.95.05\t1.el9\t(none)\t(none)\n");
        let begun = [
            "nvidia-driver-cuda-3:580.95.05-1.el9.x86_64".to_owned(),
            "kmod-nvidia-open-dkms-3:580.95.05-1.el9.noarch".to_owned(),
        ];
        assert_eq!(missing(&begun, &installed), begun[1..]);
        assert_eq!(missing(&[], &installed), Vec::<String>::new());
    }

    #[test]
    fn record_identifies_installed_packages_with_failed_scripts() {
        let installed = database::parse(
            "kmod-nvidia-open-dkms\tnoarch\t3\t580.95.05\t1.el9\t(none)\t(none)\n\
             bash\tx86_64\t(none)\t5.1.8\t9.el9\t(none)\t(none)\n",
        );
        let record = "warning: %post(kmod-nvidia-open-dkms-3:580.95.05-1.el9.noarch) scriptlet \
                      failed, exit status 3\nwarning: %post(gone-1-1.x86_64) scriptlet failed\n";
        let found = with_failed_scripts(record, &installed);
        assert_eq!(found, [installed[0].clone()]);
        assert!(with_failed_scripts("", &installed).is_empty());
        // The record of a removed package does not apply to its next installation.
        let first = record.split_inclusive('\n').next().unwrap();
        assert_eq!(of_installed(record, &installed), first);
        assert_eq!(of_installed(record, &installed[1..]), "");
    }

    #[test]
    fn interrupted_packages_are_reinstalled() {
        let installed = database::parse(
            "slow\tx86_64\t(none)\t1\t1\t(none)\t(none)\n\
             slow\tx86_64\t(none)\t2\t1\t(none)\t(none)\n\
             dkms\tnoarch\t(none)\t3.2.2\t1.el9\t(none)\t(none)\n\
             bash\tx86_64\t(none)\t5.1.8\t9.el9\t(none)\t(none)\n\
             nvidia-driver-cuda\tx86_64\t3\t580.95.05\t1.el9\t(none)\t(none)\n",
        );
        let begun = ["dkms-3.2.2-1.el9.noarch", "gcc-11-1.x86_64"].map(str::to_owned);
        assert_eq!(
            to_complete(&begun, &installed),
            ["slow-2-1.x86_64", "dkms-3.2.2-1.el9.noarch"]
        );
        let driver = ["nvidia-driver-cuda-3:580.95.05-1.el9.x86_64".to_owned()];
        assert_eq!(to_complete(&driver, &installed[4..]), driver);
    }
}
