//! Kernel selection on whole machines, by Ubuntu release, cloud kernel and image age.

use std::fmt::Write;

use toml::Table;

use crate::{
    boot,
    build::describe,
    dpkg, kernel,
    machine::{Machine, Ran},
    rollback::forget,
    scenarios::{in_parallel, told},
};

/// An Ubuntu machine that runs a kernel from the archive, or from an image that is older than all archive versions.
pub fn ubuntu(release: &str, kernel: &str, further: &str) -> Machine {
    let codename = match release {
        "22.04" => "jammy",
        "24.04" => "noble",
        "26.04" => "resolute",
        other => panic!("no archive for {other}"),
    };
    // Without the flavor.
    let abi: Vec<&str> = kernel.splitn(3, '-').take(2).collect();
    let abi = abi.join("-");
    // The files come last.
    let files = if further.contains("[files]") {
        ""
    } else {
        "[files]"
    };
    let further = format!("{further}\n{files}");
    let mut text = String::new();
    writeln!(
        text,
        "os-release = '''\nNAME=\"Ubuntu\"\nID=ubuntu\nID_LIKE=debian\nVERSION_ID=\"{release}\"\n\
         VERSION_CODENAME={codename}\nPRETTY_NAME=\"Ubuntu {release} LTS\"\n'''\n\
         archive = \"ubuntu-{release}\"\nkernel = \"{kernel}\"\n\
         plain = [\"apt=2.8.3\", \"initramfs-tools=0.142\", \"linux-image-{kernel}={abi}.1\", \
         \"linux-modules-{kernel}={abi}.1\"]\n{further}\n\"/etc/apt/sources.list.d/ubuntu.sources\" = '''\nTypes: deb\n\
         URIs: http://archive.ubuntu.com/ubuntu\n\
         Suites: {codename} {codename}-updates {codename}-security\n\
         Components: main restricted universe multiverse\n\
         Signed-By: /usr/share/keyrings/ubuntu-archive-keyring.gpg\n'''"
    )
    .expect("a text grows");
    Machine::new(describe(
        "ubuntu-cloud",
        text.parse::<Table>().expect("TOML"),
    ))
}

/// Runs `install --reboot` including all resumed runs. Returns the last run and the number of reboots.
fn install(machine: &Machine, flags: &[&str]) -> (Ran, u32) {
    let mut ran = machine.run(&[&["install", "--reboot", "--format", "json"][..], flags].concat());
    let mut reboots = 0;
    while ran.exit == 8 && reboots < 4 {
        assert!(machine.reboot_asked(), "{}", told(&ran));
        machine.reboot();
        reboots += 1;
        let words = machine
            .resume_command()
            .expect("the run resumes automatically");
        let mut args: Vec<&str> = words.iter().map(String::as_str).collect();
        args.extend(["--format", "json"]);
        ran = machine.run(&args);
    }
    (ran, reboots)
}

/// The method that installed the module.
#[derive(Debug, Clone, Copy, PartialEq)]
enum How {
    Packaged,
    Compiled,
}

/// The differences from the expected kernel, module method and number of reboots.
fn ends(machine: &Machine, flags: &[&str], kernel: &str, how: How, reboots: u32) -> Vec<String> {
    let (ran, rebooted) = install(machine, flags);
    let mut wrong = Vec::new();
    if ran.exit != 0 {
        return vec![format!("exit {}: {}", ran.exit, told(&ran))];
    }
    if rebooted != reboots {
        wrong.push(format!(
            "{rebooted} reboots instead of {reboots}: {}",
            told(&ran)
        ));
    }
    let files = &machine.fakes.files;
    let running = kernel::running(files);
    if running != kernel {
        wrong.push(format!("the machine runs {running} instead of {kernel}"));
    }
    let module = format!("linux-modules-nvidia-580-server-open-{kernel}");
    let packaged = dpkg::installed(files, &module).is_some();
    if packaged != (how == How::Packaged) {
        wrong.push(format!("{module} is installed: {packaged}"));
    }
    let ran = machine.run(&["check", "--format", "json"]);
    if ran.exit != 0 {
        wrong.push(format!("`check` ends with {}: {}", ran.exit, told(&ran)));
    }
    let again = machine.run(&[&["install", "--format", "json"][..], flags].concat());
    let work = crate::scenarios::package_work(&again);
    if again.exit != 0 || !work.is_empty() {
        wrong.push(format!(
            "a second run ends with {} and ran {work:?}",
            again.exit
        ));
    }
    wrong
}

/// For each release and flavor: the newest kernel of the image series, its predecessor, and one that was removed from the
/// archive.
const KERNELS: [(&str, [&str; 3]); 12] = rows! {
    "22.04", ["6.8.0-1063-aws", "6.8.0-1061-aws", "6.8.0-1041-aws"];
    "22.04", ["6.8.0-1066-gcp", "6.8.0-1065-gcp", "6.8.0-1044-gcp"];
    "22.04", ["6.8.0-1059-azure", "6.8.0-1058-azure", "6.8.0-1040-azure"];
    "22.04", ["5.15.0-187-generic", "5.15.0-186-generic", "5.15.0-164-generic"];
    "24.04", ["6.8.0-1060-aws", "6.8.0-1059-aws", "6.8.0-1044-aws"];
    "24.04", ["6.8.0-1067-gcp", "6.8.0-1065-gcp", "6.8.0-1045-gcp"];
    "24.04", ["6.8.0-1059-azure", "6.8.0-1058-azure", "6.8.0-1044-azure"];
    "24.04", ["6.8.0-139-generic", "6.8.0-137-generic", "6.8.0-90-generic"];
    "26.04", ["7.0.0-1011-aws", "7.0.0-1010-aws", "7.0.0-1004-aws"];
    "26.04", ["7.0.0-1010-gcp", "7.0.0-1009-gcp", "7.0.0-1003-gcp"];
    "26.04", ["7.0.0-1009-azure", "7.0.0-1008-azure", "7.0.0-1003-azure"];
    "26.04", ["7.0.0-30-generic", "7.0.0-29-generic", "7.0.0-14-generic"];
};

#[test]
fn every_cloud_kernel_needs_at_most_one_reboot() {
    let all: Vec<(&str, &str, &str, u32)> = (KERNELS.iter())
        .flat_map(|(release, [newest, before, gone])| {
            [
                (*release, *newest, *newest, 0),
                (*release, *before, *before, 0),
                (*release, *gone, *newest, 1),
            ]
        })
        .collect();
    let wrong = in_parallel(&all, |(release, running, kernel, reboots)| {
        let machine = ubuntu(release, running, "");
        let wrong = ends(&machine, &[], kernel, How::Packaged, *reboots).into_iter();
        wrong
            .map(|line| format!("{release} {running}: {line}"))
            .collect()
    });
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

/// Uninstalls, and returns the remaining packages with a name that contains one of these words.
fn left(machine: &Machine, exit: u8, words: &[&str]) -> Vec<String> {
    let gone = machine.run(&["uninstall", "--format", "json"]);
    assert_eq!(gone.exit, exit, "{}", told(&gone));
    let there = dpkg::read(&machine.fakes.files).into_keys();
    there
        .filter(|name| words.iter().any(|word| name.contains(word)))
        .filter(|name| !name.starts_with("linux-"))
        .collect()
}

#[test]
fn grace_hopper_gets_packaged_modules_on_ubuntu_arm64() {
    let further = "architecture = 'aarch64'\ngpus = ['10de:2342']";
    let machine = ubuntu("24.04", "6.8.0-1030-nvidia-64k", further);
    let kernel = "6.8.0-1046-nvidia-64k";
    let wrong = ends(&machine, &[], kernel, How::Packaged, 1);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let source = "/etc/apt/sources.list.d/gpu-bootstrap-nvidia-container-toolkit.sources";
    let text = crate::state::text(&machine.fakes.files, source).expect("a source");
    assert!(text.contains("Architectures: arm64"), "{text}");
    // The running kernel is kept, and `uninstall` reports it.
    assert!(left(&machine, 7, &["nvidia", "docker"]).is_empty());
}

#[test]
fn grace_hopper_on_almalinux_uses_nvidia_sbsa_packages() {
    let kernel = "5.14.0-570.12.1.el9_6.aarch64";
    let text = format!("architecture = 'aarch64'\nkernel = '{kernel}'\ngpus = ['10de:2342']");
    let machine = Machine::new(describe(
        "almalinux-9-l4-archive",
        text.parse::<Table>().expect("TOML"),
    ));
    let before = machine.snapshot();
    let plan = machine.run(&["plan", "--format", "json"]);
    assert_eq!(plan.exit, 4, "{}", told(&plan));
    let wrong = ends(&machine, &[], kernel, How::Compiled, 0);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let source = "/etc/yum.repos.d/gpu-bootstrap-nvidia-cuda.repo";
    let text = crate::state::text(&machine.fakes.files, source).expect("a source");
    assert!(text.contains("/rhel9/sbsa/\n"), "{text}");
    assert!(left(&machine, 0, &["nvidia", "docker", "dkms"]).is_empty());
    let changed = gpu_bootstrap::host::fake::diff(&before, &machine.snapshot());
    assert!(changed.is_empty(), "{changed:?}");
}

#[test]
fn planned_kernel_includes_its_series_metapackages() {
    let machine = ubuntu("24.04", "6.8.0-1045-gcp", "lists = true");
    let plan = machine.run(&["plan", "--format", "json"]);
    assert_eq!(plan.exit, 4, "{}", told(&plan));
    for part in [
        "kernel 6.8.0-1067-gcp of the same series has it: 1 reboot",
        "linux-image-6.8.0-1067-gcp",
    ] {
        assert!(plan.out.contains(part), "{part}: {}", told(&plan));
    }
    let (ran, _) = install(&machine, &[]);
    assert_eq!(ran.exit, 0, "{}", told(&ran));
    let files = &machine.fakes.files;
    for (name, there) in [
        ("linux-image-gcp-6.8", true),
        ("linux-modules-nvidia-580-server-open-gcp-6.8", true),
        ("linux-image-gcp", false),
        ("linux-image-7.0.0-1009-gcp", false),
    ] {
        assert_eq!(dpkg::installed(files, name).is_some(), there, "{name}");
    }
    // The running kernel is kept.
    let gone = machine.run(&["uninstall", "--format", "json"]);
    assert!(gone.out.contains("6.8.0-1067-gcp"), "{}", gone.out);
    for (name, there) in [
        ("linux-image-6.8.0-1067-gcp", true),
        ("linux-modules-6.8.0-1067-gcp", true),
        ("linux-modules-nvidia-580-server-open-6.8.0-1067-gcp", false),
        ("nvidia-utils-580-server", false),
    ] {
        assert_eq!(dpkg::installed(files, name).is_some(), there, "{name}");
    }
}

#[test]
fn module_without_package_in_series_is_compiled() {
    let kernel = "6.14.0-1025-aws";
    let wrong = ends(&ubuntu("24.04", kernel, ""), &[], kernel, How::Compiled, 0);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // A module compiled here is not signed.
    let signed = ubuntu("24.04", kernel, "secure-boot = 'enabled'\nlists = true");
    let (ran, reboots) = install(&signed, &[]);
    assert_eq!((ran.exit, reboots), (5, 0), "{}", told(&ran));
    for part in [
        "Secure Boot is enabled",
        "driver.may-change-kernel = \\\"any\\\"",
        "7.0.0-1008-aws",
    ] {
        assert!(ran.out.contains(part), "{part}: {}", told(&ran));
    }
}

#[test]
fn packaged_module_older_than_the_libraries_is_rejected() {
    let machine = ubuntu("24.04", "6.8.0-1057-azure", "lists = true");
    let plan = machine.run(&["plan", "--format", "json"]);
    let why = "is driver 580.159.03, but the libraries are 580.173.02";
    assert!(plan.out.contains(why), "{}", told(&plan));
    let wrong = ends(&machine, &[], "6.8.0-1059-azure", How::Packaged, 1);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn another_series_or_new_kernel_requires_a_setting() {
    let old = "6.11.0-1016-aws";
    let without = ubuntu("24.04", old, "lists = true");
    let (ran, _) = install(&without, &[]);
    assert_eq!(ran.exit, 5, "{}", told(&ran));
    let any = ["--set", "driver.may-change-kernel=any"];
    let machine = ubuntu("24.04", old, "");
    let wrong = ends(&machine, &any, "7.0.0-1008-aws", How::Packaged, 1);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let no = ["--set", "driver.may-change-kernel=no"];
    let (ran, _) = install(&ubuntu("24.04", "6.8.0-1044-aws", "lists = true"), &no);
    assert_eq!(ran.exit, 5, "{}", told(&ran));
    assert!(
        ran.out
            .contains("driver.may-change-kernel = \\\"same-series\\\""),
        "{}",
        told(&ran)
    );
}

#[test]
fn image_package_lists_block_only_after_a_refresh() {
    let machine = ubuntu("24.04", "6.8.0-1044-aws", "lists = true");
    // The lists contain no kernel that was released after the image.
    forget(&machine.fakes.files, |part| {
        part.starts_with("Package: linux-") && part.contains("-aws")
    });
    let plan = machine.run(&["plan", "--format", "json"]);
    assert_eq!(plan.exit, 5, "{}", told(&plan));
    let hint = "`install` checks again with new package lists";
    assert!(plan.out.contains(hint), "{}", told(&plan));
    let wrong = ends(&machine, &[], "6.8.0-1060-aws", How::Packaged, 1);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn boot_loader_with_another_default_kernel_prevents_reboot() {
    let machine = ubuntu("24.04", "6.8.0-1044-aws", "");
    machine
        .fakes
        .files
        .put(boot::CHOSEN, "GRUB_DEFAULT=saved\n");
    let (ran, reboots) = install(&machine, &[]);
    assert_eq!((ran.exit, reboots), (6, 0), "{}", told(&ran));
    let why = "kernel 6.8.0-1060-aws is installed, but the boot loader starts 6.8.0-1044-aws";
    assert!(ran.out.contains(why), "{}", told(&ran));
    assert!(!machine.reboot_asked());
}

#[test]
fn image_gets_the_kernel_of_its_instances() {
    let machine = ubuntu("24.04", "6.8.0-1044-aws", "gpus = []");
    let ran = machine.run(&[
        "install",
        "--image",
        "--assume-gpu",
        "10de:2330",
        "--format",
        "json",
    ]);
    assert_eq!(ran.exit, 0, "{}", told(&ran));
    assert!(!machine.reboot_asked());
    let files = &machine.fakes.files;
    for name in [
        "linux-image-6.8.0-1060-aws",
        "linux-modules-nvidia-580-server-open-6.8.0-1060-aws",
        "nvidia-utils-580-server",
    ] {
        assert!(dpkg::installed(files, name).is_some(), "{name}");
    }
}
