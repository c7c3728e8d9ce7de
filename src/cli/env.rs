//! The environment and the console of a command. Tests replace both.

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

/// The immutable environment of a command.
pub struct Env {
    /// Whether the effective user ID is 0.
    pub root: bool,
    /// Environment variables.
    pub vars: BTreeMap<String, String>,
    /// The secrets known so far. All outputs hide them.
    pub secrets: Secrets,
    /// Path of the running binary, for the units that run it.
    pub exe: Utf8PathBuf,
    /// The subcommand, which `status` shows while it runs.
    pub command: String,
    /// Creates an HTTP client for a configured proxy and its exceptions.
    pub proxied: Proxied,
}

/// The outputs of a command.
pub struct Console<'w> {
    /// Standard output, for documents.
    pub out: Sink<'w>,
    /// Standard error, for messages.
    pub err: Sink<'w>,
    pub out_terminal: bool,
    pub err_terminal: bool,
    /// Whether terminals get colors, see [`Env::wants_colour`].
    pub colour: bool,
    /// Line width of `out` in columns, [`UNWRAPPED`](crate::report::UNWRAPPED) if lines are not wrapped.
    pub out_width: usize,
    /// Line width of `err` in columns.
    pub err_width: usize,
    /// Opens another handle of standard error, for the event thread, which prints the progress of a run.
    pub talk: StderrFactory,
    /// The progress bars on the terminal, shared with the log that writes to the same terminal.
    pub drawn: Drawn,
}

/// An output that hides secrets.
pub type Sink<'w> = Hiding<&'w mut (dyn Write + Send)>;

/// See [`Env::proxied`].
pub type Proxied = Arc<dyn Fn(&Secret, Option<&str>) -> Arc<dyn Http> + Send + Sync>;

/// See [`Console::talk`].
pub type StderrFactory = Arc<dyn Fn() -> Box<dyn Write + Send> + Send + Sync>;

impl Env {
    /// Checks that the user is root, and that the state directory is writable only by root, because `uninstall` restores files
    /// from it.
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
            &format!("failed to {what}: root is required"),
            Some("run the command again with `sudo`"),
        ))
    }

    /// Returns whether terminals get colors: `NO_COLOR` is unset or empty (<https://no-color.org>), and `TERM` is not `dumb`.
    pub fn wants_colour(vars: &BTreeMap<String, String>) -> bool {
        vars.get("NO_COLOR").is_none_or(String::is_empty)
            && vars.get("TERM").is_none_or(|term| term != "dumb")
    }
}

impl Console<'_> {
    /// Returns the style of standard error.
    pub fn err_style(&self) -> Style {
        Style::new(self.err_terminal && self.colour).columns(self.err_width)
    }

    /// Returns the style of standard output.
    pub fn out_style(&self) -> Style {
        Style::new(self.out_terminal && self.colour).columns(self.out_width)
    }

    /// Prints warnings to standard error, so that standard output holds only the document.
    pub fn warn(&mut self, warnings: &[String]) {
        let style = self.err_style();
        for warning in warnings {
            // Standard error may be closed. The documents of `check` and `plan` also contain the warnings.
            let _ = writeln!(self.err, "{}", style.hanging("warning: ", warning));
        }
    }

    /// Returns the viewer of a run in progress: progress bars on a terminal, or plain lines.
    pub(super) fn viewer(&self, detail: args::DetailArgs) -> Box<dyn Subscriber> {
        let style = self.err_style().verbose(detail.verbose);
        match self.err_terminal {
            true => Box::new(Terminal::new(style, &self.drawn)),
            false => Box::new(Plain::new((self.talk)(), style)),
        }
    }

    /// Prints the report of a run to standard output if a format is given, and the causes and hints to standard error. The run
    /// is finished, so write errors do not change its exit code.
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
        // Standard error is the last resort. If it is closed, the message is lost.
        let _ = human::troubles(&mut self.err, report, style);
    }

    /// Prints a message of the engine after the last event.
    pub(super) fn say(&mut self, message: Message<'_>) {
        match message {
            Message::Note(text) => self.note(text),
            Message::Warning(text) => self.warn(&[text.to_owned()]),
        }
    }

    /// Prints commands to run next to standard error, because standard output holds only the document.
    pub(super) fn next(&mut self, why: &str, commands: &[String]) {
        if commands.is_empty() {
            return;
        }
        let why = self.err_style().hanging("", why);
        // The output is complete without these commands.
        let _ = writeln!(self.err, "\n{why}\n");
        for command in commands {
            let _ = writeln!(self.err, "    {command}");
        }
    }

    /// Prints a note before the first event or after the last one.
    pub fn note(&mut self, text: &str) {
        let text = self.err_style().hanging("note: ", text);
        // Standard error is the last resort. If it is closed, the message is lost.
        let _ = writeln!(self.err, "{text}");
    }
}
