//! Loop devices, which turn files of machines into block devices.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// The kernel's list of block devices.
const DEVICES: &str = "/sys/block";

/// The longest time until the kernel has released a filesystem whose processes have exited.
const RELEASE: Duration = Duration::from_secs(20);

/// Waits until no loop device uses a file below `dir`, because until then a mount of the file would use the old
/// filesystem.
pub fn released(dir: &Path) -> Result<()> {
    let end = Instant::now() + RELEASE;
    loop {
        let used = using(Path::new(DEVICES), dir)?;
        match used.first() {
            None => return Ok(()),
            Some(_) if Instant::now() < end => thread::sleep(Duration::from_millis(10)),
            Some(device) => bail!("{device} still uses a file below {}", dir.display()),
        }
    }
}

/// The loop devices whose files are below `dir`.
fn using(devices: &Path, dir: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(devices).context("cannot list the block devices")? {
        let device = entry.context("cannot list the block devices")?;
        // Missing for other devices and for an unused one.
        let Ok(file) = fs::read_to_string(device.path().join("loop/backing_file")) else {
            continue;
        };
        if Path::new(file.trim_end()).starts_with(dir) {
            found.push(device.file_name().to_string_lossy().into_owned());
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loop_devices_are_found_by_their_files() {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str, file: &str| {
            let place = dir.path().join(name).join("loop");
            fs::create_dir_all(&place).unwrap();
            fs::write(place.join("backing_file"), file).unwrap();
        };
        put("loop0", "/cache/runs/1/a/layer/disk.img\n");
        put("loop1", "/cache/runs/1/ab/layer/disk.img\n");
        fs::create_dir_all(dir.path().join("vda")).unwrap();
        let of = |name: &str| using(dir.path(), &Path::new("/cache/runs/1").join(name)).unwrap();
        assert_eq!(of("a"), ["loop0"]);
        assert!(of("b").is_empty());
    }
}
