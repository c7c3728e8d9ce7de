//! `cluster.kernel`: kernel requirements of the kubelet and pod networks: overlay filesystems, iptables for bridged
//! packets, forwarding, and no swap.
//!
//! Source: Kubernetes, "Container Runtimes" (modules and sysctls) and "Installing kubeadm" (swap).

use std::collections::BTreeMap;

use camino::{Utf8Path, Utf8PathBuf};

use super::{no_cluster, spec};
use crate::{
    change::Change,
    config::desired::Desired,
    host::digest::sha256,
    step::{Assessment, Cx, Step, StepError},
    steps::{CLUSTER_KERNEL, HEADERS},
    tools::{packages::HEADER, sysctl},
};

/// The file for `systemd-modules-load.service`.
const MODULES_FILE: &str = "/etc/modules-load.d/gpu-bootstrap-kubernetes.conf";

/// A file for `systemd-sysctl.service`. Files are applied in the order of their names, regardless of their directory
/// (sysctl.d(5)), so this name sorts after the `99-sysctl.conf` of distributions.
const SYSCTL_FILE: &str = "/etc/sysctl.d/99-zz-gpu-bootstrap-kubernetes.conf";

/// Each module with a path that exists if it is loaded or built into the kernel.
const MODULES: [(&str, &str); 2] = [
    ("overlay", "/sys/module/overlay"),
    ("br_netfilter", "/proc/sys/net/bridge"),
];

const SYSCTLS: [(&str, &str); 3] = [
    ("net.bridge.bridge-nf-call-ip6tables", "1"),
    ("net.bridge.bridge-nf-call-iptables", "1"),
    ("net.ipv4.ip_forward", "1"),
];

/// The `cluster.kernel` step.
pub(in crate::steps) fn step() -> Step {
    Step::new(CLUSTER_KERNEL, |cx| Box::pin(assess(cx)))
        // `br_netfilter` may be in a separate package.
        .after([HEADERS])
}

#[derive(Debug, Clone, Default)]
struct ClusterKernelState {
    /// Our files with their content.
    files: BTreeMap<&'static str, Option<String>>,
    /// Missing modules.
    missing: Vec<&'static str>,
    /// Current sysctl values.
    values: BTreeMap<&'static str, Option<String>>,
    /// Active swap areas.
    swaps: Vec<String>,
    fstab: Option<String>,
    /// Permission bits of `/etc/fstab`.
    fstab_mode: u32,
}

fn detect(cx: &Cx<'_>) -> Result<ClusterKernelState, StepError> {
    let files = cx.host.files();
    let mut state = ClusterKernelState::default();
    for path in [MODULES_FILE, SYSCTL_FILE] {
        state.files.insert(path, files.read_text(path.into())?);
    }
    for (module, path) in MODULES {
        if !files.exists(Utf8Path::new(path))? {
            state.missing.push(module);
        }
    }
    for (name, _) in SYSCTLS {
        let path = Utf8PathBuf::from(sysctl::path(name));
        let value = files.read_text(&path)?;
        state
            .values
            .insert(name, value.map(|value| value.trim().to_owned()));
    }
    let swaps = files.read_text(sysctl::SWAPS.into())?.unwrap_or_default();
    state.swaps = sysctl::parse_swaps(&swaps);
    state.fstab = files.read_text(sysctl::FSTAB.into())?;
    let stat = files.stat(sysctl::FSTAB.into())?;
    state.fstab_mode = stat.map_or(0o644, |stat| stat.mode & 0o777);
    Ok(state)
}

fn modules_file() -> String {
    let names = MODULES.map(|(module, _)| format!("{module}\n"));
    format!("{HEADER}{}", names.concat())
}

fn sysctl_file() -> String {
    let lines = SYSCTLS.map(|(name, value)| format!("{name} = {value}\n"));
    format!("{HEADER}{}", lines.concat())
}

fn decide(state: &ClusterKernelState, desired: &Desired) -> Assessment {
    let Some(spec) = spec(desired) else {
        return no_cluster();
    };
    let method = spec.method.implementation();
    if !method.starts_kubelet() {
        return Assessment::not_applicable(format!(
            "the join method {} does not require kernel settings",
            spec.method.name()
        ));
    }
    let (mut whys, mut changes) = (Vec::new(), Vec::new());
    for (path, content) in [(MODULES_FILE, modules_file()), (SYSCTL_FILE, sysctl_file())] {
        if state.files.get(path).and_then(Option::as_ref) != Some(&content) {
            whys.push(format!("`{path}` is missing or different"));
            changes.push(Change::write(path, content));
        }
    }
    // If the cluster allows swap, the settings ignore the kubeadm check `Swap`.
    let may_swap = method.ignores("Swap");
    let fstab = state.fstab.as_deref().and_then(sysctl::without_swap);
    if let (Some(_), false, true) = (&fstab, may_swap, state.fstab_mode & 0o004 == 0) {
        // A change would store passwords in this file, e.g. of network mounts, in the plan and in the journal.
        return Assessment::blocked(
            format!(
                "`{}` contains a swap area, but is not world-readable. It may contain passwords, so it is not changed",
                sysctl::FSTAB
            ),
            format!(
                "remove the `swap` lines from `{}` and run `swapoff --all`, or add `Swap` to \
                 `cluster.ignore-preflight-errors`",
                sysctl::FSTAB
            ),
        );
    }
    if let (Some(content), false) = (fstab, may_swap) {
        whys.push(format!("`{}` contains a swap area", sysctl::FSTAB));
        changes.push(Change::WriteFile {
            path: sysctl::FSTAB.into(),
            content,
            mode: state.fstab_mode,
            // Do not overwrite mounts that cloud-init or an administrator has added in the meantime.
            over: state.fstab.as_deref().map(|text| sha256(text.as_bytes())),
        });
    }
    // The running kernel of an image builder is not the kernel of the image's instances.
    if !desired.image {
        now(state, may_swap, &mut whys, &mut changes);
    }
    if !changes.is_empty() {
        return Assessment::needs(whys.join("; "), changes);
    }
    Assessment::satisfied(
        "overlay filesystems, bridge packet filters and forwarding are enabled, swap is disabled",
    )
}

/// Adds the changes for the running kernel, with their reasons.
fn now(
    state: &ClusterKernelState,
    may_swap: bool,
    whys: &mut Vec<String>,
    changes: &mut Vec<Change>,
) {
    for module in &state.missing {
        whys.push(format!("kernel module `{module}` is not loaded"));
        changes.push(Change::LoadModule {
            module: (*module).to_owned(),
        });
    }
    let mut values = BTreeMap::new();
    for (name, wanted) in SYSCTLS {
        let found = state.values.get(name).and_then(Option::as_deref);
        if found != Some(wanted) {
            whys.push(format!("{name} is {}", found.unwrap_or("not set")));
            values.insert(name.to_owned(), wanted.to_owned());
        }
    }
    if !values.is_empty() {
        changes.push(Change::SetSysctls { values });
    }
    if !(state.swaps.is_empty() || may_swap) {
        whys.push(format!("swap is enabled: {}", state.swaps.join(", ")));
        // Swap of zram-generator, and partitions that systemd detects by type, are enabled again at the next boot.
        if (state.fstab.as_deref()).is_none_or(|text| sysctl::without_swap(text).is_none()) {
            whys.push(format!(
                "`{}` does not contain it, so a systemd unit may enable it again at the next boot \
                 (`systemctl list-units --type=swap`)",
                sysctl::FSTAB
            ));
        }
        changes.push(Change::TurnOffSwap {
            areas: state.swaps.clone(),
        });
    }
}

async fn assess(cx: &Cx<'_>) -> Result<Assessment, StepError> {
    // Read nothing if kubeadm does not start the kubelet, because `/etc/fstab` may only be readable by root.
    let starts_kubelet =
        spec(cx.desired).is_some_and(|spec| spec.method.implementation().starts_kubelet());
    let state = match starts_kubelet {
        true => detect(cx)?,
        false => ClusterKernelState::default(),
    };
    Ok(decide(&state, cx.desired))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::steps::cluster::join::fixtures::with_kubeadm;

    fn good() -> ClusterKernelState {
        ClusterKernelState {
            files: BTreeMap::from([
                (MODULES_FILE, Some(modules_file())),
                (SYSCTL_FILE, Some(sysctl_file())),
            ]),
            missing: vec![],
            values: SYSCTLS
                .map(|(name, value)| (name, Some(value.to_owned())))
                .into(),
            swaps: vec![],
            fstab: Some("UUID=a / ext4 defaults 0 1\n".to_owned()),
            fstab_mode: 0o644,
        }
    }

    #[test]
    fn unprepared_machine_gets_files_modules_and_sysctls() {
        let bare = ClusterKernelState {
            missing: vec!["overlay", "br_netfilter"],
            swaps: vec!["/swap.img".to_owned()],
            fstab: Some("/swap.img none swap sw 0 0\n".to_owned()),
            fstab_mode: 0o644,
            ..ClusterKernelState::default()
        };
        let with_passwords = ClusterKernelState {
            fstab_mode: 0o600,
            ..bare.clone()
        };
        decide(&with_passwords, &with_kubeadm(&[])).expect_blocked();
        let (_, changes) = decide(&bare, &with_kubeadm(&[])).expect_needs();
        let kinds: Vec<&str> = changes.iter().map(Change::kind).collect();
        assert_eq!(
            kinds,
            [
                "write-file",
                "write-file",
                "write-file",
                "load-module",
                "load-module",
                "set-sysctls",
                "turn-off-swap"
            ]
        );
        let sysctls = "net.bridge.bridge-nf-call-iptables = 1\nnet.ipv4.ip_forward = 1\n";
        assert!(
            matches!(&changes[1], Change::WriteFile { content, .. } if content.ends_with(sysctls)),
            "{changes:?}"
        );
        // Mounts that another program adds in the meantime must not be lost.
        let fstab = bare.fstab.as_deref().expect("a file");
        assert!(
            matches!(&changes[2], Change::WriteFile { path, over, .. }
                if path == sysctl::FSTAB && over.as_ref() == Some(&sha256(fstab.as_bytes()))),
            "{changes:?}"
        );
        let image = Desired {
            image: true,
            ..with_kubeadm(&[])
        };
        let (_, changes) = decide(&bare, &image).expect_needs();
        assert!(changes.iter().all(|change| change.kind() == "write-file"));
    }

    #[test]
    fn swap_stays_if_the_cluster_allows_it() {
        let swapping = ClusterKernelState {
            swaps: vec!["/dev/zram0".to_owned()],
            fstab: Some("/swap.img none swap sw 0 0\n".to_owned()),
            ..good()
        };
        decide(&swapping, &with_kubeadm(&["Swap"])).expect_satisfied();
        let (why, _) = decide(&swapping, &with_kubeadm(&[])).expect_needs();
        assert!(why.contains("/dev/zram0"), "{why}");
    }

    #[test]
    fn prepared_machine_is_unchanged() {
        decide(&good(), &with_kubeadm(&[])).expect_satisfied();
        let forwarding_off = ClusterKernelState {
            values: BTreeMap::from([("net.ipv4.ip_forward", Some("0".to_owned()))]),
            ..good()
        };
        let (why, changes) = decide(&forwarding_off, &with_kubeadm(&[])).expect_needs();
        assert!(why.contains("net.ipv4.ip_forward is 0"), "{why}");
        assert_eq!(changes.len(), 1);
    }
}
