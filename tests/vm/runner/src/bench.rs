//! `vm bench`: how long the ways to the same node take, side by side in one run.

use std::time::Duration;

use crate::run::Measured;

/// What was measured, by name, in the order in which it was measured first.
#[derive(Default)]
pub struct Results(Vec<(String, Vec<(Duration, Duration)>)>);

impl Results {
    /// Adds the measurements of one run of a case; those of one name are added up.
    pub fn add(&mut self, measured: &[Measured]) {
        let mut sums: Vec<(&str, Duration, Duration)> = Vec::new();
        for one in measured {
            match sums.iter_mut().find(|(name, ..)| *name == one.name) {
                Some((_, wall, processor)) => {
                    *wall += one.wall;
                    *processor += one.processor;
                }
                None => sums.push((&one.name, one.wall, one.processor)),
            }
        }
        for (name, wall, processor) in sums {
            match self.0.iter_mut().find(|(other, _)| other == name) {
                Some((_, all)) => all.push((wall, processor)),
                None => self.0.push((name.to_owned(), vec![(wall, processor)])),
            }
        }
    }

    /// A row for each name, `GROUP: WAY`: the medians, the fastest and the slowest run, and the ratio to the first way of the
    /// group.
    pub fn rows(&self) -> Vec<Vec<String>> {
        let mut rows = vec![
            [
                "what",
                "seconds",
                "from",
                "to",
                "of processor",
                "ratio",
                "runs",
            ]
            .map(String::from)
            .to_vec(),
        ];
        let group = |name: &str| name.split(": ").next().unwrap_or_default().to_owned();
        for (name, runs) in &self.0 {
            let walls: Vec<Duration> = runs.iter().map(|run| run.0).collect();
            let processors: Vec<Duration> = runs.iter().map(|run| run.1).collect();
            let first = self.0.iter().find(|(other, _)| group(other) == group(name));
            let base = first.map(|(_, runs)| median(runs.iter().map(|run| run.0).collect()));
            let own = median(walls.clone());
            let ratio = base
                .filter(|base| !base.is_zero())
                .map(|base| own.as_secs_f64() / base.as_secs_f64());
            let seconds = |duration: Duration| format!("{:.1}", duration.as_secs_f64());
            rows.push(vec![
                name.clone(),
                seconds(own),
                seconds(walls.iter().min().copied().unwrap_or_default()),
                seconds(walls.iter().max().copied().unwrap_or_default()),
                seconds(median(processors)),
                ratio.map(|ratio| format!("{ratio:.3}")).unwrap_or_default(),
                runs.len().to_string(),
            ]);
        }
        rows
    }
}

/// The middle one, or the lower of the two.
fn median(mut all: Vec<Duration>) -> Duration {
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
            processor: Duration::from_secs(1),
        }
    }

    #[test]
    fn ratios_are_those_of_medians_to_the_first_way_of_a_group() {
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
                "1.0",
                "1.000",
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
                "2.0",
                "0.400",
                "3"
            ]
        );
        assert_eq!(rows[3][5], "1.000");
    }
}
