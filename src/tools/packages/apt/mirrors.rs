//! Partial copies of apt repositories: the signed `InRelease`, the compressed `Packages` that it lists, and some packages.
//!
//! apt verifies them with the keys of the machine, so they need neither a key of ours nor `trusted=yes`. Tested with apt 2.6: a
//! mirror with only an uncompressed `Packages` is rejected ("Hash Sum mismatch"), so the compressed one is downloaded again. The
//! other targets of apt (`Contents`, DEP-11, translations) must be disabled, because their files are not in the bundle.

use std::{collections::BTreeMap, time::Duration};

use camino::{Utf8Path, Utf8PathBuf};

use super::{Apt, commands, exclusions, lists, sources};
use crate::{
    host::{Cmd, FilesError, Query, ReadFiles},
    tools::packages::{
        Exclusion, Settings, SourceEntry, Sources as _,
        mirrors::{
            Download, ListFile, ListOrigin, ListedDigest, ListedPackage, ListedRepository, Mirror,
            Mirrors, inner,
        },
    },
};

/// Programs that read the sources.
const PROGRAMS: [&str; 4] = ["apt-get", "apt-cache", "apt-mark", commands::HELPER];

/// The file with the sources of a bundle.
const SOURCES: &str = "sources/bundle.sources";

/// The file with the settings that select [`SOURCES`].
const SETTINGS: &str = "apt.conf";

/// Files per download command, so that its arguments stay short.
const AT_ONCE: usize = 50;

/// The partial mirrors of apt.
#[derive(Debug)]
pub(super) struct AptMirrors;

/// Returns the sources in the files of a bundle below `to`. Empty if there are none.
///
/// # Errors
/// If the file cannot be read.
pub(super) fn redirected(
    files: &dyn ReadFiles,
    to: &Utf8Path,
) -> Result<Vec<SourceEntry>, FilesError> {
    let path = to.join(SOURCES);
    let text = files.read_lossy(&path)?;
    Ok(text.map_or_else(Vec::new, |text| sources::parse(&path, &text)))
}

/// Adds settings that apt reads before its own, apt.conf(5).
fn with_settings(cmd: &Cmd, settings: &str) -> Option<Cmd> {
    let reads = PROGRAMS.contains(&cmd.program.as_str());
    reads.then(|| cmd.clone().env("APT_CONFIG", settings))
}

/// A paragraph of `apt-get indextargets`.
struct Target<'t>(BTreeMap<&'t str, &'t str>);

impl<'t> Target<'t> {
    fn all(text: &'t str) -> impl Iterator<Item = Self> {
        text.split("\n\n").map(|paragraph| {
            Self(
                (paragraph.lines())
                    .filter_map(|line| line.split_once(':'))
                    .map(|(key, value)| (key, value.trim()))
                    .collect(),
            )
        })
    }

    fn field(&self, key: &str) -> &'t str {
        self.0.get(key).copied().unwrap_or_default()
    }
}

/// Returns the size and the digest of a file in a signed index: ` HASH SIZE PATH` in the section `SHA256`.
fn digest_of<'t>(index: &'t str, path: &str) -> Option<(u64, &'t str)> {
    let lines = index.lines().skip_while(|line| *line != "SHA256:").skip(1);
    lines
        .take_while(|line| line.starts_with(' '))
        .find_map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words[..] {
                [digest, size, found]
                    if found.strip_prefix("./").unwrap_or(found) == path && is_digest(digest) =>
                {
                    Some((size.parse().ok()?, digest))
                }
                _ => None,
            }
        })
}

fn is_digest(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Decodes `%2b` in a URL.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, behind @ ..] = rest {
        let hex = behind
            .get(..2)
            .and_then(|hex| std::str::from_utf8(hex).ok());
        let byte = hex.and_then(|hex| u8::from_str_radix(hex, 16).ok());
        match (first, byte) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = &behind[2..];
            }
            _ => {
                bytes.push(*first);
                rest = behind;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A line of `apt-get download --print-uris`: `'URL' NAME_VERSION_ARCHITECTURE.deb SIZE SHA256:DIGEST`.
struct PrintedFile<'l> {
    url: &'l str,
    file: &'l str,
    size: u64,
    digest: ListedDigest,
}

impl<'l> PrintedFile<'l> {
    fn parse(line: &'l str) -> Option<Self> {
        let (url, rest) = line.strip_prefix('\'')?.split_once("' ")?;
        let words: Vec<&str> = rest.split(' ').collect();
        let [file, size, digest] = words[..] else {
            return None;
        };
        let digest = digest
            .strip_prefix("SHA256:")
            .filter(|text| is_digest(text))?;
        let parts: Vec<String> = file.strip_suffix(".deb")?.split('_').map(decoded).collect();
        let [name, version, architecture] = &parts[..] else {
            return None;
        };
        Some(Self {
            url,
            file,
            size: size.parse().ok()?,
            digest: ListedDigest {
                name: name.clone(),
                version: version.clone(),
                architecture: architecture.clone(),
                sha256: digest.to_ascii_lowercase(),
            },
        })
    }
}

/// Queries the locations and digests of packages. A missing package does not prevent the output of the others (apt 2.6).
fn print_uris(packages: &[(String, String)]) -> Query {
    let options = [
        "-q",
        "-oAcquire::ForceHash=SHA256",
        "download",
        "--print-uris",
        "--",
    ];
    let packages = packages
        .iter()
        .map(|(name, version)| format!("{name}={version}"));
    let args = options
        .iter()
        .map(|word| (*word).to_owned())
        .chain(packages);
    Query::new("apt-get", args).deadline(Duration::from_secs(300))
}

impl Mirrors for AptMirrors {
    fn separate(&self, state: &Utf8Path) -> (Vec<(Utf8PathBuf, String)>, Vec<Utf8PathBuf>) {
        let text = format!(
            "Dir::State::Lists \"{state}/lists\";\nDir::Cache \"{state}/cache\";\nAcquire::Languages \"none\";\n"
        );
        let directories = ["lists/partial", "cache/archives/partial"];
        (
            vec![(state.join(SETTINGS), text)],
            directories.map(|name| state.join(name)).into(),
        )
    }

    fn separately(&self, cmd: &Cmd, state: &Utf8Path) -> Cmd {
        let settings = state.join(SETTINGS);
        with_settings(cmd, settings.as_str()).unwrap_or_else(|| cmd.clone())
    }

    /// apt-get(8): lists only downloaded files.
    fn list(&self) -> Option<Query> {
        Some(Query::new(
            "apt-get",
            ["indextargets", "Created-By: Packages"],
        ))
    }

    fn listed(
        &self,
        files: &dyn ReadFiles,
        state: &Utf8Path,
        output: &str,
    ) -> Result<Vec<ListedRepository>, FilesError> {
        let directory = state.join("lists");
        let names = files.list(&directory)?;
        let mut found: Vec<ListedRepository> = Vec::new();
        for target in Target::all(output) {
            let (key, url) = (target.field("MetaKey"), target.field("URI"));
            let (base, repository) = (url.strip_suffix(key), target.field("Repo-URI"));
            let (Some(base), false) = (base, key.is_empty() || repository.is_empty()) else {
                continue;
            };
            // The directory of the index in the repository: empty for a flat repository.
            let Some(at) = base.strip_prefix(repository) else {
                continue;
            };
            let list = Utf8Path::new(target.field("Filename")).file_name();
            let stem =
                list.and_then(|list| list.rfind(&lists::file_name(key)).map(|at| &list[..at]));
            let Some(stem) = stem else {
                continue;
            };
            let mut indexes = Vec::new();
            for name in ["InRelease", "Release", "Release.gpg"] {
                let downloaded = format!("{stem}{name}");
                let path = inner(&format!("{at}{name}"));
                if let (true, Some(path)) = (names.contains(&downloaded), path) {
                    let origin = ListOrigin::Downloaded(directory.join(downloaded));
                    indexes.push(ListFile { path, origin });
                }
            }
            let Some(ListOrigin::Downloaded(index)) = indexes.first().map(|one| &one.origin) else {
                continue;
            };
            let index = files.read_lossy(index)?.unwrap_or_default();
            let compressed = [".xz", ".gz", ".bz2", ""].into_iter().find_map(|end| {
                let (size, digest) = digest_of(&index, &format!("{key}{end}"))?;
                Some((end, size, digest))
            });
            let Some((end, size, digest)) = compressed else {
                continue;
            };
            let Some(path) = inner(&format!("{at}{key}{end}")) else {
                continue;
            };
            let packages = ListFile {
                path,
                origin: ListOrigin::At(Download {
                    from: format!("{url}{end}"),
                    file: format!("{stem}{}{end}", lists::file_name(key)),
                    sha256: Some(digest.to_owned()),
                    size,
                }),
            };
            let canonical = SourceEntry::canonical(repository);
            // apt prints the suite `/` of a flat repository as an empty text.
            let suite = match target.field("Release") {
                "" => "/".to_owned(),
                suite => suite.to_owned(),
            };
            let at = (found.iter())
                .position(|one| one.mirror.url == canonical && one.mirror.suite == suite);
            let at = at.unwrap_or_else(|| {
                found.push(ListedRepository {
                    mirror: Mirror {
                        url: canonical,
                        suite,
                        ..Mirror::default()
                    },
                    url: repository.to_owned(),
                    lists: indexes,
                });
                found.len() - 1
            });
            let one = &mut found[at];
            one.lists.push(packages);
            for (values, key) in [
                (&mut one.mirror.components, "Component"),
                (&mut one.mirror.architectures, "Architecture"),
            ] {
                let value = target.field(key).to_owned();
                if !value.is_empty() && !values.contains(&value) {
                    values.push(value);
                }
            }
        }
        Ok(found)
    }

    fn locate(
        &self,
        packages: &[(String, String)],
        _state: &Utf8Path,
        _repositories: &[ListedRepository],
    ) -> Vec<Query> {
        vec![print_uris(packages)]
    }

    fn located(
        &self,
        output: &str,
        _state: &Utf8Path,
        repositories: &[ListedRepository],
    ) -> Vec<ListedPackage> {
        let package = |line: &str| {
            let printed = PrintedFile::parse(line)?;
            let url = printed.url;
            let repository = (repositories.iter().enumerate())
                .filter(|(_, one)| url.starts_with(&one.url))
                .max_by_key(|(_, one)| one.url.len())
                .map(|(at, _)| at)?;
            let path = inner(&decoded(&url[repositories[repository].url.len()..]))?;
            Some(ListedPackage {
                name: printed.digest.name,
                version: printed.digest.version,
                repository,
                path,
                download: Download {
                    from: url.to_owned(),
                    file: printed.file.to_owned(),
                    sha256: Some(printed.digest.sha256),
                    size: printed.size,
                },
            })
        };
        output.lines().filter_map(package).collect()
    }

    /// apt prints only the file that it would download.
    fn digests_query(&self, packages: &[(String, String)]) -> Option<Query> {
        Some(print_uris(packages))
    }

    fn digests(
        &self,
        _files: &dyn ReadFiles,
        _packages: &[(String, String)],
        output: &str,
    ) -> Result<Vec<ListedDigest>, FilesError> {
        let digest = |line| PrintedFile::parse(line).map(|printed| printed.digest);
        Ok(output.lines().filter_map(digest).collect())
    }

    fn fetch(&self, settings: &Settings, downloads: &[&Download], to: &Utf8Path) -> Vec<Cmd> {
        let command = |some: &[&Download]| {
            let mut args = vec!["download-file".to_owned(), "--".to_owned()];
            for one in some {
                args.extend([one.from.clone(), to.join(&one.file).into_string()]);
                args.extend(one.sha256.iter().map(|digest| format!("SHA256:{digest}")));
            }
            commands::helper(settings, args)
        };
        downloads.chunks(AT_ONCE).map(command).collect()
    }

    fn sources(
        &self,
        files: &dyn ReadFiles,
        bundle: &Utf8Path,
        mirrors: &[Mirror],
        to: &Utf8Path,
    ) -> Result<Vec<(Utf8PathBuf, String)>, FilesError> {
        let mut stanzas: Vec<String> = Vec::new();
        // A flat repository has no architecture, but its URL may contain `$(ARCH)`.
        let every = mirrors
            .iter()
            .find_map(|mirror| mirror.architectures.first());
        for entry in Apt.entries(files)? {
            let is_of = |mirror: &&Mirror| {
                let architecture = mirror.architectures.first().or(every).map(String::as_str);
                entry.names(&mirror.url, &mirror.suite, architecture)
            };
            let Some(mirror) = mirrors.iter().find(is_of) else {
                continue;
            };
            let components: Vec<&str> = (entry.components.iter())
                .filter(|one| mirror.components.contains(one))
                .map(String::as_str)
                .collect();
            // A repository with components is read as a flat one without them.
            if !entry.binary || components.is_empty() && !mirror.components.is_empty() {
                continue;
            }
            let mut stanza = format!(
                "Types: deb\nURIs: file:{}\nSuites: {}\n",
                bundle.join(&mirror.path),
                mirror.suite
            );
            let mut field = |key: &str, value: &str| {
                if !value.is_empty() {
                    stanza.push_str(&format!("{key}: {value}\n"));
                }
            };
            field("Components", &components.join(" "));
            field("Architectures", &mirror.architectures.join(" "));
            // An embedded key has several lines.
            let key = entry.signed_by.unwrap_or_default();
            field("Signed-By", &key.replace('\n', "\n "));
            // A bundle is intentionally older than the archive. The lock file selects its versions.
            field("Check-Valid-Until", "no");
            field("Targets", "Packages");
            field("Languages", "none");
            if !stanzas.contains(&stanza) {
                stanzas.push(stanza);
            }
        }
        let settings = format!(
            "Dir::Etc::SourceList \"/dev/null\";\nDir::Etc::SourceParts \"{to}/sources\";\n\
             APT::Get::List-Cleanup \"false\";\n"
        );
        Ok(vec![
            (to.join(SOURCES), stanzas.join("\n")),
            (to.join(SETTINGS), settings),
        ])
    }

    fn forbidden(
        &self,
        files: &dyn ReadFiles,
        mirrors: &[Mirror],
        packages: &[&str],
    ) -> Result<Vec<Exclusion>, FilesError> {
        let urls: Vec<&str> = mirrors.iter().map(|mirror| mirror.url.as_str()).collect();
        exclusions::of_hosts(files, &urls, packages)
    }

    fn redirected(&self, cmd: &Cmd, to: &Utf8Path) -> Option<Cmd> {
        with_settings(cmd, to.join(SETTINGS).as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{host::fake, model::text::reads_any_text};

    const STATE: &str = "/srv/bundle/.state";

    const TO: &str = "/run/gpu-bootstrap/bundle-1";

    /// Output of apt 2.6.2 on Debian 12, shortened.
    const TARGETS: &str = "\
MetaKey: main/binary-amd64/Packages
URI: http://archive.example.org/debian/dists/bookworm/main/binary-amd64/Packages
Filename: /srv/bundle/.state/lists/archive.example.org_debian_dists_bookworm_main_binary-amd64_Packages.lz4
Architecture: amd64
Component: main
Release: bookworm
Repo-URI: http://archive.example.org/debian/

MetaKey: Packages
URI: https://developer.example.org/debian12/x86_64/Packages
Filename: /srv/bundle/.state/lists/developer.example.org_debian12_x86%5f64_Packages
Release: 
Repo-URI: https://developer.example.org/debian12/x86_64/
";

    const DIGEST: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

    fn listed() -> Vec<ListedRepository> {
        let (host, fakes) = fake::host();
        let put = |name: &str, path: &str| {
            let text = format!(
                "MD5Sum:\n 00 1 {path}\nSHA256:\n {DIGEST} 22 {path}\n {DIGEST} 11 {path}.xz\n"
            );
            fakes
                .files
                .put(&format!("{STATE}/lists/{name}_InRelease"), text);
        };
        put(
            "archive.example.org_debian_dists_bookworm",
            "main/binary-amd64/Packages",
        );
        put("developer.example.org_debian12_x86%5f64", "Packages");
        AptMirrors
            .listed(&*host.files, STATE.into(), TARGETS)
            .unwrap()
    }

    #[test]
    fn signed_lists_are_copied_and_packages_lists_downloaded_again() {
        let found = listed();
        let lists: Vec<&str> = found[0].lists.iter().map(|one| one.path.as_str()).collect();
        assert_eq!(
            lists,
            [
                "dists/bookworm/InRelease",
                "dists/bookworm/main/binary-amd64/Packages.xz"
            ]
        );
        let ListOrigin::At(download) = &found[0].lists[1].origin else {
            panic!("{found:?}");
        };
        assert_eq!(download.size, 11);
        assert_eq!(
            download.from,
            "http://archive.example.org/debian/dists/bookworm/main/binary-amd64/Packages.xz"
        );
        let flat = &found[1];
        assert_eq!(flat.mirror.suite, "/");
        assert!(flat.mirror.components.is_empty());
        assert_eq!(flat.lists[0].path, "InRelease");
        assert_eq!(flat.lists[1].path, "Packages.xz");
    }

    #[test]
    fn packages_are_located_in_their_repositories() {
        let output = format!(
            "'http://archive.example.org/debian/pool/main/r/runc/runc_1.1.5%2bds1-1_amd64.deb' runc_1.1.5+ds1-1_amd64.deb 2709960 \
             SHA256:{DIGEST}\n\
             'https://developer.example.org/debian12/x86_64/./libcuda1_580-1_amd64.deb' libcuda1_1%3a580-1_amd64.deb 5 \
             SHA256:{DIGEST}\n\
             'https://elsewhere.example.org/x_1_all.deb' x_1_all.deb 5 SHA256:{DIGEST}\n\
             'https://developer.example.org/debian12/x86_64/../../x_1_all.deb' x_1_all.deb 5 SHA256:{DIGEST}\n"
        );
        let found = AptMirrors.located(&output, STATE.into(), &listed());
        let found: Vec<(&str, &str, usize, &str)> = (found.iter())
            .map(|one| {
                let (name, version) = (one.name.as_str(), one.version.as_str());
                (name, version, one.repository, one.path.as_str())
            })
            .collect();
        assert_eq!(
            found,
            [
                (
                    "runc",
                    "1.1.5+ds1-1",
                    0,
                    "pool/main/r/runc/runc_1.1.5+ds1-1_amd64.deb"
                ),
                ("libcuda1", "1:580-1", 1, "libcuda1_580-1_amd64.deb"),
            ]
        );
        // A digest does not depend on the location. apt prints another one if the list has no SHA-256.
        let (host, _) = fake::host();
        let other = "'http://archive.example.org/y_1_all.deb' y_1_all.deb 5 MD5Sum:0\n";
        let found = AptMirrors.digests(&*host.files, &[], &format!("{output}{other}"));
        let found: Vec<String> = (found.unwrap().iter())
            .map(|one| {
                format!(
                    "{}:{} {} {}",
                    one.name, one.architecture, one.version, one.sha256
                )
            })
            .collect();
        assert_eq!(
            found[..2],
            [
                format!("runc:amd64 1.1.5+ds1-1 {DIGEST}"),
                format!("libcuda1:amd64 1:580-1 {DIGEST}")
            ]
        );
        assert_eq!(found.len(), 4);
    }

    #[test]
    fn sources_of_the_machine_keep_their_keys() {
        let (host, fakes) = fake::host();
        fakes.files.put(
            "/etc/apt/sources.list.d/debian.sources",
            "Types: deb deb-src\nURIs: http://archive.example.org/debian\nSuites: bookworm bookworm-updates\n\
             Components: main contrib\nSigned-By: /usr/share/keyrings/debian-archive-keyring.gpg\n",
        );
        fakes.files.put(
            "/etc/apt/sources.list.d/own.sources",
            "Types: deb\nURIs: https://developer.example.org/debian12/x86_64/\nSuites: /\nSigned-By:\n -----BEGIN\n .\n key\n",
        );
        let mirrors: Vec<Mirror> = (listed().into_iter().enumerate())
            .map(|(at, one)| Mirror {
                path: format!("mirrors/{at}").into(),
                ..one.mirror
            })
            .collect();
        let written = AptMirrors
            .sources(&*host.files, "/srv/bundle".into(), &mirrors, TO.into())
            .unwrap();
        assert_eq!(
            written[0].1,
            "Types: deb\nURIs: file:/srv/bundle/mirrors/0\nSuites: bookworm\nComponents: main\nArchitectures: amd64\n\
             Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\nCheck-Valid-Until: no\nTargets: Packages\n\
             Languages: none\n\n\
             Types: deb\nURIs: file:/srv/bundle/mirrors/1\nSuites: /\n\
             Signed-By: \n -----BEGIN\n .\n key\nCheck-Valid-Until: no\nTargets: Packages\nLanguages: none\n"
        );
        assert!(!written[0].1.to_ascii_lowercase().contains("trusted"));
        let mirror = Mirror {
            url: "https://flat.example.org/deb/amd64".to_owned(),
            suite: "/".to_owned(),
            path: "mirrors/2".into(),
            ..Mirror::default()
        };
        fakes.files.put(
            "/etc/apt/sources.list.d/flat.list",
            "deb https://flat.example.org/deb/$(ARCH) /\n",
        );
        let all = [&mirrors[0], &mirror].map(Clone::clone);
        let written = AptMirrors
            .sources(&*host.files, "/srv/bundle".into(), &all, TO.into())
            .unwrap();
        assert!(
            written[0]
                .1
                .contains("file:/srv/bundle/mirrors/2\nSuites: /\n")
        );
    }

    #[test]
    fn only_commands_that_read_sources_are_redirected() {
        let cmd = Cmd::new("apt-get", ["update"]);
        let env = AptMirrors.redirected(&cmd, TO.into()).unwrap().env;
        assert!(env.contains(&("APT_CONFIG".to_owned(), format!("{TO}/apt.conf"))));
        let cmd = Cmd::new("dpkg", ["-l"]);
        assert!(AptMirrors.redirected(&cmd, TO.into()).is_none());
    }

    #[test]
    fn downloads_are_verified() {
        let download = Download {
            from: "https://example.org/a.deb".to_owned(),
            file: "a.deb".to_owned(),
            sha256: Some(DIGEST.to_owned()),
            size: 1,
        };
        let settings = Settings::behind_a_proxy();
        let cmds = AptMirrors.fetch(&settings, &[&download], "/srv/x".into());
        assert_eq!(
            cmds[0].args[3..],
            [
                "download-file",
                "--",
                "https://example.org/a.deb",
                "/srv/x/a.deb",
                &format!("SHA256:{DIGEST}")
            ]
        );
        assert!(!cmds[0].line().contains("s3cret"));
    }

    reads_any_text!("('|_|[a-z/.:]*|.)*", |text| AptMirrors.located(
        &text,
        STATE.into(),
        &listed()
    ));
}
