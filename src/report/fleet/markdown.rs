//! The report as Markdown. Each text of a document is a code span, in which neither Markdown nor links are interpreted.

use std::io::{self, Write};

use super::compare::{Fleet, Group};
use crate::model::{findings::Kind, text::counted};

/// Limit of listed nodes and documents. JSON contains all.
const MOST_ITEMS: usize = 100;

/// Writes the report.
///
/// # Errors
/// An error of the writer.
pub fn markdown(to: &mut dyn Write, fleet: &Fleet) -> io::Result<()> {
    let (failed, different) = (fleet.failed_nodes, fleet.different_nodes);
    let (nodes, incomplete) = (counted(fleet.nodes, "node"), fleet.incomplete.len());
    writeln!(
        to,
        "# GPU fleet: {nodes}, {failed} failed, {incomplete} incomplete, {different} different\n"
    )?;
    let (all, old, unused) = (fleet.documents, fleet.stale.len(), fleet.unused.len());
    writeln!(to, "- Documents: {all}, {old} old, {unused} not used")?;
    if let Some(newest) = fleet.newest {
        writeln!(to, "- Newest check: {newest}")?;
    }
    problems(to, "Failed", &fleet.failures)?;
    affected(to, "Incomplete checks", &fleet.incomplete)?;
    outliers(to, fleet)?;
    divided(to, fleet)?;
    affected(to, "Reboot pending", &fleet.reboot_pending)?;
    let old = fleet.stale.iter().map(|stale| {
        let (node, document) = (code(&stale.node), code(&stale.document));
        format!("{node}: {} in {document}", stale.time)
    });
    list(to, "Old checks, not compared", old)?;
    let unused = (fleet.unused.iter())
        .map(|unused| format!("{}: {}", code(&unused.document), code(&unused.why)));
    list(to, "Documents that are not used", unused)?;
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

/// Writes the facts for which no value has a majority.
fn divided(to: &mut dyn Write, fleet: &Fleet) -> io::Result<()> {
    for one in fleet.types.iter().filter(|one| !one.divided.is_empty()) {
        writeln!(to, "\n## No majority: {}\n", code(&one.name))?;
        writeln!(to, "| fact | values |\n|---|---|")?;
        for divided in &one.divided {
            let values: Vec<String> = (divided.values.iter())
                .map(|count| format!("{} ({})", code(&count.value), count.nodes))
                .collect();
            writeln!(to, "| {} | {} |", code(&divided.fact), values.join(", "))?;
        }
    }
    Ok(())
}

/// Writes a section with the names of nodes.
fn affected(to: &mut dyn Write, title: &str, nodes: &[String]) -> io::Result<()> {
    if nodes.is_empty() {
        return Ok(());
    }
    writeln!(to, "\n## {title}: {}\n", counted(nodes.len(), "node"))?;
    writeln!(to, "{}", names(nodes))
}

/// Writes a section with a list.
fn list(
    to: &mut dyn Write,
    title: &str,
    items: impl ExactSizeIterator<Item = String>,
) -> io::Result<()> {
    let count = items.len();
    if count == 0 {
        return Ok(());
    }
    writeln!(to, "\n## {title}\n")?;
    for item in items.take(MOST_ITEMS) {
        writeln!(to, "- {item}")?;
    }
    match count.saturating_sub(MOST_ITEMS) {
        0 => Ok(()),
        more => writeln!(to, "- {more} more (see `--format json`)"),
    }
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
    }
    Ok(())
}

fn names(nodes: &[String]) -> String {
    let shown: Vec<String> = nodes
        .iter()
        .take(MOST_ITEMS)
        .map(|name| code(name))
        .collect();
    match nodes.len().saturating_sub(MOST_ITEMS) {
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
