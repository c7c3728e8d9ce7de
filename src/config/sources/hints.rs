//! Hints for values that are invalid for their key.

use toml::Value;

use super::fits;
use crate::{config::keys, model::text::nearest};

/// Returns the hint for a value that was rejected with this message.
pub(super) fn for_value(path: &[String], value: &Value, why: &str) -> Option<String> {
    let takes = |other: Value| fits(path, &other).is_ok();
    let is_list = matches!(value, Value::Array(_));
    if let Some(variant) = variant(why) {
        return Some(format!("did you mean `{variant}`?"));
    }
    if !is_list && takes(Value::Array(Vec::new())) {
        return Some(
            "use a list with its values in brackets and text in quotes, such as `[\"a\", \"b\"]`"
                .to_owned(),
        );
    }
    if takes(Value::Boolean(true)) {
        return Some("use `true` or `false`, without quotes".to_owned());
    }
    // A version without quotes is a frequent mistake: TOML parses it as a number.
    let is_number = |one: &Value| matches!(one, Value::Float(_));
    let holds_number = match value {
        Value::Array(items) => items.iter().any(is_number),
        other => is_number(other),
    };
    holds_number
        .then(|| "put versions in quotes, because TOML drops trailing zeros otherwise".to_owned())
}

/// Returns the variant in the parser message that is nearest to the rejected value.
fn variant(why: &str) -> Option<&str> {
    let (name, expected) = why.strip_prefix("unknown variant `")?.split_once('`')?;
    nearest(name, expected.split('`').skip(1).step_by(2))
}

/// Returns the existing key that results if one `-` of an invalid key is replaced by a dot. In an environment variable, `_`
/// becomes `-` and `__` becomes a dot, and these are easily confused.
pub(super) fn with_a_dot(name: &str) -> Option<String> {
    let known = keys::all();
    (name.match_indices('-'))
        .map(|(at, _)| format!("{}.{}", &name[..at], &name[at + 1..]))
        .find(|key| known.contains(key))
}
