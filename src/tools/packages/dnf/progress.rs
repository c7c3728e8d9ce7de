//! The progress of a transaction, parsed from the human-readable output of dnf.

use super::sizes;

/// The stages of a transaction in the output: `  Installing       : NAME-VERSION   1/3 `.
const STAGES: [&str; 6] = [
    "Installing",
    "Upgrading",
    "Reinstalling",
    "Downgrading",
    "Erasing",
    "Verifying",
];

/// Whether an output line shows that a download or another stage in [`STAGES`] is done.
pub fn is_stage(line: &str) -> bool {
    if is_download(line) {
        return true;
    }
    let Some((stage, rest)) = line
        .trim_start()
        .split_once(" : ")
        .or_else(|| line.trim_start().split_once(": "))
    else {
        return false;
    };
    let counts = |word: &str| {
        word.split_once('/')
            .is_some_and(|(done, all)| [done, all].iter().all(|part| part.parse::<u32>().is_ok()))
    };
    line.starts_with("  ")
        && STAGES.contains(&stage.trim_end())
        && rest.split_whitespace().last().is_some_and(counts)
}

/// Whether a line is `(1/3): NAME.rpm    75 MB/s | 2.9 MB     00:00    `, or the same without a counter for a single download.
fn is_download(line: &str) -> bool {
    let line = line.trim_end();
    (line.starts_with('(') || line.contains(".rpm "))
        && line.contains(" | ")
        && line
            .rsplit(' ')
            .next()
            .is_some_and(|time| time.contains(':'))
}

/// Returns the total download size in bytes.
pub fn download_size(line: &str) -> Option<u64> {
    sizes::rounded(line.strip_prefix("Total download size: ")?)
}

/// Returns the size in a download line.
pub fn download_part(line: &str) -> Option<u64> {
    if !is_download(line) {
        return None;
    }
    let (_, rest) = line.rsplit_once(" | ")?;
    let (size, _) = rest.trim().rsplit_once(' ')?;
    sizes::rounded(size)
}

#[cfg(test)]
mod tests {
    use super::{download_part, download_size, is_stage};

    #[test]
    fn stages_of_dnf_are_recognized() {
        for (line, expected) in rows! {
            "  Installing       : libnvidia-ml-3:580.95.05-1.el9.x86_64                  2/8 ",
                true;
            "  Verifying        : dkms-3.2.2-1.el9.noarch                                2/8 ",
                true;
            "  Erasing          : fails-postun-1-1.x86_64                                1/1 ",
                true;
            "(1/3): gcc-11.5.0-2.el9.x86_64.rpm               75 MB/s | 2.9 MB     00:00    ", true;
            "unsigned-package-1-1.x86_64.rpm                 813 kB/s | 5.5 kB     00:00    ", true;
            "  Running scriptlet: fails-post-1-1.x86_64                                  3/3 ",
                false;
            "  Preparing        :                                                        1/1 ",
                false;
            "Total                                            66 MB/s | 2.9 MB     00:00     ",
                false;
            "Installing:", false;
            "  Installing : something", false;
            "", false;
        } {
            assert_eq!(is_stage(line), expected, "{line}");
        }
    }

    #[test]
    fn download_sizes_are_parsed() {
        assert_eq!(
            download_size("Total download size: 2.0 M"),
            Some(2 * 1024 * 1024)
        );
        assert_eq!(download_size("Total size: 2.0 M"), None);
        let line =
            "(1/3): gcc-11.5.0-2.el9.x86_64.rpm               75 MB/s | 2.0 MB     00:00    ";
        assert_eq!(download_part(line), Some(2 * 1024 * 1024));
        assert_eq!(download_part("  Installing : x 1/2"), None);
    }
}
