//! `compat`: asks the matrix.

use std::{collections::BTreeSet, fmt::Write as _};

use super::{
    Failure,
    args::{CompatArgs, OutputFormat},
    machine, print,
    world::{Console, Env},
};
use crate::{
    compat::{
        matrix::Support,
        question::{
            Answer, BranchAnswer, Compatibility, DriverOrBranch, MachineGpus, MeaningAnswer,
            Question, answer,
        },
    },
    config::profile::{DriverRow, Profile},
    exit::Exit,
    facts::{GpuFact, Os},
    host::Host,
    model::{
        gpu::SupportedFlavours,
        pci::{NVIDIA, PciId},
        version::{Branch, DriverVersion},
    },
};

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
            &format!("answer about `{id}`: it is no GPU of NVIDIA"),
            Some("the ids of NVIDIA's GPUs begin with `10de:`; `lspci -nn` shows them"),
        ));
    }
    let system = match &args.os {
        Some(name) => match system(here, console, name) {
            Ok(rows) => Some((name, rows)),
            // A driver and a GPU go together or not wherever they are; only its packages are not known there.
            Err(failure) if args.driver.is_some() && failure.report().exit() == Exit::Blocked => {
                let why = format!(
                    "`install` does not support {name}, and which drivers its packages have is not known: the answer is about \
                     the driver alone"
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
    };
    let answer = answer(&matrix, &question).map_err(|error| {
        Failure::usage(
            error,
            "for example `gpu-bootstrap compat --gpu L4 --cuda 12.8`",
        )
    })?;
    if let Some((name, rows)) = &system {
        let asked = args.driver.as_ref().map(DriverOrBranch::branch);
        let recommended = answer
            .driver
            .recommended
            .as_ref()
            .map(DriverVersion::branch);
        let branch = asked.or(recommended);
        let lacks = branch.and_then(|branch| not_offered(name, rows, branch));
        console.warn(&lacks.into_iter().collect::<Vec<_>>());
    }
    match args.output.format {
        OutputFormat::Json => print::json(&mut console.out, &answer)?,
        OutputFormat::Human => print::text(&mut console.out, &human(&answer, args.verbose))?,
    }
    Ok(if answer.is_compatible() {
        Exit::Ok
    } else {
        Exit::Blocked
    })
}

/// A system, named as `ubuntu-24.04`.
pub(super) fn os_named(name: &str) -> Result<Os, Failure> {
    let Some((id, version)) = name.rsplit_once('-') else {
        return Err(Failure::new(
            Exit::Usage,
            "os-unknown",
            &format!("read `--os {name}`: it names no release of a system"),
            Some("write `ID-VERSION_ID` of its `os-release`, for example `ubuntu-24.04`"),
        ));
    };
    Ok(Os {
        id: id.to_owned(),
        version_id: Some(version.to_owned()),
        id_like: Vec::new(),
        version_codename: None,
        pretty_name: None,
    })
}

/// The sets of driver packages of a system.
fn system(host: &Host, console: &mut Console<'_>, name: &str) -> Result<Vec<DriverRow>, Failure> {
    let os = os_named(name)?;
    let version = os.version_id.as_deref().unwrap_or_default();
    let choice = Profile::choose(None, Some(&os), &*host.files)?;
    console.warn(&choice.warnings);
    let profile = choice.profile;
    let Some(release) = profile.release_for(version) else {
        return Err(Failure::new(
            Exit::Blocked,
            "os-unsupported",
            &format!("choose a profile: {} {version} is not supported", os.id),
            Some(&format!("supported are {}", profile.serves())),
        ));
    };
    let is_of_release = |row: &DriverRow| row.releases.contains(&release.version_id);
    let rows = profile.driver.iter().filter(|row| is_of_release(row));
    Ok(rows.cloned().collect())
}

/// Which branches a system offers, if the branch is none of them.
fn not_offered(system: &str, rows: &[DriverRow], branch: Branch) -> Option<String> {
    if rows.iter().any(|row| row.branches.contains(&branch)) {
        return None;
    }
    let offered: BTreeSet<Branch> = rows.iter().flat_map(|row| row.branches.clone()).collect();
    let offered: Vec<String> = offered.iter().map(ToString::to_string).collect();
    Some(format!(
        "no source of packages for {system} has branch {branch}; they have {}",
        offered.join(", ")
    ))
}

fn human(answer: &Answer, verbose: bool) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "{}", title(answer.verdict));
    for why in &answer.why {
        let _ = writeln!(text, "  {why}");
    }
    let mut row = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            let _ = writeln!(text, "{name:<20} {value}");
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
        answer.module_flavour.map(modules).map(str::to_owned),
    );
    meanings(&mut text, &answer.meanings);
    if verbose {
        for (at, citation) in answer.citations.iter().enumerate() {
            let name = if at == 0 { "sources" } else { "" };
            let _ = writeln!(text, "{name:<20} {citation}");
        }
    } else if !answer.citations.is_empty() {
        let count = answer.citations.len();
        let _ = writeln!(text, "{:<20} {count} (`-v` names them)", "sources");
    }
    branches(&mut text, &answer.branches);
    text
}

/// A table of branches and CUDA versions.
fn branches(text: &mut String, branches: &[BranchAnswer]) {
    if branches.is_empty() {
        return;
    }
    let head = ["branch", "newest driver", "fixes", "CUDA", "kernel modules"].map(str::to_owned);
    let rows = branches.iter().map(|row| {
        [
            row.branch.to_string(),
            row.newest.to_string(),
            fixes(row),
            cuda_of(row),
            modules(row.module_flavour).to_owned(),
        ]
    });
    let rows: Vec<[String; 5]> = std::iter::once(head).chain(rows).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max();
    let widths = [0, 1, 2, 3].map(|column| width(column).unwrap_or_default());
    text.push('\n');
    for [branch, newest, fixes, cuda, modules] in &rows {
        let _ = writeln!(
            text,
            "{branch:<0$}  {newest:<1$}  {fixes:<2$}  {cuda:<3$}  {modules}",
            widths[0], widths[1], widths[2], widths[3]
        );
    }
    if branches.iter().any(|row| row.cuda_limited_max.is_some()) {
        text.push_str(
            "with limits: by minor-version compatibility, without features that need a newer driver, and without code that \
             is PTX alone\n",
        );
    }
}

fn fixes(row: &BranchAnswer) -> String {
    let end = row.end_of_life.as_deref();
    match (row.support, end) {
        (Support::Supported, Some(end)) => format!("until {end}"),
        (Support::Supported, None) => "yes".to_owned(),
        (Support::Ended, Some(end)) => format!("ended {end}"),
        (Support::Ended, None) => "ended".to_owned(),
        (Support::Unknown, _) => "not known".to_owned(),
    }
}

fn cuda_of(row: &BranchAnswer) -> String {
    let whole = row.cuda_min.zip(row.cuda_max);
    let whole = whole.map(|(first, last)| match first == last {
        true => first.to_string(),
        false => format!("{first} to {last}"),
    });
    let limited = (row.cuda_limited_max).map(|last| format!("{last} with limits"));
    let parts: Vec<String> = whole.into_iter().chain(limited).collect();
    match parts.is_empty() {
        true => "not known".to_owned(),
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

fn modules(flavour: SupportedFlavours) -> &'static str {
    match flavour {
        SupportedFlavours::Open => "open",
        SupportedFlavours::Proprietary => "proprietary",
        SupportedFlavours::Either => "open or proprietary",
    }
}

/// The answers of the meanings, where they differ: a line for those that agree, and what differs.
fn meanings(text: &mut String, meanings: &[MeaningAnswer]) {
    for meaning in meanings {
        let _ = writeln!(
            text,
            "{}: {}",
            meaning.gpus.join(", "),
            title(meaning.verdict)
        );
        for why in &meaning.why {
            let _ = writeln!(text, "  {why}");
        }
        let driver = &meaning.driver;
        let facts = [
            driver
                .min
                .as_ref()
                .map(|min| format!("oldest driver {min}")),
            driver.max_branch.map(|last| format!("last branch {last}")),
            (driver.recommended.as_ref()).map(|best| format!("recommended driver {best}")),
            meaning
                .module_flavour
                .map(|flavour| format!("kernel modules {}", modules(flavour))),
        ];
        let facts: Vec<String> = facts.into_iter().flatten().collect();
        if !facts.is_empty() {
            let _ = writeln!(text, "  {}", facts.join(", "));
        }
    }
}
