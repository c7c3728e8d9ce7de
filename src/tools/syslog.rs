//! The log files of a syslog daemon, which contain the messages of programs on a machine without a readable journal.

/// The log files of Debian and Ubuntu, and of the other distributions.
pub const FILES: [&str; 2] = ["/var/log/syslog", "/var/log/messages"];

/// Returns the message in a line if its tag is the name of one of the programs, as in `… node nvidia-gridd[7]: TEXT`. Each user
/// can write such a line.
pub fn message<'l>(line: &'l str, programs: &[&str]) -> Option<&'l str> {
    let (head, text) = line.split_once(": ")?;
    let tag = head.rsplit(' ').next()?;
    let name = tag.split_once('[').map_or(tag, |(name, _)| name);
    programs.contains(&name).then_some(text)
}
