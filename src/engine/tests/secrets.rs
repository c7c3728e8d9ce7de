//! A secret of the run, told by everything there is to tell, is in nothing that is kept or shown.

use super::kit::{Rig, needs, step, write};
use crate::{
    engine::{RunFile, events, status},
    event::Event,
    model::secret::Secret,
};

const TOKEN: &str = "abcdef.0123456789abcdef";

/// A step whose reason and change name the token, and whose change fails with it.
fn telling() -> Rig {
    let path = format!("/etc/join-{TOKEN}");
    let rig = Rig::new([step("join", move |_| needs(vec![write(&path, TOKEN)]))]);
    rig.secrets.learn(&Secret::new(TOKEN));
    rig
}

#[tokio::test]
async fn a_token_is_in_no_byte_of_the_journal_and_in_no_event() {
    for fails in [false, true] {
        let mut rig = telling();
        rig.options.request.set = vec![format!("a={TOKEN}")];
        *rig.verbs.fails.lock().unwrap() = fails.then(|| TOKEN.to_owned());
        rig.install().await.unwrap();
        let files = &rig.fakes.files;
        for name in ["journal.jsonl", "receipt.json"] {
            let text = files.text(&format!("/var/lib/gpu-bootstrap/{name}"));
            assert!(text.contains("/etc/join-***"), "{text}");
            assert!(!text.contains(TOKEN), "{text}");
        }
        let seen = serde_json::to_string(&rig.seen()).unwrap();
        assert!(seen.contains("***") && !seen.contains(TOKEN), "{seen}");
        let told = status(&rig.fakes.host(), None).unwrap();
        assert!(!serde_json::to_string(&told).unwrap().contains(TOKEN));
    }
}

#[tokio::test]
async fn also_what_is_learned_when_the_stream_has_begun_is_in_no_file_for_status() {
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
    // Another thread writes the file, and removes it when the stream ends.
    let told = loop {
        let current = status(&rig.fakes.host(), None).unwrap().current;
        match current.filter(|current| !current.progress.changes.is_empty()) {
            Some(current) => break current,
            None => std::thread::yield_now(),
        }
    };
    assert_eq!(told.progress.changes, ["join http://***@proxy with ***"]);
    of_file.finish();
    assert!(rig.seen().iter().any(|event| matches!(
        event,
        Event::ChangeStarted { summary, .. } if summary == "join http://***@proxy with ***"
    )));
}
