//! The messages of the kernel, and those of NVIDIA's driver in them.

use std::{sync::LazyLock, time::Duration};

use serde::Deserialize;

use crate::{
    host::Query,
    model::{pci::PciAddress, text::built_in, version::DriverVersion},
};

/// The time limit for reading a log, however long the machine runs.
const DEADLINE: Duration = Duration::from_secs(20);

/// The pattern that the journal is searched for, beside the lines of the table: the lines that [`read`] understands,
/// and the first line of a boot. No other line is read, because what is read may end in a recording.
const LINES: &str = "NVRM|SXid|nvidia.*(probe|firmware)|BAR [0-9].*(no space|assign)|Linux version |: [0-9a-f]+ \\[#[0-9]+\\]|RIP: 00(10|33):|^pc : ";

static TABLE: LazyLock<Vec<Line>> = LazyLock::new(|| {
    let table: Table = built_in("kernel_log").expect("the built-in table parses: a test reads it");
    table.line
});

/// What a line of the table is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// The module was not loaded.
    Load,
    /// A GPU was refused, or not started.
    Start,
    /// The PCI bus failed for a device.
    Bus,
    /// The IOMMU refused an access of a device.
    Iommu,
    /// A part beside the GPUs does not work.
    Beside,
}

/// A row of the table `kernel_log.toml`.
#[derive(Debug, PartialEq, Eq, Deserialize)]
pub struct Line {
    /// Each list has words that a line of the log must all contain; one list is enough.
    lines: Vec<Vec<String>>,
    /// What it is about.
    pub kind: Kind,
    /// The driver hung.
    #[serde(default)]
    pub hang: bool,
    /// The reason; `{}` stands for the device.
    pub why: String,
    /// What helps.
    pub remedy: String,
}

#[derive(Deserialize)]
struct Table {
    line: Vec<Line>,
}

/// Returns the row of the table for a line of the log.
fn row(line: &str) -> Option<&'static Line> {
    let is_of = |row: &&Line| {
        let all = |words: &Vec<String>| words.iter().all(|words| line.contains(words.as_str()));
        row.lines.iter().any(all)
    };
    TABLE.iter().find(is_of)
}

/// Returns the rows of the table for these messages, each with the devices that the lines name, in the order of the
/// table.
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

/// Returns how many of these messages are of a row of the table.
#[must_use]
pub fn count(messages: &[Message], row: &Line) -> usize {
    (messages.iter())
        .filter(|message| matches!(message, Message::Line { row: other, .. } if std::ptr::eq(row, *other)))
        .count()
}

/// Returns the pattern that finds the lines of the table in the journal.
fn pattern() -> String {
    let literal = |words: &String| -> String {
        let mut escaped = String::new();
        for letter in words.chars() {
            if !letter.is_alphanumeric() && !matches!(letter, ' ' | ':' | '-' | '_') {
                escaped.push('\\');
            }
            escaped.push(letter);
        }
        escaped
    };
    let of_the_kernel = |words: &&Vec<String>| words.iter().all(|words| !words.contains("NVRM"));
    let one = |words: &Vec<String>| words.iter().map(literal).collect::<Vec<_>>().join(".*");
    let lines = TABLE
        .iter()
        .flat_map(|row| &row.lines)
        .filter(of_the_kernel);
    lines.map(one).collect::<Vec<_>>().join("|")
}

/// Queries the messages of this boot in systemd's journal, which keeps more of them than the kernel.
#[must_use]
pub fn journal() -> Query {
    let lines = format!("--grep={LINES}|{}", pattern());
    let args = [
        "--dmesg",
        "--boot",
        "--quiet",
        "--no-pager",
        "--output=cat",
        &lines,
    ];
    Query::new("journalctl", args).deadline(DEADLINE)
}

/// Queries the messages that the kernel itself still has.
#[must_use]
pub fn ring() -> Query {
    Query::new("dmesg", [""; 0]).deadline(DEADLINE)
}

/// Files with messages of the kernel. They may hold several boots.
pub const FILES: [&str; 3] = ["/var/log/kern.log", "/var/log/dmesg", "/var/log/messages"];

/// The beginning of a boot.
const BOOT: &str = "Linux version ";

/// Returns the lines of the last boot in a file.
#[must_use]
pub fn last_boot(text: &str) -> impl DoubleEndedIterator<Item = &str> {
    let lines: Vec<&str> = text.lines().collect();
    let start = lines.iter().rposition(|line| line.contains(BOOT));
    lines.into_iter().skip(start.unwrap_or_default())
}

/// What the kernel and NVIDIA's driver said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// It reported an error by its number.
    Xid {
        gpu: Option<PciAddress>,
        /// The number.
        code: u32,
        /// The line itself calls the error nonfatal, as those of NVLink 5 do.
        nonfatal: bool,
    },
    /// A line names an earlier error as its cause, whose own line may be gone.
    Cause {
        gpu: Option<PciAddress>,
        /// The number.
        code: u32,
    },
    /// The driver refuses work on a GPU, which it does not name, until that is reset.
    ResetRequired,
    /// The driver's manager of memory (UVM) met an error that ends CUDA on all GPUs until a reboot.
    RebootRequired,
    /// The driver says what a GPU needs now (Xid 154); later lines replace earlier ones.
    Recovery {
        gpu: Option<PciAddress>,
        /// What it needs.
        action: Recovery,
    },
    /// An `NVSwitch` reported an error by its number.
    SXid {
        switch: Option<PciAddress>,
        /// The number.
        code: u32,
        /// The line calls the error fatal.
        fatal: bool,
    },
    /// A GPU does not answer any more.
    FellOffBus { gpu: Option<PciAddress> },
    /// It could not start a GPU.
    NotStarted { gpu: Option<PciAddress> },
    /// A GPU needs the open modules, and these are the proprietary ones.
    NeedsOpen { gpu: Option<PciAddress> },
    /// A GPU needs the proprietary modules, and these are the open ones.
    NeedsProprietary { gpu: Option<PciAddress> },
    /// The driver ignores a GPU that only an older branch drives.
    Legacy {
        gpu: Option<PciAddress>,
        /// The branch that the driver names.
        branch: u32,
    },
    /// The driver does not know a GPU.
    Unsupported { gpu: Option<PciAddress> },
    /// Firmware or hypervisor gave a GPU no addresses for one of its windows.
    NoWindow {
        gpu: Option<PciAddress>,
        /// The window.
        bar: u32,
    },
    /// The firmware that the driver loads into GPUs was not loaded.
    NoFirmware {
        /// The file, where the line names it.
        file: Option<String>,
        /// The code of the error; `None` if it only says that the file is missing.
        code: Option<u32>,
    },
    /// A line of the table.
    Line {
        /// The device, where the line names one.
        at: Option<PciAddress>,
        row: &'static Line,
    },
    /// The driver refused a device.
    ProbeFailed {
        /// The device.
        gpu: Option<PciAddress>,
    },
    /// A program has libraries of another version than the module.
    OtherVersion {
        /// Their version, where the line names it.
        libraries: Option<String>,
    },
    /// A GPU, which the driver does not name, does not answer on the bus.
    Lost,
    /// The kernel ended a task that was in the driver (oops).
    Crashed {
        /// The driver's module.
        module: String,
    },
}

/// What the driver says that a GPU needs: the values of NVML's field 230.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recovery {
    /// Nothing more.
    None,
    /// A stop of the programs that use it together with other GPUs.
    DrainPeers,
    Reset,
    /// A stop of its programs, then a reset.
    DrainAndReset,
    /// A recovery of the IMEX domain; no fault of this machine.
    Imex,
    BusReset,
    /// A reboot of the machine.
    Reboot,
}

impl Recovery {
    /// Returns the action with this number; `None` if it is not known here.
    #[must_use]
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

/// Reads the lines of a log. A sentence of the driver may take several lines, of which only the first names
/// the GPU.
pub fn read<'l>(lines: impl IntoIterator<Item = &'l str>) -> Vec<Message> {
    let mut last = None;
    let mut crash = false;
    let mut found = Vec::new();
    for line in lines.into_iter().flat_map(sentences) {
        // A warning of the kernel names a place, too, but has no number.
        crash |= is_crash(line);
        if crash && let Some(place) = place_of_code(line) {
            crash = false;
            found.extend(module_of(place).map(|module| Message::Crashed { module }));
        }
        if let Some((_, said)) = line.split_once("NVRM: ")
            && (said.starts_with("The NVIDIA") || said.starts_with("This PCI"))
        {
            last = said.split([' ', ',']).find_map(address);
        }
        found.extend(message(line, last));
        found.extend(reason(line));
        found.extend(cause(line));
    }
    found
}

/// `Oops: 0000 [#1] SMP NOPTI`, `general protection fault, … 0000 [#1]`, `Internal error: Oops: 96000004 [#1]`: the first line
/// of a crash that ends a task, which the kernel counts (Linux `__die_header` in arch/x86/kernel/dumpstack.c, `__die` in
/// arch/arm64/kernel/traps.c).
fn is_crash(line: &str) -> bool {
    let is =
        |text: &str, digit: fn(&u8) -> bool| !text.is_empty() && text.bytes().all(|b| digit(&b));
    line.split_once(" [#").is_some_and(|(before, rest)| {
        // The code of the error stands before the count.
        let (_, code) = before.rsplit_once(": ").unwrap_or_default();
        let (count, _) = rest.split_once(']').unwrap_or_default();
        is(code, u8::is_ascii_hexdigit) && is(count, u8::is_ascii_digit)
    })
}

/// Returns the code that ran: `RIP: 0010:uvm_thread_context_remove+0x39/0x50 [nvidia_uvm]`, and `pc : …` on aarch64. With 0033 it
/// was that of a program.
fn place_of_code(line: &str) -> Option<&str> {
    if let Some(place) = line.strip_prefix("pc : ") {
        return Some(place);
    }
    (["RIP: 0010:", "RIP: 0033:", " pc : "].iter())
        .find_map(|mark| line.split_once(mark))
        .map(|(_, place)| place)
}

/// Returns the module of NVIDIA's driver that a place in the code is in.
fn module_of(place: &str) -> Option<String> {
    let (_, module) = place.split_once(" [nvidia")?;
    let (rest, _) = module.split_once(']')?;
    let is_ours = rest.is_empty()
        || rest.starts_with('_') && rest.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
    is_ours.then(|| format!("nvidia{rest}"))
}

/// `Xid (PCI:0000:dc:00): 45, pid=1, name=python3, Ch 00000001 caused by previous Xid 149`.
fn cause(line: &str) -> Option<Message> {
    let (rest, cause) = line.split_once(" caused by previous Xid ")?;
    let (_, place) = rest.split_once("Xid (PCI:")?;
    Some(Message::Cause {
        gpu: place.split([')', ' ']).next().and_then(address),
        code: number(cause)?,
    })
}

/// How a line with the number of an error begins.
const XID: &str = "NVRM: Xid (";

/// The row of the table for a line that has the number of an error, too.
fn reason(line: &str) -> Option<Message> {
    let row = row(line).filter(|_| line.contains(XID))?;
    Some(Message::Line {
        at: place(line),
        row,
    })
}

/// Returns the version of a program's libraries: `the client has the version 570.148.08, but`; newer drivers name the
/// program first, and begin the next line with `has the version`. The program itself says the version, so only one is taken.
fn version_of_client(said: &str) -> Option<String> {
    let (_, rest) = said.split_once("has the version ")?;
    let (version, _) = rest.split_once(", but")?;
    let version: DriverVersion = version.parse().ok()?;
    Some(version.to_string())
}

/// Splits a record into its lines: rsyslog writes the end of a line within it as `#012`, Talos as `\x0a`.
fn sentences(record: &str) -> impl Iterator<Item = &str> {
    (record.split("#012")).flat_map(|part| part.split("\\x0a"))
}

/// Reads one line; `None` if it is no known message. `last` is the GPU that an earlier line of the same sentence
/// names.
fn message(line: &str, last: Option<PciAddress>) -> Option<Message> {
    if let Some(row) = row(line).filter(|_| !line.contains(XID)) {
        let at = place(line);
        // A line about the bus counts only if it names its device.
        let whole = at.is_some() || matches!(row.kind, Kind::Load | Kind::Start | Kind::Beside);
        return whole.then_some(Message::Line { at, row });
    }
    let Some((_, said)) = line.split_once("NVRM: ") else {
        return other(line);
    };
    if let Some(rest) = said.strip_prefix("Xid (") {
        // `Xid (PCI:0000:18:00): 79, pid=…`; very old drivers wrote the address without `PCI:`, and
        // those of MIG devices add the instance.
        let (place, rest) = rest.split_once("): ")?;
        let gpu = (place.trim_start_matches("PCI:").split(' ').next()).and_then(address);
        let code = number(rest)?;
        if code == 154
            && let Some((_, to)) = rest.split_once(" to 0x")
        {
            let digits = to.split(|c: char| !c.is_ascii_hexdigit()).next()?;
            let action = Recovery::of(u32::from_str_radix(digits, 16).ok()?)?;
            return Some(Message::Recovery { gpu, action });
        }
        let nonfatal = rest.split_whitespace().any(|word| {
            let word = word.trim_end_matches(',');
            word.eq_ignore_ascii_case("nonfatal") || word.eq_ignore_ascii_case("non-fatal")
        });
        return Some(Message::Xid {
            gpu,
            code,
            nonfatal,
        });
    }
    let named = said.split([' ', ',', '(']).find_map(|word| {
        let word = word.trim_end_matches(['.', ')']);
        address(word.trim_start_matches("PCI:"))
    });
    let gpu = named.or(last);
    for (words, found) in [
        // A line that does not begin with `GPU` continues a sentence, whose first line names the GPU.
        ("fallen off the bus", {
            let rest = !said.trim_start().starts_with("GPU");
            let gpu = if rest { gpu } else { named };
            Message::FellOffBus { gpu }
        }),
        ("RmInitAdapter failed", Message::NotStarted { gpu: named }),
        ("rm_init_adapter failed", Message::NotStarted { gpu: named }),
        (
            "requires use of the NVIDIA open kernel modules",
            Message::NeedsOpen { gpu },
        ),
        (
            "nvidia.ko because it does not include the required GPU",
            Message::NeedsProprietary { gpu },
        ),
        // Newer drivers begin a line with their name.
        ("is not supported by the", Message::Unsupported { gpu }),
        (
            "No firmware image found",
            Message::NoFirmware {
                file: None,
                code: None,
            },
        ),
        (
            "API mismatch",
            Message::OtherVersion {
                libraries: version_of_client(said),
            },
        ),
        ("[NV_ERR_RESET_REQUIRED]", Message::ResetRequired),
        ("GPU marked for reset", Message::ResetRequired),
        // nvstatuscodes.h: "GPU lost from the bus".
        ("[NV_ERR_GPU_IS_LOST]", Message::Lost),
        // `nvGpuOpsReportFatalError`.
        (
            "uvm encountered global fatal error",
            Message::RebootRequired,
        ),
    ] {
        if said.contains(words) {
            return Some(found);
        }
    }
    if let Some(version) = version_of_client(said) {
        return Some(Message::OtherVersion {
            libraries: Some(version),
        });
    }
    if let Some((_, rest)) = said.split_once("supported through the NVIDIA ") {
        let branch = number(rest)?;
        return Some(Message::Legacy { gpu, branch });
    }
    if let Some((_, rest)) = said.split_once("BAR")
        && rest.contains(" is 0M @ 0x0")
    {
        let bar = number(rest)?;
        return Some(Message::NoWindow { gpu, bar });
    }
    None
}

/// Reads a line of the kernel itself, or of NVIDIA's driver for switches.
fn other(line: &str) -> Option<Message> {
    if let Some((_, rest)) = line.split_once("SXid (") {
        // `nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up`
        let (place, rest) = rest.split_once("): ")?;
        let word = rest.split(',').nth(1)?.trim();
        // Lines of details follow each error: NVIDIA/open-gpu-kernel-modules 595.45.04, error_nvswitch.c.
        if word.starts_with("Severity ") || word.starts_with("Data {") {
            return None;
        }
        return Some(Message::SXid {
            switch: address(place.trim_start_matches("PCI:")),
            code: number(rest)?,
            fatal: word.eq_ignore_ascii_case("fatal"),
        });
    }
    let device = || line.split([' ', ',']).find_map(address);
    if line.contains("nvidia") && line.contains("probe ") && line.contains("failed with error") {
        return Some(Message::ProbeFailed { gpu: device() });
    }
    if let Some((_, rest)) = line.split_once("firmware load for nvidia/") {
        let name = rest.split(' ').next().unwrap_or(rest);
        let (_, code) = rest.split_once("failed with error -")?;
        return Some(Message::NoFirmware {
            file: Some(format!("nvidia/{name}")),
            code: number(code).filter(|code| *code != ENOENT),
        });
    }
    // `pci 0000:14:00.0: BAR 1: no space for [mem size …]`, and since Linux 6.9 `BAR 1 [mem size …]: can't
    // assign; no space`. `BAR 7` and up are windows of bridges and of virtual functions.
    if let Some((_, rest)) = line.split_once(": BAR ")
        && ["no space", "failed to assign", "can't assign"]
            .iter()
            .any(|words| rest.contains(words))
        // The driver works without its window of I/O ports.
        && !rest.contains("[io")
    {
        let bar = number(rest).filter(|bar| *bar < 6)?;
        return Some(Message::NoWindow {
            gpu: Some(device()?),
            bar,
        });
    }
    None
}

/// The code of a file that is missing.
const ENOENT: u32 = 2;

/// The device that a line of the kernel names: by a word, or as `device [07:00.0]` and `device=07:00.0`, which leave out
/// the domain.
fn place(line: &str) -> Option<PciAddress> {
    let named = line.split([' ', ',', '(']).find_map(|word| {
        let word = word.trim_end_matches(['.', ')']);
        address(word.trim_start_matches("PCI:"))
    });
    named.or_else(|| {
        let (_, rest) = (line.split_once("device [")).or_else(|| line.split_once("device="))?;
        let place = rest.split([']', ' ']).next()?;
        place
            .parse()
            .ok()
            .or_else(|| address(&format!("0000:{place}")))
    })
}

/// The number that a text begins with.
fn number(text: &str) -> Option<u32> {
    let digits = text.split(|c: char| !c.is_ascii_digit()).next()?;
    digits.parse().ok()
}

/// `0000:18:00`, which names no function, or `0000:18:00.0`.
fn address(word: &str) -> Option<PciAddress> {
    let word = word.trim_end_matches([':', '.', ')']);
    if word.matches(':').count() != 2 {
        return None;
    }
    word.parse()
        .ok()
        .or_else(|| format!("{word}.0").parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::text::reads_any_text;

    #[test]
    fn messages_of_the_driver() {
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
            "[12345.678] NVRM: Xid (PCI:0000:3b:00): 43, pid=1234, name=python, Ch 00000002",
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
                vec![Message::SXid { switch: gpu("0000:c1:00.0"), code: 20034, fatal: true }];
            "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error (First)",
                vec![Message::SXid { switch: gpu("0000:05:00.0"), code: 12028, fatal: false }];
            "nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 22013, Severity 0 Engine instance 44 Sub-engine instance 00\nnvidia-nvswitch3: SXid (PCI:0000:04:00.0): 22013, Data {0x0000002c, 0x0000002c, 0x00000000}",
                vec![];
            "NVRM: GPU at 0000:01:00.0 has fallen off the bus.",
                vec![Message::FellOffBus { gpu: gpu("0000:01:00.0") }];
            "Nov 25 15:40:58 node kernel: [159259.98] NVRM: GPU 0000:02:00.0: RmInitAdapter failed! (0x24:0x65:1185)",
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
            "[ 1843.30] NVRM: The NVIDIA GPU 0000:b3:00.0\n  NVRM: (PCI ID: 10de:26b5) installed in this system has\n  NVRM: fallen off the bus and is not responding to commands.",
                vec![Message::FellOffBus { gpu: gpu("0000:b3:00.0") }];
            "NVRM: The NVIDIA GPU 0000:02:00.0 (PCI ID: 10de:1d13)\nNVRM: installed in this\nNVRM: system has fallen off the bus and is not responding",
                vec![Message::FellOffBus { gpu: gpu("0000:02:00.0") }];
            "NVRM: GPU has fallen off the bus.", vec![Message::FellOffBus { gpu: None }];
            "NVRM: The NVIDIA GPU 0000:af:00.0 (PCI ID: 10de:1db5)#012NVRM: installed in this system is not supported by open#012NVRM: nvidia.ko because it does not include the required GPU#012NVRM: System Processor (GSP).",
                vec![Message::NeedsProprietary { gpu: gpu("0000:af:00.0") }];
            "warning: [2023]: NVRM: The NVIDIA GPU 0000:00:10.0 (PCI ID: 10de:1b38)\\x0aNVRM: installed in this system is not supported by the\\x0aNVRM: NVIDIA 535.54.03 driver release.",
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
            // A count without a code, a word that ends so, and the code of a program.
            "worker [#3] started\nRIP: 0010:nvidia_dev_put_uuid+0x1a4/0x1e0 [nvidia]", vec![];
            "Internal error: Oops: 96000004 [#1] SMP\nrpc : nv_open+0x1/0x2 [nvidia]", vec![];
            "Oops: 0000 [#1] SMP\nRIP: 0033:0x7f80\nRIP: 0010:nvidia_dev_put_uuid+0x1a4/0x1e0 [nvidia]", vec![];
            "Oops: 0000 [#1] SMP\nRIP: 0010:nvidiafb_probe+0x1/0x2 [nvidiafb]", vec![];
            "NVRM: nvAssertFailedNoLog: Assertion failed: (status == NV_OK) || (status == NV_ERR_GPU_IN_FULLCHIP_RESET) @ rs_client.c:844",
                vec![];
            "NVRM: API mismatch: the client has the version 535.247.01, but#012NVRM: this kernel module has the version 530.30.02.  Please",
                vec![other_version(Some("535.247.01"))];
            "NVRM: API mismatch: the client has the version <b>call me</b>, but", vec![other_version(None)];
            "NVRM: API mismatch: the client 'nvidia-smi' (pid 1042)\nNVRM: has the version 575.57.08, but this kernel module has\nNVRM: the version 570.133.20.  Please make sure",
                vec![other_version(None), other_version(Some("575.57.08"))];
            "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  580.105.08", vec![];
            "nouveau 0000:01:00.0: NVIDIA GA102", vec![];
            "NVRM: Xid (PCI:0000:3b:00): x", vec![];
            "", vec![];
        } {
            assert_eq!(read(text.lines()), wanted, "{text}");
        }
    }

    #[test]
    fn lines_of_the_table_are_read_with_their_devices() {
        for (text, kind, place) in rows! {
            "Loading of module with unavailable key is rejected", Kind::Load, None;
            "modprobe: ERROR: could not insert 'nvidia': Key was rejected by service", Kind::Load,
                None;
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
        // A line with the number of an error is told by that, too.
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
        // Of what has no address nobody knows whether it is a GPU.
        assert!(read(["AER: can't recover (no error_detected callback)"]).is_empty());
        assert!(TABLE.iter().all(|row| {
            let device = matches!(row.kind, Kind::Bus | Kind::Iommu);
            row.why.contains("{}") == device && !row.lines.is_empty()
        }));
    }

    #[test]
    fn the_journal_is_searched_for_every_line_that_is_understood() {
        let line = journal().cmd().line();
        assert!(line.contains("Loading of .*is rejected"), "{line}");
        for word in [
            "NVRM",
            "SXid",
            "probe",
            "firmware",
            "BAR ",
            "Linux version",
            "RIP",
            "soft lockup.*",
        ] {
            assert!(line.contains(word), "{line}");
        }
    }

    #[test]
    fn a_file_of_several_boots_is_read_from_the_last_one() {
        let text = "kernel: Linux version 6.1\nold\nkernel: Linux version 6.8\nnew\n";
        let lines: Vec<&str> = last_boot(text).collect();
        assert_eq!(lines, ["kernel: Linux version 6.8", "new"]);
        assert_eq!(last_boot("a\nb").count(), 2);
    }

    reads_any_text!(
        "(NVRM: |Xid \\(PCI:|SXid \\(|0000:3b:00|\\): |79|, |: BAR |\n|.)*",
        |text| read(text.lines()); last_boot(&text).count()
    );
}
