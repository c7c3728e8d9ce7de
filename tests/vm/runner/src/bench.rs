//! `vm bench`: compares the durations of different methods to prepare the same node, in one run.

use std::time::Duration;

use crate::{machine::Used, run::Measured};

/// Measurements by name, in the order of their first occurrence.
#[derive(Default)]
pub struct Results(Vec<(String, Vec<Measured>)>);

impl Results {
    /// Adds the measurements of one run of a case. Those with the same name are added up, except memory, where the
    /// maximum counts.
    pub fn add(&mut self, measured: &[Measured]) {
        let mut sums: Vec<Measured> = Vec::new();
        for one in measured {
            match sums.iter_mut().find(|sum| sum.name == one.name) {
                Some(sum) => {
                    sum.wall += one.wall;
                    sum.used = sum.used.and(one.used);
                    sum.memory = sum.memory.max(one.memory);
                }
                None => sums.push(one.clone()),
            }
        }
        for sum in sums {
            match self.0.iter_mut().find(|(name, _)| *name == sum.name) {
                Some((_, all)) => all.push(sum),
                None => self.0.push((sum.name.clone(), vec![sum])),
            }
        }
    }

    /// An entry for each name, `GROUP: METHOD`: the medians, the fastest and the slowest run, and the ratio to the
    /// first method of the group.
    pub fn rows(&self) -> Vec<Vec<String>> {
        let mut rows = vec![
            [
                "what",
                "seconds",
                "from",
                "to",
                "ratio",
                "of processor",
                "MB received",
                "processes",
                "MB of memory",
                "runs",
            ]
            .map(String::from)
            .to_vec(),
        ];
        for (name, runs) in &self.0 {
            let [own, least, most] = spread(runs);
            let first = self.group(name).next();
            let base = first.map(|(_, runs)| spread(runs)[0]);
            let ratio = base.filter(|base| *base > 0.0).map(|base| own / base);
            let middle = |of: fn(&Used) -> u64| median(runs.iter().map(|run| of(&run.used)));
            let processor = Duration::from_micros(middle(|used| as_micros(used.processor)));
            let [received, started] = [middle(|used| used.received), middle(|used| used.started)];
            let memory = median(runs.iter().map(|run| run.memory));
            rows.push(vec![
                name.clone(),
                format!("{own:.1}"),
                format!("{least:.1}"),
                format!("{most:.1}"),
                ratio.map(|ratio| format!("{ratio:.3}")).unwrap_or_default(),
                format!("{:.1}", processor.as_secs_f64()),
                format!("{:.1}", received as f64 / 1e6),
                started.to_string(),
                format!("{:.0}", memory as f64 / 1e6),
                runs.len().to_string(),
            ]);
        }
        rows
    }

    /// The measurements of the group of a name.
    fn group(&self, name: &str) -> impl Iterator<Item = &(String, Vec<Measured>)> {
        let of = |name: &str| name.split(": ").next().unwrap_or_default().to_owned();
        let wanted = of(name);
        self.0.iter().filter(move |(other, _)| of(other) == wanted)
    }

    /// A chart: a bar for each median, and a line from the fastest to the slowest run. Each group has its own scale.
    pub fn svg(&self, about: &str) -> String {
        let escaped = |text: &str| text.replace('&', "&amp;").replace('<', "&lt;");
        let mut y = 60.0;
        let mut bars = String::new();
        for (name, runs) in &self.0 {
            let longest =
                (self.group(name)).fold(0.001, |most: f64, (_, runs)| most.max(spread(runs)[2]));
            let [own, least, most] = spread(runs).map(|seconds| seconds / longest * 520.0);
            let (name, seconds) = (escaped(name), spread(runs)[0]);
            bars.push_str(&format!(
                "<text x=\"20\" y=\"{y}\">{name}</text>\
                 <rect x=\"440\" y=\"{}\" width=\"{own:.1}\" height=\"14\" fill=\"#9bb7d4\"/>\
                 <path d=\"M{:.1} {}h{:.1}\" stroke=\"#222\"/>\
                 <text x=\"{:.1}\" y=\"{y}\">{seconds:.1} s</text>\n",
                y - 12.0,
                440.0 + least,
                y - 5.0,
                most - least,
                446.0 + most,
            ));
            y += 22.0;
        }
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 1040 {y}\" font-family=\"sans-serif\" font-size=\"12\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n<text x=\"20\" y=\"28\">{}</text>\n{bars}</svg>\n",
            escaped(about)
        )
    }
}

/// The median, the fastest and the slowest run, in seconds.
fn spread(runs: &[Measured]) -> [f64; 3] {
    let walls = || runs.iter().map(|run| as_micros(run.wall));
    let least = walls().min().unwrap_or_default();
    let most = walls().max().unwrap_or_default();
    [median(walls()), least, most].map(|one| Duration::from_micros(one).as_secs_f64())
}

fn as_micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// The middle value, or the lower of two.
fn median(all: impl Iterator<Item = u64>) -> u64 {
    let mut all: Vec<u64> = all.collect();
    all.sort_unstable();
    all.get(all.len().saturating_sub(1) / 2)
        .copied()
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(name: &str, wall: u64) -> Measured {
        Measured {
            name: name.to_owned(),
            wall: Duration::from_secs(wall),
            used: Used {
                processor: Duration::from_secs(1),
                received: 2_000_000,
                started: 30,
            },
            memory: 1_000_000 * wall,
        }
    }

    #[test]
    fn ratios_compare_medians_with_first_method() {
        let mut results = Results::default();
        for (guides, install) in [(100, 50), (120, 20), (80, 40)] {
            results.add(&[one("debian: guides", guides)]);
            results.add(&[
                one("debian: install", install - 10),
                one("debian: install", 10),
                one("check: one GPU", 2),
            ]);
        }
        let rows = results.rows();
        assert_eq!(
            rows[1],
            [
                "debian: guides",
                "100.0",
                "80.0",
                "120.0",
                "1.000",
                "1.0",
                "2.0",
                "30",
                "100",
                "3"
            ]
        );
        assert_eq!(
            rows[2],
            [
                "debian: install",
                "40.0",
                "20.0",
                "50.0",
                "0.400",
                "2.0",
                "4.0",
                "60",
                "30",
                "3"
            ]
        );
        assert_eq!(rows[3][4], "1.000");
    }

    #[test]
    fn chart_bars_have_length_of_medians() {
        let mut results = Results::default();
        results.add(&[one("a: <b> & c", 100), one("a: d", 50), one("e: f", 2)]);
        let picture = results.svg("200mbit");
        for width in ["520.0", "260.0"] {
            assert!(picture.contains(&format!("width=\"{width}\"")), "{picture}");
        }
        assert_eq!(picture.matches("width=\"520.0\"").count(), 2);
        assert!(picture.contains(">a: &lt;b> &amp; c</text>"), "{picture}");
        assert!(picture.contains("50.0 s") && picture.contains("200mbit"));
    }
}
