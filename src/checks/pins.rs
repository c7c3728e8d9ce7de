//! The family of checks about tomorrow: an upgrade leaves the pinned packages alone, and the kernels that
//! run now and at the next boot have the driver's module.

use async_trait::async_trait;

use crate::{
    check::{Check, Finding, Subject, Verdict},
    config::desired::{Desired, Purpose},
    host::ExecError,
    model::{findings::Kind, id::Id, pattern},
    state::{Origin, State},
    step::StepError,
    tools::packages::Action,
};

const PINS: Id = Id::new("os.pkg.pins");
const KERNELS: Id = Id::new("drv.module.kernels");

/// See the module.
pub struct PinsCheck;

/// What an upgrade would do with the packages that are to stay.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Moves {
    /// Nothing says.
    Unasked(String),
    /// These.
    Found(Vec<Action>),
}

#[derive(Debug, Clone)]
struct PinsState {
    moves: Moves,
    /// Kernels without the module among those that run now or at the next boot; `Err` has why this is
    /// not asked.
    without: Result<Vec<String>, String>,
    /// A driver is loaded.
    is_loaded: bool,
}

async fn detect(subject: &Subject<'_>) -> Result<PinsState, StepError> {
    let Some(desired) = subject.desired else {
        let why = "nothing is known to be wanted here".to_owned();
        return Ok(PinsState {
            moves: Moves::Unasked(why.clone()),
            without: Err(why),
            is_loaded: false,
        });
    };
    Ok(PinsState {
        moves: moves(subject, desired).await?,
        without: without(subject, desired).await?,
        is_loaded: !matches!(subject.state.loaded_driver(), Ok(None)),
    })
}

async fn moves(subject: &Subject<'_>, desired: &Desired) -> Result<Moves, StepError> {
    let (hold, backend) = (&desired.hold.patterns, desired.packages.manager.backend());
    if hold.is_empty() {
        return Ok(Moves::Unasked("no package is to be held".to_owned()));
    }
    if driver_is_absent(subject.state, desired).await? {
        return Ok(Moves::Unasked("nothing of it is installed yet".to_owned()));
    }
    let Some(query) = backend.upgrade() else {
        let name = backend.name();
        return Ok(Moves::Unasked(format!("{name} is not asked for this")));
    };
    if !backend.has_lists(subject.host.files())? {
        return Ok(Moves::Unasked("there are no package lists".to_owned()));
    }
    let output = match subject.host.query(&query).await {
        Ok(output) if backend.has_answered(&output) => output,
        Ok(output) => output.success(query.cmd())?,
        Err(ExecError::NotAsked { why, .. }) => return Ok(Moves::Unasked(why)),
        Err(error) => return Err(error.into()),
    };
    if let Some(why) = backend.unasked(&output) {
        return Ok(Moves::Unasked(why));
    }
    let is_held = |name: &str| {
        let bare = backend.bare_name(name);
        hold.iter().any(|one| pattern::matches(one, bare))
    };
    let manager = desired.packages.manager;
    let database = subject.state.database(manager).await?.unwrap_or_default();
    let actions = (backend.parse_actions(&output.stdout, database)).into_iter();
    Ok(Moves::Found(
        actions
            .filter(|action| match action {
                Action::Install { name, .. } | Action::Remove { name, .. } => is_held(name),
            })
            .collect(),
    ))
}

/// Whether nothing was installed yet that could move.
async fn driver_is_absent(state: &State, desired: &Desired) -> Result<bool, StepError> {
    let manager = desired.packages.manager;
    let Some(database) = state.database(manager).await? else {
        return Ok(true);
    };
    let wanted = desired.package_groups();
    let mut wanted = (wanted.iter())
        .filter(|(purpose, _)| *purpose != Purpose::Holds)
        .flat_map(|(_, packages)| *packages);
    Ok(!wanted.any(|wish| {
        (database.iter()).any(|package| package.id == wish.name && package.is_installed())
    }))
}

async fn without(
    subject: &Subject<'_>,
    desired: &Desired,
) -> Result<Result<Vec<String>, String>, StepError> {
    let Some(driver) = &desired.driver else {
        return Ok(Err("no driver is wanted".to_owned()));
    };
    match subject.state.driver().await.origin {
        None => return Ok(Err("no driver is installed".to_owned())),
        // Its module may have another name.
        Some(Origin::Runfile | Origin::Preinstalled) => {
            return Ok(Err("the driver did not come as packages".to_owned()));
        }
        Some(Origin::Distribution | Origin::Vendor) => {}
    }
    let kernel = &subject.facts.kernel;
    let matter: Vec<String> = (kernel.running.iter().chain(&kernel.next_boot))
        .map(ToString::to_string)
        .collect();
    let mut without = subject.state.kernels_without(&driver.module)?;
    without.retain(|one| matter.contains(one));
    Ok(Ok(without))
}

fn pins(state: &PinsState) -> Finding {
    let say = |status, why: String| Finding::new(PINS, status, why);
    let actions = match &state.moves {
        Moves::Unasked(why) => return say(Verdict::Skip, why.clone()),
        Moves::Found(actions) => actions,
    };
    if actions.is_empty() {
        return say(
            Verdict::Pass,
            "an upgrade of the whole system would change none of them".to_owned(),
        );
    }
    let told: Vec<String> = actions.iter().map(told).collect();
    Finding {
        observed: Some(told.join(", ")),
        expected: Some("no change".to_owned()),
        remedy: Some("run `gpu-bootstrap install`, which holds them".to_owned()),
        ..say(
            Verdict::Fail,
            format!(
                "the next upgrade of the system, also an automatic one, would {}",
                told.join(", ")
            ),
        )
    }
}

fn told(action: &Action) -> String {
    match action {
        Action::Install {
            name,
            from: Some(from),
            to,
        } => format!("change {name} from {from} to {to}"),
        Action::Install { name, to, .. } => format!("install {name} {to}"),
        Action::Remove { name, version } => format!("remove {name} {version}"),
    }
}

fn kernels(state: &PinsState) -> Finding {
    let say = |status, why: String| Finding::new(KERNELS, status, why);
    match &state.without {
        Err(why) => say(Verdict::Skip, why.clone()),
        Ok(without) if without.is_empty() => say(Verdict::Pass, "each of them has it".to_owned()),
        Ok(without) => Finding {
            observed: Some(without.join(", ")),
            expected: Some("a module for each".to_owned()),
            // A loaded driver works until the next boot.
            as_kind: state.is_loaded.then_some(Kind::Risk),
            remedy: Some(
                "run `gpu-bootstrap install`, which installs or builds the module".to_owned(),
            ),
            ..say(
                Verdict::Fail,
                format!("no module is on disk for {}", without.join(", ")),
            )
        },
    }
}

#[async_trait]
impl Check for PinsCheck {
    fn ids(&self) -> &[Id] {
        const { &[PINS, KERNELS] }
    }

    async fn examine(&self, subject: &Subject<'_>) -> Result<Vec<Finding>, StepError> {
        let state = detect(subject).await?;
        Ok(vec![pins(&state), kernels(&state)])
    }
}

#[cfg(test)]
mod tests {
    use super::{Moves, PinsState, kernels, pins};
    use crate::{check::Verdict, tools::packages::Action};

    fn state(moves: Moves, without: &[&str]) -> PinsState {
        PinsState {
            moves,
            without: Ok(without.iter().map(ToString::to_string).collect()),
            is_loaded: false,
        }
    }

    #[test]
    fn an_upgrade_that_would_move_a_pinned_package_fails() {
        let quiet = state(Moves::Found(vec![]), &[]);
        assert_eq!(pins(&quiet).status, Verdict::Pass);
        let moved = state(
            Moves::Found(vec![
                Action::Install {
                    name: "libnvidia-ml1".into(),
                    from: Some("580.173.02-1".into()),
                    to: "580.178.04-1".into(),
                },
                // A metapackage that is not held brings it.
                Action::Install {
                    name: "linux-image-6.8.0-150-generic".into(),
                    from: None,
                    to: "6.8.0-150.150".into(),
                },
            ]),
            &[],
        );
        let finding = pins(&moved);
        assert_eq!(finding.status, Verdict::Fail);
        for words in [
            "change libnvidia-ml1 from 580.173.02-1 to 580.178.04-1",
            "install linux-image-6.8.0-150-generic",
        ] {
            assert!(finding.why.contains(words), "{}", finding.why);
        }
        let unasked = state(Moves::Unasked("with `--root`".into()), &[]);
        assert_eq!(pins(&unasked).status, Verdict::Skip);
    }

    #[test]
    fn a_kernel_without_the_module_fails() {
        let good = state(Moves::Found(vec![]), &[]);
        assert_eq!(kernels(&good).status, Verdict::Pass);
        let bad = state(Moves::Found(vec![]), &["6.8.0-150-generic"]);
        let finding = kernels(&bad);
        assert_eq!(finding.status, Verdict::Fail);
        assert_eq!(finding.observed.as_deref(), Some("6.8.0-150-generic"));
    }
}
