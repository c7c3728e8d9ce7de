//! The configuration that container runtimes run with: Docker tells it itself. containerd's program tells what
//! its files say, which is what the daemon runs with if it was started since.

use std::collections::{BTreeMap, BTreeSet};

use camino::{Utf8Path, Utf8PathBuf};

use super::{Read, State, StateError};
use crate::{
    host::{ExecError, FilesError, Output, Query},
    model::pattern,
    tools::{
        containerd::{
            self, CriConfig,
            layout::{ConfigFile, Version},
        },
        crio::{self, CrioConfig},
        docker, toolkit,
    },
};

/// The configuration file that containerd reads first.
pub const CONTAINERD_CONFIG: &str = "/etc/containerd/config.toml";

/// The configuration that a daemon runs with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effective {
    /// It is not installed.
    Absent,
    /// It does not answer; the text is the error of its client.
    Silent(String),
    /// It answered.
    Known {
        /// The names of its runtimes.
        runtimes: Vec<String>,
        /// Its default runtime.
        default: Option<String>,
        /// The programs that run containers, by runtime, where it names them.
        programs: BTreeMap<String, String>,
        /// Docker: it forgives flaws of its file that earlier versions do not.
        lenient: bool,
        /// Docker: it knows CDI, and does not use it.
        without_cdi: bool,
        /// Docker: its containers keep running when it stops.
        live_restore: bool,
    },
}

impl State {
    /// The configuration that Docker runs with.
    ///
    /// # Errors
    /// When its client cannot be run. A daemon that does not answer is not an error.
    pub async fn docker(&self) -> Result<&Effective, StateError> {
        let read = || async {
            Ok(match self.ask(docker::info()).await? {
                Some(output) => of_docker(&output),
                None => Effective::Absent,
            })
        };
        let read = self.memo.docker.get_or_init(read).await;
        read.as_ref().map_err(Clone::clone)
    }

    /// The names of the containers that a restart of Docker would stop.
    ///
    /// # Errors
    /// When its client cannot be run, or the daemon does not answer: what is not known may be stopped.
    pub async fn stopped_with_docker(&self) -> Result<Vec<String>, StateError> {
        if let Effective::Known {
            live_restore: true, ..
        } = self.docker().await?
        {
            return Ok(Vec::new());
        }
        let query = docker::running();
        let output = self
            .host
            .reader()
            .query(&query)
            .await?
            .success(query.cmd())?;
        Ok(output.stdout.lines().map(str::to_owned).collect())
    }

    /// The configuration that containerd runs with.
    ///
    /// # Errors
    /// As for [`State::docker`].
    pub async fn containerd(&self) -> Result<&Effective, StateError> {
        let read = || async {
            let Some(output) = self.containerd_dump().await? else {
                return Ok(Effective::Absent);
            };
            Ok(match containerd::parse_config(&output.stdout) {
                Ok(config) if output.ok() => Effective::Known {
                    runtimes: config.runtimes,
                    default: config.default_runtime,
                    programs: config.programs,
                    lenient: false,
                    without_cdi: false,
                    live_restore: true,
                },
                _ => Effective::Silent(last_words(output)),
            })
        };
        let read = self.memo.containerd.get_or_init(read).await;
        read.as_ref().map_err(Clone::clone)
    }

    /// The configuration that CRI-O runs with.
    ///
    /// # Errors
    /// As for [`State::docker`].
    pub async fn crio(&self) -> Result<&Effective, StateError> {
        let read = || async {
            let Some(output) = self.ask(crio::status()).await? else {
                return Ok(Effective::Absent);
            };
            Ok(match crio::parse(&output.stdout) {
                Ok(config) if output.ok() => Effective::Known {
                    programs: config.programs(),
                    runtimes: config.runtimes.into_keys().collect(),
                    default: config.default_runtime,
                    lenient: false,
                    without_cdi: false,
                    live_restore: true,
                },
                _ => Effective::Silent(last_words(&output)),
            })
        };
        let read = self.memo.crio.get_or_init(read).await;
        read.as_ref().map_err(Clone::clone)
    }

    /// What the files of CRI-O say together, by its own program, or why it refuses them; `None` if it is not
    /// installed.
    ///
    /// # Errors
    /// When the program cannot be run.
    pub async fn crio_config(&self) -> Result<Option<Result<CrioConfig, String>>, StateError> {
        let output = self.ask(crio::config()).await?;
        Ok(output.map(|output| match output.ok() {
            true => crio::parse(&output.stdout),
            false => Err(last_words(&output)),
        }))
    }

    /// The configuration files of CRI-O, in the order in which it reads them.
    ///
    /// # Errors
    /// When one cannot be read.
    pub fn crio_files(&self) -> Result<Vec<crio::CrioFile>, StateError> {
        let files = &self.host.files;
        let mut names = files.list(Utf8Path::new(crio::DROP_INS))?;
        names.sort_unstable();
        let folder = Utf8Path::new(crio::DROP_INS);
        let paths = std::iter::once(Utf8PathBuf::from(crio::CONFIG))
            .chain(names.iter().map(|name| folder.join(name)));
        let mut found = Vec::new();
        for path in paths {
            if let Some(text) = files.read_text(&path)? {
                found.push(crio::CrioFile { path, text });
            }
        }
        Ok(found)
    }

    /// The CRI part of the configuration that containerd runs with. Where no program may be asked,
    /// that of its configuration file and of the files that it imports; `None` if containerd is not
    /// installed.
    ///
    /// # Errors
    /// When the program cannot be run, or when a file cannot be read or parsed.
    pub async fn cri(&self) -> Result<Option<CriConfig>, StateError> {
        match self.containerd_dump().await {
            Ok(None) => Ok(None),
            Ok(Some(output)) if output.ok() => {
                parsed("`containerd config dump`", &output.stdout).map(Some)
            }
            Ok(Some(output)) => Err(StateError::Unexpected {
                what: "containerd's configuration".to_owned(),
                why: last_words(output),
            }),
            Err(error) if error.not_asked().is_some() => self.cri_files().await,
            Err(error) => Err(error),
        }
    }

    async fn cri_files(&self) -> Read<Option<CriConfig>> {
        let found = self.runtimes().await.value.iter();
        let is_there = found.clone().any(|runtime| runtime.name == "containerd");
        if !is_there {
            return Ok(None);
        }
        let mut config = CriConfig {
            enabled: true,
            version: 2,
            ..CriConfig::default()
        };
        let version = self.containerd_version().await;
        let merges = version.is_none_or(Version::merges);
        for (at, file) in self.containerd_files().await?.into_iter().enumerate() {
            let Some(text) = &file.text else { continue };
            let more = parsed(file.path.as_str(), text)?;
            if at == 0 {
                config = more;
                continue;
            }
            // Lists are united.
            config.enabled &= more.enabled;
            if more.has_plugin && !merges {
                let (enabled, version) = (config.enabled, config.version);
                config = CriConfig {
                    enabled,
                    version,
                    ..more
                };
                continue;
            }
            config.systemd_cgroup.extend(more.systemd_cgroup);
            config.programs.extend(more.programs);
            config.runtimes.extend(more.runtimes);
            config.default_runtime = more.default_runtime.or(config.default_runtime);
        }
        Ok(Some(config))
    }

    /// The configuration files of containerd: the one that it reads first, whether it exists or not, and
    /// those that it imports, in their order.
    ///
    /// # Errors
    /// When a file cannot be read or parsed.
    pub async fn containerd_files(&self) -> Result<Vec<ConfigFile>, StateError> {
        let files = &self.host.files;
        // 1.6 looks for them where it was started (seen with 1.6.20, not with 1.7.24).
        let version = self.containerd_version().await;
        let relative_patterns = version.is_none_or(|version| version >= Version(1, 7));
        let mut found = vec![ConfigFile {
            path: CONTAINERD_CONFIG.into(),
            text: files.read_text(Utf8Path::new(CONTAINERD_CONFIG))?,
        }];
        // Names with `..` and links lead to one file by many paths.
        let place = |path: &Utf8Path| -> Result<Utf8PathBuf, FilesError> {
            Ok(files.resolve(path)?.unwrap_or_else(|| path.to_owned()))
        };
        let mut read = BTreeSet::from([place(Utf8Path::new(CONTAINERD_CONFIG))?]);
        let mut at = 0;
        while let Some(ConfigFile { path, text }) = found.get(at).cloned() {
            at += 1;
            let Some(text) = text else { continue };
            for import in parsed(path.as_str(), &text)?.imports {
                if import.contains('*') && !import.starts_with('/') && !relative_patterns {
                    continue;
                }
                // A relative one is relative to the file that names it.
                let import = path.parent().unwrap_or(Utf8Path::new("/")).join(import);
                let (Some(folder), Some(names)) = (import.parent(), import.file_name()) else {
                    continue;
                };
                for name in files.list(folder)? {
                    let path = folder.join(&name);
                    // A file that is imported twice is read once.
                    if pattern::matches(names, &name) && read.insert(place(&path)?) {
                        let text = files.read_text(&path)?;
                        found.push(ConfigFile { path, text });
                    }
                }
            }
        }
        Ok(found)
    }

    /// The version of containerd; `None` if nothing tells it.
    pub async fn containerd_version(&self) -> Option<Version> {
        self.runtime_version("containerd").await
    }

    /// The version of Podman; `None` if it is not there, or nothing tells it.
    pub async fn podman_version(&self) -> Option<Version> {
        self.runtime_version("podman").await
    }

    /// The version of NVIDIA's container toolkit, as far as it matters; `None` if it is not there, or nothing tells it.
    pub async fn toolkit_version(&self) -> Option<(u64, u64)> {
        let found = self.packages_like(&[toolkit::PACKAGES]).await.ok()?;
        let (_, version) = found.first()?;
        let version = version
            .split_once(':')
            .map_or(version.as_str(), |(_, rest)| rest);
        let mut numbers = version
            .split(['.', '-', '~'])
            .map_while(|part| part.parse().ok());
        Some((numbers.next()?, numbers.next()?))
    }

    async fn runtime_version(&self, name: &str) -> Option<Version> {
        let found = self.runtimes().await.value.iter();
        let version = { found }
            .find(|runtime| runtime.name == name)?
            .version
            .as_deref();
        Version::parse(version?)
    }

    /// The answer of `containerd config dump`; `None` if containerd is not installed.
    async fn containerd_dump(&self) -> Read<Option<&Output>> {
        let read = || self.ask(containerd::config_dump());
        let read = self.memo.containerd_dump.get_or_init(read).await.as_ref();
        read.map(Option::as_ref).map_err(Clone::clone)
    }

    /// The output of a program; `None` if it is not installed.
    async fn ask(&self, query: Query) -> Read<Option<Output>> {
        match self.host.reader().query(&query).await {
            Ok(output) => Ok(Some(output)),
            Err(ExecError::NotFound { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

fn parsed(what: &str, text: &str) -> Read<CriConfig> {
    containerd::parse_config(text).map_err(|why| StateError::Unexpected {
        what: what.to_owned(),
        why,
    })
}

fn of_docker(output: &Output) -> Effective {
    match docker::parse_info(&output.stdout) {
        Ok(info) if output.ok() && info.server_errors.is_empty() => Effective::Known {
            live_restore: info.live_restore_enabled,
            lenient: info.is_lenient(),
            without_cdi: info.needs_cdi() && info.cdi_folders.as_ref().is_none_or(Vec::is_empty),
            programs: info.programs(),
            runtimes: info.runtimes.into_keys().collect(),
            default: info.default_runtime,
        },
        Ok(info) => {
            let said = info.server_errors.first().cloned();
            Effective::Silent(said.unwrap_or_else(|| last_words(output)))
        }
        Err(_) => Effective::Silent(last_words(output)),
    }
}

/// The last line of a program's output.
fn last_words(output: &Output) -> String {
    let said = if output.stderr.trim().is_empty() {
        &output.stdout
    } else {
        &output.stderr
    };
    said.lines()
        .next_back()
        .unwrap_or_default()
        .trim()
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        host::fake,
        steps::fixtures::{facts, state, state_below_root},
    };

    #[tokio::test]
    async fn a_daemon_is_absent_silent_or_known() {
        let (host, fakes) = fake::host();
        let get = async || state(&host, facts()).docker().await.unwrap().clone();
        assert_eq!(get().await, Effective::Absent);
        fakes.exec.on("docker", |_, _| {
            fake::failed(1, "Cannot connect to the Docker daemon\n")
        });
        let silent = Effective::Silent("Cannot connect to the Docker daemon".to_owned());
        assert_eq!(get().await, silent);
        fakes.exec.on("docker", |_, _| {
            fake::ok(r#"{"Runtimes": {"runc": {}}, "DefaultRuntime": "runc"}"#)
        });
        let Effective::Known {
            runtimes, default, ..
        } = get().await
        else {
            panic!("it answers");
        };
        assert_eq!(
            (runtimes, default),
            (vec!["runc".to_owned()], Some("runc".to_owned()))
        );
    }

    #[tokio::test]
    async fn below_root_the_files_of_containerd_and_their_imports_tell() {
        let (host, fakes) = fake::host();
        fakes.exec.on_result("containerd", |cmd, _| {
            Err(ExecError::NotAsked {
                command: cmd.line(),
                why: "a tree".to_owned(),
            })
        });
        let get = async || state_below_root(&host, facts()).cri().await.unwrap();
        assert_eq!(get().await, None);
        fakes.files.put("/usr/bin/containerd", "");
        assert!(get().await.is_some_and(|config| config.enabled));
        let runtimes = "plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes";
        fakes.files.put(
            CONTAINERD_CONFIG,
            format!(
                "version = 2\nimports = [\"/etc/containerd/conf.d/*.toml\"]\n\
                 [{runtimes}.runc.options]\nSystemdCgroup = true\n"
            ),
        );
        fakes.files.put(
            "/etc/containerd/conf.d/99-nvidia.toml",
            format!("[{runtimes}.nvidia.options]\nSystemdCgroup = false\n"),
        );
        let config = get().await.expect("it is installed");
        let cgroups: Vec<(&str, bool)> = (config.systemd_cgroup.iter())
            .map(|(name, systemd)| (name.as_str(), *systemd))
            .collect();
        assert_eq!(cgroups, [("nvidia", false), ("runc", true)]);
    }

    #[tokio::test]
    async fn imports_are_read_in_their_order_and_once() {
        let (host, fakes) = fake::host();
        let names = async || -> Vec<String> {
            let files = state(&host, facts()).containerd_files().await.unwrap();
            files
                .into_iter()
                .map(|file| file.path.into_string())
                .collect()
        };
        assert_eq!(names().await, [CONTAINERD_CONFIG]);
        fakes.files.put(
            CONTAINERD_CONFIG,
            "imports = [\"conf.d/*.toml\", \"/etc/containerd/conf.d/b.toml\"]\n",
        );
        fakes.files.put(
            "/etc/containerd/conf.d/b.toml",
            "imports = [\"../more/c.toml\"]\n",
        );
        fakes.files.put("/etc/containerd/conf.d/a.toml", "");
        fakes.files.put("/etc/containerd/conf.d/a.toml.bak", "[[[");
        assert_eq!(
            names().await[1..],
            [
                "/etc/containerd/conf.d/a.toml",
                "/etc/containerd/conf.d/b.toml"
            ]
        );
        fakes.files.put(CONTAINERD_CONFIG, "[[[");
        assert!(state(&host, facts()).containerd_files().await.is_err());
    }
}
