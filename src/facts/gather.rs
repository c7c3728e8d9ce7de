//! Puts the facts together. Nothing here fails: what cannot be read is null and named.

use crate::{
    facts::{
        Boards, Facts, SCHEMA, Scope, cloud, driver, firmware, kernel, look::Look, machine, os,
        packages, pci, runtimes,
    },
    host::Reader,
};

/// Looks at the machine once. `boards` is the matrix, where there is one; [`Scope::executes`] is
/// false below `--root`, where no program is asked and NVML is not either.
pub async fn gather(host: Reader<'_>, boards: Option<&dyn Boards>, scope: Scope) -> Facts {
    let mut notes = Look::new(host.files());
    let look = &mut notes;
    let os = os::gather(look);
    let kernel = kernel::gather(look, scope);
    let secure_boot = firmware::secure_boot(look);
    let lockdown = firmware::lockdown(look);
    let dmi = cloud::Dmi::read(look);
    let cloud_init = cloud::CloudInit::read(look);
    let cloud = cloud::gather(look, &dmi, &cloud_init);
    let virtualization = machine::virtualization(look, &dmi);
    let init = machine::init(look);
    let boot_id = machine::boot_id(look);
    let instance_id = machine::instance_id(look, &cloud_init);
    let memory_bytes = machine::memory(look);
    let disks = machine::disks(look);
    let bus = pci::gather(look, boards);
    let packages = packages::gather(look, host, scope).await;
    let driver = driver::gather(look, host, scope, &kernel, &packages).await;
    let runtimes = runtimes::gather(look, host, scope, &packages).await;
    let nvml = if scope.executes {
        Some(host.nvml().await)
    } else {
        look.unknown("nvml", "no program is run here, so it was not asked");
        None
    };
    Facts {
        schema: SCHEMA,
        os,
        kernel,
        secure_boot,
        lockdown,
        virtualization,
        cloud,
        init,
        boot_id,
        instance_id,
        memory_bytes,
        disks,
        gpus: bus.gpus,
        nvswitches: bus.nvswitches,
        network_devices: bus.network,
        driver,
        nvml,
        runtimes,
        unknown: notes.into_unknown(),
    }
}
