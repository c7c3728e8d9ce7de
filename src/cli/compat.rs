//! `compat`: asks the matrix.

use std::fmt::Write as _;

use super::{
    Failure,
    args::{Compat, Format},
    matrix, print,
    world::World,
};
use crate::{
    compat::question::{Answer, Compatibility, Question, QuestionError, answer},
    exit::Exit,
    model::gpu::SupportedFlavours,
};

pub(super) fn run(world: &mut World<'_>, args: &Compat) -> Result<Exit, Failure> {
    let matrix = matrix(world)?;
    let question = Question {
        gpu: args.gpu.clone(),
        cuda: args.cuda,
        driver: args.driver.clone(),
        kernel: args.kernel.clone(),
        os: args.os.clone(),
    };
    let answer = answer(&matrix, &question).map_err(|error| {
        let hint = match &error {
            QuestionError::Empty => "for example `gpu-bootstrap compat --gpu L4 --cuda 12.8`",
            QuestionError::Gpu(_) => "`lspci -nn -d 10de:` prints the PCI id in brackets",
        };
        Failure::usage(error, hint)
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
    let verdict = match answer.verdict {
        Compatibility::Compatible => "compatible",
        Compatibility::Incompatible => "incompatible",
        Compatibility::NeedsForwardCompat => "needs a cuda-compat package in the container",
        Compatibility::Unknown => "unknown",
    };
    let _ = writeln!(text, "{verdict}");
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
    let flavour = answer.module_flavour.map(|flavour| match flavour {
        SupportedFlavours::Open => "open",
        SupportedFlavours::Proprietary => "proprietary",
        SupportedFlavours::Either => "open or proprietary",
    });
    row("kernel modules", flavour.map(str::to_owned));
    for (at, citation) in answer.citations.iter().enumerate() {
        let name = if at == 0 { "sources" } else { "" };
        let _ = writeln!(text, "{name:<20} {citation}");
    }
    text
}
