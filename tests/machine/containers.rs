//! Docker, containerd and the NVIDIA Container Toolkit.

use gpu_bootstrap::{
    host::{
        Cmd, Nvml, Output, ReadFiles,
        fake::{FakeFiles, failed, ok},
        files::FileKind,
    },
    tools::{
        container_view::{ContainerView, LIBRARIES},
        probe::{self, LayerResults, ProbeDocument},
    },
};
use serde_json::{Map, Value, json};
use toml::Table;

use crate::{
    dpkg, gpu, kernel,
    state::{State, exists, list, text},
    units,
};

const DAEMON: &str = "/etc/docker/daemon.json";
const ROOT: &str = "/etc/containerd/config.toml";
const CRIO: &str = "/etc/crio/crio.conf.d";
/// Names of the running containers, one per line.
const CONTAINERS: &str = "/run/simulated/containers";
const IMAGES: &str = "/var/lib/docker/simulated-images";
const CTR_IMAGES: &str = "/var/lib/containerd/simulated-images";
const LIBRARY_FOLDERS: [&str; 4] = [
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
    "/usr/lib64",
];

fn daemon_json(files: &FakeFiles) -> Result<Map<String, Value>, String> {
    match text(files, DAEMON) {
        None => Ok(Map::new()),
        Some(content) => serde_json::from_str(&content).map_err(|error| {
            format!("unable to configure the Docker daemon with file {DAEMON}: {error}")
        }),
    }
}

/// `dockerd`, in a version that cannot validate a configuration file.
pub fn dockerd(cmd: &Cmd) -> Output {
    match &cmd.args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--version"] => ok("Docker version 20.10.24+dfsg1, build 297e128\n"),
        _ => panic!("the simulated dockerd does not support `{}`", cmd.line()),
    }
}

/// The Docker configuration at startup.
pub fn docker_config(files: &FakeFiles) -> Result<String, String> {
    daemon_json(files).map(|config| Value::Object(config).to_string())
}

fn running_docker(files: &FakeFiles) -> Option<Map<String, Value>> {
    let memory = units::memory(files, "docker.service")?;
    Some(serde_json::from_str(&memory).expect("the configuration that Docker loaded"))
}

fn has_nvidia(config: &Map<String, Value>) -> bool {
    config
        .get("runtimes")
        .is_some_and(|runtimes| runtimes.get("nvidia").is_some())
}

/// Whether a command line of `docker` changes the machine.
pub fn docker_changes(cmd: &Cmd) -> bool {
    !matches!(
        cmd.args.first().map(String::as_str),
        Some("info" | "images" | "image" | "ps" | "--version")
    )
}

/// `docker`.
pub fn docker(cmd: &Cmd, files: &FakeFiles, state: &State) -> Output {
    let args: Vec<&str> = cmd.args.iter().map(String::as_str).collect();
    let config = running_docker(files);
    if args == ["info", "--format={{json .}}"] {
        return info(config.as_ref());
    }
    let Some(config) = config else {
        return failed(
            1,
            "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker \
             daemon running?\n",
        );
    };
    match args[..] {
        ["import", "--", archive, image] => {
            assert!(exists(files, archive), "{archive} does not exist");
            put_image(files, image);
            ok("sha256:0\n")
        }
        ["load", "--quiet", input] => {
            let archive = input.strip_prefix("--input=").unwrap_or_default();
            let id = archived(files, archive);
            put_image(files, &id);
            ok(format!("Loaded image ID: {id}\n"))
        }
        ["tag", "--", id, image] => {
            if !has_image(files, id) {
                let why = format!("Error response from daemon: No such image: {id}\n");
                return failed(1, why);
            }
            put_image(files, image);
            files.take(&format!("{IMAGES}/{id}"));
            ok("")
        }
        ["pull", "--", image] => match &state.faults.network {
            Some(why) => failed(1, format!("Error response from daemon: {why}\n")),
            None => {
                put_image(files, image);
                ok("")
            }
        },
        ["image", "inspect", "--format={{.Id}}", "--", image] => {
            if has_image(files, image) {
                ok("sha256:0\n")
            } else {
                failed(
                    1,
                    format!("Error response from daemon: No such image: {image}\n"),
                )
            }
        }
        ["image", "rm", "--force", "--", image] => {
            files.take(&format!("{IMAGES}/{}", image.replace('/', "_")));
            if list(files, IMAGES).is_empty() {
                files.take("/var/lib/docker");
            }
            ok("")
        }
        ["ps", "--format={{.Names}}"] => ok(text(files, CONTAINERS).unwrap_or_default()),
        ["rm", "--force", "--", _] => ok(""),
        ["run", "--rm", "--network=none", "--runtime=nvidia", ..] => {
            if has_nvidia(&config) {
                see(files, state)
            } else {
                failed(
                    125,
                    "docker: Error response from daemon: unknown or invalid runtime name: nvidia.\n",
                )
            }
        }
        _ => panic!("the simulated docker does not support `{}`", cmd.line()),
    }
}

/// Returns the digest of the configuration in an archive of `docker save`, which is the ID of the image.
fn archived(files: &FakeFiles, archive: &str) -> String {
    let content = files.read(archive.into()).expect("readable");
    let content = content.unwrap_or_else(|| panic!("{archive} is not there"));
    let mut archive = tar::Archive::new(&*content);
    let mut names = archive.entries().expect("an archive").map(|entry| {
        let entry = entry.expect("an archive");
        String::from_utf8_lossy(&entry.path_bytes()).into_owned()
    });
    let hex = names.find_map(|name| Some(name.strip_suffix(".json")?.to_owned()));
    format!("sha256:{}", hex.expect("a configuration"))
}

fn put_image(files: &FakeFiles, image: &str) {
    files.put(&format!("{IMAGES}/{}", image.replace('/', "_")), "");
}

fn has_image(files: &FakeFiles, image: &str) -> bool {
    exists(files, &format!("{IMAGES}/{}", image.replace('/', "_")))
}

fn info(config: Option<&Map<String, Value>>) -> Output {
    let Some(config) = config else {
        let said = json!({"ServerErrors": ["Cannot connect to the Docker daemon at \
            unix:///var/run/docker.sock. Is the docker daemon running?"]});
        return Output {
            stdout: format!("{said}\n"),
            ..failed(1, "errors pretty printing info\n")
        };
    };
    let mut runtimes = Map::new();
    runtimes.insert("io.containerd.runc.v2".into(), json!({"path": "runc"}));
    runtimes.insert("runc".into(), json!({"path": "runc"}));
    if let Some(Value::Object(more)) = config.get("runtimes") {
        runtimes.extend(more.clone());
    }
    let default = config
        .get("default-runtime")
        .and_then(Value::as_str)
        .unwrap_or("runc");
    let said = json!({
        "Runtimes": runtimes,
        "DefaultRuntime": default,
        "CgroupDriver": "systemd",
        "ServerVersion": "20.10.24+dfsg1",
    });
    ok(format!("{said}\n"))
}

/// The devices and libraries in a container with the nvidia runtime.
fn see(files: &FakeFiles, state: &State) -> Output {
    let view = if state.faults.container {
        ContainerView::default()
    } else {
        let devices = list(files, "/dev")
            .into_iter()
            .filter(|name| name.starts_with("nvidia"))
            .collect();
        let libraries = LIBRARY_FOLDERS
            .iter()
            .flat_map(|directory| {
                list(files, directory)
                    .into_iter()
                    .map(move |name| format!("{directory}/{name}"))
            })
            .filter(|path| {
                LIBRARIES
                    .iter()
                    .any(|library| path.contains(&format!("/{library}.")))
            })
            .collect();
        let probe = match gpu::survey(files, state) {
            Nvml::Ready(view) => Some(ProbeDocument {
                devices: probe::devices(&view),
                ..LayerResults::default().document()
            }),
            _ => None,
        };
        ContainerView {
            devices,
            libraries,
            probe,
        }
    };
    if !state.faults.container && view.devices.is_empty() {
        return failed(
            1,
            "nvidia-container-cli: initialization error: nvml error: driver not loaded: unknown.\n",
        );
    }
    ok(serde_json::to_string(&view).expect("a view is JSON") + "\n")
}

/// `ctr`.
pub fn ctr(cmd: &Cmd, files: &FakeFiles, state: &State) -> Output {
    let args: Vec<&str> = cmd.args.iter().map(String::as_str).collect();
    let active = units::active(files, "containerd.service");
    match args[..] {
        [_, "images" | "containers" | "run", ..] | ["version"] | ["plugins", ..] if !active => {
            failed(
                1,
                "ctr: failed to dial \"/run/containerd/containerd.sock\"\n",
            )
        }
        ["version"] => ok("Client:\n  Version:  1.6.20\n\nServer:\n  Version:  1.6.20\n"),
        ["plugins", "list"] => ok("TYPE                   ID   PLATFORMS    STATUS\n\
             io.containerd.grpc.v1  cri  linux/amd64  ok\n"),
        [_, "images", "list", "--quiet"] => ok(list(files, CTR_IMAGES)
            .into_iter()
            .map(|name| name.replace('!', "/") + "\n")
            .collect::<String>()),
        [_, "images", "pull", "--", image] => match &state.faults.network {
            Some(why) => failed(1, format!("ctr: failed to resolve reference: {why}\n")),
            None => {
                files.put(&format!("{CTR_IMAGES}/{}", image.replace('/', "!")), "");
                ok("")
            }
        },
        [_, "images", "remove", "--sync", "--", image] => {
            dpkg::take(files, &format!("{CTR_IMAGES}/{}", image.replace('/', "!")));
            ok("")
        }
        [_, "containers", "list", "--quiet"] => ok(""),
        [_, "run", "--rm", ref rest @ ..] => {
            let mut options = rest.iter();
            let runtime = options.find_map(|option| option.strip_prefix("--runc-binary="));
            let runtime = runtime.unwrap_or_default();
            if exists(files, runtime) {
                see(files, state)
            } else {
                failed(
                    1,
                    format!("ctr: exec: \"{runtime}\": no such file or directory\n"),
                )
            }
        }
        _ => panic!("the simulated ctr does not support `{}`", cmd.line()),
    }
}

fn toml_of(files: &FakeFiles, path: &str) -> Table {
    text(files, path)
        .unwrap_or_default()
        .parse()
        .unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The configuration with its imports.
pub fn containerd_merged(files: &FakeFiles) -> String {
    let mut root = toml_of(files, ROOT);
    let imports: Vec<String> = root
        .get("imports")
        .and_then(|list| list.as_array())
        .map(|list| {
            list.iter()
                .filter_map(|one| one.as_str())
                .map(str::to_owned)
                .collect()
        })
        .unwrap_or_default();
    for import in imports {
        let (directory, names) = import.rsplit_once('/').expect("the import is a path");
        for name in list(files, directory) {
            if gpu_bootstrap::model::pattern::matches(names, &name) {
                merge(&mut root, toml_of(files, &format!("{directory}/{name}")));
            }
        }
    }
    root.to_string()
}

pub fn merge(into: &mut Table, from: Table) {
    for (key, value) in from {
        match (into.get_mut(&key), value) {
            (Some(toml::Value::Table(into)), toml::Value::Table(from)) => merge(into, from),
            (_, value) => {
                into.insert(key, value);
            }
        }
    }
}

/// `containerd config dump`: the current files, not the daemon's state.
pub fn containerd(cmd: &Cmd, files: &FakeFiles) -> Output {
    match &cmd.args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["config", "dump"] => {
            let mut merged: Table = containerd_merged(files).parse().expect("merged TOML");
            let runc = "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd]\n\
                        default_runtime_name = \"runc\"\n[plugins.\"io.containerd.grpc.v1.cri\".\
                        containerd.runtimes.runc]\nruntime_type = \"io.containerd.runc.v2\"\n";
            let mut whole: Table = runc.parse().expect("the defaults");
            // Runtimes in a file replace the default ones.
            if let (Some(named), Some(defaults)) = (runtimes(&mut merged), runtimes(&mut whole))
                && !named.is_empty()
            {
                defaults.clear();
            }
            merge(&mut whole, merged);
            ok(whole.to_string())
        }
        ["--version"] => ok("containerd github.com/containerd/containerd 1.6.20 1.6.20\n"),
        _ => panic!("the simulated containerd does not support `{}`", cmd.line()),
    }
}

fn runtimes(config: &mut Table) -> Option<&mut Table> {
    config
        .get_mut("plugins")?
        .get_mut("io.containerd.grpc.v1.cri")?
        .get_mut("containerd")?
        .get_mut("runtimes")?
        .as_table_mut()
}

/// `crio status config`: the merged configuration files.
pub fn crio(cmd: &Cmd, files: &FakeFiles) -> Output {
    let args: Vec<&str> = cmd.args.iter().map(String::as_str).collect();
    assert!(
        matches!(args[..], ["status", "config"]),
        "the simulated crio does not support `{}`",
        cmd.line()
    );
    let mut whole = Table::new();
    for name in list(files, CRIO) {
        merge(&mut whole, toml_of(files, &format!("{CRIO}/{name}")));
    }
    ok(whole.to_string())
}

/// `nvidia-ctk`.
pub fn nvidia_ctk(cmd: &Cmd, files: &FakeFiles, state: &State) -> Output {
    let args: Vec<&str> = cmd.args.iter().map(String::as_str).collect();
    match args[..] {
        ["cdi", "generate", output]
        | [
            "cdi",
            "generate",
            // The specification has no group in this simulation.
            "--feature-flag=no-additional-gids-for-device-nodes",
            output,
        ] => {
            let path = output
                .strip_prefix("--output=")
                .unwrap_or_else(|| panic!("{}", cmd.line()));
            generate(files, state, path)
        }
        _ => panic!("the simulated nvidia-ctk does not support `{}`", cmd.line()),
    }
}

fn generate(files: &FakeFiles, state: &State, path: &str) -> Output {
    let Nvml::Ready(view) = gpu::survey(files, state) else {
        return failed(
            1,
            "failed to generate CDI spec: failed to initialize NVML: ERROR_LIBRARY_NOT_FOUND\n",
        );
    };
    let mut spec = String::from("cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n");
    for device in &view.devices {
        let parts = device.mig_devices.iter();
        let names = match device.mig {
            Some(true) => parts
                .map(|part| format!("{}:{}", device.index, part.index))
                .collect(),
            _ => vec![device.index.to_string()],
        };
        for name in names {
            spec.push_str(&format!(
                "- name: \"{name}\"\n  containerEdits:\n    deviceNodes:\n"
            ));
            spec.push_str(&device_node(files, &format!("/dev/nvidia{}", device.index)));
        }
    }
    spec.push_str("- name: all\ncontainerEdits:\n  deviceNodes:\n");
    for path in ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"] {
        spec.push_str(&device_node(files, path));
    }
    spec.push_str("  mounts:\n");
    for directory in LIBRARY_FOLDERS {
        for name in list(files, directory) {
            if name.ends_with(&view.driver_version) {
                spec.push_str(&format!(
                    "  - containerPath: {directory}/{name}\n    hostPath: {directory}/{name}\n"
                ));
            }
        }
    }
    files.put(path, spec);
    ok("")
}

/// `nvidia-ctk system create-dev-char-symlinks`, which skips the NVSwitch and storage nodes.
pub fn link_nodes(files: &FakeFiles) -> String {
    for name in list(files, "/dev") {
        let path = format!("/dev/{name}");
        let stat = files
            .stat(path.as_str().into())
            .expect("the node can be inspected");
        let blocked = ["nvidia-fs", "nvidia-nvswitch", "nvidia-nvlink"];
        if name.starts_with("nvidia")
            && !blocked.iter().any(|one| name.starts_with(one))
            && let Some(FileKind::CharDevice(major, minor)) = stat.map(|stat| stat.kind)
        {
            files.put_link(&format!("/dev/char/{major}:{minor}"), &path);
        }
    }
    String::new()
}

/// Runs the unit that regenerates the CDI specification at each boot.
pub fn describe_again(files: &FakeFiles, state: &State) -> String {
    generate(files, state, "/etc/cdi/nvidia.yaml").stderr
}

/// Runs the unit of the toolkit. `nvidia-ctk` fails if a GPU in MIG mode has no MIG devices.
pub fn refresh(files: &FakeFiles, state: &State) -> Result<String, String> {
    let is_empty = match gpu::survey(files, state) {
        Nvml::Ready(view) => (view.devices.iter())
            .any(|device| device.mig == Some(true) && device.mig_devices.is_empty()),
        _ => false,
    };
    if is_empty {
        return Err("a GPU in MIG mode has no MIG devices".to_owned());
    }
    let output = generate(files, state, "/var/run/cdi/nvidia.yaml");
    match output.ok() {
        true => Ok(String::new()),
        false => Err(output.stderr),
    }
}

/// Stops the unit.
pub fn unlink_nodes(files: &FakeFiles) {
    for name in list(files, "/dev/char") {
        files.take(&format!("/dev/char/{name}"));
    }
    files.take("/dev/char");
}

/// The format of nvidia-ctk 1.20: with device numbers, and without zero values.
fn device_node(files: &FakeFiles, path: &str) -> String {
    let stat = files.stat(path.into()).expect("a device can be inspected");
    let Some(FileKind::CharDevice(major, minor)) = stat.map(|stat| stat.kind) else {
        return String::new();
    };
    let minor = match minor {
        0 => String::new(),
        minor => format!("      minor: {minor}\n"),
    };
    format!("    - path: {path}\n      major: {major}\n{minor}")
}

/// The path of the driver library, if it is in the library search path.
pub fn library(files: &FakeFiles) -> Option<String> {
    let resolved = |directory: &&str| {
        let path = format!("{directory}/libnvidia-ml.so.1");
        (files.resolve(path.as_str().into())).expect("the library path can be resolved")
    };
    let directories = [
        "/usr/lib/aarch64-linux-gnu",
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib64",
    ];
    let path = directories.iter().find_map(resolved)?;
    path.file_name()?
        .strip_prefix("libnvidia-ml.so.")
        .map(str::to_owned)
}

/// The version of the loaded module.
pub fn loaded(files: &FakeFiles) -> Option<String> {
    kernel::loaded(files)
        .iter()
        .any(|name| name == "nvidia")
        .then(|| {
            text(files, "/sys/module/nvidia/version")
                .unwrap_or_default()
                .trim()
                .to_owned()
        })
}
