//! Downloads Go modules. Not part of `golang.rs`, because a change of that file compiles Kubernetes again.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::sh::Cmd;

const LIMIT: Duration = Duration::from_secs(300);

/// The output of `go mod download -json`: `go help mod download`.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Module {
    dir: PathBuf,
}

/// The directory of a module, read-only. Go compares it with its public checksum database.
pub fn download(module: &str, version: &str) -> Result<PathBuf> {
    let name = format!("{module}@{version}");
    let done = Cmd::new(["go", "mod", "download", "-json", &name])
        .cwd(Path::new("/"))
        .deadline(LIMIT)
        .ok()?;
    let found: Module = serde_json::from_str(&done.stdout)
        .with_context(|| format!("the output of go contains no directory of {name}"))?;
    Ok(found.dir)
}
