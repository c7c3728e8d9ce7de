//! Packages that an administrator has excluded in dnf: dnf.conf(5), `exclude`, `excludepkgs` and `includepkgs`; and the
//! configured `proxy`.

use camino::{Utf8Path, Utf8PathBuf};

use crate::{
    host::{FilesError, ReadFiles},
    tools::packages::{Exclusion, types::lines_of_proxies},
};

/// The common configuration of all repositories.
const MAIN: &str = "/etc/dnf/dnf.conf";

/// Directories of configuration drop-ins and of repositories. Sources: dnf.conf(5), dnf5.conf(5).
const DIRECTORIES: [(&str, &str); 3] = [
    ("/etc/dnf/libdnf5.conf.d", ".conf"),
    ("/etc/yum.repos.d", ".repo"),
    ("/etc/dnf/repos.override.d", ".repo"),
];

/// Returns the files that may exclude packages or set a proxy.
fn files_of(files: &dyn ReadFiles) -> Result<Vec<Utf8PathBuf>, FilesError> {
    let mut paths = vec![Utf8PathBuf::from(MAIN)];
    for (directory, ending) in DIRECTORIES {
        let names = files.list(Utf8Path::new(directory))?;
        let named = names.into_iter().filter(|name| name.ends_with(ending));
        paths.extend(named.map(|name| Utf8Path::new(directory).join(name)));
    }
    Ok(paths)
}

pub(super) fn read(files: &dyn ReadFiles) -> Result<Vec<Exclusion>, FilesError> {
    Exclusion::in_files(files, &files_of(files)?, parse)
}

/// Returns the lines of the dnf configuration that set a proxy.
pub(super) fn proxies(files: &dyn ReadFiles) -> Result<Vec<String>, FilesError> {
    let names_proxy = |line: &str| {
        (line.split_once('=')).is_some_and(|(key, value)| {
            key.trim() == "proxy" && !["", "_none_"].contains(&value.trim())
        })
    };
    lines_of_proxies(files, &files_of(files)?, names_proxy)
}

/// Only `includepkgs` in `[main]` is used, because a repository's `includepkgs` does not affect other repositories.
fn parse(path: &Utf8Path, text: &str) -> Vec<Exclusion> {
    let mut found: Vec<Exclusion> = Vec::new();
    let (mut section, mut continues) = (String::new(), false);
    for (at, line) in text.lines().enumerate() {
        let words = |text: &str| -> Vec<String> {
            (text.split(|c: char| c == ',' || c.is_whitespace()))
                .filter(|word| !word.is_empty())
                .map(str::to_owned)
                .collect()
        };
        if line.starts_with([' ', '\t']) {
            if let Some(last) = found.last_mut().filter(|_| continues) {
                last.patterns.extend(words(line));
            }
            continue;
        }
        continues = false;
        let line = line.trim_end();
        if let Some(name) = line
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'))
        {
            section = name.to_owned();
        }
        let Some((key, value)) = line.split_once('=') else {
            continue;
        };
        let only = match key.trim() {
            "exclude" | "excludepkgs" => false,
            "includepkgs" if section == "main" => true,
            _ => continue,
        };
        continues = true;
        found.push(Exclusion {
            path: path.to_owned(),
            line: at + 1,
            text: line.to_owned(),
            patterns: words(value),
            only,
        });
    }
    // An empty list excludes nothing.
    found.retain(|one| !one.patterns.is_empty());
    found
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::host::fake::FakeFiles;

    fn hidden(text: &str, name: &str) -> Vec<String> {
        let found = parse("/etc/dnf/dnf.conf".into(), text);
        let hides = found.iter().filter(|one| one.hides(name));
        hides.map(ToString::to_string).collect()
    }

    #[test]
    fn line_that_excludes_a_package_is_reported() {
        let text = "[main]\ngpgcheck=1\n# exclude=nvidia*\nexclude = kernel*, nvidia-*\n  docker-ce\nbest=True\n";
        let line = "`/etc/dnf/dnf.conf`, line 4: `exclude = kernel*, nvidia-*`";
        for name in ["nvidia-driver-libs", "kernel", "docker-ce"] {
            assert_eq!(hidden(text, name), [line], "{name}");
        }
        for name in ["containerd.io", "gpgcheck", ""] {
            assert!(hidden(text, name).is_empty(), "{name}");
        }
        assert_eq!(hidden("excludepkgs=dkms-3.2*\n", "dkms").len(), 1);
        assert_eq!(hidden("[main]\nincludepkgs=nginx*\n", "dkms").len(), 1);
        assert!(hidden("[main]\nincludepkgs=nginx* dkms\n", "dkms").is_empty());
        assert!(hidden("[epel]\nincludepkgs=nginx*\n", "dkms").is_empty());
        assert!(hidden("exclude=\n", "dkms").is_empty());
    }

    #[test]
    fn proxy_is_reported_without_its_credentials() {
        let files = FakeFiles::new();
        files.put(
            "/etc/dnf/dnf.conf",
            "[main]\n#proxy=http://old\nproxy = http://joe:s3cret1@10.0.0.9:3128\n",
        );
        files.put("/etc/yum.repos.d/a.repo", "[a]\nproxy=_none_\n");
        let found = proxies(&files).unwrap();
        let [one] = &found[..] else {
            panic!("{found:?}");
        };
        assert!(
            one.starts_with("`/etc/dnf/dnf.conf`, line 3: `proxy = http://"),
            "{one}"
        );
        assert!(!one.contains("s3cret1"), "{one}");
    }

    proptest! {
        #[test]
        fn each_exclusion_has_a_line_of_the_text(text in "([a-z=* ,\\[\\]]{0,12}\n){0,8}") {
            for one in parse("/x".into(), &text) {
                prop_assert_eq!(text.lines().nth(one.line - 1).map(str::trim_end), Some(one.text.as_str()));
            }
        }
    }
}
