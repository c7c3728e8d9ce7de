//! Packages for apt, built by dpkg-deb.

use std::fmt::Write;
use std::path::Path;

use anyhow::Result;

use super::contents::Contents;
use crate::sh::Cmd;

/// Builds a package from its files into the directory `to`.
pub fn build(contents: &Contents<'_>, to: &Path) -> Result<()> {
    let readme = contents.fill("usr/share/doc/{{name}}/README.stand-in")?;
    contents.put(&readme, "644", "A fake of the gpu-bootstrap test bed.\n")?;
    control(contents)?;
    let (root, to) = (contents.root.to_string_lossy(), to.to_string_lossy());
    Cmd::new([
        "dpkg-deb",
        "--build",
        "--root-owner-group",
        "-Zgzip",
        "-z1",
        &root,
        &to,
    ])
    .ok()
    .map(drop)
}

fn control(contents: &Contents<'_>) -> Result<()> {
    let package = contents.package;
    let mut text = contents.fill("Package: {{name}}\nVersion: {{version}}\n")?;
    let architecture = if package.noarch { "all" } else { "amd64" };
    writeln!(
        text,
        "Architecture: {architecture}\nSection: misc\nPriority: optional"
    )?;
    writeln!(text, "Maintainer: Test bed <test-bed@example.invalid>")?;
    for (field, values) in package.relations() {
        if !values.is_empty() {
            writeln!(text, "{field}: {}", contents.fill(&values.join(", "))?)?;
        }
    }
    let real = match (
        package.from_debian.is_empty(),
        package.from_programs.is_empty(),
    ) {
        (true, true) => "nothing of its content",
        (false, _) => "Debian's binaries",
        (true, false) => "files that the bed adds",
    };
    writeln!(
        text,
        "Description: fake of the test bed\n The vendor's name, {real}."
    )?;
    contents.put("DEBIAN/control", "644", text)?;
    if !package.config.is_empty() {
        let lines: String = (package.config.iter())
            .map(|path| format!("/{path}\n"))
            .collect();
        contents.put("DEBIAN/conffiles", "644", lines)?;
    }
    for (name, body) in contents.scripts()? {
        let script = format!("#!/bin/sh\nset -e\n{body}");
        contents.put(&format!("DEBIAN/{name}"), "755", script)?;
    }
    // The code that dh_makeshlibs adds.
    if !package.libraries.is_empty() {
        contents.put("DEBIAN/triggers", "644", "activate-noawait ldconfig\n")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::repo::contents::tests::written;
    use crate::repo::table::Table;

    #[test]
    fn package_with_module_is_marked_as_fake() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packages.toml");
        let table = Table::load(&[path], None).unwrap();
        let dir = tempfile::tempdir().unwrap();
        control(&written(
            &table,
            "nvidia-kernel-open-dkms",
            "580.1-1",
            dir.path(),
        ))
        .unwrap();
        let read = |path: &str| fs::read_to_string(dir.path().join(path)).unwrap();
        assert!(read("DEBIAN/control").contains("Description: fake of the test bed"));
        assert!(read("DEBIAN/prerm").contains("dkms remove -m 'nvidia' -v '580.1' --all"));
        let source = read("usr/src/nvidia-580.1/nvidia.c");
        assert!(
            source.contains("MODULE_LICENSE(\"Dual MIT/GPL\")"),
            "{source}"
        );
        assert!(source.contains("\"580.1\""), "{source}");
        assert!(read("usr/src/nvidia-580.1/dkms.conf").contains("BUILT_MODULE_NAME[0]=\"nvidia\""));
    }
}
