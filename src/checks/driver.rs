//! Driver checks: support of the GPUs (the rules are in the matrix), security fixes, flavor of the kernel modules, matching
//! component versions, and module options without effect.

use camino::Utf8Path;

use super::{
    messages::{self, INSTALL},
    virt,
};
use crate::{
    check::{Family, Finding, REBOOT, Subject, Verdict},
    compat::{
        board::Board,
        kernel,
        matrix::{Matrix, Support},
        pick::{Constraints, NoDriver, Pick, pick},
        rule_result::{Candidate, Evaluation, Rule, RuleResult},
        rules::{self, Needs},
        security,
    },
    dkms,
    facts::GpuFact,
    host::ReadFiles,
    model::{
        gpu::{Flavor, GpuIdentity, SupportedFlavors},
        id::Id,
        version::{Branch, DriverVersion, KernelVersion},
    },
    state::{FoundDriver, FoundFlavor, Owner, owner},
    step::StepError,
    tools::kmod::{self, ModuleSetting},
};

const SUPPORTED: Id = Id::new("drv.gpu.supported");
const MATRIX: Id = Id::new("drv.version.matrix");
const SECURITY: Id = Id::new("drv.version.security");
const FLAVOR: Id = Id::new("drv.module.flavor");
const MISMATCH: Id = Id::new("drv.version.mismatch");
const OPTIONS: Id = Id::new("drv.module.options");

/// The driver checks.
pub(super) const FAMILY: Family = Family {
    ids: || vec![SUPPORTED, MATRIX, SECURITY, FLAVOR, MISMATCH, OPTIONS],
    examine: |subject| Box::pin(examine(subject)),
};

/// The best driver for the GPUs, or the reason why there is none.
type Best = Result<Pick, Box<NoDriver>>;

/// The driver of a machine.
#[derive(Debug, Clone, Default)]
struct DriverState {
    found: FoundDriver,
    flavor: Option<FoundFlavor>,
    /// The branch that gpu-bootstrap would install.
    wanted: Option<Branch>,
    /// The running kernel.
    kernel: Option<KernelVersion>,
    /// The reason why no GPU is evaluated.
    none: &'static str,
    /// Who manages the driver, if another program does.
    owner: Option<Owner>,
    /// The machine uses a vGPU, whose driver depends on the hypervisor.
    guest: bool,
    /// Akmods builds the modules of the flavor in [`VARIANT_FILE`].
    has_variants: bool,
}

/// The file with the flavor of the modules that akmods builds from the packages of negativo17 and Terra, in the line
/// `MODULE_VARIANT=kernel` or `MODULE_VARIANT=kernel-open`. Source: negativo17/nvidia-driver issue 158.
const VARIANT_FILE: &str = "/etc/nvidia/kernel.conf";

/// Returns the command that builds the modules of another flavor, if the packages contain both.
fn build_variant(state: &DriverState, flavor: Flavor) -> Option<String> {
    let variant = match flavor {
        Flavor::Open => "kernel-open",
        Flavor::Proprietary => "kernel",
    };
    state.has_variants.then(|| {
        format!(
            "run `sed -i 's/^MODULE_VARIANT=.*/MODULE_VARIANT={variant}/' {VARIANT_FILE} && akmods --rebuild && {REBOOT}`, which \
             builds the {flavor} kernel modules of the installed driver; the reboot stops all workloads"
        )
    })
}

/// The text is not "no driver", because a GPU may be bound to a driver whose version was not recorded.
const NO_VERSION: &str = "the driver version is unknown";

/// The remedy if no supported branch supports the GPUs.
const REPLACE: &str = "plan to replace the GPUs: no supported driver branch supports them";

/// The reason why no GPU is evaluated although the machine has GPUs.
const NOT_OURS: &str = "every GPU is a vGPU, or is reserved for virtual machines";

impl DriverState {
    /// Returns the driver version that is used now or after the next boot, and its source.
    fn version(&self) -> Option<(&DriverVersion, &'static str)> {
        let found = &self.found;
        for (version, how) in [
            (&found.loaded_version, "loaded"),
            (&found.module_version, "on disk"),
            (&found.package_version, "in packages"),
            (&found.library_version, "as libraries"),
        ] {
            if let Some(version) = version {
                return Some((version, how));
            }
        }
        None
    }
}

/// Returns the GPUs that the driver of this machine must support. GPUs that are reserved for virtual machines are excluded, and
/// also vGPUs, whose driver version depends on the hypervisor.
fn gpus<'f>(subject: &Subject<'f>) -> Result<Vec<&'f GpuFact>, StepError> {
    let mut found = Vec::new();
    // If the machine is a vGPU guest and no GPU is marked as a vGPU, all its GPUs are vGPUs.
    let is_marked = subject.facts.gpus.iter().any(|gpu| gpu.vgpu);
    if !is_marked && virt::is_guest(subject)? {
        return Ok(found);
    }
    for gpu in &subject.facts.gpus {
        if !gpu.vgpu && !subject.state.is_reserved(gpu.pci_address)? {
            found.push(gpu);
        }
    }
    Ok(found)
}

/// Returns the boards of the GPUs without duplicates.
fn boards<'m>(matrix: &'m Matrix, gpus: &[&GpuFact]) -> Vec<Board<'m>> {
    let mut kinds: Vec<GpuIdentity> = gpus.iter().map(|gpu| gpu.identity()).collect();
    kinds.sort_unstable();
    kinds.dedup();
    let mut boards: Vec<Board<'m>> = kinds.iter().map(|gpu| matrix.board(gpu)).collect();
    boards.dedup_by(|one, other| one.label == other.label);
    boards
}

/// Returns the best driver for the GPUs, regardless of kernel and repositories.
fn best(matrix: &Matrix, gpus: &[&GpuFact]) -> Best {
    let spec = Constraints {
        gpus: gpus.iter().map(|gpu| gpu.identity()).collect(),
        ..Constraints::default()
    };
    pick(matrix, &spec)
}

/// Checks whether a supported branch supports the GPUs.
fn supported(matrix: &Matrix, none: &str, best: Option<&Best>) -> Finding {
    let say = |status, why: String| Finding::new(SUPPORTED, status, why);
    let best = match best {
        None => return say(Verdict::Skip, none.to_owned()),
        Some(Err(no_driver)) => {
            let reasons: Vec<&str> = no_driver.reasons.iter().map(|r| &*r.text).collect();
            if no_driver.unknown {
                return say(Verdict::Unknown, reasons.join("; "));
            }
            return Finding {
                observed: Some("no driver".to_owned()),
                expected: Some("a driver that supports all GPUs".to_owned()),
                remedy: Some(
                    (no_driver.nearest.first().cloned())
                        .unwrap_or_else(|| "run `gpu-bootstrap compat` to see all rules".into()),
                ),
                ..say(
                    Verdict::Fail,
                    format!("no driver supports all GPUs: {}", reasons.join("; ")),
                )
            };
        }
        Some(Ok(best)) => best,
    };
    let support = matrix.branch(best.branch).map(|row| row.support);
    let modules = format!("branch {} with the {} modules", best.branch, best.flavor);
    match support {
        Some(Support::Supported) => say(Verdict::Pass, modules),
        Some(Support::Ended) => Finding {
            observed: Some(modules.clone()),
            expected: Some("a supported branch".to_owned()),
            remedy: Some(REPLACE.to_owned()),
            ..say(
                Verdict::Warn,
                format!("{modules} is the best driver, but it is end-of-life"),
            )
        },
        _ => say(
            Verdict::Pass,
            format!("{modules}; the end-of-life date is unknown"),
        ),
    }
}

/// Returns the strongest rule result above a note, with the texts of all results of this strength.
fn strongest(rule_results: &[RuleResult]) -> Option<(Evaluation, String)> {
    let strongest = (rule_results.iter())
        .map(|rule_result| rule_result.evaluation)
        .filter(|evaluation| *evaluation > Evaluation::Note)
        .max()?;
    let mut texts: Vec<&str> = Vec::new();
    for rule_result in rule_results
        .iter()
        .filter(|one| one.evaluation == strongest)
    {
        if !texts.contains(&rule_result.text.as_str()) {
            texts.push(&rule_result.text);
        }
    }
    Some((strongest, texts.join("; ")))
}

/// Returns the rule results for a driver. Kernel rules are not applied, because the modules of a loaded driver work with the
/// kernel.
fn rule_results(
    matrix: &Matrix,
    boards: &[Board<'_>],
    version: &DriverVersion,
    flavor: Flavor,
) -> Vec<RuleResult> {
    let needs = Needs {
        boards: boards.to_vec(),
        kernels: Vec::new(),
        arch: None,
        cuda: Vec::new(),
        cudnn: None,
        flavor: None,
    };
    let version = version.clone();
    rules::evaluate(matrix, &needs, &Candidate { version, flavor })
}

fn about_modules(rule: Rule) -> bool {
    matches!(rule, Rule::BoardFlavor | Rule::BranchFlavor)
}

/// Returns the remedy if another program manages the driver.
fn owned(owner: &Owner, flavor: Option<Flavor>) -> String {
    match flavor {
        Some(flavor) => format!("for the {flavor} kernel modules: {}", owner.remedy),
        None => owner.remedy.to_owned(),
    }
}

fn remedy(matrix: &Matrix, state: &DriverState, best: Option<&Best>) -> Option<String> {
    if let Some(owner) = &state.owner {
        return Some(owned(owner, None));
    }
    let found = state.version().map(|(version, _)| version);
    let there = found.map(DriverVersion::branch);
    let has_ended = |branch| {
        let row = matrix.branch(branch);
        row.is_some_and(|row| row.support == Support::Ended)
    };
    match best {
        Some(Ok(best)) if has_ended(best.branch) && found >= Some(&best.recommended) => {
            Some(REPLACE.to_owned())
        }
        Some(Ok(best)) if Some(best.branch) == there && state.wanted == there => Some(format!(
            "upgrade the driver packages to the newest version of branch {}",
            best.branch
        )),
        Some(Ok(best)) if state.wanted.is_some() && state.wanted == there => Some(format!(
            "set `driver.branch = {}` and a `driver.source` that has it, then run `gpu-bootstrap \
             install`",
            best.branch
        )),
        Some(Ok(_)) if state.wanted.is_some() => Some(INSTALL.to_owned()),
        Some(Ok(best)) => Some(format!(
            "install a driver of branch {} with the {} kernel modules",
            best.branch, best.flavor
        )),
        Some(Err(no_driver)) => no_driver.nearest.first().cloned(),
        None => None,
    }
}

/// Checks whether the driver version supports the GPUs.
fn version(
    matrix: &Matrix,
    boards: &[Board<'_>],
    state: &DriverState,
    best: Option<&Best>,
) -> Finding {
    let expected = match best {
        Some(Ok(best)) => Some(format!("branch {}", best.branch)),
        _ => None,
    };
    let say = |status, why: String| Finding {
        expected: expected.clone(),
        ..Finding::new(MATRIX, status, why)
    };
    if boards.is_empty() {
        return say(Verdict::Skip, state.none.to_owned());
    }
    let Some((version, how)) = state.version() else {
        return say(Verdict::Skip, NO_VERSION.to_owned());
    };
    // If the flavor is unknown, a flavor that all boards support is used. The results of module rules are removed below.
    let flavor = state.flavor.map_or_else(
        || {
            let open = |board: &Board<'_>| board.modules == SupportedFlavors::Open;
            if boards.iter().any(open) {
                Flavor::Open
            } else {
                Flavor::Proprietary
            }
        },
        |found| found.flavor,
    );
    let mut rule_results = rule_results(matrix, boards, version, flavor);
    // `drv.version.security` reports security fixes and end-of-life branches. vGPUs have their own checks.
    let others = [Rule::Vgpu, Rule::Security, Rule::Support];
    rule_results.retain(|rule_result| {
        !about_modules(rule_result.rule) && !others.contains(&rule_result.rule)
    });
    // A loaded module was built for the kernel, but programs may still fail.
    let report = (state.kernel.as_ref()).and_then(|kernel| {
        kernel::at_work(
            matrix,
            kernel,
            &Candidate {
                version: version.clone(),
                flavor,
            },
        )
    });
    rule_results.extend(report);
    let observed = Some(format!("{version} ({how})"));
    let (evaluation, text) = match strongest(&rule_results) {
        None => {
            let why = format!("{version} supports all GPUs");
            return Finding {
                observed,
                ..say(Verdict::Pass, why)
            };
        }
        Some(strongest) => strongest,
    };
    // A missing row for a GPU or branch is a gap in the matrix, not an error of the driver.
    let is_gap = (rule_results.iter())
        .filter(|rule_result| rule_result.evaluation == evaluation)
        .all(|rule_result| matches!(rule_result.rule, Rule::UnknownGpu | Rule::UnknownBranch));
    let status = match evaluation {
        _ if is_gap => Verdict::Pass,
        Evaluation::Refuse => Verdict::Fail,
        _ => Verdict::Warn,
    };
    let is_bad = status != Verdict::Pass;
    // If the matrix recommends a newer driver for a board, the remedy is this driver instead of the newest version of an older
    // branch.
    let advised = (rule_results.iter())
        .filter(|rule_result| rule_result.evaluation == evaluation)
        .all(|rule_result| rule_result.rule == Rule::AdvisedDriver)
        .then(|| {
            boards
                .iter()
                .filter_map(|board| board.row?.advised_driver.as_ref())
                .max()
        })
        .flatten();
    if let Some(advised) = advised.filter(|_| is_bad && state.owner.is_none()) {
        let branch = advised.branch();
        return Finding {
            observed,
            expected: Some(format!("{advised} or newer")),
            remedy: Some(match state.wanted {
                Some(_) => format!(
                    "set `driver.branch = {branch}`, then run `gpu-bootstrap install`; the installed driver \
                     also works"
                ),
                None => format!("install {advised} or newer; the installed driver also works"),
            }),
            ..say(status, text)
        };
    }
    Finding {
        observed,
        remedy: is_bad.then(|| remedy(matrix, state, best)).flatten(),
        ..say(status, text)
    }
}

/// Compares the installed version with NVIDIA's security bulletins. `other` is the remedy of [`version`], if there is one. Both
/// findings are about the same driver, so they must have the same remedy.
fn secure(
    matrix: &Matrix,
    state: &DriverState,
    other: Option<&str>,
    best: Option<&Best>,
) -> Finding {
    let say = |status, why: String| Finding::new(SECURITY, status, why);
    let Some((version, how)) = state.version() else {
        return say(Verdict::Skip, NO_VERSION.to_owned());
    };
    let observed = Some(format!("{version} ({how})"));
    let branch = version.branch();
    if let Some(ended) = security::end_of_life(matrix, version) {
        return Finding {
            observed,
            expected: Some("a supported branch".to_owned()),
            remedy: match (&state.owner, other) {
                (Some(owner), _) => Some(owned(owner, None)),
                (None, Some(other)) => Some(other.to_owned()),
                (None, None) if state.guest => Some(virt::GRID_BRANCH.to_owned()),
                (None, None) => remedy(matrix, state, best)
                    .or_else(|| Some("install a driver of a supported branch".to_owned())),
            },
            links: vec![ended.link],
            brief: Some(ended.brief),
            ..say(Verdict::Warn, ended.why)
        };
    }
    match security::of_driver(matrix, version) {
        None => Finding {
            observed,
            ..say(
                Verdict::Pass,
                format!("no security bulletin requires a newer version of branch {branch}"),
            )
        },
        Some(lacking) => Finding {
            observed,
            expected: other
                .is_none()
                .then(|| format!("{} or newer", lacking.first_fixed)),
            remedy: Some(match (&state.owner, other) {
                (Some(owner), _) => owned(owner, None),
                (None, Some(other)) => other.to_owned(),
                (None, None) if state.guest => {
                    format!("{} ({} or newer)", virt::GRID_DRIVER, lacking.first_fixed)
                }
                (None, None) => format!(
                    "install driver {} or a newer version of branch {branch}; if the package source does not have it, use a \
                     newer branch or another source (`driver.branch`, `driver.source`)",
                    lacking.first_fixed
                ),
            }),
            links: vec![lacking.link],
            brief: Some(lacking.brief),
            ..say(Verdict::Warn, lacking.why)
        },
    }
}

/// Checks whether the flavor of the kernel modules supports the GPUs.
fn modules(
    matrix: &Matrix,
    boards: &[Board<'_>],
    state: &DriverState,
    best: Option<&Best>,
) -> Finding {
    let say = |status, why: String| Finding::new(FLAVOR, status, why);
    if boards.is_empty() {
        return say(Verdict::Skip, state.none.to_owned());
    }
    let Some((version, _)) = state.version() else {
        return say(Verdict::Skip, NO_VERSION.to_owned());
    };
    let Some(found) = state.flavor else {
        let module = state.found.loaded_version.is_some() || state.found.module_version.is_some();
        return if module {
            say(
                Verdict::Unknown,
                "the flavor of the kernel modules is unknown".to_owned(),
            )
        } else {
            say(
                Verdict::Skip,
                "no driver kernel module is installed".to_owned(),
            )
        };
    };
    let mut rule_results = rule_results(matrix, boards, version, found.flavor);
    rule_results.retain(|rule_result| about_modules(rule_result.rule));
    let how = if found.loaded { "loaded" } else { "on disk" };
    let observed = Some(format!("{} ({how})", found.flavor));
    let expected = (boards.iter()).find_map(|board| match board.modules {
        SupportedFlavors::Open => Some(Flavor::Open),
        SupportedFlavors::Proprietary => Some(Flavor::Proprietary),
        SupportedFlavors::Either => None,
    });
    let finding = match strongest(&rule_results) {
        None => say(
            Verdict::Pass,
            format!("all GPUs support the {} kernel modules", found.flavor),
        ),
        Some((evaluation, text)) => Finding {
            remedy: match (&state.owner, state.wanted, expected) {
                (Some(owner), ..) => Some(owned(owner, expected)),
                (None, Some(_), Some(flavor)) => Some(format!(
                    "{INSTALL}, which installs the {flavor} kernel modules"
                )),
                (None, Some(_), None) => Some(INSTALL.to_owned()),
                (None, None, flavor) => {
                    let other = remedy(matrix, state, best);
                    let fits = |flavor: &Flavor| {
                        (self::rule_results(matrix, boards, version, *flavor).iter())
                            .all(|result| result.evaluation != Evaluation::Refuse)
                    };
                    let fitting = flavor.filter(fits);
                    match fitting.and_then(|flavor| build_variant(state, flavor)) {
                        Some(build) => Some(match other {
                            Some(other) => format!("{build}; or {other}"),
                            None => build,
                        }),
                        None => other,
                    }
                }
            },
            ..say(
                match evaluation {
                    Evaluation::Refuse => Verdict::Fail,
                    _ => Verdict::Warn,
                },
                format!("the {} kernel modules are {how}: {text}", found.flavor),
            )
        },
    };
    Finding {
        observed,
        expected: expected.map(|flavor| flavor.to_string()),
        ..finding
    }
}

/// Compares the versions of the loaded module, the module on disk, the packages and the libraries. If the libraries differ from
/// the loaded module, `driver.libraries` is the cause and has the remedy.
fn triangle(state: &DriverState) -> Finding {
    let say = |status, why: String| Finding::new(MISMATCH, status, why);
    let found = &state.found;
    let told: Vec<String> = [
        ("loaded", &found.loaded_version),
        ("module on disk", &found.module_version),
        ("libraries", &found.library_version),
        ("packages", &found.package_version),
    ]
    .into_iter()
    .filter_map(|(what, version)| Some(format!("{what} {}", version.as_ref()?)))
    .collect();
    if told.is_empty() {
        return say(Verdict::Skip, NO_VERSION.to_owned());
    }
    let told = told.join(", ");
    let observed = Some(told.clone());
    let differ = |one: &Option<DriverVersion>, other: &Option<DriverVersion>| matches!((one, other), (Some(one), Some(other)) if one != other);
    if differ(&found.loaded_version, &found.module_version) {
        return Finding {
            observed,
            remedy: Some("reboot to load the module on disk".to_owned()),
            ..say(
                Verdict::Warn,
                "the loaded module has a different version than the module on disk".to_owned(),
            )
        };
    }
    if differ(&found.loaded_version, &found.library_version) {
        return Finding {
            observed,
            ..say(
                Verdict::Fail,
                "the libraries have a different version than the loaded module".to_owned(),
            )
        };
    }
    if found.loaded_version.is_none() && differ(&found.module_version, &found.library_version) {
        return Finding {
            observed,
            remedy: Some(match state.wanted {
                Some(_) => INSTALL.to_owned(),
                None => "reinstall the driver packages, all in one version".to_owned(),
            }),
            ..say(
                Verdict::Fail,
                "the module on disk and the libraries have different versions, so no program \
                 can use the GPUs after the next boot"
                    .to_owned(),
            )
        };
    }
    if differ(&found.module_version, &found.package_version) {
        return Finding {
            observed,
            remedy: Some(
                "run `dkms status` to list the kernels for which the module was built".into(),
            ),
            ..say(
                Verdict::Warn,
                "the module on disk was not built from the installed packages".to_owned(),
            )
        };
    }
    Finding {
        observed,
        ..say(Verdict::Pass, told)
    }
}

/// Options that are ignored by modules of one flavor: module, option, value, flavor, reason.
const IGNORED: [(&str, &str, &str, Flavor, &str); 2] = [
    (
        "nvidia",
        "NVreg_EnableGpuFirmware",
        "0",
        Flavor::Open,
        // Confirmed by NVIDIA in NVIDIA/open-gpu-kernel-modules issue 820.
        "has no effect, because the open kernel modules always use the GPU System Processor (GSP)",
    ),
    (
        "nvidia",
        "NVreg_OpenRmEnableUnsupportedGpus",
        "1",
        Flavor::Proprietary,
        // NVIDIA/open-gpu-kernel-modules, kernel-open/nvidia/nv-reg.h.
        "has no effect, because it is an option of the open kernel modules",
    ),
];

/// Returns the configured module options with their locations.
fn set_options(files: &dyn ReadFiles) -> Result<Vec<(String, ModuleSetting)>, StepError> {
    let mut found = Vec::new();
    for path in kmod::configuration(files, |_| true)? {
        let text = files.read_lossy(&path)?.unwrap_or_default();
        found.extend(kmod::settings(&text).map(|one| (format!("`{path}`"), one)));
    }
    let line = files
        .read_text(Utf8Path::new("/proc/cmdline"))?
        .unwrap_or_default();
    let of_boot = kmod::settings_of_boot(&line);
    found.extend(of_boot.map(|one| ("the kernel command line".to_owned(), one)));
    Ok(found)
}

/// Checks for options that have no effect with the flavor of the modules.
fn options(set: &[(String, ModuleSetting)], flavor: Option<Flavor>) -> Finding {
    let say = |status, why: String| Finding::new(OPTIONS, status, why);
    let Some(flavor) = flavor else {
        return say(
            Verdict::Skip,
            "the flavor of the kernel modules is unknown".to_owned(),
        );
    };
    for (module, option, value, of, why) in IGNORED {
        let is_set = |(_, one): &&(String, ModuleSetting)| {
            one.module == module && one.option == option && one.value == value
        };
        if of == flavor
            && let Some((place, _)) = set.iter().find(is_set)
        {
            return Finding {
                observed: Some(format!("{option}={value}")),
                remedy: Some(format!("remove `{option}` from {place}")),
                ..say(Verdict::Warn, format!("{option}={value} {why} ({place})"))
            };
        }
    }
    say(Verdict::Pass, "no ignored options".to_owned())
}

async fn examine(subject: &Subject<'_>) -> Result<Vec<Finding>, StepError> {
    let state = DriverState {
        found: subject.state.driver().await.clone(),
        flavor: subject.state.module_flavor().await?,
        wanted: (subject.desired)
            .and_then(|desired| desired.driver.as_ref())
            .map(|driver| driver.branch),
        kernel: subject.facts.kernel.running.clone(),
        owner: owner(subject.host.files(), subject.facts)?,
        guest: virt::is_guest(subject)?,
        has_variants: dkms::added(subject.host.files())?.is_none()
            && (subject.host.files().read_lossy(VARIANT_FILE.into())?)
                .is_some_and(|text| text.lines().any(|line| line.starts_with("MODULE_VARIANT="))),
        none: if subject.facts.gpus.is_empty() {
            messages::NO_GPU
        } else {
            NOT_OURS
        },
    };
    let gpus = gpus(subject)?;
    let boards = boards(subject.matrix, &gpus);
    let best = (!gpus.is_empty()).then(|| best(subject.matrix, &gpus));
    let best = best.as_ref();
    let version = version(subject.matrix, &boards, &state, best);
    let secure = secure(subject.matrix, &state, version.remedy.as_deref(), best);
    Ok(vec![
        supported(subject.matrix, state.none, best),
        version,
        secure,
        modules(subject.matrix, &boards, &state, best),
        triangle(&state),
        options(
            &set_options(subject.host.files())?,
            state.flavor.map(|found| found.flavor),
        ),
    ])
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use super::{
        DriverState, best, boards, modules, secure, set_options, supported, triangle, version,
    };
    use crate::{
        check::Verdict,
        compat::matrix::Matrix,
        facts::GpuFact,
        model::{gpu::Flavor, version::Branch},
        state::{FoundDriver, FoundFlavor},
        steps::fixtures::facts,
    };

    static MATRIX: LazyLock<Matrix> = LazyLock::new(|| Matrix::builtin().expect("a valid matrix"));

    const H100: &str = "10de:2330";
    const V100: &str = "10de:1db1";
    const B200: &str = "10de:2901";
    const K80: &str = "10de:102d";

    fn gpu(id: &str) -> GpuFact {
        GpuFact {
            pci_id: id.parse().expect("an id"),
            ..facts().gpus[0].clone()
        }
    }

    fn loaded(version: &str, flavor: Option<Flavor>) -> DriverState {
        DriverState {
            found: FoundDriver {
                loaded_version: version.parse().ok(),
                ..FoundDriver::default()
            },
            flavor: flavor.map(|flavor| FoundFlavor {
                flavor,
                loaded: true,
            }),
            wanted: Some(Branch(580)),
            ..DriverState::default()
        }
    }

    #[test]
    fn comment_in_another_encoding_does_not_hide_options() {
        let files = crate::host::fake::FakeFiles::new();
        let text = b"# gew\xfcnscht\noptions nvidia NVreg_EnableGpuFirmware=0\n";
        files.put("/etc/modprobe.d/site.conf", text.to_vec());
        assert_eq!(set_options(&files).unwrap().len(), 1);
    }

    #[test]
    fn too_old_or_too_new_driver_fails() {
        for (id, driver, verdict, words) in rows! {
            H100, "580.178.04", Verdict::Pass, "supports all GPUs";
            H100, "470.256.02", Verdict::Fail, "needs driver 525.85.05 or newer";
            B200, "550.90.07", Verdict::Fail, "needs driver 570.86.15 or newer";
            V100, "595.58.03", Verdict::Fail, "whose last branch is 580; 595 is newer";
            V100, "580.178.04", Verdict::Pass, "supports all GPUs";
            H100, "525.147.05", Verdict::Pass, "supports all GPUs";
        } {
            let gpu = gpu(id);
            let boards = boards(&MATRIX, &[&gpu]);
            let best = best(&MATRIX, &[&gpu]);
            let finding = version(&MATRIX, &boards, &loaded(driver, None), Some(&best));
            assert_eq!(finding.status, verdict, "{id} {driver}: {}", finding.why);
            assert!(finding.why.contains(words), "{}", finding.why);
            assert_eq!(
                finding.observed.as_deref(),
                Some(format!("{driver} (loaded)").as_str())
            );
            let needs_remedy = verdict != Verdict::Pass;
            assert_eq!(finding.remedy.is_some(), needs_remedy, "{id} {driver}");
        }
        let nothing = version(&MATRIX, &[], &loaded("580.178.04", None), None);
        assert_eq!(nothing.status, Verdict::Skip);
    }

    #[test]
    fn missing_security_fixes_warn_with_the_fixed_version() {
        let finding = secure(&MATRIX, &loaded("580.126.09", None), None, None);
        assert_eq!(finding.status, Verdict::Warn, "{}", finding.why);
        assert!(finding.why.contains("bulletin 5861"), "{}", finding.why);
        let remedy = finding.remedy.unwrap_or_default();
        assert!(remedy.starts_with("install driver 580.178.04"), "{remedy}");
        assert_eq!(finding.links.len(), 1);
        // `drv.version.matrix` does not report the missing security fixes again.
        let gpu = gpu(H100);
        let boards = boards(&MATRIX, &[&gpu]);
        let best = best(&MATRIX, &[&gpu]);
        let old = version(&MATRIX, &boards, &loaded("580.126.09", None), Some(&best));
        assert_eq!(old.status, Verdict::Pass, "{}", old.why);

        // A vGPU needs the driver of the hypervisor's release.
        for version in ["580.126.09", "550.144.06"] {
            let guest = DriverState {
                guest: true,
                ..loaded(version, None)
            };
            let remedy = (secure(&MATRIX, &guest, None, None).remedy).unwrap_or_default();
            assert!(
                remedy.starts_with("install the GRID guest driver"),
                "{remedy}"
            );
        }

        let fixed = secure(&MATRIX, &loaded("580.178.04", None), None, None);
        assert_eq!(fixed.status, Verdict::Pass, "{}", fixed.why);
        let none = secure(&MATRIX, &DriverState::default(), None, None);
        assert_eq!(none.status, Verdict::Skip, "{}", none.why);
    }

    #[test]
    fn security_and_compatibility_have_the_same_remedy() {
        for (id, driver, compatibility, why, words) in rows! {
            // The newest versions of branches that are end-of-life: one risk, not two.
            H100, "535.309.01", Verdict::Pass, "branch 535 is end-of-life", "gpu-bootstrap install";
            H100, "550.163.01", Verdict::Pass, "branch 550 is end-of-life", "gpu-bootstrap install";
            K80, "470.256.02", Verdict::Pass, "branch 470 is end-of-life", "replace the GPUs";
            // A branch that does not support the GPU, and that also lacks fixes.
            V100, "595.71.05", Verdict::Fail, "lacks security fixes of 595.91.07", "gpu-bootstrap install";
        } {
            let gpu = gpu(id);
            let boards = boards(&MATRIX, &[&gpu]);
            let best = best(&MATRIX, &[&gpu]);
            let state = loaded(driver, None);
            let version = version(&MATRIX, &boards, &state, Some(&best));
            let secure = secure(&MATRIX, &state, version.remedy.as_deref(), Some(&best));
            assert_eq!(version.status, compatibility, "{driver}: {}", version.why);
            assert_eq!(secure.status, Verdict::Warn, "{driver}");
            assert!(secure.why.contains(why), "{driver}: {}", secure.why);
            if compatibility == Verdict::Fail {
                assert_eq!(secure.remedy, version.remedy, "{driver}");
            }
            let remedy = secure.remedy.unwrap_or_default();
            assert!(remedy.contains(words), "{driver}: {remedy}");
            let other_version = secure
                .expected
                .is_some_and(|text| text.contains("595.91.07"));
            assert!(!other_version, "{driver}");
        }
    }

    #[test]
    fn modules_of_the_wrong_flavor_fail() {
        let (open, proprietary) = (Some(Flavor::Open), Some(Flavor::Proprietary));
        for (id, flavor, verdict, words) in rows! {
            H100, open, Verdict::Pass, "open kernel modules";
            H100, proprietary, Verdict::Pass, "proprietary kernel modules";
            V100, open, Verdict::Fail, "has no GSP";
            B200, proprietary, Verdict::Fail, "only the open kernel modules";
            H100, None, Verdict::Unknown, "flavor of the kernel modules";
        } {
            let gpu = gpu(id);
            let boards = boards(&MATRIX, &[&gpu]);
            let best = best(&MATRIX, &[&gpu]);
            let state = loaded("580.178.04", flavor);
            let finding = modules(&MATRIX, &boards, &state, Some(&best));
            assert_eq!(finding.status, verdict, "{id}: {}", finding.why);
            assert!(finding.why.contains(words), "{}", finding.why);
        }
    }

    #[test]
    fn gpus_without_a_supported_branch_warn() {
        let of = |ids: &[&str]| {
            let gpus: Vec<GpuFact> = ids.iter().map(|id| gpu(id)).collect();
            let gpus: Vec<&GpuFact> = gpus.iter().collect();
            supported(&MATRIX, "", Some(&best(&MATRIX, &gpus)))
        };
        assert_eq!(of(&[H100]).status, Verdict::Pass);
        let old = of(&[K80]);
        assert_eq!(old.status, Verdict::Warn, "{}", old.why);
        assert!(old.why.contains("branch 470"), "{}", old.why);
        // No branch and module flavor supports both.
        let pair = of(&[V100, B200]);
        assert_eq!(pair.status, Verdict::Fail, "{}", pair.why);
        assert!(pair.remedy.is_some());
        assert_eq!(supported(&MATRIX, "none", None).status, Verdict::Skip);
    }

    #[test]
    fn different_versions_are_reported() {
        let found = |loaded: &str, module: &str, library: &str, package: &str| DriverState {
            found: FoundDriver {
                loaded_version: loaded.parse().ok(),
                module_version: module.parse().ok(),
                library_version: library.parse().ok(),
                package_version: package.parse().ok(),
                origin: None,
            },
            ..DriverState::default()
        };
        let (new, old) = ("580.178.04", "580.159.03");
        for (state, verdict, words) in rows! {
            found("", "", "", ""), Verdict::Skip, "is unknown";
            found(new, new, new, new), Verdict::Pass, "loaded 580.178.04";
            found(old, new, new, new), Verdict::Warn, "different version than the module on disk";
            found("", old, new, new), Verdict::Fail, "after the next boot";
            found(old, old, "", new), Verdict::Warn, "not built from";
        } {
            let finding = triangle(&state);
            assert_eq!(finding.status, verdict, "{}", finding.why);
            assert!(finding.why.contains(words), "{}", finding.why);
        }
    }
}
