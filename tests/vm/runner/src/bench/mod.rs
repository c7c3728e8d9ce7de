//! `vm bench`: compares the durations of different methods to prepare the same node, in one run.

mod chart;
mod timing;

use std::{fmt::Write, time::Duration};

use self::chart::Chart;
pub use self::timing::Timing;
use crate::machine::Changes;
use crate::run::{Measured, Row};

/// The numbers of CPUs for which a duration is computed from the measured steps.
const MODELED: [u32; 2] = [8, 64];

/// The end of the names of methods with an earlier version of gpu-bootstrap.
pub const BEFORE: &str = ", earlier version";

/// The end of the name of the same run until the node was ready. Only work for the next boot comes after it.
const READY: &str = ", until the node is ready";

/// Parts of the names of the methods that are not ours or not current.
const OTHERS: [&str; 3] = ["guides", "Ansible", BEFORE];

/// The start of the names of methods that change nothing.
const UNCHANGED: [&str; 2] = ["a second install", "check"];

/// The method that the columns of the summary must have.
const INSTALL: &str = "install";

/// Seconds of the shortest step in a breakdown.
const SHORTEST: f64 = 0.2;

/// The link and the disk of each machine.
#[derive(Clone, Debug)]
pub struct Setting {
    /// The rate of the link in tc(8) syntax; not limited without it.
    pub link: Option<String>,
    pub changes: Changes,
}

impl Setting {
    /// Each combination of a link and a disk. An empty list means the default.
    pub fn all(links: &[String], disks: &[Changes]) -> Vec<Setting> {
        let links: Vec<Option<String>> = match links.is_empty() {
            true => vec![None],
            false => links.iter().cloned().map(Some).collect(),
        };
        let disks = if disks.is_empty() {
            &[Changes::Memory]
        } else {
            disks
        };
        let with = |link: &Option<String>, changes: &Changes| Setting {
            link: link.clone(),
            changes: *changes,
        };
        (links.iter())
            .flat_map(|link| disks.iter().map(move |changes| with(link, changes)))
            .collect()
    }

    fn label(&self, processors: u32) -> String {
        let link = self.link.as_deref().unwrap_or("unlimited link");
        let disk = match self.changes {
            Changes::Memory => "no fsync cost",
            Changes::Disk => "with fsync cost",
        };
        format!("{processors} CPUs, {link}, {disk}")
    }
}

/// The measurements of methods in one setting, in the order of their first occurrence.
pub struct Results {
    pub setting: Setting,
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
    /// Its steps, if they are known.
    timing: Option<Timing>,
}

impl Results {
    /// Without measurements, for machines with this number of CPUs.
    pub fn new(setting: Setting, processors: u32) -> Results {
        Results {
            setting,
            processors,
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
            let timing = timings.iter().find(|(of, _)| *of == measured.name);
            let timing = timing.map(|(_, timing)| timing.clone());
            let name = &measured.name;
            let ready = timing.as_ref().map_or(Duration::ZERO, Timing::ready);
            let until_ready = (!ready.is_zero()).then(|| {
                let wall = measured.wall.saturating_sub(ready);
                let measured = Measured {
                    wall,
                    ..measured.clone()
                };
                (
                    format!("{name}{READY}{suffix}"),
                    Run {
                        measured,
                        timing: None,
                    },
                )
            });
            let name = format!("{name}{suffix}");
            self.push(name, Run { measured, timing });
            if let Some((name, run)) = until_ready {
                self.push(name, run);
            }
        }
    }

    /// Adds a run of a method.
    fn push(&mut self, name: String, run: Run) {
        if let Some(method) = self.methods.iter_mut().find(|one| one.name == name) {
            method.runs.push(run);
            return;
        }
        let method = Method {
            name,
            runs: vec![run],
        };
        let of_group = |one: &Method| one.group() == method.group();
        let at = self.methods.iter().rposition(of_group);
        let at = at.map_or(self.methods.len(), |last| last + 1);
        self.methods.insert(at, method);
    }

    fn groups(&self) -> Vec<&str> {
        let mut groups: Vec<&str> = self.methods.iter().map(Method::group).collect();
        groups.dedup();
        groups
    }

    fn of_group<'a>(&'a self, group: &'a str) -> impl Iterator<Item = &'a Method> {
        self.methods.iter().filter(move |one| one.group() == group)
    }

    /// The table of README.md: the medians of the current methods, a column for each group with `install`.
    fn summary(&self) -> String {
        let mut groups = self.groups();
        groups.retain(|group| self.of_group(group).any(|one| one.method() == INSTALL));
        let mut methods: Vec<&str> = Vec::new();
        for method in groups.iter().flat_map(|group| self.of_group(group)) {
            let is_earlier = method.name.ends_with(BEFORE);
            if !is_earlier && !methods.contains(&method.method()) {
                methods.push(method.method());
            }
        }
        let about = format!("median in seconds; {}", self.setting.label(self.processors));
        let head: Vec<String> = [about]
            .into_iter()
            .chain(groups.iter().map(ToString::to_string))
            .collect();
        let mut text = heading(&head);
        for name in methods {
            let cell = |group: &&str| {
                let method = self.of_group(group).find(|one| one.method() == name);
                method.map_or_else(String::new, |one| seconds(one.wall()[0]))
            };
            let cells = [name.to_owned()].into_iter().chain(groups.iter().map(cell));
            text.push_str(&line(cells));
        }
        text
    }

    /// The table of docs/tested.md: an entry for each method with the medians, the fastest and the slowest run, the ratio
    /// to the first method of the group, and the computed medians with more CPUs.
    fn table(&self) -> String {
        let mut head: Vec<String> = vec![self.setting.label(self.processors)];
        head.extend(["median, s", "min, max", "ratio"].map(String::from));
        head.extend(MODELED.map(|cpus| format!("{cpus} CPUs, computed")));
        head.extend(
            [
                "CPU time, s",
                "received, MB",
                "processes",
                "memory, MB",
                "runs",
            ]
            .map(String::from),
        );
        let mut text = heading(&head);
        for method in &self.methods {
            let [own, least, most] = method.wall();
            let first = self
                .of_group(method.group())
                .next()
                .map(|one| one.wall()[0]);
            let ratio = first.filter(|first| *first > 0.0).map(|first| own / first);
            let middle = |of: fn(&Measured) -> f64| {
                spread(method.runs.iter().map(|run| of(&run.measured)))[0]
            };
            let mut row = vec![
                method.name.clone(),
                seconds(own),
                format!("{}, {}", seconds(least), seconds(most)),
                ratio.map_or_else(String::new, |ratio| format!("{ratio:.2}")),
            ];
            row.extend(MODELED.map(|cpus| {
                let modeled = method.modeled(self.processors, cpus);
                modeled.map_or_else(String::new, |all| seconds(all[0]))
            }));
            row.extend([
                seconds(middle(|one| one.used.processor.as_secs_f64())),
                format!("{:.1}", middle(|one| one.used.received as f64) / 1e6),
                format!("{:.0}", middle(|one| one.used.started as f64)),
                format!("{:.0}", middle(|one| one.memory as f64) / 1e6),
                method.runs.len().to_string(),
            ]);
            text.push_str(&line(row));
        }
        text
    }

    /// The steps of the current methods, each from the run with the median duration.
    fn breakdown(&self) -> String {
        let mut text = String::new();
        for method in &self.methods {
            let own = method.wall()[0];
            let middle = method
                .runs
                .iter()
                .find(|run| same(run.measured.wall.as_secs_f64(), own));
            let timing = middle.and_then(|run| run.timing.as_ref());
            let Some(timing) = timing.filter(|_| !method.name.ends_with(BEFORE)) else {
                continue;
            };
            let label = self.setting.label(self.processors);
            let title = format!("{}, {} s ({label})", method.name, seconds(own));
            text.push_str(&heading(&["after, s".into(), "takes, s".into(), title]));
            for [after, takes, what] in timing.steps(SHORTEST) {
                text.push_str(&line([after, takes, what]));
            }
            text.push('\n');
        }
        text
    }
}

/// The results in all settings as Markdown: the table of README.md, and the tables of docs/tested.md.
pub fn report(all: &[Results]) -> String {
    let mut text = all.first().map(Results::summary).unwrap_or_default();
    for results in all {
        text.push_str(&format!("\n{}", results.table()));
    }
    for results in all {
        text.push_str(&format!("\n{}", results.breakdown()));
    }
    text
}

/// A chart for each question: its file name, and its picture. A question is a group, or how long methods take that change
/// nothing, which are too short for a bar next to the others. A chart has a part for each setting and, if the driver is
/// compiled, for the numbers of CPUs in the first setting.
pub fn charts(all: &[Results]) -> Vec<(String, String)> {
    let mut charts = Vec::new();
    let Some(first) = all.first() else {
        return charts;
    };
    for group in first.groups() {
        let mut chart = Chart::new(group);
        for results in all {
            chart.part(&results.setting.label(results.processors));
            for method in results.of_group(group).filter(|one| !one.is_unchanged()) {
                chart.bar(method.method(), method.wall(), method.is_ours());
            }
        }
        let compiled = || first.of_group(group).filter(|method| method.compiles());
        for cpus in MODELED.into_iter().filter(|_| compiled().next().is_some()) {
            chart.part(&format!("{}, computed", first.setting.label(cpus)));
            for method in compiled() {
                if let Some(modeled) = method.modeled(first.processors, cpus) {
                    chart.bar(method.method(), modeled, method.is_ours());
                }
            }
        }
        charts.push((file(group), chart.svg()));
    }
    let mut chart = Chart::new("Runs that change nothing");
    for results in all {
        chart.part(&results.setting.label(results.processors));
        for method in results.methods.iter().filter(|one| one.is_unchanged()) {
            chart.bar(&method.name, method.wall(), method.is_ours());
        }
    }
    charts.push((file("unchanged"), chart.svg()));
    charts
}

/// The file name of a group's chart.
fn file(group: &str) -> String {
    let letters = group.to_lowercase();
    let words: Vec<&str> = (letters.split(|letter: char| !letter.is_ascii_alphanumeric()))
        .filter(|word| !word.is_empty())
        .collect();
    format!("{}.svg", words.join("-"))
}

impl Method {
    fn group(&self) -> &str {
        let parts = self.name.split_once(": ");
        parts.map_or(&*self.name, |(group, _)| group)
    }

    fn method(&self) -> &str {
        let parts = self.name.split_once(": ");
        parts.map_or(&*self.name, |(_, method)| method)
    }

    /// Whether it is a method of this version of gpu-bootstrap.
    fn is_ours(&self) -> bool {
        !OTHERS.iter().any(|other| self.method().contains(other))
    }

    /// Whether it changes nothing.
    fn is_unchanged(&self) -> bool {
        UNCHANGED.iter().any(|one| self.method().starts_with(one))
    }

    fn compiles(&self) -> bool {
        let compiles = |run: &Run| run.timing.as_ref().is_some_and(Timing::compiles);
        self.runs.iter().any(compiles)
    }

    /// The measured durations: median, minimum and maximum.
    fn wall(&self) -> [f64; 3] {
        spread(self.runs.iter().map(|run| run.measured.wall.as_secs_f64()))
    }

    /// The same, computed for another number of CPUs, if the steps of each run are known.
    fn modeled(&self, from: u32, to: u32) -> Option<[f64; 3]> {
        let factor = f64::from(to) / f64::from(from.max(1));
        let computed = |run: &Run| {
            let saved = run.timing.as_ref()?.saved(factor);
            Some((run.measured.wall.as_secs_f64() - saved).max(0.0))
        };
        let all: Option<Vec<f64>> = self.runs.iter().map(computed).collect();
        all.map(|all| spread(all.into_iter()))
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

fn same(one: f64, other: f64) -> bool {
    one.total_cmp(&other).is_eq()
}

/// Seconds as text, with a decimal place below ten.
fn seconds(value: f64) -> String {
    let places = usize::from(value < 9.95);
    format!("{value:.places$}")
}

fn line(cells: impl IntoIterator<Item = String>) -> String {
    let cells: Vec<String> = cells.into_iter().collect();
    format!("| {} |\n", cells.join(" | "))
}

fn heading(cells: &[String]) -> String {
    let mut text = line(cells.iter().cloned());
    // Writing to a string cannot fail.
    writeln!(text, "|{}", "---|".repeat(cells.len())).unwrap_or_default();
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Used;

    fn row(name: &str, wall: u64, compiled: Option<u32>) -> Row {
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
        let timing = |seconds: u32| {
            let text = format!(
                r#"{{"timing":{{"spans":[{{"begins":0,"seconds":{seconds},"what":"build kernel module `nvidia` for 6.1"}}]}}}}"#
            );
            (name.to_owned(), Timing::read(&text).unwrap())
        };
        Row {
            title: String::new(),
            took: Duration::ZERO,
            measured: vec![measured],
            timing: compiled.map(timing),
            result: String::new(),
        }
    }

    #[test]
    fn work_after_the_node_is_ready_is_not_its_time_to_ready() {
        for (image, methods) in [
            (false, &["install", "install, until the node is ready"][..]),
            (true, &["install"]),
        ] {
            let text = format!(
                r#"{{"timing":{{"spans":[],"seconds":23.5,"needed-seconds":20.5,"image":{image}}}}}"#
            );
            let mut row = row("ubuntu: install", 24, None);
            row.timing = Some(("ubuntu: install".to_owned(), Timing::read(&text).unwrap()));
            let mut results = Results::new(Setting::all(&[], &[])[0].clone(), 2);
            results.add(vec![row], "");
            let found: Vec<&str> = results.methods.iter().map(Method::method).collect();
            assert_eq!(found, methods);
            let last = results.methods.last().unwrap().wall()[0];
            assert!((last - if image { 24.0 } else { 21.0 }).abs() < 1e-6);
        }
    }

    fn results() -> Results {
        let setting = Setting {
            link: Some("200mbit".into()),
            changes: Changes::Memory,
        };
        let mut results = Results::new(setting, 2);
        for (guides, install) in [(100, 50), (120, 20), (80, 40)] {
            results.add(
                vec![row("debian: the guides' commands", guides, Some(64))],
                "",
            );
            let install = vec![
                row("debian: install", install - 10, Some(8)),
                row("debian: install", 10, None),
                row("debian: a second install", 2, None),
                row("check: one GPU", 2, None),
            ];
            results.add(install, "");
            results.add(vec![row("debian: install", 60, None)], BEFORE);
        }
        results
    }

    #[test]
    fn tables_compare_medians_with_first_method() {
        let text = report(&[results()]);
        for line in [
            "| median in seconds; 2 CPUs, 200mbit, no fsync cost | debian |\n|---|---|\n",
            "| the guides' commands | 100 |\n| install | 40 |\n| a second install | 2.0 |\n",
            "| debian: the guides' commands | 100 | 80, 120 | 1.00 | 52 | 38 | 1.0 | 2.0 | 30 | 100 | 3 |\n",
            "| debian: install | 40 | 20, 50 | 0.40 | 34 | 32 | 2.0 | 4.0 | 60 | 30 | 3 |\n",
            "| debian: install, earlier version | 60 | 60, 60 | 0.60 |  |  | 1.0 |",
            "| after, s | takes, s | debian: install, 40 s (2 CPUs, 200mbit, no fsync cost) |\n",
            "| 0.0 | 8.0 | build kernel module `nvidia` for 6.1 |\n",
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
    }

    #[test]
    fn each_question_has_its_chart() {
        let all = charts(&[results()]);
        let files: Vec<&str> = all.iter().map(|(file, _)| &**file).collect();
        assert_eq!(files, ["debian.svg", "check.svg", "unchanged.svg"]);
        let picture = &all[0].1;
        assert!(
            picture.contains(">install, earlier version</text>"),
            "{picture}"
        );
        // As measured, and computed for two numbers of CPUs.
        assert_eq!(picture.matches("<rect class=\"ours\"").count(), 3);
        assert!(!all[1].1.contains("computed"));
        assert!(
            !picture.contains("a second install")
                && all[2].1.contains(">debian: a second install</text>")
        );
    }

    #[test]
    fn settings_are_combined() {
        let links = ["200mbit", "2gbit"].map(String::from);
        let all = Setting::all(&links, &[Changes::Memory, Changes::Disk]);
        let labels: Vec<String> = all.iter().map(|one| one.label(2)).collect();
        assert_eq!(labels[1], "2 CPUs, 200mbit, with fsync cost");
        assert_eq!(labels[2], "2 CPUs, 2gbit, no fsync cost");
        assert_eq!(labels.len(), 4);
        assert_eq!(
            Setting::all(&[], &[])[0].label(2),
            "2 CPUs, unlimited link, no fsync cost"
        );
    }
}
