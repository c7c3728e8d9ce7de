//! The container probe: this program runs in a container that holds only the program and its
//! libraries, computes on the GPUs that it sees, and prints how far that works. No registry is needed.
//! Or a command runs in an image of the administrator's choice.

use std::{collections::BTreeSet, time::Duration};

use camino::Utf8Path;

use super::{
    containerd, docker,
    error::ProbeError,
    job::{Job, Ran},
    podman,
    root::Root,
};
use crate::{
    change::{Probe, Sink, image},
    config::desired::RuntimeKind,
    host::{ExecError, Host},
    model::pattern,
    tools::{
        container_view::{ContainerView, LIBRARIES},
        probe::ProbeDocument,
    },
};

/// What a proof has found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Proof {
    /// In words.
    pub(super) result: String,
    /// The figures of each device.
    pub(super) measured: Vec<String>,
}

/// Runs the probe to its end. Only a folder below `state` stays.
///
/// # Errors
/// See [`ProbeError`].
pub(super) async fn run(
    host: &Host,
    state: &Utf8Path,
    probe: &Probe,
    sink: &dyn Sink,
) -> Result<Proof, ProbeError> {
    let Probe::ContainerSeesGpus {
        runtime,
        image,
        gpus,
        driver,
        uuids,
        command,
        expect,
        timeout_seconds,
        pull_timeout_seconds: _,
    } = probe
    else {
        return Err(ProbeError::OnlyPods);
    };
    let image = (image.as_ref()).map(|image| image::name(*runtime, image));
    let root = match &command[..] {
        [] => Some(Root::prepare(host, state)?),
        _ => None,
    };
    let own = root.iter().flat_map(Root::command);
    let job = Job {
        host,
        sink,
        root: root.as_ref(),
        image: image.as_deref(),
        command: own.chain(command.iter().map(String::as_str)).collect(),
        limit: Duration::from_secs(*timeout_seconds),
    };
    let ran = match runtime {
        RuntimeKind::Docker => docker::run(&job).await?,
        RuntimeKind::Containerd => containerd::run(&job).await?,
        RuntimeKind::Podman => podman::run(&job).await?,
        RuntimeKind::Crio => return Err(ProbeError::OnlyPods),
    };
    let in_image = image
        .as_ref()
        .map_or_else(String::new, |image| format!(" in the image `{image}`"));
    if root.is_none() {
        return said(&ran, command, expect.as_deref(), &in_image);
    }
    let view = view(&ran)?;
    layers(&view, uuids)?;
    judge(&view, *gpus, driver)?;
    same(&view, uuids)?;
    Ok(proof(&view, &in_image))
}

/// Removes the container of a probe that was broken off.
///
/// # Errors
/// When the runtime refuses.
pub(super) async fn clear(host: &Host, probe: &Probe, sink: &dyn Sink) -> Result<(), ProbeError> {
    let Probe::ContainerSeesGpus { runtime, image, .. } = probe else {
        return Ok(());
    };
    let image = (image.as_ref()).map(|image| image::name(*runtime, image));
    let job = Job {
        host,
        sink,
        root: None,
        image: image.as_deref(),
        command: Vec::new(),
        limit: Duration::ZERO,
    };
    match runtime {
        RuntimeKind::Docker => docker::clear(&job).await,
        RuntimeKind::Containerd => containerd::clear(&job).await,
        RuntimeKind::Podman => podman::clear(&job).await,
        RuntimeKind::Crio => Ok(()),
    }
}

/// The result of the own probe.
fn proof(view: &ContainerView, in_image: &str) -> Proof {
    match &view.probe {
        Some(probe) => proof_of(probe, in_image),
        None => Proof {
            result: format!(
                "{} GPUs seen{in_image}, none of them asked to compute",
                view.gpus()
            ),
            measured: Vec::new(),
        },
    }
}

/// The result of a probe that passed.
pub(super) fn proof_of(probe: &ProbeDocument, in_image: &str) -> Proof {
    let measured = probe.devices.iter().filter_map(|device| {
        let work = device.work.as_ref()?;
        Some(format!(
            "{} to-device={:.1} from-device={:.1} on-device={:.1} GB/s",
            device.uuid, work.to_device_gb_s, work.from_device_gb_s, work.on_device_gb_s
        ))
    });
    let cuda = (probe.cuda_version.as_ref())
        .map_or_else(String::new, |version| format!(" with CUDA {version}"));
    Proof {
        result: format!("{}{cuda}{in_image}", probe.why),
        measured: measured.collect(),
    }
}

/// What a command of the administrator has said.
fn said(
    ran: &Ran,
    command: &[String],
    expect: Option<&str>,
    in_image: &str,
) -> Result<Proof, ProbeError> {
    let command = format!("`{}`{in_image}", command.join(" "));
    let output = &ran.output;
    let lines = || output.stdout.lines().chain(output.stderr.lines());
    let last = || {
        let lines = output
            .stderr
            .lines()
            .rev()
            .chain(output.stdout.lines().rev());
        let mut lines = lines.filter(|line| !line.trim().is_empty());
        lines.next().map(|line| line.trim().to_owned())
    };
    if !output.ok() {
        return Err(ProbeError::Command {
            command,
            status: output.status.to_string(),
            said: last(),
        });
    }
    let Some(expect) = expect else {
        return Ok(Proof {
            result: format!("{command} succeeded"),
            measured: Vec::new(),
        });
    };
    let wanted = format!("*{expect}*");
    match lines().find(|line| pattern::matches(&wanted, line)) {
        Some(line) => Ok(Proof {
            result: format!("{command} printed `{}`", line.trim()),
            measured: Vec::new(),
        }),
        None => Err(ProbeError::NotExpected {
            command,
            expect: expect.to_owned(),
            said: last(),
        }),
    }
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

/// Whether all layers work there, as far as the container tells.
fn layers(view: &ContainerView, uuids: &[String]) -> Result<(), ProbeError> {
    match &view.probe {
        Some(probe) if !uuids.is_empty() => match probe.failed_layer {
            None => Ok(()),
            Some(layer) => Err(ProbeError::Layer {
                layer,
                why: probe.why.clone(),
                remedy: probe.remedy.clone(),
            }),
        },
        _ => Ok(()),
    }
}

/// Whether the devices there are those of the host.
fn same(view: &ContainerView, uuids: &[String]) -> Result<(), ProbeError> {
    if uuids.is_empty() {
        return Ok(());
    }
    let probe = view.probe.as_ref().ok_or(ProbeError::Silent)?;
    let devices = probe.devices.iter();
    let inside: BTreeSet<&str> = devices.map(|one| one.uuid.as_str()).collect();
    let outside: BTreeSet<&str> = uuids.iter().map(String::as_str).collect();
    if inside == outside {
        return Ok(());
    }
    let only = |these: &BTreeSet<&str>, those: &BTreeSet<&str>| {
        let only: Vec<&str> = these.difference(those).copied().collect();
        match &only[..] {
            [] => "no other one".to_owned(),
            only => only.join(", "),
        }
    };
    Err(ProbeError::OtherDevices {
        inside: only(&inside, &outside),
        outside: only(&outside, &inside),
    })
}

/// The last line of the output is what the container sees.
fn view(ran: &Ran) -> Result<ContainerView, ProbeError> {
    let output = ran.output.clone().success(&ran.cmd)?;
    serde_json::from_str(output.stdout.trim()).map_err(|error| {
        ProbeError::Exec(ExecError::Unexpected {
            command: ran.cmd.line(),
            why: format!("{error} in {:?}", crate::host::exec::tail(&output.stdout)),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::{ProbeError, judge, layers, run, same};
    use crate::{
        change::{Probe, Sink, tests::kit::container_probe},
        config::desired::RuntimeKind,
        error::Report as _,
        host::{
            Host, Output,
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
            let result = layers(view, &uuids).and_then(|()| same(view, &uuids));
            result.map_err(|error| (error.to_string(), error.hint().unwrap_or_default()))
        };
        let good = probed(Layers::default());
        assert_eq!(said(&good, &["MIG-b", "GPU-a"]), Ok(()));
        let (why, _) = said(&good, &["GPU-a", "GPU-c"]).expect_err("other devices");
        assert_eq!(
            why,
            "the container fails at the layer NVML: only it has MIG-b; only the host has GPU-c"
        );
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
        let probe = container_probe(RuntimeKind::Docker, None);
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
    async fn leftovers_of_an_interrupted_probe_in_containerd_are_removed_first() {
        let (host, fakes) = machine();
        fakes.exec.on("ctr", |cmd, _| match cmd.args[1].as_str() {
            "containers" if cmd.args[2] == "list" => ok("other\ngpu-bootstrap-probe\n"),
            // It had ended by itself.
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

    /// What the configured command prints, and what a line of it must contain.
    async fn commanded(output: Output, expect: Option<&str>) -> Result<String, String> {
        let (host, fakes) = fake::host();
        fakes
            .exec
            .on("docker", move |cmd, _| match cmd.args[0].as_str() {
                "run" => output.clone(),
                _ => ok(""),
            });
        let mut probe = container_probe(RuntimeKind::Docker, Some("registry/x:1"));
        let Probe::ContainerSeesGpus {
            command,
            expect: expected,
            ..
        } = &mut probe
        else {
            panic!("a container");
        };
        *command = vec!["nvidia-smi".into(), "-L".into()];
        *expected = expect.map(str::to_owned);
        let ran = run(&host, "/state".into(), &probe, &Silent).await;
        let lines = fakes.exec.lines();
        let run = lines.last().expect("a container");
        // The image is as its author made it.
        assert!(
            run.ends_with("--entrypoint=nvidia-smi -- registry/x:1 -L"),
            "{run}"
        );
        ran.map(|proof| proof.result)
            .map_err(|error| error.to_string())
    }

    #[tokio::test]
    async fn a_configured_command_is_judged_by_its_status_and_its_output() {
        let printed = || ok("GPU 0: H100\nGPU 1: H100\n");
        let command = "`nvidia-smi -L` in the image `registry/x:1`";
        assert_eq!(
            commanded(printed(), None).await,
            Ok(format!("{command} succeeded"))
        );
        assert_eq!(
            commanded(printed(), Some("GPU 1:*100")).await,
            Ok(format!("{command} printed `GPU 1: H100`"))
        );
        assert_eq!(
            commanded(printed(), Some("GPU 7")).await,
            Err(format!(
                "{command} printed no line with `GPU 7`; its last line is:\nGPU 1: H100"
            ))
        );
        assert_eq!(
            commanded(failed(9, "no devices were found"), Some("GPU")).await,
            Err(format!(
                "{command} exited with status 9\nno devices were found"
            ))
        );
    }

    #[tokio::test]
    async fn its_own_container_and_an_image_get_the_gpus_by_the_specification() {
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
            // A program without libraries needs no loader.
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
