//! The files and the scripts of fake packages, from which `deb.rs` and `rpm.rs` make packages.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Deserialize;

use super::table::{Dkms, Modules, Package, Table, upstream};
use crate::cases::fill;
use crate::sh::Cmd;

/// Differences between the contents of .deb and .rpm packages.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Format {
    /// The directory of libraries.
    pub libraries: String,
    /// The directory of DKMS modules, below the kernel's directory.
    modules: String,
    /// The names of the scripts.
    pub scripts: Vec<String>,
    /// Parts of scripts, by script: for modules of DKMS, for each unit, and for libraries.
    parts: BTreeMap<String, BTreeMap<String, String>>,
}

impl Format {
    /// The format of the packages for dnf or for apt.
    pub fn of(rpm: bool) -> Result<Format> {
        let mut formats: BTreeMap<String, Format> =
            toml::from_str(include_str!("formats.toml")).context("formats.toml is not valid")?;
        let name = if rpm { "rpm" } else { "deb" };
        formats.remove(name).context("formats.toml is incomplete")
    }
}

const DKMS_CONF: &str = r#"PACKAGE_NAME="{{dkms}}"
PACKAGE_VERSION="{{upstream}}"
AUTOINSTALL="yes"
build=$dkms_tree/$PACKAGE_NAME/$PACKAGE_VERSION/build
MAKE="make -C $kernel_source_dir M=$build modules"
CLEAN="make -C $kernel_source_dir M=$build clean"
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

/// Unpacks the package `$2` that was built for Debian into `$3`. If `/lib` is a link, a package must not contain it as a
/// directory.
const UNPACK: &str = r#"
dpkg-deb -x "$1/$2"_*.deb "$3"
cd "$3"
if [ -d lib ]; then
    mkdir -p usr/lib
    cp -a lib/. usr/lib
    rm -r lib
fi
"#;

/// Sources of fake packages in addition to their table entry.
pub struct Sources<'a> {
    pub table: &'a Table,
    /// The directory with `www` and `keys`.
    pub dir: &'a Path,
    /// The packages of NVIDIA's container toolkit.
    pub toolkit: &'a Path,
    /// Unpacked Debian packages.
    pub debian: &'a Path,
    /// Programs that the harness has compiled, or the files of `real.rs`, if any.
    pub programs: Option<&'a Path>,
    /// URLs of repositories and values of the release, for templates.
    pub values: BTreeMap<String, String>,
}

impl Sources<'_> {
    /// The public key of a repository. rpm only reads armored keys.
    fn key(&self, name: &str) -> Result<PathBuf> {
        let place = self.table.repositories.get(name);
        let place = place.with_context(|| format!("no key of `{name}`"))?;
        Ok(match self.table.release {
            Some(_) => self.dir.join("www").join(&place.key),
            None => self.dir.join("keys").join(name),
        })
    }
}

/// The file tree of one version of a package.
pub struct Contents<'a> {
    pub root: &'a Path,
    pub package: &'a Package,
    format: &'a Format,
    values: BTreeMap<String, String>,
}

impl<'a> Contents<'a> {
    /// Writes the files into the empty directory `root`.
    pub fn write(
        package: &'a Package,
        version: &str,
        sources: &Sources<'a>,
        root: &'a Path,
    ) -> Result<Contents<'a>> {
        let upstream = upstream(version);
        let mut values = sources.values.clone();
        let mut set = |key: &str, value: &str| values.insert(key.into(), value.into());
        set("version", version);
        let evr = version.rsplit_once('-').map_or(version, |(left, _)| left);
        set("evr", evr);
        set("upstream", upstream);
        set("branch", upstream.split('.').next().unwrap_or_default());
        if sources.table.release.is_some() {
            set("kernel", &format!("{version}.x86_64"));
        }
        for (key, value) in &package.values {
            set(key, value);
        }
        values.insert("name".into(), fill(&package.name, &values)?);
        let contents = Contents {
            root,
            package,
            format: &sources.table.format,
            values,
        };
        contents.files(sources)?;
        for library in &package.libraries {
            contents.library(library, upstream)?;
        }
        if let Some(dkms) = &package.dkms {
            contents.dkms(dkms)?;
        }
        if let Some(modules) = &package.modules {
            contents.modules(modules)?;
        }
        for (path, target) in &package.links {
            let at = contents.place(&contents.fill(path)?)?;
            symlink(contents.fill(target)?, at).context("cannot make a link")?;
        }
        if let Some(name) = &package.from_toolkit {
            let (from, to) = (sources.toolkit.to_string_lossy(), root.to_string_lossy());
            Cmd::new(["/bin/sh", "-euc", UNPACK, "sh", &from, name, &to])
                .ok()
                .with_context(|| format!("cannot unpack {name}"))?;
        }
        Ok(contents)
    }

    pub fn fill(&self, text: &str) -> Result<String> {
        fill(text, &self.values)
    }

    /// The same with additional values.
    fn fill_with(&self, text: &str, more: &[(&str, &str)]) -> Result<String> {
        let mut values = self.values.clone();
        for (key, value) in more {
            values.insert((*key).into(), (*value).into());
        }
        fill(text, &values)
    }

    fn place(&self, path: &str) -> Result<PathBuf> {
        let path = self.root.join(path);
        if let Some(dir) = path.parent() {
            fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
        }
        Ok(path)
    }

    pub fn put(&self, path: &str, mode: &str, bytes: impl AsRef<[u8]>) -> Result<()> {
        let at = self.place(path)?;
        fs::write(&at, bytes).with_context(|| format!("cannot write {}", at.display()))?;
        let mode =
            u32::from_str_radix(mode, 8).with_context(|| format!("`{mode}` is not a mode"))?;
        fs::set_permissions(at, fs::Permissions::from_mode(mode)).context("cannot set a mode")
    }

    fn copy(&self, real: &Path, path: &str) -> Result<()> {
        (fs::copy(real, self.place(path)?).map(drop))
            .with_context(|| format!("cannot copy {}", real.display()))
    }

    fn files(&self, sources: &Sources<'_>) -> Result<()> {
        for (path, file) in &self.package.files {
            let bytes = match (&file.text, &file.key_of) {
                (Some(text), _) => self.fill(text)?.trim_start().into(),
                (None, name) => fs::read(sources.key(name.as_deref().unwrap_or_default())?)
                    .context("cannot read a key")?,
            };
            let mode = file.mode.as_deref().unwrap_or("644");
            self.put(&self.fill(path)?, mode, bytes)?;
        }
        for (path, real) in &self.package.from_debian {
            self.copy(&sources.debian.join(real), path)?;
        }
        for (path, name) in &self.package.from_programs {
            let programs = sources.programs.context("the programs are not compiled")?;
            self.copy(&programs.join(name), path)?;
        }
        Ok(())
    }

    /// A library: an empty shared object that the loader and ldconfig accept, unless the package has a real one.
    fn library(&self, soname: &str, upstream: &str) -> Result<()> {
        let stem = soname.split_once(".so").map_or(soname, |(stem, _)| stem);
        let name = format!("{stem}.so.{upstream}");
        let at = self.place(&format!("{}/{name}", self.format.libraries))?;
        let (path, name_option) = (at.to_string_lossy(), format!("-Wl,-soname,{soname}"));
        if !at.exists() {
            let argv = "gcc -shared -nostdlib -x c /dev/null -o".split(' ');
            Cmd::new(argv.chain([&*path, &*name_option]))
                .ok()
                .context("cannot link an empty library")?;
        }
        symlink(&name, at.with_file_name(soname)).context("cannot link a library")
    }

    fn dkms(&self, dkms: &Dkms) -> Result<()> {
        let (of_dkms, place) = ([("dkms", &*dkms.name)], &self.format.modules);
        let source = self.fill_with("usr/src/{{dkms}}-{{upstream}}", &of_dkms)?;
        let mut conf = self.fill_with(DKMS_CONF, &of_dkms)?;
        let mut makefile = String::new();
        for (index, module) in dkms.modules.iter().enumerate() {
            writeln!(conf, "BUILT_MODULE_NAME[{index}]=\"{module}\"")?;
            writeln!(conf, "DEST_MODULE_LOCATION[{index}]=\"{place}\"")?;
            writeln!(makefile, "obj-m += {module}.o")?;
            let text = self.fill_with(MODULE, &[("module", module), ("licence", &dkms.licence)])?;
            self.put(&format!("{source}/{module}.c"), "644", &text)?;
        }
        self.put(&format!("{source}/dkms.conf"), "644", &conf)?;
        self.put(&format!("{source}/Makefile"), "644", &makefile)
    }

    /// Object files that `depmod` and `modinfo` read as modules. All but the first depend on the first.
    fn modules(&self, modules: &Modules) -> Result<()> {
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

    /// The scripts with content, by name: the part of the table, then the generated ones.
    pub fn scripts(&self) -> Result<Vec<(&str, String)>> {
        let (package, format) = (self.package, self.format);
        let mut causes: Vec<(&str, &str)> = Vec::new();
        causes.extend(package.dkms.as_ref().map(|dkms| ("dkms", &*dkms.name)));
        causes.extend(package.units.iter().map(|unit| ("unit", &**unit)));
        causes.extend(package.libraries.first().map(|_| ("library", "")));
        let mut scripts = Vec::new();
        for script in &format.scripts {
            let own = package.scripts.get(script).map_or("", String::as_str);
            let mut body = self.fill(own)?;
            for cause in &causes {
                let part = format
                    .parts
                    .get(cause.0)
                    .and_then(|parts| parts.get(script));
                body += &self.fill_with(part.map_or("", String::as_str), &[*cause])?;
            }
            if !body.is_empty() {
                scripts.push((script.as_str(), body));
            }
        }
        Ok(scripts)
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// One version of a package of the table, below `root`.
    pub fn written<'a>(
        table: &'a Table,
        name: &str,
        version: &str,
        root: &'a Path,
    ) -> Contents<'a> {
        let sources = Sources {
            table,
            dir: root,
            toolkit: root,
            debian: root,
            programs: None,
            values: BTreeMap::new(),
        };
        let package = table.packages.iter().find(|package| package.name == name);
        Contents::write(package.unwrap(), version, &sources, root).unwrap()
    }
}
