//! Looks that several steps take. Each reads what is there now; nothing is remembered.

use camino::{Utf8Path, Utf8PathBuf};

use super::{
    runtime_config::Effective,
    wishes::{Package, Packages},
};
use crate::{
    config::desired::{Desired, PackageWish, RuntimeKind},
    facts::{Facts, Origin},
    host::{ExecError, Query},
    model::version::DriverVersion,
    step::{Assessment, Cx, StepError},
    tools::{
        containerd, docker, initramfs,
        packages::{self, Backend},
        systemctl::{self, UnitState},
    },
};

pub(super) use crate::tools::packages::HEADER;

/// Version of the loaded module, as the kernel tells it.
const LOADED_VERSION: &str = "/sys/module/nvidia/version";
/// What containerd reads first.
const CONTAINERD_CONFIG: &str = "/etc/containerd/config.toml";
/// Loaded modules, one a line, the name first.
const PROC_MODULES: &str = "/proc/modules";

/// The answer of every step about the driver when none is wanted.
pub(super) fn no_driver() -> Assessment {
    Assessment::NotApplicable {
        why: "no driver is wanted on this machine".into(),
    }
}

/// Whether a driver that did not come as packages is kept: then nothing is compiled for it.
pub(super) fn adopts(desired: &Desired, facts: &Facts) -> bool {
    desired.driver.as_ref().is_some_and(|driver| driver.adopt)
        && matches!(
            facts.driver.origin,
            Some(Origin::Runfile | Origin::Preinstalled)
        )
}

/// Seconds since 1970 for people.
pub(super) fn time(seconds: i64) -> String {
    jiff::Timestamp::from_second(seconds).map_or_else(
        |_| format!("{seconds} s after 1970"),
        |at| at.strftime("%Y-%m-%d %H:%M:%S UTC").to_string(),
    )
}

/// The first few of many names.
pub(super) fn some(names: &[&str]) -> String {
    const SHOWN: usize = 4;
    match names.len().checked_sub(SHOWN) {
        None | Some(0) => names.join(", "),
        Some(more) => format!("{} and {more} more", names[..SHOWN].join(", ")),
    }
}

/// How many GPUs, for people: as an object.
pub(super) fn count(facts: &Facts) -> String {
    match facts.gpus.len() {
        1 => "1 GPU".into(),
        n => format!("{n} GPUs"),
    }
}

/// How many GPUs, for people: as a subject with its verb.
pub(super) fn gpus(facts: &Facts) -> String {
    match facts.gpus.len() {
        1 => "1 GPU is".into(),
        n => format!("{n} GPUs are"),
    }
}

/// What is known about the machine's package manager.
pub(super) fn backend(cx: &Cx<'_>) -> &'static dyn Backend {
    cx.desired.packages.manager.backend()
}

/// Installed packages, from the database of the machine's package manager.
pub(super) async fn packages(cx: &Cx<'_>) -> Result<Packages, StepError> {
    let mut found = Packages::new();
    for package in database(cx).await? {
        if package.is_unpacked() || package.held {
            found.entry(package.name.clone()).or_insert(Package {
                complete: package.is_installed(),
                held: package.held,
                version: if package.is_unpacked() {
                    package.version
                } else {
                    String::new()
                },
            });
        }
    }
    Ok(found)
}

/// Every package that the package manager knows.
pub(super) async fn database(cx: &Cx<'_>) -> Result<Vec<packages::Package>, StepError> {
    let backend = backend(cx);
    (backend.database(cx.host).await?).ok_or_else(|| StepError::Unexpected {
        what: format!("`{}`", backend.database_path()),
        why: "it is missing".into(),
    })
}

/// What an interrupted package manager left half done, in words.
pub(super) async fn half_done(cx: &Cx<'_>) -> Result<Vec<String>, StepError> {
    let backend = backend(cx);
    if backend.transactions().is_none() {
        return Ok(Vec::new());
    }
    let database = backend.database(cx.host).await?.unwrap_or_default();
    let mut found: Vec<String> = (database.iter())
        .filter(|package| package.needs_repair())
        .map(|package| format!("{} {}", package.name, package.version))
        .collect();
    if found.is_empty()
        && let Some(program) = backend.interrupted(cx.host.files())?
    {
        found.push(format!("{program} was interrupted"));
    }
    Ok(found)
}

/// Which of the packages no repository offers. Empty when there are no package lists yet, or a
/// power cut left them torn: then nobody knows.
pub(super) async fn unavailable(
    cx: &Cx<'_>,
    wishes: &[PackageWish],
) -> Result<Vec<String>, StepError> {
    let (backend, files) = (backend(cx), cx.host.files());
    let Some(transactions) = backend.transactions() else {
        return Ok(Vec::new());
    };
    if wishes.is_empty() || !backend.has_lists(files)? || !backend.torn_lists(files)?.is_empty() {
        return Ok(Vec::new());
    }
    let names: Vec<&str> = wishes.iter().map(|wish| wish.name.as_str()).collect();
    let query = transactions.offers(&names);
    let output = cx.host.query(&query).await?.success(query.cmd())?;
    let offers = transactions.parse_offers(&output.stdout);
    let offered =
        |name: &str| (offers.iter()).any(|offer| offer.name == name && offer.candidate.is_some());
    Ok(names
        .into_iter()
        .filter(|name| !offered(name))
        .map(str::to_owned)
        .collect())
}

/// The state of a unit; `None` if there is no such unit.
pub(super) async fn unit(cx: &Cx<'_>, name: &str) -> Result<Option<UnitState>, StepError> {
    let query = systemctl::show(name);
    let output = cx.host.query(&query).await?.success(query.cmd())?;
    let state = systemctl::parse_show(&output.stdout).ok_or_else(|| StepError::Unexpected {
        what: format!("`{}`", query.cmd().line()),
        why: format!("no unit state in {:?}", output.stdout),
    })?;
    Ok(state.exists().then_some(state))
}

/// The running and the next kernel, without repetition.
pub(super) fn bootable_kernels(facts: &Facts) -> Vec<String> {
    let mut kernels: Vec<String> = [&facts.kernel.running, &facts.kernel.next_boot]
        .into_iter()
        .flatten()
        .map(ToString::to_string)
        .collect();
    kernels.dedup();
    kernels
}

/// Whether an initial RAM filesystem that is listed holds one of the modules and not the file that denies them.
pub(super) async fn initramfs_holds(
    cx: &Cx<'_>,
    listing: &Query,
    modules: &[String],
    denied_by: &str,
) -> Result<bool, StepError> {
    let output = cx.host.query(listing).await?.success(listing.cmd())?;
    let denied = initramfs::has_file(&output.stdout, Utf8Path::new(denied_by));
    Ok(!denied && !initramfs::modules_in(&output.stdout, modules).is_empty())
}

/// Names of the loaded modules.
pub(super) fn loaded_modules(cx: &Cx<'_>) -> Result<Vec<String>, StepError> {
    let text = cx
        .host
        .files()
        .read_text(Utf8Path::new(PROC_MODULES))?
        .unwrap_or_default();
    Ok(text
        .lines()
        .filter_map(|line| line.split(' ').next())
        .map(str::to_owned)
        .collect())
}

/// Version of the loaded driver; `None` if none is loaded.
pub(super) fn loaded_driver(cx: &Cx<'_>) -> Result<Option<DriverVersion>, StepError> {
    let Some(text) = cx.host.files().read_text(Utf8Path::new(LOADED_VERSION))? else {
        return Ok(None);
    };
    text.trim()
        .parse()
        .map(Some)
        .map_err(|error| StepError::Unexpected {
            what: format!("`{LOADED_VERSION}`"),
            why: format!("{error}"),
        })
}

/// The bootable kernels below whose module folder the module is not found. `depmod`'s list names
/// every module file of a kernel, so one small read answers for the whole tree.
pub(super) fn kernels_without(cx: &Cx<'_>, module: &str) -> Result<Vec<String>, StepError> {
    let mut without = Vec::new();
    for kernel in bootable_kernels(cx.facts) {
        let list = Utf8PathBuf::from(format!("/lib/modules/{kernel}/modules.dep"));
        let text = cx.host.files().read_text(&list)?.unwrap_or_default();
        let found = text
            .lines()
            .filter_map(|line| line.split(':').next())
            .any(|path| {
                let name = path.rsplit('/').next().unwrap_or(path);
                name.split_once(".ko")
                    .is_some_and(|(stem, _)| stem == module)
            });
        if !found {
            without.push(kernel);
        }
    }
    Ok(without)
}

/// What a container runtime says about itself.
pub(super) async fn effective(cx: &Cx<'_>, kind: RuntimeKind) -> Result<Effective, StepError> {
    let query = match kind {
        RuntimeKind::Docker => docker::info(),
        RuntimeKind::Containerd => containerd::config_dump(),
    };
    let output = match cx.host.query(&query).await {
        Ok(output) => output,
        Err(ExecError::NotFound { .. }) => return Ok(Effective::Absent),
        Err(error) => return Err(error.into()),
    };
    let words = || {
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
    };
    Ok(match kind {
        RuntimeKind::Docker => match docker::parse_info(&output.stdout) {
            Ok(info) if output.ok() && info.server_errors.is_empty() => Effective::Known {
                lenient: info.is_lenient(),
                runtimes: info.runtimes.into_keys().collect(),
                default: info.default_runtime,
                migrated: false,
            },
            Ok(info) => {
                Effective::Silent(info.server_errors.first().cloned().unwrap_or_else(words))
            }
            Err(_) => Effective::Silent(words()),
        },
        RuntimeKind::Containerd => match containerd::parse_config(&output.stdout) {
            Ok(config) if output.ok() => Effective::Known {
                runtimes: config.runtimes,
                default: config.default_runtime,
                migrated: config.version > containerd_file_version(cx)?,
                lenient: false,
            },
            _ => Effective::Silent(words()),
        },
    })
}

/// The format of containerd's own file; one that is missing is made at version 2.
fn containerd_file_version(cx: &Cx<'_>) -> Result<i64, StepError> {
    let text = cx
        .host
        .files()
        .read_text(Utf8Path::new(CONTAINERD_CONFIG))?;
    Ok(match text {
        None => 2,
        Some(text) => {
            containerd::parse_config(&text)
                .map_err(|why| StepError::Unexpected {
                    what: format!("`{CONTAINERD_CONFIG}`"),
                    why,
                })?
                .version
        }
    })
}
