//! `bundle`: downloads the packages of a lock file for nodes without internet, and verifies such a bundle.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use serde_json::json;

use super::{
    Failure,
    args::{self, BundleCommand, OutputFormat},
    env::{Console, Env},
    prepare, print,
};
use crate::{
    bundle::{
        Bundle, BundledSystem,
        create::{self, ImageExport, PrebuiltModules, Recipe},
    },
    config::{
        desired::{Desired, PackagePolicy},
        lock::{Lock, release},
    },
    engine::{self, EngineError},
    error::Report as _,
    exit::Exit,
    host::Host,
    model::{
        text::{bytes, counted},
        version::DriverVersion,
    },
    report::messages,
    steps,
    tools::{
        packages::{Package, Settings},
        prebuilt::BuildTarget,
    },
};

/// The warning if `create` runs on a node that is not validated.
const NOT_VALIDATED: &str = "this node is not validated, so the bundle may lack packages that belong to a kernel: create it on a \
     validated node if an installation from it lacks packages";

pub(super) async fn run(
    host: &Host,
    env: &Env,
    console: &mut Console<'_>,
    args: &args::BundleArgs,
) -> Result<Exit, Failure> {
    match &args.command {
        BundleCommand::Create(args) => create(host, env, console, args).await,
        BundleCommand::Verify(args) => verify(host, env, console, args),
    }
}

async fn create(
    host: &Host,
    env: &Env,
    console: &mut Console<'_>,
    args: &args::CreateArgs,
) -> Result<Exit, Failure> {
    env.only_root(host, "create a bundle")?;
    let started = host.clock.monotonic();
    let out = prepare::absolute(&args.out)?;
    let image = args::ImageArgs::default();
    let request = prepare::request(&args.target, &image, false, None)?;
    let request = prepare::with_lock(host, env, &args.target, request)?;
    let text = request.lock.clone().unwrap_or_default();
    let lock = Lock::parse("the lock file", &text)?;
    let target = prepare::target(host, env, request).await?;
    console.warn(&target.resolution.warnings);
    let desired = &target.resolution.desired;
    console.warn(prepare::without_image(desired).as_slice());
    let ours = ours(host)?;
    if ours.is_none() {
        console.warn(&[NOT_VALIDATED.to_owned()]);
    }
    let ours = ours.unwrap_or_default();
    let packages = packages(&lock, desired, &target.database().await?, &ours);
    let PackagePolicy {
        manager,
        lock_timeout_seconds,
        proxy,
        no_proxy,
        ..
    } = desired.packages.clone();
    let system = &lock.system;
    let recipe = Recipe {
        out: &out,
        manager,
        settings: Settings {
            lock_timeout_seconds,
            proxy,
            no_proxy,
        },
        system: BundledSystem {
            os: system.os.clone(),
            release: system.release.clone(),
            arch: system.arch.clone(),
            kernel: system.kernel.clone(),
        },
        lock: &text,
        packages: &packages,
        digests: &lock.digests,
        repositories: &desired.repositories,
        modules: modules(&lock, desired)?,
        image: exported_image(desired),
        program: &env.exe,
    };
    let mut say = |line: &str| console.note(line);
    let created = create::create(target.host(), &recipe, &mut say).await?;
    let seconds = host.clock.monotonic().saturating_sub(started).as_secs_f64();
    match args.output.format {
        OutputFormat::Json => print::json(
            &mut console.out,
            &json!({
                "directory": out,
                "packages": created.packages,
                "files": created.files,
                "bytes": created.bytes,
                "seconds": seconds.round(),
                "manifest-sha256": created.digest,
            }),
        )?,
        OutputFormat::Human => print::show(&mut console.out, |to| {
            writeln!(
                to,
                "The bundle `{out}` has {} ({}, {}), created in {}.",
                counted(created.packages, "package"),
                counted(created.files, "file"),
                bytes(created.bytes),
                messages::duration(seconds)
            )?;
            writeln!(to, "SHA-256 of its manifest: {}", created.digest)?;
            writeln!(
                to,
                "Copy it to a node, then run `gpu-bootstrap install --bundle DIR` there."
            )
        })?,
    }
    Ok(Exit::Ok)
}

/// Returns the packages that transactions of gpu-bootstrap have installed. Only a validated node knows them: `None` on another one.
///
/// # Errors
/// If the journal cannot be read.
fn ours(host: &Host) -> Result<Option<BTreeSet<String>>, EngineError> {
    match engine::validated_node(host) {
        Ok(node) => Ok(Some(node.packages)),
        Err(error) if error.reason() == "not-validated" => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns the prebuilt modules for the driver and the kernel of a lock file, if sources are configured.
///
/// # Errors
/// If the lock file does not contain a valid driver version.
fn modules<'d>(lock: &Lock, desired: &'d Desired) -> Result<Option<PrebuiltModules<'d>>, Failure> {
    let driver = desired.driver.as_ref();
    let prebuilt = driver.and_then(|driver| Some((driver, driver.prebuilt.as_ref()?)));
    let version = (lock.driver.as_ref()).and_then(|driver| driver.version.as_ref());
    let (Some((driver, prebuilt)), Some(version)) = (prebuilt, version) else {
        return Ok(None);
    };
    if prebuilt.sources.is_empty() {
        return Ok(None);
    }
    let parsed = version.parse::<DriverVersion>().map_err(|error| {
        let message = format!("failed to read the driver version `{version}` of the lock file");
        let hint = "create the lock file again with `gpu-bootstrap lock` on a validated node";
        Failure::caused(Exit::Usage, "lock-invalid", &message, error, Some(hint))
    })?;
    let system = &lock.system;
    Ok(Some(PrebuiltModules {
        prebuilt,
        target: BuildTarget {
            distribution: system.os.clone(),
            kernel: system.kernel.clone(),
            architecture: system.arch.clone(),
            driver: parsed,
            flavor: driver.flavor,
        },
    }))
}

/// Returns the validation image, if it has a digest.
fn exported_image(desired: &Desired) -> Option<ImageExport<'_>> {
    let validation = &desired.validation;
    let image = validation.image.as_deref().zip(validation.image_digest());
    let (image, digest) = image.filter(|_| steps::container::is_wanted(desired))?;
    Some(ImageExport {
        image,
        digest,
        runtimes: desired.runtimes.iter().map(|spec| spec.kind).collect(),
        limit: Duration::from_secs(validation.pull_timeout_seconds),
    })
}

/// Returns the packages of a bundle: the packages of the lock file, and packages for its kernel. A lock file does not contain
/// packages of which several versions can be installed.
fn packages(
    lock: &Lock,
    desired: &Desired,
    database: &[Package],
    ours: &BTreeSet<String>,
) -> BTreeMap<String, String> {
    let backend = desired.packages.manager.backend();
    let mut packages: BTreeMap<String, String> = (lock.all())
        .map(|(name, version)| (name.clone(), version.clone()))
        .collect();
    let groups = desired.package_groups();
    let specs: Vec<_> = (groups.iter())
        .flat_map(|(_, specs)| specs.iter())
        .filter(|spec| backend.has_several_versions(&spec.name))
        .collect();
    let kernel = release(&lock.system.kernel, &lock.system.arch);
    let of_kernel = (database.iter())
        .filter(|package| package.is_installed() && backend.has_several_versions(&package.name))
        .filter(|package| package.version.contains(kernel))
        .filter(|package| {
            ours.contains(&package.id) || specs.iter().any(|spec| spec.name == package.name)
        });
    for package in of_kernel {
        packages.insert(package.name.clone(), package.version.clone());
    }
    for spec in specs {
        if let (Some(version), false) = (&spec.version, packages.contains_key(&spec.name))
            && version.contains(kernel)
        {
            let version = version.trim_end_matches('*').to_owned();
            packages.insert(spec.name.clone(), version);
        }
    }
    packages
}

fn verify(
    host: &Host,
    env: &Env,
    console: &mut Console<'_>,
    args: &args::VerifyArgs,
) -> Result<Exit, Failure> {
    let directory = prepare::absolute(&args.directory)?;
    let files = &*host.files;
    let bundle = Bundle::read(files, &directory, env.root)?;
    let differences = bundle.verify(files)?;
    let digest = bundle.digest(files)?;
    let manifest = bundle.manifest();
    let system = &manifest.system;
    match args.output.format {
        OutputFormat::Json => {
            print::json(
                &mut console.out,
                &json!({
                    "directory": directory,
                    "system": system,
                    "packages": manifest.packages.len(),
                    "files": manifest.files.len(),
                    "bytes": manifest.bytes(),
                    "manifest-sha256": digest,
                    "differences": differences,
                }),
            )?;
        }
        OutputFormat::Human if differences.is_empty() => {
            print::show(&mut console.out, |to| {
                writeln!(
                    to,
                    "The bundle `{directory}` is complete: {} for {} {}, {}, kernel {} ({}).",
                    counted(manifest.packages.len(), "package"),
                    system.os,
                    system.release,
                    system.arch,
                    system.kernel,
                    bytes(manifest.bytes())
                )?;
                writeln!(to, "SHA-256 of its manifest: {digest}")
            })?;
        }
        OutputFormat::Human => {
            print::show(&mut console.out, |to| {
                (differences.iter()).try_for_each(|difference| writeln!(to, "{difference}"))?;
                writeln!(to, "SHA-256 of its manifest: {digest}")
            })?;
            let message = format!(
                "failed to verify the bundle `{directory}`: {} from its manifest",
                counted(differences.len(), "difference")
            );
            let hint = "copy the bundle again";
            return Err(Failure::new(
                Exit::Blocked,
                "bundle-damaged",
                &message,
                Some(hint),
            ));
        }
    }
    Ok(match differences.is_empty() {
        true => Exit::Ok,
        false => Exit::Blocked,
    })
}

#[cfg(test)]
mod tests {
    use super::ours;
    use crate::{error::Report as _, host::fake, journal};

    #[test]
    fn unreadable_journal_is_not_a_node_without_packages() {
        let (host, fakes) = fake::host();
        assert_eq!(ours(&host).expect("not validated"), None);
        fakes.files.put(journal::path().as_str(), "not json\n{}\n");
        let error = ours(&host).expect_err("unreadable");
        assert_ne!(error.reason(), "not-validated", "{error}");
    }
}
