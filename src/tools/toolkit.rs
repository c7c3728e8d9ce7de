//! NVIDIA's container toolkit.

/// The name of its runtime, by which Docker finds it.
pub const RUNTIME_NAME: &str = "nvidia-container-runtime";

/// Its runtime, where its packages put it.
pub const RUNTIME: &str = "/usr/bin/nvidia-container-runtime";

/// What the names of the packages begin with that bring it.
pub const PACKAGES: &str = "nvidia-container-toolkit";

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
    use super::{is_named_in, needs_packages};

    #[test]
    fn another_program_of_the_same_name_needs_no_package() {
        for (line, named, needed) in [
            (
                "BinaryName = \"/usr/bin/nvidia-container-runtime\"",
                true,
                true,
            ),
            (
                "  BinaryName = '/usr/bin/nvidia-container-runtime.cdi'",
                true,
                true,
            ),
            (
                "{\"runtimes\":{\"nvidia\":{\"args\":[],\"path\":\"nvidia-container-runtime\"}}}",
                true,
                true,
            ),
            (
                "BinaryName = \"/usr/local/nvidia/toolkit/nvidia-container-runtime\"",
                true,
                false,
            ),
            (
                "# BinaryName = \"/usr/bin/nvidia-container-runtime\"",
                false,
                false,
            ),
            ("BinaryName = \"/usr/bin/runc\"", false, false),
        ] {
            assert_eq!(
                (is_named_in(line), needs_packages(line)),
                (named, needed),
                "{line}"
            );
        }
    }
}
