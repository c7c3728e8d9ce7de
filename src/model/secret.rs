//! A secret type that is never printed, and the only code that removes secrets from the output of the process.
//!
//! Every sink (journal, events, recordings, standard output and error, the log) uses the [`Secrets`] of the run, or
//! writes through [`Hiding`].

use std::borrow::Cow;
use std::io::{self, Write};
use std::ops::Range;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use percent_encoding::percent_decode_str;
use serde::{Deserialize, Serializer};

use super::{text::without_controls, token::TokenSource};

/// The replacement for a secret.
const HIDDEN: &str = "***";

/// The minimum length of a hidden value, in bytes. Shorter values also occur in harmless words and paths, and the journal
/// rejects changes whose paths contain a secret.
const SHORTEST: usize = 6;

/// Names of keys, flags and variables that have a secret value.
pub const NAMES: [&str; 14] = [
    "password",
    "passwd",
    "passphrase",
    "token",
    "secret",
    "secret_key",
    "secret-key",
    "api_key",
    "api-key",
    "apikey",
    "private-key",
    "certificate-key",
    "credential",
    "credentials",
];

/// Like [`NAMES`], but not after a letter or digit, because harmless words such as `oauth` end with these names. In
/// registry credentials, `auth` is the Base64 of user and password.
const WHOLE_NAMES: [&str; 1] = ["auth"];

/// Returns whether the value of a key with this name is a secret, such as `token` or `join-token`.
pub fn is_secret_name(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    NAMES.iter().chain(&WHOLE_NAMES).any(|secret| {
        name.strip_suffix(secret)
            .is_some_and(|before| before.is_empty() || before.ends_with(['-', '_']))
    })
}

/// A secret. Only [`Secret::expose`] returns its value; `Debug` hides it, and `Display` and serialization do not
/// exist.
#[derive(Clone, Deserialize, PartialEq, Eq)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// Wraps a value.
    pub fn new(value: impl Into<String>) -> Self {
        Self(value.into())
    }

    /// Returns the value. Callers may only pass it to the stdin or environment of a child process, a connection, or a
    /// file with mode 0600.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

/// Serializes whether there is a secret, without its value.
///
/// # Errors
/// If the serializer fails.
pub fn hidden<S: Serializer>(secret: &Option<Secret>, to: S) -> Result<S::Ok, S::Error> {
    match secret {
        Some(_) => to.serialize_some("[secret]"),
        None => to.serialize_none(),
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("[secret]")
    }
}

/// The known secrets of a run. Clones share them, so that a sink that was opened before the configuration was read
/// also hides the secrets of the configuration.
#[derive(Clone, Default)]
pub struct Secrets(Arc<RwLock<Vec<String>>>);

impl Secrets {
    /// Hides each line of this value from now on, unless the line is shorter than `SHORTEST`. In a URL, only the password
    /// is secret, separately and together with its user, because user names are often common words.
    pub fn learn(&self, secret: &Secret) {
        let parts = secret_parts(secret.expose());
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        for line in parts.iter().flat_map(|part| part.lines()).map(str::trim) {
            // JSON escapes quotes, backslashes and control characters.
            let json = serde_json::Value::from(line).to_string();
            for form in [line, json.trim_matches('"')] {
                if form.len() >= SHORTEST && !known.iter().any(|other| other == form) {
                    known.push(form.to_owned());
                }
            }
        }
        // Replace longer secrets first, because a secret may contain another one.
        known.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
    }

    /// Returns whether the text contains a secret of this run.
    pub fn are_in(&self, text: &str) -> bool {
        self.known().iter().any(|secret| text.contains(secret))
    }

    /// Returns the text without the secrets of this run, and without the credentials of any URL. Works for plain text
    /// and JSON.
    pub fn hide<'t>(&self, text: &'t str) -> Cow<'t, str> {
        let mut shown = Cow::Borrowed(text);
        for secret in self.known().iter() {
            if shown.contains(secret) {
                shown = shown.replace(secret, HIDDEN).into();
            }
        }
        match without_logins(&shown) {
            Cow::Borrowed(_) => shown,
            Cow::Owned(hidden) => hidden.into(),
        }
    }

    fn known(&self) -> RwLockReadGuard<'_, Vec<String>> {
        // After a panic in another thread, the list is still consistent.
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "[{} secrets]", self.known().len())
    }
}

/// Returns the text with `***` instead of the user and password of every URL.
pub fn without_logins(text: &str) -> Cow<'_, str> {
    let mut shown = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (scheme, address) = rest.split_at(at + "://".len());
        shown.push_str(scheme);
        let login = login_before_host(address).map_or(0, str::len);
        if login > 0 {
            shown.push_str(HIDDEN);
        }
        rest = &address[login..];
    }
    if shown.is_empty() {
        return text.into();
    }
    shown.push_str(rest);
    if shown == text {
        text.into()
    } else {
        shown.into()
    }
}

/// Returns the text with `***` instead of the value of each line `NAME: VALUE` with the name of a secret. A package
/// manager prints a broken repository with all of its options in this form.
pub fn without_secret_lines(text: &str) -> Cow<'_, str> {
    let hidden = |line: &str| {
        let (name, value) = line.split_once(": ")?;
        let end = &line[line.trim_end().len()..];
        let is_secret = is_secret_name(name) && !value.trim().is_empty();
        is_secret.then(|| format!("{name}: {HIDDEN}{end}"))
    };
    if !text.lines().any(|line| hidden(line).is_some()) {
        return text.into();
    }
    let lines = text.split_inclusive('\n');
    let shown = lines.map(|line| hidden(line).unwrap_or_else(|| line.to_owned()));
    shown.collect::<String>().into()
}

/// Returns the text with `***` instead of each value that follows the name of a secret.
pub fn without_secret_values(text: &str) -> Cow<'_, str> {
    let values = secret_values(text);
    if values.is_empty() {
        return text.into();
    }
    let (mut shown, mut end) = (String::new(), 0);
    for value in values {
        if value.start >= end {
            shown.push_str(&text[end..value.start]);
            shown.push_str(HIDDEN);
            end = value.end;
        }
    }
    shown.push_str(&text[end..]);
    shown.into()
}

/// Returns the positions of values that follow the name of a secret, in order: `NAME = VALUE` and `NAME: VALUE`, quoted or not,
/// and the argument after a flag `--NAME`, in an array, a list, a command line or a `/proc` command line. In doubt, a
/// word is treated as a secret.
pub fn secret_values(text: &str) -> Vec<Range<usize>> {
    let lower = text.to_ascii_lowercase();
    let mut found: Vec<Range<usize>> = Vec::new();
    for name in NAMES.iter().chain(&WHOLE_NAMES) {
        for (at, _) in lower.match_indices(name) {
            let before = &lower[..at];
            let is_whole = !before.ends_with(|c: char| c.is_ascii_alphanumeric());
            if !WHOLE_NAMES.contains(name) || is_whole {
                found.extend(value_behind(&lower, before, at + name.len()));
            }
        }
    }
    found.sort_by_key(|value| (value.start, value.end));
    found.dedup();
    found
}

/// Returns the value after a name that ends at `end`.
fn value_behind(text: &str, before: &str, end: usize) -> Option<Range<usize>> {
    const QUOTES: [char; 2] = ['"', '\''];
    const BLANKS: [char; 2] = [' ', '\t'];
    let word = before
        .rsplit(|c: char| c.is_whitespace() || "\0,[('\"".contains(c))
        .next();
    let is_flag = word.is_some_and(|word| word.starts_with('-'));
    let after = text[end..].trim_start_matches(QUOTES);
    let is_quoted = after.len() < text.len() - end;
    let on_line = after.trim_start_matches(BLANKS);
    let value = if let Some(argument) = after.strip_prefix('\0') {
        // In a `/proc` command line, the value is the next argument.
        argument
    } else if let Some(value) = on_line.strip_prefix(['=', ':']) {
        value.trim_start_matches(BLANKS)
    } else if let Some(next) = after.strip_prefix(',').filter(|_| is_flag && is_quoted) {
        let next = next.trim_start();
        if !next.starts_with(QUOTES) {
            return None;
        }
        next
    } else if is_flag && after.starts_with(|c: char| c.is_whitespace()) {
        let next = after.trim_start_matches(|c: char| c.is_whitespace() || c == '\\');
        // The next item of a YAML list.
        next.strip_prefix("- ").unwrap_or(next)
    } else {
        return None;
    };
    // The names in a nested value are examined separately.
    if value.starts_with(['{', '[']) {
        return None;
    }
    let quote = value.chars().next().filter(|first| QUOTES.contains(first));
    let value = quote.map_or(value, |quote| &value[quote.len_utf8()..]);
    let start = text.len() - value.len();
    let mut after_backslash = false;
    let ends = |c: char| {
        let is_escaped = after_backslash;
        after_backslash = quote == Some('"') && c == '\\' && !is_escaped;
        match quote {
            Some(quote) => (c == quote && !is_escaped) || "\n\0".contains(c),
            None => c.is_whitespace() || ",}\"'\0".contains(c),
        }
    };
    let value = &value[..value.find(ends).unwrap_or(value.len())];
    // Not a secret: an empty value, `null`, `none`, a boolean, a token location, and after a flag the next flag, a variable or
    // a placeholder.
    let is_none = matches!(value, "" | "null" | "none" | "true" | "false");
    let is_other = is_flag && value.starts_with(['-', '$', '<']);
    if is_none || is_other || value.parse::<TokenSource>().is_ok() {
        return None;
    }
    Some(start..start + value.len())
}

/// Returns whether a URL in the text contains a user or password.
pub fn has_login(text: &str) -> bool {
    logins(text).next().is_some()
}

/// Returns the credentials of each URL in the text: the user, possibly with a password.
pub fn logins(text: &str) -> impl Iterator<Item = &str> {
    text.match_indices("://")
        .filter_map(|(at, mark)| login_before_host(&text[at + mark.len()..]))
}

/// Returns the credentials in the text after `://`. The authority ends at a path, a query or a fragment (RFC 3986,
/// 3.2), or at the end of the URL in its surrounding text.
fn login_before_host(address: &str) -> Option<&str> {
    let at = authority(address).rfind('@')?;
    Some(&address[..at])
}

fn authority(address: &str) -> &str {
    let end = address
        .find(|c: char| c.is_whitespace() || "/?#\"'`\\".contains(c))
        .unwrap_or(address.len());
    &address[..end]
}

/// Returns the secret parts of a value. For a URL these are the password, and the user with the password. Otherwise it is the
/// whole value.
fn secret_parts(value: &str) -> Vec<Cow<'_, str>> {
    let Some(address) = address_of(value) else {
        return vec![value.into()];
    };
    let Some(login) = login_of(address) else {
        return Vec::new();
    };
    match login.split_once(':') {
        Some((_, password)) if !password.is_empty() => {
            let decoded = percent_decode_str(password).decode_utf8_lossy();
            vec![login.into(), password.into(), decoded]
        }
        _ => Vec::new(),
    }
}

/// Returns the part after `://` if the whole value is a URL.
fn address_of(value: &str) -> Option<&str> {
    let (scheme, address) = value.split_once("://")?;
    let is_scheme = scheme
        .chars()
        .all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c));
    (is_scheme && !value.contains(char::is_whitespace)).then_some(address)
}

/// Returns the credentials of a URL. If the text before the first slash, `?` or `#` is neither credentials nor a host and
/// port, it is a part of a password that contains such a character unencoded. The credentials then end at the last `@`.
fn login_of(address: &str) -> Option<&str> {
    let host = authority(address);
    if host.contains('@') {
        return login_before_host(address);
    }
    let is_host = host.ends_with(']')
        || host
            .rsplit_once(':')
            .is_none_or(|(_, port)| port.bytes().all(|byte| byte.is_ascii_digit()));
    if is_host {
        return None;
    }
    let at = address.rfind('@')?;
    Some(&address[..at])
}

/// A writer that hides the secrets of a run and replaces control characters. It forwards complete lines, so that secrets are
/// found even if they are written in parts. [`Write::flush`] and dropping it forward the rest.
pub struct Hiding<W: Write> {
    to: W,
    secrets: Secrets,
    line: Vec<u8>,
}

impl<W: Write> Hiding<W> {
    /// Hides these secrets in everything that is written to the writer.
    pub fn new(to: W, secrets: &Secrets) -> Self {
        Self {
            to,
            secrets: secrets.clone(),
            line: Vec::new(),
        }
    }

    /// Returns the underlying writer, for output that the user requested unmodified.
    pub fn openly(&mut self) -> &mut W {
        &mut self.to
    }

    fn pass_on(&mut self, lines: &[u8]) -> io::Result<()> {
        let text = String::from_utf8_lossy(lines);
        let hidden = self.secrets.hide(&text);
        match (&hidden, without_controls(&hidden)) {
            (_, Some(clean)) => self.to.write_all(clean.as_bytes()),
            (Cow::Owned(hidden), None) => self.to.write_all(hidden.as_bytes()),
            (Cow::Borrowed(_), None) => self.to.write_all(lines),
        }
    }
}

impl<W: Write> Write for Hiding<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.line.extend_from_slice(bytes);
        if let Some(end) = bytes.iter().rposition(|byte| *byte == b'\n') {
            let rest = self.line.split_off(self.line.len() - bytes.len() + end + 1);
            let lines = std::mem::replace(&mut self.line, rest);
            self.pass_on(&lines)?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let rest = std::mem::take(&mut self.line);
        if !rest.is_empty() {
            self.pass_on(&rest)?;
        }
        self.to.flush()
    }
}

impl<W: Write> Drop for Hiding<W> {
    fn drop(&mut self) {
        // A failed write of the rest cannot be reported.
        let _ = self.flush();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_after_secret_names_are_hidden() {
        for (text, shown) in rows! {
            r#"{"log-opts":{"splunk-token":"SPLUNK-1"},"n":1}"#, r#"{"log-opts":{"splunk-token":"***"},"n":1}"#;
            r#"{"splunk-token":"ab\"cd\\","n":1}"#, r#"{"splunk-token":"***","n":1}"#;
            "auth = \"dXNlcjpw\"\nx = 1\n", "auth = \"***\"\nx = 1\n";
            "a: {password: hush, token: null}", "a: {password: ***, token: null}";
            "K3S_TOKEN=abc def", "K3S_TOKEN=*** def";
            "secret = 'two words' # x", "secret = '***' # x";
            r#"command = ["/opt/join", "--token", "abc"]"#, r#"command = ["/opt/join", "--token", "***"]"#;
            "[\n  \"--join-token\",\n  \"abc\",\n]", "[\n  \"--join-token\",\n  \"***\",\n]";
            "args:\n  - --token\n  - abc\n", "args:\n  - --token\n  - ***\n";
            "ExecStart=/usr/bin/k3s agent '--token' \\\n  'abc' --x", "ExecStart=/usr/bin/k3s agent '--token' \\\n  '***' --x";
            "kubeadm join --token abc 10.0.0.1", "kubeadm join --token *** 10.0.0.1";
            "k3s\0--token\0abc\0", "k3s\0--token\0***\0";
            "Größe: 1\ntoken: abc", "Größe: 1\ntoken: ***";
        } {
            assert_eq!(without_secret_values(text), shown);
        }
        for text in [
            "token = \"file:/run/token\"",
            "[\"--token\", \"--node\"]",
            "join --token $TOKEN --password <PASSWORD>",
            "[\"password\", \"token\"]",
            "oauth: x",
            "the token must be given",
            "--token-file /run/token",
        ] {
            assert_eq!(without_secret_values(text), text);
        }
    }

    fn knows(values: &[&str]) -> Secrets {
        let secrets = Secrets::default();
        for value in values {
            secrets.learn(&Secret::new(*value));
        }
        secrets
    }

    #[test]
    fn passwords_of_a_printed_repository_are_hidden() {
        let text = "Problem repository: [site]\nname: site\npassword: hush hush\nproxy_password: p\nusername: joe\n";
        let shown = "Problem repository: [site]\nname: site\npassword: ***\nproxy_password: ***\nusername: joe\n";
        assert_eq!(without_secret_lines(text), shown);
        assert_eq!(without_secret_lines(shown), shown);
        assert_eq!(without_secret_lines("password: p"), "password: ***");
        for text in ["password: \n", "a password: b\n", "Password wrong\n", ""] {
            assert_eq!(without_secret_lines(text), text);
        }
    }

    #[test]
    fn unknown_url_credentials_are_hidden() {
        for (text, shown) in rows! {
            "http://joe:s3cret@proxy:3128/x", "http://***@proxy:3128/x";
            "http://proxy:3128", "http://proxy:3128";
            "http://a@b@proxy", "http://***@proxy";
            "E: http://joe:s3cret@proxy:3128 said no", "E: http://***@proxy:3128 said no";
            "http://a/ then ssh://b@c", "http://a/ then ssh://***@c";
            "https://host?mail=a@b", "https://host?mail=a@b";
            "https://host#a@b", "https://host#a@b";
            "https://joe@host?mail=a@b", "https://***@host?mail=a@b";
            "{\"x\":\"http://a\\nb@c\"}", "{\"x\":\"http://a\\nb@c\"}";
        } {
            assert_eq!(without_logins(text), shown);
            assert_eq!(has_login(text), text != shown, "{text}");
        }
        for (text, holds) in [
            ("packages.proxy=http://joe:s3cret@proxy:3128", true),
            ("packages={proxy=\"http://joe@proxy\"}", true),
            ("packages.proxy=http://proxy:3128/a@b", false),
            ("node.label=joe@example.com", false),
        ] {
            assert_eq!(has_login(text), holds, "{text}");
        }
    }

    #[test]
    fn known_secrets_are_hidden_in_text_and_json() {
        let secrets = knows(&["abcdef.0123", "quo\"ted\\one", "abcdef.0123456", "short"]);
        assert_eq!(secrets.hide("join abcdef.0123456!"), "join ***!");
        let json = serde_json::to_string("a quo\"ted\\one").unwrap();
        assert_eq!(secrets.hide(&json), "\"a ***\"");
        assert!(matches!(
            secrets.hide("a short word"),
            Cow::Borrowed("a short word")
        ));
        assert!(secrets.are_in("abcdef.0123") && !secrets.are_in("abcdef"));
        assert!(!format!("{secrets:?}").contains("abcdef"));
    }

    #[test]
    fn only_credentials_of_urls_are_hidden() {
        let secrets = knows(&["http://joe:pa/ss@proxy:3128", "-----BEGIN\nMIIabc\n"]);
        assert_eq!(
            secrets.hide("http://joe:pa/ss@proxy:3128 at proxy:3128: MIIabc"),
            "http://***@proxy:3128 at proxy:3128: ***"
        );
        for address in [
            "http://proxy:3128",
            "http://[fd00::1]",
            "http://[fd00::1]:3128/a@b",
            "https://host?mail=a@b",
        ] {
            assert_eq!(knows(&[address]).hide(address), address);
        }
    }

    #[test]
    fn url_password_is_secret_but_user_is_not() {
        for (address, text, shown) in rows! {
            "http://docker@proxy:3128", "docker.io", "docker.io";
            "http://docker:@proxy:3128", "docker.io", "docker.io";
            "http://docker:s3cr%40et@proxy:3128/a@b", "docker.io s3cr%40et s3cr@et /a@b",
                "docker.io *** *** /a@b";
            "http://joe:pw@proxy", "Basic joe:pw, pw", "Basic ***, pw";
            "http://joe:s3/cret@proxy", "s3/cret", "***";
            "http://joe:s3?cret@proxy", "s3?cret", "***";
            "https://:s3cret@proxy", "s3cret", "***";
            "http://host:80/joe:s3cret@b", "joe:s3cret", "joe:s3cret";
        } {
            assert_eq!(knows(&[address]).hide(text), shown, "{address}");
        }
    }

    #[test]
    fn secret_names_are_recognized() {
        for name in [
            "token",
            "join-token",
            "K3S_TOKEN",
            "password",
            "credentials",
        ] {
            assert!(is_secret_name(name), "{name}");
        }
        for name in ["token-file", "key-url", "proxy", "tokens", "pretoken"] {
            assert!(!is_secret_name(name), "{name}");
        }
    }

    #[test]
    fn external_control_characters_are_replaced() {
        let secrets = Secrets::default();
        let mut text = Vec::new();
        let mut to = Hiding::new(&mut text, &secrets);
        let hostile =
            "\u{1b}[32mready\u{1b}[0m /run/x\u{1b}[2J\u{1b}]0;title\u{7}\u{9b}2J\r\u{7f}\tend\n";
        to.write_all(hostile.as_bytes()).unwrap();
        drop(to);
        let text = String::from_utf8(text).unwrap();
        let clean = "\u{fffd}[32mready\u{fffd}[0m /run/x\u{fffd}[2J\u{fffd}]0;title\u{fffd}\u{fffd}2J\u{fffd}\u{fffd}\tend\n";
        assert_eq!(text, clean);
        // Right-to-left override, line separator, zero width, a tag.
        let mut text = Vec::new();
        let hostile = "fail\u{202e}ssap\u{2028}gpu\u{200b}\u{feff}0\u{e0041} é\n";
        Hiding::new(&mut text, &secrets)
            .write_all(hostile.as_bytes())
            .unwrap();
        let clean = "fail\u{fffd}ssap\u{fffd}gpu\u{fffd}\u{fffd}0\u{fffd} é\n";
        assert_eq!(String::from_utf8(text).unwrap(), clean);
    }

    #[test]
    fn secret_written_in_parts_is_hidden() {
        let secrets = Secrets::default();
        let mut text = Vec::new();
        let mut to = Hiding::new(&mut text, &secrets);
        // Registered after the sink was opened.
        secrets.learn(&Secret::new("abcdef.0123"));
        for piece in ["one abc", "def.0123\ntwo ", "\u{e9} abcdef", ".0123"] {
            to.write_all(piece.as_bytes()).unwrap();
        }
        drop(to);
        assert_eq!(String::from_utf8(text).unwrap(), "one ***\ntwo \u{e9} ***");
    }
}
