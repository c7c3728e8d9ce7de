//! Compatibility of kubelets and containerd.
//!
//! Sources: containerd, `RELEASES.md`, "Kubernetes Support"; the announcement of Kubernetes 1.26 (CRI v1); KEP-4033 and its
//! deferrals (containerd 1.x).

use crate::tools::kubernetes::skew::series;

/// Minor versions of Kubernetes, each with the minimum containerd version for its kubelet and newer ones.
const CONTAINERD: [(u64, (u64, u64)); 2] = [(26, (1, 6)), (DROPS_1, (2, 0))];

/// The minor version of Kubernetes that drops containerd 1.x. It was announced for 1.36 and deferred twice (KEP-4033,
/// kubernetes/enhancements#6087). A note is shown from 1.36 on.
const DROPS_1: u64 = 38;
const ANNOUNCED: u64 = 36;

/// The containerd versions that a minor version of Kubernetes is tested with, oldest first, one for each series.
/// containerd/containerd@301026e (2026-08-22) has no entry for 1.37.
type Tested = (u64, &'static [(u64, u64, u64)]);
const TESTED: [Tested; 2] = [
    (35, &[(1, 7, 28), (2, 1, 5), (2, 2, 0)]),
    (36, &[(2, 2, 0)]),
];

/// Returns the reason if a kubelet is incompatible with a containerd version.
pub fn with_containerd(kubelet: &str, containerd: &str) -> Option<String> {
    let ((_, minor), found) = (series(kubelet)?, series(containerd)?);
    let (since, (first, second)) = CONTAINERD
        .into_iter()
        .rev()
        .find(|(since, _)| minor >= *since)?;
    (found < (first, second)).then(|| {
        format!(
            "containerd is {containerd}, but kubelet {kubelet} requires at least {first}.{second}, like all kubelets since 1.{since}"
        )
    })
}

/// Returns the reason for a note: the kubelet starts with this containerd version, but is not tested with it, or a later
/// kubelet will require a newer containerd.
pub fn untested_containerd(kubelet: &str, containerd: &str) -> Option<String> {
    let (_, minor) = series(kubelet)?;
    if (ANNOUNCED..DROPS_1).contains(&minor) && series(containerd)? < (2, 0) {
        return Some(format!(
            "containerd is {containerd}, which is supported by kubelet {kubelet}, but not by 1.{DROPS_1} and newer, which will require at least 2.0"
        ));
    }
    let (_, tested) = TESTED.into_iter().find(|(of, _)| *of == minor)?;
    let (major, second) = series(containerd)?;
    let third = containerd.trim_start_matches('v').splitn(3, '.').nth(2)?;
    let end = third.find(|letter: char| !letter.is_ascii_digit());
    let patch: u64 = third[..end.unwrap_or(third.len())].parse().ok()?;
    let is_newer = (tested.last()).is_some_and(|&(a, b, _)| (major, second) > (a, b));
    let is_tested =
        is_newer || (tested.iter()).any(|&(a, b, c)| (major, second) == (a, b) && patch >= c);
    (!is_tested).then(|| {
        let versions: Vec<String> = (tested.iter())
            .map(|(a, b, c)| format!("{a}.{b}.{c}"))
            .collect();
        format!(
            "containerd is {containerd}, but kubelet {kubelet} is tested with {} and newer versions of these series",
            versions.join(", ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::{untested_containerd, with_containerd};

    #[test]
    fn kubelet_compatibility_is_checked() {
        assert_eq!(with_containerd("1.34.*", "1.6.20~ds1"), None);
        assert!(with_containerd("1.26.0", "1.5.18").is_some());
        assert_eq!(with_containerd("1.35.*", "1.7.28"), None);
        let why = with_containerd("1.38.*", "1.7.28").unwrap_or_default();
        assert!(why.contains("at least 2.0"), "{why}");
        assert_eq!(with_containerd("1.38.*", "2.0.1"), None);
        // Kubernetes 1.38 drops containerd 1.x. For older versions, only a note is shown.
        for kubelet in ["1.36.*", "1.37.2"] {
            assert_eq!(with_containerd(kubelet, "1.7.28"), None);
            let why = untested_containerd(kubelet, "1.7.28").unwrap_or_default();
            assert!(why.contains("1.38 and newer"), "{why}");
        }
        for (kubelet, containerd, is_tested) in [
            ("v1.34.4", "1.6.20", true),
            ("v1.35.0", "1.7.28", true),
            ("v1.35.0", "1.7.24~ds1", false),
            ("v1.35.0", "2.0.9", false),
            ("v1.35.0", "v2.1.5", true),
            ("v1.35.0", "2.3.1", true),
            ("v1.36.0", "2.1.5", false),
            ("v1.36.0", "2.2.0", true),
            ("v1.36.0", "2.3.2", true),
            ("v1.37.0", "2.1.9", true),
            ("v1.37.0", "1.7.33", false),
        ] {
            let why = untested_containerd(kubelet, containerd);
            assert_eq!(why.is_none(), is_tested, "{kubelet} {containerd} {why:?}");
        }
    }
}
