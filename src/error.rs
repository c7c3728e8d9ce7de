//! The interface of errors that reach the user.

use crate::exit::Exit;

/// An error that reaches the user. `main` prints it once, with its causes and its hint.
pub trait Report: std::error::Error + Send + Sync + 'static {
    /// The exit status of this error.
    fn exit(&self) -> Exit;
    /// A stable word for scripts, for example `package-lock-timeout`.
    fn reason(&self) -> &'static str;
    /// What to do next, without the word `hint:`.
    fn hint(&self) -> Option<String>;
    /// Whether the cause may pass without help (a mirror that answers 503, a network that is late),
    /// so that another attempt is worth while.
    fn passes(&self) -> bool {
        false
    }
    /// The errors that it consists of, if it is several: each is told with its own hint.
    fn parts(&self) -> Vec<&dyn Report> {
        Vec::new()
    }
}

/// More words of an error, below its own line.
#[must_use]
pub fn attached(text: &Option<String>) -> String {
    text.as_ref()
        .map(|text| format!("\n{text}"))
        .unwrap_or_default()
}

/// An error with its causes, on one line: for words in between.
#[must_use]
pub fn one_line(error: &dyn std::error::Error) -> String {
    std::iter::once(error.to_string())
        .chain(causes(error))
        .collect::<Vec<_>>()
        .join(": ")
}

/// The chain of causes of an error, outermost first, without the error itself.
#[must_use]
pub fn causes(error: &dyn std::error::Error) -> Vec<String> {
    std::iter::successors(error.source(), |cause| cause.source())
        .map(ToString::to_string)
        .collect()
}
