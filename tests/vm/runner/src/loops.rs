//! Loop devices, by which files of machines are block devices.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// Where the kernel lists block devices.
const DEVICES: &str = "/sys/block";

/// The longest time until the kernel has released a filesystem whose processes have ended.
const RELEASE: Duration = Duration::from_secs(20);

/// Waits until no loop device uses a file below `dir`: until then a mount of the file would be one of the old
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

/// The loop devices whose files lie below `dir`.
fn using(devices: &Path, dir: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(devices).context("cannot list the block devices")? {
        let device = entry.context("cannot list the block devices")?;
        // Absent for other devices and for one that is not in use.
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
    fn the_loop_devices_of_a_machine_are_found_by_their_files() {
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
