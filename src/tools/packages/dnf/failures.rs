//! The messages of dnf and rpm: the failure class of an output, and the commands in remedies.

use super::{Dnf, generation::NO_LOCKS, progress};
use crate::{
    host::Output,
    tools::packages::{
        Commands, FailureClass, Messages, Package, SourceFailure, messages::with_details,
    },
};

/// Parts of one output line and their class. The first match is used, so causes precede their consequences.
const SIGNS: &[(&[&str], FailureClass)] = &[
    (&["already locked by "], FailureClass::Locked),
    (
        &["Failed to obtain the transaction lock"],
        FailureClass::Locked,
    ),
    (&["can't create transaction lock"], FailureClass::Locked),
    (&["Could not run transaction", "lock"], FailureClass::Locked),
    (&["No space left on device"], FailureClass::NoSpace),
    (&["Disk quota exceeded"], FailureClass::Quota),
    (
        &["[Errno 30] Read-only file system"],
        FailureClass::ReadOnly,
    ),
    (&["cpio: ", "Read-only file system"], FailureClass::ReadOnly),
    (&["File too large"], FailureClass::FileSize),
    // CURLE_WRITE_ERROR of curl: received data could not be written.
    (&["Curl error (23)"], FailureClass::NoSpace),
    (
        &["more space needed on the", "filesystem"],
        FailureClass::NoSpace,
    ),
    // rpm, `lib/rpmprob.cc`, RPMPROB_DISKNODES.
    (
        &["needs", " inodes on the ", "filesystem"],
        FailureClass::Inodes,
    ),
    (&["needs", "on the", "filesystem"], FailureClass::NoSpace),
    (&["rpmdb", "DB_RUNRECOVERY"], FailureClass::Interrupted),
    (&["error: rpmdb: damaged"], FailureClass::Interrupted),
    // curl: the certificate of the server is not trusted (60), or a local certificate cannot be loaded (58, 77).
    (&["Curl error (60)"], FailureClass::Certificate),
    (&["Curl error (58)"], FailureClass::Certificate),
    (&["Curl error (77)"], FailureClass::Certificate),
    (
        &["repomd.xml GPG signature verification error"],
        FailureClass::Key,
    ),
    (&["GPG signature is not available"], FailureClass::Key),
    (&["is not signed"], FailureClass::Key),
    (
        &["they are not correct for this package"],
        FailureClass::Key,
    ),
    (&["Public key for", "is not installed"], FailureClass::Key),
    (&["Key import failed"], FailureClass::Key),
    (&["Problem opening package"], FailureClass::Key),
    (&["GPG check FAILED"], FailureClass::Key),
    (&["Status code: 429"], FailureClass::Network),
    (&["Status code: 50"], FailureClass::Network),
    (
        &["Status code: 40", "/repomd.xml (IP"],
        FailureClass::Missing,
    ),
    (&["Status code: 401"], FailureClass::Missing),
    (&["Status code: 403"], FailureClass::Missing),
    // The mirror does not have a file in the signed index, or has another version of it.
    (&["Status code: 404"], FailureClass::Stale),
    (&["checksum doesn't match"], FailureClass::Stale),
    (&["due to \"--cacheonly\" option"], FailureClass::Stale),
    (&["has incorrect checksum"], FailureClass::Stale),
    (&["Curl error ("], FailureClass::Network),
    (
        &["Cannot download, all mirrors were already tried"],
        FailureClass::Network,
    ),
    (
        &["Cannot prepare internal mirrorlist"],
        FailureClass::Network,
    ),
    (
        &["Failed to download metadata for repo"],
        FailureClass::Network,
    ),
    (&[NO_KEY], FailureClass::Sources),
    (&["failed loading '", ".repo'"], FailureClass::Sources),
    (&["Parsing file", "failed"], FailureClass::Sources),
    (&["filtered out by exclude filtering"], FailureClass::Held),
    (
        &["is filtered out by exclude filtering"],
        FailureClass::Held,
    ),
    // Without `for argument`, such a line is only one of the reasons why a problem has no solution.
    (
        &["filtered out by modular filtering for argument"],
        FailureClass::NotFound,
    ),
    (&["Unable to find a match"], FailureClass::NotFound),
    (&["No match for argument"], FailureClass::NotFound),
    (&["missing groups or modules"], FailureClass::NotFound),
    (&["not available."], FailureClass::NotFound),
    (
        &["Bad return status for module build on kernel"],
        FailureClass::Build,
    ),
    (&["Transaction test error"], FailureClass::Unmet),
    (&["conflicts with file from package"], FailureClass::Unmet),
    (&["Problem: "], FailureClass::Unmet),
    (&["Problem 1: "], FailureClass::Unmet),
    (&["scriptlet in rpm package"], FailureClass::Script),
    (&["scriptlet failed, exit status"], FailureClass::Script),
];

/// Prefix of the line about an enabled repository that verifies packages but has no key configured. dnf then installs nothing
/// until rpm has at least one key, even if this repository does not respond (`_checkGPGKey` in dnf/cli/commands/__init__.py,
/// tested with dnf 4.14).
const NO_KEY: &str = "Problem repository: [";

fn sign_in(text: &str) -> Option<(&str, FailureClass)> {
    SIGNS.iter().find_map(|(parts, class)| {
        let shows = |line: &&str| parts.iter().all(|part| line.contains(part));
        Some((text.lines().find(shows)?.trim(), *class))
    })
}

/// Whether the error output contains an error of a transaction. Errors of skipped repositories do not count: they are reported
/// when the lists are downloaded.
pub fn has_error(stderr: &str) -> bool {
    (stderr.lines())
        .filter_map(|line| line.strip_prefix("Error: "))
        .any(|error| !is_of_a_repository(error))
}

/// Whether an error is about a skipped repository.
pub fn is_of_a_repository(error: &str) -> bool {
    error.starts_with("Cache-only enabled but no cache for ")
        || error.starts_with("Failed to download metadata for repo ")
}

/// Returns the repositories whose metadata was downloaded, but whose cache files cannot be read.
pub fn unreadable(output: &str) -> Vec<&str> {
    (output.lines())
        .filter_map(|line| {
            let rest = line.strip_prefix("Error: Loading repository '")?;
            rest.strip_suffix("' has failed")
        })
        .collect()
}

/// Prefix of the line about a repository without metadata.
const NO_CACHE: &str = "Error: Cache-only enabled but no cache for ";

/// Prefix of the line about a repository whose metadata could not be downloaded.
const FAILED: &str = "Error: Failed to download metadata for repo '";

impl Messages for Dnf {
    fn commands(&self) -> Commands {
        Commands {
            unhold: "dnf versionlock delete 'ENTRY'",
            clean: "dnf clean packages",
            refresh: "dnf makecache --refresh",
            reinstall: "dnf reinstall NAME",
            install: "dnf install NAME",
            upgrade_kernel: "dnf upgrade kernel",
            install_kernel: "dnf install kernel-KERNEL",
            // Every release has `yum`. EL 7 has no dnf.
            install_version: "yum install 'NAME-VERSION*'",
            upgrade: "yum upgrade NAME",
            compiler: None,
            versions: "yum list --showduplicates NAME",
            containing: Some("yum provides FILE"),
            headers: "yum install kernel-devel-KERNEL",
            // Its name starts with the name of the kernel package, such as `kernel6.12` in Amazon Linux.
            extra_modules: "the kernel's `modules-extra`",
            credentials: "the options `username` and `password` of the repository's file, \
                          dnf.conf(5), with mode 0600",
        }
    }

    fn downgrade_command(&self, packages: &[String]) -> String {
        format!("dnf downgrade {}", packages.join(" "))
    }

    /// Returns the command that changes a package to the newest available version, including a downgrade: `dnf(8)`,
    /// distro-sync. If the package is held, the command disables version locks, because they would keep the unavailable
    /// version.
    fn to_offered_command(&self, package: &Package) -> Option<String> {
        let options = if package.held {
            format!("{NO_LOCKS} ")
        } else {
            String::new()
        };
        Some(format!("dnf {options}distro-sync {}", package.name))
    }

    fn failure_class(&self, output: &str) -> FailureClass {
        (sign_in(output).map_or(FailureClass::Other, |(_, class)| class)).or_build(output)
    }

    fn remedy(&self, output: &str) -> Option<&'static str> {
        output.contains(NO_KEY).then_some(
            "configure the key of the repository above (`gpgkey=`), import the key (`rpm --import FILE`), or disable the \
             repository (`dnf config-manager --set-disabled NAME`)",
        )
    }

    fn telling_line<'t>(&self, output: &'t str) -> Option<&'t str> {
        sign_in(output).map(|(line, _)| line)
    }

    fn first_reason<'t>(&self, output: &'t str) -> Option<&'t str> {
        let error = |line: &'_ str| {
            let reason = line.strip_prefix("Error: ").map(str::trim);
            reason.is_some_and(|reason| !reason.is_empty())
        };
        let of_error = output.lines().find(|line| error(line));
        (of_error.and_then(|line| line.strip_prefix("Error: ")))
            .or_else(|| self.telling_line(output))
            .or_else(|| output.lines().last())
    }

    /// Returns the repository without a key, the filtered packages, or the problems (of the solver or of the transaction test)
    /// with their indented reasons.
    fn preflight_issue(&self, output: &str) -> Option<String> {
        if let Some(line) = output.lines().find(|line| line.starts_with(NO_KEY)) {
            return Some(line.to_owned());
        }
        let filtered: Vec<&str> = (output.lines())
            .filter(|line| line.contains(" filtering for argument: "))
            .collect();
        if !filtered.is_empty() {
            return Some(filtered.join("\n"));
        }
        let lines: Vec<&str> = output.lines().map(str::trim_end).collect();
        let at = lines.iter().position(|line| {
            let line = line.trim_start();
            line.starts_with("Problem") && line.contains(": ")
                || line.starts_with("Error: Transaction test error")
        })?;
        Some(with_details(&lines[at..]))
    }

    fn not_queried(&self, output: &Output) -> Option<String> {
        let repository = (output.stderr.lines()).find_map(|line| line.strip_prefix(NO_CACHE))?;
        let repository = repository.trim().trim_matches('\'');
        Some(format!("repository `{repository}` has no package list"))
    }

    /// The exit status of `makecache` is 0 if it has skipped repositories.
    fn failed_sources(&self, output: &str) -> Option<String> {
        let mut failed: Vec<&str> = Vec::new();
        for line in output.lines() {
            let is_detail =
                line.starts_with("  - ") || line.starts_with("Errors during downloading");
            if is_detail || line.starts_with(FAILED) || line.starts_with("Warning: failed loading ")
            {
                failed.push(line);
            }
        }
        (!failed.is_empty()).then(|| failed.join("\n"))
    }

    fn failures_by_source(&self, output: &str) -> Option<Vec<SourceFailure>> {
        let mut failures: Vec<SourceFailure> = Vec::new();
        let mut detail = "";
        for line in output.lines() {
            if let Some(text) = line.strip_prefix("  - ") {
                detail = text.trim();
            } else if let Some(rest) = line.strip_prefix(FAILED) {
                let (name, why) = rest.split_once("': ")?;
                let why = if detail.is_empty() { why } else { detail };
                failures.push(SourceFailure {
                    address: name.to_owned(),
                    why: why.to_owned(),
                });
                detail = "";
            } else if line.starts_with("Error: ") || line.starts_with("Warning: failed loading ") {
                return None;
            }
        }
        (!failures.is_empty()).then_some(failures)
    }

    /// dnf may report success although a script failed: it does for every script that runs after the files are installed.
    fn failed_scripts(&self, output: &str) -> Option<String> {
        let lines: Vec<&str> = (output.lines().map(str::trim))
            .filter(|line| line.contains(" scriptlet failed, exit status "))
            .collect();
        (!lines.is_empty()).then(|| lines.join("\n"))
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

    const FAULTS: &str = include_str!("fixtures/refresh-faults.txt");
    const DEAD: &str = include_str!("fixtures/refresh-dead.txt");

    /// Returns the lines of the recorded output about one repository.
    fn about(repository: &str) -> String {
        let quoted = format!("'{repository}'");
        let mut lines = FAULTS.lines().peekable();
        let mut text = String::new();
        while let Some(line) = lines.next() {
            if line.contains(&quoted) {
                text.push_str(line);
                text.push('\n');
                while let Some(detail) = lines.next_if(|line| line.starts_with("  - ")) {
                    text.push_str(detail);
                    text.push('\n');
                }
            }
        }
        text
    }

    #[test]
    fn each_repository_failure_has_its_class() {
        for (repository, expected) in [
            ("badsig", FailureClass::Key),
            ("nosig", FailureClass::Key),
            ("wrongkey", FailureClass::Key),
            ("half", FailureClass::Stale),
            ("torn", FailureClass::Stale),
            ("noname", FailureClass::Network),
        ] {
            let text = about(repository);
            assert!(text.contains("Failed to download metadata"), "{repository}");
            assert_eq!(Dnf.failure_class(&text), expected, "{repository}: {text}");
        }
        assert_eq!(Dnf.failure_class(DEAD), FailureClass::Missing);
    }

    #[test]
    fn repository_without_key_is_reported_if_rpm_has_none() {
        // dnf prints all options of the repository. These are some of them.
        let text = "\nYou have enabled checking of packages via GPG keys. This is a good thing.\nHowever, you do not have any \
                    GPG public keys installed.\n\nProblem repository: [dead]\nbaseurl: http://127.0.0.1:9/dead/\ngpgcheck: \
                    1\ngpgkey: \nname: dead\npassword: \nusername: \n";
        assert_eq!(Dnf.failure_class(text), FailureClass::Sources);
        assert_eq!(Dnf.telling_line(text), Some("Problem repository: [dead]"));
        assert_eq!(Dnf.first_reason(text), Dnf.telling_line(text));
        assert_eq!(Dnf.preflight_issue(text).as_deref(), Dnf.telling_line(text));
        assert!(
            Dnf.remedy(text)
                .is_some_and(|remedy| remedy.contains("`gpgkey=`"))
        );
        assert_eq!(Dnf.remedy(DEAD), None);
    }

    #[test]
    fn failed_repositories_are_reported_with_their_reason() {
        let failures = Dnf.failures_by_source(DEAD).expect("failures");
        let names: Vec<&str> = failures.iter().map(|one| one.address.as_str()).collect();
        assert_eq!(names, ["dead", "gone"]);
        assert!(failures[0].why.contains("Couldn't connect to server"));
        assert!(failures[1].why.contains("404"));
        assert!(
            Dnf.failed_sources(DEAD)
                .is_some_and(|text| text.lines().count() == 6)
        );
        assert_eq!(Dnf.failures_by_source("Error: something else\n"), None);
        assert_eq!(Dnf.failed_sources("Metadata cache created.\n"), None);
        assert_eq!(Dnf.failures_by_source(FAULTS).map(|all| all.len()), Some(6));
    }

    #[test]
    fn dnf_4_14_failures_have_their_class() {
        for (text, expected) in rows! {
            "RPMDB already locked by 20994\n  The application with PID 20994 is: dnf\n",
                FailureClass::Locked;
            "Package unsigned-package-1-1.x86_64.rpm is not signed\nError: GPG check FAILED\n",
                FailureClass::Key;
            "The GPG keys listed for the \"faults\" repository are already installed but they \
             are not correct for this package.\nError: GPG check FAILED\n", FailureClass::Key;
            "Error: Error downloading packages:\n  huge-1-1.x86_64: Download failed: Curl \
             error (23): Failed writing received data to disk/application for http://x/a.rpm\n",
                FailureClass::NoSpace;
            "Consult /var/lib/dkms/nvidia/580.95.05/build/make.log for more information.\n\
             [Errno 28] No space left on device\n", FailureClass::NoSpace;
            "Error: Transaction test error:\n  installing package huge-1-1.x86_64 needs 58MB \
             more space on the /usr filesystem\n", FailureClass::NoSpace;
            "Error: Transaction test error:\n  installing package huge-1-1.x86_64 needs 2048 \
             inodes on the /usr filesystem\n", FailureClass::Inodes;
            "error: unpacking of archive failed on file /usr/x;6553f1: cpio: open failed - Disk quota exceeded\n",
                FailureClass::Quota;
            "error: unpacking of archive failed on file /usr/x;6553f1: cpio: open failed - Read-only file system\n",
                FailureClass::ReadOnly;
            "[Errno 30] Read-only file system: '/var/cache/dnf/x'\n", FailureClass::ReadOnly;
            "error: unpacking of archive failed on file /usr/x: cpio: write failed - File too large\n",
                FailureClass::FileSize;
            "All matches were filtered out by exclude filtering for argument: \
             nvidia-driver-cuda\nError: Unable to find a match: nvidia-driver-cuda\n", FailureClass::Held;
            "All matches were filtered out by modular filtering for argument: a\nError: Unable \
             to find a match: a\n", FailureClass::NotFound;
            "Error: \n Problem: conflicting requests\n  - nothing provides libmissing.so.1\n",
                FailureClass::Unmet;
            " Problem: package kmod-nvidia-open-dkms-3:580.178.04-1.el9.noarch requires \
             nvidia-kmod-common = 3:580.178.04\n  - conflicting requests\n  - package \
             nvidia-modprobe-3:595.91.07-1.el9.x86_64 is filtered out by modular filtering\n",
                FailureClass::Unmet;
            "Error: Transaction test error:\n  file /usr/bin/nvidia-smi from install of \
             file-conflict-1-1.x86_64 conflicts with file from package nvidia-driver-cuda\n",
                FailureClass::Unmet;
            "Package \"fails-pre-1-1.x86_64\" from repository \"faults\" has incorrect \
             checksum\nError: Some packages have invalid cache, but cannot be downloaded due to \
             \"--cacheonly\" option\n", FailureClass::Stale;
            "Error in PREIN scriptlet in rpm package fails-pre\nError: Transaction failed\n",
                FailureClass::Script;
            "Error: something new\n", FailureClass::Other;
        } {
            assert_eq!(Dnf.failure_class(text), expected, "{text}");
        }
    }

    #[test]
    fn repository_without_lists_is_reported() {
        let text = "Error: Cache-only enabled but no cache for 'somebody'\nOperation aborted.\n";
        let of = |text: &str| Dnf.not_queried(&crate::host::fake::failed(1, text));
        let expected = "repository `somebody` has no package list";
        assert_eq!(of(text).as_deref(), Some(expected));
        assert_eq!(of("Operation aborted.\n"), None);
    }

    #[test]
    fn failed_script_is_found_if_the_status_is_0() {
        let text = "  Running scriptlet: fails-post-1-1.x86_64            3/3 \npost says no\n\
                    warning: %post(fails-post-1-1.x86_64) scriptlet failed, exit status 3\n\n\
                    Complete!\n";
        assert_eq!(
            Dnf.failed_scripts(text).as_deref(),
            Some("warning: %post(fails-post-1-1.x86_64) scriptlet failed, exit status 3")
        );
        assert_eq!(Dnf.failed_scripts("Complete!\n"), None);
    }

    #[test]
    fn reasons_are_extracted_from_the_output() {
        let text = "(try to add '--allowerasing')\nError: \n Problem: problem with installed \
                    package gcc\n  - package a conflicts with gcc\n  - conflicting requests\nmore\n";
        assert_eq!(
            Dnf.preflight_issue(text).as_deref(),
            Some(
                " Problem: problem with installed package gcc\n  - package a conflicts with \
                 gcc\n  - conflicting requests"
            )
        );
        assert_eq!(
            Dnf.first_reason("noise\nError: Unable to find a match: a\n"),
            Some("Unable to find a match: a")
        );
        assert_eq!(Dnf.first_reason("only this"), Some("only this"));
    }

    reads_any_text!(
        "(Error: |  - |Failed to download metadata for repo '| Problem: |.|\n)*",
        |text| (
            Dnf.failure_class(&text),
            Dnf.preflight_issue(&text),
            Dnf.first_reason(&text),
            Dnf.failures_by_source(&text)
        )
    );
}
