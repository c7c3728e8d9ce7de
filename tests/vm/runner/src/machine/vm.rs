//! A machine run by QEMU, with its own kernel and its own bus. Its [`Source`] defines the boot method.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use gpu_bootstrap_vm_pci::serve;
use gpu_bootstrap_vm_pci::table::{Address, Function};
use sha2::{Digest, Sha256};

use super::monitor::Monitor;
use super::{Body, End, Ended, Frame, TURN, sparse};
use crate::bed::{Bed, remove_file};
use crate::group::Part;
use crate::qemu::{self, DISKS, SOCKETS};
use crate::sh::{daemon, quoted};
use crate::tables::MachineSpec;

/// Memory of a machine, in mebibytes.
const MEMORY_MIB: u32 = 3072;

/// The port of the machine's sshd in the machine's namespace.
const SSH_PORT: &str = "2222";

/// Different from the network of slirp4netns, which is the next hop to the outside.
const NETWORK: &str = "10.0.3.0/24";

/// The boot source of a machine.
pub trait Source {
    /// The port of the machine's sshd.
    fn port(&self) -> &'static str;
    /// Creates missing files, and returns QEMU's arguments: the CPU, the boot method, and the drive `disk`.
    fn ready(&self, frame: &Frame) -> Result<Vec<String>>;
}

/// See the module documentation.
pub struct Vm {
    qemu: PathBuf,
    source: Box<dyn Source + Send>,
    pci: PathBuf,
    machines: PathBuf,
    key: String,
    functions: Vec<Function>,
    running: Option<Running>,
}

struct Running {
    qemu: Child,
    monitor: Monitor,
    /// The ssh connection that all commands share.
    master: Option<Child>,
}

impl Vm {
    pub fn new(bed: &Bed, spec: &MachineSpec, source: impl Source + Send + 'static) -> Result<Vm> {
        Ok(Vm {
            qemu: qemu::root(bed)?,
            source: Box::new(source),
            pci: bed.programs.join("vm-pci"),
            machines: bed.here("machines.toml"),
            key: spec.key.clone(),
            functions: spec.functions.clone(),
            running: None,
        })
    }

    /// Serves the functions of its bus while the machine exists.
    fn serve_bus(&self, frame: &Frame) -> Result<()> {
        let log = frame.dir.join("pci.log");
        if self.functions.is_empty() || log.exists() {
            return Ok(());
        }
        let argv = [
            self.pci.to_string_lossy().into_owned(),
            "serve".into(),
            format!("--machines={}", self.machines.display()),
            format!("--machine={}", self.key),
            format!("--dir={}", frame.run.display()),
        ];
        let mut server = daemon(&frame.group.inside(Part::Support, &argv), &log)?;
        let end = Instant::now() + Duration::from_secs(20);
        while Instant::now() < end {
            let said = fs::read_to_string(&log).unwrap_or_default();
            if said.contains("ready") {
                return Ok(());
            }
            if let Some(status) = server.try_wait().context("cannot wait for the bus")? {
                bail!("the bus server exited with {status}: {said}");
            }
            thread::sleep(Duration::from_millis(10));
        }
        bail!("the bus server is not ready")
    }

    fn arguments(&self, source: Vec<String>) -> Result<Vec<String>> {
        let port = self.source.port();
        let mut arguments: Vec<String> = [
            "qemu-system-x86_64",
            "-nodefaults",
            "-no-user-config",
            "-display",
            "none",
            "-no-reboot",
            "-smp",
            "2",
            "-m",
            &format!("{MEMORY_MIB}M"),
            "-machine",
            "q35,memory-backend=mem",
            "-object",
            // Shared, so that a device in another process can access it.
            &format!("memory-backend-memfd,id=mem,size={MEMORY_MIB}M,share=on"),
            "-uuid",
            &uuid(&self.key),
            "-drive",
            &format!("id=seed,file={DISKS}/seed.img,format=raw,if=none,readonly=on"),
            // High slots of the root bus: the table uses the low ones.
            "-device",
            "virtio-blk-pci,drive=disk,bus=pcie.0,addr=10",
            "-device",
            "virtio-blk-pci,drive=seed,bus=pcie.0,addr=11",
            "-netdev",
            &format!("user,id=net,net={NETWORK},hostfwd=tcp:127.0.0.1:{SSH_PORT}-:{port}"),
            "-device",
            "virtio-net-pci,netdev=net,romfile=,bus=pcie.0,addr=12",
            "-device",
            "virtio-rng-pci,bus=pcie.0,addr=13",
            "-serial",
            &format!("file:{DISKS}/console.log"),
            "-qmp",
            &format!("unix:{SOCKETS}/qmp.sock,server=on,wait=off"),
        ]
        .map(String::from)
        .to_vec();
        arguments.extend(source);
        let mut buses = Vec::new();
        for function in &self.functions {
            let others = self.functions.iter().map(|other| &other.address);
            arguments.extend(device(&function.address, others, &mut buses)?);
        }
        Ok(arguments)
    }

    /// The `ssh` command up to the command that runs in the machine.
    fn ssh(&self, frame: &Frame, options: &[&str]) -> Vec<String> {
        let key = frame.dir.join("key");
        let control = format!("ControlPath={}", frame.run.join("ssh").display());
        let mut argv = frame.net.inside([
            "ssh",
            "-F",
            "none",
            "-i",
            &key.to_string_lossy(),
            "-o",
            &control,
            "-p",
            SSH_PORT,
        ]);
        for option in [
            "BatchMode=yes",
            "StrictHostKeyChecking=no",
            "UserKnownHostsFile=/dev/null",
            "LogLevel=ERROR",
            "ConnectTimeout=10",
            "ServerAliveInterval=15",
            "ServerAliveCountMax=8",
        ] {
            argv.extend(["-o".into(), option.into()]);
        }
        argv.extend(options.iter().map(ToString::to_string));
        argv.push("root@127.0.0.1".into());
        argv
    }
}

impl Body for Vm {
    fn power_on(&mut self, frame: &Frame) -> Result<()> {
        let source = self.source.ready(frame)?;
        let seed = frame.seed();
        if !seed.exists() {
            sparse(&seed, 1 << 20)?;
        }
        self.serve_bus(frame)?;
        // Files of an earlier start would be mistaken for the new ones.
        for old in [frame.run.join("qmp.sock"), frame.console()] {
            remove_file(&old)?;
        }
        let argv = qemu::command(
            &self.qemu,
            &frame.group,
            &frame.net,
            (&frame.dir, &frame.run),
            &self.arguments(source)?,
        );
        let log = frame.dir.join("qemu.log");
        let mut qemu = daemon(&argv, &log)?;
        // If this fails, dropping the machine's group kills QEMU.
        let monitor = Monitor::connect(&frame.run.join("qmp.sock"), &mut qemu)
            .with_context(|| fs::read_to_string(&log).unwrap_or_default())?;
        self.running = Some(Running {
            qemu,
            monitor,
            master: None,
        });
        Ok(())
    }

    fn wait_for_entry(&mut self, frame: &Frame) -> Result<()> {
        let end = Instant::now() + TURN;
        let log = frame.dir.join("ssh.log");
        let argv = self.ssh(frame, &["-M", "-N"]);
        let argv = frame.group.inside(Part::Exec, &argv);
        // A machine that boots, or whose driver is busy with its GPU, may not respond at once.
        while Instant::now() < end {
            let mut master = daemon(&argv, &log)?;
            while Instant::now() < end {
                if frame.run.join("ssh").exists() {
                    self.running.as_mut().context("it is off")?.master = Some(master);
                    return Ok(());
                }
                let refused = master.try_wait().context("cannot wait for ssh")?;
                if refused.is_some() {
                    break;
                }
                thread::sleep(Duration::from_millis(20));
            }
            if let Some(how) = self.ended(frame)? {
                bail!(Ended(how));
            }
            thread::sleep(Duration::from_millis(200));
        }
        bail!("{}", fs::read_to_string(&log).unwrap_or_default())
    }

    fn is_on(&self) -> bool {
        self.running.is_some()
    }

    fn ended(&mut self, frame: &Frame) -> Result<Option<End>> {
        let Some(running) = &mut self.running else {
            return Ok(Some(End::Off));
        };
        let ended = running.qemu.try_wait().context("cannot wait for QEMU")?;
        let Some(status) = ended else {
            return Ok(None);
        };
        let Some(mut running) = self.running.take() else {
            return Ok(Some(End::Off));
        };
        if let Some(mut master) = running.master.take() {
            // ssh would notice it only after a timeout.
            drop(master.kill());
            drop(master.wait());
        }
        remove_file(&frame.run.join("ssh"))?;
        let reason = running.monitor.reason().with_context(|| {
            let said = fs::read_to_string(frame.dir.join("qemu.log")).unwrap_or_default();
            format!("QEMU exited with {status}: {said}")
        })?;
        match reason.as_str() {
            "guest-reset" => Ok(Some(End::Reboot)),
            "guest-shutdown" | "host-qmp-quit" => Ok(Some(End::Off)),
            other => bail!("QEMU stopped because of `{other}`"),
        }
    }

    fn cut(&mut self, frame: &Frame) -> Result<()> {
        let running = self.running.as_mut().context("it is off")?;
        running.monitor.quit()?;
        let end = Instant::now() + Duration::from_secs(20);
        while self.ended(frame)?.is_none() {
            if Instant::now() > end {
                bail!("QEMU does not quit");
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    fn enter(&self, frame: &Frame, environment: &[String], script: &str) -> Vec<String> {
        let mut argv = self.ssh(frame, &["-o", "ControlMaster=no"]);
        // ssh passes one text to a shell in the machine.
        let mut words = vec!["exec /usr/bin/env -i".to_string()];
        words.extend(environment.iter().map(|word| quoted(word)));
        words.extend(["/bin/bash -c".into(), quoted(script)]);
        argv.push(words.join(" "));
        argv
    }

    fn entry(&self, frame: &Frame) -> Option<String> {
        self.running.as_ref()?;
        Some(self.ssh(frame, &[]).join(" "))
    }
}

/// The port of a function: on the root bus, or on a separate bus with the number in the table, which QEMU's `pxb-pcie`
/// creates.
fn device<'a>(
    address: &Address,
    mut others: impl Iterator<Item = &'a Address>,
    buses: &mut Vec<u8>,
) -> Result<Vec<String>> {
    let (bus, slot) = place(address.as_str())
        .with_context(|| format!("QEMU cannot place a function at `{address}`"))?;
    let slot_of = |address: &Address| {
        address
            .as_str()
            .rsplit_once('.')
            .map(|(slot, _)| slot.to_string())
    };
    // Firmware looks for further functions only if the first one is marked as multifunction.
    let shared = others.any(|other| other != address && slot_of(other) == slot_of(address));
    let socket = serve::socket(Path::new(SOCKETS), address);
    let mut arguments = Vec::new();
    let on = if bus == 0 {
        "pcie.0".to_string()
    } else {
        if !buses.contains(&bus) {
            // The bus above it has the preceding number.
            if buses.iter().any(|other| other.abs_diff(bus) == 1) {
                bail!("`{address}` is on a bus next to another one's: QEMU needs one in between");
            }
            buses.push(bus);
            let above = bus - 1;
            arguments.extend([
                "-device".to_string(),
                format!("pxb-pcie,id=host{bus},bus=pcie.0,bus_nr={above}"),
                "-device".into(),
                format!("pcie-root-port,id=port{bus},bus=host{bus},chassis={bus}"),
            ]);
        }
        format!("port{bus}")
    };
    arguments.extend([
        "-device".to_string(),
        format!(
            r#"{{"driver":"vfio-user-pci","bus":"{on}","addr":"{slot}","multifunction":{shared},"socket":{{"type":"unix","path":"{}"}}}}"#,
            socket.display()
        ),
    ]);
    Ok(arguments)
}

/// The bus, and the slot with the function, of `0000:18:00.0`.
fn place(address: &str) -> Option<(u8, String)> {
    let mut parts = address.split(':');
    let (domain, bus, slot) = (parts.next()?, parts.next()?, parts.next()?);
    let bus = u8::from_str_radix(bus, 16).ok()?;
    (domain == "0000").then(|| (bus, slot.to_string()))
}

/// The machine's UUID in its firmware, the same at every run.
fn uuid(key: &str) -> String {
    let hex: String = Sha256::digest(key.as_bytes())
        .iter()
        .take(16)
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let parts = [0..8, 8..12, 12..16, 16..20, 20..32].map(|range| &hex[range]);
    parts.join("-")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sh::Cmd;

    #[test]
    fn function_has_configured_address() {
        assert_eq!(place("0000:18:00.0"), Some((0x18, "00.0".into())));
        assert_eq!(place("0001:18:00.0"), None);
        let address = Address::try_from("0000:18:00.0".to_string()).unwrap();
        let mut buses = Vec::new();
        let second = Address::try_from("0000:18:00.1".to_string()).unwrap();
        let first = device(&address, [&address, &second].into_iter(), &mut buses).unwrap();
        assert!(first[1].contains("bus_nr=23"), "{first:?}");
        assert!(first[5].contains(r#""multifunction":true"#), "{first:?}");
        let rest = device(&second, [].into_iter(), &mut buses).unwrap();
        assert_eq!(rest.len(), 2);
        assert!(rest[1].contains(r#""multifunction":false"#), "{rest:?}");
        let root = Address::try_from("0000:00:04.0".to_string()).unwrap();
        let on_root = device(&root, [].into_iter(), &mut buses).unwrap();
        assert!(on_root[1].contains("\"bus\":\"pcie.0\""));
    }

    #[test]
    fn script_is_quoted_for_remote_shell() {
        let done = Cmd::new([
            "/bin/sh",
            "-c",
            &format!("printf %s {}", quoted("a 'b' $c")),
        ])
        .ok()
        .unwrap();
        assert_eq!(done.stdout, "a 'b' $c");
    }
}
