//! `secure-boot`: unsigned modules cannot be loaded, and enrolling a key needs console access. Reported before any
//! compilation. Modules that DKMS compiles are signed with the administrator's enrolled key.

use camino::Utf8Path;

use super::{PREFLIGHT, SECURE_BOOT, driver_packages::adopts, messages, packages};
use crate::{
    change::{Change, Lock},
    config::{
        desired::{Desired, DriverSpec, SigningKey},
        profile::Profile,
    },
    dkms,
    facts::{Facts, SecureBoot},
    host::{
        FilesError, ReadFiles,
        trusted::{unusable, unusable_secret},
    },
    step::{Assessment, Cx, Step, StepError},
    tools::{efi, packages::HEADER},
};

/// The directory of its file.
pub(super) const DIRECTORY: &str = dkms::SIGNING_DIRECTORY;

/// The `secure-boot` step.
pub(super) fn step() -> Step {
    Step::new(SECURE_BOOT, |cx| Box::pin(assess(cx)))
        .after([PREFLIGHT])
        .locks([Lock::Modules])
        .wants(|_, desired| (desired.driver.as_ref()).is_none_or(|driver| driver.signing.is_some()))
}

#[derive(Debug, Clone, Default)]
struct ModuleSigningState {
    /// The existing driver is kept.
    adopts: bool,
    /// A driver is loaded.
    loaded: bool,
    /// The content of the DKMS configuration file with the signing key.
    told: Option<String>,
    /// The configured signing key.
    key: SigningKeyState,
    /// Systems with signed modules, if Secure Boot is enabled.
    systems: String,
}

/// State of the administrator's signing key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
enum SigningKeyState {
    /// No key is configured.
    #[default]
    None,
    /// The installed or selected dkms has this version, which does not support a configured key.
    Unread(String),
    /// The key or the certificate is missing or has unsafe permissions: the path and the reason.
    Unusable(String, String),
    /// The certificate is in PEM format.
    NotDer,
    /// The certificate is enrolled neither in the firmware nor as a machine owner key (MOK).
    NotEnrolled,
    /// The certificate is enrolled in the firmware or as a machine owner key.
    Enrolled,
    /// No certificate list is readable.
    Unknown,
}

async fn detect(cx: &Cx<'_>) -> Result<ModuleSigningState, StepError> {
    let signing = (cx.desired.driver.as_ref()).and_then(|driver| driver.signing.as_ref());
    Ok(ModuleSigningState {
        adopts: adopts(cx).await,
        loaded: cx.state.loaded_driver()?.is_some(),
        told: cx.host.files().read_text(Utf8Path::new(dkms::SIGNING))?,
        key: match signing {
            None => SigningKeyState::None,
            Some(signing) => key(cx, signing).await?,
        },
        systems: match cx.facts.secure_boot {
            SecureBoot::Enabled => systems()?,
            _ => String::new(),
        },
    })
}

/// Returns the systems with signed modules.
fn systems() -> Result<String, StepError> {
    Profile::with_signed_modules().map_err(|error| StepError::Unexpected {
        what: "the built-in profiles".to_owned(),
        why: error.to_string(),
    })
}

/// Returns the reason that root must not use a file.
type Evaluate = fn(&dyn ReadFiles, &Utf8Path) -> Result<Option<String>, FilesError>;

async fn key(cx: &Cx<'_>, signing: &SigningKey) -> Result<SigningKeyState, StepError> {
    if let Some(version) = dkms_version(cx).await?
        && (packages::backend(cx).compare(&version, dkms::FIRST_TO_SIGN)).is_lt()
    {
        return Ok(SigningKeyState::Unread(version));
    }
    let files = cx.host.files();
    let parts: [(&Utf8Path, Evaluate); 2] = [
        (&signing.key, unusable_secret),
        (&signing.certificate, unusable),
    ];
    for (path, evaluate) in parts {
        let why = match cx.state.is_of_this_machine() {
            true => evaluate(files, path)?,
            false => (!files.exists(path)?).then(|| "it is missing".to_owned()),
        };
        if let Some(why) = why {
            return Ok(SigningKeyState::Unusable(path.to_string(), why));
        }
    }
    let certificate = files.read(&signing.certificate)?.unwrap_or_default();
    // A PEM certificate starts with dashes, a DER certificate does not.
    if certificate.starts_with(b"-----") {
        return Ok(SigningKeyState::NotDer);
    }
    Ok(match efi::is_enrolled(files, &certificate)? {
        Some(true) => SigningKeyState::Enrolled,
        Some(false) => SigningKeyState::NotEnrolled,
        None => SigningKeyState::Unknown,
    })
}

/// Returns the installed dkms version, or the version that would be installed. `None` if the package lists are missing or do
/// not contain dkms.
async fn dkms_version(cx: &Cx<'_>) -> Result<Option<String>, StepError> {
    let installed = packages::installed(cx).await?;
    let version = (installed.get("dkms")).map(|package| package.version.clone());
    if let Some(version) = version.filter(|version| !version.is_empty()) {
        return Ok(Some(version));
    }
    if !packages::has_lists(cx)? {
        return Ok(None);
    }
    let mut offered = packages::offered_versions(cx, &["dkms"]).await?;
    Ok((offered.remove("dkms")).and_then(|versions| versions.into_iter().next()))
}

fn decide(state: &ModuleSigningState, facts: &Facts, desired: &Desired) -> Assessment {
    let Some(driver) = &desired.driver else {
        return messages::no_driver();
    };
    if driver.prebuilt_instead_of.is_some()
        && facts.secure_boot == SecureBoot::Enabled
        && !state.loaded
    {
        return Assessment::blocked(
            "Secure Boot is enabled, and prebuilt modules have no signature that this machine trusts",
            format!(
                "remove `driver.prebuilt.only`, so that DKMS signs the modules with `driver.secure-boot.key`, use a source of \
                 signed modules ({}), or an instance without Secure Boot",
                signed_source(driver, &state.systems)
            ),
        );
    }
    let Some(module) = &driver.compiled_as else {
        return Assessment::satisfied("the vendor provides compiled and signed kernel modules");
    };
    if state.adopts {
        return Assessment::satisfied(
            "the existing driver is adopted, so no kernel module is compiled",
        );
    }
    match facts.secure_boot {
        SecureBoot::Disabled => Assessment::satisfied("Secure Boot is disabled"),
        SecureBoot::Unsupported => Assessment::satisfied("the machine does not boot with UEFI"),
        // Unreadable values are listed under `unknown` in the facts. Loading the module will show whether it is
        // rejected.
        SecureBoot::Unknown => Assessment::satisfied(
            "the Secure Boot state is unknown; loading the module will \
             show whether it is rejected",
        ),
        SecureBoot::Enabled => match &driver.signing {
            Some(signing) => signed(state, signing),
            None if state.loaded => Assessment::satisfied(
                "Secure Boot is enabled and a trusted NVIDIA module is loaded",
            ),
            None => Assessment::blocked(
                format!(
                    "Secure Boot is enabled, and the module `{module}` would be compiled on this machine with a \
                     signature that this machine does not trust"
                ),
                format!(
                    "use a source of signed modules ({}), an image in which your signing key \
                     is enrolled (set `driver.secure-boot.key` and \
                     `driver.secure-boot.certificate`), or an instance without Secure Boot",
                    signed_source(driver, &state.systems)
                ),
            ),
        },
    }
}

/// Returns a source of signed modules, preferably from the profile of this machine.
fn signed_source(driver: &DriverSpec, systems: &str) -> String {
    match driver.alternative.as_ref().filter(|other| !other.compiled) {
        Some(other) => format!("`driver.source = \"{}\"`", other.source),
        None => format!("the archives of {systems}"),
    }
}

/// Configures DKMS to sign modules with the administrator's key. Blocks if the key cannot be used or is not enrolled.
fn signed(state: &ModuleSigningState, signing: &SigningKey) -> Assessment {
    let SigningKey { key, certificate } = signing;
    let blocked = |why: String, hint: String| Assessment::Blocked { why, hint };
    match &state.key {
        // dkms replaces a missing key file with a new key pair, which no machine trusts.
        SigningKeyState::None | SigningKeyState::Unusable(..) => {
            let (path, why) = match &state.key {
                SigningKeyState::Unusable(path, why) => (path.as_str(), why.as_str()),
                _ => (key.as_str(), "it is missing"),
            };
            blocked(
                format!("the module signing key cannot be used: `{path}`: {why}"),
                "correct `driver.secure-boot.key` and `driver.secure-boot.certificate`, or create the file: it and its \
                    directories must be owned by root and writable only by root, and the key must have mode 0600"
                    .into(),
            )
        }
        SigningKeyState::Unread(version) => blocked(
            format!(
                "dkms {version} does not support a configured signing key: the first version that does is {}",
                dkms::FIRST_TO_SIGN
            ),
            "use a source of signed modules, a release with a newer dkms, or an instance without \
             Secure Boot"
                .into(),
        ),
        SigningKeyState::NotDer => blocked(
            format!("the certificate `{certificate}` is in PEM format, but DER is required"),
            format!(
                "run `openssl x509 -in {certificate} -outform DER -out FILE`, and set this file \
                 as `driver.secure-boot.certificate`"
            ),
        ),
        SigningKeyState::NotEnrolled => blocked(
            format!(
                "Secure Boot is enabled, and the certificate `{certificate}` is enrolled neither in \
                 the firmware nor as a machine owner key (MOK): modules signed with it are rejected"
            ),
            format!(
                "enroll it in the image, or run `mokutil --import {certificate}`, reboot, and \
                 confirm it at the machine's console. Alternatively, use a source of signed modules or an \
                 instance without Secure Boot"
            ),
        ),
        SigningKeyState::Enrolled | SigningKeyState::Unknown => {
            let content =
                format!("{HEADER}mok_signing_key=\"{key}\"\nmok_certificate=\"{certificate}\"\n");
            if state.told.as_ref() == Some(&content) {
                return Assessment::satisfied(match state.key {
                    SigningKeyState::Enrolled => format!(
                        "Secure Boot is enabled, and modules are signed with `{key}`, whose \
                         certificate is enrolled"
                    ),
                    _ => format!(
                        "Secure Boot is enabled, and modules are signed with `{key}`. It is unknown whether its \
                         certificate is enrolled"
                    ),
                });
            }
            Assessment::needs(
                format!(
                    "`{}` does not contain the module signing key",
                    dkms::SIGNING
                ),
                vec![Change::write(dkms::SIGNING, content)],
            )
        }
    }
}

async fn assess(cx: &Cx<'_>) -> Result<Assessment, StepError> {
    Ok(decide(&detect(cx).await?, cx.facts, cx.desired))
}

#[cfg(test)]
mod tests {
    use super::{ModuleSigningState, SecureBoot, SigningKeyState, decide, systems};
    use crate::{
        change::Change,
        config::desired::{Desired, OtherSource, SigningKey},
        dkms,
        facts::Facts,
        step::Assessment,
        steps::fixtures::{desired, facts},
    };

    #[test]
    fn unsigned_module_blocks_under_secure_boot() {
        for (state, dkms, blocked) in [
            (SecureBoot::Enabled, true, true),
            (SecureBoot::Enabled, false, false),
            (SecureBoot::Disabled, true, false),
            (SecureBoot::Unsupported, true, false),
            (SecureBoot::Unknown, true, false),
        ] {
            let (mut facts, mut want) = (facts(), desired());
            facts.secure_boot = state;
            if !dkms {
                want.driver.as_mut().expect("a driver").compiled_as = None;
            }
            let nothing = ModuleSigningState::default();
            let answer = decide(&nothing, &facts, &want);
            let is_blocked = matches!(answer, Assessment::Blocked { .. });
            assert_eq!(is_blocked, blocked, "{state:?}, dkms {dkms}");
        }
    }

    #[test]
    fn remedy_lists_sources_of_signed_modules() {
        let (mut facts, mut want) = (facts(), desired());
        facts.secure_boot = SecureBoot::Enabled;
        let mut hint = |source: Option<(&str, bool)>| {
            want.driver.as_mut().expect("a driver").alternative =
                source.map(|(name, compiled)| OtherSource {
                    source: name.to_owned(),
                    compiled,
                });
            let state = ModuleSigningState {
                systems: systems().expect("the profiles"),
                ..ModuleSigningState::default()
            };
            match decide(&state, &facts, &want) {
                Assessment::Blocked { hint, .. } => hint,
                other => panic!("{other:?}"),
            }
        };
        let told = hint(Some(("archive", false)));
        assert!(told.contains("`driver.source = \"archive\"`"), "{told}");
        // Modules that another source compiles are unsigned as well.
        for told in [hint(Some(("nvidia", true))), hint(None)] {
            for system in ["almalinux 9, 10", "ubuntu 22.04"] {
                assert!(told.contains(system), "{told}");
            }
        }
    }

    fn with_key() -> (Facts, Desired) {
        let (mut facts, mut want) = (facts(), desired());
        facts.secure_boot = SecureBoot::Enabled;
        want.driver.as_mut().expect("a driver").signing = Some(SigningKey {
            key: "/etc/mok/mok.key".into(),
            certificate: "/etc/mok/mok.der".into(),
        });
        (facts, want)
    }

    #[test]
    fn enrolled_administrator_key_signs_modules() {
        let (facts, want) = with_key();
        let mut state = ModuleSigningState {
            key: SigningKeyState::Enrolled,
            ..ModuleSigningState::default()
        };
        let (_, changes) = decide(&state, &facts, &want).expect_needs();
        let [Change::WriteFile { path, content, .. }] = &changes[..] else {
            panic!("{changes:?}");
        };
        assert_eq!(path, dkms::SIGNING);
        assert!(
            content.ends_with(
                "mok_signing_key=\"/etc/mok/mok.key\"\nmok_certificate=\"/etc/mok/mok.der\"\n"
            ),
            "{content}"
        );
        state.told = Some(content.clone());
        decide(&state, &facts, &want).expect_satisfied();
        // An already loaded module does not show that the next one is trusted.
        let loaded = ModuleSigningState {
            key: SigningKeyState::NotEnrolled,
            loaded: true,
            ..state
        };
        decide(&loaded, &facts, &want).expect_blocked();
    }

    #[test]
    fn untrusted_key_blocks_before_compilation() {
        let (facts, want) = with_key();
        for (key, why, hint) in rows! {
            SigningKeyState::NotEnrolled, "enrolled neither", "mokutil --import /etc/mok/mok.der";
            SigningKeyState::Unusable("/etc/mok/mok.key".into(), "it is missing".into()),
                "`/etc/mok/mok.key`: it is missing", "driver.secure-boot.key";
            SigningKeyState::NotDer, "PEM", "openssl x509";
            SigningKeyState::Unread("2.8.7-2ubuntu2.2".into()), "3.0.4", "signed modules";
        } {
            let state = ModuleSigningState {
                key,
                ..ModuleSigningState::default()
            };
            let Assessment::Blocked {
                why: told,
                hint: help,
            } = decide(&state, &facts, &want)
            else {
                panic!("{state:?}");
            };
            assert!(told.contains(why) && help.contains(hint), "{told}: {help}");
        }
    }
}
