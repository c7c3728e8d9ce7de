//! `preflight`: what must hold before anything is changed. All of it is looked at and reported
//! together, so that a person mends it in one go.

use async_trait::async_trait;
use camino::Utf8Path;

use super::{
    look,
    wishes::{Packages, compare},
};
use crate::{
    change::{Change, Lock},
    config::desired::{Desired, Manager},
    facts::Facts,
    host::files::Room,
    model::{id::StepId, pattern, text::bytes},
    step::{Assessment, Cx, Step, StepError},
    tools::dpkg_status,
};

/// Filesystems that must be writable and have room, with the name of the bound in the profile.
const ROOT: &str = "/";
const BOOT: &str = "/boot";
/// Where configuration is written; a read-only `/etc` is refused before anything else is touched.
const ETC: &str = "/etc";
/// Written by the package manager at its last run: the clock cannot be before it.
const LAST_PACKAGE_RUN: &str = "/var/lib/dpkg/status";
/// Slack for clocks of build machines.
const CLOCK_SLACK_SECONDS: i64 = 24 * 3600;

/// Where apt keeps what it has downloaded and not thrown away yet.
const ARCHIVES: &str = "/var/cache/apt/archives";
/// The part of the bound that is wanted as long as anything is to come: one in so many.
const LEAST_PART: u64 = 8;

/// See the module.
pub struct Preflight;

#[derive(Debug, Clone)]
struct PreflightState {
    root: Room,
    boot: Room,
    etc: Room,
    /// Packages are still to come, or it was not asked because there is room for them.
    to_come: bool,
    /// Bytes of what is wanted that have come already: packages, and archives of packages.
    here: u64,
    now: i64,
    last_package_run: Option<i64>,
    /// What `dpkg --audit` says; empty when the database is consistent.
    half_done: Vec<String>,
}

async fn detect(cx: &Cx<'_>) -> Result<PreflightState, StepError> {
    let files = cx.host.files();
    let (root, boot) = (
        files.room(Utf8Path::new(ROOT))?,
        files.room(Utf8Path::new(BOOT))?,
    );
    let want = &cx.desired.preflight;
    let short = root.free < want.min_free_root_bytes || boot.free < want.min_free_boot_bytes;
    Ok(PreflightState {
        root,
        boot,
        etc: files.room(Utf8Path::new(ETC))?,
        to_come: !short || to_come(&look::packages(cx).await?, cx.desired, cx.facts),
        here: if short { here(cx)? } else { 0 },
        now: cx.host.now().as_second(),
        last_package_run: files
            .stat(Utf8Path::new(LAST_PACKAGE_RUN))?
            .map(|stat| stat.mtime),
        half_done: look::half_done(cx).await?,
    })
}

/// Bytes of wanted packages that are unpacked, and of their archives.
fn here(cx: &Cx<'_>) -> Result<u64, StepError> {
    if !audits(cx.desired.packages.manager) {
        return Ok(0);
    }
    let files = cx.host.files();
    let wanted = |name: &str| {
        let patterns = &cx.desired.hold.patterns;
        patterns.iter().any(|one| pattern::matches(one, name))
    };
    let text = files.read_text(dpkg_status::PATH.into())?;
    let unpacked: u64 = dpkg_status::parse(&text.unwrap_or_default())
        .iter()
        .filter(|package| package.is_unpacked() && wanted(&package.name))
        .map(|package| package.installed_bytes)
        .sum();
    let mut archives = 0;
    for name in files.list(ARCHIVES.into())? {
        // `NAME_VERSION_ARCHITECTURE.deb`.
        let package = name.split('_').next().unwrap_or_default();
        if name.ends_with(".deb")
            && wanted(package)
            && let Some(stat) = files.stat(&Utf8Path::new(ARCHIVES).join(&name))?
        {
            archives += stat.size;
        }
    }
    Ok(unpacked + archives)
}

/// Whether packages that are wanted are not there yet.
fn to_come(installed: &Packages, desired: &Desired, facts: &Facts) -> bool {
    let driver = (desired.driver.as_ref()).filter(|_| !look::adopts(desired, facts));
    let headers = driver.is_some_and(|driver| driver.dkms.is_some());
    let elsewhere = |names: &[String]| names.iter().any(|name| installed.contains_key(name));
    let runtimes = desired.runtimes.iter();
    driver
        .map(|driver| &driver.packages)
        .into_iter()
        .chain(headers.then_some(&desired.headers))
        .chain(desired.persistence.iter().map(|wish| &wish.packages))
        .chain(
            runtimes
                .filter(|wish| !elsewhere(&wish.alternatives))
                .map(|wish| &wish.packages),
        )
        .chain(desired.toolkit.iter().map(|wish| &wish.packages))
        .any(|wishes| !compare(wishes, installed).all_met())
}

/// Something that stands in the way, with what helps.
struct Obstacle {
    why: String,
    hint: &'static str,
}

fn decide(state: &PreflightState, desired: &Desired, facts: &Facts) -> Assessment {
    let obstacles = obstacles(state, desired, facts);
    if !obstacles.is_empty() {
        let whys: Vec<String> = obstacles.iter().map(|o| o.why.clone()).collect();
        let mut hints: Vec<&str> = obstacles.iter().map(|o| o.hint).collect();
        hints.dedup();
        return Assessment::Blocked {
            why: whys.join("; "),
            hint: hints.join("; "),
        };
    }
    if !state.half_done.is_empty() {
        return Assessment::Needs {
            why: format!(
                "an earlier package operation was interrupted: {}",
                state.half_done.join(", ")
            ),
            changes: vec![Change::RepairPackages],
        };
    }
    Assessment::Satisfied {
        why: format!(
            "{} free on `/`, {} on `/boot`, package database consistent",
            bytes(state.root.free),
            bytes(state.boot.free)
        ),
    }
}

fn obstacles(state: &PreflightState, desired: &Desired, facts: &Facts) -> Vec<Obstacle> {
    let want = &desired.preflight;
    let mut found = Vec::new();
    for (path, room) in [(ETC, state.etc), (ROOT, state.root), (BOOT, state.boot)] {
        if room.read_only {
            found.push(Obstacle {
                why: format!("`{path}` is mounted read-only"),
                hint: "mount it writable; on an image-based system build the node image with \
                       `install --image` instead",
            });
        }
    }
    // The bound is for all that comes. What has come of it, before a run was cut off, needs no
    // more room; what is left keeps some for unpacking and building.
    let most = want.min_free_root_bytes;
    let left = most.saturating_sub(state.here).max(most / LEAST_PART);
    for (path, room, least) in [
        (ROOT, state.root, left),
        (BOOT, state.boot, want.min_free_boot_bytes),
    ] {
        if state.to_come && room.free < least {
            found.push(Obstacle {
                why: format!(
                    "`{path}` has {} free, {} are wanted",
                    bytes(room.free),
                    bytes(least)
                ),
                hint: "free some room (old kernels, package cache: `apt-get clean`) or grow the \
                       disk",
            });
        }
    }
    if let Some(memory) = facts.memory_bytes
        && memory < want.min_memory_bytes
    {
        found.push(Obstacle {
            why: format!(
                "the machine has {} of memory, {} are wanted",
                bytes(memory),
                bytes(want.min_memory_bytes)
            ),
            hint: "take a larger machine, or lower `preflight.min-memory-bytes`",
        });
    }
    if let Some(last) = state.last_package_run
        && state.now + CLOCK_SLACK_SECONDS < last
    {
        found.push(Obstacle {
            why: format!(
                "the clock says {}, but packages were installed at {}",
                look::time(state.now),
                look::time(last)
            ),
            hint: "set the clock (`timedatectl set-ntp true`); certificates and signatures \
                   cannot be checked with a wrong one",
        });
    }
    if facts.gpus.is_empty() && desired.assume_gpus.is_empty() && !want.allow_no_gpu {
        found.push(Obstacle {
            why: "no NVIDIA GPU is on the PCI bus".into(),
            hint: "look at `lspci -d 10de:`; for an image name the GPUs of its instances with \
                   `--image --assume-gpu PCI-ID`, for a pool with CPU nodes set \
                   `preflight.allow-no-gpu = true`",
        });
    }
    found
}

#[async_trait]
impl Step for Preflight {
    fn id(&self) -> StepId {
        super::PREFLIGHT
    }

    fn title(&self) -> &'static str {
        "Preconditions"
    }

    fn locks(&self) -> &[Lock] {
        &[Lock::Packages]
    }

    async fn assess(&self, cx: &Cx<'_>) -> Result<Assessment, StepError> {
        Ok(decide(&detect(cx).await?, cx.desired, cx.facts))
    }
}

/// Whether the package manager keeps a database that can be audited without running it.
pub(super) fn audits(manager: Manager) -> bool {
    matches!(manager, Manager::Apt)
}

#[cfg(test)]
mod tests {
    use super::{Packages, PreflightState, bytes, decide, to_come};
    use crate::{
        change::Change,
        host::files::Room,
        step::Assessment,
        steps::{
            fixtures::{desired, facts},
            wishes::Package,
        },
    };

    const GIB: u64 = 1 << 30;

    fn room(free: u64) -> Room {
        Room {
            total: 100 * GIB,
            free,
            read_only: false,
        }
    }

    fn state() -> PreflightState {
        PreflightState {
            root: room(50 * GIB),
            boot: room(GIB),
            etc: room(50 * GIB),
            to_come: true,
            here: 0,
            now: 1_790_000_000,
            last_package_run: Some(1_780_000_000),
            half_done: vec![],
        }
    }

    fn blocked(state: &PreflightState) -> (String, String) {
        match decide(state, &desired(), &facts()) {
            Assessment::Blocked { why, hint } => (why, hint),
            other => panic!("must be blocked: {other:?}"),
        }
    }

    #[test]
    fn a_good_machine_passes() {
        assert!(matches!(
            decide(&state(), &desired(), &facts()),
            Assessment::Satisfied { .. }
        ));
    }

    #[test]
    fn each_obstacle_is_named_and_all_at_once() {
        let mut bad = state();
        bad.root = room(GIB / 2);
        bad.boot = Room {
            read_only: true,
            ..room(GIB)
        };
        bad.now = 1_700_000_000;
        let (why, hint) = blocked(&bad);
        assert!(why.contains("`/` has 512.0 MiB free"), "{why}");
        assert!(why.contains("`/boot` is mounted read-only"), "{why}");
        assert!(why.contains("the clock says 2023-11-14"), "{why}");
        assert!(hint.contains("timedatectl"), "{hint}");
    }

    #[test]
    fn what_is_installed_needs_no_more_room() {
        let mut full = state();
        full.root = room(GIB / 2);
        blocked(&full);
        full.to_come = false;
        assert!(matches!(
            decide(&full, &desired(), &facts()),
            Assessment::Satisfied { .. }
        ));

        let want = desired();
        assert!(to_come(&Packages::new(), &want, &facts()));
        let driver = want.driver.iter().map(|wish| &wish.packages);
        let complete: Packages = driver
            .chain([&want.headers])
            .chain(want.persistence.iter().map(|wish| &wish.packages))
            .chain(want.runtimes.iter().map(|wish| &wish.packages))
            .chain(want.toolkit.iter().map(|wish| &wish.packages))
            .flatten()
            .map(|wish| {
                let version = wish.version.as_deref().unwrap_or("1").replace('*', "1");
                let package = Package {
                    version,
                    held: false,
                    complete: true,
                };
                (wish.name.clone(), package)
            })
            .collect();
        assert!(!to_come(&complete, &want, &facts()));
    }

    #[test]
    fn what_has_come_before_a_run_was_cut_off_needs_no_more_room() {
        let mut late = state();
        let most = desired().preflight.min_free_root_bytes;
        late.root = room(most / 4);
        blocked(&late);
        late.here = most / 2;
        let (why, _) = blocked(&late);
        let wanted = bytes(most / 2);
        assert!(why.contains(&format!("{wanted} are wanted")), "{why}");
        late.here = most - most / 4;
        assert!(matches!(
            decide(&late, &desired(), &facts()),
            Assessment::Satisfied { .. }
        ));
        late.here = 2 * most;
        late.root = room(most / 100);
        blocked(&late);
    }

    #[test]
    fn no_gpu_blocks_unless_it_is_expected() {
        let mut none = facts();
        none.gpus.clear();
        let mut want = desired();
        assert!(matches!(
            decide(&state(), &want, &none),
            Assessment::Blocked { .. }
        ));
        want.preflight.allow_no_gpu = true;
        assert!(matches!(
            decide(&state(), &want, &none),
            Assessment::Satisfied { .. }
        ));
    }

    #[test]
    fn an_interrupted_package_manager_is_repaired() {
        let mut half = state();
        half.half_done = vec!["nvidia-kernel-dkms is half configured".into()];
        let Assessment::Needs { changes, .. } = decide(&half, &desired(), &facts()) else {
            panic!("must be repaired");
        };
        assert_eq!(changes, [Change::RepairPackages]);
    }
}
