use std::{collections::BTreeMap, io, time::Duration};

use super::{
    create::{ImageExport, PrebuiltModules, Recipe},
    *,
};
use crate::{
    compat::identity::Flavor,
    config::desired::Prebuilt,
    host::{
        Cmd, HttpError, Output,
        fake::{self, FakeFiles, Fakes, Mutation, failed, ok},
    },
    model::{
        packages::{Repository, Signed},
        text::reads_any_text,
    },
    runtimes::archive::tests::docker_archive,
    tools::{
        openpgp,
        packages::{Manager, Settings, mirrors::Mirror},
        prebuilt::{BuildTarget, PrivateKey, SIGNATURE, keys::PRIVATE},
    },
};

const DIRECTORY: &str = "/srv/bundle";

/// The source files of a run.
const SOURCES: &str = "/run/gpu-bootstrap/bundle-1";

const LIST: &str = "mirrors/0/dists/bookworm/InRelease";

const KEY: &str = "https://vendor.example.org/key";

fn manifest() -> Manifest {
    let system = BundledSystem {
        os: "debian".to_owned(),
        release: "12".to_owned(),
        arch: "x86_64".to_owned(),
        kernel: "6.1.0-44-amd64".parse().unwrap(),
    };
    Manifest::new("0.1.0", Manager::Apt, system)
}

/// Writes a bundle with a repository and a key.
fn bundle(fakes: &Fakes) -> Manifest {
    let mut manifest = manifest();
    for (path, content) in [
        (LOCK, "lock = 1\n"),
        (LIST, "signed"),
        ("keys/vendor", "key"),
    ] {
        fakes.files.put(&format!("{DIRECTORY}/{path}"), content);
        let file = BundledFile {
            size: content.len() as u64,
            sha256: sha256(content.as_bytes()),
        };
        manifest.files.insert(path.into(), file);
    }
    manifest.mirrors.push(Mirror {
        url: "http://archive.example.org/debian".to_owned(),
        suite: "bookworm".to_owned(),
        components: vec!["main".to_owned()],
        architectures: vec!["amd64".to_owned()],
        path: "mirrors/0".into(),
        ..Mirror::default()
    });
    manifest.keys.push(BundledKey {
        url: KEY.to_owned(),
        path: "keys/vendor".into(),
    });
    let text = manifest.render().unwrap();
    fakes.files.put(&format!("{DIRECTORY}/{MANIFEST}"), text);
    manifest
}

fn open(host: &Host) -> Result<Bundle, ChangeError> {
    Bundle::open(&*host.files, DIRECTORY.into(), true)
}

#[test]
fn manifest_is_read_as_written() {
    let (_, fakes) = fake::host();
    let manifest = bundle(&fakes);
    let text = manifest.render().unwrap();
    assert_eq!(Manifest::parse(&text), Ok(manifest));
}

#[test]
fn manifest_with_paths_outside_the_bundle_is_rejected() {
    let (_, fakes) = fake::host();
    let text = bundle(&fakes).render().unwrap();
    for (from, to, said) in rows! {
        LIST, "../../etc/passwd", "`../../etc/passwd` is not inside the bundle";
        LIST, "/etc/passwd", "`/etc/passwd` is not inside the bundle";
        LIST, "mirrors/../../x", "is not inside the bundle";
        "path = \"mirrors/0\"", "path = \"../..\"", "is not inside the bundle";
        "path = \"keys/vendor\"", "path = \"keys/other\"", "`keys/other` has no size and digest";
        "[\"amd64\"]", "[\"amd64\\nTrusted: yes\"]", "contains special characters";
        "path = \"mirrors/0\"", "path = \"mirrors/0 [trusted=yes]\"", "contains special characters";
        "bundle = 1", "bundle = 2", "the format of the bundle is 2";
        "bundle = 1", "bundle = 1\nunknown = 1", "line ";
        "bundle = 1", "", "the format of the bundle is none";
    } {
        let changed = text.replace(from, to);
        assert_ne!(changed, text, "{from}");
        let why = Manifest::parse(&changed).unwrap_err();
        assert!(why.contains(said), "{to}: {why}");
    }
}

type Damage = fn(&FakeFiles);

#[test]
fn differences_from_the_manifest_are_listed() {
    let damage: [(&str, Damage, bool); 6] = [
        (
            "`keys/vendor` has another SHA-256",
            |files| files.put("/srv/bundle/keys/vendor", "kez"),
            true,
        ),
        (
            "`keys/vendor` has 5 bytes instead of 3",
            |files| files.put("/srv/bundle/keys/vendor", "other"),
            false,
        ),
        (
            "`keys/vendor` is missing",
            |files| files.take("/srv/bundle/keys/vendor"),
            false,
        ),
        (
            "`mirrors/0/x.deb` is not in the manifest",
            |files| files.put("/srv/bundle/mirrors/0/x.deb", ""),
            false,
        ),
        (
            "`keys/link` is a symlink",
            |files| files.put_link("/srv/bundle/keys/link", "/etc/shadow"),
            false,
        ),
        (
            "`keys/pipe` is not a regular file",
            |files| files.put_other("/srv/bundle/keys/pipe"),
            false,
        ),
    ];
    for (expected, damage, is_content) in damage {
        let (host, fakes) = fake::host();
        bundle(&fakes);
        let verified = open(&host).unwrap();
        assert_eq!(verified.verify(&*host.files).unwrap(), [""; 0]);
        damage(&fakes.files);
        assert_eq!(verified.verify(&*host.files).unwrap(), [expected]);
        let error = open(&host).unwrap_err();
        assert_eq!(error.reason, "bundle-damaged");
        if !is_content {
            assert_eq!(error.words.as_deref(), Some(expected));
        }
    }
}

#[test]
fn unusable_directory_is_rejected() {
    let (host, fakes) = fake::host();
    let error = open(&host).unwrap_err();
    assert!(error.what.contains("does not exist"), "{error}");
    bundle(&fakes);
    assert_eq!(
        open(&host).unwrap().lock(&*host.files).unwrap(),
        "lock = 1\n"
    );
    fakes.files.put_mode(
        "/srv/bundle/bundle.toml",
        bundle(&fakes).render().unwrap(),
        0o666,
    );
    assert_eq!(open(&host).unwrap_err().reason, "untrusted-file");
    bundle(&fakes);
    fakes.files.own("/srv/bundle/keys/vendor", 1000, 1000);
    let error = open(&host).unwrap_err();
    assert!(
        error
            .what
            .contains("`/srv/bundle/keys/vendor` is writable by non-root users"),
        "{error}"
    );
    let hint = error.hint.unwrap_or_default();
    assert!(hint.contains("the SHA-256 of its manifest"), "{hint}");
    fakes.files.own("/srv/bundle/keys/vendor", 0, 0);
    fakes.files.put_link("/srv/a link", DIRECTORY);
    assert!(Bundle::open(&*host.files, "/srv/a link".into(), true).is_ok());
    assert!(check_characters("/srv/a bundle".into()).is_err());
    fakes.files.put_directory("/root/private", 0o700);
    let error = check_access(&*host.files, "/root/private".into()).unwrap_err();
    assert!(
        error.what.contains("`/root/private` is not accessible"),
        "{error}"
    );
}

#[test]
fn bundle_that_other_users_cannot_read_is_rejected() {
    let close: [(&str, Damage); 3] = [
        ("keys/vendor", |files| {
            files.put_mode("/srv/bundle/keys/vendor", "key", 0o640)
        }),
        ("keys", |files| {
            files.take("/srv/bundle/keys");
            files.put_directory("/srv/bundle/keys", 0o754);
            files.put("/srv/bundle/keys/vendor", "key");
        }),
        ("keys", |files| {
            files.take("/srv/bundle/keys");
            files.put_directory("/srv/bundle/keys", 0o751);
            files.put("/srv/bundle/keys/vendor", "key");
        }),
    ];
    for (path, close) in close {
        let (host, fakes) = fake::host();
        bundle(&fakes);
        close(&fakes.files);
        let error = open(&host).unwrap_err();
        let why = format!("`{path}` is not accessible for all users");
        assert!(error.what.contains(&why), "{error}");
        assert_eq!(
            error.hint.as_deref(),
            Some("run `chmod -R o+rX /srv/bundle`")
        );
    }
}

#[tokio::test]
async fn commands_and_keys_are_redirected() {
    let (host, fakes) = fake::host();
    bundle(&fakes);
    // Of a killed process with the same ID.
    let stale = format!("{SOURCES}/sources/stale.sources");
    fakes.files.put(&stale, "");
    fakes.files.put(
        "/etc/apt/sources.list",
        "deb http://archive.example.org/debian bookworm main\ndeb https://other.example.org/ bookworm main\n",
    );
    fakes.exec.on("apt-get", |_, _| ok(""));
    fakes.exec.on("dpkg", |_, _| ok(""));
    fakes.http.serve("https://other.example.org/key", "other");
    let repositories = [vendor("00")];
    let redirected = (open(&host).unwrap()).redirect(
        &host,
        Manager::Apt.backend(),
        &repositories,
        SOURCES.into(),
    );
    let (redirected, written) = redirected.unwrap();
    for (program, is_redirected) in [("apt-get", true), ("dpkg", false)] {
        let cmd = Cmd::new(program, ["update"]);
        redirected.exec.run(&cmd, &mut |_, _| {}).await.unwrap();
        let ran = fakes.exec.log().pop().unwrap();
        assert_eq!(ran != cmd, is_redirected, "{program}");
    }
    let sources = fakes
        .files
        .text(&format!("{SOURCES}/sources/bundle.sources"));
    assert!(
        sources.contains("URIs: file:/srv/bundle/mirrors/0\n"),
        "{sources}"
    );
    assert!(!sources.contains("other.example.org"), "{sources}");
    assert!(!host.files.exists(stale.as_str().into()).unwrap());
    // Only a run with the bundle reads its sources.
    let lists =
        "/var/lib/apt/lists/_srv_bundle_mirrors_0_dists_bookworm_main_binary-amd64_Packages";
    fakes.files.put(lists, "");
    let backend = Manager::Apt.backend();
    let has_lists = |bundled| backend.has_lists(&*host.files, bundled).unwrap();
    assert!(has_lists(Some(SOURCES.into())));
    assert!(!has_lists(None));
    assert_eq!(redirected.http.get(KEY, 10).await.unwrap(), b"key");
    let other = redirected
        .http
        .get("https://other.example.org/key", 10)
        .await;
    assert_eq!(other.unwrap(), b"other");
    let other = (open(&host).unwrap()).redirect(
        &host,
        Manager::Dnf.backend(),
        &repositories,
        SOURCES.into(),
    );
    assert!(other.is_err_and(|error| error.reason == "bundle-unusable"));
    drop(written);
    assert!(!host.files.exists(SOURCES.into()).unwrap());
    assert_eq!(
        fakes.files.text("/etc/apt/sources.list").lines().count(),
        2,
        "the sources of the machine are not changed"
    );
}

/// The manifest is not signed. The signature of module archives may be optional, so only keys, which have fingerprints, come from
/// the bundle.
#[tokio::test]
async fn only_keys_of_configured_repositories_are_answered() {
    let (host, fakes) = fake::host();
    let url = "https://modules.example.org/modules.tar.gz";
    let text = bundle(&fakes).render().unwrap().replace(KEY, url);
    fakes.files.put(&format!("{DIRECTORY}/{MANIFEST}"), text);
    let redirected = |host: &Host, repository: Repository| {
        let bundle = open(host).unwrap();
        let redirected =
            bundle.redirect(host, Manager::Apt.backend(), &[repository], SOURCES.into());
        redirected.unwrap().0.http
    };
    let http = redirected(&host, vendor("00"));
    assert!(http.get(url, 100).await.is_err(), "the machine is offline");
    fakes.http.serve(url, "modules");
    assert_eq!(http.get(url, 100).await.unwrap(), b"modules");
    bundle(&fakes);
    let http = redirected(&host, vendor("00"));
    assert_eq!(http.get(KEY, 3).await.unwrap(), b"key");
    let error = http.get(KEY, 2).await.unwrap_err();
    assert!(
        matches!(error, HttpError::TooLarge { limit: 2, .. }),
        "{error}"
    );
}

#[test]
fn repository_that_the_machine_excludes_is_rejected() {
    let (host, fakes) = fake::host();
    bundle(&fakes);
    fakes.files.put(
        "/etc/apt/preferences.d/site",
        "Package: *\nPin: origin archive.example.org\nPin-Priority: -1\n",
    );
    let redirected =
        (open(&host).unwrap()).redirect(&host, Manager::Apt.backend(), &[], SOURCES.into());
    let error = redirected.err().unwrap();
    assert_eq!(
        (error.reason, error.exit),
        ("bundle-unusable", Exit::Blocked)
    );
    let said = "`/etc/apt/preferences.d/site`, line 1: `Pin: origin archive.example.org`";
    assert!(error.what.contains(said), "{error}");
    assert!(!host.files.exists(SOURCES.into()).unwrap());
}

reads_any_text!("(\\[|\\]|=|\n|\"|bundle = 1|[a-z./-]*|.)*", |text| {
    Manifest::parse(&text)
});

const PACKAGE: &str = "a package";

/// The suites of the repository. The URL of a package does not show its suite.
const SUITES: [&str; 2] = ["bookworm", "bookworm-updates"];

/// Simulates downloads below the state directory.
fn downloads(fakes: &Fakes) {
    downloads_from(fakes, "http://archive.example.org/debian/");
}

/// Simulates downloads from this URL.
fn downloads_from(fakes: &Fakes, origin: &'static str) {
    let digest = sha256(b"lists");
    fakes.exec.on("apt-get", move |cmd: &Cmd, files: &FakeFiles| -> Output {
        let state = cmd.env.iter().find(|(key, _)| key == "APT_CONFIG");
        let state = state.and_then(|(_, path)| path.strip_suffix("/apt.conf")).unwrap();
        let has = |word: &str| cmd.args.iter().any(|arg| arg == word);
        if has("update") {
            for suite in SUITES {
                let name = format!("archive.example.org_debian_dists_{suite}_InRelease");
                let index = format!("SHA256:\n {digest} 5 main/binary-amd64/Packages.xz\n");
                files.put(&format!("{state}/lists/{name}"), index);
            }
            return ok("");
        }
        if has("indextargets") {
            let targets = SUITES.map(|suite| format!(
                "MetaKey: main/binary-amd64/Packages\n\
                 URI: {origin}dists/{suite}/main/binary-amd64/Packages\n\
                 Filename: {state}/lists/archive.example.org_debian_dists_{suite}_main_binary-amd64_Packages\n\
                 Architecture: amd64\nComponent: main\nRelease: {suite}\nRepo-URI: {origin}\n"
            ));
            return ok(targets.join("\n"));
        }
        assert!(has("download") && has("--print-uris"), "{}", cmd.line());
        let printed = match has("runc=1.1.5+ds1-1") {
            true => ok(format!(
                "'{origin}pool/r/runc_1.1.5%2bds1-1_amd64.deb' runc_1.1.5+ds1-1_amd64.deb 9 SHA256:{}\n",
                sha256(PACKAGE.as_bytes())
            )),
            false => failed(100, "E: Version '2' for 'runc' was not found"),
        };
        match has("tini=1") {
            true => Output {
                stdout: printed.stdout,
                ..failed(100, "E: Unable to locate package tini")
            },
            false => printed,
        }
    });
    fakes.exec.on("/usr/lib/apt/apt-helper", |cmd, files| {
        for arg in cmd.args.iter().filter(|arg| arg.starts_with("/srv/")) {
            let content = if arg.ends_with(".deb") {
                PACKAGE
            } else {
                "lists"
            };
            files.put(arg, content);
        }
        ok("")
    });
}

fn vendor(fingerprint: &str) -> Repository {
    Repository {
        name: "vendor".to_owned(),
        url: "https://vendor.example.org/".to_owned(),
        suites: vec!["/".to_owned()],
        components: Vec::new(),
        architectures: Vec::new(),
        key_url: Some(KEY.to_owned()),
        fingerprints: vec![fingerprint.to_owned()],
        keyring: None,
        key_files: Vec::new(),
        priority: None,
        packages: Vec::new(),
        signed: Signed::Metadata,
    }
}

async fn created(
    host: &Host,
    version: &str,
    repository: Repository,
) -> Result<create::CreatedBundle, ChangeError> {
    created_with(host, &[("runc", version)], repository).await
}

async fn created_with(
    host: &Host,
    packages: &[(&str, &str)],
    repository: Repository,
) -> Result<create::CreatedBundle, ChangeError> {
    created_saying(host, packages, repository, &mut |_| {}).await
}

async fn created_saying(
    host: &Host,
    packages: &[(&str, &str)],
    repository: Repository,
    say: &mut (dyn FnMut(&str) + Send),
) -> Result<create::CreatedBundle, ChangeError> {
    let packages = by_name(packages);
    create::create(
        host,
        &recipe(&packages, &BTreeMap::new(), &[repository]),
        say,
    )
    .await
}

fn by_name(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    let pairs = pairs.iter();
    pairs
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect()
}

fn recipe<'a>(
    packages: &'a BTreeMap<String, String>,
    digests: &'a BTreeMap<String, String>,
    repositories: &'a [Repository],
) -> Recipe<'a> {
    Recipe {
        out: DIRECTORY.into(),
        manager: Manager::Apt,
        settings: Settings::behind_a_proxy(),
        system: manifest().system,
        lock: "lock = 1\n",
        packages,
        digests,
        repositories,
        modules: None,
        image: None,
        program: "/usr/bin/gpu-bootstrap".into(),
    }
}

#[tokio::test]
async fn package_with_another_digest_than_in_the_lock_is_rejected() {
    let packages = by_name(&[("runc", "1.1.5+ds1-1")]);
    let listed = sha256(PACKAGE.as_bytes());
    for (locked, is_rejected) in [(&*"0".repeat(64), true), (&*listed, false)] {
        let (host, fakes) = fake::host();
        downloads(&fakes);
        fakes.files.put("/usr/bin/gpu-bootstrap", "program");
        let digests = by_name(&[("runc", locked)]);
        let created = create::create(&host, &recipe(&packages, &digests, &[]), &mut |_| {}).await;
        assert_eq!(created.is_err(), is_rejected, "{created:?}");
        if let Err(error) = created {
            assert_eq!(error.reason, "bundle-incomplete", "{error}");
            let said = "has replaced the files of runc 1.1.5+ds1-1";
            assert!(error.what.contains(said), "{error}");
            assert_eq!(host.files.list(DIRECTORY.into()).unwrap(), [""; 0]);
        }
    }
}

/// The first source has no modules for the kernel.
#[tokio::test]
async fn prebuilt_modules_are_copied_with_their_signature() {
    let target = BuildTarget {
        distribution: "debian".to_owned(),
        kernel: "6.1.0-44-amd64".parse().unwrap(),
        architecture: "x86_64".to_owned(),
        driver: "580.178.04".parse().unwrap(),
        flavor: Flavor::Open,
    };
    let name = target.archive();
    let packages = by_name(&[("runc", "1.1.5+ds1-1")]);
    for (sources, is_found) in [
        (
            &["https://a.example.org", "https://b.example.org/"][..],
            true,
        ),
        (&["https://a.example.org"], false),
    ] {
        let (host, fakes) = fake::host();
        downloads(&fakes);
        fakes.files.put("/usr/bin/gpu-bootstrap", "program");
        let key = PrivateKey::read(PRIVATE).unwrap();
        let signature = key.sign(b"modules", &name, jiff::Timestamp::UNIX_EPOCH);
        let url = format!("https://b.example.org/{name}");
        fakes.http.serve(&url, "modules");
        fakes
            .http
            .serve(&format!("{url}{SIGNATURE}"), signature.clone());
        let prebuilt = Prebuilt {
            sources: sources.iter().map(|&source| source.to_owned()).collect(),
            public_keys: vec![key.public()],
            not_before: None,
        };
        let digests = BTreeMap::new();
        let recipe = Recipe {
            modules: Some(PrebuiltModules {
                prebuilt: &prebuilt,
                target: target.clone(),
            }),
            ..recipe(&packages, &digests, &[])
        };
        let mut said = Vec::new();
        let mut say = |line: &str| said.push(line.to_owned());
        create::create(&host, &recipe, &mut say).await.unwrap();
        let opened = open(&host).unwrap();
        assert_eq!(opened.verify(&*host.files).unwrap(), [""; 0]);
        let path = format!("modules/{name}");
        let has = |path: &str| opened.manifest().files.contains_key(Utf8Path::new(path));
        assert_eq!(has(&path), is_found);
        let lacks = said
            .iter()
            .find(|line| line.contains("no prebuilt modules"));
        assert_eq!(lacks.is_none(), is_found, "{said:?}");
        match lacks {
            None => {
                let text = |path: &str| fakes.files.text(&format!("{DIRECTORY}/{path}"));
                assert_eq!(text(&path), "modules");
                assert_eq!(text(&format!("{path}{SIGNATURE}")), signature);
                assert!(has(&format!("{path}{SIGNATURE}")));
            }
            Some(line) => assert!(line.contains("https://a.example.org: "), "{line}"),
        }
    }
}

/// The client returns `id` for the image, or reports that it is missing.
#[tokio::test]
async fn validation_image_of_the_runtime_is_exported() {
    let (id, archive) = docker_archive();
    let other = format!("sha256:{}", "1".repeat(64));
    let digest = format!("sha256:{}", "0".repeat(64));
    let image = format!("registry.example.com/probe@{digest}");
    let packages = by_name(&[("runc", "1.1.5+ds1-1")]);
    for (id, reason) in [
        (Some(&id), None),
        (Some(&other), Some("bundle-image")),
        (None, Some("bundle-incomplete")),
    ] {
        let (host, fakes) = fake::host();
        downloads(&fakes);
        fakes.files.put("/usr/bin/gpu-bootstrap", "program");
        let (found, content) = (id.cloned(), archive.clone());
        fakes.exec.on("docker", move |cmd, files| {
            match (&*cmd.args[0], &found, cmd.args[1].strip_prefix("--output=")) {
                ("save", Some(_), Some(path)) => files.put(path, content.clone()),
                ("image", Some(id), _) if cmd.args[4].contains('@') => {
                    return ok(format!("{id}\n"));
                }
                _ => return failed(1, "Error: No such image: x"),
            }
            ok("")
        });
        let digests = BTreeMap::new();
        let recipe = Recipe {
            image: Some(ImageExport {
                image: &image,
                digest: &digest,
                runtimes: vec![RuntimeKind::Docker],
                limit: Duration::from_secs(60),
            }),
            ..recipe(&packages, &digests, &[])
        };
        let created = create::create(&host, &recipe, &mut |_| {}).await;
        let error = created.as_ref().err();
        assert_eq!(error.map(|error| error.reason), reason, "{created:?}");
        if reason.is_some() {
            let hint = error.and_then(|error| error.hint.clone()).unwrap();
            assert!(hint.contains("pull"), "{hint}");
            assert_eq!(host.files.list(DIRECTORY.into()).unwrap(), [""; 0]);
            continue;
        }
        let opened = open(&host).unwrap();
        assert_eq!(opened.verify(&*host.files).unwrap(), [""; 0]);
        let archives = opened.archives();
        let one = &archives[&(RuntimeKind::Docker, image.clone())];
        assert_eq!(one.path, "/srv/bundle/images/docker.tar");
        assert_eq!((&one.id, &one.sha256), (id.unwrap(), &sha256(&archive)));
        // An archive with another image, replaced together with its digest.
        let path = format!("{DIRECTORY}/{MANIFEST}");
        let text = fakes.files.text(&path).replace(id.unwrap(), &other);
        fakes.files.put(&path, text);
        let differences = open(&host).unwrap().verify(&*host.files).unwrap();
        assert_eq!(differences.len(), 1, "{differences:?}");
        assert!(differences[0].contains(&other), "{differences:?}");
    }
}

#[tokio::test]
async fn failed_removal_after_a_failed_creation_is_reported() {
    let (host, fakes) = fake::host();
    downloads(&fakes);
    fakes.files.before_mutations(|_, mutation| match mutation {
        Mutation::File("remove", _) => Err(io::Error::other("broken disk")),
        _ => Ok(()),
    });
    let mut said = Vec::new();
    let mut say = |line: &str| said.push(line.to_owned());
    let error = created_saying(&host, &[("runc", "2")], vendor("00"), &mut say)
        .await
        .unwrap_err();
    assert!(!error.to_string().contains("broken disk"), "{error}");
    let last = said.last().unwrap();
    assert!(
        last.starts_with("failed to remove the incomplete bundle `/srv/bundle`: ")
            && last.contains("broken disk"),
        "{last}"
    );
}

#[tokio::test]
async fn bundle_is_created_and_verified() {
    let (host, fakes) = fake::host();
    downloads(&fakes);
    fakes.files.put("/usr/bin/gpu-bootstrap", "program");
    let keys = include_bytes!("../../tests/keys/two.asc");
    fakes.http.serve(KEY, keys.to_vec());
    let fingerprint = openpgp::parse(keys).unwrap().keys[0].fingerprint.clone();
    let bundle = created(&host, "1.1.5+ds1-1", vendor(&fingerprint))
        .await
        .unwrap();
    assert_eq!((bundle.packages, bundle.files), (1, 8));
    let opened = open(&host).unwrap();
    assert_eq!(opened.verify(&*host.files).unwrap(), [""; 0]);
    assert_eq!(opened.digest(&*host.files).unwrap(), bundle.digest);
    let expected = ("runc".to_owned(), "1.1.5+ds1-1".to_owned());
    assert_eq!(opened.packages(), BTreeSet::from([expected]));
    let package = "/srv/bundle/mirrors/0/pool/r/runc_1.1.5+ds1-1_amd64.deb";
    assert_eq!(fakes.files.text(package), PACKAGE);
    for suite in SUITES {
        let list = format!("/srv/bundle/mirrors/0/dists/{suite}/main/binary-amd64/Packages.xz");
        assert_eq!(fakes.files.text(&list), "lists");
    }
    // A directory with files is not changed.
    let error = created(&host, "1.1.5+ds1-1", vendor(&fingerprint))
        .await
        .unwrap_err();
    assert_eq!(error.reason, "bundle-exists");
    assert!(open(&host).is_ok());
}

#[tokio::test]
async fn failed_creation_removes_its_files() {
    for (version, fingerprint, reason, existed) in [
        ("2", "00", "tool-failed", false),
        ("1.1.5+ds1-1", "00", "key-mismatch", true),
    ] {
        let (host, fakes) = fake::host();
        if existed {
            fakes.files.put_directory(DIRECTORY, 0o755);
        }
        downloads(&fakes);
        let keys = include_bytes!("../../tests/keys/two.asc");
        fakes.http.serve(KEY, keys.to_vec());
        let error = created(&host, version, vendor(fingerprint))
            .await
            .unwrap_err();
        assert_eq!(error.reason, reason, "{error}");
        assert_eq!(host.files.exists(DIRECTORY.into()).unwrap(), existed);
        assert_eq!(host.files.list(DIRECTORY.into()).unwrap(), [""; 0]);
    }
}

#[tokio::test]
async fn source_with_credentials_is_rejected_without_showing_them() {
    let (host, fakes) = fake::host();
    let origin = "http://joe:s3cret1@archive.example.org/debian/";
    downloads_from(&fakes, origin);
    let error = created(&host, "1.1.5+ds1-1", vendor("00"))
        .await
        .unwrap_err();
    assert_eq!(error.reason, "bundle-credentials", "{error}");
    let hint = error.hint.clone().unwrap();
    assert!(hint.contains("/etc/apt/auth.conf.d"), "{hint}");
    assert!(!error.to_string().contains("s3cret1"), "{error}");
    assert!(!host.files.exists(DIRECTORY.into()).unwrap());
}

#[tokio::test]
async fn failed_query_is_the_cause_if_nothing_was_located() {
    let (host, fakes) = fake::host();
    downloads(&fakes);
    let error = created(&host, "2", vendor("00")).await.unwrap_err();
    assert_eq!(error.reason, "tool-failed", "{error}");
    let cause = error.ended().unwrap().to_string();
    assert!(
        cause.contains("Version '2' for 'runc' was not found"),
        "{cause}"
    );
    // The query printed one of the packages.
    let packages = [("runc", "1.1.5+ds1-1"), ("tini", "1")];
    let error = created_with(&host, &packages, vendor("00"))
        .await
        .unwrap_err();
    assert_eq!(error.reason, "bundle-incomplete", "{error}");
    assert!(error.what.ends_with("offers tini 1"), "{error}");
    let words = error.words.unwrap();
    assert!(words.contains("Unable to locate package tini"), "{words}");
}
