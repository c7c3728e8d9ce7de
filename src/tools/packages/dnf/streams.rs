//! Module streams of dnf 4. On systems with modules, each driver branch is a stream.

use camino::{Utf8Path, Utf8PathBuf};

use super::commands;
use crate::{
    host::{Cmd, FilesError, ReadFiles},
    tools::packages::{Settings, Streams},
};

/// The directory of the module states.
const DIRECTORY: &str = "/etc/dnf/modules.d";

#[derive(Debug)]
pub struct DnfStreams;

/// Returns the enabled stream in the file of a module. After a reset, the file remains with empty values.
fn parse(text: &str) -> Option<String> {
    let value = |wanted: &str| {
        text.lines().find_map(|line| {
            let (key, value) = line.split_once('=')?;
            (key.trim() == wanted).then(|| value.trim().to_owned())
        })
    };
    (value("state")? == "enabled").then_some(())?;
    value("stream").filter(|stream| !stream.is_empty())
}

impl Streams for DnfStreams {
    fn enabled(&self, files: &dyn ReadFiles, module: &str) -> Result<Option<String>, FilesError> {
        let text = files.read_text(&self.path(module))?;
        Ok(text.as_deref().and_then(parse))
    }

    fn path(&self, module: &str) -> Utf8PathBuf {
        Utf8Path::new(DIRECTORY).join(format!("{module}.module"))
    }

    fn enable(&self, settings: &Settings, module: &str, stream: &str) -> Cmd {
        commands::module(settings, "enable", &format!("{module}:{stream}"))
    }

    fn reset(&self, settings: &Settings, module: &str) -> Cmd {
        commands::module(settings, "reset", module)
    }

    /// Sources: README of NVIDIA/yum-packaging-dkms-nvidia (`latest-dkms` and `XXX-dkms` replace `latest` and `XXX`, the open
    /// streams use DKMS); NVIDIA driver installation guide, "Switching between Driver Module Flavors" (`switch-to`) and
    /// "Pre-installation Actions" (DKMS is in EPEL).
    fn compiled(&self, os: &str, module: &str, stream: &str) -> Option<String> {
        let is_branch = stream.bytes().all(|byte| byte.is_ascii_digit());
        (stream == "latest" || is_branch && !stream.is_empty()).then_some(())?;
        let epel = match os {
            "almalinux" | "centos" | "rocky" => "dnf install epel-release && ",
            _ => "",
        };
        Some(format!(
            "{epel}dnf module switch-to {module}:{stream}-dkms --allowerasing"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::{DnfStreams, parse};
    use crate::tools::packages::Streams;

    #[test]
    fn only_precompiled_streams_are_replaced() {
        let command = |os: &str, stream: &str| DnfStreams.compiled(os, "nvidia-driver", stream);
        assert_eq!(
            command("rhel", "580").as_deref(),
            Some("dnf module switch-to nvidia-driver:580-dkms --allowerasing")
        );
        assert!(
            command("rocky", "latest")
                .is_some_and(|text| text.starts_with("dnf install epel-release && "))
        );
        for stream in [
            "latest-dkms",
            "open-dkms",
            "580-open",
            "580-dkms",
            "",
            "580 x",
        ] {
            assert_eq!(command("rocky", stream), None, "{stream}");
        }
    }

    #[test]
    fn only_enabled_stream_is_returned() {
        // Written by dnf 4.14 after `enable` and after `reset`.
        let enabled =
            "[nvidia-driver]\nname=nvidia-driver\nstream=580-open\nprofiles=\nstate=enabled\n";
        assert_eq!(parse(enabled).as_deref(), Some("580-open"));
        assert_eq!(parse("[a]\nname=a\nstream=\nprofiles=\nstate=\n"), None);
        assert_eq!(parse(&enabled.replace("enabled", "disabled")), None);
        assert_eq!(parse(""), None);
    }
}
