//! The container probe: this program runs in a container that holds only the program and its
//! libraries, computes on the GPUs that it sees, and prints how far that works. No registry is needed.

use std::{collections::BTreeSet, time::Duration};

use camino::Utf8Path;

use super::{
    client::{CONTAINER, quiet, view},
    error::ProbeError,
    podman,
    root::Root,
};
use crate::{
    change::{Probe, Sink},
    config::desired::RuntimeKind,
    host::{Cmd, ExecError, Host},
    tools::{
        container_view::{ContainerView, LIBRARIES},
        ctr,
    },
};

/// The image that is made for the probe, and removed after it.
pub(super) const IMAGE: &str = "gpu-bootstrap/probe:local";
/// The time limit to pack and import a few megabytes.
const PREPARE_DEADLINE: Duration = Duration::from_secs(120);

/// Runs the probe to its end. Only a folder below `state` stays.
///
/// # Errors
/// See [`ProbeError`].
pub(super) async fn run(
    host: &Host,
    state: &Utf8Path,
    probe: &Probe,
    sink: &dyn Sink,
) -> Result<(), ProbeError> {
    let Probe::ContainerSeesGpus {
        runtime,
        image,
        gpus,
        driver,
        uuids,
        timeout_seconds,
    } = probe;
    let root = Root::prepare(host, state)?;
    let deadline = Duration::from_secs(*timeout_seconds);
    let view = match runtime {
        RuntimeKind::Docker => docker(host, &root, image.as_deref(), deadline, sink).await?,
        RuntimeKind::Containerd => {
            containerd(host, &root, image.as_deref(), deadline, sink).await?
        }
        RuntimeKind::Podman => podman::run(host, &root, image.as_deref(), deadline, sink).await?,
        RuntimeKind::Crio => return Err(ProbeError::OnlyPods),
    };
    judge(&view, *gpus, driver)?;
    computes(&view, uuids)
}

fn judge(view: &ContainerView, gpus: usize, driver: &str) -> Result<(), ProbeError> {
    let missing: Vec<&str> = LIBRARIES
        .into_iter()
        .filter(|name| !view.has_library(name, driver))
        .collect();
    if view.gpus() == gpus && missing.is_empty() {
        return Ok(());
    }
    let libraries = if view.libraries.is_empty() {
        "no driver libraries".to_owned()
    } else {
        view.libraries.join(", ")
    };
    Err(ProbeError::Blind {
        seen: format!("{} GPUs and {libraries}", view.gpus()),
        expected: format!("{gpus} GPUs and {} of {driver}", LIBRARIES.join(", ")),
    })
}

/// Whether the devices computed there, and are those of the host.
fn computes(view: &ContainerView, uuids: &[String]) -> Result<(), ProbeError> {
    if uuids.is_empty() {
        return Ok(());
    }
    let Some(probe) = &view.probe else {
        return Err(ProbeError::Silent);
    };
    if let Some(layer) = probe.failed_layer {
        return Err(ProbeError::Layer {
            layer,
            why: probe.why.clone(),
            remedy: probe.remedy.clone(),
        });
    }
    let inside: BTreeSet<&str> = probe.devices.iter().map(|one| one.uuid.as_str()).collect();
    let outside: BTreeSet<&str> = uuids.iter().map(String::as_str).collect();
    if inside == outside {
        return Ok(());
    }
    let list = |uuids: BTreeSet<&str>| uuids.into_iter().collect::<Vec<_>>().join(", ");
    Err(ProbeError::OtherDevices {
        inside: list(inside),
        outside: list(outside),
    })
}

/// The variables that request all GPUs and the compute libraries from the nvidia runtime.
const ENVIRONMENT: [&str; 2] = [
    "NVIDIA_VISIBLE_DEVICES=all",
    "NVIDIA_DRIVER_CAPABILITIES=compute,utility",
];

async fn docker(
    host: &Host,
    root: &Root,
    image: Option<&str>,
    deadline: Duration,
    sink: &dyn Sink,
) -> Result<ContainerView, ProbeError> {
    let own = image.is_none();
    if own {
        let archive = root.folder.with_extension("tar");
        let pack = Cmd::new(
            "tar",
            [
                "--create",
                "--file",
                archive.as_str(),
                "--directory",
                root.folder.as_str(),
                ".",
            ],
        );
        quiet(host, &pack.deadline(PREPARE_DEADLINE), sink).await?;
        let import = Cmd::new("docker", ["import", archive.as_str(), IMAGE]);
        quiet(host, &import.deadline(PREPARE_DEADLINE), sink).await?;
    }
    // The container of an interrupted probe still has the name.
    let clear = Cmd::new("docker", ["rm", "--force", CONTAINER]);
    host.exec.run(&clear, &mut |_, _| {}).await?;
    let mut args: Vec<String> = [
        "run",
        "--rm",
        "--pull=never",
        "--network=none",
        "--runtime=nvidia",
    ]
    .into_iter()
    .map(str::to_owned)
    .collect();
    args.push(format!("--name={CONTAINER}"));
    args.extend(ENVIRONMENT.iter().map(|pair| format!("--env={pair}")));
    if !own {
        for (source, place) in root.mounts() {
            args.push(format!(
                "--mount=type=bind,source={source},target={place},readonly"
            ));
        }
    }
    let mut command = root.command().into_iter();
    args.extend(command.next().map(|first| format!("--entrypoint={first}")));
    args.push(image.unwrap_or(IMAGE).to_owned());
    args.extend(command.map(str::to_owned));
    let ran = view(host, &Cmd::new("docker", args).deadline(deadline), sink).await;
    // Only the client was stopped at its deadline; the container still runs and keeps its GPUs.
    if matches!(ran, Err(ProbeError::Exec(ExecError::Deadline { .. })))
        && let Err(error) = quiet(host, &clear, sink).await
    {
        sink.line(&format!(
            "the container `{CONTAINER}` may still exist: {error}"
        ));
    }
    if own {
        let remove = Cmd::new("docker", ["rmi", "--force", IMAGE]);
        let removed = quiet(host, &remove, sink).await;
        // The result of the container comes first; a left image is reported only after a success.
        return ran.and_then(|view| removed.map(|()| view));
    }
    ran
}

async fn containerd(
    host: &Host,
    root: &Root,
    image: Option<&str>,
    deadline: Duration,
    sink: &dyn Sink,
) -> Result<ContainerView, ProbeError> {
    // The image was pulled into the namespace of the kubelet.
    let namespace = image.map_or(CONTAINER, |_| ctr::KUBERNETES);
    // The container of an interrupted probe still has the name.
    clear_containerd(host, namespace, sink).await?;
    let mut args: Vec<String> = ["--namespace", namespace, "run", "--rm"]
        .into_iter()
        .map(str::to_owned)
        .collect();
    args.push("--runc-binary=/usr/bin/nvidia-container-runtime".to_owned());
    args.extend(ENVIRONMENT.iter().map(|pair| format!("--env={pair}")));
    match image {
        None => args.extend(["--rootfs".to_owned(), root.folder.to_string()]),
        Some(image) => {
            for (source, place) in root.mounts() {
                args.push(format!(
                    "--mount=type=bind,src={source},dst={place},options=rbind:ro"
                ));
            }
            args.push(image.to_owned());
        }
    }
    args.push(CONTAINER.to_owned());
    // They replace the image's entry point.
    args.extend(root.command().into_iter().map(str::to_owned));
    let ran = view(host, &Cmd::new("ctr", args).deadline(deadline), sink).await;
    if matches!(ran, Err(ProbeError::Exec(ExecError::Deadline { .. })))
        && let Err(error) = clear_containerd(host, namespace, sink).await
    {
        sink.line(&format!(
            "the container `{CONTAINER}` may still exist: {error}"
        ));
    }
    ran
}

async fn clear_containerd(host: &Host, namespace: &str, sink: &dyn Sink) -> Result<(), ProbeError> {
    let list = ctr::containers(namespace);
    let listed = host.reader().query(&list).await?.success(list.cmd())?;
    if !listed.stdout.lines().any(|name| name.trim() == CONTAINER) {
        return Ok(());
    }
    // Its task may have ended; if it still runs, the removal of the container fails.
    host.exec
        .run(&ctr::end_task(namespace, CONTAINER), &mut |_, _| {})
        .await?;
    quiet(host, &ctr::remove_container(namespace, CONTAINER), sink).await
}

#[cfg(test)]
mod tests {
    use super::{ProbeError, computes, judge, run};
    use crate::{
        change::{Probe, Sink},
        config::desired::RuntimeKind,
        error::Report as _,
        host::{
            Host,
            fake::{self, Fakes, failed, ok},
        },
        tools::{
            container_view::ContainerView,
            probe::{LayerFault, Layers, ProbeDocument, ProbeLayer, ProbedDevice},
        },
    };

    struct Silent;

    impl Sink for Silent {
        fn line(&self, _: &str) {}
        fn progress(&self, _: u64, _: Option<u64>, _: &str) {}
        fn retry(&self, _: &str, _: f64) {}
    }

    #[test]
    fn all_gpus_and_both_libraries_of_the_driver() {
        let mut view = ContainerView {
            devices: vec!["nvidia0".into(), "nvidia1".into(), "nvidiactl".into()],
            libraries: vec![
                "/usr/lib64/libcuda.so.535.261.03".into(),
                "/usr/lib64/libnvidia-ml.so.535.261.03".into(),
            ],
            probe: None,
        };
        assert!(judge(&view, 2, "535.261.03").is_ok());
        assert!(judge(&view, 8, "535.261.03").is_err());
        assert!(judge(&view, 2, "535.309.01").is_err());
        view.libraries.clear();
        let Err(ProbeError::Blind { seen, expected }) = judge(&view, 2, "535.261.03") else {
            panic!("must be blind");
        };
        assert_eq!(seen, "2 GPUs and no driver libraries");
        assert_eq!(
            expected,
            "2 GPUs and libcuda.so, libnvidia-ml.so of 535.261.03"
        );
    }

    #[test]
    fn the_devices_of_the_host_must_compute_in_the_container() {
        let device = |uuid: &str| ProbedDevice {
            uuid: uuid.into(),
            index: 0,
            mig_index: None,
            pci_address: None,
            work: None,
            fault: None,
            remedy: None,
        };
        let probed = |layers: Layers| ContainerView {
            probe: Some(ProbeDocument {
                devices: vec![device("GPU-a"), device("MIG-b")],
                ..layers.document()
            }),
            ..ContainerView::default()
        };
        let said = |view: &ContainerView, uuids: &[&str]| {
            let uuids: Vec<String> = uuids.iter().map(|uuid| (*uuid).to_owned()).collect();
            let result = computes(view, &uuids);
            result.map_err(|error| (error.to_string(), error.hint().unwrap_or_default()))
        };
        let good = probed(Layers::default());
        assert_eq!(said(&good, &["MIG-b", "GPU-a"]), Ok(()));
        let (why, _) = said(&good, &["GPU-a", "GPU-c"]).expect_err("other devices");
        assert_eq!(why, "the container has GPU-a, MIG-b, the host GPU-a, GPU-c");
        let mut layers = Layers::default();
        layers.fail(LayerFault {
            layer: ProbeLayer::Cuda,
            why: "`cuInit` returned 803".into(),
            remedy: "make the specification anew".into(),
        });
        let (why, hint) = said(&probed(layers), &["GPU-a"]).expect_err("a layer fails");
        assert_eq!(
            why,
            "the container fails at the layer CUDA: `cuInit` returned 803"
        );
        assert_eq!(hint, "make the specification anew");
        // NVML has told no UUIDs: what the container sees must do.
        let blind = ContainerView::default();
        assert_eq!(said(&blind, &[]), Ok(()));
        let (why, _) = said(&blind, &["GPU-a"]).expect_err("nothing computed");
        assert_eq!(why, "the container printed no result of the probe");
    }

    /// A machine on which this program can be packed.
    fn machine() -> (Host, Fakes) {
        let (host, fakes) = fake::host();
        fakes.files.put(
            "/proc/self/maps",
            "1-2 r--p 0 fe:01 7 /usr/bin/gpu-bootstrap\n\
             3-4 r--p 0 fe:01 9 /usr/lib/ld-linux-x86-64.so.2\n",
        );
        fakes.files.put("/proc/self/exe", "program");
        fakes.files.put("/usr/lib/ld-linux-x86-64.so.2", "loader");
        (host, fakes)
    }

    const SEEN: &str = r#"{"devices":["nvidia0","nvidiactl"],
        "libraries":["/x/libcuda.so.1.2","/x/libnvidia-ml.so.1.2"]}"#;

    fn probe(runtime: RuntimeKind, image: Option<&str>) -> Probe {
        Probe::ContainerSeesGpus {
            runtime,
            image: image.map(str::to_owned),
            gpus: 1,
            driver: "1.2".into(),
            uuids: Vec::new(),
            timeout_seconds: 60,
        }
    }

    #[tokio::test]
    async fn the_image_is_made_run_and_removed() {
        let (host, fakes) = machine();
        fakes.exec.on("tar", |_, _| ok(""));
        fakes
            .exec
            .on("docker", |cmd, _| match cmd.args[0].as_str() {
                "run" => ok(SEEN),
                _ => ok(""),
            });
        let probe = probe(RuntimeKind::Docker, None);
        run(&host, "/var/lib/gpu-bootstrap".into(), &probe, &Silent)
            .await
            .expect("the probe succeeds");
        let verbs: Vec<String> = fakes
            .exec
            .log()
            .iter()
            .filter(|cmd| cmd.program == "docker")
            .map(|cmd| cmd.args[0].clone())
            .collect();
        assert_eq!(verbs, ["import", "rm", "run", "rmi"]);
    }

    #[tokio::test]
    async fn a_program_without_libraries_needs_no_loader() {
        let (host, fakes) = machine();
        fakes.files.put(
            "/proc/self/maps",
            "1-2 r--p 0 fe:01 7 /usr/bin/gpu-bootstrap\n",
        );
        fakes.exec.on("ctr", |cmd, _| match cmd.args[2].as_str() {
            "run" => ok(SEEN),
            _ => ok(""),
        });
        let probe = probe(RuntimeKind::Containerd, None);
        (run(&host, "/state".into(), &probe, &Silent).await).expect("the probe succeeds");
        let lines = fakes.exec.lines();
        let own = "gpu-bootstrap-probe /gpu-bootstrap container-probe";
        assert!(lines[1].ends_with(own), "{}", lines[1]);
    }

    #[tokio::test]
    async fn leftovers_of_an_interrupted_probe_in_containerd_are_removed_first() {
        let (host, fakes) = machine();
        fakes.exec.on("ctr", |cmd, _| match cmd.args[2].as_str() {
            "containers" if cmd.args[3] == "list" => ok("other\ngpu-bootstrap-probe\n"),
            // It had ended by itself.
            "tasks" => failed(1, "ctr: no running task found"),
            "run" => ok(SEEN),
            _ => ok(""),
        });
        let probe = probe(RuntimeKind::Containerd, None);
        run(&host, "/var/lib/gpu-bootstrap".into(), &probe, &Silent)
            .await
            .expect("the probe succeeds");
        let lines = fakes.exec.lines();
        let own = "ctr --namespace gpu-bootstrap-probe";
        assert_eq!(lines[0], format!("{own} containers list --quiet"));
        assert_eq!(
            lines[1],
            format!("{own} tasks delete --force gpu-bootstrap-probe")
        );
        assert_eq!(
            lines[2],
            format!("{own} containers delete gpu-bootstrap-probe")
        );
        assert!(lines[3].contains(" --rootfs /var/lib/gpu-bootstrap/probe/rootfs "));
        assert_eq!(lines.len(), 4);
    }

    #[tokio::test]
    async fn containerd_runs_the_configured_image() {
        let (host, fakes) = machine();
        fakes.exec.on("ctr", |cmd, _| match cmd.args[2].as_str() {
            "run" => ok(SEEN),
            _ => ok(""),
        });
        let image = "nvcr.io/nvidia/cuda:12.8.1-base-ubuntu24.04";
        let probe = probe(RuntimeKind::Containerd, Some(image));
        run(&host, "/var/lib/gpu-bootstrap".into(), &probe, &Silent)
            .await
            .expect("the probe succeeds");
        let lines = fakes.exec.lines();
        let [list, run] = &lines[..] else {
            panic!("{lines:#?}");
        };
        assert!(list.starts_with("ctr --namespace k8s.io containers list"));
        assert!(run.starts_with("ctr --namespace k8s.io run --rm "), "{run}");
        assert!(!run.contains("--rootfs"), "{run}");
        let mounted = "--mount=type=bind,src=/var/lib/gpu-bootstrap/probe/rootfs/gpu-bootstrap,\
                       dst=/gpu-bootstrap,options=rbind:ro";
        assert!(run.contains(mounted), "{run}");
        let inside = format!("{image} gpu-bootstrap-probe /gpu-bootstrap-lib/ld-linux");
        assert!(run.contains(&inside), "{run}");
    }

    #[tokio::test]
    async fn its_own_container_and_an_image_get_the_gpus_by_the_specification() {
        for (image, own) in [
            (
                None,
                " --rootfs /state/probe/rootfs /gpu-bootstrap container-probe",
            ),
            (
                Some("nvcr.io/nvidia/cuda:12.8.1-base-ubuntu24.04"),
                " --entrypoint=/gpu-bootstrap nvcr.io/nvidia/cuda:12.8.1-base-ubuntu24.04 \
                 container-probe",
            ),
        ] {
            let (host, fakes) = machine();
            fakes
                .exec
                .on("podman", |cmd, _| match cmd.args[0].as_str() {
                    "run" => ok(SEEN),
                    _ => ok(""),
                });
            // A program without libraries needs no loader.
            fakes.files.put(
                "/proc/self/maps",
                "1-2 r--p 0 fe:01 7 /usr/bin/gpu-bootstrap\n",
            );
            let probe = probe(RuntimeKind::Podman, image);
            let run = run(&host, "/state".into(), &probe, &Silent);
            run.await.expect("the probe succeeds");
            let lines = fakes.exec.lines();
            assert_eq!(lines[0], "podman rm --force --ignore gpu-bootstrap-probe");
            assert!(
                lines[1].contains(" --device=nvidia.com/gpu=all ") && lines[1].ends_with(own),
                "{}",
                lines[1]
            );
        }
    }
}
