//! Runs a part of a test in its own process, because the library may hang. An environment variable contains the path of
//! its inventory.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;

/// Environment variable with the name of the part that a child runs.
const PART: &str = "GPU_FAKE_NVML_PART";

/// A file that a child creates after its part has finished.
const DONE: &str = "done";

/// The shortest inventory with two GPUs.
pub const TWO: &str = r#"
driver-version = "535.261.03"
cuda-version = "12.2"
[[gpu]]
pci-address = "0000:18:00.0"
pci-id = "10de:2330"
uuid = "GPU-11111111-2222-3333-4444-555555555555"
[[gpu]]
pci-address = "0000:2a:00.0"
pci-id = "10de:1eb8"
"#;

/// The result of a part.
pub struct Ended {
    /// `None` if it had to be killed.
    pub status: Option<ExitStatus>,
    /// Its standard error.
    pub stderr: String,
}

/// The library that was built with this test.
pub fn library() -> PathBuf {
    let mut directory = std::env::current_exe().expect("a test has a path");
    while directory.pop() {
        let library = directory.join("libfake_nvml.so");
        if library.exists() {
            return library;
        }
    }
    panic!("libfake_nvml.so is not next to the test: build the crate as a cdylib");
}

/// NVML through the wrapper that the product uses.
pub fn nvml() -> Result<Nvml, NvmlError> {
    Nvml::builder().lib_path(library().as_os_str()).init()
}

/// Runs `part` in a child with this inventory and expects it to pass.
pub fn with(inventory: &str, name: &str, part: impl FnOnce()) {
    if let Some(ended) = run(inventory, name, Duration::from_secs(60), part) {
        let passed = ended.status.is_some_and(|status| status.success());
        assert!(passed, "{:?}\n{}", ended.status, ended.stderr);
    }
}

/// Runs `part` in a child and returns its result. In the child itself it returns `None`.
pub fn run(inventory: &str, name: &str, patience: Duration, part: impl FnOnce()) -> Option<Ended> {
    if std::env::var_os(PART).is_some_and(|wanted| wanted == name) {
        part();
        let inventory = std::env::var_os("GPU_FAKE_NVML").expect("the parent sets it");
        std::fs::write(Path::new(&inventory).with_file_name(DONE), "")
            .expect("the marker is written");
        return None;
    }
    let directory = tempfile::tempdir().expect("a temporary directory");
    let file = directory.path().join("inventory.toml");
    std::fs::write(
        &file,
        inventory.replace("@folder@", &directory.path().display().to_string()),
    )
    .expect("the inventory is written");
    let mut child = Command::new(std::env::current_exe().expect("a test has a path"))
        .args([name, "--exact", "--nocapture"])
        .env("GPU_FAKE_NVML", &file)
        .env(PART, name)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the test starts again");
    let status = wait(&mut child, patience);
    let passed = status.is_some_and(|status| status.success());
    assert!(
        !passed || file.with_file_name(DONE).exists(),
        "no test is named `{name}`"
    );
    let mut stderr = String::new();
    let mut pipe = child.stderr.take().expect("standard error is piped");
    pipe.read_to_string(&mut stderr).expect("it is text");
    Some(Ended { status, stderr })
}

fn wait(child: &mut Child, patience: Duration) -> Option<ExitStatus> {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().expect("the child can be waited for") {
            return Some(status);
        }
        if start.elapsed() > patience {
            child.kill().expect("the child can be killed");
            child.wait().expect("the child exits");
            return None;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}
