use std::io::{self, Write};

use super::{Alarm, by_layer, causes_first, entities, line, values, verdict_of};
use crate::{
    check::{Finding, Verdict},
    engine::RunReport,
    facts::{Facts, PciFact},
    model::{
        findings::{Kind, Layer},
        pci::PciAddress,
        text::counted,
    },
    report::{
        document::{MachineSummary, TOOL, Verdicts},
        style::word,
    },
};

const STYLE: &str = include_str!("page.css");

/// Writes one self-contained page with the verdict, the PCI devices, the layers of the node (the lowest broken one is marked),
/// and each finding with its remedy.
///
/// # Errors
/// An error of the writer.
pub fn html(to: &mut dyn Write, report: &RunReport, facts: &Facts) -> io::Result<()> {
    let machine = MachineSummary::of(facts);
    let alarm = Alarm::of(report);
    let (class, verdict) = match alarm {
        Alarm::Fine => ("pass", "no fault found"),
        Alarm::Warning => ("warn", "no fault found, with warnings"),
        Alarm::Critical => ("fail", verdict_of(report)),
        Alarm::Unknown => ("unknown", "not everything could be examined"),
    };
    write!(
        to,
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>GPU check: {verdict}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n\
         <header class=\"{class}\">\n<h1>{verdict}</h1>\n"
    )?;
    if let Some(cause) = alarm.causes(&report.findings).first() {
        writeln!(to, "<p>{}</p>", escaped(&cause.why))?;
    }
    let gpus = counted(machine.gpus, "GPU");
    let about: Vec<String> = [
        machine.os,
        machine.kernel,
        machine.cloud,
        machine.instance_type,
        machine.instance_id,
        Some(gpus),
    ]
    .into_iter()
    .flatten()
    .map(|part| escaped(&part))
    .collect();
    writeln!(
        to,
        "<p class=\"about\">{}</p>\n</header>",
        about.join(" · ")
    )?;
    devices(to, report, facts)?;
    layers(to, &report.findings)?;
    findings(to, &report.findings)?;
    let count = Verdicts::of(&report.findings);
    writeln!(
        to,
        "<footer>{} · {} {}</footer>\n</body>\n</html>",
        count.sentence(),
        TOOL.name,
        TOOL.version
    )?;
    to.flush()
}

/// The PCI devices. A device is marked if a failed finding or a warning contains its address.
fn devices(to: &mut dyn Write, report: &RunReport, facts: &Facts) -> io::Result<()> {
    let named_by = |address: &str, verdict: Verdict| {
        (report.findings.iter())
            .filter(|finding| finding.status == verdict)
            .any(|finding| {
                let observed = finding.observed.as_deref().unwrap_or_default();
                finding.why.contains(address) || observed.contains(address)
            })
    };
    let class = |address: &str| match () {
        () if named_by(address, Verdict::Fail) => "fail",
        () if named_by(address, Verdict::Warn) => "warn",
        () => "plain",
    };
    let rows = [
        (
            "GPUs",
            (facts.gpus.iter().map(|gpu| (gpu.pci_address, &gpu.name))).collect(),
        ),
        ("NVSwitches", named(&facts.nvswitches)),
        ("Network", named(&facts.network_devices)),
    ];
    if rows.iter().all(|(_, devices)| devices.is_empty()) {
        return Ok(());
    }
    writeln!(to, "<section class=\"bus\">\n<h2>Bus</h2>")?;
    for (title, devices) in rows.iter().filter(|(_, devices)| !devices.is_empty()) {
        writeln!(to, "<div class=\"row\"><span>{title}</span><ul>")?;
        for (address, name) in devices {
            let address = address.to_string();
            writeln!(
                to,
                "<li class=\"{}\"><code>{address}</code>{}</li>",
                class(&address),
                escaped(name.as_deref().unwrap_or_default())
            )?;
        }
        writeln!(to, "</ul></div>")?;
    }
    writeln!(to, "</section>")
}

fn named(devices: &[PciFact]) -> Vec<(PciAddress, &Option<String>)> {
    (devices
        .iter()
        .map(|device| (device.pci_address, &device.name)))
    .collect()
}

/// The layers, with the lowest one at the bottom. The lowest failed layer has the root cause.
fn layers(to: &mut dyn Write, findings: &[Finding]) -> io::Result<()> {
    let worst = |findings: &[&Finding]| {
        let any = |verdict| findings.iter().any(|finding| finding.status == verdict);
        [
            Verdict::Fail,
            Verdict::Warn,
            Verdict::Unknown,
            Verdict::Pass,
        ]
        .into_iter()
        .find(|verdict| any(*verdict))
        .map_or("skip", word)
    };
    let all: Vec<(Layer, Vec<&Finding>)> = by_layer(findings).collect();
    let root = (all.iter()).find(|(_, findings)| worst(findings) == "fail");
    writeln!(to, "<section class=\"layers\">\n<h2>Layers</h2>\n<ol>")?;
    for (layer, findings) in all.iter().rev() {
        let class = worst(findings);
        let mark = match root {
            Some((broken, _)) if broken == layer => " <strong>here</strong>",
            _ => "",
        };
        let count = |is: fn(Verdict) -> bool| {
            (findings.iter())
                .filter(|finding| is(finding.status))
                .count()
        };
        let counts = match count(|verdict| verdict != Verdict::Skip) {
            0 => "nothing to examine".to_owned(),
            looked_at => format!(
                "{} of {looked_at} pass",
                count(|verdict| verdict == Verdict::Pass)
            ),
        };
        writeln!(
            to,
            "<li class=\"{class}\"><span>{}</span>{mark}<em>{counts}</em></li>",
            layer.name()
        )?;
    }
    writeln!(to, "</ol>\n</section>")
}

fn findings(to: &mut dyn Write, findings: &[Finding]) -> io::Result<()> {
    writeln!(to, "<section>\n<h2>Findings</h2>")?;
    let findings = causes_first(findings);
    for verdict in [
        Verdict::Fail,
        Verdict::Warn,
        Verdict::Unknown,
        Verdict::Pass,
        Verdict::Skip,
    ] {
        for finding in findings.iter().filter(|one| one.status == verdict) {
            one(to, finding)?;
        }
    }
    writeln!(to, "</section>")
}

/// Writes a finding. Problems are expanded, except failures that another finding caused.
fn one(to: &mut dyn Write, finding: &Finding) -> io::Result<()> {
    let class = word(finding.status);
    let kind = finding.kind().map_or(class, Kind::name);
    let open = match finding.status {
        Verdict::Fail => finding.because.is_none(),
        Verdict::Warn | Verdict::Unknown => true,
        Verdict::Pass | Verdict::Skip => false,
    };
    writeln!(
        to,
        "<details class=\"{class}\"{}><summary><b>{kind}</b> {} <code>{}</code></summary>\n<p>{}</p>",
        if open { " open" } else { "" },
        escaped(&finding.title),
        finding.id,
        escaped(&finding.why)
    )?;
    if let Some(cause) = &finding.because {
        writeln!(to, "<p>caused by <code>{cause}</code></p>")?;
    }
    let rows: String = values(finding)
        .filter(|(name, _)| *name != "kind")
        .map(|(name, value)| match name {
            "command" => format!(
                "<dt>{name}</dt><dd><code>{}</code></dd>",
                entities(&line(value))
            ),
            _ => format!("<dt>{name}</dt><dd>{}</dd>", escaped(value)),
        })
        .collect();
    if !rows.is_empty() {
        writeln!(to, "<dl>{rows}</dl>")?;
    }
    for link in &finding.links {
        let link = escaped(link);
        writeln!(to, "<p><a href=\"{link}\">{link}</a></p>")?;
    }
    writeln!(to, "</details>")
}

/// Escapes text as one line. Text between backquotes becomes a code span.
fn escaped(text: &str) -> String {
    let text = entities(&line(text));
    let parts: Vec<&str> = text.split('`').collect();
    // If a backquote is unpaired, all backquotes are literal.
    if parts.len().is_multiple_of(2) {
        return text;
    }
    (parts.iter().enumerate())
        .map(|(at, part)| match at % 2 {
            1 => format!("<code>{part}</code>"),
            _ => (*part).to_owned(),
        })
        .collect()
}
