//! The command line: parses it, runs the command, and prints its error if it fails.

pub mod args;
mod check;
mod compat;
mod condition;
mod containerd_runtime;
mod explain;
mod facts;
mod failure;
mod install;
mod machine;
mod modules;
mod plan;
mod prepare;
mod print;
mod probe;
mod prove;
mod registry;
mod status;
mod trial;
mod uninstall;
mod user_data;
pub mod world;

use std::{ffi::OsString, io::Write as _};

use camino::Utf8Path;
use clap::{CommandFactory as _, Parser};

pub use failure::Failure;
pub use world::{Sink, World};

use self::args::{Cli, Command};
use crate::{
    compat::{load::MatrixError, matrix::Matrix},
    config::{layers, network},
    exit::Exit,
    host::{ReadFiles as _, real, trusted::Trusted},
};

/// The matrix of the administrator, which replaces the built-in one.
pub const MATRIX: &str = "/etc/gpu-bootstrap/cuda-driver-matrix.toml";

/// Runs a command line.
pub async fn run(args: Vec<OsString>, world: &mut World<'_>) -> Exit {
    // Before anything can be said, also about a command line that makes no sense.
    let words = args.iter().filter_map(|word| word.to_str());
    let words = words.map(|word| word.strip_prefix("--set=").unwrap_or(word).to_owned());
    words
        .chain(layers::assignments(world.vars.clone()))
        .chain(network::assignments(world.vars.clone()))
        .flat_map(|assignment| layers::secrets(&assignment))
        .for_each(|secret| world.secrets.learn(&secret));
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
            let _ = crate::report::error::styled(&mut world.err, report, style);
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
        Command::ContainerdRuntime => containerd_runtime::run(world).await,
        Command::Check(args) => check::run(world, &args).await,
        Command::Plan(args) => plan::run(world, &args).await,
        Command::Install(args) => install::run(world, &args).await,
        Command::Uninstall(args) => uninstall::run(world, &args).await,
        Command::Status(args) => status::run(world, &args).await,
        Command::Facts(args) => facts::run(world, &args).await,
        Command::Explain(args) => explain::run(world, &args),
        Command::Compat(args) => compat::run(world, &args),
        Command::Config(_) => {
            let text = crate::report::settings::commented();
            print::show(&mut world.out, |to| to.write_all(text.as_bytes())).map(|()| Exit::Ok)
        }
        Command::Probe(args) => probe::run(world, args).await,
        Command::UserData(args) => user_data::run(world, &args),
        Command::Modules(args) => modules::run(world, &args).await,
        Command::Completions(args) => {
            let mut script = Vec::new();
            clap_complete::generate(
                args.shell,
                &mut Cli::command(),
                "gpu-bootstrap",
                &mut script,
            );
            print::show(&mut world.out, |to| to.write_all(&script)).map(|()| Exit::Ok)
        }
        Command::NvmlView => print::json(&mut world.out, &real::nvml_view()).map(|()| Exit::Ok),
        Command::CudaWork { uuid } => real::cuda_work(uuid.as_deref(), &mut world.out)
            .map_err(print::failed)
            .map(|()| Exit::Ok),
        Command::ContainerProbe => probe::in_container(world).await,
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
            Some("correct the lines named above, or remove the file to use the built-in matrix"),
        )
    };
    let own = Trusted::new(&*world.host.files, world.root)
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

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    /// Who may name standard output or standard error, and why no secret gets out that way.
    const WAYS_OUT: [(&str, &str); 3] = rows! {
        "main.rs", "each goes into a `Hiding`, or serves `World::talk`";
        "cli/install.rs", "takes events, which hide secrets";
        "report/screen.rs", "is drawn by a view that takes events";
    };

    #[test]
    fn every_way_out_hides_secrets() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let mut folders = vec![root.clone()];
        let mut found = Vec::new();
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                    continue;
                }
                let text = fs::read_to_string(&path).unwrap();
                let production = text.split("#[cfg(test)]").next().unwrap_or_default();
                let production = production.replace("use_stderr()", "");
                if production.contains("stdout()") || production.contains("stderr()") {
                    let name = path.strip_prefix(&root).unwrap();
                    found.push(name.to_str().unwrap().to_owned());
                }
            }
        }
        found.sort();
        let mut known = WAYS_OUT.map(|(file, _)| file);
        known.sort_unstable();
        assert_eq!(found, known);
    }
}
