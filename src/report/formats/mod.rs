//! `check` findings in the formats of other programs. Each function writes a complete document.

mod condition;
mod html;
mod junit;
mod markdown;
mod nagios;
mod npd;
mod prometheus;
mod tap;
#[cfg(test)]
mod tests;

#[cfg(test)]
pub(super) use tests::node;

pub use condition::{condition, condition_in_maintenance, cut};
pub use html::html;
pub use junit::junit;
pub use markdown::markdown;
pub use nagios::{nagios, nagios_failed};
pub use npd::{npd, npd_failed};
pub use prometheus::prometheus;
pub use tap::tap;

use crate::{
    check::{Finding, Verdict},
    engine::RunReport,
    exit::Exit,
    model::{
        findings::{Kind, Layer},
        text::is_control,
    },
};

/// The alarm level for a monitoring system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Alarm {
    Fine,
    Warning,
    Critical,
    /// No finding is a failure or a warning, but `check` does not exit with 0, because not everything could be examined.
    Unknown,
}

impl Alarm {
    /// Returns the level of the most severe finding. Unknown is less severe than a warning, as in similar plugins (`gcm`,
    /// `health_checks/types.py`).
    fn of(report: &RunReport) -> Self {
        let any = |verdict| (report.findings.iter()).any(|finding| finding.status == verdict);
        if any(Verdict::Fail) {
            Self::Critical
        } else if any(Verdict::Warn) {
            Self::Warning
        } else if report.exit == Exit::Ok {
            Self::Fine
        } else {
            Self::Unknown
        }
    }

    /// Returns the findings with the verdict of this level, except those with another finding as root cause.
    fn causes(self, findings: &[Finding]) -> Vec<&Finding> {
        let wanted = match self {
            Self::Fine => return Vec::new(),
            Self::Warning => Verdict::Warn,
            Self::Critical => Verdict::Fail,
            Self::Unknown => Verdict::Unknown,
        };
        (findings.iter())
            .filter(|finding| finding.status == wanted && finding.because.is_none())
            .collect()
    }
}

/// Escapes text for XML and HTML.
pub(super) fn entities(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

/// Groups the findings by layer. Omits empty layers.
fn by_layer(findings: &[Finding]) -> impl Iterator<Item = (Layer, Vec<&Finding>)> {
    (Layer::ALL.into_iter())
        .map(|layer| {
            let of_layer = (findings.iter()).filter(move |one| Layer::of(&one.id) == layer);
            (layer, of_layer.collect::<Vec<_>>())
        })
        .filter(|(_, findings)| !findings.is_empty())
}

/// The findings, root causes before their consequences.
fn causes_first(findings: &[Finding]) -> Vec<&Finding> {
    let mut sorted: Vec<&Finding> = findings.iter().collect();
    sorted.sort_by_key(|finding| finding.because.is_some());
    sorted
}

/// The kind and the optional values of a finding, with their names.
fn values(finding: &Finding) -> impl Iterator<Item = (&'static str, &str)> {
    [
        ("kind", finding.kind().map(Kind::name)),
        ("observed", finding.observed.as_deref()),
        ("expected", finding.expected.as_deref()),
        ("command", finding.command.as_deref()),
        ("remedy", finding.remedy_text()),
    ]
    .into_iter()
    .filter_map(|(name, value)| Some((name, value?)))
}

/// Joins text to one line. Control characters and white space become single spaces.
fn line(text: &str) -> String {
    let words = text.split(|c: char| is_control(c) || c.is_whitespace());
    words
        .filter(|word| !word.is_empty())
        .collect::<Vec<_>>()
        .join(" ")
}

/// The title for a report with failures.
fn verdict_of(report: &RunReport) -> &'static str {
    let any =
        |kind| (report.findings.iter()).any(|one| one.status == Verdict::Fail && one.is(kind));
    if any(Kind::Fault) {
        "fault found"
    } else if any(Kind::Risk) {
        "risk found"
    } else {
        "differs from the settings"
    }
}
