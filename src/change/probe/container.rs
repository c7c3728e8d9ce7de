//! The container probe: gpu-bootstrap runs in a container that only contains the program and its libraries, computes on the
//! visible GPUs, and prints the result. This needs no registry. If the administrator configured an image, the program and its
//! libraries are mounted into it.

use std::{collections::BTreeSet, time::Duration};

use camino::Utf8Path;

use super::{
    SEE_CHECK, host,
    job::{ContainerResult, ContainerRun},
    root::Root,
};
use crate::{
    change::{ChangeError, Probe, Sink, image_names},
    config::desired::RuntimeKind,
    host::{ExecError, Host},
    model::text::counted,
    runtimes::Containers,
    tools::{
        container_view::{ContainerView, LIBRARIES},
        probe::only,
        toolkit,
    },
};

/// The reason if a container command fails.
const FAILED: &str = "container-failed";

/// Runs the probe to completion, in a container or on the host. Only a directory below `state` remains. Returns a description
/// of the result.
///
/// # Errors
/// If the probe cannot be run, a device is missing, or a GPU does not compute correctly.
pub(super) async fn run(
    host: &Host,
    state: &Utf8Path,
    probe: &Probe,
    sink: &dyn Sink,
) -> Result<String, ChangeError> {
    let Probe::ContainerSeesGpus {
        runtime,
        image,
        gpus,
        driver,
        uuids,
        timeout_seconds,
        pull_timeout_seconds: _,
        archive: _,
    } = probe
    else {
        return host::run(host).await;
    };
    let Some(client) = runtime.runtime().containers() else {
        let title = runtime.runtime().facts().title;
        let what = format!("run a container in {title}, which only runs pods");
        return Err(ChangeError::new(FAILED, what).advice("run a pod with a GPU in the cluster"));
    };
    let name = match image {
        Some(image) => Some(name(host, *runtime, client, image).await?),
        None => None,
    };
    let root = Root::prepare(host, state)?;
    let job = ContainerRun {
        host,
        sink,
        runtime: *runtime,
        client,
        image: name.as_deref(),
    };
    let limit = Duration::from_secs(*timeout_seconds);
    let ran = job.run(&root, limit).await.map_err(failed)?;
    let view = view(&ran)?;
    evaluate(&view, *gpus, driver, uuids)?;
    let result = match &view.probe {
        Some(probe) => host::in_words(probe),
        None => format!(
            "{} seen, but none was requested to compute",
            counted(view.gpus(), "GPU")
        ),
    };
    Ok(match image {
        Some(image) => {
            let image = client.image_name(image);
            format!("{result} in the image `{image}`")
        }
        None => result,
    })
}

/// Returns the name of the image in the runtime, which depends on whether it was pulled or loaded from a bundle.
async fn name(
    host: &Host,
    runtime: RuntimeKind,
    client: &dyn Containers,
    image: &str,
) -> Result<String, ChangeError> {
    let pulled = client.image_name(image);
    if client.loaded_name(image).is_none() {
        return Ok(pulled);
    }
    let names = image_names(host.reader(), runtime, image).await;
    let first = names.map_err(failed)?.into_iter().flatten().next();
    Ok(first.unwrap_or(pulled))
}

/// Removes the container of an interrupted probe, and the image that the probe has created.
///
/// # Errors
/// If the runtime returns an error.
pub(super) async fn clear(host: &Host, probe: &Probe, sink: &dyn Sink) -> Result<(), ChangeError> {
    let Probe::ContainerSeesGpus { runtime, image, .. } = probe else {
        // A probe on the host has no container, and its processes exit together with their parent.
        return Ok(());
    };
    let Some(client) = runtime.runtime().containers() else {
        return Ok(());
    };
    let image = (image.as_ref()).map(|image| client.image_name(image));
    let job = ContainerRun {
        host,
        sink,
        runtime: *runtime,
        client,
        image: image.as_deref(),
    };
    job.clear().await.map_err(failed)
}

/// Checks that a container has the libraries and the devices of the host, and that it computes on them. If `uuids` is empty,
/// because NVML on the host returned none, the visible devices are sufficient.
fn evaluate(
    view: &ContainerView,
    gpus: usize,
    driver: &str,
    uuids: &[String],
) -> Result<(), ChangeError> {
    if let (Some(probe), false) = (&view.probe, uuids.is_empty()) {
        host::passed(probe, "container", "container-cannot-compute")?;
    }
    let is_there = |name| view.has_library(name, driver);
    if view.gpus() != gpus || !LIBRARIES.into_iter().all(is_there) {
        let libraries = match view.libraries.is_empty() {
            true => "no driver libraries".to_owned(),
            false => view.libraries.join(", "),
        };
        return Err(ChangeError::new(
            "container-sees-no-gpu",
            format!(
                "the container fails at the layer device nodes: {} and {libraries} are \
                 visible, expected {} and {} of {driver}",
                counted(view.gpus(), "GPU"),
                counted(gpus, "GPU"),
                LIBRARIES.join(", ")
            ),
        )
        .advice(format!(
            "compare `nvidia-ctk cdi list` with `ls /dev/nvidia*`, and check `{}`",
            toolkit::CONFIG
        )));
    }
    if uuids.is_empty() {
        return Ok(());
    }
    let Some(probe) = &view.probe else {
        let what = "the probe in the container printed no result";
        return Err(ChangeError::new("container-cannot-compute", what).advice(SEE_CHECK));
    };
    let devices = probe.devices.iter();
    let inside: BTreeSet<String> = devices.map(|one| one.uuid.clone()).collect();
    let outside: BTreeSet<String> = uuids.iter().cloned().collect();
    if inside == outside {
        return Ok(());
    }
    Err(ChangeError::new(
        "container-has-other-gpus",
        format!(
            "the container fails at the layer NVML: {} only visible in the container; {} only \
             visible on the host",
            only(&inside, &outside),
            only(&outside, &inside)
        ),
    )
    .advice(
        "regenerate the CDI specification (`nvidia-ctk cdi generate`), and check \
         `NVIDIA_VISIBLE_DEVICES` in the image",
    ))
}

/// Parses the output of the program in the container.
fn view(ran: &ContainerResult) -> Result<ContainerView, ChangeError> {
    let output = (ran.output.clone().success(&ran.cmd)).map_err(failed)?;
    serde_json::from_str(output.stdout.trim()).map_err(|error| {
        failed(ExecError::Unexpected {
            command: ran.cmd.line(),
            why: format!("{error} in {:?}", crate::host::exec::tail(&output.stdout)),
        })
    })
}

fn failed(error: ExecError) -> ChangeError {
    ChangeError::new(FAILED, "run the container")
        .advice(SEE_CHECK)
        .caused_by(error)
}

#[cfg(test)]
mod tests {
    use super::{evaluate, run};
    use crate::{
        change::{Sink, tests::kit::container_probe},
        config::desired::RuntimeKind,
        error::Report as _,
        host::{
            Host,
            fake::{self, Fakes, failed, ok},
        },
        tools::{
            container_view::ContainerView,
            probe::{LayerFault, LayerResults, ProbeDocument, ProbeLayer, ProbedDevice},
        },
    };

    struct Silent;

    impl Sink for Silent {
        fn line(&self, _: &str) {}
        fn progress(&self, _: u64, _: Option<u64>, _: &str) {}
        fn retry(&self, _: &str, _: f64) {}
    }

    #[test]
    fn container_needs_all_gpus_and_both_libraries() {
        let mut view = ContainerView {
            devices: vec!["nvidia0".into(), "nvidia1".into(), "nvidiactl".into()],
            libraries: vec![
                "/usr/lib64/libcuda.so.535.261.03".into(),
                "/usr/lib64/libnvidia-ml.so.535.261.03".into(),
            ],
            probe: None,
        };
        assert!(evaluate(&view, 2, "535.261.03", &[]).is_ok());
        assert!(evaluate(&view, 8, "535.261.03", &[]).is_err());
        assert!(evaluate(&view, 2, "535.309.01", &[]).is_err());
        view.libraries.clear();
        let error = evaluate(&view, 2, "535.261.03", &[]).expect_err("it has no libraries");
        assert_eq!(error.reason(), "container-sees-no-gpu");
        assert_eq!(
            error.to_string(),
            "the container fails at the layer device nodes: 2 GPUs and no driver libraries are \
             visible, expected 2 GPUs and libcuda.so, libnvidia-ml.so of 535.261.03"
        );
    }

    #[test]
    fn host_devices_must_compute_in_the_container() {
        let device = |uuid: &str| ProbedDevice {
            uuid: uuid.into(),
            index: 0,
            mig_index: None,
            pci_address: None,
            work: None,
            fault: None,
            remedy: None,
        };
        let libraries = ["libcuda.so", "libnvidia-ml.so"].map(|name| format!("/x/{name}.1.2"));
        let unprobed = ContainerView {
            libraries: libraries.into(),
            ..ContainerView::default()
        };
        let probed = |layers: LayerResults| ContainerView {
            probe: Some(ProbeDocument {
                devices: vec![device("GPU-a"), device("MIG-b")],
                ..layers.document()
            }),
            ..unprobed.clone()
        };
        let said = |view: &ContainerView, uuids: &[&str]| {
            let uuids: Vec<String> = uuids.iter().map(|uuid| (*uuid).to_owned()).collect();
            evaluate(view, 0, "1.2", &uuids)
                .map_err(|error| (error.to_string(), error.hint().unwrap_or_default()))
        };
        let good = probed(LayerResults::default());
        assert_eq!(said(&good, &["MIG-b", "GPU-a"]), Ok(()));
        let (why, _) = said(&good, &["GPU-a", "GPU-c"]).expect_err("other devices");
        assert_eq!(
            why,
            "the container fails at the layer NVML: MIG-b only visible in the container; GPU-c \
             only visible on the host"
        );
        let mut layers = LayerResults::default();
        layers.fail(LayerFault::new(
            ProbeLayer::Cuda,
            "`cuInit` returned 803",
            "regenerate the specification",
        ));
        let (why, hint) = said(&probed(layers), &["GPU-a"]).expect_err("a layer fails");
        assert_eq!(
            why,
            "the container fails at the layer CUDA: `cuInit` returned 803"
        );
        assert_eq!(hint, "regenerate the specification");
        // If NVML returned no UUIDs, the visible devices are sufficient.
        assert_eq!(said(&unprobed, &[]), Ok(()));
        let (why, _) = said(&unprobed, &["GPU-a"]).expect_err("nothing computed");
        assert_eq!(why, "the probe in the container printed no result");
    }

    /// A machine on which the gpu-bootstrap binary can be packed.
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

    #[tokio::test]
    async fn probe_image_is_created_run_and_removed() {
        let (host, fakes) = machine();
        fakes.exec.on("tar", |_, _| ok(""));
        fakes
            .exec
            .on("docker", |cmd, _| match cmd.args[0].as_str() {
                "run" => ok(SEEN),
                _ => ok(""),
            });
        let probe = container_probe(RuntimeKind::Docker, None);
        run(&host, "/var/lib/gpu-bootstrap".into(), &probe, &Silent)
            .await
            .expect("the probe succeeds");
        let subcommands: Vec<String> = fakes
            .exec
            .log()
            .iter()
            .filter(|cmd| cmd.program == "docker")
            .map(|cmd| cmd.args[0].clone())
            .collect();
        assert_eq!(subcommands, ["import", "rm", "run", "image"]);
    }

    #[tokio::test]
    async fn static_binary_needs_no_loader() {
        let (host, fakes) = machine();
        fakes.files.put(
            "/proc/self/maps",
            "1-2 r--p 0 fe:01 7 /usr/bin/gpu-bootstrap\n",
        );
        fakes.exec.on("ctr", |cmd, _| match cmd.args[1].as_str() {
            "run" => ok(SEEN),
            _ => ok(""),
        });
        let probe = container_probe(RuntimeKind::Containerd, None);
        (run(&host, "/state".into(), &probe, &Silent).await).expect("the probe succeeds");
        let lines = fakes.exec.lines();
        let own = "gpu-bootstrap-probe /gpu-bootstrap container-probe";
        assert!(lines[1].ends_with(own), "{}", lines[1]);
    }

    #[tokio::test]
    async fn interrupted_containerd_probe_is_removed_first() {
        let (host, fakes) = machine();
        fakes.exec.on("ctr", |cmd, _| match cmd.args[1].as_str() {
            "containers" if cmd.args[2] == "list" => ok("other\ngpu-bootstrap-probe\n"),
            // The task of the container has already exited.
            "tasks" => failed(1, "ctr: no running task found"),
            "run" => ok(SEEN),
            _ => ok(""),
        });
        let probe = container_probe(RuntimeKind::Containerd, None);
        run(&host, "/var/lib/gpu-bootstrap".into(), &probe, &Silent)
            .await
            .expect("the probe succeeds");
        let lines = fakes.exec.lines();
        let own = "ctr --namespace=gpu-bootstrap-probe";
        assert_eq!(lines[0], format!("{own} containers list --quiet"));
        assert_eq!(
            lines[1],
            format!("{own} tasks delete --force -- gpu-bootstrap-probe")
        );
        assert_eq!(
            lines[2],
            format!("{own} containers delete -- gpu-bootstrap-probe")
        );
        assert!(lines[3].contains(" --rootfs -- /var/lib/gpu-bootstrap/probe/rootfs "));
        assert_eq!(lines.len(), 4);
    }

    #[tokio::test]
    async fn containerd_runs_the_configured_image() {
        let (host, fakes) = machine();
        fakes.exec.on("ctr", |cmd, _| match cmd.args[1].as_str() {
            "run" => ok(SEEN),
            _ => ok(""),
        });
        let image = "nvcr.io/nvidia/cuda:12.8.1-base-ubuntu24.04";
        let probe = container_probe(RuntimeKind::Containerd, Some(image));
        run(&host, "/var/lib/gpu-bootstrap".into(), &probe, &Silent)
            .await
            .expect("the probe succeeds");
        let lines = fakes.exec.lines();
        let [list, run] = &lines[..] else {
            panic!("{lines:#?}");
        };
        assert!(list.starts_with("ctr --namespace=k8s.io containers list"));
        assert!(run.starts_with("ctr --namespace=k8s.io run --rm "), "{run}");
        assert!(!run.contains("--rootfs"), "{run}");
        let mounted = "--mount=type=bind,src=/var/lib/gpu-bootstrap/probe/rootfs/gpu-bootstrap,\
                       dst=/gpu-bootstrap,options=rbind:ro";
        assert!(run.contains(mounted), "{run}");
        let inside = format!("{image} gpu-bootstrap-probe /gpu-bootstrap-lib/ld-linux");
        assert!(run.contains(&inside), "{run}");
    }

    #[tokio::test]
    async fn podman_container_gets_gpus_from_the_specification() {
        for (image, own) in [
            (
                None,
                " --rootfs -- /state/probe/rootfs /gpu-bootstrap container-probe",
            ),
            (
                Some("nvcr.io/nvidia/cuda:12.8.1-base-ubuntu24.04"),
                " --entrypoint=/gpu-bootstrap -- nvcr.io/nvidia/cuda:12.8.1-base-ubuntu24.04 \
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
            // A static binary needs no loader.
            fakes.files.put(
                "/proc/self/maps",
                "1-2 r--p 0 fe:01 7 /usr/bin/gpu-bootstrap\n",
            );
            let probe = container_probe(RuntimeKind::Podman, image);
            let run = run(&host, "/state".into(), &probe, &Silent);
            run.await.expect("the probe succeeds");
            let lines = fakes.exec.lines();
            assert_eq!(
                lines[0],
                "podman rm --force --ignore -- gpu-bootstrap-probe"
            );
            assert!(
                lines[1].contains(" --device=nvidia.com/gpu=all ") && lines[1].ends_with(own),
                "{}",
                lines[1]
            );
        }
    }
}
