//! A machine. Its disk is a root filesystem under a layer of changes. It has its own processes, network and mounts,
//! which are all removed when it is dropped. Its [`Body`] defines how it runs.

mod container;
mod direct_boot;
pub mod disk;
mod image;
mod monitor;
mod selinux;
mod vm;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;

use self::container::Container;
use self::direct_boot::DirectBoot;
use self::disk::Disk;
use self::image::Image;
use self::vm::Vm;
use crate::bed::Bed;
use crate::claim::Claim;
use crate::group::{Group, Part};
use crate::memory::Peak;
use crate::net::{self, Net};
use crate::sh::{Cmd, Done, daemon};
use crate::tables::{Kind, MachineSpec};
use crate::{out, simulation};

const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The directory of a machine's changes. With `$2` it is a tmpfs with these options.
const PLACE: &str = r#"
mkdir "$1/layer" "$1/root"
[ -z "$2" ] || mount -t tmpfs -o "$2" testbed "$1/layer"
"#;

/// A machine's changes are in a separate layer over its root filesystem, which avoids a copy. `/var/lib` is the
/// exception, because container layers cannot be on such a filesystem.
const LAYERS: &str = r#"
mkdir "$2/layer/changes" "$2/layer/work"
cp -a --reflink=auto -- "$1/root/var/lib" "$2/layer/lib"
mount -t overlay -o "lowerdir=$1/root,upperdir=$2/layer/changes,workdir=$2/layer/work" testbed "$2/root"
mount --bind "$2/layer/lib" "$2/root/var/lib"
"#;

/// Available memory, in bytes, that a container needs to keep its changes in memory, and their size limit. A driver, a
/// compiler and Docker need one or two gigabytes, so four machines fit at the same time, even if one of them is
/// emulated. A runaway machine fills its disk before the host runs out of memory. dpkg creates, syncs and removes tens
/// of thousands of files, which takes a fifth less time in memory.
const MEMORY: u64 = 10 << 30;

/// Mebibytes of a disk that no case fills; only written data uses space.
pub const ROOMY: u64 = 16 << 10;

/// The location of the changes of a container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Changes {
    /// In memory if the host has enough, so that syncing a file takes no time.
    #[default]
    Memory,
    /// On a separate disk in a file of the host's disk, so that syncing a file waits for the host's disk.
    Disk,
}

/// Time limit for a start or a shutdown. An emulated machine is several times slower than one at native speed.
const TURN: Duration = Duration::from_secs(600);

/// One machine.
pub struct Machine {
    frame: Frame,
    spec: MachineSpec,
    body: Box<dyn Body + Send>,
    _claim: Claim,
}

/// The parts that every machine has.
pub struct Frame {
    name: String,
    /// The directory of its disk and its logs.
    dir: PathBuf,
    /// The directory of its sockets. Its path is short because of the socket path limit.
    run: PathBuf,
    kernel: String,
    in_memory: bool,
    group: Group,
    net: Net,
}

/// The implementation of a kind of machine.
trait Body {
    /// Turns it on without waiting for the boot.
    fn power_on(&mut self, frame: &Frame) -> Result<()>;
    /// Waits until commands can enter.
    fn wait_for_entry(&mut self, frame: &Frame) -> Result<()>;
    fn is_on(&self) -> bool;
    /// How it stopped, if it did; after that it is off.
    fn ended(&mut self, frame: &Frame) -> Result<Option<End>>;
    /// Cuts the power.
    fn cut(&mut self, frame: &Frame) -> Result<()>;
    /// The host command that runs a script inside, only with this environment.
    fn enter(&self, frame: &Frame, environment: &[String], script: &str) -> Vec<String>;
    /// The command to enter it from the host while it is on.
    fn entry(&self, frame: &Frame) -> Option<String>;
}

/// How a machine stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It powered off.
    Off,
    /// It requested a reboot.
    Reboot,
}

/// The machine stopped before a command could enter it.
#[derive(Clone, Copy, Debug)]
pub struct Ended(pub End);

impl std::fmt::Display for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "it stopped before a command could enter ({:?})", self.0)
    }
}

impl std::error::Error for Ended {}

impl Frame {
    /// Its root directory on the host: the disk of a container, or the directory from which a VM's disk is built.
    fn root(&self) -> PathBuf {
        self.dir.join("root")
    }

    fn seed(&self) -> PathBuf {
        self.dir.join("seed.img")
    }

    /// Its console output since it was turned on.
    fn console(&self) -> PathBuf {
        self.dir.join("console.log")
    }
}

/// Resources that a machine has used since it was created.
#[derive(Clone, Copy, Debug)]
pub struct Used {
    /// CPU time.
    pub processor: Duration,
    /// Bytes that its network cards have received, from outside and from its own servers.
    pub received: u64,
    /// Processes and threads started on the whole host, because a machine's own counters restart at each boot.
    pub started: u64,
}

impl Used {
    /// The difference to an earlier sample.
    pub fn since(self, earlier: Used) -> Used {
        Used {
            processor: self.processor.saturating_sub(earlier.processor),
            received: self.received.saturating_sub(earlier.received),
            started: self.started.saturating_sub(earlier.started),
        }
    }

    /// The sum of both.
    pub fn and(self, other: Used) -> Used {
        Used {
            processor: self.processor + other.processor,
            received: self.received + other.received,
            started: self.started + other.started,
        }
    }
}

/// The number of processes and threads since the host's boot (`processes` in proc_stat(5)).
fn started(stat: &str) -> Result<u64> {
    let number = stat
        .lines()
        .find_map(|line| line.strip_prefix("processes "))
        .context("/proc/stat has no line `processes`")?;
    Ok(number.trim().parse()?)
}

impl Machine {
    /// Its CPU time since it was created.
    pub fn processor(&self) -> Option<Duration> {
        self.frame.group.processor()
    }

    /// The resources used so far.
    pub fn used(&self) -> Result<Used> {
        let uncounted = "the host's kernel does not account CPU time of cgroups";
        Ok(Used {
            processor: self.processor().context(uncounted)?,
            received: self.frame.net.received()?,
            started: started(&fs::read_to_string("/proc/stat")?)?,
        })
    }

    /// Starts sampling the memory of its programs.
    pub fn peak(&self) -> Peak {
        Peak::start(&self.frame.group)
    }

    /// Creates a machine from the root filesystem that `rootfs` built in `root`, which is not changed. A container gets
    /// its own disk of the given size in mebibytes, if one is given, or if its changes must be on the host's disk.
    pub fn create(
        bed: &Bed,
        name: &str,
        spec: &MachineSpec,
        root: &Path,
        (mib, changes): (Option<u64>, Changes),
    ) -> Result<Machine> {
        let claim = Claim::take(bed, name)?;
        let (dir, group) = (claim.dir.clone(), claim.group.clone());
        // An emulated machine needs its root directory only until its disk is built.
        let in_memory = spec.kind == Kind::Container
            && changes == Changes::Memory
            && available_memory()? >= MEMORY;
        let mib = mib.or_else(|| (changes == Changes::Disk).then_some(ROOMY));
        let mut disk = None;
        let kernel = match spec.kind {
            Kind::Image => image::payload(root, &dir)?,
            Kind::Container | Kind::Vm => {
                let mib = mib.filter(|_| spec.kind == Kind::Container);
                disk = lay(name, &group, root, &dir, in_memory, mib)?;
                match &spec.kernel {
                    Some(kernel) => kernel.clone(),
                    None => crate::rootfs::kernel(&root.join("root"))?,
                }
            }
        };
        let net = Net::create(&claim.run, &group, &dir.join("slirp.log"))?;
        let frame = Frame {
            name: name.into(),
            dir,
            run: claim.run.clone(),
            kernel,
            in_memory,
            group,
            net,
        };
        let body: Box<dyn Body + Send> = match spec.kind {
            Kind::Container => {
                // A machine whose kernel loads modules gets it later.
                if spec.kernel.is_none() && !spec.loads_modules {
                    simulation::prepare(&frame.root(), &frame.kernel, &spec.functions)?;
                }
                Box::new(Container::new(disk))
            }
            Kind::Vm => Box::new(Vm::new(bed, spec, DirectBoot::prepare(&frame)?)?),
            Kind::Image => Box::new(Vm::new(bed, spec, Image::prepare(bed, &frame)?)?),
        };
        Ok(Machine {
            frame,
            spec: spec.clone(),
            body,
            _claim: claim,
        })
    }

    /// Its root directory on the host. A VM's disk is built from it at the first boot; files that are added later do
    /// not appear in the machine.
    pub fn root(&self) -> PathBuf {
        self.frame.root()
    }

    /// The path of a VM's seed disk; without user-data it is blank.
    pub fn seed(&self) -> PathBuf {
        self.frame.seed()
    }

    pub fn spec(&self) -> &MachineSpec {
        &self.spec
    }

    /// The location of its changes, which explains its speed.
    pub fn place_of_changes(&self) -> &'static str {
        match self.frame.in_memory {
            true => "its changes are in memory",
            false => "its changes are on the disk",
        }
    }

    /// The kernel version on its disk.
    pub fn kernel(&self) -> &str {
        &self.frame.kernel
    }

    /// Selects the kernel of the next boot, as a boot loader does. Only for containers, because an emulated machine has
    /// a boot loader.
    pub fn choose_kernel(&mut self) -> Result<()> {
        let root = self.root();
        if self.spec.kind == Kind::Container
            && let Some(kernel) = simulation::saved_kernel(&root)?
            && kernel != self.frame.kernel
        {
            simulation::show_kernel(&root, &kernel)?;
            self.frame.kernel = kernel;
        }
        Ok(())
    }

    pub fn is_on(&self) -> bool {
        self.body.is_on()
    }

    /// Turns it on without waiting for the boot.
    pub fn power_on(&mut self) -> Result<()> {
        if self.body.is_on() {
            bail!("machine {} is already on", self.frame.name);
        }
        self.body.power_on(&self.frame)
    }

    /// Boots it until commands can enter and the units have been started.
    pub fn boot(&mut self) -> Result<()> {
        self.power_on()?;
        self.wait_for_entry()?;
        let end = Instant::now() + TURN;
        while Instant::now() < end {
            let asked = self
                .exec("systemctl is-active basic.target")
                .deadline(TURN)
                .run()?;
            if asked.stdout.trim() == "active" {
                return Ok(());
            }
            if let Some(how) = self.ended()? {
                bail!(
                    "machine {} stopped during its boot ({how:?})",
                    self.frame.name
                );
            }
            thread::sleep(Duration::from_millis(50));
        }
        bail!(
            "machine {} did not boot: {}",
            self.frame.name,
            self.console_tail()
        )
    }

    /// Waits until commands can enter.
    pub fn wait_for_entry(&mut self) -> Result<()> {
        self.body
            .wait_for_entry(&self.frame)
            .with_context(|| format!("cannot enter machine {}", self.frame.name))
            .with_context(|| self.console_tail())
    }

    /// Waits until it has started all its units.
    pub fn settle(&self, limit: Duration) -> Result<()> {
        let done = self
            .exec("systemctl is-system-running --wait")
            .deadline(limit)
            .run()?;
        match (done.late, done.stdout.trim()) {
            (false, "running" | "degraded") => Ok(()),
            (_, state) => bail!(
                "machine {} does not finish its start: `{state}`",
                self.frame.name
            ),
        }
    }

    /// The command to enter it from the host while it is up.
    pub fn entry(&self) -> Option<String> {
        self.body.entry(&self.frame)
    }

    /// A command that runs inside as root, in its own shell. Without `-e`, so a script that must stop at the first
    /// failure sets it.
    pub fn exec(&self, script: &str) -> Cmd {
        // In a terminal, progress bars are drawn for its type.
        let terminal = std::env::var("TERM").unwrap_or_else(|_| "dumb".into());
        let environment = [
            PATH.to_string(),
            "HOME=/root".into(),
            "LC_ALL=C.UTF-8".into(),
            format!("TERM={terminal}"),
            // An emulated systemd may need more than the usual 25 seconds to list its units.
            "SYSTEMD_BUS_TIMEOUT=5min".into(),
        ];
        let argv = self.body.enter(&self.frame, &environment, script);
        Cmd::new(self.frame.group.inside(Part::Exec, &argv))
    }

    /// The same for a command that must succeed.
    pub fn ok(&self, script: &str) -> Result<Done> {
        self.exec(script)
            .ok()
            .with_context(|| format!("in machine {}", self.frame.name))
    }

    /// Shuts it down cleanly.
    pub fn power_off(&mut self) -> Result<()> {
        if !self.body.is_on() {
            return Ok(());
        }
        // The connection may close before the response, so only the stop of the machine counts.
        let _ = self.exec("systemctl poweroff").deadline(TURN).run();
        self.wait_for_end(TURN).map(drop)
    }

    /// How it stopped, if it did.
    pub fn ended(&mut self) -> Result<Option<End>> {
        if !self.body.is_on() {
            return Ok(Some(End::Off));
        }
        self.body
            .ended(&self.frame)
            .with_context(|| self.console_tail())
    }

    /// Waits for a machine to power off or reboot. A reboot also stops it here.
    pub fn wait_for_end(&mut self, limit: Duration) -> Result<End> {
        let start = Instant::now();
        while start.elapsed() < limit {
            if let Some(end) = self.ended()? {
                return Ok(end);
            }
            thread::sleep(Duration::from_millis(20));
        }
        bail!(
            "machine {} does not stop: {}",
            self.frame.name,
            self.console_tail()
        )
    }

    /// Cuts the power at once.
    pub fn cut(&mut self) -> Result<()> {
        self.body
            .cut(&self.frame)
            .with_context(|| format!("cannot power off {}", self.frame.name))
    }

    /// Its console output since it was turned on.
    pub fn console(&self) -> Result<String> {
        match fs::read(self.frame.console()) {
            Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
            // QEMU opens it a moment after it has been started.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(String::new()),
            Err(error) => Err(error).context("cannot read a console"),
        }
    }

    /// Starts a host program in the machine's network. It runs until the machine is dropped, even across reboots.
    pub fn serve(&self, argv: &[&str], log: &Path) -> Result<Child> {
        let inside = self.frame.net.inside(argv.iter().copied());
        daemon(&self.frame.group.inside(Part::Support, &inside), log)
    }

    /// The same in the host's network.
    pub fn beside(&self, argv: &[&str], log: &Path) -> Result<Child> {
        let argv: Vec<String> = argv.iter().copied().map(String::from).collect();
        daemon(&self.frame.group.inside(Part::Support, &argv), log)
    }

    /// A host command that serves the machine, in the host's network.
    pub fn aside(&self, argv: &[String]) -> Cmd {
        Cmd::new(self.frame.group.inside(Part::Support, argv))
    }

    /// Its directory for small files and short paths.
    pub fn run(&self) -> &Path {
        &self.frame.run
    }

    /// The log path of a program that serves the machine.
    pub fn log(&self, name: &str) -> PathBuf {
        self.frame.dir.join(name)
    }

    /// The file that keeps its network namespace alive.
    pub fn netns(&self) -> &Path {
        self.frame.net.file()
    }

    /// The Ethernet address of its network card.
    pub fn mac(&self) -> Result<String> {
        self.frame.net.mac()
    }

    /// Adds an address to its network, for a service next to it.
    pub fn has_address(&self, address: &str) -> Result<()> {
        let address = format!("{address}/32");
        let argv = ["ip", "addr", "add", &address, "dev", "lo"];
        self.frame.net.exec(argv).map(drop)
    }

    /// Cuts or restores its connection to the outside.
    pub fn network(&self, state: net::State) -> Result<()> {
        self.frame.net.switch(state)
    }

    /// Limits its link to this rate, in tc(8) syntax.
    pub fn link(&self, rate: &str) -> Result<()> {
        self.frame.net.link(rate)
    }

    /// Copies a file onto the machine's disk.
    pub fn put(&self, from: &Path, to: &str) -> Result<()> {
        let to = self.root().join(to.trim_start_matches('/'));
        if let Some(dir) = to.parent() {
            fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
        }
        fs::copy(from, &to)
            .with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))?;
        Ok(())
    }

    fn console_tail(&self) -> String {
        out::tail(
            &fs::read_to_string(self.frame.console()).unwrap_or_default(),
            20,
        )
    }
}

/// Creates a machine's root directory from the root filesystem in `root`, under its own name: on a separate disk of
/// this size, or as a layer.
fn lay(
    name: &str,
    group: &Group,
    root: &Path,
    dir: &Path,
    in_memory: bool,
    mib: Option<u64>,
) -> Result<Option<Disk>> {
    let options = match in_memory {
        true => format!("size={MEMORY},mode=755"),
        false => String::new(),
    };
    let shell = |script: &str, arguments: [&str; 2]| {
        let argv = ["/bin/sh", "-euc", script, "sh", arguments[0], arguments[1]];
        Cmd::new(group.inside(Part::Support, &argv.map(String::from))).ok()
    };
    let [from, to] = [root, dir].map(|path| path.to_string_lossy());
    shell(PLACE, [&to, &options]).context("cannot create the directory of a machine's changes")?;
    let disk = match mib {
        Some(mib) => Some(Disk::make(group, &root.join("root"), dir, mib)?),
        None => {
            shell(LAYERS, [&from, &to])
                .context("cannot lay a machine's changes over the root filesystem")?;
            None
        }
    };
    fs::write(dir.join("root/etc/hostname"), format!("{name}\n")).context("cannot name it")?;
    Ok(disk)
}

/// The memory in bytes that programs can use without swapping, within the cgroup limit if the harness itself runs in a
/// container (cgroup v2).
fn available_memory() -> Result<u64> {
    let text = fs::read_to_string("/proc/meminfo").context("cannot read /proc/meminfo")?;
    let mut lines = text.lines();
    let kibibytes: u64 = lines
        .find_map(|line| line.strip_prefix("MemAvailable:")?.strip_suffix("kB"))
        .and_then(|count| count.trim().parse().ok())
        .context("/proc/meminfo contains no available memory")?;
    // Both files are missing in the root cgroup, and the limit may be the word `max`.
    let of_group = |name: &str| -> Option<u64> {
        let text = fs::read_to_string(Path::new("/sys/fs/cgroup").join(name));
        text.ok()?.trim().parse().ok()
    };
    let left = of_group("memory.max")
        .zip(of_group("memory.current"))
        .map_or(u64::MAX, |(limit, used)| limit.saturating_sub(used));
    Ok(left.min(kibibytes * 1024))
}

fn keygen(file: &Path) -> Result<()> {
    let file = file.to_string_lossy();
    Cmd::new([
        "ssh-keygen",
        "-q",
        "-t",
        "ed25519",
        "-N",
        "",
        "-C",
        "testbed",
        "-f",
        &file,
    ])
    .ok()
    .context("cannot make a key")?;
    Ok(())
}

/// Creates a sparse file of this size with an ext4 filesystem that contains the files below `from`.
fn ext4(group: &Group, label: &str, from: &Path, disk: &Path, size: u64) -> Result<()> {
    sparse(disk, size)?;
    let [from, disk] = [from, disk].map(|path| path.to_string_lossy());
    let argv = [
        "mke2fs", "-q", "-t", "ext4", "-L", label, "-d", &from, &disk,
    ];
    let done = Cmd::new(group.inside(Part::Support, &argv.map(String::from))).ok();
    done.context("cannot make a disk").map(drop)
}

fn sparse(file: &Path, size: u64) -> Result<()> {
    File::create(file)
        .and_then(|made| made.set_len(size))
        .with_context(|| format!("cannot make {}", file.display()))
}
