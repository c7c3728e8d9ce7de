//! `upgrade`: whether the node returns to service after a failure.

use super::kit::{Rig, packages};
use crate::exit::Exit;

/// The first change after the node has left service fails. A change that was applied in part keeps the node out of service.
#[tokio::test]
async fn node_returns_only_if_the_failed_change_had_no_effect() {
    for has_effect in [false, true] {
        let mut rig = Rig::new([packages("p", &["one"])]);
        rig.options.request.upgrade = true;
        let applier = &rig.change_applier;
        let fault = if has_effect {
            &applier.fails
        } else {
            &applier.refuses
        };
        *fault.lock().unwrap() = Some("install one".to_owned());
        let report = rig.install().await.unwrap();
        assert_ne!(report.exit, Exit::Ok);
        let log = rig.log();
        let is_in = |what: &str| log.iter().any(|line| line == what);
        assert!(is_in("install one"), "{log:?}");
        assert_eq!(is_in("return to service"), !has_effect, "{log:?}");
        let stays = |note: &String| note.contains("the node stays out of service");
        assert_eq!(
            report.notes.iter().any(stays),
            has_effect,
            "{:?}",
            report.notes
        );
    }
}

/// The changes for the next boot are made before the node leaves service. One that stays is a change of the machine.
#[tokio::test]
async fn upgrade_that_does_not_start_reports_changes_that_stay() {
    for (stays, exit) in [(false, Exit::Blocked), (true, Exit::StepFailed)] {
        let mut rig = Rig::new([packages("p", &["one"])]);
        rig.options.request.upgrade = true;
        rig.options.request.reboot = true;
        *rig.change_applier.refuses.lock().unwrap() = Some("no process uses a GPU".to_owned());
        if stays {
            *rig.change_applier.fails.lock().unwrap() = Some("restore".to_owned());
        }
        let report = rig.install().await.unwrap();
        assert_eq!(report.exit, exit, "{:?}", report.notes);
        assert!(!rig.log().iter().any(|line| line == "install one"));
        let told = |note: &String| note.contains("is no longer needed, but");
        assert_eq!(report.notes.iter().any(told), stays, "{:?}", report.notes);
    }
}
