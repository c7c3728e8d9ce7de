//! Progress as apt reports it on `APT::Status-Fd`: `dlstatus:N:PERCENT:TEXT` while it downloads,
//! `pmstatus:PACKAGE:PERCENT:TEXT` while dpkg works.

/// What a line of output means.
#[derive(Debug, Clone, PartialEq)]
pub enum Said<'l> {
    /// How far it is, in percent, and what it does.
    Progress(f64, &'l str),
    /// A line for people.
    Line(&'l str),
    /// Nothing for anybody.
    Noise,
}

/// Reads a line of output.
#[must_use]
pub fn read(line: &str) -> Said<'_> {
    let Some((word, rest)) = line.split_once(':') else {
        return Said::Line(line);
    };
    match word {
        "dlstatus" | "pmstatus" => {
            // A package name may carry `:i386`, so the fields are counted from the number.
            let mut fields = rest.split(':');
            let percent = fields.by_ref().find_map(|field| {
                field
                    .parse::<f64>()
                    .ok()
                    .filter(|_| field.contains('.'))
                    .filter(|percent| (0.0..=100.0).contains(percent))
            });
            let Some(percent) = percent else {
                return Said::Noise;
            };
            // What is left of the line, colons and all.
            let left: usize = fields.map(|field| field.len() + 1).sum();
            Said::Progress(percent, &rest[rest.len() + 1 - left.max(1)..])
        }
        // Errors are repeated in plain words; questions about conffiles are never asked.
        "pmerror" | "pmconffile" | "media-change" => Said::Noise,
        _ => Said::Line(line),
    }
}

#[cfg(test)]
mod tests {
    use super::{Said, read};

    #[test]
    fn lines_of_the_status_descriptor() {
        for (line, expected) in [
            (
                "dlstatus:1:12.5:Retrieving file 1 of 8",
                Said::Progress(12.5, "Retrieving file 1 of 8"),
            ),
            (
                "pmstatus:dkms:45.4545:Installing dkms (amd64)",
                Said::Progress(45.4545, "Installing dkms (amd64)"),
            ),
            (
                "pmstatus:libc6:i386:1.0000:Preparing libc6:i386",
                Said::Progress(1.0, "Preparing libc6:i386"),
            ),
            ("pmerror:dkms:45.4:subprocess failed", Said::Noise),
            (
                "Setting up dkms (3.0.10-8+deb12u1) ...",
                Said::Line("Setting up dkms (3.0.10-8+deb12u1) ..."),
            ),
            (
                "E: Sub-process /usr/bin/dpkg returned an error code (1)",
                Said::Line("E: Sub-process /usr/bin/dpkg returned an error code (1)"),
            ),
            ("pmstatus", Said::Line("pmstatus")),
            ("pmstatus:", Said::Noise),
        ] {
            assert_eq!(read(line), expected);
        }
    }
}
