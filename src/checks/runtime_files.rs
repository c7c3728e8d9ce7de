//! The family of runtime files: what the daemons of containers and NVIDIA's toolkit refuse, by their files, which are read
//! as they read them. Where programs may be run, Docker's own validation has the last word.

use async_trait::async_trait;
use camino::{Utf8Path, Utf8PathBuf};

use crate::{
    check::{Check, Finding, Subject, Verdict},
    host::{FileKind, ReadFiles},
    model::id::Id,
    state::{Effective, StateError, has_library, owner},
    step::StepError,
    tools::{
        cdi,
        containerd::{
            faults::{ConfigFault, Program, faults, programs},
            layout::ConfigFile,
        },
        crio, docker, podman, toolkit,
    },
};

const CONTAINERD: Id = Id::new("rt.containerd.files");
const DOCKER: Id = Id::new("rt.docker.files");
const CRIO: Id = Id::new("rt.crio.files");
const TOOLKIT: Id = Id::new("rt.toolkit.files");

/// Docker's configuration file.
const DAEMON_JSON: &str = "/etc/docker/daemon.json";

/// The folder of containerd's files.
const FOLDER: &str = "/etc/containerd";

/// Where daemons look for programs that are named without a path: systemd's default.
const PATH: [&str; 4] = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin"];

/// See the module.
pub struct RuntimeFilesCheck;

fn say(id: &Id, status: Verdict, why: impl Into<String>) -> Finding {
    Finding::new(id.clone(), status, why)
}

/// The files of containerd that are beside those that it reads: `*.toml` in folders below its own.
fn strays(subject: &Subject<'_>, read: &[ConfigFile]) -> Result<Vec<ConfigFile>, StepError> {
    let files = subject.host.files();
    let mut found = Vec::new();
    for folder in files.list(Utf8Path::new(FOLDER))? {
        let folder = Utf8Path::new(FOLDER).join(folder);
        if files
            .stat(&folder)?
            .is_none_or(|stat| stat.kind != FileKind::Folder)
        {
            continue;
        }
        for name in files.list(&folder)? {
            let path = folder.join(&name);
            if name.ends_with(".toml") && read.iter().all(|file| file.path != path) {
                found.push(ConfigFile {
                    text: files.read_text(&path)?,
                    path,
                });
            }
        }
    }
    Ok(found)
}

/// The faults of containerd's files; `None` if it is not installed.
pub(super) async fn of_containerd(
    subject: &Subject<'_>,
) -> Result<Option<Vec<ConfigFault>>, StepError> {
    let state = subject.state;
    let found = state.found_runtimes().await;
    if !found.iter().any(|runtime| runtime.name == "containerd") {
        return Ok(None);
    }
    let files = match state.containerd_files().await {
        Ok(files) => files,
        // Which file it is stands there; its place in the words of this program.
        Err(StateError::Unexpected { what, .. }) => {
            let path = Utf8PathBuf::from(what);
            let text = subject.host.files().read_text(&path)?;
            vec![ConfigFile { path, text }]
        }
        Err(error) => return Err(error.into()),
    };
    let strays = strays(subject, &files)?;
    let version = state.containerd_version().await;
    let mut found = faults(&files, &strays, version);
    // What containerd does not read names no program.
    if found.iter().any(|fault| fault.refused) {
        return Ok(Some(found));
    }
    for one in programs(&files, version) {
        let Program {
            runtime,
            program,
            path,
            default,
        } = one;
        // What nobody asks for may lack its program, as kata that was removed.
        let counts = default || toolkit::comes_with(&program, toolkit::RUNTIME);
        if counts && is_missing(subject.host.files(), &program)? {
            let follows = match default {
                true => "and is the default one: no pod starts",
                false => "so no container of it starts",
            };
            found.push(ConfigFault {
                why: format!(
                    "runtime `{runtime}` of containerd names `{program}` (`{path}`), which is not there, {follows}"
                ),
                remedy: program_remedy(&program, "containerd"),
                path,
                refused: false,
            });
        }
    }
    Ok(Some(found))
}

async fn containerd(subject: &Subject<'_>) -> Result<Finding, StepError> {
    let Some(found) = of_containerd(subject).await? else {
        return Ok(say(
            &CONTAINERD,
            Verdict::Skip,
            "containerd is not installed",
        ));
    };
    let Some(first) = found.first() else {
        let exists = subject
            .host
            .files()
            .exists(Utf8Path::new(crate::state::CONTAINERD_CONFIG))?;
        return Ok(match exists {
            true => say(
                &CONTAINERD,
                Verdict::Pass,
                "they can be read, and their runtimes are whole",
            ),
            false => say(&CONTAINERD, Verdict::Skip, "it has none"),
        });
    };
    let whys: Vec<&str> = found.iter().map(|fault| fault.why.as_str()).collect();
    Ok(Finding {
        remedy: Some(first.remedy.clone()),
        ..say(&CONTAINERD, Verdict::Fail, whys.join("; "))
    })
}

async fn docker(subject: &Subject<'_>) -> Result<Finding, StepError> {
    let files = subject.host.files();
    if let Some(snap) = docker::snap(files)? {
        let has_file = files.exists(Utf8Path::new(DAEMON_JSON))?;
        let beside = match has_file {
            true => format!(", and not `{DAEMON_JSON}`, which is there"),
            false => String::new(),
        };
        return Ok(Finding {
            remedy: Some(docker::SNAP_REMEDY.to_owned()),
            ..say(
                &DOCKER,
                Verdict::Warn,
                format!(
                    "Docker is a snap (`{snap}`): it reads `{}`{beside}",
                    docker::SNAP_CONFIG
                ),
            )
        });
    }
    let found = subject.state.found_runtimes().await;
    let installed = found.iter().any(|runtime| runtime.name == "docker");
    // A unit can name another file than the usual one.
    let other = docker::other_config(files, docker::UNIT, DAEMON_JSON)?
        .filter(|other| other.config.starts_with('/'));
    let path = Utf8Path::new(other.as_ref().map_or(DAEMON_JSON, |other| &other.config));
    let flags = docker::unit_flags(files, docker::UNIT)?;
    let text = files.read_text(path)?;
    if text.is_none() && flags.iter().all(|flag| flag.key != "runtimes") {
        // A tree may lack the file.
        if installed
            && subject.state.is_of_this_machine()
            && let Some(finding) = lacks_runtime(subject)?
        {
            return Ok(finding);
        }
        let why = match installed {
            true => "it has none",
            false => "Docker is not installed",
        };
        return Ok(say(&DOCKER, Verdict::Skip, why));
    }
    let lenient = match subject.state.docker().await {
        Ok(Effective::Known { lenient, .. }) => *lenient,
        _ => false,
    };
    // A file that waits for Docker breaks nothing yet.
    let broken = |why: &str, remedy: Option<String>| match installed {
        true => Finding {
            remedy: Some(remedy.unwrap_or_else(|| {
                format!("correct `{path}`, then run `systemctl restart docker`")
            })),
            ..say(
                &DOCKER,
                Verdict::Fail,
                format!("Docker does not start with `{path}`: {why}"),
            )
        },
        false => Finding {
            remedy: Some(format!("correct `{path}`, or remove it")),
            ..say(
                &DOCKER,
                Verdict::Warn,
                format!("Docker, which is not installed, would not start with `{path}`: {why}"),
            )
        },
    };
    // Without a file there is nothing to read.
    let exists = text.is_some();
    let text = text.unwrap_or_default();
    let flaw = docker::check_config(&text).err();
    if let Some(flaw) = flaw.filter(|_| exists) {
        return Ok(match flaw.forgiven {
            false => broken(&flaw.why, None),
            true if lenient => say(&DOCKER, Verdict::Pass, "it can be read"),
            true => Finding {
                status: Verdict::Warn,
                ..broken(
                    &format!("{}, which Docker before 23 does not read", flaw.why),
                    None,
                )
            },
        });
    }
    if let Some(flag) = docker::conflict(&text, &flags) {
        let docker::UnitFlag {
            key, path: unit, ..
        } = flag;
        return Ok(broken(
            &format!("`{key}` is in it, and is a flag of the command line in `{unit}`, too"),
            Some(format!(
                "take `{key}` out of `{path}`, or the flag out of `{unit}` (`systemctl edit docker`: an empty \
                 `ExecStart=`, then the command without it); then run `systemctl daemon-reload` and `systemctl \
                 restart docker`"
            )),
        ));
    }
    if let Some((key, meant)) = docker::mistyped(&text) {
        return Ok(broken(
            &format!("`{key}` is no key of Docker; it means `{meant}`"),
            None,
        ));
    }
    if exists && let Some(why) = validated(subject, path).await {
        return Ok(broken(&why, None));
    }
    let runtimes = docker::runtimes(&text, &flags);
    let default = docker::default_runtime(&text, &flags);
    let lost = |name: &String| !docker::is_built_in(name) && !runtimes.contains_key(name);
    if let Some(name) = default.as_ref().filter(|name| lost(name)) {
        return Ok(broken(
            &format!("its `default-runtime` is `{name}`, which it does not configure"),
            None,
        ));
    }
    for (name, program) in &runtimes {
        let Some(program) = program else { continue };
        if is_missing(files, program)? {
            let is_default = default.as_ref() == Some(name);
            let follows = match is_default {
                true => "and is the default one: no container starts",
                false => "so no container of it starts",
            };
            let counts = is_default || toolkit::comes_with(program, toolkit::RUNTIME);
            let status = match installed && counts {
                true => Verdict::Fail,
                false => Verdict::Warn,
            };
            return Ok(Finding {
                remedy: Some(program_remedy(program, "docker")),
                ..say(
                    &DOCKER,
                    status,
                    format!(
                        "runtime `{name}` of Docker names `{program}`, which is not there, {follows}"
                    ),
                )
            });
        }
    }
    let is_nvidia = |program: &String| toolkit::is_named_in(program);
    if installed
        && !runtimes.contains_key("nvidia")
        && !runtimes.values().flatten().any(is_nvidia)
        && let Some(finding) = lacks_runtime(subject)?
    {
        return Ok(finding);
    }
    Ok(say(
        &DOCKER,
        Verdict::Pass,
        match exists {
            true => "it can be read, and its runtimes are there",
            false => "it has none, and the runtimes of its command line are there",
        },
    ))
}

/// What is told of a Docker without NVIDIA's runtime on a system where containers reach the GPU by that or by CDI alone:
/// NVIDIA-AI-IOT/live-vlm-webui issue 28, dusty-nv/jetson-containers issue 1460.
fn lacks_runtime(subject: &Subject<'_>) -> Result<Option<Finding>, StepError> {
    let files = subject.host.files();
    let Some(owner) = owner(files, subject.facts)?.filter(|owner| owner.container_runtime) else {
        return Ok(None);
    };
    if has_cdi(files)? {
        return Ok(None);
    }
    Ok(Some(Finding {
        remedy: Some(
            "install `nvidia-container-toolkit`, then run `nvidia-ctk runtime configure --runtime=docker`, and run \
             `systemctl reload docker`"
                .to_owned(),
        ),
        ..say(
            &DOCKER,
            Verdict::Warn,
            format!(
                "Docker has no runtime `nvidia`, by which containers reach the GPU on a system of {} (`unknown or \
                 invalid runtime name: nvidia`)",
                owner.name
            ),
        )
    }))
}

/// Whether a CDI specification is there.
pub(super) fn has_cdi(files: &dyn ReadFiles) -> Result<bool, StepError> {
    for folder in cdi::FOLDERS {
        let names = files.list(Utf8Path::new(folder))?;
        if names.iter().any(|name| cdi::is_read(Utf8Path::new(name))) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether a program that a configuration names is not on this machine. A tree without programs does not tell.
pub(super) fn is_missing(files: &dyn ReadFiles, program: &str) -> Result<bool, StepError> {
    let mut any = false;
    for folder in PATH {
        any |= !files.list(Utf8Path::new(folder))?.is_empty();
    }
    if !any {
        return Ok(false);
    }
    if program.contains('/') {
        // Where a daemon looks for a path that does not begin at the root is not known.
        return Ok(program.starts_with('/') && !files.exists(Utf8Path::new(program))?);
    }
    for folder in PATH {
        if files.exists(&Utf8Path::new(folder).join(program))? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// What mends a runtime whose program is not there.
fn program_remedy(program: &str, unit: &str) -> String {
    let package = match toolkit::comes_with(program, toolkit::RUNTIME) {
        true => "install `nvidia-container-toolkit`, which brings it",
        false => "install the program that it names",
    };
    format!("{package}, or take the runtime out; then run `systemctl restart {unit}`")
}

/// What Docker's own program says against its file alone; `None` where it says nothing, or cannot be asked. What the
/// flags of its unit contradict is not seen.
async fn validated(subject: &Subject<'_>, path: &Utf8Path) -> Option<String> {
    let version = subject.host.query(&docker::daemon_version()).await.ok()?;
    if !version.ok() || !docker::can_validate(&version.stdout) {
        return None;
    }
    let output = subject
        .host
        .query(&docker::validate(&[], path))
        .await
        .ok()?;
    if output.ok() {
        return None;
    }
    // Flags that the unit adds are not known here: what only they explain is no fault of the file.
    let said = format!("{}{}", output.stderr, output.stdout);
    said.lines().next_back().map(|line| line.trim().to_owned())
}

/// The hook of NVIDIA's GPU Operator, where CRI-O does not run it, has no runtime of the toolkit, and no CDI specification is
/// there.
fn unread_hook(
    files: &dyn ReadFiles,
    read: &[crio::CrioFile],
) -> Result<Option<crio::CrioFault>, StepError> {
    let mut programs = crio::programs(read).into_values();
    if crio::reads_hooks(read)
        || programs.any(|program| toolkit::is_named_in(&program))
        || has_cdi(files)?
    {
        return Ok(None);
    }
    let names = files.list(Utf8Path::new(crio::HOOKS))?;
    let Some(name) = (names.iter()).find(|name| name.contains("nvidia") && name.ends_with(".json"))
    else {
        return Ok(None);
    };
    Ok(Some(crio::CrioFault {
        why: format!(
            "CRI-O does not run the hook `{folder}/{name}`, by which containers get GPUs: `hooks_dir` does not name that folder",
            folder = crio::HOOKS
        ),
        remedy: format!(
            "write `hooks_dir = [\"/usr/share/containers/oci/hooks.d\", \"{folder}\"]` below `[crio.runtime]` into a file of \
             `{drop_ins}`, then run `systemctl restart crio`; or set `cdi.enabled=true` in the operator's ClusterPolicy",
            folder = crio::HOOKS,
            drop_ins = crio::DROP_INS
        ),
    }))
}

async fn crio_files(subject: &Subject<'_>) -> Result<Finding, StepError> {
    let found = subject.state.crio_files()?;
    let files = subject.host.files();
    let folder = Utf8Path::new(crio::UNREAD);
    let mut unread = Vec::new();
    for name in files.list(folder)? {
        let path = folder.join(name);
        let is_file = files
            .stat(&path)?
            .is_some_and(|stat| stat.kind == FileKind::File);
        if let Some(text) = files.read(&path)?.filter(|_| is_file) {
            let text = String::from_utf8_lossy(&text).into_owned();
            unread.push(crio::CrioFile { path, text });
        }
    }
    let runtimes = subject.state.found_runtimes().await;
    let is_there = runtimes.iter().any(|runtime| runtime.name == "crio");
    let hook = match is_there {
        true => unread_hook(files, &found)?,
        false => None,
    };
    if found.is_empty() && unread.is_empty() && hook.is_none() {
        return Ok(say(&CRIO, Verdict::Skip, "CRI-O has none"));
    }
    // What cannot be looked for is not said to be missing.
    let in_path = |name: &str| !is_missing(files, name).unwrap_or(false);
    let mut faults = crio::faults(&found, in_path);
    faults.extend(crio::astray(&found, &unread));
    if faults.is_empty() {
        for (name, program) in crio::programs(&found) {
            let counts = toolkit::comes_with(&program, toolkit::RUNTIME);
            if counts && is_missing(files, &program)? {
                faults.push(crio::CrioFault {
                    why: format!(
                        "runtime `{name}` of CRI-O names `{program}`, which is not there: no container of it starts"
                    ),
                    remedy: program_remedy(&program, "crio"),
                });
            }
        }
    }
    if faults.is_empty() {
        faults.extend(hook);
    }
    // Files that wait for CRI-O, as NVIDIA's toolkit writes them, break nothing yet.
    let status = match is_there {
        true => Verdict::Fail,
        false => Verdict::Warn,
    };
    let Some(first) = faults.first() else {
        return Ok(say(
            &CRIO,
            Verdict::Pass,
            "they can be read, and their runtimes are whole",
        ));
    };
    let whys: Vec<&str> = faults.iter().map(|fault| fault.why.as_str()).collect();
    Ok(Finding {
        remedy: Some(first.remedy.clone()),
        ..say(&CRIO, status, whys.join("; "))
    })
}

/// The first toolkit that takes devices into containers by CDI where it is not told otherwise, and for which nobody has
/// reported what `no-cgroups` does (release notes of 1.18.0).
const BY_CDI: (u64, u64) = (1, 18);

/// What the toolkit's configuration says that is not so on this machine: then containers get no GPU, whatever their
/// runtime.
async fn toolkit_files(subject: &Subject<'_>) -> Result<Finding, StepError> {
    let files = subject.host.files();
    let path = toolkit::CONFIG;
    let Some(text) = files.read_text(Utf8Path::new(path))? else {
        return Ok(say(&TOOLKIT, Verdict::Skip, "it has none"));
    };
    let faulty = |status, why: String, remedy: String| Finding {
        remedy: Some(remedy),
        ..say(&TOOLKIT, status, why)
    };
    let config = match toolkit::parse_config(&text) {
        Ok(config) => config,
        Err(why) => {
            return Ok(faulty(
                Verdict::Fail,
                format!("`{path}` is no TOML ({why}), so no container gets a GPU"),
                format!("correct `{path}`"),
            ));
        }
    };
    // NVIDIA/nvidia-docker issue 1711, NVIDIA/nvidia-container-toolkit issue 154.
    if let Some(root) = &config.root {
        let has_driver = has_library(files, Utf8Path::new(root))?;
        let driver = subject.state.driver().await;
        let is_elsewhere = driver.library_version.is_some() || driver.package_version.is_some();
        if !has_driver && is_elsewhere {
            return Ok(faulty(
                Verdict::Fail,
                format!(
                    "`root = \"{root}\"` in `{path}`: the container toolkit looks for the driver there, where it is not, so no \
                     container gets a GPU (`load library failed: libnvidia-ml.so.1`)"
                ),
                format!("comment out `root` in `{path}`: the driver is on the machine itself"),
            ));
        }
    }
    if let Some(ldconfig) = &config.ldconfig {
        let mut there = false;
        for name in toolkit::both_names(ldconfig) {
            there |= files.stat(Utf8Path::new(&name))?.is_some();
        }
        let folder = Utf8Path::new(ldconfig)
            .parent()
            .unwrap_or(Utf8Path::new("/"));
        // A tree without programs does not tell.
        if !there && !files.list(folder)?.is_empty() {
            return Ok(faulty(
                Verdict::Fail,
                format!(
                    "`ldconfig = \"@{ldconfig}\"` in `{path}` names a program that is not there, so no container gets a GPU"
                ),
                format!("set `ldconfig = \"@/sbin/ldconfig\"` in `{path}`"),
            ));
        }
    }
    let found = subject.state.found_runtimes().await;
    let daemon = (found.iter())
        .find(|runtime| ["docker", "containerd", "crio"].contains(&runtime.name.as_str()));
    // NVIDIA/nvidia-container-toolkit issues 381 and 580.
    if let (true, Some(daemon)) = (config.no_cgroups, daemon) {
        let is_legacy = match config.mode.as_deref() {
            Some("legacy") => true,
            Some("auto") | None => {
                (subject.state.toolkit_version().await).is_some_and(|it| it < BY_CDI)
            }
            Some(_) => false,
        };
        let status = match is_legacy {
            true => Verdict::Fail,
            false => Verdict::Warn,
        };
        return Ok(faulty(
            status,
            format!(
                "`no-cgroups = true` in `{path}` is for daemons without root: containers of {} do not get access to the devices \
                 (`Failed to initialize NVML: Unknown Error`)",
                daemon.name
            ),
            format!(
                "set `no-cgroups = false` in `{path}`, unless all containers are those of users; then start the \
                 containers again"
            ),
        ));
    }
    // NVIDIA/nvidia-container-toolkit issue 63.
    if config.mode.as_deref() == Some("cdi") {
        let folders = match config.spec_folders.is_empty() {
            true => cdi::FOLDERS.map(str::to_owned).to_vec(),
            false => config.spec_folders,
        };
        let mut any = false;
        for folder in &folders {
            any |= (files.list(Utf8Path::new(folder))?.iter())
                .any(|name| cdi::is_read(Utf8Path::new(name)));
        }
        if !any {
            return Ok(faulty(
                match subject.state.is_of_this_machine() {
                    true => Verdict::Fail,
                    false => Verdict::Warn,
                },
                format!(
                    "`mode = \"cdi\"` in `{path}`, and no specification is in {}: containers with a GPU do not start \
                     (`unresolvable CDI devices`)",
                    folders.join(" or ")
                ),
                "run `nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml`".to_owned(),
            ));
        }
    }
    Ok(say(
        &TOOLKIT,
        Verdict::Pass,
        "they can be read, and name what is there",
    ))
}

/// What Podman says of specifications that are too new for it. It has no other way to a GPU than CDI. NVIDIA/nvidia-container-toolkit
/// issues 1860, 1865 and 1940; the flag is in `pkg/nvcdi/api.go`, and its variable in `cmd/nvidia-ctk/cdi/generate/generate.go`.
async fn podman_reads_none(subject: &Subject<'_>) -> Result<Option<Finding>, StepError> {
    let Some(version) = subject.state.podman_version().await else {
        return Ok(None);
    };
    if !(podman::READS_CDI..podman::READS_GROUPS).contains(&version) {
        return Ok(None);
    }
    let files = subject.host.files();
    let mut unread = Vec::new();
    for folder in cdi::FOLDERS {
        for name in files.list(Utf8Path::new(folder))? {
            let path = Utf8Path::new(folder).join(name);
            if !cdi::is_read(&path) {
                continue;
            }
            let spec = files.read_text(&path)?.map(|text| cdi::parse(&text));
            match spec {
                Some(Ok(spec)) if spec.kind == cdi::KIND && spec.has_groups() => {
                    unread.push(format!("`{path}` (version {})", spec.cdi_version));
                }
                // One that it reads is enough.
                Some(Ok(spec)) if spec.kind == cdi::KIND => return Ok(None),
                _ => {}
            }
        }
    }
    if unread.is_empty() {
        return Ok(None);
    }
    let found = subject.state.found_runtimes().await;
    Ok(Some(Finding {
        remedy: Some(format!(
            "install Podman {} or newer; or have the groups left out: write \
             `NVIDIA_CTK_CDI_GENERATE_FEATURE_FLAGS=no-additional-gids-for-device-nodes` into \
             `/etc/nvidia-container-toolkit/nvidia-cdi-refresh.env`, then run `systemctl restart nvidia-cdi-refresh`",
            podman::READS_GROUPS
        )),
        ..say(
            &TOOLKIT,
            // Beside a daemon, Podman may not be what containers with a GPU are started with.
            match found.iter().all(|runtime| runtime.name == "podman") {
                true => Verdict::Fail,
                false => Verdict::Warn,
            },
            format!(
                "Podman {version} cannot read {}, so none of its containers with a GPU starts (`unresolvable CDI devices`): \
                 the container toolkit has named groups of device nodes there, which Podman knows from {} on",
                unread.join(" and "),
                podman::READS_GROUPS
            ),
        )
    }))
}

#[async_trait]
impl Check for RuntimeFilesCheck {
    fn ids(&self) -> &[Id] {
        const { &[CONTAINERD, DOCKER, CRIO, TOOLKIT] }
    }

    async fn examine(&self, subject: &Subject<'_>) -> Result<Vec<Finding>, StepError> {
        let mut toolkit = toolkit_files(subject).await?;
        if matches!(toolkit.status, Verdict::Pass | Verdict::Skip) {
            toolkit = podman_reads_none(subject).await?.unwrap_or(toolkit);
        }
        Ok(vec![
            containerd(subject).await?,
            docker(subject).await?,
            crio_files(subject).await?,
            toolkit,
        ])
    }
}
