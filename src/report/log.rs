//! Writes log lines to standard error, above the progress bars.
//!
//! The log is for debugging gpu-bootstrap. Runs report their progress as events. A separate thread writes the log, so that a
//! hanging terminal cannot block a run.

use std::{
    io::{self, Write},
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread,
    time::Duration,
};

use indicatif::MultiProgress;
use tracing::{Subscriber, level_filters::LevelFilter, subscriber};
use tracing_subscriber::{
    filter::{ParseError, Targets},
    layer::SubscriberExt,
};

use crate::model::secret::Hiding;

/// The environment variable with the filter, such as `debug` or `gpu_bootstrap::host=trace,warn`.
pub const VARIABLE: &str = "GPU_BOOTSTRAP_LOG";

/// The number of lines buffered for a slow standard error. Further lines are lost.
const WAITING: usize = 1024;

/// How long to wait for the last lines before the process exits.
const LAST: Duration = Duration::from_secs(1);

/// The progress bars that are currently on the terminal. Clones share them.
#[derive(Clone, Default)]
pub struct Drawn(Arc<Mutex<Option<MultiProgress>>>);

impl Drawn {
    /// Sets the current progress bars.
    pub(super) fn show(&self, bars: &MultiProgress) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(bars.clone());
    }

    /// Hides the bars while writing, and redraws them below.
    fn between<T>(&self, write: impl FnOnce() -> T) -> T {
        let bars = self
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        match bars {
            Some(bars) => bars.suspend(write),
            None => write(),
        }
    }
}

enum Word {
    Line(Vec<u8>),
    /// Sends a reply after all earlier lines are written.
    Written(SyncSender<()>),
}

/// The log of this process.
pub struct Log(SyncSender<Word>);

impl Log {
    /// Starts logging with a filter, or with warnings and errors by default.
    ///
    /// # Errors
    /// If a log exists already, or the operating system cannot start a thread.
    pub fn start(
        filter: Option<&str>,
        drawn: Drawn,
        out: Hiding<Box<dyn Write + Send>>,
    ) -> io::Result<(Self, Option<ParseError>)> {
        let (to, from) = sync_channel(WAITING);
        thread::Builder::new()
            .name("log".to_owned())
            .spawn(move || write_all(&from, &drawn, out))?;
        let (subscriber, wrong) = lines(filter, to.clone());
        subscriber::set_global_default(subscriber).map_err(io::Error::other)?;
        Ok((Self(to), wrong))
    }

    /// Waits until all lines are written, for at most 1 s. Does not wait if the queue is full.
    pub fn finish(self) {
        let (done, written) = sync_channel(1);
        if self.0.try_send(Word::Written(done)).is_ok() {
            // If the thread does not write the last lines in time, they are lost.
            let _ = written.recv_timeout(LAST);
        }
    }
}

/// Returns the subscriber, and the error of an invalid filter. With an invalid filter, warnings and errors are still logged.
fn lines(filter: Option<&str>, to: SyncSender<Word>) -> (impl Subscriber, Option<ParseError>) {
    let (filter, wrong) = match filter.map(str::parse::<Targets>) {
        Some(Ok(filter)) => (filter, None),
        Some(Err(error)) => (Targets::new(), Some(error)),
        None => (Targets::new(), None),
    };
    let filter = match filter.default_level() {
        Some(_) => filter,
        None => filter.with_default(LevelFilter::WARN),
    };
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(LevelFilter::TRACE)
        .with_ansi(false)
        .with_writer(move || LogLine(to.clone()))
        .finish()
        .with(filter);
    (subscriber, wrong)
}

fn write_all(from: &Receiver<Word>, drawn: &Drawn, mut out: impl Write) {
    while let Ok(word) = from.recv() {
        match word {
            // If standard error is closed, the message cannot be shown elsewhere.
            Word::Line(line) => drop(drawn.between(|| out.write_all(&line))),
            Word::Written(done) => drop(done.try_send(())),
        }
    }
}

/// Sends a line to the log thread. The formatter writes each line with one call.
struct LogLine(SyncSender<Word>);

impl Write for LogLine {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // If the queue is full, drop the line and continue the run.
        drop(self.0.try_send(Word::Line(bytes.to_vec())));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logged(filter: Option<&str>) -> (String, bool) {
        let (to, from) = sync_channel(WAITING);
        let (subscriber, wrong) = lines(filter, to);
        subscriber::with_default(subscriber, || {
            tracing::debug!("a detail");
            tracing::warn!(path = "/x", "a doubt");
        });
        let text = from
            .try_iter()
            .map(|word| match word {
                Word::Line(line) => String::from_utf8(line).unwrap(),
                Word::Written(_) => String::new(),
            })
            .collect();
        (text, wrong.is_some())
    }

    #[test]
    fn warnings_are_logged_by_default_and_more_with_a_filter() {
        let (text, wrong) = logged(None);
        assert!(text.contains("WARN gpu_bootstrap::report::log::tests: a doubt path=\"/x\"\n"));
        assert!(!text.contains("a detail") && !wrong);
        for (filter, detail) in [
            ("gpu_bootstrap::report=debug", true),
            ("debug", true),
            ("error", false),
        ] {
            let (text, wrong) = logged(Some(filter));
            assert_eq!(text.contains("a detail"), detail, "{filter}: {text}");
            assert!(!wrong);
        }
    }

    #[test]
    fn invalid_filter_is_reported() {
        let (text, wrong) = logged(Some("gpu_bootstrap=loud"));
        assert!(text.contains("a doubt") && !text.contains("a detail") && wrong);
    }

    /// Collects the output. Each write waits for the gate.
    struct Collects {
        gate: Receiver<()>,
        text: Arc<Mutex<Vec<u8>>>,
    }

    impl Write for Collects {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.gate.recv().map_err(io::Error::other)?;
            self.text.lock().unwrap().extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn finish_waits_for_the_last_lines() {
        let (open, gate) = sync_channel(WAITING);
        let text = Arc::new(Mutex::new(Vec::new()));
        let out = Collects {
            gate,
            text: text.clone(),
        };
        let (to, from) = sync_channel(WAITING);
        thread::spawn(move || write_all(&from, &Drawn::default(), Box::new(out)));
        for _ in 0..100 {
            LogLine(to.clone()).write_all(b"line\n").unwrap();
        }
        // Writing starts only when this thread opens the gate.
        thread::spawn(move || (0..100).try_for_each(|_| open.send(())));
        Log(to).finish();
        assert_eq!(*text.lock().unwrap(), b"line\n".repeat(100));
    }

    #[test]
    fn hanging_writer_does_not_block_finish() {
        // With a full queue, and with a queue that has space for the last message.
        for waiting in [1, WAITING] {
            let (open, gate) = sync_channel(0);
            let text = Arc::new(Mutex::new(Vec::new()));
            let out = Collects {
                gate,
                text: text.clone(),
            };
            let (to, from) = sync_channel(waiting);
            thread::spawn(move || write_all(&from, &Drawn::default(), Box::new(out)));
            let (ended, end) = sync_channel(1);
            thread::spawn(move || {
                for _ in 0..3 {
                    LogLine(to.clone()).write_all(b"more").unwrap();
                }
                Log(to).finish();
                ended.send(()).unwrap();
            });
            end.recv_timeout(LAST * 20).expect("the program ends");
            assert!(text.lock().unwrap().is_empty());
            drop(open);
        }
    }
}
