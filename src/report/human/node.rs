//! A prepared node: its driver, packages, GPUs and name.

use crate::{
    model::{
        node::{NodePart, NodeSummary},
        text::counted,
    },
    tools::imex,
};

/// Returns a label and a text for each line. The longest label is `toolkit`.
pub(in crate::report) fn rows(node: &NodeSummary) -> Vec<(&'static str, String)> {
    let mut rows = Vec::new();
    let is_held = |held| if held { "held" } else { "not held" };
    let mut packages = node.packages.iter().peekable();
    if let Some(driver) = &node.driver {
        let package = packages.next_if(|package| package.part == NodePart::Driver);
        let modules = node.flavor.map(|flavor| format!("{flavor} kernel modules"));
        let held = match package {
            Some(package) => is_held(package.held),
            None => "not installed by gpu-bootstrap",
        };
        let words = std::iter::once(driver.to_string())
            .chain(modules)
            .chain([held.to_owned()]);
        rows.push(("driver", words.collect::<Vec<_>>().join(", ")));
    }
    rows.extend(packages.map(|package| {
        let label = match package.part {
            NodePart::Driver => "driver",
            NodePart::Runtime => "runtime",
            NodePart::Toolkit => "toolkit",
            NodePart::Cluster => "cluster",
        };
        let text = format!(
            "{} {}, {}",
            package.name,
            package.version,
            is_held(package.held)
        );
        (label, text)
    }));
    if !node.gpus.is_empty() {
        let validated = match &node.validated {
            Some(place) => format!("each computed {place}"),
            None => "not validated".to_owned(),
        };
        rows.push(("GPUs", format!("{}, {validated}", grouped(&node.gpus))));
    }
    if let Some(name) = &node.node {
        let server = node.endpoint.iter().map(|server| format!(" at {server}"));
        let server: String = server.collect();
        rows.push(("node", format!("{name}, in the cluster{server}")));
    }
    if let Some(state) = &node.imex {
        let text = match imex::is_ready(state) {
            true => state.clone(),
            false => format!(
                "{state}, not READY yet: `nvidia-imex-ctl -N` lists the nodes of the domain"
            ),
        };
        rows.push(("IMEX", text));
    }
    if node.reboots > 0 {
        let reboots = counted(node.reboots, "reboot");
        let why = reasons(&node.reboot_reasons);
        rows.push(("reboots", format!("{reboots} during the installation{why}")));
    }
    rows
}

/// Returns the reasons of the reboots, numbered if there are several.
fn reasons(reasons: &[String]) -> String {
    match reasons {
        [] => String::new(),
        [why] => format!(": {why}"),
        several => {
            let numbered = (1..).zip(several);
            let texts = numbered.map(|(number, why)| format!("({number}) {why}"));
            format!(": {}", texts.collect::<Vec<_>>().join("; "))
        }
    }
}

/// Returns each name once, with its count if it is not 1.
fn grouped(names: &[String]) -> String {
    let mut groups: Vec<(&String, usize)> = Vec::new();
    for name in names {
        match groups.iter_mut().find(|(known, _)| *known == name) {
            Some((_, count)) => *count += 1,
            None => groups.push((name, 1)),
        }
    }
    let texts = groups.into_iter().map(|(name, count)| match count {
        1 => name.clone(),
        count => format!("{count} x {name}"),
    });
    texts.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{gpu::Flavor, node::NodePackage};

    #[test]
    fn node_is_described_by_part() {
        let package = |part, name: &str, held| NodePackage {
            part,
            name: name.to_owned(),
            version: "1-1".to_owned(),
            held,
        };
        let node = NodeSummary {
            driver: Some("580.178.04".parse().expect("a version")),
            flavor: Some(Flavor::Open),
            packages: vec![
                package(NodePart::Driver, "nvidia-driver-cuda", true),
                package(NodePart::Runtime, "docker-ce", true),
                package(NodePart::Toolkit, "nvidia-container-toolkit", false),
            ],
            gpus: vec!["H100 SXM5 80GB".to_owned(); 2],
            validated: Some("in a container of docker".to_owned()),
            node: Some("gpu-1".to_owned()),
            endpoint: Some("https://10.0.0.1:6443".to_owned()),
            imex: Some("UNAVAILABLE".to_owned()),
            reboots: 1,
            reboot_reasons: vec!["nouveau must be unloaded".to_owned()],
            commands: Vec::new(),
        };
        let lines: Vec<String> = (rows(&node).iter())
            .map(|(label, text)| format!("{label}: {text}"))
            .collect();
        assert_eq!(
            lines,
            [
                "driver: 580.178.04, open kernel modules, held",
                "runtime: docker-ce 1-1, held",
                "toolkit: nvidia-container-toolkit 1-1, not held",
                "GPUs: 2 x H100 SXM5 80GB, each computed in a container of docker",
                "node: gpu-1, in the cluster at https://10.0.0.1:6443",
                "IMEX: UNAVAILABLE, not READY yet: `nvidia-imex-ctl -N` lists the nodes of the domain",
                "reboots: 1 reboot during the installation: nouveau must be unloaded",
            ]
        );
        let several = ["nouveau must be unloaded", "MIG mode"].map(str::to_owned);
        assert_eq!(
            reasons(&several),
            ": (1) nouveau must be unloaded; (2) MIG mode"
        );
        // A journal of an older version.
        assert_eq!(reasons(&[]), "");
        assert!(rows(&NodeSummary::default()).is_empty());
    }
}
