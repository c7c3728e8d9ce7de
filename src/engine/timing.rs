//! Computes the timing of an installation from the journal: its changes, its reboots, and the time
//! between them.
//!
//! An installation is one `install` with the runs that continued it after a requested reboot or
//! after an interruption. Times are wall-clock times. The clock may be set during boot, so negative
//! durations are treated as zero.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::Timestamp;
use serde::Serialize;

use super::EngineError;
use crate::{
    change::Change,
    exit::Exit,
    host::Host,
    journal::{Journal, JournalLine, Record},
    model::id::StepId,
};

/// The timing of an installation.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Timing {
    /// Start of its first run.
    pub started: Timestamp,
    /// Seconds until the end of its last run, or until the last record.
    pub seconds: f64,
    /// Seconds until the end of the last change that the node needs. Deferred package triggers may end later.
    pub needed_seconds: f64,
    /// Whether the installation built an image. Instances of the image become ready at their first boot.
    pub image: bool,
    /// Exit status of its last run, or `None` if it has not finished.
    pub exit: Option<u8>,
    /// The number of boots with a run.
    pub boots: usize,
    /// Seconds without a change or reboot in progress, spent on assessments and waiting.
    pub between: f64,
    /// CPU seconds of gpu-bootstrap itself, without the programs that it started, in all its runs. `None` if no run has
    /// recorded them.
    pub cpu_seconds: Option<f64>,
    /// The same for the last run after the installation, which changed nothing. `None` if there was no such run.
    pub cpu_seconds_without_changes: Option<f64>,
    /// The wall-clock time of gpu-bootstrap itself, in all its runs (`engine/own_time.rs`). `None` if no run has recorded it.
    pub own_seconds: Option<f64>,
    /// The same for the last run after the installation, which changed nothing.
    pub own_seconds_without_changes: Option<f64>,
    /// Changes and reboots, ordered by start.
    pub spans: Vec<Span>,
    /// The assessment before the first change, the steps with changes, and the reboots, ordered by start.
    pub steps: Vec<StepTime>,
}

/// The [`StepTime::step`] of the assessment before the first change.
pub const ASSESSMENT: &str = "assessment";

/// The [`StepTime::step`] of a reboot, and its description.
const REBOOT: &str = "reboot";

/// The changes of a step, the assessment before the first change, or a reboot.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct StepTime {
    /// The ID of the step, [`ASSESSMENT`], or `reboot`.
    pub step: String,
    /// Start in seconds since the start of the installation.
    pub begins: f64,
    /// End of the last change.
    pub ends: f64,
    /// Seconds with a change of the step in progress. A change that several steps share counts for each of them.
    pub seconds: f64,
    /// Whether a part of it is on the critical path.
    pub critical: bool,
    /// The parts: start, end, and whether the part is on the critical path.
    #[serde(skip)]
    pub parts: Vec<(f64, f64, bool)>,
}

impl Timing {
    /// Returns the seconds from a bare machine to a Ready node. `None` if the node is not ready, or
    /// if an image was built.
    pub fn to_ready(&self) -> Option<f64> {
        (self.exit == Some(Exit::Ok.code()) && !self.image).then_some(self.needed_seconds)
    }
}

/// A change or a reboot.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Span {
    /// Start in seconds since the start of the installation.
    pub begins: f64,
    /// The duration.
    pub seconds: f64,
    /// The steps that needed the change. Empty for a reboot.
    pub steps: Vec<StepId>,
    /// A description.
    pub what: String,
    /// The result.
    pub end: SpanEnd,
    /// Whether it is on the critical path: the chain from the span that finished last to the span
    /// that finished last before that one started, and so on.
    pub critical: bool,
}

/// The result of a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SpanEnd {
    /// Finished successfully.
    Done,
    /// Failed, or interrupted.
    Failed,
    /// In progress.
    UnderWay,
}

/// Reads the timing of the last installation.
///
/// # Errors
/// If the journal cannot be read.
pub fn last_timing(host: &Host) -> Result<Option<Timing>, EngineError> {
    Ok(timing(&Journal::read(host)?.lines))
}

/// Returns the duration of the installation that this run completed. `None` if the run failed,
/// built an image, or changed nothing.
///
/// # Errors
/// If the journal cannot be read.
pub(super) fn ready_by(host: &Host, run: &str) -> Result<Option<f64>, EngineError> {
    let history = Journal::read(host)?;
    let last = installations(&history.lines)
        .pop()
        .filter(|lines| lines.iter().any(|line| line.run == run));
    let timing = last.map(of).filter(|timing| !timing.spans.is_empty());
    Ok(timing.and_then(|timing| timing.to_ready()))
}

/// Returns the timing of the last installation that changed something, otherwise of the last
/// installation. `None` if there was no installation.
fn timing(lines: &[JournalLine]) -> Option<Timing> {
    let mut all: Vec<Timing> = installations(lines).into_iter().map(of).collect();
    let last = all.pop()?;
    if !last.spans.is_empty() {
        return Some(last);
    }
    match all.into_iter().rfind(|timing| !timing.spans.is_empty()) {
        Some(changed) => Some(Timing {
            cpu_seconds_without_changes: last.cpu_seconds,
            own_seconds_without_changes: last.own_seconds,
            ..changed
        }),
        None => Some(last),
    }
}

/// Groups the records by installation.
fn installations(lines: &[JournalLine]) -> Vec<Vec<&JournalLine>> {
    let mut found: Vec<Vec<&JournalLine>> = Vec::new();
    let (mut goes_on, mut is_install) = (false, false);
    for line in lines {
        if let Record::RunStarted { mode, .. } = &line.record {
            is_install = mode == "install";
            if is_install && !goes_on {
                found.push(Vec::new());
            }
            goes_on = is_install;
        }
        if let (true, Some(last)) = (is_install, found.last_mut()) {
            last.push(line);
        }
        if let Record::RunFinished { exit, .. } = &line.record {
            goes_on = is_install && *exit == Exit::RebootRequired.code();
            is_install = false;
        }
    }
    found
}

fn of(lines: Vec<&JournalLine>) -> Timing {
    let started = lines
        .first()
        .map_or(Timestamp::UNIX_EPOCH, |line| began(line));
    let since = |at: Timestamp| at.duration_since(started).as_secs_f64().max(0.0);
    let mut spans = Vec::new();
    let mut open: BTreeMap<u64, usize> = BTreeMap::new();
    let (mut boots, mut exit, mut image) = (0, None, false);
    let mut deferred = BTreeSet::new();
    // Seconds until the last record of a change that the node needs, and of any change.
    let (mut needed, mut changed) = (0.0_f64, 0.0_f64);
    let (mut boot, mut before): (Option<&str>, f64) = (None, 0.0);
    // By run. A run that a signal stopped before its reboot has recorded its end twice.
    let (mut cpu_seconds, mut own_seconds) = (BTreeMap::new(), BTreeMap::new());
    for line in lines {
        let at = since(line.at);
        match &line.record {
            Record::RunStarted {
                boot_id, request, ..
            } => {
                let at = since(began(line));
                (exit, image) = (None, request.image);
                if boots == 0 || boot_id.as_deref() != boot {
                    boots += 1;
                }
                if boots > 1 && boot_id.as_deref() != boot {
                    spans.push(Span {
                        begins: before,
                        seconds: (at - before).max(0.0),
                        steps: Vec::new(),
                        what: REBOOT.to_owned(),
                        end: SpanEnd::Done,
                        critical: false,
                    });
                }
                boot = boot_id.as_deref();
            }
            Record::Intent { steps, change, .. } => {
                open.insert(line.seq, spans.len());
                if *change == Change::RunTriggers {
                    deferred.insert(line.seq);
                }
                spans.push(Span {
                    begins: at,
                    seconds: 0.0,
                    steps: steps.clone(),
                    what: change.summary(),
                    end: SpanEnd::UnderWay,
                    critical: false,
                });
            }
            Record::Applied { intent, .. }
            | Record::Failed { intent, .. }
            | Record::Interrupted { intent, .. } => {
                changed = at;
                if !deferred.contains(intent) {
                    needed = at;
                }
                if let Some(span) = open.remove(intent).and_then(|index| spans.get_mut(index)) {
                    // It is unknown how long an interrupted change continued, so its duration is zero.
                    let end = match &line.record {
                        Record::Interrupted { .. } => span.begins,
                        _ => at,
                    };
                    span.seconds = (end - span.begins).max(0.0);
                    span.end = match &line.record {
                        Record::Applied { .. } => SpanEnd::Done,
                        _ => SpanEnd::Failed,
                    };
                }
            }
            Record::RunFinished {
                exit: status,
                cpu_seconds: used,
                own_seconds: own,
                ..
            } => {
                exit = Some(*status);
                cpu_seconds.extend(used.map(|used| (line.run.as_str(), used)));
                own_seconds.extend(own.map(|own| (line.run.as_str(), own)));
            }
            _ => {}
        }
        before = before.max(at);
    }
    for index in open.into_values() {
        let begins = spans[index].begins;
        spans[index].seconds = (before - begins).max(0.0);
    }
    spans.sort_by(|one, other| one.begins.total_cmp(&other.begins));
    // The end of the run follows the last change. Only deferred triggers may separate the two.
    let needed_seconds = if needed < changed { needed } else { before };
    mark_critical(&mut spans, needed_seconds);
    let ends = |span: &Span| (span.begins, span.begins + span.seconds, span.critical);
    let parts: Vec<_> = spans.iter().map(ends).collect();
    Timing {
        started,
        seconds: before,
        needed_seconds,
        image,
        exit,
        boots,
        between: (before - covered(&parts)).max(0.0),
        cpu_seconds: sum(&cpu_seconds),
        cpu_seconds_without_changes: None,
        own_seconds: sum(&own_seconds),
        own_seconds_without_changes: None,
        steps: steps(&spans),
        spans,
    }
}

/// Returns the start of a run from its first record.
fn began(line: &JournalLine) -> Timestamp {
    let Record::RunStarted {
        assessed_seconds: Some(seconds),
        ..
    } = &line.record
    else {
        return line.at;
    };
    let assessed = Duration::try_from_secs_f64(*seconds).unwrap_or_default();
    line.at.checked_sub(assessed).unwrap_or(line.at)
}

fn sum(of_runs: &BTreeMap<&str, f64>) -> Option<f64> {
    (!of_runs.is_empty()).then(|| of_runs.values().sum())
}

/// Groups the spans by step. Each reboot is separate.
fn steps(spans: &[Span]) -> Vec<StepTime> {
    let mut found: Vec<StepTime> = Vec::new();
    let mut add = |step: &str, part: (f64, f64, bool)| {
        let known = (found.iter_mut()).find(|one| one.step == step && step != REBOOT);
        match known {
            Some(known) => known.parts.push(part),
            None => found.push(StepTime {
                step: step.to_owned(),
                begins: part.0,
                ends: 0.0,
                seconds: 0.0,
                critical: false,
                parts: vec![part],
            }),
        }
    };
    if let Some(first) = spans.first() {
        add(ASSESSMENT, (0.0, first.begins, true));
    }
    for span in spans {
        let part = (span.begins, span.begins + span.seconds, span.critical);
        match &span.steps[..] {
            [] => add(REBOOT, part),
            steps => steps.iter().for_each(|step| add(step.as_str(), part)),
        }
    }
    for one in &mut found {
        one.ends = one.parts.iter().map(|part| part.1).fold(0.0, f64::max);
        one.seconds = covered(&one.parts);
        one.critical = one.parts.iter().any(|part| part.2);
    }
    found
}

/// Marks the critical path, starting from the end.
fn mark_critical(spans: &mut [Span], end: f64) {
    let mut until = end;
    loop {
        let ended = |span: &Span| span.begins + span.seconds;
        let last = (spans.iter_mut())
            .filter(|span| !span.critical && span.seconds > 0.0 && ended(span) <= until)
            .max_by(|one, other| ended(one).total_cmp(&ended(other)));
        let Some(last) = last else { return };
        last.critical = true;
        until = last.begins;
    }
}

/// Returns the seconds that are covered by at least one part. The parts are ordered by start.
fn covered(parts: &[(f64, f64, bool)]) -> f64 {
    let (mut sum, mut until) = (0.0_f64, 0.0_f64);
    for (begins, end, _) in parts {
        sum += (end - begins.max(until)).max(0.0);
        until = until.max(*end);
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        change::{Change, Undo},
        event::Summary,
        journal::Request,
    };

    fn line(seq: u64, second: i64, record: Record) -> JournalLine {
        JournalLine {
            schema: 2,
            seq,
            at: Timestamp::from_second(1_000_000 + second).expect("a time"),
            run: "r".to_owned(),
            record,
        }
    }

    fn started(mode: &str, boot: &str) -> Record {
        Record::RunStarted {
            tool: "0".to_owned(),
            mode: mode.to_owned(),
            instance_id: None,
            boot_id: Some(boot.to_owned()),
            request: Request::default(),
            policy: None,
            assessed_seconds: None,
        }
    }

    fn ended(exit: u8) -> Record {
        Record::RunFinished {
            exit,
            summary: Summary::default(),
            node: None,
            upgrade_failed: None,
            why: None,
            cpu_seconds: None,
            own_seconds: None,
        }
    }

    fn intent(step: &'static str) -> Record {
        Record::Intent {
            steps: vec![StepId::new(step)],
            change: Change::RefreshRepositories,
            undo: nothing(),
        }
    }

    fn nothing() -> Undo {
        Undo::Nothing { why: String::new() }
    }

    fn journal(records: Vec<(i64, Record)>) -> Vec<JournalLine> {
        (0..)
            .zip(records)
            .map(|(seq, (at, record))| line(seq, at, record))
            .collect()
    }

    /// Two parallel changes, a reboot and a third change, and then a separate run without changes,
    /// which is not reported.
    fn two_boots() -> Vec<JournalLine> {
        let applied = |intent| Record::Applied {
            intent,
            undo: nothing(),
        };
        journal(vec![
            (0, started("install", "b-1")),
            (2, intent("packages")),
            (3, intent("image")),
            (10, applied(2)),
            (60, applied(1)),
            (61, ended(8)),
            (81, started("install", "b-2")),
            (85, intent("module")),
            (90, applied(7)),
            (100, ended(0)),
            (500, started("install", "b-2")),
            (501, ended(0)),
        ])
    }

    #[test]
    fn installation_continues_over_reboots_until_success() {
        let found = timing(&two_boots()).expect("an installation");
        assert_eq!((found.boots, found.exit, found.image), (2, Some(0), false));
        let spans: Vec<(f64, f64, bool)> = (found.spans.iter())
            .map(|span| (span.begins, span.seconds, span.critical))
            .collect();
        assert_eq!(
            spans,
            [
                (2.0, 58.0, true),
                (3.0, 7.0, false),
                (61.0, 20.0, true),
                (85.0, 5.0, true)
            ]
        );
        assert_eq!(found.spans[2].what, REBOOT);
        let steps: Vec<(&str, f64, f64, bool)> = (found.steps.iter())
            .map(|one| (one.step.as_str(), one.begins, one.ends, one.critical))
            .collect();
        assert_eq!(
            steps,
            [
                (ASSESSMENT, 0.0, 2.0, true),
                ("packages", 2.0, 60.0, true),
                ("image", 3.0, 10.0, false),
                (REBOOT, 61.0, 81.0, true),
                ("module", 85.0, 90.0, true),
            ]
        );
        assert_eq!((found.seconds, found.between), (100.0, 17.0));
    }

    #[test]
    fn only_a_successful_installation_has_a_time_to_ready() {
        let lines = two_boots();
        let found = timing(&lines).expect("an installation");
        assert_eq!(found.to_ready(), Some(100.0));
        let interrupted = timing(&lines[..9]).expect("an installation");
        assert_eq!(interrupted.to_ready(), None);
    }

    #[test]
    fn deferred_triggers_do_not_count_until_ready() {
        let applied = |intent| Record::Applied {
            intent,
            undo: nothing(),
        };
        let triggers = Record::Intent {
            steps: vec![StepId::new("packages.triggers")],
            change: Change::RunTriggers,
            undo: nothing(),
        };
        let lines = journal(vec![
            (0, started("install", "b-1")),
            (1, intent("packages")),
            (20, applied(1)),
            (21, triggers),
            (22, intent("validation")),
            (25, applied(4)),
            (30, applied(3)),
            (31, ended(0)),
        ]);
        let found = timing(&lines).expect("an installation");
        assert_eq!((found.to_ready(), found.seconds), (Some(25.0), 31.0));
        let critical: Vec<bool> = found.spans.iter().map(|span| span.critical).collect();
        assert_eq!(critical, [true, false, true]);
    }

    #[test]
    fn assessment_before_the_first_record_counts() {
        let mut lines = two_boots();
        for line in &mut lines {
            if let Record::RunStarted {
                assessed_seconds, ..
            } = &mut line.record
            {
                *assessed_seconds = Some(1.5);
            }
        }
        let found = timing(&lines).expect("an installation");
        assert_eq!(found.seconds, 101.5);
        let assessment = &found.steps[0];
        assert_eq!((assessment.begins, assessment.ends), (0.0, 3.5));
        let reboot = &found.steps[3];
        assert_eq!((reboot.begins, reboot.ends), (62.5, 81.0));
    }

    #[test]
    fn parallel_changes_of_a_step_are_counted_once() {
        let span = |begins, seconds, critical| Span {
            begins,
            seconds,
            steps: vec![StepId::new("a")],
            what: String::new(),
            end: SpanEnd::Done,
            critical,
        };
        let found = steps(&[
            span(0.0, 4.0, false),
            span(1.0, 2.0, true),
            span(6.0, 1.0, false),
        ]);
        let one = &found[1];
        assert_eq!((one.ends, one.seconds, one.critical), (7.0, 5.0, true));
    }

    /// The runs before and after the reboot have the same ID here, as if the first one had recorded its end twice.
    #[test]
    fn own_time_is_the_sum_of_all_runs() {
        let mut lines = two_boots();
        let mut runs = ["first", "first", "second"].into_iter();
        let mut used = [0.25, 0.5, 0.125].into_iter();
        for line in &mut lines {
            if let Record::RunFinished {
                cpu_seconds,
                own_seconds,
                ..
            } = &mut line.record
            {
                *cpu_seconds = used.next();
                *own_seconds = cpu_seconds.map(|used| used + 1.0);
                line.run = runs.next().expect("a run").to_owned();
            }
        }
        let found = timing(&lines).expect("an installation");
        assert_eq!(
            (found.cpu_seconds, found.cpu_seconds_without_changes),
            (Some(0.5), Some(0.125))
        );
        assert_eq!(
            (found.own_seconds, found.own_seconds_without_changes),
            (Some(1.5), Some(1.125))
        );
        for line in &mut lines {
            line.run = line.seq.to_string();
        }
        let found = timing(&lines).expect("an installation");
        assert_eq!(found.cpu_seconds, Some(0.75));
        // An older version did not record it.
        let found = timing(&two_boots()).expect("an installation");
        assert_eq!(found.cpu_seconds, None);
    }

    /// A new run days after a failure is a separate installation.
    #[test]
    fn failed_run_is_not_continued() {
        let applied = |intent| Record::Applied {
            intent,
            undo: nothing(),
        };
        let lines = journal(vec![
            (0, started("install", "b-1")),
            (2, intent("packages")),
            (9, applied(1)),
            (10, ended(6)),
            (90_000, started("install", "b-2")),
            (90_001, intent("packages")),
            (90_004, applied(5)),
            (90_005, ended(0)),
        ]);
        let found = timing(&lines).expect("an installation");
        assert_eq!((found.seconds, found.boots, found.spans.len()), (5.0, 1, 1));
    }

    #[test]
    fn interrupted_and_running_changes_are_distinguished() {
        let interrupted = Record::Interrupted {
            intent: 1,
            undo: nothing(),
        };
        let lines = journal(vec![
            (0, started("install", "b-1")),
            (2, intent("packages")),
            (50, started("install", "b-2")),
            (51, interrupted),
            (52, intent("packages")),
            (53, started("uninstall", "b-2")),
        ]);
        let found = timing(&lines[..5]).expect("an installation");
        let ends: Vec<SpanEnd> = found.spans.iter().map(|span| span.end).collect();
        assert_eq!(ends, [SpanEnd::Failed, SpanEnd::Done, SpanEnd::UnderWay]);
        assert_eq!(found.exit, None);
        // An uninstallation is not an installation.
        assert_eq!(timing(&lines).expect("an installation"), found);
        assert_eq!(timing(&lines[5..]), None);
    }
}
