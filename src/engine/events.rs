//! Passes events from the engine to the subscribers: one ordered queue, and one thread that
//! delivers from it. The engine never waits for a subscriber. If a subscriber is slow, a new
//! progress event replaces the queued one, and the oldest output lines are dropped. All other events
//! are kept, even if the queue grows.

use std::{
    borrow::Cow,
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use crate::{
    change::Sink,
    event::{Envelope, Event, SCHEMA, Subscriber},
    host::Clock,
    model::{id::StepId, secret::Secrets},
};

/// The maximum number of queued output lines. After that, the oldest line is dropped.
const WAITING_OUTPUT: usize = 512;

/// How long [`Reporter::finish`] waits for slow subscribers.
const LAST_WAIT: Duration = Duration::from_secs(5);

/// The sending side of the event stream. Clones share the queue.
#[derive(Clone)]
pub struct Events {
    shared: Arc<EventsState>,
}

struct EventsState {
    run: String,
    secrets: Secrets,
    clock: Arc<dyn Clock>,
    began: Duration,
    stream: Arc<Stream>,
}

/// The queued events.
#[derive(Default)]
struct Stream {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    next: u64,
    waiting: VecDeque<Envelope>,
    outputs: usize,
    /// Notes that the report must repeat.
    notes: Vec<String>,
    closed: bool,
    /// The thread has delivered all events and exited.
    done: bool,
}

/// The thread that passes events to the subscribers.
pub struct Reporter {
    stream: Arc<Stream>,
    thread: JoinHandle<()>,
}

/// Starts the stream of a run. Secrets are hidden in all events before a subscriber receives them.
///
/// # Errors
/// If the operating system cannot start a thread.
pub fn start(
    run: &str,
    clock: Arc<dyn Clock>,
    secrets: &Secrets,
    subscribers: Vec<Box<dyn Subscriber>>,
) -> std::io::Result<(Events, Reporter)> {
    let stream = Arc::<Stream>::default();
    let events = Events::new(run, clock, secrets.clone(), Arc::clone(&stream));
    let shared = Arc::clone(&events.shared);
    let thread = std::thread::Builder::new()
        .name("events".to_owned())
        .spawn(move || hand_out(&shared, subscribers))?;
    Ok((events, Reporter { stream, thread }))
}

impl Events {
    fn new(run: &str, clock: Arc<dyn Clock>, secrets: Secrets, stream: Arc<Stream>) -> Self {
        let began = clock.monotonic();
        Self {
            shared: Arc::new(EventsState {
                run: run.to_owned(),
                secrets,
                clock,
                began,
                stream,
            }),
        }
    }

    /// Returns the event stream of another run with the same subscribers. Its events are numbered
    /// from 0.
    pub fn of_next(&self, run: &str) -> Self {
        let EventsState {
            clock,
            secrets,
            stream,
            ..
        } = &*self.shared;
        stream.queue().next = 0;
        Self::new(run, clock.clone(), secrets.clone(), Arc::clone(stream))
    }

    pub fn run(&self) -> &str {
        &self.shared.run
    }

    /// The secrets that the run hides.
    pub fn secrets(&self) -> &Secrets {
        &self.shared.secrets
    }

    /// The time since the stream began.
    pub fn elapsed(&self) -> Duration {
        self.shared.elapsed()
    }

    /// Returns the notes that changes added for the report since the last call.
    pub(super) fn take_notes(&self) -> Vec<String> {
        std::mem::take(&mut self.shared.stream.queue().notes)
    }

    /// Adds an event to the queue. Never waits.
    pub fn emit(&self, event: Event) {
        self.shared.put(&self.shared.run, event);
    }
}

impl Reporter {
    /// Ends the stream after delivering all events, unless a subscriber hangs.
    pub fn finish(self) {
        let deadline = Instant::now() + LAST_WAIT;
        let mut queue = self.stream.queue();
        queue.closed = true;
        self.stream.changed.notify_all();
        while !queue.done {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                tracing::warn!("an event subscriber hangs; its remaining events are lost");
                return;
            }
            queue = self
                .stream
                .changed
                .wait_timeout(queue, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        drop(queue);
        if self.thread.join().is_err() {
            tracing::warn!("the thread that delivers events panicked");
        }
    }
}

impl EventsState {
    fn elapsed(&self) -> Duration {
        self.clock.monotonic().saturating_sub(self.began)
    }

    fn put(&self, run: &str, event: Event) {
        let event = without_secrets(event, &self.secrets);
        let mut queue = self.stream.queue();
        if queue.closed && queue.done {
            return;
        }
        let seq = queue.next;
        queue.next += 1;
        let envelope = Envelope {
            schema: SCHEMA,
            seq,
            at: self.clock.now(),
            elapsed_ms: u64::try_from(self.elapsed().as_millis()).unwrap_or(u64::MAX),
            run: run.to_owned(),
            event,
        };
        match &envelope.event {
            Event::Progress { steps, unit, .. } => {
                let stale = queue.waiting.iter().position(|other| {
                    matches!(
                        &other.event,
                        Event::Progress { steps: theirs, unit: counted, .. }
                            if theirs == steps && counted == unit
                    )
                });
                if let Some(stale) = stale {
                    queue.waiting.remove(stale);
                }
            }
            Event::Output { .. } => {
                if queue.outputs >= WAITING_OUTPUT {
                    let oldest = queue
                        .waiting
                        .iter()
                        .position(|other| matches!(other.event, Event::Output { .. }));
                    if let Some(oldest) = oldest {
                        queue.waiting.remove(oldest);
                        queue.outputs -= 1;
                    }
                }
                queue.outputs += 1;
            }
            _ => {}
        }
        queue.waiting.push_back(envelope);
        self.stream.changed.notify_all();
    }
}

impl Stream {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        // The queue is consistent between statements, so a panic while it is locked is harmless.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the next event, or `None` at the end of the stream.
    fn take(&self) -> Option<Envelope> {
        let mut queue = self.queue();
        loop {
            if let Some(envelope) = queue.waiting.pop_front() {
                if matches!(envelope.event, Event::Output { .. }) {
                    queue.outputs -= 1;
                }
                return Some(envelope);
            }
            if queue.closed {
                return None;
            }
            queue = self
                .changed
                .wait(queue)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Hides the secrets in the texts of an event.
fn without_secrets(mut event: Event, secrets: &Secrets) -> Event {
    for text in event.texts_mut() {
        if let Cow::Owned(hidden) = secrets.hide(text) {
            *text = hidden;
        }
    }
    event
}

fn hand_out(shared: &EventsState, mut subscribers: Vec<Box<dyn Subscriber>>) {
    while let Some(envelope) = shared.stream.take() {
        let mut kept = Vec::with_capacity(subscribers.len());
        for mut subscriber in subscribers {
            let name = subscriber.name();
            let broken = match catch_unwind(AssertUnwindSafe(|| subscriber.event(&envelope))) {
                Ok(Ok(())) => {
                    kept.push(subscriber);
                    continue;
                }
                Ok(Err(error)) => error.to_string(),
                Err(_) => "panicked".to_owned(),
            };
            tracing::warn!(subscriber = name, %broken, "an event subscriber was removed");
            // The same thread also delivers the events of a following run, so this note uses the run of the event.
            let message = format!("no further events are written to {name}: {broken}");
            shared.put(&envelope.run, Event::Note { message });
        }
        subscribers = kept;
    }
    drop(subscribers);
    shared.stream.queue().done = true;
    shared.stream.changed.notify_all();
}

/// Forwards the output of a change while it is applied.
pub(super) struct EventSink<'a> {
    pub(super) events: &'a Events,
    pub(super) steps: &'a [StepId],
}

impl Sink for EventSink<'_> {
    fn line(&self, line: &str) {
        self.events.emit(Event::Output {
            steps: self.steps.to_vec(),
            line: line.to_owned(),
        });
    }

    fn progress(&self, current: u64, total: Option<u64>, unit: &str) {
        self.events.emit(Event::Progress {
            steps: self.steps.to_vec(),
            current,
            total,
            unit: unit.to_owned(),
        });
    }

    fn retry(&self, message: &str, in_seconds: f64) {
        self.events.emit(Event::AttemptFailed {
            steps: self.steps.to_vec(),
            message: message.to_owned(),
            retry_in_seconds: in_seconds,
        });
    }

    fn note(&self, message: &str) {
        {
            let notes = &mut self.events.shared.stream.queue().notes;
            // A build and a parallel package transaction may report the same note.
            if notes.iter().any(|note| note == message) {
                return;
            }
            notes.push(message.to_owned());
        }
        self.events.emit(Event::Note {
            message: message.to_owned(),
        });
    }
}
