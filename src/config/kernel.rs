//! Kernel requirements: the kernel package names of a profile, and the module methods with placeholders for each
//! kernel.

use serde::{Deserialize, Serialize};

use crate::{
    compat::kernels::KernelPolicy,
    model::{
        gpu::Flavor,
        packages::PackageSpec,
        pattern,
        version::{Branch, KernelVersion},
    },
};

/// Separates the driver version and the kernel in the version requirement of a module package that is built for one kernel:
/// `610.* for 5.14.0-687.12.1.el9_8.x86_64`. The kernel is only visible in the file paths of such a package.
const FOR: &str = " for ";

/// Start of the placeholder `{series-unless:6.1}`, which is replaced by the kernel series, or by nothing if the kernel has the
/// series in the placeholder. The first Amazon kernel package is `kernel`; the others have their series in the name
/// (`kernel6.12`).
const SERIES_UNLESS: &str = "{series-unless:";

/// Start of the names of the packages with prebuilt modules, which gpu-bootstrap builds.
pub const PREBUILT: &str = "nvidia-prebuilt-modules-";

/// Returns the start of the names of these packages for a flavor. The kernel follows, which starts with a digit.
pub const fn prebuilt_prefix(flavor: Flavor) -> &'static str {
    match flavor {
        Flavor::Open => "nvidia-prebuilt-modules-open-",
        Flavor::Proprietary => PREBUILT,
    }
}

/// Returns the flavor and the kernel of a package with prebuilt modules, or `None` for another package.
pub fn prebuilt_of(name: &str) -> Option<(Flavor, &str)> {
    [Flavor::Open, Flavor::Proprietary]
        .into_iter()
        .find_map(|flavor| Some((flavor, name.strip_prefix(prebuilt_prefix(flavor))?)))
}

/// Whether it is a DKMS package: one with the source from which DKMS compiles a module. All of them have `dkms` in their names.
/// The metapackage for precompiled modules on Ubuntu is `nvidia-headless-no-dkms-580-server`.
pub fn is_dkms_package(name: &str) -> bool {
    name.contains("nvidia") && name.contains("dkms") && !name.contains("no-dkms")
}

/// How to install a kernel. The texts are `NAME` or `NAME=VERSION`, with the placeholders `{kernel}`,
/// `{kernel-version}`, `{variant}`, `{abi}`, `{flavor}`, `{series}`, and `{series-unless:6.1}`, which is empty for a
/// kernel of that series.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct KernelRow {
    /// The package that contains a kernel.
    pub image: String,
    /// The package with the newest kernel of the distribution, for a machine that runs a different kernel. A name
    /// with `{package-arch}`.
    pub newest: String,
    /// Additional packages of a kernel that a new kernel also gets, if the current one has them.
    #[serde(default)]
    pub companions: Vec<String>,
    /// Packages that keep a machine at the newest kernel of its series, if they are available for exactly the
    /// installed kernel.
    #[serde(default)]
    pub follow: Vec<String>,
    /// Kernels without a possible driver module.
    #[serde(default)]
    pub refused: Vec<RefusedKernel>,
    /// The source of this entry and its reliability.
    #[serde(rename = "facts")]
    pub citation: String,
}

/// Kernels without a possible driver module, regardless of available packages.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct RefusedKernel {
    /// A shell pattern for `uname -r`.
    pub kernels: String,
    /// Description and reason, printed after the kernel release and a colon.
    pub why: String,
    /// The remedy.
    pub hint: String,
}

/// Kernel requirements. Package names and versions have placeholders if they differ between kernels.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct KernelSpec {
    /// The kernel policy.
    pub policy: KernelPolicy,
    /// The architecture by kernel name.
    pub arch: String,
    /// The package that contains a kernel. `None` if the profile does not specify it.
    pub image: Option<PackageSpec>,
    /// Additional packages that a new kernel also gets, if the current one has them.
    pub companions: Vec<PackageSpec>,
    /// Packages that keep the machine at the newest kernel of its series.
    pub follow: Vec<PackageSpec>,
    /// Packages with kernel modules that containers need.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub container_modules: Vec<PackageSpec>,
    /// Kernels without a possible driver module.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<RefusedKernel>,
    /// The module methods in order of preference.
    pub methods: Vec<ModuleMethod>,
}

/// A module method: precompiled for the kernel, or compiled with its headers.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct ModuleMethod {
    /// The driver's packages.
    pub packages: Vec<PackageSpec>,
    /// Headers and build tools.
    pub headers: Vec<PackageSpec>,
    /// Packages that keep the modules at the newest kernel of a series.
    pub follow: Vec<PackageSpec>,
    /// The name under which the module is compiled on the machine. `None` if it is precompiled.
    pub compiled_as: Option<String>,
    /// File name of the module.
    pub module: String,
    /// The DKMS package that packages with prebuilt modules replace (`driver.prebuilt.only`), and its flavor, see [`PREBUILT`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prebuilt: Option<(PackageSpec, Flavor)>,
    /// The branch of the packages, if the package lists decide which branch has a module for the kernel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub branch: Option<Branch>,
    /// Names of packages that must have the same version as the module that is built for the kernel, see [`built_for`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub companions: Vec<String>,
}

impl ModuleMethod {
    /// Whether the module is compiled on the machine.
    pub const fn is_compiled(&self) -> bool {
        self.compiled_as.is_some()
    }

    /// Returns the same method with prebuilt modules: without compiler, headers and DKMS package. A method with precompiled
    /// modules, or without a DKMS package, is unchanged.
    pub(super) fn without_compiler(self, flavor: Flavor) -> Self {
        let is_replaced = |spec: &PackageSpec| is_dkms_package(&spec.name);
        let replaced = self.packages.iter().find(|spec| is_replaced(spec)).cloned();
        let (Some(replaced), true) = (replaced, self.is_compiled()) else {
            return self;
        };
        let mut packages = self.packages;
        packages.retain(|spec| !is_replaced(spec));
        Self {
            packages,
            headers: Vec::new(),
            compiled_as: None,
            prebuilt: Some((replaced, flavor)),
            ..self
        }
    }

    /// Returns the package with the prebuilt modules of a kernel, with a placeholder for the kernel.
    pub fn prebuilt_package(&self) -> Option<PackageSpec> {
        (self.prebuilt.as_ref()).map(|(replaced, flavor)| PackageSpec {
            name: format!("{}{{kernel}}", prebuilt_prefix(*flavor)),
            version: replaced.version.clone(),
        })
    }
}

impl KernelSpec {
    /// Returns the packages for these kernels. Packages without placeholders are included once.
    pub fn packages(
        &self,
        templates: &[PackageSpec],
        kernels: &[KernelVersion],
    ) -> Vec<PackageSpec> {
        expand(templates, kernels, &self.arch)
    }
}

impl KernelSpec {
    /// Returns the first of these kernels without a possible module, with the reason.
    pub fn refusal<'k>(
        &self,
        kernels: &'k [KernelVersion],
    ) -> Option<(&'k KernelVersion, &RefusedKernel)> {
        (kernels.iter()).find_map(|kernel| {
            let is_it = |one: &&RefusedKernel| pattern::matches(&one.kernels, kernel.as_str());
            Some((kernel, self.refused.iter().find(is_it)?))
        })
    }

    /// Returns whether the methods are of several branches, so that the package lists decide.
    pub fn is_open(&self) -> bool {
        let mut branches = self.methods.iter().filter_map(|method| method.branch);
        branches
            .next()
            .is_some_and(|first| branches.any(|one| one != first))
    }

    /// Returns shell patterns for names of module packages that contain the kernel and have no required version.
    pub fn module_patterns(&self) -> Vec<String> {
        (self.methods.iter().flat_map(|method| &method.packages))
            .filter(|spec| spec.version.is_none() && spec.name.contains("{kernel}"))
            .map(|spec| spec.name.replace("{kernel}", "*"))
            .collect()
    }

    /// Returns the names of the kernel packages of these kernels.
    pub fn of_kernels(&self, kernels: &[KernelVersion]) -> Vec<String> {
        let follow = self.methods.iter().flat_map(|method| &method.follow);
        let prebuilt = (self.methods.iter()).filter_map(ModuleMethod::prebuilt_package);
        let templates: Vec<PackageSpec> = (self.image.iter().chain(&self.companions))
            .chain(self.follow.iter().chain(follow))
            .cloned()
            .chain(prebuilt)
            .collect();
        let packages = self.packages(&templates, kernels).into_iter();
        packages.map(|spec| spec.name).collect()
    }
}

impl ModuleMethod {
    /// Returns the packages of this method that differ between kernels.
    pub fn by_kernel(&self) -> impl Iterator<Item = &PackageSpec> {
        (self.packages.iter().chain(&self.headers)).filter(|spec| names_kernel(spec))
    }

    /// Sets these packages to exact versions.
    pub fn fix(&mut self, exact: &[PackageSpec]) {
        if let Some((replaced, _)) = &mut self.prebuilt
            && let Some(one) = exact.iter().find(|one| one.name.starts_with(PREBUILT))
        {
            replaced.version.clone_from(&one.version);
        }
        for spec in &mut self.packages {
            let Some(one) = exact.iter().find(|one| one.name == spec.name) else {
                continue;
            };
            spec.version = match (built_for(spec).is_some(), &one.version) {
                (true, Some(version)) => Some(for_its_kernel(version)),
                (_, version) => version.clone(),
            };
        }
    }

    /// Returns the packages whose version requirement contains the kernel, see [`built_for`].
    pub fn built(&self) -> impl Iterator<Item = &PackageSpec> {
        (self.packages.iter()).filter(|spec| built_for(spec).is_some())
    }

    /// Returns the packages of this method that are the same for all kernels.
    pub fn common(&self) -> impl Iterator<Item = &PackageSpec> {
        (self.packages.iter().chain(&self.headers)).filter(|spec| !names_kernel(spec))
    }
}

/// Parses `NAME` or `NAME=VERSION`.
pub(super) fn template(text: &str) -> PackageSpec {
    match text.split_once('=') {
        Some((name, version)) => PackageSpec {
            name: name.to_owned(),
            version: Some(version.to_owned()),
        },
        None => PackageSpec {
            name: text.to_owned(),
            version: None,
        },
    }
}

/// Returns the requirement for the build of this version for one kernel, with a placeholder for the kernel.
pub(super) fn for_its_kernel(version: &str) -> String {
    format!("{version}{FOR}{{kernel}}")
}

/// Parses a requirement for the build for one kernel, and returns the version pattern and the kernel. `None` for any other
/// requirement.
pub fn built_for(spec: &PackageSpec) -> Option<(&str, &str)> {
    spec.version.as_deref()?.split_once(FOR)
}

/// Returns whether a package differs between kernels.
pub fn names_kernel(spec: &PackageSpec) -> bool {
    let has = |text: &str| {
        [
            "{kernel}",
            "{kernel-version}",
            "{variant}",
            "{abi}",
            "{flavor}",
            "{series}",
            SERIES_UNLESS,
        ]
        .iter()
        .any(|placeholder| text.contains(placeholder))
    };
    has(&spec.name) || spec.version.as_deref().is_some_and(has)
}

/// Returns the packages for these kernels without duplicates.
pub(super) fn expand(
    templates: &[PackageSpec],
    kernels: &[KernelVersion],
    arch: &str,
) -> Vec<PackageSpec> {
    let mut found: Vec<PackageSpec> = Vec::new();
    for spec in templates {
        let filled: Vec<PackageSpec> = if names_kernel(spec) {
            (kernels.iter())
                .map(|kernel| for_kernel(spec, kernel, arch))
                .collect()
        } else {
            vec![spec.clone()]
        };
        for spec in filled {
            if !found.contains(&spec) {
                found.push(spec);
            }
        }
    }
    found
}

/// Returns the package for one kernel.
pub fn for_kernel(spec: &PackageSpec, kernel: &KernelVersion, arch: &str) -> PackageSpec {
    let (major, minor) = kernel.series();
    let whole = kernel.as_str();
    // RPM kernel packages have the kernel release as their version, without the architecture.
    let version = (whole.split_once(&format!(".{arch}"))).map_or(whole, |(version, _)| version);
    // The kernel release has the variant after a plus sign, the packages after a dash.
    let variant = (whole.split_once('+')).map(|(_, variant)| format!("-{variant}"));
    let flavor = kernel.flavor().unwrap_or_default();
    let abi = whole.strip_suffix(flavor).unwrap_or(whole);
    let fill = |text: &str| {
        series_unless(text, &format!("{major}.{minor}"))
            .replace("{kernel}", whole)
            .replace("{kernel-version}", version)
            .replace("{variant}", variant.as_deref().unwrap_or_default())
            .replace("{flavor}", flavor)
            .replace("{series}", &format!("{major}.{minor}"))
            .replace("{abi}", abi.trim_end_matches(['-', '+']))
    };
    PackageSpec {
        name: fill(&spec.name),
        version: spec.version.as_deref().map(fill),
    }
}

/// Returns the package for an unknown kernel. Placeholders for the kernel stay in its name and version.
pub fn for_any_kernel(spec: &PackageSpec) -> PackageSpec {
    PackageSpec {
        name: series_unless(&spec.name, "{series}"),
        version: spec.version.clone(),
    }
}

/// Replaces [`SERIES_UNLESS`].
fn series_unless(text: &str, series: &str) -> String {
    let filled = (text.split_once(SERIES_UNLESS))
        .and_then(|(before, rest)| Some((before, rest.split_once('}')?)));
    match filled {
        Some((before, (unnamed, after))) => {
            let named = if unnamed == series { "" } else { series };
            format!("{before}{named}{}", series_unless(after, series))
        }
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn package_names_follow_the_kernel() {
        for (text, kernel, expected) in [
            (
                "linux-image-{kernel}",
                "6.8.0-1050-aws",
                "linux-image-6.8.0-1050-aws",
            ),
            (
                "linux-image-{flavor}-{series}={abi}.*",
                "6.8.0-1050-aws",
                "linux-image-aws-6.8=6.8.0-1050.*",
            ),
            (
                "linux-image-{flavor}-{series}={abi}.*",
                "6.8.0-1050-aws-64k",
                "linux-image-aws-64k-6.8=6.8.0-1050.*",
            ),
            (
                "kernel-core={kernel-version}",
                "5.14.0-570.12.1.el9_6.x86_64",
                "kernel-core=5.14.0-570.12.1.el9_6",
            ),
            (
                "kernel{variant}-devel-matched={kernel-version}",
                "5.14.0-570.12.1.el9_6.x86_64",
                "kernel-devel-matched=5.14.0-570.12.1.el9_6",
            ),
            (
                "kmod-nvidia-open=610.* for {kernel}",
                "5.14.0-570.12.1.el9_6.x86_64",
                "kmod-nvidia-open=610.* for 5.14.0-570.12.1.el9_6.x86_64",
            ),
            (
                "kernel{series-unless:6.1}-devel={kernel-version}",
                "6.1.158-180.294.amzn2023.x86_64",
                "kernel-devel=6.1.158-180.294.amzn2023",
            ),
            (
                "kernel{series-unless:6.1}-devel={kernel-version}",
                "6.12.58-82.121.amzn2023.aarch64",
                "kernel6.12-devel=6.12.58-82.121.amzn2023",
            ),
            (
                "kernel{variant}-devel-matched={kernel-version}",
                "5.14.0-570.12.1.el9_6.aarch64+64k",
                "kernel-64k-devel-matched=5.14.0-570.12.1.el9_6",
            ),
        ] {
            let arch = if kernel.contains("aarch64") {
                "aarch64"
            } else {
                "x86_64"
            };
            let spec = for_kernel(&template(text), &kernel.parse().unwrap(), arch);
            assert_eq!(spec, template(expected), "{text}");
        }
    }
}
