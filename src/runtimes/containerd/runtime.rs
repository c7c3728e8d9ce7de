//! Implements the runtime traits for containerd.

use async_trait::async_trait;
use camino::Utf8Path;

use super::{
    CriConfig, KubernetesDistribution, OWNERS, ctr, faults,
    files::{self, CONFIG},
    kubelets,
    layout::{self, ContainerdRuntime},
};
use crate::{
    error::one_line,
    host::{Cmd, ExecError, FilesError, Host, Output, Query, ReadFiles, Reader},
    model::document::{Document, FileSettings, Format},
    runtimes::{
        Answer, BUILT_IN, Broken, Config, ConfigFile, Configured, Containers, Goal, Harm,
        LackError, LiveConfig, NVIDIA, OneContainer, Place, ReadError, Report, Rewritten, Runtime,
        RuntimeFacts, RuntimeView, Surroundings, VARIABLES, Validated, Version, crictl, mounts,
        program::Named,
        quiet,
        view::{ask, last_lines, last_words, said},
        words,
    },
    tools::{oci, toolkit},
};

/// containerd, as used by the kubelet.
#[derive(Debug)]
pub struct Containerd;

pub const SOCKET: &str = "/run/containerd/containerd.sock";

static FACTS: RuntimeFacts = RuntimeFacts {
    title: "containerd",
    // Debian 12 archive; Docker and Azure repositories.
    packages: &["containerd.io", "containerd", "moby-containerd"],
    binaries: &["/usr/bin/containerd", "/usr/local/bin/containerd"],
    unit: Some("containerd.service"),
    directory: files::DIRECTORY,
    versioned: Some(CONFIG),
    data: Some("/var/lib/containerd"),
    scheme: "containerd",
    is_configurable: true,
    cri: Some(SOCKET),
    brings: &[],
    sockets: &[SOCKET],
    bridge: None,
    repositories: None,
    has_sources: true,
    example: None,
    first: None,
    reads_groups: None,
};

/// The programs that regenerate the file: Google's boot script, which is started by its unit (kubernetes/cloud-provider-gcp,
/// `cluster/gce/gci/configure-helper.sh`, `setup-containerd`, up to commit c3b0081d7, which removed the directory; the script
/// of GKE itself is not public), and the join script of Canonical's image for EKS. The drop-in restores the runtime before each
/// start of containerd, and therefore also before the first pod.
static REWRITTEN: Rewritten = Rewritten {
    units: &["kube-node-configuration.service"],
    programs: &["/etc/eks/bootstrap.sh"],
    file: CONFIG,
    drop_in: "/etc/systemd/system/containerd.service.d/50-gpu-bootstrap.conf",
    subcommand: "containerd-runtime",
};

impl From<CriConfig> for Config {
    fn from(cri: CriConfig) -> Self {
        Self {
            runtimes: cri.runtimes.into_iter().collect(),
            default: cri.default_runtime,
            programs: cri.programs,
            systemd_cgroup: cri.systemd_cgroup,
            serves_pods: cri.enabled,
            spares_containers: true,
            ..Self::default()
        }
    }
}

/// Parses the output of [`super::config_dump`].
fn of_dump(output: &Output) -> LiveConfig {
    match super::parse_config(&output.stdout) {
        Ok(config) if output.ok() => LiveConfig::Known(config.into()),
        _ => LiveConfig::Silent(last_words(output)),
    }
}

/// Returns the reason if CRI, the interface for the kubelet, is not ready. The evidence is the plugin list, and CRI itself if
/// `crictl` is installed.
async fn cri_answers(host: Reader<'_>) -> Result<Answer, ExecError> {
    let issue = |why: String| Answer {
        issue: Some(why),
        notes: Vec::new(),
    };
    let plugins = ask(host, &ctr::plugins()).await?;
    let status = (plugins.as_ref()).and_then(|said| ctr::cri_status(&said.stdout));
    if let Some(status) = status.filter(|status| *status != "ok") {
        return Ok(issue(format!("the status of its CRI plugin is `{status}`")));
    }
    let Some(said) = ask(host, &crictl::info(SOCKET)).await? else {
        return Ok(Answer::default());
    };
    if !said.ok() {
        let is_of_another_version = status.is_some() && crictl::knows_no_service(&said.stderr);
        return Ok(match is_of_another_version {
            true => Answer::default(),
            false => issue(last_lines(&said)),
        });
    }
    let conditions = match crictl::parse_info(&said.stdout) {
        Ok(conditions) => conditions,
        Err(why) => return Ok(issue(why)),
    };
    let of = |name| conditions.iter().find(|one| one.name == name)?.issue();
    let runtime = of("RuntimeReady");
    // A new node has no pod network before it joins.
    let notes = match (&runtime, of("NetworkReady")) {
        (None, Some(network)) => vec![format!("containerd has no pod network yet: {network}")],
        _ => Vec::new(),
    };
    Ok(Answer {
        issue: runtime,
        notes,
    })
}

#[async_trait]
impl Runtime for Containerd {
    fn facts(&self) -> &'static RuntimeFacts {
        &FACTS
    }

    async fn view(&self, place: Place<'_>) -> Result<RuntimeView, ReadError> {
        let (found, broken) = files::read(place.host.files(), place.version)?;
        let by_files = (place.installed && broken.is_none())
            .then(|| files::merged(&found, place.version).into());
        Ok(RuntimeView {
            files: found,
            broken,
            by_files,
            ..RuntimeView::of(self.said(place.host).await.into(), place.version)
        })
    }

    async fn report(
        &self,
        place: Place<'_>,
        view: &RuntimeView,
        _: Surroundings<'_>,
    ) -> Result<Option<Report>, ReadError> {
        if !place.installed {
            let why = "containerd is not installed".to_owned();
            return Ok(Some(Report::Nothing(why)));
        }
        let files = place.host.files();
        let strays = files::strays(files, &view.files)?;
        let mut found = faults::faults(&view.files, &strays, view.version);
        // If containerd does not start with its files, the programs in them have no effect.
        if found.iter().all(|fault| fault.harm != Harm::All) {
            for one in faults::programs(&view.files, view.version) {
                let named = Named {
                    of: FACTS.title,
                    unit: "containerd",
                    runtime: &one.runtime,
                    program: &one.program,
                    path: Some(&one.path),
                    default: one
                        .default
                        .then_some("and is the default runtime: no pod starts"),
                };
                if named.counts() {
                    found.extend(named.fault(files)?);
                }
            }
        }
        if found.is_empty() && !view.has_file() {
            return Ok(Some(Report::Nothing(
                "containerd has no configuration file".to_owned(),
            )));
        }
        let whole = "the files are valid, and their runtimes are complete";
        Ok(Some(Report::of(found, whole)))
    }

    fn refuses_kubelet(&self, kubelet: &str, version: &str) -> Option<String> {
        kubelets::with_containerd(kubelet, version)
    }

    fn untested_kubelet(&self, kubelet: &str, version: &str) -> Option<(String, &'static str)> {
        let releases =
            "https://github.com/containerd/containerd/blob/main/RELEASES.md#kubernetes-support";
        Some((kubelets::untested_containerd(kubelet, version)?, releases))
    }

    fn owners(&self) -> &'static [KubernetesDistribution] {
        &OWNERS
    }

    fn containers(&self) -> Option<&dyn Containers> {
        Some(self)
    }
}

#[async_trait]
impl Configured for Containerd {
    fn lacking(
        &self,
        files: &dyn ReadFiles,
        view: &RuntimeView,
        goal: &Goal<'_>,
    ) -> Result<Vec<FileSettings>, LackError> {
        let kept = match &view.said {
            LiveConfig::Known(config) => match config.programs.get(NVIDIA) {
                Some(program) => files.exists(Utf8Path::new(program))?,
                None => false,
            },
            _ => false,
        };
        // runc and the NVIDIA runtime must have the same cgroup driver.
        let cgroup = view.config().and_then(|config| {
            let of = |name| config.systemd_cgroup.get(name);
            match (of(BUILT_IN), of(NVIDIA)) {
                (Some(true), _) => Some(true),
                (runc, Some(_)) => Some(runc.copied().unwrap_or_default()),
                _ => None,
            }
        });
        let runtime = ContainerdRuntime {
            kept,
            // The kubelet of kubeadm uses the systemd cgroup driver (Kubernetes, "Configuring a cgroup driver"), and systemd is
            // running on this machine.
            systemd_cgroup: if goal.for_kubelet { Some(true) } else { cgroup },
            for_kubelet: goal.for_kubelet,
            ..ContainerdRuntime::of(goal)
        };
        layout::settings(&view.files, view.version, &runtime)
            .map_err(|why| LackError::Broken(Broken::for_all(CONFIG, why)))
    }

    async fn validate(
        &self,
        host: Reader<'_>,
        _: &str,
        _: &[&Utf8Path],
    ) -> Result<Validated, ReadError> {
        // `containerd config dump` of 1.6 fails without a file, although the daemon starts.
        if !host.files().exists(CONFIG.into())? {
            return Ok(Validated::NotReported);
        }
        let Some(said) = ask(host, &super::config_dump()).await? else {
            return Ok(Validated::Refused("containerd is not installed".to_owned()));
        };
        if !said.ok() {
            return Ok(Validated::Refused(last_lines(&said)));
        }
        Ok(match super::parse_config(&said.stdout) {
            Ok(config) => Validated::Reads(config.into()),
            Err(why) => Validated::Refused(why),
        })
    }

    fn is_for_kubelet(&self) -> bool {
        true
    }

    fn dump(&self) -> Option<&'static str> {
        Some("containerd config dump")
    }

    fn rewritten(&self) -> Option<&'static Rewritten> {
        Some(&REWRITTEN)
    }

    async fn restore_saved(&self, host: &Host, goal: &Goal<'_>) -> Result<(), String> {
        let path = Utf8Path::new(CONFIG);
        let text = host
            .files
            .read_text(path)
            .map_err(|error| one_line(&error))?;
        let version = match host.reader().query(&super::version()).await {
            Ok(output) if output.ok() => Version::parse(&output.stdout),
            _ => None,
        };
        let file = ConfigFile {
            path: path.to_owned(),
            text: text.clone(),
        };
        let runtime = ContainerdRuntime::of(goal);
        let mut document = Document::parse(Format::Toml, text.as_deref().unwrap_or_default())
            .map_err(|error| error.to_string())?;
        let lacking = layout::settings(&[file], version, &runtime)?;
        let keys: Vec<_> = lacking.iter().flat_map(|file| &file.settings).collect();
        if keys.is_empty() {
            return Ok(());
        }
        for setting in keys {
            document.set(setting).map_err(|error| error.to_string())?;
        }
        let mode = host.files.stat(path).map_err(|error| one_line(&error))?;
        let mode = mode.map_or(0o644, |stat| stat.mode & 0o777);
        (host.files.write(path, document.text().as_bytes(), mode)).map_err(|error| one_line(&error))
    }

    async fn said(&self, host: Reader<'_>) -> Result<LiveConfig, ExecError> {
        said(host, &super::config_dump(), of_dump).await
    }

    async fn answers(&self, host: Reader<'_>, for_kubelet: bool) -> Result<Answer, ExecError> {
        match ask(host, &ctr::version()).await? {
            None => Ok(Answer::default()),
            Some(said) if said.ok() && for_kubelet => cri_answers(host).await,
            Some(said) => Ok(Answer {
                issue: (!said.ok()).then(|| last_lines(&said)),
                notes: Vec::new(),
            }),
        }
    }

    async fn running(&self, host: Reader<'_>) -> Result<Vec<String>, ExecError> {
        let mut found = Vec::new();
        for query in ctr::NAMESPACES_OF_CONTAINERS.map(ctr::tasks) {
            let output = host.query(&query).await?.success(query.cmd())?;
            found.extend(ctr::parse_running(&output.stdout));
        }
        Ok(found)
    }
}

/// Returns the namespace of a container: with an image, the kubelet's namespace, into which images are pulled. Otherwise a
/// separate namespace, which has the name of the container.
fn namespace<'a>(container: &'a str, image: Option<&str>) -> &'a str {
    image.map_or(container, |_| ctr::KUBERNETES)
}

#[async_trait]
impl Containers for Containerd {
    fn image_name(&self, image: &str) -> String {
        oci::full_name(image)
    }

    fn find_image(&self, _: &str) -> Query {
        ctr::images(ctr::KUBERNETES)
    }

    fn has_image(&self, image: &str, output: &Output) -> Option<bool> {
        (output.ok()).then(|| output.stdout.lines().any(|line| line.trim() == image))
    }

    /// Credentials come from [`ctr::HOSTS`].
    fn pull(&self, files: &dyn ReadFiles, image: &str) -> Result<Cmd, FilesError> {
        let hosts = files.exists(ctr::HOSTS.into())?;
        Ok(ctr::pull(ctr::KUBERNETES, image, hosts))
    }

    fn save(&self, image: &str, _: &str, archive: &Utf8Path) -> Cmd {
        ctr::export(ctr::KUBERNETES, image, archive)
    }

    /// The archive contains the name.
    fn load(&self, _: &str, _: &str, archive: &Utf8Path) -> Vec<Cmd> {
        vec![ctr::import(ctr::KUBERNETES, archive)]
    }

    fn remove_image(&self, image: &str) -> Cmd {
        ctr::remove(ctr::KUBERNETES, image)
    }

    fn start(&self, container: &OneContainer<'_>) -> Cmd {
        // The default CPU shares require the CPU controller, which systemd does not enable on every machine.
        let mut args = words(&format!(
            "--namespace={} run --rm --cpu-shares=0 --runc-binary={} {VARIABLES}",
            namespace(container.name, container.image),
            toolkit::RUNTIME
        ));
        let place = match container.image {
            None => {
                args.push("--rootfs".to_owned());
                container.root.as_str()
            }
            Some(image) => {
                args.extend(mounts(container, "options=rbind:ro"));
                image
            }
        };
        // `ctr` takes the name as an argument, and all following arguments replace the entry point of the image.
        args.extend(["--", place, container.name].map(str::to_owned));
        args.extend(container.command.iter().map(ToString::to_string));
        Cmd::new("ctr", args)
    }

    async fn remove(
        &self,
        host: &Host,
        name: &str,
        image: Option<&str>,
        line: &(dyn for<'t> Fn(&'t str) + Sync),
    ) -> Result<(), ExecError> {
        let namespace = namespace(name, image);
        let list = ctr::containers(namespace);
        let listed = (host.reader().query(&list).await?).success(list.cmd())?;
        if !listed.stdout.lines().any(|found| found.trim() == name) {
            return Ok(());
        }
        // A container with a running task cannot be removed, so end the task first. The command fails if there is no task,
        // which is not an error here.
        (host.exec)
            .run(&ctr::end_task(namespace, name), &mut |_, _| {})
            .await?;
        quiet(host, &ctr::remove_container(namespace, name), line).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::fake;

    /// Google's script regenerates the file at each boot, and restarts containerd.
    #[tokio::test]
    async fn regenerated_file_gets_the_runtime_again_once() {
        let (host, fakes) = fake::host();
        fakes.exec.on("containerd", |_, _| {
            fake::ok("containerd containerd.io v2.1.5 abc\n")
        });
        let googles = "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".cni]\nbin_dir = \"/home/kubernetes/bin\"\n\
                       [plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc]\n\
                       runtime_type = \"io.containerd.runc.v2\"\n\
                       [plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc.options]\nSystemdCgroup = true\n";
        fakes.files.put(CONFIG, googles);
        let goal = Goal::saved(NVIDIA, false);
        Containerd
            .restore_saved(&host, &goal)
            .await
            .expect("put back");
        let text = fakes.files.text(CONFIG);
        let read = super::super::parse_config(&text).expect("TOML");
        assert_eq!(read.programs["nvidia"], toolkit::RUNTIME, "{text}");
        assert!(read.systemd_cgroup["nvidia"], "{text}");
        assert!(text.contains("/home/kubernetes/bin"), "{text}");
        let before = fakes.files.mutations();
        Containerd
            .restore_saved(&host, &goal)
            .await
            .expect("put back");
        assert_eq!(fakes.files.mutations(), before);
        fakes.files.put(CONFIG, "version = ");
        assert!(Containerd.restore_saved(&host, &goal).await.is_err());
    }

    /// The GPU operator installs the toolkit in another directory.
    #[test]
    fn existing_program_of_the_runtime_is_kept() {
        const PROGRAM: &str = "/usr/local/nvidia/toolkit/nvidia-container-runtime";
        let runtime = "plugins.\"io.containerd.cri.v1.runtime\".containerd.runtimes.nvidia";
        let text = format!(
            "version = 3\n[{runtime}]\nruntime_type = \"io.containerd.runc.v2\"\n[{runtime}.options]\n\
             BinaryName = \"{PROGRAM}\"\n"
        );
        let live = super::super::parse_config(&text).expect("TOML");
        let view = RuntimeView {
            files: vec![ConfigFile {
                path: CONFIG.into(),
                text: Some(text),
            }],
            ..RuntimeView::of(LiveConfig::Known(live.into()), Some(Version(2, 1)))
        };
        let (host, fakes) = fake::host();
        let lacking = || {
            let goal = Goal::saved(NVIDIA, false);
            let lacking = Containerd.lacking(&*host.files, &view, &goal);
            lacking.expect("the file is valid")
        };
        assert_eq!(lacking().len(), 1);
        fakes.files.put(PROGRAM, "");
        assert_eq!(lacking(), []);
    }
}
