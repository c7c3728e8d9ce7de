//! QEMU's monitor (QMP): reports why a machine stopped, and powers it off.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Child;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// The longest time until QEMU opens its monitor.
const OPENING: Duration = Duration::from_secs(30);

/// A connection to the monitor of a running QEMU.
pub struct Monitor {
    stream: UnixStream,
    reason: Arc<Mutex<Option<String>>>,
    listener: JoinHandle<()>,
}

impl Monitor {
    /// Connects as soon as `qemu` has opened `socket`.
    pub fn connect(socket: &Path, qemu: &mut Child) -> Result<Monitor> {
        let end = Instant::now() + OPENING;
        let stream = loop {
            match UnixStream::connect(socket) {
                Ok(stream) => break stream,
                Err(error) if Instant::now() > end => {
                    return Err(error).context("QEMU opens no monitor");
                }
                Err(_) => thread::sleep(Duration::from_millis(20)),
            }
            if let Some(status) = qemu.try_wait().context("cannot wait for QEMU")? {
                bail!("QEMU did not start: {status}");
            }
        };
        let lines = BufReader::new(stream.try_clone().context("cannot share a socket")?);
        let reason = Arc::new(Mutex::new(None));
        let heard = Arc::clone(&reason);
        let listener = thread::spawn(move || {
            for line in lines.lines().map_while(Result::ok) {
                if let Some(why) = shutdown_reason(&line)
                    && let Ok(mut heard) = heard.lock()
                {
                    *heard = Some(why);
                }
            }
        });
        let mut monitor = Monitor {
            stream,
            reason,
            listener,
        };
        // The monitor accepts no other command before this one.
        monitor.say("qmp_capabilities")?;
        Ok(monitor)
    }

    /// Simulates a power loss: data that the guest has not written is lost.
    pub fn quit(&mut self) -> Result<()> {
        self.say("quit")
    }

    /// The reason QEMU exited, after it has exited.
    pub fn reason(self) -> Result<String> {
        let end = Instant::now() + OPENING;
        while !self.listener.is_finished() {
            if Instant::now() > end {
                bail!("the monitor stays open although QEMU has exited");
            }
            thread::sleep(Duration::from_millis(10));
        }
        let reason = self.reason.lock().ok().and_then(|mut reason| reason.take());
        reason.context("QEMU exited without a reason")
    }

    fn say(&mut self, command: &str) -> Result<()> {
        writeln!(self.stream, "{{\"execute\":\"{command}\"}}")
            .with_context(|| format!("cannot send `{command}` to QEMU"))
    }
}

/// The reason in a `SHUTDOWN` event, one of QEMU's `ShutdownCause`.
fn shutdown_reason(line: &str) -> Option<String> {
    let value: Value = serde_json::from_str(line).ok()?;
    if value["event"] != "SHUTDOWN" {
        return None;
    }
    value["data"]["reason"].as_str().map(String::from)
}

#[cfg(test)]
mod tests {
    use super::shutdown_reason;

    #[test]
    fn shutdown_reason_is_parsed() {
        let event = r#"{"timestamp": {"seconds": 1}, "event": "SHUTDOWN", "data": {"guest": true, "reason": "guest-reset"}}"#;
        assert_eq!(shutdown_reason(event).as_deref(), Some("guest-reset"));
        assert_eq!(shutdown_reason(r#"{"event": "RESET"}"#), None);
        assert_eq!(shutdown_reason("no json"), None);
    }
}
