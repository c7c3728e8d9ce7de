//! `/etc/passwd` and `/etc/group`, read as files.

use std::collections::BTreeSet;

pub const PASSWD: &str = "/etc/passwd";

pub const GROUP: &str = "/etc/group";

/// The names in [`PASSWD`] or [`GROUP`]: the first field of each line, passwd(5), group(5).
pub fn names(text: &str) -> BTreeSet<String> {
    (text.lines().filter_map(|line| line.split_once(':')))
        .map(|(name, _)| name.to_owned())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read() {
        let text = "root:x:0:0:root:/root:/bin/bash\nnvpd:x:105:112:NVIDIA,,,:/var/run/nvpd/:/usr/sbin/nologin\n+nis\n";
        assert_eq!(names(text), ["nvpd".to_owned(), "root".to_owned()].into());
    }
}
