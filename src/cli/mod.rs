//! The command line: parses it, runs the command, and prints its error if it fails.

pub mod args;
mod bundle;
mod check;
mod compat;
mod completions;
mod condition;
pub mod env;
mod explain;
mod facts;
mod failure;
pub mod forms;
pub mod help;
mod install;
mod lock;
mod machine;
mod manifests;
mod modules;
mod partition;
mod plan;
mod prepare;
mod print;
mod probe;
mod report;
mod restore;
mod status;
mod tips;
mod trial;
mod unattended;
mod uninstall;
mod upgrade;
mod user_data;
mod validate;
mod viewers;

use std::{ffi::OsString, io::Write as _};

use clap::{Parser, error::ErrorKind};

pub use env::{Console, Env, Sink};
pub use failure::Failure;
pub use machine::MATRIX;

use self::args::{Cli, Command};
use crate::{
    change::Partition,
    config::{network, sources},
    exit::Exit,
    host::{Host, real},
};

/// Runs a command line on this machine.
pub async fn run(args: Vec<OsString>, host: &Host, env: &Env, console: &mut Console<'_>) -> Exit {
    // Register secrets before the first output, which may quote an invalid command line.
    let words = args.iter().filter_map(|word| word.to_str());
    let words = words.map(|word| word.strip_prefix("--set=").unwrap_or(word).to_owned());
    words
        .chain(sources::assignments(&env.vars))
        .chain(network::assignments(&env.vars))
        .flat_map(|assignment| sources::secrets(&assignment))
        .for_each(|secret| env.secrets.learn(&secret));
    let cli = match Cli::try_parse_from(&args) {
        Ok(cli) => cli,
        Err(error) if error.kind() == ErrorKind::DisplayHelp => {
            let documented = help::documented().try_get_matches_from(args);
            return usage(&documented.err().unwrap_or(error), console);
        }
        Err(error) => return usage(&tips::corrected(error), console),
    };
    match dispatch(cli.command, host, env, console).await {
        Ok(exit) => exit,
        Err(failure) => {
            let report = failure.report();
            // If standard error is also closed, the error cannot be reported.
            let style = console.err_style();
            let _ = crate::report::error::styled(&mut console.err, report, style);
            report.exit()
        }
    }
}

/// Help and version go to standard output; all other output of clap goes to standard error.
fn usage(error: &clap::Error, console: &mut Console<'_>) -> Exit {
    if !error.use_stderr() {
        // clap wraps the help.
        let _ = write!(console.out, "{}", error.render());
        return Exit::Ok;
    }
    let style = console.err_style();
    for line in error.render().to_string().lines() {
        let text = line.trim_start();
        let _ = writeln!(
            console.err,
            "{}",
            style.hanging(&line[..line.len() - text.len()], text)
        );
    }
    Exit::Usage
}

async fn dispatch(
    command: Command,
    host: &Host,
    env: &Env,
    console: &mut Console<'_>,
) -> Result<Exit, Failure> {
    match command {
        Command::PutBack => restore::run(host, env).await,
        Command::Check(args) => check::run(host, env, console, &args).await,
        Command::Plan(args) => match &args.trial.os {
            Some(system) => trial::run(host, env, console, &args, system),
            None => plan::run(host, env, console, &args).await,
        },
        Command::Install(args) if args.unattended => {
            unattended::run(host, env, console, &args).await
        }
        Command::Install(args) => install::run(host, env, console, &args).await,
        Command::Upgrade(args) => upgrade::run(host, env, console, &args).await,
        Command::Uninstall(args) => uninstall::run(host, env, console, &args).await,
        Command::Status(args) => status::run(host, console, &args).await,
        Command::Lock(args) => lock::run(host, env, console, &args).await,
        Command::Bundle(args) => bundle::run(host, env, console, &args).await,
        Command::Facts(args) => facts::run(host, env, console, &args).await,
        Command::Explain(args) => explain::run(console, &args),
        Command::Compat(args) => compat::run(host, env, console, &args),
        Command::Config(_) => {
            let text = crate::report::settings::commented();
            print::show(&mut console.out, |to| to.write_all(text.as_bytes())).map(|()| Exit::Ok)
        }
        Command::Probe(args) => probe::run(host, env, console, args).await,
        Command::UserData(args) => user_data::run(host, env, console, &args),
        Command::Manifests(args) => manifests::run(host, env, console, &args).await,
        Command::Report(args) => report::run(host, console, &args),
        Command::Modules(args) => modules::run(host, env, console, &args).await,
        Command::Completions(args) => {
            print::text(&mut console.out, &completions::script(args.shell)).map(|()| Exit::Ok)
        }
        Command::PartitionGpus {
            stop_units,
            reset_with,
            gpus,
        } => {
            let wanted = Partition {
                gpus,
                stop_units,
                reset_with,
            };
            partition::run(host, env, console, &wanted).await
        }
        Command::NvmlView => print::json(&mut console.out, &real::nvml_view()).map(|()| Exit::Ok),
        Command::CudaWork { uuid } => real::cuda_work(uuid.as_deref(), &mut console.out)
            .map_err(print::failed)
            .map(|()| Exit::Ok),
        Command::ContainerProbe => probe::in_container(host, env, console).await,
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    /// Files that may use standard output or standard error, with the reason that secrets stay hidden.
    const WAYS_OUT: [(&str, &str); 3] = rows! {
        "main.rs", "each is wrapped in a `Hiding`, or used by `Console::talk`";
        "cli/viewers.rs", "prints events, which hide secrets";
        "report/screen.rs", "is drawn by a view of events, which hide secrets";
    };

    #[test]
    fn all_outputs_hide_secrets() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let mut directories = vec![root.clone()];
        let mut found = Vec::new();
        while let Some(directory) = directories.pop() {
            for entry in fs::read_dir(directory).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    directories.push(path);
                    continue;
                }
                if path.extension().is_none_or(|extension| extension != "rs") {
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
