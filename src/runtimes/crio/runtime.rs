//! Implements the runtime traits for CRI-O. CRI-O runs only pods, and a pod needs a network, so the validation cannot run a
//! container with it.

use async_trait::async_trait;
use camino::{Utf8Path, Utf8PathBuf};

use super::CrioConfig;
use crate::{
    host::{ExecError, FileKind, FilesError, Output, ReadFiles, Reader},
    model::{document::FileSettings, fault::Fault},
    runtimes::{
        Answer, Config, ConfigFile, Configured, Goal, Harm, LackError, LiveConfig, Place,
        ReadError, Report, Runtime, RuntimeFacts, RuntimeFault, RuntimeView, Surroundings,
        Validated, cdi, crictl,
        program::{Named, is_missing},
        view::{ask, last_lines, last_words, said},
    },
    tools::toolkit,
};

/// CRI-O, as used by the kubelet.
#[derive(Debug)]
pub struct Crio;

static FACTS: RuntimeFacts = RuntimeFacts {
    title: "CRI-O",
    // CRI-O install documentation.
    packages: &["cri-o"],
    binaries: &["/usr/bin/crio", "/usr/local/bin/crio"],
    unit: Some("crio.service"),
    directory: "/etc/crio",
    versioned: None,
    data: None,
    scheme: "cri-o",
    is_configurable: false,
    cri: Some(super::SOCKET),
    brings: &[],
    sockets: &["/run/crio/crio.sock"],
    bridge: None,
    repositories: None,
    has_sources: false,
    example: None,
    first: None,
    reads_groups: None,
};

impl From<CrioConfig> for Config {
    fn from(config: CrioConfig) -> Self {
        Self {
            programs: config.programs(),
            runtimes: config.runtimes.into_keys().collect(),
            default: config.default_runtime,
            serves_pods: true,
            spares_containers: true,
            ..Self::default()
        }
    }
}

/// Parses the output of [`super::status`].
fn of_status(output: &Output) -> LiveConfig {
    match super::parse(&output.stdout) {
        Ok(config) if output.ok() => LiveConfig::Known(config.into()),
        _ => LiveConfig::Silent(last_words(output)),
    }
}

/// Returns the files in reading order.
fn read(files: &dyn ReadFiles) -> Result<Vec<ConfigFile>, FilesError> {
    let directory = Utf8Path::new(super::DROP_INS);
    let mut names = files.list(directory)?;
    names.sort_unstable();
    let paths = std::iter::once(Utf8PathBuf::from(super::CONFIG))
        .chain(names.iter().map(|name| directory.join(name)));
    let mut found = Vec::new();
    for path in paths {
        if let Some(text) = files.read_text(&path)? {
            let text = Some(text);
            found.push(ConfigFile { path, text });
        }
    }
    Ok(found)
}

/// Returns the files in [`super::UNREAD`].
fn unread(files: &dyn ReadFiles) -> Result<Vec<ConfigFile>, FilesError> {
    let directory = Utf8Path::new(super::UNREAD);
    let mut found = Vec::new();
    for name in files.list(directory)? {
        let path = directory.join(name);
        let is_file = files
            .stat(&path)?
            .is_some_and(|stat| stat.kind == FileKind::File);
        if let Some(text) = files.read(&path)?.filter(|_| is_file) {
            let text = Some(String::from_utf8_lossy(&text).into_owned());
            found.push(ConfigFile { path, text });
        }
    }
    Ok(found)
}

/// Returns the file name of the NVIDIA hook in a directory.
fn hook_in(files: &dyn ReadFiles, directory: &str) -> Result<Option<String>, FilesError> {
    let names = files.list(Utf8Path::new(directory))?;
    Ok((names.into_iter()).find(|name| name.contains("nvidia") && name.ends_with(".json")))
}

/// Finds the hook of the NVIDIA GPU Operator if CRI-O does not run it, has no toolkit runtime, and there is no CDI
/// specification.
fn unread_hook(files: &dyn ReadFiles, read: &[ConfigFile]) -> Result<Option<Fault>, FilesError> {
    let mut programs = super::programs(read).into_values();
    if super::reads_hooks(read)
        || programs.any(|program| toolkit::is_named_in(&program))
        || cdi::is_there(files)?
    {
        return Ok(None);
    }
    let Some(name) = hook_in(files, super::HOOKS)? else {
        return Ok(None);
    };
    Ok(Some(Fault::new(
        format!(
            "CRI-O does not run the hook `{directory}/{name}`: not in `hooks_dir`; the hook gives containers access to GPUs",
            directory = super::HOOKS
        ),
        format!(
            "set `hooks_dir = [\"/usr/share/containers/oci/hooks.d\", \"{directory}\"]` in `[crio.runtime]` in a file in \
             `{drop_ins}`, then run `systemctl restart crio`; or set `cdi.enabled=true` in the operator's ClusterPolicy",
            directory = super::HOOKS,
            drop_ins = super::DROP_INS
        ),
    )))
}

#[async_trait]
impl Runtime for Crio {
    fn facts(&self) -> &'static RuntimeFacts {
        &FACTS
    }

    async fn view(&self, place: Place<'_>) -> Result<RuntimeView, ReadError> {
        let found = read(place.host.files())?;
        let by_files = place.installed.then(|| super::merged(&found).into());
        Ok(RuntimeView {
            files: found,
            by_files,
            ..RuntimeView::of(self.said(place.host).await.into(), place.version)
        })
    }

    fn has_hook(&self, files: &dyn ReadFiles) -> Result<bool, FilesError> {
        for directory in super::ALL_HOOKS {
            if hook_in(files, directory)?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn uses_systemd_cgroups(
        &self,
        _: &dyn ReadFiles,
        view: &RuntimeView,
    ) -> Result<bool, FilesError> {
        // The last file that sets it wins. The default is systemd, crio.conf(5).
        let set = view.files.iter().rev().find_map(super::cgroup_manager);
        Ok(set.as_deref() != Some("cgroupfs"))
    }

    async fn report(
        &self,
        place: Place<'_>,
        view: &RuntimeView,
        _: Surroundings<'_>,
    ) -> Result<Option<Report>, ReadError> {
        let (files, found) = (place.host.files(), &view.files);
        let unread = unread(files)?;
        let hook = match place.installed {
            true => unread_hook(files, found)?,
            false => None,
        };
        if found.is_empty() && unread.is_empty() && hook.is_none() {
            return Ok(Some(Report::Nothing(
                "CRI-O has no configuration file".to_owned(),
            )));
        }
        // If a program cannot be looked up, it is not reported as missing.
        let in_path = |name: &str| !is_missing(files, name).unwrap_or(false);
        let mut faults = super::faults(found, in_path);
        faults.extend(super::astray(found, &unread));
        // Files for a CRI-O that is not installed yet, for example from the NVIDIA toolkit, have no effect yet.
        let harm = match place.installed {
            true => Harm::Containers,
            false => Harm::Perhaps,
        };
        let of_fault = |fault| RuntimeFault { harm, fault };
        let mut all: Vec<RuntimeFault> = faults.into_iter().map(of_fault).collect();
        if all.is_empty() {
            for (name, program) in super::programs(found) {
                let named = Named {
                    of: FACTS.title,
                    unit: "crio",
                    runtime: &name,
                    program: &program,
                    path: None,
                    default: None,
                };
                if named.counts() {
                    let fault = named.fault(files)?;
                    all.extend(fault.map(|fault| RuntimeFault { harm, ..fault }));
                }
            }
        }
        if all.is_empty() {
            all.extend(hook.map(of_fault));
        }
        let whole = "the files are valid, and their runtimes are complete";
        Ok(Some(Report::of(all, whole)))
    }
}

#[async_trait]
impl Configured for Crio {
    /// `install` does not configure CRI-O. The other functions are for the undo of changes by earlier versions.
    fn lacking(
        &self,
        _files: &dyn ReadFiles,
        _view: &RuntimeView,
        _goal: &Goal<'_>,
    ) -> Result<Vec<FileSettings>, LackError> {
        Ok(Vec::new())
    }

    async fn validate(
        &self,
        host: Reader<'_>,
        _: &str,
        _: &[&Utf8Path],
    ) -> Result<Validated, ReadError> {
        let Some(said) = ask(host, &super::config()).await? else {
            return Ok(Validated::Refused("crio is not installed".to_owned()));
        };
        if !said.ok() {
            return Ok(Validated::Refused(last_lines(&said)));
        }
        Ok(match super::parse(&said.stdout) {
            Ok(config) => Validated::Reads(config.into()),
            Err(why) => Validated::Refused(why),
        })
    }

    async fn said(&self, host: Reader<'_>) -> Result<LiveConfig, ExecError> {
        said(host, &super::status(), of_status).await
    }

    async fn answers(&self, host: Reader<'_>, _: bool) -> Result<Answer, ExecError> {
        Ok(match ask(host, &super::status()).await? {
            None => Answer::default(),
            Some(said) => Answer {
                issue: (!said.ok()).then(|| last_lines(&said)),
                notes: Vec::new(),
            },
        })
    }

    async fn running(&self, host: Reader<'_>) -> Result<Vec<String>, ExecError> {
        let query = crictl::running(super::SOCKET);
        let output = host.query(&query).await?.success(query.cmd())?;
        Ok(output.stdout.lines().map(str::to_owned).collect())
    }
}
