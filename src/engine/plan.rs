//! `plan`: shows the changes that `install` would make, with diffs.

use std::collections::BTreeSet;

use super::{
    Session,
    job::Job,
    result::{ChangeReport, Mode, RunReport},
    resume,
    survey::Simulations,
};
use crate::{
    change::{
        Change,
        packages::{FURTHER, NOT_SIMULATED, Simulation},
    },
    config::desired::PackageSpec,
    error::one_line,
    event::Outcome,
    exit::Exit,
    model::id::StepId,
    step::Assessment,
};

/// The change kind of a planned reboot.
const REBOOT: &str = "reboot";

/// The items that the plan already lists. If several steps need the same package or a refresh of the
/// package lists, `install` does this once, so only the first of these steps lists it.
#[derive(Debug, Default)]
struct Listed {
    /// Packages, each with the step that lists it.
    packages: Vec<(PackageSpec, StepId)>,
    /// Simulated package actions such as `+ NAME`, without versions.
    actions: BTreeSet<String>,
    /// Whether a refresh of the package lists is listed.
    refreshed: bool,
    /// Whether [`NOT_SIMULATED`] is listed.
    deferred: bool,
}

impl Listed {
    /// Returns the part of a change that is not listed yet.
    ///
    /// # Errors
    /// If the whole change is already listed: the step that lists it.
    fn rest(&mut self, step: &StepId, change: &Change) -> Result<Change, StepId> {
        let Change::InstallPackages {
            packages, removing, ..
        } = change
        else {
            return Ok(change.clone());
        };
        let first = |spec: &PackageSpec| self.packages.iter().find(|(known, _)| known == spec);
        let rest: Vec<PackageSpec> = (packages.iter())
            .filter(|spec| first(spec).is_none())
            .cloned()
            .collect();
        if rest.is_empty() {
            return match packages.first().and_then(first) {
                Some((_, first)) if removing.is_empty() => Err(first.clone()),
                _ => Ok(change.clone()),
            };
        }
        let listed = rest.iter().map(|spec| (spec.clone(), step.clone()));
        self.packages.extend(listed);
        Ok(Change::InstallPackages {
            packages: rest,
            removing: removing.clone(),
            later: false,
        })
    }

    /// Whether the change is a refresh of the package lists, and an earlier step already lists one.
    fn repeats_refresh(&mut self, change: &Change) -> bool {
        matches!(change, Change::RefreshRepositories)
            && std::mem::replace(&mut self.refreshed, true)
    }

    /// Returns the lines of a simulation without actions that are already listed, and without the
    /// heading of an empty list. `None` if no line remains.
    fn rest_of_simulation(&mut self, text: &str) -> Option<String> {
        if text == NOT_SIMULATED && std::mem::replace(&mut self.deferred, true) {
            return None;
        }
        let mut is_new = |line: &str| match line.split(' ').collect::<Vec<_>>()[..] {
            [sign @ ("+" | "-" | "~"), name, ..] => self.actions.insert(format!("{sign} {name}")),
            _ => true,
        };
        let (mut lines, mut heading) = (Vec::new(), None);
        for line in text.lines() {
            if line == FURTHER {
                heading = Some(line);
            } else if is_new(line) {
                lines.extend(heading.take());
                lines.push(line);
            }
        }
        (!lines.is_empty()).then(|| lines.join("\n"))
    }
}

impl Session {
    /// Returns the report of `plan`, with previews of all pending changes. The previews of package
    /// installations are in `simulations`.
    pub(super) async fn planned(&self, jobs: Vec<Job>, mut simulations: Simulations) -> RunReport {
        let mut notes = Vec::new();
        let mut steps = Vec::with_capacity(jobs.len());
        let mut listed = Listed::default();
        for (at, job) in jobs.iter().enumerate() {
            let upstream_pending =
                (self.inner.graph.up[at].iter()).any(|up| jobs[*up].has(Outcome::WouldChange));
            let would_change = job.has(Outcome::WouldChange);
            let (changes, known) = match &job.answer {
                _ if !would_change => (&[][..], false),
                Some(Ok(Assessment::Needs { changes, .. })) => (changes.as_slice(), true),
                Some(Ok(Assessment::After { expected, .. })) => (expected.as_slice(), false),
                _ => (&[][..], false),
            };
            let mut reports = Vec::with_capacity(changes.len());
            let mut comes_with = None;
            for (number, change) in changes.iter().enumerate() {
                if listed.repeats_refresh(change) {
                    continue;
                }
                let rest = match listed.rest(&job.id, change) {
                    Ok(rest) => rest,
                    Err(first) => {
                        comes_with = Some(first);
                        continue;
                    }
                };
                let mut diff = if known {
                    let simulation = simulations.remove(&(at, number));
                    self.preview(job, change, simulation, upstream_pending, &mut notes)
                        .await
                } else {
                    None
                };
                if let Change::InstallPackages { .. } = change {
                    diff = diff.and_then(|text| listed.rest_of_simulation(&text));
                }
                reports.push(ChangeReport {
                    kind: rest.kind(),
                    summary: rest.summary(),
                    diff,
                });
            }
            reports.extend(job.undos());
            let mut step = job.report(reports);
            if let Some(first) = comes_with {
                step.why
                    .push_str(&format!("; installed together with `{first}`"));
            }
            steps.push(step);
        }
        if steps
            .iter()
            .flat_map(|step| &step.changes)
            .any(|change| change.kind == REBOOT)
        {
            let first = resume::planned(&self.tools, self.driver_modules());
            self.tools.note(
                &mut notes,
                format!(
                    "`{} --reboot` first prepares the next boot to continue the run, and \
                     reverts these changes when the run finishes: {}",
                    Mode::of(&self.tools.options.request).word(),
                    first.join("; ")
                ),
            );
        }
        self.emit_ends(&jobs);
        let any = |outcome| steps.iter().any(|step| step.outcome == outcome);
        // A validation that is repeated after a boot is not drift, because it changes nothing.
        let pending = jobs.iter().any(|job| {
            let repeats = matches!(
                &job.answer,
                Some(Ok(Assessment::Needs { changes, .. }))
                    if job.undos().is_empty() && changes.iter().all(Change::only_repeats_validation)
            );
            job.has(Outcome::WouldChange) && !repeats
        });
        let exit = if any(Outcome::Blocked) {
            Exit::Blocked
        } else if any(Outcome::Failed) {
            Exit::StepFailed
        } else if pending {
            Exit::Drift
        } else {
            Exit::Ok
        };
        RunReport {
            steps,
            notes,
            seconds: self.tools.events.elapsed().as_secs_f64(),
            ..RunReport::new(Mode::Plan, self.tools.events.run().to_owned(), exit)
        }
    }

    /// Returns the diff of a change, or `None` if the preview fails. The failure is added to `notes`,
    /// unless it is a package simulation and changes of earlier steps are pending. Such a simulation
    /// may fail only because these changes are not applied yet.
    async fn preview(
        &self,
        job: &Job,
        change: &Change,
        simulation: Option<Simulation>,
        upstream_pending: bool,
        notes: &mut Vec<String>,
    ) -> Option<String> {
        let shown = match simulation {
            Some(simulation) => simulation.preview().map(Some),
            None => self.tools.change_applier.preview(change).await,
        };
        match shown {
            Ok(diff) => diff,
            Err(failure) => {
                let packages = matches!(change, Change::InstallPackages { .. });
                if !(packages && upstream_pending) {
                    self.tools.note(
                        notes,
                        format!(
                            "`{}`: no preview of \"{}\": failed to {}",
                            job.id,
                            change.summary(),
                            one_line(&failure)
                        ),
                    );
                }
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{FURTHER, Listed, NOT_SIMULATED};

    #[test]
    fn each_package_action_is_listed_once() {
        let mut listed = Listed::default();
        let mut rest = |text: &str| listed.rest_of_simulation(text);
        assert_eq!(
            rest("+ one 1\n- two 2").as_deref(),
            Some("+ one 1\n- two 2")
        );
        assert_eq!(
            rest("+ one 1\n+ two 3\n~ four 1 -> 2").as_deref(),
            Some("+ two 3\n~ four 1 -> 2")
        );
        assert_eq!(rest("- two 2"), None);
        let sentence = "a part of another transaction";
        assert_eq!(rest(sentence).as_deref(), Some(sentence));
        assert_eq!(rest(sentence).as_deref(), Some(sentence));
        assert_eq!(rest(NOT_SIMULATED).as_deref(), Some(NOT_SIMULATED));
        assert_eq!(rest(NOT_SIMULATED), None);
        // The dependencies of a transaction are listed with its first step.
        let of = |own: &str| format!("{own}\n{FURTHER}\n+ five 1");
        assert_eq!(rest(&of("+ six 1")), Some(of("+ six 1")));
        assert_eq!(rest(&of("+ seven 1")).as_deref(), Some("+ seven 1"));
    }
}
