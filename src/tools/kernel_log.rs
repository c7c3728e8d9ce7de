//! Reads kernel messages, including the messages of the NVIDIA driver.
//!
//! Any user can write text into the kernel log, for example with the path of a mount, a program name, or the version that a
//! driver client reports. A message is therefore recognized only by its start, and the text after the start must have the
//! format of the kernel or the driver. The start is longer than a program name, because some kernel messages begin with one:
//! `NAME[PID]: segfault at … in FILE`.

use std::{sync::LazyLock, time::Duration};

use serde::{Deserialize, de::IgnoredAny};

use crate::{
    host::Query,
    model::{pci::PciAddress, text::built_in, version::DriverVersion},
};

/// The time limit for reading a log, regardless of the uptime.
const DEADLINE: Duration = Duration::from_secs(20);

/// Maximum length of a program name in a message (Linux `TASK_COMM_LEN`, without the NUL).
const PROGRAM: usize = 15;

/// Expressions for the messages that have no pattern: the first message of a boot, the first line of an oops, and the code
/// location.
const OTHERS: [&str; 4] = [
    "Linux version ",
    "[A-Za-z0-9 ,:_-]+: [0-9a-f]+ \\[#[0-9]+\\]",
    "RIP: 00(10|33):[A-Za-z0-9_.]+",
    "pc : [A-Za-z0-9_.]+\\+0x",
];

static TABLE: LazyLock<Vec<Line>> = LazyLock::new(|| {
    let mut table: Table =
        built_in("kernel_log").expect("the built-in table is valid, as a test checks");
    for line in &mut table.line {
        line.remedy = line.remedy.replace("{power}", super::xid::POWER);
    }
    table.line
});

/// The entries of [`MESSAGES`], with parsed patterns.
static PATTERNS: LazyLock<Vec<(Pattern, Maker)>> = LazyLock::new(|| {
    let pattern = |texts: &[&str]| {
        let texts = texts.iter().map(|text| (*text).to_owned()).collect();
        Pattern::of(texts).expect("the built-in patterns are valid, as a test checks")
    };
    let of = |(texts, maker): &(&[&str], Maker)| (pattern(texts), *maker);
    MESSAGES.iter().map(of).collect()
});

/// A part of the start of a message. `kernel_log.toml` describes the placeholders.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    Address,
    Driver,
    Function,
    Number,
    Program,
}

/// A message pattern: the start of the message, and texts that must follow later in this order.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Vec<String>")]
struct Pattern {
    start: Vec<Part>,
    later: Vec<String>,
}

impl TryFrom<Vec<String>> for Pattern {
    type Error = String;

    fn try_from(texts: Vec<String>) -> Result<Self, String> {
        Self::of(texts)
    }
}

/// A message that matches a pattern.
struct Matched<'m> {
    /// The text after the start.
    rest: &'m str,
    /// The device in the start.
    at: Option<PciAddress>,
    /// The last number in the start.
    number: Option<u32>,
    /// The GPU in an earlier line of the same sentence.
    last: Option<PciAddress>,
}

impl Pattern {
    fn of(texts: Vec<String>) -> Result<Self, String> {
        let mut texts = texts.into_iter();
        let first = texts.next().ok_or("a pattern has a first text")?;
        let mut start = Vec::new();
        let mut rest = &*first;
        while let Some((text, after)) = rest.split_once('<') {
            let (name, after) = after.split_once('>').ok_or("`<` without `>`")?;
            if !text.is_empty() {
                start.push(Part::Text(text.to_owned()));
            }
            start.push(match name {
                "address" => Part::Address,
                "driver" => Part::Driver,
                "function" => Part::Function,
                "number" => Part::Number,
                "program" => Part::Program,
                _ => return Err(format!("`<{name}>` is not a placeholder")),
            });
            rest = after;
        }
        if !rest.is_empty() {
            start.push(Part::Text(rest.to_owned()));
        }
        Ok(Self {
            start,
            later: texts.collect(),
        })
    }

    /// Matches a message from its first byte.
    fn matches<'m>(&self, message: &'m str) -> Option<Matched<'m>> {
        let mut rest = message;
        let (mut at, mut number) = (None, None);
        for (index, part) in self.start.iter().enumerate() {
            let length = match part {
                Part::Text(text) => rest.starts_with(text).then_some(text.len())?,
                Part::Address => {
                    let word = span(rest, |b| b.is_ascii_hexdigit() || matches!(b, b':' | b'.'));
                    let word = rest[..word].trim_end_matches([':', '.']);
                    at = Some(address(word)?);
                    word.len()
                }
                Part::Driver => span(rest, |b| {
                    b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_')
                }),
                Part::Number => {
                    let digits = span(rest, |b| b.is_ascii_digit());
                    number = rest[..digits].parse().ok();
                    digits
                }
                Part::Function => function(rest),
                Part::Program => {
                    let Some(Part::Text(next)) = self.start.get(index + 1) else {
                        return None;
                    };
                    rest.find(next).filter(|length| *length <= PROGRAM)?
                }
            };
            if length == 0 {
                return None;
            }
            rest = &rest[length..];
        }
        let mut after = rest;
        for text in &self.later {
            (_, after) = after.split_once(text)?;
        }
        Some(Matched {
            rest,
            at,
            number,
            last: None,
        })
    }

    /// Returns a regular expression (PCRE) that matches such messages from their first byte.
    fn expression(&self) -> String {
        let part = |part: &Part| match part {
            Part::Text(text) => literal(text),
            Part::Address => "([0-9a-f]+:)?[0-9a-f]{2}:[0-9a-f]{2}(\\.[0-7])?".to_owned(),
            Part::Driver => "[A-Za-z0-9_-]+".to_owned(),
            Part::Function => "(GPU[0-9]+ )?[A-Za-z0-9_]+".to_owned(),
            Part::Number => "[0-9]+".to_owned(),
            Part::Program => format!(".{{1,{PROGRAM}}}"),
        };
        let start: String = self.start.iter().map(part).collect();
        let later = self.later.iter().map(|text| literal(text));
        std::iter::once(start)
            .chain(later)
            .collect::<Vec<_>>()
            .join(".*")
    }
}

/// Returns an expression that matches a text literally.
fn literal(text: &str) -> String {
    let mut escaped = String::new();
    for letter in text.chars() {
        if !letter.is_alphanumeric() && !matches!(letter, ' ' | ':' | '-' | '_') {
            escaped.push('\\');
        }
        escaped.push(letter);
    }
    escaped
}

/// Returns the length of the prefix that consists of these bytes.
fn span(text: &str, is: impl Fn(u8) -> bool) -> usize {
    text.bytes().take_while(|byte| is(*byte)).count()
}

/// Returns the length of a C function name, including the GPU number that newer drivers print before it (`GPU0 `).
fn function(text: &str) -> usize {
    let name = |text: &str| span(text, |b| b.is_ascii_alphanumeric() || b == b'_');
    let gpu = (text.strip_prefix("GPU"))
        .map(|rest| "GPU".len() + span(rest, |b| b.is_ascii_digit()))
        .filter(|length| *length > "GPU".len() && text[*length..].starts_with(' '))
        .map_or(0, |length| length + 1);
    match name(&text[gpu..]) {
        0 => 0,
        length => gpu + length,
    }
}

/// The subject of a table entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// The module was not loaded.
    Load,
    /// A GPU was rejected or not started.
    Start,
    /// The PCI bus failed for a device.
    Bus,
    /// The IOMMU denied a device access.
    Iommu,
    /// A component other than the GPUs does not work.
    Beside,
}

/// An entry of the table `kernel_log.toml`.
#[derive(Debug, PartialEq, Eq, Deserialize)]
pub struct Line {
    /// The patterns of the messages of this entry.
    lines: Vec<Pattern>,
    pub kind: Kind,
    /// Whether the driver hung.
    #[serde(default)]
    pub hang: bool,
    /// The cause. `{}` is replaced by the device.
    pub why: String,
    /// The remedy.
    pub remedy: String,
    /// The remedy if the driver runs in a container of NVIDIA's GPU Operator, or `None` if it is the same.
    #[serde(default)]
    pub operator: Option<String>,
}

#[derive(Deserialize)]
struct Table {
    line: Vec<Line>,
}

/// Returns the table entry of a message, with the device.
fn row(message: &str) -> Option<Message> {
    TABLE.iter().find_map(|row| {
        let found = row.lines.iter().find_map(|line| line.matches(message))?;
        Some(Message::Line { at: found.at, row })
    })
}

/// Returns the table entries of these messages in the order of the table, each with all devices in the messages.
pub fn rows(messages: &[Message]) -> impl Iterator<Item = (&'static Line, Vec<PciAddress>)> {
    TABLE.iter().filter_map(move |row| {
        let of_it = |message: &Message| match message {
            Message::Line { at, row: other } if std::ptr::eq(row, *other) => Some(*at),
            _ => None,
        };
        let places: Vec<Option<PciAddress>> = messages.iter().filter_map(of_it).collect();
        (!places.is_empty()).then(|| (row, places.into_iter().flatten().collect()))
    })
}

/// Counts the messages of a table entry.
pub fn count(messages: &[Message], row: &Line) -> usize {
    (messages.iter())
        .filter(|message| matches!(message, Message::Line { row: other, .. } if std::ptr::eq(row, *other)))
        .count()
}

/// Queries the messages of this boot from the systemd journal, which keeps more messages than the kernel. The filter selects
/// only messages that [`read`] recognizes, because the output may be stored in a recording. The format is JSON, so each record
/// is one line, even if its text contains newlines. The facility `kern` excludes text that programs write to `/dev/kmsg`.
pub fn journal() -> Query {
    let messages = PATTERNS.iter().map(|(pattern, _)| pattern);
    let rows = TABLE.iter().flat_map(|row| &row.lines);
    let patterns = messages.chain(rows).map(Pattern::expression);
    let all: Vec<String> = (OTHERS.iter().map(|text| (*text).to_owned()))
        .chain(patterns)
        .collect();
    let args = [
        "--dmesg",
        "--boot",
        "--quiet",
        "--no-pager",
        "--output=json",
        "--output-fields=MESSAGE",
        &format!("--grep=^({})", all.join("|")),
        "SYSLOG_FACILITY=0",
    ];
    Query::new("journalctl", args).deadline(DEADLINE)
}

/// The device from which `dmesg` reads complete messages.
pub const RECORDS: &str = "/dev/kmsg";

/// Queries the messages in the ring buffer of the kernel, without text that programs write to `/dev/kmsg`.
pub fn ring() -> Query {
    Query::new("dmesg", ["--kernel"]).deadline(DEADLINE)
}

/// Files with kernel messages, possibly of several boots. They are used only if no command can be executed, because they are
/// less trustworthy: a syslog daemon also writes a `kernel` line for a user who sends that name to its socket, and writes a
/// separate `kernel` line for each line of a message.
pub const FILES: [&str; 3] = ["/var/log/kern.log", "/var/log/dmesg", "/var/log/messages"];

/// A field of a journal record.
#[derive(Deserialize)]
#[serde(untagged)]
enum Field {
    Text(String),
    /// Text with unprintable bytes, for example in a program name.
    Bytes(Vec<u8>),
    Other(IgnoredAny),
}

#[derive(Deserialize)]
struct Record {
    #[serde(rename = "MESSAGE")]
    message: Field,
}

/// Returns the messages in the output of [`journal`].
pub fn records_of_journal(output: &str) -> Vec<String> {
    let message = |line| match serde_json::from_str::<Record>(line).ok()?.message {
        Field::Text(text) => Some(text),
        Field::Bytes(bytes) => Some(String::from_utf8_lossy(&bytes).into_owned()),
        Field::Other(_) => None,
    };
    output.lines().filter_map(message).collect()
}

/// Returns the messages in the output of [`ring`] or in one of [`FILES`]. A message follows a timestamp, or a date, a host and
/// `kernel:`. An indented line continues a message, because `dmesg` and `journalctl` print multi-line messages in this way.
pub fn records(text: &str) -> Vec<String> {
    let mut records: Vec<String> = Vec::new();
    let mut open = false;
    for line in text.lines() {
        if line.starts_with([' ', '\t']) {
            if let Some(record) = records.last_mut().filter(|_| open) {
                record.push('\n');
                record.push_str(line);
            }
            continue;
        }
        let message = of_kernel(line);
        open = message.is_some();
        records.extend(message.map(str::to_owned));
    }
    records
}

/// Returns the message in a line: `[ 12.345678] NVRM: …`, `[ 12.345678] kernel: NVRM: …` (`/var/log/dmesg` of Ubuntu), or
/// `Aug 14 09:00:01 node kernel: [ 12.345678] NVRM: …` (rsyslog). `None` if the line is not from the kernel.
fn of_kernel(line: &str) -> Option<&str> {
    if let Some(rest) = behind_time(line) {
        return Some(rest.strip_prefix("kernel: ").unwrap_or(rest));
    }
    let (head, message) = line.split_once(" kernel: ")?;
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let is_date = match head.split_whitespace().collect::<Vec<_>>()[..] {
        [time] | [time, _] => time.parse::<jiff::Timestamp>().is_ok(),
        [month, day, time] | [month, day, time, _] => {
            MONTHS.contains(&month) && is_number(day) && time.split(':').all(is_number)
        }
        _ => false,
    };
    is_date.then(|| behind_time(message).unwrap_or(message))
}

const MONTHS: [&str; 12] = [
    "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
];

/// Returns the text after the timestamp, `[   12.345678] `, and after the caller that some kernels add, `[  T123] `.
fn behind_time(line: &str) -> Option<&str> {
    let bracket = |text: &'_ str, is: fn(u8) -> bool| {
        let inner = text.strip_prefix('[')?.trim_start_matches(' ');
        let length = span(inner, is);
        (length > 0)
            .then(|| inner[length..].strip_prefix("] "))
            .flatten()
            .map(|rest| text.len() - rest.len())
    };
    let rest = &line[bracket(line, |b| b.is_ascii_digit() || b == b'.')?..];
    let caller = bracket(rest, |b| b.is_ascii_digit() || matches!(b, b'T' | b'C'));
    Some(&rest[caller.unwrap_or_default()..])
}

/// Returns the messages of the last boot.
pub fn last_boot(records: &[String]) -> &[String] {
    let start = records.iter().rposition(|record| is_boot(record));
    &records[start.unwrap_or_default()..]
}

/// Whether a message is the first message of a boot: `Linux version 6.8.0-88-generic (buildd@…) …`.
fn is_boot(message: &str) -> bool {
    message.strip_prefix("Linux version ").is_some_and(|rest| {
        let release = span(rest, |b| b.is_ascii_alphanumeric() || b".-_+~".contains(&b));
        release > 0 && (rest.len() == release || rest[release..].starts_with(" ("))
    })
}

/// A message of the kernel or the NVIDIA driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// The driver reported an error by its number.
    Xid {
        gpu: Option<PciAddress>,
        /// The Xid number.
        code: u32,
        /// Whether the line calls the error nonfatal, which NVLink 5 errors do.
        nonfatal: bool,
    },
    /// A line reports an earlier error as its cause. The line of that error may be missing.
    Cause {
        gpu: Option<PciAddress>,
        /// The Xid number.
        code: u32,
    },
    /// The driver rejects work on an unspecified GPU until the GPU is reset.
    ResetRequired,
    /// The driver's memory manager (UVM) had an error that blocks CUDA on all GPUs until a reboot.
    RebootRequired,
    /// The driver reports the current recovery action of a GPU (Xid 154). Later lines replace earlier ones.
    Recovery {
        gpu: Option<PciAddress>,
        /// The requested action.
        action: Recovery,
    },
    /// An `NVSwitch` reported an error by its number.
    SXid {
        switch: Option<PciAddress>,
        /// The SXid number.
        code: u32,
        /// Whether the line calls the error fatal; `None` for a line with details, which follows such a line.
        fatal: Option<bool>,
    },
    /// A GPU no longer responds.
    FellOffBus { gpu: Option<PciAddress> },
    /// The driver could not initialize a GPU.
    NotStarted { gpu: Option<PciAddress> },
    /// A GPU needs the open modules, but the proprietary modules are loaded.
    NeedsOpen { gpu: Option<PciAddress> },
    /// A GPU needs the proprietary modules, but the open modules are loaded.
    NeedsProprietary { gpu: Option<PciAddress> },
    /// The driver ignores a GPU that is supported only by an older branch.
    Legacy {
        gpu: Option<PciAddress>,
        /// The branch in the message.
        branch: u32,
    },
    /// The driver does not support a GPU.
    Unsupported { gpu: Option<PciAddress> },
    /// A BAR of a GPU is unassigned.
    NoWindow {
        gpu: Option<PciAddress>,
        /// The BAR number.
        bar: u32,
    },
    /// The GPU firmware of the driver was not loaded.
    NoFirmware {
        /// The file, if the line contains it.
        file: Option<String>,
        /// The error code, or `None` if the line only reports a missing file.
        code: Option<u32>,
    },
    /// A message of a table entry.
    Line {
        /// The device, if the line contains one.
        at: Option<PciAddress>,
        row: &'static Line,
    },
    /// The driver rejected a device.
    ProbeFailed { gpu: Option<PciAddress> },
    /// A program uses driver libraries with another version than the module.
    OtherVersion {
        /// The library version, if the line contains it.
        libraries: Option<String>,
    },
    /// An unspecified GPU does not respond on the bus.
    Lost,
    /// The kernel killed a task in driver code (oops).
    Crashed {
        /// The driver module.
        module: String,
    },
}

/// The recovery action that the driver requests for a GPU: the values of NVML field 230.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recovery {
    /// No action.
    None,
    /// Stop the programs that use this GPU together with other GPUs.
    DrainPeers,
    Reset,
    /// Stop its programs, then reset it.
    DrainAndReset,
    /// Recover the IMEX domain. This machine is not faulty.
    Imex,
    BusReset,
    /// Reboot the machine.
    Reboot,
}

impl Recovery {
    /// Returns the action with this number, or `None` if the number is unknown.
    pub fn of(number: u32) -> Option<Self> {
        Some(match number {
            0 => Self::None,
            1 => Self::Reset,
            2 | 7 => Self::Reboot,
            3 => Self::DrainPeers,
            4 => Self::DrainAndReset,
            5 => Self::Imex,
            6 => Self::BusReset,
            _ => return None,
        })
    }
}

/// Parses the messages of a log. A driver sentence may have several lines, and only the first contains the GPU. In some
/// logs, such a sentence is one record. In others, each of its lines is a separate record.
pub fn read<'r>(records: impl IntoIterator<Item = &'r str>) -> Vec<Message> {
    let mut last = None;
    let mut crash = false;
    let mut found = Vec::new();
    for record in records {
        // A kernel warning also has a code location, but no crash count (`[#1]`).
        crash |= is_crash(record);
        if crash && let Some(place) = place_of_code(record) {
            crash = false;
            found.extend(place.map(|module| Message::Crashed { module }));
        }
        for line in lines(record) {
            if is_sentence(line) {
                last = line.split([' ', ',']).find_map(address);
            }
            found.extend(message(line, last));
            found.extend(row(line));
            found.extend(cause(line));
        }
    }
    found
}

/// Splits a record into lines if it is a driver sentence, because driver sentences contain no user text. Every other record is
/// one message, whatever it contains. In a record, rsyslog writes a newline as `#012` and Talos as `\x0a`.
fn lines(record: &str) -> Vec<&str> {
    if !is_sentence(record) {
        return vec![record];
    }
    (record.split('\n'))
        .flat_map(|part| part.split("#012"))
        .flat_map(|part| part.split("\\x0a"))
        .map(str::trim_start)
        .collect()
}

/// Whether a message starts a driver sentence about a device.
fn is_sentence(message: &str) -> bool {
    message.starts_with("NVRM: The NVIDIA ") || message.starts_with("NVRM: This PCI ")
}

/// Whether a message is the first line of a crash that kills a task: `Oops: 0000 [#1] SMP NOPTI`, `general protection fault, …
/// 0000 [#1]`, `Internal error: Oops: 96000004 [#1]`. The kernel counts these (Linux `__die_header` in
/// arch/x86/kernel/dumpstack.c, `__die` in arch/arm64/kernel/traps.c).
fn is_crash(message: &str) -> bool {
    let is =
        |text: &str, digit: fn(&u8) -> bool| !text.is_empty() && text.bytes().all(|b| digit(&b));
    message.split_once(" [#").is_some_and(|(before, rest)| {
        // The error code precedes the count. In a message with user text, other characters precede it.
        let plain = |b: u8| b.is_ascii_alphanumeric() || b" ,:-_".contains(&b);
        let (why, code) = before.rsplit_once(": ").unwrap_or_default();
        let (count, build) = rest.split_once(']').unwrap_or_default();
        // After the count, the kernel adds only build options. A segmentation fault message begins with a program name, which
        // can imitate all text up to the count.
        let is_build = build.is_empty()
            || build.starts_with(' ')
                && (build.bytes()).all(|b| b.is_ascii_uppercase() || b" _".contains(&b));
        is_build
            && why.bytes().all(plain)
            && is(code, u8::is_ascii_hexdigit)
            && is(count, u8::is_ascii_digit)
    })
}

/// Parses a code location: `RIP: 0010:uvm_thread_context_remove+0x39/0x50 [nvidia_uvm]`, or `pc : …` on aarch64. The prefix
/// 0033 marks user-space code. Returns the NVIDIA driver module of the location, or `Some(None)` for another location.
fn place_of_code(message: &str) -> Option<Option<String>> {
    let place = ["RIP: 0010:", "RIP: 0033:", "pc : "]
        .iter()
        .find_map(|mark| message.strip_prefix(mark))?;
    let symbol = span(place, |b| b.is_ascii_alphanumeric() || b"_.".contains(&b));
    let (symbol, rest) = place.split_at(symbol);
    if symbol.starts_with("0x") {
        return Some(None);
    }
    // `+0x39/0x50`
    let offset = span(rest, |b| b.is_ascii_hexdigit() || b"+x/".contains(&b));
    let (offset, rest) = rest.split_at(offset);
    if !offset.starts_with("+0x") || !offset.contains("/0x") {
        return None;
    }
    let module = rest
        .strip_prefix(" [")
        .and_then(|rest| rest.split_once(']'));
    Some(module.and_then(|(module, _)| {
        let rest = module.strip_prefix("nvidia")?;
        let is_ours = rest.is_empty()
            || rest.starts_with('_') && rest.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
        is_ours.then(|| module.to_owned())
    }))
}

/// Parses the suffix of `Xid (PCI:0000:dc:00): 45, pid=1, name=python3, Ch 00000001 caused by previous Xid 149`. A program name
/// cannot imitate it, because it is the end of the message.
fn cause(message: &str) -> Option<Message> {
    let (text, cause) = message.rsplit_once(" caused by previous Xid ")?;
    let code = number(cause).filter(|_| cause.bytes().all(|b| b.is_ascii_digit()))?;
    let Message::Xid { gpu, .. } = self::message(text, None)? else {
        return None;
    };
    Some(Message::Cause { gpu, code })
}

/// Returns the library version of a program: `the client has the version 570.148.08, but`. Newer drivers print the program
/// first and start the next line with `has the version`. The program chooses this text.
fn version_of_client(said: &str) -> Option<String> {
    let (_, rest) = said.split_once("has the version ")?;
    let (version, _) = rest.split_once(", but")?;
    let version: DriverVersion = version.parse().ok()?;
    Some(version.to_string())
}

/// Parses one line. `None` if the message is unknown. `last` is the GPU in an earlier line of the same sentence.
fn message(line: &str, last: Option<PciAddress>) -> Option<Message> {
    let (found, maker) =
        (PATTERNS.iter()).find_map(|(pattern, maker)| Some((pattern.matches(line)?, maker)))?;
    maker(&Matched { last, ..found })
}

/// Creates the message of a line, or returns `None` if the rest of the line has another format.
type Maker = fn(&Matched<'_>) -> Option<Message>;

/// The recognized messages, with their patterns. The driver texts are from NVIDIA/open-gpu-kernel-modules (tags 515.43.04 to
/// 595.45.04) and from bug reports.
#[rustfmt::skip]
const MESSAGES: &[(&[&str], Maker)] = &[
    // Very old drivers wrote the address without `PCI:`.
    (&["NVRM: Xid (PCI:<address>"], xid),
    (&["NVRM: Xid (<address>"], xid),
    (&["nvidia-nvswitch<number>: SXid (PCI:<address>): "], sxid),
    (&["NVRM: API mismatch: the client "], other_version),
    (&["NVRM: has the version "], other_version),
    (&["NVRM: GPU at <address> has fallen off the bus"], |it| Some(Message::FellOffBus { gpu: it.at })),
    (&["NVRM: GPU <address>: GPU has fallen off the bus"], |it| Some(Message::FellOffBus { gpu: it.at })),
    (&["NVRM: GPU has fallen off the bus"], |_| Some(Message::FellOffBus { gpu: None })),
    // Later lines of sentences such as `The NVIDIA GPU 0000:01:00.0 (PCI ID: 10de:26b5) installed in this system …`.
    (&["NVRM: fallen off the bus"], |it| Some(Message::FellOffBus { gpu: it.last })),
    (&["NVRM: system has fallen off the bus"], |it| Some(Message::FellOffBus { gpu: it.last })),
    (&["NVRM: installed in this system has fallen off the bus"], |it| Some(Message::FellOffBus { gpu: it.last })),
    (&["NVRM: installed in this system requires use of the NVIDIA open kernel modules"], |it| Some(Message::NeedsOpen { gpu: it.last })),
    (&["NVRM: nvidia.ko because it does not include the required GPU"], |it| Some(Message::NeedsProprietary { gpu: it.last })),
    (&["NVRM: installed in this system is not supported by the"], |it| Some(Message::Unsupported { gpu: it.last })),
    (&["NVRM: supported through the NVIDIA "], legacy),
    (&["NVRM:  supported through the NVIDIA "], legacy),
    (&["NVRM: BAR<number> is 0M @ 0x0 (PCI:<address>)"], no_window),
    // First lines of sentences.
    (&["NVRM: The NVIDIA "], |_| None),
    (&["NVRM: This PCI I/O region assigned to your NVIDIA device is invalid"], |_| None),
    (&["NVRM: GPU <address>: RmInitAdapter failed"], |it| Some(Message::NotStarted { gpu: it.at })),
    (&["NVRM: GPU <address>: rm_init_adapter failed"], |it| Some(Message::NotStarted { gpu: it.at })),
    (&["NVRM: RmInitAdapter failed"], |_| Some(Message::NotStarted { gpu: None })),
    (&["NVRM: rm_init_adapter failed"], |_| Some(Message::NotStarted { gpu: None })),
    (&["NVRM: <function>: No firmware image found"], |_| Some(Message::NoFirmware { file: None, code: None })),
    (&["NVRM: <function>: Assertion failed: ", "[NV_ERR_RESET_REQUIRED]"], |_| Some(Message::ResetRequired)),
    (&["NVRM: <function>: Assertion failed: ", "GPU marked for reset"], |_| Some(Message::ResetRequired)),
    (&["NVRM: <function>: Assertion failed: GPU marked for reset"], |_| Some(Message::ResetRequired)),
    (&["NVRM: <function>: Check failed: ", "[NV_ERR_RESET_REQUIRED]"], |_| Some(Message::ResetRequired)),
    // nvstatuscodes.h: "GPU lost from the bus".
    (&["NVRM: <function>: Assertion failed: ", "[NV_ERR_GPU_IS_LOST]"], |_| Some(Message::Lost)),
    (&["NVRM: <function>: Check failed: ", "[NV_ERR_GPU_IS_LOST]"], |_| Some(Message::Lost)),
    // `nvGpuOpsReportFatalError`.
    (&["NVRM: <function>: uvm encountered global fatal error"], |_| Some(Message::RebootRequired)),
    // Linux drivers/base/dd.c, really_probe. The second form is used before 6.5.
    (&["nvidia <address>: probe with driver nvidia failed with error"], |it| Some(Message::ProbeFailed { gpu: it.at })),
    (&["nvidia: probe of <address> failed with error"], |it| Some(Message::ProbeFailed { gpu: it.at })),
    (&["nvidia <address>: Direct firmware load for nvidia/", "failed with error -"], no_firmware),
    // `pci 0000:14:00.0: BAR 1: no space for [mem size …]`, and since Linux 6.9 `BAR 1 [mem size …]: can't assign; no space`.
    (&["<driver> <address>: BAR <number>", "no space"], no_window),
    (&["<driver> <address>: BAR <number>", "failed to assign"], no_window),
    (&["<driver> <address>: BAR <number>", "can't assign"], no_window),
];

/// Parses `NVRM: Xid (PCI:0000:18:00): 79, pid=…`. Errors of MIG devices also contain the instance: ` GPU-I:05`.
fn xid(it: &Matched<'_>) -> Option<Message> {
    let instance = span(it.rest, |b| {
        b.is_ascii_alphanumeric() || b" :-".contains(&b)
    });
    let rest = it.rest[instance..].strip_prefix("): ")?;
    let code = number(rest)?;
    // `pid=1, name=python, ` precedes the driver text, and the user chooses the name.
    if code == 154
        && let Some((_, change)) = rest.rsplit_once("GPU recovery action changed from 0x")
        && let Some((_, to)) = change.split_once(" to 0x")
    {
        let digits = to.split(|c: char| !c.is_ascii_hexdigit()).next()?;
        let action = Recovery::of(u32::from_str_radix(digits, 16).ok()?)?;
        return Some(Message::Recovery { gpu: it.at, action });
    }
    // `149, NETIR_LINK_EVT  Nonfatal  XC0 i0 Link 08`
    let (_, text) = (rest.rsplit_once(", "))
        .filter(|(_, text)| !text.ends_with(','))
        .unwrap_or_default();
    let kind = text.split_whitespace().nth(1).unwrap_or_default();
    Some(Message::Xid {
        gpu: it.at,
        code,
        nonfatal: kind.eq_ignore_ascii_case("nonfatal") || kind.eq_ignore_ascii_case("non-fatal"),
    })
}

/// `nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up`
fn sxid(it: &Matched<'_>) -> Option<Message> {
    let word = it.rest.split(',').nth(1)?.trim();
    // Detail lines follow each error: NVIDIA/open-gpu-kernel-modules 595.45.04, error_nvswitch.c.
    let is_detail = word.starts_with("Severity ") || word.starts_with("Data {");
    Some(Message::SXid {
        switch: it.at,
        code: number(it.rest)?,
        fatal: (!is_detail).then(|| word.eq_ignore_ascii_case("fatal")),
    })
}

#[expect(clippy::unnecessary_wraps, reason = "it is a `Maker`")]
fn other_version(it: &Matched<'_>) -> Option<Message> {
    // If each line is a separate record, the second line of the sentence starts after `has the version `.
    let text = match it.rest.contains("has the version ") {
        true => it.rest.to_owned(),
        false => format!("has the version {}", it.rest),
    };
    Some(Message::OtherVersion {
        libraries: version_of_client(&text),
    })
}

/// `supported through the NVIDIA 470.xx Legacy drivers. Please`
fn legacy(it: &Matched<'_>) -> Option<Message> {
    Some(Message::Legacy {
        gpu: it.last,
        branch: number(it.rest)?,
    })
}

/// `gsp_ga10x.bin failed with error -2`
fn no_firmware(it: &Matched<'_>) -> Option<Message> {
    let (name, _) = it.rest.split_once(' ')?;
    let (_, code) = it.rest.split_once("failed with error -")?;
    Some(Message::NoFirmware {
        file: Some(format!("nvidia/{name}")),
        code: number(code).filter(|code| *code != ENOENT),
    })
}

/// Ignores `BAR 6` and higher, which are the expansion ROM and the windows of bridges and virtual functions, and I/O port
/// windows, because the driver does not need them.
fn no_window(it: &Matched<'_>) -> Option<Message> {
    let bar = it.number.filter(|bar| *bar < 6)?;
    (!it.rest.contains("[io")).then_some(Message::NoWindow { gpu: it.at, bar })
}
/// The error code of a missing file.
const ENOENT: u32 = 2;

/// Parses the number at the start of a text.
fn number(text: &str) -> Option<u32> {
    let digits = text.split(|c: char| !c.is_ascii_digit()).next()?;
    digits.parse().ok()
}

/// Parses `0000:18:00.0`, `0000:18:00` without a function, or `18:00.0` without a domain.
fn address(word: &str) -> Option<PciAddress> {
    let word = word.trim_end_matches([':', '.', ')']);
    match word.matches(':').count() {
        2 => (word.parse().ok()).or_else(|| format!("{word}.0").parse().ok()),
        1 => word.parse().ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::text::reads_any_text;

    #[test]
    fn driver_messages_are_parsed() {
        // Each line is a record. An indented line continues a record.
        let read = |text: &str| {
            let text: String = (text.lines())
                .map(|line| match line.starts_with(' ') {
                    true => format!("{line}\n"),
                    false => format!("[    1.000000] {line}\n"),
                })
                .collect();
            read(records(&text).iter().map(String::as_str))
        };
        let gpu = |text: &str| text.parse().ok();
        let xid = |place: &str, code, nonfatal| Message::Xid {
            gpu: gpu(place),
            code,
            nonfatal,
        };
        let crashed = |module: &str| Message::Crashed {
            module: module.to_owned(),
        };
        let other_version = |version: Option<&str>| Message::OtherVersion {
            libraries: version.map(str::to_owned),
        };
        for (text, wanted) in rows! {
            "NVRM: Xid (PCI:0000:3b:00): 43, pid=1234, name=python, Ch 00000002",
                vec![xid("0000:3b:00.0", 43, false)];
            "NVRM: Xid (PCI:0000:41:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
                vec![xid("0000:41:00.0", 79, false)];
            "NVRM: Xid (PCI:0000:3b:00 GPU-I:05): 94, pid=7194, name=python, Contained: SM",
                vec![xid("0000:3b:00.0", 94, false)];
            "NVRM: Xid (PCI:0018:01:00): 149, NETIR_LINK_EVT  Nonfatal  XC0 i0 Link 08 (0x004505c6)",
                vec![xid("0018:01:00.0", 149, true)];
            "NVRM: Xid (PCI:0000:66:00): 145, RLW_REMAP Fatal XC1 i0 Link 04 (0x004505c6)",
                vec![xid("0000:66:00.0", 145, false)];
            "NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)",
                vec![Message::Recovery { gpu: gpu("0000:01:00.0"), action: Recovery::Reboot }];
            "NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)",
                vec![Message::Recovery { gpu: gpu("0000:01:00.0"), action: Recovery::None }];
            "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
                vec![Message::SXid { switch: gpu("0000:c1:00.0"), code: 20034, fatal: Some(true) }];
            "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error (First)",
                vec![Message::SXid { switch: gpu("0000:05:00.0"), code: 12028, fatal: Some(false) }];
            "nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 22013, Severity 0 Engine instance 44 Sub-engine instance 00\nnvidia-nvswitch3: SXid (PCI:0000:04:00.0): 22013, Data {0x0000002c, 0x0000002c, 0x00000000}",
                vec![Message::SXid { switch: gpu("0000:04:00.0"), code: 22013, fatal: None }; 2];
            "NVRM: GPU at 0000:01:00.0 has fallen off the bus.",
                vec![Message::FellOffBus { gpu: gpu("0000:01:00.0") }];
            "NVRM: GPU 0000:02:00.0: RmInitAdapter failed! (0x24:0x65:1185)",
                vec![Message::NotStarted { gpu: gpu("0000:02:00.0") }];
            "NVRM: GPU 0000:02:00.0: rm_init_adapter failed, device minor number 0",
                vec![Message::NotStarted { gpu: gpu("0000:02:00.0") }];
            "NVRM: The NVIDIA GPU 0000:01:00.0 (PCI ID: 10de:2901)\nNVRM: installed in this system requires use of the NVIDIA open kernel modules.",
                vec![Message::NeedsOpen { gpu: gpu("0000:01:00.0") }];
            "NVRM: nvidia.ko because it does not include the required GPU",
                vec![Message::NeedsProprietary { gpu: None }];
            "NVRM: The NVIDIA GPU 0000:01:00.0 (PCI ID: 10de:2331)\n  NVRM: installed in this system is not supported by open\n  NVRM: nvidia.ko because it does not include the required GPU\nnvidia: probe of 0000:01:00.0 failed with error -1",
                vec![
                    Message::NeedsProprietary {
                        gpu: gpu("0000:01:00.0"),
                    },
                    Message::ProbeFailed {
                        gpu: gpu("0000:01:00.0"),
                    },
                ];
            "pci 0000:c1:00.0: BAR 5: failed to assign [io  size 0x0080]", vec![];
            "nvidia 0000:01:00.0: probe with driver nvidia failed with error -1",
                vec![Message::ProbeFailed { gpu: gpu("0000:01:00.0") }];
            "NVRM: The NVIDIA GeForce GTX 760 GPU installed in this system is\nNVRM:  supported through the NVIDIA 470.xx Legacy drivers. Please",
                vec![Message::Legacy { gpu: None, branch: 470 }];
            "NVRM: This PCI I/O region assigned to your NVIDIA device is invalid:\n  NVRM: BAR1 is 0M @ 0x0 (PCI:0000:14:00.0)",
                vec![Message::NoWindow { gpu: gpu("0000:14:00.0"), bar: 1 }];
            "pci 0000:14:00.0: BAR 1: no space for [mem size 0x2000000000 64bit pref]",
                vec![Message::NoWindow { gpu: gpu("0000:14:00.0"), bar: 1 }];
            "pci 0000:14:00.0: BAR 1 [mem size 0x2000000000 64bit pref]: can't assign; no space",
                vec![Message::NoWindow { gpu: gpu("0000:14:00.0"), bar: 1 }];
            "pci 0000:00:1c.0: BAR 13: no space for [io  size 0x1000]", vec![];
            "nvidia 0000:01:00.0: Direct firmware load for nvidia/580.95.05/gsp_ga10x.bin failed with error -2",
                vec![Message::NoFirmware {
                    file: Some("nvidia/580.95.05/gsp_ga10x.bin".to_owned()),
                    code: None,
                }];
            "nvidia 0000:01:00.0: Direct firmware load for nvidia/570.172.08/gsp_ga10x.bin failed with error -4",
                vec![Message::NoFirmware {
                    file: Some("nvidia/570.172.08/gsp_ga10x.bin".to_owned()),
                    code: Some(4),
                }];
            "NVRM: The NVIDIA GPU 0000:b3:00.0\n  NVRM: (PCI ID: 10de:26b5) installed in this system has\n  NVRM: fallen off the bus and is not responding to commands.",
                vec![Message::FellOffBus { gpu: gpu("0000:b3:00.0") }];
            "NVRM: The NVIDIA GPU 0000:02:00.0 (PCI ID: 10de:1d13)\nNVRM: installed in this\nNVRM: system has fallen off the bus and is not responding",
                vec![Message::FellOffBus { gpu: gpu("0000:02:00.0") }];
            "NVRM: GPU has fallen off the bus.", vec![Message::FellOffBus { gpu: None }];
            "NVRM: The NVIDIA GPU 0000:af:00.0 (PCI ID: 10de:1db5)#012NVRM: installed in this system is not supported by open#012NVRM: nvidia.ko because it does not include the required GPU#012NVRM: System Processor (GSP).",
                vec![Message::NeedsProprietary { gpu: gpu("0000:af:00.0") }];
            "NVRM: The NVIDIA GPU 0000:00:10.0 (PCI ID: 10de:1b38)\\x0aNVRM: installed in this system is not supported by the\\x0aNVRM: NVIDIA 535.54.03 driver release.",
                vec![Message::Unsupported { gpu: gpu("0000:00:10.0") }];
            "NVRM: Xid (PCI:0000:dc:00): 45, pid=1818990, name=python3, Ch 00000001 caused by previous Xid 149",
                vec![
                    xid("0000:dc:00.0", 45, false),
                    Message::Cause {
                        gpu: gpu("0000:dc:00.0"),
                        code: 149,
                    },
                ];
            "NVRM: nvAssertOkFailedNoLog: Assertion failed: Reset required [NV_ERR_RESET_REQUIRED] (0x00000062) returned from status @ kernel_channel.c:2827",
                vec![Message::ResetRequired];
            "NVRM: nvAssertFailedNoLog: Assertion failed: Back to back GSP RPC timeout detected! GPU marked for reset @ kernel_gsp.c:2387",
                vec![Message::ResetRequired];
            "NVRM: nvGpuOpsReportFatalError: uvm encountered global fatal error 0x60, requiring os reboot to recover.",
                vec![Message::RebootRequired];
            "NVRM: nvAssertOkFailedNoLog: Assertion failed: GPU lost from the bus [NV_ERR_GPU_IS_LOST] (0x0000000F) returned from rmStatus @ kernel_ce_gv100.c:106",
                vec![Message::Lost];
            "general protection fault, probably for non-canonical address 0x25b5f6bb1a24827e: 0000 [#1] SMP NOPTI\nCPU: 5 PID: 4410 Comm: nvidia-device-p\nRIP: 0010:uvm_thread_context_remove+0x39/0x50 [nvidia_uvm]\nRIP: 0033:0x7f8079a2d67b",
                vec![crashed("nvidia_uvm")];
            "Internal error: Oops: 0000000096000004 [#1] SMP\npc : nv_open_device+0x1c/0x90 [nvidia]",
                vec![crashed("nvidia")];
            "Oops: 0002 [#1] SMP\nRIP: 0010:ext4_readdir+0x1/0x2 [ext4]\nRIP: 0010:rm_ioctl+0x66/0x4f0 [nvidia]",
                vec![];
            "WARNING: CPU: 11 PID: 91377 at nvidia/nv.c:5461 nvidia_dev_put_uuid+0x1a4/0x1e0 [nvidia]\nRIP: 0010:nvidia_dev_put_uuid+0x1a4/0x1e0 [nvidia]",
                vec![];
            // A count without a code, a word with the same ending, and user-space code.
            "worker [#3] started\nRIP: 0010:nvidia_dev_put_uuid+0x1a4/0x1e0 [nvidia]", vec![];
            "Internal error: Oops: 96000004 [#1] SMP\nrpc : nv_open+0x1/0x2 [nvidia]", vec![];
            "Oops: 0000 [#1] SMP\nRIP: 0033:0x7f80\nRIP: 0010:nvidia_dev_put_uuid+0x1a4/0x1e0 [nvidia]", vec![];
            "Oops: general protection fault, maybe for address 0x1: 0000 [#1] SMP\nRIP: 0010:nv_open+0x1/0x2 [nvidia]",
                vec![crashed("nvidia")];
            "Oops: 0000 [#1] SMP\nRIP: 0010:nvidiafb_probe+0x1/0x2 [nvidiafb]", vec![];
            "NVRM: nvAssertFailedNoLog: Assertion failed: (status == NV_OK) || (status == NV_ERR_GPU_IN_FULLCHIP_RESET) @ rs_client.c:844",
                vec![];
            "NVRM: API mismatch: the client has the version 535.247.01, but#012NVRM: this kernel module has the version 530.30.02.  Please",
                vec![other_version(Some("535.247.01"))];
            "NVRM: API mismatch: the client has the version <b>call me</b>, but", vec![other_version(None)];
            "NVRM: API mismatch: the client 'nvidia-smi' (pid 1042)\nNVRM: has the version 575.57.08, but this kernel module has\nNVRM: the version 570.133.20.  Please make sure",
                vec![other_version(None), other_version(Some("575.57.08"))];
            // All lines of a record are parsed, because the client chooses only the version in it.
            "NVRM: API mismatch: the client 'nvidia-smi' (pid 1042)\n NVRM: has the version 575.57.08, but this kernel module has",
                vec![other_version(Some("575.57.08"))];
            "NVRM: GPU0 nvAssertOkFailedNoLog: Assertion failed: Reset required [NV_ERR_RESET_REQUIRED] (0x00000062) returned",
                vec![Message::ResetRequired];
            "NVRM: Xid (PCI:0000:01:00): 154, pid=7, name=python, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
                vec![Message::Recovery { gpu: gpu("0000:01:00.0"), action: Recovery::Reset }];
            "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  580.105.08", vec![];
            "nouveau 0000:01:00.0: NVIDIA GA102", vec![];
            "NVRM: Xid (PCI:0000:3b:00): x", vec![];
            "", vec![];
        } {
            assert_eq!(read(text), wanted, "{text}");
        }
    }

    #[test]
    fn table_lines_are_parsed_with_their_devices() {
        for (text, kind, place) in rows! {
            "Loading of module with unavailable key is rejected", Kind::Load, None;
            "Lockdown: insmod: unsigned module loading is restricted; see man kernel_lockdown.7", Kind::Load,
                None;
            "NVRM: GPU0 kgspBootstrap_GH100: GSP-FMC reported an error while attempting to boot GSP: 0xb",
                Kind::Start, None;
            "nvidia: version magic '5.4.18-100.fc30.x86_64 SMP mod_unload ' should be '5.4.18-200.fc31.x86_64 SMP mod_unload '",
                Kind::Load, None;
            "NVRM: GPU 0000:41:00.0: GPU does not have the necessary power cables connected.",
                Kind::Start, Some("0000:41:00.0");
            "NVRM: kgspBootstrap_GH100: GSP-FMC reported an error while attempting to boot GSP: 0xb",
                Kind::Start, None;
            "nvidia-nvswitch: Version mismatch, kernel version 450.80.02 user version 450.51.06",
                Kind::Beside, None;
            "nvidia_peermem: Unknown symbol ib_register_peer_memory_client (err -2)", Kind::Beside,
                None;
            "nvidia_modeset: Unknown symbol __acpi_video_get_backlight_type (err -2)",
                Kind::Beside, None;
            "NVRM: Attempting to remove device 0000:8a:00.0 with non-zero usage count!", Kind::Beside,
                Some("0000:8a:00.0");
            "watchdog: BUG: soft lockup - CPU#20 stuck for 26s! [UVM GPU1 BH:6142]", Kind::Beside,
                None;
            "audit: type=1400 audit(1691186980.587:9501): avc:  denied  { module_load } for  pid=1 comm=\"modprobe\" path=\"/usr/lib/modules/6.12.0/updates/nvidia.ko.zst\" tclass=system permissive=0",
                Kind::Load, None;
            "audit: type=1400 audit(1684465329.146:351): avc:  denied  { read write } for  pid=4412 comm=\"python\" name=\"nvidiactl\" dev=\"devtmpfs\" ino=901 scontext=system_u:system_r:container_t:s0:c380,c597 tcontext=system_u:object_r:xserver_misc_device_t:s0 tclass=chr_file permissive=0",
                Kind::Beside, None;
            "NVRM: Can't find an IRQ for your NVIDIA card!", Kind::Start, None;
            "NVRM: nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051) returned from kgspCreateRadix3(pGpu, pKernelGsp) @ kernel_gsp.c:4502",
                Kind::Start, None;
            "NVRM: kfspSendBootCommands_GH100: FSP boot cmds failed. RM cannot boot.", Kind::Start,
                None;
            "NVRM kfspSendBootCommands_GH100: FSP boot cmds failed. RM cannot boot.", Kind::Start,
                None;
            "pci 0000:01:00.0: Unable to change power state from D3cold to D0, device inaccessible",
                Kind::Start, Some("0000:01:00.0");
            "nvidia 0000:01:00.0: can't change power state from D3cold to D0 (config space inaccessible)",
                Kind::Start, Some("0000:01:00.0");
            "nvidia 0000:03:00.0: AER: can't recover (no error_detected callback)", Kind::Bus,
                Some("0000:03:00.0");
            "nvidia 0000:07:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x0003 address=0x80000040 flags=0x0020]",
                Kind::Iommu, Some("0000:07:00.0");
            "AMD-Vi: Event logged [IO_PAGE_FAULT device=07:00.0 domain=0x0003 address=0x80000040 flags=0x0020]",
                Kind::Iommu, Some("0000:07:00.0");
            "DMAR: [DMA Read NO_PASID] Request device [81:00.0] fault addr 0xffe00000 [fault reason 0x06] PTE Read access is not set",
                Kind::Iommu, Some("0000:81:00.0");
        } {
            let [Message::Line { at, row }] = &read([text])[..] else {
                panic!("{text}");
            };
            assert_eq!(row.kind, kind, "{text}");
            let wanted = place.and_then(|place: &str| place.parse().ok());
            assert_eq!(*at, wanted, "{text}");
        }
        // A line with an Xid number is also reported as an Xid.
        let line = "NVRM: Xid (PCI:0002:00:00): 78, pid=1410, name=nvidia-smi, Guest driver is incompatible with host driver";
        let [
            Message::Xid { code: 78, .. },
            Message::Line { at: Some(at), row },
        ] = &read([line])[..]
        else {
            panic!("{line}");
        };
        assert_eq!(
            (at.to_string().as_str(), row.kind),
            ("0002:00:00.0", Kind::Start)
        );
        // Ignore messages without an address, because the device may not be a GPU.
        assert!(read(["AER: can't recover (no error_detected callback)"]).is_empty());
        assert!(TABLE.iter().all(|row| {
            let device = matches!(row.kind, Kind::Bus | Kind::Iommu);
            row.why.contains("{}") == device && !row.lines.is_empty()
        }));
    }

    /// Kernel messages with user-controlled text that imitates real messages.
    const FORGED: [&str; 18] = [
        // The path of an overlay mount.
        "overlayfs: failed to resolve '/x NVRM: Xid (PCI:0000:19:00): 79 GPU has fallen off the bus.': -2",
        "overlayfs: failed to resolve '/x NVRM: Xid (PCI:0000:19:00): 154 GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)': -2",
        "overlayfs: failed to resolve '/x NVRM: GPU 0000:19:00.0: RmInitAdapter failed! (0x22:0x56:763)': -2",
        "overlayfs: failed to resolve '/x Loading of unsigned module is rejected': -2",
        "overlayfs: failed to resolve '/x nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30': -2",
        // The same with a newline in the path, as written by journald, rsyslog and Talos.
        "overlayfs: failed to resolve '/x\nNVRM: Xid (PCI:0000:19:00): 79, GPU has fallen off the bus.': -2",
        "overlayfs: failed to resolve '/x#012NVRM: Xid (PCI:0000:19:00): 79, GPU has fallen off the bus.': -2",
        "overlayfs: failed to resolve '/x\\x0aNVRM: Xid (PCI:0000:19:00): 79, GPU has fallen off the bus.': -2",
        // The name of a program and the path of its file.
        "NVRM: a[77]: segfault at 0 ip 0000000000401000 sp 00007ffd error 4 in GPU 0000:19:00.0 has fallen off the bus[401000+1000]",
        "NVRM: Xid (PCI:[77]: segfault at 0 ip 0000000000401000 sp 00007ffd error 4 in 0000:19:00): 79, x[401000+1000]",
        "NVRM: f: Asser[77]: segfault at 0 ip 0000000000401000 sp 00007ffd error 4 in [NV_ERR_RESET_REQUIRED][401000+1000]",
        "Lockdown: x[77]: segfault at 0 ip 0000000000401000 sp 00007ffd error 4 in : unsigned module loading is restricted[401000+1000]",
        "nvidia 0000:19:[77]: segfault at 0 ip 0000000000401000 sp 00007ffd error 4 in probe failed with error -1[401000+1000]",
        "x 0000:19:00.0:[77]: segfault at 0 ip 0000000000401000 sp 00007ffd error 4 in BAR 1: no space[401000+1000]",
        // The version that a client reports. The driver prints it unchanged.
        "NVRM: API mismatch: the client 'x' (pid 7)\nNVRM: has the version \nNVRM: Xid (PCI:0000:19:00): 79, , but this kernel module has",
        "NVRM: API mismatch: the client 'x' (pid 7)#012NVRM: has the version #012NVRM: GPU has fallen off the bus., but this kernel module has",
        "NVRM: API mismatch: the client has the version GPU has fallen off the bus, but\nNVRM: this kernel module has the version",
        "audit: type=1326 audit(1.2:3): auid=1000 comm=\"x\" exe=\"/avc:  denied  { module_load } for nvidia permissive=0\"",
    ];

    #[test]
    fn user_text_does_not_forge_messages() {
        for text in FORGED {
            let messages = read([text]);
            // A client may report any version.
            let is_claim = |one: &Message| *one == Message::OtherVersion { libraries: None };
            assert!(messages.iter().all(is_claim), "{text}: {messages:?}");
            assert_eq!(messages.len(), usize::from(text.contains("API mismatch")));
        }
        // A kernel crash has two lines. Programs can write neither.
        for text in [
            "x[77]: segfault at 0 ip 1 sp 2 error 4 in a: 0000 [#1]\nRIP: 0010:nv_open+0x1/0x2 [nvidia]",
            "a: 0 [#1][77]: segfault at 0 ip 1 sp 2 error 4 in x\nRIP: 0010:nv_open+0x1/0x2 [nvidia]",
            "Oops: 0000 [#1] SMP\nRIP: 0010:a+0x1[77]: segfault at 0 ip 1 sp 2 error 4 in x [nvidia]",
        ] {
            assert!(read(text.lines()).is_empty(), "{text}");
        }
    }

    #[test]
    fn program_name_does_not_change_errors() {
        let xid = |text: &str| read([format!("NVRM: Xid (PCI:0000:18:00): {text}").as_str()]);
        let real = xid("48, pid=7, name=python, DBE");
        for name in [
            "Nonfatal",
            "a, b Nonfatal",
            "x): 43, y",
            "NVRM: Xid (PCI:",
            "a#012b",
            "\n",
        ] {
            assert_eq!(xid(&format!("48, pid=7, name={name}, DBE")), real, "{name}");
        }
        assert_eq!(xid("48, pid=7, name=a, b Nonfatal,"), real);
        let reset = "154, pid=7, name=\n, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)";
        assert!(matches!(
            xid(reset)[..],
            [Message::Recovery {
                action: Recovery::Reset,
                ..
            }]
        ));
        // The driver appends the cause to the message.
        let cause = " caused by previous Xid ";
        assert_eq!(xid(&format!("48, pid=7, name={cause}79, DBE")), real);
        assert_eq!(xid(&format!("45, pid=7, name=x, Ch 1{cause}149")).len(), 2);
    }

    #[test]
    fn patterns_are_longer_than_a_program_name() {
        let rows = TABLE.iter().flat_map(|row| &row.lines);
        let all: Vec<&Pattern> = (PATTERNS.iter().map(|(pattern, _)| pattern))
            .chain(rows)
            .collect();
        for pattern in all {
            let shortest = |part: &Part| match part {
                Part::Text(text) => text.len(),
                Part::Address => "18:00.0".len(),
                Part::Driver | Part::Function | Part::Number | Part::Program => 1,
            };
            let length: usize = pattern.start.iter().map(shortest).sum();
            assert!(length > PROGRAM, "{pattern:?}");
            // The text after a program name must be longer than a program name can be, so that no name contains it.
            for (index, part) in pattern.start.iter().enumerate() {
                let next = pattern.start.get(index + 1);
                let bounded = matches!(next, Some(Part::Text(text)) if text.len() > PROGRAM);
                assert!(*part != Part::Program || bounded, "{pattern:?}");
            }
            // The message text matches only at the start.
            let example: String = (pattern.start.iter())
                .map(|part| match part {
                    Part::Text(text) => text,
                    Part::Address => "0000:18:00.0",
                    Part::Driver => "pci",
                    Part::Function => "GPU0 f_1",
                    Part::Number => "1",
                    Part::Program => "insmod",
                })
                .chain(pattern.later.iter().map(String::as_str))
                .collect();
            assert!(pattern.matches(&example).is_some(), "{example}");
            for before in [
                " ",
                "x ",
                "overlayfs: failed to resolve '/",
                "x[77]: segfault at 0 in ",
            ] {
                assert!(
                    pattern.matches(&format!("{before}{example}")).is_none(),
                    "{example}"
                );
            }
        }
    }

    #[test]
    fn journal_filter_matches_message_starts() {
        let cmd = journal().cmd().clone();
        let find = |start: &str| cmd.args.iter().find_map(|arg| arg.strip_prefix(start));
        let expression = find("--grep=").unwrap();
        assert!(
            expression.starts_with("^(") && expression.ends_with(')'),
            "{expression}"
        );
        for part in [
            "|NVRM: Xid \\(PCI:([0-9a-f]+:)?",
            "|Loading of unsigned module is rejected|",
            "|nvidia: version magic \\'.*\\' should be \\'|",
            "Linux version ",
            "|RIP: 00(10|33):",
            "|Lockdown: .{1,15}: unsigned",
        ] {
            assert!(expression.contains(part), "{part}: {expression}");
        }
        assert_eq!(find("--output="), Some("json"));
        assert!(find("--dmesg").is_some() && find("SYSLOG_FACILITY=0").is_some());
    }

    #[test]
    fn journal_record_is_one_message() {
        let output = concat!(
            "{\"__CURSOR\":\"s=1\",\"MESSAGE\":\"Linux version 6.1\"}\n",
            "{\"MESSAGE\":\"overlayfs: failed to resolve '/x\\nNVRM: Xid (PCI:0000:19:00): 79, x': -2\"}\n",
            // An unprintable name does not hide an error.
            "{\"MESSAGE\":[78,86,82,77,58,32,88,105,100,255]}\n",
            "{\"MESSAGE\":null}\n",
            "[… 12 bytes left out …]\n",
            "{\"_BOOT_ID\":\"1\"}\n",
        );
        assert_eq!(
            records_of_journal(output),
            [
                "Linux version 6.1",
                "overlayfs: failed to resolve '/x\nNVRM: Xid (PCI:0000:19:00): 79, x': -2",
                "NVRM: Xid\u{fffd}"
            ]
        );
    }

    #[test]
    fn only_kernel_lines_are_records() {
        for (line, message) in rows! {
            "[12345.678] NVRM: x", Some("NVRM: x");
            "[    0.000000] NVRM: x", Some("NVRM: x");
            "[    0.000000] kernel: NVRM: x", Some("NVRM: x");
            "[    0.000000] [ T1234] NVRM: x", Some("NVRM: x");
            "Nov 25 15:40:58 node kernel: [159259.98] NVRM: x", Some("NVRM: x");
            "Nov  5 15:40:58 node kernel: NVRM: x", Some("NVRM: x");
            "2026-09-11T02:11:00+00:00 node kernel: NVRM: x", Some("NVRM: x");
            "2026-09-11T02:11:00.123456+02:00 node kernel: [ 1.0] NVRM: x", Some("NVRM: x");
            "NVRM: x", None;
            "kernel: NVRM: x", None;
            "node kernel: NVRM: x", None;
            "Nov 25 15:40:58 node joe: kernel: NVRM: x", None;
            "Nov 25 15:40:58 node joe[7]: x kernel: NVRM: x", None;
            "2026-09-11T02:11:00+00:00 node joe: kernel: NVRM: x", None;
            "[x] NVRM: x", None;
            "", None;
        } {
            let wanted: Vec<&str> = message.into_iter().collect();
            assert_eq!(records(line), wanted, "{line}");
        }
        // The output of `dmesg` for a message with newlines. An indented line after a program's line is not a message.
        let text = "[  1.0] overlayfs: '/x\n        [  1.0] NVRM: y\nother\n  NVRM: z\n";
        assert_eq!(records(text), ["overlayfs: '/x\n        [  1.0] NVRM: y"]);
    }

    #[test]
    fn only_the_last_boot_of_a_file_is_used() {
        let of = |text: &str| last_boot(&records(text)).to_vec();
        let head = "Aug 14 09:00:01 node kernel: ";
        let text = format!(
            "{head}Linux version 6.1\n{head}old\n{head}Linux version 6.8 (x) y\n{head}new\n"
        );
        assert_eq!(of(&text), ["Linux version 6.8 (x) y", "new"]);
        // User text does not start a boot.
        for forged in [
            "overlayfs: failed to resolve '/x Linux version 6.8 (x)': -2",
            "Linux version 6 invoked oom-killer: gfp_mask=0x1",
            "Linux version 6[7]: segfault at 0",
        ] {
            assert_eq!(of(&format!("{head}a\n{head}{forged}\n")), ["a", forged]);
        }
    }

    reads_any_text!(
        "(NVRM: |Xid \\(PCI:|SXid \\(|0000:3b:00|\\): |79|, |: BAR |\n|.)*",
        |text| read([&*text]); read(last_boot(&records(&text)).iter().map(String::as_str)); records_of_journal(&text)
    );
}
