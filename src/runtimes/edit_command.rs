//! The `sed` command of a remedy that sets a key in the table of a runtime in a TOML file. `check` changes no file itself.

use toml::{Table, Value};

use super::ConfigFile;
use crate::model::text::shell_word;

/// How the header of a runtime's table ends. `below` is the name of a table in it with a leading dot, or empty. `None` for a
/// name that is not a plain word, because it would be part of a `sed` script.
pub(super) fn table_ends(runtime: &str, below: &str) -> Option<[String; 2]> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
    (!runtime.is_empty() && runtime.chars().all(is_plain)).then(|| {
        [
            format!("runtimes.{runtime}{below}]"),
            format!("runtimes.\"{runtime}\"{below}]"),
        ]
    })
}

/// The `sed` pattern of such a header.
pub(super) fn table_pattern(runtime: &str, below: &str) -> String {
    let below = below.replace('.', "\\.");
    format!("runtimes\\.\"\\?{runtime}\"\\?{below}\\]")
}

/// Returns the command that sets a key in the table of a runtime. `value` is written as in TOML. `None` if the file does not
/// have exactly one such table in a form that `sed` can find, or if the result would not be a valid file with this value, for
/// example because the key is there in another spelling (`"KEY"`).
pub fn set_in_runtime(
    file: &ConfigFile,
    runtime: &str,
    below: &str,
    key: &str,
    value: &str,
) -> Option<String> {
    let ends = table_ends(runtime, below)?;
    let text = file.text.as_deref()?;
    let mut headers = (text.lines()).filter(|line| ends.iter().any(|end| line.contains(end)));
    let header = headers.next().filter(|_| headers.next().is_none())?;
    let is_header = header.trim_start().starts_with('[')
        && ends.iter().any(|end| header.trim_end().ends_with(end));
    if !is_header || value.contains(['\'', '|', '&', '\\', '\n']) {
        return None;
    }
    let set = format!("{key} = {value}");
    let is_key = |line: &str| (line.split_once('=')).is_some_and(|(name, _)| name.trim() == key);
    let (mut replaced, mut added) = (Vec::new(), Vec::new());
    let (mut is_inside, mut has_key) = (false, false);
    for line in text.lines() {
        is_inside &= !line.trim_start().starts_with('[');
        let is_it = is_inside && is_key(line);
        has_key |= is_it;
        replaced.push(if is_it { set.as_str() } else { line });
        added.push(line);
        if line == header {
            is_inside = true;
            added.push(&set);
        }
    }
    let result: Table = toml::from_str(&if has_key { replaced } else { added }.join("\n")).ok()?;
    let wanted: Table = toml::from_str(&format!("{header}\n{set}")).ok()?;
    if !contains(&result, &wanted) {
        return None;
    }
    let pattern = table_pattern(runtime, below);
    let script = match has_key {
        true => {
            format!("/{pattern}/,/^[[:space:]]*\\[/s|^\\([[:space:]]*{key} *=\\).*|\\1 {value}|")
        }
        false => format!("/{pattern}/a {set}"),
    };
    Some(format!("sed -i '{script}' {}", shell_word(&file.path)))
}

/// Whether a table has all values of another one.
fn contains(table: &Table, wanted: &Table) -> bool {
    wanted
        .iter()
        .all(|(key, wanted)| match (table.get(key), wanted) {
            (Some(Value::Table(found)), Value::Table(wanted)) => contains(found, wanted),
            (found, wanted) => found == Some(wanted),
        })
}

#[cfg(test)]
mod tests {
    use super::set_in_runtime;
    use crate::runtimes::ConfigFile;

    #[test]
    fn only_a_valid_result_has_a_command() {
        let header = "[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.nvidia.options]\n";
        let set_to = |text: String, value: &str| {
            let file = ConfigFile {
                path: "/etc/containerd/config.toml".into(),
                text: Some(text),
            };
            set_in_runtime(&file, "nvidia", ".options", "SystemdCgroup", value).is_some()
        };
        let set = |text| set_to(text, "true");
        for lines in [
            "",
            "SystemdCgroup = false\n",
            "  SystemdCgroup=false # x\n",
            "[a]\nSystemdCgroup = 1\n",
        ] {
            assert!(set(format!("{header}{lines}")), "{lines}");
        }
        // Another spelling of the key, an invalid file, and two tables.
        for lines in ["\"SystemdCgroup\" = false\n", "SystemdCgroup =\n[", header] {
            assert!(!set(format!("{header}{lines}")), "{lines}");
        }
        // A header that the pattern of `sed` does not match.
        assert!(!set(header.replace(']', "] # x")));
        // The value would end the argument or the `sed` command in it, or `sed` would change it.
        for value in ["\"it's\"", "\"a|b\"", "\"a&b\""] {
            assert!(!set_to(header.to_owned(), value), "{value}");
        }
    }
}
