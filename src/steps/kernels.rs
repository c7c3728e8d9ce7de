//! Decides which kernel a machine uses and how it gets its driver module: reads which packages exist for which kernel,
//! and derives the required packages.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::future::try_join_all;

use super::{
    builds::Builds,
    packages,
    specs::{InstalledPackages, compare},
};
use crate::{
    compat::{
        kernel::strongest,
        kernels::{KernelAnswer, KernelMethod, KernelQuestion, Kernels},
        matrix::Matrix,
        rule_result::{Candidate, Evaluation, RuleResult},
    },
    config::{
        desired::{Desired, KernelSpec, ModuleMethod, PackageSpec},
        kernel::{built_for, for_kernel, names_kernel},
    },
    facts::SecureBoot,
    model::version::{DriverVersion, KernelVersion},
    step::{Cx, StepError},
    tools::packages::Backend,
};

/// The reason that a module compiled on this machine would not be loaded.
const UNSIGNED: &str = "Secure Boot is enabled, and modules compiled on this machine have no \
    trusted signature";

/// The inputs and the result of this decision.
#[derive(Debug, Clone, Default)]
pub(super) struct Asked {
    pub(super) question: KernelQuestion,
    /// The answer. `None` if it is unknown until package lists are available.
    pub(super) answer: Option<KernelAnswer>,
    /// The package lists were not needed for the answer, or were downloaded in this run.
    pub(super) certain: bool,
    /// Kernels whose packaged module cannot be used, with the reason: no libraries of its version are available, or the
    /// libraries have a different version.
    pub(super) other_module: BTreeMap<KernelVersion, String>,
    /// The running kernel and the reason, if a rule excludes a module for it, but not for the kernel of the next boot.
    /// The running kernel then needs no module.
    pub(super) left: Option<(KernelVersion, String)>,
    /// The matrix rules against available kernels that are therefore not installed, although they have headers.
    pub(super) ruled_out: BTreeSet<String>,
    pub(super) installed: InstalledPackages,
    /// Lines in package manager configuration that hide packages for the kernels of the machine.
    pub(super) hidden: Vec<String>,
    /// Module packages that are built for one kernel each.
    pub(super) builds: Builds,
}

/// Decides which kernel and module method to use. `None` if no driver is configured.
pub(super) async fn ask(cx: &Cx<'_>) -> Result<Option<Asked>, StepError> {
    let Some(spec) = &cx.desired.kernel else {
        return Ok(None);
    };
    let installed = packages::installed(cx).await?;
    let (there, next) = cx.state.bootable_kernels();
    let kernels = Kernels {
        running: cx.facts.kernel.running.clone(),
        next,
        installed: there,
        image: cx.desired.image,
    };
    let needed = kernels.needed();
    let (backend, mut builds) = (
        packages::backend(cx),
        Builds::installed(cx, spec, &installed).await?,
    );
    let is_met =
        |specs: &[PackageSpec]| compare(cx.desired.packages.manager, specs, &installed).all_met();
    let complete = |method: &ModuleMethod| {
        let all = [
            builds.resolved(backend, method, spec.packages(&method.packages, &needed)),
            spec.packages(&method.headers, &needed),
        ];
        all.iter().all(|specs| is_met(specs))
    };
    let mut asked = Asked {
        question: KernelQuestion {
            policy: spec.policy,
            methods: (spec.methods.iter())
                .map(|method| KernelMethod {
                    compiled: method.is_compiled(),
                    complete: complete(method),
                    begun: false,
                    kernels: BTreeSet::new(),
                    closed: None,
                })
                .collect(),
            images: BTreeSet::new(),
            kernels,
        },
        answer: None,
        certain: true,
        other_module: BTreeMap::new(),
        left: left(cx, spec, &needed),
        ruled_out: BTreeSet::new(),
        installed: installed.clone(),
        hidden: hidden(cx, spec, &needed, &installed)?,
        builds: builds.clone(),
    };
    let is_left = asked.left.as_ref().map(|(kernel, _)| kernel.clone());
    let stays = |kernel: &KernelVersion| is_left.as_ref() != Some(kernel);
    let begun = begun_method(&spec.methods, is_met);
    if let Some(begun) = begun {
        asked.question.methods[begun].begun = true;
    }
    let is_first_met = spec.methods.first().is_none_or(|method| {
        let by_kernel: Vec<PackageSpec> = method.by_kernel().cloned().collect();
        is_met(&builds.resolved(backend, method, spec.packages(&by_kernel, &needed)))
    });
    let is_first = begun.is_none_or(|begun| begun == 0);
    if asked.question.methods.iter().any(|method| method.complete) || (is_first && is_first_met) {
        if let Some(method) = asked.question.methods.first_mut() {
            method.kernels = needed.into_iter().filter(|kernel| stays(kernel)).collect();
        }
        asked.answer = Some(asked.question.answer());
        return Ok(Some(asked));
    }
    asked.certain = cx.state.lists_are_new();
    let Some(lists) = KernelLists::read(cx, spec, &asked.question.kernels, &installed).await?
    else {
        return Ok(Some(asked));
    };
    builds.add_offered(cx, spec).await?;
    asked.question.images = match &spec.image {
        Some(image) => lists.kernels(image),
        None => BTreeSet::new(),
    };
    let several = spec.methods.len() > 1;
    for (method, found) in spec.methods.iter().zip(&mut asked.question.methods) {
        let without = builds.complete_alone(backend, method);
        asked.other_module.extend(without);
        let mut kernels = method
            .by_kernel()
            .map(|template| match built_for(template) {
                Some(_) => builds.kernels(backend, template),
                None => lists.kernels(template),
            });
        found.kernels = match kernels.next() {
            Some(first) => kernels.fold(first, |all, more| &all & &more),
            // No package of this method depends on the kernel.
            None => (asked.question.images.iter().cloned())
                .chain(needed.clone())
                .collect(),
        };
        if method.packages.iter().any(names_kernel) {
            let names: BTreeSet<&str> = method.common().map(|spec| spec.name.as_str()).collect();
            let missing: Vec<&str> = (names.iter().copied())
                .filter(|name| !lists.has(name))
                .collect();
            if !missing.is_empty() && missing.len() == names.len() && !asked.certain {
                // The repository of this method has probably not been added yet.
                return Ok(Some(asked));
            }
            found.closed = (!missing.is_empty())
                .then(|| format!("no repository offers {}", missing.join(", ")));
            if method.built().next().is_some() {
                let served = builds.together(backend, method, &needed);
                (found.kernels)
                    .retain(|kernel| !needed.contains(kernel) || served.contains(kernel));
            }
            let other = lists.other_modules(cx, method, &found.kernels).await?;
            found.kernels.retain(|kernel| !other.contains_key(kernel));
            asked.other_module.extend(other);
        }
        if method.is_compiled() {
            let evaluated = CompilableKernels::of(cx, method, &lists, &asked.question.kernels);
            asked
                .ruled_out
                .extend(evaluated.rule_out(&mut found.kernels));
        }
        found.kernels.retain(|kernel| stays(kernel));
        if several && method.is_compiled() && is_unsigned(cx)? {
            found.closed = Some(UNSIGNED.to_owned());
        }
    }
    asked.builds = builds;
    asked.answer = Some(asked.question.answer());
    Ok(Some(asked))
}

/// Returns the last method whose kernel-independent packages are installed: an earlier run or the administrator began with it.
/// The last one, because the packages of a method can be a subset of the packages of a later method, but not of an earlier one.
fn begun_method(
    methods: &[ModuleMethod],
    is_met: impl Fn(&[PackageSpec]) -> bool,
) -> Option<usize> {
    methods.iter().rposition(|method| {
        let common: Vec<PackageSpec> = method.common().cloned().collect();
        !common.is_empty() && is_met(&common)
    })
}

/// Returns the lines in package manager configuration that hide packages to be installed for the driver module. In the
/// package lists, hidden packages look like missing ones.
fn hidden(
    cx: &Cx<'_>,
    spec: &KernelSpec,
    kernels: &[KernelVersion],
    installed: &InstalledPackages,
) -> Result<Vec<String>, StepError> {
    let exclusions = packages::backend(cx).exclusions(cx.host.files())?;
    let of_ways =
        (spec.methods.iter()).flat_map(|method| method.common().chain(method.by_kernel()));
    let templates: Vec<PackageSpec> = of_ways.cloned().collect();
    let names: Vec<String> = (spec.packages(&templates, kernels).into_iter())
        .map(|spec| spec.name)
        .filter(|name| !installed.contains_key(name))
        .collect();
    Ok((exclusions.iter())
        .filter(|one| names.iter().any(|name| one.hides(name)))
        .map(ToString::to_string)
        .collect())
}

/// Returns the running kernel with the reason, if the matrix or the profile excludes a module for it, but not for the
/// kernel of the next boot.
fn left(
    cx: &Cx<'_>,
    spec: &KernelSpec,
    needed: &[KernelVersion],
) -> Option<(KernelVersion, String)> {
    let [running, next] = needed else {
        return None;
    };
    let driver = cx.desired.driver.as_ref()?;
    let why = |kernel: &KernelVersion| {
        if let Some((_, row)) = spec.refusal(std::slice::from_ref(kernel)) {
            return Some(row.why.clone());
        }
        let matrix = cx.matrix?;
        let newest = || Some(matrix.branch(driver.branch)?.newest_version.clone());
        let offer = Candidate {
            version: driver.version.clone().or_else(newest)?,
            flavor: driver.flavor,
        };
        strongest(matrix, kernel, cx.facts.kernel.arch.as_deref(), &offer)
            .filter(|rule_result| rule_result.evaluation == Evaluation::Refuse)
            .map(|rule_result| rule_result.text)
    };
    let reason = why(running)?;
    why(next).is_none().then(|| (running.clone(), reason))
}

/// Returns whether Secure Boot would certainly reject a module compiled on this machine. `false` if a signing key is
/// configured, because the `secure-boot` step checks whether the machine trusts it.
fn is_unsigned(cx: &Cx<'_>) -> Result<bool, StepError> {
    let signs = (cx.desired.driver.as_ref()).is_some_and(|driver| driver.signing.is_some());
    if signs {
        return Ok(false);
    }
    Ok(cx.facts.secure_boot == SecureBoot::Enabled && cx.state.loaded_driver()?.is_none())
}

/// Matrix rules about compiling the driver module for kernels that could be installed. Needed only for these: the
/// driver selection has evaluated the kernels of the machine, and packaged modules are already compiled.
struct CompilableKernels<'a> {
    matrix: Option<&'a Matrix>,
    arch: Option<&'a str>,
    offer: Option<Candidate>,
    needed: Vec<KernelVersion>,
}

impl<'a> CompilableKernels<'a> {
    fn of(cx: &Cx<'a>, method: &ModuleMethod, lists: &KernelLists, kernels: &Kernels) -> Self {
        let offer = (cx.desired.driver.as_ref()).and_then(|driver| {
            let picked = driver.version.clone();
            let version = picked.or_else(|| lists.driver(packages::backend(cx), method))?;
            Some(Candidate {
                version,
                flavor: driver.flavor,
            })
        });
        Self {
            matrix: cx.matrix,
            arch: cx.facts.kernel.arch.as_deref(),
            offer,
            needed: kernels.needed(),
        }
    }

    fn rule_result(&self, kernel: &KernelVersion) -> Option<RuleResult> {
        strongest(self.matrix?, kernel, self.arch, self.offer.as_ref()?)
    }

    /// Removes kernels that the matrix rates worse than the kernels of the machine. Returns the reasons.
    fn rule_out(&self, kernels: &mut BTreeSet<KernelVersion>) -> BTreeSet<String> {
        let rank = |kernel: &KernelVersion| {
            let evaluation = self
                .rule_result(kernel)
                .map(|rule_result| rule_result.evaluation);
            evaluation.filter(|evaluation| *evaluation >= Evaluation::Against)
        };
        let now = self.needed.iter().filter_map(rank).max();
        let mut whys = BTreeSet::new();
        kernels.retain(|kernel| {
            let stays = self.needed.contains(kernel) || rank(kernel) <= now;
            if !stays {
                whys.extend(self.rule_result(kernel).map(|rule_result| rule_result.text));
            }
            stays
        });
        whys
    }
}

/// Kernel and driver packages in the package lists and in the package database.
struct KernelLists {
    arch: String,
    /// The kernels that may have a package of each template: the needed kernels, and newer ones of the same flavor in
    /// the package lists.
    named: Vec<(PackageSpec, BTreeSet<KernelVersion>)>,
    /// Available or installed versions, by package.
    versions: BTreeMap<String, Vec<String>>,
}

impl KernelLists {
    /// Reads the lists. `None` if they are missing or the kernels of the machine are unknown.
    async fn read(
        cx: &Cx<'_>,
        spec: &KernelSpec,
        kernels: &Kernels,
        installed: &InstalledPackages,
    ) -> Result<Option<Self>, StepError> {
        if !packages::has_lists(cx)? {
            return Ok(None);
        }
        let needed = kernels.needed();
        let Some(base) = kernels.base() else {
            return Ok(None);
        };
        // Skip kernels of other flavors, and kernels older than the default boot kernel.
        let of_use = |kernel: &KernelVersion| {
            needed.contains(kernel) || (kernel.flavor() == base.flavor() && *kernel > base)
        };
        let mut found = Self {
            arch: spec.arch.clone(),
            named: Vec::new(),
            versions: BTreeMap::new(),
        };
        let mut names: BTreeSet<String> = BTreeSet::new();
        let templates: Vec<&PackageSpec> = (spec.image.iter())
            .chain(spec.methods.iter().flat_map(ModuleMethod::by_kernel))
            .collect();
        // Run the queries in parallel. The loop gets their results from the state.
        let lookups: Vec<_> = (templates.iter())
            .filter_map(|template| template.name.split_once("{kernel}"))
            .map(|(prefix, _)| packages::names(cx, prefix))
            .collect();
        try_join_all(lookups).await?;
        for template in templates {
            if found.named.iter().any(|(known, _)| known == template) {
                continue;
            }
            let mut kernels: BTreeSet<KernelVersion> = BTreeSet::new();
            if let Some((prefix, suffix)) = template.name.split_once("{kernel}") {
                let offered = packages::names(cx, prefix).await?;
                kernels.extend(
                    (offered.iter())
                        .filter_map(|name| name.strip_prefix(prefix)?.strip_suffix(suffix))
                        .filter_map(|kernel| kernel.parse().ok())
                        .filter(of_use),
                );
            }
            kernels.extend(needed.iter().cloned());
            names.extend(
                (kernels.iter()).map(|kernel| for_kernel(template, kernel, &spec.arch).name),
            );
            found.named.push((template.clone(), kernels));
        }
        names.extend(
            (spec.methods.iter())
                .flat_map(ModuleMethod::common)
                .map(|one| one.name.clone()),
        );
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        found.versions = packages::offered_versions(cx, &names).await?;
        for (name, package) in installed {
            if package.complete && found.versions.contains_key(name) {
                let versions = found.versions.entry(name.clone()).or_default();
                versions.push(package.version.clone());
                versions.extend(package.further.iter().cloned());
            }
        }
        // Templates where the package version contains the kernel version, instead of the package name.
        for (template, kernels) in &mut found.named {
            if template.version.as_deref() == Some("{kernel-version}") {
                // Only packages of the variant of this kernel, because other variants have different package names.
                let name = for_kernel(template, &base, &spec.arch).name;
                let variant = (base.as_str().split_once('+'))
                    .map(|(_, variant)| format!("+{variant}"))
                    .unwrap_or_default();
                let release = |version: &String| format!("{version}.{}{variant}", spec.arch);
                kernels.extend(
                    (found.versions.get(&name).into_iter().flatten())
                        .filter_map(|version| release(version).parse().ok())
                        .filter(of_use),
                );
            }
        }
        Ok(Some(found))
    }

    /// Returns the kernels whose packaged module would not match the version of the libraries. The archive builds new
    /// modules only for its newest kernels.
    async fn other_modules(
        &self,
        cx: &Cx<'_>,
        method: &ModuleMethod,
        kernels: &BTreeSet<KernelVersion>,
    ) -> Result<BTreeMap<KernelVersion, String>, StepError> {
        let libraries = self.driver(packages::backend(cx), method);
        let modules: BTreeMap<String, &KernelVersion> = (kernels.iter())
            .flat_map(|kernel| {
                let of_kernel = (method.packages.iter())
                    .filter(|spec| spec.version.is_none() && names_kernel(spec));
                of_kernel.map(move |spec| (for_kernel(spec, kernel, &self.arch).name, kernel))
            })
            .collect();
        let (Some(libraries), false) = (libraries, modules.is_empty()) else {
            return Ok(BTreeMap::new());
        };
        let names: Vec<&str> = modules.keys().map(String::as_str).collect();
        let bounds = packages::lower_bounds(cx, &names).await?;
        let differs = bounds.iter().filter_map(|package| {
            let module = package.driver(libraries.branch())?;
            let kernel = modules.get(&package.name)?;
            (module != libraries).then(|| {
                let name = &package.name;
                let text = format!("{name} is driver {module}, but the libraries are {libraries}");
                ((*kernel).clone(), text)
            })
        });
        Ok(differs.collect())
    }

    /// Returns the driver version that this method would install, from its kernel-independent packages.
    fn driver(&self, backend: &dyn Backend, method: &ModuleMethod) -> Option<DriverVersion> {
        method.common().find_map(|spec| {
            let wanted = spec.version.as_deref()?;
            let mut versions = self.versions.get(&spec.name)?.iter();
            let version = versions.find(|version| backend.matches(wanted, version))?;
            DriverVersion::from_package(version).ok()
        })
    }

    fn has(&self, name: &str) -> bool {
        self.versions
            .get(name)
            .is_some_and(|versions| !versions.is_empty())
    }

    /// Returns the kernels for which this package is available or installed.
    fn kernels(&self, template: &PackageSpec) -> BTreeSet<KernelVersion> {
        let found = self.named.iter().find(|(known, _)| known == template);
        (found.into_iter().flat_map(|(_, kernels)| kernels))
            .filter(|kernel| {
                let spec = for_kernel(template, kernel, &self.arch);
                let versions = self.versions.get(&spec.name).map_or(&[][..], Vec::as_slice);
                match &spec.version {
                    // An exact version, which is the kernel version.
                    Some(version) => versions.contains(version),
                    None => !versions.is_empty(),
                }
            })
            .cloned()
            .collect()
    }
}

/// Returns the index of the selected method, and the kernels that need a module of it.
pub(super) fn chosen(
    answer: &KernelAnswer,
    kernels: &Kernels,
) -> Option<(usize, Vec<KernelVersion>)> {
    match answer {
        KernelAnswer::Here { method } => Some((*method, kernels.needed())),
        KernelAnswer::Boot { method, kernel } | KernelAnswer::Install { method, kernel, .. } => {
            Some((*method, vec![kernel.clone()]))
        }
        KernelAnswer::Unknown | KernelAnswer::Refused(_) => None,
    }
}

/// Completes the desired state when the answer is known: the packages for the kernels that will run, with the selected
/// method. `None` if the answer is unknown or nothing changes.
///
/// # Errors
/// If the machine state or the lists cannot be read.
pub async fn resolve(cx: &Cx<'_>) -> Result<Option<Desired>, StepError> {
    let Some(asked) = ask(cx).await? else {
        return Ok(None);
    };
    let found = (asked.answer.as_ref()).and_then(|one| chosen(one, &asked.question.kernels));
    let (Some((method, kernels)), Some(spec)) = (found, &cx.desired.kernel) else {
        return Ok(None);
    };
    let Some(method) = spec.methods.get(method) else {
        return Ok(None);
    };
    let mut desired = cx.desired.clone();
    desired.headers = spec.packages(&method.headers, &kernels);
    desired.container_modules = spec.packages(&spec.container_modules, &kernels);
    if let Some(driver) = &mut desired.driver {
        let packages = spec.packages(&method.packages, &kernels);
        driver.packages = asked
            .builds
            .resolved(packages::backend(cx), method, packages);
        // A packaged module needs its kernel, and `Guard` rejects a new kernel that the transaction does not list.
        if let (Some(KernelAnswer::Install { .. }), Some(image)) = (&asked.answer, &spec.image) {
            let images = spec.packages(std::slice::from_ref(image), &kernels);
            driver.packages.extend(images);
        }
        if let Some(package) = method.prebuilt_package() {
            let packages = spec.packages(std::slice::from_ref(&package), &kernels);
            driver.packages.extend(packages);
        }
        driver.take_module(method);
        if let Some(branch) = method.branch {
            driver.branch = branch;
            desired.packages.guard.driver = Some(branch);
        }
    }
    Ok((desired != *cx.desired).then_some(desired))
}

#[cfg(test)]
mod tests {
    use super::{Candidate, CompilableKernels, PackageSpec, begun_method, left};
    use crate::{
        config::kernel::RefusedKernel,
        host::fake,
        model::{gpu::Flavor, version::KernelVersion},
        steps::fixtures,
    };

    #[test]
    fn method_with_installed_packages_is_begun() {
        let method = |names: &[&str]| {
            let mut method = fixtures::desired()
                .kernel
                .expect("a kernel")
                .methods
                .remove(0);
            method.headers.clear();
            method.packages = crate::steps::specs::fixtures::specs(names);
            method
        };
        // The first method, with precompiled modules, has only packages for one kernel each.
        let methods = [
            method(&["modules-{kernel}"]),
            method(&["driver"]),
            method(&["driver", "driver-dkms"]),
        ];
        for (installed, expected) in [
            (&[][..], None),
            (&["driver"], Some(1)),
            (&["driver", "driver-dkms"], Some(2)),
        ] {
            let is_met =
                |specs: &[PackageSpec]| specs.iter().all(|spec| installed.contains(&&*spec.name));
            assert_eq!(begun_method(&methods, is_met), expected, "{installed:?}");
        }
    }

    #[test]
    fn running_kernel_without_module_is_ignored_before_reboot() {
        let (host, _) = fake::host();
        let facts = fixtures::facts();
        let state = fixtures::state(&host, facts.clone());
        let mut desired = fixtures::desired();
        let driver = desired.driver.as_mut().expect("a driver");
        driver.version = "535.261.03".parse().ok();
        let mut spec = desired.kernel.clone().expect("a kernel");
        spec.refused = vec![RefusedKernel {
            kernels: "*uek*".into(),
            why: "it is a vendor kernel".into(),
            hint: String::new(),
        }];
        let cx = fixtures::cx(&host, &facts, &state, &desired);
        let (good, mainline, vendors) = ("6.1.0-44-amd64", "6.19.3", "5.15.0-1.el9uek.x86_64");
        for (running, next, expected) in [
            (mainline, good, Some("6.19")),
            (vendors, good, Some("it is a vendor kernel")),
            // The machine would run the unsupported kernel after the next boot.
            (good, mainline, None),
            (vendors, mainline, None),
        ] {
            let kernel = |text: &str| -> KernelVersion { text.parse().expect("a kernel") };
            let found = left(&cx, &spec, &[kernel(running), kernel(next)]);
            assert_eq!(found.is_some(), expected.is_some(), "{running}: {found:?}");
            if let (Some((kernel, why)), Some(words)) = (found, expected) {
                assert_eq!(kernel.as_str(), running);
                assert!(why.contains(words), "{why}");
            }
        }
        assert!(left(&cx, &spec, &["6.19.3".parse().expect("a kernel")]).is_none());
    }

    #[test]
    fn kernel_with_known_build_failure_is_not_installed() {
        let matrix = crate::steps::fixtures::matrix();
        let kernel = |text: &str| text.parse().expect("a kernel");
        // From the `[[kernel-report]]` entries of the matrix with the source `OPEN-RESIZE`.
        let (old, newer, broken) = ("6.1.0-44-amd64", "6.1.0-55-amd64", "6.1.0-56-amd64");
        let evaluated = |version: &str, needed: &str| CompilableKernels {
            matrix: Some(&matrix),
            arch: Some("x86_64"),
            offer: Some(Candidate {
                version: version.parse().expect("a version"),
                flavor: Flavor::Open,
            }),
            needed: vec![kernel(needed)],
        };
        let all = || [old, newer, broken].map(kernel).into();
        let mut kernels: std::collections::BTreeSet<_> = all();
        let whys = evaluated("535.261.03", old).rule_out(&mut kernels);
        assert_eq!(kernels, [old, newer].map(kernel).into());
        assert!(
            whys.iter().any(|why| why.contains("pci_resize_resource")),
            "{whys:?}"
        );
        // No kernel is excluded for a driver version with the fix, or on a machine that already runs the broken kernel.
        for (version, needed) in [("535.309.01", old), ("535.261.03", broken)] {
            let mut kernels: std::collections::BTreeSet<_> = all();
            assert!(evaluated(version, needed).rule_out(&mut kernels).is_empty());
            assert_eq!(kernels, all());
        }
    }
}
