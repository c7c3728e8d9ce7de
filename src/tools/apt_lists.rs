//! The package lists that apt fetched, and whether they are whole: apt does not sync them, so that
//! a power cut leaves them empty or cut short, and it never looks at them again as long as the
//! repository's signed index stays the same.

use std::collections::BTreeMap;

/// Where apt keeps them.
pub const FOLDER: &str = "/var/lib/apt/lists";

/// The last line of an index that carries its own signature.
const SIGNED: &str = "-----END PGP SIGNATURE-----";

/// Whether a file of [`FOLDER`] is a repository's index, that names the lists and their sizes.
#[must_use]
pub fn is_index(name: &str) -> bool {
    name.ends_with("_InRelease") || name.ends_with("_Release")
}

/// What is not whole of an index and its lists: those names of `sizes`, the files of the folder.
#[must_use]
pub fn torn<'n>(index: &str, text: &str, sizes: &'n BTreeMap<String, u64>) -> Vec<&'n str> {
    let name = |name: &str| sizes.get_key_value(name).map(|(name, _)| name.as_str());
    if index.ends_with("_InRelease") && text.trim_end().lines().last() != Some(SIGNED) {
        return name(index).into_iter().collect();
    }
    let Some((repository, _)) = index.rsplit_once('_') else {
        return Vec::new();
    };
    let mut found: Vec<&str> = entries(text)
        .filter_map(|(path, size)| {
            let list = name(&format!("{repository}_{}", file_name(path)))?;
            (sizes[list] != size).then_some(list)
        })
        .collect();
    found.sort_unstable();
    found.dedup();
    found
}

/// Paths and sizes in the sections of checksums: ` HASH SIZE PATH`.
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

/// As apt writes an address into a file's name (`URItoFileName`), for what a path in an index can
/// hold of it.
fn file_name(path: &str) -> String {
    path.replace('_', "%5f").replace('/', "_")
}

#[cfg(test)]
mod tests {
    use super::torn;
    use std::collections::BTreeMap;

    const INDEX: &str = "-----BEGIN PGP SIGNED MESSAGE-----\nHash: SHA256\n\nOrigin: Debian\n\
        Description: Debian 12.9 Released 11 January 2025\nMD5Sum:\n \
        aa 44 main/binary-amd64/Packages\n aa 20 main/binary-amd64/Packages.xz\nSHA256:\n \
        bb 44 main/binary-amd64/Packages\n bb 7 x_y/Packages\n cc 5 ./Packages\n\
        -----BEGIN PGP SIGNATURE-----\n\nabc\n-----END PGP SIGNATURE-----\n";

    fn found(index: &str, text: &str, sizes: &[(&str, u64)]) -> Vec<String> {
        let sizes: BTreeMap<String, u64> = (sizes.iter())
            .map(|(name, size)| ((*name).to_owned(), *size))
            .collect();
        (torn(index, text, &sizes).into_iter())
            .map(str::to_owned)
            .collect()
    }

    #[test]
    fn a_list_of_another_size_than_its_index_says_is_torn() {
        let whole = [
            ("m_d_InRelease", 1),
            ("m_d_main_binary-amd64_Packages", 44),
            ("m_d_main_binary-amd64_Packages.xz", 20),
            ("m_d_x%5fy_Packages", 7),
            ("m_d_Packages", 5),
            ("other_main_binary-amd64_Packages", 3),
        ];
        assert!(found("m_d_InRelease", INDEX, &whole).is_empty());
        for at in 1..5 {
            let mut sizes = whole;
            sizes[at].1 -= 1;
            assert_eq!(found("m_d_InRelease", INDEX, &sizes), [sizes[at].0]);
        }
        // Kept in a form that the index does not name.
        assert!(found("m_d_InRelease", INDEX, &[("m_d_Packages.lz4", 1)]).is_empty());
    }

    #[test]
    fn an_index_without_the_end_of_its_signature_is_torn() {
        let cut = &INDEX[..INDEX.len() - 5];
        let sizes = [("m_d_InRelease", 1), ("m_d_Packages", 4)];
        assert_eq!(found("m_d_InRelease", cut, &sizes), ["m_d_InRelease"]);
        assert_eq!(found("m_d_InRelease", "", &sizes), ["m_d_InRelease"]);
        // One whose signature is in a file of its own.
        assert_eq!(found("m_d_Release", INDEX, &sizes), ["m_d_Packages"]);
        assert!(found("m_d_Release", "", &sizes).is_empty());
    }
}
