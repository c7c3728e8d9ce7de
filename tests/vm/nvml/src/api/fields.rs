//! `nvmlDeviceGetFieldValues`: readings by number.

use nvml_wrapper_sys::bindings::{nvmlFieldValue_st, nvmlReturn_t, nvmlValue_st};

use super::health::{pick, remapping};
use crate::call::{Answer, Asked, Code, exports};
use crate::pointer::Out;

exports! {
    device nvmlDeviceGetFieldValues(count: i32, values: Out<nvmlFieldValue_st>) |it| {
        let mut values = values;
        let count = usize::try_from(count).map_err(|_negative| Code::INVALID_ARGUMENT)?;
        for field in values.each(count)? {
            match value(&it, field.fieldId, field.scopeId) {
                Ok(value) => fill(field, value),
                Err(code) => field.nvmlReturn = code.0,
            }
        }
        Ok(())
    };
    device nvmlDeviceClearFieldValues(_count: i32, _values: Out<nvmlFieldValue_st>) |_it| Ok(());
}

/// A reading with its NVML type.
enum Value {
    Unsigned(u32),
    Long(u64),
    Signed(i32),
}

fn fill(field: &mut nvmlFieldValue_st, value: Value) {
    // The widest member first, so that no byte of the union keeps the caller's data.
    field.value = nvmlValue_st { ullVal: 0 };
    (field.valueType, field.value) = match value {
        Value::Unsigned(value) => (1, nvmlValue_st { uiVal: value }),
        Value::Long(value) => (3, nvmlValue_st { ullVal: value }),
        Value::Signed(value) => (5, nvmlValue_st { siVal: value }),
    };
    field.nvmlReturn = 0;
    field.timestamp = 0;
    field.latencyUsec = 0;
}

/// Drivers from 580.82 on renumbered 251 to 273; this maps a new number to the old one.
fn old_number(it: &Asked<'_>, id: u32) -> u32 {
    match id {
        251..=268 if it.inventory.driver() >= (580, 82) => id + 5,
        269..=273 if it.inventory.driver() >= (580, 82) => id - 18,
        _ => id,
    }
}

fn value(it: &Asked<'_>, id: u32, scope: u32) -> Answer<Value> {
    let gpu = it.gpu;
    if let Some(value) = gpu.fields.get(&id.to_string()) {
        return Ok(match u64::try_from(*value) {
            Ok(value) => Value::Long(value),
            Err(_negative) => Value::Signed(*value as i32),
        });
    }
    let ecc = |kind, counter| -> Answer<Value> {
        if gpu.ecc.supported != Some(true) || !gpu.ecc.enabled {
            return Err(Code::NOT_SUPPORTED);
        }
        let dram = pick(&gpu.ecc.dram, kind, counter)?;
        Ok(Value::Long(dram + pick(&gpu.ecc.sram, kind, counter)?))
    };
    let linked = |value: u64| match gpu.nvlink.links {
        Some(1..) => Ok(Value::Long(value)),
        _ => Err(Code::NOT_SUPPORTED),
    };
    let limit = |degrees: i32| match gpu.has_margin() {
        true => Ok(Value::Signed(degrees)),
        false => Err(Code::NOT_SUPPORTED),
    };
    Ok(match old_number(it, id) {
        1 if gpu.ecc.supported == Some(true) => Value::Unsigned(gpu.ecc.enabled.into()),
        2 if gpu.ecc.supported == Some(true) => Value::Unsigned(it.set.ecc_pending.into()),
        3 => ecc(0, 0)?,
        4 => ecc(1, 0)?,
        5 => ecc(0, 1)?,
        6 => ecc(1, 1)?,
        29 if !gpu.remaps_rows() => Value::Unsigned(gpu.retired_pages.single_bit.len() as u32),
        30 if !gpu.remaps_rows() => Value::Unsigned(gpu.retired_pages.double_bit.len() as u32),
        31 if !gpu.remaps_rows() => Value::Unsigned(gpu.retired_pages.pending.into()),
        38 => linked(gpu.nvlink.crc_flit_errors)?,
        45 => linked(gpu.nvlink.crc_data_errors)?,
        52 => linked(gpu.nvlink.replay_errors)?,
        59 => linked(gpu.nvlink.recovery_errors)?,
        74..=81 => Value::Long(0),
        82 => Value::Unsigned(gpu.temperature.memory),
        83 => Value::Long(0),
        91 => Value::Unsigned(gpu.nvlink.links.unwrap_or_default()),
        94 => Value::Unsigned(gpu.pcie.replays),
        95 => Value::Unsigned(gpu.pcie.rollovers),
        142..=145 => {
            remapping(it)?;
            let rows = &gpu.remapped_rows;
            Value::Unsigned(match id {
                142 => rows.correctable,
                143 => rows.uncorrectable,
                144 => rows.pending.into(),
                _ => rows.failed.into(),
            })
        }
        // No simulated GPU has a chip-to-chip link.
        170 => Value::Unsigned(0),
        173 => Value::Long(gpu.pcie.correctable_errors),
        174..=178 | 181..=183 => Value::Long(0),
        179 => Value::Long(gpu.pcie.non_fatal_errors),
        180 => Value::Long(gpu.pcie.fatal_errors),
        // Scope 0 is the whole GPU; memory and module have no separate reading.
        185 | 186 if scope == 0 => Value::Unsigned(gpu.power.usage),
        187 => Value::Unsigned(gpu.power.min_limit),
        188 => Value::Unsigned(gpu.power.max_limit),
        189 => Value::Unsigned(gpu.power.default_limit),
        190 | 192 => Value::Unsigned(it.set.power_limit),
        193 => limit(gpu.temperature.shutdown_tlimit)?,
        194 => limit(gpu.temperature.slowdown_tlimit)?,
        195 => limit(gpu.temperature.memory_max_tlimit)?,
        196 => limit(gpu.temperature.gpu_max_tlimit)?,
        226 | 227 => Value::Unsigned(0),
        230 if it.inventory.driver() >= (565, 0) => Value::Unsigned(gpu.recovery_action as u32),
        251 => Value::Long(gpu.clocks.sw_thermal_microseconds),
        252 => Value::Long(gpu.clocks.hw_thermal_microseconds),
        253 => Value::Long(gpu.clocks.power_brake_microseconds),
        _ => return Err(Code::NOT_SUPPORTED),
    })
}
