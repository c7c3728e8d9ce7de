//! Steps about a unit of the machine: a script that continues in parallel with the next steps, its exit, and the
//! resumed run of the product. Each is turned into a script, so that expectations about the unit's output and exit code
//! work as for any command.

use std::borrow::Cow;

use crate::cases::{Action, Step};
use crate::sh::quoted;

/// Exits with the exit code of the unit `$unit`, in the form of a shell.
const END: &str = r#"journalctl --sync
journalctl -q -b -u "$unit" -o cat
status=$(systemctl show -P ExecMainStatus "$unit")
[ "$(systemctl show -P ExecMainCode "$unit")" = 1 ] || status=$((status + 128))
"#;

/// Exits with the exit code of the last run in the journal `$journal`. If a run succeeds or rolls back to an earlier
/// driver, its unit is removed with its status, so only the journal contains it.
const BY_RECORD: &str = r#"ended=$(grep -E '"kind":"run-(started|finished)"' "$journal" | tail -n 1 |
    sed -n 's/.*"kind":"run-finished","exit":\([0-9]*\).*/\1/p')
[ -n "$ended" ] || { echo "the last run has no end in $journal" >&2; exit 99; }
exit "$ended"
"#;

/// The product's unit, which removes its own file after a successful run. The pauses are short because `vm bench` measures the
/// duration.
const RESUMED: &str = r#"unit=gpu-bootstrap-resume.service
until journalctl -q -b -u "$unit" -o cat | grep -q . || [ ! -e "/etc/systemd/system/$unit" ]; do sleep 0.1; done
until systemctl show -P ActiveState "$unit" | grep -qxE 'inactive|failed'; do sleep 0.1; done
"#;

/// The script of a step, if it has one.
pub fn script(step: &Step) -> Option<Cow<'_, str>> {
    Some(match (&step.action, &step.background) {
        (Action::Resumed, _) => Cow::Owned(format!(
            "{RESUMED}{END}if [ -e \"/etc/systemd/system/$unit\" ]; then\n    \
             [ \"$status\" != 0 ] || {{ echo \"$unit is still there\" >&2; exit 99; }}\n    \
             exit \"$status\"\nfi\njournal=/var/lib/gpu-bootstrap/journal.jsonl\n{BY_RECORD}"
        )),
        (Action::Join(unit), _) => Cow::Owned(format!(
            "unit={unit}\n\
             while [ \"$(systemctl show -P SubState \"$unit\")\" = running ]; do sleep 0.5; done\n\
             {END}systemctl stop \"$unit\"\n\
             systemctl reset-failed \"$unit\" 2>/dev/null\n\
             exit \"$status\"\n"
        )),
        (Action::Run(script), None) => Cow::Borrowed(script),
        (Action::Run(script), Some(unit)) => {
            Cow::Owned(background(unit, script, step.until_said.as_deref()))
        }
        _ => return None,
    })
}

fn background(unit: &str, script: &str, until_said: Option<&str>) -> String {
    let start = format!(
        "unit={unit}\nsystemd-run -q --unit=\"$unit\" -p RemainAfterExit=yes /bin/bash -c {} || exit\n",
        quoted(script)
    );
    match until_said {
        None => start,
        // The state is read before the log, so that the last output of a unit is included.
        Some(said) => format!(
            "{start}while :; do\n    \
             state=$(systemctl show -P SubState \"$unit\")\n    \
             [ \"$state\" = running ] || journalctl --sync\n    \
             journalctl -q -b -u \"$unit\" -o cat | grep -qF -e {} && break\n    \
             [ \"$state\" = running ] || {{ journalctl -q -b -u \"$unit\" -o cat; exit 99; }}\n    \
             sleep 0.5\ndone\n",
            quoted(said)
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(text: &str) -> Step {
        toml::from_str(&format!("title = 't'\n{text}")).unwrap()
    }

    #[test]
    fn only_executed_steps_have_a_script() {
        assert_eq!(script(&step("run = 'true'")).unwrap(), "true");
        assert!(script(&step("unchanged = true")).is_none());
    }

    #[test]
    fn removed_unit_exits_with_journal_status() {
        let record = |kind: &str| format!("{{\"run\":\"1\",\"record\":{{\"kind\":\"{kind}}}}}\n");
        let started = record("run-started\",\"tool\":\"0\"");
        let ended = |exit: u8| record(&format!("run-finished\",\"exit\":{exit},\"summary\":{{}}"));
        let dir = tempfile::tempdir().unwrap();
        let journal = dir.path().join("journal.jsonl");
        for (text, expected) in [
            (format!("{started}{}", ended(0)), 0),
            (format!("{started}{}{started}{}", ended(8), ended(6)), 6),
            // It was killed, or has not finished.
            (format!("{started}{}{started}", ended(0)), 99),
            (String::new(), 99),
        ] {
            std::fs::write(&journal, &text).unwrap();
            let script = format!("journal={}\n{BY_RECORD}", journal.display());
            let bash = std::process::Command::new("bash")
                .args(["-c", &script])
                .output();
            assert_eq!(bash.unwrap().status.code(), Some(expected), "{text}");
        }
    }

    #[test]
    fn scripts_are_valid_shell() {
        for text in [
            "resumed = true",
            "join = 'first'",
            "background = 'first'\nrun = \"echo 'a b'\"",
            "background = 'first'\nrun = 'true'\nuntil-said = \"it's\"",
        ] {
            let step = step(text);
            let script = script(&step).unwrap();
            let argv = ["bash", "-n", "-c", &script];
            crate::sh::Cmd::new(argv).ok().unwrap();
        }
    }
}
