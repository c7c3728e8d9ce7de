//! Writes the MIG mode and the instances to the inventory, where all programs read them.

use std::fs;
use std::io::{self, Error};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Command;
use std::time::SystemTime;

use toml_edit::{Array, DocumentMut, InlineTable, Item, Table, Value};

use crate::gpu::Mig;
use crate::inventory::{Inventory, changed_program};

/// A version of the inventory file: its number, modification time and size.
pub type Stamp = (u64, Option<SystemTime>, u64);

/// The current version of the file.
pub fn stamp(inventory: &Inventory) -> Option<Stamp> {
    let read = fs::metadata(inventory.source.as_ref()?).ok()?;
    Some((read.ino(), read.modified().ok(), read.len()))
}

/// Replaces the MIG mode and the instances of a GPU in the file.
pub fn write(path: &Path, gpu: usize, mig: &Mig) -> io::Result<()> {
    let mut file: DocumentMut = fs::read_to_string(path)?.parse().map_err(Error::other)?;
    let gpus = file.get_mut("gpu").and_then(Item::as_array_of_tables_mut);
    let gpu = gpus.and_then(|gpus| gpus.get_mut(gpu));
    let gpu = gpu.ok_or_else(|| Error::other("the GPUs are not `[[gpu]]` tables"))?;
    let table = gpu.entry("mig").or_insert_with(|| Table::new().into());
    let table = table.as_table_like_mut();
    let table = table.ok_or_else(|| Error::other("`mig` is not a table"))?;
    let pending = mig.pending.unwrap_or(mig.enabled);
    for key in ["enabled", "pending", "gpu-instances", "devices"] {
        table.remove(key);
    }
    if mig.enabled || pending {
        table.insert("enabled", mig.enabled.into());
        table.insert("pending", pending.into());
        let instances = mig.gpu_instances.iter().map(|one| {
            InlineTable::from_iter([
                ("profile", Value::from(&one.profile)),
                ("id", i64::from(one.id).into()),
                ("start", i64::from(one.start).into()),
            ])
        });
        table.insert("gpu-instances", Array::from_iter(instances).into());
        let devices = mig.devices.iter().map(|one| {
            let capabilities = one.capabilities.iter().map(|number| i64::from(*number));
            InlineTable::from_iter([
                ("profile", Value::from(&one.profile)),
                (
                    "gpu-instance",
                    i64::from(one.gpu_instance.unwrap_or_default()).into(),
                ),
                ("compute-instance", i64::from(one.compute_instance).into()),
                ("capabilities", Array::from_iter(capabilities).into()),
                ("uuid", Value::from(&one.uuid)),
            ])
        });
        table.insert("devices", Array::from_iter(devices).into());
    }
    if table.is_empty() {
        gpu.remove("mig");
    }
    let partial = path.with_extension(format!("{}.partial", std::process::id()));
    fs::write(&partial, file.to_string())?;
    fs::rename(&partial, path)?;
    if let Some(program) = changed_program(path)
        && !Command::new(&program).status()?.success()
    {
        return Err(Error::other(format!("{} failed", program.display())));
    }
    Ok(())
}
