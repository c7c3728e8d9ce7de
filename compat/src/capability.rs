//! The compute capability of a GPU, which determines the machine code that the GPU can execute.

use std::fmt;
use std::str::FromStr;

use crate::text::{as_text, excerpt};

/// The error for a text that is not a compute capability.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a compute capability such as `9.0`")]
pub struct CapabilityError {
    pub text: String,
}

/// A compute capability, such as 9.0 for Hopper.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ComputeCapability {
    /// The 9 in `9.0`.
    pub major: u32,
    /// The 0 in `9.0`.
    pub minor: u32,
}

impl FromStr for ComputeCapability {
    type Err = CapabilityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = |digits: &str| {
            let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
            plain.then(|| digits.parse().ok()).flatten()
        };
        text.split_once('.')
            .and_then(|(major, minor)| {
                Some(Self {
                    major: number(major)?,
                    minor: number(minor)?,
                })
            })
            .ok_or_else(|| CapabilityError {
                text: excerpt(text),
            })
    }
}

impl fmt::Display for ComputeCapability {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{}.{}", self.major, self.minor)
    }
}

as_text!(
    ComputeCapability,
    "compute capability, such as 9.0",
    r"^[0-9]+\.[0-9]+$"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_are_compared_by_number() {
        let capability = |text: &str| text.parse::<ComputeCapability>().unwrap();
        assert!(capability("9.0") < capability("10.0"));
        assert_eq!(capability("8.9").to_string(), "8.9");
        for text in ["", "9", "9.", "9.0.1", "+9.0"] {
            assert!(text.parse::<ComputeCapability>().is_err(), "{text}");
        }
    }
}
