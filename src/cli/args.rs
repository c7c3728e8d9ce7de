//! The command line, which is a stable interface. This module only parses it.

use std::{str::FromStr, time::Duration};

use camino::Utf8PathBuf;
use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

use crate::{
    compat::{self, asked::DriverOrBranch},
    config::values::{TimeLimit, ValueError},
    model::{
        gpu::Flavour,
        id::Id,
        pci::{NVIDIA, PciError, PciId},
        version::{CudaVersion, CudnnVersion, DriverVersion, KernelVersion},
    },
    tools::oci::{Address, SCHEME},
};

/// Turns a bare Linux VM with NVIDIA GPUs into a pinned, validated, audited node.
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
    /// Check the machine and report what is wrong; change nothing
    Check(CheckArgs),
    /// Show what `install` would change, with diffs; change nothing
    Plan(PlanArgs),
    /// Install and configure what the configuration describes
    Install(InstallArgs),
    /// Undo all changes of `install`
    Uninstall(UninstallArgs),
    /// Show the current run, the last run and an awaited reboot
    Status(StatusArgs),
    /// Show what was detected
    Facts(FactsArgs),
    /// Describe a finding, setting, error number, exit code or log line, with its remedy
    Explain(ExplainArgs),
    /// Show which driver supports which GPU, CUDA version and kernel
    Compat(CompatArgs),
    /// Print all settings, as a file of settings in which each is a comment
    Config(ConfigArgs),
    /// Compute on every GPU, on the host or in a container; change nothing
    Probe(OutputArgs),
    /// Print user data for a kind of node, with checked values
    UserData(UserDataArgs),
    /// List and export kernel modules that DKMS has compiled, for machines with the same kernel
    Modules(ModulesArgs),
    /// Print the completions of a shell, for its folder of completions
    Completions(CompletionsArgs),
    /// Put the runtime back into a file of containerd's that others have written anew, before containerd starts
    #[command(hide = true)]
    #[command(name = "containerd-runtime")]
    PutBack,
    /// Print the view of NVML, for the process that started this one with a deadline
    #[command(hide = true)]
    NvmlView,
    /// Call CUDA, for the process that started this one with deadlines
    #[command(hide = true)]
    CudaWork {
        /// The device that computes; without it all are listed
        uuid: Option<String>,
    },
    /// Print what a container sees, for the container probe
    #[command(hide = true)]
    ContainerProbe,
}

/// The format of a document.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum OutputFormat {
    /// For people
    #[default]
    Human,
    /// One JSON document
    Json,
}

/// The format of the findings of `check`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum CheckFormat {
    /// For people
    #[default]
    Human,
    /// One JSON document
    Json,
    /// XML of JUnit: a suite for each layer, a test case for each finding
    Junit,
    /// TAP 13: a line for each finding
    Tap,
    /// A plugin of Nagios and its relatives: exits with 0, 1 (warning), 2 (critical) or 3 (unknown)
    Nagios,
    /// Metrics for the textfile collector of Prometheus' node_exporter
    Prometheus,
    /// A plugin of Kubernetes' node problem detector: exits with 0, 1 (a problem) or 2 (unknown)
    Npd,
    /// A report for a ticket
    Markdown,
    /// A page for a browser, in one file
    Html,
}

/// What `check` ends with 4 for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum FailOn {
    /// Failures
    #[default]
    Fail,
    /// Warnings, too
    Warn,
}

/// The output options.
#[derive(Debug, Clone, Copy, Args)]
pub struct OutputArgs {
    /// Output format
    #[arg(long, value_enum, default_value_t)]
    pub format: OutputFormat,
}

/// How much is shown to people.
#[derive(Debug, Clone, Copy, Args)]
pub struct DetailArgs {
    /// Show everything, not only what changed, fails or needs a decision
    #[arg(short, long)]
    pub verbose: bool,
}

/// The options that select the configuration.
#[derive(Debug, Clone, Default, Args)]
pub struct TargetArgs {
    /// Name or path of a profile [default: by operating system]
    #[arg(long, value_name = "P")]
    pub profile: Option<String>,
    /// Configuration file, read after those in /etc/gpu-bootstrap; may be repeated
    #[arg(long, value_name = "FILE")]
    pub config: Vec<Utf8PathBuf>,
    /// Single setting, for example `driver.branch=580`; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
}

/// The options of the image mode.
#[derive(Debug, Clone, Default, Args)]
pub struct ImageArgs {
    /// Prepare an image: steps that need a live GPU wait for the first boot
    #[arg(long)]
    pub image: bool,
    /// PCI ids of the GPUs that instances of the image will have
    #[arg(long, value_name = "PCI-ID", value_delimiter = ',', requires = "image", value_parser = of_nvidia)]
    pub assume_gpu: Vec<PciId>,
}

/// `check`.
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// The configuration
    #[command(flatten)]
    pub target: TargetArgs,
    /// Output format
    #[arg(long, value_enum, default_value_t)]
    pub format: CheckFormat,
    /// Write the document into this file, which is replaced at once, instead of standard output
    #[arg(long, value_name = "FILE")]
    pub output: Option<Utf8PathBuf>,
    /// Also tell the cluster: write the condition of this node (`check.node-condition`) with the credentials of its
    /// kubelet, if it has changed or is 5 minutes old (as root)
    #[arg(long, conflicts_with_all = ["root", "record", "lspci", "only", "skip"])]
    pub node_condition: bool,
    /// With the settings of the last `install`
    #[arg(long, conflicts_with_all = ["root", "lspci", "profile", "config", "set"])]
    pub as_installed: bool,
    /// How much is shown
    #[command(flatten)]
    pub detail: DetailArgs,
    /// Report only these findings
    #[arg(long, value_name = "ID", value_delimiter = ',', value_parser = id)]
    pub only: Vec<Id>,
    /// Omit these findings
    #[arg(long, value_name = "ID", value_delimiter = ',', value_parser = id)]
    pub skip: Vec<Id>,
    /// Show these findings as skipped, so that they fail nothing
    #[arg(long, value_name = "ID", value_delimiter = ',', value_parser = id)]
    pub ignore: Vec<Id>,
    /// The least verdict with which `check` ends with 4
    #[arg(long, value_enum, default_value_t, value_name = "VERDICT")]
    pub fail_on: FailOn,
    /// Whatever is unknown fails, too
    #[arg(long)]
    pub strict: bool,
    /// First compute on the GPUs, on the host and in a container of each runtime, and record the result
    /// (as root; pulls no image; each container takes at most `validation.timeout`)
    #[arg(long, conflicts_with_all = ["root", "record", "lspci"])]
    pub prove: bool,
    /// Read a mounted image, or the `files` of a recording, instead; nothing in it is executed
    #[arg(long, value_name = "DIR")]
    pub root: Option<Utf8PathBuf>,
    /// Examine the output of `lspci -nnk` instead of this machine; `-` is stdin
    #[arg(
        long,
        value_name = "FILE|-",
        conflicts_with_all = ["root", "record", "profile", "config", "set"]
    )]
    pub lspci: Option<Utf8PathBuf>,
    /// Record everything that is read, to replay it on another machine
    #[arg(long, value_name = "DIR", conflicts_with = "root")]
    pub record: Option<Utf8PathBuf>,
}

/// A machine that is not there yet.
#[derive(Debug, Clone, Default, Args)]
pub struct TrialArgs {
    /// Try the settings for this system, for example `ubuntu-24.04`, without a machine: only those of
    /// --config and --set count. Exits with 0 if they fit
    #[arg(long, value_name = "ID-VERSION", conflicts_with = "image")]
    pub os: Option<String>,
    /// Its GPU, for example `L4`, `10de:27b8`, or the instance type `p5.48xlarge`
    #[arg(long, value_name = "NAME|PCI-ID|INSTANCE-TYPE", requires = "os")]
    pub gpu: Option<String>,
    /// Its kernel, for example `6.8.0-45-generic`
    #[arg(long, value_name = "V", requires = "os")]
    pub kernel: Option<KernelVersion>,
    /// Its architecture [default: that of the instance type, else x86_64]
    #[arg(long, value_name = "ARCH", requires = "os")]
    pub arch: Option<String>,
}

/// `plan`.
#[derive(Debug, Args)]
pub struct PlanArgs {
    /// The configuration
    #[command(flatten)]
    pub target: TargetArgs,
    /// A machine that is not there yet
    #[command(flatten)]
    pub trial: TrialArgs,
    /// The image mode
    #[command(flatten)]
    pub image: ImageArgs,
    /// The output
    #[command(flatten)]
    pub output: OutputArgs,
    /// How much is shown
    #[command(flatten)]
    pub detail: DetailArgs,
}

/// `install`.
#[derive(Debug, Args)]
pub struct InstallArgs {
    /// The configuration
    #[command(flatten)]
    pub target: TargetArgs,
    /// The image mode
    #[command(flatten)]
    pub image: ImageArgs,
    /// The output
    #[command(flatten)]
    pub output: OutputArgs,
    /// How much is shown
    #[command(flatten)]
    pub detail: DetailArgs,
    /// Reboot if required, and continue automatically
    #[arg(long)]
    pub reboot: bool,
    /// Run as a unit of systemd's, with --reboot, and wait for its end as `status --wait` does: for
    /// cloud-init and start-up scripts. A run that is under way is not started again
    #[arg(long, conflicts_with_all = ["image", "events", "resume"])]
    pub unattended: bool,
    /// Time for retries of what may pass, as a mirror that is down; afterwards nothing new starts.
    /// Each boot counts anew [default: 2h with --reboot]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub deadline: Option<Duration>,
    /// Write events as JSON Lines to a file, or to stdout with `-`
    #[arg(long, value_name = "FILE|-")]
    pub events: Option<String>,
    /// Maximum wait for another package manager
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub lock_timeout: Option<Duration>,
    /// Continue the run that the journal contains
    #[arg(long, hide = true, conflicts_with_all = ["profile", "config", "set", "image"])]
    pub resume: bool,
}

/// `status`.
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// Wait until the run under way has ended or a reboot is awaited, and end with the run's exit
    /// status; with 0 if the machine reboots by itself, with 9 if the run takes longer [default: 3h]
    #[arg(
        long,
        value_name = "DURATION",
        value_parser = duration,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "3h"
    )]
    pub wait: Option<Duration>,
    /// Show where the time of the last installation went, also over reboots
    #[arg(long, conflicts_with = "timeline")]
    pub timing: bool,
    /// Print that as a picture (SVG)
    #[arg(long)]
    pub timeline: bool,
    /// The output
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `explain`.
#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// Finding, step, setting or event (`driver.libraries`, `driver.existing`); Xid, SXid or exit code (`79`, `xid 79`,
    /// `sxid 24007`, `exit 5`); or a line of the kernel log [default: a list of all findings]
    #[arg(value_name = "ID")]
    pub ids: Vec<String>,
    /// The output
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `config`.
#[derive(Debug, Args)]
pub struct ConfigArgs {
    /// With what each is for, and what counts without it
    #[arg(long, required = true)]
    pub defaults: bool,
}

/// `uninstall`.
#[derive(Debug, Args)]
pub struct UninstallArgs {
    /// The output
    #[command(flatten)]
    pub output: OutputArgs,
    /// How much is shown
    #[command(flatten)]
    pub detail: DetailArgs,
}

/// What a machine becomes by its user data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum UserDataForm {
    /// A GPU machine in no cluster
    Bare,
    /// A node of a cluster that kubeadm has made
    Kubeadm,
    /// A node of k3s or RKE2
    K3s,
    /// A node of EKS with Amazon Linux 2023
    Eks,
    /// Nodes of a managed node group of EKS with an AMI type of Amazon Linux 2023
    EksNodeGroup,
    /// A node of EKS with Karpenter: its classes, for `kubectl apply`
    EksKarpenter,
    /// A node of EKS with Canonical's image
    EksUbuntu,
    /// Nodes of an AKS node pool: a DaemonSet, for `kubectl apply`
    Aks,
    /// A machine of your own in AKS, with AKS Flex Node
    AksFlex,
    /// Nodes of a GKE node pool: a DaemonSet, for `kubectl apply`
    Gke,
    /// Google Cloud's images without cloud-init: a startup script
    Google,
}

/// `user-data`.
#[derive(Debug, Args)]
pub struct UserDataArgs {
    /// What the machine becomes
    #[arg(value_enum)]
    pub form: UserDataForm,
    /// Single setting, for example `cluster.version=1.36`; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Single value beside the settings, for example `address=https://…`, the place of the program;
    /// may be repeated
    #[arg(long, value_name = "NAME=VALUE")]
    pub value: Vec<String>,
    /// File with the token, which is printed in the user data
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<Utf8PathBuf>,
    /// System for which the settings are checked, for example `almalinux-9` [default: the usual one
    /// of the form]
    #[arg(long, value_name = "ID-VERSION")]
    pub os: Option<String>,
}

/// `modules`.
#[derive(Debug, Args)]
#[command(disable_help_subcommand = true)]
pub struct ModulesArgs {
    /// What to do
    #[command(subcommand)]
    pub command: ModulesCommand,
}

/// What `modules` does.
#[derive(Debug, Subcommand)]
pub enum ModulesCommand {
    /// Show which modules of NVIDIA's driver DKMS has built here, and where they came from
    List(OutputArgs),
    /// Pack them for other machines: an archive for each kernel (as root)
    Export(ExportArgs),
    /// Bring the modules of a build from `driver.prebuilt.sources`, for DKMS
    #[command(hide = true)]
    Take(TakeArgs),
}

/// `modules export`.
#[derive(Debug, Args)]
pub struct ExportArgs {
    /// Folder for the archives, or repository of a registry
    #[arg(
        long,
        value_name = "DIR|oci://REGISTRY/REPOSITORY",
        default_value = "."
    )]
    pub to: ExportTo,
    /// Only those for this kernel [default: all]
    #[arg(long, value_name = "V")]
    pub kernel: Option<KernelVersion>,
    /// Sign them with this private key of minisign's, which has no password; root alone may read it
    #[arg(long, value_name = "FILE")]
    pub sign_key: Option<Utf8PathBuf>,
}

/// Where archives go.
#[derive(Debug, Clone)]
pub enum ExportTo {
    /// A folder.
    Folder(Utf8PathBuf),
    /// A repository of a registry.
    Registry(Address),
}

impl FromStr for ExportTo {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if !text.starts_with(SCHEME) {
            return Ok(Self::Folder(text.into()));
        }
        let address = Address::parse(text).map(Self::Registry);
        address.ok_or("not `oci://REGISTRY/REPOSITORY`, in small letters and without a tag")
    }
}

/// `modules take`.
#[derive(Debug, Args)]
pub struct TakeArgs {
    /// The driver's version
    #[arg(long)]
    pub driver: DriverVersion,
    /// The kernel
    #[arg(long)]
    pub kernel: KernelVersion,
    /// `open` or `proprietary`
    #[arg(long, value_parser = flavour)]
    pub flavour: Flavour,
    /// Folders and addresses
    #[arg(long)]
    pub source: Vec<String>,
    /// Public keys; without any, archives need no signature
    #[arg(long)]
    pub public_key: Vec<String>,
    /// The oldest time of a signature
    #[arg(long)]
    pub not_before: Option<jiff::Timestamp>,
    /// Each module, and the file that a build makes
    #[arg(value_name = "NAME=FILE", required = true)]
    pub places: Vec<TakenModule>,
}

/// A module to take, and the file that a build would make of it.
#[derive(Debug, Clone)]
pub struct TakenModule {
    /// Its name without `.ko`.
    pub module: String,
    /// In the folder of the build.
    pub file: Utf8PathBuf,
}

impl FromStr for TakenModule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (module, file) = text.split_once('=').ok_or("not `NAME=FILE`")?;
        Ok(Self {
            module: module.to_owned(),
            file: file.into(),
        })
    }
}

/// `completions`.
#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    pub shell: Shell,
}

/// `facts`.
#[derive(Debug, Args)]
pub struct FactsArgs {
    /// The output
    #[command(flatten)]
    pub output: OutputArgs,
    /// Read a mounted image, or the `files` of a recording, instead; nothing in it is executed
    #[arg(long, value_name = "DIR")]
    pub root: Option<Utf8PathBuf>,
    /// Examine the output of `lspci -nnk` instead of this machine; `-` is stdin
    #[arg(long, value_name = "FILE|-", conflicts_with = "root")]
    pub lspci: Option<Utf8PathBuf>,
}

/// `compat`.
#[derive(Debug, Args)]
pub struct CompatArgs {
    /// GPU, for example `L4`, `10de:27b8`, or the instance type `p5.48xlarge`
    #[arg(long, value_name = "NAME|PCI-ID|INSTANCE-TYPE")]
    pub gpu: Option<String>,
    /// CUDA version of the containers, for example `12.8`
    #[arg(long, value_name = "X.Y", value_parser = compat::asked::cuda)]
    pub cuda: Option<CudaVersion>,
    /// cuDNN version of the containers, for example `9.1`
    #[arg(long, value_name = "X.Y", value_parser = compat::asked::cudnn)]
    pub cudnn: Option<CudnnVersion>,
    /// Driver version or branch, for example `580.65.06` or `580`
    #[arg(long, value_name = "V")]
    pub driver: Option<DriverOrBranch>,
    /// Kernel release, for example `6.8.0-45-generic`
    #[arg(long, value_name = "V")]
    pub kernel: Option<KernelVersion>,
    /// Operating system, for example `ubuntu-24.04`
    #[arg(long, value_name = "ID-VERSION")]
    pub os: Option<String>,
    /// Ask about the GPUs in the output of `lspci -nn`; `-` is stdin
    #[arg(long, value_name = "FILE|-", conflicts_with = "gpu")]
    pub lspci: Option<Utf8PathBuf>,
    /// Name the sources of the answer
    #[arg(short, long)]
    pub verbose: bool,
    /// The output
    #[command(flatten)]
    pub output: OutputArgs,
}

#[expect(
    clippy::unnecessary_wraps,
    reason = "clap wants a parser that may fail"
)]
fn id(text: &str) -> Result<Id, std::convert::Infallible> {
    Ok(Id::owned(text))
}

/// `90s`, `30m`, `1h 30m`, `2 hours`.
fn duration(text: &str) -> Result<Duration, ValueError> {
    let limit: TimeLimit = text.parse()?;
    Ok(Duration::from_secs(limit.seconds()))
}

fn flavour(text: &str) -> Result<Flavour, String> {
    match text {
        "open" => Ok(Flavour::Open),
        "proprietary" => Ok(Flavour::Proprietary),
        _ => Err("write `open` or `proprietary`".to_owned()),
    }
}

/// The id of a device of NVIDIA.
fn of_nvidia(text: &str) -> Result<PciId, String> {
    let id: PciId = text.parse().map_err(|error: PciError| error.to_string())?;
    match id.vendor {
        NVIDIA => Ok(id),
        _ => Err("this is no GPU of NVIDIA, whose ids begin with `10de:`".to_owned()),
    }
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
