//! A chart of `vm bench`, as SVG: one question, in each part a bar for the median of each method, a line from the fastest
//! to the slowest run, and our methods in another color.

use std::fmt::Write;

use super::seconds;

/// Positions and widths in pixels: the left end of the bars, the length of the longest line, the height of a row, and the
/// position of the first part.
const LEFT: f64 = 430.0;
const LENGTH: f64 = 400.0;
const ROW: f64 = 26.0;
const TOP: f64 = 92.0;

const STYLE: &str = "text{font:13px sans-serif;fill:#222}.title{font-size:17px;font-weight:bold}.about{fill:#555}\
    .part{font-weight:bold}.ours{fill:#2f6fad}.other{fill:#b8c2cc}.label.other{fill:#222}.label.ours{fill:#1d4f80;font-weight:bold}\
    .spread{stroke:#222;stroke-width:1.5}";

/// The answer to one question.
pub struct Chart {
    title: String,
    rows: Vec<Line>,
}

enum Line {
    Part(String),
    Bar {
        method: String,
        /// Median, fastest and slowest run, in seconds.
        seconds: [f64; 3],
        ours: bool,
    },
}

impl Chart {
    /// Without bars.
    pub fn new(title: &str) -> Chart {
        Chart {
            title: title.to_owned(),
            rows: Vec::new(),
        }
    }

    /// Starts a part with a heading.
    pub fn part(&mut self, heading: &str) {
        self.rows.push(Line::Part(heading.to_owned()));
    }

    /// Adds a method, with the median, the fastest and the slowest run in seconds.
    pub fn bar(&mut self, method: &str, seconds: [f64; 3], ours: bool) {
        self.rows.push(Line::Bar {
            method: method.to_owned(),
            seconds,
            ours,
        });
    }

    /// The picture. All its bars have the same scale, which starts at zero.
    pub fn svg(&self) -> String {
        let longest = (self.rows.iter()).fold(0.001, |most: f64, row| match row {
            Line::Bar { seconds, .. } => most.max(seconds[2]),
            Line::Part(_) => most,
        });
        let mut y = TOP;
        let mut rows = String::new();
        for row in &self.rows {
            match row {
                Line::Part(heading) => {
                    rows.push_str(&format!(
                        "<text class=\"part\" x=\"20\" y=\"{y}\">{}</text>\n",
                        escaped(heading)
                    ));
                }
                Line::Bar {
                    method,
                    seconds,
                    ours,
                } => {
                    rows.push_str(&bar(method, *seconds, *ours, y, LENGTH / longest));
                }
            }
            y += ROW;
        }
        let mut text = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 1000 {y}\">\n<style>{STYLE}</style>\n\
             <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
        );
        // Writing to a string cannot fail.
        writeln!(
            text,
            "<text class=\"title\" x=\"20\" y=\"32\">{}</text>\n\
             <text class=\"about\" x=\"20\" y=\"54\">seconds: median (fastest to slowest run); blue: gpu-bootstrap</text>\n\
             {rows}</svg>",
            escaped(&self.title)
        )
        .unwrap_or_default();
        text
    }
}

/// A bar whose text has this baseline.
fn bar(method: &str, values: [f64; 3], ours: bool, y: f64, scale: f64) -> String {
    let [own, least, most] = values.map(|value| value * scale);
    let class = if ours { "ours" } else { "other" };
    let [median, fastest, slowest] = values.map(seconds);
    format!(
        "<text class=\"label {class}\" x=\"{:.0}\" y=\"{y}\" text-anchor=\"end\">{}</text>\
         <rect class=\"{class}\" x=\"{LEFT}\" y=\"{}\" width=\"{own:.1}\" height=\"16\"/>\
         <path class=\"spread\" d=\"M{:.1} {}h{:.1}\"/>\
         <text x=\"{:.1}\" y=\"{y}\">{median} ({fastest} to {slowest})</text>\n",
        LEFT - 10.0,
        escaped(method),
        y - 13.0,
        LEFT + least,
        y - 5.0,
        most - least,
        LEFT + most + 8.0,
    )
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_have_length_of_medians_and_ours_are_highlighted() {
        let mut chart = Chart::new("a & b");
        chart.part("2 CPUs, 200mbit");
        chart.bar("<guides>", [50.0, 40.0, 100.0], false);
        chart.bar("install", [25.0, 20.0, 30.0], true);
        let picture = chart.svg();
        for part in [
            "class=\"other\" x=\"430\" y=\"105\" width=\"200.0\"",
            "class=\"ours\" x=\"430\" y=\"131\" width=\"100.0\"",
            ">&lt;guides></text>",
            ">a &amp; b</text>",
            "50 (40 to 100)",
            ">2 CPUs, 200mbit</text>",
        ] {
            assert!(picture.contains(part), "{part} is not in\n{picture}");
        }
    }
}
