//! What an administrator keeps apt from installing: a negative priority, apt_preferences(5); and the proxy that apt is told
//! to use, apt.conf(5).

use camino::{Utf8Path, Utf8PathBuf};

use crate::{
    host::{FilesError, ReadFiles},
    tools::packages::{Exclusion, types::lines_of_proxies},
};

const FILE: &str = "/etc/apt/preferences";
const FOLDER: &str = "/etc/apt/preferences.d";

const SETTINGS: &str = "/etc/apt/apt.conf";

/// The lines of apt's configuration that name a proxy.
pub(super) fn proxies(files: &dyn ReadFiles) -> Result<Vec<String>, FilesError> {
    let folder = Utf8PathBuf::from(format!("{SETTINGS}.d"));
    let mut paths = vec![Utf8PathBuf::from(SETTINGS)];
    let names = files.list(&folder)?.into_iter();
    // apt.conf(5): no extension, or `conf`.
    paths.extend(
        names
            .map(|name| folder.join(name))
            .filter(|path| path.extension().is_none_or(|end| end == "conf")),
    );
    lines_of_proxies(files, &paths, names_proxy)
}

fn names_proxy(line: &str) -> bool {
    let line = line.trim().to_ascii_lowercase();
    let Some((name, value)) = line.split_once('"') else {
        return false;
    };
    let none = ["\"", "direct\"", "false\""];
    !name.starts_with("//")
        && !name.starts_with('#')
        && name.contains("proxy")
        && none.iter().all(|none| !value.starts_with(none))
}

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
    use crate::host::fake::FakeFiles;

    #[test]
    fn the_proxy_of_apt_is_named_without_its_login() {
        let files = FakeFiles::new();
        files.put(
            "/etc/apt/apt.conf.d/90proxy",
            "// Acquire::http::Proxy \"http://old:3128\";\nAcquire::http::Proxy \"http://joe:s3cret1@proxy:3128\";\n\
             Acquire::http::Proxy::mirror.example \"DIRECT\";\nAcquire::Retries \"3\";\n",
        );
        files.put(
            "/etc/apt/apt.conf.d/91.bak",
            "Acquire::http::Proxy \"http://a\";\n",
        );
        let found = proxies(&files).unwrap();
        let [one] = &found[..] else {
            panic!("{found:?}");
        };
        assert!(
            one.starts_with("`/etc/apt/apt.conf.d/90proxy`, line 2, says"),
            "{one}"
        );
        assert!(
            one.contains("proxy:3128") && !one.contains("s3cret1"),
            "{one}"
        );
    }

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
