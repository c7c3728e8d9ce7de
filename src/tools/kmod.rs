//! Kernel modules: `modprobe`, its configuration, and the list of loaded modules.

use std::{collections::BTreeMap, time::Duration};

use camino::{Utf8Path, Utf8PathBuf};

use crate::{
    host::{Cmd, FileKind, FilesError, Query, ReadFiles},
    model::paths::STATE,
};

/// The list of loaded modules.
pub const MODULES: &str = "/proc/modules";

/// Initializing eight GPUs takes tens of seconds, and a faulty GPU can hang.
const DEADLINE: Duration = Duration::from_secs(180);

/// The directory of files that list modules to load at every boot, `modules-load.d(5)`.
pub const AT_BOOT: &str = "/etc/modules-load.d";

/// The directory with a subdirectory of modules for each kernel.
pub const DIRECTORY: &str = "/lib/modules";

/// Returns the module directory of a kernel.
pub fn directory_of(kernel: &str) -> Utf8PathBuf {
    Utf8PathBuf::from(format!("{DIRECTORY}/{kernel}"))
}

/// The directories of NVIDIA modules from packages, DKMS and the `.run` installer, below the directory of a kernel.
pub const MODULE_FOLDERS: [&str; 6] = [
    "updates/dkms",
    "updates",
    "extra",
    "extra/drivers/video/nvidia",
    "weak-updates",
    "kernel/drivers/video",
];

/// Returns the module list that `depmod` generates for a kernel.
pub fn list_of(kernel: &str) -> Utf8PathBuf {
    directory_of(kernel).join("modules.dep")
}

/// Returns the path of a module in the content of `modules.dep`, relative to the directory of the kernel.
pub fn file_of<'l>(list: &'l str, module: &str) -> Option<&'l str> {
    list.lines()
        .filter_map(|line| line.split(':').next())
        .find(|path| name_of(path) == Some(module))
}

/// Returns the name of a module from its path.
pub fn name_of(path: &str) -> Option<&str> {
    let name = path.rsplit('/').next().unwrap_or(path);
    Some(name.split_once(".ko")?.0)
}

/// Whether a file is the main module `nvidia`. Debian builds it as `nvidia-current.ko` or similar, with the alias `nvidia`.
/// `nvidia-uvm` and the other companions do not count, nor do the in-tree modules `nvidiafb` and `nvidia-wmi-ec-backlight`.
/// Only the main module shows the flavor, because `nvidia-uvm` has the license of the open modules in both flavors.
pub fn is_nvidia_module(file: &str) -> bool {
    let Some((stem, packing)) = file.split_once(".ko") else {
        return false;
    };
    if !matches!(packing, "" | ".xz" | ".zst" | ".gz") {
        return false;
    }
    let mut words = stem.split(['-', '_']);
    words.next() == Some("nvidia")
        && words.all(|word| {
            matches!(word, "current" | "open" | "tesla" | "legacy" | "server")
                || word.starts_with(|c: char| c.is_ascii_digit())
        })
}

/// Whether `modprobe` can load a kernel's module: `depmod` has listed the module, and its file is not empty. After a power
/// loss, the file of a module that was not synced is empty. If `depmod` was killed, its list does not contain the module. An
/// absolute path in the list is used unchanged.
///
/// # Errors
/// If the file cannot be read.
pub fn is_usable(
    files: &dyn ReadFiles,
    kernel: &str,
    list: &str,
    module: &str,
) -> Result<bool, FilesError> {
    match file_of(list, module) {
        Some(file) => Ok(!is_emptied(files, &directory_of(kernel).join(file))?),
        None => Ok(false),
    }
}

/// Whether a path is an empty file.
///
/// # Errors
/// If the path cannot be read.
pub fn is_emptied(files: &dyn ReadFiles, path: &Utf8Path) -> Result<bool, FilesError> {
    Ok((files.stat(path)?).is_some_and(|stat| stat.kind == FileKind::File && stat.size == 0))
}

/// Returns the modules in a file in [`AT_BOOT`].
pub fn named_for_boot(content: &str) -> impl DoubleEndedIterator<Item = &str> {
    content
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with(['#', ';']))
}

/// A loaded module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loaded {
    /// Module name, with underscores.
    pub name: String,
    /// Number of users: modules and open files.
    pub users: u32,
    /// The modules that use it.
    pub used_by: Vec<String>,
}

impl Loaded {
    /// The number of users that are not modules.
    pub fn others(&self) -> u64 {
        u64::from(self.users).saturating_sub(self.used_by.len() as u64)
    }
}

/// The module that makes iptables filter bridge traffic.
pub const BRIDGE_FILTER: &str = "br_netfilter";

/// Returns the name in the spelling of the kernel.
pub fn canonical(name: &str) -> String {
    name.replace('-', "_")
}

/// Returns the directory that exists while a module is loaded, or if it is built into the kernel.
pub fn in_kernel(module: &str) -> Utf8PathBuf {
    Utf8PathBuf::from(format!("/sys/module/{}", canonical(module)))
}

/// Parses [`MODULES`].
pub fn parse_loaded(text: &str) -> Vec<Loaded> {
    text.lines()
        .filter_map(|line| {
            // `nvidia 62853120 3 nvidia_uvm,nvidia_modeset, Live 0x… (POE)`
            let fields: Vec<&str> = line.split_whitespace().collect();
            let [name, _, users, by, ..] = fields[..] else {
                return None;
            };
            Some(Loaded {
                name: name.to_owned(),
                users: users.parse().ok()?,
                used_by: by
                    .split(',')
                    .filter(|by| !by.is_empty() && *by != "-")
                    .map(str::to_owned)
                    .collect(),
            })
        })
        .collect()
}

/// The configuration directories of `modprobe`, in order of precedence, `modprobe.d(5)`.
pub const CONFIGURATION: [&str; 5] = [
    "/etc/modprobe.d",
    "/run/modprobe.d",
    "/usr/local/lib/modprobe.d",
    "/usr/lib/modprobe.d",
    "/lib/modprobe.d",
];

/// Returns the configuration lines that prevent modules from being loaded at boot or by name, each as a message with file and
/// line number. Ignores files of gpu-bootstrap while their record exists, and files in `/run`, which do not exist at the next
/// boot.
///
/// # Errors
/// If an existing file cannot be read.
pub fn denials(files: &dyn ReadFiles, modules: &[String]) -> Result<Vec<String>, FilesError> {
    // gpu-bootstrap reverts its own denials, unless their record is lost.
    let has_record = files.exists(Utf8Path::new(STATE))?;
    let is_ours = |name: &str| has_record && name.contains("gpu-bootstrap");
    let mut found = Vec::new();
    for path in configuration(files, |directory| !directory.starts_with("/run/"))? {
        if path.file_name().is_some_and(is_ours) {
            continue;
        }
        let text = files.read(&path)?.unwrap_or_default();
        for (line, text) in denied(&String::from_utf8_lossy(&text), modules) {
            found.push(format!("`{path}`, line {line}: `{text}`"));
        }
    }
    Ok(found)
}

/// Returns the files in the selected directories of [`CONFIGURATION`] in the order in which modprobe reads them: by name. A file
/// hides files of the same name in later directories. `/lib` may be `/usr/lib`.
///
/// # Errors
/// If an existing directory cannot be read.
pub fn configuration(
    files: &dyn ReadFiles,
    is_selected: impl Fn(&str) -> bool,
) -> Result<Vec<Utf8PathBuf>, FilesError> {
    let mut found = BTreeMap::new();
    for directory in CONFIGURATION {
        if !is_selected(directory) {
            continue;
        }
        for name in files.list(Utf8Path::new(directory))? {
            if name.ends_with(".conf") {
                let path = Utf8Path::new(directory).join(&name);
                found.entry(name).or_insert(path);
            }
        }
    }
    Ok(found.into_values().collect())
}

/// Returns the lines of a file in [`CONFIGURATION`] that deny one of the modules. `blacklist` prevents loading at boot
/// (see modules-load.d(5)). An `install` command that does nothing prevents loading completely.
fn denied<'t>(text: &'t str, modules: &[String]) -> impl Iterator<Item = (usize, &'t str)> {
    let is_one = |name: Option<&str>| {
        name.is_some_and(|name| (modules.iter()).any(|module| canonical(module) == canonical(name)))
    };
    (text.lines().enumerate()).filter_map(move |(at, line)| {
        let mut words = line.split_whitespace();
        let denies = match words.next()? {
            "blacklist" => is_one(words.next()),
            "install" => {
                is_one(words.next())
                    && matches!(
                        words
                            .next()
                            .map(|word| word.rsplit('/').next().unwrap_or(word)),
                        Some("true" | "false" | ":")
                    )
            }
            _ => false,
        };
        denies.then_some((at + 1, line.trim()))
    })
}

/// Returns the kernel parameter that prevents one of the modules from being loaded. Sources: the kernel's
/// `Documentation/admin-guide/kernel-parameters.txt`, `module_blacklist=`; modprobe(8), `modprobe.blacklist=`;
/// dracut.cmdline(7), `rd.driver.blacklist=`, which the dracut initramfs writes to a file for the booted system.
pub fn denied_by_boot(line: &str, modules: &[String]) -> Option<String> {
    (line.split_whitespace())
        .find(|word| {
            let Some((key, value)) = word.split_once('=') else {
                return false;
            };
            let denies = [
                "module_blacklist",
                "modprobe.blacklist",
                "rd.driver.blacklist",
            ]
            .contains(&key);
            let mut named = value.split(',').map(canonical);
            denies && named.any(|name| modules.iter().any(|module| canonical(module) == name))
        })
        .map(str::to_owned)
}

/// A configured module option.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModuleSetting {
    /// Module name, with underscores.
    pub module: String,
    pub option: String,
    pub value: String,
}

/// Returns the options that a file in [`CONFIGURATION`] sets: `options nvidia NAME=VALUE NAME=VALUE`.
pub fn settings(text: &str) -> impl Iterator<Item = ModuleSetting> {
    // A backslash at the end of a line continues it.
    let joined = text.replace("\\\n", " ");
    let lines: Vec<ModuleSetting> = (joined.lines())
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            (words.next() == Some("options")).then_some(words)
        })
        .flat_map(|mut words| {
            let module = canonical(words.next().unwrap_or_default());
            let setting = |word: &str| setting(&module, word);
            words.filter_map(setting).collect::<Vec<_>>()
        })
        .collect();
    lines.into_iter()
}

/// Returns the module options on a kernel command line: `nvidia.NAME=VALUE`.
pub fn settings_of_boot(line: &str) -> impl Iterator<Item = ModuleSetting> {
    line.split_whitespace().filter_map(|word| {
        let (module, rest) = word.split_once('.')?;
        setting(&canonical(module), rest)
    })
}

fn setting(module: &str, word: &str) -> Option<ModuleSetting> {
    let (option, value) = word.split_once('=')?;
    Some(ModuleSetting {
        module: module.to_owned(),
        option: option.to_owned(),
        value: value.trim_matches('"').to_owned(),
    })
}

/// Queries a field of a module, by its name or path. Compressed modules are supported.
pub fn field(field: &'static str, module: &str) -> Query {
    Query::new("modinfo", ["-F", field, "--", module])
}

/// Loads a module and its dependencies.
pub fn load(module: &str) -> Cmd {
    Cmd::new("modprobe", ["--", module]).deadline(DEADLINE)
}

/// Unloads one module. Needs neither its file nor its configuration.
pub fn remove(module: &str) -> Cmd {
    Cmd::new("rmmod", ["--", module]).deadline(DEADLINE)
}

/// Returns a module and all modules that use it, in an order in which they can be unloaded. The module itself is last.
pub fn with_holders(loaded: &[Loaded], module: &str) -> Vec<Loaded> {
    fn visit(loaded: &[Loaded], name: &str, found: &mut Vec<Loaded>) {
        let Some(one) = loaded.iter().find(|one| one.name == name) else {
            return;
        };
        for holder in &one.used_by {
            visit(loaded, holder, found);
        }
        if !found.contains(one) {
            found.push(one.clone());
        }
    }
    let mut found = Vec::new();
    visit(loaded, &canonical(module), &mut found);
    found
}

/// Returns a dangling symlink to the NVIDIA module in a subdirectory of `weak-updates` of this kernel, and its target.
/// `weak-modules` of RHEL and related distributions creates symlinks to the modules of another kernel, and a symlink may
/// outlive that kernel (AlmaLinux/almalinux-deploy issue 271).
///
/// # Errors
/// If a directory cannot be read.
pub fn dangling(
    files: &dyn ReadFiles,
    kernel: &str,
) -> Result<Option<(Utf8PathBuf, Utf8PathBuf)>, FilesError> {
    let weak = Utf8PathBuf::from(format!("{DIRECTORY}/{kernel}/weak-updates"));
    for part in files.list(&weak)? {
        let directory = weak.join(part);
        // Some packages install files without a subdirectory.
        if files
            .stat(&directory)?
            .is_none_or(|about| about.kind != FileKind::Directory)
        {
            continue;
        }
        for name in files.list(&directory)? {
            let link = directory.join(&name);
            if !name.starts_with("nvidia.ko") || files.exists(&link)? {
                continue;
            }
            if let Some(FileKind::Link(target)) = files.stat(&link)?.map(|about| about.kind) {
                return Ok(Some((link, target)));
            }
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::fake::FakeFiles;

    #[test]
    fn configuration_is_read_by_name_and_hides_later_directories() {
        let files = FakeFiles::new();
        for path in [
            "/etc/modprobe.d/zz.conf",
            "/etc/modprobe.d/nvidia.conf",
            "/etc/modprobe.d/README",
            "/lib/modprobe.d/nvidia.conf",
            "/lib/modprobe.d/a.conf",
        ] {
            files.put(path, "");
        }
        let found = configuration(&files, |_| true).unwrap();
        assert_eq!(
            found,
            [
                "/lib/modprobe.d/a.conf",
                "/etc/modprobe.d/nvidia.conf",
                "/etc/modprobe.d/zz.conf"
            ]
        );
        let found = configuration(&files, |directory| directory == "/lib/modprobe.d").unwrap();
        assert_eq!(found.len(), 2);
    }

    #[test]
    fn only_the_main_module_is_nvidia() {
        for file in [
            "nvidia.ko",
            "nvidia.ko.zst",
            "nvidia-current.ko",
            "nvidia-current-open.ko",
            "nvidia-tesla-535-current.ko.xz",
        ] {
            assert!(is_nvidia_module(file), "{file}");
        }
        for file in [
            "nvidia-uvm.ko",
            "nvidia-current-drm.ko",
            "nvidiafb.ko",
            "nvidia-wmi-ec-backlight.ko",
            "i2c-nvidia-gpu.ko",
            "nvidia",
            "nvidia.kox",
            "",
        ] {
            assert!(!is_nvidia_module(file), "{file}");
        }
    }

    #[test]
    fn denying_lines_are_found() {
        let modules = ["nvidia".to_owned(), "nvidia-uvm".to_owned()];
        let text = "# blacklist nvidia\nblacklist nouveau\ninstall nvidia modprobe -i nvidia-current\n\
                    blacklist nvidia\n install nvidia_uvm /usr/bin/false\nblacklist nvidia-drm\n";
        let found: Vec<_> = denied(text, &modules).collect();
        assert_eq!(
            found,
            [
                (4, "blacklist nvidia"),
                (5, "install nvidia_uvm /usr/bin/false")
            ]
        );
        for (line, word) in rows! {
            "ro quiet module_blacklist=nouveau,nvidia", Some("module_blacklist=nouveau,nvidia");
            "modprobe.blacklist=nvidia_uvm", Some("modprobe.blacklist=nvidia_uvm");
            "rd.driver.blacklist=nouveau nvidia.x=1 nvidia", None;
        } {
            assert_eq!(denied_by_boot(line, &modules).as_deref(), word);
        }
    }

    #[test]
    fn denials_in_run_do_not_affect_the_next_boot() {
        let files = crate::host::fake::FakeFiles::new();
        let modules = ["nvidia".to_owned()];
        let denial = "install nvidia /bin/false\n";
        files.put("/run/modprobe.d/00-held.conf", denial);
        assert_eq!(denials(&files, &modules).expect("read"), [""; 0]);
        files.put("/usr/lib/modprobe.d/00-held.conf", denial);
        let found = denials(&files, &modules).expect("read");
        assert!(
            found[0].starts_with("`/usr/lib/modprobe.d/00-held.conf`, line 1"),
            "{found:?}"
        );
    }

    #[test]
    fn dangling_link_to_removed_kernel_is_found() {
        let files = crate::host::fake::FakeFiles::new();
        let link = "/lib/modules/687.15/weak-updates/nvidia-open/nvidia.ko.xz";
        let module = "/lib/modules/687.12/extra/nvidia-open/nvidia.ko.xz";
        files.put_link(link, module);
        files.put_link("/lib/modules/687.15/weak-updates/nvidia.ko", "/gone");
        files.put_link("/lib/modules/687.15/weak-updates/kvdo/kvdo.ko", "/gone");
        let found = || dangling(&files, "687.15").expect("read");
        assert_eq!(found(), Some((link.into(), module.into())));
        files.put(module, "");
        assert_eq!(found(), None);
    }

    #[test]
    fn loaded_modules_are_parsed() {
        let text = "nvidia_uvm 4956160 0 - Live 0x0000000000000000 (POE)\n\
                    nvidia 62853120 3 nvidia_uvm,nvidia_modeset, Live 0x0000000000000000 (POE)\n";
        let loaded = parse_loaded(text);
        assert_eq!(loaded[0].users, 0);
        assert!(loaded[0].used_by.is_empty());
        assert_eq!(loaded[1].used_by, ["nvidia_uvm", "nvidia_modeset"]);
        assert_eq!(canonical("nvidia-uvm"), "nvidia_uvm");
    }

    #[test]
    fn module_options_are_parsed() {
        let text = "# options nvidia NVreg_A=1\nblacklist nouveau\noptions nvidia-current NVreg_B=2 \\\n  \
                    NVreg_C=\"x\"\n options nvidia NVreg_D\n";
        let found: Vec<String> = settings(text)
            .map(|one| format!("{} {}={}", one.module, one.option, one.value))
            .collect();
        assert_eq!(
            found,
            ["nvidia_current NVreg_B=2", "nvidia_current NVreg_C=x"]
        );
        let boot: Vec<ModuleSetting> =
            settings_of_boot("root=/dev/vda1 ro nvidia.NVreg_B=0 quiet").collect();
        assert_eq!(boot.len(), 1);
        assert_eq!(
            (boot[0].module.as_str(), boot[0].value.as_str()),
            ("nvidia", "0")
        );
    }
}
