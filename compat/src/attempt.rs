//! Evaluates all driver candidates and selects the best one that no rule rejects.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::board::Board;
use crate::constraints::Constraints;
use crate::identity::{Flavor, SupportedFlavors};
use crate::matrix::{BranchKind, BranchRow, Fabric, InstanceDriver, Matrix, OpenModules, Support};
use crate::rule_result::{self, Candidate, Evaluation, Rule, RuleResult};
use crate::rules::{self, Needs};
use crate::version::{Branch, CudaVersion, DriverVersion};

/// The selected driver.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Pick {
    /// Its branch.
    pub branch: Branch,
    /// The version, if it was requested or if the versions in the repository are known. Otherwise the newest version of the
    /// branch in the repository is installed.
    pub version: Option<DriverVersion>,
    /// The version that was evaluated: `version`, or the newest version of the branch in the matrix if `version` is `None`.
    pub recommended: DriverVersion,
    /// Its kernel modules.
    pub flavor: Flavor,
    /// The flavor is assumed because a GPU has no entry. It must be verified after the module is loaded.
    pub assumed: bool,
    /// An entry of the matrix is missing, or there is evidence against the driver. The warnings contain the reason.
    pub doubtful: bool,
    /// The service that the GPUs need to communicate.
    pub fabric: Fabric,
    /// The reasons for the selection.
    pub reasons: Vec<String>,
    /// The reasons against the selection.
    pub warnings: Vec<String>,
    /// Keys of the sources of the entries that were used.
    #[serde(rename = "sources")]
    pub citations: Vec<String>,
}

/// A candidate and its rule results.
pub(super) struct Evaluated {
    pub(super) offer: Candidate,
    pub(super) rule_results: Vec<RuleResult>,
}

/// The reason for a failed selection.
pub(super) enum Failed {
    /// The rules were not evaluated: there is no candidate, or the instance type does not use the data center driver.
    Early { reason: RuleResult, unknown: bool },
    /// The rules reject every candidate.
    Evaluated(Vec<Evaluated>),
}

/// Selects a driver without relaxing the constraints.
pub(super) fn attempt(matrix: &Matrix, constraints: &Constraints) -> Result<Pick, Failed> {
    let needs = constraints.needs(matrix);
    if let Some(reason) = other_driver(matrix, constraints) {
        return Err(Failed::Early {
            reason,
            unknown: false,
        });
    }
    let versions = offers(matrix, constraints)?;
    let flavors = constraints
        .flavor
        .map_or(vec![Flavor::Open, Flavor::Proprietary], |f| vec![f]);
    let evaluated: Vec<Evaluated> = versions
        .iter()
        .flat_map(|version| {
            flavors.iter().map(|flavor| Candidate {
                version: version.clone(),
                flavor: *flavor,
            })
        })
        .map(|offer| Evaluated {
            rule_results: rules::evaluate(matrix, &needs, &offer),
            offer,
        })
        .collect();
    let newer = needs.boards.iter().any(|board| board.assumed_newer);
    let best = evaluated
        .iter()
        .filter(|evaluated| rules::passes(&evaluated.rule_results))
        .min_by_key(|evaluated| preference(matrix, &needs, evaluated, newer));
    match best {
        Some(best) => Ok(picked(matrix, constraints, &needs, best)),
        None => Err(Failed::Evaluated(evaluated)),
    }
}

/// Returns the reason if the instance type does not use the data center driver.
pub(super) fn other_driver(matrix: &Matrix, constraints: &Constraints) -> Option<RuleResult> {
    let (provider, name) = constraints.instance.as_ref()?;
    let row = matrix.instance_type(provider, name)?;
    let text = match row.driver {
        InstanceDriver::DataCenter => return None,
        InstanceDriver::Grid => format!(
            "instance type {name} of {provider} provides its {} as vGPU, which needs the licensed \
             GRID guest driver",
            row.gpu
        ),
        InstanceDriver::None => format!("instance type {name} of {provider} has {}", row.gpu),
    };
    Some(rule_result::say(
        Rule::Vgpu,
        Evaluation::Refuse,
        text,
        &row.citations,
    ))
}

/// Returns the versions to evaluate.
fn offers(matrix: &Matrix, constraints: &Constraints) -> Result<Vec<DriverVersion>, Failed> {
    let none: [&str; 0] = [];
    let early = |rule, text, unknown| Failed::Early {
        reason: rule_result::say(rule, Evaluation::Refuse, text, &none),
        unknown,
    };
    if let (Some(branch), Some(version)) = (constraints.branch, &constraints.version)
        && version.branch() != branch
    {
        let text = format!(
            "driver {version} was requested, but does not belong to the requested branch {branch}"
        );
        return Err(early(Rule::Constraints, text, false));
    }
    let wanted = |version: &DriverVersion| {
        constraints
            .branch
            .is_none_or(|branch| version.branch() == branch)
            && constraints
                .version
                .as_ref()
                .is_none_or(|requested| version == requested)
    };
    if let Some(candidates) = &constraints.candidates {
        let fitting: BTreeSet<_> = candidates
            .iter()
            .filter(|version| wanted(version))
            .collect();
        if !fitting.is_empty() {
            return Ok(fitting.into_iter().cloned().collect());
        }
        let offered: BTreeSet<String> = candidates.iter().map(ToString::to_string).collect();
        let offered = offered.into_iter().collect::<Vec<_>>().join(", ");
        let has = if offered.is_empty() {
            "no driver".to_owned()
        } else {
            offered
        };
        let requested = match (&constraints.version, constraints.branch) {
            (Some(version), _) => format!("driver {version} was requested"),
            (None, Some(branch)) => format!("branch {branch} was requested"),
            (None, None) => "a driver is needed".to_owned(),
        };
        return Err(early(
            Rule::Offered,
            format!("{requested}; the repository has {has}"),
            false,
        ));
    }
    if let Some(version) = &constraints.version {
        return Ok(vec![version.clone()]);
    }
    let newest: Vec<DriverVersion> = matrix
        .branches
        .iter()
        .map(|row| row.newest_version.clone())
        .filter(|version| wanted(version))
        .collect();
    match constraints.branch {
        Some(branch) if newest.is_empty() => {
            let text = format!(
                "branch {branch} was requested but is not in the matrix, so no version is known"
            );
            match matrix.unreleased_branch(branch) {
                Some(text) => Err(early(Rule::UnknownBranch, text, false)),
                None => Err(early(Rule::UnknownBranch, text, true)),
            }
        }
        _ => Ok(newest),
    }
}

/// The sort key of a candidate. The best candidate has the lowest key.
fn preference(
    matrix: &Matrix,
    needs: &Needs<'_>,
    evaluated: &Evaluated,
    newer: bool,
) -> (
    bool,
    bool,
    u8,
    Reverse<Branch>,
    usize,
    Reverse<DriverVersion>,
    bool,
) {
    let count = |wanted| {
        evaluated
            .rule_results
            .iter()
            .filter(|r| r.evaluation == wanted)
            .count()
    };
    let branch = evaluated.offer.version.branch();
    let mut advised = (needs.boards.iter())
        .filter_map(|board| board.row?.advised_driver.as_ref())
        .map(DriverVersion::branch);
    let is_older = advised.any(|advised| branch < advised);
    (
        count(Evaluation::Against) > 0,
        is_older,
        rank(matrix, matrix.branch(branch), newer),
        Reverse(branch),
        count(Evaluation::Against),
        Reverse(evaluated.offer.version.clone()),
        evaluated.offer.flavor != preferred_flavor(matrix, needs, branch),
    )
}

fn rank(matrix: &Matrix, row: Option<&BranchRow>, newer: bool) -> u8 {
    let Some(row) = row else { return 3 };
    let is_young = (row.default_from).is_some_and(|day| matrix.as_of < day);
    match (row.support, row.kind) {
        (Support::Supported, BranchKind::Ltsb) if is_young => 3,
        (Support::Supported, BranchKind::Ltsb) => 0,
        // A GPU of an unknown architecture is probably newer than the long-term branch.
        (Support::Supported, BranchKind::Pb) if newer => 0,
        (Support::Supported, BranchKind::Pb) => 1,
        (Support::Supported, _) => 2,
        (Support::Unknown, _) => 3,
        (Support::Ended, BranchKind::Ltsb | BranchKind::Pb) => 4,
        (Support::Ended, _) => 5,
    }
}

/// Returns the preferred flavor if the boards support both: the one of the instance type, otherwise NVIDIA's default for the
/// branch. The rules reject a flavor that a board does not support.
pub(super) fn preferred_flavor(matrix: &Matrix, needs: &Needs<'_>, branch: Branch) -> Flavor {
    let (open, proprietary) = rules::branch_flavors(matrix, branch);
    match (needs.flavor.map(|row| row.flavor), open) {
        (Some(Flavor::Proprietary), _) if proprietary => Flavor::Proprietary,
        (_, OpenModules::None) => Flavor::Proprietary,
        (Some(Flavor::Open), _) => Flavor::Open,
        (_, OpenModules::Available) => Flavor::Proprietary,
        _ => Flavor::Open,
    }
}

fn picked(matrix: &Matrix, constraints: &Constraints, needs: &Needs<'_>, best: &Evaluated) -> Pick {
    let Candidate { version, flavor } = &best.offer;
    let branch = version.branch();
    let (fabric, fabric_note) = fabric(constraints, needs);
    let mut reasons = vec![why_branch(matrix, constraints, version)];
    reasons.extend(needs.boards.iter().map(|board| why_board(board)));
    reasons.push(why_flavor(matrix, constraints, needs, branch, *flavor));
    reasons.extend(
        needs
            .cuda
            .iter()
            .filter_map(|cuda| why_cuda(matrix, *cuda, version)),
    );
    let cudnn = |rule_result: &&RuleResult| {
        rule_result.rule == Rule::Cudnn && rule_result.evaluation == Evaluation::Note
    };
    let cudnn = best.rule_results.iter().filter(cudnn);
    reasons.extend(cudnn.map(|rule_result| rule_result.text.clone()));
    reasons.extend(fabric_note);
    let mut warnings: Vec<&RuleResult> = best
        .rule_results
        .iter()
        .filter(|rule_result| rule_result.evaluation > Evaluation::Note)
        .collect();
    warnings.sort_by_key(|rule_result| Reverse(rule_result.evaluation));
    let mut citations = BTreeSet::new();
    citations.extend(
        matrix
            .branch(branch)
            .iter()
            .flat_map(|row| row.citations.iter().cloned()),
    );
    citations.extend(
        needs
            .boards
            .iter()
            .flat_map(|b| b.citations.iter().map(|s| (*s).to_owned())),
    );
    citations.extend(
        best.rule_results
            .iter()
            .flat_map(|rule_result| rule_result.citations.iter().cloned()),
    );
    for cuda in &needs.cuda {
        citations
            .extend(rules::toolkits(matrix, *cuda).flat_map(|row| row.citations.iter().cloned()));
    }
    Pick {
        branch,
        version: (constraints.version.is_some() || constraints.candidates.is_some())
            .then(|| version.clone()),
        recommended: version.clone(),
        flavor: *flavor,
        assumed: needs.boards.iter().any(Board::is_assumed),
        doubtful: warnings
            .iter()
            .any(|rule_result| rule_result.evaluation >= Evaluation::Unknown),
        fabric,
        reasons,
        warnings: warnings
            .into_iter()
            .map(|rule_result| rule_result.text.clone())
            .collect(),
        citations: citations.into_iter().collect(),
    }
}

fn why_branch(matrix: &Matrix, constraints: &Constraints, version: &DriverVersion) -> String {
    let branch = version.branch();
    let what = matrix.branch(branch).map_or_else(
        || format!("branch {branch}, which is not in the matrix"),
        |row| {
            let until = match (row.support, &row.end_of_life) {
                (Support::Supported, Some(end)) => format!(", supported until {end}"),
                (Support::Supported, None) => ", supported".to_owned(),
                _ => String::new(),
            };
            format!("branch {branch} ({}{until})", row.kind.title())
        },
    );
    if constraints.version.is_some() {
        format!("driver {version} of {what} was requested")
    } else if constraints.branch.is_some() {
        format!("{what} was requested")
    } else if constraints.candidates.is_some() {
        format!("driver {version} of {what} is the best driver in the repository")
    } else {
        format!(
            "{what} is the best branch for this machine; supported long-term branches are preferred"
        )
    }
}

fn why_board(board: &Board<'_>) -> String {
    let title = board
        .architecture
        .map_or("of unknown architecture", |row| row.title.as_str());
    let min = board
        .min_driver()
        .map_or("unknown".to_owned(), |first| format!("{first}"));
    let last = board
        .last_branch()
        .map_or(String::new(), |last| format!(", last branch {last}"));
    let inferred = board.inferred();
    format!(
        "{}: {title}{inferred}, first driver {min}{last}",
        board.label
    )
}

fn why_flavor(
    matrix: &Matrix,
    constraints: &Constraints,
    needs: &Needs<'_>,
    branch: Branch,
    flavor: Flavor,
) -> String {
    let bound = needs.boards.iter().find(|board| {
        matches!(
            (board.modules, flavor),
            (SupportedFlavors::Open, Flavor::Open)
                | (SupportedFlavors::Proprietary, Flavor::Proprietary)
        )
    });
    if let Some(board) = bound {
        return format!(
            "{flavor} kernel modules: {} supports no other flavor",
            board.label
        );
    }
    if constraints.flavor == Some(flavor) {
        return format!("{flavor} kernel modules were requested");
    }
    if let Some(board) = needs.boards.iter().find(|board| board.assumed_newer) {
        return format!(
            "{flavor} kernel modules: assumed for {}, verified after the module is loaded",
            board.label
        );
    }
    if let Some(row) = needs.flavor.filter(|row| row.flavor == flavor) {
        return format!("{flavor} kernel modules: {}", row.why);
    }
    let why = match (rules::branch_flavors(matrix, branch), flavor) {
        ((OpenModules::None | OpenModules::Only, _), _) => "has no other flavor",
        ((OpenModules::Default, _), Flavor::Open)
        | ((OpenModules::Available, _), Flavor::Proprietary) => "uses them by default",
        _ => "supports all GPUs with them",
    };
    format!("{flavor} kernel modules: branch {branch} {why}")
}

fn why_cuda(matrix: &Matrix, cuda: CudaVersion, version: &DriverVersion) -> Option<String> {
    let (needed, full) = rules::cuda_minimum(matrix, cuda);
    let (needed, major) = (needed?, cuda.major);
    Some(match full {
        Some(full) => {
            format!("CUDA {cuda} needs {needed}, {full} for every feature; {version} supports it")
        }
        // Only the minimum of the major version is known. `rules::cuda_driver` adds a warning if the driver may be too old.
        None => format!("CUDA {major} needs {needed} or newer; {version} supports it"),
    })
}

/// Returns the fabric service that the GPUs need. A VM with some of the GPUs of a baseboard may see no NVSwitch, and then needs
/// no service.
fn fabric(constraints: &Constraints, needs: &Needs<'_>) -> (Fabric, Option<String>) {
    let most = needs.boards.iter().max_by_key(|board| board.fabric());
    let Some(board) = most.filter(|board| board.fabric() != Fabric::None) else {
        return (Fabric::None, None);
    };
    let (label, fabric) = (&board.label, board.fabric());
    let (what, seen) = match fabric {
        Fabric::None => ("nothing", Some(true)),
        Fabric::Fm => (
            "the fabric manager of exactly the driver version",
            constraints.nvswitch,
        ),
        Fabric::FmNvlsm => (
            "the fabric manager and the NVLink subnet manager",
            constraints.nvlink_management,
        ),
        Fabric::Imex => ("IMEX on the node", Some(true)),
    };
    match seen {
        Some(false) => (
            Fabric::None,
            Some(format!(
                "no fabric manager: {label} has no visible NVSwitch here"
            )),
        ),
        None => (
            fabric,
            Some(format!(
                "{label} needs {what} if the machine has its NVSwitches"
            )),
        ),
        Some(true) => (fabric, Some(format!("{label} needs {what}"))),
    }
}
