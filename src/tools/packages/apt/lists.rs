//! Checks the package lists that apt has downloaded. apt does not sync them to disk, so a power loss may leave them empty
//! or truncated, and apt does not check them again until the signed index of the repository changes.

use std::collections::{BTreeMap, BTreeSet};

use camino::{Utf8Path, Utf8PathBuf};

use crate::{
    host::{FileKind, FilesError, ReadFiles, Stat},
    tools::packages::SourceEntry,
};

/// The directory of the lists.
pub const DIRECTORY: &str = "/var/lib/apt/lists";

/// The last line of a signature, which is at the end of an index or in a separate file.
const SIGNED: &str = "-----END PGP SIGNATURE-----";

/// The suffixes of compressed lists. apt may recompress a list, so its size can differ from the size in the index.
const COMPRESSED: [&str; 6] = [".gz", ".xz", ".bz2", ".lzma", ".lz4", ".zst"];

/// Returns the truncated lists and indexes.
///
/// # Errors
/// If a file cannot be read.
pub fn torn(files: &dyn ReadFiles) -> Result<Vec<Utf8PathBuf>, FilesError> {
    let directory = Utf8Path::new(DIRECTORY);
    let mut sizes = BTreeMap::new();
    for name in files.list(directory)? {
        let is_file = |stat: &Stat| stat.kind == FileKind::File && name != "lock";
        if let Some(stat) = files.stat(&directory.join(&name))?.filter(is_file) {
            sizes.insert(name, stat.size);
        }
    }
    let mut texts = BTreeMap::new();
    for name in sizes.keys().filter(|name| is_signed(name)) {
        let bytes = files.read(&directory.join(name))?.unwrap_or_default();
        texts.insert(name.as_str(), String::from_utf8_lossy(&bytes).into_owned());
    }
    Ok((torn_of(&sizes, &texts).into_iter())
        .map(|name| directory.join(name))
        .collect())
}

/// Whether a file in the directory is a package list.
pub fn is_list(name: &str) -> bool {
    name.ends_with("_Packages") || name.contains("_Packages.")
}

/// Whether the lists are complete enough to conclude that a package is unavailable. At least one list must exist. If archives
/// (sources with the component `main`) are configured, at least one of them must have been downloaded. Other sources are not
/// required, because they may be permanently unreachable. The sources that gpu-bootstrap adds do not count, because their lists
/// are downloaded later.
pub fn are_complete(names: &[String], sources: &[SourceEntry]) -> bool {
    let mut archives = (sources.iter())
        .filter(|source| source.binary && !source.is_ours())
        .filter(|source| {
            source
                .components
                .iter()
                .any(|component| component == "main")
        })
        .map(|source| {
            start(source).is_none_or(|start| names.iter().any(|name| name.starts_with(&start)))
        })
        .peekable();
    names.iter().any(|name| is_list(name))
        && (archives.peek().is_none() || archives.any(|downloaded| downloaded))
}

/// Returns the prefix of all file names of a source with components, or `None` if only apt can determine it (`mirror:`,
/// `cdrom:`).
fn start(source: &SourceEntry) -> Option<String> {
    let (scheme, place) = source.uri.split_once(':')?;
    let place = match scheme {
        "http" | "https" => place.trim_start_matches('/'),
        "file" | "copy" => place.strip_prefix("//").unwrap_or(place),
        _ => return None,
    };
    // apt omits credentials in file names.
    let (host, path) = place.split_at(place.find('/').unwrap_or(place.len()));
    let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
    let whole = format!("{host}{path}/dists/{}/", source.suite);
    // Use the part before the first variable that apt replaces.
    let known = whole.split("$(").next().unwrap_or_default();
    Some(file_name(known))
}

fn is_signed(name: &str) -> bool {
    ["_InRelease", "_Release", "_Release.gpg"]
        .iter()
        .any(|end| name.ends_with(end))
}

/// Returns the truncated files, based on the sizes of all files and the texts of indexes and signatures.
fn torn_of<'n>(
    sizes: &'n BTreeMap<String, u64>,
    texts: &BTreeMap<&str, String>,
) -> BTreeSet<&'n str> {
    let name = |name: &str| sizes.get_key_value(name).map(|(name, _)| name.as_str());
    let text = |name: &str| texts.get(name).map_or("", String::as_str);
    let is_whole = |name: &str| text(name).trim_end().lines().last() == Some(SIGNED);
    let (mut told, mut torn) = (BTreeSet::new(), BTreeSet::new());
    for index in texts.keys().filter(|name| !name.ends_with(".gpg")) {
        let signature = match index.ends_with("_InRelease") {
            true => (*index).to_owned(),
            false => format!("{index}.gpg"),
        };
        // Truncation is detectable only if the index has a signature.
        if texts.contains_key(signature.as_str()) && !is_whole(&signature) {
            torn.extend([name(index), name(&signature)].into_iter().flatten());
            continue;
        }
        let repository = index.rsplit_once('_').map_or("", |(start, _)| start);
        for (path, size) in entries(text(index)) {
            if COMPRESSED.iter().any(|end| path.ends_with(end)) {
                continue;
            }
            if let Some(list) = name(&format!("{repository}_{}", file_name(path))) {
                told.insert(list);
                if sizes[list] != size {
                    torn.insert(list);
                }
            }
        }
    }
    let empty = (sizes.iter()).filter(|(name, size)| **size == 0 && !told.contains(name.as_str()));
    torn.extend(empty.map(|(name, _)| name.as_str()));
    torn
}

/// Returns paths and sizes in the checksum sections: ` HASH SIZE PATH`.
fn entries(text: &str) -> impl Iterator<Item = (&str, u64)> {
    text.lines()
        .filter(|line| line.starts_with(' '))
        .filter_map(|line| {
            let mut words = line.split_whitespace().skip(1);
            let size = words.next()?.parse().ok()?;
            let path = words.next()?;
            (words.next().is_none()).then(|| (path.trim_start_matches("./"), size))
        })
}

/// Converts a path to a file name like apt: `URItoFileName` escapes these characters and replaces slashes with `_`.
pub(super) fn file_name(path: &str) -> String {
    let mut name = String::new();
    for c in path.chars() {
        match c {
            '/' => name.push('_'),
            c if r#"\|{}[]<>"^~_=!@#$%^&*"#.contains(c) => {
                name.push_str(&format!("%{:02x}", u32::from(c)));
            }
            c => name.push(c),
        }
    }
    name
}

#[cfg(test)]
mod tests {
    use super::{are_complete, torn_of};
    use crate::tools::packages::apt::sources;
    use std::collections::BTreeMap;

    const INDEX: &str = "-----BEGIN PGP SIGNED MESSAGE-----\nHash: SHA256\n\nOrigin: Debian\n\
        Description: Debian 12.9 Released 11 January 2025\nMD5Sum:\n \
        aa 44 main/binary-amd64/Packages\n aa 20 main/dep11/Components-amd64.yml.gz\nSHA256:\n \
        bb 44 main/binary-amd64/Packages\n bb 7 x_y@2/Packages\n bb 0 none/Packages\n cc 5 ./Packages\n\
        -----BEGIN PGP SIGNATURE-----\n\nabc\n-----END PGP SIGNATURE-----\n";

    fn found(sizes: &[(&str, u64)], texts: &[(&'static str, &str)]) -> Vec<String> {
        let all = (texts.iter().map(|(name, text)| (*name, text.len() as u64)))
            .chain(sizes.iter().copied());
        let sizes: BTreeMap<String, u64> =
            (all.map(|(name, size)| (name.to_owned(), size))).collect();
        let texts = (texts.iter())
            .map(|(name, text)| (*name, (*text).to_owned()))
            .collect();
        (torn_of(&sizes, &texts).into_iter())
            .map(str::to_owned)
            .collect()
    }

    #[test]
    fn lists_are_complete_after_an_archive_download() {
        let complete = |names: &[&str], line: &str| {
            let names: Vec<String> = names.iter().map(ToString::to_string).collect();
            let sources = format!(
                "{line}\ndeb-src http://src.example.org/debian bookworm main\n\
                 deb https://dead.example.org/debian bookworm stable\n"
            );
            are_complete(&names, &sources::parse("/a.list".into(), &sources))
        };
        for (line, name) in rows! {
            "deb http://joe:pw@deb.example.org/debian bookworm main",
                "deb.example.org_debian_dists_bookworm_InRelease";
            "deb https://deb.example.org:8077/repos/x86_64/ bookworm/updates main contrib",
                "deb.example.org:8077_repos_x86%5f64_dists_bookworm_updates_Release";
            "deb https://deb.example.org/$(ARCH) bookworm main",
                "deb.example.org_amd64_dists_bookworm_InRelease";
            "deb file:/srv/repository bookworm main", "_srv_repository_dists_bookworm_Release";
        } {
            let other = "nvidia.example.org_repos_Packages";
            assert!(complete(&[name, other], line), "{line}");
            assert!(!complete(&[other], line), "{line}");
            // An index without a list is not sufficient.
            assert!(!complete(&[name], line), "{line}");
        }
        // Sources that only apt can resolve, and a machine without an archive.
        let list = ["x_Packages"];
        assert!(complete(
            &list,
            "deb mirror+file:/etc/mirrors.txt bookworm main"
        ));
        assert!(complete(&list, ""));
        // One archive is sufficient, because another one may be dead.
        let two = "deb http://a.example.org/debian bookworm main\n\
                   deb http://b.example.org/ubuntu noble main";
        assert!(complete(
            &["a.example.org_debian_dists_bookworm_main_Packages"],
            two
        ));
        assert!(!complete(&list, two));
    }

    #[test]
    fn list_with_another_size_than_its_index_is_truncated() {
        let whole = [
            ("m_d_main_binary-amd64_Packages", 44),
            ("m_d_x%5fy%402_Packages", 7),
            ("m_d_Packages", 5),
            ("other_main_binary-amd64_Packages", 3),
            // A list that apt has recompressed, and a list that is also empty on the server.
            ("m_d_main_dep11_Components-amd64.yml.gz", 21),
            ("m_d_none_Packages", 0),
        ];
        let index = [("m_d_InRelease", INDEX)];
        assert!(found(&whole, &index).is_empty());
        for at in 0..3 {
            let mut sizes = whole;
            sizes[at].1 -= 1;
            assert_eq!(found(&sizes, &index), [sizes[at].0]);
        }
        assert_eq!(found(&[("x_Packages", 0)], &index), ["x_Packages"]);
    }

    #[test]
    fn index_without_complete_signature_is_truncated() {
        let list = [("m_d_Packages", 5)];
        for cut in [&INDEX[..INDEX.len() - 5], ""] {
            assert_eq!(found(&list, &[("m_d_InRelease", cut)]), ["m_d_InRelease"]);
            let beside = [("m_d_Release", "SHA256:\n"), ("m_d_Release.gpg", cut)];
            assert_eq!(found(&list, &beside), ["m_d_Release", "m_d_Release.gpg"]);
        }
        let beside = [("m_d_Release", INDEX), ("m_d_Release.gpg", INDEX)];
        assert!(found(&list, &beside).is_empty());
        assert_eq!(found(&[("m_d_Packages", 4)], &beside), ["m_d_Packages"]);
    }
}
