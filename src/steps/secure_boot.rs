//! `secure-boot`: an unsigned module cannot be loaded, and enrolling a key needs a console. The
//! step reports this at once, not after a compilation. A key of the administrator's that is enrolled
//! signs what DKMS compiles.

use async_trait::async_trait;
use camino::Utf8Path;

use super::{PREFLIGHT, driver_packages::adopts, packages, words};
use crate::{
    change::{Change, Lock},
    config::desired::{Desired, DriverWish, SigningKey},
    dkms,
    facts::{Facts, SecureBoot},
    host::{
        FilesError, ReadFiles,
        trusted::{unusable, unusable_secret},
    },
    model::id::StepId,
    step::{Assessment, Cx, Step, StepError},
    tools::{efi, packages::HEADER},
};

/// See the module.
pub struct ModuleSigning;

#[derive(Debug, Clone, Default)]
struct ModuleSigningState {
    /// The driver that is there is kept.
    adopts: bool,
    /// A driver is loaded.
    loaded: bool,
    /// The content of the file that tells DKMS the key.
    told: Option<String>,
    /// The key that is to sign.
    key: SigningKeyState,
}

/// The administrator's key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
enum SigningKeyState {
    /// None is configured.
    #[default]
    None,
    /// The dkms that is installed, or would be, is of this version, which reads no file that names a key.
    Unread(String),
    /// A file of it is not there, or not root's alone: the file, and why.
    Unusable(String, String),
    /// The certificate is no DER.
    NotDer,
    /// The firmware does not know its certificate.
    NotEnrolled,
    /// It does.
    Enrolled,
    /// No list of certificates could be read.
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
    })
}

/// Why root may not use a file.
type Judge = fn(&dyn ReadFiles, &Utf8Path) -> Result<Option<String>, FilesError>;

async fn key(cx: &Cx<'_>, signing: &SigningKey) -> Result<SigningKeyState, StepError> {
    if let Some(version) = dkms_version(cx).await?
        && (packages::backend(cx).compare(&version, dkms::FIRST_TO_SIGN)).is_lt()
    {
        return Ok(SigningKeyState::Unread(version));
    }
    let files = cx.host.files();
    let parts: [(&Utf8Path, Judge); 2] = [
        (&signing.key, unusable_secret),
        (&signing.certificate, unusable),
    ];
    for (path, judge) in parts {
        let why = match cx.state.is_of_this_machine() {
            true => judge(files, path)?,
            false => (!files.exists(path)?).then(|| "it is missing".to_owned()),
        };
        if let Some(why) = why {
            return Ok(SigningKeyState::Unusable(path.to_string(), why));
        }
    }
    let certificate = files.read(&signing.certificate)?.unwrap_or_default();
    // A certificate in DER is a sequence of more than 255 bytes; the other form begins with dashes.
    if certificate.starts_with(b"-----") {
        return Ok(SigningKeyState::NotDer);
    }
    Ok(match efi::is_enrolled(files, &certificate)? {
        Some(true) => SigningKeyState::Enrolled,
        Some(false) => SigningKeyState::NotEnrolled,
        None => SigningKeyState::Unknown,
    })
}

/// The version of dkms that compiles here: the installed one, else the one that would be installed. `None`
/// if the package lists do not tell.
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
        return words::no_driver();
    };
    let Some(module) = &driver.dkms else {
        return Assessment::satisfied(
            "the kernel modules come compiled and signed from their vendor",
        );
    };
    if state.adopts {
        return Assessment::satisfied(
            "the existing driver is adopted, so no kernel module is compiled here",
        );
    }
    match facts.secure_boot {
        SecureBoot::Disabled => Assessment::satisfied("Secure Boot is off"),
        SecureBoot::Unsupported => Assessment::satisfied("the machine does not boot with UEFI"),
        // Unreadable values are listed under `unknown` in the facts; loading the module will show
        // the result.
        SecureBoot::Unknown => Assessment::satisfied(
            "the state of Secure Boot cannot be read; an attempt to load the module will \
             show it",
        ),
        SecureBoot::Enabled => match &driver.signing {
            Some(signing) => signed(state, signing),
            None if state.loaded => {
                Assessment::satisfied("Secure Boot is on and an accepted NVIDIA module is loaded")
            }
            None => Assessment::blocked(
                format!(
                    "Secure Boot is on, and the module `{module}` would be compiled here, with a \
                     signature that this machine does not trust"
                ),
                format!(
                    "use a source of signed modules ({}); or an image in which a signing key of \
                     yours is enrolled, and name it in `driver.secure-boot.key` and \
                     `driver.secure-boot.certificate`; or an instance without Secure Boot",
                    signed_source(driver)
                ),
            ),
        },
    }
}

/// Where signed modules come from: on this machine, if its profile knows such a source.
fn signed_source(driver: &DriverWish) -> String {
    match driver.alternative.as_ref().filter(|other| !other.compiled) {
        Some(other) => format!("`driver.source = \"{}\"`", other.source),
        None => "Ubuntu's archive, AlmaLinux 9 and 10".to_owned(),
    }
}

/// What DKMS compiles is signed with the administrator's key, if the machine trusts it.
fn signed(state: &ModuleSigningState, signing: &SigningKey) -> Assessment {
    let SigningKey { key, certificate } = signing;
    let blocked = |why: String, hint: String| Assessment::Blocked { why, hint };
    match &state.key {
        // dkms makes a new pair in the place of a file that is missing, and no machine trusts that.
        SigningKeyState::None | SigningKeyState::Unusable(..) => {
            let (path, why) = match &state.key {
                SigningKeyState::Unusable(path, why) => (path.as_str(), why.as_str()),
                _ => (key.as_str(), "it is missing"),
            };
            blocked(
                format!("the key that is to sign modules cannot be used: `{path}`: {why}"),
                "correct `driver.secure-boot.key` and `driver.secure-boot.certificate`, or bring the file: it belongs to root, as its \
                 folders do, nobody else may write it, and the key has mode 0600"
                    .into(),
            )
        }
        SigningKeyState::Unread(version) => blocked(
            format!(
                "dkms {version} does not read which key signs modules: the first that does is {}",
                dkms::FIRST_TO_SIGN
            ),
            "use a source of signed modules, a release with a newer dkms, or an instance without \
             Secure Boot"
                .into(),
        ),
        SigningKeyState::NotDer => blocked(
            format!("the certificate `{certificate}` is in PEM, and DER is needed"),
            format!(
                "run `openssl x509 -in {certificate} -outform DER -out FILE`, and name that file \
                 in `driver.secure-boot.certificate`"
            ),
        ),
        SigningKeyState::NotEnrolled => blocked(
            format!(
                "Secure Boot is on, and the certificate `{certificate}` is enrolled neither in \
                 the firmware nor as a machine owner key: modules that it signs are rejected"
            ),
            format!(
                "enroll it in the image, or run `mokutil --import {certificate}`, reboot, and \
                 confirm it at the machine's console; or use a source of signed modules; or an \
                 instance without Secure Boot"
            ),
        ),
        SigningKeyState::Enrolled | SigningKeyState::Unknown => {
            let content =
                format!("{HEADER}mok_signing_key=\"{key}\"\nmok_certificate=\"{certificate}\"\n");
            if state.told.as_ref() == Some(&content) {
                return Assessment::satisfied(match state.key {
                    SigningKeyState::Enrolled => format!(
                        "Secure Boot is on, and modules are signed with `{key}`, whose \
                         certificate is enrolled"
                    ),
                    _ => format!(
                        "Secure Boot is on, and modules are signed with `{key}`; whether its \
                         certificate is enrolled cannot be read"
                    ),
                });
            }
            Assessment::needs(
                format!(
                    "`{}` does not name the key that signs modules",
                    dkms::SIGNING
                ),
                vec![Change::write(dkms::SIGNING, content)],
            )
        }
    }
}

#[async_trait]
impl Step for ModuleSigning {
    fn id(&self) -> StepId {
        super::SECURE_BOOT
    }

    fn after(&self) -> &[StepId] {
        const { &[PREFLIGHT] }
    }

    fn locks(&self) -> &[Lock] {
        &[Lock::Modules]
    }

    fn wants(&self, _: &Change, desired: &Desired) -> bool {
        (desired.driver.as_ref()).is_none_or(|driver| driver.signing.is_some())
    }

    async fn assess(&self, cx: &Cx<'_>) -> Result<Assessment, StepError> {
        Ok(decide(&detect(cx).await?, cx.facts, cx.desired))
    }
}

#[cfg(test)]
mod tests {
    use super::{ModuleSigningState, SecureBoot, SigningKeyState, decide};
    use crate::{
        change::Change,
        config::desired::{Desired, OtherSource, SigningKey},
        dkms,
        facts::Facts,
        step::Assessment,
        steps::fixtures::{desired, facts},
    };

    #[test]
    fn only_an_unsigned_module_under_secure_boot_blocks() {
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
                want.driver.as_mut().expect("a driver").dkms = None;
            }
            let nothing = ModuleSigningState::default();
            let answer = decide(&nothing, &facts, &want);
            let is_blocked = matches!(answer, Assessment::Blocked { .. });
            assert_eq!(is_blocked, blocked, "{state:?}, dkms {dkms}");
        }
    }

    #[test]
    fn who_is_blocked_hears_where_signed_modules_are() {
        let (mut facts, mut want) = (facts(), desired());
        facts.secure_boot = SecureBoot::Enabled;
        let mut hint = |source: Option<(&str, bool)>| {
            want.driver.as_mut().expect("a driver").alternative =
                source.map(|(name, compiled)| OtherSource {
                    source: name.to_owned(),
                    compiled,
                });
            match decide(&ModuleSigningState::default(), &facts, &want) {
                Assessment::Blocked { hint, .. } => hint,
                other => panic!("{other:?}"),
            }
        };
        let told = hint(Some(("archive", false)));
        assert!(told.contains("`driver.source = \"archive\"`"), "{told}");
        // What another source compiles has no signature, either.
        for told in [hint(Some(("nvidia", true))), hint(None)] {
            assert!(told.contains("AlmaLinux 9"), "{told}");
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
    fn an_enrolled_key_of_the_administrator_signs_what_is_compiled() {
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
        // A module that was loaded before is no proof for the one that is compiled next.
        let loaded = ModuleSigningState {
            key: SigningKeyState::NotEnrolled,
            loaded: true,
            ..state
        };
        decide(&loaded, &facts, &want).expect_blocked();
    }

    #[test]
    fn a_key_that_the_machine_does_not_trust_is_refused_before_anything_is_compiled() {
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
