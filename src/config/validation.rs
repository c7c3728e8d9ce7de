//! The container probe that the settings ask for.

use crate::{
    compat::{cuda_image::ImageFor, matrix::Matrix},
    config::{
        desired::{DriverWish, Validation, pull_timeout},
        error::{Refusal, ResolveError, or_noted},
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
/// Settings that do not fit each other, and a driver for which there is no image.
pub(super) fn validation(
    (profile, layers, config): (&Profile, &Layers, &Config),
    (matrix, facts): (&Matrix, &Facts),
    driver: Option<(&DriverWish, &[GpuIdentity])>,
) -> Result<Validation, ResolveError> {
    let (own, default) = (&config.validation, &profile.validation);
    let mut found: Vec<ResolveError> = Vec::new();
    let mut wrong = |key: &str, why: &str, hint: &str| {
        let error = layers.wrong(key, why.to_owned(), Some(hint.to_owned()));
        found.push(error.into());
    };
    let command = own.command.clone().unwrap_or_default();
    if own.command.is_some() {
        if own.image.is_none() {
            wrong(
                "validation.command",
                "it runs in `validation.image`, which is not set",
                "set `validation.image`, for example to `cuda`",
            );
        }
        if own.image.is_some() && command.first().is_none_or(String::is_empty) {
            wrong(
                "validation.command",
                "it names no program",
                "write program and arguments as a list, such as `[\"nvidia-smi\", \"-L\"]`",
            );
        }
    }
    if let Some(expect) = &own.expect {
        if command.is_empty() {
            wrong(
                "validation.expect",
                "it is compared with the output of `validation.command`, which is not set",
                "set `validation.command`, for example to `[\"nvidia-smi\", \"-L\"]`",
            );
        }
        if !command.is_empty() && (expect.is_empty() || expect.contains('\n')) {
            wrong(
                "validation.expect",
                "it is a part of one line",
                "write text that a line contains; `*` stands for any text, `?` for one character",
            );
        }
    }
    let name = own.image.as_ref().map_or("", |image| image.as_str());
    if name.starts_with('-') || name.contains("://") || name.contains(char::is_whitespace) {
        wrong(
            "validation.image",
            "this is not the name of an image",
            "write `REGISTRY/NAME:TAG` or `REGISTRY/NAME@sha256:DIGEST`, without `https://`",
        );
    }
    let image = match (own.image.as_ref().map(|image| image.as_str()), driver) {
        (Some(CUDA), None) => None,
        (Some(CUDA), Some((driver, gpus))) => {
            or_noted(cuda(matrix, profile, facts, driver, gpus), &mut found)
        }
        (image, _) => image.map(str::to_owned),
    };
    if !found.is_empty() {
        return Err(ResolveError::all(found));
    }
    Ok(Validation {
        container: own.container.unwrap_or(default.container),
        image,
        command,
        expect: own.expect.clone(),
        timeout_seconds: own.timeout.unwrap_or(default.timeout).seconds(),
        pull_timeout_seconds: own
            .pull_timeout
            .map_or_else(pull_timeout, TimeLimit::seconds),
    })
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
