//! What a command is handed beside the machine: who runs it, and where it speaks. Tests replace both.

use std::{collections::BTreeMap, io::Write, sync::Arc};

use camino::Utf8PathBuf;

use super::{Failure, args, print};
use crate::{
    engine::{Message, RunReport},
    error::causes,
    event::Subscriber,
    exit::Exit,
    host::{Host, Http, trusted::refuse_foreign},
    journal,
    model::secret::{Hiding, Secret, Secrets},
    report::{Drawn, Plain, Style, Terminal, document, human},
};

/// Who runs a command, and how. It never changes.
pub struct Env {
    /// Effective user id 0.
    pub root: bool,
    /// Environment variables.
    pub vars: BTreeMap<String, String>,
    /// The secrets that this process knows by now; every way out hides them.
    pub secrets: Secrets,
    /// The running program, for the resume unit.
    pub exe: Utf8PathBuf,
    /// This command, as it is shown to others who find the run lock taken.
    pub command: String,
    /// The network behind a proxy that the configuration names, with what is reached without it.
    pub proxied: Proxied,
}

/// Where a command speaks.
pub struct Console<'w> {
    /// Where documents go: data.
    pub out: Sink<'w>,
    /// Where messages for people go.
    pub err: Sink<'w>,
    pub out_terminal: bool,
    pub err_terminal: bool,
    /// Whether terminals get colours: `NO_COLOR` is unset or empty (<https://no-color.org>).
    pub colour: bool,
    /// Columns of a line in `out`, [`UNWRAPPED`](crate::report::UNWRAPPED) if lines are not wrapped.
    pub out_width: usize,
    /// The same in `err`.
    pub err_width: usize,
    /// Opens a second handle for messages, for the thread that reports a run in progress.
    pub talk: Talk,
    /// The progress bars on the terminal, for the log that writes there, too.
    pub drawn: Drawn,
}

/// Where a command writes: nothing gets there with a secret in it.
pub type Sink<'w> = Hiding<&'w mut (dyn Write + Send)>;

/// See [`Env::proxied`].
pub type Proxied = Arc<dyn Fn(&Secret, Option<&str>) -> Arc<dyn Http> + Send + Sync>;

/// See [`Console::talk`].
pub type Talk = Arc<dyn Fn() -> Box<dyn Write + Send> + Send + Sync>;

impl Env {
    /// Refuses a command that needs root, for other users, and a state folder that others than root may
    /// change: undoing restores what is in it.
    pub(super) fn only_root(&self, host: &Host, what: &str) -> Result<(), Failure> {
        if self.root {
            return refuse_foreign(&*host.files, &journal::path()).map_err(|error| {
                let reason = error.reason().unwrap_or("state-unreadable");
                let hint = error.hint();
                let message = format!("failed to {what}");
                Failure::caused(Exit::Blocked, reason, &message, error, hint.as_deref())
            });
        }
        Err(Failure::new(
            Exit::NotPermitted,
            "not-root",
            &format!("failed to {what}: only root may change the machine"),
            Some("run it again with `sudo`"),
        ))
    }

    /// The environment variables, as the settings read them.
    pub(super) fn pairs(&self) -> Vec<(String, String)> {
        let pair = |(key, value): (&String, &String)| (key.clone(), value.clone());
        self.vars.iter().map(pair).collect()
    }

    /// Whether terminals get colours.
    #[must_use]
    pub fn wants_colour(vars: &BTreeMap<String, String>) -> bool {
        vars.get("NO_COLOR").is_none_or(String::is_empty)
            && vars.get("TERM").is_none_or(|term| term != "dumb")
    }
}

impl Console<'_> {
    /// The style of standard error.
    #[must_use]
    pub fn err_style(&self) -> Style {
        Style::new(self.err_terminal && self.colour).columns(self.err_width)
    }

    /// The style of standard output.
    #[must_use]
    pub fn out_style(&self) -> Style {
        Style::new(self.out_terminal && self.colour).columns(self.out_width)
    }

    /// Prints warnings to standard error, so that standard output holds only the document.
    pub fn warn(&mut self, warnings: &[String]) {
        for warning in warnings {
            // Standard error may be closed. The documents of `check` and `plan` have the warnings, too.
            let _ = writeln!(self.err, "warning: {warning}");
        }
    }

    /// Shows a run in progress to a person or a log.
    pub(super) fn viewer(&self, detail: args::DetailArgs) -> Box<dyn Subscriber> {
        let style = self.err_style().verbose(detail.verbose);
        match self.err_terminal {
            true => Box::new(Terminal::new(style, &self.drawn)),
            false => Box::new(Plain::new((self.talk)(), style)),
        }
    }

    /// Prints what a run did, in this format if in any, and its causes and hints as talk. It is done, so that its exit
    /// status counts, whoever reads this or not.
    pub(super) fn tell(
        &mut self,
        report: &RunReport,
        format: Option<args::OutputFormat>,
        detail: args::DetailArgs,
    ) {
        let style = self.out_style().verbose(detail.verbose);
        let told = match format {
            None => Ok(()),
            Some(args::OutputFormat::Json) => {
                print::json(&mut self.out, &document::run(report, None))
            }
            Some(args::OutputFormat::Human) => {
                print::show(&mut self.out, |to| human::run(to, report, style))
            }
        };
        if let Err(failure) = told {
            let error = failure.report();
            self.note(&format!("{error}: {}", causes(error).join(": ")));
        }
        let style = self.err_style();
        // Standard error is the last resort: if it is gone there is nobody to tell.
        let _ = human::troubles(&mut self.err, report, style);
    }

    /// A message of the engine after the last event.
    pub(super) fn say(&mut self, message: Message<'_>) {
        match message {
            Message::Note(text) => self.note(text),
            Message::Warning(text) => self.warn(&[text.to_owned()]),
        }
    }

    /// Talk before the first event and after the last one.
    pub fn note(&mut self, text: &str) {
        // Standard error is the last resort: if it is gone there is nobody to tell.
        let _ = writeln!(self.err, "note: {text}");
    }
}
