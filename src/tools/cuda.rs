//! What results of CUDA's driver API mean, from the table `cuda.toml`, and what to do about a fault.

use std::{collections::BTreeMap, sync::LazyLock};

use serde::Deserialize;

use crate::{host::CudaFault, model::text::built_in};

/// What to do if CUDA and NVML have different devices.
pub const OTHER_DEVICES: &str = "check that `libcuda.so.1` and `libnvidia-ml.so.1` are of one driver; in a container make its CDI \
     specification anew (`nvidia-ctk cdi generate`)";

static TABLE: LazyLock<BTreeMap<i32, CudaResult>> = LazyLock::new(|| {
    let table: ResultTable = built_in("cuda").expect("the built-in table parses: a test reads it");
    (table.result.into_iter())
        .filter_map(|(code, meaning)| Some((code.parse().ok()?, meaning)))
        .collect()
});

/// A result.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CudaResult {
    /// As `cuda.h` names it.
    pub name: String,
    /// The cause.
    pub what: String,
    /// What to do.
    pub remedy: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ResultTable {
    result: BTreeMap<String, CudaResult>,
}

/// The row of a result; `None` if the table has none.
#[must_use]
pub fn of(code: i32) -> Option<&'static CudaResult> {
    TABLE.get(&code)
}

/// A fault in words, with the cause of its result.
#[must_use]
pub fn why(fault: &CudaFault) -> String {
    match fault {
        CudaFault::Returned { code, .. } => match of(*code) {
            Some(CudaResult { name, what, .. }) => format!("{fault} ({name}): {what}"),
            None => format!("{fault}, which this program does not know"),
        },
        _ => fault.to_string(),
    }
}

/// What to do about it.
#[must_use]
pub fn remedy(fault: &CudaFault) -> String {
    let text = match fault {
        CudaFault::NotLoadable { .. } => {
            "install the driver's package with `libcuda.so.1` and run `ldconfig`; in a container add \
             `compute` to `NVIDIA_DRIVER_CAPABILITIES`, and check the CDI specification"
        }
        CudaFault::NoFunction { .. } => "install a newer driver: this one is older than CUDA 9.2",
        CudaFault::Returned { code, .. } => {
            return of(*code).map_or_else(
                || {
                    format!(
                        "look up {code} in <https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__TYPES.html>, \
                         and run `dmesg | grep -e NVRM -e Xid`"
                    )
                },
                |meaning| meaning.remedy.clone(),
            );
        }
        CudaFault::Hung { .. } => {
            "run `dmesg | grep -e NVRM -e Xid`: the GPU or its firmware hangs; reboot, and have the \
             machine replaced if it happens again"
        }
        CudaFault::Crashed { .. } => {
            "check that `libcuda.so.1` is the driver's own, of the version of the loaded module \
             (`ldconfig -p | grep libcuda`)"
        }
        CudaFault::WrongCopy { .. } | CudaFault::WrongResult { .. } => {
            "take the machine out of service: results of this GPU cannot be trusted; run `nvidia-smi \
             -q -d ECC,ROW_REMAPPER` and have it replaced"
        }
        CudaFault::OtherDevice { .. } => OTHER_DEVICES,
        CudaFault::NotAsked { .. } => "run the probe on the machine itself",
        CudaFault::Failed { .. } => "run the probe again, and report this if it stays",
    };
    text.to_owned()
}

#[cfg(test)]
mod tests {
    use super::{TABLE, of, remedy, why};
    use crate::host::CudaFault;

    fn returned(code: i32) -> CudaFault {
        CudaFault::Returned {
            call: "cuInit".into(),
            code,
        }
    }

    #[test]
    fn each_result_of_the_start_has_its_cause_and_remedy() {
        for (code, cause, act) in rows! {
            802, "fabric of NVSwitches is not ready", "nvidia-fabricmanager";
            803, "are of different versions", "reboot";
            999, "an internal error of the driver", "nvidia-uvm";
            100, "finds no GPU", "ls -l /dev/nvidia*";
            3, "could not be initialised", "NVRM";
            4, "shutting down", "again";
            34, "the stub of a CUDA toolkit", "stubs";
            46, "compute mode", "nvidia-smi -c";
        } {
            let (why, remedy) = (why(&returned(code)), remedy(&returned(code)));
            assert!(why.starts_with(&format!("`cuInit` returned {code} (CUDA_ERROR_")));
            assert!(why.contains(cause), "{why}");
            assert!(remedy.contains(act), "{remedy}");
        }
    }

    #[test]
    fn a_result_without_a_row_is_told_as_it_is() {
        assert_eq!(of(12345), None);
        let words = "`cuInit` returned 12345, which this program does not know";
        assert_eq!(why(&returned(12345)), words);
        assert!(remedy(&returned(12345)).contains("look up 12345"));
    }

    #[test]
    fn the_table_has_the_names_of_the_header() {
        assert!(TABLE.len() > 30);
        for (code, row) in TABLE.iter() {
            assert!(row.name.starts_with("CUDA_ERROR_"), "{code}: {}", row.name);
            let words = [&row.what, &row.remedy];
            assert!(
                words
                    .iter()
                    .all(|text| !text.ends_with('.') && !text.is_empty())
            );
        }
    }
}
