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

/// The types of systemd units. Source: systemd.unit(5).
const UNIT_TYPES: [&str; 11] = [
    "service",
    "socket",
    "device",
    "mount",
    "automount",
    "swap",
    "target",
    "path",
    "timer",
    "slice",
    "scope",
];

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
    let mut stop_units = Vec::new();
    for unit in config.stop_units.iter().flatten() {
        let Some(name) = unit_name(unit.as_str()) else {
            let why = format!("`{unit}` is not the name of a systemd unit");
            let hint = "use a name such as `nvidia-dcgm.service`";
            return Err(wrong("mig.stop-units", &why, hint).into());
        };
        stop_units.push(name);
    }
    Ok(Some(MigSpec { layout, stop_units }))
}

/// Returns the complete name of a unit. Like `systemctl`, adds `.service` to a name without a type. `None` if a character is not
/// permitted in the names of units, systemd.unit(5); the backslash of escaped names is not supported.
fn unit_name(text: &str) -> Option<String> {
    let permitted = |c: char| c.is_ascii_alphanumeric() || ":_.@-".contains(c);
    let kind = text.rsplit_once('.').map(|(_, kind)| kind);
    match text.chars().all(permitted) {
        true if kind.is_some_and(|kind| UNIT_TYPES.contains(&kind)) => Some(text.to_owned()),
        true => Some(format!("{text}.service")),
        false => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_units_are_completed() {
        for (text, name) in [
            ("nvidia-dcgm", Some("nvidia-dcgm.service")),
            ("nvidia-dcgm.service", Some("nvidia-dcgm.service")),
            ("dcgm@0", Some("dcgm@0.service")),
            ("gpu.slice", Some("gpu.slice")),
            ("a.b", Some("a.b.service")),
            ("nvidia-*", None),
            ("a/b", None),
            ("$a", None),
        ] {
            assert_eq!(unit_name(text).as_deref(), name, "{text}");
        }
    }
}
