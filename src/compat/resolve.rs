//! Picks a driver for a machine, or says why none fits and what would.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::compat::gpu::{Board, Knowledge};
use crate::compat::matrix::{
    BranchKind, BranchRow, Fabric, InstanceDriver, Matrix, OpenModules, Support,
};
use crate::compat::refuse;
use crate::compat::rules::{self, Judgement, Needs, Offer, Rule, Ruling};
use crate::facts::{Facts, GpuFact};
use crate::model::gpu::{Flavour, GpuIdentity, SupportedFlavours};
use crate::model::version::{Branch, CudaVersion, DriverVersion, KernelVersion};

/// A machine and what is wanted of it. Everything may be left out.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Wish {
    /// Its GPUs.
    pub gpus: Vec<GpuIdentity>,
    /// The kernel that runs.
    pub kernel: Option<KernelVersion>,
    /// The kernel of the next boot, where it is another one.
    pub next_kernel: Option<KernelVersion>,
    /// As `uname -m` names it.
    pub arch: Option<String>,
    /// The cloud and the instance type.
    pub instance: Option<(String, String)>,
    /// Whether an NVSwitch is on PCI; `None` where nobody looked.
    pub nvswitch: Option<bool>,
    /// Whether an InfiniBand device manages NVLink switches, as on boards whose switches are not on
    /// PCI; `None` where nobody looked.
    pub nvlink_management: Option<bool>,
    /// This branch and no other.
    pub branch: Option<Branch>,
    /// This version and no other.
    pub version: Option<DriverVersion>,
    /// These kernel modules and no others.
    pub flavour: Option<Flavour>,
    /// The CUDA versions that containers bring.
    pub cuda: Vec<CudaVersion>,
    /// The versions that a repository really has; `None` where nobody asked it.
    pub candidates: Option<Vec<DriverVersion>>,
}

impl Wish {
    /// What the facts say of a machine, with nothing wished yet.
    pub fn of(facts: &Facts) -> Self {
        let cloud = &facts.cloud;
        Self {
            gpus: facts.gpus.iter().map(GpuFact::identity).collect(),
            kernel: facts.kernel.running.clone(),
            next_kernel: facts.kernel.next_boot.clone(),
            arch: facts.kernel.arch.clone(),
            instance: cloud.provider.clone().zip(cloud.instance_type.clone()),
            nvswitch: Some(!facts.nvswitches.is_empty()),
            ..Self::default()
        }
    }
}

/// The driver that fits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Pick {
    /// Its branch.
    pub branch: Branch,
    /// The version, where one was wished or a repository was asked; else the newest of the branch
    /// that the repository turns out to have.
    pub version: Option<DriverVersion>,
    /// The version that was judged: that one, or the newest known of the branch.
    pub recommended: DriverVersion,
    /// Its kernel modules.
    pub flavour: Flavour,
    /// The flavour rests on an assumption about a GPU without a row; it must be verified after the
    /// module was loaded.
    pub assumed: bool,
    /// A row of the matrix is missing, or evidence speaks against the pick: see the warnings.
    pub doubtful: bool,
    /// What the GPUs need to work together.
    pub fabric: Fabric,
    /// Why, for people.
    pub reasons: Vec<String>,
    /// Doubts, for people.
    pub warnings: Vec<String>,
    /// The sources of the rows that decided.
    pub sources: Vec<String>,
}

/// Why no driver fits.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("find a driver for this machine: {}", .reasons.iter().map(|r| r.text.as_str()).collect::<Vec<_>>().join("; "))]
pub struct Refusal {
    /// The rules that refuse, with the values compared.
    pub reasons: Vec<Ruling>,
    /// True where a row is missing rather than a rule broken.
    pub unknown: bool,
    /// What would work, for people.
    pub nearest: Vec<String>,
    /// The same as a pick, where one was found.
    pub nearest_pick: Option<Box<Pick>>,
}

/// An offer with what the rules said about it.
pub(super) struct Judged {
    pub(super) offer: Offer,
    pub(super) rulings: Vec<Ruling>,
}

/// Picks a driver.
///
/// Among what no rule refuses, these go first, in this order: no evidence against it; a supported
/// long-term branch, then a supported production branch, then a supported new feature branch, then
/// what is known less well or out of support; the newest branch; the newest version.
///
/// # Errors
/// When every offer is refused; the refusal names the rules and what would work.
pub fn resolve(matrix: &Matrix, wish: &Wish) -> Result<Pick, Box<Refusal>> {
    attempt(matrix, wish).map_err(|failed| Box::new(refuse::explain(matrix, wish, failed)))
}

/// Why an attempt failed: before the rules, or by them.
pub(super) enum Failed {
    /// No offer was left to judge.
    Early { reason: Ruling, unknown: bool },
    /// Every offer was refused.
    Judged(Vec<Judged>),
}

pub(super) fn attempt(matrix: &Matrix, wish: &Wish) -> Result<Pick, Failed> {
    let needs = needs(matrix, wish);
    if let Some(reason) = grid_instance(matrix, wish) {
        return Err(Failed::Early {
            reason,
            unknown: false,
        });
    }
    let versions = offers(matrix, wish)?;
    let flavours = wish
        .flavour
        .map_or(vec![Flavour::Open, Flavour::Proprietary], |f| vec![f]);
    let judged: Vec<Judged> = versions
        .iter()
        .flat_map(|version| {
            flavours.iter().map(|flavour| Offer {
                version: version.clone(),
                flavour: *flavour,
            })
        })
        .map(|offer| Judged {
            rulings: rules::judge(matrix, &needs, &offer),
            offer,
        })
        .collect();
    let assumed = needs.boards.iter().any(Board::is_assumed);
    let best = judged
        .iter()
        .filter(|judged| rules::passes(&judged.rulings))
        .min_by_key(|judged| preference(matrix, &needs, judged, assumed));
    match best {
        Some(best) => Ok(pick(matrix, wish, &needs, best)),
        None => Err(Failed::Judged(judged)),
    }
}

/// The machine in the terms of the rules: each kind of GPU and each kernel once.
pub(super) fn needs<'m>(matrix: &'m Matrix, wish: &Wish) -> Needs<'m> {
    let kinds: BTreeSet<&GpuIdentity> = wish.gpus.iter().collect();
    let mut boards: Vec<Board<'m>> = kinds.into_iter().map(|gpu| matrix.board(gpu)).collect();
    boards.dedup_by(|a, b| a.label == b.label);
    let kernels: BTreeSet<&KernelVersion> =
        wish.kernel.iter().chain(wish.next_kernel.iter()).collect();
    Needs {
        boards,
        kernels: kernels.into_iter().cloned().collect(),
        arch: wish.arch.clone(),
        cuda: wish.cuda.clone(),
    }
}

fn grid_instance(matrix: &Matrix, wish: &Wish) -> Option<Ruling> {
    let (provider, name) = wish.instance.as_ref()?;
    let row = matrix.instance_type(provider, name)?;
    let text = match row.driver {
        InstanceDriver::DataCenter => return None,
        InstanceDriver::Grid => format!(
            "instance type {name} of {provider} gives its {} as vGPU, which needs the licensed \
             GRID guest driver",
            row.gpu
        ),
        InstanceDriver::None => format!("instance type {name} of {provider} has {}", row.gpu),
    };
    Some(rules::say(
        Rule::Vgpu,
        Judgement::Refuse,
        text,
        &row.sources,
    ))
}

/// The versions to judge.
fn offers(matrix: &Matrix, wish: &Wish) -> Result<Vec<DriverVersion>, Failed> {
    let none: [&str; 0] = [];
    let early = |rule, text, unknown| Failed::Early {
        reason: rules::say(rule, Judgement::Refuse, text, &none),
        unknown,
    };
    if let (Some(branch), Some(version)) = (wish.branch, &wish.version)
        && version.branch() != branch
    {
        let text = format!(
            "driver {version} was wished, and branch {branch}, to which it does not belong"
        );
        return Err(early(Rule::Wish, text, false));
    }
    let wanted = |version: &DriverVersion| {
        wish.branch.is_none_or(|branch| version.branch() == branch)
            && wish.version.as_ref().is_none_or(|wished| version == wished)
    };
    if let Some(candidates) = &wish.candidates {
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
        let wished = match (&wish.version, wish.branch) {
            (Some(version), _) => format!("driver {version} was wished"),
            (None, Some(branch)) => format!("branch {branch} was wished"),
            (None, None) => "a driver is needed".to_owned(),
        };
        return Err(early(
            Rule::Offered,
            format!("{wished}; the repository has {has}"),
            false,
        ));
    }
    if let Some(version) = &wish.version {
        return Ok(vec![version.clone()]);
    }
    let newest: Vec<DriverVersion> = matrix
        .branches
        .iter()
        .map(|row| row.newest_version.clone())
        .filter(|version| wanted(version))
        .collect();
    match wish.branch {
        Some(branch) if newest.is_empty() => {
            let text = format!(
                "branch {branch} was wished; the matrix has no row for it, so none of its versions \
                 is known"
            );
            Err(early(Rule::UnknownBranch, text, true))
        }
        _ => Ok(newest),
    }
}

/// Sorts the best offer first.
fn preference(
    matrix: &Matrix,
    needs: &Needs<'_>,
    judged: &Judged,
    assumed: bool,
) -> (
    bool,
    u8,
    Reverse<Branch>,
    usize,
    Reverse<DriverVersion>,
    bool,
) {
    let count = |wanted| {
        judged
            .rulings
            .iter()
            .filter(|r| r.judgement == wanted)
            .count()
    };
    let branch = judged.offer.version.branch();
    (
        count(Judgement::Against) > 0,
        rank(matrix.branch(branch), assumed),
        Reverse(branch),
        count(Judgement::Against),
        Reverse(judged.offer.version.clone()),
        judged.offer.flavour != preferred_flavour(matrix, needs, branch),
    )
}

fn rank(row: Option<&BranchRow>, assumed: bool) -> u8 {
    let Some(row) = row else { return 3 };
    match (row.support, row.kind) {
        (Support::Supported, BranchKind::Ltsb) => 0,
        // A GPU without a row is likely newer than the long-term branch.
        (Support::Supported, BranchKind::Pb) if assumed => 0,
        (Support::Supported, BranchKind::Pb) => 1,
        (Support::Supported, _) => 2,
        (Support::Unknown, _) => 3,
        (Support::Ended, BranchKind::Ltsb | BranchKind::Pb) => 4,
        (Support::Ended, _) => 5,
    }
}

/// The flavour to take where the boards leave the choice: what NVIDIA makes the default of the
/// branch.
pub(super) fn preferred_flavour(matrix: &Matrix, needs: &Needs<'_>, branch: Branch) -> Flavour {
    let boards = &needs.boards;
    if boards
        .iter()
        .any(|board| board.modules == SupportedFlavours::Proprietary)
    {
        return Flavour::Proprietary;
    }
    let open_wanted = boards.iter().any(|board| {
        board.modules == SupportedFlavours::Open || board.knowledge == Knowledge::AssumedNewer
    });
    match rules::branch_flavours(matrix, branch).0 {
        OpenModules::None => Flavour::Proprietary,
        OpenModules::Available if !open_wanted => Flavour::Proprietary,
        _ => Flavour::Open,
    }
}

fn pick(matrix: &Matrix, wish: &Wish, needs: &Needs<'_>, best: &Judged) -> Pick {
    let Offer { version, flavour } = &best.offer;
    let branch = version.branch();
    let (fabric, fabric_note) = fabric(wish, needs);
    let mut reasons = vec![why_branch(matrix, wish, version)];
    reasons.extend(needs.boards.iter().map(|board| why_board(board)));
    reasons.push(why_flavour(matrix, wish, needs, branch, *flavour));
    reasons.extend(
        needs
            .cuda
            .iter()
            .filter_map(|cuda| why_cuda(matrix, *cuda, version)),
    );
    reasons.extend(fabric_note);
    let mut warnings: Vec<&Ruling> = best
        .rulings
        .iter()
        .filter(|ruling| ruling.judgement > Judgement::Note)
        .collect();
    warnings.sort_by_key(|ruling| Reverse(ruling.judgement));
    let mut sources = BTreeSet::new();
    sources.extend(
        matrix
            .branch(branch)
            .iter()
            .flat_map(|row| row.sources.iter().cloned()),
    );
    sources.extend(
        needs
            .boards
            .iter()
            .flat_map(|b| b.sources.iter().map(|s| (*s).to_owned())),
    );
    sources.extend(
        best.rulings
            .iter()
            .flat_map(|ruling| ruling.sources.iter().cloned()),
    );
    for cuda in &needs.cuda {
        sources.extend(rules::toolkits(matrix, *cuda).flat_map(|row| row.sources.iter().cloned()));
    }
    Pick {
        branch,
        version: (wish.version.is_some() || wish.candidates.is_some()).then(|| version.clone()),
        recommended: version.clone(),
        flavour: *flavour,
        assumed: needs.boards.iter().any(Board::is_assumed),
        doubtful: warnings
            .iter()
            .any(|ruling| ruling.judgement >= Judgement::Unknown),
        fabric,
        reasons,
        warnings: warnings
            .into_iter()
            .map(|ruling| ruling.text.clone())
            .collect(),
        sources: sources.into_iter().collect(),
    }
}

fn why_branch(matrix: &Matrix, wish: &Wish, version: &DriverVersion) -> String {
    let branch = version.branch();
    let what = matrix.branch(branch).map_or_else(
        || format!("branch {branch}, which the matrix does not know"),
        |row| {
            let until = match (row.support, &row.end_of_life) {
                (Support::Supported, Some(end)) => format!(", supported until {end}"),
                (Support::Supported, None) => ", supported".to_owned(),
                _ => String::new(),
            };
            format!("branch {branch} ({}{until})", row.kind.title())
        },
    );
    if wish.version.is_some() {
        format!("driver {version} of {what} was wished")
    } else if wish.branch.is_some() {
        format!("{what} was wished")
    } else if wish.candidates.is_some() {
        format!("driver {version} of {what} is the best that the repository has")
    } else {
        format!("{what} is the best that serves this machine, a supported long-term branch first")
    }
}

fn why_board(board: &Board<'_>) -> String {
    let title = board
        .architecture
        .map_or("of unknown architecture", |row| row.title.as_str());
    let min = board
        .min_driver()
        .map_or("not known".to_owned(), |first| format!("{first}"));
    let last = board
        .last_branch()
        .map_or(String::new(), |last| format!(", last branch {last}"));
    format!("{}: {title}, first driver {min}{last}", board.label)
}

fn why_flavour(
    matrix: &Matrix,
    wish: &Wish,
    needs: &Needs<'_>,
    branch: Branch,
    flavour: Flavour,
) -> String {
    let bound = needs.boards.iter().find(|board| {
        matches!(
            (board.modules, flavour),
            (SupportedFlavours::Open, Flavour::Open)
                | (SupportedFlavours::Proprietary, Flavour::Proprietary)
        )
    });
    if let Some(board) = bound {
        return format!("{flavour} kernel modules: {} takes no others", board.label);
    }
    if wish.flavour == Some(flavour) {
        return format!("{flavour} kernel modules were wished");
    }
    if let Some(board) = needs
        .boards
        .iter()
        .find(|b| b.knowledge == Knowledge::AssumedNewer)
    {
        return format!(
            "{flavour} kernel modules: assumed for {}, to be verified after the module was loaded",
            board.label
        );
    }
    let why = match (rules::branch_flavours(matrix, branch), flavour) {
        ((OpenModules::None, _), _) => "has no others",
        ((OpenModules::Only, _), _) => "has no others",
        ((OpenModules::Default, _), Flavour::Open) => "has them as default",
        ((OpenModules::Available, _), Flavour::Proprietary) => "has them as default",
        _ => "serves all GPUs with them",
    };
    format!("{flavour} kernel modules: branch {branch} {why}")
}

fn why_cuda(matrix: &Matrix, cuda: CudaVersion, version: &DriverVersion) -> Option<String> {
    let (needed, full) = rules::cuda_minimum(matrix, cuda);
    let full = full.map_or(String::new(), |full| format!(", {full} for every feature"));
    needed.map(|needed| format!("CUDA {cuda} needs {needed}{full}; {version} serves it"))
}

/// The fabric that the GPUs need, gated on a visible switch: a slice of a board shows none.
fn fabric(wish: &Wish, needs: &Needs<'_>) -> (Fabric, Option<String>) {
    let most = needs.boards.iter().max_by_key(|board| board.fabric());
    let Some(board) = most.filter(|board| board.fabric() != Fabric::None) else {
        return (Fabric::None, None);
    };
    let (label, fabric) = (&board.label, board.fabric());
    let (what, seen) = match fabric {
        Fabric::None => ("nothing", Some(true)),
        Fabric::Fm => (
            "the fabric manager of exactly the driver's version",
            wish.nvswitch,
        ),
        Fabric::FmNvlsm => (
            "the fabric manager and the NVLink subnet manager",
            wish.nvlink_management,
        ),
        Fabric::Imex => ("IMEX on the node", Some(true)),
    };
    match seen {
        Some(false) => (
            Fabric::None,
            Some(format!("no fabric manager: {label} shows no NVSwitch here")),
        ),
        None => (
            fabric,
            Some(format!(
                "{label} needs {what} where the machine has its NVSwitches"
            )),
        ),
        Some(true) => (fabric, Some(format!("{label} needs {what}"))),
    }
}
