//! Gathers the facts. This never fails: a fact that cannot be read is null and listed in `unknown`.

use gpu_compat::Matrix;

use crate::{
    facts::{Facts, SCHEMA, Scope, cloud, firmware, kernel, machine, os, pci, reader::FactReader},
    host::Reader,
};

/// Reads the machine's files once. Without a matrix, the GPUs are not described. [`Scope::executes`]
/// is false with `--root`, because the running kernel then does not belong to the machine.
pub fn gather(host: Reader<'_>, matrix: Option<&Matrix>, scope: Scope) -> Facts {
    let mut facts = FactReader::new(host.files());
    let reader = &mut facts;
    let os = os::gather(reader);
    let kernel = kernel::gather(reader, scope);
    let secure_boot = firmware::secure_boot(reader);
    let lockdown = firmware::lockdown(reader);
    let dmi = cloud::Dmi::read(reader);
    let cloud_init = cloud::CloudInit::read(reader);
    let cloud = cloud::gather(reader, &dmi, &cloud_init);
    let virtualization = machine::virtualization(reader, &dmi);
    let init = machine::init(reader);
    let boot_id = machine::boot_id(reader);
    let instance_id = machine::instance_id(reader, &cloud_init);
    let memory_bytes = machine::memory(reader, host.system());
    let disks = machine::disks(reader);
    let bus = pci::gather(reader, matrix);
    Facts {
        schema: SCHEMA,
        os,
        kernel,
        secure_boot,
        lockdown,
        virtualization,
        product: Some(dmi.product_name).filter(|name| !name.is_empty()),
        cloud,
        init,
        boot_id,
        instance_id,
        memory_bytes,
        disks,
        gpus: bus.gpus,
        virtual_functions: bus.virtual_functions,
        foreign_gpus: bus.foreign_gpus,
        nvswitches: bus.nvswitches,
        nvlink_management: bus.nvlink_management,
        network_devices: bus.network,
        unknown: facts.into_unknown(),
    }
}
