//! Shows the time spent on each part of an installation, as a table or as an SVG.

use std::io::{self, Write};

use super::{Style, formats::entities, messages::duration, style::Ink};
use crate::engine::{Span, SpanEnd, Timing};

/// The width of each time column, in characters.
const TIME: usize = 14;

/// Writes the table. The critical path is marked.
///
/// # Errors
/// An error of the writer.
pub fn table(to: &mut dyn Write, timing: &Timing, style: Style) -> io::Result<()> {
    writeln!(to, "{}\n", style.hanging("", &headline(timing)))?;
    writeln!(to, "  {:<TIME$}{:<TIME$}what", "after", "takes")?;
    for span in &timing.spans {
        let mark = if span.critical { "*" } else { " " };
        let head = format!(
            "{mark} {:<TIME$}{:<TIME$}",
            duration(span.begins),
            duration(span.seconds)
        );
        writeln!(to, "{}", style.hanging(&head, &words(span)))?;
    }
    let between = format!(
        "Examining the machine and waiting took another {}.",
        duration(timing.between)
    );
    writeln!(to, "\n{}", style.hanging("", &between))?;
    if let Some(used) = timing.cpu_seconds {
        writeln!(to, "{}", style.hanging("", &own_work(timing, used)))?;
    }
    if timing.spans.iter().any(|span| span.critical) {
        let critical = "`*`: the critical path, which determines the total time";
        writeln!(to, "{}", style.paint(Ink::Faint, critical))?;
    }
    to.flush()
}

fn headline(timing: &Timing) -> String {
    let seconds = duration(timing.seconds);
    let boots = match timing.boots {
        1 => "1 boot".to_owned(),
        more => format!("{more} boots"),
    };
    match timing.exit {
        Some(0) if timing.image => format!("image complete after {seconds}, in {boots}"),
        Some(0) => format!("ready after {seconds}, in {boots}"),
        Some(exit) => format!("ended with status {exit} after {seconds}, in {boots}"),
        None => format!("not finished; {seconds} until the last record, in {boots}"),
    }
}

/// The CPU time of gpu-bootstrap itself, without the programs that it started, in milliseconds.
fn own_work(timing: &Timing, used: f64) -> String {
    let milliseconds = |seconds: f64| format!("{:.0} ms", seconds * 1000.0);
    let later = (timing.cpu_seconds_without_changes).map(|later| {
        format!(
            ", and {} in the last run without changes",
            milliseconds(later)
        )
    });
    format!(
        "gpu-bootstrap itself used {} of CPU time{}.",
        milliseconds(used),
        later.unwrap_or_default()
    )
}

/// The description of a span and its steps.
fn words(span: &Span) -> String {
    let steps: Vec<&str> = span.steps.iter().map(|step| step.as_str()).collect();
    let end = match span.end {
        SpanEnd::Done => "",
        SpanEnd::Failed => ", failed",
        SpanEnd::UnderWay => ", running",
    };
    if steps.is_empty() {
        return format!("{}{end}", span.what);
    }
    format!("{} ({}){end}", span.what, steps.join(", "))
}

/// Width and margin of the SVG, height of a line, and position of the first line, in pixels.
const WIDTH: f64 = 1200.0;
const MARGIN: f64 = 20.0;
const LINE: f64 = 22.0;
const TOP: f64 = 70.0;

/// Maximum number of characters of a description in the label of a bar, and the average width of a character in pixels.
const LETTERS: usize = 90;
const LETTER: f64 = 6.2;

const STYLE: &str = "text{font:12px sans-serif;fill:#222}.head{font-size:15px}.tick{stroke:#ddd}.axis{fill:#777}\
    .bar{fill:#9bb7d4}.critical{fill:#2f6fad}.reboot{fill:#c9a227}.failed{fill:#b3392f}";

/// Writes an SVG with a bar for each change and each reboot. The critical path is dark.
///
/// # Errors
/// An error of the writer.
pub fn svg(to: &mut dyn Write, timing: &Timing) -> io::Result<()> {
    let bottom = timing.spans.iter().fold(TOP, |y, _| y + LINE);
    let height = bottom + MARGIN;
    let whole = timing.seconds.max(0.001);
    let x = |seconds: f64| MARGIN + seconds / whole * (WIDTH - 2.0 * MARGIN);
    let head = entities(&headline(timing));
    writeln!(
        to,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\">\n\
         <title>{head}</title>\n<style>{STYLE}</style>\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
         <text class=\"head\" x=\"{MARGIN}\" y=\"26\">gpu-bootstrap install, {}: {head}</text>",
        timing.started
    )?;
    let tick = tick(whole);
    let mut at = 0.0;
    while at <= whole {
        let x = x(at);
        let y = TOP - 8.0;
        writeln!(
            to,
            "<line class=\"tick\" x1=\"{x:.1}\" y1=\"{y}\" x2=\"{x:.1}\" y2=\"{bottom}\"/>\
             <text class=\"axis\" x=\"{x:.1}\" y=\"{}\">{}</text>",
            y - 6.0,
            duration(at)
        )?;
        at += tick;
    }
    let mut y = TOP;
    for span in &timing.spans {
        let (begin, width) = (x(span.begins), (x(span.seconds) - MARGIN).max(2.0));
        let class = match (span.end, span.steps.is_empty(), span.critical) {
            (SpanEnd::Failed, _, _) => "failed",
            (_, true, _) => "reboot",
            (_, false, true) => "critical",
            (_, false, false) => "bar",
        };
        let words = words(span);
        let label: String = words.replace('`', "").chars().take(LETTERS).collect();
        let label = format!("{}  {label}", duration(span.seconds));
        // Put the label after the bar, before it, or on it, depending on the available space.
        let text_width = label.chars().fold(0.0, |width, _| width + LETTER);
        let (at, anchor) = if begin + width + text_width < WIDTH {
            (begin + width + 4.0, "start")
        } else if begin > text_width {
            (begin - 4.0, "end")
        } else {
            (begin + 4.0, "start")
        };
        writeln!(
            to,
            "<g><title>{}</title><rect class=\"{class}\" x=\"{begin:.1}\" y=\"{y}\" width=\"{width:.1}\" height=\"{}\"/>\
             <text x=\"{at:.1}\" y=\"{}\" text-anchor=\"{anchor}\">{}</text></g>",
            entities(&words),
            LINE - 6.0,
            y + LINE - 10.0,
            entities(&label)
        )?;
        y += LINE;
    }
    writeln!(to, "</svg>")?;
    to.flush()
}

/// The seconds between two ticks of the axis: 1, 2 or 5 times a power of ten, for at most twelve intervals.
fn tick(whole: f64) -> f64 {
    let mut power = 0.001;
    loop {
        for step in [1.0, 2.0, 5.0] {
            if whole / (step * power) <= 12.0 {
                return step * power;
            }
        }
        power *= 10.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(begins: f64, seconds: f64, what: &str, critical: bool) -> Span {
        Span {
            begins,
            seconds,
            steps: vec![crate::steps::DRIVER_PACKAGES],
            what: what.to_owned(),
            end: SpanEnd::Done,
            critical,
        }
    }

    fn timing() -> Timing {
        let reboot = Span {
            steps: Vec::new(),
            ..span(75.0, 18.5, "reboot", true)
        };
        Timing {
            started: jiff::Timestamp::from_second(1_795_000_000).expect("a time"),
            seconds: 100.0,
            image: false,
            exit: Some(0),
            boots: 2,
            between: 9.5,
            cpu_seconds: Some(0.4321),
            cpu_seconds_without_changes: Some(0.05),
            spans: vec![
                span(0.5, 2.0, "refresh the package lists", true),
                span(3.0, 70.0, "install `a` & `<b>`", true),
                span(4.0, 10.0, "pull `x`", false),
                reboot,
            ],
        }
    }

    #[test]
    fn table_marks_the_critical_path() {
        let mut text = Vec::new();
        table(&mut text, &timing(), Style::default()).expect("memory");
        insta::assert_snapshot!(String::from_utf8(text).expect("text"));
    }

    #[test]
    fn svg_has_a_bar_for_each_span() {
        let mut text = Vec::new();
        svg(&mut text, &timing()).expect("memory");
        let text = String::from_utf8(text).expect("text");
        // One more for the background.
        assert_eq!(text.matches("<rect ").count(), timing().spans.len() + 1);
        assert!(!text.contains("<b>"), "{text}");
        assert!(text.contains("install `a` &amp; `&lt;b&gt;`"), "{text}");
    }

    #[test]
    fn axis_has_at_most_twelve_intervals() {
        for (whole, expected) in [(0.01, 0.001), (100.0, 10.0), (7200.0, 1000.0)] {
            assert!(
                (tick(whole) - expected).abs() < 1e-9,
                "{whole}: {}",
                tick(whole)
            );
        }
    }
}
