//! Reads `check` documents, and keeps the values that are compared.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{BufRead, Read as _},
};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{
    check::Verdict,
    exit::Exit,
    model::{
        findings::Kind,
        text::{beginning, is_control},
    },
    report::document::{SCHEMA, TOOL},
};

/// Size limit of a document in bytes. A real one has about 100 KiB.
const MOST_BYTES: usize = 4 << 20;

/// Limit of nodes and unused documents, each. A real fleet has a few thousand.
const MOST_NODES: usize = 100_000;

/// Length limit of a text in characters. Longer ones are truncated.
const LONGEST: usize = 120;

/// The shown length of a digest.
const SHORT_DIGEST: usize = 12;

/// Limit of container runtimes, GPU models and problems of a node, each. Real nodes have fewer than 30.
const MOST_VALUES: usize = 100;

/// The value of a fact that the node could not read.
pub(super) const UNKNOWN: &str = "unknown";

/// The value of a fact that does not exist, such as the driver version of a node without a driver.
const NONE: &str = "none";

/// Everything that was read.
#[derive(Debug, Default)]
pub struct Collected {
    /// The number of documents, including unused ones.
    pub(super) documents: usize,
    /// The newest document of each node, by name and instance.
    pub(super) nodes: BTreeMap<(String, Option<String>), Node>,
    pub(super) unused: Vec<Unused>,
}

/// A document that is not evaluated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Unused {
    /// The file, and the number of the document in it unless it is the first.
    pub document: String,
    pub why: String,
}

/// The values of a node.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Node {
    pub(super) name: String,
    /// The instance ID or the DMI UUID.
    pub(super) instance: Option<String>,
    pub(super) document: String,
    /// The time of the check. Older versions did not write it.
    pub(super) time: Option<Timestamp>,
    /// The instance type, otherwise the GPU models. Only nodes of the same type are compared.
    pub(super) node_type: String,
    /// The compared values.
    pub(super) facts: BTreeMap<String, String>,
    /// The document contains the versions of the node. Documents of older versions do not.
    pub(super) has_versions: bool,
    pub(super) problems: Vec<Problem>,
    /// The check exited with an error because findings are unknown, although no finding fails.
    pub(super) is_incomplete: bool,
    pub(super) reboot_pending: bool,
}

/// A failed, warning or unknown finding that is not caused by another finding.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Problem {
    pub(super) status: Verdict,
    pub(super) kind: Option<Kind>,
    pub(super) id: String,
}

/// The part of a `check` document that is read. Keys that a newer version adds are ignored.
#[derive(Deserialize)]
struct Document {
    schema: u32,
    tool: Program,
    time: Option<Timestamp>,
    exit: Option<u8>,
    host: Machine,
    node: Option<Versions>,
    findings: Vec<Found>,
}

#[derive(Deserialize)]
struct Program {
    name: String,
    version: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Machine {
    os: Option<String>,
    kernel: Option<String>,
    arch: Option<String>,
    instance_type: Option<String>,
    instance_id: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Versions {
    name: Option<String>,
    driver: Option<String>,
    module_flavor: Option<String>,
    toolkit: Option<String>,
    #[serde(default)]
    runtimes: BTreeMap<String, Option<String>>,
    #[serde(default)]
    gpus: BTreeMap<String, u64>,
    #[serde(default)]
    nvswitches: u64,
    secure_boot: Option<String>,
    next_kernel: Option<String>,
    lock: Option<LockFile>,
    reboot_pending: Option<bool>,
}

#[derive(Deserialize)]
struct LockFile {
    digest: String,
}

#[derive(Deserialize)]
struct Found {
    id: String,
    status: Verdict,
    kind: Option<Kind>,
    because: Option<String>,
}

impl Collected {
    /// Whether there was no document.
    pub fn is_empty(&self) -> bool {
        self.documents == 0
    }

    /// Adds a document that cannot be read.
    pub fn reject(&mut self, document: &str, why: &str) {
        self.documents += 1;
        self.set_aside(clean(document), why);
    }

    fn set_aside(&mut self, document: String, why: &str) {
        if self.unused.len() < MOST_NODES {
            let why = clean(why);
            self.unused.push(Unused { document, why });
        }
    }

    /// Reads the documents of a file or of a stream. A document starts with a line that starts with `{`, so an invalid or
    /// truncated document does not affect the next one. `check` and `jq -c` write such documents.
    pub fn read(&mut self, name: &str, from: &mut impl BufRead) {
        let mut source = Source {
            name: clean(name),
            documents: 0,
        };
        // The current document, or `None` if it is too large.
        let mut text = Some(Vec::new());
        let mut is_continued = false;
        loop {
            let mut line = Vec::new();
            let limit = MOST_BYTES as u64;
            match from.by_ref().take(limit).read_until(b'\n', &mut line) {
                Ok(_) => {}
                Err(error) => {
                    self.finish(&mut source, text.take());
                    self.reject(name, &format!("failed to read it: {error}"));
                    return;
                }
            }
            if line.is_empty() || (!is_continued && line.starts_with(b"{")) {
                self.finish(&mut source, text.replace(Vec::new()));
            }
            if line.is_empty() {
                break;
            }
            is_continued = !line.ends_with(b"\n");
            text = text.filter(|text| text.len() + line.len() <= MOST_BYTES);
            if let Some(text) = &mut text {
                text.append(&mut line);
            }
        }
        if source.documents == 0 {
            self.reject(name, "it is empty");
        }
    }

    /// Evaluates the text between the starts of two documents.
    fn finish(&mut self, source: &mut Source, text: Option<Vec<u8>>) {
        let Some(text) = text else {
            let limit = MOST_BYTES >> 20;
            let document = source.next();
            self.reject(&document, &format!("it is larger than {limit} MiB"));
            return;
        };
        if text.iter().all(u8::is_ascii_whitespace) {
            return;
        }
        for document in serde_json::Deserializer::from_slice(&text).into_iter::<Document>() {
            let name = source.next();
            match document {
                Ok(document) => self.add(name, document),
                Err(error) => {
                    self.reject(&name, &format!("not a complete `check` document: {error}"));
                    return;
                }
            }
        }
    }

    fn add(&mut self, name: String, document: Document) {
        if document.tool.name != TOOL.name {
            self.reject(&name, "not written by gpu-bootstrap");
            return;
        }
        if document.schema > SCHEMA {
            let schema = document.schema;
            let why = format!("schema {schema} is newer than this version of gpu-bootstrap");
            self.reject(&name, &why);
            return;
        }
        self.documents += 1;
        let node = Node::of(name, document);
        let key = (node.name.clone(), node.instance.clone());
        let is_full = self.nodes.len() >= MOST_NODES;
        match self.nodes.get_mut(&key) {
            None if is_full => {
                let why = format!("more than {MOST_NODES} nodes");
                self.set_aside(node.document, &why);
            }
            None => {
                self.nodes.insert(key, node);
            }
            Some(other) => {
                let (newer, older) = match other.time < node.time {
                    true => (
                        node.document.clone(),
                        std::mem::replace(other, node).document,
                    ),
                    false => (other.document.clone(), node.document),
                };
                self.set_aside(
                    older,
                    &format!("{newer} is about the same node and not older"),
                );
            }
        }
    }
}

/// A file or stream.
struct Source {
    name: String,
    documents: usize,
}

impl Source {
    /// The name of its next document.
    fn next(&mut self) -> String {
        self.documents += 1;
        match self.documents {
            1 => self.name.clone(),
            number => format!("{}, document {number}", self.name),
        }
    }
}

impl Node {
    fn of(name: String, document: Document) -> Self {
        let Document {
            tool,
            time,
            exit,
            host,
            node,
            findings,
            ..
        } = document;
        let instance = host.instance_id.as_deref().map(clean);
        let own_name = node.as_ref().and_then(|node| node.name.as_deref());
        let found: Vec<&Found> = (findings.iter())
            .filter(|finding| {
                matches!(
                    finding.status,
                    Verdict::Fail | Verdict::Warn | Verdict::Unknown
                )
            })
            .collect();
        // The cause of a problem may be skipped (`check --ignore`).
        let ids: BTreeSet<&str> = found.iter().map(|finding| finding.id.as_str()).collect();
        let has_cause = |id: &str| ids.contains(id);
        let mut problems: Vec<Problem> = (found.iter())
            .filter(|finding| !finding.because.as_deref().is_some_and(has_cause))
            .map(|finding| Problem {
                status: finding.status,
                kind: finding.kind,
                id: clean(&finding.id),
            })
            .collect();
        problems.sort();
        problems.dedup();
        problems.truncate(MOST_VALUES);
        let has = |status| problems.iter().any(|problem| problem.status == status);
        let is_incomplete = exit.is_some_and(|exit| exit != Exit::Ok.code())
            && has(Verdict::Unknown)
            && !has(Verdict::Fail);
        Self {
            name: (own_name.map(clean))
                .or_else(|| instance.clone())
                .unwrap_or_else(|| name.clone()),
            instance,
            document: name,
            time,
            node_type: node_type(&host, node.as_ref()),
            facts: facts(&tool, &host, node.as_ref()),
            has_versions: node.is_some(),
            problems,
            is_incomplete,
            reboot_pending: (node.as_ref()).is_some_and(|node| node.reboot_pending == Some(true)),
        }
    }
}

fn node_type(host: &Machine, node: Option<&Versions>) -> String {
    if let Some(instance_type) = &host.instance_type {
        return clean(instance_type);
    }
    let models = node.map(|node| &node.gpus).into_iter().flatten();
    let models: Vec<&str> = (models.take(MOST_VALUES))
        .map(|(model, _)| model.as_str())
        .collect();
    match models.is_empty() {
        true => "no GPU model".to_owned(),
        false => clean(&models.join(", ")),
    }
}

fn facts(tool: &Program, host: &Machine, node: Option<&Versions>) -> BTreeMap<String, String> {
    let mut facts = BTreeMap::new();
    let known = |value: &Option<String>| value.as_deref().map_or_else(|| UNKNOWN.to_owned(), clean);
    let found = |value: &Option<String>| value.as_deref().map_or_else(|| NONE.to_owned(), clean);
    let mut add = |name: &str, value: String| facts.insert(name.to_owned(), value);
    add("gpu-bootstrap", clean(&tool.version));
    add("os", known(&host.os));
    add("kernel", known(&host.kernel));
    add("architecture", known(&host.arch));
    let Some(node) = node else {
        return facts;
    };
    add("driver", found(&node.driver));
    add("module flavor", found(&node.module_flavor));
    add("container toolkit", found(&node.toolkit));
    add("secure boot", known(&node.secure_boot));
    add("next kernel", known(&node.next_kernel));
    let lock = node
        .lock
        .as_ref()
        .map(|lock| beginning(&lock.digest, SHORT_DIGEST));
    add("lock file", found(&lock));
    add("NVSwitches", node.nvswitches.to_string());
    let gpus: Vec<String> = (node.gpus.iter().take(MOST_VALUES))
        .map(|(model, count)| format!("{count} {model}"))
        .collect();
    add(
        "GPUs",
        match gpus.is_empty() {
            true => NONE.to_owned(),
            false => clean(&gpus.join(", ")),
        },
    );
    for (name, version) in node.runtimes.iter().take(MOST_VALUES) {
        add(&clean(name), known(version));
    }
    facts
}

/// Returns the beginning of a text of a document, without control characters, and in one line.
fn clean(text: &str) -> String {
    let text = beginning(text, LONGEST);
    text.chars()
        .map(|c| if is_control(c) { '\u{fffd}' } else { c })
        .collect()
}
