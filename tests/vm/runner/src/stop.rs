//! What must be undone whatever happens: on the way out, on Ctrl-C, on a panic.
//!
//! Every resource of the bed that outlives a process (a machine, a namespace, a mount) registers
//! its undoing here the moment it exists. The owner's `Drop` runs it on the ordinary way out and
//! on a panic; the signal thread runs all of them, newest first, and ends the process.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

type Undo = Box<dyn FnOnce() + Send>;

static REGISTRY: Mutex<(u64, BTreeMap<u64, Undo>)> = Mutex::new((0, BTreeMap::new()));
static STOPPING: AtomicBool = AtomicBool::new(false);

/// Holds one undoing; dropping it runs the undoing at once.
pub struct Guard(u64);

/// Registers an undoing.
pub fn guard(undo: impl FnOnce() + Send + 'static) -> Guard {
    let mut registry = REGISTRY
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    registry.0 += 1;
    let id = registry.0;
    registry.1.insert(id, Box::new(undo));
    Guard(id)
}

impl Drop for Guard {
    fn drop(&mut self) {
        // Taken out under the lock, run outside it: an undoing may drop other guards.
        let undo = REGISTRY
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
            .1
            .remove(&self.0);
        if let Some(undo) = undo {
            undo();
        }
    }
}

/// Whether a signal has ended the run: what fails from here on fails because of that.
pub fn stopping() -> bool {
    STOPPING.load(Ordering::SeqCst)
}

/// After a signal, leaves the end of the process to the thread that cleans up.
pub fn wait_if_stopping() {
    while stopping() {
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
}

/// Makes SIGINT, SIGTERM and SIGHUP undo everything before the process ends. They are handled, not
/// blocked: a handler ends with `exec`, a blocked signal would stay blocked in every program of a
/// machine.
pub fn on_signals() -> Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("cannot handle signals")?;
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            let Some(signal) = signals.forever().next() else {
                return;
            };
            STOPPING.store(true, Ordering::SeqCst);
            crate::out::say(format!("\nstopped by signal {signal}: cleaning up"));
            run_all();
            std::process::exit(128 + signal);
        })
        .context("cannot start the signal thread")?;
    Ok(())
}

fn run_all() {
    loop {
        let last = REGISTRY
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
            .1
            .pop_last();
        match last {
            Some((_, undo)) => undo(),
            None => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn a_dropped_guard_undoes_once() {
        let count = Arc::new(Mutex::new(0));
        let inner = Arc::clone(&count);
        let held = guard(move || *inner.lock().unwrap() += 1);
        assert_eq!(*count.lock().unwrap(), 0);
        drop(held);
        assert_eq!(*count.lock().unwrap(), 1);
    }
}
