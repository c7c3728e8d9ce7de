//! The cluster that this machine is a node of, and what that cluster says about the node.

use camino::Utf8Path;

use super::{State, StateError};
use crate::host::ExecError;
use crate::tools::kubernetes::{
    kubectl::{self, Kubectl},
    membership::{self, MembershipError},
};

pub use crate::tools::kubernetes::{kubectl::Registered, membership::Membership};

/// The host name: as the kernel has it, or where no kernel runs, as hostname(5) gives it at the next boot.
const HOST_NAMES: [&str; 2] = ["/proc/sys/kernel/hostname", "/etc/hostname"];

impl State {
    /// The cluster of this machine's kubelet; `None` if it has joined none.
    ///
    /// # Errors
    /// When a kubeconfig cannot be read, or is none.
    pub fn membership(&self) -> Result<Option<Membership>, StateError> {
        membership::read(&*self.host.files).map_err(|error| match error {
            MembershipError::Files(error) => error.into(),
            MembershipError::Unreadable { path, why } => StateError::Unexpected {
                what: format!("`{path}`"),
                why,
            },
        })
    }

    /// The name under which this machine is a node, or would be: the one that its kubelet was started with
    /// (`--hostname-override`, by which providers set it), otherwise its host name in small letters, as kubeadm and the
    /// kubelet make it. Source: kubernetes/kubernetes, `staging/src/k8s.io/component-helpers/node/util/hostname.go`.
    ///
    /// # Errors
    /// When processes or the host name cannot be read.
    pub fn host_name(&self) -> Result<Option<String>, StateError> {
        for process in self.host.system.processes()? {
            let command = process.command.as_deref().unwrap_or_default();
            let is_kubelet = (command.split(' ').next())
                .is_some_and(|program| program.rsplit('/').next() == Some("kubelet"));
            let named = (command.split(' '))
                .find_map(|word| word.strip_prefix("--hostname-override="))
                .filter(|name| is_kubelet && !name.is_empty());
            if let Some(name) = named {
                return Ok(Some(name.to_ascii_lowercase()));
            }
        }
        for path in HOST_NAMES {
            let text = self.host.files.read_text(Utf8Path::new(path))?;
            let text = text.unwrap_or_default();
            let mut lines = text.lines().map(str::trim);
            let name = lines.find(|line| !line.is_empty() && !line.starts_with('#'));
            if let Some(name) = name {
                return Ok(Some(name.to_ascii_lowercase()));
            }
        }
        Ok(None)
    }

    /// The kubectl of this machine.
    ///
    /// # Errors
    /// When the machine's files cannot be read.
    pub fn kubectl(&self) -> Result<Option<Kubectl>, StateError> {
        Ok(kubectl::find(&*self.host.files)?)
    }

    /// The version of the cluster's API server; `None` if it does not answer.
    ///
    /// # Errors
    /// When nothing may be executed.
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

    /// What the cluster says about a node, asked with the credentials of the kubelet and no more.
    ///
    /// # Errors
    /// When nothing may be executed, or the answer cannot be understood.
    pub async fn registered(
        &self,
        membership: &Membership,
        node: &str,
    ) -> Result<Registered, StateError> {
        let Some(kubectl) = self.kubectl()? else {
            return Ok(Registered::Silent(
                "there is no kubectl on this machine".to_owned(),
            ));
        };
        let (host, kubeconfig) = (self.host.reader(), &membership.kubeconfig);
        Ok(kubectl::registered(host, kubectl, kubeconfig, node).await?)
    }
}

#[cfg(test)]
mod tests {
    use crate::{
        host::fake,
        steps::fixtures::{facts, state_below_root},
    };

    #[test]
    fn without_a_kernel_the_name_is_that_of_the_next_boot() {
        let (host, fakes) = fake::host();
        let name = || {
            let state = state_below_root(&host, facts());
            state.host_name().expect("readable")
        };
        assert_eq!(name(), None);
        let files = &fakes.files;
        files.put("/etc/hostname", "# by the installer\n\nGPU-1\n");
        assert_eq!(name().as_deref(), Some("gpu-1"));
        files.put("/proc/sys/kernel/hostname", "gpu-2\n");
        assert_eq!(name().as_deref(), Some("gpu-2"));
    }
}
