//! Clean-up that must happen in every case: at the normal end, on Ctrl-C, on a panic.
//!
//! Every resource of the bed that outlives a process (a machine, a namespace, a mount) registers
//! its clean-up here before it exists, and stays registered until it is cleaned up. The owner's
//! `Drop` does that at the normal end and on a panic. After a signal another thread cleans up all
//! resources, newest first, so that work in progress on them fails. Then the owner cleans up once
//! more, because it may have made something meanwhile. The process ends when nothing is registered
//! any more.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::out;

/// How long the owners may take after a signal: removing a disk takes time.
const LIMIT: Duration = Duration::from_secs(120);

/// The time between two rounds of clean-up: an owner may have made something after the first.
const ROUND: Duration = Duration::from_secs(1);

/// A second signal within this time counts as the same: a supervisor may signal a whole group, and
/// `make` passes a signal on.
const SAME_SIGNAL: Duration = Duration::from_secs(1);

/// Cleans up what exists. It may run several times, also after something was made again.
type Undo = Box<dyn FnMut() -> Result<()> + Send>;

static REGISTRY: Registry = Registry::new();

/// A registered clean-up; dropping the guard runs it.
pub struct Guard {
    registry: &'static Registry,
    id: u64,
}

/// Registers the clean-up of `what`, a name for people.
pub fn guard(what: impl Into<String>, undo: impl FnMut() -> Result<()> + Send + 'static) -> Guard {
    REGISTRY.guard(what.into(), Box::new(undo))
}

/// Whether a signal has stopped the run: errors from here on are its consequence.
pub fn stopping() -> bool {
    REGISTRY.stopping.load(Ordering::SeqCst)
}

/// After a signal, waits for the thread that cleans up to end the process.
pub fn wait_if_stopping() {
    while stopping() {
        thread::sleep(Duration::from_millis(100));
    }
}

/// After SIGINT, SIGTERM or SIGHUP everything is cleaned up before the process ends; a second
/// signal ends it at once. The signals have handlers and are not blocked: `exec` resets a handler,
/// but a blocked signal would stay blocked in every program of a machine.
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
    /// One at a time: a second caller waits, and then finds everything cleaned up.
    fn undo(&self) -> Result<()> {
        (self.undo.lock().unwrap_or_else(PoisonError::into_inner))()
    }
}

struct Registry {
    /// The last number, and what is not cleaned up yet.
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

    /// Cleans up until the owners have dropped their guards; returns what is left after `limit`.
    fn undo_all(&self, limit: Duration) -> Vec<String> {
        self.stopping.store(true, Ordering::SeqCst);
        let end = Instant::now() + limit;
        loop {
            let newest_first: Vec<Entry> = self.entries().1.values().rev().cloned().collect();
            for entry in newest_first {
                // Its owner cleans up once more, and reports the error.
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
            out::say(format!(
                "{} is not completely removed: {error:#}",
                entry.what
            ));
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
    fn a_dropped_guard_cleans_up() {
        let (registry, things) = (registry(), Arc::new(Mutex::new(1)));
        let guard = held(registry, &things);
        assert_eq!((*things.lock().unwrap(), registry.left().len()), (1, 1));
        drop(guard);
        assert_eq!((*things.lock().unwrap(), registry.left().len()), (0, 0));
    }

    #[test]
    fn a_signal_waits_for_a_clean_up_that_has_started() {
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
    fn resources_made_after_the_signal_are_cleaned_up_too() {
        let (registry, things) = (registry(), Arc::new(Mutex::new(1)));
        let guard = held(registry, &things);
        let signal = thread::spawn(|| registry.undo_all(Duration::from_secs(10)));
        while *things.lock().unwrap() != 0 {
            thread::yield_now();
        }
        // Its owner does not know of the signal yet.
        *things.lock().unwrap() = 2;
        drop(guard);
        assert!(signal.join().unwrap().is_empty());
        assert_eq!(*things.lock().unwrap(), 0);
    }

    #[test]
    fn resources_that_stay_registered_are_named() {
        let (registry, things) = (registry(), Arc::new(Mutex::new(1)));
        let _guard = held(registry, &things);
        assert_eq!(registry.undo_all(Duration::ZERO), ["thing"]);
    }
}
