//! Sets the soname that every CUDA program looks for.

use std::{env, fs, io::Write as _, path::Path};

fn main() -> std::io::Result<()> {
    let mut cargo = std::io::stdout().lock();
    writeln!(cargo, "cargo:rerun-if-changed=build.rs")?;
    // NVIDIA's container toolkit and `ldconfig` read the soname.
    writeln!(
        cargo,
        "cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1"
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
