//! Checks of upcoming changes: a system upgrade must not change packages that match the hold patterns, and the running kernel
//! and the kernel of the next boot must have the driver module.

use super::module_build::has_module_of;
use crate::{
    check::{Family, Finding, Subject, Verdict},
    config::desired::{Desired, Purpose},
    host::ExecError,
    model::{findings::Kind, id::Id, pattern},
    state::{Origin, State},
    step::StepError,
    tools::packages::{Action, ForcedOrigin},
};

const PINS: Id = Id::new("os.pkg.pins");
const KERNELS: Id = Id::new("drv.module.kernels");

/// The checks of upcoming changes.
pub(super) const FAMILY: Family = Family {
    ids: || vec![PINS, KERNELS],
    examine: |subject| Box::pin(examine(subject)),
};

/// The effect of a system upgrade on packages that match the hold patterns.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Moves {
    /// Unknown, with the reason.
    NotQueried(String),
    /// The changes that the upgrade would make.
    Found(Vec<Action>),
}

#[derive(Debug, Clone)]
struct PinsState {
    moves: Moves,
    /// The repositories whose packages replace newer ones, because of a preference of the administrator.
    forced: Vec<ForcedOrigin>,
    /// The running kernel and the kernel of the next boot, if they have no module. `Err` contains the reason why this was
    /// not checked.
    without: Result<Vec<String>, String>,
    /// A driver is loaded.
    is_loaded: bool,
}

async fn detect(subject: &Subject<'_>) -> Result<PinsState, StepError> {
    let Some(desired) = subject.desired else {
        let why = "the desired state is unknown".to_owned();
        return Ok(PinsState {
            moves: Moves::NotQueried(why.clone()),
            forced: Vec::new(),
            without: Err(why),
            is_loaded: false,
        });
    };
    Ok(PinsState {
        moves: moves(subject, desired).await?,
        forced: match subject.state.driver().await.origin {
            Some(_) => (desired.packages.manager.backend()).forced(subject.host.files())?,
            None => Vec::new(),
        },
        without: without(subject, desired).await?,
        is_loaded: !matches!(subject.state.loaded_driver(), Ok(None)),
    })
}

async fn moves(subject: &Subject<'_>, desired: &Desired) -> Result<Moves, StepError> {
    let (hold, backend) = (&desired.hold.patterns, desired.packages.manager.backend());
    if hold.is_empty() {
        return Ok(Moves::NotQueried(
            "no held packages are configured".to_owned(),
        ));
    }
    if driver_is_absent(subject.state, desired).await? {
        return Ok(Moves::NotQueried(
            "the packages are not installed yet".to_owned(),
        ));
    }
    if !backend.has_lists(subject.host.files(), desired.packages.bundled.as_deref())? {
        return Ok(Moves::NotQueried("there are no package lists".to_owned()));
    }
    let query = backend.upgrade();
    let output = match subject.host.query(&query).await {
        Ok(output) if backend.has_answered(&output) => output,
        Ok(output) => output.success(query.cmd())?,
        Err(ExecError::NotQueried { why, .. }) => return Ok(Moves::NotQueried(why)),
        Err(error) => return Err(error.into()),
    };
    if let Some(why) = backend.not_queried(&output) {
        return Ok(Moves::NotQueried(why));
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

/// Whether none of the configured packages is installed yet.
async fn driver_is_absent(state: &State, desired: &Desired) -> Result<bool, StepError> {
    let manager = desired.packages.manager;
    let Some(database) = state.database(manager).await? else {
        return Ok(true);
    };
    let wanted = desired.package_groups();
    let mut wanted = (wanted.iter())
        .filter(|(purpose, _)| *purpose != Purpose::Holds)
        .flat_map(|(_, packages)| *packages);
    Ok(!wanted.any(|spec| {
        (database.iter()).any(|package| package.id == spec.name && package.is_installed())
    }))
}

async fn without(
    subject: &Subject<'_>,
    desired: &Desired,
) -> Result<Result<Vec<String>, String>, StepError> {
    let Some(driver) = &desired.driver else {
        return Ok(Err("no driver is configured".to_owned()));
    };
    match subject.state.driver().await.origin {
        None => return Ok(Err("no driver is installed".to_owned())),
        // The module of such a driver may have another name.
        Some(Origin::Runfile | Origin::Preinstalled) => {
            return Ok(Err("the driver was not installed from packages".to_owned()));
        }
        Some(Origin::Distribution | Origin::Vendor) => {}
    }
    let kernel = &subject.facts.kernel;
    let matter: Vec<String> = (kernel.running.iter().chain(&kernel.next_boot))
        .map(ToString::to_string)
        .collect();
    let mut without = subject.state.kernels_without(&driver.module)?;
    without.retain(|one| matter.contains(one));
    if subject.prepared {
        return Ok(Ok(without));
    }
    // The driver may be from other packages, whose module has another name.
    let mut without_any = Vec::new();
    for kernel in without {
        if has_module_of(subject.host.files(), &kernel)? != Some(true) {
            without_any.push(kernel);
        }
    }
    Ok(Ok(without_any))
}

fn pins(state: &PinsState) -> Finding {
    let finding = |status, why: String| Finding::new(PINS, status, why);
    let actions = match (&state.moves, &state.forced[..]) {
        (Moves::NotQueried(why), []) => return finding(Verdict::Skip, why.clone()),
        (Moves::NotQueried(_), [first, ..]) => {
            let pins: Vec<String> = (state.forced.iter())
                .map(|one| format!("`{}` pins {} to {}", one.path, one.host, one.priority))
                .collect();
            return Finding {
                remedy: Some(format!(
                    "if the driver is not from this repository, set a `Pin-Priority` below 1000 in `{}`",
                    first.path
                )),
                ..finding(
                    Verdict::Warn,
                    format!(
                        "{}, so a system upgrade may replace the driver with an older one",
                        pins.join("; ")
                    ),
                )
            };
        }
        (Moves::Found(actions), _) => actions,
    };
    if actions.is_empty() {
        return finding(
            Verdict::Pass,
            "a system upgrade would not change the held packages".to_owned(),
        );
    }
    let told: Vec<String> = actions.iter().map(told).collect();
    Finding {
        observed: Some(told.join(", ")),
        expected: Some("no change".to_owned()),
        remedy: Some("run `gpu-bootstrap install`, which holds them".to_owned()),
        ..finding(
            Verdict::Fail,
            format!(
                "the next system upgrade (including automatic ones) would {}",
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
    let finding = |status, why: String| Finding::new(KERNELS, status, why);
    match &state.without {
        Err(why) => finding(Verdict::Skip, why.clone()),
        Ok(without) if without.is_empty() => finding(
            Verdict::Pass,
            "the running kernel and the kernel of the next boot have the module".to_owned(),
        ),
        Ok(without) => Finding {
            observed: Some(without.join(", ")),
            expected: Some("a module for each kernel".to_owned()),
            // A loaded driver works until the next boot.
            as_kind: state.is_loaded.then_some(Kind::Risk),
            remedy: Some(
                "run `gpu-bootstrap install`, which installs or builds the module".to_owned(),
            ),
            ..finding(
                Verdict::Fail,
                format!("no driver module for {}", without.join(", ")),
            )
        },
    }
}

async fn examine(subject: &Subject<'_>) -> Result<Vec<Finding>, StepError> {
    let state = detect(subject).await?;
    Ok(vec![pins(&state), kernels(&state)])
}

#[cfg(test)]
mod tests {
    use super::{Moves, PinsState, kernels, pins};
    use crate::{
        check::Verdict,
        tools::packages::{Action, ForcedOrigin},
    };

    fn state(moves: Moves, without: &[&str]) -> PinsState {
        PinsState {
            moves,
            forced: Vec::new(),
            without: Ok(without.iter().map(ToString::to_string).collect()),
            is_loaded: false,
        }
    }

    #[test]
    fn upgrade_of_a_package_matching_a_hold_pattern_fails() {
        let quiet = state(Moves::Found(vec![]), &[]);
        assert_eq!(pins(&quiet).status, Verdict::Pass);
        let moved = state(
            Moves::Found(vec![
                Action::Install {
                    name: "libnvidia-ml1".into(),
                    from: Some("580.173.02-1".into()),
                    to: "580.178.04-1".into(),
                },
                // A metapackage that is not held depends on this package.
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
        let not_queried = state(Moves::NotQueried("with `--root`".into()), &[]);
        assert_eq!(pins(&not_queried).status, Verdict::Skip);
        let forced = ForcedOrigin {
            path: "/etc/apt/preferences.d/vendor".into(),
            host: "archive.example.com".to_owned(),
            priority: 1001,
        };
        let of = |moves| PinsState {
            forced: vec![forced.clone()],
            ..state(moves, &[])
        };
        let finding = pins(&of(Moves::NotQueried("with `--root`".into())));
        assert_eq!(finding.status, Verdict::Warn);
        assert!(
            finding.why.contains("/etc/apt/preferences.d/vendor"),
            "{}",
            finding.why
        );
        // The simulated upgrade shows the effect of the record.
        assert_eq!(pins(&of(Moves::Found(vec![]))).status, Verdict::Pass);
    }

    #[test]
    fn kernel_without_the_module_fails() {
        let good = state(Moves::Found(vec![]), &[]);
        assert_eq!(kernels(&good).status, Verdict::Pass);
        let bad = state(Moves::Found(vec![]), &["6.8.0-150-generic"]);
        let finding = kernels(&bad);
        assert_eq!(finding.status, Verdict::Fail);
        assert_eq!(finding.observed.as_deref(), Some("6.8.0-150-generic"));
    }
}
