//! Rust source as text: production code without comments, literals and tests, and the paths in it.

use std::{
    fs,
    ops::Range,
    path::{Path, PathBuf},
};

/// A production module.
pub struct Module {
    /// The path in the crate: `["change", "probe", "container"]`.
    pub path: Vec<String>,
    pub file: PathBuf,
    /// The code, with the line numbers of the file.
    pub code: String,
    /// The declared modules.
    pub children: Vec<Module>,
}

/// The crate in the directory `src`, with all its modules.
pub fn read(src: &Path) -> Module {
    module(Vec::new(), src.join("lib.rs"), src)
}

/// `inside` is the directory of its child modules.
fn module(path: Vec<String>, file: PathBuf, inside: &Path) -> Module {
    let text = fs::read_to_string(&file).expect("a source file");
    let code = production(&text);
    let declared = code.lines().filter_map(|line| {
        let (before, name) = line.trim().strip_suffix(';')?.rsplit_once(' ')?;
        (before == "mod" || before.ends_with(" mod")).then_some(name)
    });
    let children = declared
        .map(|name| {
            let path = path.iter().map(String::as_str).chain([name]);
            let directory = inside.join(name);
            let file = match directory.join("mod.rs") {
                file if file.is_file() => file,
                _ => inside.join(format!("{name}.rs")),
            };
            module(path.map(str::to_owned).collect(), file, &directory)
        })
        .collect();
    Module {
        path,
        file,
        code,
        children,
    }
}

impl Module {
    /// This module and all its descendants.
    pub fn all(&self) -> Vec<&Module> {
        let below = self.children.iter().flat_map(Module::all);
        [self].into_iter().chain(below).collect()
    }

    pub fn name(&self) -> &str {
        self.path.last().map_or("crate", String::as_str)
    }

    /// A human-readable `file:line`.
    pub fn place(&self, line: usize) -> String {
        format!("{}:{line}", self.file.display())
    }

    /// Paths in the code that start with `crate::` or `super::`, with their lines.
    pub fn paths(&self) -> Vec<(Vec<String>, usize)> {
        let mut found = Vec::new();
        let (mut line, mut counted) = (1, 0);
        for (at, _) in self.code.match_indices("::") {
            let before = &self.code[..at];
            line += before[counted..].matches('\n').count();
            counted = at;
            let root = [("crate", 0), ("super", self.path.len().saturating_sub(1))];
            for (word, kept) in root {
                let Some(start) = before.strip_suffix(word) else {
                    continue;
                };
                // Skip the end of a longer name and the middle of a path.
                if start.ends_with(|c: char| is_word(c) || c == ':') {
                    continue;
                }
                let mut tree = &self.code[at + 2..];
                let mut path = self.path[..kept].to_vec();
                while let Some(rest) = tree.strip_prefix("super::") {
                    path.pop();
                    tree = rest;
                }
                let mut paths = Vec::new();
                expand(tree, path, &mut paths);
                found.extend(paths.into_iter().map(|path| (path, line)));
            }
        }
        found
    }

    pub fn identifiers(&self) -> impl Iterator<Item = (&str, usize)> {
        self.code.lines().zip(1..).flat_map(|(text, line)| {
            let words = text.split(|c| !is_word(c)).filter(|word| !word.is_empty());
            words.map(move |word| (word, line))
        })
    }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Collects the paths of a `use` tree such as `a::{b, c::d}` below `path`. Returns the text after the tree.
fn expand<'a>(tree: &'a str, mut path: Vec<String>, found: &mut Vec<Vec<String>>) -> &'a str {
    let mut rest = tree.trim_start();
    loop {
        if let Some(mut group) = rest.strip_prefix('{') {
            loop {
                group = group.trim_start_matches(|c: char| c.is_whitespace() || c == ',');
                if group.is_empty() {
                    return group;
                }
                if let Some(after) = group.strip_prefix('}') {
                    return after;
                }
                let after = expand(group, path.clone(), found);
                // Skip to the end of an element such as `* ` or `x as y`.
                group = &after[after.find([',', '}']).unwrap_or(after.len())..];
            }
        }
        let end = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
        if end > 0 {
            path.push(rest[..end].to_owned());
        }
        rest = &rest[end..];
        match rest.strip_prefix("::") {
            Some(further) if further.starts_with(|c| is_word(c) || c == '{') => rest = further,
            _ => {
                found.push(path);
                return rest;
            }
        }
    }
}

/// Replaces comments, literals and test-only code with blanks.
pub fn production(text: &str) -> String {
    let mut code = bare(text, &mut Vec::new());
    for range in only_for_tests(&code) {
        let blank = blanked(&code[range.clone()]);
        code.replace_range(range, &blank);
    }
    code
}

/// The string literals of production code, with their lines.
pub fn literals(text: &str) -> Vec<(&str, usize)> {
    let mut found = Vec::new();
    let code = bare(text, &mut found);
    let tests = only_for_tests(&code);
    found.retain(|literal| !tests.iter().any(|range| range.contains(&literal.start)));
    let line = |at: usize| text[..at].matches('\n').count() + 1;
    (found.into_iter())
        .map(|literal| (&text[literal.clone()], line(literal.start)))
        .collect()
}

/// The ranges of test-only code, in code without literals.
fn only_for_tests(code: &str) -> Vec<Range<usize>> {
    let mut found: Vec<Range<usize>> = Vec::new();
    for (start, _) in code.match_indices("#[cfg(test)]") {
        if found.last().is_some_and(|range| range.contains(&start)) {
            continue;
        }
        let mut depth = 0;
        let mut end = code.len();
        for (at, c) in code[start..].char_indices() {
            match c {
                '{' | '[' | '(' => depth += 1,
                '}' | ']' | ')' => depth -= 1,
                _ => {}
            }
            if depth == 0 && matches!(c, '}' | ';') {
                end = start + at + 1;
                break;
            }
        }
        found.push(start..end);
    }
    found
}

fn blanked(text: &str) -> String {
    let blank = |c: char| {
        if c == '\n' {
            "\n".to_owned()
        } else {
            " ".repeat(c.len_utf8())
        }
    };
    text.chars().map(blank).collect()
}

/// Replaces comments and literals with blanks, and collects the string literals.
fn bare(text: &str, literals: &mut Vec<Range<usize>>) -> String {
    let mut code = String::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let in_word = code.ends_with(is_word);
        let length = match first {
            '/' if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            '/' if rest.starts_with("/*") => rest.find("*/").map_or(rest.len(), |at| at + 2),
            '"' => quoted(rest),
            'r' if !in_word => raw(rest).unwrap_or(0),
            '\'' => character(rest).unwrap_or(0),
            _ => 0,
        };
        if length == 0 {
            code.push(first);
            rest = &rest[first.len_utf8()..];
        } else {
            if matches!(first, '"' | 'r') {
                literals.push(code.len()..code.len() + length);
            }
            code.push_str(&blanked(&rest[..length]));
            rest = &rest[length..];
        }
    }
    code
}

/// The length of a literal in double quotes.
fn quoted(text: &str) -> usize {
    let mut escaped = true;
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// The length of a raw string, if the text starts with one.
fn raw(text: &str) -> Option<usize> {
    let hashes = text[1..].chars().take_while(|c| *c == '#').count();
    let content = text[1 + hashes..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    Some(text.len() - content.len() + content.find(&end)? + end.len())
}

/// The length of a character literal, if the text starts with one and not with a lifetime.
fn character(text: &str) -> Option<usize> {
    let mut inside = text[1..].chars();
    let length = match inside.next()? {
        '\\' => 2 + text[3..].find('\'')? + 1,
        c => 1 + c.len_utf8(),
    };
    text[length..].starts_with('\'').then_some(length + 1)
}
