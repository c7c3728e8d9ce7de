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
}

#[cfg(test)]
mod tests {
    use super::parse;

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
