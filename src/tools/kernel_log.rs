//! The messages of the kernel, and those of NVIDIA's driver in them.

use std::time::Duration;

use crate::{host::Query, model::pci::PciAddress};

/// Reading a log takes no longer, however long the machine runs.
const DEADLINE: Duration = Duration::from_secs(20);

/// The messages of the driver and the first line of this boot, from systemd's journal, which keeps
/// more than the kernel. The rest of the log is nobody's business: it may end in a recording.
#[must_use]
pub fn journal() -> Query {
    let lines = format!("--grep=NVRM|{BOOT}");
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

/// The messages that the kernel itself still has.
#[must_use]
pub fn ring() -> Query {
    Query::new("dmesg", [""; 0]).deadline(DEADLINE)
}

/// Files with messages of the kernel. They may hold several boots.
pub const FILES: [&str; 3] = ["/var/log/kern.log", "/var/log/dmesg", "/var/log/messages"];

/// The beginning of a boot.
const BOOT: &str = "Linux version ";

/// The lines of the last boot in a file.
#[must_use]
pub fn last_boot(text: &str) -> impl DoubleEndedIterator<Item = &str> {
    let lines: Vec<&str> = text.lines().collect();
    let start = lines.iter().rposition(|line| line.contains(BOOT));
    lines.into_iter().skip(start.unwrap_or_default())
}

/// What NVIDIA's driver said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// It reported an error by its number.
    Xid {
        /// The GPU.
        gpu: Option<PciAddress>,
        /// The number.
        code: u32,
    },
    /// A GPU does not answer any more.
    FellOffBus {
        /// The GPU.
        gpu: Option<PciAddress>,
    },
    /// It could not start a GPU.
    NotStarted {
        /// The GPU.
        gpu: Option<PciAddress>,
    },
    /// A GPU needs the open modules, and these are the proprietary ones.
    NeedsOpen,
    /// A GPU needs the proprietary modules, and these are the open ones.
    NeedsProprietary,
    /// A program has libraries of another version than the module.
    OtherVersion,
}

/// Reads one line; `None` if it is none of the driver's known messages.
#[must_use]
pub fn message(line: &str) -> Option<Message> {
    let (_, said) = line.split_once("NVRM: ")?;
    if let Some(rest) = said.strip_prefix("Xid (") {
        // `Xid (PCI:0000:18:00): 79, pid=…`; very old drivers wrote the address without `PCI:`.
        let (place, rest) = rest.split_once("): ")?;
        let digits = rest.split(|c: char| !c.is_ascii_digit()).next()?;
        return Some(Message::Xid {
            gpu: address(place.trim_start_matches("PCI:")),
            code: digits.parse().ok()?,
        });
    }
    let gpu = || said.split([' ', ',']).find_map(address);
    for (words, found) in [
        ("fallen off the bus", Message::FellOffBus { gpu: gpu() }),
        ("RmInitAdapter failed", Message::NotStarted { gpu: gpu() }),
        ("rm_init_adapter failed", Message::NotStarted { gpu: gpu() }),
        (
            "requires use of the NVIDIA open kernel modules",
            Message::NeedsOpen,
        ),
        (
            "nvidia.ko because it does not include the required GPU",
            Message::NeedsProprietary,
        ),
        ("API mismatch", Message::OtherVersion),
    ] {
        if said.contains(words) {
            return Some(found);
        }
    }
    None
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
        for (line, wanted) in [
            (
                "[12345.678] NVRM: Xid (PCI:0000:3b:00): 43, pid=1234, name=python, Ch 00000002",
                Some(Message::Xid {
                    gpu: gpu("0000:3b:00.0"),
                    code: 43,
                }),
            ),
            (
                "NVRM: Xid (PCI:0000:41:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
                Some(Message::Xid {
                    gpu: gpu("0000:41:00.0"),
                    code: 79,
                }),
            ),
            (
                "NVRM: GPU at 0000:01:00.0 has fallen off the bus.",
                Some(Message::FellOffBus {
                    gpu: gpu("0000:01:00.0"),
                }),
            ),
            (
                "Nov 25 15:40:58 node kernel: [159259.98] NVRM: GPU 0000:02:00.0: RmInitAdapter failed! (0x24:0x65:1185)",
                Some(Message::NotStarted {
                    gpu: gpu("0000:02:00.0"),
                }),
            ),
            (
                "NVRM: GPU 0000:02:00.0: rm_init_adapter failed, device minor number 0",
                Some(Message::NotStarted {
                    gpu: gpu("0000:02:00.0"),
                }),
            ),
            (
                "NVRM: installed in this system requires use of the NVIDIA open kernel modules.",
                Some(Message::NeedsOpen),
            ),
            (
                "NVRM: nvidia.ko because it does not include the required GPU",
                Some(Message::NeedsProprietary),
            ),
            (
                "NVRM: API mismatch: the client has the version 535.247.01, but",
                Some(Message::OtherVersion),
            ),
            (
                "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  580.105.08",
                None,
            ),
            ("nouveau 0000:01:00.0: NVIDIA GA102", None),
            ("NVRM: Xid (PCI:0000:3b:00): x", None),
            ("", None),
        ] {
            assert_eq!(message(line), wanted, "{line}");
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
        "(NVRM: |Xid \\(PCI:|0000:3b:00|\\): |79|, |.)*",
        |text| message(&text); last_boot(&text).count()
    );
}
