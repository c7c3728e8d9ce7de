//! Whose driver the machine has, where it is not this program's business.

use camino::Utf8Path;

use super::StateError;
use crate::{
    facts::{Facts, detection::table},
    host::ReadFiles,
    tools::kmod,
};

/// Somebody who manages the driver of the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    pub name: &'static str,
    /// What shows it.
    pub evidence: String,
    /// Packages and units of the host do not tell of the fabric manager: it comes with the driver.
    pub fabric_manager: bool,
    /// Its containers reach the GPU by NVIDIA's container runtime, or by CDI.
    pub container_runtime: bool,
    /// What this program has no part in.
    pub why: &'static str,
    /// What changes the driver there.
    pub remedy: &'static str,
}

/// The owner whose driver is in a container beside the packages of the host.
pub const GPU_OPERATOR: &str = "NVIDIA's GPU Operator";

/// The file that tells the release of DGX OS.
const DGX: &str = "/etc/dgx-release";

/// Whose driver the machine has; `None` if nothing tells.
///
/// # Errors
/// When a file cannot be read.
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
        let Some(mut evidence) = evidence else {
            continue;
        };
        if evidence.contains(DGX)
            && let Some(text) = files.read_text(Utf8Path::new(DGX))?
            && let Some(version) = release(&text)
        {
            evidence = format!("{version}, by {evidence}");
        }
        return Ok(Some(Owner {
            name: &row.name,
            evidence,
            fabric_manager: row.fabric_manager,
            container_runtime: row.container_runtime,
            why: &row.why,
            remedy: &row.remedy,
        }));
    }
    Ok(None)
}

/// `DGX_SWBUILD_VERSION="7.5.0"`; an upgrade writes `DGX_OTA_VERSION` below it, which goes before.
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
    fn who_has_the_driver_is_told_by_files_and_by_the_system() {
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
        assert_eq!(evidence, "7.5.0, by `/etc/dgx-release`");
        let operator = told(&[("/run/nvidia/validations/.driver-ctr-ready", "")], None).unwrap();
        assert_eq!(operator.0, "NVIDIA's GPU Operator");
        // The operator makes the folder on every node, also where the host has the driver.
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
