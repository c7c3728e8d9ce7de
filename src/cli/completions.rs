//! `completions`: prints a shell completion script without internal commands and options.

use clap::{Arg, Command, CommandFactory as _};
use clap_complete::{Shell, generate};

use super::args::Cli;

const PROGRAM: &str = "gpu-bootstrap";

/// Returns the completion script for a shell.
pub(super) fn script(shell: Shell) -> String {
    let mut script = Vec::new();
    let mut command = visible(&Cli::command()).version(env!("CARGO_PKG_VERSION"));
    generate(shell, &mut command, PROGRAM, &mut script);
    let script = String::from_utf8_lossy(&script);
    // For a program name with a hyphen, clap_complete 4.6 writes different names of the subcommands into the two parts of the
    // bash script, so nothing is completed after a subcommand (https://github.com/clap-rs/clap/issues/6421).
    script.replace("gpu__subcmd__bootstrap", "gpu__bootstrap")
}

/// Returns a copy of a command without hidden subcommands and options, because the generators include them.
fn visible(command: &Command) -> Command {
    // clap requires static names. The process prints one script and exits.
    let name: &'static str = command.get_name().to_owned().leak();
    let is_shown = |arg: &&Arg| !arg.is_hide_set();
    let mut copy = Command::new(name)
        .args(command.get_arguments().filter(is_shown).cloned())
        .subcommands(
            (command.get_subcommands())
                .filter(|one| !one.is_hide_set())
                .map(visible),
        )
        .disable_help_subcommand(command.is_disable_help_subcommand_set());
    if let Some(about) = command.get_about() {
        copy = copy.about(about.clone());
    }
    copy
}
