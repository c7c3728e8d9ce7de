//! Placeholders in names and URLs of profiles.

use crate::{
    compat::kernels::Kernels,
    config::{
        desired::PackageSpec,
        kernel::{expand, template},
        profile::{ArchitectureNames, Release},
    },
    facts::Kernel,
    model::version::{Branch, KernelVersion},
};

/// The values of placeholders on a machine.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Placeholders {
    pub codename: String,
    pub release: String,
    /// `{version}`: the `VERSION_ID` of the machine, including the minor number.
    pub version: String,
    pub arch: String,
    pub package_arch: String,
    pub cuda_arch: String,
    /// `{kernel}`: each kernel that needs a module.
    pub kernels: Vec<KernelVersion>,
    /// `{kernel-flavor}` of the default boot kernel.
    pub kernel_flavor: Option<String>,
    /// `{compiler}` of the running kernel.
    pub compiler: Option<String>,
}

impl Placeholders {
    pub(super) fn new(
        (release, version): (&Release, &str),
        arch: &str,
        names: &ArchitectureNames,
        kernel: &Kernel,
        image: bool,
    ) -> Self {
        let kernels = Kernels {
            running: kernel.running.clone(),
            next: kernel.next_boot.clone(),
            installed: kernel.installed.clone(),
            image,
        }
        .needed();
        Self {
            codename: release.codename.clone().unwrap_or_default(),
            release: release.version_id.clone(),
            version: version.to_owned(),
            arch: arch.to_owned(),
            package_arch: names.package.clone(),
            cuda_arch: names.cuda.clone(),
            kernel_flavor: kernels
                .last()
                .and_then(|kernel| packaged_flavor(release, kernel)),
            kernels,
            compiler: kernel.compiler.clone(),
        }
    }

    /// Replaces the placeholders that have a single value on this machine.
    pub(super) fn fill(&self, text: &str) -> String {
        text.replace("{codename}", &self.codename)
            .replace("{release}", &self.release)
            .replace("{version}", &self.version)
            .replace("{arch}", &self.arch)
            .replace("{package-arch}", &self.package_arch)
            .replace("{cuda-arch}", &self.cuda_arch)
    }

    /// Replaces the placeholders in the name of a driver package, except those that differ between kernels, such as
    /// `{kernel}`. `None` if `{kernel-flavor}` has no value.
    pub(super) fn driver_template(&self, name: &str, branch: Branch) -> Option<String> {
        let name = self.fill(name).replace("{branch}", &branch.to_string());
        match (name.contains("{kernel-flavor}"), &self.kernel_flavor) {
            (true, flavor) => Some(name.replace("{kernel-flavor}", flavor.as_ref()?)),
            (false, _) => Some(name),
        }
    }

    /// Returns the packages of a kernel. Placeholders that differ between kernels are kept. A package with `{compiler}` is
    /// omitted if the compiler is unknown.
    pub(super) fn kernel_templates(&self, names: &[String]) -> Vec<PackageSpec> {
        let filled = names.iter().filter_map(|name| {
            let name = self.fill(name);
            match (name.contains("{compiler}"), &self.compiler) {
                (true, compiler) => Some(name.replace("{compiler}", compiler.as_ref()?)),
                (false, _) => Some(name),
            }
        });
        filled.map(|name| template(&name)).collect()
    }

    /// Returns the packages for the kernels that need a module.
    pub(super) fn for_kernels(&self, templates: &[PackageSpec]) -> Vec<PackageSpec> {
        expand(templates, &self.kernels, &self.arch)
    }
}

fn packaged_flavor(release: &Release, kernel: &KernelVersion) -> Option<String> {
    let flavor = kernel.flavor()?;
    let (major, minor) = kernel.series();
    let series = format!("{major}.{minor}");
    let row = release.kernel_flavor.iter().find(|row| {
        row.kernel == flavor && row.series.as_ref().is_none_or(|wanted| *wanted == series)
    });
    Some(row.map_or_else(|| flavor.to_owned(), |row| row.package.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::profile::Profile;

    fn placeholders(profile: &str, release: &str, kernel: Kernel, image: bool) -> Placeholders {
        let profile = Profile::built_in(profile).unwrap();
        let version = release;
        let release = profile.release_for(version).unwrap();
        Placeholders::new(
            (release, version),
            "x86_64",
            &profile.architecture["x86_64"],
            &kernel,
            image,
        )
    }

    #[test]
    fn newest_kernel_has_a_name_on_each_system() {
        for (name, version, arch, newest) in [
            ("debian", "12", "x86_64", "linux-image-amd64"),
            ("debian", "12", "aarch64", "linux-image-arm64"),
            ("ubuntu", "24.04", "x86_64", "linux-image-generic"),
            ("ubuntu", "24.04", "aarch64", "linux-image-generic"),
            ("almalinux", "9", "x86_64", "kernel"),
        ] {
            let profile = Profile::built_in(name).unwrap();
            let release = profile.release_for(version).unwrap();
            let names = &profile.architecture[arch];
            let placeholders = Placeholders::new(
                (release, version),
                arch,
                names,
                &kernel("6.19.3", "6.19.3", &[]),
                false,
            );
            let row = profile.kernel.as_ref().expect("a kernel entry");
            assert_eq!(placeholders.fill(&row.newest), newest);
        }
    }

    fn headers_of(placeholders: &Placeholders, names: &[String]) -> Vec<PackageSpec> {
        placeholders.for_kernels(&placeholders.kernel_templates(names))
    }

    fn driver_packages(placeholders: &Placeholders, name: &str) -> Vec<String> {
        let name = placeholders
            .driver_template(name, Branch(580))
            .expect("all known");
        let specs = placeholders.for_kernels(&[template(&name)]);
        specs.into_iter().map(|spec| spec.name).collect()
    }

    fn kernel(running: &str, next: &str, installed: &[&str]) -> Kernel {
        Kernel {
            running: Some(running.parse().unwrap()),
            next_boot: Some(next.parse().unwrap()),
            installed: installed.iter().map(|k| k.parse().unwrap()).collect(),
            arch: Some("x86_64".into()),
            compiler: Some("gcc-12".into()),
            cgroup_v1: false,
        }
    }

    #[test]
    fn headers_are_listed_once_per_kernel() {
        let (old, new) = ("6.1.0-40-amd64", "6.1.0-44-amd64");
        let names = ["linux-headers-{kernel}".to_owned()];
        let headers = |kernel, image| {
            let specs = headers_of(&placeholders("debian", "12", kernel, image), &names);
            specs.into_iter().map(|spec| spec.name).collect::<Vec<_>>()
        };
        assert_eq!(
            headers(kernel(old, new, &[old, new]), false),
            [
                "linux-headers-6.1.0-40-amd64",
                "linux-headers-6.1.0-44-amd64"
            ]
        );
        assert_eq!(headers(kernel(new, new, &[new]), false).len(), 1);
        // The running kernel was removed, or it is the kernel of a container host.
        assert_eq!(
            headers(kernel("6.12.1-host", new, &[new]), false),
            ["linux-headers-6.1.0-44-amd64"]
        );
        assert_eq!(
            headers(kernel(old, new, &[old, new]), true),
            ["linux-headers-6.1.0-44-amd64"]
        );
    }

    #[test]
    fn precompiled_modules_match_the_kernels_exactly() {
        let name = "linux-modules-nvidia-{branch}-server-open-{kernel}";
        let modules = |kernel| {
            let placeholders = placeholders("ubuntu", "24.04", kernel, false);
            driver_packages(&placeholders, name)
        };
        for running in [
            "6.8.0-90-generic",
            "6.14.0-37-generic",
            "6.8.0-1015-aws",
            "6.11.0-1013-nvidia-64k",
        ] {
            assert_eq!(
                modules(kernel(running, running, &[])),
                [format!("linux-modules-nvidia-580-server-open-{running}")]
            );
        }
        let (old, new) = ("6.8.0-1015-aws", "6.8.0-1050-aws");
        assert_eq!(modules(kernel(old, new, &[old, new])).len(), 2);
    }

    #[test]
    fn profile_sets_flavor_for_a_kernel_series() {
        let profile = Profile::built_in("ubuntu").unwrap();
        let mut release = profile.release_for("24.04").unwrap().clone();
        let row = |series: Option<&str>, package: &str| crate::config::profile::KernelFlavor {
            kernel: "generic".into(),
            series: series.map(str::to_owned),
            package: package.into(),
        };
        release.kernel_flavor = vec![row(Some("6.8"), "generic"), row(None, "generic-hwe-24.04")];
        for (running, package) in [
            ("6.8.0-90-generic", "modules-generic"),
            ("6.14.0-37-generic", "modules-generic-hwe-24.04"),
            ("6.14.0-1017-aws", "modules-aws"),
        ] {
            let placeholders = Placeholders::new(
                (&release, "24.04"),
                "x86_64",
                &profile.architecture["x86_64"],
                &kernel(running, running, &[]),
                false,
            );
            let names = driver_packages(&placeholders, "modules-{kernel-flavor}");
            assert_eq!(names, [package], "{running}");
        }
    }

    /// The EPEL URL without a minor number is for CentOS Stream.
    #[test]
    fn epel_url_contains_the_minor_release() {
        let profile = Profile::built_in("almalinux").unwrap();
        for (version, expected) in [("10.1", "/epel/10.1/"), ("10", "/epel/10/")] {
            let release = profile.release_for(version).unwrap();
            let row = profile.repository_for("epel", release).unwrap();
            let kernel = kernel("6.12.0-55.el10_0.x86_64", "6.12.0-55.el10_0.x86_64", &[]);
            let url = placeholders("almalinux", version, kernel, false).fill(&row.url);
            assert!(url.contains(expected), "{url}");
        }
    }

    #[test]
    fn amazon_kernel_headers_contain_the_series() {
        let profile = Profile::built_in("amzn").unwrap();
        let names = &profile.release_for("2023").unwrap().headers;
        for (running, prefix) in [
            ("6.1.158-180.294.amzn2023.x86_64", "kernel"),
            ("6.12.58-82.121.amzn2023.x86_64", "kernel6.12"),
            ("6.18.3-12.40.amzn2023.x86_64", "kernel6.18"),
        ] {
            let placeholders =
                placeholders("amzn", "2023", kernel(running, running, &[running]), false);
            let headers = headers_of(&placeholders, names);
            let version = running.strip_suffix(".x86_64");
            for part in ["devel", "headers", "modules-extra"] {
                let spec = PackageSpec {
                    name: format!("{prefix}-{part}"),
                    version: version.map(str::to_owned),
                };
                assert!(headers.contains(&spec), "{headers:?}");
            }
        }
    }

    #[test]
    fn rpm_headers_use_the_kernel_version() {
        let (old, new) = (
            "4.18.0-553.el8_10.x86_64",
            "4.18.0-553.5.1.el8_10.x86_64+rt",
        );
        let profile = Profile::built_in("almalinux").unwrap();
        let names = &profile.release_for("8.10").unwrap().headers;
        let placeholders = placeholders("almalinux", "8", kernel(old, new, &[old, new]), false);
        let headers = headers_of(&placeholders, names);
        let versions: Vec<(&str, Option<&str>)> = headers
            .iter()
            .filter(|spec| spec.name.ends_with("-devel"))
            .map(|spec| (spec.name.as_str(), spec.version.as_deref()))
            .collect();
        assert_eq!(
            versions,
            [
                ("kernel-devel", Some("4.18.0-553.el8_10")),
                ("kernel-rt-devel", Some("4.18.0-553.5.1.el8_10")),
            ]
        );
    }

    #[test]
    fn known_compilers_are_listed() {
        let names = ["linux-headers-{kernel}".to_owned(), "{compiler}".to_owned()];
        let mut kernel = kernel("6.8.0-60-generic", "6.8.0-60-generic", &[]);
        let known = headers_of(
            &placeholders("ubuntu", "22.04", kernel.clone(), false),
            &names,
        );
        let known: Vec<&str> = known.iter().map(|spec| spec.name.as_str()).collect();
        assert_eq!(known, ["linux-headers-6.8.0-60-generic", "gcc-12"]);
        kernel.compiler = None;
        let unknown = placeholders("ubuntu", "22.04", kernel, false);
        assert_eq!(headers_of(&unknown, &names).len(), 1);
    }
}
