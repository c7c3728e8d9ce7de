//! The event stream: order, subscribers, and the progress file.

use std::{
    io,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use super::{
    kit::{Rig, file, packages},
    memory::Memory,
};
use crate::{
    change::Sink,
    engine::{RunFile, events, status},
    event::{Envelope, Event, Subscriber},
    host::fake,
    model::{id::Id, secret::Secrets},
};

#[tokio::test]
async fn events_are_ordered_and_without_gaps() {
    let rig = Rig::new([file("a", "/a", "x"), packages("p", &["one"]).after(&["a"])]);
    rig.install().await.unwrap();
    let numbers: Vec<u64> = rig
        .events
        .lock()
        .unwrap()
        .iter()
        .map(|envelope| envelope.seq)
        .collect();
    assert_eq!(numbers, (0..numbers.len() as u64).collect::<Vec<_>>());
    let Event::RunStarted { steps, mode, .. } = rig.seen()[0].clone() else {
        panic!("the first event lists the steps");
    };
    assert_eq!((steps.len(), mode.as_str()), (2, "install"));
    let kinds = rig.kinds();
    assert_eq!(
        kinds[5..],
        [
            "change-started",
            "output",
            "change-applied",
            "step-assessed",
            "step-finished",
            "change-started",
            "output",
            "change-applied",
            // The step is assessed again with new package lists.
            "step-assessed",
            "change-started",
            "output",
            "change-applied",
            "step-assessed",
            "step-finished",
            "run-finished"
        ],
        "{kinds:?}"
    );
}

#[test]
fn progress_of_a_change_is_an_event_of_its_steps() {
    let (host, _) = fake::host();
    let kept = Arc::<Mutex<Vec<Envelope>>>::default();
    let memory = Memory(Arc::clone(&kept));
    let (stream, reporter) =
        events::start("r", host.clock, &Secrets::default(), vec![Box::new(memory)]).unwrap();
    let steps = vec![Id::new("p"), Id::new("q")];
    let sink = events::EventSink {
        events: &stream,
        steps: &steps,
    };
    sink.progress(2, Some(3), "packages");
    reporter.finish();
    let kept = kept.lock().unwrap();
    let seen: Vec<&Event> = kept.iter().map(|envelope| &envelope.event).collect();
    let progress = Event::Progress {
        steps,
        current: 2,
        total: Some(3),
        unit: "packages".to_owned(),
    };
    assert_eq!(seen, [&progress]);
}

struct Breaks(&'static str);

impl Subscriber for Breaks {
    fn name(&self) -> &'static str {
        self.0
    }

    fn event(&mut self, _envelope: &Envelope) -> io::Result<()> {
        if self.0 == "a panic" {
            panic!("a bug in a view");
        }
        Err(io::Error::from(io::ErrorKind::BrokenPipe))
    }
}

struct Keeps(Arc<Mutex<Vec<String>>>);

impl Subscriber for Keeps {
    fn name(&self) -> &'static str {
        "keeps"
    }

    fn event(&mut self, envelope: &Envelope) -> io::Result<()> {
        self.0.lock().unwrap().push(match &envelope.event {
            Event::Note { message } => message.clone(),
            other => serde_json::to_value(other).unwrap()["kind"].to_string(),
        });
        Ok(())
    }
}

fn output(line: usize) -> Event {
    Event::Output {
        steps: Vec::new(),
        line: line.to_string(),
    }
}

fn note(message: &str) -> Event {
    Event::Note {
        message: message.to_owned(),
    }
}

#[test]
fn failing_subscriber_is_removed_and_reported() {
    let (host, _) = fake::host();
    let kept = Arc::new(Mutex::new(Vec::new()));
    let (stream, reporter) = events::start(
        "r",
        host.clock,
        &Secrets::default(),
        vec![
            Box::new(Breaks("a pipe")),
            Box::new(Breaks("a panic")),
            Box::new(Keeps(Arc::clone(&kept))),
        ],
    )
    .unwrap();
    stream.emit(note("one"));
    reporter.finish();
    let kept = kept.lock().unwrap();
    assert_eq!(kept[0], "one");
    assert_eq!(
        kept[1],
        "no further events are written to a pipe: broken pipe"
    );
    assert_eq!(
        kept[2],
        "no further events are written to a panic: panicked"
    );
}

/// A subscriber that blocks until it is released.
struct Slow(Arc<AtomicBool>, Keeps);

impl Subscriber for Slow {
    fn name(&self) -> &'static str {
        "slow"
    }

    fn event(&mut self, envelope: &Envelope) -> io::Result<()> {
        while !self.0.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        self.1.event(envelope)
    }
}

/// Returns a stream with a [`Slow`] subscriber, its release flag, and its received events.
fn slow() -> (
    events::Events,
    events::Reporter,
    Arc<AtomicBool>,
    Arc<Mutex<Vec<String>>>,
) {
    let (host, _) = fake::host();
    let (go, kept) = <(Arc<AtomicBool>, Arc<Mutex<Vec<String>>>)>::default();
    let slow = Slow(Arc::clone(&go), Keeps(Arc::clone(&kept)));
    let (stream, reporter) =
        events::start("r", host.clock, &Secrets::default(), vec![Box::new(slow)]).unwrap();
    (stream, reporter, go, kept)
}

#[test]
fn slow_subscriber_loses_only_output_and_progress() {
    let (stream, reporter, go, kept) = slow();
    for at in 0..5000 {
        stream.emit(output(at));
        stream.emit(Event::Progress {
            steps: Vec::new(),
            current: at as u64,
            total: None,
            unit: "bytes".to_owned(),
        });
        if at % 10 == 0 {
            stream.emit(note("kept"));
        }
    }
    go.store(true, Ordering::Release);
    reporter.finish();
    let kept = kept.lock().unwrap();
    let count = |what: &str| kept.iter().filter(|line| *line == what).count();
    assert_eq!(count("kept"), 500);
    assert!(count("\"output\"") < 600, "{}", count("\"output\""));
    assert!(count("\"progress\"") < 5, "{}", count("\"progress\""));
}

/// Only lines that wait for delivery count towards the limit.
#[test]
fn no_line_is_dropped_below_the_limit() {
    let (stream, reporter, go, kept) = slow();
    for round in 0..5 {
        go.store(false, Ordering::Release);
        for at in 0..500 {
            stream.emit(output(at));
        }
        go.store(true, Ordering::Release);
        let end = Instant::now() + Duration::from_secs(60);
        while kept.lock().unwrap().len() < (round + 1) * 500 {
            assert!(Instant::now() < end, "lines of round {round} were dropped");
            std::thread::yield_now();
        }
    }
    reporter.finish();
}

#[tokio::test]
async fn progress_and_death_of_a_run_are_visible() {
    let (host, fakes) = fake::host();
    let pid = std::process::id();
    let stat = |ticks: u64| {
        format!("{pid} (gpu-bootstrap) S 1 1 1 0 -1 4 1 2 3 4 5 6 7 8 20 0 1 0 {ticks} 1 1")
    };
    fakes.files.put(&format!("/proc/{pid}/stat"), stat(77));
    let started = |summary: &str| Event::ChangeStarted {
        steps: Vec::new(),
        summary: summary.to_owned(),
    };
    let view = RunFile::new(host.files.clone(), "gpu-bootstrap install".to_owned());
    let mut view = std::mem::ManuallyDrop::new(view);
    for (seq, event) in [
        Event::RunStarted {
            version: "1".to_owned(),
            mode: "install".to_owned(),
            steps: Vec::new(),
        },
        started("write `/a`"),
        started("write `/b`"),
        Event::ChangeApplied {
            steps: Vec::new(),
            summary: "write `/b`".to_owned(),
            seconds: 0.0,
        },
    ]
    .into_iter()
    .enumerate()
    {
        view.event(&Envelope {
            schema: 1,
            seq: seq as u64,
            at: host.clock.now(),
            elapsed_ms: 0,
            run: "r-1".to_owned(),
            event,
        })
        .unwrap();
    }

    let current = status(&host, None).unwrap().current.unwrap();
    assert!(current.alive);
    assert_eq!(current.progress.changes, ["write `/a`"]);
    assert_eq!(current.progress.command, "gpu-bootstrap install");
    // The PID now belongs to another process.
    fakes.files.put(&format!("/proc/{pid}/stat"), stat(99));
    assert!(!status(&host, None).unwrap().current.unwrap().alive);
    // A run that ends without its last event removes the file.
    drop(std::mem::ManuallyDrop::into_inner(view));
    assert!(status(&host, None).unwrap().current.is_none());
}

/// A download reports its progress many times in a second.
#[tokio::test]
async fn the_progress_of_a_change_is_written_at_most_once_per_second() {
    let (host, _) = fake::host();
    let mut view = RunFile::new(host.files.clone(), "x".to_owned());
    let mut see = |elapsed_ms, event| {
        view.event(&Envelope {
            schema: 1,
            seq: elapsed_ms,
            at: host.clock.now(),
            elapsed_ms,
            run: "r-1".to_owned(),
            event,
        })
        .unwrap();
        status(&host, None)
            .unwrap()
            .current
            .unwrap()
            .progress
            .detail
    };
    let started = Event::RunStarted {
        version: "1".to_owned(),
        mode: "install".to_owned(),
        steps: Vec::new(),
    };
    assert_eq!(see(0, started), None);
    for (elapsed_ms, current, written) in [
        (999, 1, None),
        (1000, 2, Some("2 MB")),
        (1999, 3, Some("2 MB")),
        (2000, 4, Some("4 MB")),
    ] {
        let progress = Event::Progress {
            steps: Vec::new(),
            current,
            total: None,
            unit: "MB".to_owned(),
        };
        assert_eq!(
            see(elapsed_ms, progress).as_deref(),
            written,
            "{elapsed_ms}"
        );
    }
}

#[tokio::test]
async fn progress_file_is_removed_with_the_run() {
    let (host, _) = fake::host();
    let view = RunFile::new(host.files.clone(), "x".to_owned());
    let (stream, reporter) = events::start(
        "r-1",
        host.clock.clone(),
        &Secrets::default(),
        vec![Box::new(view)],
    )
    .unwrap();
    stream.emit(Event::RunStarted {
        version: "1".to_owned(),
        mode: "install".to_owned(),
        steps: Vec::new(),
    });
    // The file is also removed if the run ends without a final event.
    reporter.finish();
    assert!(status(&host, None).unwrap().current.is_none());
}

/// Keeps the run ID and number of each event, and fails for events of the run `refused`.
struct Numbers {
    refused: &'static str,
    kept: Arc<Mutex<Vec<(String, u64)>>>,
}

impl Subscriber for Numbers {
    fn name(&self) -> &'static str {
        "numbers"
    }

    fn event(&mut self, envelope: &Envelope) -> io::Result<()> {
        if envelope.run == self.refused {
            return Err(io::Error::from(io::ErrorKind::BrokenPipe));
        }
        let one = (envelope.run.clone(), envelope.seq);
        self.kept.lock().unwrap().push(one);
        Ok(())
    }
}

#[test]
fn second_run_counts_from_0_for_the_same_subscribers() {
    let (host, _) = fake::host();
    let (all, first) = <(Arc<Mutex<Vec<_>>>, Arc<Mutex<Vec<_>>>)>::default();
    let numbers = |refused, kept: &Arc<Mutex<Vec<_>>>| -> Box<dyn Subscriber> {
        let kept = Arc::clone(kept);
        Box::new(Numbers { refused, kept })
    };
    let subscribers = vec![numbers("b", &first), numbers("none", &all)];
    let (stream, reporter) =
        events::start("a", host.clock, &Secrets::default(), subscribers).unwrap();
    stream.emit(note("one"));
    stream.emit(note("two"));
    let next = stream.of_next("b");
    assert_eq!((stream.run(), next.run()), ("a", "b"));
    next.emit(note("three"));
    reporter.finish();
    let one = |run: &str, seq| (run.to_owned(), seq);
    assert_eq!(*first.lock().unwrap(), [one("a", 0), one("a", 1)]);
    // The last event is the note about the subscriber that was removed in the second run.
    assert_eq!(
        *all.lock().unwrap(),
        [one("a", 0), one("a", 1), one("b", 0), one("b", 1)]
    );
}
