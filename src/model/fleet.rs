//! Values of the settings for upgrades of many nodes: the maintenance window, and the lock that limits how many nodes are out of
//! service at the same time.

use std::{fmt, str::FromStr};

use jiff::Timestamp;

use crate::model::text::{as_text, is_control};

/// Seconds of a day.
const DAY: i64 = 24 * 60 * 60;

/// Minutes of a day.
const DAY_MINUTES: u16 = 24 * 60;

/// The days, from Monday. systemd.time(7) uses the same names.
const DAYS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];

/// The word for all days.
const DAILY: &str = "daily";

/// The reason that a text is not a value of these settings.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not {what}")]
pub struct FleetError {
    text: String,
    what: &'static str,
}

impl FleetError {
    fn new(text: &str, what: &'static str) -> Self {
        Self {
            text: text.to_owned(),
            what,
        }
    }
}

/// A weekly maintenance window in UTC, such as `Sat 02:00-05:00 UTC`. A window that ends before it starts ends on the next day.
/// Only UTC is supported, because other zones need a time zone database, and have days with 23 and 25 hours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Window {
    /// The days on which it opens, from Monday.
    days: [bool; 7],
    /// Minutes since midnight.
    start: u16,
    /// Its length in minutes, at most one day.
    minutes: u16,
}

/// The state of a window at one time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WindowState {
    /// It is open until this time.
    Open { until: Timestamp },
    /// It opens at this time.
    Closed { until: Timestamp },
}

const WINDOW: &str = "a window such as `Sat 02:00-05:00 UTC`, `Mon,Thu 22:00-02:00 UTC`, `Mon-Fri 01:00-04:00 UTC` or `daily \
                      03:00-05:00 UTC`";

impl Window {
    /// Returns whether the window is open at this time, and when this changes.
    pub fn state(&self, now: Timestamp) -> WindowState {
        let second = now.as_second();
        let today = second.div_euclid(DAY);
        let at = |second: i64| Timestamp::from_second(second).unwrap_or(now);
        // A window that opened yesterday may still be open. A window that is only open on this weekday may be over.
        for day in today - 1..=today + 7 {
            if !self.days[weekday(day)] {
                continue;
            }
            let opens = day * DAY + i64::from(self.start) * 60;
            let closes = opens + i64::from(self.minutes) * 60;
            if second < opens {
                return WindowState::Closed { until: at(opens) };
            }
            if second < closes {
                return WindowState::Open { until: at(closes) };
            }
        }
        // A window has at least one day, so the loop has returned.
        WindowState::Closed { until: now }
    }

    /// Returns the times at which it opens, in the form of systemd.time(7).
    pub fn calendar(&self) -> String {
        let time = clock(self.start);
        match self.days == [true; 7] {
            true => format!("*-*-* {time}:00 UTC"),
            false => format!("{} *-*-* {time}:00 UTC", self.day_names()),
        }
    }

    fn day_names(&self) -> String {
        let named: Vec<&str> = (DAYS.iter().zip(self.days))
            .filter(|(_, opens)| *opens)
            .map(|(name, _)| *name)
            .collect();
        named.join(",")
    }
}

/// The weekday of a day since 1970-01-01, a Thursday, from 0 for Monday.
fn weekday(day: i64) -> usize {
    usize::try_from((day + 3).rem_euclid(7)).unwrap_or_default()
}

/// Minutes since midnight as `02:00`.
fn clock(minutes: u16) -> String {
    format!("{:02}:{:02}", minutes / 60, minutes % 60)
}

/// Parses `02:00` or `24:00`.
fn minutes_of(text: &str) -> Option<u16> {
    let (hours, minutes) = text.split_once(':')?;
    let number = |digits: &str| -> Option<u16> {
        let is_number = digits.len() == 2 && digits.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| digits.parse().ok()).flatten()
    };
    let minutes = number(hours)? * 60 + number(minutes).filter(|minutes| *minutes < 60)?;
    (minutes <= DAY_MINUTES).then_some(minutes)
}

/// Parses `Sat`, `Mon,Thu`, `Mon-Fri` or `daily`.
fn days_of(text: &str) -> Option<[bool; 7]> {
    let day = |name: &str| (DAYS.iter()).position(|day| day.eq_ignore_ascii_case(name));
    if text == DAILY {
        return Some([true; 7]);
    }
    let mut days = [false; 7];
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (mut at, last) = (day(first)?, day(last)?);
        days[at] = true;
        while at != last {
            at = (at + 1) % 7;
            days[at] = true;
        }
    }
    Some(days)
}

impl FromStr for Window {
    type Err = FleetError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parsed = || {
            let words: Vec<&str> = text.split_whitespace().collect();
            let [days, span, "UTC"] = words[..] else {
                return None;
            };
            let (start, end) = span.split_once('-')?;
            let (start, end) = (minutes_of(start)?, minutes_of(end)?);
            if start == end || start == DAY_MINUTES {
                return None;
            }
            let end = if end < start { end + DAY_MINUTES } else { end };
            Some(Self {
                days: days_of(days)?,
                start,
                minutes: end - start,
            })
        };
        parsed().ok_or_else(|| FleetError::new(text, WINDOW))
    }
}

impl fmt::Display for Window {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = match self.start + self.minutes {
            DAY_MINUTES => DAY_MINUTES,
            end => end % DAY_MINUTES,
        };
        let days = match self.days == [true; 7] {
            true => DAILY.to_owned(),
            false => self.day_names(),
        };
        write!(to, "{days} {}-{} UTC", clock(self.start), clock(end))
    }
}

as_text!(
    Window,
    WINDOW,
    "^[A-Za-z,-]+ [0-9]{2}:[0-9]{2}-[0-9]{2}:[0-9]{2} UTC$"
);

/// A lock that several nodes share.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum FleetLock {
    /// No lock.
    #[default]
    None,
    /// A server with the FleetLock protocol, at this base URL.
    Server(String),
    /// A program with arguments, to which `acquire` or `release` is appended.
    Command(Vec<String>),
}

const SERVER: &str = "fleetlock:";
const COMMAND: &str = "command:";
const LOCK: &str = "`none`, `fleetlock:URL` with an HTTP or HTTPS URL without credentials, or `command:PROGRAM ARGUMENT …` with \
                    an absolute path";

impl FromStr for FleetLock {
    type Err = FleetError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || FleetError::new(text, LOCK);
        if text == "none" {
            return Ok(Self::None);
        }
        if text.chars().any(is_control) {
            return Err(wrong());
        }
        if let Some(url) = text.strip_prefix(SERVER) {
            let rest = (url.strip_prefix("https://")).or_else(|| url.strip_prefix("http://"));
            let is_url = rest.is_some_and(|rest| {
                !rest.is_empty() && !rest.starts_with('/') && !rest.contains(['@', '?', '#', ' '])
            });
            return match is_url {
                true => Ok(Self::Server(url.trim_end_matches('/').to_owned())),
                false => Err(wrong()),
            };
        }
        let words: Vec<String> = (text.strip_prefix(COMMAND).into_iter())
            .flat_map(str::split_whitespace)
            .map(str::to_owned)
            .collect();
        match words.first() {
            Some(program) if program.starts_with('/') => Ok(Self::Command(words)),
            _ => Err(wrong()),
        }
    }
}

impl fmt::Display for FleetLock {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => to.write_str("none"),
            Self::Server(url) => write!(to, "{SERVER}{url}"),
            Self::Command(words) => write!(to, "{COMMAND}{}", words.join(" ")),
        }
    }
}

as_text!(
    FleetLock,
    LOCK,
    "^(none|fleetlock:https?://.+|command:/.+)$"
);

/// The group of a node on a FleetLock server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockGroup(String);

const GROUP: &str = "a group of letters, digits, dots and hyphens";

impl Default for LockGroup {
    /// The default of the protocol.
    fn default() -> Self {
        Self("default".to_owned())
    }
}

impl FromStr for LockGroup {
    type Err = FleetError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // Source: coreos/zincati, `docs/development/fleetlock/protocol.md`.
        let is_group = |c: char| c.is_ascii_alphanumeric() || ".-".contains(c);
        match !text.is_empty() && text.chars().all(is_group) {
            true => Ok(Self(text.to_owned())),
            false => Err(FleetError::new(text, GROUP)),
        }
    }
}

impl fmt::Display for LockGroup {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(&self.0)
    }
}

as_text!(LockGroup, GROUP, "^[A-Za-z0-9.-]+$");

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().expect("a time")
    }

    #[test]
    fn window_is_open_between_its_times() {
        // 2026-11-28 is a Saturday.
        for (window, now, open, until) in rows! {
            "Sat 02:00-05:00 UTC", "2026-11-28T01:59:59Z", false, "2026-11-28T02:00:00Z";
            "Sat 02:00-05:00 UTC", "2026-11-28T02:00:00Z", true, "2026-11-28T05:00:00Z";
            "Sat 02:00-05:00 UTC", "2026-11-28T04:59:59Z", true, "2026-11-28T05:00:00Z";
            "Sat 02:00-05:00 UTC", "2026-11-28T05:00:00Z", false, "2026-12-05T02:00:00Z";
            "Sat 02:00-05:00 UTC", "2026-11-29T03:00:00Z", false, "2026-12-05T02:00:00Z";
            "Mon,Thu 22:00-02:00 UTC", "2026-11-27T01:59:00Z", true, "2026-11-27T02:00:00Z";
            "Mon,Thu 22:00-02:00 UTC", "2026-11-27T02:00:00Z", false, "2026-11-30T22:00:00Z";
            "Mon,Thu 22:00-02:00 UTC", "2026-11-30T23:00:00Z", true, "2026-12-01T02:00:00Z";
            "Fri-Mon 00:00-24:00 UTC", "2026-11-29T12:00:00Z", true, "2026-11-30T00:00:00Z";
            "Fri-Mon 00:00-24:00 UTC", "2026-12-01T00:00:00Z", false, "2026-12-04T00:00:00Z";
            "daily 03:00-05:00 UTC", "2026-12-31T05:00:00Z", false, "2027-01-01T03:00:00Z";
        } {
            let found = window.parse::<Window>().expect("a window").state(at(now));
            let until = at(until);
            let expected = match open {
                true => WindowState::Open { until },
                false => WindowState::Closed { until },
            };
            assert_eq!(found, expected, "{window} at {now}");
        }
    }

    #[test]
    fn windows_are_parsed_and_printed() {
        for (text, printed, calendar) in rows! {
            "Sat 02:00-05:00 UTC", "Sat 02:00-05:00 UTC", "Sat *-*-* 02:00:00 UTC";
            "mon-wed,Fri 22:00-02:00  UTC", "Mon,Tue,Wed,Fri 22:00-02:00 UTC",
                "Mon,Tue,Wed,Fri *-*-* 22:00:00 UTC";
            "Sat-Mon 00:00-24:00 UTC", "Mon,Sat,Sun 00:00-24:00 UTC", "Mon,Sat,Sun *-*-* 00:00:00 UTC";
            "daily 03:30-04:00 UTC", "daily 03:30-04:00 UTC", "*-*-* 03:30:00 UTC";
        } {
            let window: Window = text.parse().expect("a window");
            assert_eq!(window.to_string(), printed);
            assert_eq!(window.calendar(), calendar);
            assert_eq!(printed.parse(), Ok(window));
        }
        for text in [
            "",
            "Sat",
            "Sat 02:00-05:00",
            "Sat 02:00-05:00 CET",
            "Sat 2:00-5:00 UTC",
            "Sat 02:00-02:00 UTC",
            "Sat 02:60-05:00 UTC",
            "Sat 24:00-05:00 UTC",
            "Sat 02:00-24:01 UTC",
            "Caturday 02:00-05:00 UTC",
            "Sat, 02:00-05:00 UTC",
        ] {
            assert!(text.parse::<Window>().is_err(), "{text}");
        }
    }

    #[test]
    fn fleet_locks_are_parsed_and_printed() {
        let command = ["/usr/local/sbin/lock", "--group", "a"].map(str::to_owned);
        for (text, lock) in [
            ("none", FleetLock::None),
            (
                "fleetlock:https://lock.example/base",
                FleetLock::Server("https://lock.example/base".to_owned()),
            ),
            (
                "command:/usr/local/sbin/lock --group a",
                FleetLock::Command(command.into()),
            ),
        ] {
            assert_eq!(text.parse(), Ok(lock.clone()), "{text}");
            assert_eq!(lock.to_string(), text);
        }
        let with_slash: FleetLock = "fleetlock:http://lock.example/".parse().expect("a lock");
        assert_eq!(
            with_slash,
            FleetLock::Server("http://lock.example".to_owned())
        );
        for text in [
            "",
            "https://lock.example",
            "fleetlock:",
            "fleetlock:ftp://lock.example",
            "fleetlock:https://user:word@lock.example",
            "command:",
            "command:lock",
            "command:/lock\nrm",
        ] {
            assert!(text.parse::<FleetLock>().is_err(), "{text}");
        }
        for group in ["", "a b", "ä", "a/b"] {
            assert!(group.parse::<LockGroup>().is_err(), "{group}");
        }
        assert_eq!(
            "rack-1.a"
                .parse::<LockGroup>()
                .expect("a group")
                .to_string(),
            "rack-1.a"
        );
    }
}
