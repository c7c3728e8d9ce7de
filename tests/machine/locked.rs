//! Machines that are installed from the same lock file while the repositories move on, or from a bundle.

use std::collections::{BTreeMap, BTreeSet};

use gpu_bootstrap::{
    bundle::{BundledFile, BundledImage, BundledKey, BundledPackage, BundledSystem, Manifest},
    config::lock::Lock,
    host::{Cmd, digest::sha256},
    runtimes::RuntimeKind,
    tools::{openpgp, packages::Manager},
};
use toml::{Table, Value};

use crate::{
    archive::{content, digest},
    build::describe,
    dpkg,
    machine::Machine,
    maintenance::{self, AFTER, BEFORE, driver, resumed},
    scenarios::told,
    state::lock,
};

const LOCK: &str = "/root/node.lock";

/// A machine with the packages of this archive and these files.
fn machine(base: &str, archive: &str, files: &[(&str, &str)]) -> Machine {
    let mut about = Table::new();
    about.insert("archive".to_owned(), archive.into());
    let files = files.iter();
    let files = files.map(|(path, text)| ((*path).to_owned(), Value::from(*text)));
    about.insert("files".to_owned(), Value::Table(files.collect()));
    Machine::new(describe(base, about))
}

/// Installed packages with their versions.
fn packages(machine: &Machine) -> BTreeMap<String, String> {
    let all = dpkg::read(&machine.fakes.files).into_iter();
    all.filter(|(_, entry)| entry.there())
        .map(|(name, entry)| (name, entry.version))
        .collect()
}

fn run(machine: &Machine, args: &[&str]) -> String {
    let ran = machine.run(args);
    assert_eq!(ran.exit, 0, "{args:?}: {}{}", ran.out, ran.err);
    ran.out
}

#[test]
fn machines_with_the_same_lock_are_equal() {
    for (base, archive) in rows! {
        "debian-12-h100", "debian-12";
        "almalinux-9-l4-archive", "almalinux-9";
    } {
        let first = machine(base, archive, &[]);
        run(&first, &["install"]);
        let lock = run(&first, &["lock"]);
        let moved = format!("{archive}-moved");
        let parsed = Lock::parse("lock", &lock).expect("a lock file");
        for (name, version) in parsed.all() {
            assert_eq!(
                parsed.digests.get(name),
                Some(&digest(name, version)),
                "{base}"
            );
        }

        let newest = machine(base, &moved, &[]);
        run(&newest, &["install"]);
        assert_ne!(packages(&newest), packages(&first), "{base}");

        let second = machine(base, &moved, &[(LOCK, &lock)]);
        run(&second, &["install", "--lock", LOCK]);
        assert_eq!(packages(&second), packages(&first), "{base}");
        assert_eq!(run(&second, &["lock"]), lock, "{base}");
    }
}

/// The metapackage of the precompiled modules has `dkms` in its name.
#[test]
fn lock_of_precompiled_modules_is_accepted() {
    let ubuntu = |lock: Option<&str>| {
        let about = "release = '24.04'\nkernel = '6.8.0-1060-aws'".parse();
        let machine = Machine::new(describe("ubuntu-cloud", about.expect("TOML")));
        if let Some(lock) = lock {
            machine.fakes.files.put(LOCK, lock);
        }
        machine
    };
    let first = ubuntu(None);
    run(&first, &["install"]);
    let lock = run(&first, &["lock"]);
    assert!(lock.contains("build = \"precompiled\""), "{lock}");
    first.fakes.files.put(LOCK, lock.as_str());
    run(&first, &["plan", "--lock", LOCK]);

    let second = ubuntu(Some(&lock));
    run(&second, &["install", "--lock", LOCK]);
    assert_eq!(packages(&second), packages(&first));
}

/// The repositories have newer versions of dependencies than the lock file, and the node has them.
#[test]
fn upgrade_installs_the_versions_of_the_lock() {
    let first = machine("debian-12-h100", "debian-12", &[]);
    let ran = maintenance::run(&first, "install", &AFTER[..6]);
    assert_eq!(ran.exit, 0, "{}", told(&ran));
    let lock = run(&first, &["lock"]);

    let second = machine("debian-12-h100", "debian-12-moved", &[(LOCK, &lock)]);
    let ran = maintenance::run(&second, "install", &BEFORE);
    assert_eq!(ran.exit, 0, "{}", told(&ran));
    assert!(driver(&second).starts_with("580."), "{}", driver(&second));
    assert_ne!(packages(&second)["runc"], packages(&first)["runc"]);
    let options = ["--reboot", "--lock", LOCK];
    let dry_run = maintenance::run(&second, "upgrade", &["--lock", LOCK, "--dry-run"]);
    assert_eq!(dry_run.exit, 4, "{}", told(&dry_run));
    let ran = maintenance::run(&second, "upgrade", &options);
    assert_eq!(ran.exit, 8, "{}", told(&ran));
    let ran = resumed(&second).expect("a resume unit");
    assert_eq!(ran.exit, 0, "{}", told(&ran));
    let parsed = Lock::parse("lock", &lock).expect("a lock file");
    let installed = packages(&second);
    for (name, version) in parsed.all() {
        assert_eq!(installed.get(name), Some(version), "{name}");
    }
    let check = ["check", "--lock", LOCK, "--only", "packages.lock"];
    run(&second, &check);
}

#[test]
fn lock_contains_the_digest_of_the_validation_image() {
    const IMAGE: &str = "registry.example/probe:1";
    let digest = format!("sha256:{}", "a".repeat(64));
    let exact = format!("validation.image={IMAGE}@{digest}");
    let by_tag = format!("validation.image={IMAGE}");
    let first = machine("debian-12-h100", "debian-12", &[]);
    run(&first, &["install", "--set", &exact]);
    let lock = run(&first, &["lock"]);
    assert!(
        lock.contains(&format!("[images]\n\"{IMAGE}\" = \"{digest}\"\n")),
        "{lock}"
    );

    let pulls = |options: &[&str]| {
        let machine = machine("debian-12-h100", "debian-12", &[(LOCK, &lock)]);
        let ran = machine.run(&[&["install"], options].concat());
        assert_eq!(ran.exit, 0, "{}{}", ran.out, ran.err);
        let pulled = |cmd: &Cmd| {
            (cmd.args.iter().any(|word| word == "pull")).then(|| cmd.args.last().cloned())
        };
        let pulled = ran.commands.iter().filter_map(pulled).flatten();
        let note = machine.run(&["lock"]).err;
        (pulled.collect::<BTreeSet<String>>(), note)
    };
    let (pulled, _) = pulls(&["--lock", LOCK, "--set", &by_tag]);
    assert_eq!(pulled, [format!("{IMAGE}@{digest}")].into());
    let (pulled, note) = pulls(&["--set", &by_tag]);
    assert_eq!(pulled, [IMAGE.to_owned()].into());
    assert!(note.contains("`validation.image` has no digest"), "{note}");
}

#[test]
fn lock_of_another_release_is_rejected() {
    let first = machine("debian-12-h100", "debian-12", &[]);
    run(&first, &["install"]);
    let lock = run(&first, &["lock"]).replace("release = \"12\"", "release = \"13\"");
    let second = machine("debian-12-h100", "debian-12", &[(LOCK, &lock)]);
    let before = second.snapshot();
    let ran = second.run(&["install", "--lock", LOCK]);
    assert_eq!(ran.exit, 5, "{}", ran.err);
    let said = "system debian 13 in the lock, debian 12 on this machine";
    let err: Vec<&str> = ran.err.split_whitespace().collect();
    assert!(err.join(" ").contains(said), "{}", ran.err);
    assert!(gpu_bootstrap::host::fake::diff(&before, &second.snapshot()).is_empty());
}

/// Replaces the digest of a package in a lock file, and returns both. The archive then has another file of the same version.
fn with_other_digest(lock: &str, name: &str) -> (String, String) {
    let parsed = Lock::parse("lock", lock).expect("a lock file");
    let digest = &parsed.digests[name];
    (
        lock.replace(digest.as_str(), &"0".repeat(64)),
        digest.clone(),
    )
}

#[test]
fn replaced_package_file_blocks_the_run_before_the_first_change() {
    for (base, archive, name) in rows! {
        "debian-12-h100", "debian-12", "runc";
        "almalinux-9-l4-archive", "almalinux-9", "gcc";
    } {
        let first = machine(base, archive, &[]);
        run(&first, &["install"]);
        let (lock, digest) = with_other_digest(&run(&first, &["lock"]), name);
        let mut about = Table::new();
        about.insert("archive".to_owned(), archive.into());
        about.insert("lists".to_owned(), true.into());
        let second = Machine::new(describe(base, about));
        second.fakes.files.put(LOCK, lock.clone());
        let before = second.snapshot();
        let ran = second.run(&["install", "--lock", LOCK]);
        let err: Vec<&str> = ran
            .err
            .split_whitespace()
            .chain(ran.out.split_whitespace())
            .collect();
        let err = err.join(" ");
        assert_eq!(ran.exit, 5, "{base}: {err}");
        assert!(err.contains("has replaced the files of "), "{base}: {err}");
        let said = format!("(SHA-256 {}… instead of 000000000000…)", &digest[..12]);
        assert!(err.contains(&said), "{base}: {err}");
        let changed = gpu_bootstrap::host::fake::diff(&before, &second.snapshot());
        assert!(changed.is_empty(), "{base}: {changed:?}");

        // A node that already has the packages does not need their digests.
        first.fakes.files.put(LOCK, lock);
        run(
            &first,
            &["check", "--lock", LOCK, "--only", "packages.lock"],
        );
    }
}

#[test]
fn packages_without_a_listed_digest_are_reported() {
    let first = machine("debian-12-h100", "debian-12", &[]);
    run(&first, &["install"]);
    let whole = run(&first, &["lock"]);
    (lock(&first.state).archive).withdraw(&first.fakes.files, "runc=*");
    let ran = first.run(&["lock"]);
    assert_eq!(ran.exit, 0, "{}", ran.err);
    let err: Vec<&str> = ran.err.split_whitespace().collect();
    let said = "no package list contains one SHA-256 of runc 1.1.5+ds1-1+deb12u1, so the lock file contains only";
    assert!(err.join(" ").contains(said), "{err:?}");
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    let (whole, lock) = (lines(&whole), lines(&ran.out));
    let changed: Vec<_> = whole.iter().zip(&lock).filter(|(a, b)| a != b).collect();
    assert_eq!(changed.len(), 1, "{changed:?}");
    assert!(
        changed[0]
            .0
            .starts_with(&changed[0].1[..changed[0].1.len() - 1])
    );
}

const BUNDLE: &str = "/srv/bundle";

/// The keys that an installation of Debian downloads.
const KEYS: [&str; 2] = [
    "https://nvidia.github.io/libnvidia-container/gpgkey",
    "https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64/3bf863cc.pub",
];

/// Writes a bundle with the keys and the packages of a lock file, except `without`. It has no repositories, because the
/// simulated programs do not read them.
fn put_bundle(machine: &Machine, lock: &str, without: &str) {
    let parsed = Lock::parse("lock", lock).expect("a lock file");
    let system = BundledSystem {
        os: parsed.system.os.clone(),
        release: parsed.system.release.clone(),
        arch: parsed.system.arch.clone(),
        kernel: parsed.system.kernel.clone(),
    };
    let mut manifest = Manifest::new("0.1.0", Manager::Apt, system);
    let add = |manifest: &mut Manifest, path: &str, content: &[u8]| {
        machine
            .fakes
            .files
            .put(&format!("{BUNDLE}/{path}"), content);
        let file = BundledFile {
            size: content.len() as u64,
            sha256: sha256(content),
        };
        manifest.files.insert(path.into(), file);
    };
    add(&mut manifest, "node.lock", lock.as_bytes());
    let keys = openpgp::parse(include_bytes!("../keys/two.asc")).expect("the test keys");
    for (at, url) in KEYS.iter().enumerate() {
        let path = format!("keys/{at}");
        add(&mut manifest, &path, &keys.keys[1].binary);
        manifest.keys.push(BundledKey {
            url: (*url).to_owned(),
            path: path.into(),
        });
        machine.fakes.http.forget(url);
    }
    for (image, digest) in parsed.images.iter().filter(|(name, _)| *name != without) {
        let (id, archive) = docker_archive();
        add(&mut manifest, "images/docker.tar", &archive);
        manifest.images.push(BundledImage {
            image: format!("{image}@{digest}"),
            runtime: RuntimeKind::Docker,
            id,
            path: "images/docker.tar".into(),
        });
    }
    for (name, version) in parsed.all().filter(|(name, _)| *name != without) {
        let path = format!("mirrors/0/{name}.deb");
        add(&mut manifest, &path, content(name, version).as_bytes());
        manifest.packages.push(BundledPackage {
            name: name.clone(),
            version: version.clone(),
            path: path.into(),
        });
    }
    let text = manifest.render().expect("a manifest");
    machine
        .fakes
        .files
        .put(&format!("{BUNDLE}/bundle.toml"), text);
}

#[test]
fn bundle_replaces_sources_and_keys_of_the_run_only() {
    let first = machine("debian-12-h100", "debian-12", &[]);
    run(&first, &["install"]);
    let lock = run(&first, &["lock"]);
    let second = machine("debian-12-h100", "debian-12", &[]);
    put_bundle(&second, &lock, "");
    let verified = run(&second, &["bundle", "verify", BUNDLE]);
    assert!(verified.contains("SHA-256 of its manifest: "), "{verified}");
    let ran = second.run(&["install", "--bundle", BUNDLE]);
    assert_eq!(ran.exit, 0, "{}", ran.err);
    let settings = (
        "APT_CONFIG".to_owned(),
        format!("/run/gpu-bootstrap/bundle-{}/apt.conf", std::process::id()),
    );
    let of_apt = |cmd: &&Cmd| cmd.program.starts_with("apt-");
    let commands: Vec<_> = ran.commands.iter().filter(of_apt).collect();
    assert!(!commands.is_empty());
    for cmd in commands {
        assert!(cmd.env.contains(&settings), "{}", cmd.line());
    }
    assert_eq!(packages(&second), packages(&first));
    let source = "/etc/apt/sources.list.d/gpu-bootstrap-nvidia-container-toolkit.sources";
    let source = second.fakes.files.text(source);
    assert!(
        source.contains("URIs: https://nvidia.github.io/"),
        "{source}"
    );
    let directory = gpu_bootstrap::bundle::sources_of(std::process::id());
    assert!(!second.host().files.exists(&directory).expect("readable"));
    // Later commands use the sources of the machine.
    let ran = second.run(&["plan"]);
    let of_bundle = |cmd: &Cmd| cmd.env.contains(&settings);
    assert_eq!(ran.exit, 0, "{}{}", ran.out, ran.err);
    assert!(!ran.commands.iter().any(of_bundle));
    assert_eq!(run(&second, &["lock"]), lock);
    let ran = second.run(&["uninstall"]);
    assert_eq!(ran.exit, 0, "{}{}", ran.out, ran.err);
    assert!(ran.commands.iter().any(|cmd| of_apt(&cmd)));
    assert!(!ran.commands.iter().any(of_bundle));
}

/// Returns an archive of `docker save`, and the ID of its image.
fn docker_archive() -> (String, Vec<u8>) {
    let configuration = "{}";
    let file = format!("{}.json", sha256(configuration.as_bytes()));
    let list = format!(r#"[{{"Config":"{file}","RepoTags":null,"Layers":[]}}]"#);
    let mut archive = tar::Builder::new(Vec::new());
    for (name, content) in [(&*file, configuration), ("manifest.json", &list)] {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        let packed = archive.append_data(&mut header, name, content.as_bytes());
        packed.expect("packed");
    }
    let id = format!("sha256:{}", file.trim_end_matches(".json"));
    (id, archive.into_inner().expect("packed"))
}

#[test]
fn validation_image_is_loaded_from_the_bundle() {
    const IMAGE: &str = "registry.example/probe:1";
    let digest = "a".repeat(64);
    let exact = format!("validation.image={IMAGE}@sha256:{digest}");
    let tag = format!("registry.example/probe:gpu-bootstrap-{digest}");
    let settings = ["--set", &*exact, "--set", "runtime.use=[\"docker\"]"];
    let with = |args: &[&'static str]| [args, &settings].concat();
    let first = machine("debian-12-h100", "debian-12", &[]);
    run(&first, &with(&["install"]));
    let lock = run(&first, &["lock"]);

    let second = machine("debian-12-h100", "debian-12", &[]);
    put_bundle(&second, &lock, IMAGE);
    let before = second.snapshot();
    let ran = second.run(&with(&["install", "--bundle", BUNDLE]));
    assert_eq!(ran.exit, 5, "{}", told(&ran));
    let said: Vec<&str> = ran.err.split_whitespace().collect();
    let lacks = "nor in the bundle for docker";
    assert!(said.join(" ").contains(lacks), "{}", told(&ran));
    assert!(gpu_bootstrap::host::fake::diff(&before, &second.snapshot()).is_empty());
    second.fakes.files.take(&format!("{BUNDLE}/bundle.toml"));

    put_bundle(&second, &lock, "");
    let ran = second.run(&with(&["plan", "--bundle", BUNDLE]));
    let said: Vec<&str> = ran.out.split_whitespace().collect();
    let loads = "into docker from `/srv/bundle/images/docker.tar`";
    assert!(said.join(" ").contains(loads), "{}", told(&ran));
    let ran = second.run(&with(&["install", "--bundle", BUNDLE]));
    assert_eq!(ran.exit, 0, "{}", told(&ran));
    let lines: Vec<String> = ran.commands.iter().map(Cmd::line).collect();
    assert!(
        !lines.iter().any(|line| line.contains(" pull ")),
        "{lines:?}"
    );
    let runs = |line: &&String| line.starts_with("docker run ");
    let container = lines.iter().find(runs).expect("a validation");
    assert!(container.contains(&format!("-- {tag} ")), "{container}");

    // Later commands do not need the bundle.
    let ran = second.run(&with(&["plan"]));
    assert_eq!(ran.exit, 0, "{}", told(&ran));
    let ran = second.run(&with(&["check", "--validate"]));
    assert_eq!(ran.exit, 0, "{}", told(&ran));
    let lines: Vec<String> = ran.commands.iter().map(Cmd::line).collect();
    assert!(
        lines.iter().any(|line| line.contains(&tag)),
        "{}",
        told(&ran)
    );
    let ran = second.run(&["uninstall"]);
    assert_eq!(ran.exit, 0, "{}", told(&ran));
    let removed = format!("docker image rm --force -- {tag}");
    assert!(ran.commands.iter().any(|cmd| cmd.line() == removed));
}

#[test]
fn incomplete_bundle_blocks_the_run() {
    let first = machine("debian-12-h100", "debian-12", &[]);
    run(&first, &["install"]);
    let lock = run(&first, &["lock"]);
    let second = machine("debian-12-h100", "debian-12", &[]);
    put_bundle(&second, &lock, "runc");
    let before = second.snapshot();
    for command in ["plan", "install"] {
        let ran = second.run(&[command, "--bundle", BUNDLE]);
        assert_eq!(ran.exit, 5, "{}{}", ran.out, ran.err);
        let said = format!("{}{}", ran.out, ran.err);
        let said: Vec<&str> = said.split_whitespace().collect();
        assert!(said.join(" ").contains("the bundle lacks runc"), "{said:?}");
    }
    assert!(gpu_bootstrap::host::fake::diff(&before, &second.snapshot()).is_empty());
    second.fakes.files.take("/srv/bundle/keys/0");
    let ran = second.run(&["install", "--bundle", BUNDLE]);
    assert_eq!(ran.exit, 5, "{}", ran.err);
    assert!(ran.err.contains("`keys/0` is missing"), "{}", ran.err);
}
