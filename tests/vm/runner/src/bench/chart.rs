//! A chart of `vm bench`, as SVG: one question, a bar for the median of each method, a line from the fastest to the
//! slowest run, and our methods in another color.

/// Positions and widths in pixels: the left end of the bars, the length of the longest line, the height of a row, and the
/// position of the first one.
const LEFT: f64 = 330.0;
const LENGTH: f64 = 460.0;
const ROW: f64 = 26.0;
const TOP: f64 = 86.0;

const STYLE: &str = "text{font:13px sans-serif;fill:#222}.title{font-size:17px;font-weight:bold}.about{fill:#555}\
    .ours{fill:#2f6fad}.other{fill:#b8c2cc}.label.ours{fill:#1d4f80;font-weight:bold}.spread{stroke:#222;stroke-width:1.5}";

/// The answer to one question.
pub struct Chart {
    title: String,
    about: String,
    bars: Vec<Bar>,
}

struct Bar {
    method: String,
    /// Median, fastest and slowest run, in seconds.
    seconds: [f64; 3],
    ours: bool,
}

impl Chart {
    /// Without bars.
    pub fn new(title: &str, about: &str) -> Chart {
        Chart {
            title: title.to_owned(),
            about: about.to_owned(),
            bars: Vec::new(),
        }
    }

    /// Adds a method, with the median, the fastest and the slowest run in seconds.
    pub fn bar(&mut self, method: &str, seconds: [f64; 3], ours: bool) {
        self.bars.push(Bar {
            method: method.to_owned(),
            seconds,
            ours,
        });
    }

    /// Its file name.
    pub fn file(&self) -> String {
        let letters = format!("{} {}", self.title, self.about).to_lowercase();
        let words: Vec<&str> = letters
            .split(|letter: char| !letter.is_ascii_alphanumeric())
            .filter(|word| !word.is_empty())
            .collect();
        format!("{}.svg", words.join("-"))
    }

    /// The picture. All its bars have the same scale, which starts at zero.
    pub fn svg(&self) -> String {
        let longest = (self.bars.iter()).fold(0.001, |most: f64, bar| most.max(bar.seconds[2]));
        let mut y = TOP;
        let mut bars = String::new();
        for bar in &self.bars {
            let [own, least, most] = bar.seconds.map(|seconds| seconds / longest * LENGTH);
            let class = if bar.ours { "ours" } else { "other" };
            let [median, fastest, slowest] = bar.seconds.map(told);
            bars.push_str(&format!(
                "<text class=\"label {class}\" x=\"{:.0}\" y=\"{y}\" text-anchor=\"end\">{}</text>\
                 <rect class=\"{class}\" x=\"{LEFT}\" y=\"{}\" width=\"{own:.1}\" height=\"16\"/>\
                 <path class=\"spread\" d=\"M{:.1} {}h{:.1}\"/>\
                 <text x=\"{:.1}\" y=\"{y}\">{median} s ({fastest} to {slowest})</text>\n",
                LEFT - 10.0,
                escaped(&bar.method),
                y - 13.0,
                LEFT + least,
                y - 5.0,
                most - least,
                LEFT + most + 8.0,
            ));
            y += ROW;
        }
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 960 {y}\">\n<style>{STYLE}</style>\n\
             <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
             <text class=\"title\" x=\"20\" y=\"32\">{}</text>\n\
             <text class=\"about\" x=\"20\" y=\"54\">seconds: median (fastest to slowest run); {}</text>\n{bars}</svg>\n",
            escaped(&self.title),
            escaped(&self.about)
        )
    }
}

/// Seconds as text, with a decimal place below ten.
fn told(seconds: f64) -> String {
    match seconds < 10.0 {
        true => format!("{seconds:.1}"),
        false => format!("{seconds:.0}"),
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_have_length_of_medians_and_ours_are_highlighted() {
        let mut chart = Chart::new("a & b", "2 CPUs, 200mbit");
        chart.bar("<guides>", [50.0, 40.0, 100.0], false);
        chart.bar("install", [25.0, 20.0, 30.0], true);
        let picture = chart.svg();
        for part in [
            "class=\"other\" x=\"330\" y=\"73\" width=\"230.0\"",
            "class=\"ours\" x=\"330\" y=\"99\" width=\"115.0\"",
            ">&lt;guides></text>",
            ">a &amp; b</text>",
            "50 s (40 to 100)",
            "2 CPUs, 200mbit",
        ] {
            assert!(picture.contains(part), "{part} is not in\n{picture}");
        }
        assert_eq!(chart.file(), "a-b-2-cpus-200mbit.svg");
    }
}
