//! `uninstall`: reads the journal backwards and undoes only our changes. A change that cannot be
//! undone is reported, and the journal continues to list it as applied.

use std::collections::{BTreeMap, BTreeSet};

use camino::{Utf8Path, Utf8PathBuf};

use super::{
    EngineError, Tools, guard,
    install::finish,
    ledger::{Ledger, steps_of},
    maintenance::is_of_maintenance,
    persist,
    result::{ChangeReport, Mode, RunReport, StepReport},
    resume, units,
};
use crate::{
    change::{Reverted, Undo, packages::Effects},
    event::{Event, Outcome, StepTitle},
    exit::Exit,
    host::{FileKind, Files, FilesError, Host},
    journal::{AppliedChange, Journal, JournalError, Record, fold, path},
    model::{id::StepId, paths::STATE},
};

/// Changes that are undone together.
pub(super) struct Group {
    pub(super) applied: Vec<AppliedChange>,
    undo: Undo,
    /// A later group undoes the rest of the same changes.
    in_part: bool,
}

/// The result of undoing a group, with a description.
pub(super) enum UndoOutcome {
    Gone(String),
    Stays(String),
    NotTried,
}

/// Returns the changes that [`uninstall`] would undo, by step, without changing anything. It does not inspect the machine, so an
/// undo may still fail, for example because a file was edited. `run` is the ID of this run.
///
/// # Errors
/// If the journal or the directories of our files cannot be read.
pub fn planned_uninstall(
    host: &Host,
    run: String,
    titles: &[StepTitle],
) -> Result<RunReport, EngineError> {
    let mut report = RunReport::new(Mode::Uninstall, run, Exit::Ok);
    let history = Journal::read(host)?;
    if history.lines.is_empty() {
        let ours = units::named_ours(&*host.files).map_err(JournalError::from)?;
        if !ours.is_empty() {
            let note = "the journal is lost: `uninstall` would remove the files that continue a run or keep the driver from loading, \
                        and no others";
            report.notes.push(note.to_owned());
        }
        report
            .notes
            .extend(ours.iter().map(|path| without_journal(path)));
        return Ok(report);
    }
    let mut applied = fold(&history.lines).applied;
    applied.sort_by_key(resume::turn);
    // A change that is undone in parts is in several groups.
    let mut listed = BTreeSet::new();
    let in_order: Vec<AppliedChange> = (group(applied).into_iter())
        .flat_map(|group| group.applied)
        .filter(|one| listed.insert(one.intent))
        .collect();
    report.steps = steps_of(&in_order)
        .into_iter()
        .map(|id| StepReport {
            title: title(titles, &id),
            outcome: Outcome::WouldChange,
            why: "these changes would be undone".to_owned(),
            hint: None,
            causes: Vec::new(),
            reason: None,
            seconds: 0.0,
            changes: (in_order.iter())
                .filter(|one| one.steps.contains(&id))
                .map(|one| ChangeReport {
                    kind: one.change.kind(),
                    summary: one.change.summary(),
                    diff: None,
                })
                .collect(),
            id,
        })
        .collect();
    Ok(report)
}

fn title(titles: &[StepTitle], id: &StepId) -> String {
    let known = titles.iter().find(|title| title.id == *id);
    known.map_or_else(|| id.to_string(), |title| title.title.clone())
}

/// Undoes every applied change, newest first, with the exceptions described in [`resume::turn`],
/// [`follow_files`], [`follow_packages`] and [`group`]. `titles` are the titles of the steps.
///
/// # Errors
/// If the run cannot start or cannot be recorded. Failed undos are in the report.
pub async fn uninstall(tools: &Tools, titles: &[StepTitle]) -> Result<RunReport, EngineError> {
    let lock = tools.lock()?;
    tools.resume_paused().await;
    let (journal, history) =
        Journal::open(&tools.host, tools.events.run(), tools.events.secrets())?;
    let title = |id: &StepId| title(titles, id);
    let ids = steps_of(&journal.receipt().applied);
    tools.announce(
        Mode::Uninstall,
        ids.iter()
            .map(|id| StepTitle {
                id: id.clone(),
                title: title(id),
            })
            .collect(),
    );
    let mut report = RunReport::new(Mode::Uninstall, tools.events.run().to_owned(), Exit::Ok);
    if history.lines.is_empty() {
        let (removed, left) = without_record(&*tools.host.files).map_err(JournalError::from)?;
        for path in &removed {
            tools.note(&mut report.notes, guard::told(path));
        }
        if left.is_empty() && removed.is_empty() {
            tools.note(
                &mut report.notes,
                "there is nothing to undo: gpu-bootstrap has not changed this machine".to_owned(),
            );
        } else if !left.is_empty() {
            report.exit = Exit::Partial;
            report.left = left;
        }
        journal.keep_credentials(&[])?;
        clear(&*tools.host.files).map_err(JournalError::from)?;
        report.notes.extend(tools.events.take_notes());
    } else {
        let ledger = Ledger {
            journal,
            change_applier: tools.change_applier.clone(),
            events: tools.events.clone(),
        };
        undo_all(tools, &ledger, &title, &mut report).await?;
    }
    report.seconds = tools.events.elapsed().as_secs_f64();
    tools.finished(&report);
    drop(lock);
    Ok(report)
}

/// Cleans up a machine whose journal is lost: removes the files that prevent the driver from being
/// loaded. Returns the removed files, and the remaining files with the command that removes them.
fn without_record(files: &dyn Files) -> Result<(Vec<Utf8PathBuf>, Vec<String>), FilesError> {
    let removed = guard::release(files, &[])?;
    let left = units::named_ours(files)?;
    let left = left.iter().map(|path| without_journal(path)).collect();
    Ok((removed, left))
}

/// Describes a file that remains because the journal is lost.
fn without_journal(path: &Utf8Path) -> String {
    format!(
        "`{path}` was written by gpu-bootstrap, but the journal is lost; to finish, run `rm {path}`, and remove packages with \
         the package manager"
    )
}

async fn undo_all(
    tools: &Tools,
    ledger: &Ledger,
    title: &dyn Fn(&StepId) -> String,
    report: &mut RunReport,
) -> Result<(), EngineError> {
    ledger.journal.append(Record::RunStarted {
        tool: tools.options.version.clone(),
        mode: Mode::Uninstall.word().to_owned(),
        instance_id: tools.options.instance_id.clone(),
        boot_id: tools.options.boot_id.clone(),
        request: tools.options.request.clone(),
        policy: None,
        assessed_seconds: None,
    })?;
    for note in ledger.reconcile().await? {
        tools.note(&mut report.notes, note);
    }
    let mut applied = ledger.journal.receipt().applied;
    applied.sort_by_key(resume::turn);
    let mut groups: Vec<(Group, UndoOutcome, f64)> = group(applied)
        .into_iter()
        .map(|group| (group, UndoOutcome::NotTried, 0.0))
        .collect();
    undo_groups(tools, ledger, &mut groups).await?;
    report.notes.extend(tools.events.take_notes());
    for (_, fate, _) in &groups {
        if let UndoOutcome::Stays(what) = fate {
            report.left.push(what.clone());
        }
    }
    let all: Vec<AppliedChange> = groups
        .iter()
        .flat_map(|(group, ..)| group.applied.clone())
        .collect();
    for id in steps_of(&all) {
        let step = of_step(&id, title(&id), &groups);
        tools.events.emit(Event::StepFinished {
            step: id,
            outcome: step.outcome,
            why: step.why.clone(),
            seconds: step.seconds,
            causes: step.causes.clone(),
            hint: None,
        });
        report.steps.push(step);
    }
    let untried = groups
        .iter()
        .any(|(_, fate, _)| matches!(fate, UndoOutcome::NotTried));
    report.exit = match tools.cancel.exit() {
        Some(exit) if untried => exit,
        _ if report.left.is_empty() => Exit::Ok,
        _ => Exit::Partial,
    };
    finish(tools, &ledger.journal, report)?;
    if report.exit == Exit::Ok {
        let kept = persist::forget_program(&*tools.host.files)
            .and_then(|()| wipe(&*tools.host.files))
            .map_err(|error| EngineError::Unfinished(JournalError::from(error)))?;
        if !kept.is_empty() {
            tools.note(
                &mut report.notes,
                format!(
                    "`{STATE}` is kept, because it contains another journal ({}) and its backups; \
                     if you no longer need them, run `rm -r {STATE}`",
                    kept.join(", ")
                ),
            );
        }
    }
    Ok(())
}

/// Undoes groups in order until a signal arrives. Stores the result and the duration of each group.
pub(super) async fn undo_groups(
    tools: &Tools,
    ledger: &Ledger,
    groups: &mut [(Group, UndoOutcome, f64)],
) -> Result<(), EngineError> {
    // Intermediate results of changes that are undone in parts.
    let mut parts: BTreeMap<u64, Reverted> = BTreeMap::new();
    for (group, fate, seconds) in groups.iter_mut() {
        if tools.cancel.exit().is_some() {
            break;
        }
        let began = tools.events.elapsed();
        let steps = steps_of(&group.applied);
        let summary = format!("undo: {}", summary(&group.applied));
        tools.events.emit(Event::ChangeStarted {
            steps: steps.clone(),
            summary: summary.clone(),
        });
        let reverted = ledger.undo(&group.applied, &group.undo).await;
        if let Some(reverted) = &reverted {
            for applied in &group.applied {
                let before = parts.remove(&applied.intent);
                let whole = Reverted::of(before.into_iter().chain([reverted.clone()]).collect());
                if group.in_part {
                    parts.insert(applied.intent, whole);
                } else {
                    (ledger.reverted(std::slice::from_ref(applied), &whole))
                        .map_err(EngineError::Unfinished)?;
                }
            }
        }
        *fate = match reverted {
            Some(Reverted::Done { what }) => UndoOutcome::Gone(what),
            Some(Reverted::Nothing { why }) => UndoOutcome::Gone(format!("nothing to undo: {why}")),
            Some(Reverted::Left { what, why }) => UndoOutcome::Stays(format!("{what}: {why}")),
            None => UndoOutcome::NotTried,
        };
        *seconds = tools.events.elapsed().saturating_sub(began).as_secs_f64();
        if matches!(fate, UndoOutcome::Gone(_)) {
            tools.events.emit(Event::ChangeApplied {
                steps,
                summary,
                seconds: *seconds,
            });
        }
    }
    Ok(())
}

/// Moves each change that makes a program read its files again (a restart, a new initramfs) after
/// the oldest file change of the same step, so that the program reads the restored files. If the step
/// has no older file change, the change is undone last, because the program has read files that other
/// steps installed. Steps run concurrently, so changes of other steps may be in between.
fn follow_files(mut applied: Vec<AppliedChange>) -> Vec<AppliedChange> {
    // Start with the oldest, so that moves do not change the indices of the remaining ones.
    for at in (0..applied.len()).rev() {
        if !matches!(applied[at].undo, Undo::FollowUp { .. }) {
            continue;
        }
        let files = (at + 1..applied.len()).rev().find(|&older| {
            matches!(applied[older].undo, Undo::RestoreFiles { .. })
                && applied[older]
                    .steps
                    .iter()
                    .any(|step| applied[at].steps.contains(step))
        });
        let end = files.map_or(applied.len(), |files| files + 1);
        applied[at..end].rotate_left(1);
    }
    applied
}

/// Moves a package transaction that replaced packages of an earlier transaction next to it, so that
/// [`group`] merges their undos: packages that the earlier transaction installed are removed in any
/// version, without restoring the old version first. The transactions in between are included,
/// because the later transaction may need their packages. Other changes in between are undone first.
fn follow_packages(mut applied: Vec<AppliedChange>) -> Vec<AppliedChange> {
    fn effects(applied: &AppliedChange) -> Option<&Effects> {
        match &applied.undo {
            Undo::Packages { effects, .. } => effects.as_deref(),
            _ => None,
        }
    }
    // Start with the oldest, so that the earlier transaction is already in its final position when
    // a later one is moved next to it.
    for at in (0..applied.len()).rev() {
        let Some(mine) = effects(&applied[at]) else {
            continue;
        };
        let replaced: BTreeSet<&String> = (mine.moved.iter().chain(&mine.disappeared))
            .map(|spec| &spec.name)
            .collect();
        let older = (at + 1..applied.len()).find(|&older| {
            effects(&applied[older]).is_some_and(|theirs| {
                let moved = theirs.moved.iter().chain(&theirs.disappeared);
                let new = theirs.new_packages();
                (new.iter().chain(moved.map(|spec| &spec.name))).any(|one| replaced.contains(one))
            })
        });
        if let Some(older) = older {
            let (transactions, others): (Vec<_>, Vec<_>) = (applied.drain(at..older))
                .partition(|one| matches!(one.undo, Undo::Packages { .. }));
            applied.splice(at..at, others.into_iter().chain(transactions));
        }
    }
    applied
}

/// Merges adjacent changes that can be undone together. Modules are unloaded and kernel parameters
/// restored last, because daemons need them until the packages of the daemons are removed. Files that
/// list modules to load at boot keep their position.
pub(super) fn group(applied: Vec<AppliedChange>) -> Vec<Group> {
    let (mut groups, mut unloading): (Vec<Group>, Vec<Group>) = (Vec::new(), Vec::new());
    for next in follow_packages(follow_files(applied)) {
        let (unload, rest) = next.undo.split_unloading();
        if let Some(undo) = unload {
            unloading.push(Group {
                undo,
                applied: vec![next.clone()],
                in_part: false,
            });
        }
        let in_part = next.undo.unloads();
        let Some(undo) = rest else {
            continue;
        };
        if let Some(last) = groups.last_mut()
            && !in_part
            && !last.in_part
            && let Some(undo) = last.undo.merge(&undo)
        {
            last.undo = undo;
            last.applied.push(next);
            continue;
        }
        groups.push(Group {
            undo,
            applied: vec![next],
            in_part,
        });
    }
    // The return to service is the last undo, see `resume::turn`.
    let is_return = |group: &Group| group.applied.iter().any(is_of_maintenance);
    let end = groups.iter().position(is_return).unwrap_or(groups.len());
    groups.splice(end..end, unloading);
    groups
}

fn summary(applied: &[AppliedChange]) -> String {
    applied
        .iter()
        .map(|applied| applied.change.summary())
        .collect::<Vec<_>>()
        .join("; ")
}

fn of_step(id: &StepId, title: String, groups: &[(Group, UndoOutcome, f64)]) -> StepReport {
    let mine: Vec<&(Group, UndoOutcome, f64)> = groups
        .iter()
        .filter(|(group, ..)| group.applied.iter().any(|s| s.steps.contains(id)))
        .collect();
    let stays: Vec<String> = mine
        .iter()
        .filter_map(|(_, fate, _)| match fate {
            UndoOutcome::Stays(what) => Some(what.clone()),
            _ => None,
        })
        .collect();
    let untried = mine
        .iter()
        .filter(|(_, fate, _)| matches!(fate, UndoOutcome::NotTried))
        .count();
    let (outcome, why) = if !stays.is_empty() {
        (
            Outcome::Failed,
            "some changes could not be undone".to_owned(),
        )
    } else if untried > 0 {
        (Outcome::NotRun, "stopped by a signal".to_owned())
    } else {
        (Outcome::Changed, "the machine is restored".to_owned())
    };
    StepReport {
        id: id.clone(),
        title,
        outcome,
        why,
        hint: None,
        causes: stays,
        reason: None,
        seconds: mine.iter().map(|(.., seconds)| seconds).sum(),
        changes: mine
            .iter()
            .filter_map(|(group, fate, _)| match (fate, group.applied.first()) {
                (UndoOutcome::Gone(what), Some(applied)) => Some(ChangeReport {
                    kind: applied.change.kind(),
                    summary: what.clone(),
                    diff: None,
                }),
                _ => None,
            })
            .collect(),
    }
}

/// Removes the remains of a run that was interrupted at its first or last write: a journal without
/// a complete record, and the empty directory. Other files may belong to the user, for example a
/// journal that was moved aside.
fn clear(files: &dyn Files) -> Result<(), FilesError> {
    let directory = Utf8Path::new(STATE);
    if files.stat(&path())?.is_some() {
        files.remove(&path())?;
    }
    if files.stat(directory)?.is_some() {
        files.remove_empty_directory(directory)?;
    }
    Ok(())
}

/// Removes the state directory. The journal is removed last, so that after an interruption the next
/// `uninstall` finds no applied changes and continues here. A journal that the user moved aside is
/// kept, with its backups and transactions. Returns the names of such journals.
fn wipe(files: &dyn Files) -> Result<Vec<String>, FilesError> {
    let directory = Utf8Path::new(STATE);
    let aside: Vec<String> = (files.list(directory)?.into_iter())
        .filter(|name| moved_aside(name))
        .collect();
    let mut kept = vec![path()];
    if !aside.is_empty() {
        kept.extend(aside.iter().map(|name| directory.join(name)));
        kept.extend(["backups", "transactions"].map(|name| directory.join(name)));
    }
    remove_below(files, directory, &kept)?;
    files.remove(&path())?;
    files.remove_empty_directory(directory)?;
    Ok(aside)
}

/// Whether this is the name of a journal with a suffix, for example `.damaged`, as suggested by the
/// hint for a damaged journal.
fn moved_aside(name: &str) -> bool {
    path()
        .file_name()
        .and_then(|journal| name.strip_prefix(journal))
        .is_some_and(|rest| !rest.is_empty())
}

fn remove_below(
    files: &dyn Files,
    directory: &Utf8Path,
    except: &[Utf8PathBuf],
) -> Result<(), FilesError> {
    for name in files.list(directory)? {
        let at = directory.join(name);
        if except.contains(&at) {
            continue;
        }
        match files.stat(&at)?.map(|stat| stat.kind) {
            Some(FileKind::Directory) => {
                remove_below(files, &at, except)?;
                files.remove_empty_directory(&at)?;
            }
            Some(_) => files.remove(&at)?,
            None => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::change::{Change, FollowUp, packages::Unhold};

    fn applied(intent: u64, step: &'static str, undo: Undo) -> AppliedChange {
        AppliedChange {
            intent,
            at: jiff::Timestamp::UNIX_EPOCH,
            steps: vec![StepId::new(step)],
            change: Change::RefreshRepositories,
            undo,
            open: false,
            whole: true,
        }
    }

    fn files() -> Undo {
        Undo::RestoreFiles {
            files: vec![],
            created_directories: vec![],
            daemon: None,
        }
    }

    fn restart() -> Undo {
        Undo::FollowUp {
            then: vec![FollowUp::RestartUnit {
                unit: "docker.service".into(),
            }],
        }
    }

    #[test]
    fn restart_follows_the_files_of_its_step() {
        let hold = Undo::Unhold(Unhold {
            held: vec!["docker.io".to_owned()],
            entries: None,
            record: None,
        });
        let newest_first = vec![
            applied(6, "docker", restart()),
            applied(5, "docker", files()),
            applied(4, "hold", hold),
            applied(3, "docker", restart()),
            applied(2, "other", files()),
            applied(1, "docker", files()),
        ];
        let groups = group(newest_first);
        let order: Vec<Vec<u64>> = groups
            .iter()
            .map(|group| group.applied.iter().map(|one| one.intent).collect())
            .collect();
        assert_eq!(order, [vec![5], vec![4], vec![2], vec![1], vec![6, 3]]);
        assert!(
            matches!(&groups[4].undo, Undo::FollowUp { then } if then.len() == 1),
            "one restart, after the files"
        );
    }

    #[test]
    fn restart_without_files_is_undone_last() {
        let newest_first = vec![
            applied(3, "agent", restart()),
            applied(2, "other", files()),
            applied(1, "packages", files()),
        ];
        let order: Vec<u64> = (group(newest_first).iter())
            .flat_map(|group| group.applied.iter().map(|one| one.intent))
            .collect();
        assert_eq!(order, [2, 1, 3]);
    }

    /// No work must start on a node that is being undone.
    #[test]
    fn node_returns_to_service_last() {
        let unload = Undo::UnloadModule {
            module: "nvidia".into(),
        };
        let mut newest_first = vec![
            applied(3, "packages", files()),
            applied(2, "maintenance", files()),
            applied(1, "module", unload),
        ];
        newest_first.sort_by_key(resume::turn);
        let order: Vec<u64> = (group(newest_first).iter())
            .flat_map(|group| group.applied.iter().map(|one| one.intent))
            .collect();
        assert_eq!(order, [3, 1, 2]);
    }

    #[test]
    fn modules_are_unloaded_last() {
        let unload = || Undo::UnloadModule {
            module: "nvidia".into(),
        };
        let named = Undo::Several {
            undos: vec![unload(), files()],
        };
        let newest_first = vec![
            applied(4, "module", unload()),
            applied(3, "autoload", named),
            applied(2, "autoload", files()),
            applied(1, "deny", files()),
        ];
        let groups = group(newest_first);
        let order: Vec<(u64, bool, bool)> = (groups.iter())
            .map(|group| (group.applied[0].intent, group.undo.unloads(), group.in_part))
            .collect();
        assert_eq!(
            order,
            [
                (3, false, true),
                (2, false, false),
                (1, false, false),
                (4, true, false),
                (3, true, false),
            ]
        );
    }
}
