//! The health of a GPU: ECC, rows and pages, temperature, power and clocks.

use nvml_wrapper_sys::bindings::{
    nvmlEccErrorCounts_st, nvmlEccSramErrorStatus_v1_t, nvmlMarginTemperature_v1_t, nvmlReturn_t,
    nvmlRowRemapperHistogramValues_st, nvmlTemperature_v1_t,
};

use super::device::switch;
use crate::call::{Answer, Asked, Code, exports};
use crate::gpu::{EccCounts, EventReason, Gpu};
use crate::pointer::{Out, version_of};

exports! {
    device nvmlDeviceGetEccMode(current: Out<u32>, pending: Out<u32>) |it| {
        has_ecc(it.gpu)?;
        current.put(it.gpu.ecc.enabled.into())?;
        pending.put(it.set.ecc_pending.into())
    };
    device nvmlDeviceGetDefaultEccMode(mode: Out<u32>) |it| {
        has_ecc(it.gpu)?;
        mode.put(1)
    };
    device nvmlDeviceSetEccMode(mode: u32) |it| {
        has_ecc(it.gpu)?;
        it.set.ecc_pending = switch(mode)?;
        Ok(())
    };
    device nvmlDeviceGetTotalEccErrors(kind: u32, counter: u32, count: Out<u64>) |it| {
        let ecc = counting(&it)?;
        count.put(pick(&ecc.dram, kind, counter)? + pick(&ecc.sram, kind, counter)?)
    };
    device nvmlDeviceGetMemoryErrorCounter(kind: u32, counter: u32, place: u32, count: Out<u64>) |it| {
        let ecc = counting(&it)?;
        // NVML_MEMORY_LOCATION_DRAM, NVML_MEMORY_LOCATION_SRAM, and the parts of the latter.
        count.put(match place {
            2 => pick(&ecc.dram, kind, counter)?,
            7 => pick(&ecc.sram, kind, counter)?,
            0 | 1 | 3..=6 => 0,
            _ => return Err(Code::INVALID_ARGUMENT),
        })
    };
    device nvmlDeviceGetDetailedEccErrors(kind: u32, counter: u32, counts: Out<nvmlEccErrorCounts_st>) |it| {
        let ecc = counting(&it)?;
        counts.put(nvmlEccErrorCounts_st {
            l1Cache: 0,
            l2Cache: pick(&ecc.sram, kind, counter)?,
            deviceMemory: pick(&ecc.dram, kind, counter)?,
            registerFile: 0,
        })
    };
    device nvmlDeviceClearEccErrorCounts(_counter: u32) |it| has_ecc(it.gpu);
    device nvmlDeviceGetSramEccErrorStatus(status: Out<nvmlEccSramErrorStatus_v1_t>) |it| {
        let ecc = counting(&it)?;
        status.put_version(1, nvmlEccSramErrorStatus_v1_t {
            version: version_of::<nvmlEccSramErrorStatus_v1_t>(1),
            aggregateUncParity: 0,
            aggregateUncSecDed: ecc.sram.aggregate_uncorrected,
            aggregateCor: ecc.sram.aggregate_corrected,
            volatileUncParity: 0,
            volatileUncSecDed: ecc.sram.volatile_uncorrected,
            volatileCor: ecc.sram.volatile_corrected,
            aggregateUncBucketL2: ecc.sram.aggregate_uncorrected,
            aggregateUncBucketSm: 0,
            aggregateUncBucketPcie: 0,
            aggregateUncBucketMcu: 0,
            aggregateUncBucketOther: 0,
            bThresholdExceeded: ecc.sram_threshold_exceeded.into(),
        })
    };
    device nvmlDeviceGetRemappedRows(
        correctable: Out<u32>, uncorrectable: Out<u32>, pending: Out<u32>, failed: Out<u32>
    ) |it| {
        remapping(&it)?;
        let rows = &it.gpu.remapped_rows;
        correctable.put(rows.correctable)?;
        uncorrectable.put(rows.uncorrectable)?;
        pending.put(rows.pending.into())?;
        failed.put(rows.failed.into())
    };
    device nvmlDeviceGetRowRemapperHistogram(values: Out<nvmlRowRemapperHistogramValues_st>) |it| {
        remapping(&it)?;
        let banks = &it.gpu.remapped_rows.histogram;
        values.put(nvmlRowRemapperHistogramValues_st {
            max: banks.max,
            high: banks.high,
            partial: banks.partial,
            low: banks.low,
            none: banks.none,
        })
    };
    device nvmlDeviceGetRetiredPages(cause: u32, count: Out<u32>, pages: Out<u64>) |it| {
        let retired = retired(it.gpu, cause)?;
        let room = count.read()?;
        count.put(retired.len() as u32)?;
        pages.put_all(room, retired.iter().copied())
    };
    device nvmlDeviceGetRetiredPages_v2(
        cause: u32, count: Out<u32>, pages: Out<u64>, times: Out<u64>
    ) |it| {
        let retired = retired(it.gpu, cause)?;
        let room = count.read()?;
        count.put(retired.len() as u32)?;
        pages.put_all(room, retired.iter().copied())?;
        times.put_all(room, retired.iter().map(|_page| 0))
    };
    device nvmlDeviceGetRetiredPagesPendingStatus(pending: Out<u32>) |it| {
        retired(it.gpu, 0)?;
        pending.put(it.gpu.retired_pages.pending.into())
    };
    device nvmlDeviceGetTemperature(sensor: u32, degrees: Out<u32>) |it| {
        if sensor != 0 {
            return Err(Code::INVALID_ARGUMENT);
        }
        degrees.put(it.gpu.temperature.gpu)
    };
    device nvmlDeviceGetTemperatureV(reading: Out<nvmlTemperature_v1_t>) |it| {
        let version = reading.version()?;
        if version != version_of::<nvmlTemperature_v1_t>(1) {
            return Err(Code::ARGUMENT_VERSION_MISMATCH);
        }
        if reading.read()?.sensorType != 0 {
            return Err(Code::INVALID_ARGUMENT);
        }
        let temperature = it.gpu.temperature.gpu as i32;
        reading.put(nvmlTemperature_v1_t { version, sensorType: 0, temperature })
    };
    device nvmlDeviceGetTemperatureThreshold(which: u32, degrees: Out<u32>) |it| {
        let limits = &it.gpu.temperature;
        degrees.put(match which {
            0 => limits.shutdown,
            1 => limits.slowdown,
            2 => limits.memory_max,
            3 => limits.gpu_max,
            _ => return Err(Code::NOT_SUPPORTED),
        })
    };
    device nvmlDeviceGetMarginTemperature(margin: Out<nvmlMarginTemperature_v1_t>) |it| {
        if !it.gpu.has_margin() {
            return Err(Code::NOT_SUPPORTED);
        }
        margin.put_version(1, nvmlMarginTemperature_v1_t {
            version: version_of::<nvmlMarginTemperature_v1_t>(1),
            marginTemperature: it.gpu.temperature.margin,
        })
    };
    device nvmlDeviceGetNumFans(count: Out<u32>) |_it| count.put(0);
    device nvmlDeviceGetPowerUsage(milliwatts: Out<u32>) |it| milliwatts.put(it.gpu.power.usage);
    device nvmlDeviceGetPowerManagementMode(on: Out<u32>) |_it| on.put(1);
    device nvmlDeviceGetPowerManagementLimit(milliwatts: Out<u32>) |it| {
        milliwatts.put(it.set.power_limit)
    };
    device nvmlDeviceGetEnforcedPowerLimit(milliwatts: Out<u32>) |it| {
        milliwatts.put(it.set.power_limit)
    };
    device nvmlDeviceGetPowerManagementDefaultLimit(milliwatts: Out<u32>) |it| {
        milliwatts.put(it.gpu.power.default_limit)
    };
    device nvmlDeviceGetPowerManagementLimitConstraints(least: Out<u32>, most: Out<u32>) |it| {
        least.put(it.gpu.power.min_limit)?;
        most.put(it.gpu.power.max_limit)
    };
    device nvmlDeviceSetPowerManagementLimit(milliwatts: u32) |it| {
        let power = &it.gpu.power;
        if !(power.min_limit..=power.max_limit).contains(&milliwatts) {
            return Err(Code::INVALID_ARGUMENT);
        }
        it.set.power_limit = milliwatts;
        Ok(())
    };
    device nvmlDeviceGetTotalEnergyConsumption(millijoules: Out<u64>) |_it| millijoules.put(0);
    device nvmlDeviceGetClockInfo(kind: u32, megahertz: Out<u32>) |it| {
        megahertz.put(clock(it.gpu, kind, false)?)
    };
    device nvmlDeviceGetMaxClockInfo(kind: u32, megahertz: Out<u32>) |it| {
        megahertz.put(clock(it.gpu, kind, true)?)
    };
    device nvmlDeviceGetClock(kind: u32, which: u32, megahertz: Out<u32>) |it| {
        // 0 is the current clock, the others are targets.
        megahertz.put(clock(it.gpu, kind, which != 0)?)
    };
    device nvmlDeviceGetApplicationsClock(kind: u32, megahertz: Out<u32>) |it| {
        megahertz.put(clock(it.gpu, kind, true)?)
    };
    device nvmlDeviceGetDefaultApplicationsClock(kind: u32, megahertz: Out<u32>) |it| {
        megahertz.put(clock(it.gpu, kind, true)?)
    };
    device nvmlDeviceGetPerformanceState(state: Out<u32>) |it| state.put(it.gpu.clocks.pstate);
    device nvmlDeviceGetPowerState(state: Out<u32>) |it| state.put(it.gpu.clocks.pstate);
    device nvmlDeviceGetCurrentClocksEventReasons(reasons: Out<u64>) |it| {
        reasons.put(bits(&it.gpu.clocks.event_reasons))
    };
    device nvmlDeviceGetCurrentClocksThrottleReasons(reasons: Out<u64>) |it| {
        reasons.put(bits(&it.gpu.clocks.event_reasons))
    };
    device nvmlDeviceGetSupportedClocksEventReasons(reasons: Out<u64>) |_it| reasons.put(0x1ff);
    device nvmlDeviceGetSupportedClocksThrottleReasons(reasons: Out<u64>) |_it| reasons.put(0x1ff);
}

fn has_ecc(gpu: &Gpu) -> Answer {
    match gpu.ecc.supported {
        Some(true) => Ok(()),
        _ => Err(Code::NOT_SUPPORTED),
    }
}

/// The counters, which exist only while ECC is on.
fn counting<'a>(it: &Asked<'a>) -> Answer<&'a crate::gpu::Ecc> {
    has_ecc(it.gpu)?;
    if !it.gpu.ecc.enabled {
        return Err(Code::NOT_SUPPORTED);
    }
    Ok(&it.gpu.ecc)
}

/// Corrected or uncorrected, volatile or aggregate.
pub fn pick(counts: &EccCounts, kind: u32, counter: u32) -> Answer<u64> {
    match (kind, counter) {
        (0, 0) => Ok(counts.volatile_corrected),
        (1, 0) => Ok(counts.volatile_uncorrected),
        (0, 1) => Ok(counts.aggregate_corrected),
        (1, 1) => Ok(counts.aggregate_uncorrected),
        _ => Err(Code::INVALID_ARGUMENT),
    }
}

/// Rows are remapped from Ampere on, and NVML does not report them while MIG devices exist.
pub fn remapping(it: &Asked<'_>) -> Answer {
    let hidden = it.gpu.mig.enabled && !it.gpu.mig.devices.is_empty();
    if !it.gpu.remaps_rows() || hidden {
        return Err(Code::NOT_SUPPORTED);
    }
    has_ecc(it.gpu)
}

/// 0 is many single-bit errors, 1 is a double-bit error.
fn retired(gpu: &Gpu, cause: u32) -> Answer<&[u64]> {
    if gpu.remaps_rows() {
        return Err(Code::NOT_SUPPORTED);
    }
    has_ecc(gpu)?;
    match cause {
        0 => Ok(&gpu.retired_pages.single_bit),
        1 => Ok(&gpu.retired_pages.double_bit),
        _ => Err(Code::INVALID_ARGUMENT),
    }
}

/// Graphics, SM, memory, video.
fn clock(gpu: &Gpu, kind: u32, most: bool) -> Answer<u32> {
    let clocks = &gpu.clocks;
    Ok(match (kind, most) {
        (0, false) => clocks.graphics,
        (0, true) => clocks.max_graphics,
        (1, false) => clocks.sm,
        (1, true) => clocks.max_sm,
        (2, false) => clocks.memory,
        (2, true) => clocks.max_memory,
        (3, false) => clocks.video,
        (3, true) => clocks.max_video,
        _ => return Err(Code::INVALID_ARGUMENT),
    })
}

fn bits(reasons: &[EventReason]) -> u64 {
    reasons.iter().fold(0, |all, reason| all | *reason as u64)
}
