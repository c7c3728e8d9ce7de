//! `explain`: what is known of a finding, from the registry.

use super::{Failure, args, print, world::Console};
use crate::{
    engine::no_finding,
    exit::Exit,
    model::{
        findings::{self, FindingRow},
        id::{Id, stands_for},
        text,
    },
    report,
};

/// Whether a name is that of a finding, or its part before a dot.
fn is_of(id: &Id, row: &FindingRow) -> bool {
    stands_for(id.as_str(), row.id.as_str())
}

pub(super) fn run(console: &mut Console<'_>, args: &args::ExplainArgs) -> Result<Exit, Failure> {
    let asked = |row: &FindingRow| args.ids.is_empty() || args.ids.iter().any(|id| is_of(id, row));
    for id in &args.ids {
        if !findings::rows().iter().any(|row| is_of(id, row)) {
            let names = findings::rows().iter().map(|row| row.id.as_str());
            let nearest = text::nearest(id.as_str(), names);
            return Err(no_finding(id.as_str(), nearest).into());
        }
    }
    let rows: Vec<&FindingRow> = findings::rows().iter().filter(|row| asked(row)).collect();
    let style = console.out_style();
    match args.output.format {
        args::OutputFormat::Json => print::json(&mut console.out, &rows)?,
        args::OutputFormat::Human if args.ids.is_empty() => {
            print::show(&mut console.out, |to| {
                report::human::findings(to, &rows, style)
            })?;
        }
        args::OutputFormat::Human => {
            print::show(&mut console.out, |to| {
                report::human::explain(to, &rows, style)
            })?;
        }
    }
    Ok(Exit::Ok)
}
