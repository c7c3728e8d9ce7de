//! Snapshots of terminal sessions with the real binary. Only commands without changes. Commands that change the machine are
//! tested in `tests/machine`.

use std::path::Path;

use assert_cmd::Command;
use clap::CommandFactory as _;

/// The path of a host tree, relative to the repository, in which sessions run.
const BARE: &str = "tests/hosts/debian-12-bare-h100/root";

/// Runs a command line in the repository, without color, terminal or inherited environment.
fn run(line: &str) -> String {
    let words: Vec<&str> = line.split_whitespace().collect();
    let output = Command::cargo_bin("gpu-bootstrap")
        .expect("the binary")
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .args(&words)
        .output()
        .expect("it runs");
    let mut text = format!("$ gpu-bootstrap {line}\n");
    text.push_str(&String::from_utf8(output.stdout).expect("text"));
    let talk = String::from_utf8(output.stderr).expect("text");
    if !talk.is_empty() {
        text.push_str("--- standard error\n");
        text.push_str(&talk);
    }
    text.push_str(&format!(
        "--- exit {}\n",
        output.status.code().expect("an exit status")
    ));
    text
}

/// A named session: command lines and their output.
fn session(name: &str, lines: &[&str]) {
    let text: Vec<String> = lines.iter().map(|line| run(line)).collect();
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path("cli");
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    // Sizes depend on the disk with the tree.
    settings.add_filter(r"[0-9]+(\.[0-9])? [KMGT]iB", "[SIZE]");
    settings.add_filter(r#""(total|free)-bytes": [0-9]+"#, r#""$1-bytes": [BYTES]"#);
    settings.add_filter(r"[0-9]+\.[0-9] s\b", "[SECONDS] s");
    settings.add_filter(r"duration_seconds [0-9.e-]+", "duration_seconds [SECONDS]");
    settings.add_filter(r#""time": "20[^"]+""#, r#""time": "[TIME]""#);
    settings.add_filter(env!("CARGO_MANIFEST_DIR"), "[REPOSITORY]");
    // A new finding that is skipped does not change the output.
    settings.add_filter(r"(?m)^skip  .*\n(?: +.*\n)*\n", "");
    settings.add_filter(r" of [0-9]+ examined", " of [TOTAL] examined");
    settings.bind(|| insta::assert_snapshot!(name, text.join("\n")));
}

#[test]
fn help_of_every_command() {
    for command in [
        "",
        "check",
        "plan",
        "install",
        "upgrade",
        "uninstall",
        "status",
        "facts",
        "compat",
        "probe",
        "report",
        "user-data",
        "completions",
    ] {
        let name = if command.is_empty() {
            "gpu-bootstrap"
        } else {
            command
        };
        session(
            &format!("help-{name}"),
            &[format!("{command} --help").trim_start()],
        );
    }
}

#[test]
fn invalid_command_lines() {
    session(
        "usage-errors",
        &[
            "instal",
            "remove",
            "install --dry-run",
            "plan --json",
            "explain --config",
            "check --profil debian",
            "check --format yaml",
            "check --root / --record /tmp/nowhere",
            "install --assume-gpu 10de:2330",
            "install --image --assume-gpu h100",
            "install --lock-timeout soon",
            "compat --cuda twelve",
            "compat --driver latest",
            "facts --root /nowhere/at/all",
            "check --root tests/hosts",
            &format!("check --root {BARE} --only kernel.dney"),
            &format!("check --root {BARE} --skip xyz"),
        ],
    );
}

#[test]
fn compatibility_questions() {
    session(
        "compat",
        &[
            "compat --gpu L4 --cuda 12.8 --driver 580",
            "compat --gpu L4 --cuda 12.8 --driver 535",
            "compat --gpu 10de:2330 --cuda 12.4",
            "compat --gpu V100 --driver 595",
            "compat --gpu B200 --driver 535",
            "compat --gpu H100 --driver 580 --kernel 6.8.0-45-generic --os ubuntu-24.04",
            "compat --gpu 10de:ffff --driver 580",
            "compat --gpu Voodoo",
            "compat --gpu H100 --driver 520.61.05",
            "compat --gpu p5.48xlarge --cuda cu128",
            "compat --driver 450.248.02 --kernel 6.8.0-45-generic",
            "compat --gpu B200",
            "compat --cudnn 9.5 --driver 470",
            "compat --cudnn 9.28 --gpu V100",
            "compat --os debian-12",
            "compat --gpu L4 --os ubunto-24.04",
            "compat --gpu L4 --os ubuntu-18.04",
            "compat --gpu L4 --os ubuntu",
            "compat --gpu L4 --driver 560 --os debian-12",
            "compat --gpu 1002:74a1",
            "plan --image --assume-gpu 1002:74a1",
        ],
    );
    session(
        "compat-json",
        &["compat --gpu L4 --cuda 12.8 --driver 580 --format json"],
    );
}

#[test]
fn facts_of_a_tree() {
    session(
        "facts",
        &[
            &format!("facts --root {BARE}"),
            "facts --root tests/hosts/debian-12-driver-535/root",
            "facts --root tests/hosts/ubuntu-24.04-h100x8/root",
        ],
    );
    session(
        "facts-json",
        &[&format!("facts --root {BARE} --format json")],
    );
}

#[test]
fn check_of_a_tree() {
    session(
        "check",
        &[
            &format!("check --root {BARE} --skip preflight"),
            &format!("check --root {BARE} --only pci"),
            &format!("check --root {BARE} --skip preflight -v"),
            "check --root tests/hosts/debian-12-driver-535/root --skip preflight --set \
             driver.source=distribution --set \
             repositories.debian-non-free.url=http://debian.example.org/debian",
        ],
    );
    session(
        "check-json",
        &[&format!(
            "check --root {BARE} --only pci,driver --format json"
        )],
    );
}

#[test]
fn check_supports_formats_of_other_programs() {
    let check = |rest: &str| format!("check --root {BARE} --only pci,driver.module {rest}");
    let lines = [
        "--format junit",
        "--format tap",
        "--format nagios",
        "--format npd",
        "--format prometheus",
        "--format markdown",
        "--format html",
        "--format npd --ignore pci",
        "--format npd --ignore pci --strict",
        "--format nagios --config tests/cli/files/unknown-key.toml",
        "--format npd --config tests/cli/files/unknown-key.toml",
        "--format tap --only pci --fail-on warn",
    ];
    session(
        "check-formats",
        &lines.map(check).each_ref().map(String::as_str),
    );
}

/// The outputs are from public issues: GPU-Passthrough-Arch-Linux-to-Windows10#6, StackHPC's vGPU
/// documentation. `lspci-nnk-no-driver.txt` was written for this test.
#[test]
fn lspci_output_replaces_a_machine() {
    let of = |rest: &str, file: &str| format!("{rest} --lspci tests/cli/files/{file}");
    session(
        "lspci",
        &[
            &of("facts", "lspci-nnk-laptop.txt"),
            &of("facts", "lspci-nn-h100.txt"),
            &of("facts", "lspci-n-desktop.txt"),
            &of("check --only pci", "lspci-nnk-laptop.txt"),
            &of("check --only pci", "lspci-nnk-no-driver.txt"),
            &of("check", "lspci-n-desktop.txt"),
            &of("compat", "lspci-nn-h100.txt"),
            &of("compat --driver 470", "lspci-n-desktop.txt"),
            &of("facts", "lspci-plain.txt"),
            &of("compat", "no-toml.toml"),
            &of("check", "absent.txt"),
            &of("check --root /", "lspci-nn-h100.txt"),
        ],
    );
}

#[test]
fn invalid_configuration() {
    let look = |rest: &str| format!("check --root {BARE} --skip preflight {rest}");
    for file in ["unknown-key.toml", "wrong-type.toml", "no-toml.toml"] {
        assert!(
            Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("tests/cli/files")
                .join(file)
                .exists()
        );
    }
    session(
        "config-errors",
        &[
            &look("--config tests/cli/files/unknown-key.toml"),
            &look("--config tests/cli/files/wrong-type.toml"),
            &look("--config tests/cli/files/no-toml.toml"),
            &look("--config tests/cli/files/absent.toml"),
            &look("--set driver.brnch=580"),
            &look("--set driver.branch=new"),
            &look("--set driver.branch"),
            &look("--set driver.branch=390"),
            &look("--profile debain"),
            &look("--profile ubuntu"),
        ],
    );
}

/// Settings are resolved without their machine.
#[test]
fn settings_for_a_described_machine() {
    let of = |rest: &str, file: &str| format!("plan {rest} --config tests/cli/files/{file}");
    session(
        "trial",
        &[
            &of("--os ubuntu-24.04 --gpu p5.48xlarge", "trial.toml"),
            &of("--os ubuntu-24.04 --gpu H100", "many-errors.toml"),
            &of("--os ubuntu-24.04 --gpu L4", "unknown-key.toml"),
            "plan --os ubuntu-24.04 --gpu L4 --kernel 6.8.0-1060-aws --set driver.branch=595",
            "plan --os almalinux-9.6 --gpu GB200 --arch aarch64",
            "plan --os amzn-2023 --gpu p4d.24xlarge --set runtime.use=[] --set cluster.join=eks",
            "plan --os debian-12 --gpu V100 --set driver.branch=595",
            "plan --os debian-12 --gpu RTX",
            "plan --os debian-12",
            "plan --os debian-12 --set gpu=optional",
            "plan --os debian-11 --gpu L4",
            "plan --os ubuntu-24.04 --gpu Standard_NV36ads_A10_v5",
            "plan --os ubuntu-24.04 --gpu p5.48xlarge --arch aarch64",
            "plan --gpu L4",
        ],
    );
    session(
        "trial-json",
        &[&format!(
            "{} --format json",
            of("--os ubuntu-24.04 --gpu p5.48xlarge", "trial.toml")
        )],
    );
}

/// The steps of `install` reject the same layouts and limits.
#[test]
fn layouts_and_limits_of_a_described_machine() {
    for (options, parts) in [
        (
            "--gpu p5.48xlarge --set mig.layout=all-4g.80gb",
            ["has no profile `4g.80gb`", "`1g.10gb*7`", "--- exit 5"],
        ),
        (
            "--gpu L4 --set mig.layout=all-balanced",
            [
                "no GPU supports MIG",
                "remove the `mig` settings",
                "--- exit 5",
            ],
        ),
        (
            "--gpu V100 --set sharing.method=mps --set sharing.replicas=17",
            [
                "MPS supports 16 programs on",
                "sharing.replicas = 16",
                "--- exit 5",
            ],
        ),
        // The profiles of one of the models are not in the table.
        (
            "--gpu 8xH100 --set mig.layout=all-4g.40gb",
            ["MIG layout 4g.40gb", "MIG layout unknown", "--- exit 2"],
        ),
        (
            "--gpu p5.48xlarge --set mig.layout=all-balanced",
            [
                "\nmig ",
                "3g.40gb,2g.20gb,1g.10gb*2 on each GPU",
                "--- exit 0",
            ],
        ),
        (
            "--gpu 10de:2bb1 --set mig.layout=all-balanced",
            [
                "\nunknown ",
                "mig-layout: only the driver reports",
                "--- exit 0",
            ],
        ),
        (
            "--gpu L4 --set sharing.method=mps --set sharing.replicas=4",
            [
                "\nsharing ",
                "mps, 4 replicas of each nvidia.com/gpu",
                "--- exit 0",
            ],
        ),
    ] {
        let said = run(&format!("plan --os ubuntu-24.04 {options}"));
        for part in parts {
            assert!(said.contains(part), "{part}: {said}");
        }
    }
}

/// Missing values are listed and invalid values rejected before any output.
#[test]
fn invalid_user_data_values() {
    session(
        "user-data",
        &[
            "user-data kubeadm --set cluster.server=https://10.0.0.1:6443 --set cluster.versoin=1.36",
            "user-data kubeadm --set cluster.server=https://10.0.0.1:6443 --set cluster.version=1.30",
            "user-data k3s --set cluster.join=rke2 --set cluster.server=https://10.0.0.1:6443",
            "user-data bare --value sha=0000",
            "user-data bare --value sha256=0000",
            "user-data bare --value address=ftp://example.org/x",
            "user-data bare --value address=https://example.org/';reboot;'",
            "user-data bare --token-file tests/cli/files/trial.toml",
            "user-data kubeadm --token-file tests/cli/files/trial.toml",
            "user-data kubeadm --token-file tests/cli/files/absent",
            "user-data kubeadm --token-file tests/cli/files/token-of-servers",
            "user-data k3s --token-file tests/cli/files/token-of-servers",
            "user-data k3s --token-file tests/cli/files/short-token",
            "user-data k3s --token-file tests/cli/files/token-of-servers --set cluster.join=rke2 --set cluster.server=https://10.0.0.1:9345",
            "user-data eks --value endpoint=nonsense --value ca=abc --value cidr=10.100 --value address=https://x/y.tar.gz",
            "user-data eks-karpenter",
            "user-data eks-karpenter --value kubernetes=1.36.4 --value arch=aarch64",
            "user-data eks-karpenter --set cluster.version=1.36 --value family=g5g --value arch=x86_64",
            "user-data eks-karpenter --value family=m5",
            "user-data node-pool --value registry=registry.example.com",
            "user-data node-pool --provider aks --value registry=https://registry.example.com --value digest=sha256:0000",
            "user-data node-pool --provider gke --value registry=registry.example.com//tools",
            "user-data node-pool --provider gke --value registry=registry.example.com/tools/",
            "user-data bare --provider gke",
            "user-data test-pod --set driver.branch=580",
            "user-data bare --set driver.branch=581",
            "user-data bare --os debian-12 --set driver.version=580.65.06",
            "user-data kubeadm --config tests/cli/files/trial.toml",
            "user-data bare --os fedora-42",
            "user-data aks-flex --value kubernetes=1.36 --value dns=coredns --value server=https://x:443",
            "user-data bare --set packages.proxy=http://joe:s3cret@proxy:3128",
            "user-data bare --set cluster.token=/etc/gpu-bootstrap/join-token",
            "user-data bare --set cluster.join=kubeadm",
            "user-data eks --set runtime.use=[\"containerd\"]",
            "user-data bare --os ubuntu-18.04",
            "user-data nomad",
        ],
    );
}

/// The result of `complete` in a real bash for each command line, whose last word is incomplete.
fn completed_by_bash(lines: &[&str]) -> Vec<Vec<String>> {
    let script = run("completions bash");
    let (_, script) = script.split_once('\n').expect("the command line");
    let (script, _) = script.rsplit_once("--- exit 0").expect("a script");
    let mut text = script.to_owned();
    for line in lines {
        let words: Vec<&str> = line.split(' ').collect();
        let [.., previous, current] = words[..] else {
            panic!("{line}: no incomplete word");
        };
        text += &format!(
            "COMP_WORDS=({}) COMP_CWORD={}\n_gpu__bootstrap gpu-bootstrap '{current}' '{previous}'\necho \"${{COMPREPLY[*]}}\"\n",
            words.join(" "),
            words.len() - 1
        );
    }
    let output = Command::new("bash")
        .args(["--norc", "-s"])
        .write_stdin(text)
        .output()
        .expect("bash, which this test needs");
    let said = String::from_utf8(output.stdout).expect("text");
    let talk = String::from_utf8_lossy(&output.stderr);
    assert_eq!(said.lines().count(), lines.len(), "{talk}");
    let words = |line: &str| line.split(' ').map(str::to_owned).collect();
    said.lines().map(words).collect()
}

/// Each visible command with its parents, such as `gpu-bootstrap modules list`.
fn visible_commands(command: &clap::Command, parents: &str) -> Vec<String> {
    let name = format!("{parents}{}", command.get_name());
    let shown = (command.get_subcommands()).filter(|one| !one.is_hide_set());
    let below = shown.flat_map(|one| visible_commands(one, &format!("{name} ")));
    [name.clone()].into_iter().chain(below).collect()
}

#[test]
fn bash_completes_after_each_command() {
    let program = gpu_bootstrap::cli::args::Cli::command();
    let commands = visible_commands(&program, "");
    assert!(
        commands
            .iter()
            .any(|one| one == "gpu-bootstrap modules list")
    );
    let lines: Vec<String> = commands.iter().map(|one| format!("{one} --h")).collect();
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    for (line, found) in lines.iter().zip(completed_by_bash(&lines)) {
        assert_eq!(found, ["--help"], "{line}");
    }
    for (line, wanted) in [
        ("gpu-bootstrap plan --o", "--os"),
        ("gpu-bootstrap check --format n", "nagios npd"),
        (
            "gpu-bootstrap user-data e",
            "eks eks-node-group eks-karpenter eks-ubuntu",
        ),
        ("gpu-bootstrap modules ", "-h --help list export"),
    ] {
        assert_eq!(completed_by_bash(&[line])[0].join(" "), wanted, "{line}");
    }
}

/// Users do not call internal commands. DKMS and our units do.
#[test]
fn completions_omit_internal_commands() {
    for (shell, sign) in [
        ("bash", "complete -F"),
        ("zsh", "#compdef gpu-bootstrap"),
        ("fish", "complete -c gpu-bootstrap"),
    ] {
        let said = run(&format!("completions {shell}"));
        assert!(
            said.contains(sign) && said.ends_with("--- exit 0\n"),
            "{said}"
        );
        assert!(said.contains("lock-timeout"), "{said}");
        for internal in [
            "containerd-runtime",
            "nvml-view",
            "cuda-work",
            "container-probe",
            "fetch",
            "resume",
        ] {
            assert!(!said.contains(internal), "{shell}: {internal}");
        }
    }
}

#[test]
fn line_width_does_not_change_words() {
    let (narrow, wide) = (look_in_columns("80"), look_in_columns("120"));
    assert!(narrow.lines().count() > wide.lines().count());
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(words(&narrow), words(&wide));
    assert!(!wide.contains('\u{1b}'), "{wide}");
}

fn look_in_columns(columns: &str) -> String {
    let (text, _) = in_columns(columns, &format!("check -v --skip preflight --root {BARE}"));
    text
}

/// Standard output and standard error of a command line with this line width.
fn in_columns(columns: &str, line: &str) -> (String, String) {
    let output = Command::cargo_bin("gpu-bootstrap")
        .expect("the binary")
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env_clear()
        .env("COLUMNS", columns)
        .args(line.split(' '))
        .output()
        .expect("it runs");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (text(output.stdout), text(output.stderr))
}

/// Commands to copy, which are indented, and single words are not wrapped.
#[test]
fn all_output_fits_the_line_width() {
    let directory = tempfile::tempdir().expect("a directory");
    let manifests = directory.path().join("manifests");
    for line in [
        &*format!("check --skip preflight --root {BARE}"),
        &*format!(
            "check --skip preflight --root {BARE} --format markdown --output /nowhere/at/all"
        ),
        &*format!("facts --root {BARE}"),
        "plan --os ubuntu-24.04 --gpu p5.48xlarge",
        "plan --os ubuntu-24.04 --gpu L4 --set repositories.nvidia-cuda.url=https://mirror.example.com/cuda",
        "plan --os debian-12 --gpu RTX",
        "compat --gpu B200",
        "compat --gpu H100 --driver 520.61.05",
        "compat --gpu L4 --driver 560 --os debian-12",
        "explain",
        "explain driver.libraries",
        "explain driver.existing",
        "explain exit 5",
        "explain xid 79",
        "user-data eks",
        "user-data node-pool --provider gke --value registry=registry.example.com//tools",
        "install --lock-timeout soon",
        "install --assume-gpu 10de:2330",
        "status",
        "plan --help",
        "upgrade --lock-timeout soon",
        "upgrade --help",
        "lock --out",
        "lock --help",
        "bundle verify /nowhere/at/all/or/anywhere/else",
        "bundle --help",
        "report /nowhere/at/all/or/anywhere/else",
        "report --help",
        "modules export --to oci://registry.example.com/UPPER/case",
        "modules --help",
        &*format!(
            "manifests --os ubuntu-24.04 --gpu 8xH100 --set cluster.mig-strategy=mixed --out {}",
            manifests.display()
        ),
        "manifests --help",
        "uninstall --lock-timeout soon",
        "uninstall --help",
    ] {
        let (text, said) = in_columns("60", line);
        for line_of in text.lines().chain(said.lines()) {
            // A label may precede the word.
            let is_word = line_of.split_whitespace().count() <= 2;
            // Details are indented by more than commands, except for the examples in `--help`.
            let is_command = line_of.starts_with("    ") && !line_of.starts_with("     ");
            let is_narrow = line_of.chars().count() <= 60;
            assert!(is_narrow || is_word || is_command, "{line}: {line_of}");
        }
    }
}

/// The settings of the pages that start another program instead of joining a Kubernetes cluster.
#[test]
fn example_settings_are_valid() {
    let page = std::fs::read_to_string("docs/docker-nomad.md").expect("the page");
    let (_, nomad) = page.split_once("```toml\n").expect("settings");
    let (nomad, _) = nomad.split_once("```").expect("the end");
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("nomad.toml");
    std::fs::write(&path, nomad).expect("written");
    let nomad = path.to_str().expect("UTF-8");
    for (file, os, runtime) in [
        ("examples/slurm/config.toml", "ubuntu-24.04", None),
        (
            "examples/packer/config.toml",
            "ubuntu-24.04",
            Some("docker"),
        ),
        ("examples/offline/config.toml", "debian-12", Some("docker")),
        (
            "examples/fleet/60-fleet.toml",
            "ubuntu-24.04",
            Some("docker"),
        ),
        (nomad, "ubuntu-24.04", Some("docker")),
    ] {
        let said = run(&format!("plan --os {os} --gpu 8xH100 --config {file}"));
        assert!(said.ends_with("--- exit 0\n"), "{said}");
        let known = ["docker", "containerd", "podman"];
        let found: Vec<&str> = (said.lines())
            .filter_map(|line| line.split_whitespace().next())
            .filter(|word| known.contains(word))
            .collect();
        assert_eq!(found, Vec::from_iter(runtime), "{said}");
    }
}

/// Hints are copied into a shell.
#[test]
fn messages_mention_only_existing_options() {
    let program = gpu_bootstrap::cli::args::Cli::command();
    let spans =
        regex::Regex::new("`(?:gpu-bootstrap )?([a-z-]+) ([^`]*--[^`]*)`").expect("a pattern");
    let options = regex::Regex::new("(?:^| )--([a-z-]+)").expect("a pattern");
    let joined = regex::Regex::new("\\\\\n\\s*").expect("a pattern");
    let mut directories = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
    let mut found = 0;
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(&directory).expect("a directory") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                directories.push(path);
                continue;
            }
            let extension = path.extension().and_then(std::ffi::OsStr::to_str);
            if matches!(extension, Some("gz" | "xz" | "zst")) {
                continue;
            }
            let text = std::fs::read_to_string(&path).expect("text");
            let text = joined.replace_all(&text, "");
            for span in spans.captures_iter(&text) {
                let Some(command) = program.find_subcommand(&span[1]) else {
                    continue;
                };
                found += 1;
                for option in options.captures_iter(&span[2]) {
                    let below = command
                        .get_subcommands()
                        .flat_map(clap::Command::get_arguments);
                    let mut known = command
                        .get_arguments()
                        .chain(below)
                        .filter_map(clap::Arg::get_long);
                    let exists = known.any(|known| known == &option[1]);
                    assert!(exists, "{}: {}", path.display(), &span[0]);
                }
            }
        }
    }
    assert!(found > 20, "{found}");
}

/// An untrusted name must not clear the administrator's terminal when the document is printed.
#[test]
fn untrusted_control_characters_reach_no_document() {
    let tree = tempfile::tempdir().expect("a folder");
    let at = |name: &str| tree.path().join(name).display().to_string();
    std::fs::create_dir(at("etc")).expect("made");
    let hostile = "ID=debian\nVERSION_ID=\"12\u{1b}[2J\u{9b}31m\"\n";
    std::fs::write(at("etc/os-release"), hostile).expect("written");
    for format in ["human", "json"] {
        let (root, document) = (at(""), at(format));
        run(&format!(
            "check -v --root {root} --format {format} --output {document}"
        ));
        let text = std::fs::read_to_string(&document).expect("the document");
        assert!(text.contains("debian 12"), "{text}");
        let control = text.chars().find(|c| c.is_control() && *c != '\n');
        assert_eq!(control, None, "{format}: {text}");
    }
}

#[test]
fn non_utf_8_argument_is_a_usage_error() {
    use std::os::unix::ffi::OsStrExt;

    for line in [
        &[b"\xff" as &[u8]] as &[&[u8]],
        &[b"check", b"--config", b"/\xff"],
    ] {
        let output = Command::cargo_bin("gpu-bootstrap")
            .expect("the binary")
            .args(line.iter().map(|word| std::ffi::OsStr::from_bytes(word)))
            .output()
            .expect("it runs");
        let talk = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{talk}");
        assert!(talk.contains("error: "), "{talk}");
    }
}
