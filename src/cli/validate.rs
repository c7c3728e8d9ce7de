//! `check --validate`: repeats the validation before the audit, on the host and with each runtime.
//!
//! It holds the run lock, and writes only the validation records and the probe files in the state directory. Its changes are
//! not in the journal, so it does not pull an image, which `uninstall` could not remove.

use camino::Utf8Path;

use super::{Failure, env::Env, prepare, probe};
use crate::{
    change::{Applier, Change, Probe, Sink},
    check::{Finding, Verdict},
    config::desired::Desired,
    engine::{Cancel, Tools},
    error::{Report as _, one_line},
    exit::Exit,
    host::{FilesError, Host},
    model::paths,
    state::State,
    step::Cx,
    steps::{self, VALIDATION_COMPUTE, VALIDATION_CONTAINER},
    tools::probe::ProbeDocument,
};

/// Runs the validation and returns its findings. Successful validations are recorded, and the audit reads the records.
pub(super) async fn validate(
    host: &Host,
    env: &Env,
    inspection: &prepare::Inspection,
    tools: &Tools,
    desired: Option<&Desired>,
) -> Result<Vec<Finding>, Failure> {
    let cancel = &tools.cancel;
    env.only_root(host, "validate")?;
    // Two probes would remove each other's container.
    let _lock = tools.lock()?;
    let finding = |status, why: &str| Finding::new(VALIDATION_COMPUTE, status, why);
    if inspection.facts.gpus.is_empty() {
        let none_is_right = desired.is_some_and(|desired| desired.settings.is_gpu_optional());
        let verdict = match none_is_right {
            true => Verdict::Skip,
            false => Verdict::Fail,
        };
        return Ok(vec![finding(
            verdict,
            "no NVIDIA GPU on the PCI bus to validate",
        )]);
    }
    let document = unless_stopped(cancel, probe::document(host, env)).await??;
    let Some(layer) = document.failed_layer else {
        if let Some(desired) = desired {
            record(inspection, desired, &document).await?;
        }
        let mut found = vec![finding(Verdict::Pass, &document.why)];
        found.extend(match desired {
            Some(desired) => in_containers(inspection, desired, cancel).await?,
            None => vec![of_containers(
                Verdict::Unknown,
                "not tried: the desired state of this machine cannot be determined",
            )],
        });
        return Ok(found);
    };
    // The GPUs fail on the host, so all earlier validations are no longer valid.
    forget(host).map_err(|error| {
        Failure::caused(
            Exit::Internal,
            "state",
            "failed to remove the validation records of this boot",
            error,
            None,
        )
    })?;
    let host = Finding {
        remedy: document.remedy,
        ..finding(
            Verdict::Fail,
            &format!("the probe fails at the layer {layer}: {}", document.why),
        )
    };
    let wanted = desired.is_some_and(steps::container::is_wanted);
    let container = wanted.then(|| Finding {
        because: Some(VALIDATION_COMPUTE),
        ..of_containers(
            Verdict::Unknown,
            "not tried: the GPUs failed validation on the host",
        )
    });
    Ok([host].into_iter().chain(container).collect())
}

/// Records the host validation, if the configuration includes one.
async fn record(
    inspection: &prepare::Inspection,
    desired: &Desired,
    document: &ProbeDocument,
) -> Result<(), Failure> {
    let state = inspection.state();
    let cx = cx(inspection, &state, desired);
    let failed = |error: &dyn std::error::Error| {
        let message = format!("failed to record the validation: {}", one_line(&error));
        Failure::new(Exit::Internal, "state", &message, None)
    };
    let Some(validation_run) =
        (steps::compute::validation_run(&cx).await).map_err(|error| failed(&error))?
    else {
        return Ok(());
    };
    let applier = applier(inspection, desired);
    (applier.record_host(&validation_run, document)).map_err(|error| failed(&error))
}

fn cx<'a>(inspection: &'a prepare::Inspection, state: &'a State, desired: &'a Desired) -> Cx<'a> {
    Cx {
        host: inspection.host.reader(),
        facts: &inspection.facts,
        state,
        desired,
        matrix: Some(&inspection.matrix),
    }
}

fn applier(inspection: &prepare::Inspection, desired: &Desired) -> Applier {
    let packages = desired.packages.clone();
    Applier::new(inspection.host.clone(), packages, paths::STATE.into())
}

/// Removes all validation records.
fn forget(host: &Host) -> Result<(), FilesError> {
    let directory = Utf8Path::new(paths::STATE).join(steps::container::RECORDS);
    for name in host.files.list(&directory)? {
        host.files.remove(&directory.join(name))?;
    }
    Ok(())
}

fn of_containers(status: Verdict, why: &str) -> Finding {
    Finding::new(VALIDATION_CONTAINER, status, why)
}

/// Validates each runtime. Returns a finding only for failures, because the audit reports the successful ones.
async fn in_containers(
    inspection: &prepare::Inspection,
    desired: &Desired,
    cancel: &Cancel,
) -> Result<Vec<Finding>, Failure> {
    let state = inspection.state();
    let cx = cx(inspection, &state, desired);
    let validations = match steps::container::validations(&cx).await {
        Ok(validations) => validations,
        Err(error) => {
            let why = format!("failed to {}", one_line(&error));
            return Ok(vec![of_containers(Verdict::Unknown, &why)]);
        }
    };
    let applier = applier(inspection, desired);
    let (mut whys, mut remedy) = (Vec::new(), None);
    for validation_run in &validations {
        let ran = match unless_stopped(cancel, applier.validate(validation_run, &NullSink)).await {
            Ok(ran) => ran,
            Err(stopped) => {
                // Only the client process was killed. The container still runs and would keep the GPUs busy.
                let cleared = applier.clear_validation(validation_run, &NullSink).await;
                return Err(cleared.err().map_or(stopped, |error| {
                    Failure::caused(
                        cancel.exit().unwrap_or(Exit::Terminated),
                        "stopped",
                        "failed to remove the validation container after the check was stopped by a signal",
                        error,
                        None,
                    )
                }));
            }
        };
        let Err(error) = ran else { continue };
        whys.push(format!("{}: {}", runtime(validation_run), one_line(&error)));
        remedy = remedy.or_else(|| error.hint());
    }
    if whys.is_empty() {
        return Ok(Vec::new());
    }
    Ok(vec![Finding {
        remedy,
        ..of_containers(Verdict::Fail, &whys.join("; "))
    }])
}

/// Waits for work that may be cancelled at any time. A signal cancels it.
pub(super) async fn unless_stopped<T>(
    cancel: &Cancel,
    work: impl Future<Output = T>,
) -> Result<T, Failure> {
    tokio::select! {
        biased;
        exit = cancel.cancelled() => {
            let message = "failed to finish the check: it was stopped by a signal";
            Err(Failure::new(exit, "stopped", message, None))
        }
        done = work => Ok(done),
    }
}

fn runtime(validation_run: &Change) -> &'static str {
    match validation_run {
        Change::RunProbe {
            probe: Probe::ContainerSeesGpus { runtime, .. },
            ..
        } => runtime.name(),
        _ => "",
    }
}

/// Discards progress, because `check` shows only findings. An error contains the output of the failed command.
struct NullSink;

impl Sink for NullSink {
    fn line(&self, _: &str) {}
    fn progress(&self, _: u64, _: Option<u64>, _: &str) {}
    fn retry(&self, _: &str, _: f64) {}
}
