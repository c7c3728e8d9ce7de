//! The kernel: running, installed and next boot, architecture and compiler.

use std::str::FromStr;

use crate::{
    facts::{Kernel, Scope, boot, reader::FactReader},
    host::ReadFiles,
    model::version::KernelVersion,
};

/// Reads all facts about kernels.
pub(super) fn gather(reader: &mut FactReader<'_>, scope: Scope) -> Kernel {
    let running = running(reader);
    let installed = installed(reader);
    let next_boot = match boot::next(reader, &installed) {
        Ok(kernel) => Some(kernel),
        Err(why) => {
            reader.unknown("kernel.next-boot", why);
            None
        }
    };
    let arch = arch(reader, scope, running.as_ref().or(next_boot.as_ref()));
    let compiler = compiler(reader);
    let cgroup_v1 = cgroup_v1(reader);
    Kernel {
        running,
        next_boot,
        installed,
        arch,
        compiler,
        cgroup_v1,
    }
}

/// Returns the kernels that are installed now, oldest first, and the kernel that the boot loader
/// would start. The facts contain the values from the start of the run.
pub(crate) fn bootable(files: &dyn ReadFiles) -> (Vec<KernelVersion>, Option<KernelVersion>) {
    let mut reader = FactReader::new(files);
    let installed = installed(&mut reader);
    // The reason for an unknown kernel is in the facts.
    let next = boot::next(&mut reader, &installed).ok();
    (installed, next)
}

/// Reads the release from procfs instead of `uname`, because they differ with `--root` and on simulated
/// machines.
fn running(reader: &mut FactReader<'_>) -> Option<KernelVersion> {
    let text = reader.required("kernel.running", "/proc/sys/kernel/osrelease")?;
    reader.parsed("kernel.running", KernelVersion::from_str(&text))
}

/// Returns the kernels in `/lib/modules` that have an image in `/boot`, or in the module directory
/// as on Fedora and its derivatives. Oldest first.
fn installed(reader: &mut FactReader<'_>) -> Vec<KernelVersion> {
    let fact = "kernel.installed";
    let images: Vec<String> = reader
        .list(fact, "/boot")
        .iter()
        .filter_map(|name| boot::kernel_of_image(name).map(str::to_owned))
        .collect();
    let mut kernels: Vec<KernelVersion> = reader
        .list(fact, "/lib/modules")
        .into_iter()
        .filter(|name| {
            images.contains(name) || reader.exists(fact, &format!("/lib/modules/{name}/vmlinuz"))
        })
        // A directory whose name is not a kernel release does not belong to a kernel.
        .filter_map(|name| name.parse().ok())
        .collect();
    kernels.sort();
    kernels
}

fn arch(
    reader: &mut FactReader<'_>,
    scope: Scope,
    kernel: Option<&KernelVersion>,
) -> Option<String> {
    let fact = "kernel.arch";
    // Available since Linux 6.1.
    if let Some(arch) = reader.value(fact, "/proc/sys/kernel/arch") {
        return Some(arch);
    }
    if let Some(arch) = kernel.and_then(|kernel| arch_of_release(kernel.as_str())) {
        return Some(arch.to_owned());
    }
    if let Some(arch) = reader
        .bytes(fact, "/bin/sh")
        .and_then(|binary| arch_of_elf(&binary))
    {
        return Some(arch.to_owned());
    }
    if scope.executes {
        return Some(std::env::consts::ARCH.to_owned());
    }
    reader.unknown(
        fact,
        "not found in `/proc/sys/kernel/arch`, the kernel release, or `/bin/sh`",
    );
    None
}

/// Whether systemd mounted cgroup v1 below `/sys/fs/cgroup`. A partial tree may contain neither version.
fn cgroup_v1(reader: &mut FactReader<'_>) -> bool {
    let fact = "kernel.cgroup-v1";
    reader.exists(fact, "/sys/fs/cgroup/systemd")
        && !reader.exists(fact, "/sys/fs/cgroup/cgroup.controllers")
}

fn compiler(reader: &mut FactReader<'_>) -> Option<String> {
    let text = reader.required("kernel.compiler", "/proc/version")?;
    let compiler = parse_compiler(&text);
    if compiler.is_none() {
        reader.unknown(
            "kernel.compiler",
            format!("no compiler in `/proc/version`: `{text}`"),
        );
    }
    compiler
}

/// Returns the architecture from a release: `.x86_64` on Red Hat and derivatives, `-amd64` on
/// Debian.
fn arch_of_release(release: &str) -> Option<&'static str> {
    let mut words = release.split(['.', '-', '+']).rev();
    words.find_map(|word| match word {
        "x86_64" | "amd64" => Some("x86_64"),
        "aarch64" | "arm64" => Some("aarch64"),
        "ppc64le" | "powerpc64le" => Some("ppc64le"),
        "riscv64" => Some("riscv64"),
        "s390x" => Some("s390x"),
        _ => None,
    })
}

/// Returns the architecture from an ELF header: the byte order is at offset 5, and `e_machine` is
/// two bytes at offset 18. Values are from `linux/elf-em.h`.
fn arch_of_elf(binary: &[u8]) -> Option<&'static str> {
    if !binary.starts_with(b"\x7fELF") {
        return None;
    }
    let machine = binary.get(18..20)?;
    let little = *binary.get(5)? == 1;
    let number = if little {
        u16::from_le_bytes([machine[0], machine[1]])
    } else {
        u16::from_be_bytes([machine[0], machine[1]])
    };
    match (number, little) {
        (62, true) => Some("x86_64"),
        (183, true) => Some("aarch64"),
        (21, true) => Some("ppc64le"),
        (243, true) => Some("riscv64"),
        (22, false) => Some("s390x"),
        _ => None,
    }
}

/// Returns the compiler in `/proc/version` as a package name, such as `gcc-12` or `clang-18`.
///
/// The format is `Linux version RELEASE (BUILDER) (COMPILER, LINKER) #…`. In older kernels, the
/// second pair of parentheses contains only the compiler: `(gcc version 8.5.0 …)`.
fn parse_compiler(text: &str) -> Option<String> {
    // The builder is a mail address in parentheses, followed by the compiler.
    let banner = text.split_once(") (")?.1;
    let mut words = banner.split([' ', '(', ')', ',']).filter(|w| !w.is_empty());
    if let Some((_, version)) = banner.split_once("clang version ") {
        return Some(format!("clang-{}", major(version)?));
    }
    let program = words.next()?;
    // The name of a cross compiler starts with its target: `x86_64-linux-gnu-gcc-13`.
    let at = program.rfind("gcc")?;
    if let Some(number) = program[at..].strip_prefix("gcc-")
        && number.bytes().all(|b| b.is_ascii_digit())
        && !number.is_empty()
    {
        return Some(format!("gcc-{number}"));
    }
    let version =
        words.find(|word| word.contains('.') && word.starts_with(|c: char| c.is_ascii_digit()))?;
    Some(format!("gcc-{}", major(version)?))
}

fn major(version: &str) -> Option<u32> {
    let digits = version.split(|c: char| !c.is_ascii_digit()).next()?;
    digits.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{host::fake::FakeFiles, model::text::reads_any_text};

    #[test]
    fn cgroup_version_is_read_from_the_mounts_of_systemd() {
        for (mounts, expected) in rows! {
            &["systemd/tasks"][..], true;
            // A hybrid hierarchy: controllers are in cgroup v1.
            &["systemd/tasks", "unified/cgroup.controllers"][..], true;
            &["cgroup.controllers"][..], false;
            // A partial tree.
            &[][..], false;
        } {
            let files = FakeFiles::new();
            for mount in mounts {
                files.put(&format!("/sys/fs/cgroup/{mount}"), "");
            }
            assert_eq!(
                cgroup_v1(&mut FactReader::new(&files)),
                expected,
                "{mounts:?}"
            );
        }
    }

    #[test]
    fn compiler_is_parsed_from_proc_version() {
        let of = |banner: &str| parse_compiler(&format!("Linux version 6 (a@b) ({banner}) #1 SMP"));
        for (banner, expected) in rows! {
            "gcc-12 (Debian 12.2.0-14+deb12u1) 12.2.0, GNU ld (GNU Binutils for Debian) 2.40",
                "gcc-12";
            "x86_64-linux-gnu-gcc-13 (Ubuntu 13.3.0-6ubuntu2~24.04) 13.3.0, GNU ld 2.42", "gcc-13";
            "gcc (GCC) 11.5.0 20240719 (Red Hat 11.5.0-5), GNU ld version 2.35.2-54.el9", "gcc-11";
            "gcc version 8.5.0 20210514 (Red Hat 8.5.0-22) (GCC)", "gcc-8";
            "gcc14-gcc (GCC) 14.2.1 20250110 (Red Hat 14.2.1-7), GNU ld", "gcc-14";
            "Debian clang version 14.0.6, LLD 14.0.6", "clang-14";
            "clang version 18.1.3 (1ubuntu1), GNU ld", "clang-18";
        } {
            assert_eq!(of(banner).as_deref(), Some(expected), "{banner}");
        }
        for text in [
            "",
            "Linux",
            "Linux version 6 (a@b) ()",
            "x) (gcc",
            "x) (gcc-",
        ] {
            assert_eq!(parse_compiler(text), None, "{text}");
        }
    }

    #[test]
    fn architecture_is_parsed_from_release_and_elf_header() {
        assert_eq!(arch_of_release("6.1.0-44-cloud-amd64"), Some("x86_64"));
        assert_eq!(
            arch_of_release("5.14.0-570.12.1.el9_6.aarch64+64k"),
            Some("aarch64")
        );
        assert_eq!(arch_of_release("6.8.0-1015-aws"), None);
        let mut elf = b"\x7fELF\x02\x01\x01".to_vec();
        assert_eq!(arch_of_elf(&elf), None);
        elf.resize(18, 0);
        elf.extend([62, 0]);
        assert_eq!(arch_of_elf(&elf), Some("x86_64"));
        elf[18] = 183;
        assert_eq!(arch_of_elf(&elf), Some("aarch64"));
        assert_eq!(arch_of_elf(b"#!/bin/sh"), None);
        // Architectures without a driver are also detected.
        assert_eq!(arch_of_release("5.14.0-570.el9.ppc64le"), Some("ppc64le"));
        elf[18] = 243;
        assert_eq!(arch_of_elf(&elf), Some("riscv64"));
        (elf[5], elf[18], elf[19]) = (2, 0, 22);
        assert_eq!(arch_of_elf(&elf), Some("s390x"));
    }

    reads_any_text!(
        "(\\) \\(|gcc|clang version |-|[0-9]|.)*",
        |text| parse_compiler(&text); arch_of_release(&text); arch_of_elf(text.as_bytes())
    );
}
