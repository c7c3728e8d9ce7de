//! `kernel.deny`: in-tree drivers (nouveau, nova) must not claim the GPU at the next boot.
//!
//! Rebuilding an initramfs takes longer than most steps, so it is only done for kernels whose initramfs contains one
//! of these drivers and was built before they were blocked.

use camino::Utf8Path;

use super::{KERNEL_DENY, PREFLIGHT, messages};
use crate::{
    change::{Change, Lock},
    config::desired::Desired,
    host::{Query, Stat},
    step::{Assessment, Cx, Step, StepError},
    tools::{initramfs, kmod, packages::HEADER},
};

/// The file for modprobe.
pub const PATH: &str = "/etc/modprobe.d/gpu-bootstrap-deny.conf";

/// The `kernel.deny` step.
pub(super) fn step() -> Step {
    Step::new(KERNEL_DENY, |cx| Box::pin(assess(cx)))
        .after([PREFLIGHT])
        .locks([Lock::Modules])
}

#[derive(Debug, Clone, Default)]
struct DenyState {
    content: Option<String>,
    /// Kernels whose initramfs contains a blocked driver without our configuration.
    initramfs_with_denied: Vec<String>,
}

async fn detect(cx: &Cx<'_>) -> Result<DenyState, StepError> {
    let files = cx.host.files();
    let path = Utf8Path::new(PATH);
    let found = files.read_text(path)?;
    let denied_since = files.stat(path)?.map(|stat| stat.mtime);
    let generator = initramfs::of(files)?;
    let mut initramfs_with_denied = Vec::new();
    for kernel in cx.facts.kernel.bootable() {
        let image = generator.image(&kernel);
        let Some(stat) = files.stat(&image)? else {
            continue;
        };
        if denied_since.is_some_and(|since| stat.mtime >= since) {
            continue;
        }
        // Skip kernels without these drivers, such as cloud kernels, because listing an initramfs decompresses all of it.
        let list = files.read_text(&kmod::list_of(&kernel))?;
        if list.is_some_and(|list| has_none(&list, &cx.desired.deny_modules)) {
            continue;
        }
        match initramfs_holds(cx, &generator.list(&image), &stat, &cx.desired.deny_modules).await {
            Ok(true) => initramfs_with_denied.push(kernel),
            Ok(false) => {}
            // No command may run (`--root`), so the initramfs is unknown. Ignore this if the file must be written anyway.
            Err(error)
                if error.not_queried().is_some()
                    && found.as_deref() != Some(&content(&cx.desired.deny_modules)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(DenyState {
        content: found,
        initramfs_with_denied,
    })
}

/// Returns whether a kernel has none of these modules, from the module list of `depmod`. `false` if the list is empty,
/// because an interrupted `depmod` leaves an empty one.
fn has_none(list: &str, modules: &[String]) -> bool {
    let mut names = list.lines().filter_map(|line| line.split(':').next());
    !list.is_empty()
        && !names.any(|path| {
            let name = kmod::name_of(path).map(kmod::canonical);
            modules
                .iter()
                .any(|module| name == Some(kmod::canonical(module)))
        })
}

/// Returns whether the listed initramfs contains one of the modules, but not the file that blocks them.
async fn initramfs_holds(
    cx: &Cx<'_>,
    list: &Query,
    image: &Stat,
    modules: &[String],
) -> Result<bool, StepError> {
    let listing = cx.state.initramfs(list, image).await?;
    let denied = initramfs::has_file(&listing, Utf8Path::new(PATH));
    Ok(!denied && !initramfs::modules_in(&listing, modules).is_empty())
}

fn content(modules: &[String]) -> String {
    let mut text = HEADER.to_owned();
    for module in modules {
        text.push_str("blacklist ");
        text.push_str(module);
        text.push('\n');
    }
    // `blacklist` does not prevent loading by name or as a dependency.
    for module in modules {
        text.push_str(&format!("install {module} /bin/false\n"));
    }
    text
}

fn decide(state: &DenyState, desired: &Desired) -> Assessment {
    if desired.driver.is_none() {
        return messages::no_driver();
    }
    if desired.deny_modules.is_empty() {
        return Assessment::not_applicable("the profile denies no modules");
    }
    let wanted = content(&desired.deny_modules);
    let mut changes = Vec::new();
    let mut whys = Vec::new();
    if state.content.as_deref() != Some(&wanted) {
        whys.push(format!(
            "`{PATH}` does not block {}",
            desired.deny_modules.join(", ")
        ));
        changes.push(Change::write(PATH, wanted));
    }
    if !state.initramfs_with_denied.is_empty() {
        whys.push(format!(
            "the initramfs of {} contains a denied module",
            state.initramfs_with_denied.join(", ")
        ));
        changes.push(Change::RebuildInitramfs {
            kernels: state.initramfs_with_denied.clone(),
        });
    }
    if changes.is_empty() {
        return Assessment::satisfied(format!(
            "{} are blocked by `{PATH}`",
            desired.deny_modules.join(", ")
        ));
    }
    Assessment::needs(whys.join("; "), changes)
}

async fn assess(cx: &Cx<'_>) -> Result<Assessment, StepError> {
    Ok(decide(&detect(cx).await?, cx.desired))
}

#[cfg(test)]
mod tests {
    use super::{DenyState, content, decide, has_none};
    use crate::{change::Change, steps::fixtures::desired};

    #[test]
    fn initramfs_is_rebuilt_only_if_needed() {
        let want = desired();
        let (_, changes) = decide(&DenyState::default(), &want).expect_needs();
        assert!(matches!(&changes[..], [Change::WriteFile { .. }]));
        let inside = DenyState {
            content: Some(content(&want.deny_modules)),
            initramfs_with_denied: vec!["6.1.0-44-amd64".into()],
        };
        let (_, changes) = decide(&inside, &want).expect_needs();
        assert!(
            matches!(&changes[..], [Change::RebuildInitramfs { kernels }] if kernels.len() == 1)
        );
        let good = DenyState {
            content: Some(content(&want.deny_modules)),
            initramfs_with_denied: vec![],
        };
        decide(&good, &want).expect_satisfied();
    }

    #[test]
    fn kernel_without_the_driver_needs_no_rebuild() {
        let modules = ["nouveau".to_owned(), "nova_core".to_owned()];
        let cloud = "kernel/net/ipv4/udp_tunnel.ko.zst:\nupdates/dkms/nvidia.ko.zst:\n";
        assert!(has_none(cloud, &modules));
        for path in ["nouveau/nouveau.ko.zst", "nova/nova-core.ko"] {
            let list =
                format!("{cloud}kernel/drivers/gpu/drm/{path}: kernel/drivers/acpi/video.ko\n");
            assert!(!has_none(&list, &modules), "{path}");
        }
        assert!(
            !has_none("", &modules),
            "a killed depmod leaves an empty list"
        );
    }

    #[test]
    fn loading_by_name_is_blocked() {
        let text = content(&["nouveau".into()]);
        assert!(text.contains("blacklist nouveau\n"));
        assert!(text.contains("install nouveau /bin/false\n"));
    }
}
