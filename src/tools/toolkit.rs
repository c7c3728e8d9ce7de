//! The NVIDIA Container Toolkit.

use toml::{Table, Value};

use crate::model::document::check_toml;

/// The program name of the toolkit runtime. Docker's configuration contains this name instead of the path.
pub const RUNTIME_NAME: &str = "nvidia-container-runtime";

/// The path of the toolkit runtime from the packages.
pub const RUNTIME: &str = "/usr/bin/nvidia-container-runtime";

/// The name prefix of the toolkit packages.
pub const PACKAGES: &str = "nvidia-container-toolkit";

/// The unit of the toolkit since version 1.18, which writes a separate specification at each boot and after driver changes. It
/// starts after `multi-user.target`, which is after the runtimes, and does not handle MIG, so our file is still required.
/// Runtimes prefer the file of the unit, so the step `cdi` also compares it with the machine, and restarts the unit if the file
/// is stale. Source: NVIDIA/nvidia-container-toolkit, `deployments/systemd/nvidia-cdi-refresh.service`.
pub const REFRESH: &str = "nvidia-cdi-refresh.service";

/// Install paths of the toolkit's unit.
pub const REFRESH_PATHS: [&str; 2] = [
    "/usr/lib/systemd/system/nvidia-cdi-refresh.service",
    "/etc/systemd/system/nvidia-cdi-refresh.service",
];

/// The first version that can omit the groups of device nodes from a specification. Versions since 1.19.1 include them by
/// default. Source: NVIDIA/nvidia-container-toolkit, `pkg/nvcdi/api.go` (`FeatureNoAdditionalGIDsForDeviceNodes`).
pub const LEAVES_GROUPS_OUT: (u64, u64) = (1, 19);

/// The configuration file of the toolkit. Source: NVIDIA/nvidia-container-toolkit, `internal/config`.
pub const CONFIG: &str = "/etc/nvidia-container-runtime/config.toml";

/// The configuration that the toolkit container of the GPU Operator generates. Source: NVIDIA/nvidia-container-toolkit,
/// `tools/container/toolkit`.
pub const OPERATOR_CONFIG: &str =
    "/usr/local/nvidia/toolkit/.config/nvidia-container-runtime/config.toml";

/// The first version that uses `ldconfig` or `ldconfig.real`, whichever exists, regardless of the configured name (release
/// notes of 1.15.0).
pub const TAKES_BOTH_NAMES: (u64, u64) = (1, 15);

/// The first version that uses CDI by default (release notes of 1.18.0). The known errors that `no-cgroups = true` causes occur
/// only without CDI.
pub const BY_CDI: (u64, u64) = (1, 18);

/// The settings that gpu-bootstrap uses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ToolkitFile {
    /// The root directory of the driver, or `None` for the root of the machine.
    pub root: Option<String>,
    /// The host program that generates the library cache of a container, or `None` if it is not set or is in the image.
    pub ldconfig: Option<String>,
    /// Containers do not get device permissions. This works only for rootless daemons.
    pub no_cgroups: bool,
    /// The method that adds devices to a container.
    pub mode: Option<String>,
    /// The directories that are searched for specifications.
    pub spec_directories: Vec<String>,
}

/// Parses [`CONFIG`].
///
/// # Errors
/// If the text is not TOML. The message is one line with the position.
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
        spec_directories: (modes.into_iter().flatten())
            .filter_map(|directory| directory.as_str().map(str::to_owned))
            .filter(|directory| directory.starts_with('/'))
            .collect(),
    })
}

/// Returns both names of the program that generates library caches. `ldconfig` on Ubuntu is a wrapper of `ldconfig.real`. The
/// toolkit uses the one that exists (`NormalizeLDConfigPath`), but older versions do not: NVIDIA/nvidia-docker issue 587.
pub fn both_names(ldconfig: &str) -> [String; 2] {
    let plain = ldconfig.strip_suffix(".real").unwrap_or(ldconfig);
    [plain.to_owned(), format!("{plain}.real")]
}

/// Whether a container runtime configuration contains a toolkit runtime outside of comments. The runtime may be from the
/// packages or from the NVIDIA GPU Operator, which installs it in another directory.
pub fn is_named_in(configuration: &str) -> bool {
    effective(configuration).any(|line| line.contains(RUNTIME_NAME))
}

/// Whether a container runtime configuration contains the toolkit runtime from the packages, or a sibling such as
/// `nvidia-container-runtime.cdi`.
pub fn needs_packages(configuration: &str) -> bool {
    let is_theirs = |text: &str| comes_with(text, RUNTIME);
    effective(configuration).any(|line| line.split(['"', '\'']).any(is_theirs))
}

/// Whether a program is shipped in the same packages as another one: the program itself, or a sibling with a suffix
/// (`nvidia-container-runtime.cdi`, `.legacy`). Programs in the packages' directory may be given without a path.
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
    fn configuration_is_parsed() {
        let text = "disable-require = false\n[nvidia-container-cli]\nroot = \"/run/nvidia/driver\"\n\
                    ldconfig = \"@/sbin/ldconfig.real\"\nno-cgroups = true\n[nvidia-container-runtime]\n\
                    mode = \"auto\"\n[nvidia-container-runtime.modes.cdi]\nspec-dirs = [\"/etc/cdi\"]\n";
        let wanted = ToolkitFile {
            root: Some("/run/nvidia/driver".to_owned()),
            ldconfig: Some("/sbin/ldconfig.real".to_owned()),
            no_cgroups: true,
            mode: Some("auto".to_owned()),
            spec_directories: vec!["/etc/cdi".to_owned()],
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
    fn program_elsewhere_with_same_name_needs_no_package() {
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
