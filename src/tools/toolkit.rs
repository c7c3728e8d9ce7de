//! NVIDIA's container toolkit.

use toml::{Table, Value};

use crate::model::document::check_toml;

/// The name of its runtime, by which Docker finds it.
pub const RUNTIME_NAME: &str = "nvidia-container-runtime";

/// Its runtime, where its packages put it.
pub const RUNTIME: &str = "/usr/bin/nvidia-container-runtime";

/// What the names of the packages begin with that bring it.
pub const PACKAGES: &str = "nvidia-container-toolkit";

/// The first version that can leave the groups of device nodes out of a specification, in which those from 1.19.1 on name them.
/// Source: NVIDIA/nvidia-container-toolkit, `pkg/nvcdi/api.go` (`FeatureNoAdditionalGIDsForDeviceNodes`).
pub const LEAVES_GROUPS_OUT: (u64, u64) = (1, 19);

/// Its configuration. Sources: NVIDIA/nvidia-container-toolkit, `internal/config`, and its issues that are named below.
pub const CONFIG: &str = "/etc/nvidia-container-runtime/config.toml";

/// The same of NVIDIA's GPU Operator, which its toolkit container generates (its `tools/container/toolkit`).
pub const OPERATOR_CONFIG: &str =
    "/usr/local/nvidia/toolkit/.config/nvidia-container-runtime/config.toml";

/// The first version that takes the existing name of `ldconfig`, whichever is configured (release notes of 1.15.0).
pub const TAKES_BOTH_NAMES: (u64, u64) = (1, 15);

/// What this program reads of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ToolkitFile {
    /// The folder below which it looks for the driver; `None` if that is the machine's own root.
    pub root: Option<String>,
    /// The host's program that makes the library cache of a container; `None` if it is one of the image.
    pub ldconfig: Option<String>,
    /// Containers are not allowed to use the devices: for daemons without root alone.
    pub no_cgroups: bool,
    /// How devices get into a container.
    pub mode: Option<String>,
    /// The folders in which it looks for specifications.
    pub spec_folders: Vec<String>,
}

/// Reads [`CONFIG`].
///
/// # Errors
/// Where and why it is no TOML, in one line.
pub fn parse_config(text: &str) -> Result<ToolkitFile, String> {
    check_toml(text)?;
    let root: Table = toml::from_str(text).map_err(|error| error.message().to_owned())?;
    let table = |name: &str| root.get(name).and_then(Value::as_table);
    let (cli, runtime) = (
        table("nvidia-container-cli"),
        table("nvidia-container-runtime"),
    );
    let text_of = |table: Option<&Table>, key: &str| {
        let value = table?.get(key)?.as_str()?;
        Some(value.to_owned()).filter(|value| !value.is_empty())
    };
    let modes =
        runtime.and_then(|table| table.get("modes")?.get("cdi")?.get("spec-dirs")?.as_array());
    Ok(ToolkitFile {
        root: text_of(cli, "root").filter(|root| root != "/" && root.starts_with('/')),
        ldconfig: (text_of(cli, "ldconfig"))
            .and_then(|path| path.strip_prefix('@').map(str::to_owned))
            .filter(|path| path.starts_with('/')),
        no_cgroups: cli.and_then(|table| table.get("no-cgroups")?.as_bool()) == Some(true),
        mode: text_of(runtime, "mode"),
        spec_folders: (modes.into_iter().flatten())
            .filter_map(|folder| folder.as_str().map(str::to_owned))
            .filter(|folder| folder.starts_with('/'))
            .collect(),
    })
}

/// The two names of the program that makes library caches: Ubuntu's `ldconfig` is a wrapper of `ldconfig.real`, and the
/// toolkit takes the one that is there (`NormalizeLDConfigPath`; older ones do not: NVIDIA/nvidia-docker issue 587).
#[must_use]
pub fn both_names(ldconfig: &str) -> [String; 2] {
    let plain = ldconfig.strip_suffix(".real").unwrap_or(ldconfig);
    [plain.to_owned(), format!("{plain}.real")]
}

/// Whether a configuration of a container runtime names a runtime of the toolkit, outside of comments: the packages', or
/// that of NVIDIA's GPU Operator, which is elsewhere.
#[must_use]
pub fn is_named_in(configuration: &str) -> bool {
    effective(configuration).any(|line| line.contains(RUNTIME_NAME))
}

/// Whether it names the runtime that the packages bring, or a sibling such as `nvidia-container-runtime.cdi`.
#[must_use]
pub fn needs_packages(configuration: &str) -> bool {
    let is_theirs = |text: &str| comes_with(text, RUNTIME);
    effective(configuration).any(|line| line.split(['"', '\'']).any(is_theirs))
}

/// Whether a program comes with another one in the same packages: that one itself, or a sibling with an ending
/// (`nvidia-container-runtime.cdi`, `.legacy`). Programs in the folder of packages may be named without it.
#[must_use]
pub fn comes_with(program: &str, other: &str) -> bool {
    let name = |path| str::strip_prefix(path, "/usr/bin/").unwrap_or(path);
    (name(program).strip_prefix(name(other)))
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

fn effective(configuration: &str) -> impl Iterator<Item = &str> {
    (configuration.lines().map(str::trim_start)).filter(|line| !line.starts_with('#'))
}

#[cfg(test)]
mod tests {
    use super::{ToolkitFile, both_names, is_named_in, needs_packages, parse_config};

    #[test]
    fn its_configuration_is_read() {
        let text = "disable-require = false\n[nvidia-container-cli]\nroot = \"/run/nvidia/driver\"\n\
                    ldconfig = \"@/sbin/ldconfig.real\"\nno-cgroups = true\n[nvidia-container-runtime]\n\
                    mode = \"auto\"\n[nvidia-container-runtime.modes.cdi]\nspec-dirs = [\"/etc/cdi\"]\n";
        let wanted = ToolkitFile {
            root: Some("/run/nvidia/driver".to_owned()),
            ldconfig: Some("/sbin/ldconfig.real".to_owned()),
            no_cgroups: true,
            mode: Some("auto".to_owned()),
            spec_folders: vec!["/etc/cdi".to_owned()],
        };
        assert_eq!(parse_config(text), Ok(wanted));
        assert_eq!(parse_config("#root = 1\n"), Ok(ToolkitFile::default()));
        let why = parse_config("[nvidia-container-cli]\nno-cgroups = True\n").unwrap_err();
        assert!(why.contains("line 2"), "{why}");
        assert_eq!(
            both_names("/sbin/ldconfig.real"),
            ["/sbin/ldconfig", "/sbin/ldconfig.real"]
        );
    }

    #[test]
    fn another_program_of_the_same_name_needs_no_package() {
        for (line, named, needed) in rows! {
            "BinaryName = \"/usr/bin/nvidia-container-runtime\"", true, true;
            "  BinaryName = '/usr/bin/nvidia-container-runtime.cdi'", true, true;
            "{\"runtimes\":{\"nvidia\":{\"args\":[],\"path\":\"nvidia-container-runtime\"}}}", true,
                true;
            "BinaryName = \"/usr/local/nvidia/toolkit/nvidia-container-runtime\"", true, false;
            "# BinaryName = \"/usr/bin/nvidia-container-runtime\"", false, false;
            "BinaryName = \"/usr/bin/runc\"", false, false;
        } {
            assert_eq!(
                (is_named_in(line), needs_packages(line)),
                (named, needed),
                "{line}"
            );
        }
    }
}
