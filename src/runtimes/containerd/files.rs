//! Finds the files that containerd reads, and merges them.

use std::collections::BTreeSet;

use camino::{Utf8Path, Utf8PathBuf};

use super::{CriConfig, parse_config};
use crate::{
    host::{FileKind, FilesError, ReadFiles},
    model::{document::check_toml, pattern},
    runtimes::{Broken, ConfigFile, Version},
};

/// The root configuration file.
pub const CONFIG: &str = "/etc/containerd/config.toml";

/// The configuration directory of containerd.
pub(super) const DIRECTORY: &str = "/etc/containerd";

/// Reads the root file and the imported files in import order, up to the first file that is not TOML. The result always
/// contains the root file, without a text if it does not exist.
pub(super) fn read(
    files: &dyn ReadFiles,
    version: Option<Version>,
) -> Result<(Vec<ConfigFile>, Option<Broken>), FilesError> {
    // containerd 1.6 resolves relative patterns in its working directory (seen with 1.6.20, not with 1.7.24).
    let relative_patterns = version.is_none_or(|version| version >= Version(1, 7));
    let mut found = vec![ConfigFile {
        path: CONFIG.into(),
        text: files.read_text(Utf8Path::new(CONFIG))?,
    }];
    // Resolve names with `..` and symlinks, because they lead to the same file by different paths.
    let place = |path: &Utf8Path| -> Result<Utf8PathBuf, FilesError> {
        Ok(files.resolve(path)?.unwrap_or_else(|| path.to_owned()))
    };
    let mut read = BTreeSet::from([place(Utf8Path::new(CONFIG))?]);
    let mut at = 0;
    while let Some(ConfigFile { path, text }) = found.get(at).cloned() {
        at += 1;
        let Some(text) = text else { continue };
        let config = match check_toml(&text).and_then(|()| parse_config(&text)) {
            Ok(config) => config,
            Err(why) => return Ok((found, Some(Broken::for_all(path, why)))),
        };
        for import in config.imports {
            if import.contains('*') && !import.starts_with('/') && !relative_patterns {
                continue;
            }
            // Relative imports are relative to the importing file.
            let import = path.parent().unwrap_or(Utf8Path::new("/")).join(import);
            let (Some(directory), Some(names)) = (import.parent(), import.file_name()) else {
                continue;
            };
            for name in files.list(directory)? {
                let path = directory.join(&name);
                // Read a file that is imported twice only once.
                if pattern::matches(names, &name) && read.insert(place(&path)?) {
                    let text = files.read_text(&path)?;
                    found.push(ConfigFile { path, text });
                }
            }
        }
    }
    Ok((found, None))
}

/// Merges the files. A file that is not TOML is ignored.
pub(super) fn merged(files: &[ConfigFile], version: Option<Version>) -> CriConfig {
    let mut config = CriConfig {
        enabled: true,
        version: 2,
        ..CriConfig::default()
    };
    let merges = version.is_none_or(Version::merges);
    for (at, file) in files.iter().enumerate() {
        let Some(Ok(more)) = file.text.as_deref().map(parse_config) else {
            continue;
        };
        if at == 0 {
            config = more;
            continue;
        }
        // `disabled_plugins` lists are merged.
        config.enabled &= more.enabled;
        if more.has_plugin && !merges {
            let (enabled, version) = (config.enabled, config.version);
            config = CriConfig {
                enabled,
                version,
                ..more
            };
            continue;
        }
        config.systemd_cgroup.extend(more.systemd_cgroup);
        config.programs.extend(more.programs);
        config.runtimes.extend(more.runtimes);
        config.default_runtime = more.default_runtime.or(config.default_runtime);
    }
    config
}

/// Returns the `*.toml` files in subdirectories of the configuration directory that containerd does not read.
pub(super) fn strays(
    files: &dyn ReadFiles,
    read: &[ConfigFile],
) -> Result<Vec<ConfigFile>, FilesError> {
    let mut found = Vec::new();
    for directory in files.list(Utf8Path::new(DIRECTORY))? {
        let directory = Utf8Path::new(DIRECTORY).join(directory);
        if files
            .stat(&directory)?
            .is_none_or(|stat| stat.kind != FileKind::Directory)
        {
            continue;
        }
        for name in files.list(&directory)? {
            let path = directory.join(&name);
            if name.ends_with(".toml") && read.iter().all(|file| file.path != path) {
                found.push(ConfigFile {
                    text: files.read_text(&path)?,
                    path,
                });
            }
        }
    }
    Ok(found)
}
