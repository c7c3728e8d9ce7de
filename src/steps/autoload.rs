//! `driver.autoload`: the driver modules are loaded at every boot.

use camino::Utf8Path;

use super::{DRIVER_AUTOLOAD, DRIVER_PACKAGES, messages};
use crate::{
    change::{Change, Lock},
    config::desired::Desired,
    step::{Assessment, Cx, Step, StepError},
    tools::{kmod, packages::HEADER},
};

/// The file for `systemd-modules-load.service`.
pub const PATH: &str = "/etc/modules-load.d/gpu-bootstrap.conf";

/// The `driver.autoload` step.
pub(super) fn step() -> Step {
    Step::new(DRIVER_AUTOLOAD, |cx| Box::pin(assess(cx)))
        .after([DRIVER_PACKAGES])
        .locks([Lock::Modules])
}

#[derive(Debug, Clone, Default)]
struct AutoloadState {
    content: Option<String>,
    /// Descriptions of the settings that prevent the modules from being loaded.
    denials: Vec<String>,
}

fn detect(cx: &Cx<'_>) -> Result<AutoloadState, StepError> {
    let files = cx.host.files();
    let modules = (cx.desired.driver.as_ref()).map_or(&[][..], |driver| &driver.load_modules[..]);
    let mut denials = kmod::denials(files, modules)?;
    // The kernel command line of an image builder does not apply to instances of the image.
    if !cx.desired.image {
        let line = files.read_text(Utf8Path::new("/proc/cmdline"))?;
        let word = kmod::denied_by_boot(&line.unwrap_or_default(), modules);
        denials.extend(word.map(|word| format!("the kernel command line contains `{word}`")));
    }
    Ok(AutoloadState {
        content: files.read_text(Utf8Path::new(PATH))?,
        denials,
    })
}

fn decide(state: &AutoloadState, desired: &Desired) -> Assessment {
    let Some(driver) = &desired.driver else {
        return messages::no_driver();
    };
    if driver.load_modules.is_empty() {
        return Assessment::not_applicable("the profile lists no modules to load");
    }
    if !state.denials.is_empty() {
        return Assessment::blocked(
            format!(
                "{}, so the driver would not be loaded",
                state.denials.join("; ")
            ),
            "remove the setting. If it is in the kernel command line, change the boot loader \
             configuration and reboot. Then run the command again. For a node without GPUs, set \
             `gpu = \"optional\"`",
        );
    }
    let content = format!("{}{}\n", HEADER, driver.load_modules.join("\n"));
    if state.content.as_deref() == Some(&content) {
        return Assessment::satisfied(format!(
            "`{PATH}` contains {}",
            driver.load_modules.join(", ")
        ));
    }
    let why = match state.content {
        None => format!("`{PATH}` is missing"),
        Some(_) => format!("`{PATH}` contains other modules"),
    };
    Assessment::needs(why, vec![Change::write(PATH, content)])
}

async fn assess(cx: &Cx<'_>) -> Result<Assessment, StepError> {
    Ok(decide(&detect(cx)?, cx.desired))
}

#[cfg(test)]
mod tests {
    use super::{AutoloadState, decide};
    use crate::{change::Change, steps::fixtures::desired};

    #[test]
    fn only_the_written_content_is_satisfied() {
        let want = desired();
        let (_, changes) = decide(&AutoloadState::default(), &want).expect_needs();
        let [Change::WriteFile { content, .. }] = &changes[..] else {
            panic!("one file")
        };
        let written = AutoloadState {
            content: Some(content.clone()),
            ..AutoloadState::default()
        };
        decide(&written, &want).expect_satisfied();
        let other = AutoloadState {
            content: Some("nouveau\n".into()),
            ..AutoloadState::default()
        };
        decide(&other, &want).expect_needs();
    }
}
