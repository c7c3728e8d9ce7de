//! Detects drivers that are managed by other software, which gpu-bootstrap does not change.

use camino::Utf8Path;

use super::StateError;
use crate::{
    facts::{
        Facts,
        detection::{Provides, table},
    },
    host::ReadFiles,
    tools::kmod,
};

/// The software that manages the driver of the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    pub name: &'static str,
    /// The evidence that was found.
    pub evidence: String,
    /// The other parts that it provides.
    pub provides: Provides,
    /// The driver is on the library path of the host.
    pub on_host: bool,
    /// The reason that gpu-bootstrap does not manage this driver.
    pub why: &'static str,
    /// The way to change this driver, for the administrator.
    pub remedy: &'static str,
}

/// The owner that runs the driver in a container. The host may also have driver packages.
pub const GPU_OPERATOR: &str = "NVIDIA's GPU Operator";

/// The file with the DGX OS release.
const DGX: &str = "/etc/dgx-release";

/// Returns the owner of the driver, or `None` if there is no evidence of one.
///
/// # Errors
/// If a file cannot be read.
pub fn owner(files: &dyn ReadFiles, facts: &Facts) -> Result<Option<Owner>, StateError> {
    let loaded = files
        .read_text(Utf8Path::new(kmod::MODULES))?
        .unwrap_or_default();
    let loaded = kmod::parse_loaded(&loaded);
    for row in &table().owner {
        let mut evidence = None;
        for file in &row.files {
            if files.exists(Utf8Path::new(file))? {
                evidence = Some(format!("`{file}`"));
                break;
            }
        }
        if let Some(os) = (facts.os.as_ref()).filter(|os| row.os.contains(&os.id)) {
            let version = os.version_id.as_deref().unwrap_or_default();
            evidence = Some(format!("{} {version}", os.id).trim().to_owned());
        }
        if let Some(module) = loaded
            .iter()
            .find(|module| row.modules.contains(&module.name))
        {
            evidence = Some(format!("module `{}` is loaded", module.name));
        }
        if let Some(file) = &row.and_file
            && !files.exists(Utf8Path::new(file))?
        {
            evidence = None;
        }
        let Some(mut evidence) = evidence else {
            continue;
        };
        if evidence.contains(DGX)
            && let Some(text) = files.read_text(Utf8Path::new(DGX))?
            && let Some(version) = release(&text)
        {
            evidence = format!("{version}, from {evidence}");
        }
        return Ok(Some(Owner {
            name: &row.name,
            evidence,
            provides: row.provides,
            on_host: row.on_host,
            why: &row.why,
            remedy: &row.remedy,
        }));
    }
    Ok(None)
}

/// Parses `DGX_SWBUILD_VERSION="7.5.0"`. An upgrade appends `DGX_OTA_VERSION`, which takes precedence.
fn release(text: &str) -> Option<&str> {
    let of = |key: &str| {
        let line = text.lines().rev().find_map(|line| line.strip_prefix(key))?;
        Some(line.strip_prefix('=')?.trim_matches('"'))
    };
    of("DGX_OTA_VERSION").or_else(|| of("DGX_SWBUILD_VERSION"))
}

#[cfg(test)]
mod tests {
    use super::owner;
    use crate::{
        facts::{Facts, Os},
        host::fake,
        steps::fixtures::facts,
    };

    #[test]
    fn driver_owner_is_detected_by_files_and_os() {
        let told = |files: &[(&str, &str)], os: Option<&str>| {
            let (host, fakes) = fake::host();
            for (path, text) in files {
                fakes.files.put(path, *text);
            }
            let facts = Facts {
                os: os.map(|id| Os {
                    id: id.to_owned(),
                    version_id: None,
                    id_like: Vec::new(),
                    version_codename: None,
                    pretty_name: None,
                }),
                ..facts()
            };
            let owner = owner(&*host.files, &facts).unwrap();
            owner.map(|owner| (owner.name, owner.evidence))
        };
        assert_eq!(told(&[], None), None);
        let (name, evidence) = told(
            &[(
                "/etc/dgx-release",
                "DGX_NAME=\"DGX Server\"\nDGX_SWBUILD_VERSION=\"7.5.0\"\n",
            )],
            None,
        )
        .unwrap();
        assert_eq!(name, "NVIDIA's DGX OS");
        assert_eq!(evidence, "7.5.0, from `/etc/dgx-release`");
        let operator = told(&[("/run/nvidia/validations/.driver-ctr-ready", "")], None).unwrap();
        assert_eq!(operator.0, "NVIDIA's GPU Operator");
        // The operator creates the directory on every node, including nodes with a host driver.
        assert_eq!(
            told(&[("/run/nvidia/validations/driver-ready", "")], None),
            None
        );
        let (name, evidence) = told(
            &[("/proc/modules", "nvidia_vgpu_vfio 1 0 - Live 0x0\n")],
            None,
        )
        .unwrap();
        assert_eq!(
            (name, &*evidence),
            (
                "NVIDIA's vGPU manager",
                "module `nvidia_vgpu_vfio` is loaded"
            )
        );
        assert_eq!(
            told(&[("/proc/modules", "nvidia 1 0 - Live 0x0\n")], None),
            None
        );
        for (file, name) in rows! {
            "/etc/nv_tegra_release", "NVIDIA's JetPack";
            "/run/ostree-booted", "an OSTree image";
            "/home/kubernetes/bin/nvidia/bin/nvidia-smi", "Google Kubernetes Engine";
        } {
            assert_eq!(told(&[(file, "")], None).unwrap().0, name);
        }
        let marker = ("/opt/azure/aks-gpu/dkms-marker", "");
        assert_eq!(told(&[marker], None), None, "AKS may still remove it");
        let complete = ("/opt/azure/containers/provision.complete", "");
        for (files, name) in [
            ([marker, complete], "Azure Kubernetes Service"),
            (
                [("/usr/bin/nodeadm", ""), ("/usr/bin/nvidia-gridd", "")],
                "Amazon EKS",
            ),
        ] {
            assert_eq!(told(&files, None).unwrap().0, name);
        }
        assert_eq!(told(&[("/usr/bin/nodeadm", "")], None), None);
        for (id, name) in [
            ("nixos", "NixOS"),
            ("cos", "Container-Optimized OS"),
            ("flatcar", "Flatcar Container Linux"),
            ("talos", "Talos Linux"),
        ] {
            assert_eq!(told(&[], Some(id)).unwrap().0, name);
        }
    }
}
