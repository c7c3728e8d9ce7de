//! What is remembered for the way back, and what is said where there is none.

use serde_json::json;

use super::kit::{Rig, file, fixed, satisfied};
use crate::{
    engine::wanted_instead,
    error::Report,
    exit::Exit,
    journal::{Journal, Record, fold},
    model::secret::{Secret, Secrets},
    steps::fixtures,
};

const DATABASE: &str = "/var/lib/dpkg/status";

/// A machine whose driver passes its proof, and a further change.
fn proven() -> Rig {
    let proof = ["driver.packages", "driver.module", "validation.devices"];
    let steps = proof.map(|id| fixed(id, satisfied("it works")));
    Rig::new(steps.into_iter().chain([file("other", "/other", "x")]))
}

/// Whether the journal remembers a driver, and the notes of the run.
async fn remembered(rig: &Rig) -> (bool, String) {
    let report = rig.install().await.unwrap();
    let lines = Journal::read(&rig.fakes.host()).unwrap().lines;
    (fold(&lines).proven.is_some(), report.notes.join("\n"))
}

#[tokio::test]
async fn what_cannot_be_remembered_as_proven_is_said_with_the_reason() {
    let without = proven();
    let (is_known, notes) = remembered(&without).await;
    assert!(!is_known);
    assert!(
        notes.contains("not remembered as proven") && notes.contains(DATABASE),
        "{notes}"
    );
    let secret = proven();
    secret.fakes.files.put(DATABASE, "");
    secret.secrets.learn(&Secret::new("nvidia-kernel-dkms"));
    let (is_known, notes) = remembered(&secret).await;
    assert!(!is_known);
    assert!(notes.contains("the value of a secret"), "{notes}");
    let whole = proven();
    whole.fakes.files.put(DATABASE, "");
    assert_eq!(remembered(&whole).await, (true, String::new()));
}

#[tokio::test]
async fn a_driver_is_proven_although_something_on_top_of_it_failed() {
    let rig = proven();
    rig.fakes.files.put(DATABASE, "");
    *rig.verbs.fails.lock().unwrap() = Some("/other".to_owned());
    assert_eq!(remembered(&rig).await, (true, String::new()));
}

#[test]
fn a_way_back_that_another_version_recorded_is_refused_with_a_remedy() {
    let rig = proven();
    let host = rig.fakes.host();
    let (journal, _) = Journal::open(&host, "test", &Secrets::default()).unwrap();
    let records = [
        Record::Proven {
            desired: Box::new(json!({ "of-a-later-version": true })),
            driver: vec![],
        },
        Record::GoingBack {
            from: "2".to_owned(),
            to: "1".to_owned(),
            why: "it fails".to_owned(),
        },
    ];
    for record in records {
        journal.append(record).unwrap();
    }
    let error = wanted_instead(&host, &fixtures::desired().packages).unwrap_err();
    assert_eq!(
        (error.exit(), error.reason()),
        (Exit::Blocked, "way-back-unknown")
    );
    assert!(error.hint().unwrap().contains("gpu-bootstrap uninstall"));
}
