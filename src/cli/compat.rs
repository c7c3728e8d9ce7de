//! `compat`: asks the matrix.

use std::fmt::Write as _;

use super::{
    Failure,
    args::{Compat, Format},
    machine, matrix, print,
    world::World,
};
use crate::{
    compat::question::{Answer, Compatibility, Machine, MeaningAnswer, Question, answer},
    exit::Exit,
    facts::GpuFact,
    model::gpu::SupportedFlavours,
};

pub(super) fn run(world: &mut World<'_>, args: &Compat) -> Result<Exit, Failure> {
    let matrix = matrix(world)?;
    let machine = match &args.lspci {
        Some(file) => {
            let host = machine::from_lspci(world, file)?;
            let facts = machine::facts(&host, &matrix, machine::TEXT_ONLY);
            Some(Machine {
                gpus: facts.gpus.iter().map(GpuFact::identity).collect(),
                nvswitch: !facts.nvswitches.is_empty(),
            })
        }
        None => None,
    };
    let question = Question {
        gpu: args.gpu.clone(),
        machine,
        cuda: args.cuda,
        driver: args.driver.clone(),
        kernel: args.kernel.clone(),
        os: args.os.clone(),
    };
    let answer = answer(&matrix, &question).map_err(|error| {
        Failure::usage(
            error,
            "for example `gpu-bootstrap compat --gpu L4 --cuda 12.8`",
        )
    })?;
    match args.output.format {
        Format::Json => print::json(&mut world.out, &answer)?,
        Format::Human => print::text(&mut world.out, &human(&answer))?,
    }
    Ok(if answer.is_compatible() {
        Exit::Ok
    } else {
        Exit::Blocked
    })
}

fn human(answer: &Answer) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "{}", title(answer.verdict));
    for why in &answer.why {
        let _ = writeln!(text, "  {why}");
    }
    let mut row = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            let _ = writeln!(text, "{name:<20} {value}");
        }
    };
    row(
        "oldest driver",
        answer.driver.min.as_ref().map(ToString::to_string),
    );
    row(
        "last branch",
        answer.driver.max_branch.map(|branch| branch.to_string()),
    );
    row(
        "recommended driver",
        answer.driver.recommended.as_ref().map(ToString::to_string),
    );
    row(
        "kernel modules",
        answer.module_flavour.map(modules).map(str::to_owned),
    );
    meanings(&mut text, &answer.meanings);
    for (at, citation) in answer.citations.iter().enumerate() {
        let name = if at == 0 { "sources" } else { "" };
        let _ = writeln!(text, "{name:<20} {citation}");
    }
    text
}

fn title(verdict: Compatibility) -> &'static str {
    match verdict {
        Compatibility::Compatible => "compatible",
        Compatibility::Incompatible => "incompatible",
        Compatibility::NeedsForwardCompat => "needs a cuda-compat package in the container",
        Compatibility::Unknown => "unknown",
    }
}

fn modules(flavour: SupportedFlavours) -> &'static str {
    match flavour {
        SupportedFlavours::Open => "open",
        SupportedFlavours::Proprietary => "proprietary",
        SupportedFlavours::Either => "open or proprietary",
    }
}

/// The answers of the meanings, where they differ: a line for those that agree, and what differs.
fn meanings(text: &mut String, meanings: &[MeaningAnswer]) {
    for meaning in meanings {
        let _ = writeln!(
            text,
            "{}: {}",
            meaning.gpus.join(", "),
            title(meaning.verdict)
        );
        for why in &meaning.why {
            let _ = writeln!(text, "  {why}");
        }
        let driver = &meaning.driver;
        let facts = [
            driver
                .min
                .as_ref()
                .map(|min| format!("oldest driver {min}")),
            driver.max_branch.map(|last| format!("last branch {last}")),
            (driver.recommended.as_ref()).map(|best| format!("recommended driver {best}")),
            meaning
                .module_flavour
                .map(|flavour| format!("kernel modules {}", modules(flavour))),
        ];
        let facts: Vec<String> = facts.into_iter().flatten().collect();
        if !facts.is_empty() {
            let _ = writeln!(text, "  {}", facts.join(", "));
        }
    }
}
