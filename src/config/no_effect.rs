//! Warnings about settings that have no effect on this system, for example because of another setting or the default of the
//! profile.

use crate::{
    config::{
        desired::{KernelSpec, ModuleMethod, RuntimeKind},
        file::Config,
        sources::SettingSources,
        values::Holding,
    },
    sharing::SharingMethod,
};

/// The inputs of [`warnings`].
pub(super) struct NoEffectInputs<'a> {
    pub config: &'a Config,
    pub layers: &'a SettingSources,
    /// The configured repositories of the profile from which no package is selected.
    pub unused_repositories: Vec<String>,
    /// The source of the driver. `None` without a driver.
    pub driver_source: Option<&'a str>,
    pub kernel: Option<&'a KernelSpec>,
    pub runtimes: &'a [RuntimeKind],
}

/// Returns a warning for each setting without effect.
pub(super) fn warnings(inputs: &NoEffectInputs<'_>) -> Vec<String> {
    let NoEffectInputs {
        config,
        layers,
        runtimes,
        ..
    } = inputs;
    let provenance = layers.provenance();
    let below = |prefix: &str| {
        let prefix = format!("{prefix}.");
        let keys = provenance.iter().map(|one| one.key.clone());
        keys.filter(move |key| key.starts_with(&prefix))
            .collect::<Vec<_>>()
    };
    let mut found: Vec<(Vec<String>, String)> = Vec::new();
    for name in &inputs.unused_repositories {
        let source = inputs.driver_source.map_or_else(String::new, |source| {
            format!(" (`driver.source` is `{source}`)")
        });
        let why = format!("no configured package comes from this repository{source}");
        found.push((below(&format!("repositories.{name}")), why));
    }
    let one = |key: &str| vec![key.to_owned()];
    if config.hold == Some(Holding::None) {
        found.push((one("hold-extra"), "`hold` is `none`".to_owned()));
    }
    if config.toolkit.enabled == Some(false) {
        found.push((
            one("toolkit.version"),
            "`toolkit.enabled` is `false`".to_owned(),
        ));
    }
    if !config.dcgm.exporter {
        found.push((one("dcgm.port"), "`dcgm.exporter` is `false`".to_owned()));
    }
    if config.sharing.method.unwrap_or_default() == SharingMethod::None {
        let mut keys = below("sharing");
        keys.retain(|key| key != "sharing.method");
        found.push((keys, "`sharing.method` is `none`".to_owned()));
    }
    if !runtimes
        .iter()
        .any(|kind| kind.runtime().facts().has_sources)
    {
        let why = "no configured runtime has several sources".to_owned();
        found.push((one("runtime.source"), why));
    }
    if !runtimes.iter().any(|kind| kind.daemon().is_some()) {
        for key in ["runtime.nvidia-default", "runtime.restart"] {
            let why = "no configured runtime has a daemon".to_owned();
            found.push((one(key), why));
        }
    }
    let is_compiled = |spec: &&KernelSpec| spec.methods.iter().any(ModuleMethod::is_compiled);
    let is_prebuilt = |spec: &KernelSpec| spec.methods.iter().any(|one| one.prebuilt.is_some());
    if inputs.kernel.is_some() && inputs.kernel.filter(is_compiled).is_none() {
        let why = "the driver modules are not compiled on this machine";
        found.push((below("driver.secure-boot"), why.to_owned()));
        if !inputs.kernel.is_some_and(is_prebuilt) {
            found.push((below("driver.prebuilt"), why.to_owned()));
        }
    }
    let warning = |(key, why): (String, &String)| {
        let place = layers.place(&key)?;
        Some(format!("`{key}` ({place}) has no effect: {why}"))
    };
    let keys = found
        .iter()
        .flat_map(|(keys, why)| keys.iter().map(move |key| (key.clone(), why)));
    keys.filter_map(warning).collect()
}
