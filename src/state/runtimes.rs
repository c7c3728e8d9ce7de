//! Container runtimes: found by package or by binary, with the version of their configuration.

use serde::{Deserialize, Serialize};

use super::{Noted, State, packages::KnownPackages};
use crate::{
    error::one_line,
    facts::{
        Scope,
        detection::{RuntimePatterns, table},
        reader::FactReader,
    },
    host::{Query, Reader},
};

/// A container runtime.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct FoundRuntime {
    /// `docker`, `containerd`, `podman`, `crio`.
    pub name: String,
    /// The version of the program without the packaging suffix, for example `27.3.1`.
    pub version: Option<String>,
    /// The version of its configuration file (containerd).
    pub config_version: Option<u32>,
}

impl State {
    /// The container runtimes that are installed.
    pub async fn found_runtimes(&self) -> &[FoundRuntime] {
        &self.runtimes().await.value
    }

    /// The container runtimes that are installed.
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
}

/// Searches for each runtime of the table.
async fn find(
    reader: &mut FactReader<'_>,
    host: Reader<'_>,
    scope: Scope,
    packages: &KnownPackages,
) -> Vec<FoundRuntime> {
    let mut found = Vec::new();
    for row in &table().runtime {
        found.extend(runtime(reader, host, scope, packages, row).await);
    }
    found
}

async fn runtime(
    reader: &mut FactReader<'_>,
    host: Reader<'_>,
    scope: Scope,
    packages: &KnownPackages,
    row: &RuntimePatterns,
) -> Option<FoundRuntime> {
    let fact = format!("runtimes[{}].version", row.name);
    let binary = row.binaries.iter().find(|path| reader.exists(&fact, path));
    let from_package = packages.as_deref().ok().and_then(|packages| {
        row.packages
            .iter()
            .find_map(|name| packages.iter().find(|package| package.name == *name))
    });
    // A package alone is not enough: other programs are called `docker`, too.
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
    let config_version = row
        .config
        .as_deref()
        .and_then(|path| config_version(reader, &row.name, path));
    Some(FoundRuntime {
        name: row.name.clone(),
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
            reader.unknown(fact, format!("`{binary} --version` names no version"));
            None
        }
        Err(error) => {
            reader.unknown(fact, one_line(&error));
            None
        }
    }
}

/// The version of the program, from the version of its package: `5:27.3.1-1~ubuntu.24.04~noble` is
/// `27.3.1`, `20.10.24+dfsg1-1+deb12u1` is `20.10.24`, `2.0.0~rc1-1` is `2.0.0~rc1`.
fn upstream(version: &str) -> &str {
    let version = version.split_once(':').map_or(version, |(_, rest)| rest);
    let version = version.rsplit_once('-').map_or(version, |(rest, _)| rest);
    let version = version.split('+').next().unwrap_or(version);
    // Debian's suffix for a repacked source.
    version.split("~ds").next().unwrap_or(version)
}

/// The first word that is a version: `Docker version 20.10.24+dfsg1, build 297e128`,
/// `containerd github.com/containerd/containerd 1.7.28 b98a3aa`, `crio version 1.31.0`.
fn parse_version(text: &str) -> Option<String> {
    text.split_whitespace()
        .map(|word| word.trim_matches(',').trim_start_matches('v'))
        .find(|word| word.starts_with(|c: char| c.is_ascii_digit()) && word.contains('.'))
        .map(|word| upstream(word).to_owned())
}

/// The `version` of containerd's configuration. A file without one is of version 1, says
/// containerd-config.toml(5).
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
    use crate::{host::fake, state::packages::KnownPackage};

    #[test]
    fn versions() {
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
    fn configurations() {
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
    async fn found_by_binary_named_by_package_or_by_itself() {
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

    reads_any_text!(
        ".*",
        |text| upstream(&text); parse_version(&text); parse_config_version(&text)
    );
}
