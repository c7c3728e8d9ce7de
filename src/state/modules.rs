//! Kernel modules: the loaded modules, the modules on disk, and the version of the NVIDIA module on disk.

use camino::{Utf8Path, Utf8PathBuf};

use super::{Read, State, StateError};
use crate::{
    dkms::{self, TREE},
    error::one_line,
    facts::{Scope, reader::FactReader},
    host::{ExecError, Output, ReadFiles, Reader},
    model::{
        gpu::Flavor,
        version::{DriverVersion, KernelVersion},
    },
    tools::{
        kmod,
        module_file::{flavor_of_license, modinfo},
    },
};

const FACT: &str = "driver.module-version";

impl State {
    /// Names of the loaded modules, as written by the kernel.
    ///
    /// # Errors
    /// If the kernel's list cannot be read. A missing list counts as empty.
    pub fn loaded_modules(&self) -> Result<&[String], StateError> {
        let read = || {
            let text = self.host.files.read_text(Utf8Path::new(kmod::MODULES))?;
            let loaded = kmod::parse_loaded(&text.unwrap_or_default()).into_iter();
            Ok(loaded.map(|module| module.name).collect())
        };
        let read = self.memo.loaded_modules.get_or_init(read);
        read.as_deref().map_err(Clone::clone)
    }

    /// The bootable kernels without this module. `modules.dep` lists all module files of a kernel, so one small file is read
    /// instead of the whole directory. An empty module file counts as missing, because a power loss truncates modules that were
    /// not synced.
    ///
    /// # Errors
    /// If an existing list cannot be read.
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

/// The flavor of the NVIDIA kernel modules, and where it was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FoundFlavor {
    /// The flavor of the modules.
    pub flavor: Flavor,
    /// `true` if the modules are loaded, `false` if they are on disk.
    pub loaded: bool,
}

impl State {
    /// The flavor of the loaded NVIDIA modules, or else of the modules on disk for the running kernel (with `--root`, the
    /// kernel of the next boot). `None` if there are no modules, or if no readable file contains the flavor.
    ///
    /// # Errors
    /// If an existing file cannot be read.
    pub async fn module_flavor(&self) -> Result<Option<FoundFlavor>, StateError> {
        if let Some(flavor) = self.loaded_flavor()? {
            let loaded = true;
            return Ok(Some(FoundFlavor { flavor, loaded }));
        }
        let kernel = &self.facts.kernel;
        let Some(kernel) = kernel.running.as_ref().or(kernel.next_boot.as_ref()) else {
            return Ok(None);
        };
        let flavor = self.flavor_on_disk(&*self.host.files, kernel).await?;
        Ok(flavor.map(|flavor| FoundFlavor {
            flavor,
            loaded: false,
        }))
    }

    async fn flavor_on_disk(
        &self,
        files: &dyn ReadFiles,
        kernel: &KernelVersion,
    ) -> Read<Option<Flavor>> {
        let directory = Utf8PathBuf::from(format!("/lib/modules/{kernel}"));
        let list = files.read_text(&directory.join("modules.dep"))?;
        let list = list.unwrap_or_default();
        let Some(module) = nvidia_module(&list) else {
            return Ok(None);
        };
        // The Debian file name contains the flavor.
        if module.contains("-open.ko") {
            return Ok(Some(Flavor::Open));
        }
        let path = directory.join(module);
        if module.ends_with(".ko") {
            let content = files.read(&path)?.unwrap_or_default();
            return Ok(modinfo(&content, "license").and_then(flavor_of_license));
        }
        match field(self.host.reader(), "license", path.as_str()).await {
            Ok(output) => Ok(flavor_of_license(&output.stdout)),
            // If no available program can decompress the module, its flavor is unknown, but this is not an error of the
            // machine.
            Err(
                ExecError::NotFound { .. }
                | ExecError::NotQueried { .. }
                | ExecError::Failed { .. },
            ) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

/// The version of the module that `modprobe` would load for a kernel. `None` if there is no such module, or if its version
/// cannot be read, which the reader records.
pub(super) async fn on_disk(
    reader: &mut FactReader<'_>,
    host: Reader<'_>,
    scope: Scope,
    kernel: Option<&KernelVersion>,
) -> Option<DriverVersion> {
    let Some(kernel) = kernel else {
        reader.unknown(FACT, "no kernel is known, so no modules were read");
        return None;
    };
    let directory = format!("/lib/modules/{kernel}");
    // `modprobe` reads `modules.dep` and ignores modules that are not listed there.
    let list = reader.text(FACT, &format!("{directory}/modules.dep"))?;
    let module = nvidia_module(&list)?;
    let path = format!("{directory}/{module}");
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
        reader.unknown(
            FACT,
            format!("`{path}` is compressed and was not decompressed"),
        );
        return None;
    }
    ask(reader, host, &path).await
}

/// Runs `modinfo`, which decompresses modules. With a path it reads only this file.
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

/// Whether DKMS has an entry of the module `nvidia`, for example from NVIDIA's installer.
pub(super) fn is_in_tree(reader: &mut FactReader<'_>, fact: &str) -> bool {
    reader.exists(fact, &format!("{TREE}/nvidia"))
}

/// The version that DKMS built for a kernel, from the directory name. If there are several versions for one kernel, the
/// installed version is unknown.
fn built_by_dkms(reader: &mut FactReader<'_>, kernel: &KernelVersion) -> Option<DriverVersion> {
    let mut versions = Vec::new();
    for name in reader.list(FACT, TREE) {
        if name != "nvidia" && !name.starts_with("nvidia-") {
            continue;
        }
        for version in reader.list(FACT, &format!("{TREE}/{name}")) {
            if let Ok(parsed) = version.parse::<DriverVersion>()
                && reader.exists(
                    FACT,
                    dkms::directory_of(&name, &version, &kernel.to_string()).as_str(),
                )
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

/// The path of the main module in `modules.dep`, such as `updates/dkms/nvidia.ko.zst: …`.
pub fn nvidia_module(list: &str) -> Option<&str> {
    list.lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(path, _)| path)
        .find(|path| kmod::is_nvidia_module(path.rsplit('/').next().unwrap_or(path)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::text::reads_any_text;
    use crate::{
        host::fake,
        steps::fixtures::{facts, state},
        tools::module_file,
    };

    #[test]
    fn main_module_is_found_in_modules_dep() {
        let list = "kernel/a.ko: \nupdates/dkms/nvidia-current-uvm.ko: updates/dkms/nvidia-current.ko\n\
                    updates/dkms/nvidia-current.ko:\n";
        assert_eq!(nvidia_module(list), Some("updates/dkms/nvidia-current.ko"));
    }

    #[tokio::test]
    async fn version_is_read_from_module_then_dkms_then_modinfo() {
        let (host, fakes) = fake::host();
        let kernel: KernelVersion = "6.8.0-49-generic".parse().unwrap();
        let directory = format!("/lib/modules/{kernel}");
        let dep = format!("{directory}/modules.dep");
        let get = async |executes| {
            let mut reader = FactReader::new(host.reader().files());
            let scope = Scope { executes };
            let version = on_disk(&mut reader, host.reader(), scope, Some(&kernel)).await;
            (version.map(|v| v.to_string()), reader.into_unknown().len())
        };
        assert_eq!(get(true).await, (None, 0));
        fakes.files.put(&dep, "updates/dkms/nvidia.ko:\n");
        fakes.files.put(
            &format!("{directory}/updates/dkms/nvidia.ko"),
            module_file::with_info(b"version=580.178.04\0"),
        );
        assert_eq!(get(false).await, (Some("580.178.04".to_owned()), 0));
        fakes.files.put(&dep, "updates/dkms/nvidia.ko.zst:\n");
        assert_eq!(get(false).await, (None, 1));
        fakes.exec.on("modinfo", |_, _| fake::ok("595.91.07\n"));
        assert_eq!(get(true).await, (Some("595.91.07".to_owned()), 0));
        fakes.files.put_directory(
            &format!("/var/lib/dkms/nvidia/580.173.02/{kernel}/x86_64"),
            0o755,
        );
        assert_eq!(get(false).await, (Some("580.173.02".to_owned()), 0));
    }

    #[tokio::test]
    async fn flavor_is_read_from_loaded_modules_then_disk() {
        let (host, fakes) = fake::host();
        let get = async || state(&host, facts()).module_flavor().await.unwrap();
        assert_eq!(get().await, None);
        let directory = "/lib/modules/6.1.0-44-amd64";
        let dep = format!("{directory}/modules.dep");
        let on_disk = |flavor| {
            Some(FoundFlavor {
                flavor,
                loaded: false,
            })
        };
        fakes.files.put(&dep, "updates/dkms/nvidia.ko:\n");
        let plain = format!("{directory}/updates/dkms/nvidia.ko");
        fakes
            .files
            .put(&plain, module_file::with_info(b"version=580.178.04\0"));
        assert_eq!(get().await, None);
        fakes
            .files
            .put(&plain, module_file::with_info(b"license=NVIDIA\0"));
        assert_eq!(get().await, on_disk(Flavor::Proprietary));
        fakes
            .files
            .put(&dep, "updates/dkms/nvidia-current-open.ko.xz:\n");
        assert_eq!(get().await, on_disk(Flavor::Open));
        fakes.files.put(&dep, "updates/dkms/nvidia.ko.zst:\n");
        assert_eq!(get().await, None);
        fakes.exec.on("modinfo", |_, _| fake::ok("Dual MIT/GPL\n"));
        assert_eq!(get().await, on_disk(Flavor::Open));
        let banner = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Release Build\n";
        fakes.files.put("/proc/driver/nvidia/version", banner);
        let loaded = FoundFlavor {
            flavor: Flavor::Proprietary,
            loaded: true,
        };
        assert_eq!(get().await, Some(loaded));
    }

    #[test]
    fn kernel_without_the_module_is_listed() {
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

    reads_any_text!("(nvidia|-|_|.ko|:|\n|/|.)*", |text| nvidia_module(&text));
}
