//! Parses OpenPGP public keys: their fingerprints, and the binary format that apt requires for a keyring. This is done with a
//! library, because minimal images do not contain `gpg`.

use std::io::Read as _;

use pgp::{
    armor::{BlockType, Dearmor},
    composed::{ArmorOptions, Deserializable, SignedPublicKey},
    packet::{Signature, SignatureType},
    ser::Serialize,
    types::{KeyDetails, Tag},
};

use crate::host::digest::sha256;

/// A public key with its user IDs and subkeys, limited to those that the key has signed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    /// Fingerprint of the primary key: 40 upper-case hex digits (v4).
    pub fingerprint: String,
    /// Expiry time of the primary key in seconds since 1970, or `None` if it does not expire.
    pub expires: Option<i64>,
    /// Whether the key is revoked by its owner.
    pub revoked: bool,
    /// The key without armor.
    pub binary: Vec<u8>,
    /// The key with armor.
    pub armoured: String,
}

/// The key material cannot be parsed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OpenPgpError {
    /// The data is not OpenPGP.
    #[error("not an OpenPGP public key: {why}")]
    Malformed {
        /// The parser's message.
        why: String,
    },
    /// The data contains no key.
    #[error("no OpenPGP public key found")]
    Empty,
}

/// A file of public keys. The same bytes are parsed, hashed and written, because a byte that only one of these operations sees
/// could change the key behind a digest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyFile {
    /// The file content. In an armored file the `Version:` headers are removed, because they depend on the program that created
    /// the armor and change although the key does not.
    pub bytes: Vec<u8>,
    /// The SHA-256 of `bytes`, by which a repository can accept the file as its keyring. `None` for a file without armor,
    /// because package managers do not accept such a file in place of an armored keyring.
    pub digest: Option<String>,
    /// All keys in the file.
    pub keys: Vec<Key>,
}

/// Parses all public keys of a file, armored or binary.
///
/// # Errors
/// If the file contains no key, is not OpenPGP, or has a key without a self-signed user ID.
pub fn parse(file: &[u8]) -> Result<KeyFile, OpenPgpError> {
    // RFC 9580, 4.2: the highest bit of the first byte of a packet is set.
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

/// Parses the keys in packets.
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

/// Removes all parts that the key has not signed itself or has revoked, and returns whether the key itself is revoked. Anyone
/// can add a subkey to a public key, and some programs trust it, for example rpm before 4.17.1 (CVE-2021-3521).
fn verified(key: SignedPublicKey) -> Result<(SignedPublicKey, bool), OpenPgpError> {
    let fingerprint = key.fingerprint().to_string().to_uppercase();
    let (primary, mut details) = (key.primary_key, key.details);
    let by_itself = |signature: &Signature| signature.verify_key(&primary).is_ok();
    (details.revocation_signatures).retain(by_itself);
    (details.direct_signatures).retain(by_itself);
    // Remove user attributes such as pictures, because they are not used.
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
            // A signing subkey must also confirm its primary key.
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
            "{fingerprint} has no self-signed user ID"
        )));
    }
    Ok((SignedPublicKey::new(primary, details, subkeys), revoked))
}

/// Splits a file into armored blocks and removes their `Version:` headers. Blank lines between two blocks belong to the second
/// one. Every block is parsed, as rpm does. A distribution's file may start with a sentence, but no other text is allowed
/// outside the blocks.
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
            ArmorPart::Outside => return Err(wrong("is outside the armor")),
            ArmorPart::Headers | ArmorPart::Body if begins => {
                return Err(wrong("starts a block inside another block"));
            }
            ArmorPart::Headers if line.starts_with(b"Version:") => continue,
            ArmorPart::Headers if is_blank => part = ArmorPart::Body,
            ArmorPart::Headers if ends => return Err(wrong("ends a block that has no blank line")),
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
        // White space at the end of the file.
        (ArmorPart::Outside, Some(last)) => last.append(&mut block),
        (ArmorPart::Outside, None) => return Err(OpenPgpError::Empty),
        _ => return Err(malformed("the armor has no end")),
    }
    Ok(found)
}

fn contains(line: &[u8], part: &[u8]) -> bool {
    line.windows(part.len()).any(|window| window == part)
}

/// Returns the packets of an armored block. The library's combined parser for armored and binary data contains one parser for
/// each, so converting everything to packets keeps the binary smaller.
fn without_armour(block: &[u8]) -> Result<Vec<u8>, pgp::errors::Error> {
    let mut armoured = Dearmor::new(block);
    armoured.read_header()?;
    match armoured.typ {
        Some(BlockType::PublicKey | BlockType::File) => {}
        Some(other) => {
            return Err(std::io::Error::other(format!("the armor type is {other}")).into());
        }
        None => return Err(std::io::Error::other("the armor has no type").into()),
    }
    let mut binary = Vec::new();
    armoured.read_to_end(&mut binary)?;
    Ok(binary)
}

/// Returns the expiry time in the newest self-signature. RFC 9580, 5.2.3.13: a missing or zero value means that the key never
/// expires.
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

/// Two armored files with different keys. They differ in one line of the body, which starts with `Version`.
#[cfg(test)]
pub mod forged {
    use base64::{Engine as _, engine::general_purpose::STANDARD};

    /// The header of a new-format packet with a private type (RFC 9580, 5.15), which every program skips.
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

    /// Returns a file with the first test key, and the same file with an additional line from an attacker, who owns the second
    /// key.
    pub fn pair() -> (Vec<u8>, Vec<u8>) {
        let keys = super::parse(include_bytes!("../../tests/keys/two.asc"))
            .unwrap()
            .keys;
        let [vendor, attacker] = &keys[..] else {
            panic!("two keys");
        };
        // Both start with a line whose packet continues in the next line.
        let first = [skipped(84), vec![0; 42]].concat();
        let rest = [vec![0; 42], vendor.binary.clone()].concat();
        // In Base64, `Version+` is six bytes.
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

    /// Returns the test keys with a text replaced.
    fn changed(from: &str, to: &str) -> Vec<u8> {
        let text = std::str::from_utf8(ARMOURED).unwrap();
        text.replacen(from, to, 1).into_bytes()
    }

    #[test]
    fn version_header_of_armor_is_ignored() {
        let plain = parse(ARMOURED).unwrap();
        assert_eq!(plain.bytes, ARMOURED);
        let version = changed("BLOCK-----\n", "BLOCK-----\nVersion: GnuPG v2.0.22\n");
        assert_eq!(parse(&version).unwrap(), plain);
        let comment = changed("BLOCK-----\n", "BLOCK-----\nComment: a key\n");
        assert_ne!(parse(&comment).unwrap().digest, plain.digest);
        let again = parse(plain.keys[0].armoured.as_bytes()).unwrap();
        assert_eq!(again.keys, plain.keys[..1]);
        // Package managers do not accept one format instead of the other.
        assert_eq!(parse(&plain.keys[0].binary).unwrap().digest, None);
    }

    #[test]
    fn body_line_is_used_whatever_its_start() {
        let line = parse(&changed("mDMEawF3lx", "VersionAmDMEawF3lx"));
        assert!(line.is_err() || line.unwrap().bytes != ARMOURED);
        // An unknown packet hides the lines that follow.
        let (benign, forged) = crate::tools::openpgp::forged::pair();
        let (benign, forged) = (parse(&benign).unwrap(), parse(&forged).unwrap());
        let fingerprint = |file: &super::KeyFile| file.keys[0].fingerprint.clone();
        assert_ne!(fingerprint(&benign), fingerprint(&forged));
        assert_ne!(benign.digest, forged.digest);
        // If such lines were ignored everywhere, both files would have the same digest.
        let without = |file: &super::KeyFile| {
            let text = String::from_utf8(file.bytes.clone()).unwrap();
            (text.lines().filter(|line| !line.starts_with("Version"))).collect::<String>()
        };
        assert_eq!(without(&benign), without(&forged));
    }

    #[test]
    fn every_block_is_parsed_and_other_text_is_rejected() {
        let one = parse(ARMOURED).unwrap();
        let [first, second] = &one.keys[..] else {
            panic!("two keys");
        };
        let both = format!("{}\n{}", first.armoured, second.armoured);
        assert_eq!(parse(both.as_bytes()).unwrap().keys, one.keys);
        // A distribution's file may start with a sentence.
        let sentence = format!("These keys sign packages.\n\n{both}\n \n");
        let read = parse(sentence.as_bytes()).unwrap();
        assert_eq!(
            (read.keys, read.bytes),
            (one.keys.clone(), sentence.into_bytes())
        );
        for (file, why) in rows! {
            format!("{both}x"), "outside the armor";
            format!("{} text\n{}", first.armoured, second.armoured), "outside";
            format!("text -----BEGIN\n{both}"), "line 1 is outside the armor";
            format!("{} -----BEGIN", first.armoured), "outside the armor";
            both.replacen("-----END PGP PUBLIC KEY BLOCK-----", "", 1), "inside another";
            first.armoured.replace("-----END", "x-----END"), "is not Base64";
            first.armoured.replace("\n\n", "\n"), "has no blank line";
            first.armoured.replace("-----END PGP PUBLIC KEY BLOCK-----", ""), "no end";
        } {
            let error = parse(file.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(why), "{error}: {file}");
        }
    }

    const ARMOURED: &[u8] = include_bytes!("../../tests/keys/two.asc");

    #[test]
    fn fingerprint_and_expiry_are_parsed_in_both_formats() {
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

    /// Returns the keys of a file as the library parses them, without verifying signatures.
    fn unverified(file: &[u8]) -> Vec<SignedPublicKey> {
        let keys = SignedPublicKey::from_armor_many(file).unwrap().0;
        keys.map(Result::unwrap).collect()
    }

    #[test]
    fn only_self_signed_parts_of_a_key_remain() {
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
        // A key without a self-signed user ID is invalid.
        key.details.users.remove(0);
        let error = parse(&key.to_bytes().unwrap()).unwrap_err().to_string();
        assert!(error.contains("has no self-signed user ID"), "{error}");
    }

    #[test]
    fn only_own_revocation_is_accepted() {
        assert!(parse(REVOKED).unwrap().keys[0].revoked);
        let mut key = unverified(ARMOURED).remove(0);
        let of_another = unverified(REVOKED).remove(0).details.revocation_signatures;
        key.details.revocation_signatures = of_another;
        assert!(!parse(&key.to_bytes().unwrap()).unwrap().keys[0].revoked);
    }

    #[test]
    fn other_armor_type_is_reported() {
        let public = std::str::from_utf8(ARMOURED).unwrap();
        let error = parse(public.replace("PUBLIC", "PRIVATE").as_bytes()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "not an OpenPGP public key: IO error: the armor type is PGP PRIVATE KEY BLOCK"
        );
    }

    #[test]
    fn garbage_is_not_a_key() {
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
