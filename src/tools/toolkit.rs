//! NVIDIA's container toolkit.

/// The name of its runtime, by which Docker finds it.
pub const RUNTIME_NAME: &str = "nvidia-container-runtime";

/// Its runtime, where its packages put it.
pub const RUNTIME: &str = "/usr/bin/nvidia-container-runtime";

/// Whether a configuration of a container runtime names it, outside of comments.
#[must_use]
pub fn is_named_in(configuration: &str) -> bool {
    let mut lines = configuration.lines().map(str::trim_start);
    lines.any(|line| !line.starts_with('#') && line.contains(RUNTIME_NAME))
}
