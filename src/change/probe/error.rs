//! Why a probe failed.

use crate::{
    error::{Report, attached},
    exit::Exit,
    host::{ExecError, FilesError},
    tools::probe::ProbeLayer,
};

/// Why a probe failed.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// Its files could not be written.
    #[error("prepare the container")]
    Files(#[from] FilesError),
    /// A command failed.
    #[error("run the container")]
    Exec(#[from] ExecError),
    /// The libraries of this process could not be found.
    #[error("find the libraries of this program: {why}")]
    Unknown {
        /// What is missing.
        why: String,
    },
    /// A library was replaced while this program ran, and the kernel does not give its content.
    #[error("read `{link}`, the running copy of `{path}`, which was replaced: {why}")]
    Replaced {
        /// The library.
        path: String,
        /// The kernel's link to the content.
        link: String,
        /// Why it cannot be read.
        why: String,
    },
    /// The container ran, but does not see what it should.
    #[error("the container fails at the layer device nodes: it sees {seen}, expected {expected}")]
    Blind {
        /// What it sees.
        seen: String,
        /// What it should.
        expected: String,
    },
    /// The runtime runs no single container.
    #[error("run a container in CRI-O, which runs pods only")]
    OnlyPods,
    /// A layer of the probe fails in the container.
    #[error("the container fails at the layer {layer}: {why}")]
    Layer {
        /// Which.
        layer: ProbeLayer,
        /// What is wrong.
        why: String,
        /// What to do.
        remedy: Option<String>,
    },
    /// A layer of the probe fails on the host.
    #[error("the host fails at the layer {layer}: {why}")]
    OnHost {
        /// Which.
        layer: ProbeLayer,
        /// What is wrong.
        why: String,
        /// What to do.
        remedy: Option<String>,
    },
    /// The container computes on other devices than those of the host.
    #[error(
        "the container fails at the layer NVML: only it has {inside}; only the host has {outside}"
    )]
    OtherDevices {
        /// UUIDs that only it has.
        inside: String,
        /// Those that only the host has.
        outside: String,
    },
    /// The image has to be there already, and is not.
    #[error("{runtime} does not have the image `{image}`")]
    NoImage {
        image: String,
        runtime: &'static str,
    },
    /// The configured command failed in the container.
    #[error("{command} {status}{}", attached(.said))]
    Command {
        /// The command and its image.
        command: String,
        /// How it ended.
        status: String,
        /// Its last line.
        said: Option<String>,
    },
    /// The configured command printed something else.
    #[error("{command} printed no line with `{expect}`; its last line is:{}", attached(.said))]
    NotExpected {
        /// The command and its image.
        command: String,
        /// The expected text.
        expect: String,
        /// Its last line.
        said: Option<String>,
    },
    /// The container ran, and said nothing about the GPUs.
    #[error("the container printed no result of the probe")]
    Silent,
}

impl Report for ProbeError {
    fn exit(&self) -> Exit {
        Exit::StepFailed
    }

    fn reason(&self) -> &'static str {
        match self {
            Self::Files(error) => error.reason().unwrap_or("proof-not-prepared"),
            Self::Unknown { .. } | Self::Replaced { .. } => "proof-not-prepared",
            Self::Exec(_) | Self::Command { .. } | Self::OnlyPods => "container-failed",
            Self::NoImage { .. } => "image-missing",
            Self::NotExpected { .. } => "container-not-expected",
            Self::Blind { .. } => "container-sees-no-gpu",
            Self::Layer { .. } | Self::Silent => "container-cannot-compute",
            Self::OnHost { .. } => "host-cannot-compute",
            Self::OtherDevices { .. } => "container-has-other-gpus",
        }
    }

    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Files(error) if error.disk().is_some() => return error.hint(),
            Self::Files(_) => "free space below `/var/lib`, then run again".to_owned(),
            Self::Unknown { .. } => "check that `/proc` is mounted, then run again".to_owned(),
            Self::Replaced { .. } => {
                "run `gpu-bootstrap install` again: it starts with the new library".to_owned()
            }
            Self::Layer {
                remedy: Some(remedy),
                ..
            }
            | Self::OnHost {
                remedy: Some(remedy),
                ..
            } => remedy.clone(),
            Self::OtherDevices { .. } => {
                "make the CDI specification anew (`nvidia-ctk cdi generate`), and check \
                 `NVIDIA_VISIBLE_DEVICES` of the image"
                    .to_owned()
            }
            Self::OnlyPods => "run a pod with a GPU in the cluster".to_owned(),
            Self::NoImage { .. } => {
                "run `gpu-bootstrap install`, which pulls it: `check` does not".to_owned()
            }
            Self::Command { .. } => {
                "run `gpu-bootstrap probe`: it shows whether the GPUs work on the host; then check that \
                 the image has the program of `validation.command`"
                    .to_owned()
            }
            Self::NotExpected { .. } => {
                "compare `validation.expect` with the whole output above: a line must contain it, and \
                 `*` stands for any text"
                    .to_owned()
            }
            Self::Exec(_) | Self::Layer { .. } | Self::OnHost { .. } | Self::Silent => {
                "run `gpu-bootstrap check`: it names the faulty layer (driver, CDI or runtime)"
                    .to_owned()
            }
            Self::Blind { .. } => {
                "compare `nvidia-ctk cdi list` with `ls /dev/nvidia*`, and look at \
                 `/etc/nvidia-container-runtime/config.toml`"
                    .to_owned()
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::ProbeError;
    use crate::error::Report;

    #[test]
    fn each_failure_says_what_to_do() {
        let text = || "x".to_owned();
        for (error, hint) in [
            (ProbeError::Unknown { why: text() }, "`/proc` is mounted"),
            (
                ProbeError::Replaced {
                    path: text(),
                    link: text(),
                    why: text(),
                },
                "`gpu-bootstrap install` again",
            ),
            (
                ProbeError::Blind {
                    seen: text(),
                    expected: text(),
                },
                "`nvidia-ctk cdi list`",
            ),
        ] {
            let said = error.hint().unwrap_or_default();
            assert!(said.contains(hint), "{error}: {said}");
        }
    }
}
