//! A machine that is recorded and replayed.

use std::collections::BTreeSet;

use camino::{Utf8Path, Utf8PathBuf};
use nix::errno::Errno;

use super::{RecordError, record, replay::replay};
use crate::error::one_line;
use crate::host::fake::{self, Damage, Fakes, failed, ok};
use crate::host::{Cmd, FileKind, Host, Nvml, ReadFiles, rooted};
use crate::model::secret::{Secret, Secrets};

/// A symlink that is seen, and whose target is not read.
const DRIVER: &str = "/sys/bus/pci/devices/0000:18:00.0/driver";

/// A file that is seen but not read.
const LIBRARY: &str = "/usr/lib/libcuda.so.580.159.04";

/// The mark of a container, which is also seen but not read.
const MARK: &str = "/.dockerenv";

fn machine() -> (Host, Fakes) {
    let (host, fakes) = fake::host();
    let files = &fakes.files;
    files.put("/usr/lib/os-release", "ID=debian\n");
    files.put_link("/etc/os-release", "../usr/lib/os-release");
    files.put_mode("/etc/shadow", "root:hash", 0o600);
    files.put("/etc/join.toml", "token = \"abcdef.0123\"\n");
    files.put("/sys/bus/pci/devices/0000:18:00.0/vendor", "0x10de\n");
    files.put(LIBRARY, "ELF");
    files.put(MARK, "");
    files.put_link(DRIVER, "../../drivers/nvidia");
    files.put_device("/dev/nvidia0", 195, 0);
    files.put("/sys/sick", "");
    files.damage("/sys/sick", Damage::Reads, Errno::EIO);
    fakes.exec.on("uname", |_, _| ok("6.1.0\n"));
    fakes.exec.on("docker", |_, _| failed(1, "no daemon\n"));
    fakes.exec.on("kubectl", |_, _| ok("token: abc\n"));
    fakes.gpu.set(Nvml::VersionMismatch);
    (host, fakes)
}

/// Returns the results of a small audit as text.
async fn look(host: &Host) -> Vec<String> {
    let files = &host.files;
    let mut seen = Vec::new();
    for path in [
        "/etc/os-release",
        "/etc/os-release",
        "/etc/none",
        "/sys/sick",
        "/sys/bus/pci/devices/0000:18:00.0/vendor",
    ] {
        let path = Utf8Path::new(path);
        seen.push(format!("{:?}", files.read_text(path)));
        seen.push(format!("{:?}", files.stat(path)));
        seen.push(format!("{:?}", files.resolve(path)));
    }
    for path in ["/dev/nvidia0", DRIVER, LIBRARY, MARK] {
        seen.push(format!("{:?}", files.stat(path.into())));
    }
    for directory in ["/sys/bus/pci/devices", "/none", "/etc/os-release"] {
        seen.push(format!("{:?}", files.list(directory.into())));
    }
    seen.push(format!("{:?}", files.free_space("/var/lib".into())));
    for (program, args) in [
        ("uname", vec!["-r"]),
        ("docker", vec!["info"]),
        ("dnf", vec![]),
    ] {
        let mut lines = Vec::new();
        let cmd = Cmd::new(program, args);
        let output = host
            .exec
            .run(&cmd, &mut |_, line| lines.push(line.to_owned()))
            .await;
        seen.push(format!("{output:?} {lines:?}"));
    }
    seen.push(format!(
        "{:?} {}",
        host.gpu.survey().await,
        host.clock.now()
    ));
    seen
}

fn directory() -> (tempfile::TempDir, Utf8PathBuf) {
    let temporary = tempfile::tempdir().unwrap();
    let path = Utf8PathBuf::from_path_buf(temporary.path().join("recording")).unwrap();
    (temporary, path)
}

#[tokio::test]
async fn replay_returns_the_recorded_results() {
    let (_keep, directory) = directory();
    let (host, fakes) = machine();
    let (recorded, recording) =
        record(&host, &directory, &Secrets::default(), &["kubelet"]).unwrap();
    let seen = look(&recorded).await;
    assert_eq!(seen, look(&host).await);
    // Later changes of the machine do not change the recording.
    fakes.files.put("/usr/lib/os-release", "ID=ubuntu\n");
    assert!(recorded.files.read("/etc/os-release".into()).is_ok());
    recording.finish().unwrap();
    let replayed = replay(&directory);
    assert_eq!(look(&replayed).await, seen);
    // The recording also works as a tree for `--root`.
    let tree = rooted::host(&directory.join("files")).unwrap();
    let text = tree.files.read_text("/etc/os-release".into()).unwrap();
    assert_eq!(text.unwrap(), "ID=debian\n");
    assert_eq!(
        tree.files.list("/sys/bus/pci/devices".into()).unwrap(),
        ["0000:18:00.0"]
    );
    let driver = tree.files.stat(DRIVER.into()).unwrap();
    assert_eq!(
        driver.map(|link| link.kind),
        Some(FileKind::Link("../../drivers/nvidia".into()))
    );
    // Files that were seen but not read exist there.
    for path in [LIBRARY, MARK] {
        let real = tree.files.resolve(path.into()).unwrap();
        assert_eq!(real.as_deref(), Some(Utf8Path::new(path)));
    }
}

#[tokio::test]
async fn secrets_stay_on_the_machine() {
    let (_keep, directory) = directory();
    let (host, _fakes) = machine();
    let (recorded, recording) =
        record(&host, &directory, &Secrets::default(), &["kubelet"]).unwrap();
    let shadow = Utf8Path::new("/etc/shadow");
    let join = Utf8Path::new("/etc/join.toml");
    let tokens = Cmd::new("kubectl", ["get", "token"]);
    let login = Cmd::new("docker", ["login", "--password", "hush"]);
    assert!(recorded.files.read(shadow).unwrap().is_some());
    assert!(recorded.files.read(join).unwrap().is_some());
    assert!(recorded.exec.run(&tokens, &mut |_, _| {}).await.is_ok());
    assert!(recorded.exec.run(&login, &mut |_, _| {}).await.is_ok());
    recording.finish().unwrap();

    let manifest = std::fs::read_to_string(directory.join("manifest.json")).unwrap();
    assert!(!manifest.contains("hush") && !manifest.contains("abc"));
    assert_eq!(
        crate::host::real::RealFiles
            .list(&directory.join("files"))
            .unwrap(),
        Vec::<String>::new()
    );
    let replayed = replay(&directory);
    for path in [shadow, join] {
        let error = one_line(&replayed.files.read(path).unwrap_err());
        assert!(error.contains("left out of the recording"), "{error}");
    }
    let error = replayed
        .exec
        .run(&tokens, &mut |_, _| {})
        .await
        .unwrap_err();
    assert!(error.to_string().contains("left out"), "{error}");
}

#[tokio::test]
async fn unrecorded_query_is_an_error_unless_implied() {
    let (_keep, directory) = directory();
    let (host, _fakes) = machine();
    let (recorded, recording) =
        record(&host, &directory, &Secrets::default(), &["kubelet"]).unwrap();
    recorded.files.list("/etc".into()).unwrap();
    recorded.files.stat("/opt".into()).unwrap();
    recording.finish().unwrap();

    let replayed = replay(&directory);
    let error = one_line(&replayed.files.read("/etc/os-release".into()).unwrap_err());
    assert_eq!(error, "read `/etc/os-release`: not in the recording");
    assert!(replayed.files.read("/var/x".into()).is_err());
    // `/etc` was listed without this name, and `/opt` does not exist.
    assert_eq!(replayed.files.read("/etc/none/x".into()).unwrap(), None);
    assert_eq!(replayed.files.stat("/opt/nvidia".into()).unwrap(), None);
    assert_eq!(
        replayed.files.list("/opt/nvidia".into()).unwrap(),
        Vec::<String>::new()
    );
    assert!(replayed.files.write("/etc/x".into(), b"", 0o644).is_err());
    let cmd = Cmd::new("uname", ["-r"]);
    let error = replayed.exec.run(&cmd, &mut |_, _| {}).await.unwrap_err();
    assert!(error.to_string().contains("`uname -r`"));
    assert!(matches!(replayed.gpu.survey().await, Nvml::Failed { .. }));
}

#[test]
fn recording_overwrites_nothing() {
    let (_keep, directory) = directory();
    let (host, _fakes) = machine();
    let (_, recording) = record(&host, &directory, &Secrets::default(), &["kubelet"]).unwrap();
    recording.finish().unwrap();
    assert!(matches!(
        record(&host, &directory, &Secrets::default(), &["kubelet"]),
        Err(RecordError::NotEmpty { .. })
    ));
}

#[test]
fn recording_does_not_follow_symlinks() {
    let (keep, directory) = directory();
    let (host, _fakes) = machine();
    let (recorded, recording) =
        record(&host, &directory, &Secrets::default(), &["kubelet"]).unwrap();
    assert!(recorded.files.read("/etc/os-release".into()).is_ok());
    let elsewhere = keep.path().join("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, directory.join("files")).unwrap();
    recording.finish().unwrap_err();
    assert_eq!(std::fs::read_dir(&elsewhere).unwrap().count(), 0);
}

#[tokio::test]
async fn secret_learned_after_reading_is_omitted() {
    const TOKEN: &str = "abcdef-0123456789";
    let (_keep, directory) = directory();
    let (host, fakes) = machine();
    let said = format!("joined with {TOKEN}");
    fakes.files.put("/etc/said", said.clone());
    fakes.exec.on("uname", move |_, _| ok(&said));
    let secrets = Secrets::default();
    let (recorded, recording) = record(&host, &directory, &secrets, &["kubelet"]).unwrap();
    let path = Utf8Path::new("/etc/said");
    assert!(recorded.files.read(path).unwrap().is_some());
    let uname = Cmd::new("uname", ["-r", TOKEN]);
    assert!(recorded.exec.run(&uname, &mut |_, _| {}).await.is_ok());
    secrets.learn(&Secret::new(TOKEN));
    recording.finish().unwrap();

    let manifest = std::fs::read_to_string(directory.join("manifest.json")).unwrap();
    assert!(manifest.contains("joined with ***") && !manifest.contains(TOKEN));
    let error = one_line(&replay(&directory).files.read(path).unwrap_err());
    assert!(error.contains("a secret from the configuration"), "{error}");
}

#[test]
fn command_lines_of_other_programs_are_not_stored() {
    let (host, fakes) = machine();
    for (pid, command) in [
        (7, "/usr/bin/kubelet --v=2"),
        (8, "client --token hunter2hunter2"),
        (9, "curl -u admin:hunter2hunter2"),
        (10, "kubelet --token hunter2hunter2"),
    ] {
        let line = command.replace(' ', "\0");
        fakes.files.put(&format!("/proc/{pid}/cmdline"), line);
        fakes.files.put(&format!("/proc/{pid}/comm"), "x\n");
    }
    let (_keep, directory) = directory();
    let (recorded, recording) =
        record(&host, &directory, &Secrets::default(), &["kubelet"]).unwrap();
    let seen = recorded.system.processes().unwrap();
    let known: BTreeSet<u32> = (seen.iter())
        .filter(|process| process.command.is_some())
        .map(|process| process.pid)
        .collect();
    assert_eq!(known, BTreeSet::from([7, 10]));
    recording.finish().unwrap();
    assert!(directory.join("files/proc/7/cmdline").exists());
    for pid in [8, 9, 10] {
        assert!(!directory.join(format!("files/proc/{pid}/cmdline")).exists());
    }
    let manifest = std::fs::read_to_string(directory.join("manifest.json")).unwrap();
    assert!(!manifest.contains("hunter2"), "{manifest}");
    let replayed = replay(&directory);
    assert_eq!(replayed.system.processes().unwrap().len(), seen.len());
}
