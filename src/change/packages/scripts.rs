//! The accounts that packages make, as their scripts say. A script has many words, and an account
//! of the administrator may have the name of any of them, as `service` or `dev`. So a name counts
//! only as an argument of a program that makes accounts, or in a declaration of accounts.

use std::collections::BTreeSet;

/// The programs that make accounts: adduser(8), useradd(8), groupadd(8), systemd-sysusers(8).
const PROGRAMS: [&str; 5] = [
    "adduser",
    "addgroup",
    "useradd",
    "groupadd",
    "systemd-sysusers",
];

/// The names that the scripts of packages give to accounts; each text is one script.
pub(super) fn accounts_made(scripts: &[String]) -> BTreeSet<String> {
    let mut made = BTreeSet::new();
    for script in scripts {
        let script = script.replace("\\\n", " ");
        let mut variables = BTreeSet::new();
        for line in commands(&script) {
            for arguments in arguments_of_programs(line) {
                for word in words(arguments) {
                    take(&word, &mut made, &mut variables);
                }
            }
        }
        follow(&script, variables, &mut made);
    }
    made
}

/// The accounts that sysusers.d(5) declares.
pub(super) fn accounts_declared(declared: &str) -> BTreeSet<String> {
    let mut made = BTreeSet::new();
    for line in declared.lines() {
        let mut fields = words(line).into_iter();
        let kind = fields.next().unwrap_or_default();
        let names = match kind.trim_end_matches('!') {
            "u" | "g" => 1,
            // A user and a group, which are made if they do not exist.
            "m" => 2,
            _ => 0,
        };
        made.extend(fields.take(names).filter(|name| is_name(name)));
    }
    made
}

/// The lines that are not comments.
fn commands(script: &str) -> impl Iterator<Item = &str> {
    (script.lines().map(str::trim)).filter(|line| !line.starts_with('#'))
}

/// What follows each call of a program of [`PROGRAMS`] in a line, up to the end of the command.
fn arguments_of_programs(line: &str) -> Vec<&str> {
    let mut found = Vec::new();
    for program in PROGRAMS {
        for (at, _) in line.match_indices(program) {
            let before = line[..at].chars().next_back();
            let rest = &line[at + program.len()..];
            let is_part = |c: char| c.is_ascii_alphanumeric() || "_.-$".contains(c);
            if before.is_some_and(is_part) || !rest.starts_with(char::is_whitespace) {
                continue;
            }
            found.push(&rest[..end_of_command(rest)]);
        }
    }
    found
}

/// Where a command ends: at the first separator, redirection or comment outside of quotes.
fn end_of_command(text: &str) -> usize {
    let mut quote = None;
    let mut before = ' ';
    for (at, c) in text.char_indices() {
        match quote {
            Some(open) if c == open => quote = None,
            Some(_) => {}
            None if c == '"' || c == '\'' => quote = Some(c),
            None if ";|&)<>`".contains(c) || (c == '#' && before.is_whitespace()) => return at,
            None => {}
        }
        before = c;
    }
    text.len()
}

/// The words of a command, without quotes. What is quoted is one word.
fn words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let (mut word, mut quote) = (String::new(), None);
    for c in text.chars() {
        match quote {
            Some(open) if c == open => quote = None,
            None if c == '"' || c == '\'' => quote = Some(c),
            None if c.is_whitespace() => words.push(std::mem::take(&mut word)),
            _ => word.push(c),
        }
    }
    words.push(word);
    words.retain(|word| !word.is_empty());
    words
}

/// Takes a word as the name of an account, or as a variable that has one. An option may have it, as
/// `--group=docker`.
fn take(word: &str, made: &mut BTreeSet<String>, variables: &mut BTreeSet<String>) {
    let word = match word.split_once('=') {
        Some((option, value)) if option.starts_with('-') => value,
        _ => word,
    };
    if is_name(word) {
        made.insert(word.to_owned());
    } else if let Some(rest) = word.strip_prefix('$') {
        let inner = rest.strip_prefix('{').and_then(|one| one.strip_suffix('}'));
        let name_ends = |c: char| !(c.is_ascii_alphanumeric() || c == '_');
        match inner.unwrap_or(rest).split_once(name_ends) {
            None => {
                variables.insert(inner.unwrap_or(rest).to_owned());
            }
            // `${USER:-docker}`.
            Some((name, default)) if inner.is_some() => {
                variables.insert(name.to_owned());
                let default = default.trim_start_matches(['-', '=']);
                if is_name(default) {
                    made.insert(default.to_owned());
                }
            }
            Some(_) => {}
        }
    }
}

/// Takes the words that a script assigns to variables, and to those that it assigns from.
fn follow(script: &str, mut variables: BTreeSet<String>, made: &mut BTreeSet<String>) {
    let mut known = BTreeSet::new();
    while let Some(name) = variables.pop_first() {
        if name.is_empty() || !known.insert(name.clone()) {
            continue;
        }
        for line in commands(script) {
            for value in assigned(line, &name) {
                for word in words(&value) {
                    if !known.contains(word.trim_start_matches('$')) {
                        take(&word, made, &mut variables);
                    }
                }
            }
        }
    }
}

/// What a line assigns to a variable: `NAME=value`, or `for NAME in words`.
fn assigned(line: &str, name: &str) -> Vec<String> {
    let mut values = Vec::new();
    let starts_word =
        |at: usize| (line[..at].chars().next_back()).is_none_or(|c| c.is_whitespace() || c == ';');
    for (at, _) in line.match_indices(name).filter(|(at, _)| starts_word(*at)) {
        let rest = &line[at + name.len()..];
        if let Some(value) = rest.strip_prefix('=') {
            values.extend(words(&value[..end_of_command(value)]).into_iter().next());
        } else if let Some(list) = rest.strip_prefix(" in ")
            && line[..at].trim_end().ends_with("for")
        {
            values.push(words(&list[..end_of_command(list)]).join(" "));
        }
    }
    values
}

/// Whether a word can be the name of an account, useradd(8).
fn is_name(word: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
    (word.chars().next()).is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && word.chars().all(is_part)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(script: &str) -> Vec<String> {
        accounts_made(&[script.to_owned()]).into_iter().collect()
    }

    #[test]
    fn a_name_counts_only_as_an_argument_of_a_program_that_makes_accounts() {
        // The calls of Debian's packages docker.io and nvidia-persistenced.
        let docker = "# Make sure the admin can use adduser user docker\n\
                      if ! getent group docker >/dev/null 2>&1 ; then\n\
                      \taddgroup --system docker\nfi\n\
                      deb-systemd-invoke start 'docker.service' >/dev/null || true\n";
        assert_eq!(made(docker), ["docker"]);
        let persistence = "if ! getent passwd nvpd >/dev/null; then\n\
                           adduser --system --group \\\n --home /var/run/nvpd/ \\\n\
                           --gecos 'NVIDIA Persistence Daemon' \\\n --no-create-home \\\n nvpd\nfi\n\
                           _dh_action=start\ninvoke-rc.d nvpd $_dh_action || exit 1\n";
        assert_eq!(made(persistence), ["nvpd"]);
        for (script, names) in [
            ("/usr/sbin/groupadd -f -r '_a-b'", "_a-b"),
            ("getent passwd a || useradd -g g -r a # for admin", "a g"),
            ("command -v adduser >/dev/null && test service", ""),
            ("deluser a; myadduser b; adduser.local c; $adduser d", ""),
            ("echo service; (addgroup --quiet input) || user", "input"),
        ] {
            assert_eq!(made(script).join(" "), names, "{script}");
        }
    }

    #[test]
    fn a_name_in_a_variable_is_the_one_that_the_same_script_assigns() {
        for (script, names) in [
            ("NVPD_USER=nvpd\nadduser --system \"$NVPD_USER\"", "nvpd"),
            ("U='a'; G=\"${U}\"\nuseradd --gid=${G} x", "a x"),
            ("for one in a b; do addgroup --system $one; done", "a b"),
            ("ALL=\"a b\"\nfor g in $ALL; do addgroup $g; done", "a b"),
            ("useradd \"${NAME:-dock}\"\nOTHER_NAME=admin", "dock"),
            ("A=$B\nB=$A\nuseradd $A", ""),
            ("USER_DIR=user\nadduser \"$1\" $USER", ""),
        ] {
            assert_eq!(made(script).join(" "), names, "{script}");
        }
        let scripts = ["NAME=theirs".to_owned(), "useradd $NAME".to_owned()];
        assert!(accounts_made(&scripts).is_empty());
    }

    #[test]
    fn declared_accounts_are_those_of_users_and_groups() {
        let text = "# u admin\nu nvpd - \"NVIDIA daemon\" /nonexistent\nu! locked -\ng docker -\n\
                    m joe render\nr - 500-900\nd /run/user 0755 service service -\n";
        let names = ["docker", "joe", "locked", "nvpd", "render"];
        assert_eq!(accounts_declared(text), names.map(str::to_owned).into());
    }
}
