//! The machine that a command is about, and its facts.

use std::io::{self, Read as _};

use camino::Utf8Path;

use super::{Failure, world::Env};
use crate::{
    compat::{load::MatrixError, matrix::Matrix},
    exit::Exit,
    facts::{Facts, Scope, complete, gather},
    host::{Host, ReadFiles as _, rooted, trusted::Trusted},
    tools::lspci,
};

/// The most that is read from standard input: the whole output for a machine has some hundred KiB.
const MOST_INPUT: u64 = 64 << 20;

/// What to do about a text that cannot be read, such as a pipe that has a name.
const NO_TEXT: Option<&str> =
    Some("name the file with the output of `lspci -nnk`, or `-` for standard input");

/// A tree without any of them is no mounted image and no recording.
const OF_SYSTEMS: [&str; 4] = ["/etc", "/usr", "/proc", "/sys"];

/// The machine, or the tree that `--root` names.
pub(super) fn host(here: &Host, root: Option<&Utf8Path>) -> Result<Host, Failure> {
    match root {
        None => Ok(here.clone()),
        Some(folder) => {
            let failed = |error| {
                Failure::caused(
                    Exit::Usage,
                    "root-unreadable",
                    "failed to open the folder of `--root`",
                    error,
                    None,
                )
            };
            let host = rooted::host(folder).map_err(failed)?;
            for of_system in OF_SYSTEMS {
                if host.files.exists(of_system.into()).map_err(failed)? {
                    return Ok(host);
                }
            }
            Err(Failure::new(
                Exit::Usage,
                "root-no-system",
                &format!(
                    "failed to find a Linux system in `{folder}`, the folder of `--root`: \
                     it has no `/etc`, `/usr`, `/proc` or `/sys`"
                ),
                Some(
                    "name the folder where the image is mounted, or `files` in a recording of `check --record`",
                ),
            ))
        }
    }
}

/// A machine with the bus that the text of `--lspci` tells, and nothing else.
pub(super) fn from_lspci(here: &Host, file: &Utf8Path) -> Result<Host, Failure> {
    let failed = |message: &str, error: io::Error| {
        Failure::caused(Exit::Usage, "lspci-unreadable", message, error, NO_TEXT)
    };
    let bytes = if file == "-" {
        let mut bytes = Vec::new();
        let message = "failed to read the output of lspci from standard input";
        let read = io::stdin().take(MOST_INPUT + 1).read_to_end(&mut bytes);
        read.map_err(|error| failed(message, error))?;
        if bytes.len() as u64 > MOST_INPUT {
            return Err(failed(message, io::ErrorKind::FileTooLarge.into()));
        }
        bytes
    } else {
        let message = format!("failed to read `{file}`, the file of `--lspci`");
        let path = camino::absolute_utf8(file).map_err(|error| failed(&message, error))?;
        let read = here.files.read(&path).map_err(|error| {
            Failure::caused(Exit::Usage, "lspci-unreadable", &message, error, NO_TEXT)
        })?;
        read.ok_or_else(|| failed(&message, io::ErrorKind::NotFound.into()))?
    };
    // Names of devices may have letters of another encoding.
    let text = String::from_utf8_lossy(&bytes);
    let functions = lspci::parse(&text).map_err(|error| {
        Failure::caused(
            Exit::Usage,
            "lspci-invalid",
            &format!("failed to understand `{file}` as the output of lspci"),
            error,
            Some(
                "run `lspci -nnk` on the machine and use its whole output; also known are `-n`, `-nn`, \
                 `-nmm`, `-vvnn`, each with or without `-D`",
            ),
        )
    })?;
    Ok(lspci::host(&functions))
}

/// The matrix of the administrator, which replaces the built-in one.
pub const MATRIX: &str = "/etc/gpu-bootstrap/cuda-driver-matrix.toml";

/// The matrix: an administrator's, else the built-in one.
pub(super) fn matrix(host: &Host, env: &Env) -> Result<Matrix, Failure> {
    let failed = |error: MatrixError| {
        Failure::caused(
            Exit::Config,
            "matrix-invalid",
            "failed to read the compatibility matrix",
            error,
            Some("correct the lines named above, or remove the file to use the built-in matrix"),
        )
    };
    let own = Trusted::new(&*host.files, env.root)
        .read_text(Utf8Path::new(MATRIX))
        .map_err(|error| {
            let (reason, hint) = (error.reason(), error.hint());
            Failure::caused(
                Exit::Config,
                reason.unwrap_or("matrix-unreadable"),
                "failed to read the compatibility matrix",
                error,
                hint.as_deref(),
            )
        })?;
    match own {
        Some(text) => Matrix::parse(&text, MATRIX).map_err(failed),
        None => Matrix::builtin().map_err(failed),
    }
}

/// What is known about a machine, and the matrix of the machine `here`.
///
/// # Errors
/// A matrix that cannot be read.
pub(super) async fn known(
    host: &Host,
    here: &Host,
    env: &Env,
    scope: Scope,
) -> Result<(Facts, Matrix), Failure> {
    let matrix = matrix(here, env)?;
    Ok((all_facts(host, &matrix, scope).await, matrix))
}

/// The facts, also those that only the cloud's metadata service knows.
pub(super) async fn all_facts(host: &Host, matrix: &Matrix, scope: Scope) -> Facts {
    let mut facts = facts(host, matrix, scope);
    // A tree or a text is another machine, and the service tells of this one.
    if scope.executes {
        complete(host, &mut facts).await;
    }
    facts
}

/// The facts that the machine's own files tell.
pub(super) fn facts(host: &Host, matrix: &Matrix, scope: Scope) -> Facts {
    gather(host.reader(), Some(matrix), scope)
}

/// How far looking may go: below `--root` nothing is executed.
pub(super) fn scope(root: Option<&Utf8Path>) -> Scope {
    Scope {
        executes: root.is_none(),
    }
}

/// The scope of a machine that is known from a text.
pub(super) const TEXT_ONLY: Scope = Scope { executes: false };
