//! The forms of `cloud-init/`: each fits the size limits of its clouds, parses, and has settings that resolve to a desired
//! state. The scripts are executed with fake programs.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::{Command, Output},
    time::{Duration, Instant},
};

use gpu_bootstrap::{
    cli::forms::{self, Form, FormValue, GpuPods, ValueKind},
    config::desired::{ClusterSpec, JoinMethod},
    error::Report as _,
    joins::nodeadm,
    state::labels,
    tools::kubernetes::kubectl,
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;
use tempfile::TempDir;

use machine::{H100, Machine};

#[path = "config/machine.rs"]
#[expect(
    dead_code,
    reason = "the machines are shared with the resolution tests"
)]
mod machine;
#[path = "cloud_init/nodeadm.rs"]
mod real_nodeadm;

/// The smallest user data limit of the clouds: AWS accepts 16 KiB, Azure 64 KiB, Google Cloud 256 KiB.
const LARGEST: usize = 16 * 1024;

/// The Karpenter node classes, one of which has user data.
const KARPENTER: &str = "eks-karpenter/ec2nodeclass.yaml";

/// The script for images without cloud-init.
const STARTUP_SCRIPT: &str = "google/startup-script.sh";

fn text(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("cloud-init")
        .join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The forms with user data, which is a file or part of a manifest. The others are only manifests.
fn with_user_data() -> impl Iterator<Item = &'static Form> {
    forms::all().iter().filter(|form| {
        let text = user_data(&form.path);
        let starts = ["#cloud-config\n", "MIME-Version: ", "#!/bin/sh\n"];
        let has_user_data = starts.iter().any(|start| text.starts_with(start));
        assert!(
            has_user_data || text.contains("\napiVersion: "),
            "{}: unknown format",
            form.name
        );
        has_user_data
    })
}

/// The forms with user data for cloud-init.
fn for_cloud_init() -> impl Iterator<Item = &'static Form> {
    with_user_data().filter(|form| form.path != STARTUP_SCRIPT)
}

/// The user data of a file: the file itself, or the `userData` of a manifest.
fn user_data(path: &str) -> String {
    user_data_in(&text(path), path)
}

fn user_data_in(text: &str, path: &str) -> String {
    if !text.contains("\n  userData: |\n") {
        return text.to_owned();
    }
    let class = text.split("\n---\n").next().expect("a document");
    let class: Value = serde_saphyr::from_str(class).expect(path);
    let user_data = class["spec"]["userData"].as_str();
    user_data.expect("user data").to_owned()
}

/// Values for the `@…@` placeholders.
fn filled(text: &str) -> String {
    let mut filled = String::new();
    for (index, part) in text.split('@').enumerate() {
        if index % 2 == 0 {
            filled.push_str(part);
            continue;
        }
        filled.push_str(match part {
            "sha256:DIGEST" => {
                "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
            }
            "TOKEN" => "abcdef.0123456789abcdef",
            other => other,
        });
    }
    filled
}

/// The MIME parts or YAML documents of a file.
fn parts(path: &str) -> Vec<String> {
    parts_of(&filled(&user_data(path)))
}

fn parts_of(text: &str) -> Vec<String> {
    let parts: Vec<&str> = match text.starts_with("MIME-Version") {
        true => (text.split("\n--gpu-bootstrap").skip(1))
            .filter_map(|part| part.split_once("\n\n").map(|(_, body)| body))
            .collect(),
        false => text.split("\n---\n").collect(),
    };
    parts.into_iter().map(str::to_owned).collect()
}

/// The YAML parts of a file.
fn documents(path: &str) -> Vec<Value> {
    documents_of(&parts(path), path)
}

fn documents_of(parts: &[String], path: &str) -> Vec<Value> {
    (parts.iter())
        .filter(|part| !part.starts_with("#!"))
        .map(|part| {
            serde_saphyr::from_str(part).unwrap_or_else(|error| panic!("{path}: {error}\n{part}"))
        })
        .collect()
}

/// The machine of the case `eks-karpenter` gets the user data that Karpenter would generate from the class: its parts, then a
/// NodeConfig of Karpenter (aws/karpenter-provider-aws, commit 1d927085, `pkg/providers/amifamily/bootstrap/mime/mime.go`, and
/// `pkg/providers/launchtemplate/testdata/al2023_mime_userdata_merged.golden`).
#[test]
fn karpenter_case_user_data_matches_the_node_class() {
    let class = text(KARPENTER);
    let (_, user_data) = class.split_once("\n  userData: |\n").expect("user data");
    let (user_data, _) = user_data.split_once("\n---\n").expect("an end");
    let lines = user_data
        .lines()
        .map(|line| line.strip_prefix("    ").unwrap_or(line));
    let user_data = lines.collect::<Vec<_>>().join("\n");
    let (parts, _) = user_data.split_once("--gpu-bootstrap--").expect("an end");
    let parts = (parts.split("--gpu-bootstrap\n").skip(1))
        .map(|part| part.strip_suffix("\n").unwrap_or(part))
        .collect::<Vec<_>>();
    let begins = format!(
        "MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=\"//\"\n\n--//\n{}\n--//\n\
         Content-Type: application/node.eks.aws\n\n# Karpenter Generated NodeConfig\n",
        parts.join("\n--//\n")
    );
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vm/user-data/eks-karpenter.mime");
    let made = fs::read_to_string(path).expect("the user data of the case");
    assert!(made.starts_with(&begins), "{begins}");
    assert!(made.ends_with("\n--//--\n"));
}

/// The path and content of a file that user data writes.
fn written(path: &str) -> Vec<(String, Value)> {
    let mut files = Vec::new();
    for document in documents(path) {
        for file in document["write_files"].as_array().into_iter().flatten() {
            files.push((
                file["path"].as_str().expect("a path").to_owned(),
                file.clone(),
            ));
        }
    }
    files
}

/// The settings in a user data file, with values for the placeholders.
fn settings(path: &str) -> String {
    let form = forms::all().iter().find(|form| form.path == path);
    settings_in(form.expect(path), &filled(&text(path)))
}

/// The settings in a template, or in the output of a form.
fn settings_in(form: &Form, text: &str) -> String {
    let path = &form.path;
    if path == STARTUP_SCRIPT {
        let (_, rest) = text.split_once("<<'END'\n").expect("settings");
        let (settings, _) = rest.split_once("END\n").expect("their end");
        return settings.to_owned();
    }
    let parts = parts_of(&user_data_in(text, path));
    let name = form.settings_file.as_str();
    let files = documents_of(&parts, path).into_iter().flat_map(|document| {
        let files = document["write_files"].as_array().cloned();
        let is_own = |file: &Value| {
            let path = file["path"].as_str().expect("a path");
            path == format!("/etc/gpu-bootstrap/config.d/{name}")
        };
        (files.into_iter().flatten().filter(is_own))
            .map(|file| file["content"].clone())
            .chain([document["data"][name].clone()])
            .collect::<Vec<_>>()
    });
    let mut texts = files.filter_map(|content| content.as_str().map(str::to_owned));
    texts
        .next()
        .unwrap_or_else(|| panic!("{path} has no settings"))
}

/// Resolves the settings on a machine.
fn resolved(machine: Machine, settings: &str) -> Result<Option<ClusterSpec>, String> {
    let machine = machine.file("/etc/gpu-bootstrap/config.d/50-user-data.toml", settings);
    let resolution = machine.load();
    let resolution = resolution.map_err(|error| format!("{error}; {:?}", error.hint()))?;
    Ok(resolution.desired.cluster)
}

/// A machine with the operating system of a form.
fn machine_of(form: &Form) -> Machine {
    let os = form.os.as_deref().expect("an operating system");
    match os.split_once('-').expect("ID-VERSION") {
        // Releases of this system have a minor version.
        ("almalinux", major) => Machine::new("almalinux", &format!("{major}.6"), "x86_64", &[H100]),
        (id, version) => Machine::new(id, version, "x86_64", &[H100]),
    }
}

fn ubuntu() -> Machine {
    Machine::new("ubuntu", "24.04", "x86_64", &[H100])
}

/// The manifest object of this kind.
fn object(kind: &str) -> Value {
    (documents("daemonset/daemonset.yaml").into_iter())
        .find(|document| document["kind"] == kind)
        .unwrap_or_else(|| panic!("no {kind}"))
}

/// The pod of the manifest.
fn pod() -> Value {
    object("DaemonSet")["spec"]["template"]["spec"].clone()
}

/// The script of the pod.
fn script() -> String {
    let command = &pod()["containers"][0]["command"];
    assert_eq!(command[0], "/bin/sh");
    assert_eq!(command[1], "-c");
    command[2].as_str().expect("a script").to_owned()
}

/// A test directory with a directory for programs.
fn directory() -> TempDir {
    let directory = tempfile::tempdir().expect("a folder");
    fs::create_dir(directory.path().join("bin")).expect("a folder");
    directory
}

/// Adds a fake program that precedes the real one in `PATH`.
fn program(directory: &TempDir, name: &str, body: &str) {
    let path = directory.path().join("bin").join(name);
    fs::write(&path, format!("#!/bin/sh\n{body}\n")).expect("a program");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("its mode");
}

/// Runs a script with only these programs of the machine in `PATH`.
fn run_with(directory: &TempDir, script: &str, programs: &[&str]) {
    for name in programs {
        program(
            directory,
            name,
            &format!(r#"PATH=/usr/bin:/bin exec {name} "$@""#),
        );
    }
    let bin = directory.path().join("bin");
    Command::new("/bin/sh")
        .args(["-c", script])
        .env_clear()
        .env("PATH", bin)
        .env("T", directory.path())
        .output()
        .expect("a shell");
}

fn run(directory: &TempDir, script: &str, syntax_alone: bool) -> Output {
    let mut shell = shell(directory, script, syntax_alone);
    shell.output().expect("a shell")
}

/// The shell of a script.
fn shell(directory: &TempDir, script: &str, syntax_alone: bool) -> Command {
    let path = format!("{}/bin:/usr/bin:/bin", directory.path().display());
    let mut sh = Command::new("/bin/sh");
    if syntax_alone {
        sh.arg("-n");
    }
    sh.arg("-c")
        .arg(script)
        .env_clear()
        .env("PATH", path)
        .env("T", directory.path())
        .env("KUBERNETES_SERVICE_HOST", "fd00:10::1")
        .env("KUBERNETES_SERVICE_PORT", "443");
    sh
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned()
}

#[test]
fn user_data_fits_the_limits_of_the_clouds() {
    for form in with_user_data() {
        let size = user_data(&form.path).len();
        assert!(size <= LARGEST, "{} has {size} bytes", form.name);
    }
}

#[test]
fn secrets_are_readable_only_by_root() {
    let mut secrets = 0;
    for form in for_cloud_init() {
        for (name, file) in written(&form.path) {
            if !name.ends_with(".toml") {
                secrets += 1;
                let mode = file["permissions"].as_str();
                let is_private = matches!(mode, Some("0600" | "0700"));
                assert!(is_private, "{}: {name}", form.name);
            }
        }
    }
    assert!(secrets > 0);
}

/// The commands of `runcmd`: the download script, and the arguments of the start command.
fn commands(path: &str) -> (String, Vec<String>) {
    let documents = documents(path);
    let mut lists = documents.iter().filter_map(|one| one["runcmd"].as_array());
    let [download, start] = &lists.next().expect("commands")[..] else {
        panic!("{path} does not have exactly two commands");
    };
    let words = start.as_array().expect("words").iter();
    (
        download.as_str().expect("a script").to_owned(),
        words.filter_map(Value::as_str).map(str::to_owned).collect(),
    )
}

#[test]
fn all_files_download_and_start_the_program_alike() {
    let (download, start) = commands("bare/user-data.yaml");
    assert_eq!(
        start,
        ["/usr/local/bin/gpu-bootstrap", "install", "--unattended"]
    );
    // Only the settings may differ, and the time that an autoscaler waits.
    let with_deadline = [&start[..], &["--deadline".to_owned(), "10min".to_owned()]].concat();
    for form in for_cloud_init() {
        let start = match settings(&form.path).contains("[cluster]\n") {
            true => &with_deadline,
            false => &start,
        };
        let expected = (download.clone(), start.clone());
        assert_eq!(commands(&form.path), expected, "{}", form.name);
    }
    let script = filled(&text(STARTUP_SCRIPT));
    assert!(script.contains(&download), "{script}");
    assert!(
        script.contains(&format!("\n{}\n", with_deadline.join(" "))),
        "{script}"
    );
}

/// User data runs as root, so an administrator must be able to review it: a download, settings and a command. Some clouds need
/// more lines, but no more than listed here.
#[test]
fn user_data_without_comments_fits_on_a_screen() {
    for form in with_user_data() {
        let most = match &*form.name {
            // The agent reads a separate file.
            "aks-flex" => 41,
            // MIME, because the part that holds the kubelet back runs at each boot, including before the program is installed.
            // Canonical's script joins with a command.
            "eks-ubuntu" => 51,
            // The same with a NodeConfig for nodeadm.
            "eks" | "eks-node-group" => 52,
            // The same without a NodeConfig, inside two Karpenter objects.
            "eks-karpenter" => 74,
            // A script that joins with a command.
            "slurm" => 40,
            _ => 25,
        };
        let lines = form.template.lines();
        let count = lines
            .filter(|line| !line.trim_start().starts_with('#'))
            .count();
        assert!(count <= most, "{} has {count} lines", form.name);
    }
}

/// Google's agent runs the script at each boot. The script does its work once per instance, and again if it was interrupted.
#[test]
fn startup_script_does_its_work_once_per_instance() {
    let directory = directory();
    let place = directory.path().display().to_string();
    let script = filled(&text(STARTUP_SCRIPT))
        .replace("SHA-256", "0000")
        .replace("/sys/class/dmi/id", &place)
        .replace("/var/lib/", &format!("{place}/"))
        .replace("/etc/gpu-bootstrap", &format!("{place}/etc"))
        .replace("/usr/local/bin", &format!("{place}/bin"));
    program(&directory, "curl", "exit 0");
    program(&directory, "sha256sum", "exit 0");
    program(
        &directory,
        "gpu-bootstrap.new",
        r#"echo "$*" >>"$T/calls"; exit "$(cat "$T/status")""#,
    );
    let downloaded = directory.path().join("bin/gpu-bootstrap.new");
    let again = fs::read(&downloaded).expect("the program");
    // It fails, succeeds, is not run again, and runs on a clone.
    for (instance, status, ran) in [("a", "6", 1), ("a", "0", 2), ("a", "0", 2), ("b", "0", 3)] {
        fs::write(directory.path().join("product_uuid"), instance).expect("written");
        fs::write(directory.path().join("status"), status).expect("written");
        fs::write(&downloaded, &again).expect("written");
        let output = run(&directory, &script, false);
        assert_eq!(
            output.status.code(),
            status.parse().ok(),
            "{}",
            said(&output)
        );
        let calls = fs::read_to_string(directory.path().join("calls")).expect("calls");
        assert_eq!(calls, "install --unattended --deadline 10min\n".repeat(ran));
    }
    let settings = directory.path().join("etc/config.d/50-user-data.toml");
    let written = fs::read_to_string(&settings).expect("settings");
    let alma = Machine::new("almalinux", "9.6", "x86_64", &[H100]);
    let written = written.replace(&format!("{place}/etc"), "/etc/gpu-bootstrap");
    let spec = resolved(alma, &written)
        .expect("settings")
        .expect("a cluster");
    assert_eq!(spec.method.name(), "kubeadm");
    for path in [settings, directory.path().join("etc/join-token")] {
        let mode = path.metadata().expect("a file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{path:?}");
    }
}

/// The script waits for the network, and installs only a download with the expected digest.
#[test]
fn downloads_are_retried_and_verified() {
    let wanted = "the program\n";
    for (content, has_curl, is_taken) in [
        (wanted, true, true),
        (wanted, false, true),
        ("another\n", true, false),
    ] {
        let directory = directory();
        let place = directory.path().join("place");
        fs::create_dir(&place).expect("a folder");
        program(&directory, "sleep", r#"echo "$*" >>"$T/pauses""#);
        fs::write(directory.path().join("content"), content).expect("written");
        // The host name is resolved at the third attempt.
        let downloads = r#"echo >>"$T/attempts"
            test "$(wc -l <"$T/attempts")" -ge 3 || exit 6
            cp "$T/content" "$T/place/gpu-bootstrap.new""#;
        // An older binary in the image must not be used instead.
        fs::write(place.join("gpu-bootstrap"), "old").expect("written");
        program(&directory, "timeout", r#"shift; exec "$@""#);
        match has_curl {
            true => program(&directory, "curl", downloads),
            false => program(&directory, "wget", downloads),
        }
        let digest = run(&directory, r#"printf 'the program\n' | sha256sum"#, false);
        let digest = said(&digest);
        let digest = digest.split_whitespace().next().expect("a digest");
        let (script, _) = commands("bare/user-data.yaml");
        let script = script
            .replace("/usr/local/bin", &place.display().to_string())
            .replace("SHA-256", digest);
        run_with(
            &directory,
            &script,
            &["sh", "wc", "cp", "sha256sum", "chmod", "mv", "rm"],
        );
        let pauses = fs::read_to_string(directory.path().join("pauses")).expect("pauses");
        assert_eq!(pauses, "10\n10\n");
        let names: Vec<String> = (fs::read_dir(&place).expect("a folder"))
            .map(|entry| {
                entry
                    .expect("a file")
                    .file_name()
                    .into_string()
                    .expect("a name")
            })
            .collect();
        match is_taken {
            true => {
                assert_eq!(names, ["gpu-bootstrap"]);
                let mode = place.join("gpu-bootstrap").metadata().expect("a mode");
                assert_eq!(mode.permissions().mode() & 0o777, 0o755);
            }
            false => assert!(names.is_empty(), "{names:?}"),
        }
    }
}

#[test]
fn settings_resolve_to_a_desired_state() {
    let check = |machine: Machine, form: &Form| {
        let path = &form.path;
        let settings = settings(path);
        let spec = resolved(machine, &settings).unwrap_or_else(|error| panic!("{path}: {error}"));
        let table: toml::Table = toml::from_str(&settings).expect(path);
        let join = table.get("cluster").map(|cluster| &cluster["join"]);
        let join = join.map(|join| join.as_str().expect("a join method"));
        assert_eq!(spec.as_ref().map(|spec| spec.method.name()), join, "{path}");
        // No startup taint unless it can be removed.
        let access = spec.and_then(|spec| spec.access);
        assert_eq!(
            access.is_some(),
            settings.contains("kubeconfig-file"),
            "{path}"
        );
    };
    for form in forms::all().iter().filter(|form| form.os.is_some()) {
        check(machine_of(form), form);
    }
    // Other systems that the documentation lists.
    check(Machine::debian(), form("bare"));
    check(Machine::debian(), form("kubeadm"));
    let alma = Machine::new("almalinux", "9.6", "x86_64", &[H100]);
    check(alma, form("kubeadm"));
    let managed = object("ConfigMap")["data"]["50-daemonset.toml"].clone();
    let spec = resolved(ubuntu(), managed.as_str().expect("settings"));
    let spec = spec.expect("settings").expect("a cluster");
    assert_eq!(spec.method.name(), "managed");
    assert_eq!(
        spec.access.as_deref().map(camino::Utf8Path::as_str),
        Some("/etc/gpu-bootstrap/cluster.kubeconfig")
    );
}

#[test]
fn aks_agent_file_is_json_for_the_command() {
    let (name, file) = (written("aks/user-data.yaml").into_iter())
        .find(|(name, _)| name.ends_with(".json"))
        .expect("the agent's file");
    let content = filled(file["content"].as_str().expect("a content"));
    let config: Value = serde_json::from_str(&content).expect("JSON");
    assert_eq!(
        config["node"]["taints"][0],
        "nvidia.com/gpu=present:NoSchedule"
    );
    let spec = resolved(ubuntu(), &settings("aks/user-data.yaml"));
    let Some(JoinMethod::Command { command, .. }) = spec.expect("settings").map(|it| it.method)
    else {
        panic!("the join method is not a command");
    };
    assert_eq!(command.last(), Some(&name));
}

/// The page for machines with a login uses the files of the example.
#[test]
fn slurm_files_are_those_of_the_example() {
    let path = "slurm/user-data.yaml";
    let (name, join) = (written(path).into_iter())
        .find(|(name, _)| !name.ends_with(".toml"))
        .expect("the join script");
    assert_eq!(
        join["content"].as_str(),
        Some(&*text("../examples/slurm/slurm-join"))
    );
    let table = |text: &str| toml::from_str::<toml::Table>(text).expect("settings");
    let settings = settings(path);
    assert_eq!(
        table(&settings),
        table(&text("../examples/slurm/config.toml"))
    );
    let spec = resolved(ubuntu(), &settings);
    let Some(JoinMethod::Command { command, .. }) = spec.expect("settings").map(|it| it.method)
    else {
        panic!("the join method is not a command");
    };
    assert_eq!(command, [name]);
}

/// Adds a `sinfo` with one line for each call. The last one is repeated.
fn sinfo(directory: &TempDir, lines: &str) {
    fs::write(directory.path().join("states"), lines).expect("written");
    let next = r#"head -n 1 "$T/states"
        test "$(wc -l <"$T/states")" = 1 || sed -i 1d "$T/states""#;
    program(directory, "sinfo", next);
}

/// Adds a reason to each state that is not empty.
fn with_reason(states: &str, reason: &str) -> String {
    let lines = states.lines().map(|state| match state {
        "" => "\n".to_owned(),
        state => format!("{state} {reason}\n"),
    });
    lines.collect()
}

/// An administrator may have drained the node for another reason before the upgrade.
#[test]
fn slurm_node_drained_by_others_stays_drained() {
    let [leave, back] =
        ["leave", "return"].map(|name| text(&format!("../examples/slurm/slurm-{name}")));
    let drain = "update NodeName=gpu-1 State=DRAIN Reason=gpu-bootstrap upgrade\n";
    let keep = "update NodeName=gpu-1 State=DRAIN Reason=disk failure\n";
    let resume = "update NodeName=gpu-1 State=RESUME\n";
    for (script, lines, expected) in [
        (&leave, "idle none\n", drain),
        (&leave, "mixed none\n", drain),
        (&leave, "drained disk failure\n", ""),
        (&leave, "down disk failure\n", keep),
        (&leave, "down* disk failure\n", keep),
        (&leave, "down* Not responding\n", drain),
        (&leave, "down none\n", drain),
        (&back, "drained* disk failure\ndrained disk failure\n", ""),
        (&back, "down disk failure\n", ""),
        (&back, "drained gpu-bootstrap upgrade\nidle none\n", resume),
        (
            &back,
            "down Node unexpectedly rebooted\nidle none\n",
            resume,
        ),
    ] {
        let directory = directory();
        program(&directory, "hostname", "echo gpu-1");
        program(&directory, "sleep", "exit 0");
        program(&directory, "squeue", "exit 0");
        program(&directory, "systemctl", "exit 0");
        program(&directory, "scontrol", r#"echo "$*" >>"$T/calls""#);
        sinfo(&directory, lines);
        let output = run(&directory, script, false);
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        let calls = fs::read_to_string(directory.path().join("calls")).unwrap_or_default();
        assert_eq!(calls, expected, "{lines}");
    }
}

/// slurmctld 22.05.8 rejects RESUME for a node that has not registered yet, and for an idle one. slurmd is enabled only on a node in
/// service, because an enabled slurmd prevents another join.
#[test]
fn slurm_node_is_resumed_until_it_is_in_service() {
    let cases = [
        ("\nunknown\ndrained\ndrained\nidle\n", 2, 0),
        ("down*\ndown\ndraining\nreserved\n", 2, 0),
        ("idle*\nmixed-\n", 0, 0),
        ("drained\n", 12, 1),
        ("drained*\n", 0, 1),
        ("inval\n", 0, 1),
        ("fail\n", 0, 1),
        ("inval\nplanned\n", 0, 0),
    ];
    let scripts = ["slurm-join", "slurm-return"];
    let rows = (scripts.iter()).flat_map(|name| cases.map(|case| (name, case)));
    for (name, (states, resumed, status)) in rows {
        let script = text(&format!("../examples/slurm/{name}"));
        let directory = directory();
        program(&directory, "hostname", "echo gpu-1");
        let not_failed = r#"echo "$*" >>"$T/units"; test "$1" != is-failed"#;
        program(&directory, "systemctl", not_failed);
        program(&directory, "sleep", "exit 0");
        let states = match *name {
            "slurm-return" => with_reason(states, "gpu-bootstrap upgrade"),
            _ => states.to_owned(),
        };
        sinfo(&directory, &states);
        let first_fails = r#"echo "$*" >>"$T/calls"; test "$(wc -l <"$T/calls")" != 1"#;
        program(&directory, "scontrol", first_fails);
        let output = run(&directory, &script, false);
        assert_eq!(output.status.code(), Some(status), "{}", said(&output));
        let calls = fs::read_to_string(directory.path().join("calls")).unwrap_or_default();
        let expected = "update NodeName=gpu-1 State=RESUME\n".repeat(resumed);
        assert_eq!(calls, expected, "{name} {states}");
        let units = fs::read_to_string(directory.path().join("units")).expect("calls");
        let is_enabled = units.contains("enable slurmd.service\n");
        assert_eq!(is_enabled, *name == "slurm-join" && status == 0, "{units}");
    }
}

#[test]
fn slurm_node_does_not_join_without_its_daemon() {
    let directory = directory();
    program(&directory, "hostname", "echo gpu-1");
    program(&directory, "systemctl", r#"echo "$*" >>"$T/units""#);
    program(&directory, "sleep", "exit 0");
    program(&directory, "scontrol", "exit 0");
    sinfo(&directory, "idle\n");
    let script = text("../examples/slurm/slurm-join");
    let output = run(&directory, &script, false);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    let units = fs::read_to_string(directory.path().join("units")).expect("calls");
    let expected = "start slurmd.service\nis-failed --quiet slurmd.service\nstop slurmd.service\n";
    assert_eq!(units, expected);
}

#[test]
fn slurm_node_with_unknown_jobs_is_not_drained() {
    let script = text("../examples/slurm/slurm-leave");
    for (squeue, status) in [("exit 1", 1), ("exit 0", 0)] {
        let directory = directory();
        program(&directory, "hostname", "echo gpu-1");
        program(&directory, "sinfo", "echo idle");
        program(&directory, "scontrol", "exit 0");
        program(&directory, "squeue", squeue);
        let output = run(&directory, &script, false);
        assert_eq!(output.status.code(), Some(status), "{}", said(&output));
    }
}

#[test]
fn all_settings_of_the_kubeadm_file_are_required() {
    let settings = settings("kubeadm/user-data.yaml");
    for key in ["version", "server", "token", "ca-cert-hashes"] {
        let less: Vec<&str> = (settings.lines())
            .filter(|line| !line.starts_with(key))
            .collect();
        assert_eq!(less.len() + 1, settings.lines().count(), "{key}");
        let refused = resolved(Machine::debian(), &less.join("\n")).expect_err(key);
        assert!(refused.contains(key), "{key}: {refused}");
    }
}

#[test]
fn scripts_have_no_syntax_errors() {
    let directory = directory();
    let mut scripts = vec![script()];
    for form in with_user_data() {
        let parts = parts(&form.path).into_iter();
        scripts.extend(parts.filter(|part| part.starts_with("#!/bin/sh\n")));
    }
    assert!(scripts.len() > 4);
    for script in scripts {
        let output = run(&directory, &script, true);
        assert!(output.status.success(), "{}", said(&output));
    }
}

#[test]
fn eks_boothook_holds_nodeadm_back() {
    let directory = directory();
    program(&directory, "systemctl", r#"echo "$*" >>"$T/calls""#);
    let hooks = parts("eks/user-data.mime");
    let hook = (hooks.iter())
        .find(|part| part.starts_with("#!"))
        .expect("a boothook");
    let run_directory = directory.path().join("run").display().to_string();
    let hook = hook.replace("/run/systemd", &format!("{run_directory}/systemd"));
    let may_join = directory.path().join("may-join");
    let hook = hook.replace(nodeadm::MAY_JOIN, &may_join.display().to_string());
    let instance = directory.path().join("instance-id");
    fs::write(&instance, "i-2\n").expect("written");
    let hook = hook.replace(nodeadm::INSTANCE_ID, &instance.display().to_string());
    // It runs at each boot.
    for instance in ["i-1", "i-2"] {
        fs::write(&may_join, format!("{instance}\n")).expect("written");
        let output = run(&directory, &hook, false);
        assert!(output.status.success(), "{}", said(&output));
        assert_eq!(may_join.exists(), instance == "i-2", "{instance}");
    }
    let condition = format!(
        "run/systemd/system/{}.d/50-gpu-bootstrap.conf",
        nodeadm::RUN_UNIT
    );
    assert_eq!(
        fs::read_to_string(directory.path().join(condition)).expect("a condition"),
        format!("[Unit]\nConditionPathExists={}\n", may_join.display())
    );
    assert_eq!(
        fs::read_to_string(directory.path().join("calls")).expect("calls"),
        "daemon-reload\ndaemon-reload\n"
    );
}

/// Canonical's image has no nodeadm. Its script joins after the machine is validated, and its kubelet is a snap.
#[test]
fn canonical_image_joins_with_its_script() {
    let path = "eks-ubuntu/user-data.mime";
    let directory = directory();
    let place = directory.path().display().to_string();
    program(&directory, "systemctl", r#"echo "$*" >>"$T/calls""#);
    let parts = parts(path);
    let hook = parts.iter().find(|part| part.starts_with("#!"));
    let hook = hook
        .expect("a boothook")
        .replace("/run/systemd", &format!("{place}/run"));
    let output = run(&directory, &hook, false);
    assert!(output.status.success(), "{}", said(&output));
    let drop_in = "run/system/snap.kubelet-eks.daemon.service.d/50-gpu-bootstrap.conf";
    let condition = fs::read_to_string(directory.path().join(drop_in)).expect("a condition");
    let may_join = "/var/lib/cloud/instance/gpu-bootstrap-may-join";
    assert_eq!(
        condition,
        format!("[Unit]\nConditionPathExists={may_join}\n")
    );

    let (program_path, join) = (written(path).into_iter())
        .find(|(name, _)| name.ends_with("eks-join"))
        .expect("the join script");
    let Some(JoinMethod::Command {
        command,
        joined_file,
        ..
    }) = resolved(ubuntu(), &settings(path))
        .expect("settings")
        .map(|it| it.method)
    else {
        panic!("the join method is not a command");
    };
    assert_eq!(command, [program_path]);
    let join = join["content"].as_str().expect("a script");
    let join = join
        .replace("/var/lib/cloud/instance", &place)
        .replace("/etc/eks/bootstrap.sh", "bootstrap");
    let joined = directory
        .path()
        .join(joined_file.file_name().expect("a name"));
    for (status, has_joined) in [(1, false), (0, true)] {
        let body = format!(
            "test -e {place}/gpu-bootstrap-may-join || exit 9\necho \"$*\" >\"$T/args\"; exit {status}"
        );
        program(&directory, "bootstrap", &body);
        let output = run(&directory, &join, false);
        assert_eq!(output.status.code(), Some(status), "{}", said(&output));
        assert_eq!(joined.exists(), has_joined);
        assert_eq!(
            directory.path().join("gpu-bootstrap-may-join").exists(),
            has_joined
        );
    }
    let args = fs::read_to_string(directory.path().join("args")).expect("arguments");
    assert!(
        args.contains("--register-with-taints=nvidia.com/gpu=present:NoSchedule"),
        "{args}"
    );
}

/// The documentation lists which images read user data, which pools allow the pod, and which components install the runtime
/// class (k3s-io/docs, advanced.md).
#[test]
fn documents_state_provider_and_agent_limits() {
    let manifest = text("daemonset/daemonset.yaml");
    for (document, needed) in [
        (
            "docs/cloud-init.md",
            "On Google Cloud only Ubuntu's images have cloud-init",
        ),
        ("docs/cloud-init.md", "`daemonset`; not Autopilot"),
        ("docs/cloud-init.md", "`daemonset`; not AKS Automatic"),
        (
            "docs/cloud-init.md",
            "create the runtime class (k3s, RKE2 and the GPU Operator create it)",
        ),
    ] {
        let all = text(&format!("../{document}"));
        assert!(all.contains(needed), "{document}: {needed}");
    }
    for needed in [
        "AKS Automatic does not allow privileged pods",
        "Autopilot does not allow privileged pods",
        "Managed node groups do not support Ubuntu",
    ] {
        assert!(manifest.contains(needed), "{needed}");
    }
}

/// AKS node pool taints cannot be removed, and the device plugin of GKE would compete with the one from NVIDIA. Applied
/// manifests have an image.
#[test]
fn node_pool_commands_have_the_required_options() {
    let manifest = text("daemonset/daemonset.yaml");
    let docs = text("../docs/node-pools.md");
    let taint =
        "startup-taint.cluster-autoscaler.kubernetes.io/gpu-bootstrap=validating:NoSchedule";
    for needed in [
        &format!("--node-taints={taint}"),
        "--gpu-driver none",
        "gke-no-default-nvidia-gpu-device-plugin=true",
        "gpu-driver-version=disabled",
    ] {
        assert!(manifest.contains(needed), "{needed}");
        assert!(docs.contains(needed), "the documentation: {needed}");
    }
    assert!(manifest.contains("RTX PRO 6000 require the GRID driver"));
    assert!(docs.contains("RTX PRO 6000 need the GRID driver"));
    for (provider, pool) in [
        ("aks", "az aks nodepool add"),
        ("gke", "gcloud container node-pools create"),
    ] {
        let (_, commands) = docs.split_once(pool).expect("the command of the pool");
        let (commands, _) = commands.split_once("```").expect("the end of the commands");
        let last = commands.lines().last().expect("a command");
        let (program, kubectl) = last.split_once(" | ").expect(last);
        assert_eq!(kubectl, "kubectl apply -f -");
        let words: Vec<&str> = program.split(' ').collect();
        assert_eq!(
            words[..5],
            [
                "gpu-bootstrap",
                "user-data",
                "node-pool",
                "--provider",
                provider
            ]
        );
        let filled = program
            .replace("=REGISTRY", "=registry.example.com/tools")
            .replace("=DIGEST", &format!("=sha256:{DIGEST}"));
        let options: Vec<&str> = filled.split(' ').skip(3).collect();
        let (printed, _) = printed("node-pool", &options);
        let image = format!("\"registry.example.com/tools/gpu-bootstrap@sha256:{DIGEST}\"");
        assert!(printed.contains(&image), "{provider}");
        assert!(printed.contains(pool), "{provider}");
        let other = match provider {
            "aks" => "gcloud container",
            _ => "az aks",
        };
        assert!(!printed.contains(other), "{provider}: {printed}");
    }
    // `az aks nodepool add` supports neither initialization taints nor taints that pods can remove.
    for (name, text) in [("manifest", &manifest), ("documentation", &docs)] {
        let (_, command) = text.split_once("az aks nodepool add").expect("a command");
        let ends = |line: &str| !line.ends_with('\\');
        let length = command.lines().position(ends).expect("the last line");
        let command: String = command.lines().take(length + 1).collect();
        assert!(!command.contains("taint"), "{name}: {command}");
    }
    assert!(!docs.contains("apply -f cloud-init/"));
}

/// On AKS no taint keeps pods away. Node Feature Discovery and the affinity of the chart ignore the validation, so a node
/// selector is added, which applies in addition to any affinity.
#[test]
fn device_plugin_waits_only_for_the_validation_label() {
    let values = "daemonset/device-plugin-values.yaml";
    let values_of = &documents(values)[0];
    let keys: Vec<&String> = values_of.as_object().expect("values").keys().collect();
    assert_eq!(keys, ["runtimeClassName", "nodeSelector"]);
    let selector = values_of["nodeSelector"].as_object().expect("labels");
    assert_eq!(selector.len(), 1);
    let set_by_run = labels::operator(true);
    for (key, value) in selector {
        let set = set_by_run.get(key).map(String::as_str);
        assert_eq!(set, value.as_str(), "{key}");
    }
    assert!(text("daemonset/daemonset.yaml").contains("device-plugin-values.yaml"));
    let docs = text("../docs/node-pools.md");
    let (_, command) = docs.split_once("helm upgrade").expect("the command");
    let (command, _) = command.split_once("```").expect("its end");
    let words = |text: &str| {
        text.replace("\\\n", " ")
            .replace('#', " ")
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ")
    };
    let command = format!("helm upgrade {}", words(command));
    for (key, value) in selector {
        let key = key.replace('.', "\\.");
        let value = value.as_str().expect("text");
        assert!(
            command.contains(&format!("'nodeSelector.{key}={value}'")),
            "{command}"
        );
    }
    // `user-data` prints the same command, and the values file a command that uses it.
    let (_, said) = printed("node-pool", &borrowed(&complete("node-pool")));
    assert!(said.contains(&format!("    {command}\n")), "{said}");
    let (common, _) = command.split_once(" --set ").expect("the values");
    let with_file = format!("{common} --values cloud-init/{values}");
    assert!(words(&text(values)).contains(&with_file), "{with_file}");
}

/// The pod requests a GPU, uses the DaemonSet image, and tolerates the startup taint.
#[test]
fn gpu_pod_matches_the_daemonset() {
    let gpu_pod = &documents("daemonset/gpu-pod.yaml")[0]["spec"];
    let container = &gpu_pod["containers"][0];
    assert_eq!(container["image"], pod()["containers"][0]["image"]);
    // The links in the image need this volume.
    let usr =
        serde_json::json!({"name": "host-usr", "hostPath": {"path": "/usr", "type": "Directory"}});
    let mount = serde_json::json!({"name": "host-usr", "mountPath": "/host/usr", "readOnly": true});
    for spec in [gpu_pod, &pod()] {
        assert_eq!(spec["volumes"][0], usr);
        assert_eq!(spec["containers"][0]["volumeMounts"][0], mount);
    }
    assert_eq!(
        container["command"],
        serde_json::json!(["/opt/gpu-bootstrap", "probe"])
    );
    assert_eq!(container["resources"]["limits"]["nvidia.com/gpu"], 1);
    let tolerated: Vec<&str> = (gpu_pod["tolerations"].as_array().expect("a list").iter())
        .filter_map(|toleration| toleration["key"].as_str())
        .collect();
    let startup = "startup-taint.cluster-autoscaler.kubernetes.io/gpu-bootstrap";
    assert_eq!(tolerated, ["nvidia.com/gpu", startup]);
}

#[test]
fn manifest_has_the_required_permissions() {
    let kinds: Vec<String> = (documents("daemonset/daemonset.yaml").iter())
        .map(|document| document["kind"].as_str().expect("a kind").to_owned())
        .collect();
    assert_eq!(
        kinds,
        [
            "Namespace",
            "ResourceQuota",
            "ServiceAccount",
            "ClusterRole",
            "ClusterRoleBinding",
            "ValidatingAdmissionPolicy",
            "ValidatingAdmissionPolicyBinding",
            "ConfigMap",
            "DaemonSet"
        ]
    );
    let pod = pod();
    assert_eq!(pod["hostPID"], true);
    assert_eq!(pod["containers"][0]["securityContext"]["privileged"], true);
    assert_eq!(
        pod["tolerations"],
        serde_json::json!([{"operator": "Exists"}])
    );
    // GKE admits the priority class only in namespaces with a quota for it.
    let scope = &object("ResourceQuota")["spec"]["scopeSelector"]["matchExpressions"][0];
    assert_eq!(scope["values"][0], pod["priorityClassName"]);
    // The nodes have kubectl: on AKS in `/usr/local/bin`, on GKE in `/home/kubernetes/bin`.
    for found in ["/usr/local/bin/kubectl", "/home/kubernetes/bin/kubectl"] {
        assert!(kubectl::PROGRAMS.iter().any(|one| one.program == found));
    }
    // The script copies the binary from its path in the image.
    assert!(text("../release/image.py").contains("\"opt/gpu-bootstrap\""));
    assert!(script().contains("install -m 0755 /opt/gpu-bootstrap $host/opt/gpu-bootstrap/bin/\n"));
}

/// Runs the pod script on a host that is a directory. First the resume unit is running, then another run gets the lock first,
/// and then the program exits with this status.
fn pod_on_host(status: u8) -> (TempDir, Output) {
    let directory = directory();
    let script = script_on_host(&directory, &format!("exit {status}"));
    let output = run(&directory, &script, false);
    (directory, output)
}

/// The pod script for such a host. The second run of the program executes this command.
fn script_on_host(directory: &TempDir, second_run: &str) -> String {
    for (path, content) in [
        ("account/token", "a.b.c"),
        ("account/ca.crt", "authority"),
        ("config/50-daemonset.toml", "[cluster]\n"),
        ("opt/gpu-bootstrap", "program"),
    ] {
        let path = directory.path().join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(path, content).expect("a file");
    }
    // The last wait of the script lasts until the token renewal loop ends, which is immediately in this test.
    program(directory, "sleep", "test \"$1\" != 600");
    program(
        directory,
        "nsenter",
        &format!(
            r#"while test "$1" != --; do shift; done
shift
case "$*" in
    "systemctl is-active"*)
        echo look >>"$T/calls"
        echo inactive
        if test -e "$T/looked"; then echo failed; exit 3; fi
        touch "$T/looked"
        echo activating ;;
    systemd-run*)
        echo run >>"$T/calls"
        if test -e "$T/busy"; then {second_run}; fi
        touch "$T/busy"
        exit 9 ;;
    *) echo "$*" >>"$T/calls" ;;
esac"#
        ),
    );
    let mut script = script();
    for (from, to) in [
        ("host=/proc/1/root\n", "host=$T/host\n"),
        (
            "account=/var/run/secrets/gpu-bootstrap\n",
            "account=$T/account\n",
        ),
        (" /opt/gpu-bootstrap ", " $T/opt/gpu-bootstrap "),
        (" /config/", " $T/config/"),
    ] {
        assert_eq!(script.matches(from).count(), 1, "{from}");
        script = script.replace(from, to);
    }
    fs::create_dir(directory.path().join("host")).expect("a host");
    script
}

/// The files in `/etc/gpu-bootstrap` on the host.
fn left_on_host(directory: &TempDir) -> Vec<String> {
    let left = fs::read_dir(directory.path().join("host/etc/gpu-bootstrap")).expect("a folder");
    let mut left: Vec<String> = left
        .map(|entry| {
            let name = entry.expect("an entry").file_name();
            name.into_string().expect("UTF-8")
        })
        .collect();
    left.sort_unstable();
    left
}

#[test]
fn pod_waits_for_other_runs_and_prepares_host() {
    // The machine reboots, and the run continues.
    let (directory, output) = pod_on_host(8);
    assert!(output.status.success(), "{}", said(&output));
    let reset = "systemctl --quiet is-failed gpu-bootstrap.service\n\
                 systemctl reset-failed gpu-bootstrap.service\n";
    assert_eq!(
        fs::read_to_string(directory.path().join("calls")).expect("calls"),
        format!("look\nlook\n{reset}run\nlook\n{reset}run\n")
    );
    let mode = |path: &str| {
        let path = directory.path().join("host").join(path);
        let metadata = fs::metadata(&path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
        metadata.permissions().mode() & 0o777
    };
    assert_eq!(mode("opt/gpu-bootstrap/bin/gpu-bootstrap"), 0o755);
    assert_eq!(mode("etc/gpu-bootstrap/config.d/50-daemonset.toml"), 0o600);
    assert_eq!(mode("etc/gpu-bootstrap/cluster.kubeconfig"), 0o600);
    let access = fs::read_to_string(
        directory
            .path()
            .join("host/etc/gpu-bootstrap/cluster.kubeconfig"),
    );
    let access: Value = serde_saphyr::from_str(&access.expect("access")).expect("YAML");
    let cluster = &access["clusters"][0]["cluster"];
    assert_eq!(cluster["server"], "https://[fd00:10::1]:443");
    assert_eq!(cluster["certificate-authority-data"], "YXV0aG9yaXR5");
    assert_eq!(access["users"][0]["user"]["token"], "a.b.c");
}

/// After exit status 8 the run continues at the next boot, perhaps before the next pod.
#[test]
fn token_is_kept_only_if_the_run_resumes() {
    for (status, pod, keeps) in [
        (0, 0, false),
        (5, 5, false),
        (6, 6, false),
        (7, 0, false),
        (8, 0, true),
    ] {
        let (directory, output) = pod_on_host(status);
        assert_eq!(
            output.status.code(),
            Some(pod),
            "{status}: {}",
            said(&output)
        );
        let access = left_on_host(&directory).contains(&"cluster.kubeconfig".to_owned());
        assert_eq!(access, keeps, "{status}");
    }
}

#[test]
fn signal_stops_the_pod_and_removes_the_token() {
    let directory = directory();
    let script = script_on_host(&directory, r#"touch "$T/runs"; exec /bin/sleep 30"#);
    let mut pod = shell(&directory, &script, false).spawn().expect("a shell");
    let deadline = Instant::now() + Duration::from_secs(20);
    while !directory.path().join("runs").exists() {
        assert!(
            Instant::now() < deadline,
            "the program was not started before the deadline"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(left_on_host(&directory), ["cluster.kubeconfig", "config.d"]);
    let pid = i32::try_from(pod.id()).expect("a process id");
    kill(Pid::from_raw(pid), Signal::SIGTERM).expect("a signal");
    let status = pod.wait().expect("the end of the pod");
    assert_eq!(status.code(), Some(143));
    assert!(Instant::now() < deadline, "the pod waited for the run");
    assert_eq!(left_on_host(&directory), ["config.d"]);
}

#[test]
fn service_account_changes_only_taints_of_its_node() {
    let policy = object("ValidatingAdmissionPolicy");
    let binding = object("ValidatingAdmissionPolicyBinding");
    assert_eq!(binding["spec"]["policyName"], policy["metadata"]["name"]);
    assert_eq!(
        binding["spec"]["validationActions"],
        serde_json::json!(["Deny"])
    );
    assert_eq!(policy["spec"]["failurePolicy"], "Fail");
    let rule = &policy["spec"]["matchConstraints"]["resourceRules"][0];
    assert_eq!(
        (&rule["resources"][0], &rule["operations"][0]),
        (&"nodes".into(), &"UPDATE".into())
    );
    // The policy covers all write permissions of the role.
    assert_eq!(
        object("ClusterRole")["rules"],
        serde_json::json!([{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "patch"]}])
    );
    let account = object("ServiceAccount");
    let user = format!(
        "'system:serviceaccount:{}:{}'",
        account["metadata"]["namespace"]
            .as_str()
            .expect("a namespace"),
        account["metadata"]["name"].as_str().expect("a name")
    );
    let evaluated = policy["spec"]["validations"]
        .as_array()
        .expect("expressions");
    let all: String = (evaluated.iter())
        .filter_map(|one| one["expression"].as_str())
        .collect();
    for part in [
        "== object.metadata.name",
        "object.metadata.?labels.orValue({}) == oldObject.metadata.?labels.orValue({})",
        "object.metadata.?annotations.orValue({}) == oldObject.metadata.?annotations.orValue({})",
        "object.spec.?unschedulable.orValue(false) == oldObject.spec.?unschedulable.orValue(false)",
    ] {
        assert!(all.contains(part), "{part}: {all}");
    }
    let who = policy["spec"]["matchConditions"][0]["expression"].as_str();
    assert_eq!(who, Some(&*format!("request.userInfo.username == {user}")));
    assert_eq!(pod()["serviceAccountName"], account["metadata"]["name"]);
}

#[test]
fn pod_logs_the_failures_of_a_run() {
    for status in [6, 7] {
        let (directory, _) = pod_on_host(status);
        let calls = fs::read_to_string(directory.path().join("calls")).expect("calls");
        assert!(calls.ends_with("--unit=gpu-bootstrap.service\n"), "{calls}");
    }
}

const DIGEST: &str = "00000000000000000000000000000000000000000000000000000000000000aa";

fn form(name: &str) -> &'static Form {
    forms::named(name).unwrap_or_else(|| panic!("no form {name}"))
}

/// A valid value that differs from the placeholder, unless the placeholder is valid only as it is.
fn sample(value: &FormValue) -> String {
    let text = match value.kind {
        ValueKind::Text => "some-text",
        ValueKind::Name => "prod",
        ValueKind::HttpsUrl => "https://example.org/gpu-bootstrap",
        ValueKind::Sha256 => DIGEST,
        ValueKind::Certificate => "LS0tLS1CRUdJTg==",
        ValueKind::Network => "10.101.0.0/16",
        ValueKind::Ip => "10.0.0.11",
        ValueKind::Host => "api.example.com",
        ValueKind::ImageName => "registry.example.com/tools",
        ValueKind::ObjectName => "nvidia",
        ValueKind::AgentVersion => "v1.35.2+k3s1",
        ValueKind::Version => return value.example().replace("1.36", "1.37"),
        ValueKind::Architecture | ValueKind::InstanceFamily => value.example(),
    };
    text.to_owned()
}

/// The settings of a template with placeholders, each with a valid value.
fn unset_settings(form: &Form) -> Vec<(String, String)> {
    fn unset(value: &toml::Value, key: &str, found: &mut Vec<(String, String)>) {
        match value {
            toml::Value::Table(table) => {
                for (name, value) in table {
                    unset(
                        value,
                        format!("{key}.{name}").trim_start_matches('.'),
                        found,
                    );
                }
            }
            toml::Value::Array(items) => items.iter().for_each(|item| unset(item, key, found)),
            toml::Value::String(text) if text.contains('@') => {
                let value = (text.replace('@', ""))
                    .replace("DIGEST", DIGEST)
                    .replace("1.36", "1.37")
                    .replace("10.0.0.1:", "10.0.0.9:");
                found.push((key.to_owned(), value));
            }
            _ => {}
        }
    }
    let mut found = Vec::new();
    if form.os.is_some() {
        let settings = settings_in(form, form.template);
        let settings: toml::Table = toml::from_str(&settings).expect(&form.name);
        unset(&toml::Value::Table(settings), "", &mut found);
    }
    found
}

/// The options that complete a template, each with its value.
fn complete(name: &str) -> Vec<String> {
    let form = form(name);
    let mut options = Vec::new();
    let mut add = |option: &str, value: String| options.extend([option.to_owned(), value]);
    if let Some(provider) = form.providers.first() {
        add("--provider", provider.name.clone());
    }
    for (key, value) in unset_settings(form) {
        add("--set", format!("{key}={value}"));
    }
    if form.template.contains("@TOKEN@") {
        add("--token-file", "TOKEN".to_owned());
    }
    let is_optional = |value: &FormValue| value.insert.is_some() || value.only_with.is_some();
    for value in form.values.iter().filter(|value| !is_optional(value)) {
        add("--value", format!("{}={}", value.name, sample(value)));
    }
    options
}

fn borrowed(options: &[String]) -> Vec<&str> {
    options.iter().map(String::as_str).collect()
}

/// Standard output and standard error of `user-data`, with the token in a file.
fn printed(form: &str, options: &[&str]) -> (String, String) {
    let (status, text, warnings) = user_data_of(form, options);
    assert_eq!(status, Some(0), "{form}: {warnings}");
    (text, warnings)
}

/// Runs `user-data`, and returns exit status, standard output and standard error.
fn user_data_of(form: &str, options: &[&str]) -> (Option<i32>, String, String) {
    let directory = directory();
    let token = directory.path().join("token");
    let hash = match form {
        "k3s" => format!("K10{}::", "0123456789abcdef".repeat(4)),
        _ => String::new(),
    };
    fs::write(&token, format!("{hash}abcdef.0123456789abcdef\n")).expect("written");
    let token = token.display().to_string();
    let options = options
        .iter()
        .map(|one| if *one == "TOKEN" { &*token } else { one });
    let output = assert_cmd::Command::cargo_bin("gpu-bootstrap")
        .expect("the binary")
        .env_clear()
        .args(["user-data", form])
        .args(options)
        .output()
        .expect("it runs");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (
        output.status.code(),
        text(output.stdout),
        text(output.stderr),
    )
}

/// A machine with an incomplete template would fail at its first boot, so it is not printed. The error contains all missing
/// options.
#[test]
fn template_is_printed_only_if_complete() {
    for form in forms::all() {
        let name = &*form.name;
        let all = complete(name);
        let all = borrowed(&all);
        // Without the provider, clap reports the error.
        let (given, missing) = all.split_at(match form.providers.is_empty() {
            true => 0,
            false => 2,
        });
        if missing.is_empty() {
            continue;
        }
        let (status, printed, said) = user_data_of(name, given);
        assert_eq!((status, &*printed), (Some(2), ""), "{name}: {said}");
        let count = format!("{} values are missing", missing.len() / 2);
        assert!(said.contains(&count), "{name}: {said}");
        for option in missing.chunks(2) {
            let own = option[1].split_once('=').map_or("FILE", |(own, _)| own);
            let option = format!("{} {own}", option[0]);
            assert!(said.contains(&option), "{name}, {option}: {said}");
        }
        let (status, printed, said) = user_data_of(name, &all[..all.len() - 2]);
        assert_eq!((status, &*printed), (Some(2), ""), "{name}");
        assert!(said.contains("1 value is missing"), "{name}: {said}");
    }
}

/// Values are inserted into scripts that run as root.
#[test]
fn values_with_shell_syntax_are_rejected() {
    for form in forms::all() {
        let mut options = Vec::new();
        for provider in form.providers.iter().take(1) {
            options.extend(["--provider".to_owned(), provider.name.clone()]);
        }
        for value in &form.values {
            options.extend(["--value".to_owned(), format!("{}=$(reboot)", value.name)]);
        }
        let (status, printed, said) = user_data_of(&form.name, &borrowed(&options));
        assert_eq!((status, &*printed), (Some(2), ""), "{}: {said}", form.name);
        for value in &form.values {
            let refused = format!("read `--value {}`: invalid value `$(reboot)`", value.name);
            assert!(said.contains(&refused), "{}: {said}", form.name);
        }
    }
}

/// Karpenter and AKS Flex Node have the version as a value, with two and with three numbers.
#[test]
fn cluster_version_is_a_value_of_templates_without_the_setting() {
    for (form, line) in [
        ("eks-karpenter", "optimized-ami/1.37/amazon-linux-2023/"),
        ("aks-flex", "\"components\": {\"kubernetes\": \"1.37.2\"}"),
    ] {
        let all = complete(form);
        let mut options = borrowed(&all);
        let at = options
            .iter()
            .position(|one| one.starts_with("kubernetes="));
        let at = at.expect("the version");
        options.splice(at - 1..=at, ["--set", "cluster.version=1.37.2"]);
        let (printed, _) = printed(form, &options);
        assert!(printed.contains(line), "{form}: {printed}");
        assert!(!printed.contains("version = \"1.37"), "{form}: {printed}");
    }
    let (status, _, said) = user_data_of("aks-flex", &["--set", "cluster.version=1.37"]);
    assert_eq!(status, Some(2), "{said}");
    assert!(said.contains("not a version with three numbers"), "{said}");
}

/// The settings of a file are in the user data, except those that `--set` overrides. Secrets are allowed in a file.
#[test]
fn settings_of_a_file_are_in_the_user_data() {
    let directory = directory();
    let path = directory.path().join("site.toml");
    let settings = "[cluster]\nversion = \"1.36\"\nlabels = [\"team=a\"]\n[packages]\nproxy = \"http://joe:s3cret@proxy:3128\"\n";
    fs::write(&path, settings).expect("written");
    let path = path.display().to_string();
    let (printed, said) = printed(
        "kubeadm",
        &[&borrowed(&complete("kubeadm"))[..], &["--config", &path]].concat(),
    );
    for line in [
        "version = \"1.37\"",
        "labels = [\"team=a\"]",
        "[packages]",
        "proxy = \"http://joe:s3cret@proxy:3128\"",
    ] {
        assert!(
            printed.contains(&format!("      {line}\n")),
            "{line}: {printed}"
        );
    }
    assert!(!said.contains("s3cret"), "{said}");
    fs::write(&path, "[cluster]\nversoin = \"1.36\"\n").expect("written");
    let (status, _, said) = user_data_of("kubeadm", &["--config", &path]);
    assert_eq!(status, Some(3), "{said}");
    assert!(said.contains("site.toml:2:1: unknown key"), "{said}");
}

/// Google Cloud images without cloud-init are also used outside a cluster.
#[test]
fn user_data_without_a_cluster_has_no_cluster_settings() {
    let form = form("google");
    let digest = format!("sha256={DIGEST}");
    let (text, said) = printed(
        &form.name,
        &[
            "--set",
            "cluster.join=none",
            "--set",
            "runtime.use=[\"docker\"]",
            "--value",
            "address=https://files.example.com/gpu-bootstrap",
            "--value",
            &digest,
        ],
    );
    let settings = settings_in(form, &text);
    assert!(!settings.contains("version"), "{settings}");
    let cluster = resolved(machine_of(form), &settings).expect("settings");
    assert!(cluster.is_none(), "{settings}");
    assert!(!text.contains("join-token"), "{text}");
    assert!(!said.contains("kubectl"), "{said}");
}

/// A trailing slash must not lead to an image name with a double slash.
#[test]
fn a_registry_may_end_with_a_slash() {
    let digest = format!("digest={DIGEST}");
    for (registry, host) in [
        ("registry.example.com/tools/", "registry.example.com/tools"),
        ("localhost:5000", "localhost:5000"),
        ("example", "example"),
    ] {
        let registry = format!("registry={registry}");
        let values = [
            "--provider",
            "gke",
            "--value",
            &registry,
            "--value",
            &digest,
        ];
        let (printed, _) = printed("node-pool", &values);
        let image = format!("image: \"{host}/gpu-bootstrap@sha256:{DIGEST}\"");
        assert!(printed.contains(&image), "{registry}");
    }
    for registry in [
        "registry.example.com//tools",
        "/tools",
        "registry.example.com/Tools",
        "registry.example.com/tools:1",
        "registry.example.com:latest",
    ] {
        let assignment = format!("registry={registry}");
        let values = [
            "--provider",
            "gke",
            "--value",
            &assignment,
            "--value",
            &digest,
        ];
        let (status, printed, said) = user_data_of("node-pool", &values);
        assert_eq!((status, &*printed), (Some(2), ""), "{registry}");
        let refused = format!("invalid value `{registry}`: not a valid start of an image name");
        assert!(said.contains(&refused), "{said}");
    }
}

/// The script of the vendor is run only with its digest. The agent that it installs is neither started nor enabled.
#[test]
fn agent_script_is_verified_before_it_runs() {
    for is_changed in [false, true] {
        let directory = directory();
        let script = directory.path().join("script");
        let variables = "$INSTALL_K3S_VERSION $INSTALL_K3S_SKIP_ENABLE $INSTALL_K3S_EXEC $INSTALL_RKE2_VERSION $INSTALL_RKE2_TYPE";
        fs::write(&script, format!("echo \"{variables}\" >\"$T/calls\"\n")).expect("written");
        let digest = said(&run(&directory, r#"sha256sum "$T/script""#, false));
        let digest = digest.split_whitespace().next().expect("a digest");
        if is_changed {
            fs::write(&script, "echo >\"$T/calls\"\n").expect("written");
        }
        program(&directory, "curl", r#"cp "$T/script" agent-install.sh"#);
        let digest = format!("agent-sha256={digest}");
        let all = complete("k3s");
        let mut options = borrowed(&all);
        for value in [
            "agent-script=https://files.example.com/k3s-install.sh",
            &*digest,
            "agent-version=v1.35.2+k3s1",
        ] {
            options.extend(["--value", value]);
        }
        let (text, _) = printed("k3s", &options);
        let user_data = &documents_of(&parts_of(&text), "k3s")[0];
        let commands = user_data["runcmd"].as_array().expect("commands");
        assert_eq!(commands.len(), 3);
        let script = commands[0].as_str().expect("a script");
        assert!(
            script.contains("'https://files.example.com/k3s-install.sh'"),
            "{script}"
        );
        let script = script.replace("cd /root\n", "cd \"$T\"\n");
        let output = run(&directory, &script, false);
        let calls = fs::read_to_string(directory.path().join("calls")).ok();
        let expected = "v1.35.2+k3s1 true agent v1.35.2+k3s1 agent\n".to_owned();
        assert_eq!(
            calls,
            (!is_changed).then_some(expected),
            "{}",
            said(&output)
        );
    }
}

#[test]
fn values_of_the_agent_are_all_required_or_none() {
    let all = complete("k3s");
    let script = "agent-script=https://files.example.com/k3s-install.sh";
    let (status, printed, said) =
        user_data_of("k3s", &[&borrowed(&all)[..], &["--value", script]].concat());
    assert_eq!((status, &*printed), (Some(2), ""), "{said}");
    assert!(said.contains("2 values are missing"), "{said}");
    assert!(
        said.contains("--value agent-sha256=DIGEST --value agent-version="),
        "{said}"
    );
    let version = "agent-version=v1.35.2+k3s1";
    let (status, printed, said) = user_data_of(
        "k3s",
        &[&borrowed(&all)[..], &["--value", version]].concat(),
    );
    assert_eq!((status, &*printed), (Some(2), ""), "{said}");
    assert!(said.contains("only with `--value agent-script`"), "{said}");
    for version in ["1.35.2+k3s1", "v1.35.2", "v1.35.12"] {
        let version = format!("agent-version={version}");
        let (_, _, said) = user_data_of("k3s", &["--value", &version]);
        assert!(
            said.contains("not a version of k3s or RKE2"),
            "{version}: {said}"
        );
    }
}

/// EKS adds its own NodeConfig to the user data of a node group with an AMI type.
#[test]
fn node_group_template_is_eks_without_node_config() {
    let (group, _) = printed("eks-node-group", &borrowed(&complete("eks-node-group")));
    let (whole, _) = printed("eks", &borrowed(&complete("eks")));
    let (head, rest) = whole.split_once("--gpu-bootstrap\n").expect("a part");
    let (config, others) = rest.split_once("--gpu-bootstrap\n").expect("two parts");
    assert!(config.contains("kind: NodeConfig"), "{config}");
    assert_eq!(group, format!("{head}--gpu-bootstrap\n{others}"));
}

/// With all values, the output has no placeholder, parses, has the settings of the command line, and otherwise equals the file.
#[test]
fn printed_user_data_is_ready_to_paste() {
    for form in forms::all() {
        let name = &*form.name;
        let all = complete(name);
        let mut options = borrowed(&all);
        if form.os.is_some() {
            options.extend(["--set", "driver.cuda=12.8"]);
        }
        let (whole, said) = printed(name, &options);
        assert!(!said.contains("warning"), "{name}: {said}");
        let bare = |text: &str| {
            let lines = text
                .lines()
                .filter(|line| !line.trim_start().starts_with('#'));
            lines.map(|line| format!("{line}\n")).collect::<String>()
        };
        let marks = bare(&whole).replace("gpu-bootstrap@sha256:", "");
        assert!(!marks.contains('@'), "{name}: {whole}");
        assert!(!whole.contains("@VALUE@"), "{name}: {whole}");
        for option in options.iter().filter(|one| !one.starts_with("--")) {
            let Some((_, value)) = option.split_once('=') else {
                continue;
            };
            assert!(whole.contains(value), "{name}, {option}: {whole}");
        }
        let changed = form.template.lines().filter(|line| !whole.contains(line));
        for line in changed.filter(|_| form.without_part.is_none()) {
            let is_of_other_provider = !form.providers.is_empty() && line.starts_with('#');
            assert!(line.contains('@') || is_of_other_provider, "{name}: {line}");
        }
        if form.os.is_some() {
            let settings = settings_in(form, &whole);
            let machine = machine_of(form);
            let machine = machine.file("/etc/gpu-bootstrap/config.d/50-user-data.toml", &settings);
            let resolution = machine.load().expect(name);
            for option in options.iter().filter_map(|one| one.split_once('=')) {
                let set = resolution.provenance.iter().find(|one| one.key == option.0);
                if let Some(set) = set {
                    let value = set.value.trim_matches(['[', ']', '"']);
                    assert_eq!(value, option.1, "{name}: {}", set.key);
                }
            }
            let mut set = resolution.provenance.iter();
            assert!(set.any(|one| one.key == "driver.cuda"), "{name}");
            // A Slurm node has no pods.
            let has_pods = resolution.desired.cluster.is_some() && name != "slurm";
            assert_eq!(said.contains("helm upgrade"), has_pods, "{name}: {said}");
        }
    }
}

/// The pod tests the GPUs of the nodes that have joined. Only the users of a form with a registry have an image of gpu-bootstrap.
#[test]
fn commands_after_a_join_print_a_pod() {
    for form in forms::all() {
        let (text, said) = printed(&form.name, &borrowed(&complete(&form.name)));
        if let Some(pod) = &form.pod {
            let printed = &documents_of(&[text], &form.name)[0];
            assert_eq!(printed["metadata"]["name"], pod.as_str());
            let command = format!(" pod/{pod} && kubectl logs {pod}\n");
            assert!(said.ends_with(&command), "{}: {said}", form.name);
            continue;
        }
        let Some(gpu_pods) = form.gpu_pods else {
            let command = "\n    gpu-bootstrap status --wait\n";
            assert!(said.ends_with(command), "{}: {said}", form.name);
            assert!(!said.contains("kubectl"), "{}: {said}", form.name);
            continue;
        };
        let pod = match form.values.iter().any(|value| value.name == "registry") {
            true => "test-pod",
            false => "nvidia-smi-pod",
        };
        let (_, command) = said
            .split_once(&format!("gpu-bootstrap user-data {pod}"))
            .unwrap_or_else(|| panic!("{}: {said}", form.name));
        let (options, _) = command.split_once(" | kubectl apply").expect("kubectl");
        let options: Vec<&str> = options.split_whitespace().collect();
        let (pod, _) = printed(pod, &options);
        let has_class = gpu_pods != GpuPods::DefaultRuntime;
        // k3s and RKE2 have the class (k3s-io/docs, advanced.md).
        let is_created = has_class && form.name != "k3s";
        assert_eq!(said.contains("kind: RuntimeClass"), is_created, "{said}");
        assert_eq!(
            pod.contains("\n  runtimeClassName: nvidia\n"),
            has_class,
            "{pod}"
        );
        assert_eq!(
            said.contains("runtimeClassName=nvidia"),
            has_class,
            "{said}"
        );
    }
}

/// If the token is in a secret store, the user data has neither the token nor a file for it.
#[test]
fn user_data_without_token_has_no_token_file() {
    let with_file = |form: &&Form| form.template.contains("/etc/gpu-bootstrap/join-token");
    let mut tested = 0;
    for form in forms::all().iter().filter(with_file) {
        let name = &*form.name;
        let all = complete(name);
        let mut options = borrowed(&all);
        options.retain(|one| !matches!(*one, "--token-file" | "TOKEN"));
        options.extend(["--set", "cluster.token=credential:join"]);
        let (text, warnings) = printed(name, &options);
        assert!(
            !text.contains("join-token") && !text.contains("TOKEN"),
            "{name}: {text}"
        );
        assert!(
            text.contains("token = \"credential:join\"\n"),
            "{name}: {text}"
        );
        assert!(!warnings.contains("TOKEN"), "{name}: {warnings}");
        tested += 1;
    }
    assert!(tested > 2);
}
