//! `secure-boot`: an unsigned module cannot be loaded, and enrolling a key needs a console. The
//! step reports this at once, not after a compilation.

use async_trait::async_trait;

use super::{PREFLIGHT, driver_packages::adopts, words};
use crate::{
    config::desired::Desired,
    facts::{Facts, SecureBoot as State},
    model::id::StepId,
    step::{Assessment, Cx, Step, StepError},
};

/// See the module.
pub struct SecureBoot;

#[derive(Debug, Clone, Copy, Default)]
struct SecureBootState {
    /// The driver that is there is kept.
    adopts: bool,
    /// A driver is loaded.
    loaded: bool,
}

async fn detect(cx: &Cx<'_>) -> Result<SecureBootState, StepError> {
    Ok(SecureBootState {
        adopts: adopts(cx).await,
        loaded: cx.state.loaded_driver()?.is_some(),
    })
}

fn decide(state: SecureBootState, facts: &Facts, desired: &Desired) -> Assessment {
    let Some(driver) = &desired.driver else {
        return words::no_driver();
    };
    let Some(module) = &driver.dkms else {
        return Assessment::Satisfied {
            why: "the kernel modules come compiled and signed from their vendor".into(),
        };
    };
    if state.adopts {
        return Assessment::Satisfied {
            why: "the existing driver is adopted, so no kernel module is compiled here".into(),
        };
    }
    match facts.secure_boot {
        State::Disabled => Assessment::Satisfied {
            why: "Secure Boot is off".into(),
        },
        State::Unsupported => Assessment::Satisfied {
            why: "the machine does not boot with UEFI".into(),
        },
        // Unreadable values are listed under `unknown` in the facts; loading the module will show
        // the result.
        State::Unknown => Assessment::Satisfied {
            why: "the state of Secure Boot cannot be read; an attempt to load the module will \
                  show it"
                .into(),
        },
        State::Enabled if state.loaded => Assessment::Satisfied {
            why: "Secure Boot is on and an accepted NVIDIA module is loaded".into(),
        },
        State::Enabled => Assessment::Blocked {
            why: format!(
                "Secure Boot is on, and the module `{module}` would be compiled here, with a \
                 signature that this machine does not trust"
            ),
            hint: "use a source of signed modules (Ubuntu's archive, AlmaLinux 9 and 10), an \
                   image in which the signing key is enrolled, or an instance without Secure Boot"
                .into(),
        },
    }
}

#[async_trait]
impl Step for SecureBoot {
    fn id(&self) -> StepId {
        super::SECURE_BOOT
    }

    fn title(&self) -> &'static str {
        "Secure Boot"
    }

    fn after(&self) -> &[StepId] {
        const { &[PREFLIGHT] }
    }

    async fn assess(&self, cx: &Cx<'_>) -> Result<Assessment, StepError> {
        Ok(decide(detect(cx).await?, cx.facts, cx.desired))
    }
}

#[cfg(test)]
mod tests {
    use super::{SecureBootState, State, decide};
    use crate::{
        step::Assessment,
        steps::fixtures::{desired, facts},
    };

    #[test]
    fn only_an_unsigned_module_under_secure_boot_blocks() {
        for (state, dkms, blocked) in [
            (State::Enabled, true, true),
            (State::Enabled, false, false),
            (State::Disabled, true, false),
            (State::Unsupported, true, false),
            (State::Unknown, true, false),
        ] {
            let (mut facts, mut want) = (facts(), desired());
            facts.secure_boot = state;
            if !dkms {
                want.driver.as_mut().expect("a driver").dkms = None;
            }
            let nothing = SecureBootState::default();
            let answer = decide(nothing, &facts, &want);
            let is_blocked = matches!(answer, Assessment::Blocked { .. });
            assert_eq!(is_blocked, blocked, "{state:?}, dkms {dkms}");
        }
    }
}
