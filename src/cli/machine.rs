//! The machine that a command inspects, and its facts.

use std::io::{self, Read as _};

use camino::Utf8Path;

use super::{Failure, env::Env};
use crate::{
    compat::{load::MatrixError, matrix::Matrix},
    exit::Exit,
    facts::{Facts, Scope, complete, gather},
    host::{Host, ReadFiles as _, rooted, trusted::Trusted},
    tools::lspci,
};

/// Size limit of standard input. Real lspci output has a few hundred KiB.
const MOST_INPUT: u64 = 64 << 20;

/// The hint for unreadable input, such as a named pipe.
const NO_TEXT: Option<&str> =
    Some("specify the file with the output of `lspci -nnk`, or `-` for standard input");

/// A directory that contains none of these is neither a mounted image nor a recording.
const OF_SYSTEMS: [&str; 4] = ["/etc", "/usr", "/proc", "/sys"];

/// Returns this machine, or the directory tree of `--root`.
pub(super) fn host(here: &Host, root: Option<&Utf8Path>) -> Result<Host, Failure> {
    match root {
        None => Ok(here.clone()),
        Some(directory) => {
            let failed = |error| {
                Failure::caused(
                    Exit::Usage,
                    "root-unreadable",
                    "failed to open the directory of `--root`",
                    error,
                    None,
                )
            };
            let host = rooted::host(directory).map_err(failed)?;
            for of_system in OF_SYSTEMS {
                if host.files.exists(of_system.into()).map_err(failed)? {
                    return Ok(host);
                }
            }
            Err(Failure::new(
                Exit::Usage,
                "root-no-system",
                &format!(
                    "failed to find a Linux root filesystem in `--root {directory}`: \
                     no `/etc`, `/usr`, `/proc` or `/sys`"
                ),
                Some(
                    "specify the mount point of the image, or `files` in a recording of `check --record`",
                ),
            ))
        }
    }
}

/// Returns a machine that has only the PCI bus of the `--lspci` file.
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
        let message = format!("failed to read the `--lspci` file `{file}`");
        let path = camino::absolute_utf8(file).map_err(|error| failed(&message, error))?;
        let read = here.files.read(&path).map_err(|error| {
            Failure::caused(Exit::Usage, "lspci-unreadable", &message, error, NO_TEXT)
        })?;
        read.ok_or_else(|| failed(&message, io::ErrorKind::NotFound.into()))?
    };
    // Device names may contain characters in another encoding.
    let text = String::from_utf8_lossy(&bytes);
    let functions = lspci::parse(&text).map_err(|error| {
        Failure::caused(
            Exit::Usage,
            "lspci-invalid",
            &format!("failed to parse `{file}` as lspci output"),
            error,
            Some(
                "run `lspci -nnk` on the machine and use its complete output; `-n`, `-nn`, `-nmm` and `-vvnn` \
                 are also supported, each with or without `-D`",
            ),
        )
    })?;
    Ok(lspci::host(&functions))
}

/// The administrator's matrix, which replaces the built-in one.
pub const MATRIX: &str = "/etc/gpu-bootstrap/cuda-driver-matrix.toml";

/// Reads the administrator's matrix, or else the built-in one.
pub(super) fn matrix(host: &Host, env: &Env) -> Result<Matrix, Failure> {
    let failed = |error: MatrixError| {
        Failure::caused(
            Exit::Config,
            "matrix-invalid",
            "failed to read the compatibility matrix",
            error,
            Some("correct the lines listed above, or remove the file to use the built-in matrix"),
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

/// Returns the facts of `host`, and the matrix of the machine `here`.
///
/// # Errors
/// If the matrix cannot be read.
pub(super) async fn known(
    host: &Host,
    here: &Host,
    env: &Env,
    scope: Scope,
) -> Result<(Facts, Matrix), Failure> {
    let matrix = matrix(here, env)?;
    Ok((all_facts(host, &matrix, scope).await, matrix))
}

/// Returns the facts, including facts from the cloud metadata service.
pub(super) async fn all_facts(host: &Host, matrix: &Matrix, scope: Scope) -> Facts {
    let mut facts = facts(host, matrix, scope);
    // The metadata service describes this machine, not the one in a directory tree or text.
    if scope.executes {
        complete(host, &mut facts).await;
    }
    facts
}

/// Returns the facts from the files of the machine.
pub(super) fn facts(host: &Host, matrix: &Matrix, scope: Scope) -> Facts {
    gather(host.reader(), Some(matrix), scope)
}

/// Returns the scope of the inspection. With `--root`, no command is executed.
pub(super) fn scope(root: Option<&Utf8Path>) -> Scope {
    Scope {
        executes: root.is_none(),
    }
}

/// The scope of a machine that is known only from options or from the output of `lspci`.
pub(super) const TEXT_ONLY: Scope = Scope { executes: false };
