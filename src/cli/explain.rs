//! `explain`: describes a finding, a step, a setting, an exit code, an event, a driver error number (Xid, SXid) or a line of
//! the kernel log, with its remedy.

use std::sync::LazyLock;

use serde_json::{Value, json};

use super::{Failure, args, env::Console, print};
use crate::{
    config::reference::{self, KeyRow},
    event::Event,
    exit::Exit,
    model::{
        findings::{self, FindingRow},
        id::stands_for,
    },
    report::{self, human::Topic},
    tools::{
        kernel_log::{self, Message, Recovery},
        xid::{self, Xid, XidAction},
    },
};

/// Maximum number of names that an error suggests.
const MOST_NAMES: usize = 3;

/// A similarity above which a name is suggested (Jaro-Winkler).
const SIMILAR: f64 = 0.75;

/// The number of the Xid that contains the driver's own recommendation.
const RECOVERY: u32 = 154;

/// Exit codes with their meaning and remedy. docs/troubleshooting.md has the same meanings, as `tests/documents.rs` checks.
const EXITS: [(Exit, &str, Option<&str>); 13] = [
    (Exit::Ok, "ready, installed, or nothing to do", None),
    (
        Exit::Internal,
        "a bug, or an error without its own exit code",
        Some("run the command again; if the error recurs, report it with the output"),
    ),
    (
        Exit::Usage,
        "invalid options or arguments",
        Some("run `gpu-bootstrap COMMAND --help`"),
    ),
    (
        Exit::Config,
        "invalid settings, profile or matrix, or a file is writable by non-root users",
        Some("fix the file and line in the error, then run `gpu-bootstrap plan`"),
    ),
    (
        Exit::Drift,
        "`check`: a finding fails, or nothing could be checked; `plan`: changes are pending; `probe`: a layer fails; \
         `compat`: the result is unknown; `report`: a node fails or differs",
        Some(
            "`check`, `probe`: apply the remedy of the first finding; `plan`: run `gpu-bootstrap install`; `compat`: build \
             the module, or select a version that the matrix covers",
        ),
    ),
    (
        Exit::Blocked,
        "the machine is unsupported or incompatible, or its disk is full; no changes were made",
        Some("apply the hint of the output, then run the command again"),
    ),
    (
        Exit::StepFailed,
        "a change or its validation failed, or a step could not read the machine",
        Some("run `gpu-bootstrap status`, apply the hint, then run the command again"),
    ),
    (
        Exit::Partial,
        "a change could not be undone, for example because a file was edited",
        Some("run the commands in the output, then run `gpu-bootstrap uninstall` again"),
    ),
    (
        Exit::RebootRequired,
        "progress is saved, and a reboot is required",
        Some(
            "reboot, then run the command again; `install --reboot` reboots and continues automatically",
        ),
    ),
    (
        Exit::Busy,
        "another run holds the lock, or `status --wait` timed out",
        Some("run `gpu-bootstrap status --wait`"),
    ),
    (
        Exit::NotPermitted,
        "root is required",
        Some("run the command again with `sudo`"),
    ),
    (
        Exit::Interrupted,
        "stopped by a signal, after the current change finished",
        Some("run the command again to continue"),
    ),
    (
        Exit::Terminated,
        "stopped by a signal, after the current change finished",
        Some("run the command again to continue"),
    ),
];

/// The kinds of events with their descriptions, from the schema of [`Event`].
static EVENTS: LazyLock<Vec<(String, String)>> = LazyLock::new(|| {
    let schema = schemars::schema_for!(Event).to_value();
    let kinds = schema.get("oneOf").and_then(Value::as_array);
    let one = |kind: &Value| {
        let name = kind.pointer("/properties/kind/const")?.as_str()?;
        let about = kind.get("description")?.as_str()?;
        Some((name.to_owned(), about.replace('\n', " ")))
    };
    kinds.into_iter().flatten().filter_map(one).collect()
});

/// The subject that the arguments refer to.
#[derive(Debug)]
enum Subject {
    Finding(&'static FindingRow),
    Other(Topic),
}

pub(super) fn run(console: &mut Console<'_>, args: &args::ExplainArgs) -> Result<Exit, Failure> {
    let words: Vec<&str> = args.ids.iter().map(String::as_str).collect();
    let subjects = match words.is_empty() {
        true => findings::rows().iter().map(Subject::Finding).collect(),
        false => subjects(&words)?,
    };
    let style = console.out_style();
    match args.output.format {
        args::OutputFormat::Json => {
            let documents: Vec<Value> = subjects.iter().map(document).collect();
            print::json(&mut console.out, &documents)?;
        }
        args::OutputFormat::Human if words.is_empty() => {
            let rows: Vec<&FindingRow> = findings::rows().iter().collect();
            print::show(&mut console.out, |to| {
                report::human::findings(to, &rows, style)
            })?;
        }
        args::OutputFormat::Human => {
            let topics: Vec<Topic> = subjects.into_iter().map(topic).collect();
            print::show(&mut console.out, |to| {
                report::human::explain(to, &topics, style)
            })?;
        }
    }
    Ok(Exit::Ok)
}

fn topic(subject: Subject) -> Topic {
    match subject {
        Subject::Finding(row) => Topic::from(row),
        Subject::Other(topic) => topic,
    }
}

fn document(subject: &Subject) -> Value {
    match subject {
        Subject::Finding(row) => json!(row),
        Subject::Other(topic) => json!(topic),
    }
}

/// Returns what the arguments refer to: a line of the kernel log, a message of another program, or a list of names and numbers.
fn subjects(args: &[&str]) -> Result<Vec<Subject>, Failure> {
    let text = args.join(" ");
    let mut lines = log_line(&text);
    if lines.is_empty() {
        lines = printed(&text);
    }
    if !lines.is_empty() {
        return Ok(lines);
    }
    let mut words: Vec<&str> = text.split_whitespace().collect();
    if words.len() > 1 {
        // `exit code 5`
        words.retain(|word| !matches!(*word, "code" | "status"));
    }
    let mut found: Vec<Subject> = Vec::new();
    let mut at = 0;
    while at < words.len() {
        let pair = words.get(at + 1).and_then(|next| numbered(words[at], next));
        at += if pair.is_some() { 2 } else { 1 };
        let subjects = pair.unwrap_or_else(|| named(words[at - 1]));
        if subjects.is_empty() {
            // In a sentence, no single word is the cause.
            let is_sentence = words.len() > MOST_NAMES;
            return Err(not_found(if is_sentence { &text } else { words[at - 1] }));
        }
        found.extend(subjects);
    }
    if found.is_empty() {
        return Err(not_found(&text));
    }
    Ok(found)
}

/// Returns the subject of a word and the number after it: `xid 79`, `exit 5`.
fn numbered(word: &str, number: &str) -> Option<Vec<Subject>> {
    let number: u32 = number.trim_matches([':', ',']).parse().ok()?;
    let word = word.to_lowercase();
    match word.trim_end_matches([':', ',']) {
        "xid" => Some(vec![Subject::Other(of_xid(number))]),
        "sxid" => Some(vec![Subject::Other(of_sxid(number, None))]),
        "exit" => Some(of_exit(number).into_iter().collect()),
        _ => None,
    }
}

/// Returns the subjects of one word.
fn named(word: &str) -> Vec<Subject> {
    let lower = word.to_lowercase();
    if let Ok(number) = lower.parse::<u32>() {
        let xid = xid::of(number).map(|_| Subject::Other(of_xid(number)));
        return of_exit(number).into_iter().chain(xid).collect();
    }
    let after = |prefix: &str| -> Option<u32> {
        let number = lower.strip_prefix(prefix)?;
        number.trim_matches(['-', ':', '=', '_']).parse().ok()
    };
    if let Some(number) = after("sxid") {
        return vec![Subject::Other(of_sxid(number, None))];
    }
    if let Some(number) = after("xid") {
        return vec![Subject::Other(of_xid(number))];
    }
    match lower.as_str() {
        "xid" => return finding("log.xid"),
        "sxid" => return finding("log.sxid"),
        "exit" => {
            return (EXITS.iter())
                .filter_map(|(exit, ..)| of_exit(exit.code().into()))
                .collect();
        }
        _ => {}
    }
    let settings = |is: &dyn Fn(&KeyRow) -> bool| -> Vec<Subject> {
        let rows = reference::rows().iter().filter(|row| is(row));
        rows.map(|row| Subject::Other(of_setting(row))).collect()
    };
    let mut exact = finding(&lower);
    exact.extend(settings(&|row| row.name.eq_ignore_ascii_case(word)));
    let event = EVENTS.iter().find(|(name, _)| *name == lower);
    exact.extend(event.map(|(name, about)| Subject::Other(of_event(name, about))));
    if !exact.is_empty() {
        return exact;
    }
    let below: Vec<Subject> = (findings::rows().iter())
        .filter(|row| stands_for(&lower, row.id.as_str()))
        .map(Subject::Finding)
        .collect();
    match below.is_empty() {
        true => settings(&|row| stands_for(&lower, &row.name)),
        false => below,
    }
}

fn finding(id: &str) -> Vec<Subject> {
    let row = findings::rows().iter().find(|row| row.id.as_str() == id);
    row.map(Subject::Finding).into_iter().collect()
}

/// Returns the findings that explain a message of another program.
fn printed(text: &str) -> Vec<Subject> {
    let text = text.to_lowercase();
    let explains =
        |row: &&FindingRow| (row.prints.iter()).any(|part| text.contains(&part.to_lowercase()));
    let rows = findings::rows().iter().filter(explains);
    rows.map(Subject::Finding).collect()
}

/// Returns what a line of the kernel log reports. The line may lack its time stamp.
fn log_line(text: &str) -> Vec<Subject> {
    if !text.contains(' ') {
        return Vec::new();
    }
    let mut records = kernel_log::records(text);
    if records.is_empty() {
        let message = text.find("NVRM: ").map_or(text, |at| &text[at..]);
        records.push(message.trim().to_owned());
    }
    let messages = kernel_log::read(records.iter().map(String::as_str));
    messages.iter().flat_map(of_message).collect()
}

fn of_message(message: &Message) -> Vec<Subject> {
    let other = |topic| vec![Subject::Other(topic)];
    match message {
        Message::Xid { code, .. } | Message::Cause { code, .. } => other(of_xid(*code)),
        Message::Recovery { action, .. } => other(of_recovery(*action)),
        Message::SXid { code, fatal, .. } => other(of_sxid(*code, *fatal)),
        Message::Line { row, .. } => other(Topic {
            kind: "log-line",
            id: "kernel log".to_owned(),
            title: row.why.replace("{}", "a device"),
            lines: vec![("remedy", row.remedy.clone())],
        }),
        Message::ResetRequired | Message::RebootRequired => finding("log.xid"),
        Message::FellOffBus { .. } | Message::Lost => finding("log.fell-off-bus"),
        _ => finding("log.gpu-init"),
    }
}

fn of_xid(number: u32) -> Topic {
    let row = xid::of(number);
    let mut lines = vec![
        (
            "remedy",
            row.map_or_else(
                || "run `nvidia-bug-report.sh`, and look up the number in the catalog".to_owned(),
                Xid::remedy,
            ),
        ),
        ("finding", "log.xid".to_owned()),
        ("source", xid::CATALOG.to_owned()),
    ];
    if number == RECOVERY {
        lines.insert(
            0,
            (
                "means",
                "the line contains the recommended action".to_owned(),
            ),
        );
    }
    Topic {
        kind: "xid",
        id: format!("Xid {number}"),
        title: row
            .map_or("not in the table of driver errors", |row| &row.what)
            .to_owned(),
        lines,
    }
}

fn of_recovery(action: Recovery) -> Topic {
    let remedy = match action {
        Recovery::None => XidAction::None.remedy(),
        Recovery::Imex => "recover the IMEX domain; this node has no error",
        Recovery::DrainPeers => "stop the programs that use this GPU together with others",
        Recovery::Reset | Recovery::DrainAndReset | Recovery::BusReset => {
            XidAction::ResetGpu.remedy()
        }
        Recovery::Reboot => XidAction::Reboot.remedy(),
    };
    Topic {
        kind: "xid",
        id: format!("Xid {RECOVERY}"),
        title: "the action that the driver recommends".to_owned(),
        lines: vec![
            ("remedy", remedy.to_owned()),
            ("finding", "log.xid".to_owned()),
            ("source", xid::CATALOG.to_owned()),
        ],
    }
}

/// Describes an NVSwitch error. Only its log line reports whether it is fatal.
fn of_sxid(number: u32, fatal: Option<bool>) -> Topic {
    const FATAL: &str = "drain the node, then reboot it: GPUs and NVSwitches must be reset together; if the error recurs, \
                         contact the hardware vendor";
    const MILD: &str =
        "no action is needed; if the error recurs often, contact the hardware vendor";
    let (title, remedy) = match fatal {
        Some(true) => ("fatal NVSwitch error", FATAL.to_owned()),
        Some(false) => ("non-fatal NVSwitch error", MILD.to_owned()),
        None => (
            "NVSwitch error",
            format!(
                "if the log line contains `Fatal`, {FATAL}. If it contains `Non-fatal`, {MILD}"
            ),
        ),
    };
    Topic {
        kind: "sxid",
        id: format!("SXid {number}"),
        title: title.to_owned(),
        lines: vec![("remedy", remedy), ("finding", "log.sxid".to_owned())],
    }
}

fn of_exit(code: u32) -> Option<Subject> {
    let row = EXITS
        .iter()
        .find(|(exit, ..)| u32::from(exit.code()) == code);
    let (_, meaning, remedy) = row?;
    Some(Subject::Other(Topic {
        kind: "exit",
        id: format!("exit {code}"),
        title: (*meaning).to_owned(),
        lines: remedy
            .iter()
            .map(|text| ("remedy", (*text).to_owned()))
            .collect(),
    }))
}

fn of_setting(row: &KeyRow) -> Topic {
    let default = row.default.clone().unwrap_or_else(|| "none".to_owned());
    Topic {
        kind: "setting",
        id: row.name.clone(),
        title: "setting".to_owned(),
        lines: vec![
            ("means", without_links(&row.about)),
            ("default", default),
            (
                "set",
                format!(
                    "`--set {}=VALUE`, or in /etc/gpu-bootstrap/config.toml",
                    row.name
                ),
            ),
        ],
    }
}

/// Replaces Markdown links to documents with their paths. Links without a file are links in docs/configuration.md.
fn without_links(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, link)) = rest.split_once('[') {
        let Some((label, (target, after))) = (link.split_once("]("))
            .and_then(|(label, target)| Some((label, target.split_once(')')?)))
            .filter(|(label, (target, _))| !label.contains(']') && !target.contains(':'))
        else {
            plain.push_str(before);
            plain.push('[');
            rest = link;
            continue;
        };
        plain.push_str(before);
        let page = if target.starts_with('#') {
            "configuration.md"
        } else {
            ""
        };
        plain.push_str(&format!("{label} (docs/{page}{target})"));
        rest = after;
    }
    plain + rest
}

fn of_event(name: &str, about: &str) -> Topic {
    Topic {
        kind: "event",
        id: name.to_owned(),
        title: "event of `install --events`".to_owned(),
        lines: vec![("means", about.to_owned())],
    }
}

/// The error for an unknown name, with the nearest names.
fn not_found(name: &str) -> Failure {
    let lower = name.to_lowercase();
    let findings = findings::rows().iter().map(|row| row.id.as_str());
    let settings = reference::rows().iter().map(|row| row.name.as_str());
    let events = EVENTS.iter().map(|(name, _)| name.as_str());
    let mut near: Vec<(f64, &str)> = (findings.chain(settings).chain(events))
        .map(|known| (strsim::jaro_winkler(&lower, known), known))
        .filter(|(likeness, _)| *likeness > SIMILAR)
        .collect();
    near.sort_by(|(one, _), (other, _)| other.total_cmp(one));
    near.dedup_by(|(_, one), (_, other)| one == other);
    let near: Vec<String> = (near.iter().take(MOST_NAMES))
        .map(|(_, known)| format!("`{known}`"))
        .collect();
    let hint = match near.is_empty() {
        true => "run `gpu-bootstrap explain` for a list of all findings".to_owned(),
        false => format!("did you mean {}?", near.join(", ")),
    };
    Failure::new(
        Exit::Usage,
        "no-finding",
        &format!(
            "find `{name}`: it is not a finding, step, setting, event, exit code, Xid, line of the kernel log or known message"
        ),
        Some(&hint),
    )
}

#[cfg(test)]
mod tests {
    use super::{EVENTS, EXITS, Subject, subjects, topic, without_links};
    use crate::exit::Exit;

    /// The subjects of the arguments as `ID: REMEDY`.
    fn told(args: &[&str]) -> Vec<String> {
        let found = subjects(args).unwrap_or_else(|error| panic!("{args:?}: {}", error.report()));
        let text = |subject: Subject| {
            let topic = topic(subject);
            let remedy = topic.lines.iter().find(|(name, _)| *name == "remedy");
            format!("{}: {}", topic.id, remedy.map_or("", |(_, text)| text))
        };
        found.into_iter().map(text).collect()
    }

    #[test]
    fn messages_of_other_programs_are_findings() {
        for (message, id) in [
            (
                "Failed to initialize NVML: Driver/library version mismatch",
                "driver.libraries",
            ),
            (
                "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.",
                "pci.driver-bound",
            ),
            (
                "docker: Error response from daemon: could not select device driver \"\" with capabilities: [[gpu]].",
                "runtime.docker-nvidia",
            ),
        ] {
            let found = told(&[message]);
            assert!(
                matches!(&found[..], [one] if one.starts_with(&format!("{id}: "))),
                "{found:?}"
            );
        }
        let error = subjects(&["this is not a known message"]).unwrap_err();
        assert!(
            error.report().to_string().contains("this is not"),
            "{}",
            error.report()
        );
    }

    #[test]
    fn links_are_replaced_with_paths() {
        let text = "`[]` for none; see [change the driver](#change-the-driver), [a], [b](http://c), [d](e.md#f)";
        assert_eq!(
            without_links(text),
            "`[]` for none; see change the driver (docs/configuration.md#change-the-driver), [a], [b](http://c), d (docs/e.md#f)"
        );
    }

    #[test]
    fn numbers_are_errors_and_exit_codes() {
        for (args, ids) in rows_of(&[
            (&["79"], &["Xid 79: run `systemctl poweroff`"]),
            (&["xid", "79"], &["Xid 79: run `systemctl poweroff`"]),
            (&["Xid 79"], &["Xid 79: run `systemctl poweroff`"]),
            (&["XID79"], &["Xid 79: run `systemctl poweroff`"]),
            (
                &["64"],
                &[
                    "Xid 64: drain the node and reset the GPU (`nvidia-smi --gpu-reset`, or reboot); if `nvidia-smi -q -d \
                   ROW_REMAPPER` then reports a remapping failure, replace the GPU",
                ],
            ),
            (&["xid", "4711"], &["Xid 4711: run `nvidia-bug-report.sh`"]),
            (
                &["sxid", "24007"],
                &["SXid 24007: if the log line contains `Fatal`"],
            ),
            (&["exit", "5"], &["exit 5: apply the hint"]),
            (&["exit code 5"], &["exit 5: apply the hint"]),
            (&["5"], &["exit 5: apply the hint"]),
            (
                &["xid", "79", "exit", "8"],
                &["Xid 79: run", "exit 8: reboot"],
            ),
            (
                &["31"],
                &["Xid 31: restart the application and look for an invalid memory access in it"],
            ),
        ]) {
            let found = told(args);
            assert_eq!(found.len(), ids.len(), "{args:?}: {found:?}");
            for (one, start) in found.iter().zip(ids) {
                assert!(one.starts_with(start), "{args:?}: {one}");
            }
        }
    }

    /// Gives the rows of different lengths one type.
    fn rows_of<'a>(
        rows: &'a [(&'a [&'a str], &'a [&'a str])],
    ) -> impl Iterator<Item = (&'a [&'a str], &'a [&'a str])> {
        rows.iter().copied()
    }

    #[test]
    fn names_are_findings_settings_and_events() {
        for (name, id) in [
            ("driver.existing", "driver.existing: "),
            ("Driver.Existing", "driver.existing: "),
            (
                "driver.libraries",
                "driver.libraries: run `gpu-bootstrap install`",
            ),
            ("reboot-required", "reboot-required: "),
            ("xid", "log.xid: "),
            ("sxid", "log.sxid: "),
        ] {
            let found = told(&[name]);
            assert!(
                found.len() == 1 && found[0].starts_with(id),
                "{name}: {found:?}"
            );
        }
        // `driver` is a prefix of findings and a table of settings: the findings take precedence.
        assert!(
            told(&["driver"])
                .iter()
                .any(|one| one.starts_with("driver.module: "))
        );
        assert!(
            told(&["cluster.node"])
                .iter()
                .all(|one| one.starts_with("cluster.node"))
        );
        assert_eq!(told(&["validation.image"]).len(), 2);
    }

    #[test]
    fn log_lines_give_their_remedy() {
        for (line, id) in [
            (
                "[  512.1] NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus.",
                "Xid 79: run `systemctl poweroff`",
            ),
            (
                "NVRM: Xid (PCI:0000:3b:00): 48, pid=1234, DBE",
                "Xid 48: run `nvidia-smi --gpu-reset`",
            ),
            (
                "Aug 14 09:00:01 node kernel: nvidia-nvswitch0: SXid (PCI:0000:c5:00.0): 24007, Fatal, Link 42",
                "SXid 24007: drain the node",
            ),
            (
                "[  3.2] Loading of unsigned module is rejected",
                "kernel log: ",
            ),
        ] {
            let found = told(&[line]);
            assert!(found[0].starts_with(id), "{line}: {found:?}");
            // A shell passes an unquoted line as words.
            let words: Vec<&str> = line.split(' ').collect();
            assert_eq!(told(&words), found, "{line}");
        }
    }

    #[test]
    fn unknown_names_get_the_nearest_ones() {
        for (name, nearest) in [
            ("driver.exsting", "`driver.existing`"),
            ("log.xd", "`log.xid`"),
            ("zzzz", "run `gpu-bootstrap explain`"),
            ("4711", "run `gpu-bootstrap explain`"),
        ] {
            let error = subjects(&[name]).expect_err(name);
            let report = error.report();
            assert_eq!(report.exit(), Exit::Usage, "{name}");
            assert!(
                report.hint().unwrap().contains(nearest),
                "{name}: {:?}",
                report.hint()
            );
        }
    }

    #[test]
    fn every_exit_code_and_event_is_described() {
        for code in 0..=u8::MAX {
            let known = EXITS.iter().any(|(exit, ..)| exit.code() == code);
            let is_ours = code == 1 || Exit::of(code) != Exit::Internal;
            assert_eq!(known, is_ours, "{code}");
        }
        assert_eq!(EVENTS.len(), 12, "{EVENTS:?}");
    }
}
