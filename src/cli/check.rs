//! `check`: examines the machine without changing it, and reports the findings.

use std::{
    io::{self, Write},
    sync::Arc,
};

use camino::Utf8Path;

use super::{
    Failure,
    args::{self, CheckFormat},
    condition::{self, ConditionUpdate},
    env::{Console, Env},
    machine, prepare, print, validate, viewers,
};
use crate::{
    change::NoChanges,
    check::{self, Finding, Verdict},
    checks,
    config::{
        desired::Desired,
        error::{ConfigError, ResolveError},
    },
    engine::{
        self, Audit, Cancel, Maintenance, MaintenanceState, Options, RunReport, Session,
        StatusSummary, Tools, Unresolvable,
    },
    error::{Report as _, one_line},
    exit::Exit,
    facts::Facts,
    host::{
        Host,
        record::{self, Recording},
        trusted::refuse_foreign,
    },
    journal::Request,
    model::{
        findings::{Kind, Remedy},
        id::Id,
        text::{shell_word, without_controls},
    },
    report::{
        Style,
        document::{self, MachineSummary, NodeStatus},
        error, formats,
        human::{self, Examined},
    },
    runtimes::PROGRAMS,
    state::{Inventory, State, owner},
    steps,
};

/// A file that exists on a running system and in a recording, but not in an image that is not running.
const RUNNING_KERNEL: &str = "/proc/sys/kernel/osrelease";

pub(super) async fn run(
    host: &Host,
    env: &Env,
    console: &mut Console<'_>,
    args: &args::CheckArgs,
) -> Result<Exit, Failure> {
    match look(host, env, console, args).await {
        Err(failure) => told_to_plugin(console, args.format, failure),
        answer => answer,
    }
}

/// Reports an error in the formats of monitoring plugins as the state "unknown", because a monitoring system reads only
/// standard output and the exit status. The error and its hint are also printed to standard error, for manual runs. In all
/// other formats, returns the error.
fn told_to_plugin(
    console: &mut Console<'_>,
    format: CheckFormat,
    failure: Failure,
) -> Result<Exit, Failure> {
    let answer: fn(&mut dyn Write, &str) -> io::Result<Exit> = match format {
        CheckFormat::Nagios => formats::nagios_failed,
        CheckFormat::Npd => formats::npd_failed,
        _ => return Err(failure),
    };
    let why = error::in_one_line(failure.report());
    let exit = print::shown(&mut console.out, |to| answer(to, &why))?;
    let style = console.err_style();
    // If standard error is closed, the message on standard output is enough.
    let _ = error::styled(&mut console.err, failure.report(), style);
    Ok(exit)
}

async fn look(
    here: &Host,
    env: &Env,
    console: &mut Console<'_>,
    args: &args::CheckArgs,
) -> Result<Exit, Failure> {
    let mut host = match &args.lspci {
        Some(file) => machine::from_lspci(here, file)?,
        None => machine::host(here, args.root.as_deref())?,
    };
    let text_only = args.lspci.is_some();
    let is_here = args.root.is_none() && !text_only;
    let mut recording: Option<Recording> = None;
    if let Some(directory) = &args.record {
        let (recorded, begun) =
            record::record(&host, directory, &env.secrets, &PROGRAMS).map_err(not_recorded)?;
        (host, recording) = (recorded, Some(begun));
    }
    let output = match &args.output {
        Some(file) => Some(prepare::absolute(file)?),
        None => None,
    };
    let mut request = match args.as_installed {
        true => engine::request(&host)?.unwrap_or_default(),
        false => {
            let request = prepare::request(&args.target, &args::ImageArgs::default(), false, None)?;
            prepare::with_lock(here, env, &args.target, request)?
        }
    };
    let mut named = here.clone();
    let mut warnings = Vec::new();
    // An unreadable journal or file becomes a warning, so that all other findings are still reported.
    let mut told = |error: &dyn std::error::Error| {
        warnings.push(format!("failed to {}", one_line(error)));
    };
    let mut unread = false;
    let (asked, runs) = if text_only {
        (None, true)
    } else {
        let asked = engine::asked(&host).unwrap_or_else(|error| {
            told(&error);
            unread = true;
            None
        });
        let runs = host.files.exists(Utf8Path::new(RUNNING_KERNEL));
        let runs = runs.unwrap_or_else(|error| {
            told(&error);
            true
        });
        (asked, runs)
    };
    let built = asked.clone();
    let built_before = built.is_some();
    // For an image that is not running, use the request from its journal. Settings on the command line replace its settings.
    if args.root.is_some()
        && !runs
        && let Some(built) = asked.filter(|asked| asked.image)
    {
        let own = request == Request::default();
        request.image = true;
        request.assume_gpus = built.assume_gpus;
        // The image contains the configuration files it was built with, but this machine may not have them.
        if own {
            named = host.clone();
            request.profile = built.profile;
            request.config = built.config;
            request.set = built.set;
        }
    }
    // If the request or the configuration contains a setting, the machine has a desired state.
    let mut set = request != Request::default();
    let scope = if text_only {
        machine::TEXT_ONLY
    } else {
        machine::scope(args.root.as_deref())
    };
    let pinned_by = match (&request.lock_path, &request.bundle) {
        (Some(file), _) => format!("--lock {}", shell_word(file.as_str())),
        (None, Some(bundle)) => format!("--bundle {}", shell_word(bundle.as_str())),
        (None, None) => "--lock FILE".to_owned(),
    };
    let mut inspection = prepare::inspection(host, here, env, request, scope).await?;
    let question = inspection.question(env, &named);
    // Whether an earlier run has prepared the machine for a GPU. `false` if the GPU is optional according to the journal or the
    // current settings, because a pool may include nodes without a GPU.
    let prepared = built.is_some_and(|built| {
        ![&built, &inspection.request].into_iter().any(|request| {
            inspection
                .is_gpu_optional(&question, request)
                // A file of the earlier request may be missing. Then the GPU counts as required. Errors in the current settings
                // are reported below.
                .unwrap_or(false)
        })
    });
    let mut back = None;
    let resolved = match text_only {
        true => None,
        false => Some(inspection.resolve(env, &question)),
    };
    let desired = match resolved {
        None => Err(Unresolvable {
            why: "only the output of lspci is available, so there is no desired state to compare"
                .to_owned(),
            hint: None,
            needless: true,
            unknown: false,
        }),
        Some(resolved) => match resolved {
            Ok(resolution) => {
                set |= !resolution.provenance.is_empty();
                warnings.extend(resolution.warnings);
                // An unreadable journal was already reported.
                let method = engine::rollback(&inspection.host, &resolution.desired).await;
                Ok(match method.ok().flatten() {
                    None => resolution.desired,
                    Some(method) => match method.resolve(&question) {
                        Ok(before) => {
                            warnings.extend(method.note);
                            back = Some(method.back);
                            before.desired
                        }
                        Err(error) => {
                            let to = &method.back.to;
                            let why = one_line(&error);
                            warnings.push(format!("failed to roll back to driver {to}: {why}"));
                            resolution.desired
                        }
                    },
                })
            }
            Err(error) if error.is_of_the_machine() => Err(unresolvable(&error)),
            Err(error) => return Err(error.into()),
        },
    };
    let desired = match in_container(&inspection.facts) {
        Some(why) if !prepared => Err(why),
        _ => desired,
    };
    let needless = matches!(&desired, Err(why) if why.needless);
    let desired = match of_others(&inspection.host, &inspection.facts) {
        Some(why) if !prepared && !set && !needless => {
            // These warnings are about settings that gpu-bootstrap does not apply here.
            warnings.clear();
            Err(why)
        }
        _ => desired,
    };
    let (events, reporter) = prepare::events(&inspection.host, &env.secrets, Vec::new())?;
    let fail_on: Vec<check::FailOn> = args.fail_on.iter().map(|on| (*on).into()).collect();
    // Without settings and without an earlier run, a difference from our defaults is not reported, unless it is requested with
    // `--fail-on difference`. If the journal is unreadable, there may have been a run.
    let compares =
        set || unread || built_before || fail_on.contains(&check::FailOn::Kind(Kind::Difference));
    let names = |ids: &[Id]| ids.iter().map(ToString::to_string).collect();
    let locked = (desired.as_ref().ok()).filter(|desired| desired.packages.guard.lock.is_some());
    let locked = locked.cloned();
    let wanted_node =
        (desired.as_ref().ok()).and_then(|desired| desired.cluster.as_ref()?.node.name.clone());
    let tools = Tools {
        host: inspection.host.clone(),
        change_applier: Arc::new(NoChanges),
        events,
        // Only `--validate` needs cleanup. Without it, a signal terminates the process immediately.
        cancel: match args.validate {
            true => viewers::cancel()?,
            false => Cancel::new(),
        },
        options: Options {
            only: names(&args.only),
            skip: names(&args.skip),
            ignore: names(&args.ignore),
            fail_on: fail_on.clone(),
            fail_on_unknown: args.strict,
            ..prepare::options(env, &inspection.facts, Request::default())
        },
    };
    let cancel = tools.cancel.clone();
    let validated = if args.validate {
        validate::validate(here, env, &inspection, &tools, desired.as_ref().ok()).await?
    } else {
        Vec::new()
    };
    let audit = Audit {
        validated,
        checks: checks::ALL,
        matrix: Arc::clone(&inspection.matrix),
        desired,
        back,
        prepared,
        compares,
        // An unreadable journal is a warning.
        failed_upgrade: (is_here
            .then(|| engine::status(here, inspection.facts.boot_id.as_deref())))
        .and_then(|status| status.ok()?.failed_upgrade),
    };
    let session = Session::audit(tools, steps::all(), inspection.state(), audit)?;
    let mut report = validate::unless_stopped(&cancel, session.check()).await?;
    reporter.finish();
    if locked.is_some() {
        with_lock(&mut report, &pinned_by);
    }
    if let Some(recording) = recording {
        // Also record the inputs of the `facts` command, so that it can run on the recording.
        session.state().snapshot().await;
        recording.finish().map_err(not_recorded)?;
    }
    // Omit warnings that a finding already contains.
    let found = |warning: &&String| (report.findings.iter()).any(|finding| tells(finding, warning));
    let unsaid: Vec<String> = (warnings.iter().filter(|warning| !found(warning)))
        .cloned()
        .collect();
    // With `--as-installed`, the `check` timer would write the warnings to the systemd journal every minute. Without settings,
    // the warnings are about our defaults, and
    // only the text mentions them, next to what `install` would change.
    match (args.as_installed, compares) {
        (true, _) => {}
        (false, true) => console.warn(&unsaid),
        (false, false) => report.notes.extend(unsaid),
    }
    let style = match output {
        Some(_) => Style::default(),
        None => console.out_style(),
    };
    let examined = Examined {
        whole: args.only.is_empty() && args.skip.is_empty(),
        here: is_here,
    };
    let mut text = Vec::new();
    let style = style.verbose(args.detail.verbose);
    let to = &mut text;
    let plugin = match args.format {
        CheckFormat::Json => {
            let inventory = inventory(&session.state(), locked.as_ref()).await;
            let node = node_status(here, examined.here, &inspection.facts, &report, inventory);
            let time = here.clock.now();
            let document = document::check(&report, time, &inspection.facts, &node, &warnings);
            print::json(to, &document)?;
            None
        }
        CheckFormat::Prometheus => {
            let inventory = inventory(&session.state(), locked.as_ref()).await;
            let node = node_status(here, examined.here, &inspection.facts, &report, inventory);
            let machine = MachineSummary::of(&inspection.facts);
            print::show(to, |to| formats::prometheus(to, &report, &machine, &node))?;
            None
        }
        CheckFormat::Nagios => Some(print::shown(to, |to| formats::nagios(to, &report))?),
        CheckFormat::Npd => Some(print::shown(to, |to| formats::npd(to, &report))?),
        other => {
            print::show(to, |to| match other {
                CheckFormat::Junit => formats::junit(to, &report),
                CheckFormat::Tap => formats::tap(to, &report),
                CheckFormat::Html => formats::html(to, &report, &inspection.facts),
                CheckFormat::Markdown => {
                    formats::markdown(to, &report, &MachineSummary::of(&inspection.facts))
                }
                _ => human::check(to, &report, examined, style),
            })?;
            None
        }
    };
    // Update the node condition even if the output cannot be written, for example because the disk is full.
    let delivered = deliver(here, env, console, output.as_deref(), &text);
    if args.node_condition {
        let said = ConditionUpdate {
            spec: inspection.node_condition(&question, here)?,
            node: wanted_node,
            fail_on,
            maintenance: maintenance(here, examined.here, &inspection.facts),
        };
        condition::tell(
            env,
            console,
            &inspection.host,
            &session.state(),
            &said,
            &report,
        )
        .await?;
    }
    delivered?;
    Ok(plugin.unwrap_or(report.exit))
}

/// Returns the inventory, with the result of the comparison with the lock file. If the package database cannot be read, the
/// result is unknown, and the finding about the lock file contains the reason.
async fn inventory(state: &State, locked: Option<&Desired>) -> Inventory {
    let lock = match locked {
        Some(desired) => steps::lock_status(state, desired).await.ok().flatten(),
        None => None,
    };
    Inventory {
        lock,
        ..state.inventory().await
    }
}

/// Adds the option with the lock file to each command that repairs the machine with `install` or `upgrade`, which would install
/// other versions without it.
fn with_lock(report: &mut RunReport, option: &str) {
    for command in report
        .findings
        .iter_mut()
        .filter_map(|finding| finding.command.as_mut())
    {
        if check::is_repair(Some(command)) {
            command.push_str(&format!(" {option}"));
        }
    }
}

/// Completes the inventory with the state of this machine. If the journal or a validation record cannot be read, for example
/// because only root can read the directory of both, its values are unknown. `look` has then added the reason to the warnings
/// (`engine::asked`).
fn node_status(
    here: &Host,
    is_here: bool,
    facts: &Facts,
    report: &RunReport,
    inventory: Inventory,
) -> NodeStatus {
    let node = NodeStatus::of(inventory);
    if !is_here {
        return node;
    }
    let status = engine::status(here, facts.boot_id.as_deref()).ok();
    let timing = engine::last_timing(here).ok().flatten();
    let kernels = (&facts.kernel.running, &facts.kernel.next_boot);
    let is_new = matches!(kernels, (Some(running), Some(next)) if running != next);
    let is_remedy = (report.findings.iter()).any(|finding| {
        matches!(finding.status, Verdict::Fail | Verdict::Warn)
            && finding.because.is_none()
            && finding.class() == Some(Remedy::Reboot)
    });
    NodeStatus {
        validated: steps::container::last_validated(&*here.files)
            .ok()
            .flatten(),
        reboot_pending: (status.as_ref()).map(|status| status.reboot_due || is_new || is_remedy),
        maintenance: (status.as_ref()).map(|status| status.maintenance.is_some() && !waits(status)),
        upgrade_waiting: status.as_ref().map(waits),
        run_active: status
            .map(|status| status.current.as_ref().is_some_and(|run| run.alive) && !waits(&status)),
        time_to_ready_seconds: timing.and_then(|timing| timing.to_ready()),
        ..node
    }
}

/// Whether the node waits for its maintenance. Until then, its GPUs can be used.
fn waits(status: &StatusSummary) -> bool {
    (status.maintenance).is_some_and(|one| one.state == MaintenanceState::Waiting)
}

/// Returns the maintenance of this machine. An unreadable journal is already a warning.
fn maintenance(here: &Host, is_here: bool, facts: &Facts) -> Option<Maintenance> {
    let status = is_here.then(|| engine::status(here, facts.boot_id.as_deref()).ok());
    status.flatten()?.maintenance
}

/// Writes a document to standard output or to the `--output` file. Root does not write to a path that other users can change,
/// because they could replace the file by a symlink.
fn deliver(
    here: &Host,
    env: &Env,
    console: &mut Console<'_>,
    output: Option<&Utf8Path>,
    text: &[u8],
) -> Result<(), Failure> {
    let Some(path) = output else {
        return print::show(&mut console.out, |to| to.write_all(text));
    };
    let text = String::from_utf8_lossy(text);
    let hidden = env.secrets.hide(&text);
    let clean = without_controls(&hidden);
    let text = clean.as_deref().unwrap_or(&hidden);
    let files = &*here.files;
    let trusted = match env.root {
        true => refuse_foreign(files, path),
        false => Ok(()),
    };
    let written = trusted.and_then(|()| files.write(path, text.as_bytes(), 0o644));
    written.map_err(|error| {
        let message = format!("failed to write the findings into `{path}`");
        Failure::caused(Exit::Internal, "output", &message, error, None)
    })
}

/// Whether the output shows a finding that contains this warning.
fn tells(finding: &Finding, warning: &str) -> bool {
    let shown = !matches!(finding.status, Verdict::Pass | Verdict::Skip);
    shown && finding.because.is_none() && finding.why.contains(warning)
}

/// Returns the reason why there is no desired state.
fn unresolvable(error: &ResolveError) -> Unresolvable {
    let why = match error {
        ResolveError::Refused(refusal) => refusal.why.clone(),
        ResolveError::Config(ConfigError::UnsupportedOs { os, .. }) => {
            format!("{os} is not supported")
        }
        ResolveError::Config(ConfigError::UnknownOs) => {
            "the operating system is unknown: no readable `os-release`".to_owned()
        }
        ResolveError::Config(error) => format!("failed to {}", one_line(error)),
    };
    // vGPU guests and hosts need an NVIDIA vGPU driver, which gpu-bootstrap does not install. The `virt` checks report the
    // details.
    let needless = match error {
        ResolveError::Refused(refusal) => matches!(refusal.reason, "vgpu" | "vgpu-host"),
        ResolveError::Config(_) => false,
    };
    let unknown = matches!(error, ResolveError::Config(ConfigError::UnknownOs));
    Unresolvable {
        why,
        hint: error.hint(),
        needless,
        unknown,
    }
}

/// Returns the reason why an application container has no desired state. The caller ignores the reason if an earlier run has
/// prepared this container, because an image may be built in a container.
fn in_container(facts: &Facts) -> Option<Unresolvable> {
    let manager = facts.application_container()?;
    Some(Unresolvable {
        why: format!("this is a container (`{manager}`): prepare its host instead"),
        hint: None,
        needless: true,
        unknown: false,
    })
}

/// If another program manages the driver, returns the reason why our defaults do not apply. The caller ignores the reason if
/// the machine has settings, or if an earlier run has prepared it.
fn of_others(host: &Host, facts: &Facts) -> Option<Unresolvable> {
    // Read errors are reported by the check that reads the same files.
    let owner = owner(&*host.files, facts).ok()??;
    Some(Unresolvable {
        why: format!(
            "{} manages the driver, so the defaults do not apply",
            owner.name
        ),
        hint: None,
        needless: true,
        unknown: false,
    })
}

fn not_recorded(error: record::RecordError) -> Failure {
    Failure::caused(
        Exit::Usage,
        "not-recorded",
        "failed to write the recording",
        error,
        Some("use an empty or new directory with a few megabytes of free space"),
    )
}

#[cfg(test)]
mod tests {
    use super::node_status;
    use crate::{
        check::{Finding, Verdict},
        engine::{Mode, RunReport},
        exit::Exit,
        host::fake,
        model::id::Id,
        steps::fixtures::{facts, state},
    };

    #[tokio::test]
    async fn only_the_remedy_of_a_root_cause_requires_a_reboot() {
        let (host, _) = fake::host();
        let facts = facts();
        let inventory = state(&host, facts.clone()).inventory().await;
        let is_pending = |because| {
            let mismatch = Id::new("drv.version.mismatch");
            let finding = Finding {
                because,
                ..Finding::new(mismatch, Verdict::Fail, "x")
            };
            let report = RunReport {
                findings: vec![finding],
                ..RunReport::new(Mode::Check, "run".to_owned(), Exit::Drift)
            };
            node_status(&host, true, &facts, &report, inventory.clone()).reboot_pending
        };
        assert_eq!(is_pending(None), Some(true));
        let cause = Id::new("os.pkg.consistency");
        assert_eq!(is_pending(Some(cause)), Some(false));
    }
}
