//! `driver.persistence`: the persistence daemon keeps the driver's state between clients; without
//! it each first use of a GPU takes seconds.

use async_trait::async_trait;

use super::{DRIVER_MODULE, driver_packages::adopts};
use crate::{
    change::Change,
    config::desired::Desired,
    facts::Facts,
    model::id::StepId,
    step::{Assessment, Cx, Step, StepError},
    tools::systemctl::UnitState,
};

/// See the module.
pub struct Persistence;

fn decide(unit: Option<&UnitState>, desired: &Desired, facts: &Facts, adopts: bool) -> Assessment {
    let (Some(_), Some(persistence)) = (&desired.driver, &desired.persistence) else {
        return Assessment::NotApplicable {
            why: "no persistence daemon is configured".into(),
        };
    };
    let name = &persistence.unit;
    if unit.is_some_and(|unit| unit.is_enabled() && unit.is_active()) {
        return Assessment::Satisfied {
            why: format!("`{name}` is enabled and active"),
        };
    }
    if desired.image {
        return Assessment::AwaitingBoot {
            why: format!("`{name}` needs a GPU; it is started at the first boot of the image"),
        };
    }
    if facts.gpus.is_empty() {
        return Assessment::NotApplicable {
            why: "no NVIDIA GPU is on the PCI bus".into(),
        };
    }
    if unit.is_none() && adopts {
        return Assessment::NotApplicable {
            why: format!("the adopted driver has no `{name}`"),
        };
    }
    Assessment::Needs {
        why: match unit {
            None => format!("`{name}` is not installed"),
            Some(unit) => format!("`{name}` is {unit}"),
        },
        changes: vec![Change::EnableUnit {
            unit: name.clone(),
            start: true,
        }],
    }
}

#[async_trait]
impl Step for Persistence {
    fn id(&self) -> StepId {
        super::DRIVER_PERSISTENCE
    }

    fn title(&self) -> &'static str {
        "Persistence daemon"
    }

    fn after(&self) -> &[StepId] {
        const { &[DRIVER_MODULE] }
    }

    async fn assess(&self, cx: &Cx<'_>) -> Result<Assessment, StepError> {
        let unit = match &cx.desired.persistence {
            Some(persistence) => cx.state.unit(&persistence.unit).await?,
            None => None,
        };
        Ok(decide(
            unit.as_ref(),
            cx.desired,
            cx.facts,
            adopts(cx).await,
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::decide;
    use crate::{
        step::Assessment,
        steps::fixtures::{desired, facts, unit},
    };

    #[test]
    fn enabled_and_active() {
        let (mut want, facts) = (desired(), facts());
        let good = unit("enabled", "active");
        assert!(matches!(
            decide(Some(&good), &want, &facts, false),
            Assessment::Satisfied { .. }
        ));
        let failed = unit("enabled", "failed");
        let Assessment::Needs { why, .. } = decide(Some(&failed), &want, &facts, false) else {
            panic!("must be started");
        };
        assert_eq!(
            why,
            "`nvidia-persistenced.service` is enabled and failed (success)"
        );
        want.image = true;
        assert!(matches!(
            decide(None, &want, &facts, false),
            Assessment::AwaitingBoot { .. }
        ));
    }
}
