//! Parses the output of `apt-get -s`: the actions of a transaction, one per line.

use crate::tools::packages::Action;

/// Parses the output. `Conf` lines only repeat the `Inst` lines in the order of configuration.
pub fn parse(text: &str) -> Vec<Action> {
    text.lines().filter_map(line).collect()
}

/// Parses `Inst NAME [OLD] (NEW Origin:…/suite [arch]) []`, `Remv NAME [VERSION] […]` or `Purg NAME [VERSION]`.
fn line(line: &str) -> Option<Action> {
    let (word, rest) = line.split_once(' ')?;
    let (name, rest) = rest.split_once(' ').unwrap_or((rest, ""));
    if name.is_empty() {
        return None;
    }
    let name = name.to_owned();
    let (bracketed, rest) = match rest.strip_prefix('[') {
        Some(rest) => {
            let (version, rest) = rest.split_once(']')?;
            (Some(version.to_owned()), rest.trim_start())
        }
        None => (None, rest),
    };
    match word {
        "Inst" => Some(Action::Install {
            name,
            from: bracketed,
            to: rest
                .strip_prefix('(')?
                .split([' ', ')'])
                .next()
                .filter(|version| !version.is_empty())?
                .to_owned(),
        }),
        "Remv" | "Purg" => Some(Action::Remove {
            name,
            version: bracketed.unwrap_or_default(),
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::text::reads_any_text;

    /// Output of apt 2.6 on Debian 12.
    const TEXT: &str = "\
Reading package lists...
Building dependency tree...
Reading state information...
The following packages will be REMOVED:
  busybox-static
0 upgraded, 10 newly installed, 1 to remove and 120 not upgraded.
Remv busybox-static [1:1.35.0-4+deb12u1+b1]
Inst bash [5.2.15-2+b8] (5.2.15-2+b13 Debian:12.15/oldstable [amd64])
Inst runc (1.1.5+ds1-1+deb12u1 Debian:12.15/oldstable, Debian-Security:12/oldstable-security [amd64])
Inst libc6:i386 (2.36-9+deb12u13 Debian:12.15/oldstable [i386]) []
Purg old [1.0]
Conf runc (1.1.5+ds1-1+deb12u1 Debian:12.15/oldstable, Debian-Security:12/oldstable-security [amd64])
";

    #[test]
    fn installs_upgrades_and_removals_are_parsed() {
        let actions = parse(TEXT);
        assert_eq!(
            Action::describe(&actions),
            "- busybox-static 1:1.35.0-4+deb12u1+b1\n\
             ~ bash 5.2.15-2+b8 -> 5.2.15-2+b13\n\
             + runc 1.1.5+ds1-1+deb12u1\n\
             + libc6:i386 2.36-9+deb12u13\n\
             - old 1.0"
        );
    }

    reads_any_text!("(Inst|Remv|Purg)?[ \\[\\]\\(\\)a-z\n]*", |text| parse(
        &text
    ));
}
