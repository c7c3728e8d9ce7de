//! OpenPGP public keys: their fingerprints, and the binary form that apt wants of a keyring. A library
//! reads them in this process, because minimal images have no `gpg`.

use std::io::Read as _;

use pgp::{
    armor::{BlockType, Dearmor},
    composed::{ArmorOptions, Deserializable, SignedPublicKey},
    packet::{Signature, SignatureType},
    ser::Serialize,
    types::{KeyDetails, Tag},
};

use crate::host::digest::sha256;

/// A public key with its user ids and subkeys, as far as the key itself has signed them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    /// Fingerprint of the primary key: 40 upper-case hex digits (v4).
    pub fingerprint: String,
    /// When the primary key expires, seconds since 1970; `None`: never.
    pub expires: Option<i64>,
    /// Whether its owner has revoked it.
    pub revoked: bool,
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

/// A file of public keys. What is parsed is what is hashed and written: a byte that only one of them sees could change the
/// key that a digest stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyFile {
    /// The file; of an armoured one without its headers `Version:`, which programs that armour keys write, and which change
    /// although the key does not.
    pub bytes: Vec<u8>,
    /// The SHA-256 of `bytes`; `None` for a file without armour, which no package manager takes in place of an armoured one.
    pub digest: Option<String>,
    /// All keys of the file.
    pub keys: Vec<Key>,
}

/// Reads all public keys of a file, armoured or binary.
///
/// # Errors
/// When it holds no key, or is not OpenPGP.
pub fn parse(file: &[u8]) -> Result<KeyFile, OpenPgpError> {
    // RFC 9580, 4.2: the highest bit of a packet's first byte is set.
    let is_binary = file.first().is_some_and(|first| first & 0x80 != 0);
    if is_binary {
        return Ok(KeyFile {
            bytes: file.to_vec(),
            digest: None,
            keys: keys(file)?,
        });
    }
    let mut bytes = Vec::new();
    let mut found = Vec::new();
    for block in blocks(file)? {
        found.extend(keys(&without_armour(&block).map_err(malformed)?)?);
        bytes.extend(block);
    }
    Ok(KeyFile {
        digest: Some(sha256(&bytes)),
        bytes,
        keys: found,
    })
}

fn malformed(error: impl ToString) -> OpenPgpError {
    OpenPgpError::Malformed {
        why: error.to_string(),
    }
}

/// The keys in packets.
fn keys(packets: &[u8]) -> Result<Vec<Key>, OpenPgpError> {
    let mut found = Vec::new();
    for key in SignedPublicKey::from_bytes_many(packets).map_err(malformed)? {
        let (key, revoked) = verified(key.map_err(malformed)?)?;
        found.push(Key {
            fingerprint: key.fingerprint().to_string().to_uppercase(),
            expires: expires(&key),
            revoked,
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

/// The key with nothing but what it has signed itself, and whether it has revoked itself. Anybody can add a subkey to a
/// public key, and there are programs that trust it: those of rpm before 4.17.1 (CVE-2021-3521).
fn verified(key: SignedPublicKey) -> Result<(SignedPublicKey, bool), OpenPgpError> {
    let fingerprint = key.fingerprint().to_string().to_uppercase();
    let (primary, mut details) = (key.primary_key, key.details);
    let by_itself = |signature: &Signature| signature.verify_key(&primary).is_ok();
    (details.revocation_signatures).retain(by_itself);
    (details.direct_signatures).retain(by_itself);
    // Of pictures and the like nobody asks anything.
    details.user_attributes.clear();
    details.users.retain_mut(|user| {
        let id = &user.id;
        (user.signatures).retain(|one| one.verify_certification(&primary, Tag::UserId, id).is_ok());
        let is_revoked = |one: &Signature| one.typ() == Some(SignatureType::CertRevocation);
        !user.signatures.is_empty() && !user.signatures.iter().any(is_revoked)
    });
    let mut subkeys = key.public_subkeys;
    subkeys.retain_mut(|subkey| {
        let of = &subkey.key;
        subkey.signatures.retain(|one| {
            // A subkey that signs says itself, too, whose it is.
            one.verify_subkey_binding(&primary, of).is_ok()
                && (!one.key_flags().sign()
                    || (one.embedded_signature())
                        .is_some_and(|back| back.verify_primary_key_binding(of, &primary).is_ok()))
        });
        let is_revoked = |one: &Signature| one.typ() == Some(SignatureType::SubkeyRevocation);
        !subkey.signatures.is_empty() && !subkey.signatures.iter().any(is_revoked)
    });
    let revoked = !details.revocation_signatures.is_empty();
    if !revoked && details.users.is_empty() && details.direct_signatures.is_empty() {
        return Err(malformed(format!(
            "{fingerprint} has signed no user id of its own"
        )));
    }
    Ok((SignedPublicKey::new(primary, details, subkeys), revoked))
}

/// The armoured blocks of a file without their headers `Version:`. What stands between two blocks belongs to the second one.
/// Every block is read, as rpm does it; a distribution's file may begin with a sentence, and nothing else stands outside of the blocks.
fn blocks(file: &[u8]) -> Result<Vec<Vec<u8>>, OpenPgpError> {
    #[derive(PartialEq)]
    enum ArmorPart {
        Outside,
        Headers,
        Body,
    }
    let mut found = Vec::new();
    let mut block = Vec::new();
    let mut part = ArmorPart::Outside;
    for (index, line) in file.split_inclusive(|byte| *byte == b'\n').enumerate() {
        let wrong = |what: &str| malformed(format!("line {} {what}", index + 1));
        let begins = line.starts_with(b"-----BEGIN ");
        let ends = line.starts_with(b"-----END ");
        let is_blank = line.trim_ascii().is_empty();
        match part {
            ArmorPart::Outside if begins => part = ArmorPart::Headers,
            ArmorPart::Outside if is_blank => {}
            ArmorPart::Outside if found.is_empty() && !contains(line, b"-----") => {}
            ArmorPart::Outside => return Err(wrong("is outside of the armour")),
            ArmorPart::Headers | ArmorPart::Body if begins => {
                return Err(wrong("begins a block inside of another one"));
            }
            ArmorPart::Headers if line.starts_with(b"Version:") => continue,
            ArmorPart::Headers if is_blank => part = ArmorPart::Body,
            ArmorPart::Headers if ends => return Err(wrong("ends a block without a blank line")),
            ArmorPart::Headers => {}
            ArmorPart::Body if ends => {
                block.extend_from_slice(line);
                found.push(std::mem::take(&mut block));
                part = ArmorPart::Outside;
                continue;
            }
            ArmorPart::Body if contains(line, b"-----") => return Err(wrong("is not Base64")),
            ArmorPart::Body => {}
        }
        block.extend_from_slice(line);
    }
    match (part, found.last_mut()) {
        // The white space at the end of the file.
        (ArmorPart::Outside, Some(last)) => last.append(&mut block),
        (ArmorPart::Outside, None) => return Err(OpenPgpError::Empty),
        _ => return Err(malformed("its armour has no end")),
    }
    Ok(found)
}

fn contains(line: &[u8], part: &[u8]) -> bool {
    line.windows(part.len()).any(|window| window == part)
}

/// The packets of an armoured block. They have one form for the parser, so that the program has one parser: that of the
/// library for both forms has a parser for each.
fn without_armour(block: &[u8]) -> Result<Vec<u8>, pgp::errors::Error> {
    let mut armoured = Dearmor::new(block);
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
    Ok(binary)
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

/// Two armoured files that differ in one line of the body, which begins with `Version`, and have different keys.
#[cfg(test)]
pub mod forged {
    use base64::{Engine as _, engine::general_purpose::STANDARD};

    /// An old packet of a private type (RFC 9580, 5.15), which every program skips: its header.
    fn skipped(length: usize) -> Vec<u8> {
        let [high, low] = u16::try_from(length).unwrap().to_be_bytes();
        let mut header = vec![0xff, 0xff];
        header.extend(u32::from_be_bytes([0, 0, high, low]).to_be_bytes());
        header
    }

    fn armoured(lines: &[String]) -> Vec<u8> {
        let body = lines.join("\n");
        format!(
            "-----BEGIN PGP PUBLIC KEY BLOCK-----\n\n{body}\n-----END PGP PUBLIC KEY BLOCK-----\n"
        )
        .into_bytes()
    }

    /// The file with the first key of the tests, and the same file with a line of an attacker, who has the second one.
    pub fn pair() -> (Vec<u8>, Vec<u8>) {
        let keys = super::parse(include_bytes!("../../tests/keys/two.asc"))
            .unwrap()
            .keys;
        let [vendor, attacker] = &keys[..] else {
            panic!("two keys");
        };
        // Both begin with a line whose packet goes on in the next one.
        let first = [skipped(84), vec![0; 42]].concat();
        let rest = [vec![0; 42], vendor.binary.clone()].concat();
        // `Version+`, in Base64, are six bytes.
        let mut inserted = STANDARD.decode("Version+").unwrap();
        inserted.extend([0; 36]);
        inserted.extend(&attacker.binary);
        while !(inserted.len() + 6).is_multiple_of(3) {
            inserted.extend(skipped(1));
            inserted.push(0);
        }
        inserted.extend(skipped(rest.len()));
        let [first, rest, inserted] = [first, rest, inserted].map(|bytes| STANDARD.encode(bytes));
        assert!(inserted.starts_with("Version") && !inserted.ends_with('='));
        (
            armoured(&[first.clone(), rest.clone()]),
            armoured(&[first, inserted, rest]),
        )
    }
}

#[cfg(test)]
mod tests {
    use pgp::{
        composed::{Deserializable as _, SignedPublicKey},
        ser::Serialize as _,
    };

    use super::parse;

    /// The keys of the tests with this text in the place of another one.
    fn changed(from: &str, to: &str) -> Vec<u8> {
        let text = std::str::from_utf8(ARMOURED).unwrap();
        text.replacen(from, to, 1).into_bytes()
    }

    #[test]
    fn the_version_of_the_program_that_armoured_a_key_does_not_count() {
        let plain = parse(ARMOURED).unwrap();
        assert_eq!(plain.bytes, ARMOURED);
        let version = changed("BLOCK-----\n", "BLOCK-----\nVersion: GnuPG v2.0.22\n");
        assert_eq!(parse(&version).unwrap(), plain);
        let comment = changed("BLOCK-----\n", "BLOCK-----\nComment: a key\n");
        assert_ne!(parse(&comment).unwrap().digest, plain.digest);
        let again = parse(plain.keys[0].armoured.as_bytes()).unwrap();
        assert_eq!(again.keys, plain.keys[..1]);
        // No package manager takes one form for the other.
        assert_eq!(parse(&plain.keys[0].binary).unwrap().digest, None);
    }

    #[test]
    fn a_line_of_the_body_counts_whatever_it_begins_with() {
        let line = parse(&changed("mDMEawF3lx", "VersionAmDMEawF3lx"));
        assert!(line.is_err() || line.unwrap().bytes != ARMOURED);
        // A packet that no program knows hides which lines follow.
        let (benign, forged) = crate::tools::openpgp::forged::pair();
        let (benign, forged) = (parse(&benign).unwrap(), parse(&forged).unwrap());
        let fingerprint = |file: &super::KeyFile| file.keys[0].fingerprint.clone();
        assert_ne!(fingerprint(&benign), fingerprint(&forged));
        assert_ne!(benign.digest, forged.digest);
        // They would have one digest if such lines did not count anywhere.
        let without = |file: &super::KeyFile| {
            let text = String::from_utf8(file.bytes.clone()).unwrap();
            (text.lines().filter(|line| !line.starts_with("Version"))).collect::<String>()
        };
        assert_eq!(without(&benign), without(&forged));
    }

    #[test]
    fn every_block_is_read_and_nothing_stands_outside() {
        let one = parse(ARMOURED).unwrap();
        let [first, second] = &one.keys[..] else {
            panic!("two keys");
        };
        let both = format!("{}\n{}", first.armoured, second.armoured);
        assert_eq!(parse(both.as_bytes()).unwrap().keys, one.keys);
        // A distribution's file may begin with a sentence.
        let sentence = format!("These keys sign packages.\n\n{both}\n \n");
        let read = parse(sentence.as_bytes()).unwrap();
        assert_eq!(
            (read.keys, read.bytes),
            (one.keys.clone(), sentence.into_bytes())
        );
        for (file, why) in rows! {
            format!("{both}x"), "outside of the armour";
            format!("{} text\n{}", first.armoured, second.armoured), "outside";
            format!("text -----BEGIN\n{both}"), "line 1 is outside of the armour";
            format!("{} -----BEGIN", first.armoured), "outside of the armour";
            both.replacen("-----END PGP PUBLIC KEY BLOCK-----", "", 1), "inside of another";
            first.armoured.replace("-----END", "x-----END"), "is not Base64";
            first.armoured.replace("\n\n", "\n"), "without a blank line";
            first.armoured.replace("-----END PGP PUBLIC KEY BLOCK-----", ""), "no end";
        } {
            let error = parse(file.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(why), "{error}: {file}");
        }
    }

    const ARMOURED: &[u8] = include_bytes!("../../tests/keys/two.asc");

    #[test]
    fn fingerprints_and_expiry_are_read_and_survive_without_armour() {
        let keys = parse(ARMOURED).expect("two keys").keys;
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
        assert_eq!(parse(&binary).expect("the same keys").keys, keys);
    }

    const SUBKEY: &[u8] = include_bytes!("../../tests/keys/subkey.asc");
    const REVOKED: &[u8] = include_bytes!("../../tests/keys/revoked.asc");

    /// The keys of a file as the library reads them, without a look at their signatures.
    fn unverified(file: &[u8]) -> Vec<SignedPublicKey> {
        let keys = SignedPublicKey::from_armor_many(file).unwrap().0;
        keys.map(Result::unwrap).collect()
    }

    #[test]
    fn a_key_has_only_what_it_has_signed_itself() {
        let own = &parse(SUBKEY).unwrap().keys[0];
        assert_eq!(own.binary, unverified(SUBKEY)[0].to_bytes().unwrap());
        let mut key = unverified(ARMOURED).remove(0);
        let clean = key.to_bytes().unwrap();
        let other = unverified(SUBKEY).remove(0);
        key.public_subkeys.extend(other.public_subkeys);
        key.details.users.extend(other.details.users);
        assert!(key.verify_bindings().is_err());
        let read = &parse(&key.to_bytes().unwrap()).unwrap().keys[0];
        assert_eq!(read.binary, clean);
        // One without a signature of its own is none.
        key.details.users.remove(0);
        let error = parse(&key.to_bytes().unwrap()).unwrap_err().to_string();
        assert!(
            error.contains("has signed no user id of its own"),
            "{error}"
        );
    }

    #[test]
    fn a_revocation_counts_if_it_is_the_keys_own() {
        assert!(parse(REVOKED).unwrap().keys[0].revoked);
        let mut key = unverified(ARMOURED).remove(0);
        let of_another = unverified(REVOKED).remove(0).details.revocation_signatures;
        key.details.revocation_signatures = of_another;
        assert!(!parse(&key.to_bytes().unwrap()).unwrap().keys[0].revoked);
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
