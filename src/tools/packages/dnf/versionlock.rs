//! Holds: the list of the plugin `versionlock`, which keeps installed packages at their versions. The list is edited as a file,
//! because the plugin's own command leaves comments behind.

use std::collections::BTreeSet;

use camino::Utf8Path;

use super::{generation, sources};
use crate::{
    host::{FilesError, ReadFiles},
    model::{
        pattern,
        text::{with_lines, without_lines},
    },
    tools::packages::{HoldList, NoHolds, Package},
};

/// Returns the path of the list that the plugin reads, or the reason if it does not read a list.
fn list_of(files: &dyn ReadFiles) -> Result<Result<String, NoHolds>, FilesError> {
    let main = files.read_lossy(Utf8Path::new(sources::MAIN))?;
    if main.is_some_and(|text| !is_on(&text, "plugins")) {
        return Ok(Err(NoHolds {
            why: format!(
                "`plugins` in `{}` disables dnf plugins, including versionlock",
                sources::MAIN
            ),
            remedy: format!("remove `plugins` from `{}`", sources::MAIN),
            package: false,
        }));
    }
    let text = files.read_lossy(Utf8Path::new(generation::LOCK_PLUGIN))?;
    Ok(match text {
        Some(text) if is_on(&text, "enabled") => {
            Ok(value(&text, "locklist").unwrap_or_else(|| generation::LOCK_LIST.to_owned()))
        }
        _ => Err(NoHolds {
            why: "the dnf plugin versionlock is not installed (package `python3-dnf-plugin-versionlock`) or is disabled \
                  (`enabled` in `/etc/dnf/plugins/versionlock.conf`)"
                .to_owned(),
            remedy: "enable it".to_owned(),
            package: true,
        }),
    })
}

/// Returns the value of an option, if it is set.
fn value(text: &str, wanted: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once('=')?;
        (key.trim() == wanted).then(|| value.trim().to_owned())
    })
}

/// Whether an option is on or not set: `dnf.conf(5)`.
fn is_on(text: &str, wanted: &str) -> bool {
    value(text, wanted).is_none_or(|value| {
        ["1", "true", "yes", "on"].contains(&value.to_ascii_lowercase().as_str())
    })
}

/// Marks the packages that are locked.
///
/// # Errors
/// If an existing file cannot be read.
pub fn mark_held(files: &dyn ReadFiles, packages: &mut [Package]) -> Result<(), FilesError> {
    let Ok(list) = list_of(files)? else {
        return Ok(());
    };
    let text = files.read_lossy(Utf8Path::new(&list))?.unwrap_or_default();
    let entries: Vec<&str> = entries(&text).collect();
    for package in packages {
        package.held = entries.iter().any(|entry| locks(entry, package));
    }
    Ok(())
}

/// Returns the entries that lock a version. `!` excludes a version.
fn entries(text: &str) -> impl Iterator<Item = &str> {
    text.lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with(['#', '!']))
}

/// Splits a version into epoch and rest.
fn epoch_of(version: &str) -> (&str, &str) {
    version.split_once(':').unwrap_or(("0", version))
}

/// Returns the entry that locks the installed version of a package for all architectures, in the format of the plugin.
fn entry_of(package: &Package) -> String {
    let (epoch, rest) = epoch_of(&package.version);
    format!("{}-{epoch}:{rest}.*", package.name)
}

/// Returns the version in an entry, if it has the format of [`entry_of`] and this name.
fn version_in<'l>(entry: &'l str, name: &str) -> Option<&'l str> {
    (entry.strip_prefix(name))
        .and_then(|rest| rest.strip_prefix('-'))
        .and_then(|rest| rest.strip_suffix(".*"))
        .filter(|version| version.starts_with(|c: char| c.is_ascii_digit()))
}

/// Whether an entry locks the installed version of a package. The entry is a pattern for the name, with or without epoch,
/// version, release and architecture.
fn locks(entry: &str, package: &Package) -> bool {
    let Package {
        name, architecture, ..
    } = package;
    let (epoch, rest) = epoch_of(&package.version);
    let version = rest.split('-').next().unwrap_or(rest);
    [
        name.clone(),
        format!("{name}-{version}"),
        format!("{name}-{rest}"),
        format!("{name}-{epoch}:{version}"),
        format!("{name}-{epoch}:{rest}"),
    ]
    .iter()
    .any(|form| {
        pattern::matches(entry, form) || pattern::matches(entry, &format!("{form}.{architecture}"))
    })
}

#[derive(Debug)]
pub struct Versionlock;

impl HoldList for Versionlock {
    fn path(&self) -> &'static Utf8Path {
        Utf8Path::new(generation::LOCK_LIST)
    }

    /// Verified for RHEL 8 to 10 and related distributions: NVIDIA driver guide 620, section on locks.
    fn package(&self) -> &'static str {
        "python3-dnf-plugin-versionlock"
    }

    fn needs(&self, files: &dyn ReadFiles) -> Result<Option<NoHolds>, FilesError> {
        Ok(match list_of(files)? {
            Ok(list) if list == generation::LOCK_LIST => None,
            Ok(list) => Some(NoHolds {
                why: format!(
                    "the dnf plugin versionlock reads `{list}` (`locklist` in `{}`), but gpu-bootstrap writes `{}`",
                    generation::LOCK_PLUGIN,
                    generation::LOCK_LIST
                ),
                remedy: format!(
                    "move the entries of `{list}` to `{}`, and set `locklist` to that file",
                    generation::LOCK_LIST
                ),
                package: false,
            }),
            Err(why) => Some(why),
        })
    }

    fn with(&self, text: &str, packages: &[&Package], ours: &BTreeSet<String>) -> String {
        // Remove our own entries with other versions, because they would still allow these versions. Keep entries for kernels,
        // because several versions of a kernel may be installed. Keep entries for packages that are not in `ours`, because an
        // undo could not restore them.
        let text = without_lines(text, |line| {
            packages.iter().any(|package| {
                ours.contains(&package.id)
                    && !package.name.starts_with("kernel")
                    && version_in(line, &package.name).is_some()
                    && line != entry_of(package)
            })
        });
        let mut new: Vec<String> = Vec::new();
        for entry in packages.iter().map(|package| entry_of(package)) {
            if !new.contains(&entry) && !text.lines().any(|line| line == entry) {
                new.push(entry);
            }
        }
        with_lines(&text, new.iter().map(String::as_str))
    }

    fn holding<'t>(&self, text: &'t str, package: &Package) -> Vec<&'t str> {
        (entries(text).filter(|entry| locks(entry, package))).collect()
    }

    /// The plugin compares its arguments with the entries before it uses the arguments as patterns for names, so an argument
    /// that equals an entry always matches (`_match` in `versionlock.py` of dnf-plugins-core).
    fn release(&self, entries: &BTreeSet<&str>) -> String {
        let quoted: Vec<String> = entries.iter().map(|entry| format!("'{entry}'")).collect();
        format!("dnf versionlock delete {}", quoted.join(" "))
    }

    fn entries(&self, packages: &[&Package]) -> Vec<String> {
        packages.iter().map(|package| entry_of(package)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{host::fake::FakeFiles, tools::packages::dnf::database};

    fn packages() -> Vec<Package> {
        database::parse(
            "nvidia-driver-cuda\tx86_64\t3\t580.95.05\t1.el9\t(none)\t(none)\n\
             kernel\tx86_64\t(none)\t5.14.0\t570.12.1.el9_6\t(none)\t(none)\n\
             kernel\tx86_64\t(none)\t5.14.0\t570.17.1.el9_6\t(none)\t(none)\n\
             bash\tx86_64\t(none)\t5.1.8\t9.el9\t(none)\t(none)\n",
        )
    }

    #[test]
    fn old_lock_is_replaced_except_for_kernels() {
        let there = packages();
        let of = |name: &str| -> Vec<&Package> {
            (there.iter()).filter(|one| one.name == name).collect()
        };
        let list = "nvidia-driver-cuda-3:580.178.04-1.el9.*\nnvidia-driver-cuda-libs-3:580.178.04-1.el9.*\n";
        let ours = BTreeSet::from(["nvidia-driver-cuda".to_owned(), "kernel".to_owned()]);
        assert_eq!(
            Versionlock.with(list, &of("nvidia-driver-cuda"), &ours),
            "nvidia-driver-cuda-libs-3:580.178.04-1.el9.*\nnvidia-driver-cuda-3:580.95.05-1.el9.*\n"
        );
        let kernel = "kernel-0:5.14.0-503.el9.*\n";
        let with = Versionlock.with(kernel, &of("kernel"), &ours);
        assert!(with.starts_with(kernel));
        // Another program or user has locked that version.
        let with = Versionlock.with(list, &of("nvidia-driver-cuda"), &BTreeSet::new());
        assert!(with.starts_with(list), "{with}");
    }

    fn held(list: &str, plugin: Option<&str>) -> Vec<String> {
        let files = FakeFiles::new();
        files.put(generation::LOCK_LIST, list);
        if let Some(text) = plugin {
            files.put(generation::LOCK_PLUGIN, text);
        }
        let mut packages = packages();
        mark_held(&files, &mut packages).unwrap();
        (packages.into_iter().filter(|package| package.held))
            .map(|package| package.id)
            .collect()
    }

    #[test]
    fn plugin_and_manual_entries_lock_a_package() {
        let plugin = Some("[main]\nenabled = 1\nlocklist = /etc/dnf/plugins/versionlock.list\n");
        let written = "\n# Added lock on Mon Nov 23 08:32:14 2026\n\
                       nvidia-driver-cuda-3:580.95.05-1.el9.*\n\
                       kernel-0:5.14.0-570.12.1.el9_6.*\n";
        assert_eq!(
            held(written, plugin),
            ["nvidia-driver-cuda", "kernel-5.14.0-570.12.1.el9_6"]
        );
        assert_eq!(held("*nvidia*580*\n", plugin), ["nvidia-driver-cuda"]);
        assert_eq!(held("bash\n", plugin), ["bash"]);
        for nothing in [
            "!bash-5.1.8\n",
            "# bash\n",
            "nvidia-driver-cuda-3:570.1-1.*\n",
            "",
        ] {
            assert!(held(nothing, plugin).is_empty(), "{nothing}");
        }
        // Without the plugin, the list has no effect.
        assert!(held(written, None).is_empty());
        assert!(held(written, Some("[main]\nenabled = 0\n")).is_empty());
    }

    #[test]
    fn settings_that_disable_the_list_are_reported() {
        let asked = |main: &str, plugin: &str| {
            let files = FakeFiles::new();
            files.put(sources::MAIN, main);
            files.put(generation::LOCK_PLUGIN, plugin);
            files.put("/etc/dnf/site.list", "bash\n");
            let mut packages = packages();
            mark_held(&files, &mut packages).unwrap();
            let held = packages.iter().any(|package| package.held);
            (Versionlock.needs(&files).unwrap(), held)
        };
        let on = "[main]\nenabled = 1\nlocklist = /etc/dnf/plugins/versionlock.list\n";
        assert_eq!(asked("[main]\nbest=True\n# plugins=0\n", on), (None, false));
        let (needs, _) = asked("[main]\nplugins=0\n", on);
        let needs = needs.unwrap();
        assert!(
            needs.why.starts_with("`plugins` in `/etc/dnf/dnf.conf`"),
            "{needs:?}"
        );
        assert!(!needs.package);
        let (needs, held) = asked("[main]\n", "[main]\nlocklist=/etc/dnf/site.list\n");
        let needs = needs.unwrap();
        assert!(
            needs.why.contains("reads `/etc/dnf/site.list`"),
            "{needs:?}"
        );
        assert!(held, "packages in that list are locked");
    }

    #[test]
    fn own_locks_are_added_once_and_removed() {
        let packages = packages();
        let both = [&packages[0], &packages[2]];
        let theirs = "# mine\n*nvidia*\nbash-0:5.1.8-9.el9.*";
        let nobody = BTreeSet::new();
        let with = Versionlock.with(theirs, &both, &nobody);
        assert_eq!(
            with,
            format!(
                "{theirs}\nnvidia-driver-cuda-3:580.95.05-1.el9.*\n\
                 kernel-0:5.14.0-570.17.1.el9_6.*"
            )
        );
        assert_eq!(Versionlock.with(&with, &both, &nobody), with);
        let ours = Versionlock.entries(&both);
        assert_eq!(Versionlock.without(&with, &ours), theirs);
        // The style of an administrator's file is kept.
        for theirs in [
            "# mine\r\nbash\r\n",
            "# mine\r\nbash",
            "bash\n\n",
            "\n",
            "bash",
        ] {
            let with = Versionlock.with(theirs, &both, &nobody);
            assert_eq!(
                Versionlock.entries(&both).len(),
                entries(&with).count() - entries(theirs).count()
            );
            assert_eq!(
                with.contains("\n") && !with.contains("\r"),
                !theirs.contains('\r')
            );
            assert_eq!(Versionlock.without(&with, &ours), theirs);
        }
        let alone = Versionlock.with("", &both, &nobody);
        assert_eq!(Versionlock.without(&alone, &ours), "");
        // A lock on another version that was added in the meantime is kept.
        let since = format!("{with}\nnvidia-driver-cuda-3:580.178.04-1.el9.*\n");
        assert_eq!(
            Versionlock.without(&since, &ours),
            format!("{theirs}\nnvidia-driver-cuda-3:580.178.04-1.el9.*\n")
        );
    }

    proptest::proptest! {
        #[test]
        fn any_list_is_parsed_without_panic(text in ".*") {
            let packages = packages();
            let all: Vec<&Package> = packages.iter().collect();
            let ours = Versionlock.entries(&all);
            let nobody = BTreeSet::new();
            let _ = (
                Versionlock.with(&text, &all, &nobody),
                Versionlock.without(&text, &ours),
            );
            let _ = entries(&text).any(|entry| locks(entry, &packages[0]));
        }
    }
}
