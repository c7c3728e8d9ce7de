//! Partial copies of dnf repositories: the complete metadata of the vendor, with its signature if it is verified, and some
//! packages. Packages are verified by their own signatures, with the keys of the machine.
//!
//! dnf downloads metadata without changes, so the files in a cache directory are the vendor's unchanged files. Their names are in
//! `repomd.xml`. Packages of repositories with `file://` URLs are read in place, without a copy in the cache, also with
//! `--cacheonly`. A package with another digest is rejected by `--downloadonly`. Tested with dnf 4.14 and 4.23.
//!
//! The path of a package in its repository is only printed as part of a URL (`repoquery --location`), and the URL of a mirror is
//! unknown. Therefore the metadata is copied, and the query reads the copies.
//!
//! `repoquery` does not print digests: since 4.15 it has a list of permitted tags (`ALLOWED_QUERY_TAGS` in
//! `dnf/cli/commands/repoquery.py`). Therefore they are read from the list `primary.xml` in the cache. In 2026, AlmaLinux compresses
//! it with gzip, EPEL 8 and 9 with xz, and Docker and EPEL 10 with zstd. The dnf of Enterprise Linux cannot read the chunked form
//! (`bcond_with zchunk` in `librepo.spec`). Packages in other lists have no digest, which `lock` reports.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, BufRead, BufReader, ErrorKind, Read},
    time::Duration,
};

use camino::{Utf8Path, Utf8PathBuf};
use flate2::read::MultiGzDecoder;
use lzma_rust2::XzReader;
use quick_xml::{XmlVersion, events::Event, reader::Reader};
use ruzstd::decoding::{FrameDecoder, StreamingDecoder};

use super::{CACHE, Dnf, commands, offers, sources};
use crate::{
    host::{Cmd, FileKind, FilesError, Query, ReadFiles},
    model::secret::has_login,
    tools::packages::{
        Settings, SourceEntry, Sources as _,
        mirrors::{
            Download, ListFile, ListOrigin, ListedDigest, ListedPackage, ListedRepository, Mirror,
            Mirrors, inner,
        },
    },
};

/// Do not use the chunked form of metadata, because it needs requests of parts of files.
const WHOLE_FILES: &str = "--setopt=zchunk=0";

/// One line per package.
const FORMAT: &str =
    "%{name}\\t%{epoch}:%{version}-%{release}\\t%{arch}\\t%{repoid}\\t%{downloadsize}\\n";

/// The directory in the state directory with a copy of the metadata of each repository. The cache directory itself is not used as
/// a repository, because dnf would also read the list of mirrors in it.
const COPIES: &str = "located";

/// Options that are copied: verification, and the choice of packages. Others, such as logins and proxies, belong to the original
/// locations and may be secret. Source: dnf.conf(5).
const COPIED: [&str; 11] = [
    "name",
    "gpgcheck",
    "pkg_gpgcheck",
    "repo_gpgcheck",
    "gpgkey",
    "priority",
    "cost",
    "exclude",
    "excludepkgs",
    "includepkgs",
    "module_hotfixes",
];

/// The partial mirrors of dnf.
#[derive(Debug)]
pub(super) struct DnfMirrors;

/// Adds options to a `dnf` command.
fn with_options(cmd: &Cmd, options: [String; 2]) -> Option<Cmd> {
    (cmd.program == "dnf").then(|| {
        let mut cmd = cmd.clone();
        drop(cmd.args.splice(0..0, options));
        cmd
    })
}

/// The directory with the copy of the metadata of a repository.
fn copy(state: &Utf8Path, at: usize) -> Utf8PathBuf {
    state.join(COPIES).join(at.to_string())
}

/// The limit of an uncompressed `primary.xml` in bytes.
const PRIMARY_LIMIT: u64 = 1 << 30;

/// Whether this is the name of the cache directory of a repository: `ID-HASH`.
fn is_cache(name: &str) -> bool {
    name.rsplit_once('-').is_some_and(|(_, hash)| {
        hash.len() == 16 && hash.bytes().all(|byte| byte.is_ascii_hexdigit())
    })
}

/// Returns the uncompressed content of a `primary.xml`, or `None` if this is another file. createrepo_c writes one zstd frame.
fn primary<'c>(name: &str, content: &'c [u8]) -> io::Result<Option<Box<dyn Read + 'c>>> {
    let Some((_, compression)) = name.split_once("primary.xml") else {
        return Ok(None);
    };
    Ok(Some(match compression {
        "" => Box::new(content),
        ".gz" => Box::new(MultiGzDecoder::new(content)),
        ".xz" => Box::new(XzReader::new_mem_limit(content, true, XZ_MEMORY)),
        ".zst" => Box::new(Zstd(
            StreamingDecoder::new(content).map_err(io::Error::other)?,
        )),
        _ => return Ok(None),
    }))
}

/// The limit of the memory for xz in KiB. `xz -9` needs 65 MiB (xz(1)). The limit of [`StreamingDecoder`] is 128 MiB.
const XZ_MEMORY: u32 = 100 << 10;

/// A zstd frame whose checksum is compared at its end.
struct Zstd<'c>(StreamingDecoder<&'c [u8], FrameDecoder>);

impl Read for Zstd<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.0.read(buffer)?;
        let frame = &self.0.decoder;
        let expected = frame.get_checksum_from_data();
        if count == 0
            && !buffer.is_empty()
            && expected.is_some()
            && expected != frame.get_calculated_checksum()
        {
            return Err(io::Error::new(ErrorKind::InvalidData, "wrong checksum"));
        }
        Ok(count)
    }
}

/// Returns the digests of packages with these IDs in a `primary.xml`. createrepo_c writes name, architecture, version and digest
/// of a package in this order.
fn read_primary(
    list: impl BufRead,
    ids: &BTreeSet<&str>,
) -> Result<Vec<ListedDigest>, quick_xml::Error> {
    let mut list = Reader::from_reader(list.take(PRIMARY_LIMIT));
    list.config_mut().expand_empty_elements = true;
    let (mut found, mut buffer) = (Vec::new(), Vec::new());
    let mut package = ListedDigest::default();
    let mut is_complete = false;
    // The element whose text is read.
    let mut element = Vec::new();
    loop {
        buffer.clear();
        match list.read_event_into(&mut buffer)? {
            Event::Start(start) => {
                let attribute = |name: &str| -> Result<String, quick_xml::Error> {
                    let value = start.try_get_attribute(name)?;
                    let value = value.map(|value| value.normalized_value(XmlVersion::Implicit1_0));
                    Ok(value.transpose()?.unwrap_or_default().into_owned())
                };
                element.clear();
                match start.name().as_ref() {
                    b"package" => package = ListedDigest::default(),
                    b"version" => {
                        let version = format!("{}-{}", attribute("ver")?, attribute("rel")?);
                        package.version = match attribute("epoch")?.as_str() {
                            "" | "0" => version,
                            epoch => format!("{epoch}:{version}"),
                        };
                    }
                    b"checksum" if attribute("type")? != "sha256" => {}
                    name => element.extend_from_slice(name),
                }
            }
            Event::Text(text) => {
                let text = text.decode().map_err(quick_xml::Error::from)?;
                match element.as_slice() {
                    b"name" => text.trim().clone_into(&mut package.name),
                    b"arch" => text.trim().clone_into(&mut package.architecture),
                    b"checksum" => {
                        let mut one = package.clone();
                        if offers::NOT_NATIVE.contains(&one.architecture.as_str()) {
                            one.name = format!("{}.{}", one.name, one.architecture);
                        }
                        if ids.contains(one.name.as_str()) {
                            one.sha256 = text.trim().to_ascii_lowercase();
                            found.push(one);
                        }
                    }
                    _ => {}
                }
            }
            Event::End(end) => {
                element.clear();
                is_complete |= end.name().as_ref() == b"metadata";
            }
            // The checksum of a compressed list was compared at its end.
            Event::Eof if is_complete => return Ok(found),
            Event::Eof => {
                let error = io::Error::new(
                    ErrorKind::UnexpectedEof,
                    "no end of `metadata` within 1 GiB",
                );
                return Err(error.into());
            }
            _ => {}
        }
    }
}

/// Returns the sections of a repository file with new locations. `baseurl` returns the new URL of a repository, or `None` to omit
/// it.
fn relocated(text: &str, baseurl: impl Fn(&str) -> Option<String>) -> String {
    let mut relocated = String::new();
    for (id, options) in sources::sections(text) {
        let Some(url) = baseurl(id) else {
            continue;
        };
        relocated.push_str(&format!("[{id}]\nenabled=1\nbaseurl={url}\n"));
        let mut is_copied = false;
        for (key, value) in options {
            // Without a key, it is another value of the previous option.
            if !key.is_empty() {
                is_copied = COPIED.contains(&key);
            }
            let value = if has_login(value) { "" } else { value };
            match key {
                _ if !is_copied => {}
                "" if value.is_empty() => {}
                "" => relocated.push_str(&format!(" {value}\n")),
                key => relocated.push_str(&format!("{key}={value}\n")),
            }
        }
    }
    relocated
}

impl Mirrors for DnfMirrors {
    fn separate(&self, state: &Utf8Path) -> (Vec<(Utf8PathBuf, String)>, Vec<Utf8PathBuf>) {
        (Vec::new(), vec![state.join("cache")])
    }

    fn separately(&self, cmd: &Cmd, state: &Utf8Path) -> Cmd {
        let options = [
            format!("--setopt=cachedir={state}/cache"),
            WHOLE_FILES.to_owned(),
        ];
        with_options(cmd, options).unwrap_or_else(|| cmd.clone())
    }

    /// The cache directory of a repository is `ID-HASH`, and its metadata is in `repodata`.
    fn listed(
        &self,
        files: &dyn ReadFiles,
        state: &Utf8Path,
        _output: &str,
    ) -> Result<Vec<ListedRepository>, FilesError> {
        let cache = state.join("cache");
        let names = files.list(&cache)?;
        let mut found = Vec::new();
        for entry in Dnf.entries(files)? {
            let Some(id) = entry.id.filter(|_| entry.enabled) else {
                continue;
            };
            let is_of = |name: &&String| {
                let hash = name
                    .strip_prefix(id.as_str())
                    .and_then(|rest| rest.strip_prefix('-'));
                hash.is_some_and(|hash| {
                    hash.len() == 16 && hash.bytes().all(|byte| byte.is_ascii_hexdigit())
                })
            };
            let Some(directory) = names.iter().find(is_of) else {
                continue;
            };
            let directory = cache.join(directory).join("repodata");
            let mut lists = Vec::new();
            for name in files.list(&directory)? {
                let path = directory.join(&name);
                if files
                    .stat(&path)?
                    .is_some_and(|stat| stat.kind == FileKind::File)
                {
                    lists.push(ListFile {
                        path: Utf8Path::new("repodata").join(name),
                        origin: ListOrigin::Downloaded(path),
                    });
                }
            }
            if lists.iter().any(|one| one.path == "repodata/repomd.xml") {
                found.push(ListedRepository {
                    mirror: Mirror {
                        id,
                        ..Mirror::default()
                    },
                    url: entry.uri,
                    lists,
                });
            }
        }
        Ok(found)
    }

    fn copies(
        &self,
        state: &Utf8Path,
        repositories: &[ListedRepository],
    ) -> Vec<(Utf8PathBuf, Utf8PathBuf)> {
        let copies = (repositories.iter().enumerate()).flat_map(|(at, repository)| {
            (repository.lists.iter()).filter_map(move |list| match &list.origin {
                ListOrigin::Downloaded(from) => {
                    Some((from.clone(), copy(state, at).join(&list.path)))
                }
                ListOrigin::At(_) => None,
            })
        });
        copies.collect()
    }

    /// The first query prints everything except the paths, the second one only the paths.
    fn locate(
        &self,
        packages: &[(String, String)],
        state: &Utf8Path,
        repositories: &[ListedRepository],
    ) -> Vec<Query> {
        let names: Vec<String> = (packages.iter())
            .map(|(name, version)| format!("{name}-{version}"))
            .collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let copies = (repositories.iter().enumerate())
            .map(|(at, one)| (one.mirror.id.as_str(), copy(state, at)))
            .collect::<Vec<_>>();
        vec![
            commands::repoquery(&[commands::ALL_STREAMS], FORMAT, &names),
            commands::locations(&state.join(COPIES), &copies, &names),
        ]
    }

    fn located(
        &self,
        output: &str,
        state: &Utf8Path,
        repositories: &[ListedRepository],
    ) -> Vec<ListedPackage> {
        let copies = format!("file://{}/", state.join(COPIES));
        let paths: BTreeMap<(usize, String), Utf8PathBuf> = (output.lines())
            .filter_map(|line| {
                let (at, path) = line.strip_prefix(&copies)?.split_once('/')?;
                let path = inner(path)?;
                Some(((at.parse().ok()?, path.file_name()?.to_owned()), path))
            })
            .collect();
        let mut found: Vec<ListedPackage> = Vec::new();
        for line in output.lines() {
            let fields: Vec<&str> = line.split('\t').collect();
            let [name, version, architecture, id, size] = fields[..] else {
                continue;
            };
            let version = version.strip_prefix("0:").unwrap_or(version);
            let without_epoch = version
                .split_once(':')
                .map_or(version, |(_, version)| version);
            let Some(repository) = repositories.iter().position(|one| one.mirror.id == id) else {
                continue;
            };
            let file = format!("{name}-{without_epoch}.{architecture}.rpm");
            let Some(path) = paths.get(&(repository, file.clone())) else {
                continue;
            };
            let is_known = |one: &ListedPackage| one.name == name && one.version == version;
            // Several repositories may have the same package.
            if offers::NOT_NATIVE.contains(&architecture) || found.iter().any(is_known) {
                continue;
            }
            found.push(ListedPackage {
                name: name.to_owned(),
                version: version.to_owned(),
                repository,
                path: path.clone(),
                download: Download {
                    from: format!("{name}-{version}.{architecture}"),
                    file,
                    sha256: None,
                    // Only for the check of the free space.
                    size: size.parse().unwrap_or_default(),
                },
            });
        }
        found
    }

    fn digests(
        &self,
        files: &dyn ReadFiles,
        packages: &[(String, String)],
        _output: &str,
    ) -> Result<Vec<ListedDigest>, FilesError> {
        let ids: BTreeSet<&str> = packages.iter().map(|(id, _)| id.as_str()).collect();
        let cache = Utf8Path::new(CACHE);
        let mut found = Vec::new();
        for name in files.list(cache)?.iter().filter(|name| is_cache(name)) {
            let directory = cache.join(name).join("repodata");
            for list in files.list(&directory)? {
                let path = directory.join(&list);
                let failed = |source| FilesError::Io {
                    verb: "read",
                    path: path.clone(),
                    source,
                    disk: None,
                };
                if !list.contains("primary.xml") {
                    continue;
                }
                let Some(content) = files.read(&path)? else {
                    continue;
                };
                if let Some(primary) = primary(&list, &content).map_err(failed)? {
                    let read = read_primary(BufReader::new(primary), &ids);
                    let read = read.map_err(|error| io::Error::new(ErrorKind::InvalidData, error));
                    found.extend(read.map_err(failed)?);
                }
            }
        }
        Ok(found)
    }

    /// The command is a plugin of the package `dnf-plugins-core`. It verifies the digests in the metadata. Signatures are verified
    /// by the installation.
    fn fetch(&self, settings: &Settings, downloads: &[&Download], to: &Utf8Path) -> Vec<Cmd> {
        if downloads.is_empty() {
            return Vec::new();
        }
        let destination = format!("--destdir={to}");
        let mut words = vec![
            commands::ALL_STREAMS,
            "download",
            destination.as_str(),
            "--",
        ];
        words.extend(downloads.iter().map(|one| one.from.as_str()));
        let cmd = commands::with_metadata(settings, &words);
        vec![
            cmd.deadline(Duration::from_secs(2 * 60 * 60))
                .silence(Duration::from_secs(600)),
        ]
    }

    fn sources(
        &self,
        files: &dyn ReadFiles,
        bundle: &Utf8Path,
        mirrors: &[Mirror],
        to: &Utf8Path,
    ) -> Result<Vec<(Utf8PathBuf, String)>, FilesError> {
        let entries = Dnf.entries(files)?;
        let url = |id: &str| {
            let is_enabled = |one: &&SourceEntry| one.enabled && one.id.as_deref() == Some(id);
            entries.iter().find(is_enabled)?;
            let mirror = mirrors.iter().find(|mirror| mirror.id == id)?;
            Some(format!("file://{}", bundle.join(&mirror.path)))
        };
        let mut text = String::new();
        for (_, own) in sources::texts(files)? {
            text.push_str(&relocated(&own, url));
        }
        Ok(vec![(to.join("sources/bundle.repo"), text)])
    }

    fn redirected(&self, cmd: &Cmd, to: &Utf8Path) -> Option<Cmd> {
        let options = [
            format!("--setopt=reposdir={to}/sources"),
            WHOLE_FILES.to_owned(),
        ];
        with_options(cmd, options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{host::fake, model::text::reads_any_text};

    const STATE: &str = "/srv/bundle/.state";

    const TO: &str = "/run/gpu-bootstrap/bundle-1";

    const REPOSITORIES: &str = "\
[baseos]
name=AlmaLinux $releasever - BaseOS
mirrorlist=https://mirrors.example.org/baseos
# baseurl=https://repo.example.org/baseos
enabled=1
gpgcheck=1
gpgkey=file:///etc/pki/rpm-gpg/RPM-GPG-KEY-AlmaLinux-9
[crb]
mirrorlist=https://mirrors.example.org/crb
enabled=0
gpgcheck=1
[vendor] # licensed
baseurl=https://vendor.example.org/a
  https://vendor.example.org/b
username=joe
password=s3cret1
  s3cret2
proxy=http://proxy.example.org:3128
proxy_username=joe
proxy_password=s3cret3
sslclientkey=/etc/pki/entitlement/key.pem
repo_gpgcheck=1
gpgkey=https://vendor.example.org/key
  https://joe:s3cret4@vendor.example.org/key
  https://vendor.example.org/older-key
excludepkgs=kernel*
# comment
  nvidia-*
";

    fn listed() -> Vec<ListedRepository> {
        let (host, fakes) = fake::host();
        fakes.files.put("/etc/yum.repos.d/a.repo", REPOSITORIES);
        let cache = format!("{STATE}/cache/baseos-0123456789abcdef");
        for name in ["repomd.xml", "00-primary.xml.gz"] {
            fakes.files.put(&format!("{cache}/repodata/{name}"), name);
        }
        fakes.files.put(&format!("{cache}/mirrorlist"), "x");
        DnfMirrors.listed(&*host.files, STATE.into(), "").unwrap()
    }

    #[test]
    fn metadata_is_copied_from_the_cache() {
        let found = listed();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].mirror.id, "baseos");
        let paths: Vec<&str> = found[0].lists.iter().map(|one| one.path.as_str()).collect();
        assert_eq!(paths, ["repodata/00-primary.xml.gz", "repodata/repomd.xml"]);
    }

    #[test]
    fn packages_are_located_in_their_repositories() {
        let output = "runc\t4:1.2-1.el9\tx86_64\tbaseos\t12\n\
                      gcc\t0:11-1\ti686\tbaseos\t12\n\n\
                      gcc\t0:11-1\tx86_64\tbaseos\t12\n\
                      gcc\t0:11-1\tx86_64\tother\t12\n\
                      tini\t0:1-1\tx86_64\tbaseos\t12\n\
                      file:///srv/bundle/.state/located/0/Packages/runc-1.2-1.el9.x86_64.rpm\n\
                      file:///srv/bundle/.state/located/0/Packages/gcc-11-1.i686.rpm\n\
                      file:///srv/bundle/.state/located/0/Packages/g/gcc-11-1.x86_64.rpm\n\
                      file:///srv/bundle/.state/located/1/Packages/g/gcc-11-1.x86_64.rpm\n\
                      file:///srv/bundle/.state/located/0/../../tini-1-1.x86_64.rpm\n";
        let found = DnfMirrors.located(output, STATE.into(), &listed());
        let names: Vec<&str> = found.iter().map(|one| one.download.from.as_str()).collect();
        assert_eq!(names, ["runc-4:1.2-1.el9.x86_64", "gcc-11-1.x86_64"]);
        assert_eq!(found[1].path, "Packages/g/gcc-11-1.x86_64.rpm");
        assert_eq!(found[1].download.file, "gcc-11-1.x86_64.rpm");
    }

    /// The list is output of createrepo_c 0.17, shortened. It was compressed with gzip 1.12, xz 5.4 and zstd 1.5, the last two with
    /// a checksum.
    #[test]
    fn digests_are_read_from_the_primary_list() {
        let packages = ["runc", "gcc", "gcc.i686"].map(|id| (id.to_owned(), String::new()));
        let text = include_str!("fixtures/primary.xml");
        let line = text.replace('\n', "");
        let lists: [(&str, &[u8]); 5] = [
            ("00-primary.xml", text.as_bytes()),
            ("01-primary.xml", line.as_bytes()),
            (
                "02-primary.xml.gz",
                include_bytes!("fixtures/primary.xml.gz"),
            ),
            (
                "03-primary.xml.xz",
                include_bytes!("fixtures/primary.xml.xz"),
            ),
            (
                "04-primary.xml.zst",
                include_bytes!("fixtures/primary.xml.zst"),
            ),
        ];
        for (name, content) in lists {
            let (host, fakes) = fake::host();
            let directory = format!("{CACHE}/baseos-0123456789abcdef/repodata");
            fakes.files.put(&format!("{directory}/{name}"), content);
            let others = [
                "00-filelists.xml.gz",
                "00-primary.sqlite.xz",
                "00-primary.xml.zck",
            ];
            for other in others {
                fakes.files.put(&format!("{directory}/{other}"), "x");
            }
            fakes.files.put(&format!("{CACHE}/baseos.solv"), "x");
            let found = DnfMirrors.digests(&*host.files, &packages, "").unwrap();
            let found: Vec<[&str; 3]> = (found.iter())
                .map(|one| [&*one.name, &*one.version, &*one.sha256])
                .collect();
            assert_eq!(
                found,
                [
                    ["runc", "4:1.2-1.el9", "aa"],
                    ["gcc.i686", "1.2-1.el9", "bb"],
                    ["gcc", "1.2-1.el9", "cc"]
                ],
                "{name}"
            );
        }
    }

    #[test]
    fn damaged_primary_list_is_an_error() {
        let gzip: &[u8] = include_bytes!("fixtures/primary.xml.gz");
        let xz: &[u8] = include_bytes!("fixtures/primary.xml.xz");
        let zstd: &[u8] = include_bytes!("fixtures/primary.xml.zst");
        // The last bytes of the data, before the checksums.
        let damaged = |list: &[u8], from_end: usize| {
            let mut list = list.to_vec();
            let at = list.len() - from_end;
            list[at] ^= 1;
            list
        };
        let lists: [(&str, &[u8]); 11] = [
            ("primary.xml.gz", &damaged(gzip, 8)),
            ("primary.xml.xz", &damaged(xz, 40)),
            ("primary.xml.zst", &damaged(zstd, 1)),
            ("primary.xml", b"<metadata><package>"),
            ("primary.xml", b"<metadata><name></arch></metadata>"),
            ("primary.xml.gz", &gzip[..gzip.len() / 2]),
            ("primary.xml.xz", &xz[..xz.len() / 2]),
            ("primary.xml.zst", &zstd[..zstd.len() / 2]),
            ("primary.xml.gz", b"x"),
            ("primary.xml.xz", b"x"),
            ("primary.xml.zst", b"x"),
        ];
        for (name, content) in lists {
            let (host, fakes) = fake::host();
            let path = format!("{CACHE}/baseos-0123456789abcdef/repodata/00-{name}");
            fakes.files.put(&path, content);
            let error = DnfMirrors.digests(&*host.files, &[], "").unwrap_err();
            assert_eq!(error.to_string(), format!("read `{path}`"));
            assert!(std::error::Error::source(&error).is_some());
        }
    }

    /// A list of mirrors next to the metadata would replace the paths with URLs of the mirrors.
    #[test]
    fn locations_are_queried_from_copies_of_the_metadata() {
        let repositories = listed();
        let copies = DnfMirrors.copies(STATE.into(), &repositories);
        let to: Vec<&str> = copies.iter().map(|(_, to)| to.as_str()).collect();
        assert_eq!(
            to,
            [
                "/srv/bundle/.state/located/0/repodata/00-primary.xml.gz",
                "/srv/bundle/.state/located/0/repodata/repomd.xml"
            ]
        );
        let packages = [("runc".to_owned(), "4:1.2-1.el9".to_owned())];
        let queries = DnfMirrors.locate(&packages, STATE.into(), &repositories);
        let args = &queries[1].cmd().args;
        let repository = "--repofrompath=baseos,file:///srv/bundle/.state/located/0";
        assert!(args.iter().any(|arg| arg == repository), "{args:?}");
        assert_eq!(args[args.len() - 2..], ["--", "runc-4:1.2-1.el9"]);
    }

    /// The file of a repository may have mode 0600, and the written one has 0644.
    #[test]
    fn repositories_of_the_machine_keep_their_options_without_credentials() {
        let (host, fakes) = fake::host();
        fakes.files.put("/etc/yum.repos.d/a.repo", REPOSITORIES);
        let mirror = |id: &str, path: &str| Mirror {
            id: id.to_owned(),
            path: path.into(),
            ..Mirror::default()
        };
        let mirrors = ["baseos", "crb", "vendor"].map(|id| mirror(id, &format!("mirrors/{id}")));
        let written = DnfMirrors
            .sources(&*host.files, "/srv/bundle".into(), &mirrors, TO.into())
            .unwrap();
        assert_eq!(
            written[0].1,
            "[baseos]\nenabled=1\nbaseurl=file:///srv/bundle/mirrors/baseos\nname=AlmaLinux $releasever - BaseOS\n\
             gpgcheck=1\ngpgkey=file:///etc/pki/rpm-gpg/RPM-GPG-KEY-AlmaLinux-9\n\
             [vendor]\nenabled=1\nbaseurl=file:///srv/bundle/mirrors/vendor\nrepo_gpgcheck=1\n\
             gpgkey=https://vendor.example.org/key\n https://vendor.example.org/older-key\n\
             excludepkgs=kernel*\n nvidia-*\n"
        );
    }

    #[test]
    fn only_dnf_is_redirected() {
        let cmd = DnfMirrors.redirected(&Cmd::new("dnf", ["-y", "install", "a"]), TO.into());
        let args = cmd.unwrap().args;
        assert_eq!(
            args[0],
            "--setopt=reposdir=/run/gpu-bootstrap/bundle-1/sources"
        );
        assert_eq!(args[2..], ["-y", "install", "a"]);
        assert!(
            DnfMirrors
                .redirected(&Cmd::new("rpm", ["-qa"]), TO.into())
                .is_none()
        );
    }

    reads_any_text!("(\\[|\\]|=|\n| |\t|[a-z./]*|.)*", |text| DnfMirrors
        .located(&text, STATE.into(), &listed()); relocated(&text, |_| None);
        drop(read_primary(text.as_bytes(), &BTreeSet::new())));
}
