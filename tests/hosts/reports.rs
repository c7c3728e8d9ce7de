//! Runs the program on machines from public reports: the inputs in `reports/*.txt`, the command lines and expected results in
//! `reports.toml`.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs::{self, Permissions},
    os::unix::fs::{PermissionsExt, symlink},
};

use camino::{Utf8Path, Utf8PathBuf};
use serde::Deserialize;
use serde_json::Value;

use super::machines::{Ran, long_headline, run};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    case: Vec<Case>,
}

/// See `reports.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    name: String,
    #[serde(default)]
    input: Option<String>,
    args: Vec<String>,
    exit: u8,
    #[serde(default)]
    healthy: Option<Platform>,
    #[serde(default)]
    first: Option<String>,
    #[serde(default)]
    line: Vec<String>,
    #[serde(default)]
    says: Vec<String>,
    #[serde(default)]
    never: Vec<String>,
    #[serde(default)]
    remedy: BTreeMap<String, String>,
    #[serde(default)]
    command: BTreeMap<String, String>,
    #[serde(default)]
    last: Option<String>,
    #[serde(default)]
    finds: BTreeMap<String, String>,
}

/// The platforms that `check` must not change or call broken if they work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Platform {
    Operator,
    Talos,
    Cos,
    Gke,
    Eks,
    DgxOs,
    Jetson,
    K3s,
    Microk8s,
    Mig,
    TimeSlicing,
}

const PLATFORMS: [Platform; 11] = [
    Platform::Operator,
    Platform::Talos,
    Platform::Cos,
    Platform::Gke,
    Platform::Eks,
    Platform::DgxOs,
    Platform::Jetson,
    Platform::K3s,
    Platform::Microk8s,
    Platform::Mig,
    Platform::TimeSlicing,
];

/// Advice that stops the workloads of a healthy machine, or replaces its driver.
const HARMFUL: [&str; 9] = [
    "gpu-bootstrap install",
    "reinstall",
    "ldconfig",
    "rmmod",
    "reboot",
    "--gpu-reset",
    "nvidia-uninstall",
    "purge",
    "systemctl",
];

/// Writes the files of an input: `==> PATH` starts a text file, `=x> PATH HEX` is a binary file, `--> PATH TARGET` a symlink,
/// `==/ PATH` a directory.
fn unpack(text: &str, to: &Utf8Path) {
    let make = |path: &str| {
        let path = to.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        path
    };
    let mut open: Option<(Utf8PathBuf, String, &str)> = None;
    let close = |open: Option<(Utf8PathBuf, String, &str)>| {
        let Some((path, mut content, marks)) = open else {
            return;
        };
        if marks.contains("(no newline)") {
            content.pop();
        }
        if marks.contains("(crlf)") {
            content = content.replace('\n', "\r\n");
        }
        fs::write(&path, content).unwrap();
        if marks.contains("(mode 0600)") {
            fs::set_permissions(path, Permissions::from_mode(0o600)).unwrap();
        }
    };
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("==> ") {
            let (path, marks) = rest.split_once(" (").unwrap_or((rest, ""));
            let marks = if marks.is_empty() {
                ""
            } else {
                &rest[path.len()..]
            };
            close(open.replace((make(path), String::new(), marks)));
        } else if let Some(rest) = line.strip_prefix("=x> ") {
            close(open.take());
            let (path, hex) = rest.split_once(' ').unwrap();
            let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
            let bytes: Vec<u8> = (0..hex.len()).step_by(2).map(byte).collect();
            fs::write(make(path), bytes).unwrap();
        } else if let Some(rest) = line.strip_prefix("--> ") {
            close(open.take());
            let (path, target) = rest.split_once(' ').unwrap();
            symlink(target, make(path)).unwrap();
        } else if let Some(path) = line.strip_prefix("==/ ") {
            close(open.take());
            fs::create_dir_all(make(path)).unwrap();
        } else if let Some((_, content, _)) = &mut open {
            writeln!(content, "{line}").unwrap();
        }
    }
    close(open);
}

impl Case {
    /// Describes the differences from the expected result.
    fn evaluate(&self, text: &Ran, document: Option<&Value>) -> Vec<String> {
        let mut wrong = Vec::new();
        let all = format!("{}\n{}", text.out, text.err);
        // Compare without line wrapping.
        let flat = all.split_whitespace().collect::<Vec<_>>().join(" ");
        if text.exit != self.exit {
            wrong.push(format!("exit {}", text.exit));
        }
        // The headline has at most two lines.
        let line = (text.out.lines().take(2))
            .take_while(|line| !line.is_empty())
            .collect::<Vec<_>>()
            .join(" ");
        for words in &self.line {
            if !line.contains(words.as_str()) {
                wrong.push(format!("`{line}` does not contain `{words}`"));
            }
        }
        let last = text.out.lines().last().unwrap_or_default().trim();
        if let Some(words) = self.last.as_ref().filter(|words| !last.contains(*words)) {
            wrong.push(format!("the last line is `{last}`, without `{words}`"));
        }
        for words in &self.says {
            if !flat.contains(words.as_str()) {
                wrong.push(format!("the output does not contain `{words}`"));
            }
        }
        for words in &self.never {
            if flat.contains(words.as_str()) {
                wrong.push(format!("it says `{words}`"));
            }
        }
        let findings = document.map(|document| document["findings"].as_array().unwrap().clone());
        let findings = findings.unwrap_or_default();
        if self.healthy.is_some() {
            wrong.extend(not_healthy(&line, &flat, &findings));
        }
        let of = |id: &str| findings.iter().find(|finding| finding["id"] == id);
        if let Some(first) = &self.first {
            let found = findings.iter().find(|finding| {
                finding["status"] == "fail"
                    && !findings.iter().any(|root| root["id"] == finding["because"])
            });
            let id = found.map_or("-", |finding| finding["id"].as_str().unwrap());
            if id != first {
                wrong.push(format!("first is {id}"));
            }
        }
        for (id, words) in &self.remedy {
            let remedy = of(id)
                .and_then(|finding| finding["remedy"].as_str())
                .unwrap_or("-");
            if !remedy.contains(words.as_str()) {
                wrong.push(format!("the remedy of {id} is `{remedy}`"));
            }
        }
        for (id, words) in &self.command {
            let command = of(id)
                .and_then(|finding| finding["command"].as_str())
                .unwrap_or("-");
            if !command.contains(words.as_str()) {
                wrong.push(format!("the command of {id} is `{command}`"));
            }
        }
        for (id, verdict) in &self.finds {
            let found = of(id)
                .and_then(|finding| finding["status"].as_str())
                .unwrap_or("-");
            if found != verdict {
                wrong.push(format!("{id} is {found}"));
            }
        }
        wrong
    }
}

/// Describes the faults and the harmful advice in the results of a healthy machine.
fn not_healthy(line: &str, text: &str, findings: &[Value]) -> Vec<String> {
    let mut wrong = Vec::new();
    if !line.starts_with("healthy") {
        wrong.push(format!("the first line is `{line}`"));
    }
    for advice in HARMFUL.iter().filter(|advice| text.contains(**advice)) {
        wrong.push(format!("it says `{advice}`"));
    }
    for finding in findings {
        let status = finding["status"].as_str().unwrap();
        if status == "fail" || status == "warn" && finding["kind"] == "fault" {
            wrong.push(format!("{} is {status}: {}", finding["id"], finding["why"]));
        }
        // The remedies of settings that are not evaluated are only in the JSON document.
        if status == "skip" {
            continue;
        }
        let advice = format!("{} {}", finding["remedy"], finding["command"]);
        for harmful in HARMFUL.iter().filter(|harmful| advice.contains(**harmful)) {
            wrong.push(format!("the remedy of {} says `{harmful}`", finding["id"]));
        }
    }
    wrong
}

fn table() -> Table {
    toml::from_str(include_str!("reports.toml")).unwrap()
}

#[test]
fn each_platform_has_a_healthy_machine() {
    let mut found: Vec<Platform> = (table().case.iter())
        .filter_map(|case| case.healthy)
        .collect();
    found.sort_unstable();
    found.dedup();
    assert_eq!(found, PLATFORMS);
}

#[test]
fn publicly_reported_machines_have_correct_results() {
    let table = table();
    let directory = Utf8Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hosts/reports");
    let mut wrong = String::new();
    for case in &table.case {
        let scratch = tempfile::tempdir().unwrap();
        let input = Utf8Path::from_path(scratch.path()).unwrap();
        if let Some(name) = &case.input {
            let text = fs::read_to_string(directory.join(format!("{name}.txt"))).unwrap();
            unpack(&text, input);
        }
        let args: Vec<String> = (case.args.iter())
            .map(|word| word.replace("INPUT", input.as_str()))
            .collect();
        let mut words: Vec<&str> = args.iter().map(String::as_str).collect();
        let is_check = words[0] == "check";
        if is_check {
            // The disk with the tree does not belong to the machine.
            words.extend(["--ignore", "preflight"]);
        }
        let text = run(&words);
        if let Some(long) = is_check.then(|| long_headline(&words)).flatten() {
            writeln!(wrong, "{}: the headline is too long:\n{long}", case.name).unwrap();
        }
        let document = (is_check && text.exit != 2 && text.exit != 3).then(|| {
            let ran = run(&[&words[..], &["--format", "json"]].concat());
            serde_json::from_str::<Value>(&ran.out).unwrap()
        });
        for why in case.evaluate(&text, document.as_ref()) {
            writeln!(wrong, "{}: {why}", case.name).unwrap();
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}
