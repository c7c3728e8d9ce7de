//! Limits how many hard-to-read phrases the comments, messages and documents contain (`language.toml`).

use std::{collections::BTreeMap, fs, path::Path};

use regex::Regex;
use serde::Deserialize;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Language {
    /// Most hits for each 10,000 words, by area.
    limits: BTreeMap<String, usize>,
    phrase: Vec<Phrase>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Phrase {
    pattern: String,
    write: String,
}

fn language() -> Language {
    toml::from_str(include_str!("language.toml")).expect("language.toml is valid")
}

/// The comments of a file and its strings of four words or more, as one text per comment or string.
fn prose(path: &Path, source: &str) -> Vec<String> {
    let kind = path.extension().and_then(|kind| kind.to_str());
    let mut texts = match kind {
        Some("md") => paragraphs(source),
        Some("rs") => comments_and_strings(source, "//"),
        _ => comments_and_strings(source, "#"),
    };
    for text in &mut texts {
        let mut words = String::new();
        // Every second part is inside of backticks.
        for (n, part) in text.split('`').enumerate() {
            words.push_str(if n % 2 == 0 { part } else { "x" });
        }
        *text = words.split_whitespace().collect::<Vec<_>>().join(" ");
    }
    texts
}

/// The paragraphs, list items and table rows outside of code blocks.
fn paragraphs(source: &str) -> Vec<String> {
    let mut texts = vec![String::new()];
    let mut in_code = false;
    for line in source.lines() {
        let trimmed = line.trim_start();
        if trimmed.starts_with("```") {
            in_code = !in_code;
        } else if !in_code {
            if trimmed.is_empty() || trimmed.starts_with(['|', '-', '*', '>', '#']) {
                texts.push(String::new());
            }
            if let Some(text) = texts.last_mut() {
                text.push_str(trimmed.trim_start_matches(['|', '-', '*', '>', '#', ' ']));
                text.push(' ');
            }
        }
    }
    texts
}

/// Adjacent comment lines are one text.
fn comments_and_strings(source: &str, comment: &str) -> Vec<String> {
    let mut texts = Vec::new();
    let mut block = String::new();
    for line in source.lines() {
        let trimmed = line.trim_start();
        if let Some(text) = trimmed.strip_prefix(comment) {
            block.push_str(text.trim_start_matches(['/', '!', '#']));
            block.push(' ');
            continue;
        }
        texts.push(std::mem::take(&mut block));
        // Every second part is inside of quotes.
        let strings = trimmed.split('"').skip(1).step_by(2);
        texts.extend(
            strings
                .filter(|text| text.matches(' ').count() >= 3 && !text.contains(['$', '{', '\\']))
                .map(str::to_owned),
        );
    }
    texts.push(block);
    texts
}

/// The files of an area. Recorded output of other programs and generated files are left out.
fn files(area: &str) -> Vec<std::path::PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (tops, kinds): (&[&str], &[&str]) = match area {
        "documents" => (&["docs", "."], &["md"]),
        "src" => (&["src", "clouds", "profiles"], &["rs", "toml"]),
        "compat" => (&["compat/src"], &["rs"]),
        "tests" => (&["tests"], &["rs", "toml", "md"]),
        other => panic!("language.toml: no area `{other}`"),
    };
    let mut found = Vec::new();
    let mut open: Vec<_> = tops.iter().map(|top| root.join(top)).collect();
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(&directory).expect("a readable directory") {
            let path = entry.expect("an entry").path();
            let name = path
                .file_name()
                .and_then(|name| name.to_str())
                .unwrap_or_default();
            if path.is_dir() {
                let is_data = ["snapshots", "corpus", "man", "fixtures", "reports"].contains(&name);
                if directory != root && !is_data {
                    open.push(path);
                }
            } else if name != "language.toml"
                && path
                    .extension()
                    .is_some_and(|kind| kinds.iter().any(|one| kind == *one))
            {
                found.push(path);
            }
        }
    }
    found
}

/// The compiled phrases, and what to write instead.
fn phrases(language: &Language) -> Vec<(Regex, &str)> {
    (language.phrase.iter())
        .map(|phrase| {
            let pattern = Regex::new(&phrase.pattern).expect("a valid pattern");
            (pattern, phrase.write.as_str())
        })
        .collect()
}

/// Each hit with the text around it, and what to write instead.
fn hits(phrases: &[(Regex, &str)], texts: &[String]) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for text in texts {
        for (pattern, write) in phrases {
            found.extend(pattern.find_iter(text).map(|hit| {
                let start = text.floor_char_boundary(hit.start().saturating_sub(40));
                let end = text.ceil_char_boundary((hit.end() + 40).min(text.len()));
                (text[start..end].to_owned(), (*write).to_owned())
            }));
        }
    }
    found
}

#[test]
fn hard_phrases_stay_below_their_limits() {
    let language = language();
    let phrases = phrases(&language);
    for (area, limit) in &language.limits {
        let mut words = 0;
        let mut shown = Vec::new();
        for path in files(area) {
            let source = fs::read_to_string(&path).expect("a text file");
            let texts = prose(&path, &source);
            words += texts
                .iter()
                .map(|text| text.split(' ').count())
                .sum::<usize>();
            for (text, write) in hits(&phrases, &texts) {
                shown.push(format!("{}: …{text}… write: {write}", path.display()));
            }
        }
        let rate = shown.len() * 10_000 / words.max(1);
        assert!(words > 2_000, "{area}: only {words} words were read");
        assert!(
            rate <= *limit,
            "{area}: {rate} hits for each 10,000 words, {limit} are allowed:\n{}",
            shown.join("\n")
        );
    }
}

#[test]
fn phrases_are_found_in_comments_messages_and_documents() {
    let language = language();
    let phrases = phrases(&language);
    for (name, source) in [
        (
            "a.rs",
            "// A file that nobody\n// needs any more.\nlet x = 1;",
        ),
        ("a.rs", "print(\"the file is not wanted any more\");"),
        ("a.toml", "why = \"what is not there is what is wanted\""),
        ("a.md", "- Nobody says it, too.\n"),
    ] {
        let texts = prose(Path::new(name), source);
        assert!(hits(&phrases, &texts).len() >= 2, "{source}");
    }
    for (name, source) in [
        ("a.md", "```\nnobody says\n```\n"),
        ("a.md", "`told`, `says`\n"),
        ("a.rs", "let nobody = says(wanted);"),
    ] {
        let texts = prose(Path::new(name), source);
        assert_eq!(hits(&phrases, &texts), [], "{source}");
    }
}
