//! Output of a child process: passed on line by line, stored with a size limit.

use std::collections::VecDeque;

use crate::host::exec::{LEFT_OUT, TAIL_LINES};

/// The maximum size of the beginning and of the end in the stored text of a stream.
const HALF: usize = 4 << 20;

/// The maximum line length. Longer lines are split.
const LONGEST_LINE: usize = 64 << 10;

/// Splits a byte stream into lines. A carriage return also ends a line, because programs use it for
/// progress output.
#[derive(Debug, Default)]
pub(super) struct Lines {
    partial: Vec<u8>,
    after_return: bool,
}

impl Lines {
    /// Adds bytes and emits complete lines.
    pub fn feed(&mut self, bytes: &[u8], mut emit: impl FnMut(&str)) {
        for &byte in bytes {
            let after_return = std::mem::replace(&mut self.after_return, byte == b'\r');
            match byte {
                // The LF of a CR LF pair.
                b'\n' if after_return => {}
                b'\n' => self.flush(&mut emit),
                b'\r' => {
                    if !self.partial.is_empty() {
                        self.flush(&mut emit);
                    }
                }
                _ => {
                    self.partial.push(byte);
                    if self.partial.len() >= LONGEST_LINE {
                        self.flush(&mut emit);
                    }
                }
            }
        }
    }

    /// Emits an incomplete last line.
    pub fn finish(&mut self, mut emit: impl FnMut(&str)) {
        if !self.partial.is_empty() {
            self.flush(&mut emit);
        }
    }

    fn flush(&mut self, emit: &mut impl FnMut(&str)) {
        emit(&String::from_utf8_lossy(&self.partial));
        self.partial.clear();
    }
}

/// A stored stream: complete, or beginning and end with a note in between.
#[derive(Debug, Default)]
pub(super) struct KeptOutput {
    head: Vec<u8>,
    tail: Vec<u8>,
    left_out: usize,
}

impl KeptOutput {
    pub fn add(&mut self, bytes: &[u8]) {
        let to_head = bytes.len().min(HALF - self.head.len());
        let (head, tail) = bytes.split_at(to_head);
        self.head.extend_from_slice(head);
        self.tail.extend_from_slice(tail);
        // Drop data rarely and in large pieces, so that the cost per byte stays constant.
        if self.tail.len() > 2 * HALF {
            self.cut();
        }
    }

    /// Returns the text. If data was dropped, a separate line contains the size, in a form that no
    /// parser accepts as data.
    pub fn text(mut self) -> String {
        if self.tail.len() > HALF {
            self.cut();
        }
        if self.left_out > 0 {
            let note = format!("\n{LEFT_OUT}{} bytes left out …]\n", self.left_out);
            self.head.extend_from_slice(note.as_bytes());
        }
        self.head.extend_from_slice(&self.tail);
        String::from_utf8(self.head)
            .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
    }

    fn cut(&mut self) {
        let surplus = self.tail.len() - HALF;
        self.tail.drain(..surplus);
        self.left_out += surplus;
    }
}

/// The last lines of both streams in the order of arrival.
#[derive(Debug, Default)]
pub(super) struct Tail(VecDeque<String>);

impl Tail {
    pub fn add(&mut self, line: &str) {
        if self.0.len() == TAIL_LINES {
            self.0.pop_front();
        }
        self.0.push_back(line.to_owned());
    }

    pub fn text(&self) -> String {
        if self.0.is_empty() {
            return "none".to_owned();
        }
        Vec::from_iter(self.0.iter().map(String::as_str)).join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(chunks: &[&[u8]]) -> Vec<String> {
        let mut all = Vec::new();
        let mut lines = Lines::default();
        for chunk in chunks {
            lines.feed(chunk, |line| all.push(line.to_owned()));
        }
        lines.finish(|line| all.push(line.to_owned()));
        all
    }

    #[test]
    fn lines_are_split_at_every_kind_of_line_end() {
        assert_eq!(
            lines(&[b"a\nb\r", b"\nc\r10%\r20%", b"\r\n\nend"]),
            ["a", "b", "c", "10%", "20%", "", "end"]
        );
        assert_eq!(lines(&[b"\xff\n"]), ["\u{fffd}"]);
        assert_eq!(lines(&[&[b'x'; LONGEST_LINE + 1]]).len(), 2);
    }

    #[test]
    fn beginning_and_end_are_kept() {
        let mut kept = KeptOutput::default();
        kept.add(b"first\n");
        for _ in 0..(5 * HALF / 1000) {
            kept.add(&[b'x'; 1000]);
        }
        kept.add(b"last");
        let text = kept.text();
        assert!(text.starts_with("first\n") && text.ends_with("last"));
        assert!(text.lines().any(|line| line.starts_with(LEFT_OUT)));
        assert!(text.len() < 2 * HALF + 100);
    }
}
