//! The Kubernetes programs, compiled from the Go module `k8s.io/kubernetes` in the versions of `../kubernetes/go.mod`
//! and `go.sum`, and additional programs from Debian's archive.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::bed::Bed;
use crate::rootfs::Mirror;
use crate::{debian, golang};

/// The program that joins machines, and that prepares the control plane.
pub const KUBEADM: &str = "kubeadm";
/// The client.
pub const KUBECTL: &str = "kubectl";
/// The server of the control plane.
pub const API_SERVER: &str = "kube-apiserver";
/// Approves certificates, signs the cluster-info ConfigMap and removes expired tokens.
pub const CONTROLLERS: &str = "kube-controller-manager";
/// The store of the control plane.
pub const ETCD: &str = "etcd";

/// The commands of the module.
const COMMANDS: [&str; 5] = [KUBEADM, "kubelet", KUBECTL, API_SERVER, CONTROLLERS];

/// The Debian packages with the other programs.
const PACKAGES: &str = "etcd-server,containernetworking-plugins";
/// The files used from these packages: path there = name here.
const FROM_DEBIAN: [(&str, &str); 2] = [("usr/bin/etcd", ETCD), ("usr/lib/cni", "cni")];

/// Without other work the compiler takes ten minutes on two CPUs.
const LIMIT: Duration = Duration::from_secs(2 * 3600);

/// A part of the recipe, because a change of this file may change the result.
const SOURCE: &str = include_str!("kubernetes.rs");

/// Builds the directory with the programs.
pub fn build(bed: &Bed, mirror: &Mirror) -> Result<PathBuf> {
    let here = bed.here("kubernetes");
    let read = |name: &str| {
        fs::read_to_string(here.join(name)).with_context(|| format!("cannot read {name}"))
    };
    let (modules, sums) = (read("go.mod")?, read("go.sum")?);
    let version = version(&modules)?;
    let go = golang::version()?;
    let recipe = format!(
        "{modules} {sums} {go} {mirror:?} {SOURCE} {} {}",
        golang::SOURCE,
        debian::SOURCE
    );
    bed.cached("kubernetes", &recipe, None, |dir| {
        compile(&here, version, dir)?;
        debian::unpack(mirror, PACKAGES, FROM_DEBIAN, dir)
    })
}

/// The version that `go.mod` requires, such as `1.34.4`.
fn version(modules: &str) -> Result<&str> {
    (modules.lines())
        .map(|line| line.trim().trim_start_matches("require ").split(' '))
        .find_map(|mut words| match words.next() {
            Some("k8s.io/kubernetes") => words.next(),
            _ => None,
        })
        .map(|version| version.trim_start_matches('v'))
        .context("go.mod does not require k8s.io/kubernetes")
}

fn compile(here: &Path, version: &str, to: &Path) -> Result<()> {
    let mut flags = String::new();
    let mut numbers = version.split('.');
    let (major, minor) = (numbers.next(), numbers.next());
    for package in [
        "k8s.io/component-base/version",
        "k8s.io/client-go/pkg/version",
    ] {
        for (name, value) in [
            ("gitVersion", format!("v{version}")),
            ("gitMajor", major.unwrap_or_default().into()),
            ("gitMinor", minor.unwrap_or_default().into()),
            ("gitTreeState", "clean".into()),
        ] {
            flags.push_str(&format!("-X {package}.{name}={value} "));
        }
    }
    let commands = COMMANDS.map(|name| format!("k8s.io/kubernetes/cmd/{name}"));
    let to = format!("{}/", to.display());
    golang::build(here, commands, &flags, &to)
        .deadline(LIMIT)
        .ok()
        .context("cannot compile Kubernetes")
        .map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repo::table::{Table, upstream};

    #[test]
    fn package_versions_match_module() {
        let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let modules = fs::read_to_string(here.join("kubernetes/go.mod")).unwrap();
        let version = version(&modules).unwrap();
        let rpms = here.join("rpms");
        let release = Table::of_rpms(&rpms, "9").unwrap().release;
        for (file, release) in [
            (here.join("kubernetes.toml"), None),
            (rpms.join("kubernetes.toml"), release.as_ref()),
        ] {
            let table = Table::load(&[file], release).unwrap();
            for name in [KUBEADM, "kubelet", KUBECTL] {
                let package = (table.packages.iter()).find(|package| package.name == name);
                let newest = package.unwrap().versions.last().unwrap();
                assert_eq!(upstream(newest), version, "{name}");
            }
        }
    }
}
