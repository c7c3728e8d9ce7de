//! A Kubernetes control plane next to the machine of a case: real etcd, API server and controller manager, prepared by
//! real kubeadm. It has its own network namespace, connected to the machine's by a pair of virtual cards (veth), and a
//! root directory in which its files are at the paths that kubeadm uses.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::Deserialize;
use sha2::{Digest, Sha256};

use crate::cases::fill;
use crate::kubernetes::{API_SERVER, CONTROLLERS, ETCD, KUBEADM, KUBECTL};
use crate::machine::Machine;
use crate::sh::{Cmd, Done};
use crate::simulation::INSIDE;
use crate::{net, out, pods};

const ADDRESS: &str = "10.0.0.1";
const PORT: u16 = 6443;
/// The port where an RKE2 server registers nodes.
const RKE2_PORT: u16 = 9345;
/// The address of the machine's card.
const MACHINE: &str = "10.0.0.2/24";
const STORE: &str = "http://127.0.0.1:2379";

/// The longest time until a part of the control plane is ready, while other machines boot.
const START: Duration = Duration::from_secs(180);

const CONFIG: &str = include_str!("../../kubernetes/kubeadm.yaml");
const ACCOUNT: &str = include_str!("../../kubernetes/node-manager.yaml");
const DAEMON_SET: &str = include_str!("../../../../cloud-init/daemonset/daemonset.yaml");
const GPU_POD: &str = include_str!("../../../../cloud-init/daemonset/gpu-pod.yaml");
const NETWORK: &str = include_str!("../../kubernetes/bridge.conflist");
const ADMIN: &str = include_str!("../files/cluster-admin.sh");
const SECRET: &str = include_str!("../files/secret.sh");
const IMAGE: &str = include_str!("../../../../release/image.py");
const MAKE_IMAGE: &str = include_str!("../files/make-image.sh");
const RUN_PODS: &str = include_str!("../files/run-pods.sh");
const RUN_DAEMON_SET: &str = include_str!("../files/run-daemonset.sh");
const UNAVAILABLE: &str = include_str!("../files/unavailable.sh");

/// In the root of the control plane.
const ALL_RIGHTS: &str = "etc/kubernetes/super-admin.conf";
const NO_CHECK: &str = "etc/kubernetes/no-check.conf";

/// Line prefixes of its logs that are not errors.
const INFORMATION: [&str; 2] = ["I", "{\"level\":\"info\""];

/// Files that a kubelet reads but cannot write in a container, with the values that it needs.
const SYSCTLS: [(&str, &str); 3] = [
    ("kernel/panic", "10"),
    ("kernel/panic_on_oops", "1"),
    ("vm/overcommit_memory", "1"),
];

/// Creates an API server certificate that is valid from tomorrow on, signed by the cluster CA for the existing key.
const NOT_YET_VALID: &str = r#"set -eu
cd "$1/etc/kubernetes/pki"
day=$(date -u -d tomorrow +%y%m%d%H%M%SZ)
year=$(date -u -d 'next year' +%y%m%d%H%M%SZ)
work=$(mktemp -d)
trap 'rm -r "$work"' EXIT
: >"$work/index"
cat >"$work/ca.conf" <<END
[ca]
default_ca = one
[one]
database = $work/index
new_certs_dir = $work
rand_serial = yes
default_md = sha256
policy = any
copy_extensions = copy
[any]
commonName = supplied
END
openssl req -new -key apiserver.key -subj /CN=kube-apiserver -addext "subjectAltName=IP:$2" -out "$work/request"
openssl ca -batch -notext -config "$work/ca.conf" -cert ca.crt -keyfile ca.key \
    -startdate "$day" -enddate "$year" -in "$work/request" -out not-yet-valid.crt
"#;

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
    programs: PathBuf,
    /// Programs that the machine needs to run pods.
    for_pods: PathBuf,
    netns: PathBuf,
    /// The listener at its address: the API server or its replacement.
    server: Option<Child>,
    /// The behavior of the listener, before a signal stopped it.
    behaviour: Behaviour,
    /// Whether it is stopped by a signal.
    stopped: bool,
    /// The controller manager.
    controllers: Option<Child>,
    starts: usize,
    logs: Vec<PathBuf>,
    values: BTreeMap<String, String>,
}

impl Cluster {
    /// Starts it next to a machine that is not up yet, and gives the machine the files of a node.
    pub fn start(
        machine: &Machine,
        (programs, for_pods): (&Path, &Path),
        wish: &Wish,
    ) -> Result<Cluster> {
        let mut cluster = Cluster {
            root: machine.log("cluster"),
            programs: programs.to_path_buf(),
            for_pods: for_pods.to_path_buf(),
            netns: net::beside(machine.run(), machine.netns(), ADDRESS, MACHINE)?,
            server: None,
            behaviour: Behaviour::Down,
            stopped: false,
            controllers: None,
            starts: 0,
            logs: Vec::new(),
            values: BTreeMap::new(),
        };
        cluster.lay()?;
        cluster.tokens(machine)?;
        for phase in [
            ["certs", "all"],
            ["kubeconfig", "all"],
            ["control-plane", "all"],
        ] {
            cluster.phase(machine, &phase)?;
        }
        cluster.trust_all()?;
        cluster.store(machine)?;
        cluster.behave(machine, Behaviour::Up)?;
        cluster.controllers(machine)?;
        for phase in [&["upload-config", "all"][..], &["bootstrap-token"]] {
            cluster.phase(machine, phase)?;
        }
        cluster.admit(machine)?;
        cluster.equip(machine, wish)?;
        if wish.agents {
            cluster.register(machine)?;
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
        let more: &[&str] = match behaviour {
            Behaviour::Down | Behaviour::Silent => return Ok(()),
            Behaviour::Unavailable => return self.refuse(machine),
            Behaviour::Up => &[],
            Behaviour::NotYetValid => {
                let root = self.root.to_string_lossy();
                Cmd::new(["/bin/sh", "-c", NOT_YET_VALID, "sh", &root, ADDRESS])
                    .ok()
                    .context("cannot make a certificate")?;
                &["--tls-cert-file=/etc/kubernetes/pki/not-yet-valid.crt"]
            }
        };
        let mut argv = self.manifest(API_SERVER)?;
        argv.extend(more.iter().map(|word| (*word).to_string()));
        self.server = Some(self.daemon(machine, API_SERVER, argv)?);
        let ready = ["--kubeconfig", NO_CHECK, "get", "--raw", "/readyz"];
        self.wait("the API server", || {
            Ok(self.program(machine, KUBECTL, &ready).run()?.code == 0)
        })?;
        // In a cluster, a controller manager that has not reached the API server for some seconds exits and is
        // restarted. Without the restart it would retry only after half a minute.
        if behaviour == Behaviour::Up
            && let Some(mut controllers) = self.controllers.take()
        {
            let ended = controllers.kill().and_then(|()| controllers.wait());
            ended.context("cannot kill the controller manager")?;
            self.controllers(machine)?;
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

    /// Creates its root directory.
    fn lay(&self) -> Result<()> {
        let bin = self.root.join("usr/bin");
        for dir in [
            &bin,
            &self.root.join("tmp"),
            &self.root.join("etc/kubernetes"),
        ] {
            fs::create_dir_all(dir).context("cannot create a directory")?;
        }
        for name in [KUBEADM, KUBECTL, API_SERVER, CONTROLLERS] {
            fs::hard_link(self.programs.join(name), bin.join(name))
                .with_context(|| format!("cannot link {name}"))?;
        }
        Ok(())
    }

    /// Creates tokens: one that joins, an expired one, and an unknown one.
    fn tokens(&mut self, machine: &Machine) -> Result<()> {
        for name in ["join-token", "expired-token", "wrong-token"] {
            let done = self
                .program(machine, KUBEADM, &["token", "generate"])
                .ok()?;
            self.values.insert(name.into(), done.stdout.trim().into());
        }
        let version = self
            .program(machine, KUBEADM, &["version", "--output=short"])
            .ok()?
            .stdout;
        for (name, value) in [
            ("api-server", format!("{ADDRESS}:{PORT}")),
            ("rke2-server", format!("{ADDRESS}:{RKE2_PORT}")),
            ("address", ADDRESS.into()),
            ("port", PORT.to_string()),
            ("etcd", STORE.into()),
            ("version", version.trim().into()),
        ] {
            self.values.insert(name.into(), value);
        }
        let text = fill(CONFIG, &self.values)?;
        fs::write(self.root.join("kubeadm.yaml"), text).context("cannot write a configuration")?;
        for name in ["address", "port", "etcd", "version"] {
            self.values.remove(name);
        }
        Ok(())
    }

    fn phase(&self, machine: &Machine, phase: &[&str]) -> Result<Done> {
        let mut arguments = vec!["init", "phase"];
        arguments.extend(phase);
        arguments.extend(["--config", "/kubeadm.yaml"]);
        self.program(machine, KUBEADM, &arguments).ok()
    }

    /// Writes a kubeconfig that accepts every certificate, to query whether the API server is ready.
    fn trust_all(&self) -> Result<()> {
        let text =
            fs::read_to_string(self.root.join(ALL_RIGHTS)).context("cannot read a kubeconfig")?;
        let text: Vec<&str> = (text.lines())
            .map(
                |line| match line.trim().starts_with("certificate-authority-data:") {
                    true => "    insecure-skip-tls-verify: true",
                    false => line,
                },
            )
            .collect();
        fs::write(self.root.join(NO_CHECK), text.join("\n")).context("cannot write a kubeconfig")
    }

    fn store(&mut self, machine: &Machine) -> Result<()> {
        let argv = [
            self.programs.join(ETCD).to_string_lossy().into_owned(),
            format!("--data-dir={}", self.root.join("etcd").display()),
            format!("--listen-client-urls={STORE}"),
            format!("--advertise-client-urls={STORE}"),
            "--listen-peer-urls=http://127.0.0.1:2380".into(),
            "--logger=zap".into(),
        ];
        self.beside(machine, ETCD, argv.to_vec()).map(drop)
    }

    /// Registers RKE2 nodes: the fake agent sends the same request there that it sends to the k3s server at the API
    /// server's port.
    fn register(&mut self, machine: &Machine) -> Result<()> {
        let listen = format!("TCP-LISTEN:{RKE2_PORT},bind={ADDRESS},reuseaddr,fork");
        let argv = ["socat", &listen, &format!("TCP:{ADDRESS}:{PORT}")].map(String::from);
        self.beside(machine, "rke2-server", argv.to_vec())?;
        self.listens("the RKE2 node registration", RKE2_PORT)
    }

    fn controllers(&mut self, machine: &Machine) -> Result<()> {
        let mut argv = self.manifest(CONTROLLERS)?;
        // There is only one instance.
        argv.push("--leader-elect=false".into());
        self.controllers = Some(self.daemon(machine, CONTROLLERS, argv)?);
        Ok(())
    }

    /// Lets machines join, and creates the account of a node administrator.
    fn admit(&mut self, machine: &Machine) -> Result<()> {
        let token = self.value("join-token").to_string();
        let created = [
            "token",
            "create",
            &token,
            "--print-join-command",
            "--kubeconfig",
        ];
        let done = self.program(machine, KUBEADM, &[&created[..], &[ALL_RIGHTS]].concat());
        let said = done.ok()?.stdout;
        let hash = (said.split_whitespace())
            .find(|word| word.starts_with("sha256:"))
            .context("kubeadm prints no CA hash")?;
        let wrong: String = hash.chars().rev().take(64).collect();
        self.values
            .insert("wrong-ca-hash".into(), format!("sha256:{wrong}"));
        self.values.insert("ca-hash".into(), hash.into());
        let authority = self.authority()?;
        self.values.insert("ca-certificate".into(), authority);
        // In the format of `k3s token create`.
        let certificate = fs::read(self.root.join("etc/kubernetes/pki/ca.crt"));
        let hash = Sha256::digest(certificate.context("cannot read the CA certificate")?);
        let hash: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        for (name, token) in [
            ("agent-token", "join-token"),
            ("wrong-agent-token", "wrong-token"),
        ] {
            let secure = format!("K10{hash}::{}", self.value(token));
            self.values.insert(name.into(), secure);
        }
        let apply = self.kubectl(&["apply", "--filename", "-"]);
        self.program(machine, KUBECTL, &apply).stdin(ACCOUNT).ok()?;
        let (id, _) = token.split_once('.').context("a token has two parts")?;
        let signed = format!("jsonpath={{.data.jws-kubeconfig-{id}}}");
        let signed = self.kubectl(&[
            "get",
            "configmap",
            "cluster-info",
            "--namespace=kube-public",
            "--output",
            &signed,
        ]);
        self.wait("the signature of the cluster-info ConfigMap", || {
            let done = self.program(machine, KUBECTL, &signed).run()?;
            Ok(done.code == 0 && !done.stdout.trim().is_empty())
        })?;
        let (id, _) = self
            .value("expired-token")
            .split_once('.')
            .unwrap_or_default();
        let expired = format!("secret/bootstrap-token-{id}");
        let expired = self.kubectl(&[
            "get",
            &expired,
            "--namespace=kube-system",
            "--ignore-not-found",
        ]);
        self.wait("the removal of the expired token", || {
            let done = self.program(machine, KUBECTL, &expired).run()?;
            Ok(done.code == 0 && done.stdout.trim().is_empty())
        })
    }

    /// Gives the machine the files of a node, and those that its case requests.
    fn equip(&self, machine: &Machine, wish: &Wish) -> Result<()> {
        let root = machine.root();
        let at = |path: &str| root.join(path.trim_start_matches('/'));
        let here = format!("{INSIDE}/cluster");
        machine.put(&self.programs.join(KUBECTL), &format!("{here}/kubectl"))?;
        machine.put(&self.root.join(ALL_RIGHTS), &format!("{here}/admin.conf"))?;
        for name in pods::PROGRAMS {
            machine.put(&self.for_pods.join(name), &format!("{here}/{name}"))?;
        }
        write(&at(&here).join("daemonset.yaml"), DAEMON_SET, 0o644)?;
        write(&at(&here).join("gpu-pod.yaml"), GPU_POD, 0o644)?;
        if wish.image {
            self.write_image(&at("usr/local/bin/gpu-bootstrap"), &at(&here))?;
        }
        write(&at(INSIDE).join("make-image"), MAKE_IMAGE, 0o755)?;
        write(&at(INSIDE).join("run-pods"), RUN_PODS, 0o755)?;
        write(&at(INSIDE).join("run-daemonset"), RUN_DAEMON_SET, 0o755)?;
        write(&at(INSIDE).join("cluster-admin"), ADMIN, 0o755)?;
        write(&at(INSIDE).join("secret"), SECRET, 0o755)?;
        for (name, value) in SYSCTLS {
            write(
                &at(&here).join("sys").join(name),
                &format!("{value}\n"),
                0o644,
            )?;
        }
        write(&at("etc/cni/net.d/10-bridge.conflist"), NETWORK, 0o644)?;
        if let Some(path) = &wish.token_file {
            let token = match wish.agents {
                true => "agent-token",
                false => "join-token",
            };
            write(&at(path), &format!("{}\n", self.value(token)), 0o600)?;
        }
        if let Some(path) = &wish.kubeconfig {
            write(&at(path), &self.account(machine)?, 0o600)?;
        }
        if let Some(node) = &wish.node {
            let name = format!("--client-name=system:node:{node}");
            let user = [
                "kubeconfig",
                "user",
                "--config=/kubeadm.yaml",
                "--org=system:nodes",
                &name,
            ];
            let kubeconfig = self.program(machine, KUBEADM, &user).ok()?.stdout;
            write(&at(&here).join("node.conf"), &kubeconfig, 0o600)?;
            machine.put(&self.programs.join("kubelet"), &format!("{here}/kubelet"))?;
        }
        Ok(())
    }

    /// Writes the container image of the release with this program, as version 1.
    fn write_image(&self, program: &Path, directory: &Path) -> Result<()> {
        let files = self.root.join("image");
        fs::create_dir(&files).context("cannot create a directory")?;
        fs::copy(program, files.join("gpu-bootstrap")).context("cannot copy the program")?;
        let output = directory.join("image.tar");
        let source = format!("x86_64={}", files.display());
        let output = output.to_string_lossy();
        Cmd::new(["python3", "-c", IMAGE, "1", "test", &output, &source])
            .env("SOURCE_DATE_EPOCH", "0")
            .ok()
            .context("cannot write the container image")
            .map(drop)
    }

    /// The CA certificate in base64.
    fn authority(&self) -> Result<String> {
        let all =
            fs::read_to_string(self.root.join(ALL_RIGHTS)).context("cannot read a kubeconfig")?;
        let authority =
            (all.lines()).find_map(|line| line.trim().strip_prefix("certificate-authority-data: "));
        let authority = authority.context("kubeadm's kubeconfig contains no CA")?;
        Ok(authority.to_string())
    }

    /// The kubeconfig of the node administrator account.
    fn account(&self, machine: &Machine) -> Result<String> {
        let create = self.kubectl(&[
            "create",
            "token",
            "node-manager",
            "--namespace=kube-system",
            "--duration=24h",
        ]);
        let token = self.program(machine, KUBECTL, &create).ok()?.stdout;
        let authority = self.authority()?;
        Ok(format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: node-manager\nclusters:\n- name: test-bed\n  cluster:\n    \
             certificate-authority-data: {authority}\n    server: https://{}\ncontexts:\n- name: node-manager\n  \
             context:\n    cluster: test-bed\n    user: node-manager\nusers:\n- name: node-manager\n  user:\n    \
             token: {}\n",
            self.value("api-server"),
            token.trim()
        ))
    }

    /// Returns 503 instead of the API server.
    fn refuse(&mut self, machine: &Machine) -> Result<()> {
        let pki = self.root.join("etc/kubernetes/pki");
        let script = self.root.join("unavailable.sh");
        fs::write(&script, UNAVAILABLE).context("cannot write a script")?;
        let listen = format!(
            "OPENSSL-LISTEN:{PORT},reuseaddr,fork,verify=0,cert={pki}/apiserver.crt,key={pki}/apiserver.key",
            pki = pki.display()
        );
        let answer = format!("EXEC:/bin/sh {}", script.display());
        let argv = ["socat".to_string(), listen, answer].to_vec();
        self.server = Some(self.beside(machine, "unavailable", argv)?);
        self.listens("the server that returns 503", PORT)
    }

    /// Waits for a listener at a port.
    fn listens(&self, what: &str, port: u16) -> Result<()> {
        let question = format!("sport = :{port}");
        let asked = self.inside(["ss", "-Hltn", &question].map(String::from).to_vec());
        self.wait(what, || {
            Ok(!Cmd::new(asked.clone()).ok()?.stdout.trim().is_empty())
        })
    }

    /// The command of a control plane component, from its kubeadm manifest.
    fn manifest(&self, name: &str) -> Result<Vec<String>> {
        let path = self
            .root
            .join(format!("etc/kubernetes/manifests/{name}.yaml"));
        let text =
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let argv = command(&text);
        if argv.first().is_none_or(|program| program != name) {
            bail!("{} has no command of {name}", path.display());
        }
        Ok(argv)
    }

    fn daemon(&mut self, machine: &Machine, name: &str, argv: Vec<String>) -> Result<Child> {
        let argv = self.in_root(argv);
        self.beside(machine, name, argv)
    }

    /// Starts a program in the control plane's network. It is killed with the machine at the latest.
    fn beside(&mut self, machine: &Machine, name: &str, argv: Vec<String>) -> Result<Child> {
        let log = self.log(name);
        let argv = self.inside(argv);
        let argv: Vec<&str> = argv.iter().map(String::as_str).collect();
        machine.beside(&argv, &log)
    }

    fn kubectl<'a>(&self, arguments: &[&'a str]) -> Vec<&'a str> {
        [&["--kubeconfig", ALL_RIGHTS], arguments].concat()
    }

    /// A command line of a control plane program.
    fn program(&self, machine: &Machine, name: &str, arguments: &[&str]) -> Cmd {
        let mut argv = vec![name.to_string()];
        argv.extend(arguments.iter().map(|word| (*word).to_string()));
        machine.aside(&self.inside(self.in_root(argv)))
    }

    fn in_root(&self, argv: Vec<String>) -> Vec<String> {
        let mut full = vec![
            "chroot".to_string(),
            self.root.to_string_lossy().into_owned(),
        ];
        full.extend(argv);
        full
    }

    fn inside(&self, argv: Vec<String>) -> Vec<String> {
        let mut full = vec![
            "nsenter".into(),
            format!("--net={}", self.netns.display()),
            "--".into(),
        ];
        full.extend(argv);
        full
    }

    fn log(&mut self, name: &str) -> PathBuf {
        self.starts += 1;
        let log = self.root.join(format!("{name}-{}.log", self.starts));
        self.logs.push(log.clone());
        log
    }

    fn value(&self, name: &str) -> &str {
        self.values.get(name).map_or("", String::as_str)
    }

    fn wait(&self, what: &str, ready: impl Fn() -> Result<bool>) -> Result<()> {
        let end = Instant::now() + START;
        while Instant::now() < end {
            if ready()? {
                return Ok(());
            }
            thread::sleep(Duration::from_millis(200));
        }
        bail!("{what} is not ready:\n{}", self.said())
    }
}

fn signal(child: &Child, signal: Signal) -> Result<()> {
    let pid = i32::try_from(child.id()).context("a process id too large")?;
    kill(Pid::from_raw(pid), signal).context("cannot signal the API server")
}

/// The command of the container in a manifest: the list below `command`.
fn command(manifest: &str) -> Vec<String> {
    (manifest.lines())
        .skip_while(|line| line.trim() != "- command:")
        .skip(1)
        .map_while(|line| line.trim().strip_prefix("- "))
        .map(String::from)
        .collect()
}

fn write(path: &Path, text: &str, mode: u32) -> Result<()> {
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    }
    fs::write(path, text)
        .and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(mode)))
        .with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manifest_command_is_parsed() {
        let text = "spec:\n  containers:\n  - command:\n    - kube-apiserver\n    - --secure-port=6443\n    \
                    image: registry.k8s.io/kube-apiserver:v1.34.4\n    - --not-this\n";
        assert_eq!(command(text), ["kube-apiserver", "--secure-port=6443"]);
        assert!(command("spec: {}\n").is_empty());
    }
}
