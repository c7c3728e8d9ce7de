//! Sets the soname that every NVML client looks for.

use std::{env, fs, io::Write as _, path::Path};

fn main() -> std::io::Result<()> {
    let mut cargo = std::io::stdout().lock();
    writeln!(cargo, "cargo:rerun-if-changed=build.rs")?;
    // Without this soname `ldconfig` would replace a copy named libnvidia-ml.so.1, and NVIDIA's container toolkit would
    // not find the file by its name.
    writeln!(
        cargo,
        "cargo:rustc-cdylib-link-arg=-Wl,-soname,libnvidia-ml.so.1"
    )?;
    // NVIDIA's library depends only on the C library, and the image in which GPUs are validated contains no other library.
    // This linker script replaces the shared library that unwinds the stack with static ones.
    let directory = env::var("OUT_DIR").map_err(std::io::Error::other)?;
    fs::write(
        Path::new(&directory).join("libgcc_s.so"),
        "INPUT(-lgcc_eh -lgcc)\n",
    )?;
    writeln!(cargo, "cargo:rustc-cdylib-link-arg=-L{directory}")
}
