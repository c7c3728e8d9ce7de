//! SHA-256 in lower-case hex, as in checksum files.

use std::io::{self, Read};

use sha2::{Digest, Sha256};

/// The size and the digest of a content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContentDigest {
    /// The size in bytes.
    pub size: u64,
    /// SHA-256 in lower-case hex.
    pub sha256: String,
}

impl ContentDigest {
    /// The size and the digest of some bytes.
    pub fn of(content: &[u8]) -> Self {
        Self {
            size: content.len() as u64,
            sha256: sha256(content),
        }
    }
}

/// Computes the digest of the data that is read through it, so that a large file is never in memory.
pub(super) struct Digesting<R> {
    source: R,
    size: u64,
    state: Sha256,
    /// Whether the last read failed.
    has_failed: bool,
}

impl<R: Read> Digesting<R> {
    pub(super) fn new(source: R) -> Self {
        Self {
            source,
            size: 0,
            state: Sha256::new(),
            has_failed: false,
        }
    }

    /// Whether the last read failed. Otherwise, an error of a copy is an error of its target.
    pub(super) const fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// The digest of the data that was read.
    pub(super) fn digest(self) -> ContentDigest {
        ContentDigest {
            size: self.size,
            sha256: hex(&self.state.finalize()),
        }
    }
}

impl<R: Read> Read for Digesting<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.source.read(buffer);
        self.has_failed = read.is_err();
        let count = read?;
        self.state.update(&buffer[..count]);
        self.size += count as u64;
        Ok(count)
    }
}

/// The SHA-256 of some bytes.
pub fn sha256(content: &[u8]) -> String {
    hex(&Sha256::digest(content))
}

/// Whether a text is a SHA-256 in lower-case hex.
pub fn is_sha256(text: &str) -> bool {
    let is_hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    text.len() == 64 && text.bytes().all(is_hex)
}

/// Bytes in lower-case hex.
pub fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;

    bytes
        .iter()
        .fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
            // Writing to a `String` cannot fail.
            let _ = write!(text, "{byte:02x}");
            text
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sha256_matches_the_fips_180_example() {
        assert_eq!(
            sha256(b"abc"),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
    }
}
