//! Commands and files of `dkms`, which compiles modules on the machine.

use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};

use crate::{
    host::{
        Cmd, FileKind, FilesError, Query, ReadFiles,
        system::{Process, System, is_in_own_namespaces, link_of, program_of},
    },
    tools::kmod,
};

/// Compiling the NVIDIA module takes 80 to 275 s. The rest is a reserve for slow machines.
const DEADLINE: Duration = Duration::from_secs(45 * 60);

/// A DKMS configuration file with the paths of the module signing key and its certificate. DKMS reads it after
/// `/etc/dkms/framework.conf` (github:dell/dkms, `read_framework_conf` of `dkms.in`).
pub const SIGNING: &str = "/etc/dkms/framework.conf.d/gpu-bootstrap.conf";

/// The directory of [`SIGNING`].
pub const SIGNING_DIRECTORY: &str = "/etc/dkms/framework.conf.d";

/// The first DKMS version that reads [`SIGNING`] (according to the tags of github:dell/dkms).
pub const FIRST_TO_SIGN: &str = "3.0.4";

/// The unit that builds modules for a new kernel at boot.
pub const UNIT: &str = "dkms.service";

/// Returns a running DKMS process, except one that only queries the status, or a `make` process of a DKMS that was killed.
/// DKMS has no lock.
///
/// # Errors
/// If processes cannot be listed, or if one cannot be inspected for a reason other than missing permission.
pub fn running(files: &dyn ReadFiles, system: &dyn System) -> Result<Option<Process>, FilesError> {
    for process in system.processes()? {
        let pid = process.pid;
        let is_dkms = process.uid == Some(0)
            && match runs_dkms(&process) {
                // Check the executable, because setuid programs such as `sudo` also run as root with these arguments.
                true => is_interpreter(program_of(files, pid)?.as_deref()),
                // A DKMS that was killed leaves `make` running in the build directory.
                false => {
                    process.is_called("make")
                        && link_of(files, pid, &format!("/proc/{pid}/cwd"))?
                            .is_some_and(|directory| directory.starts_with(TREE))
                }
            };
        if is_dkms && is_in_own_namespaces(files, pid)? {
            return Ok(Some(process));
        }
    }
    Ok(None)
}

/// Whether the command line runs the script, such as `/bin/bash /usr/sbin/dkms install ...`, and not only `dkms status`.
fn runs_dkms(process: &Process) -> bool {
    let mut words = process.command.as_deref().unwrap_or_default().split(' ');
    let mut first = words.by_ref().take(3);
    first.any(|word| Utf8Path::new(word).file_name() == Some("dkms"))
        && words.next() != Some("status")
}

/// Whether an executable can run the script.
fn is_interpreter(program: Option<&str>) -> bool {
    matches!(program, Some("bash" | "dash" | "sh" | "busybox" | "dkms"))
}

/// The directory of the files that DKMS reads after `dkms.conf`.
pub const OVERRIDES: &str = "/etc/dkms";

/// Returns the file that DKMS reads after a module's `dkms.conf` (dkms(8), "dkms.conf overriding").
pub fn override_path(module: &str) -> Utf8PathBuf {
    Utf8PathBuf::from(format!("{OVERRIDES}/{module}.conf"))
}

/// Returns the content of [`override_path`], which makes DKMS call a program that provides the built modules, and compile only
/// if the program fails. The arguments of the program are `words`, the module version, the kernel, and `NAME=FILE` for each
/// file of a build. The program runs in the build directory. Its path and `words` must not contain shell metacharacters.
///
/// DKMS adds `-j` and the kernel to a command that starts with `make` (github:dell/dkms, `actual_build`), so the fallback
/// command gets them here. For a kernel that was built with clang, DKMS appends arguments to the command, and they would not
/// reach the compiler. DKMS detects clang in the kernel configuration, or in `vmlinux` if the headers contain it. Therefore the
/// command stays unchanged for a clang configuration and for headers with `vmlinux`. It also stays unchanged for a `dkms.conf`
/// without module names or with one command per kernel.
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
if [[ -n $gpu_bootstrap_files && -z ${{MAKE_MATCH[0]-}} && -n ${{MAKE[0]-}} && ${{MAKE[0]}} != *"{FETCH}"* ]] &&
    [[ ! -e ${{kernel_source_dir-}}/vmlinux ]] &&
    ! grep -qs '^CONFIG_CC_IS_CLANG=y' "${{kernel_source_dir-}}/.config" "${{kernel_config-}}"; then
    MAKE[0]="$gpu_bootstrap {words} --driver=$PACKAGE_VERSION --kernel=$kernelver --$gpu_bootstrap_files || {{ ${{MAKE[0]/#make/make -j${{parallel_jobs:-1}} KERNELRELEASE=$kernelver}}; }} || false"
fi
"#
    )
}

/// The hidden subcommand that DKMS runs instead of a build. The `words` of [`override_text`] start with it.
pub const FETCH: &str = "modules fetch";

/// Prefix of the line with the program in an override.
const PROGRAM: &str = "gpu_bootstrap=";

/// Returns the program in a text that was generated by [`override_text`].
pub fn program_of_override(text: &str) -> Option<&Utf8Path> {
    let line = text.lines().find_map(|line| line.strip_prefix(PROGRAM))?;
    // A relative path would depend on the current directory.
    Some(Utf8Path::new(line)).filter(|program| program.is_absolute())
}

/// A successful build.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DkmsBuild {
    pub module: String,
    pub version: String,
    pub kernel: String,
    pub architecture: String,
}

impl DkmsBuild {
    fn directory(&self) -> Utf8PathBuf {
        let Self {
            module,
            version,
            kernel,
            architecture,
        } = self;
        directory_of(module, version, kernel).join(architecture)
    }

    /// The directory of its modules, which have their installed names.
    pub fn modules(&self) -> Utf8PathBuf {
        self.directory().join("module")
    }

    /// The output of the compiler and of the commands that run before it.
    pub fn log(&self) -> Utf8PathBuf {
        self.directory().join("log/make.log")
    }
}

/// Returns all module builds in [`TREE`]. Skips the keys, the symlinks and the format version in this directory.
///
/// # Errors
/// If a directory cannot be read.
pub fn builds(files: &dyn ReadFiles) -> Result<Vec<DkmsBuild>, FilesError> {
    let mut found = Vec::new();
    let tree = Utf8Path::new(TREE);
    for module in directories(files, tree)? {
        for version in directories(files, &tree.join(&module))? {
            for kernel in directories(files, &tree.join(&module).join(&version))? {
                for architecture in
                    directories(files, &tree.join(&module).join(&version).join(&kernel))?
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

fn directories(files: &dyn ReadFiles, directory: &Utf8Path) -> Result<Vec<String>, FilesError> {
    let mut found = Vec::new();
    // DKMS 3.2 uses names with a leading dot for builds that have not started.
    for name in files
        .list(directory)?
        .into_iter()
        .filter(|name| !name.starts_with('.'))
    {
        let stat = files.stat(&directory.join(&name))?;
        if stat.is_some_and(|stat| stat.kind == FileKind::Directory) {
            found.push(name);
        }
    }
    Ok(found)
}

/// While this file exists, the scripts of Debian and Ubuntu module and header packages do not build modules (`common.postinst`
/// and `dkms_autoinstaller` of DKMS 2.8.7 to 3.2.2).
pub const NO_AUTOINSTALL: &str = "/etc/dkms/no-autoinstall";

/// The build directory of DKMS: `MODULE/VERSION`, with a symlink `source` in each.
pub const TREE: &str = "/var/lib/dkms";

/// Returns the build directory for a kernel. It has a subdirectory for each architecture.
pub fn directory_of(module: &str, version: &str, kernel: &str) -> Utf8PathBuf {
    Utf8PathBuf::from(format!("{TREE}/{module}/{version}/{kernel}"))
}

/// The directory into which packages install module sources: `MODULE-VERSION`, with a `dkms.conf` in each.
pub const SOURCES: &str = "/usr/src";

/// Whether any module is registered in DKMS.
///
/// # Errors
/// If a directory cannot be read.
pub fn is_used(files: &dyn ReadFiles) -> Result<bool, FilesError> {
    Ok(!directories(files, Utf8Path::new(TREE))?.is_empty())
}

/// Whether the source of a module is installed, in any version.
///
/// # Errors
/// If the directory cannot be read.
pub fn has_source(files: &dyn ReadFiles, module: &str) -> Result<bool, FilesError> {
    let sources = files.list(Utf8Path::new(SOURCES))?;
    Ok((sources.iter()).any(|directory| version_in(directory, module).is_some()))
}

/// Returns the version in the name of a directory in [`SOURCES`], if it belongs to this module.
pub fn version_in<'n>(directory: &'n str, module: &str) -> Option<&'n str> {
    let version = directory.strip_prefix(module)?.strip_prefix('-')?;
    // The source `nvidia-fs` does not belong to `nvidia`.
    (version.starts_with(|first: char| first.is_ascii_digit())).then_some(version)
}

/// One line of `dkms status`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DkmsStatus {
    pub module: String,
    pub version: String,
    /// The kernel, if the module was built for one.
    pub kernel: Option<String>,
    /// `added`, `built` or `installed`, with the text after it.
    pub state: String,
}

/// Queries the builds of a module.
pub fn status(module: &str) -> Query {
    Query::new("dkms", ["status", "-m", module])
}

/// Parses the output of [`status`], in the format of dkms 2 (`name, version, kernel, arch: state`) and 3 (`name/version,
/// kernel, arch: state`).
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

/// An environment variable for `dkms install`. The kernel build appends `KCFLAGS` to its own options
/// (Documentation/kbuild/kbuild.rst), and DKMS passes it on but does not store it. Distributions compile with debug
/// information, which takes a seventh of the build time, and DKMS strips it afterwards (`actual_build` of `dkms.in`).
pub const WITHOUT_DEBUG_INFORMATION: (&str, &str) = ("KCFLAGS", "-g0");

/// Whether a module build for this kernel reads debug information. It does so for type information (BTF) if the headers contain
/// `vmlinux` (`cmd_btf_ko` in the kernel's scripts/Makefile.modfinal), and for symbol versions if they are generated by
/// `gendwarfksyms` (`process_module` of scripts/gendwarfksyms/gendwarfksyms.c fails without it). Kernels with Rust and symbol
/// versions use `gendwarfksyms` since Linux 6.14.
///
/// # Errors
/// If a directory or the kernel configuration cannot be read.
pub fn needs_debug_information(files: &dyn ReadFiles, kernel: &str) -> Result<bool, FilesError> {
    let headers = kmod::directory_of(kernel).join("build");
    if files.exists(&headers.join("vmlinux"))? {
        return Ok(true);
    }
    // Read the same configuration file as the module build.
    let settings = files.read_lossy(&headers.join("include/config/auto.conf"))?;
    Ok(settings.is_some_and(|text| text.lines().any(|line| line == "CONFIG_GENDWARFKSYMS=y")))
}

/// Builds and installs a module for a kernel.
pub fn install(module: &str, version: &str, kernel: &str) -> Cmd {
    Cmd::new(
        "dkms",
        ["install", "-m", module, "-v", version, "-k", kernel],
    )
    .deadline(DEADLINE)
}

/// Removes a module for a kernel.
pub fn remove(module: &str, version: &str, kernel: &str) -> Cmd {
    Cmd::new(
        "dkms",
        ["remove", "-m", module, "-v", version, "-k", kernel],
    )
    .deadline(Duration::from_secs(300))
}

/// Returns the path of the compiler log of a build.
pub fn log_path(module: &str, version: &str) -> Utf8PathBuf {
    Utf8PathBuf::from(format!("{TREE}/{module}/{version}/build/make.log"))
}

/// The DKMS names of NVIDIA drivers from NVIDIA, from Ubuntu server branches, and from Debian.
const DRIVERS: [&str; 5] = [
    "nvidia",
    "nvidia-srv",
    "nvidia-current",
    "nvidia-current-open",
    "nvidia-open",
];

/// A failed build.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedBuild {
    /// The DKMS name of the module, such as `nvidia` or `nvidia-fs`.
    pub module: String,
    /// Its version.
    pub version: String,
    /// The path of the log.
    pub log: Utf8PathBuf,
}

impl FailedBuild {
    /// Whether the module is the driver, and not another NVIDIA module such as `nvidia-fs`.
    pub fn is_driver(&self) -> bool {
        DRIVERS.contains(&self.module.as_str())
    }
}

/// Returns the failed builds of NVIDIA modules.
///
/// # Errors
/// If a directory cannot be read.
pub fn failed(files: &dyn ReadFiles) -> Result<Vec<FailedBuild>, FilesError> {
    let mut found = Vec::new();
    for module in files.list(Utf8Path::new(TREE))? {
        if !module.starts_with("nvidia") {
            continue;
        }
        for version in directories(files, &Utf8Path::new(TREE).join(&module))? {
            let log = log_path(&module, &version);
            // DKMS moves the log away after a successful build.
            if files.exists(&log)? {
                found.push(FailedBuild {
                    module: module.clone(),
                    version,
                    log,
                });
            }
        }
    }
    Ok(found)
}

/// Returns the version of a driver whose source was added to DKMS, whether or not it was built.
///
/// # Errors
/// If a directory cannot be read.
pub fn added(files: &dyn ReadFiles) -> Result<Option<String>, FilesError> {
    for module in DRIVERS {
        for version in files.list(&Utf8Path::new(TREE).join(module))? {
            let source = Utf8PathBuf::from(format!("{TREE}/{module}/{version}/source"));
            if files.exists(&source)? {
                return Ok(Some(version));
            }
        }
    }
    Ok(None)
}

/// Whether this DKMS version (before 3.1) aborts at a module in [`TREE`] without a source (dkms-project/dkms issue 352).
pub fn ends_at_module_without_source(version: &str) -> bool {
    let mut numbers = version.split(|c: char| !c.is_ascii_digit());
    let mut number = || numbers.next()?.parse::<u32>().ok();
    (number(), number()) < (Some(3), Some(1))
}

/// Returns the first module in [`TREE`] with a missing source, in the format `MODULE/VERSION`. `None` if the NVIDIA driver also
/// has no source, because DKMS cannot build it then. DKMS before 3.1 aborts at such a module and does not build the remaining
/// ones ("Could not locate dkms.conf file": `is_module_built` and `autoinstall` of DKMS 2.8.7 and 3.0.11). Later versions skip
/// the module.
///
/// # Errors
/// If a directory cannot be read.
pub fn without_source(files: &dyn ReadFiles) -> Result<Option<String>, FilesError> {
    let (mut gone, mut buildable) = (None, false);
    for module in directories(files, Utf8Path::new(TREE))? {
        for version in directories(files, &Utf8Path::new(TREE).join(&module))? {
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

/// Returns the kernel in the first line of a log: `DKMS make.log for nvidia-580.95.05 for kernel 6.8.0-1029-aws (x86_64)`.
pub fn kernel_of_log(log: &str) -> Option<&str> {
    let (_, rest) = log.lines().next()?.rsplit_once(" for kernel ")?;
    rest.split_whitespace().next()
}

/// The cause of a failed build that another compiler fixes.
pub const OLD_COMPILER: &str = "the compiler is older than the one that built the kernel";

/// The cause of a failed build that the kernel headers fix.
pub const NO_HEADERS: &str = "the kernel headers are missing";

/// Known causes of failed builds: text in the log, cause, remedy.
///
/// Sources: aws-samples/aws-deep-learning-ami-ubuntu-dcv-desktop issue 30 and pop-os/pop issue 3117;
/// amazonlinux/amazon-linux-2023 issue 1054; GoogleCloudPlatform/compute-gpu-installation issue 33;
/// NVIDIA/open-gpu-kernel-modules issue 441.
const FAILURES: [(&str, &str, &str); 4] = [
    (
        "unrecognized command-line option",
        OLD_COMPILER,
        "install the compiler in `/proc/version` (on Ubuntu 22.04 with kernel 6.5 or newer, `gcc-12`)",
    ),
    (
        "No space left on device",
        "the disk was full",
        "free disk space or enlarge the disk",
    ),
    (
        "GPL-incompatible module nvidia.ko",
        "it uses kernel symbols exported only to GPL modules",
        "install a newer driver or the open kernel modules",
    ),
    (
        "/build: No such file or directory",
        NO_HEADERS,
        "install the kernel headers",
    ),
];

/// Returns the cause of a failed build and its remedy, if the log contains a known error.
pub fn failure(log: &str) -> Option<(&'static str, &'static str)> {
    let &(_, why, remedy) = (FAILURES.iter()).find(|(words, ..)| log.contains(words))?;
    Some((why, remedy))
}

/// Returns the line of a build log with the error: the first error of the compiler or of make, otherwise the last line.
pub fn telling_line(log: &str) -> Option<&str> {
    let lines = || (log.lines().map(str::trim)).filter(|line| !line.is_empty());
    let names_error = |line: &&str| line.contains("error:") || line.contains("*** ");
    lines().find(names_error).or_else(|| lines().next_back())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn build_log_shows_the_cause_and_the_kernel() {
        let log = "DKMS make.log for nvidia-560.35.05 for kernel 6.8.0-1029-aws (x86_64)\ngcc: error: unrecognized \
                   command-line option \u{2018}-ftrivial-auto-var-init=zero\u{2019}\n";
        assert_eq!(kernel_of_log(log), Some("6.8.0-1029-aws"));
        assert!(failure(log).is_some_and(|(_, remedy)| remedy.contains("gcc-12")));
        assert_eq!(kernel_of_log("make: nothing\n"), None);
        assert_eq!(failure("make: nothing\n"), None);
    }

    #[test]
    fn debug_information_is_kept_if_the_build_reads_it() {
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
    fn missing_source_blocks_builds_before_dkms_3_1() {
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

    /// Evaluates `dkms.conf` and the override like DKMS, then runs the build command. DKMS reads each file in a separate shell,
    /// and then evaluates the variables that this shell prints. Returns whether the command succeeded, and its output.
    /// `# clang` in `conf` selects a kernel that was built with clang.
    fn built(conf: &str, program: &str) -> (bool, String) {
        let directory = tempfile::tempdir().expect("a folder");
        let at = |name: &str| directory.path().join(name);
        let own = camino::Utf8PathBuf::try_from(at("program")).expect("UTF-8");
        let text = format!("#!/bin/sh\necho asked \"$@\"\n{program}\n");
        std::fs::write(&own, text).expect("written");
        std::fs::write(at("make"), "#!/bin/sh\necho made \"$@\"\n").expect("written");
        std::fs::write(
            at("dkms.conf"),
            format!("PACKAGE_VERSION=\"580.1\"\n{conf}\n"),
        )
        .expect("written");
        let words = FETCH.split(' ').map(str::to_owned).collect::<Vec<_>>();
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
            .current_dir(directory.path())
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
    fn dkms_calls_the_program_and_compiles_if_it_fails() {
        let asked = "asked modules fetch --driver=580.1 --kernel=6.1.0-44-amd64 -- nvidia-current=./nvidia.ko \
                     nvidia-uvm=sub/nvidia-uvm.ko\n";
        for (make, made) in rows! {
            // The forms in packages from Debian, NVIDIA and other distributions.
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
    fn unsupported_dkms_conf_compiles_as_before() {
        let make = "MAKE[0]=\"make M=. modules\"";
        let made = (
            true,
            "made -j4 KERNELRELEASE=6.1.0-44-amd64 M=. modules\n".to_owned(),
        );
        for conf in [
            format!("{NAMES}{make}\nMAKE_MATCH[0]=\"^6\""),
            // Without names in `dkms.conf`, DKMS uses the package name.
            make.to_owned(),
            format!("{NAMES}{make} # clang"),
        ] {
            assert_eq!(built(&conf, "exit 0"), made, "{conf}");
        }
    }

    #[test]
    fn both_status_formats_are_parsed() {
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
    fn error_line_of_log_is_selected() {
        let log = "DKMS make.log for nvidia-580.178.04\n  CC a.o\na.c:3:1: error: unknown type\n\
                   make[2]: *** [Makefile:1: a.o] Error 1\n";
        assert_eq!(telling_line(log), Some("a.c:3:1: error: unknown type"));
        assert_eq!(telling_line("begins\n  ends here\n\n"), Some("ends here"));
        assert_eq!(telling_line("\n"), None);
    }
}
