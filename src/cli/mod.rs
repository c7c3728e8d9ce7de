//! The command line: parses it, runs the command, and prints its error if it fails.

pub mod args;
mod check;
mod compat;
mod facts;
mod failure;
mod install;
mod machine;
mod plan;
mod prepare;
mod print;
mod status;
mod uninstall;
pub mod world;

use std::ffi::OsString;

use camino::Utf8Path;
use clap::Parser;

pub use failure::Failure;
pub use world::World;

use self::args::{Cli, Command};
use crate::{
    compat::{load::MatrixError, matrix::Matrix},
    exit::Exit,
    host::real,
    tools::container_view,
};

/// The matrix of the administrator, which replaces the built-in one.
pub const MATRIX: &str = "/etc/gpu-bootstrap/cuda-driver-matrix.toml";

/// Runs a command line.
pub async fn run(args: Vec<OsString>, world: &mut World<'_>) -> Exit {
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) => return usage(&error, world),
    };
    match dispatch(cli.command, world).await {
        Ok(exit) => exit,
        Err(failure) => {
            let report = failure.report();
            // Where standard error is closed, too, the error cannot be reported anywhere.
            let style = world.err_style();
            let _ = crate::report::error::styled(world.err, report, style);
            report.exit()
        }
    }
}

/// Help and version go to standard output; all other output of clap goes to standard error.
fn usage(error: &clap::Error, world: &mut World<'_>) -> Exit {
    let (sink, exit) = if error.use_stderr() {
        (&mut world.err, Exit::Usage)
    } else {
        (&mut world.out, Exit::Ok)
    };
    let _ = write!(sink, "{}", error.render());
    exit
}

async fn dispatch(command: Command, world: &mut World<'_>) -> Result<Exit, Failure> {
    match command {
        Command::Check(args) => check::run(world, &args).await,
        Command::Plan(args) => plan::run(world, &args).await,
        Command::Install(args) => install::run(world, &args).await,
        Command::Uninstall(args) => uninstall::run(world, &args).await,
        Command::Status(args) => status::run(world, &args),
        Command::Facts(args) => facts::run(world, &args).await,
        Command::Compat(args) => compat::run(world, &args),
        Command::NvmlView => print::json(world.out, &real::nvml_view()).map(|()| Exit::Ok),
        Command::ContainerProbe => {
            let view = container_view::look(&*world.host.files).map_err(|error| {
                Failure::caused(
                    Exit::Internal,
                    "container-unreadable",
                    "failed to look at this container",
                    error,
                    None,
                )
            })?;
            print::json(world.out, &view).map(|()| Exit::Ok)
        }
    }
}

/// The matrix: an administrator's, else the built-in one.
pub(crate) fn matrix(world: &World<'_>) -> Result<Matrix, Failure> {
    let failed = |error: MatrixError| {
        Failure::caused(
            Exit::Config,
            "matrix-invalid",
            "failed to read the compatibility matrix",
            error,
            Some("mend the lines named, or remove the file to use the built-in matrix"),
        )
    };
    let own = world
        .host
        .files
        .read_text(Utf8Path::new(MATRIX))
        .map_err(|error| {
            Failure::caused(
                Exit::Config,
                "matrix-unreadable",
                "failed to read the compatibility matrix",
                error,
                None,
            )
        })?;
    match own {
        Some(text) => Matrix::parse(&text, MATRIX).map_err(failed),
        None => Matrix::builtin().map_err(failed),
    }
}
