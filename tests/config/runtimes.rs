//! Selection of container runtimes and their sources.

use gpu_bootstrap::{
    config::desired::{PackageSpec, RuntimeKind},
    error::Report,
    exit::Exit,
};

use super::machine::{H100, Machine};

#[test]
fn podman_is_a_distribution_package_with_cdi() {
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
    let without = Machine::debian()
        .set("runtime.use=podman")
        .set("cdi.enabled=false");
    let error = without.load().expect_err("no specification").to_string();
    assert!(
        error.contains("podman supports GPUs only through CDI"),
        "{error}"
    );
    let old = Machine::new("ubuntu", "22.04", "x86_64", &[H100]).set("runtime.use=podman");
    let error = old.load().expect_err("too old").to_string();
    assert!(
        error.contains("no packages of podman are known for ubuntu 22.04"),
        "{error}"
    );
}

/// Without them Docker does not start, and pods have no network.
#[test]
fn enterprise_linux_10_gets_the_missing_network_modules() {
    let machine = |version: &str, gpus: &[&str]| {
        let mut machine = Machine::new("almalinux", version, "x86_64", gpus);
        let kernel: gpu_bootstrap::model::version::KernelVersion =
            "6.12.0-124.8.1.el10_1.x86_64".parse().expect("a kernel");
        machine.facts.kernel.running = Some(kernel.clone());
        machine.facts.kernel.next_boot = Some(kernel.clone());
        machine.facts.kernel.installed = vec![kernel];
        machine
    };
    let modules = |machine: Machine| machine.resolution().desired.container_modules;
    let wanted = [PackageSpec {
        name: "kernel-modules-extra".into(),
        version: Some("6.12.0-124.8.1.el10_1".into()),
    }];
    assert_eq!(modules(machine("10.1", &[H100])), wanted);
    let without_gpu = machine("10.1", &[]).set("gpu=optional");
    assert_eq!(modules(without_gpu), wanted);
    // k3s ships containerd, and also needs the modules.
    let k3s = machine("10.1", &[H100])
        .set("runtime.use=[]")
        .set("cluster.join=k3s")
        .set("cluster.server=https://10.0.0.1:6443")
        .set("cluster.token=file:/etc/token");
    assert_eq!(modules(k3s), wanted);
    for none in ["runtime.use=[]", "runtime.use=podman"] {
        assert_eq!(modules(machine("10.1", &[H100]).set(none)), []);
    }
    // The kernel of the provider includes them.
    let managed = machine("10.1", &[H100])
        .set("runtime.use=[]")
        .set("cluster.join=managed");
    assert_eq!(modules(managed), []);
    assert_eq!(modules(machine("9.6", &[H100])), []);
}

/// The archive packages conflict with them and would remove the runtime of an AKS node.
#[test]
fn microsoft_packages_count_as_installed_runtimes() {
    for id in [("ubuntu", "24.04"), ("debian", "12")] {
        for source in ["distribution", "docker"] {
            let machine = Machine::new(id.0, id.1, "x86_64", &[H100])
                .set("runtime.use=docker,containerd")
                .set(&format!("runtime.source={source}"));
            let runtimes = machine.resolution().desired.runtimes;
            for (runtime, package) in runtimes.iter().zip(["moby-engine", "moby-containerd"]) {
                assert!(
                    runtime.alternatives.iter().any(|one| one == package),
                    "{id:?} {source}"
                );
            }
        }
    }
}

/// Without a setting, an installed runtime is selected if this system has packages for it.
#[test]
fn installed_runtime_is_selected() {
    for (id, version, program, wanted) in [
        (
            "debian",
            "12",
            "/usr/bin/containerd",
            RuntimeKind::Containerd,
        ),
        ("debian", "12", "/usr/bin/podman", RuntimeKind::Docker),
    ] {
        let machine = Machine::new(id, version, "x86_64", &[H100]).file(program, "");
        let runtimes = machine.resolution().desired.runtimes;
        let kinds: Vec<RuntimeKind> = runtimes.iter().map(|runtime| runtime.kind).collect();
        assert_eq!(kinds, [wanted], "{id} {program}");
    }
}

/// `plan --os` has no files of the machine, but also rejects the setting.
#[test]
fn cri_o_is_not_configured() {
    let debian = || Machine::debian().file("/usr/bin/crio", "");
    let listed = Machine::debian().config("runtime.use = [\"podman\", \"crio\"]\n");
    let error = listed.load().expect_err("not configurable");
    assert_eq!(error.exit(), Exit::Config);
    for text in [
        "/etc/gpu-bootstrap/config.toml:1:15: `runtime.use` cannot be [\"podman\", \"crio\"]",
        "`install` does not configure CRI-O",
    ] {
        assert!(error.to_string().contains(text), "{error}");
    }
    assert!(
        error
            .hint()
            .is_some_and(|hint| hint.contains("`runtime.use = []`"))
    );
    // Without the setting, no runtime is added to an installed CRI-O. `preflight` blocks `install`.
    let found = debian().resolution();
    assert!(found.desired.runtimes.is_empty());
    assert!(
        (found.reasons.iter())
            .any(|reason| reason.contains("crio is installed, and not configured")),
        "{:?}",
        found.reasons
    );
    let containerd = debian().set("runtime.use=containerd").resolution().desired;
    assert_eq!(containerd.runtimes[0].kind, RuntimeKind::Containerd);
    // Everything else is prepared.
    let without = debian().set("runtime.use=[]").resolution().desired;
    assert!(without.runtimes.is_empty() && without.toolkit.is_some() && without.cdi.is_some());
}
