//! The interface of errors that reach the user.

use crate::exit::Exit;

/// An error that reaches the user. `main` prints it once, with its causes and its hint.
pub trait Report: std::error::Error + Send + Sync + 'static {
    /// The exit status of this error.
    fn exit(&self) -> Exit;
    /// A stable identifier for scripts, for example `package-lock-timeout`.
    fn reason(&self) -> &'static str;
    /// The remedy, without the prefix `hint:`.
    fn hint(&self) -> Option<String>;
    /// Whether the cause is transient (a mirror that returns 503, a slow network), so that a retry
    /// may succeed.
    fn is_retryable(&self) -> bool {
        false
    }
    /// The individual errors if this is a list. Each is printed with its own hint.
    fn parts(&self) -> Vec<&dyn Report> {
        Vec::new()
    }
}

/// Formats optional additional text, to be appended below the line of an error.
pub fn attached(text: &Option<String>) -> String {
    text.as_ref()
        .map(|text| format!("\n{text}"))
        .unwrap_or_default()
}

/// Formats an error and its causes on one line, for use within a sentence.
pub fn one_line(error: &dyn std::error::Error) -> String {
    std::iter::once(error.to_string())
        .chain(causes(error))
        .collect::<Vec<_>>()
        .join(": ")
}

/// Returns the chain of causes of an error, outermost first, without the error itself.
pub fn causes(error: &dyn std::error::Error) -> Vec<String> {
    std::iter::successors(error.source(), |cause| cause.source())
        .map(ToString::to_string)
        .collect()
}
