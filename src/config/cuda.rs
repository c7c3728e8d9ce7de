//! Rejects CUDA versions that were never released. Versions newer than the matrix are accepted.

use std::collections::BTreeSet;

use crate::{
    config::{driver::DriverInputs, error::ConfigError},
    model::{text::nearest, version::CudaVersion},
};

impl DriverInputs<'_> {
    /// Rejects a version that was never released, because every driver would seem compatible with it.
    pub(super) fn released_cuda(&self) -> Result<(), ConfigError> {
        let released: BTreeSet<CudaVersion> = (self.matrix.toolkits.iter())
            .map(|row| row.version.minor_version())
            .collect();
        let too_old = |one: CudaVersion| {
            let oldest = released
                .first()
                .filter(|oldest| one.minor_version() < **oldest)?;
            Some(format!(
                "CUDA {one} is older than {oldest}, the oldest known release"
            ))
        };
        let why = |one: CudaVersion| self.matrix.unreleased_cuda(one).or_else(|| too_old(one));
        let mut asked = self.config.cuda.iter().flatten();
        let Some((none, why)) = asked.find_map(|one| Some((one, why(*one)?))) else {
            return Ok(());
        };
        let names: Vec<String> = released.iter().map(ToString::to_string).collect();
        let hint = nearest(&none.to_string(), names.iter().map(String::as_str))
            .map(|nearest| format!("did you mean `\"{nearest}\"`?"));
        Err(self.layers.wrong("driver.cuda", why, hint))
    }
}
