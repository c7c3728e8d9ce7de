//! Kernel modules: `modprobe`, and what the kernel says about what is loaded.

use std::{collections::BTreeSet, time::Duration};

use camino::{Utf8Path, Utf8PathBuf};

use crate::{
    host::{Cmd, FileKind, FilesError, Query, ReadFiles},
    model::paths::STATE,
};

/// What is loaded.
pub const MODULES: &str = "/proc/modules";

/// Initialising eight GPUs takes tens of seconds; a sick one hangs.
const DEADLINE: Duration = Duration::from_secs(180);

/// Where files name modules that are loaded at every boot, `modules-load.d(5)`.
pub const AT_BOOT: &str = "/etc/modules-load.d";

/// The folders of modules, one for each kernel.
pub const FOLDER: &str = "/lib/modules";

/// Where a kernel's modules are.
#[must_use]
pub fn folder_of(kernel: &str) -> Utf8PathBuf {
    Utf8PathBuf::from(format!("{FOLDER}/{kernel}"))
}

/// Where packages, DKMS and the `.run` installer put NVIDIA's module, below the directory of a kernel.
pub const MODULE_FOLDERS: [&str; 6] = [
    "updates/dkms",
    "updates",
    "extra",
    "extra/drivers/video/nvidia",
    "weak-updates",
    "kernel/drivers/video",
];

/// The list that `depmod` makes of them.
#[must_use]
pub fn list_of(kernel: &str) -> Utf8PathBuf {
    folder_of(kernel).join("modules.dep")
}

/// The file of a module that such a list names, from the kernel's folder on.
#[must_use]
pub fn file_of<'l>(list: &'l str, module: &str) -> Option<&'l str> {
    list.lines()
        .filter_map(|line| line.split(':').next())
        .find(|path| name_of(path) == Some(module))
}

/// The name of a module, from the path of its file.
#[must_use]
pub fn name_of(path: &str) -> Option<&str> {
    let name = path.rsplit('/').next().unwrap_or(path);
    Some(name.split_once(".ko")?.0)
}

/// Whether a file is the module `nvidia` itself. Debian builds it as `nvidia-current.ko` and the
/// like, and names it `nvidia` by an alias; `nvidia-uvm` and the other companions do not count,
/// nor do the kernel's own `nvidiafb` and `nvidia-wmi-ec-backlight`. It alone tells the flavour: the license of `nvidia-uvm` is
/// that of the open modules in both.
#[must_use]
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

/// Whether `modprobe` finds a kernel's module: its list names the module, and the file is not empty. A power
/// cut leaves an empty one where nobody has synced the module, and a kill before the end of `depmod` a list
/// without it. An absolute path in the list stands for itself.
///
/// # Errors
/// When the file cannot be examined.
pub fn is_usable(
    files: &dyn ReadFiles,
    kernel: &str,
    list: &str,
    module: &str,
) -> Result<bool, FilesError> {
    match file_of(list, module) {
        Some(file) => Ok(!is_emptied(files, &folder_of(kernel).join(file))?),
        None => Ok(false),
    }
}

/// Whether a path is a file without content.
///
/// # Errors
/// When it cannot be examined.
pub fn is_emptied(files: &dyn ReadFiles, path: &Utf8Path) -> Result<bool, FilesError> {
    Ok((files.stat(path)?).is_some_and(|stat| stat.kind == FileKind::File && stat.size == 0))
}

/// The modules that a file of [`AT_BOOT`] names.
#[must_use]
pub fn named_for_boot(content: &str) -> impl DoubleEndedIterator<Item = &str> {
    content
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with(['#', ';']))
}

/// A loaded module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loaded {
    /// Its name, with underscores.
    pub name: String,
    /// The number of its users: other modules and open files.
    pub users: u32,
    /// The modules among them.
    pub used_by: Vec<String>,
}

impl Loaded {
    /// The number of users that are not modules.
    #[must_use]
    pub fn others(&self) -> u64 {
        u64::from(self.users).saturating_sub(self.used_by.len() as u64)
    }
}

/// The module that has iptables filter what goes over a bridge.
pub const BRIDGE_FILTER: &str = "br_netfilter";

/// The name as the kernel writes it.
#[must_use]
pub fn canonical(name: &str) -> String {
    name.replace('-', "_")
}

/// Reads [`MODULES`].
#[must_use]
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

/// Where `modprobe` reads its configuration, the first first, `modprobe.d(5)`.
pub const CONFIGURATION: [&str; 5] = [
    "/etc/modprobe.d",
    "/run/modprobe.d",
    "/usr/local/lib/modprobe.d",
    "/usr/lib/modprobe.d",
    "/lib/modprobe.d",
];

/// The lines by which somebody keeps modules from being loaded at boot or by their names, each as a
/// sentence that names file and line. Files of this program are left out while there is a record of them, and what lies
/// below `/run`, which the next boot does not have any more.
///
/// # Errors
/// When an existing file cannot be read.
pub fn denials(files: &dyn ReadFiles, modules: &[String]) -> Result<Vec<String>, FilesError> {
    let (mut read, mut found) = (BTreeSet::new(), Vec::new());
    // What this program denies it takes back, unless the record of it is lost.
    let has_record = files.exists(Utf8Path::new(STATE))?;
    let lasting = |folder: &&str| !folder.starts_with("/run/");
    for folder in CONFIGURATION.into_iter().filter(lasting) {
        for name in files.list(Utf8Path::new(folder))? {
            let path = Utf8Path::new(folder).join(&name);
            // A file hides those of its name in later folders; `/lib` may be `/usr/lib`.
            let is_known = has_record && name.contains("gpu-bootstrap");
            if !name.ends_with(".conf") || is_known || !read.insert(name) {
                continue;
            }
            let text = files.read(&path)?.unwrap_or_default();
            for (line, text) in denied(&String::from_utf8_lossy(&text), modules) {
                found.push(format!("`{path}`, line {line}, says `{text}`"));
            }
        }
    }
    Ok(found)
}

/// The lines of a file of [`CONFIGURATION`] that deny one of the modules. `blacklist` keeps a module from
/// being loaded at boot, `modules-load.d(5)`; an `install` command that does nothing from being loaded at all.
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

/// The word of a kernel's command line that keeps one of the modules from being loaded. Sources: the kernel's
/// `Documentation/admin-guide/kernel-parameters.txt`, `module_blacklist=`; modprobe(8), `modprobe.blacklist=`;
/// dracut.cmdline(7), `rd.driver.blacklist=`, which its initial RAM filesystem writes down for the system.
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

/// An option of a module that somebody sets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModuleSetting {
    /// The module, with underscores.
    pub module: String,
    /// Its parameter.
    pub option: String,
    pub value: String,
}

/// The options that a file of [`CONFIGURATION`] sets: `options nvidia NAME=VALUE NAME=VALUE`.
pub fn settings(text: &str) -> impl Iterator<Item = ModuleSetting> {
    // A line ends with a backslash where the next one continues it.
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

/// The options that a kernel's command line sets: `nvidia.NAME=VALUE`.
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

/// Asks for a field of a module, by its name or by the path of its file. It decompresses a module.
#[must_use]
pub fn field(field: &'static str, module: &str) -> Query {
    Query::new("modinfo", ["-F", field, "--", module])
}

/// Loads a module and what it needs.
#[must_use]
pub fn load(module: &str) -> Cmd {
    Cmd::new("modprobe", ["--", module]).deadline(DEADLINE)
}

/// Unloads a module and nothing else. Needs neither its file nor its configuration.
#[must_use]
pub fn remove(module: &str) -> Cmd {
    Cmd::new("rmmod", ["--", module]).deadline(DEADLINE)
}

/// A module and those that use it, in the order in which they can be unloaded: itself last.
#[must_use]
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

/// Returns a link to NVIDIA's module that leads nowhere, in the folder of this kernel. `weak-modules` of RHEL and its relatives links the modules of another
/// kernel into that folder, and a link may outlive that kernel (AlmaLinux/almalinux-deploy issue 271).
///
/// # Errors
/// When a folder cannot be read.
pub fn dangling(files: &dyn ReadFiles, kernel: &str) -> Result<Option<Utf8PathBuf>, FilesError> {
    let weak = Utf8PathBuf::from(format!("{FOLDER}/{kernel}/weak-updates"));
    for part in files.list(&weak)? {
        let folder = weak.join(part);
        // Some packages have no folder of their own.
        if files
            .stat(&folder)?
            .is_none_or(|about| about.kind != FileKind::Folder)
        {
            continue;
        }
        for name in files.list(&folder)? {
            let link = folder.join(&name);
            if name.starts_with("nvidia.ko") && !files.exists(&link)? {
                return Ok(Some(link));
            }
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_main_module_counts_as_nvidia() {
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
    fn lines_that_deny_a_module() {
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
    fn what_the_next_boot_does_not_have_denies_nothing_at_boot() {
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
    fn a_link_to_the_module_of_a_kernel_that_is_gone_is_found() {
        let files = crate::host::fake::FakeFiles::new();
        let link = "/lib/modules/687.15/weak-updates/nvidia-open/nvidia.ko.xz";
        let module = "/lib/modules/687.12/extra/nvidia-open/nvidia.ko.xz";
        files.put_link(link, module);
        files.put_link("/lib/modules/687.15/weak-updates/nvidia.ko", "/gone");
        files.put_link("/lib/modules/687.15/weak-updates/kvdo/kvdo.ko", "/gone");
        let found = || dangling(&files, "687.15").expect("read");
        assert_eq!(found().as_deref(), Some(Utf8Path::new(link)));
        files.put(module, "");
        assert_eq!(found(), None);
    }

    #[test]
    fn loaded_modules() {
        let text = "nvidia_uvm 4956160 0 - Live 0x0000000000000000 (POE)\n\
                    nvidia 62853120 3 nvidia_uvm,nvidia_modeset, Live 0x0000000000000000 (POE)\n";
        let loaded = parse_loaded(text);
        assert_eq!(loaded[0].users, 0);
        assert!(loaded[0].used_by.is_empty());
        assert_eq!(loaded[1].used_by, ["nvidia_uvm", "nvidia_modeset"]);
        assert_eq!(canonical("nvidia-uvm"), "nvidia_uvm");
    }

    #[test]
    fn options_of_modules_are_read() {
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
