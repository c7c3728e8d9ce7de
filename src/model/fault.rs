//! A problem with its remedy, as found by checks, steps and the probe.

/// A problem of the machine, and its remedy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The problem and its effect, with the compared values.
    pub why: String,
    /// The remedy, in the imperative. The command of a finding is derived from it.
    pub remedy: String,
}

impl Fault {
    /// Creates a fault.
    pub fn new(why: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            why: why.into(),
            remedy: remedy.into(),
        }
    }
}
