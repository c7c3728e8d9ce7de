//! Why a kernel module could not be loaded, unloaded or built.

use crate::{
    error::{Report, attached},
    exit::Exit,
    host::ExecError,
    tools::{kmod, packages::Fault},
};

/// Why the work on a kernel module failed.
#[derive(Debug, thiserror::Error)]
pub enum ModuleError {
    /// The kernel, or `modprobe`, refused the module.
    #[error("{what}")]
    Refused {
        /// The action.
        what: String,
        /// The class of the failure.
        fault: kmod::Fault,
        /// What happened.
        source: ExecError,
    },
    /// A DKMS build failed.
    #[error("build kernel module `{module}` for {kernel}{}", attached(.log))]
    Build {
        /// The DKMS name of the module.
        module: String,
        /// The kernel release.
        kernel: String,
        /// The end of the compiler's log.
        log: Option<String>,
        /// What happened; `None` if DKMS does not know the module.
        source: Option<Box<ExecError>>,
    },
}

impl Report for ModuleError {
    fn exit(&self) -> Exit {
        Exit::StepFailed
    }

    fn reason(&self) -> &'static str {
        match self {
            Self::Refused { fault, .. } => match fault {
                kmod::Fault::KeyRejected => "module-signature",
                kmod::Fault::NotFound => "module-not-found",
                kmod::Fault::WrongKernel => "module-kernel",
                kmod::Fault::NoDevice => "module-no-device",
                kmod::Fault::InUse => "module-in-use",
                kmod::Fault::Other => "module-failed",
            },
            Self::Build { .. } => "module-build",
        }
    }

    fn hint(&self) -> Option<String> {
        let text = match self {
            Self::Refused { fault, .. } => match fault {
                kmod::Fault::KeyRejected => {
                    "Secure Boot is on and the kernel does not know who signed the module: \
                     install a module signed by the distribution, or enrol the signing key with \
                     `mokutil` from the console"
                }
                kmod::Fault::NotFound => {
                    "the module was not built for the running kernel: its headers are missing, \
                     or the machine must boot the kernel it was built for (`dkms status`)"
                }
                kmod::Fault::WrongKernel => {
                    "the module belongs to another kernel; reboot, or build it for this one"
                }
                kmod::Fault::NoDevice => {
                    "another driver has the GPU, or the driver does not support it; the kernel \
                     log says which (`dmesg`)"
                }
                kmod::Fault::InUse | kmod::Fault::Other => return None,
            },
            Self::Build { .. } => Fault::Build.hint()?,
        };
        Some(text.to_owned())
    }
}
