//! Property test for random step lists: the run ends, the order is correct, and a repeated run
//! changes nothing.

use proptest::prelude::*;

use super::kit::{Rig, Small, exists, install, needs, outcomes, satisfied, step, write};
use crate::{
    change::{Change, Lock},
    event::{Event, Outcome},
    exit::Exit,
};

const IDS: [&str; 7] = ["s0", "s1", "s2", "s3", "s4", "s5", "s6"];

/// A random step.
#[derive(Debug, Clone)]
struct Shape {
    /// Bit mask of the earlier steps that it depends on.
    after: u8,
    /// Its changes in order: 0 writes, 1 refreshes, 2 installs.
    changes: Vec<u8>,
    /// Its locks: 0 none, 1 packages, 2 modules, 3 packages and containers.
    lock: u8,
}

fn shapes() -> impl Strategy<Value = Vec<Shape>> {
    let shape = (any::<u8>(), prop::collection::vec(0..3_u8, 0..4), 0..4_u8).prop_map(
        |(after, changes, lock)| Shape {
            after,
            changes,
            lock,
        },
    );
    prop::collection::vec(shape, 1..=IDS.len())
}

fn small(at: usize, shape: &Shape) -> Small {
    let mut changes = Vec::new();
    for (number, kind) in shape.changes.iter().enumerate() {
        changes.push(match kind {
            0 => write(&format!("/etc/{}-{number}", IDS[at]), "x"),
            1 => Change::RefreshRepositories,
            _ => install(&[IDS[at]]),
        });
    }
    let done = format!("/etc/{}-done", IDS[at]);
    changes.push(write(&done, "x"));
    let after: Vec<&'static str> = (0..at)
        .filter(|up| shape.after & (1 << up) != 0)
        .map(|up| IDS[up])
        .collect();
    let locks: &[Lock] = match shape.lock {
        0 => &[],
        1 => &[Lock::Packages],
        2 => &[Lock::Modules],
        _ => &[Lock::Packages, Lock::Containers],
    };
    step(IDS[at], move |host| {
        if exists(host, &done) {
            satisfied("done")
        } else {
            needs(changes.clone())
        }
    })
    .after(&after)
    .locks(locks)
}

/// Returns whether each change started only after all steps that its steps depend on had finished.
fn in_order(rig: &Rig, shapes: &[Shape]) -> bool {
    let mut ended = Vec::new();
    rig.seen().iter().all(|event| match event {
        Event::StepFinished { step, .. } => {
            ended.push(step.clone());
            true
        }
        Event::ChangeStarted { steps, .. } => steps.iter().all(|step| {
            let at = IDS.iter().position(|id| *id == step.as_str()).unwrap();
            (0..at)
                .filter(|up| shapes[at].after & (1 << up) != 0)
                .all(|up| ended.iter().any(|ended| ended.as_str() == IDS[up]))
        }),
        _ => true,
    })
}

fn run(shapes: &[Shape], fails: Option<&str>) -> Result<(), TestCaseError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let steps = shapes
        .iter()
        .enumerate()
        .map(|(at, shape)| small(at, shape));
    let rig = Rig::new(steps);
    *rig.change_applier.fails.lock().unwrap() = fails.map(ToOwned::to_owned);
    let report = runtime.block_on(rig.install()).unwrap();
    let bug = report.steps.iter().any(|step| step.why.contains("bug"));
    prop_assert!(!bug, "{:?}", outcomes(&report));
    prop_assert!(in_order(&rig, shapes));
    let failed = report
        .steps
        .iter()
        .any(|step| step.outcome == Outcome::Failed);
    prop_assert_eq!(
        report.exit,
        if failed { Exit::StepFailed } else { Exit::Ok }
    );
    prop_assert!(fails.is_some() || !failed);

    *rig.change_applier.fails.lock().unwrap() = None;
    prop_assert_eq!(runtime.block_on(rig.install()).unwrap().exit, Exit::Ok);
    rig.log();
    let last = runtime.block_on(rig.install()).unwrap();
    prop_assert!(rig.log().is_empty());
    prop_assert!(
        last.steps
            .iter()
            .all(|step| step.outcome == Outcome::Satisfied)
    );
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_list_of_steps_ends_in_order(shapes in shapes()) {
        run(&shapes, None)?;
    }

    #[test]
    fn any_list_of_steps_recovers_after_a_failure(shapes in shapes(), failing in 0..IDS.len()) {
        run(&shapes, Some(IDS[failing]))?;
    }
}
