//! Resolves the MIG settings. The layout of each GPU depends on the installed GPUs, so the step `driver.mig` computes it.

use crate::{
    config::{
        desired::MigSpec,
        error::{ConfigError, ResolveError},
        file::MigConfig,
        sources::SettingSources,
        values::AbsolutePath,
    },
    mig::LayoutRequest,
};

/// Resolves `[mig]`. `None` if no layout is configured.
///
/// # Errors
/// If several layouts are configured, or a key has no effect.
pub(super) fn mig(
    config: &MigConfig,
    layers: &SettingSources,
) -> Result<Option<MigSpec>, ResolveError> {
    let wrong = |key: &str, why: &str, hint: &str| -> ConfigError {
        layers.wrong(key, why.to_owned(), Some(hint.to_owned()))
    };
    let name = config.config.as_ref().map(ToString::to_string);
    let file = (config.file.clone()).map(|path| LayoutRequest::File {
        path: AbsolutePath::into_inner(path),
        config: name,
    });
    if config.config.is_some() && file.is_none() {
        let hint = "set `mig.file`, or use `mig.layout`";
        return Err(wrong(
            "mig.config",
            "it is a layout of `mig.file`, which is not set",
            hint,
        )
        .into());
    }
    let models = (config.models.clone()).filter(|models| !models.is_empty());
    let requests = [
        ("mig.layout", config.layout.map(LayoutRequest::Named)),
        ("mig.models", models.map(LayoutRequest::Models)),
        ("mig.file", file),
    ];
    let mut requests = (requests.into_iter()).filter_map(|(key, request)| Some((key, request?)));
    let Some((first, layout)) = requests.next() else {
        return match &config.stop_units {
            Some(units) if !units.is_empty() => {
                let why = "units are only stopped to change a MIG layout, and none is configured";
                Err(wrong("mig.stop-units", why, "set `mig.layout`, or remove the key").into())
            }
            _ => Ok(None),
        };
    };
    if let Some((second, _)) = requests.next() {
        let why = format!("`{first}` is also set");
        return Err(wrong(
            second,
            &why,
            "set only one of `mig.layout`, `mig.models` and `mig.file`",
        )
        .into());
    }
    let units = config.stop_units.iter().flatten();
    Ok(Some(MigSpec {
        layout,
        stop_units: units.map(ToString::to_string).collect(),
    }))
}
