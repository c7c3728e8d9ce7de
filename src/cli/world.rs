//! The environment of a command: the machine and the output streams. Tests replace it.

use std::{collections::BTreeMap, io::Write, sync::Arc};

use crate::{
    host::{Host, Http},
    model::secret::{Hiding, Secret, Secrets},
    report::{Drawn, Style},
};

/// The environment of a command.
pub struct World<'w> {
    /// The machine.
    pub host: Host,
    /// Effective user id 0.
    pub root: bool,
    /// Environment variables.
    pub vars: BTreeMap<String, String>,
    /// The secrets that this process knows by now; every way out hides them.
    pub secrets: Secrets,
    /// Where documents go: data.
    pub out: Sink<'w>,
    /// Where messages for people go.
    pub err: Sink<'w>,
    pub out_terminal: bool,
    pub err_terminal: bool,
    /// Columns of a line in `out`, [`UNWRAPPED`](crate::report::UNWRAPPED) if lines are not wrapped.
    pub out_width: usize,
    /// The same in `err`.
    pub err_width: usize,
    /// The running program, for the resume unit.
    pub exe: camino::Utf8PathBuf,
    /// This command, as it is shown to others who find the run lock taken.
    pub command: String,
    /// The network behind a proxy that the configuration names, with what is reached without it.
    pub proxied: Proxied,
    /// Opens a second handle for messages, for the thread that reports a run in progress.
    pub talk: Talk,
    /// The progress bars on the terminal, for the log that writes there, too.
    pub drawn: Drawn,
}

/// Where a command writes: nothing gets there with a secret in it.
pub type Sink<'w> = Hiding<&'w mut (dyn Write + Send)>;

/// See [`World::proxied`].
pub type Proxied = Arc<dyn Fn(&Secret, Option<&str>) -> Arc<dyn Http> + Send + Sync>;

/// See [`World::talk`].
pub type Talk = Arc<dyn Fn() -> Box<dyn Write + Send> + Send + Sync>;

impl World<'_> {
    /// Colour on standard error: a terminal, and `NO_COLOR` unset or empty (<https://no-color.org>).
    #[must_use]
    pub fn err_style(&self) -> Style {
        Style::new(self.err_terminal && self.wants_colour()).columns(self.err_width)
    }

    /// Colour on standard output.
    #[must_use]
    pub fn out_style(&self) -> Style {
        Style::new(self.out_terminal && self.wants_colour()).columns(self.out_width)
    }

    fn wants_colour(&self) -> bool {
        self.vars.get("NO_COLOR").is_none_or(String::is_empty)
            && self.vars.get("TERM").is_none_or(|term| term != "dumb")
    }
}
