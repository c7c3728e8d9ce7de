//! Resuming after a reboot: a unit runs `install --resume` at the next boot. The unit is installed
//! by recorded changes.

use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};

use super::{
    EngineError, Tools,
    ledger::Ledger,
    persist,
    result::Mode,
    retry::UNATTENDED_DEADLINE,
    units::{self, quoted},
};
use crate::{
    change::{Change, ChangeError, Reverted},
    error::one_line,
    host::{FilesError, Host, ReadFiles},
    journal::{AppliedChange, Journal, JournalError, Request, fold},
    model::{
        id::StepId,
        paths::{RESUME_UNIT, STATE},
    },
    steps::{AFTER_MODULES, CHECK_TIMER},
    tools::{cloud_init, packages::HEADER, systemctl},
};

/// The unit name.
pub const UNIT: &str = RESUME_UNIT;

/// The step ID in the journal of the changes that make the next boot resume the run.
const RESUME: StepId = StepId::new("resume");

/// The maximum run time after the deadline, because a started change is finished.
const BEYOND_DEADLINE: Duration = Duration::from_secs(3600);

/// Returns the unit file. With `Type=exec` the boot does not wait for it, so it cannot deadlock
/// with a unit that it starts or waits for. It is not ordered after cloud-init, whose last stage
/// runs after `multi-user.target`. Only the main process receives SIGTERM (it stops at a safe
/// point), with enough time for a package manager to finish.
///
/// It uses only systemd sandbox options that never restrict package scripts or kernel modules.
/// Package scripts write everywhere, create setuid files and load modules.
///
/// With `imports`, it imports the credentials whose names start with `gpu-bootstrap.`, decrypted.
///
/// It is not restarted after exit 5 and 6, because the run has already retried transient failures
/// until its deadline. It also starts without a journal, to clean up after a lost run.
///
/// It starts before the persistence daemon, which may load the driver module, so that a boot that
/// ends with a crash of the module is counted.
pub(super) fn unit(exe: &Utf8Path, deadline: Duration, imports: bool) -> String {
    let credentials = match imports {
        true => "ImportCredential=gpu-bootstrap.*\n",
        false => "",
    };
    format!(
        include_str!("resume.service"),
        after_modules = AFTER_MODULES,
        state = STATE,
        exe = quoted(exe),
        credentials = credentials,
        most = deadline.saturating_add(BEYOND_DEADLINE).as_secs(),
    )
}

/// The directory of needrestart settings, in Perl. needrestart restarts services if a package manager,
/// such as unattended-upgrades or a snap, has replaced their libraries. It must not restart our units
/// in the middle of a run.
const NEEDRESTART: &str = "/etc/needrestart/conf.d";

/// cloud-init runs the programs in this directory at each boot.
const PER_BOOT: &str = "/var/lib/cloud/scripts/per-boot";

/// Returns the files that protect a run from needrestart and report it to cloud-init, if these
/// programs are installed.
fn surroundings(files: &dyn ReadFiles, exe: &Utf8Path) -> Result<Vec<Change>, FilesError> {
    let write = |path: Utf8PathBuf, content: String, mode| Change::WriteFile {
        path,
        content,
        mode,
        over: None,
    };
    let mut changes = Vec::new();
    if files.exists(NEEDRESTART.into())? {
        let path = Utf8Path::new(NEEDRESTART).join("gpu-bootstrap.conf");
        let content = format!("{HEADER}$nrconf{{override_rc}}{{qr(^gpu-bootstrap)}} = 0;\n");
        changes.push(write(path, content, 0o644));
    }
    // cloud-init runs `runcmd` once per instance, so this script reports the result of a run that
    // continues at a later boot. It succeeds if the package was removed in the meantime.
    let script = Utf8Path::new(PER_BOOT).join("gpu-bootstrap");
    if cloud_init::is_running(files)? && files.exists(PER_BOOT.into())? {
        let exe = word(exe);
        let content =
            format!("#!/bin/sh\n{HEADER}[ -x {exe} ] || exit 0\nexec {exe} status --wait\n");
        changes.push(write(script, content, 0o755));
    }
    Ok(changes)
}

/// Quotes a path for a shell.
fn word(path: &Utf8Path) -> String {
    format!("'{}'", path.as_str().replace('\'', "'\\''"))
}

/// The first systemd version with `ImportCredential=`, systemd.exec(5). Older versions print a warning at each boot.
const IMPORTS_SINCE: u32 = 254;

/// Returns whether systemd supports `ImportCredential=`. If its version is unknown, the setting does no harm.
async fn imports_credentials(host: &Host) -> bool {
    let output = host.reader().query(&systemctl::version()).await;
    let version = output
        .ok()
        .and_then(|output| systemctl::parse_version(&output.stdout));
    version.is_none_or(|version| version >= IMPORTS_SINCE)
}

/// Returns the changes that make the next boot resume the run. `modules` are the driver modules, which
/// only the run may load then.
fn changes(
    exe: &Utf8Path,
    deadline: Duration,
    imports: bool,
    modules: &[String],
    surroundings: Vec<Change>,
) -> Vec<Change> {
    // The unit comes first: after a power loss in between, the run continues and applies the
    // remaining changes.
    let mut changes = vec![
        Change::write(units::path(UNIT), unit(exe, deadline, imports)),
        Change::EnableUnit {
            unit: UNIT.to_owned(),
            start: false,
        },
    ];
    if !modules.is_empty() {
        changes.push(units::not_by_itself(modules));
    }
    changes.extend(surroundings);
    changes
}

/// Describes the changes that [`ensure`] would make.
pub(super) fn planned(tools: &Tools, modules: &[String]) -> Vec<String> {
    let exe = &tools.options.exe;
    let (around, unread) = match surroundings(&*tools.host.files, exe) {
        Ok(changes) => (changes, None),
        Err(error) => (Vec::new(), Some(one_line(&error))),
    };
    // The summaries do not depend on the systemd version.
    (changes(exe, UNATTENDED_DEADLINE, true, modules, around).iter())
        .map(Change::summary)
        .chain(unread.map(|why| format!("needrestart and cloud-init changes are unknown: {why}")))
        .collect()
}

/// Whether the effect of a recorded change is still in place. The administrator may have disabled or
/// removed the unit in the meantime.
fn is_made(files: &dyn ReadFiles, change: &Change) -> Result<bool, FilesError> {
    match change {
        Change::WriteFile { path, content, .. } => {
            Ok(files.read(path)?.as_deref() == Some(content.as_bytes()))
        }
        Change::EnableUnit { unit, .. } => Ok(files.stat(&units::link(unit))?.is_some()),
        _ => Ok(false),
    }
}

/// Ensures that the next boot resumes the run, and that only the run loads the driver modules. The
/// error is a human-readable note.
pub(super) async fn ensure(
    tools: &Tools,
    ledger: &Ledger,
    modules: &[String],
) -> Result<(), String> {
    let command = Mode::of(&tools.options.request).command();
    let told = |what: &str, why: String| {
        format!(
            "the next boot will not continue the run (run `{command}` then): failed to {what}: {why}"
        )
    };
    let exe = persist::program(&*tools.host.files, &tools.options.exe)
        .map_err(|error| told("copy the gpu-bootstrap binary", one_line(&error)))?;
    let seconds = tools.options.request.deadline_seconds;
    let deadline = seconds.map_or(UNATTENDED_DEADLINE, Duration::from_secs);
    let applied = applied(ledger);
    let surroundings = surroundings(&*tools.host.files, &exe)
        .map_err(|error| told("detect needrestart and cloud-init", one_line(&error)))?;
    let imports = imports_credentials(&tools.host).await;
    for change in changes(&exe, deadline, imports, modules, surroundings) {
        let told = |why: String| told(&change.summary(), why);
        let made = is_made(&*tools.host.files, &change).map_err(|error| told(one_line(&error)))?;
        // Skip a change only if its effect is in place and the journal records it as complete. Without
        // a record, the unit would never be removed.
        if made && (applied.iter()).any(|applied| applied.whole && applied.change == change) {
            continue;
        }
        ledger
            .perform(&[RESUME], &change)
            .await
            .map_err(|failure| told(one_line(&failure)))?;
    }
    Ok(())
}

/// Whether the next boot resumes the run, according to the journal.
pub(super) fn stands(ledger: &Ledger) -> bool {
    !applied(ledger).is_empty()
}

/// Whether the change is one of those that make the next boot resume the run.
pub(super) fn is_of_unit(applied: &AppliedChange) -> bool {
    applied.steps == [RESUME]
}

/// Removes the unit and the related files. Returns a note if this fails.
pub(super) async fn dismiss(ledger: &Ledger) -> Result<Option<String>, EngineError> {
    let mut note = None;
    let mut applied = applied(ledger);
    applied.sort_by_key(turn);
    for applied in applied {
        let undo = applied.undo.clone();
        let reverted = ledger.revert(&[applied], &undo).await;
        if let Some(Reverted::Left { what, why }) = reverted.map_err(EngineError::Unfinished)? {
            note = Some(format!("`{UNIT}` is no longer needed, but {what}: {why}"));
        }
    }
    if note.is_none() {
        persist::forget_program(&*ledger.journal.host().files)
            .map_err(|error| EngineError::Unfinished(JournalError::from(error)))?;
    }
    Ok(note)
}

/// The undo order of a change, lowest first: the unit itself, the related files and the `check` timer,
/// everything else, the return to service. A boot in between must not continue a run that is finished
/// or being undone. The timer queries the GPUs every minute, so it is removed before the driver modules
/// are unloaded. No work must start on a node that is being undone.
pub(super) fn turn(applied: &AppliedChange) -> u8 {
    match &applied.change {
        Change::WriteFile { path, .. } if path.file_name() == Some(UNIT) => 0,
        Change::EnableUnit { unit, .. } if unit == UNIT => 0,
        _ if is_of_unit(applied) || applied.steps == [CHECK_TIMER] => 1,
        Change::LeaveService { .. } => 3,
        _ => 2,
    }
}

fn applied(ledger: &Ledger) -> Vec<AppliedChange> {
    let mut applied = ledger.journal.receipt().applied;
    applied.retain(is_of_unit);
    applied
}

/// Returns the request of the last `install`, to be repeated at the next boot. An image has become
/// an instance by then, so its GPUs are detected instead of assumed.
///
/// # Errors
/// If the journal cannot be read.
pub fn request(host: &Host) -> Result<Option<Request>, EngineError> {
    let Some(request) = fold(&Journal::read(host)?.lines).request else {
        return Ok(None);
    };
    Ok(Some(Request {
        image: false,
        assume_gpus: Vec::new(),
        credentials: Journal::credentials(host)?,
        ..request
    }))
}

/// Returns the changes that were applied completely and not undone, newest first.
///
/// # Errors
/// If the journal cannot be read.
pub fn applied_changes(host: &Host) -> Result<Vec<Change>, EngineError> {
    let applied = fold(&Journal::read(host)?.lines).applied;
    let whole = applied.into_iter().filter(|one| one.whole);
    Ok(whole.map(|one| one.change).collect())
}

/// Returns the request of the last `install`, unchanged: an image is still an image.
///
/// # Errors
/// If the journal cannot be read.
pub fn asked(host: &Host) -> Result<Option<Request>, EngineError> {
    Ok(fold(&Journal::read(host)?.lines).request)
}

/// Starts the resume unit now, if the next boot would start it. Returns whether it was started.
///
/// # Errors
/// If the journal cannot be read, or systemd rejects the request.
pub async fn hand_over(host: &Host) -> Result<bool, ChangeError> {
    if !fold(&Journal::read(host)?.lines)
        .applied
        .iter()
        .any(is_of_unit)
    {
        return Ok(false);
    }
    let start = systemctl::start_no_block(UNIT);
    let ran = host.exec.run(&start, &mut |_, _| {}).await;
    ran.and_then(|output| output.success(&start))
        .map_err(|error| ChangeError::tool(format!("start `{UNIT}`"), error))?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::fake::{self, FakeFiles};

    #[tokio::test]
    async fn credentials_are_imported_if_systemd_supports_it() {
        let exe = Utf8Path::new("/usr/local/bin/gpu-bootstrap");
        for (version, imports) in rows! {
            "systemd 252 (252.39-1~deb12u1)\n+PAM +AUDIT\n", false;
            "systemd 254 (254.5-1)\n", true;
            "systemd 257 (257.9-1~deb13u1)\n", true;
            "unknown", true;
        } {
            let (host, fakes) = fake::host();
            fakes.exec.on("systemctl", move |_, _| fake::ok(version));
            assert_eq!(imports_credentials(&host).await, imports, "{version}");
            let unit = unit(exe, UNATTENDED_DEADLINE, imports);
            assert_eq!(unit.contains("\nImportCredential="), imports, "{unit}");
            assert!(unit.contains(" install --resume\n"), "{unit}");
        }
    }

    /// Without these files, needrestart could restart our run after an upgrade by another package
    /// manager, and cloud-init would not receive the result of a run that finishes at a later boot.
    #[test]
    fn needrestart_and_cloud_init_files_are_written_if_installed() {
        let files = FakeFiles::new();
        let exe = Utf8Path::new("/opt/it's/gb");
        assert_eq!(surroundings(&files, exe).unwrap(), []);
        files.put_directory(NEEDRESTART, 0o755);
        files.put_directory(PER_BOOT, 0o755);
        files.put("/run/cloud-init/status.json", "{}");
        let made = surroundings(&files, exe).unwrap();
        let text = |at: usize| match &made[at] {
            Change::WriteFile {
                path,
                content,
                mode,
                ..
            } => (path.as_str(), content.clone(), *mode),
            other => panic!("{other:?}"),
        };
        let (path, content, _) = text(0);
        assert_eq!(path, "/etc/needrestart/conf.d/gpu-bootstrap.conf");
        assert!(content.ends_with("$nrconf{override_rc}{qr(^gpu-bootstrap)} = 0;\n"));
        let (path, content, mode) = text(1);
        assert_eq!(path, "/var/lib/cloud/scripts/per-boot/gpu-bootstrap");
        assert!(content.starts_with("#!/bin/sh\n"), "{content}");
        assert!(
            content.ends_with(
                "[ -x '/opt/it'\\''s/gb' ] || exit 0\nexec '/opt/it'\\''s/gb' status --wait\n"
            ),
            "{content}"
        );
        assert_eq!(mode, 0o755);
        // cloud-init has finished and no longer waits.
        files.put("/run/cloud-init/result.json", "{}");
        assert_eq!(surroundings(&files, exe).unwrap().len(), 1);
    }
}
