//! Podman, which has no daemon and reads CDI specifications itself.

use std::time::Duration;

use async_trait::async_trait;

use camino::Utf8Path;

use super::{
    Containers, Harm, LiveConfig, OneContainer, Place, ReadError, Report, Runtime, RuntimeFacts,
    RuntimeFault, RuntimeView, Surroundings, Version, cdi, mounts, quiet, words,
};
use crate::{
    host::{Cmd, ExecError, FilesError, Host, Output, Query, ReadFiles, exec::Status},
    tools::oci,
};

#[derive(Debug)]
pub struct Podman;

static FACTS: RuntimeFacts = RuntimeFacts {
    title: "Podman",
    // Debian 12 and 13 archives.
    packages: &["podman"],
    binaries: &["/usr/bin/podman", "/usr/local/bin/podman"],
    unit: None,
    directory: "/etc/containers",
    versioned: None,
    data: None,
    scheme: "podman",
    is_configurable: true,
    cri: None,
    brings: &[],
    sockets: &[],
    bridge: None,
    repositories: None,
    has_sources: false,
    // Source: NVIDIA Container Toolkit, "Running a Sample Workload".
    example: Some(
        "podman run --rm --security-opt=label=disable --device=nvidia.com/gpu=all ubuntu nvidia-smi",
    ),
    first: Some(READS_CDI),
    reads_groups: Some(READS_GROUPS),
};

/// Returns a fault if Podman supports CDI, but not the version of the existing specifications, which are its only access to
/// GPUs. Sources: NVIDIA/nvidia-container-toolkit issues 1860, 1865 and 1940, `pkg/nvcdi/api.go` (feature flag), and
/// `cmd/nvidia-ctk/cdi/generate/generate.go` (environment variable).
fn reads_none(
    files: &dyn ReadFiles,
    version: Version,
    is_alone: bool,
) -> Result<Option<RuntimeFault>, FilesError> {
    if !(READS_CDI..READS_GROUPS).contains(&version) {
        return Ok(None);
    }
    let mut unread = Vec::new();
    for directory in cdi::DIRECTORIES {
        for name in files.list(Utf8Path::new(directory))? {
            let path = Utf8Path::new(directory).join(name);
            if !cdi::is_read(&path) {
                continue;
            }
            let spec = files.read_text(&path)?.map(|text| cdi::parse(&text));
            match spec {
                Some(Ok(spec)) if spec.kind == cdi::KIND && spec.has_groups() => {
                    unread.push(format!("`{path}` (version {})", spec.cdi_version));
                }
                // One supported specification is sufficient.
                Some(Ok(spec)) if spec.kind == cdi::KIND => return Ok(None),
                _ => {}
            }
        }
    }
    if unread.is_empty() {
        return Ok(None);
    }
    Ok(Some(RuntimeFault::new(
        // If there is also a daemon, GPU containers may be started with the daemon instead of Podman.
        match is_alone {
            true => Harm::Containers,
            false => Harm::Perhaps,
        },
        format!(
            "Podman {version} cannot read {}; containers with a GPU do not start (`unresolvable CDI devices`), because the \
                 container toolkit added device node groups, which Podman supports since {}",
            unread.join(" and "),
            READS_GROUPS
        ),
        format!(
            "install Podman {} or newer; or omit the groups: add \
             `NVIDIA_CTK_CDI_GENERATE_FEATURE_FLAGS=no-additional-gids-for-device-nodes` to \
             `/etc/nvidia-container-toolkit/nvidia-cdi-refresh.env`, then run `systemctl restart nvidia-cdi-refresh`",
            READS_GROUPS
        ),
    )))
}

#[async_trait]
impl Runtime for Podman {
    fn facts(&self) -> &'static RuntimeFacts {
        &FACTS
    }

    /// Podman has no configuration file for GPUs.
    async fn view(&self, place: Place<'_>) -> Result<RuntimeView, ReadError> {
        Ok(RuntimeView::of(LiveConfig::Absent, place.version))
    }

    async fn report(
        &self,
        place: Place<'_>,
        _: &RuntimeView,
        surroundings: Surroundings<'_>,
    ) -> Result<Option<Report>, ReadError> {
        let fault = match place.version {
            Some(version) => reads_none(place.host.files(), version, surroundings.is_alone)?,
            None => None,
        };
        Ok(Some(Report::of(
            Vec::from_iter(fault),
            "Podman can read the existing specifications",
        )))
    }

    fn containers(&self) -> Option<&dyn Containers> {
        Some(self)
    }
}

#[async_trait]
impl Containers for Podman {
    /// Adds the registry, because Podman would resolve a short name with its own configuration.
    fn image_name(&self, image: &str) -> String {
        oci::full_name(image)
    }

    fn find_image(&self, image: &str) -> Query {
        has_image(image)
    }

    fn has_image(&self, _: &str, output: &Output) -> Option<bool> {
        match output.status {
            Status::Exited(0) => Some(true),
            Status::Exited(NO_IMAGE) => Some(false),
            _ => None,
        }
    }

    fn pull(&self, _: &dyn ReadFiles, image: &str) -> Result<Cmd, FilesError> {
        Ok(pull(image))
    }

    fn loaded_name(&self, image: &str) -> Option<String> {
        oci::loaded_name(image)
    }

    fn image_id(&self, image: &str) -> Option<Query> {
        Some(image_id(image))
    }

    fn save(&self, _: &str, id: &str, archive: &Utf8Path) -> Cmd {
        save(id, archive)
    }

    fn load(&self, image: &str, id: &str, archive: &Utf8Path) -> Vec<Cmd> {
        let tag = self.loaded_name(image).map(|name| tag(id, &name));
        std::iter::once(load(archive)).chain(tag).collect()
    }

    fn remove_image(&self, image: &str) -> Cmd {
        remove_image(image)
    }

    fn keeps_used_images(&self) -> bool {
        true
    }

    fn start(&self, container: &OneContainer<'_>) -> Cmd {
        // The CDI specification provides the GPUs. `label=disable`, because SELinux would deny access to the device nodes.
        let mut args = words(&format!(
            "run --rm --network=none --device=nvidia.com/gpu=all --name={} --security-opt=label=disable",
            container.name
        ));
        let mut command = container.command.iter().map(ToString::to_string);
        let place = match container.image {
            None => {
                args.push("--rootfs".to_owned());
                container.root.as_str()
            }
            Some(image) => {
                args.extend(mounts(container, "readonly"));
                args.push("--pull=never".to_owned());
                args.extend(command.next().map(|first| format!("--entrypoint={first}")));
                image
            }
        };
        args.extend(["--", place].map(str::to_owned));
        args.extend(command);
        Cmd::new("podman", args)
    }

    async fn remove(
        &self,
        host: &Host,
        name: &str,
        _: Option<&str>,
        line: &(dyn for<'t> Fn(&'t str) + Sync),
    ) -> Result<(), ExecError> {
        quiet(host, &remove_container(name), line).await
    }
}

/// The first version that accepts CDI device names. Source: NVIDIA Container Toolkit documentation, "Support for Container
/// Device Interface", prerequisites.
pub const READS_CDI: Version = Version(4, 1);

/// The first version that reads CDI 0.7.0 specifications, see [`super::cdi::Spec::has_groups`]. Source: Podman's `go.mod`: 5.0
/// uses version 0.6.2 of the CDI library, 5.1 uses 0.7.2.
pub const READS_GROUPS: Version = Version(5, 1);

/// Queries an image: the exit status is 0 if it exists and 1 if not (podman-image-exists(1)).
pub fn has_image(image: &str) -> Query {
    Query::new("podman", ["image", "exists", "--", image])
}

/// The exit status of [`has_image`] if the image does not exist.
pub const NO_IMAGE: i32 = 1;

pub fn pull(image: &str) -> Cmd {
    Cmd::new("podman", ["pull", "--", image])
}

/// Queries the ID of an image, without `sha256:`.
pub fn image_id(image: &str) -> Query {
    Query::new(
        "podman",
        ["image", "inspect", "--format={{.Id}}", "--", image],
    )
}

/// Writes the image with an ID to a new archive, without names (podman-save(1)).
pub fn save(id: &str, archive: &Utf8Path) -> Cmd {
    let output = format!("--output={archive}");
    Cmd::new(
        "podman",
        [
            "save",
            "--quiet",
            "--format=docker-archive",
            &output,
            "--",
            id,
        ],
    )
}

pub fn load(archive: &Utf8Path) -> Cmd {
    let input = format!("--input={archive}");
    Cmd::new("podman", ["load", "--quiet", input.as_str()])
}

pub fn tag(id: &str, name: &str) -> Cmd {
    Cmd::new("podman", ["tag", "--", id, name])
}

/// Removes an image. It fails if a container uses the image. With `--force`, Podman would remove these containers,
/// podman-rmi(1).
pub fn remove_image(image: &str) -> Cmd {
    Cmd::new("podman", ["image", "rm", "--", image]).deadline(Duration::from_secs(120))
}

/// Stops and removes a container. A missing container is not an error.
pub fn remove_container(name: &str) -> Cmd {
    Cmd::new("podman", ["rm", "--force", "--ignore", "--", name]).deadline(Duration::from_secs(60))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::fake::{failed, ok};

    /// podman-image-exists(1): status 125 is an error of the storage.
    #[test]
    fn image_is_unknown_after_a_storage_error() {
        let answers = [ok(""), failed(1, ""), failed(125, "Error: short read")];
        let found = answers.map(|answer| Podman.has_image("a", &answer));
        assert_eq!(found, [Some(true), Some(false), None]);
    }

    #[test]
    fn used_image_is_not_removed_with_its_containers() {
        assert_eq!(remove_image("a").line(), "podman image rm -- a");
    }
}
