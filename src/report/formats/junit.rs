use std::io::{self, Write};

use quick_junit::{NonSuccessKind, Report, TestCase, TestCaseStatus, TestSuite};

use super::{by_layer, line, values};
use crate::{
    check::{Finding, Verdict},
    engine::RunReport,
    model::findings::Kind,
    report::document::TOOL,
};

/// Writes JUnit XML for CI servers, with a suite for each layer and a test case for each finding. JUnit has no warnings, so a
/// warning is a success with output. An unknown finding is skipped, because by default it does not fail `check`.
///
/// # Errors
/// An error of the writer.
pub fn junit(to: &mut dyn Write, report: &RunReport) -> io::Result<()> {
    let mut document = Report::new(TOOL.name);
    for (layer, findings) in by_layer(&report.findings) {
        let mut suite = TestSuite::new(layer.name());
        suite.add_test_cases(findings.iter().map(|finding| {
            let mut case = TestCase::new(finding.id.as_str(), status(finding));
            case.set_classname(format!("{}.{}", TOOL.name, layer.name()));
            if finding.status == Verdict::Warn {
                case.set_system_out(format!("warning: {}\n{}", finding.why, details(finding)));
            }
            case
        }));
        document.add_test_suite(suite);
    }
    document.serialize(&mut *to).map_err(io::Error::other)?;
    to.flush()
}

fn status(finding: &Finding) -> TestCaseStatus {
    let mut status = match finding.status {
        Verdict::Pass | Verdict::Warn => return TestCaseStatus::success(),
        Verdict::Fail => TestCaseStatus::non_success(NonSuccessKind::Failure),
        Verdict::Skip | Verdict::Unknown => TestCaseStatus::skipped(),
    };
    match finding.status {
        Verdict::Unknown => status.set_message(format!("unknown: {}", line(&finding.why))),
        _ => status.set_message(line(&finding.why)),
    };
    if finding.status == Verdict::Fail {
        status.set_type(finding.kind().map_or("fail", Kind::name));
        status.set_description(details(finding));
    }
    status
}

/// The root cause and the values of a finding, one per line.
fn details(finding: &Finding) -> String {
    let because = finding.because.as_ref().map(|id| ("cause", id.as_str()));
    (because.into_iter().chain(values(finding)))
        .map(|(name, value)| format!("{name}: {value}\n"))
        .collect()
}
