//! Secrets do not appear in stored or displayed data, even if every text contains them.

use std::time::{Duration, Instant};

use super::kit::{Rig, needs, packages, step, write};
use crate::{
    engine::{RunFile, events, status},
    event::{Event, Outcome},
    exit::Exit,
    host::ReadFiles as _,
    model::secret::Secret,
};

const TOKEN: &str = "abcdef.0123456789abcdef";

const PATH: &str = "/etc/join.conf";

/// A rig whose step writes the token to a file. The token is known to be a secret.
fn telling() -> Rig {
    let rig = Rig::new([step("join", |_| needs(vec![write(PATH, TOKEN)]))]);
    rig.secrets.learn(&Secret::new(TOKEN));
    rig
}

#[tokio::test]
async fn token_is_neither_in_the_journal_nor_in_events() {
    for fails in [false, true] {
        let mut rig = telling();
        rig.options.request.set = vec![format!("a={TOKEN}")];
        *rig.change_applier.fails.lock().unwrap() = fails.then(|| PATH.to_owned());
        rig.install().await.unwrap();
        let files = &rig.fakes.files;
        assert_eq!(files.text(PATH), TOKEN);
        for name in ["journal.jsonl", "receipt.json"] {
            let text = files.text(&format!("/var/lib/gpu-bootstrap/{name}"));
            assert!(text.contains("***") && text.contains(PATH), "{text}");
            assert!(!text.contains(TOKEN), "{text}");
        }
        let seen = serde_json::to_string(&rig.seen()).unwrap();
        assert!(!seen.contains(TOKEN), "{seen}");
        let told = status(&rig.fakes.host(), None).unwrap();
        assert!(!serde_json::to_string(&told).unwrap().contains(TOKEN));
    }
}

#[tokio::test]
async fn file_with_a_hidden_secret_is_removed_again() {
    for fails in [false, true] {
        let rig = telling();
        let bare = rig.fakes.files.snapshot().without(&["/run"]);
        *rig.change_applier.fails.lock().unwrap() = fails.then(|| PATH.to_owned());
        rig.install().await.unwrap();
        assert!(rig.fakes.files.stat(PATH.into()).unwrap().is_some());
        *rig.change_applier.fails.lock().unwrap() = None;
        assert_eq!(rig.uninstall().await.unwrap().exit, Exit::Ok);
        assert_eq!(rig.fakes.files.snapshot().without(&["/run"]), bare);
    }
}

/// The undo needs paths and package names in clear text from the journal, but the journal must not
/// contain secrets in clear text.
#[tokio::test]
async fn change_with_a_secret_in_a_name_is_rejected() {
    let path = format!("/etc/join-{TOKEN}");
    let named = path.clone();
    let file = step("join", move |_| needs(vec![write(&named, "")]));
    let package = packages("docker", &["docker.io"]);
    for (secret, wanted, made) in [
        (TOKEN, file, path.as_str()),
        ("docker", package, "/packages/docker.io"),
    ] {
        let rig = Rig::new([wanted]);
        rig.secrets.learn(&Secret::new(secret));
        let report = rig.install().await.unwrap();
        assert_eq!(report.exit, Exit::Config);
        let step = &report.steps[0];
        assert_eq!(step.outcome, Outcome::Failed);
        assert_eq!(step.reason, Some("secret-in-name"));
        let files = &rig.fakes.files;
        assert!(files.stat(made.into()).unwrap().is_none(), "{made}");
        let journal = files.text("/var/lib/gpu-bootstrap/journal.jsonl");
        assert!(!journal.contains(made), "{journal}");
        assert_eq!(rig.uninstall().await.unwrap().exit, Exit::Ok);
    }
}

#[tokio::test]
async fn credentials_without_a_password_do_not_hide_names() {
    let rig = Rig::new([packages("docker", &["docker.io"])]);
    let bare = rig.fakes.files.snapshot().without(&["/run"]);
    rig.secrets.learn(&Secret::new("http://docker@proxy:3128"));
    assert_eq!(rig.install().await.unwrap().exit, Exit::Ok);
    assert_eq!(rig.uninstall().await.unwrap().exit, Exit::Ok);
    assert_eq!(rig.fakes.files.snapshot().without(&["/run"]), bare);
}

#[tokio::test]
async fn late_secrets_are_hidden_in_the_progress_file() {
    let rig = Rig::new([]);
    let (tools, reporter) = rig.tools("run");
    let host = rig.fakes.host();
    let file = RunFile::new(host.files.clone(), "install".to_owned());
    let (stream, of_file) =
        events::start("run", host.clock, &rig.secrets, vec![Box::new(file)]).unwrap();
    rig.secrets.learn(&Secret::new(TOKEN));
    for event in [
        Event::RunStarted {
            version: "0.0.0".to_owned(),
            mode: "install".to_owned(),
            steps: Vec::new(),
        },
        Event::ChangeStarted {
            steps: Vec::new(),
            summary: format!("join http://joe:s3cret@proxy with {TOKEN}"),
        },
    ] {
        tools.events.emit(event.clone());
        stream.emit(event);
    }
    reporter.finish();
    // Another thread writes the file, and removes it at the end of the stream.
    let deadline = Instant::now() + Duration::from_mins(1);
    let told = loop {
        let current = status(&rig.fakes.host(), None).unwrap().current;
        match current.filter(|current| !current.progress.changes.is_empty()) {
            Some(current) => break current,
            None => std::thread::yield_now(),
        }
        assert!(
            Instant::now() < deadline,
            "the progress file does not contain the change within a minute"
        );
    };
    assert_eq!(told.progress.changes, ["join http://***@proxy with ***"]);
    of_file.finish();
    assert!(rig.seen().iter().any(|event| matches!(
        event,
        Event::ChangeStarted { summary, .. } if summary == "join http://***@proxy with ***"
    )));
}
