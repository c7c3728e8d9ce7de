//! The container probe that the settings ask for.

use crate::{
    compat::{cuda_image::ImageFor, matrix::Matrix},
    config::{
        desired::{DriverWish, Validation, pull_timeout},
        error::{Refusal, ResolveError},
        file::Config,
        layers::Layers,
        profile::Profile,
        values::TimeLimit,
    },
    facts::Facts,
    model::gpu::GpuIdentity,
};

/// As `validation.image`: NVIDIA's own image.
const CUDA: &str = "cuda";

/// Resolves `[validation]`.
///
/// # Errors
/// A text that names no image, and a driver for which there is no image.
pub(super) fn validation(
    (profile, layers, config): (&Profile, &Layers, &Config),
    (matrix, facts): (&Matrix, &Facts),
    driver: Option<(&DriverWish, &[GpuIdentity])>,
) -> Result<Validation, ResolveError> {
    let (own, default) = (&config.validation, &profile.validation);
    let name = own.image.as_ref().map(|image| image.as_str());
    if name.is_some_and(is_no_name) {
        let why = "this is not the name of an image".to_owned();
        let hint = "write `REGISTRY/NAME:TAG` or `REGISTRY/NAME@sha256:DIGEST`, without `https://`";
        return Err(layers
            .wrong("validation.image", why, Some(hint.to_owned()))
            .into());
    }
    let image = match (name, driver) {
        (Some(CUDA), None) => None,
        (Some(CUDA), Some((driver, gpus))) => Some(cuda(matrix, profile, facts, driver, gpus)?),
        (name, _) => name.map(str::to_owned),
    };
    Ok(Validation {
        container: own.container.unwrap_or(default.container),
        image,
        timeout_seconds: own.timeout.unwrap_or(default.timeout).seconds(),
        pull_timeout_seconds: own
            .pull_timeout
            .map_or_else(pull_timeout, TimeLimit::seconds),
    })
}

/// Whether a text cannot name an image: an address, or an option of a runtime's client.
fn is_no_name(text: &str) -> bool {
    text.starts_with('-') || text.contains("://") || text.contains(char::is_whitespace)
}

/// NVIDIA's base image for the driver.
fn cuda(
    matrix: &Matrix,
    profile: &Profile,
    facts: &Facts,
    driver: &DriverWish,
    gpus: &[GpuIdentity],
) -> Result<String, Refusal> {
    let branch = driver.branch;
    let os = facts.os.as_ref();
    let wanted = ImageFor {
        branch,
        arch: facts.kernel.arch.as_deref().unwrap_or_default(),
        system: (
            os.map_or("", |os| os.id.as_str()),
            os.and_then(|os| os.version_id.as_deref()).unwrap_or(""),
            profile.like.as_slice(),
        ),
        gpus,
    };
    matrix.cuda_image(&wanted).map_err(|newest| {
        let runs = newest.map_or_else(String::new, |newest| {
            format!(", which runs CUDA up to {newest},")
        });
        Refusal::new(
            "no-cuda-image",
            format!(
                "no image of NVIDIA is known for driver {branch}{runs} and the GPUs of this machine"
            ),
            "name an image with `validation.image = \"REGISTRY/NAME:TAG\"`, or remove the setting: \
             the built-in image needs no registry",
        )
    })
}
