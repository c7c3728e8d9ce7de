//! What to write instead of a value that does not fit its key.

use toml::Value;

use super::fits;
use crate::{config::keys, model::text::nearest};

/// The hint for a value that was refused with these words.
pub(super) fn for_value(path: &[String], value: &Value, why: &str) -> Option<String> {
    let takes = |other: Value| fits(path, &other).is_ok();
    let is_list = matches!(value, Value::Array(_));
    if let Some(variant) = variant(why) {
        return Some(format!("did you mean `{variant}`?"));
    }
    if !is_list && takes(Value::Array(Vec::new())) {
        return Some(
            "write a list: its values in brackets, text in quotes, such as `[\"a\", \"b\"]`"
                .to_owned(),
        );
    }
    if takes(Value::Boolean(true)) {
        return Some("write `true` or `false`, without quotes".to_owned());
    }
    // A frequent mistake: a version without quotes is a number in TOML.
    let is_number = |one: &Value| matches!(one, Value::Float(_));
    let holds_number = match value {
        Value::Array(items) => items.iter().any(is_number),
        other => is_number(other),
    };
    holds_number
        .then(|| "write versions in quotes: without them TOML drops trailing zeros".to_owned())
}

/// The one of the values that the parser names as expected which is most like the refused one.
fn variant(why: &str) -> Option<&str> {
    let (name, expected) = why.strip_prefix("unknown variant `")?.split_once('`')?;
    nearest(name, expected.split('`').skip(1).step_by(2))
}

/// The key that a name means in which `-` stands in the place of a dot: `_` and `__` of a variable are easily confused.
pub(super) fn with_a_dot(name: &str) -> Option<String> {
    let known = keys::all();
    (name.match_indices('-'))
        .map(|(at, _)| format!("{}.{}", &name[..at], &name[at + 1..]))
        .find(|key| known.contains(key))
}
