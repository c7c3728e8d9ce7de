//! What must be undone whatever happens: on the way out, on Ctrl-C, on a panic.
//!
//! Every resource of the bed that outlives a process (a machine, a namespace, a mount) registers
//! its undoing here before it exists, and stays registered until it is undone. The owner's `Drop`
//! undoes it on the ordinary way out and on a panic. After a signal another thread undoes all of
//! them, newest first, so that whatever still works on them fails; its owner then undoes it again,
//! because it may have made something in between. The process ends when nothing is registered.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::out;

/// How long the owners may take to let go after a signal: removing a disk takes its time.
const LIMIT: Duration = Duration::from_secs(120);

/// Between two rounds of undoing: an owner may have made something after the first.
const ROUND: Duration = Duration::from_secs(1);

/// A supervisor that signals a whole group, and `make` that hands a signal on, mean it once.
const SAME_SIGNAL: Duration = Duration::from_secs(1);

/// Undoes as much as there is. It may run several times, also after something was made anew.
type Undo = Box<dyn FnMut() -> Result<()> + Send>;

static REGISTRY: Registry = Registry::new();

/// Holds one undoing; dropping it undoes.
pub struct Guard {
    registry: &'static Registry,
    id: u64,
}

/// Registers the undoing of `what`, by which a person knows it.
pub fn guard(what: impl Into<String>, undo: impl FnMut() -> Result<()> + Send + 'static) -> Guard {
    REGISTRY.guard(what.into(), Box::new(undo))
}

/// Whether a signal has ended the run: what fails from here on fails because of that.
pub fn stopping() -> bool {
    REGISTRY.stopping.load(Ordering::SeqCst)
}

/// After a signal, leaves the end of the process to the thread that cleans up.
pub fn wait_if_stopping() {
    while stopping() {
        thread::sleep(Duration::from_millis(100));
    }
}

/// Makes SIGINT, SIGTERM and SIGHUP undo everything before the process ends; a second signal ends
/// it at once. They are handled, not blocked: a handler ends with `exec`, a blocked signal would
/// stay blocked in every program of a machine.
pub fn on_signals() -> Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("cannot handle signals")?;
    thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            let mut coming = signals.forever();
            let Some(signal) = coming.next() else {
                return;
            };
            let first = Instant::now();
            out::say(format!("\nstopped by signal {signal}: cleaning up"));
            thread::spawn(move || {
                end(signal, REGISTRY.undo_all(LIMIT));
            });
            if let Some(again) = coming.find(|_| first.elapsed() > SAME_SIGNAL) {
                end(again, REGISTRY.left());
            }
        })
        .context("cannot start the signal thread")?;
    Ok(())
}

fn end(signal: i32, left: Vec<String>) -> ! {
    if !left.is_empty() {
        out::say(format!(
            "left behind (`vm clean` removes it): {}",
            left.join(", ")
        ));
    }
    std::process::exit(128 + signal);
}

#[derive(Clone)]
struct Entry {
    what: String,
    undo: Arc<Mutex<Undo>>,
}

impl Entry {
    /// One at a time: whoever comes second waits, and finds it undone.
    fn undo(&self) -> Result<()> {
        (self.undo.lock().unwrap_or_else(PoisonError::into_inner))()
    }
}

struct Registry {
    /// The last number, and what is not undone yet.
    entries: Mutex<(u64, BTreeMap<u64, Entry>)>,
    gone: Condvar,
    stopping: AtomicBool,
}

impl Registry {
    const fn new() -> Registry {
        Registry {
            entries: Mutex::new((0, BTreeMap::new())),
            gone: Condvar::new(),
            stopping: AtomicBool::new(false),
        }
    }

    fn entries(&self) -> MutexGuard<'_, (u64, BTreeMap<u64, Entry>)> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn guard(&'static self, what: String, undo: Undo) -> Guard {
        let undo = Arc::new(Mutex::new(undo));
        let id = {
            let mut entries = self.entries();
            entries.0 += 1;
            let id = entries.0;
            entries.1.insert(id, Entry { what, undo });
            id
        };
        Guard { registry: self, id }
    }

    fn left(&self) -> Vec<String> {
        let entries = self.entries();
        entries.1.values().map(|entry| entry.what.clone()).collect()
    }

    /// Undoes everything until the owners have let go of it; what is left after `limit`.
    fn undo_all(&self, limit: Duration) -> Vec<String> {
        self.stopping.store(true, Ordering::SeqCst);
        let end = Instant::now() + limit;
        loop {
            let newest_first: Vec<Entry> = self.entries().1.values().rev().cloned().collect();
            for entry in newest_first {
                // Its owner undoes it once more, and says what fails.
                drop(entry.undo());
            }
            let waited = self
                .gone
                .wait_timeout_while(self.entries(), ROUND, |entries| !entries.1.is_empty());
            let entries = waited.unwrap_or_else(PoisonError::into_inner).0;
            if entries.1.is_empty() || Instant::now() > end {
                drop(entries);
                return self.left();
            }
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let entry = self.registry.entries().1.get(&self.id).cloned();
        let Some(entry) = entry else {
            return;
        };
        if let Err(error) = entry.undo() {
            out::say(format!("{} is not all gone: {error:#}", entry.what));
        }
        self.registry.entries().1.remove(&self.id);
        self.registry.gone.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    fn registry() -> &'static Registry {
        Box::leak(Box::new(Registry::new()))
    }

    /// A guard of something that exists while the counter is not 0.
    fn held(registry: &'static Registry, things: &Arc<Mutex<u32>>) -> Guard {
        let things = Arc::clone(things);
        let undo = move || {
            *things.lock().unwrap() = 0;
            Ok(())
        };
        registry.guard("thing".into(), Box::new(undo))
    }

    #[test]
    fn a_dropped_guard_undoes() {
        let (registry, things) = (registry(), Arc::new(Mutex::new(1)));
        let guard = held(registry, &things);
        assert_eq!((*things.lock().unwrap(), registry.left().len()), (1, 1));
        drop(guard);
        assert_eq!((*things.lock().unwrap(), registry.left().len()), (0, 0));
    }

    #[test]
    fn a_signal_waits_for_an_undoing_that_has_begun() {
        let registry = registry();
        let (begun, wait_for_begun) = mpsc::channel();
        let (go_on, wait_to_go_on) = mpsc::channel::<()>();
        let undo = move || {
            begun.send(()).unwrap();
            // Later rounds find the channel closed.
            let _closed = wait_to_go_on.recv();
            Ok(())
        };
        let guard = registry.guard("slow".into(), Box::new(undo));
        let owner = thread::spawn(move || drop(guard));
        wait_for_begun.recv().unwrap();
        let signal = thread::spawn(|| registry.undo_all(Duration::from_secs(10)));
        while !registry.stopping.load(Ordering::SeqCst) {
            thread::yield_now();
        }
        assert!(!signal.is_finished() && registry.left() == ["slow"]);
        drop(go_on);
        assert!(signal.join().unwrap().is_empty());
        owner.join().unwrap();
    }

    #[test]
    fn what_is_made_after_the_signal_is_undone_too() {
        let (registry, things) = (registry(), Arc::new(Mutex::new(1)));
        let guard = held(registry, &things);
        let signal = thread::spawn(|| registry.undo_all(Duration::from_secs(10)));
        while *things.lock().unwrap() != 0 {
            thread::yield_now();
        }
        // Its owner has not heard of the signal yet.
        *things.lock().unwrap() = 2;
        drop(guard);
        assert!(signal.join().unwrap().is_empty());
        assert_eq!(*things.lock().unwrap(), 0);
    }

    #[test]
    fn what_nobody_lets_go_is_named() {
        let (registry, things) = (registry(), Arc::new(Mutex::new(1)));
        let _guard = held(registry, &things);
        assert_eq!(registry.undo_all(Duration::ZERO), ["thing"]);
    }
}
