//! Which runtimes are wanted, and from where.

use gpu_bootstrap::config::desired::RuntimeKind;

use super::machine::{H100, Machine};

#[test]
fn podman_comes_from_the_distribution_and_reads_the_specification() {
    let podman = |source| {
        Machine::debian()
            .set("runtime.use=docker,podman")
            .set(source)
            .resolution()
    };
    for source in ["runtime.source=distribution", "runtime.source=docker"] {
        let runtimes = podman(source).desired.runtimes;
        assert_eq!(runtimes[1].kind, RuntimeKind::Podman);
        assert_eq!(runtimes[1].packages[0].name, "podman");
        assert_eq!(runtimes[1].unit, None);
    }
    for (setting, why) in [
        (
            "cdi.enabled=false",
            "podman gives GPUs to containers by CDI alone",
        ),
        (
            "cdi.path=/etc/gpu/nvidia.yaml",
            "podman reads specifications in /etc/cdi and /var/run/cdi only",
        ),
    ] {
        let machine = Machine::debian().set("runtime.use=podman").set(setting);
        let error = machine.load().expect_err(setting).to_string();
        assert!(error.contains(why), "{error}");
    }
    let old = Machine::new("ubuntu", "22.04", "x86_64", &[H100]).set("runtime.use=podman");
    let error = old.load().expect_err("too old").to_string();
    assert!(
        error.contains("for ubuntu 22.04 no packages of podman are known"),
        "{error}"
    );
}
