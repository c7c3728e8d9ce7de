//! Prepares the root filesystem of the probe container: the gpu-bootstrap binary and its libraries.

use camino::{Utf8Path, Utf8PathBuf};

use crate::{
    change::ChangeError,
    error::one_line,
    host::{FilesError, Host},
    tools::container_view::{self, Mapped},
};

/// The path of the binary in the container.
const PROGRAM: &str = "/gpu-bootstrap";
/// The directory of its libraries in the container. The name is unique, so that it hides no directory of the image, and the
/// container toolkit mounts no driver libraries there.
const LIBRARY_DIRECTORY: &str = "/gpu-bootstrap-lib";
/// Parts of glibc that the driver libraries are linked with, but gpu-bootstrap may not be. The last three are empty in newer
/// versions, but must still exist.
const OF_LIBC: [&str; 4] = ["libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1"];
const LIBC: &str = "libc.so.6";
/// The hidden subcommand that prints the visible devices and libraries.
const SUBCOMMAND: &str = "container-probe";

/// A root filesystem with the running binary and the libraries that it has loaded, even if an upgrade has replaced these files
/// since it started.
pub(super) struct Root {
    pub(super) directory: Utf8PathBuf,
    /// Path of the dynamic loader in the container. `None` for a static binary.
    loader: Option<String>,
}

impl Root {
    /// Copies the binary and its libraries to `probe/rootfs` in the state directory.
    ///
    /// # Errors
    /// If a file cannot be read or written, or the libraries cannot be determined.
    pub(super) fn prepare(host: &Host, state: &Utf8Path) -> Result<Self, ChangeError> {
        let maps = host
            .files
            .read_text("/proc/self/maps".into())
            .map_err(unprepared)?
            .ok_or_else(|| unknown("`/proc/self/maps` is missing"))?;
        let objects = container_view::mapped_objects(&maps);
        let [_, libraries @ ..] = &objects[..] else {
            return Err(unknown("`/proc/self/maps` contains no program"));
        };
        // `check --validate` may be the first command that writes to the state directory.
        (host.files.create_directory(state, 0o700)).map_err(unprepared)?;
        let directory = state.join("probe").join("rootfs");
        // The hooks of the container toolkit write `/etc/ld.so.cache`.
        for place in ["dev", "proc", "sys", "etc", "tmp", "usr/lib"] {
            (host.files.create_directory(&directory.join(place), 0o755)).map_err(unprepared)?;
        }
        let program = host
            .files
            .read("/proc/self/exe".into())
            .map_err(unprepared)?
            .ok_or_else(|| unknown("`/proc/self/exe` is missing"))?;
        host.files
            .write(&directory.join(&PROGRAM[1..]), &program, 0o755)
            .map_err(unprepared)?;
        let mut loader = None;
        for library in libraries {
            let Some(name) = Utf8Path::new(&library.path).file_name() else {
                continue;
            };
            let place = directory.join(&LIBRARY_DIRECTORY[1..]).join(name);
            (host.files.write(&place, &content(host, library)?, 0o755)).map_err(unprepared)?;
            if name.starts_with("ld-") {
                loader = Some(format!("{LIBRARY_DIRECTORY}/{name}"));
            }
        }
        for (name, path) in beside_libc(libraries) {
            if let Some(content) = host.files.read(&path).map_err(unprepared)? {
                let place = directory.join(&LIBRARY_DIRECTORY[1..]).join(name);
                (host.files.write(&place, &content, 0o755)).map_err(unprepared)?;
            }
        }
        if loader.is_none() && !libraries.is_empty() {
            return Err(unknown("no dynamic loader is mapped"));
        }
        Ok(Self { directory, loader })
    }

    /// The command line of the probe in the container.
    pub(super) fn command(&self) -> Vec<&str> {
        match &self.loader {
            Some(loader) => vec![
                loader,
                "--library-path",
                LIBRARY_DIRECTORY,
                PROGRAM,
                SUBCOMMAND,
            ],
            None => vec![PROGRAM, SUBCOMMAND],
        }
    }

    /// The mounts that add the probe to a container with a configured image: host path and container path.
    pub(super) fn mounts(&self) -> Vec<(Utf8PathBuf, &'static str)> {
        let libraries = self.loader.iter().map(|_| LIBRARY_DIRECTORY);
        ([PROGRAM].into_iter().chain(libraries))
            .map(|place| (self.directory.join(&place[1..]), place))
            .collect()
    }
}

/// Returns the parts of glibc that are not mapped, with their expected paths in the directory of `libc.so.6`.
fn beside_libc(libraries: &[Mapped]) -> Vec<(&'static str, Utf8PathBuf)> {
    let paths: Vec<&Utf8Path> = libraries
        .iter()
        .map(|one| Utf8Path::new(&one.path))
        .collect();
    let libc = paths.iter().find(|path| path.file_name() == Some(LIBC));
    let directory = libc.and_then(|path| path.parent());
    (OF_LIBC.into_iter())
        .filter(|name| !paths.iter().any(|path| path.file_name() == Some(*name)))
        .filter_map(|name| Some((name, directory?.join(name))))
        .collect()
}

const NOT_PREPARED: &str = "validation-not-prepared";

fn unprepared(error: FilesError) -> ChangeError {
    let hint = match error.disk() {
        Some(_) => error.hint(),
        None => Some(
            "check the permissions and the filesystem of this path, then run the command again"
                .to_owned(),
        ),
    };
    ChangeError {
        hint,
        ..ChangeError::new(
            error.reason().unwrap_or(NOT_PREPARED),
            "prepare the container",
        )
        .caused_by(error)
    }
}

fn unknown(why: &str) -> ChangeError {
    let what = format!("find the libraries of gpu-bootstrap: {why}");
    ChangeError::new(NOT_PREPARED, what)
        .advice("check that `/proc` is mounted, then run the command again")
}

/// Returns the content of a library as this process has mapped it.
fn content(host: &Host, library: &Mapped) -> Result<Vec<u8>, ChangeError> {
    let Mapped {
        path,
        replaced,
        link,
    } = library;
    if !replaced {
        return (host.files.read(Utf8Path::new(path)).map_err(unprepared)?)
            .ok_or_else(|| unknown(&format!("`{path}` is missing")));
    }
    let why = match host.files.read(Utf8Path::new(link)) {
        Ok(Some(content)) => return Ok(content),
        Ok(None) => "the link is missing".to_owned(),
        Err(error) => one_line(&error),
    };
    let what = format!("read `{link}`, the running copy of the replaced file `{path}`: {why}");
    Err(ChangeError::new(NOT_PREPARED, what)
        .advice("run `gpu-bootstrap install` again: a new process uses the new library"))
}

#[cfg(test)]
mod tests {
    use super::Root;
    use crate::host::fake;

    #[test]
    fn replaced_libraries_are_copied_as_mapped() {
        let (host, fakes) = fake::host();
        fakes.files.put(
            "/proc/self/maps",
            "1-2 r--p 0 fe:01 7 /usr/bin/gpu-bootstrap (deleted)\n\
             3-4 r--p 0 fe:01 9 /usr/lib/ld-linux-x86-64.so.2 (deleted)\n\
             5-6 r--p 0 fe:01 9 /usr/lib/libc.so.6 (deleted)\n",
        );
        fakes.files.put("/proc/self/exe", "program");
        fakes.files.put("/usr/lib/ld-linux-x86-64.so.2", "new");
        let prepare = || Root::prepare(&host, "/state".into());
        let Err(error) = prepare() else {
            panic!("the running copies cannot be read");
        };
        assert!(error.to_string().contains("the replaced file"), "{error}");
        fakes.files.put("/proc/self/map_files/3-4", "running");
        fakes.files.put("/proc/self/map_files/5-6", "running");
        let root = prepare().expect("a root filesystem");
        for library in ["ld-linux-x86-64.so.2", "libc.so.6"] {
            let packed = root.directory.join("gpu-bootstrap-lib").join(library);
            let content = host.files.read_text(&packed);
            assert_eq!(content.expect("readable").as_deref(), Some("running"));
        }
    }

    #[test]
    fn unmapped_glibc_parts_are_copied() {
        let (host, fakes) = fake::host();
        fakes.files.put(
            "/proc/self/maps",
            "1-2 r--p 0 fe:01 7 /usr/bin/gpu-bootstrap\n\
             3-4 r--p 0 fe:01 9 /lib64/ld-linux-x86-64.so.2\n\
             5-6 r--p 0 fe:01 9 /usr/lib64/libc.so.6\n\
             7-8 r--p 0 fe:01 9 /usr/lib64/libm.so.6\n",
        );
        fakes.files.put("/proc/self/exe", "program");
        fakes.files.put("/lib64/ld-linux-x86-64.so.2", "loader");
        for name in ["libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0"] {
            fakes.files.put(&format!("/usr/lib64/{name}"), name);
        }
        let root = Root::prepare(&host, "/state".into()).expect("a root filesystem");
        let mut packed = (host.files)
            .list(&root.directory.join("gpu-bootstrap-lib"))
            .expect("a directory");
        packed.sort();
        let all = "ld-linux-x86-64.so.2 libc.so.6 libdl.so.2 libm.so.6 libpthread.so.0";
        assert_eq!(packed.join(" "), all);
    }
}
