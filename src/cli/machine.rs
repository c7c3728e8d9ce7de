//! The machine that a command is about, and its facts.

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
                "failed to open the folder of `--root`",
                error,
                None,
            )
        }),
    }
}

/// The facts.
pub(super) fn facts(host: &Host, matrix: &Matrix, scope: Scope) -> Facts {
    gather(host.reader(), Some(matrix), scope)
}

/// How far looking may go: below `--root` nothing is executed.
pub(super) fn scope(root: Option<&Utf8Path>) -> Scope {
    Scope {
        executes: root.is_none(),
    }
}
