//! Simulates kernel modules (on disk, compiled by DKMS, loaded, bound to GPUs) and initramfs images.

use gpu_bootstrap::host::{
    Cmd, Output,
    fake::{FakeFiles, failed, ok},
};

use crate::{
    boot::packaged,
    dpkg,
    state::{State, exists, list, text},
};

const DEVICES: &str = "/sys/bus/pci/devices";
const NOUVEAU: &str = "kernel/drivers/gpu/drm/nouveau/nouveau.ko:\n";

pub fn running(files: &FakeFiles) -> String {
    text(files, "/proc/sys/kernel/osrelease")
        .expect("a kernel runs")
        .trim()
        .to_owned()
}

/// Adds a kernel with an initramfs that contains these modules.
pub fn put(files: &FakeFiles, kernel: &str, name: &str, initrd: &[String]) {
    files.put(&format!("/boot/vmlinuz-{kernel}"), "");
    files.put(&format!("/lib/modules/{kernel}/modules.dep"), NOUVEAU);
    files.put(
        &format!("/boot/{}", name.replace("KERNEL", kernel)),
        image(files, kernel, initrd),
    );
}

fn image(files: &FakeFiles, kernel: &str, modules: &[String]) -> String {
    // Include directories.
    let mut lines = [
        "init",
        "conf",
        "conf/initramfs.conf",
        "etc",
        "etc/modprobe.d",
    ]
    .map(str::to_owned)
    .to_vec();
    for module in modules {
        lines.push(format!(
            "usr/lib/modules/{kernel}/kernel/drivers/gpu/drm/{module}/{module}.ko"
        ));
    }
    for name in list(files, "/etc/modprobe.d") {
        lines.push(format!("etc/modprobe.d/{name}"));
    }
    lines.join("\n") + "\n"
}

/// `update-initramfs -u -kKERNEL`.
pub fn update_initramfs(cmd: &Cmd, files: &FakeFiles, state: &State) -> Output {
    let args: Vec<&str> = cmd.args.iter().map(String::as_str).collect();
    let kernel = match args[..] {
        ["-u", kernel] => kernel.strip_prefix("-k"),
        _ => None,
    };
    let Some(kernel) = kernel else {
        panic!(
            "the simulated update-initramfs does not support `{}`",
            cmd.line()
        );
    };
    let path = format!("/boot/initrd.img-{kernel}");
    if !exists(files, &path) {
        return failed(1, format!("update-initramfs: {path} has been altered.\n"));
    }
    files.put(&path, image(files, kernel, &state.initrd));
    ok(format!("update-initramfs: Generating {path}\n"))
}

/// `lsinitramfs -- IMAGE`.
pub fn lsinitramfs(cmd: &Cmd, files: &FakeFiles) -> Output {
    let [_, path] = &cmd.args[..] else {
        panic!(
            "the simulated lsinitramfs does not support `{}`",
            cmd.line()
        );
    };
    match text(files, path) {
        Some(listing) => ok(listing),
        None => failed(1, format!("W: Argument '{path}' does not exist.\n")),
    }
}

/// Name and version of the DKMS module in an installed package.
fn sources(files: &FakeFiles, state: &State) -> Vec<(String, String)> {
    dpkg::read(files)
        .iter()
        .filter(|(_, entry)| entry.there())
        .filter_map(|(name, entry)| {
            let package = state
                .archive
                .packages
                .iter()
                .find(|package| package.name == *name && package.version == entry.version)?;
            Some((package.dkms.clone()?, driver_version(&entry.version)))
        })
        .collect()
}

/// `1:580.95.05-1` is driver 580.95.05.
pub fn driver_version(package: &str) -> String {
    let version = package.split_once(':').map_or(package, |(_, rest)| rest);
    version.split('-').next().unwrap_or(version).to_owned()
}

/// The file name of the module, because Ubuntu's DKMS package has another name.
fn file_of(module: &str) -> &str {
    match module {
        "nvidia-srv" => "nvidia",
        module => module,
    }
}

/// The names of all files of a DKMS module.
fn files_of(module: &str) -> Vec<String> {
    let file = file_of(module);
    match file {
        STORAGE => vec![file.to_owned()],
        file => vec![
            file.to_owned(),
            format!("{file}-uvm"),
            format!("{file}-modeset"),
        ],
    }
}

/// The DKMS module of GPUDirect Storage.
const STORAGE: &str = "nvidia-fs";

/// The compiled version of GPUDirect Storage for the running kernel.
fn storage(files: &FakeFiles) -> Option<String> {
    let kernel = running(files);
    let versions = list(files, &format!("/var/lib/dkms/{STORAGE}"));
    (versions.into_iter()).find(|version| exists(files, &built(STORAGE, version, &kernel)))
}

fn built(module: &str, version: &str, kernel: &str) -> String {
    let file = file_of(module);
    format!("/var/lib/dkms/{module}/{version}/{kernel}/x86_64/module/{file}.ko")
}

/// Compiles missing modules for every kernel with installed headers, as the scripts of `dkms` and
/// of the header packages do.
pub fn build_all(files: &FakeFiles, state: &State) -> Result<(), String> {
    if exists(files, "/etc/dkms/no-autoinstall") {
        return Ok(());
    }
    for (module, version) in sources(files, state) {
        for kernel in list(files, "/lib/modules") {
            if exists(files, &format!("/lib/modules/{kernel}/build")) {
                build(files, state, &module, &version, &kernel)?;
            }
        }
    }
    Ok(())
}

fn build(
    files: &FakeFiles,
    state: &State,
    module: &str,
    version: &str,
    kernel: &str,
) -> Result<(), String> {
    let object = built(module, version, kernel);
    if exists(files, &object) {
        return Ok(());
    }
    if state.faults.dkms {
        let log = format!("/var/lib/dkms/{module}/{version}/build/make.log");
        files.put(
            &log,
            "warning: the compiler differs from the one used to build the kernel\nerror: \
             unrecognized command-line option '-ftrivial-auto-var-init=zero'\n",
        );
        return Err(format!(
            "Error! Bad return status for module build on kernel: {kernel} (x86_64)\nConsult {log} \
             for more information.\n"
        ));
    }
    files.put(&object, version);
    let list = format!("/lib/modules/{kernel}/modules.dep");
    let mut content = text(files, &list).unwrap_or_default();
    for name in files_of(module) {
        content.push_str(&format!("updates/dkms/{name}.ko:\n"));
        files.put(
            &format!("/lib/modules/{kernel}/updates/dkms/{name}.ko"),
            "ELF",
        );
    }
    files.put(&list, content);
    Ok(())
}

/// Removes a module from every kernel.
pub fn dkms_remove(files: &FakeFiles, module: &str) {
    if !exists(files, &format!("/var/lib/dkms/{module}")) {
        return;
    }
    files.take(&format!("/var/lib/dkms/{module}"));
    for kernel in list(files, "/lib/modules") {
        dkms_unlist(files, &kernel, module);
    }
}

/// Removes a compiled module from one kernel.
fn dkms_unlist(files: &FakeFiles, kernel: &str, module: &str) {
    let path = format!("/lib/modules/{kernel}/modules.dep");
    let names: Vec<String> = (files_of(module).into_iter())
        .map(|name| format!("updates/dkms/{name}.ko"))
        .collect();
    let content: String = text(files, &path)
        .unwrap_or_default()
        .lines()
        .filter(|line| !names.iter().any(|name| line.starts_with(name)))
        .map(|line| format!("{line}\n"))
        .collect();
    files.put(&path, content);
    for name in names {
        dpkg::take(files, &format!("/lib/modules/{kernel}/{name}"));
    }
}

/// `dkms`.
pub fn dkms(cmd: &Cmd, files: &FakeFiles, state: &State) -> Output {
    let args: Vec<&str> = cmd.args.iter().map(String::as_str).collect();
    match args[..] {
        ["status", "-m", module] => {
            let mut said = String::new();
            for (name, version) in sources(files, state) {
                if name != module {
                    continue;
                }
                let mut any = false;
                for kernel in list(files, "/lib/modules") {
                    if exists(files, &built(&name, &version, &kernel)) {
                        said.push_str(&format!("{name}/{version}, {kernel}, x86_64: installed\n"));
                        any = true;
                    }
                }
                if !any {
                    said.push_str(&format!("{name}/{version}: added\n"));
                }
            }
            ok(said)
        }
        ["install", "-m", module, "-v", version, "-k", kernel] => {
            if !exists(files, &format!("/lib/modules/{kernel}/build")) {
                return failed(
                    1,
                    format!(
                        "Error! Your kernel headers for kernel {kernel} cannot be found at \
                         /lib/modules/{kernel}/build or /lib/modules/{kernel}/source.\n"
                    ),
                );
            }
            match build(files, state, module, version, kernel) {
                Ok(()) => ok(format!(
                    "{module}.ko: Installation to /lib/modules/{kernel}\n"
                )),
                Err(why) => failed(10, why),
            }
        }
        ["remove", "-m", module, "-v", version, "-k", kernel] => {
            files.take(&format!("/var/lib/dkms/{module}/{version}/{kernel}"));
            dkms_unlist(files, kernel, module);
            ok("")
        }
        _ => panic!("the simulated dkms does not support `{}`", cmd.line()),
    }
}

/// The file and version of the driver's main module for the running kernel.
fn main_module(files: &FakeFiles) -> Option<(String, String)> {
    let kernel = running(files);
    let modules = text(files, &format!("/lib/modules/{kernel}/modules.dep"))?;
    let stem = modules.lines().find_map(|line| {
        let file = line.split(':').next()?.rsplit('/').next()?;
        let stem = file.split(".ko").next()?;
        matches!(stem, "nvidia" | "nvidia-current" | "nvidia-current-open").then(|| stem.to_owned())
    })?;
    let version = list(files, "/var/lib/dkms")
        .into_iter()
        .filter(|module| file_of(module) == stem)
        .flat_map(|module| {
            let versions = list(files, &format!("/var/lib/dkms/{module}")).into_iter();
            versions.map(move |version| (module.clone(), version))
        })
        .find(|(module, version)| exists(files, &built(module, version, &kernel)))
        .map(|(_, version)| version)
        .or_else(|| packaged(files, &kernel))
        // A module of the image has its version in this file.
        .or_else(|| text(files, "/usr/share/simulated-module-version"))?;
    Some((stem, version.trim().to_owned()))
}

/// `modinfo -F version -- PATH` and `modinfo -F license -- PATH`.
pub fn modinfo(cmd: &Cmd, files: &FakeFiles) -> Output {
    let args: Vec<&str> = cmd.args.iter().map(String::as_str).collect();
    match args[..] {
        ["-F", "version", "--", path] if path.ends_with("/nvidia-fs.ko") => match storage(files) {
            Some(version) => ok(version + "\n"),
            None => failed(1, "modinfo: ERROR: Module nvidia-fs not found.\n"),
        },
        ["-F", "version", "--", _] => match main_module(files) {
            Some((_, version)) => ok(version + "\n"),
            None => failed(1, "modinfo: ERROR: Module not found.\n"),
        },
        ["-F", "license", "--", path] => ok(if path.contains("open") {
            "Dual MIT/GPL\n"
        } else {
            "NVIDIA\n"
        }),
        _ => panic!("the simulated modinfo does not support `{}`", cmd.line()),
    }
}

pub fn loaded(files: &FakeFiles) -> Vec<String> {
    text(files, "/proc/modules")
        .unwrap_or_default()
        .lines()
        .filter_map(|line| line.split(' ').next())
        .map(str::to_owned)
        .collect()
}

fn set_loaded(files: &FakeFiles, names: &[String]) {
    let content: String = names
        .iter()
        .map(|name| {
            let users: Vec<&str> = names
                .iter()
                .map(String::as_str)
                .filter(|other| name == "nvidia" && other.starts_with("nvidia_"))
                .collect();
            let by = if users.is_empty() {
                "-".to_owned()
            } else {
                users.join(",") + ","
            };
            format!(
                "{name} 1000 {} {by} Live 0x0000000000000000 (POE)\n",
                users.len()
            )
        })
        .collect();
    files.put("/proc/modules", content);
}

/// The GPUs on the bus, by address.
pub fn gpus(files: &FakeFiles) -> Vec<String> {
    list(files, DEVICES)
        .into_iter()
        .filter(|address| {
            let value = |name: &str| {
                text(files, &format!("{DEVICES}/{address}/{name}")).unwrap_or_default()
            };
            value("vendor").trim() == "0x10de" && value("class").starts_with("0x03")
        })
        .collect()
}

/// The GPUs that are not reserved for virtual machines.
pub fn usable(files: &FakeFiles) -> Vec<String> {
    gpus(files)
        .into_iter()
        .filter(|address| !is_bound(files, address, "vfio-pci"))
        .collect()
}

pub fn bind(files: &FakeFiles, driver: &str) {
    for address in gpus(files) {
        let link = format!("{DEVICES}/{address}/driver");
        if !exists(files, &link) {
            files.put_directory(&format!("/sys/bus/pci/drivers/{driver}"), 0o755);
            files.put_link(&link, &format!("../../drivers/{driver}"));
        }
    }
}

fn bound(files: &FakeFiles, driver: &str) -> bool {
    (gpus(files).iter()).any(|address| is_bound(files, address, driver))
}

fn is_bound(files: &FakeFiles, address: &str, driver: &str) -> bool {
    use gpu_bootstrap::host::ReadFiles;
    let directory = format!("/sys/bus/pci/drivers/{driver}");
    let link = format!("{DEVICES}/{address}/driver");
    files
        .resolve(link.as_str().into())
        .is_ok_and(|target| target.is_some_and(|target| target.as_str() == directory))
}

/// `modprobe`.
pub fn modprobe(cmd: &Cmd, files: &FakeFiles, state: &State) -> Output {
    let args: Vec<&str> = cmd.args.iter().map(String::as_str).collect();
    match args[..] {
        ["--", module] => load(files, state, &module.replace('-', "_")),
        _ => panic!("the simulated modprobe does not support `{}`", cmd.line()),
    }
}

/// `rmmod`.
pub fn rmmod(cmd: &Cmd, files: &FakeFiles) -> Output {
    match &cmd.args[..] {
        [dashes, module] if dashes == "--" => unload(files, module),
        _ => panic!("the simulated rmmod does not support `{}`", cmd.line()),
    }
}

/// Whether DKMS signs with an enrolled key.
fn is_signed(files: &FakeFiles) -> bool {
    const ENROLLED: &str =
        "/sys/firmware/efi/efivars/MokListRT-605dab50-e046-4300-abb6-3dd810dd8b23";
    let told = text(files, "/etc/dkms/framework.conf.d/gpu-bootstrap.conf").unwrap_or_default();
    let certificate = (told.lines())
        .find_map(|line| line.strip_prefix("mok_certificate="))
        .and_then(|path| text(files, path.trim_matches('"')));
    let enrolled = text(files, ENROLLED).unwrap_or_default();
    certificate.is_some_and(|certificate| enrolled.contains(&certificate))
}

/// Modules that kubeadm requires.
const OF_KUBEADM: [&str; 2] = ["overlay", "br_netfilter"];

/// Loads a module. The driver module binds every unbound GPU.
pub fn load(files: &FakeFiles, state: &State, module: &str) -> Output {
    let mut now = loaded(files);
    if now.iter().any(|name| name == module) {
        return ok("");
    }
    if crate::fabric::load(files, module) {
        now.push(module.to_owned());
        set_loaded(files, &now);
        return ok("");
    }
    if OF_KUBEADM.contains(&module) {
        now.push(module.to_owned());
        set_loaded(files, &now);
        files.put(&format!("/sys/module/{module}/initstate"), "live\n");
        if module == "br_netfilter" {
            for key in ["bridge-nf-call-iptables", "bridge-nf-call-ip6tables"] {
                files.put(&format!("/proc/sys/net/bridge/{key}"), "1\n");
            }
        }
        return ok("");
    }
    if !module.starts_with("nvidia") {
        panic!("the simulated modprobe does not support module `{module}`");
    }
    let Some((_, version)) = main_module(files) else {
        return failed(
            1,
            format!(
                "modprobe: FATAL: Module {module} not found in directory /lib/modules/{}\n",
                running(files)
            ),
        );
    };
    // Packaged modules are signed.
    if state.secure_boot && packaged(files, &running(files)).is_none() && !is_signed(files) {
        return failed(
            1,
            format!("modprobe: ERROR: could not insert '{module}': Key was rejected by service\n"),
        );
    }
    if let Some(why) = &state.faults.modprobe {
        return failed(
            1,
            format!("modprobe: ERROR: could not insert '{module}': {why}\n"),
        );
    }
    if (state.faults.bad_driver.as_ref()).is_some_and(|bad| version.starts_with(bad)) {
        return failed(
            1,
            format!("modprobe: ERROR: could not insert '{module}': Invalid argument\n"),
        );
    }
    if usable(files).is_empty() || bound(files, "nouveau") {
        return failed(
            1,
            format!("modprobe: ERROR: could not insert '{module}': No such device\n"),
        );
    }
    if !now.iter().any(|name| name == "nvidia") {
        now.push("nvidia".to_owned());
        files.put("/sys/module/nvidia/version", format!("{version}\n"));
        let is_open = (dpkg::read(files).iter()).any(|(name, entry)| {
            let has_module = ["linux-modules-nvidia-", "kmod-nvidia-"]
                .iter()
                .any(|start| name.starts_with(start))
                || name.contains("dkms")
                || name.starts_with("nvidia-prebuilt-modules-");
            entry.there() && name.contains("-open") && has_module
        });
        let flavor = match is_open {
            true => "Open Kernel Module for x86_64",
            false => "x86_64 Kernel Module",
        };
        files.put("/sys/module/nvidia/refcnt", "0\n");
        files.put(
            "/proc/driver/nvidia/version",
            format!("NVRM version: NVIDIA UNIX {flavor}  {version}  Release Build\n"),
        );
        bind(files, "nvidia");
        files.put_device("/dev/nvidiactl", 195, 255);
        let up = usable(files).len() - state.faults.lost_gpus;
        for minor in 0..up {
            files.put_device(
                &format!("/dev/nvidia{minor}"),
                195,
                u32::try_from(minor).expect("few GPUs"),
            );
        }
    }
    if module == "nvidia_uvm" && !now.iter().any(|name| name == "nvidia_uvm") {
        now.push("nvidia_uvm".to_owned());
        files.put("/sys/module/nvidia_uvm/refcnt", "0\n");
        files.put_device("/dev/nvidia-uvm", 510, 0);
        files.put_device("/dev/nvidia-uvm-tools", 510, 1);
    }
    if module == "nvidia_fs" {
        let Some(version) = storage(files) else {
            return failed(
                1,
                "modprobe: FATAL: Module nvidia-fs not found in directory /lib/modules\n",
            );
        };
        now.push("nvidia_fs".to_owned());
        files.put("/sys/module/nvidia_fs/refcnt", "0\n");
        files.put("/sys/module/nvidia_fs/version", format!("{version}\n"));
    }
    if module == "nvidia_peermem" {
        if state.faults.no_peer_memory {
            return failed(
                1,
                format!("modprobe: ERROR: could not insert '{module}': Invalid argument\n"),
            );
        }
        now.push("nvidia_peermem".to_owned());
        files.put("/sys/module/nvidia_peermem/refcnt", "0\n");
        files.put("/sys/module/nvidia_peermem/version", format!("{version}\n"));
        files.put(PEER_MEMORY, "1\n");
    }
    set_loaded(files, &now);
    ok("")
}

/// Exists while `nvidia-peermem` is registered in the RDMA stack.
const PEER_MEMORY: &str = "/sys/kernel/mm/memory_peers/nv_mem/version";

fn unload(files: &FakeFiles, module: &str) -> Output {
    let mut now = loaded(files);
    if !now.iter().any(|name| name == module) {
        return failed(1, format!("{module}: module is not currently loaded\n"));
    }
    let daemon = crate::units::active(files, "nvidia-persistenced.service");
    if module == "nvidia" && (daemon || now.iter().any(|name| name.starts_with("nvidia_"))) {
        return failed(1, "module nvidia is in use\n");
    }
    now.retain(|name| name != module);
    set_loaded(files, &now);
    files.take(&format!("/sys/module/{module}"));
    if module == "nvidia" {
        files.take("/proc/driver/nvidia");
        for address in usable(files) {
            files.take(&format!("{DEVICES}/{address}/driver"));
        }
        files.take("/sys/bus/pci/drivers/nvidia");
        for name in list(files, "/dev") {
            if name.starts_with("nvidia") && !name.starts_with("nvidia-uvm") {
                files.take(&format!("/dev/{name}"));
            }
        }
    }
    if module == "nvidia_peermem" {
        files.take("/sys/kernel/mm/memory_peers");
    }
    if module == "nvidia_uvm" {
        files.take("/dev/nvidia-uvm");
        files.take("/dev/nvidia-uvm-tools");
    }
    ok("")
}

/// The kernel's actions at boot: loads in-tree drivers that are not denied, then the modules requested by `modules-load.d` and
/// udev.
pub fn boot(files: &FakeFiles, state: &State, in_tree: &[String]) {
    let image = text(files, &format!("/boot/initrd.img-{}", running(files))).unwrap_or_default();
    let denials: String = list(files, "/etc/modprobe.d")
        .iter()
        .map(|name| text(files, &format!("/etc/modprobe.d/{name}")).unwrap_or_default())
        .collect();
    for module in in_tree {
        let early = image
            .lines()
            .any(|line| line.ends_with(&format!("/{module}.ko")));
        let denied_early = image
            .lines()
            .any(|line| line.starts_with("etc/modprobe.d/"));
        let denied = denials.contains(&format!("blacklist {module}"));
        if (early && !denied_early) || !denied {
            let mut now = loaded(files);
            now.push(module.clone());
            set_loaded(files, &now);
            bind(files, module);
        }
    }
    // `blacklist` affects udev and `modules-load.d`, but not loading by name.
    let denied = |module: &str| {
        (denials.lines()).any(|line| line.strip_prefix("blacklist ") == Some(module))
    };
    if main_module(files).is_some() && !gpus(files).is_empty() && !denied("nvidia") {
        // udev finds the module by the device alias. A failure appears only in the kernel log.
        let _ = load(files, state, "nvidia");
    }
    for name in list(files, "/etc/modules-load.d") {
        let content = text(files, &format!("/etc/modules-load.d/{name}")).unwrap_or_default();
        for module in content
            .lines()
            .filter(|line| !line.starts_with('#') && !line.is_empty() && !denied(line))
        {
            let _ = load(files, state, &module.trim().replace('-', "_"));
        }
    }
}
