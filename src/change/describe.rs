//! Human-readable descriptions of changes.

use crate::change::{Change, Probe, image::load_summary};

impl Change {
    /// A one-line summary in the imperative, for plan, progress and journal.
    pub fn summary(&self) -> String {
        match self {
            Self::WriteFile { path, .. } => format!("write `{path}`"),
            Self::AddRepository { repository } => {
                format!("add repository `{}` ({})", repository.name, repository.url)
            }
            Self::RefreshRepositories => "refresh the package lists".to_owned(),
            Self::EnableStream { module, stream } => {
                format!("enable stream {stream} of module {module}")
            }
            Self::InstallPackages {
                packages, removing, ..
            } => {
                let names: Vec<String> = packages
                    .iter()
                    .map(|package| match &package.version {
                        Some(version) => format!("{}={version}", package.name),
                        None => package.name.clone(),
                    })
                    .collect();
                let mut text = format!("install {}", names.join(", "));
                let gone: Vec<&str> = (removing.iter())
                    .filter(|name| !packages.iter().any(|package| package.name == **name))
                    .map(String::as_str)
                    .collect();
                if !gone.is_empty() {
                    text.push_str(&format!(", replacing {}", gone.join(", ")));
                }
                text
            }
            Self::RepairPackages => "repair interrupted package work".to_owned(),
            Self::RunTriggers => "run deferred package triggers".to_owned(),
            Self::HoldPackages { patterns } => match &patterns[..] {
                [one] => format!("hold `{one}`"),
                more => format!(
                    "hold the installed packages of {} names and patterns",
                    more.len()
                ),
            },
            Self::EnableUnit { unit, start } => {
                let and_start = if *start { " and start" } else { "" };
                format!("enable{and_start} `{unit}`")
            }
            Self::MaskUnit { unit } => format!("stop and mask `{unit}`"),
            Self::RestartUnit { unit } => format!("restart `{unit}`"),
            Self::ConfigureRuntime { settings } => {
                let name = settings.kind.name();
                match &settings.files[..] {
                    [] => format!("make {name} use its configuration"),
                    files => {
                        let paths: Vec<String> = files
                            .iter()
                            .map(|file| format!("`{}`", file.path))
                            .collect();
                        format!(
                            "register the nvidia runtime with {name} in {}",
                            paths.join(", ")
                        )
                    }
                }
            }
            Self::LoadModule { module } => format!("load kernel module `{module}`"),
            Self::PartitionGpus { partition } => partition.summary(),
            Self::RebuildInitramfs { kernels } => {
                format!("rebuild the initramfs of {}", kernels.join(", "))
            }
            Self::BuildModule { module, kernel } => {
                format!("build kernel module `{module}` for {kernel}")
            }
            Self::BuildPackage { build } => {
                format!("build package `{}` with prebuilt modules", build.name)
            }
            Self::RunTool {
                purpose, command, ..
            } => format!("{purpose} (`{}`)", command.join(" ")),
            Self::PullImage {
                runtime,
                image,
                archive,
                ..
            } => match archive {
                Some(archive) => load_summary(*runtime, image, archive),
                None => format!("pull the image `{image}` with {}", runtime.name()),
            },
            Self::RunProbe {
                probe: Probe::ContainerSeesGpus { gpus, runtime, .. },
                again,
                ..
            } => {
                let what = if *gpus == 1 { "GPU" } else { "GPUs" };
                let again = if *again { " again" } else { "" };
                let runtime = runtime.name();
                format!("validate{again} that a {runtime} container sees {gpus} {what}")
            }
            Self::RunProbe {
                probe: Probe::HostComputes { gpus },
                again,
                ..
            } => {
                let again = if *again { " again" } else { "" };
                match gpus {
                    1 => format!("validate{again} that 1 GPU computes"),
                    n => format!("validate{again} that {n} GPUs compute"),
                }
            }
            Self::SetSysctls { values } => {
                let all: Vec<String> = (values.iter())
                    .map(|(name, value)| format!("{name} = {value}"))
                    .collect();
                format!("set {}", all.join(", "))
            }
            Self::TurnOffSwap { areas } => format!("turn off swap on {}", areas.join(", ")),
            Self::JoinCluster { join } => {
                format!(
                    "join the cluster with {} as `{}`",
                    join.method.name(),
                    join.node
                )
            }
            Self::AdmitNode { admission } => admission.summary(),
            Self::LeaveService { leave } => leave.summary(),
            Self::MarkFailedUpgrade { node, .. } => {
                format!("mark node `{}` as failed", node.node)
            }
            Self::Reboot { why } => format!("reboot: {why}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Change;
    use crate::config::desired::PackageSpec;

    /// A package that is removed and installed in one transaction stays on the machine.
    #[test]
    fn only_packages_that_disappear_are_replaced() {
        let spec = |name: &str, version: Option<&str>| PackageSpec {
            name: name.to_owned(),
            version: version.map(str::to_owned),
        };
        let install = Change::InstallPackages {
            packages: vec![spec("driver", Some("595.*")), spec("library", None)],
            removing: vec!["driver".to_owned(), "driver-server".to_owned()],
            later: false,
        };
        assert_eq!(
            install.summary(),
            "install driver=595.*, library, replacing driver-server"
        );
    }
}
