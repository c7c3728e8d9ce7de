//! GPU health from NVML, in the child process of `gpu`.

use nvml_wrapper::{
    Device, Nvml as Library,
    enum_wrappers::device::{
        EccCounter, MemoryError, RetirementCause, TemperatureSensor, TemperatureThreshold,
    },
    error::{NvmlError, nvml_try},
};
use nvml_wrapper_sys::bindings::{
    field_id::{
        NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, NVML_FI_DEV_MEMORY_TEMP,
        NVML_FI_DEV_NVLINK_LINK_COUNT, NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL,
        NVML_FI_DEV_TEMPERATURE_SLOWDOWN_TLIMIT,
    },
    nvmlDevice_t, nvmlEccSramErrorStatus_v1_t, nvmlFieldValue_t, nvmlMarginTemperature_v1_t,
    nvmlReturn_t, nvmlRowRemapperHistogramValues_t, nvmlTemperature_v1_t,
    nvmlTemperatureSensors_enum_NVML_TEMPERATURE_GPU,
};

use super::answer::version_of;
use crate::host::health::{
    EccErrors, EccMode, GpuHealth, NvLinks, PcieLink, PowerLimit, RemappedRows, RetiredPages,
    Temperature,
};

/// Queries the health of a GPU, starting with the recovery action. The NVLinks are only queried if the GPU uses them.
///
/// # Errors
/// If the GPU is lost or must be reset. Values that were read before are kept. Any other error
/// means that this value is unknown, because drivers return various error codes for unsupported
/// values.
pub(super) fn health(
    nvml: &Library,
    device: &Device<'_>,
    uses_nvlink: bool,
    into: &mut GpuHealth,
) -> Result<(), NvmlError> {
    let [recovery_action, memory, slowdown, links, recovery_errors] = fields(
        nvml,
        device,
        [
            NVML_FI_DEV_GET_GPU_RECOVERY_ACTION,
            NVML_FI_DEV_MEMORY_TEMP,
            NVML_FI_DEV_TEMPERATURE_SLOWDOWN_TLIMIT,
            NVML_FI_DEV_NVLINK_LINK_COUNT,
            NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL,
        ],
    )?;
    let small = |value: Option<i64>| value.and_then(|value| u32::try_from(value).ok());
    into.recovery_action = small(recovery_action);
    into.ecc = ecc(device)?;
    into.ecc_mode = known(device.is_ecc_enabled())?.map(|mode| EccMode {
        current: mode.currently_enabled,
        pending: mode.pending_enabled,
    });
    into.sram_threshold_exceeded = sram_threshold_exceeded(nvml, device)?;
    into.remapped_rows = remapped_rows(nvml, device)?;
    into.retired_pages = retired_pages(device)?;
    into.inforom_valid = match device.validate_info_rom() {
        Err(NvmlError::CorruptedInfoROM) => Some(false),
        answer => known(answer)?.map(|()| true),
    };
    into.temperature = temperature(nvml, device, small(memory), slowdown)?;
    into.power = both(
        known(device.enforced_power_limit())?,
        known(device.power_management_limit_default())?,
    )
    .map(|(enforced, default)| PowerLimit { enforced, default });
    into.clock_events = clock_events(nvml, device)?;
    into.performance_state = known(device.performance_state())?.map(|state| state.as_c());
    into.pcie = pcie(device)?;
    if uses_nvlink {
        into.nvlink = nvlink(device, small(links), small(recovery_errors))?;
    }
    Ok(())
}

/// Converts errors to `None`, except if the GPU is lost or must be reset.
fn known<T>(answer: Result<T, NvmlError>) -> Result<Option<T>, NvmlError> {
    match answer {
        Ok(value) => Ok(Some(value)),
        Err(error @ (NvmlError::GpuLost | NvmlError::ResetRequired)) => Err(error),
        Err(_) => Ok(None),
    }
}

fn both<A, B>(one: Option<A>, other: Option<B>) -> Option<(A, B)> {
    Some((one?, other?))
}

/// Reads NVML fields. All field IDs must be below 251, because newer fields have other IDs in older
/// drivers. The function of the wrapper does not support negative values.
fn fields<const N: usize>(
    nvml: &Library,
    device: &Device<'_>,
    numbers: [u32; N],
) -> Result<[Option<i64>; N], NvmlError> {
    let Ok(ask) = nvml.lib().nvmlDeviceGetFieldValues.as_ref() else {
        return Ok([None; N]);
    };
    // SAFETY: the struct consists of numbers and a union of numbers, for which zero is valid.
    let mut values: [nvmlFieldValue_t; N] = unsafe { std::mem::zeroed() };
    for (value, number) in values.iter_mut().zip(numbers) {
        value.fieldId = number;
    }
    let count = i32::try_from(N).unwrap_or(i32::MAX);
    // SAFETY: the handle lives as long as `device`. The function writes this many values.
    let answer = nvml_try(unsafe { ask(device.handle(), count, values.as_mut_ptr()) });
    Ok(match known(answer)? {
        Some(()) => values.map(|value| number(&value)),
        None => [None; N],
    })
}

/// Returns the value of a field according to its `nvmlValueType_t`.
fn number(field: &nvmlFieldValue_t) -> Option<i64> {
    if field.nvmlReturn != 0 {
        return None;
    }
    // SAFETY: all members are numbers of at most 64 bits in a union that was zero before. The type
    // determines the written member.
    unsafe {
        match field.valueType {
            1 => Some(field.value.uiVal.into()),
            2 | 3 => field.value.ullVal.try_into().ok(),
            4 => Some(field.value.sllVal),
            5 => Some(field.value.siVal.into()),
            _ => None,
        }
    }
}

fn ecc(device: &Device<'_>) -> Result<Option<EccErrors>, NvmlError> {
    let count = |kind, counter| known(device.total_ecc_errors(kind, counter));
    let corrected = count(MemoryError::Corrected, EccCounter::Volatile)?;
    let uncorrected = count(MemoryError::Uncorrected, EccCounter::Volatile)?;
    let lifetime = count(MemoryError::Uncorrected, EccCounter::Aggregate)?;
    Ok(both(both(corrected, uncorrected), lifetime).map(
        |((corrected, uncorrected), lifetime_uncorrected)| EccErrors {
            corrected,
            uncorrected,
            lifetime_uncorrected,
        },
    ))
}

/// Calls an NVML function that writes a struct. Returns `None` if the driver does not support the
/// function or the value.
///
/// # Safety
/// If the first field of `T` is a version, it must be the version of `T`, because it determines how
/// much NVML writes.
unsafe fn filled<T>(
    device: &Device<'_>,
    ask: Option<&unsafe extern "C" fn(nvmlDevice_t, *mut T) -> nvmlReturn_t>,
    mut value: T,
) -> Result<Option<T>, NvmlError> {
    let Some(ask) = ask else {
        return Ok(None);
    };
    // SAFETY: the handle lives as long as `device`, and the caller guarantees that the function
    // writes a `T`.
    let answer = nvml_try(unsafe { ask(device.handle(), &raw mut value) });
    Ok(known(answer)?.map(|()| value))
}

fn sram_threshold_exceeded(nvml: &Library, device: &Device<'_>) -> Result<Option<bool>, NvmlError> {
    // SAFETY: the struct consists only of numbers, for which zero is valid.
    let mut status: nvmlEccSramErrorStatus_v1_t = unsafe { std::mem::zeroed() };
    status.version = version_of::<nvmlEccSramErrorStatus_v1_t>(1);
    let ask = nvml.lib().nvmlDeviceGetSramEccErrorStatus.as_ref().ok();
    // SAFETY: the version matches the struct.
    let answer = unsafe { filled(device, ask, status) };
    Ok(answer?.map(|status| status.bThresholdExceeded != 0))
}

fn remapped_rows(nvml: &Library, device: &Device<'_>) -> Result<Option<RemappedRows>, NvmlError> {
    let Ok(ask) = nvml.lib().nvmlDeviceGetRemappedRows.as_ref() else {
        return Ok(None);
    };
    let (mut correctable, mut uncorrectable, mut pending, mut failed) = (0, 0, 0, 0);
    // SAFETY: the handle lives as long as `device`. The function writes four numbers.
    let answer = nvml_try(unsafe {
        ask(
            device.handle(),
            &raw mut correctable,
            &raw mut uncorrectable,
            &raw mut pending,
            &raw mut failed,
        )
    });
    let Some(()) = known(answer)? else {
        return Ok(None);
    };
    Ok(Some(RemappedRows {
        correctable,
        uncorrectable,
        pending: pending != 0,
        failed: failed != 0,
        exhausted_banks: exhausted_banks(nvml, device)?,
    }))
}

fn exhausted_banks(nvml: &Library, device: &Device<'_>) -> Result<Option<u32>, NvmlError> {
    let banks = nvmlRowRemapperHistogramValues_t {
        max: 0,
        high: 0,
        partial: 0,
        low: 0,
        none: 0,
    };
    let ask = nvml.lib().nvmlDeviceGetRowRemapperHistogram.as_ref().ok();
    // SAFETY: the struct has no version.
    let answer = unsafe { filled(device, ask, banks) };
    Ok(answer?.map(|banks| banks.none))
}

fn retired_pages(device: &Device<'_>) -> Result<Option<RetiredPages>, NvmlError> {
    let count = |cause| -> Result<Option<usize>, NvmlError> {
        Ok(known(device.retired_pages(cause))?.map(|pages| pages.len()))
    };
    let single = count(RetirementCause::MultipleSingleBitEccErrors)?;
    let double = count(RetirementCause::DoubleBitEccError)?;
    let pending = known(device.are_pages_pending_retired())?;
    Ok(
        both(both(single, double), pending).map(|((single, double), pending)| RetiredPages {
            count: u32::try_from(single + double).unwrap_or(u32::MAX),
            pending,
        }),
    )
}

fn temperature(
    nvml: &Library,
    device: &Device<'_>,
    memory: Option<u32>,
    slowdown: Option<i64>,
) -> Result<Option<Temperature>, NvmlError> {
    let lib = nvml.lib();
    let sensor = nvmlTemperature_v1_t {
        version: version_of::<nvmlTemperature_v1_t>(1),
        sensorType: nvmlTemperatureSensors_enum_NVML_TEMPERATURE_GPU,
        temperature: 0,
    };
    let ask = lib.nvmlDeviceGetTemperatureV.as_ref().ok();
    // SAFETY: the version matches the struct.
    let answer = unsafe { filled(device, ask, sensor) };
    // Newer drivers drop the old functions, and older drivers only have the old functions.
    let gpu = match answer? {
        Some(sensor) => Some(sensor.temperature),
        None => known(device.temperature(TemperatureSensor::Gpu))?
            .and_then(|degrees| i32::try_from(degrees).ok()),
    };
    let Some(gpu) = gpu else {
        return Ok(None);
    };
    let limit = |which| -> Result<Option<u32>, NvmlError> {
        Ok(known(device.temperature_threshold(which))?.filter(|degrees| *degrees != 0))
    };
    let slowdown = slowdown.and_then(|degrees| i32::try_from(degrees).ok());
    let margin = match both(below_normal(nvml, device)?, slowdown) {
        Some((below, slowdown)) => Some(below.saturating_sub(slowdown)),
        None => limit(TemperatureThreshold::Slowdown)?
            .and_then(|slowdown| i32::try_from(slowdown).ok())
            .map(|slowdown| slowdown - gpu),
    };
    Ok(Some(Temperature {
        gpu,
        margin,
        // A GPU without this sensor reports 0.
        memory: memory.filter(|degrees| *degrees != 0),
        memory_max: limit(TemperatureThreshold::MemoryMax)?,
    }))
}

/// Returns the degrees below the maximum operating temperature (T.Limit, since Ada). The hardware
/// slows down slightly above it.
fn below_normal(nvml: &Library, device: &Device<'_>) -> Result<Option<i32>, NvmlError> {
    let margin = nvmlMarginTemperature_v1_t {
        version: version_of::<nvmlMarginTemperature_v1_t>(1),
        marginTemperature: 0,
    };
    let ask = nvml.lib().nvmlDeviceGetMarginTemperature.as_ref().ok();
    // SAFETY: the version matches the struct.
    let answer = unsafe { filled(device, ask, margin) };
    Ok(answer?.map(|margin| margin.marginTemperature))
}

fn clock_events(nvml: &Library, device: &Device<'_>) -> Result<Option<u64>, NvmlError> {
    let ask = nvml.lib().nvmlDeviceGetCurrentClocksEventReasons.as_ref();
    // SAFETY: a number has no version.
    let answer = unsafe { filled(device, ask.ok(), 0) };
    match answer? {
        Some(events) => Ok(Some(events)),
        // The name before branch 535.
        None => Ok(known(device.current_throttle_reasons())?.map(|reasons| reasons.bits())),
    }
}

fn pcie(device: &Device<'_>) -> Result<Option<PcieLink>, NvmlError> {
    let width = both(
        known(device.current_pcie_link_width())?,
        known(device.max_pcie_link_width())?,
    );
    let generation = both(
        known(device.current_pcie_link_gen())?,
        known(device.max_pcie_link_gen())?,
    );
    Ok(both(width, generation).map(
        |((width, max_width), (generation, max_generation))| PcieLink {
            width,
            max_width,
            generation,
            max_generation,
        },
    ))
}

fn nvlink(
    device: &Device<'_>,
    count: Option<u32>,
    recovery_errors: Option<u32>,
) -> Result<Option<NvLinks>, NvmlError> {
    /// More than any GPU has: NVLink 5 has 18 links, and `NVML_NVLINK_MAX_LINKS` is at most 36.
    const MOST: u32 = 64;
    let Some(count) = count.filter(|count| (1..=MOST).contains(count)) else {
        return Ok(None);
    };
    let mut active = 0;
    for link in 0..count {
        if known(device.link_wrapper_for(link).is_active())? == Some(true) {
            active += 1;
        }
    }
    Ok(Some(NvLinks {
        count,
        active,
        recovery_errors,
    }))
}
