//! `lock`: writes the versions of a validated node to a lock file.

use std::collections::{BTreeMap, BTreeSet};

use camino::Utf8Path;

use super::{
    Failure, args,
    env::{Console, Env},
    machine, prepare, print,
};
use crate::{
    config::{
        desired::{Desired, PackagePolicy, Purpose},
        kernel::is_dkms_package,
        lock::{Lock, LockedDriver, LockedSystem, MadeBy, release},
        values::Build,
    },
    engine::{self, ValidatedNode},
    exit::Exit,
    facts::Facts,
    host::{
        Host, ReadFiles as _,
        digest::sha256,
        trusted::{Trusted, refuse_foreign},
    },
    journal::Request,
    tools::packages::{Package, mirrors::by_package},
};

pub(super) async fn run(
    host: &Host,
    env: &Env,
    console: &mut Console<'_>,
    args: &args::LockArgs,
) -> Result<Exit, Failure> {
    env.only_root(host, "create a lock file")?;
    let out = args.out.as_deref().map(prepare::absolute).transpose()?;
    let node = engine::validated_node(host)?;
    // Only the package database is needed, and the bundle may no longer exist.
    let request = Request {
        bundle: None,
        ..engine::request(host)?.unwrap_or_default()
    };
    let before = match &request.lock {
        Some(text) => Some(Lock::parse("the lock file in the journal", text)?),
        None => None,
    };
    let target = prepare::target(host, env, request).await?;
    let (desired, facts) = (&target.resolution.desired, target.facts());
    if (desired.driver.as_ref()).is_some_and(|driver| driver.prebuilt_instead_of.is_some()) {
        return Err(not_locked(
            "`driver.prebuilt.only` is set, and no repository offers packages that are built on each machine",
            "create the lock file on a node that compiles its modules, or set `driver.version` on the nodes",
        ));
    }
    let database = target.database().await?;
    let system = system(facts)?;
    let packages = packages(&node, desired, &system, &database);
    if let Some((name, why)) = not_as_validated(&node, &packages) {
        return Err(not_locked(
            &format!("the driver package {name} {why}"),
            "run `gpu-bootstrap install`, then create the lock file",
        ));
    }
    if packages.is_empty() {
        return Err(not_locked(
            "no package of gpu-bootstrap is installed",
            "run `gpu-bootstrap install`, then create the lock file",
        ));
    }
    let driver = node.driver.as_ref().filter(|_| desired.driver.is_some());
    let driver = driver.map(|driver| {
        let mut locked = LockedDriver::of(&driver.settings);
        let is_compiled = packages.keys().any(|name| is_dkms_package(name));
        locked.version = node.version.as_ref().map(ToString::to_string);
        locked
            .build
            .get_or_insert_with(|| Build::of(is_compiled).to_string());
        let name = desired
            .driver
            .as_ref()
            .and_then(|driver| driver.compiled_as.as_ref());
        locked.module = (name.zip(node.version.as_ref()))
            .filter(|_| is_compiled)
            .map(|(name, version)| format!("{name} {version}"));
        locked
    });
    let packages = selected(packages, desired, before.as_ref());
    let mut lock = Lock::new(made_by(host, env)?, system, driver, packages);
    let listed = listed_digests(target.host(), desired, &lock).await?;
    let lacking = add_digests(&mut lock, &listed, before.as_ref());
    if !lacking.is_empty() {
        let commands = desired.packages.manager.backend().commands();
        console.note(&format!(
            "no package list contains one SHA-256 of {}, so the lock file contains only their versions; if a source still has them, \
             run `{}` and create the lock file again",
            lacking.join(", "),
            commands.refresh
        ));
    }
    lock.repositories = (desired.repositories.iter())
        .filter(|repository| !repository.fingerprints.is_empty())
        .map(|repository| (repository.name.clone(), repository.fingerprints.clone()))
        .collect();
    match image(desired) {
        Some((name, Some(digest))) => {
            lock.images.insert(name.to_owned(), digest.to_owned());
        }
        Some((name, None)) => console.note(&format!(
            "`validation.image` has no digest, so the lock file does not contain the image; set it to `{name}@sha256:DIGEST`"
        )),
        None => {}
    }
    write(host, env, console, out.as_deref(), &lock.render())?;
    Ok(Exit::Ok)
}

fn not_locked(why: &str, hint: &str) -> Failure {
    let message = format!("failed to create a lock file: {why}");
    Failure::new(Exit::Blocked, "not-validated", &message, Some(hint))
}

fn system(facts: &Facts) -> Result<LockedSystem, Failure> {
    let os = facts.os.as_ref();
    let release = os.and_then(|os| Some((os.id.clone(), os.version_id.clone()?)));
    let kernel = &facts.kernel;
    let (Some((os, release)), Some(arch), Some(running)) = (release, &kernel.arch, &kernel.running)
    else {
        let why = "the operating system release, the architecture or the running kernel is unknown";
        return Err(not_locked(
            why,
            "run `gpu-bootstrap facts`, which shows the reason",
        ));
    };
    Ok(LockedSystem {
        os,
        release,
        arch: arch.clone(),
        kernel: running.clone(),
    })
}

fn made_by(host: &Host, env: &Env) -> Result<MadeBy, Failure> {
    let matrix = machine::matrix(host, env)?;
    let own = Trusted::new(&*host.files, env.root).read_text(Utf8Path::new(machine::MATRIX));
    let own = own.map_err(|error| {
        let message = "failed to read the compatibility matrix";
        Failure::caused(Exit::Config, "matrix-unreadable", message, error, None)
    })?;
    Ok(MadeBy {
        gpu_bootstrap: env!("CARGO_PKG_VERSION").to_owned(),
        matrix: matrix.as_of.to_string(),
        matrix_sha256: own.map(|text| sha256(text.as_bytes())),
    })
}

/// Returns the installed packages of the desired state and of the transactions of gpu-bootstrap. Packages of which several
/// versions can be installed belong to kernels, and the lock file contains the kernel. The packages of other kernels than the
/// running one are omitted.
fn packages(
    node: &ValidatedNode,
    desired: &Desired,
    system: &LockedSystem,
    database: &[Package],
) -> BTreeMap<String, String> {
    let PackagePolicy { manager, .. } = &desired.packages;
    let backend = manager.backend();
    let mut names: BTreeSet<&str> = node.packages.iter().map(String::as_str).collect();
    for (purpose, specs) in desired.package_groups() {
        names.extend(specs.iter().map(|spec| spec.name.as_str()));
        if let Purpose::Runtime(runtime) = purpose {
            names.extend(runtime.alternatives.iter().map(String::as_str));
        }
    }
    let running = release(&system.kernel, &system.arch);
    let names_kernel = |name: &str| name.contains(running) || !has_release(name);
    (database.iter())
        .filter(|package| package.is_installed() && names.contains(package.id.as_str()))
        .filter(|package| !backend.has_several_versions(&package.name))
        .filter(|package| names_kernel(&package.name))
        .map(|package| (package.id.clone(), package.version.clone()))
        .collect()
}

/// Splits packages into selected ones and dependencies. A lock with which the node was installed adds dependencies to the
/// desired state, so it decides about its packages.
fn selected(
    packages: BTreeMap<String, String>,
    desired: &Desired,
    before: Option<&Lock>,
) -> [BTreeMap<String, String>; 2] {
    let mut names: BTreeSet<&str> = BTreeSet::new();
    for (purpose, specs) in desired.package_groups() {
        names.extend(specs.iter().map(|spec| spec.name.as_str()));
        if let Purpose::Runtime(runtime) = purpose {
            names.extend(runtime.alternatives.iter().map(String::as_str));
        }
    }
    let is_dependency =
        |name: &String| before.is_some_and(|lock| lock.dependencies.contains_key(name));
    let (selected, dependencies) = (packages.into_iter())
        .partition(|(name, _)| names.contains(name.as_str()) && !is_dependency(name));
    [selected, dependencies]
}

/// Returns the digests of the locked packages in the package lists of the machine.
async fn listed_digests(
    host: &Host,
    desired: &Desired,
    lock: &Lock,
) -> Result<BTreeMap<String, BTreeSet<String>>, Failure> {
    let backend = desired.packages.manager.backend();
    let Some(mirrors) = backend.mirrors() else {
        return Ok(BTreeMap::new());
    };
    let packages: Vec<(String, String)> = (lock.all())
        .map(|(name, version)| (name.clone(), version.clone()))
        .collect();
    const MESSAGE: &str = "failed to read the SHA-256 of packages";
    let output = match mirrors.digests_query(&packages) {
        Some(query) => {
            let output = host.reader().query(&query).await;
            let failed =
                |error| Failure::caused(Exit::StepFailed, "unreadable", MESSAGE, error, None);
            output.map_err(failed)?.stdout
        }
        None => String::new(),
    };
    let listed = mirrors.digests(&*host.files, &packages, &output);
    let refresh = backend.commands().refresh;
    let hint = format!("run `{refresh}`, and run the command again");
    let failed =
        |error| Failure::caused(Exit::StepFailed, "unreadable", MESSAGE, error, Some(&hint));
    Ok(by_package(backend, &packages, &listed.map_err(failed)?))
}

/// Adds the digests to a lock, and returns the packages without one. `before` is the lock with which the node was installed, in
/// case the lists no longer contain its packages. If several digests are listed, the installed one is unknown.
fn add_digests(
    lock: &mut Lock,
    listed: &BTreeMap<String, BTreeSet<String>>,
    before: Option<&Lock>,
) -> Vec<String> {
    let (mut digests, mut lacking) = (BTreeMap::new(), Vec::new());
    for (name, version) in lock.all() {
        let is_same = |before: &&Lock| before.all().any(|one| one == (name, version));
        let installed = (before.filter(is_same)).and_then(|before| before.digests.get(name));
        let listed = listed.get(name).filter(|listed| listed.len() == 1);
        match installed.or(listed.and_then(|listed| listed.first())) {
            Some(digest) => {
                digests.insert(name.clone(), digest.clone());
            }
            None => lacking.push(format!("{name} {version}")),
        }
    }
    lock.digests = digests;
    lacking
}

/// Whether a package name contains a kernel release such as `6.1.0-44`.
fn has_release(name: &str) -> bool {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let is_version = |part: &str| {
        let numbers: Vec<&str> = part.split('.').collect();
        numbers.len() == 3 && numbers.iter().all(|number| is_number(number))
    };
    let parts: Vec<&str> = name.split('-').collect();
    (parts.windows(2))
        .any(|pair| is_version(pair[0]) && pair[1].starts_with(|c: char| c.is_ascii_digit()))
}

/// Returns a package of the validated driver that is no longer installed in the validated version, with the difference.
fn not_as_validated(
    node: &ValidatedNode,
    packages: &BTreeMap<String, String>,
) -> Option<(String, String)> {
    let validated = node.driver.iter().flat_map(|driver| &driver.driver);
    validated.into_iter().find_map(|spec| {
        let version = spec.version.as_ref()?;
        match packages.get(&spec.name) {
            Some(found) if found != version => {
                let why = format!("has version {found}, but {version} was validated");
                Some((spec.name.clone(), why))
            }
            // The packages of a kernel that does not run are omitted.
            _ => None,
        }
    })
}

/// Returns the validation image and its digest.
fn image(desired: &Desired) -> Option<(&str, Option<&str>)> {
    let image = desired.validation.image.as_deref()?;
    Some(match image.split_once('@') {
        Some((name, digest)) => (name, Some(digest)),
        None => (image, None),
    })
}

/// Writes the file. Root does not write to a path that other users can change, because they could replace the file by a
/// symlink.
fn write(
    host: &Host,
    env: &Env,
    console: &mut Console<'_>,
    out: Option<&Utf8Path>,
    text: &str,
) -> Result<(), Failure> {
    let Some(path) = out else {
        return print::text(&mut console.out, text);
    };
    let files = &*host.files;
    let trusted = match env.root {
        true => refuse_foreign(files, path),
        false => Ok(()),
    };
    trusted
        .and_then(|()| files.write(path, text.as_bytes(), 0o644))
        .map_err(|error| {
            let message = format!("failed to write the lock file `{path}`");
            let hint = error.output_hint();
            Failure::caused(Exit::Internal, "output", &message, error, hint.as_deref())
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        journal::Validated,
        model::packages::PackageSpec,
        steps::fixtures::{debian, desired},
        tools::packages::PackageCondition,
    };

    fn package(name: &str, version: &str, condition: PackageCondition) -> Package {
        Package {
            name: name.to_owned(),
            id: name.to_owned(),
            architecture: "amd64".to_owned(),
            version: version.to_owned(),
            condition,
            held: false,
            packager: None,
            vendor: None,
            installed_bytes: 0,
        }
    }

    #[test]
    fn metapackage_of_precompiled_modules_is_not_a_dkms_package() {
        for (name, is_dkms) in rows! {
            "nvidia-dkms-580-server-open", true;
            "nvidia-kernel-open-dkms", true;
            "kmod-nvidia-open-dkms", true;
            "nvidia-headless-no-dkms-580-server-open", false;
            "dkms", false;
        } {
            assert_eq!(is_dkms_package(name), is_dkms, "{name}");
        }
    }

    #[test]
    fn lock_contains_selected_packages_and_dependencies() {
        use PackageCondition::{Configuration, Installed};

        let database = [
            package("docker.io", "20.10.24", Installed),
            package("runc", "1.1.5", Installed),
            package("tini", "0.19", Configuration),
            package("bash", "5.2", Installed),
            package("linux-headers-6.1.0-44-amd64", "6.1.176-1", Installed),
            package("linux-headers-6.1.0-41-amd64", "6.1.158-1", Installed),
        ];
        let node = ValidatedNode {
            packages: [
                "runc",
                "tini",
                "linux-headers-6.1.0-44-amd64",
                "linux-headers-6.1.0-41-amd64",
            ]
            .map(str::to_owned)
            .into(),
            ..ValidatedNode::default()
        };
        let system = system(&debian()).unwrap_or_else(|failure| panic!("{failure:?}"));
        let found = packages(&node, &desired(), &system, &database);
        let found: Vec<&str> = found.keys().map(String::as_str).collect();
        assert_eq!(found, ["docker.io", "linux-headers-6.1.0-44-amd64", "runc"]);
    }

    #[test]
    fn package_without_a_listed_digest_is_reported() {
        let map = |pairs: &[(&str, &str)]| {
            let pairs = pairs.iter();
            let pairs = pairs.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            pairs.collect::<BTreeMap<_, _>>()
        };
        let lock = || {
            let made_by = MadeBy {
                gpu_bootstrap: "0.1.0".to_owned(),
                matrix: "2026-11-20".to_owned(),
                matrix_sha256: None,
            };
            let system = system(&debian()).unwrap_or_else(|failure| panic!("{failure:?}"));
            let packages = map(&[("a", "1"), ("b", "1"), ("c", "1")]);
            Lock::new(made_by, system, None, [packages, map(&[("d", "1")])])
        };
        let digests = |found: &[&str]| found.iter().map(|&one| one.to_owned()).collect();
        let listed = [("a", digests(&["aa"])), ("b", digests(&["bb", "bc"]))];
        let listed = listed
            .map(|(name, digests)| (name.to_owned(), digests))
            .into();
        let mut new = lock();
        assert_eq!(add_digests(&mut new, &listed, None), ["b 1", "c 1", "d 1"]);
        assert_eq!(new.digests, map(&[("a", "aa")]));
        // The lock file of the last run has the digests of packages that no source offers any longer.
        let mut before = lock();
        before.digests = map(&[("b", "bb"), ("c", "cc"), ("d", "dd")]);
        before.packages.insert("c".to_owned(), "0".to_owned());
        assert_eq!(add_digests(&mut new, &listed, Some(&before)), ["c 1"]);
        assert_eq!(new.digests, map(&[("a", "aa"), ("b", "bb"), ("d", "dd")]));
    }

    #[test]
    fn kernel_release_in_a_package_name_is_found() {
        for (name, expected) in [
            ("linux-headers-6.1.0-44-common", true),
            ("linux-modules-nvidia-580-server-open-6.8.0-1059-aws", true),
            ("linux-kbuild-6.1", false),
            ("nvidia-kernel-open-dkms", false),
            ("libnvidia-compute-580", false),
        ] {
            assert_eq!(has_release(name), expected, "{name}");
        }
    }

    #[test]
    fn driver_must_have_the_validated_version() {
        let node = ValidatedNode {
            driver: Some(Validated {
                seq: 1,
                settings: Vec::new(),
                driver: vec![PackageSpec {
                    name: "libcuda1".to_owned(),
                    version: Some("580.1".to_owned()),
                }],
            }),
            ..ValidatedNode::default()
        };
        let differs = |version: &str| {
            let packages = BTreeMap::from([("libcuda1".to_owned(), version.to_owned())]);
            not_as_validated(&node, &packages).map(|(name, why)| format!("{name} {why}"))
        };
        assert_eq!(differs("580.1"), None);
        assert_eq!(
            differs("580.2").as_deref(),
            Some("libcuda1 has version 580.2, but 580.1 was validated")
        );
    }
}
