//! Resolves the settings of the container validation.

use crate::{
    compat::{cuda_image::ImageFor, matrix::Matrix},
    config::{
        desired::{DriverSpec, Validation},
        error::{Refusal, ResolveError},
        file::Config,
        profile::Profile,
        sources::SettingSources,
    },
    facts::Facts,
    model::gpu::GpuIdentity,
};

/// Value of `validation.image` for the NVIDIA base image.
const CUDA: &str = "cuda";

/// Resolves `[validation]`.
///
/// # Errors
/// If the image name is invalid, or there is no image for the driver.
pub(super) fn validation(
    (profile, layers, config): (&Profile, &SettingSources, &Config),
    (matrix, facts): (&Matrix, &Facts),
    driver: Option<(&DriverSpec, &[GpuIdentity])>,
) -> Result<Validation, ResolveError> {
    let own = &config.validation;
    let name = own.image.as_ref().map(|image| image.as_str());
    if name.is_some_and(is_no_name) {
        let why = "not an image name".to_owned();
        let hint = "use `REGISTRY/NAME:TAG` or `REGISTRY/NAME@sha256:DIGEST`, without `https://`";
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
        container: own.container,
        image,
        timeout_seconds: own.timeout.seconds(),
        pull_timeout_seconds: own.pull_timeout.seconds(),
        archives: None,
    })
}

/// Returns `true` for a URL, an option of a client, or a text with whitespace.
fn is_no_name(text: &str) -> bool {
    text.starts_with('-') || text.contains("://") || text.contains(char::is_whitespace)
}

/// Returns the NVIDIA base image for the driver.
fn cuda(
    matrix: &Matrix,
    profile: &Profile,
    facts: &Facts,
    driver: &DriverSpec,
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
                "no NVIDIA image is known for driver {branch}{runs} and the GPUs of this machine"
            ),
            "set `validation.image = \"REGISTRY/NAME:TAG\"`, or remove the setting, because \
             the built-in image needs no registry",
        )
    })
}
