//! `secure-boot`: an unsigned module will not load, and a console is needed to enrol a key. That
//! is said in the first second, not after a compilation.

use async_trait::async_trait;

use super::{PREFLIGHT, look};
use crate::{
    config::desired::Desired,
    facts::{Facts, SecureBoot as State},
    model::id::StepId,
    step::{Assessment, Cx, Step, StepError},
};

/// See the module.
pub struct SecureBoot;

fn decide(facts: &Facts, desired: &Desired) -> Assessment {
    let Some(driver) = &desired.driver else {
        return look::no_driver();
    };
    let Some(module) = &driver.dkms else {
        return Assessment::Satisfied {
            why: "the kernel modules are installed compiled and signed by their vendor".into(),
        };
    };
    if look::adopts(desired, facts) {
        return Assessment::Satisfied {
            why: "the driver that is there is adopted, so no kernel module is compiled here".into(),
        };
    }
    match facts.secure_boot {
        State::Disabled => Assessment::Satisfied {
            why: "Secure Boot is off".into(),
        },
        State::Unsupported => Assessment::Satisfied {
            why: "the machine does not boot by UEFI".into(),
        },
        // What cannot be read is listed under `unknown` in the facts; the module load will tell.
        State::Unknown => Assessment::Satisfied {
            why: "the state of Secure Boot cannot be read; loading the module will tell".into(),
        },
        State::Enabled if facts.driver.loaded_version.is_some() => Assessment::Satisfied {
            why: "Secure Boot is on and an accepted NVIDIA module is loaded".into(),
        },
        State::Enabled => Assessment::Blocked {
            why: format!(
                "Secure Boot is on, and the module `{module}` would be compiled here, with a \
                 signature that this machine does not know"
            ),
            hint: "take a source of signed modules (Ubuntu's archive, AlmaLinux 9 and 10), an \
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
        Ok(decide(cx.facts, cx.desired))
    }
}

#[cfg(test)]
mod tests {
    use super::{State, decide};
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
            let is_blocked = matches!(decide(&facts, &want), Assessment::Blocked { .. });
            assert_eq!(is_blocked, blocked, "{state:?}, dkms {dkms}");
        }
    }
}
