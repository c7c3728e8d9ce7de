//! Evaluates queries of the `compat` command: whether GPU, CUDA, driver and kernel are compatible, and which driver is
//! recommended.

use std::collections::BTreeSet;

pub use crate::answer::{
    Answer, BranchAnswer, Compatibility, DriverAnswer, NameMatchAnswer, SCHEMA,
};
pub use crate::asked::DriverOrBranch;

use crate::attempt;
use crate::board::Board;
use crate::branches;
use crate::cudnn;
use crate::identity::{Flavor, GpuIdentity, SupportedFlavors};
use crate::kernel;
use crate::matrix::{Fabric, InstanceDriver, InstanceType, Matrix, Support};
use crate::name_match;
use crate::names::NameMatch;
use crate::pick::{Constraints, pick};
use crate::rule_result::{self, Candidate, Evaluation, Rule, RuleResult};
use crate::rules;
use crate::version::{Branch, CudaVersion, CudnnVersion, DriverVersion, KernelVersion};

/// A query. At least one field other than `branches` must be set.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Question {
    /// A GPU name, PCI ID or instance type.
    pub gpu: Option<String>,
    /// A machine, whose GPUs need a common driver.
    pub machine: Option<MachineGpus>,
    /// The CUDA version of containers.
    pub cuda: Option<CudaVersion>,
    /// The cuDNN version of containers.
    pub cudnn: Option<CudnnVersion>,
    pub driver: Option<DriverOrBranch>,
    pub kernel: Option<KernelVersion>,
    /// The branches in the package sources of the system. `None` if unknown. A driver of another branch is not recommended.
    pub branches: Option<BTreeSet<Branch>>,
}

/// The GPUs of a machine.
#[derive(Debug, Clone, PartialEq)]
pub struct MachineGpus {
    pub gpus: Vec<GpuIdentity>,
    /// Whether the machine has an NVSwitch.
    pub nvswitch: bool,
}

/// An empty query.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the query is empty: specify a GPU, a CUDA version, a cuDNN version, a driver or a kernel")]
pub struct EmptyQuestion;

/// Evaluates a query. If the GPU name has several matches, returns one result if all are equal, otherwise the result of each.
///
/// # Errors
/// If the query is empty.
pub fn answer(matrix: &Matrix, question: &Question) -> Result<Answer, EmptyQuestion> {
    let Some(name) = &question.gpu else {
        let of_branches = Question {
            branches: question.branches.clone(),
            ..Question::default()
        };
        if *question == of_branches {
            return Err(EmptyQuestion);
        }
        if question
            .machine
            .as_ref()
            .is_some_and(|machine| machine.gpus.is_empty())
        {
            return Ok(unknown_gpu(
                matrix,
                question,
                "the machine has no NVIDIA GPU",
            ));
        }
        return Ok(of_one(matrix, question, None));
    };
    Ok(match matrix.name_matches(name) {
        Err(unknown) => unknown_gpu(matrix, question, &unknown.to_string()),
        Ok(found) => {
            let several = found.len() > 1;
            let answers = found.into_iter().map(|name_match| {
                let called = several.then_some(name.as_str());
                let answer = of_one(matrix, question, Some((&name_match, called)));
                (name_match.label, answer)
            });
            name_match::together(name, answers.collect())
        }
    })
}

/// Returns the result for an unknown GPU, with the rules that apply to every GPU.
fn unknown_gpu(matrix: &Matrix, question: &Question, why: &str) -> Answer {
    let rest = Question {
        machine: None,
        ..question.clone()
    };
    let mut answer = of_one(matrix, &rest, None);
    answer.driver.recommended = None;
    if answer.verdict == Compatibility::Compatible {
        answer.verdict = Compatibility::Unknown;
        answer.why.clear();
    }
    answer.why.insert(0, why.to_owned());
    answer
}

/// Returns the result for one match of the GPU name. If there are several matches, the reasons contain the name as the query
/// specifies it, so that equal reasons can be merged.
fn of_one(
    matrix: &Matrix,
    question: &Question,
    meant: Option<(&NameMatch<'_>, Option<&str>)>,
) -> Answer {
    let instance = meant.and_then(|(name_match, _)| name_match.instance);
    let gpu = meant.and_then(|(name_match, _)| name_match.gpu.clone());
    let machine = question.machine.as_ref();
    let switches = meant.and_then(|(name_match, _)| name_match.switches);
    let constraints = Constraints {
        gpus: (gpu.into_iter())
            .chain(machine.into_iter().flat_map(|machine| machine.gpus.clone()))
            .collect(),
        nvswitch: match instance {
            Some(row) => Some(row.fabric != Fabric::None),
            None => switches.or(machine.map(|machine| machine.nvswitch)),
        },
        nvlink_management: match instance {
            Some(row) => Some(row.fabric == Fabric::FmNvlsm),
            None => switches,
        },
        kernel: question.kernel.clone(),
        cuda: question.cuda.iter().copied().collect(),
        cudnn: question.cudnn,
        arch: instance.map(|row| row.arch.clone()),
        instance: instance.map(|row| (row.provider.clone(), row.name.clone())),
        candidates: (question.branches.as_ref()).map(|branches| {
            let rows = matrix.branches.iter();
            let offered = rows.filter(|row| branches.contains(&row.branch));
            offered.map(|row| row.newest_version.clone()).collect()
        }),
        ..Constraints::default()
    };
    let needs = constraints.needs(matrix);
    let names_a_gpu_alone = question.driver.is_none()
        && question.cuda.is_none()
        && question.cudnn.is_none()
        && question.kernel.is_none()
        && attempt::other_driver(matrix, &constraints).is_none();
    let Reasons {
        verdict,
        mut why,
        mut citations,
        recommended,
    } = match &question.driver {
        Some(driver) => about_driver(matrix, &constraints, &needs, driver),
        None => about_pick(matrix, &constraints, &needs),
    };
    for board in &needs.boards {
        citations.extend(board.citations.iter().map(|key| (*key).to_owned()));
        why.extend(as_vgpu(matrix, board).filter(|_| instance.is_none()));
    }
    let called = meant.and_then(|(_, called)| called);
    if let Some(name) = called.filter(|_| instance.is_none()) {
        for board in needs.boards.iter().filter(|board| board.row.is_some()) {
            for text in &mut why {
                *text = text.replace(&board.label, name);
            }
        }
    }
    Answer {
        schema: SCHEMA,
        verdict,
        why,
        driver: DriverAnswer {
            min: oldest_driver(matrix, &needs),
            max_branch: needs.boards.iter().filter_map(Board::last_branch).min(),
            recommended,
        },
        module_flavor: needs
            .boards
            .iter()
            .filter(|board| board.architecture.is_some())
            .map(|board| Some(board.modules))
            .reduce(|one, other| shared(one?, other?))
            .flatten(),
        citations: cite(matrix, &citations),
        name_matches: Vec::new(),
        branches: if names_a_gpu_alone {
            let mut rows = branches::driving(matrix, &needs);
            let offered = question.branches.as_ref();
            rows.retain(|row| offered.is_none_or(|branches| branches.contains(&row.branch)));
            rows
        } else {
            Vec::new()
        },
    }
}

/// Returns the module flavors that two GPUs of a machine both support.
fn shared(one: SupportedFlavors, other: SupportedFlavors) -> Option<SupportedFlavors> {
    match (one, other) {
        (SupportedFlavors::Either, same) | (same, SupportedFlavors::Either) => Some(same),
        (one, other) => (one == other).then_some(one),
    }
}

/// A verdict with its reasons.
struct Reasons {
    verdict: Compatibility,
    why: Vec<String>,
    citations: BTreeSet<String>,
    recommended: Option<DriverVersion>,
}

/// Evaluates the driver of the query.
fn about_driver(
    matrix: &Matrix,
    constraints: &Constraints,
    needs: &rules::Needs<'_>,
    driver: &DriverOrBranch,
) -> Reasons {
    let mut evaluated = evaluate(matrix, needs, driver);
    if let Some(refusal) = attempt::other_driver(matrix, constraints) {
        evaluated.verdict = Compatibility::Incompatible;
        evaluated.rule_results.insert(0, refusal);
    }
    let cited = evaluated
        .rule_results
        .iter()
        .flat_map(|r| r.citations.iter().cloned());
    let citations = cited.collect();
    let mut why: Vec<String> = Vec::new();
    for rule_result in &evaluated.rule_results {
        if !why.contains(&rule_result.text) {
            why.push(rule_result.text.clone());
        }
    }
    if evaluated.verdict == Compatibility::Compatible && why.is_empty() {
        why.push(evaluated.fits);
    }
    Reasons {
        verdict: evaluated.verdict,
        why,
        citations,
        recommended: pick(matrix, constraints).ok().map(|pick| pick.recommended),
    }
}

/// Selects a driver for the query.
fn about_pick(matrix: &Matrix, constraints: &Constraints, needs: &rules::Needs<'_>) -> Reasons {
    let without_code = !rules::without_code(matrix, needs).is_empty();
    match pick(matrix, constraints) {
        Ok(pick) => Reasons {
            verdict: if without_code {
                Compatibility::Incompatible
            } else if pick.doubtful {
                Compatibility::Unknown
            } else {
                Compatibility::Compatible
            },
            // The reason for the verdict comes first.
            why: match pick.doubtful || without_code {
                true => pick.warnings.into_iter().chain(pick.reasons).collect(),
                false => (pick.reasons.into_iter())
                    .chain(waiting(matrix, constraints, pick.branch))
                    .chain(pick.warnings)
                    .collect(),
            },
            citations: pick.citations.into_iter().collect(),
            recommended: Some(pick.recommended),
        },
        Err(no_driver) => {
            let texts = no_driver.reasons.iter().map(|reason| reason.text.clone());
            // Without a driver, it is advice.
            let near = (no_driver.nearest.iter()).map(|near| match &no_driver.nearest_pick {
                Some(_) => format!("possible {near}"),
                None => near.clone(),
            });
            let cited = no_driver.reasons.iter();
            Reasons {
                verdict: if no_driver.unknown {
                    Compatibility::Unknown
                } else {
                    Compatibility::Incompatible
                },
                why: texts.chain(near).collect(),
                citations: cited.flat_map(|r| r.citations.iter().cloned()).collect(),
                recommended: None,
            }
        }
    }
}

/// Explains why a newer long-term branch that supports the GPUs is not recommended yet.
fn waiting(matrix: &Matrix, constraints: &Constraints, picked: Branch) -> Option<String> {
    let mut rows = matrix.branches.iter().rev();
    let (row, from) = rows.find_map(|row| {
        let from = row.default_from.filter(|from| matrix.as_of < *from)?;
        let newer = row.branch > picked && row.support == Support::Supported;
        newer.then_some((row, from))
    })?;
    let other = Constraints {
        branch: Some(row.branch),
        ..constraints.clone()
    };
    pick(matrix, &other).ok()?;
    let until = (row.end_of_life.as_ref())
        .map_or_else(String::new, |end| format!(", supported until {end}"));
    Some(format!(
        "branch {} ({}{until}) is newer, but a new long-term branch is recommended only half a year after its first \
         release, here from {from}",
        row.branch,
        row.kind.title()
    ))
}

/// Lists the instance types that provide the GPU as a vGPU.
fn as_vgpu(matrix: &Matrix, board: &Board<'_>) -> Option<String> {
    let gpu = board.row?;
    let instances = matrix.instance_types.iter().filter(|row: &&InstanceType| {
        row.driver == InstanceDriver::Grid && row.gpu_ids.contains(&gpu.pci_id)
    });
    let names: Vec<&str> = instances.map(|row| row.name.as_str()).collect();
    (!names.is_empty()).then(|| {
        format!(
            "{} as a vGPU requires the GRID guest driver, for example on {}",
            board.label,
            names.join(", ")
        )
    })
}

/// The result of the rules for the driver of the query.
struct DriverVerdict {
    verdict: Compatibility,
    rule_results: Vec<RuleResult>,
    fits: String,
}

fn evaluate(matrix: &Matrix, needs: &rules::Needs<'_>, driver: &DriverOrBranch) -> DriverVerdict {
    let branch = match driver {
        DriverOrBranch::Version(version) => return evaluate_version(matrix, needs, version),
        DriverOrBranch::Branch(branch) => *branch,
    };
    if let Some(row) = matrix.branch(branch) {
        return evaluate_version(matrix, needs, &row.newest_version);
    }
    // No version of the branch is known. A result that is equal for the first and the last possible version applies to all.
    let [first, last] = DriverVersion::bounds(branch);
    let first = evaluate_version(matrix, needs, &first);
    let mut last = evaluate_version(matrix, needs, &last);
    if first.verdict != last.verdict {
        let none: [&str; 0] = [];
        let text =
            format!("the result depends on the version of branch {branch}: specify a version");
        let rule_result = rule_result::say(Rule::UnknownBranch, Evaluation::Unknown, text, &none);
        last.rule_results = first.rule_results;
        last.rule_results.insert(0, rule_result);
        last.verdict = Compatibility::Unknown;
    }
    last
}

fn evaluate_version(
    matrix: &Matrix,
    needs: &rules::Needs<'_>,
    version: &DriverVersion,
) -> DriverVerdict {
    // The query contains no flavor, so the better one counts, or the default of the branch if both are equal.
    let preferred = attempt::preferred_flavor(matrix, needs, version.branch());
    let other = match preferred {
        Flavor::Open => Flavor::Proprietary,
        Flavor::Proprietary => Flavor::Open,
    };
    let of = |flavor| {
        rules::evaluate(
            matrix,
            needs,
            &Candidate {
                version: version.clone(),
                flavor,
            },
        )
    };
    let weight = |rule_results: &[RuleResult]| {
        let refused = rule_results
            .iter()
            .filter(|r| r.evaluation == Evaluation::Refuse)
            .count();
        (
            refused,
            rule_results
                .iter()
                .filter(|r| r.evaluation >= Evaluation::Unknown)
                .count(),
        )
    };
    let (first, second) = (of(preferred), of(other));
    // Keep the kernel warnings about the flavor that is not selected, if it is supported.
    let reported = |rule_results: &[RuleResult]| {
        let kernel = |rule_result: &&RuleResult| rule_result.rule == Rule::Kernel;
        (rule_results.iter().filter(kernel))
            .filter(|rule_result| rule_result.evaluation >= Evaluation::Unknown)
            .map(|rule_result| rule_result.text.clone())
            .collect::<Vec<_>>()
    };
    let fits = |rule_results: &[RuleResult]| {
        let flavor = |rule| matches!(rule, Rule::BoardFlavor | Rule::BranchFlavor);
        !(rule_results.iter()).any(|rule_result| {
            flavor(rule_result.rule) && rule_result.evaluation == Evaluation::Refuse
        })
    };
    let (mut worse, mut named) = (Vec::new(), preferred);
    let (flavor, mut rule_results) = if weight(&second) < weight(&first) {
        if fits(&first) {
            (worse, named) = (reported(&first), preferred);
        }
        (other, second)
    } else {
        if fits(&second) {
            (worse, named) = (reported(&second), other);
        }
        (preferred, first)
    };
    worse.retain(|text| {
        !rule_results
            .iter()
            .any(|rule_result| rule_result.text == *text)
    });
    for text in worse {
        let none: [&str; 0] = [];
        // A warning about the preferred flavor makes the verdict unknown. A warning about the other flavor is only a note.
        let evaluation = match named == preferred {
            true => Evaluation::Unknown,
            false => Evaluation::Note,
        };
        let text = format!("with the {named} kernel modules: {text}");
        rule_results.push(rule_result::say(Rule::Kernel, evaluation, text, &none));
    }
    rule_results.extend(no_data(matrix, needs, version, &rule_results));

    let refused: Vec<&RuleResult> = rule_results
        .iter()
        .filter(|r| r.evaluation == Evaluation::Refuse)
        .collect();
    let unsure = rule_results
        .iter()
        .any(|r| r.evaluation >= Evaluation::Unknown);
    let without_code = rule_results
        .iter()
        .any(|r| r.rule == Rule::CudaArchitecture && r.evaluation >= Evaluation::Against);
    let nothing_known = needs
        .boards
        .iter()
        .any(|board| board.architecture.is_none() && !board.assumed_newer);
    let verdict = if refused.is_empty() {
        if without_code {
            Compatibility::Incompatible
        } else if unsure {
            Compatibility::Unknown
        } else {
            Compatibility::Compatible
        }
    } else if refused
        .iter()
        .all(|rule_result| rule_result.rule == Rule::ForwardCompat)
    {
        Compatibility::NeedsForwardCompat
    } else if nothing_known
        && refused
            .iter()
            .all(|rule_result| rule_result.rule == Rule::UnknownGpu)
    {
        Compatibility::Unknown
    } else {
        Compatibility::Incompatible
    };
    rule_results.sort_by_key(|rule_result| std::cmp::Reverse(rule_result.evaluation));
    let fits = format!("driver {version} with {flavor} kernel modules: no rule rejects it");
    DriverVerdict {
        verdict,
        rule_results,
        fits,
    }
}

/// Returns an unknown result if no entry is about this driver on this kernel. If entries cover the mainline version of a vendor
/// kernel, which may contain backports, returns a note.
fn no_data(
    matrix: &Matrix,
    needs: &rules::Needs<'_>,
    version: &DriverVersion,
    rule_results: &[RuleResult],
) -> Option<RuleResult> {
    let none: [&str; 0] = [];
    if rule_results
        .iter()
        .any(|rule_result| rule_result.rule == Rule::Kernel)
    {
        return None;
    }
    let is_unknown = |kernel: &&KernelVersion| !kernel::is_covered(matrix, kernel, version);
    if let Some(kernel) = needs.kernels.iter().find(is_unknown) {
        let text = format!(
            "no data about driver {version} on kernel {kernel}: only a build, or a package for this kernel, shows \
             whether it works"
        );
        return Some(rule_result::say(
            Rule::Kernel,
            Evaluation::Unknown,
            text,
            &none,
        ));
    }
    let kernel = needs.kernels.iter().find(|kernel| !kernel.is_mainline())?;
    let (major, minor) = kernel.series();
    let text = format!(
        "driver {version} builds on Linux {major}.{minor}; the vendor kernel {kernel} may contain backports that \
         break the build"
    );
    Some(rule_result::say(
        Rule::Kernel,
        Evaluation::Note,
        text,
        &none,
    ))
}

/// Returns the oldest driver that supports the GPU, the CUDA version and cuDNN.
fn oldest_driver(matrix: &Matrix, needs: &rules::Needs<'_>) -> Option<DriverVersion> {
    let boards = needs.boards.iter().filter_map(|board| board.min_driver());
    let cuda = needs
        .cuda
        .iter()
        .filter_map(|cuda| rules::cuda_minimum(matrix, *cuda).0);
    let cudnn = needs
        .cudnn
        .and_then(|asked| cudnn::min_driver(matrix, asked, &needs.cuda));
    boards.chain(cuda).chain(cudnn).max().cloned()
}

/// Formats sources for readers.
fn cite(matrix: &Matrix, keys: &BTreeSet<String>) -> Vec<String> {
    matrix
        .citations
        .iter()
        .filter(|row| keys.contains(&row.key))
        .map(|row| format!("{} ({}, {})", row.title, row.r#where, row.date))
        .collect()
}
