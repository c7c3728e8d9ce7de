//! Module packages whose builds are for one kernel each. Only their file paths contain the kernel version, not their
//! name or package version. A build counts only for exactly that kernel. RPM systems also link its modules into the
//! directories of other kernels (`weak-updates`), but these symlinks can be dangling and are ignored.
//!
//! A source of such builds (`at = "kernel"` in a profile) has few branches per kernel. Therefore each branch that the
//! matrix accepts is a separate module method, in matrix order, and `kernels::resolve` sets the selected branch in the
//! desired state. Such a source is never the default, because its contents change daily.

use std::{
    cmp::Ordering,
    collections::{BTreeMap, BTreeSet},
};

use camino::Utf8Path;

use super::{packages, specs::InstalledPackages};
use crate::{
    config::{
        desired::{KernelSpec, ModuleMethod, PackageSpec},
        kernel::built_for,
    },
    model::version::{DriverVersion, KernelVersion},
    state::StateError,
    step::{Cx, StepError},
    tools::packages::Backend,
};

/// One build of a package.
#[derive(Debug, Clone, PartialEq, Eq)]
struct PackageBuild {
    version: String,
    kernels: BTreeSet<KernelVersion>,
}

/// The kernels of module builds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Builds {
    /// Builds by package: the installed build first, then the available builds, newest first.
    known: BTreeMap<String, Vec<PackageBuild>>,
    /// Available and installed versions of the companion packages, by package.
    companions: BTreeMap<String, BTreeSet<String>>,
}

/// Returns the kernel of a driver module file such as `/lib/modules/KERNEL/extra/nvidia.ko.xz`. `None` for other files.
fn kernel_of(path: &Utf8Path, module: &str) -> Option<KernelVersion> {
    let path = path.strip_prefix("/usr").unwrap_or(path);
    let below = path
        .strip_prefix("/lib/modules")
        .or(path.strip_prefix("lib/modules"));
    let below = below.ok()?;
    let mut parts = below.components();
    let kernel = parts.next()?;
    let file = below.file_name()?;
    let is_module = (file.strip_prefix(module)).is_some_and(|rest| {
        rest == ".ko" || rest.strip_prefix(".ko.").is_some_and(|end| !end.is_empty())
    });
    let is_link = parts.any(|part| part.as_str() == "weak-updates");
    (is_module && !is_link).then(|| kernel.as_str().parse().ok())?
}

/// Returns the names of packages with builds, and of their companion packages.
fn names(spec: &KernelSpec) -> (BTreeSet<&str>, BTreeSet<&str>) {
    let built = spec.methods.iter().flat_map(ModuleMethod::built);
    let built: BTreeSet<&str> = built.map(|one| one.name.as_str()).collect();
    let companions = (spec
        .methods
        .iter()
        .filter(|method| method.built().next().is_some()))
    .flat_map(|method| method.companions.iter().map(String::as_str));
    (built, companions.collect())
}

fn module_of<'w>(spec: &'w KernelSpec, name: &str) -> &'w str {
    let method = (spec.methods.iter()).find(|method| method.built().any(|one| one.name == name));
    method.map_or("nvidia", |method| method.module.as_str())
}

impl Builds {
    /// Reads the installed builds.
    pub(super) async fn installed(
        cx: &Cx<'_>,
        spec: &KernelSpec,
        installed: &InstalledPackages,
    ) -> Result<Self, StepError> {
        let mut found = Self::default();
        let (built, companions) = names(spec);
        let there = |name: &&str| installed.get(*name).filter(|package| package.complete);
        for name in built {
            let Some(package) = there(&name) else {
                continue;
            };
            let only = BTreeSet::from([name.to_owned()]);
            let paths = packages::backend(cx).owned_by(cx.host, &only).await;
            let paths = paths.map_err(StateError::from)?;
            let module = module_of(spec, name);
            let build = PackageBuild {
                version: package.version.clone(),
                kernels: paths
                    .iter()
                    .filter_map(|one| kernel_of(one, module))
                    .collect(),
            };
            found.known.insert(name.to_owned(), vec![build]);
        }
        for name in companions {
            if let Some(package) = there(&name) {
                let versions = found.companions.entry(name.to_owned()).or_default();
                versions.insert(package.version.clone());
            }
        }
        Ok(found)
    }

    /// Adds the builds that repositories provide, from the existing package lists.
    pub(super) async fn add_offered(
        &mut self,
        cx: &Cx<'_>,
        spec: &KernelSpec,
    ) -> Result<(), StepError> {
        let (built, companions) = names(spec);
        if built.is_empty() {
            return Ok(());
        }
        let built: Vec<&str> = built.into_iter().collect();
        let mut offered: BTreeMap<String, Vec<PackageBuild>> = BTreeMap::new();
        for contents in packages::contents(cx, &built).await? {
            let module = module_of(spec, &contents.name);
            let kernels = contents
                .paths
                .iter()
                .filter_map(|one| kernel_of(one, module));
            offered
                .entry(contents.name)
                .or_default()
                .push(PackageBuild {
                    version: contents.version,
                    kernels: kernels.collect(),
                });
        }
        let companions: Vec<&str> = companions.into_iter().collect();
        for (name, versions) in packages::offered_versions(cx, &companions).await? {
            self.companions.entry(name).or_default().extend(versions);
        }
        for (name, builds) in offered {
            self.add(packages::backend(cx), &name, builds);
        }
        Ok(())
    }

    fn add(&mut self, backend: &dyn Backend, name: &str, mut builds: Vec<PackageBuild>) {
        builds.sort_by(|a, b| match backend.compare(&b.version, &a.version) {
            // The same build can be in several repositories.
            Ordering::Equal => b.kernels.len().cmp(&a.kernels.len()),
            order => order,
        });
        let known = self.known.entry(name.to_owned()).or_default();
        for build in builds {
            if !known.iter().any(|one| one.version == build.version) {
                known.push(build);
            }
        }
    }

    /// Removes the builds of a module method that lack a companion package of the same driver version. Returns the
    /// reason for each kernel without a remaining build.
    pub(super) fn complete_alone(
        &mut self,
        backend: &dyn Backend,
        method: &ModuleMethod,
    ) -> BTreeMap<KernelVersion, String> {
        let mut lost: BTreeMap<KernelVersion, String> = BTreeMap::new();
        for template in method.built() {
            let Some((pattern, _)) = built_for(template) else {
                continue;
            };
            let companions = &self.companions;
            let lacks = |build: &PackageBuild| {
                let version = DriverVersion::from_package(&build.version).ok()?;
                let fits = format!("{version}-*");
                (method.companions.iter()).find_map(|name| {
                    let mut versions = companions.get(name).into_iter().flatten();
                    let has = versions.any(|one| backend.matches(&fits, one));
                    (!has).then(|| format!("no repository offers {name} {version}"))
                })
            };
            let Some(builds) = self.known.get_mut(&template.name) else {
                continue;
            };
            builds.retain(|build| {
                let why = (backend.matches(pattern, &build.version))
                    .then(|| lacks(build))
                    .flatten();
                let Some(why) = why else { return true };
                for kernel in &build.kernels {
                    let text = format!("{} {}: {why}", template.name, build.version);
                    lost.entry(kernel.clone()).or_insert(text);
                }
                false
            });
            let builds = &*builds;
            lost.retain(|kernel, _| {
                let is_for = |build: &PackageBuild| {
                    build.kernels.contains(kernel) && backend.matches(pattern, &build.version)
                };
                !builds.iter().any(is_for)
            });
        }
        lost
    }

    /// Returns the kernels that have a build of a package in the version of the template.
    pub(super) fn kernels(
        &self,
        backend: &dyn Backend,
        template: &PackageSpec,
    ) -> BTreeSet<KernelVersion> {
        let Some((pattern, _)) = built_for(template) else {
            return BTreeSet::new();
        };
        let known = self.known.get(&template.name).into_iter().flatten();
        (known.filter(|build| backend.matches(pattern, &build.version)))
            .flat_map(|build| build.kernels.iter().cloned())
            .collect()
    }

    /// Returns the needed kernels that the build for the last one also serves. Only one build can be installed, and the
    /// default boot kernel, which is last, has priority. Without a build for it, all needed kernels are returned.
    pub(super) fn together(
        &self,
        backend: &dyn Backend,
        method: &ModuleMethod,
        needed: &[KernelVersion],
    ) -> BTreeSet<KernelVersion> {
        let mut all: BTreeSet<KernelVersion> = needed.iter().cloned().collect();
        let Some(last) = needed.last() else {
            return all;
        };
        for template in method.built() {
            let Some((pattern, _)) = built_for(template) else {
                continue;
            };
            let serving = self.find(backend, &template.name, pattern, last);
            all.retain(|kernel| {
                kernel == last || serving.is_none_or(|one| one.kernels.contains(kernel))
            });
        }
        all
    }

    fn find(
        &self,
        backend: &dyn Backend,
        name: &str,
        pattern: &str,
        kernel: &KernelVersion,
    ) -> Option<&PackageBuild> {
        let mut known = self.known.get(name).into_iter().flatten();
        known.find(|build| {
            build.kernels.contains(kernel) && backend.matches(pattern, &build.version)
        })
    }

    /// Returns the packages of a module method with the versions of the builds for their kernels, and companion
    /// packages of the same driver version. A package without a build is unchanged.
    pub(super) fn resolved(
        &self,
        backend: &dyn Backend,
        method: &ModuleMethod,
        specs: Vec<PackageSpec>,
    ) -> Vec<PackageSpec> {
        let mut module: Option<String> = None;
        let mut resolved: Vec<PackageSpec> = Vec::new();
        for spec in specs {
            let found = built_for(&spec).and_then(|(pattern, kernel)| {
                self.find(backend, &spec.name, pattern, &kernel.parse().ok()?)
            });
            let spec = match found {
                Some(build) => {
                    module.get_or_insert_with(|| build.version.clone());
                    PackageSpec {
                        version: Some(build.version.clone()),
                        ..spec
                    }
                }
                None => spec,
            };
            if !resolved.contains(&spec) {
                resolved.push(spec);
            }
        }
        let Some((module, driver)) = module.and_then(|module| {
            DriverVersion::from_package(&module)
                .ok()
                .map(|one| (module, one))
        }) else {
            return resolved;
        };
        for spec in &mut resolved {
            if method.companions.contains(&spec.name) {
                // Prefer the exact version and release of the module, which packages built together with it have.
                let same =
                    (self.companions.get(&spec.name)).is_some_and(|all| all.contains(&module));
                spec.version = Some(if same {
                    module.clone()
                } else {
                    format!("{driver}-*")
                });
            }
        }
        resolved
    }

    /// Describes the known builds, at most three of each package. `None` if no build is known.
    pub(super) fn in_words(&self) -> Option<String> {
        let one = |name: &String, build: &PackageBuild| {
            let kernels: Vec<&str> = build.kernels.iter().map(KernelVersion::as_str).collect();
            match kernels.is_empty() {
                true => format!("the kernel of {name} {} is unknown", build.version),
                false => format!("{name} {} is for {}", build.version, kernels.join(" and ")),
            }
        };
        let all: Vec<String> = (self.known.iter())
            // The installed build and the newest ones suffice.
            .flat_map(|(name, builds)| builds.iter().take(3).map(move |build| one(name, build)))
            .collect();
        (!all.is_empty()).then(|| all.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::{Builds, PackageBuild, kernel_of};
    use crate::{
        config::{desired::ModuleMethod, kernel::for_kernel},
        model::version::KernelVersion,
        steps::specs::fixtures::specs,
        tools::packages::{Backend, Manager},
    };

    const OLD: &str = "5.14.0-687.12.1.el9_8.x86_64";
    const NEW: &str = "5.14.0-687.15.1.el9_8.x86_64";

    fn dnf() -> &'static dyn Backend {
        Manager::Dnf.backend()
    }

    fn kernel(text: &str) -> KernelVersion {
        text.parse().expect("a kernel")
    }

    fn method(branch: u16) -> ModuleMethod {
        ModuleMethod {
            packages: specs(&[
                &format!("kmod-nvidia-open={branch}.* for {{kernel}}"),
                &format!("nvidia-open-kmod={branch}.*"),
                &format!("nvidia-driver-cuda={branch}.*"),
                "nvidia-persistenced",
            ]),
            headers: vec![],
            follow: vec![],
            compiled_as: None,
            module: "nvidia".into(),
            prebuilt: None,
            branch: None,
            companions: vec!["nvidia-open-kmod".into(), "nvidia-driver-cuda".into()],
        }
    }

    fn build(version: &str, kernels: &[&str]) -> PackageBuild {
        PackageBuild {
            version: version.into(),
            kernels: kernels.iter().map(|one| kernel(one)).collect(),
        }
    }

    fn builds() -> Builds {
        let mut builds = Builds::default();
        builds.add(
            dnf(),
            "kmod-nvidia-open",
            vec![
                build("3:610.43.02-2.el9", &[OLD]),
                build("3:615.71.09-1.el9", &[NEW]),
                build("3:615.71.09-2.el9", &[OLD]),
            ],
        );
        for (name, versions) in rows! {
            "nvidia-open-kmod", &["3:610.43.02-2.el9", "3:615.71.09-1.el9"][..];
            "nvidia-driver-cuda", &["3:610.43.02-1.el9", "3:615.71.09-1.el9"];
        } {
            let versions = versions.iter().map(ToString::to_string).collect();
            builds.companions.insert(name.into(), versions);
        }
        builds
    }

    #[test]
    fn module_path_determines_the_kernel() {
        for (path, expected) in rows! {
            format!("/lib/modules/{OLD}/extra/nvidia-open/nvidia.ko"), Some(OLD);
            format!("/usr/lib/modules/{OLD}/extra/nvidia.ko.xz"), Some(OLD);
            format!("/lib/modules/{OLD}/weak-updates/nvidia-open/nvidia.ko"), None;
            format!("/lib/modules/{OLD}/extra/nvidia-uvm.ko"), None;
            format!("/lib/modules/{OLD}/extra/nvidia.kox"), None;
            format!("/lib/modules/{OLD}"), None;
            "/usr/share/licenses/nvidia.ko".to_owned(), None;
        } {
            let found = kernel_of(path.as_str().into(), "nvidia");
            assert_eq!(found, expected.map(kernel), "{path}");
        }
    }

    #[test]
    fn libraries_match_the_build_of_the_kernel() {
        let resolved = |branch: u16, running: &str| -> Vec<String> {
            let method = method(branch);
            let filled = (method.packages.iter())
                .map(|one| for_kernel(one, &kernel(running), "x86_64"))
                .collect();
            let told = |one: crate::config::desired::PackageSpec| one.version.unwrap_or_default();
            (builds().resolved(dnf(), &method, filled).into_iter())
                .map(told)
                .collect()
        };
        assert_eq!(
            resolved(610, OLD),
            ["3:610.43.02-2.el9", "3:610.43.02-2.el9", "610.43.02-*", ""]
        );
        assert_eq!(resolved(615, NEW)[0], "3:615.71.09-1.el9");
        // Without a build for the kernel, the packages are unchanged.
        assert_eq!(
            resolved(610, NEW)[..2],
            [format!("610.* for {NEW}"), "610.*".to_owned()]
        );
    }

    #[test]
    fn only_kernels_with_a_build_have_a_module() {
        let of = |branch| {
            let method = method(branch);
            let template = method.packages[0].clone();
            builds().kernels(dnf(), &template)
        };
        assert_eq!(of(610), [kernel(OLD)].into());
        assert_eq!(of(615), [kernel(OLD), kernel(NEW)].into());
        assert!(of(580).is_empty());
        // Only one build can be installed, so the default boot kernel has priority.
        let both = [kernel(OLD), kernel(NEW)];
        assert_eq!(
            builds().together(dnf(), &method(615), &both),
            [kernel(NEW)].into()
        );
    }

    #[test]
    fn build_without_libraries_is_not_offered() {
        let mut builds = builds();
        let only = ["3:610.43.02-1.el9".to_owned()].into();
        builds.companions.insert("nvidia-driver-cuda".into(), only);
        assert!(builds.complete_alone(dnf(), &method(610)).is_empty());
        let lost = builds.complete_alone(dnf(), &method(615));
        assert_eq!(lost.len(), 2, "{lost:?}");
        let why =
            "kmod-nvidia-open 3:615.71.09-1.el9: no repository offers nvidia-driver-cuda 615.71.09";
        assert_eq!(lost[&kernel(NEW)], why);
        assert!(builds.kernels(dnf(), &method(615).packages[0]).is_empty());
    }
}
