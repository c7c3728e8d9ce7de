//! `compat`: queries the compatibility matrix.

use std::{collections::BTreeSet, fmt::Write as _};

use super::{
    Failure,
    args::{CompatArgs, OutputFormat},
    env::{Console, Env},
    machine, print,
};
use crate::{
    compat::{
        matrix::{BranchKind, Matrix, Support},
        question::{
            self, Answer, BranchAnswer, Compatibility, DriverOrBranch, MachineGpus,
            NameMatchAnswer, Question, answer,
        },
    },
    config::{
        error::ConfigError,
        profile::{DriverRow, Profile},
    },
    exit::Exit,
    facts::{GpuFact, Os},
    host::Host,
    model::{
        gpu::SupportedFlavors,
        pci::{NVIDIA, PciId},
        version::{Branch, DriverVersion},
    },
    report::Style,
};

/// The width of the names in the output.
const COLUMN: usize = 20;

pub(super) fn run(
    here: &Host,
    env: &Env,
    console: &mut Console<'_>,
    args: &CompatArgs,
) -> Result<Exit, Failure> {
    let matrix = machine::matrix(here, env)?;
    let machine = match &args.lspci {
        Some(file) => {
            let host = machine::from_lspci(here, file)?;
            let facts = machine::facts(&host, &matrix, machine::TEXT_ONLY);
            Some(MachineGpus {
                gpus: facts.gpus.iter().map(GpuFact::identity).collect(),
                nvswitch: !facts.nvswitches.is_empty(),
            })
        }
        None => None,
    };
    if let Some(id) = args
        .gpu
        .as_ref()
        .and_then(|name| name.parse::<PciId>().ok())
        && id.vendor != NVIDIA
    {
        return Err(Failure::new(
            Exit::Usage,
            "not-nvidia",
            &format!("look up `{id}`: not an NVIDIA GPU"),
            Some("run `lspci -nn`; the IDs of NVIDIA GPUs begin with `10de:`"),
        ));
    }
    let system = match &args.os {
        Some(name) => match system(here, console, name) {
            Ok(rows) => Some((name, rows)),
            // The driver also works on other systems. Only its packages are unknown.
            Err(failure) if args.driver.is_some() && failure.report().exit() == Exit::Blocked => {
                let why = format!(
                    "`install` does not support {name}, and its driver packages are unknown: the result is only about the \
                     driver"
                );
                console.warn(&[why]);
                None
            }
            Err(failure) => return Err(failure),
        },
        None => None,
    };
    let question = Question {
        gpu: args.gpu.clone(),
        machine,
        cuda: args.cuda,
        cudnn: args.cudnn,
        driver: args.driver.clone(),
        kernel: args.kernel.clone(),
        branches: (system.as_ref()).map(|(_, rows)| offered(rows)),
    };
    let answer = answer(&matrix, &question).map_err(|error| {
        Failure::usage(
            error,
            "for example `gpu-bootstrap compat --gpu L4 --cuda 12.8`",
        )
    })?;
    if let (Some((name, rows)), Some(driver)) = (&system, &args.driver) {
        let lacks = not_offered(name, rows, driver.branch());
        console.warn(&lacks.into_iter().collect::<Vec<_>>());
    }
    match args.output.format {
        OutputFormat::Json => print::json(&mut console.out, &answer)?,
        OutputFormat::Human => {
            let result = result(&matrix, &question, &answer);
            let text = human(&result, &answer, args.verbose, console.out_style());
            print::text(&mut console.out, &text)?;
        }
    }
    Ok(match answer.verdict {
        Compatibility::Compatible => Exit::Ok,
        Compatibility::Incompatible | Compatibility::NeedsForwardCompat => Exit::Blocked,
        // The exit status of `check` if nothing could be checked.
        Compatibility::Unknown => Exit::Drift,
    })
}

/// Parses a system name: `ubuntu-24.04`, `Ubuntu 24.04`, `debian12`, `al2023`.
pub(super) fn os_named(name: &str) -> Result<Os, Failure> {
    let lower = name.trim().to_lowercase();
    let start = lower.find(|c: char| c.is_ascii_digit());
    let (id, version) = start.map_or((lower.as_str(), ""), |at| lower.split_at(at));
    let id = id.trim_end_matches(['-', '_', ' ', ':']);
    let (id, version) = match version.is_empty() {
        true => lower.rsplit_once('-').unwrap_or((lower.as_str(), "")),
        false => (id, version),
    };
    if id.is_empty() || version.is_empty() {
        return Err(Failure::new(
            Exit::Usage,
            "os-unknown",
            &format!("parse `--os {name}`: no release"),
            Some("use `ID-VERSION_ID` of its `os-release`, for example `ubuntu-24.04`"),
        ));
    }
    let profiles = Profile::all_built_in()?;
    let alias = (profiles.iter()).find_map(|profile| profile.aliases.get(id));
    Ok(Os {
        id: alias.map_or(id, String::as_str).to_owned(),
        version_id: Some(version.to_owned()),
        id_like: Vec::new(),
        version_codename: None,
        pretty_name: None,
    })
}

/// Returns the driver package sets that the profile has for the release in `name`, such as `ubuntu-24.04`.
fn system(host: &Host, console: &mut Console<'_>, name: &str) -> Result<Vec<DriverRow>, Failure> {
    let os = os_named(name)?;
    let version = os.version_id.as_deref().unwrap_or_default();
    let choice = match Profile::choose(None, Some(&os), &*host.files) {
        Err(ConfigError::UnsupportedOs { os, supported }) => {
            return Err(unsupported(&os, &supported.join("; ")));
        }
        choice => choice?,
    };
    console.warn(&choice.warnings);
    let profile = choice.profile;
    let Some(release) = profile.release_for(version) else {
        return Err(unsupported(
            &format!("{} {version}", os.id),
            &profile.serves(),
        ));
    };
    let is_of_release = |row: &DriverRow| row.releases.contains(&release.version_id);
    let rows = profile.driver.iter().filter(|row| is_of_release(row));
    Ok(rows.cloned().collect())
}

fn unsupported(os: &str, supported: &str) -> Failure {
    Failure::new(
        Exit::Blocked,
        "os-unsupported",
        &format!("choose a profile: {os} is not supported"),
        Some(&format!("supported are {supported}")),
    )
}

/// The branches in the package sources of a system.
fn offered(rows: &[DriverRow]) -> BTreeSet<Branch> {
    rows.iter().flat_map(|row| row.branches.clone()).collect()
}

/// Returns a warning with the available branches if a system has no packages of this branch.
fn not_offered(system: &str, rows: &[DriverRow], branch: Branch) -> Option<String> {
    if rows.iter().any(|row| row.branches.contains(&branch)) {
        return None;
    }
    let offered: Vec<String> = offered(rows).iter().map(ToString::to_string).collect();
    Some(format!(
        "no package source for {system} has branch {branch}; available: {}",
        offered.join(", ")
    ))
}

/// Returns the first line of the output: the verdict and the driver. If they are not compatible, also the first reason.
fn result(matrix: &Matrix, question: &Question, answer: &Answer) -> String {
    let asked = question.driver.as_ref().map(|driver| match driver {
        DriverOrBranch::Version(version) => described(matrix, version),
        DriverOrBranch::Branch(branch) => match matrix.branch(*branch) {
            Some(row) => described(matrix, &row.newest_version),
            None => format!("branch {branch}"),
        },
    });
    let recommended = answer.driver.recommended.as_ref();
    let reason = answer.why.first().map_or("", String::as_str);
    // A driver with the same problem does not help.
    let helps = |best: &&DriverVersion| {
        let instead = Question {
            driver: Some(DriverOrBranch::Version((*best).clone())),
            ..question.clone()
        };
        question::answer(matrix, &instead).is_ok_and(|other| {
            other.verdict == Compatibility::Compatible || other.why.first() != answer.why.first()
        })
    };
    let instead = recommended
        .filter(|_| asked.is_some())
        .filter(helps)
        .map_or_else(String::new, |best| format!("; use driver {best}"));
    match (answer.verdict, asked, recommended) {
        (Compatibility::Compatible, Some(driver), _) => format!("compatible: {driver}"),
        (Compatibility::Compatible, None, Some(best)) => {
            let modules = answer.module_flavor.map(modules);
            let modules = modules.map_or_else(String::new, |one| format!(", {one} kernel modules"));
            format!("compatible: {}{modules}", described(matrix, best))
        }
        (Compatibility::Compatible, None, None) => "compatible".to_owned(),
        (verdict, Some(driver), _) => {
            format!("{} with {driver}: {reason}{instead}", title(verdict))
        }
        (verdict, None, _) => format!("{}: {reason}", title(verdict)),
    }
}

/// A driver with its branch: `driver 580.178.04 (branch 580, LTS, supported until 2028-06)`.
fn described(matrix: &Matrix, version: &DriverVersion) -> String {
    let branch = version.branch();
    let Some(row) = matrix.branch(branch) else {
        return format!("driver {version} (branch {branch})");
    };
    let end = row.end_of_life.as_deref();
    let support = match (row.support, end) {
        (Support::Supported, Some(end)) => format!(", supported until {end}"),
        (Support::Ended, Some(end)) => format!(", end-of-life since {end}"),
        (Support::Ended, None) => ", end-of-life".to_owned(),
        (Support::Supported | Support::Unknown, _) => String::new(),
    };
    format!(
        "driver {version} (branch {branch}, {}{support})",
        kind(row.kind)
    )
}

/// The short name of a branch type.
fn kind(kind: BranchKind) -> &'static str {
    match kind {
        BranchKind::Ltsb => "LTS",
        BranchKind::Pb => "production",
        BranchKind::Nfb => "new feature",
        BranchKind::Development => "development",
        BranchKind::Legacy => "legacy",
        BranchKind::Unknown => "unknown type",
    }
}

fn human(result: &str, answer: &Answer, verbose: bool, style: Style) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "{}", style.hanging("", result));
    // The first line contains the first reason, unless the result is positive.
    let reasons = match answer.verdict {
        Compatibility::Compatible => &answer.why[..],
        _ => answer.why.get(1..).unwrap_or_default(),
    };
    for why in reasons {
        let _ = writeln!(text, "{}", style.hanging("  ", why));
    }
    let mut row = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            let head = format!("{name:<COLUMN$} ");
            let _ = writeln!(text, "{}", style.hanging(&head, &value));
        }
    };
    row(
        "oldest driver",
        answer.driver.min.as_ref().map(ToString::to_string),
    );
    row(
        "last branch",
        answer.driver.max_branch.map(|branch| branch.to_string()),
    );
    row(
        "recommended driver",
        answer.driver.recommended.as_ref().map(ToString::to_string),
    );
    row(
        "kernel modules",
        answer.module_flavor.map(modules).map(str::to_owned),
    );
    name_matches(&mut text, &answer.name_matches, style);
    let mut row = |name: &str, value: &str| {
        let head = format!("{name:<COLUMN$} ");
        let _ = writeln!(text, "{}", style.hanging(&head, value));
    };
    if verbose {
        for (at, citation) in answer.citations.iter().enumerate() {
            row(if at == 0 { "sources" } else { "" }, citation);
        }
    } else if !answer.citations.is_empty() {
        row(
            "sources",
            &format!("{} (`-v` lists them)", answer.citations.len()),
        );
    }
    branches(&mut text, &answer.branches, style);
    text
}

/// Writes a table of branches and CUDA versions.
fn branches(text: &mut String, branches: &[BranchAnswer], style: Style) {
    if branches.is_empty() {
        return;
    }
    let head = ["branch", "type", "newest", "support", "CUDA", "modules"].map(str::to_owned);
    let rows = branches.iter().map(|row| {
        [
            row.branch.to_string(),
            kind(row.kind).to_owned(),
            row.newest.to_string(),
            support(row),
            cuda_of(row),
            short(row.module_flavor).to_owned(),
        ]
    });
    let rows: Vec<[String; 6]> = std::iter::once(head).chain(rows).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max();
    let widths = [0, 1, 2, 3, 4, 5].map(|column| width(column).unwrap_or_default());
    text.push('\n');
    let is_wide =
        widths.iter().map(|width| width + 2).sum::<usize>() > style.width.saturating_add(2);
    for [branch, kind, newest, support, cuda, modules] in rows.iter().skip(usize::from(is_wide)) {
        if is_wide {
            let row = format!(
                "{kind}, newest {newest}, support {support}, CUDA {cuda}, {modules} modules"
            );
            let _ = writeln!(text, "{}", style.hanging(&format!("{branch}  "), &row));
            continue;
        }
        let _ = writeln!(
            text,
            "{branch:<0$}  {kind:<1$}  {newest:<2$}  {support:<3$}  {cuda:<4$}  {modules}",
            widths[0], widths[1], widths[2], widths[3], widths[4]
        );
    }
    if branches.iter().any(|row| row.cuda_limited_max.is_some()) {
        let note = "(*) by minor-version compatibility: without features that need a newer driver, and without code that is \
                    only PTX";
        let _ = writeln!(text, "{}", style.hanging("", note));
    }
}

fn support(row: &BranchAnswer) -> String {
    let end = row.end_of_life.as_deref();
    match (row.support, end) {
        (Support::Supported, Some(end)) => format!("until {end}"),
        (Support::Supported, None) => "no end date".to_owned(),
        (Support::Ended, Some(end)) => format!("ended {end}"),
        (Support::Ended, None) => "ended".to_owned(),
        (Support::Unknown, _) => "unknown".to_owned(),
    }
}

fn cuda_of(row: &BranchAnswer) -> String {
    let whole = row.cuda_min.zip(row.cuda_max);
    let whole = whole.map(|(first, last)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    });
    let limited = (row.cuda_limited_max).map(|last| format!("{last}*"));
    let parts: Vec<String> = whole.into_iter().chain(limited).collect();
    match parts.is_empty() {
        true => "unknown".to_owned(),
        false => parts.join(", "),
    }
}

fn title(verdict: Compatibility) -> &'static str {
    match verdict {
        Compatibility::Compatible => "compatible",
        Compatibility::Incompatible => "incompatible",
        Compatibility::NeedsForwardCompat => "needs a cuda-compat package in the container",
        Compatibility::Unknown => "unknown",
    }
}

fn modules(flavor: SupportedFlavors) -> &'static str {
    match flavor {
        SupportedFlavors::Open => "open",
        SupportedFlavors::Proprietary => "proprietary",
        SupportedFlavors::Either => "open or proprietary",
    }
}

/// The shorter text of [`modules`] for a table cell.
fn short(flavor: SupportedFlavors) -> &'static str {
    match flavor {
        SupportedFlavors::Either => "either",
        other => modules(other),
    }
}

/// Writes the results of the GPUs that a name matches, if they differ.
fn name_matches(text: &mut String, name_matches: &[NameMatchAnswer], style: Style) {
    for name_match in name_matches {
        let head = format!(
            "{}: {}",
            name_match.gpus.join(", "),
            title(name_match.verdict)
        );
        let _ = writeln!(text, "{}", style.hanging("", &head));
        for why in &name_match.why {
            let _ = writeln!(text, "{}", style.hanging("  ", why));
        }
        let driver = &name_match.driver;
        let facts = [
            driver
                .min
                .as_ref()
                .map(|min| format!("oldest driver {min}")),
            driver.max_branch.map(|last| format!("last branch {last}")),
            (driver.recommended.as_ref()).map(|best| format!("recommended driver {best}")),
            name_match
                .module_flavor
                .map(|flavor| format!("kernel modules {}", modules(flavor))),
        ];
        let facts: Vec<String> = facts.into_iter().flatten().collect();
        if !facts.is_empty() {
            let _ = writeln!(text, "{}", style.hanging("  ", &facts.join(", ")));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{os_named, result};
    use crate::compat::{
        Matrix,
        question::{Question, answer},
    };

    #[test]
    fn system_names_are_accepted_as_users_write_them() {
        for (name, id, version) in rows! {
            "ubuntu-24.04", "ubuntu", "24.04";
            "Ubuntu-24.04", "ubuntu", "24.04";
            "Ubuntu 24.04", "ubuntu", "24.04";
            "debian12", "debian", "12";
            "al2023", "amzn", "2023";
            "AL2023", "amzn", "2023";
            "amazon-linux-2023", "amzn", "2023";
            "amzn-2023", "amzn", "2023";
            "rocky-9.4", "rocky", "9.4";
            "rockylinux:9", "rocky", "9";
            "opensuse-tumbleweed", "opensuse", "tumbleweed";
        } {
            let os = os_named(name).unwrap_or_else(|error| panic!("{name}: {}", error.report()));
            assert_eq!(
                (os.id.as_str(), os.version_id.as_deref()),
                (id, Some(version)),
                "{name}"
            );
        }
        for name in ["", "ubuntu", "24.04", "-"] {
            assert!(os_named(name).is_err(), "{name}");
        }
    }

    #[test]
    fn the_first_line_has_the_verdict_and_the_version() {
        let matrix = Matrix::builtin().unwrap();
        for (gpu, cuda, driver, kernel, line) in rows! {
            "L4", "", "", "", "compatible: driver 580.178.04 (branch 580, LTS, supported until 2028-06), open or proprietary \
                kernel modules";
            "L4", "", "580", "", "compatible: driver 580.178.04 (branch 580, LTS, supported until 2028-06)";
            "L4", "", "535", "", "compatible: driver 535.309.01 (branch 535, LTS, end-of-life since 2026-06)";
            "Tesla V100 PCIe 16GB", "", "595.71.05", "",
                "incompatible with driver 595.71.05 (branch 595, production, supported until 2027-03): Tesla V100 PCIe 16GB \
                 (10de:1db4) is Volta, whose last branch is 580; 595 is newer; use driver 580.178.04";
            "L4", "", "581", "", "incompatible with branch 581: branch 581 was never released for Linux; the nearest branches \
                are 580 and 590; use driver 580.178.04";
            "L4", "12.10", "", "", "incompatible: CUDA 12.10 was never released; the nearest releases are 12.9 and 13.0";
        } {
            fn given<T: std::str::FromStr>(text: &str) -> Option<T> {
                text.parse().ok().filter(|_| !text.is_empty())
            }
            let question = Question {
                gpu: given(gpu),
                cuda: given(cuda),
                driver: given(driver),
                kernel: given(kernel),
                ..Question::default()
            };
            let answer = answer(&matrix, &question).unwrap();
            assert_eq!(
                result(&matrix, &question, &answer),
                line,
                "{gpu} {cuda} {driver} {kernel}"
            );
        }
    }
}
