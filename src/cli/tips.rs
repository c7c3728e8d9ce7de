//! Tips in usage errors: only commands and options that exist, and never a command with more effect than the user typed.

use clap::{
    builder::StyledStr,
    error::{ContextKind, ContextValue, Error, ErrorKind},
};
use strsim::damerau_levenshtein;

/// Command names of other programs, with ours.
const COMMANDS: [(&str, &str); 8] = [
    ("apply", "gpu-bootstrap install"),
    ("detect", "gpu-bootstrap facts"),
    ("diff", "gpu-bootstrap plan"),
    ("doctor", "gpu-bootstrap check"),
    ("dry-run", "gpu-bootstrap plan"),
    ("remove", "gpu-bootstrap uninstall"),
    ("validate", "gpu-bootstrap check --validate"),
    ("version", "gpu-bootstrap --version"),
];

/// Options of other programs, with ours.
const OPTIONS: [(&str, &str); 2] = [
    ("--dry-run", "gpu-bootstrap plan"),
    ("--json", "--format json"),
];

/// Corrects the tips of an error.
pub(super) fn corrected(mut error: Error) -> Error {
    let (typed, known) = match error.kind() {
        ErrorKind::InvalidSubcommand => (ContextKind::InvalidSubcommand, &COMMANDS[..]),
        ErrorKind::UnknownArgument => (ContextKind::InvalidArg, &OPTIONS[..]),
        _ => return error,
    };
    let Some(ContextValue::String(typed)) = error.get(typed).cloned() else {
        return error;
    };
    // These tips propose to pass an unknown option as a value, or an option of another command.
    error.remove(ContextKind::Suggested);
    if let Some((_, ours)) = known.iter().find(|(other, _)| *other == typed) {
        error.remove(ContextKind::SuggestedSubcommand);
        error.remove(ContextKind::SuggestedArg);
        let tip = ContextValue::StyledStrs(vec![StyledStr::from(format!("use `{ours}`"))]);
        error.insert(ContextKind::Suggested, tip);
    } else if let Some(ContextValue::Strings(similar)) =
        error.get(ContextKind::SuggestedSubcommand).cloned()
    {
        let nearest = similar
            .into_iter()
            .min_by_key(|one| damerau_levenshtein(one, &typed));
        if let Some(nearest) = nearest {
            error.insert(
                ContextKind::SuggestedSubcommand,
                ContextValue::String(nearest),
            );
        }
    }
    error
}
