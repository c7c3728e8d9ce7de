//! A booted machine: its disk is a copy of a root filesystem, its processes, network and mounts
//! are its own, and all of it is gone when it is dropped.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::bed::{Bed, remove_tree};
use crate::group::{Group, Part};
use crate::net::{self, Line, Net};
use crate::sh::{Cmd, Done, daemon};
use crate::tables::MachineSpec;
use crate::{claim, out, simulation, stop};

const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Kernel modules are more than half of a disk, and nothing ever writes into one: they are linked.
const COPY: &str = r#"
cp -a --reflink=auto -- "$1/root" "$2/root"
for modules in "$1"/modules/*; do
    cp -al -- "$modules" "$2/root/usr/lib/modules/${modules##*/}/kernel"
done
"#;

/// How long a machine may take to come up or to go down.
const TURN: Duration = Duration::from_secs(60);

/// One machine.
pub struct Machine {
    name: String,
    /// Its name among all that run on this host.
    id: String,
    spec: MachineSpec,
    dir: PathBuf,
    kernel: String,
    group: Group,
    net: Net,
    booted: Option<Booted>,
    _undo: stop::Guard,
}

struct Booted {
    nspawn: Child,
    init: u32,
}

impl Machine {
    /// Makes a machine with a fresh copy of the root filesystem that `rootfs` built in `root`.
    pub fn create(bed: &Bed, name: &str, spec: &MachineSpec, root: &Path) -> Result<Machine> {
        clean_stale(bed)?;
        // Two beds may run the same case at once; the machine itself need not know.
        let id = format!("{name}-{}", std::process::id());
        let dir = bed.cache.join("machines").join(&id);
        let claim = claim::take(bed, &id, &dir)?;
        let run = claim.run.clone();
        let undo = {
            let (id, dir) = (id.clone(), dir.clone());
            stop::guard(move || {
                // The whole claim moves in here: a closure takes single fields otherwise.
                let claim = claim;
                if let Err(error) = destroy(&id, &claim.run, Some(&dir)) {
                    out::say(format!("machine {id} is not all gone: {error:#}"));
                }
            })
        };
        remove_tree(&dir)?;
        fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        let group = Group::of(&id)?;
        group.create()?;
        let copy = [
            "/bin/sh",
            "-euc",
            COPY,
            "sh",
            &root.to_string_lossy(),
            &dir.to_string_lossy(),
        ];
        Cmd::new(group.inside(Part::Support, &copy.map(String::from)))
            .ok()
            .context("cannot copy the root filesystem")?;
        let kernel = crate::rootfs::kernel(&root.join("root"))?;
        let net = Net::create(&run, &group, &dir.join("slirp.log"))?;
        let machine = Machine {
            name: name.into(),
            id,
            spec: spec.clone(),
            dir,
            kernel,
            group,
            net,
            booted: None,
            _undo: undo,
        };
        fs::write(machine.root().join("etc/hostname"), format!("{name}\n"))
            .context("cannot name it")?;
        simulation::prepare(&machine.root(), &machine.kernel, &spec.functions)?;
        Ok(machine)
    }

    /// Its root folder as the host sees it.
    pub fn root(&self) -> PathBuf {
        self.dir.join("root")
    }

    pub fn spec(&self) -> &MachineSpec {
        &self.spec
    }

    /// The version of the kernel that its disk holds.
    pub fn kernel(&self) -> &str {
        &self.kernel
    }

    pub fn is_up(&self) -> bool {
        self.booted.is_some()
    }

    /// Boots it, up to the point where commands can enter and units have been started.
    pub fn boot(&mut self) -> Result<()> {
        if self.is_up() {
            bail!("machine {} is up already", self.name);
        }
        let argv = [
            "systemd-nspawn",
            "--quiet",
            "--register=no",
            "--keep-unit",
            "--boot",
            "--capability=all",
            "--resolv-conf=off",
            "--timezone=off",
            "--link-journal=no",
            "--console=pipe",
            &format!("--machine={}", self.id),
            &format!("--hostname={}", self.name),
            &format!("--directory={}", self.root().display()),
            &format!("--network-namespace-path={}", self.net.file().display()),
        ]
        .map(String::from);
        let mut full = vec![
            "env".to_string(),
            "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1".into(),
            "SYSTEMD_SECCOMP=0".into(),
        ];
        full.extend(argv);
        let nspawn = daemon(
            &self.group.inside(Part::Machine, &full),
            &self.dir.join("console.log"),
        )?;
        let init = self.wait_for_init(nspawn.id())?;
        self.booted = Some(Booted { nspawn, init });
        let end = Instant::now() + TURN;
        while Instant::now() < end {
            let asked = self
                .exec("systemctl is-active basic.target")
                .deadline(TURN)
                .run()?;
            if asked.stdout.trim() == "active" {
                return Ok(());
            }
            thread::sleep(Duration::from_millis(50));
        }
        bail!(
            "machine {} did not come up: {}",
            self.name,
            self.console_tail()
        )
    }

    /// Waits until it has nothing more to start.
    pub fn settle(&self, limit: Duration) -> Result<()> {
        let done = self
            .exec("systemctl is-system-running --wait")
            .deadline(limit)
            .run()?;
        match (done.late, done.stdout.trim()) {
            (false, "running" | "degraded") => Ok(()),
            (_, state) => bail!("machine {} does not settle: `{state}`", self.name),
        }
    }

    /// How a person enters it from the host, while it is up.
    pub fn entry(&self) -> Option<String> {
        let init = self.booted.as_ref()?.init;
        Some(format!(
            "nsenter --target {init} --all -- /usr/bin/env -i {PATH} HOME=/root TERM=linux bash -l"
        ))
    }

    /// A command that runs inside, as root, in a shell of its own. Without `-e`: a script that
    /// means to stop at the first failure says so.
    pub fn exec(&self, script: &str) -> Cmd {
        // Where a person looks on, progress is drawn for their terminal.
        let terminal = format!(
            "TERM={}",
            std::env::var("TERM").unwrap_or_else(|_| "dumb".into())
        );
        let init = self
            .booted
            .as_ref()
            .map_or(0, |booted| booted.init)
            .to_string();
        let argv = [
            "nsenter",
            "--target",
            &init,
            "--all",
            "--",
            "/usr/bin/env",
            "-i",
            PATH,
            "HOME=/root",
            "LC_ALL=C.UTF-8",
            &terminal,
            "/bin/bash",
            "-c",
            script,
        ]
        .map(String::from);
        Cmd::new(self.group.inside(Part::Exec, &argv))
    }

    /// The same, and it must succeed.
    pub fn ok(&self, script: &str) -> Result<Done> {
        self.exec(script)
            .ok()
            .with_context(|| format!("in machine {}", self.name))
    }

    /// Powers it off the ordinary way.
    pub fn power_off(&mut self) -> Result<()> {
        if !self.is_up() {
            return Ok(());
        }
        // The connection may end before the answer: only the machine's end counts.
        let _ = self.exec("systemctl poweroff").deadline(TURN).run();
        self.wait_for_end()
    }

    /// Waits for a machine that turns itself off (or reboots, which ends it here, too).
    pub fn wait_for_end(&mut self) -> Result<()> {
        let Some(mut booted) = self.booted.take() else {
            return Ok(());
        };
        let end = Instant::now() + TURN;
        while Instant::now() < end {
            if booted
                .nspawn
                .try_wait()
                .context("cannot wait for a machine")?
                .is_some()
            {
                return Ok(());
            }
            thread::sleep(Duration::from_millis(20));
        }
        self.booted = Some(booted);
        bail!(
            "machine {} does not go down: {}",
            self.name,
            self.console_tail()
        )
    }

    /// Starts a program of the host in the machine's network, which lives until the machine is
    /// dropped, also across its reboots.
    pub fn serve(&self, argv: &[&str], log: &Path) -> Result<Child> {
        let inside = self.net.inside(argv.iter().copied());
        daemon(&self.group.inside(Part::Support, &inside), log)
    }

    /// The same in the host's network.
    pub fn beside(&self, argv: &[&str], log: &Path) -> Result<Child> {
        let argv: Vec<String> = argv.iter().copied().map(String::from).collect();
        daemon(&self.group.inside(Part::Support, &argv), log)
    }

    /// Where a log of something beside the machine belongs.
    pub fn log(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// The file that holds its network namespace.
    pub fn netns(&self) -> &Path {
        self.net.file()
    }

    /// Cuts or mends its line to the outside.
    pub fn line(&self, line: Line) -> Result<()> {
        self.net.line(line)
    }

    /// Puts a file into the machine's disk.
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
            &fs::read_to_string(self.dir.join("console.log")).unwrap_or_default(),
            20,
        )
    }

    /// The machine's first process is the only child of nspawn.
    fn wait_for_init(&self, nspawn: u32) -> Result<u32> {
        let children = format!("/proc/{nspawn}/task/{nspawn}/children");
        let end = Instant::now() + TURN;
        while Instant::now() < end {
            let text = fs::read_to_string(&children).unwrap_or_default();
            if let Some(pid) = text
                .split_whitespace()
                .next()
                .and_then(|word| word.parse().ok())
                && is_init(pid)
            {
                return Ok(pid);
            }
            thread::sleep(Duration::from_millis(10));
        }
        bail!("systemd-nspawn started nothing: {}", self.console_tail())
    }
}

/// Whether the child has become the machine's init, after which its namespaces are complete.
fn is_init(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "systemd")
}

fn destroy(name: &str, run: &Path, disk: Option<&Path>) -> Result<()> {
    Group::of(name)?.destroy()?;
    net::destroy(run)?;
    if let Some(disk) = disk {
        remove_tree(disk)?;
    }
    remove_tree(run)?;
    let propagate = PathBuf::from(format!("/run/systemd/nspawn/propagate/{name}"));
    remove_tree(&propagate)
}

/// Removes what a bed left behind that was ended without a chance to clean up.
pub fn clean_stale(bed: &Bed) -> Result<()> {
    claim::orphans(bed, |name, run, disk| {
        out::say(format!("removing what is left of machine {name}"));
        destroy(name, run, disk)
    })
}
