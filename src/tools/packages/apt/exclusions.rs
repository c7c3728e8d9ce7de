//! Administrator settings that affect installations: negative priorities, apt_preferences(5); preferences that make apt fail;
//! and the proxy of apt, apt.conf(5).

use camino::{Utf8Path, Utf8PathBuf};

use super::{
    records::{Record, records},
    repository::PREFERENCES,
};
use crate::{
    host::{FileKind, FilesError, ReadFiles, Stat},
    model::{packages::Pin, pattern},
    tools::packages::{
        Exclusion, ForcedOrigin, Impact, SourceEntry, SourceIssue, types::lines_of_proxies,
    },
};

const FILE: &str = "/etc/apt/preferences";
const DIRECTORY: &str = "/etc/apt/preferences.d";

const SETTINGS: &str = "/etc/apt/apt.conf";

/// Returns the lines of the apt configuration that set a proxy.
pub(super) fn proxies(files: &dyn ReadFiles) -> Result<Vec<String>, FilesError> {
    let directory = Utf8PathBuf::from(format!("{SETTINGS}.d"));
    let mut paths = vec![Utf8PathBuf::from(SETTINGS)];
    let names = files.list(&directory)?.into_iter();
    // apt.conf(5): no extension, or `conf`.
    paths.extend(
        names
            .map(|name| directory.join(name))
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

/// Returns the preferences files that apt reads.
fn paths(files: &dyn ReadFiles) -> Result<Vec<Utf8PathBuf>, FilesError> {
    let mut paths = vec![Utf8PathBuf::from(FILE)];
    // apt_preferences(5): no extension, or `pref`. As in all apt directories, hidden files and other characters are not
    // allowed.
    let names = files.list(Utf8Path::new(DIRECTORY))?;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | ':' | '.');
    let read = |name: &String| {
        let ending = Utf8Path::new(name).extension();
        ending.is_none_or(|ending| ending == "pref")
            && !name.starts_with('.')
            && name.chars().all(is_plain)
    };
    paths.extend((names.into_iter().filter(read)).map(|name| Utf8Path::new(DIRECTORY).join(name)));
    Ok(paths)
}

pub(super) fn read(files: &dyn ReadFiles) -> Result<Vec<Exclusion>, FilesError> {
    Exclusion::in_files(files, &paths(files)?, parse)
}

/// Returns the exclusions in files that apt reads after our preferences. Our preferences override them, because apt uses the
/// first record that matches a version.
///
/// # Errors
/// If an existing file cannot be read.
pub(super) fn behind_ours(files: &dyn ReadFiles) -> Result<Vec<Exclusion>, FilesError> {
    let mut paths = paths(files)?;
    paths.retain(|path| {
        let name = path.file_name().unwrap_or_default();
        path.starts_with(DIRECTORY) && name > PREFERENCES && !name.starts_with(PREFERENCES)
    });
    Exclusion::in_files(files, &paths, parse)
}

/// The remedy if our preference allows a version from a repository that the administrator has blocked.
const LIFTED: &str = "nothing was changed; the preference for the driver branch lists packages and takes precedence over a \
     record for `*`: remove the blocked repository, or list these packages in the record that blocks it: `Package: NAMES`, \
     `Pin: origin \"HOST\"`, `Pin-Priority: -1`";

/// Returns [`LIFTED`] if a preferences file contains a negative priority, which blocks versions, apt_preferences(5).
///
/// # Errors
/// If an existing file cannot be read.
pub(super) fn forbids(files: &dyn ReadFiles) -> Result<Option<&'static str>, FilesError> {
    let directory = Utf8Path::new(DIRECTORY);
    let parts = files
        .list(directory)?
        .into_iter()
        .map(|name| directory.join(name));
    for path in parts.chain([FILE.into()]) {
        let is_file = (files.stat(&path)?).is_some_and(|stat| stat.kind != FileKind::Directory);
        if is_file
            && (files.read(&path)?)
                .is_some_and(|text| has_negative_priority(&String::from_utf8_lossy(&text)))
        {
            return Ok(Some(LIFTED));
        }
    }
    Ok(None)
}

fn has_negative_priority(preferences: &str) -> bool {
    preferences.lines().any(|line| {
        (line.split_once(':')).is_some_and(|(key, value)| {
            key.eq_ignore_ascii_case("Pin-Priority") && value.trim_start().starts_with('-')
        })
    })
}

/// The priority of versions from the default release, apt_preferences(5). Only a deliberate record has a higher one.
const DEFAULT_RELEASE: i64 = 990;

/// Returns the records of the administrator that pin one of the packages to versions that our pin does not allow, or to only
/// some of the versions that it allows. A revision of a single configured version is allowed.
///
/// # Errors
/// If an existing file cannot be read.
pub(super) fn contrary(
    files: &dyn ReadFiles,
    ours: &Pin,
    packages: &[&str],
) -> Result<Vec<Exclusion>, FilesError> {
    let mut paths = paths(files)?;
    paths.retain(|path| !(path.file_name()).is_some_and(|name| name.starts_with(PREFERENCES)));
    Exclusion::in_files(files, &paths, |path, text| {
        let of_record = |record: Record| {
            let version = record.field("pin").strip_prefix("version ")?.trim();
            let priority = number(record.field("pin-priority"))?;
            let names = record.field("package");
            let mut patterns = names.split_whitespace();
            let is_listed =
                patterns.any(|one| packages.iter().any(|name| pattern::matches(one, name)));
            let is_contrary =
                is_listed && priority > DEFAULT_RELEASE && !allows(version, &ours.version);
            is_contrary.then(|| Exclusion {
                path: path.to_owned(),
                line: record.line,
                text: format!("Pin: version {version}` with priority {priority} for `{names}"),
                patterns: names.split_whitespace().map(str::to_owned).collect(),
                only: false,
            })
        };
        records(text).into_iter().filter_map(of_record).collect()
    })
}

/// From this priority on, apt selects the pinned version even if a newer one is installed, apt_preferences(5).
const DOWNGRADES: i64 = 1000;

/// Returns the configured repositories that the administrator pins to a priority at which apt downgrades packages. A pin by release is omitted, because the names of releases are only in the package lists.
///
/// # Errors
/// If an existing file cannot be read.
pub(super) fn forced(
    files: &dyn ReadFiles,
    entries: &[SourceEntry],
) -> Result<Vec<ForcedOrigin>, FilesError> {
    let is_configured = |host: &str| (entries.iter()).any(|entry| host_of(&entry.uri) == host);
    let mut found = Vec::new();
    for path in paths(files)? {
        if (path.file_name()).is_some_and(|name| name.starts_with(PREFERENCES)) {
            continue;
        }
        let text = files.read_lossy(&path)?.unwrap_or_default();
        for record in records(&text) {
            let host = record.field("pin").strip_prefix("origin ");
            let (Some(host), Some(priority)) = (host, number(record.field("pin-priority"))) else {
                continue;
            };
            let host = host.trim().trim_matches('"').to_owned();
            let is_high = record.field("package") == "*" && priority >= DOWNGRADES;
            if is_high && !host.is_empty() && is_configured(&host) {
                let path = path.clone();
                found.push(ForcedOrigin {
                    path,
                    host,
                    priority,
                });
            }
        }
    }
    Ok(found)
}

/// Returns the host of a URL. Empty if it has none, such as `file:/srv`.
fn host_of(url: &str) -> &str {
    let (_, rest) = url.split_once("://").unwrap_or_default();
    let authority = rest.split('/').next().unwrap_or_default();
    let (_, host) = authority.rsplit_once('@').unwrap_or(("", authority));
    host.split(':').next().unwrap_or_default()
}

/// Returns the records of the administrator that exclude some of these packages from the hosts of these URLs. Copies of the
/// repositories have no host, so apt does not apply the records to them. Records with a syntax that only apt can match (regular
/// expressions, source packages) are included.
///
/// # Errors
/// If an existing file cannot be read.
pub(super) fn of_hosts(
    files: &dyn ReadFiles,
    urls: &[&str],
    packages: &[&str],
) -> Result<Vec<Exclusion>, FilesError> {
    let hosts: Vec<String> = (urls.iter().map(|url| host_of(url)))
        .filter(|host| !host.is_empty())
        .map(str::to_ascii_lowercase)
        .collect();
    let is_of_host = |pin: &str| {
        let (kind, host) = pin.split_once([' ', '\t']).unwrap_or_default();
        let host = host.trim().trim_matches('"').to_ascii_lowercase();
        kind.eq_ignore_ascii_case("origin")
            && !host.is_empty()
            && (hosts.iter()).any(|one| host.starts_with('/') || pattern::matches(&host, one))
    };
    let is_of_package = |names: &str| {
        names.split_whitespace().any(|one| {
            one == "*"
                || one.starts_with('/')
                || one.starts_with("src:")
                || packages.iter().any(|name| pattern::matches(one, name))
        })
    };
    let mut paths = paths(files)?;
    paths.retain(|path| !(path.file_name()).is_some_and(|name| name.starts_with(PREFERENCES)));
    Exclusion::in_files(files, &paths, |path, text| {
        let of_record = |record: Record| {
            let (pin, names) = (record.field("pin"), record.field("package"));
            let priority = record.field("pin-priority");
            let is_negative =
                priority == "never" || number(priority).is_some_and(|value| value < 0);
            (is_negative && is_of_host(pin) && is_of_package(names)).then(|| Exclusion {
                path: path.to_owned(),
                line: record.line,
                text: format!("Pin: {pin}` with priority {priority} for `{names}"),
                patterns: names.split_whitespace().map(str::to_owned).collect(),
                only: false,
            })
        };
        records(text).into_iter().filter_map(of_record).collect()
    })
}

/// Whether the administrator's pin includes all versions of our pin, or selects a revision of the single version that the
/// settings specify.
fn allows(theirs: &str, ours: &str) -> bool {
    let (theirs, ours) = (theirs.trim_end_matches('*'), ours.trim_end_matches('*'));
    let is_one_version = ours.trim_end_matches(['.', '-']).matches('.').count() > 1;
    ours.starts_with(theirs) || (is_one_version && theirs.starts_with(ours))
}

/// Returns the preferences that make apt fail whenever it selects versions.
///
/// # Errors
/// If an existing file cannot be read.
pub(super) fn issues(files: &dyn ReadFiles) -> Result<Vec<SourceIssue>, FilesError> {
    let mut found = Vec::new();
    for path in paths(files)? {
        // A directory may have such a name, but apt ignores it.
        let is_directory = |stat: &Stat| stat.kind == FileKind::Directory;
        if files.stat(&path)?.as_ref().is_some_and(is_directory) {
            continue;
        }
        let text = files.read_lossy(&path)?.unwrap_or_default();
        if let Some((line, why)) = refused(&text) {
            found.push(SourceIssue {
                impact: Impact::All,
                why: format!("record in line {line} of `{path}` {why}"),
                remedy: format!("correct or remove that record in `{path}`"),
            });
        }
    }
    Ok(found)
}

/// Returns the line of the first record that makes apt fail, and the reason. A record without `Pin`, or with an unknown kind of
/// pin, is ignored. Source: apt, `apt-pkg/policy.cc`, `ReadPinFile`.
fn refused(text: &str) -> Option<(usize, &'static str)> {
    for record in records(text) {
        let line = record.line;
        let packages = record.field("package");
        if packages.is_empty() {
            return Some((line, "has no `Package`"));
        }
        let kind = record.field("pin").split_whitespace().next();
        let is_known = kind.is_some_and(|kind| {
            let is = |name: &str| kind.eq_ignore_ascii_case(name);
            is("release") || is("origin") || (is("version") && packages != "*")
        });
        if !is_known {
            continue;
        }
        let why = match (record.field("pin-priority"), packages) {
            ("never", "*") => continue,
            ("never", _) => "has the priority `never`, which is allowed only in a record for `*`",
            (value, _) => match number(value) {
                Some(0) => {
                    "has no `Pin-Priority`, or 0 (`No priority (or zero) specified for pin`)"
                }
                Some(-32768..=32767) => continue,
                _ => "has a `Pin-Priority` that is not between -32768 and 32767",
            },
        };
        return Some((line, why));
    }
    None
}

/// Parses the number at the start of a value like `strtol`. Returns 0 if there is no number, and `None` if it is too large.
fn number(value: &str) -> Option<i64> {
    let sign = value.starts_with(['-', '+']);
    let digits = value.get(usize::from(sign)..).unwrap_or_default();
    let end = digits.find(|c: char| !c.is_ascii_digit());
    let digits = digits
        .get(..end.unwrap_or(digits.len()))
        .unwrap_or_default();
    let size: i64 = match digits {
        "" => 0,
        digits => digits.parse().ok()?,
    };
    Some(match value.starts_with('-') {
        true => -size,
        false => size,
    })
}

/// Returns the priorities below 0, each with the packages of its stanza. A stanza for `*` is ignored, because it excludes an
/// origin and not a package.
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
    use crate::{
        host::fake::FakeFiles,
        tools::packages::{Sources, apt::Apt},
    };

    #[test]
    fn proxy_is_reported_without_its_credentials() {
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
            one.starts_with("`/etc/apt/apt.conf.d/90proxy`, line 2:"),
            "{one}"
        );
        assert!(
            one.contains("proxy:3128") && !one.contains("s3cret1"),
            "{one}"
        );
    }

    #[test]
    fn invalid_preferences_are_reported_with_their_line() {
        let record = |more: &str| format!("# a comment\n\nPackage: *\nPin: release a=x\n{more}\n");
        for (text, words) in rows! {
            "Package: *\nPin: origin \"repository.netdata.cloud\"\nPriority: 1000\n".to_owned(),
                Some((1, "has no `Pin-Priority`"));
            record("Pin-Priority: x"), Some((3, "or 0"));
            record("Pin-Priority: -0"), Some((3, "or 0"));
            record("Pin-Priority: 32768"), Some((3, "between"));
            record("Pin-Priority: 99999999999999999999"), Some((3, "between"));
            record("Pin-Priority: never").replace('*', "a b"), Some((3, "`never`"));
            "Explanation: x\nPin: release a=x\nPin-Priority: 1\n".to_owned(), Some((1, "no `Package`"));
            record("Pin-Priority: never"), None;
            record("Pin-Priority: -10 "), None;
            record("pin-priority: 1001x"), None;
            "Package:\n a\n b\nPin: version 5.*\nPin-Priority: 1\n".to_owned(), None;
            // apt ignores these.
            "Package: a\n\nPackage: *\nPin: version 5\n\nPackage: a\nPin: site x\n\n#\n".to_owned(), None;
            "Package: *\nPin: release a=x\n \nPin-Priority: 1\n".to_owned(), None;
            String::new(), None;
        } {
            let files = FakeFiles::new();
            files.put("/etc/apt/preferences.d/80netdata", text.as_str());
            for ignored in ["80netdata.bak", "80netdata~", ".80netdata"] {
                files.put(&format!("/etc/apt/preferences.d/{ignored}"), "Pin: x\n");
            }
            let found = issues(&files).unwrap();
            assert_eq!(
                found.len(),
                usize::from(words.is_some()),
                "{text}: {found:?}"
            );
            for (issue, (line, words)) in found.iter().zip(words) {
                let place = format!("line {line} of `/etc/apt/preferences.d/80netdata`");
                assert_eq!(issue.impact, Impact::All);
                assert!(issue.why.contains(&place), "{text}: {}", issue.why);
                assert!(issue.why.contains(words), "{text}: {}", issue.why);
            }
        }
    }

    #[test]
    fn records_that_exclude_a_host_are_found() {
        let urls = [
            "https://nvidia.github.io/deb",
            "http://archive.example.org:80/debian",
            "file:/srv",
        ];
        for (package, pin, priority, is_found) in rows! {
            "*", "origin \"nvidia.github.io\"", "-1", true;
            "*", "Origin archive.example.org", "never", true;
            "*", "origin *.github.io", "-10", true;
            "runc tini*", "origin nvidia.github.io", "-1", true;
            "/^run/", "origin nvidia.github.io", "-1", true;
            "bash", "origin nvidia.github.io", "-1", false;
            "*", "origin nvidia.github.io", "100", false;
            "*", "origin github.io", "-1", false;
            "*", "origin \"\"", "-1", false;
            "*", "release o=NVIDIA", "-1", false;
        } {
            let files = FakeFiles::new();
            let text = format!("Package: {package}\nPin: {pin}\nPin-Priority: {priority}\n");
            files.put("/etc/apt/preferences.d/10-theirs", text.as_str());
            files.put("/etc/apt/preferences.d/zz-gpu-bootstrap-x", text.as_str());
            let found = of_hosts(&files, &urls, &["runc"]).unwrap();
            assert_eq!(found.len(), usize::from(is_found), "{text}: {found:?}");
        }
    }

    #[test]
    fn configured_origins_with_a_high_priority_are_forced() {
        let record = |names: &str, pin: &str, priority: &str| {
            format!("# a comment\nPackage: {names}\nPin: {pin}\nPin-Priority: {priority}\n")
        };
        for (text, is_forced) in rows! {
            record("*", "origin archive.example.com", "1001"), true;
            record("*", "origin \"archive.example.com\"", "1000"), true;
            // `cuda-repository-pin-600` of NVIDIA.
            record("*", "origin archive.example.com", "600"), false;
            record("nvidia-*", "origin archive.example.com", "1001"), false;
            // No source has this host.
            record("*", "origin staging.example.com", "1001"), false;
            record("*", "release o=example", "1001"), false;
        } {
            let files = FakeFiles::new();
            files.put(
                "/etc/apt/sources.list",
                "deb http://archive.example.com/ubuntu jammy main\n",
            );
            files.put("/etc/apt/preferences.d/vendor", text.as_str());
            files.put(
                "/etc/apt/preferences.d/zz-gpu-bootstrap-driver",
                record("*", "origin archive.example.com", "1001"),
            );
            let found = forced(&files, &Apt.entries(&files).expect("readable")).expect("readable");
            assert_eq!(found.len(), usize::from(is_forced), "{text}");
        }
    }

    #[test]
    fn only_negative_priorities_forbid_versions() {
        for (text, expected) in [
            ("Package: *\nPin: release o=A\nPin-Priority: -1\n", true),
            ("Package: a-1\nPin: version -1\npin-priority: 500\n", false),
        ] {
            let files = FakeFiles::new();
            files.put("/etc/apt/preferences.d/site", text);
            assert_eq!(forbids(&files).unwrap().is_some(), expected, "{text}");
        }
    }

    #[test]
    fn only_exclusions_after_our_preferences_are_overridden() {
        let files = FakeFiles::new();
        let ban = "Package: nvidia-*\nPin: origin \"third.example.org\"\nPin-Priority: -1\n";
        for name in [
            "no-third",
            "zz-gpu-bootstrap-driver",
            "zz-site",
            "zzz.bak",
            "zz",
        ] {
            files.put(&format!("{DIRECTORY}/{name}"), ban);
        }
        files.put(FILE, ban);
        let found = behind_ours(&files).unwrap();
        let paths: Vec<&str> = found.iter().map(|one| one.path.as_str()).collect();
        assert_eq!(paths, ["/etc/apt/preferences.d/zz-site"]);
    }

    #[test]
    fn only_a_deliberate_pin_of_other_versions_is_contrary_to_ours() {
        let ours = |version: &str| Pin {
            name: "driver".into(),
            packages: vec!["nvidia-*".into()],
            version: version.into(),
            priority: Pin::PRIORITY,
        };
        for (names, pin, priority, version, is_contrary) in rows! {
            "nvidia-*", "version 570.*", "995", "580.*", true;
            "nvidia-*", "version 570.*", "1001", "580.*", true;
            "libcuda1 nvidia-smi", "version 580.95.05-1", "995", "580.*", true;
            "nvidia-*", "version 580.95.05-1", "995", "580.95.05*", false;
            "nvidia-*", "version 580.*", "1000", "580.*", false;
            "nvidia-*", "version 580*", "1000", "580.95.05*", false;
            "nvidia-*", "version *", "1000", "580.*", false;
            "nvidia-*", "version 570.*", "990", "580.*", false;
            "nvidia-*", "version 570.*", "-1", "580.*", false;
            "nvidia-*", "origin \"third.example.org\"", "995", "580.*", false;
            "docker-ce", "version 570.*", "995", "580.*", false;
        } {
            let files = FakeFiles::new();
            let text =
                format!("# a comment\n\nPackage: {names}\nPin: {pin}\nPin-Priority: {priority}\n");
            files.put("/etc/apt/preferences.d/site", text.as_str());
            files.put(
                "/etc/apt/preferences.d/zz-gpu-bootstrap-driver",
                text.as_str(),
            );
            let found = contrary(&files, &ours(version), &["nvidia-smi"]).unwrap();
            assert_eq!(found.len(), usize::from(is_contrary), "{text}");
            for one in found {
                assert_eq!(
                    one.to_string(),
                    format!(
                        "`/etc/apt/preferences.d/site`, line 3: `Pin: {pin}` with priority {priority} for `{names}`"
                    )
                );
            }
        }
    }

    #[test]
    fn negative_priority_is_reported_with_its_packages() {
        let text = "Package: nvidia-* libcuda1\nPin: origin \"packages.example.com\"\nPin-Priority: -1\n\n\
                    Package: docker.io\nPin: version *\nPin-Priority: 990\n\n\
                    Package: *\nPin: release a=sid\nPin-Priority: -10\n";
        let found = parse("/etc/apt/preferences.d/site".into(), text);
        let [one] = &found[..] else {
            panic!("{found:?}");
        };
        assert_eq!(
            one.to_string(),
            "`/etc/apt/preferences.d/site`, line 3: `Pin-Priority: -1` for `nvidia-* libcuda1`"
        );
        assert!(one.hides("nvidia-smi") && one.hides("libcuda1") && !one.hides("docker.io"));
    }
}
