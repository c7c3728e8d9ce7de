//! Writes measured CPU times into the case table.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

/// Sets the key `cpu` of each measured case, in the files of the directory `dir`. A case created by `also-on` has no
/// key.
pub fn write(dir: &Path, times: &BTreeMap<String, Duration>) -> Result<()> {
    let entries = fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))?;
    let files: Vec<PathBuf> = entries
        .map(|entry| Ok(entry?.path()))
        .collect::<std::io::Result<_>>()
        .with_context(|| format!("cannot read {}", dir.display()))?;
    for file in files {
        let text =
            fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        let new = with_times(&text, times);
        if new != text {
            fs::write(&file, new).with_context(|| format!("cannot write {}", file.display()))?;
        }
    }
    Ok(())
}

/// The same file with the times and no other change: `cpu` is after `machine`.
fn with_times(text: &str, times: &BTreeMap<String, Duration>) -> String {
    let mut new = String::new();
    // The line that must be written into the current case.
    let (mut in_head, mut seconds) = (false, None);
    for line in text.lines() {
        let key = line.split_once(" = ");
        if line.starts_with('[') {
            in_head = line == "[[case]]";
            seconds = None;
        }
        match key.filter(|_| in_head) {
            Some(("name", name)) => {
                let time = times.get(name.trim_matches('"'));
                seconds = time.map(|time| time.as_secs_f64().round().max(1.0));
            }
            Some(("cpu", _)) if seconds.is_some() => continue,
            _ => {}
        }
        new.push_str(line);
        new.push('\n');
        if let (true, Some(("machine", _)), Some(seconds)) = (in_head, key, seconds) {
            new.push_str(&format!("cpu = {seconds}\n"));
        }
    }
    new
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_written_after_machine() {
        let text = "# text\n[[case]]\nname = \"a\"\nmachine = \"m\"\ncpu = 9\ntakes = 60\n\n[[case.run]]\n\
                    title = \"x\"\nrun = \"\"\"\nmachine = b\n\"\"\"\n\n\
                    [[case]]\nname = \"b\"\nmachine = \"m\"\nrun = []\n";
        let times = |list: &[(&str, u64)]| {
            (list.iter())
                .map(|(name, ms)| (name.to_string(), Duration::from_millis(*ms)))
                .collect::<BTreeMap<_, _>>()
        };
        assert_eq!(with_times(text, &times(&[])), text);
        let new = with_times(text, &times(&[("a", 12_600), ("b", 200)]));
        let wanted = text.replace("cpu = 9", "cpu = 13").replace(
            "name = \"b\"\nmachine = \"m\"\n",
            "name = \"b\"\nmachine = \"m\"\ncpu = 1\n",
        );
        assert_eq!(new, wanted);
    }
}
