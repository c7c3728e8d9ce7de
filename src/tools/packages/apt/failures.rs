//! The messages of apt and dpkg: the failure class of an output, and the commands in remedies.

use super::{Apt, progress};
use crate::tools::packages::{
    Commands, FailureClass, Messages, SourceFailure, messages::with_details,
};

/// Parts of the output and their class. The first match is used, so causes precede their consequences: a script that failed
/// because the disk is full has the class of a full disk.
const SIGNS: &[(&str, FailureClass)] = &[
    ("Could not get lock", FailureClass::Locked),
    (
        "Unable to acquire the dpkg frontend lock",
        FailureClass::Locked,
    ),
    ("Unable to lock directory", FailureClass::Locked),
    ("Unable to lock the", FailureClass::Locked),
    ("is locked by another process", FailureClass::Locked),
    (
        "dpkg was interrupted, you must manually run",
        FailureClass::Interrupted,
    ),
    ("No space left on device", FailureClass::NoSpace),
    ("You don't have enough free space", FailureClass::NoSpace),
    ("Disk quota exceeded", FailureClass::Quota),
    // Only in the formats that apt and dpkg use for their own file errors. A package script may print "Read-only file system"
    // because of a parameter in `/proc/sys`.
    ("(30: Read-only file system)", FailureClass::ReadOnly),
    ("'): Read-only file system", FailureClass::ReadOnly),
    (
        "failed to write (Read-only file system)",
        FailureClass::ReadOnly,
    ),
    ("File too large", FailureClass::FileSize),
    // Precedes `FailureClass::Sources`, because apt then also prints "The list of sources could not be read".
    (
        "Conflicting values set for option Signed-By",
        FailureClass::SignedBy,
    ),
    ("Malformed entry", FailureClass::Sources),
    ("Malformed stanza", FailureClass::Sources),
    (
        "The list of sources could not be read",
        FailureClass::Sources,
    ),
    // An overloaded server. apt puts two spaces around the HTTP status, unlike in sizes such as `Need to get 503 MB`. apt then
    // also reports that the repository is not signed.
    ("  429  ", FailureClass::Network),
    ("  500  ", FailureClass::Network),
    ("  502  ", FailureClass::Network),
    ("  503  ", FailureClass::Network),
    ("  504  ", FailureClass::Network),
    // If the file is missing, apt also reports that the repository is not signed.
    ("does not have a Release file", FailureClass::Missing),
    ("no longer has a Release file", FailureClass::Missing),
    ("InRelease  40", FailureClass::Missing),
    ("is not valid yet", FailureClass::Clock),
    // apt 3 with `sqv`: the signature date is in the future.
    ("Not live until", FailureClass::Clock),
    ("is expired (invalid since", FailureClass::Expired),
    ("ertificate verification failed", FailureClass::Certificate),
    // The repository's key is correct, but the `_apt` user cannot read it or cannot write temporary files. See [`REMEDIES`].
    (UNREADABLE, FailureClass::Other),
    (NO_TEMPORARY, FailureClass::Other),
    (NO_SIGNATURE, FailureClass::Other),
    // The signature policy of `sqv` rejects the signature. apt then also prints "is not signed".
    (
        "Signature Packet v3 is not considered secure",
        FailureClass::OldSignature,
    ),
    ("EXPKEYSIG", FailureClass::KeyExpired),
    ("KEYEXPIRED", FailureClass::KeyExpired),
    ("NO_PUBKEY", FailureClass::Key),
    ("REVKEYSIG", FailureClass::Key),
    ("BADSIG", FailureClass::Key),
    ("At least one invalid signature", FailureClass::Key),
    ("is not signed", FailureClass::Key),
    (
        "The following signatures couldn't be verified",
        FailureClass::Key,
    ),
    // apt 2: the user `_apt` cannot read the keyring of a repository whose lists were downloaded before.
    ("Unknown error executing apt-key", FailureClass::Key),
    // apt 3, which verifies with `sqv`. If the lists of the repository were downloaded before, apt does not print "is not
    // signed".
    ("OpenPGP signature verification failed", FailureClass::Key),
    ("Hash Sum mismatch", FailureClass::Stale),
    ("File has unexpected size", FailureClass::Stale),
    ("Mirror sync in progress", FailureClass::Stale),
    // Only the status, because the text after it comes from the server.
    ("  404  ", FailureClass::Stale),
    ("404 Not Found", FailureClass::Stale),
    ("Temporary failure resolving", FailureClass::Network),
    ("Could not resolve", FailureClass::Network),
    ("Could not connect", FailureClass::Network),
    ("Unable to connect", FailureClass::Network),
    ("Connection failed", FailureClass::Network),
    ("Connection timed out", FailureClass::Network),
    ("connection timed out", FailureClass::Network),
    ("Connection refused", FailureClass::Network),
    ("Connection reset", FailureClass::Network),
    ("Network is unreachable", FailureClass::Network),
    ("Could not handshake", FailureClass::Network),
    ("Error reading from server", FailureClass::Network),
    ("Clearsigned file isn't valid", FailureClass::Network),
    ("Unable to locate package", FailureClass::NotFound),
    ("has no installation candidate", FailureClass::NotFound),
    ("' was not found", FailureClass::NotFound),
    ("but I can't find an archive for it", FailureClass::NotFound),
    ("Held packages were changed", FailureClass::Held),
    (
        "Packages need to be removed but remove is disabled",
        FailureClass::Moved,
    ),
    (
        "Bad return status for module build on kernel",
        FailureClass::Build,
    ),
    ("you have held broken packages", FailureClass::Unmet),
    ("unmet dependencies", FailureClass::Unmet),
    ("Unable to correct problems", FailureClass::Unmet),
    (
        "pkgProblemResolver::Resolve generated breaks",
        FailureClass::Unmet,
    ),
    ("dependency problems", FailureClass::Unmet),
    (
        "script subprocess returned error exit status",
        FailureClass::Script,
    ),
    ("Failed to fetch", FailureClass::Network),
];

const UNREADABLE: &str = "as the file is not readable by user";
const NO_TEMPORARY: &str = "Couldn't create temporary file";
/// The message of apt 3 for the same error as [`NO_TEMPORARY`].
const NO_SIGNATURE: &str = "Unable to mkstemp /tmp/apt.sig";
const TEMPORARY: &str = "apt verifies signatures as the user `_apt`, which requires write permission for `/tmp`: run `chmod \
    1777 /tmp`";

/// Parts of the output that show a wrong setting of the machine, and the remedies.
const REMEDIES: &[(&str, &str)] = &[
    (
        UNREADABLE,
        "make the keyring above readable for all users: `chmod 644 FILE`, and `chmod 755` for its directory",
    ),
    (NO_TEMPORARY, TEMPORARY),
    (NO_SIGNATURE, TEMPORARY),
    (
        "changed its '",
        "there is a new release: set the release of this machine in the source instead of `stable`; if the source does not \
         affect other packages, accept the new release with `apt-get update --allow-releaseinfo-change`",
    ),
    (
        "invalid for APT::Default-Release",
        "correct or remove `APT::Default-Release`; find it with `grep -r Default-Release /etc/apt/apt.conf*`",
    ),
    (
        "in statoverride file",
        "remove the override of that user or group: `dpkg-statoverride --list` shows its path, and `dpkg-statoverride --remove \
         PATH` removes it",
    ),
    (
        "Problem executing scripts",
        "an apt hook failed, not a package: find it with `grep -r Invoke /etc/apt/apt.conf.d`, correct or remove it, and run \
         the command again",
    ),
];

fn sign_in(text: &str) -> Option<(&'static str, FailureClass)> {
    (SIGNS.iter().copied()).find(|(sign, _)| text.contains(sign))
}

/// Whether a line of `update` reports a failure. apt also prints harmless warnings.
fn is_failure(line: &str) -> bool {
    line.starts_with("E: ")
        || line.starts_with("W: Failed to fetch")
        || line.starts_with("W: GPG error")
        || line.starts_with("W: An error occurred during the signature verification")
        || line.starts_with(SOME_FAILED)
}

/// The line that apt adds after failures of sources.
const SOME_FAILED: &str = "W: Some index files failed to download";

impl Messages for Apt {
    fn commands(&self) -> Commands {
        Commands {
            unhold: "apt-mark unhold NAME",
            clean: "apt-get clean",
            refresh: "apt-get update",
            reinstall: "apt-get install --reinstall NAME",
            install: "apt-get install NAME",
            // apt-get(8): a new kernel is a new package, which a plain `upgrade` does not install.
            upgrade_kernel: "apt-get upgrade --with-new-pkgs",
            install_kernel: "apt-get install linux-image-KERNEL",
            install_version: "apt-get install 'NAME=VERSION*'",
            upgrade: "apt-get install --only-upgrade NAME",
            compiler: Some("apt-get install COMPILER"),
            versions: "apt-cache policy NAME",
            // `apt-file` is not installed by default, and only finds files of repositories with a `Contents` file.
            containing: None,
            headers: "apt-get install linux-headers-KERNEL",
            extra_modules: "`linux-modules-extra-KERNEL`",
            credentials: "a file of mode 0600 in `/etc/apt/auth.conf.d`, see apt_auth.conf(5)",
        }
    }

    fn downgrade_command(&self, packages: &[String]) -> String {
        format!("apt-get install --allow-downgrades {}", packages.join(" "))
    }

    fn configures(&self) -> Option<&'static str> {
        Some(
            "run `dpkg --configure -a`; if a dependency is missing, run `apt-get --fix-broken install`",
        )
    }

    fn failure_class(&self, output: &str) -> FailureClass {
        (sign_in(output).map_or(FailureClass::Other, |(_, class)| class)).or_build(output)
    }

    /// Returns the remedy for a wrong setting of the machine, if the output shows one.
    fn remedy(&self, output: &str) -> Option<&'static str> {
        let mut all = REMEDIES.iter().copied();
        all.find_map(|(sign, remedy)| output.contains(sign).then_some(remedy))
    }

    fn telling_line<'t>(&self, output: &'t str) -> Option<&'t str> {
        let (sign, _) = sign_in(output)?;
        output
            .lines()
            .find(|line| line.contains(sign))
            .map(str::trim)
    }

    fn first_reason<'t>(&self, output: &'t str) -> Option<&'t str> {
        (output.lines().find_map(|line| line.strip_prefix("E: "))).or_else(|| output.lines().last())
    }

    /// Returns the lines that list the held packages that would change, or the unmet dependencies.
    fn preflight_issue(&self, output: &str) -> Option<String> {
        let lines: Vec<&str> = output.lines().collect();
        let at = lines.iter().position(|line| {
            line.starts_with("The following held packages will be changed")
                || line.starts_with("The following packages have unmet dependencies")
        })?;
        Some(with_details(&lines[at..]))
    }

    /// Older versions of apt report failures as warnings of an `update` that exits with 0.
    fn failed_sources(&self, output: &str) -> Option<String> {
        let failed: Vec<&str> = output.lines().filter(|line| is_failure(line)).collect();
        (!failed.is_empty()).then(|| failed.join("\n"))
    }

    /// The URL of a source is in a line `Err:4 URL SUITE FILE`, which the reason follows, or in an error or a warning.
    fn failures_by_source(&self, output: &str) -> Option<Vec<SourceFailure>> {
        const OURS: [FailureClass; 9] = [
            FailureClass::Locked,
            FailureClass::Interrupted,
            FailureClass::NoSpace,
            FailureClass::Inodes,
            FailureClass::Quota,
            FailureClass::ReadOnly,
            FailureClass::FileSize,
            FailureClass::SignedBy,
            FailureClass::Sources,
        ];
        let mut failures = Vec::new();
        let mut lines = output.lines().peekable();
        while let Some(line) = lines.next() {
            if OURS.contains(&sign_in(line).map_or(FailureClass::Other, |(_, class)| class)) {
                return None;
            }
            let (address, why) = if let Some(rest) = line.strip_prefix("Err:") {
                let why = lines.peek().filter(|next| next.starts_with(' '));
                (
                    rest.split_whitespace().nth(1)?,
                    why.copied().unwrap_or(line),
                )
            } else if !is_failure(line) || line[3..].starts_with(&SOME_FAILED[3..]) {
                continue;
            } else {
                let mut words = line.split_whitespace().map(|word| word.trim_matches('\''));
                (words.find(|word| word.contains(":/"))?, &line[3..])
            };
            failures.push(SourceFailure {
                address: address.to_owned(),
                why: why.trim().to_owned(),
            });
        }
        (!failures.is_empty()).then_some(failures)
    }

    fn is_stage(&self, line: &str) -> bool {
        progress::is_stage(line)
    }

    fn download_size(&self, line: &str) -> Option<u64> {
        progress::download_size(line)
    }

    fn download_part(&self, line: &str) -> Option<u64> {
        progress::download_part(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::text::reads_any_text;

    #[test]
    fn failure_line_is_found_in_long_output() {
        let text = "update-initramfs: Generating /boot/initrd.img-6.1\n\
                    zstd: error 70 : Write error : No space left on device \n\
                    Building initial module for 6.1\n\
                    E: Sub-process /usr/bin/dpkg returned an error code (1)\n";
        assert_eq!(
            Apt.telling_line(text),
            Some("zstd: error 70 : Write error : No space left on device")
        );
        assert_eq!(Apt.telling_line("Building initial module for 6.1\n"), None);
    }

    /// The texts are from apt 2.6 and 3.0.
    #[test]
    fn wrong_machine_settings_are_not_key_errors() {
        for (text, remedy) in rows! {
            "W: GPG error: http://x / InRelease: Couldn't create temporary file /tmp/apt.conf.Q8Sbd5 for passing config to \
             apt-key\nE: The repository 'http://x / InRelease' is not signed.", "`chmod 1777 /tmp`";
            "W: OpenPGP signature verification failed: file:/srv/repo ./ InRelease: Unable to mkstemp /tmp/apt.sig.XJpsUr - \
             GetTempFile (13: Permission denied)\nE: The repository 'file:/srv/repo ./ InRelease' is not signed.",
                "`chmod 1777 /tmp`";
            "W: http://x/InRelease: The key(s) in the keyring /etc/apt/keyrings/x.asc are ignored as the file is not \
             readable by user '_apt' executing apt-key.\nW: GPG error: http://x InRelease: The following signatures \
             couldn't be verified because the public key is not available: NO_PUBKEY 1234\nE: The repository \
             'http://x InRelease' is not signed.", "`chmod 644 FILE`";
            "E: Repository 'http://x stable InRelease' changed its 'Codename' value from 'bookworm' to 'trixie'",
                "--allow-releaseinfo-change";
            "E: The value 'bullseye' is invalid for APT::Default-Release as such a release is not available in the sources",
                "grep -r Default-Release";
            "dpkg: unrecoverable fatal error, aborting:\n unknown system group 'departed' in statoverride file; the system \
             group got removed\nbefore the override", "`dpkg-statoverride --remove";
            "E: Problem executing scripts DPkg::Post-Invoke '/opt/agent/refresh'\nE: Sub-process returned an error code",
                "grep -r Invoke";
        } {
            let told = Apt.remedy(text);
            assert!(told.is_some_and(|told| told.contains(remedy)), "{text}");
            assert_eq!(Apt.failure_class(text), FailureClass::Other, "{text}");
        }
        assert_eq!(Apt.remedy("E: Unable to locate package a"), None);
        // apt 3.0: the signature date is in the future.
        let late = "W: OpenPGP signature verification failed: file:/srv/repo ./ InRelease: Sub-process /usr/bin/sqv returned \
                    an error code (1), error message is: Verifying signature:            Not live until \
                    2027-05-31T23:30:00Z\nE: The repository 'file:/srv/repo ./ InRelease' is not signed.";
        assert_eq!(Apt.failure_class(late), FailureClass::Clock);
    }

    #[test]
    fn preflight_issue_is_found_in_long_output() {
        let text = "The following NEW packages will be installed:\n  a b\n\
                    The following held packages will be changed:\n  docker.io\n\
                    0 upgraded, 2 newly installed.\n";
        assert_eq!(
            Apt.preflight_issue(text).as_deref(),
            Some("The following held packages will be changed:\n  docker.io")
        );
        assert_eq!(Apt.preflight_issue("Reading package lists...\n"), None);
    }

    #[test]
    fn each_output_has_a_class() {
        for (text, class) in rows! {
            "E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 812 (unattended-upgr)",
                FailureClass::Locked;
            "E: Unable to acquire the dpkg frontend lock (/var/lib/dpkg/lock-frontend), is another process using it?",
                FailureClass::Locked;
            "dpkg: error: dpkg frontend lock was locked by another process with pid 12\nE: Unable to lock the administration directory (/var/lib/dpkg/), is another process using it?",
                FailureClass::Locked;
            "E: dpkg was interrupted, you must manually run 'dpkg --configure -a' to correct the problem.",
                FailureClass::Interrupted;
            "dpkg: error processing archive x.deb (--unpack):\n cannot copy extracted data: No space left on device\nE: Sub-process /usr/bin/dpkg returned an error code (1)",
                FailureClass::NoSpace;
            "E: You don't have enough free space in /var/cache/apt/archives/.", FailureClass::NoSpace;
            "dpkg: error processing archive x.deb (--unpack):\n cannot copy extracted data for './usr/x' to '/usr/x.dpkg-new': failed to write (Disk quota exceeded)",
                FailureClass::Quota;
            "dpkg: error processing archive x.deb (--unpack):\n unable to create '/usr/x.dpkg-new' (while processing './usr/x'): Read-only file system",
                FailureClass::ReadOnly;
            "W: Not using locking for read only lock file /var/lib/dpkg/lock\nE: Unable to write to /var/cache/apt - open (30: Read-only file system)",
                FailureClass::ReadOnly;
            "dpkg: error processing archive x.deb (--unpack):\n cannot copy extracted data for './usr/x' to '/usr/x.dpkg-new': failed to write (File too large)",
                FailureClass::FileSize;
            "sysctl: setting key \"kernel.x\": Read-only file system\ninstalled x package post-installation script subprocess returned error exit status 1",
                FailureClass::Script;
            "Consult /var/lib/dkms/nvidia/580.95.05/build/make.log for more information.\ndpkg: unrecoverable fatal error, aborting:\n unable to flush /var/lib/dpkg/updates/tmp.i after padding: No space left on device",
                FailureClass::NoSpace;
            "W: GPG error: https://x / InRelease: The following signatures couldn't be verified because the public key is not available: NO_PUBKEY A4B469963BF863CC",
                FailureClass::Key;
            // kubernetes/release issues 3818 and 3869.
            "W: GPG error: https://pkgs.k8s.io/core:/stable:/v1.27/deb  InRelease: The following signatures were invalid: EXPKEYSIG 234654DA9A296436 isv:kubernetes OBS Project <isv:kubernetes@build.opensuse.org>\nE: The repository 'https://pkgs.k8s.io/core:/stable:/v1.27/deb  InRelease' is not signed.",
                FailureClass::KeyExpired;
            "Warning: GPG error: https://pkgs.k8s.io/core:/stable:/v1.32/deb  InRelease: Sub-process /usr/bin/sqv returned an error code (1), error message is: Error: Policy rejected packet type  Caused by:     Signature Packet v3 is not considered secure since 2026-02-01T00:00:00Z\nError: The repository 'https://pkgs.k8s.io/core:/stable:/v1.32/deb  InRelease' is not signed.",
                FailureClass::OldSignature;
            "E: Conflicting values set for option Signed-By regarding source https://x/ /: /a.gpg != /b.gpg\nE: The list of sources could not be read.",
                FailureClass::SignedBy;
            "E: Failed to fetch http://x/Packages.gz  File has unexpected size (1 != 2). Mirror sync in progress? [IP: 1.2.3.4 80]",
                FailureClass::Stale;
            "E: Failed to fetch http://x/a.deb  404  Not Found [IP: 1.2.3.4 80]", FailureClass::Stale;
            "E: Failed to fetch http://x/a.deb  404  File not found [IP: 1.2.3.4 80]", FailureClass::Stale;
            // apt 3.0, for a repository whose lists were downloaded before.
            "W: An error occurred during the signature verification. The repository is not updated and the previous index files will be used. OpenPGP signature verification failed: http://x stable InRelease: Sub-process /usr/bin/sqv returned an error code (1), error message is: Missing key 226B5869, which is needed to verify signature.\nE: Failed to fetch http://x/dists/stable/InRelease  Sub-process /usr/bin/sqv returned an error code (1), error message is: Missing key 226B5869, which is needed to verify signature.",
                FailureClass::Key;
            // apt 2.6, for a keyring with mode 0600.
            "W: An error occurred during the signature verification. The repository is not updated and the previous index files will be used. GPG error: http://x/ InRelease: Unknown error executing apt-key\nE: Failed to fetch http://x/InRelease  Unknown error executing apt-key",
                FailureClass::Key;
            "E: Failed to fetch http://x/a.deb  Hash Sum mismatch", FailureClass::Stale;
            "E: Failed to fetch http://debian.example.org/debian/dists/bookworm/InRelease  Temporary failure resolving 'debian.example.org'",
                FailureClass::Network;
            "E: Failed to fetch http://x/InRelease  503  Service Unavailable", FailureClass::Network;
            // An overloaded server is not an unsigned repository.
            "Err:1 http://x bookworm InRelease\n  503  Service Unavailable [IP: 1.2.3.4 80]\nE: The repository 'http://x bookworm InRelease' is not signed.",
                FailureClass::Network;
            // A size is not an HTTP status.
            "Need to get 503 MB of archives.\nAfter this operation, 502 MB of additional disk space will be used.\nE: Sub-process /usr/bin/dpkg returned an error code (1)",
                FailureClass::Other;
            "Err:4 http://x/nosuch bookworm Release\n  404  Not Found [IP: 1.2.3.4 80]\nE: The repository 'http://x/nosuch bookworm Release' does not have a Release file.",
                FailureClass::Missing;
            "E: Failed to fetch http://x/dists/bookworm/InRelease  403  Forbidden [IP: 1.2.3.4 80]\nE: The repository 'http://x bookworm InRelease' is not signed.",
                FailureClass::Missing;
            "E: Release file for http://x/dists/bookworm/InRelease is not valid yet (invalid for another 2h 3min 4s). Updates for this repository will not be applied.",
                FailureClass::Clock;
            "E: Release file for http://x/dists/bookworm/InRelease is expired (invalid since 3d). Updates for this repository will not be applied.",
                FailureClass::Expired;
            "W: Failed to fetch https://x/InRelease  Certificate verification failed: The certificate is NOT trusted. Could not handshake: Error in the certificate verification.",
                FailureClass::Certificate;
            "E: Malformed entry 1 in list file /etc/apt/sources.list.d/x.list (Suite)\nE: The list of sources could not be read.",
                FailureClass::Sources;
            "E: Unable to locate package nosuchpackage", FailureClass::NotFound;
            "E: Version '1.0' for 'gcc' was not found", FailureClass::NotFound;
            "E: Package 'gcc:i386' has no installation candidate", FailureClass::NotFound;
            "E: The package containerd.io needs to be reinstalled, but I can't find an archive for it.", FailureClass::NotFound;
            "E: Held packages were changed and -y was used without --allow-change-held-packages.",
                FailureClass::Held;
            "The following packages have unmet dependencies:\n a : Depends: b (>= 2)\nE: Unable to correct problems, you have held broken packages.",
                FailureClass::Unmet;
            "E: Error, pkgProblemResolver::Resolve generated breaks, this may be caused by held packages.",
                FailureClass::Unmet;
            "Error! Bad return status for module build on kernel: 6.1.0-44-amd64 (x86_64)\nConsult /var/lib/dkms/nvidia-current/535.261.03/build/make.log for more information.\ndpkg: error processing package nvidia-kernel-dkms (--configure):\n installed nvidia-kernel-dkms package post-installation script subprocess returned error exit status 10",
                FailureClass::Build;
            "dpkg: error processing package x (--configure):\n installed x package post-installation script subprocess returned error exit status 1",
                FailureClass::Script;
            "Segmentation fault", FailureClass::Other;
        } {
            assert_eq!(Apt.failure_class(text), class, "{text}");
        }
    }

    #[test]
    fn only_transient_faults_are_retried() {
        assert!(
            FailureClass::Locked.is_transient()
                && FailureClass::Stale.is_transient()
                && FailureClass::Network.is_transient()
        );
        assert!(
            !FailureClass::Key.is_transient()
                && !FailureClass::NoSpace.is_transient()
                && !FailureClass::Build.is_transient()
        );
    }

    /// Output of apt 2.6 on Debian 12, standard output first.
    const DEAD: &str = "\
Err:1 http://127.0.0.1:9/dead stable InRelease
  Could not connect to 127.0.0.1:9 (127.0.0.1). - connect (111: Connection refused)
Err:2 http://nosuch.invalid/deb  InRelease
  Could not resolve 'nosuch.invalid'
Get:3 http://deb.example.org/debian bookworm-updates InRelease [55.4 kB]
Reading package lists...
W: Target Packages (main/binary-amd64/Packages) is configured multiple times in a:1 and b:1
E: Failed to fetch http://deb.example.org/nosuch/dists/bookworm/InRelease  400  Bad Request [IP: 203.0.113.80 80]
E: The repository 'http://deb.example.org/other bookworm InRelease' is not signed.
E: Some index files failed to download. They have been ignored, or old ones used instead.
";

    #[test]
    fn failed_sources_are_distinguished_from_other_failures() {
        let found = Apt.failures_by_source(DEAD).expect("only sources failed");
        let pairs: Vec<(&str, &str)> = (found.iter())
            .map(|one| (one.address.as_str(), &one.why[..15]))
            .collect();
        assert_eq!(
            pairs,
            [
                ("http://127.0.0.1:9/dead", "Could not conne"),
                ("http://nosuch.invalid/deb", "Could not resol"),
                (
                    "http://deb.example.org/nosuch/dists/bookworm/InRelease",
                    "Failed to fetch"
                ),
                ("http://deb.example.org/other", "The repository "),
            ]
        );
        let key = "W: GPG error: https://x / InRelease: The following signatures couldn't be verified because the public key is not available: NO_PUBKEY A4B4";
        assert_eq!(
            Apt.failures_by_source(key).expect("a source")[0].address,
            "https://x"
        );
        for other in [
            "",
            "Reading package lists...\n",
            "E: Could not get lock /var/lib/apt/lists/lock. It is held by process 812",
            "Err:1 http://x y InRelease\n  Error writing to file - write (28: No space left on device)\n",
            "E: Some index files failed to download. They have been ignored, or old ones used instead.",
            "Err:1 http://x y InRelease\n  Could not connect\nE: Problem executing scripts\n",
            "Err:1",
        ] {
            assert_eq!(Apt.failures_by_source(other), None, "{other}");
        }
    }

    reads_any_text!(
        "(E: |W: |Err:| http://|\n|.)*",
        |text| Apt.failures_by_source(&text); Apt.failed_sources(&text)
    );

    #[test]
    fn warning_about_a_source_is_a_failure() {
        let text = "Hit:1 http://a\nW: Failed to fetch http://b/InRelease  Could not connect\n";
        assert!(Apt.failed_sources(text).unwrap().contains("http://b"));
        assert_eq!(Apt.failed_sources("Reading package lists...\n"), None);
    }
}
