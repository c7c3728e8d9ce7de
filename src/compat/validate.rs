//! Validates a matrix: identities must be unique, references must exist, related values must agree.

use std::collections::BTreeSet;
use std::fmt;

use crate::compat::matrix::{ChipRange, Confidence, Matrix, OpenModules, SCHEMA};
use crate::model::gpu::{Architecture, SupportedFlavours};
use crate::model::text::nearest;
use crate::model::version::{Branch, DriverVersion};

/// A row of a table, by its place.
type Row = (&'static str, usize);

/// A value that contradicts the rest of the matrix.
pub(super) struct Contradiction {
    /// The row; `None` for a key before the first table.
    pub row: Option<Row>,
    /// The key in the row.
    pub key: &'static str,
    /// What is wrong with the value.
    pub what: String,
    /// What to do about it.
    pub remedy: String,
}

/// Everything in a matrix that contradicts something else.
pub(super) fn contradictions(matrix: &Matrix) -> Vec<Contradiction> {
    let mut validator = Validator::default();
    validator.all(matrix);
    validator.found
}

/// Collects contradictions.
#[derive(Default)]
struct Validator {
    found: Vec<Contradiction>,
}

impl Validator {
    fn all(&mut self, matrix: &Matrix) {
        if matrix.schema != SCHEMA {
            self.found.push(Contradiction {
                row: None,
                key: "schema",
                what: format!("it is {}, this program reads {SCHEMA}", matrix.schema),
                remedy: "use a matrix made for this version of the program".to_owned(),
            });
        }
        self.evidence(matrix);
        self.architectures(matrix);
        self.branches(matrix);
        self.cuda(matrix);
        self.gpus(matrix);
        self.chips(matrix);
        self.others(matrix);
        self.kernels(matrix);
        self.floors(matrix);
    }

    fn bad(&mut self, row: Row, key: &'static str, what: String, remedy: impl Into<String>) {
        self.found.push(Contradiction {
            row: Some(row),
            key,
            what,
            remedy: remedy.into(),
        });
    }

    /// Reports each row that has the identity of an earlier one.
    fn unique<T: Ord + fmt::Debug>(
        &mut self,
        table: &'static str,
        key: &'static str,
        identities: impl Iterator<Item = T>,
    ) {
        let mut seen = BTreeSet::new();
        for (index, identity) in identities.enumerate() {
            let text = format!("{identity:?}");
            if !seen.insert(identity) {
                let what = format!("there is already a row with {text}");
                self.bad((table, index), key, what, "merge the two rows");
            }
        }
    }

    fn known_branch(&mut self, matrix: &Matrix, at: Row, key: &'static str, branch: Branch) {
        if matrix.branch(branch).is_none() {
            let what = format!("branch {branch} has no row");
            self.bad(at, key, what, "add a [[branch]] row, or correct the number");
        }
    }

    fn known_architecture(
        &mut self,
        matrix: &Matrix,
        at: Row,
        key: &'static str,
        name: &Architecture,
    ) {
        if matrix.architecture(name).is_none() {
            let names = matrix.architectures.iter().map(|row| row.name.as_str());
            let what = format!("architecture `{name}` has no row");
            let remedy = nearest(name.as_str(), names).map_or_else(
                || "add the row".to_owned(),
                |near| format!("perhaps `{near}`"),
            );
            self.bad(at, key, what, remedy);
        }
    }

    fn ordered<T: PartialOrd + fmt::Display>(
        &mut self,
        at: Row,
        (low_key, low): (&'static str, Option<&T>),
        (high_key, high): (&'static str, Option<&T>),
    ) {
        if let (Some(low), Some(high)) = (low, high)
            && low > high
        {
            let what = format!("{low} is above `{high_key}`, {high}");
            self.bad(at, low_key, what, "exchange the two, or correct one");
        }
    }

    fn evidence(&mut self, matrix: &Matrix) {
        self.unique(
            "source",
            "key",
            matrix.citations.iter().map(|row| row.key.as_str()),
        );
        let known: BTreeSet<&str> = matrix
            .citations
            .iter()
            .map(|row| row.key.as_str())
            .collect();
        for (table, index, citations) in evidence_of(matrix) {
            if citations.is_empty() {
                let what = "a row must name where it comes from".to_owned();
                self.bad((table, index), "sources", what, "name a [[source]] row");
            }
            for citation in citations.iter().filter(|key| !known.contains(key.as_str())) {
                let what = format!("source `{citation}` has no row");
                let remedy = nearest(citation, known.iter().copied()).map_or_else(
                    || "add a [[source]] row".to_owned(),
                    |near| format!("add a [[source]] row; did you mean `{near}`?"),
                );
                self.bad((table, index), "sources", what, remedy);
            }
        }
    }

    fn architectures(&mut self, matrix: &Matrix) {
        self.unique(
            "architecture",
            "name",
            matrix.architectures.iter().map(|row| &row.name),
        );
        let prefixes = matrix
            .architectures
            .iter()
            .flat_map(|row| &row.chip_prefixes);
        let mut seen = BTreeSet::new();
        for prefix in prefixes {
            if !seen.insert(prefix) {
                let index = matrix
                    .architectures
                    .iter()
                    .rposition(|row| row.chip_prefixes.contains(prefix))
                    .unwrap_or_default();
                let what = format!("prefix `{prefix}` already belongs to another architecture");
                self.bad(
                    ("architecture", index),
                    "chip-prefixes",
                    what,
                    "remove it from one",
                );
            }
        }
        for (index, row) in matrix.architectures.iter().enumerate() {
            if let Some(branch) = row.last_branch {
                self.known_branch(matrix, ("architecture", index), "last-branch", branch);
            }
        }
        let versions = matrix.capabilities.iter().flat_map(|row| &row.versions);
        self.unique("compute-capability", "versions", versions);
        for (index, row) in matrix.capabilities.iter().enumerate() {
            let at = ("compute-capability", index);
            self.known_architecture(matrix, at, "architecture", &row.architecture);
            let (first, last) = (Some(&row.first_cuda), row.last_cuda.as_ref());
            self.ordered(at, ("first-cuda", first), ("last-cuda", last));
        }
    }

    fn branches(&mut self, matrix: &Matrix) {
        self.unique(
            "branch",
            "branch",
            matrix.branches.iter().map(|row| row.branch),
        );
        for (index, row) in matrix.branches.iter().enumerate() {
            let at = ("branch", index);
            for (key, version) in [
                ("first-version", &row.first_version),
                ("newest-version", &row.newest_version),
            ] {
                if version.branch() != row.branch {
                    let what = format!("{version} is not of branch {}", row.branch);
                    self.bad(at, key, what, "give a version of the branch");
                }
            }
            let (first, newest) = (Some(&row.first_version), Some(&row.newest_version));
            self.ordered(at, ("first-version", first), ("newest-version", newest));
            self.known_architecture(matrix, at, "oldest-architecture", &row.oldest_architecture);
            self.known_architecture(matrix, at, "newest-architecture", &row.newest_architecture);
            let oldest = matrix.generation(&row.oldest_architecture);
            let (low, high) = (&oldest, &matrix.generation(&row.newest_architecture));
            self.ordered(
                at,
                ("oldest-architecture", low.as_ref()),
                ("newest-architecture", high.as_ref()),
            );
            if row.open == OpenModules::Only && row.proprietary
                || row.open == OpenModules::None && !row.proprietary
            {
                let what = "it contradicts `open`".to_owned();
                self.bad(at, "proprietary", what, "true unless `open` is `only`");
            }
            // Two keys state the same rule, so they must agree.
            for architecture in &matrix.architectures {
                let driven = architecture
                    .last_branch
                    .is_none_or(|last| row.branch <= last);
                if driven == (matrix.generation(&architecture.name) < oldest) {
                    let last = architecture
                        .last_branch
                        .map_or("none".to_owned(), |b| b.to_string());
                    let what = format!(
                        "it contradicts branch {}: `last-branch` of {} is {last}",
                        architecture.name, row.branch
                    );
                    self.bad(at, "oldest-architecture", what, "correct one of the two");
                }
            }
        }
    }

    fn cuda(&mut self, matrix: &Matrix) {
        self.unique(
            "cuda",
            "version",
            matrix.toolkits.iter().map(|row| row.version),
        );
        self.unique(
            "cuda-major",
            "major",
            matrix.cuda_majors.iter().map(|row| row.major),
        );
        for (index, row) in matrix.toolkits.iter().enumerate() {
            let at = ("cuda", index);
            let (min, bundled) = (row.min_driver.as_ref(), row.bundled_driver.as_ref());
            self.ordered(at, ("min-driver", min), ("bundled-driver", bundled));
            if !matrix
                .cuda_majors
                .iter()
                .any(|major| major.major == row.version.major)
            {
                let what = format!("CUDA {} has no row", row.version.major);
                self.bad(at, "version", what, "add a [[cuda-major]] row");
            }
        }
        self.unique(
            "cuda-image",
            "version",
            matrix.cuda_images.iter().map(|row| row.version),
        );
        for (index, row) in matrix.cuda_images.iter().enumerate() {
            let at = ("cuda-image", index);
            let listed = (matrix.toolkits.iter()).any(|toolkit| toolkit.version == row.version);
            if row.version.patch.is_none() || !listed {
                let what = format!("there is no CUDA {}", row.version);
                self.bad(
                    at,
                    "version",
                    what,
                    "name an update that has a [[cuda]] row",
                );
            }
            if row.systems.is_empty() {
                self.bad(at, "systems", "it is empty".to_owned(), "name a system");
            }
        }
        for (index, row) in matrix.forward_compat.iter().enumerate() {
            for branch in &row.branches {
                self.known_branch(matrix, ("forward-compat", index), "branches", *branch);
            }
        }
        for (index, row) in matrix.cudnn.iter().enumerate() {
            let at = ("cudnn", index);
            self.ordered(
                at,
                ("cuda-min", Some(&row.cuda_min)),
                ("cuda-max", Some(&row.cuda_max)),
            );
            let (low, high) = (row.capability_min.as_ref(), row.capability_max.as_ref());
            self.ordered(at, ("capability-min", low), ("capability-max", high));
        }
    }

    fn gpus(&mut self, matrix: &Matrix) {
        let identities = matrix.gpus.iter().map(|row| (row.pci_id, row.subsystem_id));
        self.unique("gpu", "pci-id", identities);
        for (index, row) in matrix.gpus.iter().enumerate() {
            let at = ("gpu", index);
            self.known_architecture(matrix, at, "architecture", &row.architecture);
            let Some(capability) = matrix.capability(row.compute_capability) else {
                let what = format!("{} has no row", row.compute_capability);
                self.bad(
                    at,
                    "compute-capability",
                    what,
                    "add a [[compute-capability]] row",
                );
                continue;
            };
            if capability.architecture != row.architecture {
                let what = format!(
                    "{} is of {}",
                    row.compute_capability, capability.architecture
                );
                self.bad(at, "architecture", what, "correct one of the two");
            }
            let architecture = matrix.architecture(&row.architecture);
            if architecture
                .is_some_and(|a| a.modules != SupportedFlavours::Either && a.modules != row.modules)
            {
                let what = "it contradicts the architecture's".to_owned();
                self.bad(at, "modules", what, "correct one of the two");
            }
            let known = architecture.is_some_and(|a| {
                a.chip_prefixes
                    .iter()
                    .any(|p| row.chip.starts_with(p.as_str()))
            });
            if architecture.is_some() && !known {
                let what = format!(
                    "`{}` does not start like a chip of {}",
                    row.chip, row.architecture
                );
                self.bad(
                    at,
                    "chip",
                    what,
                    "correct it, or add the prefix to the architecture",
                );
            }
            let floor = (
                "compute-capability.min-driver",
                capability.min_driver.as_ref(),
            );
            self.ordered(at, floor, ("min-drivers", row.min_drivers.first()));
            self.min_drivers(matrix, index);
        }
    }

    fn chips(&mut self, matrix: &Matrix) {
        for (index, row) in matrix.chip_ranges.iter().enumerate() {
            let at = ("chip-range", index);
            self.known_architecture(matrix, at, "architecture", &row.architecture);
            self.ordered(at, ("first", Some(&row.first)), ("last", Some(&row.last)));
            let overlaps =
                |other: &ChipRange| other.contains(row.first) || other.contains(row.last);
            if let Some(other) = matrix.chip_ranges[..index].iter().find(|row| overlaps(row)) {
                let what = format!("it overlaps with {} to {}", other.first, other.last);
                self.bad(at, "first", what, "an id belongs to one block");
            }
            let capability = (row.compute_capability).and_then(|own| matrix.capability(own));
            if row.compute_capability.is_some()
                && capability.is_none_or(|found| found.architecture != row.architecture)
            {
                let what = format!("no row of {} has it", row.architecture);
                self.bad(at, "compute-capability", what, "correct one of the two");
            }
        }
        for (index, row) in matrix.series.iter().enumerate() {
            let at = ("series", index);
            self.ordered(
                at,
                ("first", row.first.as_ref()),
                ("last", row.last.as_ref()),
            );
            let chip = row.chip.parse().ok();
            if chip.is_none_or(|chip| matrix.architecture_of_chip(&chip).is_none()) {
                let what = format!("`{}` does not start like a chip", row.chip);
                self.bad(at, "chip", what, "name a chip of the series");
            }
        }
    }

    fn min_drivers(&mut self, matrix: &Matrix, index: usize) {
        let row = &matrix.gpus[index];
        let at = ("gpu", index);
        let ascending = |pair: &[DriverVersion]| pair[0].branch() < pair[1].branch();
        if !row.min_drivers.windows(2).all(ascending) {
            let what = "it must name each branch once, oldest first".to_owned();
            self.bad(at, "min-drivers", what, "sort the versions");
        }
        for version in &row.min_drivers {
            self.known_branch(matrix, at, "min-drivers", version.branch());
        }
        for branch in &row.not_named_in {
            self.known_branch(matrix, at, "not-named-in", *branch);
            let listed = row
                .min_drivers
                .iter()
                .any(|version| version.branch() == *branch);
            let first = row.min_drivers.first().or(row.named_since.as_ref());
            let older = first.is_none_or(|first| *branch < first.branch());
            if listed || older {
                let what = format!("branch {branch} is decided by `min-drivers`");
                self.bad(at, "not-named-in", what, "remove it");
            }
        }
        if row.confidence == Confidence::Unverified && !row.min_drivers.is_empty() {
            let what = "an unverified row may not refuse a driver".to_owned();
            self.bad(
                at,
                "min-drivers",
                what,
                "verify it in a source, or remove it",
            );
        }
    }

    fn others(&mut self, matrix: &Matrix) {
        let named = matrix
            .instance_types
            .iter()
            .map(|row| (&row.provider, &row.name));
        self.unique("instance-type", "name", named);
        self.unique("vgpu", "pci-id", matrix.vgpus.iter().map(|row| row.pci_id));
        let switches = matrix.nvswitches.iter().map(|row| (row.pci_id, &row.name));
        self.unique("nvswitch", "pci-id", switches);
        for (index, row) in matrix.instance_types.iter().enumerate() {
            for id in &row.gpu_ids {
                if !matrix.gpus.iter().any(|gpu| gpu.pci_id == *id) {
                    let what = format!("GPU {id} has no row");
                    self.bad(
                        ("instance-type", index),
                        "gpu-ids",
                        what,
                        "add a [[gpu]] row",
                    );
                }
            }
        }
        for (index, row) in matrix.module_options.iter().enumerate() {
            if row.provider.is_some() == row.instance_types.is_empty() {
                let what = "it names a provider, or instance types, and not both".to_owned();
                self.bad(("module-option", index), "provider", what, "name both");
            }
            if row.instance_types.is_empty() && row.gpu_ids.is_empty() {
                let what = "it is for every machine".to_owned();
                self.bad(
                    ("module-option", index),
                    "option",
                    what,
                    "name boards or instance types",
                );
            }
        }
        for (index, row) in matrix.vgpus.iter().enumerate() {
            for profile in &row.profiles {
                let subsystem = Some(profile.subsystem_id);
                if matrix
                    .gpus
                    .iter()
                    .any(|g| g.pci_id == row.pci_id && g.subsystem_id == subsystem)
                {
                    let what = format!("{} is a whole board in [[gpu]]", profile.subsystem_id);
                    self.bad(("vgpu", index), "profiles", what, "remove it from one");
                }
            }
        }
        for (index, row) in matrix.vgpu_releases.iter().enumerate() {
            self.known_branch(matrix, ("vgpu-release", index), "branch", row.branch);
        }
    }

    fn floors(&mut self, matrix: &Matrix) {
        let numbers = matrix.driver_floors.iter().map(|row| &row.bulletin);
        self.unique("driver-floor", "bulletin", numbers);
        for (index, row) in matrix.driver_floors.iter().enumerate() {
            let at = ("driver-floor", index);
            let mut seen = BTreeSet::new();
            for version in &row.first_fixed {
                self.known_branch(matrix, at, "first-fixed", version.branch());
                if !seen.insert(version.branch()) {
                    let what = format!("branch {} occurs twice", version.branch());
                    self.bad(at, "first-fixed", what, "remove one of the two");
                }
            }
        }
        for (index, row) in matrix.package_floors.iter().enumerate() {
            let numbers = |text: &str| text.split('.').all(|part| part.parse::<u32>().is_ok());
            if !numbers(&row.first_fixed) {
                let what = format!("`{}` is no numbers joined by dots", row.first_fixed);
                let at = ("package-floor", index);
                self.bad(at, "first-fixed", what, "leave epoch and revision out");
            }
        }
    }

    fn kernels(&mut self, matrix: &Matrix) {
        self.unique(
            "kernel-fix",
            "kernel",
            matrix.kernel_fixes.iter().map(|row| &row.kernel),
        );
        self.unique(
            "kernel-limit",
            "driver",
            matrix.kernel_limits.iter().map(|row| &row.driver),
        );
        for (index, row) in matrix.kernel_fixes.iter().enumerate() {
            let at = ("kernel-fix", index);
            let mut seen = BTreeSet::new();
            for version in &row.first_fixed {
                self.known_branch(matrix, at, "first-fixed", version.branch());
                if !seen.insert(version.branch()) || row.never_fixed.contains(&version.branch()) {
                    let what = format!("branch {} occurs twice", version.branch());
                    self.bad(at, "first-fixed", what, "remove one of the two");
                }
            }
            for version in &row.complete {
                let first = row
                    .first_fixed
                    .iter()
                    .find(|v| v.branch() == version.branch());
                if first.is_none_or(|first| first > version) {
                    let what = format!("{version} comes before the first fix of its branch");
                    self.bad(at, "complete", what, "correct one of the two");
                }
            }
            for branch in &row.never_fixed {
                self.known_branch(matrix, at, "never-fixed", *branch);
            }
        }
        for (index, row) in matrix.kernel_limits.iter().enumerate() {
            let at = ("kernel-limit", index);
            self.known_branch(matrix, at, "driver", row.driver.branch());
            let (newest, broken) = (Some(&row.newest_kernel), row.first_broken.as_ref());
            self.ordered(at, ("newest-kernel", newest), ("first-broken", broken));
        }
        for (index, row) in matrix.kernel_oldest.iter().enumerate() {
            let (first, last) = (row.first_driver.as_ref(), row.last_driver.as_ref());
            let at = ("kernel-oldest", index);
            self.ordered(at, ("first-driver", first), ("last-driver", last));
        }
        for (index, row) in matrix.kernel_reports.iter().enumerate() {
            let (first, last) = (row.first_driver.as_ref(), Some(&row.last_driver));
            let at = ("kernel-report", index);
            self.ordered(at, ("first-driver", first), ("last-driver", last));
        }
    }
}

/// Table, index and citations of every row that carries evidence.
fn evidence_of(matrix: &Matrix) -> Vec<(&'static str, usize, &[String])> {
    let mut all: Vec<(&'static str, usize, &[String])> = vec![
        (
            "forward-compat-policy",
            0,
            &matrix.forward_compat_policy.citations,
        ),
        ("unlisted-gpu", 0, &matrix.unlisted_gpu.citations),
    ];
    macro_rules! add {
        ($($table:literal => $field:ident),* $(,)?) => {
            $(for (index, row) in matrix.$field.iter().enumerate() {
                all.push(($table, index, &row.citations));
            })*
        };
    }
    add!(
        "architecture" => architectures,
        "compute-capability" => capabilities,
        "branch" => branches,
        "chip-range" => chip_ranges,
        "series" => series,
        "cuda" => toolkits,
        "cuda-image" => cuda_images,
        "cuda-major" => cuda_majors,
        "forward-compat" => forward_compat,
        "gpu" => gpus,
        "nvswitch" => nvswitches,
        "mig-profile" => mig_profiles,
        "vgpu" => vgpus,
        "vgpu-release" => vgpu_releases,
        "driver-floor" => driver_floors,
        "package-floor" => package_floors,
        "kernel-fix" => kernel_fixes,
        "kernel-limit" => kernel_limits,
        "kernel-oldest" => kernel_oldest,
        "kernel-report" => kernel_reports,
        "cudnn" => cudnn,
        "instance-type" => instance_types,
        "module-option" => module_options,
        "note" => notes,
    );
    all
}
