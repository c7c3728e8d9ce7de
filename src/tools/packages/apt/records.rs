//! apt files that consist of records of fields, `Name: value`: sources in deb822 format, and preferences.

/// A record: the number of its first line, starting at 1, and its fields with lower-case names.
pub(super) struct Record {
    pub(super) line: usize,
    fields: Vec<(String, String)>,
}

impl Record {
    /// Returns the value of a field, including its continuation lines, without line breaks. Empty if the record does not have
    /// the field.
    pub(super) fn field(&self, key: &str) -> &str {
        let found = self.fields.iter().find(|(name, _)| name == key);
        found.map_or("", |(_, value)| value.trim())
    }
}

/// Splits a text into records. An empty line ends a record, but a line of spaces continues the field. Source: apt,
/// `apt-pkg/tagfile.cc`, `pkgTagSection::Scan`.
pub(super) fn records(text: &str) -> Vec<Record> {
    let mut found: Vec<Record> = Vec::new();
    let mut open = false;
    for (at, line) in text.lines().enumerate() {
        if line.starts_with('#') {
            continue;
        }
        if line.is_empty() {
            open = false;
            continue;
        }
        match line.split_once(':') {
            Some((key, value)) if !line.starts_with([' ', '\t']) => {
                if !open {
                    let (line, fields) = (at + 1, Vec::new());
                    found.push(Record { line, fields });
                    open = true;
                }
                let field = (key.trim().to_ascii_lowercase(), value.trim().to_owned());
                if let Some(record) = found.last_mut() {
                    record.fields.push(field);
                }
            }
            _ if open => {
                if let Some((_, value)) = found.last_mut().and_then(|one| one.fields.last_mut()) {
                    value.push_str(line);
                }
            }
            _ => {}
        }
    }
    found
}
