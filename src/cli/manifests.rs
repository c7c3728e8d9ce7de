//! `manifests`: writes Kubernetes manifests for the settings of a node, from the templates in `manifests/`. It needs no
//! cluster, and creates no objects in one.

mod values;

use std::collections::BTreeMap;

use camino::{Utf8Path, Utf8PathBuf};

use self::values::{Node, render};
use super::{
    Failure, args,
    env::{Console, Env},
    machine, prepare, print, trial,
};
use crate::{
    config::desired::Desired,
    exit::Exit,
    host::{FilesError, Host, Nvml, NvmlDevice, digest::sha256, trusted::refuse_foreign},
    joins::RuntimeClass,
    mig::{self, MigStrategy},
    model::text::{directory, shell_word},
    sharing::{DRA_DRIVER, DevicePluginSpec, GPU_CLASS, GpuAllocation},
    state::labels,
};

/// The first line of each file starts with this, and ends with the digest of the other lines.
const MARKER: &str = "# Written by `gpu-bootstrap manifests`";

/// The directory of the templates in the binary.
const TEMPLATES: &str = "manifests";

/// The template of the RuntimeClass.
const RUNTIME_CLASS: &str = "20-runtime-class.yaml";

/// The template of the device plugin.
const DEVICE_PLUGIN: &str = "30-device-plugin.yaml";

/// The template of the DRA driver.
const DRA_PLUGIN: &str = "30-dra-driver.yaml";

/// The directory of the sockets of device plugins.
const PLUGIN_SOCKETS: &str = "/var/lib/kubelet/device-plugins";

/// The files that only the DRA driver needs.
const OF_DRA: [&str; 3] = [DRA_PLUGIN, "policies/40-shared-claim.yaml", TEST_CLAIM];

/// The template of the MPS control daemon.
const MPS: &str = "35-mps-control-daemon.yaml";

/// The template of the DCGM exporter.
const DCGM_EXPORTER: &str = "40-dcgm-exporter.yaml";

/// The path of the pod that tests the device plugin.
const TEST_POD: &str = "test/gpu-pod.yaml";

/// The path of the pod that tests the DRA driver.
const TEST_CLAIM: &str = "test/gpu-claim.yaml";

pub(super) async fn run(
    host: &Host,
    env: &Env,
    console: &mut Console<'_>,
    args: &args::ManifestsArgs,
) -> Result<Exit, Failure> {
    let out = prepare::absolute(&args.out)?;
    let node = match &args.trial.os {
        Some(system) => imagined(host, env, console, args, system)?,
        None => this_machine(host, env, console, args).await?,
    };
    if node.has_compute_domains {
        console.warn(&["the manifests contain nothing for ComputeDomains (`fabric.imex = \"dra\"`): install the Helm chart of the NVIDIA \
             DRA driver with `--set resources.gpus.enabled=false`"
            .to_owned()]);
    }
    if node.plugin.has_mps_on_host() {
        return Err(Failure::new(
            Exit::Config,
            "mps-on-host",
            "write the manifests: without `cluster.join`, the MPS control daemon runs on the machine, and no device plugin uses it",
            Some(
                "set `cluster.join`, for example `cluster.join = \"managed\"` if another program joins the machine; or set \
                 `sharing.method = \"time-slicing\"`",
            ),
        ));
    }
    if node.offers.is_empty() {
        let what = "write the manifests: pods would get no GPU of this machine";
        let hint = match &args.trial.os {
            // Every machine of `--os` has GPUs, so only the strategy can be the cause.
            Some(_) => "set `cluster.mig-strategy = \"mixed\"`, or a `mig.layout` with one profile",
            None => {
                "run `gpu-bootstrap facts` to list the GPUs. With `cluster.mig-strategy = \"single\"`, all GPUs need the same \
                 MIG devices. For another machine, add `--os ID-VERSION --gpu NAME`"
            }
        };
        return Err(Failure::new(Exit::Blocked, "no-devices", what, Some(hint)));
    }
    let files = documents(&node, &out).map_err(|why| {
        let message = format!("fill in the manifests: {why}");
        Failure::new(Exit::Internal, "template-invalid", &message, None)
    })?;
    is_only_one(host, node.allocation, &out)?;
    let changed = to_write(host, env, &files)?;
    for (path, text) in &files {
        let is_changed = changed.contains(&path.as_path());
        if is_changed {
            host.files
                .write(path, text.as_bytes(), 0o644)
                .map_err(|error| unwritable(path, error))?;
        }
        let done = if is_changed { "written" } else { "unchanged" };
        print::text(&mut console.out, &format!("{done:<9} {path}\n"))?;
    }
    let apply = |path: &Utf8Path| format!("kubectl apply -f {}", shell_word(path));
    let mut commands = vec![apply(&out)];
    if node.has_test_pod {
        commands.push(apply(&out.join(test_of(node.allocation))));
    }
    console.next(
        "Then, in the cluster (read the files in `policies` and `queues` before you apply them):",
        &commands,
    );
    Ok(Exit::Ok)
}

/// Returns the path of the test pod.
const fn test_of(allocation: GpuAllocation) -> &'static str {
    match allocation {
        GpuAllocation::DevicePlugin => TEST_POD,
        GpuAllocation::Dra => TEST_CLAIM,
    }
}

fn unwritable(path: &Utf8Path, error: FilesError) -> Failure {
    let message = format!("failed to write `{path}`");
    let hint = "specify a directory with `--out` that only you can write";
    Failure::caused(Exit::Internal, "output", &message, error, Some(hint))
}

/// Returns the values for a machine that does not exist yet.
fn imagined(
    host: &Host,
    env: &Env,
    console: &mut Console<'_>,
    args: &args::ManifestsArgs,
    system: &str,
) -> Result<Node, Failure> {
    let matrix = machine::matrix(host, env)?;
    let (machine, resolution) =
        trial::resolved(host, env, &matrix, (&args.target, &args.trial), system)?;
    console.warn(&resolution.warnings);
    let desired = &resolution.desired;
    let gpus = machine.facts.gpus.len();
    if let Some(layouts) = machine.mig.instances() {
        let offers = offered(desired, &mig::planned(layouts, gpus))?;
        return Ok(Node::new(desired, offers, None));
    }
    Ok(with_unknown_mig_devices(console, desired, gpus))
}

/// Returns the values for this number of GPUs, whose MIG devices are unknown.
fn with_unknown_mig_devices(console: &mut Console<'_>, desired: &Desired, gpus: usize) -> Node {
    let plugin = &desired.device_plugin;
    let offers = match desired.settings.cluster.gpu_allocation {
        GpuAllocation::DevicePlugin => plugin.offers_of_whole_gpus(gpus),
        GpuAllocation::Dra => BTreeMap::from([(GPU_CLASS.to_owned(), gpus)]),
    };
    let mut node = Node::new(desired, offers, None);
    let unknown = "the MIG devices are unknown (run the command on the node after `install`)";
    let strategy = match desired.settings.cluster.gpu_allocation {
        GpuAllocation::DevicePlugin => plugin.mig_strategy,
        // The DRA driver offers MIG devices with each strategy.
        GpuAllocation::Dra if desired.mig.is_some() => MigStrategy::Mixed,
        GpuAllocation::Dra => MigStrategy::None,
    };
    match strategy {
        MigStrategy::None => {}
        MigStrategy::Single => {
            console.warn(&[format!("{unknown}, so the quotas count whole GPUs")]);
        }
        MigStrategy::Mixed => {
            node.has_test_pod = false;
            console.warn(&[format!(
                "{unknown}, so the quotas count whole GPUs, and `{}` is not written",
                test_of(node.allocation)
            )]);
        }
    }
    node
}

/// Returns the resources or device classes that these devices result in, with their numbers.
fn offered(desired: &Desired, devices: &[NvmlDevice]) -> Result<BTreeMap<String, usize>, Failure> {
    let offers = match desired.settings.cluster.gpu_allocation {
        GpuAllocation::DevicePlugin => desired.device_plugin.offers(devices),
        GpuAllocation::Dra => DevicePluginSpec::device_classes(devices),
    };
    offers.map_err(|what| {
        let message = format!("count the devices: NVML does not report {what}");
        let hint = "run `gpu-bootstrap check` to find the cause";
        Failure::new(Exit::StepFailed, "devices-unknown", &message, Some(hint))
    })
}

/// Returns the values for this machine.
async fn this_machine(
    host: &Host,
    env: &Env,
    console: &mut Console<'_>,
    args: &args::ManifestsArgs,
) -> Result<Node, Failure> {
    let request = prepare::request(&args.target, &args::ImageArgs::default(), false, None)?;
    let request = prepare::with_lock(host, env, &args.target, request)?;
    let target = prepare::target(host, env, request).await?;
    console.warn(&target.resolution.warnings);
    let desired = &target.resolution.desired;
    match desired.settings.cluster.gpu_allocation {
        GpuAllocation::DevicePlugin => has_no_dra_driver(host)?,
        GpuAllocation::Dra => has_no_device_plugin(host)?,
    }
    let plugin = &desired.device_plugin;
    let state = target.state();
    let nvml = state.nvml().await;
    let Nvml::Ready(view) = nvml else {
        console.warn(&[
            "NVML does not respond, so the quotas count the GPUs on the PCI bus".to_owned(),
        ]);
        return Ok(with_unknown_mig_devices(
            console,
            desired,
            target.facts().gpus.len(),
        ));
    };
    let offers = offered(desired, &view.devices)?;
    let labels = labels::of(target.facts(), nvml, plugin).ok();
    let product = labels.and_then(|mut all| all.labels.remove(values::PRODUCT));
    Ok(Node::new(desired, offers, product))
}

/// Rejects a node whose GPUs the NVIDIA DRA driver offers, because a device plugin would offer them again.
fn has_no_dra_driver(host: &Host) -> Result<(), Failure> {
    let found = host.files.exists(DRA_DRIVER.into()).map_err(|error| {
        let message = format!("failed to look for the NVIDIA DRA driver in `{DRA_DRIVER}`");
        Failure::caused(Exit::StepFailed, "unreadable", &message, error, None)
    })?;
    if !found {
        return Ok(());
    }
    Err(Failure::new(
        Exit::Blocked,
        "dra-driver",
        &format!(
            "write the device plugin: the NVIDIA DRA driver offers the GPUs of this node (`{DRA_DRIVER}`), and pods would get the \
             same GPUs twice"
        ),
        Some(
            "set `cluster.gpu-allocation = \"dra\"` to keep the DRA driver; or remove the DRA driver from the cluster, then the \
             directory, and run the command again",
        ),
    ))
}

/// Rejects a node whose GPUs a device plugin offers, because the DRA driver would offer them again. A plugin removes its socket when
/// it stops. Source of the names: `nvidia-NAME.sock`, NVIDIA/k8s-device-plugin v0.20.0 (commit 1b826acc),
/// `internal/plugin/server.go`.
fn has_no_device_plugin(host: &Host) -> Result<(), Failure> {
    let names = host.files.list(PLUGIN_SOCKETS.into()).map_err(|error| {
        let message = format!("failed to look for a device plugin in `{PLUGIN_SOCKETS}`");
        Failure::caused(Exit::StepFailed, "unreadable", &message, error, None)
    })?;
    let is_of_gpus = |name: &&String| name.starts_with("nvidia") && name.ends_with(".sock");
    let Some(name) = names.iter().find(is_of_gpus) else {
        return Ok(());
    };
    Err(Failure::new(
        Exit::Blocked,
        "device-plugin",
        &format!(
            "write the DRA driver: a device plugin offers the GPUs of this node (`{PLUGIN_SOCKETS}/{name}`), and pods would get the \
             same GPUs twice"
        ),
        Some(
            "remove the device plugin from the cluster, and run the command again (if no device plugin runs, restart the kubelet, which \
             removes old sockets); or remove `cluster.gpu-allocation` from the settings",
        ),
    ))
}

/// Rejects a directory with a file for the other program that offers GPUs, because `kubectl apply` would create both.
fn is_only_one(host: &Host, allocation: GpuAllocation, out: &Utf8Path) -> Result<(), Failure> {
    let others: &[&str] = match allocation {
        GpuAllocation::DevicePlugin => &[DRA_PLUGIN],
        GpuAllocation::Dra => &[DEVICE_PLUGIN, MPS],
    };
    let mut found = None;
    for other in others.iter().map(|name| out.join(name)) {
        if (host.files.exists(&other)).map_err(|error| unwritable(&other, error))? {
            found.get_or_insert(other);
        }
    }
    let Some(other) = found else {
        return Ok(());
    };
    let file = shell_word(&other);
    Err(Failure::new(
        Exit::Blocked,
        "manifests-differ",
        &format!(
            "write the manifests: `{other}` is for the other value of `cluster.gpu-allocation`, and both must not be applied"
        ),
        Some(&format!(
            "run `kubectl delete -f {file}` in the cluster, then `rm {file}`, and run the command again; or specify another directory \
             with `--out`"
        )),
    ))
}

/// Returns the paths and texts of all files.
fn documents(node: &Node, out: &Utf8Path) -> Result<Vec<(Utf8PathBuf, String)>, String> {
    let values = node.values()?;
    let mut files = Vec::new();
    let is_dra = node.allocation == GpuAllocation::Dra;
    for (name, template) in directory(TEMPLATES)? {
        let is_wanted = match name {
            TEST_CLAIM => is_dra && node.has_test_pod,
            _ if OF_DRA.contains(&name) => is_dra,
            DEVICE_PLUGIN => !is_dra,
            RUNTIME_CLASS => node.runtime_class == RuntimeClass::Created,
            MPS => node.plugin.mps().is_some(),
            TEST_POD => !is_dra && node.has_test_pod,
            DCGM_EXPORTER => !node.has_dcgm,
            _ => true,
        };
        if name.ends_with(".yaml") && is_wanted {
            let text = render(template, &values).map_err(|why| format!("{name}: {why}"))?;
            files.push((out.join(name), marked(&text)));
        }
    }
    Ok(files)
}

/// Adds the first line to a text.
fn marked(text: &str) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let digest = sha256(text.as_bytes());
    format!("{MARKER} {version}. SHA-256 of the other lines: {digest}\n{text}")
}

/// Returns the reason a file must not be overwritten. `None` if this command wrote it, and it was not edited.
fn kept(content: &[u8]) -> Option<&'static str> {
    let text = String::from_utf8_lossy(content);
    let Some((first, rest)) = text.split_once('\n').filter(|_| text.starts_with(MARKER)) else {
        return Some("was not written by this command");
    };
    (!first.ends_with(&sha256(rest.as_bytes()))).then_some("was edited")
}

/// Returns the paths of the files that are missing or differ.
///
/// # Errors
/// If one of them must not be overwritten. No file is written then.
fn to_write<'f>(
    host: &Host,
    env: &Env,
    files: &'f [(Utf8PathBuf, String)],
) -> Result<Vec<&'f Utf8Path>, Failure> {
    let (mut changed, mut refused) = (Vec::new(), Vec::new());
    for (path, text) in files {
        if env.root {
            refuse_foreign(&*host.files, path).map_err(|error| unwritable(path, error))?;
        }
        let found = host.files.read(path);
        let found = found.map_err(|error| unwritable(path, error))?;
        match found {
            Some(content) if content == text.as_bytes() => {}
            Some(content) => match kept(&content) {
                Some(why) => refused.push(format!("`{path}` {why}")),
                None => changed.push(path.as_path()),
            },
            None => changed.push(path.as_path()),
        }
    }
    if refused.is_empty() {
        return Ok(changed);
    }
    Err(Failure::new(
        Exit::Blocked,
        "manifests-differ",
        &format!("overwrite the manifests: {}", refused.join(", ")),
        Some(
            "specify another directory with `--out` and compare the files, or move these files away",
        ),
    ))
}

#[cfg(test)]
mod tests {
    use super::{kept, marked};

    #[test]
    fn only_unedited_files_of_this_command_are_overwritten() {
        let text = marked("apiVersion: v1\nkind: Pod\n");
        for (content, why) in rows! {
            text.clone(), None;
            text.replace("kind: Pod", "kind: Job"), Some("was edited");
            text.replacen('\n', "\r\n", 1), Some("was edited");
            "apiVersion: v1\n".to_owned(), Some("was not written by this command");
            String::new(), Some("was not written by this command");
        } {
            assert_eq!(kept(content.as_bytes()), why, "{content}");
        }
    }
}
