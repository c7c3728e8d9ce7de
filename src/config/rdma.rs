//! Resolves `rdma.modules`: the packages that contain the modules. A module without known packages must be installed by the
//! administrator, which the step `rdma.modules` checks.

use super::{
    choices::RdmaModule,
    desired::{DriverSpec, PackageSpec, RdmaSpec},
    driver::DriverChoice,
    profile::{Profile, RdmaRow, Release},
};
use crate::model::{gpu::Flavor, version::KernelVersion};

/// The first kernel series in which adapters reach GPU memory by DMA-BUF. Source: NVIDIA GPU Operator documentation, "GPUDirect RDMA".
const DMA_BUF: (u32, u32) = (5, 12);

/// Returns the packages of the configured modules and their entries in the profile, in the order in which the modules are
/// loaded. Empty without a driver. The packages compile the module for the driver, so both come from the same repositories.
pub(super) fn choose<'p>(
    profile: &'p Profile,
    release: &Release,
    arch: &str,
    modules: &[RdmaModule],
    driver: Option<&DriverChoice<'_>>,
) -> Vec<(RdmaSpec, &'p RdmaRow)> {
    let Some(driver) = driver else {
        return Vec::new();
    };
    let of_driver = |name: &String| driver.row.repositories.contains(name);
    let runs_on = |row: &RdmaRow| {
        row.releases.contains(&release.version_id)
            && (row.architectures.is_empty() || row.architectures.iter().any(|one| one == arch))
    };
    let mut chosen: Vec<(RdmaSpec, &RdmaRow)> = (profile.rdma.iter())
        .filter(|row| modules.contains(&row.module) && runs_on(row))
        .filter(|row| row.repositories.iter().all(of_driver))
        .map(|row| (spec(row), row))
        .collect();
    chosen.sort_by_key(|(spec, _)| spec.module);
    chosen
}

fn spec(row: &RdmaRow) -> RdmaSpec {
    let package = |name: &String| PackageSpec {
        name: name.clone(),
        version: None,
    };
    RdmaSpec {
        module: row.module,
        packages: row.packages.iter().map(package).collect(),
    }
}

/// Returns a warning if `nvidia-peermem` is configured, but the driver and all kernels support its replacement.
pub(super) fn replaceable(
    modules: &[RdmaModule],
    driver: Option<&DriverSpec>,
    kernels: &[KernelVersion],
) -> Option<String> {
    let has_dma_buf = driver?.flavor == Flavor::Open
        && !kernels.is_empty()
        && kernels.iter().all(|kernel| kernel.series() >= DMA_BUF);
    (has_dma_buf && modules.contains(&RdmaModule::NvidiaPeermem)).then(|| {
        "`rdma.modules` contains `nvidia-peermem`, but the open driver modules and this kernel support DMA-BUF, which NVIDIA \
         recommends instead; remove it unless a program needs it"
            .to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::steps::fixtures::desired;

    #[test]
    fn peer_memory_warns_if_dma_buf_replaces_it() {
        use RdmaModule::{Gdrdrv, NvidiaPeermem};
        for (module, flavor, kernels, warns) in rows! {
            NvidiaPeermem, Flavor::Open, &["6.1.0-44-amd64"][..], true;
            NvidiaPeermem, Flavor::Open, &["6.1.0-44-amd64", "5.10.0-1-amd64"][..], false;
            NvidiaPeermem, Flavor::Open, &[][..], false;
            NvidiaPeermem, Flavor::Proprietary, &["6.1.0-44-amd64"][..], false;
            Gdrdrv, Flavor::Open, &["6.1.0-44-amd64"][..], false;
        } {
            let mut driver = desired().driver.expect("a driver");
            driver.flavor = flavor;
            let kernels: Vec<KernelVersion> = (kernels.iter())
                .map(|kernel| kernel.parse().expect("a kernel"))
                .collect();
            let warning = replaceable(&[module], Some(&driver), &kernels);
            assert_eq!(
                warning.is_some(),
                warns,
                "{module:?} {flavor:?} {kernels:?}"
            );
        }
    }
}
