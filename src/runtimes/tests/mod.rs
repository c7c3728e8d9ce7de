//! Tests of all runtimes, and a comparison with recorded output of real daemons.

mod arrangements;

use super::RuntimeKind;

/// A kubelet uses neither Docker nor Podman directly.
#[test]
fn docker_and_podman_have_no_list_of_tested_kubelets() {
    for kind in [RuntimeKind::Docker, RuntimeKind::Podman] {
        let runtime = kind.runtime();
        assert_eq!(runtime.refuses_kubelet("1.37.0", "1.0"), None);
        assert_eq!(runtime.untested_kubelet("1.37.0", "1.0"), None);
    }
}
