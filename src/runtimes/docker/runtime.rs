//! Implements the runtime traits for Docker.

use async_trait::async_trait;
use camino::{Utf8Path, Utf8PathBuf};

use super::{Info, UnitFlag};
use crate::{
    host::{Cmd, ExecError, FilesError, Host, Output, Query, ReadFiles, Reader},
    model::document::{Document, FileSettings, Format},
    runtimes::{
        Answer, Broken, Config, ConfigFile, Configured, Containers, Goal, Harm, LackError,
        LiveConfig, OneContainer, OtherForm, PREPARE_DEADLINE, PickUp, Place, ReadError,
        ReloadWords, Report, Runtime, RuntimeFacts, RuntimeFault, RuntimeKind, RuntimeView,
        Surroundings, VARIABLES, Validated, cdi, mounts,
        program::Named,
        quiet,
        view::{ask, last_lines, last_words, said},
        words,
    },
    tools::{oci, systemctl, toolkit},
};

/// Docker Engine.
#[derive(Debug)]
pub struct Docker;

/// The default configuration file.
pub const DAEMON_JSON: &str = "/etc/docker/daemon.json";

static FACTS: RuntimeFacts = RuntimeFacts {
    title: "Docker",
    // Debian 12 archive; Docker and Azure repositories; Amazon Linux 2023.
    packages: &["docker-ce", "docker.io", "moby-engine", "docker"],
    binaries: &[
        "/usr/bin/dockerd",
        "/usr/sbin/dockerd",
        "/usr/local/bin/dockerd",
    ],
    unit: Some(super::UNIT),
    directory: "/etc/docker",
    versioned: None,
    data: Some("/var/lib/docker"),
    scheme: "docker",
    is_configurable: true,
    cri: None,
    brings: &[RuntimeKind::Containerd],
    // Kubernetes' documentation, "Container Runtimes", Docker Engine: the socket of cri-dockerd.
    sockets: &["/run/cri-dockerd.sock"],
    bridge: Some(super::BRIDGE),
    repositories: Some("download.docker.com/linux/"),
    has_sources: true,
    // Source: NVIDIA Container Toolkit, "Running a Sample Workload".
    example: Some("docker run --rm --runtime=nvidia --gpus all ubuntu nvidia-smi"),
    first: None,
    reads_groups: None,
};

/// Parses the output of [`super::info`].
fn of_info(output: &Output) -> LiveConfig {
    match super::parse_info(&output.stdout) {
        Ok(info) if output.ok() && info.server_errors.is_empty() => {
            LiveConfig::Known(config_of(info))
        }
        Ok(info) => {
            let said = info.server_errors.first().cloned();
            LiveConfig::Silent(said.unwrap_or_else(|| last_words(output)))
        }
        Err(_) if !output.stderr.trim().is_empty() => LiveConfig::Silent(last_words(output)),
        Err(_) if output.stdout.trim().is_empty() => {
            LiveConfig::Silent("`docker info` printed no output".to_owned())
        }
        Err(why) => LiveConfig::Silent(format!("the output of `docker info` is invalid: {why}")),
    }
}

fn config_of(info: Info) -> Config {
    let uses_cdi =
        (info.cdi_directories.as_ref()).is_some_and(|directories| !directories.is_empty());
    Config {
        lenient: info.is_lenient(),
        without_cdi: info.needs_cdi() && !uses_cdi,
        uses_cdi,
        spares_containers: info.live_restore_enabled,
        programs: info.programs(),
        runtimes: info.runtimes.into_keys().collect(),
        default: info.default_runtime,
        serves_pods: true,
        ..Config::default()
    }
}

/// The content of the configuration file and of the unit's command line.
struct Read {
    path: Utf8PathBuf,
    text: Option<String>,
    flags: Vec<UnitFlag>,
}

impl Read {
    fn of(files: &dyn ReadFiles) -> Result<Self, FilesError> {
        // The unit may set a file other than the default.
        let other = super::other_config(files, super::UNIT, DAEMON_JSON)?
            .filter(|other| other.config.starts_with('/'));
        let path = Utf8Path::new(other.as_ref().map_or(DAEMON_JSON, |other| &other.config));
        Ok(Self {
            text: files.read_text(path)?,
            path: path.to_owned(),
            flags: super::unit_flags(files, super::UNIT)?,
        })
    }

    /// Returns the first error that prevents Docker from starting, its remedy if it is not to correct the file, and whether the
    /// error applies to all Docker versions. `lenient` ignores errors that newer versions accept.
    fn issue(&self, lenient: bool) -> Option<(String, Option<String>, bool)> {
        let text = self.text.as_deref()?;
        if let Err(issue) = super::check_config(text) {
            return match issue.forgiven {
                false => Some((issue.why, None, true)),
                true if lenient => None,
                true => Some((
                    format!("{}, which Docker before 23 does not accept", issue.why),
                    None,
                    false,
                )),
            };
        }
        if let Some(UnitFlag {
            key, path: unit, ..
        }) = super::conflict(text, &self.flags)
        {
            let path = &self.path;
            return Some((
                format!("`{key}` is set in the file and also on the command line in `{unit}`"),
                Some(format!(
                    "remove `{key}` from `{path}`, or the flag from `{unit}` (`systemctl edit docker`: an empty `ExecStart=`, \
                     then the command without it); then run `systemctl daemon-reload` and `systemctl restart docker`"
                )),
                true,
            ));
        }
        let (key, meant) = super::mistyped(text)?;
        Some((
            format!("`{key}` is not a Docker key; use `{meant}`"),
            None,
            true,
        ))
    }

    /// Creates the error of a file that prevents Docker from starting. If Docker is not installed, the file has no effect yet.
    fn broken(
        &self,
        installed: bool,
        (why, remedy, for_sure): (String, Option<String>, bool),
    ) -> RuntimeFault {
        let path = &self.path;
        match installed {
            true => RuntimeFault::new(
                match for_sure {
                    true => Harm::All,
                    false => Harm::Perhaps,
                },
                format!("Docker does not start with `{path}`: {why}"),
                remedy.unwrap_or_else(|| {
                    format!("correct `{path}`, then run `systemctl restart docker`")
                }),
            ),
            false => RuntimeFault::new(
                Harm::Perhaps,
                format!("Docker is not installed, but it would not start with `{path}`: {why}"),
                format!("correct `{path}`, or remove it"),
            ),
        }
    }
}

/// Returns an error for a Docker without the NVIDIA runtime, if the toolkit is installed, or on a system where containers can
/// access the GPU only with this runtime or with CDI. `None` if a CDI specification exists. Sources:
/// NVIDIA-AI-IOT/live-vlm-webui issue 28, dusty-nv/jetson-containers issue 1460.
fn lacks_runtime(
    files: &dyn ReadFiles,
    surroundings: Surroundings<'_>,
) -> Result<Option<RuntimeFault>, FilesError> {
    let need = match (surroundings.needs_runtime, surroundings.has_toolkit) {
        (Some(owner), _) => {
            format!("which containers need for GPU access on a {owner} system")
        }
        // The hook of the toolkit adds GPUs to containers with `--gpus`.
        (None, true) => {
            "although the NVIDIA Container Toolkit is installed; containers get GPUs only with `--gpus`"
                .to_owned()
        }
        (None, false) => return Ok(None),
    };
    if cdi::is_there(files)? {
        return Ok(None);
    }
    let configure =
        "run `nvidia-ctk runtime configure --runtime=docker && systemctl reload docker`";
    Ok(Some(RuntimeFault::new(
        Harm::Perhaps,
        format!(
            "Docker has no runtime `nvidia`, {need} (`unknown or invalid runtime name: nvidia`)"
        ),
        match files.exists(Utf8Path::new(toolkit::RUNTIME))? {
            true => configure.to_owned(),
            false => format!("install `nvidia-container-toolkit`, then {configure}"),
        },
    )))
}

/// Returns the validation error of the Docker binary for the file. `None` if the file is valid, or if the binary cannot be
/// executed or cannot validate. The flags of the unit are not passed, so conflicts with them are not detected.
async fn validated(host: Reader<'_>, path: &Utf8Path) -> Option<String> {
    let version = host.query(&super::daemon_version()).await.ok()?;
    if !version.ok() || !super::can_validate(&version.stdout) {
        return None;
    }
    let output = host.query(&super::validate(&[], path)).await.ok()?;
    if output.ok() {
        return None;
    }
    let said = format!("{}{}", output.stderr, output.stdout);
    said.lines().next_back().map(|line| line.trim().to_owned())
}

#[async_trait]
impl Runtime for Docker {
    fn facts(&self) -> &'static RuntimeFacts {
        &FACTS
    }

    async fn view(&self, place: Place<'_>) -> Result<RuntimeView, ReadError> {
        let files = place.host.files();
        let path = Utf8PathBuf::from(DAEMON_JSON);
        let text = files.read_text(&path)?;
        let issue = (text.as_deref()).and_then(|text| super::check_config(text).err());
        Ok(RuntimeView {
            broken: issue.map(|issue| Broken {
                path: path.clone(),
                why: issue.why,
                forgiven: issue.forgiven,
            }),
            elsewhere: super::other_config(files, super::UNIT, DAEMON_JSON)?,
            files: vec![ConfigFile { path, text }],
            ..RuntimeView::of(self.said(place.host).await.into(), place.version)
        })
    }

    fn uses_systemd_cgroups(
        &self,
        files: &dyn ReadFiles,
        view: &RuntimeView,
    ) -> Result<bool, FilesError> {
        let flags = super::unit_flags(files, super::UNIT)?;
        let sets = |driver: &str| {
            let option = format!("native.cgroupdriver={driver}");
            view.files.iter().any(|file| file.text().contains(&option))
                || flags.iter().any(|flag| flag.value == option)
        };
        // The default with cgroup v2 is systemd (Docker documentation, "Runtime metrics").
        let is_v2 = files.exists(Utf8Path::new("/sys/fs/cgroup/cgroup.controllers"))?;
        Ok(sets("systemd") || is_v2 && !sets("cgroupfs"))
    }

    async fn report(
        &self,
        place: Place<'_>,
        view: &RuntimeView,
        surroundings: Surroundings<'_>,
    ) -> Result<Option<Report>, ReadError> {
        let (files, installed) = (place.host.files(), place.installed);
        if let Some(form) = self.in_another_form(files)? {
            let beside = match files.exists(Utf8Path::new(DAEMON_JSON))? {
                true => format!(", and ignores the existing `{DAEMON_JSON}`"),
                false => String::new(),
            };
            return Ok(Some(Report::Faulty(vec![RuntimeFault::new(
                Harm::Perhaps,
                format!(
                    "Docker is a snap (`{}`): it reads `{}`{beside}",
                    form.directory,
                    super::SNAP_CONFIG
                ),
                form.remedy,
            )])));
        }
        let one = |fault| Ok(Some(Report::Faulty(vec![fault])));
        let read = Read::of(files)?;
        let exists = read.text.is_some();
        if !exists && read.flags.iter().all(|flag| flag.key != "runtimes") {
            // A copy of a root filesystem (`--root`) may be incomplete, so a missing file counts only in these cases.
            let is_complete = surroundings.is_this_machine
                || surroundings.needs_runtime.is_some()
                || files.exists(Utf8Path::new(FACTS.directory))?;
            if installed
                && is_complete
                && let Some(fault) = lacks_runtime(files, surroundings)?
            {
                return one(fault);
            }
            return Ok(Some(Report::Nothing(match installed {
                true => "Docker has no configuration file".to_owned(),
                false => "Docker is not installed".to_owned(),
            })));
        }
        let lenient = view.config().is_some_and(|config| config.lenient);
        if let Some(issue) = read.issue(lenient) {
            return one(read.broken(installed, issue));
        }
        let text = read.text.as_deref().unwrap_or_default();
        if lenient && super::check_config(text).is_err() && exists {
            return Ok(Some(Report::Whole("the file is valid")));
        }
        if exists && let Some(why) = validated(place.host, &read.path).await {
            return one(read.broken(installed, (why, None, true)));
        }
        let runtimes = super::runtimes(text, &read.flags);
        let default = super::default_runtime(text, &read.flags);
        let lost = |name: &String| !super::is_built_in(name) && !runtimes.contains_key(name);
        if let Some(name) = default.as_ref().filter(|name| lost(name)) {
            let why = format!("its `default-runtime` `{name}` is not configured");
            return one(read.broken(installed, (why, None, true)));
        }
        for (name, program) in &runtimes {
            let Some(program) = program else { continue };
            let named = Named {
                of: FACTS.title,
                unit: "docker",
                runtime: name,
                program,
                path: None,
                default: (default.as_ref() == Some(name))
                    .then_some("and is the default runtime: no container starts"),
            };
            if let Some(fault) = named.fault(files)? {
                return one(match installed {
                    true => fault,
                    false => RuntimeFault {
                        harm: Harm::Perhaps,
                        ..fault
                    },
                });
            }
        }
        let is_nvidia = |program: &String| toolkit::is_named_in(program);
        if installed
            && !runtimes.contains_key("nvidia")
            && !runtimes.values().flatten().any(is_nvidia)
            && let Some(fault) = lacks_runtime(files, surroundings)?
        {
            return one(fault);
        }
        Ok(Some(Report::Whole(match exists {
            true => "the file is valid, and its runtimes are installed",
            false => {
                "Docker has no configuration file, and the runtimes on its command line are installed"
            }
        })))
    }

    fn in_another_form(&self, files: &dyn ReadFiles) -> Result<Option<OtherForm>, FilesError> {
        Ok(super::snap(files)?.map(|directory| OtherForm {
            why: format!(
                "Docker is installed as a snap (`{directory}`), which does not read `{DAEMON_JSON}`; a second Docker in addition \
                 to it would have other containers"
            ),
            directory,
            remedy: super::SNAP_REMEDY,
        }))
    }

    fn containers(&self) -> Option<&dyn Containers> {
        Some(self)
    }
}

#[async_trait]
impl Configured for Docker {
    fn lacking(
        &self,
        files: &dyn ReadFiles,
        view: &RuntimeView,
        goal: &Goal<'_>,
    ) -> Result<Vec<FileSettings>, LackError> {
        let path = Utf8PathBuf::from(DAEMON_JSON);
        let text = view.files.first().map_or("", ConfigFile::text);
        // Parse errors are in `broken`.
        let Ok(file) = Document::parse(Format::Json, text) else {
            return Ok(Vec::new());
        };
        // A runtime or a default runtime that Docker already has may come from its command line. Docker does not start if the
        // default runtime is also set in the file.
        let (knows, by_default) = match &view.said {
            LiveConfig::Known(config) => (
                config.runtimes.contains(goal.name),
                config.default.as_deref() == Some(goal.name),
            ),
            _ => (false, false),
        };
        let entry = ["runtimes", goal.name, "path"].map(str::to_owned);
        let is_program = match file.get(&entry).as_ref().and_then(|path| path.as_str()) {
            Some(toolkit::RUNTIME_NAME) => true,
            Some(named) => files.exists(Utf8Path::new(named))?,
            None => false,
        };
        let settings = super::settings(
            &file,
            &super::DockerRuntime {
                name: goal.name,
                // The program name, like `nvidia-ctk` for Docker. For containerd and CRI-O, the path is set.
                program: toolkit::RUNTIME_NAME,
                kept: knows || is_program,
                default: goal.default && !by_default,
                cdi: self.needs_cdi(view, goal),
            },
        );
        Ok(match settings.is_empty() {
            true => Vec::new(),
            false => vec![FileSettings { path, settings }],
        })
    }

    fn needs_cdi(&self, view: &RuntimeView, goal: &Goal<'_>) -> bool {
        let text = view.files.first().map_or("", ConfigFile::text);
        let Ok(file) = Document::parse(Format::Json, text) else {
            return false;
        };
        // If CDI was disabled explicitly, it stays disabled.
        let decided = file.get(&["features".to_owned(), "cdi".to_owned()]);
        goal.cdi
            && decided != Some(false.into())
            && matches!(&view.said, LiveConfig::Known(config) if config.without_cdi)
    }

    async fn validate(
        &self,
        host: Reader<'_>,
        unit: &str,
        paths: &[&Utf8Path],
    ) -> Result<Validated, ReadError> {
        if paths.is_empty() {
            return Ok(Validated::NotReported);
        }
        let version = ask(host, &super::daemon_version()).await?;
        let can = (version.as_ref()).is_some_and(|output| super::can_validate(&output.stdout));
        if !can {
            return Ok(Validated::NotReported);
        }
        // Validate with the unit's flags, because a key that is in both the file and the flags prevents the daemon from
        // starting.
        let said = ask(host, &systemctl::command(unit)).await?;
        let command = match (said.as_ref()).and_then(|said| systemctl::parse_command(&said.stdout))
        {
            Some(command) => Some(command.to_owned()),
            // Use the unit files if systemd is not running, for example in the chroot of an image builder.
            None => {
                let commands = systemctl::settings(host.files(), unit, "ExecStart")?;
                <[String; 1]>::try_from(commands).ok().map(|[one]| one)
            }
        };
        let flags = command.as_deref().map(super::flags).unwrap_or_default();
        for path in paths {
            if !host.files().exists(path)? {
                continue;
            }
            let output = ask(host, &super::validate(&flags, path)).await?;
            if let Some(output) = output.filter(|output| !output.ok()) {
                return Ok(Validated::Refused(last_lines(&output)));
            }
        }
        Ok(Validated::Accepted)
    }

    fn pick_up(&self) -> PickUp {
        // SIGHUP reloads `runtimes` and `default-runtime` if they are in the file (moby/moby, `daemon/reload_unix.go`), but
        // does not remove runtimes, and CDI is enabled only at startup. A restart stops containers, unless `live-restore` is
        // enabled (<https://docs.docker.com/engine/daemon/live-restore/>).
        PickUp::Reload(ReloadWords {
            spare: "set `\"live-restore\": true` in `/etc/docker/daemon.json`",
            asks: "docker info",
            silent: "docker-silent",
        })
    }

    async fn said(&self, host: Reader<'_>) -> Result<LiveConfig, ExecError> {
        said(host, &super::info(), of_info).await
    }

    async fn answers(&self, host: Reader<'_>, _: bool) -> Result<Answer, ExecError> {
        let issue = match ask(host, &super::info()).await? {
            None => None,
            Some(said) => match super::parse_info(&said.stdout) {
                Ok(mut info) => info.server_errors.pop(),
                Err(why) => Some(why),
            },
        };
        Ok(Answer {
            issue,
            notes: Vec::new(),
        })
    }

    async fn running(&self, host: Reader<'_>) -> Result<Vec<String>, ExecError> {
        let query = super::running();
        let output = host.query(&query).await?.success(query.cmd())?;
        Ok(output.stdout.lines().map(str::to_owned).collect())
    }
}

#[async_trait]
impl Containers for Docker {
    fn image_name(&self, image: &str) -> String {
        image.to_owned()
    }

    fn find_image(&self, image: &str) -> Query {
        super::inspect_image(image)
    }

    fn has_image(&self, _: &str, output: &Output) -> Option<bool> {
        // No response from the daemon does not mean that the image is missing.
        match output.ok() {
            true => Some(true),
            false => (output.stderr.to_lowercase().contains("no such image")).then_some(false),
        }
    }

    fn pull(&self, _: &dyn ReadFiles, image: &str) -> Result<Cmd, FilesError> {
        Ok(super::pull(image))
    }

    fn client_pulls(&self) -> bool {
        false
    }

    fn loaded_name(&self, image: &str) -> Option<String> {
        oci::loaded_name(image)
    }

    fn image_id(&self, image: &str) -> Option<Query> {
        Some(super::inspect_image(image))
    }

    fn save(&self, _: &str, id: &str, archive: &Utf8Path) -> Cmd {
        super::save(id, archive)
    }

    fn load(&self, image: &str, id: &str, archive: &Utf8Path) -> Vec<Cmd> {
        let tag = self.loaded_name(image).map(|name| super::tag(id, &name));
        std::iter::once(super::load(archive)).chain(tag).collect()
    }

    fn remove_image(&self, image: &str) -> Cmd {
        super::remove_image(image)
    }

    fn import(&self, archive: &Utf8Path, image: &str) -> Option<Cmd> {
        Some(super::import(archive, image).deadline(PREPARE_DEADLINE))
    }

    fn start(&self, container: &OneContainer<'_>) -> Cmd {
        // The nvidia runtime reads the variables.
        let mut args = words(&format!(
            "run --rm --network=none --runtime=nvidia --name={} {}",
            container.name, VARIABLES
        ));
        args.extend(mounts(container, "readonly"));
        args.push("--pull=never".to_owned());
        let mut command = container.command.iter().map(ToString::to_string);
        args.extend(command.next().map(|first| format!("--entrypoint={first}")));
        let image = container.image.unwrap_or(container.own_image);
        args.extend(["--", image].map(str::to_owned));
        args.extend(command);
        Cmd::new("docker", args)
    }

    async fn remove(
        &self,
        host: &Host,
        name: &str,
        _: Option<&str>,
        line: &(dyn for<'t> Fn(&'t str) + Sync),
    ) -> Result<(), ExecError> {
        let remove = super::remove_container(name).deadline(PREPARE_DEADLINE);
        quiet(host, &remove, line).await
    }

    fn may_miss(&self) -> bool {
        true
    }
}
