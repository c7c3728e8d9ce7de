use std::io::{self, Write};

use super::line;
use crate::{
    check::{Finding, Verdict},
    engine::RunReport,
    exit::Exit,
    model::{
        findings::{Kind, Layer, Remedy},
        id::Id,
    },
    report::{
        document::{MachineSummary, NodeStatus, TOOL},
        style::word,
    },
    state::LockStatus,
};

/// The lines of a metric: labels in braces, and the value.
type Lines = Vec<(String, f64)>;

/// Writes metrics in the Prometheus text format for the textfile collector of node_exporter. The collector requires constant
/// help and type lines, no timestamps, and a newline at the end. Write the metrics to a temporary file in the same directory,
/// then rename it. A metric whose value is unknown is omitted.
///
/// # Errors
/// An error of the writer.
pub fn prometheus(
    to: &mut dyn Write,
    report: &RunReport,
    machine: &MachineSummary,
    node: &NodeStatus,
) -> io::Result<()> {
    let mut metric = |name: &str, help: &str, lines: Lines| -> io::Result<()> {
        if lines.is_empty() {
            return Ok(());
        }
        writeln!(to, "# HELP gpu_bootstrap_{name} {help}")?;
        writeln!(to, "# TYPE gpu_bootstrap_{name} gauge")?;
        for (labels, value) in lines {
            writeln!(to, "gpu_bootstrap_{name}{labels} {value}")?;
        }
        Ok(())
    };
    metric(
        "build_info",
        "The version of gpu-bootstrap that wrote these metrics.",
        vec![(labels([("version", Some(TOOL.version))]), 1.0)],
    )?;
    metric(
        "info",
        "1, with the versions and the GPU models of this node. A label whose value is unknown is omitted.",
        vec![(info(machine, node), 1.0)],
    )?;
    metric(
        "check_success",
        "1 if the last check exited with status 0.",
        one(Some(flag(report.exit == Exit::Ok))),
    )?;
    metric(
        "check_duration_seconds",
        "Duration of the last check.",
        one(Some(report.seconds)),
    )?;
    #[expect(clippy::cast_precision_loss, reason = "a machine has few GPUs")]
    let gpus = machine.gpus as f64;
    metric("gpus", "NVIDIA GPUs on the PCI bus.", one(Some(gpus)))?;
    metric(
        "time_to_ready_seconds",
        "Duration of the last installation that changed something, including reboots, if it succeeded.",
        one(node.time_to_ready_seconds),
    )?;
    #[expect(clippy::cast_precision_loss, reason = "seconds since 1970 are exact")]
    let validated = node.validated.map(|at| at.as_second() as f64);
    metric(
        "validation_timestamp_seconds",
        "Time of the last successful validation of the GPUs.",
        one(validated),
    )?;
    metric(
        "reboot_pending",
        "1 if the machine must be rebooted: a run waits for it, the next boot starts another kernel, or it is the remedy of a problem.",
        one(node.reboot_pending.map(flag)),
    )?;
    metric(
        "run_active",
        "1 if install or uninstall was running during the last check, except while upgrade_waiting is 1.",
        one(node.run_active.map(flag)),
    )?;
    #[expect(clippy::cast_precision_loss, reason = "a machine has few packages")]
    let drift = (node.inventory.lock.as_ref()).map(|lock| lock.drift as f64);
    metric(
        "drift",
        "Packages that differ from the lock file of the node.",
        one(drift),
    )?;
    metric(
        "maintenance",
        "1 while an upgrade keeps the node out of service, also across reboots and after a failure.",
        one(node.maintenance.map(flag)),
    )?;
    metric(
        "upgrade_waiting",
        "1 while an upgrade waits for the fleet lock or for the end of the workloads. The driver is not changed yet.",
        one(node.upgrade_waiting.map(flag)),
    )?;
    metric(
        "root_cause",
        "1 for each failed finding that is not caused by another finding, with its kind (fault, risk or difference) and its remedy class.",
        root_causes(report),
    )?;
    metric(
        "finding",
        "1 for each finding of the last check, with its status (pass, warn, fail, skip or unknown) and its kind (fault, risk, difference or none).",
        findings(report),
    )?;
    to.flush()
}

fn one(value: Option<f64>) -> Lines {
    value
        .map(|value| (String::new(), value))
        .into_iter()
        .collect()
}

fn flag(is_set: bool) -> f64 {
    f64::from(u8::from(is_set))
}

/// Returns labels in braces. Prometheus treats an empty label like a missing one.
fn labels<'l>(pairs: impl IntoIterator<Item = (&'l str, Option<&'l str>)>) -> String {
    let known = pairs
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)));
    let labels: Vec<String> = known
        .map(|(name, value)| {
            let value = line(value).replace('\\', "\\\\").replace('"', "\\\"");
            format!("{name}=\"{value}\"")
        })
        .collect();
    format!("{{{}}}", labels.join(","))
}

fn info(machine: &MachineSummary, node: &NodeStatus) -> String {
    let inventory = &node.inventory;
    let models = inventory.models();
    let runtimes = inventory.runtimes.iter();
    labels(
        [
            ("node", inventory.name.as_deref()),
            ("os", machine.os.as_deref()),
            ("kernel", machine.kernel.as_deref()),
            ("instance_type", machine.instance_type.as_deref()),
            ("gpu", models.as_deref()),
            ("driver", inventory.driver.as_deref()),
            ("module_flavor", inventory.module_flavor.as_deref()),
            ("toolkit", inventory.toolkit.as_deref()),
            (
                "lock",
                inventory.lock.as_ref().map(LockStatus::short_digest),
            ),
        ]
        .into_iter()
        // The names of runtimes are valid label names.
        .chain(runtimes.map(|(name, version)| (name.as_str(), version.as_deref()))),
    )
}

fn root_causes(report: &RunReport) -> Lines {
    // The cause may be skipped (`check --ignore`).
    let is_problem = |id: &Id| {
        (report.findings.iter()).any(|other| other.id == *id && other.status != Verdict::Skip)
    };
    let has_cause = |finding: &Finding| finding.because.as_ref().is_some_and(is_problem);
    (report.findings.iter())
        .filter(|finding| finding.status == Verdict::Fail && !has_cause(finding))
        .map(|finding| {
            let labels = labels([
                ("id", Some(finding.id.as_str())),
                ("layer", Some(Layer::of(&finding.id).name())),
                ("kind", finding.kind().map(Kind::name)),
                ("remedy", finding.class().map(Remedy::name)),
            ]);
            (labels, 1.0)
        })
        .collect()
}

fn findings(report: &RunReport) -> Lines {
    (report.findings.iter())
        .map(|finding| {
            let labels = labels([
                ("id", Some(finding.id.as_str())),
                ("layer", Some(Layer::of(&finding.id).name())),
                ("kind", Some(finding.kind().map_or("none", Kind::name))),
                ("status", Some(word(finding.status))),
            ]);
            (labels, 1.0)
        })
        .collect()
}
