//! Sections below the options in `--help` and in the manual pages: examples, exit status, files, environment, and the values of
//! `user-data`.

use std::fmt::Write as _;

use clap::{Command, CommandFactory as _};
use textwrap::{Options, WordSplitter, wrap};

use super::{args::Cli, forms};

/// The width of the help.
const WIDTH: usize = 78;

/// The indent of descriptions.
const INDENT: &str = "          ";

/// A section: its title, and its entries with a term and a description.
pub struct Section {
    pub title: &'static str,
    pub rows: Vec<(String, String)>,
}

/// A term and its description.
type Row = (&'static str, &'static str);

/// A command: its name, its examples, the exit codes that it returns in addition to [`ALWAYS`], its files, and whether it reads
/// the settings, and therefore their environment. The name of the program itself is empty. The name of a command below another
/// one is `bundle-create`, as in the name of its manual page.
type CommandRow = (
    &'static str,
    &'static [Row],
    &'static [u8],
    &'static [Row],
    SettingsUse,
);

/// Whether a command reads the settings.
#[derive(Clone, Copy, PartialEq)]
enum SettingsUse {
    Reads,
    Ignores,
}

const SETTINGS: Row = (
    "/etc/gpu-bootstrap/config.toml, /etc/gpu-bootstrap/config.d/*.toml",
    "Settings, see gpu-bootstrap.toml(5)",
);

const PROFILES: Row = (
    "/etc/gpu-bootstrap/profiles/*.toml",
    "Profiles that replace the built-in ones",
);

const MATRIX: Row = (
    "/etc/gpu-bootstrap/cuda-driver-matrix.toml",
    "A matrix that replaces the built-in one",
);

const STATE: Row = (
    "/var/lib/gpu-bootstrap",
    "Journal, backups and validation records",
);

const STATUS: Row = (
    "/run/gpu-bootstrap/status.json",
    "The state of the current or the last run",
);

/// The files of a run.
const RUN: [Row; 6] = [
    SETTINGS,
    PROFILES,
    MATRIX,
    STATE,
    STATUS,
    (
        "/etc/systemd/system/gpu-bootstrap-resume.service",
        "Continues the run after a reboot; removed when the run is complete",
    ),
];

const COMMANDS: [CommandRow; 23] = [
    (
        "",
        &[
            ("gpu-bootstrap plan", "Show all changes with diffs"),
            (
                "sudo gpu-bootstrap install --reboot",
                "Install, reboot if needed, continue, and validate",
            ),
            ("sudo gpu-bootstrap check", "Audit the machine"),
            ("sudo gpu-bootstrap uninstall", "Restore the previous state"),
        ],
        &[4, 5, 6, 7, 8, 9, 10, 130],
        &RUN,
        SettingsUse::Reads,
    ),
    (
        "check",
        &[
            ("sudo gpu-bootstrap check", "Check this machine"),
            (
                "gpu-bootstrap check --root /mnt/image --only driver",
                "Check the driver of a mounted image",
            ),
            (
                "sudo gpu-bootstrap check --lock node.lock --only packages.lock",
                "Compare the packages with a lock file",
            ),
            (
                "gpu-bootstrap check --format prometheus --output /srv/textfile/gpu.prom",
                "Write metrics for node_exporter",
            ),
        ],
        &[4, 10],
        &RUN,
        SettingsUse::Reads,
    ),
    (
        "plan",
        &[
            ("gpu-bootstrap plan", "Show what `install` would change"),
            (
                "gpu-bootstrap plan --os ubuntu-24.04 --gpu p5.48xlarge --config site.toml",
                "Check settings for a machine that does not exist yet",
            ),
        ],
        &[4, 5, 6, 10],
        &RUN,
        SettingsUse::Reads,
    ),
    (
        "install",
        &[
            (
                "sudo gpu-bootstrap install --reboot",
                "Install, reboot if needed, continue, and validate",
            ),
            (
                "sudo gpu-bootstrap install --set driver.branch=580",
                "Select the driver branch",
            ),
            (
                "sudo gpu-bootstrap install --image --assume-gpu 10de:2330",
                "Prepare an image for instances with H100 SXM",
            ),
            (
                "sudo gpu-bootstrap install --lock node.lock",
                "Install the versions of a lock file",
            ),
        ],
        &[5, 6, 7, 8, 9, 10, 130],
        &RUN,
        SettingsUse::Reads,
    ),
    (
        "upgrade",
        &[
            (
                "sudo gpu-bootstrap upgrade --dry-run --set driver.branch=595",
                "Show the changes and the pods that would be evicted",
            ),
            (
                "sudo gpu-bootstrap upgrade --reboot",
                "Drain, install, reboot, validate, and return the node to service",
            ),
        ],
        &[4, 5, 6, 7, 8, 9, 10, 130],
        &RUN,
        SettingsUse::Reads,
    ),
    (
        "uninstall",
        &[
            (
                "sudo gpu-bootstrap uninstall --dry-run",
                "List the changes that would be undone",
            ),
            ("sudo gpu-bootstrap uninstall", "Restore the previous state"),
        ],
        &[5, 6, 7, 9, 10, 130],
        &RUN,
        SettingsUse::Reads,
    ),
    (
        "status",
        &[
            (
                "gpu-bootstrap status --wait=30m",
                "Wait until the current run finishes",
            ),
            (
                "gpu-bootstrap status --timing",
                "Show the duration of each part of the last installation",
            ),
        ],
        // `--wait` exits with the status of the run.
        &[5, 6, 7, 8, 9, 10, 130],
        &[STATE, STATUS],
        SettingsUse::Ignores,
    ),
    (
        "lock",
        &[(
            "sudo gpu-bootstrap lock --out node.lock",
            "Write the versions of this node to a lock file",
        )],
        &[5, 10],
        &[SETTINGS, PROFILES, MATRIX, STATE],
        SettingsUse::Reads,
    ),
    (
        "bundle",
        &[
            (
                "sudo gpu-bootstrap bundle create --lock node.lock --out /srv/bundle",
                "Download the packages of a lock file",
            ),
            (
                "gpu-bootstrap bundle verify /srv/bundle",
                "Check a copied bundle",
            ),
        ],
        &[5, 6, 10],
        &[SETTINGS, PROFILES, MATRIX, STATE],
        SettingsUse::Reads,
    ),
    (
        "facts",
        &[
            (
                "gpu-bootstrap facts --format json",
                "Print the facts as JSON",
            ),
            (
                "lspci -nnk | gpu-bootstrap facts --lspci -",
                "Show the GPUs in the output of lspci",
            ),
        ],
        &[],
        &[MATRIX],
        SettingsUse::Ignores,
    ),
    (
        "explain",
        &[
            (
                "gpu-bootstrap explain driver.libraries",
                "Describe a finding and its remedy",
            ),
            ("gpu-bootstrap explain xid 79", "Describe an Xid"),
        ],
        &[],
        &[],
        SettingsUse::Ignores,
    ),
    (
        "compat",
        &[
            (
                "gpu-bootstrap compat --gpu L4 --cuda 12.8",
                "Find a driver for a GPU and a CUDA version",
            ),
            (
                "gpu-bootstrap compat --gpu H100 --driver 580 --os ubuntu-24.04",
                "Check a driver branch",
            ),
        ],
        &[4, 5],
        &[PROFILES, MATRIX],
        SettingsUse::Ignores,
    ),
    (
        "config",
        &[(
            "gpu-bootstrap config --defaults",
            "Print all settings with their descriptions",
        )],
        &[],
        &[SETTINGS],
        SettingsUse::Ignores,
    ),
    (
        "probe",
        &[
            ("gpu-bootstrap probe", "Run a computation on each GPU"),
            (
                "gpu-bootstrap probe --format json",
                "Print the results as JSON",
            ),
        ],
        &[4],
        &[MATRIX],
        SettingsUse::Ignores,
    ),
    (
        "user-data",
        &[
            (
                "gpu-bootstrap user-data bare >user-data.yaml",
                "A machine with Docker outside a cluster",
            ),
            (
                "gpu-bootstrap user-data kubeadm --config site.toml --token-file token \\\n      \
                 >user-data.yaml",
                "A node of a kubeadm cluster, with the settings of a file",
            ),
            (
                "gpu-bootstrap user-data node-pool --provider gke \\\n      \
                 --value registry=REGISTRY --value digest=DIGEST | kubectl apply -f -",
                "The nodes of a GKE node pool",
            ),
        ],
        &[5],
        &[MATRIX],
        SettingsUse::Ignores,
    ),
    (
        "manifests",
        &[
            (
                "gpu-bootstrap manifests --out manifests",
                "Write the manifests for this machine",
            ),
            (
                "gpu-bootstrap manifests --out manifests --os ubuntu-24.04 --gpu 8xH100 \\\n      \
                 --config site.toml",
                "Write the manifests for a machine that does not exist yet",
            ),
        ],
        &[5, 6, 10],
        &[SETTINGS, PROFILES, MATRIX],
        SettingsUse::Reads,
    ),
    (
        "report",
        &[
            (
                "gpu-bootstrap report checks",
                "Compare the files in the directory `checks`",
            ),
            (
                "cat checks.jsonl | gpu-bootstrap report --format json -",
                "Compare documents from standard input",
            ),
        ],
        &[4],
        &[DOCUMENTS],
        SettingsUse::Ignores,
    ),
    (
        "modules",
        &[(
            "sudo gpu-bootstrap modules export --to /srv/modules",
            "Export the compiled modules for machines with the same kernel",
        )],
        &[5, 6, 10],
        &[SETTINGS, BUILT],
        SettingsUse::Reads,
    ),
    (
        "completions",
        &[
            (
                "gpu-bootstrap completions bash \\\n    \
                 >/usr/share/bash-completion/completions/gpu-bootstrap",
                "Install the completions for bash",
            ),
            (
                "gpu-bootstrap completions fish >~/.config/fish/completions/gpu-bootstrap.fish",
                "Install the completions for fish",
            ),
        ],
        &[],
        &COMPLETIONS,
        SettingsUse::Ignores,
    ),
    (
        "bundle-create",
        &[(
            "sudo gpu-bootstrap bundle create --lock node.lock --out /srv/bundle",
            "Download the packages of a lock file",
        )],
        &[5, 6, 10],
        &[SETTINGS, PROFILES, MATRIX, STATE],
        SettingsUse::Reads,
    ),
    (
        "bundle-verify",
        &[(
            "gpu-bootstrap bundle verify /srv/bundle",
            "Check a copied bundle",
        )],
        &[5],
        &[("DIR/bundle.toml", "The manifest of the bundle")],
        SettingsUse::Ignores,
    ),
    (
        "modules-list",
        &[(
            "gpu-bootstrap modules list",
            "List the compiled modules and their origin",
        )],
        &[6],
        &[BUILT],
        SettingsUse::Ignores,
    ),
    (
        "modules-export",
        &[
            (
                "sudo gpu-bootstrap modules export --to /srv/modules",
                "Export the compiled modules for machines with the same kernel",
            ),
            (
                "sudo gpu-bootstrap modules export --to oci://registry.example.com/modules \\\n      \
                 --sign-key /root/minisign.key",
                "Sign the modules, and publish them in a registry",
            ),
        ],
        &[5, 6, 10],
        &[SETTINGS, BUILT],
        SettingsUse::Reads,
    ),
];

/// The exit codes of all commands.
const ALWAYS: [u8; 4] = [0, 1, 2, 3];

/// See [`Exit`](crate::exit::Exit).
const EXIT: [(u8, &str); 12] = [
    (0, "Ready, installed, or nothing to do"),
    (1, "A bug, or an error without its own code"),
    (2, "Invalid options or arguments"),
    (
        3,
        "Invalid settings, profile or matrix, or a file is writable by non-root users",
    ),
    (
        4,
        "check: a finding fails, or nothing could be checked. plan: changes are pending. probe: a layer fails. compat: the \
         result is unknown. report: a node fails or differs",
    ),
    (
        5,
        "The machine is unsupported or incompatible, or its disk is full; no changes were made",
    ),
    (
        6,
        "A change or its validation failed, or a step could not read the machine",
    ),
    (7, "A change could not be undone"),
    (8, "Progress is saved, and a reboot is required"),
    (9, "Another run is in progress, or status --wait timed out"),
    (10, "Root is required"),
    (
        130,
        "Stopped by SIGINT after the current change finished; 143 for SIGTERM",
    ),
];

const DOCUMENTS: Row = (
    "DIR/*",
    "The output of gpu-bootstrap check --format json, one file for each node",
);

const BUILT: Row = ("/var/lib/dkms", "The modules that DKMS has compiled");

const COMPLETIONS: [Row; 3] = [
    (
        "/usr/share/bash-completion/completions/gpu-bootstrap",
        "The completions for bash",
    ),
    (
        "/usr/share/zsh/site-functions/_gpu-bootstrap",
        "The completions for zsh; on Debian and Ubuntu in vendor-completions",
    ),
    (
        "/usr/share/fish/vendor_completions.d/gpu-bootstrap.fish",
        "The completions for fish",
    ),
];

const SETTING_VARIABLES: [Row; 3] = [
    (
        "GPU_BOOTSTRAP_TABLE__KEY",
        "A setting, such as GPU_BOOTSTRAP_DRIVER__BRANCH=580",
    ),
    (
        "https_proxy, http_proxy, all_proxy, no_proxy",
        "The proxy, unless packages.proxy is set",
    ),
    (
        "CREDENTIALS_DIRECTORY",
        "The systemd credentials of the unit, for cluster.token",
    ),
];

/// The variables of all commands.
const VARIABLES: [Row; 3] = [
    (
        "GPU_BOOTSTRAP_LOG",
        "The filter of log lines on standard error, such as debug",
    ),
    (
        "COLUMNS",
        "The line width, also if the output is not a terminal",
    ),
    ("NO_COLOR", "No color, if it is not empty"),
];

/// Returns the values of `user-data` with the forms that have them.
fn values() -> Vec<(String, String)> {
    let mut rows: Vec<(&str, &str, Vec<&str>)> = Vec::new();
    for form in forms::all() {
        for value in &form.values {
            let own = (rows.iter_mut())
                .find(|(name, about, _)| *name == value.name && *about == value.about);
            match own {
                Some((.., names)) => names.push(form.name.as_str()),
                None => rows.push((
                    value.name.as_str(),
                    value.about.as_str(),
                    vec![form.name.as_str()],
                )),
            }
        }
    }
    let row = |(name, about, names): (&str, &str, Vec<&str>)| {
        let text = format!("{about}. Forms: {}", names.join(", "));
        (name.to_owned(), text)
    };
    rows.into_iter().map(row).collect()
}

/// Returns the sections of a command, in the order of a manual page. The name of the program itself is empty. A command below
/// another one has a name such as `bundle-create`.
pub fn sections(command: &str) -> Vec<Section> {
    let Some((_, examples, exits, files, settings)) =
        COMMANDS.iter().find(|(name, ..)| *name == command)
    else {
        return Vec::new();
    };
    let mut sections = Vec::new();
    let mut add = |title, rows: Vec<(String, String)>| sections.push(Section { title, rows });
    if command == "user-data" {
        add("Values", values());
    }
    let exits = (EXIT.iter())
        .filter(|(code, _)| ALWAYS.contains(code) || exits.contains(code))
        .map(|(code, meaning)| (code.to_string(), (*meaning).to_owned()));
    add("Exit status", exits.collect());
    let mut variables = Vec::new();
    if *settings == SettingsUse::Reads {
        variables.extend(owned(&SETTING_VARIABLES));
    }
    variables.extend(owned(&VARIABLES));
    add("Environment", variables);
    if !files.is_empty() {
        add("Files", owned(files));
    }
    add("Examples", owned(examples));
    sections
}

fn owned(rows: &[Row]) -> Vec<(String, String)> {
    let row = |(term, text): &Row| ((*term).to_owned(), (*text).to_owned());
    rows.iter().map(row).collect()
}

/// Returns the command line with the sections of `--help`. They are not in [`Cli`], because they take longer to build than the
/// rest of it, and each start builds it.
pub fn documented() -> Command {
    with_sections(Cli::command(), "")
}

/// Adds the sections to a command with this name in [`COMMANDS`], and to the commands below it.
fn with_sections(command: Command, name: &str) -> Command {
    command.after_long_help(of(name)).mut_subcommands(|below| {
        let full = match name {
            "" => below.get_name().to_owned(),
            name => format!("{name}-{}", below.get_name()),
        };
        with_sections(below, &full)
    })
}

/// Returns the sections of a command as text.
fn of(command: &str) -> String {
    let mut text = String::new();
    for section in sections(command) {
        // Writing to a `String` cannot fail.
        let _ = writeln!(text, "{}:", section.title);
        for (term, about) in section.rows {
            let options = Options::new(WIDTH)
                .subsequent_indent(INDENT)
                .word_splitter(WordSplitter::NoHyphenation);
            // A short term is on the line of its description.
            let head = format!("  {term:<6}  ");
            let options = if head.len() == INDENT.len() {
                options.initial_indent(&head)
            } else {
                let _ = writeln!(text, "  {term}");
                options.initial_indent(INDENT)
            };
            for line in wrap(&about, options) {
                let _ = writeln!(text, "{line}");
            }
        }
        text.push('\n');
    }
    text.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::exit::Exit;

    #[test]
    fn examples_are_valid() {
        for (_, examples, ..) in COMMANDS {
            for (line, _) in examples {
                let (_, line) = line.split_once("gpu-bootstrap ").expect("our program");
                let words = line
                    .split([' ', '\n'])
                    .filter(|word| !matches!(*word, "" | "\\"));
                let words = words.take_while(|word| *word != "|" && !word.starts_with('>'));
                let parsed = Cli::try_parse_from(["gpu-bootstrap"].into_iter().chain(words));
                assert!(parsed.is_ok(), "{line}: {}", parsed.expect_err("an error"));
            }
        }
    }

    #[test]
    fn exit_codes_are_those_of_the_program() {
        for (code, _) in EXIT {
            assert_eq!(Exit::of(code).code(), code);
        }
    }
}
