//! Describes, applies and reverts changes on a machine: one match arm per change kind. The work is in the file of each family.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use camino::{Utf8Path, Utf8PathBuf};
use tokio_util::sync::CancellationToken;

use super::{
    Change, ChangeError, FileAfter, FollowUp, Reverted, Sink, Undo,
    apply_changes::ApplyChanges,
    backup::Backups,
    file,
    labels::written,
    mig::partition,
    packages::{Lists, OwnHolds, PrebuiltModules, QueryCache, Reduced, Simulation, WantedPackages},
    probe::ProbeCaller,
};
use crate::{
    config::desired::{Daemon, Desired, PackagePolicy},
    host::{FilesError, Host, ReadFiles, digest::sha256},
    model::secret::Secrets,
    tools::{imex, kmod, packages::Backend},
    work::Hands,
};

/// Performs changes. There is one per run, because it remembers whether the package lists are fresh.
#[derive(Clone)]
pub struct Applier {
    pub(super) hands: Hands,
    pub(super) policy: PackagePolicy,
    pub(super) backend: &'static dyn Backend,
    pub(super) backups: Backups,
    pub(super) lists: Arc<Lists>,
    pub(super) holds: Arc<OwnHolds>,
    /// Daemons whose files still refer to the toolkit's runtime after this run has tried to remove it. The toolkit package is
    /// kept for them.
    pub(super) need_toolkit: Arc<Mutex<BTreeSet<Daemon>>>,
    /// Whether paused timers stay paused until the run ends, instead of only until the current package work ends. True if a
    /// module is built, or if packages have deferred their build to a later change. A package manager that a timer starts could
    /// run another DKMS, which has no lock.
    pub(super) paused_for_run: Arc<AtomicBool>,
    /// This run has tried to acquire the fleet lock, and every request has failed.
    pub(super) lacks_fleet_lock: Arc<AtomicBool>,
    /// Held while timers are paused or started, because package work and a build can run at the same time.
    pub(super) pausing: Arc<tokio::sync::Mutex<()>>,
    /// The results of queries. Only set in an applier for one dry run, or for the approval of one transaction.
    pub(super) cache: Option<Arc<QueryCache>>,
    /// Prebuilt modules that the dry run has fetched and verified, by package file, until the package is built.
    pub(super) prebuilt: Arc<Mutex<PrebuiltModules>>,
    /// The packages that the run needs. `None` if they are unknown; then no source may fail.
    pub(super) wanted: Option<Arc<WantedPackages>>,
}

impl std::ops::Deref for Applier {
    type Target = Hands;

    fn deref(&self) -> &Hands {
        &self.hands
    }
}

impl Applier {
    /// Creates an applier for one run on a machine. Backups are stored in the state directory.
    pub fn new(host: Host, policy: PackagePolicy, state: Utf8PathBuf) -> Self {
        Self {
            backups: Backups::new(host.files.clone(), &state),
            hands: Hands {
                host,
                state,
                stop: CancellationToken::new(),
                secrets: Secrets::default(),
            },
            backend: policy.manager.backend(),
            policy,
            lists: Arc::default(),
            holds: Arc::default(),
            need_toolkit: Arc::default(),
            paused_for_run: Arc::default(),
            lacks_fleet_lock: Arc::default(),
            pausing: Arc::default(),
            cache: None,
            prebuilt: Arc::default(),
            wanted: None,
        }
    }

    /// Sets the packages that the run needs. A source may fail if none of them comes from it.
    #[must_use]
    pub fn wanting(mut self, wanted: WantedPackages) -> Self {
        self.wanted = Some(Arc::new(wanted));
        self
    }

    /// Adds packages that gpu-bootstrap holds and may therefore change.
    #[must_use]
    pub fn holding(self, names: impl IntoIterator<Item = String>) -> Self {
        self.holds.add(names);
        self
    }

    /// Sets the secrets of the run.
    #[must_use]
    pub fn hiding(mut self, secrets: Secrets) -> Self {
        self.hands.secrets = secrets;
        self
    }

    /// Ends every wait when this token is cancelled. A command that has started is never interrupted.
    #[must_use]
    pub fn stopped_by(mut self, stop: CancellationToken) -> Self {
        self.hands.stop = stop;
        self
    }

    async fn undo(&self, undo: &Undo, sink: &dyn Sink) -> Result<Reverted, ChangeError> {
        match undo {
            Undo::Nothing { why } => Ok(Reverted::nothing(why.clone())),
            Undo::Impossible { what, why } => Ok(Reverted::left(what.clone(), why.clone())),
            Undo::RestoreFiles {
                files,
                created_directories,
                daemon,
            } => match daemon {
                Some(daemon) => {
                    self.restore_runtime(daemon, files, created_directories, sink)
                        .await
                }
                None => {
                    let restored = self.restore_files(files, created_directories, sink).await?;
                    Ok(restored.told(sink))
                }
            },
            Undo::Packages {
                transaction,
                effects,
            } => {
                self.revert_packages(transaction, effects.as_deref(), sink)
                    .await
            }
            Undo::RestoreStream(undo) => self.restore_stream(undo, sink).await,
            Undo::Unhold(undo) => self.revert_hold(undo, sink).await,
            Undo::RestoreUnit(undo) => self.restore_unit(undo, sink).await,
            Undo::FollowUp { then } => self.follow_up(then, sink).await,
            Undo::UnloadModule { module } => self.revert_load(module, sink).await,
            Undo::RestoreMig(undo) => self.restore_mig(undo, sink).await,
            Undo::RemoveModuleBuild {
                module,
                version,
                kernel,
            } => self.revert_build(module, version, kernel, sink).await,
            Undo::RemoveImage { runtime, image } => self.remove_image(*runtime, image, sink).await,
            Undo::LeaveCluster(undo) => self.leave_cluster(undo, sink).await,
            Undo::RestoreLabels(undo) => self.restore_node(undo, sink).await,
            Undo::ReturnToService(undo) => self.return_to_service(undo, sink).await,
            Undo::RestoreSysctls { values, ours } => self.restore_sysctls(values, ours, sink).await,
            Undo::TurnOnSwap { areas } => self.turn_on_swap(areas, sink).await,
            Undo::Several { undos } => {
                let mut endings = Vec::new();
                for undo in undos {
                    endings.push(Box::pin(self.undo(undo, sink)).await?);
                }
                Ok(Reverted::of(endings))
            }
        }
    }

    async fn refine(&self, undo: Undo) -> Result<Undo, ChangeError> {
        match undo {
            Undo::RestoreFiles { .. } => self.refine_files(undo),
            Undo::Packages { .. } => self.refine_packages(undo).await,
            Undo::Unhold(undo) => self.refine_hold(undo),
            Undo::LeaveCluster(undo) => self.refine_join(undo).await,
            Undo::Several { undos } => {
                let mut refined = Vec::new();
                for undo in undos {
                    refined.push(Box::pin(self.refine(undo)).await?);
                }
                Ok(Undo::Several { undos: refined })
            }
            other => Ok(other),
        }
    }

    /// Syncs files that other programs have written. This may take seconds, so it runs on a separate thread.
    pub(super) async fn sync_system(&self) -> Result<(), ChangeError> {
        let files = Arc::clone(&self.host.files);
        let synced = tokio::task::spawn_blocking(move || files.sync_system()).await;
        Ok(synced.map_err(|ended| FilesError::Io {
            verb: "sync",
            path: "/".into(),
            source: ended.into(),
            disk: None,
        })??)
    }
}

#[async_trait]
impl ApplyChanges for Applier {
    fn anew(&self, desired: &Desired, holds: BTreeSet<String>) -> Arc<dyn ApplyChanges> {
        let other = Self::new(
            self.host.clone(),
            desired.packages.clone(),
            self.state.clone(),
        );
        let other = other.hiding(self.secrets.clone()).holding(holds);
        let wanted = WantedPackages::of(desired);
        Arc::new(other.wanting(wanted).stopped_by(self.stop.clone()))
    }

    async fn resume_paused(&self, sink: &dyn Sink) {
        self.paused_for_run.store(false, Ordering::Release);
        self.release_timers(sink).await;
    }

    async fn preview(&self, change: &Change) -> Result<Option<String>, ChangeError> {
        let files: &dyn ReadFiles = &*self.host.files;
        let text = |path: &Utf8Path| -> Result<Option<String>, ChangeError> {
            Ok(files
                .read(path)?
                .map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
        };
        Ok(match change {
            Change::WriteFile { path, content, .. } => {
                Some(file::diff(path, text(path)?.as_deref(), content))
            }
            Change::AddRepository { repository } => Some(self.preview_repository(repository)?),
            Change::InstallPackages { .. } => Some(self.simulate_install(change).await.preview()?),
            Change::RefreshRepositories => self.preview_refresh()?,
            Change::RunTriggers => None,
            Change::HoldPackages { patterns } => Some(self.preview_hold(patterns).await?),
            Change::RepairPackages => Some(self.preview_repair().await?),
            Change::LeaveService { leave } => self.preview_leave(leave).await?,
            Change::ConfigureRuntime { settings } => self.preview_runtime(settings)?,
            _ => None,
        })
    }

    async fn dry_run(&self, change: &Change) -> Result<(), ChangeError> {
        match change {
            Change::AddRepository { repository } => self.dry_run_repository(repository).await,
            Change::InstallPackages { .. } => match self.simulate_install(change).await {
                Simulation::Rejected(error) => Err(error),
                Simulation::Approved(_) | Simulation::Unknown(_) => Ok(()),
            },
            Change::BuildPackage { build } => self.dry_run_package(build).await,
            Change::PartitionGpus { partition } => self.dry_run_partition(partition).await,
            Change::LeaveService { leave } => self.dry_run_leave(leave).await,
            Change::MaskUnit { unit } | Change::RestartUnit { unit } => {
                self.refuse_stop_under_work(unit).await
            }
            _ => Ok(()),
        }
    }

    async fn simulate_installs(&self, changes: &[&Change]) -> Vec<Simulation> {
        self.simulate_changes(changes).await
    }

    async fn capture(&self, change: &Change) -> Result<Undo, ChangeError> {
        match change {
            Change::WriteFile {
                path,
                content,
                over,
                ..
            } => {
                self.refuse_changed(path, over.as_deref())?;
                if imex::is_file(path) {
                    // Otherwise the restart is refused after its reason is gone.
                    self.refuse_stop_under_work(imex::UNIT).await?;
                }
                let sha256 = sha256(content.as_bytes());
                let files = self.capture_files([(path.clone(), FileAfter::File { sha256 })])?;
                self.keep_ours(&files, content)?;
                if path.parent() == Some(kmod::AT_BOOT.into()) {
                    self.capture_autoload(content, files)
                } else {
                    Ok(files)
                }
            }
            Change::AddRepository { repository } => self.capture_repository(repository),
            Change::RefreshRepositories => Ok(Undo::nothing("package lists are a cache")),
            Change::EnableStream { module, stream } => self.capture_stream(module, stream),
            Change::InstallPackages { .. } | Change::RepairPackages => self.capture_packages(),
            Change::RunTriggers => Ok(Undo::nothing("triggers belong to their packages")),
            Change::HoldPackages { patterns } => self.capture_hold(patterns).await,
            Change::EnableUnit { unit, start } => self.capture_unit(unit, *start).await,
            Change::MaskUnit { unit } => self.capture_mask(unit).await,
            Change::RestartUnit { unit } => self.capture_restart(unit).await,
            Change::ConfigureRuntime { settings } => self.capture_runtime(settings),
            Change::LoadModule { module } => self.capture_load(module),
            Change::PartitionGpus { partition } => self.capture_partition(partition).await,
            Change::RebuildInitramfs { kernels } => Ok(Self::capture_initramfs(kernels)),
            Change::BuildModule { module, kernel } => self.capture_build(module, kernel).await,
            Change::BuildPackage { build } => self.capture_package(build),
            Change::RunTool {
                purpose,
                writes,
                repeated,
                ..
            } => self.capture_tool(purpose, writes, *repeated),
            Change::PullImage { runtime, image, .. } => self.capture_image(*runtime, image).await,
            Change::RunProbe { probe, record, .. } => self.capture_probe(probe, record).await,
            Change::SetSysctls { values } => self.capture_sysctls(values),
            Change::TurnOffSwap { areas } => Ok(Undo::TurnOnSwap {
                areas: areas.clone(),
            }),
            Change::JoinCluster { join } => self.capture_join(join),
            Change::AdmitNode { admission } => self.capture_admission(admission).await,
            Change::LeaveService { leave } => self.capture_leave(leave).await,
            Change::MarkFailedUpgrade { .. } => {
                Ok(Undo::nothing("the return to service removes the mark"))
            }
            Change::Reboot { .. } => Ok(Undo::nothing("a reboot leaves nothing to undo")),
        }
    }

    async fn apply(
        &self,
        change: &Change,
        undo: Undo,
        sink: &dyn Sink,
    ) -> Result<Undo, ChangeError> {
        match change {
            Change::WriteFile {
                path,
                content,
                mode,
                ..
            } => self.host.files.write(path, content.as_bytes(), *mode)?,
            Change::AddRepository { repository } => self.add_repository(repository).await?,
            Change::RefreshRepositories => self.refresh(sink).await?,
            Change::EnableStream { module, stream } => {
                self.enable_stream(module, stream, sink).await?;
            }
            Change::InstallPackages {
                packages,
                removing,
                later,
            } => {
                self.install(packages, removing, *later, &undo, sink)
                    .await?;
            }
            Change::RepairPackages => self.repair(&undo, sink).await?,
            Change::RunTriggers => self.run_deferred_triggers(sink).await?,
            Change::HoldPackages { patterns } => self.hold(patterns, &undo, sink).await?,
            Change::EnableUnit { unit, start } => self.enable_unit(unit, *start, sink).await?,
            Change::MaskUnit { unit } => self.mask_unit(unit, sink).await?,
            Change::RestartUnit { unit } => self.restart_unit(unit, sink).await?,
            Change::ConfigureRuntime { settings } => {
                self.configure_runtime(settings, &undo, sink).await?;
            }
            Change::LoadModule { module } => self.load_module(module, sink).await?,
            Change::PartitionGpus { partition: wanted } => {
                partition(self, wanted, sink).await?;
            }
            Change::RebuildInitramfs { kernels } => self.rebuild_initramfs(kernels, sink).await?,
            Change::BuildModule { module, kernel } => {
                self.pause_for_run().await?;
                self.build_module(module, kernel, sink).await?;
            }
            Change::BuildPackage { build } => self.build_package(build).await?,
            Change::RunTool {
                purpose,
                command,
                writes,
                repeated: _,
            } => self.run_tool(purpose, command, writes, sink).await?,
            Change::PullImage {
                runtime,
                image,
                timeout_seconds,
                archive,
            } => {
                let limit = Duration::from_secs(*timeout_seconds);
                let archive = archive.as_ref();
                self.pull_image(*runtime, image, archive, limit, sink)
                    .await?;
            }
            Change::RunProbe {
                probe,
                record,
                inputs,
                again: _,
            } => {
                self.run_probe(probe, record, inputs, ProbeCaller::Install, sink)
                    .await?;
            }
            Change::SetSysctls { values } => self.set_sysctls(values, sink).await?,
            Change::TurnOffSwap { areas } => self.turn_off_swap(areas, sink).await?,
            Change::JoinCluster { join } => {
                join.method.implementation().join(self, join, sink).await?
            }
            Change::AdmitNode { admission } => self.admit_node(admission, sink).await?,
            Change::LeaveService { leave } => self.leave_service(leave, sink).await?,
            Change::MarkFailedUpgrade { node, why } => self.mark_failed(node, why, sink).await?,
            // The engine finishes its run before a reboot.
            Change::Reboot { .. } => return Err(ChangeError::bug("reboot in the middle of a run")),
        }
        let undo = self.refine(undo).await?;
        self.restore_labels(&written(&undo), sink).await?;
        // A recorded change must survive a power loss.
        if is_written_by_tools(change) {
            self.sync_system().await?;
        }
        Ok(match change {
            Change::RunProbe { .. } => Self::undo_of_successful_probe(undo),
            _ => undo,
        })
    }

    async fn reconcile(&self, undo: &Undo, sink: &dyn Sink) -> Result<Undo, ChangeError> {
        // The tool may have been interrupted after it wrote files but before the sync.
        if undo_writes_by_tools(undo) || !written(undo).is_empty() {
            self.sync_system().await?;
        }
        if let Undo::Packages {
            transaction,
            effects: None,
        } = undo
        {
            return Ok(Undo::Packages {
                transaction: transaction.clone(),
                effects: Some(Box::new(
                    self.effects_of_interrupted(transaction, sink).await?,
                )),
            });
        }
        if let Undo::RestoreStream(undo) = undo {
            return self.reconcile_stream(undo, sink).await;
        }
        if let Undo::RestoreMig(undo) = undo {
            self.start_stopped(undo, sink).await?;
        }
        if let Undo::LeaveCluster(undo) = undo {
            undo.leave.implementation().clear(self, sink).await?;
        }
        self.restore_emptied_files(undo)?;
        self.refine(self.without_unwritten_files(undo)?).await
    }

    async fn revert(&self, undo: &Undo, sink: &dyn Sink) -> Result<Reverted, ChangeError> {
        let reverted = self.undo(undo, sink).await?;
        if undo_writes_by_tools(undo) {
            self.sync_system().await?;
        }
        Ok(reverted)
    }

    async fn reduce(
        &self,
        undo: &Undo,
        wanted: &BTreeSet<String>,
        holds: &BTreeSet<String>,
        sink: &dyn Sink,
    ) -> Result<Reduced, ChangeError> {
        Self::reduce(self, undo, wanted, holds, sink).await
    }
}

/// Returns `true` if a change runs tools that write files without a sync. gpu-bootstrap syncs its own files. Caches, images and
/// the state of daemons can be regenerated.
const fn is_written_by_tools(change: &Change) -> bool {
    matches!(
        change,
        Change::EnableStream { .. }
            | Change::InstallPackages { .. }
            | Change::RepairPackages
            | Change::RunTriggers
            | Change::HoldPackages { .. }
            | Change::EnableUnit { .. }
            | Change::MaskUnit { .. }
            | Change::RebuildInitramfs { .. }
            | Change::BuildModule { .. }
            | Change::JoinCluster { .. }
            | Change::RunTool { .. }
    )
}

/// The same for an undo.
fn undo_writes_by_tools(undo: &Undo) -> bool {
    match undo {
        Undo::Packages { .. }
        | Undo::RestoreStream(_)
        | Undo::Unhold(_)
        | Undo::RestoreUnit(_)
        | Undo::LeaveCluster(_)
        | Undo::RemoveModuleBuild { .. } => true,
        Undo::FollowUp { then } => {
            (then.iter()).any(|one| matches!(one, FollowUp::RebuildInitramfs { .. }))
        }
        Undo::Several { undos } => undos.iter().any(undo_writes_by_tools),
        _ => false,
    }
}
