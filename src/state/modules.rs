//! Kernel modules: the loaded ones, those on disk, and the version of NVIDIA's own on disk.

use camino::{Utf8Path, Utf8PathBuf};

use super::{Read, State, StateError};
use crate::{
    error::one_line,
    facts::{Scope, reader::FactReader},
    host::{ExecError, Output, ReadFiles, Reader},
    model::{
        gpu::Flavour,
        version::{DriverVersion, KernelVersion},
    },
    tools::kmod,
};

const FACT: &str = "driver.module-version";
/// What the loaded module says about itself.
const PROC_VERSION: &str = "/proc/driver/nvidia/version";

impl State {
    /// Names of the loaded modules, as the kernel writes them.
    ///
    /// # Errors
    /// When the kernel's list cannot be read. A missing list counts as empty.
    pub fn loaded_modules(&self) -> Result<&[String], StateError> {
        let read = || {
            let text = self.host.files.read_text(Utf8Path::new(kmod::MODULES))?;
            let loaded = kmod::parse_loaded(&text.unwrap_or_default()).into_iter();
            Ok(loaded.map(|module| module.name).collect())
        };
        match self.memo.loaded_modules.get_or_init(read) {
            Ok(modules) => Ok(modules),
            Err(error) => Err(error.clone()),
        }
    }

    /// The bootable kernels that do not have the module. `depmod`'s list names all module files of
    /// a kernel, so one small file is read instead of the whole folder. An empty file is none: a power
    /// cut leaves it where nobody has synced the module.
    ///
    /// # Errors
    /// When an existing list cannot be read.
    pub fn kernels_without(&self, module: &str) -> Result<Vec<String>, StateError> {
        let read = || -> Read<Vec<(String, String)>> {
            let mut lists = Vec::new();
            for kernel in self.facts.kernel.bootable() {
                let text = self.host.files.read_text(&kmod::list_of(&kernel))?;
                lists.push((kernel, text.unwrap_or_default()));
            }
            Ok(lists)
        };
        let lists = self.memo.module_lists.get_or_init(read);
        let lists = lists.as_ref().map_err(Clone::clone)?.iter();
        let mut without = Vec::new();
        for (kernel, list) in lists {
            if !kmod::is_usable(&*self.host.files, kernel, list, module)? {
                without.push(kernel.clone());
            }
        }
        Ok(without)
    }
}

/// What shows which kernel modules a machine has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FoundFlavour {
    /// The modules.
    pub flavour: Flavour,
    /// They are loaded; otherwise they are on disk.
    pub loaded: bool,
}

impl State {
    /// Which kernel modules of NVIDIA are loaded, or else on disk for the running kernel, or with
    /// `--root` for the kernel of the next boot; `None` if there are none, or if nothing that may be
    /// read tells.
    ///
    /// # Errors
    /// When a file that exists cannot be read.
    pub async fn module_flavour(&self) -> Result<Option<FoundFlavour>, StateError> {
        let files = &*self.host.files;
        if let Some(text) = files.read_text(Utf8Path::new(PROC_VERSION))?
            && let Some(flavour) = flavour_of_banner(&text)
        {
            let loaded = true;
            return Ok(Some(FoundFlavour { flavour, loaded }));
        }
        let kernel = &self.facts.kernel;
        let Some(kernel) = kernel.running.as_ref().or(kernel.next_boot.as_ref()) else {
            return Ok(None);
        };
        let flavour = self.flavour_on_disk(files, kernel).await?;
        Ok(flavour.map(|flavour| FoundFlavour {
            flavour,
            loaded: false,
        }))
    }

    async fn flavour_on_disk(
        &self,
        files: &dyn ReadFiles,
        kernel: &KernelVersion,
    ) -> Read<Option<Flavour>> {
        let folder = Utf8PathBuf::from(format!("/lib/modules/{kernel}"));
        let list = files.read_text(&folder.join("modules.dep"))?;
        let list = list.unwrap_or_default();
        let Some(module) = nvidia_module(&list) else {
            return Ok(None);
        };
        // Debian writes it into the name.
        if module.contains("-open.ko") {
            return Ok(Some(Flavour::Open));
        }
        let path = folder.join(module);
        if module.ends_with(".ko") {
            let content = files.read(&path)?.unwrap_or_default();
            return Ok(modinfo(&content, "license").and_then(flavour_of_license));
        }
        match field(self.host.reader(), "license", path.as_str()).await {
            Ok(output) => Ok(flavour_of_license(&output.stdout)),
            // What no program here can unpack is not known; that is no fault of the machine.
            Err(
                ExecError::NotFound { .. } | ExecError::NotAsked { .. } | ExecError::Failed { .. },
            ) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

/// The first line of the module's own version: `NVRM version: NVIDIA UNIX Open Kernel Module for
/// x86_64  580.95.05 …`, or without `Open`.
fn flavour_of_banner(text: &str) -> Option<Flavour> {
    let line = text
        .lines()
        .find(|line| line.starts_with("NVRM version:"))?;
    line.contains("Kernel Module").then(|| {
        if line.contains("Open Kernel Module") {
            Flavour::Open
        } else {
            Flavour::Proprietary
        }
    })
}

/// The licenses of NVIDIA's own modules: `Dual MIT/GPL` is that of the open ones.
fn flavour_of_license(license: &str) -> Option<Flavour> {
    match license.trim() {
        "Dual MIT/GPL" => Some(Flavour::Open),
        "NVIDIA" => Some(Flavour::Proprietary),
        _ => None,
    }
}

/// The version of the module that `modprobe` would load for a kernel; `None` if there is no such
/// module, or if its version cannot be read, which the reader records.
pub(super) async fn on_disk(
    reader: &mut FactReader<'_>,
    host: Reader<'_>,
    scope: Scope,
    kernel: Option<&KernelVersion>,
) -> Option<DriverVersion> {
    let Some(kernel) = kernel else {
        reader.unknown(FACT, "no kernel is known whose modules could be read");
        return None;
    };
    let folder = format!("/lib/modules/{kernel}");
    // `modprobe` reads the list of `depmod`; a module that is not in it does not exist for it.
    let list = reader.text(FACT, &format!("{folder}/modules.dep"))?;
    let module = nvidia_module(&list)?;
    let path = format!("{folder}/{module}");
    if module.ends_with(".ko") {
        let content = reader.bytes(FACT, &path)?;
        let version = modinfo(&content, "version").and_then(|text| text.parse().ok());
        if version.is_none() {
            reader.unknown(FACT, format!("`{path}` contains no driver version"));
        }
        return version;
    }
    if let Some(version) = built_by_dkms(reader, kernel) {
        return Some(version);
    }
    if !scope.executes {
        reader.unknown(FACT, format!("`{path}` is compressed and was not unpacked"));
        return None;
    }
    ask(reader, host, &path).await
}

/// Runs `modinfo`, which decompresses modules; with a path it reads only this file.
async fn ask(reader: &mut FactReader<'_>, host: Reader<'_>, path: &str) -> Option<DriverVersion> {
    match field(host, "version", path).await {
        Ok(output) => reader.parsed(FACT, output.stdout.trim().parse()),
        Err(error) => {
            reader.unknown(FACT, one_line(&error));
            None
        }
    }
}

async fn field(host: Reader<'_>, name: &'static str, path: &str) -> Result<Output, ExecError> {
    let query = kmod::field(name, path);
    host.query(&query).await?.success(query.cmd())
}

/// The version that DKMS built for a kernel: the name of the folder. If there are several versions
/// for one kernel, the installed one is unknown.
fn built_by_dkms(reader: &mut FactReader<'_>, kernel: &KernelVersion) -> Option<DriverVersion> {
    let mut versions = Vec::new();
    for name in reader.list(FACT, "/var/lib/dkms") {
        if name != "nvidia" && !name.starts_with("nvidia-") {
            continue;
        }
        for version in reader.list(FACT, &format!("/var/lib/dkms/{name}")) {
            if let Ok(parsed) = version.parse::<DriverVersion>()
                && reader.exists(FACT, &format!("/var/lib/dkms/{name}/{version}/{kernel}"))
            {
                versions.push(parsed);
            }
        }
    }
    match versions.as_slice() {
        [only] => Some(only.clone()),
        _ => None,
    }
}

/// The path of the main module in `modules.dep`: `updates/dkms/nvidia.ko.zst: …`.
#[must_use]
pub fn nvidia_module(list: &str) -> Option<&str> {
    list.lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(path, _)| path)
        .find(|path| is_nvidia_module(path.rsplit('/').next().unwrap_or(path)))
}

/// Whether a file is the module `nvidia` itself. Debian builds it as `nvidia-current.ko` and the
/// like, and names it `nvidia` by an alias; `nvidia-uvm` and the other companions do not count,
/// nor do the kernel's own `nvidiafb` and `nvidia-wmi-ec-backlight`.
fn is_nvidia_module(file: &str) -> bool {
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

/// The value of a key in the `.modinfo` section of a 64-bit little-endian ELF file, which contains
/// `key=value` strings that end with a zero byte. All offsets are checked against the file's
/// length.
fn modinfo<'m>(module: &'m [u8], key: &str) -> Option<&'m str> {
    let number = |at: usize, length: usize| -> Option<usize> {
        let bytes = module.get(at..at.checked_add(length)?)?;
        let value = bytes
            .iter()
            .rev()
            .fold(0_u64, |value, byte| (value << 8) | u64::from(*byte));
        usize::try_from(value).ok()
    };
    // Class 64 bit, little-endian.
    if !module.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let table = number(0x28, 8)?;
    let size = number(0x3a, 2)?;
    let count = number(0x3c, 2)?;
    let names = number(0x3e, 2)?;
    let header = |index: usize| table.checked_add(index.checked_mul(size)?);
    let section = |index: usize| -> Option<&'m [u8]> {
        let header = header(index)?;
        let at = number(header.checked_add(0x18)?, 8)?;
        let length = number(header.checked_add(0x20)?, 8)?;
        module.get(at..at.checked_add(length)?)
    };
    let names = section(names)?;
    let modinfo = (0..count).find_map(|index| {
        let name = names.get(number(header(index)?, 4)?..)?;
        name.starts_with(b".modinfo\0").then(|| section(index))?
    })?;
    modinfo
        .split(|byte| *byte == 0)
        .filter_map(|entry| std::str::from_utf8(entry).ok())
        .filter_map(|entry| entry.split_once('='))
        .find(|(name, _)| *name == key)
        .map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::text::reads_any_text;
    use crate::{
        host::fake,
        steps::fixtures::{facts, state},
    };

    /// An ELF file of three sections: none, `.modinfo`, the names.
    fn module(info: &[u8]) -> Vec<u8> {
        let names = b"\0.modinfo\0.shstrtab\0";
        let mut file = b"\x7fELF\x02\x01\x01".to_vec();
        file.resize(64, 0);
        let info_at = file.len();
        file.extend(info);
        let names_at = file.len();
        file.extend(names);
        let table = file.len();
        for (name, at, length) in [
            (0, 0, 0),
            (1_u32, info_at, info.len()),
            (10, names_at, names.len()),
        ] {
            let start = file.len();
            file.extend(name.to_le_bytes());
            file.resize(start + 0x18, 0);
            file.extend((at as u64).to_le_bytes());
            file.extend((length as u64).to_le_bytes());
            file.resize(start + 64, 0);
        }
        file[0x28..0x30].copy_from_slice(&(table as u64).to_le_bytes());
        file[0x3a] = 64;
        file[0x3c] = 3;
        file[0x3e] = 2;
        file
    }

    #[test]
    fn the_version_is_read_from_the_file_of_a_module() {
        let file = module(b"srcversion=533BB7E5866E52F63B9ACCB\0version=535.261.03\0");
        assert_eq!(modinfo(&file, "version"), Some("535.261.03"));
        assert_eq!(modinfo(&file, "alias"), None);
        for cut in 0..file.len() {
            let _ = modinfo(&file[..cut], "version");
        }
        for at in 0..file.len() {
            let mut broken = file.clone();
            broken[at] = 0xff;
            let _ = modinfo(&broken, "version");
        }
    }

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
        let list = "kernel/a.ko: \nupdates/dkms/nvidia-current-uvm.ko: updates/dkms/nvidia-current.ko\n\
                    updates/dkms/nvidia-current.ko:\n";
        assert_eq!(nvidia_module(list), Some("updates/dkms/nvidia-current.ko"));
    }

    #[tokio::test]
    async fn plain_built_by_dkms_and_compressed() {
        let (host, fakes) = fake::host();
        let kernel: KernelVersion = "6.8.0-49-generic".parse().unwrap();
        let folder = format!("/lib/modules/{kernel}");
        let dep = format!("{folder}/modules.dep");
        let get = async |executes| {
            let mut reader = FactReader::new(host.reader().files());
            let scope = Scope { executes };
            let version = on_disk(&mut reader, host.reader(), scope, Some(&kernel)).await;
            (version.map(|v| v.to_string()), reader.into_unknown().len())
        };
        assert_eq!(get(true).await, (None, 0));
        fakes.files.put(&dep, "updates/dkms/nvidia.ko:\n");
        fakes.files.put(
            &format!("{folder}/updates/dkms/nvidia.ko"),
            module(b"version=580.178.04\0"),
        );
        assert_eq!(get(false).await, (Some("580.178.04".to_owned()), 0));
        fakes.files.put(&dep, "updates/dkms/nvidia.ko.zst:\n");
        assert_eq!(get(false).await, (None, 1));
        fakes.exec.on("modinfo", |_, _| fake::ok("595.91.07\n"));
        assert_eq!(get(true).await, (Some("595.91.07".to_owned()), 0));
        fakes.files.put_folder(
            &format!("/var/lib/dkms/nvidia/580.173.02/{kernel}/x86_64"),
            0o755,
        );
        assert_eq!(get(false).await, (Some("580.173.02".to_owned()), 0));
    }

    #[tokio::test]
    async fn the_flavour_is_that_of_the_loaded_modules_or_else_of_those_on_disk() {
        let (host, fakes) = fake::host();
        let get = async || state(&host, facts()).module_flavour().await.unwrap();
        assert_eq!(get().await, None);
        let folder = "/lib/modules/6.1.0-44-amd64";
        let dep = format!("{folder}/modules.dep");
        let on_disk = |flavour| {
            Some(FoundFlavour {
                flavour,
                loaded: false,
            })
        };
        fakes.files.put(&dep, "updates/dkms/nvidia.ko:\n");
        let plain = format!("{folder}/updates/dkms/nvidia.ko");
        fakes.files.put(&plain, module(b"version=580.178.04\0"));
        assert_eq!(get().await, None);
        fakes.files.put(&plain, module(b"license=NVIDIA\0"));
        assert_eq!(get().await, on_disk(Flavour::Proprietary));
        fakes
            .files
            .put(&dep, "updates/dkms/nvidia-current-open.ko.xz:\n");
        assert_eq!(get().await, on_disk(Flavour::Open));
        fakes.files.put(&dep, "updates/dkms/nvidia.ko.zst:\n");
        assert_eq!(get().await, None);
        fakes.exec.on("modinfo", |_, _| fake::ok("Dual MIT/GPL\n"));
        assert_eq!(get().await, on_disk(Flavour::Open));
        let banner = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Release Build\n";
        fakes.files.put(PROC_VERSION, banner);
        let loaded = FoundFlavour {
            flavour: Flavour::Proprietary,
            loaded: true,
        };
        assert_eq!(get().await, Some(loaded));
        let open = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05\n";
        assert_eq!(flavour_of_banner(open), Some(Flavour::Open));
    }

    #[test]
    fn a_kernel_without_the_module_is_named() {
        let (host, fakes) = fake::host();
        let without = |module| state(&host, facts()).kernels_without(module).unwrap();
        assert_eq!(without("nvidia-current"), ["6.1.0-44-amd64"]);
        fakes.files.put(
            "/lib/modules/6.1.0-44-amd64/modules.dep",
            "updates/dkms/nvidia-current.ko.xz: kernel/a.ko\n",
        );
        assert!(without("nvidia-current").is_empty());
        assert_eq!(without("a"), ["6.1.0-44-amd64"]);
        let file = "/lib/modules/6.1.0-44-amd64/updates/dkms/nvidia-current.ko.xz";
        fakes.files.put(file, "");
        assert_eq!(without("nvidia-current"), ["6.1.0-44-amd64"], "it is empty");
        fakes.files.put(file, "XZ");
        assert!(without("nvidia-current").is_empty());
    }

    reads_any_text!(
        "(nvidia|-|_|.ko|:|\n|/|.)*",
        |text| nvidia_module(&text); modinfo(text.as_bytes(), "version")
    );
}
