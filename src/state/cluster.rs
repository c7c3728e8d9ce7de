//! The cluster that this machine is a node of, and the state of the node in the cluster.

use std::fmt;

use camino::Utf8Path;

use super::{State, StateError};
use crate::{
    host::ExecError,
    model::kubernetes::{NodeName, NodeNameError},
    tools::{
        kubelet,
        kubernetes::{
            kubectl::{self, Kubectl},
            membership::{self, MembershipError},
        },
    },
};

pub use crate::tools::kubernetes::{kubectl::Registered, membership::Membership};

/// The files with the host name: of the running kernel, or if no kernel runs (`--root`), of the next boot (hostname(5)).
const HOST_NAMES: [&str; 2] = ["/proc/sys/kernel/hostname", "/etc/hostname"];

/// Data directory of k3s and RKE2.
const RANCHER: &str = "/var/lib/rancher";

/// The two names of a node whose kubelet uses another name than the one in its certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Renamed {
    /// The name in the kubelet certificate.
    pub registered: NodeName,
    /// The name that the kubelet uses: the host name, or `--hostname-override`.
    pub now: NodeName,
}

impl fmt::Display for Renamed {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { registered, now } = self;
        write!(
            to,
            "the kubelet uses the node name `{now}`, but its certificate is only valid for \
             `{registered}`, the name of this machine in the cluster"
        )
    }
}

impl Renamed {
    pub fn remedy(&self) -> String {
        let Self { registered, .. } = self;
        format!(
            "restore the host name (`hostnamectl set-hostname {registered}`, then `systemctl \
             restart kubelet`), or remove the node (`kubectl delete node {registered}`; {}) and join \
             again with the new name",
            kubelet::RESET
        )
    }
}

impl State {
    /// The cluster of this machine's kubelet, or `None` if it has not joined a cluster.
    ///
    /// # Errors
    /// If a kubeconfig cannot be read or parsed.
    pub fn membership(&self) -> Result<Option<Membership>, StateError> {
        membership::read(&*self.host.files).map_err(unreadable)
    }

    /// The node name of this machine. The first of: the name in the kubelet certificate, the `--hostname-override` option of
    /// the kubelet (set by cloud providers), and the lower-case host name, like kubeadm and the kubelet. Source:
    /// kubernetes/kubernetes, `staging/src/k8s.io/component-helpers/node/util/hostname.go`.
    ///
    /// # Errors
    /// If one of these cannot be read or is not a valid node name.
    pub fn host_name(&self) -> Result<Option<NodeName>, StateError> {
        if let Some(name) = membership::node_name(&*self.host.files).map_err(unreadable)? {
            return Ok(Some(name));
        }
        let command = self.kubelet_command()?;
        self.name_for_kubelet(command.as_deref())
    }

    /// The command line of the machine's kubelet, or `None` if it is not running.
    fn kubelet_command(&self) -> Result<Option<String>, StateError> {
        let processes = self.processes_of(&["kubelet"])?;
        let mut commands = processes.into_iter();
        Ok(commands.find_map(|(_, process)| process.command))
    }

    /// The node name that a kubelet with these options uses.
    fn name_for_kubelet(&self, options: Option<&str>) -> Result<Option<NodeName>, StateError> {
        let made = |name: &str, place: &str| {
            let name = name.to_ascii_lowercase();
            (name.parse().map(Some)).map_err(|why: NodeNameError| StateError::Unexpected {
                what: place.to_owned(),
                why: why.to_string(),
            })
        };
        if let Some(name) =
            options.and_then(|options| kubelet::option(options, "--hostname-override"))
        {
            return made(name, "the kubelet's command line");
        }
        for path in HOST_NAMES {
            let text = self.host.files.read_text(Utf8Path::new(path))?;
            let text = text.unwrap_or_default();
            let mut lines = text.lines().map(str::trim);
            let name = lines.find(|line| !line.is_empty() && !line.starts_with('#'));
            if let Some(name) = name {
                return made(name, &format!("`{path}`"));
            }
        }
        Ok(None)
    }

    /// Returns both names of a node if the kubelet uses a name that differs from its certificate, such as after a change of the
    /// host name. `None` if they are equal, if one is unknown, or on a k3s or RKE2 node.
    pub fn renamed(&self) -> Result<Option<Renamed>, StateError> {
        let files = &*self.host.files;
        let Some(membership) = self.membership()? else {
            return Ok(None);
        };
        // k3s and RKE2 run the kubelet in their own process and may set the node name in their own settings.
        if membership.kubeconfig.starts_with(RANCHER) {
            return Ok(None);
        }
        let Some(registered) = membership::node_name(files).map_err(unreadable)? else {
            return Ok(None);
        };
        let options = match self.kubelet_command()? {
            Some(command) => Some(command),
            None => match files.read_text(kubelet::FLAGS.into()) {
                Err(error) if error.not_reported().is_some() => None,
                text => text?.map(|text| text.replace('"', " ")),
            },
        };
        if options.is_none() {
            return Ok(None);
        }
        let now = self.name_for_kubelet(options.as_deref())?;
        Ok(now
            .filter(|now| *now != registered)
            .map(|now| Renamed { registered, now }))
    }

    /// Finds kubectl on this machine.
    ///
    /// # Errors
    /// If the machine's files cannot be read.
    pub fn kubectl(&self) -> Result<Option<Kubectl>, StateError> {
        Ok(kubectl::find(&*self.host.files)?)
    }

    /// The version of the cluster's API server, or `None` if it does not respond or if kubectl is not installed.
    ///
    /// # Errors
    /// If kubectl cannot be executed, or if commands may not be executed.
    pub async fn api_server(&self, membership: &Membership) -> Result<Option<String>, StateError> {
        let Some(kubectl) = self.kubectl()? else {
            return Ok(None);
        };
        let query = kubectl.version(&membership.kubeconfig);
        match self.host.reader().query(&query).await {
            Ok(output) if output.ok() => Ok(kubectl::server_version(&output.stdout)),
            Ok(_) | Err(ExecError::Deadline { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads the state of a node from the cluster, using only the kubelet's credentials.
    ///
    /// # Errors
    /// If kubectl cannot be executed, if commands may not be executed, or if the response cannot be parsed.
    pub async fn registered(
        &self,
        membership: &Membership,
        node: &NodeName,
    ) -> Result<Registered, StateError> {
        let Some(kubectl) = self.kubectl()? else {
            return Ok(Registered::Silent("kubectl is not installed".to_owned()));
        };
        let (host, kubeconfig) = (self.host.reader(), &membership.kubeconfig);
        Ok(kubectl::registered(host, kubectl, kubeconfig, node).await?)
    }
}

fn unreadable(error: MembershipError) -> StateError {
    match error {
        MembershipError::Files(error) => error.into(),
        MembershipError::Unreadable { path, why } => StateError::Unexpected {
            what: format!("`{path}`"),
            why,
        },
    }
}

#[cfg(test)]
mod tests {
    use crate::{
        host::fake::{self, FakeFiles},
        state::processes::tests::{Which, run},
        steps::fixtures::{facts, state_below_root},
        tools::kubernetes::kubeconfig::tests::{NODE_CERTIFICATE, kubeconfig},
    };

    /// The node name of a machine, or the error.
    fn name(arrange: impl Fn(&FakeFiles)) -> Result<Option<String>, String> {
        let (host, fakes) = fake::host();
        arrange(&fakes.files);
        let found = state_below_root(&host, facts()).host_name();
        found
            .map(|name| name.map(|name| name.to_string()))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn host_name_without_kernel_is_read_from_etc() {
        assert_eq!(name(|_| {}), Ok(None));
        let next = |files: &FakeFiles| files.put("/etc/hostname", "# by the installer\n\nGPU-1\n");
        assert_eq!(name(next), Ok(Some("gpu-1".to_owned())));
        let booted = |files: &FakeFiles| {
            next(files);
            files.put("/proc/sys/kernel/hostname", "gpu-2\n");
        };
        assert_eq!(name(booted), Ok(Some("gpu-2".to_owned())));
    }

    #[test]
    fn host_name_that_differs_from_certificate_is_reported() {
        let renamed = |arrange: &dyn Fn(&FakeFiles)| {
            let (host, fakes) = fake::host();
            fakes.files.put("/pki/kubelet.pem", NODE_CERTIFICATE);
            fakes.files.put("/proc/sys/kernel/hostname", "new\n");
            arrange(&fakes.files);
            let found = state_below_root(&host, facts())
                .renamed()
                .expect("readable");
            found.map(|names| (names.registered.to_string(), names.now.to_string()))
        };
        let joined = |files: &FakeFiles, path: &str| {
            files.put(path, kubeconfig("client-certificate: /pki/kubelet.pem"));
        };
        let by_kubeadm = |files: &FakeFiles| joined(files, "/etc/kubernetes/kubelet.conf");
        let expected = Some(("gpu-7.example".to_owned(), "new".to_owned()));
        let runs = |files: &FakeFiles| {
            by_kubeadm(files);
            run(files, 7, Which::Own, "/usr/bin/kubelet --v=2");
        };
        assert_eq!(renamed(&runs), expected);
        // A kubelet that has stopped.
        let flags = "KUBELET_KUBEADM_ARGS=\"--v=2\"\n";
        let stopped = |files: &FakeFiles| {
            by_kubeadm(files);
            files.put("/var/lib/kubelet/kubeadm-flags.env", flags);
        };
        assert_eq!(renamed(&stopped), expected);
        let overridden = |files: &FakeFiles| {
            by_kubeadm(files);
            let flags = flags.replace("--v=2", "--hostname-override=gpu-7.example");
            files.put("/var/lib/kubelet/kubeadm-flags.env", flags);
        };
        let same = |files: &FakeFiles| {
            runs(files);
            files.put("/proc/sys/kernel/hostname", "GPU-7.example\n");
        };
        let of_k3s =
            |files: &FakeFiles| joined(files, "/var/lib/rancher/k3s/agent/kubelet.kubeconfig");
        for arrange in [
            &overridden as &dyn Fn(&FakeFiles),
            &same,
            &of_k3s,
            // The options of the kubelet are unknown.
            &by_kubeadm,
            &|_| {},
        ] {
            assert_eq!(renamed(arrange), None);
        }
    }

    #[test]
    fn hostname_override_is_read_in_both_forms() {
        for command in [
            "/usr/bin/kubelet --v=2 --hostname-override=Node-7 --x",
            "/usr/bin/kubelet --hostname-override Node-7",
        ] {
            let found = name(|files| {
                files.put("/etc/hostname", "gpu-1\n");
                run(files, 7, Which::Own, command);
            });
            assert_eq!(found, Ok(Some("node-7".to_owned())), "{command}");
        }
        let without = name(|files| {
            files.put("/etc/hostname", "gpu-1\n");
            run(files, 7, Which::Own, "/usr/bin/kubelet --hostname-override");
        });
        assert_eq!(without, Ok(Some("gpu-1".to_owned())));
    }

    #[test]
    fn command_lines_of_foreign_processes_are_ignored() {
        for which in [
            Which::OfUser(65534),
            Which::Contained("pid"),
            Which::Contained("mnt"),
            Which::Executing("/usr/bin/sudo"),
            Which::Unseen,
        ] {
            let found = name(|files| {
                files.put("/etc/hostname", "gpu-1\n");
                let command = "kubelet --hostname-override=--kubeconfig=/tmp/x";
                run(files, 7, which, command);
            });
            assert_eq!(found, Ok(Some("gpu-1".to_owned())), "{which:?}");
        }
    }

    #[test]
    fn invalid_node_names_are_rejected() {
        let option = "/usr/bin/kubelet --hostname-override=--kubeconfig=/tmp/x";
        let by_kubelet = name(|files| run(files, 7, Which::Own, option));
        let by_file = name(|files| files.put("/proc/sys/kernel/hostname", "-x\n"));
        for (found, place) in [(by_kubelet, "command line"), (by_file, "/kernel/hostname")] {
            let error = found.expect_err("no name");
            assert!(
                error.contains(place) && error.contains("not a valid node name"),
                "{error}"
            );
        }
    }

    #[test]
    fn name_in_kubelet_certificate_takes_precedence() {
        let inside = kubeconfig(&format!("client-certificate-data: {}", {
            use base64::{Engine, engine::general_purpose::STANDARD};
            STANDARD.encode(NODE_CERTIFICATE)
        }));
        let file = kubeconfig("client-certificate: /pki/kubelet.pem");
        for text in [inside, file] {
            let found = name(|files| {
                files.put("/etc/hostname", "gpu-1\n");
                run(
                    files,
                    7,
                    Which::Own,
                    "/usr/bin/kubelet --hostname-override=gpu-2",
                );
                files.put("/pki/kubelet.pem", NODE_CERTIFICATE);
                files.put("/var/lib/kubelet/kubeconfig", text.clone());
            });
            assert_eq!(found, Ok(Some("gpu-7.example".to_owned())), "{text}");
        }
        // The cloud's credential plugin provides a token instead of a certificate.
        let found = name(|files| {
            files.put("/etc/hostname", "gpu-1\n");
            files.put(
                "/var/lib/kubelet/kubeconfig",
                kubeconfig("exec: {command: aws}"),
            );
        });
        assert_eq!(found, Ok(Some("gpu-1".to_owned())));
    }
}
