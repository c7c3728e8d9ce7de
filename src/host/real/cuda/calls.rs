//! The calls of a child that have begun and not ended, and how long each may take.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use crate::host::{CudaCause, CudaFault};

/// Begins the line of a thread that starts a call: the thread, then the function.
pub(super) const BEGINS: char = '+';
/// Begins the line of a thread whose call has ended.
pub(super) const ENDS: char = '-';
/// Begins the line with the devices that a thread's next calls are about.
pub(super) const ABOUT: char = '@';

/// Functions in which the driver may have to start the GPUs: without persistence that takes seconds
/// for each.
const STARTING: [&str; 2] = ["cuInit", "cuDevicePrimaryCtxRetain"];

/// How long calls may take.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// A call that may have to start GPUs.
    pub starting: Duration,
    /// Any other call, and the time between two calls.
    pub call: Duration,
    /// Everything together.
    pub whole: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            starting: Duration::from_secs(30),
            call: Duration::from_secs(10),
            whole: Duration::from_secs(50),
        }
    }
}

/// The calls of one child.
pub(super) struct Calls {
    patience: Patience,
    until: Instant,
    state: Mutex<State>,
    changed: Notify,
}

struct State {
    /// By thread.
    open: BTreeMap<String, (String, Instant)>,
    about: BTreeMap<String, Vec<String>>,
    /// The last line.
    last: Instant,
}

impl Calls {
    pub(super) fn new(patience: Patience, until: Instant) -> Self {
        Self {
            patience,
            until,
            state: Mutex::new(State {
                open: BTreeMap::new(),
                about: BTreeMap::new(),
                last: Instant::now(),
            }),
            changed: Notify::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a line of the child.
    pub(super) fn note(&self, line: &str) {
        let mut chars = line.chars();
        let kind = chars.next();
        let (thread, rest) = chars.as_str().split_once(' ').unwrap_or_default();
        let mut state = self.state();
        state.last = Instant::now();
        match kind {
            Some(BEGINS) => {
                let call = (rest.to_owned(), state.last);
                state.open.insert(thread.to_owned(), call);
            }
            Some(ENDS) => {
                state.open.remove(thread);
            }
            Some(ABOUT) => {
                let devices = rest.split_whitespace().map(str::to_owned).collect();
                state.about.insert(thread.to_owned(), devices);
            }
            _ => return,
        }
        drop(state);
        self.changed.notify_one();
    }

    /// The call that has run longest, as a fault without its cause.
    pub(super) fn open(&self) -> Option<CudaFault> {
        let state = self.state();
        let (thread, (call, _)) = state.open.iter().min_by_key(|(_, (_, since))| *since)?;
        let devices = state.about.get(thread).cloned().unwrap_or_default();
        Some(CudaFault {
            cause: CudaCause::NoSymbol,
            call: Some(call.clone()),
            devices,
        })
    }

    /// How long a call may take.
    fn bound(&self, call: Option<&str>) -> Duration {
        match call {
            Some(call) if STARTING.contains(&call) => self.patience.starting,
            _ => self.patience.call,
        }
    }

    /// When the next bound is reached.
    fn due(&self) -> Instant {
        let state = self.state();
        let calls = (state.open.values()).map(|(call, since)| *since + self.bound(Some(call)));
        let first = calls.min().unwrap_or(state.last + self.bound(None));
        first.min(self.until)
    }

    /// Waits until a call has taken longer than it may, and says which.
    pub(super) async fn overdue(&self) -> CudaFault {
        loop {
            let due = self.due();
            tokio::select! {
                () = sleep_until(due) => {
                    // A line may have come at the same moment.
                    if self.due() <= Instant::now() {
                        break;
                    }
                }
                () = self.changed.notified() => {}
            }
        }
        let since = {
            let state = self.state();
            let open = state.open.values().map(|(_, since)| *since).min();
            open.unwrap_or(state.last)
        };
        let cause = CudaCause::Hung {
            after_seconds: since.elapsed().as_secs(),
        };
        match self.open() {
            Some(open) => CudaFault { cause, ..open },
            None => CudaFault::new(cause),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Patience = Patience {
        starting: Duration::from_millis(400),
        call: Duration::from_millis(100),
        whole: Duration::from_secs(60),
    };

    fn calls(whole: Duration) -> Calls {
        Calls::new(SHORT, Instant::now() + whole)
    }

    /// How long the wait for an overdue call takes, and what it says.
    async fn wait(calls: &Calls) -> (Duration, CudaFault) {
        let begin = Instant::now();
        let fault = calls.overdue().await;
        (begin.elapsed(), fault)
    }

    #[tokio::test]
    async fn the_call_that_hangs_is_named_with_its_devices() {
        let calls = calls(SHORT.whole);
        calls.note("@ThreadId(2) GPU-a GPU-b");
        calls.note("+ThreadId(1) cuCtxSynchronize");
        calls.note("-ThreadId(1) ");
        calls.note("+ThreadId(2) cuMemcpyPeer");
        let (_, fault) = wait(&calls).await;
        assert_eq!(fault.call.as_deref(), Some("cuMemcpyPeer"));
        assert_eq!(fault.devices, ["GPU-a", "GPU-b"]);
        assert_eq!(fault.cause, CudaCause::Hung { after_seconds: 0 });
    }

    #[tokio::test]
    async fn starting_a_gpu_may_take_longer_and_the_whole_is_bounded() {
        let starting = calls(SHORT.whole);
        starting.note("+1 cuInit");
        assert!(wait(&starting).await.0 >= SHORT.starting);
        let patient = Patience {
            starting: Duration::from_secs(3600),
            ..SHORT
        };
        let (begin, whole) = (Instant::now(), Duration::from_millis(50));
        let bounded = Calls::new(patient, begin + whole);
        bounded.note("+1 cuInit");
        let (_, fault) = wait(&bounded).await;
        let waited = begin.elapsed();
        assert!(waited >= whole && waited < patient.starting, "{waited:?}");
        assert_eq!(fault.call.as_deref(), Some("cuInit"));
    }

    #[tokio::test]
    async fn a_line_of_the_child_gives_new_time() {
        let calls = calls(SHORT.whole);
        let begin = Instant::now();
        let work = async {
            for _ in 0..5 {
                tokio::time::sleep(SHORT.call / 2).await;
                calls.note("+1 cuMemAlloc_v2");
                calls.note("-1 ");
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = work => {}
            fault = calls.overdue() => {
                // Between two calls, too, a child must go on.
                assert_eq!(fault.call, None);
                assert!(begin.elapsed() >= SHORT.call * 3);
            }
        }
    }
}
