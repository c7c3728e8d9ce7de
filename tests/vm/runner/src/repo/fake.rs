//! Fake packages, built from the table by dpkg-deb.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::table::{Dkms, File, Modules, Package, upstream};
use crate::cases::fill;
use crate::sh::Cmd;

/// The code that debhelper adds for a unit: it is enabled, started, stopped and removed.
const UNIT_POSTINST: &str = r#"
if [ "$1" = configure ] || [ "$1" = abort-upgrade ] || [ "$1" = abort-deconfigure ] || [ "$1" = abort-remove ]; then
    deb-systemd-helper unmask '{{unit}}' >/dev/null || true
    if deb-systemd-helper --quiet was-enabled '{{unit}}'; then
        deb-systemd-helper enable '{{unit}}' >/dev/null || true
    else
        deb-systemd-helper update-state '{{unit}}' >/dev/null || true
    fi
    if [ -d /run/systemd/system ]; then
        systemctl --system daemon-reload >/dev/null || true
        deb-systemd-invoke start '{{unit}}' >/dev/null || true
    fi
fi
"#;
const UNIT_PRERM: &str = r#"
if [ -d /run/systemd/system ] && [ "$1" = remove ]; then
    deb-systemd-invoke stop '{{unit}}' >/dev/null || true
fi
"#;
const UNIT_POSTRM: &str = r#"
if [ -d /run/systemd/system ]; then
    systemctl --system daemon-reload >/dev/null || true
fi
if [ "$1" = purge ] && [ -x /usr/bin/deb-systemd-helper ]; then
    deb-systemd-helper purge '{{unit}}' >/dev/null || true
    deb-systemd-helper unmask '{{unit}}' >/dev/null || true
fi
"#;

/// The code that dh_dkms adds.
const DKMS_POSTINST: &str = r#"
if [ "$1" = configure ]; then
    /usr/lib/dkms/common.postinst '{{dkms}}' '{{upstream}}' '/usr/share/{{name}}' '' "$2"
fi
"#;
const DKMS_PRERM: &str = r#"
case "$1" in
remove | upgrade | deconfigure)
    if [ "$(dkms status -m '{{dkms}}' -v '{{upstream}}')" ]; then
        dkms remove -m '{{dkms}}' -v '{{upstream}}' --all
    fi
    ;;
esac
"#;

/// A module that can be compiled, inspected and loaded, but does nothing.
const MODULE: &str = r#"#include <linux/module.h>

static int __init stand_in_init(void)
{
	pr_info("{{module}}: a fake of the gpu-bootstrap test bed\n");
	return 0;
}

static void __exit stand_in_exit(void)
{
}

module_init(stand_in_init);
module_exit(stand_in_exit);
MODULE_LICENSE("{{licence}}");
MODULE_VERSION("{{upstream}}");
MODULE_DESCRIPTION("fake of the gpu-bootstrap test bed");
"#;

/// The trailer of a signed module (Linux, `include/linux/module_signature.h`). Before it is the description of a
/// signature, here of an empty one.
const SIGNED: &[u8] = b"~Module signature appended~\n";

/// Sources of fake packages in addition to their table entry.
pub struct Source<'a> {
    /// Binary public keys, by repository.
    pub keys: &'a BTreeMap<String, PathBuf>,
    /// Unpacked Debian packages.
    pub debian: &'a Path,
    /// Programs that the harness has compiled, if any.
    pub programs: Option<&'a Path>,
    /// URLs of repositories, for templates.
    pub values: &'a BTreeMap<String, String>,
}

/// Builds one version of a package into the directory `to`; `work` is an empty directory for it.
pub fn build(
    package: &Package,
    version: &str,
    source: &Source<'_>,
    work: &Path,
    to: &Path,
) -> Result<()> {
    let mut values: BTreeMap<&str, String> = source
        .values
        .iter()
        .map(|(key, value)| (key.as_str(), value.clone()))
        .collect();
    let upstream = upstream(version);
    let branch = upstream.split('.').next().unwrap_or_default();
    values.insert("version", version.into());
    values.insert("upstream", upstream.into());
    values.insert("branch", branch.into());
    for (key, value) in &package.values {
        values.insert(key, value.clone());
    }
    let name = fill(&package.name, &values)?;
    values.insert("name", name.clone());
    let tree = Tree {
        root: work,
        values: &values,
        libraries: "usr/lib/x86_64-linux-gnu",
        modules: "/updates/dkms",
    };
    tree.files(&package.files, &package.from_debian, source)?;
    for (path, name) in &package.from_programs {
        let programs = source.programs.context("the programs are not compiled")?;
        let real = programs.join(name);
        fs::copy(&real, tree.place(path)?)
            .with_context(|| format!("cannot copy {}", real.display()))?;
    }
    for library in &package.libraries {
        tree.library(library, upstream)?;
    }
    if let Some(dkms) = &package.dkms {
        tree.dkms(dkms)?;
    }
    if let Some(modules) = &package.modules {
        tree.modules(modules)?;
    }
    for (path, target) in &package.links {
        std::os::unix::fs::symlink(tree.fill(target)?, tree.place(&tree.fill(path)?)?)
            .context("cannot make a link")?;
    }
    tree.put(
        &format!("usr/share/doc/{name}/README.stand-in"),
        "644",
        "A fake of the gpu-bootstrap test bed.\n",
    )?;
    tree.control(package)?;
    Cmd::new([
        "dpkg-deb",
        "--build",
        "--root-owner-group",
        "-Zgzip",
        "-z1",
        &work.to_string_lossy(),
        &to.to_string_lossy(),
    ])
    .ok()?;
    Ok(())
}

/// The file tree of a package that is being built.
pub(super) struct Tree<'a> {
    pub root: &'a Path,
    pub values: &'a BTreeMap<&'a str, String>,
    /// The directory of libraries.
    pub libraries: &'a str,
    /// The directory of DKMS modules, below the kernel's directory.
    pub modules: &'a str,
}

impl Tree<'_> {
    pub(super) fn fill(&self, text: &str) -> Result<String> {
        fill(text, self.values)
    }

    /// The same with additional values.
    pub(super) fn fill_with(&self, text: &str, more: &[(&'static str, &str)]) -> Result<String> {
        let mut values = self.values.clone();
        for (key, value) in more {
            values.insert(key, (*value).into());
        }
        fill(text, &values)
    }

    pub(super) fn place(&self, path: &str) -> Result<PathBuf> {
        let path = self.root.join(path);
        if let Some(dir) = path.parent() {
            fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
        }
        Ok(path)
    }

    pub(super) fn put(&self, path: &str, mode: &str, text: &str) -> Result<()> {
        let at = self.place(path)?;
        fs::write(&at, text).with_context(|| format!("cannot write {}", at.display()))?;
        self.mode(&at, mode)
    }

    fn mode(&self, at: &Path, mode: &str) -> Result<()> {
        let mode =
            u32::from_str_radix(mode, 8).with_context(|| format!("`{mode}` is not a mode"))?;
        fs::set_permissions(at, fs::Permissions::from_mode(mode)).context("cannot set a mode")
    }

    pub(super) fn files(
        &self,
        files: &BTreeMap<String, File>,
        from_debian: &BTreeMap<String, String>,
        source: &Source<'_>,
    ) -> Result<()> {
        for (path, file) in files {
            let path = self.fill(path)?;
            if let Some(text) = &file.text {
                self.put(&path, &file.mode, self.fill(text)?.trim_start())?;
            }
            if let Some(name) = &file.key_of {
                let key = source
                    .keys
                    .get(name)
                    .with_context(|| format!("no key of `{name}`"))?;
                let at = self.place(&path)?;
                fs::copy(key, &at).context("cannot copy a key")?;
                self.mode(&at, &file.mode)?;
            }
        }
        for (path, real) in from_debian {
            let real = source.debian.join(real);
            fs::copy(&real, self.place(path)?)
                .with_context(|| format!("cannot copy {}", real.display()))?;
        }
        Ok(())
    }

    /// An empty shared object that the loader and ldconfig accept.
    pub(super) fn library(&self, soname: &str, upstream: &str) -> Result<()> {
        let stem = soname.split_once(".so").map_or(soname, |(stem, _)| stem);
        let name = format!("{stem}.so.{upstream}");
        let at = self.place(&format!("{}/{name}", self.libraries))?;
        Cmd::new([
            "gcc".to_string(),
            "-shared".into(),
            "-nostdlib".into(),
            format!("-Wl,-soname,{soname}"),
            "-o".into(),
            at.to_string_lossy().into_owned(),
            "-x".into(),
            "c".into(),
            "/dev/null".into(),
        ])
        .ok()
        .context("cannot link an empty library")?;
        std::os::unix::fs::symlink(&name, at.with_file_name(soname))
            .context("cannot link a library")
    }

    pub(super) fn dkms(&self, dkms: &Dkms) -> Result<()> {
        let source = self.fill_with("usr/src/{{dkms}}-{{upstream}}", &[("dkms", &dkms.name)])?;
        let mut conf = self.fill(&format!(
            "PACKAGE_NAME=\"{}\"\nPACKAGE_VERSION=\"{{{{upstream}}}}\"\nAUTOINSTALL=\"yes\"\n\
             build=$dkms_tree/$PACKAGE_NAME/$PACKAGE_VERSION/build\n\
             MAKE=\"make -C $kernel_source_dir M=$build modules\"\n\
             CLEAN=\"make -C $kernel_source_dir M=$build clean\"\n",
            dkms.name
        ))?;
        let mut makefile = String::new();
        for (index, module) in dkms.modules.iter().enumerate() {
            writeln!(conf, "BUILT_MODULE_NAME[{index}]=\"{module}\"")?;
            writeln!(conf, "DEST_MODULE_LOCATION[{index}]=\"{}\"", self.modules)?;
            writeln!(makefile, "obj-m += {module}.o")?;
            let text = self.fill_with(MODULE, &[("module", module), ("licence", &dkms.licence)])?;
            self.put(&format!("{source}/{module}.c"), "644", &text)?;
        }
        self.put(&format!("{source}/dkms.conf"), "644", &conf)?;
        self.put(&format!("{source}/Makefile"), "644", &makefile)
    }

    /// Object files that `depmod` and `modinfo` read as modules. All but the first depend on the first.
    pub(super) fn modules(&self, modules: &Modules) -> Result<()> {
        let (at, licence) = (self.fill(&modules.at)?, self.fill(&modules.licence)?);
        let version = self.fill(&modules.version)?;
        for (index, name) in modules.names.iter().enumerate() {
            let first = modules.names[0].replace('-', "_");
            let symbol = format!("stand_in_of_{first}");
            let uses = match index {
                0 => format!(
                    "char {symbol};\n\
                     char exports[] __attribute__((section(\"__ksymtab_strings\"))) = \"{symbol}\";\n"
                ),
                _ => format!("extern char {symbol};\nchar *uses = &{symbol};\n"),
            };
            let text = format!(
                "{uses}char information[] __attribute__((section(\".modinfo\"))) = \
                 \"license={licence}\\0version={version}\\0name={}\\0\
                 description=fake of the gpu-bootstrap test bed\";\n",
                name.replace('-', "_")
            );
            let file = self.place(&format!("{at}/{name}.ko"))?;
            let path = file.to_string_lossy().into_owned();
            Cmd::new(["gcc", "-c", "-o", &path, "-x", "c", "-"])
                .stdin(text)
                .ok()
                .context("cannot compile a module")?;
            let mut bytes = fs::read(&file).context("cannot read a module")?;
            bytes.extend_from_slice(&[0; 12]);
            bytes.extend_from_slice(SIGNED);
            fs::write(&file, bytes).context("cannot write a module")?;
        }
        Ok(())
    }

    fn control(&self, package: &Package) -> Result<()> {
        let mut text = self.fill("Package: {{name}}\nVersion: {{version}}\n")?;
        writeln!(text, "Architecture: {}", package.architecture)?;
        text.push_str(
            "Section: misc\nPriority: optional\nMaintainer: Test bed <test-bed@example.invalid>\n",
        );
        for (field, values) in [
            ("Pre-Depends", &package.pre_depends),
            ("Depends", &package.depends),
            ("Recommends", &package.recommends),
            ("Provides", &package.provides),
            ("Conflicts", &package.conflicts),
            ("Breaks", &package.breaks),
            ("Replaces", &package.replaces),
        ] {
            if !values.is_empty() {
                writeln!(text, "{field}: {}", self.fill(&values.join(", "))?)?;
            }
        }
        text.push_str(match (package.from_debian.is_empty(), package.from_programs.is_empty()) {
            (true, true) => "Description: fake of the test bed\n The vendor's name, nothing of its content.\n",
            (false, _) => "Description: fake of the test bed\n The vendor's name, Debian's binaries.\n",
            (true, false) => "Description: fake of the test bed\n The vendor's name, its programs compiled by the bed.\n",
        });
        self.put("DEBIAN/control", "644", &text)?;
        if !package.conffiles.is_empty() {
            let list = format!("{}\n", package.conffiles.join("\n"));
            self.put("DEBIAN/conffiles", "644", &list)?;
        }
        self.scripts(package)
    }

    fn scripts(&self, package: &Package) -> Result<()> {
        let mut postinst = self.fill(&package.scripts.postinst)?;
        let (mut prerm, mut postrm) = (String::new(), self.fill(&package.scripts.postrm)?);
        if let Some(dkms) = &package.dkms {
            let more = [("dkms", dkms.name.as_str())];
            postinst.push_str(&self.fill_with(DKMS_POSTINST, &more)?);
            prerm.push_str(&self.fill_with(DKMS_PRERM, &more)?);
        }
        for unit in &package.units {
            let more = [("unit", unit.as_str())];
            postinst.push_str(&self.fill_with(UNIT_POSTINST, &more)?);
            prerm.push_str(&self.fill_with(UNIT_PRERM, &more)?);
            postrm.push_str(&self.fill_with(UNIT_POSTRM, &more)?);
        }
        for (name, body) in [("postinst", postinst), ("prerm", prerm), ("postrm", postrm)] {
            if !body.is_empty() {
                let script = format!("#!/bin/sh\nset -e\n{body}");
                self.put(&format!("DEBIAN/{name}"), "755", &script)?;
            }
        }
        // The code that dh_makeshlibs adds.
        if !package.libraries.is_empty() {
            self.put("DEBIAN/triggers", "644", "activate-noawait ldconfig\n")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repo::table::Packages;

    #[test]
    fn package_with_module_is_marked_as_fake() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packages.toml");
        let table = Packages::load(&[path]).unwrap();
        let package = table
            .packages
            .iter()
            .find(|package| package.name == "nvidia-kernel-open-dkms")
            .unwrap();
        let dir = tempfile::tempdir().unwrap();
        let values = BTreeMap::from([
            ("version", "580.1-1".into()),
            ("upstream", "580.1".into()),
            ("name", package.name.clone()),
        ]);
        let tree = Tree {
            root: dir.path(),
            values: &values,
            libraries: "usr/lib",
            modules: "/updates/dkms",
        };
        tree.dkms(package.dkms.as_ref().unwrap()).unwrap();
        tree.control(package).unwrap();
        let read = |path: &str| fs::read_to_string(dir.path().join(path)).unwrap();
        assert!(read("DEBIAN/control").contains("Description: fake of the test bed"));
        assert!(read("DEBIAN/prerm").contains("dkms remove -m 'nvidia' -v '580.1' --all"));
        let source = read("usr/src/nvidia-580.1/nvidia.c");
        assert!(
            source.contains("MODULE_LICENSE(\"Dual MIT/GPL\")") && source.contains("\"580.1\"")
        );
        assert!(read("usr/src/nvidia-580.1/dkms.conf").contains("BUILT_MODULE_NAME[0]=\"nvidia\""));
    }
}
