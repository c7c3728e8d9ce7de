//! Validates the IMEX settings in `[fabric]`. The step `fabric.imex` reads them from `desired.settings`.

use std::collections::BTreeSet;

use super::{choices::ImexMode, error::ConfigError, file::FabricConfig, sources::SettingSources};

/// Checks the combination of the settings.
///
/// # Errors
/// If the list of nodes is missing, has no effect, or contains an address twice.
pub(super) fn check(config: &FabricConfig, layers: &SettingSources) -> Result<(), ConfigError> {
    match fault(config) {
        Some((why, hint)) => Err(layers.wrong("fabric.imex-nodes", why, Some(hint.to_owned()))),
        None => Ok(()),
    }
}

/// The reason that the list of nodes is invalid, and the remedy.
fn fault(config: &FabricConfig) -> Option<(String, &'static str)> {
    let nodes = &config.imex_nodes;
    match config.imex {
        ImexMode::Host if nodes.is_empty() => {
            return Some((
                "`fabric.imex = \"host\"` needs the addresses of all nodes in the IMEX domain"
                    .to_owned(),
                "set it to the same list on each of them, such as `[\"10.0.0.11\", \"10.0.0.12\"]`",
            ));
        }
        ImexMode::Off | ImexMode::Dra if !nodes.is_empty() => {
            return Some((
                "it has no effect without `fabric.imex = \"host\"`".to_owned(),
                "set `fabric.imex = \"host\"`, or remove the key",
            ));
        }
        _ => {}
    }
    let mut seen = BTreeSet::new();
    let twice = nodes.iter().find(|node| !seen.insert(**node))?;
    Some((format!("it contains {twice} twice"), "remove one of them"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_list_fits_the_mode() {
        for (imex, nodes, reason) in rows! {
            ImexMode::Off, &[][..], None;
            ImexMode::Dra, &[][..], None;
            ImexMode::Host, &["10.0.0.1", "10.0.0.2"][..], None;
            ImexMode::Host, &[][..], Some("needs the addresses");
            ImexMode::Dra, &["10.0.0.1"][..], Some("no effect");
            ImexMode::Off, &["10.0.0.1"][..], Some("no effect");
            ImexMode::Host, &["10.0.0.1", "fd00::1", "10.0.0.1"][..], Some("10.0.0.1 twice");
        } {
            let config = FabricConfig {
                imex,
                imex_nodes: (nodes.iter())
                    .map(|node| node.parse().expect("an address"))
                    .collect(),
            };
            let found = fault(&config).map(|(why, _)| why);
            assert_eq!(found.is_some(), reason.is_some(), "{imex:?} {nodes:?}");
            assert!(
                found.is_none_or(|why| why.contains(reason.unwrap_or_default())),
                "{imex:?} {nodes:?}"
            );
        }
    }
}
