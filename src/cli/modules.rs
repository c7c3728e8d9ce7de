//! `modules`: kernel modules that are compiled once for many machines. `export` packs what DKMS has compiled here. `take` is
//! what DKMS calls before it compiles (`steps/prebuilt.rs`): it brings the modules from the first source that has fitting ones,
//! or fails, and DKMS compiles. Whatever is wrong with a source costs the compilation that it would have saved, and no more.

use std::{
    io::{self, Write as _},
    time::Duration,
};

use camino::{Utf8Path, Utf8PathBuf};
use serde::Serialize;

use super::{Failure, args, machine, prepare, print, world::World};
use crate::{
    error::one_line,
    exit::Exit,
    facts::gather,
    host::{Files, FilesError, Host, ReadFiles, digest::sha256, trusted::refuse_foreign},
    model::{
        paths,
        version::{DriverVersion, KernelVersion},
    },
    state::is_nvidia_module,
    tools::{
        dkms, kmod,
        module_file::{flavour_of_license, modinfo},
        prebuilt::{self, Kernel, LIMIT, Modules, Purpose, SAYS, SIGNATURE, TOOK},
    },
};

/// How long one source may take. Compiling takes 80 to 275 s.
const PATIENCE: Duration = Duration::from_secs(60);

/// The bytes that a signature may have: minisign's has some 300.
const SIGNATURE_LIMIT: u64 = 16 << 10;

pub(super) async fn run(world: &mut World<'_>, args: &args::Modules) -> Result<Exit, Failure> {
    match &args.command {
        args::ModulesCommand::List(output) => list(world, output),
        args::ModulesCommand::Export(args) => export(world, args).await,
        args::ModulesCommand::Take(args) => take(world, args).await,
    }
}

/// What DKMS has built for one kernel.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
struct Built {
    /// The name by which DKMS knows the modules.
    name: String,
    driver: DriverVersion,
    kernel: KernelVersion,
    architecture: String,
    /// Where they come from, as `take` has told it; `None` if DKMS compiled them without asking.
    origin: Option<String>,
    #[serde(skip)]
    folder: Utf8PathBuf,
}

/// Returns what DKMS has built of NVIDIA's driver.
fn built(files: &dyn ReadFiles) -> Result<Vec<Built>, FilesError> {
    let mut found = Vec::new();
    for build in dkms::builds(files)? {
        let folder = build.modules();
        let (Ok(driver), Ok(kernel)) = (build.version.parse(), build.kernel.parse()) else {
            continue;
        };
        if !(files.list(&folder)?.iter()).any(|file| is_nvidia_module(file)) {
            continue;
        }
        let log = files.read_lossy(&build.log())?.unwrap_or_default();
        found.push(Built {
            name: build.module,
            driver,
            kernel,
            architecture: build.architecture,
            origin: prebuilt::said(&log).last().map(str::to_owned),
            folder,
        });
    }
    Ok(found)
}

fn unreadable(error: FilesError) -> Failure {
    let hint = error.hint();
    Failure::caused(
        Exit::StepFailed,
        "modules-unreadable",
        "failed to read what DKMS has built",
        error,
        hint.as_deref(),
    )
}

fn list(world: &mut World<'_>, output: &args::Output) -> Result<Exit, Failure> {
    let found = built(&*world.host.files).map_err(unreadable)?;
    match output.format {
        args::Format::Json => print::json(&mut world.out, &found)?,
        args::Format::Human => print::show(&mut world.out, |to| {
            if found.is_empty() {
                writeln!(
                    to,
                    "DKMS has built no modules of NVIDIA's driver on this machine."
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

async fn export(world: &mut World<'_>, args: &args::Export) -> Result<Exit, Failure> {
    prepare::root(world, "export modules")?;
    let to = prepare::absolute(&args.to)?;
    let failed = |message: String, error: FilesError| {
        let (reason, hint) = (
            error.reason().unwrap_or("modules-not-exported"),
            error.hint(),
        );
        Failure::caused(Exit::StepFailed, reason, &message, error, hint.as_deref())
    };
    refuse_foreign(&*world.host.files, &to)
        .map_err(|error| failed(format!("failed to write to `{to}`"), error))?;
    let facts = gather(world.host.reader(), None, machine::scope(None));
    let distribution = facts.os.map(|os| os.id).ok_or_else(|| {
        let message =
            "failed to export modules: `/etc/os-release` does not tell which system this is";
        Failure::new(Exit::StepFailed, "modules-not-exported", message, None)
    })?;
    let mut found = built(&*world.host.files).map_err(unreadable)?;
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
            &format!("failed to export modules: DKMS has built none of NVIDIA's driver{of_kernel}"),
            Some(
                "`gpu-bootstrap modules list` shows what there is; modules that come in packages need no export",
            ),
        ));
    }
    for one in found {
        let what = format!(
            "failed to export the modules of {} for {}",
            one.driver, one.kernel
        );
        let packed = pack(&world.host, &one, &distribution)
            .await
            .map_err(|why| {
                Failure::new(
                    Exit::StepFailed,
                    "modules-not-exported",
                    &format!("{what}: {why}"),
                    None,
                )
            })?;
        let path = to.join(packed.0);
        world
            .host
            .files
            .write(&path, &packed.1, 0o644)
            .map_err(|error| failed(what, error))?;
        print::show(&mut world.out, |out| writeln!(out, "{path}"))?;
        tell(
            world,
            &format!(
                "sign it where your private key is: minisign -S -m {}",
                path.file_name().unwrap_or_default()
            ),
        );
    }
    Ok(Exit::Ok)
}

/// Tells a person; where standard error is closed, nobody is there.
fn tell(world: &mut World<'_>, line: &str) {
    let _ = writeln!(world.err, "{line}");
}

/// Packs what DKMS has built: the name of the archive, and its content.
async fn pack(host: &Host, one: &Built, distribution: &str) -> Result<(String, Vec<u8>), String> {
    let unpacked = Utf8Path::new(paths::RUN).join(format!("export-{}", std::process::id()));
    let modules = read(host, one, &unpacked).await;
    let removed = host.files.remove_empty_folder(&unpacked);
    let modules = modules?;
    removed.map_err(|error| one_line(&error))?;
    let flavours = modules
        .values()
        .filter_map(|content| modinfo(content, "license"))
        .find_map(flavour_of_license);
    let purpose = Purpose {
        distribution: distribution.to_owned(),
        kernel: one.kernel.clone(),
        architecture: one.architecture.clone(),
        driver: one.driver.clone(),
        flavour: flavours.ok_or("their license does not tell which flavour they are of")?,
    };
    let compiler = compiler(&*host.files, one.kernel.as_str()).map_err(|error| one_line(&error))?;
    let archive = prebuilt::pack(&purpose, compiler, &modules).map_err(|error| one_line(&error))?;
    Ok((purpose.archive(), archive))
}

/// Reads the modules of a build, decompressed.
async fn read(host: &Host, one: &Built, unpacked: &Utf8Path) -> Result<Modules, String> {
    let files = &*host.files;
    let plain = |error: FilesError| one_line(&error);
    let mut modules = Modules::new();
    for name in files.list(&one.folder).map_err(plain)? {
        let Some(module) = kmod::name_of(&name) else {
            continue;
        };
        let path = one.folder.join(&name);
        let missing = |path: &Utf8Path| format!("`{path}` is not there any more");
        let mut content = files
            .read(&path)
            .map_err(plain)?
            .ok_or_else(|| missing(&path))?;
        let copy = unpacked.join(&name);
        if let Some(cmd) = prebuilt::decompress(&copy) {
            files.create_folder(unpacked, 0o700).map_err(plain)?;
            files.write(&copy, &content, 0o600).map_err(plain)?;
            let ran = host
                .exec
                .run(&cmd, &mut |_, _| {})
                .await
                .and_then(|output| output.success(&cmd));
            let result = copy.with_extension("");
            let read = files.read(&result).map_err(plain)?;
            for left in [&copy, &result] {
                files.remove(left).map_err(plain)?;
            }
            ran.map_err(|error| one_line(&error))?;
            content = read.ok_or_else(|| missing(&result))?;
        }
        modules.insert(module.to_owned(), content);
    }
    Ok(modules)
}

/// Returns the compiler of a kernel, by the configuration in its headers or beside its image.
fn compiler(files: &dyn ReadFiles, kernel: &str) -> Result<Option<String>, FilesError> {
    for path in [
        format!("/lib/modules/{kernel}/build/.config"),
        format!("/boot/config-{kernel}"),
    ] {
        if let Some(config) = files.read_lossy(Utf8Path::new(&path))?
            && let Some(compiler) = prebuilt::compiler(&config)
        {
            return Ok(Some(compiler));
        }
    }
    Ok(None)
}

async fn take(world: &mut World<'_>, args: &args::Take) -> Result<Exit, Failure> {
    prepare::root(world, "take modules")?;
    let proxy = prepare::proxy(world);
    if let (Some(proxy), direct) = &proxy {
        world.host.http = (world.proxied)(proxy, direct.as_deref());
    }
    let facts = gather(world.host.reader(), None, machine::scope(None));
    let (took, said) = match facts.os.zip(facts.kernel.arch) {
        Some((os, architecture)) => {
            let purpose = Purpose {
                distribution: os.id,
                kernel: args.kernel.clone(),
                architecture,
                driver: args.driver.clone(),
                flavour: args.flavour,
            };
            taken(&world.host, args, purpose, PATIENCE).await
        }
        None => (
            false,
            "compiled them: system or architecture are not known".to_owned(),
        ),
    };
    // DKMS keeps it in the log of the build.
    print::text(&mut world.out, &format!("{SAYS}{said}\n"))?;
    Ok(if took { Exit::Ok } else { Exit::StepFailed })
}

/// Brings the modules from the first source that has fitting ones, and tells where from; or why none was used.
async fn taken(
    host: &Host,
    args: &args::Take,
    purpose: Purpose,
    patience: Duration,
) -> (bool, String) {
    let archive = purpose.archive();
    let wish = match Wish::of(host, args, purpose).await {
        Ok(wish) => wish,
        Err(error) => {
            return (
                false,
                format!(
                    "compiled, because the kernel cannot be examined: {}",
                    one_line(&error)
                ),
            );
        }
    };
    let mut whys = Vec::new();
    for source in &args.source {
        let asked = tokio::time::timeout(patience, wish.from(host, source)).await;
        let asked =
            asked.unwrap_or_else(|_| Err(format!("it took more than {} s", patience.as_secs())));
        match asked
            .and_then(|taken| put(&*host.files, &args.places, &taken.modules).map(|()| taken))
        {
            Ok(Taken { modules, digest }) => {
                let names: Vec<&str> = modules.keys().map(String::as_str).collect();
                return (
                    true,
                    format!("{TOOK}{} from {source} ({digest})", names.join(", ")),
                );
            }
            Err(why) => whys.push(format!("{source}: {why}")),
        }
    }
    (
        false,
        format!(
            "compiled, because no source had a fitting {archive}: {}",
            whys.join("; ")
        ),
    )
}

/// Modules from a source.
struct Taken {
    modules: Modules,
    /// The SHA-256 of the archive, with its kind in front.
    digest: String,
}

/// What is asked for.
struct Wish {
    purpose: Purpose,
    compiler: Option<String>,
    kernel: Kernel,
    names: Vec<String>,
    /// None: archives need no signature.
    keys: Vec<String>,
}

impl Wish {
    async fn of(host: &Host, args: &args::Take, purpose: Purpose) -> Result<Self, FilesError> {
        let release = args.kernel.as_str();
        Ok(Self {
            compiler: compiler(&*host.files, release)?,
            kernel: kernel(host, release).await?,
            names: args
                .places
                .iter()
                .map(|place| place.module.clone())
                .collect(),
            keys: args.public_key.clone(),
            purpose,
        })
    }

    /// Returns the modules from a source: what is judged here is what is written later, byte for byte.
    async fn from(&self, host: &Host, source: &str) -> Result<Taken, String> {
        let name = self.purpose.archive();
        let place = format!("{}/{name}", source.trim_end_matches('/'));
        let archive = fetch(host, &place, LIMIT, self.keys.is_empty()).await?;
        if !self.keys.is_empty() {
            let signature =
                fetch(host, &format!("{place}{SIGNATURE}"), SIGNATURE_LIMIT, false).await;
            let signature = signature.map_err(|why| format!("`{name}` is not signed: {why}"))?;
            prebuilt::verify(&archive, &signature, &self.keys)
                .map_err(|why| format!("`{name}`: {why}"))?;
        }
        let modules = prebuilt::unpack(
            &archive,
            &self.purpose,
            self.compiler.as_deref(),
            &self.names,
        );
        let modules = modules.map_err(|why| format!("`{name}`: {why}"))?;
        self.kernel
            .accepts(&modules)
            .map_err(|why| format!("`{name}`: {why}"))?;
        Ok(Taken {
            modules,
            digest: format!("sha256:{}", sha256(&archive)),
        })
    }
}

/// Reads a file of a source. In a folder that others may write to, anybody could put one that nobody has signed.
async fn fetch(host: &Host, place: &str, limit: u64, unsigned: bool) -> Result<Vec<u8>, String> {
    let mut address = place.to_owned();
    if place.starts_with('/') {
        if unsigned {
            let (files, path) = (host.files.clone(), Utf8PathBuf::from(place));
            // The folder of a server that does not answer blocks who reads it.
            let judged = tokio::task::spawn_blocking(move || refuse_foreign(&*files, &path)).await;
            judged
                .map_err(|error| one_line(&error))?
                .map_err(|error| one_line(&error))?;
        }
        address = format!("file://{}", place.replace('%', "%25"));
    }
    (host.http.get(&address, limit).await).map_err(|error| one_line(&error))
}

/// Writes the modules where a build would have made them.
fn put(files: &dyn Files, places: &[args::Place], modules: &Modules) -> Result<(), String> {
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

/// Reads what a kernel accepts.
async fn kernel(host: &Host, release: &str) -> Result<Kernel, FilesError> {
    let headers = kmod::folder_of(release).join("build");
    let read = |name: &str| host.files.read_lossy(&headers.join(name));
    let symbols = read("Module.symvers")?;
    let own = read("include/generated/utsrelease.h")?;
    Ok(Kernel {
        release: (own.as_deref().and_then(prebuilt::release))
            .unwrap_or(release)
            .to_owned(),
        magic: magic(host, release).await?,
        symbols: symbols
            .map(|text| prebuilt::symbols(&text))
            .unwrap_or_default(),
    })
}

/// Returns what the kernel's own modules have as `vermagic`.
async fn magic(host: &Host, release: &str) -> Result<Option<String>, FilesError> {
    let list = host
        .files
        .read_text(&kmod::list_of(release))?
        .unwrap_or_default();
    let own = list
        .lines()
        .filter_map(|line| line.split(':').next())
        .find(|path| path.starts_with("kernel/"));
    let Some(path) = own.map(|own| kmod::folder_of(release).join(own)) else {
        return Ok(None);
    };
    if path.extension() == Some("ko") {
        let content = host.files.read(&path)?.unwrap_or_default();
        return Ok(modinfo(&content, "vermagic").map(str::to_owned));
    }
    // What no program here can unpack is not known, and the kernel compares it again when it loads a module.
    let asked = host
        .reader()
        .query(&kmod::field("vermagic", path.as_str()))
        .await;
    let said = asked
        .ok()
        .filter(crate::host::Output::ok)
        .map(|output| output.stdout.trim_end_matches('\n').to_owned());
    Ok(said.filter(|text| !text.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        host::{HttpError, fake},
        model::gpu::Flavour,
        tools::module_file::{versions, with_sections},
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

    /// A machine that has compiled the module.
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
        (host, fakes)
    }

    async fn archive(host: &Host) -> (String, Vec<u8>) {
        let all = built(&*host.files).expect("read");
        assert_eq!(all.len(), 1, "{all:?}");
        pack(host, &all[0], "debian").await.expect("packed")
    }

    async fn wish(host: &Host, keys: &[&str]) -> Wish {
        Wish {
            purpose: Purpose {
                distribution: "debian".to_owned(),
                kernel: KERNEL.parse().expect("a kernel"),
                architecture: "x86_64".to_owned(),
                driver: "535.261.03".parse().expect("a version"),
                flavour: Flavour::Proprietary,
            },
            compiler: compiler(&*host.files, KERNEL).expect("read"),
            kernel: kernel(host, KERNEL).await.expect("read"),
            names: vec!["nvidia-current".to_owned()],
            keys: keys.iter().map(ToString::to_string).collect(),
        }
    }

    #[tokio::test]
    async fn what_dkms_has_built_is_listed_with_where_it_came_from() {
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
    async fn what_one_machine_packs_another_puts_where_a_build_would_have_made_it() {
        let (host, fakes) = machine();
        let (name, content) = archive(&host).await;
        assert_eq!(
            name,
            "nvidia-535.261.03-proprietary-debian-6.1.0-44-amd64-x86_64.tar.gz"
        );
        fakes.http.serve(&format!("{SOURCE}/{name}"), content);
        let taken = wish(&host, &[])
            .await
            .from(&host, SOURCE)
            .await
            .expect("taken");
        let place: args::Place = "nvidia-current=/build/nvidia.ko".parse().expect("a place");
        put(&*host.files, &[place], &taken.modules).expect("written");
        assert_eq!(
            host.files.read("/build/nvidia.ko".into()).expect("read"),
            Some(module())
        );
    }

    #[tokio::test]
    async fn what_is_not_signed_not_there_or_for_another_kernel_is_not_taken() {
        let (host, fakes) = machine();
        let (name, content) = archive(&host).await;
        let why = |keys: &'static [&'static str], source: &'static str| {
            let host = host.clone();
            async move {
                wish(&host, keys)
                    .await
                    .from(&host, source)
                    .await
                    .err()
                    .unwrap_or_default()
            }
        };
        assert!(why(&[], SOURCE).await.contains("404"));
        let url = format!("{SOURCE}/{name}");
        fakes.http.serve(&url, content.clone());
        let key = &["RWQf6LRCGA9i53mlYecO4IzT51TGPpvWucNSCh1CBM0QTaLn73Y7GFO3"];
        assert!(why(key, SOURCE).await.contains("is not signed"));
        fakes.http.serve(&format!("{url}.minisig"), "<html>");
        assert!(
            why(key, SOURCE)
                .await
                .contains("its signature cannot be read")
        );
        let silent = HttpError::Transport {
            url: url.clone(),
            why: "connection refused".to_owned(),
        };
        fakes.http.fail_next(&url, silent);
        assert!(why(&[], SOURCE).await.contains("connection refused"));
        // A folder to which others may write needs signatures.
        fakes.files.put(&format!("/srv/{name}"), content.clone());
        fakes.http.serve(&format!("file:///srv/{name}"), content);
        assert_eq!(why(&[], "/srv").await, "");
        host.files
            .chown(Utf8Path::new("/srv").join(&name).as_path(), 1000, 1000)
            .expect("given away");
        assert!(why(&[], "/srv").await.contains("others than root"));
        let symbols = format!("/lib/modules/{KERNEL}/build/Module.symvers");
        fakes
            .files
            .put(&symbols, "0x00000008\tkfree\tvmlinux\tEXPORT_SYMBOL\t\n");
        assert!(why(&[], SOURCE).await.contains("another `kfree`"));
    }

    fn asked(sources: &[&str]) -> args::Take {
        args::Take {
            driver: "535.261.03".parse().expect("a version"),
            kernel: KERNEL.parse().expect("a kernel"),
            flavour: Flavour::Proprietary,
            source: sources.iter().map(ToString::to_string).collect(),
            public_key: Vec::new(),
            places: vec!["nvidia-current=/build/nvidia.ko".parse().expect("a place")],
        }
    }

    #[tokio::test]
    async fn the_first_source_with_a_fitting_archive_counts_and_dkms_is_told_why_none_did() {
        let (host, fakes) = machine();
        let (name, content) = archive(&host).await;
        let purpose = wish(&host, &[]).await.purpose;
        let other = "https://other.example";
        let (took, said) = taken(&host, &asked(&[other, SOURCE]), purpose.clone(), PATIENCE).await;
        assert!(
            !took && said.starts_with("compiled, because no source had a fitting nvidia-535"),
            "{said}"
        );
        assert!(said.contains(other) && said.contains(SOURCE), "{said}");
        fakes.http.serve(&format!("{SOURCE}/{name}"), content);
        let (took, said) = taken(&host, &asked(&[other, SOURCE]), purpose, PATIENCE).await;
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

    /// A server that takes the connection and says nothing.
    #[tokio::test]
    async fn a_source_that_never_answers_costs_its_time_and_no_more() {
        struct Silent;
        #[async_trait::async_trait]
        impl crate::host::Http for Silent {
            async fn get(&self, _: &str, _: u64) -> Result<Vec<u8>, HttpError> {
                std::future::pending().await
            }
            async fn ask(&self, _: &crate::host::Ask) -> Result<crate::host::Answer, HttpError> {
                std::future::pending().await
            }
        }
        let (mut host, _) = machine();
        let purpose = wish(&host, &[]).await.purpose;
        host.http = std::sync::Arc::new(Silent);
        let (took, said) =
            taken(&host, &asked(&[SOURCE]), purpose, Duration::from_millis(20)).await;
        assert!(!took && said.contains("it took more than"), "{said}");
    }
}
