//! Loads, unloads and builds kernel modules, and rebuilds initramfs images.

use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};

use super::{Applier, ChangeError, FollowUp, Reverted, Sink, Undo, kernel_parameters::needed_by};
use crate::{
    dkms,
    error::one_line,
    host::{Cmd, ExecError, FileKind, FilesError},
    tools::{faults, initramfs, kmod, packages::FailureClass, prebuilt},
};

/// The polling interval while another DKMS is running.
const POLL: Duration = Duration::from_secs(2);

impl Applier {
    fn is_loaded(&self, module: &str) -> Result<bool, ChangeError> {
        Ok(self.host.files.exists(&kmod::in_kernel(module))?)
    }

    pub(super) fn capture_load(&self, module: &str) -> Result<Undo, ChangeError> {
        Ok(if self.is_loaded(module)? {
            Undo::nothing(format!("`{module}` was already loaded"))
        } else {
            Undo::UnloadModule {
                module: module.to_owned(),
            }
        })
    }

    /// Returns the undo of a file with modules to load at every boot: unload those modules that are not loaded now, and restore
    /// the file.
    pub(super) fn capture_autoload(&self, content: &str, files: Undo) -> Result<Undo, ChangeError> {
        let mut undos = Vec::new();
        // A module is listed after the modules that it depends on, so it must be unloaded before them.
        for module in kmod::named_for_boot(content).rev() {
            match self.capture_load(module)? {
                Undo::Nothing { .. } => {}
                unload => undos.push(unload),
            }
        }
        if undos.is_empty() {
            return Ok(files);
        }
        undos.push(files);
        Ok(Undo::Several { undos })
    }

    pub(super) async fn load_module(
        &self,
        module: &str,
        sink: &dyn Sink,
    ) -> Result<(), ChangeError> {
        if self.is_loaded(module)? {
            return Ok(());
        }
        self.modprobe(
            &format!("load kernel module `{module}`"),
            &kmod::load(module),
            sink,
        )
        .await?;
        if self.is_loaded(module)? {
            Ok(())
        } else {
            Err(ChangeError::unreadable(
                format!("load kernel module `{module}`"),
                "`modprobe` succeeded, but the module is not loaded",
            ))
        }
    }

    async fn modprobe(&self, what: &str, cmd: &Cmd, sink: &dyn Sink) -> Result<(), ChangeError> {
        let refused = |said: &str, source: ExecError| {
            let fault = faults::of_modprobe(said);
            ChangeError {
                hint: fault.hint.clone(),
                ..ChangeError::new(&fault.reason, what).caused_by(source)
            }
        };
        let output = self
            .exec(cmd, sink)
            .await
            .map_err(|source| refused("", source))?;
        let said = output.stderr.clone();
        output
            .success(cmd)
            .map(drop)
            .map_err(|source| refused(&said, source))
    }

    fn loaded_modules(&self) -> Result<Vec<kmod::Loaded>, ChangeError> {
        let text = self.host.files.read_text(kmod::MODULES.into())?;
        Ok(kmod::parse_loaded(&text.unwrap_or_default()))
    }

    /// Unloads a module and all modules that use it, because these were loaded after it. A module that a process has open stays
    /// loaded until the next boot.
    pub(super) async fn revert_load(
        &self,
        module: &str,
        sink: &dyn Sink,
    ) -> Result<Reverted, ChangeError> {
        if !self.is_loaded(module)? {
            return Ok(Reverted::nothing(format!("`{module}` is not loaded")));
        }
        let stays = |why: String| {
            let what = format!("kernel module `{module}`, until the next boot");
            Ok(Reverted::left(what, why))
        };
        // The use count of a module does not include firewalls that depend on it.
        let bridges = match kmod::canonical(module).as_str() {
            kmod::BRIDGE_FILTER => self.bridges_of_others().await?,
            _ => Vec::new(),
        };
        if !bridges.is_empty() {
            return stays(needed_by(&bridges));
        }
        let stack = kmod::with_holders(&self.loaded_modules()?, module);
        if stack.is_empty() {
            return Ok(Reverted::nothing(format!(
                "`{module}` is built into the kernel"
            )));
        }
        if let Some(open) = stack.iter().find(|one| one.others() > 0) {
            let handles = open_handles(open.others());
            return stays(format!("`{}` is in use by {handles}", open.name));
        }
        for one in &stack {
            // Use the module name, because its file and its `modprobe` configuration may already be removed.
            let what = format!("unload kernel module `{}`", one.name);
            if let Err(error) = (self.modprobe(&what, &kmod::remove(&one.name), sink)).await {
                return stays(error.to_string());
            }
        }
        let names: Vec<String> = (stack.iter().map(|one| format!("`{}`", one.name))).collect();
        Ok(Reverted::done(format!("unloaded {}", names.join(", "))))
    }

    pub(super) fn capture_initramfs(kernels: &[String]) -> Undo {
        Undo::FollowUp {
            then: kernels
                .iter()
                .map(|kernel| FollowUp::RebuildInitramfs {
                    kernel: kernel.clone(),
                })
                .collect(),
        }
    }

    pub(super) async fn rebuild_initramfs(
        &self,
        kernels: &[String],
        sink: &dyn Sink,
    ) -> Result<(), ChangeError> {
        let generator = initramfs::of(&*self.host.files)?;
        for kernel in kernels {
            let cmd = generator.rebuild(kernel);
            let what = format!("rebuild the initramfs of {kernel}");
            match self.tool(&what, &cmd, sink).await {
                Err(error) if is_not_there(&error) => {
                    let program = generator.program();
                    return Err(ChangeError::unsupported(format!(
                        "{what} without `{program}`"
                    )));
                }
                done => done?,
            };
            let image = generator.image(kernel);
            if self.host.files.stat(&image)?.is_none() {
                return Err(ChangeError::unreadable(
                    what,
                    format!("`{image}` was not written"),
                ));
            }
        }
        Ok(())
    }

    /// Removes the remains of an interrupted `dkms add`: a version directory without its `source` symlink and without builds.
    /// DKMS does not list such a version, and scripts of Debian packages fail because of it.
    pub(super) async fn remove_torn_trees(&self, sink: &dyn Sink) -> Result<(), ChangeError> {
        let files = &self.host.files;
        // Another DKMS may be adding such a version now. The package scripts that run next would also start a second DKMS.
        self.wait_for_other_dkms("complete an interrupted transaction", sink)
            .await?;
        let directories = |path: &Utf8Path| -> Result<Vec<Utf8PathBuf>, ChangeError> {
            let mut found = Vec::new();
            for name in files.list(path)? {
                let inner = path.join(name);
                if (files.stat(&inner)?).is_some_and(|stat| stat.kind == FileKind::Directory) {
                    found.push(inner);
                }
            }
            Ok(found)
        };
        for module in directories(dkms::TREE.into())? {
            for version in directories(&module)? {
                let names = files.list(&version)?;
                if names.iter().any(|name| name != "build") {
                    continue;
                }
                if files.remove_empty_directory(&version.join("build"))?
                    && files.remove_empty_directory(&version)?
                {
                    sink.note(&format!(
                        "removed `{version}`, left without source by an interrupted `dkms add`"
                    ));
                }
            }
        }
        Ok(())
    }

    /// Reports why DKMS has compiled modules since a time (seconds since 1970) although prebuilt modules are configured.
    /// Otherwise, the compilation would only be noticed as a slow installation.
    pub(super) fn tell_of_compiled_modules(&self, since: i64, sink: &dyn Sink) {
        match self.compiled_modules(since) {
            Ok(whys) => whys
                .iter()
                .for_each(|why| sink.note(&format!("DKMS {why}"))),
            Err(error) => sink.line(&one_line(&error)),
        }
    }

    fn compiled_modules(&self, since: i64) -> Result<Vec<String>, FilesError> {
        let files = &*self.host.files;
        let mut whys = Vec::new();
        for build in dkms::builds(files)? {
            let log = build.log();
            if files.stat(&log)?.is_none_or(|stat| stat.mtime < since) {
                continue;
            }
            let text = files.read_lossy(&log)?.unwrap_or_default();
            let said = prebuilt::said(&text).last();
            whys.extend(
                said.filter(|said| !said.starts_with(prebuilt::TOOK))
                    .map(str::to_owned),
            );
        }
        Ok(whys)
    }

    /// The DKMS builds of a module.
    async fn builds(&self, module: &str) -> Result<Vec<dkms::DkmsStatus>, ChangeError> {
        let query = dkms::status(module);
        let output = self
            .host
            .reader()
            .query(&query)
            .await
            .and_then(|output| output.success(query.cmd()))
            .map_err(|source| ChangeError::tool(format!("query DKMS for `{module}`"), source))?;
        Ok(dkms::parse_status(&output.stdout)
            .into_iter()
            .filter(|status| status.module == module)
            .collect())
    }

    pub(super) async fn capture_build(
        &self,
        module: &str,
        kernel: &str,
    ) -> Result<Undo, ChangeError> {
        let builds = self.builds(module).await?;
        let there = builds.iter().any(|status| is_installed(status, kernel));
        Ok(match self.versions_to_build(&builds, module)?.as_slice() {
            [version] if !there => Undo::RemoveModuleBuild {
                module: module.to_owned(),
                version: version.clone(),
                kernel: kernel.to_owned(),
            },
            _ => Undo::nothing(if there {
                format!("`{module}` was already built for {kernel}")
            } else {
                format!("`{module}` is not registered in DKMS")
            }),
        })
    }

    /// The version that is registered in DKMS, or else all versions whose source exists. The scripts of NVIDIA's DKMS packages
    /// unregister the module if a package is reinstalled.
    fn versions_to_build(
        &self,
        builds: &[dkms::DkmsStatus],
        module: &str,
    ) -> Result<Vec<String>, ChangeError> {
        if let Some(status) = builds.first() {
            return Ok(vec![status.version.clone()]);
        }
        let sources = Utf8Path::new(dkms::SOURCES);
        let mut found = Vec::new();
        for directory in self.host.files.list(sources)? {
            if let Some(version) = dkms::version_in(&directory, module)
                && self
                    .host
                    .files
                    .exists(&sources.join(&directory).join("dkms.conf"))?
            {
                found.push(version.to_owned());
            }
        }
        Ok(found)
    }

    /// Returns `true` if the DKMS build for a kernel was lost by a power loss or a kill. DKMS does not sync its builds, its
    /// status only lists names, and it reports a module as installed before `depmod` has listed it.
    fn is_torn(&self, status: &dkms::DkmsStatus, kernel: &str) -> Result<bool, ChangeError> {
        let files = &*self.host.files;
        let list = files.read_text(&kmod::list_of(kernel))?.unwrap_or_default();
        let of_kernel = dkms::directory_of(&status.module, &status.version, kernel);
        for architecture in files.list(&of_kernel)? {
            let built = of_kernel.join(architecture).join("module");
            for name in files.list(&built)? {
                // The list contains file names, not DKMS names.
                let Some(file) = kmod::name_of(&name) else {
                    continue;
                };
                if kmod::is_emptied(files, &built.join(&name))?
                    || !kmod::is_usable(files, kernel, &list, file)?
                {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Waits until no other DKMS process is running, with a time limit. DKMS has no lock, so concurrent processes destroy each
    /// other's builds. Another process may belong to `dkms.service`, a package script, or an interrupted run of gpu-bootstrap.
    async fn wait_for_other_dkms(&self, what: &str, sink: &dyn Sink) -> Result<(), ChangeError> {
        let clock = &self.host.clock;
        let started = clock.monotonic();
        let limit = self.policy.lock_timeout_seconds;
        let mut reported = None;
        while let Some(who) = self.other_dkms().await? {
            let waited = clock.monotonic().saturating_sub(started).as_secs();
            if waited >= limit {
                let what = format!("{what}: after {waited} s {who} is still running");
                return Err(ChangeError {
                    retryable: true,
                    ..ChangeError::new("dkms-busy", what)
                }
                .advice("wait until it has finished, then run the command again"));
            }
            if reported.as_ref() != Some(&who) {
                let left = limit - waited;
                let message = format!("{who} is running; waiting for at most {left} s more");
                sink.retry(&message, POLL.as_secs_f64());
                reported = Some(who);
            }
            self.pause_for(POLL, what).await?;
        }
        Ok(())
    }

    async fn other_dkms(&self) -> Result<Option<String>, ChangeError> {
        if let Some(process) = dkms::running(&*self.host.files, &*self.host.system)? {
            let command = process.command.unwrap_or_default();
            return Ok(Some(format!("process {}, `{command}`,", process.pid)));
        }
        let unit = self.unit_state_if_any(dkms::UNIT).await?;
        let starts = unit.is_some_and(|unit| unit.active == "activating");
        Ok(starts.then(|| format!("`{}`", dkms::UNIT)))
    }

    pub(super) async fn build_module(
        &self,
        module: &str,
        kernel: &str,
        sink: &dyn Sink,
    ) -> Result<(), ChangeError> {
        let what = format!("build kernel module `{module}` for {kernel}");
        self.wait_for_other_dkms(&what, sink).await?;
        let builds = self.builds(module).await?;
        if let Some(status) = builds.iter().find(|status| is_installed(status, kernel)) {
            if !self.is_torn(status, kernel)? {
                return Ok(());
            }
            let version = &status.version;
            let what = format!("remove the incomplete build of `{module}` {version} for {kernel}");
            self.tool(&what, &dkms::remove(module, version, kernel), sink)
                .await?;
        }
        let error = |log: Option<String>| ChangeError {
            hint: FailureClass::Build.hint().map(str::to_owned),
            ..ChangeError::new(FailureClass::Build.reason(), what.as_str()).telling(log)
        };
        let versions = self.versions_to_build(&builds, module)?;
        let [version] = versions.as_slice() else {
            return Err(error(Some(no_single_version(module, &versions))));
        };
        // DKMS neither resumes nor restarts a build if the directory of an interrupted one exists (`prepare_build` in
        // `dkms.in`).
        let is_known = |status: &dkms::DkmsStatus| status.kernel.as_deref() == Some(kernel);
        if !builds.iter().any(is_known) {
            self.remove_tree(&dkms::directory_of(module, version, kernel))?;
        }
        let cmd = dkms::install(module, version, kernel);
        let cmd = match dkms::needs_debug_information(&*self.host.files, kernel)? {
            true => cmd,
            false => cmd.env(
                dkms::WITHOUT_DEBUG_INFORMATION.0,
                dkms::WITHOUT_DEBUG_INFORMATION.1,
            ),
        };
        let begun = self.host.clock.now().as_second();
        let ran = self
            .exec(&cmd, sink)
            .await
            .and_then(|output| output.success(&cmd));
        self.tell_of_compiled_modules(begun, sink);
        if let Err(source) = ran {
            let log = self.log_tail(&dkms::log_path(module, version))?;
            return Err(error(log).caused_by(source));
        }
        if self
            .builds(module)
            .await?
            .iter()
            .any(|status| is_installed(status, kernel))
        {
            Ok(())
        } else {
            // Some DKMS versions skip a kernel without headers and still succeed.
            let log = self.log_tail(&dkms::log_path(module, version))?;
            Err(error(log))
        }
    }

    /// Removes a directory with its content. Symlinks are not followed.
    fn remove_tree(&self, directory: &Utf8Path) -> Result<(), FilesError> {
        let files = &self.host.files;
        let stat = files.stat(directory)?;
        if stat.is_none_or(|stat| stat.kind != FileKind::Directory) {
            return Ok(());
        }
        for name in files.list(directory)? {
            let path = directory.join(name);
            match files.stat(&path)?.map(|stat| stat.kind) {
                Some(FileKind::Directory) => self.remove_tree(&path)?,
                _ => files.remove(&path)?,
            }
        }
        files.remove_empty_directory(directory).map(drop)
    }

    pub(super) async fn revert_build(
        &self,
        module: &str,
        version: &str,
        kernel: &str,
        sink: &dyn Sink,
    ) -> Result<Reverted, ChangeError> {
        let builds = match self.builds(module).await {
            Ok(builds) => builds,
            Err(error) if is_not_there(&error) => Vec::new(),
            Err(error) => return Err(error),
        };
        let there = builds
            .iter()
            .any(|status| status.version == version && status.kernel.as_deref() == Some(kernel));
        if !there {
            return Ok(Reverted::nothing(format!(
                "`{module}` {version} is no longer built for {kernel}"
            )));
        }
        let what = format!("remove `{module}` {version} from {kernel}");
        self.wait_for_other_dkms(&what, sink).await?;
        self.tool(&what, &dkms::remove(module, version, kernel), sink)
            .await?;
        Ok(Reverted::done(format!(
            "removed `{module}` {version} from {kernel}"
        )))
    }
}

/// Returns `true` if the program of a change is not installed.
fn is_not_there(error: &ChangeError) -> bool {
    matches!(error.ended(), Some(ExecError::NotFound { .. }))
}

/// Returns the reason that the version of a module is unknown: no source of the module is installed, or several versions are.
fn no_single_version(module: &str, found: &[String]) -> String {
    if found.is_empty() {
        return "the module is not registered in DKMS, because its source package is not installed"
            .to_owned();
    }
    format!(
        "the module is not registered in DKMS, and `{}` contains several versions of its source: \
         {}. Register one with `dkms add -m {module} -v VERSION`",
        dkms::SOURCES,
        found.join(", ")
    )
}

fn open_handles(others: u64) -> String {
    format!("{others} open file(s) or device(s)")
}

fn is_installed(status: &dkms::DkmsStatus, kernel: &str) -> bool {
    status.kernel.as_deref() == Some(kernel) && status.state.starts_with("installed")
}
