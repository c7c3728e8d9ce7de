//! Checks whether the driver modules build for a kernel.
//!
//! Most entries are about mainline kernels. Distribution kernels contain backports, which can break or fix a build. For them, the
//! entries are only evidence, and the build decides.

use std::cmp::Reverse;

use crate::matrix::{Confidence, KernelFix, KernelReport, Matrix, Shows};
use crate::rule_result::{Candidate, Evaluation, Rule, RuleResult, say};
use crate::version::{DriverVersion, KernelVersion};

/// Adds the kernel rule results for a candidate.
pub(super) fn evaluate(
    matrix: &Matrix,
    kernel: &KernelVersion,
    arch: Option<&str>,
    offer: &Candidate,
    said: &mut Vec<RuleResult>,
) {
    let before = said.len();
    // A report about this kernel is more specific than the other entries.
    said.extend(reports(&matrix.kernel_reports, kernel, offer));
    let is_reported = said.len() > before;
    let not_reported = fixes(matrix, kernel, arch, offer, is_reported, said);
    let limit = limits(matrix, kernel, &offer.version, said);
    oldest(matrix, kernel, &offer.version, said);
    if limit.is_none() {
        outlived(matrix, kernel, &offer.version, said);
    }
    // A missing entry is only reported if no other entry decides.
    let against = |rule_result: &RuleResult| rule_result.evaluation >= Evaluation::Against;
    if limit != Some(true) && !said[before..].iter().any(against) {
        said.extend(not_reported);
    }
}

/// Returns a report that the candidate builds on this kernel but fails at run time. It also applies to modules that are already
/// loaded.
pub fn at_work(matrix: &Matrix, kernel: &KernelVersion, offer: &Candidate) -> Option<RuleResult> {
    let rows = matrix.kernel_reports.iter().filter(|row| row.builds);
    reports(rows, kernel, offer).next()
}

/// Returns the strongest kernel rule result for a candidate, if there is one.
pub fn strongest(
    matrix: &Matrix,
    kernel: &KernelVersion,
    arch: Option<&str>,
    offer: &Candidate,
) -> Option<RuleResult> {
    let mut said = Vec::new();
    evaluate(matrix, kernel, arch, offer, &mut said);
    said.into_iter()
        .max_by_key(|rule_result| rule_result.evaluation)
}

/// Returns whether entries show that a driver builds on the mainline version of a kernel. A mainline kernel that is not newer
/// than all entries is covered, because the list of known breakages is complete up to there.
pub(super) fn is_covered(matrix: &Matrix, kernel: &KernelVersion, version: &DriverVersion) -> bool {
    let series = kernel.series();
    if kernel.is_mainline() {
        let fixes = matrix.kernel_fixes.iter().map(|row| row.kernel.series());
        let limits = (matrix.kernel_limits.iter()).map(|row| row.newest_kernel.series());
        return fixes
            .chain(limits)
            .max()
            .is_some_and(|newest| series <= newest);
    }
    newest_series(matrix, version).is_some_and(|newest| series <= newest)
}

/// Returns the newest mainline series on which a driver is known to build.
fn newest_series(matrix: &Matrix, version: &DriverVersion) -> Option<(u32, u32)> {
    let branch = version.branch();
    let limits = (matrix.kernel_limits.iter())
        .filter(|row| row.driver.branch() == branch && row.driver <= *version)
        .map(|row| row.newest_kernel.series());
    limits.max().max(newest_fixed(matrix, version))
}

/// Returns the newest mainline series for which a driver has all fixes.
fn newest_fixed(matrix: &Matrix, version: &DriverVersion) -> Option<(u32, u32)> {
    let branch = version.branch();
    // Skip entries with a stable number, such as 6.1.76: they do not apply to vendor kernels.
    let rows = || (matrix.kernel_fixes.iter()).filter(|row| row.kernel.mainline()[2] == 0);
    // The fixes of the branch itself, or else of the nearest older branch with fixes.
    let listed = |row: &KernelFix| {
        let branches = row.first_fixed.iter().map(DriverVersion::branch);
        branches.filter(|one| *one <= branch).max()
    };
    let known = rows().filter_map(listed).max()?;
    let of = |versions: &[DriverVersion]| {
        let mut versions = versions.iter();
        versions.find(|one| one.branch() == known).cloned()
    };
    let fixes: Vec<&KernelFix> = rows()
        .filter(|row| of(&row.first_fixed).is_some())
        .collect();
    // Entries for older kernels do not list the branch, because its first version already contained these fixes.
    let first = fixes.iter().map(|row| row.kernel.series()).min()?;
    let before = rows()
        .map(|row| row.kernel.series())
        .filter(|series| *series < first)
        .max();
    let fixed = (fixes.into_iter())
        .filter(|row| known == branch && of(&row.first_fixed).is_some_and(|one| one <= *version))
        .filter(|row| of(&row.complete).is_none_or(|one| one <= *version))
        .map(|row| row.kernel.series());
    fixed.chain(before).max()
}

/// A verified entry rejects a mainline kernel. Otherwise an entry is evidence against the driver.
fn against(kernel: &KernelVersion, confidence: Confidence) -> Evaluation {
    if kernel.is_mainline() && confidence == Confidence::Verified {
        Evaluation::Refuse
    } else {
        Evaluation::Against
    }
}

/// For a vendor kernel, returns the explanation that an entry is only evidence.
fn proviso(kernel: &KernelVersion) -> &'static str {
    if kernel.is_mainline() {
        ""
    } else {
        " (mainline data; this vendor kernel may contain backports, so only the build decides)"
    }
}

/// Returns `true` if an entry is about a kernel. An entry with a stable number, such as 6.1.76, is only about mainline kernels
/// of that series, because the version of a vendor kernel does not contain the stable number.
fn concerns(row: &KernelVersion, kernel: &KernelVersion) -> bool {
    let stable = row.mainline()[2];
    if stable == 0 {
        return kernel.series() >= row.series();
    }
    kernel.is_mainline() && kernel.series() == row.series() && kernel.mainline()[2] >= stable
}

/// Adds the fixes that a version lacks. Returns a result if the fixes of its branch are unknown.
fn fixes(
    matrix: &Matrix,
    kernel: &KernelVersion,
    arch: Option<&str>,
    offer: &Candidate,
    is_reported: bool,
    said: &mut Vec<RuleResult>,
) -> Option<RuleResult> {
    let version = &offer.version;
    let branch = version.branch();
    // Of the fixes that the version is too old for, report only the most severe result; of equal ones, the newest kernel.
    let mut older: Option<RuleResult> = None;
    let mut not_reported: Option<RuleResult> = None;
    let mut rows: Vec<&KernelFix> = matrix.kernel_fixes.iter().collect();
    rows.sort_by_key(|row| &row.kernel);
    let concerned = rows.into_iter().filter(|row| {
        concerns(&row.kernel, kernel)
            && row
                .arch
                .as_deref()
                .is_none_or(|wanted| arch == Some(wanted))
            && row.flavor.is_none_or(|wanted| wanted == offer.flavor)
    });
    for row in concerned {
        let since = format!(
            "Linux {kernel} is {} or newer{}",
            row.kernel,
            proviso(kernel)
        );
        let mut add =
            |evaluation, text| said.push(say(Rule::Kernel, evaluation, text, &row.citations));
        let of_branch = |versions: &[DriverVersion]| {
            versions
                .iter()
                .find(|version| version.branch() == branch)
                .cloned()
        };
        match of_branch(&row.first_fixed) {
            Some(first) if *version < first => {
                let evaluation = against(kernel, row.confidence);
                if older
                    .as_ref()
                    .is_none_or(|known| known.evaluation <= evaluation)
                {
                    let text = format!(
                        "{since}; branch {branch} supports it from {first} on, and {version} is older"
                    );
                    older = Some(say(Rule::Kernel, evaluation, text, &row.citations));
                }
            }
            // A report about this kernel may name a later version.
            Some(_) if is_reported => {}
            Some(_) => {
                if let Some(complete) = of_branch(&row.complete).filter(|v| version < v) {
                    let text = format!(
                        "{since}; branch {branch} has all known fixes from {complete} on, and {version} is older"
                    );
                    add(Evaluation::Against, text);
                }
            }
            None if row.never_fixed.contains(&branch) => add(
                against(kernel, row.confidence),
                format!("{since}; branch {branch} ended without a fix for it"),
            ),
            None => {
                // A branch newer than all listed branches is assumed to have the fix.
                let newest = row.first_fixed.iter().map(DriverVersion::branch).max();
                if newest.is_some_and(|newest| branch < newest) {
                    let text =
                        format!("{since}; it is unknown whether branch {branch} has the fix");
                    not_reported =
                        Some(say(Rule::Kernel, Evaluation::Unknown, text, &row.citations));
                }
            }
        }
    }
    said.extend(older);
    not_reported
}

/// Adds a result if the kernel is newer than the newest supported kernel of a version. Returns whether an entry shows that
/// exactly this version builds, or `None` without an entry.
fn limits(
    matrix: &Matrix,
    kernel: &KernelVersion,
    version: &DriverVersion,
    said: &mut Vec<RuleResult>,
) -> Option<bool> {
    // The limit also applies to older versions of the branch.
    let row = matrix
        .kernel_limits
        .iter()
        .filter(|row| row.driver.branch() == version.branch() && *version <= row.driver)
        .min_by(|a, b| a.driver.cmp(&b.driver));
    let row = row?;
    if kernel.series() <= row.newest_kernel.series() {
        return Some(*version == row.driver);
    }
    let (evaluation, what) = match &row.first_broken {
        Some(broken) if kernel.series() >= broken.series() => (
            against(kernel, row.confidence),
            format!("needs patches from Linux {broken} on"),
        ),
        _ => (
            Evaluation::Unknown,
            "is not known to build on newer ones".to_owned(),
        ),
    };
    let text = format!(
        "{} builds on mainline kernels up to {} and {what}; {version} would have to build on \
         Linux {kernel}{}",
        row.driver,
        row.newest_kernel,
        proviso(kernel)
    );
    said.push(say(Rule::Kernel, evaluation, text, &row.citations));
    Some(false)
}

/// For a branch without its own limit: if a newer branch with a later last release does not build, the older branch does not
/// build either.
fn outlived(
    matrix: &Matrix,
    kernel: &KernelVersion,
    version: &DriverVersion,
    said: &mut Vec<RuleResult>,
) {
    let branch = version.branch();
    let last_release = |branch| {
        let row = matrix.branch(branch)?;
        row.newest_date.as_deref().or(row.end_of_life.as_deref())
    };
    let own = last_release(branch);
    let rows = matrix.kernel_limits.iter().filter_map(|row| {
        let broken = row.first_broken.as_ref()?;
        let newer = row.driver.branch() > branch && kernel.series() >= broken.series();
        // A branch without an entry was short-lived.
        let outlived =
            own.is_none_or(|own| last_release(row.driver.branch()).is_some_and(|last| own < last));
        (newer && outlived).then_some((broken, row))
    });
    let surest = rows.min_by_key(|(broken, row)| (Reverse(row.confidence), *broken));
    let Some((broken, row)) = surest else {
        return;
    };
    let text = format!(
        "{}, which was released after the last release of branch {branch}, needs patches from \
         Linux {broken} on; {version} would have to build on Linux {kernel}{}",
        row.driver,
        proviso(kernel)
    );
    // It is an assumption that a branch without an entry ended early.
    let confidence = own.map_or(Confidence::Unverified, |_| row.confidence);
    let evaluation = against(kernel, confidence);
    said.push(say(Rule::Kernel, evaluation, text, &row.citations));
}

fn oldest(
    matrix: &Matrix,
    kernel: &KernelVersion,
    version: &DriverVersion,
    said: &mut Vec<RuleResult>,
) {
    for row in &matrix.kernel_oldest {
        let within = row
            .first_driver
            .as_ref()
            .is_none_or(|first| version >= first)
            && row.last_driver.as_ref().is_none_or(|last| version <= last);
        if within && kernel.series() < row.kernel.series() {
            let text = format!(
                "driver {version} needs Linux {} or newer; {kernel} is older{}",
                row.kernel,
                proviso(kernel)
            );
            said.push(say(
                Rule::Kernel,
                against(kernel, row.confidence),
                text,
                &row.citations,
            ));
        }
    }
}

/// Returns the driver errors that known failures of a candidate on a kernel cause, each with the report of the failure.
pub fn shown_by_errors<'m>(
    matrix: &'m Matrix,
    kernel: &KernelVersion,
    offer: &Candidate,
) -> Vec<(&'m Shows, String)> {
    (matrix.kernel_reports.iter())
        .filter_map(|row| Some((row.shows.as_ref()?, reported(row, kernel, offer)?)))
        .collect()
}

fn reports<'m>(
    rows: impl IntoIterator<Item = &'m KernelReport>,
    kernel: &KernelVersion,
    offer: &Candidate,
) -> impl Iterator<Item = RuleResult> {
    rows.into_iter().filter_map(move |row| {
        let text = reported(row, kernel, offer)?;
        Some(say(Rule::Kernel, Evaluation::Against, text, &row.citations))
    })
}

/// Returns the report of an entry if it is about this candidate and kernel.
fn reported(row: &KernelReport, kernel: &KernelVersion, offer: &Candidate) -> Option<String> {
    let version = &offer.version;
    let named = row.kernel.as_ref().map_or("", KernelVersion::as_str);
    // Two numbers are a series; anything longer is the beginning of a release.
    let is_series =
        named.bytes().all(|b| b.is_ascii_digit() || b == b'.') && named.matches('.').count() == 1;
    let meant = match &row.kernel {
        Some(row) if is_series => kernel.series() == row.series(),
        _ => {
            kernel.as_str().starts_with(named) || row.or_later && counts_on(named, kernel.as_str())
        }
    } && (row.ending.as_deref()).is_none_or(|ending| kernel.as_str().ends_with(ending));
    let within = (row.first_driver.as_ref()).is_none_or(|first| version >= first)
        && *version <= row.last_driver
        && (row.modules).is_none_or(|modules| modules.include(offer.flavor));
    let later = match row.or_later {
        true => format!(" (of {} and later)", named.trim_end_matches('-')),
        false => String::new(),
    };
    let builds = if row.builds { "builds, and then " } else { "" };
    (meant && within).then(|| {
        let report = &row.report;
        format!("{builds}{report}; reported for {version} on Linux {kernel}{later}")
    })
}

/// Returns `true` if a release is not older than `named` in the same numbering: `6.1.0-57-amd64` for `6.1.0-56-`. The number
/// must have the same length, because other kernels are numbered differently, for example Ubuntu cloud kernels from 1000 on.
fn counts_on(named: &str, release: &str) -> bool {
    let (count, end) = last_number(named);
    let Some(rest) = release.strip_prefix(&named[..count.start]) else {
        return false;
    };
    let first = &named[count];
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    // With the same length, the text order is the number order.
    !first.is_empty()
        && digits == first.len()
        && &rest[..digits] >= first
        && rest[digits..].starts_with(end)
}

/// Returns the range of the last number in a text, and the text after it.
fn last_number(text: &str) -> (std::ops::Range<usize>, &str) {
    let digit = |c: char| c.is_ascii_digit();
    let before_end = text.trim_end_matches(|c| !digit(c));
    let start = before_end.trim_end_matches(digit).len();
    (start..before_end.len(), &text[before_end.len()..])
}

#[cfg(test)]
mod tests {
    use super::{Candidate, KernelReport, Matrix, at_work, counts_on, reports, shown_by_errors};
    use crate::identity::Flavor;

    #[test]
    fn page_faults_with_64_kib_pages_are_reported() {
        let matrix = Matrix::builtin().expect("a matrix");
        let told = |kernel: &str, version: &str| {
            let offer = Candidate {
                version: version.parse().expect("a version"),
                flavor: Flavor::Open,
            };
            at_work(&matrix, &kernel.parse().expect("a kernel"), &offer).is_some()
        };
        assert!(told("6.8.0-1030-nvidia-64k", "595.45.04"));
        assert!(!told("6.8.0-1030-nvidia-64k", "580.178.04"));
        assert!(!told("6.8.0-1030-nvidia", "595.45.04"));
    }

    #[test]
    fn reports_apply_to_their_series_or_release() {
        let mut matrix = Matrix::builtin().expect("a matrix");
        let row = matrix.kernel_reports[0].clone();
        let offer = Candidate {
            version: row.last_driver.clone(),
            flavor: Flavor::Open,
        };
        for (named, ending, kernel, concerned) in [
            (Some("6.1"), None, "6.1.0-44-amd64", true),
            (Some("6.1"), None, "6.12.57+deb13-amd64", false),
            (Some("6.1.0-44-"), None, "6.1.0-44-amd64", true),
            (Some("6.1.0-44-"), None, "6.1.0-45-amd64", false),
            (None, Some("64k"), "6.8.0-1030-nvidia-64k", true),
            (None, Some("64k"), "6.12.0-211.el10_2.aarch64+64k", true),
            (None, Some("64k"), "6.8.0-1030-nvidia", false),
            (Some("6.8"), Some("64k"), "6.17.0-1030-nvidia-64k", false),
        ] {
            matrix.kernel_reports = vec![KernelReport {
                kernel: named.map(|named| named.parse().expect("a kernel")),
                ending: ending.map(str::to_owned),
                or_later: false,
                first_driver: None,
                modules: None,
                ..row.clone()
            }];
            let kernel = kernel.parse().expect("a kernel");
            let said = reports(&matrix.kernel_reports, &kernel, &offer).next();
            assert_eq!(said.is_some(), concerned, "{named:?} {kernel}");
        }
    }

    #[test]
    fn page_faults_with_64_kib_pages_have_an_xid() {
        let matrix = Matrix::builtin().expect("a matrix");
        for (version, kernel, known) in rows! {
            "595.84", "6.12.0-211.el10_2.aarch64+64k", true;
            "590.44.01", "6.8.0-1030-nvidia-64k", true;
            "580.159.03", "6.8.0-1030-nvidia-64k", false;
            "595.84", "6.8.0-1030-nvidia", false;
        } {
            let offer = Candidate {
                version: version.parse().expect("a version"),
                flavor: Flavor::Open,
            };
            let shown = shown_by_errors(&matrix, &kernel.parse().expect("a kernel"), &offer);
            assert_eq!(shown.len(), usize::from(known), "{version} {kernel}");
            assert!(shown.iter().all(|(shows, _)| shows.xid == 31), "{version}");
        }
    }

    #[test]
    fn later_vendor_releases_are_detected() {
        for (named, release, later) in [
            ("6.1.0-56-", "6.1.0-56-amd64", true),
            ("6.1.0-56-", "6.1.0-57-cloud-amd64", true),
            ("6.1.0-56-", "6.1.0-55-amd64", false),
            ("6.1.0-56-", "6.1.0-1036-oem", false),
            ("6.1.0-56-", "6.1.0-57", false),
            ("6.1.0-56-", "6.12.0-57-amd64", false),
            ("none", "none", false),
        ] {
            assert_eq!(counts_on(named, release), later, "{named} {release}");
        }
    }
}
