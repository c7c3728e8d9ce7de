//! Packages that gpu-bootstrap has built (`driver.prebuilt.only`), read from their files, and an archive with prebuilt modules.

use std::{collections::BTreeMap, io::Read};

use camino::Utf8Path;
use gpu_bootstrap::{
    host::{
        Cmd, ReadFiles,
        fake::{FakeFiles, Fakes},
    },
    model::gpu::Flavor,
    tools::prebuilt::{BuildTarget, Modules, pack},
};

use crate::{
    archive::{Package, field},
    state::list,
};

/// The directory of the package files.
pub const DIRECTORY: &str = "/var/lib/gpu-bootstrap/packages";

/// The option that adds a package file to the sources of a command.
pub const OPTION: &str = "-oAPT::Sources::With::=";

/// The source with the archive.
const SOURCE: &str = "https://modules.example/gpu";

/// An ELF file that only contains the module information.
fn module(info: &[u8]) -> Vec<u8> {
    let mut file = b"\x7fELF\x02\x01\x01".to_vec();
    file.resize(64, 0);
    let names = b"\0.modinfo\0.shstrtab\0";
    let sections = [
        (0, 0, 0),
        (1, file.len(), info.len()),
        (10, file.len() + info.len(), names.len()),
    ];
    file.extend(info);
    file.extend(names);
    let table = file.len() as u64;
    for (name, at, length) in sections {
        let start = file.len();
        file.extend(u32::to_le_bytes(name));
        file.resize(start + 0x18, 0);
        file.extend((at as u64).to_le_bytes());
        file.extend((length as u64).to_le_bytes());
        file.resize(start + 64, 0);
    }
    file[0x28..0x30].copy_from_slice(&table.to_le_bytes());
    (file[0x3a], file[0x3c], file[0x3e]) = (64, 3, 2);
    file
}

/// Serves archives with modules of both flavors for the kernel of the machine.
pub fn serve(fakes: &Fakes, kernel: &str, os_release: &str) {
    let Ok(kernel) = kernel.parse() else {
        return;
    };
    let id = (os_release.lines()).find_map(|line| line.strip_prefix("ID="));
    let mut target = BuildTarget {
        distribution: id.unwrap_or_default().trim_matches('"').to_owned(),
        kernel,
        architecture: "x86_64".to_owned(),
        driver: "580.178.04".parse().expect("a version"),
        flavor: Flavor::Proprietary,
    };
    for (flavor, license) in [
        (Flavor::Proprietary, "NVIDIA"),
        (Flavor::Open, "Dual MIT/GPL"),
    ] {
        target.flavor = flavor;
        let info = format!(
            "license={license}\0vermagic={} SMP mod_unload \0depends=\0",
            target.kernel
        );
        let modules: Modules = ["nvidia", "nvidia-uvm", "nvidia-modeset"]
            .map(|name| (name.to_owned(), module(info.as_bytes())))
            .into();
        let archive = pack(&target, None, &modules).expect("packed");
        (fakes.http).serve(&format!("{SOURCE}/{}", target.archive()), archive);
    }
}

/// Returns a member of an `ar` archive.
fn member<'a>(file: &'a [u8], wanted: &str) -> &'a [u8] {
    let mut rest = file.strip_prefix(b"!<arch>\n").expect("an archive");
    loop {
        let header = std::str::from_utf8(&rest[..60]).expect("a header");
        let size: usize = header[48..58].trim().parse().expect("a size");
        if header[..16].trim() == wanted {
            return &rest[60..60 + size];
        }
        rest = &rest[60 + size + size % 2..];
    }
}

/// `X (= VERSION)` of the own version is `X = self`, and other versions are left out.
fn dependency(clause: &str, version: &str) -> String {
    let names: Vec<String> = (clause.split(" | "))
        .map(|one| match one.split_once(" (") {
            Some((name, rest)) if rest == format!("= {version})") => format!("{name} = self"),
            Some((name, _)) => name.to_owned(),
            None => one.to_owned(),
        })
        .collect();
    names.join(" | ")
}

fn read(bytes: &[u8]) -> Package {
    let mut control = String::new();
    let mut archive = tar::Archive::new(member(bytes, "control.tar"));
    let mut entries = archive.entries().expect("entries");
    let mut first = entries.next().expect("a file").expect("readable");
    first.read_to_string(&mut control).expect("text");
    let value = |key: &str| field(&control, key).unwrap_or_default();
    let all = |key: &str| -> Vec<String> {
        let value = value(key);
        let clauses = value.split(", ").filter(|one| !one.is_empty());
        clauses.map(str::to_owned).collect()
    };
    let names = |key: &str| -> Vec<String> {
        let name = |clause: &String| clause.split(' ').next().unwrap_or_default().to_owned();
        all(key).iter().map(name).collect()
    };
    let version = value("Version");
    let mut data = tar::Archive::new(member(bytes, "data.tar"));
    let paths: Vec<String> = (data.entries().expect("entries"))
        .map(|entry| {
            let entry = entry.expect("readable");
            String::from_utf8_lossy(&entry.path_bytes()).into_owned()
        })
        .collect();
    let kernel = (paths.iter())
        .find_map(|path| {
            path.strip_prefix("lib/modules/")?
                .strip_suffix("/updates/dkms/nvidia.ko")
        })
        .expect("the driver module");
    Package {
        depends: (all("Depends").iter())
            .map(|clause| dependency(clause, &version))
            .collect(),
        provides: names("Provides"),
        conflicts: names("Conflicts"),
        module: Some((kernel.to_owned(), crate::kernel::driver_version(&version))),
        name: value("Package"),
        repo: "local-deb".to_owned(),
        maintainer: value("Maintainer"),
        version,
        ..Package::default()
    }
}

/// Reads an RPM package.
fn read_rpm(bytes: &[u8]) -> Package {
    let package = rpm::PackageMetadata::parse(&mut &*bytes).expect("a package");
    let evr = |epoch| {
        let (version, release) = (package.get_version(), package.get_release());
        format!(
            "{epoch}:{}-{}",
            version.expect("a version"),
            release.expect("a release")
        )
    };
    let version = evr(package.get_epoch().expect("an epoch"));
    let relation = |one: rpm::Dependency| match one.version == version {
        true => format!("{} = self", one.name),
        false => one.name,
    };
    let names = |all: Result<Vec<rpm::Dependency>, rpm::Error>| -> Vec<String> {
        all.expect("readable")
            .into_iter()
            .map(|one| one.name)
            .collect()
    };
    let kernel = (package.get_file_paths().expect("readable").iter())
        .find_map(|path| {
            let path = path.to_str()?.strip_prefix("/lib/modules/")?;
            Some(path.strip_suffix("/updates/dkms/nvidia.ko")?.to_owned())
        })
        .expect("the driver module");
    let is_other =
        |one: &rpm::Dependency| one.name != "/bin/sh" && !one.name.starts_with("rpmlib(");
    Package {
        depends: (package.get_requires().expect("readable").into_iter())
            .filter(is_other)
            .map(relation)
            .collect(),
        provides: names(package.get_provides()),
        conflicts: names(package.get_conflicts()),
        module: Some((kernel, crate::kernel::driver_version(&version))),
        name: package.get_name().expect("a name").to_owned(),
        repo: "@commandline".to_owned(),
        maintainer: package.get_packager().expect("a packager").to_owned(),
        version,
        ..Package::default()
    }
}

/// The packages that gpu-bootstrap has built.
pub fn packages(files: &FakeFiles) -> Vec<Package> {
    let path = |name: &String| format!("{DIRECTORY}/{name}");
    let bytes = |path: String| files.read(Utf8Path::new(&path)).expect("readable");
    let built = list(files, DIRECTORY);
    (built.iter())
        .filter_map(|name| Some((name, bytes(path(name))?)))
        .filter(|(_, bytes)| !bytes.is_empty())
        .filter_map(|(name, bytes)| match name.rsplit_once('.')?.1 {
            "deb" => Some(read(&bytes)),
            "rpm" => Some(read_rpm(&bytes)),
            _ => None,
        })
        .collect()
}

/// Returns the package in a file of [`DIRECTORY`], if the argument is the path of one.
pub fn at_path(files: &FakeFiles, argument: &str) -> Option<Package> {
    let name = argument.strip_prefix(DIRECTORY)?.strip_prefix('/')?;
    let name = name.strip_suffix(".rpm")?;
    packages(files).into_iter().find(|one| one.name == name)
}

/// The relations of a package, in the format that gpu-bootstrap queries from dnf and rpm.
pub fn relations(package: &Package) -> String {
    let own = format!(" = {}", package.version);
    let depends: Vec<String> = (package.depends.iter())
        .map(|one| one.replace(" = self", &own))
        .collect();
    let lines = |all: &[String]| all.iter().map(|one| format!("{one}\n")).collect::<String>();
    format!(
        "\tpackage\t{}\t{}\tx86_64\n\trequires\n{}\tprovides\n{}\tconflicts\n{}\tobsoletes\n\tend\n",
        package.name,
        package.version,
        lines(&depends),
        lines(&package.provides),
        lines(&package.conflicts)
    )
}

/// Removes the options for package files from a command.
pub fn without_options(cmd: &Cmd) -> Cmd {
    let args = cmd.args.iter().filter(|arg| !arg.starts_with(OPTION));
    Cmd {
        args: args.cloned().collect(),
        ..cmd.clone()
    }
}

/// Whether an installed package, or one that is going to be installed, provides a name.
pub fn is_provided<'v>(
    packages: &[Package],
    versions: impl IntoIterator<Item = (&'v String, &'v String)>,
    name: &str,
) -> bool {
    let versions: BTreeMap<&String, &String> = versions.into_iter().collect();
    packages.iter().any(|one| {
        versions.get(&one.name) == Some(&&one.version) && one.provides.iter().any(|it| it == name)
    })
}
