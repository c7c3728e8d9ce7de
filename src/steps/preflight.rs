//! `preflight`: conditions for the first change. All are checked and reported together, so that all problems can be fixed
//! before the next attempt.

use std::time::Duration;

use camino::Utf8Path;

use super::{
    PREFLIGHT,
    driver_packages::adopts,
    messages, packages,
    partial_install::here,
    specs::{InstalledPackages, compare},
};
use crate::{
    change::{Change, Lock},
    config::desired::{Desired, PackageSpec, Purpose},
    facts::{
        Facts,
        detection::{ProviderSetup, table},
    },
    host::{
        FilesError, ReadFiles,
        files::{FreeSpace, Limit},
        view,
    },
    model::{fault::Fault, text::bytes},
    runtimes::choice,
    state::view::Sandbox,
    step::{Assessment, Cx, Step, StepError},
    tools::mounts,
};

/// Filesystems with a required minimum of free space (`preflight.min-free-root`, `preflight.min-free-boot`).
const ROOT: &str = "/";
const BOOT: &str = "/boot";
/// Paths that must be writable. A read-only path blocks the run before anything is changed. On an image-based system,
/// `/usr` may be a separate read-only mount of the filesystem of `/`.
const WRITTEN: [&str; 5] = ["/etc", ROOT, BOOT, "/usr", "/var"];
/// Tolerance for the clock of the machine that built the image, which may have been ahead.
const CLOCK_SLACK_SECONDS: i64 = 24 * 3600;

/// Divisor: as long as a package is missing, 1/8 of the minimum must be free on each package filesystem.
const LEAST_PART: u64 = 8;

/// The `preflight` step.
pub(super) fn step() -> Step {
    Step::new(PREFLIGHT, |cx| Box::pin(assess(cx))).locks([Lock::Packages])
}

/// Paths for package files, package manager state and container images. [`detect`] adds the download directory of the
/// package manager.
const PACKAGES: [&str; 3] = [ROOT, "/usr", "/var"];

#[derive(Debug, Clone)]
struct PreflightState {
    /// `None` if it is unknown, as in a directory tree.
    root: Option<FreeSpace>,
    boot: Option<FreeSpace>,
    /// Paths of [`WRITTEN`] that are mounted read-only, also for PID 1.
    read_only: Vec<&'static str>,
    /// The sandbox that hides parts of the machine from this process.
    sandbox: Option<Sandbox>,
    /// Filesystems other than `/` that packages are written to, with their mount points.
    others: Vec<(String, FreeSpace)>,
    /// Packages are missing. Also true if this was not checked because there is enough space.
    to_come: bool,
    /// Installed and downloaded bytes of the required packages. 0 if there is enough space without them.
    here: u64,
    now: i64,
    last_package_run: Option<i64>,
    /// Packages that an interrupted package manager left unconfigured. Empty if the database is consistent.
    half_done: Vec<String>,
    /// Provider setup of the node that has not finished.
    setups: Vec<&'static ProviderSetup>,
    /// The reason if the settings must select the container runtimes, and the remedy.
    undecided: Option<Fault>,
}

async fn detect(cx: &Cx<'_>) -> Result<PreflightState, StepError> {
    let files = cx.host.files();
    let (root, boot) = (
        mounts::free_space(files, Utf8Path::new(ROOT))?,
        mounts::free_space(files, Utf8Path::new(BOOT))?,
    );
    let mut paths = PACKAGES.to_vec();
    let downloads = packages::backend(cx).downloads();
    paths.push(downloads.as_str());
    let others: Vec<(String, FreeSpace)> = (mounts::of(files, &paths)?.into_iter())
        // The first entry already contains `/`.
        .skip(1)
        .map(|filesystem| (filesystem.mount.into_string(), filesystem.free_space))
        .collect();
    let mut read_only = Vec::new();
    for path in WRITTEN {
        let path = Utf8Path::new(path);
        let free_space = mounts::free_space(files, path)?;
        if free_space.is_some_and(|free_space| free_space.read_only)
            && !view::is_read_only_here(files, path)?
        {
            read_only.push(path.as_str());
        }
    }
    let mut state = PreflightState {
        root,
        boot,
        read_only,
        sandbox: cx.state.sandbox().await?,
        others,
        to_come: true,
        here: 0,
        now: cx.host.now().as_second(),
        last_package_run: match packages::backend(cx).last_run() {
            Some(path) => files.stat(path)?.map(|stat| stat.mtime),
            None => None,
        },
        half_done: packages::half_done(cx).await?,
        setups: match cx.desired.image {
            true => Vec::new(),
            false => unfinished_setups(files)?,
        },
        undecided: undecided(files, cx.desired)?,
    };
    if !short(&state, cx.desired).is_empty() {
        let installed = packages::installed(cx).await?;
        let requested = requested(&installed, cx.desired, adopts(cx).await);
        state.to_come = !compare(cx.desired.packages.manager, &requested, &installed).all_met();
        state.here = here(
            packages::backend(cx),
            files,
            packages::database(cx).await?,
            &requested,
            &cx.desired.pins,
        )?;
    }
    Ok(state)
}

fn unfinished_setups(files: &dyn ReadFiles) -> Result<Vec<&'static ProviderSetup>, FilesError> {
    let mut unfinished = Vec::new();
    for setup in &table().provider_setup {
        if files.exists(setup.marker.as_str().into())?
            && !files.exists(setup.complete.as_str().into())?
        {
            unfinished.push(setup);
        }
    }
    Ok(unfinished)
}

/// Returns the reason if the settings must select the container runtimes, and the remedy.
fn undecided(files: &dyn ReadFiles, desired: &Desired) -> Result<Option<Fault>, FilesError> {
    let settings = &desired.settings;
    if settings.runtime.r#use.is_some() {
        return Ok(None);
    }
    let cluster = settings.cluster.join.unwrap_or_default().runtimes();
    let present = choice::present(files, Vec::new())?;
    choice::undecided(files, cluster, &present)
}

/// Returns the minimum for each package filesystem as long as a package is missing.
fn least(most: u64) -> u64 {
    most / LEAST_PART
}

/// A filesystem without space or inodes for packages.
struct Shortage {
    why: String,
    /// `None` if more free space helps.
    remedy: Option<String>,
}

impl Shortage {
    fn of_space(why: String) -> Self {
        Self { why, remedy: None }
    }
}

/// Returns the package filesystems without enough space. How much each filesystem needs is only known after the package
/// manager has simulated the transaction. At that point, the exact sizes are compared.
fn short(state: &PreflightState, desired: &Desired) -> Vec<Shortage> {
    let (Some(root), Some(boot)) = (state.root, state.boot) else {
        return Vec::new();
    };
    let want = &desired.settings.preflight;
    // The minimum covers all packages. Packages from an interrupted run need no more space, but some space must stay
    // free for unpacking and building.
    let most = want.min_free_root.bytes();
    let left = most.saturating_sub(state.here).max(least(most));
    let of_each = if state.others.is_empty() {
        left
    } else {
        least(most)
    };
    let mut short = Vec::new();
    let free_spaces = [(ROOT, root, of_each)].into_iter();
    let others =
        (state.others.iter()).map(|(mount, free_space)| (mount.as_str(), *free_space, of_each));
    let boot = [(BOOT, boot, want.min_free_boot.bytes())];
    for (path, free_space, least) in free_spaces.chain(others).chain(boot) {
        if free_space.free < least {
            short.push(Shortage::of_space(format!(
                "`{path}` has {} free, {} required",
                bytes(free_space.free),
                bytes(least)
            )));
        }
    }
    let all = [(ROOT, root)].into_iter();
    let all = all.chain(
        state
            .others
            .iter()
            .map(|(mount, free_space)| (mount.as_str(), *free_space)),
    );
    short.extend(
        (all.filter(|(_, free_space)| free_space.lacks_inodes() && !free_space.read_only)).map(
            |(mount, free_space)| Shortage {
                why: format!("`{mount}` has no free inodes for package files"),
                remedy: Some(Limit::Inodes.remedy(mount.into(), &free_space)),
            },
        ),
    );
    let together = (state.others.iter()).fold(root.free, |sum, (_, free_space)| {
        sum.saturating_add(free_space.free)
    });
    if short.is_empty() && together < left {
        let mounts = state.others.iter().map(|(mount, _)| mount.as_str());
        let names: Vec<String> = ([ROOT].into_iter().chain(mounts))
            .map(|mount| format!("`{mount}`"))
            .collect();
        short.push(Shortage::of_space(format!(
            "{} together have {} free, {} required",
            names.join(", "),
            bytes(together),
            bytes(left)
        )));
    }
    short
}

/// Returns all packages that must be installed on this machine.
fn requested(installed: &InstalledPackages, desired: &Desired, adopts: bool) -> Vec<PackageSpec> {
    let compiles = (desired.driver.as_ref()).is_some_and(|driver| driver.is_compiled());
    let is_wanted = |purpose: &Purpose<'_>| match purpose {
        Purpose::Driver => !adopts,
        Purpose::Headers => !adopts && compiles,
        Purpose::Runtime(spec) => {
            !(spec.alternatives.iter()).any(|name| installed.contains_key(name))
        }
        Purpose::ContainerModules
        | Purpose::Toolkit
        | Purpose::Dcgm
        | Purpose::Rdma
        | Purpose::Cluster => true,
        Purpose::Holds => false,
    };
    (desired.package_groups().into_iter())
        .filter(|(purpose, _)| is_wanted(purpose))
        .flat_map(|(_, packages)| packages)
        .cloned()
        .collect()
}

/// A condition that blocks the run, with its remedy.
struct PreflightIssue {
    why: String,
    hint: String,
    /// The maximum duration of a transient issue. `None` if waiting does not help.
    retryable: Option<Duration>,
}

fn decide(state: &PreflightState, desired: &Desired, facts: &Facts) -> Assessment {
    let preflight_issues = preflight_issues(state, desired, facts);
    if !preflight_issues.is_empty() {
        let whys: Vec<String> = preflight_issues.iter().map(|o| o.why.clone()).collect();
        let mut hints: Vec<&str> = preflight_issues.iter().map(|o| o.hint.as_str()).collect();
        hints.dedup();
        let (why, hint) = (whys.join("; "), hints.join("; "));
        let limits: Option<Vec<Duration>> = preflight_issues.iter().map(|o| o.retryable).collect();
        return match limits.and_then(|limits| limits.into_iter().min()) {
            Some(limit) => Assessment::BlockedNow {
                why,
                hint,
                retryable: Some(limit),
            },
            None => Assessment::blocked(why, hint),
        };
    }
    if !state.half_done.is_empty() {
        return Assessment::needs(
            format!(
                "an earlier package operation was interrupted: {}",
                state.half_done.join(", ")
            ),
            vec![Change::RepairPackages],
        );
    }
    let space = match (state.root, state.boot) {
        (Some(root), Some(boot)) => format!(
            "{} free on `/`, {} on `/boot`",
            bytes(root.free),
            bytes(boot.free)
        ),
        _ => "free space unknown".to_owned(),
    };
    Assessment::satisfied(format!("{space}, package database consistent"))
}

fn preflight_issues(
    state: &PreflightState,
    desired: &Desired,
    facts: &Facts,
) -> Vec<PreflightIssue> {
    let want = &desired.settings.preflight;
    let mut found = Vec::new();
    for path in &state.read_only {
        found.push(PreflightIssue {
            why: format!("`{path}` is mounted read-only"),
            hint: "mount it writable; on an image-based system build the node image with `install --image` instead".into(),
            retryable: None,
        });
    }
    // For an image, only read-only paths matter: it is built without devices, possibly in a mount namespace.
    let concerns = |sandbox: &&Sandbox| !desired.image || !sandbox.view.read_only.is_empty();
    if let Some(sandbox) = state.sandbox.as_ref().filter(concerns) {
        found.push(PreflightIssue {
            why: sandbox.to_string(),
            hint: sandbox.remedy(),
            retryable: None,
        });
    }
    let clean = desired.packages.manager.backend().commands().clean;
    found.extend(
        (short(state, desired).into_iter().filter(|_| state.to_come)).map(|shortage| {
            PreflightIssue {
            why: shortage.why,
            hint: shortage.remedy.unwrap_or_else(|| {
                format!(
                    "free disk space (old kernels, package cache: `{clean}`) or enlarge the disk"
                )
            }),
            retryable: None,
        }
        }),
    );
    if let Some(memory) = facts.memory_bytes
        && memory < want.min_memory.bytes()
    {
        found.push(PreflightIssue {
            why: format!(
                "the machine has {} of memory, {} required",
                bytes(memory),
                bytes(want.min_memory.bytes())
            ),
            hint: "use a larger machine, or lower `preflight.min-memory`".into(),
            retryable: None,
        });
    }
    if let Some(last) = state.last_package_run
        && state.now + CLOCK_SLACK_SECONDS < last
    {
        found.push(PreflightIssue {
            why: format!(
                "the clock is at {}, but packages were installed at {}",
                messages::time(state.now),
                messages::time(last)
            ),
            hint: "run `timedatectl set-ntp true` to set the clock. Certificates and signatures \
                   cannot be checked with a wrong one"
                .into(),
            // NTP may not have synchronized yet.
            retryable: Some(Duration::MAX),
        });
    }
    for setup in &state.setups {
        let ProviderSetup {
            name,
            complete,
            log,
            minutes,
            ..
        } = setup;
        found.push(PreflightIssue {
            why: format!(
                "the node setup of {name} has not finished and may still remove driver files: \
                 `{complete}` does not exist"
            ),
            hint: format!("run the command again when this file exists. Progress is in `{log}`"),
            retryable: Some(Duration::from_secs(minutes * 60)),
        });
    }
    if let Some(Fault { why, remedy: hint }) = state.undecided.clone() {
        found.push(PreflightIssue {
            why,
            hint,
            retryable: None,
        });
    }
    // If a driver is selected, an image can be built on a machine without a GPU.
    let is_for_others = desired.image && desired.driver.is_some();
    let has_gpus = !(facts.gpus.is_empty() && desired.assume_gpus.is_empty());
    if !(has_gpus || is_for_others || desired.settings.is_gpu_optional()) {
        found.push(PreflightIssue {
            why: "no NVIDIA GPU is on the PCI bus".into(),
            hint: "run `lspci -d 10de:` to list the GPUs. For an image, specify the GPUs of its \
                   instances with `--image --assume-gpu PCI-ID`. For a pool with CPU nodes, set \
                   `gpu = \"optional\"`"
                .into(),
            retryable: None,
        });
    }
    found
}

async fn assess(cx: &Cx<'_>) -> Result<Assessment, StepError> {
    Ok(decide(&detect(cx).await?, cx.desired, cx.facts))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{
        InstalledPackages, PreflightState, bytes, compare, decide, here, requested, undecided,
        unfinished_setups,
    };
    use crate::{
        change::Change,
        config::{desired::Desired, values::GpuNeed},
        host::{
            fake,
            files::{FreeSpace, Inodes},
            view::PrivateView,
        },
        state::view::Sandbox,
        step::Assessment,
        steps::{
            fixtures::{desired, facts},
            specs::{InstalledPackage, fixtures::specs},
        },
        tools::packages::Manager,
    };

    const GIB: u64 = 1 << 30;

    fn free_space(free: u64) -> FreeSpace {
        FreeSpace {
            total: 100 * GIB,
            free,
            read_only: false,
            inodes: None,
        }
    }

    fn state() -> PreflightState {
        PreflightState {
            root: Some(free_space(50 * GIB)),
            boot: Some(free_space(GIB)),
            read_only: vec![],
            sandbox: None,
            others: vec![],
            to_come: true,
            here: 0,
            now: 1_790_000_000,
            last_package_run: Some(1_780_000_000),
            half_done: vec![],
            setups: vec![],
            undecided: None,
        }
    }

    fn blocked(state: &PreflightState) -> (String, String) {
        match decide(state, &desired(), &facts()) {
            Assessment::Blocked { why, hint }
            | Assessment::BlockedByOldLists { why, hint }
            | Assessment::BlockedNow { why, hint, .. } => (why, hint),
            other => panic!("must be blocked: {other:?}"),
        }
    }

    #[test]
    fn clock_may_be_one_day_behind() {
        let behind = |seconds: i64| PreflightState {
            last_package_run: Some(state().now + seconds),
            ..state()
        };
        decide(&behind(24 * 3600), &desired(), &facts()).expect_satisfied();
        let (why, hint) = blocked(&behind(24 * 3600 + 1));
        assert!(why.starts_with("the clock is at"), "{why}");
        assert!(hint.contains("timedatectl"), "{hint}");
    }

    #[test]
    fn unfinished_provider_setup_delays_the_run() {
        let (host, fakes) = fake::host();
        let setups = || unfinished_setups(&*host.files).expect("files");
        assert!(setups().is_empty());
        fakes.files.put(
            "/opt/azure/aks-gpu/dkms-marker",
            "driver_version=580.159.04",
        );
        let mut early = state();
        early.setups = setups();
        let (why, _, retryable) = decide(&early, &desired(), &facts()).expect_blocked_now();
        assert!(
            why.contains("`/opt/azure/containers/provision.complete`"),
            "{why}"
        );
        assert_eq!(retryable, Some(Duration::from_secs(20 * 60)));
        // A permanent issue blocks at once.
        early.read_only = vec!["/usr"];
        decide(&early, &desired(), &facts()).expect_blocked();
        fakes
            .files
            .put("/opt/azure/containers/provision.complete", "");
        assert!(setups().is_empty());
    }

    #[test]
    fn a_good_machine_passes() {
        decide(&state(), &desired(), &facts()).expect_satisfied();
    }

    #[test]
    fn all_obstacles_are_reported_together() {
        let mut bad = state();
        bad.root = Some(free_space(GIB / 2));
        bad.read_only = vec!["/boot", "/usr"];
        bad.now = 1_700_000_000;
        let (why, hint) = blocked(&bad);
        assert!(why.contains("`/` has 512.0 MiB free"), "{why}");
        assert!(
            why.contains("`/boot` is mounted read-only; `/usr` is mounted"),
            "{why}"
        );
        assert!(why.contains("the clock is at 2023-11-14"), "{why}");
        assert!(hint.contains("timedatectl"), "{hint}");
    }

    #[test]
    fn unit_sandbox_is_reported_as_the_cause() {
        let mut private = state();
        private.sandbox = Some(Sandbox {
            view: PrivateView {
                unit: Some("setup.service".into()),
                read_only: vec!["/run", "/etc"],
                devices: true,
            },
            settings: vec!["ProtectSystem=strict".into(), "PrivateDevices=yes".into()],
        });
        let (why, hint) = blocked(&private);
        assert_eq!(
            why,
            "`setup.service` has a private view of the machine: `/run`, `/etc` read-only and a \
             private `/dev`, caused by `ProtectSystem=strict`, `PrivateDevices=yes`"
        );
        assert!(hint.contains("`systemctl edit setup.service`"), "{hint}");
        // An image is built without devices.
        let sandbox = private.sandbox.as_mut().expect("a sandbox");
        sandbox.view.read_only.clear();
        let mut want = desired();
        want.image = true;
        decide(&private, &want, &facts()).expect_satisfied();
        decide(&private, &desired(), &facts()).expect_blocked();
    }

    #[test]
    fn missing_inodes_are_not_reported_as_missing_space() {
        let mut used_up = state();
        let inodes = Some(Inodes {
            total: 65_536,
            free: 3,
        });
        used_up.others = vec![(
            "/usr".into(),
            FreeSpace {
                inodes,
                ..free_space(50 * GIB)
            },
        )];
        let (why, hint) = blocked(&used_up);
        assert_eq!(why, "`/usr` has no free inodes for package files");
        assert!(hint.contains("3 of 65536 inodes free"), "{hint}");
        assert!(!hint.contains("enlarge the disk"), "{hint}");
        used_up.to_come = false;
        decide(&used_up, &desired(), &facts()).expect_satisfied();
    }

    #[test]
    fn each_package_filesystem_needs_space() {
        let most = desired().settings.preflight.min_free_root.bytes();
        let mut split = state();
        // A small root filesystem is sufficient if packages are installed elsewhere.
        split.root = Some(free_space(most / 4));
        split.others = vec![
            ("/usr".into(), free_space(most)),
            ("/var".into(), free_space(most)),
        ];
        decide(&split, &desired(), &facts()).expect_satisfied();
        split.others[1].1 = free_space(most / 9);
        let (why, hint) = blocked(&split);
        let wanted = bytes(most / 8);
        assert!(why.starts_with("`/var` has "), "{why}");
        assert!(why.ends_with(&format!("free, {wanted} required")), "{why}");
        assert!(hint.contains("free disk space"), "{hint}");
        split.others = vec![
            ("/usr".into(), free_space(most / 4)),
            ("/var".into(), free_space(most / 4)),
        ];
        let (why, _) = blocked(&split);
        assert!(
            why.starts_with("`/`, `/usr`, `/var` together have "),
            "{why}"
        );
        split.here = most / 2;
        decide(&split, &desired(), &facts()).expect_satisfied();
    }

    #[test]
    fn installed_packages_need_no_space() {
        let mut full = state();
        full.root = Some(free_space(GIB / 2));
        blocked(&full);
        full.to_come = false;
        decide(&full, &desired(), &facts()).expect_satisfied();

        let want = desired();
        let to_come = |installed: &InstalledPackages| {
            let requested = requested(installed, &want, false);
            !compare(want.packages.manager, &requested, installed).all_met()
        };
        assert!(to_come(&InstalledPackages::new()));
        let complete: InstalledPackages = (want.package_groups().into_iter())
            .flat_map(|(_, packages)| packages)
            .map(|spec| {
                let version = spec.version.as_deref().unwrap_or("1").replace('*', "1");
                let package = InstalledPackage {
                    version,
                    further: Vec::new(),
                    held: false,
                    complete: true,
                };
                (spec.name.clone(), package)
            })
            .collect();
        assert!(!to_come(&complete));
        // A kept driver needs neither driver packages nor headers, and a driver that is not compiled needs no headers.
        let mut packaged = desired();
        if let Some(driver) = &mut packaged.driver {
            driver.compiled_as = None;
        }
        let names = |want: &Desired, adopts| -> Vec<String> {
            let all = requested(&InstalledPackages::new(), want, adopts).into_iter();
            all.map(|spec| spec.name).collect()
        };
        let has = |names: &[String], name: &str| names.iter().any(|one| one == name);
        let (headers, driver) = ("linux-headers-6.1.0-44-amd64", "nvidia-smi");
        for (names, with_headers, with_driver) in [
            (names(&want, false), true, true),
            (names(&want, true), false, false),
            (names(&packaged, false), false, true),
        ] {
            let found = (has(&names, headers), has(&names, driver));
            assert_eq!(found, (with_headers, with_driver), "{names:?}");
        }
    }

    #[test]
    fn packages_of_an_interrupted_run_need_no_space() {
        let mut late = state();
        let most = desired().settings.preflight.min_free_root.bytes();
        late.root = Some(free_space(most / 4));
        blocked(&late);
        late.here = most / 2;
        let (why, _) = blocked(&late);
        let wanted = bytes(most / 2);
        assert!(why.contains(&format!("{wanted} required")), "{why}");
        late.here = most - most / 4;
        decide(&late, &desired(), &facts()).expect_satisfied();
        late.here = 2 * most;
        late.root = Some(free_space(most / 100));
        blocked(&late);
    }

    #[tokio::test]
    async fn only_required_packages_are_counted() {
        let backend = Manager::Apt.backend();
        let archives = backend.downloads();
        let (host, fakes) = fake::host();
        let files = &fakes.files;
        let package = |name: &str, version: &str, kib: u32| {
            format!(
                "Package: {name}\nStatus: install ok installed\nArchitecture: amd64\n\
                 Version: {version}\nInstalled-Size: {kib}\n\n"
            )
        };
        // The driver with its related packages, and Docker.
        let ours = [
            package("nvidia-smi", "535.2-1", 1),
            package("libnvidia-ml1", "535.2-1", 2),
            package("docker.io", "20.10", 4),
        ];
        // An older driver, kernels, another runtime, and invalid UTF-8.
        let others = [
            package("libnvidia-cfg1", "525.1-1", 1000),
            package("linux-image-6.1.0-44-amd64", "6.1", 1000),
            package("linux-headers-6.1.0-43-amd64", "6.1", 1000),
            package("containerd.io", "1.7", 1000),
        ];
        let mut status = (ours.concat() + &others.concat()).into_bytes();
        status.extend(b"Package: x\nMaintainer: J\xf6rg\n");
        files.put("/var/lib/dpkg/status", status);
        // dpkg was killed before it merged this entry.
        files.put(
            "/var/lib/dpkg/updates/0001",
            package("nvidia-kernel-dkms", "535.2-1", 8),
        );
        for (archive, size) in [
            ("nvidia-smi_535.2-1_amd64.deb", 100),
            ("libcuda1_535.2-1_amd64.deb", 200),
            ("nvidia-container-toolkit_1%3a1.20.1-1_amd64.deb", 9000),
            ("nvidia-smi_525.1-1_amd64.deb", 9000),
            ("docker.io_20.10_amd64.deb", 400),
            ("docker.io_20.5_amd64.deb", 9000),
            ("partial", 9000),
        ] {
            files.put(&format!("{archives}/{archive}"), "x".repeat(size));
        }
        let mut want = desired();
        want.pins[0].packages.push("lib*".into());
        let requested = requested(&InstalledPackages::new(), &want, false);
        let database = (backend.database(host.reader()).await)
            .expect("files")
            .expect("a database");
        let come = here(backend, files, &database, &requested, &want.pins).expect("files");
        assert_eq!(come, (1 + 2 + 4 + 8) * 1024 + 100 + 200 + 400);
        // A configured version with an epoch matches the file name of its archive.
        want.pins[0].version = "none".into();
        let requested = specs(&["nvidia-container-toolkit=1:1.20.*"]);
        let come = here(backend, files, &database, &requested, &want.pins).expect("files");
        assert_eq!(come, 9000);
    }

    #[test]
    fn missing_gpu_blocks_unless_optional() {
        let mut none = facts();
        none.gpus.clear();
        let mut want = desired();
        decide(&state(), &want, &none).expect_blocked();
        want.settings.gpu = GpuNeed::Optional;
        decide(&state(), &want, &none).expect_satisfied();
    }

    #[test]
    fn interrupted_package_manager_is_repaired() {
        let mut half = state();
        half.half_done = vec!["nvidia-kernel-dkms is half configured".into()];
        let (_, changes) = decide(&half, &desired(), &facts()).expect_needs();
        assert_eq!(changes, [Change::RepairPackages]);
    }

    #[test]
    fn runtime_that_install_does_not_configure_needs_a_setting() {
        let (host, fakes) = fake::host();
        fakes.files.put("/usr/bin/crio", "");
        let mut want = desired();
        want.settings.runtime.r#use = None;
        let mut state = state();
        state.undecided = undecided(&*host.files, &want).expect("readable");
        let (why, hint) = blocked(&state);
        assert!(why.contains("the only container runtime"), "{why}");
        assert!(hint.contains("`runtime.use = []`"), "{hint}");
        want.settings.runtime.r#use = Some(Vec::new());
        assert_eq!(undecided(&*host.files, &want).expect("readable"), None);
    }
}
