//! OpenPGP public keys: their fingerprints, and the binary form that apt wants of a keyring.

use std::{borrow::Cow, io::Read as _};

use pgp::{
    armor::{BlockType, Dearmor},
    composed::{ArmorOptions, Deserializable, SignedPublicKey},
    ser::Serialize,
    types::KeyDetails,
};

use crate::host::digest::sha256;

/// A public key with its user ids and subkeys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    /// Fingerprint of the primary key: 40 upper-case hex digits (v4).
    pub fingerprint: String,
    /// When the primary key expires, seconds since 1970; `None`: never.
    pub expires: Option<i64>,
    /// The key without armour.
    pub binary: Vec<u8>,
    /// The key with armour.
    pub armoured: String,
}

/// Why key material cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OpenPgpError {
    /// It is not OpenPGP.
    #[error("it is not an OpenPGP public key: {why}")]
    Malformed {
        /// The parser's message.
        why: String,
    },
    /// It holds no key.
    #[error("it contains no OpenPGP public key")]
    Empty,
}

/// Reads all public keys of a file, armoured or binary.
///
/// # Errors
/// When it holds no key, or is not OpenPGP.
pub fn parse(bytes: &[u8]) -> Result<Vec<Key>, OpenPgpError> {
    let malformed = |error: pgp::errors::Error| OpenPgpError::Malformed {
        why: error.to_string(),
    };
    let binary = without_armour(bytes).map_err(malformed)?;
    let keys = SignedPublicKey::from_bytes_many(&*binary).map_err(malformed)?;
    let mut found = Vec::new();
    for key in keys {
        let key = key.map_err(malformed)?;
        found.push(Key {
            fingerprint: key.fingerprint().to_string().to_uppercase(),
            expires: expires(&key),
            binary: key.to_bytes().map_err(malformed)?,
            armoured: key
                .to_armored_string(ArmorOptions::default())
                .map_err(malformed)?,
        });
    }
    if found.is_empty() {
        Err(OpenPgpError::Empty)
    } else {
        Ok(found)
    }
}

/// The packets of a key file. They have one form for the parser, so that the program has one parser: that of the library for
/// both forms has a parser for each.
fn without_armour(bytes: &[u8]) -> Result<Cow<'_, [u8]>, pgp::errors::Error> {
    // RFC 9580, 4.2: the highest bit of a packet's first byte is set.
    if bytes.first().is_some_and(|first| first & 0x80 != 0) {
        return Ok(Cow::Borrowed(bytes));
    }
    let mut armoured = Dearmor::new(bytes);
    armoured.read_header()?;
    match armoured.typ {
        Some(BlockType::PublicKey | BlockType::File) => {}
        Some(other) => {
            return Err(std::io::Error::other(format!("it has the armour of a {other}")).into());
        }
        None => return Err(std::io::Error::other("its armour has no type").into()),
    }
    let mut binary = Vec::new();
    armoured.read_to_end(&mut binary)?;
    Ok(Cow::Owned(binary))
}

/// The digest of a key file without its lines that begin with `Version`: programs that armour keys
/// write their version there, and it changes although the key does not.
#[must_use]
pub fn digest(bytes: &[u8]) -> String {
    let kept: Vec<u8> = (bytes.split_inclusive(|byte| *byte == b'\n'))
        .filter(|line| !line.starts_with(b"Version"))
        .flatten()
        .copied()
        .collect();
    sha256(&kept)
}

/// The expiry date in the newest self-signature that has one. RFC 9580, 5.2.3.13: an
/// absent or zero value means that the key never expires.
fn expires(key: &SignedPublicKey) -> Option<i64> {
    let created = i64::from(key.primary_key.created_at().as_secs());
    let signatures = key
        .details
        .users
        .iter()
        .flat_map(|user| &user.signatures)
        .chain(&key.details.direct_signatures);
    let newest = signatures.max_by_key(|signature| signature.created().map(|at| at.as_secs()))?;
    let validity = i64::from(newest.key_expiration_time()?.as_secs());
    (validity > 0).then_some(created + validity)
}

#[cfg(test)]
mod tests {
    use super::{OpenPgpError, digest, parse};

    #[test]
    fn the_version_of_the_program_that_armoured_a_key_does_not_count() {
        let with = b"-----BEGIN\nVersion: GnuPG v2.0.22 (GNU/Linux)\n\nabc\n";
        assert_eq!(digest(with), digest(b"-----BEGIN\n\nabc\n"));
        assert_ne!(digest(with), digest(b"-----BEGIN\n\nabd\n"));
        let keys = parse(ARMOURED).unwrap();
        let again = parse(keys[0].armoured.as_bytes()).unwrap();
        assert_eq!(again[0].fingerprint, keys[0].fingerprint);
    }

    const ARMOURED: &[u8] = include_bytes!("../../tests/keys/two.asc");

    #[test]
    fn fingerprints_and_expiry_are_read_and_survive_without_armour() {
        let keys = parse(ARMOURED).expect("two keys");
        let found: Vec<(&str, Option<i64>)> = keys
            .iter()
            .map(|key| (key.fingerprint.as_str(), key.expires))
            .collect();
        assert_eq!(
            found,
            [
                ("8EBE33251F7E6A8E6C2120DD2DE2D3DD7E65B027", Some(1893499200)),
                ("1732C20F83E68D3F9A3866A67294E6455BBBA7EA", None),
            ]
        );
        let binary: Vec<u8> = keys.iter().flat_map(|key| key.binary.clone()).collect();
        assert_eq!(parse(&binary).expect("the same keys"), keys);
    }

    #[test]
    fn nothing_is_told_from_garbage() {
        assert!(matches!(
            parse(b""),
            Err(OpenPgpError::Empty | OpenPgpError::Malformed { .. })
        ));
    }

    #[test]
    fn a_file_of_another_kind_is_named() {
        let public = std::str::from_utf8(ARMOURED).unwrap();
        let error = parse(public.replace("PUBLIC", "PRIVATE").as_bytes()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "it is not an OpenPGP public key: IO error: it has the armour of a PGP PRIVATE KEY BLOCK"
        );
    }

    #[test]
    fn garbage_is_no_key() {
        for garbage in [
            &b""[..],
            b"<html>404</html>",
            &[0xff; 64],
            b"-----BEGIN PGP PUBLIC KEY BLOCK-----\n\nAAAA\n",
        ] {
            assert!(parse(garbage).is_err(), "{garbage:?}");
        }
    }
}
