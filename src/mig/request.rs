//! Computes the layout of each GPU from the settings, and rejects a layout that does not fit.

use std::{collections::BTreeSet, fmt};

use camino::Utf8PathBuf;
use serde::Serialize;

use super::{
    file::{LayoutFile, Listed},
    geometry::Geometry,
    layout::{GpuLayout, Layout, ModelLayout, NamedLayout, Profile},
};
use crate::{
    compat::capability::ComputeCapability,
    model::{
        fault::Fault,
        pci::{PciAddress, PciId},
    },
};

/// The source of the layout, from the settings.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case", rename_all_fields = "kebab-case")]
pub enum LayoutRequest {
    /// `mig.layout`.
    Named(NamedLayout),
    /// `mig.models`.
    Models(Vec<ModelLayout>),
    /// `mig.file` and `mig.config`.
    File {
        path: Utf8PathBuf,
        config: Option<String>,
    },
}

impl fmt::Display for LayoutRequest {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Named(name) => write!(to, "`mig.layout` is `{name}`"),
            Self::Models(_) => to.write_str("`mig.models`"),
            Self::File { path, config: None } => write!(to, "`{path}`"),
            Self::File {
                path,
                config: Some(config),
            } => write!(to, "`{config}` of `{path}`"),
        }
    }
}

/// A GPU for which a layout is computed.
#[derive(Debug, Clone, PartialEq)]
pub struct MigGpu {
    pub address: PciAddress,
    pub id: PciId,
    pub subsystem: Option<PciId>,
    /// Its name, for messages.
    pub name: String,
    /// Whether it supports MIG. `None` if this is unknown until the driver is loaded.
    pub supports_mig: Option<bool>,
    /// The layouts that fit. `None` if they are unknown until the driver is loaded.
    pub geometry: Option<Geometry>,
}

impl fmt::Display for MigGpu {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{} ({})", self.name, self.address)
    }
}

/// Whether no GPU with this compute capability supports MIG: those before Ampere, and those of Ampere and Ada other than 8.0.
/// Source: NVIDIA Multi-Instance GPU User Guide, "Supported GPUs".
fn never_has_mig(capability: ComputeCapability) -> bool {
    let ComputeCapability { major, minor } = capability;
    major < 8 || (major == 8 && minor > 0)
}

impl MigGpu {
    /// Returns a GPU of which only the model is known, because NVML does not respond or there is no machine.
    pub fn of_model(
        address: PciAddress,
        id: PciId,
        subsystem: Option<PciId>,
        name: Option<&str>,
        capability: Option<ComputeCapability>,
    ) -> Self {
        let geometry = Geometry::of(Some(id), None);
        let has_none = capability.is_some_and(never_has_mig);
        Self {
            address,
            id,
            subsystem,
            name: name.map_or_else(|| id.to_string(), str::to_owned),
            // A GPU with an entry in the table supports MIG. Any other GPU may.
            supports_mig: match geometry {
                Some(_) => Some(true),
                None => has_none.then_some(false),
            },
            geometry,
        }
    }
}

/// The reason that there is no layout.
#[derive(Debug, Clone, PartialEq)]
pub enum NoLayout {
    /// The request is invalid for this machine.
    Fault(Fault),
    /// The profiles of this GPU are only known when the driver is loaded.
    Later(String),
}

impl From<Fault> for NoLayout {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl LayoutRequest {
    /// Whether this request puts a GPU of this model in MIG mode without instances, for a tool that creates them. A file is not
    /// read, so its layouts do not count.
    pub fn leaves_empty(&self, model: Option<PciId>) -> bool {
        match self {
            Self::Named(name) => *name == NamedLayout::AllEnabled,
            Self::Models(models) => {
                let own = models.iter().rfind(|row| Some(row.model) == model);
                own.is_some_and(|row| row.layout == Layout::with(Vec::new()))
            }
            Self::File { .. } => false,
        }
    }

    /// Returns the layout of each GPU that supports MIG. `gpus` are all GPUs of the machine by PCI address, and `text` is the
    /// content of the requested file.
    ///
    /// # Errors
    /// If the request is invalid, or if its layout does not fit on a GPU. The remedy contains the layouts that fit, with the
    /// positions of their instances.
    pub fn layouts(&self, text: Option<&str>, gpus: &[MigGpu]) -> Result<Vec<GpuLayout>, NoLayout> {
        let file = match self {
            Self::File { path, .. } => Some((
                path.as_str(),
                LayoutFile::parse(path.as_str(), text.unwrap_or_default())?,
            )),
            Self::Named(_) | Self::Models(_) => None,
        };
        let chosen = match (&file, self) {
            (Some((path, file)), Self::File { config, .. }) => {
                Some(file.choose(path, config.as_deref())?)
            }
            _ => None,
        };
        let mut found = Vec::new();
        for (index, gpu) in (0..).zip(gpus) {
            let Some(supports_mig) = gpu.supports_mig else {
                return Err(NoLayout::Later(gpu.to_string()));
            };
            let (layout, place) = match (self, &chosen) {
                (_, Some(chosen)) => {
                    let listed = Listed {
                        index,
                        id: Some(gpu.id),
                        subsystem: gpu.subsystem,
                        supports_mig,
                    };
                    let layout = chosen.layout(listed).map_err(|why| {
                        Fault::new(
                            format!("{self} has no layout for {gpu}: {why}"),
                            "add an entry for it to the file, or set `mig.layout`",
                        )
                    })?;
                    match layout {
                        Some((layout, place)) => (layout, format!("{self}, {place}")),
                        None => continue,
                    }
                }
                _ if !supports_mig => continue,
                (Self::Named(name), _) => (named(*name, gpu)?, self.to_string()),
                (Self::Models(models), _) => {
                    let own = models.iter().rfind(|model| model.model == gpu.id);
                    let own = own.ok_or_else(|| {
                        Fault::new(
                            format!("`mig.models` has no layout for {gpu}"),
                            format!(
                                "add `\"{}=disabled\"` or its profiles to `mig.models`",
                                gpu.id
                            ),
                        )
                    })?;
                    (own.layout.clone(), format!("`mig.models` has `{own}`"))
                }
                (Self::File { .. }, None) => continue,
            };
            if !supports_mig {
                continue;
            }
            fits(&layout, &place, gpu)?;
            found.push(GpuLayout {
                gpu: gpu.address,
                layout,
            });
        }
        if found.is_empty() && *self != Self::Named(NamedLayout::AllDisabled) {
            let names: BTreeSet<&str> = gpus.iter().map(|gpu| gpu.name.as_str()).collect();
            let names: Vec<&str> = names.into_iter().collect();
            return Err(Fault::new(
                format!("{self}, but no GPU supports MIG: {}", names.join(", ")),
                "remove the `mig` settings of this machine",
            )
            .into());
        }
        Ok(found)
    }
}

/// Returns the layout of a GPU with MIG.
fn named(name: NamedLayout, gpu: &MigGpu) -> Result<Layout, NoLayout> {
    let geometry = || (gpu.geometry.as_ref()).ok_or_else(|| NoLayout::Later(gpu.to_string()));
    Ok(match name {
        NamedLayout::AllDisabled => Layout::default(),
        NamedLayout::AllEnabled => Layout::with(Vec::new()),
        NamedLayout::AllBalanced => Layout::with(geometry()?.balanced().ok_or_else(|| {
            Fault::new(
                format!("there is no balanced layout for {gpu}"),
                "set its profiles in `mig.models`",
            )
        })?),
        NamedLayout::All(profile) => {
            let geometry = geometry()?;
            match geometry.most(profile) {
                0 => {
                    return Err(Fault::new(
                        format!("`mig.layout` is `{name}`, but {gpu} has no profile `{profile}`"),
                        remedy(geometry),
                    )
                    .into());
                }
                most => Layout::with(vec![profile; most]),
            }
        }
    })
}

fn remedy(geometry: &Geometry) -> String {
    format!("use a layout that fits on it: {}", geometry.fitting())
}

fn fits(layout: &Layout, place: &str, gpu: &MigGpu) -> Result<(), NoLayout> {
    if layout.profiles().is_empty() {
        return Ok(());
    }
    let Some(geometry) = &gpu.geometry else {
        return Err(NoLayout::Later(gpu.to_string()));
    };
    let exists = |profile: &Profile| {
        let size = profile.compute.as_ref();
        size.is_none_or(|size| profile.compute_sizes().contains(size))
    };
    if let Some(profile) = layout.profiles().iter().find(|profile| !exists(profile)) {
        let instance = profile.of_gpu_instance();
        let others = (instance.compute_sizes().iter())
            .map(|size| format!("`{size}c.{instance}`"))
            .collect::<Vec<_>>()
            .join(", ");
        return Err(Fault::new(
            format!("{place}: the profile `{profile}` does not exist"),
            format!("use another size of its compute instance: {others} or `{instance}`"),
        )
        .into());
    }
    let instances = layout.gpu_instances();
    let profiles: Vec<Profile> = instances.iter().map(|instance| instance.profile).collect();
    geometry.place(&profiles).map(drop).map_err(|why| {
        Fault::new(
            format!("{place}: `{layout}` does not fit on {gpu}: {why}"),
            remedy(geometry),
        )
        .into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(address: &str, id: &str, supports_mig: bool) -> MigGpu {
        let id: PciId = id.parse().unwrap();
        MigGpu {
            address: address.parse().unwrap(),
            id,
            subsystem: None,
            name: "GPU".to_owned(),
            supports_mig: Some(supports_mig),
            geometry: Geometry::of(Some(id), None),
        }
    }

    /// An A100 40 GB, an H100 and an L4.
    fn mixed() -> Vec<MigGpu> {
        vec![
            gpu("0000:06:00.0", "10de:20b0", true),
            gpu("0000:07:00.0", "10de:2330", true),
            gpu("0000:08:00.0", "10de:27b8", false),
        ]
    }

    fn texts(request: &LayoutRequest, text: Option<&str>) -> Result<String, NoLayout> {
        let found = request.layouts(text, &mixed())?;
        let texts: Vec<String> = found.iter().map(ToString::to_string).collect();
        Ok(texts.join(" "))
    }

    fn fault(found: Result<String, NoLayout>) -> Fault {
        match found {
            Err(NoLayout::Fault(fault)) => fault,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn gpus_are_empty_by_configuration() {
        let models = |texts: &[&str]| {
            let models = texts.iter().map(|text| text.parse().unwrap());
            LayoutRequest::Models(models.collect())
        };
        for (request, is_empty) in rows! {
            LayoutRequest::Named(NamedLayout::AllEnabled), true;
            LayoutRequest::Named(NamedLayout::AllBalanced), false;
            models(&["10de:2330=enabled"]), true;
            models(&["10de:20b0=enabled"]), false;
            models(&["10de:2330=1g.10gb*7"]), false;
            models(&["10de:2330=disabled"]), false;
            // The last entry of a model applies.
            models(&["10de:2330=enabled", "10de:2330=1g.10gb"]), false;
        } {
            let model = "10de:2330".parse().ok();
            assert_eq!(request.leaves_empty(model), is_empty, "{request:?}");
        }
    }

    #[test]
    fn named_layout_is_computed_for_each_model() {
        let named = |name: &str| texts(&LayoutRequest::Named(name.parse().unwrap()), None);
        assert_eq!(
            named("all-balanced").unwrap(),
            "0000:06:00.0=3g.20gb,2g.10gb,1g.5gb*2 0000:07:00.0=3g.40gb,2g.20gb,1g.10gb*2"
        );
        assert_eq!(
            named("all-disabled").unwrap(),
            "0000:06:00.0=disabled 0000:07:00.0=disabled"
        );
        // A profile of the same name has another size on another model.
        assert_eq!(
            named("all-1g.10gb").unwrap(),
            "0000:06:00.0=1g.10gb*4 0000:07:00.0=1g.10gb*7"
        );
        let fault = fault(named("all-1g.5gb"));
        assert_eq!(
            fault.why,
            "`mig.layout` is `all-1g.5gb`, but GPU (0000:07:00.0) has no profile `1g.5gb`"
        );
        assert!(fault.remedy.contains("`1g.10gb*7`"), "{}", fault.remedy);
    }

    #[test]
    fn models_need_an_entry_for_each_gpu() {
        let models = |texts: &[&str]| {
            let parsed = texts.iter().map(|text| text.parse().unwrap());
            LayoutRequest::Models(parsed.collect())
        };
        assert_eq!(
            texts(&models(&["10de:20b0=disabled", "10de:2330=7g.80gb"]), None).unwrap(),
            "0000:06:00.0=disabled 0000:07:00.0=7g.80gb"
        );
        assert_eq!(
            fault(texts(&models(&["10de:20b0=disabled"]), None)).why,
            "`mig.models` has no layout for GPU (0000:07:00.0)"
        );
        let wrong = models(&["10de:20b0=3g.20gb*2,1g.5gb", "10de:2330=enabled"]);
        assert_eq!(
            fault(texts(&wrong, None)).why,
            "`mig.models` has `10de:20b0=3g.20gb*2,1g.5gb`: `3g.20gb*2,1g.5gb` does not fit on GPU \
             (0000:06:00.0): `3g.20gb*2,1g.5gb` do not fit together"
        );
    }

    #[test]
    fn file_is_compared_with_each_gpu() {
        let request = LayoutRequest::File {
            path: "/etc/mig.yaml".into(),
            config: Some("x".to_owned()),
        };
        let file = |entry: &str| format!("version: v1\nmig-configs:\n  x:\n{entry}");
        let text = file(
            "  - {devices: all, mig-enabled: false}\n  \
             - {devices: [1], mig-enabled: true, mig-devices: {3g.40gb: 2}}\n",
        );
        assert_eq!(
            texts(&request, Some(&text)).unwrap(),
            "0000:06:00.0=disabled 0000:07:00.0=3g.40gb*2"
        );
        let text = file(
            "  - {devices: [0], mig-enabled: true, mig-devices: {1c.3g.20gb: 3, 2g.10gb: 1}}\n  \
             - {devices: [1], mig-enabled: false}\n",
        );
        assert_eq!(
            texts(&request, Some(&text)).unwrap(),
            "0000:06:00.0=1c.3g.20gb*3,2g.10gb 0000:07:00.0=disabled"
        );
        for (entry, why) in rows! {
            "  - {devices: [0], mig-enabled: false}\n",
                "`x` of `/etc/mig.yaml` has no layout for GPU (0000:07:00.0): no entry";
            "  - {devices: all, mig-enabled: true, mig-devices: {1g.5gb: 7}}\n",
                "`x` of `/etc/mig.yaml`, line 4, `mig-configs.x`: `1g.5gb*7` does not fit on GPU (0000:07:00.0)";
            // Three compute instances fit into each of the two GPU instances.
            "  - {devices: [0], mig-enabled: true, mig-devices: {1c.3g.20gb: 7}}\n",
                "`1c.3g.20gb*7` does not fit on GPU (0000:06:00.0): at most 2 `3g.20gb` fit";
            "  - {devices: [0], mig-enabled: true, mig-devices: {3c.4g.20gb: 1}}\n",
                "`x` of `/etc/mig.yaml`, line 4, `mig-configs.x`: the profile `3c.4g.20gb` does not exist";
            "  - {devices: [0], mig-enabled: true, mig-devices: {4c.7g.40gb: 1, 5c.7g.40gb: 1}}\n",
                "the profile `5c.7g.40gb` does not exist";
        } {
            let fault = fault(texts(&request, Some(&file(entry))));
            assert!(fault.why.contains(why), "{}", fault.why);
        }
    }

    #[test]
    fn unknown_gpu_waits_for_the_driver() {
        let unknown = MigGpu {
            supports_mig: None,
            ..gpu("0000:06:00.0", "10de:9999", true)
        };
        let request = LayoutRequest::Named(NamedLayout::AllBalanced);
        let later = Err(NoLayout::Later("GPU (0000:06:00.0)".to_owned()));
        assert_eq!(request.layouts(None, &[unknown]), later);
        let silent = gpu("0000:06:00.0", "10de:9999", true);
        assert_eq!(request.layouts(None, &[silent]), later);
    }

    #[test]
    fn model_determines_the_support_without_nvml() {
        for (id, capability, supports_mig) in rows! {
            "10de:2330", "9.0", Some(true);
            "10de:27b8", "8.9", Some(false);
            "10de:1db1", "7.0", Some(false);
            // Some models of this architecture support it.
            "10de:2bb1", "12.0", None;
            "10de:9999", "8.0", None;
        } {
            let (id, capability) = (id.parse().unwrap(), capability.parse().ok());
            let address = "0000:06:00.0".parse().unwrap();
            let gpu = MigGpu::of_model(address, id, None, None, capability);
            assert_eq!(gpu.supports_mig, supports_mig, "{id}");
        }
    }

    #[test]
    fn machine_without_mig_needs_no_mig_setting() {
        let plain = [gpu("0000:06:00.0", "10de:27b8", false)];
        let request = |name: &str| LayoutRequest::Named(name.parse().unwrap());
        assert_eq!(request("all-disabled").layouts(None, &plain), Ok(vec![]));
        let fault = request("all-balanced").layouts(None, &plain);
        assert!(
            matches!(&fault, Err(NoLayout::Fault(fault)) if fault.why.contains("no GPU supports MIG")),
            "{fault:?}"
        );
    }
}
