//! A complete example of a step: spec, state, `detect`, `decide`, the `Step`, and a table of tests. It is compiled and executed
//! with all other tests, so that it stays up to date.
//!
//! In the product, the spec is a field of `Desired`, and the step is a file in `src/steps`.

use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};
use gpu_bootstrap::{
    change::{Applier, ApplyChanges, Change, Sink},
    compat::matrix::Matrix,
    config::{
        desired::Desired,
        load::{SettingsRequest, load},
    },
    facts::{Facts, Scope, gather},
    host::{
        Host,
        fake::{self, diff},
    },
    model::id::StepId,
    state::State,
    step::{Assessment, Cx, Step, StepError},
};

const PATH: &str = "/etc/motd";

/// The in-memory machine cannot execute commands.
const SCOPE: Scope = Scope { executes: false };

/// The desired state: the message of the day. `None` leaves the file unchanged.
const SPEC: Option<&str> = Some("hello");

fn step() -> Step {
    Step::new(StepId::new("motd"), |cx| Box::pin(assess(cx)))
}

/// The observed state.
#[derive(Default)]
struct MotdState {
    content: Option<String>,
}

/// Reads the machine, without any decision.
fn detect(cx: &Cx<'_>) -> Result<MotdState, StepError> {
    Ok(MotdState {
        content: cx.host.files().read_text(Utf8Path::new(PATH))?,
    })
}

/// Contains all rules, and does not read the machine.
fn decide(state: &MotdState, spec: Option<&str>) -> Assessment {
    let Some(spec) = spec else {
        return Assessment::NotApplicable {
            why: "no message is configured".into(),
        };
    };
    let why = match &state.content {
        Some(content) if content == spec => {
            return Assessment::Satisfied {
                why: format!("`{PATH}` has the message"),
            };
        }
        Some(_) => format!("`{PATH}` has another message"),
        None => format!("`{PATH}` is missing"),
    };
    Assessment::Needs {
        why,
        changes: vec![Change::write(PATH, spec)],
    }
}

async fn assess(cx: &Cx<'_>) -> Result<Assessment, StepError> {
    Ok(decide(&detect(cx)?, SPEC))
}

#[test]
fn each_state_has_its_assessment() {
    for (content, spec, answer) in [
        (None, None, "not applicable"),
        (None, Some("hello"), "`/etc/motd` is missing"),
        (
            Some("bye"),
            Some("hello"),
            "`/etc/motd` has another message",
        ),
        (Some("hello"), Some("hello"), "satisfied"),
    ] {
        let state = MotdState {
            content: content.map(str::to_owned),
        };
        let found = match decide(&state, spec) {
            Assessment::NotApplicable { .. } => "not applicable".to_owned(),
            Assessment::Satisfied { .. } => "satisfied".to_owned(),
            Assessment::Needs { why, .. } => why,
            other => panic!("unexpected assessment: {other:?}"),
        };
        assert_eq!(found, answer, "{content:?}, {spec:?}");
    }
}

/// Discards the output of a change.
struct Silent;

impl Sink for Silent {
    fn line(&self, _: &str) {}
    fn progress(&self, _: u64, _: Option<u64>, _: &str) {}
    fn retry(&self, _: &str, _: f64) {}
}

#[tokio::test]
async fn applied_changes_satisfy_the_step_and_are_undone() {
    let (host, fakes) = fake::host();
    for (path, content) in [
        ("/etc/os-release", "ID=debian\nVERSION_ID=\"12\"\n"),
        ("/proc/sys/kernel/osrelease", "6.1.0-44-amd64\n"),
        (
            "/etc/apt/sources.list",
            "deb http://debian.example.org/debian bookworm main\n",
        ),
        (PATH, "bye"),
    ] {
        fakes.files.put(path, content);
    }
    fakes.files.put_directory("/var/lib", 0o755);
    let machine = Machine::of(host);
    let step = step();
    let before = fakes.files.snapshot();

    let Assessment::Needs { changes, .. } = machine.assess(&step).await else {
        panic!("the step needs no change");
    };
    let policy = machine.desired.packages.clone();
    let state = Utf8PathBuf::from("/var/lib/gpu-bootstrap");
    let applier = Applier::new(machine.host.clone(), policy, state.clone());
    let undo = applier.capture(&changes[0]).await.expect("an undo");
    let undo = applier.apply(&changes[0], undo, &Silent).await;
    assert_eq!(fakes.files.text(PATH), "hello");
    let again = machine.assess(&step).await;
    assert!(matches!(again, Assessment::Satisfied { .. }), "{again:?}");

    let undo = undo.expect("the exact undo");
    applier.revert(&undo, &Silent).await.expect("undone");
    let left = diff(&before, &fakes.files.snapshot().without(&[state.as_str()]));
    assert!(left.is_empty(), "{left:?}");
}

/// An in-memory machine with all inputs of a step.
struct Machine {
    host: Host,
    facts: Arc<Facts>,
    desired: Desired,
}

impl Machine {
    fn of(host: Host) -> Self {
        let matrix = Matrix::builtin().expect("the built-in matrix");
        let facts = Arc::new(gather(host.reader(), Some(&matrix), SCOPE));
        let ask = SettingsRequest {
            set: vec!["gpu=optional".to_owned()],
            ..SettingsRequest::default()
        };
        let desired = load(&*host.files, &*host.files, &ask, &facts, &matrix)
            .unwrap_or_else(|error| panic!("no desired state: {error}"))
            .desired;
        Self {
            host,
            facts,
            desired,
        }
    }

    async fn assess(&self, step: &Step) -> Assessment {
        let state = State::new(self.host.clone(), SCOPE, Arc::clone(&self.facts));
        let cx = Cx {
            host: self.host.reader(),
            facts: &self.facts,
            state: &state,
            desired: &self.desired,
            matrix: None,
        };
        (step.assess)(&cx).await.expect("an assessment")
    }
}
