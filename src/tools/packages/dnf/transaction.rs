//! Parses the table of a resolved transaction and its sizes. dnf provides no other format before the transaction is performed.
//!
//! A row begins with one blank. A field that does not fit into its column moves all following fields of the row to the next
//! line, so rows are parsed by fields and not by columns.

use std::borrow::Cow;

use super::{database::id_of, failures::is_of_a_repository, sizes};
use crate::tools::packages::{Action, Estimate, Package};

/// The effect on the packages of a section.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Section {
    /// The packages are installed, or replace an installed version.
    Coming,
    Removing,
    /// Streams, groups and skipped packages.
    Other,
}

fn section(title: &str) -> Section {
    match title {
        "Removing" | "Removing dependent packages" | "Removing unused dependencies" => {
            Section::Removing
        }
        "Installing"
        | "Upgrading"
        | "Reinstalling"
        | "Downgrading"
        | "Installing dependencies"
        | "Installing weak dependencies"
        | "Installing group/module packages"
        | "Installing group packages" => Section::Coming,
        _ => Section::Other,
    }
}

/// A row, and the packages that it replaces.
#[derive(Debug, Default)]
struct TransactionRow<'t> {
    fields: Vec<&'t str>,
    /// `NAME.ARCHITECTURE` and version.
    replaces: Vec<(&'t str, &'t str)>,
}

impl<'t> TransactionRow<'t> {
    /// Returns name, architecture, version and repository.
    fn package(&self) -> Option<[&'t str; 4]> {
        self.fields.get(..4)?.try_into().ok()
    }

    fn size(&self) -> Option<u64> {
        let text: Cow<'_, str> = match self.fields.get(4..)? {
            [number] => Cow::Borrowed(number),
            [number, unit] => format!("{number} {unit}").into(),
            _ => return None,
        };
        sizes::at_most(&text)
    }
}

/// Returns all rows with their sections.
fn rows(text: &str) -> Vec<(Section, TransactionRow<'_>)> {
    let mut rows: Vec<(Section, TransactionRow<'_>)> = Vec::new();
    let (mut inside, mut current) = (false, Section::Other);
    for line in text.lines() {
        let line = line.trim_end();
        if line.is_empty() || line == "Transaction Summary" {
            inside = false;
        } else if let Some(title) = line.strip_suffix(':').filter(|_| !line.starts_with(' ')) {
            // Rows follow the first section title. The header of the table precedes it and is ignored.
            (inside, current) = (true, section(title));
        } else if !inside || !line.starts_with(' ') {
        } else if let Some(replaced) = line.trim_start().strip_prefix("replacing  ") {
            let parts = replaced.split_once(' ');
            if let (Some((_, row)), Some((name, version))) = (rows.last_mut(), parts) {
                row.replaces.push((name, version.trim()));
            }
        } else if line.starts_with("  ") {
            if let Some((_, row)) = rows.last_mut() {
                row.fields.extend(line.split_whitespace());
            }
        } else {
            let fields = line.split_whitespace().collect();
            let replaces = Vec::new();
            rows.push((current, TransactionRow { fields, replaces }));
        }
    }
    rows
}

/// Returns the installed package with this name, architecture and version.
fn known<'p>(
    installed: &'p [Package],
    name: &str,
    architecture: &str,
    version: &str,
) -> Option<&'p Package> {
    let same = |package: &&Package| {
        package.name == name && package.architecture == architecture && package.version == version
    };
    installed.iter().find(same)
}

fn removal(installed: &[Package], name: &str, architecture: &str, version: &str) -> Action {
    let id = match known(installed, name, architecture, version) {
        Some(package) => package.id.clone(),
        None => id_of(installed, name, architecture, version),
    };
    Action::Remove {
        name: id,
        version: version.to_owned(),
    }
}

/// Returns the actions of the transaction, including the installed versions.
pub fn actions(text: &str, installed: &[Package]) -> Vec<Action> {
    let mut actions = Vec::new();
    for (section, row) in rows(text) {
        let Some([name, architecture, version, _]) = row.package() else {
            continue;
        };
        match section {
            Section::Other => continue,
            Section::Removing => actions.push(removal(installed, name, architecture, version)),
            Section::Coming => {
                let id = id_of(installed, name, architecture, version);
                let from = (installed.iter())
                    .find(|package| package.id == id)
                    .map(|package| package.version.clone());
                actions.push(Action::Install {
                    name: id,
                    from,
                    to: version.to_owned(),
                });
            }
        }
        for (replaced, version) in row.replaces {
            if let Some((name, architecture)) = replaced.rsplit_once('.') {
                actions.push(removal(installed, name, architecture, version));
            }
        }
    }
    actions
}

/// The repository column of a package file on the command line, which is not downloaded.
const PACKAGE_FILE: &str = "@commandline";

/// Returns the size of each package to download, with its repository, and the unpacked size. dnf prints the unpacked size only
/// if no package is removed or upgraded. Otherwise the result is 0, and only rpm checks the free space before it changes
/// anything.
pub fn estimate(text: &str) -> Estimate {
    let downloads = (rows(text).iter())
        .filter(|(section, _)| *section == Section::Coming)
        .filter_map(|(_, row)| Some((row.package()?[3].to_owned(), row.size()?)))
        .filter(|(repository, _)| repository != PACKAGE_FILE)
        .collect();
    let unpacked = |line: &str| sizes::at_most(line.strip_prefix("Installed size: ")?);
    Estimate {
        downloads,
        unpacked_bytes: text.lines().find_map(unpacked).unwrap_or_default(),
    }
}

/// Whether a query has a result. A simulation exits with status 1 because the confirmation is answered with no. The exit status
/// of the dnf shell is always 0.
pub fn is_answer(ok: bool, stdout: &str, stderr: &str) -> bool {
    let is_no_failure = |error: &str| error == "Operation aborted." || is_of_a_repository(error);
    let mut errors = stderr
        .lines()
        .filter_map(|line| line.strip_prefix("Error: "));
    (ok || stdout.contains("\nTransaction Summary\n"))
        && errors.all(is_no_failure)
        && !has_problem(stdout)
}

/// Whether the dnf shell could not resolve a transaction. It prints the problem to standard output, and continues with an empty
/// transaction.
pub fn has_problem(stdout: &str) -> bool {
    stdout.lines().any(|line| {
        let rest = line.trim_start().strip_prefix("Problem");
        let number = |text: &str| text.trim().chars().all(|c| c.is_ascii_digit());
        rest.and_then(|rest| rest.split_once(':'))
            .is_some_and(|(before, _)| number(before))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::text::reads_any_text;
    use crate::tools::packages::dnf::database;

    const DRIVER: &str = include_str!("fixtures/install-driver.txt");
    const SWAP: &str = include_str!("fixtures/swap.txt");
    const REPLACE: &str = include_str!("fixtures/replace.txt");
    const REMOVE: &str = include_str!("fixtures/remove.txt");
    const REINSTALL: &str = include_str!("fixtures/reinstall.txt");
    const LONG: &str = include_str!("fixtures/long-names.txt");

    fn installed(lines: &[&str]) -> Vec<Package> {
        let lines: Vec<String> = (lines.iter().chain(&["rpm x86_64 (none) 4.16 37.el9"]))
            .map(|line| format!("{} (none) (none)\n", line).replace(' ', "\t"))
            .collect();
        database::parse(&lines.concat())
    }

    fn described(text: &str, lines: &[&str]) -> String {
        Action::describe(&actions(text, &installed(lines)))
    }

    #[test]
    fn unresolved_shell_transaction_has_no_result() {
        let said =
            "Problem 1: conflicting requests\n  - nothing provides x\nNothing to do.\nComplete!\n";
        assert!(!is_answer(true, said, ""));
        assert!(!is_answer(true, " Problem: conflicting requests\n", ""));
        assert!(is_answer(true, "Nothing to do.\nComplete!\n", ""));
    }

    #[test]
    fn too_long_field_moves_to_the_next_line() {
        assert_eq!(
            described(DRIVER, &["libnvidia-ml x86_64 3 580.65.06 1.el9"]),
            "+ kernel-devel-5.14.0-570.12.1.el9_6 5.14.0-570.12.1.el9_6\n\
             + kmod-nvidia-open-dkms 3:580.95.05-1.el9\n\
             + nvidia-driver-cuda 3:580.95.05-1.el9\n\
             + dkms 3.2.2-1.el9\n\
             ~ libnvidia-ml 3:580.65.06-1.el9 -> 3:580.95.05-1.el9\n\
             + nvidia-driver-cuda-libs 3:580.95.05-1.el9\n\
             + nvidia-kmod-common 3:580.95.05-1.el9\n\
             + nvidia-persistenced 3:580.95.05-1.el9"
        );
        assert!(described(LONG, &[]).contains("column-of-the-table 1.2.3-4.el9_6.alma.1"));
    }

    #[test]
    fn removed_and_replaced_packages_are_removals() {
        let podman = "podman x86_64 (none) 5.4.0 13.el9_6";
        assert_eq!(
            described(SWAP, &[podman, "runc x86_64 (none) 1.2.5 3.el9_6"]),
            "+ containerd.io 1.7.28-2.el9\n- podman 5.4.0-13.el9_6\n- runc 1.2.5-3.el9_6"
        );
        assert_eq!(
            described(REPLACE, &["gcc x86_64 (none) 11.5.0 2.el9"]),
            "+ obsoletes-gcc 12-1\n- gcc 11.5.0-2.el9"
        );
        // If a package may have several versions, the removed version is part of the name.
        assert_eq!(
            described(
                REMOVE,
                &["kernel-devel x86_64 (none) 5.14.0 570.12.1.el9_6"]
            )
            .lines()
            .next(),
            Some("- kernel-devel-5.14.0-570.12.1.el9_6 5.14.0-570.12.1.el9_6")
        );
        assert_eq!(described(REMOVE, &[]).lines().count(), 5);
    }

    #[test]
    fn reinstalling_newer_version_completes_upgrade() {
        let both = ["slow x86_64 (none) 1 1", "slow x86_64 (none) 2 1"];
        assert_eq!(
            described(REINSTALL, &both),
            "~ slow 2-1 -> 2-1\n- slow-1-1 1-1"
        );
    }

    #[test]
    fn each_download_has_repository_and_size() {
        let found = estimate(DRIVER);
        assert_eq!(found.downloads.len(), 8);
        assert!(
            found
                .downloads
                .iter()
                .any(|(repository, _)| repository == "epel")
        );
        let libraries = found.downloads.iter().map(|(_, size)| *size).max();
        assert!(libraries.is_some_and(|size| (1_900_000..2_200_000).contains(&size)));
        assert!((1_900_000..2_200_000).contains(&found.unpacked_bytes));
        assert_eq!(estimate(REMOVE).download_bytes(), 0);
    }

    #[test]
    fn declined_simulation_is_a_result() {
        for (stdout, stderr, expected) in rows! {
            DRIVER, "Operation aborted.\n", true;
            DRIVER, "Error: Operation aborted.\n", true;
            "Dependencies resolved.\nNothing to do.\nComplete!\n", "", true;
            DRIVER, "Error: Cache-only enabled but no cache for 'dead'\n", true;
            // If a part of a request fails, the shell still prints the table of the other parts.
            SWAP, "Error: Unable to find a match: a\nError: Operation aborted.\n", false;
            "", "Error: \n Problem: conflicting requests\n", false;
        } {
            assert_eq!(
                is_answer(stderr.is_empty(), stdout, stderr),
                expected,
                "{stderr}"
            );
        }
    }

    reads_any_text!(
        "(Installing:|Removing:| [a-z]+|     replacing  |[0-9.]+|\n| )*",
        |text| (actions(&text, &[]), estimate(&text))
    );
}
