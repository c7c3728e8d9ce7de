//! The digest by which kubeadm names a certificate authority: SHA-256 of the public key as the certificate has it
//! (`SubjectPublicKeyInfo`, RFC 5280, section 4.1). Source: kubernetes/kubernetes,
//! `cmd/kubeadm/app/util/pubkeypin/pubkeypin.go`.

use rustls::pki_types::{CertificateDer, pem::PemObject};

use crate::host::digest::sha256;

/// The tag of a sequence in DER (X.690, section 8.9).
const SEQUENCE: u8 = 0x30;

/// `sha256:` and the digest of the public key of the first certificate in PEM; `None` if there is none.
pub(super) fn public_key_pin(pem: &[u8]) -> Option<String> {
    let certificate = CertificateDer::from_pem_slice(pem).ok()?;
    let anchor = webpki::anchor_from_trusted_cert(&certificate).ok()?;
    Some(format!(
        "sha256:{}",
        sha256(&sequence(&anchor.subject_public_key_info))
    ))
}

/// The whole sequence, of which the library gives the content (X.690, section 8.1.3).
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
mod tests {
    use super::public_key_pin;

    /// Made with `openssl ecparam -name prime256v1 -genkey`, `openssl req -x509 -subj /CN=kubernetes`; the digest is
    /// of `openssl x509 -pubkey | openssl pkey -pubin -outform der | sha256sum`.
    const PEM: &str = "\
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
    fn the_digest_is_that_of_openssl() {
        assert_eq!(
            public_key_pin(PEM.as_bytes()).as_deref(),
            Some("sha256:18084e48bc8fc008a9ecb121597dafefe57a3d4c917ec7891fa6adfbf5610113")
        );
        assert_eq!(public_key_pin(b"no certificate"), None);
        assert_eq!(public_key_pin(PEM.replace("M", "N").as_bytes()), None);
    }
}
