//! Secrets: a value that never prints, and the one place that hides secrets in everything that
//! leaves the process.
//!
//! Every sink (journal, events, recordings, standard output and error, the log) takes the
//! [`Secrets`] of the run, or writes through [`Hiding`].

use std::borrow::Cow;
use std::io::{self, Write};
use std::ops::Range;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use percent_encoding::percent_decode_str;
use serde::{Deserialize, Serializer};

use super::{text::without_controls, token::TokenSource};

/// What stands in the place of a secret.
const HIDDEN: &str = "***";

/// Shorter values are not searched for: they occur in words and paths that are no secrets, and a
/// journal without them could not be undone.
const SHORTEST: usize = 6;

/// Names whose value is a secret, in whatever syntax the value follows.
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

/// The same for names that also occur as the end of harmless words: `auth` of registries is Base64 of user and password.
const WHOLE_NAMES: [&str; 1] = ["auth"];

/// Whether the value of a key with this name is a secret: `token`, `join-token`.
#[must_use]
pub fn is_secret_name(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    NAMES.iter().chain(&WHOLE_NAMES).any(|secret| {
        name.strip_suffix(secret)
            .is_some_and(|before| before.is_empty() || before.ends_with(['-', '_']))
    })
}

/// A secret: readable on purpose through [`Secret::expose`], never through `Debug`, `Display` or
/// serialisation (it has none of the last two).
#[derive(Clone, Deserialize, PartialEq, Eq)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// Wraps a value.
    #[must_use]
    pub fn new(value: impl Into<String>) -> Self {
        Self(value.into())
    }

    /// The value itself. The caller may hand it to a child's stdin or environment, a connection,
    /// or a file with mode 0600, and to nothing else.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

/// For documents: whether there is a secret, and no more.
///
/// # Errors
/// Those of the document.
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

/// The secrets that a run knows. Clones share them, so that a sink that was opened before the
/// configuration was read hides what the configuration brought.
#[derive(Clone, Default)]
pub struct Secrets(Arc<RwLock<Vec<String>>>);

impl Secrets {
    /// From now on this value is hidden, and each of its lines. Of an address only a password is
    /// secret, alone and together with its user: the name of a user alone is a common word.
    pub fn learn(&self, secret: &Secret) {
        let parts = secret_parts(secret.expose());
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        for line in parts.iter().flat_map(|part| part.lines()).map(str::trim) {
            // JSON writes quotes, backslashes and control characters in another way.
            let json = serde_json::Value::from(line).to_string();
            for form in [line, json.trim_matches('"')] {
                if form.len() >= SHORTEST && !known.iter().any(|other| other == form) {
                    known.push(form.to_owned());
                }
            }
        }
        // A secret may contain another one.
        known.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
    }

    /// Whether a secret of this run stands in the text.
    #[must_use]
    pub fn are_in(&self, text: &str) -> bool {
        self.known().iter().any(|secret| text.contains(secret))
    }

    /// The text without the secrets of this run, and without the login of any address in it. Plain
    /// text and JSON both work.
    #[must_use]
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
        // The list is whole between two of its changes.
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "[{} secrets]", self.known().len())
    }
}

/// The text with `***` in the place of the user and password of every address in it.
#[must_use]
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

/// The text with `***` in the place of the value of each line `NAME: VALUE` whose name is that of a secret: so a package manager
/// describes a repository that it complains about, with all of its options.
#[must_use]
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

/// The text with `***` in the place of each value that follows the name of a secret.
#[must_use]
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

/// Returns the values that follow the name of a secret, in their order: `NAME = VALUE` and `NAME: VALUE`, quoted or not, and
/// the argument behind a flag `--NAME`, in an array, a list, a command line or one of `/proc`. In doubt a word counts.
#[must_use]
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

/// Returns the value behind a name that ends at `end`.
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
        // In a command line of `/proc` the value is the next argument.
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
        // The next item of a list in YAML.
        next.strip_prefix("- ").unwrap_or(next)
    } else {
        return None;
    };
    // The names in a nested value are examined on their own.
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
    // Empty, `null`, the place of a token, the next flag, a variable and a placeholder are no secrets.
    let is_none = matches!(value, "" | "null" | "none" | "true" | "false");
    let is_other = is_flag && value.starts_with(['-', '$', '<']);
    if is_none || is_other || value.parse::<TokenSource>().is_ok() {
        return None;
    }
    Some(start..start + value.len())
}

/// Whether an address in the text holds a user or password.
#[must_use]
pub fn has_login(text: &str) -> bool {
    logins(text).next().is_some()
}

/// The user, perhaps with a password, of each address in the text.
pub fn logins(text: &str) -> impl Iterator<Item = &str> {
    text.match_indices("://")
        .filter_map(|(at, mark)| login_before_host(&text[at + mark.len()..]))
}

/// The login of what comes after `://`. The authority ends where a path, a query or a fragment
/// begins (RFC 3986, 3.2), or the address itself in text around it.
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

/// What of a value is secret: the whole value, but of an address only the password.
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

/// What comes after `://` in a value that is an address as a whole.
fn address_of(value: &str) -> Option<&str> {
    let (scheme, address) = value.split_once("://")?;
    let is_scheme = scheme
        .chars()
        .all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c));
    (is_scheme && !value.contains(char::is_whitespace)).then_some(address)
}

/// The login of an address. Where no host and port stand before the path, a password that contains
/// a slash was not encoded.
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

/// A writer that hides the secrets of a run. It passes on whole lines, so that a secret which is
/// written in pieces is found; [`Write::flush`] and dropping it pass on the rest.
pub struct Hiding<W: Write> {
    to: W,
    secrets: Secrets,
    line: Vec<u8>,
}

impl<W: Write> Hiding<W> {
    /// Hides these secrets in all that goes to the writer.
    pub fn new(to: W, secrets: &Secrets) -> Self {
        Self {
            to,
            secrets: secrets.clone(),
            line: Vec::new(),
        }
    }

    /// The writer behind it, for what the user asked to see as it is.
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
        // There is nobody to tell if the rest cannot be written.
        let _ = self.flush();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_behind_names_of_secrets_are_hidden() {
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
    fn the_passwords_of_a_repository_that_is_described_are_hidden() {
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
    fn logins_of_addresses_are_hidden_without_being_known() {
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
    fn what_is_known_is_hidden_in_text_and_in_json() {
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
    fn of_an_address_only_the_login_is_secret_and_of_a_key_every_line() {
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
    fn the_password_of_an_address_is_secret_alone_and_the_user_is_not() {
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
    fn names_of_secrets() {
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
    fn control_characters_of_others_reach_no_terminal_and_no_log() {
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
        // Right-to-left override, line separator, no width, a tag.
        let mut text = Vec::new();
        let hostile = "fail\u{202e}ssap\u{2028}gpu\u{200b}\u{feff}0\u{e0041} é\n";
        Hiding::new(&mut text, &secrets)
            .write_all(hostile.as_bytes())
            .unwrap();
        let clean = "fail\u{fffd}ssap\u{fffd}gpu\u{fffd}\u{fffd}0\u{fffd} é\n";
        assert_eq!(String::from_utf8(text).unwrap(), clean);
    }

    #[test]
    fn a_secret_in_pieces_is_hidden_and_the_last_line_is_not_lost() {
        let secrets = Secrets::default();
        let mut text = Vec::new();
        let mut to = Hiding::new(&mut text, &secrets);
        // Learned after the sink was opened.
        secrets.learn(&Secret::new("abcdef.0123"));
        for piece in ["one abc", "def.0123\ntwo ", "\u{e9} abcdef", ".0123"] {
            to.write_all(piece.as_bytes()).unwrap();
        }
        drop(to);
        assert_eq!(String::from_utf8(text).unwrap(), "one ***\ntwo \u{e9} ***");
    }
}
