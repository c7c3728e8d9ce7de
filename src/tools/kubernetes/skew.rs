//! Version compatibility of kubelet and API server. The compatibility of container runtimes is in `runtimes`.
//!
//! Sources: Kubernetes, "Version Skew Policy"; the announcement of Kubernetes 1.35 (cgroup v1).

/// The maximum number of minor versions that a kubelet may be older than the API server. Before kubelet 1.25,
/// it is two.
const OLDER: u64 = 3;

/// The first minor version whose kubelet does not start with cgroup v1, unless its configuration contains `failCgroupV1:
/// false`.
const CGROUP_V2: u64 = 35;

/// The incompatibility with cgroup v1, for a message about a kubelet of unknown version.
pub const CGROUP_V1: &str =
    "the machine uses cgroup v1, which kubelet 1.35 and newer does not support";

/// The remedy for a node with cgroup v1. Sources: Kubernetes, "About cgroup v2"; NVIDIA/OpenShell PR 360 (k3s).
pub const CGROUP_V1_REMEDY: &str = "boot with `systemd.unified_cgroup_hierarchy=1` on the kernel command line (Enterprise Linux: run \
     `grubby --update-kernel=ALL --args=systemd.unified_cgroup_hierarchy=1`, then reboot), or set `failCgroupV1: false` in the \
     kubelet configuration (k3s, RKE2: `kubelet-arg: fail-cgroupv1=false` in `config.yaml`)";

/// Parses the major and minor version of a text such as `v1.34.4`, `1.34.*` or `1.6.20~ds1`.
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

/// Returns the reason if a kubelet is incompatible with an API server.
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

/// Returns the reason if a kubelet does not support cgroup v1.
pub fn with_cgroup_v1(kubelet: &str) -> Option<String> {
    let (_, minor) = series(kubelet)?;
    (minor >= CGROUP_V2).then(|| {
        format!(
            "the machine uses cgroup v1, which kubelet 1.{CGROUP_V2} and newer ({kubelet} here) does not support"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::{series, with_cgroup_v1, with_server};

    #[test]
    fn versions_of_programs_and_packages_are_parsed() {
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
    fn kubelet_is_at_most_three_minor_versions_older() {
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
    fn cgroup_v1_requires_an_older_kubelet() {
        assert_eq!(with_cgroup_v1("1.34.*"), None);
        assert!(with_cgroup_v1("1.35.*").is_some());
    }
}
