//! The simulated machine: host capabilities, programs, command lines and reboots.

use std::{
    ffi::OsString,
    io::Write,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use gpu_bootstrap::{
    cli::{self, Console, Env},
    host::{
        Cmd, ExecError, Host, Output,
        fake::{self, FakeFiles, Fakes, Mutation, Snapshot, ok},
    },
    model::secret::{Hiding, Secrets},
    tools::openpgp,
};

use crate::{
    apt, apt_cache, boot,
    build::{Description, build},
    cluster, containers, dnf, dpkg, fabric,
    gpu::{MachineClock, MachineGpu, MachineHttp},
    kernel, mig, mps, prebuilt, rpm,
    state::{Shared, State, arch, exists, list, lock, on, text},
    units,
};

/// The path of the running program.
const EXE: &str = "/usr/local/bin/gpu-bootstrap";

/// Paths outside of the machine configuration: caches, the journal, and files created at boot.
pub const PASSING: [&str; 15] = [
    "/run",
    "/tmp",
    "/proc/locks",
    "/proc/sys/kernel/random",
    "/var/cache",
    "/var/log",
    "/var/lib/apt/lists",
    "/var/lib/apt/extended_states",
    "/var/lib/dnf/simulated-last-transaction",
    "/var/lib/dnf/simulated-marks",
    "/var/lib/rpm/simulated-info",
    "/var/lib/docker",
    "/var/lib/dkms",
    "/var/lib/gpu-bootstrap",
    "/sys/bus/pci/drivers",
];

/// An in-memory machine.
pub struct Machine {
    pub fakes: Fakes,
    pub state: Shared,
    pub about: Description,
}

/// The result of a command line.
#[derive(Debug, Clone)]
pub struct Ran {
    pub exit: u8,
    pub out: String,
    pub err: String,
    /// The executed commands.
    pub commands: Vec<Cmd>,
}

/// Standard error, written by several threads.
#[derive(Clone, Default)]
struct Talk(Arc<Mutex<Vec<u8>>>);

impl Talk {
    fn text(&self) -> String {
        let bytes = self.0.lock().expect("no thread panicked");
        String::from_utf8(bytes.clone()).expect("text")
    }
}

impl Write for Talk {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("no thread panicked").write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Machine {
    pub fn new(about: Description) -> Self {
        let (_, fakes) = fake::host();
        let state = Arc::new(Mutex::new(build(&about, &fakes)));
        let machine = Self {
            fakes,
            state,
            about,
        };
        machine.programs();
        machine.network();
        machine
    }

    /// The host capabilities for gpu-bootstrap.
    pub fn host(&self) -> Host {
        let files = self.fakes.files.clone();
        Host {
            gpu: Arc::new(MachineGpu {
                files: files.clone(),
                state: self.state.clone(),
            }),
            http: Arc::new(MachineHttp {
                pages: self.fakes.http.clone(),
                state: self.state.clone(),
            }),
            clock: Arc::new(MachineClock {
                clock: self.fakes.clock.clone(),
                files,
                state: self.state.clone(),
            }),
            ..self.fakes.host()
        }
    }

    /// Runs a command line of gpu-bootstrap in this process.
    pub fn run(&self, args: &[&str]) -> Ran {
        self.run_in_columns(args, 80)
    }

    /// Runs a command line with this terminal width.
    pub fn run_in_columns(&self, args: &[&str], width: usize) -> Ran {
        self.fakes.exec.clear_log();
        let (mut out, err) = (Vec::new(), Talk::default());
        let (mut talk, more) = (err.clone(), err.clone());
        let host = self.host();
        let proxied = host.http.clone();
        let secrets = Secrets::default();
        let env = Env {
            root: !self.about.unprivileged,
            vars: std::collections::BTreeMap::new(),
            secrets: secrets.clone(),
            exe: EXE.into(),
            command: args.join(" "),
            proxied: Arc::new(move |_, _| proxied.clone()),
        };
        let mut console = Console {
            out: Hiding::new(&mut out, &secrets),
            err: Hiding::new(&mut talk, &secrets),
            out_terminal: false,
            err_terminal: false,
            colour: false,
            out_width: width,
            err_width: width,
            talk: Arc::new(move || Box::new(more.clone())),
            drawn: Default::default(),
        };
        let line: Vec<OsString> = std::iter::once("gpu-bootstrap")
            .chain(args.iter().copied())
            .map(OsString::from)
            .collect();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let exit = runtime
            .block_on(cli::run(line, &host, &env, &mut console))
            .code();
        drop(console);
        Ran {
            exit,
            out: String::from_utf8(out).expect("text"),
            err: err.text(),
            commands: self.fakes.exec.log(),
        }
    }

    /// Makes every change from the nth on fail, as if the process was killed. Temporary files below `/run` are not counted,
    /// because their number depends on timing.
    pub fn stop_at(&self, n: u64) {
        let mut count = 0;
        self.fakes.files.before_mutations(move |_, mutation| {
            let passing = matches!(mutation, Mutation::File(_, path) if path.starts_with("/run"));
            count += u64::from(!passing);
            if count >= n {
                Err(std::io::Error::other("the process was killed by the test"))
            } else {
                Ok(())
            }
        });
    }

    /// Starts a new process.
    pub fn go_on(&self) {
        self.fakes.files.before_mutations(|_, _| Ok(()));
        self.fakes.files.revive();
    }

    /// The number of changes that a command line makes, counted like [`Machine::stop_at`].
    pub fn count(&self, args: &[&str]) -> u64 {
        self.counting(|machine| drop(machine.run(args)))
    }

    /// The same for several command lines.
    pub fn counting(&self, work: impl FnOnce(&Self)) -> u64 {
        let count = Arc::new(AtomicU64::new(0));
        let counter = count.clone();
        self.fakes.files.before_mutations(move |_, mutation| {
            let passing = matches!(mutation, Mutation::File(_, path) if path.starts_with("/run"));
            counter.fetch_add(u64::from(!passing), Ordering::Relaxed);
            Ok(())
        });
        work(self);
        self.go_on();
        count.load(Ordering::Relaxed)
    }

    /// The state for comparisons.
    pub fn snapshot(&self) -> Snapshot {
        self.fakes.files.snapshot().without(&PASSING)
    }

    /// Shuts the machine down and boots it again.
    pub fn reboot(&self) {
        let files = &self.fakes.files;
        files.revive();
        go_down(files, &lock(&self.state));
        if let Some(next) = boot::next(files) {
            let before = kernel::running(files);
            files.put("/proc/sys/kernel/osrelease", format!("{next}\n"));
            let version = text(files, "/proc/version").unwrap_or_default();
            files.put("/proc/version", version.replacen(&before, &next, 1));
        }
        start(files, &mut lock(&self.state), &self.about.in_tree);
    }

    /// The command line of the resume unit, if it is enabled.
    pub fn resume_command(&self) -> Option<Vec<String>> {
        let unit = "gpu-bootstrap-resume.service";
        let files = &self.fakes.files;
        let line = units::enabled(files, unit)
            .then(|| units::command(files, unit))
            .flatten()?;
        Some(line.split(' ').skip(1).map(str::to_owned).collect())
    }

    /// Whether gpu-bootstrap requested a reboot.
    pub fn reboot_asked(&self) -> bool {
        exists(&self.fakes.files, "/run/simulated/reboot")
    }

    fn network(&self) {
        let keys = openpgp::parse(include_bytes!("../keys/two.asc"))
            .expect("the test keys")
            .keys;
        for url in [
            "https://nvidia.github.io/libnvidia-container/gpgkey",
            "https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64/3bf863cc.pub",
            "https://developer.download.nvidia.com/compute/cuda/repos/rhel9/x86_64/D42D0685.pub",
            "https://developer.download.nvidia.com/compute/cuda/repos/rhel9/sbsa/D42D0685.pub",
            "https://developer.download.nvidia.com/compute/cuda/repos/amzn2023/x86_64/D42D0685.pub",
            "https://dl.fedoraproject.org/pub/epel/RPM-GPG-KEY-EPEL-9",
            "https://download.docker.com/linux/rhel/gpg",
            "https://pkgs.k8s.io/core:/stable:/v1.34/deb/Release.key",
        ] {
            self.fakes.http.serve(url, keys[1].binary.clone());
        }
        prebuilt::serve(&self.fakes, &self.about.kernel, &self.about.os_release);
    }

    fn programs(&self) {
        type Program = fn(&Cmd, &FakeFiles, &mut State) -> Result<Output, ExecError>;
        let programs: [(&str, Option<&str>, Program); 27] = rows! {
            "dpkg", None, |c, f, s| Ok(dpkg::dpkg(c, f, s));
            "apt-get", None, apt::apt_get;
            "apt-cache", None, |c, f,
                s| {
                let c = &prebuilt::without_options(c);
                s.learn_built(f);
                Ok(match c.args.first().map(String::as_str) {
                Some("show") => crate::archive::show(c, f, s),
                _ => apt_cache::apt_cache(c, f),
                })
                };
            "apt-mark", None, |c, f, _| Ok(apt_cache::apt_mark(c, f));
            "systemctl", None, |c, f, s| Ok(units::systemctl(c, f, s));
            "journalctl", None, |c, f, _| Ok(units::journalctl(c, f));
            "modprobe", None, |c, f, s| Ok(kernel::modprobe(c, f, s));
            "rmmod", None, |c, f, _| Ok(kernel::rmmod(c, f));
            "modinfo", None, |c, f, _| Ok(kernel::modinfo(c, f));
            "update-initramfs", None, |c, f, s| { Ok(kernel::update_initramfs(c, f, s)) };
            "lsinitramfs", None, |c, f, _| Ok(kernel::lsinitramfs(c, f));
            "dmesg", None, |_, _, _| Ok(ok(""));
            "nvidia-smi", None, |c, f, s| mig::nvidia_smi(c, f, s);
            "nvidia-uninstall", Some("/usr/bin/nvidia-uninstall"), |c, f, _| Ok(runfile(c, f));
            "tar", None, |c, f, _| Ok(tar(c, f));
            "dkms", Some("/usr/sbin/dkms"), |c, f, s| { Ok(kernel::dkms(c, f, s)) };
            "docker", Some("/usr/bin/docker"), |c, f, s| { Ok(containers::docker(c, f, s)) };
            "dockerd", Some("/usr/bin/docker"), |c, _, _| { Ok(containers::dockerd(c)) };
            "containerd", Some("/usr/bin/containerd"), |c, f,
                _| { Ok(containers::containerd(c, f)) };
            "ctr", Some("/usr/bin/ctr"), |c, f, s| { Ok(containers::ctr(c, f, s)) };
            "crio", Some("/usr/bin/crio"), |c, f, _| { Ok(containers::crio(c, f)) };
            "nvidia-ctk", Some("/usr/bin/nvidia-ctk"), |c, f,
                s| { Ok(containers::nvidia_ctk(c, f, s)) };
            mps::PROGRAM, Some(mps::PROGRAM), |c, f, _| Ok(mps::control(c, f));
            // A program of the administrator, which scenarios write.
            "/usr/local/sbin/fleet", Some("/usr/local/sbin/fleet"), |_, _, _| Ok(ok(""));
            "nvidia-imex-ctl", Some("/usr/bin/nvidia-imex-ctl"), |c, f, _| Ok(fabric::imex_ctl(c, f));
            "kubeadm", Some("/usr/bin/kubeadm"), |c, f, s| { Ok(cluster::kubeadm(c, f, s)) };
            "/usr/bin/kubectl", Some("/usr/bin/kubectl"), |c, f,
                s| { Ok(cluster::kubectl(c, f, s)) };
        };
        for (name, binary, program) in programs {
            let state = self.state.clone();
            self.fakes.exec.on_result(name, move |cmd, files| {
                if binary.is_some_and(|path| !exists(files, path)) {
                    return Err(ExecError::NotFound {
                        program: cmd.program.clone(),
                    });
                }
                program(cmd, files, &mut lock(&state))
            });
        }
        if self.about.rpm.is_some() {
            let state = self.state.clone();
            (self.fakes.exec).on("rpm", move |cmd, files| {
                on_arch(rpm::rpm(cmd, files, &lock(&state)), files)
            });
            let state = self.state.clone();
            (self.fakes.exec).on_result("dnf", move |cmd, files| {
                let own = Cmd {
                    args: (cmd.args.iter())
                        .map(|arg| arg.replace(".aarch64", ".x86_64"))
                        .collect(),
                    ..cmd.clone()
                };
                Ok(on_arch(dnf::dnf(&own, files, &mut lock(&state))?, files))
            });
            (self.fakes.exec).on("lsinitrd", kernel::lsinitramfs);
            for name in ["dpkg", "apt-get", "apt-cache", "apt-mark", "lsinitramfs"] {
                self.fakes.exec.forget(name);
            }
        }
        self.fakes.exec.changes_when(changes);
    }
}

/// Converts rpm output for `x86_64` to the architecture of this machine.
fn on_arch(output: Output, files: &FakeFiles) -> Output {
    Output {
        stdout: on(&arch(files), &output.stdout),
        ..output
    }
}

/// Whether a command changes the machine.
pub fn changes(cmd: &Cmd) -> bool {
    match cmd.program.as_str() {
        "apt-get" => apt::changes(cmd),
        "dnf" => dnf::changes(cmd),
        "rpm" => cmd.args.iter().any(|arg| arg == "-e"),
        "systemctl" => units::changes(cmd),
        "docker" => containers::docker_changes(cmd),
        "/usr/bin/kubectl" => cluster::changes(cmd),
        "dkms" => cmd.args.first().is_some_and(|verb| verb != "status"),
        "nvidia-smi" => mig::changes(cmd),
        "dpkg" => (cmd.args.iter()).any(|arg| ["--configure", "--triggers-only"].contains(&&**arg)),
        "ctr" => !cmd.args.iter().any(|arg| arg == "list" || arg == "version"),
        "apt-cache"
        | "journalctl"
        | "modinfo"
        | "lsinitramfs"
        | "lsinitrd"
        | "dmesg"
        | "containerd"
        | "dockerd"
        | "crio"
        | "nvidia-imex-ctl"
        | mps::PROGRAM => false,
        _ => true,
    }
}

/// NVIDIA's runfile installer, called to uninstall the driver.
fn runfile(cmd: &Cmd, files: &FakeFiles) -> Output {
    assert_eq!(cmd.args, ["--silent"], "{}", cmd.line());
    files.take("/usr/bin/nvidia-uninstall");
    const DIRECTORY: &str = "/usr/lib/x86_64-linux-gnu";
    for name in list(files, DIRECTORY) {
        if name.starts_with("libcuda.so") || name.starts_with("libnvidia-ml.so") {
            files.take(&format!("{DIRECTORY}/{name}"));
        }
    }
    ok("")
}

fn tar(cmd: &Cmd, files: &FakeFiles) -> Output {
    let args: Vec<&str> = cmd.args.iter().map(String::as_str).collect();
    let places = match args[..] {
        ["--create", archive, directory, "--", "."] => archive
            .strip_prefix("--file=")
            .zip(directory.strip_prefix("--directory=")),
        _ => None,
    };
    let Some((archive, directory)) = places else {
        panic!("the simulated tar does not support `{}`", cmd.line());
    };
    assert!(exists(files, directory), "{directory} is not there");
    files.put(archive, "an archive");
    ok("")
}

fn go_down(files: &FakeFiles, state: &State) {
    for path in [
        "/run",
        "/sys/module",
        "/proc/driver",
        "/sys/bus/pci/drivers",
    ] {
        files.take(path);
    }
    for directory in ["/sys/module", "/proc/driver"] {
        files.put_directory(directory, 0o755);
    }
    for address in kernel::gpus(files) {
        files.take(&format!("/sys/bus/pci/devices/{address}/driver"));
    }
    mig::reboot(files, state);
    for name in list(files, "/dev") {
        if name.starts_with("nvidia") {
            files.take(&format!("/dev/{name}"));
        }
    }
    crate::containers::unlink_nodes(files);
    files.put("/proc/modules", "");
    let running: Vec<String> = list(files, "/proc")
        .into_iter()
        .filter(|name| name != "1" && name.parse::<u32>().is_ok())
        .collect();
    for pid in running {
        files.take(&format!("/proc/{pid}"));
    }
    files.put("/proc/locks", "");
}

/// Boots with a new boot id, modules and units.
pub fn start(files: &FakeFiles, state: &mut State, in_tree: &[String]) {
    state.boots += 1;
    files.put(
        "/proc/sys/kernel/random/boot_id",
        format!("00000000-0000-0000-0000-{:012}\n", state.boots),
    );
    files.put_directory("/run", 0o755);
    kernel::boot(files, state, in_tree);
    for unit in units::all_enabled(files) {
        // The test runs gpu-bootstrap itself.
        if !unit.starts_with("gpu-bootstrap-resume") {
            let _ = units::start(files, state, &unit);
        }
    }
}
