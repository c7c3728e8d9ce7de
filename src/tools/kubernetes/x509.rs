//! Reads certificates: the digest that kubeadm uses to pin a CA certificate, and the common name of the subject.

use rustls::pki_types::{CertificateDer, pem::PemObject};

use crate::host::digest::sha256;

/// The DER tag of a sequence (X.690, section 8.9).
const SEQUENCE: u8 = 0x30;

/// The DER tag of an object identifier, and the identifier of the common name (X.520: 2.5.4.3).
const IDENTIFIER: u8 = 0x06;
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];

/// The DER tag of a set.
const SET: u8 = 0x31;

/// Returns `sha256:` and the digest of the public key of the first certificate in PEM, or `None` if there is none. The digest
/// covers the encoded `SubjectPublicKeyInfo` of the certificate (RFC 5280, section 4.1). Source: kubernetes/kubernetes,
/// `cmd/kubeadm/app/util/pubkeypin/pubkeypin.go`.
pub(super) fn public_key_pin(pem: &[u8]) -> Option<String> {
    let certificate = CertificateDer::from_pem_slice(pem).ok()?;
    let anchor = webpki::anchor_from_trusted_cert(&certificate).ok()?;
    Some(format!(
        "sha256:{}",
        sha256(&sequence(&anchor.subject_public_key_info))
    ))
}

/// Returns the common name of the subject of the first certificate in PEM, or `None` if it has none or several.
pub(super) fn common_name(pem: &[u8]) -> Option<String> {
    let certificate = CertificateDer::from_pem_slice(pem).ok()?;
    let anchor = webpki::anchor_from_trusted_cert(&certificate).ok()?;
    only_common_name(&anchor.subject)
}

/// A subject is a list of sets of identifier and text pairs (RFC 5280, section 4.1.2.4).
fn only_common_name(mut subject: &[u8]) -> Option<String> {
    let mut found = None;
    while !subject.is_empty() {
        let (SET, mut pairs, rest) = element(subject)? else {
            return None;
        };
        subject = rest;
        while !pairs.is_empty() {
            let (SEQUENCE, pair, rest) = element(pairs)? else {
                return None;
            };
            pairs = rest;
            let (IDENTIFIER, identifier, value) = element(pair)? else {
                return None;
            };
            if identifier == COMMON_NAME {
                let (_, text, _) = element(value)?;
                let text = str::from_utf8(text).ok()?.to_owned();
                if found.replace(text).is_some() {
                    return None;
                }
            }
        }
    }
    found
}

/// Returns the tag and the content of the first element, and the remaining bytes (X.690, section 8.1).
fn element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (tag, rest) = der.split_first()?;
    let (first, rest) = rest.split_first()?;
    // This byte is the length, or 0x80 plus the number of length bytes that follow. A name is shorter than 64 KiB.
    let digits = match first {
        0x81 => 1,
        0x82 => 2,
        _ => 0,
    };
    let (length, rest) = match (first, rest.split_at_checked(digits)?) {
        (short, _) if *short < 0x80 => (usize::from(*short), rest),
        (_, ([], _)) => return None,
        (_, (long, rest)) => {
            let length = (long.iter()).fold(0, |all, digit| (all << 8) | usize::from(*digit));
            (length, rest)
        }
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((*tag, content, rest))
}

/// Encodes a sequence, because the library returns only its content (X.690, section 8.1.3).
fn sequence(content: &[u8]) -> Vec<u8> {
    let length = content.len().to_be_bytes();
    let digits: Vec<u8> = (length.into_iter())
        .skip_while(|digit| *digit == 0)
        .collect();
    let mut whole = vec![SEQUENCE];
    match digits[..] {
        [short] if short < 0x80 => whole.push(short),
        _ => {
            whole.push(0x80 | digits.len() as u8);
            whole.extend(&digits);
        }
    }
    whole.extend(content);
    whole
}

#[cfg(test)]
pub(super) mod tests {
    use super::{common_name, only_common_name, public_key_pin};

    /// Created with `openssl ecparam -name prime256v1 -genkey` and `openssl req -x509 -subj /CN=kubernetes`. The digest was
    /// computed with `openssl x509 -pubkey | openssl pkey -pubin -outform der | sha256sum`.
    pub(in crate::tools::kubernetes) const PEM: &str = "\
-----BEGIN CERTIFICATE-----\n\
MIIBgTCCASegAwIBAgIUTvDL3xuAhrNzI/R2miBibEAFxkwwCgYIKoZIzj0EAwIw\n\
FTETMBEGA1UEAwwKa3ViZXJuZXRlczAgFw0yNjExMjQwMjQ2MjFaGA8yMTI2MTAz\n\
MTAyNDYyMVowFTETMBEGA1UEAwwKa3ViZXJuZXRlczBZMBMGByqGSM49AgEGCCqG\n\
SM49AwEHA0IABJon263UtCP13qlfmCs6rEk9Rh85lQ1zMoftDYk0NEcWxSMfH1ia\n\
qzai0hy8Xk97EhYn0rhX8zgb3amGc3MGHAKjUzBRMB0GA1UdDgQWBBTTfBILmahv\n\
+sJVqrtHj3ThFIqnUDAfBgNVHSMEGDAWgBTTfBILmahv+sJVqrtHj3ThFIqnUDAP\n\
BgNVHRMBAf8EBTADAQH/MAoGCCqGSM49BAMCA0gAMEUCIQDFtH72k4uNFX81VQrb\n\
lrrOX/nexjcah+20KYmfIYfhiwIgN51G9lpef1OwiUVw8smbZgURloXLOtBgMQDj\n\
5kB8LkA=\n\
-----END CERTIFICATE-----\n\
";

    #[test]
    fn digest_equals_the_openssl_digest() {
        assert_eq!(
            public_key_pin(PEM.as_bytes()).as_deref(),
            Some("sha256:18084e48bc8fc008a9ecb121597dafefe57a3d4c917ec7891fa6adfbf5610113")
        );
        assert_eq!(public_key_pin(b"not a certificate"), None);
        assert_eq!(public_key_pin(PEM.replace("M", "N").as_bytes()), None);
    }

    #[test]
    fn only_a_single_common_name_is_returned() {
        assert_eq!(common_name(PEM.as_bytes()).as_deref(), Some("kubernetes"));
        let name = |text: &str| {
            let mut pair = vec![0x06, 3, 0x55, 4, 3, 0x0c, text.len() as u8];
            pair.extend(text.as_bytes());
            let mut set = vec![0x31, pair.len() as u8 + 2, 0x30, pair.len() as u8];
            set.extend(pair);
            set
        };
        assert_eq!(only_common_name(&name("a")).as_deref(), Some("a"));
        assert_eq!(only_common_name(&[name("a"), name("b")].concat()), None);
        assert_eq!(only_common_name(&[]), None);
    }

    proptest::proptest! {
        #[test]
        fn any_subject_is_parsed_without_panic(bytes in proptest::collection::vec(0_u8.., 0..64)) {
            let _ = only_common_name(&bytes);
        }
    }
}
