//! Helpers for assessments and reports.

use crate::{
    engine::{RunReport, StepReport},
    event::Outcome,
    step::Assessment,
};

pub fn satisfied(why: &str) -> Assessment {
    Assessment::Satisfied {
        why: why.to_owned(),
    }
}

pub fn blocked(why: &str) -> Assessment {
    Assessment::Blocked {
        why: why.to_owned(),
        hint: "use another machine".to_owned(),
    }
}

/// Returns `id outcome` for every step.
pub fn outcomes(report: &RunReport) -> Vec<String> {
    let word = |step: &StepReport| format!("{} {}", step.id, step.outcome.word());
    report.steps.iter().map(word).collect()
}

fn of<'r>(report: &'r RunReport, id: &str) -> &'r StepReport {
    let mut steps = report.steps.iter();
    steps.find(|step| step.id.as_str() == id).unwrap()
}

pub fn why<'r>(report: &'r RunReport, id: &str) -> &'r str {
    &of(report, id).why
}

pub fn outcome(report: &RunReport, id: &str) -> Outcome {
    of(report, id).outcome
}
