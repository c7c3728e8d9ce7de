//! The installed container runtimes, found by their binaries, with the versions of program and configuration file. Also their
//! configuration from files and from the running daemon, which the `runtimes` module reads.

use camino::Utf8Path;
use serde::{Deserialize, Serialize};

use super::{Noted, Read, State, StateError, owner::owner, packages::KnownPackages};
use crate::{
    error::one_line,
    facts::{Scope, reader::FactReader},
    host::{Query, Reader},
    runtimes::{
        LiveConfig, Place, ReadError, Report, RuntimeKind, RuntimeView, Surroundings, Version,
    },
    tools::toolkit,
};

impl From<ReadError> for StateError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Files(error) => error.into(),
            ReadError::Exec(error) => error.into(),
        }
    }
}

/// A container runtime.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct FoundRuntime {
    /// `docker`, `containerd`, `podman`, `crio`.
    pub name: String,
    /// The program version without the packaging suffix, for example `27.3.1`.
    pub version: Option<String>,
    /// The version of the configuration file (containerd).
    pub config_version: Option<u32>,
}

impl State {
    /// The installed container runtimes.
    pub async fn found_runtimes(&self) -> &[FoundRuntime] {
        &self.runtimes().await.value
    }

    /// The installed container runtimes, and the values that could not be read.
    pub(super) async fn runtimes(&self) -> &Noted<Vec<FoundRuntime>> {
        let read = || async {
            let packages = &self.installed().await.value;
            let mut reader = FactReader::new(&*self.host.files);
            let value = find(&mut reader, self.host.reader(), self.scope, packages).await;
            Noted {
                value,
                unknown: reader.into_unknown(),
            }
        };
        self.memo.runtimes.get_or_init(read).await
    }

    /// Returns `true` if the program of a runtime is installed.
    pub async fn has_runtime(&self, kind: RuntimeKind) -> bool {
        self.found(kind).await.is_some()
    }

    /// The version of a runtime, or `None` if it is not installed or the version is unknown.
    pub async fn runtime_version(&self, kind: RuntimeKind) -> Option<Version> {
        Version::parse(self.found(kind).await?.version.as_deref()?)
    }

    async fn found(&self, kind: RuntimeKind) -> Option<&FoundRuntime> {
        let found = self.found_runtimes().await.iter();
        { found }.find(|runtime| runtime.name == kind.name())
    }

    async fn place(&self, kind: RuntimeKind) -> Place<'_> {
        Place {
            host: self.host.reader(),
            installed: self.has_runtime(kind).await,
            version: self.runtime_version(kind).await,
        }
    }

    /// The view of a runtime on this machine.
    ///
    /// # Errors
    /// If one of its files cannot be read. A daemon that does not respond is not an error.
    pub async fn runtime(&self, kind: RuntimeKind) -> Result<&RuntimeView, StateError> {
        let read = || async {
            let place = self.place(kind).await;
            Ok(kind.runtime().view(place).await?)
        };
        let cell = &self.memo.runtime_views[kind.index()];
        let read: &Read<RuntimeView> = cell.get_or_init(read).await;
        read.as_ref().map_err(Clone::clone)
    }

    /// The configuration that a runtime reports.
    ///
    /// # Errors
    /// As for [`State::runtime`], and if the runtime's program cannot be run.
    pub async fn said(&self, kind: RuntimeKind) -> Result<&LiveConfig, StateError> {
        match &self.runtime(kind).await?.said {
            LiveConfig::Unknown(error) => Err(StateError::Exec(error.clone())),
            said => Ok(said),
        }
    }

    /// The report about the files of a runtime, or `None` if there is no report for this runtime.
    ///
    /// # Errors
    /// As for [`State::runtime`].
    pub async fn report(&self, kind: RuntimeKind) -> Result<Option<Report>, StateError> {
        let owner = owner(&*self.host.files, &self.facts)?;
        let surroundings = Surroundings {
            is_this_machine: self.is_of_this_machine(),
            is_alone: (self.found_runtimes().await.iter())
                .all(|runtime| runtime.name == kind.name()),
            needs_runtime: (owner.as_ref())
                .filter(|owner| owner.provides.container_runtime)
                .map(|owner| owner.name),
            // Only without a kubelet. Other findings examine the kubelet's runtime, and report if it is unknown.
            has_toolkit: self.host.files.exists(Utf8Path::new(toolkit::RUNTIME))?
                && !self.facts.gpus.is_empty()
                && self.ours.packages.is_empty()
                && matches!(self.kubelet_runtime(), Ok(None)),
        };
        let (place, view) = (self.place(kind).await, self.runtime(kind).await?);
        Ok(kind.runtime().report(place, view, surroundings).await?)
    }

    /// The names of the containers that a restart of a daemon would stop.
    ///
    /// # Errors
    /// If the daemon's client cannot be run, or if the daemon does not respond, because then the containers are unknown.
    pub async fn stopped_with(&self, kind: RuntimeKind) -> Result<Vec<String>, StateError> {
        let spares =
            matches!(self.said(kind).await?, LiveConfig::Known(config) if config.spares_containers);
        match kind.daemon() {
            Some(daemon) if !spares => Ok(daemon.configured().running(self.host.reader()).await?),
            _ => Ok(Vec::new()),
        }
    }

    /// Major and minor version of the NVIDIA Container Toolkit, or `None` if it is not installed or the version is unknown.
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
}

/// Searches for each runtime.
async fn find(
    reader: &mut FactReader<'_>,
    host: Reader<'_>,
    scope: Scope,
    packages: &KnownPackages,
) -> Vec<FoundRuntime> {
    let mut found = Vec::new();
    for kind in RuntimeKind::ALL {
        found.extend(runtime(reader, host, scope, packages, kind).await);
    }
    found
}

async fn runtime(
    reader: &mut FactReader<'_>,
    host: Reader<'_>,
    scope: Scope,
    packages: &KnownPackages,
    kind: RuntimeKind,
) -> Option<FoundRuntime> {
    let (name, known) = (kind.name(), kind.runtime().facts());
    let fact = format!("runtimes[{name}].version");
    let binary = known
        .binaries
        .iter()
        .find(|path| reader.exists(&fact, path));
    let from_package = packages.as_deref().ok().and_then(|packages| {
        known
            .packages
            .iter()
            .find_map(|name| packages.iter().find(|package| package.name == *name))
    });
    // A package is not sufficient evidence, because other programs are also called `docker`.
    let version = match (binary, from_package) {
        (None, _) => return None,
        (Some(_), Some(package)) => Some(upstream(&package.version).to_owned()),
        (Some(binary), None) if scope.executes => ask(reader, host, &fact, binary).await,
        (Some(binary), None) => {
            reader.unknown(
                fact,
                format!("no readable package contains `{binary}`, and the program was not run"),
            );
            None
        }
    };
    let config_version = (known.versioned).and_then(|path| config_version(reader, name, path));
    Some(FoundRuntime {
        name: name.to_owned(),
        version,
        config_version,
    })
}

async fn ask(
    reader: &mut FactReader<'_>,
    host: Reader<'_>,
    fact: &str,
    binary: &str,
) -> Option<String> {
    let query = Query::new(binary, ["--version"]);
    let output = match host.query(&query).await {
        Ok(output) => output.success(query.cmd()),
        Err(error) => Err(error),
    };
    match output.map(|output| parse_version(&output.stdout)) {
        Ok(Some(version)) => Some(version),
        Ok(None) => {
            reader.unknown(
                fact,
                format!("the output of `{binary} --version` contains no version"),
            );
            None
        }
        Err(error) => {
            reader.unknown(fact, one_line(&error));
            None
        }
    }
}

/// The program version from its package version: `5:27.3.1-1~ubuntu.24.04~noble` is `27.3.1`, `20.10.24+dfsg1-1+deb12u1` is
/// `20.10.24`, `2.0.0~rc1-1` is `2.0.0~rc1`.
pub(super) fn upstream(version: &str) -> &str {
    let version = version.split_once(':').map_or(version, |(_, rest)| rest);
    let version = version.rsplit_once('-').map_or(version, |(rest, _)| rest);
    let version = version.split('+').next().unwrap_or(version);
    // Debian's suffix for a repacked source.
    version.split("~ds").next().unwrap_or(version)
}

/// Returns the first word that is a version: `Docker version 20.10.24+dfsg1, build 297e128`,
/// `containerd github.com/containerd/containerd 1.7.28 b98a3aa`, `crio version 1.31.0`.
fn parse_version(text: &str) -> Option<String> {
    text.split_whitespace()
        .map(|word| word.trim_matches(',').trim_start_matches('v'))
        .find(|word| word.starts_with(|c: char| c.is_ascii_digit()) && word.contains('.'))
        .map(|word| upstream(word).to_owned())
}

/// The `version` in the containerd configuration. According to containerd-config.toml(5), a file without it has version 1.
fn config_version(reader: &mut FactReader<'_>, name: &str, path: &str) -> Option<u32> {
    let fact = format!("runtimes[{name}].config-version");
    let text = reader.text(&fact, path)?;
    match parse_config_version(&text) {
        Ok(version) => Some(version),
        Err(why) => {
            reader.unknown(fact, format!("`{path}` {why}"));
            None
        }
    }
}

fn parse_config_version(text: &str) -> Result<u32, String> {
    let table: toml::Table = text
        .parse()
        .map_err(|error: toml::de::Error| format!("is not TOML: {}", error.message()))?;
    match table.get("version") {
        None => Ok(1),
        Some(value) => value
            .as_integer()
            .and_then(|version| u32::try_from(version).ok())
            .ok_or_else(|| format!("has the version `{value}`")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::text::reads_any_text;
    use crate::{
        host::{ExecError, fake},
        runtimes::containerd,
        state::packages::KnownPackage,
        steps::fixtures::{facts, state, state_below_root},
    };

    #[test]
    fn runtime_versions_are_parsed() {
        for (package, expected) in [
            ("5:27.3.1-1~ubuntu.24.04~noble", "27.3.1"),
            ("20.10.24+dfsg1-1+deb12u1+b6", "20.10.24"),
            ("1.6.20~ds1-1+deb12u3", "1.6.20"),
            ("1.7.28-2.el9", "1.7.28"),
            ("2.0.0~rc1-1", "2.0.0~rc1"),
            ("", ""),
        ] {
            assert_eq!(upstream(package), expected, "{package}");
        }
        for (text, expected) in rows! {
            "Docker version 20.10.24+dfsg1, build 297e128", Some("20.10.24");
            "containerd github.com/containerd/containerd v1.7.28 b98a3aa", Some("1.7.28");
            "crio version 1.31.0\nGitCommit: x", Some("1.31.0");
            "", None;
        } {
            assert_eq!(parse_version(text).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn config_version_is_parsed() {
        assert_eq!(parse_config_version("version = 3\n[plugins]\n"), Ok(3));
        assert_eq!(
            parse_config_version("disabled_plugins = [\"cri\"]\n"),
            Ok(1)
        );
        assert!(parse_config_version("version = \"2\"").is_err());
        assert!(parse_config_version("version = -1").is_err());
        assert!(parse_config_version("[[[").is_err());
    }

    #[tokio::test]
    async fn runtime_version_is_read_from_package_then_binary() {
        let (host, fakes) = fake::host();
        let packages: KnownPackages = Ok(vec![KnownPackage {
            name: "docker.io".to_owned(),
            version: "20.10.24+dfsg1-1+deb12u1".to_owned(),
            by_vendor: None,
        }]);
        let get = async |executes| {
            let mut reader = FactReader::new(host.reader().files());
            let found = find(&mut reader, host.reader(), Scope { executes }, &packages).await;
            (found, reader.into_unknown().len())
        };
        assert_eq!(get(true).await, (vec![], 0));
        fakes.files.put("/usr/sbin/dockerd", "x");
        fakes.files.put("/usr/local/bin/containerd", "x");
        fakes
            .files
            .put("/etc/containerd/config.toml", "version = 2\n");
        let (found, unknown) = get(false).await;
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].version.as_deref(), Some("20.10.24"));
        assert_eq!(
            (found[1].version.as_deref(), found[1].config_version),
            (None, Some(2))
        );
        assert_eq!(unknown, 1);
        fakes.exec.on("/usr/local/bin/containerd", |_, _| {
            fake::ok("containerd github.com/containerd/containerd v2.1.4 abc\n")
        });
        assert_eq!(get(true).await.0[1].version.as_deref(), Some("2.1.4"));
    }

    #[tokio::test]
    async fn daemon_is_absent_silent_or_known() {
        let (host, fakes) = fake::host();
        let get = async || {
            let state = state(&host, facts());
            state.said(RuntimeKind::Docker).await.unwrap().clone()
        };
        assert!(matches!(get().await, LiveConfig::Absent));
        fakes.exec.on("docker", |_, _| {
            fake::failed(1, "Cannot connect to the Docker daemon\n")
        });
        let LiveConfig::Silent(words) = get().await else {
            panic!("the daemon does not respond");
        };
        assert_eq!(words, "Cannot connect to the Docker daemon");
        fakes.exec.on("docker", |_, _| {
            fake::ok(r#"{"Runtimes": {"runc": {}}, "DefaultRuntime": "runc"}"#)
        });
        let LiveConfig::Known(config) = get().await else {
            panic!("the daemon responds");
        };
        assert!(config.runtimes.contains("runc"));
        assert_eq!(config.default.as_deref(), Some("runc"));
    }

    #[tokio::test]
    async fn invalid_docker_info_output_is_reported() {
        let (host, fakes) = fake::host();
        for (answer, words) in [
            ("", "`docker info` printed no output"),
            ("[", "the output of `docker info` is invalid: "),
        ] {
            fakes.exec.on("docker", move |_, _| fake::ok(answer));
            let state = state(&host, facts());
            let LiveConfig::Silent(why) = state.said(RuntimeKind::Docker).await.unwrap() else {
                panic!("the daemon does not respond");
            };
            assert!(why.starts_with(words), "{why}");
        }
    }

    #[tokio::test]
    async fn files_are_read_if_a_program_cannot_run() {
        let (host, fakes) = fake::host();
        fakes.files.put("/etc/crio/crio.conf", "[crio]\n");
        fakes.exec.on_result("crio", |cmd, _| {
            Err(ExecError::NotQueried {
                command: cmd.line(),
                why: "a recording".to_owned(),
            })
        });
        let state = state(&host, facts());
        let view = state.runtime(RuntimeKind::Crio).await.unwrap();
        assert_eq!(view.files.len(), 1);
        assert!(state.said(RuntimeKind::Crio).await.is_err());
    }

    #[tokio::test]
    async fn docker_without_nvidia_runtime_is_reported_with_a_toolkit() {
        const KUBELET: &str = "containerRuntimeEndpoint: unix:///run/crio/crio.sock\n";
        let runtime = r#"{"runtimes": {"nvidia": {"path": "nvidia-container-runtime"}}}"#;
        for (files, is_told) in [
            (vec![(toolkit::RUNTIME, "")], true),
            (vec![], false),
            (
                vec![(toolkit::RUNTIME, ""), ("/etc/docker/daemon.json", "{}")],
                true,
            ),
            (
                vec![(toolkit::RUNTIME, ""), ("/etc/docker/daemon.json", runtime)],
                false,
            ),
            (
                vec![(toolkit::RUNTIME, ""), ("/etc/cdi/nvidia.yaml", "")],
                false,
            ),
            // On a machine with a kubelet, another check examines the kubelet's runtime.
            (
                vec![
                    (toolkit::RUNTIME, ""),
                    ("/var/lib/kubelet/config.yaml", KUBELET),
                ],
                false,
            ),
        ] {
            let (host, fakes) = fake::host();
            for program in ["docker", "dockerd"] {
                fakes.exec.on_result(program, |cmd, _| {
                    Err(ExecError::NotQueried {
                        command: cmd.line(),
                        why: "a tree".to_owned(),
                    })
                });
            }
            fakes.files.put("/usr/bin/dockerd", "");
            for (path, text) in &files {
                fakes.files.put(path, *text);
            }
            let state = state(&host, facts());
            let report = state.report(RuntimeKind::Docker).await.unwrap();
            let found = match report {
                Some(Report::Faulty(faults)) => {
                    faults[0].fault.why.contains("has no runtime `nvidia`")
                }
                _ => false,
            };
            assert_eq!(found, is_told, "{files:?}");
        }
    }

    #[tokio::test]
    async fn containerd_files_and_imports_are_read_below_root() {
        let (host, fakes) = fake::host();
        fakes.exec.on_result("containerd", |cmd, _| {
            Err(ExecError::NotQueried {
                command: cmd.line(),
                why: "a tree".to_owned(),
            })
        });
        let get = async || {
            let state = state_below_root(&host, facts());
            let view = state.runtime(RuntimeKind::Containerd).await.unwrap();
            view.config().cloned()
        };
        assert_eq!(get().await, None);
        fakes.files.put("/usr/bin/containerd", "");
        assert!(get().await.is_some_and(|config| config.serves_pods));
        let runtimes = "plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes";
        fakes.files.put(
            containerd::CONFIG,
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
    async fn imports_are_read_once_and_in_order() {
        let (host, fakes) = fake::host();
        let view = async || {
            let state = state(&host, facts());
            state
                .runtime(RuntimeKind::Containerd)
                .await
                .unwrap()
                .clone()
        };
        let names = async || -> Vec<String> {
            let files = view().await.files.into_iter();
            files.map(|file| file.path.into_string()).collect()
        };
        assert_eq!(names().await, [containerd::CONFIG]);
        fakes.files.put(
            containerd::CONFIG,
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
        fakes.files.put(containerd::CONFIG, "[[[");
        assert!(view().await.broken.is_some());
    }

    reads_any_text!(
        ".*",
        |text| upstream(&text); parse_version(&text); parse_config_version(&text)
    );
}
