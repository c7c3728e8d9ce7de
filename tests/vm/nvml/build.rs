//! Gives the library the name under which every NVML client looks for it.

fn main() -> std::io::Result<()> {
    use std::io::Write as _;
    let mut cargo = std::io::stdout().lock();
    writeln!(cargo, "cargo:rerun-if-changed=build.rs")?;
    // Without this soname a copy named libnvidia-ml.so.1 would be replaced by `ldconfig`, and
    // NVIDIA's container toolkit would not find the file by its name.
    writeln!(
        cargo,
        "cargo:rustc-cdylib-link-arg=-Wl,-soname,libnvidia-ml.so.1"
    )
}
