//! The Kubernetes programs, compiled from the Go module `k8s.io/kubernetes` in the versions of `../kubernetes/go.mod`
//! and `go.sum`, and additional programs from Debian's archive.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::bed::{Bed, remove_tree};
use crate::golang;
use crate::rootfs::{KEYRING, Mirror};
use crate::sh::Cmd;

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

/// The Debian release with the other programs, and its packages.
const SUITE: &str = "bookworm";
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
        "{modules} {sums} {go} {mirror:?} {SOURCE} {}",
        golang::SOURCE
    );
    bed.cached("kubernetes", &recipe, None, |dir| {
        compile(&here, version, dir)?;
        unpack(mirror, dir)
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

fn unpack(mirror: &Mirror, dir: &Path) -> Result<()> {
    let tree = dir.join("tree");
    Cmd::new([
        "mmdebstrap",
        "--variant=extract",
        "--mode=root",
        "--quiet",
        &format!("--include={PACKAGES}"),
        SUITE,
        &tree.to_string_lossy(),
        &format!("deb [signed-by={KEYRING}] {} {SUITE} main", mirror.main),
    ])
    .ok()
    .context("cannot unpack Debian's etcd and network plugins")?;
    for (from, to) in FROM_DEBIAN {
        fs::rename(tree.join(from), dir.join(to)).with_context(|| format!("cannot keep {from}"))?;
    }
    remove_tree(&tree)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repo::rpm::table::Rpms;
    use crate::repo::table::{Packages, upstream};

    #[test]
    fn package_versions_match_module() {
        let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let modules = fs::read_to_string(here.join("kubernetes/go.mod")).unwrap();
        let version = version(&modules).unwrap();
        let table = Packages::load(&[here.join("kubernetes.toml")]).unwrap();
        let rpms = Rpms::load(&here.join("rpms")).unwrap();
        let rpms = rpms.of_kubernetes(&here.join("rpms")).unwrap();
        for name in [KUBEADM, "kubelet", KUBECTL] {
            let package = table.packages.iter().find(|package| package.name == name);
            let newest = package.unwrap().versions.last().unwrap();
            assert_eq!(upstream(newest), version, "{name}");
            let package = rpms.packages.iter().find(|package| package.name == name);
            let newest = package.unwrap().versions.last().unwrap();
            assert_eq!(upstream(newest), version, "{name}, for rpm");
        }
    }
}
