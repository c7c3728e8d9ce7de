//! The steps of a method, and its duration on a machine with more CPUs: the compilation is divided by the CPUs, and
//! everything else takes as long as measured. That is an upper limit, because other steps also use several CPUs.

use std::time::Duration;

use anyhow::{Context, Result};
use serde::Deserialize;

use super::seconds;

/// The start of the description of a step that compiles (`Change::BuildModule` of gpu-bootstrap).
const COMPILES: &str = "build kernel module";

/// The steps of a method, from the documents of `files/method-time.sh`.
#[derive(Clone, Debug)]
pub struct Timing {
    spans: Vec<Span>,
    /// Actions of the package manager, within the steps.
    packages: Vec<Action>,
    /// See [`Timing::ready`], in seconds.
    ready: f64,
}

/// A document of `status --timing --format json`, or with the actions of the package manager.
#[derive(Deserialize)]
struct Document {
    timing: Option<Spans>,
    packages: Option<Vec<Action>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Spans {
    spans: Vec<Span>,
    #[serde(default)]
    seconds: f64,
    /// The seconds until the node was ready. Only gpu-bootstrap prints them.
    needed_seconds: Option<f64>,
    /// Whether it prepared an image, so that no node became ready.
    #[serde(default)]
    image: bool,
}

#[derive(Clone, Debug, Deserialize)]
struct Action {
    seconds: f64,
    what: String,
}

/// A step. Steps may overlap.
#[derive(Clone, Debug, Deserialize)]
struct Span {
    /// Seconds since the start of the method.
    begins: f64,
    seconds: f64,
    what: String,
    /// Whether it is on the critical path.
    #[serde(default)]
    critical: bool,
}

impl Span {
    fn ends(&self) -> f64 {
        self.begins + self.seconds
    }

    fn compiles(&self) -> bool {
        self.what.starts_with(COMPILES)
    }
}

impl Timing {
    /// Reads the documents.
    pub fn read(text: &str) -> Result<Timing> {
        let (mut timing, mut packages) = (None, Vec::new());
        for document in serde_json::Deserializer::from_str(text).into_iter::<Document>() {
            let document = document.context("these are not documents of `method-time`")?;
            timing = document.timing.or(timing);
            packages.extend(document.packages.into_iter().flatten());
        }
        let timing = timing.context("`method-time` printed no steps")?;
        let needed = timing.needed_seconds.filter(|_| !timing.image);
        let ready = needed.map_or(0.0, |needed| timing.seconds - needed);
        let mut spans = timing.spans;
        spans.sort_by(|one, other| one.begins.total_cmp(&other.begins));
        packages.sort_by(|one, other| other.seconds.total_cmp(&one.seconds));
        Ok(Timing {
            spans,
            packages,
            ready,
        })
    }

    /// The time at the end of the method in which the node was ready, and only work for the next boot was left.
    pub fn ready(&self) -> Duration {
        Duration::from_secs_f64(self.ready.max(0.0))
    }

    /// Start, duration and description of the steps that take at least this many seconds, those on the critical path in
    /// bold, and of the actions of the package manager.
    pub fn steps(&self, shortest: f64) -> Vec<[String; 3]> {
        let steps = self.spans.iter().map(|span| {
            let mark = if span.critical { "**" } else { "" };
            let what = format!("{mark}{}{mark}", span.what);
            (
                span.seconds,
                [seconds(span.begins), seconds(span.seconds), what],
            )
        });
        let actions = self.packages.iter().map(|action| {
            let what = format!("of these, {}", action.what);
            (
                action.seconds,
                [String::new(), seconds(action.seconds), what],
            )
        });
        let long = |(taken, row): (f64, [String; 3])| (taken >= shortest).then_some(row);
        steps.chain(actions).filter_map(long).collect()
    }

    /// Whether a step compiles.
    pub fn compiles(&self) -> bool {
        self.spans.iter().any(Span::compiles)
    }

    /// Seconds by which the method becomes shorter if compilation is faster by this factor. A step starts the same time
    /// after the last end of the steps that had ended before it, as when it was measured. The time after the last step
    /// does not change.
    pub fn saved(&self, factor: f64) -> f64 {
        let mut ends: Vec<f64> = Vec::new();
        for span in &self.spans {
            let earlier =
                || (self.spans.iter().zip(&ends)).filter(|(other, _)| other.ends() <= span.begins);
            let measured = earlier().fold(0.0, |last: f64, (other, _)| last.max(other.ends()));
            let computed = earlier().fold(0.0, |last: f64, (_, end)| last.max(*end));
            let seconds = match span.compiles() {
                true => span.seconds / factor,
                false => span.seconds,
            };
            ends.push(computed + span.begins - measured + seconds);
        }
        let measured = self
            .spans
            .iter()
            .fold(0.0, |last: f64, span| last.max(span.ends()));
        let computed = ends.into_iter().fold(0.0, f64::max);
        (measured - computed).max(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timing(spans: &[(f64, f64, &str)]) -> Timing {
        let spans: Vec<_> = (spans.iter())
            .map(|(begins, seconds, what)| {
                serde_json::json!({ "begins": begins, "seconds": seconds, "what": what, "steps": [], "end": "done", "critical": true })
            })
            .collect();
        let document =
            serde_json::json!({ "schema": 1, "timing": { "seconds": 1.0, "spans": spans } });
        let packages =
            r#"{"packages":[{"what":"configure a","seconds":1},{"what":"unpack","seconds":9}]}"#;
        Timing::read(&format!("{document}\n{packages}")).unwrap()
    }

    const BUILD: &str = "build kernel module `nvidia-current` for 6.1.0";

    #[test]
    fn only_compilation_is_divided() {
        let alone = timing(&[
            (0.0, 20.0, "install `a`"),
            (21.0, 80.0, BUILD),
            (102.0, 3.0, "probe"),
        ]);
        assert!((alone.saved(4.0) - 60.0).abs() < 1e-9);
        assert!((alone.saved(1.0)).abs() < 1e-9);
        assert!(alone.compiles());
        assert_eq!(
            alone.steps(2.0),
            [
                ["0.0", "20", "**install `a`**"],
                ["21", "80", &format!("**{BUILD}**")],
                ["102", "3.0", "**probe**"],
                ["", "9.0", "of these, unpack"],
            ]
        );
        let none = timing(&[(0.0, 20.0, "install `a`")]);
        assert!(!none.compiles() && none.saved(32.0).abs() < 1e-9);
    }

    /// Docker's packages take 30 s in parallel with the compiler, and then determine when the next step starts.
    #[test]
    fn parallel_steps_limit_the_gain() {
        let both = timing(&[
            (0.0, 80.0, BUILD),
            (0.0, 30.0, "install `docker`"),
            (80.0, 5.0, "probe"),
        ]);
        assert!((both.saved(2.0) - 40.0).abs() < 1e-9);
        assert!((both.saved(32.0) - 50.0).abs() < 1e-9);
    }

    #[test]
    fn other_documents_are_rejected() {
        for text in ["", "{}", r#"{"packages":[]}"#] {
            assert!(Timing::read(text).is_err(), "{text}");
        }
    }
}
