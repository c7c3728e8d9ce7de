//! Kernel module options that boards or instance types require, and preferred module flavors on instance types.

use crate::evidence::row;
use crate::identity::{Flavor, GpuIdentity};
use crate::pattern;
use crate::pci::PciId;
use crate::version::Branch;

row! {
    /// A kernel module option with its conditions. All given conditions must match.
    ModuleOption {
        /// The module, such as `nvidia`.
        module: String,
        /// Its parameter.
        option: String,
        value: String,
        /// The provider of the instance types: `aws`, `gcp` or `azure`. Ignored without `instance-types`.
        provider: Option<String>,
        /// Instance types, as shell patterns. Empty for all.
        #[serde(default)]
        instance_types: Vec<String>,
        /// Boards, one of which must be present. Empty for all.
        #[serde(default)]
        gpu_ids: Vec<PciId>,
        /// The flavor of the modules.
        flavor: Option<Flavor>,
        /// The first branch with the option.
        from_branch: Option<Branch>,
        /// The effect, as text.
        why: String,
    }
}

row! {
    /// The preferred module flavor on some instance types. It is selected if the branch has it and all boards
    /// support it.
    InstanceFlavor {
        /// `aws`, `gcp`, `azure`.
        provider: String,
        /// Instance types, as shell patterns.
        instance_types: Vec<String>,
        flavor: Flavor,
        /// The reason, as the end of a sentence.
        why: String,
    }
}

impl InstanceFlavor {
    /// Returns `true` if the entry applies to an instance type of a provider.
    pub fn is_for(&self, (provider, name): &(String, String)) -> bool {
        self.provider == *provider
            && (self.instance_types.iter()).any(|one| pattern::matches(one, name))
    }
}

impl ModuleOption {
    /// Returns `true` if a machine with this driver requires the option.
    pub fn is_for(
        &self,
        gpus: &[GpuIdentity],
        instance: Option<&(String, String)>,
        branch: Branch,
        flavor: Flavor,
    ) -> bool {
        let of_instance = self.instance_types.is_empty()
            || instance.is_some_and(|(provider, name)| {
                self.provider.as_ref() == Some(provider)
                    && (self.instance_types.iter()).any(|one| pattern::matches(one, name))
            });
        let of_board =
            self.gpu_ids.is_empty() || gpus.iter().any(|gpu| self.gpu_ids.contains(&gpu.pci_id));
        of_instance
            && of_board
            && self.flavor.is_none_or(|one| one == flavor)
            && self.from_branch.is_none_or(|first| branch >= first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matrix::Matrix;

    #[test]
    fn options_apply_to_boards_and_instance_types() {
        let matrix = Matrix::builtin().unwrap();
        let of = |id: &str, instance: Option<&str>, branch: u32, flavor: Flavor| {
            let gpus = [GpuIdentity {
                pci_id: id.parse().unwrap(),
                subsystem_id: None,
                chip_name: None,
            }];
            let instance = instance.map(|name| ("aws".to_owned(), name.to_owned()));
            let found: Vec<String> = (matrix.module_options.iter())
                .filter(|row| row.is_for(&gpus, instance.as_ref(), Branch(branch), flavor))
                .map(|row| format!("{}={}", row.option, row.value))
                .collect();
            found.join(" ")
        };
        let gsp = "NVreg_EnableGpuFirmware=0";
        let (open, proprietary) = (Flavor::Open, Flavor::Proprietary);
        for (id, instance, branch, flavor, options) in rows! {
            "10de:1eb8", Some("g4dn.xlarge"), 580, proprietary, gsp;
            "10de:2237", Some("g5.48xlarge"), 580, proprietary, gsp;
            // The open modules require the GSP.
            "10de:2237", Some("g5.48xlarge"), 580, open, "";
            "10de:26b9", Some("g6e.xlarge"), 580, proprietary, "";
            "10de:1eb8", None, 580, proprietary, "";
            // GH200 and GB200.
            "10de:2342", None, 580, open, "NVreg_CoherentGPUMemoryMode=driver";
            "10de:2941", Some("p6e-gb200.36xlarge"), 595, open,
                "NVreg_CoherentGPUMemoryMode=driver";
            "10de:2342", None, 570, open, "";
            "10de:2330", Some("p5.48xlarge"), 580, open, "";
        } {
            assert_eq!(
                of(id, instance, branch, flavor),
                options,
                "{id} {instance:?} {branch}"
            );
        }
    }
}
