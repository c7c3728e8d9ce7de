//! `dkms`: modules compiled on the machine.

use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};

use crate::{
    host::{
        Cmd, FileKind, FilesError, Query, ReadFiles,
        system::{Process, System, is_in_own_namespaces, link_of},
    },
    tools::kmod,
};

/// Compiling NVIDIA's module takes 80 to 275 s; the rest is for a slow machine.
const DEADLINE: Duration = Duration::from_secs(45 * 60);

/// A file that names the key which signs modules, and its certificate. It is read after
/// `/etc/dkms/framework.conf` (github:dell/dkms, `read_framework_conf` of `dkms.in`).
pub const SIGNING: &str = "/etc/dkms/framework.conf.d/gpu-bootstrap.conf";

/// The first version that reads [`SIGNING`] (the same, at its tags).
pub const FIRST_TO_SIGN: &str = "3.0.4";

/// The unit that builds modules for a new kernel at boot.
pub const UNIT: &str = "dkms.service";

/// Returns a process of the machine that runs DKMS, unless that only queries its status.
///
/// # Errors
/// If processes cannot be listed, or one cannot be inspected by root.
pub fn running(files: &dyn ReadFiles, system: &dyn System) -> Result<Option<Process>, FilesError> {
    // A script: `/bin/bash /usr/sbin/dkms install ...`. Some setuid programs become root with any arguments.
    let works = |process: &Process| {
        let mut words = process.command.as_deref().unwrap_or_default().split(' ');
        let mut first = words.by_ref().take(3);
        let is_dkms = first.any(|word| Utf8Path::new(word).file_name() == Some("dkms"));
        process.uid == Some(0) && is_dkms && words.next() != Some("status")
    };
    for process in system.processes()?.into_iter().filter(works) {
        let exe = link_of(files, process.pid, &format!("/proc/{}/exe", process.pid))?;
        let is_script = (exe.as_ref().and_then(|exe| exe.file_name()))
            .is_some_and(|name| matches!(name, "bash" | "dkms"));
        if is_script && is_in_own_namespaces(files, process.pid)? {
            return Ok(Some(process));
        }
    }
    Ok(None)
}

/// Returns the file that DKMS reads after the `dkms.conf` of a module (dkms(8), "dkms.conf overriding").
#[must_use]
pub fn override_path(module: &str) -> Utf8PathBuf {
    Utf8PathBuf::from(format!("/etc/dkms/{module}.conf"))
}

/// Returns the text for [`override_path`] by which a program brings the built modules, and DKMS compiles only where the program
/// fails. The program gets the module's version, the kernel, and `NAME=FILE` for each file that a build makes, in whose folder it
/// runs. Path and words have no character that a shell knows.
///
/// DKMS puts `-j` and the kernel into a command that begins with `make` (github:dell/dkms, `actual_build`), so the
/// command that stands behind ours gets them here. For a kernel of clang's it appends words to the command, which would not
/// reach the compiler: such a kernel is left alone, as is a `dkms.conf` with a command for each kernel, or without names.
#[must_use]
pub fn override_text(program: &Utf8Path, words: &[String]) -> String {
    let words = words.join(" ");
    format!(
        r#"{PROGRAM}{program}
gpu_bootstrap_files=
for gpu_bootstrap_at in "${{!BUILT_MODULE_NAME[@]}}"; do
    gpu_bootstrap_built=${{BUILT_MODULE_NAME[gpu_bootstrap_at]}}
    gpu_bootstrap_files+=" ${{DEST_MODULE_NAME[gpu_bootstrap_at]:-$gpu_bootstrap_built}}"
    gpu_bootstrap_files+="=${{BUILT_MODULE_LOCATION[gpu_bootstrap_at]:-.}}/$gpu_bootstrap_built.ko"
done
if [[ -n $gpu_bootstrap_files && -z ${{MAKE_MATCH[0]-}} && -n ${{MAKE[0]-}} && ${{MAKE[0]}} != *"modules take"* ]] &&
    [[ ! -e ${{kernel_source_dir-}}/vmlinux ]] &&
    ! grep -qs '^CONFIG_CC_IS_CLANG=y' "${{kernel_source_dir-}}/.config" "${{kernel_config-}}"; then
    MAKE[0]="$gpu_bootstrap {words} --driver=$PACKAGE_VERSION --kernel=$kernelver --$gpu_bootstrap_files || {{ ${{MAKE[0]/#make/make -j${{parallel_jobs:-1}} KERNELRELEASE=$kernelver}}; }} || false"
fi
"#
    )
}

/// The line of an override that names the program.
const PROGRAM: &str = "gpu_bootstrap=";

/// Returns the program of a text that [`override_text`] has made.
#[must_use]
pub fn program_of_override(text: &str) -> Option<&Utf8Path> {
    let line = text.lines().find_map(|line| line.strip_prefix(PROGRAM))?;
    Some(Utf8Path::new(line))
}

/// A build that has succeeded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DkmsBuild {
    pub module: String,
    pub version: String,
    pub kernel: String,
    pub architecture: String,
}

impl DkmsBuild {
    fn folder(&self) -> Utf8PathBuf {
        let Self {
            module,
            version,
            kernel,
            architecture,
        } = self;
        folder_of(module, version, kernel).join(architecture)
    }

    /// Where its modules are, under the names that they have on the machine.
    #[must_use]
    pub fn modules(&self) -> Utf8PathBuf {
        self.folder().join("module")
    }

    /// What the compiler, or what stands before it, has said.
    #[must_use]
    pub fn log(&self) -> Utf8PathBuf {
        self.folder().join("log/make.log")
    }
}

/// Returns all builds of modules in [`TREE`], which has keys, links and the version of its format beside them.
///
/// # Errors
/// A folder cannot be read.
pub fn builds(files: &dyn ReadFiles) -> Result<Vec<DkmsBuild>, FilesError> {
    let mut found = Vec::new();
    let tree = Utf8Path::new(TREE);
    for module in folders(files, tree)? {
        for version in folders(files, &tree.join(&module))? {
            for kernel in folders(files, &tree.join(&module).join(&version))? {
                for architecture in
                    folders(files, &tree.join(&module).join(&version).join(&kernel))?
                {
                    let build = DkmsBuild {
                        module: module.clone(),
                        version: version.clone(),
                        kernel: kernel.clone(),
                        architecture,
                    };
                    if files.exists(&build.modules())? {
                        found.push(build);
                    }
                }
            }
        }
    }
    Ok(found)
}

fn folders(files: &dyn ReadFiles, folder: &Utf8Path) -> Result<Vec<String>, FilesError> {
    let mut found = Vec::new();
    // What DKMS 3.2 is about to build has a dot in front.
    for name in files
        .list(folder)?
        .into_iter()
        .filter(|name| !name.starts_with('.'))
    {
        let stat = files.stat(&folder.join(&name))?;
        if stat.is_some_and(|stat| stat.kind == FileKind::Folder) {
            found.push(name);
        }
    }
    Ok(found)
}

/// While it exists, the scripts of Debian's and Ubuntu's packages of modules and headers build nothing (`common.postinst` and
/// `dkms_autoinstaller` of DKMS 2.8.7 to 3.2.2).
pub const NO_AUTOINSTALL: &str = "/etc/dkms/no-autoinstall";

/// The tree in which DKMS keeps what it builds: `MODULE/VERSION`, with a link `source` in each.
pub const TREE: &str = "/var/lib/dkms";

/// Where DKMS keeps what it has built for a kernel, in a folder for each architecture.
#[must_use]
pub fn folder_of(module: &str, version: &str, kernel: &str) -> Utf8PathBuf {
    Utf8PathBuf::from(format!("{TREE}/{module}/{version}/{kernel}"))
}

/// Where packages put the source of modules: `MODULE-VERSION`, with a `dkms.conf` in each.
pub const SOURCES: &str = "/usr/src";

/// Whether DKMS knows any module.
///
/// # Errors
/// A folder cannot be read.
pub fn is_used(files: &dyn ReadFiles) -> Result<bool, FilesError> {
    Ok(!folders(files, Utf8Path::new(TREE))?.is_empty())
}

/// Whether the source of a module is there, in any version.
///
/// # Errors
/// The folder cannot be read.
pub fn has_source(files: &dyn ReadFiles, module: &str) -> Result<bool, FilesError> {
    let sources = files.list(Utf8Path::new(SOURCES))?;
    Ok((sources.iter()).any(|folder| version_in(folder, module).is_some()))
}

/// The version that the name of a folder of [`SOURCES`] has for a module.
#[must_use]
pub fn version_in<'n>(folder: &'n str, module: &str) -> Option<&'n str> {
    let version = folder.strip_prefix(module)?.strip_prefix('-')?;
    // The source of `nvidia-fs` is none of `nvidia`.
    (version.starts_with(|first: char| first.is_ascii_digit())).then_some(version)
}

/// One line of `dkms status`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DkmsStatus {
    /// The module.
    pub module: String,
    pub version: String,
    /// For which kernel, where it is built for one.
    pub kernel: Option<String>,
    /// `added`, `built`, `installed`, with what follows it.
    pub state: String,
}

/// Asks for the builds of a module.
#[must_use]
pub fn status(module: &str) -> Query {
    Query::new("dkms", ["status", "-m", module])
}

/// Reads the answer to [`status`], in the forms of dkms 2 (`name, version, kernel, arch: state`)
/// and 3 (`name/version, kernel, arch: state`).
#[must_use]
pub fn parse_status(text: &str) -> Vec<DkmsStatus> {
    text.lines()
        .filter_map(|line| {
            let (what, state) = line.split_once(": ")?;
            let mut fields: Vec<&str> = what.split(',').map(str::trim).collect();
            let first = fields.remove(0);
            let (module, version) = match first.split_once('/') {
                Some(pair) => pair,
                None if fields.is_empty() => return None,
                None => (first, fields.remove(0)),
            };
            Some(DkmsStatus {
                module: module.to_owned(),
                version: version.to_owned(),
                kernel: fields.first().map(|kernel| (*kernel).to_owned()),
                state: state.trim().to_owned(),
            })
        })
        .collect()
}

/// For the environment of `dkms install`: the kernel's build adds `KCFLAGS` behind its own options (Documentation/kbuild/kbuild.rst),
/// DKMS keeps it, and nothing of it stays on the machine. Distributions compile with debug information, which takes a seventh of the
/// time, and DKMS strips it from what it has built (`actual_build` of `dkms.in`).
pub const WITHOUT_DEBUG_INFORMATION: (&str, &str) = ("KCFLAGS", "-g0");

/// Whether the build of a kernel's modules reads their debug information: for their type information (BTF), where the headers have
/// `vmlinux` (`cmd_btf_ko` in the kernel's scripts/Makefile.modfinal), and for the versions of the symbols that they export, where
/// `gendwarfksyms` makes them (`process_module` of scripts/gendwarfksyms/gendwarfksyms.c ends without it). Kernels with
/// Rust and versions of symbols have that since Linux 6.14.
///
/// # Errors
/// A folder or the kernel's configuration cannot be read.
pub fn needs_debug_information(files: &dyn ReadFiles, kernel: &str) -> Result<bool, FilesError> {
    let headers = kmod::folder_of(kernel).join("build");
    if files.exists(&headers.join("vmlinux"))? {
        return Ok(true);
    }
    // The file that the build itself reads.
    let settings = files.read_lossy(&headers.join("include/config/auto.conf"))?;
    Ok(settings.is_some_and(|text| text.lines().any(|line| line == "CONFIG_GENDWARFKSYMS=y")))
}

/// Builds and installs a module for a kernel.
#[must_use]
pub fn install(module: &str, version: &str, kernel: &str) -> Cmd {
    Cmd::new(
        "dkms",
        ["install", "-m", module, "-v", version, "-k", kernel],
    )
    .deadline(DEADLINE)
}

/// Removes a module from a kernel.
#[must_use]
pub fn remove(module: &str, version: &str, kernel: &str) -> Cmd {
    Cmd::new(
        "dkms",
        ["remove", "-m", module, "-v", version, "-k", kernel],
    )
    .deadline(Duration::from_secs(300))
}

/// The compiler's log of a build.
#[must_use]
pub fn log_path(module: &str, version: &str) -> Utf8PathBuf {
    Utf8PathBuf::from(format!("{TREE}/{module}/{version}/build/make.log"))
}

/// The names that packages give NVIDIA's driver in [`TREE`]: NVIDIA's, those of Ubuntu's server branches, and Debian's.
const DRIVERS: [&str; 5] = [
    "nvidia",
    "nvidia-srv",
    "nvidia-current",
    "nvidia-current-open",
    "nvidia-open",
];

/// The logs of builds of NVIDIA's driver that failed, with the version of each.
///
/// # Errors
/// A folder cannot be read.
pub fn failed(files: &dyn ReadFiles) -> Result<Vec<(String, Utf8PathBuf)>, FilesError> {
    let mut found = Vec::new();
    for module in DRIVERS {
        for version in files.list(&Utf8Path::new(TREE).join(module))? {
            let log = log_path(module, &version);
            // DKMS moves it away when it has built.
            if files.exists(&log)? {
                found.push((version, log));
            }
        }
    }
    Ok(found)
}

/// Whether this version of DKMS ends at a module of [`TREE`] without a source (dkms-project/dkms issue 352): those before 3.1.
#[must_use]
pub fn ends_at_module_without_source(version: &str) -> bool {
    let mut numbers = version.split(|c: char| !c.is_ascii_digit());
    let mut number = || numbers.next()?.parse::<u32>().ok();
    (number(), number()) < (Some(3), Some(1))
}

/// The first module of [`TREE`] whose source is gone, as `MODULE/VERSION`, where NVIDIA's driver has one. DKMS before 3.1
/// ends there, and builds none of the others ("Could not locate dkms.conf file": `is_module_built` and `autoinstall` of DKMS
/// 2.8.7 and 3.0.11); later ones leave it out.
///
/// # Errors
/// A folder cannot be read.
pub fn without_source(files: &dyn ReadFiles) -> Result<Option<String>, FilesError> {
    let (mut gone, mut buildable) = (None, false);
    for module in folders(files, Utf8Path::new(TREE))? {
        for version in folders(files, &Utf8Path::new(TREE).join(&module))? {
            let source = Utf8PathBuf::from(format!("{TREE}/{module}/{version}/source"));
            let stat = files.stat(&source)?;
            if !stat.is_some_and(|stat| matches!(stat.kind, FileKind::Link(_))) {
                continue;
            }
            match files.exists(&source)? {
                true => buildable |= DRIVERS.contains(&module.as_str()),
                false => gone = gone.or(Some(format!("{module}/{version}"))),
            }
        }
    }
    Ok(gone.filter(|_| buildable))
}

/// The kernel for which a log says that it is: `DKMS make.log for nvidia-580.95.05 for kernel 6.8.0-1029-aws (x86_64)`.
#[must_use]
pub fn kernel_of_log(log: &str) -> Option<&str> {
    let (_, rest) = log.lines().next()?.rsplit_once(" for kernel ")?;
    rest.split_whitespace().next()
}

/// What makes a build fail, by words of its log: the reason, and what helps.
///
/// Sources: aws-samples/aws-deep-learning-ami-ubuntu-dcv-desktop issue 30 and pop-os/pop issue 3117;
/// amazonlinux/amazon-linux-2023 issue 1054; GoogleCloudPlatform/compute-gpu-installation issue 33;
/// NVIDIA/open-gpu-kernel-modules issue 441.
const FAILURES: [(&str, &str, &str); 4] = [
    (
        "unrecognized command-line option",
        "the compiler is older than the one that built the kernel",
        "install the compiler that `/proc/version` names (on Ubuntu 22.04 with a kernel of 6.5 or newer `gcc-12`)",
    ),
    (
        "No space left on device",
        "the disk was full",
        "make room on the disk, or take a larger one",
    ),
    (
        "GPL-incompatible module nvidia.ko",
        "the kernel gives symbols that it uses to GPL modules alone",
        "install a newer driver, or one with the open kernel modules",
    ),
    (
        "/build: No such file or directory",
        "the headers of the kernel are not there",
        "install the headers of the kernel",
    ),
];

/// Why a build failed, and what helps, where its log has words that tell.
#[must_use]
pub fn failure(log: &str) -> Option<(&'static str, &'static str)> {
    let &(_, why, remedy) = (FAILURES.iter()).find(|(words, ..)| log.contains(words))?;
    Some((why, remedy))
}

/// The line of a build's log that says why it failed: the first one of the compiler or of make that names
/// an error, else the last one.
#[must_use]
pub fn telling_line(log: &str) -> Option<&str> {
    let lines = || (log.lines().map(str::trim)).filter(|line| !line.is_empty());
    let names_error = |line: &&str| line.contains("error:") || line.contains("*** ");
    lines().find(names_error).or_else(|| lines().next_back())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_tells_why_a_build_failed_and_for_which_kernel() {
        let log = "DKMS make.log for nvidia-560.35.05 for kernel 6.8.0-1029-aws (x86_64)\ngcc: error: unrecognized \
                   command-line option \u{2018}-ftrivial-auto-var-init=zero\u{2019}\n";
        assert_eq!(kernel_of_log(log), Some("6.8.0-1029-aws"));
        assert!(failure(log).is_some_and(|(_, remedy)| remedy.contains("gcc-12")));
        assert_eq!(kernel_of_log("make: nothing\n"), None);
        assert_eq!(failure("make: nothing\n"), None);
    }

    #[test]
    fn debug_information_is_made_where_the_build_reads_it() {
        for (file, text, needed) in rows! {
            "include/config/auto.conf", "CONFIG_MODVERSIONS=y\nCONFIG_GENKSYMS=y\n", false;
            "include/config/auto.conf", "CONFIG_RUST=y\nCONFIG_GENDWARFKSYMS=y\nCONFIG_MODVERSIONS=y\n", true;
            "include/config/auto.conf", "CONFIG_GENDWARFKSYMS=n\n", false;
            "vmlinux", "", true;
            "Makefile", "", false;
        } {
            let files = crate::host::fake::FakeFiles::new();
            files.put(&format!("/lib/modules/6.17.0-1004-gcp/build/{file}"), text);
            let found = needs_debug_information(&files, "6.17.0-1004-gcp").unwrap();
            assert_eq!(found, needed, "{file} {text}");
        }
    }

    #[test]
    fn a_module_without_source_keeps_dkms_from_building_the_driver() {
        // negativo17/nvidia-driver issue 56, pop-os/pop issue 3426.
        let files = crate::host::fake::FakeFiles::new();
        files.put("/var/lib/dkms/mok.pub", "");
        files.put_link(
            "/var/lib/dkms/nvidia/565.77/source",
            "/usr/src/nvidia-565.77",
        );
        files.put_link(
            "/var/lib/dkms/nvidia/kernel-6.12.0-x86_64",
            "565.77/6.12.0/x86_64",
        );
        assert_eq!(without_source(&files).unwrap(), None);
        files.put("/usr/src/nvidia-570.86.16/dkms.conf", "");
        files.put_link(
            "/var/lib/dkms/nvidia/570.86.16/source",
            "/usr/src/nvidia-570.86.16",
        );
        let gone = without_source(&files).unwrap();
        assert_eq!(gone.as_deref(), Some("nvidia/565.77"));
        for (version, ends) in rows! {
            "2.8.7-2ubuntu2.2", true;
            "3.0.10-8+deb12u1", true;
            "3.1.8-1.el9", false;
            "10.0", false;
        } {
            assert_eq!(ends_at_module_without_source(version), ends, "{version}");
        }
        files.put("/usr/src/nvidia-565.77/dkms.conf", "");
        assert_eq!(without_source(&files).unwrap(), None);
    }

    /// Runs what DKMS makes of a `dkms.conf` and the override, in both of its ways: it reads each file in a shell of its own,
    /// and reads what that shell says of the variables again.
    fn built(conf: &str, program: &str) -> (bool, String) {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        let own = camino::Utf8PathBuf::try_from(at("program")).expect("UTF-8");
        let text = format!("#!/bin/sh\necho asked \"$@\"\n{program}\n");
        std::fs::write(&own, text).expect("written");
        std::fs::write(at("make"), "#!/bin/sh\necho made \"$@\"\n").expect("written");
        std::fs::write(
            at("dkms.conf"),
            format!("PACKAGE_VERSION=\"580.1\"\n{conf}\n"),
        )
        .expect("written");
        let words = ["modules".to_owned(), "take".to_owned()];
        std::fs::write(at("override"), override_text(&own, &words)).expect("written");
        std::fs::create_dir(at("clang")).expect("made");
        std::fs::write(at("clang/.config"), "CONFIG_CC_IS_CLANG=y\n").expect("written");
        let script = r#"
chmod +x program make; PATH=$PWD:$PATH; kernelver=6.1.0-44-amd64; parallel_jobs=4; kernel_source_dir=$PWD/$KERNEL
safe_source() {
    ( exec 3>&1 >said; . "$1" >/dev/null
    for name in PACKAGE_VERSION MAKE MAKE_MATCH BUILT_MODULE_NAME BUILT_MODULE_LOCATION DEST_MODULE_NAME; do
        for i in $(eval echo \${!$name[@]}); do eval echo '$name[$i]=\"${'$name'[$i]}\"'; done
    done )
    . ./said
}
safe_source ./dkms.conf; safe_source ./override
make_command="${MAKE[0]}"
eval "{ ${make_command/#make/make -j$parallel_jobs KERNELRELEASE=$kernelver}; }"
"#;
        let kernel = if conf.contains("# clang") {
            "clang"
        } else {
            "gcc"
        };
        let output = std::process::Command::new("bash")
            .args(["-c", script])
            .env("KERNEL", kernel)
            .current_dir(folder.path())
            .output()
            .expect("bash");
        (
            output.status.success(),
            String::from_utf8(output.stdout).expect("UTF-8"),
        )
    }

    const NAMES: &str = "BUILT_MODULE_NAME[0]=\"nvidia\"\nDEST_MODULE_NAME[0]=\"nvidia-current\"\n\
                         BUILT_MODULE_NAME[1]=\"nvidia-uvm\"\nBUILT_MODULE_LOCATION[1]=\"sub\"\n";

    #[test]
    fn dkms_asks_before_it_compiles_and_compiles_as_before_where_nothing_is_brought() {
        let asked = "asked modules take --driver=580.1 --kernel=6.1.0-44-amd64 -- nvidia-current=./nvidia.ko \
                     nvidia-uvm=sub/nvidia-uvm.ko\n";
        for (make, made) in rows! {
            // As Debian, NVIDIA and others write it.
            "unset ARCH; env NV_VERBOSE=1 make ${parallel_jobs+-j$parallel_jobs} modules",
                "made -j4 modules\n";
            "'make' -j4 NV_EXCLUDE_BUILD_MODULES='' modules",
                "made -j4 NV_EXCLUDE_BUILD_MODULES= modules\n";
            "make M=. modules", "made -j4 KERNELRELEASE=6.1.0-44-amd64 M=. modules\n";
        } {
            let conf = format!("{NAMES}MAKE[0]=\"{make}\"");
            assert_eq!(built(&conf, "exit 0"), (true, asked.to_owned()), "{make}");
            assert_eq!(
                built(&conf, "exit 6"),
                (true, format!("{asked}{made}")),
                "{make}"
            );
        }
        let broken = format!("{NAMES}MAKE[0]=\"make && exit_of_nothing_that_exists\"");
        assert!(!built(&broken, "exit 6").0, "a failed build stays one");
    }

    #[test]
    fn dkms_asks_nobody_where_it_would_lose_something() {
        let make = "MAKE[0]=\"make M=. modules\"";
        let made = (
            true,
            "made -j4 KERNELRELEASE=6.1.0-44-amd64 M=. modules\n".to_owned(),
        );
        for conf in [
            format!("{NAMES}{make}\nMAKE_MATCH[0]=\"^6\""),
            // It takes the name of the package.
            make.to_owned(),
            format!("{NAMES}{make} # clang"),
        ] {
            assert_eq!(built(&conf, "exit 0"), made, "{conf}");
        }
    }

    #[test]
    fn both_forms_of_status() {
        let text = "nvidia-current/535.261.03, 6.1.0-44-amd64, x86_64: installed\n\
                    nvidia-current, 470.1, 5.4.0-1, x86_64: installed (WARNING! Diff)\n\
                    nvidia-current/550.163.01: added\nnonsense\n";
        let all = parse_status(text);
        assert_eq!(all.len(), 3);
        assert_eq!(all[0].version, "535.261.03");
        assert_eq!(all[0].kernel.as_deref(), Some("6.1.0-44-amd64"));
        assert_eq!(all[1].version, "470.1");
        assert_eq!(all[1].kernel.as_deref(), Some("5.4.0-1"));
        assert_eq!(
            (all[2].kernel.as_deref(), all[2].state.as_str()),
            (None, "added")
        );
    }

    #[test]
    fn the_line_that_names_the_error_is_told() {
        let log = "DKMS make.log for nvidia-580.178.04\n  CC a.o\na.c:3:1: error: unknown type\n\
                   make[2]: *** [Makefile:1: a.o] Error 1\n";
        assert_eq!(telling_line(log), Some("a.c:3:1: error: unknown type"));
        assert_eq!(telling_line("begins\n  ends here\n\n"), Some("ends here"));
        assert_eq!(telling_line("\n"), None);
    }
}
