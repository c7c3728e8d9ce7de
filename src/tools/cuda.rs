//! Explains CUDA driver API results, using the table `cuda.toml`, and returns remedies.

use std::{collections::BTreeMap, sync::LazyLock};

use serde::Deserialize;

use crate::{host::CudaFault, model::text::built_in};

/// The remedy if CUDA and NVML list different devices.
pub const OTHER_DEVICES: &str = "check that `libcuda.so.1` and `libnvidia-ml.so.1` belong to the same driver; in a container, \
     regenerate its CDI specification (`nvidia-ctk cdi generate`)";

static TABLE: LazyLock<BTreeMap<i32, CudaResult>> = LazyLock::new(|| {
    let table: ResultTable =
        built_in("cuda").expect("the built-in table is valid, as a test checks");
    (table.result.into_iter())
        .filter_map(|(code, meaning)| Some((code.parse().ok()?, meaning)))
        .collect()
});

/// An entry of the result table.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CudaResult {
    /// The name in `cuda.h`.
    pub name: String,
    /// The cause.
    pub what: String,
    /// The remedy.
    pub remedy: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ResultTable {
    result: BTreeMap<String, CudaResult>,
}

/// Returns the table entry of a result, or `None` if the result is unknown.
pub fn of(code: i32) -> Option<&'static CudaResult> {
    TABLE.get(&code)
}

/// Describes a fault, including the cause of its result code.
pub fn why(fault: &CudaFault) -> String {
    match fault {
        CudaFault::Returned { code, .. } => match of(*code) {
            Some(CudaResult { name, what, .. }) => format!("{fault} ({name}): {what}"),
            None => format!("{fault}, which is unknown to gpu-bootstrap"),
        },
        _ => fault.to_string(),
    }
}

/// Returns the remedy of a fault.
pub fn remedy(fault: &CudaFault) -> String {
    let text = match fault {
        CudaFault::NotLoadable { .. } => {
            "install the driver package with `libcuda.so.1` and run `ldconfig`; in a container, add `compute` to \
             `NVIDIA_DRIVER_CAPABILITIES` and check the CDI specification"
        }
        CudaFault::NoFunction { .. } => {
            "install a newer driver: the installed one is older than CUDA 9.2"
        }
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
            "run `dmesg | grep -e NVRM -e Xid`: the GPU or its firmware hangs; reboot, and replace the machine if it happens \
             again"
        }
        CudaFault::Crashed { .. } => {
            "check that `libcuda.so.1` comes from the driver and has the version of the loaded module (`ldconfig -p | grep \
             libcuda`)"
        }
        CudaFault::WrongCopy { .. } | CudaFault::WrongResult { .. } => {
            "take the machine out of service, because the results of this GPU are wrong; run `nvidia-smi -q -d \
             ECC,ROW_REMAPPER` and replace the GPU"
        }
        CudaFault::OtherDevice { .. } => OTHER_DEVICES,
        CudaFault::NotQueried { .. } => "run the probe on the machine itself",
        CudaFault::Failed { .. } => "run the probe again, and report a bug if it still fails",
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
    fn initialization_results_have_cause_and_remedy() {
        for (code, cause, act) in rows! {
            802, "NVSwitch fabric is not ready", "nvidia-fabricmanager";
            803, "have different versions", "reboot";
            999, "internal driver error", "nvidia-uvm";
            100, "finds no GPU", "ls -l /dev/nvidia*";
            3, "could not be initialized", "NVRM";
            4, "shutting down", "again";
            34, "the stub library of a CUDA toolkit", "stubs";
            46, "compute mode", "nvidia-smi -c";
        } {
            let (why, remedy) = (why(&returned(code)), remedy(&returned(code)));
            assert!(why.starts_with(&format!("`cuInit` returned {code} (CUDA_ERROR_")));
            assert!(why.contains(cause), "{why}");
            assert!(remedy.contains(act), "{remedy}");
        }
    }

    #[test]
    fn unknown_result_is_reported_with_its_code() {
        assert_eq!(of(12345), None);
        let words = "`cuInit` returned 12345, which is unknown to gpu-bootstrap";
        assert_eq!(why(&returned(12345)), words);
        assert!(remedy(&returned(12345)).contains("look up 12345"));
    }

    #[test]
    fn table_entries_have_cuda_names_and_texts() {
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
