//! Explains why no driver fits, and finds the nearest constraints that a driver satisfies.

use std::collections::BTreeSet;

use crate::attempt::{Evaluated, Failed, Pick, attempt};
use crate::board::Board;
use crate::constraints::Constraints;
use crate::identity::SupportedFlavors;
use crate::matrix::Matrix;
use crate::rule_result::{self, Evaluation, Rule, RuleResult};

/// The error if no driver fits.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("find a driver for this machine: {}", .reasons.iter().map(|r| r.text.as_str()).collect::<Vec<_>>().join("; "))]
pub struct NoDriver {
    /// The rejections, with the compared values.
    pub reasons: Vec<RuleResult>,
    /// `true` if the only reason is that the matrix has no entry for a GPU or a branch.
    pub unknown: bool,
    /// The smallest relaxation of the constraints with its driver, or other advice.
    pub nearest: Vec<String>,
    /// The driver for the nearest constraints, if there is one.
    pub nearest_pick: Option<Box<Pick>>,
}

/// Explains a failed selection.
pub(super) fn explain(matrix: &Matrix, constraints: &Constraints, failed: Failed) -> NoDriver {
    let (reasons, unknown) = match failed {
        Failed::Early { reason, unknown } => (vec![reason], unknown),
        Failed::Evaluated(evaluated) => {
            let mut reasons = pairs(matrix, constraints);
            // If two GPUs exclude each other, the other rule results only follow from that.
            let others = if reasons.is_empty() {
                decisive(&evaluated)
            } else {
                Vec::new()
            };
            for rule_result in others {
                if !reasons.iter().any(|known| known.text == rule_result.text) {
                    reasons.push(rule_result);
                }
            }
            let unknown = reasons.iter().all(|reason| reason.rule == Rule::UnknownGpu);
            (reasons, unknown)
        }
    };
    let (nearest, nearest_pick) = nearest(matrix, constraints, &reasons);
    NoDriver {
        reasons,
        unknown,
        nearest,
        nearest_pick,
    }
}

/// Returns the rejections of the closest candidate: the one with the fewest rejections and the newest version.
fn decisive(evaluated: &[Evaluated]) -> Vec<RuleResult> {
    let refusals = |evaluated: &Evaluated| -> Vec<RuleResult> {
        let refused = evaluated
            .rule_results
            .iter()
            .filter(|r| r.evaluation == Evaluation::Refuse);
        refused.cloned().collect()
    };
    let closest = evaluated.iter().min_by_key(|evaluated| {
        (
            refusals(evaluated).len(),
            std::cmp::Reverse(&evaluated.offer.version),
        )
    });
    closest.map(refusals).unwrap_or_default()
}

/// Returns the pairs of GPUs that no branch and flavor supports together, although a driver supports each of them.
fn pairs(matrix: &Matrix, constraints: &Constraints) -> Vec<RuleResult> {
    let all = constraints.needs(matrix).boards;
    let only = |gpus: Vec<&Board<'_>>| {
        let labels: Vec<&str> = gpus.iter().map(|board| board.label.as_str()).collect();
        let of_these = constraints
            .gpus
            .iter()
            .filter(|g| labels.contains(&matrix.board(g).label.as_str()));
        let alone = Constraints {
            gpus: of_these.cloned().collect(),
            ..Constraints::default()
        };
        attempt(matrix, &alone).is_ok()
    };
    let mut found = Vec::new();
    for (index, first) in all.iter().enumerate() {
        for second in &all[index + 1..] {
            if only(vec![first]) && only(vec![second]) && !only(vec![first, second]) {
                let citations: BTreeSet<&str> = first
                    .citations
                    .iter()
                    .chain(&second.citations)
                    .copied()
                    .collect();
                let citations: Vec<&str> = citations.into_iter().collect();
                let text = format!(
                    "no branch and module flavor supports both {} and {}",
                    describe(first),
                    describe(second)
                );
                found.push(rule_result::say(
                    Rule::Pair,
                    Evaluation::Refuse,
                    text,
                    &citations,
                ));
            }
        }
    }
    found
}

fn describe(board: &Board<'_>) -> String {
    let modules = match board.modules {
        SupportedFlavors::Open => "open modules only",
        SupportedFlavors::Proprietary => "proprietary modules only",
        SupportedFlavors::Either => "open or proprietary modules",
    };
    let min = board
        .min_driver()
        .map_or(String::new(), |first| format!(", from {first} on"));
    let last = board
        .last_branch()
        .map_or(String::new(), |last| format!(", up to branch {last}"));
    format!("{} ({modules}{min}{last})", board.label)
}

/// A relaxation of the constraints: its description, and the change.
type Relaxation<'a> = (&'static str, &'a dyn Fn(&mut Constraints));

/// Relaxes the constraints step by step until a driver fits.
fn nearest(
    matrix: &Matrix,
    constraints: &Constraints,
    reasons: &[RuleResult],
) -> (Vec<String>, Option<Box<Pick>>) {
    if reasons.iter().any(|reason| reason.rule == Rule::Vgpu) {
        let advice = "install the GRID guest driver that matches the hypervisor's vGPU release";
        return (vec![advice.to_owned()], None);
    }
    // Each step relaxes one more constraint. "on another kernel" restores CUDA and cuDNN.
    let mut relaxed = constraints.clone();
    let steps: [Relaxation<'_>; 8] = [
        ("with another version of the branch", &|one| {
            one.version = None;
        }),
        ("with another branch", &|one| one.branch = None),
        ("with the other kernel modules", &|one| one.flavor = None),
        ("from another repository", &|one| one.candidates = None),
        ("with another version of cuDNN", &|one| one.cudnn = None),
        ("without the requested CUDA versions", &|one| {
            one.cuda.clear();
        }),
        ("on another kernel", &|one| {
            (one.cuda, one.cudnn) = (constraints.cuda.clone(), constraints.cudnn);
            (one.kernel, one.next_kernel) = (None, None);
        }),
        (
            "without the requested CUDA versions, on another kernel",
            &|one| (one.cuda, one.cudnn) = (Vec::new(), None),
        ),
    ];
    for (how, relax) in steps {
        let before = relaxed.clone();
        relax(&mut relaxed);
        if relaxed == before {
            continue;
        }
        if let Ok(pick) = attempt(matrix, &relaxed) {
            let text = format!(
                "{how}: driver {} (branch {}), {} kernel modules",
                pick.recommended, pick.branch, pick.flavor
            );
            return (vec![text], Some(Box::new(pick)));
        }
    }
    let advice = if reasons.iter().any(|reason| reason.rule == Rule::Pair) {
        "install the GPUs that exclude each other in different machines"
    } else {
        "set `driver.branch` in the configuration to a branch that supports the GPU"
    };
    (vec![advice.to_owned()], None)
}
