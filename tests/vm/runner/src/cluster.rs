//! A Kubernetes control plane next to the machine of a case: real etcd, API server and controller manager, prepared by
//! real kubeadm. It has its own network namespace, connected to the machine's by a pair of virtual cards (veth), and a
//! root directory in which its files are at the paths that kubeadm uses.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::Deserialize;

use crate::bed::Bed;
use crate::kubernetes::{API_SERVER, CONTROLLERS, ETCD};
use crate::machine::Machine;
use crate::sh::{Script, path, script};
use crate::{net, out};

const ADDRESS: &str = "10.0.0.1";
/// The address of the machine's card.
const MACHINE: &str = "10.0.0.2/24";

/// The tasks of a control plane.
const SCRIPT: Script = script!("control-plane.sh");

/// The longest time for a task, while other machines boot. It waits for at most two parts of the control plane, three
/// minutes each.
const LIMIT: Duration = Duration::from_secs(1200);

/// Line prefixes of its logs that are not errors.
const INFORMATION: [&str; 2] = ["I", "{\"level\":\"info\""];

/// The control plane that a case needs.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Wish {
    /// Path on the machine for the bootstrap token.
    pub token_file: Option<String>,
    /// Path on the machine for a kubeconfig whose account may drain and delete nodes.
    pub kubeconfig: Option<String>,
    /// Installs the fake of the k3s and RKE2 agents on the machine.
    #[serde(default)]
    pub agents: bool,
    /// Adds the container image of the release, with the program of the machine.
    #[serde(default)]
    pub image: bool,
    /// The name of the node on an EKS machine, which has the real kubelet and uses a certificate of this node instead
    /// of an IAM token.
    pub node: Option<String>,
}

/// The behavior of the control plane from a step on.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Behaviour {
    /// Works normally.
    Up,
    /// Connections are refused.
    Down,
    /// Connections are accepted, but no request gets a response.
    Silent,
    /// Returns 503 for each request.
    Unavailable,
    /// Its certificate is valid from tomorrow on, so to a machine that verifies it its own clock seems a day behind.
    NotYetValid,
}

/// A control plane.
pub struct Cluster {
    root: PathBuf,
    repo: PathBuf,
    netns: PathBuf,
    /// The listener at its address: the API server or its replacement.
    server: Option<Child>,
    /// The behavior of the listener, before a signal stopped it.
    behaviour: Behaviour,
    /// Whether it is stopped by a signal.
    stopped: bool,
    /// The controller manager.
    controllers: Option<Child>,
    logs: Vec<PathBuf>,
    values: BTreeMap<String, String>,
}

impl Cluster {
    /// Starts it next to a machine that is not up yet, and gives the machine the files of a node. The directories contain
    /// the Kubernetes programs and those that the machine needs to run pods.
    pub fn start(
        bed: &Bed,
        machine: &Machine,
        (programs, for_pods): (&Path, &Path),
        wish: &Wish,
    ) -> Result<Cluster> {
        let mut cluster = Cluster {
            root: machine.log("cluster"),
            repo: bed.repo.clone(),
            netns: net::beside(machine.run(), machine.netns(), ADDRESS, MACHINE)?,
            server: None,
            behaviour: Behaviour::Down,
            stopped: false,
            controllers: None,
            logs: Vec::new(),
            values: BTreeMap::new(),
        };
        cluster.task(machine, "prepare", &[&path(programs)])?;
        cluster.daemon(machine, ETCD, &[&path(&programs.join(ETCD))])?;
        cluster.behave(machine, Behaviour::Up)?;
        cluster.control(machine)?;
        cluster.task(machine, "admit", &[])?;
        let values = fs::read_to_string(cluster.root.join("values"))
            .context("cannot read the values of the control plane")?;
        cluster.values = (values.lines().filter_map(|line| line.split_once(' ')))
            .map(|(name, value)| (name.into(), value.into()))
            .collect();
        cluster.equip(machine, (programs, for_pods), wish)?;
        if wish.agents {
            cluster.daemon(machine, "rke2-server", &[])?;
            cluster.task(machine, "ready", &["rke2-server"])?;
        }
        Ok(cluster)
    }

    /// Values for templates.
    pub fn values(&self) -> &BTreeMap<String, String> {
        &self.values
    }

    /// Sets the behavior from now on. Existing connections are closed.
    pub fn behave(&mut self, machine: &Machine, behaviour: Behaviour) -> Result<()> {
        if behaviour == Behaviour::Silent {
            let server = self.server.as_ref().context("no listener")?;
            self.stopped = true;
            return signal(server, Signal::SIGSTOP);
        }
        if self.stopped && behaviour == Behaviour::Up && self.behaviour == Behaviour::Up {
            let server = self.server.as_ref().context("no listener")?;
            self.stopped = false;
            return signal(server, Signal::SIGCONT);
        }
        if let Some(mut server) = self.server.take() {
            self.stopped = false;
            server.kill().context("cannot kill the API server")?;
            server.wait().context("cannot wait for the API server")?;
        }
        self.behaviour = behaviour;
        let (name, more): (_, &[&str]) = match behaviour {
            Behaviour::Down | Behaviour::Silent => return Ok(()),
            Behaviour::Unavailable => ("unavailable", &[]),
            Behaviour::Up => (API_SERVER, &[]),
            Behaviour::NotYetValid => {
                self.task(machine, "not-yet-valid", &[])?;
                let certificate = "--tls-cert-file=/etc/kubernetes/pki/not-yet-valid.crt";
                (API_SERVER, &[certificate])
            }
        };
        self.server = Some(self.daemon(machine, name, more)?);
        self.task(machine, "ready", &[name])?;
        // In a cluster, a controller manager that has not reached the API server for some seconds exits and is
        // restarted. Without the restart it would retry only after half a minute.
        if behaviour == Behaviour::Up
            && let Some(mut controllers) = self.controllers.take()
        {
            let ended = controllers.kill().and_then(|()| controllers.wait());
            ended.context("cannot kill the controller manager")?;
            self.control(machine)?;
        }
        Ok(())
    }

    /// The end of each log without informational lines, for a failed case.
    pub fn said(&self) -> String {
        let tail = |log: &PathBuf| {
            let text = fs::read_to_string(log).unwrap_or_default();
            let text: Vec<&str> = (text.lines())
                .filter(|line| !INFORMATION.iter().any(|start| line.starts_with(start)))
                .collect();
            let text = text.join("\n");
            let name = log.file_name().unwrap_or_default().to_string_lossy();
            format!("{name}:\n{}", out::tail(&text, 4))
        };
        self.logs.iter().map(tail).collect::<Vec<_>>().join("\n")
    }

    fn control(&mut self, machine: &Machine) -> Result<()> {
        // There is only one instance.
        self.controllers = Some(self.daemon(machine, CONTROLLERS, &["--leader-elect=false"])?);
        Ok(())
    }

    /// Gives the machine the files of a node, and those that its case requests.
    fn equip(
        &self,
        machine: &Machine,
        (programs, for_pods): (&Path, &Path),
        wish: &Wish,
    ) -> Result<()> {
        let root = machine.root();
        let at = |file: &str| root.join(file.trim_start_matches('/'));
        let to = path(&root);
        self.task(machine, "equip", &[&to, &path(programs), &path(for_pods)])?;
        if wish.image {
            self.task(machine, "image", &[&to])?;
        }
        if let Some(file) = &wish.token_file {
            let token = match wish.agents {
                true => "agent-token",
                false => "join-token",
            };
            self.task(machine, "token", &[token, &path(&at(file))])?;
        }
        if let Some(file) = &wish.kubeconfig {
            self.task(machine, "kubeconfig", &[&path(&at(file))])?;
        }
        if let Some(node) = &wish.node {
            self.task(machine, "node", &[&to, node, &path(programs)])?;
        }
        Ok(())
    }

    /// Runs a task of the script until it ends.
    fn task(&self, machine: &Machine, task: &str, arguments: &[&str]) -> Result<()> {
        let command = machine.aside(&self.argv(task, arguments));
        let done = command.deadline(LIMIT).ok();
        done.map(drop).with_context(|| {
            let said = self.said();
            format!("the task `{task}` of the control plane failed:\n{said}")
        })
    }

    /// Starts a program in the control plane's network. It is killed with the machine at the latest.
    fn daemon(&mut self, machine: &Machine, name: &str, arguments: &[&str]) -> Result<Child> {
        let log = (self.root).join(format!("{name}-{}.log", self.logs.len() + 1));
        self.logs.push(log.clone());
        let argv = self.argv(name, arguments);
        let argv: Vec<&str> = argv.iter().map(String::as_str).collect();
        machine.beside(&argv, &log)
    }

    /// The command line of a task.
    fn argv(&self, task: &str, arguments: &[&str]) -> Vec<String> {
        let [root, repo] = [&self.root, &self.repo].map(|at| path(at));
        let arguments = [&[&*root, ADDRESS, &repo, task], arguments].concat();
        let mut argv = vec![
            "nsenter".into(),
            format!("--net={}", self.netns.display()),
            "--".into(),
        ];
        argv.extend(SCRIPT.argv(&arguments));
        argv
    }
}

fn signal(child: &Child, signal: Signal) -> Result<()> {
    let pid = i32::try_from(child.id()).context("a process id too large")?;
    kill(Pid::from_raw(pid), signal).context("cannot signal the API server")
}
