//! `crictl`, the CRI client, compiled from its own Go module separately from the Kubernetes programs, so that another
//! crictl version does not recompile them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::bed::Bed;
use crate::golang;
use crate::sh::Cmd;

/// Source of the version: the list of the Go module proxy. Its minor version matches Kubernetes, as required by the
/// module's `README.md`. Go compares the module with its public checksum database.
const MODULE: &str = "sigs.k8s.io/cri-tools";
const VERSION: &str = "1.34.0";

const LIMIT: Duration = Duration::from_secs(1800);

/// A part of the recipe, because a change of this file may change the result.
const SOURCE: &str = include_str!("crictl.rs");

/// Builds a directory with the Kubernetes programs from `kubernetes`, and `crictl`.
pub fn build(bed: &Bed, kubernetes: &Path) -> Result<PathBuf> {
    let go = golang::version()?;
    let recipe = format!("{} {go} {SOURCE}", kubernetes.display());
    bed.cached("crictl", &recipe, None, |dir| {
        let linker = format!("-s -w -X {MODULE}/pkg/version.Version={VERSION}");
        let package = format!("{MODULE}/cmd/crictl@v{VERSION}");
        let argv = ["nice", "go", "install", "-trimpath", "-ldflags"];
        Cmd::new(argv.into_iter().chain([&*linker, &*package]))
            .env("CGO_ENABLED", "0")
            .env("GOBIN", dir.to_string_lossy())
            .cwd(Path::new("/"))
            .deadline(LIMIT)
            .ok()
            .context("cannot compile crictl")?;
        let others = format!("{}/.", kubernetes.display());
        Cmd::new(["cp", "-al", &others, &dir.to_string_lossy()])
            .ok()
            .context("cannot link Kubernetes' programs")
            .map(drop)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repo::table::{Table, upstream};

    #[test]
    fn package_version_matches_module() {
        let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let table = Table::load(&[here.join("kubernetes.toml")], None).unwrap();
        let package = (table.packages.iter()).find(|package| package.name == "cri-tools");
        assert_eq!(upstream(&package.unwrap().versions[0]), VERSION);
    }
}
