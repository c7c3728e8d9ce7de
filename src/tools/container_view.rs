//! The GPU devices and driver libraries that are visible in a container, and the result of a computation on its GPUs. The
//! gpu-bootstrap binary runs in the container and prints them; the container probe parses the output.

use serde::{Deserialize, Serialize};

use super::probe::ProbeDocument;
use crate::host::{FilesError, ReadFiles};

/// The directories into which the container toolkit mounts driver libraries, for each distribution and architecture of the
/// host. The toolkit keeps the host paths.
const LIBRARY_FOLDERS: [&str; 7] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
    "/usr/lib/aarch64-linux-gnu/nvidia/current",
];

/// The libraries that CUDA programs and monitoring open.
pub const LIBRARIES: [&str; 2] = ["libcuda.so", "libnvidia-ml.so"];

/// The view from inside the container.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ContainerView {
    /// Names in `/dev` that start with `nvidia`.
    pub devices: Vec<String>,
    /// Paths of the driver libraries.
    pub libraries: Vec<String>,
    /// The result of the GPU probe in the container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probe: Option<ProbeDocument>,
}

impl ContainerView {
    /// The number of GPU device nodes (`nvidia0`, `nvidia1`, …).
    pub fn gpus(&self) -> usize {
        self.devices
            .iter()
            .filter_map(|name| name.strip_prefix("nvidia"))
            .filter(|rest| rest.parse::<u32>().is_ok())
            .count()
    }

    /// Whether this library is present in this version.
    pub fn has_library(&self, name: &str, version: &str) -> bool {
        let file = format!("{name}.{version}");
        self.libraries
            .iter()
            .any(|path| path.rsplit('/').next() == Some(&file))
    }
}

/// Lists the devices and libraries that are visible to this process.
///
/// # Errors
/// If an existing directory cannot be read.
pub fn look(files: &dyn ReadFiles) -> Result<ContainerView, FilesError> {
    let devices = files
        .list("/dev".into())?
        .into_iter()
        .filter(|name| name.starts_with("nvidia"))
        .collect();
    let mut libraries = Vec::new();
    for directory in LIBRARY_FOLDERS {
        for name in files.list(directory.into())? {
            if LIBRARIES.iter().any(|library| name.starts_with(library)) {
                libraries.push(format!("{directory}/{name}"));
            }
        }
    }
    Ok(ContainerView {
        devices,
        libraries,
        probe: None,
    })
}

/// A file that a process has mapped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapped {
    /// The path at the time of the mapping.
    pub path: String,
    /// Whether the path is now missing or is a different file.
    pub replaced: bool,
    /// The kernel's symlink to the mapped file, which is valid even if the path was replaced, `proc_pid_map_files(5)`.
    pub link: String,
}

/// The shared objects that this process has mapped, parsed from `proc_pid_maps(5)`: all files that are required to run the
/// program in an empty root filesystem. The first is the program itself.
pub fn mapped_objects(maps: &str) -> Vec<Mapped> {
    let mut found: Vec<Mapped> = Vec::new();
    for line in maps.lines() {
        let Some(at) = line.find('/') else { continue };
        let (path, replaced) = match line[at..].strip_suffix(" (deleted)") {
            Some(path) => (path, true),
            None => (&line[at..], false),
        };
        let is_object = path.contains(".so") || found.is_empty();
        if is_object
            && !found.iter().any(|known| known.path == path)
            && let Some(link) = line.split(' ').next().and_then(link)
        {
            found.push(Mapped {
                path: path.to_owned(),
                replaced,
                link,
            });
        }
    }
    found
}

/// The symlink of an address range. Its name has no leading zeros, but the ranges in `maps` may have them.
fn link(range: &str) -> Option<String> {
    let (from, to) = range.split_once('-')?;
    let address = |text: &str| u64::from_str_radix(text, 16).ok();
    Some(format!(
        "/proc/self/map_files/{:x}-{:x}",
        address(from)?,
        address(to)?
    ))
}

#[cfg(test)]
mod tests {
    use super::{ContainerView, Mapped, look, mapped_objects};
    use crate::host::fake;
    use crate::model::text::reads_any_text;

    #[test]
    fn devices_and_libraries_are_found() {
        let (host, fakes) = fake::host();
        fakes.files.put_device("/dev/nvidia0", 195, 0);
        fakes.files.put_device("/dev/nvidiactl", 195, 255);
        fakes
            .files
            .put("/usr/lib/x86_64-linux-gnu/libcuda.so.535.261.03", "");
        fakes.files.put("/usr/lib/x86_64-linux-gnu/libc.so.6", "");
        let view = look(&*host.files).expect("a view");
        assert_eq!(view.gpus(), 1);
        assert!(view.has_library("libcuda.so", "535.261.03"));
        assert!(!view.has_library("libcuda.so", "535.261"));
        assert!(!view.has_library("libnvidia-ml.so", "535.261.03"));
        assert_eq!(ContainerView::default().gpus(), 0);
    }

    #[test]
    fn mapped_objects_are_the_program_and_its_libraries() {
        let maps = "55d0-55d1 r--p 00000000 fe:01 7 /usr/local/bin/gpu-bootstrap\n\
                    55d1-55d2 r-xp 00001000 fe:01 7 /usr/local/bin/gpu-bootstrap\n\
                    55d9-55da rw-p 00000000 00:00 0 [heap]\n\
                    7f00-7f01 r--p 00000000 fe:01 9 /usr/lib/x86_64-linux-gnu/libc.so.6\n\
                    7f02-7f03 r--p 00000000 fe:01 9 /usr/lib/locale/C.utf8/LC_CTYPE\n\
                    7f04-7f05 r--p 00000000 fe:01 9 /usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2\n";
        let paths: Vec<String> = (mapped_objects(maps).into_iter())
            .map(|object| object.path)
            .collect();
        assert_eq!(
            paths,
            [
                "/usr/local/bin/gpu-bootstrap",
                "/usr/lib/x86_64-linux-gnu/libc.so.6",
                "/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2"
            ]
        );
    }

    #[test]
    fn replaced_object_has_the_link_to_its_content() {
        let maps = "00400000-00452000 r--p 00000000 fe:01 7 /opt/gpu-bootstrap (deleted)\n\
                    7f00-7f01 r--p 00000000 fe:01 9 /usr/lib/libc.so.6 (deleted)\n\
                    7f01-7f02 r--p 00001000 fe:01 9 /usr/lib/libc.so.6 (deleted)\n";
        let object = |path: &str, link: &str| Mapped {
            path: path.to_owned(),
            replaced: true,
            link: link.to_owned(),
        };
        assert_eq!(
            mapped_objects(maps),
            [
                object("/opt/gpu-bootstrap", "/proc/self/map_files/400000-452000"),
                object("/usr/lib/libc.so.6", "/proc/self/map_files/7f00-7f01"),
            ]
        );
    }

    reads_any_text!(
        "([0-9a-f]*-[0-9a-f]* )?(/|.so| \\(deleted\\)|\n|.)*",
        |text| mapped_objects(&text)
    );
}
