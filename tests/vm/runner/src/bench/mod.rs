//! `vm bench`: compares the durations of different methods to prepare the same node, in one run.

mod chart;
mod setting;
mod timing;

use std::time::Duration;

pub use self::chart::Chart;
pub use self::setting::Setting;
pub use self::timing::Timing;
use crate::machine::Used;
use crate::run::{Measured, Row};

/// The numbers of CPUs for which a duration is computed from the measured steps.
const MODELED: [u32; 2] = [8, 64];

/// The end of the names of methods with an earlier version of gpu-bootstrap.
pub const BEFORE: &str = ", earlier version";

/// Parts of the names of the methods that are not ours or not current.
const OTHERS: [&str; 3] = ["guides", "Ansible", BEFORE];

/// Measurements of methods, in the order of their first occurrence.
pub struct Results {
    /// The number of CPUs of the machines.
    processors: u32,
    methods: Vec<Method>,
}

struct Method {
    /// `GROUP: METHOD`.
    name: String,
    runs: Vec<Run>,
}

/// One run of a method.
struct Run {
    measured: Measured,
    timing: Option<Timing>,
}

impl Run {
    /// The measured duration in seconds.
    fn wall(&self) -> f64 {
        self.measured.wall.as_secs_f64()
    }

    /// The computed duration with another number of CPUs, if its steps are known.
    fn modeled(&self, from: u32, to: u32) -> Option<f64> {
        let timing = self.timing.as_ref()?;
        Some((self.wall() - timing.saved(f64::from(to) / f64::from(from))).max(0.0))
    }
}

impl Results {
    /// Without measurements, for machines with this number of CPUs.
    pub fn of_machines(processors: u32) -> Results {
        Results {
            processors: processors.max(1),
            methods: Vec::new(),
        }
    }

    /// Adds the measurements of one run of a case, with this suffix of their names. Those with the same name are added up,
    /// except memory, where the maximum counts.
    pub fn add(&mut self, rows: Vec<Row>, suffix: &str) {
        let (mut sums, mut timings) = (Vec::<Measured>::new(), Vec::new());
        for row in rows {
            timings.extend(row.timing);
            for one in row.measured {
                match sums.iter_mut().find(|sum| sum.name == one.name) {
                    Some(sum) => {
                        sum.wall += one.wall;
                        sum.used = sum.used.and(one.used);
                        sum.memory = sum.memory.max(one.memory);
                    }
                    None => sums.push(one),
                }
            }
        }
        for measured in sums {
            let timing = (timings.iter())
                .find(|(of, _)| *of == measured.name)
                .map(|(_, timing)| timing.clone());
            let name = format!("{}{suffix}", measured.name);
            let run = Run { measured, timing };
            match self.methods.iter_mut().find(|method| method.name == name) {
                Some(method) => method.runs.push(run),
                None => self.methods.push(Method {
                    name,
                    runs: vec![run],
                }),
            }
        }
    }

    /// An entry for each method: the medians, the fastest and the slowest run, the ratio to the first method of the
    /// group, and the computed medians with more CPUs.
    pub fn rows(&self) -> Vec<Vec<String>> {
        let mut head = ["what", "seconds", "from", "to", "ratio"]
            .map(String::from)
            .to_vec();
        head.extend(MODELED.map(|cpus| format!("{cpus} CPUs, computed")));
        head.extend(
            [
                "of processor",
                "MB received",
                "processes",
                "MB of memory",
                "runs",
            ]
            .map(String::from),
        );
        let mut rows = vec![head];
        for method in &self.methods {
            let [own, least, most] = spread(method.runs.iter().map(Run::wall));
            let first = self
                .methods
                .iter()
                .find(|one| one.group() == method.group());
            let base = first.map(|one| spread(one.runs.iter().map(Run::wall))[0]);
            let ratio = base.filter(|base| *base > 0.0).map(|base| own / base);
            let middle =
                |of: fn(&Used) -> u64| median(method.runs.iter().map(|run| of(&run.measured.used)));
            let processor = Duration::from_micros(middle(|used| as_micros(used.processor)));
            let [received, started] = [middle(|used| used.received), middle(|used| used.started)];
            let memory = median(method.runs.iter().map(|run| run.measured.memory));
            let mut row = vec![
                method.name.clone(),
                format!("{own:.1}"),
                format!("{least:.1}"),
                format!("{most:.1}"),
                ratio.map(|ratio| format!("{ratio:.3}")).unwrap_or_default(),
            ];
            for cpus in MODELED {
                let modeled = method.modeled(self.processors, cpus);
                row.push(
                    modeled
                        .map(|all| format!("{:.1}", spread(all.into_iter())[0]))
                        .unwrap_or_default(),
                );
            }
            row.extend([
                format!("{:.1}", processor.as_secs_f64()),
                format!("{:.1}", received as f64 / 1e6),
                started.to_string(),
                format!("{:.0}", memory as f64 / 1e6),
                method.runs.len().to_string(),
            ]);
            rows.push(row);
        }
        rows
    }

    /// A chart for each question: each group as measured, and computed with more CPUs if that changes something.
    pub fn charts(&self, setting: &Setting) -> Vec<Chart> {
        let mut groups: Vec<&str> = Vec::new();
        for group in self.methods.iter().map(Method::group) {
            if !groups.contains(&group) {
                groups.push(group);
            }
        }
        let mut charts = Vec::new();
        for group in groups {
            let of_group = || self.methods.iter().filter(|method| method.group() == group);
            let mut chart = Chart::new(group, &format!("{} CPUs, {setting}", self.processors));
            for method in of_group() {
                chart.bar(
                    method.method(),
                    spread(method.runs.iter().map(Run::wall)),
                    method.is_ours(),
                );
            }
            charts.push(chart);
            let compiles = |run: &Run| run.timing.as_ref().is_some_and(Timing::compiles);
            if !of_group().any(|method| method.runs.iter().any(compiles)) {
                continue;
            }
            for cpus in MODELED {
                let about = format!("{cpus} CPUs, computed from {}, {setting}", self.processors);
                let mut chart = Chart::new(group, &about);
                for method in of_group() {
                    if let Some(all) = method.modeled(self.processors, cpus) {
                        chart.bar(method.method(), spread(all.into_iter()), method.is_ours());
                    }
                }
                charts.push(chart);
            }
        }
        charts
    }
}

impl Method {
    fn group(&self) -> &str {
        self.name
            .split_once(": ")
            .map_or(self.name.as_str(), |(group, _)| group)
    }

    fn method(&self) -> &str {
        self.name
            .split_once(": ")
            .map_or(self.name.as_str(), |(_, method)| method)
    }

    /// Whether it is a method of this version of gpu-bootstrap.
    fn is_ours(&self) -> bool {
        !OTHERS.iter().any(|other| self.method().contains(other))
    }

    /// The computed durations, if the steps of each run are known.
    fn modeled(&self, from: u32, to: u32) -> Option<Vec<f64>> {
        self.runs.iter().map(|run| run.modeled(from, to)).collect()
    }
}

/// The median (the lower of two), the smallest and the largest value; zeros without values.
fn spread(values: impl Iterator<Item = f64>) -> [f64; 3] {
    let mut all: Vec<f64> = values.collect();
    all.sort_by(f64::total_cmp);
    let at = |index: usize| all.get(index).copied().unwrap_or_default();
    let last = all.len().saturating_sub(1);
    [at(last / 2), at(0), at(last)]
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
    use crate::machine::Changes;

    fn row(name: &str, wall: u64, timing: Option<Timing>) -> Row {
        let measured = Measured {
            name: name.to_owned(),
            wall: Duration::from_secs(wall),
            used: Used {
                processor: Duration::from_secs(1),
                received: 2_000_000,
                started: 30,
            },
            memory: 1_000_000 * wall,
        };
        Row {
            title: String::new(),
            took: Duration::ZERO,
            measured: vec![measured],
            timing: timing.map(|timing| (name.to_owned(), timing)),
            result: String::new(),
        }
    }

    fn compiled(seconds: u32) -> Timing {
        Timing::read(&format!(
            r#"{{"timing":{{"spans":[{{"begins":0,"seconds":{seconds},"what":"build kernel module `nvidia` for 6.1"}}]}}}}"#
        ))
        .unwrap()
    }

    fn setting() -> Setting {
        Setting {
            link: Some("200mbit".into()),
            changes: Changes::Memory,
        }
    }

    #[test]
    fn ratios_compare_medians_with_first_method() {
        let mut results = Results::of_machines(2);
        for (guides, install) in [(100, 50), (120, 20), (80, 40)] {
            let timing = Some(compiled(64));
            results.add(vec![row("debian: guides", guides, timing)], "");
            let install = vec![
                row("debian: install", install - 10, None),
                row("debian: install", 10, None),
                row("check: one GPU", 2, None),
            ];
            results.add(install, "");
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
                "52.0",
                "38.0",
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
                "",
                "",
                "2.0",
                "4.0",
                "60",
                "30",
                "3"
            ]
        );
        assert_eq!(rows[3][4], "1.000");
        assert!(rows.iter().all(|row| row.len() == rows[0].len()));
    }

    #[test]
    fn each_question_has_its_chart() {
        let mut results = Results::of_machines(2);
        let timing = Some(compiled(64));
        results.add(vec![row("debian: the guides' commands", 100, timing)], "");
        results.add(vec![row("debian: install", 50, None)], "");
        results.add(vec![row("debian: install", 60, None)], BEFORE);
        results.add(vec![row("check: one GPU", 2, None)], "");
        let charts = results.charts(&setting());
        let files: Vec<String> = charts.iter().map(Chart::file).collect();
        assert_eq!(
            files,
            [
                "debian-2-cpus-200mbit-memory.svg",
                "debian-8-cpus-computed-from-2-200mbit-memory.svg",
                "debian-64-cpus-computed-from-2-200mbit-memory.svg",
                "check-2-cpus-200mbit-memory.svg",
            ]
        );
        // A method without known steps is not in a computed chart.
        let first = charts[0].svg();
        assert!(first.contains(">install</text>"), "{first}");
        assert!(
            first.contains(">install, earlier version</text>"),
            "{first}"
        );
        assert_eq!(first.matches("<rect class=\"ours\"").count(), 1);
        assert!(!charts[1].svg().contains(">install</text>"));
    }
}
