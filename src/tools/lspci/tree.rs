//! Converts the PCI functions from lspci output to sysfs files, so that they can be read like the PCI bus of a machine.

use std::fmt::Write as _;

use super::{Driver, Function};
use crate::{
    host::{Host, memory::Tree},
    model::pci::{DEVICES, MELLANOX, NAME_LISTS, NVIDIA},
};

/// Length of the config space header, which every function has.
const HEADER: usize = 64;

const NOTHING_ELSE: &str = "only the output of lspci is known";
const NO_DRIVERS: &str = "the output of lspci has no drivers (`lspci -nnk` prints them)";
const NO_BOARDS: &str = "the output of lspci has no subsystem (`lspci -nnk` prints it)";

/// Returns a host with these functions on its bus. All other data is unknown.
pub fn host(functions: &[Function]) -> Host {
    let mut tree = Tree::new(NOTHING_ELSE);
    tree.directory(DEVICES);
    for function in functions {
        add(&mut tree, function);
    }
    // The first file contains all names. Add the other paths as empty directories, because unknown paths return an error.
    let [list, others @ ..] = NAME_LISTS;
    tree.file(list.to_owned(), names(functions));
    for path in others {
        tree.directory(path);
    }
    tree.host()
}

fn add(tree: &mut Tree, function: &Function) {
    let path = |name: &str| format!("{DEVICES}/{}/{name}", function.address);
    let number = |number: u16| format!("{number:#06x}\n");
    tree.file(path("vendor"), number(function.id.vendor));
    tree.file(path("device"), number(function.id.device));
    tree.file(path("class"), format!("{}\n", function.class));
    match function.subsystem {
        Some(id) => {
            tree.file(path("subsystem_vendor"), number(id.vendor));
            tree.file(path("subsystem_device"), number(id.device));
        }
        None => {
            tree.not_reported(path("subsystem_vendor"), NO_BOARDS);
            tree.not_reported(path("subsystem_device"), NO_BOARDS);
        }
    }
    if let Some(revision) = function.revision {
        tree.file(path("revision"), format!("{revision:#04x}\n"));
    }
    if let Some(node) = function.numa_node {
        tree.file(path("numa_node"), format!("{node}\n"));
    }
    if function.is_dead() {
        tree.file(path("config"), vec![0xff; HEADER]);
    }
    match &function.driver {
        Driver::Bound(name) => {
            tree.link(
                path("driver"),
                format!("../../../../bus/pci/drivers/{name}"),
            );
        }
        Driver::NotReported => tree.not_reported(path("driver"), NO_DRIVERS),
        Driver::None => {}
    }
}

/// Returns the names in the format of `pci.ids`.
fn names(functions: &[Function]) -> String {
    let mut list = String::new();
    for (vendor, title) in [
        (NVIDIA, "NVIDIA Corporation"),
        (MELLANOX, "Mellanox Technologies"),
    ] {
        let _ = writeln!(list, "{vendor:04x}  {title}");
        for function in functions.iter().filter(|f| f.id.vendor == vendor) {
            if let Some(name) = &function.name {
                let _ = writeln!(list, "\t{:04x}  {name}", function.id.device);
            }
        }
    }
    list
}
