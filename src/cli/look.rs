//! The machine and its facts, as several commands need them.

use camino::Utf8Path;

use super::{Failure, world::World};
use crate::{
    compat::matrix::Matrix,
    exit::Exit,
    facts::{Facts, Scope, gather},
    host::{Host, rooted},
};

/// The machine, or the tree that `--root` names.
pub(super) fn host(world: &World<'_>, root: Option<&Utf8Path>) -> Result<Host, Failure> {
    match root {
        None => Ok(world.host.clone()),
        Some(folder) => rooted::host(folder).map_err(|error| {
            Failure::caused(
                Exit::Usage,
                "root-unreadable",
                "failed to open the tree that `--root` names",
                error,
                None,
            )
        }),
    }
}

/// The facts; `executes` is false below `--root`.
pub(super) async fn facts(host: &Host, matrix: &Matrix, executes: bool) -> Facts {
    gather(host.reader(), Some(matrix), Scope { executes }).await
}
