//! `modules`: shares compiled kernel modules with other machines.
//!
//! `export` packs the modules that DKMS has compiled on this machine. `install` also publishes the modules of the
//! running kernel if `driver.prebuilt.publish` is set. DKMS calls `fetch` before it compiles (`steps/prebuilt.rs`). `fetch`
//! takes the modules from the first source with matching modules. If no source has them, it fails and DKMS compiles, so a
//! broken source costs only compile time.

use std::{
    io::{self, Write as _},
    time::Duration,
};

use super::{
    Failure,
    args::{self, ExportTo},
    env::{Console, Env},
    machine, prepare, print,
};
use crate::{
    error::one_line,
    exit::Exit,
    facts::gather,
    host::{Files, FilesError, Host, trusted::refuse_foreign},
    modules::{
        BUILDS_UNREADABLE, Built, Packed, Registry, SOURCE_TIME_LIMIT, built,
        fetch::{Fetched, Requirements},
        pack, private_key,
    },
    tools::{
        oci,
        prebuilt::{BuildTarget, Modules, SAYS, TOOK, Trust},
    },
};

/// The time limit of an upload by `export`. It is generous because the command is interactive.
const UPLOAD_TIME_LIMIT: Duration = Duration::from_secs(600);

pub(super) async fn run(
    host: &Host,
    env: &Env,
    console: &mut Console<'_>,
    args: &args::ModulesArgs,
) -> Result<Exit, Failure> {
    match &args.command {
        args::ModulesCommand::List(output) => list(host, console, output),
        args::ModulesCommand::Export(args) => export(host.clone(), env, console, args).await,
        args::ModulesCommand::Fetch(args) => take(host.clone(), env, console, args).await,
    }
}

fn unreadable(error: FilesError) -> Failure {
    let hint = error.hint();
    Failure::caused(
        Exit::StepFailed,
        "modules-unreadable",
        BUILDS_UNREADABLE,
        error,
        hint.as_deref(),
    )
}

fn list(
    host: &Host,
    console: &mut Console<'_>,
    output: &args::OutputArgs,
) -> Result<Exit, Failure> {
    let found = built(&*host.files).map_err(unreadable)?;
    match output.format {
        args::OutputFormat::Json => print::json(&mut console.out, &found)?,
        args::OutputFormat::Human => print::show(&mut console.out, |to| {
            if found.is_empty() {
                writeln!(
                    to,
                    "DKMS has built no NVIDIA driver modules on this machine."
                )?;
            }
            for Built {
                driver,
                kernel,
                origin,
                ..
            } in &found
            {
                writeln!(
                    to,
                    "{driver} for {kernel}: {}",
                    origin.as_deref().unwrap_or("compiled here")
                )?;
            }
            Ok(())
        })?,
    }
    Ok(Exit::Ok)
}

async fn export(
    mut host: Host,
    env: &Env,
    console: &mut Console<'_>,
    args: &args::ExportArgs,
) -> Result<Exit, Failure> {
    env.only_root(&host, "export modules")?;
    let failed = |message: String, error: FilesError| {
        let (reason, hint) = (
            error.reason().unwrap_or("modules-not-exported"),
            error.output_hint(),
        );
        Failure::caused(Exit::StepFailed, reason, &message, error, hint.as_deref())
    };
    let not_exported =
        |why: &str| Failure::new(Exit::StepFailed, "modules-not-exported", why, None);
    let to = match &args.to {
        ExportTo::Directory(directory) => ExportTo::Directory(prepare::absolute(directory)?),
        registry @ ExportTo::Registry(_) => registry.clone(),
    };
    match &to {
        ExportTo::Directory(directory) => refuse_foreign(&*host.files, directory)
            .map_err(|error| failed(format!("failed to write to `{directory}`"), error))?,
        ExportTo::Registry(_) => through_proxy(&mut host, env, console),
    }
    let key = match &args.sign_key {
        Some(path) => {
            let key = private_key(&*host.files, &prepare::absolute(path)?);
            Some(key.map_err(|why| not_exported(&format!("failed to export modules: {why}")))?)
        }
        None => None,
    };
    let facts = gather(host.reader(), None, machine::scope(None));
    let distribution = facts.os.map(|os| os.id).ok_or_else(|| {
        not_exported(
            "failed to export modules: `/etc/os-release` does not identify the operating system",
        )
    })?;
    let mut found = built(&*host.files).map_err(unreadable)?;
    found.retain(|one| {
        args.kernel
            .as_ref()
            .is_none_or(|kernel| *kernel == one.kernel)
    });
    if found.is_empty() {
        let of_kernel = args
            .kernel
            .as_ref()
            .map(|kernel| format!(" for {kernel}"))
            .unwrap_or_default();
        return Err(Failure::new(
            Exit::StepFailed,
            "no-modules",
            &format!(
                "failed to export modules: DKMS has built no NVIDIA driver modules{of_kernel}"
            ),
            Some(
                "run `gpu-bootstrap modules list` to see the available modules; modules from packages need no export",
            ),
        ));
    }
    for one in found {
        let what = format!(
            "failed to export the modules of {} for {}",
            one.driver, one.kernel
        );
        let packed = pack(&host, &one, &distribution).await;
        let packed = packed.map_err(|why| not_exported(&format!("{what}: {why}")))?;
        let packed = Packed::new(packed, key.as_ref(), &host);
        let place = match &to {
            ExportTo::Directory(directory) => packed
                .write(&*host.files, directory)
                .map_err(|error| failed(what, error))?
                .into_string(),
            ExportTo::Registry(address) => {
                let mut registry = Registry::new(&host, address.clone(), UPLOAD_TIME_LIMIT);
                let pushed = packed.push(&mut registry).await;
                pushed.map_err(|why| not_exported(&format!("{what}: {why}")))?;
                format!("{address}:{}", oci::tag(&packed.name))
            }
        };
        print::show(&mut console.out, |out| writeln!(out, "{place}"))?;
        match &to {
            _ if packed.signature.is_some() => {}
            ExportTo::Directory(_) => tell(
                console,
                &format!(
                    "sign it on the machine with your private key: minisign -S -m {}",
                    packed.name
                ),
            ),
            ExportTo::Registry(_) => tell(
                console,
                "the archive is not signed: only machines with `driver.prebuilt.unsigned = true` accept it",
            ),
        }
    }
    Ok(Exit::Ok)
}

/// Routes all later requests through the configured proxy.
fn through_proxy(host: &mut Host, env: &Env, console: &mut Console<'_>) {
    if let (Some(proxy), direct) = prepare::proxy(host, env, console) {
        host.http = (env.proxied)(&proxy, direct.as_deref());
    }
}

/// Writes a line to standard error. Write errors are ignored, because standard error may be closed.
fn tell(console: &mut Console<'_>, line: &str) {
    let _ = writeln!(console.err, "{line}");
}

async fn take(
    mut host: Host,
    env: &Env,
    console: &mut Console<'_>,
    args: &args::FetchArgs,
) -> Result<Exit, Failure> {
    env.only_root(&host, "take modules")?;
    through_proxy(&mut host, env, console);
    let facts = gather(host.reader(), None, machine::scope(None));
    let (took, said) = match facts.os.zip(facts.kernel.arch) {
        Some((os, architecture)) => {
            let purpose = BuildTarget {
                distribution: os.id,
                kernel: args.kernel.clone(),
                architecture,
                driver: args.driver.clone(),
                flavor: args.flavor,
            };
            taken(&host, args, purpose, SOURCE_TIME_LIMIT).await
        }
        None => (
            false,
            "compiled, because the operating system or the architecture is unknown".to_owned(),
        ),
    };
    // DKMS copies this line to its build log.
    print::text(&mut console.out, &format!("{SAYS}{said}\n"))?;
    Ok(if took { Exit::Ok } else { Exit::StepFailed })
}

/// Fetches the modules from the first source with matching modules. Returns whether a source was used, and the line for
/// the DKMS log: the origin of the modules, or the reason that no source was used.
async fn taken(
    host: &Host,
    args: &args::FetchArgs,
    purpose: BuildTarget,
    time_limit: Duration,
) -> (bool, String) {
    let names = args.places.iter().map(|place| place.module.clone());
    let trust = Trust {
        keys: args.public_key.clone(),
        not_before: args.not_before,
    };
    let compiled = |why: String| (false, format!("compiled, because {why}"));
    let requirements = Requirements::of(host, purpose, Some(names.collect()), trust).await;
    let requirements = match requirements {
        Ok(requirements) => requirements,
        Err(error) => {
            let why = one_line(&error);
            return compiled(format!("the kernel cannot be inspected: {why}"));
        }
    };
    let Fetched {
        modules,
        digest,
        source,
    } = match requirements.fetch(host, &args.source, time_limit).await {
        Ok(fetched) => fetched,
        Err(error) => return compiled(error.why),
    };
    if let Err(why) = put(&*host.files, &args.places, &modules) {
        return compiled(format!("the modules cannot be written: {why}"));
    }
    let names: Vec<&str> = modules.keys().map(String::as_str).collect();
    (
        true,
        format!("{TOOK}{} from {source} ({digest})", names.join(", ")),
    )
}

/// Writes the modules to the paths where a build would create them.
fn put(files: &dyn Files, places: &[args::FetchedModule], modules: &Modules) -> Result<(), String> {
    for place in places {
        let content = modules
            .get(&place.module)
            .ok_or_else(|| format!("`{}` is missing", place.module))?;
        let path =
            camino::absolute_utf8(&place.file).map_err(|error: io::Error| one_line(&error))?;
        files
            .write(&path, content, 0o644)
            .map_err(|error| one_line(&error))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use camino::Utf8Path;

    use super::*;
    use crate::{
        config::desired::{DriverSpec, Prebuilt, Publish},
        facts::{Facts, Os},
        host::{HttpError, fake},
        model::gpu::Flavor,
        modules::{
            compiler,
            fetch::kernel,
            pair_in, publish,
            registry::{
                self,
                fake::{FakeRegistry, SOURCE as OF_REGISTRY},
            },
            signature_of,
        },
        steps::fixtures,
        tools::{
            module_file::{versions, with_sections},
            prebuilt::{
                self, PrivateKey,
                keys::{ITS_PUBLIC, OTHER_KEY, PRIVATE},
            },
        },
    };

    const KERNEL: &str = "6.1.0-44-amd64";
    const BUILT: &str = "/var/lib/dkms/nvidia-current/535.261.03/6.1.0-44-amd64/x86_64";
    const MAGIC: &str = "6.1.0-44-amd64 SMP preempt mod_unload modversions ";
    const SOURCE: &str = "https://modules.example/gpu";

    fn module() -> Vec<u8> {
        let info = format!("vermagic={MAGIC}\0license=NVIDIA\0depends=\0");
        with_sections(&[
            (".modinfo", info.as_bytes()),
            ("__versions", &versions(&[("kfree", 7)])),
        ])
    }

    /// Returns a machine that has compiled the module.
    fn machine() -> (Host, fake::Fakes) {
        let (host, fakes) = fake::host();
        fakes
            .files
            .put(&format!("{BUILT}/module/nvidia-current.ko"), module());
        fakes.files.put(
            &format!("{BUILT}/log/make.log"),
            "DKMS make.log\n  CC a.o\n",
        );
        fakes.files.put(
            "/var/lib/dkms/other/1.0/6.1.0-44-amd64/x86_64/module/other.ko",
            "x",
        );
        let headers = format!("/lib/modules/{KERNEL}/build");
        fakes.files.put(
            &format!("{headers}/Module.symvers"),
            "0x00000007\tkfree\tvmlinux\tEXPORT_SYMBOL\t\n",
        );
        fakes.files.put(
            &format!("{headers}/.config"),
            "CONFIG_CC_VERSION_TEXT=\"gcc-12\"\n",
        );
        fakes
            .files
            .put("/sys/module/nvidia/version", "535.261.03\n");
        (host, fakes)
    }

    #[tokio::test]
    async fn flavor_comes_from_the_nvidia_module() {
        let (host, fakes) = machine();
        let open = with_sections(&[(".modinfo", b"license=Dual MIT/GPL\0")]);
        for name in ["nvidia-current-drm", "nvidia-current-uvm"] {
            (fakes.files).put(&format!("{BUILT}/module/{name}.ko"), open.clone());
        }
        let (_, archive) = archive(&host).await;
        let purpose = requirements(&host, &[]).await.purpose;
        let wanted = ["nvidia-current".to_owned(), "nvidia-current-uvm".to_owned()];
        let unpacked = prebuilt::unpack(&archive, &purpose, None, &wanted).expect("unpacked");
        assert_eq!(unpacked["nvidia-current-uvm"], open);
    }

    async fn archive(host: &Host) -> (String, Vec<u8>) {
        let all = built(&*host.files).expect("read");
        assert_eq!(all.len(), 1, "{all:?}");
        pack(host, &all[0], "debian").await.expect("packed")
    }

    async fn requirements(host: &Host, keys: &[&str]) -> Requirements {
        Requirements {
            purpose: BuildTarget {
                distribution: "debian".to_owned(),
                kernel: KERNEL.parse().expect("a kernel"),
                architecture: "x86_64".to_owned(),
                driver: "535.261.03".parse().expect("a version"),
                flavor: Flavor::Proprietary,
            },
            compiler: compiler(&*host.files, KERNEL).expect("read"),
            kernel: kernel(host, KERNEL).await.expect("read"),
            names: Some(vec!["nvidia-current".to_owned()]),
            trust: Trust {
                keys: keys.iter().map(ToString::to_string).collect(),
                not_before: None,
            },
        }
    }

    #[tokio::test]
    async fn built_modules_are_listed_with_their_origin() {
        let (host, fakes) = machine();
        assert_eq!(built(&*host.files).expect("read")[0].origin, None);
        let log = "DKMS make.log\ngpu-bootstrap: took nvidia-current from /srv (sha256:0)\n";
        fakes.files.put(&format!("{BUILT}/log/make.log"), log);
        let all = built(&*host.files).expect("read");
        assert_eq!(
            all[0].origin.as_deref(),
            Some("took nvidia-current from /srv (sha256:0)")
        );
    }

    #[tokio::test]
    async fn packed_modules_are_written_to_the_build_directory() {
        let (host, fakes) = machine();
        let (name, content) = archive(&host).await;
        assert_eq!(
            name,
            "nvidia-535.261.03-proprietary-debian-6.1.0-44-amd64-x86_64.tar.gz"
        );
        fakes.http.serve(&format!("{SOURCE}/{name}"), content);
        let taken = requirements(&host, &[])
            .await
            .fetch_from(&host, SOURCE, SOURCE_TIME_LIMIT)
            .await
            .expect("taken");
        let place: args::FetchedModule =
            "nvidia-current=/build/nvidia.ko".parse().expect("a place");
        put(&*host.files, &[place], &taken.modules).expect("written");
        assert_eq!(
            host.files.read("/build/nvidia.ko".into()).expect("read"),
            Some(module())
        );
    }

    #[tokio::test]
    async fn missing_unsigned_and_mismatched_archives_are_rejected() {
        let (host, fakes) = machine();
        let (name, content) = archive(&host).await;
        let why = |keys: &'static [&'static str], source: &'static str| {
            let host = host.clone();
            async move {
                requirements(&host, keys)
                    .await
                    .fetch_from(&host, source, SOURCE_TIME_LIMIT)
                    .await
                    .err()
                    .map(String::from)
                    .unwrap_or_default()
            }
        };
        assert!(why(&[], SOURCE).await.contains("404"));
        let url = format!("{SOURCE}/{name}");
        fakes.http.serve(&url, content.clone());
        let key = &["RWQf6LRCGA9i53mlYecO4IzT51TGPpvWucNSCh1CBM0QTaLn73Y7GFO3"];
        assert!(why(key, SOURCE).await.contains("is not signed"));
        fakes.http.serve(&format!("{url}.minisig"), "<html>");
        assert!(why(key, SOURCE).await.contains("invalid signature"));
        let silent = HttpError::Transport {
            url: url.clone(),
            why: "connection refused".to_owned(),
        };
        fakes.http.fail_next(&url, silent);
        assert!(why(&[], SOURCE).await.contains("connection refused"));
        let plain = "http://modules.example/gpu";
        (fakes.http).serve(&format!("{plain}/{name}"), content.clone());
        assert!(why(&[], plain).await.contains("`http://`"));
        // An archive that belongs to a non-root user requires a signature.
        fakes.files.put(&format!("/srv/{name}"), content.clone());
        fakes.http.serve(&format!("file:///srv/{name}"), content);
        assert_eq!(why(&[], "/srv").await, "");
        host.files
            .chown(Utf8Path::new("/srv").join(&name).as_path(), 1000, 1000)
            .expect("given away");
        assert!(
            why(&[], "/srv")
                .await
                .contains("writable by non-root users")
        );
        let symbols = format!("/lib/modules/{KERNEL}/build/Module.symvers");
        fakes
            .files
            .put(&symbols, "0x00000008\tkfree\tvmlinux\tEXPORT_SYMBOL\t\n");
        assert!(
            why(&[], SOURCE)
                .await
                .contains("another version of `kfree`")
        );
        fakes.files.put(
            &format!("/lib/modules/{KERNEL}/build/.config"),
            "CONFIG_CC_VERSION_TEXT=\"gcc-13\"\n",
        );
        assert!(
            why(&[], SOURCE)
                .await
                .contains("with gcc-12, but this kernel was compiled with gcc-13")
        );
    }

    fn asked(sources: &[&str]) -> args::FetchArgs {
        args::FetchArgs {
            driver: "535.261.03".parse().expect("a version"),
            kernel: KERNEL.parse().expect("a kernel"),
            flavor: Flavor::Proprietary,
            source: sources.iter().map(ToString::to_string).collect(),
            public_key: Vec::new(),
            not_before: None,
            places: vec!["nvidia-current=/build/nvidia.ko".parse().expect("a place")],
        }
    }

    #[tokio::test]
    async fn the_first_matching_source_is_used_and_failures_are_reported() {
        let (host, fakes) = machine();
        let (name, content) = archive(&host).await;
        let purpose = requirements(&host, &[]).await.purpose;
        let other = "https://other.example";
        let (took, said) = taken(
            &host,
            &asked(&[other, SOURCE]),
            purpose.clone(),
            SOURCE_TIME_LIMIT,
        )
        .await;
        assert!(
            !took && said.starts_with("compiled, because no source had a matching nvidia-535"),
            "{said}"
        );
        assert!(said.contains(other) && said.contains(SOURCE), "{said}");
        fakes.http.serve(&format!("{SOURCE}/{name}"), content);
        let (took, said) = taken(&host, &asked(&[other, SOURCE]), purpose, SOURCE_TIME_LIMIT).await;
        assert!(
            took && said
                .starts_with("took nvidia-current from https://modules.example/gpu (sha256:"),
            "{said}"
        );
        assert_eq!(
            host.files.read("/build/nvidia.ko".into()).expect("read"),
            Some(module())
        );
    }

    /// Returns a machine with the modules, and an empty registry for which root has credentials.
    fn beside_a_registry() -> (Host, fake::Fakes, Arc<FakeRegistry>) {
        let (mut host, fakes) = machine();
        let registry = Arc::new(FakeRegistry::default());
        host.http = registry.clone();
        registry::fake::log_in(&host);
        (host, fakes, registry)
    }

    #[tokio::test]
    async fn a_registry_is_a_source() {
        let (host, _, registry) = beside_a_registry();
        let (name, content) = archive(&host).await;
        let tag = oci::tag(&name);
        let why = async |keys: &[&str]| {
            let requirements = requirements(&host, keys).await;
            (requirements
                .fetch_from(&host, OF_REGISTRY, SOURCE_TIME_LIMIT)
                .await)
                .err()
                .map(String::from)
                .unwrap_or_default()
        };
        assert_eq!(why(&[]).await, format!("the registry has no tag `{tag}`"));
        let put = async |signature: Option<&str>| {
            let packed = Packed {
                name: name.clone(),
                content: content.clone(),
                signature: signature.map(str::to_owned),
            };
            let address = oci::Address::parse(OF_REGISTRY).expect("an address");
            packed
                .push(&mut Registry::new(&host, address, SOURCE_TIME_LIMIT))
                .await
        };
        assert_eq!(put(None).await, Ok(()));
        assert_eq!(why(&[]).await, "");
        let unsigned = why(&[ITS_PUBLIC]).await;
        assert!(
            unsigned.contains("is not signed: the artifact has no `"),
            "{unsigned}"
        );
        let key = PrivateKey::read(PRIVATE).expect("a key");
        let other = key.sign(b"other", &name, host.clock.now());
        assert_eq!(put(Some(&other)).await, Ok(()));
        let refused = why(&[ITS_PUBLIC]).await;
        assert!(
            refused.contains("not signed with one of the public keys"),
            "{refused}"
        );
        let good = key.sign(&content, &name, host.clock.now());
        assert_eq!(put(Some(&good)).await, Ok(()));
        assert_eq!(why(&[ITS_PUBLIC]).await, "");
        // A tag that points to the archive of another driver version is rejected.
        let manifest = registry.tags.lock().expect("a lock")[&tag].clone();
        let mut other = requirements(&host, &[ITS_PUBLIC]).await;
        other.purpose.driver = "535.261.04".parse().expect("a version");
        let other_tag = oci::tag(&other.purpose.archive());
        registry
            .tags
            .lock()
            .expect("a lock")
            .insert(other_tag, manifest);
        let refused = other
            .fetch_from(&host, OF_REGISTRY, SOURCE_TIME_LIMIT)
            .await
            .err()
            .map(String::from)
            .unwrap_or_default();
        assert!(
            refused.contains("the artifact has no `nvidia-535.261.04"),
            "{refused}"
        );
    }

    /// Returns the desired driver: the one that [`machine`] has compiled.
    fn wanted() -> DriverSpec {
        let mut driver = fixtures::desired().driver.expect("a driver");
        driver.compiled_as = Some("nvidia-current".to_owned());
        driver.flavor = Flavor::Proprietary;
        driver
    }

    fn running() -> Facts {
        let mut facts = fixtures::facts();
        facts.kernel.running = Some(KERNEL.parse().expect("a kernel"));
        facts.os = Some(Os {
            id: "debian".to_owned(),
            version_id: Some("12".to_owned()),
            id_like: Vec::new(),
            version_codename: None,
            pretty_name: None,
        });
        facts
    }

    const KEY: &str = "/etc/gpu-bootstrap/fleet.key";

    #[tokio::test]
    async fn locally_compiled_modules_are_published_once() {
        let (host, _, registry) = beside_a_registry();
        host.files
            .write(KEY.into(), PRIVATE.as_bytes(), 0o600)
            .expect("written");
        let spec = Publish {
            to: OF_REGISTRY.to_owned(),
            key: Some(KEY.into()),
        };
        let publish =
            async |driver: &DriverSpec, to: &Publish| publish(&host, &running(), driver, to).await;
        let mut driver = wanted();
        driver.prebuilt = Some(Prebuilt {
            sources: Vec::new(),
            public_keys: vec![OTHER_KEY.to_owned()],
            not_before: None,
        });
        let refused = publish(&driver, &spec).await.expect_err("another key");
        assert!(refused.contains("driver.prebuilt.sign-key"), "{refused}");
        driver.prebuilt = None;
        let published = publish(&driver, &spec)
            .await
            .expect("published")
            .expect("new");
        assert!(
            published.ends_with(&format!(".tar.gz` to {OF_REGISTRY}")),
            "{published}"
        );
        let stored = *registry.stored.lock().expect("a lock");
        assert_eq!(publish(&driver, &spec).await, Ok(None));
        assert_eq!(*registry.stored.lock().expect("a lock"), stored);
        // An archive that was signed before `not-before` is published again.
        let now = host.clock.now();
        let time = |seconds: i64| jiff::Timestamp::from_second(now.as_second() + seconds).ok();
        for (not_before, again) in [(time(0), false), (time(1), true)] {
            driver.prebuilt = Some(Prebuilt {
                sources: Vec::new(),
                public_keys: vec![ITS_PUBLIC.to_owned()],
                not_before,
            });
            let published = publish(&driver, &spec).await;
            // The clock of this machine is also before `not-before`, so publishing fails with an error.
            let is_tried = published.is_err_and(|why| why.contains("not-before"));
            assert_eq!(is_tried, again, "{not_before:?}");
        }
        driver.prebuilt = None;
        let taker = self::requirements(&host, &[ITS_PUBLIC]).await;
        assert!(
            taker
                .fetch_from(&host, OF_REGISTRY, SOURCE_TIME_LIMIT)
                .await
                .is_ok()
        );
        // Publish to a directory that is writable only by root.
        let directory = Publish {
            to: "/srv/modules".to_owned(),
            ..spec
        };
        assert!(
            publish(&driver, &directory)
                .await
                .is_ok_and(|place| place.is_some())
        );
        assert_eq!(
            host.files.list("/srv/modules".into()).expect("read").len(),
            2
        );
        assert_eq!(publish(&driver, &directory).await, Ok(None));
    }

    /// Two machines with the same image publish their modules at the same time. The archives differ, because DKMS signs the
    /// modules with a different key on each machine.
    #[tokio::test]
    async fn concurrent_publishing_leaves_a_matching_pair() {
        let (host, fakes) = machine();
        let (name, content) = archive(&host).await;
        let key = PrivateKey::read(PRIVATE).expect("a key");
        let other = Packed::new((name.clone(), b"another".to_vec()), Some(&key), &host);
        let own = Packed::new((name, content), Some(&key), &host);
        let path = Utf8Path::new("/srv/modules").join(&own.name);
        let trust = Trust {
            keys: vec![ITS_PUBLIC.to_owned()],
            not_before: None,
        };
        let verified = || {
            let (archive, signature) = pair_in(&*host.files, &path).expect("read");
            let (archive, signature) = (archive.expect("there"), signature.expect("there"));
            prebuilt::verify(&archive, &other.name, &signature, &trust)
        };
        // The other machine writes its archive and signature before our archive is written.
        let (files, pair) = (fakes.files.clone(), signature_of(&path));
        let (signature, archive) = (
            other.signature.clone().expect("signed"),
            other.content.clone(),
        );
        let place = path.clone();
        let mut is_first = true;
        fakes.files.before_mutations(move |_, mutation| {
            let is_archive = matches!(mutation, fake::Mutation::File(_, path) if *path == place);
            if is_archive && std::mem::take(&mut is_first) {
                files.put(pair.as_str(), signature.as_str());
                files.put(place.as_str(), archive.as_slice());
            }
            Ok(())
        });
        own.write(&*host.files, "/srv/modules".into())
            .expect("written");
        assert_eq!(verified(), Ok(()));
        // A mismatched pair, left by a killed machine, is replaced.
        fakes.files.put(path.as_str(), "another");
        host.files
            .write(KEY.into(), PRIVATE.as_bytes(), 0o600)
            .expect("written");
        let spec = Publish {
            to: "/srv/modules".to_owned(),
            key: Some(KEY.into()),
        };
        assert!(verified().is_err());
        let published = publish(&host, &running(), &wanted(), &spec).await;
        assert!(published.is_ok_and(|place| place.is_some()));
        assert_eq!(verified(), Ok(()));
    }

    #[tokio::test]
    async fn only_the_loaded_version_is_published() {
        let (host, fakes) = machine();
        let older = BUILT.replace("535.261.03", "470.256.02");
        let of_older = format!("{older}/module/nvidia-current.ko");
        fakes.files.put(&of_older, module());
        let spec = Publish {
            to: "/srv/modules".to_owned(),
            key: None,
        };
        let publish = async || publish(&host, &running(), &wanted(), &spec).await;
        let published = publish().await.expect("published").expect("new");
        assert!(published.contains("535.261.03"), "{published}");
        fakes.files.take("/srv/modules");
        fakes.files.take("/sys/module/nvidia/version");
        assert_eq!(publish().await, Ok(None));
    }

    #[tokio::test]
    async fn fetched_modules_are_not_published() {
        let (host, fakes, registry) = beside_a_registry();
        let log = format!("{SAYS}{TOOK}nvidia-current from /srv (sha256:0)\n");
        fakes.files.put(&format!("{BUILT}/log/make.log"), log);
        let spec = Publish {
            to: OF_REGISTRY.to_owned(),
            key: None,
        };
        assert_eq!(publish(&host, &running(), &wanted(), &spec).await, Ok(None));
        assert_eq!(*registry.stored.lock().expect("a lock"), 0);
    }

    #[tokio::test]
    async fn publishing_requires_the_key_and_the_configured_flavor() {
        let (host, _, registry) = beside_a_registry();
        host.files
            .write(KEY.into(), PRIVATE.as_bytes(), 0o644)
            .expect("written");
        let spec = |key: Option<&str>| Publish {
            to: OF_REGISTRY.to_owned(),
            key: key.map(Into::into),
        };
        let open = publish(&host, &running(), &wanted(), &spec(Some(KEY))).await;
        assert!(open.is_err_and(|why| why.contains("accessible to users other than root")));
        let none = publish(&host, &running(), &wanted(), &spec(Some("/none"))).await;
        assert!(none.is_err_and(|why| why.contains("missing")));
        let mut driver = wanted();
        driver.flavor = Flavor::Open;
        let other = publish(&host, &running(), &driver, &spec(None)).await;
        assert!(other.is_err_and(|why| why.contains("-proprietary-")));
        assert_eq!(*registry.stored.lock().expect("a lock"), 0);
    }

    /// The server accepts the connection but never responds.
    #[tokio::test]
    async fn an_unresponsive_source_is_abandoned_after_its_time_limit() {
        struct Silent;
        #[async_trait::async_trait]
        impl crate::host::Http for Silent {
            async fn get(&self, _: &str, _: u64) -> Result<Vec<u8>, HttpError> {
                std::future::pending().await
            }
            async fn ask(
                &self,
                _: &crate::host::HttpRequest,
            ) -> Result<crate::host::HttpResponse, HttpError> {
                std::future::pending().await
            }
        }
        let (mut host, _) = machine();
        let purpose = requirements(&host, &[]).await.purpose;
        host.http = Arc::new(Silent);
        for source in [SOURCE, OF_REGISTRY] {
            let (short, purpose) = (Duration::from_millis(20), purpose.clone());
            let (took, said) = taken(&host, &asked(&[source]), purpose, short).await;
            assert!(!took && said.contains("it took more than"), "{said}");
        }
    }
}
