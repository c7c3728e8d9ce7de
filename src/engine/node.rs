//! The node that a successful `install` has prepared.

use super::{Session, job::Job, result::RunReport, timing};
use crate::{
    config::{
        choices::ImexMode,
        desired::{Desired, Purpose},
    },
    error::one_line,
    event::Outcome,
    exit::Exit,
    journal::Receipt,
    model::{
        id::StepId,
        node::{NodePackage, NodePart, NodeSummary},
    },
    state::{State, StateError},
    steps,
    tools::imex,
};

impl Session {
    /// Describes the node if the run has made it ready. `before` is the receipt at the start of the run. An unreadable value
    /// becomes a note, because the node is ready anyway.
    pub(super) async fn node(
        &self,
        exit: Exit,
        jobs: &[Job],
        before: &Receipt,
        notes: &mut Vec<String>,
    ) -> Option<NodeSummary> {
        let awaits_boot = |job: &Job| job.has(Outcome::AwaitingBoot);
        if exit != Exit::Ok || jobs.iter().any(awaits_boot) {
            return None;
        }
        let state = self.inner.state();
        let desired = self.inner.wanted(&state).await?;
        match summary(&state, &desired, jobs).await {
            Ok(node) => Some(NodeSummary {
                imex: self.imex(&desired, jobs, notes).await,
                reboots: before.reboots,
                reboot_reasons: before.reboot_reasons.clone(),
                ..node
            }),
            Err(error) => {
                let why = one_line(&error);
                let note = format!("failed to read the state of the node after the run: {why}");
                self.tools.note(notes, note);
                None
            }
        }
    }

    /// Returns the state of the IMEX daemon if `install` has configured it. A failed query becomes a note, because the node is ready
    /// anyway.
    async fn imex(
        &self,
        desired: &Desired,
        jobs: &[Job],
        notes: &mut Vec<String>,
    ) -> Option<String> {
        let runs = |job: &Job| job.id == steps::FABRIC_IMEX && job.succeeded();
        if desired.settings.fabric.imex != ImexMode::Host || !jobs.iter().any(runs) {
            return None;
        }
        let query = imex::state();
        let answer = self.tools.host.reader().query(&query).await;
        let why = match answer.and_then(|output| output.success(query.cmd())) {
            Ok(output) => match output.stdout.trim().lines().next() {
                Some(state) => return Some(state.to_owned()),
                None => "no output".to_owned(),
            },
            Err(error) => one_line(&error),
        };
        let note = format!("failed to query the state of the IMEX daemon: {why}");
        self.tools.note(notes, note);
        None
    }

    /// Returns the duration of the installation that this run completed.
    pub(super) fn to_ready(&self, report: &RunReport) -> Option<f64> {
        let is_done = report.exit == Exit::Ok;
        // The run has finished, even if its duration cannot be read.
        is_done
            .then(|| {
                timing::ready_by(&self.tools.host, &report.run)
                    .ok()
                    .flatten()
            })
            .flatten()
    }
}

async fn summary(
    state: &State,
    desired: &Desired,
    jobs: &[Job],
) -> Result<NodeSummary, StateError> {
    let succeeded = |id: &StepId| jobs.iter().any(|job| job.id == *id && job.succeeded());
    let validated = if succeeded(&steps::VALIDATION_CONTAINER) {
        let names: Vec<&str> = (desired.runtimes.iter())
            .map(|one| one.kind.name())
            .collect();
        Some(format!("in a container of {}", names.join(" and ")))
    } else {
        succeeded(&steps::VALIDATION_COMPUTE).then(|| "on the host".to_owned())
    };
    // `cluster.command` may join something other than a Kubernetes cluster.
    let membership = (state.membership()?).filter(|_| succeeded(&steps::CLUSTER_JOIN));
    let (mut node, mut endpoint) = (None, None);
    if let (Some(membership), Some(spec)) = (membership, &desired.cluster) {
        node = match &spec.node.name {
            Some(name) => Some(name.clone()),
            None => state.host_name()?,
        };
        let method = spec.method.implementation();
        endpoint = Some(method.endpoint(&membership).to_owned());
    }
    let node = node.map(|name| name.to_string());
    let has_driver = desired.driver.is_some();
    let examples = (desired.runtimes.iter())
        .filter(|_| has_driver)
        .filter_map(|one| one.kind.runtime().facts().example);
    let mut commands: Vec<String> = examples.take(1).map(str::to_owned).collect();
    commands.extend(
        node.iter()
            .map(|name| format!("kubectl get node {name} --show-labels")),
    );
    let mut gpus = Vec::new();
    for gpu in &state.facts().gpus {
        if has_driver && !state.is_reserved(gpu.pci_address)? {
            gpus.push(gpu.name.clone().unwrap_or_else(|| gpu.pci_id.to_string()));
        }
    }
    Ok(NodeSummary {
        driver: state.loaded_driver()?.filter(|_| has_driver).cloned(),
        flavor: state.loaded_flavor()?.filter(|_| has_driver),
        packages: packages(state, desired).await?,
        gpus,
        validated,
        node,
        endpoint,
        commands,
        ..NodeSummary::default()
    })
}

/// Returns the first installed package of each part.
async fn packages(state: &State, desired: &Desired) -> Result<Vec<NodePackage>, StateError> {
    let manager = desired.packages.manager;
    let database = state.database(manager).await?.unwrap_or_default();
    let groups = desired.package_groups();
    let parts = groups.iter().filter_map(|(purpose, specs)| {
        let part = match purpose {
            Purpose::Driver => NodePart::Driver,
            Purpose::Runtime(_) => NodePart::Runtime,
            Purpose::Toolkit => NodePart::Toolkit,
            Purpose::Cluster => NodePart::Cluster,
            Purpose::Headers
            | Purpose::ContainerModules
            | Purpose::Dcgm
            | Purpose::Rdma
            | Purpose::Holds => return None,
        };
        let found = specs.iter().find_map(|spec| {
            (database.iter()).find(|package| package.id == spec.name && package.is_installed())
        })?;
        Some(NodePackage {
            part,
            name: found.name.clone(),
            version: found.version.clone(),
            held: found.held,
        })
    });
    Ok(parts.collect())
}
