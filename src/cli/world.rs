//! What a command line runs in: the machine, and where it talks to. Tests give it another one.

use std::{collections::BTreeMap, io::Write, sync::Arc};

use crate::{
    host::{Host, Http},
    model::secret::Secret,
    report::{Drawn, Style},
};

/// The surroundings of a run.
pub struct World<'w> {
    /// The machine.
    pub host: Host,
    /// Effective user id 0.
    pub root: bool,
    /// Environment variables.
    pub vars: BTreeMap<String, String>,
    /// Where documents go: data.
    pub out: &'w mut (dyn Write + Send),
    /// Where talk goes.
    pub err: &'w mut (dyn Write + Send),
    /// `out` is a terminal.
    pub out_terminal: bool,
    /// `err` is a terminal.
    pub err_terminal: bool,
    /// The running program, for the unit that goes on after a reboot.
    pub exe: camino::Utf8PathBuf,
    /// This command in words, for others who find the run lock taken.
    pub command: String,
    /// The network behind a proxy that the configuration names.
    pub proxied: Proxied,
    /// Opens another way to where talk goes, for the thread that tells about a run under way.
    pub talk: Talk,
    /// What is drawn on the terminal, for the log that writes there too.
    pub drawn: Drawn,
}

/// See [`World::proxied`].
pub type Proxied = Arc<dyn Fn(&Secret) -> Arc<dyn Http> + Send + Sync>;

/// See [`World::talk`].
pub type Talk = Arc<dyn Fn() -> Box<dyn Write + Send> + Send + Sync>;

impl World<'_> {
    /// Colour on standard error: a terminal, and `NO_COLOR` unset or empty (<https://no-color.org>).
    #[must_use]
    pub fn err_style(&self) -> Style {
        Style::new(self.err_terminal && self.wants_colour())
    }

    /// Colour on standard output.
    #[must_use]
    pub fn out_style(&self) -> Style {
        Style::new(self.out_terminal && self.wants_colour())
    }

    fn wants_colour(&self) -> bool {
        self.vars.get("NO_COLOR").is_none_or(String::is_empty)
            && self.vars.get("TERM").is_none_or(|term| term != "dumb")
    }
}
