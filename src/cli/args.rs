//! The command line: a contract. Parsing alone; nothing is decided here.

use camino::Utf8PathBuf;
use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::{
    compat::question::DriverOrBranch,
    model::{
        id::Id,
        pci::PciId,
        version::{CudaVersion, KernelVersion},
    },
};

/// Makes a bare Linux VM with NVIDIA GPUs a pinned, validated, audited node.
#[derive(Debug, Parser)]
#[command(
    name = "gpu-bootstrap",
    version,
    max_term_width = 80,
    arg_required_else_help = true
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Look at the machine and say what is not as it should be; change nothing
    Check(Check),
    /// Say what `install` would change, with diffs; change nothing
    Plan(Plan),
    /// Make the machine as wanted
    Install(Install),
    /// Put back what was there before
    Uninstall(Output),
    /// Tell about the run under way, the last one, and an awaited reboot
    Status(Output),
    /// Tell what was detected
    Facts(Facts),
    /// Say which driver goes with which GPU, CUDA and kernel
    Compat(Compat),
    /// What NVML says, for the process that asks with a deadline
    #[command(hide = true)]
    NvmlView,
    /// What a container sees, for the container probe
    #[command(hide = true)]
    ContainerProbe,
}

/// How a document is printed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    #[default]
    Human,
    /// One JSON document.
    Json,
}

/// How `check` prints what it found. Other programs read findings, too, each in a format of its own.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum CheckFormat {
    /// For people.
    #[default]
    Human,
    /// One JSON document.
    Json,
}

/// How to print.
#[derive(Debug, Clone, Copy, Args)]
pub struct Output {
    /// How to print
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}

/// What the machine shall be.
#[derive(Debug, Clone, Default, Args)]
pub struct Target {
    /// A profile's name or path; without it the operating system decides
    #[arg(long, value_name = "P")]
    pub profile: Option<String>,
    /// A configuration file, over those in /etc/gpu-bootstrap; may be repeated
    #[arg(long, value_name = "FILE")]
    pub config: Vec<Utf8PathBuf>,
    /// A single setting, as `driver.branch=580`; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
}

/// For what kind of machine.
#[derive(Debug, Clone, Default, Args)]
pub struct Image {
    /// Prepare an image: what needs a live GPU is left for the first boot
    #[arg(long)]
    pub image: bool,
    /// GPUs that the instances of the image will have, by PCI id
    #[arg(long, value_name = "PCI-ID", value_delimiter = ',', requires = "image")]
    pub assume_gpu: Vec<PciId>,
}

/// `check`.
#[derive(Debug, Args)]
pub struct Check {
    /// What is wanted
    #[command(flatten)]
    pub target: Target,
    /// How to print
    #[arg(long, value_enum, default_value_t)]
    pub format: CheckFormat,
    /// Report these findings only
    #[arg(long, value_name = "ID", value_delimiter = ',', value_parser = id)]
    pub only: Vec<Id>,
    /// Leave these findings out
    #[arg(long, value_name = "ID", value_delimiter = ',', value_parser = id)]
    pub skip: Vec<Id>,
    /// Look at a mounted image or recorded tree; nothing is executed from it
    #[arg(long, value_name = "DIR")]
    pub root: Option<Utf8PathBuf>,
    /// Record everything that was looked at, to be replayed elsewhere
    #[arg(long, value_name = "DIR", conflicts_with = "root")]
    pub record: Option<Utf8PathBuf>,
}

/// `plan`.
#[derive(Debug, Args)]
pub struct Plan {
    /// What is wanted
    #[command(flatten)]
    pub target: Target,
    /// For which machines
    #[command(flatten)]
    pub image: Image,
    /// How it is told
    #[command(flatten)]
    pub output: Output,
}

/// `install`.
#[derive(Debug, Args)]
pub struct Install {
    /// What is wanted
    #[command(flatten)]
    pub target: Target,
    /// For which machines
    #[command(flatten)]
    pub image: Image,
    /// How it is told
    #[command(flatten)]
    pub output: Output,
    /// Reboot when it is needed, and go on by itself
    #[arg(long)]
    pub reboot: bool,
    /// Write events as JSON Lines to a file, or to stdout with `-`
    #[arg(long, value_name = "FILE|-")]
    pub events: Option<String>,
    /// How long to wait for another package manager
    #[arg(long, value_name = "SECONDS")]
    pub lock_timeout: Option<u64>,
    /// Go on with what the journal says was begun
    #[arg(long, hide = true, conflicts_with_all = ["profile", "config", "set", "image"])]
    pub resume: bool,
}

/// `facts`.
#[derive(Debug, Args)]
pub struct Facts {
    /// How it is told
    #[command(flatten)]
    pub output: Output,
    /// Look at a mounted image or recorded tree; nothing is executed from it
    #[arg(long, value_name = "DIR")]
    pub root: Option<Utf8PathBuf>,
}

/// `compat`.
#[derive(Debug, Args)]
pub struct Compat {
    /// A GPU's name or PCI id, as `L4` or `10de:27b8`
    #[arg(long, value_name = "NAME|PCI-ID")]
    pub gpu: Option<String>,
    /// The CUDA version that containers bring, as `12.8`
    #[arg(long, value_name = "X.Y")]
    pub cuda: Option<CudaVersion>,
    /// A driver version or branch, as `580.65.06` or `580`
    #[arg(long, value_name = "V")]
    pub driver: Option<DriverOrBranch>,
    /// The kernel, as `6.8.0-45-generic`
    #[arg(long, value_name = "V")]
    pub kernel: Option<KernelVersion>,
    /// The operating system, as `ubuntu-24.04`
    #[arg(long, value_name = "ID-VERSION")]
    pub os: Option<String>,
    /// How it is told
    #[command(flatten)]
    pub output: Output,
}

#[expect(
    clippy::unnecessary_wraps,
    reason = "clap wants a parser that may fail"
)]
fn id(text: &str) -> Result<Id, std::convert::Infallible> {
    Ok(Id::owned(text))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::Cli;

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn help_fits_a_terminal() {
        let mut root = Cli::command();
        let mut texts = vec![root.render_long_help().to_string()];
        for sub in root.get_subcommands_mut() {
            texts.push(sub.render_long_help().to_string());
        }
        for line in texts.iter().flat_map(|text| text.lines()) {
            assert!(line.chars().count() <= 80, "longer than 80 columns: {line}");
        }
    }
}
