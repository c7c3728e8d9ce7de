//! The report as Markdown. Each text of a document is a code span, in which neither Markdown nor links are interpreted.

use std::io::{self, Write};

use super::compare::{Fleet, Group};
use crate::model::{findings::Kind, text::counted};

/// Limit of node names in a list. JSON contains all names.
const MOST_NAMES: usize = 100;

/// Writes the report.
///
/// # Errors
/// An error of the writer.
pub fn markdown(to: &mut dyn Write, fleet: &Fleet) -> io::Result<()> {
    let (nodes, failed, different) = (fleet.nodes, fleet.failed_nodes, fleet.different_nodes);
    let nodes = counted(nodes, "node");
    writeln!(
        to,
        "# GPU fleet: {nodes}, {failed} failed, {different} different\n"
    )?;
    writeln!(to, "- Documents: {}", fleet.documents)?;
    if let Some(newest) = fleet.newest {
        writeln!(to, "- Newest check: {newest}")?;
    }
    problems(to, "Failed", &fleet.failures)?;
    outliers(to, fleet)?;
    if !fleet.reboot_pending.is_empty() {
        writeln!(
            to,
            "\n## Reboot pending: {}\n",
            counted(fleet.reboot_pending.len(), "node")
        )?;
        writeln!(to, "{}", names(&fleet.reboot_pending))?;
    }
    if !fleet.stale.is_empty() {
        writeln!(to, "\n## Old checks, not compared\n")?;
        for stale in &fleet.stale {
            let (node, document) = (code(&stale.node), code(&stale.document));
            writeln!(to, "- {node}: {} in {document}", stale.time)?;
        }
    }
    if !fleet.unused.is_empty() {
        writeln!(to, "\n## Documents that are not used\n")?;
        for unused in &fleet.unused {
            writeln!(to, "- {}: {}", code(&unused.document), code(&unused.why))?;
        }
    }
    problems(to, "Warnings", &fleet.warnings)?;
    problems(to, "Unknown", &fleet.unknown)?;
    types(to, fleet)?;
    to.flush()
}

/// Writes the findings of one status, with the nodes that have them.
fn problems(to: &mut dyn Write, title: &str, groups: &[Group]) -> io::Result<()> {
    if groups.is_empty() {
        return Ok(());
    }
    writeln!(to, "\n## {title}\n")?;
    for group in groups {
        let kind = group
            .kind
            .map_or(String::new(), |kind: Kind| format!(", {}", kind.name()));
        let title = match group.title == group.id {
            true => String::new(),
            false => format!(" {}", group.title),
        };
        let count = counted(group.nodes.len(), "node");
        let id = code(&group.id);
        writeln!(to, "- {id}{title}{kind}, {count}: {}", names(&group.nodes))?;
    }
    Ok(())
}

fn outliers(to: &mut dyn Write, fleet: &Fleet) -> io::Result<()> {
    for group in &fleet.outliers {
        let count = match group.nodes.len() {
            1 => "1 node differs".to_owned(),
            count => format!("{count} nodes differ"),
        };
        writeln!(to, "\n## {count}: {}\n", code(&group.node_type))?;
        writeln!(to, "| fact | value | majority |\n|---|---|---|")?;
        for one in &group.differences {
            let cells = [&one.fact, &one.value, &one.majority].map(|text| code(text));
            writeln!(to, "| {} |", cells.join(" | "))?;
        }
        writeln!(to, "\n{}", names(&group.nodes))?;
    }
    Ok(())
}

fn types(to: &mut dyn Write, fleet: &Fleet) -> io::Result<()> {
    for one in &fleet.types {
        writeln!(
            to,
            "\n## Type {}: {}\n",
            code(&one.name),
            counted(one.nodes, "node")
        )?;
        if one.nodes == 1 {
            writeln!(
                to,
                "Not compared, because there is no other node of this type.\n"
            )?;
        }
        writeln!(to, "| fact | majority | nodes |\n|---|---|---|")?;
        for most in &one.majority {
            let (fact, value) = (code(&most.fact), code(&most.value));
            writeln!(to, "| {fact} | {value} | {} |", most.nodes)?;
        }
        for divided in &one.divided {
            let values: Vec<String> = (divided.values.iter())
                .map(|count| format!("{} ({})", code(&count.value), count.nodes))
                .collect();
            let (fact, values) = (code(&divided.fact), values.join(", "));
            writeln!(to, "| {fact} | no majority: {values} | |")?;
        }
    }
    Ok(())
}

fn names(nodes: &[String]) -> String {
    let shown: Vec<String> = nodes
        .iter()
        .take(MOST_NAMES)
        .map(|name| code(name))
        .collect();
    match nodes.len().saturating_sub(MOST_NAMES) {
        0 => shown.join(", "),
        more => format!(
            "{}, and {more} more (see `--format json`)",
            shown.join(", ")
        ),
    }
}

/// Formats a code span that may be in a table. Real names and versions contain neither backquotes nor pipes.
fn code(text: &str) -> String {
    let text: String = text
        .chars()
        .map(|c| match c {
            '`' => '\'',
            '|' => '/',
            c => c,
        })
        .collect();
    match text.trim() {
        "" => "` `".to_owned(),
        text => format!("`{text}`"),
    }
}
