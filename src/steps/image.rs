//! `validation.image`: pulls the validation image into each runtime, or loads it from the bundle of the run. The pull starts as soon
//! as the runtimes respond, in parallel with the build of the driver module. The validation itself also requires the loaded driver.

use std::collections::BTreeMap;

use super::{VALIDATION_IMAGE, configured_daemons, container, installed_runtimes, package_step};
use crate::{
    change::{Change, Lock, has_image, packages::BUNDLE_REMEDY},
    config::desired::{Desired, RuntimeKind},
    facts::Facts,
    step::{Assessment, Cx, Step, StepError},
};

/// The `validation.image` step.
pub(super) fn step() -> Step {
    Step::new(VALIDATION_IMAGE, |cx| Box::pin(assess(cx)))
        // Also after the daemon configuration, because a daemon restart would abort a pull.
        .after(installed_runtimes())
        .after(configured_daemons())
        .locks([Lock::Containers])
        .long()
        .wants(|change, desired| {
            let Change::PullImage { runtime, image, .. } = change else {
                return true;
            };
            desired.driver.is_none()
                || (wants(desired)
                    && desired.validation.image.as_ref() == Some(image)
                    && (desired.runtimes.iter()).any(|spec| spec.kind == *runtime))
        })
}

/// The state of the image in one runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    /// This image was already used for validation. A kubelet removes images that no pod uses, which is not drift,
    /// because the next validation pulls it again.
    Validated,
    /// The image exists.
    Present,
    /// The image does not exist.
    Missing,
    /// The runtime is not installed.
    NoRuntime,
}

type ImageState = BTreeMap<RuntimeKind, Found>;

async fn detect(cx: &Cx<'_>, image: &str) -> Result<ImageState, StepError> {
    let mut found = ImageState::new();
    for spec in &cx.desired.runtimes {
        let record = container::record(cx, spec.kind)?;
        let validated = record.is_some_and(|record| record.is_with_image(image));
        let is = match validated {
            true => Found::Validated,
            false => match has_image(cx.host, spec.kind, image).await? {
                Some(true) => Found::Present,
                Some(false) => Found::Missing,
                None => Found::NoRuntime,
            },
        };
        found.insert(spec.kind, is);
    }
    Ok(found)
}

/// Returns the image, or the assessment if none is needed.
fn wanted<'d>(desired: &'d Desired, facts: &Facts) -> Result<&'d str, Assessment> {
    let not = |why: &str| Err(Assessment::not_applicable(why));
    let Some(image) = &desired.validation.image else {
        return not("validation needs no image from a registry");
    };
    if !wants(desired) {
        return not("validation runs no container");
    }
    if facts.gpus.is_empty() && !desired.image {
        return not("no NVIDIA GPU is on the PCI bus");
    }
    Ok(image)
}

fn wants(desired: &Desired) -> bool {
    desired.driver.is_some() && container::is_wanted(desired)
}

fn decide(state: &ImageState, image: &str, desired: &Desired) -> Assessment {
    let validation = &desired.validation;
    let pull = |runtime: RuntimeKind| Change::PullImage {
        runtime,
        image: image.to_owned(),
        timeout_seconds: validation.pull_timeout_seconds,
        archive: validation.archive(runtime).cloned(),
    };
    let of = |wanted: Found| {
        (state.iter())
            .filter(move |(_, found)| **found == wanted)
            .map(|(kind, _)| *kind)
    };
    let names = |kinds: &[RuntimeKind]| -> String {
        let names: Vec<&str> = kinds.iter().map(|kind| kind.name()).collect();
        names.join(", ")
    };
    // A bundle contains only images with a digest.
    if validation.archives.is_some() && validation.image_digest().is_some() {
        let unbundled: Vec<RuntimeKind> = of(Found::NoRuntime)
            .chain(of(Found::Missing))
            .filter(|kind| validation.archive(*kind).is_none())
            .collect();
        if !unbundled.is_empty() {
            let names = names(&unbundled);
            let why =
                format!("the image `{image}` is neither in {names} nor in the bundle for {names}");
            return Assessment::blocked(why, BUNDLE_REMEDY);
        }
    }
    if let Some(kind) = of(Found::NoRuntime).next() {
        return Assessment::After {
            upstream: package_step(kind),
            why: format!("{} is not installed yet", kind.name()),
            expected: of(Found::NoRuntime)
                .chain(of(Found::Missing))
                .map(pull)
                .collect(),
        };
    }
    let missing: Vec<RuntimeKind> = of(Found::Missing).collect();
    if missing.is_empty() {
        let present: Vec<RuntimeKind> = of(Found::Present).collect();
        return Assessment::satisfied(match &present[..] {
            [] => format!("containers have run in the image `{image}`"),
            present => format!("the image `{image}` is in {}", names(present)),
        });
    }
    Assessment::needs(
        format!("the image `{image}` is not in {}", names(&missing)),
        missing.into_iter().map(pull).collect(),
    )
}

async fn assess(cx: &Cx<'_>) -> Result<Assessment, StepError> {
    match wanted(cx.desired, cx.facts) {
        Ok(image) => Ok(decide(&detect(cx, image).await?, image, cx.desired)),
        Err(answer) => Ok(answer),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{Found, ImageState, decide, package_step, step, wanted};
    use crate::{
        change::Change,
        config::desired::{Desired, RuntimeKind},
        runtimes::archive::ImageArchive,
        step::Assessment,
        steps::fixtures::{desired, facts},
    };

    const IMAGE: &str = "registry.example.com/cuda:1";

    fn with_image() -> Desired {
        let mut desired = desired();
        desired.validation.image = Some(IMAGE.to_owned());
        desired.validation.pull_timeout_seconds = 90;
        desired
    }

    #[test]
    fn each_runtime_without_the_image_pulls_it() {
        let state = ImageState::from([
            (RuntimeKind::Docker, Found::Missing),
            (RuntimeKind::Containerd, Found::Present),
            (RuntimeKind::Podman, Found::Missing),
        ]);
        let (why, changes) = decide(&state, IMAGE, &with_image()).expect_needs();
        assert_eq!(why, format!("the image `{IMAGE}` is not in docker, podman"));
        let pull = |runtime| Change::PullImage {
            runtime,
            image: IMAGE.to_owned(),
            timeout_seconds: 90,
            archive: None,
        };
        assert_eq!(
            changes,
            [pull(RuntimeKind::Docker), pull(RuntimeKind::Podman)]
        );
    }

    #[test]
    fn image_of_the_bundle_is_loaded() {
        let image = format!("{IMAGE}@sha256:{}", "0".repeat(64));
        let archive = ImageArchive {
            path: "/srv/bundle/images/docker.tar".into(),
            sha256: "1".repeat(64),
            id: format!("sha256:{}", "2".repeat(64)),
        };
        let mut desired = with_image();
        desired.validation.image = Some(image.clone());
        desired.validation.archives = Some([(RuntimeKind::Docker, archive.clone())].into());
        let mut state = ImageState::from([
            (RuntimeKind::Docker, Found::Missing),
            (RuntimeKind::Podman, Found::Present),
        ]);
        let (_, changes) = decide(&state, &image, &desired).expect_needs();
        assert_eq!(
            changes[0].summary(),
            format!("load the image `{image}` into docker from `/srv/bundle/images/docker.tar`")
        );
        assert!((step().wants)(&changes[0], &desired));
        for missing in [Found::Missing, Found::NoRuntime] {
            state.insert(RuntimeKind::Podman, missing);
            let (why, hint) = decide(&state, &image, &desired).expect_blocked();
            let lacks = "nor in the bundle for podman";
            assert!(why.ends_with(lacks), "{why}");
            assert!(hint.contains("bundle create"), "{hint}");
        }
        // An image without a digest is in no bundle.
        desired.validation.image = Some(IMAGE.to_owned());
        desired.validation.archives = Some(BTreeMap::new());
        state.insert(RuntimeKind::Podman, Found::Missing);
        let (_, changes) = decide(&state, IMAGE, &desired).expect_needs();
        assert!(changes[1].summary().starts_with("pull "), "{changes:?}");
    }

    #[test]
    fn validated_runtime_no_longer_needs_the_image() {
        let mut state = ImageState::from([(RuntimeKind::Docker, Found::Validated)]);
        let answer = decide(&state, IMAGE, &with_image());
        answer.expect_satisfied();
        state.insert(RuntimeKind::Docker, Found::Present);
        let why = decide(&state, IMAGE, &with_image()).expect_satisfied();
        assert_eq!(why, format!("the image `{IMAGE}` is in docker"));
    }

    #[test]
    fn plan_lists_the_pull_before_runtime_installation() {
        let state = ImageState::from([(RuntimeKind::Containerd, Found::NoRuntime)]);
        let (upstream, expected) = decide(&state, IMAGE, &with_image()).expect_after();
        assert_eq!(upstream, package_step(RuntimeKind::Containerd));
        assert!(matches!(&expected[..], [Change::PullImage { .. }]));
    }

    #[test]
    fn unneeded_image_is_not_pulled() {
        let facts = facts();
        assert_eq!(wanted(&with_image(), &facts), Ok(IMAGE));
        let why = |desired: &Desired, facts| match wanted(desired, facts) {
            Err(Assessment::NotApplicable { why }) => why,
            other => panic!("{other:?}"),
        };
        assert_eq!(
            why(&desired(), &facts),
            "validation needs no image from a registry"
        );
        let mut without = with_image();
        without.validation.container = false;
        assert_eq!(why(&without, &facts), "validation runs no container");
        let mut bare = facts.clone();
        bare.gpus.clear();
        assert_eq!(why(&with_image(), &bare), "no NVIDIA GPU is on the PCI bus");
        // A machine image for instances with GPUs, built without a GPU.
        let mut baked = with_image();
        baked.image = true;
        assert_eq!(wanted(&baked, &bare), Ok(IMAGE));
    }

    #[test]
    fn changed_image_makes_the_old_one_obsolete() {
        let pulled = |image: &str| Change::PullImage {
            runtime: RuntimeKind::Docker,
            image: image.to_owned(),
            timeout_seconds: 90,
            archive: None,
        };
        assert!((step().wants)(&pulled(IMAGE), &with_image()));
        assert!(!(step().wants)(
            &pulled("registry.example.com/cuda:0"),
            &with_image()
        ));
        assert!(!(step().wants)(&pulled(IMAGE), &desired()));
        // Only settings decide. A missing GPU does not revert changes.
        let mut without = desired();
        without.driver = None;
        assert!((step().wants)(&pulled(IMAGE), &without));
    }
}
