//! Command line definitions. The command line is a stable interface; this module only parses it.

use std::{str::FromStr, time::Duration};

use camino::Utf8PathBuf;
use clap::{
    ArgGroup, Args, Parser, Subcommand, ValueEnum,
    builder::{PossibleValue, PossibleValuesParser, TypedValueParser},
};
use clap_complete::Shell;

use super::forms::{self, Form, Provider};
use crate::{
    check,
    compat::{self, asked::DriverOrBranch},
    config::values::{TimeLimit, ValueError},
    mig::GpuLayout,
    model::{
        findings::Kind,
        gpu::Flavor,
        id::Id,
        pci::{NVIDIA, PciAddress, PciError, PciId},
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
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommand.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Check the machine and report problems; change nothing
    Check(CheckArgs),
    /// Show what `install` would change, with diffs; change nothing
    Plan(PlanArgs),
    /// Install and configure everything in the configuration
    Install(InstallArgs),
    /// Install on a node in use: take it out of service, install, validate, and return it
    Upgrade(UpgradeArgs),
    /// Undo all changes made by `install`
    Uninstall(UninstallArgs),
    /// Show the current run, the last run and a pending reboot
    Status(StatusArgs),
    /// Write the package versions of this validated node to a lock file, for other nodes
    Lock(LockArgs),
    /// Create or verify a bundle: the packages of a lock file, for nodes without internet
    Bundle(BundleArgs),
    /// Show the detected facts
    Facts(FactsArgs),
    /// Describe a finding, setting, error number, exit code or log line, with its remedy
    Explain(ExplainArgs),
    /// Show which driver supports which GPU, CUDA version and kernel
    Compat(CompatArgs),
    /// Print all settings as a configuration file with every setting commented out
    Config(ConfigArgs),
    /// Run a computation on every GPU, on the host or in a container; change nothing
    Probe(OutputArgs),
    /// Print user data for a type of node, with validated values
    UserData(UserDataArgs),
    /// Write Kubernetes manifests for the settings of this node, such as the device plugin
    Manifests(ManifestsArgs),
    /// Compare the `check` documents of many nodes, and list those that fail or differ
    Report(ReportArgs),
    /// List and export kernel modules built by DKMS, for machines with the same kernel
    Modules(ModulesArgs),
    /// Print a shell completion script, for the shell's completion directory
    Completions(CompletionsArgs),
    /// Restore the runtime in a containerd configuration file that the provider has regenerated, before containerd starts
    #[command(hide = true)]
    #[command(name = "containerd-runtime")]
    PutBack,
    /// Set and verify the MIG layouts of GPUs, for the unit that does so at each boot
    #[command(hide = true)]
    PartitionGpus {
        /// A unit that uses the GPUs and may be stopped for the change
        #[arg(long = "stop-unit", value_name = "UNIT")]
        stop_units: Vec<String>,
        /// A GPU that must be reset together with the others
        #[arg(long, value_name = "ADDRESS")]
        reset_with: Vec<PciAddress>,
        /// The layout of each GPU
        #[arg(required = true, value_name = "ADDRESS=LAYOUT")]
        gpus: Vec<GpuLayout>,
    },
    /// Print the NVML data, for a parent process that sets a deadline
    #[command(hide = true)]
    NvmlView,
    /// Call CUDA, for a parent process that sets deadlines
    #[command(hide = true)]
    CudaWork {
        /// UUID of the device that runs the computation; without it, all devices are listed
        uuid: Option<String>,
    },
    /// Print the devices and libraries visible in a container, for the container probe
    #[command(hide = true)]
    ContainerProbe,
}

/// The format of a document.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum OutputFormat {
    /// Human-readable text
    #[default]
    Human,
    /// One JSON document
    Json,
}

/// The format of the findings of `check`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum CheckFormat {
    /// Human-readable text
    #[default]
    Human,
    /// One JSON document
    Json,
    /// JUnit XML: a test suite for each layer, a test case for each finding
    Junit,
    /// TAP 13: a line for each finding
    Tap,
    /// Nagios-compatible plugin output: exits with 0, 1 (warning), 2 (critical) or 3 (unknown)
    Nagios,
    /// Metrics for the textfile collector of the Prometheus node_exporter
    Prometheus,
    /// Kubernetes node-problem-detector plugin output: exits with 0, 1 (a problem) or 2 (unknown)
    Npd,
    /// A report for a ticket
    Markdown,
    /// A web page in one file
    Html,
}

/// The findings for which `check` exits with 4.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FailOn {
    /// Failures of each kind
    Fail,
    /// Failures and warnings of each kind
    Warn,
    /// The machine does not work
    Fault,
    /// The machine works, but may fail later
    Risk,
    /// The machine differs from the settings; also evaluated if there are no settings
    Difference,
}

impl From<FailOn> for check::FailOn {
    fn from(on: FailOn) -> Self {
        match on {
            FailOn::Fail => Self::Fail,
            FailOn::Warn => Self::Warn,
            FailOn::Fault => Self::Kind(Kind::Fault),
            FailOn::Risk => Self::Kind(Kind::Risk),
            FailOn::Difference => Self::Kind(Kind::Difference),
        }
    }
}

/// Output options.
#[derive(Debug, Clone, Copy, Args)]
pub struct OutputArgs {
    /// Output format
    #[arg(long, value_enum, default_value_t)]
    pub format: OutputFormat,
}

/// The level of detail in human-readable output.
#[derive(Debug, Clone, Copy, Args)]
pub struct DetailArgs {
    /// Show everything, not only changes, failures and decisions
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
    /// Lock file of `gpu-bootstrap lock`: exactly these package versions and digests, including dependencies
    #[arg(long, value_name = "FILE")]
    pub lock: Option<Utf8PathBuf>,
}

/// The source of packages.
#[derive(Debug, Clone, Default, Args)]
pub struct BundleArg {
    /// Bundle of `gpu-bootstrap bundle create`: its packages, keys and lock file instead of the internet (as root)
    #[arg(long, value_name = "DIR", conflicts_with = "lock")]
    pub bundle: Option<Utf8PathBuf>,
}

/// Options of image mode.
#[derive(Debug, Clone, Default, Args)]
pub struct ImageArgs {
    /// Prepare an image: steps that need a GPU run at the first boot
    #[arg(long)]
    pub image: bool,
    /// PCI IDs of the GPUs in the instances that will use the image
    #[arg(long, value_name = "PCI-ID", value_delimiter = ',', requires = "image", value_parser = of_nvidia)]
    pub assume_gpu: Vec<PciId>,
}

/// `check`.
#[derive(Debug, Args)]
pub struct CheckArgs {
    #[command(flatten)]
    pub target: TargetArgs,
    /// Output format
    #[arg(long, value_enum, default_value_t)]
    pub format: CheckFormat,
    /// Write the document to this file instead of standard output, replacing the file atomically
    #[arg(long, value_name = "FILE")]
    pub output: Option<Utf8PathBuf>,
    /// Also write the condition of this node (`check.node-condition`) to the cluster with the kubelet's
    /// credentials, if it has changed or is 5 minutes old (as root)
    #[arg(long, conflicts_with_all = ["root", "record", "lspci", "only", "skip"])]
    pub node_condition: bool,
    /// Use the command-line options and the lock file of the last `install`, and the current settings files
    #[arg(long, conflicts_with_all = ["root", "lspci", "profile", "config", "set", "lock"])]
    pub as_installed: bool,
    #[command(flatten)]
    pub detail: DetailArgs,
    /// Report only these findings
    #[arg(long, value_name = "ID", value_delimiter = ',', value_parser = id)]
    pub only: Vec<Id>,
    /// Omit these findings
    #[arg(long, value_name = "ID", value_delimiter = ',', value_parser = id)]
    pub skip: Vec<Id>,
    /// Show these findings as skipped, so they cannot cause a failure
    #[arg(long, value_name = "ID", value_delimiter = ',', value_parser = id)]
    pub ignore: Vec<Id>,
    /// The findings for which `check` exits with 4
    #[arg(
        long,
        value_enum,
        default_value = "fail",
        value_name = "KIND",
        value_delimiter = ','
    )]
    pub fail_on: Vec<FailOn>,
    /// Also fail if a finding is unknown
    #[arg(long)]
    pub strict: bool,
    /// First run a computation on the GPUs, on the host and in a container of each runtime, and record the result
    /// (as root; pulls no image; each container takes at most `validation.timeout`)
    #[arg(long, conflicts_with_all = ["root", "record", "lspci"])]
    pub validate: bool,
    /// Read a mounted image, or `files` in a recording, instead of this machine; execute no command
    #[arg(long, value_name = "DIR")]
    pub root: Option<Utf8PathBuf>,
    /// Examine the output of `lspci -nnk` instead of this machine; `-` is stdin
    #[arg(
        long,
        value_name = "FILE|-",
        conflicts_with_all = ["root", "record", "profile", "config", "set", "lock"]
    )]
    pub lspci: Option<Utf8PathBuf>,
    /// Record all data that is read, to replay it on another machine
    #[arg(long, value_name = "DIR", conflicts_with = "root")]
    pub record: Option<Utf8PathBuf>,
}

/// A machine that does not exist yet.
#[derive(Debug, Clone, Default, Args)]
pub struct TrialArgs {
    /// Check the settings for this operating system, for example `ubuntu-24.04`, without a machine: only
    /// --config and --set are used. Exits with 0 if the settings are valid there
    #[arg(long, value_name = "ID-VERSION")]
    pub os: Option<String>,
    /// GPU of the machine, for example `L4`, `10de:27b8`, or the instance type `p5.48xlarge`
    #[arg(long, value_name = "NAME|PCI-ID|INSTANCE-TYPE", requires = "os")]
    pub gpu: Option<String>,
    /// Kernel of the machine, for example `6.8.0-45-generic`
    #[arg(long, value_name = "V", requires = "os")]
    pub kernel: Option<KernelVersion>,
    /// Architecture of the machine [default: from the instance type, else x86_64]
    #[arg(long, value_name = "ARCH", requires = "os")]
    pub arch: Option<String>,
}

/// `plan`.
#[derive(Debug, Args)]
#[command(
    group(ArgGroup::new("planned").args(["os", "image"])),
    group(ArgGroup::new("pinned").args(["os", "lock", "bundle"]))
)]
pub struct PlanArgs {
    #[command(flatten)]
    pub target: TargetArgs,
    #[command(flatten)]
    pub bundle: BundleArg,
    #[command(flatten)]
    pub trial: TrialArgs,
    #[command(flatten)]
    pub image: ImageArgs,
    #[command(flatten)]
    pub output: OutputArgs,
    #[command(flatten)]
    pub detail: DetailArgs,
}

/// `install`.
#[derive(Debug, Args)]
pub struct InstallArgs {
    #[command(flatten)]
    pub target: TargetArgs,
    #[command(flatten)]
    pub bundle: BundleArg,
    #[command(flatten)]
    pub image: ImageArgs,
    #[command(flatten)]
    pub output: OutputArgs,
    #[command(flatten)]
    pub detail: DetailArgs,
    /// Reboot if required, and continue automatically
    #[arg(long)]
    pub reboot: bool,
    /// Run as a systemd unit, with --reboot, and wait until it finishes, like `status --wait`: for
    /// cloud-init and startup scripts. If a run is in progress, only wait for it
    #[arg(long, conflicts_with_all = ["image", "events"])]
    pub unattended: bool,
    /// Time limit for retries of transient failures, such as an unreachable mirror; no change starts after it.
    /// Starts again at each boot [default: 2h with --reboot]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub deadline: Option<Duration>,
    /// Write events as JSON Lines to a file, or to stdout with `-`
    #[arg(long, value_name = "FILE|-")]
    pub events: Option<String>,
    /// Maximum wait for a package manager lock
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub lock_timeout: Option<Duration>,
    /// Continue the run in the journal
    #[arg(long, hide = true, conflicts_with_all = ["profile", "config", "set", "lock", "bundle", "image", "unattended"])]
    pub resume: bool,
}

/// `upgrade`.
#[derive(Debug, Args)]
pub struct UpgradeArgs {
    #[command(flatten)]
    pub target: TargetArgs,
    #[command(flatten)]
    pub bundle: BundleArg,
    #[command(flatten)]
    pub output: OutputArgs,
    #[command(flatten)]
    pub detail: DetailArgs,
    /// Show the changes, the pods that would be evicted and the reasons that prevent the upgrade; change nothing
    #[arg(long, conflicts_with_all = ["reboot", "deadline", "events", "lock_timeout", "now"])]
    pub dry_run: bool,
    /// Reboot if required, and continue automatically
    #[arg(long)]
    pub reboot: bool,
    /// Start even if the maintenance window (`fleet.window`) is closed
    #[arg(long)]
    pub now: bool,
    /// Use the command-line options and the lock file of the last `install`, and the current settings files
    #[arg(long, conflicts_with_all = ["profile", "config", "set", "lock", "bundle"])]
    pub as_installed: bool,
    /// Time limit for retries of transient failures, as of `install`
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub deadline: Option<Duration>,
    /// Write events as JSON Lines to a file, or to stdout with `-`
    #[arg(long, value_name = "FILE|-")]
    pub events: Option<String>,
    /// Maximum wait for a package manager lock
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub lock_timeout: Option<Duration>,
}

/// `status`.
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// Wait until the current run finishes or needs a reboot, and exit with its exit code; with 0 if the
    /// machine reboots automatically or no run was started, with 9 if the run takes longer [default: 3h]
    #[arg(
        long,
        value_name = "DURATION",
        value_parser = duration,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "3h"
    )]
    pub wait: Option<Duration>,
    /// Show the duration of each part of the last installation, including reboots
    #[arg(long, conflicts_with = "timeline")]
    pub timing: bool,
    /// Show a timeline of the steps of the last installation, with the critical path
    #[arg(long)]
    pub timeline: bool,
    /// With `--timeline`: print the timeline of the changes as an SVG image
    #[arg(long, requires = "timeline", conflicts_with = "format")]
    pub svg: bool,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `lock`.
#[derive(Debug, Args)]
pub struct LockArgs {
    /// Write the lock file to this file instead of standard output, replacing the file atomically
    #[arg(long, value_name = "FILE")]
    pub out: Option<Utf8PathBuf>,
}

/// `bundle`.
#[derive(Debug, Args)]
pub struct BundleArgs {
    #[command(subcommand)]
    pub command: BundleCommand,
}

/// The subcommands of `bundle`.
#[derive(Debug, Subcommand)]
pub enum BundleCommand {
    /// Download all packages of a lock file, with keys and signed package lists, on a node with the same system (as root)
    Create(CreateArgs),
    /// Compare the files of a bundle with its manifest, and list missing, changed and foreign ones
    Verify(VerifyArgs),
}

/// `bundle create`.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("locked").args(["lock"]).required(true)))]
pub struct CreateArgs {
    #[command(flatten)]
    pub target: TargetArgs,
    /// New or empty directory for the bundle
    #[arg(long, value_name = "DIR")]
    pub out: Utf8PathBuf,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `bundle verify`.
#[derive(Debug, Args)]
pub struct VerifyArgs {
    /// The bundle
    #[arg(value_name = "DIR")]
    pub directory: Utf8PathBuf,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `explain`.
#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// Finding, step, setting or event (`driver.libraries`, `driver.existing`), Xid, SXid or exit code (`79`, `xid 79`,
    /// `sxid 24007`, `exit 5`), or a kernel log line [default: list all findings]
    #[arg(value_name = "ID")]
    pub ids: Vec<String>,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `config`.
#[derive(Debug, Args)]
pub struct ConfigArgs {
    /// Include the description and the default of each setting
    #[arg(long, required = true)]
    pub defaults: bool,
}

/// `uninstall`.
#[derive(Debug, Args)]
pub struct UninstallArgs {
    /// List the changes that would be undone; change nothing
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub output: OutputArgs,
    #[command(flatten)]
    pub detail: DetailArgs,
}

/// Parses the name of a form.
fn form() -> impl TypedValueParser<Value = &'static Form> {
    let row = |form: &'static Form| PossibleValue::new(&*form.name).help(&*form.about);
    PossibleValuesParser::new(forms::all().iter().map(row))
        .try_map(|name| forms::named(&name).ok_or("not a form"))
}

/// Parses the name of a provider.
fn provider() -> PossibleValuesParser {
    let mut rows: Vec<&Provider> = Vec::new();
    for provider in forms::all().iter().flat_map(|form| &form.providers) {
        if !rows.iter().any(|row| row.name == provider.name) {
            rows.push(provider);
        }
    }
    let row = |row: &'static Provider| PossibleValue::new(&*row.name).help(&*row.about);
    PossibleValuesParser::new(rows.into_iter().map(row))
}

/// Returns the names of the forms that need a provider.
fn with_providers() -> impl Iterator<Item = &'static str> {
    let forms = forms::all().iter();
    forms
        .filter(|form| !form.providers.is_empty())
        .map(|form| &*form.name)
}

/// `user-data`.
#[derive(Debug, Args)]
pub struct UserDataArgs {
    /// Type of node
    #[arg(value_parser = form())]
    pub form: &'static Form,
    /// Provider of the node pool
    #[arg(
        long,
        value_name = "PROVIDER",
        value_parser = provider(),
        required_if_eq_any = with_providers().map(|name| ("form", name)),
        help = format!(
            "Provider of the node pool, required for `{}`",
            with_providers().collect::<Vec<_>>().join("`, `")
        )
    )]
    pub provider: Option<String>,
    /// Configuration file, whose settings are added to the user data, before those of --set; may be repeated
    #[arg(long, value_name = "FILE")]
    pub config: Vec<Utf8PathBuf>,
    /// Single setting, for example `cluster.version=1.36`; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Single value other than a setting, for example `family=g6`; may be repeated
    #[arg(long, value_name = "NAME=VALUE")]
    pub value: Vec<String>,
    /// File with the join token; the token is printed in the user data
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<Utf8PathBuf>,
    /// Operating system for which the settings are checked, for example `almalinux-9` [default: depends on the
    /// type of node]
    #[arg(long, value_name = "ID-VERSION")]
    pub os: Option<String>,
}

/// `manifests`.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("pinned").args(["os", "lock"])))]
pub struct ManifestsArgs {
    /// Directory for the files. Files that this command has not written, or that were edited, are not
    /// overwritten
    #[arg(long, value_name = "DIR")]
    pub out: Utf8PathBuf,
    #[command(flatten)]
    pub target: TargetArgs,
    #[command(flatten)]
    pub trial: TrialArgs,
}

/// `modules`.
#[derive(Debug, Args)]
#[command(disable_help_subcommand = true)]
pub struct ModulesArgs {
    #[command(subcommand)]
    pub command: ModulesCommand,
}

/// The subcommands of `modules`.
#[derive(Debug, Subcommand)]
pub enum ModulesCommand {
    /// List the NVIDIA driver modules that DKMS has built, and their origin
    List(OutputArgs),
    /// Pack the modules for other machines, with one archive for each kernel (as root)
    Export(ExportArgs),
    /// Fetch prebuilt modules from `driver.prebuilt.sources`, for DKMS
    #[command(hide = true)]
    Fetch(FetchArgs),
}

/// `modules export`.
#[derive(Debug, Args)]
pub struct ExportArgs {
    /// Directory for the archives, or OCI repository
    #[arg(
        long,
        value_name = "DIR|oci://REGISTRY/REPOSITORY",
        default_value = "."
    )]
    pub to: ExportTo,
    /// Export only the modules for this kernel [default: all kernels]
    #[arg(long, value_name = "V")]
    pub kernel: Option<KernelVersion>,
    /// Sign the archives with this minisign private key, which must have no password and be readable only by root
    #[arg(long, value_name = "FILE")]
    pub sign_key: Option<Utf8PathBuf>,
}

/// The destination of archives.
#[derive(Debug, Clone)]
pub enum ExportTo {
    /// A directory.
    Directory(Utf8PathBuf),
    /// An OCI repository.
    Registry(Address),
}

impl FromStr for ExportTo {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if !text.starts_with(SCHEME) {
            return Ok(Self::Directory(text.into()));
        }
        let address = Address::parse(text).map(Self::Registry);
        address.ok_or("not `oci://REGISTRY/REPOSITORY` in lower case without a tag")
    }
}

/// `modules fetch`.
#[derive(Debug, Args)]
pub struct FetchArgs {
    /// Driver version
    #[arg(long)]
    pub driver: DriverVersion,
    /// Kernel release
    #[arg(long)]
    pub kernel: KernelVersion,
    /// `open` or `proprietary`
    #[arg(long, value_parser = flavor)]
    pub flavor: Flavor,
    /// Directories and URLs
    #[arg(long)]
    pub source: Vec<String>,
    /// Public keys; without a key, archives need no signature
    #[arg(long)]
    pub public_key: Vec<String>,
    /// Earliest accepted signature time
    #[arg(long)]
    pub not_before: Option<jiff::Timestamp>,
    /// Each module, and the file that a build would create
    #[arg(value_name = "NAME=FILE", required = true)]
    pub places: Vec<FetchedModule>,
}

/// A module to fetch, and the file that a build would create.
#[derive(Debug, Clone)]
pub struct FetchedModule {
    /// The name without `.ko`.
    pub module: String,
    /// The path in the build directory.
    pub file: Utf8PathBuf,
}

impl FromStr for FetchedModule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (module, file) = text.split_once('=').ok_or("not `NAME=FILE`")?;
        Ok(Self {
            module: module.to_owned(),
            file: file.into(),
        })
    }
}

/// The format of `report`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum ReportFormat {
    /// Markdown
    #[default]
    Markdown,
    /// One JSON document
    Json,
}

/// `report`.
#[derive(Debug, Args)]
pub struct ReportArgs {
    /// Directory with the output of `check --format json`, one file for each node; `-` reads all documents
    /// from stdin
    #[arg(value_name = "DIR|-")]
    pub from: Utf8PathBuf,
    /// Output format
    #[arg(long, value_enum, default_value_t)]
    pub format: ReportFormat,
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
    #[command(flatten)]
    pub output: OutputArgs,
    /// Read a mounted image, or `files` in a recording, instead of this machine; execute no command
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
    /// Use the GPUs in the output of `lspci -nn`; `-` is stdin
    #[arg(long, value_name = "FILE|-", conflicts_with = "gpu")]
    pub lspci: Option<Utf8PathBuf>,
    /// Show the sources of the result
    #[arg(short, long)]
    pub verbose: bool,
    #[command(flatten)]
    pub output: OutputArgs,
}

#[expect(clippy::unnecessary_wraps, reason = "clap requires a fallible parser")]
fn id(text: &str) -> Result<Id, std::convert::Infallible> {
    Ok(Id::owned(text))
}

/// Parses a duration such as `90s`, `30m`, `1h 30m` or `2 hours`.
fn duration(text: &str) -> Result<Duration, ValueError> {
    let limit: TimeLimit = text.parse()?;
    Ok(Duration::from_secs(limit.seconds()))
}

fn flavor(text: &str) -> Result<Flavor, String> {
    match text {
        "open" => Ok(Flavor::Open),
        "proprietary" => Ok(Flavor::Proprietary),
        _ => Err("write `open` or `proprietary`".to_owned()),
    }
}

/// Parses the PCI ID of an NVIDIA device.
fn of_nvidia(text: &str) -> Result<PciId, String> {
    let id: PciId = text.parse().map_err(|error: PciError| error.to_string())?;
    match id.vendor {
        NVIDIA => Ok(id),
        _ => Err("not an NVIDIA GPU: NVIDIA PCI IDs start with `10de:`".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser, error::ErrorKind};

    use super::Cli;
    use crate::{cli::help, dkms::FETCH};

    #[test]
    fn command_definition_is_valid() {
        Cli::command().debug_assert();
    }

    #[test]
    fn command_line_of_dkms_is_accepted() {
        let words = format!(
            "gpu-bootstrap {FETCH} --flavor=open --source=/srv/modules --public-key=untrusted \
             --not-before=2026-01-01T00:00:00Z --driver=580.95.05 --kernel=6.1.0-44-amd64 -- nvidia=./nvidia.ko"
        );
        if let Err(error) = Cli::try_parse_from(words.split_whitespace()) {
            panic!("{error}");
        }
    }

    #[test]
    fn lock_file_is_rejected_without_a_machine() {
        for command in ["plan", "manifests --out out"] {
            let line = format!("gpu-bootstrap {command} --os debian-12 --lock node.lock");
            let error = Cli::try_parse_from(line.split(' ')).expect_err(command);
            assert_eq!(error.kind(), ErrorKind::ArgumentConflict, "{command}");
        }
    }

    #[test]
    fn help_fits_a_terminal() {
        let mut left = vec![help::documented()];
        while let Some(mut command) = left.pop() {
            let text = command.render_long_help().to_string();
            for line in text.lines() {
                assert!(line.chars().count() <= 80, "longer than 80 columns: {line}");
            }
            for section in ["Exit status:", "Environment:", "Examples:"] {
                assert!(
                    text.contains(&format!("\n{section}\n")),
                    "{section}: {text}"
                );
            }
            let shown = (command.get_subcommands())
                .filter(|one| !one.is_hide_set() && one.get_name() != "help");
            left.extend(shown.cloned());
        }
    }
}
