//! Shows the time spent on each part of an installation: as a table, as a timeline in text, or as an SVG.

use std::io::{self, Write};

use super::{
    Style,
    formats::entities,
    messages::duration,
    style::{self, Ink, UNWRAPPED},
};
use crate::engine::{ASSESSMENT, Span, SpanEnd, StepTime, Timing};

/// The width of each time column, in characters.
const TIME: usize = 14;

/// The width of each time column of a timeline, and the minimum width of its bars, in characters.
const POINT: usize = 12;
const BAR: usize = 10;

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
    for (seconds, words) in own_work(timing) {
        let head = format!("  {:<TIME$}{:<TIME$}", "", milliseconds(seconds));
        writeln!(to, "{}", style.hanging(&head, &words))?;
    }
    let between = format!(
        "Examining the machine and waiting took another {}.",
        duration(timing.between)
    );
    writeln!(to, "\n{}", style.hanging("", &between))?;
    if timing.spans.iter().any(|span| span.critical) {
        writeln!(to, "{}", style.paint(Ink::Faint, CRITICAL))?;
    }
    to.flush()
}

/// The legend of the marks.
const CRITICAL: &str = "`*`: the critical path, which determines when the node is ready";

/// Writes a line with a bar for each step and each reboot.
///
/// # Errors
/// An error of the writer.
pub fn timeline(to: &mut dyn Write, timing: &Timing, style: Style) -> io::Result<()> {
    writeln!(to, "{}\n", style.hanging("", &headline(timing)))?;
    let names = timing.steps.iter().map(|one| one.step.len());
    let name = names.max().unwrap_or(0).max(ASSESSMENT.len()) + 2;
    let columns = match style.width {
        UNWRAPPED => style::WIDTH,
        columns => columns,
    };
    // Two columns of times, the mark, and the borders of the bar.
    let bar = columns.saturating_sub(name + 2 * POINT + 4).max(BAR);
    writeln!(to, "  {:<name$}{:<POINT$}end", "step", "start")?;
    for one in &timing.steps {
        let mark = if one.critical { "*" } else { " " };
        writeln!(
            to,
            "{mark} {:<name$}{:<POINT$}{:<POINT$}|{}|",
            one.step,
            duration(one.begins),
            duration(one.ends),
            bar_of(one, timing.seconds, bar)
        )?;
    }
    let legend = format!("{CRITICAL}; its parts are `#`, other changes `=`");
    let legend = style.hanging("", &legend);
    writeln!(to, "\n{}", style.paint(Ink::Faint, &legend))?;
    to.flush()
}

/// Returns the bar of a step. A part that is shorter than a character has one.
fn bar_of(one: &StepTime, whole: f64, width: usize) -> String {
    let characters = f64::from(u32::try_from(width).unwrap_or(u32::MAX));
    let cell = whole.max(0.001) / characters;
    let is_at = |at: f64, (begins, ends, _): &(f64, f64, bool)| {
        let first = (begins / cell).floor().min(characters - 1.0);
        at >= first && (at <= first || at < (ends / cell).ceil())
    };
    let at = |at: u32| {
        let mut parts = one.parts.iter().filter(|part| is_at(f64::from(at), part));
        match (parts.next(), parts.any(|part| part.2)) {
            (None, _) => ' ',
            (Some((_, _, true)), _) | (_, true) => '#',
            (Some(_), false) => '=',
        }
    };
    (0..).take(width).map(at).collect()
}

fn headline(timing: &Timing) -> String {
    let seconds = duration(timing.seconds);
    let boots = match timing.boots {
        1 => "1 boot".to_owned(),
        more => format!("{more} boots"),
    };
    match timing.exit {
        Some(0) if timing.image => format!("image complete after {seconds}, in {boots}"),
        Some(0) if timing.needed_seconds < timing.seconds => format!(
            "ready after {}, in {boots}; deferred package triggers ended after {seconds}",
            duration(timing.needed_seconds)
        ),
        Some(0) => format!("ready after {seconds}, in {boots}"),
        Some(exit) => format!("ended with status {exit} after {seconds}, in {boots}"),
        None => format!("not finished; {seconds} until the last record, in {boots}"),
    }
}

fn milliseconds(seconds: f64) -> String {
    format!("{:.0} ms", seconds * 1000.0)
}

/// The time of gpu-bootstrap itself in the installation, and in the last run without changes, with descriptions.
fn own_work(timing: &Timing) -> Vec<(f64, String)> {
    let words = |what: &str, cpu: Option<f64>| {
        let cpu = cpu.map(|cpu| format!(" ({} of CPU time)", milliseconds(cpu)));
        format!("gpu-bootstrap itself{what}{}", cpu.unwrap_or_default())
    };
    let whole = timing
        .own_seconds
        .map(|own| (own, words("", timing.cpu_seconds)));
    let later = timing.own_seconds_without_changes.map(|own| {
        let cpu = timing.cpu_seconds_without_changes;
        (own, words(" in the last run without changes", cpu))
    });
    whole.into_iter().chain(later).collect()
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

    fn step(step: &str, parts: &[(f64, f64, bool)]) -> StepTime {
        StepTime {
            step: step.to_owned(),
            begins: parts[0].0,
            ends: parts[parts.len() - 1].1,
            seconds: 0.0,
            critical: parts.iter().any(|part| part.2),
            parts: parts.to_vec(),
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
            needed_seconds: 100.0,
            image: false,
            exit: Some(0),
            boots: 2,
            between: 9.5,
            cpu_seconds: Some(0.4321),
            cpu_seconds_without_changes: Some(0.05),
            own_seconds: Some(1.25),
            own_seconds_without_changes: Some(0.0625),
            steps: vec![
                step(ASSESSMENT, &[(0.0, 0.5, true)]),
                step("driver.packages", &[(0.5, 2.5, true), (3.0, 73.0, true)]),
                step(
                    "validation.image",
                    &[(4.0, 14.0, false), (90.0, 92.0, true)],
                ),
                step("reboot", &[(75.0, 93.5, true)]),
            ],
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
    fn timeline_fits_the_terminal() {
        for width in [60, 100] {
            let mut text = Vec::new();
            timeline(&mut text, &timing(), Style::default().columns(width)).expect("memory");
            let text = String::from_utf8(text).expect("text");
            insta::assert_snapshot!(format!("timeline-{width}"), text);
        }
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
