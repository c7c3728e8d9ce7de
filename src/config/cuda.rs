//! Validates configured CUDA versions: released ones, and versions newer than the matrix.

use std::collections::BTreeSet;

use crate::{
    config::{driver::DriverInputs, error::ConfigError},
    model::{text::nearest, version::CudaVersion},
};

impl DriverInputs<'_> {
    /// Rejects a version that was never released, because any driver would satisfy it.
    pub(super) fn released_cuda(&self) -> Result<(), ConfigError> {
        let released: BTreeSet<CudaVersion> = (self.matrix.toolkits.iter())
            .map(|row| row.version.minor_version())
            .collect();
        let is_none = |one: &&CudaVersion| {
            let minor = one.minor_version();
            released.last().is_some_and(|newest| minor < *newest) && !released.contains(&minor)
        };
        let Some(none) = self.config.cuda.iter().flatten().find(is_none) else {
            return Ok(());
        };
        let names: Vec<String> = released.iter().map(ToString::to_string).collect();
        let hint = nearest(&none.to_string(), names.iter().map(String::as_str))
            .map(|nearest| format!("did you mean `\"{nearest}\"`?"));
        let why = format!("CUDA {none} does not exist");
        Err(self.layers.wrong("driver.cuda", why, hint))
    }
}
