//! Placeholders in the names and addresses of profiles.

use crate::{
    config::profile::{ArchitectureNames, Release},
    facts::Kernel,
    model::version::{Branch, KernelVersion},
};

/// The values of placeholders on a machine.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Terms {
    /// `{codename}`.
    pub codename: String,
    /// `{release}`.
    pub release: String,
    /// `{arch}`.
    pub arch: String,
    /// `{package-arch}`.
    pub package_arch: String,
    /// `{cuda-arch}`.
    pub cuda_arch: String,
    /// `{kernel}`: each kernel that a module is needed for.
    pub kernels: Vec<KernelVersion>,
    /// `{kernel-flavour}`, of the kernel of the next boot.
    pub kernel_flavour: Option<String>,
    /// `{compiler}` of the running kernel.
    pub compiler: Option<String>,
}

impl Terms {
    pub(super) fn new(
        release: &Release,
        arch: &str,
        names: &ArchitectureNames,
        kernel: &Kernel,
        image: bool,
    ) -> Self {
        let kernels = kernels(kernel, image);
        Self {
            codename: release.codename.clone().unwrap_or_default(),
            release: release.version_id.clone(),
            arch: arch.to_owned(),
            package_arch: names.package.clone(),
            cuda_arch: names.cuda.clone(),
            kernel_flavour: kernels
                .last()
                .and_then(|kernel| packaged_flavour(release, kernel)),
            kernels,
            compiler: kernel.compiler.clone(),
        }
    }

    /// Replaces the placeholders that have one value on this machine.
    pub(super) fn fill(&self, text: &str) -> String {
        text.replace("{codename}", &self.codename)
            .replace("{release}", &self.release)
            .replace("{arch}", &self.arch)
            .replace("{package-arch}", &self.package_arch)
            .replace("{cuda-arch}", &self.cuda_arch)
    }

    /// Replaces the placeholders in the name of a driver package; `None` where one has no value.
    pub(super) fn driver_package(&self, name: &str, branch: Branch) -> Option<String> {
        let name = self.fill(name).replace("{branch}", &branch.to_string());
        if name.contains("{kernel-flavour}") {
            return (self.kernel_flavour.as_ref())
                .map(|flavour| name.replace("{kernel-flavour}", flavour));
        }
        Some(name)
    }

    /// Package names for headers: one for each kernel where the name has `{kernel}`; without
    /// `{compiler}` where the compiler is not known.
    pub(super) fn headers(&self, names: &[String]) -> Vec<String> {
        let mut found: Vec<String> = Vec::new();
        for name in names {
            let name = self.fill(name);
            let name = match (name.contains("{compiler}"), &self.compiler) {
                (true, None) => continue,
                (true, Some(compiler)) => name.replace("{compiler}", compiler),
                (false, _) => name,
            };
            if name.contains("{kernel}") {
                let each = self.kernels.iter();
                found.extend(each.map(|kernel| name.replace("{kernel}", kernel.as_str())));
            } else {
                found.push(name);
            }
        }
        found.dedup();
        found
    }
}

/// The kernels that need a module: the running one and the one of the next boot.
///
/// A running kernel without files on this machine does not count: it was removed by an upgrade, or
/// is the kernel of a container's host. The kernel of an image builder does not count either: no
/// instance of the image runs it.
fn kernels(kernel: &Kernel, image: bool) -> Vec<KernelVersion> {
    let installed = |version: &&KernelVersion| {
        kernel.installed.is_empty() || kernel.installed.contains(version)
    };
    let next = kernel.next_boot.as_ref();
    let running = (kernel.running.as_ref())
        .filter(|running| next.is_none() || (!image && installed(running)));
    let mut kernels: Vec<KernelVersion> = running.into_iter().chain(next).cloned().collect();
    kernels.dedup();
    kernels
}

fn packaged_flavour(release: &Release, kernel: &KernelVersion) -> Option<String> {
    let flavour = kernel.flavour()?;
    let (major, minor) = kernel.series();
    let series = format!("{major}.{minor}");
    let row = release.kernel_flavour.iter().find(|row| {
        row.kernel == flavour && row.series.as_ref().is_none_or(|wanted| *wanted == series)
    });
    Some(row.map_or_else(|| flavour.to_owned(), |row| row.package.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::profile::Profile;

    fn terms(profile: &str, release: &str, kernel: Kernel, image: bool) -> Terms {
        let profile = Profile::built_in(profile).unwrap();
        let release = profile.release_for(release).unwrap();
        Terms::new(
            release,
            "x86_64",
            &profile.architecture["x86_64"],
            &kernel,
            image,
        )
    }

    fn kernel(running: &str, next: &str, installed: &[&str]) -> Kernel {
        Kernel {
            running: Some(running.parse().unwrap()),
            next_boot: Some(next.parse().unwrap()),
            installed: installed.iter().map(|k| k.parse().unwrap()).collect(),
            arch: Some("x86_64".into()),
            compiler: Some("gcc-12".into()),
        }
    }

    #[test]
    fn headers_for_each_kernel_once() {
        let (old, new) = ("6.1.0-40-amd64", "6.1.0-44-amd64");
        let names = ["linux-headers-{kernel}".to_owned()];
        let headers = |kernel, image| terms("debian", "12", kernel, image).headers(&names);
        assert_eq!(
            headers(kernel(old, new, &[old, new]), false),
            [
                "linux-headers-6.1.0-40-amd64",
                "linux-headers-6.1.0-44-amd64"
            ]
        );
        assert_eq!(headers(kernel(new, new, &[new]), false).len(), 1);
        // The running kernel was removed, or is the host's.
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
    fn flavours_of_packaged_modules() {
        for (release, running, package) in [
            ("24.04", "6.8.0-90-generic", "generic"),
            ("24.04", "6.14.0-37-generic", "generic-hwe-24.04"),
            ("24.04", "6.14.0-1017-aws", "aws"),
            ("24.04", "6.11.0-1013-nvidia", "nvidia-hwe-24.04"),
            ("22.04", "5.15.0-191-generic", "generic"),
            ("22.04", "6.8.0-60-generic", "generic-hwe-22.04"),
        ] {
            let terms = terms("ubuntu", release, kernel(running, running, &[]), false);
            assert_eq!(terms.kernel_flavour.as_deref(), Some(package), "{running}");
        }
    }

    #[test]
    fn compilers_are_named_where_known() {
        let names = ["linux-headers-{kernel}".to_owned(), "{compiler}".to_owned()];
        let mut kernel = kernel("6.8.0-60-generic", "6.8.0-60-generic", &[]);
        let known = terms("ubuntu", "22.04", kernel.clone(), false).headers(&names);
        assert_eq!(known, ["linux-headers-6.8.0-60-generic", "gcc-12"]);
        kernel.compiler = None;
        assert_eq!(
            terms("ubuntu", "22.04", kernel, false)
                .headers(&names)
                .len(),
            1
        );
    }
}
