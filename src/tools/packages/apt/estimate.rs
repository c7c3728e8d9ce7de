//! Parses the output of `apt-get --print-uris`: the downloads of a transaction and the disk space that it uses.

use super::sizes;
use crate::tools::packages::Estimate;

/// Parses the output: `'URL' FILE SIZE HASH` for each file that is not downloaded yet, and `After this operation, 264 MB of
/// additional disk space will be used.`
pub fn parse(text: &str) -> Estimate {
    Estimate {
        downloads: text.lines().filter_map(download).collect(),
        unpacked_bytes: text.lines().find_map(used).unwrap_or_default(),
    }
}

fn download(line: &str) -> Option<(String, u64)> {
    let (url, rest) = line.strip_prefix('\'')?.split_once("' ")?;
    let size = rest.split(' ').nth(1)?.parse().ok()?;
    Some((url.to_owned(), size))
}

fn used(line: &str) -> Option<u64> {
    let rest = line.strip_prefix("After this operation, ")?;
    let amount = rest.strip_suffix(" of additional disk space will be used.")?;
    sizes::at_most(amount)
}

#[cfg(test)]
mod tests {
    use super::parse;
    use crate::model::text::reads_any_text;

    /// Output of apt 2.6 on Debian 12.
    const TEXT: &str = "\
The following NEW packages will be installed:
  docker.io runc
0 upgraded, 2 newly installed, 0 to remove and 125 not upgraded.
Need to get 39.0 MB of archives.
After this operation, 264 MB of additional disk space will be used.
'http://deb.example.org/debian/pool/main/r/runc/runc_1.1.5%2bds1-1_amd64.deb' runc_1.1.5+ds1-1_amd64.deb 2709960 MD5Sum:55
'mirror+file:/etc/apt/mirrors/debian.list/pool/main/d/docker.io/docker.io_20.10_amd64.deb' docker.io_20.10_amd64.deb 36256664
";

    #[test]
    fn urls_and_sizes_are_parsed() {
        let found = parse(TEXT);
        assert_eq!(found.unpacked_bytes, 265_000_000);
        assert_eq!(found.download_bytes(), 2_709_960 + 36_256_664);
        assert!(
            found.downloads[1]
                .0
                .starts_with("mirror+file:/etc/apt/mirrors/debian.list/")
        );
        let freed = "After this operation, 12.3 MB disk space will be freed.\n";
        assert_eq!(parse(freed).unpacked_bytes, 0);
    }

    reads_any_text!("('|After this operation, |[0-9.,]* |.)*", |text| parse(
        &text
    ));
}
