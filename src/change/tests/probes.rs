//! Tests probes and their images.

use std::time::Duration;

use super::kit::{TestMachine, container_probe};
use crate::{
    change::{ApplyChanges, Change, Reverted, ValidationRecord},
    config::desired::RuntimeKind,
    error::Report,
    host::{
        ReadFiles,
        fake::{failed, ok},
    },
    model::secret::Secret,
};

#[tokio::test]
async fn probe_leaves_its_record_and_no_image() {
    let machine = TestMachine::new();
    machine.fakes.files.put(
        "/proc/self/maps",
        "1-2 r--p 0 fe:01 7 /usr/bin/gpu-bootstrap\n\
         3-4 r--p 0 fe:01 9 /usr/lib/ld-linux-x86-64.so.2\n",
    );
    machine.fakes.files.put("/proc/self/exe", "program");
    machine
        .fakes
        .files
        .put("/usr/lib/ld-linux-x86-64.so.2", "loader");
    machine.fakes.exec.on("tar", |_, _| ok(""));
    machine
        .fakes
        .exec
        .on("docker", |cmd, _| match cmd.args[0].as_str() {
            "run" => ok(SEEN),
            "image" if cmd.args[1] == "inspect" => {
                failed(1, "Error: No such image: gpu-bootstrap/probe:local")
            }
            _ => ok(""),
        });
    let undo = machine
        .apply(&Change::RunProbe {
            probe: container_probe(RuntimeKind::Docker, None),
            record: "/var/lib/gpu-bootstrap/validations/container-docker".into(),
            inputs: "driver=1.2\n".into(),
            again: false,
        })
        .await
        .unwrap();
    let record = "/var/lib/gpu-bootstrap/validations/container-docker";
    let validation_run = ValidationRecord::parse(&machine.fakes.files.text(record));
    assert_eq!(validation_run.inputs, "driver=1.2\n");
    assert!(validation_run.result.is_some() && validation_run.at.is_some());
    // The undo does not query the runtime, which may already be removed.
    machine.fakes.exec.forget("docker");
    assert!(matches!(machine.revert(&undo).await, Reverted::Done { .. }));
    assert!(!machine.fakes.files.exists(record.into()).unwrap());
}

/// A signal may stop a validation before its container exists.
#[tokio::test]
async fn older_docker_without_the_container_does_not_fail_the_cleanup() {
    let machine = TestMachine::new();
    machine
        .fakes
        .exec
        .on("docker", |cmd, _| match cmd.args[0].as_str() {
            "rm" => failed(1, "Error: No such container: gpu-bootstrap-probe"),
            _ => ok(""),
        });
    let change = Change::RunProbe {
        probe: container_probe(RuntimeKind::Docker, None),
        record: RECORD.into(),
        inputs: String::new(),
        again: false,
    };
    let cleared = machine.applier.clear_validation(&change, &machine.sink);
    cleared.await.unwrap();
    let lines = machine.fakes.exec.lines();
    assert!(
        lines.iter().any(|line| line.starts_with("docker image rm")),
        "{lines:?}"
    );
}

/// Podman runs a container in a directory, without an image.
#[tokio::test]
async fn undo_of_a_probe_removes_only_an_image_that_the_probe_creates() {
    let machine = TestMachine::new();
    for (runtime, has_image) in [(RuntimeKind::Docker, true), (RuntimeKind::Podman, false)] {
        let change = Change::RunProbe {
            probe: container_probe(runtime, None),
            record: RECORD.into(),
            inputs: String::new(),
            again: false,
        };
        let undo = machine.applier.capture(&change).await.unwrap();
        let text = format!("{undo:?}");
        assert_eq!(text.contains("RemoveImage"), has_image, "{text}");
    }
}

/// The probe uses its own image only if none is configured.
#[tokio::test]
async fn cleanup_after_a_probe_in_an_image_removes_no_image() {
    let machine = TestMachine::new();
    machine.fakes.exec.on("docker", |_, _| ok(""));
    let change = in_image(RuntimeKind::Docker, "registry/x:1");
    let cleared = machine.applier.clear_validation(&change, &machine.sink);
    cleared.await.unwrap();
    let lines = machine.fakes.exec.lines();
    assert!(!lines.is_empty());
    assert!(
        !lines.iter().any(|line| line.starts_with("docker image rm")),
        "{lines:?}"
    );
}

const RECORD: &str = "/var/lib/gpu-bootstrap/validations/container-docker";

/// The probe output in a container with a GPU.
const SEEN: &str = r#"{"devices":["nvidia0","nvidiactl"],
    "libraries":["/x/libcuda.so.1.2","/x/libnvidia-ml.so.1.2"]}"#;

/// A machine on which a static gpu-bootstrap binary can be packed.
fn machine() -> TestMachine {
    let machine = TestMachine::new();
    let maps = "1-2 r--p 0 fe:01 7 /usr/bin/gpu-bootstrap\n";
    machine.fakes.files.put("/proc/self/maps", maps);
    machine.fakes.files.put("/proc/self/exe", "program");
    machine
}

/// The probe in an image that must be pulled.
fn in_image(runtime: RuntimeKind, image: &str) -> Change {
    Change::RunProbe {
        probe: container_probe(runtime, Some(image)),
        record: RECORD.into(),
        inputs: String::new(),
        again: false,
    }
}

/// A machine without a registry may have the image from an archive.
#[tokio::test]
async fn existing_image_is_not_pulled_and_not_removed() {
    for (runtime, program) in [
        (RuntimeKind::Docker, "docker"),
        (RuntimeKind::Podman, "podman"),
    ] {
        let machine = machine();
        machine.fakes.exec.on(program, |cmd, _| {
            let runs = cmd.args.iter().any(|word| word == "run");
            ok(if runs { SEEN } else { "" })
        });
        let change = in_image(runtime, "registry/x:1");
        let undo = machine.apply(&change).await.unwrap();
        machine.revert(&undo).await;
        let lines = machine.fakes.exec.lines();
        assert!(lines.iter().any(|line| line.contains(" run ")), "{lines:?}");
        let changes = |line: &String| line.contains(" pull ") || line.contains("image rm");
        assert!(!lines.iter().any(changes), "{lines:?}");
    }
}

#[tokio::test]
async fn permanent_pull_error_is_not_retried() {
    let machine = TestMachine::new();
    machine.fakes.files.put(RECORD, "driver=1.1\n");
    machine
        .fakes
        .exec
        .on("docker", |cmd, _| match cmd.args[0].as_str() {
            "image" => failed(1, "Error: No such image: registry/x:1"),
            "pull" => failed(1, "Error response from daemon: no basic auth credentials"),
            _ => ok(""),
        });
    let change = in_image(RuntimeKind::Docker, "registry/x:1");
    let error = machine.apply(&change).await.unwrap_err();
    assert_eq!(error.reason(), "image-unauthorized");
    assert!(error.hint().unwrap_or_default().contains("docker login"));
    let lines = machine.fakes.exec.lines();
    assert!(
        lines.iter().any(|line| line.contains("registry/x:1")),
        "{lines:?}"
    );
    assert!(machine.fakes.clock.slept().is_empty());
    assert!(!machine.fakes.files.exists(RECORD.into()).unwrap());
}

#[tokio::test]
async fn pull_is_retried_within_its_time_limit() {
    let machine = TestMachine::new();
    machine
        .fakes
        .exec
        .on("docker", |cmd, _| match cmd.args[0].as_str() {
            "image" => failed(1, "Error: No such image: registry/x:1"),
            _ => failed(1, "dial tcp 127.0.0.1:5000: connect: connection refused"),
        });
    let change = in_image(RuntimeKind::Docker, "registry/x:1");
    let error = machine.apply(&change).await.unwrap_err();
    assert_eq!(error.reason(), "registry-unreachable");
    // The third pause of 60 s would exceed the limit.
    let slept = machine.fakes.clock.slept();
    assert_eq!(slept, [5, 20].map(Duration::from_secs));
}

/// `ctr` and `podman` pull with the proxy of their environment. The Docker daemon uses its own settings instead.
#[tokio::test]
async fn pull_uses_the_proxy_without_showing_its_password() {
    for (runtime, program) in [
        (RuntimeKind::Containerd, "ctr"),
        (RuntimeKind::Podman, "podman"),
    ] {
        let mut machine = machine();
        let proxy = Secret::new("http://user:hunter2@proxy:3128");
        machine.applier.policy.proxy = Some(proxy);
        machine.applier.policy.no_proxy = Some("10.0.0.0/8".into());
        machine.fakes.exec.on(program, |cmd, files| {
            if cmd.args.iter().any(|word| word == "pull") {
                let secret = |name| {
                    let found = cmd.secret_env.iter().find(|(key, _)| key == name);
                    found.map_or("", |(_, value)| value.expose())
                };
                let direct = cmd.env.iter().find(|(key, _)| key == "no_proxy");
                let direct = direct.map_or("", |(_, value)| value);
                let seen = [secret("https_proxy"), secret("http_proxy"), direct].join(" ");
                files.put("/seen", seen.as_str());
            }
            let is = |verb: &str| cmd.args.iter().any(|word| word == verb);
            match is("run") {
                true => ok(SEEN),
                false if is("exists") => failed(1, ""),
                false => ok(""),
            }
        });
        let change = in_image(runtime, "registry/x:1");
        machine.apply(&change).await.unwrap();
        let proxy = "http://user:hunter2@proxy:3128";
        let seen = machine.fakes.files.text("/seen");
        assert_eq!(seen, format!("{proxy} {proxy} 10.0.0.0/8"), "{program}");
        let lines = machine.fakes.exec.lines();
        assert!(
            !lines.iter().any(|line| line.contains("hunter2")),
            "{lines:#?}"
        );
    }
}

#[tokio::test]
async fn containerd_pulls_the_full_name_with_registry_configuration() {
    let machine = machine();
    machine
        .fakes
        .files
        .put("/etc/containerd/certs.d/x/hosts.toml", "");
    machine
        .fakes
        .exec
        .on("ctr", |cmd, _| match cmd.args[1].as_str() {
            "images" if cmd.args[2] == "list" => ok(""),
            "run" => ok(SEEN),
            _ => ok("fine\n"),
        });
    let change = in_image(RuntimeKind::Containerd, "nvidia/cuda:1");
    machine.apply(&change).await.unwrap();
    let lines = machine.fakes.exec.lines();
    let pulls = "ctr --namespace=k8s.io images pull --hosts-dir=/etc/containerd/certs.d -- \
                 docker.io/nvidia/cuda:1";
    assert!(lines.iter().any(|line| line == pulls), "{lines:#?}");
    let runs = lines.iter().find(|line| line.contains(" run --rm "));
    let ends = "docker.io/nvidia/cuda:1 gpu-bootstrap-probe /gpu-bootstrap container-probe";
    assert!(runs.is_some_and(|line| line.ends_with(ends)), "{lines:#?}");
}
