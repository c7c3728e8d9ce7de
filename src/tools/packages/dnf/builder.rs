//! Builds RPM packages (format 4, not compressed and not signed), and adds their files to commands of dnf. dnf cannot add a file to
//! its repositories, but accepts its path instead of a package name. The same package always has the same bytes.

use std::io;

use camino::Utf8Path;
use rpm::{
    BuildConfig, CompressionType, Dependency, FileOptions, IndexSignatureTag, PackageMetadata,
};

use super::{Dnf, commands, offers::NOT_NATIVE, sources};
use crate::{
    host::{Cmd, FilesError, Query, ReadFiles},
    model::{pattern, secret::Secret},
    tools::packages::{Builder, ModulePackage, PackageFile, Relations, builder},
};

/// The relations of the packages in the repositories. dnf replaces `\t` and `\n` itself, and prints one relation per line.
const AVAILABLE: &str = "\\tpackage\\t%{name}\\t%{epoch}:%{version}-%{release}\\t%{arch}\\n\
                         \\trequires\\n%{requires}\\n\\tprovides\\n%{provides}\\n\
                         \\tconflicts\\n%{conflicts}\\n\\tobsoletes\\n%{obsoletes}\\n\\tend\\n";

/// The same for installed packages. rpm prints `(none)` without a line break instead of an empty array.
const INSTALLED: &str = "\\tpackage\\t%{NAME}\\t%{EPOCHNUM}:%{VERSION}-%{RELEASE}\\t%{ARCH}\\n\
                         \\trequires\\n[%{REQUIRENEVRS}\\n]\\tprovides\\n[%{PROVIDENEVRS}\\n]\
                         \\tconflicts\\n[%{CONFLICTNEVRS}\\n]\\tobsoletes\\n[%{OBSOLETENEVRS}\\n]\\tend\\n";

/// Dependencies that only compiling needs, as patterns of package names. `dkms` is the dependency of NVIDIA's packages
/// (NVIDIA/yum-packaging-dkms-nvidia: dkms-open-nvidia.spec, dkms-nvidia.spec). `gcc`, `make` and `elfutils-libelf-devel` are
/// dependencies of DKMS (dkms.spec of Fedora), and the kernel packages are the headers in the profiles; that NVIDIA's packages
/// depend on them is not verified.
const ONLY_TO_COMPILE: [&str; 7] = [
    "dkms",
    "gcc",
    "gcc-c++",
    "make",
    "elfutils-libelf-devel",
    "kernel*-devel*",
    "kernel*-headers",
];

/// The interpreter of package scripts, a dependency of each package with scripts.
const SHELL: &str = "/bin/sh";

/// The commands of dnf that install packages, on its command line or in its shell.
const INSTALLS: [&str; 2] = ["install", "reinstall"];

/// The option of `dnf.conf(5)` that requires signatures of package files.
const VERIFIES_FILES: &str = "localpkg_gpgcheck";

/// Returns the name in a relation such as `NAME >= VERSION`. A rich dependency has no name, and is returned unchanged.
fn name_of(relation: &str) -> &str {
    match relation.starts_with('(') {
        true => relation,
        false => relation.split_whitespace().next().unwrap_or_default(),
    }
}

/// Whether only compiling needs a dependency. Also a rich dependency such as `(kernel-devel if kernel-core)`, because a package that
/// compiles nothing needs no part of it.
fn compiles(dependency: &str) -> bool {
    let names: Vec<&str> = match dependency.starts_with('(') {
        true => dependency
            .split(|c: char| c.is_whitespace() || "()".contains(c))
            .collect(),
        false => vec![name_of(dependency)],
    };
    let is_it = |name: &&str| {
        ONLY_TO_COMPILE
            .iter()
            .any(|one| pattern::matches(one, name))
    };
    names.iter().any(is_it)
}

fn invalid(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, what)
}

/// Parses `NAME`, `NAME = VERSION`, or a rich dependency, which is a name in the RPM format.
fn dependency(relation: &str) -> io::Result<Dependency> {
    if relation.starts_with('(') {
        return Ok(Dependency::any(relation));
    }
    let words: Vec<&str> = relation.split_whitespace().collect();
    Ok(match words[..] {
        [name] => Dependency::any(name),
        [name, "=", version] => Dependency::eq(name, version),
        [name, "<", version] => Dependency::less(name, version),
        [name, "<=", version] => Dependency::less_eq(name, version),
        [name, ">", version] => Dependency::greater(name, version),
        [name, ">=", version] => Dependency::greater_eq(name, version),
        _ => {
            return Err(invalid(format!(
                "`{relation}` is not a relation of an RPM package"
            )));
        }
    })
}

/// Splits `EPOCH:VERSION-RELEASE`. The epoch is `None` if it is 0.
fn split(version: &str) -> io::Result<(Option<u32>, &str, &str)> {
    let not_valid = || invalid(format!("`{version}` is not a version of an RPM package"));
    let (epoch, rest) = version.split_once(':').unwrap_or(("0", version));
    let epoch: u32 = epoch.parse().map_err(|_| not_valid())?;
    let (number, release) = rest.rsplit_once('-').ok_or_else(not_valid)?;
    Ok(((epoch != 0).then_some(epoch), number, release))
}

/// Whether a directory is below the directory of the kernel. Its parents belong to packages of the system, and `/lib` is a symlink
/// there.
fn is_below_kernel(directory: &Utf8Path, kernel: &str) -> bool {
    let mut parents = directory.ancestors().skip(1);
    parents.any(|parent| parent.file_name() == Some(kernel))
}

/// Returns the number of the line in `dnf.conf` that requires signatures of package files.
fn verifies_files(text: &str) -> Option<usize> {
    let (mut is_main, mut found) = (false, None);
    for (at, line) in text.lines().map(str::trim_end).enumerate() {
        if line.starts_with('[') {
            is_main = line.starts_with("[main]");
        } else if let Some((key, value)) = line.split_once('=')
            && is_main
            && key.trim_end() == VERIFIES_FILES
        {
            let value = value.trim().to_ascii_lowercase();
            let is_on = ["1", "yes", "true", "on"].contains(&value.as_str());
            // The last value counts.
            found = is_on.then_some(at + 1);
        }
    }
    found
}

/// Returns the path of the package file that an argument requests: `NAME`, `NAME-VERSION` or `NAME-VERSION.ARCHITECTURE`.
fn path_for(argument: &str, files: &[PackageFile]) -> Option<String> {
    let is_requested = |file: &&PackageFile| {
        let exact = format!("{}-{}", file.name, file.version);
        argument == file.name
            || (argument.strip_prefix(&exact))
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    files
        .iter()
        .find(is_requested)
        .map(|file| file.path.to_string())
}

/// Replaces the requested packages in a script of the dnf shell by their files.
fn with_paths(script: &str, files: &[PackageFile]) -> String {
    let mut lines = String::new();
    for line in script.lines() {
        let mut words = line.split_whitespace();
        let verb = words.next().unwrap_or_default();
        if INSTALLS.contains(&verb) {
            let words = words.map(|word| path_for(word, files).unwrap_or_else(|| word.to_owned()));
            let words: Vec<String> = std::iter::once(verb.to_owned()).chain(words).collect();
            lines.push_str(&words.join(" "));
        } else {
            lines.push_str(line);
        }
        lines.push('\n');
    }
    lines
}

impl Builder for Dnf {
    /// Of all module streams, because the stream of the driver is enabled only right before the driver is installed.
    fn relations(&self, names: &[&str]) -> Vec<Query> {
        let installed = ["-q", "--qf", INSTALLED, "--"];
        vec![
            commands::repoquery(&[commands::ALL_STREAMS], AVAILABLE, names),
            Query::new("rpm", installed.iter().chain(names).copied()),
        ]
    }

    /// Omits what [`Self::build`] adds itself: requirements on features of rpm and on the shell, and the names that a package
    /// provides with its own name.
    fn parse_relations(&self, text: &str) -> Vec<Relations> {
        let mut found: Vec<Relations> = Vec::new();
        let mut section = "";
        for line in text.lines() {
            let line = line.strip_prefix("(none)").unwrap_or(line).trim_end();
            let fields: Vec<&str> = line.split('\t').collect();
            match (&fields[..], found.last_mut()) {
                (["", "package", name, version, architecture], _) => {
                    section = "";
                    if NOT_NATIVE.contains(architecture) {
                        // Its relations are omitted together with it.
                        section = "skipped";
                        continue;
                    }
                    found.push(Relations {
                        name: (*name).to_owned(),
                        version: version.strip_prefix("0:").unwrap_or(version).to_owned(),
                        ..Relations::default()
                    });
                }
                (["", title], _) if section != "skipped" => section = title,
                ([relation], Some(last)) if !relation.is_empty() => {
                    let name = name_of(relation);
                    let is_own = name.strip_prefix(last.name.as_str());
                    let is_own =
                        is_own.is_some_and(|rest| rest.is_empty() || rest.starts_with('('));
                    let list = match section {
                        "requires" if name == SHELL || name.starts_with("rpmlib(") => continue,
                        "provides" if is_own => continue,
                        "requires" => &mut last.depends,
                        "provides" => &mut last.provides,
                        "conflicts" => &mut last.conflicts,
                        "obsoletes" => &mut last.replaces,
                        _ => continue,
                    };
                    list.push((*relation).to_owned());
                }
                _ => {}
            }
        }
        found
    }

    /// The characters that rpmbuild accepts (`ALLOWED_CHARS_NAME` of rpm 4.14 and newer), without macros.
    fn name(&self, prefix: &str, kernel: &str) -> Option<String> {
        let name = format!("{prefix}{kernel}");
        let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || b"-._+".contains(&byte);
        name.bytes().all(is_valid).then_some(name)
    }

    fn instead_of(&self, name: &str, replaced: &Relations) -> Relations {
        let provided = format!("{} = {}", replaced.name, replaced.version);
        builder::instead_of(name, replaced, provided, name_of, compiles)
    }

    /// Without the tag of a compression, rpm reads the payload with zlib, which also reads data that is not compressed.
    fn build(&self, package: &ModulePackage) -> io::Result<Vec<u8>> {
        let Relations {
            name,
            version,
            depends,
            provides,
            conflicts,
            breaks,
            replaces,
        } = &package.relations;
        let (epoch, number, release) = split(version)?;
        let license = "see `modinfo -F license` of each module";
        let ModulePackage {
            architecture,
            kernel,
            description,
            files,
            ..
        } = package;
        let mut new = rpm::PackageBuilder::new(name, number, license, architecture, description);
        let config = BuildConfig::v4()
            .compression(CompressionType::None)
            .source_date(0)
            .reserved_space(None);
        new.using_config(config)
            .release(release)
            .vendor("gpu-bootstrap")
            .packager("gpu-bootstrap <root@localhost>")
            // DKMS also updates the list of modules. A removed kernel has none.
            .post_install_script(format!(
                "if [ -d /lib/modules/{kernel} ]; then depmod {kernel}; fi\n"
            ))
            .post_uninstall_script(format!(
                "if [ \"$1\" = 0 ] && [ -e /lib/modules/{kernel}/modules.dep ]; then depmod {kernel}; fi\n"
            ));
        if let Some(epoch) = epoch {
            new.epoch(epoch);
        }
        for relation in depends {
            new.requires(dependency(relation)?);
        }
        for relation in provides {
            new.provides(dependency(relation)?);
        }
        for relation in conflicts.iter().chain(breaks) {
            new.conflicts(dependency(relation)?);
        }
        for relation in replaces {
            new.obsoletes(dependency(relation)?);
        }
        for directory in builder::directories(package, |one| is_below_kernel(one, kernel)) {
            let options = FileOptions::dir(directory.as_str()).permissions(0o755);
            new.with_dir_entry(options).map_err(io::Error::other)?;
        }
        for (path, content) in files {
            let options = FileOptions::new(path.as_str()).permissions(0o644);
            new.with_file_contents(content.as_slice(), options)
                .map_err(io::Error::other)?;
        }
        let mut bytes = Vec::new();
        let built = new.build().map_err(io::Error::other)?;
        built.write(&mut bytes).map_err(io::Error::other)?;
        Ok(bytes)
    }

    fn suffix(&self) -> &'static str {
        ".rpm"
    }

    /// rpm verifies the digest of the payload when it installs the package. Here only its size is checked.
    fn version(&self, content: &[u8]) -> Option<String> {
        let metadata = PackageMetadata::parse(&mut &*content).ok()?;
        metadata.verify_digests().ok()?;
        let size = (metadata.signature)
            .get_entry_data_as_u32(IndexSignatureTag::RPMSIGTAG_SIZE)
            .ok()?;
        let start = metadata.get_package_segment_offsets().header;
        if start + u64::from(size) != content.len() as u64 {
            return None;
        }
        let (number, release) = (metadata.get_version().ok()?, metadata.get_release().ok()?);
        Some(match metadata.get_epoch() {
            Ok(epoch) if epoch != 0 => format!("{epoch}:{number}-{release}"),
            _ => format!("{number}-{release}"),
        })
    }

    fn reads_sources(&self, cmd: &Cmd) -> bool {
        cmd.program == "dnf"
    }

    /// Only commands that use a package file get it, without the option that requires its signature: the file is not signed, but
    /// only root can write it, and the archive with its modules was verified.
    fn with_files(&self, cmd: &Cmd, files: &[PackageFile]) -> Cmd {
        let mut new = cmd.clone();
        let position = |word: &str| cmd.args.iter().position(|arg| arg == word);
        if position("repoquery").is_some() {
            let names = cmd.args.iter().skip_while(|arg| *arg != "--");
            let requested = names.filter_map(|name| files.iter().find(|file| file.name == *name));
            new.args.extend(requested.map(|file| file.path.to_string()));
            return new;
        }
        if let Some(verb) = INSTALLS.iter().find_map(|verb| position(verb)) {
            for arg in &mut new.args[verb + 1..] {
                if let Some(path) = path_for(arg, files) {
                    *arg = path;
                }
            }
        }
        if let Some(script) = &cmd.stdin {
            new.stdin = Some(Secret::new(with_paths(script.expose(), files)));
        }
        if new != *cmd {
            new.args.retain(|arg| arg != commands::VERIFY_FILES);
        }
        new
    }

    fn forbidden(&self, files: &dyn ReadFiles) -> Result<Option<String>, FilesError> {
        let text = files.read_lossy(Utf8Path::new(sources::MAIN))?;
        let line = verifies_files(&text.unwrap_or_default());
        Ok(line.map(|line| {
            format!(
                "line {line} of `{}` requires signatures of package files (`{VERIFIES_FILES}`), but packages that are built on \
                 this machine are not signed",
                sources::MAIN
            )
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        host::fake::FakeFiles,
        model::text::reads_any_text,
        tools::packages::{Removals, Settings, TransactionRequest, Transactions},
    };

    /// Output of dnf 4.14. The first package has the relations of NVIDIA's simulated package, and two rich dependencies.
    const SHOWN: &str = "\tpackage\tkmod-nvidia-open-dkms\t3:580.178.04-1.el9\tnoarch\n\
        \trequires\n(gcc-toolset if kernel-tools)\n(kernel-devel if kernel-core)\n/bin/sh\ndkms\nnvidia-kmod-common = 3:580.178.04\n\
        rpmlib(CompressedFileNames) <= 3.0.4-1\n\
        \tprovides\nkmod-nvidia-open-dkms = 3:580.178.04-1.el9\nnvidia-kmod = 3:580.178.04\n\
        \tconflicts\nkmod-nvidia-latest-dkms\n\tobsoletes\n\n\tend\n\n\
        \tpackage\tkmod-nvidia-open-dkms\t0:1-1\tsrc\n\trequires\nx\n\tprovides\n\n\tconflicts\n\n\tobsoletes\n\n\tend\n";

    const KERNEL: &str = "5.14.0-570.12.1.el9_6.x86_64";
    const NAME: &str = "nvidia-prebuilt-modules-open-5.14.0-570.12.1.el9_6.x86_64";

    fn relations() -> Relations {
        let shown = Dnf.parse_relations(SHOWN);
        assert_eq!(shown.len(), 1, "{shown:?}");
        let name = Dnf.name("nvidia-prebuilt-modules-open-", KERNEL).unwrap();
        Dnf.instead_of(&name, &shown[0])
    }

    fn package() -> ModulePackage {
        ModulePackage {
            relations: Relations {
                replaces: vec!["nvidia-prebuilt-modules-x".to_owned()],
                ..relations()
            },
            architecture: "x86_64".to_owned(),
            kernel: KERNEL.to_owned(),
            description: "NVIDIA driver modules".to_owned(),
            files: vec![(
                format!("/lib/modules/{KERNEL}/updates/dkms/nvidia.ko").into(),
                b"odd".to_vec(),
            )],
        }
    }

    #[test]
    fn package_replaces_the_dkms_package_without_compiler() {
        let found = relations();
        assert_eq!(found.name, NAME);
        assert_eq!(found.version, "3:580.178.04-1.el9");
        assert_eq!(
            found.depends,
            [
                "(gcc-toolset if kernel-tools)",
                "nvidia-kmod-common = 3:580.178.04"
            ]
        );
        assert_eq!(
            found.provides,
            [
                "kmod-nvidia-open-dkms = 3:580.178.04-1.el9",
                "nvidia-kmod = 3:580.178.04"
            ]
        );
        assert_eq!(found.conflicts, ["kmod-nvidia-latest-dkms"]);
        assert!(compiles("(kernel-rt-devel if kernel-rt)") && compiles("kernel6.12-devel = 6.12"));
        assert!(!compiles("libgcc") && !compiles("kernel-core"));
    }

    /// Output of rpm 4.18 for a package from [`Builder::build`].
    #[test]
    fn later_kernel_gets_the_relations_of_an_installed_package() {
        let first = relations();
        let installed = format!(
            "package kmod-nvidia-open-dkms is not installed\n\tpackage\t{NAME}\t3:580.178.04-1.el9\tx86_64\n\trequires\n\
             (gcc-toolset if kernel-tools)\n/bin/sh\n/bin/sh\nnvidia-kmod-common = 3:580.178.04\n\
             rpmlib(RichDependencies) <= 4.12.0-1\n\tprovides\nkmod-nvidia-open-dkms = 3:580.178.04-1.el9\n\
             nvidia-kmod = 3:580.178.04\n{NAME} = 3:580.178.04-1.el9\n{NAME}(x86-64) = 3:580.178.04-1.el9\n\
             \tconflicts\nkmod-nvidia-latest-dkms\n(none)\tobsoletes\n(none)\tend\n"
        );
        let found = Dnf.parse_relations(&installed);
        assert_eq!(found.len(), 1, "{found:?}");
        let like = Relations {
            name: "kmod-nvidia-open-dkms".to_owned(),
            ..found[0].clone()
        };
        let next = Dnf.instead_of("nvidia-prebuilt-modules-open-next", &like);
        let named = Relations {
            name: NAME.to_owned(),
            ..next
        };
        assert_eq!(named, first);
    }

    #[test]
    fn built_file_is_reproducible_and_readable() {
        let package = package();
        let file = Dnf.build(&package).unwrap();
        assert_eq!(file, Dnf.build(&package).unwrap());
        assert_eq!(Dnf.version(&file).as_deref(), Some("3:580.178.04-1.el9"));
        // A power loss may truncate the file.
        for end in [0, 8, 96, 200, 1000, file.len() - 1] {
            assert_eq!(Dnf.version(&file[..end]), None, "{end}");
        }
        let read = rpm::Package::parse(&mut &*file).unwrap();
        read.verify_digests().unwrap();
        let read = read.metadata;
        assert_eq!(
            (read.get_name().unwrap(), read.get_arch().unwrap()),
            (NAME, "x86_64")
        );
        let paths: Vec<String> = (read.get_file_paths().unwrap().iter())
            .map(|path| path.display().to_string())
            .collect();
        let directory = format!("/lib/modules/{KERNEL}/updates");
        assert_eq!(
            paths,
            [
                directory.clone(),
                format!("{directory}/dkms"),
                format!("{directory}/dkms/nvidia.ko")
            ]
        );
        let has = |all: Vec<Dependency>, one: Dependency| all.contains(&one);
        let requires = || read.get_requires().unwrap();
        assert!(has(
            requires(),
            Dependency::any("(gcc-toolset if kernel-tools)")
        ));
        assert!(has(
            requires(),
            Dependency::rpmlib("RichDependencies", "4.12.0-1")
        ));
        assert!(has(
            requires(),
            Dependency::eq("nvidia-kmod-common", "3:580.178.04")
        ));
        assert!(has(
            read.get_provides().unwrap(),
            Dependency::eq("kmod-nvidia-open-dkms", "3:580.178.04-1.el9")
        ));
        assert!(has(
            read.get_obsoletes().unwrap(),
            Dependency::any("nvidia-prebuilt-modules-x")
        ));
        assert!(read.get_build_host().is_err());
        let script = read.get_post_install_script().unwrap().script;
        assert!(script.contains(&format!("depmod {KERNEL};")), "{script}");
    }

    #[test]
    fn kernel_must_be_valid_in_a_package_name() {
        assert!(
            Dnf.name("a-", "5.14.0-570.12.1.el9_6.aarch64+64k")
                .is_some()
        );
        assert_eq!(Dnf.name("a-", "5.14 $(x)"), None);
    }

    fn files() -> [PackageFile; 1] {
        [PackageFile {
            name: NAME.to_owned(),
            version: "3:580.178.04-1.el9".to_owned(),
            path: "/var/lib/x.rpm".into(),
        }]
    }

    #[test]
    fn package_file_replaces_its_name_in_commands() {
        let settings = Settings::behind_a_proxy();
        let named = [
            format!("{NAME}-3:580.178.04-1.el9"),
            "nvidia-driver-cuda-3:580.178.04-1.el9".to_owned(),
        ];
        let removing = [NAME.to_owned(), "kmod".to_owned()];
        let install = TransactionRequest::Install {
            packages: &named,
            removing: &[],
        };
        let simulated = Dnf.simulate(&settings, &install).cmd().clone();
        for cmd in [Dnf.perform(&settings, &install, Removals::None), simulated] {
            let new = Dnf.with_files(&cmd, &files());
            let end = "install /var/lib/x.rpm nvidia-driver-cuda-3:580.178.04-1.el9";
            assert!(new.line().ends_with(end), "{}", new.line());
            assert!(cmd.args.iter().any(|arg| arg == commands::VERIFY_FILES));
            assert!(!new.args.iter().any(|arg| arg == commands::VERIFY_FILES));
        }
        let both = TransactionRequest::Install {
            packages: &named,
            removing: &removing,
        };
        let new = Dnf.with_files(&Dnf.perform(&settings, &both, Removals::Approved), &files());
        assert_eq!(
            new.stdin.as_ref().map(Secret::expose),
            Some(
                format!(
                    "install /var/lib/x.rpm nvidia-driver-cuda-3:580.178.04-1.el9\nremove {NAME} kmod\nrun\n"
                )
                .as_str()
            )
        );
        let with_architecture = [format!("{NAME}-3:580.178.04-1.el9.x86_64")];
        let again = TransactionRequest::Reinstall(&with_architecture);
        let new = Dnf.with_files(&Dnf.perform(&settings, &again, Removals::None), &files());
        assert!(
            new.line().ends_with("reinstall /var/lib/x.rpm"),
            "{}",
            new.line()
        );
        // Another version, and a removal.
        let other = [format!("{NAME}-3:580.178.04-2.el9")];
        for request in [
            TransactionRequest::Install {
                packages: &other,
                removing: &[],
            },
            TransactionRequest::Remove(&removing),
        ] {
            let cmd = Dnf.perform(&settings, &request, Removals::Approved);
            assert_eq!(Dnf.with_files(&cmd, &files()), cmd);
        }
    }

    #[test]
    fn query_reads_the_package_file() {
        let line = |names: &[&str]| {
            let query = &Dnf.relations(names)[0];
            assert!(Dnf.reads_sources(query.cmd()));
            Dnf.with_files(query.cmd(), &files()).line()
        };
        assert!(line(&["dkms"]).ends_with("-- dkms"));
        let both = line(&["dkms", NAME]);
        assert!(
            both.ends_with(&format!("-- dkms {NAME} /var/lib/x.rpm")),
            "{both}"
        );
    }

    #[test]
    fn administrator_may_require_signatures() {
        for (text, line) in [
            ("[main]\ngpgcheck=1\nlocalpkg_gpgcheck = True\n", Some(3)),
            ("[main]\nlocalpkg_gpgcheck=1\nlocalpkg_gpgcheck=0\n", None),
            (
                "[x]\nlocalpkg_gpgcheck=1\n[main]\n#localpkg_gpgcheck=1\n",
                None,
            ),
        ] {
            let files = FakeFiles::new();
            files.put(sources::MAIN, text);
            let why = Dnf.forbidden(&files).unwrap();
            assert_eq!(why.is_some(), line.is_some(), "{text}");
            if let (Some(why), Some(line)) = (why, line) {
                assert!(
                    why.starts_with(&format!("line {line} of `/etc/dnf/dnf.conf`")),
                    "{why}"
                );
            }
        }
        assert_eq!(Dnf.forbidden(&FakeFiles::new()).unwrap(), None);
    }

    reads_any_text!(
        "(\tpackage\ta\t1-1\tnoarch\n|\trequires\n|\tprovides\n|[a-z(]+( [<=>]+ [0-9])?\n|\n|.)*",
        |text| Dnf.parse_relations(&text); verifies_files(&text)
    );
}
