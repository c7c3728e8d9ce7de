//! Builds Debian packages, deb(5): an `ar` archive with the format version, the control files and the data. The members are not
//! compressed, because the file is installed on this machine. No program is needed, and the same package always has the same bytes.

use std::io;

use camino::Utf8Path;

use super::Apt;
use crate::{
    host::{Cmd, Query},
    model::pattern,
    tools::packages::{Builder, ModulePackage, PackageFile, Relations, builder},
};

const MAGIC: &[u8] = b"!<arch>\n";

/// The programs that read package sources.
const READS_SOURCES: [&str; 2] = ["apt-get", "apt-cache"];

const CONTROL: &str = "control.tar";

/// Dependencies that only compiling needs, as patterns of package names. Sources: `Depends` of `nvidia-kernel-dkms` 535.261.03-1 of
/// Debian 12 (index of the archive, 2026-11-30: `dkms`), and of Ubuntu's DKMS packages, which also need the source package (not
/// verified).
const ONLY_TO_COMPILE: [&str; 3] = ["dkms", "nvidia-kernel-source-*", "linux-headers-*"];

/// Returns the package name at the start of a dependency.
fn name_of(dependency: &str) -> &str {
    let end = dependency.find(|c: char| c.is_whitespace() || "(:|".contains(c));
    end.map_or(dependency, |end| &dependency[..end])
}

fn list(value: &str) -> Vec<String> {
    let clauses = value.split(',').map(str::trim);
    clauses
        .filter(|one| !one.is_empty())
        .map(str::to_owned)
        .collect()
}

/// Joins the continuation lines of fields, deb-control(5): a line that starts with a space or a tab.
fn unfolded(text: &str) -> String {
    text.replace("\n ", " ").replace("\n\t", " ")
}

/// Whether only compiling needs a dependency: a compiler or a source can meet it.
fn compiles(dependency: &str) -> bool {
    (dependency.split('|').map(|one| name_of(one.trim())))
        .any(|name| (ONLY_TO_COMPILE.iter()).any(|one| pattern::matches(one, name)))
}

/// The architecture of packages, dpkg-architecture(1).
fn architecture(machine: &str) -> &str {
    match machine {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// The control file, deb-control(5).
fn control(package: &ModulePackage) -> String {
    let Relations {
        name,
        version,
        depends,
        provides,
        conflicts,
        breaks,
        replaces,
    } = &package.relations;
    let bytes: usize = package.files.iter().map(|(_, bytes)| bytes.len()).sum();
    let field = |key: &str, all: &[String]| match all {
        [] => String::new(),
        all => format!("{key}: {}\n", all.join(", ")),
    };
    format!(
        "Package: {name}\nVersion: {version}\nArchitecture: {architecture}\nMaintainer: gpu-bootstrap <root@localhost>\n\
         Installed-Size: {size}\n{depends}{provides}{conflicts}{breaks}{replaces}Section: kernel\nPriority: optional\nDescription: {description}\n",
        architecture = architecture(&package.architecture),
        size = bytes.div_ceil(1024),
        depends = field("Depends", depends),
        provides = field("Provides", provides),
        conflicts = field("Conflicts", conflicts),
        breaks = field("Breaks", breaks),
        replaces = field("Replaces", replaces),
        description = package.description,
    )
}

/// The script that runs after an installation or a removal: updates the list of modules, like DKMS. A removed kernel has no list.
fn script(verb: &str, kernel: &str) -> String {
    let needed = match verb {
        "configure" => format!("-d /lib/modules/{kernel}"),
        _ => format!("-e /lib/modules/{kernel}/modules.dep"),
    };
    format!("#!/bin/sh\nset -e\nif [ \"$1\" = {verb} ] && [ {needed} ]; then depmod {kernel}; fi\n")
}

fn header(kind: tar::EntryType, mode: u32, size: usize) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(size as u64);
    header.set_mtime(0);
    header.set_uid(0);
    header.set_gid(0);
    header
}

fn control_archive(package: &ModulePackage) -> io::Result<Vec<u8>> {
    let files = [
        ("control", 0o644, control(package)),
        ("postinst", 0o755, script("configure", &package.kernel)),
        ("postrm", 0o755, script("remove", &package.kernel)),
    ];
    let mut archive = tar::Builder::new(Vec::new());
    for (name, mode, text) in files {
        let mut header = header(tar::EntryType::Regular, mode, text.len());
        archive.append_data(&mut header, name, text.as_bytes())?;
    }
    archive.into_inner()
}

fn data_archive(package: &ModulePackage) -> io::Result<Vec<u8>> {
    let relative = |path: &Utf8Path| path.as_str().trim_start_matches('/').to_owned();
    let mut archive = tar::Builder::new(Vec::new());
    for directory in builder::directories(package, |_| true) {
        let mut header = header(tar::EntryType::Directory, 0o755, 0);
        archive.append_data(
            &mut header,
            format!("{}/", relative(directory)),
            io::empty(),
        )?;
    }
    for (path, content) in &package.files {
        let mut header = header(tar::EntryType::Regular, 0o644, content.len());
        archive.append_data(&mut header, relative(path), &content[..])?;
    }
    archive.into_inner()
}

/// Adds a member to an `ar` archive.
fn add(archive: &mut Vec<u8>, name: &str, content: &[u8]) {
    let size = content.len();
    archive.extend(
        format!(
            "{name:<16}{:<12}{:<6}{:<6}{:<8}{size:<10}`\n",
            0, 0, 0, 100644
        )
        .bytes(),
    );
    archive.extend(content);
    if size % 2 == 1 {
        archive.push(b'\n');
    }
}

/// Returns a member of an `ar` archive.
fn member<'a>(archive: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let mut rest = archive.strip_prefix(MAGIC)?;
    loop {
        let (header, content) = rest.split_at_checked(60)?;
        let header = std::str::from_utf8(header).ok()?;
        let size: usize = header.get(48..58)?.trim().parse().ok()?;
        let (content, after) = content.split_at_checked(size)?;
        if header.get(..16)?.trim() == name {
            return Some(content);
        }
        rest = after.get(size % 2..)?;
    }
}

impl Builder for Apt {
    fn relations(&self, names: &[&str]) -> Vec<Query> {
        let args = ["show", "--"].iter().chain(names).copied();
        vec![Query::new("apt-cache", args)]
    }

    /// Parses deb-control(5). A dependency before the installation is then also needed for it.
    fn parse_relations(&self, text: &str) -> Vec<Relations> {
        let mut found: Vec<Relations> = Vec::new();
        for line in unfolded(text).lines() {
            let Some((key, value)) = line.split_once(':') else {
                continue;
            };
            if key == "Package" {
                found.push(Relations {
                    name: value.trim().to_owned(),
                    ..Relations::default()
                });
            }
            let Some(last) = found.last_mut() else {
                continue;
            };
            match key {
                "Version" => last.version = value.trim().to_owned(),
                "Depends" | "Pre-Depends" => last.depends.extend(list(value)),
                "Provides" => last.provides.extend(list(value)),
                "Conflicts" => last.conflicts.extend(list(value)),
                "Breaks" => last.breaks.extend(list(value)),
                "Replaces" => last.replaces.extend(list(value)),
                _ => {}
            }
        }
        found
    }

    /// deb-control(5): lower-case letters, digits, `+`, `-` and `.`.
    fn name(&self, prefix: &str, kernel: &str) -> Option<String> {
        let name = format!("{prefix}{kernel}");
        let is_valid =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"+-.".contains(&byte);
        name.bytes().all(is_valid).then_some(name)
    }

    fn instead_of(&self, name: &str, replaced: &Relations) -> Relations {
        let provided = format!("{} (= {})", replaced.name, replaced.version);
        builder::instead_of(name, replaced, provided, name_of, compiles)
    }

    fn build(&self, package: &ModulePackage) -> io::Result<Vec<u8>> {
        let mut archive = MAGIC.to_vec();
        add(&mut archive, "debian-binary", b"2.0\n");
        add(&mut archive, CONTROL, &control_archive(package)?);
        add(&mut archive, "data.tar", &data_archive(package)?);
        Ok(archive)
    }

    fn suffix(&self) -> &'static str {
        ".deb"
    }

    fn version(&self, content: &[u8]) -> Option<String> {
        // The last member is complete only if the file is.
        member(content, "data.tar")?;
        let mut archive = tar::Archive::new(member(content, CONTROL)?);
        let mut first = archive.entries().ok()?.next()?.ok()?;
        let mut text = String::new();
        io::Read::read_to_string(&mut first, &mut text).ok()?;
        let mut found = self.parse_relations(&text);
        found.pop().map(|one| one.version)
    }

    fn reads_sources(&self, cmd: &Cmd) -> bool {
        READS_SOURCES.contains(&cmd.program.as_str())
    }

    /// apt.conf(5): `APT::Sources::With` is the option `--with-source` of apt-get(8) and apt-cache(8), which adds packages to those
    /// of the repositories.
    fn with_files(&self, cmd: &Cmd, files: &[PackageFile]) -> Cmd {
        let mut cmd = cmd.clone();
        let options = files
            .iter()
            .map(|file| format!("-oAPT::Sources::With::={}", file.path));
        cmd.args.splice(0..0, options);
        cmd
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Debian 12, 2026-11-30, shortened.
    const SHOWN: &str = "\
Package: nvidia-kernel-dkms
Version: 535.261.03-1
Provides: nvidia-kernel-535.261.03, nvidia-kernel-dkms-any (= 535.261.03)
Depends: firmware-nvidia-gsp (= 535.261.03) | firmware-nvidia-gsp-535.261.03, gcc | dkms,
 nvidia-kernel-support--v1, dkms (>= 3.0.3-4~),
 nvidia-installer-cleanup
Pre-Depends: nvidia-installer-cleanup
Conflicts: nvidia-kernel-dkms-any, nvidia-other-dkms
Breaks: old (<< 2)
Replaces: old (<< 2)
Description: NVIDIA binary kernel module DKMS source
 This package: builds.

Package: nvidia-kernel-dkms
Version: 535.247.01-1~deb12u1
Depends: dkms
";

    fn package() -> ModulePackage {
        let shown = Apt.parse_relations(SHOWN);
        assert_eq!(shown.len(), 2, "{shown:?}");
        let name = Apt
            .name("nvidia-prebuilt-modules-", "6.1.0-44-amd64")
            .unwrap();
        ModulePackage {
            relations: Apt.instead_of(&name, &shown[0]),
            architecture: "x86_64".to_owned(),
            kernel: "6.1.0-44-amd64".to_owned(),
            description: "NVIDIA driver modules".to_owned(),
            files: vec![(
                "/lib/modules/6.1.0-44-amd64/updates/dkms/nvidia-current.ko".into(),
                b"odd".to_vec(),
            )],
        }
    }

    #[test]
    fn package_replaces_the_dkms_package_without_compiler() {
        let text = control(&package());
        for line in [
            "Package: nvidia-prebuilt-modules-6.1.0-44-amd64\n",
            "Version: 535.261.03-1\nArchitecture: amd64\n",
            "Depends: firmware-nvidia-gsp (= 535.261.03) | firmware-nvidia-gsp-535.261.03, nvidia-kernel-support--v1, \
             nvidia-installer-cleanup\n",
            "Provides: nvidia-kernel-dkms (= 535.261.03-1), nvidia-kernel-535.261.03, nvidia-kernel-dkms-any (= 535.261.03)\n",
            "Conflicts: nvidia-other-dkms\nBreaks: old (<< 2)\nReplaces: old (<< 2)\n",
        ] {
            assert!(text.contains(line), "{text}");
        }
        // A later kernel gets the relations of an installed package, after the archive has removed the DKMS package.
        let first = package().relations;
        let next = Apt.instead_of(
            "nvidia-prebuilt-modules-6.1.0-45-amd64",
            &Relations {
                name: "nvidia-kernel-dkms".to_owned(),
                ..first.clone()
            },
        );
        assert_eq!(
            (next.depends, next.provides, next.conflicts),
            (first.depends, first.provides, first.conflicts)
        );
    }

    #[test]
    fn built_file_is_reproducible_and_readable() {
        let package = package();
        let file = Apt.build(&package).unwrap();
        assert_eq!(file, Apt.build(&package).unwrap());
        assert_eq!(Apt.version(&file).as_deref(), Some("535.261.03-1"));
        let mut data = tar::Archive::new(member(&file, "data.tar").unwrap());
        let paths: Vec<String> = (data.entries().unwrap())
            .map(|one| String::from_utf8_lossy(&one.unwrap().path_bytes()).into_owned())
            .collect();
        assert_eq!(paths[0], "lib/");
        assert_eq!(
            paths.last().map(String::as_str),
            Some("lib/modules/6.1.0-44-amd64/updates/dkms/nvidia-current.ko")
        );
        // A power loss may truncate the file.
        for end in [0, 8, 70, 200, file.len() - 1024] {
            assert_eq!(Apt.version(&file[..end]), None, "{end}");
        }
    }

    #[test]
    fn kernel_must_be_valid_in_a_package_name() {
        assert!(Apt.name("a-", "6.12.43+deb13-amd64").is_some());
        assert_eq!(Apt.name("a-", "6.1.0-Custom"), None);
    }

    #[test]
    fn files_are_sources_of_each_command() {
        let file = PackageFile {
            name: "x".to_owned(),
            version: "1".to_owned(),
            path: "/var/lib/x.deb".into(),
        };
        let query = &Apt.relations(&["a"])[0];
        assert!(Apt.reads_sources(query.cmd()));
        let cmd = Apt.with_files(query.cmd(), &[file]);
        assert_eq!(
            cmd.line(),
            "apt-cache -oAPT::Sources::With::=/var/lib/x.deb show -- a"
        );
        assert!(!Apt.reads_sources(&Cmd::new("dpkg", ["-l"])));
    }
}
