//! NVIDIA's container toolkit, compiled from its Go module and packaged with its own packaging files under NVIDIA's
//! names. libnvidia-container is written in C and not available as a module, so the packages of that name are marked as
//! fakes.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::bed::Bed;
use crate::golang;
use crate::sh::Cmd;
use crate::tables::Toolkit;

const COMMANDS: [&str; 4] = [
    "nvidia-ctk",
    "nvidia-container-runtime",
    "nvidia-container-runtime-hook",
    "nvidia-cdi-hook",
];

/// A part of the recipe, because a change of this file may change the result.
const SOURCE: &str = include_str!("toolkit.rs");

/// Builds the directory with the toolkit's packages.
pub fn build(bed: &Bed, spec: &Toolkit) -> Result<PathBuf> {
    let go = golang::version()?;
    bed.cached("toolkit", &format!("{spec:?} {go} {SOURCE}"), None, |dir| {
        let module = download(&spec.module, &spec.version)?;
        let source = dir.join("work/source");
        fs::create_dir_all(&source).context("cannot create a directory")?;
        compile(spec, &source)?;
        pack(spec, &module, &source)?;
        fakes(spec, &dir.join("work"))?;
        let packages = dir.join("packages");
        fs::create_dir_all(&packages).context("cannot create a directory")?;
        for entry in fs::read_dir(dir.join("work")).context("cannot read the work directory")? {
            let path = entry.context("cannot read the work directory")?.path();
            if path.extension().is_some_and(|extension| extension == "deb") {
                let name = path.file_name().unwrap_or_default();
                fs::rename(&path, packages.join(name)).context("cannot keep a package")?;
            }
        }
        crate::bed::remove_tree(&dir.join("work"))
    })
    .map(|dir| dir.join("packages"))
}

/// The source directory of a module, downloaded by Go, which verifies it with Go's public checksum database.
pub fn download(module: &str, version: &str) -> Result<PathBuf> {
    let module = format!("{module}@v{version}");
    let done = Cmd::new(["go", "mod", "download", "-json", &module])
        .cwd(Path::new("/"))
        .deadline(Duration::from_secs(300))
        .ok()?;
    let answer: serde_json::Value =
        serde_json::from_str(&done.stdout).context("invalid output of go")?;
    let dir = answer["Dir"]
        .as_str()
        .context("the output of go contains no module directory")?;
    Ok(PathBuf::from(dir))
}

fn compile(spec: &Toolkit, to: &Path) -> Result<()> {
    let version = format!("-X {}/internal/info.version={}", spec.module, spec.version);
    let mut argv = vec![
        "go".to_string(),
        "install".into(),
        "-ldflags".into(),
        format!("-s -w {version}"),
    ];
    argv.extend(
        COMMANDS
            .iter()
            .map(|name| format!("{}/cmd/{name}@v{}", spec.module, spec.version)),
    );
    Cmd::new(argv)
        .env("GOBIN", to.to_string_lossy())
        // NVML's header marks functions as deprecated, but the bindings use all of them.
        .env("CGO_CFLAGS", "-O2 -Wno-deprecated-declarations")
        .cwd(Path::new("/"))
        .deadline(Duration::from_secs(900))
        .ok()
        .context("cannot compile the container toolkit")?;
    Ok(())
}

/// Does the same as NVIDIA's `docker/Dockerfile.debian`: its `debian` directory, its units and rules next to the
/// binaries, a changelog entry, dpkg-buildpackage.
fn pack(spec: &Toolkit, module: &Path, source: &Path) -> Result<()> {
    let version = format!("{}-{}", spec.version, spec.revision);
    let script = r#"set -eu
cp -r "$MODULE/packaging/debian" debian
cp "$MODULE"/deployments/systemd/* "$MODULE"/deployments/udev/* .
chmod -R u+w .
sed -i '/^Package: nvidia-container-toolkit-operator-extensions/,$d' debian/control
rm debian/nvidia-container-toolkit-operator-extensions.install
# The upstream rules set mode 644 on the package's own root directory, by an expansion that names
# two packages at once. This corrects the mode.
printf '\tchmod 755 debian/nvidia-container-toolkit\n' >>debian/rules
cat >debian/changelog <<END
nvidia-container-toolkit ($VERSION) bookworm; urgency=medium

  * Built from the Go module by the test bed.

 -- Test bed <test-bed@example.invalid>  Thu, 01 Jan 2026 00:00:00 +0000
END
sh debian/prepare 2>/dev/null || bash debian/prepare
dpkg-buildpackage -b -us -uc -d
"#;
    Cmd::new(["/bin/bash", "-c", script])
        .cwd(source)
        .env("MODULE", module.to_string_lossy())
        .env("VERSION", version)
        .env("SECTION", "")
        .env("DISTRIB", "bookworm")
        // Packed once, unpacked in most cases: 22 s and 0.8 s of CPU time with xz, 0.3 s and 0.1 s with zstd.
        .env("DPKG_DEB_COMPRESSOR_TYPE", "zstd")
        .ok()
        .context("cannot pack the container toolkit")?;
    Ok(())
}

fn fakes(spec: &Toolkit, work: &Path) -> Result<()> {
    let version = format!("{}-{}", spec.version, spec.revision);
    fake(work, "libnvidia-container1", &version, "")?;
    let depends = format!("Depends: libnvidia-container1 (>= {version})\n");
    let dir = work.join("libnvidia-container-tools");
    let program = dir.join("usr/bin/nvidia-container-cli");
    fs::create_dir_all(dir.join("usr/bin")).context("cannot create a directory")?;
    fs::write(
        &program,
        "#!/bin/sh\necho \"nvidia-container-cli: a fake of the test bed, only CDI works here\" >&2\nexit 1\n",
    )
    .context("cannot write a fake package")?;
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755))
        .context("cannot set a mode")?;
    fake(work, "libnvidia-container-tools", &version, &depends)
}

fn fake(work: &Path, name: &str, version: &str, depends: &str) -> Result<()> {
    let dir = work.join(name);
    let doc = dir.join("usr/share/doc").join(name);
    for directory in [&doc, &dir.join("DEBIAN")] {
        fs::create_dir_all(directory).context("cannot create a directory")?;
    }
    fs::write(
        doc.join("README.stand-in"),
        "An empty fake of the gpu-bootstrap test bed.\n",
    )
    .context("cannot write a fake package")?;
    let control = format!(
        "Package: {name}\nVersion: {version}\nArchitecture: amd64\nSection: libs\nPriority: optional\n\
         Maintainer: Test bed <test-bed@example.invalid>\n{depends}\
         Description: fake of the gpu-bootstrap test bed\n \
         libnvidia-container has no Go module, and machines under test use CDI, which needs none of it.\n"
    );
    fs::write(dir.join("DEBIAN/control"), control).context("cannot write a control file")?;
    let path = dir.to_string_lossy().into_owned();
    Cmd::new([
        "dpkg-deb",
        "--build",
        "--root-owner-group",
        &path,
        &work.to_string_lossy(),
    ])
    .ok()?;
    Ok(())
}
