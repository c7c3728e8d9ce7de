//! Output for the user.

use std::io::Write;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::Result;

static STDOUT: Mutex<()> = Mutex::new(());

/// Prints one line. A failed write does not stop the run: if the reader is gone, the run still has its exit code.
pub fn say(line: impl AsRef<str>) {
    let _guard = STDOUT.lock();
    let mut stdout = std::io::stdout().lock();
    if writeln!(stdout, "{}", line.as_ref()).is_ok() {
        // If this fails, the next write also fails.
        drop(stdout.flush());
    }
}

/// Prints a heading between two parts of a run.
pub fn heading(title: &str) {
    say(format!("\n== {title}"));
}

/// Seconds with one decimal, as in every table of the harness.
pub fn seconds(duration: Duration) -> String {
    format!("{:.1}", duration.as_secs_f64())
}

/// Runs a part of the preparation, and prints its duration, unless it was quick. A failure is printed at once, because
/// other parts may run for long before the error stops the run.
pub fn timed<T>(what: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let start = Instant::now();
    let result = work();
    let took = seconds(start.elapsed());
    match &result {
        Err(error) => say(format!("  {took:>6} s  {what}: {error:#}")),
        Ok(_) if start.elapsed() > Duration::from_secs(1) => say(format!("  {took:>6} s  {what}")),
        Ok(_) => {}
    }
    result
}

/// The last `count` lines of a text, for a failure message.
pub fn tail(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

/// Formats rows as aligned columns; the first row is the header.
pub fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter()
            .filter_map(|row| row.get(column))
            .map(|cell| cell.chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for (index, row) in rows.iter().enumerate() {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let pad = widths[column] - cell.chars().count();
            line.push_str(cell);
            line.push_str(&" ".repeat(pad + 2));
        }
        text.push_str(line.trim_end());
        text.push('\n');
        if index == 0 {
            text.push_str(
                &"-".repeat(
                    widths
                        .iter()
                        .map(|w| w + 2)
                        .sum::<usize>()
                        .saturating_sub(2),
                ),
            );
            text.push('\n');
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let rows = [["step", "s"], ["install", "1.5"]]
            .iter()
            .map(|row| row.iter().map(ToString::to_string).collect())
            .collect::<Vec<_>>();
        assert_eq!(table(&rows), "step     s\n------------\ninstall  1.5\n");
    }

    #[test]
    fn tail_returns_last_lines() {
        assert_eq!(tail("a\nb\nc\n", 2), "b\nc");
        assert_eq!(tail("a", 5), "a");
    }
}
