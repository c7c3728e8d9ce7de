//! The pod probe: this program runs in a pod on this node that is given one GPU by the device plugin, and computes on
//! it. The pod names its node, so no scheduler is needed and taints keep it from nothing. Its image is made on the spot
//! from this program, for the containerd of the kubelet; no registry is needed.

use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{
    container::{self, Proof},
    error::ProbeError,
    job::{IMAGE, PREPARE_DEADLINE},
    pod_error::PodError,
    root::Root,
};
use crate::{
    change::{Applier, ChangeError, JoinError, Reverted, Sink, image},
    config::desired::RuntimeKind,
    error::one_line,
    host::{ExecError, digest},
    model::kubernetes::NodeName,
    tools::{
        container_view::ContainerView,
        ctr,
        kubernetes::{
            kubeadm,
            kubectl::{self, Kubectl, Registered},
            pods::{self, PodState},
        },
        tar,
    },
};

/// How long a pod that was deleted may need until it is gone, and the log of one that has ended until it is read.
const END: Duration = Duration::from_secs(60);

/// How much longer than our own wait a pod may run.
const SPARE_SECONDS: u64 = 60;

/// Where the parts of the image are, below the state folder.
const IMAGE_FOLDER: &str = "probe/image";
/// The part whose digest is that of the image.
const CONFIG: &str = "config.json";

/// A pod that is to see and use one GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct PodProbe {
    /// The node.
    pub node: NodeName,
    /// The namespace of the pod.
    pub namespace: String,
    /// A kubeconfig that may make, read and delete it.
    #[schemars(with = "String")]
    pub access: Utf8PathBuf,
    /// Whether nvidia's runtime is the default one of the kubelet's containerd.
    pub nvidia_default: bool,
    /// The driver version whose libraries the pod must see.
    pub driver: String,
    /// UUIDs of the devices of this machine, of which the pod gets one.
    pub uuids: Vec<String>,
    /// Seconds until the node offers a GPU, and again until the pod ends.
    pub timeout_seconds: u64,
}

impl PodProbe {
    /// The name of the pod.
    pub(super) fn name(&self) -> String {
        name_for(&self.node)
    }

    fn bound(&self) -> Duration {
        Duration::from_secs(self.timeout_seconds)
    }

    /// The pod, for the API server. `resource` is what a GPU is called in the cluster.
    fn manifest(
        &self,
        resource: &str,
        image: &str,
        command: &[&str],
        class: Option<&str>,
    ) -> String {
        let mut pod = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": self.name(),
                "namespace": self.namespace,
                "labels": { "app.kubernetes.io/name": "gpu-bootstrap-probe" },
            },
            "spec": {
                "nodeName": &*self.node,
                "restartPolicy": "Never",
                "tolerations": [{ "operator": "Exists" }],
                // A pod that nobody deletes any more ends all the same, but after our own wait has told why it did not.
                "activeDeadlineSeconds": self.timeout_seconds + SPARE_SECONDS,
                "terminationGracePeriodSeconds": 1,
                "automountServiceAccountToken": false,
                "enableServiceLinks": false,
                "containers": [{
                    "name": "probe",
                    "image": image,
                    "imagePullPolicy": "Never",
                    "command": command,
                    "env": [{ "name": "NVIDIA_DRIVER_CAPABILITIES", "value": "compute,utility" }],
                    "resources": { "limits": { resource: "1" } },
                    "securityContext": { "allowPrivilegeEscalation": false },
                }],
            },
        });
        if let Some(class) = class {
            pod["spec"]["runtimeClassName"] = class.into();
        }
        pod.to_string()
    }
}

fn name_for(node: &NodeName) -> String {
    format!("gpu-bootstrap-probe-{node}")
}

impl Applier {
    /// Runs the pod to its end, and removes what was made for it.
    pub(super) async fn run_pod(
        &self,
        pod: &PodProbe,
        sink: &dyn Sink,
    ) -> Result<Proof, ChangeError> {
        let kubectl = self.kubectl_for(&pod.node)?;
        let resource = self.offered(pod).await?;
        self.refuse_unusable(&pod.access)?;
        let root = Root::prepare(&self.host, &self.state)?;
        let image = image::name(RuntimeKind::Containerd, IMAGE);
        self.clear_pod(pod, sink).await?;
        let ran = async {
            self.import(&root, &image, sink).await?;
            let class = self.runtime_class(kubectl, pod, sink).await?;
            let manifest = pod.manifest(resource, &image, &root.command(), class);
            let create = kubectl.create(&pod.access, manifest);
            let made = self.exec(&create, sink).await;
            made.and_then(|output| output.success(&create))
                .map_err(|source| PodError::NotMade {
                    namespace: pod.namespace.clone(),
                    source,
                })
                .map_err(ProbeError::from)?;
            self.ended(kubectl, pod, sink).await
        }
        .await;
        let cleared = self.clear_proof_of_pod(pod, sink).await;
        // The result of the pod comes first; what is left is told only after a success.
        let log = ran?;
        cleared?;
        Ok(judge(pod, &log)?)
    }

    /// Deletes the pod of a proof, and removes its image.
    pub(super) async fn clear_proof_of_pod(
        &self,
        pod: &PodProbe,
        sink: &dyn Sink,
    ) -> Result<(), ChangeError> {
        let deleted = self
            .delete_pod(&pod.node, &pod.namespace, &pod.access, sink)
            .await;
        deleted.and(self.remove_own_image(sink).await)
    }

    /// Removes the image of the probe. containerd's part for the kubelet has given it a second name, its digest.
    async fn remove_own_image(&self, sink: &dyn Sink) -> Result<(), ChangeError> {
        let config = self.state.join(IMAGE_FOLDER).join(CONFIG);
        let digest = (self.host.files.read(&config)?)
            .map(|content| format!("sha256:{}", digest::sha256(&content)));
        let list = ctr::images(ctr::KUBERNETES);
        let what = "remove the image of the probe";
        let tool = |source| ChangeError::Tool {
            what: what.to_owned(),
            source,
        };
        // Its images went with it.
        let Some(listed) = self.answer_of("ctr", &list).await? else {
            return Ok(());
        };
        let listed = listed.success(list.cmd()).map_err(tool)?.stdout;
        for name in [image::name(RuntimeKind::Containerd, IMAGE)]
            .into_iter()
            .chain(digest)
        {
            if listed.lines().any(|line| line.trim() == name) {
                let remove = ctr::remove(ctr::KUBERNETES, &name).deadline(PREPARE_DEADLINE);
                self.tool(what, &remove, sink).await?;
            }
        }
        Ok(())
    }

    /// The undo of a probe that was cut off.
    pub(in crate::change) async fn undo_pod(
        &self,
        node: &NodeName,
        namespace: &str,
        access: &Utf8Path,
        sink: &dyn Sink,
    ) -> Result<Reverted, ChangeError> {
        let what = format!("the pod `{}` in namespace `{namespace}`", name_for(node));
        let ended = |done: Result<(), ChangeError>, verb: &str, what: String| match done {
            Ok(()) => Reverted::Done {
                what: format!("{verb} {what}"),
            },
            Err(error) => Reverted::Left {
                what,
                why: one_line(&error),
            },
        };
        // It needs no cluster.
        let removed = self.remove_own_image(sink).await;
        let removed = ended(removed, "removed", "the image of that pod".to_owned());
        if !self.host.files.exists(access)? || kubectl::find(&*self.host.files)?.is_none() {
            let left = Reverted::Left {
                what,
                why: format!("`{access}` or kubectl is gone"),
            };
            return Ok(Reverted::of(vec![left, removed]));
        }
        let deleted = self.delete_pod(node, namespace, access, sink).await;
        let deleted = ended(deleted, "deleted", what);
        Ok(Reverted::of(vec![deleted, removed]))
    }

    async fn delete_pod(
        &self,
        node: &NodeName,
        namespace: &str,
        access: &Utf8Path,
        sink: &dyn Sink,
    ) -> Result<(), ChangeError> {
        self.refuse_unusable(access)?;
        let delete = (self.kubectl_for(node)?).delete_pod(access, namespace, &name_for(node));
        self.tool("delete the pod of the probe", &delete, sink)
            .await
            .map(drop)
    }

    fn kubectl_for(&self, node: &NodeName) -> Result<Kubectl, ChangeError> {
        let found = kubectl::find(&*self.host.files)?;
        Ok(found.ok_or_else(|| JoinError::NoKubectl {
            node: node.to_string(),
        })?)
    }

    /// Waits until the node offers a GPU; returns the name of that resource.
    async fn offered(&self, pod: &PodProbe) -> Result<&'static str, ChangeError> {
        let what = format!("wait until node `{}` offers a GPU", pod.node);
        let offered = self
            .awaited(&what, pod.bound(), || async {
                Ok(match self.node(&pod.node).await? {
                    Registered::Node(node) => node.gpu_resource(),
                    _ => None,
                })
            })
            .await?;
        if let Some(resource) = offered {
            return Ok(resource);
        }
        let error = match self.node(&pod.node).await? {
            Registered::Node(node) => PodError::NoDevicePlugin {
                node: pod.node.to_string(),
                instead: node.offered_instead(),
                seconds: pod.timeout_seconds,
            },
            Registered::Unknown => PodError::NotAsked {
                why: format!("the cluster does not know node `{}`", pod.node),
            },
            Registered::Silent(why) => PodError::NotAsked { why },
        };
        Err(ProbeError::from(error).into())
    }

    /// Removes a pod that an earlier probe has left, and waits until it is gone.
    async fn clear_pod(&self, pod: &PodProbe, sink: &dyn Sink) -> Result<(), ChangeError> {
        self.delete_pod(&pod.node, &pod.namespace, &pod.access, sink)
            .await?;
        let kubectl = self.kubectl_for(&pod.node)?;
        let what = format!("wait until the pod `{}` is gone", pod.name());
        let gone = self
            .awaited(&what, END, || async {
                let state = self.pod_state(kubectl, pod).await?;
                Ok((state == PodState::Gone).then_some(()))
            })
            .await?;
        gone.ok_or_else(|| {
            let why = format!("an earlier pod `{}` does not end", pod.name());
            ProbeError::from(PodError::NotAsked { why }).into()
        })
    }

    async fn pod_state(&self, kubectl: Kubectl, pod: &PodProbe) -> Result<PodState, ChangeError> {
        let what = || format!("look at the pod `{}`", pod.name());
        let query = kubectl.pod(&pod.access, &pod.namespace, &pod.name());
        let tool = |source| ChangeError::Tool {
            what: what(),
            source,
        };
        let output = match self.host.reader().query(&query).await {
            // An API server that is away for a moment proves nothing. The wait has a bound.
            Err(error @ ExecError::Deadline { .. }) => {
                return Ok(PodState::Waiting(error.to_string()));
            }
            output => output.map_err(tool)?,
        };
        if !output.ok() && !output.stderr.contains(kubectl::FORBIDDEN) {
            let last = output.stderr.trim().lines().last();
            return Ok(PodState::Waiting(last.unwrap_or_default().to_owned()));
        }
        let output = output.success(query.cmd()).map_err(tool)?;
        pods::parse(&output.stdout).map_err(|why| ChangeError::Unreadable { what: what(), why })
    }

    /// The runtime class of nvidia's runtime, where it is not the default one and the cluster has the class.
    async fn runtime_class(
        &self,
        kubectl: Kubectl,
        pod: &PodProbe,
        sink: &dyn Sink,
    ) -> Result<Option<&'static str>, ChangeError> {
        if pod.nvidia_default {
            return Ok(None);
        }
        let query = kubectl.runtime_class(&pod.access);
        let output = self.host.reader().query(&query).await;
        let output = output.map_err(|source| ChangeError::Tool {
            what: "look for the runtime class of nvidia's runtime".to_owned(),
            source,
        })?;
        if output.ok() {
            return Ok(Some(pods::RUNTIME_CLASS));
        }
        sink.line(&format!(
            "the pod names no runtime class: {}",
            output.stderr.trim()
        ));
        Ok(None)
    }

    /// Makes the image of this program and gives it to the kubelet's containerd, in the format of `docker save`
    /// (moby/docker-image-spec, v1.2).
    async fn import(&self, root: &Root, image: &str, sink: &dyn Sink) -> Result<(), ChangeError> {
        let folder = self.state.join(IMAGE_FOLDER);
        let files = &self.host.files;
        files.create_folder(&folder, 0o700)?;
        let layer = folder.join("layer.tar");
        let pack = |archive: &Utf8Path, from: &Utf8Path, names: &[&str]| {
            tar::pack(archive, from, names).deadline(PREPARE_DEADLINE)
        };
        let what = "make the image of the probe";
        self.tool(what, &pack(&layer, &root.folder, &["."]), sink)
            .await?;
        let content = files.read(&layer)?.unwrap_or_default();
        let config = json!({
            "architecture": architecture(std::env::consts::ARCH),
            "os": "linux",
            "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{}", digest::sha256(&content))] },
            "config": {},
        });
        let manifest = json!([{ "Config": CONFIG, "RepoTags": [image], "Layers": ["layer.tar"] }]);
        for (name, document) in [(CONFIG, config), ("manifest.json", manifest)] {
            files.write(&folder.join(name), document.to_string().as_bytes(), 0o600)?;
        }
        let archive = root.folder.with_extension("tar");
        let names = ["manifest.json", CONFIG, "layer.tar"];
        self.tool(what, &pack(&archive, &folder, &names), sink)
            .await?;
        let import = ctr::import(ctr::KUBERNETES, archive.as_str()).deadline(PREPARE_DEADLINE);
        self.tool("give containerd the image of the probe", &import, sink)
            .await
            .map(drop)
    }

    /// Waits until the pod has ended; returns what it has printed.
    async fn ended(
        &self,
        kubectl: Kubectl,
        pod: &PodProbe,
        sink: &dyn Sink,
    ) -> Result<String, ChangeError> {
        let what = format!("wait until the pod `{}` has ended", pod.name());
        let ended = self
            .awaited(&what, pod.bound(), || async {
                let state = self.pod_state(kubectl, pod).await?;
                let goes_on = matches!(state, PodState::Waiting(_) | PodState::Running);
                Ok((!goes_on).then_some(state))
            })
            .await?;
        let state = match ended {
            Some(state) => state,
            None => self.pod_state(kubectl, pod).await?,
        };
        let seconds = pod.timeout_seconds;
        let error = match state {
            PodState::Ended(_) => return self.log_of(kubectl, pod, sink).await,
            PodState::NoImage(why) => PodError::NoImage { why },
            PodState::Refused(why) => PodError::Refused { why },
            PodState::NotStarted(why) => PodError::NotStarted { why },
            PodState::Waiting(why) | PodState::Overdue(why) => PodError::NotInTime {
                seconds,
                why,
                // A sandbox that cannot be made is told there, and in events, which need a right of their own.
                last_words: self.words_of(kubeadm::UNIT).await,
            },
            PodState::Running => PodError::NotInTime {
                seconds,
                why: "its program runs".to_owned(),
                last_words: None,
            },
            PodState::Gone => PodError::NotAsked {
                why: "somebody has deleted the pod".to_owned(),
            },
        };
        Err(ProbeError::from(error).into())
    }

    /// What the pod has printed. The API server asks the kubelet for it, and either may be away for a moment.
    async fn log_of(
        &self,
        kubectl: Kubectl,
        pod: &PodProbe,
        sink: &dyn Sink,
    ) -> Result<String, ChangeError> {
        let what = format!("read the log of the pod `{}`", pod.name());
        let query = kubectl.log(&pod.access, &pod.namespace, &pod.name());
        let read = || async {
            let output = self.host.reader().query(&query).await;
            output.and_then(|output| output.success(query.cmd()))
        };
        let log = self
            .awaited(&what, END, || async { Ok(read().await.ok()) })
            .await?;
        let log = match log {
            Some(log) => log,
            None => (read().await).map_err(|source| ChangeError::Tool { what, source })?,
        };
        log.stdout.lines().for_each(|line| sink.line(line));
        Ok(log.stdout)
    }
}

/// The name of an architecture in images, as Go has it.
fn architecture(name: &str) -> &str {
    match name {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// What the pod has found: one of the machine's devices, which computes.
fn judge(pod: &PodProbe, log: &str) -> Result<Proof, ProbeError> {
    let view = view(log)?;
    container::layers(&view, &pod.uuids)?;
    container::judge(&view, 1, &pod.driver)?;
    let probe = (view.probe.as_ref())
        .filter(|probe| !probe.devices.is_empty())
        .ok_or(ProbeError::Silent)?;
    let strange: Vec<&str> = (probe.devices.iter())
        .map(|device| device.uuid.as_str())
        .filter(|uuid| !pod.uuids.iter().any(|own| own == uuid))
        .collect();
    if !strange.is_empty() {
        return Err(ProbeError::OtherDevices {
            inside: strange.join(", "),
            outside: pod.uuids.join(", "),
        });
    }
    Ok(container::proof(&view, " in a pod"))
}

/// The document in a log, in which both output streams are mixed.
fn view(log: &str) -> Result<ContainerView, ProbeError> {
    let mut at = 0;
    for line in log.split_inclusive('\n') {
        if line.starts_with('{') {
            let document = serde_json::Deserializer::from_str(&log[at..])
                .into_iter::<ContainerView>()
                .next();
            if let Some(Ok(view)) = document {
                return Ok(view);
            }
        }
        at += line.len();
    }
    Err(PodError::NoResult {
        said: Some(crate::host::exec::tail(log)),
    }
    .into())
}

#[cfg(test)]
mod tests {
    use super::{PodProbe, judge, view};
    use crate::error::Report as _;

    fn pod() -> PodProbe {
        PodProbe {
            node: "gpu-1".parse().expect("a name"),
            namespace: "default".into(),
            access: "/etc/k".into(),
            nvidia_default: false,
            driver: "1.2".into(),
            uuids: vec!["GPU-a".into(), "GPU-b".into()],
            timeout_seconds: 60,
        }
    }

    #[test]
    fn the_pod_is_bound_to_its_node_and_asks_for_one_gpu() {
        let text = pod().manifest("nvidia.com/gpu.shared", "x:1", &["/p"], Some("nvidia"));
        let pod: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let spec = &pod["spec"];
        assert_eq!(spec["nodeName"], "gpu-1");
        assert_eq!(spec["runtimeClassName"], "nvidia");
        assert_eq!(spec["tolerations"][0]["operator"], "Exists");
        let container = &spec["containers"][0];
        assert_eq!(
            container["resources"]["limits"]["nvidia.com/gpu.shared"],
            "1"
        );
        assert_eq!(container["imagePullPolicy"], "Never");
    }

    #[test]
    fn the_document_is_found_between_other_lines() {
        let document = "{\n  \"devices\": [\"nvidia1\"],\n  \"libraries\": []\n}\n";
        let found = view(&format!("warning: {{\n{{no\n{document}more\n")).expect("a view");
        assert_eq!(found.devices, ["nvidia1"]);
        let error = view("exec format error\n").expect_err("no document");
        assert_eq!(error.reason(), "container-cannot-compute");
    }

    #[test]
    fn a_pod_without_the_libraries_of_the_driver_is_blind() {
        let error = judge(&pod(), "{\"devices\": [], \"libraries\": []}\n").expect_err("blind");
        assert_eq!(error.reason(), "container-sees-no-gpu");
    }
}
