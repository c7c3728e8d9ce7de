//! Compares nodes of the same type: a value that more than half of them have is the majority, and the other nodes are outliers.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

use super::read::{Collected, Node, Problem, UNKNOWN, Unused};
use crate::{
    check::Verdict,
    exit::Exit,
    model::{
        findings::{self, Kind},
        id::Id,
    },
    report::document::{SCHEMA, TOOL, Tool},
};

/// A check that is older than the newest one by more than this is not compared. Checks of one collection are minutes apart.
const STALE: SignedDuration = SignedDuration::from_hours(24);

/// Limit for clocks that are ahead. A check that is later is not compared, because all others would be stale.
const AHEAD: SignedDuration = SignedDuration::from_hours(1);

/// Limit of the listed values of a fact without a majority.
const MOST_VALUES: usize = 20;

/// The value of a container runtime on a node that does not have it.
const NOT_INSTALLED: &str = "not installed";

/// The report.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Fleet {
    schema: u32,
    tool: Tool,
    /// All documents, including unused ones.
    pub documents: usize,
    /// The number of compared nodes.
    pub nodes: usize,
    /// The number of nodes with a failed finding.
    pub failed_nodes: usize,
    /// The number of nodes that differ from the majority.
    pub different_nodes: usize,
    /// The time of the newest check.
    pub newest: Option<Timestamp>,
    /// Root causes of failures, faults first.
    pub failures: Vec<Group>,
    /// Nodes whose check exited with an error because findings are unknown, although no finding fails.
    pub incomplete: Vec<String>,
    /// Nodes that differ from the majority of their type. Each node is in one group.
    pub outliers: Vec<Outliers>,
    /// Nodes that must be rebooted.
    pub reboot_pending: Vec<String>,
    pub warnings: Vec<Group>,
    /// Findings that could not be evaluated.
    pub unknown: Vec<Group>,
    /// Nodes with an old check. They are not compared.
    pub stale: Vec<Stale>,
    pub types: Vec<NodeType>,
    /// Invalid and repeated documents.
    pub unused: Vec<Unused>,
}

/// Nodes with the same problem.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Group {
    pub id: String,
    pub title: String,
    pub kind: Option<Kind>,
    pub nodes: Vec<String>,
}

/// Nodes of the same type with the same differences.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Outliers {
    #[serde(rename = "type")]
    pub node_type: String,
    pub differences: Vec<Difference>,
    pub nodes: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Difference {
    pub fact: String,
    pub value: String,
    /// The value of the majority.
    pub majority: String,
}

/// A node whose check is too old.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Stale {
    pub node: String,
    pub time: Timestamp,
    pub document: String,
}

/// The nodes of a type: the instance type, or the GPU models.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NodeType {
    pub name: String,
    pub nodes: usize,
    /// The value that more than half of the nodes have.
    pub majority: Vec<Count>,
    /// Facts for which no value has a majority. No node is an outlier because of them.
    pub divided: Vec<Divided>,
}

/// A value, and the number of nodes that have it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Count {
    pub fact: String,
    pub value: String,
    pub nodes: usize,
}

/// The values of a fact without a majority, most frequent first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Divided {
    pub fact: String,
    pub values: Vec<Count>,
}

impl Fleet {
    /// Compares the nodes. `now` detects clocks that are ahead.
    pub fn of(collected: Collected, now: Timestamp) -> Self {
        let Collected {
            documents,
            nodes,
            unused,
        } = collected;
        let nodes = named(nodes.into_values().collect());
        let is_ahead = |time: Timestamp| time.duration_since(now) > AHEAD;
        let times = nodes.iter().filter_map(|node| node.time);
        let newest = times.filter(|time| !is_ahead(*time)).max();
        let is_stale = |time: Timestamp| {
            is_ahead(time) || newest.is_some_and(|newest| newest.duration_since(time) > STALE)
        };
        let (stale, nodes): (Vec<Node>, Vec<Node>) =
            (nodes.into_iter()).partition(|node| node.time.is_some_and(is_stale));
        let (mut outliers, mut types) = (Vec::new(), Vec::new());
        for (name, nodes) in by_type(&nodes) {
            let (node_type, mut differ) = compared(name, &nodes);
            types.push(node_type);
            outliers.append(&mut differ);
        }
        outliers.sort_by_key(|group| std::cmp::Reverse(group.nodes.len()));
        types.sort_by_key(|one| std::cmp::Reverse(one.nodes));
        let has_failed =
            |node: &&Node| (node.problems.iter()).any(|one| one.status == Verdict::Fail);
        let names = |is_listed: fn(&Node) -> bool| -> Vec<String> {
            (nodes.iter().filter(|node| is_listed(node)))
                .map(|node| node.name.clone())
                .collect()
        };
        Self {
            schema: SCHEMA,
            tool: TOOL,
            documents,
            nodes: nodes.len(),
            failed_nodes: nodes.iter().filter(has_failed).count(),
            different_nodes: outliers.iter().map(|group| group.nodes.len()).sum(),
            newest,
            failures: grouped(&nodes, Verdict::Fail),
            incomplete: names(|node| node.is_incomplete),
            outliers,
            reboot_pending: names(|node| node.reboot_pending),
            warnings: grouped(&nodes, Verdict::Warn),
            unknown: grouped(&nodes, Verdict::Unknown),
            stale: (stale.into_iter())
                .filter_map(|node| {
                    Some(Stale {
                        time: node.time?,
                        node: node.name,
                        document: node.document,
                    })
                })
                .collect(),
            types,
            unused,
        }
    }

    /// Returns the exit status: `Ok` if all nodes of a type are equal, all checks are complete and have no failed finding, and
    /// all documents are used.
    pub fn exit(&self) -> Exit {
        let is_divided = self.types.iter().any(|one| !one.divided.is_empty());
        let is_healthy = self.failures.is_empty() && self.incomplete.is_empty();
        let is_uniform = self.outliers.is_empty() && !is_divided;
        match is_healthy && is_uniform && self.stale.is_empty() && self.unused.is_empty() {
            true => Exit::Ok,
            false => Exit::Drift,
        }
    }
}

/// Adds the instance to names that several nodes have.
fn named(mut nodes: Vec<Node>) -> Vec<Node> {
    let mut seen = BTreeSet::new();
    let repeated: BTreeSet<String> = (nodes.iter())
        .filter(|node| !seen.insert(node.name.as_str()))
        .map(|node| node.name.clone())
        .collect();
    for node in nodes
        .iter_mut()
        .filter(|node| repeated.contains(&node.name))
    {
        let instance = node.instance.as_deref().unwrap_or(UNKNOWN);
        node.name = format!("{} ({instance})", node.name);
    }
    nodes
}

fn by_type(nodes: &[Node]) -> BTreeMap<&str, Vec<&Node>> {
    let mut types: BTreeMap<&str, Vec<&Node>> = BTreeMap::new();
    for node in nodes {
        types.entry(&node.node_type).or_default().push(node);
    }
    types
}

fn grouped(nodes: &[Node], status: Verdict) -> Vec<Group> {
    let mut groups: BTreeMap<&Problem, Vec<String>> = BTreeMap::new();
    for node in nodes {
        for problem in node.problems.iter().filter(|one| one.status == status) {
            groups.entry(problem).or_default().push(node.name.clone());
        }
    }
    let mut groups: Vec<Group> = (groups.into_iter())
        .map(|(problem, nodes)| Group {
            id: problem.id.clone(),
            title: findings::title(&Id::owned(&*problem.id)).to_owned(),
            kind: problem.kind,
            nodes,
        })
        .collect();
    groups.sort_by_key(|group| (group.kind, std::cmp::Reverse(group.nodes.len())));
    groups
}

/// The value of a fact, or `None` if an older version did not write it.
fn value<'n>(node: &'n Node, fact: &str) -> Option<&'n str> {
    let value = node.facts.get(fact).map(String::as_str);
    value.or(node.has_versions.then_some(NOT_INSTALLED))
}

/// Compares the nodes of a type.
fn compared(name: &str, nodes: &[&Node]) -> (NodeType, Vec<Outliers>) {
    let facts: BTreeSet<&str> = (nodes.iter())
        .flat_map(|node| node.facts.keys().map(String::as_str))
        .collect();
    let (mut majority, mut divided) = (Vec::new(), Vec::new());
    for fact in facts {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for value in nodes.iter().filter_map(|node| value(node, fact)) {
            *counts.entry(value).or_default() += 1;
        }
        let total: usize = counts.values().sum();
        let mut values: Vec<Count> = (counts.into_iter())
            .map(|(value, nodes)| Count {
                fact: fact.to_owned(),
                value: value.to_owned(),
                nodes,
            })
            .collect();
        values.sort_by_key(|count| std::cmp::Reverse(count.nodes));
        if values.first().is_some_and(|most| most.nodes * 2 > total) {
            majority.push(values.swap_remove(0));
        } else {
            values.truncate(MOST_VALUES);
            divided.push(Divided {
                fact: fact.to_owned(),
                values,
            });
        }
    }
    let mut groups: BTreeMap<Vec<Difference>, Vec<String>> = BTreeMap::new();
    for node in nodes {
        let differences: Vec<Difference> = (majority.iter())
            .filter(|most| most.value != UNKNOWN)
            .filter_map(|most| {
                let own = value(node, &most.fact)?;
                (own != most.value).then(|| Difference {
                    fact: most.fact.clone(),
                    value: own.to_owned(),
                    majority: most.value.clone(),
                })
            })
            .collect();
        if !differences.is_empty() {
            groups
                .entry(differences)
                .or_default()
                .push(node.name.clone());
        }
    }
    let outliers = (groups.into_iter())
        .map(|(differences, nodes)| Outliers {
            node_type: name.to_owned(),
            differences,
            nodes,
        })
        .collect();
    let node_type = NodeType {
        name: name.to_owned(),
        nodes: nodes.len(),
        majority,
        divided,
    };
    (node_type, outliers)
}
