//! What an administrator keeps apt from installing: a negative priority, apt_preferences(5).

use camino::{Utf8Path, Utf8PathBuf};

use crate::{
    host::{FilesError, ReadFiles},
    tools::packages::Exclusion,
};

const FILE: &str = "/etc/apt/preferences";
const FOLDER: &str = "/etc/apt/preferences.d";

pub(super) fn read(files: &dyn ReadFiles) -> Result<Vec<Exclusion>, FilesError> {
    let mut paths = vec![Utf8PathBuf::from(FILE)];
    // apt_preferences(5): no extension, or `pref`.
    let names = files.list(Utf8Path::new(FOLDER))?;
    let read = |name: &String| {
        Utf8Path::new(name)
            .extension()
            .is_none_or(|ending| ending == "pref")
    };
    paths.extend((names.into_iter().filter(read)).map(|name| Utf8Path::new(FOLDER).join(name)));
    Exclusion::in_files(files, &paths, parse)
}

/// The priorities below 0, each with the packages of its stanza. One for `*` is about an origin.
fn parse(path: &Utf8Path, text: &str) -> Vec<Exclusion> {
    let mut found = Vec::new();
    let mut packages: Vec<String> = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let line = line.trim_end();
        if line.is_empty() {
            packages.clear();
        }
        let Some((key, value)) = line.split_once(':') else {
            continue;
        };
        let value = value.trim();
        match key.to_ascii_lowercase().as_str() {
            "package" => packages = value.split_whitespace().map(str::to_owned).collect(),
            "pin-priority" if value.parse().is_ok_and(|priority: i32| priority < 0) => {
                let patterns: Vec<String> = (packages.iter())
                    .filter(|name| *name != "*")
                    .cloned()
                    .collect();
                if !patterns.is_empty() {
                    found.push(Exclusion {
                        path: path.to_owned(),
                        line: at + 1,
                        text: format!("{line}` for `{}", packages.join(" ")),
                        patterns,
                        only: false,
                    });
                }
            }
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_negative_priority_is_named_with_its_packages() {
        let text = "Package: nvidia-* libcuda1\nPin: origin \"packages.example.com\"\nPin-Priority: -1\n\n\
                    Package: docker.io\nPin: version *\nPin-Priority: 990\n\n\
                    Package: *\nPin: release a=sid\nPin-Priority: -10\n";
        let found = parse("/etc/apt/preferences.d/site".into(), text);
        let [one] = &found[..] else {
            panic!("{found:?}");
        };
        assert_eq!(
            one.to_string(),
            "`/etc/apt/preferences.d/site`, line 3, says `Pin-Priority: -1` for `nvidia-* libcuda1`"
        );
        assert!(one.hides("nvidia-smi") && one.hides("libcuda1") && !one.hides("docker.io"));
    }
}
