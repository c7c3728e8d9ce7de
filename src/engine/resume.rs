//! Resuming after a reboot: a unit runs `install --resume` at the next boot. Installing it is a few recorded changes.

use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};

use super::{
    EngineError, Tools, lasting,
    ledger::Ledger,
    retry::UNATTENDED_DEADLINE,
    units::{self, AFTER_MODULES, quoted},
};
use crate::{
    change::{Change, Problem, Reverted},
    error::one_line,
    host::{FilesError, Host, ReadFiles},
    journal::{Journal, JournalError, Request, Standing, fold},
    model::{id::StepId, paths::STATE},
    steps::CHECK_TIMER,
    tools::{cloud_init, packages::HEADER, systemctl},
};

/// The unit's name.
pub const UNIT: &str = "gpu-bootstrap-resume.service";

/// Its changes carry this name in the journal.
const RESUME: StepId = StepId::new("resume");

/// How long a run may take beyond its deadline: a change that has started is finished.
const BEYOND_DEADLINE: Duration = Duration::from_secs(3600);

/// The unit. `Type=exec`: the boot does not wait for it, so a unit that it starts or waits for
/// cannot deadlock with it. It is not ordered after cloud-init, whose last stage comes after
/// `multi-user.target`. Only the main process gets SIGTERM (it ends at a safe point), and it gets
/// the time that a package manager needs for that.
///
/// Of systemd's sandbox options it has only those that neither package scripts nor kernel modules
/// can need: these write everywhere, make setuid files and load modules.
///
/// It gets the credentials whose names begin with `gpu-bootstrap.`, encrypted ones decrypted. systemd before 254 ignores
/// this line with a warning in its log.
///
/// It is not started again after exit 5 and 6: the run has tried again what may pass, until its
/// deadline. It also starts without a journal: then it takes back what the lost run would have.
///
/// The persistence daemon, which may load the driver's module, starts after it: a boot that the module ends is counted by
/// then.
pub(super) fn unit(exe: &Utf8Path, deadline: Duration) -> String {
    format!(
        "# Written by gpu-bootstrap; it removes this file when its work is done.\n\
         [Unit]\n\
         Description=Finish the GPU set-up that gpu-bootstrap began\n\
         Wants=network-online.target\n\
         After=network-online.target\n\
         {AFTER_MODULES}\n\
         Before=nvidia-persistenced.service\n\
         RequiresMountsFor={STATE}\n\
         StartLimitIntervalSec=1h\n\
         StartLimitBurst=3\n\
         \n\
         [Service]\n\
         Type=exec\n\
         ExecStart={exe} install --resume\n\
         ImportCredential=gpu-bootstrap.*\n\
         SuccessExitStatus=8\n\
         Restart=on-failure\n\
         RestartPreventExitStatus=2 3 5 6 7 9 10\n\
         RestartSec=30\n\
         TimeoutStartSec=2min\n\
         RuntimeMaxSec={most}s\n\
         TimeoutStopSec=30min\n\
         KillMode=mixed\n\
         StandardInput=null\n\
         StandardOutput=journal+console\n\
         StandardError=journal+console\n\
         UMask=0022\n\
         LockPersonality=yes\n\
         RestrictRealtime=yes\n\
         \n\
         [Install]\n\
         WantedBy=multi-user.target\n",
        exe = quoted(exe),
        most = deadline.saturating_add(BEYOND_DEADLINE).as_secs(),
    )
}

/// needrestart restarts services whose libraries another package manager has replaced, such as unattended-upgrades or a
/// snap: also a run in the middle. Its own folder for settings; they are Perl.
const NEEDRESTART: &str = "/etc/needrestart/conf.d";

/// cloud-init runs the programs of this folder at each boot.
const PER_BOOT: &str = "/var/lib/cloud/scripts/per-boot";

/// Files that let a run go on undisturbed, and be seen, where the programs that read them are there.
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
    // cloud-init runs `runcmd` once per instance, so nothing else tells it how a run ends that goes on at a later boot.
    let script = Utf8Path::new(PER_BOOT).join("gpu-bootstrap");
    if cloud_init::is_running(files)? && files.exists(PER_BOOT.into())? {
        let content = format!("#!/bin/sh\n{HEADER}exec {} status --wait\n", word(exe));
        changes.push(write(script, content, 0o755));
    }
    Ok(changes)
}

/// A path as one word of the shell.
fn word(path: &Utf8Path) -> String {
    format!("'{}'", path.as_str().replace('\'', "'\\''"))
}

/// What the next boot needs to resume the run; `modules` are those of the driver.
fn changes(
    exe: &Utf8Path,
    deadline: Duration,
    modules: &[String],
    surroundings: Vec<Change>,
) -> Vec<Change> {
    // The unit goes first: after a power cut in between the run is continued, and makes the rest.
    let mut changes = vec![
        Change::write(units::path(UNIT), unit(exe, deadline)),
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

/// What [`ensure`] would do, for people.
pub(super) fn planned(tools: &Tools, modules: &[String]) -> Vec<String> {
    let exe = &tools.options.exe;
    let (around, unread) = match surroundings(&*tools.host.files, exe) {
        Ok(changes) => (changes, None),
        Err(error) => (Vec::new(), Some(one_line(&error))),
    };
    (changes(exe, UNATTENDED_DEADLINE, modules, around).iter())
        .map(Change::summary)
        .chain(unread.map(|why| format!("what needrestart and cloud-init need is unknown: {why}")))
        .collect()
}

/// Whether the machine is as the change leaves it: the unit may have been disabled or removed by
/// somebody since it was recorded.
fn is_made(files: &dyn ReadFiles, change: &Change) -> Result<bool, FilesError> {
    match change {
        Change::WriteFile { path, content, .. } => {
            Ok(files.read(path)?.as_deref() == Some(content.as_bytes()))
        }
        Change::EnableUnit { unit, .. } => Ok(files.stat(&units::link(unit))?.is_some()),
        _ => Ok(false),
    }
}

/// Makes sure that the next boot resumes the run, and that the driver's modules are loaded by the run
/// only. The error is a note for people.
pub(super) async fn ensure(
    tools: &Tools,
    ledger: &Ledger,
    modules: &[String],
) -> Result<(), String> {
    let told = |what: &str, why: String| {
        format!(
            "the next boot will not continue the run, run `gpu-bootstrap install` then: failed to \
             {what}: {why}"
        )
    };
    let exe = lasting::program(&*tools.host.files, &tools.options.exe)
        .map_err(|error| told("keep a copy of this program", one_line(&error)))?;
    let seconds = tools.options.request.deadline_seconds;
    let deadline = seconds.map_or(UNATTENDED_DEADLINE, Duration::from_secs);
    let standing = standing(ledger);
    let surroundings = surroundings(&*tools.host.files, &exe)
        .map_err(|error| told("look for needrestart and cloud-init", one_line(&error)))?;
    for change in changes(&exe, deadline, modules, surroundings) {
        let told = |why: String| told(&change.summary(), why);
        let made = is_made(&*tools.host.files, &change).map_err(|error| told(one_line(&error)))?;
        // A change that failed or was interrupted is applied again. Without a record nothing would
        // ever remove the unit.
        if made && (standing.iter()).any(|standing| standing.whole && standing.change == change) {
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
    !standing(ledger).is_empty()
}

/// The changes that make the next boot resume the run.
pub(super) fn is_of_unit(standing: &Standing) -> bool {
    standing.steps == [RESUME]
}

/// Removes the unit, and what was made beside it. Returns a note for people where that failed.
pub(super) async fn dismiss(ledger: &Ledger) -> Result<Option<String>, EngineError> {
    let mut note = None;
    let mut standing = standing(ledger);
    standing.sort_by_key(turn);
    for standing in standing {
        let undo = standing.undo.clone();
        let reverted = ledger.revert(&[standing], &undo).await;
        if let Some(Reverted::Left { what, why }) = reverted.map_err(EngineError::Unfinished)? {
            note = Some(format!("`{UNIT}` is no longer needed, but {what}: {why}"));
        }
    }
    if note.is_none() {
        lasting::forget_program(&*ledger.journal.host().files)
            .map_err(|error| EngineError::Unfinished(JournalError::from(error)))?;
    }
    Ok(note)
}

/// When a change is undone, the smallest first: the unit itself, what was made beside it, all others. A
/// boot in between must not continue what has ended, or is being undone. The timer that asks the GPUs each minute goes before
/// the modules of the driver are unloaded.
pub(super) fn turn(standing: &Standing) -> u8 {
    match &standing.change {
        Change::WriteFile { path, .. } if path.file_name() == Some(UNIT) => 0,
        Change::EnableUnit { unit, .. } if unit == UNIT => 0,
        _ if is_of_unit(standing) || standing.steps == [CHECK_TIMER] => 1,
        _ => 2,
    }
}

fn standing(ledger: &Ledger) -> Vec<Standing> {
    let mut standing = ledger.journal.receipt().standing;
    standing.retain(is_of_unit);
    standing
}

/// The request of the last `install`, to be repeated at the boot that it awaits. An image is an
/// instance by then: its GPUs are detected, not assumed.
///
/// # Errors
/// When the journal cannot be read.
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
    let standing = fold(&Journal::read(host)?.lines).standing;
    let whole = standing.into_iter().filter(|one| one.whole);
    Ok(whole.map(|one| one.change).collect())
}

/// The request of the last `install`, unchanged: an image is still an image.
///
/// # Errors
/// When the journal cannot be read.
pub fn asked(host: &Host) -> Result<Option<Request>, EngineError> {
    Ok(fold(&Journal::read(host)?.lines).request)
}

/// Starts the resume unit now, if the next boot would start it. Returns whether it did.
///
/// # Errors
/// When the journal cannot be read, or systemd refuses.
pub async fn hand_over(host: &Host) -> Result<bool, Problem> {
    if !fold(&Journal::read(host)?.lines)
        .standing
        .iter()
        .any(is_of_unit)
    {
        return Ok(false);
    }
    let start = systemctl::start_no_block(UNIT);
    let ran = host.exec.run(&start, &mut |_, _| {}).await;
    ran.and_then(|output| output.success(&start))
        .map_err(|error| Problem::tool(format!("start `{UNIT}`"), error))?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::fake::FakeFiles;

    /// needrestart of another package manager's run would restart ours in the middle, and cloud-init would not learn how
    /// the run of a later boot ends.
    #[test]
    fn what_may_disturb_the_run_or_wait_for_it_is_told_where_it_is_there() {
        let files = FakeFiles::new();
        let exe = Utf8Path::new("/opt/it's/gb");
        assert_eq!(surroundings(&files, exe).unwrap(), []);
        files.put_folder(NEEDRESTART, 0o755);
        files.put_folder(PER_BOOT, 0o755);
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
            content.ends_with("exec '/opt/it'\\''s/gb' status --wait\n"),
            "{content}"
        );
        assert_eq!(mode, 0o755);
        // cloud-init has ended: nobody waits.
        files.put("/run/cloud-init/result.json", "{}");
        assert_eq!(surroundings(&files, exe).unwrap().len(), 1);
    }
}
