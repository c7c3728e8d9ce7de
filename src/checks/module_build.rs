//! Driver modules of the running kernel that are missing, and their failed builds.

use camino::Utf8Path;

use super::messages;
use crate::{
    check::{REBOOT, Subject},
    dkms,
    facts::Os,
    host::ReadFiles,
    model::{fault::Fault, pattern, text::shell_word},
    state::{DriverPart, nvidia_module, owner},
    step::StepError,
    tools::{
        kmod,
        packages::{Manager, Package},
    },
};

/// Returns the reason why the running kernel has no NVIDIA module, if it is known: DKMS cannot build it, only another kernel
/// has one, or the module is a dangling symlink.
///
/// `is_bound`: a driver is bound to a GPU.
pub(super) async fn without_module(
    subject: &Subject<'_>,
    is_bound: bool,
) -> Result<Option<Fault>, StepError> {
    let files = subject.host.files();
    let os = subject.facts.os.as_ref();
    let Some(running) = &subject.facts.kernel.running else {
        return Ok(None);
    };
    let running = running.to_string();
    let module = |kernel: &str| has_module_of(files, kernel);
    // Without any modules of this kernel, the state is unknown.
    if module(&running)? != Some(false) {
        return Ok(None);
    }
    let why = format!("the running kernel {running} has no NVIDIA module");
    let dkms = (subject.state.packages_like(&["dkms"]).await).unwrap_or_default();
    // If the DKMS version is unknown, a directory without source is also reported, because the message contains the affected
    // versions.
    let ends_at_it = dkms
        .first()
        .is_none_or(|(_, version)| dkms::ends_at_module_without_source(version));
    let id = (subject.facts.gpus.first()).map_or(String::new(), |gpu| gpu.pci_id.to_string());
    let failed = dkms::failed(files)?.into_iter();
    for dkms::FailedBuild { version, log, .. } in failed.filter(dkms::FailedBuild::is_driver) {
        let text = files.read(&log)?.unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        if dkms::kernel_of_log(&text).is_some_and(|kernel| kernel != running) {
            continue;
        }
        let why = format!("DKMS did not build driver {version} for the running kernel {running}");
        let refusal = match dkms::failure(&text) {
            Some((cause, remedy)) => {
                let command = match cause {
                    dkms::OLD_COMPILER => compiler_command(subject)?,
                    dkms::NO_HEADERS => headers_command(files, os, &running)?,
                    _ => None,
                };
                let remedy = match command {
                    Some(command) => {
                        format!("run `{command} && dkms autoinstall && modprobe nvidia`")
                    }
                    None => format!("{remedy}, then run `dkms autoinstall`"),
                };
                Fault::new(
                    format!("{why}: {cause}"),
                    format!("{remedy}; `{log}` contains the errors"),
                )
            }
            None => {
                let other = format!(
                    "install a driver that supports this kernel (`gpu-bootstrap compat --gpu {id} --kernel {running}`)"
                );
                // A GPU that is bound to another driver gets the module at the next boot.
                let load = match is_bound {
                    true => REBOOT,
                    false => "modprobe nvidia",
                };
                Fault::new(
                    why,
                    match upgrade_command(subject, &version).await? {
                        Some(command) => format!(
                            "run `{command} && dkms autoinstall && {load}`, which upgrades the driver if its branch has a newer \
                             version, and builds it again; if the build fails again, read the end of `{log}`, and {other}"
                        ),
                        None => format!(
                            "read the end of `{log}`; install the headers of this kernel, or {other}"
                        ),
                    },
                )
            }
        };
        return Ok(Some(refusal));
    }
    if let Some(gone) = dkms::without_source(files)?.filter(|_| ends_at_it) {
        let directory = format!("{}/{gone}", dkms::TREE);
        return Ok(Some(Fault::new(
            format!(
                "{why}; DKMS before 3.1 does not build any module while `{directory}` has no source"
            ),
            format!(
                "remove the directory `{directory}`, which is left over from a removed package, then run `dkms autoinstall`, \
                 which needs the headers of this kernel"
            ),
        )));
    }
    let build = kmod::directory_of(&running).join("build");
    let headers = headers_command(files, os, &running)?;
    // If a kernel has no `build` link, its headers are elsewhere.
    let lacks_headers = files.stat(&build)?.is_some() && !files.exists(&build)?;
    if let (Some(version), true) = (dkms::added(files)?, lacks_headers) {
        let others = files.list(Utf8Path::new("/usr/src/kernels"))?;
        let others = match &others[..] {
            [] => String::new(),
            others => format!("; headers of {} are installed", others.join(", ")),
        };
        return Ok(Some(Fault::new(
            format!(
                "DKMS cannot build driver {version}: no headers of the running kernel {running} are installed{others}"
            ),
            format!(
                "{}; if the package is no longer available, upgrade the kernel and reboot",
                match headers {
                    Some(headers) =>
                        format!("run `{headers} && dkms autoinstall && modprobe nvidia`"),
                    None =>
                        "install the headers of this kernel, then run `dkms autoinstall`".to_owned(),
                }
            ),
        )));
    }
    for kernel in files.list(Utf8Path::new(kmod::DIRECTORY))? {
        if kernel != running && module(&kernel)? == Some(true) {
            let is_bootable = files.exists(format!("/boot/vmlinuz-{kernel}").as_str().into())?
                || files.exists(&kmod::directory_of(&kernel).join("vmlinuz"))?;
            let boot = match is_bootable {
                true => format!(", or boot {kernel}"),
                false => String::new(),
            };
            let compiled = match dkms::added(files)? {
                Some(_) => Some("dkms autoinstall".to_owned()),
                None => compiled_stream(files, os)?,
            };
            let build = match (headers, compiled) {
                (Some(headers), Some(compiled)) => {
                    format!("run `{headers} && {compiled} && modprobe nvidia`")
                }
                _ => format!(
                    "install the driver module for {running} (the package for this kernel, or DKMS and the headers of \
                     this kernel)"
                ),
            };
            return Ok(Some(Fault::new(
                format!("{why}; only {kernel} has one"),
                format!("{build}{boot}"),
            )));
        }
    }
    Ok(kmod::dangling(files, &running)?.map(|(link, target)| {
        // `/lib/modules/KERNEL/extra/nvidia.ko`
        let other = (target.as_str())
            .strip_prefix(kmod::DIRECTORY)
            .and_then(|rest| rest.split('/').nth(1));
        let (of, boot) = match other {
            Some(other) => (
                format!("kernel {other}"),
                format!("or install and boot kernel {other}"),
            ),
            None => (
                format!("`{target}`"),
                "or install the package of this file".to_owned(),
            ),
        };
        Fault::new(
            format!(
                "the NVIDIA module of the running kernel {running} is a dangling symlink to {of}; `{link}` points to \
                 `{target}`, which does not exist"
            ),
            format!(
                "install the driver module for {running} (a newer package, or DKMS, which needs the headers of this \
                 kernel), {boot}"
            ),
        )
    }))
}

/// Whether a kernel has an NVIDIA module: in `modules.dep`, or as a file in the directories of packages, DKMS and the `.run`
/// installer. `None` if the kernel has no modules.
pub(super) fn has_module_of(
    files: &dyn ReadFiles,
    kernel: &str,
) -> Result<Option<bool>, StepError> {
    if let Some(list) = files.read_text(&kmod::list_of(kernel))? {
        return Ok(Some(nvidia_module(&list).is_some()));
    }
    let directory = kmod::directory_of(kernel);
    if files.list(&directory)?.is_empty() {
        return Ok(None);
    }
    for below in kmod::MODULE_FOLDERS {
        let names = files.list(&directory.join(below))?;
        if names.iter().any(|name| kmod::is_nvidia_module(name)) {
            return Ok(Some(true));
        }
    }
    Ok(Some(false))
}

/// Returns the command that installs the headers of a kernel on this machine.
fn headers_command(
    files: &dyn ReadFiles,
    os: Option<&Os>,
    kernel: &str,
) -> Result<Option<String>, StepError> {
    let manager = messages::manager(files, os)?;
    Ok(manager.map(|one| {
        one.backend()
            .commands()
            .headers
            .replace("KERNEL", &shell_word(kernel))
    }))
}

/// Returns the command that installs the compiler of the running kernel, if it is a package that is not installed.
fn compiler_command(subject: &Subject<'_>) -> Result<Option<String>, StepError> {
    let files = subject.host.files();
    let manager = messages::manager(files, subject.facts.os.as_ref())?;
    let install = manager.and_then(|one| one.backend().commands().compiler);
    let (Some(install), Some(compiler)) = (install, &subject.facts.kernel.compiler) else {
        return Ok(None);
    };
    // A compiler with only a version there may have no package of this name.
    let banner = files.read_text("/proc/version".into())?;
    let is_named = banner.is_some_and(|banner| banner.contains(compiler));
    let is_there = files.exists(&Utf8Path::new("/usr/bin").join(compiler))?;
    Ok((is_named && !is_there).then(|| install.replace("COMPILER", &shell_word(compiler))))
}

/// Returns the command that upgrades the packages of a driver version.
async fn upgrade_command(
    subject: &Subject<'_>,
    version: &str,
) -> Result<Option<String>, StepError> {
    // Without a readable database, the packages are unknown.
    let parts = subject.state.driver_parts().await.unwrap_or_default();
    let is_of_it = |part: &&DriverPart| part.version.to_string() == version;
    let names: Vec<&str> = (parts.iter().filter(is_of_it))
        .map(|part| part.name.as_str())
        .collect();
    let manager = messages::manager(subject.host.files(), subject.facts.os.as_ref())?;
    let owner = owner(subject.host.files(), subject.facts).map_err(StepError::from)?;
    let is_ours = owner.is_none() && (1..=messages::MOST_NAMES).contains(&names.len());
    Ok(manager.filter(|_| is_ours).map(|manager| {
        let commands = manager.backend().commands();
        format!("{} && {}", commands.refresh, commands.upgrade_all(&names))
    }))
}

/// The module of NVIDIA's repositories with the driver branches as streams.
const STREAMS: &str = "nvidia-driver";

/// Returns the command that replaces precompiled modules, which exist only for some kernels, by modules that are compiled on the
/// machine.
fn compiled_stream(files: &dyn ReadFiles, os: Option<&Os>) -> Result<Option<String>, StepError> {
    let manager = messages::manager(files, os)?;
    let Some(streams) = manager.and_then(|manager| manager.backend().streams()) else {
        return Ok(None);
    };
    let stream = streams.enabled(files, STREAMS)?;
    let id = os.map_or("", |os| os.id.as_str());
    Ok(stream.and_then(|stream| streams.compiled(id, STREAMS, &stream)))
}

/// Whether a package with a driver module is unpacked but not configured, so that the module may be missing.
pub(super) async fn has_unconfigured_module(subject: &Subject<'_>) -> Result<bool, StepError> {
    const MODULES: [&str; 4] = [
        "*nvidia*dkms*",
        "kmod-nvidia*",
        "linux-modules-nvidia*",
        "linux-objects-nvidia*",
    ];
    for manager in Manager::ALL {
        let database = subject.state.database(manager).await?;
        let is_one = |package: &Package| {
            package.needs_repair()
                && MODULES
                    .iter()
                    .any(|one| pattern::matches(one, &package.name))
        };
        if database.unwrap_or_default().iter().any(is_one) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The failed builds of NVIDIA modules.
pub(super) struct FailedBuilds {
    /// The remedy for the first known cause.
    pub remedy: Option<&'static str>,
    /// The builds with their logs, and the cause.
    pub text: String,
    /// The driver of the running kernel was not built, for a known cause.
    pub is_of_driver: bool,
}

/// Returns the failed builds. The kernel is the running one.
pub(super) fn failed_builds(
    files: &dyn ReadFiles,
    running: Option<&str>,
) -> Result<FailedBuilds, StepError> {
    let failed = dkms::failed(files)?;
    let failure = failure(files, &failed, running)?;
    Ok(FailedBuilds {
        remedy: failure.as_ref().map(|failure| failure.remedy),
        text: described(&failed, failure.as_ref().map(|failure| failure.cause)),
        is_of_driver: failure.is_some_and(|failure| failure.is_of_driver),
    })
}

/// A failed build of an NVIDIA module with a known cause.
struct Failure {
    cause: &'static str,
    remedy: &'static str,
    /// The driver of the running kernel was not built.
    is_of_driver: bool,
}

/// Returns the first failed build whose log contains a known cause.
fn failure(
    files: &dyn ReadFiles,
    failed: &[dkms::FailedBuild],
    running: Option<&str>,
) -> Result<Option<Failure>, StepError> {
    for one in failed {
        let log = files.read_lossy(&one.log)?.unwrap_or_default();
        let Some((cause, remedy)) = dkms::failure(&log) else {
            continue;
        };
        let is_of_driver = one.is_driver()
            && dkms::kernel_of_log(&log).is_none_or(|kernel| Some(kernel) == running);
        return Ok(Some(Failure {
            cause,
            remedy,
            is_of_driver,
        }));
    }
    Ok(None)
}

/// Describes the failed builds of unconfigured packages.
fn described(failed: &[dkms::FailedBuild], cause: Option<&str>) -> String {
    let told: Vec<String> = (failed.iter())
        .map(|one| format!("{} {} (`{}`)", one.module, one.version, one.log))
        .collect();
    match cause {
        _ if told.is_empty() => {
            "if a module build fails, the output contains the path of its `make.log`".to_owned()
        }
        Some(cause) => format!("DKMS did not build {}: {cause}", told.join(", ")),
        None => format!(
            "DKMS did not build {}: read the errors in the log, and install the kernel headers or a version that supports \
             this kernel",
            told.join(", ")
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::has_module_of;

    #[test]
    fn module_is_found_without_the_list_of_depmod() {
        let files = crate::host::fake::FakeFiles::new();
        files.put("/lib/modules/6.1.0-a/extra/nvidia.ko.xz", "");
        files.put("/lib/modules/6.1.0-b/updates/dkms/nvidia-current.ko", "");
        files.put("/lib/modules/6.1.0-c/kernel/drivers/gpu/drm.ko", "");
        files.put("/lib/modules/6.1.0-d/extra/nvidia.ko", "");
        files.put(
            "/lib/modules/6.1.0-d/modules.dep",
            "kernel/drivers/gpu/drm.ko:\n",
        );
        for (kernel, found) in rows! {
            "6.1.0-a", Some(true);
            "6.1.0-b", Some(true);
            "6.1.0-c", Some(false);
            "6.1.0-d", Some(false);
            "6.1.0-e", None;
        } {
            assert_eq!(has_module_of(&files, kernel).unwrap(), found, "{kernel}");
        }
    }
}
