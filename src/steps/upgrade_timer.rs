//! `upgrade.timer`: a timer that runs `upgrade --reboot` with the settings of the last `install` when the maintenance window opens.
//! Off by default (`fleet.timer`).

use camino::Utf8Path;

use super::{
    PREFLIGHT, UPGRADE_TIMER, messages, program,
    timer::{Needed, TimerUnits},
};
use crate::{
    change::Change,
    config::desired::Desired,
    model::fleet::Window,
    step::{Assessment, Cx, Step, StepError},
    tools::{
        packages::HEADER,
        systemctl::{UnitState, own_file, quoted},
    },
};

/// The service that runs `upgrade`.
pub const SERVICE: &str = "gpu-bootstrap-upgrade.service";
/// The timer that starts it.
pub const TIMER: &str = "gpu-bootstrap-upgrade.timer";

/// The `upgrade.timer` step.
pub(super) fn step() -> Step {
    Step::new(UPGRADE_TIMER, |cx| Box::pin(assess(cx)))
        .after([PREFLIGHT])
        .wants(|_, desired| window(desired).is_some())
}

/// The window of the timer, if it is configured.
fn window(desired: &Desired) -> Option<&Window> {
    let fleet = &desired.settings.fleet;
    fleet.window.as_ref().filter(|_| fleet.timer)
}

/// The service text. It has no sandbox, because package scripts need all permissions, as in `resume.service`. systemd must not
/// stop it at the end of the window, because an upgrade that has started must be finished. It starts again only when the window
/// opens again.
fn service(program: &Utf8Path) -> String {
    format!(
        include_str!("upgrade_timer.service"),
        header = HEADER,
        program = quoted(program),
    )
}

/// The timer text. It is not persistent: a machine that was off in the window must not be upgraded outside of it.
fn timer(window: &Window) -> String {
    format!(
        include_str!("upgrade_timer.timer"),
        header = HEADER,
        calendar = window.calendar(),
    )
}

fn decide(state: &TimerUnits, desired: &Desired, window: &Window) -> Assessment {
    let no_systemd = (state.unit.as_ref()).is_some_and(UnitState::is_not_booted);
    if desired.image || no_systemd {
        return Assessment::awaits_boot("the timer is created at the first boot");
    }
    let program = match &state.program {
        Ok(program) => program,
        Err(why) => return program::not_persistent(why, own_file(SERVICE).as_str()),
    };
    let unit = state.unit.as_ref();
    if let Some(refusal) = messages::masked(TIMER, unit, "set `fleet.timer = false`") {
        return refusal;
    }
    let mut needed = Needed::default();
    let is_new_service = needed.write(SERVICE, state.service.as_deref(), service(program));
    let is_new_timer = needed.write(TIMER, state.timer.as_deref(), timer(window));
    let starts = needed.start(TIMER, unit);
    if !starts && (is_new_service || is_new_timer) {
        // The timer reads its changed file.
        needed.changes.push(Change::RestartUnit {
            unit: TIMER.to_owned(),
        });
    }
    if needed.changes.is_empty() {
        return Assessment::satisfied(format!("`{TIMER}` starts upgrades in `{window}`"));
    }
    Assessment::needs(needed.whys.join("; "), needed.changes)
}

async fn assess(cx: &Cx<'_>) -> Result<Assessment, StepError> {
    let Some(window) = window(cx.desired) else {
        return Ok(Assessment::not_applicable("`fleet.timer` is false"));
    };
    if cx.desired.image {
        return Ok(Assessment::awaits_boot(
            "the timer is created at the first boot",
        ));
    }
    Ok(decide(
        &TimerUnits::detect(cx, SERVICE, TIMER).await?,
        cx.desired,
        window,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::steps::fixtures::{desired, unit};

    fn bare() -> TimerUnits {
        TimerUnits {
            program: Ok("/usr/local/bin/gpu-bootstrap".into()),
            ..TimerUnits::default()
        }
    }

    fn open() -> Window {
        "Sat 02:00-05:00 UTC".parse().expect("a window")
    }

    #[test]
    fn timer_needs_its_setting() {
        let mut want = desired();
        want.settings.fleet.window = Some(open());
        assert_eq!(window(&want), None);
        want.settings.fleet.timer = true;
        assert_eq!(window(&want), Some(&open()));
    }

    #[test]
    fn changes_satisfy_the_step() {
        let (want, window) = (desired(), open());
        let (why, changes) = decide(&bare(), &want, &window).expect_needs();
        assert!(
            why.contains("`gpu-bootstrap-upgrade.timer` is missing"),
            "{why}"
        );
        let content = |at: usize| match &changes[at] {
            Change::WriteFile { content, .. } => Some(content.clone()),
            other => panic!("{other:?}"),
        };
        let made = TimerUnits {
            service: content(0),
            timer: content(1),
            unit: Some(unit("enabled", "active")),
            ..bare()
        };
        decide(&made, &want, &window).expect_satisfied();
        let service = made.service.clone().unwrap_or_default();
        let line = "ExecStart=/usr/local/bin/gpu-bootstrap upgrade --as-installed --reboot\n";
        assert!(service.contains(line), "{service}");
        let timer = made.timer.clone().unwrap_or_default();
        assert!(
            timer.contains("OnCalendar=Sat *-*-* 02:00:00 UTC\n"),
            "{timer}"
        );
        // A changed window restarts the timer.
        let later = "Sun 02:00-05:00 UTC".parse().expect("a window");
        let (_, changes) = decide(&made, &want, &later).expect_needs();
        assert!(
            matches!(
                &changes[..],
                [Change::WriteFile { .. }, Change::RestartUnit { .. }]
            ),
            "{changes:?}"
        );
        let unsafe_program = TimerUnits {
            program: Err("`/tmp` may be emptied".to_owned()),
            ..bare()
        };
        decide(&unsafe_program, &want, &window).expect_blocked();
    }
}
