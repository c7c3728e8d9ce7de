//! Go, which compiles programs that are only available as Go modules.

use std::path::Path;

use anyhow::Result;

use crate::sh::Cmd;

/// A part of the recipes of the programs compiled here, because a change of this file may change the results.
pub const SOURCE: &str = include_str!("golang.rs");

/// The installed version, such as `go1.26.8`: a part of the same recipes.
pub fn version() -> Result<String> {
    let done = Cmd::new(["go", "env", "GOVERSION"]).ok()?;
    Ok(done.stdout.trim().to_string())
}

/// Compiles packages of the module in `module` into the directory `to`, or one of them as the file `to`. The programs
/// are static, so that they run in any machine and container. Go compares each module with `go.sum`. `linker` are
/// linker options in addition to those that strip symbols.
pub fn build<S: AsRef<str>>(
    module: &Path,
    packages: impl IntoIterator<Item = S>,
    linker: &str,
    to: &str,
) -> Cmd {
    let linker = format!("-s -w {linker}");
    let fixed = [
        "nice",
        "go",
        "build",
        "-mod=readonly",
        "-trimpath",
        "-buildvcs=false",
        "-ldflags",
        &linker,
        "-o",
        to,
    ];
    let packages = packages.into_iter().map(|name| name.as_ref().to_string());
    Cmd::new(fixed.map(String::from).into_iter().chain(packages))
        .env("CGO_ENABLED", "0")
        .cwd(module)
}
