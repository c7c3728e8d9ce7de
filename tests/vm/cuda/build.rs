//! Gives the library the name under which every CUDA program looks for it.

fn main() -> std::io::Result<()> {
    use std::io::Write as _;
    let mut cargo = std::io::stdout().lock();
    writeln!(cargo, "cargo:rerun-if-changed=build.rs")?;
    // NVIDIA's container toolkit and `ldconfig` read the soname.
    writeln!(
        cargo,
        "cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1"
    )
}
