//! The terminal for the progress bars. It may disappear at any time (SIGHUP), and then every write fails. The run continues
//! without drawing.

use std::{
    io,
    sync::atomic::{AtomicBool, Ordering},
};

use console::Term;
use indicatif::{ProgressDrawTarget, TermLike};

/// Frames per second.
const RATE: u8 = 20;

/// Standard error, as a target for progress bars.
pub(super) fn open() -> ProgressDrawTarget {
    target(Term::buffered_stderr())
}

/// A terminal that may disappear, as a target for progress bars.
pub(super) fn target(terminal: impl TermLike + 'static) -> ProgressDrawTarget {
    let screen = Screen {
        terminal,
        gone: AtomicBool::new(false),
    };
    ProgressDrawTarget::term_like_with_hz(Box::new(screen), RATE)
}

#[derive(Debug)]
struct Screen<T> {
    terminal: T,
    gone: AtomicBool,
}

impl<T: TermLike> Screen<T> {
    /// Draws, unless the terminal is gone. Errors are not returned, because `indicatif` panics if drawing fails.
    #[expect(
        clippy::unnecessary_wraps,
        reason = "the return type of the trait methods"
    )]
    fn draw(&self, draw: impl FnOnce(&T) -> io::Result<()>) -> io::Result<()> {
        if !self.gone.load(Ordering::Relaxed) && draw(&self.terminal).is_err() {
            self.gone.store(true, Ordering::Relaxed);
        }
        Ok(())
    }
}

impl<T: TermLike> TermLike for Screen<T> {
    fn width(&self) -> u16 {
        self.terminal.width()
    }

    fn height(&self) -> u16 {
        self.terminal.height()
    }

    fn move_cursor_up(&self, n: usize) -> io::Result<()> {
        self.draw(|terminal| terminal.move_cursor_up(n))
    }

    fn move_cursor_down(&self, n: usize) -> io::Result<()> {
        self.draw(|terminal| terminal.move_cursor_down(n))
    }

    fn move_cursor_right(&self, n: usize) -> io::Result<()> {
        self.draw(|terminal| terminal.move_cursor_right(n))
    }

    fn move_cursor_left(&self, n: usize) -> io::Result<()> {
        self.draw(|terminal| terminal.move_cursor_left(n))
    }

    fn write_line(&self, text: &str) -> io::Result<()> {
        self.draw(|terminal| terminal.write_line(text))
    }

    fn write_str(&self, text: &str) -> io::Result<()> {
        self.draw(|terminal| terminal.write_str(text))
    }

    fn clear_line(&self) -> io::Result<()> {
        self.draw(T::clear_line)
    }

    fn flush(&self) -> io::Result<()> {
        self.draw(T::flush)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::{Arc, Mutex};

    use indicatif::{MultiProgress, ProgressBar};

    use super::*;

    /// The content of a terminal, and whether it is gone.
    #[derive(Debug, Clone, Default)]
    pub(in crate::report) struct Fake(Arc<(Mutex<String>, AtomicBool)>);

    impl Fake {
        fn write(&self, text: &str) -> io::Result<()> {
            if self.0.1.load(Ordering::Relaxed) {
                return Err(nix::errno::Errno::EIO.into());
            }
            self.0.0.lock().unwrap().push_str(text);
            Ok(())
        }

        pub(in crate::report) fn shows(&self, text: &str) -> bool {
            self.0.0.lock().unwrap().contains(text)
        }
    }

    impl TermLike for Fake {
        fn width(&self) -> u16 {
            80
        }

        fn move_cursor_up(&self, _: usize) -> io::Result<()> {
            self.write("")
        }

        fn move_cursor_down(&self, _: usize) -> io::Result<()> {
            self.write("")
        }

        fn move_cursor_right(&self, _: usize) -> io::Result<()> {
            self.write("")
        }

        fn move_cursor_left(&self, _: usize) -> io::Result<()> {
            self.write("")
        }

        fn write_line(&self, text: &str) -> io::Result<()> {
            self.write(text)
        }

        fn write_str(&self, text: &str) -> io::Result<()> {
            self.write(text)
        }

        fn clear_line(&self) -> io::Result<()> {
            self.write("")
        }

        fn flush(&self) -> io::Result<()> {
            self.write("")
        }
    }

    #[test]
    fn run_survives_a_closed_terminal() {
        let terminal = Fake::default();
        let bars = MultiProgress::with_draw_target(target(terminal.clone()));
        let bar = bars.add(ProgressBar::new(3));
        bars.println("before").unwrap();
        assert!(terminal.shows("before"));
        terminal.0.1.store(true, Ordering::Relaxed);
        bar.inc(1);
        bars.println("after").unwrap();
        assert_eq!(bars.suspend(|| "written between"), "written between");
        bar.finish_and_clear();
        assert!(!terminal.shows("after"));
    }
}
