//! Signals that stop a run. A separate test program, because signal handlers remain until the process exits.

use std::time::Duration;

use gpu_bootstrap::{engine::Cancel, exit::Exit};
use nix::sys::signal::{Signal, raise};

#[tokio::test]
async fn each_signal_has_its_exit_status() {
    for (signal, exit) in [
        (Signal::SIGINT, Exit::Interrupted),
        (Signal::SIGTERM, Exit::Terminated),
    ] {
        let cancel = Cancel::new();
        cancel.on_signals().expect("handlers");
        // Let the tasks that wait for signals start.
        tokio::task::yield_now().await;
        assert_eq!(cancel.exit(), None);
        raise(signal).expect("a signal");
        let stopped = tokio::time::timeout(Duration::from_secs(10), cancel.cancelled()).await;
        assert_eq!(stopped, Ok(exit), "{signal}");
    }
}
