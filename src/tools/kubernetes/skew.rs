//! Which versions of kubelet and API server go together; of container runtimes `runtimes` knows it.
//!
//! Sources: Kubernetes, "Version Skew Policy"; the announcement of Kubernetes 1.35 (cgroup v1); kubernetes/kubernetes#129462 and
//! kubernetes/system-validators#48 (kernel).

/// How many minor versions a kubelet may be older than the API server; two before 1.25.
const OLDER: u64 = 3;

/// From this minor version on, a kubelet does not start with cgroup v1, unless its configuration has
/// `failCgroupV1: false`.
const CGROUP_V2: u64 = 35;

/// Major and minor version of a text such as `v1.34.4`, `1.34.*` or `1.6.20~ds1`.
#[must_use]
pub fn series(text: &str) -> Option<(u64, u64)> {
    let mut parts = text.trim().trim_start_matches('v').split('.');
    let number = |part: Option<&str>| {
        let digits = part?
            .split(|letter: char| !letter.is_ascii_digit())
            .next()?;
        digits.parse().ok()
    };
    Some((number(parts.next())?, number(parts.next())?))
}

/// Why a kubelet does not go with an API server.
#[must_use]
pub fn with_server(kubelet: &str, server: &str) -> Option<String> {
    let ((major, minor), (theirs, their_minor)) = (series(kubelet)?, series(server)?);
    if (major, minor) > (theirs, their_minor) {
        return Some(format!(
            "the kubelet is {kubelet}, newer than the API server ({server})"
        ));
    }
    let bound = if minor < 25 { OLDER - 1 } else { OLDER };
    (major == theirs && their_minor - minor > bound).then(|| {
        format!("the kubelet is {kubelet}, more than {bound} minor versions older than the API server ({server})")
    })
}

/// Why a kubelet does not go with cgroup v1.
#[must_use]
pub fn with_cgroup_v1(kubelet: &str) -> Option<String> {
    let (_, minor) = series(kubelet)?;
    (minor >= CGROUP_V2).then(|| {
        format!(
            "the machine has cgroup v1, with which a kubelet from 1.{CGROUP_V2} on ({kubelet} here) does not start"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::{series, with_cgroup_v1, with_server};

    #[test]
    fn versions_are_read_as_programs_and_packages_write_them() {
        for (text, expected) in [
            ("v1.34.4", Some((1, 34))),
            ("1.34.*", Some((1, 34))),
            ("1.6.20~ds1", Some((1, 6))),
            ("v1.33.5-eks-113cf36", Some((1, 33))),
            ("v1.33+rke2r1", Some((1, 33))),
            ("2", None),
            ("", None),
        ] {
            assert_eq!(series(text), expected, "{text}");
        }
    }

    #[test]
    fn a_kubelet_is_at_most_three_minor_versions_older_and_never_newer() {
        for (kubelet, server, part) in rows! {
            "v1.34.4", "v1.34.1", None;
            "v1.31.0", "v1.34.1", None;
            "v1.30.0", "v1.34.1", Some("more than 3 minor versions older");
            "v1.24.0", "v1.27.0", Some("more than 2 minor versions older");
            "v1.35.0", "v1.34.9", Some("newer than the API server");
            "v1.34.4", "v1.37.1", None;
            "v1.37.1", "v1.36.4", Some("newer than the API server");
            "unknown", "v1.34.9", None;
        } {
            let why = with_server(kubelet, server);
            match part {
                None => assert_eq!(why, None, "{kubelet} {server}"),
                Some(part) => assert!(why.is_some_and(|why| why.contains(part)), "{kubelet}"),
            }
        }
    }

    #[test]
    fn cgroup_v1_goes_with_older_kubelets() {
        assert_eq!(with_cgroup_v1("1.34.*"), None);
        assert!(with_cgroup_v1("1.35.*").is_some());
    }
}
